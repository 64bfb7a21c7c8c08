//! Which step each region takes next, and with what input.

use std::collections::{BTreeMap, HashMap, VecDeque};

use levee_planner::plan::ObjectId;

use super::backfill::BackfillMeta;
use super::control::Control;
use super::region::{Frozen, IN_FLIGHT_MAX, InFlight, RegionCtl, choose_step, whole_steps};
use crate::dataflow::{Step, StepInput};
use crate::memory::Holder;
use crate::operators::Barrier;
use crate::relation::StepOutput;
use crate::sources::SplitRange;
use crate::{Delta, Result, RuntimeError};

impl Control {
    /// How far region `id`'s inputs are complete, and which epochs after `submitted` changed them.
    fn available(&self, region: &RegionCtl) -> Result<(u64, Vec<(u64, usize)>)> {
        if region.is_plain_table() {
            let changed = self.table_writes.get(&region.id).into_iter().flatten();
            let changed = changed
                .map(|(e, d)| (*e, d.iter().map(Delta::num_rows).sum()))
                .collect();
            return Ok((self.cut, changed));
        }
        let mut limit = self.cut;
        let mut changed: BTreeMap<u64, usize> = BTreeMap::new();
        for input in &region.inputs {
            let after = region.submitted().max(region.starts.get(input).copied().unwrap_or(0));
            if let Some(source) = self.source_of(region.id, *input) {
                for (epoch, ranges) in source.cuts.iter().filter(|(e, _)| *e > after) {
                    *changed.entry(*epoch).or_default() += ranges.iter().map(|r| r.records() as usize).sum::<usize>();
                }
                continue;
            }
            let Some(upstream) = self.regions.get(input) else {
                return Err(RuntimeError::NoObject(*input));
            };
            let Some(relation) = &upstream.relation else { continue };
            limit = limit.min(upstream.frontier());
            for run in relation.runs_between(after, upstream.frontier().max(after))? {
                *changed.entry(run.to).or_default() += run.num_rows();
            }
        }
        for (epoch, deltas) in self.table_writes.get(&region.id).into_iter().flatten() {
            *changed.entry(*epoch).or_default() += deltas.iter().map(Delta::num_rows).sum::<usize>();
        }
        if let Some(at) = region.meta.next_timer_us
            && let Some(epoch) = self.timeline.first_at(region.submitted(), limit, at)
        {
            changed.entry(epoch).or_default();
        }
        let changed = changed.into_iter().filter(|(e, _)| *e <= limit).collect();
        Ok((limit, changed))
    }

    pub(super) fn advance(&mut self, id: ObjectId) -> Result<()> {
        let short = self.is_short_of_memory();
        let Some(region) = self.regions.get_mut(&id) else {
            return Ok(());
        };
        if region.failed.is_some() {
            return Ok(());
        }
        if region.stands() {
            region.catch_up();
            return self.freeze_if_due(id);
        }
        let before = (region.frontier(), region.visible());
        if short && region.checkpoint_target.is_some() {
            // The checkpoint does not wait until the region has caught up.
            region.freeze_by(region.submitted());
        }
        let building = region.backfill.is_some();
        if !building {
            self.freeze_if_due(id)?;
        }
        let Some(region) = self.regions.get(&id) else {
            return Ok(());
        };
        // One that a checkpoint waits for goes on up to there.
        let paced = short && region.dataflow.is_some() && region.checkpoint_target.is_none();
        if paced {
            self.work.paced.insert(id);
        }
        let follows = !building || !paced && self.advance_backfill(id)?;
        if follows {
            if !paced {
                self.take_steps(id)?;
            }
            if let Some(region) = self.regions.get_mut(&id) {
                region.catch_up();
            }
            self.freeze_if_due(id)?;
        }
        let Some(region) = self.regions.get_mut(&id) else {
            return Ok(());
        };
        if (region.frontier(), region.visible()) != before {
            self.work.moved(id, &region.inputs);
        }
        if region.may_rest(self.cut) {
            region.rest();
            self.work.active.remove(&id);
        }
        Ok(())
    }

