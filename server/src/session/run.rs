//! Runs one bound statement, whatever it is.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::scalar::ScalarValue;
use levee_planner::catalog::{CatalogObject, ObjectKind};
use levee_planner::sql::{Ast, ExtStatement, Parsed, Statement, bind_params, parts};

use super::ddl::dropping;
use super::kept::Kept;
use super::query::Rows;
use super::txn::{Txn, failed_block};
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// What a statement answers.
pub(super) enum Outcome {
    /// A command tag.
    Tag(String),
    /// Rows, then a tag.
    Rows(Rows),
}

impl Outcome {
    fn tag(tag: impl Into<String>) -> Result<Self> {
        Ok(Self::Tag(tag.into()))
    }
}

/// Statements that are allowed in a failed block.
pub(super) fn ends_block(parsed: &Parsed) -> bool {
    matches!(
        &parsed.ast,
        Ast::Ext(s) if matches!(
            s.as_ref(),
            ExtStatement::Commit | ExtStatement::Rollback | ExtStatement::RollbackTo(_)
        )
    )
}

impl Session {
    /// Binds and runs a statement. `types` are the parameters' types, `params` their values; `kept` is where a prepared statement
    /// keeps what was bound.
    pub(super) async fn run_statement(
        &mut self,
        parsed: &Parsed,
        types: &[Option<DataType>],
        params: &[ScalarValue],
        kept: Option<&Kept>,
    ) -> Result<Outcome> {
        if matches!(self.txn, Txn::Failed(_)) && !ends_block(parsed) {
            return Err(failed_block());
        }
        if let Some(parts) = parts(parsed)? {
            return self.run_parts(parts, types, params).await;
        }
        let binder = self.binder();
        let bound = match kept.and_then(|k| k.get(&binder)) {
            Some(bound) => bound,
            None => {
                let bound = self.bind(&binder, parsed, types).await?;
                if let Some(kept) = kept {
                    kept.put(&binder, &parsed.text, &bound);
                }
                bound
            }
        };
        let outcome = self.run_bound(parsed, &binder, bound, types, params).await;
        let outcome = match outcome {
            // Outside of a block each statement is a transaction, at whose end temporary tables may be emptied.
            Ok(outcome) if matches!(self.txn, Txn::Idle) => self.end_of_temporary_rows().await.map(|()| outcome),
            other => other,
        };
        if matches!(self.txn, Txn::Idle) {
            self.locks.release_to(0);
        }
        outcome
    }

    pub(super) async fn run_bound(
        &mut self,
        parsed: &Parsed,
        binder: &SessionBinder,
        bound: Statement,
        types: &[Option<DataType>],
        params: &[ScalarValue],
    ) -> Result<Outcome> {
        match bound {
            Statement::Query(query) => self.start_query(binder, &query, params).await.map(Outcome::Rows),
            Statement::Dml(dml) => self.run_dml(parsed, binder, *dml, types, params).await,
            Statement::SelectLocking(locking) => self.select_locking(binder, &locking, params).await.map(Outcome::Rows),
            Statement::Truncate { tables, .. } => {
                self.truncate(binder, &tables).await?;
                Outcome::tag("TRUNCATE TABLE")
            }
            Statement::LockTable { tables, mode, nowait } => {
                self.lock_tables(binder, &tables, mode, nowait).await?;
                Outcome::tag("LOCK TABLE")
            }
            Statement::CopyTo(copy) => self.copy_to(binder, &copy).await.map(Outcome::Tag),
            Statement::DeclareCursor {
                name,
                binary,
                scroll,
                hold,
                query,
            } => {
                let scroll = scroll.unwrap_or(false);
                self.declare_cursor(binder, name, binary, scroll, hold, &query, params)
                    .await?;
                Outcome::tag("DECLARE CURSOR")
            }
            Statement::Fetch { name, to, only_move } => self.fetch(&name, to, only_move).await,
            Statement::CopyFrom(copy) => self.copy_from(binder, &copy).await.map(Outcome::Tag),
            Statement::Create {
                object,
                also,
                notices,
                no_data,
                ..
            } => {
                let mode = self.create_mode(no_data);
                self.create(parsed, binder, *object, also, notices, mode).await
            }
            Statement::Job(action) => self.run_job(action).await,
            Statement::Drop {
                objects,
                also,
                tag,
                notices,
            } => {
                let alter = dropping(objects, also, tag, notices);
                self.alter(parsed, binder, alter).await
            }
            Statement::CreateTable {
                create,
                query,
                on_commit,
            } => {
                self.create_table(parsed, binder, *create, query, on_commit, params)
                    .await
            }
            Statement::Alter(alter) => self.alter(parsed, binder, alter).await,
            Statement::Notice { tag, message, code } => {
                self.notice(&SqlError::notice(code, message))?;
                Outcome::tag(tag)
            }
            Statement::Explain { lines } => Ok(Outcome::Rows(text_rows("QUERY PLAN", lines, "EXPLAIN")?)),
            Statement::ExplainQuery { query, analyze } => {
                let plan = bind_params(query.plan.clone(), params)?;
                let lines = self.explain(binder, &query, plan, analyze).await?;
                Ok(Outcome::Rows(text_rows("QUERY PLAN", lines, "EXPLAIN")?))
            }
            Statement::Prepare { name, types, statement } => {
                self.prepare(name, *statement, types).await?;
                Outcome::tag("PREPARE")
            }
            Statement::Execute { name, args } => self.execute_prepared(&name, args).await,
            Statement::Begin { read_only, isolation } => {
                self.begin(read_only, isolation.as_deref())?;
                let starts = parsed.text.get(..5).is_some_and(|w| w.eq_ignore_ascii_case("start"));
                Outcome::tag(if starts { "START TRANSACTION" } else { "BEGIN" })
            }
            Statement::Flush => {
                let engine = Arc::clone(&self.server.engine);
                self.guarded(async move { Ok(engine.flush().await?) }).await?;
                Outcome::tag("FLUSH")
            }
            other => self.run_session_statement(other).await,
        }
    }

