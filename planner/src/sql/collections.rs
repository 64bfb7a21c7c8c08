//! Typing of what arrays and json bring: operators, subscripts, `ANY` and `ALL`, and functions whose argument types depend on each other.

use arrow::datatypes::DataType;
use datafusion::logical_expr::Expr;
use sqlparser::ast::BinaryOperator;

use super::array_text::several_dimensions;
use super::errors::map_df_error;
use super::functions::{call, no_function};
use super::operators::{Typed, coerce, common_type, is_int, is_text, no_operator, pair_type};
use super::types::{BARE_NUMERIC, JSON, JSONB, base_name, item_of, list_of};
use crate::{PlanError, Result};

fn made(name: &str, args: Vec<Expr>) -> Result<Expr> {
    call(name, args).map_err(map_df_error)
}

fn is_json(t: Option<&DataType>) -> bool {
    matches!(t, Some(&JSON | &JSONB))
}

fn item(t: &Typed) -> Option<&DataType> {
    t.ty.as_ref().and_then(item_of)
}

/// What makes an expression of the operands of an operator of arrays or json.
pub(super) fn operator(op: &BinaryOperator) -> Option<fn(Typed, Typed) -> Result<Expr>> {
    use BinaryOperator as B;
    Some(match op {
        B::Arrow => |l, r| get("->", "pg_json_get", l, r),
        B::LongArrow => |l, r| get("->>", "pg_json_get_text", l, r),
        B::HashArrow => |l, r| path("#>", "pg_json_path", l, r),
        B::HashLongArrow => |l, r| path("#>>", "pg_json_path_text", l, r),
        B::AtArrow => |l, r| contains("@>", l, r, false),
        B::ArrowAt => |l, r| contains("<@", l, r, true),
        B::PGOverlap => overlap,
        B::Question => |l, r| exists("?", "pg_jsonb_exists", l, r, &DataType::Utf8),
        B::QuestionPipe => |l, r| exists("?|", "pg_jsonb_exists_any", l, r, &list_of(DataType::Utf8)),
        B::QuestionAnd => |l, r| exists("?&", "pg_jsonb_exists_all", l, r, &list_of(DataType::Utf8)),
        _ => return None,
    })
}

/// A key: an integer, or else text.
fn key(op: &str, l: &Typed, r: Typed) -> Result<Expr> {
    match &r.ty {
        None => coerce(r, &DataType::Utf8),
        Some(t) if is_text(t) => coerce(r, &DataType::Utf8),
        Some(t) if is_int(t) => coerce(r, &DataType::Int32),
        Some(_) => Err(no_operator(op, l, &r)),
    }
}

fn get(op: &str, function: &str, l: Typed, r: Typed) -> Result<Expr> {
    if !is_json(l.ty.as_ref()) {
        return Err(no_operator(op, &l, &r));
    }
    let key = key(op, &l, r)?;
    made(function, vec![l.expr, key])
}

fn path(op: &str, function: &str, l: Typed, r: Typed) -> Result<Expr> {
    let texts = list_of(DataType::Utf8);
    let fits = r.ty.as_ref().is_none_or(|t| pair_type(t, &texts).is_some());
    if !is_json(l.ty.as_ref()) || !fits {
        return Err(no_operator(op, &l, &r));
    }
    let path = coerce(r, &texts)?;
    made(function, vec![l.expr, path])
}

fn exists(op: &str, function: &str, l: Typed, r: Typed, wanted: &DataType) -> Result<Expr> {
    let fits = r.ty.as_ref().is_none_or(|t| pair_type(t, wanted).is_some());
    if l.ty.as_ref() != Some(&JSONB) || !fits {
        return Err(no_operator(op, &l, &r));
    }
    let keys = coerce(r, wanted)?;
    made(function, vec![l.expr, keys])
}

/// Both operands as arrays of one type.
fn arrays(op: &str, l: Typed, r: Typed) -> Result<[Expr; 2]> {
    let target = match (&l.ty, &r.ty) {
        (Some(a), Some(b)) if item(&l).is_some() && item(&r).is_some() => pair_type(a, b),
        (Some(t), None) | (None, Some(t)) if item_of(t).is_some() => Some(t.clone()),
        _ => None,
    };
    let target = target.ok_or_else(|| no_operator(op, &l, &r))?;
    Ok([coerce(l, &target)?, coerce(r, &target)?])
}

