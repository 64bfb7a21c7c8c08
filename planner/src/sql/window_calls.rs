//! Calls with OVER as PostgreSQL types them.
//!
//! - Frame offsets are expressions without columns. DataFusion's planner takes literals only, so on the way through it they are further
//!   arguments of the call, and come back as typed values here; a parameter stays the text `$n` until it has its value.
//! - Distances of RANGE are measured in a type that holds the sums: int in bigint or numeric, dates as timestamps, intervals by their length.
//! - Numbers that `ntile`, `nth_value`, `lag` and `lead` take are constants; without one the result is NULL.

use std::any::Any;
use std::cmp::Ordering;

use arrow::datatypes::{DataType, i256};
use datafusion::common::{DFSchema, Result as DfResult, ScalarValue};
use datafusion::logical_expr::expr::{WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::planner::RawWindowExpr;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, WindowFrame, WindowFrameBound, WindowFrameUnits, lit};
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments};

use super::errors::map_df_error;
use super::functions::cast::cast_scalar;
use super::functions::sliding::Anew;
use super::functions::{call, external};
use super::literals::frame_offsets;
use super::operators::{cast_expr, coerce, common_type, df, is_float, is_int, is_number};
use super::types::{BARE_NUMERIC, base_name, canonical, interval, timestamp};
use super::typing::{type_expr, typed};
use crate::{PlanError, Result};

/// Exact for every sum of a bigint, or an interval's length, and a distance.
const WIDE: DataType = DataType::Decimal128(38, 0);

/// Moves the offsets of a call's frame behind its arguments.
pub(super) fn offsets_as_arguments(spec: &mut ast::WindowSpec, args: &mut FunctionArguments) {
    let offsets = frame_offsets(spec, true);
    if let FunctionArguments::List(list) = args {
        let offsets = offsets
            .into_iter()
            .map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e)));
        list.args.extend(offsets);
    }
}

/// Takes them back, as values.
pub(super) fn take_offsets(mut raw: RawWindowExpr) -> DfResult<RawWindowExpr> {
    let frame = &raw.window_frame;
    let count = usize::from(has_offset(&frame.start_bound)) + usize::from(has_offset(&frame.end_bound));
    if count == 0 {
        return Ok(raw);
    }
    let Some(at) = raw.args.len().checked_sub(count) else {
        return Err(external(PlanError::internal("a frame without its offsets")));
    };
    let mut offsets = raw.args.split_off(at).into_iter();
    let units = frame.units;
    let mut bound = |bound: &WindowFrameBound, which: &str| -> DfResult<WindowFrameBound> {
        match bound {
            WindowFrameBound::Preceding(v) if !v.is_null() => {
                offset(offsets.next(), units, which).map(WindowFrameBound::Preceding)
            }
            WindowFrameBound::Following(v) if !v.is_null() => {
                offset(offsets.next(), units, which).map(WindowFrameBound::Following)
            }
            other => Ok(other.clone()),
        }
    };
    let start = bound(&frame.start_bound, "starting")?;
    let end = bound(&frame.end_bound, "ending")?;
    raw.window_frame = WindowFrame::new_bounds(units, start, end);
    Ok(raw)
}

fn has_offset(bound: &WindowFrameBound) -> bool {
    value_of(bound).is_some_and(|v| !v.is_null())
}

fn value_of(bound: &WindowFrameBound) -> Option<&ScalarValue> {
    match bound {
        WindowFrameBound::Preceding(v) | WindowFrameBound::Following(v) => Some(v),
        WindowFrameBound::CurrentRow => None,
    }
}

/// The number of a parameter that stands for an offset.
fn parameter(v: &ScalarValue) -> Option<&str> {
    match v {
        ScalarValue::Utf8(Some(id)) if id.starts_with('$') => Some(id),
        _ => None,
    }
}

fn units_name(units: WindowFrameUnits) -> &'static str {
    match units {
        WindowFrameUnits::Rows => "ROWS",
        WindowFrameUnits::Range => "RANGE",
        WindowFrameUnits::Groups => "GROUPS",
    }
}

