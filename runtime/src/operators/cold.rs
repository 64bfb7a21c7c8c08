//! State that is not resident.
//!
//! An operator's state is what the last completed checkpoint holds, overlaid by what the operator has changed since. The former
//! can be read at any time from the *cold tier*, so the operator need not hold it: its index is a cache. Every entry is
//!
//! * *dirty*: changed since the last snapshot was taken,
//! * *frozen*: in a snapshot whose checkpoint has not completed,
//! * or *clean*: the tier holds the same, so it can be evicted and read again.
//!
//! Snapshots number the time: changes made before the *n*-th snapshot bear the stamp *n*, and once that snapshot's checkpoint has
//! completed all entries with stamps up to *n* are clean. The stamp is also the age by which the coldest are evicted:
//!
//! ```text
//!              snapshot 1      snapshot 2      snapshot 3
//!   ─ stamp 1 ─────┼─── stamp 2 ───┼─── stamp 3 ───┼─── stamp 4 ──▶ now
//!        clean     │    clean      │    frozen     │     dirty
//!                               completed = 2
//! ```
//!
//! An entry deleted stays, as a note that it is gone, until a checkpoint without it has completed: the tier would still answer
//! with the old one. A key that the tier does not have needs no note: whoever asked is about to insert it.
//!
//! As long as nothing has been evicted and all was restored ([`Residency::reads`] is none) nobody looks anything up here.

use std::collections::VecDeque;
use std::sync::Arc;

use levee_storage::delta_file::{STATE_KEY_PREFIX_BYTES, StateKey};

use super::keys::KeyIndex;
use super::{Progress, fault};
use crate::{Delta, Result, RuntimeError};

/// Slots looked at in one call of an operator's eviction.
pub const EVICT_SLOTS: usize = if cfg!(test) { 5 } else { 8192 };

/// Rows of a batch that are looked up, and groups that are emitted, in one piece of work while state may be cold: reading a
/// cold entry costs microseconds, so this is about a millisecond.
pub const COLD_ROWS: usize = if cfg!(test) { 7 } else { 512 };

/// A delta that is absorbed in pieces: where state may have to be read, at most [`COLD_ROWS`] rows in one piece of work.
#[derive(Default)]
pub struct Pieces {
    /// The delta, and its next row.
    rest: Option<(Delta, usize)>,
}

impl Pieces {
    /// Takes the next delta; nothing of the one before may be left.
    pub fn put(&mut self, delta: Delta) {
        self.rest = Some((delta, 0));
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_none()
    }

    /// The next piece: all that is left, unless state may have to be read for it.
    pub fn next_piece(&mut self, reads: bool) -> Option<Delta> {
        let (delta, from) = self.rest.take()?;
        let n = delta.num_rows();
        let to = if reads { n.min(from + COLD_ROWS) } else { n };
        if from == 0 && to == n {
            return Some(delta);
        }
        let piece = delta.slice(from, to - from);
        if to < n {
            self.rest = Some((delta, to));
        }
        Some(piece)
    }

    /// Whether the delta has been taken.
    pub fn progress(&self) -> Progress {
        if self.is_empty() {
            Progress::Done
        } else {
            Progress::More
        }
    }
}

/// Reads a region's state as of a completed checkpoint. Keys are encoded [`StateKey`]s.
pub trait ColdReader: Send + Sync {
    /// Calls `f` with the index and value of each key that has a value, in any order.
    ///
    /// # Errors
    /// The state cannot be read, or `f` failed.
    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>;

    /// A scan that has yet to be given a prefix.
    ///
    /// # Errors
    /// The state cannot be read.
    fn scan(&self) -> Result<Box<dyn ColdScan>>;
}

/// Reads entries in key order.
pub trait ColdScan: Send {
    /// Goes to the first key from `from` on that begins with `prefix`.
    ///
    /// # Errors
    /// The state cannot be read.
    fn seek(&mut self, prefix: &[u8], from: &[u8]) -> Result<()>;

    /// The next entry with the prefix.
    ///
    /// # Errors
    /// The state cannot be read.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>>;
}

/// The cold state of one operator.
#[derive(Clone)]
pub struct Cold {
    reader: Arc<dyn ColdReader>,
    region: u32,
    operator: u32,
}

impl Cold {
    /// An operator's part of a region's state.
    pub fn new(reader: Arc<dyn ColdReader>, region: u32, operator: u32) -> Self {
        Self {
            reader,
            region,
            operator,
        }
    }

    fn encode(&self, table: u8, vnode: u8, key: &[u8], out: &mut Vec<u8>) {
        StateKey {
            region: self.region,
            operator: self.operator,
            table,
            vnode,
            key,
        }
        .encode(out);
    }

    /// Calls `f` with the index and value of each key that has a value, in any order.
    ///
    /// # Errors
    /// The state cannot be read, or `f` failed.
    pub fn get_many(&self, keys: &ColdKeys, f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        if keys.ends.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        let slices: Vec<&[u8]> = keys
            .ends
            .iter()
            .map(|&end| &keys.bytes[std::mem::replace(&mut from, end)..end])
            .collect();
        self.reader.get_many(&slices, f)
    }

    /// A scan over the operator's entries.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn scan(&self) -> Result<Scan> {
        Ok(Scan {
            cold: self.clone(),
            inner: self.reader.scan()?,
            prefix: Vec::new(),
            from: Vec::new(),
        })
    }
}

