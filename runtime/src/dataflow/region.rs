//! One streaming job's tasks and channels, as the coordinator handles them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use levee_planner::plan::{FragmentGraph, ObjectId, StreamNode, StreamOp};
use parking_lot::Mutex;

use super::channel::{Channel, ChannelName};
use super::exchange::ExchangeWriter;
use super::executor::{Executor, Group, Priority, Shared, TaskCell};
use super::leaf::{Inputs, TaskPlace};
use super::log::{Reported, StepLog, StepSum, TaskReport};
use super::program::OperatorFactory;
use super::spill::SpillDir;
use super::task::{Instance, TaskJob, chain, root_mismatch};
use super::{RegionEvents, RegionSpec, RootMode, StateReader, Step, StepResult, TaskInfo, testing};
use crate::memory::{Holder, Share};
use crate::relation::{RowOrder, Shelf};
use crate::sources::SourceDriver;
use crate::{Result, RuntimeError};

/// Tells the spill directories of one process apart: an old life of a region may still be ending when its next one starts.
static NEXT_LIFE: AtomicUsize = AtomicUsize::new(0);

/// Larger steps are consolidated on a helper thread: sorting them would hold a dataflow thread for tens of milliseconds and more.
const FINISH_ROWS_MAX: usize = 100_000;

/// A running region. Dropping it stops it.
pub struct Region {
    shared: Arc<RegionShared>,
}

/// What a region's tasks share.
pub(crate) struct RegionShared {
    pub(crate) spec: RegionSpec,
    pub(crate) slots: Vec<Slot>,
    pub(crate) cells: Vec<Arc<TaskCell>>,
    pub(crate) log: Mutex<StepLog>,
    pub(crate) factory: Arc<OperatorFactory>,
    pub(crate) executor: Arc<Shared>,
    events: Arc<dyn RegionEvents>,
    /// By edge, sender and receiver.
    channels: Vec<Vec<Vec<Arc<Channel>>>>,
    spill: Arc<SpillDir>,
    /// For `RootMode::Materialize`.
    pub(crate) shelf: Option<Arc<Shelf>>,
    stopped: AtomicBool,
    /// One more than the last step that a completed checkpoint covers; 0: none.
    pub(crate) completed: AtomicU64,
}

/// A task's place and figures.
pub(crate) struct Slot {
    pub(crate) place: TaskPlace,
    pub(crate) incarnation: AtomicU32,
    pub(crate) epoch: AtomicU64,
    pub(crate) rows_in: AtomicU64,
    pub(crate) rows_out: AtomicU64,
    pub(crate) state_bytes: AtomicU64,
    /// State that could be evicted, as the memory governor knows it.
    pub(crate) clean: Holder,
    /// State that no completed checkpoint holds.
    pub(crate) dirty: Holder,
    /// Reads no exchange: woken by new steps.
    starts_region: AtomicBool,
    /// Step that a debug delay holds back, and until when.
    delay: Mutex<Option<(u64, Instant)>>,
}

impl Region {
    /// Starts a region's tasks; with `state` they restore from it, without they begin empty.
    ///
    /// # Errors
    /// The plan cannot be run (an operator cannot be made, a source has no driver), or the spill directory not be emptied.
    pub fn start(
        executor: &Arc<Executor>,
        spec: RegionSpec,
        state: Option<Arc<dyn StateReader>>,
        events: Arc<dyn RegionEvents>,
    ) -> Result<Self> {
        Self::start_with(executor, spec, state, events, Arc::new(crate::operators::instantiate))
    }

    /// [`Self::start`] with operators of the caller's making.
    pub(crate) fn start_with(
        executor: &Arc<Executor>,
        spec: RegionSpec,
        state: Option<Arc<dyn StateReader>>,
        events: Arc<dyn RegionEvents>,
        factory: Arc<OperatorFactory>,
    ) -> Result<Self> {
        check(&spec.graph)?;
        let executor = executor.shared();
        let slots = slots(&spec);
        let group = Arc::new(Group::default());
        let cells: Vec<_> = slots.iter().map(|_| TaskCell::new(executor, &group)).collect();
        let spill = open_spill(&spec)?;
        let shelf = shelf(&spec, &spill)?;
        let shared = Arc::new(RegionShared {
            channels: channels(&spec, &slots, &cells, &spill),
            log: Mutex::new(StepLog::new(slots.len(), state)),
            executor: Arc::clone(executor),
            stopped: AtomicBool::new(false),
            completed: AtomicU64::new(0),
            spec,
            slots,
            cells,
            factory,
            events,
            spill,
            shelf,
        });
        let instances = (0..shared.slots.len())
            .map(|slot| Instance::compile(&shared, slot, 0))
            .collect::<Result<Vec<_>>>()?;
        for (slot, instance) in instances.into_iter().enumerate() {
            let starts = instance.starts_region();
            shared.slots[slot].starts_region.store(starts, Ordering::Relaxed);
            shared.cells[slot].set_job(Box::new(TaskJob::new(&shared, slot, instance)));
        }
        shared.cells.iter().for_each(TaskCell::wake);
        Ok(Self { shared })
    }

