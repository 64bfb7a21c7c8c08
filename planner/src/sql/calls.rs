//! Arguments of function calls: untyped literals take the type that the function wants, unusual result types become PostgreSQL's.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result as DfResult, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Operator, when};

use super::operators::{Typed, as_decimal, binary, coerce, common_type, df, has_own_equality, is_int, is_number};
use super::types::{self, interval};
use super::typing::{typed, with_args};
use crate::sql::functions::{arith::decimal_parts, call};

/// Types one call whose arguments are typed already.
pub(super) fn scalar(f: ScalarFunction, schema: &DFSchema) -> DfResult<Expr> {
    let name = f.func.name().to_owned();
    let args = f
        .args
        .iter()
        .map(|a| typed(a.clone(), schema))
        .collect::<DfResult<Vec<_>>>()?;
    if let Some(typed) = super::collections::call_typed(&name, &args) {
        return df(typed);
    }
    if name == "nullif"
        && let [a, b] = args.as_slice()
        && let Ok(target) = common_type(&[a.ty.clone(), b.ty.clone()], "NULLIF")
        && has_own_equality(&target)
    {
        let value = df(coerce(a.clone(), &target))?;
        let equal = df(binary(a.clone(), Operator::Eq, b.clone()))?;
        return when(equal, Expr::Literal(ScalarValue::try_from(&target)?, None)).otherwise(value);
    }
    let args = match name.as_str() {
        "coalesce" | "greatest" | "least" => unify(args, &name.to_uppercase())?,
        "nullif" => unify(args, "NULLIF")?,
        "round" | "trunc" | "ceil" | "ceiling" | "floor" | "abs" | "sign" => number_args(args)?,
        "pg_series_list" => series_args(args)?,
        "pg_jsonb_keys" | "pg_jsonb_values" | "pg_jsonb_texts" | "pg_jsonb_elements" | "pg_jsonb_element_texts" => args
            .into_iter()
            .map(|a| literal(a, &types::JSONB))
            .collect::<DfResult<_>>()?,
        "pg_json_elements" | "pg_json_element_texts" => args
            .into_iter()
            .map(|a| literal(a, &types::JSON))
            .collect::<DfResult<_>>()?,
        "pg_extract" | "date_part" | "date_trunc" => time_args(args, 1)?,
        "date_bin" => bin_args(args)?,
        "to_char" => args
            .into_iter()
            .map(|a| literal(a, &DataType::Utf8))
            .collect::<DfResult<_>>()?,
        "age" => args
            .into_iter()
            .map(|a| literal(a, &types::timestamp()))
            .collect::<DfResult<_>>()?,
        "concat" | "concat_ws" if args.iter().any(|a| a.ty == Some(DataType::Boolean)) => args
            .into_iter()
            .map(|a| {
                if a.ty == Some(DataType::Boolean) {
                    boolean_letter(a)
                } else {
                    df(coerce(a, &DataType::Utf8))
                }
            })
            .collect::<DfResult<_>>()?,
        "concat" | "concat_ws" => args
            .into_iter()
            .map(|a| df(coerce(a, &DataType::Utf8)))
            .collect::<DfResult<_>>()?,
        "power" | "pow" | "sqrt" | "exp" | "ln" | "log" | "log10" | "log2" | "cbrt" | "sin" | "cos" | "tan"
        | "asin" | "acos" | "atan" | "atan2" | "degrees" | "radians" | "sinh" | "cosh" | "tanh" => {
            args.into_iter().map(numeric_to_float).collect::<DfResult<_>>()?
        }
        "character_length" if matches!(args.as_slice(), [a] if a.ty == Some(DataType::Binary)) => {
            return call("octet_length", args.into_iter().map(|a| a.expr).collect());
        }
        "to_hex" => args.into_iter().map(hex_arg).collect::<DfResult<_>>()?,
        "encode" => args.into_iter().map(encode_arg).collect::<DfResult<_>>()?,
        _ => args.into_iter().map(any_arg).collect::<DfResult<_>>()?,
    };
    let typed = with_args(&f, args);
    let t = typed.get_type(schema)?;
    // DataFusion's own spellings of a type that PostgreSQL has once.
    let canonical = types::canonical(&t);
    if t != DataType::Null && t != canonical && !t.is_nested() {
        return Ok(Expr::Cast(Cast::new(Box::new(typed), canonical)));
    }
    Ok(typed)
}

/// A negative integer has the digits of its own width.
fn hex_arg(a: Typed) -> DfResult<Expr> {
    if !matches!(a.ty, Some(DataType::Int16 | DataType::Int32)) {
        return any_arg(a);
    }
    let low = |n: i64| Typed::new(Expr::Literal(ScalarValue::Int64(Some(n)), None), DataType::Int64);
    df(binary(a, Operator::BitwiseAnd, low(0xffff_ffff)))
}

