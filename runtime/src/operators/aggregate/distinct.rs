//! DISTINCT: a multiset of argument values per group; a value that appears or goes feeds the plain aggregate once.

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;

use super::super::codec::Reader;
use super::super::columns::canonical;
use super::accumulator::{Accumulator, Failures, Rows};
use super::entries::{Entries, Multiset};
use super::values::{ValueKey, with_key};
use crate::{Diffs, Result, RuntimeError};

/// Wraps `inner`, the plain aggregate.
///
/// # Errors
/// The type has no equality.
pub fn accumulator(data_type: &DataType, inner: Box<dyn Accumulator>) -> Result<Box<dyn Accumulator>> {
    with_key!(data_type, make(data_type, inner))
}

fn make<K: ValueKey>(data_type: &DataType, inner: Box<dyn Accumulator>) -> Result<Box<dyn Accumulator>> {
    Ok(Box::new(Distinct::<K> {
        values: Multiset::new(K::codec(data_type)?, 0, false),
        inner,
    }))
}

struct Distinct<K: ValueKey> {
    values: Multiset<K>,
    inner: Box<dyn Accumulator>,
}

impl<K: ValueKey> Accumulator for Distinct<K> {
    fn grow(&mut self, n: usize) {
        self.values.counts.grow(n);
        self.inner.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        // Equal floats of different bits must feed, and later retract, the same bits.
        let arg: ArrayRef = canonical(
            rows.arg
                .ok_or_else(|| RuntimeError::internal("DISTINCT without an argument"))?,
        );
        let column = K::read(&self.values.codec, &arg)?;
        let values = &mut self.values.counts;
        let (mut at, mut slots, mut diffs) = (Vec::new(), Vec::new(), Vec::new());
        rows.for_each(|i, slot, diff| {
            let (before, after) = values.add(slot as u32, K::at(&column, i), diff);
            let change = i64::from(after > 0) - i64::from(before > 0);
            if change != 0 {
                at.push(i as u32);
                slots.push(slot as u32);
                diffs.push(change);
            }
        });
        if at.is_empty() {
            return Ok(());
        }
        let changed = take(&arg, &UInt32Array::from(at), None)?;
        let diffs = Diffs::Values(diffs.into());
        self.inner.update(&Rows {
            slots: &slots,
            diffs: &diffs,
            arg: Some(&changed),
            valid: None,
        })
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        self.inner.evaluate(slots, failures)
    }

    fn clear(&mut self, slot: u32) {
        self.values.counts.clear(slot);
        self.inner.clear(slot);
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        self.inner.encode(slot, out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.inner.decode(slot, from)
    }

    fn entries(&mut self) -> Option<&mut dyn Entries> {
        Some(&mut self.values)
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        self.values.counts.relocate(moves, n);
        self.inner.relocate(moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        32 + self.inner.bytes_per_slot()
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.inner.bytes()
    }
}
