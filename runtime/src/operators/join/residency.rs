//! A join's keys as a cache over the cold tier.
//!
//! A key's rows of both sides are written together, as the value of the key, so that one look-up reads all of them and a new key
//! costs one look-up that finds nothing. A key with more than some kilobytes of rows is *wide*: its rows have entries of their own,
//! so that a change of one row does not write all, and it is read by a scan, in pieces.
//!
//! ```text
//!   table 0   key          → narrow │ weight │ (side, count, matches, row)*
//!             key          → wide   │ weight
//!   table 1   key side row → count, matches                                    of wide keys
//! ```
//!
//! A key is resident with all its rows or not at all.

use super::super::codec::{self, Reader};
use super::super::cold::{COLD_ROWS, Cold, ColdKeys, Evicted, Scan};
use super::super::{Progress, StateWriter};
use super::keys::Form;
use super::{Join, LEFT, RIGHT};
use crate::{Delta, Result, RuntimeError};

/// Rows of wide keys read in one piece of work.
const LOAD_ROWS: usize = if cfg!(test) { 3 } else { 2048 };

/// A delta that is read and absorbed in pieces.
pub(super) struct Arriving {
    side: usize,
    delta: Delta,
    /// Next row.
    from: usize,
}

/// Wide keys being read, before this piece of a delta can be absorbed.
pub(super) struct Loading {
    side: usize,
    piece: Delta,
    /// Keys of the piece's rows.
    slots: Vec<u32>,
    /// Keys to be read.
    keys: Vec<u32>,
    /// Over the last key's rows.
    scan: Option<Scan>,
}

impl Arriving {
    pub(super) fn new(side: usize, delta: Delta) -> Self {
        Self { side, delta, from: 0 }
    }
}

impl Join {
    /// Goes on with what has arrived, up to the next piece of a delta that is absorbed.
    pub(super) fn arrive_some(&mut self) -> Result<Progress> {
        if let Some(loading) = self.loading.take() {
            return self.load_wide(loading);
        }
        let Some(mut arriving) = self.arriving.take() else {
            return Ok(Progress::Done);
        };
        let n = arriving.delta.num_rows();
        let Some(cold) = self.keys.residency.reads().cloned() else {
            let rest = if arriving.from == 0 {
                arriving.delta
            } else {
                arriving.delta.slice(arriving.from, n - arriving.from)
            };
            self.index_keys(arriving.side, &rest)?;
            self.absorb(arriving.side, rest)?;
            return Ok(Progress::Done);
        };
        let (side, from) = (arriving.side, arriving.from);
        let to = n.min(from + COLD_ROWS);
        let piece = arriving.delta.slice(from, to - from);
        arriving.from = to;
        if to < n {
            self.arriving = Some(arriving);
        }
        self.index_keys(side, &piece)?;
        let wide = self.load_keys(&cold)?;
        if wide.is_empty() {
            self.absorb(side, piece)?;
        } else {
            // From now on none of the piece's keys can be evicted.
            let slots = std::mem::take(&mut self.slots);
            slots.iter().for_each(|&key| self.keys.mark_changed(key));
            self.loading = Some(Loading {
                side,
                piece,
                slots,
                keys: wide,
                scan: None,
            });
        }
        Ok(self.progress())
    }

    /// Whether something that has arrived is left.
    pub(super) fn progress(&self) -> Progress {
        if self.arriving.is_some() || self.loading.is_some() {
            Progress::More
        } else {
            Progress::Done
        }
    }

    /// Looks up the keys that have just been given a slot; answers those whose rows are still to be read.
    fn load_keys(&mut self, cold: &Cold) -> Result<Vec<u32>> {
        let made = self.keys.index.take_made();
        let (mut keys, mut key) = (ColdKeys::default(), Vec::new());
        for &slot in &made {
            key.clear();
            self.keys.index.encode(slot, &mut key);
            keys.push(cold, 0, self.keys.index.vnode(slot), &key);
        }
        let mut wide = Vec::new();
        cold.get_many(&keys, &mut |i, value| {
            let stamp = self.keys.residency.stamp();
            if self.restore_key(made[i], Reader::open(value)?.0, stamp)? {
                wide.push(made[i]);
            }
            Ok(())
        })?;
        Ok(wide)
    }

