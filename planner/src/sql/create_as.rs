//! CREATE TABLE … AS and SELECT … INTO: a table with the columns of a query, then its rows.
//!
//! The table's definition is written as a CREATE TABLE statement and made as one: whatever a new table needs is in one place.

use arrow::datatypes::DataType;
use sqlparser::ast::{self, Ident, ObjectName, SetExpr};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{IsOptional, Parser};
use sqlparser::tokenizer::Token;

use super::ast::ExtStatement;
use super::errors::locate;
use super::ext::skip;
use super::parse::{ParseContext, is_space, parse_query, sub_parser};
use super::{Binder, OnCommit, Statement};
use crate::Result;

/// `CREATE [TEMP] TABLE [IF NOT EXISTS] name [(columns)] AS query [WITH [NO] DATA]`.
#[derive(Debug, Clone)]
pub struct CreateAs {
    /// TEMP.
    pub temporary: bool,
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
    /// Name.
    pub name: ObjectName,
    /// Column names, if given.
    pub columns: Vec<Ident>,
    /// The query.
    pub query: Box<ast::Query>,
    /// WITH DATA.
    pub data: bool,
    /// ON COMMIT, of a temporary table.
    pub on_commit: Option<OnCommit>,
}

/// Reads the statement if it is one: `None`, with the cursor where it was, for any other CREATE.
pub(super) fn create_as(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<ExtStatement>> {
    let solid: Vec<usize> = (0..cx.tokens.len()).filter(|&i| !is_space(&cx.tokens[i])).collect();
    let is = |at: usize, words: &[&str]| {
        let token = solid.get(at).and_then(|&i| cx.tokens.get(i));
        matches!(token.map(|t| &t.token), Some(Token::Word(w)) if w.quote_style.is_none()
            && words.iter().any(|k| w.value.eq_ignore_ascii_case(k)))
    };
    let temporary = is(1, &["temp", "temporary"]);
    let table = if temporary || is(1, &["unlogged"]) { 2 } else { 1 };
    if !is(table, &["table"]) {
        return Ok(None);
    }
    // AS outside of parentheses: a column's GENERATED … AS is inside.
    let mut depth = 0_usize;
    let mut found = None;
    for (at, &token) in solid.iter().enumerate().skip(table) {
        match &cx.tokens[token].token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            // The options of a connector come before its own words.
            _ if depth == 0 && is(at, &["with", "format", "include"]) => break,
            _ if depth == 0 && is(at, &["as"]) => {
                found = Some(at);
                break;
            }
            _ => {}
        }
    }
    let Some(found) = found else { return Ok(None) };
    skip(p, table + 1);
    let if_not_exists = p.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let name = p.parse_object_name(false).map_err(|e| cx.error(e))?;
    let columns = p
        .parse_parenthesized_column_list(IsOptional::Optional, false)
        .map_err(|e| cx.error(e))?;
    let on_commit = on_commit(p, cx)?;
    p.expect_keyword(Keyword::AS).map_err(|e| cx.error(e))?;
    let mut end = solid.len();
    let mut data = true;
    if end >= 2 && is(end - 1, &["data"]) {
        data = !is(end - 2, &["no"]);
        let words = if data { 2 } else { 3 };
        if end > found + words && is(end - words, &["with"]) {
            end -= words;
        } else {
            data = true;
        }
    }
    let from = solid.get(found + 1).copied().unwrap_or(cx.tokens.len());
    let to = solid.get(end).copied().unwrap_or(cx.tokens.len());
    let query = if is(found + 1, &["table"]) {
        let mut inner = sub_parser(cx.tokens[from..to].to_vec());
        skip(&mut inner, 1);
        let name = inner.parse_object_name(false).map_err(|e| cx.error(e))?;
        parse_query(&format!("SELECT * FROM {name}"))?
    } else {
        let mut inner = sub_parser(cx.tokens[from..to].to_vec());
        let mut query = inner.parse_query().map_err(|e| cx.error(e))?;
        super::precedence::settle(&mut query)?;
        cx.expect_end(&inner)?;
        query
    };
    super::ext::skip_all(p);
    Ok(Some(ExtStatement::CreateTableAs(CreateAs {
        temporary,
        if_not_exists,
        name,
        columns,
        query,
        data,
        on_commit,
    })))
}

/// `[WITH (storage parameters)] [ON COMMIT …]`.
fn on_commit(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<OnCommit>> {
    if !p.parse_keywords(&[Keyword::ON, Keyword::COMMIT]) {
        return Ok(None);
    }
    if p.parse_keyword(Keyword::DROP) {
        return Ok(Some(OnCommit::Drop));
    }
    let empties = p.parse_keywords(&[Keyword::DELETE, Keyword::ROWS]);
    if !empties && !p.parse_keywords(&[Keyword::PRESERVE, Keyword::ROWS]) {
        return Err(cx.error_here(p));
    }
    Ok(empties.then_some(OnCommit::DeleteRows))
}

/// SELECT … INTO as CREATE TABLE … AS; `None`: the query has no INTO.
pub(super) fn select_into(query: &ast::Query) -> Option<CreateAs> {
    let mut query = Box::new(query.clone());
    let SetExpr::Select(select) = query.body.as_mut() else {
        return None;
    };
    let into = select.into.take()?;
    Some(CreateAs {
        temporary: into.temporary,
        if_not_exists: false,
        name: into.name,
        columns: Vec::new(),
        query,
        data: true,
        on_commit: None,
    })
}

impl Binder {
    /// CREATE TABLE … AS.
    pub(super) fn create_table_as(&self, c: &CreateAs, text: &str, params: &[Option<DataType>]) -> Result<Statement> {
        let Some(new) = self.new_name(&c.name, c.if_not_exists, c.temporary)? else {
            return Self::skipped(&c.name, "CREATE TABLE AS");
        };
        let bound = self
            .bind_query(&c.query, text, self.batch(), params)
            .map_err(|e| locate(e, text))?;
        let schema = super::table::query_columns(&bound.schema, &c.columns)?;
        let query = self.query_of(bound, params)?;
        let create = self.create_plain_table(&new, schema, text, c.if_not_exists)?;
        Ok(Statement::CreateTable {
            create: Box::new(create),
            query: c.data.then(|| Box::new(query)),
            on_commit: c.on_commit,
        })
    }
}
