//! Writes checkpoints: one sorted file and one manifest per tick.
//!
//! ```text
//!   frozen state of all regions ─▶ one delta file ─▶ (merge long lists) ─▶ manifest n ─▶ tier ─▶ regions are told
//!                                                                             └─▶ garbage collection, log truncation
//! ```
//!
//! The file is written from where the frozen entries lie, a region after the other and a stretch of its keys after the other: an index of
//! one stretch's entries is all that is added to memory. The cold tier takes the file in (by link) after the manifest is durable, and its snapshot then is what
//! regions hear of: their tasks read it when they are started again or do not hold an entry in memory.
//!
//! A region that missed the tick keeps its older version; a producer keeps a version that is no later than any subscriber's, so that
//! after a crash the runs in between can be computed again. A region without change gets its newer epoch for free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use levee_planner::catalog::Catalog;
use levee_planner::plan::ObjectId;
use levee_storage::StorageError;
use levee_storage::checkpoint::{
    CheckpointStore, Manifest, RegionVersion, VnodeSet, WrittenDelta, apply_merge, choose_versions, plan_merges,
};
use levee_storage::delta_file::{DeltaIndex, DeltaWriter, StateKey};
use levee_storage::log::Log;
use levee_storage::tier::{Tier, TierSnapshot};
use serde::{Deserialize, Serialize};

use super::control::Event;
use super::region::Frozen;
use super::sources::SourceState;
use crate::dataflow::StateReader;
use crate::relation::{Base, RELATION_OPERATOR, encode_count};
use crate::{Result, RuntimeError};

const PAYLOAD_VERSION: u32 = 2;

/// The coordinator's part of a manifest: the fold of the log up to `epoch`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Payload {
    /// Newest epoch folded in.
    pub epoch: u64,
    /// Its timestamp.
    pub timestamp_us: i64,
    /// Catalog then.
    pub catalog: Catalog,
    /// Sources then.
    pub sources: BTreeMap<ObjectId, SourceState>,
}

impl Payload {
    fn encode(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(&(PAYLOAD_VERSION, self))
            .map_err(|e| RuntimeError::internal(format!("checkpoint payload: {e}")))
    }

    /// Reads a manifest's payload.
    ///
    /// # Errors
    /// Another version, or damaged.
    pub fn decode(manifest: &Manifest) -> Result<Self> {
        let file = || format!("manifest {}", manifest.number);
        let (version, rest) = postcard::take_from_bytes::<u32>(&manifest.payload)
            .map_err(|e| StorageError::corrupt(file(), format!("payload cannot be read: {e}")))?;
        if version != PAYLOAD_VERSION {
            return Err(StorageError::Version {
                file: file(),
                found: version,
                supported: PAYLOAD_VERSION.to_string(),
            }
            .into());
        }
        let payload = postcard::from_bytes(rest)
            .map_err(|e| StorageError::corrupt(file(), format!("payload cannot be read: {e}")))?;
        Ok(payload)
    }
}

/// What the checkpointer is asked.
pub struct Job {
    /// Epoch of the tick.
    pub epoch: u64,
    /// When it was handed over.
    pub started: Instant,
    /// Frozen state, per region in order.
    pub frozen: Vec<Frozen>,
    /// Regions whose newest version also holds at this epoch.
    pub advance: BTreeMap<u32, u64>,
    /// The earliest epoch that each region could be frozen at next.
    pub floors: BTreeMap<u32, u64>,
    /// Region → regions that read it.
    pub subscribers: BTreeMap<u32, Vec<u32>>,
    /// Existing regions.
    pub live: BTreeSet<u32>,
    /// Those of them that began anew: what earlier checkpoints hold of them is not theirs.
    pub anew: BTreeSet<u32>,
    /// Those that are tables: only the log can bring them forward.
    pub tables: BTreeSet<u32>,
    /// Epoch → log position.
    pub log_seqs: BTreeMap<u64, u64>,
    /// Coordinator's snapshot.
    pub payload: Payload,
}

