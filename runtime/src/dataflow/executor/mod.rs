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
//! A slice cannot be taken away: an expression may be slow, and a thread may sit in it. Therefore regions that work for long run on
//! threads of a lower priority ([`queues`]); and when all threads of a class are in one slice each for [`PATIENCE`] while its
//! tasks wait, spare threads take turns beside them and leave the rest to the operating system.
//!
//! Heavy threads run when nobody else wants the processor. Where others want it all the time, in this process or beside it, they would starve: one that finds that
//! it has ([`own_time`]) has all of them rest, for a second, then longer, and the spare threads, which are entitled to a share, do their work meanwhile.
//!
//! A task is idle, queued, running or notified (woken while it ran); waking one that is queued or running costs an atomic
//! operation. The lock on the queues is taken once per slice and per real wake-up. A thread without work waits on a condition
//! variable, no longer than to the next timer.
//!
//! Threads are apart from the clients' (tokio's): a heavy dataflow does not delay a session's protocol work, and a slow
//! session holds up no task. Restores read files, so they run on helper threads that start when first needed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

mod own_time;
mod queues;

use own_time::OwnTime;
pub(crate) use queues::Group;
use queues::{Class, Queues, Timer};

/// How long a task runs before others get their turn; checked once per pushed batch.
pub(crate) const SLICE: Duration = Duration::from_millis(1);

/// How long a slice may be before it counts as late, and before other tasks need not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);

/// How long tasks of heavy regions wait for one of their threads before the spare ones, which have a better priority, take turns.
const HEAVY_PATIENCE: Duration = Duration::from_millis(50);

/// Niceness of [`Priority::Low`] above the process's own: a quarter of a light thread's weight when both want the same processor.
const LOW_NICENESS: i32 = 6;

/// What a thread gets when others want the processor, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A smaller share: restores, and the spare threads of heavy regions.
    Low,
    /// Nearly nothing, and it is taken from the processor at once when another thread wakes: heavy regions. That another thread is merely
    /// entitled to more would have it wait for the end of the present turn, milliseconds at each of the dozen hand-overs between a write and its reader.
    Idle,
}

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
            wakers: [Wakers::default(), Wakers::default()],
            helpers: [Helpers::default(), Helpers::default()],
            helpers_max: threads,
            timer_number: AtomicU64::new(0),
        });
        let mut handles = Vec::with_capacity(4 * threads);
        for class in Class::ALL {
            for i in 0..threads {
                let (task, spare) = match class {
                    Class::Light => (format!("levee-dataflow-{i}"), format!("levee-spare-{i}")),
                    Class::Heavy => (format!("levee-heavy-{i}"), format!("levee-hspare-{i}")),
                };
                handles.push(spawn(task, &shared, move |shared| shared.run_tasks(class)));
                handles.push(spawn(spare, &shared, move |shared| shared.run_spare(class)));
            }
        }
        Arc::new(Self {
            shared,
            threads: Mutex::new(handles),
        })
    }

    /// Ends all threads after the slices that they are in, and waits for them (unless called on one of them). Tasks that
    /// have not ended by then are dropped with their regions.
    pub fn shutdown(&self) {
        self.shared.queues.lock().stopping = true;
        for wakers in &self.shared.wakers {
            wakers.work.notify_all();
            wakers.spare_work.notify_all();
        }
        let helpers: Vec<_> = self.shared.helpers.iter().flat_map(Helpers::stop).collect();
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

fn spawn(name: String, shared: &Arc<Shared>, body: impl FnOnce(&Arc<Shared>) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || body(&shared))
        .expect("the operating system starts a thread")
}

/// Lowers the priority of the calling thread; where the system refuses that, the thread works on as it is.
#[allow(unsafe_code, reason = "the standard library has no priorities")]
fn lower_priority(priority: Priority) {
    // SAFETY: plain system calls; 0 is the calling thread, and the one pointer is to a value that outlives the call.
    let result = unsafe {
        match priority {
            Priority::Low => {
                let now = libc::getpriority(libc::PRIO_PROCESS, 0);
                libc::setpriority(libc::PRIO_PROCESS, 0, now + LOW_NICENESS)
            }
            Priority::Idle => {
                let parameters = libc::sched_param { sched_priority: 0 };
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters)
            }
        }
    };
    if result != 0 {
        tracing::warn!(error = %std::io::Error::last_os_error(), "a dataflow thread keeps its priority");
    }
}

