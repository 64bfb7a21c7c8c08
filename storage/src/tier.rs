//! The cold tier: one RocksDB for the process that holds, for every region, the state of its newest completed
//! checkpoint.
//!
//! ```text
//!   delta file, durable and named by a manifest ──hard link──▶ level 0 ─┐ compaction in the background,
//!                                                              …        ├─ rate limited
//!   reads: TierSnapshot, taken after the ingestion ◀────────── sorted ──┘
//! ```
//!
//! Nothing is written row by row: a checkpoint's file is ingested as it is, and becomes visible as a whole. A reader holds
//! a [`TierSnapshot`] and so one checkpoint, whatever is ingested meanwhile. The directory is scratch: it is emptied at start
//! and filled again from the manifest's files ([`crate::checkpoint::load`]), which are linked, not read; after a crash
//! a live RocksDB directory is never opened.
//!
//! Cost of a lookup: one bloom filter a sorted run (about a microsecond each when cached) and one block for a hit. A
//! prefix of [`PREFIX_BYTES`] bytes or more is looked up in the filters too, so a scan of few rows reads only the runs that have
//! them; keys whose own bytes begin with a hash of what they are looked up by profit. Runs are bounded by making
//! ingestion wait ([`Tier::ingest`]). Cost in space: what compaction has not removed yet, at most about as much again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, FlushOptions, IngestExternalFileOptions, ReadOptions, WriteOptions,
};

use crate::checkpoint::{VnodeSet, WrittenDelta};
use crate::delta_file::{StateKey, after_prefix, decode_value, operator_prefix, region_prefix, vnode_prefix};
use crate::error::{Result, StorageError};
use crate::owned::{OwnedIterator, OwnedSnapshot};
use crate::rocks::{PREFIX_BYTES, RocksShared};

/// Files in level 0 beyond which ingestion waits for compaction.
const LEVEL0_FILES_MAX: u64 = 32;
/// How long it waits at most: a slow disk must not stop checkpoints for good.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Keys looked up at a time: bounds the blocks that are pinned together.
const GET_KEYS: usize = 512;

/// The process's cold tier.
pub struct Tier {
    db: Arc<DB>,
    /// Files on their way in.
    incoming: PathBuf,
    next_file: AtomicU64,
    /// One ingestion at a time.
    ingesting: Mutex<()>,
    pause: Condvar,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier")
            .field("path", &self.db.path())
            .finish_non_exhaustive()
    }
}

/// The tier as of one checkpoint. Cheap to take; while it lives, compaction keeps the versions that it sees.
pub struct TierSnapshot {
    inner: Arc<OwnedSnapshot>,
}

impl std::fmt::Debug for TierSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierSnapshot").finish_non_exhaustive()
    }
}

/// What the tier holds, for `levee_catalog` and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files in level 0.
    pub level0_files: u64,
    /// Entries, old versions included.
    pub entries: u64,
    /// Compactions running.
    pub compactions: u64,
    /// Memory of table readers that is not in the block cache.
    pub reader_bytes: u64,
}

