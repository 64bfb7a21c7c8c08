//! A filter by time: rows that are visible from one moment on, until another.
//!
//! ```text
//!             from            until
//!   ───────────●───────────────○──────────▶ epoch's timestamp
//!     waiting       visible        gone
//! ```
//!
//! Maintains `{ r ∈ input : from(r) ≤ t < until(r) }`, where *t* is the timestamp of the step's last epoch, which never decreases. So each row
//! becomes visible at most once and goes at most once, and what lies behind its end is forgotten, retractions of it too.
//!
//! Assumes that multiplicities are never negative at the end of a step, and that rows are routed by all of their columns. Emits at close the
//! change of the rows that were touched in the step or whose time has come; a step is needed by [`Operator::next_timer_us`] even
//! if no input changes.
//!
//! State: table 0, the encoded row → multiplicity, whether it is shown. Bytes per row: its encoding and about 90.
//!
//! Cost per row: an encode, a probe, and an insertion into the schedule at each change of its visibility.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType};
use arrow::row::{RowConverter, RowParser, SortField};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use levee_planner::plan::TimeBound;

use super::arena::{Arena, Span};
use super::codec::{self, Reader};
use super::columns::nullable;
use super::eval::fitted;
use super::segments::bucket_hash;
use super::{Barrier, Operator, Output, Progress, StateWriter, fault};
use crate::hash::{hash_columns, vnode};
use crate::{Delta, Result, RuntimeError};

/// Rows per emitted chunk, about.
const CHUNK: usize = 8192;

/// To be looked at when the step closes.
const TOUCHED: u8 = 1;
/// Changed since the last snapshot.
const CHANGED: u8 = 2;
/// A snapshot holds it.
const PERSISTED: u8 = 4;
/// Out of the state but for a snapshot's tombstone.
const GONE: u8 = 8;
/// The slot is free.
const FREE: u8 = 16;

/// One distinct input row.
#[derive(Debug, Clone, Copy)]
struct Row {
    bytes: Span,
    hash: u64,
    from: i64,
    until: i64,
    count: i64,
    /// Multiplicity emitted so far.
    shown: i64,
    flags: u8,
}

/// The operator.
pub struct TemporalFilter {
    from: Vec<TimeBound>,
    until: Vec<TimeBound>,
    schema: SchemaRef,
    converter: RowConverter,
    parser: RowParser,
    table: HashTable<u32>,
    arena: Arena,
    rows: Vec<Row>,
    free: Vec<u32>,
    /// When each row's visibility changes next.
    schedule: BTreeSet<(i64, u32)>,
    touched: Vec<u32>,
    changed: Vec<u32>,
    /// Timestamp of the last closed step.
    now: i64,
}

impl TemporalFilter {
    /// From a plan node: `schema` names the leading columns of the input that are the output.
    ///
    /// # Errors
    /// A type cannot be encoded, or a bound is not a timestamp.
    pub fn new(from: &[TimeBound], until: &[TimeBound], input: &SchemaRef, schema: &SchemaRef) -> Result<Self> {
        for bound in from.iter().chain(until) {
            let data_type = input.fields().get(bound.column).map(|f| f.data_type());
            if !matches!(data_type, Some(DataType::Timestamp(TimeUnit::Microsecond, _))) {
                return Err(RuntimeError::internal("a temporal filter's bound is not a timestamp"));
            }
        }
        let fields = input.fields().iter().map(|f| SortField::new(f.data_type().clone()));
        let converter = RowConverter::new(fields.collect())?;
        Ok(Self {
            from: from.to_vec(),
            until: until.to_vec(),
            schema: nullable(schema),
            parser: converter.parser(),
            converter,
            table: HashTable::new(),
            arena: Arena::default(),
            rows: Vec::new(),
            free: Vec::new(),
            schedule: BTreeSet::new(),
            touched: Vec::new(),
            changed: Vec::new(),
            now: i64::MIN,
        })
    }

