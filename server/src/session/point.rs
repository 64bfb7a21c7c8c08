//! Writes to one row by its key.
//!
//! `UPDATE t SET … WHERE id = 7` says which row it wants before it is run. Its lock can be taken first, and the query run once, on
//! the row's newest version; otherwise the query would be run, wait, and be run again. That matters where many clients want one row.

use arrow::array::ArrayRef;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::scalar::ScalarValue;
use levee_planner::sql::CatalogTable;

use super::change::Target;
use crate::error::Result;

/// The primary key's values, in key order, if the plan's condition is that the key has them, and nothing else.
pub(super) fn key_of(plan: &LogicalPlan, target: &Target) -> Result<Option<Vec<ArrayRef>>> {
    let Some(condition) = condition_of(plan, target) else {
        return Ok(None);
    };
    let mut fixed: Vec<(&str, &ScalarValue)> = Vec::new();
    if !equalities(condition, &mut fixed) || fixed.len() != target.def.primary_key.len() {
        return Ok(None);
    }
    let mut columns = Vec::with_capacity(fixed.len());
    for &c in &target.def.primary_key {
        let field = target.schema().field(c);
        let value = fixed.iter().find(|(name, _)| *name == field.name().as_str());
        let Some((_, value)) = value.filter(|(_, v)| !v.is_null() && &v.data_type() == field.data_type()) else {
            return Ok(None);
        };
        columns.push(value.to_array()?);
    }
    Ok((!columns.is_empty()).then_some(columns))
}

/// The condition of `SELECT … FROM target WHERE condition`.
fn condition_of<'a>(plan: &'a LogicalPlan, target: &Target) -> Option<&'a Expr> {
    match plan {
        LogicalPlan::Projection(p) => condition_of(&p.input, target),
        LogicalPlan::Filter(filter) => is_target(&filter.input, target).then_some(&filter.predicate),
        _ => None,
    }
}

fn is_target(plan: &LogicalPlan, target: &Target) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => is_target(&alias.input, target),
        LogicalPlan::TableScan(scan) => {
            let table = scan.source.downcast_ref::<CatalogTable>();
            scan.filters.is_empty() && table.is_some_and(|t| t.id == target.id)
        }
        _ => false,
    }
}

/// Takes `a = 1 AND b = 2` apart; false if it is anything else.
fn equalities<'a>(e: &'a Expr, out: &mut Vec<(&'a str, &'a ScalarValue)>) -> bool {
    let Expr::BinaryExpr(b) = e else { return false };
    match (b.op, b.left.as_ref(), b.right.as_ref()) {
        (Operator::And, left, right) => equalities(left, out) && equalities(right, out),
        (Operator::Eq, Expr::Column(c), Expr::Literal(v, _)) | (Operator::Eq, Expr::Literal(v, _), Expr::Column(c)) => {
            out.push((&c.name, v));
            true
        }
        _ => false,
    }
}
