//! Where a fragment's rows come from: a relation's runs, a source's ranges, constants, or an exchange.
//!
//! What a task reads in a step is a fixed share, so every replay reads the same rows:
//!
//! * `Scan`: all rows of the step's runs in order, cut into as many contiguous parts as there are tasks;
//! * `Source`: its [`Share`] of each range;
//! * `Values`: everything in task 0, in the first step of the region's life;
//! * `Receive`: the step of every sender's channel, once the sender has closed it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use levee_planner::plan::{ObjectId, StreamNode, StreamOp};

use super::channel::{Channel, SealedStep};
use super::testing::Shuffle;
use super::{Step, StepInput};
use crate::relation::Run;
use crate::sources::{RangePoll, RangeReader, Share, SourceDriver, SplitRange};
use crate::{Delta, Result, RuntimeError};

/// Rows of a chunk cut from a run.
pub(crate) const CHUNK_ROWS: usize = 8192;

/// What a leaf answers.
pub(crate) enum LeafPoll {
    /// Rows; never empty.
    Ready(Delta),
    /// A sender has not closed the step yet, or records are being fetched; the task will be woken.
    Pending,
    /// The step has no more rows here.
    End,
}

/// A task's place in its fragment, and the fragment's in the region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskPlace {
    pub(crate) fragment: u32,
    pub(crate) task: usize,
    pub(crate) n_tasks: usize,
}

/// What leaves are connected to.
pub(crate) trait Inputs {
    /// A source's driver.
    fn source(&self, id: ObjectId) -> Option<Arc<dyn SourceDriver>>;
    /// Wakes the task.
    fn waker(&self, place: TaskPlace) -> Waker;
    /// The channels of an edge that lead to the task, in order of the sender.
    fn channels(&self, edge: u32, task: usize) -> Result<Vec<Arc<Channel>>>;
}

/// A leaf of one task.
pub(crate) struct Leaf {
    kind: Kind,
    place: TaskPlace,
    step: Option<Arc<Step>>,
    /// Set while the shuffle switch is on.
    shuffle: Option<Shuffle>,
    pieces: VecDeque<Delta>,
}

