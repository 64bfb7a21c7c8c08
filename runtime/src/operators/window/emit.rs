//! The end of a step: jobs, their pieces, what changed in them.

use std::ops::Bound;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat, filter, interleave, take};

use super::super::aggregate::accumulator::Failures;
use super::super::aggregate::unchanged;
use super::super::eval::fitted;
use super::super::partitions::Entry;
use super::super::{Output, Progress, StreamError};
use super::distance::pick;
use super::evaluate::{Base, Evaluation, Piece, Side};
use super::job::{Around, Ending, Job, MARK_ROWS, PIECE_ROWS};
use super::walk::{Both, Item, Journal};
use super::{Way, Window};
use crate::{Delta, Result, RuntimeError};

/// Partitions whose work is prepared at once.
const JOBS: usize = if cfg!(test) { 3 } else { 1024 };

/// Notes failed results.
pub fn note(display: &str, failures: Failures, out: &mut Output) {
    if let Some(message) = failures.message {
        out.errors.push(StreamError {
            expression: display.to_owned(),
            message: message.to_owned(),
            rows: failures.rows,
        });
    }
}

/// Pieces that are computed together.
#[derive(Default)]
struct Work {
    jobs: Vec<Job>,
    pieces: Vec<Piece>,
    endings: Vec<Ending>,
    items: Vec<Item>,
}

impl Window {
    /// A bounded part of what is left to do at the end of a step.
    pub(super) fn emit_some(&mut self, out: &mut Output) -> Result<Progress> {
        if self.entries.has_negative() {
            return Err(RuntimeError::internal(
                "a window's input retracts rows that it never inserted",
            ));
        }
        if self.jobs.is_empty() && !self.touched.is_empty() {
            let slots = self.touched.split_off(self.touched.len().saturating_sub(JOBS));
            let differ = self.whole_differ(&slots)?;
            for (&slot, differs) in slots.iter().zip(differ) {
                self.prepare(slot, differs)?;
            }
        }
        let work = self.cut()?;
        if !work.pieces.is_empty() {
            self.compute(work, out)?;
        }
        if !self.jobs.is_empty() || !self.touched.is_empty() {
            return Ok(Progress::More);
        }
        self.before.clear();
        self.index.compact();
        if self.changed.len() > 2 * self.partitions.len() + 1024 {
            self.recount_changed();
        }
        Ok(Progress::Done)
    }

    /// Makes a touched partition's job; `differs`: an aggregate over all of it is another one now.
    fn prepare(&mut self, slot: u32, differs: bool) -> Result<()> {
        let partition = &mut self.partitions[slot as usize];
        let touched = partition
            .touched
            .take()
            .ok_or_else(|| RuntimeError::internal("a touched partition of a window without its changes"))?;
        let copies = [touched.copies, partition.copies];
        let journal: Journal = touched.journal;
        let mut changed = Vec::new();
        for (entry, &before) in &journal {
            let now = self.entries.count(slot, entry);
            if now != before {
                changed.push(Item {
                    entry: Arc::clone(entry),
                    copies: [before, now],
                });
            }
        }
        let mut job = Job::new(slot, journal, changed, copies);
        job.whole[0] = touched.whole.unwrap_or((0, 0));
        if job.is_empty() {
            self.settle(slot);
            return Ok(());
        }
        if self.shape.heads > 0 {
            job.heads = self.heads(&job);
        }
        job.all = self.shape.unsplit
            || self.shape.totals && copies[0] != copies[1]
            || self.shape.heads_of_whole && job.heads_differ()
            || differs;
        self.jobs.push_back(job);
        Ok(())
    }

    /// The first rows of a partition, one item a row.
    fn heads(&self, job: &Job) -> [Vec<Item>; 2] {
        let both = self.both(job);
        [0, 1].map(|side| {
            let mut head = Vec::new();
            for item in both.from(None) {
                let room = self.shape.heads - head.len();
                let copies = usize::try_from(item.copies[side]).unwrap_or(0).min(room);
                head.extend((0..copies).map(|_| item.clone()));
                if head.len() == self.shape.heads {
                    break;
                }
            }
            head
        })
    }

    fn both<'a>(&'a self, job: &'a Job) -> Both<'a> {
        Both {
            entries: &self.entries,
            slot: job.slot,
            journal: &job.journal,
        }
    }

