//! A file system in memory that can lose power, fill up, or rot.
//!
//! Every file has its durable bytes and the changes since its last sync; every directory the names that are
//! durable and the changes since. When the power goes, each file keeps a seeded prefix of its unsynced changes,
//! the next write is torn at a seeded byte, and each directory keeps a seeded prefix of its unsynced entries. So a
//! loop over all steps and some seeds visits what a disk may do with ordered writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{FileSystem, FsFile};
use crate::error::{Result, StorageError};

/// The simulated file system. Clones share the same disk.
#[derive(Debug, Clone)]
pub struct FaultFs {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(Vec<u8>),
    SetLen(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

/// A directory entry as it was set (or removed) since the directory's last sync.
#[derive(Debug, Clone)]
struct EntryChange {
    sets: Vec<(PathBuf, Option<u64>)>,
    dir: PathBuf,
}

#[derive(Debug, Default)]
struct Disk {
    inodes: BTreeMap<u64, Inode>,
    live: BTreeMap<PathBuf, u64>,
    durable: BTreeMap<PathBuf, u64>,
    entry_changes: Vec<EntryChange>,
    dirs: BTreeSet<PathBuf>,
    next_inode: u64,
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
    seed: u64,
    capacity: Option<u64>,
    fail_syncs: u32,
}

#[derive(Debug)]
struct FaultFile {
    disk: Arc<Mutex<Disk>>,
    inode: u64,
    name: String,
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(written) => bytes.extend_from_slice(written),
        Change::SetLen(len) => bytes.resize(*len as usize, 0),
    }
}

fn io_error(kind: std::io::ErrorKind, context: String) -> StorageError {
    StorageError::Io {
        context,
        source: kind.into(),
    }
}

fn power_lost(context: &str) -> StorageError {
    StorageError::Io {
        context: context.to_string(),
        source: std::io::Error::other("simulated power loss"),
    }
}

/// What a mutating call does at the step where the power goes.
#[derive(PartialEq)]
enum Step {
    Run,
    /// The change is made, but the caller sees an error.
    RunThenFail,
}

impl Disk {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn alive(&self, context: &str) -> Result<()> {
        if self.crashed { Err(power_lost(context)) } else { Ok(()) }
    }

    /// Counts a mutating step. At the crash step a coin decides whether the change still reaches the cache.
    fn step(&mut self, context: &str) -> Result<Step> {
        self.alive(context)?;
        self.steps += 1;
        if self.crash_at == Some(self.steps) {
            self.crashed = true;
            return if self.random(2) == 0 {
                Err(power_lost(context))
            } else {
                Ok(Step::RunThenFail)
            };
        }
        Ok(Step::Run)
    }

    fn finish(step: Step, context: &str) -> Result<()> {
        if step == Step::RunThenFail {
            Err(power_lost(context))
        } else {
            Ok(())
        }
    }

    fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.live.values().copied().collect();
        named
            .iter()
            .filter_map(|inode| self.inodes.get(inode))
            .map(|inode| inode.live.len() as u64)
            .sum()
    }

    fn inode_of(&self, path: &Path, context: &str) -> Result<u64> {
        let missing = || io_error(std::io::ErrorKind::NotFound, format!("{context} {}", path.display()));
        self.live.get(path).copied().ok_or_else(missing)
    }

    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.entry(inode).or_default()
    }

    fn set_entries(&mut self, dir: &Path, sets: Vec<(PathBuf, Option<u64>)>) {
        for (path, inode) in &sets {
            match inode {
                Some(inode) => self.live.insert(path.clone(), *inode),
                None => self.live.remove(path),
            };
        }
        self.entry_changes.push(EntryChange {
            sets,
            dir: dir.to_path_buf(),
        });
    }

    fn apply_durable(&mut self, change: &EntryChange) {
        for (path, inode) in &change.sets {
            match inode {
                Some(inode) => self.durable.insert(path.clone(), *inode),
                None => self.durable.remove(path),
            };
        }
    }

    /// Leaves what a disk may hold after the power went.
    fn lose_power(&mut self) {
        let changes = std::mem::take(&mut self.entry_changes);
        let mut kept: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for change in &changes {
            *kept.entry(change.dir.clone()).or_default() += 1;
        }
        for count in kept.values_mut() {
            *count = self.random(*count + 1);
        }
        for change in &changes {
            let left = kept.entry(change.dir.clone()).or_default();
            if *left > 0 {
                *left -= 1;
                self.apply_durable(change);
            }
        }
        let inodes: Vec<u64> = self.inodes.keys().copied().collect();
        for id in inodes {
            let mut inode = std::mem::take(self.inode(id));
            let keep = self.random(inode.pending.len() as u64 + 1) as usize;
            let mut bytes = std::mem::take(&mut inode.durable);
            for change in &inode.pending[..keep] {
                apply(&mut bytes, change);
            }
            if let Some(Change::Write(torn)) = inode.pending.get(keep) {
                let at = self.random(torn.len() as u64 + 1) as usize;
                bytes.extend_from_slice(&torn[..at]);
            }
            *self.inode(id) = Inode {
                live: bytes.clone(),
                durable: bytes,
                pending: Vec::new(),
            };
        }
        self.live = self.durable.clone();
        let named: BTreeSet<u64> = self.live.values().copied().collect();
        self.inodes.retain(|id, _| named.contains(id));
    }
}

