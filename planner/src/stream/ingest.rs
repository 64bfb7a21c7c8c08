//! The plan of a table that takes rows from a connector.

use std::sync::Arc;

use super::place;
use super::props;
use super::rel::{Rel, RelOp};
use crate::catalog::SourceDef;
use crate::plan::{ObjectId, PLAN_VERSION, StreamPlan};
use crate::{PlanError, Result};

/// From the table's own source to its stored rows.
///
/// # Errors
/// 0A000 for what tables cannot ingest.
pub fn plan_ingest(table: ObjectId, name: &str, def: &SourceDef) -> Result<StreamPlan> {
    let projection: Vec<usize> = (0..def.schema.fields().len()).collect();
    if !def.key.is_empty() {
        return Err(
            PlanError::unsupported("a table with a connector and a primary key is not supported")
                .hint("Leave the key out, or CREATE SOURCE with a view over it."),
        );
    }
    let source = Rel::leaf(
        RelOp::Source {
            source: table,
            name: name.to_owned(),
            projection: projection.clone(),
        },
        Arc::clone(&def.schema),
        props::leaf(true, Vec::new(), None),
    );
    let writes = Rel::leaf(
        RelOp::Scan {
            relation: table,
            name: name.to_owned(),
            projection,
        },
        Arc::clone(&def.schema),
        props::leaf(false, Vec::new(), None),
    );
    Ok(StreamPlan {
        version: PLAN_VERSION,
        root: place::place(Rel::union(vec![source, writes], Arc::clone(&def.schema)))?,
    })
}
