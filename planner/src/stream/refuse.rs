//! What cannot be kept incrementally, found before anything is lowered. Every refusal is 0A000, names the expression, and says what to
//! write instead.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::{InSubquery, WindowFunctionDefinition};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Volatility};
use datafusion::sql::unparser::expr_to_sql;

use crate::sql::map_df_error;
use crate::{PlanError, Result};

/// The expression as the user might have written it.
pub(super) fn sql_text(expr: &Expr) -> String {
    match expr_to_sql(expr) {
        Ok(sql) => sql.to_string(),
        Err(_) => expr.to_string(),
    }
}

/// A DataFusion refusal in our words; `what` completes "… is not supported in a materialized view".
pub(super) fn from_datafusion(what: &str, error: &DataFusionError) -> PlanError {
    match error.find_root() {
        DataFusionError::Plan(m) => in_views(what, map_df_error(DataFusionError::Plan(m.clone()))),
        DataFusionError::NotImplemented(m) => in_views(what, map_df_error(DataFusionError::NotImplemented(m.clone()))),
        DataFusionError::SchemaError(e, _) => PlanError::new("42703", e.to_string()),
        DataFusionError::External(e) => match e.downcast_ref::<PlanError>() {
            Some(e) => e.clone(),
            None => PlanError::internal(format!("{what}: {e}")),
        },
        other => PlanError::internal(format!("{what}: {other}")),
    }
}

/// What was meant for batch queries, said of views.
fn in_views(what: &str, e: PlanError) -> PlanError {
    let mut refused = PlanError::unsupported(format!("{what} is not supported in a materialized view"));
    if e.code == "0A000" && e.hint.is_some() {
        refused = e;
        refused.message.push_str(" in a materialized view");
    }
    refused
}

/// Calls `f` on every expression of the plan, those inside subqueries too.
fn each_expr(plan: &LogicalPlan, mut f: impl FnMut(&LogicalPlan, &Expr) -> Result<()>) -> Result<()> {
    let mut refused = Ok(());
    let walked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|root| {
            root.apply(|expr| match f(node, expr) {
                Ok(()) => Ok(TreeNodeRecursion::Continue),
                Err(e) => {
                    refused = Err(e);
                    Ok(TreeNodeRecursion::Stop)
                }
            })
        })
    });
    refused?;
    walked.map(|_| ()).map_err(|e| PlanError::internal(e.to_string()))
}

/// Refuses expressions whose value a retraction could not compute again.
pub(super) fn check_deterministic(plan: &LogicalPlan) -> Result<()> {
    each_expr(plan, |_, expr| {
        let volatility = match expr {
            Expr::ScalarFunction(f) => f.func.signature().volatility,
            Expr::HigherOrderFunction(f) => f.func.signature().volatility,
            Expr::AggregateFunction(f) => f.func.signature().volatility,
            Expr::WindowFunction(w) => match &w.fun {
                WindowFunctionDefinition::AggregateUDF(f) => f.signature().volatility,
                WindowFunctionDefinition::WindowUDF(f) => f.signature().volatility,
            },
            Expr::Placeholder(p) => {
                return Err(PlanError::new("42P02", format!("there is no parameter {}", p.id))
                    .hint("A materialized view's query must not contain parameters."));
            }
            Expr::ScalarVariable(_, names) if names.len() == 1 && names[0] == crate::sql::NOW => Volatility::Immutable,
            Expr::ScalarVariable(..) => {
                return Err(PlanError::unsupported(format!(
                    "variable {expr} is not supported in a materialized view"
                )));
            }
            _ => Volatility::Immutable,
        };
        let text = || sql_text(expr);
        match volatility {
            Volatility::Immutable => Ok(()),
            Volatility::Stable => Err(PlanError::unsupported(format!(
                "{} is not supported in a materialized view",
                text()
            ))
            .detail("Its value changes with time, not with the data.")
            .hint("Store the time in a column when a row is written, or compare with it when reading the view.")),
            Volatility::Volatile => Err(PlanError::unsupported(format!(
                "{} is not supported in a materialized view",
                text()
            ))
            .detail("Its value differs each time that it is computed, so a row could not be retracted.")
            .hint("Store its value in a column when a row is written.")),
        }
    })
}

