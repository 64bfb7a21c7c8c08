//! The one place where the runtime reads wall-clock time.

/// Source of timestamps for the sequencer.
pub trait Clock: Send + Sync {
    /// Microseconds since 1970 UTC.
    fn now_us(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the port itself")]
    fn now_us(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
    }
}
