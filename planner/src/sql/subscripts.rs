//! The syntax of arrays, as calls of functions that [`super::collections`] types.
//!
//! | written | read as |
//! | --- | --- |
//! | `ARRAY[x, y]` | `pg_array(x, y)` |
//! | `a[i]` | `pg_subscript(a, i)` |
//! | `a[l:u]`, `a[l:]`, … | `pg_slice(a, l, u, 'b')`, `pg_slice(a, l, NULL, 'l')`, … |
//! | `ARRAY(SELECT x …)` | `(SELECT coalesce(array_agg(x), '{}') …)` |
//! | `x < ANY (a)`, `x <> ALL (a)` | `pg_any(x, '<', a)`, `pg_all(x, '<>', a)` |

use sqlparser::ast::{
    AccessExpr, BinaryOperator, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, GroupByExpr, Ident, OrderByExpr, OrderByKind, OrderByOptions, Query,
    SelectItem, SetExpr, Subscript, TableFactor, Value,
};

use super::array_text::several_dimensions;
use super::syntax::{function, null, string};
use crate::{PlanError, Result};

/// Rewrites one expression of the table above; others stay as they are.
pub(super) fn rewrite(e: &mut Expr) -> Result<()> {
    *e = match std::mem::replace(e, null()) {
        Expr::Array(array) => {
            if array.elem.iter().any(|x| matches!(x, Expr::Array(_))) {
                return Err(several_dimensions());
            }
            function("pg_array", array.elem)
        }
        Expr::AnyOp {
            left,
            compare_op,
            right,
            ..
        } if !matches!(*right, Expr::Subquery(_)) => quantified("pg_any", *left, &compare_op, *right)?,
        Expr::AllOp {
            left,
            compare_op,
            right,
        } if !matches!(*right, Expr::Subquery(_)) => quantified("pg_all", *left, &compare_op, *right)?,
        Expr::CompoundFieldAccess { root, access_chain } => access(*root, access_chain)?,
        Expr::Like { any: true, .. } | Expr::ILike { any: true, .. } => {
            return Err(PlanError::unsupported("LIKE ANY is not supported").hint("Join the patterns with OR."));
        }
        other => other,
    };
    Ok(())
}

/// `ARRAY(SELECT …)` is `(SELECT coalesce(array_agg(x ORDER BY …), '{}') FROM …)`. An ORDER BY must be of what is selected, or belong to a
/// plain SELECT, so that it can move into the call.
pub(super) fn array_of_query(q: &Query) -> Result<Expr> {
    let mut inner = q.clone();
    let keys = match inner.order_by.as_ref().map(|o| &o.kind) {
        Some(OrderByKind::Expressions(keys)) => keys.clone(),
        _ => Vec::new(),
    };
    let item = match inner.body.as_ref() {
        SetExpr::Select(s) => match s.projection.as_slice() {
            [SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }] => Some(e.clone()),
            [_] => None,
            _ => return Err(PlanError::new("42601", "subquery must return only one column")),
        },
        _ => None,
    };
    let alias = match inner.body.as_ref() {
        SetExpr::Select(s) => match s.projection.as_slice() {
            [SelectItem::ExprWithAlias { alias, .. }] => Some(alias.clone()),
            _ => None,
        },
        _ => None,
    };
    // By its position, by its name, or written once more.
    let own = |key: &OrderByExpr| match (&key.expr, &item) {
        (Expr::Value(v), _) => matches!(&v.value, Value::Number(n, _) if n == "1"),
        (Expr::Identifier(name), _) if alias.as_ref() == Some(name) => true,
        (e, Some(item)) => e == item,
        _ => false,
    };
    let value = Expr::CompoundIdentifier(vec![Ident::new("array_items"), Ident::new("item")]);
    let simple = match inner.body.as_ref() {
        SetExpr::Select(s) => {
            let grouped = !matches!(&s.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
            s.distinct.is_none()
                && !grouped
                && s.having.is_none()
                && inner.limit_clause.is_none()
                && inner.fetch.is_none()
        }
        _ => false,
    };
    let (order, from_item) = if let (true, Some(item)) = (simple, &item) {
        let order = keys.into_iter().map(|key| OrderByExpr {
            expr: if own(&key) { item.clone() } else { key.expr },
            ..key
        });
        (order.collect(), Some(item.clone()))
    } else if keys.iter().all(own) {
        let order = keys.into_iter().map(|key| OrderByExpr {
            expr: value.clone(),
            ..key
        });
        (order.collect(), None)
    } else {
        return Err(
            PlanError::unsupported("ARRAY(SELECT … ORDER BY …) of this form is not supported")
                .hint("Order by the selected expression, or use array_agg(x ORDER BY y) over a subquery in FROM."),
        );
    };
    let call = function(
        "coalesce",
        vec![aggregate(from_item.clone().unwrap_or(value), order), string("{}")],
    );
    if from_item.is_some() {
        inner.order_by = None;
        if let SetExpr::Select(s) = inner.body.as_mut() {
            s.projection = vec![SelectItem::UnnamedExpr(call)];
        }
        return Ok(Expr::Subquery(Box::new(inner)));
    }
    if inner.limit_clause.is_none() && inner.fetch.is_none() {
        inner.order_by = None;
    }
    let mut outer = super::parse::parse_query("SELECT 1 FROM (SELECT 1) AS array_items(item)")?;
    if let SetExpr::Select(s) = outer.body.as_mut() {
        s.projection = vec![SelectItem::UnnamedExpr(call)];
        if let Some(TableFactor::Derived { subquery, .. }) = s.from.first_mut().map(|f| &mut f.relation) {
            **subquery = inner;
        }
    }
    Ok(Expr::Subquery(outer))
}

