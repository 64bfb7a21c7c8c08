//! `+ - * / %` and unary minus: integers, floats, numeric, dates, times, timestamps and intervals.
//!
//! Both arguments have been brought to a common class by [`crate::sql::operators`]: equal integer or float types, or two decimals.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Datum, Decimal256Array, Float32Array, Float64Array, Int32Array,
    IntervalMonthDayNanoArray, PrimitiveArray, TimestampMicrosecondArray,
};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float32Type, Float64Type, IntervalMonthDayNano, IntervalUnit, TimeUnit, i256,
};
use arrow::error::ArrowError;

use datafusion::logical_expr::ColumnarValue;

use super::cast::decimal_rescale;
use super::{PgFunction, TypeFn, nulls};
use crate::PlanError;
use crate::sql::clock::{self, ZonedTime};
use crate::sql::datetime::{DAY_US, add_interval, interval_of_micros};
use crate::sql::text::pow10;
use crate::sql::types::{self, BARE_NUMERIC, QUOTIENT, TIME, TIMETZ, interval, is_unlimited};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new("pg_add", type_add as TypeFn, |a, t| eval(Op::Add, a, t)).fast(|a, t| fast(Op::Add, a, t)),
        PgFunction::new("pg_sub", type_sub, |a, t| eval(Op::Sub, a, t)).fast(|a, t| fast(Op::Sub, a, t)),
        PgFunction::new("pg_mul", type_mul, |a, t| eval(Op::Mul, a, t)).fast(|a, t| fast(Op::Mul, a, t)),
        PgFunction::new("pg_div", type_div, |a, t| eval(Op::Div, a, t)).fast(|a, t| fast(Op::Div, a, t)),
        PgFunction::new("pg_mod", type_mod, |a, t| eval(Op::Mod, a, t)).fast(|a, t| fast(Op::Mod, a, t)),
        PgFunction::new("pg_neg", |t, _| first(t), |a, _| negate(a)),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
}

fn first(t: &[DataType]) -> Result<DataType> {
    t.first()
        .cloned()
        .ok_or_else(|| PlanError::internal("operator without arguments"))
}

/// Precision and scale of a decimal type.
pub(in crate::sql) fn decimal_parts(t: &DataType) -> Option<(u8, i8)> {
    match t {
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => Some((*p, *s)),
        _ => None,
    }
}

fn type_of(op: Op, t: &[DataType]) -> Result<DataType> {
    let [a, b] = t else {
        return Err(PlanError::internal("operator needs two arguments"));
    };
    if let (Some((p1, s1)), Some((p2, s2))) = (decimal_parts(a), decimal_parts(b)) {
        return Ok(decimal_result(op, (a, p1, s1), (b, p2, s2)));
    }
    use DataType::{Date32, Float64, Int32, Interval, Timestamp};
    Ok(match (a, b, op) {
        (Date32, Date32, Op::Sub) => Int32,
        (Date32, Int32, _) => Date32,
        (Int32, Date32, Op::Add) => Date32,
        (&TIME, &TIME, Op::Sub) => interval(),
        (Date32, &TIME, _) | (&TIME, Date32, _) => types::timestamp(),
        (Date32, &TIMETZ, _) | (&TIMETZ, Date32, _) => types::timestamptz(),
        (Interval(_), &TIME | &TIMETZ, _) => b.clone(),
        (Timestamp(..), Timestamp(..), Op::Sub) => interval(),
        (Timestamp(..), Interval(_), _) => a.clone(),
        (Interval(_), Timestamp(..), _) => b.clone(),
        (Interval(_), Float64, _) => interval(),
        (Float64, Interval(_), Op::Mul) => interval(),
        _ => a.clone(),
    })
}

