//! The engine: epochs, the catalog, regions' steps, checkpoints and recovery.
//!
//! ```text
//!   sessions ──commit/DDL──▶ sequencer ──log, fsync──▶ barrier ──▶ control ──steps──▶ dataflow
//!      ▲                                                            │  ▲                │
//!      └────────── relations at an epoch ◀── publish ───────────────┘  └── step done ───┘
//!                                                     control ──frozen state──▶ checkpointer
//! ```
//!
//! Each box is one thread with one queue. [`Engine`] is what the server talks to.

mod backfill;
mod backlog;
mod building;
mod changes;
mod checkpointer;
pub mod clock;
mod control;
mod dead_letters;
mod delivering;
mod jobs;
mod lifecycle;
pub mod locks;
mod objects;
mod reader;
mod record;
mod recovery;
mod region;
mod replays;
mod sequencer;
mod sequences;
mod shared;
mod sources;
mod status;
mod stepping;
mod timers;
mod upkeep;
mod window;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp};
use levee_planner::plan::ObjectId;
use levee_storage::checkpoint::{CheckpointStore, CheckpointTarget, highest_term};
use levee_storage::fs::{FileSystem, OsFs};
use levee_storage::lock::DirLock;
use levee_storage::log::{Log, LogOptions};
use levee_storage::rocks::RocksShared;
use levee_storage::tier::Tier;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

pub use clock::{Clock, SystemClock};
pub use lifecycle::CreateMode;
pub use locks::{LockManager, LockMode, LockOwner, LockTag, Patience};
pub use record::{decode_delta, encode_delta};
pub use replays::Replayed;

use crate::dataflow::executor::Executor;
use crate::memory::{Governor, Share};
use crate::relation::{Limits, Relation, RelationSnapshot, RowOrder};
use crate::sources::SplitInfo;
use crate::{Delta, Result, RuntimeError};
use checkpointer::Checkpointer;
use control::{Control, Event, error_text};
use sequencer::{Commit, DdlRequest, Request, Sequencer};
use shared::{RegionStatus, Shared};
use window::WriteWindow;

/// RocksDB's cache is not made smaller than this.
const ROCKS_BYTES_MIN: usize = 1 << 20;

/// How to open an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Data directory; made if absent.
    pub data_dir: PathBuf,
    /// Where checkpoints go; `None`: `data_dir/checkpoints`.
    pub checkpoint_url: Option<String>,
    /// Memory budget in bytes.
    pub memory_limit: usize,
    /// Tasks per fragment, and dataflow threads.
    pub parallelism: usize,
    /// Time between checkpoints while there is change.
    pub checkpoint_interval_ms: u64,
    /// Bytes that a job which stands still may make others keep.
    pub backlog_limit: u64,
}

/// [`EngineConfig::backlog_limit`] where nobody says otherwise.
pub const BACKLOG_LIMIT: u64 = 10 << 30;

/// A transaction's writes.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// Epoch that the transaction (or statement) read.
    pub snapshot_epoch: u64,
    /// Net change per table, columns in table order. Conflict keys are derived: primary keys of all rows; for a table without
    /// one, the whole rows that are retracted.
    pub writes: Vec<(ObjectId, Vec<Delta>)>,
    /// The definitions that the rows were checked against (constraints, NOT NULL). If one has changed since, the commit fails with
    /// `Conflict`.
    pub definitions: Vec<Arc<CatalogObject>>,
}

/// A change of the catalog, in one epoch.
#[derive(Debug, Default)]
pub struct CatalogChange {
    /// What changes.
    pub ops: Vec<CatalogOp>,
    /// First rows of tables and indexes that `ops` create.
    pub writes: Vec<(ObjectId, Vec<Delta>)>,
    /// Tables whose rows were looked at, and the epoch at which: a later write to one of them is a `Conflict`.
    pub unchanged: Vec<(ObjectId, u64)>,
}

/// A durable commit.
#[derive(Debug, Clone, Copy)]
pub struct CommitAck {
    /// Epoch that the writes entered.
    pub epoch: u64,
}

