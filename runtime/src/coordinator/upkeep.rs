//! The coordinator's recurring work: cutting sources, checkpoint ticks, forgetting, folding, status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use levee_planner::plan::ObjectId;

use super::checkpointer::{CheckpointDone, Job, Payload, SourceState};
use super::control::{CUT_ROWS_PER_TASK, CUTS_AHEAD_MAX, Control, FOLD_EVERY, error_text};
use super::region::RegionKind;
use super::sequencer::Request;
use super::shared::{CheckpointInfo, RegionStatus};
use crate::Result;
use crate::sources::SplitRange;

/// Regions that are later than this after a tick go into the next checkpoint.
const TICK_WAIT: Duration = Duration::from_millis(1000);
/// A relation that nobody lags behind on is still readable this many epochs back.
const READ_BACK_EPOCHS: u64 = 256;

impl Control {
    /// Cuts source ranges into the next epoch, for sources whose fastest reader is close behind.
    pub(super) fn cut_sources(&mut self) {
        if self.cut_pending || self.stopping.is_some() {
            return;
        }
        let now_us = self.shared.now_us();
        let mut cut = Vec::new();
        let per_epoch = CUT_ROWS_PER_TASK * self.shared.config.parallelism as u64;
        for (id, source) in &self.sources {
            let readers = self
                .regions
                .values()
                .filter(|r| r.inputs.contains(id) && r.failed.is_none());
            let Some(fastest) = readers.filter(|r| r.backfill.is_none()).map(|r| r.frontier).max() else {
                continue;
            };
            if source.cuts.iter().filter(|(e, _)| *e > fastest).count() >= CUTS_AHEAD_MAX {
                continue;
            }
            let available = source.driver.available(source.created_us, now_us);
            let share = (per_epoch / source.offsets.len().max(1) as u64).max(1);
            let ranges: Vec<SplitRange> = (0u32..)
                .zip(source.offsets.iter().zip(&available))
                .filter(|(_, (from, to))| from < to)
                .map(|(split, (from, to))| SplitRange {
                    split,
                    from: *from,
                    to: (*to).min(from + share),
                })
                .collect();
            if !ranges.is_empty() {
                cut.push((*id, ranges));
            }
        }
        if !cut.is_empty() {
            self.cut_pending = true;
            if self.requests.send(Request::Cut(cut)).is_err() {
                tracing::debug!("the sequencer has stopped");
            }
        }
    }

    /// Starts a checkpoint when it is time and something has changed.
    pub(super) fn start_tick(&mut self) {
        let interval = Duration::from_millis(self.shared.config.checkpoint_interval_ms);
        if self.tick.is_some()
            || self.checkpoint_running
            || !self.changed_since_tick
            || self.last_tick.elapsed() < interval
        {
            return;
        }
        self.changed_since_tick = false;
        self.last_tick = Instant::now();
        self.tick = Some((self.cut, self.last_tick));
        for region in self.regions.values_mut().filter(|r| r.failed.is_none()) {
            if region.checkpoint_target.is_none() {
                region.checkpoint_target = Some(self.cut);
            }
        }
    }

    /// Hands the frozen state to the checkpointer when all regions that keep up have contributed.
    pub(super) fn finish_tick(&mut self) {
        let Some((epoch, started)) = self.tick else { return };
        let waiting = self
            .regions
            .values()
            .any(|r| r.failed.is_none() && (r.checkpoint_target.is_some_and(|t| t <= epoch) || self.freezing(r.id)));
        if waiting && started.elapsed() < TICK_WAIT {
            return;
        }
        self.tick = None;
        let job = self.job(epoch);
        self.checkpoint_running = true;
        if self.checkpoints.send(job).is_err() {
            tracing::debug!("the checkpointer has stopped");
            self.checkpoint_running = false;
        }
    }

    fn freezing(&self, id: ObjectId) -> bool {
        self.regions
            .get(&id)
            .is_some_and(|r| r.in_flight.iter().any(|s| s.checkpoint))
    }

    fn job(&mut self, epoch: u64) -> Job {
        let frozen = std::mem::take(&mut self.frozen);
        let mut floors = BTreeMap::new();
        let mut advance = BTreeMap::new();
        let mut subscribers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for region in self.regions.values() {
            let own = frozen.iter().filter(|f| f.region == region.id).map(|f| f.epoch).min();
            floors.insert(region.id.0, own.unwrap_or(region.frontier).min(region.frontier));
            // Clean: its state has not changed since it was frozen, so the same files hold at its frontier.
            let clean =
                !region.dirty && region.in_flight.is_empty() && region.backfill.is_none() && region.failed.is_none();
            if clean {
                advance.insert(region.id.0, region.frontier);
            }
            for input in &region.inputs {
                subscribers.entry(input.0).or_default().push(region.id.0);
            }
        }
        let sources = self.sources.iter().map(|(id, s)| {
            (
                *id,
                SourceState {
                    created_us: s.created_us,
                    offsets: s.offsets.clone(),
                },
            )
        });
        Job {
            epoch,
            started: Instant::now(),
            frozen,
            advance,
            floors,
            subscribers,
            live: self.regions.keys().map(|id| id.0).collect(),
            tables: self
                .regions
                .values()
                .filter(|r| r.kind == RegionKind::Table)
                .map(|r| r.id.0)
                .collect(),
            log_seqs: self.timeline.seqs(),
            payload: Payload {
                epoch: self.cut,
                timestamp_us: self.timeline.timestamp_us(self.cut),
                catalog: self.catalog.as_ref().clone(),
                sources: sources.collect(),
            },
        }
    }