impl Tier {
    /// Makes an empty tier in `dir`; what was there goes.
    pub fn open(rocks: &RocksShared, dir: &Path) -> Result<Arc<Self>> {
        // RocksDB locks a path for as long as the process has it open, and a reader of an engine that was just closed may.
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let (path, incoming) = (dir.join(format!("db-{number}")), dir.join("incoming"));
        match std::fs::remove_dir_all(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::from_io(e, format!("emptying {}", dir.display())));
            }
            _ => {}
        }
        std::fs::create_dir_all(&incoming)
            .map_err(|e| StorageError::from_io(e, format!("creating {}", incoming.display())))?;
        let options = rocks.tier_options();
        let families = vec![ColumnFamilyDescriptor::new("default", options.clone())];
        let db = DB::open_cf_descriptors(&options, &path, families)
            .map_err(|e| StorageError::from_rocksdb(e, format!("creating {}", path.display())))?;
        Ok(Arc::new(Self {
            db: Arc::new(db),
            incoming,
            next_file: AtomicU64::new(1),
            ingesting: Mutex::new(()),
            pause: Condvar::new(),
        }))
    }

    /// Takes in completed delta files, oldest first, all at once: later snapshots see all of them or, after an error, none.
    ///
    /// The files are linked (copied from another file system) and stay the caller's. Waits while compaction is far behind.
    pub fn ingest(&self, files: &[PathBuf]) -> Result<()> {
        let mut linked = Vec::with_capacity(files.len());
        let mut link = || {
            for file in files {
                let path = self.incoming_path();
                linked.push(path.clone());
                if std::fs::hard_link(file, &path).is_err() {
                    std::fs::copy(file, &path)
                        .map_err(|e| StorageError::from_io(e, format!("copying {}", file.display())))?;
                }
            }
            Ok(())
        };
        let done = link();
        let done = done.and_then(|()| self.ingest_moved(&linked));
        // Ingestion moved them, unless something failed.
        for path in &linked {
            crate::checkpoint::remove_scratch(path);
        }
        done
    }

    /// [`Self::ingest`] of files that the store has just written; after an error it may be repeated.
    pub fn ingest_written(&self, files: &[WrittenDelta]) -> Result<()> {
        let paths: Vec<PathBuf> = files.iter().map(|file| file.scratch.0.clone()).collect();
        self.ingest_moved(&paths)
    }

    /// A new path in the tier's directory, for a file that [`Self::ingest_moved`] takes.
    pub(crate) fn incoming_path(&self) -> PathBuf {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.incoming.join(format!("{number:08}.sst"))
    }

    /// [`Self::ingest`] of files that become the tier's.
    pub(crate) fn ingest_moved(&self, files: &[PathBuf]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut guard = self.ingesting.lock();
        let started = Instant::now();
        while self.number("rocksdb.num-files-at-level0") > LEVEL0_FILES_MAX && started.elapsed() < WAIT_MAX {
            // Nobody notifies: this is a pause that lets compaction go on.
            self.pause.wait_for(&mut guard, Duration::from_millis(20));
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.db
            .ingest_external_file_opts(&options, files.to_vec())
            .map_err(|e| StorageError::from_rocksdb(e, format!("taking {} files into the tier", files.len())))
    }

    /// The tier as it is now.
    pub fn snapshot(self: &Arc<Self>) -> Arc<TierSnapshot> {
        Arc::new(TierSnapshot {
            inner: Arc::new(OwnedSnapshot::take(&self.db)),
        })
    }

    /// Removes all entries of a region; snapshots taken before still see them.
    pub fn drop_region(&self, region: u32) -> Result<()> {
        let context = || format!("removing region {region} from the tier");
        let from = region_prefix(region).to_vec();
        // Region ids end below u32::MAX, so there is a prefix above.
        let to = after_prefix(&from).unwrap_or_else(|| vec![u8::MAX; 5]);
        let family = self
            .db
            .cf_handle("default")
            .ok_or_else(|| StorageError::corrupt(self.db.path().display(), "has no default column family"))?;
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        self.db
            .delete_range_cf_opt(&family, from, to, &unlogged)
            .map_err(|e| StorageError::from_rocksdb(e, context()))?;
        // Out of the memtable, so that later ingestions need not flush it and compaction can reclaim the space.
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        self.db
            .flush_opt(&flush)
            .map_err(|e| StorageError::from_rocksdb(e, context()))
    }

    /// Figures for people.
    pub fn stats(&self) -> TierStats {
        TierStats {
            bytes: self.number("rocksdb.total-sst-files-size"),
            level0_files: self.number("rocksdb.num-files-at-level0"),
            entries: self.number("rocksdb.estimate-num-keys"),
            compactions: self.number("rocksdb.num-running-compactions"),
            reader_bytes: self.number("rocksdb.estimate-table-readers-mem"),
        }
    }

    /// Bytes that compaction has written since the tier was opened, as RocksDB counts them.
    pub fn compacted_bytes(&self) -> u64 {
        let text = self.db.property_value("rocksdb.cfstats-no-file-histogram");
        let text = text.ok().flatten().unwrap_or_default();
        // " Sum  9/0  1.2 GB …  Write(GB)": the ninth column of the row of sums.
        let sum = text.lines().find(|line| line.trim_start().starts_with("Sum"));
        let column = sum.and_then(|line| line.split_whitespace().nth(9)?.parse::<f64>().ok());
        (column.unwrap_or(0.0) * f64::from(1 << 30)) as u64
    }

    fn number(&self, property: &str) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or(0)
    }
}

