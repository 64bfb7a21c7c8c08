//! Writing and reading checkpoints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::manifest::{FileId, FileMeta, Manifest, manifest_name};
use super::objects::{self, CheckpointTarget, Objects};
use crate::delta_file::{DeltaBuilder, DeltaWriter, WrittenFile};
use crate::error::{Result, StorageError};
use crate::fs::FileSystem;
use crate::rocks::RocksShared;

/// Manifests that garbage collection always keeps.
const MANIFESTS_KEPT: usize = 2;

/// A manifest found in the store.
#[derive(Debug)]
pub struct Candidate {
    /// Its number.
    pub number: u64,
    /// Its content, or why it cannot be used: damaged, or a file of it is missing or has another length.
    pub manifest: Result<Manifest>,
}

/// The newest usable manifest.
#[derive(Debug)]
pub struct Loaded {
    /// None if there is no usable one.
    pub manifest: Option<Manifest>,
    /// Newer ones that cannot be used, newest first, and why.
    pub skipped: Vec<(u64, StorageError)>,
}

/// What garbage collection removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Manifests.
    pub manifests: u64,
    /// Delta files.
    pub files: u64,
}

/// A delta file in the store, and RocksDB's own copy (or link) of it, which the tier takes; it goes when this is dropped.
#[derive(Debug)]
pub struct WrittenDelta {
    /// The file.
    pub meta: FileMeta,
    pub(crate) scratch: ScratchFile,
}

/// A path in the work directory that nothing is left at.
#[derive(Debug)]
pub(crate) struct ScratchFile(pub(crate) PathBuf);

impl Drop for ScratchFile {
    fn drop(&mut self) {
        remove_scratch(&self.0);
    }
}

/// The checkpoints of one database. Its methods block.
#[derive(Debug)]
pub struct CheckpointStore {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) work_dir: PathBuf,
    pub(super) rocks: RocksShared,
    term: u64,
    next_scratch: AtomicU64,
    next_manifest: AtomicU64,
    pending: Mutex<Pending>,
}

/// Files of this term that no committed manifest has named yet: not garbage.
#[derive(Debug, Default)]
struct Pending {
    files: BTreeSet<FileId>,
    last_number: u64,
}

/// The highest term that has written there: what [`crate::log::LogOptions::term_min`] wants.
pub fn highest_term(target: &CheckpointTarget, fs: &Arc<dyn FileSystem>) -> Result<u64> {
    highest_term_of(&*objects::open(target, fs)?)
}

fn highest_term_of(objects: &dyn Objects) -> Result<u64> {
    let files = file_ids(objects)?;
    let mut term = files.iter().map(|id| id.term).max().unwrap_or(0);
    for number in manifest_numbers(objects)? {
        let name = manifest_name(number);
        // A damaged manifest tells no term; the delta files that it named do.
        if let Ok(manifest) = Manifest::decode(&objects.read(&name)?, &name) {
            term = term.max(manifest.term);
        }
    }
    Ok(term)
}

fn file_ids(objects: &dyn Objects) -> Result<BTreeSet<FileId>> {
    Ok(objects
        .list("delta")?
        .iter()
        .filter_map(|name| FileId::parse(name))
        .collect())
}

fn manifest_numbers(objects: &dyn Objects) -> Result<BTreeSet<u64>> {
    Ok(objects
        .list("manifest")?
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect())
}

impl CheckpointStore {
    /// Opens the checkpoints at `target` for the writer of `term` ([`crate::log::Log::open`]'s).
    ///
    /// `work_dir` is a directory on the machine's file system for RocksDB; all in it is removed.
    /// [`StorageError::Fenced`] if this or a later term has written there.
    pub fn open(
        target: &CheckpointTarget,
        fs: &Arc<dyn FileSystem>,
        work_dir: &Path,
        rocks: RocksShared,
        term: u64,
    ) -> Result<Self> {
        let objects = objects::open(target, fs)?;
        clean_dir(work_dir)?;
        let seen = highest_term_of(&*objects)?;
        if seen >= term {
            return Err(StorageError::Fenced(seen));
        }
        let newest = manifest_numbers(&*objects)?.last().copied().unwrap_or(0);
        Ok(Self {
            objects,
            work_dir: work_dir.to_path_buf(),
            rocks,
            term,
            next_scratch: AtomicU64::new(1),
            next_manifest: AtomicU64::new(newest + 1),
            pending: Mutex::default(),
        })
    }

    /// This store's term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The number for the next manifest: one above the highest present, usable or not.
    pub fn next_manifest_number(&self) -> u64 {
        self.next_manifest.load(Ordering::Acquire)
    }

