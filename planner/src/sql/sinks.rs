//! What CREATE SINK knows of connectors: their options, and how a stream's changes become a target's rows or records.
//!
//! | connector | types | FORMAT … ENCODE … |
//! | --- | --- | --- |
//! | `blackhole` | all | none |
//! | `file` | all; changes carry their kind in column `__op` | PLAIN JSON, CSV or PARQUET |
//! | `kafka` | append-only: PLAIN, upsert: UPSERT or DEBEZIUM | PLAIN JSON or CSV; UPSERT JSON; DEBEZIUM JSON |
//! | `postgres` | append-only, upsert | none |
//!
//! A sink of type upsert needs to know which columns identify a row; PostgreSQL's and Kafka's targets cannot do without.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};

use super::Options;
use super::ast::{CreateSink, FormatClause};
use super::types::{JSON, JSONB, TIMETZ, UUID, base_name};
use crate::catalog::{Encoding, SinkDef, SinkMode, SourceFormat};
use crate::plan::{StreamPlan, StreamProps};
use crate::{PlanError, Result};

/// The column that a file's changes carry their kind in.
const OP_COLUMN: &str = "__op";

/// Options of every connector.
const COMMON: [&str; 8] = [
    "connector",
    "type",
    "primary_key",
    "force_append_only",
    "on_error",
    "timeout",
    "pause_after",
    "take_over",
];
const FILE: [&str; 6] = [
    "path",
    "roll_size",
    "s3.region",
    "s3.endpoint",
    "s3.access_key",
    "s3.secret_key",
];
const POSTGRES: [&str; 10] = [
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "jdbc.url",
    "table.name",
    "schema.name",
    "sslmode",
    "sslrootcert",
];
const KAFKA: [&str; 3] = ["properties.bootstrap.server", "topic", "delivery"];

