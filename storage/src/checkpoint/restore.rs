//! Reading a checkpoint's state back: its files into a tier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{FileId, FileMeta, Manifest, manifest_name};
use super::merge::copy_region;
use super::store::{CheckpointStore, remove_scratch};
use crate::delta_file::{DeltaWriter, StateKey, after_prefix, operator_prefix, region_prefix};
use crate::error::{Result, StorageError};
use crate::rocks::ScratchDb;
use crate::tier::{Tier, TierSnapshot};

/// A set of the 256 hash buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnodeSet([u64; 4]);

impl VnodeSet {
    /// All of them.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// Adds one.
    pub fn insert(&mut self, vnode: u8) {
        self.0[usize::from(vnode >> 6)] |= 1 << (vnode & 63);
    }

    /// Whether it is in.
    pub fn contains(&self, vnode: u8) -> bool {
        self.0[usize::from(vnode >> 6)] & (1 << (vnode & 63)) != 0
    }

    /// The smallest member above `vnode`.
    pub(crate) fn after(&self, vnode: u8) -> Option<u8> {
        (vnode..u8::MAX)
            .map(|below| below + 1)
            .find(|next| self.contains(*next))
    }
}

impl FromIterator<u8> for VnodeSet {
    fn from_iter<I: IntoIterator<Item = u8>>(vnodes: I) -> Self {
        let mut set = Self::default();
        vnodes.into_iter().for_each(|vnode| set.insert(vnode));
        set
    }
}

/// Fills an empty tier with the versions `chosen` (region → epoch) of a manifest. Regions that it leaves out have no entries.
///
/// The files are linked, not read (see [`CheckpointStore::verify_files`]), in the order in which they were written, which is the order in
/// every region's list. A file counts for a region only if its version lists it, so two things are set right:
///
/// * entries that a merged file at the beginning of a region's list replaces, in older files that another region still
///   lists, are removed before that file comes in;
/// * a file with entries of a region that had gone beyond its version, now or at an earlier restart, is copied without them. That
///   is rare: a region starts at an older version only if a subscriber lagged behind it.
pub fn load(store: &CheckpointStore, tier: &Arc<Tier>, manifest: &Manifest, chosen: &BTreeMap<u32, u64>) -> Result<()> {
    let mut lists: BTreeMap<u32, &[FileId]> = BTreeMap::new();
    let mut files: BTreeMap<FileId, FileMeta> = BTreeMap::new();
    for (region, epoch) in chosen {
        let version = manifest.version(*region, *epoch).ok_or_else(|| StorageError::Invalid {
            what: manifest_name(manifest.number),
            reason: format!("has no version of region {region} at epoch {epoch}"),
        })?;
        lists.insert(*region, &version.files);
        files.extend(manifest.files_of(version)?.into_iter().map(|file| (file.id, file)));
    }
    let mut waiting: Vec<PathBuf> = Vec::new();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    for file in files.values() {
        for region in &file.regions {
            // Older entries of a region whose list begins here.
            if lists.get(region).is_some_and(|list| list.first() == Some(&file.id)) && seen.contains(region) {
                tier.ingest_moved(&std::mem::take(&mut waiting))?;
                tier.drop_region(*region)?;
            }
        }
        seen.extend(&file.regions);
        let path = tier.incoming_path();
        store.objects.fetch(&file.id.name(), &path)?;
        // Not listed, though the region's list has begun: it went back behind this file at an earlier restart, or now.
        let beyond = |region: &u32| {
            let list = lists.get(region);
            list.is_some_and(|list| list.first().is_some_and(|first| *first < file.id) && !list.contains(&file.id))
        };
        let beyond: BTreeSet<u32> = file.regions.iter().copied().filter(beyond).collect();
        if beyond.is_empty() {
            waiting.push(path);
        } else {
            waiting.extend(copy_without(store, tier, file, &path, &beyond)?);
        }
    }
    tier.ingest_moved(&waiting)?;
    let unlisted = seen.iter().filter(|r| lists.get(r).is_none_or(|list| list.is_empty()));
    unlisted.copied().try_for_each(|region| tier.drop_region(region))
}

