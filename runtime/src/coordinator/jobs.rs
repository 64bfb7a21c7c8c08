//! States of jobs, as the coordinator keeps them: pausing, stopping for good, and building again.
//!
//! ```text
//!   S ─▶ V ─▶ W        V paused:  V and W *stand*: they answer at the epoch where they are, and hold nobody else back
//!    ╲─▶ X             V failed:  V and W are let go of: their inputs' runs, their checkpoints, their memory
//! ```
//!
//! A paused region takes no steps once it is complete, and keeps its place; its inputs keep the runs that it will need. A failed view would hold its
//! inputs' runs and the log for ever, and whatever reads it can never be complete again, so both are given up together, durably (a
//! record of the log says so), and RESUME builds them from scratch. A failed table or sink keeps its state: it cannot be computed again.

use std::collections::BTreeSet;
use std::sync::Arc;

use levee_planner::catalog::CatalogOp;
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;
use tokio::sync::oneshot;

use super::control::{Control, error_text};
use super::record::EpochRecord;
use super::region::RegionKind;
use super::sequencer::{DdlRequest, Request};
use super::shared::RegionStatus;

impl Control {
    /// A job's state has changed in the catalog, from `old`.
    pub(super) fn set_job(&mut self, id: ObjectId, old: &JobState, new: &JobState, record: &EpochRecord) {
        if self.catalog.get(id).is_none() {
            return;
        }
        match (old, new) {
            (_, JobState::Unpopulated) => {
                self.remove_object(id);
                self.shared.add(id, None, RegionStatus::Unpopulated);
            }
            (JobState::Unpopulated | JobState::Failed(_), JobState::Running | JobState::Creating) => {
                self.build_again(id, record);
            }
            (_, JobState::Failed(reason)) => self.detach(id, reason),
            (_, JobState::Paused) => self.set_paused(id, true, record.epoch),
            (JobState::Paused, JobState::Running | JobState::Creating) => self.set_paused(id, false, record.epoch),
            (JobState::Running | JobState::Creating, JobState::Running | JobState::Creating) => {}
        }
        self.show_standing();
    }

    fn build_again(&mut self, id: ObjectId, record: &EpochRecord) {
        self.remove_object(id);
        self.anew.0.insert(id);
        let catalog = Arc::clone(&self.catalog);
        if let Some(object) = catalog.get(id)
            && let Err(error) = self.add_object(object, record)
        {
            self.on_start_failed(id, error_text(&error));
        }
    }

    /// A region stands where it is. One that is found paused again in the log takes what it may have shown by then first, and one that
    /// is being built is completed.
    fn set_paused(&mut self, id: ObjectId, paused: bool, epoch: u64) {
        if paused {
            self.paused_sources.insert(id);
        } else {
            self.paused_sources.remove(&id);
        }
        // At rest it is complete through the newest epoch; from here on it stays where it is.
        self.wake(id);
        if let Some(region) = self.regions.get_mut(&id) {
            region.paused = paused;
            if let Some(delivery) = region.delivery.as_ref().filter(|_| !paused) {
                delivery.resume();
            }
            region.stand_at = if self.recovering { epoch } else { region.submitted() };
            self.work.active.insert(id);
            self.work.ready.insert(id);
        }
    }

    /// Lets go of a failed view's state and of everything that it holds in others.
    fn detach(&mut self, id: ObjectId, reason: &str) {
        self.mark_failed(id, reason.to_owned());
        self.paused_sources.remove(&id);
        if let Some(region) = self.regions.get_mut(&id) {
            region.dataflow = None;
            region.relation = None;
            region.backfill = None;
            region.detached = true;
        }
        self.frozen.retain(|f| f.region != id);
        self.shared.add(id, None, RegionStatus::Failed(reason.to_owned()));
    }

    /// An object that cannot be started at all.
    pub(super) fn on_start_failed(&mut self, id: ObjectId, reason: String) {
        tracing::error!(job = %id, reason, "a job cannot be started");
        self.shared.set_status(id, RegionStatus::Failed(reason.clone()));
        self.log_failures(vec![CatalogOp::SetJob(id, JobState::Failed(reason))]);
    }

