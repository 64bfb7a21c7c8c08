//! Window functions with retractions.
//!
//! Maintains, for each row of the input, the row with the results of some calls over one window: partitions, an order within them, and
//! for each call a frame. Rows that the order leaves equal stand in the order of their columns, so that results are a function of the
//! input alone.
//!
//! Assumes that multiplicities are never negative at the end of a step, and that the input is routed by the partition columns. Emits at
//! close, for each row whose results changed, −old +new. Results are not kept: both are computed, from the partition as it was before the
//! step and as it is, for those rows that the step's changes may reach ([`shape`]), piece by piece ([`job`], [`evaluate`]).
//!
//! ```text
//!   row_number, running sums       from the change on, until what stands in front is as it was
//!   lag, lead, bounded frames      the rows around the change
//!   aggregates of a partition      only the changed rows, unless the value changed
//!   percent_rank, cume_dist, ntile all rows, if their number changed
//!   lists without a bound          all rows
//! ```
//!
//! State as in [`super::partitions`]; in a window that was turned around the rows are encoded descending. A partition is resident as a whole or not at
//! all; while it is, what stands in front of every 256th row or so is noted (*marks*), so that a change far behind the partition's start
//! need not add up all rows in front of it. Bytes per row: its encoding twice over at most, and 60; aggregates over whole partitions keep
//! what they keep as groups.
//!
//! Cost per row: two encodes, a probe, a look-up in the partition's order. Cost per change: the rows that it reaches and those that they are
//! computed from, a few microseconds each; at most 256 more from a mark. Nothing grows with the number of partitions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, SchemaRef};
use levee_planner::plan::{AggCall, Bound, Distance, SortKey, WindowCall, WindowFunc};

use self::distance::widened;
use self::evaluate::{Base, encode_far};
use self::job::Job;
use self::shape::{Shape, is_list};
use self::walk::Journal;
use super::aggregate::accumulator::{Accumulator, Failures, Rows};
use super::aggregate::{accumulator_of, display};
use super::codec::{self, Reader};
use super::cold::{Cold, Evicted, Pieces, Residency};
use super::columns::nullable;
use super::keys::KeyIndex;
use super::ordered::OrderedCounts;
use super::partitions::{CountWriter, Entry, EntryCodec, column_type, look_up_made};
use super::{Barrier, Operator, Output, Progress, StateWriter, fault};
use crate::{Delta, Diffs, Result, RuntimeError};

mod distance;
mod emit;
mod evaluate;
mod job;
mod shape;
mod values;
mod walk;

/// Touched in this step.
const STEP: u8 = 1;
/// A snapshot holds the partition.
const PERSISTED: u8 = 2;
/// Changed since the last snapshot.
const CHANGED: u8 = 4;
/// Aggregates over whole partitions have taken the partition's rows.
const SUMMED: u8 = 8;

/// Bytes of a partition's slot, and of an entry with what it points to, about.
const PARTITION_BYTES: usize = 90;
const ENTRY_BYTES: usize = 150;
/// Rows decoded at once where a partition is summed up.
const CHUNK: usize = if cfg!(test) { 5 } else { 8192 };

/// A window's parameters.
#[derive(Debug, Clone)]
pub struct WindowPlan {
    /// Partition columns.
    pub partition_by: Vec<usize>,
    /// Order.
    pub order_by: Vec<SortKey>,
    /// Equal rows stand from the greatest to the least.
    pub reversed: bool,
    /// Calls.
    pub calls: Vec<WindowCall>,
}

/// What is noted of places in a partition: what stands in front of them.
type Marks = BTreeMap<Entry, Base>;

/// A partition's changes in the step.
struct Touched {
    journal: Journal,
    /// Rows before.
    copies: i64,
    /// Results over the whole partition before: column list and row.
    whole: Option<(usize, usize)>,
}

/// A partition.
#[derive(Default)]
struct Partition {
    /// Rows.
    copies: i64,
    /// When it last changed, see [`super::cold`].
    stamp: u32,
    flags: u8,
    marks: Option<Box<Marks>>,
    touched: Option<Box<Touched>>,
}

/// How a call is computed.
enum Way {
    /// From the rows at hand.
    Plain,
    /// An aggregate over whole partitions: its place among those.
    Whole(usize),
    /// An aggregate over frames, with its place among the running ones if it is one.
    Framed(Box<dyn Accumulator>, Option<usize>),
}

struct Call {
    plan: WindowCall,
    way: Way,
    display: String,
}

/// An aggregate over whole partitions, by slot.
struct WholeAggregate {
    agg: AggCall,
    accumulator: Box<dyn Accumulator>,
    display: String,
}

