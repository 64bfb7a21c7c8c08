//! Threads that run tasks, fairly between regions.
//!
//! ```text
//!   regions with ready tasks:   A      B      C              a thread takes the region that has used the least time,
//!   time used, ms:              41.0   41.7   54.2           and runs its first task for about a millisecond; what the
//!   ready tasks of each:        a1     b0     c0             slice took is added to the region's time
//! ```
//!
//! So regions that are busy share the threads by time, not by turns: one whose slices are long gets fewer of them, one with a
//! thousand ready tasks no more than another. A region that was idle begins at the time of the one served last: it is served
//! next, and has no claim for the time that it did not use.
//!
//! A slice cannot be taken away: an expression may be slow, and a thread may sit in it. When all threads are in one slice each for
//! [`PATIENCE`] while tasks wait, spare threads take turns beside them and leave the rest to the operating system.
//!
//! A task is idle, queued, running or notified (woken while it ran); waking one that is queued or running costs an atomic
//! operation. The lock on the queues is taken once per slice and per real wake-up. A thread without work waits on a condition
//! variable, no longer than to the next timer.
//!
//! Threads are apart from the clients' (tokio's): a heavy dataflow does not delay a session's protocol work, and a slow
//! session holds up no task. Restores read files, so they run on helper threads that start when first needed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long a task runs before others get their turn; checked once per pushed batch.
pub(crate) const SLICE: Duration = Duration::from_millis(1);

/// How long a slice may be before it counts as late, and before other tasks need not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);

/// Time that every slice costs its region at least: regions with tiny slices take turns.
const SLICE_COST_MIN: Duration = Duration::from_micros(20);

/// What a job wants after a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    /// It has more work.
    Yield,
    /// It waits to be woken.
    Idle,
    /// It waits to be woken, at this time at the latest.
    IdleUntil(Instant),
    /// It has ended and is dropped.
    Done,
}

/// What a [`TaskCell`] runs.
pub(crate) trait Job: Send {
    /// Works for about a [`SLICE`]. A panic ends the job; one that can recover catches its own.
    fn poll(&mut self) -> Poll;
}

/// The dataflow threads.
pub struct Executor {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Executor {
    /// Starts `threads` threads (at least one).
    ///
    /// # Panics
    /// The operating system refuses a thread: the process cannot work then.
    pub fn new(threads: usize) -> Arc<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            queues: Mutex::new(Queues::default()),
            work: Condvar::new(),
            spare_work: Condvar::new(),
            helpers: Mutex::new(Helpers::default()),
            helper_work: Condvar::new(),
            helpers_max: threads,
            timer_number: AtomicU64::new(0),
        });
        let tasks = (0..threads).map(|i| spawn(format!("levee-dataflow-{i}"), Arc::clone(&shared), Shared::run_tasks));
        let spares = (0..threads).map(|i| spawn(format!("levee-spare-{i}"), Arc::clone(&shared), Shared::run_spare));
        let handles = tasks.chain(spares).collect();
        Arc::new(Self {
            shared,
            threads: Mutex::new(handles),
        })
    }

    /// Ends all threads after the slices that they are in, and waits for them (unless called on one of them). Tasks that
    /// have not ended by then are dropped with their regions.
    pub fn shutdown(&self) {
        self.shared.queues.lock().stopping = true;
        self.shared.work.notify_all();
        self.shared.spare_work.notify_all();
        let helpers = {
            let mut helpers = self.shared.helpers.lock();
            helpers.stopping = true;
            std::mem::take(&mut helpers.threads)
        };
        self.shared.helper_work.notify_all();
        let me = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads.into_iter().chain(helpers) {
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a dataflow thread panicked");
            }
        }
    }

    /// A handle that regions keep without keeping the threads alive.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

fn spawn(name: String, shared: Arc<Shared>, body: fn(&Arc<Shared>)) -> JoinHandle<()> {
    std::thread::Builder::new()
        .name(name)
        .spawn(move || body(&shared))
        .expect("the operating system starts a thread")
}

/// State that threads, tasks and regions share.
pub(crate) struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
    spare_work: Condvar,
    helpers: Mutex<Helpers>,
    helper_work: Condvar,
    helpers_max: usize,
    timer_number: AtomicU64,
}