fn decimal_result(op: Op, (a, p1, s1): (&DataType, u8, i8), (b, p2, s2): (&DataType, u8, i8)) -> DataType {
    if op == Op::Div {
        return QUOTIENT;
    }
    if is_unlimited(a) || is_unlimited(b) {
        let quotient = |t: &DataType| is_unlimited(t) && t != &BARE_NUMERIC;
        let any_quotient = quotient(a) || quotient(b);
        return if any_quotient && matches!(op, Op::Add | Op::Sub | Op::Mul) {
            QUOTIENT
        } else {
            BARE_NUMERIC
        };
    }
    let whole = |p: u8, s: i8| i32::from(p) - i32::from(s);
    let (p, s) = match op {
        Op::Add | Op::Sub => {
            let s = i32::from(s1.max(s2));
            (whole(p1, s1).max(whole(p2, s2)) + 1 + s, s)
        }
        Op::Mod => {
            let s = i32::from(s1.max(s2));
            (whole(p1, s1).min(whole(p2, s2)).max(1) + s, s)
        }
        Op::Mul | Op::Div => (i32::from(p1) + i32::from(p2), i32::from(s1) + i32::from(s2)),
    };
    if s > 60 {
        return BARE_NUMERIC;
    }
    types::decimal(u8::try_from(p).unwrap_or(u8::MAX), i8::try_from(s).unwrap_or(0))
}

fn type_add(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    type_of(Op::Add, t)
}
fn type_sub(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    type_of(Op::Sub, t)
}
fn type_mul(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    type_of(Op::Mul, t)
}
fn type_div(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    type_of(Op::Div, t)
}
fn type_mod(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    type_of(Op::Mod, t)
}

/// Words an Arrow arithmetic error as PostgreSQL does.
pub(in crate::sql) fn arithmetic_error(e: ArrowError, t: &DataType) -> PlanError {
    match e {
        ArrowError::DivideByZero => division_by_zero(),
        ArrowError::ArithmeticOverflow(_) => out_of_range(t),
        other => PlanError::internal(other.to_string()),
    }
}

pub(in crate::sql) fn division_by_zero() -> PlanError {
    PlanError::new("22012", "division by zero")
}

/// `integer out of range` and its like.
pub(in crate::sql) fn out_of_range(t: &DataType) -> PlanError {
    let message = match t {
        DataType::Float32 | DataType::Float64 => "value out of range: overflow".to_owned(),
        DataType::Decimal128(..) | DataType::Decimal256(..) => return crate::sql::text::numeric_overflow(),
        DataType::Timestamp(..) => "timestamp out of range".to_owned(),
        other => format!("{} out of range", types::base_name(other)),
    };
    let code = if matches!(
        t,
        DataType::Date32 | DataType::Timestamp(..) | DataType::Interval(_) | &TIME
    ) {
        "22008"
    } else {
        "22003"
    };
    PlanError::new(code, message)
}

fn eval(op: Op, args: &[ArrayRef], out: &DataType) -> Result<ArrayRef> {
    let [a, b] = args else {
        return Err(PlanError::internal("operator needs two arguments"));
    };
    match (a.data_type(), b.data_type()) {
        (DataType::Int16 | DataType::Int32 | DataType::Int64, t) if t == a.data_type() => integers(op, a, b),
        (DataType::Float32, DataType::Float32) => {
            floats::<Float32Type>(op, a, b).map(|r: Float32Array| Arc::new(r) as ArrayRef)
        }
        (DataType::Float64, DataType::Float64) => {
            floats::<Float64Type>(op, a, b).map(|r: Float64Array| Arc::new(r) as ArrayRef)
        }
        (x, y) if decimal_parts(x).is_some() && decimal_parts(y).is_some() => decimals(op, a, b, out),
        _ => temporal(op, a, b, out),
    }
}

