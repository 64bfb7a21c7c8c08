//! Functions that return sets, in FROM and in select lists.
//!
//! Each is one array function or several, whose elements side by side are the rows:
//!
//! ```text
//!   FROM t, jsonb_each(t.j) WITH ORDINALITY AS e(k, v, n)
//!     →  FROM t, UNNEST(pg_jsonb_keys(t.j), pg_jsonb_values(t.j), pg_ordinals(…)) AS e(k, v, n)
//!   SELECT a, unnest(b) FROM t WHERE …
//!     →  SELECT a, s.c1 AS unnest FROM t, UNNEST(b) AS s(c1) WHERE …
//! ```
//!
//! and a join with an UNNEST of the other side's columns is an operator above that side.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, NullHandling, Result as DfResult, UnnestOptions};
use datafusion::logical_expr::expr_rewriter::strip_outer_reference;
use datafusion::logical_expr::logical_plan::{Join, JoinType};
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::{Expr as PlanExpr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit};
use sqlparser::ast::{
    self, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, ObjectName, Query,
    Select, SelectItem, SelectItemQualifiedWildcardKind, TableAlias, TableAliasColumnDef, TableFactor, TableWithJoins,
    UnaryOperator, Value, Visit, VisitMut, Visitor, VisitorMut,
};

use super::ext::{fold, object_name};
use super::names::{MARK, column_name};
use super::subqueries::Names;
use super::syntax::{cast, function, null, table_alias, typed};
use super::types::JSON;
use crate::{PlanError, Result};

/// A call of a function that returns a set: the arrays that hold its columns, and the columns' names.
struct SetCall {
    arrays: Vec<Expr>,
    names: Vec<String>,
    /// The function has one column without a name of its own, which is called as the FROM item is.
    unnamed: bool,
}

/// The arrays of a call, if the function returns a set.
fn set_call(name: &str, args: &[Expr]) -> Option<SetCall> {
    let over = |functions: &[&str], names: &[&str], unnamed| SetCall {
        arrays: functions.iter().map(|f| function(f, args.to_vec())).collect(),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        unnamed,
    };
    Some(match name {
        "unnest" => SetCall {
            arrays: args.iter().map(|a| function("pg_elements", vec![a.clone()])).collect(),
            names: vec!["unnest".to_owned(); args.len()],
            unnamed: args.len() == 1,
        },
        "generate_series" => over(&["pg_series_list"], &[name], true),
        "jsonb_each" => over(&["pg_jsonb_keys", "pg_jsonb_values"], &["key", "value"], false),
        "jsonb_each_text" => over(&["pg_jsonb_keys", "pg_jsonb_texts"], &["key", "value"], false),
        "jsonb_object_keys" => over(&["pg_jsonb_keys"], &[name], true),
        "jsonb_array_elements" => over(&["pg_jsonb_elements"], &["value"], false),
        "jsonb_array_elements_text" => over(&["pg_jsonb_element_texts"], &["value"], false),
        "json_array_elements" => over(&["pg_json_elements"], &["value"], false),
        "json_array_elements_text" => over(&["pg_json_element_texts"], &["value"], false),
        "string_to_table" => over(&["string_to_array"], &[name], true),
        _ => return None,
    })
}

fn plain_args(args: &[FunctionArg]) -> Option<Vec<Expr>> {
    args.iter()
        .map(|a| match a {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Some(e.clone()),
            _ => None,
        })
        .collect()
}

/// A call in an expression, if its function returns a set.
fn call_of(f: &Function) -> Option<SetCall> {
    let FunctionArguments::List(list) = &f.args else {
        return None;
    };
    let (_, name) = object_name(&f.name).ok()?;
    if f.over.is_some() || f.filter.is_some() {
        return None;
    }
    set_call(&name, &plain_args(&list.args)?)
}

