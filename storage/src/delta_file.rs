//! Delta files: what changed in the state between two checkpoints, as one sorted immutable RocksDB SST.
//!
//! ```text
//! key    region u32 │ operator u32 │ table u8 │ vnode u8 │ key bytes        (big-endian, so sorted by all of it)
//! value  1 │ value bytes       put
//!        0                     tombstone, explicit: a merge of some files must keep it for the older ones
//! ```
//!
//! A [`DeltaBuilder`] gathers entries in one arena, in any order, the last put of a key winning; writing it sorts an
//! index of 32 bytes a row, of which 11 key bytes decide most comparisons. Cost: about 1 µs a row, see
//! `docs/decisions/0002-delta-files.md`. RocksDB's own `put` would cost 4 µs and a compaction.

use std::collections::BTreeMap;
use std::path::Path;

use rocksdb::{Options, SstFileWriter};

use crate::error::{Result, StorageError};
use crate::rocks::RocksShared;

/// Bytes before the operator's own key.
pub const STATE_KEY_PREFIX_BYTES: usize = 10;

const TOMBSTONE: u8 = 0;
const PUT: u8 = 1;

/// A decoded entry key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateKey<'a> {
    /// Region.
    pub region: u32,
    /// Operator in the region's plan.
    pub operator: u32,
    /// State table of the operator.
    pub table: u8,
    /// Hash bucket of the key.
    pub vnode: u8,
    /// The operator's own bytes, compared as such.
    pub key: &'a [u8],
}

impl<'a> StateKey<'a> {
    /// Appends the encoded key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.region.to_be_bytes());
        out.extend_from_slice(&self.operator.to_be_bytes());
        out.extend_from_slice(&[self.table, self.vnode]);
        out.extend_from_slice(self.key);
    }

    /// Splits an encoded key; none if it is too short.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (prefix, key) = bytes.split_at_checked(STATE_KEY_PREFIX_BYTES)?;
        let number = |at: usize| u32::from_be_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        Some(Self {
            region: number(0),
            operator: number(4),
            table: prefix[8],
            vnode: prefix[9],
            key,
        })
    }
}

/// First bytes of all keys of a region.
pub fn region_prefix(region: u32) -> [u8; 4] {
    region.to_be_bytes()
}

/// First bytes of all keys of an operator.
pub fn operator_prefix(region: u32, operator: u32) -> [u8; 8] {
    let mut prefix = [0; 8];
    prefix[..4].copy_from_slice(&region.to_be_bytes());
    prefix[4..].copy_from_slice(&operator.to_be_bytes());
    prefix
}

/// First bytes of all keys of one vnode of a state table.
pub fn vnode_prefix(region: u32, operator: u32, table: u8, vnode: u8) -> [u8; STATE_KEY_PREFIX_BYTES] {
    let mut prefix = [0; STATE_KEY_PREFIX_BYTES];
    prefix[..8].copy_from_slice(&operator_prefix(region, operator));
    prefix[8] = table;
    prefix[9] = vnode;
    prefix
}

/// The smallest key above all keys with that prefix; none if there is no such key.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(end);
        }
        end.pop();
    }
    None
}

/// What a stored value says: the value, or none for a tombstone.
pub(crate) fn decode_value<'a>(value: &'a [u8], file: &dyn std::fmt::Display) -> Result<Option<&'a [u8]>> {
    match value.split_first() {
        Some((&PUT, value)) => Ok(Some(value)),
        Some((&TOMBSTONE, [])) => Ok(None),
        _ => Err(StorageError::corrupt(file, "an entry is neither put nor tombstone")),
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Group index in the high 32 bits (its rank once sorted), then vnode, then the first 11 key bytes.
    order: u128,
    offset: u64,
    key_bytes: u32,
    value_bytes: u32,
}

const GROUP_SHIFT: u32 = 96;
const ORDER_KEY_BYTES: usize = 11;

/// A (region, operator, table).
type Group = (u32, u32, u8);

/// Gathers the entries of one delta file.
#[derive(Debug, Default)]
pub struct DeltaBuilder {
    /// Per entry: encoded key, then encoded value.
    arena: Vec<u8>,
    entries: Vec<Entry>,
    groups: Vec<Group>,
    group_of: BTreeMap<Group, u32>,
    last_group: Option<(Group, u32)>,
}

