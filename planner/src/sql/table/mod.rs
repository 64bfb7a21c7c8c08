//! CREATE TABLE: columns, keys, constraints, and what comes into being with them.
//!
//! A [`Draft`] is a table's definition while a statement works on it, CREATE or ALTER: it gathers the indexes and sequences that its
//! constraints and columns need, and what rows that are there already must satisfy.

mod columns;
mod constraints;
mod like;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sqlparser::ast::{self, CreateTableOptions};

pub(super) use self::columns::created;
pub use self::like::Like;
pub(super) use self::like::parse as parse_like;
pub use self::rules::RowRules;
pub(super) use self::rules::{Overriding, overriding, refuse_set, takes_value, without_overriding};
use super::ext::fold;
use super::resolve::NewName;
use super::{Binder, OnCommit, Requirement, Statement, types};
use crate::catalog::{CatalogObject, CatalogOp, Constraints, ObjectKind, TableDef};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// PostgreSQL's limit for columns of a relation.
const COLUMNS_MAX: usize = 1600;

/// A table's definition at work.
pub(super) struct Draft<'a> {
    pub binder: &'a Binder,
    pub id: ObjectId,
    pub namespace: ObjectId,
    pub name: String,
    pub temporary: bool,
    pub def: TableDef,
    /// The next id for an index or sequence.
    pub next_id: ObjectId,
    /// Indexes and sequences to create.
    pub ops: Vec<CatalogOp>,
    /// What stored rows must satisfy; `None`: there are none.
    pub requires: Option<Vec<Requirement>>,
    /// Constraint names taken in this statement.
    pub names: Vec<String>,
}

impl Draft<'_> {
    fn take_id(&mut self) -> ObjectId {
        let id = self.next_id;
        self.next_id = ObjectId(id.0 + 1);
        id
    }

    /// An object of the table's schema.
    fn companion(&mut self, name: String, kind: ObjectKind) -> ObjectId {
        let id = self.take_id();
        let object = CatalogObject {
            namespace: self.namespace,
            ..CatalogObject::new(id, name, kind)
        };
        self.ops.push(CatalogOp::Create(object));
        id
    }

    /// `name1_name2_label`, cut to fit and numbered until it is free, as PostgreSQL does.
    pub fn free_name(&mut self, name1: &str, name2: &str, label: &str) -> String {
        let mut n = 0;
        loop {
            let suffix = if n == 0 {
                label.to_owned()
            } else {
                format!("{label}{n}")
            };
            let name = object_name(name1, name2, &suffix);
            let taken = self.names.contains(&name)
                || self.binder.catalog.find(self.namespace, &name).is_some()
                || super::alter::has_constraint(&self.def, &self.name, &name);
            if !taken {
                self.names.push(name.clone());
                return name;
            }
            n += 1;
        }
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.def.schema.index_of(name).ok()
    }
}

/// PostgreSQL's `makeObjectName`: parts joined by underscores, the longer of the first two cut first.
fn object_name(name1: &str, name2: &str, label: &str) -> String {
    const MAX: usize = 63;
    let overhead = label.len() + 1 + usize::from(!name2.is_empty());
    let (mut n1, mut n2) = (name1.len(), name2.len());
    while n1 + n2 + overhead > MAX {
        if n1 > n2 { n1 -= 1 } else { n2 -= 1 }
    }
    let cut = |s: &str, mut n: usize| {
        while !s.is_char_boundary(n) {
            n -= 1;
        }
        s[..n].to_owned()
    };
    let (a, b) = (cut(name1, n1), cut(name2, n2));
    if name2.is_empty() {
        format!("{a}_{label}")
    } else {
        format!("{a}_{b}_{label}")
    }
}

impl Binder {
    /// CREATE TABLE.
    pub(super) fn create_table(&self, t: &ast::CreateTable, text: &str) -> Result<Statement> {
        self.create_table_like(t, &[], text)
    }

    /// CREATE TABLE, some of whose columns are copied from other relations.
    pub(super) fn create_table_like(&self, t: &ast::CreateTable, likes: &[Like], text: &str) -> Result<Statement> {
        refuse_table_clauses(t)?;
        let Some(new) = self.new_name(&t.name, t.if_not_exists, t.temporary)? else {
            return Self::skipped(
                &t.name,
                if t.query.is_some() {
                    "CREATE TABLE AS"
                } else {
                    "CREATE TABLE"
                },
            );
        };
        let temporary = new.before.is_some() || Some(new.namespace) == self.settings.temporary;
        let on_commit = on_commit(t, temporary)?;
        let mut draft = Draft {
            binder: self,
            id: new.id,
            namespace: new.namespace,
            name: new.name.clone(),
            temporary,
            def: empty_table(),
            next_id: ObjectId(new.id.0 + 1),
            ops: Vec::new(),
            requires: None,
            names: Vec::new(),
        };
        let mut at = 0;
        for like in likes {
            draft.columns(t.columns.get(at..like.position).unwrap_or_default())?;
            draft.like(like)?;
            at = like.position;
        }
        draft.columns(t.columns.get(at..).unwrap_or_default())?;
        draft.table_constraints(&t.constraints)?;
        check_width(&draft.def)?;
        let mut object = new.object(ObjectKind::Table(draft.def), text);
        object.comments = BTreeMap::new();
        let mut also = new.ops();
        also.extend(draft.ops);
        let create = Statement::Create {
            object: Box::new(object),
            also,
            notices: Vec::new(),
            no_data: false,
            if_not_exists: t.if_not_exists,
        };
        Ok(match on_commit {
            None => create,
            on_commit => Statement::CreateTable {
                create: Box::new(create),
                query: None,
                on_commit,
            },
        })
    }

