//! Sinks in the coordinator: a sink's finished steps go to its delivery first, and count when they come back.
//!
//! A sink that is filled for the first time delivers nothing before a checkpoint holds the epochs at which its inputs are pinned:
//! after a restart without one, other epochs would be chosen, and rows already delivered could not be told from others.

use levee_planner::catalog::{CatalogObject, ObjectKind, SinkDef};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;
use rand::TryRngCore;

use super::StatusRow;
use super::control::{Control, Event};
use super::region::{Frozen, RegionCtl};
use crate::dataflow::{RootMode, StateDelta, StepResult};
use crate::sinks::delivery::{DeliverySpec, Outcome};
use crate::sinks::{Delivery, Journal, Marker};
use crate::{Result, RuntimeError};

/// Columns of `levee_catalog.sinks`.
const SINK_COLUMNS: usize = 10;
/// A sink gathers at most this part of the memory budget …
const GATHER_SHARE: usize = 32;
/// … and takes no step that changes more than this part.
const STEP_SHARE: usize = 8;

/// Looks at the target of a sink that is to be created, and gives the sink its identity.
///
/// # Errors
/// The target cannot take the sink's rows, or belongs to another sink.
pub(super) async fn prepare(object: &mut CatalogObject) -> Result<()> {
    let ObjectKind::Sink(def) = &mut object.kind else {
        return Ok(());
    };
    if def.connector == "blackhole" {
        return Ok(());
    }
    def.incarnation = rand::rngs::OsRng
        .try_next_u64()
        .map_err(|e| RuntimeError::internal(format!("no random number for a sink's identity: {e}")))?;
    let def = def.clone();
    tokio::task::spawn_blocking(move || crate::sinks::check(&def))
        .await
        .map_err(|e| RuntimeError::internal(format!("the sink's target could not be looked at: {e}")))?
}

/// What becomes of the output of a sink's region: changes sorted by the key of the target, else of the stream.
pub(super) fn root(def: &SinkDef, stream_key: Vec<usize>) -> RootMode {
    if def.connector == "blackhole" {
        return RootMode::Discard;
    }
    let order = if def.key.is_empty() {
        stream_key
    } else {
        def.key.clone()
    };
    RootMode::Materialize { order }
}

impl Control {
    /// Starts a sink's delivery. `restored`: the epoch of its region's checkpoint, and the rows of a backfill in it.
    pub(super) fn start_delivery(
        &mut self,
        object: &CatalogObject,
        def: &SinkDef,
        restored: Option<(u64, Option<u64>)>,
    ) -> Result<Delivery> {
        let path = self.shared.config.data_dir.join("sinks").join(object.id.to_string());
        let journal = Journal::open(std::sync::Arc::clone(&self.shared.fs), &path)?;
        self.stops.extend(journal.epochs());
        let restored = restored.map(|(epoch, rows)| Marker {
            epoch,
            part: rows.unwrap_or(Marker::WHOLE),
        });
        let spec = DeliverySpec {
            name: object.name.clone(),
            def: def.clone(),
            journal,
            restored,
            gather_bytes_max: self.shared.config.memory_limit / GATHER_SHARE,
            step_bytes_max: (self.shared.config.memory_limit / STEP_SHARE) as u64,
        };
        let (id, events) = (object.id, self.events.clone());
        let outcome = move |outcome| {
            let event = match outcome {
                Outcome::Done(result) => Event::Delivered(id, result),
                Outcome::Failed(reason) => Event::RegionFailed(id, reason),
            };
            if events.send(event).is_err() {
                tracing::debug!("a delivery ended after the coordinator");
            }
        };
        Delivery::start(spec, Box::new(outcome))
    }

    /// A sink that was given up in an earlier life is dropped: nobody else would remove its journal.
    pub(super) fn forget_journal(&self, id: ObjectId) {
        let path = self.shared.config.data_dir.join("sinks").join(id.to_string());
        match Journal::open(std::sync::Arc::clone(&self.shared.fs), &path) {
            Ok(mut journal) if !journal.is_fresh() => journal.remove(),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a dropped sink's journal stays"),
        }
    }

    /// Hands a sink's step to its delivery; other regions' steps come back at once.
    pub(super) fn deliver(&mut self, id: ObjectId, result: Box<StepResult>) -> Option<Box<StepResult>> {
        let region = self.regions.get(&id).filter(|r| r.failed.is_none())?;
        let Some(delivery) = &region.delivery else {
            return Some(result);
        };
        let step = region.in_flight.iter().find(|s| s.seq == result.seq)?;
        let to = if step.is_backfill {
            Marker {
                epoch: step.to,
                part: step.backfill_rows,
            }
        } else {
            Marker::whole(step.to)
        };
        if region.stop_on_error && !result.errors.is_empty() {
            self.stopped_by_error(id, &result);
            return None;
        }
        delivery.submit(to, result);
        None
    }

    /// Puts a sink's pins into the next checkpoint, and asks for one.
    pub(super) fn freeze_pins(&mut self, id: ObjectId) {
        let Some(region) = self.regions.get_mut(&id) else {
            return;
        };
        let Some(backfill) = region.backfill.as_mut().filter(|b| !b.frozen) else {
            return;
        };
        backfill.frozen = true;
        let pins = backfill.meta();
        let epoch = region.submitted();
        let meta = region.encode_meta(Some(pins));
        self.frozen.push(Frozen {
            region: id,
            epoch,
            step_seq: None,
            state: StateDelta::default(),
            relation: None,
            relation_seq: 0,
            meta,
        });
        self.ask_for_checkpoint();
    }

    /// Rows of `levee_catalog.sinks`.
    pub(super) fn sink_rows(&self) -> Vec<StatusRow> {
        let given_up = self.catalog.objects().filter(|o| !self.regions.contains_key(&o.id));
        let given_up = given_up.filter_map(|o| {
            let (ObjectKind::Sink(def), JobState::Failed(reason)) = (&o.kind, self.catalog.job(o.id)) else {
                return None;
            };
            let (id, name, connector) = (o.id.to_string(), o.name.clone(), def.connector.clone());
            let mut row = vec![
                Some(id),
                Some(name),
                Some(connector),
                Some("failed".to_owned()),
                Some(reason.clone()),
            ];
            row.resize(SINK_COLUMNS, None);
            Some(row)
        });
        self.regions
            .values()
            .filter_map(|r| self.sink_row(r))
            .chain(given_up)
            .collect()
    }

    fn sink_row(&self, region: &RegionCtl) -> Option<StatusRow> {
        let delivery = region.delivery.as_ref()?;
        let object = self.catalog.get(region.id)?;
        let ObjectKind::Sink(def) = &object.kind else {
            return None;
        };
        let status = delivery.status();
        let lag_epochs = self.cut.saturating_sub(region.frontier());
        let lag_ms = match region.in_flight.front() {
            Some(step) if lag_epochs > 0 => {
                let since = self.timeline.timestamp_us(step.from + 1);
                (self.shared.now_us() - since).max(0) / 1000
            }
            _ => 0,
        };
        let text = |n: u64| Some(n.to_string());
        let failed = region.failed.is_some();
        Some(vec![
            Some(region.id.to_string()),
            Some(object.name.clone()),
            Some(def.connector.clone()),
            Some(if failed { "failed" } else { status.phase.name() }.to_owned()),
            region.failed.clone().or(status.error),
            text(region.frontier()),
            status.delivered.map(|m| m.epoch.to_string()),
            text(lag_epochs),
            Some(lag_ms.to_string()),
            text(status.gathered_bytes as u64),
        ])
    }
}
