//! Looking a key up in a sorted delta, and pieces of sorted deltas on their way through a merge.
//!
//! Rows are compared by their encoding ([`RowOrder::encode`]), which costs some 100 ns a row to make and as much memory as
//! the rows, so it is made where it is needed: a lookup encodes a few rows on its way down, a delta in which many keys are looked
//! up is encoded once as a whole, a merge encodes only pieces that overlap others.

use std::ops::Range;

use arrow::row::Rows;
use levee_storage::delta_file::after_prefix;

use super::order::RowOrder;
use crate::{Delta, Result};

/// Lookups in one delta after which it is encoded as a whole.
const LOOKUPS_MAX: u32 = 8;

/// A sorted delta in which keys are looked up.
#[derive(Debug)]
pub(super) struct SortedRows<'a> {
    order: &'a RowOrder,
    delta: &'a Delta,
    encoded: Option<Rows>,
    lookups: u32,
}

impl<'a> SortedRows<'a> {
    pub(super) fn new(order: &'a RowOrder, delta: &'a Delta) -> Self {
        Self {
            order,
            delta,
            encoded: None,
            lookups: 0,
        }
    }

    /// The first row that is not below `bytes`.
    pub(super) fn lower_bound(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = self.delta.num_rows();
        self.lookups += 1;
        if self.encoded.is_none() && (self.lookups > LOOKUPS_MAX || n <= 4) {
            self.encoded = Some(self.order.encode(&self.delta.batch)?);
        }
        if let Some(rows) = &self.encoded {
            return Ok(partition(rows, 0, n, bytes));
        }
        let (mut low, mut high) = (0, n);
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.order.encode(&self.delta.batch.slice(middle, 1))?;
            if row.row(0).data() < bytes {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The rows whose encoding begins with `prefix`.
    pub(super) fn with_prefix(&mut self, prefix: &[u8]) -> Result<Range<usize>> {
        let start = self.lower_bound(prefix)?;
        let end = match after_prefix(prefix) {
            Some(after) => self.lower_bound(&after)?,
            None => self.delta.num_rows(),
        };
        Ok(start..end)
    }

    /// The sum of the diffs of the rows whose encoding begins with `prefix`.
    pub(super) fn sum(&mut self, prefix: &[u8]) -> Result<i64> {
        Ok(self.with_prefix(prefix)?.map(|i| self.delta.diff(i)).sum())
    }
}

/// First index in `[from, to)` whose row is not below `bytes`.
pub(super) fn partition(rows: &Rows, from: usize, to: usize, bytes: &[u8]) -> usize {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low) / 2;
        if rows.row(middle).data() < bytes {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Encodings of a piece's rows.
#[derive(Debug)]
enum Encoded {
    /// Not made yet; the first row's only.
    First(Box<[u8]>),
    Rows(Rows),
    /// As they were stored: row `i` ends at `ends[i]`.
    Stored {
        bytes: Vec<u8>,
        ends: Vec<usize>,
    },
}

/// A part of a sorted input, from row `at` on.
#[derive(Debug)]
pub(super) struct Piece {
    delta: Delta,
    encoded: Encoded,
    at: usize,
    /// All rows are below this; none: nothing comes after the piece.
    limit: Option<Box<[u8]>>,
}

impl Piece {
    /// A piece that is not empty, with its first row's encoding.
    pub(super) fn new(delta: Delta, first: Box<[u8]>, limit: Option<Box<[u8]>>) -> Self {
        Self {
            delta,
            encoded: Encoded::First(first),
            at: 0,
            limit,
        }
    }

    /// A piece that was decoded from `bytes`.
    pub(super) fn stored(delta: Delta, bytes: Vec<u8>, ends: Vec<usize>, limit: Option<Box<[u8]>>) -> Self {
        Self {
            delta,
            encoded: Encoded::Stored { bytes, ends },
            at: 0,
            limit,
        }
    }

    pub(super) fn limit(&self) -> Option<&[u8]> {
        self.limit.as_deref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.delta.num_rows()
    }

    /// The encoding of the first row that is left.
    pub(super) fn first(&self) -> &[u8] {
        match &self.encoded {
            Encoded::First(first) => first,
            Encoded::Rows(rows) => rows.row(self.at).data(),
            Encoded::Stored { bytes, ends } => stored_row(bytes, ends, self.at),
        }
    }

    /// Takes the rows below `bound` (all if none).
    pub(super) fn take_below(&mut self, order: &RowOrder, bound: Option<&[u8]>) -> Result<Delta> {
        let n = self.delta.num_rows();
        let end = match bound {
            None => n,
            Some(bound) if self.limit().is_some_and(|limit| limit <= bound) => n,
            Some(bound) => {
                if matches!(self.encoded, Encoded::First(_)) {
                    self.encoded = Encoded::Rows(order.encode(&self.delta.batch)?);
                }
                match &self.encoded {
                    Encoded::Rows(rows) => partition(rows, self.at, n, bound),
                    Encoded::Stored { bytes, ends } => {
                        self.at + (self.at..n).take_while(|i| stored_row(bytes, ends, *i) < bound).count()
                    }
                    Encoded::First(_) => n,
                }
            }
        };
        let from = std::mem::replace(&mut self.at, end);
        if from == 0 && end == n {
            return Ok(self.delta.clone());
        }
        Ok(self.delta.slice(from, end - from))
    }
}

fn stored_row<'a>(bytes: &'a [u8], ends: &[usize], i: usize) -> &'a [u8] {
    let start = if i == 0 { 0 } else { ends[i - 1] };
    &bytes[start..ends[i]]
}
