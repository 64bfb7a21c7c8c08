//! A relation at one epoch: immutable, shared, cheap to clone.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;

use super::base::{Base, expand};
use super::order::RowOrder;
use super::own::OwnChanges;
use super::provider::SnapshotTable;
use super::{Run, consolidate_runs};
use crate::{Delta, Result};

/// Up to this number keys are looked up in each run; more are met with all keys of the runs at once.
const FEW_KEYS: usize = 256;

/// A relation's rows at one epoch: a base and the runs after it.
#[derive(Debug, Clone)]
pub struct RelationSnapshot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    order: Arc<RowOrder>,
    epoch: u64,
    base: Arc<Base>,
    runs: Vec<Arc<Run>>,
    merged: OnceLock<Arc<Base>>,
}

impl RelationSnapshot {
    pub(super) fn new(order: Arc<RowOrder>, epoch: u64, base: Arc<Base>, runs: Vec<Arc<Run>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                order,
                epoch,
                base,
                runs,
                merged: OnceLock::new(),
            }),
        }
    }

    /// Columns in catalog order.
    pub fn schema(&self) -> &SchemaRef {
        self.inner.order.schema()
    }

    /// The epoch read.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    /// Row encoding of the relation.
    pub(crate) fn order(&self) -> &Arc<RowOrder> {
        &self.inner.order
    }

    /// Base and runs merged; computed at the first use, shared by clones.
    pub(crate) fn merged(&self) -> Result<Arc<Base>> {
        if let Some(merged) = self.inner.merged.get() {
            return Ok(Arc::clone(merged));
        }
        let inner = &self.inner;
        let merged = if inner.runs.is_empty() {
            Arc::clone(&inner.base)
        } else {
            let delta = consolidate_runs(&inner.order, &inner.runs)?;
            Arc::new(inner.base.merge(&inner.order, &delta, inner.epoch)?)
        };
        Ok(Arc::clone(inner.merged.get_or_init(|| merged)))
    }

    /// The rows, duplicates repeated, in storage order.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn rows(&self) -> Result<Vec<RecordBatch>> {
        self.merged()?.chunks.iter().map(|c| expand(&c.delta)).collect()
    }

    /// Number of distinct rows, for progress.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn distinct_rows(&self) -> Result<usize> {
        Ok(self.merged()?.rows)
    }

    /// Up to `limit` distinct rows from position `offset` in storage order, with multiplicities.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn slice(&self, offset: usize, limit: usize) -> Result<Vec<Delta>> {
        let base = self.merged()?;
        let (mut skip, mut left) = (offset, limit);
        let mut out = Vec::new();
        for chunk in &base.chunks {
            let n = chunk.delta.num_rows();
            if skip >= n {
                skip -= n;
                continue;
            }
            let take = (n - skip).min(left);
            if take == 0 {
                break;
            }
            out.push(chunk.delta.slice(skip, take));
            left -= take;
            skip = 0;
        }
        Ok(out)
    }

    /// The same relation with a transaction's own changes on top.
    #[must_use]
    pub fn with_changes(&self, changes: &OwnChanges) -> Self {
        if changes.runs().is_empty() {
            return self.clone();
        }
        let inner = &self.inner;
        let mut runs = inner.runs.clone();
        runs.extend(changes.runs().iter().cloned());
        Self::new(Arc::clone(&inner.order), inner.epoch, Arc::clone(&inner.base), runs)
    }

    /// For each row of `keys` (the key columns, in key order): is there a row with that key?
    ///
    /// # Errors
    /// The relation has no key, or types differ.
    pub fn contains_keys(&self, keys: &RecordBatch) -> Result<BooleanArray> {
        let inner = &self.inner;
        let wanted = inner.order.encode_keys(keys.columns())?;
        if wanted.num_rows() <= FEW_KEYS {
            let found = wanted.iter().map(|key| self.rows_of_key(key.data()).map(|n| n > 0));
            return found.collect::<Result<Vec<bool>>>().map(BooleanArray::from);
        }
        // Runs first: net diff per key over the runs decides together with the base.
        let recent = self.recent_keys()?;
        let mut found = Vec::with_capacity(keys.num_rows());
        for key in &wanted {
            let key = key.data();
            let live = match recent.get(key) {
                Some(&net) if net > 0 => true,
                Some(&net) => base_rows_of_key(inner, key)? + net > 0,
                None => base_rows_of_key(inner, key)? > 0,
            };
            found.push(live);
        }
        Ok(BooleanArray::from(found))
    }

    /// Number of rows with a key.
    fn rows_of_key(&self, key: &[u8]) -> Result<i64> {
        let inner = &self.inner;
        let mut n = base_rows_of_key(inner, key)?;
        for run in &inner.runs {
            let (start, rows) = run.find(&inner.order, key)?;
            n += (start..start + rows).map(|i| run.delta.diff(i)).sum::<i64>();
        }
        Ok(n)
    }

    fn recent_keys(&self) -> Result<std::collections::HashMap<Box<[u8]>, i64>> {
        let order = &self.inner.order;
        let mut net = std::collections::HashMap::new();
        for run in &self.inner.runs {
            let columns: Vec<ArrayRef> = order
                .key()
                .iter()
                .map(|&c| Arc::clone(run.delta.batch.column(c)))
                .collect();
            let rows = order.encode_keys(&columns)?;
            for (i, row) in rows.iter().enumerate() {
                *net.entry(Box::from(row.data())).or_insert(0) += run.delta.diff(i);
            }
        }
        Ok(net)
    }

    /// Rows whose key starts with the given values (a prefix of the key columns).
    ///
    /// # Errors
    /// Types differ.
    pub(crate) fn with_key_prefix(&self, prefix: &[u8]) -> Result<Vec<RecordBatch>> {
        let inner = &self.inner;
        let mut parts = Vec::new();
        inner.base.with_prefix(&inner.order, prefix, &mut parts)?;
        for run in &inner.runs {
            let (start, n) = run.find(&inner.order, prefix)?;
            if n > 0 {
                parts.push(run.delta.slice(start, n));
            }
        }
        let all = Delta::consolidate(inner.order.stored(), &parts, inner.order.key())?;
        Ok(vec![expand(&all)?])
    }

    /// For each key (key columns, in key order) the row that has it: rows in catalog order, and each key's row among them.
    ///
    /// # Errors
    /// The relation has no key, or types differ.
    pub fn rows_of_keys(&self, keys: &[ArrayRef]) -> Result<(RecordBatch, Vec<Option<u32>>)> {
        let order = &self.inner.order;
        let wanted = order.encode_keys(keys)?;
        let mut parts = Vec::new();
        let mut at = Vec::with_capacity(wanted.num_rows());
        let mut next = 0_u32;
        for key in &wanted {
            let before = next;
            for found in self.with_key_prefix(key.data())? {
                next += u32::try_from(found.num_rows()).unwrap_or(0);
                parts.push(found);
            }
            at.push((next > before).then_some(before));
        }
        let rows = arrow::compute::concat_batches(order.stored(), &parts)?;
        Ok((rows, at))
    }

    /// As a DataFusion table; equality on a prefix of the key is pushed down.
    pub fn table_provider(&self) -> Arc<dyn TableProvider> {
        Arc::new(SnapshotTable::new(self.clone()))
    }

    /// Entries for a checkpoint: every distinct row changed by runs after position `since`, encoded, with its multiplicity at this epoch (0: gone).
    ///
    /// # Errors
    /// A kernel fails, or rows since then have been folded away.
    pub(crate) fn changes_since(&self, since: u64, f: &mut dyn FnMut(&[u8], i64) -> Result<()>) -> Result<()> {
        let inner = &self.inner;
        let changed: Vec<Arc<Run>> = inner.runs.iter().filter(|r| r.seq > since).cloned().collect();
        if changed.is_empty() {
            return Ok(());
        }
        let delta = consolidate_runs(&inner.order, &changed)?;
        let rows = inner.order.encode(&delta.batch)?;
        let earlier: Vec<Arc<Run>> = inner.runs.iter().filter(|r| r.seq <= since).cloned().collect();
        // A few changed rows are looked up in each earlier run; many are met with the sum of those runs.
        let earlier_n: usize = earlier.iter().map(|r| r.delta.num_rows()).sum();
        let looked_up = rows.num_rows().saturating_mul(earlier.len()) <= earlier_n;
        let earlier_sum = if looked_up || earlier.is_empty() {
            None
        } else {
            let sum = consolidate_runs(&inner.order, &earlier)?;
            let encoded = inner.order.encode(&sum.batch)?;
            Some((sum, encoded))
        };
        for (i, row) in rows.iter().enumerate() {
            let mut count = inner.base.count(&inner.order, row.data())? + delta.diff(i);
            if looked_up {
                for run in &earlier {
                    let (start, n) = run.find(&inner.order, row.data())?;
                    count += (start..start + n).map(|i| run.delta.diff(i)).sum::<i64>();
                }
            }
            if let Some((d, rows)) = &earlier_sum {
                let at = super::base::partition(rows, 0, rows.num_rows(), row.data());
                if at < rows.num_rows() && rows.row(at) == row {
                    count += d.diff(at);
                }
            }
            f(row.data(), count)?;
        }
        Ok(())
    }
}

fn base_rows_of_key(inner: &Inner, key: &[u8]) -> Result<i64> {
    let mut parts = Vec::new();
    inner.base.with_prefix(&inner.order, key, &mut parts)?;
    Ok(parts.iter().flat_map(Delta::diff_iter).sum())
}

/// Keys of `keys` that occur more than once.
///
/// # Errors
/// Types cannot be encoded.
pub fn has_duplicate_keys(order: &RowOrder, columns: &[ArrayRef]) -> Result<bool> {
    let rows = order.encode_keys(columns)?;
    let mut seen = HashSet::with_capacity(rows.num_rows());
    Ok(rows.iter().any(|r| !seen.insert(Box::<[u8]>::from(r.data()))))
}
