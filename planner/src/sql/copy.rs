//! COPY … FROM STDIN and COPY … TO STDOUT: grammar, options, binding.

use arrow::datatypes::DataType;
use datafusion::logical_expr::Expr;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{IsOptional, Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::ast::{Copy, CopySource, ExtStatement};
use super::bind::ExprBinder;
use super::changed::{columns_schema, qualified, quoted, refuse_aggregates};
use super::dml::target_columns;
use super::errors::{locate, map_df_error};
use super::ext::{fold, option_key, option_value, query_text, skip, word_is};
use super::parse::ParseContext;
use super::typing::typed;
use super::{Binder, Query, operators};
use crate::catalog::{Generated, ObjectKind};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// How COPY writes and reads rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyKind {
    /// Fields between delimiters, backslash escapes.
    Text,
    /// Quoted fields.
    Csv,
    /// PostgreSQL's binary form.
    Binary,
}

/// HEADER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyHeader {
    /// None.
    No,
    /// The first line holds names: skipped on input.
    Yes,
    /// The first line must hold the columns' names.
    Match,
}

/// COPY's options.
#[derive(Debug, Clone)]
pub struct CopyFormat {
    /// FORMAT.
    pub kind: CopyKind,
    /// HEADER.
    pub header: CopyHeader,
    /// Field separator.
    pub delimiter: u8,
    /// NULL marker.
    pub null: String,
    /// CSV quote.
    pub quote: u8,
    /// CSV escape.
    pub escape: u8,
    /// CSV output: fields, by position, that are always quoted.
    pub force_quote: Vec<bool>,
    /// CSV input: fields, by position, whose NULL marker is NULL even when quoted.
    pub force_null: Vec<bool>,
    /// CSV input: fields, by position, whose NULL marker is a value even when not quoted.
    pub force_not_null: Vec<bool>,
}

impl CopyFormat {
    /// CSV.
    pub fn csv(&self) -> bool {
        self.kind == CopyKind::Csv
    }
}

/// A bound COPY FROM STDIN.
#[derive(Debug, Clone)]
pub struct CopyFrom {
    /// Target table.
    pub table: ObjectId,
    /// Table columns, by index, in the order of the input's fields.
    pub columns: Vec<usize>,
    /// Their form.
    pub format: CopyFormat,
    /// WHERE over [`super::CHANGED`] rows of the table: one boolean column.
    pub filter: Option<Query>,
}

/// A bound COPY TO STDOUT.
#[derive(Debug, Clone)]
pub struct CopyTo {
    /// Yields the rows.
    pub query: Query,
    /// Their form.
    pub format: CopyFormat,
}

impl Binder {
    /// COPY FROM STDIN.
    pub(super) fn copy_from(&self, c: &Copy, text: &str) -> Result<CopyFrom> {
        let CopySource::Table(name) = &c.source else {
            return Err(PlanError::new("42601", "syntax error at or near \"FROM\""));
        };
        let (object, table) = self.target_table(name, "copy to").map_err(|e| locate(e, text))?;
        let names: Vec<String> = c.columns.iter().map(fold).collect();
        let mut columns = target_columns(object, table, &names).map_err(|e| locate(e, text))?;
        let computed = |c: &usize| matches!(table.generated.get(c), Some(Generated::Stored(_)));
        if names.is_empty() {
            columns.retain(|c| !computed(c));
        } else if let Some(c) = columns.iter().find(|c| computed(c)) {
            let name = table.schema.field(*c).name();
            return Err(
                PlanError::new("42P10", format!("column \"{name}\" is a generated column"))
                    .detail("Generated columns cannot be used in COPY."),
            );
        }
        let shown: Vec<&str> = columns.iter().map(|&i| table.schema.field(i).name().as_str()).collect();
        let format = format(&c.options, &shown, true)?;
        let filter = c
            .filter
            .as_ref()
            .map(|e| self.copy_filter(e, &object.name, table))
            .transpose()
            .map_err(|e| locate(e, text))?;
        Ok(CopyFrom {
            table: object.id,
            columns,
            format,
            filter,
        })
    }

