//! A sink's journal: the two places where its target may stand.
//!
//! ```text
//!   sinks/16391    magic, version │ delivered 40, next 48, crc │ delivered 48, next 49, crc │ …
//! ```
//!
//! A record is durable before the delivery that it announces, so after any crash the target's marker is the last record's `delivered`
//! or its `next`. Both become boundaries of steps ([`Journal::epochs`]), and a target that stands anywhere else was set back, or
//! written by someone else: it is refused. A torn last record announces a delivery that did not begin.
//!
//! Cost: one append and one sync a delivery; the file is written anew every few thousand deliveries.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use levee_storage::StorageError;
use levee_storage::fs::{FileSystem, FsFile};
use xxhash_rust::xxh3::xxh3_64;

use super::Marker;
use crate::Result;

const MAGIC: &[u8; 8] = b"LVSINK\0\x01";
/// Four numbers and their checksum.
const RECORD_BYTES: usize = 40;
/// Records after which the file is written anew.
const RECORDS_MAX: usize = 4096;
/// Stands for "no marker"; epochs are below it.
const NONE: u64 = u64::MAX;

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    file: Option<Box<dyn FsFile>>,
    records: usize,
    last: Option<Record>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    delivered: Option<Marker>,
    next: Marker,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let delivered = self.delivered.unwrap_or(Marker { epoch: NONE, part: 0 });
        let mut bytes = [0; RECORD_BYTES];
        let numbers = [delivered.epoch, delivered.part, self.next.epoch, self.next.part];
        for (chunk, n) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&n.to_le_bytes());
        }
        let sum = xxh3_64(&bytes[..32]);
        bytes[32..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |i: usize| {
            let chunk = bytes.get(i * 8..i * 8 + 8)?;
            chunk.try_into().ok().map(u64::from_le_bytes)
        };
        let (epoch, part) = (number(0)?, number(1)?);
        let next = Marker {
            epoch: number(2)?,
            part: number(3)?,
        };
        (number(4)? == xxh3_64(&bytes[..32])).then_some(Self {
            delivered: (epoch != NONE).then_some(Marker { epoch, part }),
            next,
        })
    }
}

impl Journal {
    /// Reads a sink's journal; one that is not there is fresh.
    ///
    /// # Errors
    /// It cannot be read, or is no journal of this version.
    pub fn open(fs: Arc<dyn FileSystem>, path: &Path) -> Result<Self> {
        let mut journal = Self {
            fs,
            path: path.to_path_buf(),
            file: None,
            records: 0,
            last: None,
        };
        if journal.fs.len(path)?.is_none() {
            return Ok(journal);
        }
        let bytes = journal.fs.read(path)?;
        let Some(records) = bytes.strip_prefix(MAGIC.as_slice()) else {
            return Err(StorageError::corrupt(
                path.display().to_string(),
                "it is not a sink's journal of this version",
            )
            .into());
        };
        journal.last = records.chunks_exact(RECORD_BYTES).map_while(Record::decode).last();
        Ok(journal)
    }

    /// The sink has never begun a delivery.
    pub fn is_fresh(&self) -> bool {
        self.last.is_none()
    }

    /// Epochs at which the target may stand.
    pub fn epochs(&self) -> impl Iterator<Item = u64> + '_ {
        let record = self.last.as_ref();
        let delivered = record.and_then(|r| r.delivered);
        delivered.into_iter().chain(record.map(|r| r.next)).map(|m| m.epoch)
    }

    /// Whether the target may stand at `found`.
    pub fn allows(&self, found: Option<Marker>) -> bool {
        match &self.last {
            None => found.is_none(),
            Some(r) => found == r.delivered || found == Some(r.next),
        }
    }

    /// Notes durably that the target, now at `delivered`, is about to be brought to `next`.
    ///
    /// # Errors
    /// The disk is full or fails; nothing must be delivered then.
    pub fn announce(&mut self, delivered: Option<Marker>, next: Marker) -> Result<()> {
        let record = Record { delivered, next };
        if self.last == Some(record) && self.file.is_some() {
            return Ok(());
        }
        match self.file.as_mut().filter(|_| self.records < RECORDS_MAX) {
            Some(file) => {
                let wrote = file.append(&record.encode()).and_then(|()| file.sync());
                if let Err(error) = wrote {
                    // What is in the file now is unknown: the next record goes into a new one.
                    self.file = None;
                    return Err(error.into());
                }
                self.records += 1;
            }
            None => self.rewrite(&record)?,
        }
        self.last = Some(record);
        Ok(())
    }

    fn rewrite(&mut self, record: &Record) -> Result<()> {
        self.file = None;
        let dir = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        self.fs.create_dir_all(&dir)?;
        let temporary = self.path.with_extension("new");
        if self.fs.len(&temporary)?.is_some() {
            self.fs.remove(&temporary)?;
        }
        let mut file = self.fs.create_new(&temporary)?;
        file.append(MAGIC)?;
        file.append(&record.encode())?;
        file.sync()?;
        drop(file);
        self.fs.rename(&temporary, &self.path)?;
        self.fs.sync_dir(&dir)?;
        self.file = Some(self.fs.open_append(&self.path)?);
        self.records = 1;
        Ok(())
    }

    /// The sink is gone.
    pub fn remove(&mut self) {
        self.file = None;
        if let Err(error) = self.fs.remove(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "a sink's journal was not there to be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use levee_storage::fs::OsFs;

    use super::*;

    fn open(path: &Path) -> Journal {
        Journal::open(Arc::new(OsFs), path).unwrap()
    }

    #[test]
    fn the_last_announcement_survives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sinks").join("1");
        let mut journal = open(&path);
        assert!(journal.is_fresh() && journal.allows(None) && !journal.allows(Some(Marker::whole(1))));
        journal.announce(None, Marker::whole(5)).unwrap();
        journal.announce(Some(Marker::whole(5)), Marker::whole(9)).unwrap();
        let again = open(&path);
        assert!(!again.is_fresh());
        assert_eq!(again.epochs().collect::<Vec<_>>(), [5, 9]);
        assert!(again.allows(Some(Marker::whole(5))) && again.allows(Some(Marker::whole(9))));
        assert!(!again.allows(None) && !again.allows(Some(Marker::whole(4))));
    }

    #[test]
    fn a_torn_record_was_never_announced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1");
        let mut journal = open(&path);
        journal.announce(None, Marker::whole(5)).unwrap();
        journal.announce(Some(Marker::whole(5)), Marker::whole(9)).unwrap();
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(&path, bytes).unwrap();
        let mut again = open(&path);
        assert_eq!(again.epochs().collect::<Vec<_>>(), [5]);
        again.announce(Some(Marker::whole(5)), Marker::whole(7)).unwrap();
        assert_eq!(open(&path).epochs().collect::<Vec<_>>(), [5, 7]);
    }

    #[test]
    fn the_file_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1");
        let mut journal = open(&path);
        let mut before = None;
        for epoch in 1..=RECORDS_MAX as u64 + 10 {
            journal.announce(before, Marker::whole(epoch)).unwrap();
            before = Some(Marker::whole(epoch));
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 1000);
        assert!(open(&path).allows(before));
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1");
        std::fs::write(&path, b"something").unwrap();
        assert!(Journal::open(Arc::new(OsFs), &path).is_err());
    }
}
