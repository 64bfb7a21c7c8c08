//! A relation at one epoch: immutable, shared, cheap to clone.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;

use super::base::{Base, expand};
use super::merge::{MergeScan, MergedSums};
use super::order::RowOrder;
use super::own::OwnChanges;
use super::provider::SnapshotTable;
use super::run::Run;
use crate::Result;

/// Rows of a batch for a query.
pub(super) const BATCH_ROWS: usize = 8192;
/// Lookups of single keys in runs that cost less than reading the runs through.
const LOOKUPS_MAX: usize = 2048;
/// Rows of earlier runs, for each changed row, that are read through rather than looked up in the tier.
const EARLIER_PARTS: usize = 1;

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
}

impl RelationSnapshot {
    pub(super) fn new(order: Arc<RowOrder>, epoch: u64, base: Arc<Base>, runs: Vec<Arc<Run>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                order,
                epoch,
                base,
                runs,
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

    /// Reads distinct rows with their multiplicities in storage order: those at or after the encoded row `from`, those whose
    /// encoding begins with `prefix`. Holds some thousand rows at a time, wherever the rows are.
    ///
    /// # Errors
    /// The tier or a spill file cannot be read.
    pub fn scan(&self, from: Option<&[u8]>, prefix: Option<&[u8]>) -> Result<MergeScan> {
        let inner = &self.inner;
        MergeScan::new(&inner.order, Some(&inner.base), &inner.runs, from, prefix)
    }

    /// All rows at once, duplicates repeated, in storage order: for small relations and tests.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub fn rows(&self) -> Result<Vec<RecordBatch>> {
        self.batches(None)
    }

    /// Rows whose encoding begins with `prefix`, at once.
    pub(super) fn batches(&self, prefix: Option<&[u8]>) -> Result<Vec<RecordBatch>> {
        let mut scan = self.scan(None, prefix)?;
        let mut all = Vec::new();
        while let Some(delta) = scan.next()? {
            expand(&delta, BATCH_ROWS, &mut |batch| {
                all.push(RecordBatch::try_new(
                    Arc::clone(self.schema()),
                    batch.columns().to_vec(),
                )?);
                Ok(true)
            })?;
        }
        Ok(all)
    }

    /// About how many distinct rows there are at most.
    pub fn rows_about(&self) -> usize {
        let inner = &self.inner;
        inner.base.rows + inner.runs.iter().map(|r| r.num_rows()).sum::<usize>()
    }

    /// Whether reading it touches neither disk nor many rows.
    pub(super) fn is_small(&self) -> bool {
        let inner = &self.inner;
        !inner.base.is_cold() && !inner.runs.iter().any(|r| r.is_spilled()) && self.rows_about() <= BATCH_ROWS
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
        let mut ascending: Vec<u32> = (0..keys.num_rows() as u32).collect();
        ascending.sort_unstable_by(|a, b| wanted.row(*a as usize).cmp(&wanted.row(*b as usize)));
        let mut sums = vec![0_i64; keys.num_rows()];
        if keys.num_rows() * inner.runs.len() <= LOOKUPS_MAX {
            for run in &inner.runs {
                for &i in &ascending {
                    sums[i as usize] += run.sum(&inner.order, wanted.row(i as usize).data())?;
                }
            }
        } else {
            let scan = MergeScan::new(&inner.order, None, &inner.runs, None, None)?;
            let mut runs = MergedSums::new(scan);
            let mut last: Option<u32> = None;
            for &i in &ascending {
                let key = wanted.row(i as usize);
                // The scan has passed the rows of a key that was asked for before.
                sums[i as usize] = match last.filter(|last| wanted.row(*last as usize) == key) {
                    Some(last) => sums[last as usize],
                    None => runs.sum(key.data())?,
                };
                last = Some(i);
            }
        }
        let mut base = inner.base.sums(&inner.order)?;
        for &i in &ascending {
            sums[i as usize] += base.sum(wanted.row(i as usize).data())?;
        }
        Ok(sums.iter().map(|sum| Some(*sum > 0)).collect())
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
            for found in self.batches(Some(key.data()))? {
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

    /// Entries for a checkpoint: every distinct row changed by runs after position `since`, encoded and ascending, with its
    /// multiplicity at this epoch (0: gone). `completed` are the rows at position `since` as the tier has them, if it does.
    ///
    /// # Errors
    /// Something cannot be read, `f` fails, or rows since then have been folded away.
    pub(crate) fn changes_since(
        &self,
        since: u64,
        completed: Option<&Base>,
        f: &mut dyn FnMut(&[u8], i64) -> Result<()>,
    ) -> Result<()> {
        let inner = &self.inner;
        let (changed, mut earlier): (Vec<Arc<Run>>, Vec<Arc<Run>>) =
            inner.runs.iter().cloned().partition(|r| r.seq > since);
        let scan = |runs: &[Arc<Run>]| MergeScan::new(&inner.order, None, runs, None, None);
        // A row of a relation with a key is there once or not at all, so its change tells what it is now.
        let keyed = !inner.order.key().is_empty();
        // Of other relations the changed rows are looked up in what was there before: in the tier, or, where that is few rows in memory
        // (or the tier lags), in the base and the sum of the runs since.
        let rows = |runs: &[Arc<Run>]| runs.iter().map(|r| r.num_rows()).sum::<usize>();
        let small = !inner.base.is_cold() && rows(&earlier) <= EARLIER_PARTS * rows(&changed);
        let base = match completed.filter(|_| !small) {
            Some(completed) => {
                earlier.clear();
                completed
            }
            None => &inner.base,
        };
        let mut before = if keyed {
            None
        } else {
            Some((base.sums(&inner.order)?, MergedSums::new(scan(&earlier)?)))
        };
        let mut changed = scan(&changed)?;
        while let Some(delta) = changed.next()? {
            let rows = inner.order.encode(&delta.batch)?;
            let counts = match &mut before {
                Some((base, _)) => base.counts(&rows)?,
                None => Vec::new(),
            };
            for (i, row) in rows.iter().enumerate() {
                let mut count = delta.diff(i);
                if let Some((_, earlier)) = &mut before {
                    count += counts[i] + earlier.sum(row.data())?;
                }
                f(row.data(), count.max(0))?;
            }
        }
        Ok(())
    }
}

/// Whether some key of `keys` occurs more than once.
///
/// # Errors
/// Types cannot be encoded.
pub fn has_duplicate_keys(order: &RowOrder, columns: &[ArrayRef]) -> Result<bool> {
    let rows = order.encode_keys(columns)?;
    let mut ascending: Vec<u32> = (0..rows.num_rows() as u32).collect();
    let row = |i: u32| rows.row(i as usize);
    ascending.sort_unstable_by(|a, b| row(*a).cmp(&row(*b)));
    Ok(ascending.windows(2).any(|pair| row(pair[0]) == row(pair[1])))
}
