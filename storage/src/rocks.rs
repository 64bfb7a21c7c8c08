//! RocksDB, always used the same way: lz4, bloom filters, no write-ahead log, one cache and one write budget.
//!
//! A live RocksDB directory is a scratch copy: it is made from delta files by ingestion and thrown away, never
//! opened after a crash. Index and filter blocks are partitioned and live in the block cache, so that memory is bounded
//! by the cache however many keys there are; a monolithic filter of 20 million keys would be 50 MB, and 160 MB while it is
//! built.

use std::path::{Path, PathBuf};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompactionStyle, IngestExternalFileOptions, LogLevel, Options,
    SliceTransform, UniversalCompactOptions, WriteBufferManager,
};

use crate::error::{Result, StorageError};

/// Bloom filter bits a key: 1 % false positives.
const BLOOM_BITS: f64 = 10.0;
/// First bytes of a key that are in the bloom filters beside whole keys: region, operator, table, vnode and 8 bytes of the
/// operator's own.
pub const PREFIX_BYTES: usize = crate::delta_file::STATE_KEY_PREFIX_BYTES + 8;
/// Sorted runs that start a compaction of the tier. See `docs/decisions/0009-cold-tier.md`.
const COMPACT_RUNS: i32 = 8;
/// What background work may write a second: the rest of the disk is the log's and the checkpoints'.
const BACKGROUND_BYTES_PER_SECOND: i64 = 96 << 20;
/// Tables that the tier keeps open.
const OPEN_FILES: i32 = 512;

/// How the tier's files are kept sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compaction {
    /// Few large sorted runs: each entry is rewritten a logarithmic number of times.
    #[default]
    Universal,
    /// One sorted run a level: fewer runs to read, more writing.
    Levelled,
}

/// The memory that all RocksDB instances of the process share.
#[derive(Clone)]
pub struct RocksShared {
    cache: Cache,
    write_buffers: WriteBufferManager,
    compaction: Compaction,
}

impl std::fmt::Debug for RocksShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksShared")
            .field("cache_bytes", &self.cache.get_usage())
            .finish_non_exhaustive()
    }
}

impl RocksShared {
    /// One block cache of `bytes`, a quarter of which write buffers may take.
    pub fn new(bytes: usize) -> Self {
        let cache = Cache::new_lru_cache(bytes);
        let write_buffers = WriteBufferManager::new_write_buffer_manager_with_cache(bytes / 4, false, cache.clone());
        Self {
            cache,
            write_buffers,
            compaction: Compaction::default(),
        }
    }

    /// The same memory, the tier compacted in another way (for measuring).
    #[must_use]
    pub fn with_compaction(self, compaction: Compaction) -> Self {
        Self { compaction, ..self }
    }

    /// Bytes in the shared cache, write buffers included.
    pub fn used_bytes(&self) -> usize {
        self.cache.get_usage()
    }

    /// Options of a database or a file writer.
    pub fn options(&self) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&self.cache);
        blocks.set_bloom_filter(BLOOM_BITS, false);
        blocks.set_block_size(16 << 10);
        blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        blocks.set_partition_filters(true);
        blocks.set_metadata_block_size(16 << 10);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_cache_index_and_filter_blocks_with_high_priority(true);
        blocks.set_pin_top_level_index_and_filter(true);
        let mut options = Options::default();
        options.set_compression_type(crate::tier::COMPRESSION);
        options.set_block_based_table_factory(&blocks);
        options.set_prefix_extractor(SliceTransform::create_fixed_prefix(PREFIX_BYTES));
        options.set_write_buffer_manager(&self.write_buffers);
        options.set_write_buffer_size(1 << 20);
        options.create_if_missing(true);
        // No periodic work, no threads to open files with, no log of its own to fill the disk.
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_skip_stats_update_on_db_open(true);
        options.set_max_file_opening_threads(1);
        options.set_log_level(LogLevel::Error);
        options.set_keep_log_file_num(1);
        options
    }

    /// Options of the cold tier: compaction by one thread under a rate limit.
    pub(crate) fn tier_options(&self) -> Options {
        let mut options = self.options();
        options.set_max_background_jobs(2);
        options.set_max_subcompactions(1);
        options.set_ratelimiter(BACKGROUND_BYTES_PER_SECOND, 100_000, 10);
        options.set_bytes_per_sync(1 << 20);
        options.set_max_open_files(OPEN_FILES);
        options.set_target_file_size_base(64 << 20);
        options.set_compaction_readahead_size(512 << 10);
        match self.compaction {
            Compaction::Universal => {
                options.set_compaction_style(DBCompactionStyle::Universal);
                options.set_level_zero_file_num_compaction_trigger(COMPACT_RUNS);
                let mut universal = UniversalCompactOptions::default();
                universal.set_size_ratio(20);
                universal.set_min_merge_width(4);
                universal.set_max_size_amplification_percent(100);
                options.set_universal_compaction_options(&universal);
            }
            Compaction::Levelled => {
                options.set_compaction_style(DBCompactionStyle::Level);
                options.set_level_compaction_dynamic_level_bytes(true);
                options.set_level_zero_file_num_compaction_trigger(4);
                options.set_max_bytes_for_level_base(256 << 20);
            }
        }
        options
    }
}

/// A throw-away database; its directory goes when it is dropped.
pub(crate) struct ScratchDb {
    db: Option<DB>,
    dir: PathBuf,
}

impl ScratchDb {
    /// Makes a database in `dir` (which must not exist) of sorted files, oldest first. The files are moved in.
    pub(crate) fn ingest(shared: &RocksShared, dir: &Path, files: &[PathBuf]) -> Result<Self> {
        let mut options = shared.options();
        options.set_disable_auto_compactions(true);
        options.set_error_if_exists(true);
        let context = || format!("ingesting {} files into {}", files.len(), dir.display());
        let db = DB::open(&options, dir).map_err(|e| StorageError::from_rocksdb(e, context()))?;
        let scratch = Self {
            db: Some(db),
            dir: dir.to_path_buf(),
        };
        if !files.is_empty() {
            let mut ingest = IngestExternalFileOptions::default();
            ingest.set_move_files(true);
            let done = scratch.db()?.ingest_external_file_opts(&ingest, files.to_vec());
            done.map_err(|e| StorageError::from_rocksdb(e, context()))?;
        }
        Ok(scratch)
    }

    /// The database.
    pub(crate) fn db(&self) -> Result<&DB> {
        self.db
            .as_ref()
            .ok_or_else(|| StorageError::corrupt(self.dir.display(), "the scratch database is closed"))
    }
}

impl Drop for ScratchDb {
    fn drop(&mut self) {
        drop(self.db.take());
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "leaving a scratch directory behind until restart");
        }
    }
}
