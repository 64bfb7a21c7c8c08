//! What crosses an exchange, and its bytes.
//!
//! In process a message is an `Arc`ed batch; spilled, or sent to another worker, it is these bytes:
//!
//! ```text
//!   version u8 │ kind u8 │ incarnation u32 │ seq u64 │ part u32 │ rows u64 │ hash u64 │ body length u32 │ xxh3 of body u64 │ body
//! ```
//!
//! All integers are little-endian. The body of a batch is one Arrow IPC stream; its diffs, unless all are 1, are an extra last
//! column.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Delta, Diffs, Result, RuntimeError};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 46;
const DIFF_COLUMN: &str = "__levee_diff";

const KIND_INSERTS: u8 = 0;
const KIND_DIFFS: u8 = 1;
const KIND_CLOSE: u8 = 2;
const KIND_CLOSE_HASHED: u8 = 3;

/// One message of a channel. Messages of a step are numbered from 0; the last one closes it.
#[derive(Debug, Clone)]
pub struct Message {
    /// Life of the sender.
    pub incarnation: u32,
    /// Step.
    pub seq: u64,
    /// Number in the step.
    pub part: u32,
    /// Content.
    pub payload: Payload,
}

/// Content of a [`Message`].
#[derive(Debug, Clone)]
pub enum Payload {
    /// Part of the step's Z-set.
    Batch(Delta),
    /// The step is complete on this channel.
    Close {
        /// Hash of the step's Z-set, if verification is on.
        hash: Option<u64>,
        /// Rows in its batches.
        rows: u64,
    },
}

impl Message {
    /// Appends the message's bytes to `out`.
    ///
    /// # Errors
    /// A type that Arrow IPC cannot write.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        let (kind, rows, hash) = match &self.payload {
            Payload::Batch(delta) => {
                write_batch(delta, out)?;
                let kind = match delta.diffs {
                    Diffs::Ones => KIND_INSERTS,
                    Diffs::Values(_) => KIND_DIFFS,
                };
                (kind, delta.num_rows() as u64, 0)
            }
            Payload::Close { hash: None, rows } => (KIND_CLOSE, *rows, 0),
            Payload::Close { hash: Some(hash), rows } => (KIND_CLOSE_HASHED, *rows, *hash),
        };
        let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
        let length = u32::try_from(body.len())
            .map_err(|_| RuntimeError::internal("a message of more than 4 GiB cannot be encoded"))?;
        header[0] = VERSION;
        header[1] = kind;
        header[2..6].copy_from_slice(&self.incarnation.to_le_bytes());
        header[6..14].copy_from_slice(&self.seq.to_le_bytes());
        header[14..18].copy_from_slice(&self.part.to_le_bytes());
        header[18..26].copy_from_slice(&rows.to_le_bytes());
        header[26..34].copy_from_slice(&hash.to_le_bytes());
        header[34..38].copy_from_slice(&length.to_le_bytes());
        header[38..46].copy_from_slice(&xxh3_64(body).to_le_bytes());
        Ok(())
    }

    /// Reads one message that fills `bytes`.
    ///
    /// # Errors
    /// Damaged bytes, or an unknown version.
    pub fn decode(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() < HEADER_BYTES {
            return Err(damaged("it is shorter than its header"));
        }
        if bytes[0] != VERSION {
            return Err(damaged(&format!(
                "it has version {}, this build reads {VERSION}",
                bytes[0]
            )));
        }
        let kind = bytes[1];
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let (incarnation, seq, part) = (u32_at(2), u64_at(6), u32_at(14));
        let (rows, hash) = (u64_at(18), u64_at(26));
        if u32_at(34) as usize != bytes.len() - HEADER_BYTES {
            return Err(damaged("its length does not fit"));
        }
        if xxh3_64(&bytes[HEADER_BYTES..]) != u64_at(38) {
            return Err(damaged("its checksum does not fit"));
        }
        let payload = match kind {
            KIND_INSERTS | KIND_DIFFS => {
                let body = Buffer::from_vec(bytes).slice(HEADER_BYTES);
                let delta = read_batch(body, kind == KIND_DIFFS)?;
                if delta.num_rows() as u64 != rows {
                    return Err(damaged("its number of rows does not fit"));
                }
                Payload::Batch(delta)
            }
            KIND_CLOSE => Payload::Close { hash: None, rows },
            KIND_CLOSE_HASHED => Payload::Close { hash: Some(hash), rows },
            other => return Err(damaged(&format!("it has kind {other}"))),
        };
        Ok(Self {
            incarnation,
            seq,
            part,
            payload,
        })
    }
}

fn damaged(why: &str) -> RuntimeError {
    RuntimeError::internal(format!("an exchange message cannot be read: {why}"))
}

fn write_batch(delta: &Delta, out: &mut Vec<u8>) -> Result<()> {
    let widened;
    let batch = match &delta.diffs {
        Diffs::Ones => &delta.batch,
        Diffs::Values(_) => {
            widened = with_diff_column(delta)?;
            &widened
        }
    };
    let mut writer = StreamWriter::try_new(out, batch.schema_ref())?;
    writer.write(batch)?;
    writer.finish()?;
    Ok(())
}

