//! Binding of a whole statement: which kind it is, and who binds it.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan};
use sqlparser::ast::Statement as Sql;

use super::ast::ExtStatement;
use super::errors::map_df_error;
use super::operators::coerce;
use super::typing::typed;
use super::{Ast, Binder, Parsed, Statement, pg_session_state, types};
use crate::{PlanError, Result};

impl Binder {
    /// Binds a statement. `param_types` are the types that the client declared for `$1..`.
    ///
    /// # Errors
    /// With PostgreSQL's code; positions are in `parsed.text`.
    pub fn bind(&self, parsed: &Parsed, param_types: &[Option<DataType>]) -> Result<Statement> {
        match &parsed.ast {
            Ast::Sql(s) => self.bind_sql(s, &parsed.text, param_types),
            Ast::Ext(s) => self.bind_ext(s, &parsed.text, param_types),
        }
    }

    /// The session that optimises and runs batch plans bound here.
    pub fn session_state(&self) -> SessionState {
        let mut state = self
            .base
            .as_deref()
            .cloned()
            .unwrap_or_else(|| pg_session_state(self.settings.parallelism, None));
        for f in &self.extra_udfs {
            // Registration of a named function into a fresh state has no failing case.
            let _previous = datafusion::execution::FunctionRegistry::register_udf(&mut state, std::sync::Arc::clone(f));
        }
        state
    }

    fn bind_sql(&self, s: &Sql, text: &str, params: &[Option<DataType>]) -> Result<Statement> {
        match s {
            Sql::Query(q) => {
                if let Some(dml) = self.write_with(q, text, params)? {
                    return Ok(Statement::Dml(Box::new(dml)));
                }
                if let Some(c) = super::create_as::select_into(q) {
                    return self.create_table_as(&c, text, params);
                }
                let bound = self.bind_query(q, text, self.batch(), params)?;
                Ok(Statement::Query(self.query_of(bound, params)?))
            }
            Sql::Insert(i) => self.insert(i, text, params).map(|d| Statement::Dml(Box::new(d))),
            Sql::Update(u) => self.update(u, None, text, params).map(|d| Statement::Dml(Box::new(d))),
            Sql::Delete(d) => self.delete(d, None, text, params).map(|d| Statement::Dml(Box::new(d))),
            Sql::CreateTable(t) => self.located(self.create_table(t, text), text),
            other => {
                let head: Vec<&str> = text.split_whitespace().take(2).collect();
                let _ = other;
                Err(
                    PlanError::unsupported(format!("{} is not supported", head.join(" ").to_uppercase()))
                        .hint("docs/sql.md lists the statements that work."),
                )
            }
        }
    }

    fn bind_ext(&self, s: &ExtStatement, text: &str, params: &[Option<DataType>]) -> Result<Statement> {
        Ok(match s {
            ExtStatement::CreateView(v) => return self.located(self.create_view(v, text), text),
            ExtStatement::CreateSource(c) => return self.located(self.create_source(c, text), text),
            ExtStatement::CreateFedTable(c) => return self.located(self.create_fed_table(c, text), text),
            ExtStatement::CreateSink(c) => return self.located(self.create_sink(c, text), text),
            ExtStatement::Drop(d) => return self.drop_objects(d),
            ExtStatement::CreateTableLike(t, likes) => {
                return self.located(self.create_table_like(t, likes, text), text);
            }
            ExtStatement::Definition(d) => return self.definition(d, text),
            ExtStatement::Copy(c) if c.to => Statement::CopyTo(self.copy_to(c, text)?),
            ExtStatement::Copy(c) => Statement::CopyFrom(self.copy_from(c, text)?),
            ExtStatement::CreateTableAs(c) => return self.create_table_as(c, text, params),
            ExtStatement::Merge(m) => Statement::Dml(Box::new(self.merge(m, text, params)?)),
            ExtStatement::Truncate {
                names,
                restart_identity,
                cascade,
            } => self.truncate(names, *restart_identity, *cascade, text)?,
            ExtStatement::SelectLocking { query, clauses } => {
                Statement::SelectLocking(self.select_locking(query, clauses, text, params)?)
            }
            ExtStatement::LockTable { names, mode, nowait } => self.lock_table(names, *mode, *nowait, text)?,
            ExtStatement::Savepoint(name) => Statement::Savepoint(name.clone()),
            ExtStatement::Release(name) => Statement::Release(name.clone()),
            ExtStatement::RollbackTo(name) => Statement::RollbackTo(name.clone()),
            ExtStatement::DeclareCursor {
                name,
                binary,
                scroll,
                hold,
                query,
            } => {
                let bound = self.bind_query(query, text, self.batch(), params)?;
                Statement::DeclareCursor {
                    name: name.clone(),
                    binary: *binary,
                    scroll: *scroll,
                    hold: *hold,
                    query: self.query_of(bound, params)?,
                }
            }
            ExtStatement::Fetch { name, to, only_move } => Statement::Fetch {
                name: name.clone(),
                to: *to,
                only_move: *only_move,
            },
            ExtStatement::CloseCursor(name) => Statement::CloseCursor(name.clone()),
            ExtStatement::Explain {
                analyze,
                stream,
                statement,
            } => return self.explain(*analyze, *stream, statement, params),
            ExtStatement::Prepare { name, types, statement } => Statement::Prepare {
                name: name.clone(),
                types: types
                    .iter()
                    .map(|t| types::field_of(t).map(|f| f.data_type().clone()))
                    .collect::<Result<_>>()?,
                statement: statement.clone(),
            },
            ExtStatement::Execute { name, args } => Statement::Execute {
                name: name.clone(),
                args: args.iter().map(|a| self.constant(a)).collect::<Result<_>>()?,
            },
            ExtStatement::Set { name, value, local } => Statement::Set {
                name: name.clone(),
                value: value.clone(),
                local: *local,
            },
            ExtStatement::Show(name) => Statement::Show(name.clone()),
            ExtStatement::Reset(name) => Statement::Reset(name.clone()),
            ExtStatement::Begin { read_only, isolation } => Statement::Begin {
                read_only: *read_only,
                isolation: isolation.clone(),
            },
            ExtStatement::Commit => Statement::Commit,
            ExtStatement::Rollback => Statement::Rollback,
            ExtStatement::Deallocate(name) => Statement::Deallocate(name.clone()),
            ExtStatement::Discard(what) => Statement::Discard(what),
            ExtStatement::Flush => Statement::Flush,
            ExtStatement::Job(super::jobs::JobStatement::SetOptions { kind, name, options }) => {
                Statement::Alter(self.set_options(kind, name, options)?)
            }
            ExtStatement::Job(j) => Statement::Job(self.job(j)?),
            ExtStatement::NoOp(tag) => Statement::NoOp {
                tag,
                notice: (*tag == "LISTEN").then(|| "notifications are never sent".to_owned()),
            },
            ExtStatement::Unsupported { what, hint } => {
                return Err(PlanError::unsupported(format!("{what} is not supported")).hint(hint.clone()));
            }
        })
    }