#[derive(Default)]
struct Queues {
    /// Groups with a ready task, each once, by the time that they have used.
    groups: BTreeMap<(u64, u64), Arc<Group>>,
    /// Time used by the group served last when it was served.
    served: u64,
    /// Slices begun by the threads that are not spare.
    turns: u64,
    timers: BinaryHeap<Reverse<Timer>>,
    sleeping: usize,
    /// Spare threads that nobody has told yet that tasks wait.
    spares: usize,
    stopping: bool,
}

#[derive(Default)]
struct Helpers {
    jobs: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stopping: bool,
}

/// The tasks of one region, as the queue sees them.
pub(crate) struct Group {
    number: u64,
    /// Locked only while the queues are.
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    ready: VecDeque<Arc<TaskCell>>,
    /// Nanoseconds of slices, with those that were never asked for.
    used: u64,
    /// Place in the queue.
    queued: Option<(u64, u64)>,
}

impl Default for Group {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        }
    }
}

struct Timer {
    at: Instant,
    number: u64,
    cell: Arc<TaskCell>,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Queues {
    fn push(&mut self, cell: Arc<TaskCell>) {
        let group = Arc::clone(&cell.group);
        let mut state = group.state.lock();
        state.ready.push_back(cell);
        if state.queued.is_none() {
            state.used = state.used.max(self.served);
            self.queue(&group, &mut state);
        }
    }

    fn queue(&mut self, group: &Arc<Group>, state: &mut GroupState) {
        let place = (state.used, group.number);
        state.queued = Some(place);
        self.groups.insert(place, Arc::clone(group));
    }

    fn pop(&mut self) -> Option<Arc<TaskCell>> {
        let ((used, _), group) = self.groups.pop_first()?;
        self.served = self.served.max(used);
        let mut state = group.state.lock();
        let cell = state.ready.pop_front();
        state.queued = None;
        if !state.ready.is_empty() {
            // Another thread may take it meanwhile: as if this slice were over.
            state.used += nanos(SLICE);
            self.queue(&group, &mut state);
            state.used -= nanos(SLICE);
        }
        cell
    }

    /// Adds a slice to its group's time.
    fn charge(&mut self, group: &Arc<Group>, slice: Duration) {
        let mut state = group.state.lock();
        state.used += nanos(slice.max(SLICE_COST_MIN));
        if let Some(place) = state.queued {
            self.groups.remove(&place);
            self.queue(group, &mut state);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    fn run_tasks(self: &Arc<Self>) {
        let mut queues = self.queues.lock();
        while !queues.stopping {
            self.fire_timers(&mut queues);
            queues.turns += 1;
            if self.run_one(&mut queues) {
                continue;
            }
            queues.sleeping += 1;
            match queues.timers.peek().map(|Reverse(t)| t.at) {
                Some(at) => {
                    self.work.wait_until(&mut queues, at);
                }
                None => self.work.wait(&mut queues),
            }
            queues.sleeping -= 1;
        }
    }

    /// Runs one slice of the next task; answers whether there was one.
    fn run_one(self: &Arc<Self>, queues: &mut MutexGuard<'_, Queues>) -> bool {
        let Some(cell) = queues.pop() else {
            return false;
        };
        if !queues.groups.is_empty() {
            if queues.sleeping > 0 {
                self.work.notify_one();
            } else if queues.spares > 0 {
                self.spare_work.notify_one();
            }
        }
        let started = Instant::now();
        let poll = MutexGuard::unlocked(queues, || cell.run());
        let slice = started.elapsed();
        cell.note(slice);
        queues.charge(&cell.group, slice);
        self.after(queues, cell, poll);
        true
    }

    /// When tasks wait and no thread has begun a slice for [`PATIENCE`], takes turns until one does.
    fn run_spare(self: &Arc<Self>) {
        let mut queues = self.queues.lock();
        while !queues.stopping {
            if queues.groups.is_empty() || queues.sleeping > 0 {
                queues.spares += 1;
                self.spare_work.wait(&mut queues);
                queues.spares -= 1;
            }
            let (turns, until) = (queues.turns, Instant::now() + PATIENCE);
            while !queues.stopping && !self.spare_work.wait_until(&mut queues, until).timed_out() {}
            while queues.turns == turns && !queues.stopping && self.run_one(&mut queues) {}
        }
    }

    fn fire_timers(&self, queues: &mut Queues) {
        if queues.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while queues.timers.peek().is_some_and(|Reverse(t)| t.at <= now) {
            if let Some(Reverse(timer)) = queues.timers.pop()
                && timer.cell.mark_woken()
            {
                queues.push(timer.cell);
            }
        }
    }

    /// Files a task after a slice. Only this thread may change the state of a running task, other than to notified.
    fn after(&self, queues: &mut Queues, cell: Arc<TaskCell>, poll: Poll) {
        match poll {
            Poll::Done => cell.state.store(DONE, Ordering::Release),
            Poll::Yield => {
                cell.state.store(QUEUED, Ordering::Release);
                queues.push(cell);
            }
            Poll::Idle | Poll::IdleUntil(_) => {
                if let Poll::IdleUntil(at) = poll {
                    let number = self.timer_number.fetch_add(1, Ordering::Relaxed);
                    queues.timers.push(Reverse(Timer {
                        at,
                        number,
                        cell: Arc::clone(&cell),
                    }));
                }
                if cell
                    .state
                    .compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire)
                    .is_err()
                {
                    cell.state.store(QUEUED, Ordering::Release);
                    queues.push(cell);
                }
            }
        }
    }

    /// Runs `job` on a helper thread: for restores, which read files for as long as they take. At most as many run at once as
    /// there are dataflow threads.
    pub(crate) fn run_blocking(self: &Arc<Self>, job: Box<dyn FnOnce() + Send>) {
        let mut helpers = self.helpers.lock();
        if helpers.stopping {
            return;
        }
        helpers.jobs.push_back(job);
        if helpers.idle < helpers.jobs.len() && helpers.threads.len() < self.helpers_max {
            let name = format!("levee-restore-{}", helpers.threads.len());
            helpers.threads.push(spawn(name, Arc::clone(self), Self::run_helper));
        }
        self.helper_work.notify_one();
    }

    fn run_helper(self: &Arc<Self>) {
        let mut helpers = self.helpers.lock();
        while !helpers.stopping {
            if let Some(job) = helpers.jobs.pop_front() {
                MutexGuard::unlocked(&mut helpers, || {
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a helper job panicked outside its own guard");
                    }
                });
                continue;
            }
            helpers.idle += 1;
            self.helper_work.wait(&mut helpers);
            helpers.idle -= 1;
        }
    }
}

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const NOTIFIED: u8 = 3;
const DONE: u8 = 4;

/// A job with its place in the queues.
pub(crate) struct TaskCell {
    state: AtomicU8,
    late_slices: AtomicU64,
    longest_slice_us: AtomicU64,
    job: Mutex<Option<Box<dyn Job>>>,
    group: Arc<Group>,
    shared: Arc<Shared>,
}

impl TaskCell {
    /// A cell without a job: it may be woken, and does nothing until [`Self::set_job`].
    pub(crate) fn new(shared: &Arc<Shared>, group: &Arc<Group>) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(IDLE),
            late_slices: AtomicU64::new(0),
            longest_slice_us: AtomicU64::new(0),
            job: Mutex::new(None),
            group: Arc::clone(group),
            shared: Arc::clone(shared),
        })
    }

    fn note(&self, slice: Duration) {
        if slice > PATIENCE {
            self.late_slices.fetch_add(1, Ordering::Relaxed);
        }
        let us = u64::try_from(slice.as_micros()).unwrap_or(u64::MAX);
        self.longest_slice_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Slices that were longer than [`PATIENCE`], and the longest in microseconds, by the clock on the wall: a slice during which the
    /// operating system ran something else is among them.
    pub(crate) fn slices(&self) -> (u64, u64) {
        (
            self.late_slices.load(Ordering::Relaxed),
            self.longest_slice_us.load(Ordering::Relaxed),
        )
    }

    /// Gives the cell its job; call before the first wake.
    pub(crate) fn set_job(&self, job: Box<dyn Job>) {
        *self.job.lock() = Some(job);
    }

    /// Makes the task run (again) after everything written before this call.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.mark_woken() {
            let mut queues = self.shared.queues.lock();
            queues.push(Arc::clone(self));
            let (sleeping, spares) = (queues.sleeping > 0, queues.spares > 0);
            drop(queues);
            if sleeping {
                self.shared.work.notify_one();
            } else if spares {
                self.shared.spare_work.notify_one();
            }
        }
    }

    /// Whether the caller must queue the task.
    fn mark_woken(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let next = match state {
                IDLE => QUEUED,
                RUNNING => NOTIFIED,
                _ => return false,
            };
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return next == QUEUED,
                Err(now) => state = now,
            }
        }
    }

    fn run(&self) -> Poll {
        self.state.store(RUNNING, Ordering::Release);
        let mut job = self.job.lock();
        let Some(body) = job.as_mut() else {
            return Poll::Idle;
        };
        let poll = catch_unwind(AssertUnwindSafe(|| body.poll())).unwrap_or_else(|_| {
            tracing::error!("a dataflow job panicked outside its own guard");
            Poll::Done
        });
        if poll == Poll::Done {
            *job = None;
        }
        poll
    }
}

