//! Subqueries where DataFusion's rules leave them: in a select list, in aggregates and in sort keys; under IN, ANY and ALL where a NULL
//! can be told from false; scalar ones that are no aggregate; with LIMIT, and LATERAL.
//!
//! ```text
//!   x IN S             →  CASE WHEN EXISTS(S where y = x) THEN true
//!                              WHEN EXISTS(S where y IS NULL) OR x IS NULL AND EXISTS(S) THEN NULL ELSE false END
//!   x < ANY S          →  the same with x < max(S) in the place of the first EXISTS;   x < ALL S  =  NOT (x >= ANY S)
//!   π[EXISTS S](L)     →  π[mark](L mark S on keys)
//!   π[(S)](L)          →  π[only row(v, n)](L LEFT JOIN γ[keys; first(v), count(*) n](S) on keys)
//!   π[(γ[f](S))](L)    →  π[f or its value without rows](L LEFT JOIN γ[keys; f](S) on keys), where DataFusion would not do it
//!   L LATERAL S        →  L JOIN S on keys
//! ```
//!
//! *Keys* are what [`lift()`] finds: the equalities of inner and outer columns, taken out of the subquery. LIMIT n per outer row becomes
//! `row_number() OVER (PARTITION BY keys …) <= n`. Sets made of an outer column are made once for each of its values, which is the key then.
//! What cannot be lifted is refused, or left to DataFusion where that may know better.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result as DfResult, ScalarValue};
use datafusion::functions_aggregate::count::count_all;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::expr::{Case, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::{NamePreserver, strip_outer_reference};
use datafusion::logical_expr::logical_plan::{FetchType, Join, JoinType, SkipType, Subquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, lit, when};

use self::lift::{contains_outer, lift};
use self::refuse::refuse_below;
use super::functions::{call, external};
use super::operators::{Typed, binary, coerce, df, is_unknown, pair_type};
use crate::PlanError;

mod lift;
mod refuse;

/// See the module's text.
pub(super) fn settle(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let mut names = Names::default();
    refuse_below(&plan)?;
    plan.transform_up_with_subqueries(|node| {
        crate::interrupt::check().map_err(external)?;
        let node = match node {
            LogicalPlan::Join(join) if join.filter.as_ref().is_some_and(has_subquery) => above(join)?,
            LogicalPlan::Join(join) => return lateral(join, &mut names),
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Sort(_) => node,
            other => return Ok(Transformed::no(other)),
        };
        if !node.expressions().iter().any(has_subquery) {
            return Ok(Transformed::no(node));
        }
        joined(node, &mut names).map(Transformed::yes)
    })
    .map(|t| t.data)
}

/// An inner join whose ON has subqueries, with those in a filter.
fn above(join: Join) -> DfResult<LogicalPlan> {
    if join.join_type != JoinType::Inner || matches!(join.right.as_ref(), LogicalPlan::Subquery(_)) {
        return Err(external(
            PlanError::unsupported("a subquery in the ON of an outer or lateral join is not supported")
                .hint("Compute it in a subquery in FROM, and compare with its column."),
        ));
    }
    let filter = join.filter.clone().map(split_conjunction_owned).unwrap_or_default();
    let (with, without): (Vec<_>, Vec<_>) = filter.into_iter().partition(has_subquery);
    let join = Join {
        filter: conjunction(without),
        ..join
    };
    LogicalPlanBuilder::from(LogicalPlan::Join(join))
        .filter(conjunction(with).unwrap_or_else(|| lit(true)))?
        .build()
}

fn has_subquery(e: &Expr) -> bool {
    e.exists(|e| {
        Ok(matches!(
            e,
            Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_)
        ))
    })
    .unwrap_or(false)
}

/// Names for columns and relations that no query can have.
#[derive(Default)]
pub(super) struct Names {
    last: usize,
    /// Whose rows the subquery that is lifted is asked for.
    outer: Option<LogicalPlan>,
}

impl Names {
    pub fn next(&mut self, what: &str) -> String {
        self.last += 1;
        format!("__{what}_{}", self.last)
    }
}