/// A FROM item that is a call: the function's name, its arguments, WITH ORDINALITY and the alias.
fn item_of(t: &TableFactor) -> Option<(String, Vec<Expr>, bool, Option<TableAlias>)> {
    match t {
        TableFactor::Table {
            name,
            alias,
            args: Some(args),
            with_ordinality,
            ..
        } => {
            let (_, name) = object_name(name).ok()?;
            Some((name, plain_args(&args.args)?, *with_ordinality, alias.clone()))
        }
        TableFactor::Function {
            name,
            args,
            alias,
            with_ordinality,
            ..
        } => {
            let (_, name) = object_name(name).ok()?;
            Some((name, plain_args(args)?, *with_ordinality, alias.clone()))
        }
        TableFactor::UNNEST {
            alias,
            array_exprs,
            with_offset: false,
            with_ordinality,
            ..
        } => Some((
            "unnest".to_owned(),
            array_exprs.clone(),
            *with_ordinality,
            alias.clone(),
        )),
        _ => None,
    }
}

/// The alias with a name for every column.
fn full_alias(name: &str, call: &SetCall, ordinality: bool, alias: Option<TableAlias>) -> TableAlias {
    let given = alias.is_some();
    let mut alias = alias.unwrap_or_else(|| table_alias(name));
    let own = call
        .names
        .iter()
        .cloned()
        .chain(ordinality.then(|| "ordinality".to_owned()));
    for (i, own) in own.enumerate().skip(alias.columns.len()) {
        let name = if i == 0 && call.unnamed && given {
            alias.name.clone()
        } else {
            Ident::with_quote('"', own)
        };
        alias.columns.push(TableAliasColumnDef { name, data_type: None });
    }
    alias
}

/// Names of a FROM item's columns, if it is a call.
pub(super) fn columns_of(t: &TableFactor) -> Option<(Ident, Vec<String>)> {
    let (name, args, ordinality, alias) = item_of(t)?;
    let call = set_call(&name, &args)?;
    let alias = full_alias(&name, &call, ordinality, alias);
    let names = alias.columns.iter().map(|c| fold(&c.name)).collect();
    Some((alias.name, names))
}

/// A call in FROM as UNNEST of its arrays. A long series of constants in a query that runs once stays a scan, which holds none of it.
pub(super) fn table_factor(t: &mut TableFactor, streaming: bool) -> Result<()> {
    let Some((name, args, ordinality, alias)) = item_of(t) else {
        return Ok(());
    };
    let Some(call) = set_call(&name, &args) else {
        return Ok(());
    };
    let alias = full_alias(&name, &call, ordinality, alias);
    let expected = call.names.len() + usize::from(ordinality);
    if alias.columns.len() > expected {
        return Err(PlanError::new(
            "42P10",
            format!(
                "table \"{}\" has {expected} columns available but {} columns specified",
                fold(&alias.name),
                alias.columns.len()
            ),
        ));
    }
    if name == "generate_series" && !streaming && !ordinality && args.iter().all(|a| constant(a).is_some()) {
        *t = scanned_series(args, alias)?;
        return Ok(());
    }
    let mut arrays = call.arrays;
    if ordinality {
        arrays.push(function("pg_ordinals", arrays.clone()));
    }
    *t = unnest(arrays, alias);
    Ok(())
}

fn unnest(arrays: Vec<Expr>, alias: TableAlias) -> TableFactor {
    TableFactor::UNNEST {
        alias: Some(alias),
        array_exprs: arrays.into_iter().map(typed).collect(),
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    }
}

/// An integer constant.
fn constant(e: &Expr) -> Option<i64> {
    match e {
        Expr::Value(v) => match &v.value {
            Value::Number(n, _) => n.parse().ok(),
            _ => None,
        },
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => constant(expr)?.checked_neg(),
        _ => None,
    }
}

/// `(SELECT value::integer AS c FROM pg_series(a, b) AS s(value)) AS alias(c)`.
fn scanned_series(args: Vec<Expr>, alias: TableAlias) -> Result<TableFactor> {
    let small = |e: &Expr| constant(e).is_some_and(|n| i32::try_from(n).is_ok());
    let data_type = if args.iter().all(small) {
        ast::DataType::Int4(None)
    } else {
        ast::DataType::Int8(None)
    };
    let mut subquery = super::parse::parse_query("SELECT 1 AS c FROM pg_series(1) AS s(value)")?;
    if let ast::SetExpr::Select(s) = subquery.body.as_mut() {
        if let Some(SelectItem::ExprWithAlias { expr, .. }) = s.projection.first_mut() {
            *expr = cast(Expr::Identifier(Ident::new("value")), data_type);
        }
        if let Some(TableFactor::Table { args: own, .. }) = s.from.first_mut().map(|f| &mut f.relation) {
            *own = Some(ast::TableFunctionArgs {
                args: args
                    .into_iter()
                    .map(|a| FunctionArg::Unnamed(FunctionArgExpr::Expr(a)))
                    .collect(),
                settings: None,
            });
        }
    }
    Ok(TableFactor::Derived {
        lateral: false,
        subquery,
        alias: Some(alias),
        sample: None,
    })
}

