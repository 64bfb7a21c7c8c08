//! Casts, with PostgreSQL's rounding, range checks and messages.
//!
//! One function per target type: `pg_to_int4(x)`. `pg_to_numeric(x, p, s)` and `pg_varchar(x, n, explicit)` take their modifier
//! as constants. Casts that cannot fail and mean the same everywhere stay DataFusion's.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    Decimal256Array, FixedSizeBinaryArray, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array,
    IntervalMonthDayNanoArray, LargeBinaryArray, ListArray, StringArray, StringBuilder, Time64MicrosecondArray,
    TimestampMicrosecondArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Date32Type, FieldRef, Float32Type, Float64Type, Int64Type, IntervalMonthDayNanoType,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType, i256,
};
use datafusion::common::ScalarValue;

use super::arith::{decimal_parts, interval_of_day, out_of_range, to_256};
use super::{PgFunction, downcast, nulls};
use crate::PlanError;
use crate::sql::array_text;
use crate::sql::clock::{self, ZonedTime};
use crate::sql::datetime::{self, DAY_US};
use crate::sql::json;
use crate::sql::text::{self, Failure, pow10};
use crate::sql::types::{
    self, BARE_NUMERIC, DEVIATION, JSON, JSONB, QUOTIENT, TIME, TIMETZ, UUID, VARIANCE, is_unlimited,
};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new("pg_to_bool", |_, _| Ok(DataType::Boolean), to),
        PgFunction::new("pg_to_int2", |_, _| Ok(DataType::Int16), to),
        PgFunction::new("pg_to_int4", |_, _| Ok(DataType::Int32), to),
        PgFunction::new("pg_to_int8", |_, _| Ok(DataType::Int64), to),
        PgFunction::new("pg_to_float4", |_, _| Ok(DataType::Float32), to),
        PgFunction::new("pg_to_float8", |_, _| Ok(DataType::Float64), to),
        PgFunction::new("pg_to_numeric", numeric_type, to),
        PgFunction::new("pg_to_text", |_, _| Ok(DataType::Utf8), to),
        PgFunction::new("pg_to_bytea", |_, _| Ok(DataType::Binary), to),
        PgFunction::new("pg_to_date", |_, _| Ok(DataType::Date32), to),
        PgFunction::new("pg_to_timestamp", |_, _| Ok(types::timestamp()), to),
        PgFunction::new("pg_to_timestamptz", |_, _| Ok(types::timestamptz()), to),
        PgFunction::new("pg_to_time", |_, _| Ok(TIME), to),
        PgFunction::new("pg_to_timetz", |_, _| Ok(TIMETZ), to),
        PgFunction::new("pg_to_interval", |_, _| Ok(types::interval()), to),
        PgFunction::new("pg_to_json", |_, _| Ok(JSON), to),
        PgFunction::new("pg_to_jsonb", |_, _| Ok(JSONB), to),
        PgFunction::new("pg_to_uuid", |_, _| Ok(UUID), to),
        PgFunction::new("pg_to_array", array_type, to),
        PgFunction::new("pg_varchar", |_, _| Ok(DataType::Utf8), varchar),
        PgFunction::new("pg_time_precision", precision_type, |args, _| time_precision(args)),
    ]
}

/// The name of the function that casts to a type.
pub(in crate::sql) fn function_for(target: &DataType) -> Option<&'static str> {
    Some(match target {
        DataType::Boolean => "pg_to_bool",
        DataType::Int16 => "pg_to_int2",
        DataType::Int32 => "pg_to_int4",
        DataType::Int64 => "pg_to_int8",
        DataType::Float32 => "pg_to_float4",
        DataType::Float64 => "pg_to_float8",
        DataType::Decimal128(..) | DataType::Decimal256(..) => "pg_to_numeric",
        DataType::Utf8 => "pg_to_text",
        DataType::Binary => "pg_to_bytea",
        DataType::Date32 => "pg_to_date",
        DataType::Timestamp(TimeUnit::Microsecond, None) => "pg_to_timestamp",
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "pg_to_timestamptz",
        &TIME => "pg_to_time",
        &TIMETZ => "pg_to_timetz",
        DataType::Interval(_) => "pg_to_interval",
        &JSON => "pg_to_json",
        &JSONB => "pg_to_jsonb",
        &UUID => "pg_to_uuid",
        DataType::List(_) => "pg_to_array",
        _ => return None,
    })
}

