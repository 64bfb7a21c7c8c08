//! Taking the references to the outer query out of a subquery.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, Result as DfResult, ScalarValue, TableReference};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr_rewriter::strip_outer_reference;
use datafusion::logical_expr::logical_plan::{Aggregate, FetchType, Join, JoinType, Limit, SkipType};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Distinct, Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, Operator, WindowFrame,
    WindowFrameBound, WindowFrameUnits, lit,
};

use super::super::sets;
use super::{Names, has_subquery};

/// A subquery without its references to the outer query.
pub(super) struct Lifted {
    pub plan: LogicalPlan,
    /// Columns of `plan` and the outer expressions that they must equal.
    pub pairs: Vec<(Column, Expr)>,
    /// Further conditions, over columns of `plan` and [`Expr::OuterReferenceColumn`]s.
    pub rest: Vec<Expr>,
}

impl Lifted {
    /// Are all outer columns the schema's? Those of a query further out are not.
    pub fn is_over(&self, schema: &DFSchema) -> bool {
        let outer = self.pairs.iter().flat_map(|(_, e)| e.column_refs());
        let known = |c: &Column| schema.has_column(c);
        let rest = self.rest.iter().all(|e| {
            !e.exists(|e| Ok(matches!(e, Expr::OuterReferenceColumn(_, c) if !known(c))))
                .unwrap_or(true)
        });
        rest && outer.into_iter().all(known)
    }

    /// Columns that conditions need.
    fn needed(&self) -> Vec<Column> {
        let mut all: Vec<Column> = self.pairs.iter().map(|(c, _)| c.clone()).collect();
        all.extend(self.rest.iter().flat_map(|e| e.column_refs()).cloned());
        all.sort();
        all.dedup();
        all
    }

    /// Under the same columns' other names.
    fn renamed(self, plan: LogicalPlan, of: impl Fn(&Column) -> Column) -> DfResult<Self> {
        let rest = self
            .rest
            .into_iter()
            .map(|e| {
                e.transform_up(|e| match e {
                    Expr::Column(c) => Ok(Transformed::yes(Expr::Column(of(&c)))),
                    other => Ok(Transformed::no(other)),
                })
                .map(|t| t.data)
            })
            .collect::<DfResult<_>>()?;
        Ok(Self {
            plan,
            pairs: self.pairs.into_iter().map(|(c, e)| (of(&c), e)).collect(),
            rest,
        })
    }

    fn conditions(self) -> Vec<Expr> {
        let equal = self.pairs.into_iter().map(|(c, e)| Expr::Column(c).eq(e));
        equal.chain(self.rest.into_iter().map(strip_outer_reference)).collect()
    }

    pub fn bare(self) -> (LogicalPlan, Vec<Expr>) {
        (self.plan.clone(), self.conditions())
    }

    /// As a relation of this name, with all columns or only those that conditions need, and the conditions.
    pub fn aliased(self, alias: &str, all: bool) -> DfResult<(LogicalPlan, Vec<Expr>)> {
        let table = TableReference::bare(alias);
        let plan = if all {
            self.plan.clone()
        } else {
            let columns = self.needed();
            let named = |(i, c): (usize, &Column)| Expr::Column(c.clone()).alias(format!("__c{i}"));
            let mut columns: Vec<Expr> = columns.iter().enumerate().map(named).collect();
            if columns.is_empty() {
                // The mark has the name of the relation that the columns have.
                columns.push(lit(true).alias("__c0"));
            }
            LogicalPlanBuilder::from(self.plan.clone()).project(columns)?.build()?
        };
        let needed = self.needed();
        let plan = LogicalPlanBuilder::from(plan).alias(table.clone())?.build()?;
        let lifted = self.renamed(plan, |c| {
            let name = match needed.iter().position(|n| n == c) {
                Some(i) if !all => format!("__c{i}"),
                _ => c.name.clone(),
            };
            Column::new(Some(table.clone()), name)
        })?;
        Ok(lifted.bare())
    }
}

/// Whether expressions of a plan use columns of the query that it stands in.
pub(super) fn contains_outer(plan: &LogicalPlan) -> DfResult<bool> {
    plan.exists(|n| Ok(n.contains_outer_reference()))
}

