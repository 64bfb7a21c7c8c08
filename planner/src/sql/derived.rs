//! Derived tables: the names of their columns, and the types of their branches.
//!
//! A select list with a wildcard does not tell its columns before it is planned, and in DataFusion a column of the list may not have
//! the name of one that the wildcard yields. So all names beside a wildcard carry [`MARK`], and once the derived table (or WITH query,
//! which becomes one here) is planned, each name that occurs once is its own again. Names that occur more often keep a mark, all of them:
//! PostgreSQL allows them too as long as nobody refers to them.

use std::collections::HashMap;

use datafusion::common::{Column, Result as DfResult};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use sqlparser::ast::{self, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor};

use super::ext::fold;
use super::functions::external;
use super::names::{MARK, shown};
use super::rewrite::item_key;
use super::unions::{has_set_operation, settle};
use crate::Result;

/// Plans derived tables whose columns DataFusion would name or type otherwise than PostgreSQL.
#[derive(Debug)]
pub(super) struct DerivedPlanner;

impl RelationPlanner for DerivedPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> DfResult<RelationPlanning> {
        crate::interrupt::check().map_err(external)?;
        match relation {
            // The alias is taken away for the inner planning, which also tells that planning apart.
            TableFactor::Derived {
                lateral: false,
                subquery,
                alias: Some(alias),
                sample: None,
            } if is_special(&subquery) => {
                let union = has_set_operation(&subquery);
                let mut plan = context.plan(TableFactor::Derived {
                    lateral: false,
                    subquery,
                    alias: None,
                    sample: None,
                })?;
                if union {
                    plan = settle(plan)?;
                }
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(
                    named(plan)?,
                    Some(alias),
                ))))
            }
            TableFactor::UNNEST {
                alias: Some(alias),
                array_exprs,
                ..
            } => Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(
                super::sets::plan(array_exprs, context)?,
                Some(alias),
            )))),
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

/// Must the query be planned by [`DerivedPlanner`]?
pub(super) fn is_special(q: &Query) -> bool {
    has_set_operation(q) || any_select(&q.body, has_wildcard)
}

/// Has a select list a wildcard?
pub(super) fn has_wildcard(s: &Select) -> bool {
    let wildcard = |i: &SelectItem| matches!(i, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
    s.projection.iter().any(wildcard)
}

fn any_select(body: &SetExpr, test: fn(&Select) -> bool) -> bool {
    match body {
        SetExpr::Select(s) => test(s),
        SetExpr::Query(q) => any_select(&q.body, test),
        SetExpr::SetOperation { left, right, .. } => any_select(left, test) || any_select(right, test),
        _ => false,
    }
}

/// `SELECT * FROM (inner) AS c`.
pub(super) fn around(inner: Query) -> Result<Query> {
    let mut outer = super::parse::parse_query("SELECT * FROM (SELECT 1) AS c")?;
    if let SetExpr::Select(s) = outer.body.as_mut()
        && let Some(TableFactor::Derived { subquery, .. }) = s.from.first_mut().map(|f| &mut f.relation)
    {
        **subquery = inner;
    }
    Ok(*outer)
}

/// ORDER BY may name a result column. Beside a wildcard those have no names that can be referred to, so the column's expression takes its place;
/// a set operation becomes a derived table.
pub(super) fn order_by_names(q: &mut Query) -> Result<()> {
    let Some(order) = &mut q.order_by else { return Ok(()) };
    let wildcards = any_select(&q.body, has_wildcard);
    match q.body.as_mut() {
        SetExpr::Select(s) if has_wildcard(s) => {
            let OrderByKind::Expressions(keys) = &mut order.kind else {
                return Ok(());
            };
            for key in keys {
                let ast::Expr::Identifier(name) = &key.expr else {
                    continue;
                };
                let name = fold(name);
                let mut items = s
                    .projection
                    .iter()
                    .filter(|i| item_key(i).is_some_and(|(n, _)| n == name));
                if let (Some(SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }), None) =
                    (items.next(), items.next())
                {
                    // In parentheses, so that a number is no position.
                    key.expr = ast::Expr::Nested(Box::new(e.clone()));
                }
            }
        }
        SetExpr::SetOperation { .. } if wildcards => {
            let mut inner = super::parse::parse_query("SELECT 1")?;
            std::mem::swap(&mut inner.body, &mut q.body);
            q.body = around(*inner)?.body;
        }
        _ => {}
    }
    Ok(())
}

/// Gives the plan's columns the names as shown where those differ.
fn named(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let schema = std::sync::Arc::clone(plan.schema());
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for f in schema.fields() {
        *uses.entry(shown(f.name())).or_default() += 1;
    }
    let mut number = HashMap::new();
    let names: Vec<String> = schema
        .fields()
        .iter()
        .map(|f| {
            let name = shown(f.name());
            if uses.get(name) == Some(&1) {
                return name.to_owned();
            }
            let n: &mut usize = number.entry(name).or_default();
            *n += 1;
            format!("{name}{MARK}{n}")
        })
        .collect();
    if schema.fields().iter().map(|f| f.name()).eq(&names) {
        return Ok(plan);
    }
    let exprs = schema.iter().zip(&names).map(|((qualifier, f), name)| {
        let column = Expr::Column(Column::new(qualifier.cloned(), f.name()));
        if f.name() == name { column } else { column.alias(name) }
    });
    let exprs: Vec<Expr> = exprs.collect();
    LogicalPlanBuilder::from(plan).project(exprs)?.build()
}
