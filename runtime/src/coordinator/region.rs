//! What the coordinator knows of one region, and how it chooses the region's next step.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use levee_planner::plan::ObjectId;
use serde::{Deserialize, Serialize};

use super::backfill::{Backfill, BackfillMeta};
use crate::dataflow::{Region, StateDelta};
use crate::operators::StreamError;
use crate::relation::{Relation, RelationSnapshot};
use crate::sinks::Delivery;

/// Steps that a region may have under way: one being finished while the next one starts.
pub const IN_FLIGHT_MAX: usize = 2;

/// Distinct failed expressions that a region remembers.
const ERRORS_MAX: usize = 1000;

/// What a region is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// A table: its writes are consolidated by the committing clients, so its steps need no dataflow.
    Table,
    /// A materialized view.
    View,
    /// A sink.
    Sink,
}

/// A step under way.
#[derive(Debug)]
pub struct InFlight {
    /// Position in the region's life.
    pub seq: u64,
    /// Start (exclusive).
    pub from: u64,
    /// Last epoch.
    pub to: u64,
    /// The backfill's position after the step, for checkpoints.
    pub backfill: Option<BackfillMeta>,
    /// A backfill step.
    pub is_backfill: bool,
    /// Rows that the backfill has read after this step.
    pub backfill_rows: u64,
    /// Ends in a freeze.
    pub checkpoint: bool,
}

/// A region's frozen state, on its way into a checkpoint.
#[derive(Debug)]
pub struct Frozen {
    /// Region.
    pub region: ObjectId,
    /// Complete through this epoch.
    pub epoch: u64,
    /// Dataflow step after which it was frozen; `None` for a table.
    pub step_seq: Option<u64>,
    /// Operators' entries.
    pub state: StateDelta,
    /// The relation then, and the run position after which its changes count.
    pub relation: Option<(RelationSnapshot, u64)>,
    /// Run position then.
    pub relation_seq: u64,
    /// Encoded [`RegionMeta`].
    pub meta: Vec<u8>,
}

/// A region's own notes in the manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RegionMeta {
    /// Epoch that created it: it is readable from there on.
    pub created: u64,
    /// Changes of each input count after this epoch.
    pub starts: Vec<(ObjectId, u64)>,
    /// Still building.
    pub backfill: Option<BackfillMeta>,
    /// Splits of sources, and the offsets that must be cut before the region is complete: see
    /// [`super::control::Control::await_replacements`].
    pub awaits: Vec<(ObjectId, u32, u64)>,
    /// Rows emitted by the root so far.
    pub rows_out: u64,
    /// Checksum of the emitted Z-set so far.
    pub checksum: u64,
    /// Steps taken.
    pub steps: u64,
    /// Distinct rows of the relation, about.
    pub rows: u64,
    /// Failed expressions: expression, message, rows, last epoch.
    pub errors: Vec<(String, String, u64, u64)>,
    /// A step is needed by then, even if no input changes: see [`super::timers`].
    pub next_timer_us: Option<i64>,
}

/// How far a region has come.
#[derive(Debug)]
pub struct Place {
    submitted: u64,
    frontier: u64,
    resting: bool,
    clock: Arc<AtomicU64>,
}

impl Place {
    /// Complete through `epoch`. `clock` is the coordinator's newest epoch.
    pub fn new(epoch: u64, clock: Arc<AtomicU64>) -> Self {
        Self {
            submitted: epoch,
            frontier: epoch,
            resting: false,
            clock,
        }
    }
}

