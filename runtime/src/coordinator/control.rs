//! The coordinator's loop: takes barriers and finished steps, and tells each region what to do next.
//!
//! One thread, one queue of events, no locks held while it thinks. Each event ends with [`Control::settle`], which moves the regions
//! that the event may have enabled (see [`super::work`]), inputs before dependents: object ids grow along dependencies, so id order is
//! topological. Without events it sleeps until the next thing that only time makes due.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use levee_planner::catalog::Catalog;
use levee_planner::plan::ObjectId;

#[cfg(debug_assertions)]
use super::backfill::Backfill;
use super::checkpointer::{CheckpointDone, Job};
use super::dead_letters::{DEAD_LETTERS, LetterBook};
use super::record::EpochRecord;
use super::region::{Frozen, RegionCtl, Timeline};
use super::sequencer::Request;
use super::shared::Shared;
use super::sources::SourceCtl;
use super::timers::Timers;
use super::upkeep::TICK_WAIT;
use super::work::WorkSets;
use crate::dataflow::executor::Executor;
use crate::dataflow::{RegionEvents, StepResult, TaskInfo};
use crate::memory::{Holder, Share};
use crate::relation::{Joined, Limits, Relation};
use crate::sources::{DeadLetter, SourceDriver};
use crate::{Delta, Result, RuntimeError};

/// How often runs are folded.
pub(super) const FOLD_EVERY: Duration = Duration::from_millis(50);
/// Pause after the log did not take what sources brought.
const LOG_RETRY: Duration = Duration::from_millis(200);
/// Pause before regions that wait for memory are looked at again: nothing tells when tasks have evicted.
pub(super) const PACED_RETRY: Duration = Duration::from_millis(20);
/// Sleep when nothing is due.
const LONG: Duration = Duration::from_secs(3600);
/// Up to this many regions, debug builds check after each event that no region was forgotten.
#[cfg(debug_assertions)]
const CHECKED_REGIONS_MAX: usize = 24;

/// What reaches the coordinator.
pub enum Event {
    /// A durable barrier.
    Epoch {
        /// The record.
        record: Arc<EpochRecord>,
        /// Its place in the log.
        seq: u64,
        /// Bytes that it takes there.
        bytes: u64,
    },
    /// A cut of source ranges could not be made durable.
    CutFailed,
    /// A source's driver has something to cut, or its status has changed.
    SourceReady,
    /// Records of a source that could not be decoded.
    DeadLetters(ObjectId, Vec<DeadLetter>),
    /// The log did not take these dead letters.
    LettersFailed(Vec<Delta>),
    /// A building view lacks records that compaction has taken; all that replaced them are in this split before this offset.
    Compacted(ObjectId, u32, u64),
    /// A region finished a step.
    StepDone(ObjectId, Box<StepResult>),
    /// A sink's step is at its target.
    Delivered(ObjectId, Box<StepResult>),
    /// A region gave up.
    RegionFailed(ObjectId, String),
    /// A task was started again.
    TaskRestarted(ObjectId, TaskInfo, String),
    /// A checkpoint is complete, or failed.
    Checkpoint(Box<Result<CheckpointDone>>),
    /// Relations' upkeep is done; sums of runs are to be installed.
    Folded(Vec<(Arc<Relation>, Joined)>),
    /// A backfill's next rows have been read, or are at their end.
    Backfill(ObjectId),
    /// A source's driver, for a sample.
    Driver(ObjectId, tokio::sync::oneshot::Sender<Option<Arc<dyn SourceDriver>>>),
    /// Rows of a status table.
    Status(String, std::sync::mpsc::SyncSender<Vec<super::StatusRow>>),
    /// Take a last checkpoint and end.
    Stop(tokio::sync::oneshot::Sender<()>),
}

/// State of the coordinator's thread.
pub struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) executor: Arc<Executor>,
    pub(super) requests: Sender<Request>,
    pub(super) events: Sender<Event>,
    pub(super) checkpoints: Sender<Job>,
    pub(super) folds: Sender<Vec<(Arc<Relation>, Limits)>>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) catalog_epoch: u64,
    pub(super) regions: BTreeMap<ObjectId, RegionCtl>,
    pub(super) sources: BTreeMap<ObjectId, SourceCtl>,
    pub(super) table_writes: HashMap<ObjectId, VecDeque<(u64, Vec<Delta>)>>,
    /// What they hold, as the budget knows it.
    pub(super) queued: Holder,
    pub(super) timeline: Timeline,
    pub(super) cut: u64,
    pub(super) stops: BTreeSet<u64>,
    pub(super) frozen: Vec<Frozen>,
    pub(super) checkpoint_running: bool,
    pub(super) changed_since_tick: bool,
    pub(super) tick: Option<(u64, Instant)>,
    pub(super) last_tick: Instant,
    pub(super) last_fold: Instant,
    pub(super) last_measure: Instant,
    pub(super) fold_running: bool,
    pub(super) cut_pending: bool,
    /// The log did not take the last cut: none before this time.
    pub(super) cut_after: Option<Instant>,
    pub(super) letters: LetterBook,
    /// Regions that wait for what replaces records that compaction took.
    pub(super) awaiting: BTreeSet<ObjectId>,
    pub(super) stopping: Option<tokio::sync::oneshot::Sender<()>>,
    /// A source could be cut if it had records now, and is to be asked again after this time.
    pub(super) poll_sources: Option<Duration>,
    pub(super) paused_sources: BTreeSet<ObjectId>,
    /// Regions that begin anew under the id of one whose state a checkpoint may still hold, and those that the running checkpoint
    /// forgets: see [`Control::hold_back`].
    pub(super) anew: (BTreeSet<ObjectId>, BTreeSet<ObjectId>),
    pub(super) work: WorkSets,
    pub(super) timers: Timers,
    pub(super) recovering: bool,
}

