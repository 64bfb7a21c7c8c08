//! Target `file`: a directory, or a prefix in a bucket, of JSON lines, CSV or Parquet files.
//!
//! ```text
//!   levee-00c0ffee00c0ffee-0000000000000040-0000000000000048.json
//!         │                from (exclusive)  to: the marker
//!         └ the sink
//! ```
//!
//! Each delivery is one file: written under a hidden temporary name, synced, renamed, so a reader sees it whole or not at all; in a
//! bucket the put itself is atomic. The marker is the highest `to` of the sink's files: position and rows become visible in one act.
//! Deliveries are gathered until the region's checkpoint, or until they are large, so that files are few.
//!
//! A sink that is not append-only writes *changes*: a first column `__op` holds `insert`, `update` (the row after) or `delete` (the row
//! before), in an order in which they may be applied.
//!
//! Limits: one process writes for a sink (the data directory is locked); a file is built in memory, so it is at most the bytes
//! gathered, or one step.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use levee_planner::catalog::{Encoding, SinkDef, SinkMode};
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;

use super::delivery::StopWatch;
use super::format::{Column, JsonRows, columns, put_csv, put_csv_field};
use super::{Changes, Delivering, Marker, Target, TargetError, TargetResult, identity, takes_over};
use crate::{Result, RuntimeError};

/// What every sink's files begin with.
const PREFIX: &str = "levee-";

/// The time-out grows with a file by what a slow bucket takes.
const BYTES_PER_MS_MIN: u64 = 1000;

/// Connector `file`.
pub(super) struct FileTarget {
    identity: String,
    takes_over: bool,
    store: Store,
    format: Format,
}

/// How rows become a file.
struct Format {
    schema: SchemaRef,
    encode: Encoding,
    header: bool,
    changes: bool,
}

enum Store {
    Directory(PathBuf),
    Bucket(Bucket),
}

struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: object_store::path::Path,
    runtime: tokio::runtime::Runtime,
    stop: StopWatch,
    timeout: Duration,
}

/// Looks at the place before the sink is created.
///
/// # Errors
/// It cannot be written or listed, or holds another sink's files.
pub(super) fn check(def: &SinkDef) -> Result<()> {
    super::format::check_types(&def.schema)?;
    let mut target = FileTarget::new(def, StopWatch::never())?;
    match target.open(true) {
        Ok(_) => Ok(()),
        Err(error) => Err(RuntimeError::User {
            code: "55000",
            message: format!("the sink's target cannot be used: {error}"),
            hint: matches!(error, TargetError::Lost(_))
                .then(|| "Name another path, or give take_over = 'true' to write beside those files.".to_owned()),
        }),
    }
}

impl FileTarget {
    /// The target of a definition.
    ///
    /// # Errors
    /// The path or the options of a bucket cannot be used.
    pub(super) fn new(def: &SinkDef, stop: StopWatch) -> Result<Self> {
        Ok(Self {
            identity: identity(def),
            takes_over: takes_over(def),
            store: Store::new(def, stop)?,
            format: Format {
                schema: Arc::clone(&def.schema),
                encode: def.encode,
                header: def.encode_options.get("header").is_some_and(|v| v == "true"),
                changes: def.mode == SinkMode::Upsert,
            },
        })
    }

    fn name(&self, from: Option<Marker>, to: Marker) -> String {
        let from = from.map_or_else(|| place(Marker::whole(0)), place);
        format!("{}-{from}-{}.{}", self.identity, place(to), self.format.extension())
    }

    /// The marker in a file's name, if it is one of this sink's.
    fn marker(&self, name: &str) -> Option<Marker> {
        let rest = name.strip_prefix(&self.identity)?.strip_prefix('-')?;
        let (places, _) = rest.split_once('.')?;
        let (_, to) = places.split_once('-')?;
        let (epoch, part) = match to.split_once('_') {
            Some((epoch, part)) => (epoch, part.parse().ok()?),
            None => (to, Marker::WHOLE),
        };
        Some(Marker {
            epoch: epoch.parse().ok()?,
            part,
        })
    }
}

