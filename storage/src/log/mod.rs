//! The log: an append-only sequence of records in segment files, the only source of truth.
//!
//! ```text
//! 00000000000000000001.log   ┌ header: magic, version, first sequence number, term, crc
//!                            ├ frame: header (count, length, first sequence number, term, crcs), records
//!                            ├ frame …            one append = one frame, valid as a whole or not at all
//! 00000000000000000002.log   └ …
//! ```
//!
//! Records are numbered from 1 without a gap. Each open starts a new *term* in a new segment, whose first record says
//! so; a segment has records of one term only. A segment is synced before the next one is made, so an unsynced tail
//! can only be in the last: there an invalid final stretch is what a power loss left of writes that nobody was
//! promised, and is cut. An invalid frame with a valid one after it was damaged later: [`StorageError::Corrupt`].
//! For that rule to be exact after a power loss, whoever wants durability uses [`Log::append_sync`], one frame per sync.
//!
//! Cost: one write and one fsync per group commit; opening reads the headers and the last segment only.

mod frame;
mod reader;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

pub use frame::LogRecord;
pub use reader::LogReader;

use crate::error::{Result, StorageError};
use crate::fs::{FileSystem, FsFile};
use frame::{FRAME_HEADER_BYTES, Frame, SEGMENT_HEADER_BYTES, SegmentHeader};
use reader::{SegmentCursor, TailScan};

/// Kind of the record that opens a term. Kinds of callers start at 1; readers are not shown term records.
pub const TERM_KIND: u8 = 0;

/// Bytes gathered before they are handed to the file system.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// How a log is laid out.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// A segment that has this many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The new term is greater than this one: the highest term known from elsewhere (manifests).
    pub term_min: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            term_min: 0,
        }
    }
}

#[derive(Debug, Clone)]
struct Segment {
    number: u64,
    first_seq: u64,
    term: u64,
    bytes: u64,
}

impl Segment {
    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{:020}.log", self.number))
    }
}

/// The log of one data directory. Its methods block; appends are ordered by a lock inside.
#[derive(Debug)]
pub struct Log {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: LogOptions,
    term: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Oldest first; the last one is written to and its `bytes` is the end of the last whole frame.
    segments: Vec<Segment>,
    file: Box<dyn FsFile>,
    next_seq: u64,
    unsynced: bool,
    closed: Option<String>,
}

impl Log {
    /// Opens or creates the log in `dir`: cuts a torn tail, starts a new term and returns it. The caller holds the
    /// directory's lock ([`crate::lock::DirLock`]).
    pub fn open(fs: Arc<dyn FileSystem>, dir: &Path, options: LogOptions) -> Result<(Self, u64)> {
        fs.create_dir_all(dir)?;
        let mut segments = list_segments(&*fs, dir)?;
        let next_seq = match segments.last_mut() {
            Some(last) => cut_tail(&*fs, dir, last)?,
            None => 1,
        };
        let term = segments.last().map_or(0, |last| last.term).max(options.term_min) + 1;
        let number = segments.last().map_or(1, |last| last.number + 1);
        let segment = Segment {
            number,
            first_seq: next_seq,
            term,
            bytes: SEGMENT_HEADER_BYTES,
        };
        let file = create_segment(&*fs, dir, &segment)?;
        segments.push(segment);
        let state = Mutex::new(State {
            segments,
            file,
            next_seq,
            unsynced: false,
            closed: None,
        });
        let log = Self {
            fs,
            dir: dir.to_path_buf(),
            options,
            term,
            state,
        };
        let mut state = log.state.lock();
        log.append_frame(&mut state, &[(TERM_KIND, &term.to_le_bytes())])?;
        log.sync_locked(&mut state)?;
        drop(state);
        tracing::info!(term, next_seq = log.next_seq(), "log opened");
        Ok((log, term))
    }

    /// This log's term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Sequence number of the oldest record kept.
    pub fn first_seq(&self) -> u64 {
        let state = self.state.lock();
        state
            .segments
            .first()
            .map_or(state.next_seq, |segment| segment.first_seq)
    }

    /// Sequence number that the next record gets.
    pub fn next_seq(&self) -> u64 {
        self.state.lock().next_seq
    }

    /// Bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        self.state.lock().segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Writes records (kind and payload) as one unit and returns the first one's sequence number. They are durable
    /// after [`Log::sync`]. On [`StorageError::Full`] nothing of them stays and the log remains usable.
    pub fn append(&self, records: &[(u8, &[u8])]) -> Result<u64> {
        self.append_checked(&mut self.state.lock(), records)
    }

    /// Makes all appended records durable. If that fails, what is durable is unknown: the log closes.
    pub fn sync(&self) -> Result<()> {
        self.sync_locked(&mut self.state.lock())
    }

