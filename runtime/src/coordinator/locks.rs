//! Locks of open transactions: rows, tables, and the numbers of advisory locks.
//!
//! ```text
//!   tag ─▶ holders: owner 3 (FOR UPDATE)          queue: owner 5 (FOR UPDATE) ◀ owner 7 (FOR SHARE)
//! ```
//!
//! Readers take none: they read a snapshot. A writer locks the keys that it is about to change, so that whoever wants the same key
//! waits in a queue of its own and is woken once, in order, instead of losing at COMMIT and trying again. Locks are kept in memory
//! only: after a crash no transaction is open. The resolver ([`super::sequencer`]) still checks every commit.
//!
//! An *owner* is a session. What it holds ends with its transaction, except advisory locks taken for the session. A lock is granted
//! if no other owner holds, and nobody ahead in the queue wants, a conflicting mode; an owner that holds a weaker mode of the same
//! tag goes ahead of the queue. Before an owner waits, the graph of who waits for whom is searched: if that leads back to it, it
//! gets an error instead. Every wait is checked when it begins and a cycle closes with its last wait, so none is missed.
//!
//! A statement that changes very many keys keeps them as one sorted list (16 bytes a key) instead of one entry each.
//!
//! Cost: one mutex around a hash map; a lock and its release are two map operations.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use levee_planner::plan::ObjectId;
use levee_planner::sql::{RowLock, TableLock};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Result, RuntimeError};

/// From this number on the keys of a statement are kept as a list.
const BULK_KEYS: usize = 20_000;

/// A session, by its process id.
pub type Owner = i32;

/// What is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockTag {
    /// A row, by the hash of its key (see [`super::Engine::row_keys`]).
    Row(ObjectId, u128),
    /// A table.
    Table(ObjectId),
    /// An advisory lock's number; the flag tells one bigint from two integers.
    Advisory(bool, i64),
}

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockMode {
    bit: u16,
    conflicts: u16,
}

impl LockMode {
    /// A row's.
    pub fn row(strength: RowLock) -> Self {
        let (key_share, share, no_key, update) = (1, 2, 4, 8);
        let (bit, conflicts) = match strength {
            RowLock::KeyShare => (key_share, update),
            RowLock::Share => (share, no_key | update),
            RowLock::NoKeyUpdate => (no_key, share | no_key | update),
            RowLock::Update => (update, key_share | share | no_key | update),
        };
        Self { bit, conflicts }
    }

    /// A table's.
    pub fn table(mode: TableLock) -> Self {
        use TableLock as T;
        let bit = |m: TableLock| 1_u16 << (m as u16);
        let of = |modes: &[TableLock]| modes.iter().map(|m| bit(*m)).sum();
        let conflicts = match mode {
            T::AccessShare => of(&[T::AccessExclusive]),
            T::RowShare => of(&[T::Exclusive, T::AccessExclusive]),
            T::RowExclusive => of(&[T::Share, T::ShareRowExclusive, T::Exclusive, T::AccessExclusive]),
            T::ShareUpdateExclusive => of(&[
                T::ShareUpdateExclusive,
                T::Share,
                T::ShareRowExclusive,
                T::Exclusive,
                T::AccessExclusive,
            ]),
            T::Share => of(&[
                T::RowExclusive,
                T::ShareUpdateExclusive,
                T::ShareRowExclusive,
                T::Exclusive,
                T::AccessExclusive,
            ]),
            T::ShareRowExclusive => of(&[
                T::RowExclusive,
                T::ShareUpdateExclusive,
                T::Share,
                T::ShareRowExclusive,
                T::Exclusive,
                T::AccessExclusive,
            ]),
            T::Exclusive => 0xff & !bit(T::AccessShare),
            T::AccessExclusive => 0xff,
        };
        Self {
            bit: bit(mode),
            conflicts,
        }
    }

    /// An advisory lock's.
    pub fn advisory(shared: bool) -> Self {
        if shared {
            Self { bit: 1, conflicts: 2 }
        } else {
            Self { bit: 2, conflicts: 3 }
        }
    }
}

/// What an owner holds of one tag.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Modes until the transaction's end.
    txn: u16,
    /// Modes until the session's end.
    session: u16,
}

impl Held {
    fn all(self) -> u16 {
        self.txn | self.session
    }
}