/// A copy of a file without the entries of some regions; none if nothing is left.
fn copy_without(
    store: &CheckpointStore,
    tier: &Tier,
    file: &FileMeta,
    path: &Path,
    without: &BTreeSet<u32>,
) -> Result<Option<PathBuf>> {
    let database = ScratchDb::ingest(&store.rocks, &store.scratch("db"), &[path.to_path_buf()])?;
    let copy = tier.incoming_path();
    let options = store.rocks.options();
    let mut writer = DeltaWriter::new(&options, &copy);
    for region in file.regions.iter().filter(|region| !without.contains(region)) {
        copy_region(database.db()?, *region, false, &mut writer)?;
    }
    Ok(writer.finish()?.map(|_| copy))
}

/// The state of some regions, each at its own version, in a tier of its own. The directory goes when this is dropped.
#[derive(Debug)]
pub struct Restore {
    snapshot: Option<Arc<TierSnapshot>>,
    regions: BTreeSet<u32>,
    dir: PathBuf,
}

impl Drop for Restore {
    fn drop(&mut self) {
        drop(self.snapshot.take());
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "leaving a scratch directory behind until restart");
        }
    }
}

impl Restore {
    /// Opens the versions `chosen` (region → epoch) of a manifest; checks the checksum of each file used.
    pub fn open(store: &CheckpointStore, manifest: &Manifest, chosen: &BTreeMap<u32, u64>) -> Result<Self> {
        for (region, epoch) in chosen {
            if let Some(version) = manifest.version(*region, *epoch) {
                store.verify_files(&manifest.files_of(version)?)?;
            }
        }
        let dir = store.scratch("restore");
        let tier = Tier::open(&store.rocks, &dir)?;
        let mut restore = Self {
            snapshot: None,
            regions: chosen.keys().copied().collect(),
            dir,
        };
        load(store, &tier, manifest, chosen)?;
        restore.snapshot = Some(tier.snapshot());
        Ok(restore)
    }

    /// See [`TierSnapshot::scan_operator`].
    pub fn scan_region<E: From<StorageError>>(
        &self,
        region: u32,
        operator: u32,
        vnodes: Option<&VnodeSet>,
        f: impl FnMut(u8, u8, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.of(region)?.scan_operator(region, operator, vnodes, f)
    }

    /// The operators of a region that have entries.
    pub fn operators(&self, region: u32) -> Result<Vec<u32>> {
        let mut operators = Vec::new();
        let prefix = region_prefix(region);
        let mut scan = self.of(region)?.scan(&prefix, None)?;
        while let Some((encoded, _)) = scan.next()? {
            let operator = decode_key(encoded)?.operator;
            operators.push(operator);
            match after_prefix(&operator_prefix(region, operator)) {
                Some(next) => scan.seek(&prefix, Some(&next))?,
                None => break,
            }
        }
        Ok(operators)
    }

    pub(super) fn of(&self, region: u32) -> Result<&Arc<TierSnapshot>> {
        let snapshot = self.snapshot.as_ref().filter(|_| self.regions.contains(&region));
        snapshot.ok_or_else(|| StorageError::Invalid {
            what: format!("region {region}"),
            reason: "is not part of this restore".to_string(),
        })
    }
}

/// Options for reading everything once.
pub(super) fn scan_options() -> rocksdb::ReadOptions {
    let mut options = rocksdb::ReadOptions::default();
    options.set_total_order_seek(true);
    options.fill_cache(false);
    options.set_readahead_size(2 << 20);
    options
}

pub(super) fn decode_key(encoded: &[u8]) -> Result<StateKey<'_>> {
    StateKey::decode(encoded).ok_or_else(|| StorageError::corrupt("a restored database", "a key is too short"))
}

/// A throw-away database of checked files, oldest first.
pub(super) fn ingest(store: &CheckpointStore, files: &[FileMeta]) -> Result<ScratchDb> {
    let paths = store.fetch_checked(files)?;
    let database = ScratchDb::ingest(&store.rocks, &store.scratch("db"), &paths);
    // Ingestion moved them, unless it failed.
    paths.iter().for_each(|path| remove_scratch(path));
    database
}
