//! Where files lie: a directory of this machine, or a bucket. Lists them, and reads bytes of one file as long as it is still the one
//! that was listed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use futures::StreamExt;
use glob::{MatchOptions, Pattern};
use levee_planner::connectors::file::{FileOptions, FileOrder, Location};
use object_store::aws::AmazonS3Builder;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::blocks::{BLOCK_BYTES, Blocks};
use crate::{Result, RuntimeError};

/// Which file it was, so that another one under its name is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// Bytes.
    pub(super) size: u64,
    /// Last modified, microseconds since 1970.
    pub(super) mtime_us: i64,
    /// The bucket's tag.
    pub(super) etag: Option<String>,
}

/// A file that was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// Absolute path, or `s3://bucket/key`.
    pub(super) name: String,
    pub(super) identity: Identity,
    /// Of a Parquet file, if its footer has been read.
    pub(super) rows: Option<u64>,
}

/// Why bytes cannot be had.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The store is out of reach; it may work later.
    Transient(String),
    /// It will not work later either.
    Permanent(RuntimeError),
}

impl Trouble {
    pub(super) fn into_error(self) -> RuntimeError {
        match self {
            Self::Transient(message) => RuntimeError::user("58030", message),
            Self::Permanent(error) => error,
        }
    }
}

pub(super) type Reading<T> = Result<T, Trouble>;

/// A file's bytes.
pub(super) trait Content: Send + Sync {
    /// Reads into `buffer` from `offset` on; 0 only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Reading<usize>;
}

/// The place where a source's files lie.
pub(super) struct Store {
    kind: Kind,
    /// The whole path below the place must match.
    pattern: Option<Pattern>,
    match_pattern: Option<Pattern>,
    order: FileOrder,
}

enum Kind {
    Local(PathBuf),
    S3 {
        bucket: String,
        prefix: String,
        client: Arc<dyn ObjectStore>,
        runtime: Handle,
    },
}

impl Store {
    /// # Errors
    /// 22023: a pattern or the bucket's options are malformed.
    pub(super) fn new(options: &FileOptions, runtime: &Handle) -> Result<Self> {
        let compile = |name: &str, pattern: &Option<String>| {
            pattern
                .as_ref()
                .map(|p| {
                    Pattern::new(p).map_err(|e| RuntimeError::User {
                        code: "22023",
                        message: format!("invalid value for option \"{name}\": \"{p}\""),
                        hint: Some(format!("{e}.")),
                    })
                })
                .transpose()
        };
        let (kind, pattern) = match &options.location {
            Location::Local { directory, pattern } => (Kind::Local(PathBuf::from(directory)), pattern),
            Location::S3 {
                bucket,
                prefix,
                pattern,
            } => {
                let kind = Kind::S3 {
                    bucket: bucket.clone(),
                    prefix: prefix.clone(),
                    client: client(bucket, options)?,
                    runtime: runtime.clone(),
                };
                (kind, pattern)
            }
        };
        Ok(Self {
            kind,
            pattern: compile("path", pattern)?,
            match_pattern: compile("match_pattern", &options.match_pattern)?,
            order: options.order,
        })
    }

    /// The place names one file that exists; no other will come.
    pub(super) fn is_one_file(&self, listed: &[Listed]) -> bool {
        match (&self.kind, listed) {
            (Kind::Local(path), [one]) => self.pattern.is_none() && one.name == path.to_string_lossy(),
            (Kind::S3 { bucket, prefix, .. }, [one]) => {
                self.pattern.is_none() && one.name == format!("s3://{bucket}/{prefix}")
            }
            _ => false,
        }
    }

    /// All files, in the order in which they are to be taken.
    pub(super) fn list(&self) -> Reading<Vec<Listed>> {
        let mut files = match &self.kind {
            Kind::Local(root) => self.list_local(root)?,
            Kind::S3 {
                bucket,
                prefix,
                client,
                runtime,
            } => self.list_bucket(bucket, prefix, client, runtime)?,
        };
        files.sort_by(|a, b| {
            let time = match self.order {
                FileOrder::Mtime => a.identity.mtime_us.cmp(&b.identity.mtime_us),
                FileOrder::Path => std::cmp::Ordering::Equal,
            };
            time.then_with(|| a.name.cmp(&b.name))
        });
        Ok(files)
    }