    fn take_steps(&mut self, id: ObjectId) -> Result<()> {
        loop {
            let Some(region) = self.regions.get(&id) else {
                return Ok(());
            };
            if region.in_flight.len() >= IN_FLIGHT_MAX || region.submitted() >= self.cut {
                return Ok(());
            }
            if region.timed && !region.in_flight.is_empty() {
                return Ok(());
            }
            let (available, changed) = self.available(region)?;
            let limit = region
                .checkpoint_target
                .filter(|t| *t > region.submitted())
                .map_or(available, |t| available.min(t));
            let limit = region.pause_limit().map_or(limit, |p| limit.min(p));
            if limit <= region.submitted() {
                return Ok(());
            }
            // A block that reads at an epoch needs a boundary there. It saw that epoch as the newest, so no step is beyond it yet.
            let limit = self.shared.next_pin(region.submitted()).map_or(limit, |p| limit.min(p));
            let limit = self.next_write(region).map_or(limit, |w| limit.min(w));
            let end = choose_step(region.submitted(), limit, &changed, &self.stops, self.step_rows_max());
            let inputs = region.inputs.iter().filter(|i| **i != region.id);
            let inputs = inputs.filter_map(|i| self.regions.get(i)?.relation.as_deref());
            let Some(end) = whole_steps(inputs, region.submitted(), end, available) else {
                return Ok(());
            };
            let has_change = changed.iter().any(|(e, _)| *e <= end);
            self.take_step(id, end, has_change)?;
        }
    }

    /// A table that also ingests orders its writes behind the records of their step: a step with writes ends at their epoch.
    fn next_write(&self, region: &RegionCtl) -> Option<u64> {
        let (first, _) = self.table_writes.get(&region.id)?.front()?;
        (!region.is_plain_table()).then_some(*first)
    }

    fn take_step(&mut self, id: ObjectId, end: u64, has_change: bool) -> Result<()> {
        let Some(region) = self.regions.get(&id) else {
            return Ok(());
        };
        if !has_change {
            if let Some(region) = self.regions.get_mut(&id) {
                region.submitted_to(end);
            }
            return Ok(());
        }
        if region.is_plain_table() {
            return self.step_table(id, end);
        }
        let mut inputs = HashMap::new();
        for input in &region.inputs {
            let after = region.submitted().max(region.starts.get(input).copied().unwrap_or(0));
            if after >= end {
                continue;
            }
            if let Some(source) = self.source_of(id, *input) {
                let cuts = source.cuts.iter().filter(|(e, _)| *e > after && *e <= end);
                let ranges = join_ranges(cuts.flat_map(|(_, r)| r.iter().copied()));
                let writes = if *input == id {
                    taken_writes(&mut self.table_writes, &self.queued, id, end)
                } else {
                    Vec::new()
                };
                if !writes.is_empty() {
                    inputs.insert(*input, StepInput::Ingest { ranges, writes });
                } else if !ranges.is_empty() {
                    inputs.insert(*input, StepInput::Ranges(ranges));
                }
            } else if let Some(relation) = self.regions.get(input).and_then(|r| r.relation.as_ref()) {
                let runs = relation.runs_between(after, end)?;
                if !runs.is_empty() {
                    inputs.insert(*input, StepInput::Runs(runs));
                }
            }
        }
        let checkpoint = region.checkpoint_target == Some(end);
        self.submit(id, end, inputs, checkpoint, None)
    }

    fn step_table(&mut self, id: ObjectId, end: u64) -> Result<()> {
        let Some(region) = self.regions.get_mut(&id) else {
            return Ok(());
        };
        let Some(relation) = &region.relation else {
            return Ok(());
        };
        let deltas = taken_writes(&mut self.table_writes, &self.queued, id, end);
        let order = relation.order();
        let run = match deltas.as_slice() {
            [one] => one.clone(),
            _ => Delta::consolidate(order.stored(), &deltas, order.key())?,
        };
        region.meta.rows_out += run.num_rows() as u64;
        region.meta.steps += 1;
        relation.publish(region.submitted(), end, Some(StepOutput::Resident(run)));
        region.submitted_to(end);
        region.complete_to(end);
        region.dirty = true;
        self.work.changed.insert(id);
        self.work.runs.insert(id);
        Ok(())
    }

