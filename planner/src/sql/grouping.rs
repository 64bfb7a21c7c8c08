//! GROUP BY and DISTINCT ON in a form that DataFusion's planner knows.
//!
//! ```text
//!   GROUP BY a, ROLLUP ((b, c), d)   →  GROUP BY GROUPING SETS ((a, b, c, d), (a, b, c), (a))
//!   GROUP BY ()                      →  HAVING count(*) >= 0, which makes the whole one group
//!   DISTINCT ON (a, b) … ORDER BY b  →  DISTINCT ON (b, a) … ORDER BY b, a
//! ```

use sqlparser::ast::{
    BinaryOperator, Distinct, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr,
    OrderByKind, Query, Select, SelectItem, SetExpr, Value, ValueWithSpan,
};

use super::derived::has_wildcard;
use super::ext::{fold, object_name};
use super::rewrite::item_key;
use super::syntax::function;
use crate::{PlanError, Result};

/// PostgreSQL's bound for one GROUP BY.
const SETS_MAX: usize = 4096;

/// The quantifier of `GROUP BY DISTINCT`, as its first key; no user can write it.
pub(super) const GROUP_DISTINCT: &str = "\u{1}distinct";

/// Alternatives by which rows are grouped.
type Sets = Vec<Vec<Expr>>;

/// Spells out a SELECT's GROUP BY.
///
/// # Errors
/// 42P10 for a position that no result column has, 54001 for too many sets.
pub(super) fn group_by(s: &mut Select) -> Result<()> {
    let GroupByExpr::Expressions(keys, _) = &s.group_by else {
        return Ok(());
    };
    let mut keys = keys.as_slice();
    let distinct = matches!(keys.first(), Some(Expr::Identifier(i)) if i.value == GROUP_DISTINCT);
    if distinct {
        keys = &keys[1..];
    }
    if !distinct && keys.iter().all(is_plain) {
        return Ok(());
    }
    let several = keys
        .iter()
        .any(|k| matches!(k, Expr::Rollup(_) | Expr::Cube(_) | Expr::GroupingSets(_)));
    let mut all: Sets = vec![Vec::new()];
    for key in keys {
        let alternatives = sets_of(key, s, several)?;
        if all.len().saturating_mul(alternatives.len()) > SETS_MAX {
            return Err(PlanError::new(
                "54001",
                format!("too many grouping sets present (maximum {SETS_MAX})"),
            ));
        }
        let pairs = all
            .iter()
            .flat_map(|left| alternatives.iter().map(move |right| (left, right)));
        all = pairs.map(|(left, right)| union(left, right)).collect();
    }
    if distinct {
        let mut kept: Sets = Vec::new();
        for set in all {
            let same = |other: &Vec<Expr>| other.len() == set.len() && set.iter().all(|e| other.contains(e));
            if !kept.iter().any(same) {
                kept.push(set);
            }
        }
        all = kept;
    }
    let keys = match all.as_mut_slice() {
        [only] => std::mem::take(only),
        _ => vec![Expr::GroupingSets(all)],
    };
    if keys.is_empty() {
        one_group(s);
    }
    s.group_by = GroupByExpr::Expressions(keys, Vec::new());
    Ok(())
}

fn is_plain(key: &Expr) -> bool {
    !matches!(
        key,
        Expr::Rollup(_) | Expr::Cube(_) | Expr::GroupingSets(_) | Expr::Tuple(_)
    )
}

fn union(left: &[Expr], right: &[Expr]) -> Vec<Expr> {
    let mut both = left.to_vec();
    both.extend(right.iter().filter(|e| !left.contains(e)).cloned());
    both
}

