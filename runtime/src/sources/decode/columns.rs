//! Slots of one column → an Arrow array.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BinaryViewBuilder, BooleanBuilder, FixedSizeBinaryArray, LargeBinaryBuilder,
    PrimitiveArray, StringArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Decimal256Type, Field, Float32Type, Float64Type,
    Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType, i256,
};
use levee_planner::PlanError;
use levee_planner::catalog::SourceFormat;
use levee_planner::connectors::encode::{JsonOptions, NumberUnit};
use levee_planner::sql::clock::{self, ZonedTime};
use levee_planner::sql::text::{self, Failure as TextFailure};
use levee_planner::sql::{datetime, json, round_times, types};

use super::Change;
use super::slots::{Broken, Cell, Cells};
use crate::{Result, RuntimeError};

/// Microseconds since 1970 of PostgreSQL's first timestamp, 4713-01-01 BC in its Julian calendar.
const TIMESTAMP_MIN_US: i64 = -210_866_803_200_000_000;

/// A column and how its values are read.
#[derive(Debug)]
pub(super) struct Column {
    name: String,
    data_type: DataType,
    type_name: &'static str,
    required: bool,
    in_key: bool,
    /// `varchar(n)` or `character(n)`.
    length_max: Option<usize>,
    /// `character(n)`.
    blank_padded: bool,
    /// Digits of a second, if fewer than six.
    precision: Option<u32>,
    unit: Option<NumberUnit>,
    debezium: bool,
    /// A value that is none of the type is NULL and breaks nothing.
    null_for_invalid: bool,
    /// Texts of json columns are JSON, not strings in JSON.
    text_is_json: bool,
}

impl Column {
    /// # Errors
    /// 0A000: values of the type cannot be read.
    pub(super) fn new(field: &Field, in_key: bool, json: &JsonOptions, format: SourceFormat) -> Result<Self> {
        let data_type = field.data_type().clone();
        if !types::is_in_records(&data_type) {
            return Err(RuntimeError::user(
                "0A000",
                format!(
                    "column \"{}\": values of type {} cannot be read from records",
                    field.name(),
                    types::base_name(&data_type)
                ),
            ));
        }
        Ok(Self {
            name: field.name().clone(),
            type_name: types::base_name(&data_type),
            data_type,
            required: !field.is_nullable(),
            in_key,
            length_max: types::varchar_length(field),
            blank_padded: types::is_character(field),
            precision: types::time_precision(field),
            unit: json.timestamp_unit,
            debezium: format == SourceFormat::Debezium,
            null_for_invalid: json.null_for_invalid && field.is_nullable() && !in_key,
            text_is_json: false,
        })
    }

