//! The plan of a table that takes rows from a connector.
//!
//! ```text
//!   without a key:  Union  ─ Source, Scan of the table's own writes
//!   with one:       Upsert ─ hash ─ Source;  hash ─ Scan of the table's own writes
//! ```
//!
//! With a key, a record replaces the row of its key whatever the FORMAT, as a write would.

use std::sync::Arc;

use super::place;
use super::props;
use super::rel::{Rel, RelOp};
use crate::Result;
use crate::catalog::SourceDef;
use crate::plan::{ObjectId, PLAN_VERSION, StreamPlan};

/// From the table's own source to its stored rows.
///
/// # Errors
/// 0A000 for what tables cannot ingest.
pub fn plan_ingest(table: ObjectId, name: &str, def: &SourceDef) -> Result<StreamPlan> {
    let projection: Vec<usize> = (0..def.schema.fields().len()).collect();
    let writes = Rel::leaf(
        RelOp::Scan {
            relation: table,
            name: name.to_owned(),
            projection: projection.clone(),
        },
        Arc::clone(&def.schema),
        props::leaf(false, Vec::new(), None),
    );
    let rows = if def.key.is_empty() {
        let source = Rel::leaf(
            RelOp::Source {
                source: table,
                name: name.to_owned(),
                projection,
            },
            Arc::clone(&def.schema),
            props::leaf(true, Vec::new(), None),
        );
        Rel::union(vec![source, writes], Arc::clone(&def.schema))
    } else {
        Rel::keyed_source((table, name), def, &projection, Some(writes))?
    };
    Ok(StreamPlan {
        version: PLAN_VERSION,
        root: place::place(rows)?,
    })
}
