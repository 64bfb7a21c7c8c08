//! Equi-joins of two changing inputs: inner, left, full, semi, anti, with a further condition.
//!
//! Maintains, with θ = equal keys and the filter:
//!
//! ```text
//!   inner  L ⋈θ R              left  L ⋈θ R + (L ▷θ R) × NULLs      full  left + NULLs × (R ▷θ L)
//!   semi   L ⋉θ R              anti  L ▷θ R
//! ```
//!
//! Assumes that multiplicities are never negative at the end of a step, and that both inputs are routed by their key columns.
//!
//! Matching pairs are emitted as inputs come: each part of ΔL meets R as it is then, each part of ΔR meets L, so a pair is
//! counted once, when the later of its rows arrives, and the parts add up to ΔL⋈R + L⋈ΔR + ΔL⋈ΔR. What depends on whether a
//! row has *any* match (outer, semi, anti) is emitted once, at close, as the net change:
//!
//! * without a filter, all rows of a key share the answer: the other side's total weight is above zero. Semi and anti keep no
//!   right rows then, only weights.
//! * with a filter, each row counts the other side's rows that match it.
//!
//! Rows with a NULL key match nothing (unless `null_equals_null`): they are dropped or passed on, and take no state.
//!
//! State: by key, its weight (semi and anti without filter) and the rows of both sides with their multiplicities and matches, see
//! [`residency`]. Entries go with their rows. Bytes per distinct row: its encoding + 84; per key: 100 + the key.
//!
//! Cost per row: an encode, two probes; per pair: a decode of the other side's row. Pairs are made, filtered and emitted by
//! [`CHUNK`], with [`Progress::More`] between.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use levee_planner::plan::{JoinKind, PlanExpr};

use self::keys::Keys;
use self::residency::{Arriving, Loading};
use self::state::{NONE, Side};
use super::cold::{Cold, Evicted};
use super::columns::{null_columns, nullable};
use super::eval::{Evaluator, batch, fitted};
use super::keys::{KeyIndex, NO_SLOT};
use super::map::filter as filter_delta;
use super::{Barrier, Operator, Output, Progress, StateWriter, fault};
use crate::{Delta, Result, RuntimeError};

mod keys;
mod residency;
mod state;

/// Candidate pairs, or emitted rows, of one piece of work.
pub const CHUNK: usize = 8192;

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// A join's parameters.
#[derive(Debug, Clone)]
pub struct JoinPlan {
    /// Kind.
    pub kind: JoinKind,
    /// Key columns of the left input.
    pub left_keys: Vec<usize>,
    /// Key columns of the right input.
    pub right_keys: Vec<usize>,
    /// NULL keys match each other.
    pub null_equals_null: bool,
}

/// A delta whose pairs with the other side are being made.
struct Pending {
    side: usize,
    batch: RecordBatch,
    diffs: Vec<i64>,
    keys: Vec<u32>,
    rows: Vec<(u32, bool)>,
    /// Next row of the delta, and where in the other side's chain it stands.
    at: usize,
    other: Option<u32>,
}

/// The operator.
pub struct Join {
    plan: JoinPlan,
    filter: Option<Evaluator>,
    inputs: [SchemaRef; 2],
    pair_schema: SchemaRef,
    schema: SchemaRef,
    keys: Keys,
    sides: [Side; 2],
    arriving: Option<Arriving>,
    loading: Option<Loading>,
    pending: Option<Pending>,
    /// Net changes of unmatched, or matched, rows: side, row, diff.
    queue: Vec<(u8, u32, i64)>,
    closing: bool,
    slots: Vec<u32>,
}

impl Join {
    /// From a plan node.
    ///
    /// # Errors
    /// The filter cannot be compiled, or a type cannot be a key.
    pub fn new(
        plan: &JoinPlan,
        filter: Option<&PlanExpr>,
        left: &SchemaRef,
        right: &SchemaRef,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let pairs = pair_schema(left, right);
        let filter = filter.map(|f| Evaluator::compile(f, &pairs)).transpose()?;
        Self::from_parts(plan, filter, left, right, schema)
    }

