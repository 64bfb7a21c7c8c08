//! The first rows of each partition.
//!
//! Maintains, for each partition, the rows at places `offset + 1 ..= offset + limit` in the given order, ties broken by the
//! whole row, optionally with their place as a column.
//!
//! Assumes that multiplicities are never negative at the end of a step, and that the input is routed by the partition columns.
//! Emits at close, for each partition whose window was touched: the difference between the window before and after the step.
//! A row beyond a full window changes nothing that is shown, and costs one comparison and one insertion. Over append-only input
//! such rows can never come back, so only `offset + limit` rows are kept.
//!
//! State as in [`super::partitions`]; over append-only input the number of rows is that of kept ones. So a partition that is not resident, or does not exist, is found by one look-up. Bytes per row: its encoding twice over at most,
//! and 60. Of a partition that is read from the cold tier only the window and the rows that change become resident.
//!
//! Cost per row: two encodes, a probe, a lookup in the partition's order. Cost per touched partition and step: `offset + limit`
//! (without a limit, the whole partition: numbering all rows cannot cost less, as all may move).

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use levee_planner::plan::SortKey;

use super::aggregate::accumulator::relocate;
use super::codec::{self, Reader};
use super::cold::{Cold, ColdKeys, Evicted, Pieces, Residency, Scan};
use super::columns::{bigint, nullable};
use super::eval::fitted;
use super::keys::KeyIndex;
use super::ordered::{Lookup, OrderedCounts};
use super::partitions::{CountWriter, EncodedEntries, Entry, EntryCodec, column_type, look_up_made};
use super::{Barrier, Operator, Output, Progress, StateWriter, fault};
use crate::{Delta, Result, RuntimeError};

const CHUNK: usize = 8192;

/// Touched in this step.
const STEP: u8 = 1;
/// A snapshot holds the partition.
const PERSISTED: u8 = 2;
/// Changed since the last snapshot.
const CHANGED: u8 = 4;

/// Entries read at once.
const SCAN_ENTRIES: usize = if cfg!(test) { 2 } else { 64 };
/// Bytes of a partition's slot, and of an entry with what it points to, about.
const PARTITION_BYTES: usize = 70;
const ENTRY_BYTES: usize = 150;

/// A top-N's parameters.
#[derive(Debug, Clone)]
pub struct TopNPlan {
    /// Partition columns.
    pub partition_by: Vec<usize>,
    /// Order.
    pub order_by: Vec<SortKey>,
    /// Rows kept after the offset; `None`: all.
    pub limit: Option<u64>,
    /// Rows skipped.
    pub offset: u64,
    /// Append each row's place.
    pub row_number: bool,
    /// The input never retracts.
    pub append_only: bool,
}

/// Encoded entries with the number of their copies inside the window.
type Window = Vec<(Entry, i64)>;

/// A row to emit: entry, place, diff.
type Change = (Entry, i64, i64);

/// The operator.
pub struct TopN {
    plan: TopNPlan,
    schema: SchemaRef,
    /// Places that matter, where the input is append-only and rows beyond can be dropped.
    keep: Option<i64>,
    codec: EntryCodec,
    index: KeyIndex,
    entries: OrderedCounts<Entry>,
    copies: Vec<i64>,
    flags: Vec<u8>,
    /// When a partition last changed, see [`super::cold`].
    stamps: Vec<u32>,
    residency: Residency,
    /// The last entry of a window that is full.
    bounds: Vec<Option<Entry>>,
    touched: Vec<(u32, Window)>,
    changed: Vec<u32>,
    /// Empty partitions that the last completed checkpoint may still hold.
    dead: Vec<u32>,
    /// A delta that is read and absorbed in pieces: the next row.
    pending: Pieces,
    changes: Vec<Change>,
    slots: Vec<u32>,
    scratch: Vec<u8>,
}