/// The alternatives that one element of GROUP BY stands for. Positions are looked up where several sets are made.
fn sets_of(key: &Expr, s: &Select, several: bool) -> Result<Sets> {
    Ok(match key {
        Expr::Rollup(parts) => rollup(&rows(parts, s)?),
        Expr::Cube(parts) => cube(&rows(parts, s)?)?,
        Expr::GroupingSets(parts) => {
            let mut sets = Sets::new();
            for part in parts {
                match part.as_slice() {
                    [Expr::Function(f)] => match nested(f)? {
                        Some((true, parts)) => sets.extend(rollup(&rows(&parts, s)?)),
                        Some((false, parts)) => sets.extend(cube(&rows(&parts, s)?)?),
                        None => sets.push(row(part, s)?),
                    },
                    part => sets.push(row(part, s)?),
                }
            }
            sets
        }
        Expr::Tuple(parts) => vec![row(parts, s)?],
        other if several => vec![row(std::slice::from_ref(other), s)?],
        other => vec![vec![other.clone()]],
    })
}

fn rollup(rows: &[Vec<Expr>]) -> Sets {
    (0..=rows.len()).rev().map(|n| joined(&rows[..n])).collect()
}

fn cube(rows: &[Vec<Expr>]) -> Result<Sets> {
    if rows.len() > 12 {
        return Err(PlanError::new("54011", "CUBE is limited to 12 elements"));
    }
    let choose = |chosen: usize| -> Vec<Vec<Expr>> {
        let part = |(i, row): (usize, &Vec<Expr>)| (chosen >> (rows.len() - 1 - i) & 1 == 1).then(|| row.clone());
        rows.iter().enumerate().filter_map(part).collect()
    };
    Ok((0..1_usize << rows.len()).rev().map(|n| joined(&choose(n))).collect())
}

fn joined(rows: &[Vec<Expr>]) -> Vec<Expr> {
    rows.iter().fold(Vec::new(), |all, row| union(&all, row))
}

/// ROLLUP (true) or CUBE in GROUPING SETS, which the parser takes for a call.
fn nested(f: &Function) -> Result<Option<(bool, Sets)>> {
    let (schema, name) = object_name(&f.name)?;
    let is_rollup = match name.as_str() {
        "rollup" => true,
        "cube" => false,
        _ => return Ok(None),
    };
    let (None, FunctionArguments::List(list)) = (schema, &f.args) else {
        return Ok(None);
    };
    let parts = list.args.iter().map(|a| match a {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Tuple(row))) => Ok(row.clone()),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Ok(vec![e.clone()]),
        other => Err(PlanError::new("42601", format!("syntax error at or near \"{other}\""))),
    });
    parts.collect::<Result<_>>().map(|parts| Some((is_rollup, parts)))
}

fn rows(parts: &[Vec<Expr>], s: &Select) -> Result<Sets> {
    parts.iter().map(|part| row(part, s)).collect()
}

/// Keys that are grouped by together; a number is the position of a result column.
fn row(part: &[Expr], s: &Select) -> Result<Vec<Expr>> {
    let mut keys = Vec::with_capacity(part.len());
    for e in part {
        let e = match e {
            Expr::Nested(inner) => inner.as_ref(),
            other => other,
        };
        match e {
            Expr::Tuple(inner) => keys.extend(row(inner, s)?),
            other => keys.push(result_at(other, s, "GROUP BY")?.unwrap_or_else(|| other.clone())),
        }
    }
    Ok(joined(&[keys]))
}

/// The result column that a number stands for.
fn result_at(e: &Expr, s: &Select, clause: &str) -> Result<Option<Expr>> {
    let Expr::Value(ValueWithSpan {
        value: Value::Number(n, _),
        ..
    }) = e
    else {
        return Ok(None);
    };
    if has_wildcard(s) {
        return Err(
            PlanError::unsupported(format!("a position in {clause} beside a wildcard is not supported"))
                .hint("Name the column."),
        );
    }
    let at = n.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
    match at.and_then(|at| s.projection.get(at)) {
        Some(SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }) => Ok(Some(e.clone())),
        _ => Err(PlanError::new(
            "42P10",
            format!("{clause} position {n} is not in select list"),
        )),
    }
}