enum Kind {
    Scan {
        relation: ObjectId,
        projection: Vec<usize>,
        /// Next run, rows of it already passed, and rows left of the task's share.
        run: usize,
        row: usize,
        left: usize,
        /// Rows that were read together from a spill file, and are not passed yet.
        read: Option<Delta>,
    },
    Source {
        source: ObjectId,
        projection: Vec<usize>,
        driver: Arc<dyn SourceDriver>,
        ranges: VecDeque<SplitRange>,
        reader: Option<Box<dyn RangeReader>>,
        waker: Waker,
    },
    Values {
        batch: RecordBatch,
        emitted: bool,
    },
    Receive {
        channels: Vec<Arc<Channel>>,
        /// Per channel: not taken yet, being read at a part, or read.
        cursors: Vec<Cursor>,
        reading: Option<(Arc<SealedStep>, usize)>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cursor {
    Waiting,
    Taken,
}

impl Leaf {
    /// The leaf of a plan node; `None` if the node is an operator.
    pub(crate) fn new(node: &StreamNode, place: TaskPlace, inputs: &dyn Inputs) -> Result<Option<Self>> {
        let kind = match &node.op {
            StreamOp::Scan {
                relation, projection, ..
            } => Kind::Scan {
                relation: *relation,
                projection: projection.clone(),
                run: 0,
                row: 0,
                left: 0,
                read: None,
            },
            StreamOp::Source {
                source,
                projection,
                name,
            } => Kind::Source {
                source: *source,
                projection: projection.clone(),
                driver: inputs
                    .source(*source)
                    .ok_or_else(|| RuntimeError::internal(format!("source \"{name}\" has no driver")))?,
                ranges: VecDeque::new(),
                reader: None,
                waker: inputs.waker(place),
            },
            StreamOp::Values { ipc } => Kind::Values {
                batch: read_values(node, ipc)?,
                emitted: true,
            },
            StreamOp::Receive { edge } => {
                let channels = inputs.channels(edge.0, place.task)?;
                Kind::Receive {
                    cursors: vec![Cursor::Waiting; channels.len()],
                    channels,
                    reading: None,
                }
            }
            StreamOp::Exchange { .. } => {
                return Err(RuntimeError::internal("a fragment holds an exchange that was not cut"));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self {
            kind,
            place,
            step: None,
            shuffle: None,
            pieces: VecDeque::new(),
        }))
    }

    /// Whether the leaf reads an exchange.
    pub(crate) fn is_receive(&self) -> bool {
        matches!(self.kind, Kind::Receive { .. })
    }

    /// Sets the leaf to the beginning of a step.
    pub(crate) fn begin(&mut self, step: &Arc<Step>, incarnation: u32) {
        let TaskPlace {
            fragment,
            task,
            n_tasks,
        } = self.place;
        self.shuffle = Shuffle::new(&[u64::from(fragment), task as u64, u64::from(incarnation), step.seq]);
        self.pieces.clear();
        match &mut self.kind {
            Kind::Scan {
                relation,
                run,
                row,
                left,
                read,
                ..
            } => {
                *read = None;
                let runs = ScanInput::of(step, *relation);
                let total: usize = (0..runs.len()).map(|i| runs.rows(i)).sum();
                let from = share(total as u64, task, n_tasks) as usize;
                *left = share(total as u64, task + 1, n_tasks) as usize - from;
                (*run, *row) = (0, from);
                while *run < runs.len() && *row >= runs.rows(*run) {
                    *row -= runs.rows(*run);
                    *run += 1;
                }
            }
            Kind::Source {
                source, ranges, reader, ..
            } => {
                *reader = None;
                ranges.clear();
                let input = step.inputs.get(source);
                if let Some(StepInput::Ranges(all) | StepInput::Ingest { ranges: all, .. }) = input {
                    ranges.extend(all.iter().copied());
                    // Tasks begin with different ranges, so that they do not wait for the same one.
                    ranges.rotate_left(all.len() * task / n_tasks.max(1));
                }
            }
            Kind::Values { emitted, .. } => *emitted = !(step.barrier.first && task == 0),
            Kind::Receive { cursors, reading, .. } => {
                cursors.fill(Cursor::Waiting);
                *reading = None;
            }
        }
        self.step = Some(Arc::clone(step));
    }

    /// The next rows of the step.
    pub(crate) fn poll(&mut self) -> Result<LeafPoll> {
        if self.shuffle.is_none() {
            return self.read();
        }
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(LeafPoll::Ready(piece));
            }
            let delta = match self.read()? {
                LeafPoll::Ready(delta) => delta,
                other => return Ok(other),
            };
            if let Some(shuffle) = &mut self.shuffle {
                self.pieces.extend(shuffle.apply(&delta)?);
            }
        }
    }

    fn read(&mut self) -> Result<LeafPoll> {
        let Some(step) = &self.step else {
            return Err(RuntimeError::internal("a leaf was read outside a step"));
        };
        match &mut self.kind {
            Kind::Scan {
                relation,
                projection,
                run,
                row,
                left,
                read,
            } => {
                let runs = ScanInput::of(step, *relation);
                if *run >= runs.len() || *left == 0 {
                    return Ok(LeafPoll::End);
                }
                let chunk = match read.take() {
                    Some(read) => read,
                    None => runs.piece(*run, *row)?,
                };
                let rows = chunk.num_rows().min(*left).min(CHUNK_ROWS);
                if rows < chunk.num_rows() {
                    *read = Some(chunk.slice(rows, chunk.num_rows() - rows));
                }
                let chunk = chunk.slice(0, rows);
                let batch = chunk.batch.project(projection)?;
                *left -= rows;
                *row += rows;
                while *run < runs.len() && *row >= runs.rows(*run) {
                    *row -= runs.rows(*run);
                    *run += 1;
                }
                Ok(LeafPoll::Ready(Delta {
                    batch,
                    diffs: chunk.diffs,
                }))
            }
            Kind::Source {
                projection,
                driver,
                ranges,
                reader,
                waker,
                ..
            } => loop {
                if let Some(open) = reader {
                    match open.poll(waker)? {
                        RangePoll::Ready(delta) if delta.num_rows() > 0 => return Ok(LeafPoll::Ready(delta)),
                        RangePoll::Ready(_) => continue,
                        RangePoll::Pending => return Ok(LeafPoll::Pending),
                        RangePoll::End => *reader = None,
                    }
                }
                let share = Share {
                    index: self.place.task,
                    of: self.place.n_tasks,
                };
                match ranges.pop_front() {
                    Some(range) => *reader = Some(driver.open(&range, share, projection)?),
                    None => return Ok(LeafPoll::End),
                }
            },
            Kind::Values { batch, emitted } => {
                if std::mem::replace(emitted, true) || batch.num_rows() == 0 {
                    return Ok(LeafPoll::End);
                }
                Ok(LeafPoll::Ready(Delta::inserts(batch.clone())))
            }
            Kind::Receive {
                channels,
                cursors,
                reading,
            } => receive(step.seq, channels, cursors, reading),
        }
    }
}