/// Integers against a constant, and moments moved by a constant interval without months.
fn fast(op: Op, args: &[ColumnarValue], out: &DataType) -> Option<Result<ArrayRef>> {
    let [a, b] = args else { return None };
    let int = |v: &ColumnarValue| matches!(v.data_type(), DataType::Int16 | DataType::Int32 | DataType::Int64);
    if int(a) && a.data_type() == b.data_type() {
        let datum = |v: &ColumnarValue| -> Option<Box<dyn Datum>> {
            match v {
                ColumnarValue::Array(a) => Some(Box::new(Arc::clone(a))),
                ColumnarValue::Scalar(s) => s.to_scalar().ok().map(|s| Box::new(s) as Box<dyn Datum>),
            }
        };
        return Some(integer_kernel(op, datum(a)?.as_ref(), datum(b)?.as_ref(), out));
    }
    match (a, b) {
        (
            ColumnarValue::Array(ts),
            ColumnarValue::Scalar(datafusion::common::ScalarValue::IntervalMonthDayNano(Some(v))),
        ) if v.months == 0 && matches!(op, Op::Add | Op::Sub) && matches!(ts.data_type(), DataType::Timestamp(..)) => {
            let us = i64::from(v.days)
                .checked_mul(DAY_US)?
                .checked_add(v.nanoseconds / 1000)?;
            let us = if op == Op::Sub { us.checked_neg()? } else { us };
            let ts = ts.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
            let moved = ts.try_unary::<_, arrow::datatypes::TimestampMicrosecondType, _>(|t| {
                t.checked_add(us).ok_or_else(|| out_of_range(out))
            });
            Some(moved.map(|m| Arc::new(m.with_timezone_opt(ts.timezone().map(Arc::<str>::from))) as ArrayRef))
        }
        _ => None,
    }
}

fn integers(op: Op, a: &ArrayRef, b: &ArrayRef) -> Result<ArrayRef> {
    integer_kernel(op, a, b, a.data_type())
}

fn integer_kernel(op: Op, a: &dyn Datum, b: &dyn Datum, t: &DataType) -> Result<ArrayRef> {
    let r = match op {
        Op::Add => numeric::add(a, b),
        Op::Sub => numeric::sub(a, b),
        Op::Mul => numeric::mul(a, b),
        Op::Div => numeric::div(a, b),
        Op::Mod => numeric::rem(a, b),
    };
    r.map_err(|e| arithmetic_error(e, t))
}

/// PostgreSQL refuses results that overflow to infinity or underflow to zero, and zero divisors.
fn floats<T>(op: Op, a: &ArrayRef, b: &ArrayRef) -> Result<PrimitiveArray<T>>
where
    T: ArrowPrimitiveType,
    T::Native: FloatOps,
{
    let (x, y) = (a.as_primitive::<T>(), b.as_primitive::<T>());
    arrow::compute::try_binary::<_, _, _, T>(x, y, |l, r| {
        let v = match op {
            Op::Add => l + r,
            Op::Sub => l - r,
            Op::Mul => l * r,
            Op::Div | Op::Mod if r.zero() => return Err(ArrowError::DivideByZero),
            Op::Div => l / r,
            Op::Mod => l % r,
        };
        if v.infinite() && !l.infinite() && !r.infinite() {
            return Err(ArrowError::ArithmeticOverflow(String::new()));
        }
        if v.zero() && !l.zero() && matches!(op, Op::Mul | Op::Div) && !r.zero() && !r.infinite() {
            return Err(ArrowError::ComputeError("underflow".into()));
        }
        Ok(v)
    })
    .map_err(|e| match e {
        ArrowError::ComputeError(_) => PlanError::new("22003", "value out of range: underflow"),
        other => arithmetic_error(other, &T::DATA_TYPE),
    })
}

trait FloatOps:
    Copy
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Rem<Output = Self>
{
    fn zero(self) -> bool;
    fn infinite(self) -> bool;
}

impl FloatOps for f32 {
    fn zero(self) -> bool {
        self == 0.0
    }
    fn infinite(self) -> bool {
        self.is_infinite()
    }
}

impl FloatOps for f64 {
    fn zero(self) -> bool {
        self == 0.0
    }
    fn infinite(self) -> bool {
        self.is_infinite()
    }
}

