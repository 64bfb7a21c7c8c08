//! Aggregates over a frame that moves, where DataFusion's cannot do it.
//!
//! `sum` and `avg` of floats: a value that leaves cannot be subtracted: after 1e300 nothing would be left of the others. So the frame's values are kept and added up
//! anew for each row, as PostgreSQL does.

use std::collections::VecDeque;
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float64Type, Schema};
use datafusion::common::{DataFusionError, Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature};
use datafusion::physical_expr::PhysicalExpr;

use super::external;
use crate::PlanError;

/// The values of the frame, oldest first.
#[derive(Debug, Default)]
pub(super) struct SlidingFloats {
    average: bool,
    values: VecDeque<f64>,
}

impl SlidingFloats {
    /// For `sum`, or for `avg`.
    pub fn new(average: bool) -> Self {
        Self {
            average,
            values: VecDeque::new(),
        }
    }
}

impl Accumulator for SlidingFloats {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        for column in values {
            self.values
                .extend(column.as_primitive::<Float64Type>().iter().flatten());
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let gone: usize = values.iter().map(|column| column.len() - column.null_count()).sum();
        self.values.drain(..gone.min(self.values.len()));
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        if self.values.is_empty() {
            return Ok(ScalarValue::Float64(None));
        }
        let sum: f64 = self.values.iter().sum();
        let result = if self.average {
            sum / self.values.len() as f64
        } else {
            sum
        };
        Ok(ScalarValue::Float64(Some(result)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<f64>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        Err(no_state())
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> DfResult<()> {
        Err(no_state())
    }
}

/// An aggregate that cannot take a value back, over a frame that moves: the frame's rows are kept and aggregated anew for each row.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::sql) struct Anew {
    inner: Arc<AggregateUDF>,
}

impl Anew {
    /// The function in whose place this one may stand; `None` if it can take values back itself.
    pub fn of(inner: &Arc<AggregateUDF>) -> Option<Arc<AggregateUDF>> {
        matches!(
            inner.name(),
            "bool_and" | "bool_or" | "bit_and" | "bit_or" | "string_agg"
        )
        .then(|| {
            Arc::new(AggregateUDF::new_from_impl(Self {
                inner: Arc::clone(inner),
            }))
        })
    }
}

impl AggregateUDFImpl for Anew {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> DfResult<FieldRef> {
        self.inner.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn default_value(&self, data_type: &DataType) -> DfResult<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(KeptRows {
            inner: Arc::clone(&self.inner),
            return_field: args.return_field,
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            name: args.name.to_owned(),
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
            rows: VecDeque::new(),
        }))
    }
}

/// The rows of the frame, oldest first, and how the aggregate over them is made.
#[derive(Debug)]
struct KeptRows {
    inner: Arc<AggregateUDF>,
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    name: String,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
    rows: VecDeque<Vec<ArrayRef>>,
}

impl Accumulator for KeptRows {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows.push_back(values.to_vec());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let mut gone = values.first().map_or(0, |column| column.len());
        while gone > 0
            && let Some(oldest) = self.rows.front_mut()
        {
            let len = oldest.first().map_or(0, |column| column.len());
            if len > gone {
                for column in oldest {
                    *column = column.slice(gone, len - gone);
                }
                break;
            }
            gone -= len;
            self.rows.pop_front();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let mut all = self.inner.accumulator(AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &[],
            is_reversed: false,
            name: &self.name,
            is_distinct: false,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })?;
        for rows in &self.rows {
            all.update_batch(rows)?;
        }
        all.evaluate()
    }

    fn size(&self) -> usize {
        let columns = self.rows.iter().flatten();
        size_of_val(self) + columns.map(|column| column.get_array_memory_size()).sum::<usize>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        Err(no_state())
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> DfResult<()> {
        Err(no_state())
    }
}

fn no_state() -> DataFusionError {
    external(PlanError::internal("a moving frame's aggregate has no partial state"))
}
