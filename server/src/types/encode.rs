//! Batches → DataRow messages.
//!
//! A column is looked at once per batch and becomes a [`Column`], which knows its array and format; rows are then written one
//! after another straight into the connection's output buffer. Lengths are patched in afterwards, so no value is ever built
//! apart. Cost: one match and the digits per value.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    Decimal256Array, FixedSizeBinaryArray, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array,
    IntervalMonthDayNanoArray, LargeBinaryArray, ListArray, RecordBatch, StringArray, Time64MicrosecondArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use bytes::{BufMut, BytesMut};
use levee_planner::sql::clock::{self, ZonedTime};
use levee_planner::sql::types::{JSON, JSONB, TIME, TIMETZ, UUID, canonical, oid};
use levee_planner::sql::{array_text, json, text};

use super::datetime::{PG_EPOCH_DAYS, PG_EPOCH_US, put_date, put_time, put_timestamp, put_timestamptz};
use super::float::{put_f32, put_f64};
use super::interval::{Interval, put_interval};
use super::numeric::{Digits, Display};
use super::zone::Zone;
use crate::error::{Result, SqlError};

/// Session settings that the text form depends on.
#[derive(Debug, Clone, Default)]
pub struct TextStyle {
    /// Time zone of timestamptz.
    pub zone: Zone,
    /// `bytea_output = escape`.
    pub bytea_escape: bool,
}

/// A column of a batch, ready to be written value by value.
#[derive(Debug)]
enum Column {
    Bool(BooleanArray),
    Int2(Int16Array),
    Int4(Int32Array),
    Int8(Int64Array),
    Float4(Float32Array),
    Float8(Float64Array),
    Decimal128(Decimal128Array, usize, Display),
    Decimal256(Decimal256Array, usize, Display),
    Text(StringArray),
    Bytea(BinaryArray),
    Date(Date32Array),
    Timestamp(TimestampMicrosecondArray),
    Timestamptz(TimestampMicrosecondArray),
    Interval(IntervalMonthDayNanoArray),
    Time(Time64MicrosecondArray),
    Timetz(FixedSizeBinaryArray),
    Uuid(FixedSizeBinaryArray),
    Json(BinaryViewArray),
    Jsonb(LargeBinaryArray),
    /// Its elements, and the object id of their type.
    List(ListArray, Box<Column>, u32),
}

impl Column {
    fn of(array: &ArrayRef) -> Result<Self> {
        let wanted = canonical(array.data_type());
        let array = if let DataType::Dictionary(_, value) = &wanted {
            arrow::compute::cast(array, &canonical(value))?
        } else if &wanted == array.data_type() {
            ArrayRef::clone(array)
        } else {
            arrow::compute::cast(array, &wanted)?
        };
        Ok(match array.data_type() {
            DataType::Boolean => Self::Bool(array.as_boolean().clone()),
            DataType::Int16 => Self::Int2(array.as_primitive().clone()),
            DataType::Int32 => Self::Int4(array.as_primitive().clone()),
            DataType::Int64 => Self::Int8(array.as_primitive().clone()),
            DataType::Float32 => Self::Float4(array.as_primitive().clone()),
            DataType::Float64 => Self::Float8(array.as_primitive().clone()),
            t @ DataType::Decimal128(_, s) => {
                Self::Decimal128(array.as_primitive().clone(), scale(*s)?, Display::of(t))
            }
            t @ DataType::Decimal256(_, s) => {
                Self::Decimal256(array.as_primitive().clone(), scale(*s)?, Display::of(t))
            }
            DataType::Utf8 => Self::Text(array.as_string().clone()),
            DataType::Binary => Self::Bytea(array.as_binary().clone()),
            DataType::Date32 => Self::Date(array.as_primitive().clone()),
            DataType::Timestamp(TimeUnit::Microsecond, None) => Self::Timestamp(array.as_primitive().clone()),
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => Self::Timestamptz(array.as_primitive().clone()),
            DataType::Interval(IntervalUnit::MonthDayNano) => Self::Interval(array.as_primitive().clone()),
            &TIME => Self::Time(array.as_primitive().clone()),
            &TIMETZ => Self::Timetz(array.as_fixed_size_binary().clone()),
            &UUID => Self::Uuid(array.as_fixed_size_binary().clone()),
            &JSON => Self::Json(array.as_binary_view().clone()),
            &JSONB => Self::Jsonb(array.as_binary().clone()),
            DataType::List(item) => {
                let list = array.as_list::<i32>().clone();
                let element = Field::new("", canonical(item.data_type()), true);
                let elements = Self::of(list.values())?;
                Self::List(list, Box::new(elements), oid(&element))
            }
            _ => {
                let text = arrow::compute::cast(&array, &DataType::Utf8).map_err(|_| {
                    SqlError::unsupported(format!("results of type {} are not supported", array.data_type()))
                })?;
                Self::Text(text.as_string().clone())
            }
        })
    }