fn contains(op: &str, l: Typed, r: Typed, swapped: bool) -> Result<Expr> {
    let (name, mut operands) = if [&l, &r].iter().any(|t| t.ty.as_ref() == Some(&JSONB)) {
        let fits = |t: &Typed| t.ty.as_ref().is_none_or(|t| t == &JSONB);
        if !fits(&l) || !fits(&r) {
            return Err(no_operator(op, &l, &r));
        }
        ("pg_jsonb_contains", [coerce(l, &JSONB)?, coerce(r, &JSONB)?])
    } else {
        ("pg_array_contains", arrays(op, l, r)?)
    };
    if swapped {
        operands.reverse();
    }
    made(name, operands.into())
}

fn overlap(l: Typed, r: Typed) -> Result<Expr> {
    made("pg_array_overlap", arrays("&&", l, r)?.into())
}

/// `l || r` of arrays, elements or jsonb; `None`: of something else.
pub(super) fn concat(l: &Typed, r: &Typed) -> Result<Option<Expr>> {
    let jsonb = |t: &Typed| t.ty.as_ref() == Some(&JSONB);
    if (jsonb(l) && (jsonb(r) || r.ty.is_none())) || (jsonb(r) && l.ty.is_none()) {
        let both = vec![coerce(l.clone(), &JSONB)?, coerce(r.clone(), &JSONB)?];
        return made("pg_jsonb_concat", both).map(Some);
    }
    let joined = match (item(l), item(r)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => call_typed("array_cat", &[l.clone(), r.clone()]),
        // An untyped literal beside an array is an array, as in PostgreSQL.
        (Some(_), None) if r.ty.is_none() => call_typed("array_cat", &[l.clone(), r.clone()]),
        (None, Some(_)) if l.ty.is_none() => call_typed("array_cat", &[l.clone(), r.clone()]),
        (Some(_), None) => call_typed("array_append", &[l.clone(), r.clone()]),
        (None, Some(_)) => call_typed("array_prepend", &[l.clone(), r.clone()]),
    };
    match joined {
        Some(Ok(e)) => Ok(Some(e)),
        Some(Err(e)) if e.code == "42883" => Err(no_operator("||", l, r)),
        Some(Err(e)) => Err(e),
        None => Ok(None),
    }
}

/// `jsonb - key`, `jsonb - index`, `jsonb - array of keys`.
pub(super) fn delete(l: Typed, r: Typed) -> Result<Expr> {
    let key = match item(&r) {
        Some(t) if is_text(t) => coerce(r, &list_of(DataType::Utf8))?,
        Some(_) => return Err(no_operator("-", &l, &r)),
        None => key("-", &l, r)?,
    };
    made("pg_jsonb_delete", vec![l.expr, key])
}

