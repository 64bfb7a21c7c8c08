//! What all connectors share whose records are fetched as bytes: fetching ahead, cutting, a cache of ranges, fetching again.
//!
//! ```text
//!   Connector ── Follower ──▶ tail: chunks per split, not cut yet ──cut()──▶ piece ─┐
//!       └─────── Fetcher ───▶ a range that fell out of the cache, checked ──▶ piece ─┴─ cache ──▶ PieceReader, of any region
//! ```
//!
//! Two threads a source, one of them only while ranges must be fetched again; both may block on the network, nobody else does. A cut
//! consists of what has been fetched already, so its check (number of records, digest) costs nothing extra. Ranges of cut epochs stay in
//! the cache, as bytes or as rows, until it is full; what is needed later is fetched again, and must match the check.
//!
//! Memory: half of the budget is for records fetched ahead, half for the cache; the follower pauses when its half is full, or when the
//! governor says that all sources together hold too much.

mod piece;
mod records;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use levee_planner::catalog::SourceDef;
use parking_lot::{Condvar, Mutex};

pub(super) use self::piece::envelope;
use self::piece::{Chunk, Piece, PieceReader, RowMaker};
pub(super) use self::records::RecordBuffer;
pub use self::records::{RawRecord, put_header};
use super::{
    CutRequest, DriverContext, RangeCheck, RangeReader, Share, SourceDriver, SourceStatus, SplitInfo, SplitRange,
};
use crate::memory::Holder;
use crate::{Result, RuntimeError};

/// Bytes that one epoch takes from a source at most, about.
const EPOCH_BYTES: u64 = 16 << 20;
/// Further records of each split in a sample.
const SAMPLE_SPARE: u64 = 50;
/// What a source may fetch ahead when sources together hold more than their share.
const PACED_BYTES: usize = 1 << 20;

/// Why a connector could not do what it was asked.
#[derive(Debug)]
pub enum FetchError {
    /// It may work later: the broker is down.
    Retry(String),
    /// It never will: records are gone, or the definition does not fit what is there.
    Lost(String),
}

/// What a connector knows of a log.
pub trait Connector: Send + Sync + 'static {
    /// Offsets per lane: tasks share ranges in units of this size.
    fn lane(&self) -> u64;

    /// What a split is called in messages: `partition 3 of topic "t"`.
    fn describe(&self, split: &SplitInfo) -> String;

    /// A reader of all splits' new records, used by one thread. Does not wait for the network.
    ///
    /// # Errors
    /// The client cannot be made.
    fn follow(&self) -> Result<Box<dyn Follower>, FetchError>;

    /// A reader of old records, used by one thread. Does not wait for the network.
    ///
    /// # Errors
    /// The client cannot be made.
    fn fetcher(&self) -> Result<Box<dyn Fetcher>, FetchError>;

    /// Offset of the oldest record of each of `splits`, and one past its newest; blocks a few seconds at most.
    ///
    /// # Errors
    /// They cannot be found out.
    fn bounds(&self, splits: &[SplitInfo]) -> Result<Vec<(u64, u64)>, FetchError>;
}

/// Follows splits to their ends.
pub trait Follower {
    /// All splits that there are, in the order in which they are to be numbered; those known already first.
    ///
    /// # Errors
    /// They cannot be listed now.
    fn splits(&mut self) -> Result<Vec<SplitInfo>, FetchError>;

    /// Delivers a split's records from offset `from` on.
    ///
    /// # Errors
    /// It cannot be read.
    fn add(&mut self, split: u32, info: &SplitInfo, from: u64) -> Result<(), FetchError>;