    /// [`Log::append`] and [`Log::sync`]: one group commit.
    pub fn append_sync(&self, records: &[(u8, &[u8])]) -> Result<u64> {
        let mut state = self.state.lock();
        let seq = self.append_checked(&mut state, records)?;
        self.sync_locked(&mut state)?;
        Ok(seq)
    }

    /// Records from `seq` to the last one appended before this call, in order, without term records.
    pub fn read_from(&self, seq: u64) -> Result<LogReader> {
        let state = self.state.lock();
        let first_seq = state
            .segments
            .first()
            .map_or(state.next_seq, |segment| segment.first_seq);
        if seq < first_seq {
            let reason = format!("record {seq} is needed, but the log starts at {first_seq}");
            return Err(StorageError::corrupt(self.dir.display(), reason));
        }
        let starts: Vec<u64> = state.segments.iter().skip(1).map(|segment| segment.first_seq).collect();
        let ends = starts.into_iter().chain(std::iter::once(state.next_seq));
        let pieces = state
            .segments
            .iter()
            .cloned()
            .zip(ends)
            .filter(|(_, end)| *end > seq)
            .collect();
        Ok(LogReader::new(Arc::clone(&self.fs), self.dir.clone(), pieces, seq))
    }

    /// Removes the segments that hold only records before `seq`; never the one that is written to.
    pub fn truncate_before(&self, seq: u64) -> Result<()> {
        let mut state = self.state.lock();
        while state.segments.len() > 1 && state.segments[1].first_seq <= seq {
            self.fs.remove(&state.segments[0].path(&self.dir))?;
            state.segments.remove(0);
            // One by one, so that no crash leaves a gap between the names.
            self.fs.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn append_checked(&self, state: &mut State, records: &[(u8, &[u8])]) -> Result<u64> {
        fail::fail_point!("log::append", |kind| Err(crate::injected(kind, "appending to the log")));
        if let Some(record) = records.iter().find(|record| record.0 == TERM_KIND) {
            let reason = format!("kind {} is the log's own", record.0);
            return Err(StorageError::Invalid {
                what: "log record".to_string(),
                reason,
            });
        }
        if let Some(reason) = &state.closed {
            return Err(StorageError::LogClosed(reason.clone()));
        }
        if records.is_empty() {
            return Ok(state.next_seq);
        }
        self.roll_if_large(state)?;
        self.append_frame(state, records)
    }

    fn append_frame(&self, state: &mut State, records: &[(u8, &[u8])]) -> Result<u64> {
        let first_seq = state.next_seq;
        let frame = Frame::describe(records, first_seq, self.term)?;
        if let Err(error) = write_frame(&mut *state.file, &frame, records) {
            let end = last(&state.segments, &self.dir)?.bytes;
            if let Err(cut) = state.file.set_len(end) {
                close(state, format!("{error}, then {cut}"));
            }
            return Err(error);
        }
        if let Some(segment) = state.segments.last_mut() {
            segment.bytes += FRAME_HEADER_BYTES + frame.body_bytes;
        }
        state.next_seq += records.len() as u64;
        state.unsynced = true;
        Ok(first_seq)
    }

    fn sync_locked(&self, state: &mut State) -> Result<()> {
        fail::fail_point!("log::sync", |kind| {
            let error = crate::injected(kind, "syncing the log");
            Err(close(state, error.to_string()))
        });
        if let Some(reason) = &state.closed {
            return Err(StorageError::LogClosed(reason.clone()));
        }
        if state.unsynced {
            state.file.sync().map_err(|error| close(state, describe(&error)))?;
            state.unsynced = false;
        }
        Ok(())
    }

    fn roll_if_large(&self, state: &mut State) -> Result<()> {
        let current = last(&state.segments, &self.dir)?;
        if current.bytes < self.options.segment_bytes {
            return Ok(());
        }
        let (number, first_seq) = (current.number + 1, state.next_seq);
        self.sync_locked(state)?;
        let segment = Segment {
            number,
            first_seq,
            term: self.term,
            bytes: SEGMENT_HEADER_BYTES,
        };
        match create_segment(&*self.fs, &self.dir, &segment) {
            Ok(file) => {
                state.file = file;
                state.segments.push(segment);
                Ok(())
            }
            Err(error @ StorageError::Full { .. }) => {
                // The old segment goes on, so the new name must be gone for good.
                let path = segment.path(&self.dir);
                let removed = match self.fs.len(&path) {
                    Ok(None) => Ok(()),
                    Ok(Some(_)) => self.fs.remove(&path).and_then(|()| self.fs.sync_dir(&self.dir)),
                    Err(e) => Err(e),
                };
                if let Err(e) = removed {
                    close(state, format!("{error}, then {e}"));
                }
                Err(error)
            }
            Err(error) => {
                close(state, describe(&error));
                Err(error)
            }
        }
    }
}

/// Marks the log closed and gives the error to return.
fn close(state: &mut State, reason: String) -> StorageError {
    tracing::error!(reason, "log closed");
    state.closed = Some(reason.clone());
    StorageError::LogClosed(reason)
}

fn describe(error: &StorageError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn last<'a>(segments: &'a [Segment], dir: &Path) -> Result<&'a Segment> {
    segments
        .last()
        .ok_or_else(|| StorageError::corrupt(dir.display(), "the log has no segment"))
}

fn write_frame(file: &mut dyn FsFile, frame: &Frame, records: &[(u8, &[u8])]) -> Result<()> {
    let mut buffer =
        Vec::with_capacity((FRAME_HEADER_BYTES + frame.body_bytes).min(WRITE_BUFFER_BYTES as u64) as usize);
    frame.encode_header(&mut buffer);
    for (kind, payload) in records {
        Frame::encode_record_header(*kind, payload, &mut buffer);
        if buffer.len() + payload.len() <= WRITE_BUFFER_BYTES {
            buffer.extend_from_slice(payload);
            continue;
        }
        file.append(&buffer)?;
        buffer.clear();
        if payload.len() >= WRITE_BUFFER_BYTES / 2 {
            file.append(payload)?;
        } else {
            buffer.extend_from_slice(payload);
        }
    }
    if buffer.is_empty() {
        Ok(())
    } else {
        file.append(&buffer)
    }
}

fn create_segment(fs: &dyn FileSystem, dir: &Path, segment: &Segment) -> Result<Box<dyn FsFile>> {
    let mut file = fs.create_new(&segment.path(dir))?;
    let header = SegmentHeader {
        first_seq: segment.first_seq,
        term: segment.term,
    };
    file.append(&header.encode())?;
    file.sync()?;
    fs.sync_dir(dir)?;
    Ok(file)
}

/// Reads the headers of all segments and checks that they follow each other; removes a last one whose making was cut off.
fn list_segments(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<Segment>> {
    let mut numbers = Vec::new();
    for name in fs.list(dir)? {
        let number = name.strip_suffix(".log").and_then(|stem| stem.parse::<u64>().ok());
        numbers.push(number.ok_or_else(|| StorageError::corrupt(dir.join(&name).display(), "not a log segment"))?);
    }
    numbers.sort_unstable();
    let mut segments: Vec<Segment> = Vec::with_capacity(numbers.len());
    for (index, &number) in numbers.iter().enumerate() {
        let mut segment = Segment {
            number,
            first_seq: 0,
            term: 0,
            bytes: 0,
        };
        let path = segment.path(dir);
        segment.bytes = fs.len(&path)?.unwrap_or(0);
        let header = fs.read_range(&path, 0, SEGMENT_HEADER_BYTES as usize)?;
        let is_last = index + 1 == numbers.len();
        match SegmentHeader::decode(&header, &path) {
            Ok(header) => (segment.first_seq, segment.term) = (header.first_seq, header.term),
            Err(StorageError::Corrupt { .. }) if is_last && segment.bytes <= SEGMENT_HEADER_BYTES => {
                tracing::warn!(file = %path.display(), "removing a log segment whose creation was cut off");
                fs.remove(&path)?;
                fs.sync_dir(dir)?;
                break;
            }
            Err(error) => return Err(error),
        }
        if let Some(before) = segments.last() {
            if number != before.number + 1 {
                return Err(StorageError::corrupt(
                    path.display(),
                    format!("segment {} is missing", before.number + 1),
                ));
            }
            if segment.first_seq < before.first_seq || segment.term < before.term {
                return Err(StorageError::corrupt(
                    path.display(),
                    "does not follow the segment before it",
                ));
            }
        }
        segments.push(segment);
    }
    Ok(segments)
}

/// Cuts what a power loss left behind the last whole frame; returns the next sequence number.
fn cut_tail(fs: &dyn FileSystem, dir: &Path, segment: &mut Segment) -> Result<u64> {
    let path = segment.path(dir);
    let scan: TailScan = SegmentCursor::new(fs, &path, segment).scan_tail()?;
    if scan.end < segment.bytes {
        tracing::warn!(file = %path.display(), from = scan.end, bytes = segment.bytes - scan.end, "cutting a torn log tail");
        let mut file = fs.open_append(&path)?;
        file.set_len(scan.end)?;
        file.sync()?;
        segment.bytes = scan.end;
    } else {
        // Records read here are answered from now on, so they must not vanish in a later power loss.
        fs.open_append(&path)?.sync()?;
    }
    Ok(scan.next_seq)
}

#[cfg(test)]
mod tests;