    /// Of which partitions some aggregate over all rows is another one now; those that had no rows are computed anyway.
    fn whole_differ(&self, slots: &[u32]) -> Result<Vec<bool>> {
        let mut differ = vec![false; slots.len()];
        if self.whole.is_empty() {
            return Ok(differ);
        }
        let before = |slot: &u32| self.partitions[*slot as usize].touched.as_ref().and_then(|t| t.whole);
        let known: Vec<(usize, (usize, usize))> = slots
            .iter()
            .enumerate()
            .filter_map(|(i, slot)| Some((i, before(slot)?)))
            .collect();
        if known.is_empty() {
            return Ok(differ);
        }
        let places: Vec<(usize, usize)> = known.iter().map(|k| k.1).collect();
        let own: Vec<u32> = known.iter().map(|k| slots[k.0]).collect();
        let now = self.whole_results(&own, &mut Output::default())?;
        for (call, new) in now.iter().enumerate() {
            let lists: Vec<&dyn Array> = self.before.iter().map(|list| list[call].as_ref()).collect();
            let same = unchanged(&interleave(&lists, &places)?, new)?;
            for ((i, _), same) in known.iter().zip(same.iter()) {
                differ[*i] |= !same;
            }
        }
        Ok(differ)
    }

    /// Cuts pieces, one a partition, up to about as many rows as a piece has.
    fn cut(&mut self) -> Result<Work> {
        let mut work = Work::default();
        while work.items.len() < PIECE_ROWS as usize
            && let Some(mut job) = self.jobs.pop_front()
        {
            let far = |key: &[u8], distances: &[_], front| self.far(key, distances, front);
            let journal = std::mem::take(&mut job.journal);
            let around = Around {
                shape: &self.shape,
                both: Both {
                    entries: &self.entries,
                    slot: job.slot,
                    journal: &journal,
                },
                marks: self.partitions[job.slot as usize].marks.as_deref(),
                far: &far,
            };
            let piece = job.next_piece(around, &mut work.items)?;
            job.journal = journal;
            match piece {
                Some((piece, ending)) => {
                    work.pieces.push(piece);
                    work.endings.push(ending);
                    work.jobs.push(job);
                }
                None => self.settle(job.slot),
            }
        }
        Ok(work)
    }

    fn compute(&mut self, mut work: Work, out: &mut Output) -> Result<()> {
        #[cfg(test)]
        {
            self.computed += work.items.len();
        }
        // Heads stand behind all pieces.
        let n = work.items.len();
        for (piece, job) in work.pieces.iter_mut().zip(&work.jobs) {
            for side in 0..2 {
                let from = work.items.len();
                work.items.extend(job.heads[side].iter().cloned());
                piece.heads[side] = from..work.items.len();
            }
        }
        let slots: Vec<u32> = work.pieces.iter().map(|p| p.slot).collect();
        let mut whole = self.before.clone();
        if !self.whole.is_empty() {
            whole.push(self.whole_results(&slots, out)?);
            for (i, piece) in work.pieces.iter_mut().enumerate() {
                piece.whole[1] = (whole.len() - 1, i);
            }
        }
        let columns = self.codec.decode(work.items.iter().map(|i| i.entry.as_ref()))?;
        let grouped = self.shape.grouped;
        let sides = [
            Side::new(0, &work.pieces, &work.items[..n], grouped)?,
            Side::new(1, &work.pieces, &work.items[..n], grouped)?,
        ];
        let mut calls = std::mem::take(&mut self.calls);
        let mut running_states = std::mem::take(&mut self.running_states);
        let evaluation = Evaluation {
            order_by: &self.plan.order_by,
            order: self.codec.order(),
            pieces: &work.pieces,
            items: &work.items,
            columns: &columns,
            whole: &whole,
        };
        let mut results: [Vec<ArrayRef>; 2] = [Vec::new(), Vec::new()];
        for (side, results) in sides.iter().zip(&mut results) {
            for call in &mut calls {
                let mut failures = Failures::default();
                results.push(match &mut call.way {
                    Way::Plain => evaluation.plain(side, &call.plan)?,
                    Way::Whole(at) => evaluation.whole(side, *at)?,
                    Way::Framed(state, running) => {
                        let levee_planner::plan::WindowFunc::Aggregate(agg) = &call.plan.func else {
                            return Err(RuntimeError::internal("a frame's state without an aggregate"));
                        };
                        evaluation.framed(side, &call.plan, agg, state.as_mut(), *running, &mut failures)?
                    }
                });
                if std::ptr::eq(side, &raw const sides[1]) {
                    note(&call.display, failures, out);
                }
            }
        }
        let mut bases = Vec::new();
        if self.shape.running {
            let running: Vec<_> = self.running.iter().collect();
            for side in &sides {
                bases.push(evaluation.advanced(side, &running, &mut running_states, MARK_ROWS)?);
            }
        }
        let pairs = evaluation.pairs(&sides[0], &sides[1]);
        self.calls = calls;
        self.running_states = running_states;
        if let Some(delta) = self.difference(&pairs, &columns, &results)? {
            out.emit(delta);
        }
        self.go_on(work, bases)
    }