/// State that threads, tasks and regions share.
pub(crate) struct Shared {
    queues: Mutex<Queues>,
    /// Of each class.
    wakers: [Wakers; 2],
    /// By [`Priority`].
    helpers: [Helpers; 2],
    helpers_max: usize,
    timer_number: AtomicU64,
}

/// Where a class's threads wait.
#[derive(Default)]
struct Wakers {
    work: Condvar,
    spare_work: Condvar,
}

/// Helper threads of one priority, started when they are first needed.
#[derive(Default)]
struct Helpers {
    queue: Mutex<HelperQueue>,
    work: Condvar,
}

impl Helpers {
    /// No job begins any more; answers the threads.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        let mut queue = self.queue.lock();
        queue.stopping = true;
        self.work.notify_all();
        std::mem::take(&mut queue.threads)
    }
}

#[derive(Default)]
struct HelperQueue {
    jobs: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stopping: bool,
}

impl Shared {
    fn wakers(&self, class: Class) -> &Wakers {
        &self.wakers[class as usize]
    }

    fn run_tasks(self: &Arc<Self>, class: Class) {
        if class == Class::Heavy {
            lower_priority(Priority::Idle);
        }
        let mut own = OwnTime::new();
        let mut queues = self.queues.lock();
        while !queues.stopping {
            if let Some(until) = queues.of(class).rests(Instant::now()) {
                // It may have been told of a task.
                self.wakers(class).spare_work.notify_one();
                self.wakers(class).work.wait_until(&mut queues, until);
                continue;
            }
            for filed in queues.fire_timers() {
                self.call(&mut queues, filed);
            }
            queues.of(class).turns += 1;
            if self.run_one(&mut queues, class, &mut own) {
                continue;
            }
            queues.of(class).sleeping += 1;
            let work = &self.wakers(class).work;
            match queues.next_timer() {
                Some(at) => {
                    work.wait_until(&mut queues, at);
                }
                None => work.wait(&mut queues),
            }
            queues.of(class).sleeping -= 1;
        }
    }

    /// Wakes a thread for a class whose task was filed.
    fn call(&self, queues: &mut Queues, class: Class) {
        let queue = queues.of(class);
        if queue.sleeping > 0 {
            self.wakers(class).work.notify_one();
        } else if queue.spares > 0 {
            self.wakers(class).spare_work.notify_one();
        }
    }

    /// Runs one slice of the class's next task; answers whether there was one.
    fn run_one(self: &Arc<Self>, queues: &mut MutexGuard<'_, Queues>, class: Class, own: &mut OwnTime) -> bool {
        let Some(cell) = queues.pop(class) else {
            return false;
        };
        if queues.of(class).waits() {
            self.call(queues, class);
        }
        let started = Instant::now();
        let poll = MutexGuard::unlocked(queues, || cell.run());
        let now = Instant::now();
        let mut slice = now.duration_since(started);
        cell.note(slice);
        if slice > PATIENCE {
            // What others did meanwhile is not the region's time.
            let spent = own.spent();
            slice = slice.saturating_sub(spent.waited);
            if class == Class::Heavy && own.has_starved() && queues.of(class).rest(now) {
                self.wakers(class).work.notify_all();
                self.wakers(class).spare_work.notify_all();
            }
        }
        let moved = queues.charge(&cell.group, slice, now);
        let filed = self.after(queues, cell, poll, now);
        // The other class's threads do not know of it; this one's looks again at once.
        if let Some(other) = filed.or(moved).filter(|&c| c != class) {
            self.call(queues, other);
        }
        true
    }

