//! The machine's file system.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::{FileSystem, FsFile};
use crate::error::{Result, StorageError};

/// `std::fs` with fsync of files and directories, and `ENOSPC` told apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsFs;

#[derive(Debug)]
struct OsFile {
    file: File,
    name: String,
}

fn fail(verb: &str, path: &Path) -> impl FnOnce(std::io::Error) -> StorageError {
    let context = format!("{verb} {}", path.display());
    move |source| StorageError::from_io(source, context)
}

impl FsFile for OsFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|e| StorageError::from_io(e, format!("writing {}", self.name)))
    }

    fn sync(&mut self) -> Result<()> {
        self.file
            .sync_data()
            .map_err(|e| StorageError::from_io(e, format!("syncing {}", self.name)))
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        self.file
            .set_len(len)
            .map_err(|e| StorageError::from_io(e, format!("cutting {}", self.name)))
    }
}

impl OsFs {
    fn open(options: &mut OpenOptions, path: &Path, verb: &str) -> Result<Box<dyn FsFile>> {
        let file = options.append(true).open(path).map_err(fail(verb, path))?;
        Ok(Box::new(OsFile {
            file,
            name: path.display().to_string(),
        }))
    }
}

impl FileSystem for OsFs {
    fn create_new(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        Self::open(OpenOptions::new().create_new(true), path, "creating")
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        Self::open(&mut OpenOptions::new(), path, "opening")
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        std::fs::read(path).map_err(fail("reading", path))
    }

    fn read_range(&self, path: &Path, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut file = File::open(path).map_err(fail("opening", path))?;
        file.seek(SeekFrom::Start(offset)).map_err(fail("reading", path))?;
        let mut bytes = Vec::with_capacity(len.min(1 << 20));
        file.take(len as u64)
            .read_to_end(&mut bytes)
            .map_err(fail("reading", path))?;
        Ok(bytes)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(fail("looking at", path)(e)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(fail("renaming", from))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::hard_link(from, to).map_err(fail("linking", to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path).map_err(fail("removing", path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(fail("listing", dir)(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail("listing", dir))?;
            if entry.file_type().map_err(fail("listing", dir))?.is_file() {
                let name = entry.file_name().into_string();
                names.push(name.map_err(|name| StorageError::corrupt(dir.display(), format!("file name {name:?}")))?);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let missing: Vec<&Path> = dir
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
            .collect();
        std::fs::create_dir_all(dir).map_err(fail("creating", dir))?;
        for path in missing.iter().rev() {
            let parent = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            self.sync_dir(parent)?;
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let file = File::open(dir).map_err(fail("opening", dir))?;
        file.sync_all().map_err(fail("syncing", dir))
    }

    fn export(&self, path: &Path, dest: &Path) -> Result<()> {
        match std::fs::hard_link(path, dest) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(fail("linking", path)(e)),
            Err(_) => std::fs::copy(path, dest).map(|_| ()).map_err(fail("copying", path)),
        }
    }

    fn import(&self, source: &Path, path: &Path) -> Result<()> {
        let sync = |file: &Path| File::open(file)?.sync_all();
        match std::fs::hard_link(source, path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(fail("linking", path)(e)),
            Err(_) => std::fs::copy(source, path).map(|_| ()).map_err(fail("copying", path))?,
        }
        sync(path).map_err(fail("syncing", path))
    }
}
