//! The time in a materialized view: the epoch's timestamp, which has no value when the view is planned.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;

use arrow::datatypes::IntervalMonthDayNano;

use super::errors::map_df_error;
use super::functions::call;
use super::operators::cast_expr;
use super::types;
use crate::Result;

/// The variable that stands for `now()` in the bound plan of a view.
pub const NOW: &str = "@@now";

/// A date's first moment.
///
/// # Errors
/// There is no such cast.
pub fn date_as_timestamp(date: Expr) -> Result<Expr> {
    cast_expr(date, &DataType::Date32, &types::timestamp())
}

/// A timestamp some days later.
///
/// # Errors
/// XX000 if the function is not registered.
pub fn days_later(timestamp: Expr, days: i32) -> Result<Expr> {
    let interval = IntervalMonthDayNano::new(0, days, 0);
    added("pg_add", timestamp, interval)
}

/// The last midnight that is not after `timestamp` less `us` microseconds.
///
/// # Errors
/// XX000 if a function is not registered.
pub fn midnight_before(timestamp: Expr, us: i64) -> Result<Expr> {
    let moved = if us == 0 {
        timestamp
    } else {
        added(
            "pg_sub",
            timestamp,
            IntervalMonthDayNano::new(0, 0, us.saturating_mul(1000)),
        )?
    };
    let day = Expr::Literal(ScalarValue::Utf8(Some("day".to_owned())), None);
    call("date_trunc", vec![day, moved]).map_err(map_df_error)
}

fn added(function: &str, timestamp: Expr, interval: IntervalMonthDayNano) -> Result<Expr> {
    let interval = Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), None);
    call(function, vec![timestamp, interval]).map_err(map_df_error)
}
