//! Text and binary values → Arrow builders: parameters, COPY fields, anything a client hands in.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BinaryViewBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Decimal256Builder,
    FixedSizeBinaryBuilder, Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    IntervalMonthDayNanoBuilder, LargeBinaryBuilder, ListArray, StringBuilder, Time64MicrosecondBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalMonthDayNano, IntervalUnit, TimeUnit};
use datafusion::scalar::ScalarValue;
use levee_planner::sql::clock::{self, ZonedTime};
use levee_planner::sql::types::{
    JSON, JSONB, TIME, TIMETZ, UUID, base_name, is_character, time_precision, varchar_length,
};
use levee_planner::sql::{array_text, json, round_times, text};

use super::datetime::{DAY_US, PG_EPOCH_DAYS, PG_EPOCH_US, parse_date, parse_timestamp, parse_timestamptz};
use super::float::{parse_f32, parse_f64, parse_int};
use super::interval::{Interval, parse_interval};
use super::zone::Zone;
use super::{invalid_syntax, numeric, trim};
use crate::error::{Result, SqlError};
use crate::wire::frontend::invalid_utf8;

/// Builds one column from external values.
#[derive(Debug)]
pub struct ColumnInput {
    builder: Builder,
    data_type: DataType,
    length_max: Option<usize>,
    /// Blanks at the end do not count.
    trimmed: bool,
    /// Digits of a second, if fewer than six.
    precision: Option<u32>,
}

#[derive(Debug)]
enum Builder {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Decimal128(Decimal128Builder, u8, i8),
    Decimal256(Decimal256Builder, u8, i8),
    Text(StringBuilder),
    Bytea(BinaryBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Timestamptz(TimestampMicrosecondBuilder),
    Time(Time64MicrosecondBuilder),
    Timetz(FixedSizeBinaryBuilder),
    Interval(IntervalMonthDayNanoBuilder),
    Uuid(FixedSizeBinaryBuilder),
    Json(BinaryViewBuilder),
    Jsonb(LargeBinaryBuilder),
    List(Box<Elements>),
}

/// Arrays under construction.
#[derive(Debug)]
struct Elements {
    item: FieldRef,
    values: ColumnInput,
    lengths: Vec<usize>,
    valid: Vec<bool>,
}

impl Elements {
    fn end(&mut self, length: usize, valid: bool) {
        self.lengths.push(length);
        self.valid.push(valid);
    }

    fn text(&mut self, text: &str, zone: &Zone) -> Result<()> {
        let items = array_text::parse(text)?;
        for item in &items {
            match item {
                Some(item) => self.values.text(item, zone)?,
                None => self.values.null(),
            }
        }
        self.end(items.len(), true);
        Ok(())
    }

    /// The form that [`super::encode`] writes.
    fn binary(&mut self, raw: &[u8]) -> Result<()> {
        let mut at = Words(raw);
        let (dimensions, _flags, _item) = (at.word()?, at.word()?, at.word()?);
        if dimensions == 0 {
            self.end(0, true);
            return Ok(());
        }
        if dimensions != 1 {
            return Err(array_text::several_dimensions().into());
        }
        let length = usize::try_from(at.word()?).map_err(|_| bad_binary())?;
        let _lower_bound = at.word()?;
        for _ in 0..length {
            match at.word()? {
                -1 => self.values.null(),
                n => {
                    let n = usize::try_from(n).map_err(|_| bad_binary())?;
                    let (value, rest) = at.0.split_at_checked(n).ok_or_else(bad_binary)?;
                    at.0 = rest;
                    self.values.binary(value)?;
                }
            }
        }
        self.end(length, true);
        Ok(())
    }

