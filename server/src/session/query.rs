//! Reads: snapshot → plan → stream → DataRow messages.
//!
//! The plan runs in a task of its own and hands batches over a short channel, so that encoding overlaps execution and the
//! session can stop waiting at once when the statement is cancelled; dropping [`Rows`] aborts the task.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::scalar::ScalarValue;
use futures::StreamExt;
use levee_planner::catalog::ObjectKind;
use levee_planner::plan::ObjectId;
use levee_planner::sql::types::{oid, typmod};
use levee_planner::sql::{Binder, CHANGED, Query, bind_params};
use levee_runtime::coordinator::{Engine, ReadSnapshot};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{FieldDescription, RowDescription};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::txn::Block;
use super::{Session, guard, lookup};
use crate::error::{Result, SqlError};
use crate::system::type_size;
use crate::types::encode::BatchEncoder;
use crate::wire::connection::OUT_BYTES;

/// Batches under way between a plan and the session.
const CHANNEL_BATCHES: usize = 2;

/// A running result.
#[derive(Debug)]
pub(super) struct Rows {
    schema: SchemaRef,
    source: Source,
    /// The batch being sent and the next row of it.
    current: Option<(BatchEncoder, usize)>,
    tag: Tag,
    /// All columns go in binary form, whatever was asked for: a BINARY cursor's.
    pub binary: bool,
}

/// A result's command tag.
#[derive(Debug)]
enum Tag {
    /// SELECT and the number of rows sent.
    Select,
    /// As it is.
    Fixed(String),
    /// FETCH and the number of rows sent.
    Fetch,
}

#[derive(Debug)]
enum Source {
    Ready(VecDeque<RecordBatch>),
    Running {
        batches: mpsc::Receiver<Result<RecordBatch>>,
        task: AbortOnDrop,
    },
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Rows {
    /// A result that is already there.
    pub fn of_batch(batch: RecordBatch, tag: &str) -> Self {
        Self::of_batches(batch.schema(), vec![batch], tag.to_owned())
    }

    /// A result that is already there, with a tag of its own.
    pub fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>, tag: String) -> Self {
        Self {
            schema,
            source: Source::Ready(batches.into()),
            current: None,
            tag: Tag::Fixed(tag),
            binary: false,
        }
    }

    /// Rows of a SELECT that are already there.
    pub fn of_selected(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self {
            tag: Tag::Select,
            ..Self::of_batches(schema, batches, String::new())
        }
    }

    /// Rows that FETCH took from a cursor.
    pub fn of_fetched(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self {
            tag: Tag::Fetch,
            ..Self::of_batches(schema, batches, String::new())
        }
    }

    /// Starts a physical plan on the threads for queries: a plan may compute for long between two points where it can be stopped.
    fn start(schema: SchemaRef, plan: Arc<dyn ExecutionPlan>, state: &SessionState, queries: &Handle) -> Self {
        let context = state.task_ctx();
        let (sender, batches) = mpsc::channel(CHANNEL_BATCHES);
        let task = queries.spawn(async move {
            let mut stream = match execute_stream(plan, context) {
                Ok(stream) => stream,
                Err(e) => {
                    if sender.send(Err(e.into())).await.is_err() {
                        tracing::debug!("nobody waits for a query any more");
                    }
                    return;
                }
            };
            while let Some(batch) = stream.next().await {
                let failed = batch.is_err();
                if sender.send(batch.map_err(SqlError::from)).await.is_err() || failed {
                    return;
                }
            }
        });
        Self {
            schema,
            source: Source::Running {
                batches,
                task: AbortOnDrop(task),
            },
            current: None,
            tag: Tag::Select,
            binary: false,
        }
    }

    /// Columns, named as the client sees them.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Command tag after `n` rows.
    pub fn tag(&self, n: usize) -> String {
        match &self.tag {
            Tag::Select => format!("SELECT {n}"),
            Tag::Fetch => format!("FETCH {n}"),
            Tag::Fixed(tag) => tag.clone(),
        }
    }