/// `pg_to_array(x, NULL of the element type)`.
fn array_type(t: &[DataType], _: &[Option<&ScalarValue>]) -> Result<DataType> {
    t.get(1)
        .cloned()
        .map(types::list_of)
        .ok_or_else(|| PlanError::internal("cast to an array of no type"))
}

fn numeric_type(_: &[DataType], constants: &[Option<&ScalarValue>]) -> Result<DataType> {
    let int = |i: usize| match constants.get(i) {
        Some(Some(ScalarValue::Int32(Some(v)))) => Some(*v),
        _ => None,
    };
    match (int(1), int(2)) {
        (Some(76), Some(38)) => Ok(BARE_NUMERIC),
        (Some(75), Some(38)) => Ok(QUOTIENT),
        (Some(75), Some(37)) => Ok(VARIANCE),
        (Some(76), Some(37)) => Ok(DEVIATION),
        (Some(p), Some(s)) => Ok(types::decimal(
            u8::try_from(p).unwrap_or(38),
            i8::try_from(s).unwrap_or(0),
        )),
        _ => Ok(BARE_NUMERIC),
    }
}

fn to(args: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let a = args
        .first()
        .ok_or_else(|| PlanError::internal("cast without argument"))?;
    cast_array(a, target)
}

/// Casts an array as an explicit PostgreSQL cast does.
///
/// # Errors
/// The first value that has no equivalent in `target`: 22P02, 22003, 22007 or 22008.
pub fn cast_array(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let from = a.data_type().clone();
    if &from == target {
        return Ok(Arc::clone(a));
    }
    match (&from, target) {
        (DataType::Null, t) => Ok(nulls(t, a.len())),
        (DataType::Utf8, t) => parse_array(a.as_string::<i32>(), t),
        (DataType::List(_), DataType::List(item)) => {
            let list = a.as_list::<i32>();
            let values = cast_array(list.values(), item.data_type())?;
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            Ok(Arc::new(
                ListArray::try_new(Arc::clone(item), offsets, values, nulls).map_err(internal)?,
            ))
        }
        (&JSONB, DataType::Boolean) => jsonb_to_bool(a),
        (&JSONB, t) if t.is_numeric() => jsonb_to_number(a, t),
        (&JSON | &JSONB, &JSON | &JSONB) => {
            let text = format_array(a)?;
            cast_array(&text, target)
        }
        (DataType::Utf8View | DataType::LargeUtf8, t) => {
            let text = arrow_cast(a, &DataType::Utf8)?;
            cast_array(&text, t)
        }
        (_, DataType::Utf8) => format_array(a),
        (DataType::Float32 | DataType::Float64, DataType::Int16 | DataType::Int32 | DataType::Int64) => {
            float_to_int(a, target)
        }
        (DataType::Float32 | DataType::Float64, DataType::Decimal128(..) | DataType::Decimal256(..)) => {
            float_to_decimal(a, target)
        }
        (f, DataType::Int16 | DataType::Int32 | DataType::Int64) if decimal_parts(f).is_some() => {
            decimal_to_int(a, target)
        }
        (f, DataType::Decimal128(..) | DataType::Decimal256(..)) if decimal_parts(f).is_some() => {
            decimal_to_decimal(a, target)
        }
        (
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::UInt64 | DataType::UInt32,
            DataType::Decimal128(..) | DataType::Decimal256(..),
        ) => {
            let wide = arrow_cast(a, &DataType::Decimal256(40, 0))?;
            decimal_to_decimal(&wide, target)
        }
        (f, DataType::Float32 | DataType::Float64) if decimal_parts(f).is_some() => decimal_to_float(a, target),
        (DataType::Float64, DataType::Float32) => narrow_float(a),
        (DataType::Timestamp(..), DataType::Date32) => {
            let r: Date32Array = a
                .as_primitive::<TimestampMicrosecondType>()
                .try_unary(|us| i32::try_from(us.div_euclid(DAY_US)).map_err(|_| out_of_range(&DataType::Date32)))?;
            Ok(Arc::new(r))
        }
        (DataType::Date32, DataType::Timestamp(_, zone)) => {
            let r: TimestampMicrosecondArray = a
                .as_primitive::<Date32Type>()
                .try_unary(|d| i64::from(d).checked_mul(DAY_US).ok_or_else(|| out_of_range(target)))?;
            Ok(Arc::new(r.with_timezone_opt(zone.clone())))
        }
        (DataType::Timestamp(..), &TIME) => {
            let ts = a.as_primitive::<TimestampMicrosecondType>();
            let r: Time64MicrosecondArray = ts.unary(clock::wrapped);
            Ok(Arc::new(r))
        }
        (DataType::Timestamp(..), &TIMETZ) => {
            let ts = a.as_primitive::<TimestampMicrosecondType>();
            zoned_times(ts.iter().map(|us| us.map(|us| utc_time(clock::wrapped(us)))))
        }
        (&TIME, &TIMETZ) => {
            let times = a.as_primitive::<Time64MicrosecondType>();
            zoned_times(times.iter().map(|us| us.map(utc_time)))
        }
        (&TIMETZ, &TIME) => {
            let times = a.as_fixed_size_binary().iter();
            let r: Time64MicrosecondArray = times.map(|t| t.map(|t| ZonedTime::of_bytes(t).us)).collect();
            Ok(Arc::new(r))
        }
        (&TIME, DataType::Interval(_)) => {
            let r: IntervalMonthDayNanoArray = a.as_primitive::<Time64MicrosecondType>().unary(interval_of_day);
            Ok(Arc::new(r))
        }
        (DataType::Interval(_), &TIME) => {
            let r: Time64MicrosecondArray = a
                .as_primitive::<IntervalMonthDayNanoType>()
                .unary(|v| clock::wrapped(v.nanoseconds / 1000));
            Ok(Arc::new(r))
        }
        (DataType::Duration(_), DataType::Interval(_)) => {
            let us = arrow_cast(a, &DataType::Duration(TimeUnit::Microsecond))?;
            let r: IntervalMonthDayNanoArray = us
                .as_primitive::<arrow::datatypes::DurationMicrosecondType>()
                .try_unary(|us| datetime::interval_of_micros(us).ok_or_else(|| out_of_range(target)))?;
            Ok(Arc::new(r))
        }
        _ => arrow_cast(a, target).map_err(|e| match e.code {
            "22003" => out_of_range(target),
            _ => e,
        }),
    }
}

