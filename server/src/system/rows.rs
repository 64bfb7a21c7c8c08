//! System relations are written as a line of `name:type` columns and rows of text, which [`build`] parses into a MemTable: catalogs are
//! small, and each is made only when a statement names it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;

use crate::error::{Result, SqlError};
use crate::types::input::ColumnInput;
use crate::types::zone::Zone;

/// A relation, or why it cannot be made.
pub type Made = Result<Arc<dyn TableProvider>>;
/// A row: values as text.
pub type Row = Vec<Option<String>>;

fn fields(columns: &str) -> Result<Vec<Field>> {
    columns
        .split_whitespace()
        .map(|c| {
            let (name, kind) = c.split_once(':').unwrap_or((c, "t"));
            let t = match kind {
                "o" | "i" => DataType::Int32,
                "s" => DataType::Int16,
                "l" => DataType::Int64,
                "f" => DataType::Float32,
                "b" => DataType::Boolean,
                "t" => DataType::Utf8,
                other => return Err(SqlError::internal(format!("system column type {other}"))),
            };
            Ok(Field::new(name, t, true))
        })
        .collect()
}

/// A relation of these columns and rows.
pub fn build(columns: &str, rows: &[Row]) -> Made {
    build_as(&Arc::new(Schema::new(fields(columns)?)), rows)
}

/// A relation of these rows.
pub fn build_as(schema: &SchemaRef, rows: &[Row]) -> Made {
    let fields = schema.fields();
    let mut inputs = fields.iter().map(|f| ColumnInput::new(f)).collect::<Result<Vec<_>>>()?;
    let utc = Zone::utc();
    for row in rows {
        if row.len() != inputs.len() {
            return Err(SqlError::internal(format!(
                "system row has {} of {} columns",
                row.len(),
                inputs.len()
            )));
        }
        for (input, value) in inputs.iter_mut().zip(row) {
            match value {
                Some(text) => input.text(text, &utc)?,
                None => input.null(),
            }
        }
    }
    let columns = inputs.iter_mut().map(ColumnInput::finish).collect::<Result<_>>()?;
    let batch = RecordBatch::try_new(Arc::clone(schema), columns)?;
    Ok(Arc::new(MemTable::try_new(Arc::clone(schema), vec![vec![batch]])?))
}

/// A row from text: words, `~` for NULL, `''` for the empty string, `$name` for values given apart.
pub fn row(template: &str, values: &[(&str, String)]) -> Row {
    template
        .split_whitespace()
        .map(|word| match word {
            "~" => None,
            "''" => Some(String::new()),
            w => match w.strip_prefix('$') {
                Some(name) => values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()),
                None => Some(w.to_owned()),
            },
        })
        .collect()
}
