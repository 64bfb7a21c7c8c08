//! Sources in the timeline: which splits they have, how far each is cut, and what the next epoch takes.
//!
//! ```text
//!   driver.poll_splits ─▶ record.splits ─durable─▶ driver.add_split
//!   driver.cut         ─▶ record.ranges ─durable─▶ cuts (until every reader has taken them), history (for ever)
//! ```
//!
//! A split's *history* is what has been cut of it, as ranges with their checks, joined up to about [`HISTORY_RECORDS`] records each: some 50
//! bytes for every 64 k records, and the unit in which a younger view reads them again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use levee_planner::catalog::{CatalogObject, ObjectKind, SourceDef, SourceFormat};
use levee_planner::plan::ObjectId;
use serde::{Deserialize, Serialize};

use super::control::{Control, Event, PACED_RETRY, error_text};
use super::dead_letters::DEAD_LETTERS;
use super::region::{RegionCtl, RegionKind};
use super::replays::KeptLetters;
use super::sequencer::{Request, SourceCut};
use crate::Result;
use crate::sources::replay::{REPLAYS, Replaying};
use crate::sources::versions::Versions;
use crate::sources::{self, CutRequest, DriverContext, SourceDriver, SplitInfo, SplitRange};

/// Records that one epoch takes from a source, per task.
const CUT_ROWS_PER_TASK: u64 = 32_768;
/// Epochs of a source that its fastest reader may be behind before the next is cut.
const CUTS_AHEAD_MAX: usize = 3;
/// Records, and bytes, of a joined range in a split's history.
const HISTORY_RECORDS: u64 = 65_536;
const HISTORY_BYTES: u64 = 8 << 20;

/// A split's place in the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitState {
    /// As found.
    pub info: SplitInfo,
    /// First offset that is not cut yet.
    pub next: u64,
    /// What was cut, from `info.start` to `next`.
    pub history: Vec<SplitRange>,
}

/// A source's place in the timeline.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// When it was created, microseconds since 1970.
    pub created_us: i64,
    /// How often splits were added after the first ones, or dead letters replayed.
    pub generation: u32,
    /// By number.
    pub splits: Vec<SplitState>,
    /// The definition's revision.
    pub revision: u32,
    /// Options of ENCODE by the first revision that each holds for.
    pub versions: Vec<(u32, BTreeMap<String, String>)>,
    /// Replays of dead letters.
    pub replays: Vec<SplitRange>,
}

impl SourceState {
    /// A new source with its first splits.
    pub fn new(created_us: i64, splits: &[SplitInfo]) -> Self {
        let mut state = Self {
            created_us,
            ..Self::default()
        };
        state.add(splits);
        state
    }

    /// The source is defined so from its revision on.
    fn define(&mut self, def: &SourceDef) {
        self.revision = def.revision;
        if self.versions.last().is_none_or(|(_, o)| *o != def.encode_options) {
            self.versions.push((def.revision, def.encode_options.clone()));
        }
    }

    /// Every definition that some range may need.
    fn definitions(&self, def: &SourceDef) -> Versions {
        let versions = Versions::default();
        for (revision, encode_options) in &self.versions {
            versions.add(&SourceDef {
                revision: *revision,
                encode_options: encode_options.clone(),
                ..def.clone()
            });
        }
        versions
    }

    fn add(&mut self, splits: &[SplitInfo]) {
        self.splits.extend(splits.iter().map(|info| SplitState {
            info: info.clone(),
            next: info.start,
            history: Vec::new(),
        }));
    }

    /// First offset of each split that is not cut yet.
    pub fn next(&self) -> Vec<u64> {
        self.splits.iter().map(|s| s.next).collect()
    }

    /// Takes a range that was cut; one that it has taken already changes nothing.
    fn advance(&mut self, range: &SplitRange) {
        if range.split == REPLAYS {
            if self.replays.last().is_none_or(|last| last.from < range.from) {
                self.replays.push(SplitRange {
                    generation: self.generation,
                    ..*range
                });
                // What is cut from here on comes behind it.
                self.generation += 1;
            }
            return;
        }
        let Some(split) = self.splits.get_mut(range.split as usize) else {
            return;
        };
        if range.to <= split.next {
            return;
        }
        split.next = range.to;
        let small = |r: &SplitRange| {
            r.check
                .is_none_or(|c| c.records < HISTORY_RECORDS && c.bytes < HISTORY_BYTES)
        };
        let joined = split.history.last().filter(|l| small(l)).and_then(|l| l.join(range));
        match (joined, split.history.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => split.history.push(*range),
        }
    }