fn arrow_cast(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: false,
        ..Default::default()
    };
    cast_with_options(a, target, &options).map_err(|e| {
        let message = e.to_string();
        if message.contains("Can't cast value") || message.contains("verflow") {
            out_of_range(target)
        } else {
            PlanError::new(
                "42846",
                format!(
                    "cannot cast type {} to {}",
                    types::base_name(a.data_type()),
                    types::base_name(target)
                ),
            )
        }
    })
}

fn parse_array(a: &StringArray, target: &DataType) -> Result<ArrayRef> {
    macro_rules! parse {
        ($array:ty, $f:expr) => {{
            let f = $f;
            let name = types::base_name(target);
            let r: $array = a
                .iter()
                .map(|s| s.map(|s| f(s).map_err(|e: Failure| e.error(name, s))).transpose())
                .collect::<Result<_>>()?;
            r
        }};
    }
    let int = |min: i64, max: i64| move |s: &str| text::parse_int(s, min, max);
    Ok(match target {
        DataType::Boolean => Arc::new(parse!(BooleanArray, text::parse_bool)),
        DataType::Int16 => {
            let f = int(i64::from(i16::MIN), i64::from(i16::MAX));
            Arc::new(parse!(Int16Array, |s: &str| f(s)
                .and_then(|v| i16::try_from(v).map_err(|_| Failure::Range))))
        }
        DataType::Int32 => {
            let f = int(i64::from(i32::MIN), i64::from(i32::MAX));
            Arc::new(parse!(Int32Array, |s: &str| f(s)
                .and_then(|v| i32::try_from(v).map_err(|_| Failure::Range))))
        }
        DataType::Int64 => Arc::new(parse!(Int64Array, int(i64::MIN, i64::MAX))),
        DataType::Float32 => Arc::new(parse!(Float32Array, text::parse_float4)),
        DataType::Float64 => Arc::new(parse!(Float64Array, text::parse_float8)),
        DataType::Decimal128(p, s) => {
            let r = parse!(Decimal128Array, |t: &str| text::parse_numeric(t, *p, *s, false)
                .and_then(|v| v.to_i128().ok_or(Failure::Range)));
            Arc::new(with_parts(r, *p, *s)?)
        }
        DataType::Decimal256(p, s) => {
            let exact = is_unlimited(target);
            let r = parse!(Decimal256Array, |t: &str| text::parse_numeric(t, *p, *s, exact));
            Arc::new(r.with_precision_and_scale(*p, *s).map_err(internal)?)
        }
        DataType::Binary => {
            let values: Vec<Option<Vec<u8>>> = a
                .iter()
                .map(|s| {
                    s.map(|s| text::parse_bytea(s).map_err(|e| e.error("bytea", s)))
                        .transpose()
                })
                .collect::<Result<_>>()?;
            Arc::new(BinaryArray::from_iter(values))
        }
        DataType::Date32 => Arc::new(parse!(Date32Array, datetime::parse_date)),
        DataType::Timestamp(_, None) => Arc::new(parse!(TimestampMicrosecondArray, datetime::parse_timestamp)),
        DataType::Timestamp(_, Some(z)) => {
            Arc::new(parse!(TimestampMicrosecondArray, datetime::parse_timestamptz).with_timezone(Arc::clone(z)))
        }
        &TIME => Arc::new(parse!(Time64MicrosecondArray, clock::parse_time)),
        &TIMETZ => {
            let value = |t: &str| clock::parse_timetz(t).map_err(|e| e.error(types::base_name(&TIMETZ), t));
            let values = a.iter().map(|t| t.map(value).transpose());
            zoned_times(values.collect::<Result<Vec<_>>>()?.into_iter())?
        }
        DataType::Interval(_) => Arc::new(parse!(IntervalMonthDayNanoArray, datetime::parse_interval)),
        &JSON => {
            for text in a.iter().flatten() {
                json::validate(text)?;
            }
            Arc::new(a.iter().map(|t| t.map(str::as_bytes)).collect::<BinaryViewArray>())
        }
        &JSONB => {
            let values = a.iter().map(|t| t.map(json::jsonb_of_text).transpose());
            Arc::new(LargeBinaryArray::from_iter(values.collect::<Result<Vec<_>>>()?))
        }
        &UUID => {
            let values = a.iter().map(|s| {
                s.map(|s| text::parse_uuid(s).map_err(|e| e.error("uuid", s)))
                    .transpose()
            });
            let values = values.collect::<Result<Vec<_>>>()?;
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.into_iter(), 16).map_err(internal)?)
        }
        DataType::List(item) => parse_lists(a, item)?,
        DataType::Utf8 => Arc::new(a.clone()),
        t => {
            return Err(PlanError::new(
                "42846",
                format!("cannot cast type text to {}", types::base_name(t)),
            ));
        }
    })
}