#[derive(Debug)]
struct Waiter {
    owner: Owner,
    mode: LockMode,
    for_session: bool,
    granted: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Entry {
    holders: Vec<(Owner, Held)>,
    queue: VecDeque<Waiter>,
}

impl Entry {
    fn held_by(&self, owner: Owner) -> u16 {
        let found = self.holders.iter().find(|(o, _)| *o == owner);
        found.map_or(0, |(_, h)| h.all())
    }
}

/// Many rows of one table, locked FOR UPDATE by one statement.
#[derive(Debug)]
struct Bulk {
    owner: Owner,
    table: ObjectId,
    /// Position among the owner's locks, for savepoints.
    position: usize,
    keys: Vec<u128>,
}

impl Bulk {
    fn holds(&self, tag: LockTag) -> bool {
        matches!(tag, LockTag::Row(table, key) if table == self.table && self.keys.binary_search(&key).is_ok())
    }
}

#[derive(Debug, Default)]
struct OwnerState {
    /// Transaction-scoped modes in the order in which they were granted.
    order: Vec<(LockTag, u16)>,
    /// Times that the session took each advisory lock, by mode.
    session: HashMap<(LockTag, u16), u32>,
    /// What it waits for.
    waits: Option<LockTag>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<LockTag, Entry>,
    owners: HashMap<Owner, OwnerState>,
    bulks: Vec<Bulk>,
}

/// All locks of a process.
#[derive(Debug, Default)]
pub struct LockManager {
    state: Mutex<State>,
}

/// What came of asking for a lock without waiting.
#[derive(Debug)]
enum Asked {
    Granted,
    /// In the queue.
    Queued(oneshot::Receiver<()>),
    Busy,
}

/// What to do when a lock is held by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Wait for it.
    Wait,
    /// Give up at once.
    None,
}

impl LockManager {
    /// A session's share. Dropping it releases everything that the session holds.
    pub fn owner(self: &Arc<Self>, owner: Owner) -> LockOwner {
        LockOwner {
            manager: Arc::clone(self),
            owner,
            used: AtomicBool::new(false),
        }
    }

    /// Whether somebody waits behind `owner`.
    pub fn waiters(&self) -> usize {
        self.state.lock().entries.values().map(|e| e.queue.len()).sum()
    }
}

impl State {
    /// Owners other than `me` that hold what conflicts with `mode`.
    fn blockers(&self, tag: LockTag, mode: LockMode, me: Owner) -> Vec<Owner> {
        let mut found: Vec<Owner> = Vec::new();
        if let Some(entry) = self.entries.get(&tag) {
            let conflicting = entry.holders.iter().filter(|(_, h)| h.all() & mode.conflicts != 0);
            found.extend(conflicting.map(|(o, _)| *o).filter(|o| *o != me));
        }
        // A list holds FOR UPDATE, which conflicts with every mode of a row.
        let lists = self.bulks.iter().filter(|b| b.owner != me && b.holds(tag));
        found.extend(lists.map(|b| b.owner));
        found
    }

    fn grant(&mut self, tag: LockTag, mode: LockMode, owner: Owner, for_session: bool) {
        let entry = self.entries.entry(tag).or_default();
        let held = match entry.holders.iter().position(|(o, _)| *o == owner) {
            Some(i) => &mut entry.holders[i].1,
            None => {
                entry.holders.push((owner, Held::default()));
                let last = entry.holders.len() - 1;
                &mut entry.holders[last].1
            }
        };
        let state = self.owners.entry(owner).or_default();
        if for_session {
            held.session |= mode.bit;
            *state.session.entry((tag, mode.bit)).or_default() += 1;
        } else if held.txn & mode.bit == 0 {
            held.txn |= mode.bit;
            state.order.push((tag, mode.bit));
        }
    }

    fn ask(&mut self, tag: LockTag, mode: LockMode, me: Owner, for_session: bool, patience: Patience) -> Result<Asked> {
        let entry = self.entries.get(&tag);
        let mine = entry.map_or(0, |e| e.held_by(me));
        let queued = entry.is_some_and(|e| e.queue.iter().any(|w| w.mode.conflicts & mode.bit != 0));
        if self.blockers(tag, mode, me).is_empty() && (mine != 0 || !queued) {
            self.grant(tag, mode, me, for_session);
            return Ok(Asked::Granted);
        }
        if patience == Patience::None {
            return Ok(Asked::Busy);
        }
        let (granted, wake) = oneshot::channel();
        let waiter = Waiter {
            owner: me,
            mode,
            for_session,
            granted,
        };
        let queue = &mut self.entries.entry(tag).or_default().queue;
        if mine != 0 {
            queue.push_front(waiter);
        } else {
            queue.push_back(waiter);
        }
        self.owners.entry(me).or_default().waits = Some(tag);
        if let Some(cycle) = self.cycle(me) {
            self.leave_queue(tag, me);
            return Err(deadlock(&cycle));
        }
        Ok(Asked::Queued(wake))
    }

