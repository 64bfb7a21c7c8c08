//! Objects come and go: what DDL does to the coordinator's regions and sources.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp, ObjectKind};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;

use super::backfill::Backfill;
use super::control::{Control, Events, error_text};
use super::record::EpochRecord;
use super::region::{Place, RegionCtl, RegionKind, RegionMeta};
use super::shared::RegionStatus;
use super::sources::{SourceState, source_def};
use crate::Result;
use crate::dataflow::{Region, RegionSpec, RootMode, StateReader};
use crate::relation::{Base, Relation, RowOrder};

impl Control {
    pub(super) fn apply(&mut self, op: &CatalogOp, record: &EpochRecord) {
        let before = Arc::clone(&self.catalog);
        let mut catalog = Catalog::clone(&before);
        catalog.apply(op);
        self.catalog = Arc::new(catalog);
        match op {
            CatalogOp::Create(object) => {
                let empty =
                    |op: &CatalogOp| matches!(op, CatalogOp::SetJob(id, JobState::Unpopulated) if *id == object.id);
                if !record.ops.iter().any(empty)
                    && let Err(error) = self.add_object(object, record)
                {
                    self.on_start_failed(object.id, error_text(&error));
                }
            }
            CatalogOp::Drop(id) => self.remove_object(*id),
            CatalogOp::SetJob(id, state) => self.set_job(*id, before.job(*id), state, record),
            CatalogOp::Replace(object) => {
                self.redefine_source(object);
                if let Some(region) = self.regions.get_mut(&object.id) {
                    region.name.clone_from(&object.name);
                    let shown = region
                        .relation
                        .as_ref()
                        .map(|r| r.set_schema(Arc::clone(object.schema())));
                    if let Some(Err(error)) = shown {
                        self.on_region_failed(object.id, error_text(&error));
                    }
                }
            }
            CatalogOp::PutNamespace(_) | CatalogOp::DropNamespace(_) | CatalogOp::Sequence(..) => {}
        }
    }

    pub(super) fn remove_object(&mut self, id: ObjectId) {
        if let Some(region) = self.regions.remove(&id) {
            self.work.remove(id, &region.inputs);
            self.timers.remove(id);
            if let Some(dataflow) = region.dataflow {
                dataflow.stop();
            }
            if let Some(delivery) = region.delivery {
                delivery.release();
            }
        } else if !self.recovering {
            self.forget_journal(id);
        }
        if let Some(source) = self.sources.remove(&id) {
            source.driver.stop();
            self.forget_letters(id);
        }
        let gone = self
            .table_writes
            .remove(&id)
            .into_iter()
            .flatten()
            .flat_map(|(_, deltas)| deltas);
        let gone: usize = gone.map(|delta| delta.bytes()).sum();
        self.queued.set(self.queued.bytes().saturating_sub(gone));
        self.frozen.retain(|f| f.region != id);
        self.shared.remove(id);
    }

    /// A new object, empty as of `epoch`.
    pub(super) fn add_object(&mut self, object: &CatalogObject, record: &EpochRecord) -> Result<()> {
        let epoch = record.epoch;
        if let Some(def) = source_def(object) {
            let splits = record.splits.iter().find(|(id, _)| *id == object.id);
            let state = SourceState::new(record.timestamp_us, splits.map_or(&[][..], |(_, s)| s));
            self.add_source(object, def, state)?;
        }
        match &object.kind {
            ObjectKind::View(_) | ObjectKind::Source(_) | ObjectKind::Sequence(_) => Ok(()),
            ObjectKind::Table(_) | ObjectKind::Index(_) | ObjectKind::MaterializedView(_) | ObjectKind::Sink(_) => {
                // The same epoch may bring the first rows.
                let first_rows = record.writes.iter().any(|(id, _)| *id == object.id);
                let epoch = epoch - u64::from(first_rows);
                let base = Base::empty(epoch);
                self.add_region(object, base, None, None, epoch)
            }
        }
    }