    /// SET, SHOW, transaction control and the like.
    async fn run_session_statement(&mut self, bound: Statement) -> Result<Outcome> {
        match bound {
            Statement::Set { name, value, local } => {
                self.set(&name, value.as_deref(), local)?;
                Outcome::tag("SET")
            }
            Statement::Show(name) => self.show(name.as_deref()).map(Outcome::Rows),
            Statement::Reset(name) => {
                match name {
                    Some(name) => self.set(&name, None, false)?,
                    None => self.reset_all()?,
                }
                Outcome::tag("RESET")
            }
            Statement::Commit => Outcome::tag(self.commit().await?),
            Statement::Rollback => {
                self.rollback()?;
                Outcome::tag("ROLLBACK")
            }
            Statement::Savepoint(name) => {
                self.savepoint(name)?;
                Outcome::tag("SAVEPOINT")
            }
            Statement::Release(name) => {
                self.release_savepoint(&name)?;
                Outcome::tag("RELEASE")
            }
            Statement::RollbackTo(name) => {
                self.rollback_to(&name)?;
                Outcome::tag("ROLLBACK")
            }
            Statement::CloseCursor(name) => Outcome::tag(self.close_cursor(name.as_deref())?),
            Statement::Deallocate(None) => {
                self.statements.clear();
                Outcome::tag("DEALLOCATE ALL")
            }
            Statement::Deallocate(Some(name)) => match self.statements.remove(&name) {
                Some(_) => Outcome::tag("DEALLOCATE"),
                None => Err(super::prepared::no_statement(&name)),
            },
            Statement::Discard(what) if what != "all" => {
                match what {
                    "temp" => self.drop_temporary().await,
                    "plans" => {}
                    _ => self.forget_sequences(),
                }
                Outcome::tag(format!("DISCARD {}", what.to_uppercase()))
            }
            Statement::Discard(_) => {
                if matches!(self.txn, Txn::Open(_)) {
                    return Err(SqlError::new(
                        "25001",
                        "DISCARD ALL cannot run inside a transaction block",
                    ));
                }
                self.statements.clear();
                self.portals.clear();
                self.cursors.clear();
                self.locks.unlock_session_all();
                self.reset_all()?;
                self.drop_temporary().await;
                self.forget_sequences();
                Outcome::tag("DISCARD ALL")
            }
            Statement::NoOp { tag, notice } => {
                if let Some(notice) = notice {
                    self.notice(&SqlError::notice("00000", notice))?;
                }
                Outcome::tag(tag)
            }
            _ => Err(SqlError::internal("statement of an unknown kind")),
        }
    }