impl DeltaBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries added, replaced ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory held.
    pub fn memory_bytes(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Sets a key's value.
    pub fn put(&mut self, key: StateKey<'_>, value: &[u8]) {
        self.add(key, PUT, value);
    }

    /// Removes a key.
    pub fn delete(&mut self, key: StateKey<'_>) {
        self.add(key, TOMBSTONE, &[]);
    }

    /// Adds all entries of another builder after this one's.
    pub fn append(&mut self, other: &Self) {
        let base = self.arena.len() as u64;
        self.arena.extend_from_slice(&other.arena);
        let groups: Vec<u32> = other.groups.iter().map(|group| self.group(*group)).collect();
        let low = (1_u128 << GROUP_SHIFT) - 1;
        self.entries.extend(other.entries.iter().map(|entry| {
            let group = groups[(entry.order >> GROUP_SHIFT) as usize];
            Entry {
                order: (u128::from(group) << GROUP_SHIFT) | (entry.order & low),
                offset: entry.offset + base,
                ..*entry
            }
        }));
    }

    fn group(&mut self, group: Group) -> u32 {
        if let Some((last, index)) = self.last_group
            && last == group
        {
            return index;
        }
        let next = self.groups.len() as u32;
        let index = *self.group_of.entry(group).or_insert(next);
        if index == next {
            self.groups.push(group);
        }
        self.last_group = Some((group, index));
        index
    }

    fn add(&mut self, key: StateKey<'_>, tag: u8, value: &[u8]) {
        let group = self.group((key.region, key.operator, key.table));
        let mut first = [0; 16];
        first[..4].copy_from_slice(&group.to_be_bytes());
        first[4] = key.vnode;
        let shown = key.key.len().min(ORDER_KEY_BYTES);
        first[5..5 + shown].copy_from_slice(&key.key[..shown]);
        let offset = self.arena.len();
        key.encode(&mut self.arena);
        let key_bytes = self.arena.len() - offset;
        self.arena.push(tag);
        self.arena.extend_from_slice(value);
        let value_bytes = self.arena.len() - offset - key_bytes;
        self.entries.push(Entry {
            order: u128::from_be_bytes(first),
            offset: offset as u64,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
        });
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.offset as usize..][..entry.key_bytes as usize]
    }

    fn value(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.offset as usize + entry.key_bytes as usize..][..entry.value_bytes as usize]
    }

    /// Sorts by key and keeps the last entry of each; groups become ranks first so that integers compare as keys do.
    fn sort(&mut self) {
        let mut sorted: Vec<Group> = self.groups.clone();
        sorted.sort_unstable();
        let rank: BTreeMap<Group, u32> = sorted.iter().copied().zip(0..).collect();
        let ranks: Vec<u32> = self.groups.iter().map(|group| rank[group]).collect();
        let low = (1_u128 << GROUP_SHIFT) - 1;
        for entry in &mut self.entries {
            let group = ranks[(entry.order >> GROUP_SHIFT) as usize];
            entry.order = (u128::from(group) << GROUP_SHIFT) | (entry.order & low);
        }
        self.groups = sorted;
        self.group_of = rank;
        self.last_group = None;
        let arena = &self.arena;
        let rest = |entry: &Entry| {
            let end = entry.offset as usize + entry.key_bytes as usize;
            let shown = entry.offset as usize + STATE_KEY_PREFIX_BYTES;
            &arena[(shown + ORDER_KEY_BYTES).min(end)..end]
        };
        // Short keys are padded with zeros in `order`, so equal orders may differ in length: compare that too.
        let by_key = |a: &Entry, b: &Entry| {
            let order = a.order.cmp(&b.order).then_with(|| rest(a).cmp(rest(b)));
            order.then_with(|| a.key_bytes.cmp(&b.key_bytes))
        };
        self.entries
            .sort_unstable_by(|a, b| by_key(a, b).then(b.offset.cmp(&a.offset)));
        self.entries.dedup_by(|later, kept| by_key(later, kept).is_eq());
    }

    /// Writes the sorted entries into a new SST at `path` and returns their number, tombstones included. Nothing is
    /// synced: the store copies the file to where it stays.
    pub fn write(mut self, shared: &RocksShared, path: &Path) -> Result<u64> {
        self.sort();
        let options = shared.options();
        let mut writer = SortedWriter::create(&options, path)?;
        for entry in &self.entries {
            writer.add(self.key(entry), self.value(entry))?;
        }
        writer.finish()
    }
}

/// Writes an SST from entries that come in key order.
pub(crate) struct SortedWriter<'a> {
    writer: SstFileWriter<'a>,
    path: &'a Path,
    rows: u64,
}

impl<'a> SortedWriter<'a> {
    pub(crate) fn create(options: &'a Options, path: &'a Path) -> Result<Self> {
        let writer = SstFileWriter::create(options);
        writer
            .open(path)
            .map_err(|e| StorageError::from_rocksdb(e, format!("creating {}", path.display())))?;
        Ok(Self { writer, path, rows: 0 })
    }

    /// Adds an encoded entry.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.rows += 1;
        let added = self.writer.put(key, value);
        added.map_err(|e| StorageError::from_rocksdb(e, format!("writing {}", self.path.display())))
    }

    /// Entries so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Ends the file, which must have an entry, and returns their number.
    pub(crate) fn finish(mut self) -> Result<u64> {
        let done = self.writer.finish();
        done.map_err(|e| StorageError::from_rocksdb(e, format!("finishing {}", self.path.display())))?;
        Ok(self.rows)
    }
}
