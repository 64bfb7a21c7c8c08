//! The base: all rows up to an epoch, sorted; in memory, in chunks that are rewritten only where something changed, or in the cold
//! tier.
//!
//! ```text
//!   fences   [ a… ]        [ k… ]        [ t… ]
//!   chunks   a b c … j     k l … s       t … z          merge of +m −u rewrites chunks 2 and 3 only
//! ```

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::row::Rows;
use levee_storage::tier::TierSnapshot;

use super::cold::{Cold, ColdSums};
use super::merge::{Cursor, MergeScan};
use super::order::RowOrder;
use super::sorted::{SortedRows, partition};
use crate::{Delta, Result, RuntimeError};

/// Rows per chunk: a merge rewrites whole ones.
pub const CHUNK_ROWS: usize = 8192;

/// A sorted, consolidated part of a relation; all diffs are positive.
#[derive(Debug)]
pub struct Chunk {
    /// Rows with their multiplicities.
    pub delta: Delta,
    /// The first row, encoded.
    pub fence: Box<[u8]>,
    bytes: usize,
}

/// All rows up to `epoch`.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Runs up to this epoch are in here.
    pub epoch: u64,
    /// Number of distinct rows; of a base in the tier an estimate.
    pub rows: usize,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// Chunks in order.
    Resident(Vec<Arc<Chunk>>),
    Cold(Cold),
}

impl Default for Content {
    fn default() -> Self {
        Self::Resident(Vec::new())
    }
}

impl Base {
    /// No rows.
    pub fn empty(epoch: u64) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    /// The rows of `region` that a snapshot of the tier shows.
    pub fn cold(epoch: u64, rows: usize, snapshot: Arc<TierSnapshot>, region: u32) -> Self {
        Self {
            epoch,
            rows,
            content: Content::Cold(Cold::new(snapshot, region)),
        }
    }

    /// Whether the rows are in the tier.
    pub fn is_cold(&self) -> bool {
        matches!(self.content, Content::Cold(_))
    }

    /// Chunks in order; none of a base in the tier.
    pub(super) fn chunks(&self) -> &[Arc<Chunk>] {
        match &self.content {
            Content::Resident(chunks) => chunks,
            Content::Cold(_) => &[],
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.bytes).sum()
    }

    fn resident(epoch: u64, chunks: Vec<Arc<Chunk>>) -> Self {
        Self {
            epoch,
            rows: chunks.iter().map(|c| c.delta.num_rows()).sum(),
            content: Content::Resident(chunks),
        }
    }

    /// This base, which is in memory, with a consolidated delta merged in.
    ///
    /// # Errors
    /// A row would have a negative multiplicity (a broken invariant), or a kernel fails.
    pub fn merge(&self, order: &RowOrder, delta: &Delta, epoch: u64) -> Result<Self> {
        let n = delta.num_rows();
        let Content::Resident(old) = &self.content else {
            return Err(RuntimeError::internal("a base in the tier cannot be merged into"));
        };
        if n == 0 {
            return Ok(Self { epoch, ..self.clone() });
        }
        let encoded = order.encode(&delta.batch)?;
        let mut chunks = Vec::with_capacity(old.len() + n / CHUNK_ROWS + 1);
        let mut at = 0;
        if old.is_empty() {
            push_chunks(order, &mut chunks, delta)?;
            at = n;
        }
        for (i, chunk) in old.iter().enumerate() {
            let end = match old.get(i + 1) {
                Some(next) => partition(&encoded, at, n, &next.fence),
                None => n,
            };
            if end == at {
                chunks.push(Arc::clone(chunk));
                continue;
            }
            let part = delta.slice(at, end - at);
            let merged = Delta::consolidate(order.stored(), &[chunk.delta.clone(), part], order.key())?;
            push_chunks(order, &mut chunks, &merged)?;
            at = end;
        }
        debug_assert_eq!(at, n);
        join_small(order, &mut chunks)?;
        Ok(Self::resident(epoch, chunks))
    }

    /// The same rows in memory, if they take at most `bytes_max` bytes there; else this base as it is.
    ///
    /// # Errors
    /// The tier cannot be read.
    pub fn load(self, order: &Arc<RowOrder>, bytes_max: usize) -> Result<Self> {
        let epoch = self.epoch;
        let cold = Arc::new(self);
        let mut scan = MergeScan::new(order, Some(&cold), &[], None, None)?;
        let mut chunks = Vec::new();
        let mut bytes = 0;
        while let Some(delta) = scan.next()? {
            bytes += delta.bytes();
            if bytes > bytes_max {
                return Ok((*cold).clone());
            }
            push_chunks(order, &mut chunks, &delta)?;
        }
        Ok(Self::resident(epoch, chunks))
    }

    /// Reads the rows at or after `start`.
    pub(super) fn cursor(self: &Arc<Self>, order: &RowOrder, start: Option<&[u8]>) -> Result<Cursor> {
        let chunks = match &self.content {
            Content::Cold(cold) => return Ok(Cursor::Cold(Box::new(cold.cursor(start)?))),
            Content::Resident(chunks) => chunks,
        };
        let (mut chunk, mut skip) = (0, 0);
        if let Some(start) = start {
            chunk = chunks.partition_point(|c| *c.fence <= *start).saturating_sub(1);
            if let Some(first) = chunks.get(chunk) {
                skip = SortedRows::new(order, &first.delta).lower_bound(start)?;
            }
        }
        Ok(Cursor::Chunks {
            base: Arc::clone(self),
            chunk,
            skip,
        })
    }