fn place(marker: Marker) -> String {
    match marker.part {
        Marker::WHOLE => format!("{:016}", marker.epoch),
        part => format!("{:016}_{part:016}", marker.epoch),
    }
}

impl Target for FileTarget {
    fn open(&mut self, fresh: bool) -> TargetResult<Option<Marker>> {
        let names = self.store.list(&self.identity)?;
        let foreign = |name: &&String| name.starts_with(PREFIX) && !name.starts_with(&self.identity);
        if let Some(name) = names.iter().find(foreign).filter(|_| fresh && !self.takes_over) {
            return Err(TargetError::Lost(format!("another sink has written there: {name}")));
        }
        Ok(names.iter().filter_map(|n| self.marker(n)).max())
    }

    fn write(&mut self, from: Option<Marker>, to: Marker, changes: &[Changes]) -> TargetResult<()> {
        let bytes = self
            .format
            .encode(changes)
            .map_err(|e| TargetError::Lost(format!("rows cannot be encoded: {e}")))?;
        self.store.put(&self.name(from, to), bytes)
    }

    fn release(&mut self) -> TargetResult<()> {
        // The files are the user's; the name of this sink in them keeps another one from mistaking them for its own.
        Ok(())
    }
}

impl Format {
    fn extension(&self) -> &'static str {
        match self.encode {
            Encoding::Csv => "csv",
            Encoding::Parquet => "parquet",
            _ => "json",
        }
    }

    fn encode(&self, changes: &[Changes]) -> Result<Vec<u8>> {
        match self.encode {
            Encoding::Csv => self.csv(changes),
            Encoding::Parquet => self.parquet(changes),
            _ => self.json(changes),
        }
    }

    fn json(&self, changes: &[Changes]) -> Result<Vec<u8>> {
        let rows = JsonRows::new(&self.schema, 0..self.schema.fields().len());
        let mut out = Vec::new();
        for part in changes {
            let columns = columns(&part.batch)?;
            let columns: Vec<&Column<'_>> = columns.iter().collect();
            for change in &part.changes {
                let op = self.changes.then(|| change.op.name());
                rows.put(&mut out, &columns, change.row(), op);
                out.push(b'\n');
            }
        }
        Ok(out)
    }

    fn csv(&self, changes: &[Changes]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if self.header {
            let names = self.schema.fields().iter().map(|f| f.name().as_str());
            let op = self.changes.then_some("__op");
            for (i, name) in op.into_iter().chain(names).enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                put_csv_field(&mut out, name.as_bytes());
            }
            out.push(b'\n');
        }
        for part in changes {
            let columns = columns(&part.batch)?;
            for change in &part.changes {
                put_csv(&mut out, &columns, change.row(), self.changes.then(|| change.op.name()));
                out.push(b'\n');
            }
        }
        Ok(out)
    }

    fn parquet(&self, changes: &[Changes]) -> Result<Vec<u8>> {
        let schema = self.parquet_schema();
        let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), None).map_err(parquet_error)?;
        for part in changes {
            let rows: UInt32Array = part.changes.iter().map(|c| c.row() as u32).collect();
            let taken = take_record_batch(&part.batch, &rows)?;
            let ops = StringArray::from_iter_values(part.changes.iter().map(|c| c.op.name()));
            let op: Option<ArrayRef> = self.changes.then(|| Arc::new(ops) as ArrayRef);
            let arrays = op.into_iter().chain(taken.columns().iter().map(Arc::clone)).collect();
            let batch = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
            writer.write(&batch).map_err(parquet_error)?;
        }
        writer.into_inner().map_err(parquet_error)
    }

    fn parquet_schema(&self) -> SchemaRef {
        let op = self
            .changes
            .then(|| Arc::new(Field::new("__op", DataType::Utf8, false)));
        let fields = op.into_iter().chain(self.schema.fields().iter().map(Arc::clone));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }
}

