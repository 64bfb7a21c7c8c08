//! Statements with parts that are statements of their own: see [`levee_planner::sql::parts`].

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::scalar::ScalarValue;
use levee_planner::sql::{Parsed, Parts, Statement, WithParts, part_name};

use super::query::Rows;
use super::run::Outcome;
use super::txn::Txn;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// What a statement with parts yields and takes, for Describe.
pub(super) struct PartsShape {
    pub params: Vec<DataType>,
    pub schema: Option<SchemaRef>,
}

type Tables = HashMap<String, Arc<dyn TableProvider>>;

impl SessionBinder {
    /// A binder that knows the parts' rows.
    fn with_parts(&self, parts: &Tables) -> Self {
        let mut binder = self.clone();
        binder.0.system = Arc::new(WithParts {
            system: Arc::clone(&binder.0.system),
            parts: parts.clone(),
        });
        binder
    }

    /// Binds one part. A parameter that only others use has no type here; whether it has one at all shows in the end.
    fn bind_part(&self, parsed: &Parsed, types: &[Option<DataType>]) -> Result<(Statement, Vec<usize>)> {
        let mut types = types.to_vec();
        let mut open = Vec::new();
        loop {
            match self.bind(parsed, &types) {
                Err(e) if e.code() == "42P18" => {
                    let number = e.message().rsplit('$').next().and_then(|n| n.parse::<usize>().ok());
                    let Some(at) = number.and_then(|n| n.checked_sub(1)).filter(|at| !open.contains(at)) else {
                        return Err(e);
                    };
                    types.resize(types.len().max(at + 1), None);
                    types[at] = Some(DataType::Utf8);
                    open.push(at);
                }
                other => return other.map(|s| (s, open)),
            }
        }
    }

    /// Binds parts and main statement without running anything.
    pub(super) fn describe_parts(&self, parts: &Parts, declared: &[Option<DataType>]) -> Result<PartsShape> {
        let mut tables = Tables::new();
        let mut types = declared.to_vec();
        let mut result = None;
        let last = parts.parts.len();
        for (i, part) in parts.parts.iter().chain([&parts.main]).enumerate() {
            let (bound, open) = self.with_parts(&tables).bind_part(part, &types)?;
            let (params, schema) = match bound {
                Statement::Query(q) => (q.params, Some(q.schema)),
                Statement::SelectLocking(l) => (l.query.params, Some(l.query.schema)),
                Statement::Dml(d) => (d.query.params, d.returning.map(|q| q.schema)),
                _ => return Err(SqlError::internal("a part bound to another kind of statement")),
            };
            types.resize(types.len().max(params.len()), None);
            for (n, t) in params.into_iter().enumerate() {
                if types[n].is_none() && !open.contains(&n) {
                    types[n] = Some(t);
                }
            }
            if i == last {
                result = schema;
            } else if let Some(schema) = schema {
                tables.insert(part_name(i), Arc::new(MemTable::try_new(schema, vec![Vec::new()])?));
            }
        }
        let params = types
            .into_iter()
            .enumerate()
            .map(|(n, t)| {
                t.ok_or_else(|| {
                    SqlError::new(
                        "42P18",
                        format!("could not determine data type of parameter ${}", n + 1),
                    )
                })
            })
            .collect::<Result<_>>()?;
        Ok(PartsShape { params, schema: result })
    }
}

impl Session {
    /// Runs a statement with parts as one transaction.
    pub(super) async fn run_parts(
        &mut self,
        parts: Parts,
        types: &[Option<DataType>],
        params: &[ScalarValue],
    ) -> Result<Outcome> {
        let alone = matches!(self.txn, Txn::Idle);
        self.begin_implicit();
        let outcome = self.run_parts_in_block(&parts, types, params).await;
        match outcome {
            Ok(outcome) if alone => {
                self.commit_implicit().await?;
                Ok(outcome)
            }
            Err(e) => {
                if alone {
                    let mark = self.txn.fail();
                    self.locks.release_to(mark);
                }
                Err(e)
            }
            outcome => outcome,
        }
    }

    async fn run_parts_in_block(
        &mut self,
        parts: &Parts,
        types: &[Option<DataType>],
        params: &[ScalarValue],
    ) -> Result<Outcome> {
        let binder = self.binder();
        let types: Vec<Option<DataType>> = if params.is_empty() {
            types.to_vec()
        } else {
            let shape = binder.describe_parts(parts, types)?;
            shape.params.into_iter().map(Some).collect()
        };
        // What the main query reads, as it was before the parts wrote.
        let before = {
            let mut tables = Tables::new();
            for (i, part) in parts.parts.iter().enumerate() {
                let binder = binder.with_parts(&tables);
                if let Some(schema) = returned(self.bind(&binder, part, &types).await?) {
                    tables.insert(part_name(i), Arc::new(MemTable::try_new(schema, vec![Vec::new()])?));
                }
            }
            let binder = binder.with_parts(&tables);
            match self.bind(&binder, &parts.main, &types).await? {
                Statement::Query(q) => Some(self.snapshot(&q.reads).await?),
                _ => None,
            }
        };
        let mut tables = Tables::new();
        let max = self.server.write_bytes_max;
        for (i, part) in parts.parts.iter().enumerate() {
            let binder = binder.with_parts(&tables);
            let bound = self.bind(&binder, part, &types).await?;
            if let Outcome::Rows(mut rows) = Box::pin(self.run_bound(part, &binder, bound, &types, params)).await? {
                let schema = Arc::clone(rows.schema());
                let batches = self.guarded(rows.collect(max)).await?;
                let batches = batches
                    .into_iter()
                    .map(|b| Ok(RecordBatch::try_new(Arc::clone(&schema), b.columns().to_vec())?))
                    .collect::<Result<Vec<_>>>()?;
                tables.insert(part_name(i), Arc::new(MemTable::try_new(schema, vec![batches])?));
            }
        }
        let binder = binder.with_parts(&tables);
        match (self.bind(&binder, &parts.main, &types).await?, before) {
            (Statement::Query(query), Some(snapshot)) => {
                // All of them before the commit: a row that cannot be computed undoes the parts.
                let mut rows = self.run_on(&binder, &query, params, &snapshot).await?;
                let batches = self.guarded(rows.collect(max)).await?;
                Ok(Outcome::Rows(Rows::of_selected(query.schema, batches)))
            }
            (bound, _) => Box::pin(self.run_bound(&parts.main, &binder, bound, &types, params)).await,
        }
    }
}

fn returned(bound: Statement) -> Option<SchemaRef> {
    match bound {
        Statement::Query(q) => Some(q.schema),
        Statement::SelectLocking(l) => Some(l.query.schema),
        Statement::Dml(d) => d.returning.map(|q| q.schema),
        _ => None,
    }
}
