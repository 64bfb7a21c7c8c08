//! Intervals in pieces: their order, their parts, and the interval of summed parts.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array, Int64Array, IntervalMonthDayNanoArray};
use arrow::datatypes::{DataType, Decimal128Type, Int32Type, IntervalMonthDayNano, IntervalMonthDayNanoType};

use super::{PgFunction, all_valid};
use crate::PlanError;
use crate::sql::datetime::DAY_US;
use crate::sql::types;

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new("pg_interval_key", |_, _| Ok(DataType::Decimal128(38, 0)), |a, _| key(a)),
        PgFunction::new("pg_interval_part", |_, _| Ok(DataType::Int64), |a, _| part(a)),
        PgFunction::new("pg_interval_sum", |_, _| Ok(types::interval()), |a, _| sum(a)),
    ]
}

fn intervals(args: &[ArrayRef]) -> Result<&IntervalMonthDayNanoArray> {
    args.first()
        .and_then(|a| a.as_primitive_opt::<IntervalMonthDayNanoType>())
        .ok_or_else(|| PlanError::internal("not an interval"))
}

/// Microseconds with months of 30 days and days of 24 hours: the order of intervals.
fn key(args: &[ArrayRef]) -> Result<ArrayRef> {
    let r: Decimal128Array = intervals(args)?.unary(|v| {
        (i128::from(v.months) * 30 + i128::from(v.days)) * i128::from(DAY_US) + i128::from(v.nanoseconds / 1000)
    });
    Ok(Arc::new(
        r.with_precision_and_scale(38, 0)
            .map_err(|e| PlanError::internal(e.to_string()))?,
    ))
}

/// `pg_interval_part(x, n)`: months, days or microseconds.
fn part(args: &[ArrayRef]) -> Result<ArrayRef> {
    let n = args.get(1).and_then(|n| n.as_primitive_opt::<Int32Type>());
    let n = n.and_then(|n| n.iter().flatten().next()).unwrap_or(0);
    let r: Int64Array = intervals(args)?.unary(|v| match n {
        0 => v.months.into(),
        1 => v.days.into(),
        _ => v.nanoseconds / 1000,
    });
    Ok(Arc::new(r))
}

/// `pg_interval_sum(months, days, microseconds)` of sums.
fn sum(args: &[ArrayRef]) -> Result<ArrayRef> {
    let [months, days, us] = args else {
        return Err(PlanError::internal("an interval of other than three parts"));
    };
    let parts = [months, days, us].map(|a| a.as_primitive_opt::<Decimal128Type>());
    let [Some(months), Some(days), Some(us)] = parts else {
        return Err(PlanError::internal("an interval of other than sums"));
    };
    let of = |row: usize| {
        let nanoseconds = i64::try_from(us.value(row)).ok()?.checked_mul(1000)?;
        let (months, days) = (i32::try_from(months.value(row)), i32::try_from(days.value(row)));
        Some(IntervalMonthDayNano::new(months.ok()?, days.ok()?, nanoseconds))
    };
    let r: IntervalMonthDayNanoArray = (0..us.len())
        .map(|row| {
            all_valid(args, row)
                .then(|| of(row).ok_or_else(|| PlanError::new("22008", "interval out of range")))
                .transpose()
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}