/// Base 64 is padded.
fn encode_arg(a: Typed) -> DfResult<Expr> {
    match &a.expr {
        Expr::Literal(ScalarValue::Utf8(Some(s)), m) if s == "base64" => Ok(Expr::Literal(
            ScalarValue::Utf8(Some("base64pad".to_owned())),
            m.clone(),
        )),
        _ => any_arg(a),
    }
}

/// `t` or `f`, as `concat` writes booleans.
fn boolean_letter(a: Typed) -> DfResult<Expr> {
    let text = df(coerce(a, &DataType::Utf8))?;
    Ok(datafusion::functions::unicode::left().call(vec![
        text,
        Expr::Literal(datafusion::common::ScalarValue::Int64(Some(1)), None),
    ]))
}

fn unify(args: Vec<Typed>, construct: &str) -> DfResult<Vec<Expr>> {
    let all: Vec<Option<DataType>> = args.iter().map(|a| a.ty.clone()).collect();
    let target = df(common_type(&all, construct))?;
    args.into_iter().map(|a| df(coerce(a, &target))).collect()
}

/// Bounds and step of a series: of one integer type, or timestamps and an interval.
fn series_args(args: Vec<Typed>) -> DfResult<Vec<Expr>> {
    let moment = |t: &DataType| matches!(t, DataType::Timestamp(..) | DataType::Date32);
    let known = |t: &Typed| t.ty.clone();
    if args.iter().take(2).filter_map(known).any(|t| moment(&t)) {
        let plain = args.iter().take(2).filter_map(known).all(|t| t == types::timestamp());
        let target = if plain {
            types::timestamp()
        } else {
            types::timestamptz()
        };
        let step = interval();
        return args
            .into_iter()
            .enumerate()
            .map(|(i, a)| df(coerce(a, if i < 2 { &target } else { &step })))
            .collect();
    }
    let all: Vec<Option<DataType>> = args.iter().map(known).collect();
    if all.iter().flatten().any(|t| !is_int(t)) {
        // Which there are no series of is said by the function.
        return args.into_iter().map(any_arg).collect();
    }
    let target = if all.contains(&Some(DataType::Int64)) {
        DataType::Int64
    } else {
        DataType::Int32
    };
    args.into_iter().map(|a| df(coerce(a, &target))).collect()
}

/// An untyped argument as `target`, a typed one as it is.
fn literal(a: Typed, target: &DataType) -> DfResult<Expr> {
    if a.ty.is_some() {
        Ok(a.expr)
    } else {
        df(coerce(a, target))
    }
}

fn any_arg(a: Typed) -> DfResult<Expr> {
    match (&a.expr, &a.ty) {
        (Expr::Placeholder(_), None) => df(coerce(a, &DataType::Utf8)),
        _ => Ok(a.expr),
    }
}

/// `f(x)` over floats for integers, over numeric for numeric; `f(x, n)` is numeric only.
fn number_args(args: Vec<Typed>) -> DfResult<Vec<Expr>> {
    let two = args.len() == 2;
    args.into_iter()
        .enumerate()
        .map(|(i, a)| match (&a.ty, i) {
            (None, 0) => df(coerce(a, if two { &types::BARE_NUMERIC } else { &DataType::Float64 })),
            (None, _) => df(coerce(a, &DataType::Int32)),
            (Some(t), 0) if two && is_int(t) => {
                let target = as_decimal(t);
                df(coerce(a, &target))
            }
            (Some(DataType::Int16), 1) => df(coerce(a, &DataType::Int32)),
            _ => Ok(a.expr),
        })
        .collect()
}

fn numeric_to_float(a: Typed) -> DfResult<Expr> {
    match &a.ty {
        None => df(coerce(a, &DataType::Float64)),
        Some(t) if is_int(t) || decimal_parts(t).is_some() => df(coerce(a, &DataType::Float64)),
        _ => Ok(a.expr),
    }
}

/// A unit's name, then a moment.
fn time_args(args: Vec<Typed>, at: usize) -> DfResult<Vec<Expr>> {
    args.into_iter()
        .enumerate()
        .map(|(i, a)| {
            if i == at {
                literal(a, &types::timestamptz())
            } else {
                df(coerce(a, &DataType::Utf8))
            }
        })
        .collect()
}

fn bin_args(args: Vec<Typed>) -> DfResult<Vec<Expr>> {
    let moment = args
        .get(1)
        .and_then(|a| a.ty.clone())
        .filter(|t| !is_number(t))
        .unwrap_or_else(types::timestamp);
    let moment = if moment == DataType::Date32 {
        types::timestamp()
    } else {
        moment
    };
    args.into_iter()
        .enumerate()
        .map(|(i, a)| {
            if i == 0 {
                literal(a, &interval())
            } else {
                df(coerce(a, &moment))
            }
        })
        .collect()
}