    fn copy_filter(&self, e: &sqlparser::ast::Expr, name: &str, table: &crate::catalog::TableDef) -> Result<Query> {
        let columns = qualified(name, &table.schema);
        let schema = columns_schema(&columns)?;
        let bound = ExprBinder::new(self, &[]).bind(e, &schema)?;
        refuse_aggregates(&bound, "COPY FROM WHERE conditions")?;
        if has_subquery(&bound)? {
            return Err(PlanError::new(
                "0A000",
                "cannot use subquery in COPY FROM WHERE condition",
            ));
        }
        let t = typed(bound, &schema).map_err(map_df_error)?;
        if t.ty.as_ref().is_some_and(|t| t != &DataType::Boolean) {
            return Err(PlanError::new("42804", "argument of WHERE must be type boolean"));
        }
        let e = operators::coerce(t, &DataType::Boolean)?;
        self.project_changed(&columns, vec![e.alias("met")], &[])
    }

    /// COPY TO STDOUT.
    pub(super) fn copy_to(&self, c: &Copy, text: &str) -> Result<CopyTo> {
        let query = match &c.source {
            CopySource::Query(q) => {
                let bound = self.bind_query(&q.query, text, self.batch(), &[])?;
                self.query_of(bound, &[])?
            }
            CopySource::Table(name) => self.copy_table(name, c, true)?,
            CopySource::Whole(name) => self.copy_table(name, c, false)?,
        };
        if query.param_count() > 0 {
            return Err(PlanError::new("42P02", "there is no parameter $1"));
        }
        let shown: Vec<&str> = query.schema.fields().iter().map(|f| f.name().as_str()).collect();
        let format = format(&c.options, &shown, false)?;
        Ok(CopyTo { query, format })
    }

    /// All rows of a relation. `stored`: it must hold rows itself.
    fn copy_table(&self, name: &sqlparser::ast::ObjectName, c: &Copy, stored: bool) -> Result<Query> {
        if stored
            && let Some(object) = self.named_object(name)?
            && let ObjectKind::View(_) = object.kind
        {
            return Err(
                PlanError::new("42809", format!("cannot copy from view \"{}\"", object.name))
                    .hint("Try the COPY (SELECT ...) TO variant."),
            );
        }
        let mut q = super::parse::parse_query("SELECT * FROM t")?;
        if let sqlparser::ast::SetExpr::Select(s) = q.body.as_mut() {
            if !c.columns.is_empty() {
                s.projection = c
                    .columns
                    .iter()
                    .map(|i| {
                        let column = sqlparser::ast::Expr::Identifier(quoted(&fold(i)));
                        sqlparser::ast::SelectItem::UnnamedExpr(column)
                    })
                    .collect();
            }
            if let Some(sqlparser::ast::TableFactor::Table { name: n, .. }) =
                s.from.first_mut().map(|f| &mut f.relation)
            {
                *n = name.clone();
            }
        }
        let bound = self.bind_query(&q, "", self.batch(), &[]).map_err(|mut e| {
            e.position = None;
            e
        })?;
        self.query_of(bound, &[])
    }
}

fn has_subquery(e: &Expr) -> Result<bool> {
    use datafusion::common::tree_node::TreeNode;
    e.exists(|e| {
        Ok(matches!(
            e,
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_)
        ))
    })
    .map_err(map_df_error)
}

type Given = [(String, Option<String>)];

