//! The aggregate's groups as a cache over the cold tier: what is read before a batch is absorbed, and what is evicted.
//!
//! Before a piece of a batch is absorbed, the groups that it touches, and of values kept as entries those that it changes, are
//! read with one look-up each, all together. The front of a group's values, which decides `min` and `max`, stands in the group's own
//! entry; only when that value goes is the next one read, by a scan of a few entries.

use arrow::array::AsArray;

use super::super::Operator;
use super::super::codec::{self, Reader};
use super::super::cold::{Cold, ColdKeys, Evicted, Scan};
use super::accumulator::Rows;
use super::{Aggregate, CHANGED, EMITTED, PERSISTED, STEP};
use crate::{Delta, Result};

/// Fewer groups than this tell nothing by their ages.
const FEW_GROUPS: usize = 64;
/// Entries read at once where the next value is wanted.
const SCAN_ENTRIES: usize = if cfg!(test) { 2 } else { 64 };

impl Aggregate {
    /// Reads what a batch, whose groups are `slots`, touches and is not resident.
    pub(super) fn load(&mut self, slots: &[u32], delta: &Delta) -> Result<()> {
        let Some(cold) = self.residency.reads().cloned() else {
            return Ok(());
        };
        self.load_groups(&cold)?;
        if !self.has_entries {
            return Ok(());
        }
        for agg in 0..self.aggs.len() {
            self.load_values(&cold, agg, slots, delta)?;
        }
        let shown = |s: &u32| self.flags[*s as usize] & (STEP | EMITTED) == EMITTED;
        let first: Vec<u32> = slots.iter().copied().filter(shown).collect();
        self.load_fronts(&first)
    }

    /// Looks up the groups that have just been given a slot.
    fn load_groups(&mut self, cold: &Cold) -> Result<()> {
        let made = self.index.take_made();
        let (mut keys, mut key) = (ColdKeys::default(), Vec::new());
        for &slot in &made {
            key.clear();
            self.index.encode(slot, &mut key);
            keys.push(cold, 0, self.index.vnode(slot), &key);
        }
        cold.get_many(&keys, &mut |i, value| {
            let slot = made[i];
            for agg in &mut self.aggs {
                if let Some(entries) = agg.accumulator.entries() {
                    entries.set_cold(slot);
                }
            }
            self.restore_group(slot, Reader::open(value)?.0)
        })
    }

    pub(super) fn restore_group(&mut self, slot: u32, mut reader: Reader<'_>) -> Result<()> {
        let at = slot as usize;
        self.rows[at] = reader.i64()?;
        self.flags[at] = EMITTED | PERSISTED;
        self.stamps[at] = 0;
        for agg in &mut self.aggs {
            agg.accumulator.decode(slot, &mut reader)?;
        }
        Ok(())
    }

    fn load_values(&mut self, cold: &Cold, agg: usize, slots: &[u32], delta: &Delta) -> Result<()> {
        let Self { aggs, index, .. } = self;
        let Some(agg_state) = aggs.get_mut(agg) else {
            return Ok(());
        };
        let arg = agg_state.arg.map(|c| delta.batch.column(c));
        let passed = agg_state.filter.map(|c| delta.batch.column(c).as_boolean());
        let Some(entries) = agg_state.accumulator.entries() else {
            return Ok(());
        };
        let (mut keys, mut asked) = (ColdKeys::default(), Vec::new());
        let (mut group, mut key) = (Vec::new(), Vec::new());
        entries.missing(&Rows::new(slots, &delta.diffs, arg, passed), &mut |slot, sub| {
            group.clear();
            index.encode(slot, &mut group);
            codec::join_key(&mut key, &group, sub);
            keys.push(cold, agg as u8 + 1, index.vnode(slot), &key);
            asked.push((slot, sub.to_vec()));
        })?;
        cold.get_many(&keys, &mut |i, value| {
            let (slot, sub) = &asked[i];
            entries.restore(*slot, sub, Reader::open(value)?.0.i64()?)
        })
    }

    /// Reads entries until the results of `slots` can be told.
    pub(super) fn load_fronts(&mut self, slots: &[u32]) -> Result<()> {
        let Some(cold) = self.residency.reads().filter(|_| self.has_entries).cloned() else {
            return Ok(());
        };
        let mut scan = None;
        for (i, agg) in self.aggs.iter_mut().enumerate() {
            let Some(entries) = agg.accumulator.entries() else {
                continue;
            };
            let (mut after, mut prefix) = (None, Vec::new());
            for &slot in slots {
                while entries.wants(slot, &mut after) {
                    let scan = match &mut scan {
                        Some(scan) => scan,
                        none => none.insert(cold.scan()?),
                    };
                    let mut group = Vec::new();
                    self.index.encode(slot, &mut group);
                    codec::join_key(&mut prefix, &group, &[]);
                    scan.seek(i as u8 + 1, self.index.vnode(slot), &prefix, after.as_deref())?;
                    let up_to = read_some(scan, &mut |sub, count| entries.restore(slot, sub, count))?;
                    entries.has_read(slot, up_to.as_deref())?;
                }
            }
        }
        Ok(())
    }

