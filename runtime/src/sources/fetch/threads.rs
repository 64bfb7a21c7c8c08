//! The two threads of a source that is fetched: one follows its splits' ends, one reads old ranges again.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::piece::{Chunk, Piece};
use super::records::{RawRecord, RecordBuffer};
use super::{Entry, FetchError, Fetcher, Follower, LogSource, PACED_BYTES, State, Tail, key_of};
use crate::memory::Share;
use crate::sources::{SplitInfo, SplitRange};
use crate::{Result, RuntimeError};

/// How long the follower waits for records before it looks at what else it has to do.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// Records, and bytes, that the follower gathers before it shows them.
const GATHER_RECORDS: usize = 4096;
const GATHER_BYTES: usize = 1 << 20;
/// How often new splits are looked for.
const LIST_EVERY: Duration = Duration::from_secs(3);
/// Pause after an error, doubled up to the second figure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A fetcher that nobody needs for this long gives its connections back.
const FETCHER_IDLE: Duration = Duration::from_secs(30);

/// Starts the follower's thread.
pub(super) fn follow(source: &Arc<LogSource>) -> Result<()> {
    let source = Arc::clone(source);
    let name = format!("levee-follow-{}", source.context.id);
    spawn(name, move || {
        Following {
            source: &source,
            follower: None,
            added: 0,
            listed: None,
            pause: PAUSE_MIN,
        }
        .run();
    })
}

/// Starts the fetcher's thread.
pub(super) fn fetch(source: &Arc<LogSource>) -> Result<()> {
    let source = Arc::clone(source);
    let name = format!("levee-fetch-{}", source.context.id);
    spawn(name, move || {
        Fetching {
            source: &source,
            fetcher: None,
        }
        .run();
    })
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name)
        .spawn(body)
        .map(drop)
        .map_err(|e| RuntimeError::internal(format!("cannot start a source's thread: {e}")))
}

struct Following<'a> {
    source: &'a Arc<LogSource>,
    follower: Option<Box<dyn Follower>>,
    /// Splits that the follower delivers.
    added: usize,
    listed: Option<Instant>,
    pause: Duration,
}

impl Following<'_> {
    fn run(mut self) {
        while let Some(splits) = self.next_splits() {
            match self.step(&splits) {
                Ok(()) => {
                    self.pause = PAUSE_MIN;
                    self.source.set_error(None);
                }
                Err(FetchError::Retry(reason)) => {
                    self.source.set_error(Some(reason));
                    self.listed = None;
                    let mut state = self.source.state.lock();
                    if !state.stopped {
                        self.source.follow.wait_for(&mut state, self.pause);
                    }
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
                Err(FetchError::Lost(reason)) => {
                    self.source.state.lock().lost = Some(reason);
                    (self.source.context.wake)();
                    return;
                }
            }
        }
    }

    /// Sleeps until there is something to do; answers splits that the follower does not know, with where to begin. `None`: the end.
    fn next_splits(&self) -> Option<Vec<(u32, SplitInfo, u64)>> {
        let source = self.source;
        let mut state = source.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let tails: usize = state.tails.iter().map(Tail::bytes).sum();
            let budget = if source.memory.governor().over(Share::Sources) {
                PACED_BYTES
            } else {
                source.context.buffer_bytes / 2
            };
            if state.active && tails < budget {
                break;
            }
            // The governor wakes nobody.
            source.follow.wait_for(&mut state, Duration::from_secs(1));
        }
        let known = self.follower.as_ref().map_or(0, |_| self.added);
        let splits = (0u32..).zip(state.splits.iter().zip(&state.tails)).skip(known);
        let started = splits.map_while(|(n, (info, tail))| Some((n, info.clone(), tail.next?)));
        Some(started.collect())
    }

    fn step(&mut self, splits: &[(u32, SplitInfo, u64)]) -> std::result::Result<(), FetchError> {
        let source = self.source;
        let follower = match &mut self.follower {
            Some(follower) => follower,
            None => {
                self.added = 0;
                self.follower.insert(source.connector.follow()?)
            }
        };
        if self.listed.is_none_or(|l| l.elapsed() >= LIST_EVERY) {
            let all = follower.splits()?;
            source.found(all);
            self.listed = Some(Instant::now());
        }
        for (number, info, from) in splits {
            follower.add(*number, info, *from)?;
            self.added = *number as usize + 1;
        }
        if self.added == 0 {
            return Ok(());
        }
        let lane = source.connector.lane();
        let mut gathered = Gathered::default();
        let polled = follower.poll(POLL_WAIT, &mut |split, record| gathered.push(split, record, lane));
        let ends = follower.ends();
        source.show(gathered, &ends, lane);
        polled
    }
}

/// Records of one poll, by split.
#[derive(Default)]
struct Gathered {
    buffers: Vec<(u32, Vec<RecordBuffer>)>,
    records: usize,
    bytes: usize,
}

impl Gathered {
    /// Answers whether there is room for more.
    fn push(&mut self, split: u32, record: &RawRecord<'_>, lane: u64) -> bool {
        let at = match self.buffers.iter().position(|(s, _)| *s == split) {
            Some(at) => at,
            None => {
                self.buffers.push((split, Vec::new()));
                self.buffers.len() - 1
            }
        };
        let list = &mut self.buffers[at].1;
        push(list, record, lane);
        self.records += 1;
        self.bytes += record.value.map_or(0, <[u8]>::len) + record.key.map_or(0, <[u8]>::len);
        self.records < GATHER_RECORDS && self.bytes < GATHER_BYTES
    }
}

