//! `power`, `exp`, `sqrt` and logarithms in double precision, with PostgreSQL's errors in place of infinities and NaN.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};

use super::arith::out_of_range;
use super::{PgFunction, no_function};
use crate::PlanError;

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new("power", |t, _| floats("power", t, 2), |a, _| two(a, power)),
        PgFunction::new("pow", |t, _| floats("pow", t, 2), |a, _| two(a, power)),
        PgFunction::new("exp", |t, _| floats("exp", t, 1), |a, _| one(a, exp)),
        PgFunction::new("sqrt", |t, _| floats("sqrt", t, 1), |a, _| one(a, sqrt)),
        PgFunction::new(
            "ln",
            |t, _| floats("ln", t, 1),
            |a, _| one(a, |x| logarithm(x).map(|()| x.ln())),
        ),
        PgFunction::new("log10", |t, _| floats("log10", t, 1), |a, _| one(a, log10)),
        PgFunction::new(
            "log",
            log_type,
            |a, _| {
                if a.len() == 1 { one(a, log10) } else { two(a, log) }
            },
        ),
    ]
}

fn floats(name: &str, t: &[DataType], n: usize) -> Result<DataType> {
    if t.len() == n && t.iter().all(|t| matches!(t, DataType::Float64 | DataType::Null)) {
        Ok(DataType::Float64)
    } else {
        Err(no_function(name, t))
    }
}

fn log_type(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    floats("log", t, if t.len() == 1 { 1 } else { 2 })
}

fn argument(a: &[ArrayRef], i: usize) -> Result<Float64Array> {
    let a = a.get(i).ok_or_else(|| PlanError::internal("no argument"))?;
    Ok(match a.data_type() {
        DataType::Null => Float64Array::new_null(a.len()),
        _ => a.as_primitive::<Float64Type>().clone(),
    })
}

fn one(a: &[ArrayRef], f: impl Fn(f64) -> Result<f64>) -> Result<ArrayRef> {
    let r: Float64Array = argument(a, 0)?.try_unary(f)?;
    Ok(Arc::new(r))
}

fn two(a: &[ArrayRef], f: impl Fn(f64, f64) -> Result<f64>) -> Result<ArrayRef> {
    let (x, y) = (argument(a, 0)?, argument(a, 1)?);
    let r: Float64Array = x
        .iter()
        .zip(&y)
        .map(|(x, y)| x.zip(y).map(|(x, y)| f(x, y)).transpose())
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}

/// Refuses a result that is infinite or zero because it does not fit.
fn fits(v: f64, may_be_zero: bool) -> Result<f64> {
    if v.is_infinite() {
        return Err(out_of_range(&DataType::Float64));
    }
    if v == 0.0 && !may_be_zero {
        return Err(PlanError::new("22003", "value out of range: underflow"));
    }
    Ok(v)
}

fn power(x: f64, y: f64) -> Result<f64> {
    if x == 0.0 && y < 0.0 {
        return Err(PlanError::new("2201F", "zero raised to a negative power is undefined"));
    }
    if x < 0.0 && y.is_finite() && y.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(PlanError::new("2201F", message));
    }
    let v = x.powf(y);
    if x.is_finite() && y.is_finite() {
        fits(v, x == 0.0)
    } else {
        Ok(v)
    }
}

fn exp(x: f64) -> Result<f64> {
    if x.is_finite() {
        fits(x.exp(), false)
    } else {
        Ok(x.exp())
    }
}

fn sqrt(x: f64) -> Result<f64> {
    if x < 0.0 {
        return Err(PlanError::new("2201F", "cannot take square root of a negative number"));
    }
    Ok(x.sqrt())
}

/// Refuses what has no logarithm.
fn logarithm(x: f64) -> Result<()> {
    if x == 0.0 {
        return Err(PlanError::new("2201E", "cannot take logarithm of zero"));
    }
    if x < 0.0 {
        return Err(PlanError::new("2201E", "cannot take logarithm of a negative number"));
    }
    Ok(())
}

fn log10(x: f64) -> Result<f64> {
    logarithm(x).map(|()| x.log10())
}

fn log(base: f64, x: f64) -> Result<f64> {
    logarithm(base)?;
    logarithm(x)?;
    if base == 1.0 {
        return Err(super::arith::division_by_zero());
    }
    Ok(x.ln() / base.ln())
}