    /// Evicts about `bytes` of clean groups and values, coldest first.
    pub(super) fn evict_some(&mut self, bytes: usize) -> Evicted {
        let n = self.flags.len();
        if !self.residency.may_evict() || n == 0 {
            return Evicted { bytes: 0, round: true };
        }
        let cutoff = self.residency.cutoff(n, bytes, self.live_bytes(), |slot| {
            (self.flags[slot] & (STEP | CHANGED | EMITTED) == EMITTED).then(|| self.stamps[slot])
        });
        let per_group = self.bytes_per_group();
        // Of few groups the values are the state, and the groups' ages say nothing of theirs.
        let value_cutoff = if self.index.n_keys() < FEW_GROUPS {
            self.residency.completed()
        } else {
            cutoff
        };
        let (range, round) = self.residency.sweep(n);
        let mut freed = 0;
        for slot in range {
            if freed >= bytes {
                break;
            }
            let idle = self.flags[slot] & (STEP | CHANGED | EMITTED) == EMITTED && self.stamps[slot] <= cutoff;
            let slot = slot as u32;
            if idle && !self.is_global() {
                freed += per_group;
                for agg in &mut self.aggs {
                    freed += agg.accumulator.entries().map_or(0, |e| e.bytes_of(slot));
                }
                self.forget(slot);
            } else if self.has_entries {
                for agg in &mut self.aggs {
                    freed += agg.accumulator.entries().map_or(0, |e| e.evict(slot, value_cutoff));
                }
            }
        }
        if freed > 0 {
            self.residency.begin_partial(&mut self.index);
        }
        Evicted { bytes: freed, round }
    }

    /// Whether a group that is gone, and was noted as such, is in no checkpoint any more; `None`: the note is out of date.
    fn is_forgotten(&self, slot: u32) -> Option<bool> {
        let flags = self.flags[slot as usize];
        (flags & (STEP | CHANGED | EMITTED | PERSISTED) == PERSISTED)
            .then(|| self.stamps[slot as usize] <= self.residency.completed())
    }

    /// The checkpoint of the `n`-th snapshot has completed.
    pub(super) fn complete(&mut self, n: u32, cold: Option<Cold>) {
        self.residency.complete(n, cold);
        for agg in &mut self.aggs {
            if let Some(entries) = agg.accumulator.entries() {
                entries.complete(n);
            }
        }
        let dead = std::mem::take(&mut self.dead);
        for slot in dead {
            match self.is_forgotten(slot) {
                Some(true) => self.forget(slot),
                Some(false) => self.dead.push(slot),
                None => {}
            }
        }
        self.index.compact();
    }

    /// Moves groups together where most slots are free, and gives the rest of the memory back.
    pub(super) fn shrink(&mut self) {
        if self.index.n_keys() * 2 > self.index.n_slots() || self.index.n_slots() < 65_536 {
            return;
        }
        let (moves, n) = self.index.relocate();
        super::accumulator::relocate(&mut self.rows, &moves, n);
        super::accumulator::relocate(&mut self.flags, &moves, n);
        super::accumulator::relocate(&mut self.stamps, &moves, n);
        for agg in &mut self.aggs {
            agg.accumulator.relocate(&moves, n);
        }
        self.recount_changed();
        self.dead = (0..n as u32).filter(|&s| self.is_forgotten(s).is_some()).collect();
        self.index.compact();
    }

    /// Bytes of a group's slot.
    pub(super) fn bytes_per_group(&self) -> usize {
        let aggs: usize = self.aggs.iter().map(|a| a.accumulator.bytes_per_slot()).sum();
        self.index.bytes_per_key() + 13 + aggs
    }
}

/// Hands out up to [`SCAN_ENTRIES`] entries of a group; answers the last one's key, if there may be more.
fn read_some(scan: &mut Scan, f: &mut dyn FnMut(&[u8], i64) -> Result<()>) -> Result<Option<Vec<u8>>> {
    let mut last = Vec::new();
    for _ in 0..SCAN_ENTRIES {
        let Some((sub, value)) = scan.next_entry()? else {
            return Ok(None);
        };
        f(sub, Reader::open(value)?.0.i64()?)?;
        last.clear();
        last.extend_from_slice(sub);
    }
    Ok(Some(last))
}
