//! The coordinator's loop: takes barriers and finished steps, and tells each region what to do next.
//!
//! One thread, one queue of events, no locks held while it thinks. Each event ends with [`Control::settle`], which moves the regions
//! that the event may have enabled, inputs before dependents: object ids grow along dependencies, so id order is topological.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp, ObjectKind};
use levee_planner::plan::ObjectId;

use super::backfill::{Backfill, Pin};
use super::checkpointer::{CheckpointDone, Job};
use super::record::EpochRecord;
use super::region::{
    Frozen, IN_FLIGHT_MAX, InFlight, RegionCtl, RegionKind, Timeline, choose_step,
};
use super::sequencer::Request;
use super::shared::{RegionStatus, Shared};
use crate::dataflow::executor::Executor;
use crate::dataflow::{Region, RegionEvents, RegionSpec, RootMode, StateReader, Step, StepInput, StepResult, TaskInfo};
use crate::operators::Barrier;
use crate::relation::{Base, Relation, RowOrder};
use crate::sources::{self, SourceDriver, SplitRange};
use crate::{Delta, Result, RuntimeError};

/// Rows beyond which a lagging region's step is not made longer.
const STEP_ROWS_MAX: usize = 262_144;
/// Records that one epoch takes from a source, per task.
pub(super) const CUT_ROWS_PER_TASK: u64 = 32_768;
/// Epochs of a source that its fastest reader may be behind before the next is cut.
pub(super) const CUTS_AHEAD_MAX: usize = 3;
/// How often rate-limited sources are looked at.
const SOURCE_POLL: Duration = Duration::from_millis(5);
/// How often runs are folded.
pub(super) const FOLD_EVERY: Duration = Duration::from_millis(50);

/// What reaches the coordinator.
pub enum Event {
    /// A durable barrier.
    Epoch {
        /// The record.
        record: Arc<EpochRecord>,
        /// Its place in the log.
        seq: u64,
    },
    /// A cut of source ranges could not be made durable.
    CutFailed,
    /// A region finished a step.
    StepDone(ObjectId, Box<StepResult>),
    /// A region gave up.
    RegionFailed(ObjectId, String),
    /// A task was started again.
    TaskRestarted(ObjectId, TaskInfo, String),
    /// A checkpoint is complete, or failed.
    Checkpoint(Box<Result<CheckpointDone>>),
    /// Folding has caught up.
    Folded,
    /// Rows of a status table.
    Status(String, std::sync::mpsc::SyncSender<Vec<super::StatusRow>>),
    /// Take a last checkpoint and end.
    Stop(tokio::sync::oneshot::Sender<()>),
}

/// A source's place in the timeline.
pub struct SourceCtl {
    /// Driver.
    pub driver: Arc<dyn SourceDriver>,
    /// When it was created.
    pub created_us: i64,
    /// Cut so far, per split.
    pub offsets: Vec<u64>,
    /// Ranges per epoch that some reader may still need.
    pub cuts: VecDeque<(u64, Vec<SplitRange>)>,
}