    /// Writes a delta file of what `fill` adds in key order, durable on return; none if it adds nothing. The file is kept
    /// until a committed manifest names it or [`Self::release`].
    pub fn write_delta<E: From<StorageError>>(
        &self,
        fill: impl FnOnce(&mut DeltaWriter<'_>) -> Result<(), E>,
    ) -> Result<Option<WrittenDelta>, E> {
        let scratch = ScratchFile(self.scratch("delta.sst"));
        let options = self.rocks.options();
        let mut writer = DeltaWriter::new(&options, &scratch.0);
        fill(&mut writer)?;
        let Some(written) = writer.finish()? else {
            return Ok(None);
        };
        let meta = self.put_file(&scratch.0, written)?;
        Ok(Some(WrittenDelta { meta, scratch }))
    }

    /// Writes a delta file of gathered entries. An empty builder is refused: there is no empty SST.
    pub fn put_delta(&self, builder: DeltaBuilder) -> Result<FileMeta> {
        let written = self.write_delta(|writer| builder.write_to(writer))?;
        written
            .map(|written| written.meta)
            .ok_or_else(|| StorageError::Invalid {
                what: "delta file".to_string(),
                reason: "has no entries; write no file for a checkpoint without changes".to_string(),
            })
    }

    /// Gives up a file that was written and will not be named.
    pub fn release(&self, id: FileId) {
        self.pending.lock().files.remove(&id);
    }

    /// Copies a finished SST to its place under the next name.
    pub(super) fn put_file(&self, source: &Path, written: WrittenFile) -> Result<FileMeta> {
        fail::fail_point!("checkpoint::file", |kind| Err(crate::injected(
            kind,
            "writing a delta file"
        )));
        let id = {
            let mut pending = self.pending.lock();
            pending.last_number += 1;
            let id = FileId {
                term: self.term,
                number: pending.last_number,
            };
            pending.files.insert(id);
            id
        };
        match self.objects.create_from_file(&id.name(), source) {
            Ok((bytes, crc32)) => Ok(FileMeta {
                id,
                bytes,
                crc32,
                rows: written.rows,
                regions: written.regions,
            }),
            Err(error) => {
                self.release(id);
                if error.is_already_exists() {
                    Err(StorageError::Fenced(self.term))
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Puts a manifest, durable on return. Its number must be [`Self::next_manifest_number`].
    /// [`StorageError::Fenced`] if another writer took the number. May be repeated after an error.
    pub fn commit(&self, manifest: &Manifest) -> Result<()> {
        fail::fail_point!("checkpoint::manifest", |kind| Err(crate::injected(
            kind,
            "writing a manifest"
        )));
        let number = manifest.number;
        let next = self.next_manifest_number();
        if number != next || manifest.term != self.term {
            let what = manifest_name(number);
            let reason = format!(
                "of term {} where number {next} of term {} must be",
                manifest.term, self.term
            );
            return Err(StorageError::Invalid { what, reason });
        }
        manifest.check()?;
        let name = manifest_name(number);
        let bytes = manifest.encode()?;
        match self.objects.create(&name, &bytes) {
            Ok(()) => {}
            Err(error) if error.is_already_exists() => {
                let found = self.objects.read(&name)?;
                if found != bytes {
                    let term = Manifest::decode(&found, &name).map_or(self.term, |other| other.term);
                    return Err(StorageError::Fenced(term));
                }
                self.objects.settle("manifest")?;
            }
            Err(error) => return Err(error),
        }
        self.next_manifest.store(number + 1, Ordering::Release);
        self.pending.lock().files.retain(|id| !manifest.files.contains_key(id));
        Ok(())
    }

    /// All manifests, newest first, each with its files' presence and length checked (not their checksums: see
    /// [`Self::verify`]).
    pub fn load_candidates(&self) -> Result<Vec<Candidate>> {
        let numbers = manifest_numbers(&*self.objects)?;
        Ok(numbers
            .iter()
            .rev()
            .map(|&number| Candidate {
                number,
                manifest: self.load(number),
            })
            .collect())
    }

    /// The newest manifest that is valid and whose files are there with the right lengths.
    pub fn load_latest(&self) -> Result<Loaded> {
        let mut skipped = Vec::new();
        for number in manifest_numbers(&*self.objects)?.into_iter().rev() {
            match self.load(number) {
                Ok(manifest) => {
                    return Ok(Loaded {
                        manifest: Some(manifest),
                        skipped,
                    });
                }
                Err(error) => skipped.push((number, error)),
            }
        }
        Ok(Loaded {
            manifest: None,
            skipped,
        })
    }

    fn load(&self, number: u64) -> Result<Manifest> {
        let name = manifest_name(number);
        let manifest = Manifest::decode(&self.objects.read(&name)?, &name)?;
        if manifest.number != number {
            return Err(StorageError::corrupt(
                name,
                format!("says that it is number {}", manifest.number),
            ));
        }
        for file in manifest.files.values() {
            match self.objects.size(&file.id.name())? {
                Some(bytes) if bytes == file.bytes => {}
                Some(bytes) => {
                    let reason = format!("has {bytes} bytes where {} were written", file.bytes);
                    return Err(StorageError::corrupt(file.id.name(), reason));
                }
                None => return Err(StorageError::corrupt(file.id.name(), "is missing")),
            }
        }
        Ok(manifest)
    }

    /// Reads all files of a manifest and compares their checksums.
    pub fn verify(&self, manifest: &Manifest) -> Result<()> {
        self.verify_files(manifest.files.values())
    }

    /// Reads files and compares their checksums.
    pub fn verify_files<'a>(&self, files: impl IntoIterator<Item = &'a FileMeta>) -> Result<()> {
        for file in files {
            if self.objects.crc32(&file.id.name())? != file.crc32 {
                return Err(StorageError::corrupt(file.id.name(), "does not match its checksum"));
            }
        }
        Ok(())
    }

    /// Removes manifests and delta files that neither `retain` nor the two newest usable manifests name. Files of
    /// this term that wait for a manifest stay.
    pub fn gc(&self, retain: &[&Manifest]) -> Result<GcReport> {
        let mut report = GcReport::default();
        // Taken first: what is committed or made from here on stays.
        let (pending, last_number) = {
            let pending = self.pending.lock();
            (pending.files.clone(), pending.last_number)
        };
        let numbers = manifest_numbers(&*self.objects)?;
        let mut kept: BTreeSet<FileId> = retain
            .iter()
            .flat_map(|manifest| manifest.files.keys().copied())
            .collect();
        let mut kept_numbers: BTreeSet<u64> = retain.iter().map(|manifest| manifest.number).collect();
        let mut usable = 0;
        for &number in numbers.iter().rev() {
            if usable == MANIFESTS_KEPT {
                break;
            }
            match self.load(number) {
                Ok(manifest) if manifest.term > self.term => return Err(StorageError::Fenced(manifest.term)),
                Ok(manifest) => {
                    usable += 1;
                    kept_numbers.insert(number);
                    kept.extend(manifest.files.keys().copied());
                }
                Err(error) if usable == 0 => return Err(error),
                Err(error) => tracing::warn!(manifest = number, %error, "a manifest cannot be used and is removed"),
            }
        }
        let Some(&newest) = numbers.last() else {
            return Ok(report);
        };
        // Manifests go first, so that none is left that names a missing file.
        for number in numbers
            .into_iter()
            .filter(|number| *number < newest && !kept_numbers.contains(number))
        {
            self.objects.remove(&manifest_name(number))?;
            report.manifests += 1;
        }
        if report.manifests > 0 {
            self.objects.settle("manifest")?;
        }
        let newest_file = FileId {
            term: self.term,
            number: last_number,
        };
        for id in file_ids(&*self.objects)? {
            if id > newest_file || kept.contains(&id) || pending.contains(&id) {
                continue;
            }
            self.objects.remove(&id.name())?;
            report.files += 1;
        }
        Ok(report)
    }

    /// A new path in the work directory.
    pub(super) fn scratch(&self, suffix: &str) -> PathBuf {
        self.work_dir.join(format!(
            "{}-{suffix}",
            self.next_scratch.fetch_add(1, Ordering::Relaxed)
        ))
    }

    /// Links or copies files into the work directory after checking them, in the given order.
    pub(super) fn fetch_checked(&self, files: &[FileMeta]) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::with_capacity(files.len());
        for file in files {
            let path = self.scratch("in.sst");
            let fetched = self.objects.fetch(&file.id.name(), &path);
            paths.push(path.clone());
            let checked = fetched
                .and_then(|()| objects::copy_file(&path, |_| Ok(())))
                .and_then(|found| {
                    let reason = || StorageError::corrupt(file.id.name(), "does not match its checksum");
                    if found == (file.bytes, file.crc32) {
                        Ok(())
                    } else {
                        Err(reason())
                    }
                });
            if let Err(error) = checked {
                paths.iter().for_each(|path| remove_scratch(path));
                return Err(error);
            }
        }
        Ok(paths)
    }
}

/// Removes a scratch file; one that stays goes at the next start.
pub(crate) fn remove_scratch(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::debug!(file = %path.display(), %error, "leaving a scratch file behind until restart");
    }
}

fn clean_dir(dir: &Path) -> Result<()> {
    let fail = |e| StorageError::from_io(e, format!("cleaning {}", dir.display()));
    std::fs::create_dir_all(dir).map_err(fail)?;
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.map_err(fail)?;
    }
    Ok(())
}
