//! The thread that brings one sink's changes to its target, in step order.
//!
//! ```text
//!   submit(step) ─▶ queue (≤ the region's steps under way) ─▶ leave out what the target has ─▶ gather? ─▶ journal ─▶ write ─▶ done
//!                                                                                                  ▲          │ failed
//!                                                                                                  └ back off ┘ open, read marker
//! ```
//!
//! A step is answered when its changes are at the target; with [`Delivering::gather_bytes`] when they are gathered, and then a step
//! that froze its region's state, whose checkpoint claims everything before it, only when all that was gathered is at the target.
//!
//! The thread never gives a target up for being out: it tries again with growing, jittered pauses. It stops for good if the target
//! belongs to someone else or does not stand where the journal says.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use levee_planner::catalog::{SinkDef, SinkMode};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

use super::{Changes, Delivering, Journal, Marker, Target, TargetError};
use crate::dataflow::{StepResult, chain as with_causes};
use crate::relation::StepOutput;
use crate::{Result, RuntimeError};

/// First pause after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between tries.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The last try succeeded, or there was none.
    Running,
    /// The last try failed; another one follows.
    Retrying,
    /// The target has been out for longer than the sink's `pause_after`; it is asked from time to time.
    Paused,
    /// The delivery has ended; the region has failed with the same reason.
    Failed,
}

impl Phase {
    /// As `levee_catalog.sinks` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

/// What a delivery shows of itself.
#[derive(Debug, Clone)]
pub struct Status {
    /// Phase.
    pub phase: Phase,
    /// Why the last try failed.
    pub error: Option<String>,
    /// Failed tries in a row.
    pub tries: u64,
    /// Where the target stands, as far as known in this life.
    pub delivered: Option<Marker>,
    /// Bytes gathered and not yet at the target.
    pub gathered_bytes: usize,
}

/// What becomes of a step that was submitted.
#[derive(Debug)]
pub enum Outcome {
    /// It counts as done.
    Done(Box<StepResult>),
    /// The sink cannot go on.
    Failed(String),
}

/// Tells a target that it should return.
#[derive(Debug, Clone)]
pub struct StopWatch(watch::Receiver<bool>);

impl StopWatch {
    /// Never tells, for looking at a target before its sink exists.
    pub fn never() -> Self {
        Self(watch::Sender::new(false).subscribe())
    }

    /// It was told.
    pub fn stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs `work` until it is done, the time is up, or the sink is stopped.
    ///
    /// # Errors
    /// The work's own; [`TargetError::Retry`] after `timeout`; [`TargetError::Stopped`].
    pub async fn guard<T>(
        &self,
        timeout: Duration,
        what: &str,
        work: impl Future<Output = Result<T, TargetError>>,
    ) -> Result<T, TargetError> {
        let mut stop = self.0.clone();
        let stopped = async move {
            // Whoever could tell may be gone without having told: then nobody does.
            if stop.wait_for(|s| *s).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => Err(TargetError::Stopped),
            done = tokio::time::timeout(timeout, work) => done.unwrap_or_else(|_| {
                Err(TargetError::Retry(format!("{what}: no answer within {} s", timeout.as_secs_f64())))
            }),
        }
    }
}

#[derive(Debug)]
struct Shared {
    status: Mutex<Status>,
    stop: watch::Sender<bool>,
    /// Raised to end a pause early.
    hurry: Mutex<bool>,
    hurried: Condvar,
}

impl Shared {
    fn wake(&self) {
        *self.hurry.lock() = true;
        self.hurried.notify_all();
    }

    fn stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

enum Job {
    Step(Marker, Box<StepResult>),
    Release,
    Stop,
}

/// A sink's delivery. Dropping it stops the thread without waiting.
#[derive(Debug)]
pub struct Delivery {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
    thread: Option<std::thread::JoinHandle<()>>,
    durable: bool,
}

/// What a delivery is made of.
pub struct DeliverySpec {
    /// Name, for logs.
    pub name: String,
    /// Definition.
    pub def: SinkDef,
    /// Where steps end.
    pub journal: Journal,
    /// The region's state holds everything up to here; `None`: it begins anew.
    pub restored: Option<Marker>,
    /// Most bytes to gather, whatever the definition says.
    pub gather_bytes_max: usize,
    /// Most bytes that one step may change: they are in memory while they are sent.
    pub step_bytes_max: u64,
}

impl Delivery {
    /// Starts a sink's thread; `outcome` is called on it.
    ///
    /// # Errors
    /// The target cannot be made of the definition's options, or the thread not be started.
    pub fn start(spec: DeliverySpec, outcome: Box<dyn Fn(Outcome) + Send>) -> Result<Self> {
        let stop = watch::Sender::new(false);
        let target = super::target(&spec.def, StopWatch(stop.subscribe()))?;
        Self::start_with(spec, target, stop, outcome)
    }

