//! Keys of a join, shared by both sides: one probe finds a key's rows on either side.

use super::super::codec;
use super::super::keys::KeyIndex;
use super::state::{Heads, NONE};
use crate::{Result, RuntimeError};

const CHANGED: u8 = 1;
const PERSISTED: u8 = 2;

/// What is kept for a key.
#[derive(Debug, Clone)]
struct KeyState {
    heads: [u32; 2],
    /// Total multiplicity of each side's rows.
    weights: [i64; 2],
    refs: i32,
    /// Index in the touched list, or [`NONE`].
    touch: u32,
    flags: u8,
}

const EMPTY: KeyState = KeyState {
    heads: [NONE; 2],
    weights: [0; 2],
    refs: 0,
    touch: NONE,
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

    /// Adds to a side's total multiplicity.
    pub fn add_weight(&mut self, key: u32, side: usize, by: i64) {
        let state = &mut self.states[key as usize];
        if state.touch == NONE {
            state.touch = self.touched.len() as u32;
            self.touched.push((key, state.weights));
            if state.flags & CHANGED == 0 {
                state.flags |= CHANGED;
                self.changed.push(key);
            }
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
            self.changed = (0..self.states.len() as u32)
                .filter(|&k| self.states[k as usize].flags & CHANGED != 0)
                .collect();
        }
        Ok(())
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

    /// Hands out the changed weights of one side (all, if `full`); `None`: the key is gone.
    pub fn snapshot(
        &mut self,
        weights_of: Option<usize>,
        full: bool,
        mut put: impl FnMut(&KeyIndex, u32, Option<i64>),
    ) {
        let changed = std::mem::take(&mut self.changed);
        let Some(side) = weights_of else {
            for key in changed {
                self.states[key as usize].flags &= !CHANGED;
            }
            self.drop_idle();
            return;
        };
        let keys = if full {
            (0..self.states.len() as u32).collect()
        } else {
            changed
        };
        for key in keys {
            let state = &mut self.states[key as usize];
            let weight = state.weights[side];
            if !full && state.flags & CHANGED == 0 {
                continue;
            }
            if weight > 0 {
                put(&self.index, key, Some(weight));
                state.flags = PERSISTED;
            } else {
                if state.flags & PERSISTED != 0 {
                    put(&self.index, key, None);
                    self.idle.push(key);
                }
                state.flags = 0;
            }
        }
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

    /// Sets what a snapshot held.
    pub fn restore_weight(&mut self, key: u32, side: usize, weight: i64, own_entry: bool) {
        let state = &mut self.states[key as usize];
        state.weights[side] += weight;
        if own_entry {
            state.flags |= PERSISTED;
        }
    }

    /// Begins a state entry: key bytes and a row's bytes, and a value with the key's hash.
    pub fn encode(
        index: &KeyIndex,
        key: u32,
        row: &[u8],
        scratch: &mut Vec<u8>,
        bytes: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) {
        scratch.clear();
        index.encode(key, scratch);
        codec::join_key(bytes, scratch, row);
        codec::begin(value, index.hash(key));
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.states.capacity() * size_of::<KeyState>() + self.changed.capacity() * 4
    }
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
}