impl TopN {
    /// From a plan node.
    ///
    /// # Errors
    /// A type cannot be ordered.
    pub fn new(plan: &TopNPlan, input: &SchemaRef, schema: &SchemaRef) -> Result<Self> {
        let partition = plan.partition_by.iter().map(|&c| column_type(input, c));
        let partition = partition.collect::<Result<Vec<_>>>()?;
        let places = plan.limit.map(|l| l.saturating_add(plan.offset));
        Ok(Self {
            keep: places
                .filter(|_| plan.append_only)
                .map(|p| i64::try_from(p).unwrap_or(i64::MAX)),
            plan: plan.clone(),
            schema: nullable(schema),
            codec: EntryCodec::new(&plan.order_by, false, input)?,
            index: KeyIndex::new(&partition)?,
            entries: OrderedCounts::new(false),
            copies: Vec::new(),
            flags: Vec::new(),
            stamps: Vec::new(),
            residency: Residency::default(),
            bounds: Vec::new(),
            touched: Vec::new(),
            changed: Vec::new(),
            dead: Vec::new(),
            pending: Pieces::default(),
            changes: Vec::new(),
            slots: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Everything is shown, and nothing numbered: rows pass.
    fn passes(&self) -> bool {
        self.plan.limit.is_none() && self.plan.offset == 0 && !self.plan.row_number
    }

    fn grow(&mut self) {
        let n = self.index.n_slots();
        if self.flags.len() < n {
            self.copies.resize(n, 0);
            self.flags.resize(n, 0);
            self.stamps.resize(n, 0);
            self.bounds.resize(n, None);
            self.entries.grow(n);
        }
    }

    /// Notes the window of a partition before its first change in the step.
    fn touch(&mut self, slot: u32) -> Result<()> {
        if self.flags[slot as usize] & STEP == 0 {
            self.load_window(slot)?;
            self.flags[slot as usize] |= STEP;
            self.touched.push((slot, self.window(slot)));
        }
        Ok(())
    }

    fn mark_changed(&mut self, slot: u32) {
        let flags = &mut self.flags[slot as usize];
        if *flags & CHANGED == 0 {
            *flags |= CHANGED;
            self.stamps[slot as usize] = self.residency.stamp();
            self.changed.push(slot);
        }
    }

    /// Copies from the front that a window needs.
    fn places(&self) -> i64 {
        let places = self.plan.limit.map(|l| l.saturating_add(self.plan.offset));
        places.map_or(i64::MAX, |p| i64::try_from(p).unwrap_or(i64::MAX))
    }

    /// Reads a partition's entries until its window can be told.
    fn load_window(&mut self, slot: u32) -> Result<()> {
        self.load_front(slot, self.places())
    }

    fn load_front(&mut self, slot: u32, places: i64) -> Result<()> {
        let Some(cold) = self.residency.reads() else {
            return Ok(());
        };
        let mut scan: Option<Scan> = None;
        let (mut partition, mut prefix) = (Vec::new(), Vec::new());
        while let Some(after) = self.entries.wants(slot, places) {
            let scan = match &mut scan {
                Some(scan) => scan,
                none => none.insert(cold.scan()?),
            };
            partition.clear();
            self.index.encode(slot, &mut partition);
            codec::join_key(&mut prefix, &partition, &[]);
            let after = after.map(Arc::clone);
            scan.seek(0, self.index.vnode(slot), &prefix, after.as_deref())?;
            let mut last = None;
            for i in 0..=SCAN_ENTRIES {
                match scan.next_entry()? {
                    Some((entry, value)) if i < SCAN_ENTRIES => {
                        let entry: Arc<[u8]> = Arc::from(entry);
                        last = Some(Arc::clone(&entry));
                        self.entries.restore(slot, entry, Reader::open(value)?.0.i64()?);
                    }
                    Some(_) => break,
                    None => last = None,
                }
                if last.is_none() {
                    break;
                }
            }
            self.entries.set_known(slot, last);
        }
        Ok(())
    }

    /// Looks up the partitions that have just been given a slot.
    fn load_partitions(&mut self) -> Result<()> {
        let Some(cold) = self.residency.reads().cloned() else {
            return Ok(());
        };
        for (slot, copies) in look_up_made(&mut self.index, &cold)? {
            self.copies[slot as usize] = copies;
            self.flags[slot as usize] = PERSISTED;
            self.stamps[slot as usize] = 0;
            self.entries.set_cold(slot);
            if self.keep.is_some() {
                // Which rows go when better ones come is decided at the far end.
                self.load_front(slot, i64::MAX)?;
            }
        }
        Ok(())
    }

    /// Reads the multiplicities of entries that a batch changes.
    fn load_entries(&mut self, slots: &[u32], encoded: &EncodedEntries) -> Result<()> {
        let Some(cold) = self.residency.reads().cloned() else {
            return Ok(());
        };
        let mut unknown = Vec::new();
        for (i, &slot) in slots.iter().enumerate() {
            encoded.write(i, &mut self.scratch);
            if self.entries.look_up(slot, &self.scratch) == Lookup::Cold {
                unknown.push((slot, Arc::<[u8]>::from(self.scratch.as_slice())));
            }
        }
        unknown.sort_unstable();
        unknown.dedup();
        let (mut keys, mut partition, mut key) = (ColdKeys::default(), Vec::new(), Vec::new());
        for (slot, entry) in &unknown {
            partition.clear();
            self.index.encode(*slot, &mut partition);
            codec::join_key(&mut key, &partition, entry);
            keys.push(&cold, 0, self.index.vnode(*slot), &key);
        }
        let entries = &mut self.entries;
        cold.get_many(&keys, &mut |i, value| {
            let (slot, entry) = &unknown[i];
            entries.restore(*slot, Arc::clone(entry), Reader::open(value)?.0.i64()?);
            Ok(())
        })
    }

    /// The entries that a partition shows.
    fn window(&self, slot: u32) -> Window {
        let mut skip = i64::try_from(self.plan.offset).unwrap_or(i64::MAX);
        let mut left = self
            .plan
            .limit
            .map_or(i64::MAX, |l| i64::try_from(l).unwrap_or(i64::MAX));
        let mut window = Vec::new();
        for (entry, count) in self.entries.iter(slot) {
            if left == 0 {
                break;
            }
            let skipped = skip.min(count);
            skip -= skipped;
            let shown = (count - skipped).min(left);
            if shown > 0 {
                left -= shown;
                window.push((Arc::clone(entry), shown));
            }
        }
        window
    }

    /// Adds a row of an append-only input; rows that can never be shown are dropped.
    fn add_bounded(&mut self, slot: u32, diff: i64, keep: i64) -> Result<()> {
        let at = slot as usize;
        if self.copies[at] >= keep {
            let beyond = |last: &Arc<[u8]>| self.scratch.as_slice() > last.as_ref();
            if keep == 0 || self.entries.last(slot).is_some_and(beyond) {
                return Ok(());
            }
        }
        self.touch(slot)?;
        self.mark_changed(slot);
        self.entries.add(slot, &self.scratch, diff);
        self.copies[at] += diff;
        while let Some((last, count)) = self.entries.last_with_count(slot) {
            if self.copies[at] - count < keep {
                break;
            }
            let last = Arc::clone(last);
            self.entries.add(slot, &last, -count);
            self.copies[at] -= count;
        }
        Ok(())
    }

    fn add(&mut self, slot: u32, diff: i64) -> Result<()> {
        let at = slot as usize;
        let beyond = self.flags[at] & STEP == 0
            && self.bounds[at]
                .as_ref()
                .is_some_and(|bound| self.scratch.as_slice() > bound.as_ref());
        if !beyond {
            self.touch(slot)?;
        }
        self.mark_changed(slot);
        self.entries.add(slot, &self.scratch, diff);
        self.copies[at] += diff;
        Ok(())
    }

    /// Ends the step for a partition: notes what changed in its window.
    fn settle(&mut self, slot: u32, before: &Window) -> Result<()> {
        if self.copies[slot as usize] > 0 {
            self.load_window(slot)?;
        }
        let after = self.window(slot);
        if self.plan.row_number {
            self.compare_places(before, &after);
        } else {
            self.compare_counts(before, &after);
        }
        let at = slot as usize;
        let shown: i64 = after.iter().map(|e| e.1).sum();
        let full = self
            .plan
            .limit
            .is_some_and(|l| i64::try_from(l).is_ok_and(|l| l == shown));
        self.bounds[at] = after.last().filter(|_| full).map(|e| Arc::clone(&e.0));
        self.flags[at] &= !STEP;
        if self.copies[at] == 0 && self.flags[at] & PERSISTED == 0 && !self.entries.has_negative() {
            self.forget(slot);
        }
        Ok(())
    }

    fn forget(&mut self, slot: u32) {
        let at = slot as usize;
        self.flags[at] = 0;
        self.bounds[at] = None;
        self.copies[at] = 0;
        self.entries.clear(slot);
        self.index.remove(slot);
    }

    fn compare_counts(&mut self, before: &Window, after: &Window) {
        let (mut b, mut a) = (0, 0);
        loop {
            let order = match (before.get(b), after.get(a)) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.0.cmp(&new.0),
            };
            let (old, new) = (before.get(b), after.get(a));
            let (entry, diff) = match (order, old, new) {
                (Ordering::Less, Some(old), _) => (&old.0, -old.1),
                (Ordering::Greater, _, Some(new)) => (&new.0, new.1),
                (_, Some(old), Some(new)) => (&old.0, new.1 - old.1),
                _ => return,
            };
            if diff != 0 {
                self.changes.push((Arc::clone(entry), 0, diff));
            }
            b += usize::from(order != Ordering::Greater);
            a += usize::from(order != Ordering::Less);
        }
    }

    fn compare_places(&mut self, before: &Window, after: &Window) {
        let expand = |w: &'_ Window| -> Vec<Arc<[u8]>> {
            w.iter()
                .flat_map(|(entry, count)| (0..*count).map(move |_| Arc::clone(entry)))
                .collect()
        };
        let (before, after) = (expand(before), expand(after));
        let first = self.plan.offset as i64 + 1;
        for place in 0..before.len().max(after.len()) {
            let (old, new) = (before.get(place), after.get(place));
            if old == new {
                continue;
            }
            let number = first + place as i64;
            if let Some(old) = old {
                self.changes.push((Arc::clone(old), number, -1));
            }
            if let Some(new) = new {
                self.changes.push((Arc::clone(new), number, 1));
            }
        }
    }

    /// Settles partitions until there is a chunk to emit.
    fn emit_some(&mut self, out: &mut Output) -> Result<Progress> {
        while self.changes.len() < CHUNK {
            let Some((slot, before)) = self.touched.pop() else {
                break;
            };
            self.settle(slot, &before)?;
        }
        let part = self.changes.split_off(self.changes.len().saturating_sub(CHUNK));
        if !part.is_empty() {
            out.emit(self.delta(&part)?);
        }
        if self.changes.is_empty() && self.touched.is_empty() {
            if self.entries.has_negative() {
                return Err(RuntimeError::internal(
                    "a top-N's input retracts rows that it never inserted",
                ));
            }
            self.index.compact();
            if self.changed.len() > 2 * self.flags.len() + 1024 {
                self.recount_changed();
            }
            return Ok(Progress::Done);
        }
        Ok(Progress::More)
    }

    /// Slots are noted again when they are given to another partition; this makes the list exact.
    fn recount_changed(&mut self) {
        self.changed = (0..self.flags.len() as u32)
            .filter(|&s| self.flags[s as usize] & CHANGED != 0)
            .collect();
    }

    /// Takes a batch, or as much of it as can be read in one piece of work.
    fn absorb_some(&mut self) -> Result<Progress> {
        let reads = self.residency.reads().is_some();
        let Some(piece) = self.pending.next_piece(reads) else {
            return Ok(Progress::Done);
        };
        self.absorb(&piece)?;
        Ok(self.pending.progress())
    }

    fn absorb(&mut self, delta: &Delta) -> Result<()> {
        let column = |c: usize| Arc::clone(delta.batch.column(c));
        let partition: Vec<ArrayRef> = self.plan.partition_by.iter().map(|&c| column(c)).collect();
        let mut slots = std::mem::take(&mut self.slots);
        self.index.upsert(&partition, delta.num_rows(), false, &mut slots)?;
        self.grow();
        let entries = self.codec.encode(&delta.batch)?;
        self.load_partitions()?;
        self.load_entries(&slots, &entries)?;
        for (i, &slot) in slots.iter().enumerate() {
            entries.write(i, &mut self.scratch);
            match self.keep {
                Some(keep) => self.add_bounded(slot, delta.diff(i), keep)?,
                None => self.add(slot, delta.diff(i))?,
            }
        }
        self.slots = slots;
        Ok(())
    }

    fn delta(&self, changes: &[Change]) -> Result<Delta> {
        let mut columns = self.codec.decode(changes.iter().map(|c| c.0.as_ref()))?;
        if self.plan.row_number {
            columns.push(bigint(changes.iter().map(|c| c.1).collect()));
        }
        let batch = fitted(&self.schema, columns, changes.len())?;
        Ok(Delta::new(batch, changes.iter().map(|c| c.2).collect()))
    }
}

impl Operator for TopN {
    fn push(&mut self, _input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        let delta = if fault::planted(fault::Fault::TopN) {
            fault::without_a_retraction(delta)
        } else {
            delta
        };
        let n = delta.num_rows();
        if self.passes() {
            let batch = fitted(&self.schema, delta.batch.columns().to_vec(), n)?;
            out.emit(Delta {
                batch,
                diffs: delta.diffs,
            });
            return Ok(Progress::Done);
        }
        self.pending.put(delta);
        self.absorb_some()
    }