/// Passes a region's events on to the coordinator's queue.
pub struct Events(pub Sender<Event>);

impl RegionEvents for Events {
    fn step_done(&self, region: ObjectId, result: StepResult) {
        self.send(Event::StepDone(region, Box::new(result)));
    }

    fn task_restarted(&self, region: ObjectId, task: &TaskInfo, reason: &str) {
        self.send(Event::TaskRestarted(region, task.clone(), reason.to_owned()));
    }

    fn region_failed(&self, region: ObjectId, reason: &str) {
        self.send(Event::RegionFailed(region, reason.to_owned()));
    }
}

impl Events {
    fn send(&self, event: Event) {
        if self.0.send(event).is_err() {
            tracing::debug!("a region's event came after the coordinator's end");
        }
    }
}

impl Control {
    /// A coordinator of nothing yet; recovery fills it.
    pub(super) fn new(
        shared: Arc<Shared>,
        executor: Arc<Executor>,
        requests: Sender<Request>,
        events: Sender<Event>,
        checkpoints: Sender<Job>,
        folds: Sender<Vec<(Arc<Relation>, Limits)>>,
    ) -> Self {
        let now = Instant::now();
        let queued = shared.memory.holder(Share::Sources);
        Self {
            shared,
            executor,
            requests,
            events,
            checkpoints,
            folds,
            catalog: Arc::default(),
            catalog_epoch: 0,
            regions: BTreeMap::new(),
            sources: BTreeMap::new(),
            table_writes: HashMap::new(),
            queued,
            timeline: Timeline::default(),
            cut: 0,
            stops: BTreeSet::new(),
            frozen: Vec::new(),
            checkpoint_running: false,
            changed_since_tick: false,
            tick: None,
            last_tick: now,
            last_fold: now,
            last_measure: now,
            fold_running: false,
            cut_pending: false,
            cut_after: None,
            letters: LetterBook::default(),
            awaiting: BTreeSet::new(),
            stopping: None,
            poll_sources: None,
            paused_sources: BTreeSet::new(),
            anew: Default::default(),
            work: WorkSets::default(),
            timers: Timers::default(),
            recovering: true,
        }
    }