/// A node of one input, over that input joined with the subqueries of its expressions.
fn joined(node: LogicalPlan, names: &mut Names) -> DfResult<LogicalPlan> {
    let [input] = node.inputs()[..] else {
        return Ok(node);
    };
    let mut input = input.clone();
    let schema = Arc::clone(node.schema());
    let preserver = NamePreserver::new(&node);
    let place = match node {
        LogicalPlan::Filter(_) => Place::Filter,
        LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) => Place::Value,
        _ => Place::Elsewhere,
    };
    let mut exprs = Vec::new();
    for e in node.expressions() {
        let name = preserver.save(&e);
        let e = if place == Place::Filter {
            let parts = split_conjunction_owned(e)
                .into_iter()
                .map(|part| condition(part, &mut input, names))
                .collect::<DfResult<Vec<_>>>()?;
            conjunction(parts).unwrap_or_else(|| lit(true))
        } else {
            value(e, &mut input, names, place)?
        };
        exprs.push(name.restore(e));
    }
    let plan = node.with_new_exprs(exprs, vec![input])?;
    let plan = plan.recompute_schema()?;
    if plan.schema().fields().len() == schema.fields().len() {
        return Ok(plan);
    }
    let columns = schema.columns().into_iter().map(Expr::Column);
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// What DataFusion's rules know of the place of a subquery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// What cannot be lifted may stay, and scalar aggregates.
    Filter,
    /// Scalar aggregates may stay.
    Value,
    /// Nothing may stay.
    Elsewhere,
}

/// A condition under AND in WHERE: IN and EXISTS that stand there alone become semi and anti joins by DataFusion's rules.
fn condition(e: Expr, input: &mut LogicalPlan, names: &mut Names) -> DfResult<Expr> {
    match e {
        Expr::Not(inner) => match *inner {
            Expr::InSubquery(e) => condition(
                Expr::InSubquery(InSubquery {
                    negated: !e.negated,
                    ..e
                }),
                input,
                names,
            ),
            Expr::Exists(e) => condition(
                Expr::Exists(Exists {
                    negated: !e.negated,
                    ..e
                }),
                input,
                names,
            ),
            other => value(Expr::Not(Box::new(other)), input, names, Place::Filter),
        },
        Expr::SetComparison(set) => {
            let e = compared(set, input.schema())?;
            condition(e, input, names)
        }
        Expr::Exists(mut e) if !reads_sets(&e.subquery) => {
            known(&e.subquery, input)?;
            let counts = |s: &Subquery| s.subquery.exists(|n| Ok(matches!(n, LogicalPlan::Limit(_))));
            if !e.subquery.outer_ref_columns.is_empty()
                && counts(&subquery_of(with_any_row(&e.subquery.subquery)?.clone()))?
            {
                names.outer = Some(input.clone());
                e.subquery = numbered(e.subquery, names)?;
                // DataFusion would pass over the LIMIT.
                if counts(&e.subquery)? {
                    return Err(external(super::errors::subquery_form()));
                }
            }
            Ok(Expr::Exists(e))
        }
        Expr::InSubquery(mut e) if plain_in(&e) && !reads_sets(&e.subquery) => {
            known(&e.subquery, input)?;
            e.expr = Box::new(value(*e.expr, input, names, Place::Filter)?);
            names.outer = Some(input.clone());
            e.subquery = numbered(e.subquery, names)?;
            Ok(Expr::InSubquery(e))
        }
        Expr::InSubquery(e) if e.negated && !reads_sets(&e.subquery) => {
            known(&e.subquery, input)?;
            not_in(e, input, names)
        }
        Expr::Case(case) => match truth(&case) {
            Some((met, _, true)) => condition(met, input, names),
            _ => {
                let e = two_valued(Expr::Case(case), input, names)?;
                value(e, input, names, Place::Filter)
            }
        },
        other => {
            let e = two_valued(other, input, names)?;
            value(e, input, names, Place::Filter)
        }
    }
}

/// A condition in which NULL and false are alike, as in WHERE below AND and OR, without tests that only tell these apart.
fn two_valued(e: Expr, input: &LogicalPlan, names: &mut Names) -> DfResult<Expr> {
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::And | Operator::Or),
            right,
        }) => Expr::BinaryExpr(BinaryExpr::new(
            Box::new(two_valued(*left, input, names)?),
            op,
            Box::new(two_valued(*right, input, names)?),
        )),
        Expr::Not(inner) => match *inner {
            Expr::InSubquery(e) => {
                let negated = !e.negated;
                two_valued(Expr::InSubquery(InSubquery { negated, ..e }), input, names)?
            }
            other => Expr::Not(Box::new(other)),
        },
        Expr::SetComparison(set) => two_valued(compared(set, input.schema())?, input, names)?,
        Expr::InSubquery(e) => {
            names.outer = Some(input.clone());
            match within(e, input.schema(), names)? {
                Expr::Case(case) => two_valued(Expr::Case(case), input, names)?,
                other => other,
            }
        }
        Expr::Case(case) => match truth(&case) {
            Some((met, _, true)) => met,
            Some((met, unknown, false)) => Expr::IsNotTrue(Box::new(met)).and(Expr::IsNotTrue(Box::new(unknown))),
            None => Expr::Case(case),
        },
        other => other,
    })
}

