//! UNIQUE: the rows that a write adds to and takes from the constraints' indexes, and the test that no value comes twice.
//!
//! An index is a relation of its own, keyed by the constraint's columns (see `levee_planner::catalog::Unique`). Its changes go into the
//! same commit as the table's, so they meet other transactions' at the sequencer's conflict keys, and a block sees its own.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::filter_record_batch;
use arrow::row::OwnedRow;
use levee_planner::catalog::{TableDef, Unique};
use levee_planner::plan::ObjectId;
use levee_runtime::coordinator::ReadSnapshot;
use levee_runtime::relation::RelationSnapshot;
use levee_runtime::{Delta, RuntimeError};

use super::change::{Target, encoded};
use crate::error::{Result, SqlError};
use crate::types::encode::{TextStyle, value_text};

/// What a write does to one index.
#[derive(Debug)]
pub(super) struct IndexChange<'a> {
    /// The constraint.
    pub unique: &'a Unique,
    /// Index rows that go.
    pub old: Option<RecordBatch>,
    /// Index rows that come.
    pub new: Option<RecordBatch>,
    /// For each index row that comes, the row of the table's batch that it is of.
    from: Vec<usize>,
}

/// The changes of a table's indexes; those that a write leaves alone are not among them.
///
/// # Errors
/// A kernel fails.
pub(super) fn index_changes<'a>(
    table: &'a TableDef,
    old: Option<&RecordBatch>,
    new: Option<&RecordBatch>,
) -> Result<Vec<IndexChange<'a>>> {
    let mut changes = Vec::new();
    for unique in &table.constraints.uniques {
        let rows = |batch: Option<&RecordBatch>| batch.map(|b| index_rows(unique, b)).transpose();
        let (gone, come) = (rows(old)?, rows(new)?);
        // An UPDATE of other columns: the same values, row by row.
        if let (Some((o, _)), Some((n, _))) = (&gone, &come)
            && o.columns() == n.columns()
        {
            continue;
        }
        let (new, from) = come.map_or((None, Vec::new()), |(b, from)| (Some(b), from));
        changes.push(IndexChange {
            unique,
            old: gone.map(|(b, _)| b),
            new,
            from,
        });
    }
    Ok(changes)
}

/// The index's rows of a batch of the table's, and which rows they come from. Rows with a NULL are in no index unless NULLs count as
/// equal.
pub(super) fn index_rows(unique: &Unique, batch: &RecordBatch) -> Result<(RecordBatch, Vec<usize>)> {
    let all = batch.project(&unique.columns)?;
    let kept = |row: usize| !unique.nulls_distinct || all.columns().iter().all(|c| c.is_valid(row));
    let from: Vec<usize> = (0..all.num_rows()).filter(|&i| kept(i)).collect();
    if from.len() == all.num_rows() {
        return Ok((all, from));
    }
    let mask: BooleanArray = (0..all.num_rows()).map(|i| Some(kept(i))).collect();
    Ok((filter_record_batch(&all, &mask)?, from))
}

impl IndexChange<'_> {
    /// As deltas of the index's relation.
    pub fn deltas(&self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some(old) = self.old.as_ref().filter(|b| b.num_rows() > 0) {
            deltas.push(Delta::inserts(old.clone()).negate());
        }
        if let Some(new) = self.new.as_ref().filter(|b| b.num_rows() > 0) {
            deltas.push(Delta::inserts(new.clone()));
        }
        deltas
    }

    /// The index.
    pub fn id(&self) -> ObjectId {
        self.unique.index
    }

    /// No value comes twice, nor one that is there and stays. `rows` are the table's new rows, for the message.
    ///
    /// # Errors
    /// 23505.
    pub fn check(&self, table: &str, index: &RelationSnapshot, rows: Option<&RecordBatch>) -> Result<()> {
        let (Some(new), Some(rows)) = (self.new.as_ref().filter(|b| b.num_rows() > 0), rows) else {
            return Ok(());
        };
        let all: Vec<usize> = (0..new.num_columns()).collect();
        let freed: HashSet<OwnedRow> = match &self.old {
            Some(old) => encoded(old, &all)?.into_iter().collect(),
            None => HashSet::new(),
        };
        let keys = encoded(new, &all)?;
        let mut seen = HashSet::with_capacity(keys.len());
        let row_of = |at: usize| self.from.get(at).copied().unwrap_or(at);
        if let Some(at) = keys.iter().position(|k| !seen.insert(k)) {
            return Err(duplicate(
                table,
                &self.unique.name,
                &self.unique.columns,
                rows,
                row_of(at),
            ));
        }
        let arrives: BooleanArray = keys.iter().map(|k| Some(!freed.contains(k))).collect();
        if arrives.true_count() == 0 {
            return Ok(());
        }
        let exists = index.contains_keys(&filter_record_batch(new, &arrives)?)?;
        if let Some(found) = (0..exists.len()).find(|&i| exists.value(i)) {
            let at = (0..arrives.len()).filter(|&i| arrives.value(i)).nth(found).unwrap_or(0);
            return Err(duplicate(
                table,
                &self.unique.name,
                &self.unique.columns,
                rows,
                row_of(at),
            ));
        }
        Ok(())
    }
}

