//! Grouping and aggregation with retractions.
//!
//! Maintains `γ_{group_by; aggs}(input)`: one row per group that has rows (with no group columns: exactly one row, always).
//! Without aggregates it is DISTINCT.
//!
//! Assumes that the input's multiplicities are never negative at the end of a step, and that it is routed by the group columns.
//! Emits at close, for each group touched in the step, −old +new if the row differs: old results are read before a group's
//! first change in a step, so no second copy of results is kept.
//!
//! ```text
//!   slot │ key │ rows │ flags │ sum     │ max
//!   ─────┼─────┼──────┼───────┼─────────┼──────────────
//!     0  │ UA  │  12  │ SPR   │ 340, 12 │ {7 ×1, 31 ×2}
//!     1  │ B6  │   3  │ P     │  18, 3  │ {9 ×3}
//! ```
//!
//! State: table 0, group key → row count and accumulators; table 1 + *i*, group key and value → multiplicity, for aggregates *i*
//! that keep a multiset. Entries go when their group or value has no rows. Bytes per group: key + 53 + what the accumulators
//! hold (count 8, integer sum 24, float sum 80, append-only min 16, min 40 and up by distinct values). What is clean can be evicted, see
//! [`residency`].
//!
//! Cost per row: one hash, one probe, one cache line per accumulator. No watermarks.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, make_comparator};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{SortOptions, concat, filter};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use levee_planner::plan::{AggCall, AggFunc};

use self::accumulator::{Accumulator, Count, Failures, Rows};
use self::bits::{BitOperation, Bits};
use self::by_key::ByKey;
use self::collect::{ArrayAgg, Nulls, SortColumn, StringAgg};
use self::logical::Logical;
use self::regression::Pairs;
use super::codec::{self, Reader};
use super::cold::{COLD_ROWS, Cold, Evicted, Pieces, Residency};
use super::columns::nullable;
use super::eval::fitted;
use super::keys::KeyIndex;
use super::partitions::CountWriter;
use super::{Barrier, Operator, OperatorContext, Output, Progress, StateWriter, StreamError, fault};
use crate::{Delta, Result, RuntimeError};

pub mod accumulator;
mod bits;
mod by_key;
mod collect;
mod distinct;
mod entries;
pub mod float_sum;
mod logical;
mod minmax;
mod ordered_set;
mod regression;
mod residency;
mod spread;
mod sum;
mod values;

/// Rows per emitted chunk, about.
const CHUNK: usize = 8192;

/// Touched in this step.
const STEP: u8 = 1;
/// The group's row has been emitted.
const EMITTED: u8 = 2;
/// Changed since the last snapshot.
const CHANGED: u8 = 4;
/// A snapshot holds the group.
const PERSISTED: u8 = 8;

struct Agg {
    arg: Option<usize>,
    filter: Option<usize>,
    accumulator: Box<dyn Accumulator>,
    display: String,
}

/// Results of groups before their first change in the step.
struct Before {
    slots: Vec<u32>,
    columns: Vec<ArrayRef>,
}

/// The operator.
pub struct Aggregate {
    group_by: Vec<usize>,
    aggs: Vec<Agg>,
    /// Columns that are appended to the input's, for aggregates with ORDER BY.
    sort_columns: Vec<SortColumn>,
    schema: SchemaRef,
    /// This task emits the row of an aggregate without group columns.
    owns_global: bool,
    index: KeyIndex,
    rows: Vec<i64>,
    flags: Vec<u8>,
    /// When a group last changed, see [`super::cold`].
    stamps: Vec<u32>,
    residency: Residency,
    /// Some aggregate keeps values as entries of their own.
    has_entries: bool,
    /// Groups without rows that the last completed checkpoint may still hold.
    dead: Vec<u32>,
    /// A delta whose rows are read and absorbed in pieces: the next row.
    pending: Pieces,
    /// Groups touched in the step that had no row before.
    fresh: Vec<u32>,
    before: Vec<Before>,
    changed: Vec<u32>,
    slots: Vec<u32>,
}

