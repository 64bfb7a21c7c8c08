//! Opening a data directory: the newest usable manifest, then the log.
//!
//! ```text
//!   manifest n (or an older one, if n is damaged) ─▶ catalog, sources, each region at its chosen version:
//!                                                    its files linked into the cold tier, its state read from there
//!   log from manifest.log_seq ─▶ the same epochs again, as if they were just cut
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use levee_planner::catalog::{Catalog, CatalogObject, ObjectKind};
use levee_planner::job::JobState;
use levee_storage::StorageError;
use levee_storage::checkpoint::{CheckpointStore, FileMeta, Manifest, choose_versions, load};
use levee_storage::log::Log;
use levee_storage::tier::TierSnapshot;

use super::checkpointer::{Payload, TierReader};
use super::control::Control;
use super::dead_letters::{self, DEAD_LETTERS};
use super::record::{EPOCH_KIND, EpochRecord};
use super::region::RegionMeta;
use super::shared::RegionStatus;
use super::sources::source_def;
use crate::dataflow::StateReader;
use crate::memory::{Governor, Share};
use crate::relation::{Base, RowOrder};
use crate::{Result, RuntimeError};

/// A relation that needs more than this part of the relations' share is not loaded at start.
const LOADED_PARTS: usize = 8;
/// A row takes at least this much memory.
const ROW_BYTES_MIN: usize = 8;
/// Bytes whose checksums are compared before the server starts.
const VERIFY_BYTES_MAX: u64 = 1 << 30;

/// What recovery starts from.
pub struct Found {
    /// The manifest, if there is one.
    pub manifest: Manifest,
    /// Its payload.
    pub payload: Payload,
    /// Log position needed by the manifest before it, for falling back once more.
    pub previous_log_seq: u64,
    /// Files whose checksums are left to be compared while the server runs; their blocks have checksums of their own, which are
    /// compared whenever one is read.
    pub unverified: Vec<FileMeta>,
}

/// The newest manifest whose files are whole and from which the log goes on without a gap.
///
/// # Errors
/// None is usable though something was there: says what is damaged and what to do.
pub fn find(store: &CheckpointStore, log: &Log) -> Result<Found> {
    let candidates = store.load_candidates()?;
    let any = !candidates.is_empty();
    let mut first_problem: Option<StorageError> = None;
    for candidate in candidates {
        let usable = candidate.manifest.and_then(|m| Ok((verify(store, &m)?, m)));
        let (unverified, manifest) = match usable {
            Ok(usable) => usable,
            Err(error) => {
                tracing::warn!(manifest = candidate.number, %error, "a checkpoint cannot be used, trying an older one");
                first_problem.get_or_insert(error);
                continue;
            }
        };
        if manifest.log_seq < log.first_seq() {
            let reason = format!(
                "needs the log from {}, which begins at {}",
                manifest.log_seq,
                log.first_seq()
            );
            tracing::warn!(manifest = candidate.number, reason, "a checkpoint cannot be used");
            first_problem.get_or_insert(StorageError::corrupt(format!("manifest {}", candidate.number), reason));
            continue;
        }
        let payload = Payload::decode(&manifest)?;
        let previous_log_seq = manifest.log_seq;
        return Ok(Found {
            manifest,
            payload,
            previous_log_seq,
            unverified,
        });
    }
    // Without any checkpoint the whole log must be there.
    let whole_log = log.first_seq() <= 1;
    match first_problem {
        None if !any && whole_log => {}
        Some(_) | None if whole_log => {
            tracing::warn!("no checkpoint can be used, replaying the whole log");
        }
        problem => {
            let problem = problem
                .unwrap_or_else(|| StorageError::corrupt("the checkpoints", "there is none, but the log has been cut"));
            return Err(RuntimeError::User {
                code: "XX001",
                message: format!("cannot start: {problem}, and the log does not reach back to an older checkpoint"),
                hint: Some("Restore the data directory and the checkpoint location from a backup.".to_owned()),
            });
        }
    }
    Ok(Found {
        manifest: Manifest::default(),
        payload: Payload::default(),
        previous_log_seq: 0,
        unverified: Vec::new(),
    })
}

