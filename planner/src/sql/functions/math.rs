//! `round`, `trunc`, `ceil`, `floor`, `abs`, `sign`, `mod`, `div` with numeric results for numeric arguments.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal256Array, Float64Array};
use arrow::datatypes::{DataType, Float64Type, Int32Type, i256};
use datafusion::common::ScalarValue;

use super::arith::{decimal_parts, out_of_range, to_256};
use super::cast::{cast_array, decimal_rescale};
use super::{PgFunction, no_function};
use crate::PlanError;
use crate::sql::text::{numeric_overflow, pow10};
use crate::sql::types::{self, BARE_NUMERIC, is_unlimited};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new(
            "round",
            |t, c| rounding("round", t, c),
            |a, t| round(a, t, Mode::HalfAway),
        ),
        PgFunction::new(
            "trunc",
            |t, c| rounding("trunc", t, c),
            |a, t| round(a, t, Mode::Truncate),
        ),
        PgFunction::new("ceil", |t, _| whole("ceil", t), |a, t| round(a, t, Mode::Up)),
        PgFunction::new("ceiling", |t, _| whole("ceiling", t), |a, t| round(a, t, Mode::Up)),
        PgFunction::new("floor", |t, _| whole("floor", t), |a, t| round(a, t, Mode::Down)),
        PgFunction::new("abs", |t, _| number("abs", t), |a, _| abs(a)),
        PgFunction::new("sign", |t, _| sign_type(t), sign),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    HalfAway,
    Truncate,
    Up,
    Down,
}

fn is_int(t: &DataType) -> bool {
    matches!(
        t,
        DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::UInt64 | DataType::UInt32
    )
}

fn is_float(t: &DataType) -> bool {
    matches!(t, DataType::Float32 | DataType::Float64)
}

/// `f(numeric)`, `f(numeric, digits)`, `f(double precision)`.
fn rounding(name: &str, t: &[DataType], constants: &[Option<&ScalarValue>]) -> Result<DataType> {
    match t {
        [x] => whole(name, std::slice::from_ref(x)),
        [x, DataType::Int16 | DataType::Int32 | DataType::Null]
            if decimal_parts(x).is_some() || is_int(x) || x == &DataType::Null =>
        {
            let Some(Some(ScalarValue::Int32(Some(n)))) = constants.get(1) else {
                return Ok(BARE_NUMERIC);
            };
            let n = u8::try_from((*n).clamp(0, 38)).unwrap_or(0);
            Ok(types::decimal(whole_digits(x) + 1 + n, i8::try_from(n).unwrap_or(0)))
        }
        _ => Err(no_function(name, t)),
    }
}

/// Digits before the point that values of a type may have.
fn whole_digits(t: &DataType) -> u8 {
    match t {
        DataType::Int16 => 5,
        DataType::Int32 => 10,
        t if is_int(t) => 20,
        t if is_unlimited(t) => 37,
        t => decimal_parts(t).map_or(10, |(p, s)| {
            u8::try_from(i32::from(p) - i32::from(s)).unwrap_or(p).min(37)
        }),
    }
}

fn whole(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [x] if decimal_parts(x).is_some() => Ok(types::decimal(whole_digits(x) + 1, 0)),
        [x] if is_int(x) || is_float(x) || x == &DataType::Null => Ok(DataType::Float64),
        _ => Err(no_function(name, t)),
    }
}

fn number(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [x] if decimal_parts(x).is_some() || is_int(x) || is_float(x) => Ok(x.clone()),
        [DataType::Null] => Ok(DataType::Float64),
        _ => Err(no_function(name, t)),
    }
}

fn sign_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [x] if decimal_parts(x).is_some() => Ok(DataType::Decimal128(1, 0)),
        [x] if is_int(x) || is_float(x) || x == &DataType::Null => Ok(DataType::Float64),
        _ => Err(no_function("sign", t)),
    }
}