    /// Looks keys up.
    pub(super) fn sums<'a>(&'a self, order: &'a RowOrder) -> Result<BaseSums<'a>> {
        Ok(match &self.content {
            Content::Cold(cold) => BaseSums::Cold(Box::new(cold.sums()?)),
            Content::Resident(chunks) => BaseSums::Resident {
                order,
                chunks,
                current: None,
            },
        })
    }
}

/// Sums of multiplicities of rows by a prefix of their encoding; ascending prefixes are cheapest.
pub(super) enum BaseSums<'a> {
    Cold(Box<ColdSums>),
    Resident {
        order: &'a RowOrder,
        chunks: &'a [Arc<Chunk>],
        current: Option<(usize, SortedRows<'a>)>,
    },
}

impl BaseSums<'_> {
    /// The multiplicities of whole rows, which ascend.
    pub(super) fn counts(&mut self, rows: &Rows) -> Result<Vec<i64>> {
        match self {
            Self::Cold(cold) => cold.counts(rows),
            Self::Resident { .. } => rows.iter().map(|row| self.sum(row.data())).collect(),
        }
    }

    pub(super) fn sum(&mut self, prefix: &[u8]) -> Result<i64> {
        let (order, chunks, current) = match self {
            Self::Cold(cold) => return cold.sum(prefix),
            Self::Resident { order, chunks, current } => (*order, *chunks, current),
        };
        let first = chunks.partition_point(|c| *c.fence < *prefix).saturating_sub(1);
        let mut sum = 0;
        for (i, chunk) in chunks.iter().enumerate().skip(first) {
            if *chunk.fence > *prefix && !chunk.fence.starts_with(prefix) {
                break;
            }
            let rows = match current {
                Some((at, rows)) if *at == i => rows,
                _ => &mut current.insert((i, SortedRows::new(order, &chunk.delta))).1,
            };
            sum += rows.sum(prefix)?;
        }
        Ok(sum)
    }
}

/// Chunks that deletions have made small are cut anew.
fn join_small(order: &RowOrder, chunks: &mut Vec<Arc<Chunk>>) -> Result<()> {
    let rows: usize = chunks.iter().map(|c| c.delta.num_rows()).sum();
    if chunks.len() > 16 && rows / chunks.len() < CHUNK_ROWS / 4 {
        let all: Vec<Delta> = chunks.iter().map(|c| c.delta.clone()).collect();
        let all = Delta::concat(order.stored(), &all)?;
        chunks.clear();
        push_chunks(order, chunks, &all)?;
    }
    Ok(())
}

fn push_chunks(order: &RowOrder, chunks: &mut Vec<Arc<Chunk>>, sorted: &Delta) -> Result<()> {
    let n = sorted.num_rows();
    if let Some(i) = sorted.diff_iter().position(|d| d < 0) {
        return Err(RuntimeError::internal(format!(
            "a relation would hold a row with multiplicity {}",
            sorted.diff(i)
        )));
    }
    let parts = n.div_ceil(CHUNK_ROWS + CHUNK_ROWS / 2).max(usize::from(n > 0));
    for p in 0..parts {
        let (from, to) = (n * p / parts, n * (p + 1) / parts);
        // Own buffers, so that a chunk does not hold the memory of the batch that it came from.
        let index: UInt32Array = (from as u32..to as u32).collect();
        let delta = if parts == 1 {
            sorted.clone()
        } else {
            sorted.take(&index)?
        };
        let fence: Rows = order.encode(&delta.batch.slice(0, 1))?;
        chunks.push(Arc::new(Chunk {
            bytes: delta.bytes(),
            delta,
            fence: fence.row(0).data().into(),
        }));
    }
    Ok(())
}

/// The rows of a consolidated positive delta, each repeated by its multiplicity, in batches of at most about `rows_max` rows.
///
/// # Errors
/// A kernel fails.
pub fn expand(delta: &Delta, rows_max: usize, f: &mut dyn FnMut(RecordBatch) -> Result<bool>) -> Result<bool> {
    if delta.diff_iter().all(|d| d == 1) {
        return f(delta.batch.clone());
    }
    let mut index = Vec::with_capacity(delta.num_rows().min(rows_max));
    for (i, d) in (0_u32..).zip(delta.diff_iter()) {
        for _ in 0..d {
            index.push(i);
            if index.len() == rows_max && !f(repeated(&delta.batch, std::mem::take(&mut index))?)? {
                return Ok(false);
            }
        }
    }
    if index.is_empty() {
        return Ok(true);
    }
    f(repeated(&delta.batch, index)?)
}

/// The rows of these numbers; of a batch without columns just as many.
fn repeated(batch: &RecordBatch, index: Vec<u32>) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(index.len()));
    let index = UInt32Array::from(index);
    let columns = batch.columns().iter().map(|column| take(column, &index, None));
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}