fn parquet_error(error: parquet::errors::ParquetError) -> RuntimeError {
    RuntimeError::internal(format!("parquet: {error}"))
}

impl Store {
    fn new(def: &SinkDef, stop: StopWatch) -> Result<Self> {
        let path = def.options.get("path").map(String::as_str).unwrap_or_default();
        if let Some(rest) = path.strip_prefix("s3://") {
            return Ok(Self::Bucket(Bucket::new(def, rest, stop)?));
        }
        let local = path.strip_prefix("file://").unwrap_or(path);
        if !local.starts_with('/') {
            return Err(RuntimeError::User {
                code: "22023",
                message: format!("option \"path\" must be an absolute path or a URL, not \"{path}\""),
                hint: Some("Write path = '/directory', 'file:///directory' or 's3://bucket/prefix'.".to_owned()),
            });
        }
        Ok(Self::Directory(PathBuf::from(local)))
    }

    /// Names of the files that are visible there. What `identity` left unfinished is removed.
    fn list(&self, identity: &str) -> TargetResult<Vec<String>> {
        match self {
            Self::Directory(dir) => list_directory(dir, identity),
            Self::Bucket(bucket) => bucket.list(),
        }
    }

    /// Makes a file visible whole.
    fn put(&self, name: &str, bytes: Vec<u8>) -> TargetResult<()> {
        match self {
            Self::Directory(dir) => put_file(dir, name, &bytes)
                .map_err(|e| TargetError::Retry(format!("writing {name} in {}: {e}", dir.display()))),
            Self::Bucket(bucket) => bucket.put(name, bytes),
        }
    }
}

