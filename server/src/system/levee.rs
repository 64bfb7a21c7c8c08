//! `levee_catalog`: what the engine tells of itself.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;

use super::SystemContext;
use crate::config::SETTINGS;
use crate::error::Result;
use crate::types::input::ColumnInput;
use crate::types::zone::Zone;

type Columns = &'static [(&'static str, Kind)];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Int,
    Float,
    Text,
    Bool,
    Bytes,
}

use Kind::{Bool, Bytes, Float, Int, Text};

const TABLES: &[(&str, Columns)] = &[
    (
        "jobs",
        &[
            ("id", Int),
            ("name", Text),
            ("kind", Text),
            ("state", Text),
            ("epoch", Int),
            ("rows_out", Int),
            ("checksum", Text),
            ("finished", Bool),
        ],
    ),
    (
        "regions",
        &[
            ("id", Int),
            ("name", Text),
            ("epoch", Int),
            ("checkpoint_epoch", Int),
            ("lag_epochs", Int),
            ("steps", Int),
            ("runs", Int),
            ("rows", Int),
            ("bytes", Int),
            ("state_bytes", Int),
        ],
    ),
    (
        "tasks",
        &[
            ("region", Int),
            ("fragment", Int),
            ("task", Int),
            ("incarnation", Int),
            ("epoch", Int),
            ("rows_in", Int),
            ("rows_out", Int),
            ("state_bytes", Int),
            ("late_slices", Int),
            ("longest_slice_us", Int),
        ],
    ),
    (
        "epochs",
        &[("epoch", Int), ("timestamp", Int), ("tables", Int), ("rows", Int)],
    ),
    (
        "checkpoints",
        &[
            ("number", Int),
            ("epoch", Int),
            ("regions", Int),
            ("files", Int),
            ("bytes", Int),
            ("seconds", Float),
        ],
    ),
    ("memory", &[("what", Text), ("used_bytes", Int), ("share_bytes", Int)]),
    (
        "ddl_progress",
        &[
            ("id", Int),
            ("name", Text),
            ("statement", Text),
            ("progress", Text),
            ("rows_done", Int),
            ("rows_total", Int),
            ("rows_per_second", Int),
            ("mode", Text),
        ],
    ),
    (
        "stream_errors",
        &[
            ("job", Int),
            ("name", Text),
            ("expression", Text),
            ("message", Text),
            ("count", Int),
            ("last_epoch", Int),
        ],
    ),
    (
        "sources",
        &[
            ("id", Int),
            ("name", Text),
            ("connector", Text),
            ("split", Int),
            ("offset", Int),
            ("finished", Bool),
            ("partition", Text),
            ("end_offset", Int),
            ("lag", Int),
            ("status", Text),
            ("error", Text),
            ("dead_letters", Int),
        ],
    ),
    (
        "dead_letters",
        &[
            ("source_id", Int),
            ("source", Text),
            ("partition", Text),
            ("offset", Int),
            ("reason", Text),
            ("bytes", Bytes),
            ("key", Bytes),
            ("timestamp", Int),
        ],
    ),
    (
        "sinks",
        &[
            ("id", Int),
            ("name", Text),
            ("connector", Text),
            ("status", Text),
            ("error", Text),
            ("epoch", Int),
            ("delivered_epoch", Int),
            ("lag_epochs", Int),
            ("lag_ms", Int),
            ("gathered_bytes", Int),
        ],
    ),
    (
        "settings",
        &[
            ("name", Text),
            ("value", Text),
            ("default", Text),
            ("description", Text),
        ],
    ),
];

/// Names of the relations and their columns.
pub fn relations() -> impl Iterator<Item = (&'static str, Vec<Field>)> {
    TABLES.iter().map(|(name, columns)| (*name, fields(columns)))
}

fn fields(columns: Columns) -> Vec<Field> {
    columns
        .iter()
        .map(|(name, kind)| {
            let t = match kind {
                Int => DataType::Int64,
                Float => DataType::Float64,
                Text => DataType::Utf8,
                Bool => DataType::Boolean,
                Bytes => DataType::Binary,
            };
            Field::new(*name, t, true)
        })
        .collect()
}

/// A relation with its present rows.
pub fn table(context: &SystemContext, name: &str) -> Option<Result<Arc<dyn TableProvider>>> {
    let (name, columns) = TABLES.iter().find(|(n, _)| *n == name)?;
    let rows = if *name == "settings" {
        settings(context)
    } else {
        // The engine answers from its own thread; other sessions must not wait for that.
        tokio::task::block_in_place(|| context.server.engine.status(name))
    };
    Some(make(columns, &rows))
}

fn settings(context: &SystemContext) -> Vec<Vec<Option<String>>> {
    let shown = &context.server.config.shown;
    SETTINGS
        .iter()
        .map(|s| {
            vec![
                Some(s.name.to_owned()),
                shown.get(s.name).cloned(),
                Some(s.default.to_owned()),
                Some(s.help.to_owned()),
            ]
        })
        .collect()
}

fn make(columns: Columns, rows: &[Vec<Option<String>>]) -> Result<Arc<dyn TableProvider>> {
    let fields = fields(columns);
    let mut inputs = fields.iter().map(ColumnInput::new).collect::<Result<Vec<_>>>()?;
    let utc = Zone::utc();
    for row in rows {
        for (c, input) in inputs.iter_mut().enumerate() {
            match row.get(c).and_then(Option::as_deref) {
                Some(text) => input.text(text, &utc)?,
                None => input.null(),
            }
        }
    }
    let schema = Arc::new(Schema::new(fields));
    let arrays = inputs.iter_mut().map(ColumnInput::finish).collect::<Result<_>>()?;
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
    Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))
}