    /// The slot of a row, made where missing.
    fn upsert(&mut self, bytes: &[u8], hash: u64, from: i64, until: i64) -> u32 {
        let Self {
            table,
            arena,
            rows,
            free,
            ..
        } = self;
        let same = |&slot: &u32| {
            let row = &rows[slot as usize];
            row.hash == hash && arena.get(row.bytes) == bytes
        };
        match table.entry(bucket_hash(hash), same, |&slot| bucket_hash(rows[slot as usize].hash)) {
            Entry::Occupied(found) => *found.get(),
            Entry::Vacant(vacant) => {
                let slot = free.pop().unwrap_or(rows.len() as u32);
                vacant.insert(slot);
                let row = Row {
                    bytes: arena.push(bytes),
                    hash,
                    from,
                    until,
                    count: 0,
                    shown: 0,
                    flags: 0,
                };
                if slot as usize == rows.len() {
                    rows.push(row);
                } else {
                    rows[slot as usize] = row;
                }
                slot
            }
        }
    }

    fn touch(&mut self, slot: u32) {
        let row = &mut self.rows[slot as usize];
        if row.flags & TOUCHED == 0 {
            row.flags |= TOUCHED;
            self.touched.push(slot);
        }
    }

    fn note_change(&mut self, slot: u32) {
        let row = &mut self.rows[slot as usize];
        if row.flags & CHANGED == 0 {
            row.flags |= CHANGED;
            self.changed.push(slot);
        }
    }

    /// When the row's visibility changes after the last step, if ever.
    fn next_change(&self, row: &Row) -> Option<i64> {
        if self.now < row.from {
            return Some(row.from);
        }
        (row.until != i64::MAX).then_some(row.until)
    }

    /// Emits the change of up to [`CHUNK`] touched rows.
    fn emit_some(&mut self, out: &mut Output) -> Result<Progress> {
        let from = self.touched.len().saturating_sub(CHUNK);
        let slots = self.touched.split_off(from);
        let (mut picked, mut diffs) = (Vec::new(), Vec::new());
        for &slot in &slots {
            let now = self.now;
            let row = &mut self.rows[slot as usize];
            row.flags &= !TOUCHED;
            // After a restore a row that went long ago may still be retracted.
            if row.count < 0 && now < row.until {
                return Err(RuntimeError::internal(
                    "a temporal filter's input retracts rows that it never inserted",
                ));
            }
            let wanted = if row.from <= now && now < row.until {
                row.count
            } else {
                0
            };
            if wanted != row.shown {
                picked.push(slot);
                diffs.push(wanted - row.shown);
                row.shown = wanted;
            }
        }
        if !picked.is_empty() {
            let bytes = picked
                .iter()
                .map(|&s| self.parser.parse(self.arena.get(self.rows[s as usize].bytes)));
            let columns = self.converter.convert_rows(bytes)?;
            out.emit(Delta::new(fitted(&self.schema, columns, picked.len())?, diffs));
        }
        for &slot in &slots {
            self.settle(slot);
        }
        if self.touched.is_empty() {
            self.compact();
            return Ok(Progress::Done);
        }
        Ok(Progress::More)
    }

    /// Schedules the row's next change, or drops it.
    fn settle(&mut self, slot: u32) {
        let row = self.rows[slot as usize];
        self.note_change(slot);
        if row.count > 0 && self.now < row.until {
            if let Some(at) = self.next_change(&row) {
                self.schedule.insert((at, slot));
            }
            return;
        }
        for at in [row.from, row.until] {
            self.schedule.remove(&(at, slot));
        }
        if row.flags & PERSISTED == 0 {
            self.forget(slot);
        } else {
            let row = &mut self.rows[slot as usize];
            row.count = 0;
            row.flags |= GONE;
        }
    }

    fn forget(&mut self, slot: u32) {
        let row = self.rows[slot as usize];
        if let Ok(found) = self.table.find_entry(bucket_hash(row.hash), |&s| s == slot) {
            found.remove();
        }
        self.arena.free(row.bytes);
        // The list of changes may still name the slot; `snapshot` passes free ones by.
        self.rows[slot as usize].flags = FREE | row.flags & CHANGED;
        self.free.push(slot);
    }

    fn compact(&mut self) {
        if let Some(victims) = self.arena.victims() {
            for &slot in self.table.iter() {
                self.arena.relocate(&mut self.rows[slot as usize].bytes, &victims);
            }
        }
    }
}