    /// Owners that `waiter` waits for.
    fn waits_for(&self, waiter: Owner) -> Vec<Owner> {
        let Some(tag) = self.owners.get(&waiter).and_then(|o| o.waits) else {
            return Vec::new();
        };
        let Some(entry) = self.entries.get(&tag) else {
            return Vec::new();
        };
        let Some(at) = entry.queue.iter().position(|w| w.owner == waiter) else {
            return Vec::new();
        };
        let mode = entry.queue[at].mode;
        let mut found = self.blockers(tag, mode, waiter);
        let ahead = entry.queue.iter().take(at);
        found.extend(ahead.filter(|w| w.mode.bit & mode.conflicts != 0).map(|w| w.owner));
        found
    }

    /// A chain of owners, each waiting for the next, that leads from `me` back to it.
    fn cycle(&self, me: Owner) -> Option<Vec<Owner>> {
        let mut path = vec![(me, self.waits_for(me))];
        let mut seen = HashSet::from([me]);
        while let Some((_, next)) = path.last_mut() {
            let Some(owner) = next.pop() else {
                path.pop();
                continue;
            };
            if owner == me {
                return Some(path.iter().map(|(o, _)| *o).collect());
            }
            if seen.insert(owner) {
                path.push((owner, self.waits_for(owner)));
            }
        }
        None
    }

    fn leave_queue(&mut self, tag: LockTag, owner: Owner) {
        if let Some(state) = self.owners.get_mut(&owner) {
            state.waits = None;
        }
        if let Some(entry) = self.entries.get_mut(&tag) {
            entry.queue.retain(|w| w.owner != owner);
        }
        self.pump(tag);
    }

    /// Grants what can be granted now, in the queue's order.
    fn pump(&mut self, tag: LockTag) {
        let mut at = 0;
        while let Some(waiter) = self.entries.get(&tag).and_then(|e| e.queue.get(at)) {
            let (owner, mode) = (waiter.owner, waiter.mode);
            let ahead = self.entries.get(&tag).is_some_and(|e| {
                let mut ahead = e.queue.iter().take(at);
                ahead.any(|w| w.mode.bit & mode.conflicts != 0)
            });
            if ahead || !self.blockers(tag, mode, owner).is_empty() {
                at += 1;
                continue;
            }
            let Some(waiter) = self.entries.get_mut(&tag).and_then(|e| e.queue.remove(at)) else {
                break;
            };
            if let Some(state) = self.owners.get_mut(&owner) {
                state.waits = None;
            }
            if waiter.granted.is_closed() {
                continue;
            }
            self.grant(tag, mode, owner, waiter.for_session);
            if waiter.granted.send(()).is_err() {
                tracing::debug!(owner, "a session left while a lock was being granted to it");
            }
        }
        let idle = |e: &Entry| e.holders.is_empty() && e.queue.is_empty();
        if self.entries.get(&tag).is_some_and(idle) {
            self.entries.remove(&tag);
        }
    }

    fn release(&mut self, tag: LockTag, bit: u16, owner: Owner, of_session: bool) {
        if let Some(entry) = self.entries.get_mut(&tag)
            && let Some(i) = entry.holders.iter().position(|(o, _)| *o == owner)
        {
            let held = &mut entry.holders[i].1;
            if of_session {
                held.session &= !bit;
            } else {
                held.txn &= !bit;
            }
            if held.all() == 0 {
                entry.holders.swap_remove(i);
            }
        }
        self.pump(tag);
    }

    /// Releases what the owner's transaction took after position `mark`.
    fn release_to(&mut self, owner: Owner, mark: usize) {
        let taken = match self.owners.get_mut(&owner) {
            Some(state) if state.order.len() > mark => state.order.split_off(mark),
            _ => Vec::new(),
        };
        let lists = self.bulks.len();
        self.bulks.retain(|b| b.owner != owner || b.position < mark);
        for (tag, bit) in taken.into_iter().rev() {
            self.release(tag, bit, owner, false);
        }
        if self.bulks.len() < lists {
            let waited: Vec<LockTag> = self.owners.values().filter_map(|o| o.waits).collect();
            for tag in waited {
                self.pump(tag);
            }
        }
    }