    /// When tasks of the class wait and none of its threads has begun a slice for [`PATIENCE`] ([`HEAVY_PATIENCE`]), takes turns until one does.
    fn run_spare(self: &Arc<Self>, class: Class) {
        let patience = match class {
            Class::Light => PATIENCE,
            Class::Heavy => {
                lower_priority(Priority::Low);
                HEAVY_PATIENCE
            }
        };
        let spare_work = &self.wakers(class).spare_work;
        let mut own = OwnTime::new();
        let mut queues = self.queues.lock();
        while !queues.stopping {
            if !queues.of(class).waits() || queues.of(class).sleeping > 0 {
                // What this thread filed itself, nobody has been told of.
                if queues.of(class).waits() {
                    self.call(&mut queues, class);
                }
                queues.of(class).spares += 1;
                spare_work.wait(&mut queues);
                queues.of(class).spares -= 1;
            }
            let (turns, now) = (queues.of(class).turns, Instant::now());
            if queues.of(class).rests(now).is_none() {
                while !queues.stopping && !spare_work.wait_until(&mut queues, now + patience).timed_out() {}
            }
            while queues.of(class).turns == turns && !queues.stopping && self.run_one(&mut queues, class, &mut own) {}
        }
    }

    /// Files a task after a slice, and answers the class that has it if it is ready. Only this thread may change the state of a
    /// running task, other than to notified.
    fn after(&self, queues: &mut Queues, cell: Arc<TaskCell>, poll: Poll, now: Instant) -> Option<Class> {
        match poll {
            Poll::Done => {
                cell.state.store(DONE, Ordering::Release);
                return None;
            }
            Poll::Yield => {}
            Poll::Idle | Poll::IdleUntil(_) => {
                if let Poll::IdleUntil(at) = poll {
                    let number = self.timer_number.fetch_add(1, Ordering::Relaxed);
                    let cell = Arc::clone(&cell);
                    let first = queues.next_timer().is_none_or(|next| at < next);
                    queues.add_timer(Timer { at, number, cell });
                    // This thread may be a spare one, which watches no timers, and all others may sleep already.
                    let sleeps = |c: &Class| queues.of(*c).sleeping > 0;
                    if first && let Some(class) = Class::ALL.into_iter().find(sleeps) {
                        self.wakers(class).work.notify_one();
                    }
                }
                let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
                if cell.state.compare_exchange(RUNNING, IDLE, order, failure).is_ok() {
                    return None;
                }
            }
        }
        cell.state.store(QUEUED, Ordering::Release);
        Some(queues.push(cell, now))
    }

    /// Runs `job`, which takes as long as it takes, on a helper thread: restores, which read files, and what big steps have sorted and written. At most as many
    /// of a priority run at once as there are dataflow threads. A job of [`Priority::Idle`] may take for ever where others want the processors: somebody must have an eye on it.
    pub(crate) fn run_blocking(self: &Arc<Self>, priority: Priority, job: Box<dyn FnOnce() + Send>) {
        let helpers = &self.helpers[priority as usize];
        let mut queue = helpers.queue.lock();
        if queue.stopping {
            return;
        }
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads.len() < self.helpers_max {
            let kind = match priority {
                Priority::Low => "helper",
                Priority::Idle => "ihelper",
            };
            let name = format!("levee-{kind}-{}", queue.threads.len());
            queue
                .threads
                .push(spawn(name, self, move |shared| shared.run_helper(priority)));
        }
        helpers.work.notify_one();
    }

    fn run_helper(self: &Arc<Self>, priority: Priority) {
        lower_priority(priority);
        let helpers = &self.helpers[priority as usize];
        let mut queue = helpers.queue.lock();
        while !queue.stopping {
            if let Some(job) = queue.jobs.pop_front() {
                MutexGuard::unlocked(&mut queue, || {
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a helper job panicked outside its own guard");
                    }
                });
                continue;
            }
            queue.idle += 1;
            helpers.work.wait(&mut queue);
            queue.idle -= 1;
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
            let now = Instant::now();
            let mut queues = self.shared.queues.lock();
            let class = queues.push(Arc::clone(self), now);
            self.shared.call(&mut queues, class);
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
mod tests;
