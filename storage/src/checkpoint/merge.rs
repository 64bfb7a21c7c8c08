//! Merging delta files, so that a version's list stays short.
//!
//! Size-tiered: files fall into classes by size, each eight times the one before. Seen from the newest file on, a file counts as
//! of the highest class so far; when eight of a class have come together, they and all newer files are merged. So a list
//! holds at most seven files of each class, and an entry is rewritten once a class, log₈ of the state's size in ticks:
//! the cold tier compacts the same entries once more, and a restart opens files by linking them, so a longer list is
//! cheap. Merging streams: it holds a block of each input.
//!
//! ```text
//! sizes, oldest first   900 300 │ 2 1 1 1 1 1 1 1     →   900 300 9
//! ```
//!
//! A file holds entries of several regions and their lists differ, so a plan is made for each distinct stretch, with
//! the regions that have it; a merged file holds the entries of these only.

use std::collections::BTreeMap;

use super::manifest::{FileId, FileMeta, Regions};
use super::restore::{decode_key, ingest, scan_options};
use super::store::{CheckpointStore, ScratchFile};
use crate::delta_file::{DeltaWriter, after_prefix, decode_value, region_prefix};
use crate::error::{Result, StorageError};

/// Files of a size class that start a merge.
const FAN_IN: usize = 8;
/// Smaller files are all of the first class.
const CLASS_BYTES: u64 = 64 << 10;
/// No list is longer, whatever the sizes: seven of each class up to a terabyte.
pub const FILES_MAX: usize = 64;

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

/// Where the newest stretch to merge begins, if there is one: see the module's text.
fn stretch(sizes: &[u64]) -> Option<usize> {
    let mut start = None;
    let (mut class, mut in_class) = (0, 0);
    for (at, size) in sizes.iter().enumerate().rev() {
        let own = size_class(*size);
        if own > class {
            (class, in_class) = (own, 0);
        }
        in_class += 1;
        if in_class >= FAN_IN {
            start = Some(at);
        }
    }
    start
}

/// Files of a class differ in size by less than [`FAN_IN`] times.
fn size_class(bytes: u64) -> u32 {
    let (mut class, mut bound) = (0, CLASS_BYTES);
    while bytes >= bound {
        class += 1;
        bound = bound.saturating_mul(FAN_IN as u64);
    }
    class
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
        let path = ScratchFile(self.scratch("merged.sst"));
        let options = self.rocks.options();
        let mut writer = DeltaWriter::new(&options, &path.0);
        for (region, at_start) in &plan.regions {
            copy_region(database.db()?, *region, *at_start, &mut writer)?;
        }
        match writer.finish()? {
            Some(written) => self.put_file(&path.0, written).map(Some),
            None => Ok(None),
        }
    }
}

pub(super) fn copy_region(
    db: &rocksdb::DB,
    region: u32,
    drop_tombstones: bool,
    writer: &mut DeltaWriter<'_>,
) -> Result<()> {
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
            writer.add(region, key, value)?;
        }
        iterator.next();
    }
    iterator
        .status()
        .map_err(|e| StorageError::from_rocksdb(e, "merging delta files"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewriting is bounded: with equal ticks an entry is rewritten once a size class, and lists stay short.
    #[test]
    fn an_entry_is_rewritten_a_logarithmic_number_of_times() {
        for tick in [2_000_u64, 3 << 20, 90 << 20] {
            let (mut list, mut written, mut longest) = (Vec::new(), 0, 0);
            let ticks = 4096;
            for _ in 0..ticks {
                list.push(tick);
                if let Some(start) = stretch(&list) {
                    let merged: u64 = list.drain(start..).sum();
                    written += merged;
                    list.push(merged);
                }
                longest = longest.max(list.len());
            }
            let rewritten = written as f64 / (tick * ticks) as f64;
            assert!(
                rewritten < 5.0,
                "tick {tick}: each entry rewritten {rewritten:.1} times"
            );
            assert!(longest <= FILES_MAX / 2, "tick {tick}: {longest} files");
        }
    }

    #[test]
    fn lists_of_any_sizes_stay_short() {
        let mut state = 9_u64;
        let mut list: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            list.push(1 << ((state >> 33) % 38));
            if let Some(start) = stretch(&list) {
                assert!(list.len() - start >= FAN_IN);
                let merged: u64 = list.drain(start..).sum();
                list.push(merged);
            }
            assert!(list.len() <= FILES_MAX, "{list:?}");
        }
    }
}