fn offset(e: Option<Expr>, units: WindowFrameUnits, which: &str) -> DfResult<ScalarValue> {
    let e = e.ok_or_else(|| external(PlanError::internal("a frame without its offsets")))?;
    let clause = units_name(units);
    if !e.column_refs().is_empty() || e.contains_outer() {
        return Err(external(PlanError::new(
            "42P10",
            format!("argument of {clause} must not contain variables"),
        )));
    }
    let empty = DFSchema::empty();
    let t = typed(type_expr(e, &empty)?, &empty)?;
    if let (Expr::Placeholder(p), None) = (&t.expr, &t.ty) {
        return Ok(ScalarValue::Utf8(Some(p.id.clone())));
    }
    let e = if units == WindowFrameUnits::Range {
        t.expr
    } else {
        match &t.ty {
            Some(ty) if !is_number(ty) => {
                return Err(external(PlanError::new(
                    "42804",
                    format!("argument of {clause} must be type bigint, not type {}", base_name(ty)),
                )));
            }
            _ => df(coerce(t, &DataType::Int64))?,
        }
    };
    let Expr::Literal(value, _) = df(super::bind::simplify(e))? else {
        return Err(external(
            PlanError::unsupported("a frame offset that is not a constant is not supported")
                .hint("Write a number, an interval or a parameter."),
        ));
    };
    df(counted(value, units, which))
}

/// An offset that is not NULL and, as a number of rows or groups, not negative.
fn counted(value: ScalarValue, units: WindowFrameUnits, which: &str) -> Result<ScalarValue> {
    if value.is_null() {
        return Err(PlanError::new(
            "22004",
            format!("frame {which} offset must not be null"),
        ));
    }
    if units == WindowFrameUnits::Range {
        return Ok(value);
    }
    match value {
        ScalarValue::Int64(Some(n)) => u64::try_from(n)
            .map(|n| ScalarValue::UInt64(Some(n)))
            .map_err(|_| PlanError::new("22013", format!("frame {which} offset must not be negative"))),
        ScalarValue::UInt64(Some(_)) => Ok(value),
        _ => Err(PlanError::internal("a frame offset that is no number")),
    }
}

/// Types a call whose arguments and keys are typed already; does nothing to a call that it has seen.
pub(super) fn typed_call(mut w: Box<WindowFunction>, schema: &DFSchema) -> DfResult<Expr> {
    settle_keys(&mut w, schema)?;
    if is_empty(&w.params.window_frame) {
        match &w.fun {
            WindowFunctionDefinition::AggregateUDF(_) => w.params.filter = Some(Box::new(lit(false))),
            WindowFunctionDefinition::WindowUDF(f) if has_frame(f.name()) => return null_of(w, schema),
            WindowFunctionDefinition::WindowUDF(_) => {}
        }
        let (start, end) = (ScalarValue::UInt64(None), ScalarValue::UInt64(None));
        w.params.window_frame = WindowFrame::new_bounds(
            WindowFrameUnits::Rows,
            WindowFrameBound::Preceding(start),
            WindowFrameBound::Following(end),
        );
    }
    match &w.fun {
        WindowFunctionDefinition::AggregateUDF(f) => {
            let seen = (f.inner().as_ref() as &dyn Any).is::<Anew>();
            let moves = !w.params.window_frame.start_bound.is_unbounded();
            if moves
                && !seen
                && let Some(anew) = Anew::of(f)
            {
                w.fun = WindowFunctionDefinition::AggregateUDF(anew);
            }
            Ok(Expr::WindowFunction(w))
        }
        WindowFunctionDefinition::WindowUDF(f) => match f.name() {
            "ntile" | "nth_value" => {
                let name = f.name().to_owned();
                let at = w.params.args.len().saturating_sub(1);
                match number(&mut w, at, &name)? {
                    Number::Null => null_of(w, schema),
                    Number::Is(n) if n <= 0 => {
                        let code = if name == "ntile" { "22014" } else { "22016" };
                        Err(external(PlanError::new(
                            code,
                            format!("argument of {name} must be greater than zero"),
                        )))
                    }
                    _ => Ok(Expr::WindowFunction(w)),
                }
            }
            "lag" | "lead" => {
                let name = f.name().to_owned();
                if w.params.args.len() > 1
                    && let Number::Null = number(&mut w, 1, &name)?
                {
                    return null_of(w, schema);
                }
                settle_default(&mut w, &name, schema)?;
                Ok(Expr::WindowFunction(w))
            }
            _ => Ok(Expr::WindowFunction(w)),
        },
    }
}

