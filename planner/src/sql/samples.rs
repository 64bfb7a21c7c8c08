//! Queries that read a source directly: `SELECT … FROM source … LIMIT n` samples it.
//!
//! A source stores nothing and may never end, so only a piece of it can be shown. A scan of a source must stand below a LIMIT, with
//! nothing between them but projections and filters: everything else would give an answer about the piece as if it were the whole.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, FetchType, LogicalPlan, SkipType};

use super::CatalogTable;
use super::errors::map_df_error;
use crate::catalog::{Catalog, ObjectKind};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// Records of a sample that a filter reads, or a LIMIT whose number is not known yet.
const SAMPLE_RECORDS: u64 = 10_000;
/// Records of any sample.
const SAMPLE_RECORDS_MAX: u64 = 100_000;

/// The sources that a plan samples, with the number of records that each needs.
///
/// # Errors
/// 42809: a source is read without LIMIT.
pub(super) fn of(plan: &LogicalPlan, catalog: &Catalog) -> Result<Vec<(ObjectId, u64)>> {
    let mut found = Vec::new();
    visit(plan, None, catalog, &mut found)?;
    Ok(found)
}

fn visit(plan: &LogicalPlan, limit: Option<u64>, catalog: &Catalog, found: &mut Vec<(ObjectId, u64)>) -> Result<()> {
    let below = match plan {
        LogicalPlan::Limit(l) => {
            let skip = l.get_skip_type().map_err(map_df_error)?;
            let fetch = l.get_fetch_type().map_err(map_df_error)?;
            match (skip, fetch) {
                (_, FetchType::Literal(None)) => limit,
                (SkipType::Literal(skip), FetchType::Literal(Some(fetch))) => Some(skip as u64 + fetch as u64),
                _ => Some(SAMPLE_RECORDS),
            }
        }
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => limit,
        LogicalPlan::Filter(_) => limit.map(|n| n.max(SAMPLE_RECORDS)),
        _ => None,
    };
    if let LogicalPlan::TableScan(scan) = plan
        && let Some(table) = scan.source.downcast_ref::<CatalogTable>()
        && let Some(object) = catalog.get(table.id)
        && matches!(object.kind, ObjectKind::Source(_))
    {
        let Some(records) = limit else {
            return Err(
                PlanError::new("42809", format!("cannot read all of source \"{}\"", object.name))
                    .detail("A source stores nothing.")
                    .hint("Create a materialized view over it and read that, or add LIMIT to see a sample."),
            );
        };
        found.push((table.id, records.min(SAMPLE_RECORDS_MAX)));
    }
    for input in plan.inputs() {
        visit(input, below, catalog, found)?;
    }
    let mut result = Ok(());
    plan.apply_expressions(|e| {
        e.apply(|e| {
            let subquery = match e {
                Expr::ScalarSubquery(s) => Some(s),
                Expr::Exists(e) => Some(&e.subquery),
                Expr::InSubquery(i) => Some(&i.subquery),
                Expr::SetComparison(c) => Some(&c.subquery),
                _ => None,
            };
            if let Some(subquery) = subquery
                && let Err(error) = visit(&subquery.subquery, None, catalog, found)
            {
                result = Err(error);
                return Ok(TreeNodeRecursion::Stop);
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })
    .map_err(map_df_error)?;
    result
}