/// Makes all rows one group, of which there is one even without rows: a condition on an aggregate, which is always met.
fn one_group(s: &mut Select) {
    let mut count = function("count", Vec::new());
    if let Expr::Function(Function {
        args: FunctionArguments::List(list),
        ..
    }) = &mut count
    {
        list.args.push(FunctionArg::Unnamed(FunctionArgExpr::Wildcard));
    }
    let binary = |left: Expr, op: BinaryOperator, right: Expr| Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    };
    let zero = Expr::Value(Value::Number("0".to_owned(), false).into());
    let any = binary(count, BinaryOperator::GtEq, zero);
    s.having = Some(match s.having.take() {
        Some(e) => binary(Expr::Nested(Box::new(e)), BinaryOperator::And, any),
        None => any,
    });
}

/// Brings the keys of DISTINCT ON into the order of ORDER BY, which has each of them once, first.
///
/// # Errors
/// 42P10 for a position that no result column has, or where ORDER BY begins with something else.
pub(super) fn distinct_on(q: &mut Query) -> Result<()> {
    let SetExpr::Select(s) = q.body.as_mut() else {
        return Ok(());
    };
    let Some(Distinct::On(keys)) = &s.distinct else {
        return Ok(());
    };
    let mut on: Vec<Expr> = Vec::with_capacity(keys.len());
    for key in keys {
        let key = result_at(key, s, "DISTINCT ON")?.unwrap_or_else(|| key.clone());
        if !on.iter().any(|e| same(e, &key, s)) {
            on.push(key);
        }
    }
    let order = match q.order_by.as_mut().map(|order| &mut order.kind) {
        Some(OrderByKind::Expressions(keys)) => keys,
        Some(OrderByKind::All(_)) => return Ok(()),
        None => {
            s.distinct = Some(Distinct::On(on));
            return Ok(());
        }
    };
    let mut sorted = Vec::with_capacity(on.len());
    let mut kept: Vec<sqlparser::ast::OrderByExpr> = Vec::with_capacity(order.len());
    for mut key in std::mem::take(order) {
        if !has_wildcard(s)
            && let Some(e) = result_at(&key.expr, s, "ORDER BY")?
        {
            key.expr = Expr::Nested(Box::new(e));
        }
        if kept.iter().any(|k| same(&k.expr, &key.expr, s)) {
            continue;
        }
        match on.iter().position(|e| same(e, &key.expr, s)) {
            Some(at) => {
                key.expr = on.remove(at);
                sorted.push(key.expr.clone());
            }
            None if !on.is_empty() => {
                let message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
                return Err(PlanError::new("42P10", message));
            }
            None => {}
        }
        kept.push(key);
    }
    for rest in on {
        kept.push(sqlparser::ast::OrderByExpr {
            expr: rest.clone(),
            options: sqlparser::ast::OrderByOptions {
                asc: None,
                nulls_first: None,
            },
            with_fill: None,
        });
        sorted.push(rest);
    }
    *order = kept;
    s.distinct = Some(Distinct::On(sorted));
    Ok(())
}

/// Do two keys mean one value? A name may be that of a result column, and a column may be named with its table.
fn same(a: &Expr, b: &Expr, s: &Select) -> bool {
    let (a, b) = (meant(a, s), meant(b, s));
    match (&a, &b) {
        (Expr::Identifier(name), Expr::CompoundIdentifier(parts))
        | (Expr::CompoundIdentifier(parts), Expr::Identifier(name)) => {
            parts.last().is_some_and(|last| fold(last) == fold(name))
        }
        _ => a == b,
    }
}

fn meant(e: &Expr, s: &Select) -> Expr {
    match e {
        Expr::Nested(inner) => meant(inner, s),
        Expr::Identifier(name) => {
            let name = fold(name);
            let alias = s.projection.iter().find_map(|item| match item {
                SelectItem::ExprWithAlias { expr, .. } if item_key(item).is_some_and(|(n, _)| n == name) => Some(expr),
                _ => None,
            });
            alias.map_or_else(
                || e.clone(),
                |e| match e {
                    Expr::Nested(inner) => inner.as_ref().clone(),
                    other => other.clone(),
                },
            )
        }
        other => other.clone(),
    }
}
