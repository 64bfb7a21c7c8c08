//! Window functions over rows that their ORDER BY leaves equal.
//!
//! PostgreSQL leaves open which of two equal rows is the first. Here the columns that the SELECT names decide, in the order in which FROM has
//! them, NULLs first, so that a query answers the same each time, and as the view that was made of it. Rows that agree in all of those are
//! alike: whichever is the first, the result is the same.
//!
//! ```text
//!   SELECT id, lag(x) OVER (ORDER BY day) FROM t      →      lag(x) OVER (ORDER BY day, id NULLS FIRST)
//! ```
//!
//! Only calls that look at single rows get such sort keys: groups of equal rows stay what they are for `rank` or a RANGE frame. Where a
//! frame of ROWS says the same as one of RANGE or GROUPS, it is that one then; the last of a group of equal rows is the last of a partition
//! of those. `nth_value` and lists over a RANGE or GROUPS frame that is bounded are left as they are.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result as DfResult, ScalarValue};
use datafusion::logical_expr::expr::{Sort, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::logical_plan::Window;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, WindowFrame, WindowFrameBound, WindowFrameUnits};

use super::errors::map_df_error;
use super::{Binder, CatalogTable};
use crate::Result;
use crate::catalog::ObjectKind;

impl Binder {
    /// Gives window functions an order in which no two rows that can be told apart are equal.
    pub(super) fn settle_ties(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let windows_below = node.inputs().iter().any(|i| window_below(i));
            if !windows_below || continues(&node) {
                return Ok(Transformed::no(node));
            }
            let mut named = HashSet::new();
            let all = !matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_));
            name_columns(&node, &mut named)?;
            node.map_children(|input| self.settle(input, &mut named, all))
        })
        .map(|t| t.data)
        .map_err(map_df_error)
    }

    /// Settles the windows of one SELECT, from the top; `named`: the columns that it reads, or `all`.
    fn settle(&self, node: LogicalPlan, named: &mut HashSet<Column>, all: bool) -> DfResult<Transformed<LogicalPlan>> {
        if !window_below(&node) {
            return Ok(Transformed::no(node));
        }
        name_columns(&node, named)?;
        let node = node.map_children(|input| self.settle(input, named, all))?.data;
        let LogicalPlan::Window(window) = node else {
            return Ok(Transformed::yes(node));
        };
        let ties = self.ties(&window.input, named, all);
        let exprs = window.window_expr.iter().map(|e| settled(e, &ties));
        regrouped(exprs.collect(), &window).map(Transformed::yes)
    }

    /// The columns that decide, up to a key.
    fn ties(&self, input: &LogicalPlan, named: &HashSet<Column>, all: bool) -> Vec<Expr> {
        let key = self.key(input);
        let mut ties = Vec::new();
        let mut left = key.clone().unwrap_or_default();
        for (i, (qualifier, field)) in input.schema().iter().enumerate() {
            let column = Column::new(qualifier.cloned(), field.name());
            // Neither json nor lists have an order that every evaluator knows.
            if field.data_type().is_nested() || !(all || named.contains(&column)) {
                continue;
            }
            ties.push(Expr::Column(column));
            left.retain(|k| *k != i);
            if left.is_empty() && key.is_some() {
                break;
            }
        }
        ties
    }

    /// Columns that no two rows agree in, if they are easily found.
    fn key(&self, plan: &LogicalPlan) -> Option<Vec<usize>> {
        match plan {
            LogicalPlan::TableScan(scan) if scan.projection.is_none() => {
                let table = scan.source.downcast_ref::<CatalogTable>()?;
                match &self.catalog.get(table.id)?.kind {
                    ObjectKind::Table(table) if !table.primary_key.is_empty() => Some(table.primary_key.clone()),
                    _ => None,
                }
            }
            LogicalPlan::Filter(filter) => self.key(&filter.input),
            LogicalPlan::SubqueryAlias(alias) => self.key(&alias.input),
            LogicalPlan::Window(window) => self.key(&window.input),
            LogicalPlan::Projection(projection) => {
                let place = |c: &usize| {
                    let (qualifier, field) = projection.input.schema().qualified_field(*c);
                    let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
                    projection.expr.iter().position(|e| *bare(e) == column)
                };
                self.key(&projection.input)?.iter().map(place).collect()
            }
            _ => None,
        }
    }
}

/// The node is part of the SELECT whose windows stand below it.
fn continues(node: &LogicalPlan) -> bool {
    matches!(node, LogicalPlan::Window(_) | LogicalPlan::Filter(_))
}

fn window_below(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Window(_) => true,
        LogicalPlan::Filter(filter) => window_below(&filter.input),
        _ => false,
    }
}