    /// From a compiled filter over [`pair_schema`].
    ///
    /// # Errors
    /// A type cannot be a key.
    pub fn from_parts(
        plan: &JoinPlan,
        filter: Option<Evaluator>,
        left: &SchemaRef,
        right: &SchemaRef,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let types = |schema: &Schema, keys: &[usize]| -> Result<Vec<DataType>> {
            keys.iter()
                .map(|&c| {
                    let field = schema.fields().get(c);
                    field
                        .map(|f| f.data_type().clone())
                        .ok_or_else(|| RuntimeError::internal(format!("join refers to column {c} of its input")))
                })
                .collect()
        };
        let key_types = types(left, &plan.left_keys)?;
        if key_types != types(right, &plan.right_keys)? {
            return Err(RuntimeError::internal("join keys of different types"));
        }
        Ok(Self {
            plan: plan.clone(),
            filter,
            inputs: [Arc::clone(left), Arc::clone(right)],
            pair_schema: pair_schema(left, right),
            schema: nullable(schema),
            keys: Keys::new(KeyIndex::new(&key_types)?),
            sides: [Side::new(left)?, Side::new(right)?],
            arriving: None,
            loading: None,
            pending: None,
            queue: Vec::new(),
            closing: false,
            slots: Vec::new(),
        })
    }

    /// Whether pairs are in the output.
    fn emits_pairs(&self) -> bool {
        matches!(self.plan.kind, JoinKind::Inner | JoinKind::Left | JoinKind::Full)
    }

    /// Whether the output depends on which of a side's rows have a match.
    fn asks_matched(&self, side: usize) -> bool {
        match self.plan.kind {
            JoinKind::Inner => false,
            JoinKind::Full => true,
            JoinKind::Left | JoinKind::Semi | JoinKind::Anti => side == LEFT,
        }
    }

    /// Whether a side's rows are kept, or only their number per key.
    fn stores_rows(&self, side: usize) -> bool {
        side == LEFT || self.filter.is_some() || self.emits_pairs()
    }

    fn weighs(&self) -> bool {
        self.filter.is_none() && self.asks_matched(LEFT)
    }

    fn key_columns(&self, side: usize) -> &[usize] {
        if side == LEFT {
            &self.plan.left_keys
        } else {
            &self.plan.right_keys
        }
    }

    /// Deals with rows whose key matches nothing; gives the others.
    fn pass_null_keys(&self, side: usize, delta: Delta, out: &mut Output) -> Result<Delta> {
        let columns = self.key_columns(side);
        if self.plan.null_equals_null {
            return Ok(delta);
        }
        let nulls = NullBuffer::union_many(columns.iter().map(|&c| delta.batch.column(c).nulls()));
        let Some(nulls) = nulls.filter(|n| n.null_count() > 0) else {
            return Ok(delta);
        };
        let shown = self.asks_matched(side) && self.plan.kind != JoinKind::Semi;
        if shown {
            let unmatched = filter_delta(delta.clone(), &BooleanArray::new(!nulls.inner(), None))?;
            let n = unmatched.num_rows();
            let columns = self.widen(side, unmatched.batch.columns().to_vec(), n);
            out.emit(Delta {
                batch: fitted(&self.schema, columns, n)?,
                diffs: unmatched.diffs,
            });
        }
        filter_delta(delta, &BooleanArray::new(nulls.into_inner(), None))
    }

    /// Output columns of rows of one side without a partner.
    fn widen(&self, side: usize, columns: Vec<ArrayRef>, n: usize) -> Vec<ArrayRef> {
        if !self.emits_pairs() {
            return columns;
        }
        let other = null_columns(self.inputs[1 - side].fields().iter().map(|f| f.data_type()), n);
        if side == LEFT {
            columns.into_iter().chain(other).collect()
        } else {
            other.into_iter().chain(columns).collect()
        }
    }

    /// Finds the slots of a delta's keys, for [`Self::absorb`].
    fn index_keys(&mut self, side: usize, delta: &Delta) -> Result<()> {
        let keys: Vec<ArrayRef> = self
            .key_columns(side)
            .iter()
            .map(|&c| Arc::clone(delta.batch.column(c)))
            .collect();
        self.keys
            .index
            .upsert(&keys, delta.num_rows(), false, &mut self.slots)?;
        debug_assert!(!self.slots.contains(&NO_SLOT));
        self.keys.grow();
        Ok(())
    }

    /// Adds a delta, whose keys have been indexed, to its side's state; its pairs are then pending.
    fn absorb(&mut self, side: usize, delta: Delta) -> Result<()> {
        let slots = std::mem::take(&mut self.slots);
        slots.iter().for_each(|&key| self.keys.mark_changed(key));
        if self.weighs() {
            for (i, &key) in slots.iter().enumerate() {
                self.keys.add_weight(key, side, delta.diff(i));
            }
        }
        if self.stores_rows(side) {
            let rows = self.sides[side].absorb(&delta, &slots, &mut self.keys.chains(side))?;
            if self.emits_pairs() || self.filter.is_some() {
                self.pending = Some(Pending {
                    side,
                    diffs: delta.diff_iter().collect(),
                    batch: delta.batch,
                    keys: slots,
                    rows,
                    at: 0,
                    other: None,
                });
                return Ok(());
            }
        }
        self.slots = slots;
        Ok(())
    }

