//! INSERT … ON CONFLICT: which of the proposed rows are there already, and what becomes of those.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::row::OwnedRow;
use datafusion::scalar::ScalarValue;
use levee_planner::sql::{OnConflict, Query, changed_schema};
use levee_runtime::RuntimeError;
use levee_runtime::coordinator::ReadSnapshot;
use levee_runtime::relation::RelationSnapshot;

use super::change::{Change, Target, encoded, new_rows};
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// What a proposed row becomes.
enum Fate {
    /// A new row.
    Insert,
    /// A change of the stored row in the pair of this number, if WHERE holds.
    Pair(usize),
    /// Nothing.
    Skip,
}

/// Proposed rows with their fates, and the pairs of stored and proposed rows.
struct Fates {
    of: Vec<Fate>,
    /// Indices into the stored rows found, and into the proposed ones.
    stored: Vec<u32>,
    proposed: Vec<u32>,
}

impl Session {
    /// The change that INSERT … ON CONFLICT makes. The proposed rows' keys are locked, and `fresh` was read after that.
    #[expect(clippy::too_many_arguments, reason = "a statement's parts, each from another stage")]
    pub(super) async fn resolve_conflicts(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        on: &OnConflict,
        proposed: RecordBatch,
        fresh: &ReadSnapshot,
        snapshot: &ReadSnapshot,
        params: &[ScalarValue],
    ) -> Result<Change> {
        if on.key.is_none() && on.update.is_none() && !target.def.constraints.uniques.is_empty() {
            let free = super::unique::free_rows(target, fresh, &proposed)?;
            return Ok(Change::insert(take_record_batch(&proposed, &free)?));
        }
        let key = on.key.clone().unwrap_or_else(|| target.def.primary_key.clone());
        if key.is_empty() || proposed.num_rows() == 0 {
            return Ok(Change::insert(proposed));
        }
        let relation = fresh
            .relations
            .get(&target.id)
            .ok_or(RuntimeError::NoObject(target.id))?;
        let (stored, at) = stored_rows(target, relation, &key, &proposed)?;
        let keys = encoded(&proposed, &key)?;
        let fates = fates(on, &keys, &at)?;
        if self.repeatable_read() && at.iter().any(Option::is_some) {
            let changed = self.server.engine.row_keys(target.id, &stored)?;
            if self.server.engine.newest_write(&changed) > snapshot.epoch {
                return Err(RuntimeError::Conflict.into());
            }
        }
        let Some(query) = &on.update else {
            let inserted = indices(&fates.of, |f| matches!(f, Fate::Insert));
            return Ok(Change::insert(take_record_batch(&proposed, &inserted)?));
        };
        let old = take_record_batch(&stored, &UInt32Array::from(fates.stored.clone()))?;
        let beside = take_record_batch(&proposed, &UInt32Array::from(fates.proposed.clone()))?;
        let pairs = pairs(target, &old, &beside)?;
        let updated = self.updated(binder, target, query, params, snapshot, pairs).await?;
        assemble(target, &proposed, &old, &fates, &keys, &updated)
    }

    /// For each pair whether WHERE holds, and the new rows.
    async fn updated(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        query: &Query,
        params: &[ScalarValue],
        snapshot: &ReadSnapshot,
        pairs: RecordBatch,
    ) -> Result<(Vec<bool>, RecordBatch)> {
        let empty = || RecordBatch::new_empty(Arc::clone(target.schema()));
        if pairs.num_rows() == 0 {
            return Ok((Vec::new(), empty()));
        }
        let n = pairs.num_rows();
        let mut rows = self.run_over(binder, query, params, snapshot, pairs).await?;
        let max = self.server.write_bytes_max;
        let batches = self.guarded(rows.collect(max)).await?;
        let Some(first) = batches.first() else {
            return Err(SqlError::internal("ON CONFLICT DO UPDATE yields no rows"));
        };
        let all = concat_batches(&first.schema(), &batches)?;
        if all.num_rows() != n {
            return Err(SqlError::internal(
                "ON CONFLICT DO UPDATE yields other rows than it was given",
            ));
        }
        let met = all.column(0).as_boolean();
        let met: Vec<bool> = (0..n).map(|i| met.is_valid(i) && met.value(i)).collect();
        // Rows whose WHERE does not hold need not keep the columns' promises.
        let kept: UInt32Array = indices(&met, |m| *m);
        let rows = new_rows(
            target,
            take_record_batch(&all, &kept)?.columns().get(1..).unwrap_or_default(),
        )?;
        Ok((met, rows))
    }
}

fn indices<T>(of: &[T], wanted: impl Fn(&T) -> bool) -> UInt32Array {
    let found = of.iter().enumerate().filter(|(_, t)| wanted(t));
    found
        .map(|(i, _)| u32::try_from(i).unwrap_or(u32::MAX))
        .collect::<Vec<_>>()
        .into()
}

