//! Date and time functions: `extract`, `date_part`, `date_trunc`, `date_bin`, `to_char`, `to_timestamp`, `make_date`, `age`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Decimal128Array, Float64Array, StringArray, Time64MicrosecondArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Float64Type, Int32Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    Time64MicrosecondType, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;

use super::cast::cast_array;
use super::to_char::{to_char, to_char_type};
use super::{PgFunction, all_valid, downcast, no_function};
use crate::PlanError;
use crate::sql::clock::ZonedTime;
use crate::sql::datetime::{self, DAY_US, civil, days_of};
use crate::sql::types::{self, TIME, TIMETZ, interval, timestamp, timestamptz};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new("pg_extract", extract_type, extract),
        PgFunction::new("date_part", |t, _| part_type(t), date_part),
        PgFunction::new("date_trunc", |t, _| trunc_type(t), trunc),
        PgFunction::new("date_bin", |t, _| bin_type(t), bin).fast(bin_fast),
        PgFunction::new("to_char", |t, _| to_char_type(t), to_char),
        PgFunction::new("to_timestamp", |t, _| to_timestamp_type(t), to_timestamp),
        PgFunction::new("make_date", |_, _| Ok(DataType::Date32), make_date),
        PgFunction::new("make_time", |_, _| Ok(TIME), |args, _| make_time(args)),
        PgFunction::new("age", |t, _| age_type(t), age),
    ]
}

fn is_time(t: &DataType) -> bool {
    matches!(t, DataType::Date32 | DataType::Timestamp(..) | DataType::Interval(_))
}

/// Has `extract` fields of the type?
fn has_fields(t: &DataType) -> bool {
    is_time(t) || matches!(t, &TIME | &TIMETZ)
}

fn extract_type(t: &[DataType], constants: &[Option<&ScalarValue>]) -> Result<DataType> {
    let [DataType::Utf8, x] = t else {
        return Err(no_function("extract", t));
    };
    if !has_fields(x) {
        return Err(PlanError::new(
            "42883",
            format!(
                "function pg_catalog.extract(unknown, {}) does not exist",
                types::base_name(x)
            ),
        ));
    }
    let scale = match constants.first() {
        Some(Some(ScalarValue::Utf8(Some(f)))) => match f.to_ascii_lowercase().as_str() {
            "second" | "seconds" | "epoch" => 6,
            "millisecond" | "milliseconds" => 3,
            _ => 0,
        },
        _ => 6,
    };
    Ok(DataType::Decimal128(22, scale))
}

fn part_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Utf8, x] if has_fields(x) => Ok(DataType::Float64),
        _ => Err(no_function("date_part", t)),
    }
}