fn round(args: &[ArrayRef], target: &DataType, mode: Mode) -> Result<ArrayRef> {
    let x = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    if target == &DataType::Float64 {
        let x = cast_array(x, &DataType::Float64)?;
        let r: Float64Array = x.as_primitive::<Float64Type>().unary(|v| match mode {
            Mode::HalfAway => v.round_ties_even(),
            Mode::Truncate => v.trunc(),
            Mode::Up => v.ceil(),
            Mode::Down => v.floor(),
        });
        return Ok(Arc::new(r));
    }
    let x = if is_int(x.data_type()) || x.data_type() == &DataType::Null {
        cast_array(x, &DataType::Decimal128(20, 0))?
    } else {
        Arc::clone(x)
    };
    let (Some((_, from)), Some((p, to))) = (decimal_parts(x.data_type()), decimal_parts(target)) else {
        return Err(PlanError::internal("round of a non-number"));
    };
    let (from, to) = (i32::from(from), i32::from(to));
    let values = to_256(&x)?;
    let digits = args.get(1).map(|d| cast_array(d, &DataType::Int32)).transpose()?;
    let limit = pow10(p);
    let r: Decimal256Array = (0..values.len())
        .map(|i| {
            if values.is_null(i) || digits.as_ref().is_some_and(|d| d.is_null(i)) {
                return Ok(None);
            }
            let n = digits
                .as_ref()
                .map_or(0, |d| d.as_primitive::<Int32Type>().value(i))
                .clamp(-76, 76);
            round_value(values.value(i), from, n.min(from), mode)
                .and_then(|v| decimal_rescale(v, n.min(from), to, true))
                .filter(|v| v.wrapping_abs() < limit)
                .map(Some)
                .ok_or_else(numeric_overflow)
        })
        .collect::<Result<_>>()?;
    decimal_array(r, target)
}

/// `v` (scale `from`) at scale `n`, which may be negative.
fn round_value(v: i256, from: i32, n: i32, mode: Mode) -> Option<i256> {
    let half_away = decimal_rescale(v, from, n, false)?;
    if mode == Mode::HalfAway {
        return Some(half_away);
    }
    let down = u8::try_from(from - n).ok()?;
    if down > 76 {
        return Some(i256::ZERO);
    }
    let by = pow10(down);
    let (q, rest) = (v.wrapping_div(by), v.wrapping_rem(by));
    Some(match mode {
        Mode::Up if rest > i256::ZERO => q.wrapping_add(i256::ONE),
        Mode::Down if rest < i256::ZERO => q.wrapping_sub(i256::ONE),
        _ => q,
    })
}

fn decimal_array(r: Decimal256Array, target: &DataType) -> Result<ArrayRef> {
    let error = |e: arrow::error::ArrowError| PlanError::internal(e.to_string());
    match target {
        DataType::Decimal256(p, s) => Ok(Arc::new(r.with_precision_and_scale(*p, *s).map_err(error)?)),
        DataType::Decimal128(p, s) => {
            let n: arrow::array::Decimal128Array = r.try_unary(|v: i256| v.to_i128().ok_or_else(numeric_overflow))?;
            Ok(Arc::new(n.with_precision_and_scale(*p, *s).map_err(error)?))
        }
        t => Err(PlanError::internal(format!("{t} is not a decimal"))),
    }
}

fn abs(args: &[ArrayRef]) -> Result<ArrayRef> {
    let x = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    let t = x.data_type();
    macro_rules! int {
        ($ty:ty) => {{
            let r: arrow::array::PrimitiveArray<$ty> = x
                .as_primitive::<$ty>()
                .try_unary(|v| v.checked_abs().ok_or_else(|| out_of_range(t)))?;
            Ok(Arc::new(r) as ArrayRef)
        }};
    }
    match t {
        DataType::Int16 => int!(arrow::datatypes::Int16Type),
        DataType::Int32 => int!(Int32Type),
        DataType::Int64 => int!(arrow::datatypes::Int64Type),
        DataType::Float32 => {
            let r: arrow::array::Float32Array = x.as_primitive::<arrow::datatypes::Float32Type>().unary(f32::abs);
            Ok(Arc::new(r))
        }
        DataType::Decimal128(p, s) => {
            let r: arrow::array::Decimal128Array = x
                .as_primitive::<arrow::datatypes::Decimal128Type>()
                .unary(i128::wrapping_abs);
            Ok(Arc::new(
                r.with_precision_and_scale(*p, *s)
                    .map_err(|e| PlanError::internal(e.to_string()))?,
            ))
        }
        DataType::Decimal256(p, s) => {
            let r: Decimal256Array = x
                .as_primitive::<arrow::datatypes::Decimal256Type>()
                .unary(i256::wrapping_abs);
            Ok(Arc::new(
                r.with_precision_and_scale(*p, *s)
                    .map_err(|e| PlanError::internal(e.to_string()))?,
            ))
        }
        _ => {
            let x = cast_array(x, &DataType::Float64)?;
            let r: Float64Array = x.as_primitive::<Float64Type>().unary(f64::abs);
            Ok(Arc::new(r))
        }
    }
}

fn sign(args: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let x = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    let floats = cast_array(x, &DataType::Float64)?;
    let r: Float64Array = floats
        .as_primitive::<Float64Type>()
        .unary(|v| if v == 0.0 || v.is_nan() { v } else { v.signum() });
    cast_array(&(Arc::new(r) as ArrayRef), target)
}
