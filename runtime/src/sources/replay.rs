//! Replays: dead letters that decode now, read as ranges of a split that no connector has.
//!
//! ```text
//!   open(range of a real split) ─▶ connector's driver
//!   open(range [n, n + 1) of split REPLAYS) ─▶ the records that replay n took out of the dead letters ─▶ decoder of its revision ─▶ rows
//! ```
//!
//! A replay is one range in one epoch's record, so restarts and younger views read it like any other. Its bytes stay in the table of dead
//! letters, marked with the replay's number, for as long as the source exists: they are there whatever becomes of the log outside.
//!
//! Tasks share a replay by chunks of [`CHUNK_RECORDS`] in the order of the kept records, which no restart changes. Memory: a task's share of a replay's
//! bytes, which [`REPLAY_BYTES_MAX`] bounds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use levee_planner::catalog::{Include, SourceDef};

use super::decode::{Change, Decoded, Decoder, Record};
use super::fetch::{RawRecord, RecordBuffer, envelope};
use super::versions::Versions;
use super::{
    CutRequest, RangePoll, RangeReader, Share, SourceDriver, SourceStatus, SplitInfo, SplitRange, lane, projected,
};
use crate::{Delta, Result, RuntimeError};

/// The split of replays; its offsets are their numbers. Greater than any real one, so that a replay comes behind all records of its generation.
pub const REPLAYS: u32 = u32::MAX;

/// Bytes that one replay takes.
pub const REPLAY_BYTES_MAX: usize = 64 << 20;

/// Records that are decoded at once, and a task's unit of work.
const CHUNK_RECORDS: usize = 8192;

/// Where replayed records are kept.
pub trait Kept: Send + Sync {
    /// Hands over the records of a replay, in an order that does not change: split, its name, record.
    ///
    /// # Errors
    /// They cannot be read.
    fn records(&self, replay: u64, take: &mut dyn FnMut(u32, &str, &RawRecord<'_>)) -> Result<()>;
}

/// A source's driver that also reads replays.
pub struct Replaying {
    inner: Arc<dyn SourceDriver>,
    versions: Arc<Versions>,
    kept: Arc<dyn Kept>,
}

impl Replaying {
    /// Of a connector's driver.
    pub fn new(inner: Arc<dyn SourceDriver>, versions: Arc<Versions>, kept: Arc<dyn Kept>) -> Self {
        Self { inner, versions, kept }
    }
}

impl SourceDriver for Replaying {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn add_split(&self, split: u32, info: &SplitInfo) -> Result<()> {
        self.inner.add_split(split, info)
    }

    fn poll_splits(&self) -> Vec<SplitInfo> {
        self.inner.poll_splits()
    }

    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>> {
        self.inner.cut(request)
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.inner.poll_interval()
    }

    fn finished(&self, next: &[u64]) -> bool {
        self.inner.finished(next)
    }

    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>> {
        if range.split != REPLAYS {
            return self.inner.open(range, share, projection);
        }
        let (_, def) = self.versions.at(range.revision)?;
        Ok(Box::new(ReplayReader {
            decoder: Decoder::new(&def)?,
            schema: projected(&def.schema, projection)?,
            projection: projection.to_vec(),
            kept: Arc::clone(&self.kept),
            chunks: None,
            range: *range,
            share,
            def,
        }))
    }

    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        let revision = self.versions.newest();
        let ranges = self.inner.sample(records)?;
        Ok(ranges.into_iter().map(|r| SplitRange { revision, ..r }).collect())
    }

    fn present_ends(&self) -> Vec<Option<u64>> {
        self.inner.present_ends()
    }

    fn status(&self) -> SourceStatus {
        self.inner.status()
    }

    fn stop(&self) {
        self.inner.stop();
    }
}

/// Records of one chunk with their splits' names.
#[derive(Default)]
struct Chunk {
    records: RecordBuffer,
    splits: Vec<(u32, String)>,
}

struct ReplayReader {
    def: Arc<SourceDef>,
    decoder: Decoder,
    kept: Arc<dyn Kept>,
    range: SplitRange,
    share: Share,
    projection: Vec<usize>,
    schema: SchemaRef,
    /// The share's chunks that are not handed out yet; `None` before they are read.
    chunks: Option<VecDeque<Chunk>>,
}

impl ReplayReader {
    fn read(&self) -> Result<VecDeque<Chunk>> {
        let mut chunks: VecDeque<Chunk> = VecDeque::new();
        let mut records = 0_u64;
        for replay in self.range.from..self.range.to {
            self.kept.records(replay, &mut |split, name, record| {
                let (number, first) = (
                    records as usize / CHUNK_RECORDS,
                    (records as usize).is_multiple_of(CHUNK_RECORDS),
                );
                records += 1;
                if number % self.share.of.max(1) != self.share.index {
                    return;
                }
                if first {
                    chunks.push_back(Chunk::default());
                }
                if let Some(chunk) = chunks.back_mut() {
                    chunk.records.push(record);
                    chunk.splits.push((split, name.to_owned()));
                }
            })?;
        }
        let wanted = self.range.check.map(|c| c.records);
        if wanted.is_some_and(|wanted| wanted != records) {
            return Err(RuntimeError::internal(format!(
                "a replay of dead letters has {records} records instead of {}",
                wanted.unwrap_or(0)
            )));
        }
        Ok(chunks)
    }

