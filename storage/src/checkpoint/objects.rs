//! Where checkpoints are: a directory through the storage port, or an object store.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::error::{Result, StorageError};
use crate::fs::{FileSystem, object_path};

const COPY_BYTES: usize = 4 << 20;

/// What a checkpoint URL names.
#[derive(Debug, Clone)]
pub enum CheckpointTarget {
    /// A directory, written through the storage port (object_store's own has no fsync).
    Directory(PathBuf),
    /// An object store.
    Store(Arc<dyn ObjectStore>),
}

impl CheckpointTarget {
    /// Reads `file:///absolute/path` (taken literally, without percent-decoding) or `memory://`, which ends with the process.
    pub fn parse(url: &str) -> Result<Self> {
        let refuse = |reason: &str| StorageError::Invalid {
            what: format!("checkpoint URL {url}"),
            reason: reason.to_string(),
        };
        if let Some(path) = url.strip_prefix("file://") {
            if !path.starts_with('/') {
                return Err(refuse("a local directory is written file:///absolute/path"));
            }
            return Ok(Self::Directory(PathBuf::from(path)));
        }
        if matches!(url, "memory://" | "memory:///") {
            return Ok(Self::Store(Arc::new(InMemory::new())));
        }
        Err(refuse("only file:///absolute/path and memory:// are supported"))
    }
}

/// A flat set of named, immutable objects.
pub(crate) trait Objects: Send + Sync + Debug {
    /// Creates an object, durable on return; `AlreadyExists` if the name is taken.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()>;
    /// Creates an object of a local file's bytes; returns their number and checksum.
    fn create_from_file(&self, name: &str, source: &Path) -> Result<(u64, u32)>;
    /// All bytes of an object.
    fn read(&self, name: &str) -> Result<Vec<u8>>;
    /// Length of an object, or none.
    fn size(&self, name: &str) -> Result<Option<u64>>;
    /// Checksum of an object.
    fn crc32(&self, name: &str) -> Result<u32>;
    /// Names in a folder with the folder cut off, sorted.
    fn list(&self, folder: &str) -> Result<Vec<String>>;
    /// Removes an object.
    fn remove(&self, name: &str) -> Result<()>;
    /// A read-only copy or link at a local path.
    fn fetch(&self, name: &str, dest: &Path) -> Result<()>;
    /// Makes what `create` returned `AlreadyExists` for durable, and removals.
    fn settle(&self, folder: &str) -> Result<()>;
}

pub(crate) fn open(target: &CheckpointTarget, fs: &Arc<dyn FileSystem>) -> Result<Arc<dyn Objects>> {
    Ok(match target {
        CheckpointTarget::Directory(root) => Arc::new(Directory::open(Arc::clone(fs), root)?),
        CheckpointTarget::Store(store) => Arc::new(Remote::open(Arc::clone(store))?),
    })
}