fn list_directory(dir: &Path, identity: &str) -> TargetResult<Vec<String>> {
    let failed = |e: std::io::Error| TargetError::Retry(format!("listing {}: {e}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Ok(name) = name.into_string() else { continue };
        if name.strip_prefix('.').is_some_and(|n| n.starts_with(identity)) {
            std::fs::remove_file(dir.join(&name)).map_err(failed)?;
            continue;
        }
        names.push(name);
    }
    Ok(names)
}

fn put_file(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = dir.join(format!(".{name}"));
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fail::fail_point!("sink::commit");
    std::fs::rename(&temporary, dir.join(name))?;
    std::fs::File::open(dir)?.sync_all()
}

impl Bucket {
    fn new(def: &SinkDef, path: &str, stop: StopWatch) -> Result<Self> {
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        let option = |key: &str| def.options.get(key).cloned();
        if let Some(region) = option("s3.region") {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = option("s3.endpoint") {
            builder = builder
                .with_allow_http(endpoint.starts_with("http://"))
                .with_endpoint(endpoint);
        }
        if let Some(key) = option("s3.access_key") {
            builder = builder.with_access_key_id(key);
        }
        if let Some(key) = option("s3.secret_key") {
            builder = builder.with_secret_access_key(key);
        }
        let store = builder
            .build()
            .map_err(|e| RuntimeError::user("22023", format!("the bucket cannot be used: {e}")))?;
        Ok(Self {
            store: Arc::new(store),
            prefix: object_store::path::Path::from(prefix),
            runtime: super::runtime()?,
            stop,
            timeout: Delivering::of(def).timeout,
        })
    }

    fn list(&self) -> TargetResult<Vec<String>> {
        let work = async {
            let objects: Vec<_> = self
                .store
                .list(Some(&self.prefix))
                .try_collect()
                .await
                .map_err(TargetError::retry)?;
            let names = objects.iter().filter_map(|o| o.location.filename());
            Ok(names.map(str::to_owned).collect())
        };
        self.runtime
            .block_on(self.stop.guard(self.timeout, "listing the bucket", work))
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> TargetResult<()> {
        let location = self.prefix.clone().join(name);
        let allowed = self.timeout + Duration::from_millis(bytes.len() as u64 / BYTES_PER_MS_MIN);
        let work = async {
            let put = self.store.put(&location, bytes.into()).await;
            put.map(|_| ()).map_err(TargetError::retry)
        };
        self.runtime
            .block_on(self.stop.guard(allowed, "writing to the bucket", work))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;
    use crate::Delta;

    fn definition(dir: &Path, encode: Encoding) -> SinkDef {
        let mut def = super::super::tests::definition("file");
        def.encode = encode;
        let path = dir.display().to_string();
        def.options.insert("path".to_owned(), path);
        def
    }

    fn changes() -> Changes {
        let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let schema = super::super::tests::definition("file").schema;
        let batch = RecordBatch::try_new(schema, vec![column(vec![1, 1, 2, 3]), column(vec![5, 6, 7, 8])]).unwrap();
        Changes::new(&Delta::new(batch, vec![-1, 1, 1, -1]), &[0], SinkMode::Upsert).unwrap()
    }

    fn target(def: &SinkDef) -> FileTarget {
        FileTarget::new(def, StopWatch::never()).unwrap()
    }

    #[test]
    fn names_carry_the_marker() {
        let dir = tempfile::tempdir().unwrap();
        let def = definition(dir.path(), Encoding::Json);
        let mut sink = target(&def);
        assert_eq!(sink.open(true).unwrap(), None);
        let part = Marker { epoch: 4, part: 65_536 };
        sink.write(None, part, &[changes()]).unwrap();
        assert_eq!(target(&def).open(false).unwrap(), Some(part));
        sink.write(Some(part), Marker::whole(12), &[changes()]).unwrap();
        assert_eq!(target(&def).open(false).unwrap(), Some(Marker::whole(12)));
        let name = "levee-0000000000000007-0000000000000004_0000000000065536-0000000000000012.json";
        let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            text,
            "{\"__op\":\"update\",\"k\":1,\"v\":6}\n{\"__op\":\"insert\",\"k\":2,\"v\":7}\n{\"__op\":\"delete\",\"k\":3,\"v\":8}\n"
        );
    }

    #[test]
    fn what_was_not_finished_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let def = definition(dir.path(), Encoding::Json);
        let unfinished = dir
            .path()
            .join(".levee-0000000000000007-0000000000000000-0000000000000009.json");
        std::fs::write(&unfinished, "{").unwrap();
        assert_eq!(target(&def).open(false).unwrap(), None);
        assert!(!unfinished.exists());
    }

    #[test]
    fn another_sinks_directory_is_refused_unless_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut def = definition(dir.path(), Encoding::Csv);
        target(&def).write(None, Marker::whole(3), &[changes()]).unwrap();
        def.incarnation = 8;
        assert!(matches!(target(&def).open(true), Err(TargetError::Lost(_))));
        assert!(check(&def).is_err());
        def.options.insert("take_over".to_owned(), "true".to_owned());
        assert_eq!(target(&def).open(true).unwrap(), None);
    }

    #[test]
    fn parquet_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let def = definition(dir.path(), Encoding::Parquet);
        target(&def)
            .write(None, Marker::whole(3), &[changes(), changes()])
            .unwrap();
        let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let reader = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path).unwrap());
        let batches: Vec<RecordBatch> = reader.unwrap().build().unwrap().map(Result::unwrap).collect();
        let ops: Vec<_> = batches
            .iter()
            .flat_map(|b| b.column(0).as_string::<i32>().iter().flatten())
            .collect();
        let values = batches
            .iter()
            .flat_map(|b| b.column(2).as_primitive::<Int64Type>().values().iter().copied());
        assert_eq!(ops, ["update", "insert", "delete", "update", "insert", "delete"]);
        assert_eq!(values.collect::<Vec<_>>(), [6, 7, 8, 6, 7, 8]);
    }
}
