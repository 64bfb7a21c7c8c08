//! The log's bytes: segment header, frame header, records. All numbers little-endian.
//!
//! ```text
//! segment header  magic 8 │ version u32 │ first seq u64 │ term u64 │ crc32
//! frame header    magic u32 │ records u32 │ body bytes u64 │ first seq u64 │ term u64 │ body crc32 │ header crc32
//! record          kind u8 │ payload bytes u64 │ payload
//! ```

use std::path::Path;

use bytes::Bytes;

use crate::codec::{u32_at, u64_at};
use crate::error::{Result, StorageError};

pub(super) const SEGMENT_HEADER_BYTES: u64 = 32;
pub(super) const FRAME_HEADER_BYTES: u64 = 40;
pub(super) const FRAME_MAGIC: [u8; 4] = *b"LVFR";
const RECORD_HEADER_BYTES: usize = 9;
const SEGMENT_MAGIC: [u8; 8] = *b"LEVEELOG";
const VERSION: u32 = 1;

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Sequence number.
    pub seq: u64,
    /// Term of the writer.
    pub term: u64,
    /// What the payload is; the caller's numbering.
    pub kind: u8,
    /// Content.
    pub payload: Bytes,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentHeader {
    pub(super) first_seq: u64,
    pub(super) term: u64,
}

impl SegmentHeader {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
        bytes.extend_from_slice(&SEGMENT_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.first_seq.to_le_bytes());
        bytes.extend_from_slice(&self.term.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let corrupt = |reason: &str| StorageError::corrupt(path.display(), reason);
        if bytes.len() < SEGMENT_HEADER_BYTES as usize {
            return Err(corrupt("the segment header is cut off"));
        }
        if bytes[..8] != SEGMENT_MAGIC || crc32fast::hash(&bytes[..28]) != u32_at(bytes, 28) {
            return Err(corrupt("the segment header does not match its checksum"));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            let file = path.display().to_string();
            return Err(StorageError::Version {
                file,
                found: version,
                supported: VERSION.to_string(),
            });
        }
        Ok(Self {
            first_seq: u64_at(bytes, 12),
            term: u64_at(bytes, 20),
        })
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) count: u32,
    pub(super) body_bytes: u64,
    pub(super) first_seq: u64,
    pub(super) term: u64,
    pub(super) body_crc: u32,
}

impl Frame {
    pub(super) fn describe(records: &[(u8, &[u8])], first_seq: u64, term: u64) -> Result<Self> {
        let count = u32::try_from(records.len()).map_err(|_| StorageError::Invalid {
            what: "log append".to_string(),
            reason: format!("{} records in one unit", records.len()),
        })?;
        let mut hasher = crc32fast::Hasher::new();
        let mut body_bytes = 0;
        let mut header = Vec::with_capacity(RECORD_HEADER_BYTES);
        for (kind, payload) in records {
            header.clear();
            Self::encode_record_header(*kind, payload, &mut header);
            hasher.update(&header);
            hasher.update(payload);
            body_bytes += (header.len() + payload.len()) as u64;
        }
        Ok(Self {
            count,
            body_bytes,
            first_seq,
            term,
            body_crc: hasher.finalize(),
        })
    }

    pub(super) fn encode_record_header(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
        out.push(kind);
        out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    }

    pub(super) fn encode_header(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&FRAME_MAGIC);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.body_bytes.to_le_bytes());
        out.extend_from_slice(&self.first_seq.to_le_bytes());
        out.extend_from_slice(&self.term.to_le_bytes());
        out.extend_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// The header, if these bytes begin with a valid one.
    pub(super) fn decode_header(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..FRAME_HEADER_BYTES as usize)?;
        if header[..4] != FRAME_MAGIC || crc32fast::hash(&header[..36]) != u32_at(header, 36) {
            return None;
        }
        Some(Self {
            count: u32_at(header, 4),
            body_bytes: u64_at(header, 8),
            first_seq: u64_at(header, 16),
            term: u64_at(header, 24),
            body_crc: u32_at(header, 32),
        })
    }

    pub(super) fn end_seq(&self) -> u64 {
        self.first_seq + u64::from(self.count)
    }

    /// Splits a body that matches its checksum; none if its inside does not add up.
    pub(super) fn records(&self, body: &Bytes) -> Option<Vec<LogRecord>> {
        let mut records = Vec::new();
        let mut at = 0_usize;
        for seq in self.first_seq..self.end_seq() {
            let header = body.get(at..at.checked_add(RECORD_HEADER_BYTES)?)?;
            let start = at + RECORD_HEADER_BYTES;
            let end = start.checked_add(usize::try_from(u64_at(header, 1)).ok()?)?;
            if end > body.len() {
                return None;
            }
            records.push(LogRecord {
                seq,
                term: self.term,
                kind: header[0],
                payload: body.slice(start..end),
            });
            at = end;
        }
        (at == body.len()).then_some(records)
    }
}