    fn close(&mut self, _barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.emit_some(out)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        if !self.pending.is_empty() {
            return self.absorb_some();
        }
        self.emit_some(out)
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        let mut writer = CountWriter::new(&self.index);
        self.entries
            .snapshot(full, |slot, entry, count| writer.put_below(out, 0, slot, entry, count));
        self.entries.freeze();
        let slots = if full {
            self.changed.clear();
            (0..self.flags.len() as u32).collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        self.residency.freeze(slots.len());
        for slot in slots {
            let at = slot as usize;
            let (flags, copies) = (self.flags[at], self.copies[at]);
            if flags & CHANGED == 0 && !(full && copies > 0) {
                continue;
            }
            writer.put(out, 1, slot, (copies > 0).then_some(copies));
            if copies <= 0 {
                // It stays, as a note that it is gone, until a checkpoint says so.
                self.dead.push(slot);
            }
            self.flags[at] = PERSISTED;
        }
        self.index.compact();
        Ok(())
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        let (mut reader, hash) = Reader::open(value)?;
        match table {
            0 => {
                let (partition, entry) = codec::split_key(key)?;
                let slot = self.index.upsert_encoded(partition, hash)?;
                self.grow();
                self.entries.restore(slot, Arc::from(entry), reader.i64()?);
            }
            1 => {
                let slot = self.index.upsert_encoded(key, hash)?;
                self.grow();
                self.copies[slot as usize] = reader.i64()?;
                self.flags[slot as usize] |= PERSISTED;
            }
            _ => return Err(RuntimeError::internal(format!("a top-N has no state table {table}"))),
        }
        Ok(())
    }

    fn caches(&self) -> bool {
        true
    }

    fn attach(&mut self, cold: Cold, complete: bool) {
        self.residency.attach(cold, true);
        if !complete {
            self.residency.begin_partial(&mut self.index);
        }
    }

    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        self.residency.complete(n, cold);
        self.entries.complete(n);
        let dead = std::mem::take(&mut self.dead);
        for slot in dead {
            let at = slot as usize;
            if self.flags[at] != PERSISTED || self.copies[at] != 0 {
                continue;
            }
            if self.stamps[at] <= n {
                self.forget(slot);
            } else {
                self.dead.push(slot);
            }
        }
        self.index.compact();
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        let n = self.flags.len();
        if !self.residency.may_evict() || n == 0 {
            return Evicted { bytes: 0, round: true };
        }
        let cutoff = self.residency.cutoff(n, bytes, self.live_bytes(), |at| {
            (self.flags[at] == PERSISTED && self.copies[at] > 0).then(|| self.stamps[at])
        });
        let completed = self.residency.completed();
        let keep = usize::try_from(self.places()).unwrap_or(usize::MAX).saturating_mul(2);
        let (range, round) = self.residency.sweep(n);
        let mut freed = 0;
        for at in range {
            let slot = at as u32;
            let idle = self.flags[at] == PERSISTED && self.copies[at] > 0 && self.stamps[at] <= cutoff;
            if idle && freed < bytes && !self.plan.partition_by.is_empty() {
                freed += PARTITION_BYTES + self.entries.len(slot) * ENTRY_BYTES;
                self.forget(slot);
            } else if self.keep.is_none() && self.flags[at] & STEP == 0 {
                freed += self.entries.evict(slot, keep, completed) * ENTRY_BYTES;
            }
        }
        if freed > 0 {
            self.residency.begin_partial(&mut self.index);
        }
        Evicted { bytes: freed, round }
    }

    fn compact(&mut self) {
        if self.index.n_keys() * 2 > self.index.n_slots() || self.index.n_slots() < 65_536 {
            return;
        }
        let (moves, n) = self.index.relocate();
        relocate(&mut self.copies, &moves, n);
        relocate(&mut self.flags, &moves, n);
        relocate(&mut self.stamps, &moves, n);
        relocate(&mut self.bounds, &moves, n);
        self.entries.relocate(&moves, n);
        self.recount_changed();
        self.dead = (0..n as u32)
            .filter(|&s| self.flags[s as usize] == PERSISTED && self.copies[s as usize] == 0)
            .collect();
        self.index.compact();
    }

    fn state_bytes(&self) -> usize {
        self.index.bytes() + self.entries.bytes() + self.entries.n_entries() * 96 + self.flags.len() * 29
    }

    fn live_bytes(&self) -> usize {
        let free = self.index.n_slots() - self.index.n_keys();
        self.state_bytes().saturating_sub(free * PARTITION_BYTES)
    }

    fn pinned_bytes(&self) -> usize {
        (self.changed.len() + self.residency.frozen()) * (PARTITION_BYTES + ENTRY_BYTES)
    }
}
