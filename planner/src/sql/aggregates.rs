//! Aggregate calls that are written as others, before DataFusion's planner sees them:
//!
//! ```text
//!   json_agg(x …)                                     →  pg_json_list(array_agg(to_json(x) …))
//!   jsonb_object_agg(k, v …)                          →  pg_jsonb_members(array_agg(pg_json_member(k, v) …))
//!   percentile_cont(f) WITHIN GROUP (ORDER BY x DESC) →  pg_percentile_cont(x, f, true)
//!   mode() WITHIN GROUP (ORDER BY x)                  →  pg_mode(x, false)
//!   rank(c) WITHIN GROUP (ORDER BY x)                 →  1 + count(*) FILTER (WHERE x < c)
//!   approx_count_distinct(x)                          →  count(DISTINCT x)
//!   any_value(x)                                      →  min_by(x, x)
//! ```
//!
//! A hypothetical row's place is a matter of counting the rows in front of it, so a view keeps counts and nothing else. Rows can be taken
//! back from an exact count of distinct values, not from a sketch of them.

use sqlparser::ast::{
    ArrayElemTypeDef, BinaryOperator, CaseWhen, DataType, DuplicateTreatment, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Ident, ObjectName, OrderByExpr, Value, ValueWithSpan,
};

use super::syntax::{cast, function};
use crate::{PlanError, Result};

/// Whether a function is an aggregate, as it is written.
pub(super) fn is_aggregate(name: &str) -> bool {
    matches!(
        name,
        "array_agg"
            | "string_agg"
            | "count"
            | "sum"
            | "avg"
            | "min"
            | "max"
            | "bool_and"
            | "bool_or"
            | "every"
            | "bit_and"
            | "bit_or"
            | "bit_xor"
            | "json_agg"
            | "jsonb_agg"
            | "json_object_agg"
            | "jsonb_object_agg"
            | "min_by"
            | "max_by"
            | "arg_min"
            | "arg_max"
            | "any_value"
            | "approx_count_distinct"
            | "corr"
            | "covar_pop"
            | "covar_samp"
            | "stddev"
            | "stddev_samp"
            | "stddev_pop"
            | "variance"
            | "var_samp"
            | "var_pop"
    ) || name.starts_with("regr_")
        || is_ordered_set(name)
}

fn is_ordered_set(name: &str) -> bool {
    matches!(name, "percentile_cont" | "percentile_disc" | "mode")
}

/// It ranks a row that is not there, with WITHIN GROUP; with OVER it is a window function.
pub(super) fn is_hypothetical(name: &str) -> bool {
    matches!(name, "rank" | "dense_rank" | "percent_rank" | "cume_dist")
}

/// What stands in the place of a call, if something else does.
///
/// # Errors
/// A clause does not go with the function.
pub(super) fn rewrite(f: &mut Function, name: &str) -> Result<Option<Expr>> {
    if f.within_group.is_empty() {
        if is_ordered_set(name) && f.over.is_some() {
            return Err(over_ordered_set(name));
        }
        if is_ordered_set(name) {
            return Err(lacks_within_group(name));
        }
        return plain(f, name);
    }
    if !is_ordered_set(name) && !is_hypothetical(name) {
        return Err(PlanError::new(
            "42809",
            format!("{name} is not an ordered-set aggregate, so it cannot have WITHIN GROUP"),
        ));
    }
    if f.over.is_some() {
        return Err(over_ordered_set(name));
    }
    let (direct, plain) = direct_arguments(f)?;
    if !plain {
        return Err(PlanError::new(
            "42601",
            "cannot use DISTINCT or ORDER BY with WITHIN GROUP",
        ));
    }
    let keys = std::mem::take(&mut f.within_group);
    if is_hypothetical(name) {
        return hypothetical(name, direct, keys, f.filter.take()).map(Some);
    }
    let [key] = <[OrderByExpr; 1]>::try_from(keys).map_err(|_| wrong_arguments(name))?;
    let descending = Expr::Value(ValueWithSpan::from(Value::Boolean(key.options.asc == Some(false))));
    let (own, args) = match (name, direct.len()) {
        ("percentile_cont" | "percentile_disc", 1) | ("mode", 0) => {
            // Each fraction becomes the float that is next to it, as a constant by itself does.
            let floats = || {
                DataType::Array(ArrayElemTypeDef::SquareBracket(
                    Box::new(DataType::DoublePrecision),
                    None,
                ))
            };
            let direct = direct.into_iter().map(|e| match e {
                Expr::Array(_) => cast(e, floats()),
                e => e,
            });
            let args = std::iter::once(key.expr).chain(direct).chain([descending]).collect();
            (format!("pg_{name}"), args)
        }
        _ => return Err(wrong_arguments(name)),
    };
    Ok(Some(with_clauses(function(&own, args), f)))
}

