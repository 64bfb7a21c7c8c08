//! GROUPING SETS, ROLLUP and CUBE.
//!
//! ```text
//!   γ[{a, b}, {a}, {}; f(x)](R)  →  γ[a, b, id; f(x)](expand[(a, b, 0, x), (a, NULL, 1, x)](R))  ∪  (NULL, NULL, 3, γ[f(x)](R))
//! ```
//!
//! `id` is DataFusion's column of that purpose: a bit for each expression that is not in the set, the last one lowest, and above them the
//! number of equal sets before this one. The empty set has a row even without input, so it is an aggregate of its own.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::GroupingSet;
use datafusion::logical_expr::logical_plan::Aggregate;

use super::aggregate::call;
use super::{compile_all, field_of, unite, unsupported};
use crate::plan::{AggCall, SortKey};
use crate::stream::rel::{Branch, Phys, Rel, literal};
use crate::{PlanError, Result};

/// Sets that one aggregate may have: each is a branch of the plan.
const SETS_MAX: usize = 128;

/// Which of the expressions each set holds.
fn sets_of(sets: &GroupingSet, exprs: &[&Expr]) -> Result<Vec<Vec<bool>>> {
    let n = exprs.len();
    let count = match sets {
        GroupingSet::Rollup(_) => n + 1,
        GroupingSet::Cube(_) => u32::try_from(n)
            .ok()
            .and_then(|n| 1usize.checked_shl(n))
            .unwrap_or(usize::MAX),
        GroupingSet::GroupingSets(sets) => sets.len(),
    };
    if count > SETS_MAX || n >= 63 {
        return Err(unsupported(&format!("GROUP BY with {count} grouping sets"))
            .hint(format!("At most {SETS_MAX} are kept; write several views.")));
    }
    Ok(match sets {
        GroupingSet::Rollup(_) => (0..=n).rev().map(|k| (0..n).map(|i| i < k).collect()).collect(),
        GroupingSet::Cube(_) => (0..count)
            .rev()
            .map(|bits| (0..n).map(|i| bits >> (n - 1 - i) & 1 == 1).collect())
            .collect(),
        GroupingSet::GroupingSets(sets) => {
            let holds = |set: &Vec<Expr>| exprs.iter().map(|e| set.contains(e)).collect();
            sets.iter().map(holds).collect()
        }
    })
}

/// The ids of sets, as DataFusion numbers them.
fn ids_of(sets: &[Vec<bool>]) -> Vec<u64> {
    let mut before: HashMap<&[bool], u64> = HashMap::new();
    sets.iter()
        .map(|set| {
            let ordinal = before.entry(set).or_default();
            let id = set.iter().fold(*ordinal, |id, holds| id << 1 | u64::from(!holds));
            *ordinal += 1;
            id
        })
        .collect()
}

/// Lowers an aggregate over several groupings of `input`.
pub(super) fn grouping_sets(input: Rel, aggregate: &Aggregate, sets: &GroupingSet) -> Result<Rel> {
    let schema = aggregate.input.schema();
    let exprs = sets.distinct_expr();
    let n = exprs.len();
    let keys = compile_all(&exprs.iter().map(|e| (*e).clone()).collect::<Vec<_>>(), schema)?;
    let mut columns: Vec<Phys> = Vec::new();
    let aggs = aggregate
        .aggr_expr
        .iter()
        .map(|e| call(e, schema, &mut columns))
        .collect::<Result<Vec<_>>>()?;
    let out = Arc::new(aggregate.schema.as_arrow().clone());
    let id_type = out.field(n).data_type().clone();
    let key_types: Vec<_> = out.fields().iter().take(n).map(|f| f.data_type().clone()).collect();
    let null = |i: usize| -> Result<Phys> {
        let null = ScalarValue::try_from(&key_types[i]).map_err(|e| PlanError::internal(e.to_string()))?;
        Ok(literal(null))
    };
    let id_of = |id: u64| -> Result<Phys> {
        let id = ScalarValue::UInt64(Some(id)).cast_to(&id_type);
        Ok(literal(id.map_err(|e| PlanError::internal(e.to_string()))?))
    };
    let sets = sets_of(sets, &exprs)?;
    let ids = ids_of(&sets);
    let mut branches = Vec::new();
    let mut parts = Vec::new();
    for (set, id) in sets.iter().zip(ids) {
        if set.contains(&true) {
            let mut row = Vec::with_capacity(n + 1 + columns.len());
            for (i, holds) in set.iter().enumerate() {
                row.push(if *holds { Arc::clone(&keys[i]) } else { null(i)? });
            }
            row.push(id_of(id)?);
            row.extend(columns.iter().cloned());
            branches.push(Branch {
                predicate: None,
                exprs: row,
            });
            continue;
        }
        let fields = columns
            .iter()
            .map(|e| field_of(e, &input.schema))
            .collect::<Result<Vec<_>>>()?;
        let total = input
            .clone()
            .project(columns.clone(), Arc::new(Schema::new(fields)))
            .aggregate(Vec::new(), aggs.clone(), aggregates_schema(&out, n + 1));
        let mut row = (0..n).map(null).collect::<Result<Vec<_>>>()?;
        row.push(id_of(id)?);
        row.extend(total.columns());
        parts.push(total.project(row, nullable(&out)));
    }
    if !branches.is_empty() {
        let mut fields: Vec<_> = out.fields().iter().take(n + 1).cloned().collect();
        for (i, f) in fields.iter_mut().enumerate() {
            *f = Arc::new(f.as_ref().clone().with_nullable(i < n));
        }
        for e in &columns {
            fields.push(field_of(e, &input.schema)?);
        }
        let expanded = input.expand(branches, Arc::new(Schema::new(fields)));
        let aggs = aggs.iter().map(|a| shifted(a, n + 1)).collect();
        parts.push(expanded.aggregate((0..=n).collect(), aggs, nullable(&out)));
    }
    match parts.len() {
        1 => parts.pop().ok_or_else(|| PlanError::internal("no grouping set")),
        _ => unite(parts, &nullable(&out)),
    }
}

/// Aggregates of one output field each, from `from` on.
fn aggregates_schema(out: &Schema, from: usize) -> Arc<Schema> {
    Arc::new(Schema::new(out.fields().iter().skip(from).cloned().collect::<Vec<_>>()))
}

/// Any column but the id may be NULL.
fn nullable(out: &Schema) -> Arc<Schema> {
    let fields = out.fields().iter().map(|f| f.as_ref().clone().with_nullable(true));
    Arc::new(Schema::new(fields.collect::<Vec<Field>>()))
}

/// A call over columns that stand `by` places further right.
fn shifted(a: &AggCall, by: usize) -> AggCall {
    AggCall {
        arg: a.arg.map(|c| c + by),
        filter: a.filter.map(|c| c + by),
        order_by: a
            .order_by
            .iter()
            .map(|k| SortKey {
                column: k.column + by,
                ..*k
            })
            .collect(),
        ..a.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_sets_apart() {
        let sets = [
            vec![true, true],
            vec![true, false],
            vec![false, false],
            vec![true, false],
        ];
        assert_eq!(ids_of(&sets), [0, 1, 3, 5]);
    }
}
