//! A step's net change as a target sees it: rows inserted, updated and deleted.
//!
//! ```text
//!   consolidated, sorted by key        changes
//!     key  value  diff
//!     a    1      -1   ┐
//!     a    2      +1   ┘               update a: 1 → 2
//!     b    7      +1                   insert b
//!     c    5      -1                   delete c
//! ```
//!
//! Cost: one encoding of the key columns; rows are not copied, changes name them by index.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::row::{RowConverter, Rows, SortField};
use levee_planner::catalog::SinkMode;

use crate::{Delta, Result, RuntimeError};

/// What happened to one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// A new row.
    Insert,
    /// A row with the same key and other values.
    Update,
    /// A row that is gone.
    Delete,
}

impl Op {
    /// As files show it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// One change; rows are indices into [`Changes::batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// What.
    pub(crate) op: Op,
    /// The row before, of an update or deletion.
    pub(crate) before: Option<u32>,
    /// The row after, of an insertion or update.
    pub(crate) after: Option<u32>,
}

impl Change {
    /// The row that stands for the change: the new one, or the one that is gone.
    pub(crate) fn row(&self) -> usize {
        self.after.or(self.before).unwrap_or(0) as usize
    }
}

/// A step's changes.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Rows before and after.
    pub(crate) batch: RecordBatch,
    /// Changes in key order.
    pub(crate) changes: Vec<Change>,
}

impl Changes {
    /// The changes of a consolidated delta that is sorted by `key` first.
    ///
    /// # Errors
    /// A retraction in an append-only stream; two rows with one key: facts that the planner promised do not hold.
    pub(crate) fn new(delta: &Delta, key: &[usize], mode: SinkMode) -> Result<Self> {
        let changes = match (mode, key) {
            (SinkMode::AppendOnly, _) => {
                if delta.diff_iter().any(|d| d < 0) {
                    return Err(RuntimeError::internal("an append-only sink was given a retraction"));
                }
                Self::bag(delta)
            }
            (SinkMode::ForceAppendOnly, _) => {
                let mut changes = Self::bag(delta);
                changes.retain(|c| c.op == Op::Insert);
                changes
            }
            (SinkMode::Upsert, []) => Self::bag(delta),
            (SinkMode::Upsert, key) => Self::keyed(delta, key)?,
        };
        Ok(Self {
            batch: delta.batch.clone(),
            changes,
        })
    }

    /// Without a key: each row as often as its multiplicity says.
    fn bag(delta: &Delta) -> Vec<Change> {
        let mut changes = Vec::with_capacity(delta.num_rows());
        for (row, diff) in (0_u32..).zip(delta.diff_iter()) {
            let change = if diff > 0 {
                Change {
                    op: Op::Insert,
                    before: None,
                    after: Some(row),
                }
            } else {
                Change {
                    op: Op::Delete,
                    before: Some(row),
                    after: None,
                }
            };
            changes.extend(std::iter::repeat_n(
                change,
                usize::try_from(diff.unsigned_abs()).unwrap_or(0),
            ));
        }
        changes
    }

    fn keyed(delta: &Delta, key: &[usize]) -> Result<Vec<Change>> {
        let rows = encode_key(delta, key)?;
        let n = delta.num_rows();
        let mut changes = Vec::with_capacity(n);
        let mut i = 0;
        while i < n {
            let (mut before, mut after) = (None, None);
            let start = i;
            while i < n && rows.row(i) == rows.row(start) {
                let side = if delta.diff(i) < 0 { &mut before } else { &mut after };
                if side.replace(i as u32).is_some() || delta.diff(i).unsigned_abs() != 1 {
                    return Err(RuntimeError::internal("a sink's key is not unique"));
                }
                i += 1;
            }
            let op = match (before, after) {
                (Some(_), Some(_)) => Op::Update,
                (Some(_), None) => Op::Delete,
                _ => Op::Insert,
            };
            changes.push(Change { op, before, after });
        }
        Ok(changes)
    }

    /// Memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.get_array_memory_size() + self.changes.len() * size_of::<Change>()
    }
}

fn encode_key(delta: &Delta, key: &[usize]) -> Result<Rows> {
    let columns: Vec<ArrayRef> = key.iter().map(|&c| Arc::clone(delta.batch.column(c))).collect();
    let fields = columns.iter().map(|c| SortField::new(c.data_type().clone())).collect();
    Ok(RowConverter::new(fields)?.convert_columns(&columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn delta(rows: &[(i64, i64, i64)]) -> Delta {
        let schema = Arc::new(Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("v", DataType::Int64, false),
        ]));
        let column =
            |f: fn(&(i64, i64, i64)) -> i64| -> ArrayRef { Arc::new(rows.iter().map(f).collect::<Int64Array>()) };
        let batch = RecordBatch::try_new(schema, vec![column(|r| r.0), column(|r| r.1)]).unwrap();
        Delta::new(batch, rows.iter().map(|r| r.2).collect())
    }

    fn ops(rows: &[(i64, i64, i64)], key: &[usize], mode: SinkMode) -> Vec<(Op, usize)> {
        let changes = Changes::new(&delta(rows), key, mode).unwrap();
        changes.changes.iter().map(|c| (c.op, c.row())).collect()
    }

    #[test]
    fn rows_of_one_key_are_one_change() {
        let rows = [(1, 10, -1), (1, 11, 1), (2, 7, 1), (3, 5, -1)];
        assert_eq!(
            ops(&rows, &[0], SinkMode::Upsert),
            [(Op::Update, 1), (Op::Insert, 2), (Op::Delete, 3)]
        );
    }

    #[test]
    fn without_a_key_multiplicities_count() {
        let rows = [(1, 10, 2), (2, 7, -1)];
        assert_eq!(
            ops(&rows, &[], SinkMode::Upsert),
            [(Op::Insert, 0), (Op::Insert, 0), (Op::Delete, 1)]
        );
        assert_eq!(
            ops(&rows, &[], SinkMode::ForceAppendOnly),
            [(Op::Insert, 0), (Op::Insert, 0)]
        );
    }

    #[test]
    fn broken_promises_are_found() {
        assert!(Changes::new(&delta(&[(1, 1, 1), (1, 2, 1)]), &[0], SinkMode::Upsert).is_err());
        assert!(Changes::new(&delta(&[(1, 1, 2)]), &[0], SinkMode::Upsert).is_err());
        assert!(Changes::new(&delta(&[(1, 1, -1)]), &[], SinkMode::AppendOnly).is_err());
    }
}