fn aggregate(e: Expr, order: Vec<OrderByExpr>) -> Expr {
    let mut call = function("array_agg", vec![e]);
    if let Expr::Function(Function {
        args: FunctionArguments::List(list),
        ..
    }) = &mut call
        && !order.is_empty()
    {
        list.clauses.push(FunctionArgumentClause::OrderBy(order));
    }
    call
}

fn quantified(name: &str, left: Expr, op: &BinaryOperator, right: Expr) -> Result<Expr> {
    use BinaryOperator as B;
    let sign = match op {
        B::Eq => "=",
        B::NotEq => "<>",
        B::Lt => "<",
        B::LtEq => "<=",
        B::Gt => ">",
        B::GtEq => ">=",
        other => {
            let quantifier = if name == "pg_any" { "ANY" } else { "ALL" };
            return Err(
                PlanError::unsupported(format!("{other} {quantifier} (array) is not supported"))
                    .hint("= <> < <= > >= are supported."),
            );
        }
    };
    Ok(function(name, vec![left, string(sign), right]))
}

fn access(mut root: Expr, chain: Vec<AccessExpr>) -> Result<Expr> {
    for part in chain {
        root = match (root, part) {
            (Expr::Identifier(table), AccessExpr::Dot(Expr::Identifier(column))) => {
                Expr::CompoundIdentifier(vec![table, column])
            }
            (Expr::CompoundIdentifier(mut parts), AccessExpr::Dot(Expr::Identifier(column))) => {
                parts.push(column);
                Expr::CompoundIdentifier(parts)
            }
            (root, AccessExpr::Subscript(Subscript::Index { index })) => function("pg_subscript", vec![root, index]),
            (
                root,
                AccessExpr::Subscript(Subscript::Slice {
                    lower_bound,
                    upper_bound,
                    stride: None,
                }),
            ) => {
                let given = match (&lower_bound, &upper_bound) {
                    (Some(_), Some(_)) => "b",
                    (Some(_), None) => "l",
                    (None, Some(_)) => "u",
                    (None, None) => "n",
                };
                let bound = |b: Option<Expr>| b.unwrap_or_else(null);
                function(
                    "pg_slice",
                    vec![root, bound(lower_bound), bound(upper_bound), string(given)],
                )
            }
            (_, other) => {
                return Err(
                    PlanError::unsupported(format!("{other} after an expression is not supported"))
                        .hint("Array elements are a[i], slices a[l:u]."),
                );
            }
        };
    }
    Ok(root)
}

/// The values of `array_agg(DISTINCT x)` come in the order of x, as PostgreSQL happens to have them.
pub(super) fn order_distinct(f: &mut Function) {
    let FunctionArguments::List(list) = &mut f.args else {
        return;
    };
    let ordered = |c: &FunctionArgumentClause| matches!(c, FunctionArgumentClause::OrderBy(_));
    if list.duplicate_treatment != Some(DuplicateTreatment::Distinct) || list.clauses.iter().any(ordered) {
        return;
    }
    if let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(x))) = list.args.first() {
        let key = OrderByExpr {
            expr: x.clone(),
            options: OrderByOptions {
                asc: None,
                nulls_first: None,
            },
            with_fill: None,
        };
        list.clauses.push(FunctionArgumentClause::OrderBy(vec![key]));
    }
}
