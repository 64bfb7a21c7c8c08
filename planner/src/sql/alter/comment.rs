//! COMMENT ON, and the maintenance statements that have nothing to do.

use sqlparser::ast::ObjectName;

use super::CommentTarget;
use crate::catalog::{CatalogObject, CatalogOp, CommentKey, TableDef};
use crate::sql::ext::{fold, object_name};
use crate::sql::{Alter, Binder, Statement};
use crate::{PlanError, Result};

impl Binder {
    pub(super) fn comment(&self, target: &CommentTarget, text: Option<&str>) -> Result<Statement> {
        let mut alter = Alter::new("COMMENT");
        let (object, key) = match target {
            CommentTarget::Schema(name) => {
                let id = self.existing_namespace(&fold(name))?;
                if let Some(namespace) = self.catalog.namespace(id) {
                    let mut changed = namespace.clone();
                    changed.comment = text.map(str::to_owned);
                    alter.ops.push(CatalogOp::PutNamespace(changed));
                }
                return Ok(Statement::Alter(alter));
            }
            CommentTarget::Object(kind, name) => (self.of_kind(Some(*kind), name)?, CommentKey::Object),
            CommentTarget::Column(name, column) => {
                let object = self.existing(name)?;
                let column = fold(column);
                let at = object.schema().index_of(&column).map_err(|_| {
                    PlanError::new(
                        "42703",
                        format!("column \"{column}\" of relation \"{}\" does not exist", object.name),
                    )
                })?;
                (object, CommentKey::Column(at))
            }
            CommentTarget::Constraint(constraint, name) => {
                let object = self.existing(name)?;
                let constraint = fold(constraint);
                if !constraint_names(object).contains(&constraint) {
                    return Err(PlanError::new(
                        "42704",
                        format!(
                            "constraint \"{constraint}\" for table \"{}\" does not exist",
                            object.name
                        ),
                    ));
                }
                (object, CommentKey::Constraint(constraint))
            }
            CommentTarget::Other(what) if what == "database" || what == "extension" || what == "role" => {
                alter
                    .notices
                    .push(("01000", format!("comments on a {what} are not kept")));
                return Ok(Statement::Alter(alter));
            }
            CommentTarget::Other(what) => {
                return Err(
                    PlanError::unsupported(format!("COMMENT ON {} is not supported", what.to_uppercase()))
                        .hint("Relations, columns, constraints, sequences and schemas can have comments."),
                );
            }
        };
        let mut changed = object.clone();
        match text {
            Some(text) => changed.comments.insert(key, text.to_owned()),
            None => changed.comments.remove(&key),
        };
        alter.ops.push(CatalogOp::Replace(changed));
        Ok(Statement::Alter(alter))
    }

    /// The relation that a name means.
    ///
    /// # Errors
    /// 42P01.
    pub(super) fn existing(&self, name: &ObjectName) -> Result<&CatalogObject> {
        self.named_object(name)?
            .map(AsRef::as_ref)
            .ok_or_else(|| PlanError::new("42P01", format!("relation \"{}\" does not exist", plain(name))))
    }

    /// ANALYZE and VACUUM check that their tables exist.
    pub(super) fn maintain(&self, tag: &'static str, tables: &[ObjectName]) -> Result<Statement> {
        for name in tables {
            let (schema, table) = object_name(name)?;
            let system = self.system.table(schema.as_deref(), &table).is_some();
            if !system {
                self.existing(name)?;
            }
        }
        Ok(Statement::NoOp { tag, notice: None })
    }
}

/// A name as messages show it.
pub(in crate::sql) fn plain(name: &ObjectName) -> String {
    let parts = name.0.iter().filter_map(|p| p.as_ident()).map(fold);
    parts.collect::<Vec<_>>().join(".")
}

/// All constraints of a table by name.
pub(super) fn constraint_names(object: &CatalogObject) -> Vec<String> {
    object.table().map_or_else(Vec::new, |t| names_of(t, &object.name))
}

/// Does the table have a constraint of this name?
pub(in crate::sql) fn has_constraint(table: &TableDef, name: &str, constraint: &str) -> bool {
    names_of(table, name).iter().any(|n| n == constraint)
}

fn names_of(table: &TableDef, name: &str) -> Vec<String> {
    let c = &table.constraints;
    let mut names: Vec<String> = table.primary_key_name(name).into_iter().collect();
    names.extend(c.checks.iter().map(|c| c.name.clone()));
    names.extend(c.uniques.iter().map(|c| c.name.clone()));
    names.extend(c.foreign_keys.iter().map(|c| c.name.clone()));
    names
}