/// Refuses IN subqueries whose NULL answer would be seen: DataFusion answers them with a mark that is never NULL.
///
/// Under AND and OR at the top of a WHERE clause, NULL and false are alike, so a plain IN is sound there.
pub(super) fn check_in_subqueries(plan: &LogicalPlan) -> Result<()> {
    let mut refused = Ok(());
    let walked = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Filter(filter) = node {
            for conjunct in split_conjunction(&filter.predicate) {
                if let Err(e) = check_conjunct(conjunct, filter.input.schema()) {
                    refused = Err(e);
                    return Ok(TreeNodeRecursion::Stop);
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    });
    refused?;
    walked.map(|_| ()).map_err(|e| PlanError::internal(e.to_string()))
}

fn check_conjunct(conjunct: &Expr, schema: &DFSchema) -> Result<()> {
    match conjunct {
        Expr::InSubquery(_) => Ok(()),
        Expr::Not(inner) if matches!(inner.as_ref(), Expr::InSubquery(_)) => Ok(()),
        other => check_embedded(other, schema, true),
    }
}

/// `null_is_false`: whether what stands above treats a NULL of this expression as false.
fn check_embedded(expr: &Expr, schema: &DFSchema, null_is_false: bool) -> Result<()> {
    match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::And | Operator::Or,
            right,
        }) => {
            check_embedded(left, schema, null_is_false)?;
            check_embedded(right, schema, null_is_false)
        }
        Expr::InSubquery(InSubquery {
            expr: tested,
            subquery,
            negated,
        }) => {
            let inner = subquery.subquery.schema();
            let nullable = tested.nullable(schema).unwrap_or(true) || inner.fields().iter().any(|f| f.is_nullable());
            if !nullable || (null_is_false && !negated) {
                return Ok(());
            }
            Err(PlanError::unsupported(format!(
                "{} within a larger expression is not supported in a materialized view",
                sql_text(expr)
            ))
            .detail("It may be NULL, because a compared value may be NULL.")
            .hint("Write [NOT] EXISTS (SELECT … WHERE …) instead, or put the IN condition under AND alone."))
        }
        other => {
            let mut found = Ok(());
            let walked = other.apply_children(|child| match check_embedded(child, schema, false) {
                Ok(()) => Ok(TreeNodeRecursion::Continue),
                Err(e) => {
                    found = Err(e);
                    Ok(TreeNodeRecursion::Stop)
                }
            });
            found?;
            walked.map(|_| ()).map_err(|e| PlanError::internal(e.to_string()))
        }
    }
}

/// Refuses subqueries that the rules could not turn into joins.
pub(super) fn check_no_subqueries(plan: &LogicalPlan) -> Result<()> {
    each_expr(plan, |node, expr| {
        let (kind, hint) = match expr {
            Expr::Exists(_) | Expr::InSubquery(_) if !matches!(node, LogicalPlan::Filter(_)) => (
                "subquery outside a WHERE or HAVING clause",
                "Join the relations with LEFT JOIN on a DISTINCT subquery and test the joined column for NULL.",
            ),
            Expr::Exists(_) => (
                "EXISTS subquery of this form",
                "Correlate it by equality conditions in the subquery's WHERE clause, or write a join.",
            ),
            Expr::InSubquery(_) => (
                "IN subquery of this form",
                "Correlate it by equality conditions in the subquery's WHERE clause, or write a join.",
            ),
            Expr::ScalarSubquery(_) => (
                "scalar subquery of this form",
                "Write a join with a subquery that is grouped by the compared columns.",
            ),
            Expr::SetComparison(_) => (
                "comparison with ANY or ALL of a subquery",
                "Compare with (SELECT min(…)) or (SELECT max(…)) instead.",
            ),
            Expr::OuterReferenceColumn(..) => (
                "reference to a column of the outer query at this place",
                "Write a join with a subquery that is grouped by the compared columns.",
            ),
            _ => return Ok(()),
        };
        Err(PlanError::unsupported(format!(
            "{kind} is not supported in a materialized view: {}",
            sql_text(expr)
        ))
        .hint(hint))
    })
}