    /// Whether a file is one of the source's, by its path below the place. Hidden files and those that writers have not finished by
    /// common convention (`_…`, `.…`, `….tmp`) are not.
    fn wants(&self, below: &str) -> bool {
        let hidden = |part: &str| part.starts_with(['.', '_']);
        if below.split('/').any(hidden) || below.ends_with(".tmp") || below.ends_with(".part") {
            return false;
        }
        let strict = MatchOptions {
            require_literal_separator: true,
            ..MatchOptions::default()
        };
        self.pattern.as_ref().is_none_or(|p| p.matches_with(below, strict))
            && self.match_pattern.as_ref().is_none_or(|p| p.matches(below))
    }

    fn list_local(&self, root: &Path) -> Reading<Vec<Listed>> {
        let metadata = match std::fs::metadata(root) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Trouble::Permanent(RuntimeError::User {
                    code: "58P01",
                    message: format!("\"{}\" does not exist", root.display()),
                    hint: Some("The path is one of the server's machine; create the directory first.".to_owned()),
                }));
            }
            Err(e) => return Err(unreadable(root, &e)),
        };
        let mut files = Vec::new();
        if metadata.is_file() {
            files.extend(listed(root, &metadata));
            return Ok(files);
        }
        let mut open = vec![root.to_path_buf()];
        while let Some(directory) = open.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                // Gone since it was found.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && directory != root => continue,
                Err(e) => return Err(unreadable(&directory, &e)),
            };
            for entry in entries {
                let path = entry.map_err(|e| unreadable(&directory, &e))?.path();
                let Ok(metadata) = std::fs::metadata(&path) else {
                    continue;
                };
                let Some(below) = path.strip_prefix(root).ok().and_then(Path::to_str) else {
                    continue;
                };
                // A link to a directory is not followed: it may lead back.
                if metadata.is_dir() && !path.is_symlink() {
                    open.push(path);
                } else if metadata.is_file() && self.wants(below) {
                    files.extend(listed(&path, &metadata));
                }
            }
        }
        Ok(files)
    }

    fn list_bucket(
        &self,
        bucket: &str,
        prefix: &str,
        client: &Arc<dyn ObjectStore>,
        runtime: &Handle,
    ) -> Reading<Vec<Listed>> {
        let root = object_store::path::Path::from(prefix);
        let found = runtime.block_on(async {
            let mut metas: Vec<ObjectMeta> = Vec::new();
            let mut listing = client.list(Some(&root));
            while let Some(meta) = listing.next().await {
                metas.push(meta?);
            }
            if metas.is_empty() && !prefix.is_empty() && self.pattern.is_none() {
                match client.head(&root).await {
                    Ok(meta) => metas.push(meta),
                    Err(object_store::Error::NotFound { .. }) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(metas)
        });
        let metas = found.map_err(|e| Trouble::Transient(format!("bucket \"{bucket}\" cannot be listed: {e}")))?;
        Ok(metas
            .into_iter()
            .filter(|meta| {
                let key = meta.location.as_ref();
                let below = key.strip_prefix(root.as_ref()).unwrap_or(key).trim_start_matches('/');
                meta.size > 0 && (below.is_empty() || self.wants(below))
            })
            .map(|meta| Listed {
                name: format!("s3://{bucket}/{}", meta.location),
                identity: Identity {
                    size: meta.size,
                    mtime_us: meta.last_modified.timestamp_micros(),
                    etag: meta.e_tag,
                },
                rows: None,
            })
            .collect())
    }

    /// Whether bytes come over a network.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.kind, Kind::S3 { .. })
    }

    /// Opens a file that was listed, before now or by another process.
    pub(super) fn open(&self, split: u32, file: &Listed, blocks: &Arc<Blocks>) -> Reading<Arc<dyn Content>> {
        match &self.kind {
            Kind::Local(_) => LocalFile::open(file).map(|f| Arc::new(f) as Arc<dyn Content>),
            Kind::S3 {
                bucket,
                client,
                runtime,
                ..
            } => {
                let key = file.name.strip_prefix(&format!("s3://{bucket}/")).unwrap_or(&file.name);
                Ok(Arc::new(BucketFile {
                    split,
                    file: file.clone(),
                    key: object_store::path::Path::from(key),
                    client: Arc::clone(client),
                    runtime: runtime.clone(),
                    blocks: Arc::clone(blocks),
                }))
            }
        }
    }
}

