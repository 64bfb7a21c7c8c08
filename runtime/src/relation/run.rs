//! A run: the net change of one step, or of several that nobody needs apart any more.
//!
//! A run is in memory until the budget for change logs is used up; then the oldest runs are written to spill files in batches,
//! each with the encoding of its first row kept as a fence, and read back batch by batch.

use std::sync::Arc;
use std::sync::OnceLock;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::row::Rows;

use super::order::RowOrder;
use super::sorted::{SortedRows, partition};
use crate::dataflow::spill::{SpillWriter, SpilledBatch};
use crate::memory::{Governor, Holder, Share};
use crate::{Delta, Result, RuntimeError};

/// Rows of a batch in a spill file at most, and about how many bytes: a merge of many runs has a part of each in memory.
const PART_ROWS: usize = 8192;
const PART_BYTES: usize = 64 << 10;
/// The encoding of a run of so few rows is kept: lookups pass many such runs.
const KEPT_ROWS_MAX: usize = 1024;

/// Net change, sorted and consolidated.
#[derive(Debug)]
pub struct Run {
    /// Position among all runs that the relation has published since it was opened, from 1; of a joined run, the last one's.
    pub seq: u64,
    /// Epochs after this one …
    pub from: u64,
    /// … up to this one. Backfill runs have `from == to`.
    pub to: u64,
    rows: usize,
    /// The sum of all diffs.
    net: i64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Resident {
        delta: Delta,
        encoded: OnceLock<Rows>,
        bytes: usize,
        _held: Option<Holder>,
    },
    Spilled(Vec<Part>),
}

#[derive(Debug)]
struct Part {
    batch: SpilledBatch,
    start: usize,
    rows: usize,
    fence: Box<[u8]>,
}

impl Run {
    /// A run in memory, counted in the budget if there is one.
    pub fn new(seq: u64, from: u64, to: u64, delta: Delta, memory: Option<&Arc<Governor>>) -> Self {
        let bytes = delta.bytes();
        let held = memory.map(|memory| memory.holder(Share::Runs));
        if let Some(held) = &held {
            held.set(bytes);
        }
        Self {
            seq,
            from,
            to,
            rows: delta.num_rows(),
            net: delta.diff_iter().sum(),
            data: Data::Resident {
                delta,
                encoded: OnceLock::new(),
                bytes,
                _held: held,
            },
        }
    }

    /// The same changes as those of these epochs.
    pub(super) fn placed(self, seq: u64, from: u64, to: u64) -> Self {
        Self { seq, from, to, ..self }
    }