    /// A table of these columns and nothing more.
    pub(super) fn create_plain_table(
        &self,
        new: &NewName,
        schema: SchemaRef,
        text: &str,
        if_not_exists: bool,
    ) -> Result<Statement> {
        let def = TableDef {
            defaults: vec![None; schema.fields().len()],
            schema,
            ..empty_table()
        };
        check_width(&def)?;
        Ok(Statement::Create {
            object: Box::new(new.object(ObjectKind::Table(def), text)),
            also: new.ops(),
            notices: Vec::new(),
            no_data: false,
            if_not_exists,
        })
    }
}

/// The columns of a table that is made from a query: the query's, renamed from the left, all of which may be NULL.
pub(super) fn query_columns(query: &SchemaRef, names: &[ast::Ident]) -> Result<SchemaRef> {
    if names.len() > query.fields().len() {
        return Err(PlanError::new("42601", "too many column names were specified"));
    }
    let mut fields: Vec<Field> = Vec::new();
    for (i, f) in query.fields().iter().enumerate() {
        let name = names.get(i).map_or_else(|| f.name().clone(), fold);
        if fields.iter().any(|f| f.name() == &name) {
            return Err(specified_twice(&name));
        }
        fields.push(f.as_ref().clone().with_name(name).with_nullable(true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

pub(super) fn empty_table() -> TableDef {
    TableDef {
        schema: Arc::new(Schema::empty()),
        primary_key: Vec::new(),
        defaults: Vec::new(),
        ingest: None,
        constraints: Constraints::default(),
        generated: BTreeMap::new(),
    }
}

fn specified_twice(name: &str) -> PlanError {
    PlanError::new("42701", format!("column \"{name}\" specified more than once"))
}

fn check_width(def: &TableDef) -> Result<()> {
    let n = def.schema.fields().len();
    if n > COLUMNS_MAX {
        return Err(PlanError::new(
            "54011",
            format!("tables can have at most {COLUMNS_MAX} columns"),
        ));
    }
    if n == 0 {
        return Err(
            PlanError::unsupported("a table without columns is not supported").hint("Give it at least one column.")
        );
    }
    Ok(())
}

fn on_commit(t: &ast::CreateTable, temporary: bool) -> Result<Option<OnCommit>> {
    let on_commit = match &t.on_commit {
        None => return Ok(None),
        Some(ast::OnCommit::PreserveRows) => None,
        Some(ast::OnCommit::DeleteRows) => Some(OnCommit::DeleteRows),
        Some(ast::OnCommit::Drop) => Some(OnCommit::Drop),
    };
    if !temporary {
        return Err(PlanError::new(
            "42P16",
            "ON COMMIT can only be used on temporary tables",
        ));
    }
    Ok(on_commit)
}

fn refuse_table_clauses(t: &ast::CreateTable) -> Result<()> {
    let refuse = |what: &str, hint: &str| Err(PlanError::unsupported(format!("{what} is not supported")).hint(hint));
    if t.query.is_some() {
        return refuse(
            "CREATE TABLE … WITH (…) AS",
            "Leave WITH (…) out: storage parameters have no effect.",
        );
    }
    if t.inherits.is_some() || t.partition_of.is_some() || t.partition_by.is_some() {
        return refuse(
            "PARTITION BY or INHERITS",
            "Use one table; state is partitioned by key internally.",
        );
    }
    match &t.table_options {
        CreateTableOptions::None => Ok(()),
        // Storage parameters: there is nothing to tune.
        CreateTableOptions::With(options) if options.iter().all(is_storage_parameter) => Ok(()),
        _ => refuse(
            "CREATE TABLE … WITH",
            "Storage parameters are accepted without effect; a table with a connector takes WITH (connector = …).",
        ),
    }
}

fn is_storage_parameter(o: &ast::SqlOption) -> bool {
    let key = match o {
        ast::SqlOption::KeyValue { key, .. } => fold(key),
        ast::SqlOption::Ident(key) => fold(key),
        _ => return false,
    };
    key == "fillfactor"
        || key == "parallel_workers"
        || key == "user_catalog_table"
        || key.starts_with("autovacuum")
        || key.starts_with("toast")
}

/// A column's type as messages name it.
pub(super) fn shown_type(t: &DataType) -> String {
    types::pg_type_name(&Field::new("", t.clone(), true))
}