    /// A key of the list that others hold.
    fn bulk_conflict(&self, table: ObjectId, keys: &[u128], me: Owner) -> Option<u128> {
        let taken = |tag: LockTag, entry: &Entry| {
            let held = entry.holders.iter().any(|(o, _)| *o != me);
            match tag {
                LockTag::Row(t, key) if t == table && held && keys.binary_search(&key).is_ok() => Some(key),
                _ => None,
            }
        };
        let single = self.entries.iter().find_map(|(tag, entry)| taken(*tag, entry));
        if single.is_some() {
            return single;
        }
        let lists = self.bulks.iter().filter(|b| b.owner != me && b.table == table);
        lists
            .flat_map(|b| &b.keys)
            .find(|k| keys.binary_search(k).is_ok())
            .copied()
    }
}

fn deadlock(cycle: &[Owner]) -> RuntimeError {
    let mut detail = Vec::with_capacity(cycle.len());
    for (i, owner) in cycle.iter().enumerate() {
        let next = cycle.get(i + 1).or_else(|| cycle.first()).unwrap_or(owner);
        detail.push(format!("Process {owner} waits for process {next}."));
    }
    RuntimeError::Deadlock(detail.join("\n"))
}

/// A session's locks.
#[derive(Debug)]
pub struct LockOwner {
    manager: Arc<LockManager>,
    owner: Owner,
    used: AtomicBool,
}

impl LockOwner {
    /// Takes a lock; true if it had to wait. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`RuntimeError::Deadlock`]; [`RuntimeError::Locked`] without patience.
    pub async fn lock(&self, tag: LockTag, mode: LockMode, patience: Patience) -> Result<bool> {
        self.lock_scoped(tag, mode, false, patience).await
    }

    /// Takes an advisory lock until the session's end, or until it is given back as often as it was taken.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn lock_for_session(&self, tag: LockTag, mode: LockMode, patience: Patience) -> Result<bool> {
        self.lock_scoped(tag, mode, true, patience).await
    }

    /// Takes a lock if it is free.
    pub fn try_lock(&self, tag: LockTag, mode: LockMode) -> bool {
        self.used.store(true, Ordering::Release);
        let asked = self
            .manager
            .state
            .lock()
            .ask(tag, mode, self.owner, false, Patience::None);
        matches!(asked, Ok(Asked::Granted))
    }

    async fn lock_scoped(&self, tag: LockTag, mode: LockMode, for_session: bool, patience: Patience) -> Result<bool> {
        self.used.store(true, Ordering::Release);
        let asked = self
            .manager
            .state
            .lock()
            .ask(tag, mode, self.owner, for_session, patience)?;
        match asked {
            Asked::Granted => Ok(false),
            Asked::Busy => Err(RuntimeError::Locked),
            Asked::Queued(wake) => {
                let queued = Queued { owner: self, tag };
                let woken = wake.await;
                std::mem::forget(queued);
                woken.map_err(|_| RuntimeError::internal("a lock's queue was dropped"))?;
                Ok(true)
            }
        }
    }

    /// Locks rows FOR UPDATE or weaker, in the order of their hashes so that two statements do not cross; true if it had to wait.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn lock_rows(
        &self,
        table: ObjectId,
        mut keys: Vec<u128>,
        strength: RowLock,
        patience: Patience,
    ) -> Result<bool> {
        keys.sort_unstable();
        keys.dedup();
        let mut waited = false;
        if keys.len() < BULK_KEYS || strength != RowLock::Update {
            let mode = LockMode::row(strength);
            for key in keys {
                waited |= self.lock(LockTag::Row(table, key), mode, patience).await?;
            }
            return Ok(waited);
        }
        self.used.store(true, Ordering::Release);
        loop {
            let busy = {
                let mut state = self.manager.state.lock();
                let busy = state.bulk_conflict(table, &keys, self.owner);
                if busy.is_none() {
                    let position = state.owners.entry(self.owner).or_default().order.len();
                    state.bulks.push(Bulk {
                        owner: self.owner,
                        table,
                        position,
                        keys: std::mem::take(&mut keys),
                    });
                }
                busy
            };
            let Some(key) = busy else { return Ok(waited) };
            let tag = LockTag::Row(table, key);
            waited |= self.lock(tag, LockMode::row(RowLock::Update), patience).await?;
        }
    }

    /// Position in the order of the transaction's locks: a savepoint's mark.
    pub fn mark(&self) -> usize {
        self.manager
            .state
            .lock()
            .owners
            .get(&self.owner)
            .map_or(0, |o| o.order.len())
    }

    /// Releases the transaction's locks that were taken after `mark`; 0: all.
    pub fn release_to(&self, mark: usize) {
        if self.used.load(Ordering::Acquire) {
            self.manager.state.lock().release_to(self.owner, mark);
        }
    }

    /// Gives back an advisory lock of the session; false if it does not hold it.
    pub fn unlock_session(&self, tag: LockTag, mode: LockMode) -> bool {
        let mut state = self.manager.state.lock();
        let Some(owner) = state.owners.get_mut(&self.owner) else {
            return false;
        };
        let Some(times) = owner.session.get_mut(&(tag, mode.bit)) else {
            return false;
        };
        *times -= 1;
        if *times == 0 {
            owner.session.remove(&(tag, mode.bit));
            state.release(tag, mode.bit, self.owner, true);
        }
        true
    }

    /// Gives back all advisory locks of the session.
    pub fn unlock_session_all(&self) {
        let mut state = self.manager.state.lock();
        let held = match state.owners.get_mut(&self.owner) {
            Some(owner) => std::mem::take(&mut owner.session),
            None => return,
        };
        for (tag, bit) in held.into_keys() {
            state.release(tag, bit, self.owner, true);
        }
    }
}