    fn array(&self) -> &dyn Array {
        match self {
            Self::Bool(a) => a,
            Self::Int2(a) => a,
            Self::Int4(a) => a,
            Self::Int8(a) => a,
            Self::Float4(a) => a,
            Self::Float8(a) => a,
            Self::Decimal128(a, ..) => a,
            Self::Decimal256(a, ..) => a,
            Self::Text(a) => a,
            Self::Bytea(a) => a,
            Self::Date(a) => a,
            Self::Timestamp(a) | Self::Timestamptz(a) => a,
            Self::Interval(a) => a,
            Self::Time(a) => a,
            Self::Timetz(a) | Self::Uuid(a) => a,
            Self::Json(a) => a,
            Self::Jsonb(a) => a,
            Self::List(a, ..) => a,
        }
    }

    fn put_text(&self, out: &mut BytesMut, i: usize, style: &TextStyle) {
        match self {
            Self::Bool(a) => out.put_u8(if a.value(i) { b't' } else { b'f' }),
            Self::Int2(a) => put_i64(out, i64::from(a.value(i))),
            Self::Int4(a) => put_i64(out, i64::from(a.value(i))),
            Self::Int8(a) => put_i64(out, a.value(i)),
            Self::Float4(a) => put_f32(out, a.value(i)),
            Self::Float8(a) => put_f64(out, a.value(i)),
            Self::Decimal128(a, scale, d) => Digits::from_i128(a.value(i), *scale).put_text(out, *d),
            Self::Decimal256(a, scale, d) => Digits::from_i256(a.value(i), *scale).put_text(out, *d),
            Self::Text(a) => out.put_slice(a.value(i).as_bytes()),
            Self::Bytea(a) => put_bytea(out, a.value(i), style.bytea_escape),
            Self::Date(a) => put_date(out, a.value(i)),
            Self::Timestamp(a) => put_timestamp(out, a.value(i)),
            Self::Timestamptz(a) => put_timestamptz(out, a.value(i), &style.zone),
            Self::Interval(a) => put_interval(out, interval_at(a, i)),
            Self::Time(a) => put_time(out, a.value(i)),
            Self::Timetz(a) => out.put_slice(clock::format_timetz(ZonedTime::of_bytes(a.value(i))).as_bytes()),
            Self::Uuid(a) => out.put_slice(text::format_uuid(a.value(i)).as_bytes()),
            Self::Json(a) => out.put_slice(a.value(i)),
            Self::Jsonb(a) => out.put_slice(json::text(a.value(i)).as_bytes()),
            Self::List(a, elements, _) => put_list_text(out, range(a, i), elements, style),
        }
    }

    fn put_binary(&self, out: &mut BytesMut, i: usize) {
        match self {
            Self::Bool(a) => out.put_u8(u8::from(a.value(i))),
            Self::Int2(a) => out.put_i16(a.value(i)),
            Self::Int4(a) => out.put_i32(a.value(i)),
            Self::Int8(a) => out.put_i64(a.value(i)),
            Self::Float4(a) => out.put_f32(a.value(i)),
            Self::Float8(a) => out.put_f64(a.value(i)),
            Self::Decimal128(a, scale, d) => Digits::from_i128(a.value(i), *scale).put_binary(out, *d),
            Self::Decimal256(a, scale, d) => Digits::from_i256(a.value(i), *scale).put_binary(out, *d),
            Self::Text(a) => out.put_slice(a.value(i).as_bytes()),
            Self::Bytea(a) => out.put_slice(a.value(i)),
            Self::Date(a) => out.put_i32(match a.value(i) {
                d @ (i32::MAX | i32::MIN) => d,
                d => d.saturating_sub(PG_EPOCH_DAYS),
            }),
            Self::Timestamp(a) | Self::Timestamptz(a) => out.put_i64(match a.value(i) {
                us @ (i64::MAX | i64::MIN) => us,
                us => us.saturating_sub(PG_EPOCH_US),
            }),
            Self::Interval(a) => {
                let v = interval_at(a, i);
                out.put_i64(v.us);
                out.put_i32(v.days);
                out.put_i32(v.months);
            }
            Self::Time(a) => out.put_i64(a.value(i)),
            Self::Timetz(a) => {
                let t = ZonedTime::of_bytes(a.value(i));
                out.put_i64(t.us);
                out.put_i32(t.west);
            }
            Self::Uuid(a) => out.put_slice(a.value(i)),
            Self::Json(a) => out.put_slice(a.value(i)),
            Self::Jsonb(a) => {
                // The version of the form.
                out.put_u8(1);
                out.put_slice(json::text(a.value(i)).as_bytes());
            }
            Self::List(a, elements, item) => put_list_binary(out, range(a, i), elements, *item),
        }
    }
}

