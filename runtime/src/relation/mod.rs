//! Relations: what regions materialize.
//!
//! ```text
//!            base ≤ 40        runs, one per step
//!   ┌───────────────────────┐ ┌────┐ ┌────┐ ┌────────┐
//!   │ sorted, consolidated  │ │ 41 │ │ 42 │ │ 43..48 │      read at 42 = base + run 41 + run 42
//!   └───────────────────────┘ └────┘ └────┘ └────────┘
//!                  ▲ folds behind the oldest pin, subscriber and retained checkpoint
//! ```
//!
//! The same runs are the change log that subscribers read, the versions that readers merge and the delta that a checkpoint
//! writes. A read clones a few `Arc`s under a short lock and then works on immutable data.
//!
//! Cost: a fold rewrites the chunks that changed; it waits until the runs hold an eighth of the base's rows, so a row is rewritten
//! about eight times per doubling at worst (updates spread over all chunks), usually once.
//!
//! Memory: the base of a large relation is in the cold tier when the budget says so, old runs are in spill files, and reading merges them in
//! bounded memory ([`MergeScan`]); see `upkeep.rs`.

mod base;
mod cold;
mod gather;
mod merge;
mod order;
mod own;
mod provider;
mod run;
mod snapshot;
mod sorted;
mod upkeep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use levee_planner::plan::ObjectId;
use parking_lot::{Mutex, RwLock};

pub use base::Base;
pub use cold::{RELATION_OPERATOR, encode_count};
pub use gather::StepOutput;
pub(crate) use gather::{Gather, Shelf};
pub use merge::MergeScan;
pub use order::RowOrder;
pub use own::OwnChanges;
pub use provider::SnapshotTable;
pub use run::Run;
pub use snapshot::{RelationSnapshot, has_duplicate_keys};
pub use upkeep::{Joined, Limits, Offer};

use crate::dataflow::spill::{SpillDir, SpillWriter};
use crate::memory::{Governor, Holder, Share};
use crate::{Result, RuntimeError};

/// One region's materialized rows, readable at any epoch from the base's on.
#[derive(Debug)]
pub struct Relation {
    id: ObjectId,
    /// Changes only in its columns' names and whether they take NULL.
    order: RwLock<Arc<RowOrder>>,
    /// The newest epoch of all: how far the relation is complete while it rests.
    clock: Arc<AtomicU64>,
    state: RwLock<State>,
    /// None: everything stays in memory (in tests).
    memory: Option<Memory>,
}

/// How a relation keeps to the process's budget.
#[derive(Debug)]
struct Memory {
    governor: Arc<Governor>,
    /// The base.
    held: Holder,
    /// Spilled runs.
    writer: Mutex<SpillWriter>,
    /// Its number in the tier.
    region: u32,
}

#[derive(Debug)]
struct State {
    base: Arc<Base>,
    runs: VecDeque<Arc<Run>>,
    frontier: u64,
    /// Complete through whatever epoch the clock shows.
    resting: bool,
    seq: u64,
    /// The base holds the runs up to this position.
    base_seq: u64,
    /// A completed checkpoint's rows, to become the base when everybody has passed it.
    offered: Option<Offer>,
}

impl Relation {
    /// A relation whose rows up to `base.epoch` are `base`.
    pub fn new(id: ObjectId, order: Arc<RowOrder>, base: Base) -> Self {
        Self::with_clock(id, order, base, Arc::default())
    }

    /// [`Relation::new`], complete through `clock` while it rests.
    pub fn with_clock(id: ObjectId, order: Arc<RowOrder>, base: Base, clock: Arc<AtomicU64>) -> Self {
        let frontier = base.epoch;
        Self {
            id,
            order: RwLock::new(order),
            clock,
            state: RwLock::new(State {
                base: Arc::new(base),
                runs: VecDeque::new(),
                frontier,
                resting: false,
                seq: 0,
                base_seq: 0,
                offered: None,
            }),
            memory: None,
        }
    }

    /// The same relation under a budget: its runs are spilled below `spill`, and its base may be in the cold tier.
    ///
    /// # Errors
    /// The directory cannot be emptied.
    pub fn bounded(mut self, governor: &Arc<Governor>, spill: std::path::PathBuf) -> Result<Self> {
        let held = governor.holder(Share::Relations);
        held.set(self.state.read().base.bytes());
        self.memory = Some(Memory {
            governor: Arc::clone(governor),
            held,
            writer: Mutex::new(SpillWriter::new(&SpillDir::open(spill)?)),
            region: self.id.0,
        });
        Ok(self)
    }

    fn complete(&self, state: &State) -> u64 {
        if state.resting {
            // Loaded under the lock: [`Relation::wake`] takes it before an epoch that changes this relation moves the clock.
            state.frontier.max(self.clock.load(Ordering::Acquire))
        } else {
            state.frontier
        }
    }

    /// From now on every epoch that the clock shows is complete here, until [`Relation::wake`].
    pub fn rest(&self) {
        self.state.write().resting = true;
    }

    /// The next epoch may change the relation: it is complete through what the clock shows now. Call before the clock moves on.
    pub fn wake(&self) {
        let mut state = self.state.write();
        state.frontier = self.complete(&state);
        state.resting = false;
    }

    /// Whether it holds runs.
    pub fn has_runs(&self) -> bool {
        !self.state.read().runs.is_empty()
    }

    /// An empty relation takes another epoch as its beginning (a view is pinned behind the epoch that created it).
    pub fn restart_at(&self, epoch: u64) {
        let mut state = self.state.write();
        debug_assert!(
            state.base.rows == 0 && state.runs.is_empty(),
            "only an empty relation may move"
        );
        state.base = Arc::new(Base::empty(epoch));
        state.frontier = epoch;
    }

