//! Options in parentheses after ENCODE.

use std::collections::BTreeMap;

use super::Reader;
use crate::catalog::Encoding;
use crate::{PlanError, Result};

/// What a number for a timestamp counts, from 1970 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberUnit {
    /// Seconds.
    Second,
    /// Milliseconds.
    Millisecond,
    /// Microseconds.
    Microsecond,
    /// Nanoseconds.
    Nanosecond,
}

/// `invalid.values`: whether a value that is none of its column's type is NULL; otherwise its record fails. Keys and columns that are NOT
/// NULL fail either way.
const INVALID: &str = "invalid.values";

fn null_for_invalid(reader: &Reader<'_>) -> Result<bool> {
    Ok(reader.word(INVALID, &["error", "null"])? == Some(1))
}

/// Options that ALTER … SET may change: they say what a record's fields mean, not where a record ends.
pub fn changeable(encode: Encoding) -> &'static [&'static str] {
    match encode {
        Encoding::Json => &["timestamp.unit", INVALID],
        Encoding::Csv => &["delimiter", "null", INVALID],
        Encoding::Parquet | Encoding::Native => &[],
    }
}

/// Options of ENCODE JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// `timestamp.unit`: how a number for a timestamp is read; without it, such a record fails.
    pub timestamp_unit: Option<NumberUnit>,
    /// `invalid.values`.
    pub null_for_invalid: bool,
}

impl JsonOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 22023 for an unknown or malformed option.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        const KNOWN: [&str; 2] = ["timestamp.unit", INVALID];
        let reader = Reader::new("ENCODE JSON", options);
        reader.only(&KNOWN, |k| KNOWN.contains(&k))?;
        let unit = reader.word("timestamp.unit", &["s", "ms", "us", "ns"])?;
        let units = [
            NumberUnit::Second,
            NumberUnit::Millisecond,
            NumberUnit::Microsecond,
            NumberUnit::Nanosecond,
        ];
        Ok(Self {
            timestamp_unit: unit.and_then(|u| units.get(u).copied()),
            null_for_invalid: null_for_invalid(&reader)?,
        })
    }
}

/// Options of ENCODE CSV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOptions {
    /// `header`: the first line of each file names the columns and is passed over.
    pub header: bool,
    /// `delimiter`.
    pub delimiter: u8,
    /// `quote`.
    pub quote: u8,
    /// `escape`: stands before a quote or escape inside quotes; the quote itself if not given.
    pub escape: u8,
    /// `null`: an unquoted field of this text is NULL; empty if not given.
    pub null: String,
    /// `invalid.values`.
    pub null_for_invalid: bool,
}

impl CsvOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 22023 for an unknown or malformed option, or marks that contradict each other.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        const KNOWN: [&str; 7] = [
            "header",
            "without_header",
            "delimiter",
            "quote",
            "escape",
            "null",
            INVALID,
        ];
        let reader = Reader::new("ENCODE CSV", options);
        reader.only(&KNOWN, |k| KNOWN.contains(&k))?;
        let without = reader.boolean("without_header")?;
        let header = match (reader.boolean("header")?, without) {
            (Some(_), Some(_)) => {
                return Err(
                    PlanError::new("22023", "options \"header\" and \"without_header\" say the same thing")
                        .hint("Give one of them."),
                );
            }
            (Some(header), None) => header,
            (None, without) => without.is_some_and(|w| !w),
        };
        let delimiter = reader.character("delimiter")?.unwrap_or(b',');
        let quote = reader.character("quote")?.unwrap_or(b'"');
        let escape = reader.character("escape")?.unwrap_or(quote);
        if delimiter == quote || delimiter == escape {
            return Err(PlanError::new("22023", "CSV delimiter and quote must be different"));
        }
        let null = reader.text("null").unwrap_or_default().to_owned();
        if null
            .bytes()
            .any(|b| b == delimiter || b == quote || b == b'\n' || b == b'\r')
        {
            return Err(reader.malformed("null", "It has no delimiter, quote or line break in it."));
        }
        Ok(Self {
            header,
            delimiter,
            quote,
            escape,
            null,
            null_for_invalid: null_for_invalid(&reader)?,
        })
    }
}

/// For encodings without options.
///
/// # Errors
/// 22023: there is one.
pub fn no_options(encoding: &str, options: &BTreeMap<String, String>) -> Result<()> {
    Reader::new(&format!("ENCODE {encoding}"), options).only(&[], |_| false)
}
