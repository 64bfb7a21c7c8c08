//! What jobs that stand still make others keep, and the limit of it.
//!
//! ```text
//!   paused view, sink whose target is out      log ├──── since its checkpoint ────┤
//!        at its old checkpoint          inputs' runs   ├── since its last step ───┤      sum > backlog_limit: it is given up
//! ```
//!
//! Until then nothing is lost: it goes on where it stood, and what was changed many times meanwhile is one change. Past the limit it is given
//! up as a failed job is (see [`super::jobs`]): visibly, durably, together with what reads it, and what it held is let go of. A view is
//! built again by RESUME. A sink is not: what its target still lacks could only be told by what the target holds, rows of others among them, or not at all
//! (a topic, files), so resuming it would be silently wrong, and it must be created anew.
//!
//! A table that has failed is never given up: its rows are nowhere else.

use levee_planner::catalog::CatalogOp;
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;

use super::control::Control;
use super::region::{RegionCtl, RegionKind};

impl Control {
    /// Gives up jobs for which too much is kept. Called when a checkpoint is complete: what is kept is what that could not let go of.
    pub(super) fn limit_backlogs(&mut self) {
        let limit = self.shared.config.backlog_limit;
        let standing = self.regions.values().filter(|r| !r.detached && self.may_stand_still(r));
        let over: Vec<(ObjectId, RegionKind, u64)> = standing
            .map(|r| (r.id, r.kind, self.backlog(r)))
            .filter(|(_, _, bytes)| *bytes > limit)
            .collect();
        for (id, kind, bytes) in over {
            let reason = |what: &str| {
                format!("backlog_limit: {what} while {bytes} bytes had to be kept for it, and {limit} are allowed")
            };
            match kind {
                RegionKind::Sink => self.give_up_sink(id, reason("its target did not take changes")),
                _ => self.on_region_failed(id, reason("it was paused")),
            }
        }
    }

    /// Regions that others do not wait for, however far behind they are.
    fn may_stand_still(&self, region: &RegionCtl) -> bool {
        match region.kind {
            // One that is still being built reads its beginning at its own pace.
            RegionKind::Sink => {
                region.failed.is_some() || (region.completed_epoch.is_some() && region.frontier() < self.cut)
            }
            RegionKind::View => region.paused && region.failed.is_none(),
            RegionKind::Table => false,
        }
    }

    /// Bytes of the log since a region's checkpoint, and of its inputs' changes that it has not taken.
    fn backlog(&self, region: &RegionCtl) -> u64 {
        let checkpoint = region.completed_epoch.unwrap_or_else(|| region.frontier());
        let inputs = region.inputs.iter().filter(|i| **i != region.id);
        let runs = inputs.filter_map(|input| {
            let relation = self.regions.get(input)?.relation.as_ref()?;
            Some(relation.bytes_after(self.position(region, *input)))
        });
        self.timeline.bytes_after(checkpoint) + runs.sum::<u64>()
    }

    fn give_up_sink(&mut self, id: ObjectId, reason: String) {
        let name = self.regions.get(&id).map_or("", |r| r.name.as_str());
        tracing::error!(job = name, reason, "a sink is given up");
        self.mark_failed(id, reason.clone());
        self.log_failures(vec![CatalogOp::SetJob(id, JobState::Failed(reason))]);
        self.show_standing();
    }
}