/// The operator.
pub struct Window {
    plan: WindowPlan,
    shape: Shape,
    calls: Vec<Call>,
    whole: Vec<WholeAggregate>,
    /// Aggregates whose frames begin with the partition.
    running: Vec<AggCall>,
    running_states: Vec<Box<dyn Accumulator>>,
    schema: SchemaRef,
    codec: EntryCodec,
    index: KeyIndex,
    entries: OrderedCounts<Entry>,
    partitions: Vec<Partition>,
    residency: Residency,
    touched: Vec<u32>,
    /// Results over whole partitions before the step: lists of columns.
    before: Vec<Vec<ArrayRef>>,
    jobs: VecDeque<Job>,
    changed: Vec<u32>,
    /// Empty partitions that the last completed checkpoint may still hold.
    dead: Vec<u32>,
    pending: Pieces,
    slots: Vec<u32>,
    scratch: Vec<u8>,
    /// Entries computed with so far.
    #[cfg(test)]
    pub computed: usize,
}

impl Window {
    /// From a plan node.
    ///
    /// # Errors
    /// A type cannot be ordered, or an aggregate does not support its argument's.
    pub fn new(plan: &WindowPlan, input: &SchemaRef, schema: &SchemaRef) -> Result<Self> {
        let width = input.fields().len();
        if schema.fields().len() != width + plan.calls.len() {
            return Err(RuntimeError::internal("a window with an unfit output schema"));
        }
        let partition = plan.partition_by.iter().map(|&c| column_type(input, c));
        let partition = partition.collect::<Result<Vec<_>>>()?;
        let mut window = Self {
            shape: Shape::new(&plan.calls),
            calls: Vec::with_capacity(plan.calls.len()),
            whole: Vec::new(),
            running: Vec::new(),
            running_states: Vec::new(),
            schema: nullable(schema),
            codec: EntryCodec::new(&plan.order_by, plan.reversed, input)?,
            index: KeyIndex::new(&partition)?,
            entries: OrderedCounts::new(false),
            partitions: Vec::new(),
            residency: Residency::default(),
            touched: Vec::new(),
            before: Vec::new(),
            jobs: VecDeque::new(),
            changed: Vec::new(),
            dead: Vec::new(),
            pending: Pieces::default(),
            slots: Vec::new(),
            scratch: Vec::new(),
            #[cfg(test)]
            computed: 0,
            plan: plan.clone(),
        };
        for (call, field) in plan.calls.iter().zip(&schema.fields()[width..]) {
            window.add_call(call, input, field.data_type())?;
        }
        Ok(window)
    }

    fn add_call(&mut self, call: &WindowCall, input: &SchemaRef, output: &DataType) -> Result<()> {
        let mut text = String::new();
        let way = match &call.func {
            WindowFunc::Aggregate(agg) if agg.distinct => {
                return Err(RuntimeError::internal("a window aggregate with DISTINCT"));
            }
            WindowFunc::Aggregate(agg) if !is_list(agg.func) => {
                let name = agg.arg.and_then(|c| input.fields().get(c)).map(|f| f.name().as_str());
                text = display(agg, name);
                let state = |append_only| accumulator_of(agg, input, output, append_only);
                if call.frame.is_whole() {
                    self.whole.push(WholeAggregate {
                        agg: agg.clone(),
                        accumulator: state(false)?,
                        display: text.clone(),
                    });
                    Way::Whole(self.whole.len() - 1)
                } else if call.frame.start == Bound::Unbounded {
                    self.running.push(agg.clone());
                    self.running_states.push(state(true)?);
                    Way::Framed(state(true)?, Some(self.running.len() - 1))
                } else {
                    Way::Framed(state(true)?, None)
                }
            }
            _ => Way::Plain,
        };
        self.calls.push(Call {
            plan: call.clone(),
            way,
            display: text,
        });
        Ok(())
    }

    fn grow(&mut self) {
        let n = self.index.n_slots();
        if self.partitions.len() < n {
            self.partitions.resize_with(n, Partition::default);
            self.entries.grow(n);
        }
        for whole in &mut self.whole {
            whole.accumulator.grow(n);
        }
    }

    /// Sort columns at the far ends of distances, the farthest one.
    fn far(&self, key: &[u8], distances: &[Distance], towards_front: bool) -> Result<Option<Vec<u8>>> {
        let Some((order, sort, own)) = self.codec.sort_value(key)? else {
            return Err(RuntimeError::internal("a range without a sort column"));
        };
        if own.null_count() > 0 {
            return Ok(None);
        }
        let mut farthest: Option<Vec<u8>> = None;
        for &by in distances {
            let ends = encode_far(order, sort, &own, widened(by), towards_front)?;
            let end = ends.row(0).data().to_vec();
            farthest = Some(match farthest {
                Some(known) if towards_front => known.min(end),
                Some(known) => known.max(end),
                None => end,
            });
        }
        Ok(farthest)
    }