/// The coordinator's view of one region.
pub struct RegionCtl {
    /// The object.
    pub id: ObjectId,
    /// Its name.
    pub name: String,
    /// Kind.
    pub kind: RegionKind,
    /// Objects read.
    pub inputs: Vec<ObjectId>,
    /// Tasks; tables have none.
    pub dataflow: Option<Region>,
    /// Rows; sinks have none.
    pub relation: Option<Arc<Relation>>,
    /// Next step's position.
    pub next_seq: u64,
    /// How far it has come.
    pub place: Place,
    /// Steps under way, oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// Changes of each input count after this epoch.
    pub starts: HashMap<ObjectId, u64>,
    /// Building.
    pub backfill: Option<Backfill>,
    /// Freeze when this epoch is reached.
    pub checkpoint_target: Option<u64>,
    /// Something has changed since the last freeze.
    pub dirty: bool,
    /// Run position of the last freeze.
    pub frozen_relation_seq: u64,
    /// Run positions of freezes that no completed checkpoint holds yet. There can be several: a region that lags is frozen for the next
    /// checkpoint while an earlier freeze of it is being written.
    pub unfinished_relation_seqs: Vec<u64>,
    /// Epoch of the newest completed checkpoint.
    pub completed_epoch: Option<u64>,
    /// Dataflow step of the newest completed checkpoint.
    pub completed_seq: Option<u64>,
    /// Run position of the newest completed checkpoint.
    pub completed_relation_seq: u64,
    /// When it was started, and the rows that its backfill had read by then.
    pub began: (Instant, u64),
    /// Takes no steps until it is resumed, once it is complete …
    pub paused: bool,
    /// … through this epoch.
    pub stand_at: u64,
    /// Why it stopped.
    pub failed: Option<String>,
    /// It has failed and holds nothing any more.
    pub detached: bool,
    /// Stop at the first failed expression.
    pub stop_on_error: bool,
    /// A sink's way to its target.
    pub delivery: Option<Delivery>,
    /// Its output changes as time passes.
    pub timed: bool,
    /// Counters.
    pub meta: RegionMeta,
}

impl RegionCtl {
    /// Epochs up to here are submitted, or brought nothing.
    pub fn submitted(&self) -> u64 {
        if self.place.resting {
            return self.frontier();
        }
        self.place.submitted
    }

    /// Epochs up to here are complete.
    pub fn frontier(&self) -> u64 {
        if self.place.resting {
            return self.place.frontier.max(self.place.clock.load(Ordering::Acquire));
        }
        self.place.frontier
    }

    /// Everything up to `epoch` is submitted.
    pub fn submitted_to(&mut self, epoch: u64) {
        self.place.submitted = self.place.submitted.max(epoch);
    }

    /// Everything up to `epoch` is complete.
    pub fn complete_to(&mut self, epoch: u64) {
        self.place.frontier = self.place.frontier.max(epoch);
    }

    /// What was submitted is complete: nothing is under way.
    pub fn catch_up(&mut self) {
        if self.in_flight.is_empty() && self.place.submitted > self.place.frontier {
            self.place.frontier = self.place.submitted;
            if let Some(relation) = &self.relation {
                relation.advance(self.place.frontier);
            }
        }
    }

    /// A building region begins at `epoch`, behind the one that created it.
    pub fn begin_at(&mut self, epoch: u64) {
        (self.place.submitted, self.place.frontier) = (epoch, epoch);
        if let Some(relation) = &self.relation {
            relation.restart_at(epoch);
        }
    }

    /// Everything up to `epoch` has been taken with the backfill.
    pub fn follow_from(&mut self, epoch: u64) {
        self.place.submitted = epoch;
        self.complete_to(epoch);
    }

    /// A table that stores what clients write and nothing else: it has no tasks.
    pub fn is_plain_table(&self) -> bool {
        self.kind == RegionKind::Table && self.dataflow.is_none()
    }

    /// Takes no steps now.
    pub fn stands(&self) -> bool {
        self.failed.is_some() || (self.paused && self.visible() && self.submitted() >= self.stand_at)
    }

    /// The epoch that steps may not pass while it is paused.
    pub fn pause_limit(&self) -> Option<u64> {
        (self.paused && self.visible()).then_some(self.stand_at)
    }

    /// It is complete through whatever epoch the clock shows, until it is woken: see [`super::work`].
    pub fn rest(&mut self) {
        self.place.resting = true;
        if let Some(relation) = &self.relation {
            relation.rest();
        }
    }

    /// The next epoch may bring it something. Call before the clock shows that epoch.
    pub fn wake(&mut self) {
        if !self.place.resting {
            return;
        }
        let epoch = self.frontier();
        self.place.resting = false;
        (self.place.submitted, self.place.frontier) = (epoch, epoch);
        if let Some(relation) = &self.relation {
            relation.wake();
        }
    }

    /// Nothing is left to do up to the newest epoch `cut`, and nothing is under way.
    pub fn may_rest(&self, cut: u64) -> bool {
        !self.stands()
            && !self.paused
            && self.backfill.is_none()
            && self.in_flight.is_empty()
            && self.checkpoint_target.is_none()
            && self.frontier() == cut
            && self.visible()
    }

