//! Keys of a join, shared by both sides: one probe finds a key's rows on either side.

use super::super::aggregate::accumulator::relocate;
use super::super::cold::Residency;
use super::super::keys::KeyIndex;
use super::state::{Heads, NONE};
use crate::{Result, RuntimeError};

/// Changed since the last snapshot.
const CHANGED: u8 = 1;
/// A snapshot holds the key.
const PERSISTED: u8 = 2;
/// The key's rows have entries of their own.
const WIDE: u8 = 4;

/// Bytes of rows that are written together, as the key's value.
const NARROW_BYTES: u32 = if cfg!(test) { 80 } else { 4096 };

/// What is kept for a key.
#[derive(Debug, Clone)]
struct KeyState {
    heads: [u32; 2],
    /// Total multiplicity of each side's rows.
    weights: [i64; 2],
    refs: i32,
    /// Index in the touched list, or [`NONE`].
    touch: u32,
    /// When it was last used, see [`super::super::cold`].
    stamp: u32,
    /// Bytes of the rows in both chains.
    row_bytes: u32,
    flags: u8,
}

const EMPTY: KeyState = KeyState {
    heads: [NONE; 2],
    weights: [0; 2],
    refs: 0,
    touch: NONE,
    stamp: 0,
    row_bytes: 0,
    flags: 0,
};

/// Keys with their chains and weights.
pub struct Keys {
    /// Key columns → slot.
    pub index: KeyIndex,
    states: Vec<KeyState>,
    /// Keys touched in the step, with their weights before it.
    touched: Vec<(u32, [i64; 2])>,
    /// Keys that may have no rows left.
    idle: Vec<u32>,
    changed: Vec<u32>,
    /// Keys without rows that the last completed checkpoint may still hold.
    dead: Vec<u32>,
    /// What is where.
    pub residency: Residency,
}

impl Keys {
    /// No keys.
    pub fn new(index: KeyIndex) -> Self {
        Self {
            index,
            states: Vec::new(),
            touched: Vec::new(),
            idle: Vec::new(),
            changed: Vec::new(),
            dead: Vec::new(),
            residency: Residency::default(),
        }
    }

    /// Makes room for the index's slots.
    pub fn grow(&mut self) {
        if self.states.len() < self.index.n_slots() {
            self.states.resize(self.index.n_slots(), EMPTY);
        }
    }

    /// The head of a side's chain.
    #[inline]
    pub fn head_of(&self, key: u32, side: usize) -> u32 {
        self.states[key as usize].heads[side]
    }

