//! Rewrites of the logical plan that stay sound while data changes.
//!
//! DataFusion's default rules are meant for one run over finite data, so each rule is named here. Left out, and why:
//!
//! | rule | reason |
//! | --- | --- |
//! | `RewriteSetComparison` | makes EXISTS with non-equality conditions; `= ANY` and `<> ALL` become IN here, the rest is refused |
//! | `FilterNullJoinKeys` | joins drop NULL keys themselves |
//! | `PushDownLimit` | would make more top-N states, each a full copy of its input |
//! | `SingleDistinctToGroupBy` | the aggregate operator keeps distinct values itself, in one state instead of two |
//! | `CommonSubexprEliminate` | moves a failing part out of its expression, and with it what becomes NULL |
//! | `UnionsToFilter`, `ExtractLeafExpressions`, `PushDownLeafProjections` | nothing to gain here |
//!
//! `now()` is never folded: the context has no query start time, and such functions were refused before.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, NullEquality, Result as DfResult};
use datafusion::functions_aggregate::count::{count_all, count_udaf};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::logical_plan::{Join, JoinType};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Distinct, Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, Operator, lit,
};
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::optimizer::analyzer::resolve_grouping_function::ResolveGroupingFunction;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion::optimizer::decorrelate_lateral_join::DecorrelateLateralJoin;
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::eliminate_duplicated_expr::EliminateDuplicatedExpr;
use datafusion::optimizer::eliminate_filter::EliminateFilter;
use datafusion::optimizer::eliminate_group_by_constant::EliminateGroupByConstant;
use datafusion::optimizer::eliminate_join::EliminateJoin;
use datafusion::optimizer::eliminate_limit::EliminateLimit;
use datafusion::optimizer::eliminate_outer_join::EliminateOuterJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::optimize_unions::OptimizeUnions;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::propagate_empty_relation::PropagateEmptyRelation;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion::optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion::optimizer::simplify_expressions::SimplifyExpressions;
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerContext, OptimizerRule};

use super::expr::session_config;
use super::refuse;
use crate::{PlanError, Result};

/// Rules that give the bound plan its types.
fn analyzer() -> Analyzer {
    Analyzer::with_rules(vec![
        Arc::new(ResolveGroupingFunction::new()),
        Arc::new(TypeCoercion::new()),
    ])
}

/// Rules in order; the list is run until nothing changes, at most three times.
fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    vec![
        Arc::new(OptimizeUnions::new()),
        Arc::new(SimplifyExpressions::new()),
        Arc::new(ReplaceDistinctWithAggregate::new()),
        Arc::new(EliminateJoin::new()),
        Arc::new(DecorrelatePredicateSubquery::new()),
        Arc::new(NotInToAntiJoins),
        Arc::new(ScalarSubqueryToJoin::new()),
        Arc::new(DecorrelateLateralJoin::new()),
        Arc::new(ExtractEquijoinPredicate::new()),
        Arc::new(EliminateDuplicatedExpr::new()),
        Arc::new(EliminateFilter::new()),
        Arc::new(EliminateCrossJoin::new()),
        Arc::new(EliminateLimit::new()),
        Arc::new(PropagateEmptyRelation::new()),
        Arc::new(EliminateOuterJoin::new()),
        Arc::new(PushDownFilter::new()),
        Arc::new(EliminateGroupByConstant::new()),
        Arc::new(OptimizeProjections::new()),
    ]
}

/// `= ANY` as IN, DISTINCT ON as a numbering, then types. Subqueries still stand in expressions.
pub(super) fn analyze(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan
        .transform_up_with_subqueries(|node| {
            node.map_expressions(|e| e.transform_up(set_comparison_to_in))?
                .transform_data(distinct_on_to_row_number)
        })
        .map_err(|e| PlanError::internal(e.to_string()))?
        .data;
    let config = session_config();
    analyzer()
        .execute_and_check(plan, config.options(), |_, _| {})
        .map_err(|e| refuse::from_datafusion("this query", &e))
}

/// Runs the rules on an analyzed plan.
pub(super) fn optimize(plan: LogicalPlan) -> Result<LogicalPlan> {
    let config = session_config();
    let context =
        OptimizerContext::new_with_config_options(Arc::clone(config.options())).without_query_execution_start_time();
    Optimizer::with_rules(crate::interrupt::interruptible(rules()))
        .optimize(plan, &context, |_, _| {})
        .map_err(|e| refuse::from_datafusion("this query", &e))
}

