//! The coordinator's recurring work: checkpoint ticks, forgetting, folding, status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use levee_planner::plan::ObjectId;

use super::checkpointer::{CheckpointDone, Job, Payload};
use super::control::{Control, FOLD_EVERY, error_text};
use super::region::{Frozen, RegionCtl, RegionKind, common_boundary};
use super::shared::CheckpointInfo;
use crate::Result;
use crate::memory::Share;
use crate::relation::{Joined, Limits, Offer, Relation};

/// Regions that are later than this after a tick go into the next checkpoint.
pub(super) const TICK_WAIT: Duration = Duration::from_millis(1000);
/// Between checkpoints, while memory is short.
const INTERVAL_SHORT: Duration = Duration::from_millis(250);
/// Rows beyond which a lagging region's step is not made longer …
const STEP_ROWS_MAX: usize = 262_144;
const STEP_ROWS_MIN: usize = 4096;
/// … and what they may take of the share of dirty state, at so many bytes a row: state, its frozen copy, and the step's output.
const STEP_PARTS: usize = 4;
const ROW_BYTES: usize = 256;
/// Between two looks at the process's resident memory.
const MEASURE_EVERY: Duration = Duration::from_millis(100);
const PAGE_BYTES: usize = 4096;
/// A relation that nobody lags behind on is still readable this many epochs back.
const READ_BACK_EPOCHS: u64 = 256;

/// Resident memory that is no file's.
fn resident_bytes() -> Option<usize> {
    // size, resident, shared …, in pages.
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_ascii_whitespace().skip(1).map(str::parse::<usize>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * PAGE_BYTES)
}

impl Control {
    /// Starts a checkpoint when it is time and something has changed.
    pub(super) fn start_tick(&mut self) {
        let due = self.changed_since_tick || self.has_dirty_excess();
        if self.tick.is_some()
            || self.checkpoint_running
            || !due
            || self.last_tick.elapsed() < self.checkpoint_interval()
        {
            return;
        }
        let short = self.shared.memory.over(Share::Dirty);
        self.changed_since_tick = false;
        self.last_tick = Instant::now();
        self.tick = Some((self.cut, self.last_tick));
        // Regions that have changed, or still will up to this epoch. All others have nothing to write.
        let regions = &self.regions;
        let changed = &mut self.work.changed;
        changed.retain(|id| regions.get(id).is_some_and(|r| r.dirty));
        let moving: Vec<ObjectId> = changed.iter().chain(&self.work.active).copied().collect();
        for id in self.work.downstream(moving) {
            self.wake(id);
            let Some(region) = self.regions.get_mut(&id).filter(|r| r.failed.is_none()) else {
                continue;
            };
            // One that stands gets no further than it is; where memory is short, nobody goes on first.
            let target = if short || self.work.standing.contains(&id) {
                region.submitted()
            } else {
                self.cut
            };
            region.freeze_by(target);
            self.work.due.insert(id);
            self.work.ready.insert(id);
        }
    }

    /// Somebody waits for the next checkpoint: it begins as soon as none is under way.
    pub(super) fn ask_for_checkpoint(&mut self) {
        self.changed_since_tick = true;
        let interval = Duration::from_millis(self.shared.config.checkpoint_interval_ms);
        self.last_tick = self.last_tick.checked_sub(interval).unwrap_or(self.last_tick);
    }

    /// Time between checkpoints: shorter while more has changed since the last one than memory has room for. While stopping, what an
    /// epoch under way still brings is not waited for.
    pub(super) fn checkpoint_interval(&self) -> Duration {
        if self.stopping.is_some() {
            return Duration::ZERO;
        }
        let interval = Duration::from_millis(self.shared.config.checkpoint_interval_ms);
        let memory = &self.shared.memory;
        if self.has_far_too_much_dirty() {
            // Regions wait for it.
            Duration::ZERO
        } else if memory.over(Share::Dirty) || memory.over(Share::Runs) {
            interval.min(INTERVAL_SHORT)
        } else {
            interval
        }
    }

    /// Tells the governor what the process really holds, a few times a second while anything happens.
    pub(super) fn measure_memory(&mut self) {
        if self.last_measure.elapsed() < MEASURE_EVERY {
            return;
        }
        self.last_measure = Instant::now();
        if let Some(resident) = resident_bytes() {
            self.shared.memory.measure(resident);
        }
    }