    /// For records in which all values are texts.
    pub(super) fn of_texts(self) -> Self {
        Self {
            text_is_json: true,
            ..self
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The column's values; rows that it finds broken hold anything.
    ///
    /// # Errors
    /// More text than an array can hold.
    pub(super) fn convert(&self, cells: &Cells<'_>, broken: &mut Broken) -> Result<ArrayRef> {
        let array = self.read(cells, broken)?;
        match self.precision {
            None => Ok(array),
            Some(digits) => round_times(&array, digits).map_err(|e| RuntimeError::internal(e.message)),
        }
    }

    fn read(&self, cells: &Cells<'_>, broken: &mut Broken) -> Result<ArrayRef> {
        Ok(match &self.data_type {
            DataType::Boolean => self.booleans(cells, broken),
            DataType::Int16 => self.ints::<Int16Type>(cells, broken, i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => self.ints::<Int32Type>(cells, broken, i32::MIN.into(), i32::MAX.into()),
            DataType::Int64 => self.ints::<Int64Type>(cells, broken, i64::MIN, i64::MAX),
            DataType::Float32 => self.parsed::<Float32Type>(cells, broken, text::parse_float4),
            DataType::Float64 => self.parsed::<Float64Type>(cells, broken, text::parse_float8),
            DataType::Decimal128(p, s) => self.parsed::<Decimal128Type>(cells, broken, |t| {
                let value = text::parse_numeric(t, *p, *s, false)?;
                value.to_i128().ok_or(TextFailure::Range)
            }),
            DataType::Decimal256(p, s) => {
                // Bare numeric keeps every digit, so one that it cannot keep is out of its range.
                let exact = self.data_type == types::BARE_NUMERIC;
                self.parsed::<Decimal256Type>(cells, broken, |t| -> Result<i256, _> {
                    text::parse_numeric(t, *p, *s, exact)
                })
            }
            DataType::Utf8 => return self.texts(cells, broken),
            DataType::Binary => self.bytes(cells, broken),
            DataType::Date32 => self.dates(cells, broken),
            DataType::Timestamp(_, zone) => self.timestamps(cells, broken, zone.is_some()),
            DataType::Interval(_) => self.intervals(cells, broken),
            &types::TIME => self.times(cells, broken),
            &types::TIMETZ => self.fixed(cells, broken, |t| clock::parse_timetz(t).map(ZonedTime::to_bytes)),
            &types::UUID => self.fixed(cells, broken, text::parse_uuid),
            &types::JSON | &types::JSONB => self.jsons(cells, broken),
            other => {
                return Err(RuntimeError::internal(format!(
                    "column \"{}\" of type {other} reached the decoder",
                    self.name
                )));
            }
        })
    }

    /// Calls `put` with each row's value, or with `None` for NULL. What is broken is noted and put as NULL.
    #[inline]
    fn each(
        &self,
        cells: &Cells<'_>,
        broken: &mut Broken,
        mut put: impl FnMut(Option<Cell<'_>>) -> Result<(), String>,
    ) {
        let mut scratch = String::new();
        for row in 0..cells.len() {
            let outcome = match cells.get(row, &mut scratch) {
                Ok(Cell::Null) => {
                    if self.required && (self.in_key || cells.change(row) == Change::Put) {
                        broken.add(row, || self.missing());
                    }
                    put(None)
                }
                Ok(cell) => put(Some(cell)),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                if !self.null_for_invalid {
                    broken.add(row, || format!("column \"{}\": {reason}", self.name));
                }
                // Putting NULL cannot fail.
                let _null = put(None);
            }
        }
    }

    #[cold]
    fn missing(&self) -> String {
        format!("null value in column \"{}\" violates not-null constraint", self.name)
    }

    /// A scalar's text.
    #[inline]
    fn scalar<'c>(&self, cell: Cell<'c>) -> Result<&'c str, String> {
        match cell {
            Cell::Text(t) | Cell::Number(t) => Ok(t),
            Cell::Bool(true) => Ok("true"),
            Cell::Bool(false) => Ok("false"),
            Cell::Null => Ok(""),
            Cell::Nested(_) => Err(format!(
                "an object or array cannot become a value of type {}",
                self.type_name
            )),
        }
    }

    #[cold]
    fn reason(&self, failure: TextFailure, text: &str) -> String {
        failure.error(self.type_name, &clipped(text)).message
    }

    fn primitives<T: ArrowPrimitiveType>(
        &self,
        cells: &Cells<'_>,
        broken: &mut Broken,
        mut parse: impl FnMut(Cell<'_>) -> Result<T::Native, String>,
    ) -> ArrayRef {
        let mut values = Vec::with_capacity(cells.len());
        let mut valid = Validity::default();
        self.each(cells, broken, |cell| {
            let value = cell.map(&mut parse).transpose()?;
            valid.push(value.is_some());
            values.push(value.unwrap_or_default());
            Ok(())
        });
        let nulls = valid.finish();
        Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), nulls).with_data_type(self.data_type.clone()))
    }

    fn parsed<T: ArrowPrimitiveType>(
        &self,
        cells: &Cells<'_>,
        broken: &mut Broken,
        parse: impl Fn(&str) -> Result<T::Native, TextFailure>,
    ) -> ArrayRef {
        self.primitives::<T>(cells, broken, |cell| {
            let text = self.scalar(cell)?;
            parse(text).map_err(|f| self.reason(f, text))
        })
    }

