//! The base: all rows up to an epoch, sorted, in chunks that are rewritten only where something changed.
//!
//! ```text
//!   fences   [ a… ]        [ k… ]        [ t… ]
//!   chunks   a b c … j     k l … s       t … z          merge of +m −u rewrites chunks 2 and 3 only
//! ```

use std::sync::{Arc, OnceLock};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::row::Rows;

use super::order::RowOrder;
use crate::{Delta, Result, RuntimeError};

/// Rows per chunk: a lookup encodes one chunk, a merge rewrites whole ones.
pub const CHUNK_ROWS: usize = 8192;

/// A sorted, consolidated part of a relation; all diffs are positive.
#[derive(Debug)]
pub struct Chunk {
    /// Rows with their multiplicities.
    pub delta: Delta,
    /// The first row, encoded.
    pub fence: Box<[u8]>,
    encoded: OnceLock<Rows>,
}

impl Chunk {
    fn new(delta: Delta, fence: &[u8]) -> Self {
        Self {
            delta,
            fence: fence.into(),
            encoded: OnceLock::new(),
        }
    }

    /// The rows, encoded once and kept: lookups by key come in clusters.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn encoded(&self, order: &RowOrder) -> Result<&Rows> {
        if let Some(rows) = self.encoded.get() {
            return Ok(rows);
        }
        let rows = order.encode(&self.delta.batch)?;
        Ok(self.encoded.get_or_init(|| rows))
    }
}

/// All rows up to `epoch`.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Runs up to this epoch are in here.
    pub epoch: u64,
    /// Chunks in order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Number of distinct rows.
    pub rows: usize,
}

impl Base {
    /// This base with a consolidated delta merged in.
    ///
    /// # Errors
    /// A row would have a negative multiplicity (a broken invariant), or a kernel fails.
    pub fn merge(&self, order: &RowOrder, delta: &Delta, epoch: u64) -> Result<Self> {
        let n = delta.num_rows();
        if n == 0 {
            return Ok(Self { epoch, ..self.clone() });
        }
        let encoded = order.encode(&delta.batch)?;
        let mut chunks = Vec::with_capacity(self.chunks.len() + n / CHUNK_ROWS + 1);
        let mut at = 0;
        if self.chunks.is_empty() {
            push_chunks(order, &mut chunks, delta)?;
            at = n;
        }
        for (i, chunk) in self.chunks.iter().enumerate() {
            let end = match self.chunks.get(i + 1) {
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
        let small = chunks.len() > 16
            && chunks.iter().map(|c| c.delta.num_rows()).sum::<usize>() / chunks.len() < CHUNK_ROWS / 4;
        if small {
            let all: Vec<Delta> = chunks.iter().map(|c| c.delta.clone()).collect();
            let all = Delta::concat(order.stored(), &all)?;
            chunks.clear();
            push_chunks(order, &mut chunks, &all)?;
        }
        let rows = chunks.iter().map(|c| c.delta.num_rows()).sum();
        Ok(Self { epoch, chunks, rows })
    }

    /// A base from rows that are already in storage order and consolidated.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn from_sorted(order: &RowOrder, epoch: u64, parts: &[Delta]) -> Result<Self> {
        let mut chunks = Vec::new();
        for part in parts {
            push_chunks(order, &mut chunks, part)?;
        }
        let rows = chunks.iter().map(|c| c.delta.num_rows()).sum();
        Ok(Self { epoch, chunks, rows })
    }

    /// The multiplicity of an encoded row.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn count(&self, order: &RowOrder, row: &[u8]) -> Result<i64> {
        let Some(chunk) = self.chunk_of(row) else { return Ok(0) };
        let rows = chunk.encoded(order)?;
        let i = partition(rows, 0, rows.num_rows(), row);
        if i < rows.num_rows() && rows.row(i).data() == row {
            return Ok(chunk.delta.diff(i));
        }
        Ok(0)
    }

    /// The chunk that would hold an encoded row or key.
    pub fn chunk_of(&self, bytes: &[u8]) -> Option<&Arc<Chunk>> {
        let i = self.chunks.partition_point(|c| *c.fence <= *bytes);
        self.chunks.get(i.saturating_sub(1))
    }

    /// Rows whose encoding starts with `prefix`.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn with_prefix(&self, order: &RowOrder, prefix: &[u8], out: &mut Vec<Delta>) -> Result<()> {
        let first = self.chunks.partition_point(|c| *c.fence < *prefix).saturating_sub(1);
        for chunk in &self.chunks[first.min(self.chunks.len())..] {
            if *chunk.fence > *prefix && !chunk.fence.starts_with(prefix) {
                break;
            }
            let rows = chunk.encoded(order)?;
            let start = partition(rows, 0, rows.num_rows(), prefix);
            let mut end = start;
            while end < rows.num_rows() && rows.row(end).data().starts_with(prefix) {
                end += 1;
            }
            if end > start {
                out.push(chunk.delta.slice(start, end - start));
            }
        }
        Ok(())
    }
}

/// First index in `[from, to)` whose row is not below `bytes`.
pub fn partition(rows: &Rows, from: usize, to: usize, bytes: &[u8]) -> usize {
    let (mut lo, mut hi) = (from, to);
    while lo < hi {
        let mid = lo + (hi - lo) / 2;
        if rows.row(mid).data() < bytes {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    lo
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
        let fence = order.encode(&delta.batch.slice(0, 1))?;
        chunks.push(Arc::new(Chunk::new(delta, fence.row(0).data())));
    }
    Ok(())
}

/// The rows of a consolidated positive delta, each repeated by its multiplicity.
///
/// # Errors
/// A kernel fails.
pub fn expand(delta: &Delta) -> Result<RecordBatch> {
    if delta.diff_iter().all(|d| d == 1) {
        return Ok(delta.batch.clone());
    }
    let mut index = Vec::with_capacity(delta.num_rows());
    for (i, d) in delta.diff_iter().enumerate() {
        for _ in 0..d {
            index.push(i as u32);
        }
    }
    Ok(arrow::compute::take_record_batch(
        &delta.batch,
        &UInt32Array::from(index),
    )?)
}