fn decimals(op: Op, a: &ArrayRef, b: &ArrayRef, out: &DataType) -> Result<ArrayRef> {
    let (Some((_, s1)), Some((_, s2)), Some((p, s))) = (
        decimal_parts(a.data_type()),
        decimal_parts(b.data_type()),
        decimal_parts(out),
    ) else {
        return Err(PlanError::internal("decimal operator with a non-decimal argument"));
    };
    // Wide enough by construction: plain 128-bit kernels need no check beyond overflow of the declared digits.
    if matches!(out, DataType::Decimal128(..))
        && matches!(a.data_type(), DataType::Decimal128(..))
        && matches!(b.data_type(), DataType::Decimal128(..))
    {
        let (x, y) = (
            a.as_primitive::<arrow::datatypes::Decimal128Type>(),
            b.as_primitive::<arrow::datatypes::Decimal128Type>(),
        );
        let up = |from: i8| {
            10i128
                .checked_pow(u32::try_from(s - from).unwrap_or(0))
                .unwrap_or(i128::MAX)
        };
        let (fa, fb) = if op == Op::Mul { (1, 1) } else { (up(s1), up(s2)) };
        let limit = 10i128.pow(u32::from(p));
        let overflow = || ArrowError::ArithmeticOverflow(String::new());
        let r: arrow::array::Decimal128Array = arrow::compute::try_binary(x, y, |l, r| {
            let l = l.checked_mul(fa).ok_or_else(overflow)?;
            let r = r.checked_mul(fb).ok_or_else(overflow)?;
            let v = match op {
                Op::Add => l.checked_add(r),
                Op::Sub => l.checked_sub(r),
                Op::Mul => l.checked_mul(r),
                Op::Div | Op::Mod if r == 0 => return Err(ArrowError::DivideByZero),
                Op::Div => l.checked_div(r),
                Op::Mod => l.checked_rem(r),
            };
            match v {
                Some(v) if v > -limit && v < limit => Ok(v),
                _ => Err(overflow()),
            }
        })
        .map_err(|e| arithmetic_error(e, out))?;
        return r
            .with_precision_and_scale(p, s)
            .map(|r| Arc::new(r) as ArrayRef)
            .map_err(|e| PlanError::internal(e.to_string()));
    }
    wide_decimals(op, (a, s1), (b, s2), p, s)
}

fn wide_decimals(op: Op, (a, s1): (&ArrayRef, i8), (b, s2): (&ArrayRef, i8), p: u8, s: i8) -> Result<ArrayRef> {
    let (x, y) = (to_256(a)?, to_256(b)?);
    let limit = pow10(p);
    let overflow = || ArrowError::ArithmeticOverflow(String::new());
    let r: Decimal256Array = arrow::compute::try_binary(&x, &y, |l, r| {
        let v = match op {
            Op::Mul => product(l, r, i32::from(s1) + i32::from(s2), i32::from(s)).ok_or_else(overflow)?,
            Op::Div => divide(l, i32::from(s1), r, i32::from(s2))?,
            Op::Add | Op::Sub | Op::Mod => {
                let scale = i32::from(s1.max(s2));
                let l = decimal_rescale(l, i32::from(s1), scale, true).ok_or_else(overflow)?;
                let r = decimal_rescale(r, i32::from(s2), scale, true).ok_or_else(overflow)?;
                let v = match op {
                    Op::Add => l.checked_add(r),
                    Op::Sub => l.checked_sub(r),
                    _ if r == i256::ZERO => return Err(ArrowError::DivideByZero),
                    _ => l.checked_rem(r),
                };
                decimal_rescale(v.ok_or_else(overflow)?, scale, i32::from(s), true).ok_or_else(overflow)?
            }
        };
        if v > limit.wrapping_neg() && v < limit {
            Ok(v)
        } else {
            Err(overflow())
        }
    })
    .map_err(|e| arithmetic_error(e, &BARE_NUMERIC))?;
    r.with_precision_and_scale(p, s)
        .map(|r| Arc::new(r) as ArrayRef)
        .map_err(|e| PlanError::internal(e.to_string()))
}

