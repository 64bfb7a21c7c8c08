//! What must hold of a write besides types, NOT NULL, CHECK and the primary key: unique constraints and foreign keys; and what else
//! it writes: indexes, and rows of referencing tables.
//!
//! ```text
//!   rows ─▶ lock the values of unique constraints, and the keys referred to ─▶ newest rows ─▶ checks ─▶ table, indexes
//!        └▶ keys that go ─▶ referencing rows: an error, or (CASCADE, SET …) changes of those tables, checked in their turn
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::compute::concat_batches;
use levee_planner::catalog::{Catalog, CatalogObject, ForeignKey, ReferentialAction};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{DmlKind, RowLock, TableLock};
use levee_runtime::coordinator::ReadSnapshot;
use levee_runtime::relation::{OwnChanges, RelationSnapshot};
use levee_runtime::{Delta, RuntimeError};

use super::change::{Change, Target, check_primary_key, new_rows};
use super::dml::Writes;
use super::references::{Lookup, check_present, keys_gone, referring_rows, still_referenced};
use super::unique::index_changes;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// Foreign keys that refer to a table, with the tables that have them.
fn referring(catalog: &Catalog, table: ObjectId) -> Vec<(&Arc<CatalogObject>, &ForeignKey)> {
    let tables = catalog.objects().filter_map(|o| Some((o.id, o.table()?)));
    let keys = tables.flat_map(|(id, t)| t.constraints.foreign_keys.iter().map(move |f| (id, f)));
    keys.filter(|(_, f)| f.parent == table)
        .filter_map(|(id, f)| Some((catalog.shared(id)?, f)))
        .collect()
}

/// The rows of a foreign key's table that must be looked up: new ones, unless the key's columns stay as they were.
fn to_look_up<'a>(f: &ForeignKey, change: &'a Change) -> Option<&'a RecordBatch> {
    let new = change.new.as_ref().filter(|b| b.num_rows() > 0)?;
    if let Some(old) = &change.old
        && old.num_rows() == new.num_rows()
        && f.columns.iter().all(|&c| old.column(c) == new.column(c))
    {
        return None;
    }
    Some(new)
}