    /// Makes up to [`CHUNK`] pairs.
    fn pair_some(&mut self, out: &mut Output) -> Result<Progress> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(Progress::Done);
        };
        let other = 1 - pending.side;
        let counts_matches = self.filter.is_some();
        let (mut own_rows, mut other_rows) = (Vec::new(), Vec::new());
        while pending.at < pending.keys.len() && own_rows.len() < CHUNK {
            let mut row = pending
                .other
                .take()
                .unwrap_or_else(|| self.keys.head_of(pending.keys[pending.at], other));
            while row != NONE && own_rows.len() < CHUNK {
                if counts_matches || self.sides[other].row(row).count != 0 {
                    own_rows.push(pending.at as u32);
                    other_rows.push(row);
                }
                row = self.sides[other].next(row);
            }
            if row == NONE {
                pending.at += 1;
            } else {
                pending.other = Some(row);
            }
        }
        if !own_rows.is_empty() {
            self.emit_pairs(&pending, own_rows, &other_rows, out)?;
        }
        if pending.at < pending.keys.len() {
            self.pending = Some(pending);
            Ok(Progress::More)
        } else {
            self.slots = pending.keys;
            Ok(Progress::Done)
        }
    }

    /// Filters candidate pairs, counts matches and emits what remains.
    fn emit_pairs(&mut self, pending: &Pending, own: Vec<u32>, other_rows: &[u32], out: &mut Output) -> Result<()> {
        let (side, other) = (pending.side, 1 - pending.side);
        let n = own.len();
        let own = UInt32Array::from(own);
        let own_columns = take_record_batch(&pending.batch, &own)?.columns().to_vec();
        let other_columns = self.sides[other].columns(other_rows.iter().copied())?;
        let columns: Vec<ArrayRef> = if side == LEFT {
            own_columns.into_iter().chain(other_columns).collect()
        } else {
            other_columns.into_iter().chain(own_columns).collect()
        };
        let mut pairs = batch(&self.pair_schema, columns, n)?;
        let mut passed: Option<BooleanArray> = None;
        if let Some(filter) = &self.filter {
            let mask = filter.filter(&pairs, out)?;
            if mask.true_count() < n {
                pairs = filter_record_batch(&pairs, &mask)?;
                passed = Some(mask);
            }
        }
        let mut diffs = Vec::with_capacity(pairs.num_rows());
        let (own_matched, other_matched) = (
            self.filter.is_some() && self.asks_matched(side),
            self.filter.is_some() && self.asks_matched(other),
        );
        let [left, right] = &mut self.sides;
        let (own_side, other_side) = if side == LEFT { (left, right) } else { (right, left) };
        let mut visit = |i: usize| {
            let at = own.value(i) as usize;
            let (row, new) = pending.rows[at];
            let count = other_side.row(other_rows[i]).count;
            diffs.push(pending.diffs[at] * count);
            if other_matched {
                other_side.add_matches(other_rows[i], pending.diffs[at]);
            }
            if own_matched && new {
                own_side.add_matches(row, count);
            }
        };
        match &passed {
            None => (0..n).for_each(&mut visit),
            Some(mask) => mask.values().set_indices().for_each(&mut visit),
        }
        if !self.emits_pairs() {
            return Ok(());
        }
        if diffs.contains(&0) {
            let kept: BooleanArray = diffs.iter().map(|&d| Some(d != 0)).collect();
            pairs = filter_record_batch(&pairs, &kept)?;
            diffs.retain(|&d| d != 0);
        }
        let n = pairs.num_rows();
        out.emit(Delta::new(fitted(&self.schema, pairs.columns().to_vec(), n)?, diffs));
        Ok(())
    }

    /// Notes the net changes that depend on whether rows have a match.
    fn find_changes(&mut self) {
        let semi = self.plan.kind == JoinKind::Semi;
        let shows = |count: i64, matched: bool| if matched == semi { count } else { 0 };
        for side in [LEFT, RIGHT] {
            if !self.asks_matched(side) {
                continue;
            }
            let rows = &self.sides[side];
            let queue = &mut self.queue;
            let mut note = |row: u32, before: i64, after: i64| {
                if before != after {
                    queue.push((side as u8, row, after - before));
                }
            };
            if self.filter.is_some() {
                for touched in &rows.touched {
                    let row = rows.row(touched.row);
                    let before = shows(touched.count, touched.matches > 0);
                    note(touched.row, before, shows(row.count, row.matches > 0));
                }
                continue;
            }
            for touched in &rows.touched {
                let row = rows.row(touched.row);
                let (was, is) = self.keys.present(row.key, 1 - side);
                if was == is {
                    note(touched.row, shows(touched.count, was), shows(row.count, is));
                }
            }
            for key in self.keys.touched() {
                let (was, is) = self.keys.present(key, 1 - side);
                let mut row = if was == is { NONE } else { self.keys.head_of(key, side) };
                while row != NONE {
                    note(row, shows(rows.count_before(row), was), shows(rows.row(row).count, is));
                    row = rows.next(row);
                }
            }
        }
    }

    /// Emits up to [`CHUNK`] noted changes; ends the step after the last.
    fn emit_changes(&mut self, out: &mut Output) -> Result<Progress> {
        if let Some(&(side, ..)) = self.queue.last() {
            let mut from = self.queue.len().saturating_sub(CHUNK);
            while self.queue[from].0 != side {
                from += 1;
            }
            let part = self.queue.split_off(from);
            let columns = self.sides[side as usize].columns(part.iter().map(|p| p.1))?;
            let columns = self.widen(side as usize, columns, part.len());
            let diffs = part.iter().map(|p| p.2).collect();
            out.emit(Delta::new(fitted(&self.schema, columns, part.len())?, diffs));
        }
        if !self.queue.is_empty() {
            return Ok(Progress::More);
        }
        for side in [LEFT, RIGHT] {
            self.sides[side].settle(&mut self.keys.chains(side))?;
        }
        self.keys.settle()?;
        self.closing = false;
        Ok(Progress::Done)
    }

    /// Goes on with the pairs of what has been absorbed, then with what has arrived.
    fn work_some(&mut self, out: &mut Output) -> Result<Progress> {
        if self.pending.is_none() {
            self.arrive_some()?;
        }
        Ok(match self.pair_some(out)? {
            Progress::More => Progress::More,
            Progress::Done => self.progress(),
        })
    }

    fn drain(&mut self, out: &mut Output) -> Result<()> {
        while self.pending.is_some() || self.progress() == Progress::More {
            self.work_some(out)?;
        }
        Ok(())
    }

    /// Which side's weights are state of their own.
    fn weights_of(&self) -> Option<usize> {
        (!self.stores_rows(RIGHT)).then_some(RIGHT)
    }
}