    /// Serves events until told to stop.
    pub fn run(mut self, events: &Receiver<Event>) {
        self.recovering = false;
        self.show_standing();
        self.settle();
        loop {
            match events.recv_timeout(self.wait_time()) {
                Ok(event) => {
                    self.handle(event);
                    // Take what has gathered before looking at all regions.
                    for _ in 0..64 {
                        let Ok(event) = events.try_recv() else { break };
                        self.handle(event);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.settle();
            if self.stopped() {
                return;
            }
        }
    }

    /// Time until something is due that no event announces.
    fn wait_time(&self) -> Duration {
        let now = Instant::now();
        let mut wait = self.poll_sources.unwrap_or(LONG);
        let mut due = |at: Instant| wait = wait.min(at.saturating_duration_since(now));
        if let Some((_, started)) = self.tick {
            due(started + TICK_WAIT);
        } else if self.changed_since_tick && !self.checkpoint_running {
            due(self.last_tick + self.checkpoint_interval());
        }
        if let Some(at) = self.cut_after {
            due(at);
        }
        if !self.work.paced.is_empty() {
            due(now + PACED_RETRY);
        }
        if !self.fold_running && !self.work.foldable.is_empty() {
            due(self.last_fold + FOLD_EVERY);
        }
        self.timer_wait().map_or(wait, |timer| wait.min(timer))
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Epoch { record, seq, bytes } => self.on_epoch(&record, seq, bytes),
            Event::CutFailed => {
                self.cut_pending = false;
                self.cut_after = Some(Instant::now() + LOG_RETRY);
            }
            Event::DeadLetters(id, letters) => self.take_letters(id, letters),
            Event::LettersFailed(deltas) => {
                self.letters_failed(deltas);
                self.cut_after = Some(Instant::now() + LOG_RETRY);
            }
            Event::Compacted(id, split, end) => self.await_replacements(id, split, end),
            // Whatever it is, `settle` looks.
            Event::SourceReady => {}
            Event::StepDone(id, result) => {
                if let Some(result) = self.deliver(id, result) {
                    self.on_step_done(id, *result);
                }
            }
            Event::Delivered(id, result) => self.on_step_done(id, *result),
            Event::RegionFailed(id, reason) => self.on_region_failed(id, reason),
            Event::TaskRestarted(id, task, reason) => {
                let job = self.regions.get(&id).map_or("", |r| r.name.as_str());
                tracing::warn!(
                    job,
                    fragment = task.fragment,
                    task = task.task,
                    reason,
                    "task restarted alone"
                );
            }
            Event::Checkpoint(result) => self.on_checkpoint(*result),
            Event::Folded(joined) => self.on_folded(joined),
            Event::Driver(id, reply) => {
                let driver = self.sources.get(&id).map(|s| Arc::clone(&s.driver));
                if reply.send(driver).is_err() {
                    tracing::debug!("a reader of a source went away");
                }
            }
            Event::Backfill(id) => {
                if self.regions.contains_key(&id) {
                    self.work.ready.insert(id);
                }
            }
            Event::Status(name, reply) => {
                if reply.try_send(self.status(&name)).is_err() {
                    tracing::debug!("a status reader went away");
                }
            }
            Event::Stop(reply) => {
                self.stopping = Some(reply);
                self.changed_since_tick |= !self.work.changed.is_empty();
                self.last_tick = self
                    .last_tick
                    .checked_sub(Duration::from_secs(3600))
                    .unwrap_or(self.last_tick);
            }
        }
    }

    fn stopped(&mut self) -> bool {
        if self.stopping.is_none() || self.tick.is_some() || self.checkpoint_running || self.changed_since_tick {
            return false;
        }
        for region in self.regions.values_mut() {
            if let Some(dataflow) = &region.dataflow {
                dataflow.stop();
            }
            if let Some(delivery) = region.delivery.take() {
                delivery.stop();
            }
        }
        if let Some(reply) = self.stopping.take()
            && reply.send(()).is_err()
        {
            tracing::debug!("nobody waits for the end");
        }
        true
    }

    /// Folds one barrier in. Also used to replay the log.
    pub(super) fn on_epoch(&mut self, record: &EpochRecord, seq: u64, bytes: u64) {
        self.wake_for(record);
        self.wake_timers(record);
        self.cut = record.epoch;
        self.shared.clock_epoch.store(record.epoch, Ordering::Release);
        self.work.moved = true;
        self.timeline.push(record.epoch, record.timestamp_us, seq, bytes);
        let rows = record.writes.iter().map(|(_, d)| d.num_rows()).sum();
        self.shared
            .note_epoch(record.epoch, record.timestamp_us, record.writes.len(), rows);
        // The catalog that a restart begins with holds the log's earlier DDL already.
        if record.epoch > self.catalog_epoch {
            self.catalog_epoch = record.epoch;
            for op in &record.ops {
                self.apply(op, record);
            }
            if record.ops.is_empty() {
                self.add_splits(&record.splits);
            }
        }
        for (table, delta) in &record.writes {
            let behind = self.regions.get(table).is_some_and(|r| r.submitted() < record.epoch);
            if behind {
                if *table == DEAD_LETTERS {
                    self.letters_durable(delta, record.ops.is_empty());
                }
                self.queued.set(self.queued.bytes() + delta.bytes());
                let queue = self.table_writes.entry(*table).or_default();
                match queue.back_mut() {
                    Some((epoch, deltas)) if *epoch == record.epoch => deltas.push(delta.clone()),
                    _ => queue.push_back((record.epoch, vec![delta.clone()])),
                }
            }
        }
        if record.is_cut() {
            self.cut_pending = false;
        }
        self.add_ranges(record.epoch, &record.ranges);
        if !record.ops.is_empty() {
            self.shared.applied.fetch_max(record.epoch, Ordering::AcqRel);
            self.shared.bump();
        }
        self.changed_since_tick |= !record.ops.is_empty() || !record.writes.is_empty() || record.is_cut();
    }

    /// Wakes what the epoch may change, before the clock shows the epoch.
    fn wake_for(&mut self, record: &EpochRecord) {
        let changed = record
            .writes
            .iter()
            .map(|(id, _)| *id)
            .chain(record.ranges.iter().map(|(id, _)| *id));
        for id in self.work.downstream(changed) {
            self.wake(id);
        }
        for (table, _) in &record.writes {
            self.work.ready.insert(*table);
        }
        // What is being built does not rest, and may have nothing under way: it passes epochs that bring it nothing, too.
        self.work.ready.extend(&self.work.hidden);
        for (source, _) in &record.ranges {
            let readers: Vec<ObjectId> = self.work.readers(*source).collect();
            self.work.ready.extend(readers);
        }
    }

    /// The region does not rest any more.
    pub(super) fn wake(&mut self, id: ObjectId) {
        if let Some(region) = self.regions.get_mut(&id)
            && !region.stands()
        {
            region.wake();
            self.work.active.insert(id);
        }
    }

    /// Stops a region that was told to stop at the first failed expression.
    pub(super) fn stopped_by_error(&mut self, id: ObjectId, result: &StepResult) -> bool {
        let Some(region) = self.regions.get(&id).filter(|r| r.stop_on_error) else {
            return false;
        };
        let Some(e) = result.errors.first() else {
            return false;
        };
        let reason = format!("expression {} failed: {}", e.expression, e.message);
        if let Some(dataflow) = &region.dataflow {
            dataflow.stop();
        }
        self.on_region_failed(id, reason);
        true
    }

    fn on_step_done(&mut self, id: ObjectId, result: StepResult) {
        let Some(region) = self.regions.get_mut(&id) else {
            return;
        };
        if region.failed.is_some() {
            return;
        }
        let Some(step) = region.in_flight.pop_front() else {
            return;
        };
        debug_assert_eq!(step.seq, result.seq, "steps finish in order");
        region.count_errors(step.to, &result.errors);
        if self.stopped_by_error(id, &result) {
            return;
        }
        let Some(region) = self.regions.get_mut(&id) else {
            return;
        };
        region.meta.rows_out += result.rows_out;
        region.meta.checksum = region.meta.checksum.wrapping_add(result.checksum);
        region.meta.steps += 1;
        self.timers.set(id, region.meta.next_timer_us, result.next_timer_us);
        region.meta.next_timer_us = result.next_timer_us;
        if let Some(relation) = &region.relation {
            if result.output.is_some() {
                self.work.runs.insert(id);
            }
            relation.publish(step.from, step.to, result.output);
        }
        region.complete_to(step.to);
        self.work.moved(id, &region.inputs);
        self.work.ready.insert(id);
        if step.is_backfill
            && let Some(backfill) = &mut region.backfill
        {
            backfill.rows_done = step.backfill_rows;
        }
        if let Some(state) = result.snapshot {
            let snapshot = region.relation.as_ref().and_then(|r| r.snapshot(step.to).ok());
            let relation_seq = region.relation.as_ref().map_or(0, |r| r.seq());
            let since = region.freeze_relation(relation_seq);
            let relation = snapshot.map(|snapshot| (snapshot, since));
            let meta = region.encode_meta(step.backfill);
            self.letters.step_frozen();
            self.frozen.push(Frozen {
                region: id,
                epoch: step.to,
                step_seq: Some(step.seq),
                state,
                relation,
                relation_seq,
                meta,
            });
        }
    }

    /// Moves everything that can move.
    pub(super) fn settle(&mut self) {
        self.measure_memory();
        self.start_tick();
        let paced = std::mem::take(&mut self.work.paced);
        self.work.ready.extend(paced);
        self.advance_ready();
        #[cfg(debug_assertions)]
        self.check_settled();
        self.cut_sources();
        self.ask_for_timers();
        self.forget();
        self.finish_tick();
        self.start_fold();
        self.publish_status();
    }

    fn advance_ready(&mut self) {
        while let Some(id) = self.work.ready.pop_first() {
            if let Err(error) = self.advance(id) {
                self.on_region_failed(id, error_text(&error));
            }
        }
    }

    /// No region that was not looked at has anything to do, unless the end of a step under way brings it back: the work sets are
    /// complete.
    #[cfg(debug_assertions)]
    fn check_settled(&mut self) {
        if self.regions.len() > CHECKED_REGIONS_MAX {
            return;
        }
        let reads = |r: &RegionCtl| r.backfill.as_ref().is_some_and(Backfill::reads);
        let paced = &self.work.paced;
        let quiet = self
            .regions
            .values()
            .filter(|r| r.in_flight.is_empty() && !reads(r) && !paced.contains(&r.id));
        let ids: Vec<ObjectId> = quiet.map(|r| r.id).collect();
        let place = |control: &Self, id| {
            let region = control.regions.get(&id)?;
            Some((
                region.submitted(),
                region.frontier(),
                region.in_flight.len(),
                region.visible(),
            ))
        };
        for id in ids {
            let before = place(self, id);
            // An error is the next real event's.
            if self.advance(id).is_ok() {
                debug_assert_eq!(before, place(self, id), "region {id} was forgotten");
            }
        }
    }
}

/// An error with its causes, for a person.
pub(super) fn error_text(error: &RuntimeError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