/// Where a row's elements stand.
fn range(list: &ListArray, row: usize) -> std::ops::Range<usize> {
    let at = |i: usize| usize::try_from(list.value_offsets()[i]).unwrap_or(0);
    at(row)..at(row + 1)
}

/// An array: its dimensions (none or one), whether it has NULLs, its elements' type, length and lower bound; then each element's length and
/// value.
fn put_list_binary(out: &mut BytesMut, elements: std::ops::Range<usize>, column: &Column, item: u32) {
    let has_nulls = elements.clone().any(|e| column.array().is_null(e));
    out.put_i32(i32::from(!elements.is_empty()));
    out.put_i32(i32::from(has_nulls));
    out.put_u32(item);
    if elements.is_empty() {
        return;
    }
    out.put_i32(i32::try_from(elements.len()).unwrap_or(i32::MAX));
    out.put_i32(1);
    for e in elements {
        if column.array().is_null(e) {
            out.put_i32(-1);
            continue;
        }
        let at = out.len();
        out.put_u32(0);
        column.put_binary(out, e);
        patch_length(out, at, out.len() - at - 4);
    }
}

fn interval_at(a: &IntervalMonthDayNanoArray, i: usize) -> Interval {
    let v = a.value(i);
    Interval {
        months: v.months,
        days: v.days,
        us: v.nanoseconds / 1000,
    }
}

fn scale(s: i8) -> Result<usize> {
    usize::try_from(s).map_err(|_| SqlError::unsupported("numeric with a negative scale is not supported"))
}

/// An array in PostgreSQL's text form, `{a,b}`.
fn put_list_text(out: &mut BytesMut, elements: std::ops::Range<usize>, column: &Column, style: &TextStyle) {
    let mut raw = BytesMut::new();
    let mut quoted = String::new();
    out.put_u8(b'{');
    for (n, e) in elements.enumerate() {
        if n > 0 {
            out.put_u8(b',');
        }
        if column.array().is_null(e) {
            out.put_slice(b"NULL");
            continue;
        }
        raw.clear();
        column.put_text(&mut raw, e, style);
        quoted.clear();
        array_text::put_element(&String::from_utf8_lossy(&raw), &mut quoted);
        out.put_slice(quoted.as_bytes());
    }
    out.put_u8(b'}');
}

/// A batch prepared for writing: rows can be taken in pieces, as a portal's limits want.
#[derive(Debug)]
pub struct BatchEncoder {
    columns: Vec<(Column, bool)>,
    rows: usize,
}

impl BatchEncoder {
    /// Prepares a batch. `binary[i]` asks for column i's binary format.
    ///
    /// # Errors
    /// A column's type has no PostgreSQL form.
    pub fn new(batch: &RecordBatch, binary: &[bool]) -> Result<Self> {
        let columns = batch
            .columns()
            .iter()
            .enumerate()
            .map(|(i, a)| Ok((Column::of(a)?, binary.get(i).copied().unwrap_or(false))))
            .collect::<Result<_>>()?;
        Ok(Self {
            columns,
            rows: batch.num_rows(),
        })
    }

    /// Rows in the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns in the batch.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Appends the text of one value; false, and nothing appended, for NULL.
    pub fn put_value_text(&self, out: &mut BytesMut, column: usize, row: usize, style: &TextStyle) -> bool {
        match self.columns.get(column) {
            Some((c, _)) if !c.array().is_null(row) => {
                c.put_text(out, row, style);
                true
            }
            _ => false,
        }
    }

    /// Appends one row in COPY's binary form.
    pub fn put_copy_binary(&self, out: &mut BytesMut, row: usize) {
        out.put_u16(u16::try_from(self.columns.len()).unwrap_or(u16::MAX));
        for (column, _) in &self.columns {
            if column.array().is_null(row) {
                out.put_i32(-1);
                continue;
            }
            let at = out.len();
            out.put_u32(0);
            column.put_binary(out, row);
            patch_length(out, at, out.len() - at - 4);
        }
    }

    /// Appends one row's message.
    pub fn put_row(&self, out: &mut BytesMut, row: usize, style: &TextStyle) {
        let start = out.len();
        out.put_slice(b"D\0\0\0\0");
        out.put_u16(u16::try_from(self.columns.len()).unwrap_or(u16::MAX));
        for (column, binary) in &self.columns {
            if column.array().is_null(row) {
                out.put_i32(-1);
                continue;
            }
            let at = out.len();
            out.put_u32(0);
            if *binary {
                column.put_binary(out, row);
            } else {
                column.put_text(out, row, style);
            }
            patch_length(out, at, out.len() - at - 4);
        }
        patch_length(out, start + 1, out.len() - start - 1);
    }
}

