//! `string_agg` and `array_agg`: all values of a group, in order, joined.
//!
//! A group's values are an ordered multiset of bytes. With ORDER BY the aggregate's argument is a column of sort keys, each with the value behind
//! it (see [`SortColumn`]); without, it is the value itself, and the order is the values' own: PostgreSQL promises none, but a replay must
//! give the same text. Equal keys are ordered by value. `array_agg` takes NULLs too, so its argument is a sort key even without ORDER BY.
//!
//! Cost: a result is made anew from all values of its group whenever the group is touched in a step.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, ListArray, RecordBatch, StringBuilder, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{SortOptions, take};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::row::{RowConverter, RowParser, SortField};
use levee_planner::plan::SortKey;

use super::super::codec::Reader;
use super::super::columns::{sortable, sortable_type};
use super::accumulator::{Accumulator, Failures, Rows};
use super::entries::{Entries, Multiset};
use super::values::ValueKey;
use crate::{Result, RuntimeError};

/// A text may not be longer, as in PostgreSQL.
const BYTES_MAX: usize = 1 << 30;

/// Which rows do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    /// All count.
    Kept,
    /// Those without a value.
    OfValue,
    /// Those whose first key is NULL.
    OfKey,
}

/// A computed column: ORDER BY's columns and the value, encoded so that the bytes sort as ORDER BY says; NULL where the row does not
/// count.
pub struct SortColumn {
    order_by: Vec<SortKey>,
    value: usize,
    nulls: Nulls,
    converter: RowConverter,
}

impl SortColumn {
    /// Of these columns of the input.
    ///
    /// # Errors
    /// A type cannot be ordered.
    pub fn new(order_by: &[SortKey], value: usize, nulls: Nulls, input: &Schema) -> Result<Self> {
        Ok(Self {
            converter: converter(order_by, value, input)?,
            order_by: order_by.to_vec(),
            value,
            nulls,
        })
    }

    /// The column.
    ///
    /// # Errors
    /// A column has another type than declared.
    pub fn compute(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        let value = batch.column(self.value);
        let mut columns: Vec<ArrayRef> = self.order_by.iter().map(|k| sortable(batch.column(k.column))).collect();
        columns.push(Arc::clone(value));
        let nulls = match self.nulls {
            Nulls::Kept => None,
            Nulls::OfValue => value.logical_nulls(),
            Nulls::OfKey => columns.first().and_then(|key| key.logical_nulls()),
        };
        let rows = self.converter.convert_columns(&columns)?;
        let mut out = BinaryBuilder::with_capacity(rows.num_rows(), rows.size());
        for (i, row) in rows.iter().enumerate() {
            if nulls.as_ref().is_some_and(|n| n.is_null(i)) {
                out.append_null();
            } else {
                out.append_value(row.data());
            }
        }
        Ok(Arc::new(out.finish()))
    }
}

pub(super) fn converter(order_by: &[SortKey], value: usize, input: &Schema) -> Result<RowConverter> {
    let data_type = |c: usize| match input.fields().get(c) {
        Some(field) => Ok(field.data_type().clone()),
        None => Err(RuntimeError::internal("ORDER BY of an aggregate refers to no column")),
    };
    let mut fields = Vec::with_capacity(order_by.len() + 1);
    for key in order_by {
        let options = SortOptions::new(key.desc, key.nulls_first);
        fields.push(SortField::new_with_options(
            sortable_type(&data_type(key.column)?),
            options,
        ));
    }
    let nulls_last = SortOptions::new(false, false);
    fields.push(SortField::new_with_options(data_type(value)?, nulls_last));
    Ok(RowConverter::new(fields)?)
}

/// The values.
pub struct StringAgg {
    values: Multiset<Arc<[u8]>>,
    /// Reads the value behind a sort key.
    sorted: Option<(RowConverter, RowParser)>,
    delimiter: String,
    distinct: bool,
}

impl StringAgg {
    /// `value` is a text column of `input`.
    ///
    /// # Errors
    /// It is none, or a type cannot be ordered.
    pub fn new(order_by: &[SortKey], value: usize, input: &Schema, delimiter: &str, distinct: bool) -> Result<Self> {
        if input
            .fields()
            .get(value)
            .is_none_or(|f| *f.data_type() != DataType::Utf8)
        {
            return Err(RuntimeError::internal("string_agg over no text"));
        }
        let sorted = if order_by.is_empty() {
            None
        } else {
            let converter = converter(order_by, value, input)?;
            let parser = converter.parser();
            Some((converter, parser))
        };
        Ok(Self {
            values: Multiset::new(<Arc<[u8]>>::codec(&DataType::Binary)?, i64::MAX, false),
            sorted,
            delimiter: delimiter.to_owned(),
            distinct,
        })
    }