/// Moves the calls in a select list to FROM, where they stand side by side.
pub(super) fn select(s: &mut Select) -> Result<()> {
    let table = format!("sets{MARK}");
    let mut finder = Finder {
        table: &table,
        arrays: Vec::new(),
        depth: 0,
        refused: None,
    };
    for item in &mut s.projection {
        let before = finder.arrays.len();
        let name = match item {
            SelectItem::UnnamedExpr(e) => Some(column_name(e)),
            _ => None,
        };
        if let SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. } = item {
            let ControlFlow::Continue(()) = VisitMut::visit(e, &mut finder);
            if let (Some(name), true) = (name, finder.arrays.len() > before) {
                *item = SelectItem::ExprWithAlias {
                    expr: std::mem::replace(e, null()),
                    alias: Ident::with_quote('"', name),
                };
            }
        }
    }
    if let Some(e) = finder.refused {
        return Err(e);
    }
    let arrays = finder.arrays;
    if arrays.is_empty() {
        return Ok(());
    }
    let grouped = match &s.group_by {
        GroupByExpr::Expressions(keys, _) => !keys.is_empty(),
        GroupByExpr::All(_) => true,
    };
    if grouped || s.having.is_some() || arrays.iter().any(aggregates) {
        return Err(PlanError::unsupported(
            "a function that returns a set beside GROUP BY or of an aggregate is not supported",
        )
        .hint("Put the grouped query in FROM: SELECT unnest(g.a) FROM (SELECT … GROUP BY …) AS g."));
    }
    star_apart(s)?;
    let mut alias = table_alias(&table);
    for i in 1..=arrays.len() {
        alias.columns.push(TableAliasColumnDef {
            name: Ident::with_quote('"', format!("c{i}")),
            data_type: None,
        });
    }
    s.from.push(TableWithJoins {
        relation: unnest(arrays, alias),
        joins: Vec::new(),
    });
    Ok(())
}

/// Does an expression call an aggregate, outside of subqueries?
fn aggregates(e: &Expr) -> bool {
    struct Calls(usize);
    impl Visitor for Calls {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.0 -= 1;
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
            match e {
                Expr::Function(f) if self.0 == 0 && f.over.is_none() => match object_name(&f.name) {
                    Ok((_, name)) if super::aggregates::is_aggregate(&name) => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                },
                _ => ControlFlow::Continue(()),
            }
        }
    }
    Visit::visit(e, &mut Calls(0)).is_break()
}

/// `*` means what FROM held before.
fn star_apart(s: &mut Select) -> Result<()> {
    let star = |i: &SelectItem| matches!(i, SelectItem::Wildcard(_));
    if !s.projection.iter().any(star) {
        return Ok(());
    }
    let factors = s
        .from
        .iter()
        .flat_map(|f| std::iter::once(&f.relation).chain(f.joins.iter().map(|j| &j.relation)));
    let names = factors
        .map(|t| {
            super::merged::name_of(t).ok_or_else(|| {
                PlanError::unsupported("* beside a function that returns a set is not supported over this FROM item")
                    .hint("Give the item a name with AS.")
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut projection = Vec::with_capacity(s.projection.len());
    for item in std::mem::take(&mut s.projection) {
        match item {
            SelectItem::Wildcard(options) => projection.extend(names.iter().map(|n| {
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(ObjectName::from(n.clone())),
                    options.clone(),
                )
            })),
            other => projection.push(other),
        }
    }
    s.projection = projection;
    Ok(())
}

struct Finder<'a> {
    table: &'a str,
    arrays: Vec<Expr>,
    /// Subqueries around: their calls are their own.
    depth: usize,
    refused: Option<PlanError>,
}

impl VisitorMut for Finder<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        let Expr::Function(f) = e else {
            return ControlFlow::Continue(());
        };
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let Some(mut call) = call_of(f) else {
            return ControlFlow::Continue(());
        };
        if call.arrays.len() > 1 {
            self.refused = Some(
                PlanError::unsupported(format!(
                    "{} with several columns in a select list is not supported",
                    f.name
                ))
                .hint("Put it in FROM: SELECT e.* FROM t, jsonb_each(t.j) AS e."),
            );
            return ControlFlow::Continue(());
        }
        self.arrays.append(&mut call.arrays);
        *e = Expr::CompoundIdentifier(vec![
            Ident::with_quote('"', self.table),
            Ident::with_quote('"', format!("c{}", self.arrays.len())),
        ]);
        ControlFlow::Continue(())
    }
}