    /// A region cannot go on; a view takes what reads it along.
    pub(super) fn on_region_failed(&mut self, id: ObjectId, reason: String) {
        let Some(region) = self.regions.get(&id).filter(|r| r.failed.is_none()) else {
            return;
        };
        tracing::error!(job = %region.name, reason, "a job has stopped");
        if region.kind != RegionKind::View {
            self.mark_failed(id, reason);
            self.show_standing();
            return;
        }
        let name = region.name.clone();
        let mut ops = Vec::new();
        for lost in self.work.downstream([id]) {
            let reason = if lost == id {
                reason.clone()
            } else {
                format!("\"{name}\", which it reads, has stopped: {reason}")
            };
            self.mark_failed(lost, reason.clone());
            ops.push(CatalogOp::SetJob(lost, JobState::Failed(reason)));
        }
        self.log_failures(ops);
        self.show_standing();
    }

    pub(super) fn mark_failed(&mut self, id: ObjectId, reason: String) {
        let Some(region) = self.regions.get_mut(&id) else {
            return;
        };
        if let Some(dataflow) = &region.dataflow {
            dataflow.stop();
        }
        self.shared.set_status(id, RegionStatus::Failed(reason.clone()));
        region.wake();
        if let Some(delivery) = &region.delivery {
            delivery.end();
        }
        self.timers.remove(id);
        region.failed = Some(reason);
        region.in_flight.clear();
        region.checkpoint_target = None;
        self.work.stop(id);
        self.work.hidden.remove(&id);
        // What it read may be let go of.
        let inputs = region.inputs.iter().copied();
        self.work.foldable.extend(inputs.filter(|i| self.work.runs.contains(i)));
    }

    pub(super) fn log_failures(&self, ops: Vec<CatalogOp>) {
        let (reply, _nobody) = oneshot::channel();
        let request = DdlRequest {
            ops,
            ..DdlRequest::default()
        };
        if self.requests.send(Request::Ddl(Box::new(request), reply)).is_err() {
            tracing::debug!("a job failed while stopping");
        }
    }

    /// Nobody waits any more for what was being created in the foreground when the process ended: that goes before anything else
    /// happens, what reads it first.
    pub(super) fn abandon_creations(&self) {
        let creating = self.catalog.jobs().filter(|(_, state)| **state == JobState::Creating);
        let mut ids: Vec<ObjectId> = creating.map(|(id, _)| id).collect();
        ids.reverse();
        for id in ids {
            if self.requests.send(Request::Abandon(id)).is_err() {
                tracing::debug!("the sequencer has stopped");
            }
        }
    }

    /// Finds out which regions stand, and tells sessions.
    pub(super) fn show_standing(&mut self) {
        let stopped_table = |kind, failed: &Option<String>| kind == RegionKind::Table && failed.is_some();
        let roots = self.regions.values();
        let roots: Vec<ObjectId> = roots
            .filter(|r| r.paused || stopped_table(r.kind, &r.failed))
            .map(|r| r.id)
            .collect();
        let standing = self.work.downstream(roots);
        let left: BTreeSet<ObjectId> = self.work.standing.difference(&standing).copied().collect();
        self.work.standing = standing;
        for id in self.work.standing.union(&left) {
            if let Some(region) = self.regions.get(id)
                && region.failed.is_none()
                && region.visible()
            {
                self.shared.set_status(*id, self.shown_status(*id));
            }
        }
    }

    /// The status of a region that is complete.
    pub(super) fn shown_status(&self, id: ObjectId) -> RegionStatus {
        if !self.work.standing.contains(&id) {
            return RegionStatus::Running;
        }
        let name = |id: ObjectId| self.regions.get(&id).map_or("", |r| r.name.as_str());
        if self.regions.get(&id).is_some_and(|r| r.paused) {
            return RegionStatus::Standing(format!("\"{}\" is paused", name(id)));
        }
        let mut roots = self.regions.values();
        let root = roots.find(|r| (r.paused || r.failed.is_some()) && self.work.downstream([r.id]).contains(&id));
        let why = root.map_or_else(String::new, |r| {
            let state = if r.paused { "paused" } else { "stopped" };
            format!(" for \"{}\", which is {state}", r.name)
        });
        RegionStatus::Standing(format!("\"{}\" waits{why}", name(id)))
    }
}
