//! Storage order: how a relation's rows are encoded, compared, stored and read back.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};

use crate::Result;
use crate::delta::storage_order;

/// The row encoding of one relation: key columns first, then the others, all ascending with NULLs first. Encoded bytes compare
/// as the rows do, and are the keys of the relation's entries in checkpoints.
#[derive(Debug)]
pub struct RowOrder {
    schema: SchemaRef,
    /// The same columns, all of which may be NULL: what rows of earlier times, and retractions of them, fit.
    stored: SchemaRef,
    key: Vec<usize>,
    columns: Vec<usize>,
    converter: RowConverter,
    key_converter: RowConverter,
}

impl RowOrder {
    /// The order of rows of `schema` with key columns `key`.
    ///
    /// # Errors
    /// A column type that cannot be ordered.
    pub fn new(schema: SchemaRef, key: Vec<usize>) -> Result<Self> {
        let columns = storage_order(schema.fields().len(), &key);
        let fields = |cols: &[usize]| {
            cols.iter()
                .map(|&c| SortField::new(schema.field(c).data_type().clone()))
                .collect()
        };
        let converter = RowConverter::new(fields(&columns))?;
        let key_converter = RowConverter::new(fields(&key))?;
        let nullable = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true));
        let stored = Arc::new(Schema::new(nullable.collect::<Vec<_>>()));
        Ok(Self {
            schema,
            stored,
            key,
            columns,
            converter,
            key_converter,
        })
    }

    /// Columns in catalog order.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The same without NOT NULL. A table's promise may be younger than its rows, so changes are merged and read back under this.
    pub fn stored(&self) -> &SchemaRef {
        &self.stored
    }

    /// Key columns.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// Encodes whole rows.
    ///
    /// # Errors
    /// Columns of another type.
    pub fn encode(&self, batch: &RecordBatch) -> Result<Rows> {
        let arrays: Vec<ArrayRef> = self.columns.iter().map(|&c| Arc::clone(batch.column(c))).collect();
        Ok(self.converter.convert_columns(&arrays)?)
    }

    /// Encodes key columns given in key order; the bytes are a prefix of the whole row's.
    ///
    /// # Errors
    /// Columns of another type.
    pub fn encode_keys(&self, columns: &[ArrayRef]) -> Result<Rows> {
        Ok(self.key_converter.convert_columns(columns)?)
    }

    /// Rows from their encoded bytes.
    ///
    /// # Errors
    /// The bytes do not decode to valid columns.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<RecordBatch> {
        let parser = self.converter.parser();
        let arrays = self.converter.convert_rows(rows.map(|r| parser.parse(r)))?;
        let mut columns: Vec<Option<ArrayRef>> = vec![None; arrays.len()];
        for (array, &c) in arrays.into_iter().zip(&self.columns) {
            columns[c] = Some(array);
        }
        Ok(RecordBatch::try_new(
            Arc::clone(&self.stored),
            columns.into_iter().flatten().collect(),
        )?)
    }
}
