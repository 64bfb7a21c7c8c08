//! The resolver's memory: which key was last written at which epoch.
//!
//! The sequencer enters each commit's keys before it answers, sessions ask before they rely on what they have read. The window is
//! bounded: when it is full it is forgotten, and from then on every key may have been written up to that epoch.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::{Governor, Holder, Share};

/// Keys remembered before the window moves up, at most, about 200 MB; …
const KEYS_MAX: usize = 4_000_000;
/// … and at least, so that with hardly any memory not every write conflicts with every other.
const KEYS_MIN: usize = 16_384;
/// The part of the memory budget that the window may have.
const BUDGET_PARTS: usize = 32;
/// Bytes of a key in a hash table that has just grown.
const KEY_BYTES: usize = 72;

/// Last writes by key.
#[derive(Debug)]
pub struct WriteWindow {
    state: Mutex<State>,
    keys_max: usize,
    held: Holder,
}

#[derive(Debug, Default)]
struct State {
    last: HashMap<u128, u64>,
    /// Writes up to this epoch have been forgotten.
    start: u64,
}

impl WriteWindow {
    /// An empty window that takes a small part of the process's memory.
    pub fn new(memory: &Arc<Governor>) -> Self {
        Self {
            state: Mutex::default(),
            keys_max: (memory.limit() / BUDGET_PARTS / KEY_BYTES).clamp(KEYS_MIN, KEYS_MAX),
            held: memory.holder(Share::Queries),
        }
    }

    /// Knows of nothing up to `epoch`.
    pub fn restart_at(&self, epoch: u64) {
        let mut state = self.state.lock();
        state.last.clear();
        state.start = epoch;
    }

    /// Some key has, or may have, been written after `snapshot`.
    pub fn written_after(&self, keys: &[u128], snapshot: u64) -> bool {
        let state = self.state.lock();
        let late = |k: &u128| state.last.get(k).is_some_and(|&e| e > snapshot);
        !keys.is_empty() && (snapshot < state.start || keys.iter().any(late))
    }

    /// The newest epoch at which one of the keys was, or may have been, written.
    pub fn newest(&self, keys: &[u128]) -> u64 {
        let state = self.state.lock();
        let known = keys.iter().filter_map(|k| state.last.get(k)).max();
        known.copied().unwrap_or(0).max(state.start)
    }

    /// Enters the keys of an epoch.
    pub fn enter(&self, keys: impl Iterator<Item = u128>, epoch: u64) {
        let mut state = self.state.lock();
        for key in keys {
            state.last.insert(key, epoch);
            if state.last.len() > self.keys_max {
                state.last = HashMap::new();
                state.start = epoch;
                break;
            }
        }
        self.held.set(state.last.capacity() * KEY_BYTES / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_late_for_snapshots_before_its_last_write() {
        let window = WriteWindow::new(&Governor::new(1 << 30));
        window.enter([7, 8].into_iter(), 5);
        window.enter([8].into_iter(), 9);
        assert!(window.written_after(&[7], 4));
        assert!(!window.written_after(&[7], 5));
        assert!(window.written_after(&[7, 8], 5));
        assert!(!window.written_after(&[1], 0));
        assert_eq!(window.newest(&[7, 8, 1]), 9);
        assert_eq!(window.newest(&[1]), 0);
    }

    #[test]
    fn what_is_forgotten_may_have_been_written() {
        let window = WriteWindow::new(&Governor::new(1 << 30));
        window.restart_at(10);
        assert!(window.written_after(&[1], 9));
        assert!(!window.written_after(&[1], 10));
        assert!(!window.written_after(&[], 0));
        assert_eq!(window.newest(&[1]), 10);
    }

    #[test]
    fn it_keeps_to_its_part_of_the_budget() {
        let memory = Governor::new(1000);
        let window = WriteWindow::new(&memory);
        window.enter(0..10_000, 5);
        assert!(memory.used(Share::Queries) > 0);
        assert!(!window.written_after(&[70_000], 4));
        window.enter(10_000..30_000, 6);
        assert!(window.written_after(&[70_000], 5) && !window.written_after(&[70_000], 6));
        assert_eq!(memory.used(Share::Queries), 0);
    }
}
