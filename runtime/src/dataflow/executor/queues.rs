//! Which task is next: regions by the time that they have used, in two classes.
//!
//! A region that uses more than half a processor for more than [`HEAVY_BURST`] is *heavy*: a long backfill, a join that explodes,
//! an expression that takes milliseconds a row, or simply a view under full load. Everything else is *light*: it works for
//! moments, and somebody waits for it. Each class has threads of its own, those of the heavy one at a lower priority of the
//! operating system; so a light task that wakes takes a processor at once from a heavy one, whose slice could not be
//! interrupted otherwise, and a heavy one has whatever is left.
//!
//! Within a class regions share the threads by time: the one that has used the least is next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{SLICE, TaskCell};

/// Time that every slice costs its region at least: regions with tiny slices take turns.
const SLICE_COST_MIN: Duration = Duration::from_micros(20);

/// A region is heavy when it is ahead by more than this of one that uses one processor in [`LEAK`].
const HEAVY_BURST: Duration = Duration::from_millis(20);

/// A heavy region is light again when it is ahead by less than this.
const LIGHT_BURST: Duration = Duration::from_millis(5);

/// One part in so many of a processor's time is forgiven.
const LEAK: u64 = 2;

/// How long a class's own threads rest when they have starved, the first time and at most. It doubles while they starve again soon after.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(32);

/// Who runs a region's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// It works for moments.
    Light,
    /// It has worked for long.
    Heavy,
}

impl Class {
    /// Both classes.
    pub(super) const ALL: [Self; 2] = [Self::Light, Self::Heavy];
}

/// All that waits, behind one lock.
#[derive(Default)]
pub(super) struct Queues {
    classes: [Queue; 2],
    timers: BinaryHeap<Reverse<Timer>>,
    pub(super) stopping: bool,
}

/// The waiting regions of a class, and its threads.
#[derive(Default)]
pub(super) struct Queue {
    /// Groups with a ready task, each once, by the time that they have used.
    groups: BTreeMap<(u64, u64), Arc<Group>>,
    /// Time used by the group served last when it was served.
    served: u64,
    /// Slices begun by the threads that are not spare.
    pub(super) turns: u64,
    /// Threads without work.
    pub(super) sleeping: usize,
    /// Spare threads that nobody has told yet that tasks wait.
    pub(super) spares: usize,
    /// When the last rest ended, or will, and how long it was.
    rest: Option<(Instant, Duration)>,
}

impl Queue {
    /// Whether a task waits.
    pub(super) fn waits(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Until when the class's own threads leave the work to the spare ones.
    pub(super) fn rests(&self, now: Instant) -> Option<Instant> {
        self.rest.map(|(end, _)| end).filter(|&end| now < end)
    }

    /// One of the class's own threads has starved: they rest. Answers whether they have not been resting already.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        let time = match self.rest {
            Some((end, _)) if now < end => return false,
            Some((end, time)) if now < end + time => (2 * time).min(REST_MAX),
            _ => REST_MIN,
        };
        self.rest = Some((now + time, time));
        true
    }
}

/// The tasks of one region, as the queues see them.
pub(crate) struct Group {
    number: u64,
    /// Locked only while the queues are.
    state: Mutex<GroupState>,
}

struct GroupState {
    class: Class,
    ready: VecDeque<Arc<TaskCell>>,
    /// Nanoseconds of slices, with those that were never asked for.
    used: u64,
    /// Place in the queue of its class.
    queued: Option<(u64, u64)>,
    /// Nanoseconds by which it was ahead of its leak at `seen`.
    burst: u64,
    seen: Instant,
}

impl Default for Group {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(GroupState {
                class: Class::Light,
                ready: VecDeque::new(),
                used: 0,
                queued: None,
                burst: 0,
                seen: Instant::now(),
            }),
        }
    }
}

impl GroupState {
    /// Adds a slice (or nothing) to the burst, and answers the class that it makes.
    fn assess(&mut self, slice: u64, now: Instant) -> Class {
        let leaked = nanos(now.saturating_duration_since(self.seen)) / LEAK;
        self.seen = self.seen.max(now);
        self.burst = (self.burst + slice).saturating_sub(leaked);
        match self.class {
            Class::Light if self.burst > nanos(HEAVY_BURST) => Class::Heavy,
            Class::Heavy if self.burst < nanos(LIGHT_BURST) => Class::Light,
            class => class,
        }
    }
}

pub(super) struct Timer {
    pub(super) at: Instant,
    pub(super) number: u64,
    pub(super) cell: Arc<TaskCell>,
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
    /// A class's queue.
    pub(super) fn of(&mut self, class: Class) -> &mut Queue {
        &mut self.classes[class as usize]
    }

    /// Files a ready task, and answers which class has it.
    pub(super) fn push(&mut self, cell: Arc<TaskCell>, now: Instant) -> Class {
        let group = Arc::clone(&cell.group);
        let mut state = group.state.lock();
        state.ready.push_back(cell);
        if state.queued.is_none() {
            self.classify(&mut state, 0, now);
            state.used = state.used.max(self.of(state.class).served);
            self.queue(&group, &mut state);
        }
        state.class
    }

    fn queue(&mut self, group: &Arc<Group>, state: &mut GroupState) {
        let place = (state.used, group.number);
        state.queued = Some(place);
        self.of(state.class).groups.insert(place, Arc::clone(group));
    }

    /// A group that changes its class begins there at the time of the one served last.
    fn classify(&mut self, state: &mut GroupState, slice: u64, now: Instant) {
        let class = state.assess(slice, now);
        if class != state.class {
            state.class = class;
            state.used = self.of(class).served;
        }
    }

