//! ALTER, schemas, sequences, comments: statements that change the catalog and no rows.
//!
//! All end as one list of [`crate::catalog::CatalogOp`]s that takes effect in one epoch. A dependent of what is renamed needs no change: stored
//! queries keep [`crate::catalog::Reference`]s, and plans keep ids.

mod comment;
mod object;
mod parse;
mod schema;
mod sequence;
mod table;

use sqlparser::ast::{Expr, Ident, ObjectName, TableConstraint};

use super::ast::DropKind;
use super::sequences::SequenceOptions;
use super::{Alter, Binder, Statement};
use crate::{PlanError, Result};

pub(super) use comment::{has_constraint, plain};
pub(super) use parse::{Grammar, parse};

/// A statement that changes the catalog.
#[derive(Debug, Clone)]
pub enum Definition {
    /// CREATE SCHEMA.
    CreateSchema {
        /// Name.
        name: Ident,
        /// IF NOT EXISTS.
        if_not_exists: bool,
    },
    /// DROP SCHEMA.
    DropSchema {
        /// Names.
        names: Vec<Ident>,
        /// IF EXISTS.
        if_exists: bool,
        /// CASCADE.
        cascade: bool,
    },
    /// ALTER SCHEMA … RENAME TO.
    RenameSchema {
        /// Old name.
        name: Ident,
        /// New name; `None`: OWNER TO, which changes nothing.
        to: Option<Ident>,
    },
    /// ALTER of a relation.
    AlterObject {
        /// The kind that the statement names; `None` for TABLE, which fits all relations as far as the action goes.
        kind: Option<DropKind>,
        /// IF EXISTS.
        if_exists: bool,
        /// Name.
        name: ObjectName,
        /// What to do.
        actions: Vec<AlterAction>,
    },
    /// CREATE SEQUENCE.
    CreateSequence {
        /// TEMPORARY.
        temporary: bool,
        /// IF NOT EXISTS.
        if_not_exists: bool,
        /// Name.
        name: ObjectName,
        /// Options.
        options: SequenceOptions,
    },
    /// GRANT, REVOKE, … OWNED: every user may do everything.
    Privileges(&'static str),
    /// CREATE EXTENSION.
    CreateExtension {
        /// Name.
        name: String,
        /// IF NOT EXISTS.
        if_not_exists: bool,
    },
    /// COMMENT ON.
    Comment {
        /// On what.
        target: CommentTarget,
        /// Text; `None` removes it.
        text: Option<String>,
    },
    /// ANALYZE, VACUUM and the like: nothing needs it, but tables that do not exist are told of.
    Maintain {
        /// Command tag.
        tag: &'static str,
        /// Tables named.
        tables: Vec<ObjectName>,
    },
}

/// What COMMENT ON names.
#[derive(Debug, Clone)]
pub enum CommentTarget {
    /// A relation of this kind.
    Object(DropKind, ObjectName),
    /// A column.
    Column(ObjectName, Ident),
    /// A constraint of a table.
    Constraint(Ident, ObjectName),
    /// A schema.
    Schema(Ident),
    /// Something whose comments are not kept.
    Other(String),
}

/// One action of ALTER.
#[derive(Debug, Clone)]
pub enum AlterAction {
    /// RENAME TO.
    RenameTo(Ident),
    /// SET SCHEMA.
    SetSchema(Ident),
    /// `RENAME [COLUMN] a TO b`.
    RenameColumn(Ident, Ident),
    /// RENAME CONSTRAINT a TO b.
    RenameConstraint(Ident, Ident),
    /// ADD [CONSTRAINT name] PRIMARY KEY, UNIQUE, CHECK, FOREIGN KEY.
    AddConstraint(Box<TableConstraint>),
    /// DROP CONSTRAINT.
    DropConstraint {
        /// Name.
        name: Ident,
        /// IF EXISTS.
        if_exists: bool,
        /// CASCADE.
        cascade: bool,
    },
    /// ALTER COLUMN … SET DEFAULT.
    SetDefault(Ident, Box<Expr>),
    /// ALTER COLUMN … DROP DEFAULT.
    DropDefault(Ident),
    /// ALTER COLUMN … SET NOT NULL.
    SetNotNull(Ident),
    /// ALTER COLUMN … DROP NOT NULL.
    DropNotNull(Ident),
    /// ALTER SEQUENCE's options.
    Sequence(Box<SequenceOptions>),
    /// OWNER TO, SET (storage parameters), CLUSTER ON and the like: accepted, changes nothing.
    Nothing,
    /// Understood and refused.
    Refused {
        /// Names the construct.
        what: String,
        /// What to do instead.
        hint: String,
    },
}

impl Binder {
    /// Binds a [`Definition`].
    pub(super) fn definition(&self, d: &Definition, text: &str) -> Result<Statement> {
        match d {
            Definition::CreateSchema { name, if_not_exists } => self.create_schema(name, *if_not_exists),
            Definition::DropSchema {
                names,
                if_exists,
                cascade,
            } => self.drop_schemas(names, *if_exists, *cascade),
            Definition::RenameSchema { name, to } => self.rename_schema(name, to.as_ref()),
            Definition::AlterObject {
                kind,
                if_exists,
                name,
                actions,
            } => {
                let bound = self.alter_object(*kind, *if_exists, name, actions);
                self.located(bound.map(Statement::Alter), text)
            }
            Definition::CreateSequence {
                temporary,
                if_not_exists,
                name,
                options,
            } => self.located(
                self.create_sequence(*temporary, *if_not_exists, name, options, text),
                text,
            ),
            Definition::Privileges(tag) => Ok(Statement::NoOp {
                tag,
                notice: Some("privileges are not kept: every user may do everything".to_owned()),
            }),
            Definition::CreateExtension { name, if_not_exists } => create_extension(name, *if_not_exists),
            Definition::Comment { target, text } => self.comment(target, text.as_deref()),
            Definition::Maintain { tag, tables } => self.maintain(tag, tables),
        }
    }
}

impl Alter {
    /// A change with its command tag.
    pub(super) fn new(tag: &'static str) -> Self {
        Self { tag, ..Self::default() }
    }
}

/// There are no extensions; `plpgsql` is there in every PostgreSQL.
fn create_extension(name: &str, if_not_exists: bool) -> Result<Statement> {
    if name == "plpgsql" {
        let message = format!("extension \"{name}\" already exists");
        if !if_not_exists {
            return Err(PlanError::new("42710", message));
        }
        return Ok(Statement::Notice {
            tag: "CREATE EXTENSION",
            message: format!("{message}, skipping"),
            code: "42710",
        });
    }
    Err(
        PlanError::new("0A000", format!("extension \"{name}\" is not available"))
            .detail("There are no extensions.")
            .hint("The extension must first be installed on the system where PostgreSQL is running."),
    )
}
