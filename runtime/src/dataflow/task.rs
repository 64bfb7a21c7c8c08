//! One parallel instance of a fragment, through its incarnations.
//!
//! ```text
//!   Starting ──compile──▶ Restoring (helper thread) ──▶ Running ──▶ Done
//!      ▲                                                  │
//!      └────────────── panic or error: next incarnation ◀─┘
//! ```
//!
//! An incarnation begins with fresh operators filled from the last completed checkpoint and replays the steps since then, from the
//! region's step log and its senders' channels. It sends and reports all of it again; channels and step log drop what they
//! have. At replayed checkpoint steps it snapshots too, so that the next snapshot holds what changed since that one.

use std::any::Any;
use std::collections::VecDeque;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::exchange::ExchangeWriter;
use super::executor::{Job, Poll, Priority, SLICE};
use super::leaf::TaskPlace;
use super::log::{ColdState, Restart, RootReport, TaskReport};
use super::program::{Advance, Program, Sink};
use super::region::RegionShared;
use super::zhash::{changes, zset_hash};
use super::{StateReader, Step, verify};
use crate::memory::Share;
use crate::operators::cold::Evicted;
use crate::relation::Gather;
use crate::{Delta, Result, RuntimeError};

/// Failures at one step after which the region is given up.
const FAILURES_AT_STEP_MAX: u32 = 5;
/// Failures without a step that is new to the region, wherever they are.
const FAILURES_MAX: u32 = 50;
/// State of an operator that is restored whole, at most (and an eighth of the governor's share).
const WHOLE_BYTES_MAX: usize = 32 << 20;
/// Less is not worth an eviction, unless the task holds little.
const EXCESS_BYTES_MIN: usize = 64 << 10;
/// Rounds over the whole state that free nothing, after which there is nothing to evict until a checkpoint completes.
const FRUITLESS_ROUNDS: u32 = 2;
/// Within a long step, memory is reported and evicted every so many slices.
const SLICES_REPORTED: u32 = 8;
/// Pause before the third start at one step, doubled for each after.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// What the executor runs.
pub(crate) struct TaskJob {
    region: Arc<RegionShared>,
    slot: usize,
    state: State,
    failures: Failures,
}

#[derive(Default)]
struct Failures {
    step: u64,
    at_step: u32,
    in_row: u32,
}

enum State {
    /// To be compiled, not before this time.
    Starting(Option<Instant>),
    /// A helper thread fills the operators.
    Restoring(Arc<Mutex<Option<std::result::Result<Box<Instance>, String>>>>, u64),
    Running(Box<Instance>),
    Ended,
}

/// One incarnation at work.
pub(crate) struct Instance {
    incarnation: u32,
    program: Program,
    outlet: Outlet,
    next_seq: u64,
    open: Option<OpenStep>,
    /// Rows emitted by this incarnation.
    rows_out: u64,
    /// The checkpoint that the operators know of, as [`RegionShared::completed`].
    completed: u64,
    /// Steps after which this incarnation took snapshots that have not completed, after `n_completed` that have.
    frozen: VecDeque<u64>,
    n_completed: u32,
    /// Nothing more can be evicted until a checkpoint completes or a step ends: rounds without success.
    fruitless: u32,
    /// Figures for the memory governor are this old.
    slices_unreported: u32,
}

struct OpenStep {
    step: Arc<Step>,
    busy: Duration,
}

/// Where the fragment's root emits.
struct Outlet {
    edges: Vec<ExchangeWriter>,
    /// For the region's root fragment.
    root: Option<Root>,
    rows: u64,
}

struct Root {
    /// For `RootMode::Materialize`.
    gather: Option<Gather>,
    report: RootReport,
}

impl Outlet {
    fn gather(&mut self) -> Option<&mut Gather> {
        self.root.as_mut()?.gather.as_mut()
    }
}

impl Sink for Outlet {
    fn emit(&mut self, delta: Delta) -> Result<()> {
        self.rows += delta.num_rows() as u64;
        if let Some(root) = &mut self.root {
            root.report.rows += changes(&delta);
            root.report.checksum = root.report.checksum.wrapping_add(zset_hash(&delta)?);
            if let Some(gather) = &mut root.gather {
                gather.push(delta);
            }
            return Ok(());
        }
        if let [edge] = self.edges.as_mut_slice() {
            return edge.send(delta);
        }
        self.edges.iter_mut().try_for_each(|edge| edge.send(delta.clone()))
    }

    fn is_full(&self) -> bool {
        let gather = self.root.as_ref().and_then(|root| root.gather.as_ref());
        gather.is_some_and(Gather::is_full)
    }
}

/// Checks the clock at most once per piece of work.
struct Slice {
    start: Instant,
}

impl Slice {
    fn expired(&self) -> bool {
        self.start.elapsed() >= SLICE
    }
}

