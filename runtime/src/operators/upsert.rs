//! Keyed changes → rows: the newest record of each key is its row.
//!
//! Maintains, for records `(row, delete, lane, offset)`: for each key the row of its newest record, unless that is a delete. Newest: of
//! the latest step; within a step, of the highest `(lane, offset)`. A lane is a generation and a split ([`crate::sources::hidden_fields`]),
//! so this is the order of the log as long as a key's records stand in one split (any keyed producer sees to that), or move to another
//! split when splits are added. Under that assumption the result does not depend on how steps are cut.
//!
//! A second input takes a table's own writes: a Z-set of rows. In a step they are later than all records: a key with an insertion
//! gets that row, one with only a retraction has none. The coordinator ends steps at epochs with writes, so this is the timeline's order.
//!
//! Assumes that both inputs are routed by the key. Emits at close the net change of each key touched: −old +new, nothing if they are
//! equal; so a repeated change event changes nothing.
//!
//! ```text
//!   slot │ key │ row (encoded columns outside the key) │ flags
//! ```
//!
//! State: table 0, key → row. An entry goes when its key has no row. Bytes per key: key + row + about 70. The old rows of a step's keys are
//! read from the cold tier when the step closes, if they are not resident.
//!
//! Cost per record: encoding of its columns, one hash, one probe, one copy if it is the newest so far. No watermarks.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use arrow::row::{RowConverter, RowParser, SortField};

use super::aggregate::accumulator::relocate;
use super::arena::{Arena, Span};
use super::codec::{self, Reader};
use super::cold::{COLD_ROWS, Cold, ColdKeys, Evicted, Residency};
use super::columns::{coerce, nullable};
use super::eval::batch;
use super::keys::KeyIndex;
use super::{Barrier, Operator, Output, Progress, StateWriter, fault};
use crate::{Delta, Result, RuntimeError};

/// Keys per emitted chunk, about.
const CHUNK: usize = 4096;
/// Columns of input 0 after those of the row.
const HIDDEN: usize = 3;

/// The key has a row.
const PRESENT: u8 = 1;
/// Changed since the last snapshot.
const CHANGED: u8 = 2;
/// A snapshot holds the key.
const PERSISTED: u8 = 4;

/// What is kept per slot, besides the index and the row's bytes.
const SLOT_BYTES: usize = size_of::<Span>() + 9;

/// No change of the key in this step.
const UNTOUCHED: u32 = u32::MAX;

/// The newest change of a key in the step so far.
struct Candidate {
    slot: u32,
    order: Order,
    /// `None`: the key has no row.
    row: Option<Span>,
}

/// Which of two changes of a step is newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Record { lane: i64, offset: i64 },
    Retracted,
    Inserted,
}

/// The operator.
pub struct Upsert {
    key: Vec<usize>,
    /// Columns outside the key.
    rest: Vec<usize>,
    schema: SchemaRef,
    index: KeyIndex,
    converter: RowConverter,
    parser: RowParser,
    rows: Vec<Span>,
    flags: Vec<u8>,
    /// When a key last changed, see [`super::cold`].
    stamps: Vec<u32>,
    residency: Residency,
    /// Keys without a row that the last completed checkpoint may still hold.
    dead: Vec<u32>,
    arena: Arena,
    /// By slot: place in `candidates`.
    touched: Vec<u32>,
    candidates: Vec<Candidate>,
    /// Rows of candidates.
    step: Arena,
    changed: Vec<u32>,
    slots: Vec<u32>,
}

impl Upsert {
    /// From a plan node: `schema` are the columns of the rows, `key` those of them that identify one.
    ///
    /// # Errors
    /// A type cannot be stored, or the key is not of the row.
    pub fn new(key: &[usize], schema: &SchemaRef) -> Result<Self> {
        let width = schema.fields().len();
        if key.is_empty() || key.iter().any(|c| *c >= width) {
            return Err(RuntimeError::internal(
                "upsert without a key, or with one outside its row",
            ));
        }
        let types = |columns: &[usize]| -> Vec<DataType> {
            let fields = columns.iter().map(|&c| schema.field(c));
            fields.map(|f| f.data_type().clone()).collect()
        };
        let rest: Vec<usize> = (0..width).filter(|c| !key.contains(c)).collect();
        let fields = types(&rest).into_iter().map(SortField::new).collect();
        let converter = RowConverter::new(fields)?;
        Ok(Self {
            index: KeyIndex::new(&types(key))?,
            key: key.to_vec(),
            rest,
            schema: nullable(schema),
            parser: converter.parser(),
            converter,
            rows: Vec::new(),
            flags: Vec::new(),
            stamps: Vec::new(),
            residency: Residency::default(),
            dead: Vec::new(),
            arena: Arena::default(),
            touched: Vec::new(),
            candidates: Vec::new(),
            step: Arena::default(),
            changed: Vec::new(),
            slots: Vec::new(),
        })
    }