/// Keys to be looked up together.
#[derive(Default)]
pub struct ColdKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ColdKeys {
    /// Adds a key of `cold`'s operator.
    pub fn push(&mut self, cold: &Cold, table: u8, vnode: u8, key: &[u8]) {
        cold.encode(table, vnode, key, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Reads an operator's entries in key order; best used for many prefixes, one after another.
pub struct Scan {
    cold: Cold,
    inner: Box<dyn ColdScan>,
    prefix: Vec<u8>,
    from: Vec<u8>,
}

impl Scan {
    /// Goes to the first entry whose key begins with `prefix`; with `after`, to the first one beyond `prefix` and `after` together.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn seek(&mut self, table: u8, vnode: u8, prefix: &[u8], after: Option<&[u8]>) -> Result<()> {
        self.prefix.clear();
        self.cold.encode(table, vnode, prefix, &mut self.prefix);
        self.from.clear();
        self.from.extend_from_slice(&self.prefix);
        if let Some(after) = after {
            self.from.extend_from_slice(after);
            self.from.push(0);
        }
        self.inner.seek(&self.prefix, &self.from)
    }

    /// The next entry: what its key has beyond the prefix, and its value.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let prefix = self.prefix.len();
        let damaged = || RuntimeError::internal("the cold state answers with a key that was not asked for");
        match self.inner.next()? {
            Some((key, value)) => Ok(Some((key.get(prefix..).ok_or_else(damaged)?, value))),
            None => Ok(None),
        }
    }
}

/// An operator's own bytes of an encoded key.
///
/// # Errors
/// Damaged bytes.
pub fn own_key(key: &[u8]) -> Result<&[u8]> {
    key.get(STATE_KEY_PREFIX_BYTES..)
        .ok_or_else(|| RuntimeError::internal("a state key is damaged"))
}

/// What an eviction achieved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Bytes freed, about.
    pub bytes: usize,
    /// The whole state has been looked at since the last time that this was said.
    pub round: bool,
}

/// How much of an operator's state is where: see the module's documentation.
pub struct Residency {
    cold: Option<Cold>,
    partial: bool,
    stamp: u32,
    completed: u32,
    hand: usize,
    /// Stamp and number of entries of snapshots that have not completed.
    frozen: VecDeque<(u32, usize)>,
}

impl Default for Residency {
    fn default() -> Self {
        Self {
            cold: None,
            partial: false,
            stamp: 1,
            completed: 0,
            hand: 0,
            frozen: VecDeque::new(),
        }
    }
}

impl Residency {
    /// The checkpoint that the operator starts from; `complete`: all of it will be, or has been, restored.
    pub fn attach(&mut self, cold: Cold, complete: bool) {
        self.cold = Some(cold);
        self.partial = !complete;
    }

    /// Where to look for entries that are not resident, if any may exist.
    #[inline]
    pub fn reads(&self) -> Option<&Cold> {
        if self.partial { self.cold.as_ref() } else { None }
    }

    /// The stamp of a change made now.
    #[inline]
    pub fn stamp(&self) -> u32 {
        self.stamp
    }

    /// A snapshot of so many entries has been taken.
    pub fn freeze(&mut self, entries: usize) {
        self.frozen.push_back((self.stamp, entries));
        self.stamp += 1;
    }

    /// Entries in snapshots that have not completed.
    pub fn frozen(&self) -> usize {
        self.frozen.iter().map(|f| f.1).sum()
    }

    /// The checkpoint of the `n`-th snapshot has completed; `cold` reads it.
    pub fn complete(&mut self, n: u32, cold: Option<Cold>) {
        if n > self.completed {
            self.completed = n;
        }
        while self.frozen.front().is_some_and(|f| f.0 <= n) {
            self.frozen.pop_front();
        }
        if cold.is_some() || !self.partial {
            self.cold = cold;
        }
    }

    /// Changes with stamps up to this one are in the cold state.
    #[inline]
    pub fn completed(&self) -> u32 {
        if fault::planted(fault::Fault::EvictFrozen) {
            return self.stamp - 1;
        }
        self.completed
    }

    /// Whether anything may be evicted.
    pub fn may_evict(&self) -> bool {
        self.cold.is_some()
    }

    /// Something has been evicted.
    pub fn evicted(&mut self) {
        self.partial = true;
    }

    /// From now on some of the state is only in the tier: what the index is given from here on is looked up there.
    pub fn begin_partial(&mut self, index: &mut KeyIndex) {
        if self.reads().is_none() {
            index.take_made();
            self.evicted();
        }
    }

    /// The next slots for an eviction to look at, out of `n`: a clock's hand goes around them. Also whether that ends a round.
    pub fn sweep(&mut self, n: usize) -> (std::ops::Range<usize>, bool) {
        let from = if self.hand >= n { 0 } else { self.hand };
        let to = (from + EVICT_SLOTS).min(n);
        self.hand = to;
        (from..to, to == n)
    }

    /// Up to which stamp entries should go so that a part `wanted / held` of all is freed: the quantile of a sample of them.
    /// `age` gives a slot's stamp, or none if nothing is there or it cannot go.
    pub fn cutoff(&self, n: usize, wanted: usize, held: usize, age: impl Fn(usize) -> Option<u32>) -> u32 {
        const SAMPLE: usize = 512;
        let stride = (n / SAMPLE).max(1);
        let mut ages: Vec<u32> = (0..n).step_by(stride).filter_map(age).collect();
        ages.sort_unstable();
        let part = (ages.len() as u128 * wanted as u128 / held.max(1) as u128) as usize;
        ages.get(part.min(ages.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
            .min(self.completed())
    }
}