/// `l * r`, whose scale is `from`, at scale `to`; `None` if that has too many digits on either side. Two unlimited numerics have a
/// product of 512 bits before its zeros are cut off.
fn product(l: i256, r: i256, from: i32, to: i32) -> Option<i256> {
    if let Some(v) = l.checked_mul(r) {
        return decimal_rescale(v, from, to, true);
    }
    let limbs = |v: i256| {
        let (low, high) = v.wrapping_abs().to_parts();
        let high = high.cast_unsigned();
        [low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64]
    };
    let (x, y) = (limbs(l), limbs(r));
    let mut wide = [0u64; 8];
    for (i, a) in x.iter().enumerate() {
        let mut carry = 0u128;
        for (j, b) in y.iter().enumerate() {
            let sum = u128::from(*a) * u128::from(*b) + u128::from(wide[i + j]) + carry;
            wide[i + j] = sum as u64;
            carry = sum >> 64;
        }
        wide[i + 4] = carry as u64;
    }
    let mut digits = u32::try_from(from - to).ok()?;
    while digits > 0 {
        let part = digits.min(19);
        let by = 10u128.pow(part);
        let rest = wide.iter_mut().rev().fold(0u128, |rest, limb| {
            let part = (rest << 64) | u128::from(*limb);
            *limb = (part / by) as u64;
            part % by
        });
        if rest != 0 {
            return None;
        }
        digits -= part;
    }
    if wide[4..].iter().any(|&limb| limb != 0) || wide[3] >> 63 != 0 {
        return None;
    }
    let join = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
    let v = i256::from_parts(join(wide[1], wide[0]), join(wide[3], wide[2]).cast_signed());
    Some(if (l < i256::ZERO) == (r < i256::ZERO) {
        v
    } else {
        v.wrapping_neg()
    })
}

/// A decimal array's unscaled values, 256 bits wide; type parameters of the result are meaningless.
pub(in crate::sql) fn to_256(a: &ArrayRef) -> Result<Decimal256Array> {
    match a.data_type() {
        DataType::Decimal256(..) => Ok(a.as_primitive::<arrow::datatypes::Decimal256Type>().clone()),
        DataType::Decimal128(..) => {
            let x = a.as_primitive::<arrow::datatypes::Decimal128Type>();
            Ok(x.unary::<_, arrow::datatypes::Decimal256Type>(i256::from_i128))
        }
        t => Err(PlanError::internal(format!("{t} is not a decimal"))),
    }
}

/// Quotient at scale 38, rounded to the number of digits that PostgreSQL selects for it: at least 16 significant ones, in whole
/// groups of four, and never fewer after the point than either operand uses.
///
/// # Errors
/// Division by zero; a quotient beyond 38 digits on either side.
pub fn divide(l: i256, s1: i32, r: i256, s2: i32) -> std::result::Result<i256, ArrowError> {
    const SCALE: i32 = 38;
    if r == i256::ZERO {
        return Err(ArrowError::DivideByZero);
    }
    if l == i256::ZERO {
        return Ok(i256::ZERO);
    }
    let (w1, d1) = leading_group(l.wrapping_abs(), s1);
    let (w2, d2) = leading_group(r.wrapping_abs(), s2);
    let weight = w1 - w2 - i32::from(d1 <= d2);
    // A scale of an unlimited numeric says nothing of the digits in use.
    let used = |v: i256, s: i32| if s >= SCALE { used_scale(v, s) } else { s };
    let digits = (16 - 4 * weight).max(used(l, s1)).max(used(r, s2)).max(0);
    if digits > SCALE {
        return quotient(l, s1, r, s2, SCALE, true);
    }
    let q = quotient(l, s1, r, s2, digits, false)?;
    decimal_rescale(q, digits, SCALE, true).ok_or_else(|| ArrowError::ArithmeticOverflow(String::new()))
}

/// The scale of a number without the zeros at its end.
fn used_scale(mut v: i256, mut scale: i32) -> i32 {
    for zeros in [32u8, 16, 8, 4, 2, 1] {
        let power = pow10(zeros);
        if i32::from(zeros) <= scale && v.wrapping_rem(power) == i256::ZERO {
            v = v.wrapping_div(power);
            scale -= i32::from(zeros);
        }
    }
    scale
}

