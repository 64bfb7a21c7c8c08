//! DISTINCT: a multiset of argument values per group; a value that appears or goes feeds the plain aggregate once.

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;

use super::super::codec::Reader;
use super::super::columns::canonical;
use super::super::ordered::OrderedCounts;
use super::accumulator::{Accumulator, Failures, Rows};
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
        codec: K::codec(data_type)?,
        values: OrderedCounts::default(),
        inner,
    }))
}

struct Distinct<K: ValueKey> {
    codec: K::Codec,
    values: OrderedCounts<K>,
    inner: Box<dyn Accumulator>,
}

impl<K: ValueKey> Accumulator for Distinct<K> {
    fn grow(&mut self, n: usize) {
        self.values.grow(n);
        self.inner.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        // Equal floats of different bits must feed, and later retract, the same bits.
        let arg: ArrayRef = canonical(
            rows.arg
                .ok_or_else(|| RuntimeError::internal("DISTINCT without an argument"))?,
        );
        let column = K::read(&self.codec, &arg)?;
        let values = &mut self.values;
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
        self.values.clear(slot);
        self.inner.clear(slot);
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        self.inner.encode(slot, out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.inner.decode(slot, from)
    }

    fn snapshot(&mut self, full: bool, put: &mut dyn FnMut(u32, &[u8], Option<i64>)) {
        let mut bytes = Vec::new();
        self.values.snapshot(full, |slot, value, count| {
            bytes.clear();
            value.encode(&mut bytes);
            put(slot, &bytes, count);
        });
    }

    fn restore(&mut self, slot: u32, value: &[u8], count: i64) -> Result<()> {
        self.values.restore(slot, K::decode(value)?, count);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.values.n_entries() * K::heap_bytes() + self.inner.bytes()
    }
}