    /// Everything cut so far, older generations first.
    pub fn history(&self) -> Vec<SplitRange> {
        let mut ranges: Vec<SplitRange> = self.splits.iter().flat_map(|s| s.history.iter().copied()).collect();
        // A replay comes behind all splits of its generation.
        ranges.extend(&self.replays);
        ranges.sort_by_key(|r| r.generation);
        ranges
    }
}

/// The coordinator's view of one source.
pub struct SourceCtl {
    /// Driver.
    pub driver: Arc<dyn SourceDriver>,
    /// How its records are decoded.
    versions: Arc<Versions>,
    /// The fold of the timeline.
    pub state: SourceState,
    /// Ranges per epoch that some reader may still need.
    pub cuts: VecDeque<(u64, Vec<SplitRange>)>,
    /// Its records are keyed changes, of which compaction may take the older ones.
    pub keyed: bool,
    /// Why nothing more can be cut.
    pub failed: Option<String>,
}

/// The source that an object is or ingests from.
pub(super) fn source_def(object: &CatalogObject) -> Option<&SourceDef> {
    match &object.kind {
        ObjectKind::Source(def) => Some(def),
        ObjectKind::Table(table) => table.ingest.as_ref().map(|i| &i.source),
        _ => None,
    }
}

impl Control {
    /// Starts a source's driver, where `state` says that it is.
    pub(super) fn add_source(&mut self, object: &CatalogObject, def: &SourceDef, mut state: SourceState) -> Result<()> {
        let events = self.events.clone();
        let id = object.id;
        state.define(def);
        let versions = Arc::new(state.definitions(def));
        let tell: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(move |event| {
            if events.send(event).is_err() {
                tracing::debug!("a source has news after the coordinator's end");
            }
        });
        let (wake, letters) = (Arc::clone(&tell), Arc::clone(&tell));
        let context = DriverContext {
            id,
            name: object.name.clone(),
            wake: Arc::new(move || wake(Event::SourceReady)),
            dead_letters: Arc::new(move |found| letters(Event::DeadLetters(id, found))),
            compacted: Arc::new(move |split, end| tell(Event::Compacted(id, split, end))),
            governor: Arc::clone(&self.shared.memory),
            versions: Arc::clone(&versions),
            buffer_bytes: self.shared.source_bytes(),
        };
        let driver = sources::driver(def, context)?;
        let letters = self.regions.get(&DEAD_LETTERS).and_then(|r| r.relation.as_ref());
        let driver: Arc<dyn SourceDriver> = match letters {
            None => driver,
            Some(relation) => {
                let kept = KeptLetters {
                    relation: Arc::clone(relation),
                    source: id,
                };
                Arc::new(Replaying::new(driver, Arc::clone(&versions), Arc::new(kept)))
            }
        };
        for (number, split) in (0u32..).zip(&state.splits) {
            driver.add_split(number, &split.info)?;
        }
        self.sources.insert(
            object.id,
            SourceCtl {
                driver,
                versions,
                state,
                cuts: VecDeque::new(),
                keyed: matches!(def.format, SourceFormat::Upsert | SourceFormat::Debezium),
                failed: None,
            },
        );
        Ok(())
    }

    /// ALTER has changed how a source's records are decoded, or replays dead letters.
    pub(super) fn redefine_source(&mut self, object: &CatalogObject) {
        if let (Some(def), Some(source)) = (source_def(object), self.sources.get_mut(&object.id)) {
            source.state.define(def);
            source.versions.add(def);
        }
    }

    /// Splits that an epoch adds to sources that exist already.
    pub(super) fn add_splits(&mut self, added: &[(ObjectId, Vec<SplitInfo>)]) {
        for (id, splits) in added {
            let Some(source) = self.sources.get_mut(id) else {
                continue;
            };
            let first = source.state.splits.len();
            source.state.generation += 1;
            source.state.add(splits);
            for (number, info) in (first as u32..).zip(splits) {
                if let Err(error) = source.driver.add_split(number, info) {
                    source.failed = Some(error_text(&error));
                }
            }
        }
    }

    /// Ranges that an epoch takes from sources.
    pub(super) fn add_ranges(&mut self, epoch: u64, cut: &[(ObjectId, Vec<SplitRange>)]) {
        for (id, ranges) in cut {
            if let Some(source) = self.sources.get_mut(id) {
                // A checkpoint's notes may already hold these.
                let generation = source.state.generation;
                ranges.iter().for_each(|range| source.state.advance(range));
                let replays = &source.state.replays;
                let placed = ranges.iter().map(|range| match range.split {
                    // The number tells when it was; what the record says of its generation is not known when it is made.
                    REPLAYS => SplitRange {
                        generation: replays
                            .iter()
                            .find(|r| r.from == range.from)
                            .map_or(generation, |r| r.generation),
                        ..*range
                    },
                    _ => *range,
                });
                source.cuts.push_back((epoch, placed.collect()));
            }
        }
        self.settle_replacements();
    }