impl FaultFs {
    /// An empty disk; `seed` decides what survives a power loss.
    pub fn new(seed: u64) -> Self {
        Self {
            disk: Arc::new(Mutex::new(Disk {
                seed,
                ..Disk::default()
            })),
        }
    }

    /// Mutating steps so far.
    pub fn steps(&self) -> u64 {
        self.disk.lock().steps
    }

    /// Loses power at that step (counted from the beginning, first step 1): every later call fails.
    pub fn crash_at(&self, step: u64) {
        self.disk.lock().crash_at = Some(step);
    }

    /// Loses power now.
    pub fn crash(&self) {
        self.disk.lock().crashed = true;
    }

    /// Whether the power is gone.
    pub fn crashed(&self) -> bool {
        self.disk.lock().crashed
    }

    /// Power is back: only what survives is there, the step count starts at 0, no crash is planned. Files opened
    /// before must not be used any more.
    pub fn recover(&self) -> Self {
        let mut old = self.disk.lock();
        old.lose_power();
        old.crashed = true;
        let disk = Disk {
            inodes: std::mem::take(&mut old.inodes),
            live: std::mem::take(&mut old.live),
            durable: std::mem::take(&mut old.durable),
            dirs: std::mem::take(&mut old.dirs),
            next_inode: old.next_inode,
            seed: old.seed,
            ..Disk::default()
        };
        Self {
            disk: Arc::new(Mutex::new(disk)),
        }
    }

    /// Sets the bytes that the disk holds; a write past it is cut short and fails with [`StorageError::Full`].
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.lock().capacity = bytes;
    }

    /// Bytes in live files.
    pub fn used(&self) -> u64 {
        self.disk.lock().used()
    }

    /// Makes the next `count` file syncs fail with an IO error.
    pub fn fail_syncs(&self, count: u32) {
        self.disk.lock().fail_syncs = count;
    }

    /// Flips the bits of `mask` in one byte of a file, on the disk and in the cache. False if there is no such byte.
    pub fn corrupt(&self, path: &Path, offset: u64, mask: u8) -> bool {
        let mut disk = self.disk.lock();
        let Some(inode) = disk.live.get(path).copied() else {
            return false;
        };
        let inode = disk.inode(inode);
        for bytes in [&mut inode.live, &mut inode.durable] {
            let Some(byte) = bytes.get_mut(offset as usize) else {
                return false;
            };
            *byte ^= mask;
        }
        true
    }

    /// All live files with their lengths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let disk = self.disk.lock();
        let len = |inode: &u64| disk.inodes.get(inode).map_or(0, |inode| inode.live.len() as u64);
        disk.live
            .iter()
            .map(|(path, inode)| (path.clone(), len(inode)))
            .collect()
    }

    fn open(&self, inode: u64, path: &Path) -> Box<dyn FsFile> {
        Box::new(FaultFile {
            disk: Arc::clone(&self.disk),
            inode,
            name: path.display().to_string(),
        })
    }
}