impl std::task::Wake for TaskCell {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    struct Counting {
        left: usize,
        done: mpsc::Sender<usize>,
        name: usize,
    }

    impl Job for Counting {
        fn poll(&mut self) -> Poll {
            if self.left == 0 {
                self.done.send(self.name).unwrap();
                return Poll::Done;
            }
            self.left -= 1;
            Poll::Yield
        }
    }

    /// Yields for ever, counting its slices.
    struct Busy(Arc<AtomicUsize>);

    impl Job for Busy {
        fn poll(&mut self) -> Poll {
            self.0.fetch_add(1, Ordering::AcqRel);
            Poll::Yield
        }
    }

    /// Needs ten slices, and tells how many others were run between its first and its last.
    struct Quick(Arc<AtomicUsize>, Vec<usize>, mpsc::Sender<usize>);

    impl Job for Quick {
        fn poll(&mut self) -> Poll {
            self.1.push(self.0.load(Ordering::Acquire));
            if self.1.len() < 10 {
                return Poll::Yield;
            }
            self.2.send(self.1[9] - self.1[0]).unwrap();
            Poll::Done
        }
    }

    #[test]
    fn regions_take_turns_however_many_tasks_they_have() {
        let executor = Executor::new(1);
        let (done, finished) = mpsc::channel();
        let (busy, slices) = (Arc::new(Group::default()), Arc::new(AtomicUsize::new(0)));
        for _ in 0..8 {
            let cell = TaskCell::new(executor.shared(), &busy);
            cell.set_job(Box::new(Busy(Arc::clone(&slices))));
            cell.wake();
        }
        let quick = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        quick.set_job(Box::new(Quick(slices, Vec::new(), done)));
        quick.wake();
        // How many slices lie between depends on what else the machine runs; `busy_groups_share_the_time` counts them.
        finished.recv_timeout(Duration::from_secs(20)).unwrap();
        executor.shutdown();
    }

