//! The engine in this process, without the wire: binder, DataFusion and [`Engine`] put together by hand, so that a test decides
//! what enters which epoch and can read views and tables at one epoch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use levee_planner::catalog::{CatalogOp, ObjectKind, TableDef};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{self, BindSettings, Binder, Dml, DmlKind, Query, Statement, SystemTables, pg_session_state};
use levee_runtime::coordinator::{CatalogChange, CommitRequest, Engine, EngineConfig, ReadSnapshot, SystemClock};
use levee_runtime::relation::OwnChanges;
use levee_runtime::{Delta, RuntimeError};
use levee_server::error::SqlError;
use levee_server::types::encode::{TextStyle, value_text};
use levee_storage::fs::{FileSystem, OsFs};
use tempfile::TempDir;

use crate::rows::Rows;

/// How long a test waits for a view before it says that the view is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// An embedded engine in a directory of its own.
#[derive(Debug)]
pub struct Db {
    engine: Arc<Engine>,
    fs: Arc<dyn FileSystem>,
    config: EngineConfig,
    dir: TempDir,
    session: SessionState,
    last_write: std::sync::atomic::AtomicU64,
}

#[derive(Debug)]
struct NoSystemTables;

impl SystemTables for NoSystemTables {
    fn table(&self, _schema: Option<&str>, _name: &str) -> Option<Arc<dyn TableProvider>> {
        None
    }
}

/// What a failed statement says: `SQLSTATE: message`.
pub type Outcome<T> = Result<T, String>;

fn text(error: impl Into<SqlError>) -> String {
    let error = error.into();
    format!("{}: {}", error.code(), error.message())
}

impl Db {
    /// A new, empty engine with this many tasks per fragment.
    ///
    /// # Panics
    /// It does not open.
    pub fn new(parallelism: usize) -> Self {
        Self::on(Arc::new(OsFs), parallelism, 1000).unwrap_or_else(|e| panic!("engine does not open: {e}"))
    }

    /// An engine whose log and checkpoints stand on another file system.
    ///
    /// # Errors
    /// It does not open: `SQLSTATE: message`.
    pub fn on(fs: Arc<dyn FileSystem>, parallelism: usize, checkpoint_interval_ms: u64) -> Outcome<Self> {
        let dir = tempfile::Builder::new()
            .prefix("levee-db-")
            .tempdir()
            .expect("temporary directory");
        let config = EngineConfig {
            data_dir: dir.path().join("data"),
            checkpoint_url: None,
            memory_limit: memory_limit(),
            parallelism,
            checkpoint_interval_ms,
            backlog_limit: levee_runtime::coordinator::BACKLOG_LIMIT,
        };
        Self::open(fs, config, dir)
    }

    fn open(fs: Arc<dyn FileSystem>, config: EngineConfig, dir: TempDir) -> Outcome<Self> {
        let mut tries = 0;
        let engine = loop {
            let opened = Engine::open_with(config.clone(), Arc::clone(&fs), Arc::new(SystemClock)).map_err(text);
            match opened {
                // A process that another test is just starting holds a copy of the lock's descriptor until its exec.
                Err(e) if e.contains("in use") && tries < 200 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => break opened?,
            }
        };
        Ok(Self {
            engine,
            fs,
            config,
            dir,
            session: pg_session_state(1, None),
            last_write: 0.into(),
        })
    }

    /// Stops and opens again on the same directory.
    ///
    /// # Panics
    /// It does not open again.
    pub async fn reopen(self) -> Self {
        let fs = Arc::clone(&self.fs);
        self.reopen_on(fs)
            .await
            .unwrap_or_else(|e| panic!("engine does not open again: {e}"))
    }