    /// Hands in the next step; never blocks.
    pub fn submit(&self, step: Step) {
        let submitted = self.shared.log.lock().submit(step);
        if let Err(error) = submitted {
            self.shared.fail(&error.to_string());
            return;
        }
        for (slot, cell) in self.shared.slots.iter().zip(&self.shared.cells) {
            if slot.starts_region.load(Ordering::Relaxed) {
                cell.wake();
            }
        }
    }

    /// Steps submitted and not done.
    pub fn in_flight(&self) -> usize {
        self.shared.log.lock().in_flight()
    }

    /// The state after step `seq` is durable and readable through `state`: tasks that start from now on restore from it and
    /// replay from `seq + 1`, and the steps and messages up to `seq` are forgotten.
    ///
    /// Tasks are told when they have passed that step: what they froze then can be evicted.
    pub fn checkpoint_completed(&self, seq: u64, state: Arc<dyn StateReader>) {
        let truncated = self.shared.log.lock().checkpoint_completed(seq, state);
        let news = self.shared.completed.fetch_max(seq + 1, Ordering::Release) <= seq;
        // Idle tasks have to hear of it, too, where memory is short: what they hold is the coldest.
        if news || self.shared.spec.memory.over(Share::State) {
            self.shared.cells.iter().for_each(TaskCell::wake);
        }
        if let Some(seq) = truncated {
            for channel in self.shared.channels.iter().flatten().flatten() {
                channel.truncate(seq);
            }
        }
    }

    /// The region's tasks.
    pub fn tasks(&self) -> Vec<TaskInfo> {
        (0..self.shared.slots.len())
            .map(|slot| self.shared.info(slot))
            .collect()
    }

    /// State held by all tasks.
    pub fn state_bytes(&self) -> u64 {
        self.shared
            .slots
            .iter()
            .map(|s| s.state_bytes.load(Ordering::Relaxed))
            .sum()
    }

    /// Ends the tasks without waiting for them. An event being told while this is called may still arrive; none follows.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// All channels of an edge.
    #[cfg(test)]
    pub(crate) fn edge_channels(&self, edge: usize) -> Vec<Arc<Channel>> {
        self.shared.channels[edge].iter().flatten().map(Arc::clone).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.shared.spec.id)
            .field("name", &self.shared.spec.name)
            .finish_non_exhaustive()
    }
}

impl Drop for RegionShared {
    fn drop(&mut self) {
        self.spill.remove();
    }
}

