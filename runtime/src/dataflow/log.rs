//! A region's steps: those submitted, how far each task is, and what the tasks reported.
//!
//! Steps stay after they are done until a checkpoint makes them durable and no task reads them any more: a task that starts
//! again reads its inputs from here. A report of a step that the task's earlier incarnation reported already is compared with
//! that one and dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use super::tiered::CheckpointReader;
use super::{StateDelta, StateReader, Step};
use crate::operators::StreamError;
use crate::relation::Run;
use crate::{Delta, Result, RuntimeError};

/// What the root's task emitted in a step.
#[derive(Debug, Default)]
pub(crate) struct RootReport {
    /// For `RootMode::Materialize`.
    pub(crate) deltas: Vec<Delta>,
    /// What did not fit in memory.
    pub(crate) pieces: Vec<Arc<Run>>,
    pub(crate) rows: u64,
    pub(crate) checksum: u64,
}

/// What a task says of a step that it has closed.
#[derive(Debug)]
pub(crate) struct TaskReport {
    pub(crate) slot: usize,
    pub(crate) seq: u64,
    pub(crate) root: Option<RootReport>,
    pub(crate) snapshot: Option<StateDelta>,
    pub(crate) errors: Vec<StreamError>,
    pub(crate) busy_us: u64,
    pub(crate) next_timer_us: Option<i64>,
}

/// The sum of all tasks' reports of a step.
#[derive(Debug, Default)]
pub(crate) struct StepSum {
    pub(crate) root: RootReport,
    pub(crate) snapshot: Option<StateDelta>,
    pub(crate) errors: Vec<StreamError>,
    pub(crate) busy_us: u64,
    pub(crate) next_timer_us: Option<i64>,
}

/// What became of a report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// Taken; the step, or an earlier one, is still open.
    Taken,
    /// Taken, and the caller must have complete steps finished ([`StepLog::next_complete`]); the first has so many root rows.
    Complete(usize),
    /// Known already, and the same.
    Repeated,
}

struct Entry {
    step: Arc<Step>,
    /// Per task: the checksum of what it emitted (0 unless it is the root's), once it has reported.
    reported: Vec<Option<u64>>,
    missing: usize,
    sum: StepSum,
}

/// See the module's documentation.
pub(crate) struct StepLog {
    /// Sequence number of the first retained step.
    first: u64,
    entries: VecDeque<Entry>,
    /// The next step to be finished.
    done: u64,
    /// A thread is finishing steps.
    finishing: bool,
    /// Per task: the step that it works on or waits for.
    positions: Vec<u64>,
    /// Last step covered by a completed checkpoint, and the state after it.
    checkpoint: Option<u64>,
    state: Option<Arc<dyn StateReader>>,
    /// The same state, as operators read it by keys.
    cold: Option<ColdState>,
}

/// A region's state by keys as of its last completed checkpoint, and its number in them.
pub(crate) type ColdState = (Arc<CheckpointReader>, u32);

/// Where a new incarnation of a task begins.
pub(crate) struct Restart {
    /// The first step that it replays.
    pub(crate) seq: u64,
    /// The state before that step; `None`: there was none.
    pub(crate) state: Option<Arc<dyn StateReader>>,
    /// The same by keys.
    pub(crate) cold: Option<ColdState>,
}

impl StepLog {
    pub(crate) fn new(tasks: usize, state: Option<Arc<dyn StateReader>>) -> Self {
        Self {
            first: 0,
            entries: VecDeque::new(),
            done: 0,
            finishing: false,
            positions: vec![0; tasks],
            checkpoint: None,
            cold: cold_state(state.as_deref()),
            state,
        }
    }

    /// Adds the next step.
    pub(crate) fn submit(&mut self, step: Step) -> Result<()> {
        let next = self.first + self.entries.len() as u64;
        if step.seq != next {
            return Err(RuntimeError::internal(format!(
                "step {} was submitted where {next} follows",
                step.seq
            )));
        }
        let tasks = self.positions.len();
        self.entries.push_back(Entry {
            step: Arc::new(step),
            reported: vec![None; tasks],
            missing: tasks,
            sum: StepSum::default(),
        });
        Ok(())
    }

    /// A submitted step.
    pub(crate) fn step(&self, seq: u64) -> Option<Arc<Step>> {
        let index = seq.checked_sub(self.first)?;
        self.entries.get(index as usize).map(|e| Arc::clone(&e.step))
    }

