//! SELECT … FOR UPDATE and its kin.
//!
//! The clauses are cut off before the query is parsed: sqlparser knows two of the four strengths and one table after OF. The query
//! then gets the columns that identify the locked rows appended, behind what the client sees: the key, or all columns of a table
//! without one. LIMIT and OFFSET are taken off the plan, because a row that is skipped, or gone once its lock is granted, must not
//! count.

use arrow::datatypes::DataType;
use datafusion::logical_expr::{FetchType, Limit, LogicalPlan, Projection, SkipType};
use sqlparser::ast::{self, GroupByExpr, Ident, JoinOperator, SelectItem, SetExpr, TableFactor, TableWithJoins};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};
use std::sync::Arc;

use super::ast::{ExtStatement, LockWait, LockingClause, RowLock};
use super::changed::quoted;
use super::dml::{column_of, item};
use super::errors::{locate, map_df_error};
use super::ext::fold;
use super::parse::{ParseContext, is_space, sub_parser};
use super::{Binder, Query};
use crate::catalog::ObjectKind;
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// A bound SELECT that locks rows.
#[derive(Debug, Clone)]
pub struct LockingQuery {
    /// The query; its schema is what the client sees, its plan has further columns at the end.
    pub query: Query,
    /// Whose rows are locked.
    pub targets: Vec<LockTarget>,
}

/// A table whose rows a query locks.
#[derive(Debug, Clone)]
pub struct LockTarget {
    /// Table.
    pub table: ObjectId,
    /// First of its columns among the plan's, and their number: the key in key order, or all columns in table order.
    pub columns: (usize, usize),
    /// Strength.
    pub strength: RowLock,
    /// What to do about rows that others have locked.
    pub wait: LockWait,
}

/// Takes LIMIT and OFFSET off a plan whose parameters are bound: the rest, rows to skip, rows to send.
///
/// # Errors
/// 0A000 for bounds that are not constants.
pub fn take_limit(plan: LogicalPlan) -> Result<(LogicalPlan, usize, Option<usize>)> {
    match plan {
        LogicalPlan::Limit(limit) => bounds(&limit).map(|(s, f)| (Arc::unwrap_or_clone(limit.input), s, f)),
        LogicalPlan::Projection(p) if matches!(p.input.as_ref(), LogicalPlan::Limit(_)) => {
            let (input, skip, fetch) = take_limit(Arc::unwrap_or_clone(p.input))?;
            let p = Projection::try_new(p.expr, Arc::new(input)).map_err(map_df_error)?;
            Ok((LogicalPlan::Projection(p), skip, fetch))
        }
        other => Ok((other, 0, None)),
    }
}

fn bounds(limit: &Limit) -> Result<(usize, Option<usize>)> {
    let fold = |e: &Option<Box<datafusion::logical_expr::Expr>>| -> Result<_> {
        e.as_ref()
            .map(|e| super::bind::simplify(e.as_ref().clone()).map(Box::new))
            .transpose()
    };
    let limit = Limit {
        skip: fold(&limit.skip)?,
        fetch: fold(&limit.fetch)?,
        input: Arc::clone(&limit.input),
    };
    let refused = || PlanError::unsupported("LIMIT of a locking SELECT must be a constant");
    let SkipType::Literal(skip) = limit.get_skip_type().map_err(map_df_error)? else {
        return Err(refused());
    };
    let FetchType::Literal(fetch) = limit.get_fetch_type().map_err(map_df_error)? else {
        return Err(refused());
    };
    Ok((skip, fetch))
}

/// Reads a query that ends with locking clauses; `None`, with the cursor where it was, if it has none.
pub(super) fn select(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<ExtStatement>> {
    let words =
        |t: &TokenWithSpan, list: &[&str]| matches!(&t.token, Token::Word(w) if list.iter().any(|k| unquoted(w, k)));
    let mut depth = 0_usize;
    let mut solid = cx.tokens.iter().enumerate().filter(|(_, t)| !is_space(t)).peekable();
    let mut start = None;
    while let Some((at, token)) = solid.next() {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ if depth == 0 && words(token, &["for"]) => {
                let locks = |t: &TokenWithSpan| words(t, &["update", "share", "no", "key"]);
                if solid.peek().is_some_and(|(_, t)| locks(t)) {
                    start = Some(at);
                    break;
                }
            }
            _ => {}
        }
    }
    let Some(start) = start else { return Ok(None) };
    let (head, rest) = cx.tokens.split_at(start);
    let mut inner = sub_parser(head.to_vec());
    let mut query = inner.parse_query().map_err(|e| cx.error(e))?;
    super::precedence::settle(&mut query)?;
    if inner.peek_token().token != Token::EOF {
        return Err(cx.error_here(&inner));
    }
    let clauses = clauses(rest.to_vec(), cx)?;
    super::ext::skip_all(p);
    Ok(Some(ExtStatement::SelectLocking { query, clauses }))
}