    /// Reads some rows of wide keys; absorbs the piece that waits for them after the last.
    fn load_wide(&mut self, mut loading: Loading) -> Result<Progress> {
        let mut left = LOAD_ROWS;
        while let Some(&key) = loading.keys.last()
            && left > 0
        {
            let scan = match &mut loading.scan {
                Some(scan) => scan,
                none => {
                    let cold = self.keys.residency.reads();
                    let cold = cold.ok_or_else(|| RuntimeError::internal("a join has lost its cold state"))?;
                    let scan = none.insert(cold.scan()?);
                    let (mut bytes, mut prefix) = (Vec::new(), Vec::new());
                    self.keys.index.encode(key, &mut bytes);
                    codec::join_key(&mut prefix, &bytes, &[]);
                    scan.seek(1, self.keys.index.vnode(key), &prefix, None)?;
                    scan
                }
            };
            let mut ended = false;
            while left > 0 && !ended {
                left -= 1;
                match scan.next_entry()? {
                    Some((row, value)) => self.restore_row(key, row, Reader::open(value)?.0)?,
                    None => ended = true,
                }
            }
            if ended {
                loading.scan = None;
                loading.keys.pop();
            }
        }
        if loading.keys.is_empty() {
            self.slots = loading.slots;
            self.absorb(loading.side, loading.piece)?;
        } else {
            self.loading = Some(loading);
        }
        Ok(self.progress())
    }

    /// Takes a key's value; answers whether the key is wide.
    fn restore_key(&mut self, key: u32, mut reader: Reader<'_>, stamp: u32) -> Result<bool> {
        let wide = reader.array::<1>()?[0] != 0;
        let weight = reader.varint()?;
        self.keys.set_persisted(key, wide, stamp);
        if self.weights_of().is_some() {
            self.keys.restore_weight(key, RIGHT, weight);
        }
        while !reader.is_empty() {
            let side = usize::from(reader.array::<1>()?[0]);
            let counts = (reader.varint()?, reader.varint()?);
            let row = reader.bytes()?;
            self.restore_counts(key, side, row, counts, false)?;
        }
        Ok(wide)
    }

    /// Takes a row's own entry: side and row, and their value.
    fn restore_row(&mut self, key: u32, side_and_row: &[u8], mut reader: Reader<'_>) -> Result<()> {
        let (side, row) = side_and_row
            .split_first()
            .ok_or_else(|| RuntimeError::internal("a join's state key is damaged"))?;
        let counts = (reader.varint()?, reader.varint()?);
        self.restore_counts(key, usize::from(*side), row, counts, true)
    }

    fn restore_counts(&mut self, key: u32, side: usize, row: &[u8], counts: (i64, i64), own: bool) -> Result<()> {
        if side > RIGHT {
            return Err(RuntimeError::internal(format!("a join has no side {side}")));
        }
        self.sides[side].restore(key, row, counts, own, &mut self.keys.chains(side));
        if self.weighs() {
            self.keys.restore_weight(key, side, counts.0);
        }
        Ok(())
    }

    /// Takes an entry of a snapshot that is restored as a whole.
    pub(super) fn restore_entry(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        let (reader, hash) = Reader::open(value)?;
        match table {
            0 => {
                let key = self.keys.restore(key, hash)?;
                self.restore_key(key, reader, 0)?;
            }
            1 => {
                let (key, row) = codec::split_key(key)?;
                let key = self.keys.restore(key, hash)?;
                self.restore_row(key, row, reader)?;
            }
            _ => return Err(RuntimeError::internal(format!("a join has no state table {table}"))),
        }
        Ok(())
    }