/// Takes the references to the outer query out of a subquery; `None`: they stand where they cannot be taken out.
pub(super) fn lift(plan: &LogicalPlan, names: &mut Names) -> DfResult<Option<Lifted>> {
    if !contains_outer(plan)? {
        return Ok(Some(Lifted {
            plan: plan.clone(),
            pairs: Vec::new(),
            rest: Vec::new(),
        }));
    }
    if sets::is_sets(plan) {
        let Some(outer) = names.outer.clone() else {
            return Ok(None);
        };
        let Some((plan, column, key)) = sets::for_each_value(plan, &outer, names)? else {
            return Ok(None);
        };
        return Ok(Some(Lifted {
            plan,
            pairs: vec![(column, key)],
            rest: Vec::new(),
        }));
    }
    match plan {
        LogicalPlan::Filter(f) => match lift(&f.input, names)? {
            Some(below) => filtered(below, &f.predicate, names),
            None => Ok(None),
        },
        LogicalPlan::Projection(p) => {
            if p.expr.iter().any(Expr::contains_outer) {
                return Ok(None);
            }
            let Some(below) = lift(&p.input, names)? else {
                return Ok(None);
            };
            projected(below, p.expr.clone(), names).map(Some)
        }
        LogicalPlan::SubqueryAlias(a) => {
            let Some(below) = lift(&a.input, names)? else {
                return Ok(None);
            };
            let plan = LogicalPlanBuilder::from(below.plan.clone())
                .alias(a.alias.clone())?
                .build()?;
            let alias = a.alias.clone();
            below
                .renamed(plan, |c| Column::new(Some(alias.clone()), &c.name))
                .map(Some)
        }
        LogicalPlan::Sort(s) => lift(&s.input, names),
        LogicalPlan::Distinct(Distinct::All(input)) => match lift(input, names)? {
            Some(below) if below.rest.is_empty() => {
                let plan = LogicalPlanBuilder::from(below.plan).distinct()?.build()?;
                Ok(Some(Lifted { plan, ..below }))
            }
            _ => Ok(None),
        },
        LogicalPlan::Aggregate(a) => grouped(a, names),
        LogicalPlan::Join(j) => both(j, names),
        LogicalPlan::Limit(l) => limited(l, &l.input, names),
        _ => Ok(None),
    }
}

/// Conjuncts that compare an inner with an outer expression become pairs.
fn filtered(below: Lifted, predicate: &Expr, names: &mut Names) -> DfResult<Option<Lifted>> {
    let Lifted {
        mut plan,
        mut pairs,
        mut rest,
    } = below;
    let (correlated, kept): (Vec<_>, Vec<_>) = split_conjunction_owned(predicate.clone())
        .into_iter()
        .partition(Expr::contains_outer);
    if correlated.iter().any(has_subquery) {
        return Ok(None);
    }
    if let Some(kept) = conjunction(kept) {
        plan = LogicalPlanBuilder::from(plan).filter(kept)?.build()?;
    }
    for e in correlated {
        let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) = &e
        else {
            rest.push(e);
            continue;
        };
        let inner = |e: &Expr| !e.contains_outer() && !e.column_refs().is_empty();
        let outer = |e: &Expr| e.contains_outer() && e.column_refs().is_empty();
        let (i, o) = match (left.as_ref(), right.as_ref()) {
            (l, r) if inner(l) && outer(r) => (l, r),
            (l, r) if outer(l) && inner(r) => (r, l),
            _ => {
                rest.push(e);
                continue;
            }
        };
        let column = match i {
            Expr::Column(c) => c.clone(),
            computed => {
                let name = names.next("key");
                let mut columns: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
                columns.push(computed.clone().alias(&name));
                plan = LogicalPlanBuilder::from(plan).project(columns)?.build()?;
                Column::new_unqualified(name)
            }
        };
        pairs.push((column, strip_outer_reference(o.clone())));
    }
    Ok(Some(Lifted { plan, pairs, rest }))
}

/// A projection that also passes on what conditions need.
fn projected(below: Lifted, mut exprs: Vec<Expr>, names: &mut Names) -> DfResult<Lifted> {
    let needed = below.needed();
    let mut places = Vec::with_capacity(needed.len());
    for c in &needed {
        let name = names.next("key");
        exprs.push(Expr::Column(c.clone()).alias(&name));
        places.push(Column::new_unqualified(name));
    }
    let plan = LogicalPlanBuilder::from(below.plan.clone()).project(exprs)?.build()?;
    below.renamed(plan, |c| {
        let at = needed.iter().position(|n| n == c);
        at.and_then(|i| places.get(i)).unwrap_or(c).clone()
    })
}

/// GROUP BY, for each outer row by itself. Without keys a group exists even for an outer row that has no row here: not so.
fn grouped(a: &Aggregate, names: &mut Names) -> DfResult<Option<Lifted>> {
    let outer = a.group_expr.iter().chain(&a.aggr_expr).any(Expr::contains_outer);
    if a.group_expr.is_empty() || outer || a.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_))) {
        return Ok(None);
    }
    let Some(below) = lift(&a.input, names)?.filter(|below| below.rest.is_empty()) else {
        return Ok(None);
    };
    let mut keys = a.group_expr.clone();
    for (c, _) in &below.pairs {
        let key = Expr::Column(c.clone());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let plan = LogicalPlanBuilder::from(below.plan)
        .aggregate(keys, a.aggr_expr.clone())?
        .build()?;
    Ok(Some(Lifted { plan, ..below }))
}