/// State of the coordinator's thread.
pub struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) executor: Arc<Executor>,
    pub(super) requests: Sender<Request>,
    pub(super) events: Sender<Event>,
    pub(super) checkpoints: Sender<Job>,
    pub(super) folds: Sender<Vec<(Arc<Relation>, u64, u64)>>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) catalog_epoch: u64,
    pub(super) regions: BTreeMap<ObjectId, RegionCtl>,
    pub(super) sources: BTreeMap<ObjectId, SourceCtl>,
    pub(super) table_writes: HashMap<ObjectId, VecDeque<(u64, Vec<Delta>)>>,
    pub(super) timeline: Timeline,
    pub(super) cut: u64,
    pub(super) stops: BTreeSet<u64>,
    pub(super) frozen: Vec<Frozen>,
    pub(super) checkpoint_running: bool,
    pub(super) changed_since_tick: bool,
    pub(super) tick: Option<(u64, Instant)>,
    pub(super) last_tick: Instant,
    pub(super) last_fold: Instant,
    pub(super) fold_running: bool,
    pub(super) cut_pending: bool,
    pub(super) stopping: Option<tokio::sync::oneshot::Sender<()>>,
    pub(super) shown: HashMap<ObjectId, u64>,
    pub(super) restarts: u64,
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
        folds: Sender<Vec<(Arc<Relation>, u64, u64)>>,
    ) -> Self {
        let now = Instant::now();
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
            timeline: Timeline::default(),
            cut: 0,
            stops: BTreeSet::new(),
            frozen: Vec::new(),
            checkpoint_running: false,
            changed_since_tick: false,
            tick: None,
            last_tick: now,
            last_fold: now,
            fold_running: false,
            cut_pending: false,
            stopping: None,
            shown: HashMap::new(),
            restarts: 0,
        }
    }

    /// Serves events until told to stop.
    pub fn run(mut self, events: &Receiver<Event>) {
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

    fn wait_time(&self) -> Duration {
        let poll = !self.sources.is_empty() && self.regions.values().any(|r| r.inputs.iter().any(|i| self.sources.contains_key(i)));
        if poll {
            SOURCE_POLL
        } else if self.changed_since_tick || self.tick.is_some() || self.shared.fold_needed() {
            Duration::from_millis(20)
        } else {
            Duration::from_millis(200)
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Epoch { record, seq } => self.on_epoch(&record, seq),
            Event::CutFailed => self.cut_pending = false,
            Event::StepDone(id, result) => self.on_step_done(id, *result),
            Event::RegionFailed(id, reason) => self.on_region_failed(id, reason),
            Event::TaskRestarted(id, task, reason) => {
                let job = self.regions.get(&id).map_or("", |r| r.name.as_str());
                self.restarts += 1;
                tracing::warn!(job, fragment = task.fragment, task = task.task, reason, "task restarted alone");
            }
            Event::Checkpoint(result) => self.on_checkpoint(*result),
            Event::Folded => self.fold_running = false,
            Event::Status(name, reply) => {
                if reply.try_send(self.status(&name)).is_err() {
                    tracing::debug!("a status reader went away");
                }
            }
            Event::Stop(reply) => {
                self.stopping = Some(reply);
                self.changed_since_tick |= self.regions.values().any(|r| r.dirty);
                self.last_tick = self.last_tick.checked_sub(Duration::from_secs(3600)).unwrap_or(self.last_tick);
            }
        }
    }

    fn stopped(&mut self) -> bool {
        if self.stopping.is_none() || self.tick.is_some() || self.checkpoint_running || self.changed_since_tick {
            return false;
        }
        for region in self.regions.values() {
            if let Some(dataflow) = &region.dataflow {
                dataflow.stop();
            }
        }
        if let Some(reply) = self.stopping.take() {
            if reply.send(()).is_err() {
                tracing::debug!("nobody waits for the end");
            }
        }
        true
    }

    /// Folds one barrier in. Also used to replay the log.
    pub(super) fn on_epoch(&mut self, record: &EpochRecord, seq: u64) {
        self.cut = record.epoch;
        self.timeline.push(record.epoch, record.timestamp_us, seq);
        let rows = record.writes.iter().map(|(_, d)| d.num_rows()).sum();
        self.shared.note_epoch(record.epoch, record.timestamp_us, record.writes.len(), rows);
        // The catalog that a restart begins with holds the log's earlier DDL already.
        if record.epoch > self.catalog_epoch {
            self.catalog_epoch = record.epoch;
            for op in &record.ops {
                self.apply(op, record);
            }
        }
        for (table, delta) in &record.writes {
            let behind = self.regions.get(table).is_some_and(|r| r.submitted < record.epoch);
            if behind {
                let queue = self.table_writes.entry(*table).or_default();
                match queue.back_mut() {
                    Some((epoch, deltas)) if *epoch == record.epoch => deltas.push(delta.clone()),
                    _ => queue.push_back((record.epoch, vec![delta.clone()])),
                }
            }
        }
        if !record.ranges.is_empty() {
            self.cut_pending = false;
        }
        for (source, ranges) in &record.ranges {
            if let Some(ctl) = self.sources.get_mut(source) {
                // A checkpoint's catalog may already hold these offsets.
                for range in ranges {
                    if let Some(offset) = ctl.offsets.get_mut(range.split as usize) {
                        *offset = (*offset).max(range.to);
                    }
                }
                ctl.cuts.push_back((record.epoch, ranges.clone()));
            }
        }
        self.changed_since_tick |= !record.ops.is_empty() || !record.writes.is_empty() || !record.ranges.is_empty();
    }

    fn apply(&mut self, op: &CatalogOp, record: &EpochRecord) {
        let mut catalog = Catalog::clone(&self.catalog);
        catalog.apply(op);
        self.catalog = Arc::new(catalog);
        match op {
            CatalogOp::Create(object) => {
                if let Err(error) = self.add_object(object, record.epoch, record.timestamp_us) {
                    tracing::error!(job = %object.name, %error, "an object cannot be started");
                    self.shared.set_status(object.id, RegionStatus::Failed(error_text(&error)));
                }
            }
            CatalogOp::Drop(id) => self.remove_object(*id),
        }
    }

    fn remove_object(&mut self, id: ObjectId) {
        if let Some(region) = self.regions.remove(&id) {
            if let Some(dataflow) = region.dataflow {
                dataflow.stop();
            }
        }
        self.sources.remove(&id);
        self.table_writes.remove(&id);
        self.shown.remove(&id);
        self.frozen.retain(|f| f.region != id);
        self.shared.remove(id);
    }

    /// A new object, empty as of `epoch`.
    fn add_object(&mut self, object: &CatalogObject, epoch: u64, timestamp_us: i64) -> Result<()> {
        match &object.kind {
            ObjectKind::View(_) => Ok(()),
            ObjectKind::Source(def) => {
                let driver = sources::driver(&def.connector, &def.options)?;
                let offsets = driver.start();
                self.add_source(object.id, driver, timestamp_us, offsets);
                Ok(())
            }
            ObjectKind::Table(_) | ObjectKind::MaterializedView(_) | ObjectKind::Sink(_) => {
                let base = Base { epoch, ..Base::default() };
                self.add_region(object, base, None, None, epoch)
            }
        }
    }

    pub(super) fn add_source(&mut self, id: ObjectId, driver: Arc<dyn SourceDriver>, created_us: i64, offsets: Vec<u64>) {
        self.sources.insert(id, SourceCtl { driver, created_us, offsets, cuts: VecDeque::new() });
    }

    /// Starts a region whose relation holds `base` and whose operators restore from `state`.
    pub(super) fn add_region(
        &mut self,
        object: &CatalogObject,
        base: Base,
        state: Option<Arc<dyn StateReader>>,
        meta: Option<super::region::RegionMeta>,
        epoch: u64,
    ) -> Result<()> {
        let kind = match &object.kind {
            ObjectKind::Table(_) => RegionKind::Table,
            ObjectKind::Sink(_) => RegionKind::Sink,
            _ => RegionKind::View,
        };
        let key = storage_key(object);
        let relation = if kind == RegionKind::Sink {
            None
        } else {
            let order = Arc::new(RowOrder::new(Arc::clone(object.schema()), key.clone())?);
            Some(Arc::new(Relation::new(object.id, order, base)))
        };
        let restored = state.is_some();
        let inputs = object.stream_plan().map(levee_planner::plan::StreamPlan::inputs).unwrap_or_default();
        let root = match kind {
            RegionKind::Sink => RootMode::Discard,
            _ => RootMode::Materialize { order: key },
        };
        let dataflow = match object.stream_plan() {
            None => None,
            Some(plan) => {
                let drivers = inputs.iter().filter_map(|i| Some((*i, Arc::clone(&self.sources.get(i)?.driver)))).collect();
                let spec = RegionSpec {
                    id: object.id,
                    name: object.name.clone(),
                    graph: levee_planner::stream::fragment(plan),
                    parallelism: self.shared.config.parallelism,
                    sources: drivers,
                    root,
                    channel_bytes: self.shared.channel_bytes(),
                    spill_dir: self.shared.config.data_dir.join("spill").join(object.id.to_string()),
                };
                Some(Region::start(&self.executor, spec, state, Arc::new(Events(self.events.clone())))?)
            }
        };
        let meta = meta.unwrap_or_default();
        let building = dataflow.is_some() && !(restored && meta.backfill.is_none());
        let backfill = building.then(|| meta.backfill.as_ref().map_or_else(Backfill::default, Backfill::resume));
        let options = match &object.kind {
            ObjectKind::MaterializedView(v) => Some(&v.options),
            ObjectKind::Sink(s) => Some(&s.options),
            _ => None,
        };
        let region = RegionCtl {
            id: object.id,
            name: object.name.clone(),
            kind,
            inputs,
            dataflow,
            relation: relation.clone(),
            next_seq: 0,
            submitted: epoch,
            frontier: epoch,
            in_flight: VecDeque::new(),
            starts: meta.starts.iter().copied().collect(),
            backfill,
            checkpoint_target: None,
            dirty: !restored,
            frozen_relation_seq: 0,
            completed_epoch: restored.then_some(epoch),
            completed_seq: None,
            completed_relation_seq: 0,
            failed: None,
            stop_on_error: options.and_then(|o| o.get("on_error")).is_some_and(|v| v == "stop"),
            meta,
        };
        let status = if region.backfill.is_some() { RegionStatus::Building } else { RegionStatus::Running };
        self.shared.add(object.id, relation, status);
        self.regions.insert(object.id, region);
        Ok(())
    }

    fn on_region_failed(&mut self, id: ObjectId, reason: String) {
        let Some(region) = self.regions.get_mut(&id) else { return };
        tracing::error!(job = %region.name, reason, "a job has stopped");
        self.shared.set_status(id, RegionStatus::Failed(reason.clone()));
        region.failed = Some(reason);
        region.in_flight.clear();
        region.checkpoint_target = None;
    }

    fn on_step_done(&mut self, id: ObjectId, result: StepResult) {
        let Some(region) = self.regions.get_mut(&id) else { return };
        if region.failed.is_some() {
            return;
        }
        let Some(step) = region.in_flight.pop_front() else { return };
        debug_assert_eq!(step.seq, result.seq, "steps finish in order");
        region.count_errors(step.to, &result.errors);
        if region.stop_on_error && !result.errors.is_empty() {
            let e = &result.errors[0];
            let reason = format!("expression {} failed: {}", e.expression, e.message);
            if let Some(dataflow) = &region.dataflow {
                dataflow.stop();
            }
            self.on_region_failed(id, reason);
            return;
        }
        region.meta.rows_out += result.rows_out;
        region.meta.checksum = region.meta.checksum.wrapping_add(result.checksum);
        region.meta.steps += 1;
        if let Some(relation) = &region.relation {
            relation.publish(step.from, step.to, result.output);
        }
        region.frontier = region.frontier.max(step.to);
        if step.is_backfill {
            if let Some(backfill) = &mut region.backfill {
                backfill.rows_done = step.backfill_rows;
            }
        }
        if let Some(state) = result.snapshot {
            let relation = region.relation.as_ref().and_then(|r| Some((r.snapshot(step.to).ok()?, region.frozen_relation_seq)));
            let relation_seq = region.relation.as_ref().map_or(0, |r| r.seq());
            region.frozen_relation_seq = relation_seq;
            let meta = region.encode_meta(step.backfill);
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
        self.start_tick();
        let ids: Vec<ObjectId> = self.regions.keys().copied().collect();
        for id in ids {
            if let Err(error) = self.advance(id) {
                self.on_region_failed(id, error_text(&error));
            }
        }
        self.cut_sources();
        self.forget();
        self.finish_tick();
        self.start_fold();
        self.publish_status();
    }

    /// How far region `id`'s inputs are complete, and which epochs after `submitted` changed them.
    fn available(&self, region: &RegionCtl) -> Result<(u64, Vec<(u64, usize)>)> {
        if region.kind == RegionKind::Table {
            let changed = self.table_writes.get(&region.id).into_iter().flatten();
            let changed = changed.map(|(e, d)| (*e, d.iter().map(Delta::num_rows).sum())).collect();
            return Ok((self.cut, changed));
        }
        let mut limit = self.cut;
        let mut changed: BTreeMap<u64, usize> = BTreeMap::new();
        for input in &region.inputs {
            let after = region.submitted.max(region.starts.get(input).copied().unwrap_or(0));
            if let Some(source) = self.sources.get(input) {
                for (epoch, ranges) in source.cuts.iter().filter(|(e, _)| *e > after) {
                    *changed.entry(*epoch).or_default() += ranges.iter().map(|r| (r.to - r.from) as usize).sum::<usize>();
                }
                continue;
            }
            let Some(upstream) = self.regions.get(input) else {
                return Err(RuntimeError::NoObject(*input));
            };
            let Some(relation) = &upstream.relation else { continue };
            limit = limit.min(upstream.frontier);
            for run in relation.runs_between(after, upstream.frontier.max(after))? {
                *changed.entry(run.to).or_default() += run.delta.num_rows();
            }
        }
        let changed = changed.into_iter().filter(|(e, _)| *e <= limit).collect();
        Ok((limit, changed))
    }

    fn advance(&mut self, id: ObjectId) -> Result<()> {
        let Some(region) = self.regions.get(&id) else { return Ok(()) };
        if region.failed.is_some() {
            return Ok(());
        }
        if region.backfill.is_some() {
            return self.advance_backfill(id);
        }
        loop {
            let Some(region) = self.regions.get(&id) else { return Ok(()) };
            if region.in_flight.len() >= IN_FLIGHT_MAX || region.submitted >= self.cut {
                break;
            }
            let (limit, changed) = self.available(region)?;
            let limit = region.checkpoint_target.filter(|t| *t > region.submitted).map_or(limit, |t| limit.min(t));
            if limit <= region.submitted {
                break;
            }
            let end = choose_step(region.submitted, limit, &changed, &self.stops, STEP_ROWS_MAX);
            let has_change = changed.iter().any(|(e, _)| *e <= end);
            self.take_step(id, end, has_change)?;
        }
        let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
        if region.in_flight.is_empty() && region.submitted > region.frontier {
            region.frontier = region.submitted;
            if let Some(relation) = &region.relation {
                relation.advance(region.frontier);
            }
        }
        self.freeze_if_due(id)
    }

    fn take_step(&mut self, id: ObjectId, end: u64, has_change: bool) -> Result<()> {
        let Some(region) = self.regions.get(&id) else { return Ok(()) };
        if !has_change {
            if let Some(region) = self.regions.get_mut(&id) {
                region.submitted = end;
            }
            return Ok(());
        }
        if region.kind == RegionKind::Table {
            return self.step_table(id, end);
        }
        let mut inputs = HashMap::new();
        for input in &region.inputs {
            let after = region.submitted.max(region.starts.get(input).copied().unwrap_or(0));
            if after >= end {
                continue;
            }
            if let Some(source) = self.sources.get(input) {
                let cuts = source.cuts.iter().filter(|(e, _)| *e > after && *e <= end);
                let ranges = join_ranges(cuts.flat_map(|(_, r)| r.iter().copied()));
                if !ranges.is_empty() {
                    inputs.insert(*input, StepInput::Ranges(ranges));
                }
            } else if let Some(relation) = self.regions.get(input).and_then(|r| r.relation.as_ref()) {
                let runs = relation.runs_between(after, end)?;
                if !runs.is_empty() {
                    inputs.insert(*input, StepInput::Deltas(runs.iter().map(|r| r.delta.clone()).collect()));
                }
            }
        }
        let checkpoint = region.checkpoint_target == Some(end);
        self.submit(id, end, inputs, checkpoint, None)
    }

    fn step_table(&mut self, id: ObjectId, end: u64) -> Result<()> {
        let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
        let Some(relation) = &region.relation else { return Ok(()) };
        let queue = self.table_writes.entry(id).or_default();
        let mut deltas = Vec::new();
        while queue.front().is_some_and(|(e, _)| *e <= end) {
            deltas.extend(queue.pop_front().into_iter().flat_map(|(_, d)| d));
        }
        let order = relation.order();
        let run = match deltas.as_slice() {
            [one] => one.clone(),
            _ => Delta::consolidate(order.schema(), &deltas, order.key())?,
        };
        region.meta.rows_out += run.num_rows() as u64;
        region.meta.steps += 1;
        relation.publish(region.submitted, end, Some(run));
        region.submitted = end;
        region.frontier = end;
        region.dirty = true;
        Ok(())
    }

    pub(super) fn submit(
        &mut self,
        id: ObjectId,
        end: u64,
        inputs: HashMap<ObjectId, StepInput>,
        checkpoint: bool,
        backfill: Option<(super::backfill::BackfillMeta, u64)>,
    ) -> Result<()> {
        let timestamp_us = self.timeline.timestamp_us(end);
        let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
        let Some(dataflow) = &region.dataflow else {
            return Err(RuntimeError::internal("a region without tasks was given a step"));
        };
        let from = if backfill.is_some() { end } else { region.submitted };
        let first = region.next_seq == 0 && region.completed_epoch.is_none();
        let is_backfill = backfill.is_some();
        let (meta, rows) = backfill.map_or((None, 0), |(m, r)| (Some(m), r));
        region.in_flight.push_back(InFlight { seq: region.next_seq, from, to: end, backfill: meta, is_backfill, backfill_rows: rows, checkpoint });
        dataflow.submit(Step {
            seq: region.next_seq,
            from,
            to: end,
            barrier: Barrier { epoch: end, timestamp_us, first },
            inputs,
            checkpoint,
        });
        region.next_seq += 1;
        region.submitted = region.submitted.max(end);
        region.dirty = !checkpoint;
        if checkpoint {
            region.checkpoint_target = None;
        }
        Ok(())
    }

    /// A region that has reached its checkpoint's epoch without a step ending there is frozen by a step of its own, if it has
    /// anything to freeze.
    fn freeze_if_due(&mut self, id: ObjectId) -> Result<()> {
        let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
        let due = region.checkpoint_target.is_some_and(|t| t <= region.submitted);
        if !due {
            return Ok(());
        }
        if !region.dirty {
            region.checkpoint_target = None;
            return Ok(());
        }
        if region.kind != RegionKind::Table {
            let end = region.submitted;
            return self.submit(id, end, HashMap::new(), true, None);
        }
        let Some(relation) = &region.relation else { return Ok(()) };
        let snapshot = relation.snapshot(region.frontier)?;
        let relation_seq = relation.seq();
        let since = std::mem::replace(&mut region.frozen_relation_seq, relation_seq);
        let epoch = region.frontier;
        region.checkpoint_target = None;
        region.dirty = false;
        let meta = region.encode_meta(None);
        self.frozen.push(Frozen {
            region: id,
            epoch,
            step_seq: None,
            state: crate::dataflow::StateDelta::default(),
            relation: Some((snapshot, since)),
            relation_seq,
            meta,
        });
        Ok(())
    }

    fn advance_backfill(&mut self, id: ObjectId) -> Result<()> {
        self.pin_inputs(id)?;
        loop {
            let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
            let Some(backfill) = &mut region.backfill else { break };
            if !backfill.pinned || region.in_flight.len() >= IN_FLIGHT_MAX {
                return Ok(());
            }
            if !backfill.missing().is_empty() {
                return Ok(());
            }
            let start = backfill.epochs().map(|(_, e)| e).min().unwrap_or(self.cut);
            let next = backfill.next()?;
            let rows = backfill.meta().relations.iter().map(|r| r.2).chain(backfill.meta().sources.iter().map(|s| s.3)).sum();
            if next.is_none() && backfill.started {
                if !region.in_flight.is_empty() {
                    return Ok(());
                }
                region.backfill = None;
                region.submitted = start;
                region.frontier = region.frontier.max(start);
                tracing::info!(job = %region.name, epoch = start, "backfill complete, following the change log");
                continue;
            }
            backfill.started = true;
            let meta = backfill.meta();
            let checkpoint = region.checkpoint_target.is_some();
            fail::fail_point!("backfill::step");
            let inputs = next.into_iter().collect();
            self.submit(id, start, inputs, checkpoint, Some((meta, rows)))?;
        }
        self.advance(id)
    }

    /// Chooses each input's pin when all inputs are readable, and finds the pinned rows again after a restart.
    fn pin_inputs(&mut self, id: ObjectId) -> Result<()> {
        let Some(region) = self.regions.get(&id) else { return Ok(()) };
        let Some(backfill) = &region.backfill else { return Ok(()) };
        let mut found = Vec::new();
        if backfill.pinned {
            for (input, epoch) in backfill.missing() {
                let Some(upstream) = self.regions.get(&input) else { return Err(RuntimeError::NoObject(input)) };
                if let Some(relation) = upstream.relation.as_ref().filter(|_| upstream.frontier >= epoch) {
                    found.push((input, relation.snapshot(epoch)?));
                }
            }
        } else {
            let waiting = region.inputs.iter().filter_map(|i| self.regions.get(i)).any(|r| !r.visible());
            if waiting {
                return Ok(());
            }
        }
        if !backfill.pinned {
            let mut pins = Vec::new();
            for input in &region.inputs {
                pins.push((*input, self.pin(*input)?));
            }
            let Some(region) = self.regions.get_mut(&id) else { return Ok(()) };
            let backfill = Backfill { pins, pinned: true, started: false, rows_done: 0 };
            region.starts = backfill.epochs().collect();
            self.stops.extend(region.starts.values().copied());
            let start = backfill.epochs().map(|(_, e)| e).min().unwrap_or(self.cut);
            region.submitted = start;
            region.frontier = start;
            if let Some(relation) = &region.relation {
                relation.restart_at(start);
            }
            region.backfill = Some(backfill);
            return Ok(());
        }
        let Some(backfill) = self.regions.get_mut(&id).and_then(|r| r.backfill.as_mut()) else { return Ok(()) };
        for (input, rows) in found {
            for (pin_id, pin) in &mut backfill.pins {
                if let Pin::Relation { snapshot, .. } = pin {
                    if *pin_id == input {
                        *snapshot = Some(rows.clone());
                    }
                }
            }
        }
        Ok(())
    }

    fn pin(&self, input: ObjectId) -> Result<Pin> {
        if let Some(source) = self.sources.get(&input) {
            let starts = source.driver.start();
            let ranges = starts.iter().zip(&source.offsets).enumerate();
            let ranges = ranges.map(|(i, (from, to))| SplitRange { split: i as u32, from: *from, to: *to }).collect();
            return Ok(Pin::Source { epoch: self.cut, ranges, done: 0 });
        }
        let upstream = self.regions.get(&input).ok_or(RuntimeError::NoObject(input))?;
        let relation = upstream.relation.as_ref().ok_or(RuntimeError::NoObject(input))?;
        let epoch = upstream.completed_epoch.unwrap_or(0).max(relation.base_epoch());
        let epoch = relation.boundary(epoch);
        Ok(Pin::Relation { epoch, snapshot: Some(relation.snapshot(epoch)?), done: 0 })
    }
}

/// Ranges of one split that follow each other become one.
fn join_ranges(ranges: impl Iterator<Item = SplitRange>) -> Vec<SplitRange> {
    let mut out: Vec<SplitRange> = Vec::new();
    for range in ranges {
        match out.iter_mut().find(|r| r.split == range.split && r.to == range.from) {
            Some(r) => r.to = range.to,
            None => out.push(range),
        }
    }
    out
}

/// The columns by which an object's rows are stored first: a table's primary key, a view's shortest derived key.
pub(super) fn storage_key(object: &CatalogObject) -> Vec<usize> {
    match &object.kind {
        ObjectKind::Table(t) => t.primary_key.clone(),
        _ => {
            let keys = object.stream_plan().map(|p| &p.root.props.keys);
            keys.and_then(|k| k.iter().min_by_key(|k| k.len()).cloned()).unwrap_or_default()
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