    /// Regions have changed more since their last freeze than memory has room for.
    fn has_dirty_excess(&self) -> bool {
        let dirty = |id: &ObjectId| self.regions.get(id).is_some_and(|r| r.dirty);
        self.shared.memory.over(Share::Dirty) && self.work.changed.iter().any(dirty)
    }

    /// Whether regions should wait with further steps for a checkpoint, which is under way or begins soon: only that makes what they
    /// change evictable.
    pub(super) fn is_short_of_memory(&self) -> bool {
        let comes = self.tick.is_some() || self.checkpoint_running || self.changed_since_tick;
        (comes || self.has_dirty_excess()) && self.has_far_too_much_dirty()
    }

    fn has_far_too_much_dirty(&self) -> bool {
        let memory = &self.shared.memory;
        memory.over(Share::Dirty) && memory.used(Share::Dirty) > 2 * memory.share(Share::Dirty)
    }

    /// Whether sources should wait: regions are to work off what has been cut, and checkpoints to make it evictable, first.
    pub(super) fn paces_sources(&self) -> bool {
        let memory = &self.shared.memory;
        memory.over(Share::Dirty) || memory.over(Share::Runs)
    }

    /// Rows of a step at most, unless one epoch has more: what a step changes is dirty until a checkpoint, which can only begin between
    /// steps.
    pub(super) fn step_rows_max(&self) -> usize {
        let share = self.shared.memory.share(Share::Dirty);
        (share / STEP_PARTS / ROW_BYTES).clamp(STEP_ROWS_MIN, STEP_ROWS_MAX)
    }

    /// Hands the frozen state to the checkpointer when all regions that keep up have contributed.
    pub(super) fn finish_tick(&mut self) {
        let Some((epoch, started)) = self.tick else { return };
        let regions = &self.regions;
        self.work.due.retain(|id| {
            regions.get(id).is_some_and(|r| {
                let freezing = r.in_flight.iter().any(|s| s.checkpoint);
                r.failed.is_none() && !r.stalled() && (freezing || r.checkpoint_target.is_some_and(|t| t <= epoch))
            })
        });
        if !self.work.due.is_empty() && started.elapsed() < TICK_WAIT {
            return;
        }
        // A restart from this checkpoint would not read their records again.
        if !self.letters.settled() {
            return;
        }
        self.work.due.clear();
        self.tick = None;
        let job = self.job(epoch);
        self.checkpoint_running = true;
        if self.checkpoints.send(job).is_err() {
            tracing::debug!("the checkpointer has stopped");
            self.checkpoint_running = false;
        }
    }

    fn job(&mut self, epoch: u64) -> Job {
        let frozen = self.hold_back();
        let mut frozen_at: BTreeMap<ObjectId, u64> = BTreeMap::new();
        for part in &frozen {
            let at = frozen_at.entry(part.region).or_insert(part.epoch);
            *at = part.epoch.min(*at);
        }
        let mut floors = BTreeMap::new();
        let mut advance = BTreeMap::new();
        let mut subscribers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for region in self.regions.values().filter(|r| !r.detached) {
            let frontier = region.frontier();
            let own = frozen_at.get(&region.id).map_or(frontier, |e| frontier.min(*e));
            floors.insert(region.id.0, own);
            // Clean: its state has not changed since it was frozen, so the same files hold at its frontier.
            let clean =
                !region.dirty && region.in_flight.is_empty() && region.backfill.is_none() && region.failed.is_none();
            if clean {
                advance.insert(region.id.0, frontier);
            }
            for input in region.inputs.iter().filter(|i| **i != region.id) {
                subscribers.entry(input.0).or_default().push(region.id.0);
            }
        }
        Job {
            epoch,
            started: Instant::now(),
            frozen,
            advance,
            floors,
            subscribers,
            live: self.regions.values().filter(|r| !r.detached).map(|r| r.id.0).collect(),
            anew: self.anew.1.iter().map(|id| id.0).collect(),
            tables: self
                .regions
                .values()
                .filter(|r| r.kind == RegionKind::Table)
                .map(|r| r.id.0)
                .collect(),
            log_seqs: self.timeline.seqs(),
            payload: Payload {
                epoch: self.cut,
                timestamp_us: self.timeline.timestamp_us(self.cut),
                catalog: self.catalog.as_ref().clone(),
                sources: self.source_states(),
            },
        }
    }