    fn finish(&mut self) -> ArrayRef {
        let offsets = OffsetBuffer::from_lengths(std::mem::take(&mut self.lengths));
        let nulls = NullBuffer::from(std::mem::take(&mut self.valid));
        Arc::new(ListArray::new(
            Arc::clone(&self.item),
            offsets,
            self.values.values(),
            Some(nulls),
        ))
    }
}

/// Reads 32-bit words.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn word(&mut self) -> Result<i32> {
        let (word, rest) = self.0.split_first_chunk::<4>().ok_or_else(bad_binary)?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*word))
    }
}

fn bad_binary() -> SqlError {
    SqlError::new("22P03", "incorrect binary data format in bind parameter")
}

impl ColumnInput {
    /// For values of a column's type.
    ///
    /// # Errors
    /// 0A000: the type has no input form here.
    pub fn new(field: &Field) -> Result<Self> {
        let t = field.data_type();
        let builder = match t {
            DataType::Boolean => Builder::Bool(BooleanBuilder::new()),
            DataType::Int16 => Builder::Int2(Int16Builder::new()),
            DataType::Int32 => Builder::Int4(Int32Builder::new()),
            DataType::Int64 => Builder::Int8(Int64Builder::new()),
            DataType::Float32 => Builder::Float4(Float32Builder::new()),
            DataType::Float64 => Builder::Float8(Float64Builder::new()),
            DataType::Decimal128(p, s) => {
                Builder::Decimal128(Decimal128Builder::new().with_data_type(t.clone()), *p, *s)
            }
            DataType::Decimal256(p, s) => {
                Builder::Decimal256(Decimal256Builder::new().with_data_type(t.clone()), *p, *s)
            }
            DataType::Utf8 => Builder::Text(StringBuilder::new()),
            DataType::Binary => Builder::Bytea(BinaryBuilder::new()),
            DataType::Date32 => Builder::Date(Date32Builder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, None) => Builder::Timestamp(TimestampMicrosecondBuilder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
                Builder::Timestamptz(TimestampMicrosecondBuilder::new().with_data_type(t.clone()))
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => Builder::Interval(IntervalMonthDayNanoBuilder::new()),
            &TIME => Builder::Time(Time64MicrosecondBuilder::new()),
            &TIMETZ => Builder::Timetz(FixedSizeBinaryBuilder::new(12)),
            &UUID => Builder::Uuid(FixedSizeBinaryBuilder::new(16)),
            &JSON => Builder::Json(BinaryViewBuilder::new()),
            &JSONB => Builder::Jsonb(LargeBinaryBuilder::new()),
            DataType::List(item) => Builder::List(Box::new(Elements {
                item: Arc::clone(item),
                values: Self::new(item)?,
                lengths: Vec::new(),
                valid: Vec::new(),
            })),
            _ => {
                return Err(SqlError::unsupported(format!(
                    "values of type {} cannot be read",
                    base_name(t)
                )));
            }
        };
        Ok(Self {
            builder,
            data_type: t.clone(),
            length_max: varchar_length(field),
            trimmed: is_character(field),
            precision: time_precision(field),
        })
    }

    /// Adds NULL.
    pub fn null(&mut self) {
        match &mut self.builder {
            Builder::Bool(b) => b.append_null(),
            Builder::Int2(b) => b.append_null(),
            Builder::Int4(b) => b.append_null(),
            Builder::Int8(b) => b.append_null(),
            Builder::Float4(b) => b.append_null(),
            Builder::Float8(b) => b.append_null(),
            Builder::Decimal128(b, ..) => b.append_null(),
            Builder::Decimal256(b, ..) => b.append_null(),
            Builder::Text(b) => b.append_null(),
            Builder::Bytea(b) => b.append_null(),
            Builder::Date(b) => b.append_null(),
            Builder::Timestamp(b) | Builder::Timestamptz(b) => b.append_null(),
            Builder::Interval(b) => b.append_null(),
            Builder::Time(b) => b.append_null(),
            Builder::Timetz(b) => b.append_null(),
            Builder::Uuid(b) => b.append_null(),
            Builder::Json(b) => b.append_null(),
            Builder::Jsonb(b) => b.append_null(),
            Builder::List(b) => b.end(0, false),
        }
    }

    /// Adds a value in text form.
    ///
    /// # Errors
    /// 22P02, 22003, 22007, 22008, 22001 and their like, in PostgreSQL's words.
    pub fn text(&mut self, text: &str, zone: &Zone) -> Result<()> {
        match &mut self.builder {
            Builder::Bool(b) => b.append_value(parse_bool(text)?),
            Builder::Int2(b) => b.append_value(narrow(parse_int(text, "smallint", i16::MIN.into(), i16::MAX.into())?)?),
            Builder::Int4(b) => b.append_value(narrow(parse_int(text, "integer", i32::MIN.into(), i32::MAX.into())?)?),
            Builder::Int8(b) => b.append_value(parse_int(text, "bigint", i64::MIN, i64::MAX)?),
            Builder::Float4(b) => b.append_value(parse_f32(text)?),
            Builder::Float8(b) => b.append_value(parse_f64(text)?),
            Builder::Decimal128(b, p, s) => {
                let v = numeric::parse(text, *p, *s, &self.data_type)?;
                b.append_value(
                    v.to_i128()
                        .ok_or_else(|| SqlError::new("22003", "numeric field overflow"))?,
                );
            }
            Builder::Decimal256(b, p, s) => b.append_value(numeric::parse(text, *p, *s, &self.data_type)?),
            Builder::Text(b) => b.append_value(fit(text, self.length_max, self.trimmed)?),
            Builder::Bytea(b) => b.append_value(parse_bytea(text)?),
            Builder::Date(b) => b.append_value(parse_date(text)?),
            Builder::Timestamp(b) => b.append_value(parse_timestamp(text)?),
            Builder::Timestamptz(b) => b.append_value(parse_timestamptz(text, zone)?),
            Builder::Interval(b) => b.append_value(month_day_nano(parse_interval(text)?, text)?),
            Builder::Time(b) => {
                b.append_value(clock::parse_time(text).map_err(|e| e.error("time", text))?);
            }
            Builder::Timetz(b) => {
                let value = clock::parse_timetz(text).map_err(|e| e.error(base_name(&TIMETZ), text))?;
                b.append_value(value.to_bytes())?;
            }
            Builder::Uuid(b) => {
                let value = text::parse_uuid(text).map_err(|_| invalid_syntax("uuid", text))?;
                b.append_value(value)?;
            }
            Builder::Json(b) => {
                json::validate(text)?;
                b.append_value(text);
            }
            Builder::Jsonb(b) => b.append_value(json::jsonb_of_text(text)?),
            Builder::List(b) => b.text(text, zone)?,
        }
        Ok(())
    }

    /// Adds a value in binary form.
    ///
    /// # Errors
    /// 22P03 for a wrong length or content.
    pub fn binary(&mut self, raw: &[u8]) -> Result<()> {
        match &mut self.builder {
            Builder::Bool(b) => b.append_value(fixed::<1>(raw)?[0] != 0),
            Builder::Int2(b) => b.append_value(i16::from_be_bytes(fixed(raw)?)),
            Builder::Int4(b) => b.append_value(i32::from_be_bytes(fixed(raw)?)),
            Builder::Int8(b) => b.append_value(i64::from_be_bytes(fixed(raw)?)),
            Builder::Float4(b) => b.append_value(f32::from_be_bytes(fixed(raw)?)),
            Builder::Float8(b) => b.append_value(f64::from_be_bytes(fixed(raw)?)),
            Builder::Decimal128(b, p, s) => {
                let v = numeric::parse_binary(raw, *p, *s, &self.data_type)?;
                b.append_value(
                    v.to_i128()
                        .ok_or_else(|| SqlError::new("22003", "numeric field overflow"))?,
                );
            }
            Builder::Decimal256(b, p, s) => b.append_value(numeric::parse_binary(raw, *p, *s, &self.data_type)?),
            Builder::Text(b) => b.append_value(fit(utf8(raw)?, self.length_max, self.trimmed)?),
            Builder::Bytea(b) => b.append_value(raw),
            Builder::Date(b) => b.append_value(match i32::from_be_bytes(fixed(raw)?) {
                d @ (i32::MAX | i32::MIN) => d,
                d => d
                    .checked_add(PG_EPOCH_DAYS)
                    .ok_or_else(|| SqlError::new("22008", "date out of range"))?,
            }),
            Builder::Timestamp(b) | Builder::Timestamptz(b) => b.append_value(match i64::from_be_bytes(fixed(raw)?) {
                us @ (i64::MAX | i64::MIN) => us,
                us => us
                    .checked_add(PG_EPOCH_US)
                    .ok_or_else(|| SqlError::new("22008", "timestamp out of range"))?,
            }),
            Builder::Interval(b) => {
                let [a, c, d, e, f, g, h, i, rest @ ..] = fixed::<16>(raw)?;
                let [j, k, l, m, n, o, p, q] = rest;
                let v = Interval {
                    us: i64::from_be_bytes([a, c, d, e, f, g, h, i]),
                    days: i32::from_be_bytes([j, k, l, m]),
                    months: i32::from_be_bytes([n, o, p, q]),
                };
                b.append_value(month_day_nano(v, "interval")?);
            }
            Builder::Time(b) => b.append_value(time_of_day(i64::from_be_bytes(fixed(raw)?))?),
            Builder::Timetz(b) => {
                let [us @ .., w, x, y, z] = fixed::<12>(raw)?;
                let west = i32::from_be_bytes([w, x, y, z]);
                if west.abs() >= 16 * 3600 {
                    return Err(SqlError::new("22009", "time zone displacement out of range"));
                }
                let us = time_of_day(i64::from_be_bytes(us))?;
                b.append_value(ZonedTime { us, west }.to_bytes())?;
            }
            Builder::Uuid(b) => b.append_value(fixed::<16>(raw)?)?,
            Builder::Json(b) => {
                let text = utf8(raw)?;
                json::validate(text)?;
                b.append_value(text);
            }
            Builder::Jsonb(b) => match raw.split_first() {
                Some((1, text)) => b.append_value(json::jsonb_of_text(utf8(text)?)?),
                Some((version, _)) => {
                    return Err(SqlError::new(
                        "XX000",
                        format!("unsupported jsonb version number {version}"),
                    ));
                }
                None => return Err(bad_binary()),
            },
            Builder::List(b) => b.binary(raw)?,
        }
        Ok(())
    }

    /// The column so far; the builder starts anew.
    ///
    /// # Errors
    /// 22008: a time that is out of range when it is rounded to the column's precision.
    pub fn finish(&mut self) -> Result<ArrayRef> {
        let array = self.values();
        match self.precision {
            Some(digits) => Ok(round_times(&array, digits)?),
            None => Ok(array),
        }
    }

    fn values(&mut self) -> ArrayRef {
        match &mut self.builder {
            Builder::Bool(b) => Arc::new(b.finish()),
            Builder::Int2(b) => Arc::new(b.finish()),
            Builder::Int4(b) => Arc::new(b.finish()),
            Builder::Int8(b) => Arc::new(b.finish()),
            Builder::Float4(b) => Arc::new(b.finish()),
            Builder::Float8(b) => Arc::new(b.finish()),
            Builder::Decimal128(b, ..) => Arc::new(b.finish()),
            Builder::Decimal256(b, ..) => Arc::new(b.finish()),
            Builder::Text(b) => Arc::new(b.finish()),
            Builder::Bytea(b) => Arc::new(b.finish()),
            Builder::Date(b) => Arc::new(b.finish()),
            Builder::Timestamp(b) | Builder::Timestamptz(b) => Arc::new(b.finish()),
            Builder::Interval(b) => Arc::new(b.finish()),
            Builder::Time(b) => Arc::new(b.finish()),
            Builder::Timetz(b) => Arc::new(b.finish()),
            Builder::Uuid(b) => Arc::new(b.finish()),
            Builder::Json(b) => Arc::new(b.finish()),
            Builder::Jsonb(b) => Arc::new(b.finish()),
            Builder::List(b) => b.finish(),
        }
    }
}

/// One parameter as a scalar.
///
/// # Errors
/// As [`ColumnInput::text`] and [`ColumnInput::binary`].
pub fn scalar(t: &DataType, raw: Option<&[u8]>, binary: bool, zone: &Zone) -> Result<ScalarValue> {
    let mut input = ColumnInput::new(&Field::new("", t.clone(), true))?;
    match raw {
        None => input.null(),
        Some(raw) if binary => input.binary(raw)?,
        Some(raw) => input.text(utf8(raw)?, zone)?,
    }
    Ok(ScalarValue::try_from_array(&input.finish()?, 0)?)
}

fn utf8(raw: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(raw).map_err(|e| invalid_utf8(raw, e.valid_up_to()))?;
    match text.bytes().position(|b| b == 0) {
        Some(at) => Err(invalid_utf8(&raw[..=at], at)),
        None => Ok(text),
    }
}

fn time_of_day(us: i64) -> Result<i64> {
    match us {
        0..=DAY_US => Ok(us),
        _ => Err(SqlError::new("22008", "time out of range")),
    }
}

fn narrow<T: TryFrom<i64>>(v: i64) -> Result<T> {
    T::try_from(v).map_err(|_| SqlError::new("22003", "integer out of range"))
}

fn fixed<const N: usize>(raw: &[u8]) -> Result<[u8; N]> {
    raw.try_into().map_err(|_| bad_binary())
}

fn month_day_nano(v: Interval, text: &str) -> Result<IntervalMonthDayNano> {
    let nanoseconds =
        v.us.checked_mul(1000)
            .ok_or_else(|| SqlError::new("22015", format!("interval field value out of range: \"{text}\"")))?;
    Ok(IntervalMonthDayNano::new(v.months, v.days, nanoseconds))
}

/// Checks `varchar(n)`: too many characters are an error unless the excess is blanks, which are cut off.
fn fit(text: &str, length_max: Option<usize>, trimmed: bool) -> Result<&str> {
    let Some(n) = length_max else { return Ok(text) };
    let text = if trimmed { text.trim_end_matches(' ') } else { text };
    if text.len() <= n {
        return Ok(text);
    }
    match text.char_indices().nth(n) {
        None => Ok(text),
        Some((cut, _)) if text[cut..].bytes().all(|b| b == b' ') => Ok(&text[..cut]),
        Some(_) => Err(SqlError::new(
            "22001",
            format!(
                "value too long for type character{}({n})",
                if trimmed { "" } else { " varying" }
            ),
        )),
    }
}

/// Reads a boolean: any unambiguous prefix of true, false, yes, no, on, off; 1 and 0.
///
/// # Errors
/// 22P02.
pub fn parse_bool(text: &str) -> Result<bool> {
    let t = trim(text).to_ascii_lowercase();
    let prefix = |word: &str, least: usize| t.len() >= least && word.starts_with(&t);
    if prefix("true", 1) || prefix("yes", 1) || t == "on" || t == "1" {
        Ok(true)
    } else if prefix("false", 1) || prefix("no", 1) || prefix("off", 2) || t == "0" {
        Ok(false)
    } else {
        Err(invalid_syntax("boolean", text))
    }
}

/// Reads a bytea in hex or escape form.
///
/// # Errors
/// 22023, 22P02.
pub fn parse_bytea(text: &str) -> Result<Vec<u8>> {
    if let Some(hex) = text.strip_prefix("\\x") {
        let digits: Vec<char> = hex.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let digit = |c: char| {
            c.to_digit(16)
                .and_then(|d| u8::try_from(d).ok())
                .ok_or_else(|| SqlError::new("22023", format!("invalid hexadecimal digit: \"{c}\"")))
        };
        if !digits.len().is_multiple_of(2) {
            return Err(SqlError::new("22023", "invalid hexadecimal data: odd number of digits"));
        }
        return digits
            .chunks_exact(2)
            .map(|p| Ok(digit(p[0])? << 4 | digit(p[1])?))
            .collect();
    }
    let b = text.as_bytes();
    let mut out = Vec::with_capacity(b.len());
    let mut i = 0;
    while i < b.len() {
        if b[i] != b'\\' {
            out.push(b[i]);
            i += 1;
            continue;
        }
        match b.get(i + 1..i + 4) {
            _ if b.get(i + 1) == Some(&b'\\') => {
                out.push(b'\\');
                i += 2;
            }
            Some(&[x @ b'0'..=b'3', y @ b'0'..=b'7', z @ b'0'..=b'7']) => {
                out.push((x - b'0') << 6 | (y - b'0') << 3 | (z - b'0'));
                i += 4;
            }
            _ => return Err(SqlError::new("22P02", "invalid input syntax for type bytea")),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_take_postgresqls_spellings() {
        for t in ["t", "TRUE", "y", "yes", "on", "1", " tr "] {
            assert!(parse_bool(t).expect(t));
        }
        for f in ["f", "false", "n", "no", "off", "of", "0"] {
            assert!(!parse_bool(f).expect(f));
        }
        for bad in ["", "o", "2", "truth"] {
            assert_eq!(parse_bool(bad).expect_err(bad).code(), "22P02");
        }
    }

    #[test]
    fn bytea_reads_both_forms() {
        assert_eq!(parse_bytea("\\xDEad 00").expect("hex"), [0xde, 0xad, 0]);
        assert_eq!(parse_bytea("a\\\\b\\001").expect("escape"), b"a\\b\x01");
        assert!(parse_bytea("\\xabc").is_err());
        assert!(parse_bytea("a\\9").is_err());
    }

    #[test]
    fn arrays_and_json_read_both_forms() {
        let zone = Zone::default();
        let ints = levee_planner::sql::types::list_of(DataType::Int32);
        let text = scalar(&ints, Some(b"{1,NULL}"), false, &zone).expect("text");
        let raw = [
            0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 255, 255, 255, 255,
        ];
        assert_eq!(scalar(&ints, Some(&raw), true, &zone).expect("binary"), text);
        assert_eq!(text.to_string(), "[1, ]");
        for cut in 0..raw.len() {
            assert_eq!(
                scalar(&ints, Some(&raw[..cut]), true, &zone).expect_err("cut").code(),
                "22P03"
            );
        }
        let two = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 23];
        assert_eq!(scalar(&ints, Some(&two), true, &zone).expect_err("two").code(), "0A000");
        let doc = scalar(&JSONB, Some(b"{\"a\": [1.0]}"), false, &zone).expect("text");
        assert_eq!(
            scalar(&JSONB, Some(b"\x01{\"a\":[1]}"), true, &zone).expect("binary"),
            doc
        );
        assert_eq!(
            scalar(&JSON, Some(b"{"), false, &zone).expect_err("json").code(),
            "22P02"
        );
    }

    #[test]
    fn varchar_cuts_blanks_only() {
        assert_eq!(fit("äb  ", Some(2), false).expect("blanks"), "äb");
        assert_eq!(fit("a  ", Some(2), false).expect("blanks"), "a ");
        assert_eq!(fit("a  ", Some(2), true).expect("blanks"), "a");
        assert_eq!(fit("abc", Some(2), false).expect_err("long").code(), "22001");
    }
}
