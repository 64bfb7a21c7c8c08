//! What the coordinator's thread shows to sessions: relations, statuses, counters.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use levee_planner::catalog::Catalog;
use levee_planner::plan::ObjectId;
use levee_storage::fs::FileSystem;
use levee_storage::rocks::RocksShared;
use levee_storage::tier::Tier;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::EngineConfig;
use super::clock::Clock;
use super::locks::LockManager;
use super::window::WriteWindow;
use crate::memory::{Governor, Share};
use crate::relation::Relation;

/// Whether a region's relation may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionStatus {
    /// Backfill is under way for the statement that creates it.
    Building,
    /// Built again after a restart that came before its first checkpoint; readers wait.
    Rebuilding,
    /// Complete and following its inputs.
    Running,
    /// Complete through the epoch where it stands, and no further for now: it is paused, or what it reads is. Says why.
    Standing(String),
    /// Holds nothing until it is refreshed.
    Unpopulated,
    /// Stopped, with the reason.
    Failed(String),
}

/// A readable relation.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Rows; sinks have none.
    pub relation: Option<Arc<Relation>>,
    /// Status.
    pub status: RegionStatus,
}

/// An epoch as `levee_catalog.epochs` shows it.
#[derive(Debug, Clone, Copy)]
pub struct EpochInfo {
    /// Number.
    pub epoch: u64,
    /// Timestamp.
    pub timestamp_us: i64,
    /// Tables written.
    pub tables: usize,
    /// Rows written.
    pub rows: usize,
}

/// State shared between the engine's threads and sessions.
pub struct Shared {
    /// Configuration.
    pub config: EngineConfig,
    /// Newest durable catalog; written by the sequencer only.
    pub catalog: Arc<RwLock<Arc<Catalog>>>,
    /// Regions by object.
    pub entries: RwLock<HashMap<ObjectId, Entry>>,
    /// Bumped whenever a frontier or status moves.
    pub progress: watch::Sender<u64>,
    /// Newest epoch that the coordinator has taken in: how far regions at rest are complete.
    pub clock_epoch: Arc<AtomicU64>,
    /// Newest durable epoch.
    pub newest: AtomicU64,
    /// Its timestamp.
    pub newest_us: AtomicU64,
    /// Reads must be at least here: what the log held at start.
    pub recovered: AtomicU64,
    /// Newest epoch whose DDL the coordinator has applied.
    pub applied: AtomicU64,
    /// Epochs that blocks read at, with the number of blocks.
    pub pins: Mutex<BTreeMap<u64, usize>>,
    /// Newest epochs.
    pub epochs: Mutex<VecDeque<EpochInfo>>,
    /// Newest checkpoints.
    pub checkpoints: Mutex<VecDeque<CheckpointInfo>>,
    /// Memory budget of the process.
    pub memory: Arc<Governor>,
    /// RocksDB's cache, and what it holds as the budget sees it.
    pub rocks: (RocksShared, crate::memory::Holder),
    /// What completed checkpoints hold.
    pub tier: Arc<Tier>,
    /// Last writes by key.
    pub window: WriteWindow,
    /// Locks of open transactions.
    pub locks: Arc<LockManager>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// File system below the sinks' journals.
    pub fs: Arc<dyn FileSystem>,
}

/// A checkpoint as `levee_catalog.checkpoints` shows it.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointInfo {
    /// Manifest number.
    pub number: u64,
    /// Epoch of its tick.
    pub epoch: u64,
    /// Regions in it.
    pub regions: usize,
    /// Files named.
    pub files: usize,
    /// Bytes of the new file.
    pub bytes: u64,
    /// From tick to durable.
    pub seconds: f64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A relation's entry.
    pub fn entry(&self, id: ObjectId) -> Option<Entry> {
        self.entries.read().get(&id).cloned()
    }

    pub(super) fn add(&self, id: ObjectId, relation: Option<Arc<Relation>>, status: RegionStatus) {
        self.entries.write().insert(id, Entry { relation, status });
        self.bump();
    }

    pub(super) fn set_status(&self, id: ObjectId, status: RegionStatus) {
        self.entries
            .write()
            .entry(id)
            .or_insert(Entry {
                relation: None,
                status: RegionStatus::Building,
            })
            .status = status;
        self.bump();
    }

    pub(super) fn now_us(&self) -> i64 {
        self.clock.now_us()
    }

    pub(super) fn note_checkpoint(&self, info: CheckpointInfo) {
        let mut checkpoints = self.checkpoints.lock();
        checkpoints.push_back(info);
        if checkpoints.len() > 100 {
            checkpoints.pop_front();
        }
    }

    pub(super) fn remove(&self, id: ObjectId) {
        self.entries.write().remove(&id);
        self.bump();
    }

    /// Wakes whoever waits for progress.
    pub fn bump(&self) {
        self.progress.send_modify(|n| *n += 1);
    }

    /// An epoch has become durable.
    pub(super) fn note_durable(&self, epoch: u64) {
        self.newest.fetch_max(epoch, Ordering::AcqRel);
    }

    pub(super) fn note_epoch(&self, epoch: u64, timestamp_us: i64, tables: usize, rows: usize) {
        self.newest.fetch_max(epoch, Ordering::AcqRel);
        self.newest_us.store(timestamp_us.unsigned_abs(), Ordering::Release);
        let mut epochs = self.epochs.lock();
        epochs.push_back(EpochInfo {
            epoch,
            timestamp_us,
            tables,
            rows,
        });
        if epochs.len() > 100 {
            epochs.pop_front();
        }
    }

    /// The oldest epoch that a block reads at.
    pub fn oldest_pin(&self) -> Option<u64> {
        self.pins.lock().keys().next().copied()
    }

    /// The first epoch after `epoch` that a block reads at.
    pub(super) fn next_pin(&self, epoch: u64) -> Option<u64> {
        self.pins.lock().range(epoch + 1..).next().map(|(&e, _)| e)
    }

    /// Memory that one source may hold: a share of the budget.
    pub fn source_bytes(&self) -> usize {
        self.memory.share(Share::Sources).clamp(8 << 20, 256 << 20)
    }

    /// Memory that one exchange channel may hold before it spills: a share of the budget.
    pub fn channel_bytes(&self) -> usize {
        (self.config.memory_limit / 256).clamp(1 << 20, 64 << 20)
    }
}