/// Relations at one epoch.
#[derive(Debug, Clone)]
pub struct ReadSnapshot {
    /// The epoch.
    pub epoch: u64,
    /// Its timestamp.
    pub timestamp_us: i64,
    /// Data; `Arc`s only.
    pub relations: HashMap<ObjectId, RelationSnapshot>,
    /// What the reader should be told: relations that stand at an older epoch.
    pub notices: Vec<String>,
}

/// What a read finds.
#[derive(Default)]
struct Found {
    following: HashMap<ObjectId, Arc<Relation>>,
    /// With the reason.
    standing: HashMap<ObjectId, (Arc<Relation>, String)>,
}

/// A row of a `levee_catalog` relation: values as text, in the column order that the method's doc names.
pub type StatusRow = Vec<Option<String>>;

/// Keeps an epoch readable while it lives: the snapshot of a transaction block.
#[derive(Debug)]
pub struct EpochPin {
    shared: Arc<Shared>,
    epoch: u64,
}

impl EpochPin {
    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for EpochPin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        if let Some(n) = pins.get_mut(&self.epoch) {
            *n -= 1;
            if *n == 0 {
                pins.remove(&self.epoch);
            }
        }
    }
}

/// An embedded Levee: coordinator and worker in this process.
pub struct Engine {
    shared: Arc<Shared>,
    requests: Sender<Request>,
    events: Sender<Event>,
    executor: Arc<Executor>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    sequences: sequences::Sequences,
    _lock: DirLock,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens (or makes) a data directory and recovers. Blocking.
    ///
    /// # Errors
    /// The directory is locked, corrupt beyond what an older checkpoint and the log can mend, or not writable.
    pub fn open(config: EngineConfig) -> Result<Arc<Self>> {
        Self::open_with(config, Arc::new(OsFs), Arc::new(SystemClock))
    }

    /// [`Engine::open`] with another file system below the log and the checkpoints, and another clock. The data directory itself
    /// must exist on the machine's file system too: RocksDB's scratch files and spilled batches, which nothing relies on after a
    /// restart, live there.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with(config: EngineConfig, fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let dir = config.data_dir.clone();
        recovery::make_dir(&dir)?;
        let lock = DirLock::acquire(&dir)?;
        recovery::clear_dir(&dir.join("spill"))?;
        let target = match &config.checkpoint_url {
            Some(url) => CheckpointTarget::parse(url)?,
            None => CheckpointTarget::Directory(dir.join("checkpoints")),
        };
        let term_min = highest_term(&target, &fs)?;
        let options = LogOptions {
            term_min,
            ..LogOptions::default()
        };
        let (log, term) = Log::open(Arc::clone(&fs), &dir.join("log"), options)?;
        let log = Arc::new(log);
        let memory = Governor::new(config.memory_limit);
        let rocks = RocksShared::new(memory.share(Share::Rocks).max(ROCKS_BYTES_MIN));
        let tier = Tier::open(&rocks, &dir.join("tier"))?;
        let store = Arc::new(CheckpointStore::open(
            &target,
            &fs,
            &dir.join("work"),
            rocks.clone(),
            term,
        )?);
        let mut found = recovery::find(&store, &log)?;