    /// Cuts source ranges into the next epoch, for sources whose fastest reader is close behind.
    pub(super) fn cut_sources(&mut self) {
        self.poll_sources = None;
        if let Some(at) = self.cut_after {
            if Instant::now() < at {
                return;
            }
            self.cut_after = None;
            self.retry_letters();
        }
        if self.cut_pending || self.stopping.is_some() || self.sources.is_empty() {
            return;
        }
        if self.paces_sources() {
            self.poll_sources = Some(PACED_RETRY);
            return;
        }
        let now_us = self.shared.now_us();
        let records = CUT_ROWS_PER_TASK * self.shared.config.parallelism as u64;
        let records = records.min(self.step_rows_max() as u64);
        let (mut cut, mut failed) = (SourceCut::default(), Vec::new());
        for (id, source) in self.sources.iter().filter(|(_, s)| s.failed.is_none()) {
            if self.paused_sources.contains(id) {
                continue;
            }
            let readers = self.source_readers(*id);
            let following = readers.filter(|r| !r.stands() && r.backfill.is_none());
            let Some(fastest) = following.map(RegionCtl::frontier).max() else {
                continue;
            };
            let splits = source.driver.poll_splits();
            if !splits.is_empty() {
                cut.splits.push((*id, splits));
            }
            if source.cuts.iter().filter(|(e, _)| *e > fastest).count() >= CUTS_AHEAD_MAX {
                continue;
            }
            let request = CutRequest {
                created_us: source.state.created_us,
                now_us,
                next: &source.state.next(),
                records,
            };
            match source.driver.cut(&request) {
                Ok(ranges) if ranges.is_empty() => {
                    if !source.driver.finished(request.next) {
                        let again = source.driver.poll_interval();
                        self.poll_sources = match (self.poll_sources, again) {
                            (Some(a), Some(b)) => Some(a.min(b)),
                            (a, b) => a.or(b),
                        };
                    }
                }
                Ok(mut ranges) => {
                    for range in &mut ranges {
                        range.generation = source.state.generation;
                        range.revision = source.state.revision;
                    }
                    cut.ranges.push((*id, ranges));
                }
                Err(error) => failed.push((*id, error_text(&error))),
            }
        }
        if !cut.is_empty() {
            self.cut_pending = true;
            if self.requests.send(Request::Cut(cut)).is_err() {
                tracing::debug!("the sequencer has stopped");
            }
        }
        for (id, reason) in failed {
            self.fail_source(id, &reason);
        }
    }

    /// Nothing more can be cut from a source: its readers would fall behind for ever, so they stop, and say why.
    fn fail_source(&mut self, id: ObjectId, reason: &str) {
        if let Some(source) = self.sources.get_mut(&id) {
            source.failed = Some(reason.to_owned());
        }
        let readers: Vec<ObjectId> = self.source_readers(id).filter(|r| !r.stands()).map(|r| r.id).collect();
        for reader in readers {
            if let Some(dataflow) = self.regions.get(&reader).and_then(|r| r.dataflow.as_ref()) {
                dataflow.stop();
            }
            self.on_region_failed(reader, reason.to_owned());
        }
    }

    /// The source that a region reads as its input `input`; `None` if that is a relation. A table with a connector is both: a source to
    /// itself, a relation to others.
    pub(super) fn source_of(&self, region: ObjectId, input: ObjectId) -> Option<&SourceCtl> {
        let is_relation = input != region && self.regions.contains_key(&input);
        self.sources.get(&input).filter(|_| !is_relation)
    }

    /// Regions that read a source's ranges.
    fn source_readers(&self, id: ObjectId) -> impl Iterator<Item = &RegionCtl> {
        let own = self.regions.get(&id);
        let readers = self.work.readers(id).filter_map(|r| self.regions.get(&r));
        readers.filter(move |r| own.is_none_or(|own| own.id == r.id))
    }

    /// Some region reads the source.
    pub(super) fn is_read(&self, id: ObjectId) -> bool {
        self.source_readers(id).any(|r| !r.stands())
    }

    /// A keyed source's building readers have missed records that compaction took. They are complete when they have read what replaced
    /// them.
    pub(super) fn await_replacements(&mut self, id: ObjectId, split: u32, end: u64) {
        let building: Vec<ObjectId> = self.source_readers(id).map(|r| r.id).collect();
        for reader in building {
            let region = self.regions.get_mut(&reader).filter(|r| r.backfill.is_some());
            if let Some(region) = region {
                region.meta.awaits.push((id, split, end));
                self.awaiting.insert(reader);
            }
        }
        // Most of the time what replaced them has been cut already.
        self.settle_replacements();
    }