    /// Sits in a slice until it is told to go on.
    struct Stuck(mpsc::Receiver<()>);

    impl Job for Stuck {
        fn poll(&mut self) -> Poll {
            let told = self.0.recv_timeout(Duration::from_secs(20));
            assert!(told.is_ok(), "nobody got through beside a slice that does not end");
            Poll::Done
        }
    }

    #[test]
    fn a_slice_that_does_not_end_holds_nobody_up() {
        let executor = Executor::new(1);
        let (go_on, told) = mpsc::channel();
        let stuck = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        stuck.set_job(Box::new(Stuck(told)));
        stuck.wake();
        let (done, finished) = mpsc::channel();
        let other = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        let counting = Counting {
            left: 10,
            done,
            name: 1,
        };
        other.set_job(Box::new(counting));
        other.wake();
        assert_eq!(finished.recv_timeout(Duration::from_secs(10)).unwrap(), 1);
        let (_nobody, never) = mpsc::channel::<()>();
        assert!(never.recv_timeout(PATIENCE * 2).is_err());
        go_on.send(()).unwrap();
        executor.shutdown();
        assert!(
            stuck.slices().0 > 0 && stuck.slices().1 >= 5000,
            "a long slice was not counted"
        );
    }

    /// One group's slices take ten times as long as another's: they get the same time, not the same number of slices.
    #[test]
    fn busy_groups_share_the_time() {
        let mut queues = Queues::default();
        let shared = Executor::new(1);
        let groups: Vec<Arc<Group>> = (0..2).map(|_| Arc::default()).collect();
        let cells: Vec<_> = groups.iter().map(|g| TaskCell::new(shared.shared(), g)).collect();
        cells.iter().for_each(|c| queues.push(Arc::clone(c)));
        let mut slices = [0; 2];
        for _ in 0..1100 {
            let cell = queues.pop().unwrap();
            let long = usize::from(Arc::ptr_eq(&cell, &cells[1]));
            slices[long] += 1;
            let slice = Duration::from_millis(if long == 1 { 10 } else { 1 });
            queues.charge(&groups[long], slice);
            queues.push(cell);
        }
        assert!((98..=102).contains(&slices[1]), "{slices:?}");
        // One that comes late is served next, and not for all that it has missed.
        let late = Arc::new(Group::default());
        let cell = TaskCell::new(shared.shared(), &late);
        queues.push(Arc::clone(&cell));
        let mut before = 0;
        for _ in 0..20 {
            let next = queues.pop().unwrap();
            if Arc::ptr_eq(&next, &cell) {
                before += 1;
            }
            queues.charge(&next.group, Duration::from_millis(5));
            queues.push(next);
        }
        assert!(
            (5..=9).contains(&before),
            "{before} of 20 slices for one of three groups"
        );
    }