    /// Complete and readable.
    pub fn visible(&self) -> bool {
        let frontier = self.frontier();
        self.backfill.is_none()
            && self.meta.awaits.is_empty()
            && frontier >= self.meta.created
            && self.starts.values().all(|&s| frontier >= s)
    }

    /// Nobody should wait for the region's next checkpoint: its sink's target is out, or it waits for a checkpoint itself, of an input that
    /// it is to be pinned at or of its own pins.
    pub fn stalled(&self) -> bool {
        let unpinned = self.backfill.as_ref().is_some_and(|b| !b.pinned);
        self.delivery.as_ref().is_some_and(Delivery::stalled) || unpinned || self.awaits_pins()
    }

    /// A sink whose backfill's pins are not yet part of a checkpoint: it must not deliver, since a restart would choose others.
    pub fn awaits_pins(&self) -> bool {
        let durable = self.delivery.as_ref().is_some_and(Delivery::durable);
        let pinned = self.backfill.as_ref().is_some_and(|b| b.pinned && !b.started);
        durable && pinned && self.completed_epoch.is_none()
    }

    /// Adds failed expressions to the counters.
    pub fn count_errors(&mut self, epoch: u64, errors: &[StreamError]) {
        for e in errors {
            let known = self
                .meta
                .errors
                .iter()
                .position(|(x, m, ..)| *x == e.expression && *m == e.message);
            if let Some((_, _, rows, last)) = known.and_then(|i| self.meta.errors.get_mut(i)) {
                *rows += e.rows;
                *last = epoch;
            } else if self.meta.errors.len() < ERRORS_MAX {
                self.meta
                    .errors
                    .push((e.expression.clone(), e.message.clone(), e.rows, epoch));
            }
        }
    }

    /// The region is to be frozen when it is complete through `target`, if not before.
    pub fn freeze_by(&mut self, target: u64) {
        let target = self.checkpoint_target.map_or(target, |before| before.min(target));
        self.checkpoint_target = Some(target);
    }

    /// The relation is frozen at run position `seq`; answers the position of the freeze before.
    pub fn freeze_relation(&mut self, seq: u64) -> u64 {
        self.unfinished_relation_seqs.push(seq);
        std::mem::replace(&mut self.frozen_relation_seq, seq)
    }

    /// A completed checkpoint holds the relation up to run position `seq`.
    pub fn complete_relation(&mut self, seq: u64) {
        self.completed_relation_seq = seq;
        self.unfinished_relation_seqs.retain(|unfinished| *unfinished > seq);
    }

    /// Run positions that checkpoints count from, or will.
    pub fn relation_seqs(&self) -> Vec<u64> {
        let mut seqs = self.unfinished_relation_seqs.clone();
        seqs.extend([self.completed_relation_seq, self.frozen_relation_seq]);
        seqs
    }

    /// Notes for the manifest.
    pub fn encode_meta(&mut self, backfill: Option<BackfillMeta>) -> Vec<u8> {
        self.meta.starts = self.starts.iter().map(|(k, v)| (*k, *v)).collect();
        self.meta.starts.sort_unstable();
        self.meta.backfill = backfill;
        self.meta.rows = self.relation.as_ref().map_or(0, |r| r.rows_about()) as u64;
        postcard::to_stdvec(&self.meta).unwrap_or_default()
    }
}

/// The end of the next step of a region that has taken everything up to `submitted` and could go up to `limit`, given the epochs
/// in between that changed something (`changed`, ascending, not empty) with their row counts.
///
/// A region that keeps up steps at each changed epoch. One that lags takes longer steps that end at the most power-of-two-aligned
/// epoch in reach, so that any set of lagging regions has common boundaries; a step of more than `rows_max` rows is cut at a
/// less aligned one. No step passes an epoch of `stops`, at which some reader or checkpoint needs a boundary.
pub fn choose_step(
    submitted: u64,
    limit: u64,
    changed: &[(u64, usize)],
    stops: &BTreeSet<u64>,
    rows_max: usize,
) -> u64 {
    let limit = stops
        .range(submitted + 1..=limit)
        .next()
        .map_or(limit, |&s| s.min(limit));
    let Some(&(first, _)) = changed.first().filter(|(e, _)| *e <= limit) else {
        return limit;
    };
    let last = changed.iter().rev().map(|c| c.0).find(|&e| e <= limit).unwrap_or(first);
    let mut reach = last;
    loop {
        let end = most_aligned(first - 1, reach);
        let rows: usize = changed.iter().filter(|(e, _)| *e <= end).map(|(_, n)| n).sum();
        if end == first || rows <= rows_max {
            return end;
        }
        reach = end - 1;
    }
}