impl Instance {
    /// Compiles the task's fragment.
    pub(crate) fn compile(region: &RegionShared, slot: usize, next_seq: u64) -> Result<Box<Self>> {
        let place = region.slots[slot].place;
        let fragment = &region.spec.graph.fragments[place.fragment as usize];
        let program = Program::compile(&fragment.root, place, region, region.factory.as_ref())?;
        let edges = region.outgoing(place);
        let root = edges.is_empty().then(|| Root {
            gather: region.shelf.as_ref().map(Gather::new),
            report: RootReport::default(),
        });
        Ok(Box::new(Self {
            incarnation: region.slots[slot].incarnation.load(Ordering::Relaxed),
            program,
            outlet: Outlet { edges, root, rows: 0 },
            next_seq,
            open: None,
            rows_out: 0,
            completed: next_seq,
            frozen: VecDeque::new(),
            n_completed: 0,
            fruitless: 0,
            slices_unreported: 0,
        }))
    }

    /// Whether the task reads no exchange, so that only new steps make it work.
    pub(crate) fn starts_region(&self) -> bool {
        self.program.starts_region()
    }

    fn restore(
        &mut self,
        state: &dyn StateReader,
        cold: Option<&ColdState>,
        place: TaskPlace,
        region: &RegionShared,
    ) -> Result<()> {
        let whole = (region.spec.memory.share(Share::State) / 8).min(WHOLE_BYTES_MAX);
        self.program.restore(state, cold, place, whole)
    }

    /// Between steps: tells the operators of a checkpoint that has completed, if this task has passed its step.
    fn note_checkpoint(&mut self, region: &RegionShared) {
        let completed = region.completed.load(Ordering::Acquire);
        if completed <= self.completed || completed > self.next_seq {
            return;
        }
        let Some((seq, cold)) = region.log.lock().completed().filter(|c| c.0 < self.next_seq) else {
            return;
        };
        self.completed = seq + 1;
        while self.frozen.front().is_some_and(|&s| s <= seq) {
            self.frozen.pop_front();
            self.n_completed += 1;
        }
        self.program.snapshot_completed(self.n_completed, cold.as_ref());
        self.fruitless = 0;
    }

    /// Says how much state there is, and evicts some if all holders have too much. Answers whether there is more to evict.
    fn trim(&mut self, region: &RegionShared, slot: usize) -> bool {
        let slot = &region.slots[slot];
        let report = |program: &Program| {
            let (live, pinned) = (program.live_bytes(), program.pinned_bytes());
            slot.clean.set(live.saturating_sub(pinned));
            slot.dirty.set(pinned);
            slot.state_bytes.store(live as u64, Ordering::Relaxed);
            live
        };
        let live = report(&self.program);
        self.slices_unreported = 0;
        let excess = slot.clean.excess();
        if excess < EXCESS_BYTES_MIN.min(live / 32) || excess == 0 || self.fruitless >= FRUITLESS_ROUNDS {
            return false;
        }
        let evicted = self.program.evict(excess + live / 32);
        self.fruitless = match evicted {
            Evicted { bytes: 0, round } => self.fruitless + u32::from(round),
            _ => 0,
        };
        report(&self.program);
        self.fruitless < FRUITLESS_ROUNDS
    }

    /// Begins the next step, if it has been submitted; otherwise says what to wait for.
    fn begin(&mut self, region: &RegionShared, slot: usize) -> Result<Option<Poll>> {
        let Some(step) = region.log.lock().step(self.next_seq) else {
            return Ok(Some(Poll::Idle));
        };
        if self.program.starts_region()
            && let Some(until) = region.delay(slot, step.seq)
        {
            return Ok(Some(Poll::IdleUntil(until)));
        }
        hit_failpoint(region, None)?;
        self.program.begin(&step, self.incarnation);
        let verify = verify();
        for edge in &mut self.outlet.edges {
            edge.begin(self.incarnation, step.seq, verify);
        }
        if let Some(root) = &mut self.outlet.root {
            root.report = RootReport::default();
        }
        self.outlet.rows = 0;
        self.open = Some(OpenStep {
            step,
            busy: Duration::ZERO,
        });
        Ok(None)
    }

    /// Has what the root emitted written out by a helper, which wakes the task. Answers what to wait for if there is no room now.
    fn write_out(&mut self, region: &Arc<RegionShared>, slot: usize) -> Result<Option<Poll>> {
        let Some(gather) = self.outlet.gather() else {
            return Ok(None);
        };
        if !gather.settled()? {
            return Ok(Some(Self::await_writing(gather, region)));
        }
        let cell = Arc::clone(&region.cells[slot]);
        let job = gather.write_out(move || cell.wake());
        region.executor.run_blocking(Priority::Idle, job);
        Ok(None)
    }