    /// The object.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// A checkpoint's rows wait to become the base.
    pub fn is_offered(&self) -> bool {
        self.state.read().offered.is_some()
    }

    /// Row encoding.
    pub fn order(&self) -> Arc<RowOrder> {
        Arc::clone(&self.order.read())
    }

    /// Columns have other names, or take NULL or do not; their types and the key stay. Rows read from now on show the new schema.
    ///
    /// # Errors
    /// A column type that cannot be ordered.
    pub fn set_schema(&self, schema: SchemaRef) -> Result<()> {
        let mut order = self.order.write();
        if order.schema() != &schema {
            *order = Arc::new(RowOrder::new(schema, order.key().to_vec())?);
        }
        Ok(())
    }

    /// All steps up to this epoch are published.
    pub fn frontier(&self) -> u64 {
        self.complete(&self.state.read())
    }

    /// Publishes a step's net change (consolidated, in storage order) and moves the frontier to `to`.
    pub fn publish(&self, from: u64, to: u64, output: Option<StepOutput>) {
        let mut state = self.state.write();
        debug_assert!(!state.resting, "a relation at rest has no steps");
        debug_assert!(from >= state.frontier || from == to, "steps are published in order");
        if let Some(output) = output.filter(|o| o.num_rows() > 0) {
            state.seq += 1;
            let seq = state.seq;
            let governor = self.memory.as_ref().map(|m| &m.governor);
            let run = match output {
                StepOutput::Resident(delta) => Run::new(seq, from, to, delta, governor),
                StepOutput::Spilled(run) => run.placed(seq, from, to),
            };
            state.runs.push_back(Arc::new(run));
        }
        state.frontier = state.frontier.max(to);
    }

    /// Nothing changed up to `to`.
    pub fn advance(&self, to: u64) {
        let mut state = self.state.write();
        state.frontier = state.frontier.max(to);
    }

    /// The newest epoch ≤ `epoch` that is a step boundary.
    pub fn boundary(&self, epoch: u64) -> u64 {
        let state = self.state.read();
        let epoch = epoch.min(self.complete(&state));
        state
            .runs
            .iter()
            .find(|r| r.from < epoch && epoch < r.to)
            .map_or(epoch, |r| r.from)
    }

    /// The oldest step boundary that is not before `epoch`: the end of the step that holds it, or itself.
    pub fn step_end(&self, epoch: u64) -> u64 {
        let state = self.state.read();
        let step = state.runs.iter().find(|r| r.from < epoch && epoch < r.to);
        step.map_or(epoch, |r| r.to)
    }

    /// The rows at `epoch`.
    ///
    /// # Errors
    /// The epoch has been folded away, is not complete, or lies inside a step.
    pub fn snapshot(&self, epoch: u64) -> Result<RelationSnapshot> {
        let state = self.state.read();
        let inside = state.runs.iter().any(|r| r.from < epoch && epoch < r.to);
        if epoch < state.base.epoch || epoch > self.complete(&state) || inside {
            return Err(RuntimeError::EpochUnavailable { object: self.id, epoch });
        }
        let runs = state.runs.iter().filter(|r| r.to <= epoch).cloned().collect();
        Ok(RelationSnapshot::new(
            self.order(),
            epoch,
            Arc::clone(&state.base),
            runs,
        ))
    }

    /// The change log after `from` up to `to`, in order.
    ///
    /// # Errors
    /// The log no longer reaches back to `from`.
    pub fn runs_between(&self, from: u64, to: u64) -> Result<Vec<Arc<Run>>> {
        let state = self.state.read();
        if from < state.base.epoch {
            return Err(RuntimeError::EpochUnavailable {
                object: self.id,
                epoch: from,
            });
        }
        Ok(state
            .runs
            .iter()
            .filter(|r| r.to > from && r.to <= to)
            .cloned()
            .collect())
    }

    /// Bytes of the changes after an epoch, in memory and in spill files.
    pub fn bytes_after(&self, epoch: u64) -> u64 {
        let state = self.state.read();
        let runs = state.runs.iter().filter(|r| r.to > epoch);
        runs.map(|r| r.stored_bytes()).sum()
    }

    /// Oldest readable epoch.
    pub fn base_epoch(&self) -> u64 {
        self.state.read().base.epoch
    }

    /// The newest run's position.
    pub fn seq(&self) -> u64 {
        self.state.read().seq
    }

    /// Runs held, distinct rows about, bytes in memory.
    pub fn stats(&self) -> (usize, usize, usize) {
        let state = self.state.read();
        let rows = state.base.rows + state.runs.iter().map(|r| r.num_rows()).sum::<usize>();
        let bytes = state.base.bytes() + state.runs.iter().map(|r| r.bytes()).sum::<usize>();
        (state.runs.len(), rows, bytes)
    }

    /// About how many distinct rows there are now: those of the base, and what the runs add and take.
    pub fn rows_about(&self) -> usize {
        let state = self.state.read();
        let change: i64 = state.runs.iter().map(|r| r.net_rows()).sum();
        state.base.rows.saturating_add_signed(change as isize)
    }

    /// Whether the base is in the cold tier, and how many runs are spilled.
    pub fn cold(&self) -> (bool, usize) {
        let state = self.state.read();
        (
            state.base.is_cold(),
            state.runs.iter().filter(|r| r.is_spilled()).count(),
        )
    }
}

#[cfg(test)]
mod tests;
