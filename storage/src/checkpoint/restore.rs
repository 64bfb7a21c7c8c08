//! Reading a checkpoint's state back: files into throw-away databases, then a scan in key order.

use std::collections::BTreeMap;

use super::manifest::{FileId, FileMeta, Manifest, manifest_name};
use super::store::{CheckpointStore, remove_scratch};
use crate::delta_file::{StateKey, after_prefix, decode_value, operator_prefix, region_prefix, vnode_prefix};
use crate::error::{Result, StorageError};
use crate::rocks::ScratchDb;

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
    fn after(&self, vnode: u8) -> Option<u8> {
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

/// The state of some regions, each at its own version. Directories go when this is dropped.
pub struct Restore {
    databases: Vec<ScratchDb>,
    database_of: BTreeMap<u32, usize>,
}

impl std::fmt::Debug for Restore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restore")
            .field("regions", &self.database_of)
            .finish_non_exhaustive()
    }
}

impl Restore {
    /// Opens the versions `chosen` (region → epoch) of a manifest; checks the checksum of each file used.
    /// Regions with equal file lists share a database.
    pub fn open(store: &CheckpointStore, manifest: &Manifest, chosen: &BTreeMap<u32, u64>) -> Result<Self> {
        let mut restore = Self {
            databases: Vec::new(),
            database_of: BTreeMap::new(),
        };
        let mut database_of_list: BTreeMap<&[FileId], usize> = BTreeMap::new();
        for (region, epoch) in chosen {
            let version = manifest.version(*region, *epoch).ok_or_else(|| StorageError::Invalid {
                what: manifest_name(manifest.number),
                reason: format!("has no version of region {region} at epoch {epoch}"),
            })?;
            let next = restore.databases.len();
            let database = *database_of_list.entry(&version.files).or_insert(next);
            if database == next {
                restore.databases.push(ingest(store, &manifest.files_of(version)?)?);
            }
            restore.database_of.insert(*region, database);
        }
        Ok(restore)
    }

    /// Calls `f` with table, vnode, key and value of each live entry of an operator, in that order, for the vnodes
    /// given (all if none). Its error ends the scan.
    pub fn scan_region<E: From<StorageError>>(
        &self,
        region: u32,
        operator: u32,
        vnodes: Option<&VnodeSet>,
        mut f: impl FnMut(u8, u8, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = vnodes.copied().unwrap_or(VnodeSet::ALL);
        let mut iterator = self.iterator(region, &operator_prefix(region, operator))?;
        while let Some((encoded, stored)) = iterator.item() {
            let key = decode_key(encoded)?;
            if !wanted.contains(key.vnode) {
                let (table, vnode) = (key.table, key.vnode);
                let next = match wanted.after(vnode) {
                    Some(vnode) => Some((table, vnode)),
                    None => table.checked_add(1).map(|table| (table, 0)),
                };
                let Some((table, vnode)) = next else { break };
                iterator.seek(vnode_prefix(region, operator, table, vnode));
                continue;
            }
            if let Some(value) = decode_value(stored, &"a restored database")? {
                f(key.table, key.vnode, key.key, value)?;
            }
            iterator.next();
        }
        iterator
            .status()
            .map_err(|e| E::from(StorageError::from_rocksdb(e, "scanning a checkpoint")))
    }

    /// The operators of a region that have entries.
    pub fn operators(&self, region: u32) -> Result<Vec<u32>> {
        let mut operators = Vec::new();
        let mut iterator = self.iterator(region, &region_prefix(region))?;
        while let Some((encoded, _)) = iterator.item() {
            let operator = decode_key(encoded)?.operator;
            operators.push(operator);
            match after_prefix(&operator_prefix(region, operator)) {
                Some(next) => iterator.seek(next),
                None => break,
            }
        }
        iterator
            .status()
            .map_err(|e| StorageError::from_rocksdb(e, "scanning a checkpoint"))?;
        Ok(operators)
    }

    fn iterator(&self, region: u32, prefix: &[u8]) -> Result<rocksdb::DBRawIterator<'_>> {
        let database = self
            .database_of
            .get(&region)
            .and_then(|index| self.databases.get(*index));
        let database = database.ok_or_else(|| StorageError::Invalid {
            what: format!("region {region}"),
            reason: "is not part of this restore".to_string(),
        })?;
        let mut options = scan_options();
        if let Some(end) = after_prefix(prefix) {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = database.db()?.raw_iterator_opt(options);
        iterator.seek(prefix);
        Ok(iterator)
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
