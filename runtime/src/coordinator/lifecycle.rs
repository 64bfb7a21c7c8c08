//! What sessions may do with a job's life: create it in the foreground or background, empty, fill, pause, resume and cancel it.
//!
//! A foreground creation is the client's: when the client goes, by a cancel, a time-out, a lost connection or a crash of the server,
//! the object goes too, unless something that outlives the client reads it by then. The record that ends it (`Running`) is durable
//! before the client hears of success. A background creation is the server's: it goes on after a restart until it is complete or
//! cancelled.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp, ObjectKind};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;
use tokio::sync::oneshot;

use super::Engine;
use super::sequencer::{DdlRequest, Request};
use super::shared::RegionStatus;
use crate::{Result, RuntimeError};

/// How often a change of state is tried again when the catalog changes meanwhile.
const TRIES: usize = 100;

/// When CREATE of a streaming job answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// When it is complete.
    Wait,
    /// At once; it is built beside.
    Background,
    /// At once; it is not built before it is refreshed.
    NoData,
}

impl CreateMode {
    /// The state in which a new job begins, if not the ordinary one.
    pub(super) fn first_state(self) -> Option<JobState> {
        match self {
            Self::Wait => Some(JobState::Creating),
            Self::Background => None,
            Self::NoData => Some(JobState::Unpopulated),
        }
    }
}

/// Undoes what a statement has begun when whoever waits for it goes away.
pub(super) struct Undo<'a> {
    requests: &'a Sender<Request>,
    request: Option<Request>,
}

impl Undo<'_> {
    fn done(&mut self) {
        self.request = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take()
            && self.requests.send(request).is_err()
        {
            tracing::debug!("a statement was cancelled while stopping");
        }
    }
}

fn not_now(message: String, hint: &str) -> RuntimeError {
    RuntimeError::User {
        code: "55000",
        message,
        hint: Some(hint.to_owned()),
    }
}

impl Engine {
    /// Checks that a job's inputs can be read at all.
    pub(super) fn check_inputs(&self, catalog: &Catalog, object: &CatalogObject) -> Result<()> {
        for input in object
            .stream_plan()
            .map(levee_planner::plan::StreamPlan::inputs)
            .unwrap_or_default()
        {
            let name = catalog.get(input).map_or("", |o| o.name.as_str());
            match catalog.job(input) {
                JobState::Unpopulated => return Err(super::unpopulated(name)),
                JobState::Failed(reason) => {
                    let message = format!("\"{name}\" has stopped: {reason}");
                    return Err(not_now(message, "ALTER MATERIALIZED VIEW … RESUME builds it again."));
                }
                JobState::Running | JobState::Creating | JobState::Paused => {}
            }
        }
        Ok(())
    }

    /// Waits until an object made in `epoch` is complete; `logged`: a streaming job in the state `Creating`. Dropping the future
    /// removes it.
    pub(super) async fn created(&self, id: ObjectId, epoch: u64, logged: bool) -> Result<()> {
        let mut undo = Undo {
            requests: &self.requests,
            request: Some(Request::Abandon(id)),
        };
        self.applied(epoch).await?;
        let built = self.built(id).await;
        if self.catalog().get(id).is_none() {
            undo.done();
        }
        built?;
        if logged {
            self.ddl(None, vec![CatalogOp::SetJob(id, JobState::Running)], Vec::new())
                .await?;
        }
        undo.done();
        Ok(())
    }

    /// Waits until a job is complete, whoever has asked for it.
    async fn built(&self, id: ObjectId) -> Result<()> {
        let mut progress = self.shared.progress.subscribe();
        loop {
            match self.shared.entry(id).map(|e| e.status) {
                Some(RegionStatus::Running | RegionStatus::Standing(_)) => return Ok(()),
                Some(RegionStatus::Failed(reason)) => return Err(RuntimeError::user("58000", reason)),
                Some(RegionStatus::Unpopulated) => return Err(super::unpopulated("")),
                Some(RegionStatus::Building | RegionStatus::Rebuilding) | None => {}
            }
            if self.catalog().get(id).is_none() {
                let message = "the object was dropped while it was being built";
                return Err(RuntimeError::user("57014", message));
            }
            progress.changed().await.map_err(|_| RuntimeError::ShuttingDown)?;
        }
    }

