//! Reading segments: frame by frame for recovery, and the scan that tells a torn tail from damage.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::frame::{FRAME_HEADER_BYTES, FRAME_MAGIC, Frame, LogRecord, SEGMENT_HEADER_BYTES};
use super::{Segment, TERM_KIND};
use crate::error::{Result, StorageError};
use crate::fs::FileSystem;

const READ_BYTES: usize = 1 << 20;

/// What is at a place in a segment.
enum At {
    Frame(Frame, Bytes),
    End,
    Bad(BadFrame),
}

/// No whole frame here.
struct BadFrame {
    reason: &'static str,
    /// Where the next could start, if the header can be trusted.
    next: Option<u64>,
}

/// Where the whole frames end.
pub(super) struct TailScan {
    pub(super) end: u64,
    pub(super) next_seq: u64,
}

/// A place in one segment file.
pub(super) struct SegmentCursor<'a> {
    fs: &'a dyn FileSystem,
    path: &'a Path,
    term: u64,
    file_bytes: u64,
    offset: u64,
    next_seq: u64,
    window: Bytes,
    window_start: u64,
}

impl<'a> SegmentCursor<'a> {
    pub(super) fn new(fs: &'a dyn FileSystem, path: &'a Path, segment: &Segment) -> Self {
        let place = Place {
            offset: SEGMENT_HEADER_BYTES,
            next_seq: segment.first_seq,
        };
        Self::resume(fs, path, segment, place, (Bytes::new(), 0))
    }

    fn resume(
        fs: &'a dyn FileSystem,
        path: &'a Path,
        segment: &Segment,
        place: Place,
        (window, window_start): (Bytes, u64),
    ) -> Self {
        let Place { offset, next_seq } = place;
        Self {
            fs,
            path,
            term: segment.term,
            file_bytes: segment.bytes,
            offset,
            next_seq,
            window,
            window_start,
        }
    }

    /// The bytes at a place, fewer at the end of the file.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<Bytes> {
        let end = offset.saturating_add(len).min(self.file_bytes);
        if offset >= end {
            return Ok(Bytes::new());
        }
        if offset < self.window_start || end > self.window_start + self.window.len() as u64 {
            let want = usize::try_from((end - offset).max(READ_BYTES as u64)).unwrap_or(usize::MAX);
            self.window = Bytes::from(self.fs.read_range(self.path, offset, want)?);
            self.window_start = offset;
        }
        let start = (offset - self.window_start) as usize;
        let end = ((end - self.window_start) as usize).min(self.window.len());
        Ok(self.window.slice(start.min(end)..end))
    }

    fn frame_at(&mut self, offset: u64) -> Result<At> {
        if offset >= self.file_bytes {
            return Ok(At::End);
        }
        let Some(frame) = Frame::decode_header(&self.bytes(offset, FRAME_HEADER_BYTES)?) else {
            return Ok(At::Bad(BadFrame {
                reason: "a frame header is cut off or does not match its checksum",
                next: None,
            }));
        };
        let start = offset + FRAME_HEADER_BYTES;
        let Some(end) = start
            .checked_add(frame.body_bytes)
            .filter(|end| *end <= self.file_bytes)
        else {
            return Ok(At::Bad(BadFrame {
                reason: "a frame is cut off",
                next: Some(self.file_bytes),
            }));
        };
        let body = self.bytes(start, frame.body_bytes)?;
        if body.len() as u64 != frame.body_bytes || crc32fast::hash(&body) != frame.body_crc {
            return Ok(At::Bad(BadFrame {
                reason: "a frame does not match its checksum",
                next: Some(end),
            }));
        }
        Ok(At::Frame(frame, body))
    }

    fn corrupt(&self, reason: &str) -> StorageError {
        StorageError::corrupt(self.path.display(), format!("at byte {}: {reason}", self.offset))
    }

    /// The next frame, checked against what must come; none at the end.
    fn next_frame(&mut self) -> Result<Result<Option<(Frame, Bytes)>, BadFrame>> {
        match self.frame_at(self.offset)? {
            At::End => Ok(Ok(None)),
            At::Bad(bad) => Ok(Err(bad)),
            At::Frame(frame, body) => {
                if frame.first_seq != self.next_seq || frame.term != self.term {
                    let (seq, term) = (frame.first_seq, frame.term);
                    let (want, want_term) = (self.next_seq, self.term);
                    let reason = format!("record {seq} of term {term} where {want} of term {want_term} must be");
                    return Err(self.corrupt(&reason));
                }
                self.offset += FRAME_HEADER_BYTES + frame.body_bytes;
                self.next_seq = frame.end_seq();
                Ok(Ok(Some((frame, body))))
            }
        }
    }

    /// Walks over all frames. An invalid stretch is the tail if no valid frame follows it, else damage.
    pub(super) fn scan_tail(mut self) -> Result<TailScan> {
        loop {
            match self.next_frame()? {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(bad) => {
                    let from = bad.next.unwrap_or(self.offset + 1);
                    if let Some(at) = self.find_frame(from)? {
                        return Err(self.corrupt(&format!("{}, yet a later one is whole (at byte {at})", bad.reason)));
                    }
                    break;
                }
            }
        }
        Ok(TailScan {
            end: self.offset,
            next_seq: self.next_seq,
        })
    }

    /// The first place from `from` on where a valid later frame of this segment begins.
    fn find_frame(&mut self, from: u64) -> Result<Option<u64>> {
        let mut at = from;
        while at + FRAME_HEADER_BYTES <= self.file_bytes {
            let window = self.fs.read_range(self.path, at, READ_BYTES)?;
            if (window.len() as u64) < FRAME_HEADER_BYTES {
                break;
            }
            let places = window.len() - FRAME_HEADER_BYTES as usize + 1;
            for place in (0..places).filter(|place| window[*place..].starts_with(&FRAME_MAGIC)) {
                let Some(frame) = Frame::decode_header(&window[place..]) else {
                    continue;
                };
                let offset = at + place as u64;
                let plausible = frame.first_seq >= self.next_seq && frame.term == self.term;
                if plausible && matches!(self.frame_at(offset)?, At::Frame(..)) {
                    return Ok(Some(offset));
                }
            }
            at += places as u64;
        }
        Ok(None)
    }
}

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    next_seq: u64,
}