/// Compares checksums of a manifest's files, small ones first, up to what can be read in about a second; answers the rest.
fn verify(store: &CheckpointStore, manifest: &Manifest) -> Result<Vec<FileMeta>, StorageError> {
    let mut files: Vec<FileMeta> = manifest.files.values().cloned().collect();
    files.sort_unstable_by_key(|file| file.bytes);
    let mut bytes = 0;
    let rest = files.iter().position(|file| {
        bytes += file.bytes;
        bytes > VERIFY_BYTES_MAX
    });
    let rest = files.split_off(rest.unwrap_or(files.len()));
    store.verify_files(&files)?;
    Ok(rest)
}

/// Compares the other files' checksums beside the running server; ends when the checkpointer has.
pub fn verify_rest(store: &Weak<CheckpointStore>, files: &[FileMeta]) {
    for file in files {
        let Some(store) = store.upgrade() else { return };
        match store.verify_files([file]) {
            // A merge may have replaced it by now.
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::error!(
                file = file.id.name(),
                %error,
                "a checkpoint's file is damaged: restore it from a backup, or drop and create again what it holds"
            ),
            Ok(()) => {}
        }
    }
}

/// Rebuilds the coordinator's state from `found`.
///
/// # Errors
/// A region's state cannot be read.
pub fn restore(control: &mut Control, store: &CheckpointStore, found: &mut Found) -> Result<()> {
    let started = Instant::now();
    let payload = &found.payload;
    control.catalog = Arc::new(payload.catalog.clone());
    control.cut = payload.epoch;
    control.catalog_epoch = payload.epoch;
    control.timeline.push(
        payload.epoch,
        payload.timestamp_us,
        found.manifest.log_seq.saturating_sub(1),
        0,
    );
    let subscribers = subscribers(&payload.catalog);
    let chosen = choose_versions(&found.manifest.regions, &subscribers);
    control.stops = chosen.values().copied().collect::<BTreeSet<u64>>();
    load(store, &control.shared.tier, &found.manifest, &chosen)?;
    found.manifest.rewind(&chosen);
    let opened = control.shared.tier.snapshot();
    let letters = chosen.get(&DEAD_LETTERS.0).copied();
    restore_region(control, &dead_letters::object(), &opened, &found.manifest, letters)?;
    control.count_letters()?;
    for object in payload.catalog.objects() {
        match payload.catalog.job(object.id) {
            JobState::Unpopulated => {
                control.shared.add(object.id, None, RegionStatus::Unpopulated);
                continue;
            }
            JobState::Failed(reason) => {
                let status = RegionStatus::Failed(reason.clone());
                control.shared.add(object.id, None, status);
                continue;
            }
            JobState::Paused => drop(control.paused_sources.insert(object.id)),
            JobState::Running | JobState::Creating => {}
        }
        if let Some(def) = source_def(object) {
            let state = payload.sources.get(&object.id).cloned().ok_or_else(|| {
                let file = format!("manifest {}", found.manifest.number);
                StorageError::corrupt(file, format!("it says nothing of source \"{}\"", object.name))
            })?;
            control.add_source(object, def, state)?;
        }
        match &object.kind {
            ObjectKind::View(_) | ObjectKind::Source(_) | ObjectKind::Sequence(_) => {}
            _ => restore_region(
                control,
                object,
                &opened,
                &found.manifest,
                chosen.get(&object.id.0).copied(),
            )?,
        }
    }
    tracing::info!(
        manifest = found.manifest.number,
        epoch = payload.epoch,
        regions = chosen.len(),
        ms = started.elapsed().as_millis() as u64,
        "checkpoint restored"
    );
    Ok(())
}