/// The proposed rows none of whose keys is taken, by a stored row or by an earlier one of them: INSERT … ON CONFLICT DO NOTHING.
pub(super) fn free_rows(target: &Target, fresh: &ReadSnapshot, proposed: &RecordBatch) -> Result<UInt32Array> {
    let n = proposed.num_rows();
    // By key: for each row its value, if it counts, and whether a stored row has it.
    let mut keys: Vec<(Vec<Option<OwnedRow>>, Vec<bool>)> = Vec::new();
    let mut add = |relation: ObjectId, values: RecordBatch, from: Vec<usize>| -> Result<()> {
        let relation = fresh.relations.get(&relation).ok_or(RuntimeError::NoObject(relation))?;
        let taken = relation.contains_keys(&values)?;
        let all: Vec<usize> = (0..values.num_columns()).collect();
        let (mut by_row, mut stored) = (vec![None; n], vec![false; n]);
        for (i, (key, row)) in encoded(&values, &all)?.into_iter().zip(from).enumerate() {
            by_row[row] = Some(key);
            stored[row] = taken.value(i);
        }
        keys.push((by_row, stored));
        Ok(())
    };
    if !target.def.primary_key.is_empty() {
        let values = proposed.project(&target.def.primary_key)?;
        add(target.id, values, (0..n).collect())?;
    }
    for unique in &target.def.constraints.uniques {
        let (values, from) = index_rows(unique, proposed)?;
        add(unique.index, values, from)?;
    }
    let mut seen: Vec<HashSet<OwnedRow>> = keys.iter().map(|_| HashSet::new()).collect();
    let mut free = Vec::new();
    for row in 0..n {
        let taken = keys
            .iter()
            .zip(&seen)
            .any(|((by_row, stored), seen)| stored[row] || by_row[row].as_ref().is_some_and(|k| seen.contains(k)));
        if taken {
            continue;
        }
        for ((by_row, _), seen) in keys.iter().zip(&mut seen) {
            seen.extend(by_row[row].clone());
        }
        free.push(u32::try_from(row).unwrap_or(u32::MAX));
    }
    Ok(free.into())
}

/// 23505 with the values of row `row`.
pub(super) fn duplicate(table: &str, constraint: &str, columns: &[usize], rows: &RecordBatch, row: usize) -> SqlError {
    let (names, values) = key_text(columns, rows, row);
    SqlError::new(
        "23505",
        format!("duplicate key value violates unique constraint \"{constraint}\""),
    )
    .detail(format!("Key ({names})=({values}) already exists."))
    .object(table, None, Some(constraint))
}

/// Names and values of some columns of a row, as messages show them.
pub(super) fn key_text(columns: &[usize], rows: &RecordBatch, row: usize) -> (String, String) {
    let style = TextStyle::default();
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for &c in columns {
        names.push(Arc::clone(&rows.schema().fields()[c]).name().clone());
        let text = value_text(rows.column(c), row, &style).ok().flatten();
        values.push(text.unwrap_or_else(|| "null".to_owned()));
    }
    (names.join(", "), values.join(", "))
}
