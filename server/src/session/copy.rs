//! COPY … FROM STDIN: the whole of it is one statement, so nothing of a failed COPY enters. COPY … TO STDOUT: rows are sent as they
//! are computed.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Schema;
use levee_planner::sql::{Ast, CopyFrom, CopyKind, CopyTo, Parsed, Query, Statement, changed_schema, parse};
use levee_runtime::memory::Share;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::{CopyDone, CopyInResponse, CopyOutResponse};

use super::change::{Target, new_rows};
use super::guard;
use super::{Session, SessionBinder};
use crate::copy::Loader;
use crate::copy::out::Unloader;
use crate::error::{Result, SqlError};
use crate::types::encode::BatchEncoder;
use crate::wire::connection::{OUT_BYTES, client_gone};
use crate::wire::frontend::Frontend;

impl Session {
    /// Takes the data and inserts it; answers the tag.
    pub(super) async fn copy_from(&mut self, binder: &SessionBinder, copy: &CopyFrom) -> Result<String> {
        self.refuse_read_only("COPY FROM")?;
        let target = Target::find(binder, copy.table)?;
        let n = copy.columns.len();
        let columns = i16::try_from(n).map_err(|_| SqlError::new("54011", "too many columns"))?;
        let code = i8::from(copy.format.kind == CopyKind::Binary);
        self.put(&PgWireBackendMessage::CopyInResponse(CopyInResponse::new(
            code,
            columns,
            vec![i16::from(code); n],
        )))?;
        self.flush_guarded().await?;
        let mut batches = self.copy_data(copy, &target).await?;
        for batch in &mut batches {
            let missing = self.missing_columns(binder, &target, copy, batch.num_rows()).await?;
            *batch = complete(&target, copy, batch, &missing)?;
            if let Some(filter) = &copy.filter {
                *batch = self.filtered(binder, filter, batch).await?;
            }
            *batch = new_rows(&target, batch.columns())?;
        }
        batches.retain(|b| b.num_rows() > 0);
        let rows = if batches.is_empty() {
            0
        } else {
            self.insert_batches(&target, batches).await?
        };
        Ok(format!("COPY {rows}"))
    }

    /// COPY … WHERE.
    async fn filtered(&mut self, binder: &SessionBinder, filter: &Query, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = changed_schema(batch.schema().fields().iter());
        let rows = RecordBatch::try_new(columns, batch.columns().to_vec())?;
        let snapshot = self.snapshot(&[]).await?;
        let mut rows = self.run_over(binder, filter, &[], &snapshot, rows).await?;
        let max = self.server.write_bytes_max;
        let met = self.guarded(rows.collect(max)).await?;
        let Some(first) = met.first() else {
            return Err(SqlError::internal("COPY … WHERE yields no rows"));
        };
        let met = arrow::compute::concat_batches(&first.schema(), &met)?;
        Ok(filter_record_batch(batch, met.column(0).as_boolean())?)
    }

    /// COPY … TO STDOUT; answers the tag.
    pub(super) async fn copy_to(&mut self, binder: &SessionBinder, copy: &CopyTo) -> Result<String> {
        let schema = Arc::clone(&copy.query.schema);
        let mut rows = self.start_query(binder, &copy.query, &[]).await?;
        let n = schema.fields().len();
        let mut unloader = Unloader::new(copy.format.clone(), self.settings.text_style());
        let binary = unloader.binary();
        let columns = i16::try_from(n).map_err(|_| SqlError::new("54011", "too many columns"))?;
        // Nothing is announced before the first rows are there: a query that fails at once is a plain error.
        let server = Arc::clone(&self.server);
        let mut batch = guard(&mut self.reader, &self.cancel, self.deadline, &server, rows.next()).await?;
        self.put(&PgWireBackendMessage::CopyOutResponse(CopyOutResponse::new(
            i8::from(binary),
            columns,
            vec![i16::from(binary); n],
        )))?;
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        unloader.begin(&names, &mut self.writer.buffer);
        let mut sent = 0_usize;
        while let Some(rows_now) = batch {
            let encoder = BatchEncoder::new(&rows_now, &vec![binary; n])?;
            for row in 0..encoder.rows() {
                unloader.row(&encoder, row, &mut self.writer.buffer);
                if self.writer.buffer.len() >= OUT_BYTES {
                    self.flush_guarded().await?;
                }
            }
            sent += encoder.rows();
            batch = guard(&mut self.reader, &self.cancel, self.deadline, &server, rows.next()).await?;
        }
        unloader.end(&mut self.writer.buffer);
        self.put(&PgWireBackendMessage::CopyDone(CopyDone::new()))?;
        self.server.metrics.rows_out.inc_by(u64::try_from(sent).unwrap_or(0));
        Ok(format!("COPY {sent}"))
    }

    async fn copy_data(&mut self, copy: &CopyFrom, target: &Target) -> Result<Vec<RecordBatch>> {
        let max = self.server.write_bytes_max;
        let memory = Arc::clone(self.server.engine.memory());
        let held = memory.holder(Share::Queries);
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
                    held.set(loader.bytes());
                    let short = memory.over(Share::Queries) && loader.bytes() > memory.share(Share::Queries) / 8;
                    if loader.bytes() > max || short {
                        return Err(super::txn::too_big(loader.bytes().min(max)));
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

    /// Values of the columns that COPY does not list, for `n` rows: their defaults, each computed for each row.
    async fn missing_columns(
        &mut self,
        binder: &SessionBinder,
        target: &Target,
        copy: &CopyFrom,
        n: usize,
    ) -> Result<Vec<Option<ArrayRef>>> {
        let mut values = Vec::new();
        for c in 0..target.def.schema.fields().len() {
            let sql = match target.def.default_sql(c) {
                Some(sql) if !copy.columns.contains(&c) && n > 0 => sql,
                _ => {
                    values.push(None);
                    continue;
                }
            };
            let statement = default_query(&sql, n)?;
            let Statement::Query(query) = binder.bind(&statement, &[])? else {
                return Err(SqlError::internal("a default bound to another kind of statement"));
            };
            let snapshot = self.snapshot(&[]).await?;
            let mut rows = self.run_on(binder, &query, &[], &snapshot).await?;
            let max = self.server.write_bytes_max;
            let batches = self.guarded(rows.collect(max)).await?;
            let parts: Vec<&dyn arrow::array::Array> = batches.iter().map(|b| b.column(0).as_ref()).collect();
            let value = arrow::compute::concat(&parts)?;
            let field = target.def.schema.field(c);
            values.push(Some(arrow::compute::cast(&value, field.data_type())?));
        }
        Ok(values)
    }
}

fn default_query(sql: &str, n: usize) -> Result<Parsed> {
    let mut parsed = parse(&format!("SELECT {sql} FROM generate_series(1, {n})"))?;
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
                Some(value) => Ok(Arc::clone(value)),
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let fields: Vec<_> = target
        .def
        .schema
        .fields()
        .iter()
        .map(|f| f.as_ref().clone().with_nullable(true))
        .collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
