//! The merged columns of RIGHT and FULL JOIN … USING.
//!
//! An unqualified name means the column that USING merged: of a full join `coalesce(l.k, r.k)`, of a right join `r.k`. DataFusion takes
//! the left table's, which is NULL for the rows that only the right one has. So the join is written with ON, and the name replaced:
//!
//! ```text
//! SELECT k, v FROM l FULL JOIN r USING (k)  ─▶  SELECT coalesce(l.k, r.k) AS k, v FROM l FULL JOIN r ON l.k = r.k
//! ```
//!
//! `*` would show both columns, and ORDER BY knows a name only if it is a result column's: such queries are refused.

use std::ops::ControlFlow;

use sqlparser::ast::{
    self, BinaryOperator, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Query, Select,
    SelectItem, TableFactor, VisitMut, VisitorMut,
};

use super::ext::fold;
use super::syntax::function;
use crate::{PlanError, Result};

/// Rewrites a SELECT's joins and the names that they merge.
pub(super) fn columns(s: &mut Select) -> Result<()> {
    let mut merged = Merged {
        columns: Vec::new(),
        depth: 0,
    };
    for from in &mut s.from {
        let alone = from.joins.len() == 1;
        for join in &mut from.joins {
            let full = match &join.join_operator {
                JoinOperator::FullOuter(_) => true,
                JoinOperator::Right(_) | JoinOperator::RightOuter(_) => false,
                _ => continue,
            };
            let (JoinOperator::FullOuter(constraint)
            | JoinOperator::Right(constraint)
            | JoinOperator::RightOuter(constraint)) = &mut join.join_operator
            else {
                continue;
            };
            let names = match constraint {
                JoinConstraint::Using(names) => names.iter().map(column).collect::<Result<Vec<_>>>()?,
                JoinConstraint::Natural => return Err(refused("NATURAL")),
                JoinConstraint::On(_) | JoinConstraint::None => continue,
            };
            let (Some(l), Some(r), true) = (name_of(&from.relation), name_of(&join.relation), alone) else {
                return Err(refused("USING"));
            };
            let of = |table: &[Ident], c: &Ident| Expr::CompoundIdentifier([table, std::slice::from_ref(c)].concat());
            let equal = names.iter().map(|c| Expr::BinaryOp {
                left: Box::new(of(&l, c)),
                op: BinaryOperator::Eq,
                right: Box::new(of(&r, c)),
            });
            let on = equal.reduce(|a, b| Expr::BinaryOp {
                left: Box::new(a),
                op: BinaryOperator::And,
                right: Box::new(b),
            });
            *constraint = JoinConstraint::On(on.ok_or_else(|| refused("USING"))?);
            for c in names {
                let value = if full {
                    function("coalesce", vec![of(&l, &c), of(&r, &c)])
                } else {
                    of(&r, &c)
                };
                merged.columns.push((c, value));
            }
        }
    }
    if merged.columns.is_empty() {
        return Ok(());
    }
    for item in &mut s.projection {
        match item {
            SelectItem::Wildcard(_) => return Err(refused("USING")),
            SelectItem::UnnamedExpr(Expr::Identifier(i)) => {
                if let Some(value) = merged.value(i) {
                    *item = SelectItem::ExprWithAlias {
                        expr: value,
                        alias: i.clone(),
                    };
                }
            }
            _ => {}
        }
    }
    let visited = [
        VisitMut::visit(&mut s.projection, &mut merged),
        VisitMut::visit(&mut s.selection, &mut merged),
        VisitMut::visit(&mut s.group_by, &mut merged),
        VisitMut::visit(&mut s.having, &mut merged),
    ];
    debug_assert!(visited.iter().all(ControlFlow::is_continue));
    Ok(())
}

fn refused(what: &str) -> PlanError {
    PlanError::unsupported(format!(
        "a RIGHT or FULL JOIN with {what} of this form is not supported"
    ))
    .hint("Write ON a.k = b.k, and select coalesce(a.k, b.k) AS k and the other columns by name.")
}

fn column(name: &ObjectName) -> Result<Ident> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(i)] => Ok(i.clone()),
        _ => Err(PlanError::new("42601", "USING takes names of columns")),
    }
}

/// What qualifies a table's columns.
fn name_of(t: &TableFactor) -> Option<Vec<Ident>> {
    match t {
        TableFactor::Table { alias: Some(a), .. } | TableFactor::Derived { alias: Some(a), .. } => {
            Some(vec![a.name.clone()])
        }
        TableFactor::Table { name, .. } => match name.0.last() {
            Some(ObjectNamePart::Identifier(i)) => Some(vec![i.clone()]),
            _ => None,
        },
        _ => None,
    }
}

struct Merged {
    columns: Vec<(Ident, Expr)>,
    /// Subqueries around: their names are their own.
    depth: usize,
}

impl Merged {
    fn value(&self, name: &Ident) -> Option<Expr> {
        let named = self.columns.iter().find(|(c, _)| fold(c) == fold(name));
        named.map(|(_, value)| value.clone())
    }
}

impl VisitorMut for Merged {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        if self.depth == 0
            && let ast::Expr::Identifier(i) = e
            && let Some(value) = self.value(i)
        {
            *e = value;
        }
        ControlFlow::Continue(())
    }
}