fn unquoted(w: &sqlparser::tokenizer::Word, word: &str) -> bool {
    w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word)
}

fn clauses(tokens: Vec<TokenWithSpan>, cx: &ParseContext<'_>) -> Result<Vec<LockingClause>> {
    let mut p = sub_parser(tokens);
    let mut clauses = Vec::new();
    let words = |p: &mut Parser<'_>, words: &[&str]| {
        let all = words
            .iter()
            .enumerate()
            .all(|(i, word)| matches!(&p.peek_nth_token_ref(i).token, Token::Word(w) if unquoted(w, word)));
        if all {
            super::ext::skip(p, words.len());
        }
        all
    };
    while p.peek_token().token != Token::EOF {
        let strength = if words(&mut p, &["for", "update"]) {
            RowLock::Update
        } else if words(&mut p, &["for", "no", "key", "update"]) {
            RowLock::NoKeyUpdate
        } else if words(&mut p, &["for", "share"]) {
            RowLock::Share
        } else if words(&mut p, &["for", "key", "share"]) {
            RowLock::KeyShare
        } else {
            return Err(cx.error_here(&p));
        };
        let mut of = Vec::new();
        if words(&mut p, &["of"]) {
            loop {
                of.push(p.parse_identifier().map_err(|e| cx.error(e))?);
                if !p.consume_token(&Token::Comma) {
                    break;
                }
            }
        }
        let wait = if words(&mut p, &["nowait"]) {
            LockWait::Fail
        } else if words(&mut p, &["skip", "locked"]) {
            LockWait::Skip
        } else {
            LockWait::Block
        };
        clauses.push(LockingClause { strength, of, wait });
    }
    Ok(clauses)
}

/// PostgreSQL's name of a strength.
fn clause_name(strength: RowLock) -> &'static str {
    match strength {
        RowLock::Update => "FOR UPDATE",
        RowLock::NoKeyUpdate => "FOR NO KEY UPDATE",
        RowLock::Share => "FOR SHARE",
        RowLock::KeyShare => "FOR KEY SHARE",
    }
}

/// A relation in FROM.
struct FromItem<'a> {
    /// The name that it goes by.
    name: Ident,
    factor: &'a TableFactor,
    /// An outer join may fill its columns with NULLs.
    nullable: bool,
}

fn from_items(from: &[TableWithJoins]) -> Vec<FromItem<'_>> {
    let mut items = Vec::new();
    for t in from {
        let first = items.len();
        push_item(&t.relation, false, &mut items);
        for join in &t.joins {
            let (left, right) = match &join.join_operator {
                JoinOperator::Left(_) | JoinOperator::LeftOuter(_) => (false, true),
                JoinOperator::Right(_) | JoinOperator::RightOuter(_) => (true, false),
                JoinOperator::FullOuter(_) => (true, true),
                _ => (false, false),
            };
            for item in items.iter_mut().skip(first) {
                item.nullable |= left;
            }
            push_item(&join.relation, right, &mut items);
        }
    }
    items
}

fn push_item<'a>(factor: &'a TableFactor, nullable: bool, items: &mut Vec<FromItem<'a>>) {
    let name = match factor {
        TableFactor::Table { name, alias, .. } => match alias {
            Some(a) => Some(a.name.clone()),
            None => name.0.last().and_then(|p| p.as_ident()).cloned(),
        },
        TableFactor::Derived { alias: Some(a), .. } => Some(a.name.clone()),
        TableFactor::NestedJoin { table_with_joins, .. } => {
            for mut item in from_items(std::slice::from_ref(table_with_joins.as_ref())) {
                item.nullable |= nullable;
                items.push(item);
            }
            return;
        }
        _ => None,
    };
    if let Some(name) = name {
        items.push(FromItem { name, factor, nullable });
    }
}

