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
    /// The caller asked for something that this build does not do; nothing was tried.
    #[error("{what}: {reason}")]
    Invalid {
        /// Setting or argument.
        what: String,
        /// Why it is refused and what to use instead.
        reason: String,
    },
}

impl StorageError {
    /// Wraps an operating-system error: no room (`ENOSPC`, `EDQUOT`) becomes [`StorageError::Full`].
    pub fn from_io(source: std::io::Error, context: impl Into<String>) -> Self {
        let context = context.into();
        let full = matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
            || matches!(
                source.kind(),
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
            );
        if full {
            Self::Full { context, source }
        } else {
            Self::Io { context, source }
        }
    }

    /// Wraps a RocksDB error; RocksDB tells a full disk only in its message.
    pub fn from_rocksdb(source: rocksdb::Error, context: impl Into<String>) -> Self {
        let context = context.into();
        let message = source.to_string();
        if message.contains("No space left") || message.contains("Disk quota exceeded") {
            let source = std::io::Error::new(std::io::ErrorKind::StorageFull, message);
            return Self::Full { context, source };
        }
        Self::RocksDb { context, source }
    }

    /// Names a file whose bytes are not what was written.
    pub fn corrupt(file: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            file: file.to_string(),
            reason: reason.into(),
        }
    }

    /// Whether a file or object was not there.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            Self::ObjectStore { source, .. } => matches!(source, object_store::Error::NotFound { .. }),
            _ => false,
        }
    }

    /// Whether an exclusive create found the name taken.
    pub fn is_already_exists(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == std::io::ErrorKind::AlreadyExists,
            Self::ObjectStore { source, .. } => matches!(source, object_store::Error::AlreadyExists { .. }),
            _ => false,
        }
    }
}
