//! What a checkpoint consists of, and which versions of its regions fit together.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::codec::{u32_at, u64_at};
use crate::error::{Result, StorageError};

const MAGIC: [u8; 8] = *b"LEVEEMAN";
const VERSION: u32 = 2;
/// Magic, version, body bytes, crc32 of all but itself.
const HEADER_BYTES: usize = 24;

/// Name of a delta file: the term that wrote it and a number within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// Writer's term.
    pub term: u64,
    /// Number within the term, from 1.
    pub number: u64,
}

impl FileId {
    /// The object's name.
    pub fn name(&self) -> String {
        format!("delta/{:010}-{:010}.sst", self.term, self.number)
    }

    /// Reads a file name (without the folder).
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let (term, number) = file_name.strip_suffix(".sst")?.split_once('-')?;
        Some(Self {
            term: term.parse().ok()?,
            number: number.parse().ok()?,
        })
    }
}

/// A delta file as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// Name.
    pub id: FileId,
    /// Length.
    pub bytes: u64,
    /// Checksum of the whole file.
    pub crc32: u32,
    /// Entries, tombstones included.
    pub rows: u64,
    /// Regions that have entries in it, ascending.
    pub regions: Vec<u32>,
}

/// A region's state at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RegionVersion {
    /// The epoch through which the state is complete.
    pub epoch: u64,
    /// Delta files that make up the state, oldest first. A file counts for a region only if it is listed here.
    pub files: Vec<FileId>,
    /// The region's own notes, opaque here (a backfill's cursor, say).
    pub meta: Vec<u8>,
}

/// Versions of each region, oldest first.
pub type Regions = BTreeMap<u32, Vec<RegionVersion>>;

/// One checkpoint of everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// Place in the order of manifests, without gaps.
    pub number: u64,
    /// Term of the writer.
    pub term: u64,
    /// Versions of each region.
    pub regions: Regions,
    /// All files named by a version.
    pub files: BTreeMap<FileId, FileMeta>,
    /// First log record needed to go on from here.
    pub log_seq: u64,
    /// The coordinator's snapshot, opaque here.
    pub payload: Vec<u8>,
}

impl Manifest {
    /// Names of files that the versions list.
    pub fn named_files(&self) -> BTreeSet<FileId> {
        self.regions
            .values()
            .flatten()
            .flat_map(|version| version.files.iter().copied())
            .collect()
    }

    /// Forgets files that no version lists.
    pub fn retain_named_files(&mut self) {
        let named = self.named_files();
        self.files.retain(|id, _| named.contains(id));
    }

    /// A region's version at exactly that epoch.
    pub fn version(&self, region: u32, epoch: u64) -> Option<&RegionVersion> {
        self.regions.get(&region)?.iter().find(|version| version.epoch == epoch)
    }

    /// The description of a version's files, in its order.
    pub fn files_of(&self, version: &RegionVersion) -> Result<Vec<FileMeta>> {
        let find = |id: &FileId| {
            let missing =
                || StorageError::corrupt(manifest_name(self.number), format!("does not describe {}", id.name()));
            self.files.get(id).cloned().ok_or_else(missing)
        };
        version.files.iter().map(find).collect()
    }

    /// Goes back to the versions chosen for a restart: later ones are forgotten, and so are regions without one. What a
    /// region does from there on must not build upon what it had done beyond.
    pub fn rewind(&mut self, chosen: &BTreeMap<u32, u64>) {
        self.regions.retain(|region, versions| {
            let Some(epoch) = chosen.get(region) else { return false };
            versions.retain(|version| version.epoch <= *epoch);
            true
        });
    }

    /// Checks that versions ascend and that their files are described.
    pub fn check(&self) -> Result<()> {
        for (region, versions) in &self.regions {
            if !versions.is_sorted_by(|a, b| a.epoch < b.epoch) {
                let reason = format!("versions of region {region} do not ascend");
                return Err(StorageError::corrupt(manifest_name(self.number), reason));
            }
            for version in versions {
                self.files_of(version)?;
            }
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes = postcard::to_extend(self, bytes).map_err(|e| StorageError::Invalid {
            what: manifest_name(self.number),
            reason: format!("cannot be encoded: {e}"),
        })?;
        let body_bytes = (bytes.len() - HEADER_BYTES) as u64;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&body_bytes.to_le_bytes());
        let crc = checksum(&bytes);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8], name: &str) -> Result<Self> {
        let corrupt = |reason: &str| StorageError::corrupt(name, reason);
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return Err(corrupt("not a manifest"));
        }
        if checksum(bytes) != u32_at(bytes, 20) {
            return Err(corrupt("does not match its checksum"));
        }
        let found = u32_at(bytes, 8);
        if found != VERSION {
            return Err(StorageError::Version {
                file: name.to_string(),
                found,
                supported: VERSION.to_string(),
            });
        }
        if u64_at(bytes, 12) != (bytes.len() - HEADER_BYTES) as u64 {
            return Err(corrupt("has another length than it says"));
        }
        let manifest: Self = postcard::from_bytes(&bytes[HEADER_BYTES..]).map_err(|e| corrupt(&e.to_string()))?;
        manifest.check()?;
        Ok(manifest)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..20]);
    hasher.update(&bytes[HEADER_BYTES..]);
    hasher.finalize()
}

pub(crate) fn manifest_name(number: u64) -> String {
    format!("manifest/{number:020}")
}

/// Chooses where each region starts after a crash: its newest version whose epoch is not above that of any of its
/// subscribers, so that what a subscriber misses is replayed to it.
///
/// `subscribers` maps a region to those that read it; subscribers that are not in `regions` are left out of account.
/// A region without a fitting version is not in the result and starts from nothing, and so do then the regions that
/// it reads.
pub fn choose_versions(regions: &Regions, subscribers: &BTreeMap<u32, Vec<u32>>) -> BTreeMap<u32, u64> {
    let mut chosen: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let mut path: Vec<(u32, bool)> = regions.keys().map(|region| (*region, false)).collect();
    while let Some((region, ready)) = path.pop() {
        if chosen.contains_key(&region) {
            continue;
        }
        let readers = subscribers
            .get(&region)
            .into_iter()
            .flatten()
            .filter(|reader| regions.contains_key(reader));
        if !ready {
            path.push((region, true));
            path.extend(
                readers
                    .filter(|reader| **reader != region)
                    .map(|reader| (*reader, false)),
            );
            continue;
        }
        let bound = readers
            .filter_map(|reader| chosen.get(reader))
            .map(|epoch| epoch.unwrap_or(0))
            .min();
        let versions = regions.get(&region).into_iter().flatten();
        let fitting = versions
            .map(|version| version.epoch)
            .filter(|epoch| bound.is_none_or(|bound| *epoch <= bound));
        chosen.insert(region, fitting.max());
    }
    chosen
        .into_iter()
        .filter_map(|(region, epoch)| Some((region, epoch?)))
        .collect()
}

/// Drops versions older than the chosen ones: no later crash goes back behind them.
pub fn prune(regions: &mut Regions, chosen: &BTreeMap<u32, u64>) {
    for (region, versions) in regions {
        if let Some(epoch) = chosen.get(region) {
            versions.retain(|version| version.epoch >= *epoch);
        }
    }
}
