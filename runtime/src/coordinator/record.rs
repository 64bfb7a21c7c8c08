//! Timeline records: what the log holds.
//!
//! ```text
//!   ┌────────────┬───────────────────────────────────────────┬───────────┬───────────┐
//!   │ u32 length │ header: epoch, time, DDL, ranges, lengths │ IPC delta │ IPC delta │ …
//!   └────────────┴───────────────────────────────────────────┴───────────┴───────────┘
//! ```

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use levee_planner::catalog::CatalogOp;
use levee_planner::plan::ObjectId;
use serde::{Deserialize, Serialize};

use crate::sources::{SplitInfo, SplitRange};
use crate::{Delta, Diffs, Result, RuntimeError};

/// Log record kind of a timeline record.
pub const EPOCH_KIND: u8 = 1;
const VERSION: u32 = 2;
const DIFF_COLUMN: &str = "\u{1}diff";

/// One epoch of the timeline: the barrier itself.
#[derive(Debug, Clone, Default)]
pub struct EpochRecord {
    /// Number, consecutive.
    pub epoch: u64,
    /// `now()` of the epoch, microseconds since 1970 UTC; grows from epoch to epoch.
    pub timestamp_us: i64,
    /// DDL that takes effect with the epoch.
    pub ops: Vec<CatalogOp>,
    /// Splits of sources: the first ones of a source that `ops` create, or newly found ones.
    pub splits: Vec<(ObjectId, Vec<SplitInfo>)>,
    /// Ranges read from sources; with `ops`, a replay of dead letters.
    pub ranges: Vec<(ObjectId, Vec<SplitRange>)>,
    /// Changes of tables; one consolidated delta per transaction and table.
    pub writes: Vec<(ObjectId, Delta)>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    epoch: u64,
    timestamp_us: i64,
    ops: Vec<CatalogOp>,
    splits: Vec<(ObjectId, Vec<SplitInfo>)>,
    ranges: Vec<(ObjectId, Vec<SplitRange>)>,
    writes: Vec<(ObjectId, u64)>,
}

impl EpochRecord {
    /// Whether it is (also) the answer to the coordinator's request to cut sources.
    pub fn is_cut(&self) -> bool {
        self.ops.is_empty() && !(self.ranges.is_empty() && self.splits.is_empty())
    }

    /// Bytes for the log.
    ///
    /// # Errors
    /// A batch cannot be written as IPC.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let bodies = self
            .writes
            .iter()
            .map(|(_, d)| encode_delta(d))
            .collect::<Result<Vec<_>>>()?;
        let header = Header {
            version: VERSION,
            epoch: self.epoch,
            timestamp_us: self.timestamp_us,
            ops: self.ops.clone(),
            splits: self.splits.clone(),
            ranges: self.ranges.clone(),
            writes: self
                .writes
                .iter()
                .zip(&bodies)
                .map(|((id, _), b)| (*id, b.len() as u64))
                .collect(),
        };
        let header =
            postcard::to_stdvec(&header).map_err(|e| RuntimeError::internal(format!("timeline record: {e}")))?;
        let mut out = Vec::with_capacity(4 + header.len() + bodies.iter().map(Vec::len).sum::<usize>());
        out.extend_from_slice(&(header.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        for body in bodies {
            out.extend_from_slice(&body);
        }
        Ok(out)
    }

    /// Reads [`EpochRecord::encode`]'s bytes.
    ///
    /// # Errors
    /// The bytes do not hold a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &str| {
            RuntimeError::Storage(levee_storage::StorageError::corrupt(
                "the log",
                format!("a timeline record {what}"),
            ))
        };
        let (length, rest) = bytes.split_at_checked(4).ok_or_else(|| bad("is too short"))?;
        let length = u32::from_le_bytes(length.try_into().map_err(|_| bad("is too short"))?) as usize;
        let (header, mut rest) = rest.split_at_checked(length).ok_or_else(|| bad("is too short"))?;
        let header: Header = postcard::from_bytes(header).map_err(|e| bad(&format!("cannot be read: {e}")))?;
        if header.version != VERSION {
            return Err(bad(&format!(
                "has version {}, this build reads {VERSION}",
                header.version
            )));
        }
        let mut writes = Vec::with_capacity(header.writes.len());
        for (id, length) in header.writes {
            let length = usize::try_from(length).map_err(|_| bad("is too long"))?;
            let (body, tail) = rest.split_at_checked(length).ok_or_else(|| bad("is too short"))?;
            writes.push((id, decode_delta(body)?));
            rest = tail;
        }
        Ok(Self {
            epoch: header.epoch,
            timestamp_us: header.timestamp_us,
            ops: header.ops,
            splits: header.splits,
            ranges: header.ranges,
            writes,
        })
    }
}

/// A delta as one Arrow IPC stream, the diffs as a last column unless all are 1.
///
/// # Errors
/// The batch cannot be written as IPC.
pub fn encode_delta(delta: &Delta) -> Result<Vec<u8>> {
    let batch = match &delta.diffs {
        Diffs::Ones => delta.batch.clone(),
        Diffs::Values(_) => {
            let mut fields: Vec<_> = delta.schema().fields().iter().cloned().collect();
            fields.push(Arc::new(Field::new(DIFF_COLUMN, DataType::Int64, false)));
            let mut columns: Vec<ArrayRef> = delta.batch.columns().to_vec();
            columns.push(Arc::new(delta.diff_array()));
            RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?
        }
    };
    let mut writer = StreamWriter::try_new(Vec::with_capacity(1024), &batch.schema())?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

/// Reads [`encode_delta`]'s bytes.
///
/// # Errors
/// Not such a stream.
pub fn decode_delta(bytes: &[u8]) -> Result<Delta> {
    let mut reader = StreamReader::try_new(bytes, None)?;
    let schema = reader.schema();
    let batch = reader
        .next()
        .transpose()?
        .unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(&schema)));
    let last = schema.fields().len().saturating_sub(1);
    if schema.fields().get(last).is_none_or(|f| f.name() != DIFF_COLUMN) {
        return Ok(Delta::inserts(batch));
    }
    let diffs = batch
        .column(last)
        .as_any()
        .downcast_ref::<Int64Array>()
        .ok_or_else(|| RuntimeError::internal("diff column of another type"))?
        .values()
        .to_vec();
    let indices: Vec<usize> = (0..last).collect();
    Ok(Delta::new(batch.project(&indices)?, diffs))
}
