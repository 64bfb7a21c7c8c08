//! Files as a source: JSON lines, CSV and Parquet in a directory of this machine or in a bucket.
//!
//! ```text
//!   list ─▶ found ─poll_splits─▶ timeline ─add_split─▶ splits ─scan ahead─▶ positions ─cut─▶ ranges
//!                                                                                             │
//!   content (pread; blocks of a bucket's object; unpacked gzip) ─▶ records / row groups ◀─open┘─▶ rows
//! ```
//!
//! A file is a split. Offsets of text are bytes (of the unpacked text, if it is packed), those of Parquet row numbers. Where a text can be cut is
//! known only once it has been read up to there, so a thread reads ahead, notes every few thousand records a *position* with the
//! number of records before it, and forgets the bytes; it stops when it is far enough ahead.
//!
//! A reader goes through its whole range and decodes the records whose number falls into its share. Looking for line breaks costs a few
//! percent of decoding, so that tasks which share a range do much of nothing twice.
//!
//! **Each file once.** A file is known by its path, and by size and time of modification (in a bucket, the tag) is known to be still the
//! same. One that changes after it was taken makes whoever reads it next fail with an error; rows are never read from half an old file and half
//! a new one. Files are found in a directory listing every `refresh.interval.sec` and taken in order of modification (or path);
//! those found in one listing are sorted, across listings the earlier found come first. A file that is still being written when it is
//! found counts as changed later: write elsewhere, or under a name that starts with `.` or `_` or ends in `.tmp`, and rename.
//!
//! **Memory**: a megabyte or two a reader, however big the file; for buckets and packed text a cache of blocks within the driver's budget.

mod blocks;
mod gzip;
mod lines;
mod pull;
mod rows;
mod scan;
mod store;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use hashbrown::HashMap;
use levee_planner::catalog::{Encoding, SourceDef};
use levee_planner::connectors::encode::CsvOptions;
use levee_planner::connectors::file::{Compression, FileOptions};
use parking_lot::{Condvar, Mutex};

use self::blocks::Blocks;
use self::lines::Syntax;
use self::pull::{Pull, Threads};
use self::rows::ParquetFile;
use self::scan::{Split, State};
use self::store::{Content, Identity, Listed, Reading, Store};
use super::decode::Decoder;
use super::{
    CutRequest, DriverContext, RangeCheck, RangeReader, Share, SourceDriver, SourceStatus, SplitInfo, SplitRange,
};
use crate::{Result, RuntimeError};

/// Files of which the driver keeps something open.
const OPEN_FILES_MAX: usize = 32;
/// Parquet files whose footers are read, and so whose columns are checked, when the source is created.
const FOOTERS_MAX: usize = 64;

/// Makes the driver.
///
/// # Errors
/// An option or a column's type cannot be used.
pub fn driver(def: &SourceDef, context: DriverContext) -> Result<Arc<dyn SourceDriver>> {
    let shared = Shared::new(def, context)?;
    Ok(Arc::new(FileDriver {
        shared: Arc::new(shared),
    }))
}

/// Checks the definition and lists the files that are there.
///
/// # Errors
/// As [`driver`]; the place does not exist or cannot be reached.
pub fn discover(def: &SourceDef) -> Result<Vec<SplitInfo>> {
    let shared = Shared::new(def, DriverContext::detached("a new source"))?;
    if matches!(shared.form, Form::Parquet) {
        rows::check_types(def)?;
    } else {
        Decoder::new(def)?;
    }
    let mut listed = shared.store.list().map_err(store::Trouble::into_error)?;
    if matches!(shared.form, Form::Parquet) {
        for file in listed.iter_mut().take(FOOTERS_MAX) {
            file.rows = Some(shared.rows_of(file).map_err(store::Trouble::into_error)?);
        }
    }
    listed.iter().map(split_info).collect()
}

fn split_info(file: &Listed) -> Result<SplitInfo> {
    Ok(SplitInfo {
        name: file.name.clone(),
        start: 0,
        meta: postcard::to_stdvec(&(&file.identity, file.rows))
            .map_err(|e| RuntimeError::internal(format!("a file's identity: {e}")))?,
    })
}