    fn decode(&mut self, chunk: &Chunk) -> Result<Delta> {
        let n = chunk.records.len();
        let records: Vec<Record<'_>> = (0..n).map(|i| chunk.records.record(i)).collect();
        let decoded = self.decoder.decode(&records)?;
        if let Some(failure) = decoded.failed.first() {
            return Err(RuntimeError::internal(format!(
                "a replayed record does not decode: {}",
                failure.reason
            )));
        }
        let origin: Vec<usize> = decoded.origin.iter().map(|o| *o as usize).collect();
        let columns = self
            .projection
            .iter()
            .map(|&c| self.column(c, chunk, &decoded, &origin));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(origin.len()));
        let schema = Arc::clone(&self.schema);
        Ok(Delta::inserts(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?))
    }

    fn column(&self, column: usize, chunk: &Chunk, decoded: &Decoded, origin: &[usize]) -> Result<ArrayRef> {
        let width = self.def.schema.fields().len();
        let offsets = || envelope(&Include::Offset, &chunk.records, origin, REPLAYS);
        if column >= width {
            return Ok(match (column - width, &decoded.changes) {
                (0, Some(changes)) => {
                    let deletes: BooleanArray = changes.iter().map(|c| Some(*c == Change::Delete)).collect();
                    Arc::new(deletes)
                }
                (0, None) => Arc::new(BooleanArray::from(vec![false; origin.len()])),
                (1, _) => Arc::new(Int64Array::from(vec![lane(&self.range); origin.len()])),
                _ => offsets()?,
            });
        }
        let Some(include) = self.def.includes.get(&column) else {
            let payload = column - self.def.includes.range(..column).count();
            return Ok(Arc::clone(decoded.batch.column(payload)));
        };
        let wanted = self.def.schema.field(column).data_type();
        let found: ArrayRef = match (include, wanted) {
            (Include::Partition, DataType::Int32) => {
                let numbers: Int32Array = origin.iter().map(|i| chunk.splits[*i].0 as i32).collect();
                Arc::new(numbers)
            }
            (Include::Partition, _) => {
                let names = origin.iter().map(|i| chunk.splits[*i].1.as_str());
                Arc::new(StringArray::from_iter_values(names))
            }
            _ => envelope(include, &chunk.records, origin, REPLAYS)?,
        };
        if found.data_type() == wanted {
            return Ok(found);
        }
        Ok(cast(&found, wanted)?)
    }
}

impl RangeReader for ReplayReader {
    fn poll(&mut self, _waker: &Waker) -> Result<RangePoll> {
        let mut chunks = match self.chunks.take() {
            Some(chunks) => chunks,
            None => self.read()?,
        };
        let next = chunks.pop_front();
        self.chunks = Some(chunks);
        let Some(chunk) = next else {
            return Ok(RangePoll::End);
        };
        fail::fail_point!("source::replay");
        Ok(RangePoll::Ready(self.decode(&chunk)?))
    }
}
