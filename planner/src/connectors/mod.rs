//! What sources' connectors know before anything runs: their options, which formats they take, and the columns that they have of
//! themselves.
//!
//! CREATE SOURCE checks every option here, so that a misspelt one is an error at once. The runtime reads the same options with the
//! same readers ([`file::FileOptions`], [`datagen::DatagenOptions`], [`encode`]), so the two cannot drift apart.

pub mod datagen;
pub mod encode;
pub mod file;
pub mod kafka;
pub mod nexmark;
mod options;
pub mod secrets;
#[cfg(test)]
mod tests;

use arrow::datatypes::DataType;

use crate::catalog::{Encoding, Include, SourceDef, SourceFormat};
use crate::sql::types;
use crate::{PlanError, Result};

pub use options::Reader;

/// The connectors that a source can have.
pub const CONNECTORS: [&str; 4] = ["kafka", "file", "datagen", "nexmark"];

/// Whether the connector makes its own rows: FORMAT and ENCODE say nothing about it.
pub fn is_generator(connector: &str) -> bool {
    matches!(connector, "datagen" | "nexmark")
}

/// Checks the connector's name.
///
/// # Errors
/// 22023 if it is missing or unknown.
pub fn check_name(connector: Option<&str>) -> Result<&str> {
    let list = || {
        let names: Vec<String> = CONNECTORS.iter().map(|c| format!("'{c}'")).collect();
        format!("Write WITH (connector = …, …) with one of {}.", names.join(", "))
    };
    match connector {
        None => Err(PlanError::new("22023", "option \"connector\" is missing").hint(list())),
        Some(name) if CONNECTORS.contains(&name) => Ok(name),
        Some(name) => Err(PlanError::new("22023", format!("unknown connector \"{name}\" for a source")).hint(list())),
    }
}

/// The type of the column that shows a part of a record's envelope, where the statement gives none.
pub fn include_type(include: &Include, connector: &str) -> DataType {
    match include {
        Include::Key | Include::Header(Some(_)) => DataType::Binary,
        Include::Partition if connector == "kafka" => DataType::Int32,
        Include::Partition | Include::Header(None) => DataType::Utf8,
        Include::Offset => DataType::Int64,
        Include::Timestamp => types::timestamptz(),
    }
}

/// Checks everything about a source that its connector and its formats decide.
///
/// # Errors
/// 22023 for an unknown, missing or malformed option, 0A000 for a combination that is not supported.
pub fn check(def: &SourceDef) -> Result<()> {
    check_name(Some(&def.connector))?;
    check_format(def)?;
    check_columns(def)?;
    match def.encode {
        Encoding::Json => {
            encode::JsonOptions::parse(&def.encode_options)?;
        }
        Encoding::Csv => {
            encode::CsvOptions::parse(&def.encode_options)?;
        }
        Encoding::Parquet => encode::no_options("PARQUET", &def.encode_options)?,
        Encoding::Native => {}
    }
    match def.connector.as_str() {
        "kafka" => kafka::check(&def.options),
        "file" => file::FileOptions::parse(&def.options).map(drop),
        "datagen" => datagen::DatagenOptions::parse(&def.options, &def.schema).map(drop),
        _ => nexmark::check(&def.options),
    }
}

fn check_format(def: &SourceDef) -> Result<()> {
    let connector = def.connector.as_str();
    let refuse = |what: &str, hint: &str| {
        Err(PlanError::unsupported(format!("{what} is not supported with connector \"{connector}\"")).hint(hint))
    };
    match (connector, def.format, def.encode) {
        ("kafka", _, Encoding::Native) => Err(PlanError::new("42601", "a kafka source needs FORMAT and ENCODE")
            .hint("Write FORMAT PLAIN ENCODE JSON after the options.")),
        ("file", _, Encoding::Native) => Err(PlanError::new("42601", "a file source needs FORMAT and ENCODE")
            .hint("Write FORMAT PLAIN ENCODE JSON, CSV or PARQUET after the options.")),
        ("kafka", _, Encoding::Parquet) => refuse("ENCODE PARQUET", "Use ENCODE JSON or CSV."),
        ("file", SourceFormat::Upsert | SourceFormat::Debezium, _) => refuse(
            "FORMAT UPSERT or DEBEZIUM",
            "Use FORMAT PLAIN; lines of a file have no keys.",
        ),
        (_, SourceFormat::Debezium, Encoding::Csv) => refuse("FORMAT DEBEZIUM ENCODE CSV", "Use ENCODE JSON."),
        (_, SourceFormat::Upsert | SourceFormat::Debezium, _) if def.key.is_empty() => {
            Err(PlanError::new("42601", "FORMAT UPSERT and DEBEZIUM need a PRIMARY KEY")
                .hint("Add PRIMARY KEY (column, …) to the column list."))
        }
        _ => Ok(()),
    }
}

fn check_columns(def: &SourceDef) -> Result<()> {
    if def.schema.fields().is_empty() {
        return Err(
            PlanError::new("42601", "a source needs columns").hint("List them after the name: (column type, …).")
        );
    }
    if def.includes.len() == def.schema.fields().len() {
        return Err(PlanError::new(
            "42601",
            "a source needs a column besides the included ones",
        ));
    }
    for (column, include) in &def.includes {
        let connector = def.connector.as_str();
        let known = match connector {
            "kafka" => true,
            "file" => matches!(include, Include::Partition | Include::Offset),
            _ => false,
        };
        if !known {
            let word = include_word(include);
            return Err(PlanError::unsupported(format!(
                "INCLUDE {word} is not supported with connector \"{connector}\""
            ))
            .hint(match connector {
                "file" => "A file source has INCLUDE partition (the file's path) and INCLUDE offset.",
                _ => "Leave it out.",
            }));
        }
        let field = def.schema.field(*column);
        let wanted = include_type(include, connector);
        let text = matches!(include, Include::Key | Include::Header(Some(_))) && field.data_type() == &DataType::Utf8;
        if field.data_type() != &wanted && !text {
            return Err(PlanError::new(
                "42804",
                format!(
                    "column \"{}\" of INCLUDE {} is of type {}",
                    field.name(),
                    include_word(include),
                    types::base_name(&wanted)
                ),
            ));
        }
    }
    Ok(())
}

/// The word for it in SQL.
pub fn include_word(include: &Include) -> &'static str {
    match include {
        Include::Key => "key",
        Include::Partition => "partition",
        Include::Offset => "offset",
        Include::Timestamp => "timestamp",
        Include::Header(_) => "header",
    }
}