        let (request_tx, request_rx) = mpsc::channel();
        let (event_tx, event_rx) = mpsc::channel();
        let (job_tx, job_rx) = mpsc::channel();
        let (fold_tx, fold_rx) = mpsc::channel();
        let executor = Executor::new(config.parallelism);
        let shared = Arc::new(Shared {
            config,
            catalog: Arc::new(RwLock::new(Arc::new(Catalog::default()))),
            entries: RwLock::new(HashMap::new()),
            progress: watch::Sender::new(0),
            clock_epoch: Arc::default(),
            newest: AtomicU64::new(0),
            newest_us: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            pins: Mutex::new(BTreeMap::new()),
            window: WriteWindow::new(&memory),
            locks: Arc::default(),
            epochs: Mutex::new(VecDeque::new()),
            checkpoints: Mutex::new(VecDeque::new()),
            rocks: (rocks.clone(), memory.holder(Share::Rocks)),
            memory,
            tier,
            clock: Arc::clone(&clock),
            fs: Arc::clone(&fs),
        });
        let mut control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&executor),
            request_tx.clone(),
            event_tx.clone(),
            job_tx,
            fold_tx,
        );
        recovery::restore(&mut control, &store, &mut found)?;
        let (epoch, timestamp_us) = recovery::replay(&mut control, &log, &found)?;
        control.abandon_creations();
        *shared.catalog.write() = Arc::clone(&control.catalog);
        shared.recovered.store(epoch, Ordering::Release);
        shared.newest.store(epoch, Ordering::Release);
        shared.window.restart_at(epoch);
        let sequencer = Sequencer {
            shared: Arc::clone(&shared),
            log: Arc::clone(&log),
            clock,
            epoch,
            timestamp_us,
            catalog: Arc::clone(&shared.catalog),
            events: event_tx.clone(),
            table_writes: HashMap::new(),
        };
        let checkpointer = Checkpointer {
            store: Arc::clone(&store),
            tier: Arc::clone(&shared.tier),
            log,
            events: event_tx.clone(),
            previous_log_seq: found.previous_log_seq,
            current: found.manifest,
            carried: Vec::new(),
            untaken: checkpointer::Untaken::default(),
        };
        let folder_events = event_tx.clone();
        let unverified = std::mem::take(&mut found.unverified);
        let files = Arc::downgrade(&store);
        drop(store);
        let threads = vec![
            spawn("levee-verify", move || recovery::verify_rest(&files, &unverified))?,
            spawn("levee-sequencer", move || sequencer.run(&request_rx))?,
            spawn("levee-control", move || control.run(&event_rx))?,
            spawn("levee-checkpoint", move || checkpointer.run(&job_rx))?,
            spawn("levee-fold", move || fold(&fold_rx, &folder_events))?,
        ];
        let (requests, events) = (request_tx, event_tx);
        Ok(Arc::new(Self {
            shared,
            requests,
            events,
            executor,
            threads: Mutex::new(threads),
            sequences: sequences::Sequences::default(),
            _lock: lock,
        }))
    }

    /// The memory budget, in which queries take their part too.
    pub fn memory(&self) -> &Arc<Governor> {
        &self.shared.memory
    }

    /// The newest catalog.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.shared.catalog.read())
    }

    /// Commits writes durably in one epoch.
    ///
    /// # Errors
    /// `Conflict`: a key was written after `snapshot_epoch`; `NoObject`; `StorageFull`.
    pub async fn commit(&self, request: CommitRequest) -> Result<CommitAck> {
        let mut keys = Vec::new();
        let mut writes = Vec::new();
        for (table, deltas) in request.writes {
            let relation = self.relation(table)?;
            let order = relation.order();
            let delta = Delta::consolidate(order.stored(), &deltas, order.key())?;
            if delta.num_rows() == 0 {
                continue;
            }
            conflict_keys(table, &order, &delta, &mut keys)?;
            writes.push((table, delta));
        }
        if writes.is_empty() {
            return Ok(CommitAck {
                epoch: request.snapshot_epoch,
            });
        }
        let (reply, answer) = oneshot::channel();
        let commit = Commit {
            snapshot_epoch: request.snapshot_epoch,
            keys,
            writes,
            definitions: request.definitions,
            reply,
        };
        self.requests
            .send(Request::Commit(commit))
            .map_err(|_| RuntimeError::ShuttingDown)?;
        answer.await.map_err(|_| RuntimeError::ShuttingDown)?
    }

    /// Locks of open transactions.
    pub fn locks(&self) -> &Arc<LockManager> {
        &self.shared.locks
    }

    /// For each row of a table (columns in table order) the hash of what identifies it: its primary key, or all of it. Locks and
    /// the resolver know rows by these.
    ///
    /// # Errors
    /// `NoObject`; columns of other types.
    pub fn row_keys(&self, table: ObjectId, rows: &RecordBatch) -> Result<Vec<u128>> {
        let relation = self.relation(table)?;
        let order = relation.order();
        let encoded = if order.key().is_empty() {
            order.encode(rows)?
        } else {
            let columns: Vec<ArrayRef> = order.key().iter().map(|&c| Arc::clone(rows.column(c))).collect();
            order.encode_keys(&columns)?
        };
        Ok(encoded.iter().map(|r| key_hash(table, r.data())).collect())
    }

    /// The same from the columns that identify rows alone: the key's in key order, or all in table order.
    ///
    /// # Errors
    /// As [`Self::row_keys`].
    pub fn keys_of(&self, table: ObjectId, columns: &[ArrayRef]) -> Result<Vec<u128>> {
        let relation = self.relation(table)?;
        let order = relation.order();
        let encoded = if order.key().is_empty() {
            order.encode(&RecordBatch::try_new(Arc::clone(order.stored()), columns.to_vec())?)?
        } else {
            order.encode_keys(columns)?
        };
        Ok(encoded.iter().map(|r| key_hash(table, r.data())).collect())
    }

    /// The newest epoch at which one of the keys was written, or may have been.
    pub fn newest_write(&self, keys: &[u128]) -> u64 {
        self.shared.window.newest(keys)
    }

    /// Adds an object, bound against `catalog` (`Conflict` if the catalog has moved on: bind again). For a materialized view or
    /// sink it returns when the view is complete; dropping the future cancels the creation and removes the object.
    ///
    /// # Errors
    /// `Conflict`, or what went wrong while building.
    pub async fn create(&self, catalog: &Arc<Catalog>, object: CatalogObject) -> Result<()> {
        self.create_with(catalog, object, Vec::new()).await
    }

    /// [`Engine::create`], and what comes into being in the same epoch: sequences, indexes, a schema.
    ///
    /// # Errors
    /// As [`Engine::create`].
    pub async fn create_with(&self, catalog: &Arc<Catalog>, object: CatalogObject, also: Vec<CatalogOp>) -> Result<()> {
        self.create_as(catalog, object, also, CreateMode::Wait).await
    }

    /// [`Engine::create_with`]; a materialized view or sink is built as `mode` says.
    ///
    /// # Errors
    /// As [`Engine::create`].
    pub async fn create_as(
        &self,
        catalog: &Arc<Catalog>,
        mut object: CatalogObject,
        also: Vec<CatalogOp>,
        mode: CreateMode,
    ) -> Result<()> {
        delivering::prepare(&mut object).await?;
        if mode != CreateMode::NoData {
            self.check_inputs(catalog, &object)?;
        }
        let id = object.id;
        let is_job = object.stream_plan().is_some();
        let waits = (is_job && mode == CreateMode::Wait) || (!is_job && object.is_relation());
        let splits = self.first_splits(&object).await?;
        let mut ops = vec![CatalogOp::Create(object)];
        ops.extend(also);
        if is_job && let Some(state) = mode.first_state() {
            ops.push(CatalogOp::SetJob(id, state));
        }
        let request = DdlRequest {
            expected: Some(Arc::clone(catalog)),
            ops,
            splits,
            ..DdlRequest::default()
        };
        let epoch = self.submit_ddl(request).await?;
        if waits {
            return self.created(id, epoch, is_job).await;
        }
        self.applied(epoch).await
    }

    /// Rows of a piece of a source, made of about `records` records.
    ///
    /// # Errors
    /// `NoObject`; what the source's driver says.
    pub async fn sample(&self, source: ObjectId, records: u64) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let (reply, answer) = oneshot::channel();
        let asked = self.events.send(Event::Driver(source, reply));
        asked.map_err(|_| RuntimeError::ShuttingDown)?;
        let driver = answer.await.map_err(|_| RuntimeError::ShuttingDown)?;
        let driver = driver.ok_or(RuntimeError::NoObject(source))?;
        let sample = tokio::task::spawn_blocking(move || crate::sources::sample(driver.as_ref(), records));
        sample
            .await
            .map_err(|_| RuntimeError::internal("a sample of a source failed"))?
    }

    /// Drops objects, dependents first.
    ///
    /// # Errors
    /// `Conflict` if the catalog has moved on.
    pub async fn drop_objects(&self, catalog: &Arc<Catalog>, ids: Vec<ObjectId>) -> Result<()> {
        let ops = ids.into_iter().map(CatalogOp::Drop).collect();
        self.ddl(Some(catalog), ops, Vec::new()).await.map(|_| ())
    }

    /// A new source's splits with their start offsets, which the timeline keeps from its creation on.
    async fn first_splits(&self, object: &CatalogObject) -> Result<Vec<(ObjectId, Vec<SplitInfo>)>> {
        let Some(def) = sources::source_def(object).cloned() else {
            return Ok(Vec::new());
        };
        let found = tokio::task::spawn_blocking(move || crate::sources::discover(&def)).await;
        let splits = found.map_err(|_| RuntimeError::internal("finding a source's splits failed"))??;
        Ok(vec![(object.id, splits)])
    }

    async fn ddl(
        &self,
        expected: Option<&Arc<Catalog>>,
        ops: Vec<CatalogOp>,
        splits: Vec<(ObjectId, Vec<SplitInfo>)>,
    ) -> Result<u64> {
        let request = DdlRequest {
            expected: expected.map(Arc::clone),
            ops,
            splits,
            ..DdlRequest::default()
        };
        self.send_ddl(request).await
    }

    fn relation(&self, id: ObjectId) -> Result<Arc<Relation>> {
        let entry = self.shared.entry(id).ok_or(RuntimeError::NoObject(id))?;
        match (entry.status, entry.relation) {
            (RegionStatus::Failed(reason), _) => Err(RuntimeError::User {
                code: "55000",
                message: format!("the view has stopped: {reason}"),
                hint: Some("ALTER MATERIALIZED VIEW … RESUME builds it again.".to_owned()),
            }),
            (RegionStatus::Unpopulated, _) => {
                let catalog = self.catalog();
                Err(unpopulated(catalog.get(id).map_or("", |o| o.name.as_str())))
            }
            (RegionStatus::Building | RegionStatus::Rebuilding, _) => Err(RuntimeError::User {
                code: "55000",
                message: "the view is still being built".to_owned(),
                hint: Some("See levee_catalog.ddl_progress.".to_owned()),
            }),
            (RegionStatus::Running | RegionStatus::Standing(_), Some(relation)) => Ok(relation),
            (RegionStatus::Running | RegionStatus::Standing(_), None) => {
                Err(RuntimeError::user("42809", "the object cannot be read"))
            }
        }
    }

    /// Relations by id, once all of them have taken epoch `at_least`, except those that stand.
    async fn relations(&self, ids: &[ObjectId], at_least: u64) -> Result<Found> {
        let mut progress = self.shared.progress.subscribe();
        let at_least = at_least.max(self.shared.recovered.load(Ordering::Acquire));
        loop {
            let mut found = Found::default();
            let mut behind = false;
            for id in ids {
                let entry = self.shared.entry(*id).map(|e| e.status);
                let created = entry.is_none() && self.catalog().get(*id).is_some();
                if created || entry == Some(RegionStatus::Rebuilding) {
                    behind = true;
                    continue;
                }
                let relation = self.relation(*id)?;
                if let Some(RegionStatus::Standing(why)) = entry {
                    found.standing.insert(*id, (relation, why));
                    continue;
                }
                behind |= relation.frontier() < at_least;
                found.following.insert(*id, relation);
            }
            if !behind {
                return Ok(found);
            }
            progress.changed().await.map_err(|_| RuntimeError::ShuttingDown)?;
        }
    }

    /// Waits until the relations named have taken epoch `at_least`, then pins all of them at the newest step boundary complete on
    /// all. Those that stand (paused, or waiting for a paused one) are read where they are, with a notice. The caller puts its own
    /// time-out around it.
    ///
    /// # Errors
    /// `NoObject`; a view that stopped with an error.
    pub async fn snapshot(&self, relations: &[ObjectId], at_least: u64) -> Result<ReadSnapshot> {
        let mut tries = 0;
        let mut held: Option<EpochPin> = None;
        loop {
            let at_least = held.as_ref().map_or(at_least, EpochPin::epoch);
            let found = self.relations(relations, at_least).await?;
            let all: Vec<Arc<Relation>> = found.following.values().map(Arc::clone).collect();
            let epoch = match &held {
                Some(pin) => pin.epoch(),
                None if all.is_empty() => self.newest_epoch(),
                None => region::common_boundary(&all),
            };
            if epoch < at_least {
                // The steps of these relations meet before it only: let them meet at the newest epoch.
                held = Some(self.pin(at_least));
                continue;
            }
            match self.pinned(&found, epoch) {
                // A fold may pass between choosing the epoch and pinning it.
                Err(RuntimeError::EpochUnavailable { .. }) if tries < 100 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                other => return other,
            }
        }
    }

    /// Pins relations at exactly this epoch (a REPEATABLE READ block's snapshot), waiting for those that are behind it.
    ///
    /// # Errors
    /// `EpochUnavailable` if it has been folded away.
    pub async fn snapshot_at(&self, relations: &[ObjectId], epoch: u64) -> Result<ReadSnapshot> {
        let found = self.relations(relations, epoch).await?;
        self.pinned(&found, epoch)
    }

    fn pinned(&self, found: &Found, epoch: u64) -> Result<ReadSnapshot> {
        let mut snapshots = HashMap::with_capacity(found.following.len() + found.standing.len());
        for (id, relation) in &found.following {
            snapshots.insert(*id, relation.snapshot(epoch)?);
        }
        let mut notices = Vec::new();
        for (id, (relation, why)) in &found.standing {
            let at = relation.frontier().min(epoch);
            if at < epoch {
                notices.push(format!("{why}: its rows are those of epoch {at}"));
            }
            snapshots.insert(*id, relation.snapshot(at)?);
        }
        notices.sort_unstable();
        let epochs = self.shared.epochs.lock();
        let known = epochs.iter().rev().find(|e| e.epoch <= epoch).map(|e| e.timestamp_us);
        Ok(ReadSnapshot {
            epoch,
            timestamp_us: known.unwrap_or(0),
            relations: snapshots,
            notices,
        })
    }

    /// The newest durable epoch: a new block's snapshot.
    pub fn newest_epoch(&self) -> u64 {
        self.shared.newest.load(Ordering::Acquire)
    }

    /// Keeps the newest epoch that all tables have taken, at least `at_least`, readable while the answer lives: no step passes it
    /// and nothing folds it away.
    pub fn pin(&self, at_least: u64) -> EpochPin {
        let mut pins = self.shared.pins.lock();
        let epoch = self.newest_epoch().max(at_least);
        *pins.entry(epoch).or_insert(0) += 1;
        drop(pins);
        EpochPin {
            shared: Arc::clone(&self.shared),
            epoch,
        }
    }

    /// Waits until every view has taken every epoch cut so far; answers that epoch.
    ///
    /// # Errors
    /// The engine stops.
    pub async fn flush(&self) -> Result<u64> {
        let epoch = self.newest_epoch();
        let mut progress = self.shared.progress.subscribe();
        loop {
            let behind = self.shared.entries.read().values().any(|e| {
                let relation = e.relation.as_ref().filter(|_| e.status == RegionStatus::Running);
                relation.is_some_and(|r| r.frontier() < epoch)
            });
            if !behind {
                return Ok(epoch);
            }
            progress.changed().await.map_err(|_| RuntimeError::ShuttingDown)?;
        }
    }

    /// Rows of `levee_catalog.NAME` for: `jobs`(id, name, kind, state, epoch, rows_out, checksum, finished), `regions`(id, name,
    /// epoch, checkpoint_epoch, lag_epochs, steps, runs, rows, bytes, state_bytes), `tasks`(region, fragment, task, incarnation,
    /// epoch, rows_in, rows_out, state_bytes, late_slices, longest_slice_us), `epochs`(epoch, timestamp, tables, rows), `memory`(what, used_bytes, share_bytes),
    /// `checkpoints`(number, epoch, regions, files,
    /// bytes, seconds), `ddl_progress`(id, name, statement, progress, rows_done, rows_total, rows_per_second, mode),
    /// `stream_errors`(job, name, expression, message, count, last_epoch), `sources`(id, name,
    /// connector, split, offset, finished, partition, end_offset, lag, status, error, dead_letters), `dead_letters`(source_id, source, partition, offset, reason,
    /// bytes, key, timestamp), `sinks`(id, name, connector, status, error,
    /// epoch, delivered_epoch, lag_epochs, lag_ms, gathered_bytes).
    pub fn status(&self, relation: &str) -> Vec<StatusRow> {
        let (reply, answer) = mpsc::sync_channel(1);
        if relation == "dead_letters" {
            return self.dead_letters();
        }
        if self.events.send(Event::Status(relation.to_owned(), reply)).is_err() {
            return Vec::new();
        }
        answer.recv_timeout(Duration::from_secs(5)).unwrap_or_default()
    }

    /// Stops cleanly: a last checkpoint, then everything joined. Later calls answer `ShuttingDown`.
    pub async fn shutdown(&self) {
        let (reply, answer) = oneshot::channel();
        if self.events.send(Event::Stop(reply)).is_ok() && answer.await.is_err() {
            tracing::debug!("the coordinator had stopped");
        }
        if self.requests.send(Request::Stop).is_err() {
            tracing::debug!("the sequencer had stopped");
        }
        self.executor.shutdown();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine had panicked");
            }
        }
    }
}