    /// Calls `f` with each value and its count, in order.
    fn for_each(&self, slot: u32, mut f: impl FnMut(&str, i64)) -> Result<()> {
        let damaged = || RuntimeError::internal("a stored text is damaged");
        let counts = self.values.counts.iter(slot);
        let Some((converter, parser)) = &self.sorted else {
            for (bytes, count) in counts {
                f(std::str::from_utf8(bytes).map_err(|_| damaged())?, count);
            }
            return Ok(());
        };
        let (keys, counts): (Vec<&Arc<[u8]>>, Vec<i64>) = counts.unzip();
        let columns = converter.convert_rows(keys.into_iter().map(|k| parser.parse(k)))?;
        let texts = columns
            .last()
            .and_then(|c| c.as_string_opt::<i32>())
            .ok_or_else(damaged)?;
        for (text, count) in texts.iter().zip(counts) {
            f(text.ok_or_else(damaged)?, count);
        }
        Ok(())
    }
}

impl Accumulator for StringAgg {
    fn grow(&mut self, n: usize) {
        self.values.counts.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let arg = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("string_agg without an argument"))?;
        let column = <Arc<[u8]>>::read(&self.values.codec, arg)?;
        let counts = &mut self.values.counts;
        rows.for_each(|i, slot, diff| {
            counts.add(slot as u32, <Arc<[u8]>>::at(&column, i), diff);
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let mut out = StringBuilder::with_capacity(slots.len(), slots.len() * 16);
        let mut text = String::new();
        for &slot in slots {
            text.clear();
            let (mut any, mut too_long) = (false, false);
            self.for_each(slot, |value, count| {
                for _ in 0..if self.distinct { 1 } else { count } {
                    if text.len() + self.delimiter.len() + value.len() > BYTES_MAX {
                        too_long = true;
                        return;
                    }
                    if any {
                        text.push_str(&self.delimiter);
                    }
                    text.push_str(value);
                    any = true;
                }
            })?;
            if too_long {
                failures.add("out of memory: a string may have at most 1 GB");
                out.append_null();
            } else if any {
                out.append_value(&text);
            } else {
                out.append_null();
            }
        }
        Ok(Arc::new(out.finish()))
    }

    fn clear(&mut self, slot: u32) {
        self.values.counts.clear(slot);
    }

    fn encode(&self, _slot: u32, _out: &mut Vec<u8>) {}

    fn decode(&mut self, _slot: u32, _from: &mut Reader<'_>) -> Result<()> {
        Ok(())
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

/// Elements that an array may have, as in PostgreSQL.
const ELEMENTS_MAX: usize = levee_planner::sql::array_text::ELEMENTS_MAX;

/// `array_agg`.
pub struct ArrayAgg {
    values: Multiset<Arc<[u8]>>,
    converter: RowConverter,
    parser: RowParser,
    item: DataType,
    distinct: bool,
}

impl ArrayAgg {
    /// Of a column of `input`.
    ///
    /// # Errors
    /// A type cannot be ordered.
    pub fn new(order_by: &[SortKey], value: usize, input: &Schema, distinct: bool) -> Result<Self> {
        let converter = converter(order_by, value, input)?;
        Ok(Self {
            values: Multiset::new(<Arc<[u8]>>::codec(&DataType::Binary)?, i64::MAX, false),
            parser: converter.parser(),
            converter,
            item: input.field(value).data_type().clone(),
            distinct,
        })
    }
}

impl Accumulator for ArrayAgg {
    fn grow(&mut self, n: usize) {
        self.values.counts.grow(n);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let arg = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("array_agg without an argument"))?;
        let column = <Arc<[u8]>>::read(&self.values.codec, arg)?;
        let counts = &mut self.values.counts;
        rows.for_each(|i, slot, diff| {
            counts.add(slot as u32, <Arc<[u8]>>::at(&column, i), diff);
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let mut keys: Vec<&Arc<[u8]>> = Vec::new();
        let (mut picked, mut offsets, mut valid) = (Vec::new(), vec![0_i32], Vec::new());
        for &slot in slots {
            let start = picked.len();
            for (key, count) in self.values.counts.iter(slot) {
                let times = if self.distinct { 1 } else { count };
                let times = usize::try_from(times).unwrap_or(0);
                if picked.len() - start + times > ELEMENTS_MAX {
                    failures.add("array size exceeds the maximum allowed (134217727)");
                    picked.truncate(start);
                    break;
                }
                picked.extend(std::iter::repeat_n(keys.len() as u64, times));
                keys.push(key);
            }
            valid.push(picked.len() > start);
            offsets.push(
                i32::try_from(picked.len())
                    .map_err(|_| RuntimeError::internal("too many array elements for one batch"))?,
            );
        }
        let columns = self
            .converter
            .convert_rows(keys.into_iter().map(|k| self.parser.parse(k)))?;
        let values = columns
            .last()
            .ok_or_else(|| RuntimeError::internal("array_agg without a value"))?;
        let values = take(values, &UInt64Array::from(picked), None)?;
        let values = super::super::columns::coerce(values, &self.item)?;
        let field = Arc::new(Field::new_list_field(self.item.clone(), true));
        let offsets = OffsetBuffer::new(offsets.into());
        Ok(Arc::new(ListArray::try_new(
            field,
            offsets,
            values,
            Some(NullBuffer::from(valid)),
        )?))
    }

    fn clear(&mut self, slot: u32) {
        self.values.counts.clear(slot);
    }

    fn encode(&self, _slot: u32, _out: &mut Vec<u8>) {}

    fn decode(&mut self, _slot: u32, _from: &mut Reader<'_>) -> Result<()> {
        Ok(())
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