impl Job {
    /// Asks for garbage collection only.
    pub fn collect() -> Self {
        Self {
            epoch: 0,
            started: now(),
            frozen: Vec::new(),
            advance: BTreeMap::new(),
            floors: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            live: BTreeSet::new(),
            anew: BTreeSet::new(),
            tables: BTreeSet::new(),
            log_seqs: BTreeMap::new(),
            payload: Payload::default(),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "durations for the status table only")]
fn now() -> Instant {
    Instant::now()
}

/// A region's part that is now durable.
#[derive(Debug)]
pub struct Completed {
    /// Region.
    pub region: ObjectId,
    /// Dataflow step frozen.
    pub step_seq: Option<u64>,
    /// Run position frozen.
    pub relation_seq: u64,
}

/// A completed checkpoint.
pub struct CheckpointDone {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// Newest version per region.
    pub epochs: BTreeMap<u32, u64>,
    /// Frozen parts that it holds.
    pub frozen: Vec<Completed>,
    /// The log is needed from after this epoch.
    pub log_epoch: u64,
    /// Epoch of the tick.
    pub epoch: u64,
    /// Bytes of the new delta file.
    pub bytes: u64,
    /// Time from tick to durable.
    pub seconds: f64,
    /// The tier as of this checkpoint.
    pub snapshot: Arc<TierSnapshot>,
}

impl CheckpointDone {
    /// A reader of a region's newest version.
    pub fn reader(&self, region: ObjectId) -> Arc<dyn StateReader> {
        Arc::new(TierReader {
            snapshot: Arc::clone(&self.snapshot),
            region,
        })
    }
}

/// Reads a region's state at the checkpoint that a snapshot of the tier shows.
pub struct TierReader {
    /// The checkpoint.
    pub snapshot: Arc<TierSnapshot>,
    /// Region.
    pub region: ObjectId,
}

impl StateReader for TierReader {
    fn scan(
        &self,
        operator: u32,
        vnodes: RangeInclusive<u8>,
        f: &mut dyn FnMut(u8, u8, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let set: VnodeSet = vnodes.collect();
        self.snapshot.scan_operator(self.region.0, operator, Some(&set), f)
    }

    fn tier(&self) -> Option<(Arc<TierSnapshot>, u32)> {
        Some((Arc::clone(&self.snapshot), self.region.0))
    }
}

/// State of the checkpointer's thread.
pub struct Checkpointer {
    pub(super) store: Arc<CheckpointStore>,
    pub(super) tier: Arc<Tier>,
    pub(super) log: Arc<Log>,
    pub(super) events: Sender<Event>,
    /// The newest manifest's content, to build the next one on.
    pub(super) current: Manifest,
    /// The one before: the log is kept for it, in case the newest is found damaged.
    pub(super) previous_log_seq: u64,
    /// What a failed attempt could not make durable; it goes into the next.
    pub(super) carried: Vec<Frozen>,
    /// What durable checkpoints have changed and the tier has not taken in yet.
    pub(super) untaken: Untaken,
}

/// Durable, but not in the tier: nobody is told before it is.
#[derive(Debug, Default)]
pub struct Untaken {
    files: Vec<WrittenDelta>,
    dropped: BTreeSet<u32>,
    frozen: Vec<Completed>,
}

impl Checkpointer {
    /// Serves until the sender is gone.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            if job.live.is_empty() && job.epoch == 0 {
                self.collect();
                continue;
            }
            let result = self.checkpoint(job);
            if self.events.send(Event::Checkpoint(Box::new(result))).is_err() {
                return;
            }
        }
    }

    fn checkpoint(&mut self, mut job: Job) -> Result<CheckpointDone> {
        let mut frozen = std::mem::take(&mut self.carried);
        frozen.retain(|f| job.live.contains(&f.region.0) && !job.anew.contains(&f.region.0));
        frozen.append(&mut job.frozen);
        match self.write(&job, &frozen) {
            Ok((manifest, written, log_epoch)) => self.done(&job, frozen, manifest, written, log_epoch),
            Err(error) => {
                self.carried = frozen;
                Err(error)
            }
        }
    }

    /// The manifest is durable: from here on a failure only puts off that regions hear of it.
    fn done(
        &mut self,
        job: &Job,
        frozen: Vec<Frozen>,
        manifest: Manifest,
        written: Option<WrittenDelta>,
        log_epoch: u64,
    ) -> Result<CheckpointDone> {
        let epochs = manifest
            .regions
            .iter()
            .filter_map(|(r, v)| Some((*r, v.last()?.epoch)))
            .collect();
        self.previous_log_seq = self.current.log_seq;
        let before = std::mem::replace(&mut self.current, manifest.clone());
        let gone = before.regions.keys().filter(|r| !manifest.regions.contains_key(r));
        self.untaken.dropped.extend(gone);
        let bytes = written.as_ref().map_or(0, |w| w.meta.bytes);
        self.untaken.files.extend(written);
        self.untaken.frozen.extend(frozen.into_iter().map(|f| Completed {
            region: f.region,
            step_seq: f.step_seq,
            relation_seq: f.relation_seq,
        }));
        self.take_in()?;
        Ok(CheckpointDone {
            manifest: Arc::new(manifest),
            epochs,
            frozen: std::mem::take(&mut self.untaken.frozen),
            log_epoch,
            epoch: job.epoch,
            bytes,
            seconds: job.started.elapsed().as_secs_f64(),
            snapshot: self.tier.snapshot(),
        })
    }

    fn take_in(&mut self) -> Result<()> {
        fail::fail_point!("checkpoint::tier", |_| Err(RuntimeError::internal("failpoint")));
        self.tier.ingest_written(&self.untaken.files)?;
        self.untaken.files.clear();
        while let Some(region) = self.untaken.dropped.first() {
            self.tier.drop_region(*region)?;
            self.untaken.dropped.pop_first();
        }
        Ok(())
    }

    fn write(&self, job: &Job, frozen: &[Frozen]) -> Result<(Manifest, Option<WrittenDelta>, u64)> {
        let mut parts: BTreeMap<u32, Vec<&Frozen>> = BTreeMap::new();
        for part in frozen {
            parts.entry(part.region.0).or_default().push(part);
        }
        // Behind the last durable checkpoint, the tier does not know what changes count from.
        let tier = self.untaken.files.is_empty().then(|| self.tier.snapshot());
        let written = self.store.write_delta::<RuntimeError>(|writer| {
            parts
                .iter()
                .try_for_each(|(region, parts)| append(writer, *region, parts, tier.as_ref()))
        })?;
        let file = written.as_ref().map(|w| &w.meta);
        let mut next = self.current.clone();
        next.number = self.store.next_manifest_number();
        next.term = self.store.term();
        next.regions
            .retain(|r, _| job.live.contains(r) && !job.anew.contains(r));
        if let Some(file) = file {
            next.files.insert(file.id, file.clone());
        }
        // A region frozen twice (an attempt failed in between) has one version, at its newest epoch.
        let newest: HashMap<u32, &Frozen> = frozen.iter().map(|f| (f.region.0, f)).collect();
        for (region, part) in newest {
            let versions = next.regions.entry(region).or_default();
            let mut files = versions.last().map(|v| v.files.clone()).unwrap_or_default();
            files.extend(file.filter(|f| f.regions.contains(&region)).map(|f| f.id));
            push_version(
                versions,
                RegionVersion {
                    epoch: part.epoch,
                    files,
                    meta: part.meta.clone(),
                },
            );
        }
        for (region, epoch) in &job.advance {
            if let Some(versions) = next.regions.get_mut(region)
                && let Some(last) = versions.last().filter(|l| l.epoch < *epoch).cloned()
            {
                push_version(versions, RegionVersion { epoch: *epoch, ..last });
            }
        }
        for plan in plan_merges(&next.regions, &next.files) {
            let merged = self.store.merge(&plan)?;
            apply_merge(&mut next.regions, &mut next.files, &plan, merged.as_ref());
        }
        let log_epoch = prune(&mut next, job);
        next.retain_named_files();
        next.log_seq = match job.log_seqs.range(log_epoch + 1..).next() {
            Some((_, seq)) => *seq,
            None => job
                .log_seqs
                .values()
                .next_back()
                .map_or(self.current.log_seq, |s| s + 1),
        };
        next.log_seq = next.log_seq.max(self.current.log_seq);
        next.payload = job.payload.encode()?;
        self.store.commit(&next)?;
        Ok((next, written, log_epoch))
    }

    /// Deletes what no retained manifest needs.
    fn collect(&self) {
        let result = self
            .store
            .gc(&[&self.current])
            .map(|_| ())
            .and_then(|()| self.log.truncate_before(self.previous_log_seq));
        if let Err(error) = result {
            tracing::warn!(%error, "garbage collection failed and is tried again");
        }
    }
}