    /// Hands records to `take` until none is at hand or `take` has had enough (answers false); waits at most `wait` for the first.
    /// Records of a split come in order of their offsets.
    ///
    /// # Errors
    /// Records cannot be read; those handed over count.
    fn poll(&mut self, wait: Duration, take: &mut dyn FnMut(u32, &RawRecord<'_>) -> bool) -> Result<(), FetchError>;

    /// Splits' ends that have become known since the last call: one past the newest record.
    fn ends(&mut self) -> Vec<(u32, u64)>;
}

/// Reads ranges again.
pub trait Fetcher {
    /// Hands all records that there are in `range` to `take`, in order, and then answers. When it has handed over `expected` of them
    /// it may end without making sure that there are no more. May wait for the network.
    ///
    /// # Errors
    /// `Lost` if the log begins after `range.from`; [`FetchError::Retry`] also after some records: they will be handed over again.
    fn fetch(
        &mut self,
        info: &SplitInfo,
        range: &SplitRange,
        expected: Option<u64>,
        take: &mut dyn FnMut(&RawRecord<'_>),
    ) -> Result<(), FetchError>;

    /// One past the split's newest record.
    ///
    /// # Errors
    /// It cannot be found out now.
    fn end(&mut self, info: &SplitInfo) -> Result<u64, FetchError>;
}

/// Identifies a piece: split, from, to, and whether it is a part of the timeline (samples are not).
type PieceKey = (u32, u64, u64, bool);

fn key_of(range: &SplitRange) -> PieceKey {
    (range.split, range.from, range.to, range.check.is_some())
}

/// A range in the cache.
enum Entry {
    Ready { piece: Arc<Piece>, used: u64 },
    Wanted(Vec<Waker>),
    Lost(String),
}

/// One split, fetched ahead.
#[derive(Default)]
struct Tail {
    /// The follower delivers from here on; `None` until the split is first to be cut.
    next: Option<u64>,
    /// Closed chunks, with the offset after their last record, their check and memory.
    chunks: VecDeque<TailChunk>,
    /// Records that still gather.
    open: RecordBuffer,
    end: Option<u64>,
}

struct TailChunk {
    to: u64,
    check: RangeCheck,
    bytes: usize,
    chunk: Arc<Chunk>,
}

impl Tail {
    fn close(&mut self, lane: u64) {
        let (Some(first), Some(last)) = (self.open.first(), self.open.last()) else {
            return;
        };
        let records = std::mem::take(&mut self.open);
        self.chunks.push_back(TailChunk {
            to: last + 1,
            check: records.check(),
            bytes: records.bytes(),
            chunk: Arc::new(Chunk::new(first / lane, records)),
        });
    }

    /// Takes records that follow those held.
    fn absorb(&mut self, records: RecordBuffer, lane: u64) {
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return;
        };
        let fits = self.open.first().is_some_and(|f| f / lane == first / lane) && !self.open.is_full();
        if fits {
            self.open.append(&records);
        } else {
            self.close(lane);
            self.open = records;
        }
        self.next = Some(last + 1);
    }

    fn bytes(&self) -> usize {
        self.chunks.iter().map(|c| c.bytes).sum::<usize>() + self.open.bytes()
    }
}

/// What threads and callers share.
#[derive(Default)]
struct State {
    splits: Vec<SplitInfo>,
    tails: Vec<Tail>,
    /// Splits found that are not in the timeline yet.
    found: Vec<SplitInfo>,
    cache: HashMap<PieceKey, Entry>,
    cache_bytes: usize,
    wanted: VecDeque<SplitRange>,
    clock: u64,
    /// Somebody reads the source.
    active: bool,
    /// The coordinator is to be woken at the next record.
    armed: bool,
    fetching: bool,
    stopped: bool,
    error: Option<String>,
    lost: Option<String>,
}

/// A source whose records are fetched.
pub struct LogSource {
    connector: Box<dyn Connector>,
    rows: RowMaker,
    context: DriverContext,
    state: Mutex<State>,
    /// The follower has something to do.
    follow: Condvar,
    /// The fetcher has something to do.
    fetch: Condvar,
    memory: Holder,
}

impl LogSource {
    /// A source over `connector`. Starts its follower's thread, which sleeps until the source is first read.
    ///
    /// # Errors
    /// There is no decoder for it, or no thread.
    pub fn start(def: &SourceDef, connector: Box<dyn Connector>, context: DriverContext) -> Result<LogDriver> {
        context.versions.ensure(def);
        let source = Arc::new(Self {
            connector,
            rows: RowMaker::new(def, &context.versions)?,
            memory: context.governor.holder(crate::memory::Share::Sources),
            context,
            state: Mutex::default(),
            follow: Condvar::new(),
            fetch: Condvar::new(),
        });
        threads::follow(&source)?;
        Ok(LogDriver {
            schema: SchemaRef::clone(&def.schema),
            source,
        })
    }

    /// The piece of a range, or `None`: `waker` is called when it is there.
    fn piece(self: &Arc<Self>, range: &SplitRange, waker: &Waker) -> Result<Option<Arc<Piece>>> {
        let mut state = self.state.lock();
        if state.stopped {
            return Ok(None);
        }
        state.clock += 1;
        let now = state.clock;
        match state.cache.get_mut(&key_of(range)) {
            Some(Entry::Ready { piece, used }) => {
                *used = now;
                return Ok(Some(Arc::clone(piece)));
            }
            Some(Entry::Wanted(wakers)) => {
                if !wakers.iter().any(|w| w.will_wake(waker)) {
                    wakers.push(waker.clone());
                }
                return Ok(None);
            }
            Some(Entry::Lost(reason)) => {
                let error = self.lost(reason);
                state.cache.remove(&key_of(range));
                return Err(error);
            }
            None => {}
        }
        state.cache.insert(key_of(range), Entry::Wanted(vec![waker.clone()]));
        state.wanted.push_back(*range);
        if state.fetching {
            self.fetch.notify_one();
        } else {
            threads::fetch(self)?;
            state.fetching = true;
        }
        Ok(None)
    }

    /// The error that ends a reader.
    fn lost(&self, reason: &str) -> RuntimeError {
        RuntimeError::user(
            "58P01",
            format!(
                "source \"{}\": {reason}; create the source anew to begin with what is there",
                self.context.name
            ),
        )
    }

    /// Puts a piece into the cache.
    fn keep(&self, state: &mut State, range: &SplitRange, piece: Piece) {
        state.clock += 1;
        let used = state.clock;
        let entry = Entry::Ready {
            piece: Arc::new(piece),
            used,
        };
        if let Some(Entry::Wanted(wakers)) = state.cache.insert(key_of(range), entry) {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Drops the pieces that were used least recently until the cache fits its half of the budget; not those used since `spare`.
    fn evict(&self, state: &mut State, spare: u64) {
        let ready = state.cache.iter().filter_map(|(key, entry)| match entry {
            Entry::Ready { piece, used } => Some((*used, *key, piece.bytes())),
            _ => None,
        });
        let mut ready: Vec<(u64, PieceKey, usize)> = ready.collect();
        let mut bytes: usize = ready.iter().map(|r| r.2).sum();
        let budget = if self.memory.governor().over(crate::memory::Share::Sources) {
            PACED_BYTES
        } else {
            self.context.buffer_bytes / 2
        };
        if bytes > budget {
            ready.sort_unstable();
            for (used, key, size) in ready {
                if bytes <= budget || used >= spare {
                    break;
                }
                state.cache.remove(&key);
                bytes -= size;
            }
        }
        state.cache_bytes = bytes;
        self.report(state);
    }

    fn report(&self, state: &State) {
        let tails: usize = state.tails.iter().map(Tail::bytes).sum();
        self.memory.set(tails + state.cache_bytes);
    }

    /// Takes what is to be cut next, and puts it into the cache.
    fn take(&self, state: &mut State, request: &CutRequest<'_>) -> Vec<SplitRange> {
        let lane = self.connector.lane();
        let before = state.clock + 1;
        let n = state.tails.len().min(request.next.len());
        let mut taken = vec![0; n];
        let mut sums = vec![RangeCheck::default(); n];
        let (mut records, mut bytes) = (0, 0);
        for tail in &mut state.tails {
            tail.close(lane);
        }
        // A chunk of each split in turn, so that none waits for the others.
        loop {
            let mut more = false;
            for split in 0..n {
                if records >= request.records || bytes >= EPOCH_BYTES {
                    break;
                }
                let Some(chunk) = state.tails[split].chunks.get(taken[split]) else {
                    continue;
                };
                taken[split] += 1;
                sums[split] = sums[split].and(chunk.check);
                records += chunk.check.records;
                bytes += chunk.check.bytes;
                more = true;
            }
            if !more {
                break;
            }
        }
        let mut ranges = Vec::new();
        for split in (0..n).filter(|s| taken[*s] > 0) {
            let chunks = &state.tails[split].chunks;
            let range = SplitRange {
                check: Some(sums[split]),
                ..SplitRange::unchecked(split as u32, request.next[split], chunks[taken[split] - 1].to)
            };
            let piece = Piece {
                chunks: chunks.iter().take(taken[split]).map(|c| Arc::clone(&c.chunk)).collect(),
            };
            self.keep(state, &range, piece);
            ranges.push(range);
        }
        self.evict(state, before);
        ranges
    }
}

/// The coordinator's and the readers' handle; the threads end with it.
pub struct LogDriver {
    schema: SchemaRef,
    source: Arc<LogSource>,
}

impl Drop for LogDriver {
    fn drop(&mut self) {
        self.stop();
    }
}

impl SourceDriver for LogDriver {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn add_split(&self, split: u32, info: &SplitInfo) -> Result<()> {
        let mut state = self.source.state.lock();
        if split as usize != state.splits.len() {
            return Err(RuntimeError::internal(format!(
                "split {split} was added where {} follows",
                state.splits.len()
            )));
        }
        state.splits.push(info.clone());
        state.tails.push(Tail::default());
        state.found.retain(|f| f.name != info.name);
        drop(state);
        self.source.follow.notify_one();
        Ok(())
    }

    fn poll_splits(&self) -> Vec<SplitInfo> {
        self.source.state.lock().found.clone()
    }

    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>> {
        let mut state = self.source.state.lock();
        if let Some(reason) = &state.lost {
            return Err(self.source.lost(reason));
        }
        let state = &mut *state;
        for (tail, &next) in state.tails.iter_mut().zip(request.next) {
            // What was cut before is durable now.
            while tail.chunks.front().is_some_and(|c| c.to <= next) {
                tail.chunks.pop_front();
            }
            tail.next.get_or_insert(next);
        }
        if !state.active {
            state.active = true;
            state.armed = true;
            self.source.follow.notify_one();
            return Ok(Vec::new());
        }
        let ranges = self.source.take(state, request);
        state.armed = ranges.is_empty();
        self.source.report(state);
        self.source.follow.notify_one();
        Ok(ranges)
    }

    fn finished(&self, _next: &[u64]) -> bool {
        false
    }

    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>> {
        Ok(Box::new(PieceReader::new(&self.source, *range, share, projection)?))
    }

    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        let splits = self.source.state.lock().splits.clone();
        let bounds = self.source.connector.bounds(&splits).map_err(|e| match e {
            FetchError::Retry(reason) => RuntimeError::user("08001", reason),
            FetchError::Lost(reason) => RuntimeError::user("58P01", reason),
        })?;
        // More than its part of each, since some records may be broken, and some splits short.
        let share = records / splits.len().max(1) as u64 + SAMPLE_SPARE;
        let ranges = (0u32..).zip(splits.iter().zip(bounds));
        Ok(ranges
            .map(|(split, (info, (start, end)))| SplitRange {
                exact: false,
                ..SplitRange::unchecked(split, info.start.max(start).max(end.saturating_sub(share)), end)
            })
            .filter(|r| r.from < r.to)
            .collect())
    }

    fn status(&self) -> SourceStatus {
        let state = self.source.state.lock();
        SourceStatus {
            error: state.lost.clone().or_else(|| state.error.clone()),
            ends: state.tails.iter().map(|t| t.end).collect(),
        }
    }

    fn stop(&self) {
        let wakers = self.source.state.lock().end();
        wakers.into_iter().for_each(Waker::wake);
        self.source.follow.notify_all();
        self.source.fetch.notify_all();
    }
}