/// Array texts: all elements of the column are parsed at once.
fn parse_lists(a: &StringArray, item: &FieldRef) -> Result<ArrayRef> {
    let mut elements = StringBuilder::new();
    let mut lengths = Vec::with_capacity(a.len());
    for text in a {
        let items = text.map(array_text::parse).transpose()?.unwrap_or_default();
        items.iter().for_each(|i| elements.append_option(i.as_deref()));
        lengths.push(items.len());
    }
    let elements: ArrayRef = Arc::new(elements.finish());
    let values = cast_array(&elements, item.data_type())?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(
        ListArray::try_new(Arc::clone(item), offsets, values, a.nulls().cloned()).map_err(internal)?,
    ))
}

fn cannot_cast_jsonb(value: &[u8], to: &DataType) -> PlanError {
    let kind = json::kind_of(value).name();
    PlanError::new(
        "22023",
        format!("cannot cast jsonb {kind} to type {}", types::base_name(to)),
    )
}

fn jsonb_to_bool(a: &ArrayRef) -> Result<ArrayRef> {
    let value = |v: &[u8]| match (json::kind_of(v), json::scalar_text(v)) {
        (json::Kind::Bool, Some(text)) => Ok(text == "true"),
        _ => Err(cannot_cast_jsonb(v, &DataType::Boolean)),
    };
    let values = a.as_binary::<i64>().iter().map(|v| v.map(value).transpose());
    Ok(Arc::new(values.collect::<Result<BooleanArray>>()?))
}