    fn set(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<()> {
        if local && !matches!(self.txn, Txn::Open(_) | Txn::Implicit(_)) {
            return self.notice(&SqlError::warning(
                "25P01",
                "SET LOCAL can only be used in transaction blocks",
            ));
        }
        if name == "transaction_isolation" {
            if self.txn.block().is_some_and(super::txn::Block::has_begun) {
                return Err(SqlError::new(
                    "25001",
                    "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                ));
            }
            // Checks the word first.
            self.settings.clone().set(name, value)?;
            let level = value
                .unwrap_or_else(|| self.settings.text("default_transaction_isolation"))
                .to_owned();
            return self.set_isolation(&level);
        }
        if let Some((name, value)) = self.settings.set(name, value)? {
            self.report(name, value)?;
        }
        if name == "transaction_read_only" {
            let on = self.settings.is_on(name);
            if let Some(block) = self.txn.block_mut() {
                block.read_only = on;
            }
        }
        if local {
            self.set_local(name);
        }
        Ok(())
    }

    fn reset_all(&mut self) -> Result<()> {
        for (name, value) in self.settings.reset_all() {
            self.report(name, value)?;
        }
        Ok(())
    }

    fn show(&self, name: Option<&str>) -> Result<Rows> {
        if let Some(name) = name {
            let (shown, value) = self.settings.show(name)?;
            return text_rows(&shown, vec![value], "SHOW");
        }
        let all = self.settings.all();
        let names: Vec<&str> = all.iter().map(|(n, _, _)| n.as_str()).collect();
        let values: Vec<&str> = all.iter().map(|(_, v, _)| v.as_str()).collect();
        let texts: Vec<&str> = all.iter().map(|(_, _, d)| *d).collect();
        let columns = [("name", names), ("setting", values), ("description", texts)];
        let schema = Schema::new(
            columns
                .iter()
                .map(|(n, _)| Field::new(*n, DataType::Utf8, false))
                .collect::<Vec<_>>(),
        );
        let arrays = columns
            .into_iter()
            .map(|(_, v)| Arc::new(StringArray::from(v)) as ArrayRef)
            .collect();
        let batch = RecordBatch::try_new(Arc::new(schema), arrays)?;
        Ok(Rows::of_batch(batch, "SHOW"))
    }

    /// DDL stands alone: it takes effect at once.
    pub(super) async fn before_ddl(&mut self, what: &str) -> Result<()> {
        if let Txn::Open(block) = &mut self.txn {
            if block.read_only {
                return Err(SqlError::new(
                    "25006",
                    format!("cannot execute {what} in a read-only transaction"),
                ));
            }
            if !block.pass_ddl() {
                return Err(
                    SqlError::new("25001", format!("{what} cannot run inside a transaction block"))
                        .hint("Run it before the block's writes, or outside of a block."),
                );
            }
            return Ok(());
        }
        // In a string of statements, those before it are committed first.
        self.commit_implicit().await
    }

    async fn prepare(&mut self, name: String, statement: Parsed, types: Vec<DataType>) -> Result<()> {
        if self.statements.contains_key(&name) {
            return Err(SqlError::new(
                "42P05",
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let declared = types.into_iter().map(Some).collect();
        let prepared = self.prepared(Some(statement), declared).await?;
        self.statements.insert(name, Arc::new(prepared));
        Ok(())
    }

    async fn execute_prepared(&mut self, name: &str, args: Vec<ScalarValue>) -> Result<Outcome> {
        let prepared = self
            .statements
            .get(name)
            .cloned()
            .ok_or_else(|| super::prepared::no_statement(name))?;
        if args.len() != prepared.params.len() {
            return Err(SqlError::new(
                "42601",
                format!("wrong number of parameters for prepared statement \"{name}\""),
            )
            .detail(format!(
                "Expected {} parameters but got {}.",
                prepared.params.len(),
                args.len()
            )));
        }
        let zone = self.settings.zone().clone();
        let mut values = Vec::with_capacity(args.len());
        for (value, t) in args.into_iter().zip(&prepared.params) {
            values.push(match value {
                v if &v.data_type() == t => v,
                ScalarValue::Utf8(Some(text)) => crate::types::input::scalar(t, Some(text.as_bytes()), false, &zone)?,
                v => v.cast_to(t)?,
            });
        }
        let Some(parsed) = &prepared.parsed else {
            return Outcome::tag("");
        };
        Box::pin(self.run_statement(parsed, &prepared.types(), &values, Some(&prepared.kept))).await
    }
}

/// Rows of one text column.
pub(super) fn text_rows(name: &str, lines: Vec<String>, tag: &'static str) -> Result<Rows> {
    let schema = Arc::new(Schema::new(vec![Field::new(name, DataType::Utf8, false)]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(lines))])?;
    Ok(Rows::of_batch(batch, tag))
}

/// Whether an object can be written with DML; others are refused by the binder.
pub(super) fn table_def(object: &CatalogObject) -> Result<&levee_planner::catalog::TableDef> {
    match &object.kind {
        ObjectKind::Table(def) => Ok(def),
        _ => Err(SqlError::new(
            "42809",
            format!("cannot change {} \"{}\"", object.kind_name(), object.name),
        )),
    }
}