    fn ints<T: ArrowPrimitiveType>(&self, cells: &Cells<'_>, broken: &mut Broken, min: i64, max: i64) -> ArrayRef
    where
        T::Native: TryFrom<i64>,
    {
        self.parsed::<T>(cells, broken, |t| {
            let value = match short_int(t) {
                Some(v) if (min..=max).contains(&v) => v,
                _ => text::parse_int(t, min, max)?,
            };
            T::Native::try_from(value).map_err(|_| TextFailure::Range)
        })
    }

    fn booleans(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        let mut builder = BooleanBuilder::with_capacity(cells.len());
        self.each(cells, broken, |cell| {
            let value = match cell {
                None => None,
                Some(Cell::Bool(b)) => Some(b),
                Some(cell) => {
                    let t = self.scalar(cell)?;
                    Some(text::parse_bool(t).map_err(|f| self.reason(f, t))?)
                }
            };
            builder.append_option(value);
            Ok(())
        });
        Arc::new(builder.finish())
    }

    fn texts(&self, cells: &Cells<'_>, broken: &mut Broken) -> Result<ArrayRef> {
        let room = cells.text_bytes();
        // Unescaping only shortens; `true` and `false` are as long as they are written.
        if i32::try_from(room).is_err() {
            return Err(RuntimeError::internal(format!(
                "{room} bytes of text for one batch of column \"{}\"",
                self.name
            )));
        }
        let mut bytes: Vec<u8> = Vec::with_capacity(room);
        let mut offsets: Vec<i32> = Vec::with_capacity(cells.len() + 1);
        offsets.push(0);
        let mut valid = Validity::default();
        self.each(cells, broken, |cell| {
            if let Some(cell) = &cell {
                let t = match cell {
                    Cell::Nested(raw) => raw,
                    other => self.scalar(*other)?,
                };
                bytes.extend_from_slice(self.fit(t)?.as_bytes());
            }
            valid.push(cell.is_some());
            offsets.push(bytes.len() as i32);
            Ok(())
        });
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(Arc::new(StringArray::try_new(
            offsets,
            Buffer::from_vec(bytes),
            valid.finish(),
        )?))
    }

    #[inline]
    fn fit<'t>(&self, text: &'t str) -> Result<&'t str, String> {
        match self.length_max {
            None => Ok(text),
            Some(n) => fit(text, n, self.blank_padded),
        }
    }

    fn bytes(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        let mut builder = BinaryBuilder::with_capacity(cells.len(), 0);
        self.each(cells, broken, |cell| {
            match cell {
                None => builder.append_null(),
                Some(cell) => {
                    let t = self.scalar(cell)?;
                    builder.append_value(text::parse_bytea(t).map_err(|f| self.reason(f, t))?);
                }
            }
            Ok(())
        });
        Arc::new(builder.finish())
    }

    /// json and jsonb: a part of the record as it stands.
    fn jsons(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        let binary = self.data_type == types::JSONB;
        let mut texts = BinaryViewBuilder::new();
        let mut values = LargeBinaryBuilder::new();
        let mut scratch = String::new();
        self.each(cells, broken, |cell| {
            let text = match &cell {
                None => None,
                Some(Cell::Nested(raw)) => Some(*raw),
                Some(Cell::Text(text)) if !self.text_is_json => {
                    scratch.clear();
                    json::put_quoted(text, &mut scratch);
                    Some(scratch.as_str())
                }
                Some(other) => Some(self.scalar(*other)?),
            };
            let told = |e: PlanError| match e.detail {
                Some(detail) => format!("{}: {detail}", e.message),
                None => e.message,
            };
            if binary {
                values.append_option(text.map(json::jsonb_of_text).transpose().map_err(told)?);
            } else {
                text.map(json::validate).transpose().map_err(told)?;
                texts.append_option(text);
            }
            Ok(())
        });
        if binary {
            Arc::new(values.finish())
        } else {
            Arc::new(texts.finish())
        }
    }

    fn dates(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        self.primitives::<Date32Type>(cells, broken, |cell| match cell {
            Cell::Number(t) if self.debezium => {
                let days = text::parse_int(t, i32::MIN.into(), i32::MAX.into()).map_err(|f| self.reason(f, t))?;
                i32::try_from(days).map_err(|_| self.reason(TextFailure::Range, t))
            }
            cell => {
                let t = self.scalar(cell)?;
                datetime::parse_date(t).map_err(|f| self.reason(f, t))
            }
        })
    }

    fn timestamps(&self, cells: &Cells<'_>, broken: &mut Broken, with_zone: bool) -> ArrayRef {
        self.primitives::<TimestampMicrosecondType>(cells, broken, |cell| match cell {
            Cell::Number(t) => self.timestamp_number(t),
            cell => {
                let t = self.scalar(cell)?;
                let parsed = if with_zone {
                    datetime::parse_timestamptz(t)
                } else {
                    datetime::parse_timestamp(t)
                };
                parsed.map_err(|f| self.reason(f, t))
            }
        })
    }

    fn times(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        self.primitives::<Time64MicrosecondType>(cells, broken, |cell| match cell {
            Cell::Number(t) => {
                let us = self.timestamp_number(t)?;
                let in_day = (0..=datetime::DAY_US).contains(&us);
                in_day.then_some(us).ok_or_else(|| self.reason(TextFailure::Field, t))
            }
            cell => {
                let t = self.scalar(cell)?;
                clock::parse_time(t).map_err(|f| self.reason(f, t))
            }
        })
    }

    /// Values of so many bytes.
    fn fixed<const N: usize>(
        &self,
        cells: &Cells<'_>,
        broken: &mut Broken,
        parse: impl Fn(&str) -> Result<[u8; N], TextFailure>,
    ) -> ArrayRef {
        let mut values: Vec<u8> = Vec::with_capacity(cells.len() * N);
        let mut valid = Validity::default();
        self.each(cells, broken, |cell| {
            let value = match cell {
                None => None,
                Some(cell) => {
                    let t = self.scalar(cell)?;
                    Some(parse(t).map_err(|f| self.reason(f, t))?)
                }
            };
            valid.push(value.is_some());
            values.extend_from_slice(&value.unwrap_or([0; N]));
            Ok(())
        });
        Arc::new(FixedSizeBinaryArray::new(
            N as i32,
            Buffer::from_vec(values),
            valid.finish(),
        ))
    }

    /// A number of units since 1970, or since midnight, exactly; what is finer than a microsecond is rounded.
    fn timestamp_number(&self, number: &str) -> Result<i64, String> {
        let Some(unit) = self.unit else {
            return Err(format!(
                "the number {number} for a {} says nothing about its unit; give the encode option timestamp.unit = \
                 's', 'ms', 'us' or 'ns'",
                if self.data_type == types::TIME {
                    "time"
                } else {
                    "timestamp"
                }
            ));
        };
        let scale = match unit {
            NumberUnit::Second => 6,
            NumberUnit::Millisecond => 3,
            NumberUnit::Microsecond => 0,
            NumberUnit::Nanosecond => -3,
        };
        text::parse_numeric(number, 38, scale, false)
            .ok()
            .and_then(i256::to_i128)
            .and_then(|v| i64::try_from(v).ok())
            .filter(|us| (TIMESTAMP_MIN_US..i64::MAX).contains(us))
            .ok_or_else(|| self.reason(TextFailure::Range, number))
    }

    fn intervals(&self, cells: &Cells<'_>, broken: &mut Broken) -> ArrayRef {
        self.parsed::<IntervalMonthDayNanoType>(cells, broken, datetime::parse_interval)
    }
}