fn name_columns(node: &LogicalPlan, named: &mut HashSet<Column>) -> DfResult<()> {
    node.apply_expressions(|e| {
        named.extend(e.column_refs().into_iter().cloned());
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// All calls of one node have one partition and order: calls that do not any more get nodes of their own, those with most keys first, as
/// rows sorted by those are sorted for the others too.
fn regrouped(exprs: Vec<Expr>, window: &Window) -> DfResult<LogicalPlan> {
    let mut groups: Vec<(Vec<Expr>, Vec<Sort>, Vec<Expr>)> = Vec::new();
    for expr in exprs {
        let (partition_by, order_by) = match bare(&expr) {
            Expr::WindowFunction(f) => (f.params.partition_by.clone(), f.params.order_by.clone()),
            _ => (Vec::new(), Vec::new()),
        };
        match groups.iter_mut().find(|g| g.0 == partition_by && g.1 == order_by) {
            Some(group) => group.2.push(expr),
            None => groups.push((partition_by, order_by, vec![expr])),
        }
    }
    let one = groups.len() == 1;
    groups.sort_by_key(|(partition_by, order_by, _)| std::cmp::Reverse(partition_by.len() + order_by.len()));
    let mut plan = Arc::clone(&window.input);
    for (_, _, exprs) in groups {
        plan = Arc::new(LogicalPlan::Window(Window::try_new(exprs, plan)?));
    }
    if one {
        return Ok(Arc::unwrap_or_clone(plan));
    }
    let columns = window.schema.columns().into_iter().map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, plan)?))
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => bare(&alias.expr),
        plain => plain,
    }
}

fn settled(expr: &Expr, ties: &[Expr]) -> Expr {
    let (call, name) = match expr {
        Expr::Alias(alias) => (alias.expr.as_ref(), alias.name.clone()),
        plain => (plain, plain.schema_name().to_string()),
    };
    let Expr::WindowFunction(function) = call else {
        return expr.clone();
    };
    let mut function = function.clone();
    if !looks_at_rows(&mut function) {
        return expr.clone();
    }
    let params = &mut function.params;
    for tie in ties {
        let known = params.partition_by.contains(tie) || params.order_by.iter().any(|s| s.expr == *tie);
        if !known {
            params.order_by.push(Sort::new(tie.clone(), true, true));
        }
    }
    Expr::WindowFunction(function).alias(name)
}

/// Whether the result depends on the order of rows that ORDER BY leaves equal; then the frame is one that more sort keys leave as it is.
fn looks_at_rows(function: &mut WindowFunction) -> bool {
    let name = match &function.fun {
        WindowFunctionDefinition::WindowUDF(f) => f.name().to_owned(),
        WindowFunctionDefinition::AggregateUDF(f) => f.name().to_owned(),
    };
    let params = &mut function.params;
    let frame = &params.window_frame;
    let start_open = matches!(&frame.start_bound, WindowFrameBound::Preceding(v) if v.is_null());
    let end_open = matches!(&frame.end_bound, WindowFrameBound::Following(v) if v.is_null());
    let counts_peers = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => true,
        WindowFrameBound::Preceding(v) | WindowFrameBound::Following(v) => v.is_null(),
    };
    let plain = counts_peers(&frame.start_bound) && counts_peers(&frame.end_bound);
    let unordered = params.order_by.is_empty() && frame.units != WindowFrameUnits::Rows && plain;
    let open_start = || WindowFrameBound::Preceding(ScalarValue::UInt64(None));
    let open_end = || WindowFrameBound::Following(ScalarValue::UInt64(None));
    let rows = |start, end| WindowFrame::new_bounds(WindowFrameUnits::Rows, start, end);
    match name.as_str() {
        "row_number" | "ntile" | "lag" | "lead" => {
            // They have no frame.
            params.window_frame = rows(open_start(), open_end());
            return true;
        }
        "rank" | "dense_rank" | "percent_rank" | "cume_dist" => return false,
        _ => {}
    }
    let ordered = matches!(
        name.as_str(),
        "first_value" | "last_value" | "nth_value" | "array_agg" | "string_agg"
    );
    if start_open && end_open || unordered {
        if ordered {
            params.window_frame = rows(open_start(), open_end());
        }
        return ordered;
    }
    if frame.units == WindowFrameUnits::Rows {
        return true;
    }
    if !ordered {
        return false;
    }
    let end_behind = matches!(
        frame.end_bound,
        WindowFrameBound::CurrentRow | WindowFrameBound::Following(_)
    );
    let start_in_front = matches!(
        frame.start_bound,
        WindowFrameBound::CurrentRow | WindowFrameBound::Preceding(_)
    );
    if name == "first_value" && start_open && end_behind {
        params.window_frame = rows(open_start(), WindowFrameBound::CurrentRow);
        return true;
    }
    if name == "last_value" && end_open && start_in_front {
        params.window_frame = rows(WindowFrameBound::CurrentRow, open_end());
        return true;
    }
    let starts_here = matches!(frame.start_bound, WindowFrameBound::CurrentRow);
    let ends_here = matches!(frame.end_bound, WindowFrameBound::CurrentRow);
    if name == "first_value" && starts_here && end_behind || name == "last_value" && ends_here && start_in_front {
        // The row is one of those that ORDER BY leaves equal to the own one.
        let peers = std::mem::take(&mut params.order_by);
        params.partition_by.extend(peers.into_iter().map(|key| key.expr));
        params.window_frame = rows(open_start(), open_end());
        return true;
    }
    false
}
