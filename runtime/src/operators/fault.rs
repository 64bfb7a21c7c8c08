//! Planted faults: one wrong behaviour per operator, so that tests can show that they would find it.
//!
//! Outside tests and the `planted-faults` feature, [`planted`] is constant `false` and costs nothing.

use crate::{Delta, Diffs};

/// The operator that misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Map drops the first retraction of each batch.
    Map = 1,
    /// Aggregate ignores the first retraction of each batch.
    Aggregate,
    /// Join forgets the first retraction of each batch.
    Join,
    /// Top-N ignores the first retraction of each batch.
    TopN,
    /// A window ignores the first retraction of each batch.
    Window,
    /// Union drops the first retraction of each batch.
    Union,
    /// Upsert takes the oldest record of a step for the newest.
    Upsert,
    /// A temporal filter ignores the first retraction of each batch.
    Temporal,
    /// State frozen for a checkpoint that has not completed is taken for clean.
    EvictFrozen,
    /// Values that are gone are forgotten before a checkpoint without them has completed.
    ForgetGone,
}

#[cfg(all(feature = "planted-faults", not(test)))]
mod switch {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Fault;

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a fault in the whole process, or takes it away.
    pub fn set(fault: Option<Fault>) {
        PLANTED.store(fault.map_or(0, |f| f as u8), Ordering::SeqCst);
    }

    /// Whether `fault` is planted.
    #[inline]
    pub fn planted(fault: Fault) -> bool {
        PLANTED.load(Ordering::Relaxed) == fault as u8
    }
}

/// In unit tests, which share a process, a fault is planted in one thread.
#[cfg(test)]
#[allow(
    clippy::items_after_test_module,
    reason = "a switch for tests, not a module of tests"
)]
mod switch {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault in this thread, or takes it away.
    pub fn set(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether `fault` is planted.
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(any(test, feature = "planted-faults"))]
pub use switch::{planted, set};

/// Whether `fault` is planted.
#[cfg(not(any(test, feature = "planted-faults")))]
#[inline(always)]
pub const fn planted(_fault: Fault) -> bool {
    false
}

/// The delta without its first retraction.
pub fn without_a_retraction(delta: Delta) -> Delta {
    let Diffs::Values(diffs) = &delta.diffs else {
        return delta;
    };
    let Some(at) = diffs.iter().position(|&d| d < 0) else {
        return delta;
    };
    let kept: Vec<u32> = (0..diffs.len() as u32).filter(|&i| i as usize != at).collect();
    delta.take(&kept.into()).unwrap_or(delta)
}