impl Binder {
    /// SELECT … FOR UPDATE and its kin.
    pub(super) fn select_locking(
        &self,
        query: &ast::Query,
        clauses: &[LockingClause],
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<LockingQuery> {
        // What the client sees, and all errors that the query has by itself.
        let plain = self.bind_query(query, text, self.batch(), params)?;
        let plain = self.query_of(plain, params)?;
        let shown = plain.schema.fields().len();
        let strongest = clauses.iter().map(|c| c.strength).max().unwrap_or(RowLock::KeyShare);
        let mut q = query.clone();
        let select = lockable(&mut q, clause_name(strongest))?;
        let items = from_items(&select.from);
        let mut targets: Vec<LockTarget> = Vec::new();
        let mut extra: Vec<SelectItem> = Vec::new();
        for (at, found) in items.iter().enumerate() {
            let Some((strength, wait)) = wanted(clauses, found, &items)? else {
                continue;
            };
            let Some((table, columns)) = self.lock_columns(found, strength).map_err(|e| locate(e, text))? else {
                continue;
            };
            targets.push(LockTarget {
                table,
                columns: (shown + extra.len(), columns.len()),
                strength,
                wait,
            });
            let qualifier = quoted(&fold(&found.name));
            extra.extend(
                columns
                    .iter()
                    .enumerate()
                    .map(|(i, c)| item(column_of(&qualifier, c), &format!("l{at}_{i}"))),
            );
        }
        select.projection.extend(extra);
        let bound = self.bind_query(&q, text, self.batch(), params)?;
        let mut query = self.query_of(bound, params)?;
        query.schema = plain.schema;
        Ok(LockingQuery { query, targets })
    }

    /// The table behind a relation of FROM and the columns that identify its rows; `None` if there is nothing to lock.
    fn lock_columns(&self, found: &FromItem<'_>, strength: RowLock) -> Result<Option<(ObjectId, Vec<String>)>> {
        let TableFactor::Table { name, args: None, .. } = found.factor else {
            return Err(PlanError::unsupported(format!(
                "{} of a subquery or function is not supported",
                clause_name(strength)
            ))
            .hint("Name the tables to lock after OF, or lock in the subquery's place."));
        };
        // System relations have nothing to lock.
        let Some(object) = self.named_object(name)? else {
            return Ok(None);
        };
        let table = &object.name;
        let ObjectKind::Table(def) = &object.kind else {
            return Err(PlanError::new(
                "42809",
                format!("cannot lock rows in {} \"{table}\"", object.kind_name()),
            )
            .hint("Lock the rows of the tables that it reads."));
        };
        if found.nullable {
            return Err(PlanError::new(
                "0A000",
                format!(
                    "{} cannot be applied to the nullable side of an outer join",
                    clause_name(strength)
                ),
            ));
        }
        let name_of = |c: usize| def.schema.field(c).name().clone();
        let columns = if def.primary_key.is_empty() {
            (0..def.schema.fields().len()).map(name_of).collect()
        } else {
            def.primary_key.iter().map(|&c| name_of(c)).collect()
        };
        Ok(Some((object.id, columns)))
    }
}

/// The one SELECT of a query whose rows are rows of tables.
fn lockable<'a>(q: &'a mut ast::Query, clause: &str) -> Result<&'a mut ast::Select> {
    let refuse = |what: &str| PlanError::new("0A000", format!("{clause} is not allowed with {what}"));
    match q.body.as_mut() {
        SetExpr::Select(s) => {
            if s.distinct.is_some() {
                return Err(refuse("DISTINCT clause"));
            }
            let grouped = match &s.group_by {
                GroupByExpr::All(_) => true,
                GroupByExpr::Expressions(keys, _) => !keys.is_empty(),
            };
            if grouped {
                return Err(refuse("GROUP BY clause"));
            }
            if s.having.is_some() {
                return Err(refuse("HAVING clause"));
            }
            if s.projection.iter().any(has_aggregate) {
                return Err(refuse("aggregate functions"));
            }
            Ok(s)
        }
        SetExpr::Query(inner) => lockable(inner, clause),
        SetExpr::Values(_) => Err(PlanError::new("0A000", format!("{clause} cannot be applied to VALUES"))),
        _ => Err(refuse("UNION/INTERSECT/EXCEPT")),
    }
}

fn has_aggregate(i: &SelectItem) -> bool {
    use std::ops::ControlFlow;
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = ();
        fn pre_visit_expr(&mut self, e: &ast::Expr) -> ControlFlow<()> {
            match e {
                ast::Expr::Function(f) => {
                    let name = f.name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
                    if f.over.is_some() || super::aggregates::is_aggregate(&name) {
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    ast::Visit::visit(i, &mut Finder).is_break()
}

/// The strongest clause that names the relation, with the least patient of their waits.
fn wanted(
    clauses: &[LockingClause],
    found: &FromItem<'_>,
    items: &[FromItem<'_>],
) -> Result<Option<(RowLock, LockWait)>> {
    let mut wanted: Option<(RowLock, LockWait)> = None;
    for clause in clauses {
        for of in &clause.of {
            if !items.iter().any(|i| fold(&i.name) == fold(of)) {
                return Err(PlanError::new(
                    "42P01",
                    format!(
                        "relation \"{}\" in {} clause not found in FROM clause",
                        fold(of),
                        clause_name(clause.strength)
                    ),
                ));
            }
        }
        let named = clause.of.is_empty() || clause.of.iter().any(|of| fold(of) == fold(&found.name));
        if !named {
            continue;
        }
        wanted = Some(match wanted {
            None => (clause.strength, clause.wait),
            Some((s, w)) => {
                let wait = match (w, clause.wait) {
                    (LockWait::Fail, _) | (_, LockWait::Fail) => LockWait::Fail,
                    (LockWait::Skip, _) | (_, LockWait::Skip) => LockWait::Skip,
                    _ => LockWait::Block,
                };
                (s.max(clause.strength), wait)
            }
        });
    }
    Ok(wanted)
}
