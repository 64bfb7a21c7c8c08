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
    pass(PATIENCE * 2);
    go_on.send(()).unwrap();
    executor.shutdown();
    assert!(
        stuck.slices().0 > 0 && stuck.slices().1 >= 5000,
        "a long slice was not counted"
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

/// Lets time go by.
fn pass(time: Duration) {
    let (_nobody, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(time).is_err());
}

/// A spare thread goes back to sleep when the others are free again; a timer that it set fires all the same.
#[test]
fn timers_of_spare_threads_fire() {
    struct Long;
    impl Job for Long {
        fn poll(&mut self) -> Poll {
            pass(PATIENCE * 4);
            Poll::Done
        }
    }
    struct Pauses(bool, mpsc::Sender<()>);
    impl Job for Pauses {
        fn poll(&mut self) -> Poll {
            if std::mem::replace(&mut self.0, true) {
                self.1.send(()).unwrap();
                return Poll::Done;
            }
            // Longer than the other slice, so that the thread that is not spare sleeps by then.
            pass(PATIENCE * 8);
            Poll::IdleUntil(Instant::now() + PATIENCE)
        }
    }
    let executor = Executor::new(1);
    let long = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
    long.set_job(Box::new(Long));
    long.wake();
    let (done, finished) = mpsc::channel();
    let pauses = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
    pauses.set_job(Box::new(Pauses(false, done)));
    pauses.wake();
    finished.recv_timeout(Duration::from_secs(20)).unwrap();
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

/// Takes half a second of a processor.
struct Works(Duration, mpsc::Sender<()>);

impl Job for Works {
    fn poll(&mut self) -> Poll {
        let mut own = OwnTime::new();
        let mut worked = Duration::ZERO;
        while worked < Duration::from_millis(2) {
            std::hint::black_box((0..100_000).sum::<u64>());
            worked += own.spent().worked();
        }
        self.0 += worked;
        if self.0 < Duration::from_millis(500) {
            return Poll::Yield;
        }
        self.1.send(()).unwrap();
        Poll::Done
    }
}

/// A region that works for long has its share also where others want all processors all the time: the system alone would give it three parts in a thousand.
#[test]
fn heavy_regions_do_not_starve() {
    let executor = Executor::new(2);
    let stop = Arc::new(AtomicUsize::new(0));
    let processors = std::thread::available_parallelism().unwrap().get();
    let others: Vec<_> = (0..processors)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while stop.load(Ordering::Relaxed) == 0 {
                    std::hint::black_box((0..100_000).sum::<u64>());
                }
            })
        })
        .collect();
    let (done, finished) = mpsc::channel();
    let cell = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
    cell.set_job(Box::new(Works(Duration::ZERO, done)));
    cell.wake();
    finished.recv_timeout(Duration::from_secs(60)).unwrap();
    stop.store(1, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    executor.shutdown();
}

/// A slice that lasts as long as it is told to, and then more of the same.
struct Held(Vec<Poll>, mpsc::Sender<()>, mpsc::Receiver<()>);

impl Job for Held {
    fn poll(&mut self) -> Poll {
        self.1.send(()).unwrap();
        self.2.recv_timeout(Duration::from_secs(60)).unwrap();
        self.0.pop().unwrap_or(Poll::Done)
    }
}

/// A spare thread yields a task while the class's own thread sleeps, which has not been told of it.
#[test]
fn what_a_spare_thread_leaves_is_taken_up() {
    let executor = Executor::new(1);
    let held = |polls: Vec<Poll>| {
        let ((began, begins), (go, goes)) = (mpsc::channel(), mpsc::channel());
        let cell = TaskCell::new(executor.shared(), &Arc::new(Group::default()));
        cell.set_job(Box::new(Held(polls, began, goes)));
        cell.wake();
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        (begins, go)
    };
    let (_first, go_first) = held(vec![]);
    // The only thread is in the first one's slice: a spare one takes this.
    let (second, go_second) = held(vec![Poll::Yield]);
    go_first.send(()).unwrap();
    let started = Instant::now();
    while executor.shared().queues.lock().of(Class::Light).sleeping == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "the thread does not sleep");
        pass(Duration::from_millis(1));
    }
    go_second.send(()).unwrap();
    second.recv_timeout(Duration::from_secs(10)).expect("the task goes on");
    go_second.send(()).unwrap();
    executor.shutdown();
}
