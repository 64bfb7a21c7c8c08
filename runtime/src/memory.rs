//! The memory governor: one budget, cut into shares, and what each share's holders say that they hold.
//!
//! ```text
//!   --memory-limit ─┬─ operator state 30 %   ◀── Holder::set(bytes) ── task 3.0 of region 17, …
//!                   ├─ relations 15 %, runs 10 %, dirty 10 %
//!                   ├─ channels 5 %, sources 5 %, queries 15 %
//!                   └─ RocksDB's cache 10 %
//! ```
//!
//! Nothing is allocated through it: holders report what they hold, whenever that is cheap, and ask [`Governor::excess`]
//! what they should give back, by evicting, spilling, checkpointing early or pacing. A share may borrow what the others
//! leave free as long as the whole stays under [`BORROW_PERCENT`]; so one busy view on an idle server has most of the
//! memory, and gives it back when others need theirs.
//!
//! What the process holds beyond that, which nobody reports (pieces of work, what vectors have in reserve, what the allocators keep back), is
//! measured now and then ([`Governor::measure`]) and taken off the limit before it is cut into shares, down to half of it: holders
//! then give back so much more that the process stays near its limit, whatever the reason.
//!
//! Atomics only: reading a share is one load a share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Up to this part of the limit shares may borrow from each other.
pub const BORROW_PERCENT: usize = 75;
/// What the process has resident before it holds anything.
const FIXED_BYTES: usize = 32 << 20;

/// What memory is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Resident operator state.
    State,
    /// Resident bases of relations.
    Relations,
    /// Resident runs of relations: change logs.
    Runs,
    /// State changed since the last completed checkpoint, frozen parts included.
    Dirty,
    /// Batches in exchange channels and step logs.
    Channels,
    /// Fetched records of sources, and writes waiting for their table's step.
    Sources,
    /// Queries, and rows that sessions gather for their writes.
    Queries,
    /// RocksDB's block cache and write buffers.
    Rocks,
}

impl Share {
    /// All shares.
    pub const ALL: [Self; 8] = [
        Self::State,
        Self::Relations,
        Self::Runs,
        Self::Dirty,
        Self::Channels,
        Self::Sources,
        Self::Queries,
        Self::Rocks,
    ];

    /// Percent of the limit.
    const fn percent(self) -> usize {
        match self {
            Self::State => 30,
            Self::Relations | Self::Queries => 15,
            Self::Runs | Self::Dirty | Self::Rocks => 10,
            Self::Channels | Self::Sources => 5,
        }
    }

    /// Name in `levee_catalog.memory`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "operator state",
            Self::Relations => "relations",
            Self::Runs => "runs",
            Self::Dirty => "dirty state",
            Self::Channels => "exchange channels",
            Self::Sources => "sources",
            Self::Queries => "queries",
            Self::Rocks => "rocksdb cache",
        }
    }
}

/// The process's memory budget.
#[derive(Debug)]
pub struct Governor {
    limit: usize,
    used: [AtomicUsize; Share::ALL.len()],
    /// Bytes that are resident and reported by nobody.
    unreported: AtomicUsize,
}

