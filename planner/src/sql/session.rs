//! SET, SHOW, RESET, transaction control, DEALLOCATE: what drivers send around queries.

use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::ast::ExtStatement;
use super::ext::skip;
use super::parse::ParseContext;
use crate::{PlanError, Result};

/// `SET [SESSION|LOCAL] name {=|TO} value`, `SET TIME ZONE …`, `SET [SESSION CHARACTERISTICS AS] TRANSACTION …`, `SET NAMES …`.
pub(super) fn set(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    let mut local = false;
    if let Some(scope) = word(p)
        && (scope == "session" || scope == "local")
        && !matches!(p.peek_nth_token(1).token, Token::Eq)
    {
        local = scope == "local";
        skip(p, 1);
    }
    let first = word(p).ok_or_else(|| cx.error_here(p))?;
    let second = word_at(p, 1);
    match (first.as_str(), second.as_deref()) {
        ("time", Some("zone")) => {
            skip(p, 2);
            let value = time_zone(p, cx)?;
            return Ok(setting("timezone", value, local));
        }
        ("characteristics", Some("as")) => {
            skip(p, 3);
            let (_, isolation) = modes(p, cx)?;
            return Ok(setting("default_transaction_isolation", isolation, false));
        }
        ("transaction", Some("isolation" | "read" | "not" | "deferrable")) => {
            skip(p, 1);
            let (read_only, isolation) = modes(p, cx)?;
            return Ok(match isolation {
                Some(level) => setting("transaction_isolation", Some(level), true),
                None => setting(
                    "transaction_read_only",
                    Some(if read_only { "on" } else { "off" }.into()),
                    true,
                ),
            });
        }
        ("transaction", Some("snapshot")) => {
            return Err(PlanError::unsupported("SET TRANSACTION SNAPSHOT is not supported"));
        }
        ("names", _) => {
            skip(p, 1);
            let value = values(p, cx)?;
            return Ok(setting("client_encoding", value, local));
        }
        ("authorization", _) => {
            skip(p, 1);
            let value = values(p, cx)?;
            return Ok(setting("session_authorization", value, local));
        }
        ("role", Some(v)) if v != "=" => {
            skip(p, 1);
            let value = values(p, cx)?;
            return Ok(setting("role", value, local));
        }
        ("constraints", _) => {
            while p.peek_token().token != Token::EOF {
                skip(p, 1);
            }
            return Ok(ExtStatement::NoOp("SET CONSTRAINTS"));
        }
        _ => {}
    }
    let name = name(p, cx)?;
    if !p.consume_token(&Token::Eq) {
        if word(p).as_deref() != Some("to") {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
    }
    let value = if name == "search_path" {
        schema_list(p, cx)?
    } else {
        values(p, cx)?
    };
    Ok(setting(&name, value, local))
}

fn setting(name: &str, value: Option<String>, local: bool) -> ExtStatement {
    ExtStatement::Set {
        name: name.to_owned(),
        value,
        local,
    }
}

fn word(p: &Parser<'_>) -> Option<String> {
    word_at(p, 0)
}

fn word_at(p: &Parser<'_>, n: usize) -> Option<String> {
    match &p.peek_nth_token_ref(n).token {
        Token::Word(w) => Some(w.value.to_lowercase()),
        Token::Eq => Some("=".into()),
        _ => None,
    }
}

fn name(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<String> {
    let mut name = String::new();
    loop {
        match &p.peek_token_ref().token {
            Token::Word(w) => name.push_str(&w.value.to_lowercase()),
            _ => return Err(cx.error_here(p)),
        }
        skip(p, 1);
        if !p.consume_token(&Token::Period) {
            return Ok(name);
        }
        name.push('.');
    }
}

/// A comma-separated list as one text; `None` for DEFAULT.
fn values(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<String>> {
    let mut list = Vec::new();
    loop {
        let sign = if p.consume_token(&Token::Minus) {
            "-"
        } else {
            let _noise = p.consume_token(&Token::Plus);
            ""
        };
        let text = match &p.peek_token_ref().token {
            Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("default") => None,
            Token::Word(w) if w.quote_style.is_none() => Some(w.value.to_lowercase()),
            Token::Word(w) => Some(w.value.clone()),
            Token::SingleQuotedString(s) | Token::EscapedStringLiteral(s) => Some(s.clone()),
            Token::Number(n, _) => Some(format!("{sign}{n}")),
            _ => return Err(cx.error_here(p)),
        };
        skip(p, 1);
        match text {
            None => return Ok(None),
            Some(t) => list.push(t),
        }
        if !p.consume_token(&Token::Comma) {
            return Ok(Some(list.join(", ")));
        }
    }
}

/// The value of `search_path`: names, quoted where they need it.
fn schema_list(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<String>> {
    let mut list = Vec::new();
    loop {
        let name = match &p.peek_token_ref().token {
            Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("default") => None,
            Token::Word(w) if w.quote_style.is_none() => Some(w.value.to_lowercase()),
            Token::Word(w) => Some(w.value.clone()),
            Token::SingleQuotedString(s) | Token::EscapedStringLiteral(s) => Some(s.clone()),
            _ => return Err(cx.error_here(p)),
        };
        skip(p, 1);
        let Some(name) = name else { return Ok(None) };
        let plain = name
            .bytes()
            .enumerate()
            .all(|(i, b)| b == b'_' || b.is_ascii_lowercase() || (i > 0 && b.is_ascii_digit()));
        list.push(if plain && !name.is_empty() {
            name
        } else {
            format!("\"{}\"", name.replace('"', "\"\""))
        });
        if !p.consume_token(&Token::Comma) {
            return Ok(Some(list.join(", ")));
        }
    }
}

fn time_zone(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<String>> {
    if word(p).as_deref() == Some("local") {
        skip(p, 1);
        return Ok(None);
    }
    if word(p).as_deref() == Some("interval") {
        skip(p, 1);
        let value = values(p, cx)?;
        while p.peek_token().token != Token::EOF {
            skip(p, 1);
        }
        return Ok(value);
    }
    values(p, cx)
}

/// `SHOW name`, `SHOW TIME ZONE`, `SHOW TRANSACTION ISOLATION LEVEL`, `SHOW ALL`.
pub(super) fn show(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    Ok(ExtStatement::Show(setting_name(p, cx)?))
}

/// `RESET name`, `RESET ALL`.
pub(super) fn reset(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    Ok(ExtStatement::Reset(setting_name(p, cx)?))
}

fn setting_name(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<String>> {
    let (first, second) = (word(p), word_at(p, 1));
    let (count, name) = match (first.as_deref(), second.as_deref()) {
        (Some("all"), _) => (1, None),
        (Some("time"), Some("zone")) => (2, Some("timezone")),
        (Some("transaction"), Some("isolation")) => (3, Some("transaction_isolation")),
        (Some("session"), Some("authorization")) => (2, Some("session_authorization")),
        _ => return name_of(p, cx),
    };
    skip(p, count);
    Ok(name.map(str::to_owned))
}

fn name_of(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<String>> {
    name(p, cx).map(Some)
}

/// `BEGIN`, `START TRANSACTION` with modes.
pub(super) fn begin(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    if matches!(word(p).as_deref(), Some("transaction" | "work")) {
        skip(p, 1);
    }
    let (read_only, isolation) = modes(p, cx)?;
    Ok(ExtStatement::Begin { read_only, isolation })
}

fn modes(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<(bool, Option<String>)> {
    let (mut read_only, mut isolation) = (false, None);
    loop {
        let _noise = p.consume_token(&Token::Comma);
        let words = [word_at(p, 0), word_at(p, 1), word_at(p, 2), word_at(p, 3)];
        let words: Vec<&str> = words.iter().map(|w| w.as_deref().unwrap_or("")).collect();
        let count = match words.as_slice() {
            ["isolation", "level", "serializable", ..] => {
                isolation = Some("serializable".to_owned());
                3
            }
            [
                "isolation",
                "level",
                level @ ("repeatable" | "read"),
                kind @ ("read" | "committed" | "uncommitted"),
            ] => {
                isolation = Some(format!("{level} {kind}"));
                4
            }
            ["read", "only", ..] => {
                read_only = true;
                2
            }
            ["read", "write", ..] => {
                read_only = false;
                2
            }
            ["not", "deferrable", ..] => 2,
            ["deferrable", ..] => 1,
            ["", ..] => return Ok((read_only, isolation)),
            _ => return Err(cx.error_here(p)),
        };
        skip(p, count);
    }
}

/// COMMIT and ROLLBACK with their noise words.
pub(super) fn end(p: &mut Parser<'_>, statement: ExtStatement) -> ExtStatement {
    skip(p, 1);
    if matches!(word(p).as_deref(), Some("transaction" | "work")) {
        skip(p, 1);
    }
    if word(p).as_deref() == Some("and") && word_at(p, 1).as_deref() == Some("no") {
        skip(p, 3);
    }
    statement
}

/// `DEALLOCATE [PREPARE] {name | ALL}`.
pub(super) fn deallocate(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    if word(p).as_deref() == Some("prepare") && word_at(p, 1).is_some() {
        skip(p, 1);
    }
    match &p.peek_token_ref().token {
        Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("all") => {
            skip(p, 1);
            Ok(ExtStatement::Deallocate(None))
        }
        _ => {
            let ident = p.parse_identifier().map_err(|e| cx.error(e))?;
            Ok(ExtStatement::Deallocate(Some(super::ext::fold(&ident))))
        }
    }
}
