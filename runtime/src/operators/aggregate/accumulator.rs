//! What the aggregate asks of a function's state: columns indexed by group slot, updated by batches.

use arrow::array::{Array, ArrayRef, BooleanArray, Int64Array};
use arrow::buffer::BooleanBuffer;
use std::sync::Arc;

use super::super::codec::{Reader, put_i64};
use super::entries::Entries;
use crate::{Diffs, Result};

/// The rows of a batch as one aggregate sees them.
pub struct Rows<'a> {
    /// Group slot of each row.
    pub slots: &'a [u32],
    /// Multiplicities.
    pub diffs: &'a Diffs,
    /// Argument column; none for `count(*)`.
    pub arg: Option<&'a ArrayRef>,
    /// Rows that count: argument not NULL, filter true. `None`: all.
    pub valid: Option<BooleanBuffer>,
}

impl<'a> Rows<'a> {
    /// Combines the argument's NULLs and the filter.
    pub fn new(slots: &'a [u32], diffs: &'a Diffs, arg: Option<&'a ArrayRef>, filter: Option<&BooleanArray>) -> Self {
        let not_null = arg
            .and_then(|a| a.logical_nulls())
            .filter(|n| n.null_count() > 0)
            .map(|n| n.into_inner());
        let passed = filter.map(|f| match f.nulls() {
            Some(nulls) => f.values() & nulls.inner(),
            None => f.values().clone(),
        });
        let valid = match (not_null, passed) {
            (Some(a), Some(b)) => Some(&a & &b),
            (a, b) => a.or(b),
        };
        Self {
            slots,
            diffs,
            arg,
            valid,
        }
    }

    /// Calls `f(row, slot, diff)` for each row that counts.
    #[inline]
    pub fn for_each(&self, mut f: impl FnMut(usize, usize, i64)) {
        match (&self.valid, self.diffs) {
            (None, Diffs::Ones) => {
                for (i, &slot) in self.slots.iter().enumerate() {
                    f(i, slot as usize, 1);
                }
            }
            (None, Diffs::Values(diffs)) => {
                for (i, (&slot, &diff)) in self.slots.iter().zip(diffs.iter()).enumerate() {
                    f(i, slot as usize, diff);
                }
            }
            (Some(valid), Diffs::Ones) => {
                for i in valid.set_indices() {
                    f(i, self.slots[i] as usize, 1);
                }
            }
            (Some(valid), Diffs::Values(diffs)) => {
                for i in valid.set_indices() {
                    f(i, self.slots[i] as usize, diffs[i]);
                }
            }
        }
    }
}

/// Results that could not be represented: their number, and the first one's message.
#[derive(Debug, Default)]
pub struct Failures {
    /// Number of groups.
    pub rows: u64,
    /// Message in PostgreSQL's words.
    pub message: Option<&'static str>,
}

impl Failures {
    /// Counts one.
    pub fn add(&mut self, message: &'static str) {
        self.rows += 1;
        self.message.get_or_insert(message);
    }
}

/// State of one aggregate call over all groups of a task.
pub trait Accumulator: Send {
    /// Makes slots up to `n`, empty.
    fn grow(&mut self, n: usize);

    /// Takes rows.
    ///
    /// # Errors
    /// The argument has another type than declared.
    fn update(&mut self, rows: &Rows<'_>) -> Result<()>;

    /// The results of `slots`; NULL and a failure where a result does not fit its type.
    ///
    /// # Errors
    /// State cannot be shown as the declared type.
    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef>;

    /// Empties a slot.
    fn clear(&mut self, slot: u32);

    /// Appends the slot's state.
    fn encode(&self, slot: u32, out: &mut Vec<u8>);

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// Damaged bytes.
    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()>;

    /// The values that the accumulator keeps as entries of their own, if it does; `encode` then leaves them out.
    fn entries(&mut self) -> Option<&mut dyn Entries> {
        None
    }

    /// Moves slots (from, to), then keeps the first `n`: [`relocate`] for every vector.
    fn relocate(&mut self, moves: &[(u32, u32)], n: usize);

    /// Memory of a slot, without entries.
    fn bytes_per_slot(&self) -> usize;

    /// Memory held.
    fn bytes(&self) -> usize;
}

/// Moves values (from, to), then keeps the first `n` and gives the rest of the memory back.
pub fn relocate<T>(values: &mut Vec<T>, moves: &[(u32, u32)], n: usize) {
    for &(from, to) in moves {
        values.swap(from as usize, to as usize);
    }
    values.truncate(n);
    values.shrink_to_fit();
}

/// `count`: the sum of the diffs of rows that count.
#[derive(Default)]
pub struct Count {
    counts: Vec<i64>,
}

impl Accumulator for Count {
    fn grow(&mut self, n: usize) {
        if self.counts.len() < n {
            self.counts.resize(n, 0);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let counts = &mut self.counts[..];
        rows.for_each(|_, slot, diff| counts[slot] += diff);
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        Ok(Arc::new(Int64Array::from_iter_values(
            slots.iter().map(|&s| self.counts[s as usize]),
        )))
    }

    fn clear(&mut self, slot: u32) {
        self.counts[slot as usize] = 0;
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        put_i64(out, self.counts[slot as usize]);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.counts[slot as usize] = from.i64()?;
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.counts, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        8
    }

    fn bytes(&self) -> usize {
        self.counts.len() * 8
    }
}