/// Takes whichever sender has closed the step first.
fn receive(
    seq: u64,
    channels: &[Arc<Channel>],
    cursors: &mut [Cursor],
    reading: &mut Option<(Arc<SealedStep>, usize)>,
) -> Result<LeafPoll> {
    loop {
        if let Some((sealed, next)) = reading {
            if *next < sealed.len() {
                *next += 1;
                return Ok(LeafPoll::Ready(sealed.part(*next - 1)?));
            }
            *reading = None;
        }
        let mut waiting = false;
        for (i, channel) in channels.iter().enumerate() {
            if cursors[i] == Cursor::Taken {
                continue;
            }
            match channel.take(seq) {
                Some(sealed) => {
                    cursors[i] = Cursor::Taken;
                    *reading = Some((sealed, 0));
                    break;
                }
                None => waiting = true,
            }
        }
        if reading.is_none() {
            return Ok(if waiting { LeafPoll::Pending } else { LeafPoll::End });
        }
    }
}

/// What a scan reads in a step.
enum ScanInput<'a> {
    Deltas(&'a [Delta]),
    Runs(&'a [Arc<Run>]),
}

impl<'a> ScanInput<'a> {
    fn of(step: &'a Step, relation: ObjectId) -> Self {
        match step.inputs.get(&relation) {
            Some(StepInput::Deltas(deltas) | StepInput::Ingest { writes: deltas, .. }) => Self::Deltas(deltas),
            Some(StepInput::Runs(runs)) => Self::Runs(runs),
            Some(StepInput::Ranges(_)) | None => Self::Deltas(&[]),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Deltas(deltas) => deltas.len(),
            Self::Runs(runs) => runs.len(),
        }
    }

    fn rows(&self, i: usize) -> usize {
        match self {
            Self::Deltas(deltas) => deltas[i].num_rows(),
            Self::Runs(runs) => runs[i].num_rows(),
        }
    }

    /// Some rows from `row` on; of a spilled run, those that are read together.
    fn piece(&self, i: usize, row: usize) -> Result<Delta> {
        match self {
            Self::Deltas(deltas) => Ok(deltas[i].slice(row, CHUNK_ROWS.min(deltas[i].num_rows() - row))),
            Self::Runs(runs) if runs[i].is_spilled() => runs[i].piece(row, usize::MAX),
            Self::Runs(runs) => runs[i].piece(row, CHUNK_ROWS),
        }
    }
}

/// Start of part `i` when `total` is cut into `n` contiguous parts.
fn share(total: u64, i: usize, n: usize) -> u64 {
    (u128::from(total) * i as u128 / n.max(1) as u128) as u64
}

fn read_values(node: &StreamNode, ipc: &[u8]) -> Result<RecordBatch> {
    let batches: Vec<RecordBatch> = StreamReader::try_new(ipc, None)?.collect::<Result<_, _>>()?;
    Ok(arrow::compute::concat_batches(&node.schema, &batches)?)
}
