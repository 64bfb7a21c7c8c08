//! The sequencer: resolves commits, cuts epochs, makes them durable.
//!
//! ```text
//!   commit ─┐                 ┌─ conflict? ─▶ answer 40001 / retry
//!   commit ─┼─▶ one epoch ────┤
//!   cut    ─┘   (whatever     └─ append + fsync ─▶ answer clients ─▶ barrier to the coordinator
//!               waited)
//! ```
//!
//! One thread owns the log's end. While it syncs, requests gather, so a busy system commits in groups without a timer. It is a
//! resolver for first-committer-wins: it remembers the epoch of each key's last write for a bounded window.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp, SequenceState};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;
use levee_storage::StorageError;
use levee_storage::log::Log;
use parking_lot::RwLock;
use tokio::sync::oneshot;

use super::CommitAck;
use super::clock::Clock;
use super::control::Event;
use super::dead_letters::DEAD_LETTERS;
use super::record::{EPOCH_KIND, EpochRecord};
use super::shared::Shared;
use super::sources::source_def;
use crate::sources::{SplitInfo, SplitRange};
use crate::{Delta, Result, RuntimeError};

/// Rows after which an epoch takes no further waiting commits.
const EPOCH_ROWS_MAX: usize = 65_536;

/// What the sequencer is asked.
pub enum Request {
    /// A transaction.
    Commit(Commit),
    /// Changes of the catalog; the answer is the epoch.
    Ddl(Box<DdlRequest>, oneshot::Sender<Result<u64>>),
    /// Source ranges to put into an epoch.
    Cut(SourceCut),
    /// Nobody waits any more for this object's creation: it goes, unless something reads it already.
    Abandon(ObjectId),
    /// An epoch without changes, because time has passed.
    Tick,
    /// End the thread.
    Stop,
}

/// A change of the catalog.
#[derive(Debug, Default)]
pub struct DdlRequest {
    /// The catalog that the statement was bound against; `None`: whatever is current.
    pub expected: Option<Arc<Catalog>>,
    /// Changes.
    pub ops: Vec<CatalogOp>,
    /// First splits of the sources among them.
    pub splits: Vec<(ObjectId, Vec<SplitInfo>)>,
    /// Replays of dead letters.
    pub ranges: Vec<(ObjectId, Vec<SplitRange>)>,
    /// First rows of the relations among them, consolidated.
    pub writes: Vec<(ObjectId, Delta)>,
    /// The sequence whose state changes, as it was read: definition and state must still be current.
    pub sequence: Option<(Arc<CatalogObject>, Option<SequenceState>)>,
    /// Tables that must not have been written after the epoch at which they were read.
    pub unchanged: Vec<(ObjectId, u64)>,
}

/// What the coordinator takes from sources.
#[derive(Debug, Default)]
pub struct SourceCut {
    /// Newly found splits.
    pub splits: Vec<(ObjectId, Vec<SplitInfo>)>,
    /// Ranges.
    pub ranges: Vec<(ObjectId, Vec<SplitRange>)>,
    /// Changes of the table of dead letters.
    pub letters: Vec<Delta>,
}

impl SourceCut {
    /// Nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.splits.is_empty() && self.ranges.is_empty() && self.letters.is_empty()
    }

    /// Leaves out ranges that were cut before ALTER changed their source: they would be decoded in the old way behind the change, and
    /// stand behind a replay though they came before it. Answers whether there were some.
    fn drop_stale(&mut self, catalog: &Catalog) -> bool {
        let current = |id: ObjectId| catalog.get(id).and_then(source_def).map(|def| def.revision);
        let before = self.ranges.len();
        self.ranges
            .retain(|(id, ranges)| ranges.iter().all(|r| Some(r.revision) == current(*id)));
        self.ranges.len() < before
    }

    fn append(&mut self, other: Self) {
        self.splits.extend(other.splits);
        self.ranges.extend(other.ranges);
        self.letters.extend(other.letters);
    }
}

/// A transaction as the resolver sees it.
pub struct Commit {
    /// Epoch read.
    pub snapshot_epoch: u64,
    /// Hashes of keys written.
    pub keys: Vec<u128>,
    /// Consolidated writes.
    pub writes: Vec<(ObjectId, Delta)>,
    /// What the rows were checked against.
    pub definitions: Vec<Arc<CatalogObject>>,
    /// Answer.
    pub reply: oneshot::Sender<Result<CommitAck>>,
}

