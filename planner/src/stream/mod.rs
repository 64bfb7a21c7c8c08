//! Logical plan → stream plan: rewriting, lowering, derived properties, exchanges, fragments, EXPLAIN.
//!
//! ```text
//!   LogicalPlan ─ refuse ─ analyze ─ optimize ─▶ LogicalPlan ─ lower ─▶ Rel ─ place ─▶ StreamPlan ─ fragment ─▶ FragmentGraph
//!   (bound)      (volatile)  (types)  (rules)                  (joins, top-N)  (exchanges, ids)
//! ```
//!
//! Everything here is a function of the query and the catalog. A plan is made once, when its view is created, and stored; a later build
//! reads it back instead of planning anew, so operator ids stay with their state.

pub mod expr;

mod explain;
mod fragment;
mod ingest;
mod lower;
mod optimize;
mod place;
mod props;
mod refuse;
mod rel;
mod render;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};

pub use explain::explain;
pub use fragment::fragment;
pub use ingest::plan_ingest;

use crate::catalog::Catalog;
use crate::plan::{PLAN_VERSION, StreamNode, StreamOp, StreamPlan};
use crate::{PlanError, Result};

/// Plans a materialized view. `plan` is bound and unoptimised, with plain views expanded and [`crate::sql::CatalogTable`] sources; `schema`
/// names the view's columns. The root's schema has those names, the types of the analyzed plan (UNION may widen what binding saw), and the
/// nullability that the plan can promise.
///
/// # Errors
/// 0A000 with a hint for what cannot be kept incrementally.
pub fn plan_view(plan: LogicalPlan, schema: &SchemaRef, catalog: &Catalog) -> Result<StreamPlan> {
    refuse::check_deterministic(&plan)?;
    let rel = lowered(plan, catalog)?;
    if rel.width() != schema.fields().len() {
        return Err(PlanError::internal("the view's columns do not match its query"));
    }
    let fields = schema.fields().iter().zip(rel.schema.fields()).map(|(named, planned)| {
        if named.data_type() == planned.data_type() {
            return named.as_ref().clone().with_nullable(planned.is_nullable());
        }
        planned.as_ref().clone().with_name(named.name())
    });
    let fields: Vec<Field> = fields.collect();
    let rel = rel.without_unlimited_numberings().rename(Arc::new(Schema::new(fields)));
    Ok(StreamPlan {
        version: PLAN_VERSION,
        root: place::place(rel)?,
    })
}

/// Rows of a side by its form up to which a join without keys is cheap.
const FEW_ROWS: u64 = 1000;

/// How many joins of a plan compare all rows of one side with all rows of the other, neither of them few by its form.
pub fn nested_loops(plan: &StreamPlan) -> usize {
    let few = |node: &StreamNode| node.props.row_bound.is_some_and(|b| b <= FEW_ROWS);
    let mut n = 0;
    plan.root.visit(&mut |node| {
        if let StreamOp::Join { left_keys, .. } = &node.op {
            n += usize::from(left_keys.is_empty() && !node.inputs.iter().any(few));
        }
    });
    n
}

fn lowered(plan: LogicalPlan, catalog: &Catalog) -> Result<rel::Rel> {
    let plan = optimize::analyze(plan)?;
    refuse::check_in_subqueries(&plan)?;
    check_scalar_subqueries(&plan, catalog)?;
    let plan = optimize::optimize(plan)?;
    refuse::check_no_subqueries(&plan)?;
    lower::Lowering { catalog }.lower(&plan)
}

/// A scalar subquery becomes a join, which would repeat the outer row for each row of the subquery where PostgreSQL reports an error. So an
/// uncorrelated one must have at most one row by its form; of correlated ones the analyzer demands an aggregate.
fn check_scalar_subqueries(plan: &LogicalPlan, catalog: &Catalog) -> Result<()> {
    let mut refused = Ok(());
    let walked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|root| {
            root.apply(|expr| {
                let Expr::ScalarSubquery(subquery) = expr else {
                    return Ok(TreeNodeRecursion::Continue);
                };
                if !subquery.outer_ref_columns.is_empty() {
                    return Ok(TreeNodeRecursion::Continue);
                }
                match lowered(subquery.subquery.as_ref().clone(), catalog) {
                    Ok(rel) if props::at_most_one(&rel.props) => Ok(TreeNodeRecursion::Continue),
                    Ok(_) => {
                        let text = refuse::sql_text(expr);
                        refused = Err(PlanError::unsupported(format!(
                            "scalar subquery that may return more than one row: {text}"
                        ))
                        .hint("Use an aggregate, LIMIT 1, or an equality with a primary key."));
                        Ok(TreeNodeRecursion::Stop)
                    }
                    Err(e) => {
                        refused = Err(e);
                        Ok(TreeNodeRecursion::Stop)
                    }
                }
            })
        })
    });
    refused?;
    walked.map(|_| ()).map_err(|e| PlanError::internal(e.to_string()))
}