/// Left then right columns: what a join's filter is evaluated over.
pub fn pair_schema(left: &Schema, right: &Schema) -> SchemaRef {
    let fields = left.fields().iter().chain(right.fields()).cloned();
    nullable(&Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

impl Operator for Join {
    fn push(&mut self, input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        self.drain(out)?;
        let delta = if fault::planted(fault::Fault::Join) {
            fault::without_a_retraction(delta)
        } else {
            delta
        };
        let delta = self.pass_null_keys(input, delta, out)?;
        if delta.num_rows() > 0 {
            self.arriving = Some(Arriving::new(input, delta));
        }
        self.work_some(out)
    }

    fn close(&mut self, _barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.drain(out)?;
        self.closing = true;
        self.find_changes();
        self.emit_changes(out)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        if self.closing {
            self.emit_changes(out)
        } else {
            self.work_some(out)
        }
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        self.write(full, out);
        Ok(())
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        self.restore_entry(table, key, value)
    }

    fn caches(&self) -> bool {
        true
    }

    fn attach(&mut self, cold: Cold, complete: bool) {
        self.keys.residency.attach(cold, true);
        if !complete {
            self.keys.residency.begin_partial(&mut self.keys.index);
        }
    }

    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        self.keys.residency.complete(n, cold);
        self.keys.complete(n);
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        self.evict_some(bytes, self.live_bytes())
    }

    fn compact(&mut self) {
        self.shrink();
    }

    fn state_bytes(&self) -> usize {
        self.keys.bytes() + self.sides.iter().map(Side::bytes).sum::<usize>()
    }

    fn live_bytes(&self) -> usize {
        let free = (self.keys.index.n_slots() - self.keys.index.n_keys()) * self.keys.key_bytes()
            + self.sides.iter().map(Side::free_bytes).sum::<usize>();
        self.state_bytes().saturating_sub(free)
    }

    fn pinned_bytes(&self) -> usize {
        let rows: usize = self.sides.iter().map(Side::row_bytes).sum();
        self.keys.n_pinned() * (self.keys.key_bytes() + rows)
    }
}
