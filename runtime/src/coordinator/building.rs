//! Building a view beside everything else: pins, backfill steps, and the change to following.

use std::collections::HashMap;

use levee_planner::plan::ObjectId;

use super::backfill::{Backfill, Next, Pin};
use super::control::Control;
use super::reader::Reader;
use super::region::{IN_FLIGHT_MAX, RegionKind};
use crate::{Result, RuntimeError};

impl Control {
    /// Submits what the backfill has next; answers whether it is complete and the region follows its inputs' logs.
    pub(super) fn advance_backfill(&mut self, id: ObjectId) -> Result<bool> {
        self.pin_inputs(id)?;
        loop {
            let Some(region) = self.regions.get_mut(&id) else {
                return Ok(false);
            };
            let Some(backfill) = &mut region.backfill else {
                return Ok(true);
            };
            if !backfill.pinned || region.in_flight.len() >= IN_FLIGHT_MAX {
                return Ok(false);
            }
            if !backfill.missing().is_empty() {
                return Ok(false);
            }
            if region.awaits_pins() {
                self.freeze_pins(id);
                return Ok(false);
            }
            let Some(backfill) = &mut region.backfill else {
                return Ok(true);
            };
            let start = backfill.epochs().map(|(_, e)| e).min().unwrap_or(self.cut);
            let events = &self.events;
            let next = backfill.next(|snapshot, cursor| Reader::start(snapshot, cursor, id, events.clone()))?;
            let rows = backfill
                .meta()
                .relations
                .iter()
                .map(|r| r.2)
                .chain(backfill.meta().sources.iter().map(|s| s.3))
                .sum();
            let inputs = match next {
                Next::Waiting => return Ok(false),
                Next::Input(input, rows) => HashMap::from([(input, rows)]),
                Next::End => HashMap::new(),
            };
            if inputs.is_empty() && backfill.started {
                if !region.in_flight.is_empty() {
                    return Ok(false);
                }
                region.backfill = None;
                // What was frozen last still speaks of the backfill's pins: until it is frozen anew it must not stand for later epochs.
                region.dirty = true;
                region.follow_from(start);
                self.work.changed.insert(id);
                tracing::info!(job = %region.name, epoch = start, "backfill complete, following the change log");
                continue;
            }
            backfill.started = true;
            let meta = backfill.meta();
            let checkpoint = region.checkpoint_target.is_some();
            fail::fail_point!("backfill::step");
            self.submit(id, start, inputs, checkpoint, Some((meta, rows)))?;
        }
    }

    /// Chooses each input's pin when all inputs are readable, and finds the pinned rows again after a restart.
    fn pin_inputs(&mut self, id: ObjectId) -> Result<()> {
        let Some(region) = self.regions.get(&id) else {
            return Ok(());
        };
        let Some(backfill) = &region.backfill else {
            return Ok(());
        };
        let mut found = Vec::new();
        if backfill.pinned {
            for (input, epoch) in backfill.missing() {
                let Some(upstream) = self.regions.get(&input) else {
                    return Err(RuntimeError::NoObject(input));
                };
                if let Some(relation) = upstream.relation.as_ref().filter(|_| upstream.frontier() >= epoch) {
                    found.push((input, relation.snapshot(epoch)?));
                }
            }
        } else {
            // The checkpoint under way may drop the versions that would be pinned: it does not know of this region.
            if self.checkpoint_running {
                return Ok(());
            }
            let inputs = || region.inputs.iter().filter_map(|i| self.regions.get(i));
            if inputs().any(|r| !r.visible()) {
                return Ok(());
            }
            // A view that no checkpoint holds could not be found again at the epoch where it is pinned. A table's beginning can: the
            // log is kept for it.
            if inputs().any(|r| r.kind != RegionKind::Table && r.completed_epoch.is_none()) {
                self.ask_for_checkpoint();
                return Ok(());
            }
        }
        if !backfill.pinned {
            let newest = region.stop_on_error;
            let mut pins = Vec::new();
            for input in &region.inputs {
                pins.push((*input, self.pin(id, *input, newest)?));
            }
            let Some(region) = self.regions.get_mut(&id) else {
                return Ok(());
            };
            let backfill = Backfill {
                pins,
                pinned: true,
                started: false,
                frozen: false,
                rows_done: 0,
            };
            region.starts = backfill.epochs().collect();
            self.stops.extend(region.starts.values().copied());
            let start = backfill.epochs().map(|(_, e)| e).min().unwrap_or(self.cut);
            region.begin_at(start);
            region.backfill = Some(backfill);
            self.await_present(id);
            return Ok(());
        }
        let Some(backfill) = self.regions.get_mut(&id).and_then(|r| r.backfill.as_mut()) else {
            return Ok(());
        };
        for (input, rows) in found {
            for (pin_id, pin) in &mut backfill.pins {
                if let Pin::Relation { snapshot, .. } = pin
                    && *pin_id == input
                {
                    *snapshot = Some(rows.clone());
                }
            }
        }
        Ok(())
    }

    /// `newest`: rows that were changed meanwhile must not count (a view that stops at errors would stop at errors long mended), so
    /// the input's newest epoch instead of its newest checkpoint; after a restart the log brings the input there again.
    fn pin(&self, id: ObjectId, input: ObjectId, newest: bool) -> Result<Pin> {
        if let Some(source) = self.source_of(id, input) {
            let mut ranges = source.state.history();
            ranges.iter_mut().for_each(|r| r.exact = !source.keyed);
            return Ok(Pin::Source {
                epoch: self.cut,
                ranges,
                done: 0,
            });
        }
        let upstream = self.regions.get(&input).ok_or(RuntimeError::NoObject(input))?;
        let relation = upstream.relation.as_ref().ok_or(RuntimeError::NoObject(input))?;
        let durable = upstream.completed_epoch.unwrap_or(0).max(relation.base_epoch());
        let epoch = relation.boundary(if newest { upstream.frontier() } else { durable });
        Ok(Pin::Relation {
            epoch,
            snapshot: Some(relation.snapshot(epoch)?),
            done: 0,
            cursor: None,
            reader: None,
        })
    }
}
