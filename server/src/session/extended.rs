//! The extended protocol: Parse, Bind, Describe, Execute, Close, Sync.
//!
//! Between two Syncs everything is one implicit block. A lone Execute with its Sync already at hand runs in autocommit instead,
//! so that a conflict can be retried.

use std::sync::Arc;

use bytes::Bytes;
use levee_planner::sql::types::{oid, type_of_oid};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{BindComplete, CloseComplete, ParseComplete, PortalSuspended};
use pgwire::messages::response::EmptyQueryResponse;

use super::prepared::{Portal, PortalState, Prepared, no_portal, no_statement};
use super::run::{Outcome, ends_block};
use super::txn::{Txn, failed_block};
use super::{Session, formats};
use crate::error::{Result, SqlError};
use crate::types::input;

impl Session {
    pub(super) async fn parse_message(&mut self, name: String, sql: &str, types: &[u32]) -> Result<()> {
        self.start_timer();
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(SqlError::new(
                "42P05",
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let mut parsed = self.parsed(sql).await?;
        if parsed.len() > 1 {
            return Err(SqlError::new(
                "42601",
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        let parsed = parsed.pop();
        if matches!(self.txn, Txn::Failed(_)) && !parsed.as_ref().is_some_and(ends_block) {
            return Err(failed_block());
        }
        let offset = parsed.as_ref().map_or(0, |p| p.offset);
        let declared = types
            .iter()
            .map(|&t| match t {
                0 | 705 => Ok(None),
                t => type_of_oid(t).map(Some).ok_or_else(|| {
                    SqlError::unsupported(format!("parameters of the type with OID {t} are not supported"))
                }),
            })
            .collect::<Result<_>>()?;
        let prepared = self.prepared(parsed, declared).await.map_err(|e| e.shift(offset))?;
        self.statements.insert(name, Arc::new(prepared));
        self.put(&PgWireBackendMessage::ParseComplete(ParseComplete::new()))
    }

    pub(super) fn bind_message(
        &mut self,
        portal: String,
        statement: &str,
        parameter_formats: &[i16],
        parameters: &[Option<Bytes>],
        result_formats: &[i16],
    ) -> Result<()> {
        let prepared = self
            .statements
            .get(statement)
            .cloned()
            .ok_or_else(|| no_statement(statement))?;
        if matches!(self.txn, Txn::Failed(_)) && !prepared.parsed.as_ref().is_some_and(ends_block) {
            return Err(failed_block());
        }
        if !portal.is_empty() && self.portals.contains_key(&portal) {
            return Err(SqlError::new("42P03", format!("portal \"{portal}\" already exists")));
        }
        let wanted = prepared.params.len();
        if parameters.len() != wanted {
            return Err(SqlError::new(
                "08P01",
                format!(
                    "bind message supplies {} parameters, but prepared statement \"{statement}\" requires {wanted}",
                    parameters.len()
                ),
            ));
        }
        let binary_in = formats(parameter_formats, wanted)?;
        let zone = self.settings.zone();
        let params = parameters
            .iter()
            .zip(&prepared.params)
            .zip(binary_in)
            .enumerate()
            .map(|(i, ((raw, t), binary))| {
                input::scalar(t, raw.as_deref(), binary, zone)
                    .map_err(|e| e.context(format!("unnamed portal parameter ${}", i + 1)))
            })
            .collect::<Result<_>>()?;
        let columns = prepared.schema.as_ref().map_or(0, |s| s.fields().len());
        let binary = if columns == 0 {
            Vec::new()
        } else {
            formats(result_formats, columns)?
        };
        self.portals.insert(
            portal,
            Portal {
                prepared,
                params,
                binary,
                state: PortalState::New,
            },
        );
        self.put(&PgWireBackendMessage::BindComplete(BindComplete::new()))
    }

    pub(super) fn describe_statement(&mut self, name: &str) -> Result<()> {
        let prepared = self.statements.get(name).cloned().ok_or_else(|| no_statement(name))?;
        let types = prepared
            .params
            .iter()
            .map(|t| oid(&arrow::datatypes::Field::new("", t.clone(), true)))
            .collect();
        self.put(&PgWireBackendMessage::ParameterDescription(ParameterDescription::new(
            types,
        )))?;
        match &prepared.schema {
            Some(schema) => self.describe_rows(schema, &vec![false; schema.fields().len()]),
            None => self.put(&PgWireBackendMessage::NoData(NoData::new())),
        }
    }

    pub(super) fn describe_portal(&mut self, name: &str) -> Result<()> {
        let (schema, binary) = match (self.portals.get(name), self.cursors.get(name)) {
            (Some(portal), _) => (portal.prepared.schema.clone(), portal.binary.clone()),
            (None, Some(cursor)) => {
                let schema = Arc::clone(cursor.schema());
                let binary = vec![cursor.binary(); schema.fields().len()];
                (Some(schema), binary)
            }
            (None, None) => return Err(no_portal(name)),
        };
        match &schema {
            Some(schema) => self.describe_rows(schema, &binary),
            None => self.put(&PgWireBackendMessage::NoData(NoData::new())),
        }
    }

    pub(super) async fn execute_message(&mut self, name: &str, limit: usize) -> Result<()> {
        self.start_timer();
        let mut portal = self.portals.remove(name).ok_or_else(|| no_portal(name))?;
        if matches!(self.txn, Txn::Failed(_)) && !portal.prepared.parsed.as_ref().is_some_and(ends_block) {
            return Err(failed_block());
        }
        self.execute_portal(&mut portal, limit).await?;
        // COMMIT and ROLLBACK have ended all portals.
        if !portal.prepared.parsed.as_ref().is_some_and(ends_block) {
            self.portals.insert(name.to_owned(), portal);
        }
        self.writer.flush_if_large().await
    }

    async fn execute_portal(&mut self, portal: &mut Portal, limit: usize) -> Result<()> {
        let Some(parsed) = &portal.prepared.parsed else {
            return self.put(&PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
        };
        if matches!(portal.state, PortalState::New) {
            self.server.metrics.statements.inc();
            let alone = matches!(self.txn, Txn::Idle) && self.reader.sync_is_next();
            if !alone {
                self.begin_implicit();
            }
            let offset = parsed.offset;
            let outcome = self
                .run_statement(
                    parsed,
                    &portal.prepared.types(),
                    &portal.params,
                    Some(&portal.prepared.kept),
                )
                .await;
            portal.state = match outcome.map_err(|e| e.shift(offset))? {
                Outcome::Tag(tag) => {
                    portal.state = PortalState::Done(tag.clone());
                    return self.complete(tag);
                }
                Outcome::Rows(rows) => {
                    check_columns(&portal.prepared, &rows)?;
                    PortalState::Open(rows)
                }
            };
        }
        let (tag, finished) = match &mut portal.state {
            PortalState::Open(rows) => {
                let n = self.send_rows(rows, &portal.binary, limit).await?;
                (rows.tag(n), limit == 0 || n < limit)
            }
            PortalState::Done(tag) => {
                let tag = if let Some(word @ ("SELECT" | "FETCH")) = tag.split(' ').next() {
                    format!("{word} 0")
                } else {
                    tag.clone()
                };
                return self.complete(tag);
            }
            PortalState::New => return Err(SqlError::internal("portal has not been started")),
        };
        if !finished {
            return self.put(&PgWireBackendMessage::PortalSuspended(PortalSuspended::new()));
        }
        portal.state = PortalState::Done(tag.clone());
        self.complete(tag)
    }

    pub(super) fn close_statement(&mut self, name: &str) -> Result<()> {
        self.statements.remove(name);
        self.put(&PgWireBackendMessage::CloseComplete(CloseComplete::new()))
    }

    pub(super) fn close_portal(&mut self, name: &str) -> Result<()> {
        if self.portals.remove(name).is_none() {
            self.cursors.remove(name);
        }
        self.put(&PgWireBackendMessage::CloseComplete(CloseComplete::new()))
    }

    pub(super) async fn sync(&mut self) -> Result<()> {
        self.skip_to_sync = false;
        self.commit_implicit().await?;
        if !matches!(self.txn, Txn::Open(_)) {
            self.portals.clear();
        }
        self.ready().await
    }
}

/// The catalog may have changed since the statement was described.
fn check_columns(prepared: &Prepared, rows: &super::query::Rows) -> Result<()> {
    let now = rows.schema().fields();
    let same = prepared.schema.as_ref().is_some_and(|s| {
        s.fields().len() == now.len()
            && s.fields()
                .iter()
                .zip(now)
                .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type())
    });
    if same {
        return Ok(());
    }
    Err(SqlError::new("0A000", "cached plan must not change result type"))
}