    fn mark_changed(&mut self, slot: u32) {
        let partition = &mut self.partitions[slot as usize];
        if partition.flags & CHANGED == 0 {
            partition.flags |= CHANGED;
            partition.stamp = self.residency.stamp();
            self.changed.push(slot);
        }
    }

    /// Notes partitions that a batch is about to change, before their first change in the step.
    fn touch(&mut self, slots: &[u32]) -> Result<()> {
        let mut fresh = Vec::new();
        for &slot in slots {
            let partition = &mut self.partitions[slot as usize];
            if partition.flags & STEP != 0 {
                continue;
            }
            partition.flags |= STEP;
            let has_rows = partition.copies > 0;
            partition.touched = Some(Box::new(Touched {
                journal: Journal::new(),
                copies: partition.copies,
                whole: None,
            }));
            self.touched.push(slot);
            self.mark_changed(slot);
            if has_rows && !self.whole.is_empty() {
                self.sum_up(slot)?;
                fresh.push(slot);
            }
            self.partitions[slot as usize].flags |= SUMMED;
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let list = self.before.len();
        let mut ignored = Output::default();
        let columns = self.whole_results(&fresh, &mut ignored)?;
        self.before.push(columns);
        for (row, &slot) in fresh.iter().enumerate() {
            if let Some(touched) = &mut self.partitions[slot as usize].touched {
                touched.whole = Some((list, row));
            }
        }
        Ok(())
    }

    /// Gives a partition's rows to the aggregates over whole partitions, if they have not had them.
    fn sum_up(&mut self, slot: u32) -> Result<()> {
        if self.partitions[slot as usize].flags & SUMMED != 0 {
            return Ok(());
        }
        let all: Vec<(Entry, i64)> = self.entries.iter(slot).map(|(e, n)| (Arc::clone(e), n)).collect();
        for part in all.chunks(CHUNK) {
            let columns = self.codec.decode(part.iter().map(|e| e.0.as_ref()))?;
            let diffs: Vec<i64> = part.iter().map(|e| e.1).collect();
            let slots = vec![slot; part.len()];
            self.add_to_whole(&slots, &Diffs::Values(diffs.into()), &columns)?;
        }
        Ok(())
    }

    fn add_to_whole(&mut self, slots: &[u32], diffs: &Diffs, columns: &[ArrayRef]) -> Result<()> {
        let column = |c: usize| {
            columns
                .get(c)
                .ok_or_else(|| RuntimeError::internal(format!("a window refers to column {c} of its input")))
        };
        for whole in &mut self.whole {
            let arg = whole.agg.arg.map(column).transpose()?;
            let filter = whole.agg.filter.map(column).transpose()?.map(|f| f.as_boolean());
            whole.accumulator.update(&Rows::new(slots, diffs, arg, filter))?;
        }
        Ok(())
    }

    /// Results over whole partitions.
    fn whole_results(&self, slots: &[u32], out: &mut Output) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(self.whole.len());
        for whole in &self.whole {
            let mut failures = Failures::default();
            columns.push(whole.accumulator.evaluate(slots, &mut failures)?);
            emit::note(&whole.display, failures, out);
        }
        Ok(columns)
    }

    /// Looks up the partitions that have just been given a slot, and reads those that there are.
    fn load_partitions(&mut self) -> Result<()> {
        let Some(cold) = self.residency.reads().cloned() else {
            return Ok(());
        };
        let found = look_up_made(&mut self.index, &cold)?;
        if found.is_empty() {
            return Ok(());
        }
        let mut scan = cold.scan()?;
        let (mut key, mut prefix) = (Vec::new(), Vec::new());
        for (slot, copies) in found {
            let partition = &mut self.partitions[slot as usize];
            partition.copies = copies;
            partition.flags = PERSISTED;
            partition.stamp = 0;
            key.clear();
            self.index.encode(slot, &mut key);
            codec::join_key(&mut prefix, &key, &[]);
            scan.seek(0, self.index.vnode(slot), &prefix, None)?;
            while let Some((entry, value)) = scan.next_entry()? {
                self.entries
                    .restore(slot, Arc::from(entry), Reader::open(value)?.0.i64()?);
            }
        }
        Ok(())
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
        self.load_partitions()?;
        self.touch(&slots)?;
        self.add_to_whole(&slots, &delta.diffs, delta.batch.columns())?;
        let entries = self.codec.encode(&delta.batch)?;
        for (i, &slot) in slots.iter().enumerate() {
            entries.write(i, &mut self.scratch);
            let diff = delta.diff(i);
            let (before, _) = self.entries.add(slot, &self.scratch, diff);
            let partition = &mut self.partitions[slot as usize];
            partition.copies += diff;
            if let Some(touched) = &mut partition.touched
                && !touched.journal.contains_key(self.scratch.as_slice())
            {
                touched.journal.insert(Arc::from(self.scratch.as_slice()), before);
            }
        }
        self.slots = slots;
        Ok(())
    }

