//! `sum` and `avg` of floats over a frame that moves.
//!
//! A value that leaves cannot be subtracted: after 1e300 nothing would be left of the others. So the frame's values are kept and added up
//! anew for each row, as PostgreSQL does.

use std::collections::VecDeque;
use std::mem::size_of_val;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Float64Type;
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::Accumulator;

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
        Err(external(PlanError::internal(
            "a moving frame's sum has no partial state",
        )))
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> DfResult<()> {
        Err(external(PlanError::internal(
            "a moving frame's sum has no partial state",
        )))
    }
}
