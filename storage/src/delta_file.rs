//! Delta files: what changed in the state between two checkpoints, as one sorted immutable RocksDB SST.
//!
//! ```text
//! key    region u32 │ operator u32 │ table u8 │ vnode u8 │ key bytes        (big-endian, so sorted by all of it)
//! value  1 │ value bytes       put
//!        0                     tombstone, explicit: a merge of some files must keep it for the older ones
//! ```
//!
//! A file is written through a [`DeltaWriter`] in key order. A region's entries come from a [`DeltaIndex`], which sorts
//! them where they lie, the last of a key winning, by 11 key bytes in most comparisons: 56 bytes an entry beside the entries
//! themselves. What is sorted already (a relation's rows) is passed on. Cost: about 1 µs a row, see
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
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
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

/// An entry that lies elsewhere.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    /// Group (its rank once sorted) in the high 32 bits, then vnode, then the first 3 key bytes.
    high: u64,
    /// The next 8 key bytes.
    low: u64,
    key: &'a [u8],
    value: Option<&'a [u8]>,
    /// Position among the entries added: the last of equal keys wins.
    place: u32,
    vnode: u8,
}

const GROUP_SHIFT: u32 = 32;
const ORDER_KEY_BYTES: usize = 11;

/// An (operator, table).
type Group = (u32, u8);

/// Sorts one region's entries, which stay where they are.
#[derive(Debug, Default)]
pub struct DeltaIndex<'a> {
    region: u32,
    entries: Vec<Entry<'a>>,
    groups: Vec<Group>,
    group_of: BTreeMap<Group, u32>,
    last_group: Option<(Group, u32)>,
}

impl<'a> DeltaIndex<'a> {
    /// An empty index for entries of `region`, with room for `entries`.
    pub fn new(region: u32, entries: usize) -> Self {
        Self {
            region,
            entries: Vec::with_capacity(entries),
            ..Self::default()
        }
    }

    /// Sets a key's value, or removes the key.
    pub fn put(&mut self, operator: u32, table: u8, vnode: u8, key: &'a [u8], value: Option<&'a [u8]>) {
        let group = self.group((operator, table));
        let mut first = [0; ORDER_KEY_BYTES];
        let shown = key.len().min(ORDER_KEY_BYTES);
        first[..shown].copy_from_slice(&key[..shown]);
        let [a, b, c, rest @ ..] = first;
        self.entries.push(Entry {
            high: (u64::from(group) << GROUP_SHIFT) | u64::from(u32::from_be_bytes([vnode, a, b, c])),
            low: u64::from_be_bytes(rest),
            key,
            value,
            place: self.entries.len() as u32,
            vnode,
        });
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

    /// Sorts by key and keeps the last entry of each; groups become ranks first so that integers compare as keys do.
    fn sort(&mut self) {
        let mut sorted: Vec<Group> = self.groups.clone();
        sorted.sort_unstable();
        let rank: BTreeMap<Group, u32> = sorted.iter().copied().zip(0..).collect();
        let ranks: Vec<u64> = self.groups.iter().map(|group| u64::from(rank[group])).collect();
        let low = (1_u64 << GROUP_SHIFT) - 1;
        for entry in &mut self.entries {
            let group = ranks[(entry.high >> GROUP_SHIFT) as usize];
            entry.high = (group << GROUP_SHIFT) | (entry.high & low);
        }
        self.groups = sorted;
        self.entries
            .sort_unstable_by(|a, b| by_key(a, b).then(b.place.cmp(&a.place)));
        self.entries.dedup_by(|later, kept| by_key(later, kept).is_eq());
    }

    /// Adds the sorted entries to a file in which no key of the region comes after them yet.
    pub fn write(mut self, writer: &mut DeltaWriter<'_>) -> Result<()> {
        self.sort();
        for entry in &self.entries {
            let (operator, table) = self.groups[(entry.high >> GROUP_SHIFT) as usize];
            let key = StateKey {
                region: self.region,
                operator,
                table,
                vnode: entry.vnode,
                key: entry.key,
            };
            writer.put(key, entry.value)?;
        }
        Ok(())
    }
}

/// Short keys are padded with zeros in `high` and `low`, so equal ones may differ in length: that is compared too.
fn by_key(a: &Entry<'_>, b: &Entry<'_>) -> std::cmp::Ordering {
    let rest = |entry: &Entry<'_>| ORDER_KEY_BYTES.min(entry.key.len());
    (a.high, a.low)
        .cmp(&(b.high, b.low))
        .then_with(|| a.key[rest(a)..].cmp(&b.key[rest(b)..]))
        .then_with(|| a.key.len().cmp(&b.key.len()))
}

/// Gathers entries of any regions in memory of its own, in any order.
#[derive(Debug, Default)]
pub struct DeltaBuilder {
    /// Per entry: key, then value.
    arena: Vec<u8>,
    entries: BTreeMap<u32, Vec<Gathered>>,
}

#[derive(Debug)]
struct Gathered {
    group: Group,
    vnode: u8,
    offset: usize,
    key_bytes: usize,
    value_bytes: Option<usize>,
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

