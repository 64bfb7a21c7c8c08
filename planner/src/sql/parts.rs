//! Statements with parts that are statements of their own: data-modifying WITH, and subqueries that lock rows.
//!
//! ```text
//! WITH gone AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM gone
//!   part 0: DELETE FROM a RETURNING *
//!   main:   WITH gone AS (SELECT * FROM part0) INSERT INTO b SELECT * FROM part0
//! ```
//!
//! The server runs the parts in order, within the statement's transaction, and binds what is left with their rows as tables
//! ([`WithParts`]). A part sees what parts before it have written; PostgreSQL lets all see the state before the statement.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use sqlparser::ast::{Query, SetExpr, Statement as Sql, VisitMut, VisitorMut};

use super::ast::{ExtStatement, LockWait, LockingClause, RowLock};
use super::names::MARK;
use super::parse::parse_query;
use super::{Ast, Parsed, SystemTables};
use crate::{PlanError, Result};

/// A statement taken apart.
#[derive(Debug)]
pub struct Parts {
    /// To be run first, in order.
    pub parts: Vec<Parsed>,
    /// What is left, over the tables [`part_name`].
    pub main: Parsed,
}

/// The name of the table that holds a part's rows.
pub fn part_name(part: usize) -> String {
    format!("{MARK}part{part}")
}

/// System tables, and the rows of parts that have run.
#[derive(Debug)]
pub struct WithParts {
    /// What there is besides.
    pub system: Arc<dyn SystemTables>,
    /// Rows, by [`part_name`].
    pub parts: HashMap<String, Arc<dyn TableProvider>>,
}

impl SystemTables for WithParts {
    fn table(&self, schema: Option<&str>, name: &str) -> Option<Arc<dyn TableProvider>> {
        let part = self.parts.get(name).map(Arc::clone);
        part.or_else(|| self.system.table(schema, name))
    }

    fn sequence(&self, sequence: &crate::catalog::CatalogObject) -> Option<Arc<dyn TableProvider>> {
        self.system.sequence(sequence)
    }
}

/// Takes a statement apart; `None` if it has no parts.
///
/// # Errors
/// 0A000 for a data-modifying WITH that is not at the top, as in PostgreSQL.
pub fn parts(parsed: &Parsed) -> Result<Option<Parts>> {
    let Ast::Sql(statement) = &parsed.ast else {
        return Ok(None);
    };
    let has = |word: &[u8]| {
        parsed
            .text
            .as_bytes()
            .windows(word.len())
            .any(|w| w.eq_ignore_ascii_case(word))
    };
    if (!has(b"with") && !has(b"for")) || sqlparser::ast::Visit::visit(statement.as_ref(), &mut Finder).is_continue() {
        return Ok(None);
    }
    let mut main = statement.as_ref().clone();
    let mut taker = Taker {
        text: parsed,
        parts: Vec::new(),
    };
    if let Sql::Query(q) = &mut main {
        taker.writes_of(q)?;
    }
    if let ControlFlow::Break(e) = VisitMut::visit(&mut main, &mut taker) {
        return Err(e);
    }
    if taker.parts.is_empty() {
        return Ok(None);
    }
    Ok(Some(Parts {
        parts: taker.parts,
        main: Parsed {
            ast: Ast::Sql(std::sync::Arc::new(main)),
            ..parsed.clone()
        },
    }))
}

/// Whether there is anything to take.
struct Finder;

impl sqlparser::ast::Visitor for Finder {
    type Break = ();

    fn pre_visit_query(&mut self, q: &Query) -> ControlFlow<()> {
        let writes = |body: &SetExpr| {
            matches!(
                body,
                SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_)
            )
        };
        let mut ctes = q.with.iter().flat_map(|w| &w.cte_tables);
        if !q.locks.is_empty() || ctes.any(|c| writes(&c.query.body)) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

struct Taker<'a> {
    text: &'a Parsed,
    parts: Vec<Parsed>,
}

impl Taker<'_> {
    fn take(&mut self, ast: Ast) -> Result<Box<Query>> {
        self.parts.push(Parsed {
            ast,
            ..self.text.clone()
        });
        parse_query(&format!("SELECT * FROM \"{}\"", part_name(self.parts.len() - 1)))
    }

    /// Takes the data-modifying queries out of a statement's WITH.
    fn writes_of(&mut self, q: &mut Query) -> Result<()> {
        let Some(with) = &mut q.with else { return Ok(()) };
        let mut at = 0;
        while at < with.cte_tables.len() {
            let (before, rest) = with.cte_tables.split_at_mut(at);
            let Some(cte) = rest.first_mut() else { break };
            let (SetExpr::Insert(statement)
            | SetExpr::Update(statement)
            | SetExpr::Delete(statement)
            | SetExpr::Merge(statement)) = cte.query.body.as_ref()
            else {
                at += 1;
                continue;
            };
            let returns = match statement {
                Sql::Insert(i) => i.returning.is_some(),
                Sql::Update(u) => u.returning.is_some(),
                Sql::Delete(d) => d.returning.is_some(),
                _ => false,
            };
            // It may read the WITH queries before it.
            let mut query = cte.query.clone();
            if !before.is_empty() {
                let mut earlier = sqlparser::ast::With {
                    cte_tables: before.to_vec(),
                    recursive: false,
                    with_token: sqlparser::ast::helpers::attached_token::AttachedToken::empty(),
                };
                if let Some(own) = query.with.take() {
                    earlier.cte_tables.extend(own.cte_tables);
                }
                query.with = Some(earlier);
            }
            cte.query = self.take(Ast::Sql(std::sync::Arc::new(Sql::Query(query))))?;
            if returns {
                at += 1;
            } else {
                with.cte_tables.remove(at);
            }
        }
        if with.cte_tables.is_empty() {
            q.with = None;
        }
        Ok(())
    }

    fn locking(&mut self, q: &mut Query) -> Result<()> {
        let mut query = Box::new(q.clone());
        let clauses = std::mem::take(&mut query.locks)
            .into_iter()
            .map(|l| {
                let of = match &l.of {
                    None => Vec::new(),
                    Some(name) => vec![name.0.last().and_then(|p| p.as_ident()).cloned().ok_or_else(|| {
                        PlanError::new("42601", "FOR UPDATE must specify unqualified relation names")
                    })?],
                };
                Ok(LockingClause {
                    strength: match l.lock_type {
                        sqlparser::ast::LockType::Update => RowLock::Update,
                        sqlparser::ast::LockType::Share => RowLock::Share,
                    },
                    of,
                    wait: match l.nonblock {
                        None => LockWait::Block,
                        Some(sqlparser::ast::NonBlock::Nowait) => LockWait::Fail,
                        Some(sqlparser::ast::NonBlock::SkipLocked) => LockWait::Skip,
                    },
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let part = ExtStatement::SelectLocking { query, clauses };
        *q = *self.take(Ast::Ext(std::sync::Arc::new(part)))?;
        Ok(())
    }
}

impl VisitorMut for Taker<'_> {
    type Break = PlanError;

    fn pre_visit_query(&mut self, q: &mut Query) -> ControlFlow<PlanError> {
        if q.locks.is_empty() {
            return ControlFlow::Continue(());
        }
        match self.locking(q) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => ControlFlow::Break(e),
        }
    }
}