    /// A helper is writing: what it does not finish in time is given to another one, which does not work for others' leavings.
    fn await_writing(gather: &mut Gather, region: &Arc<RegionShared>) -> Poll {
        match gather.overdue(Instant::now()) {
            Err(until) => Poll::IdleUntil(until),
            Ok(job) => {
                if let Some(job) = job {
                    region.executor.run_blocking(Priority::Low, job);
                }
                Poll::Idle
            }
        }
    }

    /// Sends the closes, freezes the state and reports. Answers whether the region goes on.
    fn finish(&mut self, region: &Arc<RegionShared>, slot: usize, started: Instant) -> Result<bool> {
        let place = region.slots[slot].place;
        hit_failpoint(region, Some(place))?;
        let Some(OpenStep { step, busy }) = self.open.take() else {
            return Err(RuntimeError::internal("a task finished a step that it had not begun"));
        };
        for edge in &mut self.outlet.edges {
            if let Err(mismatch) = edge.close(step.seq)? {
                region.fail(&mismatch.to_string());
                return Ok(false);
            }
        }
        let snapshot = if step.checkpoint {
            self.frozen.push_back(step.seq);
            let mut state = self.program.snapshot()?;
            state.count_in(&region.spec.memory);
            Some(state)
        } else {
            None
        };
        self.rows_out += self.outlet.rows;
        if let Some(root) = &mut self.outlet.root
            && let Some(gather) = &mut root.gather
        {
            (root.report.deltas, root.report.pieces) = gather.take();
        }
        self.next_seq = step.seq + 1;
        let status = &region.slots[slot];
        status.epoch.store(step.to, Ordering::Relaxed);
        status.rows_in.store(self.program.rows_in, Ordering::Relaxed);
        status.rows_out.store(self.rows_out, Ordering::Relaxed);
        status
            .state_bytes
            .store(self.program.live_bytes() as u64, Ordering::Relaxed);
        Ok(region.report(TaskReport {
            slot,
            seq: step.seq,
            root: self.outlet.root.as_mut().map(|root| std::mem::take(&mut root.report)),
            snapshot,
            errors: std::mem::take(&mut self.program.errors),
            busy_us: (busy + started.elapsed()).as_micros() as u64,
            next_timer_us: self.program.next_timer_us(),
        }))
    }
}

impl TaskJob {
    /// A task whose first incarnation is compiled already.
    pub(crate) fn new(region: &Arc<RegionShared>, slot: usize, instance: Box<Instance>) -> Self {
        let restart = region.log.lock().restart(slot);
        let mut job = Self {
            region: Arc::clone(region),
            slot,
            state: State::Ended,
            failures: Failures::default(),
        };
        job.state = job.restoring(instance, restart);
        job
    }

    fn place(&self) -> TaskPlace {
        self.region.slots[self.slot].place
    }

    /// Works until the slice is over or there is nothing to do.
    fn slice(&mut self) -> Result<Poll> {
        match &self.state {
            State::Starting(Some(at)) if Instant::now() < *at => return Ok(Poll::IdleUntil(*at)),
            State::Starting(_) => self.start()?,
            State::Restoring(..) | State::Running(_) => {}
            State::Ended => return Ok(Poll::Done),
        }
        if let State::Restoring(result, _) = &self.state {
            let Some(instance) = result.lock().take() else {
                return Ok(Poll::Idle);
            };
            self.state = State::Running(instance.map_err(RuntimeError::Internal)?);
        }
        let State::Running(instance) = &mut self.state else {
            return Ok(Poll::Yield);
        };
        let mut clock = Slice { start: Instant::now() };
        loop {
            if instance.open.is_none() {
                instance.note_checkpoint(&self.region);
                if instance.trim(&self.region, self.slot) {
                    return Ok(Poll::Yield);
                }
                instance.program.compact();
                if let Some(wait) = instance.begin(&self.region, self.slot)? {
                    return Ok(wait);
                }
            }
            match instance
                .program
                .advance(&mut instance.outlet, &mut || clock.expired())?
            {
                Advance::Closed => {
                    if let Some(gather) = instance.outlet.gather()
                        && !gather.settled()?
                    {
                        return Ok(Instance::await_writing(gather, &self.region));
                    }
                    let seq = instance.next_seq;
                    if !instance.finish(&self.region, self.slot, clock.start)? {
                        self.state = State::Ended;
                        return Ok(Poll::Done);
                    }
                    if seq >= self.failures.step {
                        self.failures = Failures {
                            step: seq + 1,
                            ..Failures::default()
                        };
                    }
                    if clock.expired() {
                        return Ok(Poll::Yield);
                    }
                    clock = Slice { start: Instant::now() };
                }
                stop => {
                    if let Some(open) = &mut instance.open {
                        open.busy += clock.start.elapsed();
                    }
                    instance.slices_unreported += 1;
                    if instance.slices_unreported >= SLICES_REPORTED {
                        instance.trim(&self.region, self.slot);
                    }
                    return Ok(match stop {
                        Advance::Full => instance.write_out(&self.region, self.slot)?.unwrap_or(Poll::Yield),
                        Advance::More => Poll::Yield,
                        _ => Poll::Idle,
                    });
                }
            }
        }
    }