fn listed(info: &SplitInfo) -> Result<Listed> {
    let meta: Result<(Identity, Option<u64>), _> = postcard::from_bytes(&info.meta);
    let (identity, rows) = meta.map_err(|e| {
        RuntimeError::internal(format!(
            "what the log says of file \"{}\" cannot be read: {e}",
            info.name
        ))
    })?;
    Ok(Listed {
        name: info.name.clone(),
        identity,
        rows,
    })
}

/// How a source's files hold rows.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text { syntax: Syntax, header: bool },
    Parquet,
}

/// What the driver, its thread and its readers share.
struct Shared {
    def: SourceDef,
    form: Form,
    compression: Compression,
    refresh: Duration,
    store: Store,
    threads: Arc<Threads>,
    context: DriverContext,
    /// Of objects in a bucket, and of unpacked text.
    raw_blocks: Arc<Blocks>,
    text_blocks: Arc<Blocks>,
    open: Mutex<Open>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Files in use.
#[derive(Default)]
struct Open {
    contents: HashMap<u32, Arc<dyn Content>>,
    parquet: HashMap<u32, Arc<ParquetFile>>,
}

impl Shared {
    fn new(def: &SourceDef, context: DriverContext) -> Result<Self> {
        context.versions.ensure(def);
        let options = FileOptions::parse(&def.options)?;
        let form = match def.encode {
            Encoding::Csv => {
                let csv = CsvOptions::parse(&def.encode_options)?;
                Form::Text {
                    syntax: Syntax::Csv {
                        quote: csv.quote,
                        escape: csv.escape,
                    },
                    header: csv.header,
                }
            }
            Encoding::Json => Form::Text {
                syntax: Syntax::Lines,
                header: false,
            },
            Encoding::Parquet => Form::Parquet,
            Encoding::Native => return Err(RuntimeError::internal("a file source without an encoding")),
        };
        let threads = Arc::new(Threads::new()?);
        let blocks = |context: &DriverContext| {
            let memory = context.governor.holder(crate::memory::Share::Sources);
            Blocks::new(context.buffer_bytes / 2, memory)
        };
        Ok(Self {
            store: Store::new(&options, threads.handle()?)?,
            def: def.clone(),
            form,
            compression: options.compression,
            refresh: options.refresh,
            threads,
            raw_blocks: Arc::new(blocks(&context)),
            text_blocks: Arc::new(blocks(&context)),
            context,
            open: Mutex::default(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        })
    }

    fn is_packed(&self, name: &str) -> bool {
        match (self.form, self.compression) {
            (Form::Parquet, _) | (_, Compression::None) => false,
            (_, Compression::Gzip) => true,
            (_, Compression::Auto) => name.ends_with(".gz"),
        }
    }

    /// A split's bytes. Kept for a while, because an unpacker knows where it stands.
    fn content(&self, split: u32, file: &Listed) -> Reading<Arc<dyn Content>> {
        if let Some(content) = self.open.lock().contents.get(&split) {
            return Ok(Arc::clone(content));
        }
        let mut content = self.store.open(split, file, &self.raw_blocks)?;
        if self.is_packed(&file.name) {
            content = Arc::new(gzip::GzipFile::new(
                split,
                &file.name,
                content,
                Arc::clone(&self.text_blocks),
            ));
        }
        let mut open = self.open.lock();
        if open.contents.len() >= OPEN_FILES_MAX {
            open.contents.clear();
        }
        open.contents.insert(split, Arc::clone(&content));
        Ok(content)
    }

    /// A Parquet file with its footer read.
    fn parquet(&self, split: u32, file: &Listed) -> Reading<Arc<ParquetFile>> {
        if let Some(parquet) = self.open.lock().parquet.get(&split) {
            return Ok(Arc::clone(parquet));
        }
        let content = self.content(split, file)?;
        let parquet = Arc::new(ParquetFile::open(content, file, &self.def)?);
        let mut open = self.open.lock();
        if open.parquet.len() >= OPEN_FILES_MAX {
            open.parquet.clear();
        }
        open.parquet.insert(split, Arc::clone(&parquet));
        Ok(parquet)
    }

    /// Rows of a Parquet file that is no split yet.
    fn rows_of(&self, file: &Listed) -> Reading<u64> {
        let memory = self.context.governor.holder(crate::memory::Share::Sources);
        let blocks = Arc::new(Blocks::new(self.context.buffer_bytes, memory));
        let content = self.store.open(0, file, &blocks)?;
        Ok(ParquetFile::open(content, file, &self.def)?.rows())
    }

    fn split(&self, split: u32) -> Result<Listed> {
        let state = self.state.lock();
        let found = state.splits.get(split as usize).map(|s| s.file.clone());
        found.ok_or_else(|| RuntimeError::internal(format!("source \"{}\" has no split {split}", self.context.name)))
    }
}

struct FileDriver {
    shared: Arc<Shared>,
}

impl FileDriver {
    /// Starts the thread that lists and reads ahead, once.
    fn start(&self) -> Result<()> {
        if std::mem::replace(&mut self.shared.state.lock().started, true) {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("source-files".to_owned())
            .spawn(move || scan::run(&shared))
            .map(drop)
            .map_err(|e| RuntimeError::internal(format!("a source's thread cannot be started: {e}")))
    }
}

impl SourceDriver for FileDriver {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.shared.def.schema)
    }

