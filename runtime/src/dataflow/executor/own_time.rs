//! How long a thread worked, and how long it waited for a processor, as the operating system counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A thread that waited for this long altogether, and more than [`STARVED_RATIO`] times as long as it worked meanwhile, is starved. A burst of others' work is shorter.
const STARVED_WAIT: Duration = Duration::from_millis(500);
const STARVED_RATIO: u32 = 10;

/// The calling thread's figures since they were last asked for.
pub(super) struct OwnTime {
    /// Linux's `/proc/thread-self/schedstat`: nanoseconds on a processor, nanoseconds of waiting for one, turns.
    file: Option<File>,
    last: Spent,
    /// When it was last judged.
    judged: Spent,
}

/// Time of one thread.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Spent {
    worked: Duration,
    pub(super) waited: Duration,
}

impl Spent {
    /// Time on a processor.
    #[cfg(test)]
    pub(super) fn worked(self) -> Duration {
        self.worked
    }

    fn is_starved(self) -> bool {
        self.waited >= STARVED_WAIT && self.waited > self.worked * STARVED_RATIO
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            worked: self.worked.saturating_sub(earlier.worked),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

impl OwnTime {
    /// Begins now.
    pub(super) fn new() -> Self {
        let mut own = Self {
            file: File::open("/proc/thread-self/schedstat").ok(),
            last: Spent::default(),
            judged: Spent::default(),
        };
        own.spent();
        own.judged = own.last;
        own
    }

    /// Since the last call; nothing where the system does not tell.
    pub(super) fn spent(&mut self) -> Spent {
        let Some(now) = self.read() else {
            return Spent::default();
        };
        now.since(std::mem::replace(&mut self.last, now))
    }

    /// Whether others have had nearly all of the processors for long, as of the last call of [`OwnTime::spent`].
    pub(super) fn has_starved(&mut self) -> bool {
        let spent = self.last.since(self.judged);
        if spent.waited < STARVED_WAIT {
            return false;
        }
        self.judged = self.last;
        spent.is_starved()
    }

    fn read(&self) -> Option<Spent> {
        let mut text = [0; 80];
        let n = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let mut numbers = std::str::from_utf8(text.get(..n)?).ok()?.split_ascii_whitespace();
        let mut next = || Some(Duration::from_nanos(numbers.next()?.parse().ok()?));
        Some(Spent {
            worked: next()?,
            waited: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_counted_and_sleep_is_not() {
        let mut own = OwnTime::new();
        std::thread::park_timeout(Duration::from_millis(60));
        let slept = own.spent();
        assert!(slept.worked < Duration::from_millis(30), "{slept:?}");
        let started = Instant::now();
        while own.last.worked.is_zero()
            || own
                .read()
                .is_some_and(|now| now.worked < own.last.worked + Duration::from_millis(20))
        {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing is counted");
            std::hint::black_box((0..10_000).sum::<u64>());
        }
        let spent = own.spent();
        assert!(spent.worked >= Duration::from_millis(20), "{spent:?}");
    }

    #[test]
    fn starved_is_who_waits_much_longer_than_it_works() {
        let spent = |worked, waited| Spent {
            worked: Duration::from_millis(worked),
            waited: Duration::from_millis(waited),
        };
        assert!(spent(10, 600).is_starved() && spent(0, 500).is_starved());
        assert!(!spent(1, 400).is_starved() && !spent(100, 900).is_starved());
    }
}
