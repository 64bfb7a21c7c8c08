//! The extension grammar: streaming DDL and session commands, read with sqlparser's token cursor.

use sqlparser::ast::{Ident, ObjectName};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{IsOptional, Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::ast::{CreateSink, CreateView, Drop, DropKind, ExtStatement, FormatClause, QueryText, SinkInput};
use super::parse::{ParseContext, parse_one, sub_parser, tokenize};
use super::{Options, Parsed, feed};
use crate::{PlanError, Result};

/// Reads the statement if it is one of the extension grammar's; otherwise leaves the cursor at its start.
pub(super) fn parse(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<ExtStatement>> {
    if let Some(statement) = super::jobs::parse(p, cx)? {
        return Ok(Some(statement));
    }
    if let Some(definition) = super::alter::parse(p, cx)? {
        return Ok(Some(ExtStatement::Definition(Box::new(definition))));
    }
    if let Some((table, likes)) = super::table::parse_like(p, cx)? {
        return Ok(Some(ExtStatement::CreateTableLike(Box::new(table), likes)));
    }
    let words = Words::of(p);
    let first = words.get(0);
    let second = words.get(1);
    let statement = match (first, second) {
        ("create", _) => match super::create_as::create_as(p, cx)? {
            Some(statement) => statement,
            None => return create(p, cx, &words),
        },
        ("drop", _) => return drop(p, cx, &words),
        ("copy", _) => super::copy::copy(p, cx)?,
        ("explain", _) => return explain(p, cx).map(Some),
        ("prepare", "transaction") => return Err(unsupported_xact("PREPARE TRANSACTION")),
        ("prepare", _) => prepare(p, cx)?,
        ("execute", _) => execute(p, cx)?,
        ("set", _) => super::session::set(p, cx)?,
        ("show", _) => super::session::show(p, cx)?,
        ("reset", _) => super::session::reset(p, cx)?,
        ("begin", _) | ("start", "transaction") => super::session::begin(p, cx)?,
        ("commit", "prepared") | ("rollback", "prepared") => return Err(unsupported_xact("two-phase commit")),
        ("commit" | "end", _) => super::session::end(p, ExtStatement::Commit),
        ("rollback" | "abort", "to") => super::transactions::rollback_to(p, cx)?,
        ("rollback" | "abort", "transaction" | "work") if words.get(2) == "to" => {
            super::transactions::rollback_to(p, cx)?
        }
        ("rollback" | "abort", _) => super::session::end(p, ExtStatement::Rollback),
        ("savepoint" | "release", _) => super::transactions::savepoint(p, cx)?,
        ("truncate", _) => super::transactions::truncate(p, cx)?,
        ("lock", _) => super::transactions::lock(p, cx)?,
        ("declare", _) => super::cursors::declare(p, cx)?,
        ("fetch" | "move", _) => super::cursors::fetch(p, cx)?,
        ("close", _) => super::cursors::close(p, cx)?,
        ("merge", _) => super::merge::merge(p, cx)?,
        ("select" | "with" | "(" | "values", _) => return super::locking::select(p, cx),
        ("deallocate", _) => super::session::deallocate(p, cx)?,
        ("discard", _) => {
            skip(p, 2);
            ExtStatement::Discard(match second {
                "all" => "all",
                "temp" | "temporary" => "temp",
                "plans" => "plans",
                "sequences" => "sequences",
                _ => return Err(cx.error_here(p)),
            })
        }
        ("flush", "") => {
            skip(p, 1);
            ExtStatement::Flush
        }
        ("listen" | "unlisten", _) => {
            skip(p, 2);
            match first {
                "listen" => ExtStatement::NoOp("LISTEN"),
                _ => ExtStatement::NoOp("UNLISTEN"),
            }
        }
        _ => match refused(first, second) {
            Some((what, hint)) => {
                skip_all(p);
                ExtStatement::Unsupported {
                    what: what.to_owned(),
                    hint: hint.to_owned(),
                }
            }
            None => return Ok(None),
        },
    };
    Ok(Some(statement))
}

/// Lower-cased leading words of a statement; symbols read as themselves.
struct Words(Vec<String>);

impl Words {
    fn of(p: &Parser<'_>) -> Self {
        let words = (0..8)
            .map(|n| match &p.peek_nth_token_ref(n).token {
                Token::Word(w) if w.quote_style.is_none() => w.value.to_lowercase(),
                Token::EOF => String::new(),
                t => t.to_string(),
            })
            .collect();
        Self(words)
    }

    fn get(&self, n: usize) -> &str {
        self.0.get(n).map_or("", String::as_str)
    }
}

fn refused(first: &str, second: &str) -> Option<(&'static str, &'static str)> {
    Some(match (first, second) {
        ("alter", _) => ("this form of ALTER", "Drop the object and create it again."),
        ("notify", _) => ("NOTIFY", "Read the table or view again instead."),
        ("do", _) => ("DO", "Send the statements one by one."),
        ("call", _) => ("CALL", "Send the statements one by one."),
        _ => return None,
    })
}

fn unsupported_xact(what: &str) -> PlanError {
    PlanError::unsupported(format!("{what} is not supported")).hint("Use COMMIT.")
}

pub(super) fn skip(p: &mut Parser<'_>, n: usize) {
    for _ in 0..n {
        if p.peek_token().token != Token::EOF {
            p.next_token();
        }
    }
}

pub(super) fn skip_all(p: &mut Parser<'_>) {
    while p.peek_token().token != Token::EOF {
        p.next_token();
    }
}

fn create(p: &mut Parser<'_>, cx: &ParseContext<'_>, words: &Words) -> Result<Option<ExtStatement>> {
    let (or_replace, at) = if words.get(1) == "or" && words.get(2) == "replace" {
        (true, 3)
    } else {
        (false, 1)
    };
    let hint_no = |what: &str, hint: &str| -> Result<Option<ExtStatement>> {
        Err(PlanError::unsupported(format!("{what} is not supported")).hint(hint))
    };
    match words.get(at) {
        "view" => {
            skip(p, at + 1);
            create_view(p, cx, false, or_replace, false).map(Some)
        }
        "temp" | "temporary" if words.get(at + 1) == "view" => {
            skip(p, at + 2);
            create_view(p, cx, false, or_replace, true).map(Some)
        }
        "temp" | "temporary" if words.get(at + 1) == "table" => Ok(None),
        "materialized" if words.get(at + 1) == "view" => {
            if or_replace {
                return hint_no(
                    "CREATE OR REPLACE MATERIALIZED VIEW",
                    "Drop the view and create it again.",
                );
            }
            skip(p, at + 2);
            create_view(p, cx, true, false, false).map(Some)
        }
        "recursive" => hint_no("CREATE RECURSIVE VIEW", "Recursive queries are not supported."),
        "table" if !or_replace => feed::create_table(p, cx),
        "source" => {
            if or_replace {
                return hint_no("CREATE OR REPLACE SOURCE", "Drop the source and create it again.");
            }
            skip(p, at + 1);
            feed::create_source(p, cx).map(Some)
        }
        "sink" => {
            skip(p, at + 1);
            create_sink(p, cx).map(Some)
        }
        "unlogged" if words.get(at + 1) == "table" => Ok(None),
        "temp" | "temporary" if words.get(at + 1) == "sequence" => Ok(None),
        "temp" | "temporary" | "unlogged" => hint_no(
            &format!("CREATE {}", words.get(at).to_uppercase()),
            "Create an ordinary table or view and drop it after use.",
        ),
        "unique" | "index" => hint_no(
            "CREATE INDEX",
            "Create a materialized view with the wanted rows, or a PRIMARY KEY.",
        ),
        "database" => hint_no(
            "CREATE DATABASE",
            "There is one database, dev; start a second server for another.",
        ),
        "function" | "procedure" | "aggregate" => {
            hint_no("CREATE FUNCTION", "Write the expression in the query or in a view.")
        }
        "trigger" | "rule" => hint_no("CREATE TRIGGER", "Use a materialized view for derived data."),
        "type" | "domain" => hint_no("CREATE TYPE", "Use the built-in types."),
        "role" | "user" | "group" => hint_no("CREATE ROLE", "Any user name is accepted."),
        _ => Ok(None),
    }
}

fn if_not_exists(p: &mut Parser<'_>) -> bool {
    p.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS])
}

