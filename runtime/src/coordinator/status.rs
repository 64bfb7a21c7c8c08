//! Rows of `levee_catalog`, as the coordinator knows them.

use std::collections::BTreeMap;

use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;

use super::StatusRow;
use super::control::Control;
use super::dead_letters::DEAD_LETTERS;
use super::region::{RegionCtl, RegionKind};
use super::sources::source_def;
use crate::memory::Share;

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

impl Control {
    /// Rows of one status table; unknown names have none.
    pub(super) fn status(&self, name: &str) -> Vec<StatusRow> {
        match name {
            "jobs" => self.job_rows(),
            "regions" => self.shown_regions().map(|r| self.region_row(r)).collect(),
            "tasks" => self.regions.values().flat_map(task_rows).collect(),
            "epochs" => self.epoch_rows(),
            "checkpoints" => self.checkpoint_rows(),
            "memory" => self.memory_rows(),
            "ddl_progress" => self.regions.values().filter_map(|r| self.progress_row(r)).collect(),
            "stream_errors" => self.regions.values().flat_map(error_rows).collect(),
            "sources" => self.source_rows(),
            "sinks" => self.sink_rows(),
            _ => Vec::new(),
        }
    }

    /// Users' regions, without the system's own.
    fn shown_regions(&self) -> impl Iterator<Item = &RegionCtl> {
        self.regions.values().filter(|r| r.id != DEAD_LETTERS)
    }

    /// A job is finished when all its sources have ended and it has taken everything.
    fn finished(&self, region: &RegionCtl) -> bool {
        let mut sources = region
            .inputs
            .iter()
            .filter_map(|i| self.source_of(region.id, *i))
            .peekable();
        let bounded = sources.peek().is_some();
        let ended = sources.all(|s| s.driver.finished(&s.state.next()));
        let upstream = region
            .inputs
            .iter()
            .filter_map(|i| self.regions.get(i).filter(|u| u.id != region.id))
            .all(|u| self.finished(u));
        let only_relations = !bounded && !region.inputs.is_empty() && region.kind != RegionKind::Table;
        (bounded || only_relations) && ended && upstream && region.visible() && region.frontier() >= self.cut
    }

    fn job_rows(&self) -> Vec<StatusRow> {
        let mut rows: BTreeMap<ObjectId, StatusRow> = self.shown_regions().map(|r| (r.id, self.job_row(r))).collect();
        for (id, state) in self.catalog.jobs().filter(|(id, _)| !self.regions.contains_key(id)) {
            let Some(object) = self.catalog.get(id) else { continue };
            let state = match state {
                JobState::Failed(reason) => format!("failed: {reason}"),
                JobState::Unpopulated => "not populated".to_owned(),
                JobState::Paused => "paused".to_owned(),
                JobState::Running | JobState::Creating => continue,
            };
            let row = vec![
                text(id),
                text(&object.name),
                text(object.kind_name()),
                Some(state),
                None,
                None,
                None,
                text(false),
            ];
            rows.insert(id, row);
        }
        rows.into_values().collect()
    }

    fn job_row(&self, r: &RegionCtl) -> StatusRow {
        let kind = match r.kind {
            RegionKind::Table => "table",
            RegionKind::View => "materialized view",
            RegionKind::Sink => "sink",
        };
        let state = match (&r.failed, r.visible()) {
            (Some(reason), _) => format!("failed: {reason}"),
            (None, _) if r.paused => "paused".to_owned(),
            (None, false) => "building".to_owned(),
            (None, true) if self.work.standing.contains(&r.id) => "waiting for a paused job".to_owned(),
            (None, true) => "running".to_owned(),
        };
        vec![
            text(r.id),
            text(&r.name),
            text(kind),
            Some(state),
            text(r.frontier()),
            text(r.meta.rows_out),
            text(r.meta.checksum as i64),
            text(self.finished(r)),
        ]
    }

    fn region_row(&self, r: &RegionCtl) -> StatusRow {
        let (runs, rows, bytes) = r.relation.as_ref().map_or((0, 0, 0), |rel| rel.stats());
        vec![
            text(r.id),
            text(&r.name),
            text(r.frontier()),
            r.completed_epoch.map(|e| e.to_string()),
            text(self.cut.saturating_sub(r.frontier())),
            text(r.meta.steps),
            text(runs),
            text(rows),
            text(bytes),
            text(r.dataflow.as_ref().map_or(0, crate::dataflow::Region::state_bytes)),
        ]
    }

