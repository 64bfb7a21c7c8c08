//! Threads that run tasks, fairly between regions.
//!
//! ```text
//!   regions with ready tasks:  [ A ] → [ B ] → [ C ]        a thread takes the first region's first task,
//!   ready tasks of each:        a1      b0      c0           puts the region back at the end, and runs the
//!                               a0              c1           task for about a millisecond
//! ```
//!
//! A region with a thousand ready tasks or with one that never ends gets one slice a round, like every other. A task is idle,
//! queued, running or notified (woken while it ran); waking one that is queued or running costs an atomic operation. The lock
//! on the queues is taken once per slice and per real wake-up. A thread without work waits on a condition variable, no longer
//! than to the next timer.
//!
//! Threads are apart from the clients' (tokio's): a heavy dataflow does not delay a session's protocol work, and a slow
//! session holds up no task. Restores read files, so they run on helper threads that start when first needed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long a task runs before others get their turn; checked once per pushed batch.
pub(crate) const SLICE: Duration = Duration::from_millis(1);

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
            helpers: Mutex::new(Helpers::default()),
            helper_work: Condvar::new(),
            helpers_max: threads,
            timer_number: AtomicU64::new(0),
        });
        let handles = (0..threads)
            .map(|i| spawn(format!("levee-dataflow-{i}"), Arc::clone(&shared), Shared::run_tasks))
            .collect();
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
    helpers: Mutex<Helpers>,
    helper_work: Condvar,
    helpers_max: usize,
    timer_number: AtomicU64,
}

#[derive(Default)]
struct Queues {
    /// Groups with a ready task, each once.
    groups: VecDeque<Arc<Group>>,
    timers: BinaryHeap<Reverse<Timer>>,
    sleeping: usize,
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
#[derive(Default)]
pub(crate) struct Group {
    /// Locked only while the queues are.
    ready: Mutex<VecDeque<Arc<TaskCell>>>,
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
        let mut ready = group.ready.lock();
        ready.push_back(cell);
        if ready.len() == 1 {
            drop(ready);
            self.groups.push_back(group);
        }
    }

    fn pop(&mut self) -> Option<Arc<TaskCell>> {
        let group = self.groups.pop_front()?;
        let mut ready = group.ready.lock();
        let cell = ready.pop_front();
        let more = !ready.is_empty();
        drop(ready);
        if more {
            self.groups.push_back(group);
        }
        cell
    }
}

impl Shared {
    fn run_tasks(self: &Arc<Self>) {
        let mut queues = self.queues.lock();
        while !queues.stopping {
            self.fire_timers(&mut queues);
            if let Some(cell) = queues.pop() {
                if !queues.groups.is_empty() && queues.sleeping > 0 {
                    self.work.notify_one();
                }
                let poll = MutexGuard::unlocked(&mut queues, || cell.run());
                self.after(&mut queues, cell, poll);
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
    job: Mutex<Option<Box<dyn Job>>>,
    group: Arc<Group>,
    shared: Arc<Shared>,
}

impl TaskCell {
    /// A cell without a job: it may be woken, and does nothing until [`Self::set_job`].
    pub(crate) fn new(shared: &Arc<Shared>, group: &Arc<Group>) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(IDLE),
            job: Mutex::new(None),
            group: Arc::clone(group),
            shared: Arc::clone(shared),
        })
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
            let sleeping = queues.sleeping > 0;
            drop(queues);
            if sleeping {
                self.shared.work.notify_one();
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
        assert_eq!(finished.recv_timeout(Duration::from_secs(20)).unwrap(), 9);
        executor.shutdown();
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