fn set_comparison_to_in(expr: Expr) -> DfResult<Transformed<Expr>> {
    use datafusion::logical_expr::expr::SetQuantifier;
    let Expr::SetComparison(set) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let negated = match (set.op, &set.quantifier) {
        (Operator::Eq, SetQuantifier::Any) => false,
        (Operator::NotEq, SetQuantifier::All) => true,
        _ => return Ok(Transformed::no(expr)),
    };
    Ok(Transformed::yes(Expr::InSubquery(InSubquery {
        expr: set.expr.clone(),
        subquery: set.subquery.clone(),
        negated,
    })))
}

/// `DISTINCT ON (k) …  ORDER BY k, o` keeps the first row of each `k`: those that `row_number() OVER (PARTITION BY k ORDER BY k, o)`
/// numbers 1.
fn distinct_on_to_row_number(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let LogicalPlan::Distinct(Distinct::On(on)) = plan else {
        return Ok(Transformed::no(plan));
    };
    let number = row_number()
        .partition_by(on.on_expr)
        .order_by(on.sort_expr.unwrap_or_default())
        .build()?
        .alias("__distinct_on");
    let numbered = LogicalPlanBuilder::from(on.input).window(vec![number])?;
    let first = Expr::Column(Column::new_unqualified("__distinct_on")).eq(lit(1u64));
    numbered
        .filter(first)?
        .project(on.select_expr)?
        .build()
        .map(Transformed::yes)
}

/// `x NOT IN (SELECT y …)` where NULLs may be compared: a row stays if no `y` equals `x`, and, unless the subquery has no row for it,
/// neither `x` nor any `y` is NULL.
///
/// ```text
///   L ▷null-aware R on x = y            →  σ(n = 0 OR (x IS NOT NULL AND n = m)) ((L ▷ R on x = y) × γ(count(*) n, count(y) m)(R))
///   L ▷null-aware R on x = y AND rest   →  (L ▷ R on x = y AND rest) ▷ R on rest AND (x IS NULL OR y IS NULL)
/// ```
#[derive(Debug)]
struct NotInToAntiJoins;

impl OptimizerRule for NotInToAntiJoins {
    fn name(&self) -> &str {
        "not_in_to_anti_joins"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> DfResult<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Join(join) if join.null_aware && join.join_type == JoinType::LeftAnti => {
                match split_null_aware(join) {
                    Some((x, y, rest)) => Ok(Transformed::yes(plain_anti_joins(join, x, y, rest, config)?)),
                    None => Ok(Transformed::no(plan)),
                }
            }
            _ => Ok(Transformed::no(plan)),
        }
    }
}

/// The compared pair, which stands first in the condition, and the correlation.
fn split_null_aware(join: &Join) -> Option<(Expr, Expr, Vec<Expr>)> {
    let mut parts: Vec<Expr> = join.on.iter().map(|(l, r)| l.clone().eq(r.clone())).collect();
    if let Some(filter) = &join.filter {
        parts.extend(split_conjunction_owned(filter.clone()));
    }
    if parts.is_empty() {
        return None;
    }
    let rest = parts.split_off(1);
    match parts.pop()? {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) => Some((*left, *right, rest)),
        _ => None,
    }
}

fn plain_anti_joins(
    join: &Join,
    x: Expr,
    y: Expr,
    rest: Vec<Expr>,
    config: &dyn OptimizerConfig,
) -> DfResult<LogicalPlan> {
    let anti = |left: LogicalPlan, on: Option<Expr>| {
        LogicalPlanBuilder::from(left)
            .join_detailed(
                join.right.as_ref().clone(),
                JoinType::LeftAnti,
                (Vec::<Column>::new(), Vec::<Column>::new()),
                on,
                NullEquality::NullEqualsNothing,
            )?
            .build()
    };
    let matched = conjunction(std::iter::once(x.clone().eq(y.clone())).chain(rest.iter().cloned()));
    let unmatched = anti(join.left.as_ref().clone(), matched)?;
    if let Some(rest) = conjunction(rest) {
        return anti(unmatched, Some(rest.and(x.is_null().or(y.is_null()))));
    }
    let alias = config.alias_generator().next("__not_in");
    let counts = LogicalPlanBuilder::from(join.right.as_ref().clone())
        .aggregate(
            Vec::<Expr>::new(),
            vec![count_all().alias("rows"), count_udaf().call(vec![y]).alias("values")],
        )?
        .alias(alias.as_str())?
        .build()?;
    let column = |name: &str| Expr::Column(Column::new(Some(alias.clone()), name));
    let keep = column("rows")
        .eq(lit(0i64))
        .or(x.is_not_null().and(column("rows").eq(column("values"))));
    let columns: Vec<Expr> = join.left.schema().columns().into_iter().map(Expr::Column).collect();
    LogicalPlanBuilder::from(unmatched)
        .cross_join(counts)?
        .filter(keep)?
        .project(columns)?
        .build()
}