/// Options that must be positive numbers.
const NUMBERS: [&str; 3] = ["timeout", "pause_after", "roll_size"];
/// Options with a fixed set of values.
const CHOICES: [(&str, &[&str]); 6] = [
    ("type", &["append-only", "upsert"]),
    ("force_append_only", &["true", "false"]),
    ("take_over", &["true", "false"]),
    ("on_error", &["stop"]),
    ("delivery", &["exactly-once", "at-least-once"]),
    (
        "sslmode",
        &["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
    ),
];

fn bad(message: impl Into<String>) -> PlanError {
    PlanError::new("22023", message)
}

/// Checks the WITH options; answers the connector.
///
/// # Errors
/// 22023 for a missing, unknown or malformed option; 0A000 for a connector that is not built.
pub(super) fn check_options(options: &Options) -> Result<String> {
    let connector = options
        .get("connector")
        .ok_or_else(|| bad("option \"connector\" is missing").hint("Write WITH (connector = 'file', …)."))?;
    let own: &[&str] = match connector.as_str() {
        "blackhole" => &[],
        "file" => &FILE,
        "postgres" => &POSTGRES,
        "kafka" => &KAFKA,
        other => {
            return Err(
                PlanError::unsupported(format!("sink connector \"{other}\" is not supported"))
                    .hint("Use connector = 'file', 'kafka', 'postgres' or 'blackhole'."),
            );
        }
    };
    for (key, value) in options {
        let client = connector == "kafka" && key.starts_with("properties.");
        if !client && !COMMON.contains(&key.as_str()) && !own.contains(&key.as_str()) {
            let known: Vec<&str> = COMMON.iter().chain(own).copied().collect();
            return Err(bad(format!("unknown option \"{key}\" of connector {connector}"))
                .hint(format!("Known options are {}.", known.join(", "))));
        }
        check_value(key, value)?;
    }
    let required: &[&str] = match connector.as_str() {
        "file" => &["path"],
        "kafka" => &["properties.bootstrap.server", "topic"],
        "postgres" => &["table.name"],
        _ => &[],
    };
    if let Some(missing) = required.iter().find(|k| options.get(**k).is_none_or(String::is_empty)) {
        return Err(bad(format!("option \"{missing}\" of connector {connector} is missing")));
    }
    if connector == "postgres" {
        check_postgres(options)?;
    }
    Ok(connector.clone())
}

fn check_value(key: &str, value: &str) -> Result<()> {
    if let Some((_, choices)) = CHOICES.iter().find(|(k, _)| *k == key)
        && !choices.contains(&value)
    {
        return Err(bad(format!(
            "option \"{key}\" must be '{}', not \"{value}\"",
            choices.join("' or '")
        )));
    }
    if NUMBERS.contains(&key) && !value.parse::<f64>().is_ok_and(|n| n > 0.0 && n < 1e12) {
        let unit = if key == "roll_size" { "bytes" } else { "seconds" };
        return Err(bad(format!(
            "option \"{key}\" must be a positive number of {unit}, not \"{value}\""
        )));
    }
    if key == "roll_size" && value.parse::<u64>().is_err() {
        return Err(bad(format!(
            "option \"{key}\" must be a whole number of bytes, not \"{value}\""
        )));
    }
    if key == "port" && !value.parse::<u16>().is_ok_and(|p| p > 0) {
        return Err(bad(format!("option \"port\" must be a port number, not \"{value}\"")));
    }
    Ok(())
}

fn check_postgres(options: &Options) -> Result<()> {
    let url = options.contains_key("jdbc.url");
    let parts = ["host", "port", "dbname"];
    if let Some(both) = parts.iter().find(|k| url && options.contains_key(**k)) {
        return Err(bad(format!(
            "options \"jdbc.url\" and \"{both}\" cannot be given together"
        )));
    }
    if !url && !options.contains_key("host") {
        return Err(bad("option \"host\" of connector postgres is missing").hint(
            "Give host, port, user, password and dbname, or jdbc.url = 'jdbc:postgresql://host:port/database'.",
        ));
    }
    Ok(())
}

/// A sink's definition.
///
/// # Errors
/// The stream's changes do not fit the sink's type, format or key.
pub(super) fn define(s: &CreateSink, connector: String, sql: String, plan: StreamPlan) -> Result<SinkDef> {
    let schema = Arc::clone(&plan.root.schema);
    let mode = mode(&s.options, &plan.root.props)?;
    let key = key(&s.options, &connector, mode, &plan.root.props, &schema)?;
    let (format, encode) = formats(&connector, mode, s.format.as_ref())?;
    let encode_options = s.format.as_ref().map(|f| f.options.clone()).unwrap_or_default();
    check_encode_options(encode, &encode_options)?;
    check_columns(&connector, encode, &schema)?;
    Ok(SinkDef {
        sql,
        schema,
        plan,
        connector,
        options: s.options.clone(),
        format,
        encode,
        encode_options,
        key,
        mode,
        incarnation: 0,
    })
}

fn mode(options: &Options, props: &StreamProps) -> Result<SinkMode> {
    let forced = options.get("force_append_only").is_some_and(|v| v == "true");
    match options.get("type").map(String::as_str) {
        Some("append-only") if props.append_only => Ok(SinkMode::AppendOnly),
        Some("append-only") if forced => Ok(SinkMode::ForceAppendOnly),
        Some("append-only") => Err(PlanError::unsupported(
            "an append-only sink over rows that may be updated or deleted is not supported",
        )
        .hint("Use type = 'upsert', or force_append_only = 'true' to leave updates' old rows and deletions out.")),
        _ if forced => Err(bad("option \"force_append_only\" needs type = 'append-only'")),
        Some(_) => Ok(SinkMode::Upsert),
        None if props.append_only => Ok(SinkMode::AppendOnly),
        None => Ok(SinkMode::Upsert),
    }
}

fn key(
    options: &Options,
    connector: &str,
    mode: SinkMode,
    props: &StreamProps,
    schema: &SchemaRef,
) -> Result<Vec<usize>> {
    if let Some(names) = options.get("primary_key") {
        let key = named_key(names, schema)?;
        let unique = props.keys.iter().any(|k| k.iter().all(|c| key.contains(c)));
        if mode == SinkMode::Upsert && !unique {
            return Err(
                PlanError::unsupported(format!("primary_key = '{names}' cannot be shown to be unique"))
                    .hint("Take the columns of a GROUP BY, DISTINCT ON or primary key of the query."),
            );
        }
        return Ok(key);
    }
    if mode != SinkMode::Upsert {
        return Ok(Vec::new());
    }
    let derived = props.keys.iter().min_by_key(|k| k.len()).cloned().unwrap_or_default();
    if derived.is_empty() && matches!(connector, "postgres" | "kafka") {
        return Err(PlanError::unsupported(format!(
            "an upsert sink of connector {connector} over rows without a key is not supported"
        ))
        .hint("Give primary_key = 'a, b' with columns of a GROUP BY, DISTINCT ON or primary key of the query."));
    }
    Ok(derived)
}

fn named_key(names: &str, schema: &SchemaRef) -> Result<Vec<usize>> {
    let mut key = Vec::new();
    for name in names.split(',').map(str::trim) {
        let column = schema.fields().iter().position(|f| f.name() == name).ok_or_else(|| {
            PlanError::new(
                "42703",
                format!("column \"{name}\" named in primary_key does not exist"),
            )
        })?;
        if key.contains(&column) {
            return Err(PlanError::new(
                "42701",
                format!("column \"{name}\" appears twice in primary_key"),
            ));
        }
        key.push(column);
    }
    Ok(key)
}

fn formats(connector: &str, mode: SinkMode, clause: Option<&FormatClause>) -> Result<(SourceFormat, Encoding)> {
    let upsert = mode == SinkMode::Upsert;
    let Some(clause) = clause else {
        return Ok(match connector {
            "file" => (SourceFormat::Plain, Encoding::Json),
            "kafka" if upsert => (SourceFormat::Upsert, Encoding::Json),
            "kafka" => (SourceFormat::Plain, Encoding::Json),
            _ => (SourceFormat::Native, Encoding::Native),
        });
    };
    let made = match (connector, clause.format.as_str(), clause.encode.as_str()) {
        ("file", "plain", "json") => (SourceFormat::Plain, Encoding::Json),
        ("file", "plain", "csv") => (SourceFormat::Plain, Encoding::Csv),
        ("file", "plain", "parquet") => (SourceFormat::Plain, Encoding::Parquet),
        ("kafka", "plain", "json") => (SourceFormat::Plain, Encoding::Json),
        ("kafka", "plain", "csv") => (SourceFormat::Plain, Encoding::Csv),
        ("kafka", "upsert", "json") => (SourceFormat::Upsert, Encoding::Json),
        ("kafka", "debezium", "json") => (SourceFormat::Debezium, Encoding::Json),
        (_, format, encode) => {
            let possible = match connector {
                "file" => "Use FORMAT PLAIN ENCODE JSON, CSV or PARQUET.",
                "kafka" => {
                    "Use FORMAT PLAIN ENCODE JSON or CSV, FORMAT UPSERT ENCODE JSON or FORMAT DEBEZIUM ENCODE JSON."
                }
                _ => "Leave it out.",
            };
            return Err(PlanError::unsupported(format!(
                "FORMAT {} ENCODE {} of a {connector} sink is not supported",
                format.to_uppercase(),
                encode.to_uppercase()
            ))
            .hint(possible));
        }
    };
    if connector == "kafka" && upsert != (made.0 != SourceFormat::Plain) {
        let message = if upsert {
            "FORMAT PLAIN of a kafka sink needs rows that are never updated or deleted"
        } else {
            "FORMAT UPSERT and DEBEZIUM need a sink of type upsert"
        };
        return Err(PlanError::unsupported(message)
            .hint("Use FORMAT PLAIN with type = 'append-only', FORMAT UPSERT or DEBEZIUM with type = 'upsert'."));
    }
    Ok(made)
}

fn check_encode_options(encode: Encoding, options: &Options) -> Result<()> {
    for (key, value) in options {
        let known = encode == Encoding::Csv && key == "header";
        if !known {
            return Err(bad(format!("unknown ENCODE option \"{key}\"")).hint("ENCODE CSV takes header = 'true'."));
        }
        if !matches!(value.as_str(), "true" | "false") {
            return Err(bad(format!(
                "option \"{key}\" must be 'true' or 'false', not \"{value}\""
            )));
        }
    }
    Ok(())
}

fn check_columns(connector: &str, encode: Encoding, schema: &SchemaRef) -> Result<()> {
    for field in schema.fields() {
        if connector == "file" && field.name() == OP_COLUMN {
            return Err(PlanError::new(
                "42701",
                format!("column name \"{OP_COLUMN}\" conflicts with a file sink's own"),
            )
            .hint("Rename the column with AS."));
        }
        // Parquet has no such types, or would read them back as bytes.
        let lost = matches!(
            field.data_type(),
            DataType::Interval(_) | &TIMETZ | &UUID | &JSON | &JSONB
        );
        if encode == Encoding::Parquet && lost {
            return Err(PlanError::unsupported(format!(
                "column \"{}\" of type {} in Parquet is not supported",
                field.name(),
                base_name(field.data_type())
            ))
            .hint("Cast it to text."));
        }
    }
    Ok(())
}