    /// A new view over sources that know where they end now is complete when it has read so far.
    pub(super) fn await_present(&mut self, id: ObjectId) {
        let inputs = match self.regions.get(&id) {
            Some(region) if region.kind == RegionKind::View => region.inputs.clone(),
            _ => return,
        };
        let mut awaits = Vec::new();
        for input in inputs {
            let Some(source) = self.source_of(id, input) else {
                continue;
            };
            let splits = (0u32..).zip(&source.state.splits).zip(source.driver.present_ends());
            let open = splits.filter_map(|((n, split), end)| Some((input, n, end.filter(|e| *e > split.next)?)));
            awaits.extend(open);
        }
        if let Some(region) = self.regions.get_mut(&id).filter(|_| !awaits.is_empty()) {
            region.meta.awaits.extend(awaits);
            self.awaiting.insert(id);
        }
    }

    /// Whether what compaction took from a region's backfill has been replaced by the epochs cut so far; they then become part of what
    /// the region must take before it is shown.
    pub(super) fn settle_replacements(&mut self) {
        let (regions, sources, cut, work) = (&mut self.regions, &self.sources, self.cut, &mut self.work);
        self.awaiting.retain(|id| {
            let Some(region) = regions.get_mut(id) else {
                return false;
            };
            let replaced = region.meta.awaits.iter().all(|(id, split, end)| {
                let split = sources.get(id).and_then(|s| s.state.splits.get(*split as usize));
                split.is_none_or(|s| s.next >= *end)
            });
            if replaced {
                region.meta.awaits.clear();
                region.meta.created = region.meta.created.max(cut);
                work.ready.insert(*id);
                work.moved = true;
            }
            !replaced
        });
    }

    /// Drops cuts that every reader has taken.
    pub(super) fn forget_cuts(&mut self) {
        let ids: Vec<ObjectId> = self
            .sources
            .iter()
            .filter(|(_, s)| !s.cuts.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let taken = self
                .source_readers(id)
                .filter(|r| r.failed.is_none())
                .map(|r| {
                    if r.backfill.is_some() {
                        r.starts.get(&id).copied().unwrap_or(0)
                    } else {
                        r.submitted()
                    }
                })
                .min()
                .unwrap_or(self.cut);
            let Some(source) = self.sources.get_mut(&id) else {
                continue;
            };
            while source.cuts.front().is_some_and(|(e, _)| *e <= taken) {
                source.cuts.pop_front();
            }
        }
    }

    /// Sources as a checkpoint notes them.
    pub(super) fn source_states(&self) -> BTreeMap<ObjectId, SourceState> {
        self.sources.iter().map(|(id, s)| (*id, s.state.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::RangeCheck;

    fn info(name: &str, start: u64) -> SplitInfo {
        SplitInfo {
            name: name.to_owned(),
            start,
            meta: Vec::new(),
        }
    }

    fn checked(split: u32, from: u64, to: u64, records: u64) -> SplitRange {
        let check = RangeCheck {
            records,
            bytes: records,
            digest: from ^ to,
        };
        SplitRange {
            check: Some(check),
            ..SplitRange::unchecked(split, from, to)
        }
    }

    #[test]
    fn history_joins_small_ranges_and_keeps_their_sums() {
        let mut state = SourceState::new(0, &[info("0", 7)]);
        for i in 0..10 {
            let from = 7 + i * 20_000;
            state.advance(&checked(0, from, from + 20_000, 15_000));
        }
        let history = &state.splits[0].history;
        assert_eq!(history.len(), 2);
        assert_eq!((history[0].from, history[0].to), (7, 100_007));
        assert_eq!(history.iter().map(SplitRange::records).sum::<u64>(), 150_000);
        assert_eq!(state.next(), [200_007]);
    }

    #[test]
    fn a_replayed_range_is_taken_once() {
        let mut state = SourceState::new(0, &[info("0", 0)]);
        let range = checked(0, 0, 10, 10);
        state.advance(&range);
        state.advance(&range);
        assert_eq!(state.splits[0].history, [range]);
    }

    #[test]
    fn generations_are_read_one_after_the_other() {
        let mut state = SourceState::new(0, &[info("0", 0)]);
        state.advance(&checked(0, 0, 10, 10));
        state.generation += 1;
        state.add(&[info("1", 0)]);
        let later = |range: SplitRange| SplitRange { generation: 1, ..range };
        state.advance(&later(checked(0, 10, 20, 10)));
        state.advance(&later(checked(1, 0, 5, 5)));
        let order: Vec<_> = state
            .history()
            .iter()
            .map(|r| (r.generation, r.split, r.from))
            .collect();
        assert_eq!(order, [(0, 0, 0), (1, 0, 10), (1, 1, 0)]);
    }
}