    /// The next batch that is not empty.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match &mut self.source {
                Source::Ready(batches) => batches.pop_front(),
                Source::Running { batches, task } => match batches.recv().await {
                    Some(batch) => Some(batch?),
                    None => match (&mut task.0).await {
                        Ok(()) => None,
                        Err(e) if e.is_panic() => {
                            let panic = e.into_panic();
                            let reason = super::panic_text(&*panic).to_owned();
                            tracing::error!(reason, "query panicked");
                            return Err(SqlError::internal(format!("internal error: {reason}")));
                        }
                        Err(_) => None,
                    },
                },
            };
            match batch {
                None => {
                    self.source = Source::Ready(VecDeque::new());
                    return Ok(None);
                }
                Some(b) if b.num_rows() > 0 => return Ok(Some(b)),
                Some(_) => {}
            }
        }
    }

    /// All rows, as long as they take at most `bytes_max` bytes.
    pub async fn collect(&mut self, bytes_max: usize) -> Result<Vec<RecordBatch>> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = self.next().await? {
            bytes += batch.get_array_memory_size();
            if bytes > bytes_max {
                return Err(super::txn::too_big(bytes_max));
            }
            all.push(batch);
        }
        Ok(all)
    }
}

impl Session {
    /// Starts a query on the snapshot that it should see.
    pub(super) async fn start_query(&mut self, binder: &Binder, query: &Query, params: &[ScalarValue]) -> Result<Rows> {
        let plan = bind_params(query.plan.clone(), params)?;
        let plan = self.advisory_calls(plan).await?;
        let snapshot = self.snapshot(&query.reads).await?;
        self.start_plan(binder, plan, query, &snapshot).await
    }

    /// Starts a query on a given snapshot.
    pub(super) async fn run_on(
        &mut self,
        binder: &Binder,
        query: &Query,
        params: &[ScalarValue],
        snapshot: &ReadSnapshot,
    ) -> Result<Rows> {
        let plan = bind_params(query.plan.clone(), params)?;
        self.start_plan(binder, plan, query, snapshot).await
    }

    /// Starts a query's plan, whose parameters are bound.
    pub(super) async fn start_plan(
        &mut self,
        binder: &Binder,
        plan: LogicalPlan,
        query: &Query,
        snapshot: &ReadSnapshot,
    ) -> Result<Rows> {
        if query.samples.is_empty()
            && let Some(rows) = lookup::answer(&binder.catalog, &plan, snapshot, &query.schema)
        {
            return Ok(Rows::of_selected(Arc::clone(&query.schema), vec![rows]));
        }
        let tables = self.tables(query, snapshot).await?;
        let (state, plan) = self.physical(binder, plan, tables).await?;
        Ok(Rows::start(
            Arc::clone(&query.schema),
            plan,
            &state,
            &self.server.queries,
        ))
    }

    /// Starts a query over the rows of the running write (see [`CHANGED`]), and other relations as of `snapshot`.
    pub(super) async fn run_over(
        &mut self,
        binder: &Binder,
        query: &Query,
        params: &[ScalarValue],
        snapshot: &ReadSnapshot,
        changed: RecordBatch,
    ) -> Result<Rows> {
        let plan = bind_params(query.plan.clone(), params)?;
        let mut tables = providers(snapshot);
        let rows = MemTable::try_new(changed.schema(), vec![vec![changed]])?;
        tables.insert(CHANGED, Arc::new(rows));
        let (state, plan) = self.physical(binder, plan, tables).await?;
        Ok(Rows::start(
            Arc::clone(&query.schema),
            plan,
            &state,
            &self.server.queries,
        ))
    }

    /// Data for a query's scans: a snapshot's relations, and pieces of the sources that it samples.
    async fn tables(
        &mut self,
        query: &Query,
        snapshot: &ReadSnapshot,
    ) -> Result<HashMap<ObjectId, Arc<dyn TableProvider>>> {
        let mut tables = providers(snapshot);
        for (id, records) in &query.samples {
            let engine = Arc::clone(&self.server.engine);
            let (schema, batches) = self.guarded(async { Ok(engine.sample(*id, *records).await?) }).await?;
            tables.insert(*id, Arc::new(MemTable::try_new(schema, vec![batches])?));
        }
        Ok(tables)
    }

