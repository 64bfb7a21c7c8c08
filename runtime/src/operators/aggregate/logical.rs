//! `bool_and` and `bool_or`: how many true and how many false values a group holds.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray};

use super::super::codec::{Reader, put_i64};
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use crate::{Result, RuntimeError};

/// The counts.
pub struct Logical {
    /// `bool_and`: true if nothing is false. Otherwise `bool_or`.
    all: bool,
    /// False and true values of each slot.
    counts: Vec<[i64; 2]>,
}

impl Logical {
    /// `bool_and` if `all`, else `bool_or`.
    pub fn new(all: bool) -> Self {
        Self {
            all,
            counts: Vec::new(),
        }
    }
}

impl Accumulator for Logical {
    fn grow(&mut self, n: usize) {
        if self.counts.len() < n {
            self.counts.resize(n, [0; 2]);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let arg = rows.arg.and_then(|a| a.as_boolean_opt());
        let values = arg.ok_or_else(|| RuntimeError::internal("a logical aggregate over no boolean"))?;
        let values = values.values();
        let counts = &mut self.counts[..];
        rows.for_each(|i, slot, diff| counts[slot][usize::from(values.value(i))] += diff);
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        let result = |slot: &u32| match self.counts[*slot as usize] {
            [0, 0] => None,
            [no, _] if self.all => Some(no == 0),
            [_, yes] => Some(yes > 0),
        };
        Ok(Arc::new(slots.iter().map(result).collect::<BooleanArray>()))
    }

    fn clear(&mut self, slot: u32) {
        self.counts[slot as usize] = [0; 2];
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        for count in self.counts[slot as usize] {
            put_i64(out, count);
        }
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.counts[slot as usize] = [from.i64()?, from.i64()?];
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.counts, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        16
    }

    fn bytes(&self) -> usize {
        self.counts.len() * 16
    }
}