fn jsonb_to_number(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let text = |v: &[u8]| json::number_text(v).ok_or_else(|| cannot_cast_jsonb(v, target));
    let texts = a.as_binary::<i64>().iter().map(|v| v.map(text).transpose());
    let texts: ArrayRef = Arc::new(texts.collect::<Result<StringArray>>()?);
    if matches!(target, DataType::Float32 | DataType::Float64) {
        return cast_array(&texts, target);
    }
    // Through numeric, which is rounded to an integer.
    let numbers = cast_array(&texts, &BARE_NUMERIC)?;
    cast_array(&numbers, target)
}

/// Texts of values as they stand in an array: booleans are letters.
pub(super) fn element_texts(a: &ArrayRef) -> Result<ArrayRef> {
    if let Some(booleans) = a.as_boolean_opt() {
        let letter = |b| if b { "t" } else { "f" };
        return Ok(Arc::new(
            booleans.iter().map(|b| b.map(letter)).collect::<StringArray>(),
        ));
    }
    format_array(a)
}

fn format_lists(list: &ListArray) -> Result<ArrayRef> {
    let texts = element_texts(list.values())?;
    let texts = texts.as_string::<i32>();
    let mut out = StringBuilder::new();
    let mut text = String::new();
    for row in 0..list.len() {
        if list.is_null(row) {
            out.append_null();
            continue;
        }
        text.clear();
        text.push('{');
        let at = |i: usize| usize::try_from(list.value_offsets()[i]).unwrap_or(0);
        for element in at(row)..at(row + 1) {
            if element > at(row) {
                text.push(',');
            }
            if texts.is_null(element) {
                text.push_str("NULL");
            } else {
                array_text::put_element(texts.value(element), &mut text);
            }
        }
        text.push('}');
        out.append_value(&text);
    }
    Ok(Arc::new(out.finish()))
}

fn internal(e: impl std::fmt::Display) -> PlanError {
    PlanError::internal(e.to_string())
}

fn with_parts(r: Decimal128Array, p: u8, s: i8) -> Result<Decimal128Array> {
    r.with_precision_and_scale(p, s).map_err(internal)
}