impl FsFile for FaultFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let context = format!("writing {}", self.name);
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        let room = disk
            .capacity
            .map_or(u64::MAX, |capacity| capacity.saturating_sub(disk.used()));
        let fits = (bytes.len() as u64).min(room) as usize;
        let inode = disk.inode(self.inode);
        inode.live.extend_from_slice(&bytes[..fits]);
        inode.pending.push(Change::Write(bytes[..fits].to_vec()));
        Disk::finish(step, &context)?;
        if fits < bytes.len() {
            return Err(StorageError::from_io(
                std::io::Error::from_raw_os_error(libc::ENOSPC),
                context,
            ));
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let context = format!("syncing {}", self.name);
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        if disk.fail_syncs > 0 {
            disk.fail_syncs -= 1;
            return Err(StorageError::Io {
                context,
                source: std::io::Error::from_raw_os_error(libc::EIO),
            });
        }
        let inode = disk.inode(self.inode);
        inode.pending.clear();
        inode.durable = inode.live.clone();
        Disk::finish(step, &context)
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        let context = format!("cutting {}", self.name);
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        let inode = disk.inode(self.inode);
        inode.live.resize(len as usize, 0);
        inode.pending.push(Change::SetLen(len));
        Disk::finish(step, &context)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

impl FileSystem for FaultFs {
    fn create_new(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        let context = format!("creating {}", path.display());
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        if disk.live.contains_key(path) {
            return Err(io_error(std::io::ErrorKind::AlreadyExists, context));
        }
        if !disk.dirs.contains(parent(path)) {
            return Err(io_error(std::io::ErrorKind::NotFound, context));
        }
        disk.next_inode += 1;
        let inode = disk.next_inode;
        disk.inodes.insert(inode, Inode::default());
        disk.set_entries(parent(path), vec![(path.to_path_buf(), Some(inode))]);
        Disk::finish(step, &context)?;
        Ok(self.open(inode, path))
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        let disk = self.disk.lock();
        disk.alive("opening")?;
        let inode = disk.inode_of(path, "opening")?;
        Ok(self.open(inode, path))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.read_range(path, 0, usize::MAX)
    }

    fn read_range(&self, path: &Path, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut disk = self.disk.lock();
        disk.alive("reading")?;
        let inode = disk.inode_of(path, "reading")?;
        let bytes = &disk.inode(inode).live;
        let start = (offset as usize).min(bytes.len());
        Ok(bytes[start..start.saturating_add(len).min(bytes.len())].to_vec())
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        let disk = self.disk.lock();
        disk.alive("looking at")?;
        Ok(disk
            .live
            .get(path)
            .and_then(|inode| disk.inodes.get(inode))
            .map(|inode| inode.live.len() as u64))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let context = format!("renaming {}", from.display());
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        let inode = disk.inode_of(from, "renaming")?;
        disk.set_entries(
            parent(to),
            vec![(from.to_path_buf(), None), (to.to_path_buf(), Some(inode))],
        );
        Disk::finish(step, &context)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let context = format!("linking {}", to.display());
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        let inode = disk.inode_of(from, "linking")?;
        if disk.live.contains_key(to) {
            return Err(io_error(std::io::ErrorKind::AlreadyExists, context));
        }
        disk.set_entries(parent(to), vec![(to.to_path_buf(), Some(inode))]);
        Disk::finish(step, &context)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let context = format!("removing {}", path.display());
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        disk.inode_of(path, "removing")?;
        disk.set_entries(parent(path), vec![(path.to_path_buf(), None)]);
        Disk::finish(step, &context)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let disk = self.disk.lock();
        disk.alive("listing")?;
        let inside = disk.live.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_string()))
            .collect())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        if disk.dirs.contains(dir) {
            return disk.alive("creating a directory");
        }
        let step = disk.step("creating a directory")?;
        disk.dirs.extend(dir.ancestors().map(Path::to_path_buf));
        Disk::finish(step, "creating a directory")
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let context = format!("syncing {}", dir.display());
        let mut disk = self.disk.lock();
        let step = disk.step(&context)?;
        let (synced, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut disk.entry_changes)
            .into_iter()
            .partition(|change| change.dir == dir);
        disk.entry_changes = rest;
        for change in &synced {
            disk.apply_durable(change);
        }
        Disk::finish(step, &context)
    }

    fn export(&self, path: &Path, dest: &Path) -> Result<()> {
        let bytes = self.read(path)?;
        std::fs::write(dest, bytes).map_err(|e| StorageError::from_io(e, format!("writing {}", dest.display())))
    }

    fn import(&self, source: &Path, path: &Path) -> Result<()> {
        let bytes =
            std::fs::read(source).map_err(|e| StorageError::from_io(e, format!("reading {}", source.display())))?;
        let mut file = self.create_new(path)?;
        // In pieces, so that power is lost between them as well.
        bytes
            .chunks(bytes.len().div_ceil(3).max(1))
            .try_for_each(|piece| file.append(piece))?;
        file.sync()
    }
}
