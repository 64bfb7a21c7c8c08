//! COPY … FROM STDIN: the whole of it is one statement, so nothing of a failed COPY enters.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use levee_planner::sql::{Ast, CopyFrom, Parsed, Statement, parse};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::CopyInResponse;

use super::dml::{Target, new_rows};
use super::{Session, SessionBinder};
use crate::copy::Loader;
use crate::error::{Result, SqlError};
use crate::wire::connection::client_gone;
use crate::wire::frontend::Frontend;

impl Session {
    /// Takes the data and inserts it; answers the tag.
    pub(super) async fn copy_from(&mut self, binder: &SessionBinder, copy: &CopyFrom) -> Result<String> {
        self.refuse_read_only("COPY FROM")?;
        let target = Target::find(binder, copy.table)?;
        let missing = self.missing_columns(binder, &target, copy).await?;
        let n = copy.columns.len();
        let columns = i16::try_from(n).map_err(|_| SqlError::new("54011", "too many columns"))?;
        self.put(&PgWireBackendMessage::CopyInResponse(CopyInResponse::new(
            0,
            columns,
            vec![0; n],
        )))?;
        self.flush_guarded().await?;
        let batches = self.copy_data(copy, &target).await?;
        let batches = batches
            .iter()
            .map(|b| complete(&target, copy, b, &missing))
            .collect::<Result<Vec<_>>>()?;
        let rows = if batches.is_empty() {
            0
        } else {
            self.insert_batches(&target, &batches).await?
        };
        Ok(format!("COPY {rows}"))
    }

    async fn copy_data(&mut self, copy: &CopyFrom, target: &Target) -> Result<Vec<RecordBatch>> {
        let max = self.server.write_bytes_max;
        let mut loader = Loader::new(
            copy.clone(),
            &target.name,
            &target.def.schema,
            self.settings.zone().clone(),
        )?;
        loop {
            let message = tokio::select! {
                biased;
                () = self.cancel.wait() => return Err(SqlError::new("57014", "canceling statement due to user request")),
                () = super::sleep_until_opt(self.deadline) => {
                    return Err(SqlError::new("57014", "canceling statement due to statement timeout"));
                }
                () = self.server.stop.cancelled() => {
                    return Err(SqlError::fatal("57P01", "terminating connection due to administrator command"));
                }
                message = self.reader.message() => message?,
            };
            match message {
                None | Some(Frontend::Terminate) => return Err(client_gone()),
                Some(Frontend::CopyData(data)) => {
                    loader.push(&data)?;
                    if loader.bytes() > max {
                        return Err(super::txn::too_big(max));
                    }
                }
                Some(Frontend::CopyDone) => return loader.finish(),
                Some(Frontend::CopyFail(reason)) => {
                    return Err(SqlError::new("57014", format!("COPY from stdin failed: {reason}")));
                }
                // rust-postgres sends a Sync right after the Execute; PostgreSQL ignores both during COPY.
                Some(Frontend::Sync | Frontend::Flush) => {}
                Some(_) => return Err(SqlError::protocol("unexpected message type during COPY from stdin")),
            }
        }
    }

    /// Values of the columns that COPY does not list: their defaults, one row of them.
    async fn missing_columns(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        copy: &CopyFrom,
    ) -> Result<Vec<Option<ArrayRef>>> {
        let mut values = Vec::new();
        for (c, default) in target.def.defaults.iter().enumerate() {
            let sql = match default {
                Some(sql) if !copy.columns.contains(&c) => sql,
                _ => {
                    values.push(None);
                    continue;
                }
            };
            let statement = default_query(sql)?;
            let Statement::Query(query) = binder.bind(&statement, &[])? else {
                return Err(SqlError::internal("a default bound to another kind of statement"));
            };
            let snapshot = self.snapshot(&[]).await?;
            let mut rows = self.run_on(binder, &query, &[], &snapshot).await?;
            let max = self.server.write_bytes_max;
            let batches = self.guarded(rows.collect(max)).await?;
            let value = batches.first().map(|b| Arc::clone(b.column(0)));
            let field = target.def.schema.field(c);
            values.push(value.map(|v| arrow::compute::cast(&v, field.data_type())).transpose()?);
        }
        Ok(values)
    }
}

fn default_query(sql: &str) -> Result<Parsed> {
    let mut parsed = parse(&format!("SELECT {sql}"))?;
    match parsed.pop() {
        Some(p) if parsed.is_empty() && matches!(p.ast, Ast::Sql(_)) => Ok(p),
        _ => Err(SqlError::internal("a stored default cannot be parsed")),
    }
}

/// Puts columns in the table's order and adds those that COPY does not list.
fn complete(
    target: &Target,
    copy: &CopyFrom,
    batch: &RecordBatch,
    missing: &[Option<ArrayRef>],
) -> Result<RecordBatch> {
    let n = batch.num_rows();
    let columns = target
        .def
        .schema
        .fields()
        .iter()
        .enumerate()
        .map(|(c, field)| {
            if let Some(i) = copy.columns.iter().position(|&x| x == c) {
                return Ok(Arc::clone(batch.column(i)));
            }
            match missing.get(c).and_then(Option::as_ref) {
                None => Ok(new_null_array(field.data_type(), n)),
                Some(value) => {
                    let zeros = arrow::array::UInt32Array::from(vec![0; n]);
                    Ok(arrow::compute::take(value, &zeros, None)?)
                }
            }
        })
        .collect::<Result<Vec<_>>>()?;
    new_rows(target, &columns)
}