/// Types a call of one of the functions of arrays and json, and of those that stand for their syntax; `None`: of another.
pub(super) fn call_typed(name: &str, args: &[Typed]) -> Option<Result<Expr>> {
    Some(match (name, args) {
        ("pg_array", args) => literal(args),
        ("pg_subscript", [a, at]) => subscript(a, at),
        ("pg_slice", [a, lower, upper, given]) => slice(a, lower, upper, given),
        ("pg_any" | "pg_all", [x, op, list]) => quantified(name, x, op, list),
        ("array_cat" | "array_concat", [a, b]) => elements("array_cat", args, &[a, b], &[]),
        ("array_append", [a, x]) | ("array_remove" | "array_position" | "array_positions", [a, x]) => {
            elements(name, args, &[a], &[x])
        }
        ("array_prepend", [x, a]) => elements(name, args, &[a], &[x]),
        ("array_replace", [a, x, y]) => elements(name, args, &[a], &[x, y]),
        ("array_position", [a, x, start]) => elements(name, args, &[a], &[x]).and_then(|e| {
            let start = coerce(start.clone(), &DataType::Int32)?;
            match e {
                Expr::ScalarFunction(f) => made(name, f.args.into_iter().take(2).chain([start]).collect()),
                other => Ok(other),
            }
        }),
        ("array_length" | "array_upper" | "array_lower", [a, n]) => {
            list_of_any(name, args, a).and_then(|a| made(name, vec![a, coerce(n.clone(), &DataType::Int32)?]))
        }
        ("cardinality" | "array_ndims" | "array_dims", [a]) => {
            list_of_any(name, args, a).and_then(|a| made(name, vec![a]))
        }
        ("array_to_string", [a, rest @ ..]) if (1..=2).contains(&rest.len()) => {
            list_of_any(name, args, a).and_then(|a| with_texts(name, vec![a], rest))
        }
        ("string_to_array", rest) if (2..=3).contains(&rest.len()) => with_texts(name, Vec::new(), rest),
        (
            "json_extract_path" | "jsonb_extract_path" | "json_extract_path_text" | "jsonb_extract_path_text",
            [j, keys @ ..],
        ) => extract_path(name, j, keys),
        ("json_typeof" | "json_array_length", [j]) => of_json(name, j, &JSON),
        ("jsonb_typeof" | "jsonb_array_length", [j]) => of_json(name, j, &JSONB),
        // A text literal with a cast to text cannot be told from one without.
        ("to_json" | "to_jsonb", [x]) => {
            let target = x.ty.clone().unwrap_or(DataType::Utf8);
            coerce(x.clone(), &target).and_then(|x| made(name, vec![x]))
        }
        ("json_build_array" | "jsonb_build_array" | "json_build_object" | "jsonb_build_object", args) => args
            .iter()
            .map(|a| match a.ty {
                None => coerce(a.clone(), &DataType::Utf8),
                Some(_) => Ok(a.expr.clone()),
            })
            .collect::<Result<_>>()
            .and_then(|args| made(name, args)),
        _ => return None,
    })
}

fn no_such(name: &str, args: &[Typed]) -> PlanError {
    let types: Vec<DataType> = args.iter().map(|a| a.ty.clone().unwrap_or(DataType::Null)).collect();
    no_function(name, &types)
}

fn literal(items: &[Typed]) -> Result<Expr> {
    if items.iter().any(|i| item(i).is_some()) {
        return Err(several_dimensions());
    }
    if items.is_empty() {
        return made("pg_array", Vec::new());
    }
    let all: Vec<Option<DataType>> = items.iter().map(|i| i.ty.clone()).collect();
    let mut target = common_type(&all, "ARRAY")?;
    if target.is_decimal() && all.iter().flatten().any(|t| t != &target) {
        // Numbers of different scales are not shown with the widest.
        target = BARE_NUMERIC;
    }
    made(
        "pg_array",
        items
            .iter()
            .map(|i| coerce(i.clone(), &target))
            .collect::<Result<_>>()?,
    )
}

fn subscript(a: &Typed, at: &Typed) -> Result<Expr> {
    if a.ty.as_ref() == Some(&JSONB) {
        return get("->", "pg_json_get", a.clone(), at.clone());
    }
    let (Some(t), Some(_)) = (&a.ty, item(a)) else {
        return Err(not_subscriptable(a));
    };
    made("pg_subscript", vec![coerce(a.clone(), t)?, index(at)?])
}

fn not_subscriptable(a: &Typed) -> PlanError {
    PlanError::new(
        "42804",
        format!(
            "cannot subscript type {} because it does not support subscripting",
            a.name()
        ),
    )
}

fn index(at: &Typed) -> Result<Expr> {
    match &at.ty {
        Some(t) if !is_int(t) => Err(PlanError::new("42804", "array subscript must have type integer")),
        _ => coerce(at.clone(), &DataType::Int32),
    }
}

fn slice(a: &Typed, lower: &Typed, upper: &Typed, given: &Typed) -> Result<Expr> {
    if item(a).is_none() {
        return Err(not_subscriptable(a));
    }
    let args = vec![
        a.expr.clone(),
        index(lower)?,
        index(upper)?,
        coerce(given.clone(), &DataType::Utf8)?,
    ];
    made("pg_slice", args)
}

