//! Storage errors, by what the caller does next.

/// Storage result.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// No room left on the device; nothing was written that a reader would see. Retry when there is room.
    #[error("no space left while {context}")]
    Full {
        /// What was being done.
        context: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Another IO error.
    #[error("input/output error while {context}")]
    Io {
        /// What was being done.
        context: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A file does not hold what was written: named, never guessed around.
    #[error("{file} is corrupt: {reason}")]
    Corrupt {
        /// File or object.
        file: String,
        /// What does not fit.
        reason: String,
    },
    /// A file of another format version.
    #[error("{file} has format version {found}, this build reads {supported}")]
    Version {
        /// File or object.
        file: String,
        /// Version found.
        found: u32,
        /// Versions read.
        supported: String,
    },
    /// The object store failed.
    #[error("object store failed while {context}")]
    ObjectStore {
        /// What was being done.
        context: String,
        /// Cause.
        #[source]
        source: object_store::Error,
    },
    /// RocksDB failed.
    #[error("rocksdb failed while {context}")]
    RocksDb {
        /// What was being done.
        context: String,
        /// Cause.
        #[source]
        source: rocksdb::Error,
    },
    /// Another process holds the data directory.
    #[error("data directory {0} is in use by another process")]
    Locked(String),
    /// A newer leader has taken over.
    #[error("fenced by term {0}")]
    Fenced(u64),
    /// The log failed earlier and takes no more writes until restart.
    #[error("the log is closed after an earlier failure: {0}")]
    LogClosed(String),
}
