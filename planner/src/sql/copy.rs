//! COPY's options.

use super::CopyFrom;
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// Reads the options of COPY FROM.
///
/// # Errors
/// 42601 for an unknown or repeated option, 22023 and 0A000 for values that PostgreSQL refuses or Levee does not support.
pub(super) fn options(table: ObjectId, columns: Vec<usize>, given: &[(String, Option<String>)]) -> Result<CopyFrom> {
    let mut seen: Vec<&str> = Vec::new();
    let get = |name: &str| given.iter().find(|(k, _)| k == name);
    for (key, value) in given {
        if seen.contains(&key.as_str()) {
            return Err(PlanError::new("42601", "conflicting or redundant options"));
        }
        seen.push(key);
        match (key.as_str(), value.as_deref()) {
            ("format", Some("csv" | "text")) | ("header" | "delimiter" | "null" | "quote" | "escape", _) => {}
            ("freeze", _) => {}
            ("encoding", Some(e)) if e.eq_ignore_ascii_case("utf8") || e.eq_ignore_ascii_case("utf-8") => {}
            ("encoding", _) => {
                return Err(PlanError::unsupported(
                    "COPY encodings other than UTF8 are not supported",
                ));
            }
            ("format", Some("binary")) => {
                return Err(
                    PlanError::unsupported("COPY format binary is not supported").hint("Use FORMAT csv or text.")
                );
            }
            ("format", Some(f)) => return Err(PlanError::new("22023", format!("COPY format \"{f}\" not recognized"))),
            ("force_null" | "force_not_null" | "force_quote", _) => {
                return Err(PlanError::unsupported(format!("COPY option {key} is not supported")));
            }
            _ => return Err(PlanError::new("42601", format!("option \"{key}\" not recognized"))),
        }
    }
    let csv = matches!(get("format"), Some((_, Some(f))) if f == "csv");
    let header = match get("header") {
        None => false,
        Some((_, None)) => true,
        Some((_, Some(v))) => match v.to_lowercase().as_str() {
            "true" | "on" | "1" | "match" => true,
            "false" | "off" | "0" => false,
            _ => return Err(PlanError::new("42601", "header requires a Boolean value or \"match\"")),
        },
    };
    let byte = |name: &str, default: u8| -> Result<u8> {
        match get(name) {
            None => Ok(default),
            Some((_, Some(v))) if v.len() == 1 => Ok(v.as_bytes()[0]),
            Some(_) => Err(PlanError::new(
                "0A000",
                format!("COPY {name} must be a single one-byte character"),
            )),
        }
    };
    if !csv {
        for name in ["quote", "escape"] {
            if get(name).is_some() {
                return Err(PlanError::new(
                    "0A000",
                    format!("COPY {name} available only in CSV mode"),
                ));
            }
        }
    }
    let delimiter = byte("delimiter", if csv { b',' } else { b'\t' })?;
    let quote = byte("quote", b'"')?;
    let escape = byte("escape", quote)?;
    if matches!(delimiter, b'\n' | b'\r' | b'\\') && !csv {
        return Err(PlanError::new(
            "22023",
            "COPY delimiter cannot be newline or carriage return",
        ));
    }
    if csv && delimiter == quote {
        return Err(PlanError::new("22023", "COPY delimiter and quote must be different"));
    }
    let null = match get("null") {
        Some((_, Some(n))) => n.clone(),
        _ if csv => String::new(),
        _ => "\\N".to_owned(),
    };
    Ok(CopyFrom {
        table,
        columns,
        csv,
        header,
        delimiter,
        null,
        quote,
        escape,
    })
}