/// The stored rows that have the key of a proposed row, and for each proposed row which of them.
fn stored_rows(
    target: &Target,
    relation: &RelationSnapshot,
    key: &[usize],
    proposed: &RecordBatch,
) -> Result<(RecordBatch, Vec<Option<u32>>)> {
    let primary = &target.def.primary_key;
    if key.len() == primary.len() && key.iter().all(|c| primary.contains(c)) {
        let columns: Vec<ArrayRef> = primary.iter().map(|&c| Arc::clone(proposed.column(c))).collect();
        return Ok(relation.rows_of_keys(&columns)?);
    }
    // Another key than the one by which rows are stored: one pass over the table.
    let wanted: HashSet<OwnedRow> = encoded(proposed, key)?.into_iter().collect();
    let mut parts = Vec::new();
    let mut found: HashMap<OwnedRow, u32> = HashMap::new();
    for batch in relation.rows()? {
        let keys = encoded(&batch, key)?;
        let hits = indices(&keys, |k| wanted.contains(k));
        for i in hits.values() {
            let next = u32::try_from(found.len()).unwrap_or(u32::MAX);
            found.insert(keys[*i as usize].clone(), next);
        }
        parts.push(take_record_batch(&batch, &hits)?);
    }
    let stored = concat_batches(target.schema(), &parts)?;
    let nulls: Vec<bool> = (0..proposed.num_rows())
        .map(|i| key.iter().any(|&c| proposed.column(c).is_null(i)))
        .collect();
    let at = encoded(proposed, key)?
        .iter()
        .zip(nulls)
        .map(|(k, null)| if null { None } else { found.get(k).copied() })
        .collect();
    Ok((stored, at))
}

fn fates(on: &OnConflict, keys: &[OwnedRow], at: &[Option<u32>]) -> Result<Fates> {
    let mut fates = Fates {
        of: Vec::with_capacity(keys.len()),
        stored: Vec::new(),
        proposed: Vec::new(),
    };
    let mut inserted = HashSet::new();
    for (i, (key, at)) in keys.iter().zip(at).enumerate() {
        let fate = match at {
            Some(_) if on.update.is_none() => Fate::Skip,
            Some(at) => {
                fates.stored.push(*at);
                fates.proposed.push(u32::try_from(i).unwrap_or(u32::MAX));
                Fate::Pair(fates.stored.len() - 1)
            }
            None if inserted.insert(key) => Fate::Insert,
            None if on.update.is_none() => Fate::Skip,
            None => return Err(second_time()),
        };
        fates.of.push(fate);
    }
    Ok(fates)
}

fn second_time() -> SqlError {
    SqlError::new("21000", "ON CONFLICT DO UPDATE command cannot affect row a second time")
        .hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
}

/// Stored rows beside proposed ones.
fn pairs(target: &Target, stored: &RecordBatch, proposed: &RecordBatch) -> Result<RecordBatch> {
    let fields = target.schema().fields();
    let schema = changed_schema(fields.iter().chain(fields.iter()));
    let columns = stored.columns().iter().chain(proposed.columns()).cloned().collect();
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// New rows in the order of the proposed ones, and the stored rows that they replace.
fn assemble(
    target: &Target,
    proposed: &RecordBatch,
    stored: &RecordBatch,
    fates: &Fates,
    keys: &[OwnedRow],
    (met, updated): &(Vec<bool>, RecordBatch),
) -> Result<Change> {
    let base = u32::try_from(proposed.num_rows()).unwrap_or(u32::MAX);
    let mut position = Vec::with_capacity(met.len());
    let mut n = 0;
    for m in met {
        position.push(n);
        n += u32::from(*m);
    }
    let (mut new, mut old, mut touched) = (Vec::new(), Vec::new(), HashSet::new());
    for (i, fate) in fates.of.iter().enumerate() {
        match fate {
            Fate::Skip => {}
            Fate::Insert => new.push(u32::try_from(i).unwrap_or(u32::MAX)),
            Fate::Pair(pair) => {
                if touched.contains(&keys[i]) {
                    return Err(second_time());
                }
                if met[*pair] {
                    touched.insert(&keys[i]);
                    new.push(base + position[*pair]);
                    old.push(u32::try_from(*pair).unwrap_or(u32::MAX));
                }
            }
        }
    }
    let all = concat_batches(target.schema(), [proposed, updated])?;
    let new = take_record_batch(&all, &UInt32Array::from(new))?;
    Ok(Change {
        rows: new.num_rows(),
        old: Some(take_record_batch(stored, &UInt32Array::from(old))?),
        new: Some(new),
        extra: Vec::new(),
    })
}