/// State of the sequencer's thread.
pub struct Sequencer {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<Log>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) epoch: u64,
    pub(super) timestamp_us: i64,
    pub(super) catalog: Arc<RwLock<Arc<Catalog>>>,
    pub(super) events: Sender<Event>,
    /// Newest epoch that wrote to a table, since the start.
    pub(super) table_writes: HashMap<ObjectId, u64>,
}

impl Sequencer {
    /// Serves until [`Request::Stop`] or until all senders are gone.
    pub fn run(mut self, requests: &Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let mut commits = Vec::new();
            let mut cut = SourceCut::default();
            let mut tick = false;
            let mut rows = 0;
            let mut next = Some(first);
            loop {
                let request = match next.take() {
                    Some(request) => request,
                    None if rows >= EPOCH_ROWS_MAX => break,
                    None => match requests.try_recv() {
                        Ok(request) => request,
                        Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                    },
                };
                match request {
                    Request::Commit(commit) => {
                        rows += commit.writes.iter().map(|(_, d)| d.num_rows()).sum::<usize>();
                        commits.push(commit);
                    }
                    Request::Cut(part) => cut.append(part),
                    Request::Tick => tick = true,
                    Request::Ddl(request, reply) => {
                        self.write_epoch(std::mem::take(&mut commits), std::mem::take(&mut cut), false);
                        self.ddl(*request, reply);
                    }
                    Request::Abandon(id) => {
                        self.write_epoch(std::mem::take(&mut commits), std::mem::take(&mut cut), false);
                        self.abandon(id);
                    }
                    Request::Stop => {
                        self.write_epoch(commits, cut, false);
                        return;
                    }
                }
            }
            self.write_epoch(commits, cut, tick);
        }
    }

    /// `tick`: also without changes.
    fn write_epoch(&mut self, commits: Vec<Commit>, mut cut: SourceCut, tick: bool) {
        let catalog = Arc::clone(&self.catalog.read());
        if cut.drop_stale(&catalog) && cut.ranges.is_empty() && cut.splits.is_empty() {
            send(&self.events, Event::CutFailed);
        }
        if commits.is_empty() && cut.is_empty() && !tick {
            return;
        }
        let epoch = self.epoch + 1;
        let mut accepted = Vec::with_capacity(commits.len());
        let mut keys: HashMap<u128, u64> = HashMap::new();
        let mut writes = Vec::new();
        for commit in commits {
            if let Some((gone, _)) = commit.writes.iter().find(|(id, _)| catalog.get(*id).is_none()) {
                answer(commit.reply, Err(RuntimeError::NoObject(*gone)));
                continue;
            }
            let stale = |o: &Arc<CatalogObject>| catalog.shared(o.id).is_none_or(|now| !Arc::ptr_eq(now, o));
            if commit.definitions.iter().any(stale) {
                answer(commit.reply, Err(RuntimeError::Conflict));
                continue;
            }
            let window = &self.shared.window;
            let twice = commit.keys.iter().any(|k| keys.contains_key(k));
            if twice || window.written_after(&commit.keys, commit.snapshot_epoch) {
                answer(commit.reply, Err(RuntimeError::Conflict));
                continue;
            }
            keys.extend(commit.keys.iter().map(|k| (*k, epoch)));
            writes.extend(commit.writes);
            accepted.push(commit.reply);
        }
        if accepted.is_empty() && cut.is_empty() && !tick {
            return;
        }
        let is_cut = !cut.splits.is_empty() || !cut.ranges.is_empty();
        writes.extend(cut.letters.iter().map(|delta| (DEAD_LETTERS, delta.clone())));
        match self.append(EpochRecord {
            splits: cut.splits,
            ranges: cut.ranges,
            writes,
            ..EpochRecord::default()
        }) {
            Ok((record, seq, bytes)) => {
                self.shared.window.enter(keys.into_keys(), record.epoch);
                self.table_writes
                    .extend(record.writes.iter().map(|(id, _)| (*id, epoch)));
                fail::fail_point!("commit::durable");
                send(
                    &self.events,
                    Event::Epoch {
                        record: Arc::new(record),
                        seq,
                        bytes,
                    },
                );
                for reply in accepted {
                    answer(reply, Ok(CommitAck { epoch }));
                }
            }
            Err(error) => {
                let full = is_full(&error);
                tracing::warn!(%error, "an epoch could not be made durable");
                let mut error = Some(error);
                for reply in accepted {
                    answer(reply, Err(again(&mut error, full)));
                }
                if is_cut {
                    send(&self.events, Event::CutFailed);
                }
                if !cut.letters.is_empty() {
                    send(&self.events, Event::LettersFailed(cut.letters));
                }
            }
        }
    }

    fn ddl(&mut self, request: DdlRequest, reply: oneshot::Sender<Result<u64>>) {
        let current = Arc::clone(&self.catalog.read());
        // A sequence's values change nothing that a statement is bound against.
        let moved = request.expected.is_some_and(|e| e.version() != current.version());
        let written = |(id, epoch): &(ObjectId, u64)| self.table_writes.get(id).is_some_and(|e| e > epoch);
        let other_sequence = request.sequence.as_ref().is_some_and(|(object, read)| {
            current.shared(object.id).is_none_or(|now| !Arc::ptr_eq(now, object))
                || current.sequence(object.id) != *read
        });
        if moved || other_sequence || request.unchanged.iter().any(written) {
            answer(reply, Err(RuntimeError::Conflict));
            return;
        }
        let creating = request.ops.iter().find_map(|op| match op {
            CatalogOp::SetJob(id, JobState::Creating) => Some(*id),
            _ => None,
        });
        let result = self
            .append(EpochRecord {
                ops: request.ops,
                splits: request.splits,
                ranges: request.ranges,
                writes: request.writes,
                ..EpochRecord::default()
            })
            .map(|(record, seq, bytes)| {
                fail::fail_point!("ddl::apply");
                let mut catalog = Catalog::clone(&current);
                for op in &record.ops {
                    catalog.apply(op);
                }
                *self.catalog.write() = Arc::new(catalog);
                let epoch = record.epoch;
                send(
                    &self.events,
                    Event::Epoch {
                        record: Arc::new(record),
                        seq,
                        bytes,
                    },
                );
                epoch
            });
        let made = result.is_ok();
        if reply.send(result).is_err() {
            tracing::debug!("a client went away before its answer");
            if let Some(id) = creating.filter(|_| made) {
                self.abandon(id);
            }
        }
    }

    fn abandon(&mut self, id: ObjectId) {
        let catalog = Arc::clone(&self.catalog.read());
        if catalog.get(id).is_none() {
            return;
        }
        let op = if catalog.dependents(id).is_empty() {
            CatalogOp::Drop(id)
        } else {
            CatalogOp::SetJob(id, JobState::Running)
        };
        let request = DdlRequest {
            ops: vec![op],
            ..DdlRequest::default()
        };
        let (reply, _nobody) = oneshot::channel();
        self.ddl(request, reply);
    }

    fn append(&mut self, mut record: EpochRecord) -> Result<(EpochRecord, u64, u64)> {
        record.epoch = self.epoch + 1;
        record.timestamp_us = self.clock.now_us().max(self.timestamp_us + 1);
        let bytes = record.encode()?;
        let seq = self.log.append_sync(&[(EPOCH_KIND, &bytes)]).map_err(|e| match e {
            e @ StorageError::Full { .. } => RuntimeError::StorageFull(e),
            e => RuntimeError::Storage(e),
        })?;
        self.epoch = record.epoch;
        self.timestamp_us = record.timestamp_us;
        // Before any client hears of it: a block that begins afterwards must see it.
        self.shared.note_durable(record.epoch);
        Ok((record, seq, bytes.len() as u64))
    }
}

fn is_full(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::StorageFull(_))
}

/// The first client gets the error itself, the others one of the same kind.
fn again(error: &mut Option<RuntimeError>, full: bool) -> RuntimeError {
    error.take().unwrap_or_else(|| {
        if full {
            RuntimeError::User {
                code: "53100",
                message: "could not write to the log: no space left on device".to_owned(),
                hint: Some("Free disk space; reads go on meanwhile.".to_owned()),
            }
        } else {
            RuntimeError::user("58030", "could not write to the log")
        }
    })
}

fn answer<T>(reply: oneshot::Sender<Result<T>>, result: Result<T>) {
    if reply.send(result).is_err() {
        tracing::debug!("a client went away before its answer");
    }
}

fn send(events: &Sender<Event>, event: Event) {
    if events.send(event).is_err() {
        tracing::debug!("the coordinator has stopped");
    }
}
