//! What stored rows must satisfy before ALTER TABLE adds a constraint, and the first rows of what it creates.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use levee_planner::catalog::{CatalogObject, CatalogOp, TableDef, Unique};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{Alter, Requirement, RequirementKind, TableLock};
use levee_runtime::coordinator::{CatalogChange, Engine, ReadSnapshot};
use levee_runtime::{Delta, RuntimeError};

use super::change::encoded;
use super::references::{Lookup, check_present};
use super::rules::Rules;
use super::unique::{index_rows, key_text};
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

impl Session {
    /// Checks the rows that are there against what an ALTER asks of them; answers the change to make.
    pub(super) async fn verified(&mut self, binder: &SessionBinder, alter: &mut Alter) -> Result<CatalogChange> {
        let requires = std::mem::take(&mut alter.requires);
        let mut change = CatalogChange {
            ops: std::mem::take(&mut alter.ops),
            ..CatalogChange::default()
        };
        let mut tables: Vec<ObjectId> = requires.iter().map(|r| r.table).collect();
        tables.sort_unstable();
        tables.dedup();
        if tables.is_empty() {
            return Ok(change);
        }
        let mut reads = tables.clone();
        for r in &requires {
            if let (RequirementKind::Reference(at), Some(object)) = (&r.kind, changed(&change.ops, r)) {
                reads.extend(lookup_of(binder, object, *at)?.map(|l| l.relation));
            }
        }
        let known = |id: &ObjectId| binder.catalog.get(*id).is_some();
        reads.retain(known);
        reads.sort_unstable();
        reads.dedup();
        // Transactions that have written to the tables end first.
        for table in &tables {
            self.lock_table(*table, TableLock::AccessExclusive).await?;
        }
        let at_least = self.server.last_write();
        let engine = Arc::clone(&self.server.engine);
        let snapshot = self
            .guarded(async { Ok(Engine::snapshot(&engine, &reads, at_least).await?) })
            .await?;
        for r in &requires {
            let object =
                changed(&change.ops, r).ok_or_else(|| SqlError::internal("a table to check is not changed"))?;
            let rows = rows_of(&snapshot, r.table, object)?;
            if rows.get_array_memory_size() > self.server.write_bytes_max {
                return Err(super::txn::too_big(self.server.write_bytes_max));
            }
            let fresh = tokio::task::block_in_place(|| check(binder, object, &r.kind, &rows, &snapshot))?;
            if let Some((id, rows)) = fresh
                && rows.num_rows() > 0
            {
                change.writes.push((id, vec![Delta::inserts(rows)]));
            }
        }
        change.unchanged = reads.iter().map(|t| (*t, snapshot.epoch)).collect();
        Ok(change)
    }
}

/// The definition that a requirement is about, as it will be.
fn changed<'a>(ops: &'a [CatalogOp], r: &Requirement) -> Option<&'a CatalogObject> {
    let created = |id: ObjectId| {
        ops.iter().find_map(|op| match op {
            CatalogOp::Create(o) | CatalogOp::Replace(o) if o.id == id => Some(o),
            _ => None,
        })
    };
    if let RequirementKind::Rekey(to) = &r.kind {
        return created(*to);
    }
    // A table that is stored anew has another id.
    created(r.table).or_else(|| {
        ops.iter().find_map(|op| match op {
            CatalogOp::Create(o) if o.table().is_some() => Some(o),
            _ => None,
        })
    })
}

fn rows_of(snapshot: &ReadSnapshot, table: ObjectId, object: &CatalogObject) -> Result<RecordBatch> {
    let relation = snapshot.relations.get(&table).ok_or(RuntimeError::NoObject(table))?;
    let batches = relation.rows()?;
    let fields: Vec<_> = object
        .schema()
        .fields()
        .iter()
        .map(|f| f.as_ref().clone().with_nullable(true))
        .collect();
    Ok(concat_batches(
        &Arc::new(arrow::datatypes::Schema::new(fields)),
        &batches,
    )?)
}

