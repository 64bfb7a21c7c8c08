//! Correlated subqueries that would yield other rows if what correlates them were taken out.

use datafusion::common::Result as DfResult;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::logical_plan::{JoinType, Subquery};
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan};

use super::super::functions::external;
use super::has_subquery;
use super::lift::contains_outer;
use crate::PlanError;

/// Refuses correlated subqueries whose conditions stand below something that would see other rows if they were taken out.
pub(super) fn refuse_below(plan: &LogicalPlan) -> DfResult<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Subquery(subquery) = node {
            refuse_form(subquery)?;
        }
        node.apply_expressions(|e| {
            e.apply(|e| {
                match e {
                    Expr::Exists(Exists { subquery, .. })
                    | Expr::InSubquery(InSubquery { subquery, .. })
                    | Expr::ScalarSubquery(subquery)
                    | Expr::SetComparison(SetComparison { subquery, .. }) => refuse_form(subquery)?,
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

fn refuse_form(subquery: &Subquery) -> DfResult<()> {
    if subquery.outer_ref_columns.is_empty() {
        return Ok(());
    }
    let reaches_out = |plan: &LogicalPlan| contains_outer(plan).unwrap_or(true);
    // A single row for no rows as well.
    let total = |n: &LogicalPlan| matches!(n, LogicalPlan::Aggregate(a) if a.group_expr.is_empty());
    let constant = |e: &Expr| {
        !matches!(e.clone().unalias(), Expr::Literal(v, _) if v.is_null())
            && e.column_refs().is_empty()
            && !e.contains_outer()
            && !has_subquery(e)
    };
    subquery.subquery.apply(|node| {
        let what = match node {
            LogicalPlan::Window(w) if reaches_out(&w.input) => "a window function over them",
            LogicalPlan::Distinct(Distinct::On(on)) if reaches_out(&on.input) => "DISTINCT ON over them",
            LogicalPlan::Aggregate(a)
                if matches!(a.group_expr.first(), Some(Expr::GroupingSet(_))) && reaches_out(&a.input) =>
            {
                "GROUPING SETS, ROLLUP or CUBE over them"
            }
            LogicalPlan::Filter(f) if total(&f.input) && reaches_out(&f.input) => "HAVING without GROUP BY over them",
            LogicalPlan::Projection(p) if total(&p.input) && reaches_out(&p.input) && p.expr.iter().any(constant) => {
                "a constant beside an aggregate over them"
            }
            LogicalPlan::Join(j) => {
                let (left, right) = (reaches_out(&j.left), reaches_out(&j.right));
                let on = j.filter.iter().any(Expr::contains_outer);
                let wrong = match j.join_type {
                    JoinType::Left => right || on,
                    JoinType::Right => left || on,
                    JoinType::Full => left || right || on,
                    _ => false,
                };
                if !wrong {
                    return Ok(TreeNodeRecursion::Continue);
                }
                "an outer join of them"
            }
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Err(external(
            PlanError::unsupported(format!(
                "a subquery that compares rows with the outer query's below {what} is not supported"
            ))
            .hint("Write a join, with a subquery in FROM that is grouped, or partitioned, by the compared columns."),
        ))
    })?;
    Ok(())
}