    /// Starts a region whose relation holds `base` and whose operators restore from `state`.
    pub(super) fn add_region(
        &mut self,
        object: &CatalogObject,
        base: Base,
        state: Option<Arc<dyn StateReader>>,
        meta: Option<RegionMeta>,
        epoch: u64,
    ) -> Result<()> {
        let kind = match &object.kind {
            ObjectKind::Table(_) | ObjectKind::Index(_) => RegionKind::Table,
            ObjectKind::Sink(_) => RegionKind::Sink,
            _ => RegionKind::View,
        };
        let key = storage_key(object);
        let relation = if kind == RegionKind::Sink {
            None
        } else {
            let order = Arc::new(RowOrder::new(Arc::clone(object.schema()), key.clone())?);
            let clock = Arc::clone(&self.shared.clock_epoch);
            let spill = self
                .shared
                .config
                .data_dir
                .join("spill")
                .join(format!("{}-runs", object.id));
            let relation = Relation::with_clock(object.id, order, base, clock).bounded(&self.shared.memory, spill)?;
            Some(Arc::new(relation))
        };
        let restored = state.is_some();
        let inputs = object
            .stream_plan()
            .map(levee_planner::plan::StreamPlan::inputs)
            .unwrap_or_default();
        let root = match &object.kind {
            ObjectKind::Sink(def) => super::delivering::root(def, key),
            _ => RootMode::Materialize { order: key },
        };
        let dataflow = match object.stream_plan() {
            None => None,
            Some(plan) => {
                let drivers = inputs
                    .iter()
                    .filter_map(|i| Some((*i, Arc::clone(&self.sources.get(i)?.driver))))
                    .collect();
                let spec = RegionSpec {
                    id: object.id,
                    name: object.name.clone(),
                    graph: levee_planner::stream::fragment(plan),
                    parallelism: self.shared.config.parallelism,
                    sources: drivers,
                    root,
                    channel_bytes: self.shared.channel_bytes(),
                    spill_dir: self.shared.config.data_dir.join("spill").join(object.id.to_string()),
                    memory: Arc::clone(&self.shared.memory),
                };
                Some(Region::start(
                    &self.executor,
                    spec,
                    state,
                    Arc::new(Events(self.events.clone())),
                )?)
            }
        };
        let meta = meta.unwrap_or_else(|| RegionMeta {
            created: epoch,
            ..RegionMeta::default()
        });
        // A table's own log begins with it.
        let building = dataflow.is_some() && kind != RegionKind::Table && !(restored && meta.backfill.is_none());
        let resume = |pins| Backfill::resume(pins, meta.steps > 0);
        let backfill = building.then(|| meta.backfill.as_ref().map_or_else(Backfill::default, resume));
        let delivery = match &object.kind {
            ObjectKind::Sink(def) => {
                let rows = backfill.as_ref().map(|b| b.rows_done);
                Some(self.start_delivery(object, def, restored.then_some((epoch, rows)))?)
            }
            _ => None,
        };
        let began_rows = backfill.as_ref().map_or(0, |b| b.rows_done);
        let options = match &object.kind {
            ObjectKind::MaterializedView(v) => Some(&v.options),
            ObjectKind::Sink(s) => Some(&s.options),
            _ => None,
        };
        let region = RegionCtl {
            id: object.id,
            name: object.name.clone(),
            kind,
            inputs,
            dataflow,
            relation: relation.clone(),
            next_seq: 0,
            place: Place::new(epoch, Arc::clone(&self.shared.clock_epoch)),
            in_flight: VecDeque::new(),
            starts: meta.starts.iter().copied().collect(),
            backfill,
            checkpoint_target: None,
            dirty: !restored,
            frozen_relation_seq: 0,
            unfinished_relation_seqs: Vec::new(),
            completed_epoch: restored.then_some(epoch),
            completed_seq: None,
            completed_relation_seq: 0,
            began: (Instant::now(), began_rows),
            paused: *self.catalog.job(object.id) == JobState::Paused,
            stand_at: epoch,
            detached: false,
            failed: None,
            timed: object
                .stream_plan()
                .is_some_and(levee_planner::plan::StreamPlan::is_timed),
            stop_on_error: options.and_then(|o| o.get("on_error")).is_some_and(|v| v == "stop"),
            delivery,
            meta,
        };
        let status = match (region.visible(), self.recovering) {
            (true, _) => RegionStatus::Running,
            (false, true) => RegionStatus::Rebuilding,
            (false, false) => RegionStatus::Building,
        };
        self.work.add(object.id, &region.inputs);
        if !region.meta.awaits.is_empty() {
            self.awaiting.insert(object.id);
        }
        self.timers.set(object.id, None, region.meta.next_timer_us);
        if status == RegionStatus::Running {
            self.work.hidden.remove(&object.id);
        }
        if region.dirty {
            self.work.changed.insert(object.id);
        }
        self.shared.add(object.id, relation, status);
        self.regions.insert(object.id, region);
        Ok(())
    }
}

/// The columns by which an object's rows are stored first: a table's primary key, a unique
/// constraint's columns, a view's shortest derived key.
pub(super) fn storage_key(object: &CatalogObject) -> Vec<usize> {
    match &object.kind {
        ObjectKind::Table(t) => t.primary_key.clone(),
        ObjectKind::Index(i) => (0..i.columns.len()).collect(),
        _ => {
            let keys = object.stream_plan().map(|p| &p.root.props.keys);
            keys.and_then(|k| k.iter().min_by_key(|k| k.len()).cloned())
                .unwrap_or_default()
        }
    }
}
