//! A table's own expressions over the rows of a write: generated columns are filled in, CHECK conditions tested.
//!
//! They are compiled once per statement and run over whole batches.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use levee_planner::catalog::CatalogObject;
use levee_planner::sql::Binder;

use super::change::row_text;
use crate::error::{Result, SqlError};

/// Compiled expressions of one table.
pub(super) struct Rules {
    /// The row as the expressions see it: every column may be NULL.
    schema: SchemaRef,
    generated: Vec<(usize, Arc<dyn PhysicalExpr>)>,
    /// In the order of their names, as PostgreSQL tests them.
    checks: Vec<(String, Arc<dyn PhysicalExpr>)>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("generated", &self.generated.len())
            .field("checks", &self.checks.len())
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// The rules of a table; `None` if it has none.
    ///
    /// # Errors
    /// A stored expression cannot be bound any more.
    pub fn of(binder: &Binder, object: &CatalogObject) -> Result<Option<Arc<Self>>> {
        let Some(rules) = binder.row_rules(object)? else {
            return Ok(None);
        };
        let state = binder.session_state();
        let schema = Arc::new(rules.schema.as_arrow().clone());
        let compiled = |e| -> Result<Arc<dyn PhysicalExpr>> { Ok(state.create_physical_expr(e, &rules.schema)?) };
        let mut generated = Vec::new();
        for (column, e) in rules.generated.iter().cloned() {
            generated.push((column, compiled(e)?));
        }
        let mut checks = Vec::new();
        for (name, e) in rules.checks.iter().cloned() {
            checks.push((name, compiled(e)?));
        }
        checks.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Some(Arc::new(Self {
            schema,
            generated,
            checks,
        })))
    }

    fn batch(&self, columns: &[ArrayRef]) -> Result<RecordBatch> {
        let cast = columns
            .iter()
            .zip(self.schema.fields())
            .map(|(a, f)| {
                if a.data_type() == f.data_type() {
                    Ok(ArrayRef::clone(a))
                } else {
                    Ok(arrow::compute::cast(a, f.data_type())?)
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let rows = columns.first().map_or(0, |c| c.len());
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            cast,
            &options,
        )?)
    }

    /// New rows with their generated columns' values.
    ///
    /// # Errors
    /// An expression fails.
    pub fn fill(&self, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let mut out = columns.to_vec();
        if self.generated.is_empty() {
            return Ok(out);
        }
        let batch = self.batch(columns)?;
        for (column, e) in &self.generated {
            let value = e.evaluate(&batch)?.into_array(batch.num_rows())?;
            if let Some(slot) = out.get_mut(*column) {
                *slot = value;
            }
        }
        Ok(out)
    }

    /// Tests the checks on new rows.
    ///
    /// # Errors
    /// 23514 for the first row that a condition is false for; a condition fails.
    pub fn check(&self, table: &str, columns: &[ArrayRef]) -> Result<()> {
        if self.checks.is_empty() {
            return Ok(());
        }
        let batch = self.batch(columns)?;
        for (name, e) in &self.checks {
            let met = e.evaluate(&batch)?.into_array(batch.num_rows())?;
            if met.data_type() != &DataType::Boolean {
                return Err(SqlError::internal(format!("check \"{name}\" is not boolean")));
            }
            let met = met.as_boolean();
            let broken = (0..met.len()).find(|&i| met.is_valid(i) && !met.value(i));
            if let Some(row) = broken {
                return Err(SqlError::new(
                    "23514",
                    format!("new row for relation \"{table}\" violates check constraint \"{name}\""),
                )
                .detail(format!("Failing row contains ({}).", row_text(columns, row)?))
                .object(table, None, Some(name)));
            }
        }
        Ok(())
    }
}