fn both(j: &Join, names: &mut Names) -> DfResult<Option<Lifted>> {
    let on_outer = j.on.iter().any(|(l, r)| l.contains_outer() || r.contains_outer());
    let filter_outer = j.filter.as_ref().is_some_and(Expr::contains_outer);
    let right_outer = contains_outer(&j.right)?;
    let movable = match j.join_type {
        JoinType::Inner => true,
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => !right_outer && !filter_outer,
        _ => false,
    };
    if !movable || on_outer {
        return Ok(None);
    }
    let (Some(l), Some(r)) = (lift(&j.left, names)?, lift(&j.right, names)?) else {
        return Ok(None);
    };
    let mut on: Vec<Expr> = j.on.iter().map(|(l, r)| l.clone().eq(r.clone())).collect();
    let filters = j.filter.iter().cloned().flat_map(split_conjunction_owned);
    let (correlated, inner): (Vec<_>, Vec<_>) = filters.partition(Expr::contains_outer);
    on.extend(inner);
    let left = LogicalPlanBuilder::from(l.plan);
    let plan = match (conjunction(on), j.join_type) {
        (None, JoinType::Inner) => left.cross_join(r.plan)?,
        (on, kind) => left.join_on(r.plan, kind, [on.unwrap_or_else(|| lit(true))])?,
    };
    let below = Lifted {
        plan: plan.build()?,
        pairs: l.pairs.into_iter().chain(r.pairs).collect(),
        rest: l.rest.into_iter().chain(r.rest).collect(),
    };
    match conjunction(correlated) {
        Some(predicate) => filtered(below, &predicate, names),
        None => Ok(Some(below)),
    }
}

/// LIMIT and OFFSET for each outer row by itself. The ORDER BY that they belong to may stand below a projection.
fn limited(l: &Limit, input: &LogicalPlan, names: &mut Names) -> DfResult<Option<Lifted>> {
    let (order, input) = match input {
        LogicalPlan::Sort(s) if s.fetch.is_none() => (s.expr.clone(), s.input.as_ref()),
        LogicalPlan::Projection(p) if !p.expr.iter().any(Expr::contains_outer) => {
            let Some(below) = limited(l, &p.input, names)? else {
                return Ok(None);
            };
            return projected(below, p.expr.clone(), names).map(Some);
        }
        other => (Vec::new(), other),
    };
    let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (l.get_skip_type()?, l.get_fetch_type()?) else {
        return Ok(None);
    };
    if order.iter().any(|s| s.expr.contains_outer()) {
        return Ok(None);
    }
    let Some(below) = lift(input, names)?.filter(|below| below.rest.is_empty()) else {
        return Ok(None);
    };
    let name = names.next("number");
    let keys = below.pairs.iter().map(|(c, _)| Expr::Column(c.clone())).collect();
    let columns: Vec<Expr> = below.plan.schema().columns().into_iter().map(Expr::Column).collect();
    // Rows that ORDER BY leaves equal come in the order of their columns.
    let mut order = order;
    for (column, field) in columns.iter().zip(below.plan.schema().fields()) {
        if !field.data_type().is_nested() && order.iter().all(|s| s.expr != *column) {
            order.push(column.clone().sort(true, true));
        }
    }
    let number = row_number().partition_by(keys).order_by(order);
    let number = number.window_frame(whole_partition()).build()?.alias(&name);
    let number_of = Expr::Column(Column::new_unqualified(&name));
    let mut kept = Vec::new();
    if let Some(fetch) = fetch {
        kept.push(number_of.clone().lt_eq(lit((skip + fetch) as u64)));
    }
    match fetch {
        _ if skip == 0 => {}
        // Said so that the number is known to be one.
        Some(1) => kept.push(number_of.eq(lit(skip as u64 + 1))),
        _ => kept.push(number_of.gt(lit(skip as u64))),
    }
    let plan = LogicalPlanBuilder::from(below.plan.clone()).window(vec![number])?;
    let plan = match conjunction(kept) {
        Some(kept) => plan.filter(kept)?,
        None => plan,
    };
    let plan = plan.project(columns)?.build()?;
    Ok(Some(Lifted { plan, ..below }))
}

/// The frame of a function that has none: one that needs no comparable keys.
fn whole_partition() -> WindowFrame {
    let open = || ScalarValue::UInt64(None);
    WindowFrame::new_bounds(
        WindowFrameUnits::Rows,
        WindowFrameBound::Preceding(open()),
        WindowFrameBound::Following(open()),
    )
}