fn has_frame(name: &str) -> bool {
    matches!(name, "first_value" | "last_value" | "nth_value")
}

/// NULL in the place of a call.
fn null_of(w: Box<WindowFunction>, schema: &DFSchema) -> DfResult<Expr> {
    let t = Expr::WindowFunction(w).get_type(schema)?;
    ScalarValue::try_from(&canonical(&t)).map(|v| Expr::Literal(v, None))
}

/// The value of an argument that must be a constant whole number.
enum Number {
    Null,
    Is(i64),
    /// A parameter: not known yet.
    Later,
}

fn number(w: &mut WindowFunction, at: usize, name: &str) -> DfResult<Number> {
    let Some(arg) = w.params.args.get_mut(at) else {
        return Ok(Number::Later);
    };
    if matches!(arg, Expr::Placeholder(_)) {
        return Ok(Number::Later);
    }
    let refused = || {
        external(
            PlanError::unsupported(format!("{name} with a number that is not a constant is not supported"))
                .hint("Write a number, or several calls in a CASE expression."),
        )
    };
    if !arg.column_refs().is_empty() {
        return Err(refused());
    }
    let empty = DFSchema::empty();
    let t = typed(arg.clone(), &empty)?;
    if let Some(ty) = t.ty.as_ref().filter(|t| !is_int(t)) {
        return Err(external(
            PlanError::new(
                "42883",
                match name {
                    "ntile" => format!("function ntile({}) does not exist", base_name(ty)),
                    _ => format!("function {name}(…, {}) does not exist", base_name(ty)),
                },
            )
            .hint("No function matches the given name and argument types. You might need to add explicit type casts."),
        ));
    }
    match df(super::bind::simplify(df(coerce(t, &DataType::Int64))?))? {
        Expr::Literal(ScalarValue::Int64(None), _) => Ok(Number::Null),
        Expr::Literal(ScalarValue::Int64(Some(n)), m) => {
            *arg = Expr::Literal(ScalarValue::Int64(Some(n)), m);
            Ok(Number::Is(n))
        }
        _ => Err(refused()),
    }
}

/// Value and default have one type.
fn settle_default(w: &mut WindowFunction, name: &str, schema: &DFSchema) -> DfResult<()> {
    let [value, _, default] = w.params.args.as_mut_slice() else {
        return Ok(());
    };
    let (v, d) = (typed(value.clone(), schema)?, typed(default.clone(), schema)?);
    let target = df(common_type(&[v.ty.clone(), d.ty.clone()], name))?;
    *value = df(coerce(v, &target))?;
    *default = df(coerce(d, &target))?;
    Ok(())
}

/// Keys by which DataFusion would tell equal values apart, and the frame's distances.
fn settle_keys(w: &mut WindowFunction, schema: &DFSchema) -> DfResult<()> {
    let params = &mut w.params;
    let frame = &params.window_frame;
    if frame.units == WindowFrameUnits::Range {
        let (start, end) = (&frame.start_bound, &frame.end_bound);
        if has_offset(start) || has_offset(end) {
            let Some(key) = params.order_by.first_mut() else {
                return Err(external(PlanError::new(
                    "42P20",
                    "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column",
                )));
            };
            let of = key.expr.get_type(schema)?;
            let (start, end) = (df(distance(start, &of))?, df(distance(end, &of))?);
            let wide = measured(&of, [value_of(&start), value_of(&end)]);
            key.expr = df(key_in(key.expr.clone(), &of, &wide))?;
            let (start, end) = (df(in_type(start, &of, &wide))?, df(in_type(end, &of, &wide))?);
            params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Range, start, end);
        } else if let Some(key) = params.order_by.first()
            && !key.expr.get_type(schema).is_ok_and(|t| ranges(&t))
        {
            // Without a distance a range ends with a group of equal rows, so GROUPS says the same.
            let (start, end) = (start.clone(), end.clone());
            params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, start, end);
        }
    }
    let keys = params.partition_by.iter_mut();
    for key in keys.chain(params.order_by.iter_mut().map(|key| &mut key.expr)) {
        if key.get_type(schema)? == interval() {
            *key = call("pg_interval_key", vec![key.clone()])?;
        }
    }
    Ok(())
}

