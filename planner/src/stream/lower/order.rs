//! Order and number: LIMIT, ORDER BY, a bounded `row_number()`. All are top-N operators.

use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::logical_plan::{FetchType, Limit, SkipType};
use datafusion::logical_expr::{LogicalPlan, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};

use super::{Lowering, arrow_schema, compile, compile_all, project, unsupported, with_columns};
use crate::plan::SortKey;
use crate::stream::rel::{Phys, Rel, RelOp, and, column_below_casts, conjuncts};
use crate::{PlanError, Result};

impl Lowering<'_> {
    /// LIMIT and OFFSET. The ORDER BY that they belong to may stand below a projection; without one, the order is the whole row's.
    pub(super) fn limit(&self, limit: &Limit) -> Result<Rel> {
        let bad = |e: datafusion::error::DataFusionError| PlanError::new("2201W", e.to_string());
        let SkipType::Literal(offset) = limit.get_skip_type().map_err(bad)? else {
            return Err(unsupported("an OFFSET that is not a constant"));
        };
        let FetchType::Literal(fetch) = limit.get_fetch_type().map_err(bad)? else {
            return Err(unsupported("a LIMIT that is not a constant"));
        };
        self.limited(&limit.input, fetch.map(|n| n as u64), offset as u64)
    }

    fn limited(&self, input: &LogicalPlan, limit: Option<u64>, offset: u64) -> Result<Rel> {
        match input {
            LogicalPlan::SubqueryAlias(alias) => self.limited(&alias.input, limit, offset),
            LogicalPlan::Projection(projection) if sorted_below(&projection.input) => {
                let rel = self.limited(&projection.input, limit, offset)?;
                let exprs = compile_all(&projection.expr, projection.input.schema())?;
                project(rel, exprs, &arrow_schema(&projection.schema))
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                self.sorted_limit(&sort.input, &sort.expr, limit, offset)
            }
            other => {
                let rel = self.lower(other)?;
                Ok(if limit.is_none() && offset == 0 {
                    rel
                } else {
                    rel.top_n(Vec::new(), Vec::new(), limit, offset, None)
                })
            }
        }
    }

    /// ORDER BY … LIMIT.
    pub(super) fn sorted_limit(
        &self,
        input: &LogicalPlan,
        order: &[SortExpr],
        limit: Option<u64>,
        offset: u64,
    ) -> Result<Rel> {
        let rel = self.lower(input)?;
        if limit.is_none() && offset == 0 {
            return Ok(rel);
        }
        let width = rel.width();
        let (rel, keys) = sort_keys(rel, order, input)?;
        Ok(rel
            .top_n(Vec::new(), keys, limit, offset, None)
            .select(&(0..width).collect::<Vec<_>>()))
    }
}

fn sorted_below(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(p) => sorted_below(&p.input),
        LogicalPlan::SubqueryAlias(a) => sorted_below(&a.input),
        _ => false,
    }
}

fn sort_keys(rel: Rel, order: &[SortExpr], input: &LogicalPlan) -> Result<(Rel, Vec<SortKey>)> {
    let exprs = order
        .iter()
        .map(|s| compile(&s.expr, input.schema()))
        .collect::<Result<Vec<_>>>()?;
    let (rel, places) = with_columns(rel, &exprs)?;
    let keys = places.into_iter().zip(order).map(|(column, s)| SortKey {
        column,
        desc: !s.asc,
        nulls_first: s.nulls_first,
    });
    Ok((rel, keys.collect()))
}

/// A filter; if it bounds a `row_number()` from above, the bound becomes the top-N's limit.
pub(super) fn filter(mut input: Rel, predicate: Phys) -> Rel {
    let mut kept = None;
    for part in conjuncts(&predicate) {
        let bounded = upper_bound(&part).is_some_and(|(column, bound)| bound_rows(&mut input, column, bound));
        if !bounded {
            kept = Some(and(kept, part));
        }
    }
    match kept {
        Some(predicate) => input.filter(predicate),
        None => input,
    }
}

/// `column <= n`, `column < n`, `column = 1` and their mirror images, as (column, inclusive bound ≥ 1).
fn upper_bound(conjunct: &Phys) -> Option<(usize, u64)> {
    let binary = conjunct.downcast_ref::<BinaryExpr>()?;
    let (column, op, value) = match (column_below_casts(binary.left()), column_below_casts(binary.right())) {
        (Some(column), None) => (column, *binary.op(), integer(binary.right())?),
        (None, Some(column)) => (column, binary.op().swap()?, integer(binary.left())?),
        _ => return None,
    };
    let bound = match op {
        Operator::LtEq => value,
        Operator::Lt => value.checked_sub(1)?,
        Operator::Eq if value == 1 => 1,
        _ => return None,
    };
    (bound >= 1).then_some((column, u64::try_from(bound).ok()?))
}

fn integer(expr: &Phys) -> Option<i64> {
    let value = expr.downcast_ref::<Literal>()?.value();
    match value.cast_to(&arrow::datatypes::DataType::Int64).ok()? {
        datafusion::common::ScalarValue::Int64(v) if value.data_type().is_integer() => v,
        _ => None,
    }
}

/// Limits the unbounded numbering that `column` of `rel` comes from, if it is one.
fn bound_rows(rel: &mut Rel, column: usize, bound: u64) -> bool {
    let (width, input) = (rel.width(), rel.inputs.first_mut());
    match (&mut rel.op, input) {
        (
            RelOp::TopN {
                limit,
                row_number: true,
                offset: 0,
                ..
            },
            Some(_),
        ) if column + 1 == width => {
            *limit = Some(limit.map_or(bound, |l| l.min(bound)));
        }
        (RelOp::Map { exprs: None, .. }, Some(input)) => {
            if !bound_rows(input, column, bound) {
                return false;
            }
        }
        (RelOp::Map { exprs: Some(exprs), .. }, Some(input)) => {
            let below = exprs.get(column).and_then(column_below_casts);
            if !below.is_some_and(|c| bound_rows(input, c, bound)) {
                return false;
            }
        }
        _ => return false,
    }
    rel.refresh_props();
    true
}