fn restore_region(
    control: &mut Control,
    object: &CatalogObject,
    opened: &Arc<TierSnapshot>,
    manifest: &Manifest,
    epoch: Option<u64>,
) -> Result<()> {
    let version = epoch.and_then(|e| manifest.version(object.id.0, e));
    let Some(version) = version else {
        // Never checkpointed: a table begins empty before the log's first epoch, a view is built anew.
        return control.add_region(object, Base::default(), None, None, 0);
    };
    let meta: RegionMeta = postcard::from_bytes(&version.meta)
        .map_err(|e| StorageError::corrupt(format!("manifest {}", manifest.number), format!("region notes: {e}")))?;
    let base = match &object.kind {
        ObjectKind::Sink(_) => Base::empty(version.epoch),
        _ => {
            let rows = usize::try_from(meta.rows).unwrap_or(usize::MAX);
            load_relation(object, &control.shared.memory, opened, version.epoch, rows)?
        }
    };
    let reader: Arc<dyn StateReader> = Arc::new(TierReader {
        snapshot: Arc::clone(opened),
        region: object.id,
    });
    control.stops.extend(meta.starts.iter().map(|(_, e)| *e));
    let state = object.stream_plan().map(|_| Arc::clone(&reader));
    control.add_region(object, base, state, Some(meta), version.epoch)?;
    if let Some(region) = control.regions.get_mut(&object.id) {
        region.completed_epoch = Some(version.epoch);
        region.dirty = false;
    }
    Ok(())
}

/// A relation's rows: in memory if they are few and there is room, else where they are, in the cold tier.
fn load_relation(
    object: &CatalogObject,
    memory: &Governor,
    opened: &Arc<TierSnapshot>,
    epoch: u64,
    rows: usize,
) -> Result<Base> {
    let order = Arc::new(RowOrder::new(
        Arc::clone(object.schema()),
        super::objects::storage_key(object),
    )?);
    let cold = Base::cold(epoch, rows, Arc::clone(opened), object.id.0);
    let room = (memory.share(Share::Relations) / 2).saturating_sub(memory.used(Share::Relations));
    let room = room.min(memory.share(Share::Relations) / LOADED_PARTS);
    if rows > room / ROW_BYTES_MIN {
        return Ok(cold);
    }
    cold.load(&order, room)
}

/// Feeds the log's epochs after the manifest's needs into the coordinator; answers the newest one and its timestamp.
///
/// # Errors
/// The log is damaged.
pub fn replay(control: &mut Control, log: &Log, found: &Found) -> Result<(u64, i64)> {
    let mut newest = (found.payload.epoch, found.payload.timestamp_us);
    let from = found.manifest.log_seq.max(log.first_seq());
    let mut epochs = 0_u64;
    for record in log.read_from(from)? {
        let record = record?;
        if record.kind != EPOCH_KIND {
            let reason = format!("record {} is of unknown kind {}", record.seq, record.kind);
            return Err(StorageError::corrupt("the log", reason).into());
        }
        let epoch = EpochRecord::decode(&record.payload)?;
        newest = (newest.0.max(epoch.epoch), newest.1.max(epoch.timestamp_us));
        control.on_epoch(&epoch, record.seq, record.payload.len() as u64);
        epochs += 1;
    }
    control.cut = newest.0;
    control.shared.clock_epoch.store(newest.0, Ordering::Release);
    tracing::info!(epochs, epoch = newest.0, "log replayed");
    Ok(newest)
}

/// Region → regions that read it, from the catalog.
pub fn subscribers(catalog: &Catalog) -> BTreeMap<u32, Vec<u32>> {
    let mut out: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for object in catalog.objects() {
        for input in object
            .stream_plan()
            .map(levee_planner::plan::StreamPlan::inputs)
            .unwrap_or_default()
            .into_iter()
            .filter(|i| *i != object.id)
        {
            out.entry(input.0).or_default().push(object.id.0);
        }
    }
    out
}

/// Makes a directory.
///
/// # Errors
/// It cannot be made.
pub fn make_dir(dir: &Path) -> Result<()> {
    let io = |e| StorageError::from_io(e, format!("creating {}", dir.display()));
    Ok(std::fs::create_dir_all(dir).map_err(io)?)
}

/// Empties a directory of scratch files.
///
/// # Errors
/// It cannot be emptied or made.
pub fn clear_dir(dir: &Path) -> Result<()> {
    let io = |e| StorageError::from_io(e, format!("clearing {}", dir.display()));
    if dir.exists() {
        std::fs::remove_dir_all(dir).map_err(io)?;
    }
    std::fs::create_dir_all(dir).map_err(io)?;
    Ok(())
}