    /// [`Delivery::start`] with a target of the caller's making.
    pub(crate) fn start_with(
        spec: DeliverySpec,
        target: Box<dyn Target>,
        stop: watch::Sender<bool>,
        outcome: Box<dyn Fn(Outcome) + Send>,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            status: Mutex::new(Status {
                phase: Phase::Running,
                error: None,
                tries: 0,
                delivered: None,
                gathered_bytes: 0,
            }),
            stop,
            hurry: Mutex::new(false),
            hurried: Condvar::new(),
        });
        let how = Delivering::of(&spec.def);
        let durable = how.durable;
        let worker = Worker {
            shared: Arc::clone(&shared),
            name: spec.name,
            key: spec.def.key,
            mode: spec.def.mode,
            seed: spec.def.incarnation,
            how: Delivering {
                gather_bytes: how.gather_bytes.map(|b| b.min(spec.gather_bytes_max)),
                ..how
            },
            target,
            journal: spec.journal,
            outcome,
            opened: false,
            known: false,
            delivered: None,
            found: None,
            anew: spec.restored.is_none(),
            seen: spec.restored,
            gathered: Vec::new(),
            gathered_to: None,
            gathered_bytes: 0,
            step_bytes_max: spec.step_bytes_max,
        };
        let (jobs, queue) = channel();
        let thread = spawn(&worker.name.clone(), move || worker.run(&queue))?;
        Ok(Self {
            shared,
            jobs,
            thread: Some(thread),
            durable,
        })
    }

    /// Hands in the region's next finished step, which brings the target to `to`.
    pub fn submit(&self, to: Marker, result: Box<StepResult>) {
        if self.jobs.send(Job::Step(to, result)).is_err() {
            tracing::debug!("a step was finished after its sink had ended");
        }
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        self.shared.status.lock().clone()
    }

    /// The target does not take changes at present, so nobody should wait for this sink.
    pub fn stalled(&self) -> bool {
        self.shared.status.lock().phase != Phase::Running
    }

    /// The target keeps a marker.
    pub fn durable(&self) -> bool {
        self.durable
    }

    /// Tries again at once.
    pub fn resume(&self) {
        self.shared.wake();
    }

    /// The sink was dropped: its marker and journal go when what is being written has ended.
    pub fn release(self) {
        if self.jobs.send(Job::Release).is_err() {
            tracing::debug!("a sink that had ended was dropped");
        }
    }

    /// Ends the thread without waiting for it.
    pub fn end(&self) {
        self.tell_stop();
    }

    /// Ends the thread and waits for it: nothing reaches the target afterwards.
    pub fn stop(mut self) {
        self.tell_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a sink's thread had panicked");
        }
    }

    fn tell_stop(&self) {
        self.shared.stop.send_replace(true);
        self.shared.wake();
        if self.jobs.send(Job::Stop).is_err() {
            tracing::trace!("a sink that had ended was stopped");
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.tell_stop();
    }
}

#[allow(clippy::disallowed_methods, reason = "a sink's own thread, stopped with its region")]
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("sink-{name}"))
        .spawn(body)
        .map_err(|e| RuntimeError::internal(format!("cannot start the thread of sink {name}: {e}")))
}