impl Aggregate {
    /// From a plan node.
    ///
    /// # Errors
    /// An aggregate does not support its argument's type.
    pub fn new(
        group_by: &[usize],
        calls: &[AggCall],
        append_only: bool,
        input: &SchemaRef,
        schema: &SchemaRef,
        ctx: &OperatorContext,
    ) -> Result<Self> {
        let column = |c: usize| {
            input
                .fields()
                .get(c)
                .ok_or_else(|| RuntimeError::internal(format!("aggregate refers to column {c} of its input")))
        };
        let types = group_by
            .iter()
            .map(|&c| Ok(column(c)?.data_type().clone()))
            .collect::<Result<Vec<DataType>>>()?;
        if schema.fields().len() != group_by.len() + calls.len() || calls.len() > 254 {
            return Err(RuntimeError::internal("aggregate with an unfit output schema"));
        }
        let mut aggs = Vec::with_capacity(calls.len());
        let mut sort_columns = Vec::new();
        for (call, field) in calls.iter().zip(&schema.fields()[group_by.len()..]) {
            let argument = call.arg.map(column).transpose()?;
            let arg = match call.arg {
                Some(value) if reads_sort_column(call) => {
                    let nulls = match call.func {
                        AggFunc::ArrayAgg => Nulls::Kept,
                        AggFunc::ByKey => Nulls::OfKey,
                        _ => Nulls::OfValue,
                    };
                    sort_columns.push(SortColumn::new(&call.order_by, value, nulls, input)?);
                    Some(input.fields().len() + sort_columns.len() - 1)
                }
                plain => plain,
            };
            aggs.push(Agg {
                arg,
                filter: call.filter,
                accumulator: accumulator_of(call, input, field.data_type(), append_only)?,
                display: display(call, argument.map(|f| f.name().as_str())),
            });
        }
        Ok(Self {
            has_entries: aggs.iter_mut().any(|a: &mut Agg| a.accumulator.entries().is_some()),
            stamps: Vec::new(),
            residency: Residency::default(),
            dead: Vec::new(),
            pending: Pieces::default(),
            owns_global: group_by.is_empty() && crate::hash::owner(0, ctx.n_tasks) == ctx.task,
            group_by: group_by.to_vec(),
            aggs,
            sort_columns,
            schema: nullable(schema),
            index: KeyIndex::new(&types)?,
            rows: Vec::new(),
            flags: Vec::new(),
            fresh: Vec::new(),
            before: Vec::new(),
            changed: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// The delta with the columns that aggregates with ORDER BY read.
    fn with_sort_columns(&self, delta: Delta) -> Result<Delta> {
        if self.sort_columns.is_empty() {
            return Ok(delta);
        }
        let mut fields: Vec<FieldRef> = delta.schema().fields().iter().cloned().collect();
        let mut columns = delta.batch.columns().to_vec();
        for sort in &self.sort_columns {
            fields.push(Arc::new(Field::new("order", DataType::Binary, true)));
            columns.push(sort.compute(&delta.batch)?);
        }
        Ok(Delta {
            batch: RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?,
            diffs: delta.diffs,
        })
    }

    fn is_global(&self) -> bool {
        self.group_by.is_empty()
    }

    fn grow(&mut self) {
        let n = self.index.n_slots();
        if self.rows.len() < n {
            self.rows.resize(n, 0);
            self.flags.resize(n, 0);
            self.stamps.resize(n, 0);
        }
        for agg in &mut self.aggs {
            agg.accumulator.grow(n);
        }
    }

    /// Notes the groups that this step touches for the first time, with their results so far.
    fn touch(&mut self, slots: &[u32]) -> Result<()> {
        let mut emitted = Vec::new();
        for &slot in slots {
            let flags = &mut self.flags[slot as usize];
            if *flags & STEP != 0 {
                continue;
            }
            if *flags & EMITTED != 0 {
                emitted.push(slot);
            } else {
                self.fresh.push(slot);
            }
            if *flags & CHANGED == 0 {
                self.changed.push(slot);
                self.stamps[slot as usize] = self.residency.stamp();
            }
            *flags |= STEP | CHANGED;
        }
        for part in emitted.chunks(self.chunk()) {
            let columns = self.evaluate(part, None)?;
            self.before.push(Before {
                slots: part.to_vec(),
                columns,
            });
        }
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], mut out: Option<&mut Output>) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(self.aggs.len());
        for agg in &self.aggs {
            let mut failures = Failures::default();
            columns.push(agg.accumulator.evaluate(slots, &mut failures)?);
            if let (Some(out), Some(message)) = (out.as_deref_mut(), failures.message) {
                out.errors.push(StreamError {
                    expression: agg.display.clone(),
                    message: message.to_owned(),
                    rows: failures.rows,
                });
            }
        }
        Ok(columns)
    }

    /// Groups of a piece of work: fewer where results may have to be read.
    fn chunk(&self) -> usize {
        if self.has_entries && self.residency.reads().is_some() {
            COLD_ROWS
        } else {
            CHUNK
        }
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
        let n = delta.num_rows();
        let keys: Vec<ArrayRef> = self
            .group_by
            .iter()
            .map(|&c| Arc::clone(delta.batch.column(c)))
            .collect();
        let mut slots = std::mem::take(&mut self.slots);
        self.index.upsert(&keys, n, false, &mut slots)?;
        self.grow();
        self.load(&slots, delta)?;
        self.touch(&slots)?;
        for (i, &slot) in slots.iter().enumerate() {
            self.rows[slot as usize] += delta.diff(i);
        }
        for agg in &mut self.aggs {
            let arg = agg.arg.map(|c| delta.batch.column(c));
            let passed = agg.filter.map(|c| delta.batch.column(c).as_boolean());
            agg.accumulator.update(&Rows::new(&slots, &delta.diffs, arg, passed))?;
        }
        self.slots = slots;
        Ok(())
    }

    /// Emits the net change of up to about [`CHUNK`] touched groups; groups without rows go.
    fn emit_some(&mut self, out: &mut Output) -> Result<Progress> {
        if !self.before.is_empty() {
            let before = self.next_before()?;
            self.emit_known(&before, out)?;
        } else if !self.fresh.is_empty() {
            let from = self.fresh.len().saturating_sub(self.chunk());
            let slots = self.fresh.split_off(from);
            self.emit_fresh(&slots, out)?;
        }
        if self.before.is_empty() && self.fresh.is_empty() {
            self.index.compact();
            if self.changed.len() > 2 * self.flags.len() + 1024 {
                self.recount_changed();
            }
            Ok(Progress::Done)
        } else {
            Ok(Progress::More)
        }
    }

    /// Joins small noted batches, so that many small pushes do not make many small outputs.
    fn next_before(&mut self) -> Result<Before> {
        let (mut n, chunk) = (0, self.chunk());
        let mut from = self.before.len();
        while from > 0 && (n == 0 || n + self.before[from - 1].slots.len() <= chunk) {
            from -= 1;
            n += self.before[from].slots.len();
        }
        let parts = self.before.split_off(from);
        let columns = (0..self.aggs.len())
            .map(|c| {
                let arrays: Vec<&dyn Array> = parts.iter().map(|p| p.columns[c].as_ref()).collect();
                Ok(concat(&arrays)?)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Before {
            slots: parts.into_iter().flat_map(|p| p.slots).collect(),
            columns,
        })
    }

    fn emit_known(&mut self, before: &Before, out: &mut Output) -> Result<()> {
        let slots = &before.slots;
        let alive = self.alive(slots)?;
        let picked: Vec<u32> = alive.set_indices().map(|i| slots[i]).collect();
        self.load_fronts(&picked)?;
        let after = self.evaluate(slots, Some(out))?;
        let mut same = BooleanBuffer::new_set(slots.len());
        for (old, new) in before.columns.iter().zip(&after) {
            same = &same & &unchanged(old, new)?;
        }
        let changed = !&same;
        let retract = BooleanArray::new(&!&alive | &changed, None);
        let insert = BooleanArray::new(&alive & &changed, None);
        let retracted = retract.true_count();
        let total = retracted + insert.true_count();
        if total > 0 {
            let picked: Vec<u32> = [&retract, &insert]
                .iter()
                .flat_map(|mask| mask.values().set_indices().map(|i| slots[i]))
                .collect();
            let mut columns = self.index.columns(&picked)?;
            for (old, new) in before.columns.iter().zip(&after) {
                columns.push(concat(&[
                    filter(old, &retract)?.as_ref(),
                    filter(new, &insert)?.as_ref(),
                ])?);
            }
            let diffs = (0..total).map(|i| if i < retracted { -1 } else { 1 }).collect();
            out.emit(Delta::new(fitted(&self.schema, columns, total)?, diffs));
        }
        self.settle(slots);
        Ok(())
    }

    fn emit_fresh(&mut self, slots: &[u32], out: &mut Output) -> Result<()> {
        let alive = self.alive(slots)?;
        let picked: Vec<u32> = alive.set_indices().map(|i| slots[i]).collect();
        if !picked.is_empty() {
            self.load_fronts(&picked)?;
            let mut columns = self.index.columns(&picked)?;
            columns.extend(self.evaluate(&picked, Some(out))?);
            out.emit(Delta::inserts(fitted(&self.schema, columns, picked.len())?));
        }
        self.settle(slots);
        Ok(())
    }

    /// Which groups have a row now.
    fn alive(&self, slots: &[u32]) -> Result<BooleanBuffer> {
        if slots.iter().any(|&s| self.rows[s as usize] < 0) {
            return Err(RuntimeError::internal(
                "an aggregate's input retracts rows that it never inserted",
            ));
        }
        let global = self.is_global();
        Ok(BooleanBuffer::collect_bool(slots.len(), |i| {
            global || self.rows[slots[i] as usize] > 0
        }))
    }

    /// Ends the step for `slots`.
    fn settle(&mut self, slots: &[u32]) {
        for &slot in slots {
            let live = self.is_global() || self.rows[slot as usize] > 0;
            let flags = &mut self.flags[slot as usize];
            *flags = *flags & !(STEP | EMITTED) | if live { EMITTED } else { 0 };
            if !live && *flags & PERSISTED == 0 {
                self.forget(slot);
            }
        }
    }

    fn forget(&mut self, slot: u32) {
        for agg in &mut self.aggs {
            agg.accumulator.clear(slot);
        }
        self.rows[slot as usize] = 0;
        self.flags[slot as usize] = 0;
        self.index.remove(slot);
    }

    /// Slots are noted again when they are given to another group; this makes the list exact.
    fn recount_changed(&mut self) {
        self.changed = (0..self.flags.len() as u32)
            .filter(|&s| self.flags[s as usize] & CHANGED != 0)
            .collect();
    }

    /// Emits the row of a global aggregate that has seen no row yet.
    fn start_global(&mut self) -> Result<()> {
        let slot = self.index.upsert_encoded(&[], 0)?;
        self.grow();
        if self.flags[slot as usize] & EMITTED == 0 {
            self.touch(&[slot])?;
        }
        Ok(())
    }
}

/// Whether the state takes ORDER BY's columns and the value as one.
fn reads_sort_column(call: &AggCall) -> bool {
    match call.func {
        AggFunc::ArrayAgg | AggFunc::ByKey => true,
        AggFunc::StringAgg => !call.order_by.is_empty(),
        _ => false,
    }
}

/// Rows in which two columns of results are equal or both NULL.
pub(super) fn unchanged(old: &ArrayRef, new: &ArrayRef) -> Result<BooleanBuffer> {
    if old.data_type().is_nested() {
        let compare = make_comparator(old, new, SortOptions::default())?;
        return Ok(BooleanBuffer::collect_bool(old.len(), |i| compare(i, i).is_eq()));
    }
    Ok(not_distinct(old, new)?.values().clone())
}

/// The state of a call.
///
/// # Errors
/// It does not support its argument's type.
pub(super) fn accumulator_of(
    call: &AggCall,
    input: &Schema,
    output: &DataType,
    append_only: bool,
) -> Result<Box<dyn Accumulator>> {
    let argument = call.arg.and_then(|c| input.fields().get(c)).map(|f| f.data_type());
    let needed = || argument.ok_or_else(|| RuntimeError::internal("an aggregate lacks its argument"));
    let plain: Box<dyn Accumulator> = match call.func {
        AggFunc::Count => Box::new(Count::default()),
        AggFunc::Sum => sum::accumulator(sum::Finish::Sum, needed()?, output)?,
        AggFunc::Avg => sum::accumulator(sum::Finish::Avg, needed()?, output)?,
        AggFunc::Min => return minmax::accumulator(Ordering::Less, needed()?, append_only),
        AggFunc::Max => return minmax::accumulator(Ordering::Greater, needed()?, append_only),
        AggFunc::BoolAnd => Box::new(Logical::new(true)),
        AggFunc::BoolOr => Box::new(Logical::new(false)),
        AggFunc::Spread(kind) => spread::accumulator(kind, needed()?)?,
        AggFunc::BitAnd => Box::new(Bits::new(BitOperation::And, needed()?)?),
        AggFunc::BitOr => Box::new(Bits::new(BitOperation::Or, needed()?)?),
        AggFunc::BitXor => Box::new(Bits::new(BitOperation::Xor, needed()?)?),
        AggFunc::Regression(kind) => Box::new(Pairs::new(kind)),
        AggFunc::PercentileCont | AggFunc::PercentileDisc | AggFunc::Mode => {
            return ordered_set::accumulator(call, needed()?, output);
        }
        AggFunc::ByKey => {
            let value = call.arg.unwrap_or(usize::MAX);
            return Ok(Box::new(ByKey::new(&call.order_by, value, input, append_only)?));
        }
        AggFunc::ArrayAgg => {
            let value = call.arg.filter(|c| *c < input.fields().len());
            let value = value.ok_or_else(|| RuntimeError::internal("array_agg without an argument"))?;
            return Ok(Box::new(ArrayAgg::new(&call.order_by, value, input, call.distinct)?));
        }
        AggFunc::StringAgg => {
            let value = call.arg.unwrap_or(usize::MAX);
            let (order_by, delimiter) = (&call.order_by, &call.constant);
            return Ok(Box::new(StringAgg::new(
                order_by,
                value,
                input,
                delimiter,
                call.distinct,
            )?));
        }
    };
    if call.distinct {
        distinct::accumulator(needed()?, plain)
    } else {
        Ok(plain)
    }
}

/// A call as SQL, for messages.
pub(super) fn display(call: &AggCall, argument: Option<&str>) -> String {
    let name = match call.func {
        AggFunc::ByKey if call.order_by.iter().any(|k| k.desc) => "max_by",
        AggFunc::ByKey => "min_by",
        func => func.name(),
    };
    let distinct = if call.distinct { "DISTINCT " } else { "" };
    format!("{name}({distinct}{})", argument.unwrap_or("*"))
}

impl Operator for Aggregate {
    fn push(&mut self, _input: usize, delta: Delta, _out: &mut Output) -> Result<Progress> {
        let delta = if fault::planted(fault::Fault::Aggregate) {
            fault::without_a_retraction(delta)
        } else {
            delta
        };
        self.pending.put(self.with_sort_columns(delta)?);
        self.absorb_some()
    }

    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        if barrier.first && self.owns_global {
            self.start_global()?;
        }
        self.emit_some(out)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        if !self.pending.is_empty() {
            return self.absorb_some();
        }
        self.emit_some(out)
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut writer = CountWriter::new(&self.index);
        for (i, agg) in self.aggs.iter_mut().enumerate() {
            let Some(entries) = agg.accumulator.entries() else {
                continue;
            };
            entries.snapshot(full, &mut |slot, sub, count| {
                writer.put_below(out, i as u8 + 1, slot, sub, count);
            });
        }
        let slots: Vec<u32> = if full {
            self.changed.clear();
            (0..self.flags.len() as u32).collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        let n = slots.len();
        for slot in slots {
            let flags = self.flags[slot as usize];
            let live = flags & EMITTED != 0;
            if !(flags & CHANGED != 0 || full && live) {
                continue;
            }
            key.clear();
            self.index.encode(slot, &mut key);
            let vnode = self.index.vnode(slot);
            if live {
                codec::begin(&mut value, self.index.hash(slot));
                codec::put_i64(&mut value, self.rows[slot as usize]);
                for agg in &self.aggs {
                    agg.accumulator.encode(slot, &mut value);
                }
                (out.put)(0, vnode, &key, Some(&value));
                self.flags[slot as usize] = (flags | PERSISTED) & !CHANGED;
            } else {
                // The group stays, as a note that it is gone, until a checkpoint says so.
                (out.put)(0, vnode, &key, None);
                self.flags[slot as usize] = PERSISTED;
                self.dead.push(slot);
            }
        }
        self.residency.freeze(n);
        self.index.compact();
        Ok(())
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        let (mut reader, hash) = Reader::open(value)?;
        if table == 0 {
            let slot = self.index.upsert_encoded(key, hash)?;
            self.grow();
            return self.restore_group(slot, reader);
        }
        let (group, sub) = codec::split_key(key)?;
        let slot = self.index.upsert_encoded(group, hash)?;
        self.grow();
        let agg = self
            .aggs
            .get_mut(usize::from(table) - 1)
            .and_then(|agg| agg.accumulator.entries())
            .ok_or_else(|| RuntimeError::internal(format!("aggregate has no state table {table}")))?;
        agg.restore(slot, sub, reader.i64()?)
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
        self.complete(n, cold);
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        self.evict_some(bytes)
    }

    fn compact(&mut self) {
        self.shrink();
    }

    fn state_bytes(&self) -> usize {
        let aggs: usize = self.aggs.iter().map(|a| a.accumulator.bytes()).sum();
        self.index.bytes() + self.rows.len() * 13 + (self.changed.capacity() + self.dead.capacity()) * 4 + aggs
    }

    fn live_bytes(&self) -> usize {
        let free = self.index.n_slots() - self.index.n_keys();
        self.state_bytes().saturating_sub(free * self.bytes_per_group())
    }

    fn pinned_bytes(&self) -> usize {
        (self.changed.len() + self.residency.frozen()) * self.bytes_per_group()
    }
}
