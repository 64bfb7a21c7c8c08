//! One process per data directory: an advisory lock that the operating system drops with the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::error::{Result, StorageError};

/// Holds the data directory until dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Locks `dir` (which must exist) through its file `LOCK`; [`StorageError::Locked`] if another holds it.
    ///
    /// The file stays: removing it would let two processes lock two files of the same name.
    pub fn acquire(dir: &Path) -> Result<Self> {
        let path = dir.join("LOCK");
        let context = || format!("locking {}", path.display());
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|e| StorageError::from_io(e, context()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StorageError::Locked(dir.display().to_string())),
            Err(TryLockError::Error(e)) => Err(StorageError::from_io(e, context())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_open_is_refused_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        assert!(matches!(DirLock::acquire(dir.path()), Err(StorageError::Locked(_))));
        drop(first);
        DirLock::acquire(dir.path()).unwrap();
    }
}