/// `x NOT IN S` as a condition: no row of S equals x, none is NULL, and x is not NULL unless S is empty.
fn not_in(e: InSubquery, input: &mut LogicalPlan, names: &mut Names) -> DfResult<Expr> {
    let x_nullable = e.expr.nullable(input.schema())?;
    let x = value(*e.expr, input, names, Place::Filter)?;
    names.outer = Some(input.clone());
    let plan = numbered(e.subquery, names)?.subquery;
    let y = column_of(&plan)?;
    let y_nullable = plan.schema().field(0).is_nullable();
    let y_null = y.expr.clone().is_null();
    let test = operand(x.clone(), input.schema(), &y)?;
    let outer_x = Typed {
        expr: outer(test.expr, input.schema())?,
        ty: test.ty,
    };
    let none = |test: Expr| -> DfResult<Expr> {
        let plan = LogicalPlanBuilder::from(plan.as_ref().clone()).filter(test)?.build()?;
        Ok(Expr::Exists(Exists {
            subquery: subquery_of(plan),
            negated: true,
        }))
    };
    let mut all = none(df(binary(y, Operator::Eq, outer_x))?)?;
    if y_nullable {
        all = all.and(none(y_null)?);
    }
    if x_nullable {
        let any = x
            .is_not_null()
            .or(Expr::Not(Box::new(exists_in(plan.as_ref().clone()))));
        all = all.and(value(any, input, names, Place::Filter)?);
    }
    Ok(all)
}

/// The parts of `CASE WHEN met THEN t WHEN unknown THEN NULL ELSE NOT t END`.
fn truth(case: &Case) -> Option<(Expr, Expr, bool)> {
    let truth = |e: &Expr, b: Option<bool>| match e {
        Expr::Literal(ScalarValue::Boolean(v), _) => *v == b,
        Expr::Cast(c) => b.is_none() && matches!(c.expr.as_ref(), Expr::Literal(v, _) if v.is_null()),
        Expr::Literal(ScalarValue::Null, _) => b.is_none(),
        _ => false,
    };
    let ([(met, t), (unknown, null)], Some(otherwise), None) =
        (case.when_then_expr.as_slice(), &case.else_expr, &case.expr)
    else {
        return None;
    };
    let is = |t_is: bool| truth(t, Some(t_is)) && truth(null, None) && truth(otherwise, Some(!t_is));
    let t = if is(true) {
        true
    } else if is(false) {
        false
    } else {
        return None;
    };
    Some((met.as_ref().clone(), unknown.as_ref().clone(), t))
}

/// Does a subquery unnest values of the outer query?
fn reads_sets(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
        && subquery
            .subquery
            .exists(|n| Ok(matches!(n, LogicalPlan::Unnest(_))))
            .unwrap_or(false)
}

