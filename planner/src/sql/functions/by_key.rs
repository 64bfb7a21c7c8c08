//! `min_by(x, k)` and `max_by(x, k)` (also `arg_min`, `arg_max`): the x of the row with the least, or greatest, k.
//!
//! Rows without k do not count. Of rows with equal k the least x decides, NULL last, so the answer does not depend on the order of rows.
//! PostgreSQL has neither.

use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{SortColumn, SortOptions, concat, filter, is_not_null, lexsort_to_indices, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

use super::{external, no_function};
use crate::PlanError;
use crate::sql::types::JSON;

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    [false, true]
        .into_iter()
        .map(|greatest| Arc::new(AggregateUDF::new_from_impl(ByKey::new(greatest))))
        .collect()
}

/// The aggregate function of batch queries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ByKey {
    greatest: bool,
    aliases: Vec<String>,
    signature: Signature,
}

impl ByKey {
    fn new(greatest: bool) -> Self {
        Self {
            greatest,
            aliases: vec![if greatest { "arg_max" } else { "arg_min" }.to_owned()],
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl AggregateUDFImpl for ByKey {
    fn name(&self) -> &str {
        if self.greatest { "max_by" } else { "min_by" }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        let [x, key] = t else {
            return Err(external(no_function(self.name(), t)));
        };
        for t in [x, key] {
            if t.is_nested() || *t == JSON {
                return Err(external(
                    PlanError::unsupported(format!("{} of arrays and json is not supported", self.name()))
                        .hint("Use (array_agg(x ORDER BY k))[1]."),
                ));
            }
        }
        let known = |t: &DataType| if t.is_null() { DataType::Utf8 } else { t.clone() };
        Ok(vec![known(x), known(key)])
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        Ok(self.coerce_types(t)?.swap_remove(0))
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.expr_fields.len() != 2 {
            return Err(external(PlanError::internal("min_by lacks its arguments")));
        }
        let types = args.expr_fields.iter().map(|f| f.data_type().clone()).collect();
        Ok(Box::new(Best {
            greatest: self.greatest,
            types,
            best: None,
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let parts = ["value", "key"].iter().zip(args.input_fields);
        Ok(parts
            .map(|(part, f)| {
                Arc::new(Field::new(
                    format!("{}[{part}]", args.name),
                    f.data_type().clone(),
                    true,
                ))
            })
            .collect())
    }
}

/// The best row so far: x and k as columns of one row.
#[derive(Debug)]
struct Best {
    greatest: bool,
    types: Vec<DataType>,
    best: Option<[ArrayRef; 2]>,
}

impl Accumulator for Best {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let [x, key] = values else {
            return Err(external(PlanError::internal("min_by lacks its arguments")));
        };
        let counts = is_not_null(key)?;
        let (mut x, mut key) = (filter(x, &counts)?, filter(key, &counts)?);
        if key.is_empty() {
            return Ok(());
        }
        if let Some([best_x, best_key]) = &self.best {
            x = concat(&[best_x.as_ref(), x.as_ref()])?;
            key = concat(&[best_key.as_ref(), key.as_ref()])?;
        }
        let column = |values: &ArrayRef, descending: bool| SortColumn {
            values: Arc::clone(values),
            options: Some(SortOptions::new(descending, false)),
        };
        let first = lexsort_to_indices(&[column(&key, self.greatest), column(&x, false)], Some(1))?;
        self.best = Some([take(&x, &first, None)?, take(&key, &first, None)?]);
        Ok(())
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        Ok(self.state()?.swap_remove(0))
    }

    fn size(&self) -> usize {
        size_of_val(self)
            + self
                .best
                .iter()
                .flatten()
                .map(|a| a.get_array_memory_size())
                .sum::<usize>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        match &self.best {
            Some(best) => best.iter().map(|a| ScalarValue::try_from_array(a, 0)).collect(),
            None => self.types.iter().map(ScalarValue::try_from).collect(),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        self.update_batch(states)
    }
}
