//! `min_by` and `max_by`: the value with the first key in order.
//!
//! The argument is a sort key with the value behind it ([`super::collect::SortColumn`]), so what is looked for is its minimum: of equal
//! keys the least value decides.

use arrow::array::{ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Schema};
use arrow::row::{RowConverter, RowParser};
use levee_planner::plan::SortKey;
use std::cmp::Ordering;

use super::super::codec::Reader;
use super::super::columns::coerce;
use super::accumulator::{Accumulator, Failures, Rows};
use super::collect::converter;
use super::entries::Entries;
use super::minmax;
use crate::{Result, RuntimeError};

/// The minimum of sort keys, and the way from it to the value.
pub struct ByKey {
    first: Box<dyn Accumulator>,
    converter: RowConverter,
    parser: RowParser,
    value: DataType,
}

impl ByKey {
    /// Of a column of `input`.
    ///
    /// # Errors
    /// A type cannot be ordered.
    pub fn new(order_by: &[SortKey], value: usize, input: &Schema, append_only: bool) -> Result<Self> {
        let converter = converter(order_by, value, input)?;
        Ok(Self {
            first: minmax::accumulator(Ordering::Less, &DataType::Binary, append_only)?,
            parser: converter.parser(),
            converter,
            value: input.field(value).data_type().clone(),
        })
    }
}

impl Accumulator for ByKey {
    fn grow(&mut self, n: usize) {
        self.first.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        self.first.update(rows)
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let keys = self.first.evaluate(slots, failures)?;
        let keys = keys.as_binary::<i32>();
        let present = keys.iter().flatten().map(|key| self.parser.parse(key));
        let columns = self.converter.convert_rows(present)?;
        let values = columns
            .last()
            .ok_or_else(|| RuntimeError::internal("a sort key without a value"))?;
        let mut next = 0;
        let at = keys.iter().map(|key| {
            key.map(|_| {
                next += 1;
                next - 1
            })
        });
        coerce(take(values, &at.collect::<UInt32Array>(), None)?, &self.value)
    }

    fn clear(&mut self, slot: u32) {
        self.first.clear(slot);
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        self.first.encode(slot, out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.first.decode(slot, from)
    }

    fn entries(&mut self) -> Option<&mut dyn Entries> {
        self.first.entries()
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        self.first.relocate(moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        self.first.bytes_per_slot()
    }

    fn bytes(&self) -> usize {
        self.first.bytes()
    }
}
