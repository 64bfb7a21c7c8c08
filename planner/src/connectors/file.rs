//! Options of the file connector.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `path` | a directory, a file, a pattern (`/data/*.csv`), or `s3://bucket/prefix` | must be given |
//! | `match_pattern` | pattern that a file's path below `path` must match | every file |
//! | `order` | order in which files are taken that are found together: `mtime` (then path) or `path` | `mtime` |
//! | `refresh.interval.sec` | seconds between looks for new files | 1 |
//! | `compression_format` | `none`, `gzip`, or `auto`: gzip where the name ends in `.gz` | `auto` |
//! | `s3.region`, `s3.endpoint`, `s3.access_key`, `s3.secret_key` | of the bucket | from the environment |
//!
//! The bucket's options have the names `s3.region_name`, `s3.endpoint_url`, `s3.credentials.access` and `s3.credentials.secret` too.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Reader;
use crate::{PlanError, Result};

const KNOWN: [&str; 9] = [
    "path",
    "match_pattern",
    "order",
    "refresh.interval.sec",
    "compression_format",
    "s3.region",
    "s3.endpoint",
    "s3.access_key",
    "s3.secret_key",
];
/// Other names of some options.
const ALIASES: [(&str, &str); 4] = [
    ("s3.region_name", "s3.region"),
    ("s3.endpoint_url", "s3.endpoint"),
    ("s3.credentials.access", "s3.access_key"),
    ("s3.credentials.secret", "s3.secret_key"),
];

/// Where files lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// Below a directory of the server's machine; `pattern` matches whole paths relative to it.
    Local {
        /// Absolute directory without a pattern in it.
        directory: String,
        /// What is left of the path: a file's name or a pattern.
        pattern: Option<String>,
    },
    /// In a bucket.
    S3 {
        /// Bucket.
        bucket: String,
        /// Prefix of the keys, without a pattern in it.
        prefix: String,
        /// What is left of the path: a pattern.
        pattern: Option<String>,
    },
}

/// Order in which files that are found together are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrder {
    /// By time of modification, then path.
    Mtime,
    /// By path.
    Path,
}

/// Compression of text files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// None.
    None,
    /// Gzip.
    Gzip,
    /// Gzip where the name ends in `.gz`.
    Auto,
}

/// Access to a bucket; what is not given comes from the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Options {
    /// Region.
    pub region: Option<String>,
    /// Endpoint's URL, for stores other than Amazon's.
    pub endpoint: Option<String>,
    /// Access key.
    pub access_key: Option<String>,
    /// Secret key.
    pub secret_key: Option<String>,
}

/// The options, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Where the files lie.
    pub location: Location,
    /// Pattern that a path below the location must match.
    pub match_pattern: Option<String>,
    /// Order.
    pub order: FileOrder,
    /// Between two looks for new files.
    pub refresh: Duration,
    /// Compression.
    pub compression: Compression,
    /// Access to a bucket.
    pub s3: S3Options,
}

impl FileOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 22023 for an unknown, missing or malformed option.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        let mut named = options.clone();
        for (alias, name) in ALIASES {
            if let Some(value) = named.remove(alias)
                && named.insert(name.to_owned(), value).is_some()
            {
                return Err(
                    PlanError::new("22023", format!("options \"{alias}\" and \"{name}\" are the same"))
                        .hint("Give one of them."),
                );
            }
        }
        let reader = Reader::new("connector \"file\"", &named);
        reader.only(&KNOWN, |k| KNOWN.contains(&k))?;
        let path = reader.required(
            "path",
            "Write path = '/directory', '/directory/*.json' or 's3://bucket/prefix'.",
        )?;
        let location = location(path).ok_or_else(|| {
            reader.malformed(
                "path",
                "It is an absolute path of the server's machine, with a pattern or not, or 's3://bucket/prefix'.",
            )
        })?;
        let s3 = S3Options {
            region: reader.text("s3.region").map(str::to_owned),
            endpoint: reader.text("s3.endpoint").map(str::to_owned),
            access_key: reader.text("s3.access_key").map(str::to_owned),
            secret_key: reader.text("s3.secret_key").map(str::to_owned),
        };
        if s3.access_key.is_some() != s3.secret_key.is_some() {
            return Err(PlanError::new(
                "22023",
                "options \"s3.access_key\" and \"s3.secret_key\" go together",
            ));
        }
        if s3 != S3Options::default() && matches!(location, Location::Local { .. }) {
            return Err(PlanError::new("22023", "options \"s3.…\" need a path in a bucket")
                .hint("Write path = 's3://bucket/prefix'."));
        }
        let order = [FileOrder::Mtime, FileOrder::Path];
        let compression = [Compression::None, Compression::Gzip, Compression::Auto];
        Ok(Self {
            location,
            match_pattern: reader.text("match_pattern").map(str::to_owned),
            order: order[reader.word("order", &["mtime", "path"])?.unwrap_or(0)],
            refresh: reader
                .seconds("refresh.interval.sec", Duration::from_millis(50))?
                .unwrap_or(Duration::from_secs(1)),
            compression: compression[reader
                .word("compression_format", &["none", "gzip", "auto"])?
                .unwrap_or(2)],
            s3,
        })
    }
}

/// Whether a part of a path is a pattern.
fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

fn location(path: &str) -> Option<Location> {
    if let Some(rest) = path.strip_prefix("s3://") {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || is_pattern(bucket) {
            return None;
        }
        let (prefix, pattern) = split_pattern(key);
        return Some(Location::S3 {
            bucket: bucket.to_owned(),
            prefix,
            pattern,
        });
    }
    let path = path.strip_prefix("file://").unwrap_or(path);
    let inner = path.strip_prefix('/')?;
    let (directory, pattern) = split_pattern(inner);
    Some(Location::Local {
        directory: format!("/{directory}"),
        pattern,
    })
}

/// The leading parts without a pattern, and the rest if it has one.
fn split_pattern(path: &str) -> (String, Option<String>) {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let plain = parts.iter().position(|p| is_pattern(p)).unwrap_or(parts.len());
    let rest = parts.get(plain..).filter(|r| !r.is_empty()).map(|r| r.join("/"));
    (parts.get(..plain).unwrap_or_default().join("/"), rest)
}
