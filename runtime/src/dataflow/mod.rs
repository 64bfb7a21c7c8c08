//! Runs regions: their tasks, the exchanges between them, and the recovery of a task that fails.
//!
//! ```text
//!   submit(step) ─▶ Region ──▶ task 0.0 ─┐ hash  ┌─▶ task 1.0 ─┐
//!                         └──▶ task 0.1 ─┴───────┴─▶ task 1.1 ─┴─▶ step_done(net change, frozen state)
//! ```
//!
//! The coordinator decides which steps a region takes and what their inputs are; this module only executes them, in order,
//! on the [`executor::Executor`]'s threads. Several steps may be under way in one region (an upstream task may be one or two
//! steps ahead); results are reported in order.

mod channel;
mod exchange;
pub mod executor;
mod leaf;
mod log;
pub mod message;
mod program;
mod region;
pub(crate) mod spill;
mod state_delta;
mod task;
pub mod testing;
#[cfg(test)]
mod tests;
mod tiered;
mod zhash;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use levee_planner::plan::{FragmentGraph, ObjectId};
use levee_storage::tier::TierSnapshot;

use crate::memory::Governor;
use crate::operators::cold::ColdReader;
use crate::operators::{Barrier, StreamError};
use crate::relation::StepOutput;
use crate::sources::{SourceDriver, SplitRange};
use crate::{Delta, Result};

pub use executor::Executor;
pub use region::Region;
pub use state_delta::{StateDelta, StateEntry};
pub(crate) use task::chain;

/// Whether every step on every exchange channel is hashed, so that a replay that differs is found (I2). Hashing all columns of
/// all rows that cross an exchange costs a few nanoseconds a value; on by default where debug assertions are.
pub static VERIFY: AtomicBool = AtomicBool::new(cfg!(debug_assertions));

fn verify() -> bool {
    VERIFY.load(Ordering::Relaxed)
}

/// Holds every step of the region of this name back for `ms` milliseconds (0: no longer), without occupying a thread: makes a view
/// slow for tests and demonstrations.
pub fn debug_delay(region: &str, ms: u64) {
    testing::set_delay(region, ms);
}

/// What to run.
#[derive(Clone)]
pub struct RegionSpec {
    /// The job; also the region's id.
    pub id: ObjectId,
    /// Name, for logs and failpoints.
    pub name: String,
    /// Fragments and edges.
    pub graph: FragmentGraph,
    /// Tasks per fragment that is not `single`.
    pub parallelism: usize,
    /// Drivers of the sources that the graph reads.
    pub sources: HashMap<ObjectId, Arc<dyn SourceDriver>>,
    /// What becomes of the root's output.
    pub root: RootMode,
    /// Bytes of unread batches that an exchange channel keeps in memory before it spills.
    pub channel_bytes: usize,
    /// Directory for spilled batches; emptied at start.
    pub spill_dir: std::path::PathBuf,
    /// The process's memory budget.
    pub memory: Arc<Governor>,
}

/// What becomes of the root fragment's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootMode {
    /// Consolidated into one run per step, sorted by these columns first (a relation's storage order).
    Materialize {
        /// Key columns.
        order: Vec<usize>,
    },
    /// Counted and checksummed only.
    Discard,
}

/// One step of a region.
#[derive(Debug, Clone)]
pub struct Step {
    /// Position in the region's life since it was started: 0, 1, 2, …
    pub seq: u64,
    /// Epochs after this one …
    pub from: u64,
    /// … up to this one. Backfill steps have `from == to`.
    pub to: u64,
    /// Closes the step.
    pub barrier: Barrier,
    /// Input per relation or source that changed; others are empty.
    pub inputs: HashMap<ObjectId, StepInput>,
    /// Freeze and report the state changed since the last checkpoint step.
    pub checkpoint: bool,
}

/// What a leaf reads in a step. Each task takes its share by a fixed rule (contiguous rows, whole ranges or parts of them), so
/// a replay reads the same.
#[derive(Debug, Clone)]
pub enum StepInput {
    /// Rows of a relation in catalog column order.
    Deltas(Vec<Delta>),
    /// Runs of a relation; some may be in spill files.
    Runs(Vec<Arc<crate::relation::Run>>),
    /// Ranges of a source's splits.
    Ranges(Vec<SplitRange>),
    /// What a table with a connector takes: ranges of its source, and its own writes, which come after them.
    Ingest {
        /// Ranges.
        ranges: Vec<SplitRange>,
        /// Writes.
        writes: Vec<Delta>,
    },
}

/// A finished step.
#[derive(Debug)]
pub struct StepResult {
    /// As submitted.
    pub seq: u64,
    /// As submitted.
    pub from: u64,
    /// As submitted.
    pub to: u64,
    /// Net change in storage order; `None` if nothing changed, or in `RootMode::Discard`.
    pub output: Option<StepOutput>,
    /// Rows (insertions plus retractions) that the root emitted.
    pub rows_out: u64,
    /// Order-independent checksum of the root's emitted Z-set: wrapping sum over rows of `hash(row) * diff`.
    pub checksum: u64,
    /// For a checkpoint step.
    pub snapshot: Option<StateDelta>,
    /// Expressions that failed.
    pub errors: Vec<StreamError>,
    /// Time that tasks worked on the step, microseconds, all tasks together.
    pub busy_us: u64,
    /// The output may change by itself at this moment, microseconds since 1970 UTC.
    pub next_timer_us: Option<i64>,
}

/// Reads a region's state at its last completed checkpoint.
pub trait StateReader: Send + Sync {
    /// Calls `f(table, vnode, key, value)` for the operator's entries of these vnodes, in key order.
    ///
    /// # Errors
    /// The state cannot be read, or `f` failed.
    fn scan(
        &self,
        operator: u32,
        vnodes: RangeInclusive<u8>,
        f: &mut dyn FnMut(u8, u8, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()>;

    /// The tier as of that checkpoint, and the region's number in it; none where state is not kept there (in tests).
    fn tier(&self) -> Option<(Arc<TierSnapshot>, u32)> {
        None
    }

    /// Reads the same state by keys, and the region's number in them; none if it can only be restored whole.
    fn cold(&self) -> Option<(Arc<dyn ColdReader>, u32)> {
        let (snapshot, region) = self.tier()?;
        Some((Arc::new(tiered::TierReader(snapshot)), region))
    }
}

/// Told of a region's progress, on a dataflow thread; must not block.
pub trait RegionEvents: Send + Sync {
    /// A step is done; calls come in step order.
    fn step_done(&self, region: ObjectId, result: StepResult);
    /// A task failed and was started again.
    fn task_restarted(&self, region: ObjectId, task: &TaskInfo, reason: &str);
    /// The region cannot go on (a task failed several times at the same step). Other regions are not affected.
    fn region_failed(&self, region: ObjectId, reason: &str);
}

/// A task as `levee_catalog.tasks` shows it.
#[derive(Debug, Clone)]
pub struct TaskInfo {
    /// Fragment.
    pub fragment: u32,
    /// Index in the fragment.
    pub task: u32,
    /// Life number, from 1.
    pub incarnation: u32,
    /// Last closed step's epoch.
    pub epoch: u64,
    /// Rows read so far by this incarnation.
    pub rows_in: u64,
    /// Rows emitted so far by this incarnation.
    pub rows_out: u64,
    /// State held.
    pub state_bytes: u64,
    /// Slices that took longer than 5 ms, and so may have held up others.
    pub late_slices: u64,
    /// The longest slice, microseconds.
    pub longest_slice_us: u64,
}