/// The relations that a write to a table is checked against: itself, its indexes, what its foreign keys refer to.
pub(super) fn checked_against(target: &Target) -> Result<Vec<ObjectId>> {
    let mut ids = vec![target.id];
    let c = &target.def.constraints;
    ids.extend(c.uniques.iter().map(|u| u.index));
    for f in &c.foreign_keys {
        ids.push(Lookup::of(&target.catalog, f)?.relation);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Tables to empty, with their indexes.
///
/// # Errors
/// 0A000: a table that is not among them refers to one.
pub(super) fn truncated(catalog: &Catalog, tables: &[ObjectId]) -> Result<Vec<Arc<CatalogObject>>> {
    let mut all = Vec::new();
    for id in tables {
        let object = catalog.shared(*id).ok_or(RuntimeError::NoObject(*id))?;
        if let Some((child, _)) = referring(catalog, *id)
            .into_iter()
            .find(|(o, _)| !tables.contains(&o.id))
        {
            return Err(SqlError::new(
                "0A000",
                "cannot truncate a table referenced in a foreign key constraint",
            )
            .detail(format!("Table \"{}\" references \"{}\".", child.name, object.name))
            .hint(format!(
                "Truncate table \"{}\" at the same time, or use TRUNCATE ... CASCADE.",
                child.name
            )));
        }
        all.push(Arc::clone(object));
        for u in object
            .table()
            .map(|t| t.constraints.uniques.as_slice())
            .unwrap_or_default()
        {
            all.push(Arc::clone(
                catalog.shared(u.index).ok_or(RuntimeError::NoObject(u.index))?,
            ));
        }
    }
    Ok(all)
}

fn relation_of(fresh: &ReadSnapshot, id: ObjectId) -> Result<&RelationSnapshot> {
    Ok(fresh.relations.get(&id).ok_or(RuntimeError::NoObject(id))?)
}

impl Session {
    /// Locks the values that a change adds to or takes from unique constraints, and the keys that its new rows refer to.
    pub(super) async fn lock_values(&mut self, target: &Target, change: &Change) -> Result<()> {
        let engine = Arc::clone(&self.server.engine);
        for c in index_changes(&target.def, change.old.as_ref(), change.new.as_ref())? {
            let mut keys = Vec::new();
            for rows in [&c.old, &c.new].into_iter().flatten() {
                keys.extend(engine.row_keys(c.id(), rows)?);
            }
            self.lock_keys(c.id(), keys, RowLock::Update).await?;
        }
        for f in &target.def.constraints.foreign_keys {
            let Some(rows) = to_look_up(f, change) else { continue };
            let lookup = Lookup::of(&target.catalog, f)?;
            self.lock_table(f.parent, TableLock::RowShare).await?;
            let (values, _) = lookup.values(rows)?;
            let keys = engine.keys_of(lookup.relation, values.columns())?;
            self.lock_keys(lookup.relation, keys, RowLock::KeyShare).await?;
        }
        Ok(())
    }

    /// The newest rows of all that a write to a table is checked against.
    pub(super) async fn fresh_for(&mut self, target: &Target) -> Result<ReadSnapshot> {
        let ids = checked_against(target)?;
        self.fresh(&ids).await
    }

    /// What becomes of rows that refer to keys that a change takes away. Their tables' changes join `writes`.
    pub(super) async fn cascade(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        change: &Change,
        kind: DmlKind,
        writes: &mut Writes,
    ) -> Result<()> {
        let mut open: VecDeque<(Target, Option<RecordBatch>, Option<RecordBatch>)> = VecDeque::new();
        if change.old.is_some() && !referring(&target.catalog, target.id).is_empty() {
            open.push_back((target.clone(), change.old.clone(), change.new.clone()));
        }
        // Whose old and new rows do not pair up.
        let mixed = !matches!(kind, DmlKind::Update | DmlKind::Delete);
        while let Some((parent, old, new)) = open.pop_front() {
            let keys: Vec<(Arc<CatalogObject>, ForeignKey)> = referring(&parent.catalog, parent.id)
                .into_iter()
                .map(|(o, f)| (Arc::clone(o), f.clone()))
                .collect();
            for (child, f) in keys {
                let lookup = Lookup::of(&parent.catalog, &f)?;
                let gone = keys_gone(&lookup, old.as_ref(), new.as_ref())?;
                if gone.is_empty() {
                    continue;
                }
                self.lock_table(child.id, TableLock::RowExclusive).await?;
                let Some(rows) = self.referring(&child, &lookup, &gone, writes).await? else {
                    continue;
                };
                let action = if new.is_some() { f.on_update } else { f.on_delete };
                let passive = |a| matches!(a, ReferentialAction::NoAction | ReferentialAction::Restrict);
                if passive(action) || (passive(f.on_update) && passive(f.on_delete)) {
                    return Err(still_referenced(&parent.object, &child.name, &f, &rows));
                }
                if mixed {
                    return Err(SqlError::unsupported(format!(
                        "MERGE or ON CONFLICT that takes keys of \"{}\" away from referencing rows is not supported",
                        parent.name
                    ))
                    .hint("Use UPDATE and DELETE, which tell ON UPDATE from ON DELETE."));
                }
                let child = Target::find(binder, child.id)?;
                let next = child_rows(binder, &child, &f, action, &rows, old.as_ref(), new.as_ref())?;
                let change = Change {
                    rows: rows.num_rows(),
                    old: Some(rows.clone()),
                    new: next.clone(),
                    extra: Vec::new(),
                };
                self.lock_values(&child, &change).await?;
                let mut fresh = self.fresh_for(&child).await?;
                add_writes(&mut fresh, writes)?;
                writes.extend(self.checked(&child, &change, &fresh)?);
                open.push_back((child, Some(rows), next));
            }
        }
        Ok(())
    }

    /// The rows of a table that refer to keys that go, locked; none: `None`.
    async fn referring(
        &mut self,
        child: &Arc<CatalogObject>,
        lookup: &Lookup,
        gone: &std::collections::HashSet<arrow::row::OwnedRow>,
        writes: &Writes,
    ) -> Result<Option<RecordBatch>> {
        let engine = Arc::clone(&self.server.engine);
        let mut locked: BTreeSet<u128> = BTreeSet::new();
        loop {
            let mut fresh = self.fresh(&[child.id]).await?;
            add_writes(&mut fresh, writes)?;
            let relation = relation_of(&fresh, child.id)?;
            let parts = tokio::task::block_in_place(|| referring_rows(lookup, relation, gone))?;
            let rows = concat_batches(child.schema(), &parts)?;
            let keys = engine.row_keys(child.id, &rows)?;
            if keys.iter().all(|k| locked.contains(k)) {
                return Ok((rows.num_rows() > 0).then_some(rows));
            }
            locked.extend(keys.iter().copied());
            self.lock_keys(child.id, keys, RowLock::Update).await?;
        }
    }

    /// Checks a change against the newest rows, whose keys are locked; answers everything that is to be written.
    pub(super) fn checked(&self, target: &Target, change: &Change, fresh: &ReadSnapshot) -> Result<Writes> {
        check_primary_key(target, relation_of(fresh, target.id)?, change)?;
        let mut writes = vec![(Arc::clone(&target.object), change.deltas())];
        for c in index_changes(&target.def, change.old.as_ref(), change.new.as_ref())? {
            c.check(&target.name, relation_of(fresh, c.id())?, change.new.as_ref())?;
            let index = target.catalog.shared(c.id()).ok_or(RuntimeError::NoObject(c.id()))?;
            writes.push((Arc::clone(index), c.deltas()));
        }
        for f in &target.def.constraints.foreign_keys {
            let Some(rows) = to_look_up(f, change) else { continue };
            let lookup = Lookup::of(&target.catalog, f)?;
            let mut parent = relation_of(fresh, lookup.relation)?.clone();
            // Rows may refer to rows of the same statement.
            if let Some((_, own)) = writes.iter().find(|(o, _)| o.id == lookup.relation) {
                parent = with_writes(&parent, own)?;
            }
            check_present(&target.catalog, &target.name, f, &lookup, &parent, rows)?;
        }
        Ok(writes)
    }
}

/// A snapshot with a statement's own writes on top.
fn add_writes(fresh: &mut ReadSnapshot, writes: &Writes) -> Result<()> {
    for (object, deltas) in writes {
        if let Some(relation) = fresh.relations.get_mut(&object.id) {
            *relation = with_writes(relation, deltas)?;
        }
    }
    Ok(())
}

fn with_writes(relation: &RelationSnapshot, deltas: &[Delta]) -> Result<RelationSnapshot> {
    let mut own = OwnChanges::default();
    own.take(relation, deltas)?;
    Ok(relation.with_changes(&own))
}

/// What referencing rows become; `None`: they go.
fn child_rows(
    binder: &SessionBinder,
    child: &Target,
    f: &ForeignKey,
    action: ReferentialAction,
    rows: &RecordBatch,
    old: Option<&RecordBatch>,
    new: Option<&RecordBatch>,
) -> Result<Option<RecordBatch>> {
    let n = rows.num_rows();
    let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
    match action {
        ReferentialAction::Cascade if new.is_none() => return Ok(None),
        ReferentialAction::Cascade => {
            let (Some(old), Some(new)) = (old, new) else {
                return Err(SqlError::internal("an update without rows"));
            };
            let lookup = Lookup::of(&child.catalog, f)?;
            let (values, _) = lookup.values(rows)?;
            let all: Vec<usize> = (0..values.num_columns()).collect();
            let before = super::change::encoded(old, &lookup.parent_columns)?;
            let at = before.iter().enumerate().map(|(i, k)| (k, i));
            let at: std::collections::HashMap<_, _> = at.collect();
            let index: arrow::array::UInt32Array = super::change::encoded(&values, &all)?
                .iter()
                .map(|k| at.get(k).map(|i| u32::try_from(*i).unwrap_or(u32::MAX)))
                .collect();
            for (c, p) in lookup.columns.iter().zip(&lookup.parent_columns) {
                let taken = arrow::compute::take(new.column(*p), &index, None)?;
                columns[*c] = arrow::compute::cast(&taken, child.def.schema.field(*c).data_type())?;
            }
        }
        ReferentialAction::SetNull => {
            for &c in &f.columns {
                columns[c] = new_null_array(columns[c].data_type(), n);
            }
        }
        ReferentialAction::SetDefault => {
            for &c in &f.columns {
                columns[c] = match child.def.default_sql(c) {
                    None => new_null_array(columns[c].data_type(), n),
                    Some(_) => binder.constant_default(&child.def, c)?.to_array_of_size(n)?,
                };
            }
        }
        ReferentialAction::NoAction | ReferentialAction::Restrict => {
            return Err(SqlError::internal("no action has no rows"));
        }
    }
    new_rows(child, &columns).map(Some)
}
