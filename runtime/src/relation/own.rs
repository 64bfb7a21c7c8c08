//! A transaction's own changes of a relation, for its own reads.
//!
//! Each statement adds a sorted run; neighbours of about the same size are merged, so n statements leave about log n runs and a row
//! is sorted about log n times. A block of ten thousand single-row inserts stays fast.

use std::sync::Arc;

use super::{RelationSnapshot, Run};
use crate::{Delta, Result};

/// Changes that are not committed yet.
#[derive(Debug, Clone, Default)]
pub struct OwnChanges {
    runs: Vec<Arc<Run>>,
    taken: usize,
}

impl OwnChanges {
    /// Takes those of `changes` that came since the last call. `relation` tells the order of rows.
    ///
    /// # Errors
    /// The changes do not fit the relation.
    pub fn take(&mut self, relation: &RelationSnapshot, changes: &[Delta]) -> Result<()> {
        let new = changes.get(self.taken..).unwrap_or_default();
        self.taken = changes.len();
        let order = relation.order();
        let mut delta = Delta::consolidate(order.stored(), new, order.key())?;
        while let Some(last) = self.runs.pop_if(|r| r.num_rows() <= 2 * delta.num_rows()) {
            let last = last.piece(0, usize::MAX)?;
            delta = Delta::consolidate(order.stored(), &[last, delta], order.key())?;
        }
        if delta.num_rows() > 0 {
            self.runs.push(Arc::new(Run::new(u64::MAX, 0, 0, delta, None)));
        }
        Ok(())
    }

    pub(super) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::super::{Base, RowOrder};
    use super::*;

    #[test]
    fn many_small_changes_are_few_runs_and_keep_their_sum() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, false)]));
        let order = Arc::new(RowOrder::new(Arc::clone(&schema), vec![0]).expect("order"));
        let empty = RelationSnapshot::new(order, 0, Arc::new(Base::default()), Vec::new());
        let row =
            |v: i32| RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int32Array::from(vec![v]))]).expect("row");
        let mut own = OwnChanges::default();
        let mut changes = Vec::new();
        for v in 0..1000 {
            changes.push(Delta::inserts(row(v)));
            if v % 3 == 0 {
                changes.push(Delta::inserts(row(v)).negate());
            }
            own.take(&empty, &changes).expect("changes fit");
        }
        assert!(own.runs().len() <= 11, "{} runs", own.runs().len());
        let seen = empty.with_changes(&own);
        let rows: usize = seen.rows().expect("rows").iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 666);
        let keys = RecordBatch::try_new(schema, vec![Arc::new(Int32Array::from(vec![3, 4, 1000]))]).expect("keys");
        let found = seen.contains_keys(&keys).expect("lookup");
        assert_eq!((found.value(0), found.value(1), found.value(2)), (false, true, false));
    }
}