    /// REFRESH MATERIALIZED VIEW: answers when the view holds everything committed before the call. A view that is not populated
    /// is built (`wait`: and the answer waits for that; dropping the future empties it again).
    ///
    /// # Errors
    /// It is paused or has stopped.
    pub async fn refresh(&self, id: ObjectId, wait: bool) -> Result<()> {
        let (name, state) = self.job(id)?;
        match state {
            JobState::Unpopulated => {
                self.ddl(None, vec![CatalogOp::SetJob(id, JobState::Running)], Vec::new())
                    .await?;
                if !wait {
                    return Ok(());
                }
                let (reply, _nobody) = oneshot::channel();
                let empty = DdlRequest {
                    ops: vec![CatalogOp::SetJob(id, JobState::Unpopulated)],
                    ..DdlRequest::default()
                };
                let mut undo = Undo {
                    requests: &self.requests,
                    request: Some(Request::Ddl(Box::new(empty), reply)),
                };
                self.built(id).await?;
                undo.done();
                Ok(())
            }
            JobState::Paused => Err(not_now(
                format!("materialized view \"{name}\" is paused"),
                "ALTER MATERIALIZED VIEW … RESUME lets it go on.",
            )),
            JobState::Failed(reason) => Err(not_now(
                format!("materialized view \"{name}\" has stopped: {reason}"),
                "ALTER MATERIALIZED VIEW … RESUME builds it again.",
            )),
            JobState::Running | JobState::Creating => {
                let epoch = self.newest_epoch();
                self.built(id).await?;
                self.caught_up(id, epoch).await
            }
        }
    }

    async fn caught_up(&self, id: ObjectId, epoch: u64) -> Result<()> {
        let mut progress = self.shared.progress.subscribe();
        loop {
            let entry = self.shared.entry(id).ok_or(RuntimeError::NoObject(id))?;
            if let RegionStatus::Standing(why) = &entry.status {
                return Err(RuntimeError::user("55000", why.clone()));
            }
            if self.relation(id)?.frontier() >= epoch {
                return Ok(());
            }
            progress.changed().await.map_err(|_| RuntimeError::ShuttingDown)?;
        }
    }

    /// REFRESH MATERIALIZED VIEW … WITH NO DATA: the view's rows and state go. Nothing may read it.
    ///
    /// # Errors
    /// Something reads the view.
    pub async fn empty(&self, id: ObjectId) -> Result<()> {
        self.change(|catalog| {
            if catalog.dependents(id).is_empty() {
                return Ok(vec![CatalogOp::SetJob(id, JobState::Unpopulated)]);
            }
            Err(RuntimeError::user(
                "2BP01",
                "cannot empty the materialized view because other objects depend on it",
            ))
        })
        .await
    }

    /// ALTER … PAUSE. Answers whether anything changed.
    ///
    /// # Errors
    /// It does not run.
    pub async fn pause(&self, id: ObjectId) -> Result<bool> {
        let (name, state) = self.job(id)?;
        match state {
            JobState::Paused => return Ok(false),
            JobState::Running | JobState::Creating => {}
            JobState::Unpopulated => return Err(super::unpopulated(&name)),
            JobState::Failed(reason) => {
                return Err(RuntimeError::user("55000", format!("\"{name}\" has stopped: {reason}")));
            }
        }
        self.change(|_| Ok(vec![CatalogOp::SetJob(id, JobState::Paused)]))
            .await?;
        Ok(true)
    }

    /// ALTER … RESUME; what has failed is built again from scratch, together with what reads it (`wait`: until that is done).
    /// Answers whether anything changed.
    ///
    /// # Errors
    /// A sink is among them, whose target would be told of everything once more; a view cannot be built.
    pub async fn resume(&self, id: ObjectId, wait: bool) -> Result<bool> {
        let (name, state) = self.job(id)?;
        let rebuilt = match state {
            JobState::Running | JobState::Creating => return Ok(false),
            JobState::Unpopulated => return Err(super::unpopulated(&name)),
            JobState::Paused => false,
            JobState::Failed(_) => true,
        };
        let mut last = Vec::new();
        self.change(|catalog| {
            last = if rebuilt { failed_with(catalog, id)? } else { vec![id] };
            let ops = last.iter().map(|id| CatalogOp::SetJob(*id, JobState::Running));
            Ok(ops.collect())
        })
        .await?;
        if rebuilt && wait {
            for id in last {
                self.built(id).await?;
            }
        }
        Ok(true)
    }