    pub(super) fn on_checkpoint(&mut self, result: Result<CheckpointDone>) {
        self.checkpoint_running = false;
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(error = error_text(&error), "a checkpoint failed and is tried again");
                // While stopping one attempt is enough: the log has everything.
                self.changed_since_tick = self.stopping.is_none();
                return;
            }
        };
        for (id, epoch) in &done.epochs {
            if let Some(region) = self.regions.get_mut(&ObjectId(*id)) {
                region.completed_epoch = Some(*epoch);
            }
        }
        for frozen in &done.frozen {
            if let Some(region) = self.regions.get_mut(&frozen.region) {
                region.completed_seq = frozen.step_seq.or(region.completed_seq);
                region.completed_relation_seq = frozen.relation_seq;
            }
        }
        for region in self.regions.values() {
            // Every region gets the new manifest: files that the old one named may be merged away.
            if let (Some(dataflow), Some(seq), Some(reader)) =
                (&region.dataflow, region.completed_seq, done.reader(region.id))
            {
                dataflow.checkpoint_completed(seq, reader);
            }
        }
        self.timeline.forget_before(done.log_epoch);
        self.shared.note_checkpoint(CheckpointInfo {
            number: done.manifest.number,
            epoch: done.epoch,
            regions: done.manifest.regions.len(),
            files: done.manifest.files.len(),
            bytes: done.bytes,
            seconds: done.seconds,
        });
        if self.checkpoints.send(Job::collect()).is_err() {
            tracing::debug!("the checkpointer has stopped");
        }
    }

    /// Drops cuts that every reader has taken.
    pub(super) fn forget(&mut self) {
        for (id, source) in &mut self.sources {
            let readers = self
                .regions
                .values()
                .filter(|r| r.inputs.contains(id) && r.failed.is_none());
            let taken = readers
                .map(|r| {
                    if r.backfill.is_some() {
                        r.starts.get(id).copied().unwrap_or(0)
                    } else {
                        r.submitted
                    }
                })
                .min()
                .unwrap_or(self.cut);
            while source.cuts.front().is_some_and(|(e, _)| *e <= taken) {
                source.cuts.pop_front();
            }
        }
        let oldest = self.regions.values().map(|r| r.frontier).min().unwrap_or(self.cut);
        while self.stops.first().is_some_and(|s| *s < oldest) {
            self.stops.pop_first();
        }
    }

    /// Folds each relation's runs that no reader, subscriber or checkpoint needs apart.
    pub(super) fn start_fold(&mut self) {
        if self.fold_running || self.last_fold.elapsed() < FOLD_EVERY {
            return;
        }
        self.last_fold = Instant::now();
        let visible = self
            .regions
            .values()
            .filter(|r| r.failed.is_none() && r.visible() && r.kind != RegionKind::Sink);
        let common = visible.map(|r| r.frontier).min().unwrap_or(self.cut);
        let readable = common.max(self.cut.saturating_sub(READ_BACK_EPOCHS));
        let readable = self.shared.oldest_pin().map_or(readable, |p| p.min(readable));
        let mut folds = Vec::new();
        for region in self.regions.values() {
            let (Some(relation), Some(completed)) = (&region.relation, region.completed_epoch) else {
                continue;
            };
            let subscribers = self
                .regions
                .values()
                .filter(|d| d.inputs.contains(&region.id) && d.failed.is_none());
            let taken = subscribers.map(|d| {
                let start = d.starts.get(&region.id).copied();
                match (&d.backfill, start) {
                    (Some(_), start) => start.unwrap_or(0),
                    (None, start) => d.submitted.max(start.unwrap_or(0)),
                }
            });
            let horizon = taken
                .min()
                .unwrap_or(u64::MAX)
                .min(readable)
                .min(completed)
                .min(region.frontier);
            if relation.foldable(horizon, region.completed_relation_seq) {
                folds.push((Arc::clone(relation), horizon, region.completed_relation_seq));
            }
        }
        if !folds.is_empty() {
            self.fold_running = self.folds.send(folds).is_ok();
        }
    }

    /// Shows frontiers and statuses to sessions.
    pub(super) fn publish_status(&mut self) {
        let mut moved = false;
        for region in self.regions.values() {
            moved |= self.shown.insert(region.id, region.frontier) != Some(region.frontier);
            let running = region.visible() && region.failed.is_none();
            let status = self.shared.status_of(region.id);
            if running && matches!(status, Some(RegionStatus::Building | RegionStatus::Rebuilding)) {
                self.shared.set_status(region.id, RegionStatus::Running);
            }
        }
        if moved {
            self.shared.bump();
        }
    }
}