    fn progress_row(&self, r: &RegionCtl) -> Option<StatusRow> {
        if r.visible() || r.failed.is_some() {
            return None;
        }
        let (done, total) = match &r.backfill {
            Some(backfill) => backfill.progress(),
            None => (1, 1),
        };
        let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
        let statement = self.catalog.get(r.id).map(|o| o.definition.clone());
        let seconds = r.began.0.elapsed().as_secs_f64().max(0.001);
        let rate = done.saturating_sub(r.began.1) as f64 / seconds;
        let foreground = *self.catalog.job(r.id) == JobState::Creating;
        Some(vec![
            text(r.id),
            text(&r.name),
            statement,
            text(format!("{:.1}%", share * 100.0)),
            text(done),
            text(total),
            text(rate.round()),
            text(if foreground { "foreground" } else { "background" }),
        ])
    }

    fn epoch_rows(&self) -> Vec<StatusRow> {
        let epochs = self.shared.epochs.lock();
        epochs
            .iter()
            .rev()
            .map(|e| vec![text(e.epoch), text(e.timestamp_us), text(e.tables), text(e.rows)])
            .collect()
    }

    fn memory_rows(&self) -> Vec<StatusRow> {
        let memory = &self.shared.memory;
        let share = |share: &Share| {
            vec![
                text(share.name()),
                text(memory.used(*share)),
                text(memory.share(*share)),
            ]
        };
        let mut rows: Vec<StatusRow> = Share::ALL.iter().map(share).collect();
        rows.push(vec![text("all"), text(memory.used_in_all()), text(memory.limit())]);
        let tier = self.shared.tier.stats();
        rows.push(vec![text("cold tier, on disk"), text(tier.bytes), None]);
        rows
    }

    fn checkpoint_rows(&self) -> Vec<StatusRow> {
        let checkpoints = self.shared.checkpoints.lock();
        let row = |c: &super::shared::CheckpointInfo| {
            vec![
                text(c.number),
                text(c.epoch),
                text(c.regions),
                text(c.files),
                text(c.bytes),
                text(c.seconds),
            ]
        };
        checkpoints.iter().rev().map(row).collect()
    }

    fn source_rows(&self) -> Vec<StatusRow> {
        let mut rows = Vec::new();
        for (id, source) in &self.sources {
            let object = self.catalog.get(*id);
            let connector = object.and_then(source_def).map(|d| d.connector.clone());
            let next = source.state.next();
            let finished = source.driver.finished(&next);
            let status = source.driver.status();
            let error = source.failed.clone().or(status.error);
            let word = match (&source.failed, &error) {
                (Some(_), _) => "failed",
                (None, Some(_)) => "waiting",
                (None, None) if finished => "finished",
                (None, None) if !self.is_read(*id) => "idle",
                (None, None) => "running",
            };
            let letters = self.letters.counts.get(id).copied().unwrap_or(0);
            for (split, state) in source.state.splits.iter().enumerate() {
                let end = status.ends.get(split).copied().flatten().map(|e| e.max(state.next));
                rows.push(vec![
                    text(id),
                    object.map(|o| o.name.clone()),
                    connector.clone(),
                    text(split),
                    text(state.next),
                    text(finished),
                    text(&state.info.name),
                    end.map(|e| e.to_string()),
                    end.map(|e| (e - state.next).to_string()),
                    text(word),
                    error.clone(),
                    text(letters),
                ]);
            }
        }
        rows
    }
}

fn task_rows(r: &RegionCtl) -> Vec<StatusRow> {
    let tasks = r
        .dataflow
        .as_ref()
        .map(crate::dataflow::Region::tasks)
        .unwrap_or_default();
    let row = |t: crate::dataflow::TaskInfo| {
        vec![
            text(r.id),
            text(t.fragment),
            text(t.task),
            text(t.incarnation),
            text(t.epoch),
            text(t.rows_in),
            text(t.rows_out),
            text(t.state_bytes),
            text(t.late_slices),
            text(t.longest_slice_us),
        ]
    };
    tasks.into_iter().map(row).collect()
}

fn error_rows(r: &RegionCtl) -> Vec<StatusRow> {
    let row = |(expression, message, rows, epoch): &(String, String, u64, u64)| {
        vec![
            text(r.id),
            text(&r.name),
            text(expression),
            text(message),
            text(rows),
            text(epoch),
        ]
    };
    r.meta.errors.iter().map(row).collect()
}