fn patch_length(out: &mut BytesMut, at: usize, length: usize) {
    // Values come out of Arrow arrays with 32-bit offsets, so they fit.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// The text of one value, for messages such as `Failing row contains (…)`.
///
/// # Errors
/// The type has no PostgreSQL form.
pub fn value_text(array: &ArrayRef, row: usize, style: &TextStyle) -> Result<Option<String>> {
    if array.is_null(row) {
        return Ok(None);
    }
    let mut out = BytesMut::new();
    Column::of(&array.slice(row, 1))?.put_text(&mut out, 0, style);
    Ok(Some(String::from_utf8_lossy(&out).into_owned()))
}

/// Appends a bytea.
fn put_bytea(out: &mut impl BufMut, raw: &[u8], escape: bool) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    if !escape {
        out.put_slice(b"\\x");
        for &b in raw {
            out.put_slice(&[HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
        return;
    }
    for &b in raw {
        match b {
            b'\\' => out.put_slice(b"\\\\"),
            0x20..=0x7e => out.put_u8(b),
            _ => out.put_slice(&[b'\\', b'0' + (b >> 6), b'0' + (b >> 3 & 7), b'0' + (b & 7)]),
        }
    }
}

/// Appends a signed integer.
pub fn put_i64(out: &mut impl BufMut, v: i64) {
    if v < 0 {
        out.put_u8(b'-');
    }
    put_u64(out, v.unsigned_abs());
}

/// Appends an unsigned integer.
pub fn put_u64(out: &mut impl BufMut, v: u64) {
    put_padded(out, v, 1);
}

/// Appends an unsigned integer with at least `width` digits.
pub fn put_padded(out: &mut impl BufMut, mut v: u64, width: usize) {
    let mut buffer = [b'0'; 20];
    let mut at = 20;
    while v > 0 {
        at -= 1;
        buffer[at] = b'0' + u8::try_from(v % 10).unwrap_or(0);
        v /= 10;
    }
    out.put_slice(&buffer[at.min(20 - width.min(20))..]);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Array, ListBuilder, StringBuilder};

    use super::*;

    #[test]
    fn a_row_is_one_message() {
        let batch = RecordBatch::try_from_iter([
            ("a", Arc::new(Int32Array::from(vec![Some(-7), None])) as ArrayRef),
            ("b", Arc::new(StringArray::from(vec!["x", ""])) as ArrayRef),
        ])
        .expect("batch");
        let encoder = BatchEncoder::new(&batch, &[false, false]).expect("encoder");
        let mut out = BytesMut::new();
        encoder.put_row(&mut out, 0, &TextStyle::default());
        assert_eq!(&out[..], b"D\0\0\0\x11\0\x02\0\0\0\x02-7\0\0\0\x01x");
        out.clear();
        encoder.put_row(&mut out, 1, &TextStyle::default());
        assert_eq!(&out[..], b"D\0\0\0\x0e\0\x02\xff\xff\xff\xff\0\0\0\0");
        let encoder = BatchEncoder::new(&batch, &[true, true]).expect("encoder");
        out.clear();
        encoder.put_row(&mut out, 0, &TextStyle::default());
        assert_eq!(&out[..], b"D\0\0\0\x13\0\x02\0\0\0\x04\xff\xff\xff\xf9\0\0\0\x01x");
    }

    #[test]
    fn bytea_and_lists_have_postgresqls_form() {
        let mut out = Vec::new();
        put_bytea(&mut out, b"\x00\xffa\\", false);
        assert_eq!(out, b"\\x00ff615c");
        out.clear();
        put_bytea(&mut out, b"\x00\xffa\\", true);
        assert_eq!(out, b"\\000\\377a\\\\");
        let mut lists = ListBuilder::new(StringBuilder::new());
        lists.append_value([Some("a"), Some("b c"), None, Some("")]);
        let array: ArrayRef = Arc::new(lists.finish());
        assert_eq!(
            value_text(&array, 0, &TextStyle::default()).expect("list").as_deref(),
            Some("{a,\"b c\",NULL,\"\"}")
        );
        let batch = RecordBatch::try_from_iter([("a", array)]).expect("batch");
        let mut out = BytesMut::new();
        BatchEncoder::new(&batch, &[true])
            .expect("encoder")
            .put_copy_binary(&mut out, 0);
        let mut expected = vec![
            0, 1, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 4, 0, 0, 0, 1,
        ];
        expected.extend(b"\0\0\0\x01a\0\0\0\x03b c\xff\xff\xff\xff\0\0\0\0");
        assert_eq!(&out[..], expected);
    }
}
