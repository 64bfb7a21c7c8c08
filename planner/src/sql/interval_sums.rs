//! `sum` and `avg` of intervals: months, days and microseconds are summed apart, exactly, and put together again.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result as DfResult};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, WindowFunctionDefinition};

use super::functions::{aggregate_functions, call, external};
use super::operators::{Typed, binary, cast_expr, coerce, df, int4};
use super::types::{TIME, interval};
use crate::PlanError;

/// The call as sums of parts, if it is `sum` or `avg` of intervals or times.
pub(super) fn of_aggregate(f: &AggregateFunction, schema: &DFSchema) -> DfResult<Option<Expr>> {
    let Some(arg) = argument(f.func.name(), &f.params.args, schema)? else {
        return Ok(None);
    };
    if f.params.distinct {
        return Err(external(distinct(f.func.name())));
    }
    assemble(f.func.name(), arg, |name, arg| {
        let mut part = f.clone();
        part.func = aggregate(name)?;
        part.params.args = vec![arg];
        Ok(Expr::AggregateFunction(part))
    })
    .map(Some)
}

/// The same of a window call.
pub(super) fn of_window(w: &WindowFunction, schema: &DFSchema) -> DfResult<Option<Expr>> {
    let WindowFunctionDefinition::AggregateUDF(f) = &w.fun else {
        return Ok(None);
    };
    let Some(arg) = argument(f.name(), &w.params.args, schema)? else {
        return Ok(None);
    };
    assemble(f.name(), arg, |name, arg| {
        let mut part = w.clone();
        part.fun = WindowFunctionDefinition::AggregateUDF(aggregate(name)?);
        part.params.args = vec![arg];
        Ok(Expr::WindowFunction(Box::new(part)))
    })
    .map(Some)
}

fn argument(name: &str, args: &[Expr], schema: &DFSchema) -> DfResult<Option<Expr>> {
    let ([arg], "sum" | "avg") = (args, name) else {
        return Ok(None);
    };
    let t = arg.get_type(schema)?;
    Ok(if t == interval() {
        Some(arg.clone())
    } else if t == TIME {
        Some(df(cast_expr(arg.clone(), &TIME, &interval()))?)
    } else {
        None
    })
}

fn distinct(name: &str) -> PlanError {
    PlanError::unsupported(format!("{name}(DISTINCT …) of intervals is not supported"))
        .hint("Select the distinct intervals in a subquery.")
}

fn aggregate(name: &str) -> DfResult<std::sync::Arc<datafusion::logical_expr::AggregateUDF>> {
    let found = aggregate_functions().iter().find(|f| f.name() == name);
    match found {
        Some(f) => Ok(std::sync::Arc::clone(f)),
        None if name == "count" => Ok(datafusion::functions_aggregate::count::count_udaf()),
        None => Err(external(PlanError::internal(format!("no aggregate {name}")))),
    }
}

fn assemble(name: &str, arg: Expr, of: impl Fn(&str, Expr) -> DfResult<Expr>) -> DfResult<Expr> {
    let sums = (0..3).map(|part| of("sum", call("pg_interval_part", vec![arg.clone(), int4(part)])?));
    let total = call("pg_interval_sum", sums.collect::<DfResult<_>>()?)?;
    if name == "sum" {
        return Ok(total);
    }
    let n = Typed::new(of("count", arg)?, DataType::Int64);
    // Where there are no values, their sum is NULL, so that nothing is divided by zero.
    let n = df(coerce(n, &DataType::Float64))?;
    df(binary(
        Typed::new(total, interval()),
        Operator::Divide,
        Typed::new(n, DataType::Float64),
    ))
}
