//! `CREATE TABLE … (LIKE other [INCLUDING …], …)`: its grammar, which sqlparser has only in part, and the copy.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use sqlparser::ast::{self, ObjectName};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::constraints::Key;
use super::{Draft, specified_twice};
use crate::catalog::{Generated, ObjectKind};
use crate::sql::alter::Grammar;
use crate::sql::parse::ParseContext;
use crate::sql::sequences::{SequenceOptions, mentioned};
use crate::{PlanError, Result};

/// One LIKE clause.
#[derive(Debug, Clone)]
pub struct Like {
    /// The table to copy.
    pub name: ObjectName,
    /// Columns of the statement that stand before it.
    pub position: usize,
    /// What is copied besides names, types and NOT NULL, lower case.
    pub including: Vec<String>,
}

const PARTS: [&str; 8] = [
    "comments",
    "constraints",
    "defaults",
    "generated",
    "identity",
    "indexes",
    "statistics",
    "storage",
];

/// Is there a LIKE clause among the elements of a CREATE TABLE?
fn has_like(p: &Parser<'_>) -> bool {
    let (mut depth, mut start) = (0_usize, false);
    for n in 0.. {
        match &p.peek_nth_token_ref(n).token {
            Token::EOF => return false,
            Token::LParen => {
                depth += 1;
                start = depth == 1;
                continue;
            }
            Token::RParen => {
                if depth <= 1 {
                    return false;
                }
                depth -= 1;
            }
            Token::Comma if depth == 1 => {
                start = true;
                continue;
            }
            Token::Word(w) if start && w.quote_style.is_none() && w.value.eq_ignore_ascii_case("like") => return true,
            _ => {}
        }
        start = false;
    }
    false
}

/// Reads CREATE TABLE with LIKE; otherwise leaves the cursor at its start.
pub(in crate::sql) fn parse(
    p: &mut Parser<'_>,
    cx: &ParseContext<'_>,
) -> Result<Option<(ast::CreateTable, Vec<Like>)>> {
    let g = &mut Grammar { p, cx };
    let heads: [(&[&str], bool); 4] = [
        (&["create", "table"], false),
        (&["create", "temp", "table"], true),
        (&["create", "temporary", "table"], true),
        (&["create", "unlogged", "table"], false),
    ];
    if !g.next_is("create") || !has_like(g.p) {
        return Ok(None);
    }
    let Some((_, temporary)) = heads.iter().find(|(words, _)| g.eat(words)) else {
        return Ok(None);
    };
    let if_not_exists = g.eat(&["if", "not", "exists"]);
    let name = g.name()?;
    let (mut columns, mut constraints, mut likes) = (Vec::new(), Vec::new(), Vec::new());
    if !g.p.consume_token(&Token::LParen) {
        return Err(g.error());
    }
    loop {
        if g.eat(&["like"]) {
            likes.push(like(g, columns.len())?);
        } else if let Some(c) = g.p.parse_optional_table_constraint().map_err(|e| cx.error(e))? {
            constraints.push(c);
        } else {
            columns.push(g.p.parse_column_def().map_err(|e| cx.error(e))?);
        }
        if g.p.consume_token(&Token::RParen) {
            break;
        }
        if !g.p.consume_token(&Token::Comma) {
            return Err(g.error());
        }
    }
    let on_commit = if g.eat(&["on", "commit", "drop"]) {
        Some(ast::OnCommit::Drop)
    } else if g.eat(&["on", "commit", "delete", "rows"]) {
        Some(ast::OnCommit::DeleteRows)
    } else {
        g.eat(&["on", "commit", "preserve", "rows"]);
        None
    };
    let table = CreateTableBuilder::new(name)
        .temporary(*temporary)
        .if_not_exists(if_not_exists)
        .columns(columns)
        .constraints(constraints)
        .on_commit(on_commit)
        .build();
    Ok(Some((table, likes)))
}

fn like(g: &mut Grammar<'_, '_, '_>, position: usize) -> Result<Like> {
    let name = g.name()?;
    let mut including: Vec<String> = Vec::new();
    loop {
        let on = if g.eat(&["including"]) {
            true
        } else if g.eat(&["excluding"]) {
            false
        } else {
            break;
        };
        if g.eat(&["all"]) {
            including.clear();
            if on {
                including.extend(PARTS.iter().map(|p| (*p).to_owned()));
            }
            continue;
        }
        let part = PARTS.iter().find(|p| g.eat(&[p])).ok_or_else(|| g.error())?;
        including.retain(|p| p != part);
        if on {
            including.push((*part).to_owned());
        }
    }
    Ok(Like {
        name,
        position,
        including,
    })
}

impl Draft<'_> {
    /// Appends another relation's columns.
    pub(super) fn like(&mut self, like: &Like) -> Result<()> {
        let binder = self.binder;
        let object = binder.named_object(&like.name)?.ok_or_else(|| {
            PlanError::new(
                "42P01",
                format!("relation \"{}\" does not exist", crate::sql::alter::plain(&like.name)),
            )
        })?;
        if matches!(object.kind, ObjectKind::Index(_) | ObjectKind::Sequence(_)) {
            return Err(PlanError::new(
                "42809",
                format!("relation \"{}\" is invalid in LIKE clause", object.name),
            ));
        }
        let has = |part: &str| like.including.iter().any(|p| p == part);
        let first = self.def.schema.fields().len();
        let mut fields: Vec<Field> = self.def.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
        for f in object.schema().fields() {
            if fields.iter().any(|other| other.name() == f.name()) {
                return Err(specified_twice(f.name()));
            }
            let nullable = f.is_nullable() || object.table().is_none();
            fields.push(f.as_ref().clone().with_nullable(nullable));
        }
        let n = fields.len();
        self.def.schema = Arc::new(Schema::new(fields));
        self.def.defaults.resize(n, None);
        let Some(other) = object.table() else { return Ok(()) };
        for (c, default) in other.defaults.iter().enumerate() {
            if let Some(sql) = default.as_ref().filter(|_| has("defaults")) {
                debug_assert!(mentioned(sql).iter().all(|s| binder.catalog.get(*s).is_some()));
                self.set_default(first + c, sql.clone());
            }
        }
        for (c, generated) in &other.generated {
            match generated {
                Generated::Stored(sql) if has("generated") => {
                    let copy = Generated::Stored(sql.clone());
                    self.def.generated.insert(first + c, copy);
                }
                Generated::Identity { always, .. } if has("identity") => {
                    let field = other.schema.field(*c);
                    let options = SequenceOptions::default();
                    let sequence = self.owned_sequence(first + c, field.name(), field.data_type(), &options, true)?;
                    let copy = Generated::Identity {
                        always: *always,
                        sequence,
                    };
                    self.def.generated.insert(first + c, copy);
                }
                _ => {}
            }
        }
        let moved = |columns: &[usize]| columns.iter().map(|c| first + c).collect::<Vec<_>>();
        if has("indexes") {
            if !other.primary_key.is_empty() {
                self.primary_key(None, moved(&other.primary_key))?;
            }
            for u in &other.constraints.uniques {
                let key = Key {
                    columns: moved(&u.columns),
                    nulls_distinct: u.nulls_distinct,
                };
                self.unique(None, key)?;
            }
        }
        if has("constraints") {
            for check in &other.constraints.checks {
                let copy = crate::catalog::Check {
                    columns: moved(&check.columns),
                    ..check.clone()
                };
                self.names.push(check.name.clone());
                self.def.constraints.checks.push(copy);
            }
        }
        Ok(())
    }
}