impl TierSnapshot {
    /// Calls `f` with the index and value of each of `keys` (encoded [`crate::delta_file::StateKey`]s) that has one; in what
    /// order is left open. Sorted keys save a sort.
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>], f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let db = self.inner.db();
        let family = db
            .cf_handle("default")
            .ok_or_else(|| StorageError::corrupt(db.path().display(), "has no default column family"))?;
        let mut options = ReadOptions::default();
        self.inner.use_in(&mut options);
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        let key = |index: &u32| keys[*index as usize].as_ref();
        if !keys.is_sorted_by(|a, b| a.as_ref() <= b.as_ref()) {
            order.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        }
        for part in order.chunks(GET_KEYS) {
            let found = db.batched_multi_get_cf_opt(&family, part.iter().map(key), true, &options);
            for (index, value) in part.iter().zip(found) {
                let value = value.map_err(|e| StorageError::from_rocksdb(e, "reading the tier"))?;
                let Some(value) = value else { continue };
                if let Some(value) = decode_value(&value, &"the tier")? {
                    f(*index as usize, value)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a region has any entry.
    pub fn has_region(self: &Arc<Self>, region: u32) -> Result<bool> {
        Ok(self.scan(&region_prefix(region), None)?.next()?.is_some())
    }

    /// Calls `f` with table, vnode, key and value of each entry of an operator, in that order, for the vnodes given (all if
    /// none). Its error ends the scan.
    pub fn scan_operator<E: From<StorageError>>(
        self: &Arc<Self>,
        region: u32,
        operator: u32,
        vnodes: Option<&VnodeSet>,
        mut f: impl FnMut(u8, u8, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = vnodes.copied().unwrap_or(VnodeSet::ALL);
        let prefix = operator_prefix(region, operator);
        let mut scan = self.scan(&prefix, None)?;
        while let Some((encoded, value)) = scan.next()? {
            let key = StateKey::decode(encoded)
                .ok_or_else(|| StorageError::corrupt("the tier", "an entry's key is too short"))?;
            if wanted.contains(key.vnode) {
                f(key.table, key.vnode, key.key, value)?;
                continue;
            }
            let next = match wanted.after(key.vnode) {
                Some(vnode) => Some((key.table, vnode)),
                None => key.table.checked_add(1).map(|table| (table, 0)),
            };
            let Some((table, vnode)) = next else { break };
            scan.seek(&prefix, Some(&vnode_prefix(region, operator, table, vnode)))?;
        }
        Ok(())
    }

    /// The entries whose keys begin with `prefix`, from the key `from` on if given.
    pub fn scan(self: &Arc<Self>, prefix: &[u8], from: Option<&[u8]>) -> Result<TierScan> {
        let mut scan = TierScan {
            snapshot: Arc::clone(self),
            iterator: None,
            short: false,
            prefix: Vec::new(),
            fresh: true,
        };
        scan.seek(prefix, from)?;
        Ok(scan)
    }
}

/// Reads entries in key order. One scan may be moved to many prefixes with [`TierScan::seek`], which spares the making of an
/// iterator (some microseconds a sorted run).
pub struct TierScan {
    snapshot: Arc<TierSnapshot>,
    iterator: Option<OwnedIterator>,
    /// The iterator is made for prefixes of at least [`PREFIX_BYTES`] bytes.
    short: bool,
    prefix: Vec<u8>,
    /// The entry at hand has not been handed out yet.
    fresh: bool,
}

impl std::fmt::Debug for TierScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierScan")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl TierScan {
    /// Begins again with another prefix.
    pub fn seek(&mut self, prefix: &[u8], from: Option<&[u8]>) -> Result<()> {
        let short = prefix.len() >= PREFIX_BYTES;
        let same = short == self.short && (short || prefix == self.prefix);
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix);
        self.fresh = true;
        let reused = self.iterator.take().filter(|_| same);
        let mut iterator = match reused {
            Some(iterator) => iterator,
            None => self.snapshot.inner.iterator(scan_options(prefix, short)),
        };
        self.short = short;
        iterator
            .get()
            .seek(from.filter(|from| *from > prefix).unwrap_or(prefix));
        self.iterator = Some(iterator);
        Ok(())
    }

    /// The next entry.
    #[allow(clippy::should_implement_trait, reason = "the entry is borrowed from the scan")]
    pub fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some(iterator) = &mut self.iterator else {
            return Ok(None);
        };
        if !std::mem::replace(&mut self.fresh, false) {
            iterator.get().next();
        }
        loop {
            let Some((key, stored)) = iterator.item() else {
                iterator
                    .get()
                    .status()
                    .map_err(|e| StorageError::from_rocksdb(e, "scanning the tier"))?;
                self.fresh = true;
                return Ok(None);
            };
            if !key.starts_with(&self.prefix) {
                self.fresh = true;
                return Ok(None);
            }
            if decode_value(stored, &"the tier")?.is_some() {
                break;
            }
            iterator.get().next();
        }
        let Some((key, stored)) = self.iterator.as_ref().and_then(OwnedIterator::item) else {
            return Ok(None);
        };
        Ok(decode_value(stored, &"the tier")?.map(|value| (key, value)))
    }
}

fn scan_options(prefix: &[u8], short: bool) -> ReadOptions {
    let mut options = ReadOptions::default();
    if short {
        options.set_prefix_same_as_start(true);
        return options;
    }
    options.set_total_order_seek(true);
    options.fill_cache(false);
    options.set_readahead_size(1 << 20);
    if let Some(end) = after_prefix(prefix) {
        options.set_iterate_upper_bound(end);
    }
    options
}

/// Compression of the tier and of delta files.
pub(crate) const COMPRESSION: DBCompressionType = DBCompressionType::Lz4;

#[cfg(test)]
mod tests;