    async fn physical(
        &mut self,
        binder: &Binder,
        plan: LogicalPlan,
        tables: HashMap<ObjectId, Arc<dyn TableProvider>>,
    ) -> Result<(SessionState, Arc<dyn ExecutionPlan>)> {
        let state = binder.session_state();
        if is_small(&plan) {
            let plan = Binder::with_providers(plan, &tables)?;
            let physical = self
                .guarded(async { Ok(state.create_physical_plan(&plan).await?) })
                .await?;
            return Ok((state, physical));
        }
        let runtime = Handle::current();
        self.planned(move || {
            let plan = Binder::with_providers(plan, &tables)?;
            let physical = runtime.block_on(state.create_physical_plan(&plan))?;
            Ok((state, physical))
        })
        .await
    }

    /// The relations as a statement sees them: in a REPEATABLE READ block at its epoch, else at the newest common one; a block's own
    /// changes on top.
    pub(super) async fn snapshot(&mut self, reads: &[ObjectId]) -> Result<ReadSnapshot> {
        self.snapshot_from(reads, 0).await
    }

    /// The same, at an epoch not before `at_least`.
    pub(super) async fn snapshot_from(&mut self, reads: &[ObjectId], at_least: u64) -> Result<ReadSnapshot> {
        let engine = Arc::clone(&self.server.engine);
        let epoch = self.block_epoch();
        let at_least = self.least_epoch(reads).max(at_least);
        let wait = async {
            Ok(match epoch {
                Some(epoch) => engine.snapshot_at(reads, epoch).await?,
                None => Engine::snapshot(&engine, reads, at_least).await?,
            })
        };
        let mut snapshot = self.guarded(wait).await?;
        for notice in &snapshot.notices {
            self.notice(&SqlError::notice("01000", notice.clone()))?;
        }
        if let Some(block) = self.txn.block_mut() {
            add_own_changes(&mut snapshot, block)?;
        }
        Ok(snapshot)
    }

    /// Tables at the newest epoch, whatever the block's isolation: what a write's rows are checked against.
    pub(super) async fn fresh(&mut self, tables: &[ObjectId]) -> Result<ReadSnapshot> {
        let engine = Arc::clone(&self.server.engine);
        let at_least = self.least_epoch(tables);
        let wait = async { Ok(Engine::snapshot(&engine, tables, at_least).await?) };
        let mut snapshot = self.guarded(wait).await?;
        if let Some(block) = self.txn.block_mut() {
            add_own_changes(&mut snapshot, block)?;
        }
        Ok(snapshot)
    }

    /// What a read must have seen: the session's own writes. Tables without a connector take epochs at once, so reads of tables alone see every
    /// acknowledged write, whoever made it; a view that lags would hold such a reader up.
    fn least_epoch(&self, reads: &[ObjectId]) -> u64 {
        let catalog = self.server.engine.catalog();
        let tables = reads.iter().all(|id| {
            catalog.get(*id).is_some_and(|o| match &o.kind {
                ObjectKind::Table(t) => t.ingest.is_none(),
                ObjectKind::Index(_) => true,
                _ => false,
            })
        });
        let everyones = if tables && !reads.is_empty() {
            self.server.last_write()
        } else {
            0
        };
        self.last_write.max(everyones)
    }