/// Appends a record to the last buffer, or to a new one.
fn push(list: &mut Vec<RecordBuffer>, record: &RawRecord<'_>, lane: u64) {
    let fits = |b: &RecordBuffer| !b.is_full() && b.first().is_none_or(|f| f / lane == record.offset / lane);
    if !list.last().is_some_and(fits) {
        list.push(RecordBuffer::default());
    }
    if let Some(last) = list.last_mut() {
        last.push(record);
    }
}

impl LogSource {
    fn set_error(&self, error: Option<String>) {
        let mut state = self.state.lock();
        if state.error == error {
            return;
        }
        match &error {
            Some(reason) => tracing::warn!(source = %self.context.name, reason, "a source waits"),
            None => tracing::info!(source = %self.context.name, "a source goes on"),
        }
        state.error = error;
    }

    /// Notes splits that are new.
    fn found(&self, all: Vec<SplitInfo>) {
        let mut state = self.state.lock();
        let known = state.splits.len();
        let new: Vec<SplitInfo> = all.into_iter().skip(known).collect();
        let news = new.len() > state.found.len();
        state.found = new;
        drop(state);
        if news {
            (self.context.wake)();
        }
    }

    /// Makes records available for cutting.
    fn show(&self, gathered: Gathered, ends: &[(u32, u64)], lane: u64) {
        if gathered.records == 0 && ends.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (split, buffers) in gathered.buffers {
            if let Some(tail) = state.tails.get_mut(split as usize) {
                buffers.into_iter().for_each(|buffer| tail.absorb(buffer, lane));
            }
        }
        for (split, end) in ends {
            if let Some(tail) = state.tails.get_mut(*split as usize) {
                tail.end = Some(tail.end.map_or(*end, |e| e.max(*end)));
            }
        }
        self.report(&state);
        let wake = gathered.records > 0 && std::mem::take(&mut state.armed);
        drop(state);
        if wake {
            (self.context.wake)();
        }
    }
}

struct Fetching<'a> {
    source: &'a Arc<LogSource>,
    fetcher: Option<Box<dyn Fetcher>>,
}

impl Fetching<'_> {
    fn run(mut self) {
        while let Some((range, info)) = self.next_range() {
            let mut pause = PAUSE_MIN;
            loop {
                match self.fetch(&range, &info) {
                    Ok(piece) => {
                        let mut state = self.source.state.lock();
                        self.source.keep(&mut state, &range, piece);
                        break;
                    }
                    Err(FetchError::Lost(reason)) => {
                        self.lost(&range, reason);
                        break;
                    }
                    Err(FetchError::Retry(reason)) => {
                        self.fetcher = None;
                        self.source.set_error(Some(reason));
                        let mut state = self.source.state.lock();
                        if !state.stopped {
                            self.source.fetch.wait_for(&mut state, pause);
                        }
                        if state.stopped {
                            return;
                        }
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
        }
    }

    fn next_range(&self) -> Option<(SplitRange, SplitInfo)> {
        let source = self.source;
        let mut state = source.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(range) = state.wanted.pop_front() {
                match state.splits.get(range.split as usize).cloned() {
                    Some(info) => return Some((range, info)),
                    None => {
                        drop(state);
                        self.lost(&range, format!("split {} is not known", range.split));
                        state = source.state.lock();
                        continue;
                    }
                }
            }
            if source.fetch.wait_for(&mut state, FETCHER_IDLE).timed_out() && state.wanted.is_empty() {
                state.fetching = false;
                return None;
            }
        }
    }

    fn lost(&self, range: &SplitRange, reason: String) {
        let mut state = self.source.state.lock();
        if let Some(Entry::Wanted(wakers)) = state.cache.insert(key_of(range), Entry::Lost(reason)) {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Reads a range and makes sure that it is the one that was cut.
    fn fetch(&mut self, range: &SplitRange, info: &SplitInfo) -> std::result::Result<Piece, FetchError> {
        let source = self.source;
        let fetcher = match &mut self.fetcher {
            Some(fetcher) => fetcher,
            None => self.fetcher.insert(source.connector.fetcher()?),
        };
        let lane = source.connector.lane();
        let mut buffers = Vec::new();
        let expected = range.check.map(|c| c.records);
        fetcher.fetch(info, range, expected, &mut |record| push(&mut buffers, record, lane))?;
        let got = buffers
            .iter()
            .fold(crate::sources::RangeCheck::default(), |sum, b| sum.and(b.check()));
        if let Some(check) = range.check.filter(|c| *c != got) {
            let place = format!(
                "{}, offsets {} to {}",
                source.connector.describe(info),
                range.from,
                range.to - 1
            );
            if got.records == check.records {
                return Err(FetchError::Lost(format!(
                    "the records of {place} are not those that were read before: it has been created anew"
                )));
            }
            if range.exact || got.records > check.records {
                return Err(FetchError::Lost(format!(
                    "{} of {} records of {place}, are gone: retention or compaction has removed them",
                    check.records.saturating_sub(got.records),
                    check.records
                )));
            }
            (source.context.compacted)(range.split, fetcher.end(info)?);
        }
        let chunks = buffers.into_iter().filter_map(|b| Some((b.first()? / lane, b)));
        Ok(Piece {
            chunks: chunks.map(|(lane, b)| Arc::new(Chunk::new(lane, b))).collect(),
        })
    }
}

impl State {
    /// Nothing more will be fetched.
    pub(super) fn end(&mut self) -> Vec<Waker> {
        self.stopped = true;
        self.wanted.clear();
        let entries = self.cache.drain().filter_map(|(_, entry)| match entry {
            Entry::Wanted(wakers) => Some(wakers),
            _ => None,
        });
        entries.flatten().collect()
    }
}
