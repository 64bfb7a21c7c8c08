//! Filter, then projection, in one pass.
//!
//! Maintains `π_exprs(σ_predicate(input))`: every row stands for itself, so diffs pass unchanged and nothing is held back.
//! Assumes nothing of its input; emits at once; has no state. A predicate that fails on a row drops it, a projection that
//! fails is NULL there.
//!
//! Cost per row: the expressions. Batches of which every row passes are not copied.

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::compute::{filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::{Schema, SchemaRef};
use levee_planner::plan::PlanExpr;

use super::columns::nullable;
use super::eval::{Evaluator, batch};
use super::{Barrier, Operator, Output, Progress, fault};
use crate::{Delta, Diffs, Result};

/// The operator.
pub struct Map {
    predicate: Option<Evaluator>,
    exprs: Option<Vec<Evaluator>>,
    schema: SchemaRef,
}

impl Map {
    /// From a plan node.
    ///
    /// # Errors
    /// An expression cannot be compiled.
    pub fn new(
        predicate: Option<&PlanExpr>,
        exprs: Option<&[PlanExpr]>,
        input: &Schema,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let predicate = predicate.map(|p| Evaluator::compile(p, input)).transpose()?;
        let exprs = exprs
            .map(|list| {
                list.iter()
                    .map(|e| Evaluator::compile(e, input))
                    .collect::<Result<Vec<_>>>()
            })
            .transpose()?;
        Ok(Self::from_parts(predicate, exprs, schema))
    }

    /// From compiled expressions.
    pub fn from_parts(predicate: Option<Evaluator>, exprs: Option<Vec<Evaluator>>, schema: &SchemaRef) -> Self {
        Self {
            predicate,
            exprs,
            schema: nullable(schema),
        }
    }
}

impl Operator for Map {
    fn push(&mut self, _input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        let mut delta = match &self.predicate {
            None => delta,
            Some(predicate) => {
                let mask = predicate.filter(&delta.batch, out)?;
                filter(delta, &mask)?
            }
        };
        if delta.num_rows() == 0 {
            return Ok(Progress::Done);
        }
        let n = delta.num_rows();
        let columns: Vec<ArrayRef> = match &self.exprs {
            None => delta.batch.columns().to_vec(),
            Some(exprs) => {
                let mut columns = Vec::with_capacity(exprs.len());
                for (expr, field) in exprs.iter().zip(self.schema.fields()) {
                    columns.push(expr.evaluate(&delta.batch, field.data_type(), out)?);
                }
                columns
            }
        };
        delta.batch = batch(&self.schema, columns, n)?;
        if fault::planted(fault::Fault::Map) {
            delta = fault::without_a_retraction(delta);
        }
        out.emit(delta);
        Ok(Progress::Done)
    }

    fn close(&mut self, _barrier: &Barrier, _out: &mut Output) -> Result<Progress> {
        Ok(Progress::Done)
    }
}

/// The rows of a delta for which `mask` is true.
///
/// # Errors
/// Lengths differ.
pub fn filter(delta: Delta, mask: &BooleanArray) -> Result<Delta> {
    let mask = if mask.null_count() == 0 {
        mask.clone()
    } else {
        prep_null_mask_filter(mask)
    };
    if mask.true_count() == mask.len() {
        return Ok(delta);
    }
    let diffs = match &delta.diffs {
        Diffs::Ones => Diffs::Ones,
        Diffs::Values(diffs) => Diffs::Values(mask.values().set_indices().map(|i| diffs[i]).collect()),
    };
    Ok(Delta {
        batch: filter_record_batch(&delta.batch, &mask)?,
        diffs,
    })
}