/// The plan of an UNNEST in FROM: one row of arrays, unnested.
pub(super) fn plan(arrays: Vec<Expr>, context: &mut dyn RelationPlannerContext) -> DfResult<LogicalPlan> {
    let schema = datafusion::common::DFSchema::empty();
    let mut exprs = Vec::with_capacity(arrays.len());
    let mut columns = Vec::with_capacity(arrays.len());
    for (i, e) in arrays.into_iter().enumerate() {
        let name = format!("__set_{i}");
        exprs.push(context.sql_to_expr(e, &schema)?.alias(&name));
        columns.push(Column::new_unqualified(name));
    }
    LogicalPlanBuilder::empty(true)
        .project(exprs)?
        .unnest_columns_with_options(columns, UnnestOptions::new().with_preserve_nulls(false))?
        .build()
}

/// A join with functions that return sets, as an operator above the other side.
pub(super) fn join(join: &Join, names: &mut Names) -> DfResult<Option<LogicalPlan>> {
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Ok(None);
    }
    let outer = join.join_type == JoinType::Left;
    let swapped = !outer && !is_sets(&join.right) && is_sets(&join.left);
    let (kept, sets) = if swapped {
        (&join.right, &join.left)
    } else {
        (&join.left, &join.right)
    };
    if !is_sets(sets) || is_sets(kept) {
        return Ok(None);
    }
    let mut on: Vec<PlanExpr> = join.on.iter().map(|(l, r)| l.clone().eq(r.clone())).collect();
    on.extend(join.filter.clone());
    on.retain(|e| *e != lit(true));
    if outer && !on.is_empty() {
        return Ok(None);
    }
    let Some(replay) = replayed(sets, kept, outer, names)? else {
        return Ok(None);
    };
    let mut exprs: Vec<PlanExpr> = kept.schema().columns().into_iter().map(PlanExpr::Column).collect();
    for ((qualifier, f), c) in sets.schema().iter().zip(&replay.columns) {
        exprs.push(PlanExpr::Column(c.clone()).alias_qualified(qualifier.cloned(), f.name()));
    }
    let mut plan = LogicalPlanBuilder::from(replay.plan).project(exprs)?;
    for e in on {
        plan = plan.filter(e)?;
    }
    if swapped {
        plan = plan.project(join.schema.columns().into_iter().map(PlanExpr::Column))?;
    }
    plan.build().map(Some)
}

/// The sets of a subquery for each value of the one outer column that they refer to: that column, its form in `outer` by which equal values
/// are found, and the sets. For a NULL there is no row.
pub(super) fn for_each_value(
    plan: &LogicalPlan,
    outer: &LogicalPlan,
    names: &mut Names,
) -> DfResult<Option<(LogicalPlan, Column, PlanExpr)>> {
    let mut refs: Vec<Column> = Vec::new();
    for e in plan.all_out_ref_exprs() {
        match e {
            PlanExpr::OuterReferenceColumn(_, c) if outer.schema().has_column(&c) => {
                if !refs.contains(&c) {
                    refs.push(c);
                }
            }
            _ => return Ok(None),
        }
    }
    let [c] = refs.as_slice() else {
        return Ok(None);
    };
    let value = PlanExpr::Column(c.clone());
    let key = match value.get_type(outer.schema())? {
        DataType::List(_) => super::functions::call("pg_array_key", vec![value.clone()])?,
        t if t == JSON || t.is_floating() => return Ok(None),
        _ => value.clone(),
    };
    let values = LogicalPlanBuilder::from(outer.clone())
        .filter(value.clone().is_not_null())?
        .project(vec![value])?
        .distinct()?
        .build()?;
    let Some(replay) = replayed(plan, &values, false, names)? else {
        return Ok(None);
    };
    let name = names.next("key");
    let mut exprs = vec![key.clone().alias(&name)];
    for ((qualifier, f), c) in plan.schema().iter().zip(&replay.columns) {
        exprs.push(PlanExpr::Column(c.clone()).alias_qualified(qualifier.cloned(), f.name()));
    }
    let plan = LogicalPlanBuilder::from(replay.plan).project(exprs)?.build()?;
    Ok(Some((plan, Column::new_unqualified(name), key)))
}

