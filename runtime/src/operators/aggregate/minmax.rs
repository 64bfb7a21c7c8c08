//! `min` and `max`: one value a group over append-only input, an ordered multiset otherwise.

use std::cmp::Ordering;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use super::super::codec::{Reader, put_bytes};
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use super::entries::{Entries, Multiset};
use super::values::{ValueKey, with_key};
use crate::{Result, RuntimeError};

/// Makes the state of `min` (`want` less) or `max` (greater).
///
/// # Errors
/// The type has no order.
pub fn accumulator(want: Ordering, data_type: &DataType, append_only: bool) -> Result<Box<dyn Accumulator>> {
    if matches!(data_type, DataType::Boolean) || data_type.is_nested() {
        return Err(RuntimeError::user(
            "0A000",
            format!("min or max of {data_type} is not supported in a materialized view"),
        ));
    }
    with_key!(data_type, make(want, data_type, append_only))
}

fn make<K: ValueKey>(want: Ordering, data_type: &DataType, append_only: bool) -> Result<Box<dyn Accumulator>> {
    let codec = K::codec(data_type)?;
    Ok(if append_only {
        Box::new(Best::<K> {
            want,
            codec,
            values: Vec::new(),
        })
    } else {
        Box::new(Extreme::<K> {
            values: Multiset::new(codec, 1, want == Ordering::Greater),
        })
    })
}

fn argument<'a>(rows: &Rows<'a>) -> Result<&'a ArrayRef> {
    rows.arg
        .ok_or_else(|| RuntimeError::internal("min or max without an argument"))
}

/// The best value so far.
struct Best<K: ValueKey> {
    want: Ordering,
    codec: K::Codec,
    values: Vec<Option<K>>,
}

impl<K: ValueKey> Accumulator for Best<K> {
    fn grow(&mut self, n: usize) {
        if self.values.len() < n {
            self.values.resize(n, None);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = K::read(&self.codec, argument(rows)?)?;
        let want = self.want;
        let values = &mut self.values[..];
        rows.for_each(|i, slot, _| {
            let value = K::at(&column, i);
            let best = &mut values[slot];
            if best.as_ref().is_none_or(|b| value.cmp(b.borrow()) == want) {
                *best = Some(K::own(value));
            }
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        K::build(
            &self.codec,
            slots.iter().map(|&s| self.values[s as usize].as_ref()).collect(),
        )
    }

    fn clear(&mut self, slot: u32) {
        self.values[slot as usize] = None;
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        if let Some(value) = &self.values[slot as usize] {
            bytes.push(1);
            value.encode(&mut bytes);
        }
        put_bytes(out, &bytes);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.values[slot as usize] = match from.bytes()? {
            [] => None,
            [_, value @ ..] => Some(K::decode(value)?),
        };
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.values, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        size_of::<Option<K>>() + K::heap_bytes()
    }

    fn bytes(&self) -> usize {
        self.values.len() * self.bytes_per_slot()
    }
}

/// The least or greatest of a multiset.
struct Extreme<K: ValueKey> {
    values: Multiset<K>,
}

impl<K: ValueKey> Accumulator for Extreme<K> {
    fn grow(&mut self, n: usize) {
        self.values.counts.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = K::read(&self.values.codec, argument(rows)?)?;
        let counts = &mut self.values.counts;
        rows.for_each(|i, slot, diff| {
            counts.add(slot as u32, K::at(&column, i), diff);
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        let front = |slot: &u32| self.values.counts.front(*slot).map(|(value, _)| value);
        K::build(&self.values.codec, slots.iter().map(front).collect())
    }

    fn clear(&mut self, slot: u32) {
        self.values.counts.clear(slot);
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        let mut front = Vec::new();
        self.values.encode_front(slot, &mut front);
        put_bytes(out, &front);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.values.decode_front(slot, from.bytes()?)
    }

    fn entries(&mut self) -> Option<&mut dyn Entries> {
        Some(&mut self.values)
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        self.values.counts.relocate(moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        32
    }

    fn bytes(&self) -> usize {
        self.values.bytes()
    }
}
