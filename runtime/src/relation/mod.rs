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

mod base;
mod order;
mod own;
mod provider;
mod snapshot;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use arrow::row::Rows;
use levee_planner::plan::ObjectId;
use parking_lot::RwLock;

pub use base::Base;
pub use order::RowOrder;
pub use own::OwnChanges;
pub use provider::SnapshotTable;
pub use snapshot::{RelationSnapshot, has_duplicate_keys};

use crate::{Delta, Result, RuntimeError};

/// Runs beyond this number are folded even if they are small.
const RUNS_MAX: usize = 256;

/// The net change of one step, sorted and consolidated.
#[derive(Debug)]
pub struct Run {
    /// Position among all runs that the relation has published since it was opened, from 1.
    pub seq: u64,
    /// Epochs after this one …
    pub from: u64,
    /// … up to this one. Backfill runs have `from == to`.
    pub to: u64,
    /// Change.
    pub delta: Delta,
    encoded: OnceLock<Rows>,
}

/// Runs of more rows are encoded anew for each lookup: what is kept takes as much memory as the rows.
const ENCODED_ROWS_MAX: usize = 65_536;

impl Run {
    /// A run.
    pub(crate) fn new(seq: u64, from: u64, to: u64, delta: Delta) -> Self {
        Self {
            seq,
            from,
            to,
            delta,
            encoded: OnceLock::new(),
        }
    }

    /// The rows of the run whose encoding starts with `prefix`: first and number. Statements look for keys in the same few runs over
    /// and over, so a run's encoding is kept.
    fn find(&self, order: &RowOrder, prefix: &[u8]) -> Result<(usize, usize)> {
        if let Some(rows) = self.encoded.get() {
            return Ok(range_of(rows, prefix));
        }
        let rows = order.encode(&self.delta.batch)?;
        if rows.num_rows() > ENCODED_ROWS_MAX {
            return Ok(range_of(&rows, prefix));
        }
        Ok(range_of(self.encoded.get_or_init(|| rows), prefix))
    }
}

fn range_of(rows: &Rows, prefix: &[u8]) -> (usize, usize) {
    let start = base::partition(rows, 0, rows.num_rows(), prefix);
    let mut end = start;
    while end < rows.num_rows() && rows.row(end).data().starts_with(prefix) {
        end += 1;
    }
    (start, end - start)
}

/// One region's materialized rows, readable at any epoch from the base's on.
#[derive(Debug)]
pub struct Relation {
    id: ObjectId,
    /// Changes only in its columns' names and whether they take NULL.
    order: RwLock<Arc<RowOrder>>,
    /// The newest epoch of all: how far the relation is complete while it rests.
    clock: Arc<AtomicU64>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    base: Arc<Base>,
    runs: VecDeque<Arc<Run>>,
    frontier: u64,
    /// Complete through whatever epoch the clock shows.
    resting: bool,
    seq: u64,
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
            }),
        }
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
        state.base = Arc::new(Base {
            epoch,
            ..Base::default()
        });
        state.frontier = epoch;
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
    pub fn publish(&self, from: u64, to: u64, delta: Option<Delta>) {
        let mut state = self.state.write();
        debug_assert!(!state.resting, "a relation at rest has no steps");
        debug_assert!(from >= state.frontier || from == to, "steps are published in order");
        if let Some(delta) = delta.filter(|d| d.num_rows() > 0) {
            state.seq += 1;
            let seq = state.seq;
            state.runs.push_back(Arc::new(Run::new(seq, from, to, delta)));
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

    /// Oldest readable epoch.
    pub fn base_epoch(&self) -> u64 {
        self.state.read().base.epoch
    }

    /// The newest run's position.
    pub fn seq(&self) -> u64 {
        self.state.read().seq
    }

    /// There is enough to fold up to epoch `horizon` and position `seq`.
    pub fn foldable(&self, horizon: u64, seq: u64) -> bool {
        let state = self.state.read();
        let runs = state.runs.iter().take_while(|r| r.to <= horizon && r.seq <= seq);
        let (n, rows) = runs.fold((0, 0), |(n, rows), r| (n + 1, rows + r.delta.num_rows()));
        n > 0 && (rows >= state.base.rows / 8 || n >= RUNS_MAX)
    }

    /// Folds runs up to epoch `horizon` and position `seq` into the base, when there is enough to be worth it. Called by one
    /// thread at a time.
    ///
    /// # Errors
    /// A kernel fails.
    pub fn fold(&self, horizon: u64, seq: u64) -> Result<()> {
        let (base, runs) = {
            let state = self.state.read();
            let runs: Vec<Arc<Run>> = state
                .runs
                .iter()
                .take_while(|r| r.to <= horizon && r.seq <= seq)
                .cloned()
                .collect();
            (Arc::clone(&state.base), runs)
        };
        let Some(last) = runs.last() else { return Ok(()) };
        let order = self.order();
        let delta = consolidate_runs(&order, &runs)?;
        let merged = base.merge(&order, &delta, last.to)?;
        let mut state = self.state.write();
        state.base = Arc::new(merged);
        state.runs.drain(..runs.len());
        Ok(())
    }

    /// Runs held, rows in all, bytes in all (of runs; chunks count rows only).
    pub fn stats(&self) -> (usize, usize, usize) {
        let state = self.state.read();
        let rows = state.base.rows + state.runs.iter().map(|r| r.delta.num_rows()).sum::<usize>();
        let bytes = state.base.chunks.iter().map(|c| c.delta.bytes()).sum::<usize>()
            + state.runs.iter().map(|r| r.delta.bytes()).sum::<usize>();
        (state.runs.len(), rows, bytes)
    }
}

/// The sum of runs, consolidated.
fn consolidate_runs(order: &RowOrder, runs: &[Arc<Run>]) -> Result<Delta> {
    if let [run] = runs {
        return Ok(run.delta.clone());
    }
    let deltas: Vec<Delta> = runs.iter().map(|r| r.delta.clone()).collect();
    Delta::consolidate(order.stored(), &deltas, order.key())
}

#[cfg(test)]
mod tests;