    /// Rows, retractions included.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// By how many rows, duplicates counted, the relation grows.
    pub fn net_rows(&self) -> i64 {
        self.net
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::Resident { bytes, .. } => *bytes,
            Data::Spilled(parts) => parts.len() * size_of::<Part>(),
        }
    }

    /// Bytes in memory, or in spill files.
    pub fn stored_bytes(&self) -> u64 {
        match &self.data {
            Data::Resident { bytes, .. } => *bytes as u64,
            Data::Spilled(parts) => parts.iter().map(|p| p.batch.bytes()).sum(),
        }
    }

    /// Whether it has been written out.
    pub fn is_spilled(&self) -> bool {
        matches!(self.data, Data::Spilled(_))
    }

    /// Some rows from `row` on: as many as lie together, at most `rows_max`.
    ///
    /// # Errors
    /// A spill file cannot be read.
    pub fn piece(&self, row: usize, rows_max: usize) -> Result<Delta> {
        match &self.data {
            Data::Resident { delta, .. } => Ok(delta.slice(row, rows_max.min(delta.num_rows() - row))),
            Data::Spilled(parts) => {
                let part = parts
                    .get(parts.partition_point(|part| part.start <= row).saturating_sub(1))
                    .ok_or_else(|| RuntimeError::internal("a row beyond a run was asked for"))?;
                let delta = part.batch.read()?;
                let skip = row - part.start;
                let rows = rows_max.min(part.rows - skip);
                if rows < part.rows {
                    // A copy, so that the rest does not stay in memory.
                    return delta.take(&UInt32Array::from_iter_values((skip..skip + rows).map(|i| i as u32)));
                }
                Ok(delta)
            }
        }
    }

    /// The encoding of a row.
    pub(super) fn key(&self, order: &RowOrder, row: usize) -> Result<Box<[u8]>> {
        if let Data::Spilled(parts) = &self.data
            && let Ok(at) = parts.binary_search_by_key(&row, |part| part.start)
        {
            return Ok(parts[at].fence.clone());
        }
        let row = self.piece(row, 1)?;
        Ok(order.encode(&row.batch)?.row(0).data().into())
    }

    /// The first row that is not below `bytes`.
    pub(super) fn lower_bound(&self, order: &RowOrder, bytes: &[u8]) -> Result<usize> {
        match &self.data {
            Data::Resident { delta, encoded, .. } if delta.num_rows() <= KEPT_ROWS_MAX => {
                let rows = match encoded.get() {
                    Some(rows) => rows,
                    None => {
                        let rows = order.encode(&delta.batch)?;
                        encoded.get_or_init(|| rows)
                    }
                };
                Ok(partition(rows, 0, rows.num_rows(), bytes))
            }
            Data::Resident { delta, .. } => SortedRows::new(order, delta).lower_bound(bytes),
            Data::Spilled(parts) => {
                let after = parts.partition_point(|part| *part.fence < *bytes);
                let Some(part) = after.checked_sub(1).and_then(|at| parts.get(at)) else {
                    return Ok(0);
                };
                let delta = part.batch.read()?;
                Ok(part.start + SortedRows::new(order, &delta).lower_bound(bytes)?)
            }
        }
    }

    /// The sum of the diffs of the rows whose encoding begins with `prefix`.
    pub(super) fn sum(&self, order: &RowOrder, prefix: &[u8]) -> Result<i64> {
        let start = self.lower_bound(order, prefix)?;
        if start == self.rows {
            return Ok(0);
        }
        let end = match levee_storage::delta_file::after_prefix(prefix) {
            Some(after) => self.lower_bound(order, &after)?,
            None => self.rows,
        };
        let (mut at, mut sum) = (start, 0);
        while at < end {
            let piece = self.piece(at, end - at)?;
            sum += piece.diff_iter().sum::<i64>();
            at += piece.num_rows();
        }
        Ok(sum)
    }

    /// The same run, written out.
    pub(super) fn spill(&self, order: &RowOrder, writer: &mut SpillWriter) -> Result<Self> {
        let mut spilling = Spilling::default();
        let mut at = 0;
        while at < self.rows {
            let piece = self.piece(at, self.rows)?;
            at += piece.num_rows();
            spilling.add(order, writer, &piece)?;
        }
        Ok(spilling.finish(self.seq, self.from, self.to))
    }
}

/// Bytes of a delta's own rows, whatever else their buffers hold.
pub(super) fn rows_bytes(delta: &Delta) -> usize {
    let slice = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or(0);
    delta.num_rows() * size_of::<i64>() + delta.batch.columns().iter().map(slice).sum::<usize>()
}

/// A spilled run in the making.
#[derive(Debug, Default)]
pub(super) struct Spilling {
    parts: Vec<Part>,
    rows: usize,
    net: i64,
}

impl Spilling {
    /// Adds rows that come after all before.
    pub(super) fn add(&mut self, order: &RowOrder, writer: &mut SpillWriter, delta: &Delta) -> Result<()> {
        let mut at = 0;
        let rows_max = (PART_BYTES * delta.num_rows() / rows_bytes(delta).max(1)).clamp(1, PART_ROWS);
        while at < delta.num_rows() {
            let part = delta.slice(at, rows_max.min(delta.num_rows() - at));
            at += part.num_rows();
            self.parts.push(Part {
                fence: order.encode(&part.batch.slice(0, 1))?.row(0).data().into(),
                batch: writer.write_delta(&part)?,
                start: self.rows,
                rows: part.num_rows(),
            });
            self.rows += part.num_rows();
            self.net += part.diff_iter().sum::<i64>();
        }
        Ok(())
    }

    pub(super) fn finish(self, seq: u64, from: u64, to: u64) -> Run {
        Run {
            seq,
            from,
            to,
            rows: self.rows,
            net: self.net,
            data: Data::Spilled(self.parts),
        }
    }
}
