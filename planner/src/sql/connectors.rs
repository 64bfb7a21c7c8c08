//! What CREATE SOURCE knows of connectors: their options and columns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::{Options, types};
use crate::{PlanError, Result};

/// Options of the nexmark source.
const NEXMARK_OPTIONS: [&str; 7] = [
    "connector",
    "nexmark.event.type",
    "nexmark.event.rate",
    "nexmark.event.limit",
    "nexmark.event.time.rate",
    "nexmark.seed",
    "nexmark.splits",
];

/// The columns of a nexmark event type; they match the generator's, in order.
fn nexmark_columns(event: &str) -> Option<Vec<(&'static str, DataType)>> {
    let (int, text, time) = (DataType::Int64, DataType::Utf8, types::timestamp());
    Some(match event {
        "person" => vec![
            ("id", int),
            ("name", text.clone()),
            ("email_address", text.clone()),
            ("credit_card", text.clone()),
            ("city", text.clone()),
            ("state", text.clone()),
            ("date_time", time),
            ("extra", text),
        ],
        "auction" => vec![
            ("id", int.clone()),
            ("item_name", text.clone()),
            ("description", text.clone()),
            ("initial_bid", int.clone()),
            ("reserve", int.clone()),
            ("date_time", time.clone()),
            ("expires", time),
            ("seller", int.clone()),
            ("category", int),
            ("extra", text),
        ],
        "bid" => vec![
            ("auction", int.clone()),
            ("bidder", int.clone()),
            ("price", int),
            ("channel", text.clone()),
            ("url", text.clone()),
            ("date_time", time),
            ("extra", text),
        ],
        _ => return None,
    })
}

/// The columns of a source with these options.
///
/// # Errors
/// 22023 for a missing, unknown or malformed option; 0A000 for a connector that is not built.
pub(super) fn source_schema(options: &Options) -> Result<SchemaRef> {
    let connector = options.get("connector").ok_or_else(|| {
        PlanError::new("22023", "option \"connector\" is missing").hint("Write WITH (connector = 'nexmark', …).")
    })?;
    if connector != "nexmark" {
        return Err(
            PlanError::unsupported(format!("source connector \"{connector}\" is not supported"))
                .hint("Use connector = 'nexmark', or a table filled with INSERT or COPY."),
        );
    }
    if let Some(unknown) = options.keys().find(|k| !NEXMARK_OPTIONS.contains(&k.as_str())) {
        return Err(
            PlanError::new("22023", format!("unknown option \"{unknown}\" of connector nexmark"))
                .hint(format!("Known options are {}.", NEXMARK_OPTIONS.join(", "))),
        );
    }
    for key in [
        "nexmark.event.rate",
        "nexmark.event.limit",
        "nexmark.event.time.rate",
        "nexmark.seed",
        "nexmark.splits",
    ] {
        if let Some(v) = options.get(key) {
            let ok = v
                .parse::<u64>()
                .is_ok_and(|n| n > 0 || !matches!(key, "nexmark.splits" | "nexmark.event.time.rate"));
            if !ok {
                return Err(PlanError::new(
                    "22023",
                    format!("option \"{key}\" must be a positive integer, not \"{v}\""),
                ));
            }
        }
    }
    let event = options.get("nexmark.event.type").map(|e| e.to_lowercase());
    let Some(event) = event else {
        return Err(
            PlanError::unsupported("a nexmark source of all event types is not supported")
                .hint("Create one source for each event type: nexmark.event.type = 'person', 'auction' or 'bid'."),
        );
    };
    let columns = nexmark_columns(&event).ok_or_else(|| {
        PlanError::new("22023", format!("unknown nexmark event type \"{event}\""))
            .hint("Use 'person', 'auction' or 'bid'.")
    })?;
    let meta = std::collections::HashMap::from([(types::META_TYPE.to_owned(), "varchar".to_owned())]);
    let fields: Vec<Field> = columns
        .into_iter()
        .map(|(name, t)| {
            let text = t == DataType::Utf8;
            let f = Field::new(name, t, true);
            if text { f.with_metadata(meta.clone()) } else { f }
        })
        .collect();
    Ok(Arc::new(Schema::new(fields)))
}