/// The latest of `from` or the earliest of `until` of each row; `None` where a bound is NULL.
fn bounds(delta: &Delta, bounds: &[TimeBound], none: i64, pick: fn(i64, i64) -> i64) -> Vec<Option<i64>> {
    let mut out = vec![Some(none); delta.num_rows()];
    for bound in bounds {
        let column = delta
            .batch
            .column(bound.column)
            .as_primitive::<TimestampMicrosecondType>();
        for (i, out) in out.iter_mut().enumerate() {
            *out = match (*out, column.is_valid(i)) {
                (Some(best), true) => Some(pick(best, column.value(i).saturating_add(bound.shift_us))),
                _ => None,
            };
        }
    }
    out
}

impl Operator for TemporalFilter {
    fn push(&mut self, _input: usize, delta: Delta, _out: &mut Output) -> Result<Progress> {
        let delta = if fault::planted(fault::Fault::Temporal) {
            fault::without_a_retraction(delta)
        } else {
            delta
        };
        let from = bounds(&delta, &self.from, i64::MIN, i64::max);
        let until = bounds(&delta, &self.until, i64::MAX, i64::min);
        let hashes = hash_columns(delta.batch.columns())?;
        let encoded = self.converter.convert_columns(delta.batch.columns())?;
        for i in 0..delta.num_rows() {
            let (Some(from), Some(until)) = (from[i], until[i]) else {
                continue;
            };
            if until <= self.now || until <= from {
                continue;
            }
            let slot = self.upsert(encoded.row(i).data(), hashes[i], from, until);
            let row = &mut self.rows[slot as usize];
            row.flags &= !GONE;
            row.count += delta.diff(i);
            self.touch(slot);
        }
        Ok(Progress::Done)
    }

    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.now = self.now.max(barrier.timestamp_us);
        while let Some(&(at, slot)) = self.schedule.first() {
            if at > self.now {
                break;
            }
            self.schedule.pop_first();
            self.touch(slot);
        }
        self.emit_some(out)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        self.emit_some(out)
    }

    fn next_timer_us(&self) -> Option<i64> {
        self.schedule.first().map(|(at, _)| *at)
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        let slots: Vec<u32> = if full {
            self.changed.clear();
            (0..self.rows.len() as u32).collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        let mut value = Vec::new();
        for slot in slots {
            let row = &mut self.rows[slot as usize];
            let due = full || row.flags & CHANGED != 0;
            row.flags &= !CHANGED;
            if !due || row.flags & FREE != 0 {
                continue;
            }
            let row = *row;
            let bytes = self.arena.get(row.bytes);
            if row.flags & GONE != 0 {
                (out.put)(0, vnode(row.hash), bytes, None);
                self.forget(slot);
                continue;
            }
            codec::begin(&mut value, row.hash);
            for field in [row.from, row.until, row.count, row.shown] {
                codec::put_i64(&mut value, field);
            }
            (out.put)(0, vnode(row.hash), bytes, Some(&value));
            self.rows[slot as usize].flags |= PERSISTED;
        }
        self.compact();
        Ok(())
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        if table != 0 {
            return Err(RuntimeError::internal(format!(
                "a temporal filter has no state table {table}"
            )));
        }
        let (mut reader, hash) = Reader::open(value)?;
        let (from, until) = (reader.i64()?, reader.i64()?);
        let (count, shown) = (reader.i64()?, reader.i64()?);
        let slot = self.upsert(key, hash, from, until);
        let row = &mut self.rows[slot as usize];
        row.count = count;
        row.shown = shown;
        row.flags = PERSISTED;
        // A waiting row comes at its beginning, a shown one goes at its end.
        let next = if shown > 0 { until } else { from };
        if next != i64::MAX {
            self.schedule.insert((next, slot));
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.table.allocation_size()
            + self.arena.bytes()
            + self.rows.capacity() * size_of::<Row>()
            + self.schedule.len() * 32
            + (self.free.capacity() + self.changed.capacity() + self.touched.capacity()) * 4
    }
}