impl RegionShared {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self) {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            self.cells.iter().for_each(TaskCell::wake);
        }
    }

    /// Gives the region up, once.
    pub(crate) fn fail(&self, reason: &str) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(job = %self.spec.name, reason, "region failed");
        self.cells.iter().for_each(TaskCell::wake);
        self.events.region_failed(self.spec.id, reason);
    }

    /// A task failed at a step; its next incarnation begins.
    pub(crate) fn restarted(&self, slot: usize, seq: u64, reason: &str) {
        let place = self.slots[slot].place;
        let incarnation = self.slots[slot].incarnation.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(
            job = %self.spec.name,
            fragment = place.fragment,
            task = place.task,
            step = seq,
            incarnation,
            reason,
            "task failed and starts again"
        );
        self.events.task_restarted(self.spec.id, &self.info(slot), reason);
    }

    /// Takes a task's report and tells of steps that are complete with it. Answers whether the region goes on.
    pub(crate) fn report(self: &Arc<Self>, report: TaskReport) -> bool {
        let (slot, seq) = (report.slot, report.seq);
        let reported = self.log.lock().report(report);
        match reported {
            Ok(Reported::Taken | Reported::Repeated) => true,
            Ok(Reported::Complete(rows)) if rows <= FINISH_ROWS_MAX => self.finish_steps(),
            Ok(Reported::Complete(_)) => {
                let region = Arc::clone(self);
                self.executor.run_blocking(
                    Priority::Low,
                    Box::new(move || {
                        region.finish_steps();
                    }),
                );
                true
            }
            Err((recorded, replayed)) => {
                self.fail(&root_mismatch(self.slots[slot].place, seq, recorded, replayed));
                false
            }
        }
    }

    fn finish_steps(&self) -> bool {
        loop {
            let next = self.log.lock().next_complete();
            let Some((step, sum)) = next else {
                return true;
            };
            // Not the task's failure: it has reported, and would not come here again.
            let told = catch_unwind(AssertUnwindSafe(|| self.finish_step(&step, sum)));
            let reason = match told {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => chain(&error),
                Err(_) => "panic".to_owned(),
            };
            self.fail(&format!("step {} could not be finished: {reason}", step.seq));
            return false;
        }
    }

    fn finish_step(&self, step: &Step, sum: StepSum) -> Result<()> {
        let root = sum.root;
        let output = match &self.shelf {
            Some(shelf) if !root.deltas.is_empty() || !root.pieces.is_empty() => {
                shelf.finish(&root.deltas, root.pieces, &|| self.is_stopped())?
            }
            _ => None,
        };
        if !self.is_stopped() {
            self.events.step_done(
                self.spec.id,
                StepResult {
                    seq: step.seq,
                    from: step.from,
                    to: step.to,
                    output,
                    rows_out: root.rows,
                    checksum: root.checksum,
                    snapshot: sum.snapshot,
                    errors: sum.errors,
                    busy_us: sum.busy_us,
                    next_timer_us: sum.next_timer_us,
                },
            );
        }
        Ok(())
    }

    /// Writers for the edges that leave a task's fragment.
    pub(crate) fn outgoing(&self, place: TaskPlace) -> Vec<ExchangeWriter> {
        let graph = &self.spec.graph;
        graph
            .edges
            .iter()
            .enumerate()
            .filter(|(_, edge)| edge.from.0 == place.fragment)
            .map(|(i, edge)| ExchangeWriter::new(&edge.kind, &edge.schema, place.task, &self.channels[i][place.task]))
            .collect()
    }

    /// Until when a debug delay holds a step of the task back: once per step.
    pub(crate) fn delay(&self, slot: usize, seq: u64) -> Option<Instant> {
        let ms = testing::delay_ms(&self.spec.name)?;
        let mut delay = self.slots[slot].delay.lock();
        let now = Instant::now();
        match *delay {
            Some((held, until)) if held == seq => (now < until).then_some(until),
            _ => {
                let until = now + Duration::from_millis(ms);
                *delay = Some((seq, until));
                Some(until)
            }
        }
    }

    fn info(&self, slot: usize) -> TaskInfo {
        let (late_slices, longest_slice_us) = self.cells[slot].slices();
        let slot = &self.slots[slot];
        TaskInfo {
            fragment: slot.place.fragment,
            task: slot.place.task as u32,
            incarnation: slot.incarnation.load(Ordering::Relaxed),
            epoch: slot.epoch.load(Ordering::Relaxed),
            rows_in: slot.rows_in.load(Ordering::Relaxed),
            rows_out: slot.rows_out.load(Ordering::Relaxed),
            state_bytes: slot.state_bytes.load(Ordering::Relaxed),
            late_slices,
            longest_slice_us,
        }
    }
}

impl Inputs for RegionShared {
    fn waker(&self, place: TaskPlace) -> Waker {
        let slot = self
            .slots
            .iter()
            .position(|s| s.place.fragment == place.fragment && s.place.task == place.task);
        slot.map_or_else(
            || Waker::noop().clone(),
            |slot| Waker::from(Arc::clone(&self.cells[slot])),
        )
    }

    fn source(&self, id: ObjectId) -> Option<Arc<dyn SourceDriver>> {
        self.spec.sources.get(&id).map(Arc::clone)
    }

    fn channels(&self, edge: u32, task: usize) -> Result<Vec<Arc<Channel>>> {
        let senders = self
            .channels
            .get(edge as usize)
            .ok_or_else(|| RuntimeError::internal(format!("the plan receives edge {edge}, which it does not have")))?;
        Ok(senders.iter().map(|receivers| Arc::clone(&receivers[task])).collect())
    }
}