/// State of the thread.
struct Worker {
    shared: Arc<Shared>,
    name: String,
    key: Vec<usize>,
    mode: SinkMode,
    seed: u64,
    how: Delivering,
    target: Box<dyn Target>,
    journal: Journal,
    outcome: Box<dyn Fn(Outcome) + Send>,
    /// The target is connected.
    opened: bool,
    /// The marker has been read in this life.
    known: bool,
    /// Where the target stands; valid when known.
    delivered: Option<Marker>,
    /// Where the target stood when this life began.
    found: Option<Marker>,
    /// The region began without a checkpoint.
    anew: bool,
    /// The end of the region's last step.
    seen: Option<Marker>,
    gathered: Vec<Changes>,
    gathered_to: Option<Marker>,
    gathered_bytes: usize,
    step_bytes_max: u64,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            match job {
                Job::Stop => return,
                Job::Step(..) if self.shared.stopped() => {}
                Job::Step(to, result) => match self.take_caught(to, result) {
                    Ok(result) => (self.outcome)(Outcome::Done(result)),
                    Err(TargetError::Stopped) => {}
                    Err(error) => {
                        self.note(Phase::Failed, Some(error.to_string()));
                        (self.outcome)(Outcome::Failed(error.to_string()));
                        return;
                    }
                },
                Job::Release => {
                    if let Err(error) = self.target.release() {
                        tracing::debug!(job = %self.name, %error, "the marker of a dropped sink stays at its target");
                    }
                    self.journal.remove();
                    return;
                }
            }
        }
    }

    /// [`Worker::take`]; a panic ends this sink and nothing else.
    fn take_caught(&mut self, to: Marker, result: Box<StepResult>) -> Result<Box<StepResult>, TargetError> {
        catch_unwind(AssertUnwindSafe(|| self.take(to, result)))
            .unwrap_or_else(|_| Err(TargetError::Lost("panic while delivering".to_owned())))
    }

    /// Brings one step's changes to the target, or gathers them.
    fn take(&mut self, to: Marker, mut result: Box<StepResult>) -> Result<Box<StepResult>, TargetError> {
        if let Some(output) = result.output.take().filter(|d| d.num_rows() > 0) {
            if !self.known {
                self.reopen()?;
            }
            if !self.has(result.from, to)? {
                let changes = self.changes(output).map_err(|e| TargetError::Lost(with_causes(&e)))?;
                self.gathered_bytes += changes.bytes();
                self.gathered.push(changes);
                self.gathered_to = Some(to);
            }
        }
        self.seen = self.seen.max(Some(to));
        self.shared.status.lock().gathered_bytes = self.gathered_bytes;
        let full = self.how.gather_bytes.is_none_or(|max| self.gathered_bytes >= max);
        if full || result.snapshot.is_some() {
            self.flush()?;
        }
        Ok(result)
    }

    /// What a step changes, in memory: a transaction of the target is made of whole steps.
    fn changes(&self, output: StepOutput) -> Result<Changes> {
        if output.stored_bytes() > self.step_bytes_max {
            return Err(RuntimeError::user(
                "53200",
                format!(
                    "one step changes {} MB, more than the {} MB of memory that a sink may take",
                    output.stored_bytes() >> 20,
                    self.step_bytes_max >> 20
                ),
            ));
        }
        let delta = output
            .into_delta()?
            .ok_or_else(|| RuntimeError::internal("a step that changes something changes nothing"))?;
        Changes::new(&delta, &self.key, self.mode)
    }

    /// Whether the target has the step from epoch `from` to `to` already.
    fn has(&self, from: u64, to: Marker) -> Result<bool, TargetError> {
        let Some(found) = self.found else {
            return self.follows(to);
        };
        if to <= found {
            return Ok(true);
        }
        // A step that begins before the marker and ends after it would be written twice in part.
        let begin = match to.part {
            Marker::WHOLE => Some(Marker::whole(from)),
            _ if self.anew => None,
            _ => self.seen,
        };
        if begin < Some(found) {
            let place = begin.map_or_else(|| "from its beginning".to_owned(), |b| format!("after epoch {b}"));
            return Err(TargetError::Lost(format!(
                "the target stands at epoch {found}, but this database goes on {place} with a step up to epoch {to}"
            )));
        }
        self.follows(to)
    }

    /// The target does not have a step; then it lies after all that was delivered in this life.
    fn follows(&self, to: Marker) -> Result<bool, TargetError> {
        if self.gathered_to.or(self.delivered).is_some_and(|d| d >= to) {
            return Err(TargetError::Lost(format!(
                "changes of epoch {to} came after it was delivered"
            )));
        }
        Ok(false)
    }

    /// Writes what is gathered, until it is at the target.
    fn flush(&mut self) -> Result<(), TargetError> {
        let Some(to) = self.gathered_to else {
            return Ok(());
        };
        let mut tries = 0_u32;
        let started = Instant::now();
        loop {
            match self.attempt(to) {
                Ok(()) => break,
                Err(TargetError::Retry(reason)) => {
                    self.opened = false;
                    tries += 1;
                    let paused = started.elapsed() >= self.how.pause_after;
                    self.failed_try(tries, paused, reason);
                    self.pause(tries)?;
                }
                Err(other) => return Err(other),
            }
        }
        self.gathered.clear();
        self.gathered_to = None;
        self.gathered_bytes = 0;
        let mut status = self.shared.status.lock();
        if status.phase != Phase::Running {
            tracing::info!(job = %self.name, epoch = to.epoch, tries, "the sink's target takes changes again");
        }
        status.phase = Phase::Running;
        status.error = None;
        status.tries = 0;
        status.gathered_bytes = 0;
        Ok(())
    }

    /// One try; afterwards the target stands at `to`, or the outcome is unknown until it is opened again.
    fn attempt(&mut self, to: Marker) -> Result<(), TargetError> {
        if !self.opened {
            self.open()?;
        }
        if self.how.durable && self.delivered >= Some(to) {
            return Ok(());
        }
        if self.how.durable {
            self.journal.announce(self.delivered, to).map_err(chained)?;
        }
        fail::fail_point!("sink::write", |_| Err(TargetError::Retry(
            "failpoint before the write".to_owned()
        )));
        self.target.write(self.delivered, to, &self.gathered)?;
        fail::fail_point!("sink::written", |_| Err(TargetError::Retry(
            "failpoint after the write".to_owned()
        )));
        self.delivered = Some(to);
        self.shared.status.lock().delivered = self.delivered;
        Ok(())
    }

    fn open(&mut self) -> Result<(), TargetError> {
        let fresh = self.journal.is_fresh();
        let found = self.target.open(fresh)?;
        self.opened = true;
        if !self.how.durable {
            self.known = true;
            return Ok(());
        }
        if !self.journal.allows(found) {
            let place = found.map_or_else(
                || "has no marker of this sink".to_owned(),
                |m| format!("stands at epoch {m}"),
            );
            return Err(TargetError::Lost(format!(
                "the target {place}, which is not where this sink left it; drop the sink, empty the target and create the sink again"
            )));
        }
        if !self.known {
            self.known = true;
            self.found = found;
        }
        self.delivered = found;
        self.shared.status.lock().delivered = found;
        Ok(())
    }

    /// Opens the target, however long that takes.
    fn reopen(&mut self) -> Result<(), TargetError> {
        let mut tries = 0_u32;
        let started = Instant::now();
        loop {
            match self.open() {
                Ok(()) => return Ok(()),
                Err(TargetError::Retry(reason)) => {
                    tries += 1;
                    let paused = started.elapsed() >= self.how.pause_after;
                    self.failed_try(tries, paused, reason);
                    self.pause(tries)?;
                }
                Err(other) => return Err(other),
            }
        }
    }

    fn failed_try(&self, tries: u32, paused: bool, reason: String) {
        let phase = if paused { Phase::Paused } else { Phase::Retrying };
        let mut status = self.shared.status.lock();
        if status.phase != phase {
            tracing::warn!(job = %self.name, reason, state = phase.name(), "a sink's target does not take changes");
        }
        status.tries = u64::from(tries);
        status.phase = phase;
        status.error = Some(reason);
    }

    fn note(&self, phase: Phase, error: Option<String>) {
        let mut status = self.shared.status.lock();
        status.phase = phase;
        status.error = error;
    }

    /// Waits before the next try: twice as long each time, and not in step with other sinks of the same target.
    fn pause(&self, tries: u32) -> Result<(), TargetError> {
        let longest = PAUSE_MIN
            .saturating_mul(1 << tries.saturating_sub(1).min(10))
            .min(PAUSE_MAX);
        let random = xxh3_64(&[self.seed.to_le_bytes(), u64::from(tries).to_le_bytes()].concat());
        let pause = longest / 2 + longest.mul_f64((random % 1024) as f64 / 2048.0);
        let mut hurry = self.shared.hurry.lock();
        if !*hurry && !self.shared.stopped() {
            let _timed_out = self.shared.hurried.wait_for(&mut hurry, pause);
        }
        *hurry = false;
        drop(hurry);
        if self.shared.stopped() {
            return Err(TargetError::Stopped);
        }
        Ok(())
    }
}

fn chained(error: RuntimeError) -> TargetError {
    TargetError::Retry(format!("the sink's journal: {}", with_causes(&error)))
}
