//! Merging delta files, so that a version's list stays short.
//!
//! Size-tiered: when a list has more than [`FILES_MAX`] files, the longest newest stretch is merged in which no file is
//! larger than twice all newer ones together. So sizes fall geometrically along the list, and an entry is rewritten a
//! logarithmic number of times.
//!
//! ```text
//! sizes, oldest first   900 300 │ 9 7 1 1 1 1 1 1 1     →   900 300 23
//! ```
//!
//! A file holds entries of several regions and their lists differ, so a plan is made for each distinct stretch, with
//! the regions that have it; a merged file holds the entries of these only.

use std::collections::BTreeMap;

use super::manifest::{FileId, FileMeta, Regions};
use super::restore::{decode_key, ingest, scan_options};
use super::store::{CheckpointStore, remove_scratch};
use crate::delta_file::{SortedWriter, after_prefix, decode_value, region_prefix};
use crate::error::{Result, StorageError};

/// Files in a list that start a merge.
pub const FILES_MAX: usize = 8;

/// One merge to do: see [`plan_merges`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// Adjacent files of a list, oldest first.
    pub inputs: Vec<FileMeta>,
    /// Regions whose entries the merged file holds; true if the stretch begins the region's list, so that nothing
    /// older is hidden by a tombstone.
    pub regions: BTreeMap<u32, bool>,
}

/// The merges that the newest versions' lists call for.
pub fn plan_merges(regions: &Regions, files: &BTreeMap<FileId, FileMeta>) -> Vec<MergePlan> {
    let mut plans: BTreeMap<Vec<FileId>, MergePlan> = BTreeMap::new();
    for (region, versions) in regions {
        let Some(version) = versions.last() else { continue };
        let list: Option<Vec<&FileMeta>> = version.files.iter().map(|id| files.get(id)).collect();
        let Some(list) = list else { continue };
        let sizes: Vec<u64> = list.iter().map(|file| file.bytes).collect();
        let Some(start) = stretch(&sizes) else { continue };
        let plan = plans
            .entry(version.files[start..].to_vec())
            .or_insert_with(|| MergePlan {
                inputs: list[start..].iter().map(|file| (*file).clone()).collect(),
                regions: BTreeMap::new(),
            });
        plan.regions.insert(*region, start == 0);
    }
    plans.into_values().collect()
}

/// Where the newest stretch to merge begins, if there is one of at least two files.
fn stretch(sizes: &[u64]) -> Option<usize> {
    if sizes.len() <= FILES_MAX {
        return None;
    }
    let mut start = sizes.len() - 1;
    let mut newer = sizes[start];
    while start > 0 && sizes[start - 1] <= newer.saturating_mul(2) {
        start -= 1;
        newer = newer.saturating_add(sizes[start]);
    }
    if start + 1 == sizes.len() && sizes.len() > 2 * FILES_MAX {
        start -= 1;
    }
    (start + 1 < sizes.len()).then_some(start)
}

/// Replaces the inputs by the merged file (by nothing, if no entry was left) in all versions of the plan's regions
/// whose list has them side by side.
pub fn apply_merge(
    regions: &mut Regions,
    files: &mut BTreeMap<FileId, FileMeta>,
    plan: &MergePlan,
    merged: Option<&FileMeta>,
) {
    let inputs: Vec<FileId> = plan.inputs.iter().map(|file| file.id).collect();
    for (region, at_start) in &plan.regions {
        for version in regions.get_mut(region).into_iter().flatten() {
            let Some(at) = version.files.windows(inputs.len()).position(|window| window == inputs) else {
                continue;
            };
            // Without its tombstones the merged file may only begin a list.
            if *at_start && at != 0 {
                continue;
            }
            version.files.splice(at..at + inputs.len(), merged.map(|file| file.id));
        }
    }
    if let Some(merged) = merged {
        files.insert(merged.id, merged.clone());
    }
    let named = |id: &FileId| regions.values().flatten().any(|version| version.files.contains(id));
    for input in inputs.iter().filter(|input| !named(input)) {
        files.remove(input);
    }
}

impl CheckpointStore {
    /// Does a merge: one file of the newest entry of each key; none if no entry was left. Like
    /// [`CheckpointStore::put_delta`]'s, the file is kept until a manifest names it.
    pub fn merge(&self, plan: &MergePlan) -> Result<Option<FileMeta>> {
        let database = ingest(self, &plan.inputs)?;
        let path = self.scratch("merged.sst");
        let options = self.rocks.options();
        let merged = SortedWriter::create(&options, &path).and_then(|mut writer| {
            for (region, at_start) in &plan.regions {
                copy_region(database.db()?, *region, *at_start, &mut writer)?;
            }
            if writer.rows() == 0 {
                return Ok(None);
            }
            let rows = writer.finish()?;
            self.put_file(&path, rows).map(Some)
        });
        remove_scratch(&path);
        merged
    }
}

fn copy_region(db: &rocksdb::DB, region: u32, drop_tombstones: bool, writer: &mut SortedWriter<'_>) -> Result<()> {
    let prefix = region_prefix(region);
    let mut options = scan_options();
    if let Some(end) = after_prefix(&prefix) {
        options.set_iterate_upper_bound(end);
    }
    let mut iterator = db.raw_iterator_opt(options);
    iterator.seek(prefix);
    while let Some((key, value)) = iterator.item() {
        decode_key(key)?;
        if !drop_tombstones || decode_value(value, &"a merged database")?.is_some() {
            writer.add(key, value)?;
        }
        iterator.next();
    }
    iterator
        .status()
        .map_err(|e| StorageError::from_rocksdb(e, "merging delta files"))
}