    /// CANCEL JOBS: ends the building of these. Answers their names.
    ///
    /// # Errors
    /// One of them is not being built, or something reads it.
    pub async fn cancel_jobs(&self, ids: &[ObjectId]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.change(|catalog| {
            names.clear();
            let mut ops = Vec::new();
            for id in ids {
                let object = catalog.get(*id).filter(|_| self.is_building(*id));
                let object = object.ok_or_else(|| RuntimeError::User {
                    code: "42704",
                    message: format!("job {id} does not exist"),
                    hint: Some("SHOW JOBS lists what is being built; DROP removes what is complete.".to_owned()),
                })?;
                if let Some(reader) = catalog.dependents(*id).iter().find(|d| !ids.contains(&d.id)) {
                    return Err(RuntimeError::User {
                        code: "2BP01",
                        message: format!("cannot cancel job {id} because other objects depend on it"),
                        hint: Some(format!("\"{}\" reads it: drop that first.", reader.name)),
                    });
                }
                names.push(object.name.clone());
                ops.push(CatalogOp::Drop(*id));
            }
            ops.reverse();
            Ok(ops)
        })
        .await?;
        Ok(names)
    }

    fn is_building(&self, id: ObjectId) -> bool {
        let status = self.shared.entry(id).map(|e| e.status);
        matches!(status, Some(RegionStatus::Building | RegionStatus::Rebuilding) | None)
    }

    fn job(&self, id: ObjectId) -> Result<(String, JobState)> {
        let catalog = self.catalog();
        let object = catalog.get(id).ok_or(RuntimeError::NoObject(id))?;
        Ok((object.name.clone(), catalog.job(id).clone()))
    }

    /// Changes the catalog by what `ops` makes of the newest one.
    async fn change(&self, mut ops: impl FnMut(&Catalog) -> Result<Vec<CatalogOp>>) -> Result<()> {
        for _ in 0..TRIES {
            let catalog = self.catalog();
            let ops = ops(&catalog)?;
            match self.ddl(Some(&catalog), ops, Vec::new()).await {
                Err(RuntimeError::Conflict) => {}
                other => return other.map(|_| ()),
            }
        }
        Err(RuntimeError::user("40001", "the catalog changed too often meanwhile"))
    }
}

/// A failed view and the failed views that read it, in topological order.
fn failed_with(catalog: &Catalog, id: ObjectId) -> Result<Vec<ObjectId>> {
    let mut reached = BTreeSet::from([id]);
    let mut failed = Vec::new();
    for object in catalog.objects() {
        if object.id != id && !object.depends_on.iter().any(|d| reached.contains(d)) {
            continue;
        }
        reached.insert(object.id);
        if !matches!(catalog.job(object.id), JobState::Failed(_)) {
            continue;
        }
        let inputs = object
            .stream_plan()
            .map(levee_planner::plan::StreamPlan::inputs)
            .unwrap_or_default();
        let lost = |i: &ObjectId| matches!(catalog.job(*i), JobState::Failed(_)) && !failed.contains(i);
        if let Some(input) = inputs.into_iter().find(lost) {
            if object.id != id {
                continue;
            }
            let name = catalog.get(input).map_or("", |o| o.name.as_str());
            let message = format!("\"{name}\", which \"{}\" reads, has stopped", object.name);
            return Err(not_now(message, "Resume that: what reads it is built again with it."));
        }
        if matches!(object.kind, ObjectKind::Sink(_)) {
            return Err(RuntimeError::User {
                code: "55000",
                message: format!("sink \"{}\" would send everything once more", object.name),
                hint: Some("Drop the sink first, and create it again afterwards.".to_owned()),
            });
        }
        failed.push(object.id);
    }
    Ok(failed)
}