    /// EXPLAIN of a batch query.
    pub(super) async fn explain(
        &mut self,
        binder: &Binder,
        query: &Query,
        plan: LogicalPlan,
        analyze: bool,
    ) -> Result<Vec<String>> {
        let snapshot = self.snapshot(&query.reads).await?;
        let tables = self.tables(query, &snapshot).await?;
        let (state, physical) = self.physical(binder, plan, tables).await?;
        if !analyze {
            let text = DisplayableExecutionPlan::new(physical.as_ref())
                .indent(false)
                .to_string();
            return Ok(text.lines().map(str::to_owned).collect());
        }
        let started = tokio::time::Instant::now();
        let mut rows = Rows::start(
            Arc::clone(&query.schema),
            Arc::clone(&physical),
            &state,
            &self.server.queries,
        );
        let count = async {
            let mut n = 0;
            while let Some(batch) = rows.next().await? {
                n += batch.num_rows();
            }
            Ok(n)
        };
        let n = self.guarded(count).await?;
        let text = DisplayableExecutionPlan::with_metrics(physical.as_ref())
            .indent(false)
            .to_string();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.push(format!("Rows: {n}"));
        lines.push(format!(
            "Execution Time: {:.3} ms",
            started.elapsed().as_secs_f64() * 1000.0
        ));
        Ok(lines)
    }

    /// Buffers a RowDescription.
    pub(super) fn describe_rows(&mut self, schema: &SchemaRef, binary: &[bool]) -> Result<()> {
        let fields = schema
            .fields()
            .iter()
            .zip(binary)
            .map(|(f, binary)| {
                FieldDescription::new(
                    f.name().clone(),
                    0,
                    0,
                    oid(f),
                    type_size(oid(f)),
                    typmod(f),
                    i16::from(*binary),
                )
            })
            .collect();
        self.put(&PgWireBackendMessage::RowDescription(RowDescription::new(fields)))
    }

    /// Sends up to `limit` rows (0: all); answers how many. Fewer than the limit means that there are no more.
    pub(super) async fn send_rows(&mut self, rows: &mut Rows, binary: &[bool], limit: usize) -> Result<usize> {
        let style = self.settings.text_style();
        let mut sent = 0;
        loop {
            if rows.current.is_none() {
                let server = Arc::clone(&self.server);
                let next = guard(&mut self.reader, &self.cancel, self.deadline, &server, rows.next()).await?;
                let Some(batch) = next else { break };
                rows.current = Some((BatchEncoder::new(&batch, binary)?, 0));
            }
            let Some((encoder, at)) = &mut rows.current else { break };
            while *at < encoder.rows() && (limit == 0 || sent < limit) && self.writer.buffer.len() < OUT_BYTES {
                encoder.put_row(&mut self.writer.buffer, *at, &style);
                *at += 1;
                sent += 1;
            }
            if *at == encoder.rows() {
                rows.current = None;
            }
            if self.writer.buffer.len() >= OUT_BYTES {
                self.flush_guarded().await?;
            }
            if limit > 0 && sent == limit {
                break;
            }
        }
        self.server.metrics.rows_out.inc_by(u64::try_from(sent).unwrap_or(0));
        Ok(sent)
    }
}

/// Nodes and expressions of plans that are optimised in less time than another thread takes to wake up under load.
const SMALL_PLAN_NODES: usize = 200;

fn is_small(plan: &LogicalPlan) -> bool {
    let mut nodes = 0;
    let walked = plan.apply_with_subqueries(|node| {
        nodes += 1;
        node.apply_expressions(|e| {
            e.apply(|_| {
                nodes += 1;
                Ok(if nodes > SMALL_PLAN_NODES {
                    TreeNodeRecursion::Stop
                } else {
                    TreeNodeRecursion::Continue
                })
            })
        })
    });
    walked.is_ok() && nodes <= SMALL_PLAN_NODES
}

/// Data for the scans of a plan.
pub(super) fn providers(snapshot: &ReadSnapshot) -> HashMap<ObjectId, Arc<dyn TableProvider>> {
    snapshot
        .relations
        .iter()
        .map(|(id, r)| (*id, r.table_provider()))
        .collect()
}

/// A block sees what it has written itself.
fn add_own_changes(snapshot: &mut ReadSnapshot, block: &mut Block) -> Result<()> {
    for (id, relation) in &mut snapshot.relations {
        if let Some(changed) = block.with_own_changes(*id, relation)? {
            *relation = changed;
        }
    }
    Ok(())
}
