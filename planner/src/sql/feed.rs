//! The grammar of what feeds a source, or a table with a connector:
//!
//! ```text
//!   CREATE SOURCE s (columns)  INCLUDE key AS k …  WITH (connector = …)  FORMAT UPSERT ENCODE JSON (…)
//!                              └───────────────────────── feed ──────────────────────────────────────┘
//! ```

use sqlparser::ast::{Ident, Statement};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::ast::{CreateFedTable, CreateSource, ExtStatement, Feed, IncludeItem};
use super::ext::{format_clause, skip, with_options, word_is};
use super::parse::{ParseContext, sub_parser};
use crate::Result;
use crate::catalog::Include;

/// CREATE SOURCE, behind these words.
pub(super) fn create_source(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    let if_not_exists = p.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let name = p.parse_object_name(false).map_err(err)?;
    let (columns, constraints) = p.parse_columns().map_err(err)?;
    Ok(ExtStatement::CreateSource(CreateSource {
        if_not_exists,
        name,
        columns,
        constraints,
        feed: feed(p, cx)?,
    }))
}

/// CREATE TABLE with a connector, from its first word on. `None`: the table has no connector, and the cursor stands where it stood.
pub(super) fn create_table(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<ExtStatement>> {
    let Some(head) = head_before_feed(p) else {
        return Ok(None);
    };
    let length = head.len();
    let mut inner = sub_parser(head);
    let mut statement = inner.parse_statement().map_err(|e| cx.error(e))?;
    if inner.peek_token().token != Token::EOF {
        return Err(cx.error_here(&inner));
    }
    super::precedence::settle(&mut statement)?;
    let Statement::CreateTable(table) = statement else {
        return Err(cx.error_here(p));
    };
    skip(p, length);
    Ok(Some(ExtStatement::CreateFedTable(Box::new(CreateFedTable {
        table: Box::new(table),
        feed: feed(p, cx)?,
    }))))
}

/// The tokens up to the feed, if there is one: WITH (…, connector = …) outside of parentheses.
fn head_before_feed(p: &Parser<'_>) -> Option<Vec<TokenWithSpan>> {
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    let mut feed_at = None;
    let mut in_options = false;
    loop {
        let n = tokens.len();
        let token = p.peek_nth_token(n);
        match &token.token {
            Token::EOF => return None,
            Token::LParen => depth += 1,
            Token::RParen => {
                depth = depth.saturating_sub(1);
                in_options &= depth > 0;
            }
            Token::Word(w) if depth == 0 && w.quote_style.is_none() => {
                let include = w.value.eq_ignore_ascii_case("include");
                let with = w.keyword == Keyword::WITH && p.peek_nth_token(n + 1).token == Token::LParen;
                in_options |= with;
                if (include || with) && feed_at.is_none() {
                    feed_at = Some(n);
                }
            }
            Token::Word(w)
                if in_options
                    && depth == 1
                    && w.value.eq_ignore_ascii_case("connector")
                    && p.peek_nth_token(n + 1).token == Token::Eq =>
            {
                tokens.truncate(feed_at?);
                return Some(tokens);
            }
            _ => {}
        }
        tokens.push(token);
    }
}

/// INCLUDE …, WITH (…), FORMAT … ENCODE ….
fn feed(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Feed> {
    let mut includes = Vec::new();
    while word_is(p, "include") {
        skip(p, 1);
        includes.push(include(p, cx)?);
    }
    let options = with_options(p, cx)?;
    let format = if word_is(p, "format") {
        Some(format_clause(p, cx)?)
    } else {
        None
    };
    Ok(Feed {
        includes,
        options,
        format,
    })
}

/// `key|partition|offset|timestamp|header ['name'] [type] [AS column]`.
fn include(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<IncludeItem> {
    let include = match word(p) {
        Some(w) if w == "key" => Include::Key,
        Some(w) if w == "partition" || w == "file" => Include::Partition,
        Some(w) if w == "offset" => Include::Offset,
        Some(w) if w == "timestamp" => Include::Timestamp,
        Some(w) if w == "header" || w == "headers" => Include::Header(None),
        _ => {
            return Err(cx
                .error_here(p)
                .hint("INCLUDE takes key, partition, offset, timestamp or header."));
        }
    };
    skip(p, 1);
    let include = match (include, p.peek_token().token) {
        (Include::Header(None), Token::SingleQuotedString(name)) => {
            skip(p, 1);
            Include::Header(Some(name))
        }
        (other, _) => other,
    };
    let data_type = match word(p).as_deref() {
        Some("bytea" | "varchar" | "text") => Some(p.parse_data_type().map_err(|e| cx.error(e))?),
        _ => None,
    };
    let column: Option<Ident> = if p.parse_keyword(Keyword::AS) {
        Some(p.parse_identifier().map_err(|e| cx.error(e))?)
    } else {
        None
    };
    Ok(IncludeItem {
        include,
        data_type,
        column,
    })
}

/// The next token as a lower-case word.
fn word(p: &Parser<'_>) -> Option<String> {
    match &p.peek_token_ref().token {
        Token::Word(w) if w.quote_style.is_none() => Some(w.value.to_lowercase()),
        _ => None,
    }
}