impl Governor {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: Default::default(),
            unreported: AtomicUsize::new(0),
        })
    }

    /// The whole budget.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What the process has resident, program text and mapped files aside, is so much.
    pub fn measure(&self, resident: usize) {
        let unreported = resident.saturating_sub(self.used_in_all()).saturating_sub(FIXED_BYTES);
        self.unreported.store(unreported, Ordering::Relaxed);
    }

    /// What there is to share: the limit without what nobody reports.
    fn room(&self) -> usize {
        self.limit - self.unreported.load(Ordering::Relaxed).min(self.limit / 2)
    }

    /// Bytes of a share.
    pub fn share(&self, share: Share) -> usize {
        self.room() / 100 * share.percent()
    }

    /// Bytes that the holders of a share report.
    pub fn used(&self, share: Share) -> usize {
        self.used[share as usize].load(Ordering::Relaxed)
    }

    /// Bytes that all holders report.
    pub fn used_in_all(&self) -> usize {
        Share::ALL.iter().map(|share| self.used(*share)).sum()
    }

    /// Bytes that a share's holders should give back together: those above its share, unless other shares leave room.
    pub fn excess(&self, share: Share) -> usize {
        let above = self.used(share).saturating_sub(self.share(share));
        if above == 0 {
            return 0;
        }
        let soft = self.room() / 100 * BORROW_PERCENT;
        above.min(self.used_in_all().saturating_sub(soft))
    }

    /// Whether a share's holders should give something back.
    pub fn over(&self, share: Share) -> bool {
        self.excess(share) > 0
    }

    /// Takes `bytes` for a share if it may have them, by its own share or by borrowing.
    pub fn try_take(&self, share: Share, bytes: usize) -> bool {
        let used = &self.used[share as usize];
        let now = used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let soft = self.room() / 100 * BORROW_PERCENT;
        if now <= self.share(share) || self.used_in_all() <= soft {
            return true;
        }
        used.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Counts `bytes` without asking.
    pub fn take(&self, share: Share, bytes: usize) {
        self.used[share as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub fn give(&self, share: Share, bytes: usize) {
        self.used[share as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A holder of nothing yet.
    pub fn holder(self: &Arc<Self>, share: Share) -> Holder {
        Holder {
            governor: Arc::clone(self),
            share,
            bytes: AtomicUsize::new(0),
        }
    }
}

/// Reports what one part of the process holds; nothing once it is dropped.
#[derive(Debug)]
pub struct Holder {
    governor: Arc<Governor>,
    share: Share,
    bytes: AtomicUsize,
}

impl Holder {
    /// Says how much is held now.
    pub fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let used = &self.governor.used[self.share as usize];
        if bytes >= before {
            used.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            used.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }

    /// What was said last.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The governor.
    pub fn governor(&self) -> &Arc<Governor> {
        &self.governor
    }

    /// What this holder should give back: its part of the share's excess, in proportion to what it holds.
    pub fn excess(&self) -> usize {
        let all = self.governor.used(self.share).max(1);
        let excess = self.governor.excess(self.share);
        (self.bytes() as u128 * excess as u128 / all as u128) as usize
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_whole() {
        assert_eq!(Share::ALL.iter().map(|s| s.percent()).sum::<usize>(), 100);
        for (i, share) in Share::ALL.iter().enumerate() {
            assert_eq!(*share as usize, i);
        }
    }

    #[test]
    fn a_share_borrows_what_others_leave_and_gives_it_back() {
        let governor = Governor::new(1000);
        let state = governor.holder(Share::State);
        state.set(700);
        assert!(!governor.over(Share::State), "the rest of the process is idle");
        let relations = governor.holder(Share::Relations);
        relations.set(150);
        assert_eq!(governor.excess(Share::State), 100);
        assert!(!governor.over(Share::Relations), "it is inside its own share");
        assert_eq!(state.excess(), 100);
        state.set(600);
        assert!(!governor.over(Share::State));
        drop(relations);
        drop(state);
        assert_eq!(governor.used_in_all(), 0);
    }

    #[test]
    fn what_nobody_reports_leaves_less_to_share() {
        let governor = Governor::new(100 << 20);
        let state = governor.holder(Share::State);
        state.set(60 << 20);
        governor.measure(FIXED_BYTES + (60 << 20));
        assert!(!governor.over(Share::State));
        governor.measure(FIXED_BYTES + (100 << 20));
        assert_eq!(governor.share(Share::State), (60 << 20) / 100 * 30);
        assert_eq!(
            governor.excess(Share::State),
            (60 << 20) - (60 << 20) / 100 * BORROW_PERCENT
        );
        // At most a half goes.
        governor.measure(1 << 30);
        assert_eq!(governor.share(Share::State), (50 << 20) / 100 * 30);
        governor.measure(0);
        assert_eq!(governor.share(Share::State), (100 << 20) / 100 * 30);
    }

    #[test]
    fn what_cannot_be_had_is_not_counted() {
        let governor = Governor::new(1000);
        assert!(governor.try_take(Share::Queries, 700));
        assert!(!governor.try_take(Share::Queries, 100));
        assert_eq!(governor.used(Share::Queries), 700);
        governor.give(Share::Queries, 700);
        governor.take(Share::State, 900);
        assert!(governor.try_take(Share::Queries, 150), "its own share is its own");
        assert!(!governor.try_take(Share::Queries, 1));
    }
}