/// Entries that are sorted at a time, if they are not more than [`STRETCHES_MAX`] times as many: their index takes 56 bytes each.
const STRETCH_ENTRIES: usize = 65_536;
/// Each stretch costs a pass over all entries.
const STRETCHES_MAX: usize = 32;

/// A bucket of a table: operator, table and vnode, by which entries are sorted first.
type Bucket = (u32, u8, u8);

/// Cuts all entries, by their buckets, into stretches of about equal size; answers the last bucket of each, in order.
fn stretches(parts: &[&Frozen]) -> Vec<Bucket> {
    let entries: usize = parts.iter().map(|part| part.state.len()).sum();
    let size = STRETCH_ENTRIES.max(entries / STRETCHES_MAX);
    if entries <= size {
        return vec![(u32::MAX, u8::MAX, u8::MAX)];
    }
    let mut counts: BTreeMap<(u32, u8), Vec<usize>> = BTreeMap::new();
    for entry in parts.iter().flat_map(|part| part.state.iter()) {
        let table = counts.entry((entry.operator, entry.table));
        table.or_insert_with(|| vec![0; 256])[usize::from(entry.vnode)] += 1;
    }
    let (mut ends, mut sum) = (Vec::new(), 0);
    for ((operator, table), vnodes) in counts {
        for (vnode, count) in (0..=u8::MAX).zip(vnodes) {
            sum += count;
            if sum >= size {
                ends.push((operator, table, vnode));
                sum = 0;
            }
        }
    }
    ends.push((u32::MAX, u8::MAX, u8::MAX));
    ends
}

