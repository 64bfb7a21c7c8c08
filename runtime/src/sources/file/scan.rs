//! The thread that finds files and reads ahead in them, and what it leaves for the coordinator to cut.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use hashbrown::HashMap;

use super::lines::Records;
use super::store::{Identity, Listed, Reading, Trouble};
use super::{Form, Shared};
use crate::sources::{CutRequest, RangeCheck, SourceStatus, SplitRange};

/// Records between two positions of a text, about; rows between two of a Parquet file.
const POSITION_RECORDS: usize = 4096;
const POSITION_ROWS: u64 = 131_072;

/// A place where a split can be cut, and what lies between the one before and it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) to: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// A file in the timeline.
pub(super) struct Split {
    pub(super) file: Listed,
    /// How far it has been read ahead; `None` until somebody asks.
    scanned: Option<u64>,
    /// Places that are not cut yet.
    positions: VecDeque<Position>,
    /// The end of its last record, once it has been reached.
    pub(super) complete: Option<u64>,
    /// Its end as far as it can be told without reading it.
    end: Option<u64>,
}

impl Split {
    pub(super) fn new(file: Listed, end: Option<u64>) -> Self {
        Self {
            end,
            file,
            scanned: None,
            positions: VecDeque::new(),
            complete: None,
        }
    }
}

/// What the thread and the driver share.
#[derive(Default)]
pub(super) struct State {
    /// By number.
    pub(super) splits: Vec<Split>,
    pub(super) names: HashMap<String, u32>,
    /// Listed, complete, and not in the timeline yet.
    pub(super) found: Vec<Listed>,
    /// Files of the last listing that are not in the timeline.
    seen: HashMap<String, Identity>,
    pub(super) started: bool,
    pub(super) stop: bool,
    /// The place is one file: nothing will be found any more.
    pub(super) one_file: bool,
    /// Why nothing is found or read at the moment.
    trouble: Option<String>,
    /// Files that are not what they were when they were taken.
    changed: BTreeMap<String, String>,
    /// Why nothing can be cut any more.
    pub(super) failed: Option<(&'static str, String, Option<String>)>,
    /// Bytes between the cuts and where reading ahead stands.
    ahead_bytes: u64,
    /// The last cut was less than was asked for: the coordinator waits for more.
    hungry: bool,
}

impl State {
    /// Ranges for an epoch, in order of the files.
    pub(super) fn cut(&mut self, request: &CutRequest<'_>) -> Vec<SplitRange> {
        let mut ranges = Vec::new();
        let mut left = request.records;
        for ((number, split), next) in (0u32..).zip(&mut self.splits).zip(request.next) {
            if split.scanned.is_none() {
                split.scanned = Some(*next);
            }
            while let Some(position) = split.positions.front().filter(|p| p.to <= *next) {
                self.ahead_bytes = self.ahead_bytes.saturating_sub(position.bytes);
                split.positions.pop_front();
            }
            let mut range = SplitRange::unchecked(number, *next, *next);
            let mut check = RangeCheck {
                records: 0,
                bytes: 0,
                digest: 0,
            };
            for position in &split.positions {
                if position.records > left && !(ranges.is_empty() && check.records == 0) {
                    left = 0;
                    break;
                }
                range.to = position.to;
                check.records += position.records;
                check.bytes += position.bytes;
                left = left.saturating_sub(position.records);
            }
            if range.to > range.from {
                range.check = Some(check);
                ranges.push(range);
            }
        }
        self.hungry = left > 0;
        ranges
    }

    pub(super) fn status(&self) -> SourceStatus {
        let failed = self.failed.as_ref().map(|(_, message, _)| message.clone());
        SourceStatus {
            error: failed
                .or_else(|| self.trouble.clone())
                .or_else(|| self.changed.values().next().cloned()),
            ends: self.ends(),
        }
    }

    /// One past each split's last offset, as far as it is known.
    pub(super) fn ends(&self) -> Vec<Option<u64>> {
        self.splits.iter().map(|s| s.complete.or(s.end)).collect()
    }

    /// The first file that is not read to its end, and from where to go on.
    fn unread(&self) -> Option<(u32, Listed, u64)> {
        (0u32..)
            .zip(&self.splits)
            .find_map(|(number, split)| match split.scanned {
                Some(from) if split.complete.is_none() => Some((number, split.file.clone(), from)),
                _ => None,
            })
    }