/// A field in millionths.
fn field(name: &str, x: &Moment) -> Result<i128> {
    let unknown = |t: &str| PlanError::new("22023", format!("unit \"{name}\" not recognized for type {t}"));
    let unit = 1_000_000i128;
    match x {
        Moment::Interval(v) => {
            let micros = i128::from(v.nanoseconds / 1000);
            let (months, days) = (i128::from(v.months), i128::from(v.days));
            Ok(match name {
                "year" | "years" => months / 12 * unit,
                "month" | "months" => months % 12 * unit,
                "day" | "days" => days * unit,
                "hour" | "hours" => micros / 3_600_000_000 * unit,
                "minute" | "minutes" => micros / 60_000_000 % 60 * unit,
                "second" | "seconds" => micros % 60_000_000,
                "millisecond" | "milliseconds" => micros % 60_000_000 * 1000,
                "microsecond" | "microseconds" => micros % 60_000_000 * unit,
                "quarter" => (months % 12 / 3 + 1) * unit,
                "decade" | "decades" => months / 120 * unit,
                "century" | "centuries" => months / 1200 * unit,
                "epoch" => {
                    let day = i128::from(DAY_US);
                    months / 12 * (day * 1461 / 4) + months % 12 * 30 * day + days * day + micros
                }
                _ => return Err(unknown("interval")),
            })
        }
        Moment::Clock { us, west } => {
            let us_of = i128::from(*us);
            Ok(match (name, west) {
                ("hour" | "hours", _) => us_of / 3_600_000_000 * unit,
                ("minute" | "minutes", _) => us_of / 60_000_000 % 60 * unit,
                ("second" | "seconds", _) => us_of % 60_000_000,
                ("millisecond" | "milliseconds", _) => us_of % 60_000_000 * 1000,
                ("microsecond" | "microseconds", _) => us_of % 60_000_000 * unit,
                ("epoch", west) => us_of + i128::from(west.unwrap_or(0)) * unit,
                ("timezone", Some(west)) => i128::from(-west) * unit,
                ("timezone_hour", Some(west)) => i128::from(-west / 3600) * unit,
                ("timezone_minute", Some(west)) => i128::from(-west / 60 % 60) * unit,
                _ => {
                    let t = types::base_name(if west.is_some() { &TIMETZ } else { &TIME });
                    let known = [
                        "day",
                        "month",
                        "year",
                        "quarter",
                        "week",
                        "decade",
                        "century",
                        "millennium",
                    ];
                    let known = known.contains(&name.trim_end_matches('s'))
                        || matches!(name, "dow" | "isodow" | "doy" | "isoyear");
                    if !known {
                        return Err(unknown(t));
                    }
                    return Err(PlanError::new(
                        "0A000",
                        format!("unit \"{name}\" not supported for type {t}"),
                    ));
                }
            })
        }
        Moment::Time { us, is_date, zoned } => {
            let (days, time) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
            let (y, m, d) = civil(days);
            let time_name = if *is_date {
                "date"
            } else if *zoned {
                "timestamp with time zone"
            } else {
                "timestamp without time zone"
            };
            if *is_date
                && matches!(
                    name,
                    "hour" | "minute" | "second" | "millisecond" | "microsecond" | "milliseconds" | "microseconds"
                )
            {
                return Err(PlanError::new(
                    "0A000",
                    format!("unit \"{name}\" not supported for type date"),
                ));
            }
            let seconds = time % 60_000_000;
            let v = match name {
                "year" | "years" => {
                    if y > 0 {
                        y
                    } else {
                        y - 1
                    }
                }
                "month" | "months" => m,
                "day" | "days" => d,
                "hour" | "hours" => time / 3_600_000_000,
                "minute" | "minutes" => time / 60_000_000 % 60,
                "second" | "seconds" => return Ok(i128::from(seconds)),
                "millisecond" | "milliseconds" => return Ok(i128::from(seconds) * 1000),
                "microsecond" | "microseconds" => seconds,
                "quarter" => (m - 1) / 3 + 1,
                "decade" | "decades" => y.div_euclid(10),
                "century" | "centuries" => (y + 99).div_euclid(100),
                "millennium" | "millennia" => (y + 999).div_euclid(1000),
                "dow" => (days + 4).rem_euclid(7),
                "isodow" => (days + 3).rem_euclid(7) + 1,
                "doy" => days - days_of(y, 1, 1) + 1,
                "week" => iso_week(days).1,
                "isoyear" => iso_week(days).0,
                "epoch" => return Ok(i128::from(*us)),
                "timezone" | "timezone_hour" | "timezone_minute" if *zoned => 0,
                _ => return Err(unknown(time_name)),
            };
            Ok(i128::from(v) * unit)
        }
    }
}

/// ISO year and week.
pub(super) fn iso_week(days: i64) -> (i64, i64) {
    let thursday = days - (days + 3).rem_euclid(7) + 3;
    let (year, _, _) = civil(thursday);
    (year, (thursday - days_of(year, 1, 1)) / 7 + 1)
}

enum Moment {
    Interval(IntervalMonthDayNano),
    Time {
        us: i64,
        is_date: bool,
        zoned: bool,
    },
    /// A time of day, and how many seconds west of UTC.
    Clock {
        us: i64,
        west: Option<i32>,
    },
}

fn moment(a: &ArrayRef, row: usize) -> Result<Moment> {
    Ok(match a.data_type() {
        DataType::Interval(_) => Moment::Interval(a.as_primitive::<IntervalMonthDayNanoType>().value(row)),
        DataType::Date32 => Moment::Time {
            us: i64::from(a.as_primitive::<Date32Type>().value(row)) * DAY_US,
            is_date: true,
            zoned: false,
        },
        DataType::Timestamp(_, z) => Moment::Time {
            us: a.as_primitive::<TimestampMicrosecondType>().value(row),
            is_date: false,
            zoned: z.is_some(),
        },
        &TIME => Moment::Clock {
            us: a.as_primitive::<Time64MicrosecondType>().value(row),
            west: None,
        },
        &TIMETZ => {
            let t = ZonedTime::of_bytes(a.as_fixed_size_binary().value(row));
            Moment::Clock {
                us: t.us,
                west: Some(t.west),
            }
        }
        t => return Err(PlanError::internal(format!("{t} is not a time"))),
    })
}

fn fields(args: &[ArrayRef]) -> Result<Vec<Option<i128>>> {
    let names = downcast::<StringArray>(args, 0)?;
    let x = args.get(1).ok_or_else(|| PlanError::internal("no argument"))?;
    (0..x.len())
        .map(|i| {
            if !all_valid(args, i) {
                return Ok(None);
            }
            field(&names.value(i).to_ascii_lowercase(), &moment(x, i)?).map(Some)
        })
        .collect()
}

