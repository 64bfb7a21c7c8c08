//! Evaluates compiled expressions; a row on which one fails gets NULL, and the failure is reported.
//!
//! The whole batch is tried first. If that fails, halves are tried, down to single rows: `f` failing rows of `n` cost about
//! `f·log(n)` further calls. What a row evaluates to depends on that row only, so cuts of the input do not show.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use levee_planner::plan::PlanExpr;

use super::columns::coerce;
use super::{Output, StreamError};
use crate::{Result, RuntimeError};

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Evaluator {
    expr: Arc<dyn PhysicalExpr>,
    data_type: DataType,
    display: String,
}

impl Evaluator {
    /// Compiles a plan's expression over the columns of `input`.
    ///
    /// # Errors
    /// The stored expression cannot be read.
    pub fn compile(expr: &PlanExpr, input: &Schema) -> Result<Self> {
        Self::new(decode(expr, input)?, input, expr.display.clone())
    }

    /// Wraps an expression over the columns of `input`.
    ///
    /// # Errors
    /// It does not fit the columns.
    pub fn new(expr: Arc<dyn PhysicalExpr>, input: &Schema, display: String) -> Result<Self> {
        let data_type = expr.data_type(input)?;
        Ok(Self {
            expr,
            data_type,
            display,
        })
    }

    /// The values, of type `as_type`; NULL where the expression fails.
    ///
    /// # Errors
    /// The result cannot be made `as_type`.
    pub fn evaluate(&self, batch: &RecordBatch, as_type: &DataType, out: &mut Output) -> Result<ArrayRef> {
        let array = match self.attempt(batch) {
            Ok(array) => array,
            Err(first) => self.bisect(batch, &first, out)?,
        };
        coerce(array, as_type)
    }

    /// Which rows the expression is true for; NULL and failing rows are not.
    ///
    /// # Errors
    /// The expression is not boolean.
    pub fn filter(&self, batch: &RecordBatch, out: &mut Output) -> Result<BooleanArray> {
        let values = self.evaluate(batch, &DataType::Boolean, out)?;
        let mask = values
            .as_any()
            .downcast_ref::<BooleanArray>()
            .ok_or_else(|| RuntimeError::internal("a predicate is not boolean"))?;
        if mask.null_count() == 0 {
            return Ok(mask.clone());
        }
        Ok(arrow::compute::prep_null_mask_filter(mask))
    }

    fn attempt(&self, batch: &RecordBatch) -> Result<ArrayRef, datafusion::error::DataFusionError> {
        self.expr.evaluate(batch)?.into_array(batch.num_rows())
    }

    fn bisect(
        &self,
        batch: &RecordBatch,
        first: &datafusion::error::DataFusionError,
        out: &mut Output,
    ) -> Result<ArrayRef> {
        let n = batch.num_rows();
        if n == 0 {
            return Ok(new_null_array(&self.data_type, 0));
        }
        let mut parts = Vec::new();
        let mut failed = 0;
        let mut message = None;
        let mut pending = vec![(0, n)];
        while let Some((start, len)) = pending.pop() {
            match self.attempt(&batch.slice(start, len)) {
                Ok(array) => parts.push(coerce(array, &self.data_type)?),
                Err(e) if len == 1 => {
                    failed += 1;
                    message.get_or_insert_with(|| e.strip_backtrace());
                    parts.push(new_null_array(&self.data_type, 1));
                }
                Err(_) => {
                    pending.push((start + len / 2, len - len / 2));
                    pending.push((start, len / 2));
                }
            }
        }
        if failed > 0 {
            out.errors.push(StreamError {
                expression: self.display.clone(),
                message: message.unwrap_or_else(|| first.strip_backtrace()),
                rows: failed,
            });
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        Ok(concat(&parts)?)
    }
}

/// A batch that may have no columns.
///
/// # Errors
/// Columns do not fit the schema.
pub fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, n: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(n));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}

/// A batch of columns that are cast to the schema's types where they differ.
///
/// # Errors
/// As [`batch`], or a cast fails.
pub fn fitted(schema: &SchemaRef, columns: impl IntoIterator<Item = ArrayRef>, n: usize) -> Result<RecordBatch> {
    let columns = columns
        .into_iter()
        .zip(schema.fields())
        .map(|(c, f)| coerce(c, f.data_type()))
        .collect::<Result<Vec<_>>>()?;
    batch(schema, columns, n)
}

/// The one place where stored expressions become runnable ones.
fn decode(expr: &PlanExpr, input: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    Ok(levee_planner::stream::expr::decode(expr, input)?)
}