    /// A wake that arrives while the job runs is not lost: the job runs once more.
    #[test]
    fn wakes_are_never_lost() {
        struct Drains(Arc<AtomicUsize>, usize, mpsc::Sender<()>);
        impl Job for Drains {
            fn poll(&mut self) -> Poll {
                self.1 += self.0.swap(0, Ordering::AcqRel);
                if self.1 == 40_000 {
                    self.2.send(()).unwrap();
                    return Poll::Done;
                }
                Poll::Idle
            }
        }
        let executor = Executor::new(2);
        let added = Arc::new(AtomicUsize::new(0));
        let (done, finished) = mpsc::channel();
        let cell = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        cell.set_job(Box::new(Drains(Arc::clone(&added), 0, done)));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        added.fetch_add(1, Ordering::AcqRel);
                        cell.wake();
                    }
                });
            }
        });
        finished.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn timers_wake_in_order_of_time() {
        struct Sleeps(Option<Instant>, mpsc::Sender<Instant>);
        impl Job for Sleeps {
            fn poll(&mut self) -> Poll {
                let at = *self.0.get_or_insert_with(|| Instant::now() + Duration::from_millis(30));
                if Instant::now() < at {
                    return Poll::IdleUntil(at);
                }
                self.1.send(at).unwrap();
                Poll::Done
            }
        }
        let executor = Executor::new(1);
        let (done, finished) = mpsc::channel();
        let cell = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        cell.set_job(Box::new(Sleeps(None, done)));
        cell.wake();
        let at = finished.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(Instant::now() >= at);
    }

    #[test]
    fn a_panicking_job_leaves_the_thread_working() {
        struct Panics;
        impl Job for Panics {
            fn poll(&mut self) -> Poll {
                panic!("on purpose");
            }
        }
        let executor = Executor::new(1);
        let group = Arc::new(Group::default());
        let bad = TaskCell::new(executor.shared(), &group);
        bad.set_job(Box::new(Panics));
        bad.wake();
        let (done, finished) = mpsc::channel();
        let good = TaskCell::new(executor.shared(), &group);
        good.set_job(Box::new(Counting { left: 3, done, name: 1 }));
        good.wake();
        assert_eq!(finished.recv_timeout(Duration::from_secs(20)).unwrap(), 1);
    }
}