/// The number in `(above, reach]` that is divisible by the highest power of two.
fn most_aligned(above: u64, reach: u64) -> u64 {
    debug_assert!(above < reach);
    // The highest bit in which the two differ: clearing all lower bits of `reach` still leaves it above `above`.
    let k = 63 - (above ^ reach).leading_zeros();
    (reach >> k) << k
}

/// Subscribers take their inputs' steps whole. An `end` inside an input's step moves to that step's end, if all inputs are complete
/// up to there (`available`), else back to where it began; `None` if nothing after `submitted` is left then. Otherwise the region
/// would be said to be complete through an epoch whose changes it has not seen, and a checkpoint of it would lose them.
pub fn whole_steps<'a>(
    inputs: impl Iterator<Item = &'a Relation> + Clone,
    submitted: u64,
    end: u64,
    available: u64,
) -> Option<u64> {
    let settled = |from: u64, next: &dyn Fn(u64) -> u64| {
        let mut epoch = from;
        while next(epoch) != epoch {
            epoch = next(epoch);
        }
        epoch
    };
    let forward = settled(end, &|e| inputs.clone().map(|r| r.step_end(e)).max().unwrap_or(e));
    if forward <= available {
        return Some(forward);
    }
    let back = settled(end, &|e| inputs.clone().map(|r| r.boundary(e)).min().unwrap_or(e));
    (back > submitted).then_some(back)
}

/// The newest epoch at which all of `relations` have a boundary and are complete.
pub fn common_boundary(relations: &[Arc<Relation>]) -> u64 {
    let mut epoch = relations.iter().map(|r| r.frontier()).min().unwrap_or(0);
    loop {
        let next = relations.iter().map(|r| r.boundary(epoch)).min().unwrap_or(epoch);
        if next == epoch {
            return epoch;
        }
        epoch = next;
    }
}

/// Epochs with their timestamps and log positions, as far back as anything may need them.
#[derive(Debug, Default)]
pub struct Timeline {
    entries: BTreeMap<u64, Entry>,
    /// Bytes of the log, all entries together that there ever were.
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    timestamp_us: i64,
    seq: u64,
    /// Bytes of the log through this epoch.
    bytes: u64,
}

impl Timeline {
    /// Adds an epoch, whose record takes `bytes` of the log.
    pub fn push(&mut self, epoch: u64, timestamp_us: i64, seq: u64, bytes: u64) {
        self.bytes += bytes;
        let entry = Entry {
            timestamp_us,
            seq,
            bytes: self.bytes,
        };
        self.entries.insert(epoch, entry);
    }

    /// Bytes of the log after an epoch, as far back as the timeline goes.
    pub fn bytes_after(&self, epoch: u64) -> u64 {
        let through = self.entries.range(..=epoch).next_back();
        let oldest = || self.entries.values().next().map_or(self.bytes, |e| e.bytes);
        self.bytes - through.map_or_else(oldest, |(_, e)| e.bytes)
    }

    /// The timestamp of the newest epoch ≤ `epoch`.
    pub fn timestamp_us(&self, epoch: u64) -> i64 {
        self.entries
            .range(..=epoch)
            .next_back()
            .map_or(0, |(_, e)| e.timestamp_us)
    }

    /// The first epoch after `epoch`, up to `limit`, at or after a moment.
    pub fn first_at(&self, epoch: u64, limit: u64, timestamp_us: i64) -> Option<u64> {
        let later = self.entries.range(epoch + 1..limit.max(epoch) + 1);
        later
            .into_iter()
            .find(|(_, e)| e.timestamp_us >= timestamp_us)
            .map(|(e, _)| *e)
    }

    /// Log positions of all epochs held.
    pub fn seqs(&self) -> BTreeMap<u64, u64> {
        self.entries.iter().map(|(epoch, e)| (*epoch, e.seq)).collect()
    }

