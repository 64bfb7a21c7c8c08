//! The engine: epochs, the catalog, regions' steps, checkpoints and recovery.
//!
//! [`Engine`] is what the server talks to.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use levee_planner::catalog::{Catalog, CatalogObject};
use levee_planner::plan::ObjectId;

use crate::relation::RelationSnapshot;
use crate::{Delta, Result};

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
    /// Shortest time between two epochs.
    pub epoch_interval_min_ms: u64,
}

/// A transaction's writes.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// Epoch that the transaction (or statement) read.
    pub snapshot_epoch: u64,
    /// Net change per table, columns in table order. Conflict keys are derived: primary keys of all rows; for a table without
    /// one, the whole rows that are retracted.
    pub writes: Vec<(ObjectId, Vec<Delta>)>,
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
}

/// A row of a `levee_catalog` relation: values as text, in the column order that the method's doc names.
pub type StatusRow = Vec<Option<String>>;

/// An embedded Levee: coordinator and worker in this process.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// Opens (or makes) a data directory and recovers. Blocking.
    ///
    /// # Errors
    /// The directory is locked, corrupt beyond what an older checkpoint and the log can mend, or not writable.
    pub fn open(config: EngineConfig) -> Result<Arc<Self>> {
        let _ = config;
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// The newest catalog.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::new(Catalog::default())
    }

    /// Commits writes durably in one epoch.
    ///
    /// # Errors
    /// `Conflict`: a key was written after `snapshot_epoch`; `NoObject`; `StorageFull`.
    pub async fn commit(&self, request: CommitRequest) -> Result<CommitAck> {
        let _ = request;
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// Adds an object, bound against `catalog` (`Conflict` if the catalog has moved on: bind again). For a materialized view or
    /// sink it returns when the view is complete; dropping the future cancels the creation and removes the object.
    ///
    /// # Errors
    /// `Conflict`, or what went wrong while building.
    pub async fn create(&self, catalog: &Arc<Catalog>, object: CatalogObject) -> Result<()> {
        let _ = (catalog, object);
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// Drops objects, dependents first.
    ///
    /// # Errors
    /// `Conflict` if the catalog has moved on.
    pub async fn drop_objects(&self, catalog: &Arc<Catalog>, ids: Vec<ObjectId>) -> Result<()> {
        let _ = (catalog, ids);
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// Waits until the relations named have taken epoch `at_least`, then pins all of them at the newest step boundary complete on
    /// all. The caller puts its own time-out around it.
    ///
    /// # Errors
    /// `NoObject`; a view that stopped with an error.
    pub async fn snapshot(&self, relations: &[ObjectId], at_least: u64) -> Result<ReadSnapshot> {
        let _ = (relations, at_least);
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// Pins relations at exactly this epoch (a REPEATABLE READ block's snapshot).
    ///
    /// # Errors
    /// `EpochUnavailable` if it has been folded away.
    pub async fn snapshot_at(&self, relations: &[ObjectId], epoch: u64) -> Result<ReadSnapshot> {
        let _ = (relations, epoch);
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// The newest epoch that every table has taken: a new block's snapshot.
    pub fn newest_epoch(&self) -> u64 {
        0
    }

    /// Waits until every view has taken every epoch cut so far; answers that epoch.
    ///
    /// # Errors
    /// The engine stops.
    pub async fn flush(&self) -> Result<u64> {
        Err(crate::RuntimeError::internal("engine is not built"))
    }

    /// Rows of `levee_catalog.NAME` for: `jobs`(id, name, kind, state, epoch, rows_out, checksum, finished), `regions`(id, name,
    /// epoch, checkpoint_epoch, lag_epochs, steps, runs, rows, bytes, state_bytes), `tasks`(region, fragment, task, incarnation,
    /// epoch, rows_in, rows_out, state_bytes), `epochs`(epoch, timestamp, tables, rows), `checkpoints`(number, epoch, regions, files,
    /// bytes, seconds), `ddl_progress`(id, name, statement, progress, rows_done, rows_total), `stream_errors`(job, name, expression,
    /// message, count, last_epoch), `sources`(id, name, connector, split, offset, finished).
    pub fn status(&self, relation: &str) -> Vec<StatusRow> {
        let _ = relation;
        Vec::new()
    }

    /// Stops cleanly: a last checkpoint, then everything joined. Later calls answer `ShuttingDown`.
    pub async fn shutdown(&self) {}
}