    /// What has been frozen, without the parts of regions that began anew since the last checkpoint: this one forgets what earlier ones
    /// hold under their ids, and the next takes their own state.
    fn hold_back(&mut self) -> Vec<Frozen> {
        self.anew.1 = self.anew.0.clone();
        let frozen = std::mem::take(&mut self.frozen);
        let (held, frozen) = frozen.into_iter().partition(|f| self.anew.1.contains(&f.region));
        self.frozen = held;
        self.changed_since_tick |= !self.anew.1.is_empty();
        frozen
    }

    pub(super) fn on_checkpoint(&mut self, result: Result<CheckpointDone>) {
        self.checkpoint_running = false;
        // New regions choose their pins between checkpoints.
        self.work.ready.extend(&self.work.hidden);
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(error = error_text(&error), "a checkpoint failed and is tried again");
                // While stopping one attempt is enough: the log has everything.
                self.changed_since_tick = self.stopping.is_none();
                return;
            }
        };
        // A checkpoint that was under way when a region began anew speaks of what was there before.
        let anew = &self.anew.0;
        for (id, epoch) in done.epochs.iter().filter(|(id, _)| !anew.contains(&ObjectId(**id))) {
            if let Some(region) = self.regions.get_mut(&ObjectId(*id)) {
                region.completed_epoch = Some(*epoch);
            }
        }
        for frozen in done.frozen.iter().filter(|f| !anew.contains(&f.region)) {
            if let Some(region) = self.regions.get_mut(&frozen.region) {
                region.completed_seq = frozen.step_seq.or(region.completed_seq);
                region.complete_relation(frozen.relation_seq);
                // A sink's backfill waits for its pins to be there.
                self.work.ready.insert(frozen.region);
            }
        }
        for region in self.regions.values() {
            // Every region gets the newest snapshot, so that compaction need not keep what older ones see.
            if let (Some(dataflow), Some(seq)) = (&region.dataflow, region.completed_seq) {
                dataflow.checkpoint_completed(seq, done.reader(region.id));
            }
        }
        let forgotten = std::mem::take(&mut self.anew.1);
        self.anew.0.retain(|id| !forgotten.contains(id));
        let (rocks, held) = &self.shared.rocks;
        held.set(rocks.used_bytes());
        self.offer_bases(&done);
        self.timeline.forget_before(done.log_epoch);
        self.limit_backlogs();
        let regions = &self.regions;
        self.work.runs.retain(|id| {
            let relation = regions.get(id).and_then(|r| r.relation.as_ref());
            relation.is_some_and(|r| r.has_runs())
        });
        self.work.foldable.extend(&self.work.runs);
        self.shared.note_checkpoint(CheckpointInfo {
            number: done.manifest.number,
            epoch: done.epoch,
            regions: done.manifest.regions.len(),
            files: done.manifest.files.len(),
            bytes: done.bytes,
            seconds: done.seconds,
        });
        if self.checkpoints.send(Job::collect()).is_err() {
            tracing::debug!("the checkpointer has stopped");
        }
    }

    /// Relations whose rows are, or should be, in the cold tier hear of a newer checkpoint.
    fn offer_bases(&mut self, done: &CheckpointDone) {
        for region in self.regions.values() {
            let (Some(relation), Some(epoch)) = (&region.relation, region.completed_epoch) else {
                continue;
            };
            relation.offer(Offer {
                epoch,
                seq: region.completed_relation_seq,
                rows: relation.rows_about(),
                snapshot: Arc::clone(&done.snapshot),
            });
            if relation.is_offered() {
                self.work.foldable.insert(region.id);
            }
        }
    }

    /// Drops cuts that every reader has taken, and boundaries that every region has passed.
    pub(super) fn forget(&mut self) {
        self.forget_cuts();
        if self.stops.is_empty() {
            return;
        }
        let oldest = self.oldest_frontier(|_| true);
        while self.stops.first().is_some_and(|s| *s < oldest) {
            self.stops.pop_first();
        }
    }

    /// The oldest frontier of the regions that `counts` admits; those at rest have the newest.
    fn oldest_frontier(&self, counts: impl Fn(&RegionCtl) -> bool) -> u64 {
        let active = self.work.active.iter().filter_map(|id| self.regions.get(id));
        let frontiers = active.filter(|r| counts(r)).map(RegionCtl::frontier);
        frontiers.min().unwrap_or(self.cut)
    }

    /// Folds each relation's runs that no reader, subscriber or checkpoint needs apart.
    pub(super) fn start_fold(&mut self) {
        if self.fold_running || self.work.foldable.is_empty() || self.last_fold.elapsed() < FOLD_EVERY {
            return;
        }
        self.last_fold = Instant::now();
        let standing = &self.work.standing;
        let common = self.oldest_frontier(|r| r.visible() && r.kind != RegionKind::Sink && !standing.contains(&r.id));
        let readable = common.max(self.cut.saturating_sub(READ_BACK_EPOCHS));
        let readable = self.shared.oldest_pin().map_or(readable, |p| p.min(readable));
        let mut joinable: Option<u64> = None;
        let mut folds = Vec::new();
        for id in std::mem::take(&mut self.work.foldable) {
            let Some(region) = self.regions.get(&id) else { continue };
            let (Some(relation), Some(completed)) = (&region.relation, region.completed_epoch) else {
                continue;
            };
            let limits = Limits {
                horizon: self.taken(id).min(readable).min(completed).min(region.frontier()),
                seq: region.completed_relation_seq,
                readable: *joinable.get_or_insert_with(|| self.joinable(readable)),
                stands: self.stands(id),
                seqs: region.relation_seqs(),
            };
            if relation.needs_upkeep(&limits) {
                folds.push((Arc::clone(relation), limits));
            }
        }
        if !folds.is_empty() {
            self.fold_running = self.folds.send(folds).is_ok();
        }
    }

    /// The newest epoch that no reader of whatever relations goes behind, unless it has said so: the one at which all relations meet.
    fn joinable(&self, readable: u64) -> u64 {
        let visible = self.regions.values().filter(|r| r.visible());
        let relations: Vec<Arc<Relation>> = visible.filter_map(|r| r.relation.clone()).collect();
        common_boundary(&relations).min(readable)
    }

    /// Epochs at which a relation's runs must not be joined: subscribers stand there, blocks read there, backfills begin there.
    fn stands(&self, id: ObjectId) -> Vec<u64> {
        let readers = self.work.readers(id).filter_map(|r| self.regions.get(&r));
        let mut stands: Vec<u64> = readers.map(|reader| self.position(reader, id)).collect();
        stands.extend(self.stops.iter().copied());
        stands.extend(self.shared.pins.lock().keys().copied());
        stands
    }

    /// Installs sums of runs for those that nobody has come to stand inside of.
    pub(super) fn on_folded(&mut self, joined: Vec<(Arc<Relation>, Joined)>) {
        self.fold_running = false;
        for (relation, sum) in joined {
            let stands = self.stands(relation.id());
            relation.install(sum, &stands);
        }
    }

    /// Up to where a subscriber has taken a relation's runs.
    pub(super) fn position(&self, subscriber: &RegionCtl, id: ObjectId) -> u64 {
        let start = subscriber.starts.get(&id).copied().unwrap_or(0);
        match &subscriber.backfill {
            Some(_) => start,
            None => subscriber.submitted().max(start),
        }
    }

    /// The epoch up to which all subscribers of a relation have taken its runs.
    fn taken(&self, id: ObjectId) -> u64 {
        let readers = self.work.readers(id).filter_map(|r| self.regions.get(&r));
        let taken = readers.filter(|d| d.failed.is_none()).map(|d| self.position(d, id));
        taken.min().unwrap_or(u64::MAX)
    }

    /// Shows frontiers and statuses to sessions.
    pub(super) fn publish_status(&mut self) {
        let complete = |id: &ObjectId| self.regions.get(id).is_some_and(|r| r.visible() && r.failed.is_none());
        let complete: Vec<ObjectId> = self.work.hidden.iter().copied().filter(complete).collect();
        for id in complete {
            self.work.hidden.remove(&id);
            self.shared.set_status(id, self.shown_status(id));
        }
        if std::mem::take(&mut self.work.moved) {
            self.shared.bump();
        }
    }
}