    /// One side's chains.
    pub fn chains(&mut self, side: usize) -> Chains<'_> {
        Chains { keys: self, side }
    }

    /// Notes that a key's rows change.
    #[inline]
    pub fn mark_changed(&mut self, key: u32) {
        let state = &mut self.states[key as usize];
        if state.flags & CHANGED == 0 {
            state.flags |= CHANGED;
            state.stamp = self.residency.stamp();
            self.changed.push(key);
        }
    }

    /// Adds to a side's total multiplicity.
    pub fn add_weight(&mut self, key: u32, side: usize, by: i64) {
        let state = &mut self.states[key as usize];
        if state.touch == NONE {
            state.touch = self.touched.len() as u32;
            self.touched.push((key, state.weights));
        }
        state.weights[side] += by;
    }

    /// Whether a side had, and has, rows with the key.
    #[inline]
    pub fn present(&self, key: u32, side: usize) -> (bool, bool) {
        let state = &self.states[key as usize];
        let before = match state.touch {
            NONE => state.weights,
            at => self.touched[at as usize].1,
        };
        (before[side] > 0, state.weights[side] > 0)
    }

    /// Keys touched in the step.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        self.touched.iter().map(|t| t.0)
    }

    /// Ends the step: keys without rows go.
    ///
    /// # Errors
    /// More rows of a key were retracted than inserted.
    pub fn settle(&mut self) -> Result<()> {
        for (key, _) in std::mem::take(&mut self.touched) {
            let state = &mut self.states[key as usize];
            state.touch = NONE;
            if state.weights.iter().any(|&w| w < 0) {
                return Err(RuntimeError::internal(
                    "a join's input retracts rows that it never inserted",
                ));
            }
            self.idle.push(key);
        }
        self.drop_idle();
        if self.changed.len() > 2 * self.states.len() + 1024 {
            self.recount_changed();
        }
        Ok(())
    }

    fn recount_changed(&mut self) {
        self.changed = (0..self.states.len() as u32)
            .filter(|&k| self.states[k as usize].flags & CHANGED != 0)
            .collect();
    }

    fn drop_idle(&mut self) {
        let mut idle = std::mem::take(&mut self.idle);
        idle.sort_unstable();
        idle.dedup();
        for key in idle {
            let state = &mut self.states[key as usize];
            if state.refs == 0 && state.weights == [0; 2] && state.flags & PERSISTED == 0 {
                *state = EMPTY;
                self.index.remove(key);
            }
        }
        self.index.compact();
    }

    /// The keys changed since the last snapshot (all that there are, if `full`), with how each is to be written. A new interval begins.
    pub fn freeze(&mut self, full: bool) -> Vec<(u32, Form)> {
        let changed = std::mem::take(&mut self.changed);
        self.residency.freeze(changed.len());
        let keys = if full {
            (0..self.states.len() as u32).collect()
        } else {
            changed
        };
        let mut forms = Vec::with_capacity(keys.len());
        for key in keys {
            let state = &mut self.states[key as usize];
            let empty = state.is_empty();
            if state.flags & CHANGED == 0 && (empty || !full) {
                continue;
            }
            let was_wide = state.flags & WIDE != 0;
            let persisted = state.flags & PERSISTED != 0;
            let limit = if was_wide { NARROW_BYTES / 2 } else { NARROW_BYTES };
            let wide = !empty && state.row_bytes > limit;
            state.flags = if wide { PERSISTED | WIDE } else { PERSISTED };
            if empty {
                if persisted {
                    // It stays, as a note that it is gone, until a checkpoint says so.
                    self.dead.push(key);
                    forms.push((key, Form::Gone));
                } else {
                    state.flags = 0;
                    self.idle.push(key);
                }
                continue;
            }
            forms.push((key, if wide { Form::Wide } else { Form::Narrow { was_wide } }));
        }
        forms
    }

    /// The snapshot has been written.
    pub fn finish_snapshot(&mut self) {
        self.drop_idle();
    }

    /// Whether the key's rows have entries of their own.
    pub fn is_wide(&self, key: u32) -> bool {
        self.states[key as usize].flags & WIDE != 0
    }

    /// A side's total multiplicity.
    pub fn weight(&self, key: u32, side: usize) -> i64 {
        self.states[key as usize].weights[side]
    }

    /// The checkpoint of the `n`-th snapshot has completed.
    pub fn complete(&mut self, n: u32) {
        let dead = std::mem::take(&mut self.dead);
        for key in dead {
            let state = &mut self.states[key as usize];
            if state.flags != PERSISTED || !state.is_empty() {
                continue;
            }
            if state.stamp <= n {
                state.flags = 0;
                self.idle.push(key);
            } else {
                self.dead.push(key);
            }
        }
        self.drop_idle();
    }

    /// When a key that may be evicted was last used.
    pub fn evictable(&self, key: usize) -> Option<u32> {
        let state = &self.states[key];
        let clean = state.flags & (CHANGED | PERSISTED) == PERSISTED && state.touch == NONE;
        (clean && !state.is_empty()).then_some(state.stamp)
    }

    /// Lets a key go whose rows are about to be dropped; follow it with [`Self::drop_evicted`].
    pub fn evict(&mut self, key: u32) {
        let state = &mut self.states[key as usize];
        state.flags = 0;
        state.weights = [0; 2];
        state.row_bytes = 0;
        self.idle.push(key);
    }

    /// Frees the slots of evicted keys.
    pub fn drop_evicted(&mut self) {
        self.drop_idle();
    }

    /// The slot of an encoded key.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn restore(&mut self, bytes: &[u8], hash: u64) -> Result<u32> {
        let key = self.index.upsert_encoded(bytes, hash)?;
        self.grow();
        Ok(key)
    }

    /// A snapshot holds the key.
    pub fn set_persisted(&mut self, key: u32, wide: bool, stamp: u32) {
        let state = &mut self.states[key as usize];
        state.flags |= if wide { PERSISTED | WIDE } else { PERSISTED };
        state.stamp = stamp;
    }

    /// Adds what a snapshot held.
    pub fn restore_weight(&mut self, key: u32, side: usize, weight: i64) {
        self.states[key as usize].weights[side] += weight;
    }

    /// Moves keys into the lowest slots and gives the rest of the memory back, if most slots are free. Answers where keys went.
    pub fn relocate(&mut self) -> Vec<(u32, u32)> {
        if self.index.n_slots() < 65_536 || self.index.n_keys() * 2 > self.index.n_slots() {
            return Vec::new();
        }
        let (moves, n) = self.index.relocate();
        relocate(&mut self.states, &moves, n);
        self.recount_changed();
        self.dead = (0..n as u32)
            .filter(|&k| self.states[k as usize].flags == PERSISTED && self.states[k as usize].is_empty())
            .collect();
        moves
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.states.len() * size_of::<KeyState>() + self.changed.capacity() * 4
    }

    /// Bytes of a key, about.
    pub fn key_bytes(&self) -> usize {
        self.index.bytes_per_key() + size_of::<KeyState>()
    }

    /// Keys that no eviction can free.
    pub fn n_pinned(&self) -> usize {
        self.changed.len() + self.residency.frozen()
    }
}

impl KeyState {
    fn is_empty(&self) -> bool {
        self.heads == [NONE; 2] && self.weights == [0; 2]
    }
}

/// How a key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It has no rows any more.
    Gone,
    /// With its rows; they may have had entries of their own before.
    Narrow {
        /// They had.
        was_wide: bool,
    },
    /// By itself: its rows have entries of their own.
    Wide,
}

/// One side's view of the keys.
pub struct Chains<'a> {
    keys: &'a mut Keys,
    side: usize,
}

impl Heads for Chains<'_> {
    #[inline]
    fn head(&mut self, key: u32) -> &mut u32 {
        &mut self.keys.states[key as usize].heads[self.side]
    }

    #[inline]
    fn refer(&mut self, key: u32, by: i32) {
        let state = &mut self.keys.states[key as usize];
        state.refs += by;
        if state.refs == 0 {
            self.keys.idle.push(key);
        }
    }

    #[inline]
    fn weigh(&mut self, key: u32, by: i64) {
        let bytes = &mut self.keys.states[key as usize].row_bytes;
        *bytes = u32::try_from((i64::from(*bytes) + by).max(0)).unwrap_or(u32::MAX);
    }
}