/// Reads the options, for columns named `columns`.
///
/// # Errors
/// 42601 for an unknown or repeated option, 22023 and 0A000 for values that PostgreSQL refuses or Levee does not support.
fn format(given: &Given, columns: &[&str], from: bool) -> Result<CopyFormat> {
    known(given)?;
    let get = |name: &str| given.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_deref());
    let kind = match get("format") {
        None => CopyKind::Text,
        Some(Some("csv")) => CopyKind::Csv,
        Some(Some("binary")) => CopyKind::Binary,
        Some(_) => CopyKind::Text,
    };
    let csv = kind == CopyKind::Csv;
    if kind == CopyKind::Binary {
        for (name, what) in [("delimiter", "DELIMITER"), ("null", "NULL")] {
            if get(name).is_some() {
                return Err(PlanError::new("42601", format!("cannot specify {what} in BINARY mode")));
            }
        }
        if header(get("header"), from)? != CopyHeader::No {
            return Err(PlanError::new("0A000", "cannot specify HEADER in BINARY mode"));
        }
    }
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
    let byte = |name: &str, default: u8| -> Result<u8> {
        match get(name) {
            None => Ok(default),
            Some(Some(v)) if v.len() == 1 => Ok(v.as_bytes()[0]),
            Some(_) => Err(PlanError::new(
                "0A000",
                format!("COPY {name} must be a single one-byte character"),
            )),
        }
    };
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
        Some(Some(n)) => n.to_owned(),
        _ if csv => String::new(),
        _ => "\\N".to_owned(),
    };
    if null.contains(['\n', '\r']) {
        return Err(PlanError::new(
            "22023",
            "COPY null representation cannot use newline or carriage return",
        ));
    }
    let force = |name: &str, allowed: bool, direction: &str| -> Result<Vec<bool>> {
        let Some(list) = get(name) else {
            return Ok(vec![false; columns.len()]);
        };
        let shown = name.replace('_', " ");
        if !csv {
            return Err(PlanError::new(
                "0A000",
                format!("COPY {shown} available only in CSV mode"),
            ));
        }
        if !allowed {
            return Err(PlanError::new(
                "0A000",
                format!("COPY {shown} only available using COPY {direction}"),
            ));
        }
        forced(name, list, columns)
    };
    Ok(CopyFormat {
        kind,
        header: header(get("header"), from)?,
        delimiter,
        null,
        quote,
        escape,
        force_quote: force("force_quote", !from, "TO")?,
        force_null: force("force_null", from, "FROM")?,
        force_not_null: force("force_not_null", from, "FROM")?,
    })
}

fn known(given: &Given) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    for (key, value) in given {
        if seen.contains(&key.as_str()) {
            return Err(PlanError::new("42601", "conflicting or redundant options"));
        }
        seen.push(key);
        match (key.as_str(), value.as_deref()) {
            ("format", Some("csv" | "text" | "binary")) => {}
            ("header" | "delimiter" | "null" | "quote" | "escape" | "freeze", _) => {}
            ("force_null" | "force_not_null" | "force_quote", _) => {}
            ("encoding", Some(e)) if e.eq_ignore_ascii_case("utf8") || e.eq_ignore_ascii_case("utf-8") => {}
            ("encoding", _) => {
                return Err(PlanError::unsupported(
                    "COPY encodings other than UTF8 are not supported",
                ));
            }
            ("format", Some(f)) => return Err(PlanError::new("22023", format!("COPY format \"{f}\" not recognized"))),
            _ => return Err(PlanError::new("42601", format!("option \"{key}\" not recognized"))),
        }
    }
    Ok(())
}

fn header(value: Option<Option<&str>>, from: bool) -> Result<CopyHeader> {
    let Some(value) = value else {
        return Ok(CopyHeader::No);
    };
    match value.unwrap_or("on").to_lowercase().as_str() {
        "match" if from => Ok(CopyHeader::Match),
        "match" => Err(PlanError::new("0A000", "cannot use \"match\" with HEADER in COPY TO")),
        "true" | "on" | "1" => Ok(CopyHeader::Yes),
        "false" | "off" | "0" => Ok(CopyHeader::No),
        _ => Err(PlanError::new("42601", "header requires a Boolean value or \"match\"")),
    }
}