fn extract(args: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let scale = match target {
        DataType::Decimal128(_, s) => *s,
        _ => 6,
    };
    let down = 10i128.pow(6 - u32::try_from(scale).unwrap_or(0).min(6));
    let values: Decimal128Array = fields(args)?.into_iter().map(|v| v.map(|v| v / down)).collect();
    let r = values
        .with_precision_and_scale(22, scale)
        .map_err(|e| PlanError::internal(e.to_string()))?;
    Ok(Arc::new(r))
}

#[allow(clippy::cast_precision_loss)]
fn date_part(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let r: Float64Array = fields(args)?.into_iter().map(|v| v.map(|v| v as f64 / 1e6)).collect();
    Ok(Arc::new(r))
}

fn trunc_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Utf8, DataType::Timestamp(_, None)] => Ok(timestamp()),
        [DataType::Utf8, DataType::Timestamp(..) | DataType::Date32] => Ok(timestamptz()),
        // A time of day is the interval since midnight.
        [DataType::Utf8, DataType::Interval(_) | TIME] => Ok(interval()),
        _ => Err(no_function("date_trunc", t)),
    }
}

fn trunc(args: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let names = downcast::<StringArray>(args, 0)?;
    let x = args.get(1).ok_or_else(|| PlanError::internal("no argument"))?;
    if matches!(target, DataType::Interval(_)) {
        let x = cast_array(x, target)?;
        let v = x.as_primitive::<IntervalMonthDayNanoType>();
        let r: arrow::array::IntervalMonthDayNanoArray = (0..x.len())
            .map(|i| {
                all_valid(args, i)
                    .then(|| trunc_interval(names.value(i), v.value(i)))
                    .transpose()
            })
            .collect::<Result<_>>()?;
        return Ok(Arc::new(r));
    }
    let ts = cast_array(x, target)?;
    let v = ts.as_primitive::<TimestampMicrosecondType>();
    let r: TimestampMicrosecondArray = (0..x.len())
        .map(|i| {
            all_valid(args, i)
                .then(|| trunc_micros(names.value(i), v.value(i)))
                .transpose()
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r.with_timezone_opt(v.timezone().map(Arc::<str>::from))))
}

fn unit_micros(name: &str) -> Option<i64> {
    Some(match name {
        "microsecond" | "microseconds" => 1,
        "millisecond" | "milliseconds" => 1000,
        "second" | "seconds" => 1_000_000,
        "minute" | "minutes" => 60_000_000,
        "hour" | "hours" => 3_600_000_000,
        "day" | "days" => DAY_US,
        _ => return None,
    })
}

fn trunc_micros(name: &str, us: i64) -> Result<i64> {
    let name = name.to_ascii_lowercase();
    if let Some(unit) = unit_micros(&name) {
        return Ok(us.div_euclid(unit) * unit);
    }
    let days = us.div_euclid(DAY_US);
    let (y, m, _) = civil(days);
    let day = match name.as_str() {
        "week" | "weeks" => days - (days + 3).rem_euclid(7),
        "month" | "months" => days_of(y, m, 1),
        "quarter" => days_of(y, (m - 1) / 3 * 3 + 1, 1),
        "year" | "years" => days_of(y, 1, 1),
        "decade" | "decades" => days_of(y.div_euclid(10) * 10, 1, 1),
        "century" | "centuries" => days_of((y - 1).div_euclid(100) * 100 + 1, 1, 1),
        "millennium" | "millennia" => days_of((y - 1).div_euclid(1000) * 1000 + 1, 1, 1),
        _ => {
            return Err(PlanError::new(
                "22023",
                format!("unit \"{name}\" not recognized for type timestamp without time zone"),
            ));
        }
    };
    Ok(day * DAY_US)
}

fn trunc_interval(name: &str, v: IntervalMonthDayNano) -> Result<IntervalMonthDayNano> {
    let name = name.to_ascii_lowercase();
    Ok(match name.as_str() {
        "year" | "years" => IntervalMonthDayNano::new(v.months / 12 * 12, 0, 0),
        "quarter" => IntervalMonthDayNano::new(v.months / 3 * 3, 0, 0),
        "month" | "months" => IntervalMonthDayNano::new(v.months, 0, 0),
        "day" | "days" => IntervalMonthDayNano::new(v.months, v.days, 0),
        _ => match unit_micros(&name) {
            Some(unit) => IntervalMonthDayNano::new(v.months, v.days, v.nanoseconds / (unit * 1000) * (unit * 1000)),
            None => {
                return Err(PlanError::new(
                    "22023",
                    format!("unit \"{name}\" not recognized for type interval"),
                ));
            }
        },
    })
}