/// The text form of every value.
///
/// # Errors
/// A type without a text form.
pub fn format_array(a: &ArrayRef) -> Result<ArrayRef> {
    let mut out = StringBuilder::with_capacity(a.len(), a.len() * 8);
    macro_rules! each {
        ($array:expr, $f:expr) => {{
            let f = $f;
            for v in $array.iter() {
                match v {
                    Some(v) => out.append_value(f(v)),
                    None => out.append_null(),
                }
            }
        }};
    }
    match a.data_type() {
        DataType::Boolean => each!(a.as_boolean(), |v: bool| if v { "true" } else { "false" }),
        DataType::Float32 => each!(a.as_primitive::<Float32Type>(), text::format_float4),
        DataType::Float64 => each!(a.as_primitive::<Float64Type>(), text::format_float8),
        t @ (DataType::Decimal128(..) | DataType::Decimal256(..)) => {
            each!(to_256(a)?, |v: i256| text::format_numeric(v, t));
        }
        DataType::Binary => each!(a.as_binary::<i32>(), text::format_bytea),
        DataType::Date32 => each!(a.as_primitive::<Date32Type>(), datetime::format_date),
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            each!(a.as_primitive::<TimestampMicrosecondType>(), datetime::format_timestamp);
        }
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
            each!(
                a.as_primitive::<TimestampMicrosecondType>(),
                datetime::format_timestamptz
            );
        }
        &TIME => each!(a.as_primitive::<Time64MicrosecondType>(), clock::format_time),
        &TIMETZ => each!(a.as_fixed_size_binary(), |t| clock::format_timetz(ZonedTime::of_bytes(
            t
        ))),
        DataType::Interval(_) => each!(a.as_primitive::<IntervalMonthDayNanoType>(), text::format_interval),
        &JSON => each!(a.as_binary_view(), |v| std::str::from_utf8(v).unwrap_or_default()),
        &JSONB => each!(a.as_binary::<i64>(), json::text),
        &UUID => each!(a.as_fixed_size_binary(), text::format_uuid),
        DataType::List(_) => return format_lists(a.as_list::<i32>()),
        _ => return arrow_cast(a, &DataType::Utf8),
    }
    Ok(Arc::new(out.finish()))
}

/// 2000-01-01 in microseconds since 1970.
const YEAR_2000_US: i64 = 10_957 * DAY_US;

/// A time of day in UTC.
fn utc_time(us: i64) -> ZonedTime {
    ZonedTime { us, west: 0 }
}

/// Values of [`TIMETZ`].
pub(super) fn zoned_times(values: impl Iterator<Item = Option<ZonedTime>>) -> Result<ArrayRef> {
    let bytes = values.map(|v| v.map(ZonedTime::to_bytes));
    Ok(Arc::new(
        FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 12).map_err(internal)?,
    ))
}

fn precision_type(t: &[DataType], _: &[Option<&ScalarValue>]) -> Result<DataType> {
    t.first().cloned().ok_or_else(|| internal("precision of nothing"))
}

/// `pg_time_precision(x, n)`: a moment or time of day with n digits of a second, rounded half up as PostgreSQL rounds it.
fn time_precision(args: &[ArrayRef]) -> Result<ArrayRef> {
    let [a, digits] = args else {
        return Err(internal("precision of nothing"));
    };
    let digits = digits.as_primitive::<Int64Type>().iter().flatten().next().unwrap_or(6);
    round_times(a, u32::try_from(digits).unwrap_or(6))
}

/// Moments or times of day with so many digits of a second, rounded half away from zero as PostgreSQL rounds them; other values as
/// they are.
///
/// # Errors
/// XX000.
pub fn round_times(a: &ArrayRef, digits: u32) -> Result<ArrayRef> {
    let unit = 10i64.pow(6u32.saturating_sub(digits));
    let rounded = |us: i64| {
        let half = if us < 0 { -unit / 2 } else { unit / 2 };
        us.checked_add(half).map(|us| us / unit * unit)
    };
    // What is away from zero, PostgreSQL counts from the year 2000.
    let rounded_moment = |us: i64| {
        us.checked_sub(YEAR_2000_US)
            .and_then(rounded)?
            .checked_add(YEAR_2000_US)
    };
    Ok(match a.data_type() {
        DataType::Timestamp(_, zone) => {
            let r: TimestampMicrosecondArray = a
                .as_primitive::<TimestampMicrosecondType>()
                .unary(|us| rounded_moment(us).unwrap_or(us));
            Arc::new(r.with_timezone_opt(zone.clone()))
        }
        &TIME => {
            let r: Time64MicrosecondArray = a
                .as_primitive::<Time64MicrosecondType>()
                .unary(|us| rounded(us).unwrap_or(us));
            Arc::new(r)
        }
        &TIMETZ => zoned_times(a.as_fixed_size_binary().iter().map(|t| {
            t.map(|t| {
                let t = ZonedTime::of_bytes(t);
                ZonedTime {
                    us: rounded(t.us).unwrap_or(t.us),
                    west: t.west,
                }
            })
        }))?,
        _ => Arc::clone(a),
    })
}

