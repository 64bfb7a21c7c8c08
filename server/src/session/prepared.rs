//! Prepared statements and portals.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::scalar::ScalarValue;
use levee_planner::sql::{Ast, ExtStatement, Parsed, Statement, parts};
use sqlparser::ast::Statement as Sql;

use super::cursors::no_cursor;
use super::kept::Kept;
use super::query::Rows;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Prepared {
    /// `None`: the empty statement.
    pub parsed: Option<Parsed>,
    /// Types of `$1..`.
    pub params: Vec<DataType>,
    /// Result columns; `None`: no rows.
    pub schema: Option<SchemaRef>,
    /// Bound, for the next time.
    pub kept: Kept,
}

impl Prepared {
    /// Binds once, to learn parameters and result. Statements that return no rows and take no parameters are bound only when they
    /// run, as in PostgreSQL.
    pub fn new(binder: &SessionBinder, parsed: Option<Parsed>, declared: Vec<Option<DataType>>) -> Result<Self> {
        let Some(statement) = &parsed else {
            return Ok(Self {
                parsed,
                params: Vec::new(),
                schema: None,
                kept: Kept::default(),
            });
        };
        if let Some(parts) = parts(statement)? {
            let shape = binder.describe_parts(&parts, &declared)?;
            let (params, schema) = (shape.params, shape.schema);
            let kept = Kept::default();
            return Ok(Self {
                parsed,
                params,
                schema,
                kept,
            });
        }
        let kept = Kept::default();
        let (params, schema) = match &statement.ast {
            Ast::Sql(s)
                if matches!(
                    s.as_ref(),
                    Sql::Query(_) | Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_)
                ) =>
            {
                let bound = binder.bind(statement, &declared)?;
                kept.put(binder, &statement.text, &bound);
                match bound {
                    Statement::Query(q) => (q.params, Some(q.schema)),
                    Statement::Dml(d) => (d.query.params, d.returning.map(|q| q.schema)),
                    _ => (Vec::new(), None),
                }
            }
            Ast::Ext(s)
                if matches!(
                    s.as_ref(),
                    ExtStatement::SelectLocking { .. } | ExtStatement::Merge(_) | ExtStatement::DeclareCursor { .. }
                ) =>
            {
                let bound = binder.bind(statement, &declared)?;
                kept.put(binder, &statement.text, &bound);
                match bound {
                    Statement::SelectLocking(l) => (l.query.params, Some(l.query.schema)),
                    Statement::Dml(d) => (d.query.params, None),
                    Statement::DeclareCursor { query, .. } => (query.params, None),
                    _ => (Vec::new(), None),
                }
            }
            Ast::Ext(s) => (Vec::new(), extension_schema(s)),
            Ast::Sql(_) => (Vec::new(), None),
        };
        Ok(Self {
            parsed,
            params,
            schema,
            kept,
        })
    }

    /// Parameter types in the form that binding takes.
    pub fn types(&self) -> Vec<Option<DataType>> {
        self.params.iter().cloned().map(Some).collect()
    }
}

fn extension_schema(statement: &ExtStatement) -> Option<SchemaRef> {
    let text = |names: &[&str]| {
        let fields: Vec<Field> = names.iter().map(|n| Field::new(*n, DataType::Utf8, false)).collect();
        Some(Arc::new(Schema::new(fields)))
    };
    match statement {
        ExtStatement::Show(None) => text(&["name", "setting", "description"]),
        ExtStatement::Show(Some(name)) => text(&[shown_name(name)]),
        ExtStatement::Explain { .. } => text(&["QUERY PLAN"]),
        _ => None,
    }
}

/// Settings whose column heads are not lower case.
fn shown_name(name: &str) -> &str {
    match name {
        "timezone" => "TimeZone",
        "datestyle" => "DateStyle",
        "intervalstyle" => "IntervalStyle",
        other => other,
    }
}

impl Session {
    /// Binds a statement to learn its parameters and result.
    pub(super) async fn prepared(
        &mut self,
        parsed: Option<Parsed>,
        declared: Vec<Option<DataType>>,
    ) -> Result<Prepared> {
        let binder = self.binder();
        let short = parsed.as_ref().is_none_or(|p| super::is_short(p, &binder.catalog));
        let mut prepared = if short {
            Prepared::new(&binder, parsed, declared)?
        } else {
            self.planned(move || Prepared::new(&binder, parsed, declared)).await?
        };
        if let Some(Parsed { ast: Ast::Ext(s), .. }) = &prepared.parsed
            && let ExtStatement::Fetch {
                name, only_move: false, ..
            } = s.as_ref()
        {
            let cursor = self.cursors.get(name).ok_or_else(|| no_cursor(name))?;
            prepared.schema = Some(Arc::clone(cursor.schema()));
        }
        Ok(prepared)
    }
}

/// A bound statement, perhaps half read.
#[derive(Debug)]
pub(super) struct Portal {
    pub prepared: Arc<Prepared>,
    pub params: Vec<ScalarValue>,
    /// Result formats.
    pub binary: Vec<bool>,
    pub state: PortalState,
}

/// How far a portal has come.
#[derive(Debug)]
pub(super) enum PortalState {
    /// Not yet run.
    New,
    /// Rows are left.
    Open(Rows),
    /// Run to its end; the tag is answered again with no rows.
    Done(String),
}

/// 26000.
pub(super) fn no_statement(name: &str) -> SqlError {
    if name.is_empty() {
        return SqlError::new("26000", "unnamed prepared statement does not exist");
    }
    SqlError::new("26000", format!("prepared statement \"{name}\" does not exist"))
}

/// 34000.
pub(super) fn no_portal(name: &str) -> SqlError {
    SqlError::new("34000", format!("portal \"{name}\" does not exist"))
}
