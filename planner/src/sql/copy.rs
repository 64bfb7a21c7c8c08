//! COPY FROM STDIN: its grammar and options.

use sqlparser::keywords::Keyword;
use sqlparser::parser::{IsOptional, Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::CopyFrom;
use super::ast::{Copy, ExtStatement};
use super::ext::{option_key, option_value, skip, word_is};
use super::parse::ParseContext;
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

/// Reads the statement.
pub(super) fn copy(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    skip(p, 1);
    if p.peek_token().token == Token::LParen {
        return Err(PlanError::unsupported("COPY (query) TO is not supported")
            .hint("Run the SELECT; psql's \\copy … TO needs COPY TO, use \\g with csv output instead."));
    }
    let table = p.parse_object_name(false).map_err(err)?;
    let columns = p
        .parse_parenthesized_column_list(IsOptional::Optional, false)
        .map_err(err)?;
    if p.parse_keyword(Keyword::TO) {
        return Err(PlanError::unsupported("COPY TO is not supported")
            .hint("Use SELECT; psql prints CSV with \\pset format csv."));
    }
    p.expect_keyword(Keyword::FROM).map_err(err)?;
    if !word_is(p, "stdin") {
        return Err(
            PlanError::unsupported("COPY FROM a file or program on the server is not supported")
                .hint("Use COPY … FROM STDIN, or psql's \\copy."),
        );
    }
    skip(p, 1);
    let options = copy_options(p, cx)?;
    if word_is(p, "where") {
        return Err(PlanError::unsupported("COPY … WHERE is not supported")
            .hint("Copy into another table and use INSERT … SELECT."));
    }
    Ok(ExtStatement::Copy(Copy {
        table,
        columns,
        options,
    }))
}

/// `WITH (FORMAT csv, …)` or the old `CSV HEADER DELIMITER ','`.
fn copy_options(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Vec<(String, Option<String>)>> {
    let mut options = Vec::new();
    let _noise = p.parse_keyword(Keyword::WITH);
    if p.consume_token(&Token::LParen) {
        loop {
            let key = option_key(p, cx)?;
            let value = match p.peek_token().token {
                Token::Comma | Token::RParen => None,
                _ => Some(option_value(p, cx)?),
            };
            options.push((key, value));
            if p.consume_token(&Token::RParen) {
                return Ok(options);
            }
            if !p.consume_token(&Token::Comma) {
                return Err(cx.error_here(p));
            }
        }
    }
    while let Token::Word(w) = p.peek_token().token {
        let word = w.value.to_lowercase();
        match word.as_str() {
            "csv" | "binary" => {
                skip(p, 1);
                options.push(("format".into(), Some(word)));
            }
            "header" | "freeze" => {
                skip(p, 1);
                options.push((word, None));
            }
            "delimiter" | "null" | "quote" | "escape" | "encoding" => {
                skip(p, 1);
                let _noise = p.parse_keyword(Keyword::AS);
                options.push((word, Some(option_value(p, cx)?)));
            }
            _ => break,
        }
    }
    Ok(options)
}