fn with_diff_column(delta: &Delta) -> Result<RecordBatch> {
    let schema = delta.batch.schema_ref();
    let mut fields: Vec<_> = schema.fields().iter().map(Arc::clone).collect();
    fields.push(Arc::new(Field::new(DIFF_COLUMN, DataType::Int64, false)));
    let mut columns = delta.batch.columns().to_vec();
    columns.push(Arc::new(delta.diff_array()) as ArrayRef);
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    Ok(RecordBatch::try_new(schema, columns)?)
}

fn read_batch(mut body: Buffer, has_diffs: bool) -> Result<Delta> {
    let mut decoder = StreamDecoder::new();
    let mut found = None;
    while !body.is_empty() {
        match decoder.decode(&mut body)? {
            Some(batch) if found.is_none() => found = Some(batch),
            Some(_) => return Err(damaged("it holds more than one batch")),
            None => {}
        }
    }
    let batch = found.ok_or_else(|| damaged("it holds no batch"))?;
    if !has_diffs {
        return Ok(Delta::inserts(batch));
    }
    let (Some(last), rows) = (batch.num_columns().checked_sub(1), batch.num_rows()) else {
        return Err(damaged("it has no diff column"));
    };
    let diffs = batch
        .column(last)
        .as_primitive_opt::<Int64Type>()
        .filter(|d| d.null_count() == 0)
        .ok_or_else(|| damaged("its diff column has another type"))?;
    let diffs = Diffs::Values(diffs.values().iter().copied().collect());
    let schema = batch.schema_ref();
    let schema = Arc::new(Schema::new_with_metadata(
        schema.fields()[..last].to_vec(),
        schema.metadata().clone(),
    ));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(schema, batch.columns()[..last].to_vec(), &options)?;
    Ok(Delta { batch, diffs })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Int64Array, StringArray};

    use super::*;

    fn sample() -> RecordBatch {
        let amounts = Decimal128Array::from(vec![Some(12), None, Some(-5), Some(0)])
            .with_precision_and_scale(20, 2)
            .unwrap();
        RecordBatch::try_from_iter(vec![
            (
                "a",
                Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)])) as ArrayRef,
            ),
            (
                "a",
                Arc::new(StringArray::from(vec![
                    Some("x"),
                    Some(""),
                    None,
                    Some("long text that is not inlined"),
                ])) as ArrayRef,
            ),
            ("n", Arc::new(amounts) as ArrayRef),
        ])
        .unwrap()
    }

    fn round_trip(payload: Payload) -> Message {
        let message = Message {
            incarnation: 3,
            seq: 1 << 40,
            part: 7,
            payload,
        };
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            drop(Message::decode(bad));
        }
        assert!(Message::decode(bytes[..bytes.len() - 1].to_vec()).is_err());
        let back = Message::decode(bytes).unwrap();
        assert_eq!((back.incarnation, back.seq, back.part), (3, 1 << 40, 7));
        back
    }

    fn batch_of(message: Message) -> Delta {
        match message.payload {
            Payload::Batch(delta) => delta,
            Payload::Close { .. } => panic!("a batch was sent"),
        }
    }

    #[test]
    fn batches_and_slices_survive() {
        let inserts = batch_of(round_trip(Payload::Batch(Delta::inserts(sample()))));
        assert_eq!(inserts.batch, sample());
        assert!(matches!(inserts.diffs, Diffs::Ones));
        let mixed = Delta::new(sample(), vec![1, -2, 3, -1]).slice(1, 2);
        let back = batch_of(round_trip(Payload::Batch(mixed.clone())));
        assert_eq!(back.batch, mixed.batch);
        assert_eq!(back.diff_iter().collect::<Vec<_>>(), vec![-2, 3]);
    }

    #[test]
    fn rows_without_columns_survive() {
        let none = sample().project(&[]).unwrap();
        let back = batch_of(round_trip(Payload::Batch(Delta::inserts(none.clone()))));
        assert_eq!(back.num_rows(), 4);
        let back = batch_of(round_trip(Payload::Batch(Delta::new(none, vec![1, 2, -3, 4]))));
        assert_eq!((back.num_rows(), back.batch.num_columns(), back.diff(2)), (4, 0, -3));
    }

    #[test]
    fn closes_survive() {
        for hash in [None, Some(u64::MAX - 3)] {
            let back = round_trip(Payload::Close { hash, rows: 77 });
            assert!(matches!(back.payload, Payload::Close { hash: h, rows: 77 } if h == hash));
        }
    }

    #[test]
    fn a_damaged_body_is_found() {
        let mut bytes = Vec::new();
        Message {
            incarnation: 1,
            seq: 2,
            part: 0,
            payload: Payload::Batch(Delta::inserts(sample())),
        }
        .encode(&mut bytes)
        .unwrap();
        let last = bytes.len() - 20;
        bytes[last] ^= 1;
        assert!(Message::decode(bytes).unwrap_err().to_string().contains("checksum"));
    }
}