pub(super) fn lacks_within_group(name: &str) -> PlanError {
    let message = format!("WITHIN GROUP is required for ordered-set aggregate {name}");
    PlanError::new("42809", message)
}

pub(super) fn over_ordered_set(name: &str) -> PlanError {
    PlanError::unsupported(format!("OVER is not supported for ordered-set aggregate {name}"))
        .hint("Compute it in a subquery with GROUP BY and join that.")
}

fn wrong_arguments(name: &str) -> PlanError {
    PlanError::new("42883", format!("function {name} does not exist with these arguments")).hint(
        "Write percentile_cont(fraction), percentile_disc(fraction) or mode() WITHIN GROUP (ORDER BY x), and of hypothetical rows as \
         many arguments as WITHIN GROUP has.",
    )
}

/// The call with the FILTER and OVER of another.
fn with_clauses(mut call: Expr, f: &mut Function) -> Expr {
    if let Expr::Function(call) = &mut call {
        call.filter = f.filter.take();
        call.over = f.over.take();
        call.null_treatment = f.null_treatment.take();
    }
    call
}

/// Calls without WITHIN GROUP.
fn plain(f: &mut Function, name: &str) -> Result<Option<Expr>> {
    let json = match name {
        "json_agg" | "json_object_agg" => "json",
        "jsonb_agg" | "jsonb_object_agg" => "jsonb",
        "approx_count_distinct" => {
            f.name = ObjectName::from(vec![Ident::new("count")]);
            if let FunctionArguments::List(list) = &mut f.args {
                list.duplicate_treatment = Some(DuplicateTreatment::Distinct);
            }
            return Ok(Some(Expr::Function(f.clone())));
        }
        "any_value" => {
            if let FunctionArguments::List(list) = &mut f.args
                && list.args.len() == 1
            {
                f.name = ObjectName::from(vec![Ident::new("min_by")]);
                list.args.extend(list.args.clone());
                return Ok(Some(Expr::Function(f.clone())));
            }
            return Ok(None);
        }
        _ => return Ok(None),
    };
    let FunctionArguments::List(list) = &mut f.args else {
        return Ok(None);
    };
    let mut values = Vec::with_capacity(list.args.len());
    for arg in &list.args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => values.push(e.clone()),
            _ => return Ok(None),
        }
    }
    let distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    let (value, shown) = match (name, values.as_slice()) {
        // Distinct are the values themselves: json has no equality.
        ("json_agg" | "jsonb_agg", [x]) if distinct => (x.clone(), format!("pg_{json}_list")),
        ("json_agg" | "jsonb_agg", [x]) => (
            function(&format!("to_{json}"), vec![x.clone()]),
            format!("pg_{json}_list"),
        ),
        ("json_object_agg" | "jsonb_object_agg", [_, _]) => {
            (function("pg_json_member", values), format!("pg_{json}_members"))
        }
        _ => return Ok(None),
    };
    list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))];
    f.name = ObjectName::from(vec![Ident::new("array_agg")]);
    Ok(Some(function(&shown, vec![Expr::Function(f.clone())])))
}

/// The arguments in parentheses, and whether nothing else stands there.
fn direct_arguments(f: &Function) -> Result<(Vec<Expr>, bool)> {
    let FunctionArguments::List(list) = &f.args else {
        return Ok((Vec::new(), matches!(f.args, FunctionArguments::None)));
    };
    let ordered = |c: &FunctionArgumentClause| matches!(c, FunctionArgumentClause::OrderBy(_));
    let plain = list.duplicate_treatment.is_none() && !list.clauses.iter().any(ordered);
    let mut args = Vec::with_capacity(list.args.len());
    for arg in &list.args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => args.push(e.clone()),
            other => return Err(PlanError::new("42601", format!("syntax error at or near \"{other}\""))),
        }
    }
    Ok((args, plain))
}

fn op(l: Expr, op: BinaryOperator, r: Expr) -> Expr {
    Expr::Nested(Box::new(Expr::BinaryOp {
        left: Box::new(l),
        op,
        right: Box::new(r),
    }))
}

fn number(n: i64) -> Expr {
    Expr::Value(ValueWithSpan::from(Value::Number(n.to_string(), false)))
}

fn is_null(e: &Expr) -> Expr {
    Expr::IsNull(Box::new(Expr::Nested(Box::new(e.clone()))))
}

fn is_not_null(e: &Expr) -> Expr {
    Expr::IsNotNull(Box::new(Expr::Nested(Box::new(e.clone()))))
}