    /// Writes what has changed since the last snapshot (all, if `full`).
    pub(super) fn write(&mut self, full: bool, out: &mut StateWriter<'_>) {
        let (mut bytes, mut entry, mut value) = (Vec::new(), Vec::new(), Vec::new());
        for (key, form) in self.keys.freeze(full) {
            let vnode = self.keys.index.vnode(key);
            bytes.clear();
            self.keys.index.encode(key, &mut bytes);
            if form == Form::Gone {
                (out.put)(0, vnode, &bytes, None);
                continue;
            }
            codec::begin(&mut value, self.keys.index.hash(key));
            value.push(u8::from(form == Form::Wide));
            let weight = self.weights_of().map_or(0, |side| self.keys.weight(key, side));
            codec::put_varint(&mut value, weight);
            for side in [LEFT, RIGHT] {
                let head = self.keys.head_of(key, side);
                match form {
                    Form::Wide => self.sides[side].write_chain(head),
                    Form::Narrow { was_wide } => {
                        if was_wide {
                            self.sides[side].unwrite_chain(head, |row| {
                                row_key(&mut entry, &bytes, side, row);
                                (out.put)(1, vnode, &entry, None);
                            });
                        }
                        for (_, row, counts) in self.sides[side].chain(head) {
                            value.push(side as u8);
                            codec::put_varint(&mut value, counts.count);
                            codec::put_varint(&mut value, counts.matches);
                            codec::put_bytes(&mut value, row);
                        }
                    }
                    Form::Gone => {}
                }
            }
            (out.put)(0, vnode, &bytes, Some(&value));
        }
        for side in [LEFT, RIGHT] {
            let keys = &self.keys;
            self.sides[side].snapshot(
                full,
                |key| keys.is_wide(key),
                |key, row, counts| {
                    bytes.clear();
                    keys.index.encode(key, &mut bytes);
                    row_key(&mut entry, &bytes, side, row);
                    codec::begin(&mut value, keys.index.hash(key));
                    if let Some((count, matches)) = counts {
                        codec::put_varint(&mut value, count);
                        codec::put_varint(&mut value, matches);
                    }
                    (out.put)(1, keys.index.vnode(key), &entry, counts.map(|_| value.as_slice()));
                },
            );
            self.sides[side].forget_gone(&mut self.keys.chains(side));
        }
        self.keys.finish_snapshot();
    }

    /// Evicts about `bytes` of clean keys with their rows, coldest first.
    pub(super) fn evict_some(&mut self, bytes: usize, held: usize) -> Evicted {
        let n = self.keys.index.n_slots();
        if !self.keys.residency.may_evict() || n == 0 || self.plan.left_keys.is_empty() {
            return Evicted { bytes: 0, round: true };
        }
        let keys = &self.keys;
        let cutoff = keys.residency.cutoff(n, bytes, held, |key| keys.evictable(key));
        let (range, round) = self.keys.residency.sweep(n);
        let (mut freed, per_key) = (0, self.keys.key_bytes());
        for key in range {
            if freed >= bytes {
                break;
            }
            if self.keys.evictable(key).is_none_or(|stamp| stamp > cutoff) {
                continue;
            }
            let key = key as u32;
            freed += per_key;
            for side in [LEFT, RIGHT] {
                freed += self.sides[side].evict(key, &mut self.keys.chains(side));
            }
            self.keys.evict(key);
        }
        if freed > 0 {
            self.keys.drop_evicted();
            self.sides.iter_mut().for_each(super::state::Side::compact);
            self.keys.residency.begin_partial(&mut self.keys.index);
        }
        Evicted { bytes: freed, round }
    }

    /// Gives back memory where most of it is free.
    pub(super) fn shrink(&mut self) {
        for side in [LEFT, RIGHT] {
            if self.sides[side].is_sparse() {
                self.sides[side].relocate(&mut self.keys.chains(side));
            }
        }
        let moves: std::collections::BTreeMap<u32, u32> = self.keys.relocate().into_iter().collect();
        if !moves.is_empty() {
            for side in &mut self.sides {
                side.move_keys(|key| moves.get(&key).copied());
            }
        }
    }
}

/// The key of a row's own entry.
fn row_key(out: &mut Vec<u8>, key: &[u8], side: usize, row: &[u8]) {
    codec::join_key(out, key, &[side as u8]);
    out.extend_from_slice(row);
}
