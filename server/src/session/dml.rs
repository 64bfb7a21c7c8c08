//! Writes: rows of the DML's query → locks → checks → deltas → a commit, or a block's changes.
//!
//! ```text
//!   query at a snapshot ─▶ rows ─▶ lock their keys ─┬─ a key was written since the snapshot ─▶ the query again, only those rows
//!                                                   └─▶ checks against the newest rows ─▶ RETURNING ─▶ commit, or the block
//! ```
//!
//! READ COMMITTED (and a statement outside a block): whoever changes a row that another transaction has changed waits for it, then
//! runs the query again at the newest epoch and keeps those of the rows that it found at first: PostgreSQL's outcome, which looks at
//! the newest version of each row found and tests WHERE on it anew. REPEATABLE READ: the wait ends in 40001.
//!
//! Rows that are inserted are locked by their keys too, so two transactions that insert the same key meet before they commit.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::logical_expr::LogicalPlan;
use datafusion::scalar::ScalarValue;
use levee_planner::catalog::CatalogObject;
use levee_planner::plan::ObjectId;
use levee_planner::sql::{Dml, DmlKind, Parsed, Query, RowLock, Statement, TableLock, bind_params, changed_schema};
use levee_runtime::coordinator::{CommitRequest, ReadSnapshot};
use levee_runtime::{Delta, RuntimeError};

use super::change::{Change, Only, Target, split};
use super::point::key_of;
use super::query::Rows;
use super::run::Outcome;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// A single statement that loses against others is run again this often, then 40001. Locks make that rare.
const CONFLICT_TRIES: usize = 10;

/// Changes of tables, as they enter a commit or a block, with the definitions that they were checked against.
pub(super) type Writes = Vec<(Arc<CatalogObject>, Vec<Delta>)>;

impl Session {
    /// Runs INSERT, UPDATE, DELETE or MERGE; answers the tag, or the rows of RETURNING.
    pub(super) async fn run_dml(
        &mut self,
        parsed: &Parsed,
        binder: &SessionBinder,
        dml: Dml,
        types: &[Option<DataType>],
        params: &[ScalarValue],
    ) -> Result<Outcome> {
        let verb = match dml.kind {
            DmlKind::Insert => "INSERT",
            DmlKind::Update => "UPDATE",
            DmlKind::Delete => "DELETE",
            DmlKind::Merge => "MERGE",
        };
        self.refuse_read_only(verb)?;
        let (mut binder, mut dml) = (binder.clone(), dml);
        for _ in 0..CONFLICT_TRIES {
            if let Some((n, returned)) = self.try_dml(&binder, &dml, params).await? {
                let tag = match dml.kind {
                    DmlKind::Insert => format!("INSERT 0 {n}"),
                    _ => format!("{verb} {n}"),
                };
                return Ok(match returned {
                    Some((query, batches)) => Outcome::Rows(Rows::of_batches(query.schema, batches, tag)),
                    None => Outcome::Tag(tag),
                });
            }
            self.locks.release_to(0);
            binder = self.binder();
            dml = match self.bind(&binder, parsed, types).await? {
                Statement::Dml(dml) => *dml,
                _ => return Err(SqlError::internal("DML bound to another kind of statement")),
            };
        }
        Err(RuntimeError::Conflict.into())
    }