/// Fragments and edges are numbered by their place, inputs before consumers, and all lead to the last fragment.
fn check(graph: &FragmentGraph) -> Result<()> {
    let n = graph.fragments.len();
    let fragments = graph.fragments.iter().enumerate().all(|(i, f)| f.id.0 as usize == i);
    let edges = graph
        .edges
        .iter()
        .enumerate()
        .all(|(i, e)| e.id.0 as usize == i && e.from.0 < e.to.0 && (e.to.0 as usize) < n);
    let one_root = (0..n).all(|f| (f + 1 == n) != graph.edges.iter().any(|e| e.from.0 as usize == f));
    if n > 0 && fragments && edges && one_root {
        return Ok(());
    }
    Err(RuntimeError::internal(
        "the plan's fragments and edges do not lead to one root",
    ))
}

/// Where the root puts what a step may not keep in memory.
fn shelf(spec: &RegionSpec, spill: &Arc<SpillDir>) -> Result<Option<Arc<Shelf>>> {
    let (RootMode::Materialize { order }, Some(fragment)) = (&spec.root, spec.graph.fragments.last()) else {
        return Ok(None);
    };
    let order = RowOrder::new(Arc::clone(&fragment.root.schema), order.clone())?;
    Ok(Some(Shelf::new(Arc::new(order), spill, &spec.memory)))
}

fn slots(spec: &RegionSpec) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (fragment, plan) in spec.graph.fragments.iter().enumerate() {
        let n_tasks = if plan.single || joins_without_keys(&plan.root) {
            1
        } else {
            spec.parallelism.max(1)
        };
        slots.extend((0..n_tasks).map(|task| Slot {
            place: TaskPlace {
                fragment: fragment as u32,
                task,
                n_tasks,
            },
            incarnation: AtomicU32::new(1),
            epoch: AtomicU64::new(0),
            rows_in: AtomicU64::new(0),
            rows_out: AtomicU64::new(0),
            state_bytes: AtomicU64::new(0),
            clean: spec.memory.holder(Share::State),
            dirty: spec.memory.holder(Share::Dirty),
            starts_region: AtomicBool::new(false),
            delay: Mutex::new(None),
        }));
    }
    slots
}

/// A join without keys keeps all rows under one vnode, whatever task holds them, so its state could not be given back to
/// several tasks: its fragment runs as one.
fn joins_without_keys(root: &StreamNode) -> bool {
    let mut found = false;
    root.visit(&mut |node| found |= matches!(&node.op, StreamOp::Join { left_keys, .. } if left_keys.is_empty()));
    found
}

/// The channels of every edge, each with its receiver's cell to wake.
fn channels(
    spec: &RegionSpec,
    slots: &[Slot],
    cells: &[Arc<TaskCell>],
    spill: &Arc<SpillDir>,
) -> Vec<Vec<Vec<Arc<Channel>>>> {
    let tasks = |fragment: u32| -> Vec<usize> {
        (0..slots.len())
            .filter(|&s| slots[s].place.fragment == fragment)
            .collect()
    };
    let mut edges = Vec::with_capacity(spec.graph.edges.len());
    for (i, edge) in spec.graph.edges.iter().enumerate() {
        let (senders, receivers) = (tasks(edge.from.0), tasks(edge.to.0));
        let channel = |sender: u32, receiver: usize| {
            let name = ChannelName {
                edge: i as u32,
                sender,
                receiver: receiver as u32,
            };
            let channel = Arc::new(Channel::new(name, spec.channel_bytes, &spec.memory, spill));
            channel.set_receiver(&cells[receivers[receiver]]);
            channel
        };
        edges.push(
            (0..senders.len() as u32)
                .map(|sender| (0..receivers.len()).map(|receiver| channel(sender, receiver)).collect())
                .collect(),
        );
    }
    edges
}

/// Makes this life's spill directory, and removes those of the region's lives in other processes.
fn open_spill(spec: &RegionSpec) -> Result<Arc<SpillDir>> {
    let prefix = format!("region-{}-", spec.id);
    let mine = format!("{prefix}{}-", std::process::id());
    if let Ok(entries) = std::fs::read_dir(&spec.spill_dir) {
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && !name.starts_with(&mine) {
                SpillDir::open(entry.path())?;
            }
        }
    }
    let life = NEXT_LIFE.fetch_add(1, Ordering::Relaxed);
    SpillDir::open(spec.spill_dir.join(format!("{mine}{life}")))
}