/// Has DataFusion RANGE frames over the type?
fn ranges(t: &DataType) -> bool {
    t.is_numeric()
        || matches!(
            t,
            DataType::Utf8 | DataType::Boolean | DataType::Date32 | DataType::Timestamp(..) | DataType::List(_)
        )
}

fn is_moment(t: &DataType) -> bool {
    matches!(t, DataType::Date32 | DataType::Timestamp(..))
}

/// A bound whose offset is a distance between values of type `key`.
fn distance(bound: &WindowFrameBound, key: &DataType) -> Result<WindowFrameBound> {
    let value = |v: &ScalarValue| -> Result<ScalarValue> {
        if v.is_null() || parameter(v).is_some() {
            supported(key)?;
            return Ok(v.clone());
        }
        let v = match v {
            ScalarValue::Utf8(_) => cast_scalar(v, &supported(key)?)?,
            other => {
                let t = other.data_type();
                let fits = if is_int(key) {
                    is_int(&t)
                } else if is_float(key) {
                    is_number(&t)
                } else if is_number(key) {
                    is_number(&t) && !is_float(&t)
                } else {
                    supported(key)? == interval() && t == interval()
                };
                if !fits {
                    supported(key)?;
                    return Err(PlanError::unsupported(format!(
                        "RANGE with offset PRECEDING/FOLLOWING is not supported for column type {} and offset type {}",
                        base_name(key),
                        base_name(&t)
                    ))
                    .hint("Cast the offset value to an appropriate type."));
                }
                other.clone()
            }
        };
        if is_negative(&v) {
            return Err(PlanError::new(
                "22013",
                "invalid preceding or following size in window function",
            ));
        }
        Ok(v)
    };
    Ok(match bound {
        WindowFrameBound::Preceding(v) => WindowFrameBound::Preceding(value(v)?),
        WindowFrameBound::Following(v) => WindowFrameBound::Following(value(v)?),
        WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
    })
}

/// The type of an offset that is written as a bare string.
fn supported(key: &DataType) -> Result<DataType> {
    if is_number(key) {
        Ok(key.clone())
    } else if is_moment(key) || key == &interval() {
        Ok(interval())
    } else {
        Err(PlanError::unsupported(format!(
            "RANGE with offset PRECEDING/FOLLOWING is not supported for column type {}",
            base_name(key)
        )))
    }
}

fn is_negative(v: &ScalarValue) -> bool {
    match v {
        ScalarValue::Float32(Some(v)) => v.is_nan() || *v < 0.0,
        ScalarValue::Float64(Some(v)) => v.is_nan() || *v < 0.0,
        ScalarValue::IntervalMonthDayNano(Some(v)) => {
            let us = i128::from(v.months) * 30 * 86_400_000_000
                + i128::from(v.days) * 86_400_000_000
                + i128::from(v.nanoseconds / 1000);
            us < 0
        }
        other => ScalarValue::new_zero(&other.data_type())
            .is_ok_and(|zero| matches!(other.partial_cmp(&zero), Some(Ordering::Less))),
    }
}

/// The type in which a key and its distances are measured.
fn measured(key: &DataType, offsets: [Option<&ScalarValue>; 2]) -> DataType {
    let near = |v: &ScalarValue| v.is_null() || matches!(number_of(v), Some(n) if n < 1 << 32);
    match key {
        DataType::Int16 | DataType::Int32 | DataType::Int8 | DataType::UInt8 | DataType::UInt16
            if offsets.into_iter().flatten().all(near) =>
        {
            DataType::Int64
        }
        t if is_int(t) || t == &interval() => WIDE,
        t if is_float(t) => DataType::Float64,
        DataType::Date32 => timestamp(),
        DataType::Decimal128(..) | DataType::Decimal256(..) => {
            let fits = |v: &ScalarValue| v.is_null() || in_scale(v, key).is_ok_and(|v| v.is_some());
            if offsets.into_iter().flatten().all(fits) {
                key.clone()
            } else {
                BARE_NUMERIC
            }
        }
        other => other.clone(),
    }
}

