//! The storage port: every byte of the log and of a local checkpoint directory passes through [`FileSystem`].
//!
//! Two implementations: [`OsFs`] is the machine's file system; [`FaultFs`] is one in memory that can lose
//! power at any step, fill up, or rot a byte, so that "durable" is a tested word:
//!
//! ```text
//! create a.log ─ write ─ write ─ sync ─ sync_dir ─ write ─ ⚡
//!                                                   └ may be lost, kept or torn
//! ```
//!
//! The rules that callers must keep: a file's bytes are durable after [`FsFile::sync`]; its *name* is durable
//! after [`FileSystem::sync_dir`] of the directory. The port leaves locking to [`crate::lock`], and RocksDB's own
//! scratch files to RocksDB: those are thrown away at start.

mod fault;
mod os;

pub use fault::FaultFs;
pub use os::OsFs;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::error::Result;

/// A file open for appending.
pub trait FsFile: Send + Debug {
    /// Appends all bytes at the end. On an error an unknown part of them is in the file: see [`FsFile::set_len`].
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&mut self) -> Result<()>;
    /// Cuts the file to `len` bytes; the next append goes there.
    fn set_len(&mut self, len: u64) -> Result<()>;
}

/// What the log and the checkpoint directory need of a file system.
pub trait FileSystem: Send + Sync + Debug {
    /// Creates an empty file; fails with an `AlreadyExists` error if the name is taken.
    fn create_new(&self, path: &Path) -> Result<Box<dyn FsFile>>;
    /// Opens an existing file for appending.
    fn open_append(&self, path: &Path) -> Result<Box<dyn FsFile>>;
    /// The whole file.
    fn read(&self, path: &Path) -> Result<Vec<u8>>;
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    fn read_range(&self, path: &Path, offset: u64, len: usize) -> Result<Vec<u8>>;
    /// The file's length, or none if there is no such file.
    fn len(&self, path: &Path) -> Result<Option<u64>>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// A second name for a file; fails with an `AlreadyExists` error if the name is taken.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Names of the files (not directories) in a directory, sorted; empty if there is no such directory.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;
    /// Creates a directory and its parents and makes their names durable.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Gives RocksDB a file under a path of the machine's file system, to read only: by hard link where that works, else a copy.
    fn export(&self, path: &Path, dest: &Path) -> Result<()>;
    /// Takes in a finished file that RocksDB has written under a path of the machine's file system, bytes and length durable on
    /// return: by hard link where that works, else a copy. `AlreadyExists` if the name is taken.
    fn import(&self, source: &Path, path: &Path) -> Result<()>;
}

/// Joins a directory and a `/`-separated object name.
pub(crate) fn object_path(root: &Path, name: &str) -> PathBuf {
    name.split('/').fold(root.to_path_buf(), |path, part| path.join(part))
}