/// Rows that sort in front of the hypothetical one: by the first key in which they differ.
fn in_front(values: &[Expr], keys: &[OrderByExpr]) -> Option<Expr> {
    let mut all: Option<Expr> = None;
    for (value, key) in values.iter().zip(keys).rev() {
        let descending = key.options.asc == Some(false);
        let nulls_first = key.options.nulls_first.unwrap_or(descending);
        let x = Expr::Nested(Box::new(key.expr.clone()));
        let value = Expr::Nested(Box::new(value.clone()));
        let less = if descending {
            BinaryOperator::Gt
        } else {
            BinaryOperator::Lt
        };
        let nulls = if nulls_first {
            op(is_null(&x), BinaryOperator::And, is_not_null(&value))
        } else {
            op(is_not_null(&x), BinaryOperator::And, is_null(&value))
        };
        let before = op(op(x.clone(), less, value.clone()), BinaryOperator::Or, nulls);
        all = Some(match all {
            None => before,
            Some(rest) => {
                let same = Expr::Nested(Box::new(Expr::IsNotDistinctFrom(Box::new(x), Box::new(value))));
                op(before, BinaryOperator::Or, op(same, BinaryOperator::And, rest))
            }
        });
    }
    all
}

fn equal(values: &[Expr], keys: &[OrderByExpr]) -> Option<Expr> {
    let same = |(value, key): (&Expr, &OrderByExpr)| {
        let sides = [key.expr.clone(), value.clone()].map(|e| Box::new(Expr::Nested(Box::new(e))));
        let [x, value] = sides;
        Expr::Nested(Box::new(Expr::IsNotDistinctFrom(x, value)))
    };
    values
        .iter()
        .zip(keys)
        .map(same)
        .reduce(|a, b| op(a, BinaryOperator::And, b))
}

/// `count(*)`, or `count(DISTINCT x)`, of the rows that pass both conditions.
fn count_of(distinct: Option<&Expr>, condition: Option<Expr>, filter: Option<&Expr>) -> Expr {
    let mut call = function("count", distinct.cloned().into_iter().collect());
    if let Expr::Function(f) = &mut call {
        if let FunctionArguments::List(list) = &mut f.args {
            if distinct.is_some() {
                list.duplicate_treatment = Some(DuplicateTreatment::Distinct);
            } else {
                list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Wildcard)];
            }
        }
        let filter = filter.map(|e| Expr::Nested(Box::new(e.clone())));
        f.filter = match (condition, filter) {
            (Some(a), Some(b)) => Some(Box::new(op(a, BinaryOperator::And, b))),
            (a, b) => a.or(b).map(Box::new),
        };
    }
    call
}

/// The place of a row that is not there.
fn hypothetical(name: &str, values: Vec<Expr>, keys: Vec<OrderByExpr>, filter: Option<Box<Expr>>) -> Result<Expr> {
    if values.len() != keys.len() {
        return Err(wrong_arguments(name));
    }
    let filter = filter.as_deref();
    let front = in_front(&values, &keys);
    let float = |e: Expr| cast(e, DataType::DoublePrecision);
    let total = || count_of(None, None, filter);
    let before = || count_of(None, front.clone(), filter);
    Ok(match name {
        "rank" => op(number(1), BinaryOperator::Plus, before()),
        "dense_rank" => {
            let [key] = keys.as_slice() else {
                return Err(
                    PlanError::unsupported("dense_rank of a row of several columns is not supported")
                        .hint("Use rank(), or one column."),
                );
            };
            let values = count_of(Some(&key.expr), front.clone(), filter);
            let null_in_front = front.clone().map(|f| op(is_null(&key.expr), BinaryOperator::And, f));
            let nulls = function("least", vec![number(1), count_of(None, null_in_front, filter)]);
            op(op(number(1), BinaryOperator::Plus, values), BinaryOperator::Plus, nulls)
        }
        "percent_rank" => Expr::Case {
            case_token: sqlparser::ast::helpers::attached_token::AttachedToken::empty(),
            end_token: sqlparser::ast::helpers::attached_token::AttachedToken::empty(),
            operand: None,
            conditions: vec![CaseWhen {
                condition: op(total(), BinaryOperator::Eq, number(0)),
                result: float(number(0)),
            }],
            else_result: Some(Box::new(op(float(before()), BinaryOperator::Divide, float(total())))),
        },
        _ => {
            let not_behind = match (front.clone(), equal(&values, &keys)) {
                (Some(a), Some(b)) => Some(op(a, BinaryOperator::Or, b)),
                (a, b) => a.or(b),
            };
            let upto = count_of(None, not_behind, filter);
            op(
                float(op(number(1), BinaryOperator::Plus, upto)),
                BinaryOperator::Divide,
                float(op(number(1), BinaryOperator::Plus, total())),
            )
        }
    })
}
