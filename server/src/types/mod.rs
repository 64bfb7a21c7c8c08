//! PostgreSQL's external forms of values: text and binary, in and out.
//!
//! Each file knows one family of types. [`encode`] turns whole batches into DataRow messages, [`input`] turns fields of COPY,
//! parameters and literals into Arrow builders. The judge for every form is PostgreSQL 15.

pub mod datetime;
pub mod encode;
pub mod float;
pub mod input;
pub mod interval;
pub mod numeric;
pub mod zone;

use crate::error::SqlError;

/// 22P02, in PostgreSQL's words.
pub fn invalid_syntax(type_name: &str, text: &str) -> SqlError {
    SqlError::new(
        "22P02",
        format!("invalid input syntax for type {type_name}: \"{text}\""),
    )
}

/// 22003, in PostgreSQL's words.
pub fn out_of_range(type_name: &str, text: &str) -> SqlError {
    SqlError::new(
        "22003",
        format!("value \"{text}\" is out of range for type {type_name}"),
    )
}

/// White space as PostgreSQL's input functions skip it.
pub fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}
