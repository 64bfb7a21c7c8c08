//! Files for batches that an exchange may not keep in memory.
//!
//! A file takes messages one after another until it is [`FILE_BYTES_MAX`] long; it is removed when the last message in it is no
//! longer needed. Nothing here outlives the process: a region empties its directory when it starts, and nothing is synced.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use levee_storage::StorageError;

use super::message::{Message, Payload};
use crate::{Delta, Result, RuntimeError};

const FILE_BYTES_MAX: u64 = 64 << 20;
/// The last part of a disk is left to the log and the checkpoints: a twentieth, or this much if that is less.
const RESERVE_PARTS: u64 = 20;
const RESERVE_BYTES_MAX: u64 = 4 << 30;

/// A region's directory.
#[derive(Debug)]
pub(crate) struct SpillDir {
    path: PathBuf,
    next_file: AtomicU64,
}

impl SpillDir {
    /// Removes what an earlier life left; the directory itself is made with the first file.
    pub(crate) fn open(path: PathBuf) -> Result<Arc<Self>> {
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(StorageError::from_io(e, format!("emptying {}", path.display())).into())
            }
            _ => Ok(Arc::new(Self {
                path,
                next_file: AtomicU64::new(0),
            })),
        }
    }

    fn create(&self) -> Result<Arc<SpillFile>> {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{number:08}.spill"));
        let context = || format!("creating {}", path.display());
        std::fs::create_dir_all(&self.path).map_err(|e| StorageError::from_io(e, context()))?;
        self.check_room()?;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|e| StorageError::from_io(e, context()))?;
        Ok(Arc::new(SpillFile { file, path }))
    }

    /// Temporary files stop before they take what everybody needs.
    fn check_room(&self) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.path)
            .map_err(|e| StorageError::from_io(e.into(), format!("looking at the disk of {}", self.path.display())))?;
        let (free, total) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        let reserve = (total / RESERVE_PARTS).min(RESERVE_BYTES_MAX);
        if free >= reserve + FILE_BYTES_MAX.min(reserve) {
            return Ok(());
        }
        Err(RuntimeError::User {
            code: "53100",
            message: format!(
                "no room for temporary files: {} MB of the disk are free, the last {} MB are kept for the log and the checkpoints",
                free >> 20,
                reserve >> 20
            ),
            hint: Some("Free some space, or make a query whose changes are smaller.".to_owned()),
        })
    }

    #[cfg(test)]
    pub(crate) fn path_for_test(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and all in it; files still open stay readable.
    pub(crate) fn remove(&self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "could not remove a spill directory");
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct SpillFile {
    file: File,
    path: PathBuf,
}

impl SpillFile {
    fn name(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "could not remove a spill file");
            }
            _ => {}
        }
    }
}

/// A spilled batch.
#[derive(Debug, Clone)]
pub(crate) struct SpilledBatch {
    file: Arc<SpillFile>,
    offset: u64,
    bytes: usize,
}

impl SpilledBatch {
    /// Bytes in the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Reads the batch back.
    pub(crate) fn read(&self) -> Result<Delta> {
        let mut bytes = vec![0; self.bytes];
        self.file
            .file
            .read_exact_at(&mut bytes, self.offset)
            .map_err(|e| StorageError::from_io(e, format!("reading {}", self.file.name().display())))?;
        match Message::decode(bytes)?.payload {
            Payload::Batch(delta) => Ok(delta),
            Payload::Close { .. } => Err(RuntimeError::internal(
                "a spill file holds a close where a batch was written",
            )),
        }
    }
}

/// Appends a channel's messages to files.
#[derive(Debug)]
pub(crate) struct SpillWriter {
    dir: Arc<SpillDir>,
    current: Option<(Arc<SpillFile>, u64)>,
    buffer: Vec<u8>,
}

impl SpillWriter {
    pub(crate) fn new(dir: &Arc<SpillDir>) -> Self {
        Self {
            dir: Arc::clone(dir),
            current: None,
            buffer: Vec::new(),
        }
    }

    /// Writes one batch message.
    pub(crate) fn write(&mut self, message: &Message) -> Result<SpilledBatch> {
        self.buffer.clear();
        message.encode(&mut self.buffer)?;
        let (file, offset) = match self.current.take() {
            Some((file, end)) if end < FILE_BYTES_MAX => (file, end),
            _ => (self.dir.create()?, 0),
        };
        file.file
            .write_all_at(&self.buffer, offset)
            .map_err(|e| StorageError::from_io(e, format!("writing {}", file.name().display())))?;
        let bytes = self.buffer.len();
        self.current = Some((Arc::clone(&file), offset + bytes as u64));
        Ok(SpilledBatch { file, offset, bytes })
    }

    /// Writes a batch that belongs to no channel.
    pub(crate) fn write_delta(&mut self, delta: &Delta) -> Result<SpilledBatch> {
        self.write(&Message {
            incarnation: 0,
            seq: 0,
            part: 0,
            payload: Payload::Batch(delta.clone()),
        })
    }

    /// Lets go of the current file when nothing in the channel is spilled any more.
    pub(crate) fn release(&mut self) {
        self.current = None;
        self.buffer = Vec::new();
    }
}