/// Does an aggregate stand above a derived table, or rows that are counted off? There DataFusion loses columns that it needs.
fn is_layered(plan: &LogicalPlan) -> bool {
    plan.exists(|n| {
        Ok(match n {
            LogicalPlan::SubqueryAlias(a) => !matches!(a.input.as_ref(), LogicalPlan::TableScan(_)),
            LogicalPlan::Limit(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(_) => true,
            _ => false,
        })
    })
    .unwrap_or(false)
}

/// A subquery may refer to columns of the query that it stands in, not of one further out.
fn known(subquery: &Subquery, input: &LogicalPlan) -> DfResult<()> {
    let schema = input.schema();
    let far = |e: &Expr| matches!(e, Expr::OuterReferenceColumn(_, c) if !schema.has_column(c));
    if subquery.outer_ref_columns.iter().any(far) {
        return Err(external(super::errors::subquery_form()));
    }
    Ok(())
}

/// NOT IN of a correlated subquery is not known to DataFusion with all its NULLs.
fn plain_in(e: &InSubquery) -> bool {
    e.subquery.outer_ref_columns.is_empty() || !e.negated
}

/// An expression without the subqueries that DataFusion would leave in it. EXISTS may stay in a filter.
fn value(e: Expr, input: &mut LogicalPlan, names: &mut Names, place: Place) -> DfResult<Expr> {
    let e = e.transform_up(|e| match e {
        Expr::SetComparison(set) => compared(set, input.schema()).map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    })?;
    let e = e.data.transform_up(|e| match e {
        Expr::InSubquery(e) => {
            names.outer = Some(input.clone());
            within(e, input.schema(), names).map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    })?;
    let e = e.data.transform_up(|e| match e {
        Expr::Exists(Exists { subquery, negated }) => {
            known(&subquery, input)?;
            let Some(mark) = marked(&subquery, input, names)? else {
                if place == Place::Filter && !reads_sets(&subquery) {
                    return Ok(Transformed::no(Expr::Exists(Exists { subquery, negated })));
                }
                return Err(external(super::errors::subquery_form()));
            };
            Ok(Transformed::yes(if negated { Expr::Not(Box::new(mark)) } else { mark }))
        }
        Expr::ScalarSubquery(subquery) if !subquery.outer_ref_columns.is_empty() => {
            known(&subquery, input)?;
            let joined = if !aggregates(&subquery.subquery) {
                only_row(&subquery, input, names)?
            } else if place == Place::Elsewhere || reads_sets(&subquery) || is_layered(&subquery.subquery) {
                match aggregate_row(&subquery, input, names)? {
                    None if place != Place::Elsewhere => return Ok(Transformed::no(Expr::ScalarSubquery(subquery))),
                    joined => joined,
                }
            } else {
                return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
            };
            match joined {
                Some(e) => Ok(Transformed::yes(e)),
                None => Err(external(super::errors::subquery_form())),
            }
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(e.data)
}

/// Does the query yield one row by its form?
fn aggregates(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(a) => a.group_expr.is_empty(),
        LogicalPlan::Projection(p) => aggregates(&p.input),
        LogicalPlan::SubqueryAlias(a) => aggregates(&a.input),
        LogicalPlan::Sort(s) => aggregates(&s.input),
        LogicalPlan::Limit(l) => aggregates(&l.input),
        LogicalPlan::Filter(f) => aggregates(&f.input),
        _ => false,
    }
}

fn subquery_of(plan: LogicalPlan) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: datafusion::common::Spans::new(),
    }
}

fn exists_in(plan: LogicalPlan) -> Expr {
    Expr::Exists(Exists {
        subquery: subquery_of(plan),
        negated: false,
    })
}

/// The first column of a subquery.
fn column_of(plan: &LogicalPlan) -> DfResult<Typed> {
    let (qualifier, field) = plan.schema().qualified_field(0);
    let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
    Ok(Typed::new(column, field.data_type().clone()))
}

/// An outer expression as a subquery sees it.
fn outer(e: Expr, schema: &DFSchema) -> DfResult<Expr> {
    if has_subquery(&e) {
        return Err(external(
            PlanError::unsupported("a subquery on the left side of IN, ANY or ALL is not supported here")
                .hint("Compute it in a subquery in FROM first."),
        ));
    }
    e.transform_up(|e| match e {
        Expr::Column(c) => {
            let field = Arc::clone(schema.field_from_column(&c)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, c)))
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// The left operand of IN, ANY or ALL with its type; an untyped literal takes the column's.
fn operand(e: Expr, schema: &DFSchema, column: &Typed) -> DfResult<Typed> {
    if !is_unknown(&e) {
        let t = e.get_type(schema)?;
        return Ok(Typed::new(e, t));
    }
    let t = column.ty.clone().unwrap_or(DataType::Utf8);
    let e = df(coerce(Typed { expr: e, ty: None }, &t))?;
    Ok(Typed::new(e, t))
}

/// Whether a comparison with no row of `plan` is true is unknown: a compared value is NULL.
fn unknown(x: &Typed, plan: &LogicalPlan, schema: &DFSchema) -> DfResult<Option<Expr>> {
    let y = column_of(plan)?;
    let mut any = None;
    if plan.schema().field(0).is_nullable() {
        let nulls = LogicalPlanBuilder::from(plan.clone())
            .filter(y.expr.is_null())?
            .build()?;
        any = Some(exists_in(nulls));
    }
    if x.expr.nullable(schema)? {
        let some = x.expr.clone().is_null().and(exists_in(plan.clone()));
        any = Some(match any {
            Some(e) => e.or(some),
            None => some,
        });
    }
    Ok(any)
}

fn three_valued(met: Expr, unknown: Option<Expr>, negated: bool) -> DfResult<Expr> {
    let Some(unknown) = unknown else {
        return Ok(if negated { Expr::Not(Box::new(met)) } else { met });
    };
    when(met, lit(!negated))
        .when(unknown, Expr::Literal(ScalarValue::Boolean(None), None))
        .otherwise(lit(negated))
}

/// `x [NOT] IN S`.
fn within(e: InSubquery, schema: &DFSchema, names: &mut Names) -> DfResult<Expr> {
    let plan = numbered(e.subquery, names)?.subquery;
    let y = column_of(&plan)?;
    let x = operand(*e.expr, schema, &y)?;
    let unknown = unknown(&x, &plan, schema)?;
    let outer_x = Typed {
        expr: outer(x.expr, schema)?,
        ty: x.ty,
    };
    let equal = df(binary(y, Operator::Eq, outer_x))?;
    let matches = LogicalPlanBuilder::from(plan.as_ref().clone()).filter(equal)?.build()?;
    three_valued(exists_in(matches), unknown, e.negated)
}

/// `x op ANY S` and `x op ALL S`.
fn compared(set: SetComparison, schema: &DFSchema) -> DfResult<Expr> {
    let all = matches!(set.quantifier, SetQuantifier::All);
    let op = if all {
        set.op.negate().ok_or_else(|| {
            external(PlanError::unsupported(format!(
                "operator {} ALL (SELECT …) is not supported",
                set.op
            )))
        })?
    } else {
        set.op
    };
    if op == Operator::Eq {
        return Ok(Expr::InSubquery(InSubquery {
            expr: set.expr,
            subquery: set.subquery,
            negated: all,
        }));
    }
    let plan = set.subquery.subquery.as_ref();
    let y = column_of(plan)?;
    let x = operand(*set.expr, schema, &y)?;
    if let (Some(a), Some(b)) = (&x.ty, &y.ty)
        && pair_type(a, b).is_none()
    {
        // Words the error.
        df(binary(x.clone(), op, y.clone()))?;
    }
    let bound = |least: bool| -> DfResult<Typed> {
        let f = if least { min_udaf() } else { max_udaf() };
        let plan = LogicalPlanBuilder::from(plan.clone())
            .aggregate(Vec::<Expr>::new(), vec![f.call(vec![y.expr.clone()])])?
            .build()?;
        Ok(Typed {
            expr: Expr::ScalarSubquery(subquery_of(plan)),
            ty: y.ty.clone(),
        })
    };
    let compare = |least: bool| -> DfResult<Expr> { df(binary(x.clone(), op, bound(least)?)) };
    let met = match op {
        Operator::Lt | Operator::LtEq => compare(false)?,
        Operator::Gt | Operator::GtEq => compare(true)?,
        Operator::NotEq => compare(true)?.or(compare(false)?),
        other => {
            return Err(external(PlanError::unsupported(format!(
                "operator {other} ANY (SELECT …) is not supported"
            ))));
        }
    };
    match unknown(&x, plan, schema)? {
        // NULL if the subquery has no row.
        None => three_valued(Expr::IsTrue(Box::new(met)), None, all),
        unknown => three_valued(met, unknown, all),
    }
}

/// `L mark S`: the column that says whether the subquery has a row.
fn marked(subquery: &Subquery, input: &mut LogicalPlan, names: &mut Names) -> DfResult<Option<Expr>> {
    names.outer = Some(input.clone());
    let Some(lifted) = lift(with_any_row(&subquery.subquery)?, names)? else {
        return Ok(None);
    };
    if !lifted.is_over(input.schema()) {
        return Ok(None);
    }
    let alias = names.next("exists");
    let (right, on) = lifted.aliased(&alias, false)?;
    let on = conjunction(on).unwrap_or_else(|| lit(true));
    *input = LogicalPlanBuilder::from(input.clone())
        .join_on(right, JoinType::LeftMark, [on])?
        .build()?;
    Ok(Some(Expr::Column(Column::new(Some(alias), "mark"))))
}

/// A plan that has a row whenever `plan` has one: which row comes first does not matter.
fn with_any_row(plan: &LogicalPlan) -> DfResult<&LogicalPlan> {
    match plan {
        LogicalPlan::Limit(l)
            if matches!(l.get_skip_type()?, SkipType::Literal(0))
                && matches!(l.get_fetch_type()?, FetchType::Literal(Some(1..))) =>
        {
            with_any_row(&l.input)
        }
        LogicalPlan::Sort(s) => with_any_row(&s.input),
        other => Ok(other),
    }
}

/// A scalar subquery that may have several rows; the second one is an error, where there is an outer row for it.
fn only_row(subquery: &Subquery, input: &mut LogicalPlan, names: &mut Names) -> DfResult<Option<Expr>> {
    names.outer = Some(input.clone());
    let Some(lifted) = lift(&subquery.subquery, names)? else {
        return Ok(None);
    };
    if !lifted.is_over(input.schema()) || !lifted.rest.is_empty() || lifted.pairs.is_empty() {
        return Ok(None);
    }
    let alias = names.next("scalar");
    let column = column_of(&lifted.plan)?.expr;
    let keys: Vec<Expr> = lifted.pairs.iter().map(|(c, _)| Expr::Column(c.clone())).collect();
    let plan = LogicalPlanBuilder::from(lifted.plan)
        .aggregate(
            keys,
            vec![
                first_value_udaf().call(vec![column]).alias("__value"),
                count_all().alias("__rows"),
            ],
        )?
        .build()?;
    let values = ["__value", "__rows"].map(|name| Expr::Column(Column::new_unqualified(name)));
    join_groups(input, plan, values.into(), lifted.pairs, &alias, names)?;
    let of = |name: &str| Expr::Column(Column::new(Some(alias.as_str()), name));
    call("pg_only_row", vec![of("__value"), of("__rows")]).map(Some)
}

/// Joins `input` with groups by the pairs of their keys and outer expressions; of the groups it shows `values` as columns of `alias`.
fn join_groups(
    input: &mut LogicalPlan,
    groups: LogicalPlan,
    mut values: Vec<Expr>,
    pairs: Vec<(Column, Expr)>,
    alias: &str,
    names: &mut Names,
) -> DfResult<()> {
    let mut on = Vec::with_capacity(pairs.len());
    for (key, outer) in pairs {
        let name = names.next("key");
        values.push(Expr::Column(key).alias(&name));
        on.push(Expr::Column(Column::new(Some(alias), name)).eq(outer));
    }
    let right = LogicalPlanBuilder::from(groups)
        .project(values)?
        .alias(alias)?
        .build()?;
    *input = LogicalPlanBuilder::from(input.clone())
        .join_on(right, JoinType::Left, on)?
        .build()?;
    Ok(())
}

/// An aggregate for each outer row. For one without a row here there is no group: its aggregates are NULL, its counts 0.
fn aggregate_row(subquery: &Subquery, input: &mut LogicalPlan, names: &mut Names) -> DfResult<Option<Expr>> {
    let mut above = Vec::new();
    let mut plan = subquery.subquery.as_ref();
    let aggregate = loop {
        match plan {
            LogicalPlan::Projection(p) => {
                above.push(p);
                plan = &p.input;
            }
            LogicalPlan::SubqueryAlias(a) if !above.is_empty() => plan = &a.input,
            LogicalPlan::Sort(s) => plan = &s.input,
            LogicalPlan::Aggregate(a) => break a,
            _ => return Ok(None),
        }
    };
    names.outer = Some(input.clone());
    let Some(lifted) = lift(&aggregate.input, names)? else {
        return Ok(None);
    };
    if !lifted.is_over(input.schema()) || !lifted.rest.is_empty() || lifted.pairs.is_empty() {
        return Ok(None);
    }
    let alias = names.next("scalar");
    let keys: Vec<Expr> = lifted.pairs.iter().map(|(c, _)| Expr::Column(c.clone())).collect();
    let groups = LogicalPlanBuilder::from(lifted.plan)
        .aggregate(keys, aggregate.aggr_expr.clone())?
        .build()?;
    let mut exprs = Vec::with_capacity(aggregate.aggr_expr.len());
    let mut values = Vec::with_capacity(aggregate.aggr_expr.len());
    let own = aggregate.schema.columns();
    for (i, (column, call)) in own.iter().zip(&aggregate.aggr_expr).enumerate() {
        let name = format!("__a{i}");
        exprs.push(Expr::Column(column.clone()).alias(&name));
        let value = Expr::Column(Column::new(Some(alias.as_str()), name));
        let bare = call.clone().unalias_nested().data;
        let counts = matches!(&bare, Expr::AggregateFunction(f) if f.func.name() == "count");
        values.push(if counts {
            when(value.clone().is_null(), lit(0_i64)).otherwise(value)?
        } else {
            value
        });
    }
    join_groups(input, groups, exprs, lifted.pairs, &alias, names)?;
    let mut schema = Arc::clone(&aggregate.schema);
    for p in above.into_iter().rev() {
        let exprs = p.expr.iter().map(|e| {
            let e = e.clone().unalias().transform_up(|e| match e {
                Expr::Column(c) => {
                    // An alias between leaves the places of columns as they are.
                    let at = schema
                        .index_of_column_by_name(None, &c.name)
                        .or(schema.maybe_index_of_column(&c));
                    Ok(Transformed::yes(
                        at.and_then(|at| values.get(at)).cloned().unwrap_or(Expr::Column(c)),
                    ))
                }
                other => Ok(Transformed::no(other)),
            });
            e.map(|t| strip_outer_reference(t.data))
        });
        values = exprs.collect::<DfResult<_>>()?;
        schema = Arc::clone(&p.schema);
    }
    Ok(values.into_iter().next())
}

/// A subquery whose LIMIT holds for each outer row by itself, as a plan that DataFusion can decorrelate.
fn numbered(subquery: Subquery, names: &mut Names) -> DfResult<Subquery> {
    if subquery.outer_ref_columns.is_empty() || !subquery.subquery.exists(|n| Ok(matches!(n, LogicalPlan::Limit(_))))? {
        return Ok(subquery);
    }
    let Some(lifted) = lift(&subquery.subquery, names)? else {
        return Ok(subquery);
    };
    let columns = subquery.subquery.schema().columns().into_iter().map(Expr::Column);
    let mut on = lifted.rest;
    for (c, e) in lifted.pairs {
        on.push(Expr::Column(c).eq(again_outer(e, &subquery.outer_ref_columns)?));
    }
    let plan = LogicalPlanBuilder::from(lifted.plan);
    let plan = match conjunction(on) {
        Some(on) => plan.filter(on)?,
        None => plan,
    };
    Ok(subquery_of(plan.project(columns)?.build()?))
}

fn again_outer(e: Expr, known: &[Expr]) -> DfResult<Expr> {
    e.transform_up(|e| match e {
        Expr::Column(c) => {
            let found = known
                .iter()
                .find(|k| matches!(k, Expr::OuterReferenceColumn(_, o) if o == &c));
            Ok(Transformed::yes(found.cloned().unwrap_or(Expr::Column(c))))
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// `L [LEFT] JOIN LATERAL S`.
fn lateral(join: Join, names: &mut Names) -> DfResult<Transformed<LogicalPlan>> {
    if let Some(plan) = super::sets::join(&join, names)? {
        return Ok(Transformed::yes(plan));
    }
    let (subquery, alias) = match join.right.as_ref() {
        LogicalPlan::Subquery(s) => (s, None),
        LogicalPlan::SubqueryAlias(a) => match a.input.as_ref() {
            LogicalPlan::Subquery(s) => (s, Some(a.alias.clone())),
            _ => return Ok(Transformed::no(LogicalPlan::Join(join))),
        },
        _ => return Ok(Transformed::no(LogicalPlan::Join(join))),
    };
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) || !contains_outer(&subquery.subquery)? {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    names.outer = Some(join.left.as_ref().clone());
    let Some(lifted) = lift(&subquery.subquery, names)? else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    if !lifted.is_over(join.left.schema()) {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let schema = Arc::clone(&join.schema);
    let (right, mut on) = match alias {
        Some(alias) => lifted.aliased(&alias.to_string(), true)?,
        None => lifted.bare(),
    };
    on.extend(join.on.iter().map(|(l, r)| l.clone().eq(r.clone())));
    on.extend(join.filter.clone());
    let columns = schema.columns().into_iter().map(Expr::Column);
    let left = LogicalPlanBuilder::from(join.left.as_ref().clone());
    let plan = match conjunction(on) {
        Some(on) => left.join_on(right, join.join_type, [on])?,
        None => left.cross_join(right)?,
    };
    plan.project(columns)?.build().map(Transformed::yes)
}
