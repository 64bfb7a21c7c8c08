//! DDL: a change of the catalog, bound against one snapshot of it and bound again when another change came first.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::scalar::ScalarValue;
use levee_planner::catalog::{CatalogObject, CatalogOp};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{Alter, Ast, ExtStatement, OnCommit, Parsed, Query, Statement};
use levee_runtime::coordinator::{CatalogChange, CreateMode};
use levee_runtime::{Delta, RuntimeError};

use super::run::Outcome;
use super::txn::Txn;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// DDL is bound again when the catalog has moved on, at most this often.
const DDL_TRIES: usize = 20;

impl Session {
    pub(super) async fn create(
        &mut self,
        parsed: &Parsed,
        binder: &SessionBinder,
        object: CatalogObject,
        also: Vec<CatalogOp>,
        notices: Vec<(&'static str, String)>,
        mode: CreateMode,
    ) -> Result<Outcome> {
        let tag = format!("CREATE {}", object.kind_name().to_uppercase());
        self.before_ddl(&tag).await?;
        let (mut catalog, mut object, mut also, mut notices) = (Arc::clone(&binder.catalog), object, also, notices);
        for _ in 0..DDL_TRIES {
            let engine = Arc::clone(&self.server.engine);
            let (seen, wanted, with) = (Arc::clone(&catalog), object.clone(), also.clone());
            let created = self
                .guarded(async move { Ok(engine.create_as(&seen, wanted, with, mode).await) })
                .await?;
            match created {
                Ok(()) => {
                    self.notices(notices)?;
                    return Ok(Outcome::Tag(tag));
                }
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(e.into()),
            }
            let binder = self.binder();
            match self.bind(&binder, parsed, &[]).await? {
                Statement::Create {
                    object: o,
                    also: a,
                    notices: n,
                    ..
                } => (object, also, notices) = (*o, a, n),
                Statement::Notice { tag, message, code } => {
                    self.notice(&SqlError::notice(code, message))?;
                    return Ok(Outcome::Tag(tag.to_owned()));
                }
                _ => return Err(SqlError::internal("CREATE bound to another kind of statement")),
            }
            catalog = Arc::clone(&binder.catalog);
        }
        Err(catalog_busy())
    }

    /// ALTER, DROP and whatever else changes the catalog.
    pub(super) async fn alter(&mut self, parsed: &Parsed, binder: &SessionBinder, alter: Alter) -> Result<Outcome> {
        self.before_ddl(alter.tag).await?;
        let (mut binder, mut alter) = (binder.clone(), alter);
        for _ in 0..DDL_TRIES {
            let change = self.verified(&binder, &mut alter).await?;
            let changed = if change.ops.is_empty() {
                Ok(0)
            } else {
                let engine = Arc::clone(&self.server.engine);
                let catalog = Arc::clone(&binder.catalog);
                self.guarded(async move { Ok(engine.change_catalog(&catalog, change).await) })
                    .await?
            };
            match changed {
                Ok(_) => {
                    self.notices(alter.notices)?;
                    return Ok(Outcome::Tag(alter.tag.to_owned()));
                }
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(e.into()),
            }
            binder = self.binder();
            alter = match self.bind(&binder, parsed, &[]).await? {
                Statement::Alter(again) => again,
                Statement::Drop {
                    objects,
                    also,
                    tag,
                    notices,
                } => dropping(objects, also, tag, notices),
                Statement::Notice { tag, message, code } => Alter {
                    tag,
                    notices: vec![(code, message)],
                    ..Alter::default()
                },
                _ => return Err(SqlError::internal("DDL bound to another kind of statement")),
            };
        }
        Err(catalog_busy())
    }

    /// CREATE TABLE AS, whose rows enter with the table in one epoch, and temporary tables with an end.
    pub(super) async fn create_table(
        &mut self,
        parsed: &Parsed,
        binder: &SessionBinder,
        create: Statement,
        query: Option<Box<Query>>,
        on_commit: Option<OnCommit>,
        params: &[ScalarValue],
    ) -> Result<Outcome> {
        let as_query = |s: &ExtStatement| matches!(s, ExtStatement::CreateTableAs(_));
        let tag = if query.is_some() || matches!(&parsed.ast, Ast::Ext(s) if as_query(s)) {
            "CREATE TABLE AS"
        } else {
            "CREATE TABLE"
        };
        self.before_ddl(tag).await?;
        let (mut binder, mut create, mut query) = (binder.clone(), create, query);
        for _ in 0..DDL_TRIES {
            let Statement::Create { object, also, .. } = create else {
                return Err(SqlError::internal("CREATE TABLE without a table"));
            };
            let id = object.id;
            let rows = match &query {
                Some(query) => self.first_rows(&binder, query, &object, params).await?,
                None => Vec::new(),
            };
            let n: usize = rows.iter().map(RecordBatch::num_rows).sum();
            let mut ops = vec![CatalogOp::Create(*object)];
            ops.extend(also);
            let change = CatalogChange {
                ops,
                writes: vec![(id, rows.into_iter().map(Delta::inserts).collect())],
                unchanged: Vec::new(),
            };
            let engine = Arc::clone(&self.server.engine);
            let catalog = Arc::clone(&binder.catalog);
            let created = self
                .guarded(async move { Ok(engine.change_catalog(&catalog, change).await) })
                .await?;
            match created {
                Ok(epoch) => {
                    self.wrote(epoch);
                    self.on_commit.extend(on_commit.map(|o| (id, o)));
                    if on_commit.is_some() && !matches!(self.txn, Txn::Open(_)) {
                        self.end_of_temporary_rows().await?;
                    }
                    return Ok(Outcome::Tag(match query {
                        Some(_) => format!("SELECT {n}"),
                        None => tag.to_owned(),
                    }));
                }
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(e.into()),
            }
            binder = self.binder();
            (create, query) = match self.bind(&binder, parsed, &[]).await? {
                Statement::CreateTable { create, query, .. } => (*create, query),
                Statement::Notice { tag, message, code } => {
                    self.notice(&SqlError::notice(code, message))?;
                    return Ok(Outcome::Tag(tag.to_owned()));
                }
                _ => return Err(SqlError::internal("CREATE TABLE bound to another kind of statement")),
            };
        }
        Err(catalog_busy())
    }

    /// The rows of a query in the columns of a new table.
    async fn first_rows(
        &mut self,
        binder: &SessionBinder,
        query: &Query,
        object: &CatalogObject,
        params: &[ScalarValue],
    ) -> Result<Vec<RecordBatch>> {
        let mut rows = self.start_query(binder, query, params).await?;
        let max = self.server.write_bytes_max;
        let batches = self.guarded(rows.collect(max)).await?;
        let schema = object.schema();
        batches
            .into_iter()
            .map(|b| {
                let columns = b.columns().iter().zip(schema.fields());
                let cast = columns
                    .map(|(a, f)| Ok(arrow::compute::cast(a, f.data_type())?))
                    .collect::<Result<Vec<ArrayRef>>>()?;
                Ok(RecordBatch::try_new(Arc::clone(schema), cast)?)
            })
            .collect()
    }

    /// The end of a transaction, for temporary tables made with ON COMMIT.
    pub(super) async fn end_of_temporary_rows(&mut self) -> Result<()> {
        if self.on_commit.is_empty() {
            return Ok(());
        }
        for _ in 0..DDL_TRIES {
            let catalog = self.server.engine.catalog();
            self.on_commit.retain(|(id, _)| catalog.get(*id).is_some());
            let of = |what: OnCommit, all: &[(ObjectId, OnCommit)]| -> Vec<ObjectId> {
                all.iter().filter(|(_, o)| *o == what).map(|(id, _)| *id).collect()
            };
            let dropped = of(OnCommit::Drop, &self.on_commit);
            let emptied = of(OnCommit::DeleteRows, &self.on_commit);
            if !emptied.is_empty() {
                let binder = self.binder();
                self.truncate(&binder, &emptied).await?;
            }
            if dropped.is_empty() {
                return Ok(());
            }
            let ops = catalog
                .objects()
                .filter(|o| dropped.contains(&o.id) || o.owner().is_some_and(|t| dropped.contains(&t)))
                .map(|o| CatalogOp::Drop(o.id))
                .collect();
            let change = CatalogChange {
                ops,
                ..CatalogChange::default()
            };
            match self.server.engine.change_catalog(&catalog, change).await {
                Ok(_) => return Ok(()),
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(catalog_busy())
    }

    /// The session's temporary objects go.
    pub(super) async fn drop_temporary(&mut self) {
        let name = self.temporary_name();
        if let Err(error) = self.server.engine.drop_temporary(Some(&name)).await {
            // They go at the next start.
            tracing::debug!(session = self.pid, %error, "temporary objects stay");
        }
        self.on_commit.clear();
    }

    /// DISCARD SEQUENCES.
    pub(super) fn forget_sequences(&mut self) {
        self.sequences = crate::system::SharedSequences::default();
    }

    fn notices(&mut self, notices: Vec<(&'static str, String)>) -> Result<()> {
        for (code, message) in notices {
            let notice = if code == "01000" {
                SqlError::warning(code, message)
            } else {
                SqlError::notice(code, message)
            };
            self.notice(&notice)?;
        }
        Ok(())
    }
}

/// DROP as a change of the catalog.
pub(super) fn dropping(objects: Vec<ObjectId>, also: Vec<CatalogOp>, tag: &'static str, notices: Vec<String>) -> Alter {
    let mut ops: Vec<CatalogOp> = objects.into_iter().map(CatalogOp::Drop).collect();
    ops.extend(also);
    Alter {
        ops,
        tag,
        notices: notices.into_iter().map(|n| ("00000", n)).collect(),
        ..Alter::default()
    }
}

fn catalog_busy() -> SqlError {
    SqlError::new("40001", "the catalog changed too often meanwhile").hint("Try again.")
}