    /// −old +new of the rows whose results changed.
    fn difference(
        &self,
        pairs: &super::evaluate::Pairs,
        columns: &[ArrayRef],
        [old, new]: &[Vec<ArrayRef>; 2],
    ) -> Result<Option<Delta>> {
        let (at_old, at_new) = (
            UInt32Array::from(pairs.old.clone()),
            UInt32Array::from(pairs.new.clone()),
        );
        let mut same = BooleanBuffer::new_set(pairs.items.len());
        for (old, new) in old.iter().zip(new) {
            same = &same & &unchanged(&take(old, &at_old, None)?, &take(new, &at_new, None)?)?;
        }
        let changed = BooleanArray::new(!&same, None);
        let kept = |values: &[u32]| -> Result<Vec<u32>> {
            let values: ArrayRef = Arc::new(UInt32Array::from(values.to_vec()));
            let kept = filter(&values, &changed)?;
            let kept = kept.as_any().downcast_ref::<UInt32Array>().map(|a| a.values().to_vec());
            kept.ok_or_else(|| RuntimeError::internal("a filter changed a column's type"))
        };
        let items = kept(&pairs.items)?;
        let mut from_old = kept(&pairs.old)?;
        let mut from_new = kept(&pairs.new)?;
        from_old.extend(pairs.gone.iter().map(|p| p.1));
        from_new.extend(pairs.come.iter().map(|p| p.1));
        let total = from_old.len() + from_new.len();
        if total == 0 {
            return Ok(None);
        }
        let gone = items.iter().copied().chain(pairs.gone.iter().map(|p| p.0));
        let come = items.iter().copied().chain(pairs.come.iter().map(|p| p.0));
        let rows = UInt32Array::from_iter_values(gone.chain(come));
        let mut output = Vec::with_capacity(columns.len() + old.len());
        for column in columns {
            output.push(take(column, &rows, None)?);
        }
        let retracted = from_old.len();
        for (old, new) in old.iter().zip(new) {
            let (old, new) = (pick(old, from_old.clone())?, pick(new, from_new.clone())?);
            output.push(concat(&[old.as_ref(), new.as_ref()])?);
        }
        let diffs = (0..total).map(|i| if i < retracted { -1 } else { 1 }).collect();
        Ok(Some(Delta::new(fitted(&self.schema, output, total)?, diffs)))
    }

    /// Takes note of what stands in front of places, and goes on with the jobs that are not done.
    fn go_on(&mut self, work: Work, bases: Vec<Vec<Vec<(usize, Base)>>>) -> Result<()> {
        let Work {
            jobs,
            pieces,
            endings,
            items,
        } = work;
        let mut bases = bases.into_iter();
        let (mut old, mut new) = (bases.next().map(Vec::into_iter), bases.next().map(Vec::into_iter));
        for ((mut job, piece), ending) in jobs.into_iter().zip(pieces).zip(endings) {
            let old = old.as_mut().and_then(Iterator::next).and_then(|mut all| all.pop());
            let new = new.as_mut().and_then(Iterator::next);
            if let Some(new) = &new {
                self.set_marks(&piece, &items, ending.position(), new);
            }
            let new = new.and_then(|mut all| all.pop());
            let base = old.zip(new).map(|(old, new)| [old.1, new.1]);
            if job.went(ending, base, &self.shape)? {
                self.jobs.push_front(job);
            } else {
                self.settle(job.slot);
            }
        }
        Ok(())
    }

    /// The marks of the entries that a piece's base has passed; `to`: where it stands now.
    fn set_marks(&mut self, piece: &Piece, items: &[Item], to: Option<&Entry>, bases: &[(usize, Base)]) {
        let Some(from) = items.get(piece.items.start).map(|i| Arc::clone(&i.entry)) else {
            return;
        };
        if to.is_some_and(|to| *to <= from) {
            return;
        }
        let partition = &mut self.partitions[piece.slot as usize];
        let marks = partition.marks.get_or_insert_default();
        // What stands in front of the piece itself is as it was.
        let passed = (Bound::Excluded(&from), to.map_or(Bound::Unbounded, Bound::Excluded));
        let stale: Vec<Entry> = marks.range::<Entry, _>(passed).map(|m| Arc::clone(m.0)).collect();
        for place in &stale {
            marks.remove(place);
        }
        for (at, base) in bases {
            let place = if *at == piece.advance_to {
                to
            } else {
                items.get(*at).map(|i| &i.entry)
            };
            let Some(place) = place.filter(|place| **place > from) else {
                continue;
            };
            let before = marks
                .range::<Entry, _>(..place)
                .next_back()
                .map_or(0, |(_, base)| base.rows);
            if base.rows >= before + MARK_ROWS as i64 || marks.contains_key(place) {
                marks.insert(Arc::clone(place), base.clone());
            }
        }
        if marks.is_empty() {
            partition.marks = None;
        }
    }
}
