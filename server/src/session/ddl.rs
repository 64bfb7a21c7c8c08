//! DDL: a change of the catalog, bound against one snapshot of it and bound again when another change came first.

use std::sync::Arc;

use levee_planner::catalog::{CatalogObject, CatalogOp};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{Alter, Parsed, Statement};
use levee_runtime::RuntimeError;
use levee_runtime::coordinator::{CatalogChange, CreateMode};

use super::run::Outcome;
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
            match binder.bind(parsed, &[])? {
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
            let change = CatalogChange {
                ops: std::mem::take(&mut alter.ops),
                ..CatalogChange::default()
            };
            let changed = if change.ops.is_empty() {
                Ok(0)
            } else {
                self.server.engine.change_catalog(&binder.catalog, change).await
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
            alter = match binder.bind(parsed, &[])? {
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