/// `l / r` rounded half away from zero at `scale`; long division, so no intermediate exceeds 256 bits by more than the operands.
fn quotient(l: i256, s1: i32, r: i256, s2: i32, scale: i32, exact: bool) -> std::result::Result<i256, ArrowError> {
    let overflow = || ArrowError::ArithmeticOverflow(String::new());
    let negative = (l < i256::ZERO) != (r < i256::ZERO);
    let (mut rest, mut divisor) = (l.wrapping_abs(), r.wrapping_abs());
    let mut shift = scale + s2 - s1;
    // Too many digits on the left: move the point of the divisor instead.
    while shift < 0 {
        divisor = divisor.checked_mul(i256::from_i128(10)).ok_or_else(overflow)?;
        shift += 1;
    }
    let mut q = rest.wrapping_div(divisor);
    rest = rest.wrapping_rem(divisor);
    let ten = i256::from_i128(10);
    for _ in 0..shift {
        q = q.checked_mul(ten).ok_or_else(overflow)?;
        rest = rest.checked_mul(ten).ok_or_else(overflow)?;
        q = q.checked_add(rest.wrapping_div(divisor)).ok_or_else(overflow)?;
        rest = rest.wrapping_rem(divisor);
    }
    if exact && rest != i256::ZERO {
        return Err(overflow());
    }
    if rest >= divisor.wrapping_sub(rest) {
        q = q.checked_add(i256::ONE).ok_or_else(overflow)?;
    }
    Ok(if negative { q.wrapping_neg() } else { q })
}

/// Weight (in groups of four digits, counted from the point) and value of the first non-zero group.
fn leading_group(v: i256, scale: i32) -> (i32, i32) {
    let text = v.to_string();
    let digits = i32::try_from(text.len()).unwrap_or(0) - scale;
    let weight = (digits - 1).div_euclid(4);
    let take = usize::try_from(digits - 4 * weight).unwrap_or(1);
    let group: String = text.chars().chain(std::iter::repeat('0')).take(take).collect();
    (weight, group.parse().unwrap_or(0))
}

fn temporal(op: Op, a: &ArrayRef, b: &ArrayRef, out: &DataType) -> Result<ArrayRef> {
    use DataType::{Date32, Float64, Int32, Interval, Timestamp};
    let (ta, tb) = (a.data_type().clone(), b.data_type().clone());
    match (&ta, &tb) {
        (DataType::Null, _) | (_, DataType::Null) => Ok(nulls(out, a.len())),
        (Date32, Date32) => {
            let (x, y) = (
                a.as_primitive::<arrow::datatypes::Date32Type>(),
                b.as_primitive::<arrow::datatypes::Date32Type>(),
            );
            let r: Int32Array = arrow::compute::try_binary(x, y, |l, r| l.checked_sub(r).ok_or(overflow()))
                .map_err(|e| arithmetic_error(e, &Int32))?;
            Ok(Arc::new(r))
        }
        (Date32, Int32) => date_plus(a, b, op == Op::Sub),
        (Int32, Date32) => date_plus(b, a, false),
        (Timestamp(..), Timestamp(..)) => {
            let (x, y) = (
                a.as_primitive::<arrow::datatypes::TimestampMicrosecondType>(),
                b.as_primitive::<arrow::datatypes::TimestampMicrosecondType>(),
            );
            let r: IntervalMonthDayNanoArray = arrow::compute::try_binary(x, y, |l: i64, r: i64| {
                l.checked_sub(r).and_then(interval_of_micros).ok_or(overflow())
            })
            .map_err(|e| arithmetic_error(e, out))?;
            Ok(Arc::new(r))
        }
        (&TIME, &TIME) => {
            let (x, y) = (times(a), times(b));
            let r: IntervalMonthDayNanoArray =
                arrow::compute::binary(x, y, |l: i64, r: i64| interval_of_day(l.wrapping_sub(r)))
                    .map_err(|e| arithmetic_error(e, out))?;
            Ok(Arc::new(r))
        }
        (&TIME | &TIMETZ, Interval(_)) => time_plus(a, b, op == Op::Sub),
        (Interval(_), &TIME | &TIMETZ) => time_plus(b, a, false),
        (Date32, &TIME | &TIMETZ) => date_and_time(a, b, out),
        (&TIME | &TIMETZ, Date32) => date_and_time(b, a, out),
        (Timestamp(..), Interval(_)) => timestamp_plus(a, b, op == Op::Sub, out),
        (Interval(_), Timestamp(..)) => timestamp_plus(b, a, false, out),
        (Interval(_), Interval(_)) => {
            let (x, y) = (
                a.as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(),
                b.as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(),
            );
            let r: IntervalMonthDayNanoArray =
                arrow::compute::try_binary(x, y, |l: IntervalMonthDayNano, r: IntervalMonthDayNano| {
                    let r = if op == Op::Sub {
                        IntervalMonthDayNano::new(-r.months, -r.days, -r.nanoseconds)
                    } else {
                        r
                    };
                    plus(l, r).ok_or(overflow())
                })
                .map_err(|e| arithmetic_error(e, out))?;
            Ok(Arc::new(r))
        }
        (Interval(_), Float64) => scale_interval(a, b, op == Op::Div),
        (Float64, Interval(_)) => scale_interval(b, a, false),
        _ => Err(PlanError::internal(format!("no operator for {ta} and {tb}"))),
    }
}

