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
        while let Some(last) = self.runs.pop_if(|r| r.delta.num_rows() <= 2 * delta.num_rows()) {
            delta = Delta::consolidate(order.stored(), &[last.delta.clone(), delta], order.key())?;
        }
        if delta.num_rows() > 0 {
            self.runs.push(Arc::new(Run::new(u64::MAX, 0, 0, delta)));
        }
        Ok(())
    }

    pub(super) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }
}