    /// Stops and opens again, on what another file system holds under the same paths.
    ///
    /// # Errors
    /// It does not open: `SQLSTATE: message`.
    pub async fn reopen_on(self, fs: Arc<dyn FileSystem>) -> Outcome<Self> {
        self.engine.shutdown().await;
        let Self {
            engine, config, dir, ..
        } = self;
        // The directory's lock goes with the engine.
        drop(engine);
        Self::open(fs, config, dir)
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Directory of the data.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    fn binder(&self) -> Binder {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock after 1970");
        let settings = BindSettings {
            time_zone: "UTC".into(),
            now_us: now.as_micros() as i64,
            user: "test".into(),
            parallelism: self.config.parallelism,
            ..BindSettings::default()
        };
        Binder {
            catalog: self.engine.catalog(),
            system: Arc::new(NoSystemTables),
            settings,
            extra_udfs: Vec::new(),
            base: Some(Arc::new(self.session.clone())),
        }
    }

    fn bind(&self, text_of: &str) -> Outcome<Statement> {
        let parsed = sql::parse(text_of).map_err(text)?;
        assert_eq!(parsed.len(), 1, "one statement at a time: {text_of}");
        self.binder().bind(&parsed[0], &[]).map_err(text)
    }

    /// Runs DDL or DML; answers the number of rows written.
    ///
    /// # Errors
    /// `SQLSTATE: message`.
    pub async fn exec(&self, statement: &str) -> Outcome<u64> {
        match self.bind(statement)? {
            Statement::Create { object, also, .. } => {
                let catalog = self.engine.catalog();
                let created = self.engine.create_with(&catalog, *object, also);
                match tokio::time::timeout(PATIENCE, created).await {
                    Ok(done) => done.map_err(text)?,
                    Err(_) => panic!("CREATE does not end: {statement}"),
                }
                Ok(0)
            }
            Statement::Drop { objects, also, .. } => {
                let dropped = objects.into_iter().map(CatalogOp::Drop);
                self.change(dropped.chain(also).collect()).await
            }
            Statement::Alter(alter) => self.change(alter.ops).await,
            Statement::Dml(dml) => self.write(&dml).await,
            Statement::Query(query) => {
                let snapshot = self.snapshot(&query.reads, self.last_write()).await?;
                self.run(&query, &snapshot).await.map(|b| b.num_rows() as u64)
            }
            Statement::Notice { .. } => Ok(0),
            other => panic!("the embedded session does not run {other:?}"),
        }
    }

    async fn change(&self, ops: Vec<CatalogOp>) -> Outcome<u64> {
        let change = CatalogChange {
            ops,
            ..CatalogChange::default()
        };
        let catalog = self.engine.catalog();
        self.engine.change_catalog(&catalog, change).await.map_err(text)?;
        Ok(0)
    }

    async fn write(&self, dml: &Dml) -> Outcome<u64> {
        // What the server's sessions do beyond the rows of one query is tested there.
        if dml.joined || dml.on_conflict.is_some() || dml.returning.is_some() {
            return Err("0A000: the embedded session writes plain INSERT, UPDATE and DELETE only".to_owned());
        }
        loop {
            let mut reads = dml.query.reads.clone();
            if !reads.contains(&dml.table) {
                reads.push(dml.table);
            }
            let snapshot = self.snapshot(&reads, self.last_write()).await?;
            let rows = self.run(&dml.query, &snapshot).await?;
            let table = self.table(dml.table);
            let n = table.schema.fields().len();
            let part = |from: usize| -> Outcome<RecordBatch> {
                let columns = rows.columns()[from..from + n].to_vec();
                for (column, field) in columns.iter().zip(table.schema.fields()) {
                    if !field.is_nullable() && column.null_count() > 0 {
                        return Err(format!("23502: null value in column \"{}\"", field.name()));
                    }
                }
                RecordBatch::try_new(Arc::clone(&table.schema), columns).map_err(|e| format!("XX000: {e}"))
            };
            let deltas = match dml.kind {
                DmlKind::Insert => vec![Delta::inserts(part(0)?)],
                DmlKind::Update => vec![Delta::inserts(part(0)?).negate(), Delta::inserts(part(n)?)],
                DmlKind::Delete => vec![Delta::inserts(part(0)?).negate()],
                DmlKind::Merge => return Err("0A000: the embedded session does not run MERGE".to_owned()),
            };
            if rows.num_rows() == 0 {
                return Ok(0);
            }
            let net = Delta::consolidate(&table.schema, &deltas, &table.primary_key).map_err(text)?;
            check_keys(&table, &snapshot, dml.table, &net)?;
            match self.commit_at(snapshot.epoch, vec![(dml.table, net)]).await {
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(text(e)),
                Ok(_) => return Ok(rows.num_rows() as u64),
            }
        }
    }

    fn table(&self, id: ObjectId) -> TableDef {
        match self.engine.catalog().get(id).map(|o| o.kind.clone()) {
            Some(ObjectKind::Table(table)) => table,
            other => panic!("{id} is no table: {other:?}"),
        }
    }

    /// Id of a relation.
    ///
    /// # Panics
    /// There is none of that name.
    pub fn id(&self, name: &str) -> ObjectId {
        self.engine
            .catalog()
            .by_name(name)
            .unwrap_or_else(|| panic!("no relation {name}"))
            .id
    }

    /// Id of a relation that may have gone meanwhile.
    fn found(&self, name: &str) -> Outcome<ObjectId> {
        match self.engine.catalog().by_name(name) {
            Some(object) => Ok(object.id),
            None => Err(format!("42P01: relation \"{name}\" does not exist")),
        }
    }

    /// A table's definition.
    pub fn table_named(&self, name: &str) -> TableDef {
        self.table(self.id(name))
    }

    /// The epoch of this session's last write.
    pub fn last_write(&self) -> u64 {
        self.last_write.load(std::sync::atomic::Ordering::SeqCst)
    }

    async fn commit_at(&self, snapshot_epoch: u64, writes: Vec<(ObjectId, Delta)>) -> Result<u64, RuntimeError> {
        let writes = writes.into_iter().map(|(id, delta)| (id, vec![delta])).collect();
        let ack = self
            .engine
            .commit(CommitRequest {
                snapshot_epoch,
                writes,
                definitions: Vec::new(),
            })
            .await?;
        self.last_write
            .fetch_max(ack.epoch, std::sync::atomic::Ordering::SeqCst);
        Ok(ack.epoch)
    }

    /// Commits net changes of tables, by name, in one epoch; answers the epoch.
    ///
    /// # Panics
    /// The engine refuses.
    pub async fn commit(&self, writes: Vec<(String, Delta)>) -> u64 {
        self.try_commit(writes).await.unwrap_or_else(|e| panic!("commit: {e}"))
    }

    /// As [`Db::commit`].
    ///
    /// # Errors
    /// `SQLSTATE: message`.
    pub async fn try_commit(&self, writes: Vec<(String, Delta)>) -> Outcome<u64> {
        let writes = writes
            .into_iter()
            .map(|(name, delta)| (self.id(&name), delta))
            .collect();
        let newest = self.engine.newest_epoch();
        self.commit_at(newest, writes).await.map_err(text)
    }

    async fn snapshot(&self, relations: &[ObjectId], at_least: u64) -> Outcome<ReadSnapshot> {
        match tokio::time::timeout(PATIENCE, self.engine.snapshot(relations, at_least)).await {
            Ok(snapshot) => snapshot.map_err(text),
            Err(_) => panic!(
                "relations do not reach epoch {at_least}: {:?}",
                self.engine.status("regions")
            ),
        }
    }

    async fn run(&self, query: &Query, snapshot: &ReadSnapshot) -> Outcome<RecordBatch> {
        let providers: HashMap<ObjectId, Arc<dyn TableProvider>> = snapshot
            .relations
            .iter()
            .map(|(id, r)| (*id, r.table_provider()))
            .collect();
        let plan = Binder::with_providers(query.plan.clone(), &providers).map_err(text)?;
        let context = SessionContext::new_with_state(self.session.clone());
        let frame = context
            .execute_logical_plan(plan)
            .await
            .map_err(|e| text(RuntimeError::from(e)))?;
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let batches = frame.collect().await.map_err(|e| text(RuntimeError::from(e)))?;
        // A batch's own schema may say more (nullability) than the plan's.
        let schema = batches.first().map_or(schema, RecordBatch::schema);
        concat_batches(&schema, &batches).map_err(|e| format!("XX000: {e}"))
    }

    /// Runs a query over the newest epoch that has this session's writes.
    ///
    /// # Errors
    /// `SQLSTATE: message`.
    pub async fn query(&self, query: &str) -> Outcome<Rows> {
        let Statement::Query(bound) = self.bind(query)? else {
            panic!("no query: {query}")
        };
        let snapshot = self.snapshot(&bound.reads, self.last_write()).await?;
        let batch = self.run(&bound, &snapshot).await?;
        Ok(to_rows(&[batch], &bound))
    }

    /// Rows of a table or view.
    ///
    /// # Errors
    /// `SQLSTATE: message`.
    pub async fn contents(&self, name: &str) -> Outcome<RecordBatch> {
        let id = self.found(name)?;
        let snapshot = self.snapshot(&[id], self.last_write()).await?;
        let relation = &snapshot.relations[&id];
        let batches = relation.rows().map_err(text)?;
        concat_batches(relation.schema(), &batches).map_err(|e| format!("XX000: {e}"))
    }

    /// Each view and its query at one epoch, at least `at_least`: (epoch, view's rows, query's rows).
    ///
    /// # Errors
    /// `SQLSTATE: message`, with the view's name.
    pub async fn compare(&self, views: &[(String, Bound)], at_least: u64) -> Outcome<Vec<(u64, Rows, Rows)>> {
        let found: Vec<ObjectId> = views.iter().map(|(name, _)| self.found(name)).collect::<Outcome<_>>()?;
        let mut ids = found.clone();
        for (_, query) in views {
            ids.extend(&query.0.reads);
        }
        ids.sort_unstable();
        ids.dedup();
        let snapshot = self.snapshot(&ids, at_least).await?;
        let mut out = Vec::new();
        for ((name, query), id) in views.iter().zip(found) {
            let relation = &snapshot.relations[&id];
            let view = to_rows(&relation.rows().map_err(text)?, &query.0);
            let batch = self
                .run(&query.0, &snapshot)
                .await
                .map_err(|e| format!("{e} (query of {name})"))?;
            out.push((snapshot.epoch, view, to_rows(&[batch], &query.0)));
        }
        Ok(out)
    }

    /// Binds a query once, to be run at many epochs.
    ///
    /// # Errors
    /// `SQLSTATE: message`.
    pub fn bound(&self, query: &str) -> Outcome<Bound> {
        match self.bind(query)? {
            Statement::Query(query) => Ok(Bound(query)),
            other => panic!("no query: {other:?}"),
        }
    }

    /// Stops.
    pub async fn close(self) {
        self.engine.shutdown().await;
    }
}

/// A bound query.
#[derive(Debug, Clone)]
pub struct Bound(Query);

/// Bytes that engines may use: `LEVEE_TEST_MEMORY`, to make everything cold and spilled, or plenty.
fn memory_limit() -> usize {
    let set = std::env::var("LEVEE_TEST_MEMORY").ok();
    set.map_or(512 << 20, |bytes| {
        bytes.parse().expect("LEVEE_TEST_MEMORY is a number of bytes")
    })
}

/// Duplicate keys among the new rows, or between them and what stays.
fn check_keys(table: &TableDef, snapshot: &ReadSnapshot, id: ObjectId, net: &Delta) -> Outcome<()> {
    if table.primary_key.is_empty() {
        return Ok(());
    }
    let side = |positive: bool| -> Outcome<Delta> {
        let keep: Vec<u32> = (0..net.num_rows() as u32)
            .filter(|&i| (net.diff(i as usize) > 0) == positive)
            .collect();
        net.take(&keep.into()).map_err(text)
    };
    let (new, old) = (side(true)?, side(false)?);
    let keys = new
        .batch
        .project(&table.primary_key)
        .map_err(|e| format!("XX000: {e}"))?;
    let fields = keys
        .columns()
        .iter()
        .map(|c| SortField::new(c.data_type().clone()))
        .collect();
    let rows = RowConverter::new(fields)
        .and_then(|c| c.convert_columns(keys.columns()))
        .map_err(|e| format!("XX000: {e}"))?;
    let distinct: HashSet<&[u8]> = rows.iter().map(|r| r.data()).collect();
    let copies = new.diff_iter().any(|d| d > 1);
    let mut own = OwnChanges::default();
    own.take(&snapshot.relations[&id], &[old]).map_err(text)?;
    let relation = snapshot.relations[&id].with_changes(&own);
    let taken = relation.contains_keys(&keys).map_err(text)?;
    if copies || distinct.len() < keys.num_rows() || taken.true_count() > 0 {
        return Err("23505: duplicate key value violates unique constraint".into());
    }
    Ok(())
}

/// Arrow → text as the server writes it.
fn to_rows(batches: &[RecordBatch], query: &Query) -> Rows {
    let style = TextStyle::default();
    let mut rows = Vec::new();
    for batch in batches {
        for i in 0..batch.num_rows() {
            let row = batch
                .columns()
                .iter()
                .map(|c| value_text(c, i, &style).unwrap_or_else(|e| panic!("{}", text(e))));
            rows.push(row.collect());
        }
    }
    Rows {
        columns: query.schema.fields().iter().map(|f| f.name().clone()).collect(),
        rows,
        floats: query
            .schema
            .fields()
            .iter()
            .any(|f| matches!(f.data_type(), DataType::Float32 | DataType::Float64)),
    }
}