    /// Sorts out what a listing shows. A file that another process may still be writing must look the same in two listings.
    fn take_listing(&mut self, files: Vec<Listed>, appear_whole: bool) {
        let before = std::mem::take(&mut self.seen);
        self.found.clear();
        for file in files {
            match self.names.get(&file.name).and_then(|n| self.splits.get(*n as usize)) {
                Some(known) if known.file.identity != file.identity => {
                    let message = format!(
                        "file \"{}\" has changed since it was taken; the change is not read",
                        file.name
                    );
                    self.changed.insert(file.name, message);
                }
                Some(_) => {}
                None => {
                    if appear_whole || before.get(&file.name) == Some(&file.identity) {
                        self.found.push(file.clone());
                    }
                    self.seen.insert(file.name, file.identity);
                }
            }
        }
    }
}

/// Reads ahead in one file.
pub(super) enum Ahead {
    Text(Records),
    Rows { positions: VecDeque<Position> },
}

impl Ahead {
    pub(super) fn open(shared: &Shared, split: u32, file: &Listed, from: u64) -> Reading<Self> {
        match shared.form {
            Form::Text { syntax, header } => {
                let content = shared.content(split, file)?;
                // The size of what is unpacked shows at its end only.
                let to = if shared.is_packed(&file.name) {
                    u64::MAX
                } else {
                    file.identity.size
                };
                Ok(Self::Text(Records::new(content, &file.name, syntax, header, from, to)))
            }
            Form::Parquet => {
                let parquet = shared.parquet(split, file)?;
                Ok(Self::Rows {
                    positions: parquet.positions(from, POSITION_ROWS),
                })
            }
        }
    }

    /// The next position, `None` at the end of the file.
    pub(super) fn next(&mut self) -> Reading<Option<Position>> {
        match self {
            Self::Rows { positions } => Ok(positions.pop_front()),
            Self::Text(records) => {
                let before = records.position();
                let more = records.advance(POSITION_RECORDS)?;
                let to = records.position();
                // Blank lines at the end are cut too, so that a file is read to its last byte.
                Ok((more || to > before).then(|| Position {
                    to,
                    records: records.spans().len() as u64,
                    bytes: to - before,
                }))
            }
        }
    }
}

/// Lists and reads ahead until the driver stops.
pub(super) fn run(shared: &Shared) {
    let mut reading: Option<(u32, u64, Ahead)> = None;
    let mut listed_at: Option<Instant> = None;
    loop {
        if listed_at.is_none_or(|at| at.elapsed() >= shared.refresh) {
            list(shared);
            listed_at = Some(Instant::now());
        }
        let work = {
            let mut state = shared.state.lock();
            if state.stop {
                return;
            }
            let full = state.ahead_bytes >= (shared.context.buffer_bytes / 2) as u64;
            match state
                .unread()
                .filter(|_| !full && state.failed.is_none() && state.trouble.is_none())
            {
                Some(work) => work,
                None => {
                    let timeout = listed_at.map_or(shared.refresh, |at| shared.refresh.saturating_sub(at.elapsed()));
                    shared.changed.wait_for(&mut state, timeout);
                    continue;
                }
            }
        };
        match read_ahead(shared, &mut reading, work) {
            Ok(()) => {}
            Err(trouble) => {
                reading = None;
                note(shared, trouble);
            }
        }
    }
}

/// One position further in a file.
fn read_ahead(
    shared: &Shared,
    reading: &mut Option<(u32, u64, Ahead)>,
    (split, file, from): (u32, Listed, u64),
) -> Reading<()> {
    let ahead = match reading {
        Some((open, at, ahead)) if *open == split && *at == from => ahead,
        _ => {
            let ahead = Ahead::open(shared, split, &file, from)?;
            &mut reading.insert((split, from, ahead)).2
        }
    };
    let found = ahead.next()?;
    let mut guard = shared.state.lock();
    let state = &mut *guard;
    let Some(known) = state.splits.get_mut(split as usize) else {
        return Ok(());
    };
    match found {
        Some(position) => {
            known.scanned = Some(position.to);
            known.positions.push_back(position);
            state.ahead_bytes += position.bytes;
            if let Some((_, at, _)) = reading {
                *at = position.to;
            }
        }
        None => {
            known.complete = Some(from);
            *reading = None;
        }
    }
    let hungry = std::mem::take(&mut state.hungry);
    drop(guard);
    if hungry {
        (shared.context.wake)();
    }
    Ok(())
}

fn list(shared: &Shared) {
    match shared.store.list() {
        Ok(files) => {
            let mut state = shared.state.lock();
            state.trouble = None;
            state.one_file = shared.store.is_one_file(&files);
            state.take_listing(files, shared.store.is_remote());
            let more = !state.found.is_empty();
            drop(state);
            if more {
                (shared.context.wake)();
            }
        }
        // A directory that is gone may come back; files that were taken are missed when they are read.
        Err(trouble) => {
            let message = trouble.into_error().to_string();
            let mut state = shared.state.lock();
            if state.trouble.as_ref() != Some(&message) {
                tracing::warn!(source = %shared.context.name, %message, "files cannot be listed");
                state.trouble = Some(message);
            }
        }
    }
}

fn note(shared: &Shared, trouble: Trouble) {
    let mut state = shared.state.lock();
    match trouble {
        Trouble::Transient(message) => {
            tracing::warn!(source = %shared.context.name, %message, "a file cannot be read now");
            state.trouble = Some(message);
        }
        Trouble::Permanent(error) => {
            state.failed = Some(match error {
                crate::RuntimeError::User { code, message, hint } => (code, message, hint),
                other => ("XX000", other.to_string(), None),
            });
        }
    }
    drop(state);
    (shared.context.wake)();
}