    /// Steps submitted and not done.
    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len() - (self.done - self.first) as usize
    }

    /// Begins a new incarnation of a task. From now on the steps from there on are kept for it.
    pub(crate) fn restart(&mut self, slot: usize) -> Restart {
        let seq = self.checkpoint.map_or(0, |c| c + 1);
        self.positions[slot] = seq;
        Restart {
            seq,
            state: self.state.as_ref().map(Arc::clone),
            cold: self.cold.clone(),
        }
    }

    /// The last step that a completed checkpoint covers, and the state after it by keys.
    pub(crate) fn completed(&self) -> Option<(u64, Option<ColdState>)> {
        self.checkpoint.map(|seq| (seq, self.cold.clone()))
    }

    /// Takes a report.
    ///
    /// # Errors
    /// The task's earlier incarnation reported another checksum: texts of both.
    pub(crate) fn report(&mut self, report: TaskReport) -> std::result::Result<Reported, (u64, u64)> {
        let TaskReport {
            slot,
            seq,
            root,
            snapshot,
            errors,
            busy_us,
            next_timer_us,
        } = report;
        let root = root.unwrap_or_default();
        self.positions[slot] = seq + 1;
        let index = seq
            .checked_sub(self.first)
            .unwrap_or_else(|| panic!("step {seq} was truncated under a task"));
        let entry = &mut self.entries[index as usize];
        if let Some(recorded) = entry.reported[slot] {
            return if recorded == root.checksum {
                Ok(Reported::Repeated)
            } else {
                Err((recorded, root.checksum))
            };
        }
        entry.reported[slot] = Some(root.checksum);
        entry.missing -= 1;
        let sum = &mut entry.sum;
        sum.root.deltas.extend(root.deltas);
        sum.root.pieces.extend(root.pieces);
        sum.root.rows += root.rows;
        sum.root.checksum = sum.root.checksum.wrapping_add(root.checksum);
        sum.errors.extend(errors);
        sum.busy_us += busy_us;
        sum.next_timer_us = sum.next_timer_us.into_iter().chain(next_timer_us).min();
        if let Some(part) = snapshot {
            match &mut sum.snapshot {
                Some(whole) => whole.append(part),
                None => sum.snapshot = Some(part),
            }
        }
        if self.finishing || !self.front_complete() {
            return Ok(Reported::Taken);
        }
        self.finishing = true;
        let root = &self.entries[(self.done - self.first) as usize].sum.root;
        let resident: usize = root.deltas.iter().map(Delta::num_rows).sum();
        Ok(Reported::Complete(
            resident + root.pieces.iter().map(|p| p.num_rows()).sum::<usize>(),
        ))
    }

    fn front_complete(&self) -> bool {
        self.entries
            .get((self.done - self.first) as usize)
            .is_some_and(|e| e.missing == 0)
    }

    /// The next complete step, in order; it counts as done from now on. `None` ends the caller's turn as the finishing thread.
    pub(crate) fn next_complete(&mut self) -> Option<(Arc<Step>, StepSum)> {
        if !self.front_complete() {
            self.finishing = false;
            return None;
        }
        let entry = &mut self.entries[(self.done - self.first) as usize];
        self.done += 1;
        Some((Arc::clone(&entry.step), std::mem::take(&mut entry.sum)))
    }

    /// A checkpoint covers the steps up to `seq`; the same step again brings the files where its state lies now. Answers up to which step nothing is needed any more: tasks that are still
    /// replaying steps before the checkpoint keep theirs, until the next one.
    pub(crate) fn checkpoint_completed(&mut self, seq: u64, state: Arc<dyn StateReader>) -> Option<u64> {
        if self.checkpoint.is_some_and(|c| c > seq) || seq >= self.done {
            tracing::error!(step = seq, "a checkpoint was completed out of order");
            return None;
        }
        match (&self.cold, state.cold()) {
            (Some((cold, _)), Some((reader, _))) if self.checkpoint == Some(seq) => cold.replace(reader),
            _ => self.cold = cold_state(Some(state.as_ref())),
        }
        self.checkpoint = Some(seq);
        self.state = Some(state);
        let needed = self
            .positions
            .iter()
            .copied()
            .min()
            .unwrap_or(0)
            .min(seq + 1)
            .min(self.done);
        let dropped = needed.checked_sub(self.first).filter(|&n| n > 0)?;
        self.entries.drain(..dropped as usize);
        self.first = needed;
        Some(needed - 1)
    }
}

fn cold_state(state: Option<&dyn StateReader>) -> Option<ColdState> {
    let (reader, region) = state?.cold()?;
    Some((CheckpointReader::new(reader), region))
}
