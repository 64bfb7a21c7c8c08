//! The syntax of arrays, as calls of functions that [`super::collections`] types.
//!
//! | written | read as |
//! | --- | --- |
//! | `ARRAY[x, y]` | `pg_array(x, y)` |
//! | `a[i]` | `pg_subscript(a, i)` |
//! | `a[l:u]`, `a[l:]`, … | `pg_slice(a, l, u, 'b')`, `pg_slice(a, l, NULL, 'l')`, … |
//! | `x < ANY (a)`, `x <> ALL (a)` | `pg_any(x, '<', a)`, `pg_all(x, '<>', a)` |

use sqlparser::ast::{
    AccessExpr, BinaryOperator, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, OrderByExpr, OrderByOptions, Subscript,
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