fn definition(object: &CatalogObject) -> Result<&TableDef> {
    object
        .table()
        .ok_or_else(|| SqlError::internal("a table to check is none"))
}

fn lookup_of(binder: &SessionBinder, object: &CatalogObject, at: usize) -> Result<Option<Lookup>> {
    let f = definition(object)?.constraints.foreign_keys.get(at);
    f.map(|f| Lookup::of(&binder.catalog, f)).transpose()
}

/// One requirement; answers the rows that something new begins with.
fn check(
    binder: &SessionBinder,
    object: &CatalogObject,
    kind: &RequirementKind,
    rows: &RecordBatch,
    snapshot: &ReadSnapshot,
) -> Result<Option<(ObjectId, RecordBatch)>> {
    let def = definition(object)?;
    match kind {
        RequirementKind::NotNull(c) => {
            if rows.column(*c).null_count() > 0 {
                let column = def.schema.field(*c).name();
                return Err(SqlError::new(
                    "23502",
                    format!(
                        "column \"{column}\" of relation \"{}\" contains null values",
                        object.name
                    ),
                )
                .object(&object.name, Some(column), None));
            }
            Ok(None)
        }
        RequirementKind::Unique {
            name,
            columns,
            nulls_distinct,
            index,
        } => {
            let unique = Unique {
                name: name.clone(),
                columns: columns.clone(),
                nulls_distinct: *nulls_distinct,
                index: *index,
            };
            let (values, from) = index_rows(&unique, rows)?;
            let all: Vec<usize> = (0..values.num_columns()).collect();
            if let Some(at) = first_repeated(&values, &all)? {
                let row = from.get(at).copied().unwrap_or(at);
                return Err(not_unique(&object.name, name, columns, rows, row));
            }
            Ok(Some((*index, values)))
        }
        RequirementKind::Check(at) => {
            let name = def.constraints.checks.get(*at).map_or("", |c| c.name.as_str());
            if let Some(rules) = Rules::of(binder, object)? {
                rules.check(&object.name, rows.columns()).map_err(|e| {
                    if e.code() != "23514" {
                        return e;
                    }
                    SqlError::new(
                        "23514",
                        format!(
                            "check constraint \"{name}\" of relation \"{}\" is violated by some row",
                            object.name
                        ),
                    )
                    .object(&object.name, None, Some(name))
                })?;
            }
            Ok(None)
        }
        RequirementKind::Reference(at) => {
            if let (Some(f), Some(lookup)) = (def.constraints.foreign_keys.get(*at), lookup_of(binder, object, *at)?) {
                let parent = snapshot.relations.get(&lookup.relation);
                let parent = parent.ok_or(RuntimeError::NoObject(lookup.relation))?;
                check_present(&binder.catalog, &object.name, f, &lookup, parent, rows)?;
            }
            Ok(None)
        }
        RequirementKind::Rekey(to) => {
            let name = def.primary_key_name(&object.name).unwrap_or_default();
            if !def.primary_key.is_empty()
                && let Some(row) = first_repeated(rows, &def.primary_key)?
            {
                return Err(not_unique(&object.name, &name, &def.primary_key, rows, row));
            }
            let stored = RecordBatch::try_new(Arc::clone(&def.schema), rows.columns().to_vec())?;
            Ok(Some((*to, stored)))
        }
    }
}

/// The first row whose values in `columns` an earlier row has.
fn first_repeated(rows: &RecordBatch, columns: &[usize]) -> Result<Option<usize>> {
    let keys = encoded(rows, columns)?;
    let mut seen = std::collections::HashSet::with_capacity(keys.len());
    Ok(keys.iter().position(|k| !seen.insert(k)))
}

fn not_unique(table: &str, index: &str, columns: &[usize], rows: &RecordBatch, row: usize) -> SqlError {
    let (names, values) = key_text(columns, rows, row);
    SqlError::new("23505", format!("could not create unique index \"{index}\""))
        .detail(format!("Key ({names})=({values}) is duplicated."))
        .object(table, None, Some(index))
}