fn bin_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Interval(_), DataType::Timestamp(_, None), ..] => Ok(timestamp()),
        [DataType::Interval(_), DataType::Timestamp(..), ..] => Ok(timestamptz()),
        _ => Err(no_function("date_bin", t)),
    }
}

/// `date_bin(stride, source, origin)`: the start of the stride-wide bin that holds `source`. Whole microseconds, floor division:
/// a moment before the origin falls into the bin that starts before it. TUMBLE's `window_start` is this with the epoch as origin.
fn bin(args: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let stride = args
        .first()
        .ok_or_else(|| PlanError::internal("no argument"))?
        .as_primitive::<IntervalMonthDayNanoType>();
    let ts = cast_array(args.get(1).ok_or_else(|| PlanError::internal("no argument"))?, target)?;
    let origin = args.get(2).map(|o| cast_array(o, target)).transpose()?;
    let v = ts.as_primitive::<TimestampMicrosecondType>();
    let r: TimestampMicrosecondArray = (0..v.len())
        .map(|i| {
            if !all_valid(args, i) {
                return Ok(None);
            }
            let origin = origin
                .as_ref()
                .map_or(0, |o| o.as_primitive::<TimestampMicrosecondType>().value(i));
            bin_start(stride.value(i), v.value(i), origin).map(Some)
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r.with_timezone_opt(v.timezone().map(Arc::<str>::from))))
}

/// [`bin`] with a constant stride and origin, as TUMBLE has.
fn bin_fast(args: &[ColumnarValue], target: &DataType) -> Option<Result<ArrayRef>> {
    let origin = match args.get(2) {
        None => 0,
        Some(ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(Some(us), _))) => *us,
        Some(_) => return None,
    };
    match (args.first()?, args.get(1)?) {
        (ColumnarValue::Scalar(ScalarValue::IntervalMonthDayNano(Some(v))), ColumnarValue::Array(ts))
            if ts.data_type() == target =>
        {
            let width = match bin_width(*v) {
                Ok(w) => w,
                Err(e) => return Some(Err(e)),
            };
            let ts = ts.as_primitive::<TimestampMicrosecondType>();
            let r = ts.try_unary::<_, TimestampMicrosecondType, _>(|us| start_of(us, width, origin));
            Some(r.map(|r| Arc::new(r.with_timezone_opt(ts.timezone().map(Arc::<str>::from))) as ArrayRef))
        }
        _ => None,
    }
}

fn bin_start(stride: IntervalMonthDayNano, us: i64, origin: i64) -> Result<i64> {
    start_of(us, bin_width(stride)?, origin)
}

fn bin_width(stride: IntervalMonthDayNano) -> Result<i64> {
    if stride.months != 0 {
        return Err(PlanError::new(
            "0A000",
            "timestamps cannot be binned into intervals containing months or years",
        ));
    }
    let width = i64::from(stride.days)
        .checked_mul(DAY_US)
        .and_then(|d| d.checked_add(stride.nanoseconds / 1000))
        .ok_or_else(|| PlanError::new("22008", "interval out of range"))?;
    if width <= 0 {
        return Err(PlanError::new("22008", "stride must be greater than zero"));
    }
    Ok(width)
}

fn start_of(us: i64, width: i64, origin: i64) -> Result<i64> {
    us.checked_sub(origin)
        .and_then(|d| d.div_euclid(width).checked_mul(width))
        .and_then(|d| d.checked_add(origin))
        .ok_or_else(|| PlanError::new("22008", "timestamp out of range"))
}

fn to_timestamp_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [x] if x.is_numeric() || x == &DataType::Null => Ok(timestamptz()),
        [DataType::Utf8, DataType::Utf8] => Err(PlanError::unsupported("to_timestamp(text, text) is not supported")
            .hint("Cast the text to timestamp; ISO 8601 is understood.")),
        _ => Err(no_function("to_timestamp", t)),
    }
}

#[allow(clippy::cast_possible_truncation)]
fn to_timestamp(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let x = cast_array(
        args.first().ok_or_else(|| PlanError::internal("no argument"))?,
        &DataType::Float64,
    )?;
    let r: TimestampMicrosecondArray = x.as_primitive::<Float64Type>().try_unary(|v| {
        let us = (v * 1e6).round_ties_even();
        if us.abs() < 9.2e18 {
            Ok(us as i64)
        } else {
            Err(PlanError::new("22008", format!("timestamp out of range: \"{v}\"")))
        }
    })?;
    Ok(Arc::new(r.with_timezone("UTC")))
}

