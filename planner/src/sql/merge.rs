//! MERGE: grammar and binding.
//!
//! One query pairs the source's rows with the target's and says for each pair which clause applies and what the row becomes:
//!
//! ```text
//! SELECT CASE WHEN matched AND c1 THEN 1 WHEN NOT matched AND c2 THEN 2 END,  old columns,
//!        CASE WHEN matched AND c1 THEN new a WHEN … END, …
//! FROM source LEFT JOIN (SELECT *, true AS matched FROM target) AS target ON condition
//! ```

use arrow::datatypes::{DataType, Field, Schema};
use sqlparser::ast::{
    self, BinaryOperator, CaseWhen, Expr, Ident, SelectItem, SetExpr, TableFactor, UnaryOperator, Value,
};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{IsOptional, Parser, ParserError};
use sqlparser::tokenizer::Token;
use std::sync::Arc;

use super::assign::mark_assign;
use super::ast::{ExtStatement, Merge, MergeAction, MergeClause};
use super::changed::quoted;
use super::dml::{assigned_columns, column_of, default_text, item, nullable, old_columns, target_columns};
use super::errors::locate;
use super::ext::{fold, skip, word_is};
use super::parse::ParseContext;
use super::places::{Place, Places};
use super::{Binder, Dml, DmlKind};
use crate::catalog::{CatalogObject, TableDef};
use crate::{PlanError, Result};

/// Tells a row of the target from the NULLs of an outer join.
const MATCHED: &str = "\u{1}matched";
/// Number of equal rows of a target without a key.
const COUNT: &str = "\u{1}count";

/// What MERGE does with a pair, as the first column of its rows; NULL: nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOutcome {
    /// The new row is added.
    Insert = 0,
    /// The old row is replaced.
    Update = 1,
    /// The old row goes.
    Delete = 2,
}

/// `MERGE INTO t [AS x] USING source ON condition WHEN …`.
pub(super) fn merge(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let err = |e: ParserError| cx.error(e);
    skip(p, 1);
    p.expect_keyword(Keyword::INTO).map_err(err)?;
    let _noise = p.parse_keyword(Keyword::ONLY);
    let table = p.parse_object_name(false).map_err(err)?;
    let mut alias = None;
    if p.parse_keyword(Keyword::AS) || !word_is(p, "using") {
        alias = Some(p.parse_identifier().map_err(err)?);
    }
    p.expect_keyword(Keyword::USING).map_err(err)?;
    let source = ast::TableWithJoins {
        relation: p.parse_table_factor().map_err(err)?,
        joins: Vec::new(),
    };
    p.expect_keyword(Keyword::ON).map_err(err)?;
    let on = expr(p, cx)?;
    let mut clauses = Vec::new();
    while p.parse_keyword(Keyword::WHEN) {
        clauses.push(clause(p, cx)?);
    }
    if clauses.is_empty() {
        return Err(cx.error_here(p));
    }
    Ok(ExtStatement::Merge(Box::new(Merge {
        table,
        alias,
        source,
        on,
        clauses,
    })))
}

