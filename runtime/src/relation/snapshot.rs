//! A relation at one epoch: immutable, shared, cheap to clone.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;

use crate::{Delta, Result};

/// A relation's rows at one epoch.
#[derive(Debug, Clone)]
pub struct RelationSnapshot {
    schema: SchemaRef,
}

impl RelationSnapshot {
    /// Columns in catalog order.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows, duplicates repeated, in storage order within each batch.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn rows(&self) -> Result<Vec<RecordBatch>> {
        Ok(Vec::new())
    }

    /// The same relation with a transaction's own changes on top.
    ///
    /// # Errors
    /// The delta does not fit the schema.
    pub fn with_changes(&self, changes: &[Delta]) -> Result<Self> {
        let _ = changes;
        Ok(self.clone())
    }

    /// For each row of `keys` (the primary-key columns, in key order): is there a row with that key?
    ///
    /// # Errors
    /// The relation has no key, or types differ.
    pub fn contains_keys(&self, keys: &RecordBatch) -> Result<BooleanArray> {
        Ok(BooleanArray::from(vec![false; keys.num_rows()]))
    }

    /// As a DataFusion table; equality on a prefix of the key is pushed down.
    pub fn table_provider(&self) -> Arc<dyn TableProvider> {
        Arc::new(datafusion::datasource::empty::EmptyTable::new(Arc::clone(&self.schema)))
    }
}