    fn grow(&mut self) {
        let n = self.index.n_slots();
        if self.flags.len() < n {
            self.rows.resize(n, Span::default());
            self.flags.resize(n, 0);
            self.stamps.resize(n, 0);
            self.touched.resize(n, UNTOUCHED);
        }
    }

    /// Offers each row of a delta as its key's newest change; `order` also says whether the key has a row after it.
    fn offer(&mut self, delta: &Delta, order: &dyn Fn(usize) -> (Order, bool)) -> Result<()> {
        let column = |c: &usize| Arc::clone(delta.batch.column(*c));
        let keys: Vec<ArrayRef> = self.key.iter().map(column).collect();
        let rest: Vec<ArrayRef> = self.rest.iter().map(column).collect();
        let encoded = if rest.is_empty() {
            None
        } else {
            Some(self.converter.convert_columns(&rest)?)
        };
        let mut slots = std::mem::take(&mut self.slots);
        self.index.upsert(&keys, delta.num_rows(), false, &mut slots)?;
        self.grow();
        for (i, &slot) in slots.iter().enumerate() {
            let (order, puts) = order(i);
            let bytes = encoded.as_ref().map(|rows| rows.row(i));
            let bytes: &[u8] = bytes.as_ref().map_or(&[], |row| row.data());
            self.offer_row(slot, order, puts.then_some(bytes));
        }
        self.slots = slots;
        Ok(())
    }

    fn offer_row(&mut self, slot: u32, order: Order, row: Option<&[u8]>) {
        let at = self.touched[slot as usize];
        let Some(known) = self.candidates.get_mut(at as usize) else {
            self.touched[slot as usize] = self.candidates.len() as u32;
            let row = row.map(|bytes| self.step.push(bytes));
            self.candidates.push(Candidate { slot, order, row });
            return;
        };
        let newer = match order.cmp(&known.order) {
            Ordering::Less => false,
            Ordering::Greater => true,
            // Several writes of one key in an epoch do not happen; if they did, the greatest row would win on every replay.
            Ordering::Equal => row > known.row.map(|span| self.step.get(span)),
        };
        if newer {
            if let Some(span) = known.row.take() {
                self.step.free(span);
            }
            known.order = order;
            known.row = row.map(|bytes| self.step.push(bytes));
        }
    }

    /// Emits the net change of up to [`CHUNK`] keys.
    fn emit_some(&mut self, out: &mut Output) -> Result<Progress> {
        let chunk = if self.residency.reads().is_some() {
            COLD_ROWS
        } else {
            CHUNK
        };
        let from = self.candidates.len().saturating_sub(chunk);
        let candidates = self.candidates.split_off(from);
        self.load(&candidates)?;
        let (mut slots, mut spans, mut diffs) = (Vec::new(), Vec::new(), Vec::new());
        // Old rows are freed when they have been decoded.
        let mut old = Vec::new();
        for candidate in &candidates {
            let slot = candidate.slot as usize;
            self.touched[slot] = UNTOUCHED;
            let before = (self.flags[slot] & PRESENT != 0).then(|| self.rows[slot]);
            let new = candidate.row.map(|span| self.step.get(span));
            if before.map(|span| self.arena.get(span)) == new {
                continue;
            }
            if let Some(span) = before {
                slots.push(candidate.slot);
                spans.push(span);
                diffs.push(-1);
                old.push(span);
            }
            let mut flags = self.flags[slot] & !PRESENT;
            if let Some(bytes) = new {
                let span = self.arena.push(bytes);
                slots.push(candidate.slot);
                spans.push(span);
                diffs.push(1);
                self.rows[slot] = span;
                flags |= PRESENT;
            }
            if flags & CHANGED == 0 {
                self.changed.push(candidate.slot);
                self.stamps[slot] = self.residency.stamp();
            }
            self.flags[slot] = flags | CHANGED;
        }
        if !slots.is_empty() {
            out.emit(Delta::new(self.decode(&slots, &spans)?, diffs));
        }
        old.into_iter().for_each(|span| self.arena.free(span));
        for candidate in &candidates {
            let flags = self.flags[candidate.slot as usize];
            if flags & (PRESENT | PERSISTED) == 0 {
                self.forget(candidate.slot);
            }
        }
        if self.candidates.is_empty() {
            self.end_step();
            return Ok(Progress::Done);
        }
        Ok(Progress::More)
    }

