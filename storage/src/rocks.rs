//! RocksDB, always used the same way: lz4, bloom filters, no write-ahead log, one cache and one write budget.
//!
//! A live RocksDB directory is a scratch copy: it is made from delta files by ingestion and thrown away, never
//! opened after a crash.

use std::path::{Path, PathBuf};

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, IngestExternalFileOptions, Options, WriteBufferManager,
};

use crate::error::{Result, StorageError};

/// Bloom filter bits a key: 1 % false positives.
const BLOOM_BITS: f64 = 10.0;

/// The memory that all RocksDB instances of the process share.
#[derive(Clone)]
pub struct RocksShared {
    cache: Cache,
    write_buffers: WriteBufferManager,
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
        Self { cache, write_buffers }
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
        let mut options = Options::default();
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_block_based_table_factory(&blocks);
        options.set_write_buffer_manager(&self.write_buffers);
        options.create_if_missing(true);
        // Databases are many and short-lived: no periodic work, no threads to open files with.
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_skip_stats_update_on_db_open(true);
        options.set_max_file_opening_threads(1);
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