    /// The next task of a class.
    pub(super) fn pop(&mut self, class: Class) -> Option<Arc<TaskCell>> {
        let queue = self.of(class);
        let ((used, _), group) = queue.groups.pop_first()?;
        queue.served = queue.served.max(used);
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

    /// Adds a slice that ended now to its group's time. Answers the class of the group's tasks that wait, if there are any.
    pub(super) fn charge(&mut self, group: &Arc<Group>, slice: Duration, now: Instant) -> Option<Class> {
        let mut state = group.state.lock();
        let before = state.class;
        let queued = state.queued.take();
        if let Some(place) = queued {
            self.of(before).groups.remove(&place);
        }
        let slice = nanos(slice.max(SLICE_COST_MIN));
        state.used += slice;
        self.classify(&mut state, slice, now);
        queued?;
        self.queue(group, &mut state);
        Some(state.class)
    }

    /// Adds a timer.
    pub(super) fn add_timer(&mut self, timer: Timer) {
        self.timers.push(Reverse(timer));
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(t)| t.at)
    }

    /// Files the tasks whose timers are due, and answers the class of each.
    pub(super) fn fire_timers(&mut self) -> Vec<Class> {
        let mut filed = Vec::new();
        if self.timers.is_empty() {
            return filed;
        }
        let now = Instant::now();
        while self.timers.peek().is_some_and(|Reverse(t)| t.at <= now) {
            if let Some(Reverse(timer)) = self.timers.pop()
                && timer.cell.mark_woken()
            {
                filed.push(self.push(timer.cell, now));
            }
        }
        filed
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Executor;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A group with one task.
    fn group(executor: &Executor) -> (Arc<Group>, Arc<TaskCell>) {
        let group = Arc::new(Group::default());
        let cell = TaskCell::new(executor.shared(), &group);
        (group, cell)
    }

    /// One group's slices take ten times as long as another's: they get the same time, not the same number of slices.
    #[test]
    fn busy_groups_share_the_time() {
        let (mut queues, executor) = (Queues::default(), Executor::new(1));
        let now = Instant::now();
        let two = [group(&executor), group(&executor)];
        for (group, cell) in &two {
            // Heavy both, from the beginning.
            queues.charge(group, HEAVY_BURST * 2, now);
            assert_eq!(queues.push(Arc::clone(cell), now), Class::Heavy);
        }
        let mut slices = [0; 2];
        for _ in 0..1100 {
            let cell = queues.pop(Class::Heavy).unwrap();
            let long = usize::from(Arc::ptr_eq(&cell, &two[1].1));
            slices[long] += 1;
            queues.charge(&two[long].0, MS * if long == 1 { 10 } else { 1 }, now);
            queues.push(cell, now);
        }
        assert!((98..=102).contains(&slices[1]), "{slices:?}");
        // One that comes late is served next, and not for all that it has missed.
        let (late, cell) = group(&executor);
        queues.charge(&late, HEAVY_BURST * 2, now);
        queues.push(Arc::clone(&cell), now);
        let mut before = 0;
        for _ in 0..20 {
            let next = queues.pop(Class::Heavy).unwrap();
            if Arc::ptr_eq(&next, &cell) {
                before += 1;
            }
            queues.charge(&Arc::clone(&next.group), MS * 5, now);
            queues.push(next, now);
        }
        assert!(
            (5..=9).contains(&before),
            "{before} of 20 slices for one of three groups"
        );
    }

    /// What works all the time becomes heavy, what works now and then stays light, and a rest makes light again.
    #[test]
    fn long_work_is_heavy() {
        let (mut queues, executor) = (Queues::default(), Executor::new(1));
        let (busy, calm) = (group(&executor), group(&executor));
        let mut now = Instant::now();
        let mut classes = Vec::new();
        for _ in 0..100 {
            now += MS;
            queues.charge(&busy.0, MS, now);
            queues.charge(&calm.0, MS * 2 / 5, now);
            classes.push((busy.0.state.lock().class, calm.0.state.lock().class));
        }
        assert!(classes[..30].iter().all(|c| c.0 == Class::Light));
        assert!(classes[50..].iter().all(|c| c.0 == Class::Heavy));
        assert!(classes.iter().all(|c| c.1 == Class::Light));
        assert_eq!(queues.push(Arc::clone(&busy.1), now), Class::Heavy);
        assert!(queues.pop(Class::Light).is_none() && queues.pop(Class::Heavy).is_some());
        assert_eq!(queues.push(busy.1, now + MS * 100), Class::Light);
    }

    /// Who starves again soon rests longer.
    #[test]
    fn rests_grow_while_they_are_needed() {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        let mut rested = Vec::new();
        for _ in 0..7 {
            assert!(queue.rest(now) && !queue.rest(now), "once");
            let end = queue.rests(now).unwrap();
            rested.push(end - now);
            assert_eq!(queue.rests(end), None);
            now = end + MS * 700;
        }
        assert_eq!(rested, [1, 2, 4, 8, 16, 32, 32].map(Duration::from_secs));
        assert!(queue.rest(now + Duration::from_secs(60)));
        assert_eq!(queue.rest.map(|(_, time)| time), Some(REST_MIN));
    }

    /// A task that waits when its group changes its class is found in the other class.
    #[test]
    fn waiting_tasks_change_with_their_group() {
        let (mut queues, executor) = (Queues::default(), Executor::new(1));
        let now = Instant::now();
        let (one, cell) = group(&executor);
        assert_eq!(queues.push(cell, now), Class::Light);
        queues.charge(&one, HEAVY_BURST * 2, now);
        assert!(queues.pop(Class::Light).is_none());
        assert!(queues.pop(Class::Heavy).is_some());
        assert!(!queues.of(Class::Heavy).waits() && !queues.of(Class::Light).waits());
    }
}