fn make_date(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let ints = args
        .iter()
        .map(|a| cast_array(a, &DataType::Int32))
        .collect::<Result<Vec<_>>>()?;
    let [y, m, d] = ints.as_slice() else {
        let types: Vec<DataType> = args.iter().map(|a| a.data_type().clone()).collect();
        return Err(no_function("make_date", &types));
    };
    let r: Date32Array = (0..y.len())
        .map(|i| {
            if !all_valid(args, i) {
                return Ok(None);
            }
            let v = |a: &ArrayRef| a.as_primitive::<Int32Type>().value(i);
            let text = format!("{:04}-{:02}-{:02}", v(y), v(m), v(d));
            datetime::parse_date(&text).map(Some).map_err(|_| {
                PlanError::new(
                    "22008",
                    format!("date field value out of range: {}-{:02}-{:02}", v(y), v(m), v(d)),
                )
            })
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}

/// `make_time(hour, minute, seconds)`.
fn make_time(args: &[ArrayRef]) -> Result<ArrayRef> {
    let [h, m, s] = args else {
        let types: Vec<DataType> = args.iter().map(|a| a.data_type().clone()).collect();
        return Err(no_function("make_time", &types));
    };
    let (h, m) = (cast_array(h, &DataType::Int32)?, cast_array(m, &DataType::Int32)?);
    let s = cast_array(s, &DataType::Float64)?;
    let (h, m) = (h.as_primitive::<Int32Type>(), m.as_primitive::<Int32Type>());
    let s = s.as_primitive::<Float64Type>();
    let r: Time64MicrosecondArray = (0..h.len())
        .map(|i| {
            all_valid(args, i)
                .then(|| time_of(h.value(i), m.value(i), s.value(i)))
                .transpose()
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}

#[allow(clippy::cast_possible_truncation)]
fn time_of(hour: i32, minute: i32, seconds: f64) -> Result<i64> {
    let us = (seconds * 1e6).round_ties_even();
    let total = (i64::from(hour) * 60 + i64::from(minute)) * 60_000_000;
    let fields = (0..=24).contains(&hour) && (0..60).contains(&minute) && (0.0..=60e6).contains(&us);
    if !fields || total + us as i64 > DAY_US {
        return Err(PlanError::new(
            "22008",
            format!("time field value out of range: {hour}:{minute:02}:{seconds:02}"),
        ));
    }
    Ok(total + us as i64)
}

fn age_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [a, b] if is_time(a) && is_time(b) && !matches!(a, DataType::Interval(_)) => Ok(interval()),
        _ => Err(no_function("age", t)),
    }
}

/// Years, months and days between two moments, symbolic as in PostgreSQL.
fn age(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let times = args
        .iter()
        .map(|a| cast_array(a, &timestamp()))
        .collect::<Result<Vec<_>>>()?;
    let [a, b] = times.as_slice() else {
        return Err(PlanError::internal("age needs two arguments"));
    };
    let (a, b) = (
        a.as_primitive::<TimestampMicrosecondType>(),
        b.as_primitive::<TimestampMicrosecondType>(),
    );
    let r: arrow::array::IntervalMonthDayNanoArray = (0..a.len())
        .map(|i| all_valid(args, i).then(|| age_of(a.value(i), b.value(i))))
        .collect();
    Ok(Arc::new(r))
}

fn age_of(later: i64, earlier: i64) -> IntervalMonthDayNano {
    if later < earlier {
        let v = age_of(earlier, later);
        return IntervalMonthDayNano::new(-v.months, -v.days, -v.nanoseconds);
    }
    let split = |us: i64| (civil(us.div_euclid(DAY_US)), us.rem_euclid(DAY_US));
    let ((y1, m1, d1), t1) = split(later);
    let ((y2, m2, d2), t2) = split(earlier);
    let (mut months, mut days, mut time) = ((y1 - y2) * 12 + m1 - m2, d1 - d2, t1 - t2);
    if time < 0 {
        time += DAY_US;
        days -= 1;
    }
    if days < 0 {
        // Borrow the length of the earlier moment's month.
        let next = if m2 == 12 {
            days_of(y2 + 1, 1, 1)
        } else {
            days_of(y2, m2 + 1, 1)
        };
        days += next - days_of(y2, m2, 1);
        months -= 1;
    }
    IntervalMonthDayNano::new(
        i32::try_from(months).unwrap_or(i32::MAX),
        i32::try_from(days).unwrap_or(0),
        time * 1000,
    )
}