    /// Ends the step for a partition.
    fn settle(&mut self, slot: u32) {
        let partition = &mut self.partitions[slot as usize];
        partition.flags &= !STEP;
        partition.touched = None;
        if partition.copies == 0 && partition.flags & PERSISTED == 0 && !self.entries.has_negative() {
            self.forget(slot);
        }
    }

    fn forget(&mut self, slot: u32) {
        self.partitions[slot as usize] = Partition::default();
        self.entries.clear(slot);
        for whole in &mut self.whole {
            whole.accumulator.clear(slot);
        }
        self.index.remove(slot);
    }

    /// Slots are noted again when they are given to another partition; this makes the list exact.
    fn recount_changed(&mut self) {
        self.changed = (0..self.partitions.len() as u32)
            .filter(|&s| self.partitions[s as usize].flags & CHANGED != 0)
            .collect();
    }
}

impl Operator for Window {
    fn push(&mut self, _input: usize, delta: Delta, _out: &mut Output) -> Result<Progress> {
        let delta = if fault::planted(fault::Fault::Window) {
            fault::without_a_retraction(delta)
        } else {
            delta
        };
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
        for whole in &mut self.whole {
            // What these hold is not stored; the list of what changed would only grow.
            if let Some(entries) = whole.accumulator.entries() {
                entries.snapshot(false, &mut |_, _, _| {});
                entries.complete(u32::MAX);
            }
        }
        let slots = if full {
            self.changed.clear();
            (0..self.partitions.len() as u32).collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        self.residency.freeze(slots.len());
        for slot in slots {
            let at = slot as usize;
            let (flags, copies) = (self.partitions[at].flags, self.partitions[at].copies);
            if flags & CHANGED == 0 && !(full && copies > 0) {
                continue;
            }
            writer.put(out, 1, slot, (copies > 0).then_some(copies));
            if copies <= 0 {
                // It stays, as a note that it is gone, until a checkpoint says so.
                self.dead.push(slot);
            }
            self.partitions[at].flags = flags & SUMMED | PERSISTED;
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
                let partition = &mut self.partitions[slot as usize];
                partition.copies = reader.i64()?;
                partition.flags |= PERSISTED;
            }
            _ => return Err(RuntimeError::internal(format!("a window has no state table {table}"))),
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
        for slot in std::mem::take(&mut self.dead) {
            let partition = &self.partitions[slot as usize];
            if partition.flags & !SUMMED != PERSISTED || partition.copies != 0 {
                continue;
            }
            if partition.stamp <= n {
                self.forget(slot);
            } else {
                self.dead.push(slot);
            }
        }
        self.index.compact();
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        let n = self.partitions.len();
        if !self.residency.may_evict() || n == 0 || self.plan.partition_by.is_empty() {
            return Evicted { bytes: 0, round: true };
        }
        let clean = |p: &Partition| p.flags & !SUMMED == PERSISTED && p.copies > 0;
        let cutoff = self.residency.cutoff(n, bytes, self.live_bytes(), |at| {
            let partition = &self.partitions[at];
            clean(partition).then_some(partition.stamp)
        });
        let (range, round) = self.residency.sweep(n);
        let mut freed = 0;
        for at in range {
            let partition = &self.partitions[at];
            if clean(partition) && partition.stamp <= cutoff && freed < bytes {
                freed += PARTITION_BYTES + self.entries.len(at as u32) * ENTRY_BYTES;
                self.forget(at as u32);
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
        for &(from, to) in &moves {
            self.partitions.swap(from as usize, to as usize);
        }
        self.partitions.truncate(n);
        self.partitions.shrink_to_fit();
        self.entries.relocate(&moves, n);
        for whole in &mut self.whole {
            whole.accumulator.relocate(&moves, n);
        }
        self.recount_changed();
        let empty = |p: &Partition| p.flags & !SUMMED == PERSISTED && p.copies == 0;
        self.dead = (0..n as u32).filter(|&s| empty(&self.partitions[s as usize])).collect();
        self.index.compact();
    }

    fn state_bytes(&self) -> usize {
        let whole: usize = self.whole.iter().map(|w| w.accumulator.bytes()).sum();
        let partitions = self.partitions.len() * size_of::<Partition>();
        self.index.bytes() + self.entries.bytes() + self.entries.n_entries() * 96 + partitions + whole
    }

    fn live_bytes(&self) -> usize {
        let free = self.index.n_slots() - self.index.n_keys();
        self.state_bytes().saturating_sub(free * PARTITION_BYTES)
    }

    fn pinned_bytes(&self) -> usize {
        (self.changed.len() + self.residency.frozen()) * (PARTITION_BYTES + ENTRY_BYTES)
    }
}