    /// One try: the number of rows and RETURNING's; `None` if the commit lost against another.
    async fn try_dml(
        &mut self,
        binder: &SessionBinder,
        dml: &Dml,
        params: &[ScalarValue],
    ) -> Result<Option<(usize, Option<(Query, Vec<RecordBatch>)>)>> {
        let target = Target::find(binder, dml.table)?;
        self.lock_table(target.id, TableLock::RowExclusive).await?;
        let (snapshot, change) = self.locked_rows(binder, &target, dml, params).await?;
        self.lock_values(&target, &change).await?;
        let fresh = self.fresh_for(&target).await?;
        let change = match &dml.on_conflict {
            Some(on) => {
                let proposed = change
                    .new
                    .unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(target.schema())));
                self.resolve_conflicts(binder, &target, on, proposed, &fresh, &snapshot, params)
                    .await?
            }
            None => change,
        };
        if dml.on_conflict.as_ref().is_some_and(|on| on.update.is_some()) {
            self.lock_values(&target, &change).await?;
        }
        let mut writes = self.checked(&target, &change, &fresh)?;
        self.cascade(binder, &target, &change, dml.kind, &mut writes).await?;
        let returned = match &dml.returning {
            Some(query) => {
                let columns = returned_columns(&target, &change);
                let rows = change.returned(&target, dml.kind, &columns)?;
                let mut rows = self.run_over(binder, query, params, &snapshot, rows).await?;
                let max = self.server.write_bytes_max;
                Some((query.clone(), self.guarded(rows.collect(max)).await?))
            }
            None => None,
        };
        self.server
            .metrics
            .rows_in
            .inc_by(u64::try_from(change.rows).unwrap_or(0));
        let done = self.apply(writes, fresh.epoch).await?;
        Ok(done.then_some((change.rows, returned)))
    }

    /// Runs the query and locks the rows that it changes; runs it again where they have changed meanwhile.
    async fn locked_rows(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        dml: &Dml,
        params: &[ScalarValue],
    ) -> Result<(ReadSnapshot, Change)> {
        let mut reads = dml.query.reads.clone();
        let parts = dml.returning.iter();
        let parts = parts.chain(dml.on_conflict.iter().filter_map(|on| on.update.as_ref()));
        reads.extend(parts.flat_map(|q| q.reads.iter().copied()));
        reads.push(dml.table);
        reads.sort_unstable();
        reads.dedup();
        let engine = Arc::clone(&self.server.engine);
        let max = self.server.write_bytes_max;
        let strength = lock_strength(target, dml);
        let plan = bind_params(dml.query.plan.clone(), params)?;
        let mark = self.locks.mark();
        let early = self.lock_point(target, dml, &plan, strength).await?;
        let mut only: Option<Only> = None;
        let mut at_least = 0;
        loop {
            let snapshot = self.snapshot_from(&reads, at_least).await?;
            let mut rows = self.start_plan(binder, plan.clone(), &dml.query, &snapshot).await?;
            let batches = self.guarded(rows.collect(max)).await?;
            let change = split(&engine, target, dml, &batches, only.as_ref())?;
            let found = match &change.old {
                Some(old) => engine.row_keys(target.id, old)?,
                None => Vec::new(),
            };
            let mut keys = found.clone();
            if let (Some(new), false) = (&change.new, target.def.primary_key.is_empty()) {
                keys.extend(engine.row_keys(target.id, new)?);
            }
            self.lock_keys(target.id, keys, strength).await?;
            let newest = engine.newest_write(&found);
            if early && found.is_empty() {
                // There is no such row: nobody need wait for it.
                self.locks.release_to(mark);
            }
            if found.is_empty() || newest <= snapshot.epoch {
                return Ok((snapshot, change));
            }
            if self.repeatable_read() {
                return Err(RuntimeError::Conflict.into());
            }
            at_least = newest;
            if only.is_none() {
                only = Some(found.into_iter().collect());
            }
        }
    }

    /// Locks the row that a statement names by its key, before the statement is run; true if it did.
    async fn lock_point(&mut self, target: &Target, dml: &Dml, plan: &LogicalPlan, strength: RowLock) -> Result<bool> {
        let changes_rows = matches!(dml.kind, DmlKind::Update | DmlKind::Delete);
        if !changes_rows || dml.joined || self.repeatable_read() {
            return Ok(false);
        }
        let Some(key) = key_of(plan, target)? else {
            return Ok(false);
        };
        let keys = self.server.engine.keys_of(target.id, &key)?;
        self.lock_keys(target.id, keys, strength).await?;
        Ok(true)
    }

    /// Inserts finished batches of a table's own columns (COPY); answers how many.
    pub(super) async fn insert_batches(&mut self, target: &Target, batches: Vec<RecordBatch>) -> Result<usize> {
        let new = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([one]) => one,
            Err(batches) => arrow::compute::concat_batches(target.schema(), &batches)?,
        };
        let change = Change::insert(new);
        let rows = change.rows;
        self.server.metrics.rows_in.inc_by(u64::try_from(rows).unwrap_or(0));
        self.lock_table(target.id, TableLock::RowExclusive).await?;
        if let (Some(new), false) = (&change.new, target.def.primary_key.is_empty()) {
            let keys = self.server.engine.row_keys(target.id, new)?;
            self.lock_keys(target.id, keys, RowLock::Update).await?;
        }
        self.lock_values(target, &change).await?;
        for _ in 0..CONFLICT_TRIES {
            let fresh = self.fresh_for(target).await?;
            let writes = self.checked(target, &change, &fresh)?;
            if self.apply(writes, fresh.epoch).await? {
                return Ok(rows);
            }
        }
        Err(RuntimeError::Conflict.into())
    }

    /// TRUNCATE.
    pub(super) async fn truncate(&mut self, binder: &SessionBinder, tables: &[ObjectId]) -> Result<()> {
        self.refuse_read_only("TRUNCATE TABLE")?;
        for table in tables {
            self.lock_table(*table, TableLock::AccessExclusive).await?;
        }
        let with_indexes = super::constraints::truncated(&binder.catalog, tables)?;
        let ids: Vec<ObjectId> = with_indexes.iter().map(|o| o.id).collect();
        let fresh = self.fresh(&ids).await?;
        let mut writes = Writes::new();
        for object in with_indexes {
            let relation = fresh
                .relations
                .get(&object.id)
                .ok_or(RuntimeError::NoObject(object.id))?;
            let (mut scan, mut gone, mut bytes) = (relation.scan(None, None)?, Vec::new(), 0);
            while let Some(rows) = scan.next()? {
                bytes += rows.bytes();
                if bytes > self.server.write_bytes_max {
                    return Err(super::txn::too_big(self.server.write_bytes_max));
                }
                gone.push(rows.negate());
            }
            writes.push((object, gone));
        }
        if self.apply(writes, fresh.epoch).await? {
            return Ok(());
        }
        Err(RuntimeError::Conflict.into())
    }

    /// Commits the deltas, or adds them to the block. False: lost against another write, run the statement again.
    pub(super) async fn apply(&mut self, writes: Writes, epoch: u64) -> Result<bool> {
        if self.txn.block().is_some() {
            for (table, deltas) in writes {
                self.add_changes(&table, deltas)?;
            }
            self.checked_at(epoch);
            return Ok(true);
        }
        let writes: Writes = writes.into_iter().filter(|(_, d)| !d.is_empty()).collect();
        if writes.is_empty() {
            return Ok(true);
        }
        let request = CommitRequest {
            snapshot_epoch: epoch,
            definitions: writes.iter().map(|(table, _)| Arc::clone(table)).collect(),
            writes: writes.into_iter().map(|(table, deltas)| (table.id, deltas)).collect(),
        };
        match self.server.engine.commit(request).await {
            Ok(ack) => {
                self.wrote(ack.epoch);
                Ok(true)
            }
            Err(RuntimeError::Conflict) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// 25006 in a READ ONLY block.
    pub(super) fn refuse_read_only(&self, what: &str) -> Result<()> {
        let read_only = match self.txn.block() {
            Some(block) => block.read_only,
            None => self.settings.is_on("default_transaction_read_only"),
        };
        if read_only {
            return Err(SqlError::new(
                "25006",
                format!("cannot execute {what} in a read-only transaction"),
            ));
        }
        Ok(())
    }
}

/// An UPDATE that leaves the key alone lets others refer to the row.
fn lock_strength(target: &Target, dml: &Dml) -> RowLock {
    let key = &target.def.primary_key;
    let keeps_key = !key.is_empty() && !dml.assigned.iter().any(|c| key.contains(c));
    if dml.kind == DmlKind::Update && keeps_key {
        RowLock::NoKeyUpdate
    } else {
        RowLock::Update
    }
}

/// Columns of the rows that RETURNING is computed from.
fn returned_columns(target: &Target, change: &Change) -> arrow::datatypes::SchemaRef {
    let mut fields: Vec<_> = target.schema().fields().iter().cloned().collect();
    let extra = change.extra.iter();
    fields.extend(extra.map(|a| Arc::new(arrow::datatypes::Field::new("", a.data_type().clone(), true))));
    changed_schema(fields.iter())
}