fn overflow() -> ArrowError {
    ArrowError::ArithmeticOverflow(String::new())
}

fn plus(l: IntervalMonthDayNano, r: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano::new(
        l.months.checked_add(r.months)?,
        l.days.checked_add(r.days)?,
        l.nanoseconds.checked_add(r.nanoseconds)?,
    ))
}

fn date_plus(date: &ArrayRef, days: &ArrayRef, minus: bool) -> Result<ArrayRef> {
    let (x, y) = (
        date.as_primitive::<arrow::datatypes::Date32Type>(),
        days.as_primitive::<arrow::datatypes::Int32Type>(),
    );
    let r: Date32Array = arrow::compute::try_binary(x, y, |l: i32, r: i32| {
        if minus { l.checked_sub(r) } else { l.checked_add(r) }.ok_or(overflow())
    })
    .map_err(|e| arithmetic_error(e, &DataType::Date32))?;
    Ok(Arc::new(r))
}

/// A part of a day as an interval. Values under a NULL are arbitrary, so none may overflow.
pub(super) fn interval_of_day(us: i64) -> IntervalMonthDayNano {
    IntervalMonthDayNano::new(0, 0, us.wrapping_mul(1000))
}

fn times(a: &ArrayRef) -> &arrow::array::Time64MicrosecondArray {
    a.as_primitive::<arrow::datatypes::Time64MicrosecondType>()
}

/// A time of day, an interval's hours later: over midnight it begins anew. Months and days do not count.
fn time_plus(time: &ArrayRef, iv: &ArrayRef, minus: bool) -> Result<ArrayRef> {
    let iv = iv.as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>();
    let moved = |us: i64, v: IntervalMonthDayNano| {
        let by = v.nanoseconds / 1000;
        clock::wrapped(if minus {
            us.wrapping_sub(by % DAY_US)
        } else {
            us.wrapping_add(by % DAY_US)
        })
    };
    if time.data_type() == &TIME {
        let r: arrow::array::Time64MicrosecondArray =
            arrow::compute::binary(times(time), iv, moved).map_err(|e| arithmetic_error(e, time.data_type()))?;
        return Ok(Arc::new(r));
    }
    let both = time.as_fixed_size_binary().iter().zip(iv.iter());
    super::cast::zoned_times(both.map(|(t, v)| {
        let (t, v) = (ZonedTime::of_bytes(t?), v?);
        Some(ZonedTime {
            us: moved(t.us, v),
            west: t.west,
        })
    }))
}