/// Adds a region's frozen entries. Several parts, in order, are what earlier attempts could not write and what came since. `tier` shows
/// the last checkpoint.
fn append(
    writer: &mut DeltaWriter<'_>,
    region: u32,
    parts: &[&Frozen],
    tier: Option<&Arc<TierSnapshot>>,
) -> Result<()> {
    let entries = parts.iter().map(|part| part.state.len()).sum::<usize>();
    let mut after: Option<Bucket> = None;
    for end in stretches(parts) {
        let mut index = DeltaIndex::new(region, entries.min(STRETCH_ENTRIES));
        for entry in parts.iter().flat_map(|part| part.state.iter()) {
            let bucket = (entry.operator, entry.table, entry.vnode);
            if bucket <= end && after.is_none_or(|after| bucket > after) {
                index.put(entry.operator, entry.table, entry.vnode, entry.key, entry.value);
            }
        }
        index.write(writer)?;
        after = Some(end);
    }
    // The newest rows of all that has changed since the first part. They come after all operators' entries.
    let since = parts.iter().find_map(|part| Some(part.relation.as_ref()?.1));
    let newest = parts.iter().rev().find_map(|part| Some(&part.relation.as_ref()?.0));
    let (Some(since), Some(snapshot)) = (since, newest) else {
        return Ok(());
    };
    let completed = tier.map(|tier| Base::cold(snapshot.epoch(), snapshot.rows_about(), Arc::clone(tier), region));
    snapshot.changes_since(since, completed.as_ref(), &mut |row, count| {
        let key = StateKey {
            region,
            operator: RELATION_OPERATOR,
            table: 0,
            vnode: 0,
            key: row,
        };
        let value = (count > 0).then(|| encode_count(count));
        Ok(writer.put(key, value.as_ref().map(<[u8; 8]>::as_slice))?)
    })
}

fn push_version(versions: &mut Vec<RegionVersion>, version: RegionVersion) {
    // A backfill's steps all have the same epoch.
    if versions.last().is_some_and(|l| l.epoch >= version.epoch) {
        versions.pop();
    }
    versions.push(version);
}

/// Keeps of each region the version that a restart would choose and the newest one; answers the epoch after which the log is
/// needed.
fn prune(next: &mut Manifest, job: &Job) -> u64 {
    let mut regions = next.regions.clone();
    for region in &job.live {
        let versions = regions.entry(*region).or_default();
        if versions.is_empty() && !job.tables.contains(region) {
            let epoch = job.floors.get(region).copied().unwrap_or(0);
            versions.push(RegionVersion {
                epoch,
                ..RegionVersion::default()
            });
        }
    }
    let chosen = choose_versions(&regions, &job.subscribers);
    for (region, versions) in &mut next.regions {
        if let Some(&keep) = chosen.get(region) {
            let newest = versions.last().map_or(keep, |v| v.epoch);
            versions.retain(|v| v.epoch == keep || v.epoch == newest);
        }
    }
    // A table without a version is replayed from its creation on: keep the log.
    let unwritten = job.tables.iter().any(|t| !chosen.contains_key(t));
    let oldest = chosen
        .iter()
        .filter(|(r, _)| next.regions.contains_key(r))
        .map(|(_, e)| *e)
        .min();
    if unwritten {
        return job.log_seqs.keys().next().map_or(0, |e| e.saturating_sub(1));
    }
    oldest.unwrap_or(job.payload.epoch).min(job.payload.epoch)
}