/// Half to even, as PostgreSQL's `rint`.
#[allow(clippy::cast_possible_truncation)]
fn float_to_int(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let wide = arrow_cast(a, &DataType::Float64)?;
    let (min, max) = match target {
        DataType::Int16 => (-32_768.0, 32_768.0),
        DataType::Int32 => (-2_147_483_648.0, 2_147_483_648.0),
        _ => (-9_223_372_036_854_775_808.0, 9_223_372_036_854_775_808.0),
    };
    let r: Int64Array = wide.as_primitive::<Float64Type>().try_unary(|v| {
        let v = v.round_ties_even();
        if v >= min && v < max {
            Ok(v as i64)
        } else {
            Err(out_of_range(target))
        }
    })?;
    arrow_cast(&(Arc::new(r) as ArrayRef), target)
}

/// PostgreSQL keeps 15 significant digits of a double, 6 of a real.
fn float_to_decimal(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let Some((p, s)) = decimal_parts(target) else {
        return Err(internal("not a decimal"));
    };
    let digits = if a.data_type() == &DataType::Float32 { 5 } else { 14 };
    let wide = arrow_cast(a, &DataType::Float64)?;
    let exact = target == &BARE_NUMERIC;
    let r: Decimal256Array = wide.as_primitive::<Float64Type>().try_unary(|v| {
        let written = format!("{v:.digits$e}");
        text::parse_numeric(&written, p, s, exact).map_err(|_| text::numeric_overflow())
    })?;
    narrow(r, target)
}

/// A 256-bit decimal array with right values as the type asks for.
fn narrow(r: Decimal256Array, target: &DataType) -> Result<ArrayRef> {
    match target {
        DataType::Decimal256(p, s) => Ok(Arc::new(r.with_precision_and_scale(*p, *s).map_err(internal)?)),
        DataType::Decimal128(p, s) => {
            let n: Decimal128Array = r.try_unary(|v: i256| v.to_i128().ok_or_else(text::numeric_overflow))?;
            Ok(Arc::new(with_parts(n, *p, *s)?))
        }
        t => Err(internal(format!("{t} is not a decimal"))),
    }
}

/// Moves the point from `from` to `to` digits: half away from zero, or `None` if `exact` and digits would be lost.
pub(in crate::sql) fn decimal_rescale(v: i256, from: i32, to: i32, exact: bool) -> Option<i256> {
    if to >= from {
        let up = u8::try_from(to - from).ok().filter(|n| *n <= 76)?;
        return v.checked_mul(pow10(up));
    }
    let Some(down) = u8::try_from(from - to).ok().filter(|n| *n <= 76) else {
        return (v == i256::ZERO || !exact).then_some(i256::ZERO);
    };
    let by = pow10(down);
    let (q, rest) = (v.wrapping_div(by), v.wrapping_rem(by).wrapping_abs());
    if exact {
        return (rest == i256::ZERO).then_some(q);
    }
    if rest >= by.wrapping_sub(rest) {
        return Some(if v < i256::ZERO {
            q.wrapping_sub(i256::ONE)
        } else {
            q.wrapping_add(i256::ONE)
        });
    }
    Some(q)
}

fn decimal_to_decimal(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let (Some((_, from)), Some((p, to))) = (decimal_parts(a.data_type()), decimal_parts(target)) else {
        return Err(internal("not a decimal"));
    };
    let exact = is_unlimited(target);
    let limit = pow10(p);
    let r: Decimal256Array = to_256(a)?.try_unary(|v: i256| {
        decimal_rescale(v, i32::from(from), i32::from(to), exact)
            .filter(|v| v.wrapping_abs() < limit)
            .ok_or_else(|| overflow_detail(p, to, target))
    })?;
    narrow(r, target)
}