    /// Forgets epochs before `epoch`, but not the last one.
    pub fn forget_before(&mut self, epoch: u64) {
        let newest = self.entries.keys().next_back().copied().unwrap_or(0);
        self.entries = self.entries.split_off(&epoch.min(newest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_keeps_up_steps_each_changed_epoch() {
        let none = BTreeSet::new();
        assert_eq!(choose_step(10, 11, &[(11, 5)], &none, 1000), 11);
        assert_eq!(choose_step(10, 14, &[(13, 5)], &none, 1000), 13);
    }

    #[test]
    fn a_lagging_region_ends_at_aligned_epochs() {
        let none = BTreeSet::new();
        let changed: Vec<_> = (6..=14).map(|e| (e, 1)).collect();
        assert_eq!(choose_step(5, 14, &changed, &none, 1000), 8);
        assert_eq!(choose_step(8, 14, &changed[3..], &none, 1000), 12);
        assert_eq!(choose_step(5, 14, &changed, &none, 2), 6);
        assert_eq!(choose_step(5, 14, &changed, &none, 0), 6);
    }

    /// A relation with steps of these epochs, each of one row.
    fn stepped(steps: &[(u64, u64)]) -> Relation {
        let field = arrow::datatypes::Field::new("x", arrow::datatypes::DataType::Int64, false);
        let schema = Arc::new(arrow::datatypes::Schema::new(vec![field]));
        let order = crate::relation::RowOrder::new(Arc::clone(&schema), vec![]).unwrap();
        let relation = Relation::new(ObjectId(1), Arc::new(order), crate::relation::Base::default());
        for (from, to) in steps {
            let column = arrow::array::Int64Array::from(vec![*to as i64]);
            let batch = arrow::array::RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(column)]).unwrap();
            relation.publish(
                *from,
                *to,
                Some(crate::relation::StepOutput::Resident(crate::Delta::inserts(batch))),
            );
        }
        relation
    }

    /// Two inputs lag differently: their steps overlap, and a subscriber must end where both have a boundary.
    #[test]
    fn no_step_ends_inside_an_inputs_step() {
        let a = stepped(&[(0, 8), (8, 16)]);
        let b = stepped(&[(0, 4), (4, 12), (12, 14), (14, 16)]);
        let both = [&a, &b];
        let end = |submitted, end, available| whole_steps(both.iter().copied(), submitted, end, available);
        // Forward to where both meet, when both are there.
        assert_eq!(end(0, 10, 16), Some(16));
        assert_eq!(end(0, 16, 16), Some(16));
        // Otherwise back; 8 is inside a step of the one, 4 inside one of the other.
        assert_eq!(end(0, 10, 14), None);
        let c = stepped(&[(0, 2), (2, 4), (4, 12)]);
        let d = stepped(&[(0, 4), (4, 8)]);
        assert_eq!(whole_steps([&c, &d].into_iter(), 0, 8, 8), Some(4));
        assert_eq!(whole_steps([&c, &d].into_iter(), 0, 3, 8), Some(4));
        assert_eq!(whole_steps([&c, &d].into_iter(), 4, 8, 8), None);
    }

    #[test]
    fn no_step_passes_a_stop() {
        let stops = BTreeSet::from([7]);
        let changed: Vec<_> = (6..=14).map(|e| (e, 1)).collect();
        assert!(choose_step(5, 14, &changed, &stops, 1000) <= 7);
    }

    /// Two regions that lag differently still share boundaries: simulate both and compare.
    #[test]
    fn boundaries_of_lagging_regions_meet() {
        let none = BTreeSet::new();
        let changed: Vec<(u64, usize)> = (1..=1000).map(|e| (e, 1)).collect();
        let run = |lag: u64| {
            let (mut at, mut ends) = (0, BTreeSet::from([0]));
            while at < 1000 {
                let limit = (at + lag).min(1000);
                let rest: Vec<_> = changed
                    .iter()
                    .copied()
                    .filter(|(e, _)| *e > at && *e <= limit)
                    .collect();
                at = choose_step(at, limit, &rest, &none, usize::MAX);
                ends.insert(at);
            }
            ends
        };
        let (a, b) = (run(37), run(90));
        assert!(a.intersection(&b).count() >= 8, "{a:?} {b:?}");
    }
}
