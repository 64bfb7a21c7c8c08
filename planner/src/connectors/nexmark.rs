//! Options and columns of the nexmark connector, which makes its own rows; what they mean is told in the runtime's `sources::nexmark`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::Reader;
use crate::sql::types;
use crate::{PlanError, Result};

const KNOWN: [&str; 6] = [
    "nexmark.event.type",
    "nexmark.event.rate",
    "nexmark.event.limit",
    "nexmark.event.time.rate",
    "nexmark.seed",
    "nexmark.splits",
];

/// Checks the options.
///
/// # Errors
/// 22023 for an unknown, missing or malformed option; 0A000 for a source of all event types.
pub fn check(options: &BTreeMap<String, String>) -> Result<()> {
    let reader = Reader::new("connector \"nexmark\"", options);
    reader.only(&KNOWN, |k| KNOWN.contains(&k))?;
    for key in ["nexmark.event.rate", "nexmark.event.limit", "nexmark.seed"] {
        reader.number(key, 0..=u64::MAX)?;
    }
    for key in ["nexmark.event.time.rate", "nexmark.splits"] {
        reader.number(key, 1..=u64::MAX)?;
    }
    columns(options).map(drop)
}

/// The columns of the event type; they match the generator's, in order.
///
/// # Errors
/// As [`check`].
pub fn columns(options: &BTreeMap<String, String>) -> Result<SchemaRef> {
    let reader = Reader::new("connector \"nexmark\"", options);
    let (int, text, time) = (DataType::Int64, DataType::Utf8, types::timestamp());
    let Some(event) = reader.word("nexmark.event.type", &["person", "auction", "bid"])? else {
        return Err(
            PlanError::unsupported("a nexmark source of all event types is not supported")
                .hint("Create one source for each event type: nexmark.event.type = 'person', 'auction' or 'bid'."),
        );
    };
    let columns = match event {
        0 => vec![
            ("id", int),
            ("name", text.clone()),
            ("email_address", text.clone()),
            ("credit_card", text.clone()),
            ("city", text.clone()),
            ("state", text.clone()),
            ("date_time", time),
            ("extra", text),
        ],
        1 => vec![
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
        _ => vec![
            ("auction", int.clone()),
            ("bidder", int.clone()),
            ("price", int),
            ("channel", text.clone()),
            ("url", text.clone()),
            ("date_time", time),
            ("extra", text),
        ],
    };
    let varchar = std::collections::HashMap::from([(types::META_TYPE.to_owned(), "varchar".to_owned())]);
    let fields: Vec<Field> = columns
        .into_iter()
        .map(|(name, t)| {
            let is_text = t == DataType::Utf8;
            let field = Field::new(name, t, true);
            if is_text {
                field.with_metadata(varchar.clone())
            } else {
                field
            }
        })
        .collect();
    Ok(Arc::new(Schema::new(fields)))
}