/// Is it an UNNEST of one row, with nothing read?
pub(super) fn is_sets(plan: &LogicalPlan) -> bool {
    fn below(plan: &LogicalPlan) -> bool {
        match plan {
            LogicalPlan::EmptyRelation(e) => e.produce_one_row,
            LogicalPlan::Projection(p) => below(&p.input),
            LogicalPlan::SubqueryAlias(a) => below(&a.input),
            LogicalPlan::Subquery(s) => below(&s.subquery),
            LogicalPlan::Unnest(u) => below(&u.input),
            _ => false,
        }
    }
    below(plan)
        && plan
            .exists(|n| Ok(matches!(n, LogicalPlan::Unnest(_))))
            .unwrap_or(false)
}

/// What a plan over one row yields for each row of another: that row's columns, and the plan's as `columns`.
struct Replay {
    plan: LogicalPlan,
    columns: Vec<Column>,
}

fn replayed(plan: &LogicalPlan, left: &LogicalPlan, outer: bool, names: &mut Names) -> DfResult<Option<Replay>> {
    Ok(match plan {
        LogicalPlan::EmptyRelation(_) => Some(Replay {
            plan: left.clone(),
            columns: Vec::new(),
        }),
        LogicalPlan::SubqueryAlias(a) => replayed(&a.input, left, outer, names)?,
        LogicalPlan::Subquery(s) => replayed(&s.subquery, left, outer, names)?,
        LogicalPlan::Projection(p) => {
            let Some(below) = replayed(&p.input, left, outer, names)? else {
                return Ok(None);
            };
            let mut exprs: Vec<PlanExpr> = left.schema().columns().into_iter().map(PlanExpr::Column).collect();
            let mut columns = Vec::with_capacity(p.expr.len());
            for e in &p.expr {
                let e = e.clone().transform_up(|e| match e {
                    PlanExpr::Column(c) => {
                        let at = p.input.schema().index_of_column(&c)?;
                        Ok(Transformed::yes(PlanExpr::Column(
                            below.columns.get(at).cloned().unwrap_or(c),
                        )))
                    }
                    other => Ok(Transformed::no(other)),
                })?;
                let name = names.next("set");
                exprs.push(strip_outer_reference(e.data).alias(&name));
                columns.push(Column::new_unqualified(name));
            }
            Some(Replay {
                plan: LogicalPlanBuilder::from(below.plan).project(exprs)?.build()?,
                columns,
            })
        }
        LogicalPlan::Unnest(u) if u.options.recursions.is_empty() && u.struct_type_columns.is_empty() => {
            let Some(below) = replayed(&u.input, left, outer, names)? else {
                return Ok(None);
            };
            let mut lists = Vec::with_capacity(u.exec_columns.len());
            for c in &u.exec_columns {
                let at = u.input.schema().index_of_column(c)?;
                lists.extend(below.columns.get(at).cloned());
            }
            let nulls = if outer {
                NullHandling::PreserveAndExpandEmpty
            } else {
                NullHandling::Drop
            };
            let options = UnnestOptions::new().with_null_handling(nulls);
            let input = LogicalPlanBuilder::from(below.plan);
            Some(Replay {
                plan: input.unnest_columns_with_options(lists, options)?.build()?,
                columns: below.columns,
            })
        }
        _ => None,
    })
}