/// Streams records; see [`super::Log::read_from`]. Ends after the first error.
#[derive(Debug)]
pub struct LogReader {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    /// Segments yet to read, each with the sequence number after its last record.
    pieces: VecDeque<(Segment, u64)>,
    from: u64,
    place: Option<Place>,
    window: (Bytes, u64),
    ready: VecDeque<LogRecord>,
    failed: bool,
}

impl LogReader {
    pub(super) fn new(fs: Arc<dyn FileSystem>, dir: PathBuf, pieces: VecDeque<(Segment, u64)>, from: u64) -> Self {
        let window = (Bytes::new(), 0);
        Self {
            fs,
            dir,
            pieces,
            from,
            place: None,
            window,
            ready: VecDeque::new(),
            failed: false,
        }
    }

    /// Reads the next frame of the first piece; false when there is no piece left.
    fn advance(&mut self) -> Result<bool> {
        let Some((segment, end_seq)) = self.pieces.front() else {
            return Ok(false);
        };
        let path = segment.path(&self.dir);
        let place = self.place.unwrap_or(Place {
            offset: SEGMENT_HEADER_BYTES,
            next_seq: segment.first_seq,
        });
        if place.next_seq >= *end_seq {
            if place.next_seq > *end_seq {
                let reason = format!(
                    "holds record {}, but the next segment starts at {end_seq}",
                    place.next_seq - 1
                );
                return Err(StorageError::corrupt(path.display(), reason));
            }
            self.pieces.pop_front();
            self.place = None;
            self.window = (Bytes::new(), 0);
            return Ok(true);
        }
        let mut cursor = SegmentCursor::resume(&*self.fs, &path, segment, place, std::mem::take(&mut self.window));
        match cursor.next_frame()? {
            Ok(Some((frame, body))) => {
                if frame.end_seq() > self.from {
                    let records = frame
                        .records(&body)
                        .ok_or_else(|| cursor.corrupt("a frame's records do not add up"))?;
                    let from = self.from;
                    self.ready
                        .extend(records.into_iter().filter(|r| r.seq >= from && r.kind != TERM_KIND));
                }
            }
            Ok(None) => return Err(cursor.corrupt(&format!("ends before record {}", place.next_seq))),
            Err(bad) => return Err(cursor.corrupt(bad.reason)),
        }
        self.place = Some(Place {
            offset: cursor.offset,
            next_seq: cursor.next_seq,
        });
        // A window that a large frame needed is not kept: its records own it now.
        if cursor.window.len() <= 2 * READ_BYTES {
            self.window = (cursor.window, cursor.window_start);
        }
        Ok(true)
    }
}

impl Iterator for LogReader {
    type Item = Result<LogRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            if let Some(record) = self.ready.pop_front() {
                return Some(Ok(record));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