/// Reads a local file in pieces; returns its length and checksum.
pub(crate) fn copy_file(source: &Path, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<(u64, u32)> {
    let fail = |e| StorageError::from_io(e, format!("reading {}", source.display()));
    let mut file = std::fs::File::open(source).map_err(fail)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut hasher = crc32fast::Hasher::new();
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(fail)?;
        if read == 0 {
            return Ok((bytes, hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
        sink(&buffer[..read])?;
    }
}

/// Objects as files: written (or linked) under `tmp/`, synced, then linked to their name if it is free, and the name synced.
#[derive(Debug)]
struct Directory {
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    next_temp: AtomicU64,
}

impl Directory {
    fn open(fs: Arc<dyn FileSystem>, root: &Path) -> Result<Self> {
        let temp = root.join("tmp");
        for dir in [&root.join("delta"), &root.join("manifest"), &temp] {
            fs.create_dir_all(dir)?;
        }
        let leftovers = fs.list(&temp)?;
        for name in &leftovers {
            fs.remove(&temp.join(name))?;
        }
        if !leftovers.is_empty() {
            fs.sync_dir(&temp)?;
        }
        Ok(Self {
            fs,
            root: root.to_path_buf(),
            next_temp: AtomicU64::new(1),
        })
    }

    /// `fill` makes a durable file at the path that it is given.
    fn create_with(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let temp = self
            .root
            .join("tmp")
            .join(self.next_temp.fetch_add(1, Ordering::Relaxed).to_string());
        let path = object_path(&self.root, name);
        let write = || {
            fill(&temp)?;
            self.fs.hard_link(&temp, &path)
        };
        let written = write();
        // A second name left behind does no harm, and goes at the next start.
        if let Err(error) = self.fs.remove(&temp) {
            tracing::debug!(file = %temp.display(), %error, "leaving a temporary file behind until restart");
        }
        written?;
        self.fs.sync_dir(path.parent().unwrap_or(&self.root))
    }
}

impl Objects for Directory {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.create_with(name, |temp| {
            let mut file = self.fs.create_new(temp)?;
            file.append(bytes)?;
            file.sync()
        })
    }

    fn create_from_file(&self, name: &str, source: &Path) -> Result<(u64, u32)> {
        let described = copy_file(source, |_| Ok(()))?;
        self.create_with(name, |temp| self.fs.import(source, temp))?;
        Ok(described)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.fs.read(&object_path(&self.root, name))
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.fs.len(&object_path(&self.root, name))
    }

    fn crc32(&self, name: &str) -> Result<u32> {
        let path = object_path(&self.root, name);
        let mut hasher = crc32fast::Hasher::new();
        let mut offset = 0;
        loop {
            let piece = self.fs.read_range(&path, offset, COPY_BYTES)?;
            hasher.update(&piece);
            offset += piece.len() as u64;
            if piece.len() < COPY_BYTES {
                return Ok(hasher.finalize());
            }
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        self.fs.list(&self.root.join(folder))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.fs.remove(&object_path(&self.root, name))
    }

    fn fetch(&self, name: &str, dest: &Path) -> Result<()> {
        self.fs.export(&object_path(&self.root, name), dest)
    }

    fn settle(&self, folder: &str) -> Result<()> {
        self.fs.sync_dir(&self.root.join(folder))
    }
}

/// Objects in an object store, called from blocking threads through a small runtime of its own.
#[derive(Debug)]
struct Remote {
    store: Arc<dyn ObjectStore>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A plain drop would panic where it happens on an async thread.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Remote {
    fn open(store: Arc<dyn ObjectStore>) -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .thread_name("object-store")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|e| StorageError::from_io(e, "starting the object store's thread"))?;
        Ok(Self {
            store,
            runtime: Some(runtime),
        })
    }

    fn run<T, F>(&self, context: String, work: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let stopped = || std::io::Error::other("the object store's thread has stopped");
        let Some(runtime) = &self.runtime else {
            return Err(StorageError::from_io(stopped(), context));
        };
        let task = runtime.spawn(work(Arc::clone(&self.store)));
        match futures::executor::block_on(task) {
            Ok(done) => done.map_err(|source| StorageError::ObjectStore { context, source }),
            Err(_) => Err(StorageError::from_io(stopped(), context)),
        }
    }

    fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = object_store::path::Path::from(name);
        self.run(format!("creating {name}"), move |store| async move {
            store
                .put_opts(&path, PutPayload::from(bytes), PutMode::Create.into())
                .await
                .map(|_| ())
        })
    }
}

impl Objects for Remote {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.put(name, Bytes::copy_from_slice(bytes))
    }

    fn create_from_file(&self, name: &str, source: &Path) -> Result<(u64, u32)> {
        let mut all = Vec::new();
        let described = copy_file(source, |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        self.put(name, Bytes::from(all))?;
        Ok(described)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = object_store::path::Path::from(name);
        self.run(format!("reading {name}"), move |store| async move {
            Ok(store.get(&path).await?.bytes().await?.to_vec())
        })
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = object_store::path::Path::from(name);
        let found = self.run(format!("looking at {name}"), move |store| async move {
            store.head(&path).await
        });
        match found {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn crc32(&self, name: &str) -> Result<u32> {
        Ok(crc32fast::hash(&self.read(name)?))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let path = object_store::path::Path::from(folder);
        let found = self.run(format!("listing {folder}"), move |store| async move {
            store.list(Some(&path)).try_collect::<Vec<_>>().await
        })?;
        let names: BTreeSet<String> = found
            .iter()
            .filter_map(|meta| Some(meta.location.filename()?.to_string()))
            .collect();
        Ok(names.into_iter().collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = object_store::path::Path::from(name);
        self.run(format!("removing {name}"), move |store| async move {
            store.delete(&path).await
        })
    }

    fn fetch(&self, name: &str, dest: &Path) -> Result<()> {
        let bytes = self.read(name)?;
        let write = || std::fs::File::create(dest)?.write_all(&bytes);
        write().map_err(|e| StorageError::from_io(e, format!("writing {}", dest.display())))
    }

    fn settle(&self, _folder: &str) -> Result<()> {
        Ok(())
    }
}