    /// The value of an expression without inputs.
    fn constant(&self, e: &sqlparser::ast::Expr) -> Result<datafusion::scalar::ScalarValue> {
        let empty = DFSchema::empty();
        let bound = self.bind_expr(e, &empty, self.batch(), &[])?;
        let t = typed(bound, &empty).map_err(map_df_error)?;
        if let (Expr::Literal(v, _), None) = (&t.expr, &t.ty) {
            return Ok(v.clone());
        }
        let target = t.ty.clone().unwrap_or(DataType::Utf8);
        let e = coerce(t, &target)?;
        match super::bind::simplify(e)? {
            Expr::Literal(v, _) => Ok(v),
            _ => {
                Err(PlanError::unsupported("EXECUTE takes constants only").hint("Compute the value in a SELECT first."))
            }
        }
    }

    fn explain(&self, analyze: bool, stream: bool, parsed: &Parsed, params: &[Option<DataType>]) -> Result<Statement> {
        let shift = |mut e: PlanError| {
            e.position = e.position.map(|p| p + parsed.offset);
            e
        };
        let plan = match &parsed.ast {
            Ast::Ext(s) => match s.as_ref() {
                ExtStatement::CreateView(v) if v.materialized => {
                    Some(self.stream_plan(&v.query, &v.columns, &parsed.text))
                }
                ExtStatement::CreateSink(c) => {
                    let q = self.sink_query(&c.input)?;
                    Some(self.stream_plan(&q, &[], &parsed.text))
                }
                _ => None,
            },
            Ast::Sql(s) => match s.as_ref() {
                Sql::Query(q) if stream => {
                    let q = super::ast::QueryText {
                        text: parsed.text.clone(),
                        offset: 0,
                        query: q.clone(),
                    };
                    Some(self.stream_plan(&q, &[], &parsed.text))
                }
                _ => None,
            },
        };
        if let Some(plan) = plan {
            let (plan, _) = plan.map_err(shift)?;
            return Ok(Statement::Explain {
                lines: crate::stream::explain(&plan),
            });
        }
        match self.bind(parsed, params).map_err(shift)? {
            Statement::Query(query) => Ok(Statement::ExplainQuery { query, analyze }),
            Statement::SelectLocking(locking) if !analyze => Ok(Statement::ExplainQuery {
                query: locking.query,
                analyze,
            }),
            Statement::Dml(dml) if !analyze => Ok(Statement::ExplainQuery {
                query: dml.query,
                analyze,
            }),
            Statement::Dml(_) => Err(PlanError::unsupported("EXPLAIN ANALYZE of a write is not supported")
                .hint("EXPLAIN it without ANALYZE.")),
            _ => Err(PlanError::unsupported("EXPLAIN of this statement is not supported")
                .hint("EXPLAIN takes SELECT, INSERT, UPDATE, DELETE, CREATE MATERIALIZED VIEW and CREATE SINK.")),
        }
    }
}

/// The plan's lines for EXPLAIN, indented as DataFusion prints them.
pub fn plan_lines(plan: &LogicalPlan) -> Vec<String> {
    plan.display_indent().to_string().lines().map(str::to_owned).collect()
}
