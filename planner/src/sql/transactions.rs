//! Grammar of SAVEPOINT, RELEASE, ROLLBACK TO, LOCK TABLE and TRUNCATE; binding of the last two.

use sqlparser::ast::ObjectName;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::ast::{ExtStatement, TableLock};
use super::errors::locate;
use super::ext::{fold, skip, word_is};
use super::parse::ParseContext;
use super::{Binder, Statement};
use crate::Result;

/// `SAVEPOINT name`, `RELEASE [SAVEPOINT] name`.
pub(super) fn savepoint(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let release = word_is(p, "release");
    skip(p, 1);
    if release {
        let _noise = p.parse_keyword(Keyword::SAVEPOINT);
    }
    let name = fold(&p.parse_identifier().map_err(|e| cx.error(e))?);
    Ok(if release {
        ExtStatement::Release(name)
    } else {
        ExtStatement::Savepoint(name)
    })
}

/// `ROLLBACK [WORK|TRANSACTION] TO [SAVEPOINT] name`.
pub(super) fn rollback_to(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    while !word_is(p, "to") {
        skip(p, 1);
    }
    skip(p, 1);
    let _noise = p.parse_keyword(Keyword::SAVEPOINT);
    let name = p.parse_identifier().map_err(|e| cx.error(e))?;
    Ok(ExtStatement::RollbackTo(fold(&name)))
}

fn table_names(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Vec<ObjectName>> {
    let err = |e: ParserError| cx.error(e);
    let _noise = p.parse_keyword(Keyword::TABLE);
    let mut names = Vec::new();
    loop {
        let _noise = p.parse_keyword(Keyword::ONLY);
        names.push(p.parse_object_name(false).map_err(err)?);
        let _noise = p.consume_token(&Token::Mul);
        if !p.consume_token(&Token::Comma) {
            return Ok(names);
        }
    }
}

/// `TRUNCATE [TABLE] a, b [RESTART IDENTITY | CONTINUE IDENTITY] [CASCADE | RESTRICT]`.
pub(super) fn truncate(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    let names = table_names(p, cx)?;
    let mut restart_identity = false;
    if word_is(p, "restart") || word_is(p, "continue") {
        restart_identity = word_is(p, "restart");
        skip(p, 1);
        if !word_is(p, "identity") {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
    }
    let cascade = word_is(p, "cascade");
    if cascade || word_is(p, "restrict") {
        skip(p, 1);
    }
    Ok(ExtStatement::Truncate {
        names,
        restart_identity,
        cascade,
    })
}

/// `LOCK [TABLE] a, b [IN mode MODE] [NOWAIT]`.
pub(super) fn lock(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    let names = table_names(p, cx)?;
    let mut mode = TableLock::AccessExclusive;
    if p.parse_keyword(Keyword::IN) {
        let mut words = Vec::new();
        while !word_is(p, "mode") {
            match &p.peek_token_ref().token {
                Token::Word(w) => words.push(w.value.to_lowercase()),
                _ => return Err(cx.error_here(p)),
            }
            skip(p, 1);
        }
        mode = match words.join(" ").as_str() {
            "access share" => TableLock::AccessShare,
            "row share" => TableLock::RowShare,
            "row exclusive" => TableLock::RowExclusive,
            "share update exclusive" => TableLock::ShareUpdateExclusive,
            "share" => TableLock::Share,
            "share row exclusive" => TableLock::ShareRowExclusive,
            "exclusive" => TableLock::Exclusive,
            "access exclusive" => TableLock::AccessExclusive,
            _ => return Err(cx.error_here(p)),
        };
        skip(p, 1);
    }
    let nowait = word_is(p, "nowait");
    if nowait {
        skip(p, 1);
    }
    Ok(ExtStatement::LockTable { names, mode, nowait })
}

impl Binder {
    /// TRUNCATE: the tables, each once.
    pub(super) fn truncate(
        &self,
        names: &[ObjectName],
        restart_identity: bool,
        cascade: bool,
        text: &str,
    ) -> Result<Statement> {
        let mut tables = Vec::new();
        for name in names {
            let (object, _) = self.target_table(name, "truncate").map_err(|e| locate(e, text))?;
            if !tables.contains(&object.id) {
                tables.push(object.id);
            }
        }
        Ok(Statement::Truncate {
            tables,
            restart_identity,
            cascade,
        })
    }

    /// LOCK TABLE.
    pub(super) fn lock_table(
        &self,
        names: &[ObjectName],
        mode: TableLock,
        nowait: bool,
        text: &str,
    ) -> Result<Statement> {
        let mut tables = Vec::new();
        for name in names {
            let (object, _) = self.target_table(name, "lock").map_err(|e| locate(e, text))?;
            tables.push(object.id);
        }
        Ok(Statement::LockTable { tables, mode, nowait })
    }
}