fn create_view(
    p: &mut Parser<'_>,
    cx: &ParseContext<'_>,
    materialized: bool,
    or_replace: bool,
    temporary: bool,
) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    let if_not_exists = materialized && if_not_exists(p);
    let name = p.parse_object_name(false).map_err(err)?;
    let columns = p
        .parse_parenthesized_column_list(IsOptional::Optional, false)
        .map_err(err)?;
    let options = with_options(p, cx)?;
    p.expect_keyword(Keyword::AS).map_err(err)?;
    let query = query_text(p, cx)?;
    let no_data = materialized && !super::jobs::with_data(p, cx)?;
    Ok(ExtStatement::CreateView(CreateView {
        materialized,
        or_replace,
        if_not_exists,
        temporary,
        name,
        columns,
        options,
        query,
        no_data,
    }))
}

fn create_sink(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    let if_not_exists = if_not_exists(p);
    let name = p.parse_object_name(false).map_err(err)?;
    let input = if p.parse_keyword(Keyword::FROM) {
        SinkInput::Relation(p.parse_object_name(false).map_err(err)?)
    } else {
        p.expect_keyword(Keyword::AS).map_err(err)?;
        SinkInput::Query(sink_query(p, cx)?)
    };
    let options = with_options(p, cx)?;
    let format = if word_is(p, "format") {
        Some(format_clause(p, cx)?)
    } else {
        None
    };
    Ok(ExtStatement::CreateSink(CreateSink {
        if_not_exists,
        name,
        input,
        options,
        format,
    }))
}