    /// Reads the rows of keys of which nothing is resident.
    fn load(&mut self, candidates: &[Candidate]) -> Result<()> {
        let Some(cold) = self.residency.reads().cloned() else {
            return Ok(());
        };
        let unknown = candidates
            .iter()
            .map(|c| c.slot)
            .filter(|&s| self.flags[s as usize] == 0);
        let unknown: Vec<u32> = unknown.collect();
        let (mut keys, mut key) = (ColdKeys::default(), Vec::new());
        for &slot in &unknown {
            key.clear();
            self.index.encode(slot, &mut key);
            keys.push(&cold, 0, self.index.vnode(slot), &key);
        }
        cold.get_many(&keys, &mut |i, value| {
            let slot = unknown[i] as usize;
            self.rows[slot] = self.arena.push(Reader::open(value)?.0.bytes()?);
            self.flags[slot] = PRESENT | PERSISTED;
            self.stamps[slot] = 0;
            Ok(())
        })
    }

    /// Whether a key that is gone, and was noted as such, is in no checkpoint any more; `None`: the note is out of date.
    fn is_forgotten(&self, slot: u32) -> Option<bool> {
        (self.flags[slot as usize] == PERSISTED).then(|| self.stamps[slot as usize] <= self.residency.completed())
    }

    fn end_step(&mut self) {
        self.step = Arena::default();
        self.index.compact();
        self.compact_rows();
        if self.changed.len() > 2 * self.flags.len() + 1024 {
            self.recount_changed();
        }
    }

    fn recount_changed(&mut self) {
        self.changed = (0..self.flags.len() as u32)
            .filter(|&s| self.flags[s as usize] & CHANGED != 0)
            .collect();
    }

    fn compact_rows(&mut self) {
        if let Some(victims) = self.arena.victims() {
            for (span, flags) in self.rows.iter_mut().zip(&self.flags) {
                if flags & PRESENT != 0 {
                    self.arena.relocate(span, &victims);
                }
            }
        }
    }

    fn decode(&self, slots: &[u32], spans: &[Span]) -> Result<arrow::array::RecordBatch> {
        let keys = self.index.columns(slots)?;
        let rest = if self.rest.is_empty() {
            Vec::new()
        } else {
            let rows = spans.iter().map(|&span| self.parser.parse(self.arena.get(span)));
            self.converter.convert_rows(rows)?
        };
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
        let places = self.key.iter().chain(&self.rest);
        for (&place, column) in places.zip(keys.into_iter().chain(rest)) {
            columns[place] = Some(coerce(column, self.schema.field(place).data_type())?);
        }
        batch(&self.schema, columns.into_iter().flatten().collect(), slots.len())
    }

    fn forget(&mut self, slot: u32) {
        self.flags[slot as usize] = 0;
        self.index.remove(slot);
    }
}

impl Operator for Upsert {
    fn push(&mut self, input: usize, delta: Delta, _out: &mut Output) -> Result<Progress> {
        let planted = fault::planted(fault::Fault::Upsert);
        if input == 1 {
            let of = |i: usize| {
                let inserted = delta.diff(i) > 0;
                (if inserted { Order::Inserted } else { Order::Retracted }, inserted)
            };
            self.offer(&delta, &of)?;
            return Ok(Progress::Done);
        }
        let width = self.schema.fields().len();
        if delta.batch.num_columns() != width + HIDDEN {
            return Err(RuntimeError::internal("upsert's input lacks the columns of its order"));
        }
        let deletes = delta.batch.column(width).as_boolean();
        let lanes = delta.batch.column(width + 1).as_primitive::<Int64Type>().values();
        let offsets = delta.batch.column(width + 2).as_primitive::<Int64Type>().values();
        let of = |i: usize| {
            let order = Order::Record {
                lane: lanes[i],
                offset: if planted { -offsets[i] } else { offsets[i] },
            };
            (order, !deletes.value(i))
        };
        self.offer(&delta, &of)?;
        Ok(Progress::Done)
    }