fn quantified(name: &str, x: &Typed, op: &Typed, list: &Typed) -> Result<Expr> {
    let element = match &list.ty {
        None => x.ty.clone().unwrap_or(DataType::Utf8),
        Some(t) => match item_of(t) {
            Some(item) => item.clone(),
            None => {
                return Err(PlanError::new(
                    "42809",
                    "op ANY/ALL (array) requires array on right side",
                ));
            }
        },
    };
    let target = match &x.ty {
        None => element,
        Some(t) => pair_type(t, &element).filter(|t| t != &JSON).ok_or_else(|| {
            let sign = match &op.expr {
                Expr::Literal(v, _) => v.to_string(),
                _ => "=".to_owned(),
            };
            let e = Typed {
                expr: list.expr.clone(),
                ty: Some(element.clone()),
            };
            no_operator(&sign, x, &e)
        })?,
    };
    let args = vec![
        coerce(x.clone(), &target)?,
        coerce(op.clone(), &DataType::Utf8)?,
        coerce(list.clone(), &list_of(target))?,
    ];
    made(name, args)
}

/// A call over arrays and elements of one type, in the order of `args`.
fn elements(name: &str, args: &[Typed], lists: &[&Typed], items: &[&Typed]) -> Result<Expr> {
    let mut all: Vec<Option<DataType>> = Vec::new();
    for list in lists {
        match (&list.ty, item(list)) {
            (None, _) => {}
            (Some(_), Some(t)) => all.push(Some(t.clone()).filter(|t| t != &DataType::Null)),
            _ => return Err(no_such(name, args)),
        }
    }
    for x in items {
        if item(x).is_some() {
            return Err(several_dimensions());
        }
        all.push(x.ty.clone());
    }
    let target = common_type(&all, name).map_err(|_| no_such(name, args))?;
    let list = list_of(target.clone());
    let is_list = |a: &Typed| lists.iter().any(|l| std::ptr::eq(*l, a));
    let args = args.iter().take(lists.len() + items.len()).map(|a| {
        let target = if is_list(a) { &list } else { &target };
        coerce(a.clone(), target)
    });
    made(name, args.collect::<Result<_>>()?)
}

/// An argument that is an array of any type.
fn list_of_any(name: &str, args: &[Typed], a: &Typed) -> Result<Expr> {
    match (&a.ty, item(a)) {
        (Some(_), Some(_)) => Ok(a.expr.clone()),
        (None, _) => coerce(a.clone(), &list_of(DataType::Utf8)),
        _ => Err(no_such(name, args)),
    }
}

fn with_texts(name: &str, mut args: Vec<Expr>, texts: &[Typed]) -> Result<Expr> {
    for t in texts {
        args.push(coerce(t.clone(), &DataType::Utf8)?);
    }
    made(name, args)
}

fn of_json(name: &str, j: &Typed, wanted: &DataType) -> Result<Expr> {
    match &j.ty {
        None => made(name, vec![coerce(j.clone(), wanted)?]),
        Some(t) if t == wanted => made(name, vec![j.expr.clone()]),
        Some(_) => Err(no_such(name, std::slice::from_ref(j))),
    }
}

fn extract_path(name: &str, j: &Typed, keys: &[Typed]) -> Result<Expr> {
    let wanted = if name.starts_with("jsonb") { JSONB } else { JSON };
    let fits = j.ty.as_ref().is_none_or(|t| t == &wanted);
    if !fits
        || keys
            .iter()
            .any(|k| k.ty.as_ref().is_some_and(|t| base_name(t) != "text"))
    {
        return Err(no_such(name, std::slice::from_ref(j)));
    }
    let j = coerce(j.clone(), &wanted)?;
    let keys = keys
        .iter()
        .map(|k| coerce(k.clone(), &DataType::Utf8))
        .collect::<Result<Vec<_>>>()?;
    let path = if keys.is_empty() {
        coerce(
            Typed {
                expr: made("pg_array", Vec::new())?,
                ty: Some(list_of(DataType::Null)),
            },
            &list_of(DataType::Utf8),
        )?
    } else {
        made("pg_array", keys)?
    };
    let function = if name.ends_with("_text") {
        "pg_json_path_text"
    } else {
        "pg_json_path"
    };
    made(function, vec![j, path])
}