/// A view that holds nothing because it never was filled.
fn unpopulated(name: &str) -> RuntimeError {
    RuntimeError::User {
        code: "55000",
        message: format!("materialized view \"{name}\" has not been populated"),
        hint: Some("Use the REFRESH MATERIALIZED VIEW command.".to_owned()),
    }
}

/// The hash by which locks and the resolver know an encoded key of a table.
fn key_hash(table: ObjectId, encoded: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128_with_seed(encoded, u64::from(table.0))
}

/// Hashes of the keys that a write touches.
fn conflict_keys(table: ObjectId, order: &RowOrder, delta: &Delta, out: &mut Vec<u128>) -> Result<()> {
    if order.key().is_empty() {
        // Keyless inserts commute; a retraction needs its row to be there still.
        if delta.diff_iter().all(|d| d > 0) {
            return Ok(());
        }
        let rows = order.encode(&delta.batch)?;
        let retracted = rows.iter().enumerate().filter(|(i, _)| delta.diff(*i) < 0);
        out.extend(retracted.map(|(_, r)| key_hash(table, r.data())));
        return Ok(());
    }
    let columns: Vec<ArrayRef> = order.key().iter().map(|&c| Arc::clone(delta.batch.column(c))).collect();
    let rows = order.encode_keys(&columns)?;
    let keys: BTreeSet<u128> = rows.iter().map(|r| key_hash(table, r.data())).collect();
    out.extend(keys);
    Ok(())
}

fn fold(jobs: &mpsc::Receiver<Vec<(Arc<Relation>, Limits)>>, events: &Sender<Event>) {
    while let Ok(job) = jobs.recv() {
        let mut joined = Vec::new();
        for (relation, limits) in job {
            match relation.upkeep(&limits) {
                Ok(sums) => joined.extend(sums.into_iter().map(|sum| (Arc::clone(&relation), sum))),
                Err(error) => tracing::error!(error = error_text(&error), "a relation cannot be folded"),
            }
        }
        if events.send(Event::Folded(joined)).is_err() {
            return;
        }
    }
}

/// A thread of the engine. One that panics ends the process: the others would wait for it for ever, and what it had half done must
/// not be built on; the log has everything that was acknowledged.
#[allow(clippy::disallowed_methods, reason = "the engine's own threads, joined at shutdown")]
fn spawn(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    let guarded = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            tracing::error!(thread = name, "a thread of the engine panicked, the process ends");
            std::process::abort();
        }
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
        .map_err(|e| RuntimeError::internal(format!("cannot start thread {name}: {e}")))
}

#[cfg(test)]
mod tests;