    pub(super) fn submit(
        &mut self,
        id: ObjectId,
        end: u64,
        inputs: HashMap<ObjectId, StepInput>,
        checkpoint: bool,
        backfill: Option<(BackfillMeta, u64)>,
    ) -> Result<()> {
        let timestamp_us = self.timeline.timestamp_us(end);
        let Some(region) = self.regions.get_mut(&id) else {
            return Ok(());
        };
        let Some(dataflow) = &region.dataflow else {
            return Err(RuntimeError::internal("a region without tasks was given a step"));
        };
        let from = if backfill.is_some() { end } else { region.submitted() };
        let first = region.next_seq == 0 && region.meta.steps == 0;
        let is_backfill = backfill.is_some();
        let (meta, rows) = backfill.map_or((None, 0), |(m, r)| (Some(m), r));
        region.in_flight.push_back(InFlight {
            seq: region.next_seq,
            from,
            to: end,
            backfill: meta,
            is_backfill,
            backfill_rows: rows,
            checkpoint,
        });
        dataflow.submit(Step {
            seq: region.next_seq,
            from,
            to: end,
            barrier: Barrier {
                epoch: end,
                timestamp_us,
                first,
            },
            inputs,
            checkpoint,
        });
        region.next_seq += 1;
        region.submitted_to(end);
        region.dirty = !checkpoint;
        if checkpoint {
            region.checkpoint_target = None;
        } else {
            self.work.changed.insert(id);
        }
        Ok(())
    }

    /// A region that has reached its checkpoint's epoch without a step ending there is frozen by a step of its own, if it has
    /// anything to freeze.
    fn freeze_if_due(&mut self, id: ObjectId) -> Result<()> {
        let Some(region) = self.regions.get_mut(&id) else {
            return Ok(());
        };
        let due = region.checkpoint_target.is_some_and(|t| t <= region.submitted());
        if !due {
            return Ok(());
        }
        if !region.dirty {
            region.checkpoint_target = None;
            return Ok(());
        }
        if !region.is_plain_table() {
            let end = region.submitted();
            return self.submit(id, end, HashMap::new(), true, None);
        }
        let Some(relation) = &region.relation else {
            return Ok(());
        };
        let snapshot = relation.snapshot(region.frontier())?;
        let relation_seq = relation.seq();
        let since = region.freeze_relation(relation_seq);
        let epoch = region.frontier();
        region.checkpoint_target = None;
        region.dirty = false;
        let meta = region.encode_meta(None);
        self.frozen.push(Frozen {
            region: id,
            epoch,
            step_seq: None,
            state: crate::dataflow::StateDelta::default(),
            relation: Some((snapshot, since)),
            relation_seq,
            meta,
        });
        Ok(())
    }
}

/// A table's writes up to an epoch.
fn taken_writes(
    all: &mut HashMap<ObjectId, VecDeque<(u64, Vec<Delta>)>>,
    queued: &Holder,
    id: ObjectId,
    end: u64,
) -> Vec<Delta> {
    let queue = all.entry(id).or_default();
    let mut deltas = Vec::new();
    while queue.front().is_some_and(|(e, _)| *e <= end) {
        deltas.extend(queue.pop_front().into_iter().flat_map(|(_, d)| d));
    }
    queued.set(queued.bytes().saturating_sub(deltas.iter().map(Delta::bytes).sum()));
    deltas
}

/// Ranges of one split that follow each other become one.
fn join_ranges(ranges: impl Iterator<Item = SplitRange>) -> Vec<SplitRange> {
    let mut out: Vec<SplitRange> = Vec::new();
    for range in ranges {
        // A range with a check stays by itself: it is fetched, checked and shared between regions as it was cut.
        let before = out.iter_mut().find(|r| r.check.is_none() && r.join(&range).is_some());
        match before {
            Some(r) => r.to = range.to,
            None => out.push(range),
        }
    }
    out
}