impl Drop for LockOwner {
    fn drop(&mut self) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        self.release_to(0);
        self.unlock_session_all();
        self.manager.state.lock().owners.remove(&self.owner);
    }
}

/// Leaves the queue when the wait is given up.
struct Queued<'a> {
    owner: &'a LockOwner,
    tag: LockTag,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut state = self.owner.manager.state.lock();
        state.leave_queue(self.tag, self.owner.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: u128) -> LockTag {
        LockTag::Row(ObjectId(1), key)
    }

    fn update() -> LockMode {
        LockMode::row(RowLock::Update)
    }

    /// Polls once; `None` while it waits.
    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(v) => Some(v),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_queue_is_served_in_order() {
        let manager = Arc::new(LockManager::default());
        let (a, b, c) = (manager.owner(1), manager.owner(2), manager.owner(3));
        let mut first = std::pin::pin!(a.lock(row(7), update(), Patience::Wait));
        assert!(matches!(poll(first.as_mut()), Some(Ok(false))));
        let mut second = std::pin::pin!(b.lock(row(7), update(), Patience::Wait));
        let mut third = std::pin::pin!(c.lock(row(7), update(), Patience::Wait));
        assert!(poll(second.as_mut()).is_none());
        assert!(poll(third.as_mut()).is_none());
        a.release_to(0);
        assert!(matches!(poll(second.as_mut()), Some(Ok(true))));
        assert!(poll(third.as_mut()).is_none());
        b.release_to(0);
        assert!(matches!(poll(third.as_mut()), Some(Ok(true))));
        c.release_to(0);
        assert!(manager.state.lock().entries.is_empty());
    }

    #[test]
    fn a_cycle_is_an_error_for_the_one_that_closes_it() {
        let manager = Arc::new(LockManager::default());
        let (a, b) = (manager.owner(1), manager.owner(2));
        assert!(matches!(
            poll(std::pin::pin!(a.lock(row(1), update(), Patience::Wait))),
            Some(Ok(false))
        ));
        assert!(matches!(
            poll(std::pin::pin!(b.lock(row(2), update(), Patience::Wait))),
            Some(Ok(false))
        ));
        let mut waits = std::pin::pin!(a.lock(row(2), update(), Patience::Wait));
        assert!(poll(waits.as_mut()).is_none());
        let closes = poll(std::pin::pin!(b.lock(row(1), update(), Patience::Wait)));
        assert!(matches!(closes, Some(Err(RuntimeError::Deadlock(_)))), "{closes:?}");
        b.release_to(0);
        assert!(matches!(poll(waits.as_mut()), Some(Ok(true))));
    }

    #[test]
    fn shares_go_together_and_an_upgrade_goes_ahead() {
        let manager = Arc::new(LockManager::default());
        let (a, b, c) = (manager.owner(1), manager.owner(2), manager.owner(3));
        let share = LockMode::row(RowLock::Share);
        for owner in [&a, &b] {
            assert!(matches!(
                poll(std::pin::pin!(owner.lock(row(1), share, Patience::Wait))),
                Some(Ok(false))
            ));
        }
        let mut writer = std::pin::pin!(c.lock(row(1), update(), Patience::Wait));
        assert!(poll(writer.as_mut()).is_none());
        let mut upgrade = std::pin::pin!(a.lock(row(1), update(), Patience::Wait));
        assert!(poll(upgrade.as_mut()).is_none());
        // The other sharer closes the cycle when it wants the same.
        let closes = poll(std::pin::pin!(b.lock(row(1), update(), Patience::Wait)));
        assert!(matches!(closes, Some(Err(RuntimeError::Deadlock(_)))));
        b.release_to(0);
        assert!(matches!(poll(upgrade.as_mut()), Some(Ok(true))));
        assert!(poll(writer.as_mut()).is_none());
        a.release_to(0);
        assert!(matches!(poll(writer.as_mut()), Some(Ok(true))));
    }

    #[test]
    fn who_gives_up_leaves_the_queue() {
        let manager = Arc::new(LockManager::default());
        let (a, b, c) = (manager.owner(1), manager.owner(2), manager.owner(3));
        assert!(matches!(
            poll(std::pin::pin!(a.lock(row(1), update(), Patience::Wait))),
            Some(Ok(false))
        ));
        {
            let mut gone = std::pin::pin!(b.lock(row(1), update(), Patience::Wait));
            assert!(poll(gone.as_mut()).is_none());
        }
        assert_eq!(manager.waiters(), 0);
        assert!(matches!(
            poll(std::pin::pin!(c.lock(row(1), update(), Patience::None))),
            Some(Err(RuntimeError::Locked))
        ));
        drop(a);
        assert!(matches!(
            poll(std::pin::pin!(c.lock(row(1), update(), Patience::None))),
            Some(Ok(false))
        ));
    }

    #[test]
    fn savepoints_release_what_came_after_them() {
        let manager = Arc::new(LockManager::default());
        let (a, b) = (manager.owner(1), manager.owner(2));
        assert!(poll(std::pin::pin!(a.lock(row(1), update(), Patience::Wait))).is_some());
        let mark = a.mark();
        assert!(poll(std::pin::pin!(a.lock(row(2), update(), Patience::Wait))).is_some());
        a.release_to(mark);
        assert!(matches!(
            poll(std::pin::pin!(b.lock(row(2), update(), Patience::None))),
            Some(Ok(false))
        ));
        assert!(matches!(
            poll(std::pin::pin!(b.lock(row(1), update(), Patience::None))),
            Some(Err(RuntimeError::Locked))
        ));
    }

    #[test]
    fn a_list_of_keys_locks_each_of_them() {
        let manager = Arc::new(LockManager::default());
        let (a, b) = (manager.owner(1), manager.owner(2));
        let many: Vec<u128> = (0..BULK_KEYS as u128).collect();
        let lock = poll(std::pin::pin!(a.lock_rows(
            ObjectId(1),
            many.clone(),
            RowLock::Update,
            Patience::Wait
        )));
        assert!(matches!(lock, Some(Ok(false))));
        let mut one = std::pin::pin!(b.lock_rows(ObjectId(1), vec![5], RowLock::Update, Patience::Wait));
        assert!(poll(one.as_mut()).is_none());
        let other_table = poll(std::pin::pin!(b.lock(
            LockTag::Row(ObjectId(2), 5),
            update(),
            Patience::None
        )));
        assert!(matches!(other_table, Some(Ok(false))));
        a.release_to(0);
        assert!(matches!(poll(one.as_mut()), Some(Ok(true))));
        let mut all = std::pin::pin!(a.lock_rows(ObjectId(1), many, RowLock::Update, Patience::Wait));
        assert!(poll(all.as_mut()).is_none());
        b.release_to(0);
        assert!(matches!(poll(all.as_mut()), Some(Ok(true))));
    }

    #[test]
    fn advisory_locks_count_and_last_for_the_session() {
        let manager = Arc::new(LockManager::default());
        let (a, b) = (manager.owner(1), manager.owner(2));
        let tag = LockTag::Advisory(true, 9);
        let mode = LockMode::advisory(false);
        for _ in 0..2 {
            assert!(poll(std::pin::pin!(a.lock_for_session(tag, mode, Patience::Wait))).is_some());
        }
        a.release_to(0);
        assert!(a.unlock_session(tag, mode));
        assert!(matches!(
            poll(std::pin::pin!(b.lock(tag, mode, Patience::None))),
            Some(Err(RuntimeError::Locked))
        ));
        assert!(a.unlock_session(tag, mode));
        assert!(!a.unlock_session(tag, mode));
        assert!(matches!(
            poll(std::pin::pin!(b.lock(tag, mode, Patience::None))),
            Some(Ok(false))
        ));
    }
}