/// A day and a time of it.
fn date_and_time(date: &ArrayRef, time: &ArrayRef, out: &DataType) -> Result<ArrayRef> {
    let utc = |t: &[u8]| {
        let t = ZonedTime::of_bytes(t);
        t.us + i64::from(t.west) * 1_000_000
    };
    let dates = date.as_primitive::<arrow::datatypes::Date32Type>().iter();
    let moment = |(d, us): (Option<i32>, Option<i64>)| match (d, us) {
        (Some(d), Some(us)) => {
            let moment = i64::from(d).checked_mul(DAY_US).and_then(|day| day.checked_add(us));
            moment.map(Some).ok_or_else(|| out_of_range(out))
        }
        _ => Ok(None),
    };
    let r: arrow::array::TimestampMicrosecondArray = if time.data_type() == &TIME {
        dates.zip(times(time).iter()).map(moment).collect::<Result<_>>()?
    } else {
        let zoned = time.as_fixed_size_binary().iter().map(|t| t.map(utc));
        dates.zip(zoned).map(moment).collect::<Result<_>>()?
    };
    let zone = match out {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    Ok(Arc::new(r.with_timezone_opt(zone)))
}

/// A timestamp in microseconds, an interval later.
pub(super) fn later(at: i64, by: IntervalMonthDayNano) -> Result<i64> {
    add_interval(at, by).ok_or_else(|| PlanError::new("22008", "timestamp out of range"))
}

fn timestamp_plus(ts: &ArrayRef, iv: &ArrayRef, minus: bool, out: &DataType) -> Result<ArrayRef> {
    let (x, y) = (
        ts.as_primitive::<arrow::datatypes::TimestampMicrosecondType>(),
        iv.as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(),
    );
    let r: TimestampMicrosecondArray = arrow::compute::try_binary(x, y, |l: i64, r: IntervalMonthDayNano| {
        let r = if minus {
            IntervalMonthDayNano::new(-r.months, -r.days, -r.nanoseconds)
        } else {
            r
        };
        add_interval(l, r).ok_or(overflow())
    })
    .map_err(|e| arithmetic_error(e, out))?;
    let zone = match out {
        DataType::Timestamp(TimeUnit::Microsecond, Some(z)) => Some(Arc::clone(z)),
        _ => None,
    };
    Ok(Arc::new(r.with_timezone_opt(zone)))
}

/// Interval × number: each field is scaled, fractions of months and days spill downward (a month has 30 days).
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn scale_interval(iv: &ArrayRef, by: &ArrayRef, divide: bool) -> Result<ArrayRef> {
    let (x, y) = (
        iv.as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(),
        by.as_primitive::<arrow::datatypes::Float64Type>(),
    );
    let out = DataType::Interval(IntervalUnit::MonthDayNano);
    let r: IntervalMonthDayNanoArray = arrow::compute::try_binary(x, y, |v: IntervalMonthDayNano, f: f64| {
        if divide && f == 0.0 {
            return Err(ArrowError::DivideByZero);
        }
        let f = if divide { 1.0 / f } else { f };
        let exact = |n: f64| if divide { n / (1.0 / f) } else { n * f };
        let months = exact(f64::from(v.months));
        let days = exact(f64::from(v.days)) + round_micro(months.fract() * 30.0);
        let micros = exact(v.nanoseconds as f64 / 1000.0) + round_micro(days.fract()) * DAY_US as f64;
        if months.abs() > 2e9 || days.abs() > 2e9 || micros.abs() > 9e15 {
            return Err(overflow());
        }
        Ok(IntervalMonthDayNano::new(
            months.trunc() as i32,
            days.trunc() as i32,
            (micros.round_ties_even() as i64) * 1000,
        ))
    })
    .map_err(|e| arithmetic_error(e, &out))?;
    Ok(Arc::new(r))
}

fn round_micro(v: f64) -> f64 {
    (v * 1e6).round() / 1e6
}

fn negate(args: &[ArrayRef]) -> Result<ArrayRef> {
    let [a] = args else {
        return Err(PlanError::internal("unary minus needs one argument"));
    };
    numeric::neg(a).map_err(|e| arithmetic_error(e, a.data_type()))
}