/// The columns of `(a, b)` or `*`.
fn forced(option: &str, list: Option<&str>, columns: &[&str]) -> Result<Vec<bool>> {
    let mut out = vec![false; columns.len()];
    match list {
        Some("*") => out.fill(true),
        Some(list) => {
            for name in list.split('\u{1}').filter(|n| !n.is_empty()) {
                let at = columns.iter().position(|c| *c == name).ok_or_else(|| {
                    PlanError::new(
                        "42P10",
                        format!("{} column \"{name}\" not referenced by COPY", option.to_uppercase()),
                    )
                })?;
                if let Some(slot) = out.get_mut(at) {
                    *slot = true;
                }
            }
        }
        None => {
            return Err(PlanError::new(
                "22023",
                format!("argument to option \"{option}\" must be a list of column names"),
            ));
        }
    }
    Ok(out)
}

/// Reads the statement.
pub(super) fn copy(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    skip(p, 1);
    let (source, columns) = if p.consume_token(&Token::LParen) {
        if word_is(p, "table") {
            skip(p, 1);
            let name = p.parse_object_name(false).map_err(err)?;
            p.expect_token(&Token::RParen).map_err(err)?;
            return rest(p, cx, CopySource::Whole(name), Vec::new());
        }
        let query = query_text(p, cx)?;
        if !p.consume_token(&Token::RParen) {
            return Err(cx.error_here(p));
        }
        (CopySource::Query(query), Vec::new())
    } else {
        let table = p.parse_object_name(false).map_err(err)?;
        let columns = p
            .parse_parenthesized_column_list(IsOptional::Optional, false)
            .map_err(err)?;
        (CopySource::Table(table), columns)
    };
    rest(p, cx, source, columns)
}

/// What follows the table or query.
fn rest(
    p: &mut Parser<'_>,
    cx: &ParseContext<'_>,
    source: CopySource,
    columns: Vec<sqlparser::ast::Ident>,
) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    let to = p.parse_keyword(Keyword::TO);
    if !to {
        p.expect_keyword(Keyword::FROM).map_err(err)?;
    }
    let end = if to { "stdout" } else { "stdin" };
    // PostgreSQL takes either word on either side.
    if !word_is(p, "stdin") && !word_is(p, "stdout") {
        return Err(PlanError::unsupported(format!(
            "COPY {} a file or program on the server is not supported",
            if to { "TO" } else { "FROM" }
        ))
        .hint(format!(
            "Use COPY … {} {}, or psql's \\copy.",
            if to { "TO" } else { "FROM" },
            end.to_uppercase()
        )));
    }
    skip(p, 1);
    let options = copy_options(p, cx)?;
    let filter = if !to && p.parse_keyword(Keyword::WHERE) {
        let mut e = p.parse_expr().map_err(err)?;
        super::precedence::settle(&mut e)?;
        Some(e)
    } else {
        None
    };
    Ok(ExtStatement::Copy(Box::new(Copy {
        source,
        to,
        columns,
        options,
        filter,
    })))
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
                _ if key.starts_with("force_") => Some(column_list(p, cx)?),
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
            "force" => {
                skip(p, 1);
                let not = p.parse_keyword(Keyword::NOT);
                let name = if word_is(p, "quote") {
                    "force_quote"
                } else if word_is(p, "null") && not {
                    "force_not_null"
                } else if word_is(p, "null") {
                    "force_null"
                } else {
                    return Err(cx.error_here(p));
                };
                skip(p, 1);
                options.push((name.into(), Some(column_list(p, cx)?)));
            }
            _ => break,
        }
    }
    Ok(options)
}

/// `*`, `(a, b)` or `a, b`: names between marks.
fn column_list(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<String> {
    if p.consume_token(&Token::Mul) {
        return Ok("*".to_owned());
    }
    let parens = p.consume_token(&Token::LParen);
    let mut names = String::new();
    loop {
        let ident = p.parse_identifier().map_err(|e| cx.error(e))?;
        names.push_str(&fold(&ident));
        names.push('\u{1}');
        if !p.consume_token(&Token::Comma) {
            break;
        }
    }
    if parens && !p.consume_token(&Token::RParen) {
        return Err(cx.error_here(p));
    }
    Ok(names)
}