    fn close(&mut self, _barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.emit_some(out)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        self.emit_some(out)
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let slots: Vec<u32> = if full {
            self.changed.clear();
            (0..self.flags.len() as u32).collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        self.residency.freeze(slots.len());
        for slot in slots {
            let flags = self.flags[slot as usize];
            let live = flags & PRESENT != 0;
            if !(flags & CHANGED != 0 || full && live) {
                continue;
            }
            key.clear();
            self.index.encode(slot, &mut key);
            let vnode = self.index.vnode(slot);
            if live {
                codec::begin(&mut value, self.index.hash(slot));
                codec::put_bytes(&mut value, self.arena.get(self.rows[slot as usize]));
                (out.put)(0, vnode, &key, Some(&value));
                self.flags[slot as usize] = PRESENT | PERSISTED;
            } else {
                // It stays, as a note that it is gone, until a checkpoint says so.
                (out.put)(0, vnode, &key, None);
                self.flags[slot as usize] = PERSISTED;
                self.dead.push(slot);
            }
        }
        self.index.compact();
        Ok(())
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        if table != 0 {
            return Err(RuntimeError::internal(format!("upsert has no state table {table}")));
        }
        let (mut reader, hash) = Reader::open(value)?;
        let slot = self.index.upsert_encoded(key, hash)?;
        self.grow();
        self.rows[slot as usize] = self.arena.push(reader.bytes()?);
        self.flags[slot as usize] = PRESENT | PERSISTED;
        Ok(())
    }

    fn caches(&self) -> bool {
        true
    }

    fn attach(&mut self, cold: Cold, complete: bool) {
        self.residency.attach(cold, complete);
    }

    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        self.residency.complete(n, cold);
        for slot in std::mem::take(&mut self.dead) {
            match self.is_forgotten(slot) {
                Some(true) => self.forget(slot),
                Some(false) => self.dead.push(slot),
                None => {}
            }
        }
        self.index.compact();
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        let n = self.flags.len();
        if !self.residency.may_evict() || n == 0 {
            return Evicted { bytes: 0, round: true };
        }
        let clean = |slot: usize| self.flags[slot] == PRESENT | PERSISTED && self.touched[slot] == UNTOUCHED;
        let cutoff = self.residency.cutoff(n, bytes, self.live_bytes(), |slot| {
            clean(slot).then(|| self.stamps[slot])
        });
        let (range, round) = self.residency.sweep(n);
        let mut freed = 0;
        for slot in range {
            let clean = self.flags[slot] == PRESENT | PERSISTED && self.touched[slot] == UNTOUCHED;
            if freed < bytes && clean && self.stamps[slot] <= cutoff {
                freed += self.index.bytes_per_key() + SLOT_BYTES + self.rows[slot].len() as usize;
                self.arena.free(self.rows[slot]);
                self.forget(slot as u32);
            }
        }
        if freed > 0 {
            self.residency.evicted();
        }
        Evicted { bytes: freed, round }
    }

    fn compact(&mut self) {
        self.compact_rows();
        if self.index.n_keys() * 2 > self.index.n_slots() || self.index.n_slots() < 65_536 {
            return;
        }
        let (moves, n) = self.index.relocate();
        relocate(&mut self.rows, &moves, n);
        relocate(&mut self.flags, &moves, n);
        relocate(&mut self.stamps, &moves, n);
        relocate(&mut self.touched, &moves, n);
        self.recount_changed();
        self.dead = (0..n as u32).filter(|&s| self.is_forgotten(s).is_some()).collect();
        self.index.compact();
    }

    fn state_bytes(&self) -> usize {
        self.index.bytes()
            + self.arena.bytes()
            + self.step.bytes()
            + self.rows.len() * SLOT_BYTES
            + (self.changed.capacity() + self.dead.capacity()) * 4
    }

    fn live_bytes(&self) -> usize {
        let free = self.index.n_slots() - self.index.n_keys();
        self.state_bytes().saturating_sub(free * SLOT_BYTES)
    }

    fn pinned_bytes(&self) -> usize {
        let row = self.arena.live() / self.index.n_keys().max(1);
        (self.changed.len() + self.residency.frozen()) * (self.index.bytes_per_key() + SLOT_BYTES + row)
    }
}