    fn add_split(&self, split: u32, info: &SplitInfo) -> Result<()> {
        let file = listed(info)?;
        let mut state = self.shared.state.lock();
        if state.splits.len() != split as usize {
            return Err(RuntimeError::internal(format!(
                "file \"{}\" is split {split} of {}",
                info.name,
                state.splits.len()
            )));
        }
        state.found.retain(|f| f.name != file.name);
        state.names.insert(file.name.clone(), split);
        let end = match self.shared.form {
            Form::Parquet => file.rows,
            Form::Text { .. } if self.shared.is_packed(&file.name) => None,
            Form::Text { .. } => Some(file.identity.size),
        };
        state.splits.push(Split::new(file, end));
        self.shared.changed.notify_all();
        Ok(())
    }

    fn poll_splits(&self) -> Vec<SplitInfo> {
        let state = self.shared.state.lock();
        state.found.iter().filter_map(|f| split_info(f).ok()).collect()
    }

    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>> {
        self.start()?;
        let mut state = self.shared.state.lock();
        if let Some((code, message, hint)) = state.failed.clone() {
            return Err(RuntimeError::User { code, message, hint });
        }
        let ranges = state.cut(request);
        self.shared.changed.notify_all();
        Ok(ranges)
    }

    fn finished(&self, next: &[u64]) -> bool {
        let state = self.shared.state.lock();
        state.one_file
            && state
                .splits
                .iter()
                .zip(next)
                .all(|(s, next)| s.complete.is_some_and(|end| *next >= end))
    }

    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>> {
        let shared = &self.shared;
        let file = shared.split(range.split)?;
        let slow = shared.is_packed(&file.name) || shared.store.is_remote();
        let pull: Box<dyn Pull> = match shared.form {
            Form::Text { .. } => Box::new(text::TextReader::new(shared, file, range, share, projection)?),
            Form::Parquet => Box::new(rows::RowReader::new(shared, file, range, share, projection)?),
        };
        Ok(if slow {
            Box::new(pull::Threaded::new(Arc::clone(&shared.threads), pull))
        } else {
            Box::new(pull::Direct(pull))
        })
    }

    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        let files: Vec<Listed> = self.shared.state.lock().splits.iter().map(|s| s.file.clone()).collect();
        let mut ranges = Vec::new();
        let mut left = records;
        for (split, file) in (0u32..).zip(files) {
            if left == 0 {
                break;
            }
            let mut ahead = scan::Ahead::open(&self.shared, split, &file, 0).map_err(store::Trouble::into_error)?;
            let mut range = SplitRange::unchecked(split, 0, 0);
            let mut check = RangeCheck {
                records: 0,
                bytes: 0,
                digest: 0,
            };
            while check.records < left
                && let Some(position) = ahead.next().map_err(store::Trouble::into_error)?
            {
                range.to = position.to;
                check.records += position.records;
                check.bytes += position.bytes;
            }
            left = left.saturating_sub(check.records);
            range.check = Some(check);
            if range.from < range.to {
                ranges.push(range);
            }
        }
        Ok(ranges)
    }

    fn present_ends(&self) -> Vec<Option<u64>> {
        self.shared.state.lock().ends()
    }

    fn status(&self) -> SourceStatus {
        self.shared.state.lock().status()
    }

    fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for FileDriver {
    fn drop(&mut self) {
        self.stop();
    }
}