    fn start(&mut self) -> Result<()> {
        let restart = self.region.log.lock().restart(self.slot);
        let instance = Instance::compile(&self.region, self.slot, restart.seq)?;
        self.state = self.restoring(instance, restart);
        Ok(())
    }

    /// Fills the operators on a helper thread, if there is state to read.
    fn restoring(&self, mut instance: Box<Instance>, restart: Restart) -> State {
        let Restart { state, cold, .. } = restart;
        let Some(state) = state else {
            return State::Running(instance);
        };
        let seq = instance.next_seq;
        let result = Arc::new(Mutex::new(None));
        let (place, filled) = (self.place(), Arc::clone(&result));
        let cell = Arc::clone(&self.region.cells[self.slot]);
        let region = Arc::clone(&self.region);
        self.region.executor.run_blocking(
            Priority::Low,
            Box::new(move || {
                let restored = catch_unwind(AssertUnwindSafe(|| {
                    instance.restore(state.as_ref(), cold.as_ref(), place, &region)
                }));
                *filled.lock() = Some(match restored {
                    Ok(Ok(())) => Ok(instance),
                    Ok(Err(error)) => Err(format!("its state could not be restored: {}", chain(&error))),
                    Err(panic) => Err(format!("its restore panicked: {}", panic_text(panic.as_ref()))),
                });
                cell.wake();
            }),
        );
        State::Restoring(result, seq)
    }

    /// Ends this incarnation and prepares the next, or gives the region up.
    fn failed(&mut self, reason: &str) -> Poll {
        let seq = match &self.state {
            State::Running(instance) => instance.next_seq,
            State::Restoring(_, seq) => *seq,
            State::Starting(_) | State::Ended => self.failures.step,
        };
        self.state = State::Starting(None);
        if self.region.is_stopped() {
            return Poll::Done;
        }
        let failures = &mut self.failures;
        failures.at_step = if failures.in_row > 0 && failures.step == seq {
            failures.at_step + 1
        } else {
            1
        };
        failures.in_row += 1;
        failures.step = failures.step.max(seq);
        let place = self.region.slots[self.slot].place;
        if failures.at_step > FAILURES_AT_STEP_MAX || failures.in_row > FAILURES_MAX {
            let count = failures.at_step;
            self.region.fail(&format!(
                "task {}.{} failed {count} times at step {seq}: {reason}",
                place.fragment, place.task
            ));
            return Poll::Done;
        }
        if failures.at_step > 2 {
            let pause = RETRY_PAUSE * (1 << (failures.at_step - 3));
            self.state = State::Starting(Some(Instant::now() + pause));
        }
        self.region.restarted(self.slot, seq, reason);
        Poll::Yield
    }
}

impl Job for TaskJob {
    fn poll(&mut self) -> Poll {
        if self.region.is_stopped() {
            return Poll::Done;
        }
        match catch_unwind(AssertUnwindSafe(|| self.slice())) {
            Ok(Ok(poll)) => poll,
            // What a user must mend would be the same at every try.
            Ok(Err(RuntimeError::User { message, .. })) => {
                self.region.fail(&message);
                Poll::Done
            }
            Ok(Err(error)) => self.failed(&chain(&error)),
            Err(panic) => self.failed(&format!("panic: {}", panic_text(panic.as_ref()))),
        }
    }
}

/// Failpoints `task::step::REGION` at a step's start, and `task::close::REGION::FRAGMENT.TASK` before its end is made known.
fn hit_failpoint(region: &RegionShared, closing: Option<TaskPlace>) -> Result<()> {
    if !fail::has_failpoints() {
        return Ok(());
    }
    let _name = match closing {
        None => format!("task::step::{}", region.spec.name),
        Some(place) => format!("task::close::{}::{}.{}", region.spec.name, place.fragment, place.task),
    };
    fail::fail_point!(_name.as_str(), |_| Err(RuntimeError::internal("failpoint")));
    Ok(())
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}

/// Compares two checksums of a root's step in words.
pub(crate) fn root_mismatch(place: TaskPlace, seq: u64, recorded: u64, replayed: u64) -> String {
    format!(
        "replay of step {seq} by root task {}.{} differs from what was reported: checksum {replayed:016x}, recorded {recorded:016x}",
        place.fragment, place.task
    )
}