/// A text as a value of `varchar(n)` or, with `blank_padded`, `character(n)`, which is kept without blanks at its end. Too many characters
/// fail unless the excess is blanks, which are cut off.
pub(crate) fn fit(text: &str, n: usize, blank_padded: bool) -> Result<&str, String> {
    let text = if blank_padded { text.trim_end_matches(' ') } else { text };
    if text.len() <= n {
        return Ok(text);
    }
    match text.char_indices().nth(n) {
        None => Ok(text),
        Some((cut, _)) if text[cut..].bytes().all(|b| b == b' ') => Ok(&text[..cut]),
        Some(_) => {
            let name = if blank_padded { "character" } else { "character varying" };
            Err(format!("value too long for type {name}({n})"))
        }
    }
}

/// An integer of at most 18 digits, without anything around it.
#[inline]
fn short_int(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0_i64;
    for b in digits {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// A value as messages show it: not more of it than a person reads.
fn clipped(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((cut, _)) => format!("{}…", &text[..cut]),
    }
}

/// Null bits that cost nothing while there is no NULL.
#[derive(Default)]
struct Validity {
    rows: usize,
    nulls: usize,
    bits: Vec<bool>,
}

impl Validity {
    #[inline]
    fn push(&mut self, valid: bool) {
        if !valid {
            self.null();
        } else if self.nulls > 0 {
            self.bits.push(true);
        }
        self.rows += 1;
    }

    #[cold]
    fn null(&mut self) {
        if self.nulls == 0 {
            self.bits = vec![true; self.rows];
        }
        self.bits.push(false);
        self.nulls += 1;
    }

    fn finish(self) -> Option<NullBuffer> {
        (self.nulls > 0).then(|| NullBuffer::from(self.bits))
    }
}