fn client(bucket: &str, options: &FileOptions) -> Result<Arc<dyn ObjectStore>> {
    let s3 = &options.s3;
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(region) = &s3.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &s3.endpoint {
        builder = builder
            .with_endpoint(endpoint)
            .with_allow_http(endpoint.starts_with("http://"));
    }
    if let (Some(access), Some(secret)) = (&s3.access_key, &s3.secret_key) {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
    }
    let built = builder.build().map_err(|e| RuntimeError::User {
        code: "22023",
        message: format!("bucket \"{bucket}\" cannot be opened: {e}"),
        hint: Some("Check the options s3.region, s3.endpoint, s3.access_key and s3.secret_key.".to_owned()),
    })?;
    Ok(Arc::new(built))
}

fn identity(metadata: &std::fs::Metadata) -> Identity {
    let mtime_us = metadata.modified().ok().and_then(|t| {
        let since = t.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_micros()).ok()
    });
    Identity {
        size: metadata.len(),
        mtime_us: mtime_us.unwrap_or(0),
        etag: None,
    }
}

/// Empty files hold no records; a path that is not UTF-8 cannot be written into the catalog.
fn listed(path: &Path, metadata: &std::fs::Metadata) -> Option<Listed> {
    let name = path.to_str().filter(|_| metadata.len() > 0)?;
    Some(Listed {
        name: name.to_owned(),
        identity: identity(metadata),
        rows: None,
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Transient(format!("\"{}\" cannot be read: {error}", path.display()))
}

/// The error for a file that is no longer what was taken.
pub(super) fn changed(name: &str) -> Trouble {
    Trouble::Permanent(RuntimeError::User {
        code: "55000",
        message: format!("file \"{name}\" has changed since it was taken"),
        hint: Some("Files of a source must stay as they are: write new rows into new files, and move files in when they are complete.".to_owned()),
    })
}

fn gone(name: &str) -> Trouble {
    Trouble::Permanent(RuntimeError::User {
        code: "55000",
        message: format!("file \"{name}\" no longer exists"),
        hint: Some(
            "Keep files until no view has to read them again, or use CREATE TABLE with the connector.".to_owned(),
        ),
    })
}

struct LocalFile {
    file: File,
    listed: Listed,
}

impl LocalFile {
    fn open(listed: &Listed) -> Reading<Self> {
        let file = File::open(&listed.name).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => gone(&listed.name),
            _ => unreadable(Path::new(&listed.name), &e),
        })?;
        let opened = Self {
            file,
            listed: listed.clone(),
        };
        opened.check()?;
        Ok(opened)
    }

    fn check(&self) -> Reading<()> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|e| unreadable(Path::new(&self.listed.name), &e))?;
        if identity(&metadata) == self.listed.identity {
            Ok(())
        } else {
            Err(changed(&self.listed.name))
        }
    }
}

impl Content for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Reading<usize> {
        let read = self.file.read_at(buffer, offset);
        let read = read.map_err(|e| unreadable(Path::new(&self.listed.name), &e))?;
        // Looked at behind the read: what was read before a change is what it was.
        self.check()?;
        Ok(read)
    }
}

/// An object of a bucket, read in blocks that all its readers share.
struct BucketFile {
    split: u32,
    file: Listed,
    key: object_store::path::Path,
    client: Arc<dyn ObjectStore>,
    runtime: Handle,
    blocks: Arc<Blocks>,
}

impl BucketFile {
    fn fetch(&self, block: u64) -> Reading<bytes::Bytes> {
        let from = block * BLOCK_BYTES;
        let to = (from + BLOCK_BYTES).min(self.file.identity.size);
        let options = GetOptions {
            range: Some(GetRange::Bounded(from..to)),
            if_match: self.file.identity.etag.clone(),
            ..GetOptions::default()
        };
        let got = self.runtime.block_on(async {
            let result = self.client.get_opts(&self.key, options).await?;
            result.bytes().await
        });
        match got {
            Ok(bytes) if bytes.len() as u64 == to - from => Ok(bytes),
            Ok(_) | Err(object_store::Error::Precondition { .. }) => Err(changed(&self.file.name)),
            Err(object_store::Error::NotFound { .. }) => Err(gone(&self.file.name)),
            Err(e) => Err(Trouble::Transient(format!(
                "\"{}\" cannot be read: {e}",
                self.file.name
            ))),
        }
    }
}

impl Content for BucketFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Reading<usize> {
        if offset >= self.file.identity.size {
            return Ok(0);
        }
        let block = offset / BLOCK_BYTES;
        let bytes = match self.blocks.get(self.split, block) {
            Some(bytes) => bytes,
            None => {
                let bytes = self.fetch(block)?;
                self.blocks.put(self.split, block, &bytes);
                bytes
            }
        };
        Ok(super::blocks::copy(&bytes, offset % BLOCK_BYTES, buffer))
    }
}