fn overflow_detail(p: u8, s: i8, target: &DataType) -> PlanError {
    let e = text::numeric_overflow();
    if is_unlimited(target) {
        return e.detail("numeric holds 38 digits before and 38 digits after the decimal point");
    }
    let whole = i32::from(p) - i32::from(s);
    let bound = if whole == 0 {
        "1".to_owned()
    } else {
        format!("10^{whole}")
    };
    e.detail(format!(
        "A field with precision {p}, scale {s} must round to an absolute value less than {bound}."
    ))
}

fn decimal_to_int(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let Some((_, from)) = decimal_parts(a.data_type()) else {
        return Err(internal("not a decimal"));
    };
    let r: Int64Array = to_256(a)?.try_unary(|v: i256| {
        decimal_rescale(v, i32::from(from), 0, false)
            .and_then(|v| v.to_i128())
            .and_then(|v| i64::try_from(v).ok())
            .ok_or_else(|| out_of_range(target))
    })?;
    if target == &DataType::Int64 {
        return Ok(Arc::new(r));
    }
    arrow_cast(&(Arc::new(r) as ArrayRef), target)
}

/// Through the text, so that the nearest double is found.
#[allow(clippy::cast_possible_truncation)]
fn decimal_to_float(a: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let t = a.data_type().clone();
    let r: Float64Array = downcast::<Decimal256Array>(&[Arc::new(to_256(a)?) as ArrayRef], 0)?
        .try_unary::<_, Float64Type, PlanError>(|v| text::format_numeric(v, &t).parse::<f64>().map_err(internal))?;
    if target == &DataType::Float64 {
        return Ok(Arc::new(r));
    }
    narrow_float(&(Arc::new(r) as ArrayRef))
}

#[allow(clippy::cast_possible_truncation)]
fn narrow_float(a: &ArrayRef) -> Result<ArrayRef> {
    let r: Float32Array = a.as_primitive::<Float64Type>().try_unary(|v| {
        let n = v as f32;
        if n.is_infinite() && v.is_finite() {
            return Err(PlanError::new("22003", "value out of range: overflow"));
        }
        if n == 0.0 && v != 0.0 {
            return Err(PlanError::new("22003", "value out of range: underflow"));
        }
        Ok(n)
    })?;
    Ok(Arc::new(r))
}

/// `varchar(n)`, or `character(n)` if n is negative: an explicit cast cuts; an assignment refuses, unless what is lost is blanks.
fn varchar(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let a = downcast::<StringArray>(args, 0)?;
    let n = args.get(1).map(|x| x.as_primitive::<Int64Type>());
    let explicit = downcast::<BooleanArray>(args, 2)?;
    let (Some(n), false) = (n, explicit.is_empty()) else {
        return Ok(Arc::new(a.clone()));
    };
    let (n, explicit) = (n.value(0), explicit.value(0));
    let limit = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    let trimmed = |s| if n < 0 { str::trim_end_matches(s, ' ') } else { s };
    let r: StringArray = a
        .iter()
        .map(|s| s.map(|s| fit(s, limit, explicit, n < 0).map(trimmed)).transpose())
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}

fn fit(s: &str, limit: usize, explicit: bool, padded: bool) -> Result<&str> {
    let Some((end, _)) = s.char_indices().nth(limit) else {
        return Ok(s);
    };
    if explicit || s[end..].bytes().all(|b| b == b' ') {
        return Ok(&s[..end]);
    }
    Err(PlanError::new(
        "22001",
        format!(
            "value too long for type character{}({limit})",
            if padded { "" } else { " varying" }
        ),
    ))
}

/// One value cast to a type.
///
/// # Errors
/// As [`cast_array`].
pub fn cast_scalar(value: &ScalarValue, target: &DataType) -> Result<ScalarValue> {
    let a = value.to_array_of_size(1).map_err(|e| internal(e.to_string()))?;
    let r = cast_array(&a, target)?;
    ScalarValue::try_from_array(&r, 0).map_err(|e| internal(e.to_string()))
}