fn expr(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Expr> {
    let mut e = p.parse_expr().map_err(|e| cx.error(e))?;
    super::precedence::settle(&mut e)?;
    Ok(e)
}

fn clause(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<MergeClause> {
    let err = |e: ParserError| cx.error(e);
    let matched = !p.parse_keyword(Keyword::NOT);
    p.expect_keyword(Keyword::MATCHED).map_err(err)?;
    let condition = if p.parse_keyword(Keyword::AND) {
        Some(expr(p, cx)?)
    } else {
        None
    };
    p.expect_keyword(Keyword::THEN).map_err(err)?;
    let action = if word_is(p, "do") {
        skip(p, 1);
        if !word_is(p, "nothing") {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
        MergeAction::Nothing
    } else if matched && word_is(p, "delete") {
        skip(p, 1);
        MergeAction::Delete
    } else if matched && word_is(p, "update") {
        skip(p, 1);
        p.expect_keyword(Keyword::SET).map_err(err)?;
        let mut assignments = p.parse_comma_separated(Parser::parse_assignment).map_err(err)?;
        for a in &mut assignments {
            super::precedence::settle(&mut a.value)?;
        }
        MergeAction::Update(assignments)
    } else if !matched && word_is(p, "insert") {
        skip(p, 1);
        insert(p, cx)?
    } else {
        return Err(cx.error_here(p));
    };
    Ok(MergeClause {
        matched,
        condition,
        action,
    })
}

fn insert(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<MergeAction> {
    let err = |e: ParserError| cx.error(e);
    let columns = p
        .parse_parenthesized_column_list(IsOptional::Optional, false)
        .map_err(err)?;
    if word_is(p, "default") {
        skip(p, 1);
        p.expect_keyword(Keyword::VALUES).map_err(err)?;
        return Ok(MergeAction::Insert { columns, values: None });
    }
    p.expect_keyword(Keyword::VALUES).map_err(err)?;
    p.expect_token(&Token::LParen).map_err(err)?;
    let mut values = p.parse_comma_separated(Parser::parse_expr).map_err(err)?;
    for v in &mut values {
        super::precedence::settle(v)?;
    }
    p.expect_token(&Token::RParen).map_err(err)?;
    Ok(MergeAction::Insert {
        columns,
        values: Some(values),
    })
}

fn null() -> Expr {
    Expr::Value(Value::Null.into())
}

fn number(n: usize) -> Expr {
    Expr::Value(Value::Number(n.to_string(), false).into())
}

fn case(conditions: Vec<CaseWhen>) -> Expr {
    if conditions.is_empty() {
        return null();
    }
    Expr::Case {
        case_token: ast::helpers::attached_token::AttachedToken::empty(),
        end_token: ast::helpers::attached_token::AttachedToken::empty(),
        operand: None,
        conditions,
        else_result: None,
    }
}

impl Binder {
    /// MERGE: outcome, old row, new row [, number of equal old rows].
    pub(super) fn merge(&self, m: &Merge, text: &str, params: &[Option<DataType>]) -> Result<Dml> {
        let (object, table) = self.target_table(&m.table, "merge into").map_err(|e| locate(e, text))?;
        let qualifier = m
            .alias
            .as_ref()
            .map_or_else(|| quoted(&object.name), |a| quoted(&fold(a)));
        reachable(&m.clauses)?;
        let places = Places::new(self, text);
        for clause in &m.clauses {
            if let Some(condition) = &clause.condition {
                places.expr(condition, Place::clause("MERGE WHEN conditions"))?;
            }
            match &clause.action {
                MergeAction::Update(assignments) => places.write(&[], assignments, None)?,
                MergeAction::Insert { values, .. } => places.write(values.as_slice(), &[], None)?,
                MergeAction::Nothing | MergeAction::Delete => {}
            }
        }
        let counted = table.primary_key.is_empty();
        let matched = column_of(&qualifier, MATCHED);
        let mut outcome = Vec::new();
        let mut new: Vec<Vec<CaseWhen>> = vec![Vec::new(); table.schema.fields().len()];
        for clause in &m.clauses {
            let test = test_of(clause, &matched);
            let (code, values) = action_values(clause, object, table, &qualifier).map_err(|e| locate(e, text))?;
            outcome.push(CaseWhen {
                condition: test.clone(),
                result: code.map_or_else(null, |c| number(c as usize)),
            });
            for (column, (slot, value)) in new.iter_mut().zip(values).enumerate() {
                slot.push(CaseWhen {
                    condition: test.clone(),
                    result: mark_assign(value.unwrap_or_else(null), table.schema.field(column)),
                });
            }
        }
        let outcome = Expr::Cast {
            kind: ast::CastKind::Cast,
            expr: Box::new(case(outcome)),
            data_type: ast::DataType::Int4(None),
            array: false,
            format: None,
        };
        let mut items = vec![item(outcome, "outcome")];
        items.extend(old_columns(table, &qualifier));
        let new = new.into_iter().enumerate();
        items.extend(new.map(|(i, c)| item(case(c), &format!("n{i}"))));
        if counted {
            items.push(item(column_of(&qualifier, COUNT), "count"));
        }
        let plan = self.pairs(m, table, &qualifier, items, text, params)?;
        let mut fields = vec![Arc::new(Field::new("outcome", DataType::Int32, true))];
        for _ in 0..2 {
            fields.extend(nullable(&table.schema).fields().iter().cloned());
        }
        let mut dml = self.dml(object, DmlKind::Merge, plan, Arc::new(Schema::new(fields)), params)?;
        dml.counted = counted;
        Ok(dml)
    }

    fn pairs(
        &self,
        m: &Merge,
        table: &TableDef,
        qualifier: &Ident,
        items: Vec<SelectItem>,
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<datafusion::logical_expr::LogicalPlan> {
        let join = if m.clauses.iter().any(|c| !c.matched) {
            "LEFT JOIN"
        } else {
            "JOIN"
        };
        let mut q = super::parse::parse_query(&format!("SELECT 1 FROM s {join} (SELECT true FROM t) AS d ON true"))?;
        let SetExpr::Select(s) = q.body.as_mut() else {
            return Err(PlanError::internal("a join is not a SELECT"));
        };
        s.projection = items;
        let from = s
            .from
            .first_mut()
            .ok_or_else(|| PlanError::internal("a join without tables"))?;
        from.relation = m.source.relation.clone();
        let joined = from
            .joins
            .first_mut()
            .ok_or_else(|| PlanError::internal("a join without a join"))?;
        if let ast::JoinOperator::Left(c)
        | ast::JoinOperator::LeftOuter(c)
        | ast::JoinOperator::Join(c)
        | ast::JoinOperator::Inner(c) = &mut joined.join_operator
        {
            *c = ast::JoinConstraint::On(m.on.clone());
        }
        let TableFactor::Derived {
            subquery,
            alias: Some(alias),
            ..
        } = &mut joined.relation
        else {
            return Err(PlanError::internal("a derived table is missing"));
        };
        alias.name = qualifier.clone();
        target_rows(subquery, m, table)?;
        Ok(self.bind_query(&q, text, self.batch(), params)?.plan)
    }
}

/// `SELECT a, b, true FROM t`, or its distinct rows with their number.
fn target_rows(q: &mut ast::Query, m: &Merge, table: &TableDef) -> Result<()> {
    let SetExpr::Select(s) = q.body.as_mut() else {
        return Err(PlanError::internal("a derived table is not a SELECT"));
    };
    let columns: Vec<Expr> = table
        .schema
        .fields()
        .iter()
        .map(|f| Expr::Identifier(quoted(f.name())))
        .collect();
    let mut marks = vec![(Expr::Value(Value::Boolean(true).into()), MATCHED)];
    if table.primary_key.is_empty() {
        marks.push((super::parse::parse_expr("count(*)")?, COUNT));
        s.group_by = ast::GroupByExpr::Expressions(columns.clone(), Vec::new());
    }
    s.projection = columns.into_iter().map(SelectItem::UnnamedExpr).collect();
    s.projection
        .extend(marks.into_iter().map(|(expr, name)| SelectItem::ExprWithAlias {
            expr,
            alias: quoted(name),
        }));
    if let Some(TableFactor::Table { name, .. }) = s.from.first_mut().map(|f| &mut f.relation) {
        *name = m.table.clone();
    }
    Ok(())
}

/// A clause without a condition ends those of its kind.
fn reachable(clauses: &[MergeClause]) -> Result<()> {
    for matched in [true, false] {
        let mut kind = clauses.iter().filter(|c| c.matched == matched);
        let last = kind.by_ref().find(|c| c.condition.is_none());
        if last.is_some() && kind.next().is_some() {
            return Err(PlanError::new(
                "42601",
                "unreachable WHEN clause specified after unconditional WHEN clause",
            ));
        }
    }
    Ok(())
}

fn test_of(clause: &MergeClause, matched: &Expr) -> Expr {
    let is_matched = Expr::IsNotNull(Box::new(matched.clone()));
    let kind = if clause.matched {
        is_matched
    } else {
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr: Box::new(Expr::Nested(Box::new(is_matched))),
        }
    };
    match &clause.condition {
        None => kind,
        Some(c) => Expr::BinaryOp {
            left: Box::new(Expr::Nested(Box::new(kind))),
            op: BinaryOperator::And,
            right: Box::new(Expr::Nested(Box::new(c.clone()))),
        },
    }
}

type NewValues = (Option<MergeOutcome>, Vec<Option<Expr>>);

/// What a clause does, and the new row's columns.
fn action_values(
    clause: &MergeClause,
    object: &CatalogObject,
    table: &TableDef,
    qualifier: &Ident,
) -> Result<NewValues> {
    let n = table.schema.fields().len();
    match &clause.action {
        MergeAction::Nothing => Ok((None, vec![None; n])),
        MergeAction::Delete => Ok((Some(MergeOutcome::Delete), vec![None; n])),
        MergeAction::Update(assignments) => {
            let assigned = assigned_columns(assignments, object, table)?;
            let values = assigned
                .into_iter()
                .enumerate()
                .map(|(c, a)| match a {
                    None => Ok(Some(column_of(qualifier, table.schema.field(c).name()))),
                    Some(None) => default_text(table, c).map(Some),
                    Some(Some(e)) => Ok(Some(e)),
                })
                .collect::<Result<_>>()?;
            Ok((Some(MergeOutcome::Update), values))
        }
        MergeAction::Insert { columns, values } => {
            let names: Vec<String> = columns.iter().map(fold).collect();
            let targets = target_columns(object, table, &names)?;
            let mut out: Vec<Option<Expr>> = vec![None; n];
            if let Some(values) = values {
                if values.len() > targets.len() {
                    return Err(PlanError::new(
                        "42601",
                        "INSERT has more expressions than target columns",
                    ));
                }
                if values.len() < targets.len() && !columns.is_empty() {
                    return Err(PlanError::new(
                        "42601",
                        "INSERT has more target columns than expressions",
                    ));
                }
                for (value, &c) in values.iter().zip(&targets) {
                    if !super::dml::is_default(value)
                        && super::table::takes_value(table, c, super::table::Overriding::None)?
                        && let Some(slot) = out.get_mut(c)
                    {
                        *slot = Some(value.clone());
                    }
                }
            }
            for (c, slot) in out.iter_mut().enumerate() {
                if slot.is_none() {
                    *slot = Some(default_text(table, c)?);
                }
            }
            Ok((Some(MergeOutcome::Insert), out))
        }
    }
}
