//! Pieces: ranges of one split in memory, decoded once for all who read them.
//!
//! A piece is a list of *chunks*. A chunk holds raw records until the first reader needs it; that reader decodes it, under the chunk's lock,
//! and everybody shares the result. Which task reads a chunk follows from the offsets alone (its *lane*: offset divided by a constant), so it does not
//! matter where the chunks of a piece that is fetched again happen to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{Field, Schema, SchemaRef};
use levee_planner::catalog::{Include, SourceDef};
use parking_lot::Mutex;

use super::LogSource;
use super::records::{RecordBuffer, headers};
use crate::sources::decode::{Change, Decoder, Record};
use crate::sources::versions::Versions;
use crate::sources::{DeadLetter, RangePoll, RangeReader, Share, SplitRange, hidden_fields};
use crate::{Delta, Result, RuntimeError};

/// Consecutive records of one lane.
#[derive(Debug)]
pub struct Chunk {
    lane: u64,
    bytes: AtomicUsize,
    state: Mutex<ChunkState>,
}

#[derive(Debug)]
enum ChunkState {
    Raw(RecordBuffer),
    Decoded(Arc<DecodedChunk>),
}

/// A chunk's rows.
#[derive(Debug)]
pub struct DecodedChunk {
    /// Columns of the source.
    columns: Vec<ArrayRef>,
    /// Which rows take their keys' rows away.
    deletes: ArrayRef,
    offsets: ArrayRef,
    rows: usize,
}

impl Chunk {
    /// A chunk of records as fetched.
    pub fn new(lane: u64, records: RecordBuffer) -> Self {
        Self {
            lane,
            bytes: AtomicUsize::new(records.bytes()),
            state: Mutex::new(ChunkState::Raw(records)),
        }
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The rows. Whoever comes first decodes; dead letters are handed on before anybody sees a row.
    fn rows(
        &self,
        rows: &RowMaker,
        range: &SplitRange,
        letters: &dyn Fn(Vec<DeadLetter>),
    ) -> Result<Arc<DecodedChunk>> {
        let mut state = self.state.lock();
        let records = match &*state {
            ChunkState::Decoded(rows) => return Ok(Arc::clone(rows)),
            ChunkState::Raw(records) => records,
        };
        let (decoded, failed) = rows.decode(records, range.split, range.revision)?;
        if !failed.is_empty() {
            letters(failed);
        }
        let bytes = decoded.columns.iter().map(|c| c.get_array_memory_size()).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        let decoded = Arc::new(decoded);
        *state = ChunkState::Decoded(Arc::clone(&decoded));
        Ok(decoded)
    }
}

/// A range in memory.
#[derive(Debug)]
pub struct Piece {
    /// In order of offsets.
    pub chunks: Vec<Arc<Chunk>>,
}

impl Piece {
    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|c| c.bytes()).sum()
    }
}

/// Makes rows of records.
#[derive(Debug)]
pub struct RowMaker {
    def: SourceDef,
    versions: Arc<Versions>,
    /// Decoders that nobody uses now, with the first revision of each.
    idle: Mutex<Vec<(u32, Decoder)>>,
}

impl RowMaker {
    /// For a source.
    ///
    /// # Errors
    /// There is no decoder for it.
    pub fn new(def: &SourceDef, versions: &Arc<Versions>) -> Result<Self> {
        Decoder::new(def)?;
        Ok(Self {
            idle: Mutex::default(),
            def: def.clone(),
            versions: Arc::clone(versions),
        })
    }

    fn decode(&self, records: &RecordBuffer, split: u32, revision: u32) -> Result<(DecodedChunk, Vec<DeadLetter>)> {
        let plain: Vec<Record<'_>> = (0..records.len()).map(|i| records.record(i)).collect();
        let (first, def) = self.versions.at(revision)?;
        let idle = {
            let mut idle = self.idle.lock();
            let at = idle.iter().position(|(f, _)| *f == first);
            at.map(|at| idle.swap_remove(at).1)
        };
        let mut decoder = idle.map_or_else(|| Decoder::new(&def), Ok)?;
        let decoded = decoder.decode(&plain)?;
        self.idle.lock().push((first, decoder));
        let origin: Vec<usize> = decoded.origin.iter().map(|o| *o as usize).collect();
        let mut payload = decoded.batch.columns().iter();
        let mut columns = Vec::with_capacity(self.def.schema.fields().len());
        for (i, field) in self.def.schema.fields().iter().enumerate() {
            let column = match self.def.includes.get(&i) {
                Some(include) => {
                    let column = envelope(include, records, &origin, split)?;
                    if column.data_type() == field.data_type() {
                        column
                    } else {
                        cast(&column, field.data_type())?
                    }
                }
                None => payload
                    .next()
                    .map(Arc::clone)
                    .ok_or_else(|| RuntimeError::internal("a decoder left a column out"))?,
            };
            columns.push(column);
        }
        let deletes: BooleanArray = match &decoded.changes {
            Some(changes) => changes.iter().map(|c| Some(*c == Change::Delete)).collect(),
            None => vec![false; origin.len()].into(),
        };
        let failed = decoded.failed.iter().map(|f| {
            let i = f.record as usize;
            let record = records.record(i);
            DeadLetter {
                split,
                offset: records.offset(i),
                reason: f.reason.clone(),
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                timestamp_us: records.timestamp_us(i),
                headers: records.headers(i).to_vec(),
            }
        });
        let rows = DecodedChunk {
            columns,
            deletes: Arc::new(deletes),
            offsets: envelope(&Include::Offset, records, &origin, split)?,
            rows: origin.len(),
        };
        Ok((rows, failed.collect()))
    }
}

