//! Rows as bytes: PostgreSQL's text form, JSON as `to_json` writes it, CSV as COPY writes it, and COPY's binary form.
//!
//! | type | text, CSV | JSON |
//! | --- | --- | --- |
//! | boolean | `t`, `f` | `true`, `false` |
//! | integers, numeric | digits | the same digits, a JSON number |
//! | real, double precision | shortest digits that read back the same | a JSON number; `"NaN"`, `"Infinity"` as strings |
//! | text | itself | string |
//! | bytea | `\x6c76` | the same as a string |
//! | date, timestamp | `2013-01-01 05:00:00` | `"2013-01-01T05:00:00"` |
//! | timestamptz | `2013-01-01 05:00:00+00` | `"2013-01-01T05:00:00+00:00"` |
//! | time, timetz, interval, uuid | `1 mon 2 days` | the same as a string |
//! | json, jsonb | itself | itself, as a part of the record |
//!
//! Every value reads back as the same value.

use std::io::Write;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, LargeBinaryArray,
    PrimitiveArray, RecordBatch, StringArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, SchemaRef, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType, i256,
};
use levee_planner::sql::clock::{ZonedTime, format_time, format_timetz};
use levee_planner::sql::datetime::{format_date, format_timestamp, format_timestamptz};
use levee_planner::sql::text::{
    format_bytea, format_float4, format_float8, format_interval, format_numeric, format_uuid,
};
use levee_planner::sql::{json, types};

use crate::{Result, RuntimeError};

/// Microseconds from 1970 to 2000, PostgreSQL's epoch.
const PG_EPOCH_US: i64 = 946_684_800_000_000;
/// Days from 1970 to 2000.
const PG_EPOCH_DAYS: i32 = 10_957;