    /// Sets a key's value.
    pub fn put(&mut self, key: StateKey<'_>, value: &[u8]) {
        self.add(key, Some(value));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: StateKey<'_>) {
        self.add(key, None);
    }

    fn add(&mut self, key: StateKey<'_>, value: Option<&[u8]>) {
        let offset = self.arena.len();
        self.arena.extend_from_slice(key.key);
        self.arena.extend_from_slice(value.unwrap_or_default());
        self.entries.entry(key.region).or_default().push(Gathered {
            group: (key.operator, key.table),
            vnode: key.vnode,
            offset,
            key_bytes: key.key.len(),
            value_bytes: value.map(<[u8]>::len),
        });
    }

    /// Adds the sorted entries to a file.
    pub fn write_to(&self, writer: &mut DeltaWriter<'_>) -> Result<()> {
        for (region, entries) in &self.entries {
            let mut index = DeltaIndex::new(*region, entries.len());
            for entry in entries {
                let (key, rest) = self.arena[entry.offset..].split_at(entry.key_bytes);
                let value = entry.value_bytes.map(|bytes| &rest[..bytes]);
                index.put(entry.group.0, entry.group.1, entry.vnode, key, value);
            }
            index.write(writer)?;
        }
        Ok(())
    }

    /// Writes the sorted entries into a new SST at `path` and returns their number, tombstones included. Nothing is
    /// synced: the store does that.
    pub fn write(self, shared: &RocksShared, path: &Path) -> Result<u64> {
        let options = shared.options();
        let mut writer = DeltaWriter::new(&options, path);
        self.write_to(&mut writer)?;
        Ok(writer.finish()?.map_or(0, |written| written.rows))
    }
}

/// What was written into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenFile {
    /// Entries, tombstones included.
    pub rows: u64,
    /// Regions that have entries, ascending.
    pub regions: Vec<u32>,
}

/// Writes a delta file from entries that come in key order. The file is made with the first of them.
pub struct DeltaWriter<'a> {
    options: &'a Options,
    path: &'a Path,
    writer: Option<SstFileWriter<'a>>,
    written: WrittenFile,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> DeltaWriter<'a> {
    pub(crate) fn new(options: &'a Options, path: &'a Path) -> Self {
        Self {
            options,
            path,
            writer: None,
            written: WrittenFile {
                rows: 0,
                regions: Vec::new(),
            },
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Entries so far.
    pub fn rows(&self) -> u64 {
        self.written.rows
    }

    /// Adds an entry: a value, or none for a removed key.
    pub fn put(&mut self, key: StateKey<'_>, value: Option<&[u8]>) -> Result<()> {
        let (mut encoded, mut stored) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        encoded.clear();
        key.encode(&mut encoded);
        stored.clear();
        stored.push(if value.is_some() { PUT } else { TOMBSTONE });
        stored.extend_from_slice(value.unwrap_or_default());
        let added = self.add(key.region, &encoded, &stored);
        (self.key, self.value) = (encoded, stored);
        added
    }

    /// Adds an entry as it is stored.
    pub(crate) fn add(&mut self, region: u32, key: &[u8], stored: &[u8]) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = SstFileWriter::create(self.options);
                writer
                    .open(self.path)
                    .map_err(|e| StorageError::from_rocksdb(e, format!("creating {}", self.path.display())))?;
                self.writer.insert(writer)
            }
        };
        self.written.rows += 1;
        if self.written.regions.last() != Some(&region) {
            self.written.regions.push(region);
        }
        writer
            .put(key, stored)
            .map_err(|e| StorageError::from_rocksdb(e, format!("writing {}", self.path.display())))
    }

    /// Ends the file; none was made if nothing was added.
    pub(crate) fn finish(mut self) -> Result<Option<WrittenFile>> {
        let Some(mut writer) = self.writer.take() else {
            return Ok(None);
        };
        writer
            .finish()
            .map_err(|e| StorageError::from_rocksdb(e, format!("finishing {}", self.path.display())))?;
        Ok(Some(self.written))
    }
}