fn number_of(v: &ScalarValue) -> Option<i64> {
    match v.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(n)) if is_int(&v.data_type()) => n,
        _ => None,
    }
}

/// The key in the type in which it is measured.
fn key_in(key: Expr, of: &DataType, wide: &DataType) -> Result<Expr> {
    if of == wide {
        return Ok(key);
    }
    if of == &interval() {
        return call("pg_interval_key", vec![key]).map_err(map_df_error);
    }
    if matches!(wide, DataType::Int64 | DataType::Float64) {
        return Ok(Expr::Cast(Cast::new(Box::new(key), wide.clone())));
    }
    cast_expr(key, of, wide)
}

/// A distance in the type that its key is measured in.
fn in_type(bound: WindowFrameBound, of: &DataType, wide: &DataType) -> Result<WindowFrameBound> {
    let value = |v: ScalarValue| -> Result<ScalarValue> {
        if v.is_null() || parameter(&v).is_some() || is_moment(wide) {
            return Ok(v);
        }
        if of == &interval() {
            let key = df_literal(call("pg_interval_key", vec![Expr::Literal(v, None)]).map_err(map_df_error)?)?;
            return Ok(key);
        }
        match wide {
            DataType::Decimal128(..) | DataType::Decimal256(..) => {
                in_scale(&v, wide)?.ok_or_else(super::text::numeric_overflow)
            }
            _ => cast_scalar(&v, wide),
        }
    };
    Ok(match bound {
        WindowFrameBound::Preceding(v) => WindowFrameBound::Preceding(value(v)?),
        WindowFrameBound::Following(v) => WindowFrameBound::Following(value(v)?),
        WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
    })
}

fn df_literal(e: Expr) -> Result<ScalarValue> {
    match super::bind::simplify(e)? {
        Expr::Literal(v, _) => Ok(v),
        other => Err(PlanError::internal(format!("{other} is not a constant"))),
    }
}

/// A distance with the digits that values of a decimal type have; what lies between two of them reaches no value more. `None`: it has more
/// digits before the point.
fn in_scale(v: &ScalarValue, to: &DataType) -> Result<Option<ScalarValue>> {
    let ScalarValue::Decimal256(Some(exact), ..) = cast_scalar(v, &BARE_NUMERIC)? else {
        return Ok(None);
    };
    let (DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale)) = to else {
        return Ok(None);
    };
    let ten = i256::from_i128(10);
    let dropped = u32::try_from(38 - i32::from(*scale)).unwrap_or(0);
    let units = exact.wrapping_div(ten.wrapping_pow(dropped));
    if *precision < 76 && units >= ten.wrapping_pow(u32::from(*precision)) {
        return Ok(None);
    }
    Ok(match to {
        DataType::Decimal128(..) => units
            .to_i128()
            .map(|units| ScalarValue::Decimal128(Some(units), *precision, *scale)),
        _ => Some(ScalarValue::Decimal256(Some(units), *precision, *scale)),
    })
}

/// Does the frame end before it starts, for every row?
fn is_empty(frame: &WindowFrame) -> bool {
    let (nearer, farther) = match (&frame.start_bound, &frame.end_bound) {
        (WindowFrameBound::Preceding(start), WindowFrameBound::Preceding(end)) => (start, end),
        (WindowFrameBound::Following(start), WindowFrameBound::Following(end)) => (end, start),
        _ => return false,
    };
    if nearer.is_null() || farther.is_null() || parameter(nearer).is_some() || parameter(farther).is_some() {
        return false;
    }
    match (nearer, farther) {
        (ScalarValue::IntervalMonthDayNano(Some(a)), ScalarValue::IntervalMonthDayNano(Some(b))) => {
            a != b && a.months <= b.months && a.days <= b.days && a.nanoseconds <= b.nanoseconds
        }
        (a, b) => matches!(a.partial_cmp(b), Some(Ordering::Less)),
    }
}