/// A part of the records' envelopes, by row.
pub(in crate::sources) fn envelope(
    include: &Include,
    records: &RecordBuffer,
    origin: &[usize],
    split: u32,
) -> Result<ArrayRef> {
    let rows = origin.iter().copied();
    Ok(match include {
        Include::Offset => Arc::new(rows.map(|i| records.offset(i) as i64).collect::<Int64Array>()),
        Include::Partition => Arc::new(rows.map(|_| split as i32).collect::<Int32Array>()),
        Include::Timestamp => {
            let times: TimestampMicrosecondArray = rows.map(|i| records.timestamp_us(i)).collect();
            Arc::new(times.with_timezone("UTC"))
        }
        Include::Key => Arc::new(rows.map(|i| records.record(i).key).collect::<BinaryArray>()),
        Include::Header(Some(name)) => {
            // The last of several headers of one name counts.
            let value = |i: usize| {
                let all = headers(records.headers(i));
                all.iter().rev().find(|(n, _)| n == name).and_then(|(_, v)| *v)
            };
            let values: Vec<Option<&[u8]>> = rows.map(value).collect();
            Arc::new(BinaryArray::from_opt_vec(values))
        }
        Include::Header(None) => {
            let texts: Result<Vec<String>> = rows.map(|i| headers_as_json(records.headers(i))).collect();
            Arc::new(StringArray::from(texts?))
        }
    })
}

/// Headers as one JSON object; of several with one name the last counts; bytes that are no text are shown as `\x…`.
fn headers_as_json(bytes: &[u8]) -> Result<String> {
    let mut object = serde_json::Map::new();
    for (name, value) in headers(bytes) {
        let value = value.map_or(serde_json::Value::Null, |v| {
            serde_json::Value::String(match std::str::from_utf8(v) {
                Ok(text) => text.to_owned(),
                Err(_) => v
                    .iter()
                    .fold("\\x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
            })
        });
        object.insert(name.to_owned(), value);
    }
    serde_json::to_string(&object).map_err(|e| RuntimeError::internal(format!("headers as JSON: {e}")))
}

/// Reads one task's chunks of a piece.
pub struct PieceReader {
    source: Arc<LogSource>,
    range: SplitRange,
    share: Share,
    projection: Vec<usize>,
    schema: SchemaRef,
    piece: Option<Arc<Piece>>,
    next: usize,
}

impl PieceReader {
    /// A reader of `projection`'s columns.
    ///
    /// # Errors
    /// A column does not exist.
    pub fn new(source: &Arc<LogSource>, range: SplitRange, share: Share, projection: &[usize]) -> Result<Self> {
        let schema = &source.rows.def.schema;
        let hidden = hidden_fields();
        let mut fields: Vec<Field> = Vec::with_capacity(projection.len());
        for &column in projection {
            let field = match schema.fields().get(column) {
                Some(field) => field.as_ref().clone().with_nullable(true),
                None => column
                    .checked_sub(schema.fields().len())
                    .and_then(|i| hidden.get(i))
                    .ok_or_else(|| RuntimeError::internal(format!("source has no column {column}")))?
                    .clone(),
            };
            fields.push(field);
        }
        Ok(Self {
            source: Arc::clone(source),
            range,
            share,
            projection: projection.to_vec(),
            schema: Arc::new(Schema::new(fields)),
            piece: None,
            next: 0,
        })
    }

    fn project(&self, rows: &DecodedChunk) -> Result<RecordBatch> {
        let width = self.source.rows.def.schema.fields().len();
        let hidden = |i: usize| -> ArrayRef {
            match i {
                0 => Arc::clone(&rows.deletes),
                1 => {
                    let lane = i64::from(self.range.generation) << 32 | i64::from(self.range.split);
                    Arc::new(Int64Array::from(vec![lane; rows.rows]))
                }
                _ => Arc::clone(&rows.offsets),
            }
        };
        let columns = self.projection.iter().map(|&c| match rows.columns.get(c) {
            Some(column) => Arc::clone(column),
            None => hidden(c - width),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows.rows));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns.collect(),
            &options,
        )?)
    }
}

impl RangeReader for PieceReader {
    fn poll(&mut self, waker: &Waker) -> Result<RangePoll> {
        let piece = match &self.piece {
            Some(piece) => Arc::clone(piece),
            None => match self.source.piece(&self.range, waker)? {
                Some(piece) => Arc::clone(self.piece.insert(piece)),
                None => return Ok(RangePoll::Pending),
            },
        };
        let of = self.share.of.max(1) as u64;
        while let Some(chunk) = piece.chunks.get(self.next) {
            self.next += 1;
            if chunk.lane % of != self.share.index as u64 {
                continue;
            }
            fail::fail_point!("source::read");
            let source = &self.source;
            // A sample's records may never enter the timeline.
            let told = self.range.check.map(|_| source.context.dead_letters.as_ref());
            let rows = chunk.rows(&source.rows, &self.range, &|found| {
                if let Some(tell) = told {
                    tell(found);
                }
            })?;
            if rows.rows > 0 {
                return Ok(RangePoll::Ready(Delta::inserts(self.project(&rows)?)));
            }
        }
        Ok(RangePoll::End)
    }
}
