//! Distances between values, for RANGE frames. Where a sum leaves the type it stands for its end: every value is within it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Decimal256Array, Float64Array, Int64Array, Scalar};
use arrow::array::{IntervalMonthDayNanoArray, UInt32Array};
use arrow::compute::kernels::numeric::{add, sub};
use arrow::compute::{concat, take};
use arrow::datatypes::*;
use levee_planner::plan::Distance;

use super::super::columns::from_i64;
use crate::{Result, RuntimeError};

/// `values + by`, or `values - by`.
///
/// # Errors
/// The column's values have no such distance.
pub fn shifted(values: &ArrayRef, by: Distance, minus: bool) -> Result<ArrayRef> {
    let sign = |units: i128| if minus { -units } else { units };
    Ok(match (values.data_type(), by) {
        (DataType::Int64, Distance::Exact(units)) => {
            let units = sign(units);
            let sums: Int64Array = values.as_primitive::<Int64Type>().unary(|v| {
                let sum = i128::from(v).saturating_add(units);
                sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
            });
            Arc::new(sums)
        }
        (DataType::Decimal128(..), Distance::Exact(units)) => {
            let units = sign(units);
            let sums: Decimal128Array = values
                .as_primitive::<Decimal128Type>()
                .unary(|v| v.saturating_add(units));
            Arc::new(sums.with_data_type(values.data_type().clone()))
        }
        (DataType::Decimal256(..), Distance::Exact(units)) => {
            let units = i256::from_i128(sign(units));
            let end = if minus { i256::MIN } else { i256::MAX };
            let sums: Decimal256Array = values
                .as_primitive::<Decimal256Type>()
                .unary(|v| v.checked_add(units).unwrap_or(end));
            Arc::new(sums.with_data_type(values.data_type().clone()))
        }
        (DataType::Float64, Distance::Float(bits)) => {
            let by = f64::from_bits(bits);
            let by = if minus { -by } else { by };
            let sums: Float64Array = values.as_primitive::<Float64Type>().unary(|v| v + by);
            Arc::new(sums)
        }
        (DataType::Timestamp(TimeUnit::Microsecond, _), Distance::Interval { months, days, us }) => {
            let nanoseconds = us
                .checked_mul(1000)
                .ok_or_else(|| RuntimeError::internal("an interval that is too long"))?;
            timestamps(values, IntervalMonthDayNano::new(months, days, nanoseconds), minus)?
        }
        (other, by) => {
            return Err(RuntimeError::internal(format!(
                "{by:?} is no distance of values of type {other}"
            )));
        }
    })
}

fn timestamps(values: &ArrayRef, by: IntervalMonthDayNano, minus: bool) -> Result<ArrayRef> {
    let by = Scalar::new(IntervalMonthDayNanoArray::from(vec![by]));
    let sum = |part: &ArrayRef| if minus { sub(part, &by) } else { add(part, &by) };
    if let Ok(sums) = sum(values) {
        return Ok(sums);
    }
    // Some sum is out of range: one by one.
    let end = from_i64(vec![if minus { i64::MIN } else { i64::MAX }], None, values.data_type())?;
    let sums: Vec<ArrayRef> = (0..values.len())
        .map(|i| sum(&values.slice(i, 1)).unwrap_or_else(|_| Arc::clone(&end)))
        .collect();
    Ok(concat(&sums.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
}

/// A distance that holds every row which may see, or be seen by, one at that distance: months differ in length.
pub fn widened(by: Distance) -> Distance {
    match by {
        Distance::Interval { months, days, us } if months != 0 => Distance::Interval {
            months,
            days: days.saturating_add(4),
            us,
        },
        other => other,
    }
}

/// [`take`] with plain indices.
///
/// # Errors
/// An index out of range.
pub fn pick(values: &ArrayRef, at: Vec<u32>) -> Result<ArrayRef> {
    Ok(take(values, &UInt32Array::from(at), None)?)
}