/// `FORMAT word ENCODE word [(options)]`.
pub(super) fn format_clause(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<FormatClause> {
    skip(p, 1);
    let format = option_key(p, cx)?;
    if !word_is(p, "encode") {
        return Err(cx.error_here(p));
    }
    skip(p, 1);
    let encode = option_key(p, cx)?;
    let options = if p.peek_token_ref().token == Token::LParen {
        parenthesized_options(p, cx)?
    } else {
        Options::new()
    };
    Ok(FormatClause {
        format,
        encode,
        options,
    })
}

/// A query that `WITH (options)` may follow. The grammar would take that for hints of the query's last table, so the query is read
/// from the tokens before it. A common table expression has a name after its WITH, never a parenthesis.
fn sink_query(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<QueryText> {
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    loop {
        let token = p.peek_nth_token(tokens.len());
        match &token.token {
            Token::EOF => return query_text(p, cx),
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Word(w)
                if depth == 0
                    && w.keyword == Keyword::WITH
                    && p.peek_nth_token(tokens.len() + 1).token == Token::LParen =>
            {
                break;
            }
            _ => {}
        }
        tokens.push(token);
    }
    let n_tokens = tokens.len();
    let end = cx.lines.offset(p.peek_nth_token(n_tokens).span.start);
    let mut inner = sub_parser(tokens);
    let query = query_text(&mut inner, cx)?;
    if inner.peek_token().token != Token::EOF {
        return Err(cx.error_here(&inner));
    }
    skip(p, n_tokens);
    let text: String = cx
        .text
        .chars()
        .skip(query.offset)
        .take(end.saturating_sub(query.offset))
        .collect();
    Ok(QueryText {
        text: text.trim_end().to_owned(),
        ..query
    })
}

pub(super) fn query_text(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<QueryText> {
    let offset = cx.lines.offset(p.peek_token().span.start);
    let mut query = p.parse_query().map_err(|e| cx.error(e))?;
    super::precedence::settle(&mut query)?;
    let end = match p.peek_token() {
        t if t.token == Token::EOF => usize::MAX,
        t => cx.lines.offset(t.span.start),
    };
    let text: String = cx.text.chars().skip(offset).take(end.saturating_sub(offset)).collect();
    Ok(QueryText {
        text: text.trim_end().to_owned(),
        offset,
        query,
    })
}

pub(super) fn word_is(p: &Parser<'_>, word: &str) -> bool {
    matches!(&p.peek_token_ref().token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// `WITH (key = value, …)`; keys are dotted words or quoted, values strings, numbers or words.
pub(super) fn with_options(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Options> {
    if !p.parse_keyword(Keyword::WITH) {
        return Ok(Options::new());
    }
    parenthesized_options(p, cx)
}

/// `(key = value, …)`.
pub(super) fn parenthesized_options(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Options> {
    let mut options = Options::new();
    if !p.consume_token(&Token::LParen) {
        return Err(cx.error_here(p));
    }
    if p.consume_token(&Token::RParen) {
        return Ok(options);
    }
    loop {
        let at = p.peek_token().span.start;
        let key = option_key(p, cx)?;
        if !p.consume_token(&Token::Eq) {
            return Err(cx.error_here(p));
        }
        let value = option_value(p, cx)?;
        if options.insert(key.clone(), value).is_some() {
            return Err(PlanError::new("42601", format!("option \"{key}\" is given twice")).at(cx.lines.offset(at) + 1));
        }
        if p.consume_token(&Token::RParen) {
            return Ok(options);
        }
        if !p.consume_token(&Token::Comma) {
            return Err(cx.error_here(p));
        }
    }
}

pub(super) fn option_key(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<String> {
    let mut key = String::new();
    loop {
        match &p.peek_token_ref().token {
            Token::Word(w) => key.push_str(&w.value.to_lowercase()),
            Token::SingleQuotedString(s) => key.push_str(&s.to_lowercase()),
            _ => return Err(cx.error_here(p)),
        }
        p.next_token();
        if !p.consume_token(&Token::Period) {
            return Ok(key);
        }
        key.push('.');
    }
}

pub(super) fn option_value(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<String> {
    let sign = if p.consume_token(&Token::Minus) { "-" } else { "" };
    let value = match &p.peek_token_ref().token {
        Token::Word(w) => w.value.clone(),
        Token::SingleQuotedString(s) | Token::EscapedStringLiteral(s) => s.clone(),
        Token::Number(n, _) => format!("{sign}{n}"),
        _ => return Err(cx.error_here(p)),
    };
    p.next_token();
    Ok(value)
}

fn drop(p: &mut Parser<'_>, cx: &ParseContext<'_>, words: &Words) -> Result<Option<ExtStatement>> {
    let (kind, n) = match (words.get(1), words.get(2)) {
        ("table", _) => (DropKind::Table, 2),
        ("source", _) => (DropKind::Source, 2),
        ("view", _) => (DropKind::View, 2),
        ("sink", _) => (DropKind::Sink, 2),
        ("materialized", "view") => (DropKind::MaterializedView, 3),
        ("sequence", _) => (DropKind::Sequence, 2),
        ("index", _) => (DropKind::Index, 2),
        (
            what @ ("database" | "function" | "type" | "role" | "user" | "extension" | "trigger" | "domain" | "owned"
            | "procedure" | "aggregate"),
            _,
        ) => {
            return Err(
                PlanError::unsupported(format!("DROP {} is not supported", what.to_uppercase()))
                    .hint("There are tables, views, materialized views, sources and sinks."),
            );
        }
        _ => return Ok(None),
    };
    skip(p, n);
    let if_exists = p.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let names = p
        .parse_comma_separated(|p| p.parse_object_name(false))
        .map_err(|e| cx.error(e))?;
    let cascade = p.parse_keyword(Keyword::CASCADE);
    if !cascade {
        let _noise = p.parse_keyword(Keyword::RESTRICT);
    }
    Ok(Some(ExtStatement::Drop(Drop {
        kind,
        if_exists,
        names,
        cascade,
    })))
}

fn explain(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    let (mut analyze, mut stream) = (false, false);
    if p.consume_token(&Token::LParen) {
        loop {
            let key = option_key(p, cx)?;
            let value = match p.peek_token().token {
                Token::Comma | Token::RParen => None,
                _ => Some(option_value(p, cx)?.to_lowercase()),
            };
            let on = !matches!(value.as_deref(), Some("false" | "off" | "0"));
            match key.as_str() {
                "analyze" => analyze = on,
                "stream" => stream = on,
                "format" if value.as_deref() != Some("text") => {
                    return Err(PlanError::unsupported(
                        "EXPLAIN formats other than text are not supported",
                    ));
                }
                "format" | "verbose" | "costs" | "buffers" | "timing" | "summary" | "settings" | "wal" => {}
                _ => {
                    return Err(PlanError::new(
                        "42601",
                        format!("unrecognized EXPLAIN option \"{key}\""),
                    ));
                }
            }
            if p.consume_token(&Token::RParen) {
                break;
            }
            if !p.consume_token(&Token::Comma) {
                return Err(cx.error_here(p));
            }
        }
    } else {
        analyze = p.parse_keyword(Keyword::ANALYZE);
        let _noise = p.parse_keyword(Keyword::VERBOSE);
    }
    let statement = nested(p, cx)?;
    Ok(ExtStatement::Explain {
        analyze,
        stream,
        statement,
    })
}

/// The rest of the text as a statement of its own.
fn nested(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Box<Parsed>> {
    let next = p.peek_token();
    if next.token == Token::EOF {
        return Err(cx.error_here(p));
    }
    let from = cx.lines.offset(next.span.start);
    let text: String = cx.text.chars().skip(from).collect();
    let tokens = tokenize(&text)?;
    let parsed = parse_one(&text, &tokens, from).map_err(|mut e| {
        e.position = e.position.map(|at| at + from);
        e
    })?;
    skip_all(p);
    Ok(Box::new(parsed))
}

fn prepare(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    skip(p, 1);
    let name = fold(&p.parse_identifier().map_err(err)?);
    let mut types = Vec::new();
    if p.consume_token(&Token::LParen) {
        types = p.parse_comma_separated(Parser::parse_data_type).map_err(err)?;
        p.expect_token(&Token::RParen).map_err(err)?;
    }
    p.expect_keyword(Keyword::AS).map_err(err)?;
    let statement = nested(p, cx)?;
    Ok(ExtStatement::Prepare { name, types, statement })
}

fn execute(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    skip(p, 1);
    let name = fold(&p.parse_identifier().map_err(err)?);
    let mut args = Vec::new();
    if p.consume_token(&Token::LParen) {
        args = p
            .parse_comma_separated0(Parser::parse_expr, Token::RParen)
            .map_err(err)?;
        p.expect_token(&Token::RParen).map_err(err)?;
    }
    Ok(ExtStatement::Execute { name, args })
}

/// An identifier as PostgreSQL stores it: folded unless quoted.
pub(super) fn fold(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    }
}

/// The schema (if any) and name of an object name.
pub(super) fn object_name(name: &ObjectName) -> Result<(Option<String>, String)> {
    let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
    match parts.as_slice() {
        [n] => Ok((None, n.clone())),
        [s, n] => Ok((Some(s.clone()), n.clone())),
        [_, s, n] => Ok((Some(s.clone()), n.clone())),
        _ => Err(PlanError::new(
            "42601",
            format!("improper qualified name (too many dotted names): {name}"),
        )),
    }
}