/// A column of a batch, its type resolved once.
pub(super) enum Column<'a> {
    Bool(&'a BooleanArray),
    Int16(&'a PrimitiveArray<Int16Type>),
    Int32(&'a PrimitiveArray<Int32Type>),
    Int64(&'a PrimitiveArray<Int64Type>),
    Float32(&'a PrimitiveArray<Float32Type>),
    Float64(&'a PrimitiveArray<Float64Type>),
    Decimal128(&'a PrimitiveArray<Decimal128Type>),
    Decimal256(&'a PrimitiveArray<Decimal256Type>),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    Date(&'a PrimitiveArray<Date32Type>),
    Timestamp(&'a PrimitiveArray<TimestampMicrosecondType>, bool),
    Interval(&'a PrimitiveArray<IntervalMonthDayNanoType>),
    Time(&'a PrimitiveArray<Time64MicrosecondType>),
    Timetz(&'a FixedSizeBinaryArray),
    Uuid(&'a FixedSizeBinaryArray),
    Json(&'a BinaryViewArray),
    Jsonb(&'a LargeBinaryArray),
}

/// All types can be written.
///
/// # Errors
/// 0A000 names the first column that cannot.
pub(super) fn check_types(schema: &SchemaRef) -> Result<()> {
    for field in schema.fields() {
        if !types::is_in_records(field.data_type()) {
            return Err(RuntimeError::User {
                code: "0A000",
                message: format!(
                    "column \"{}\" of a sink has a type that sinks do not support",
                    field.name()
                ),
                hint: Some("Cast it to text.".to_owned()),
            });
        }
    }
    Ok(())
}

/// The columns of a batch.
///
/// # Errors
/// A type that [`check_types`] refuses.
pub(super) fn columns(batch: &RecordBatch) -> Result<Vec<Column<'_>>> {
    batch.columns().iter().map(Column::new).collect()
}

impl<'a> Column<'a> {
    fn new(array: &'a ArrayRef) -> Result<Self> {
        Ok(match array.data_type() {
            DataType::Boolean => Self::Bool(array.as_boolean()),
            DataType::Int16 => Self::Int16(array.as_primitive()),
            DataType::Int32 => Self::Int32(array.as_primitive()),
            DataType::Int64 => Self::Int64(array.as_primitive()),
            DataType::Float32 => Self::Float32(array.as_primitive()),
            DataType::Float64 => Self::Float64(array.as_primitive()),
            DataType::Decimal128(..) => Self::Decimal128(array.as_primitive()),
            DataType::Decimal256(..) => Self::Decimal256(array.as_primitive()),
            DataType::Utf8 => Self::Text(array.as_string()),
            DataType::Binary => Self::Bytes(array.as_binary()),
            DataType::Date32 => Self::Date(array.as_primitive()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => Self::Timestamp(array.as_primitive(), zone.is_some()),
            DataType::Interval(IntervalUnit::MonthDayNano) => Self::Interval(array.as_primitive()),
            &types::TIME => Self::Time(array.as_primitive()),
            &types::TIMETZ => Self::Timetz(array.as_fixed_size_binary()),
            &types::UUID => Self::Uuid(array.as_fixed_size_binary()),
            &types::JSON => Self::Json(array.as_binary_view()),
            &types::JSONB => Self::Jsonb(array.as_binary()),
            other => return Err(RuntimeError::internal(format!("a sink cannot write type {other}"))),
        })
    }

    fn array(&self) -> &dyn Array {
        match self {
            Self::Bool(a) => a,
            Self::Int16(a) => a,
            Self::Int32(a) => a,
            Self::Int64(a) => a,
            Self::Float32(a) => a,
            Self::Float64(a) => a,
            Self::Decimal128(a) => a,
            Self::Decimal256(a) => a,
            Self::Text(a) => a,
            Self::Bytes(a) => a,
            Self::Date(a) => a,
            Self::Timestamp(a, _) => a,
            Self::Interval(a) => a,
            Self::Time(a) => a,
            Self::Timetz(a) | Self::Uuid(a) => a,
            Self::Json(a) => a,
            Self::Jsonb(a) => a,
        }
    }

    /// NULL.
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.array().is_null(row)
    }

    /// The value's text; nothing for NULL.
    pub(super) fn put_text(&self, out: &mut Vec<u8>, row: usize) {
        if self.is_null(row) {
            return;
        }
        match self {
            Self::Bool(a) => out.push(if a.value(row) { b't' } else { b'f' }),
            Self::Int16(a) => put_display(out, a.value(row)),
            Self::Int32(a) => put_display(out, a.value(row)),
            Self::Int64(a) => put_display(out, a.value(row)),
            Self::Float32(a) => out.extend_from_slice(format_float4(a.value(row)).as_bytes()),
            Self::Float64(a) => out.extend_from_slice(format_float8(a.value(row)).as_bytes()),
            Self::Decimal128(_) | Self::Decimal256(_) => out.extend_from_slice(self.numeric(row).as_bytes()),
            Self::Text(a) => out.extend_from_slice(a.value(row).as_bytes()),
            Self::Bytes(a) => out.extend_from_slice(format_bytea(a.value(row)).as_bytes()),
            Self::Date(a) => out.extend_from_slice(format_date(a.value(row)).as_bytes()),
            Self::Timestamp(a, false) => out.extend_from_slice(format_timestamp(a.value(row)).as_bytes()),
            Self::Timestamp(a, true) => out.extend_from_slice(format_timestamptz(a.value(row)).as_bytes()),
            Self::Interval(a) => out.extend_from_slice(format_interval(a.value(row)).as_bytes()),
            Self::Time(a) => out.extend_from_slice(format_time(a.value(row)).as_bytes()),
            Self::Timetz(a) => out.extend_from_slice(format_timetz(ZonedTime::of_bytes(a.value(row))).as_bytes()),
            Self::Uuid(a) => out.extend_from_slice(format_uuid(a.value(row)).as_bytes()),
            Self::Json(a) => out.extend_from_slice(a.value(row)),
            Self::Jsonb(a) => out.extend_from_slice(json::text(a.value(row)).as_bytes()),
        }
    }

    fn numeric(&self, row: usize) -> String {
        match self {
            Self::Decimal128(a) => format_numeric(i256::from_i128(a.value(row)), a.data_type()),
            Self::Decimal256(a) => format_numeric(a.value(row), a.data_type()),
            _ => String::new(),
        }
    }

    /// The value as JSON.
    pub(super) fn put_json(&self, out: &mut Vec<u8>, row: usize) {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        match self {
            Self::Bool(a) => out.extend_from_slice(if a.value(row) { b"true" } else { b"false" }),
            Self::Int16(_) | Self::Int32(_) | Self::Int64(_) | Self::Decimal128(_) | Self::Decimal256(_) => {
                self.put_text(out, row);
            }
            // A record is one line. In JSON, line breaks stand between values only.
            Self::Json(a) => out.extend(
                a.value(row)
                    .iter()
                    .map(|&b| if matches!(b, b'\n' | b'\r') { b' ' } else { b }),
            ),
            Self::Jsonb(_) => self.put_text(out, row),
            Self::Float32(a) if a.value(row).is_finite() => self.put_text(out, row),
            Self::Float64(a) if a.value(row).is_finite() => self.put_text(out, row),
            Self::Text(a) => put_json_string(out, a.value(row)),
            Self::Timestamp(a, zoned) => put_json_string(out, &iso(&format_timestamp(a.value(row)), *zoned)),
            // None of these has a character that JSON escapes but bytea's backslash.
            _ => {
                let mut text = Vec::with_capacity(24);
                self.put_text(&mut text, row);
                put_json_string(out, &String::from_utf8_lossy(&text));
            }
        }
    }

    /// The value as COPY's binary form writes it: its length, then its bytes; −1 for NULL.
    pub(super) fn put_binary(&self, out: &mut Vec<u8>, row: usize) {
        if self.is_null(row) {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            return;
        }
        match self {
            Self::Bool(a) => put_field(out, &[u8::from(a.value(row))]),
            Self::Int16(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Int32(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Int64(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Float32(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Float64(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Decimal128(_) | Self::Decimal256(_) => put_numeric(out, &self.numeric(row)),
            Self::Text(a) => put_field(out, a.value(row).as_bytes()),
            Self::Bytes(a) => put_field(out, a.value(row)),
            Self::Date(a) => put_field(out, &a.value(row).wrapping_sub(PG_EPOCH_DAYS).to_be_bytes()),
            Self::Timestamp(a, _) => put_field(out, &a.value(row).wrapping_sub(PG_EPOCH_US).to_be_bytes()),
            Self::Interval(a) => {
                let v = a.value(row);
                out.extend_from_slice(&16_i32.to_be_bytes());
                out.extend_from_slice(&(v.nanoseconds / 1000).to_be_bytes());
                out.extend_from_slice(&v.days.to_be_bytes());
                out.extend_from_slice(&v.months.to_be_bytes());
            }
            Self::Time(a) => put_field(out, &a.value(row).to_be_bytes()),
            Self::Timetz(a) => {
                let v = ZonedTime::of_bytes(a.value(row));
                out.extend_from_slice(&12_i32.to_be_bytes());
                out.extend_from_slice(&v.us.to_be_bytes());
                out.extend_from_slice(&v.west.to_be_bytes());
            }
            Self::Uuid(a) => put_field(out, a.value(row)),
            Self::Json(a) => put_field(out, a.value(row)),
            Self::Jsonb(a) => {
                // The version of the form stands before the text.
                let text = json::text(a.value(row));
                put_field(out, &[&[1], text.as_bytes()].concat());
            }
        }
    }
}

fn put_display(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    if write!(out, "{value}").is_err() {
        tracing::trace!("writing to memory does not fail");
    }
}

fn put_field(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// A JSON string.
pub(super) fn put_json_string(out: &mut Vec<u8>, text: &str) {
    if serde_json::to_writer(&mut *out, text).is_err() {
        tracing::trace!("writing to memory does not fail");
    }
}

/// ISO 8601 from PostgreSQL's form.
fn iso(text: &str, zoned: bool) -> String {
    let (time, era) = match text.strip_suffix(" BC") {
        Some(time) => (time, " BC"),
        None => (text, ""),
    };
    let zone = if zoned { "+00:00" } else { "" };
    format!("{}{zone}{era}", time.replacen(' ', "T", 1))
}

/// numeric's binary form, from its digits: groups of four, the weight of the first, the sign, the digits shown after the point.
fn put_numeric(out: &mut Vec<u8>, text: &str) {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = whole.trim_start_matches('0').as_bytes();
    let fraction = fraction.as_bytes();
    let mut groups: Vec<u16> = Vec::with_capacity(whole.len() / 4 + fraction.len() / 4 + 2);
    let digit = |b: u8| u16::from(b - b'0');
    let lead = whole.len() % 4;
    if lead > 0 {
        groups.push(whole[..lead].iter().fold(0, |n, b| n * 10 + digit(*b)));
    }
    groups.extend(
        whole[lead..]
            .chunks(4)
            .map(|c| c.iter().fold(0, |n, b| n * 10 + digit(*b))),
    );
    let n_whole = groups.len() as i16;
    groups.extend(fraction.chunks(4).map(|c| {
        let n = c.iter().fold(0, |n, b| n * 10 + digit(*b));
        (c.len()..4).fold(n, |n, _| n * 10)
    }));
    let skipped = groups.iter().take_while(|g| **g == 0).count();
    let kept = groups.len() - groups.iter().rev().take_while(|g| **g == 0).count();
    let digits = groups.get(skipped..kept).unwrap_or_default();
    let weight = if digits.is_empty() {
        0
    } else {
        n_whole - 1 - skipped as i16
    };
    let sign: u16 = if negative && !digits.is_empty() { 0x4000 } else { 0 };
    out.extend_from_slice(&(8 + 2 * digits.len() as i32).to_be_bytes());
    out.extend_from_slice(&(digits.len() as i16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&(fraction.len() as i16).to_be_bytes());
    for group in digits {
        out.extend_from_slice(&group.to_be_bytes());
    }
}

/// Writes rows of one schema as JSON objects.
pub(super) struct JsonRows {
    names: Vec<Vec<u8>>,
}

impl JsonRows {
    /// For these columns, by index.
    pub(super) fn new(schema: &SchemaRef, columns: impl IntoIterator<Item = usize>) -> Self {
        let name = |c: usize| {
            let mut out = Vec::new();
            put_json_string(&mut out, schema.field(c).name());
            out.push(b':');
            out
        };
        Self {
            names: columns.into_iter().map(name).collect(),
        }
    }

    /// One object; `columns` are those that the writer was made for. `op`: a first member with the kind of change.
    pub(super) fn put(&self, out: &mut Vec<u8>, columns: &[&Column<'_>], row: usize, op: Option<&str>) {
        out.push(b'{');
        if let Some(op) = op {
            out.extend_from_slice(b"\"__op\":");
            put_json_string(out, op);
        }
        for (i, (name, column)) in self.names.iter().zip(columns).enumerate() {
            if i > 0 || op.is_some() {
                out.push(b',');
            }
            out.extend_from_slice(name);
            column.put_json(out, row);
        }
        out.push(b'}');
    }
}

/// Writes one row of CSV; NULL is nothing, an empty string is `""`.
pub(super) fn put_csv(out: &mut Vec<u8>, columns: &[Column<'_>], row: usize, op: Option<&str>) {
    let mut text = Vec::new();
    if let Some(op) = op {
        out.extend_from_slice(op.as_bytes());
    }
    for (i, column) in columns.iter().enumerate() {
        if i > 0 || op.is_some() {
            out.push(b',');
        }
        if column.is_null(row) {
            continue;
        }
        text.clear();
        column.put_text(&mut text, row);
        put_csv_field(out, &text);
    }
}

/// One field of CSV, quoted where needed.
pub(super) fn put_csv_field(out: &mut Vec<u8>, text: &[u8]) {
    let quote = text.is_empty() || text == b"\\." || text.iter().any(|b| matches!(b, b',' | b'"' | b'\n' | b'\r'));
    if !quote {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for b in text {
        if *b == b'"' {
            out.push(b'"');
        }
        out.push(*b);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal256Array, Float64Array, Int64Array, TimestampMicrosecondArray};
    use arrow::datatypes::{Field, Schema};
    use levee_planner::sql::functions::cast::cast_array;
    use levee_planner::sql::types::BARE_NUMERIC;

    use super::*;

    fn batch() -> RecordBatch {
        let numeric = |text: &str| levee_planner::sql::text::parse_numeric(text, 76, 38, true).unwrap();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(Int64Array::from(vec![Some(-5), None]))),
            ("f", Arc::new(Float64Array::from(vec![-0.0, f64::NAN]))),
            ("s", Arc::new(StringArray::from(vec!["a\"b,\n", ""]))),
            (
                "d",
                Arc::new(
                    Decimal256Array::from(vec![numeric("-12345.678"), numeric("0.00001")]).with_data_type(BARE_NUMERIC),
                ),
            ),
            (
                "t",
                Arc::new(TimestampMicrosecondArray::from(vec![0, 1_500_000]).with_timezone("UTC")),
            ),
            ("b", Arc::new(BinaryArray::from(vec![&b"lv"[..], b""]))),
        ];
        let fields: Vec<Field> = columns
            .iter()
            .map(|(n, a)| Field::new(*n, a.data_type().clone(), true))
            .collect();
        let arrays = columns.into_iter().map(|c| c.1).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
    }

    #[test]
    fn json_is_as_to_json_writes_it() {
        let batch = batch();
        let columns = columns(&batch).unwrap();
        let columns: Vec<&Column<'_>> = columns.iter().collect();
        let rows = JsonRows::new(&batch.schema(), 0..6);
        let mut out = Vec::new();
        rows.put(&mut out, &columns, 0, None);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"n":-5,"f":-0,"s":"a\"b,\n","d":-12345.678,"t":"1970-01-01T00:00:00+00:00","b":"\\x6c76"}"#
        );
        let mut out = Vec::new();
        rows.put(&mut out, &columns, 1, Some("delete"));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"__op":"delete","n":null,"f":"NaN","s":"","d":0.00001,"t":"1970-01-01T00:00:01.5+00:00","b":"\\x"}"#
        );
    }

    #[test]
    fn times_uuids_and_json_stand_in_one_line() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![
            "10:20:30.5",
            "10:20+05:30",
            "00000000-0000-0000-0000-00000000000A",
            "{\"a\":\n [1,\r\n \"\\n\"]}",
            "{\"b\": 1,\n\"a\": null}",
        ]));
        let types = [types::TIME, types::TIMETZ, types::UUID, types::JSON, types::JSONB];
        let names = ["t", "z", "u", "j", "k"];
        let fields = types
            .iter()
            .zip(names)
            .map(|(t, name)| Field::new(name, t.clone(), true));
        let arrays = types
            .iter()
            .enumerate()
            .map(|(i, t)| cast_array(&texts.slice(i, 1), t).unwrap());
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), arrays.collect()).unwrap();
        let columns = columns(&batch).unwrap();
        let columns: Vec<&Column<'_>> = columns.iter().collect();
        let mut out = Vec::new();
        JsonRows::new(&batch.schema(), 0..5).put(&mut out, &columns, 0, None);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"t":"10:20:30.5","z":"10:20:00+05:30","u":"00000000-0000-0000-0000-00000000000a","j":{"a":  [1,   "\n"]},"k":{"a": null, "b": 1}}"#
        );
        let mut out = Vec::new();
        columns[0].put_binary(&mut out, 0);
        columns[1].put_binary(&mut out, 0);
        let us = (10 * 3600 + 20 * 60) * 1_000_000_i64;
        let expected = [
            &8_i32.to_be_bytes()[..],
            &(us + 30_500_000).to_be_bytes(),
            &12_i32.to_be_bytes(),
            &us.to_be_bytes(),
            &(-19_800_i32).to_be_bytes(),
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn csv_tells_null_from_empty() {
        let batch = batch();
        let columns = columns(&batch).unwrap();
        let mut out = Vec::new();
        put_csv(&mut out, &columns, 0, Some("insert"));
        out.push(b'|');
        put_csv(&mut out, &columns, 1, None);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "insert,-5,-0,\"a\"\"b,\n\",-12345.678,1970-01-01 00:00:00+00,\\x6c76|,NaN,\"\",0.00001,1970-01-01 00:00:01.5+00,\\x"
        );
    }

    #[test]
    fn numeric_is_cut_into_groups_of_four() {
        let groups = |text: &str| {
            let mut out = Vec::new();
            put_numeric(&mut out, text);
            let words: Vec<i16> = out[4..].chunks(2).map(|c| i16::from_be_bytes([c[0], c[1]])).collect();
            assert_eq!(out[..4], (2 * words.len() as i32).to_be_bytes());
            words
        };
        assert_eq!(groups("0"), [0, 0, 0, 0]);
        assert_eq!(groups("0.00"), [0, 0, 0, 2]);
        assert_eq!(groups("-12345.678"), [3, 1, 0x4000, 3, 1, 2345, 6780]);
        assert_eq!(groups("10000"), [1, 1, 0, 0, 1]);
        assert_eq!(groups("0.00001"), [1, -2, 0, 5, 1000]);
        assert_eq!(groups("70000000.5"), [3, 1, 0, 1, 7000, 0, 5000]);
    }
}
