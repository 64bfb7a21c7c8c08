//! An exchange channel: what one task sent to another, step by step.
//!
//! ```text
//!        truncated │ taken, retained for replay │ complete, unread │ being written
//!   steps   … 3    │   4      5      6          │   7      8       │   9 (invisible)
//!                  └ last completed checkpoint  └ receiver's cursor └ sender
//! ```
//!
//! A step becomes visible to the receiver when its sender has closed it, never earlier. So when the sender dies in the middle
//! of a step nothing has to be taken back: the next incarnation's first act on the channel drops the partial step. And when a
//! step is closed already, the replay of it is only compared with what was sent (`docs/decisions/0004`). The steps since the last
//! completed checkpoint stay for a receiver that starts again.
//!
//! The sender never blocks. Above the channel's budget, or above a small one while all channels of the process together hold more than
//! the memory governor gives them, batches go to a file: first those of steps that the receiver has
//! taken, oldest first, since only a recovery reads them again; then the one being added.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, RecordBatch};
use parking_lot::Mutex;

use super::executor::TaskCell;
use super::message::{Message, Payload};
use super::spill::{SpillDir, SpillWriter, SpilledBatch};
use crate::memory::{Governor, Holder, Share};
use crate::{Delta, Diffs, Result};

/// A channel's budget while channels hold too much together.
const BUDGET_BYTES_SHORT: usize = 64 << 10;

/// Names a channel in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelName {
    pub(crate) edge: u32,
    pub(crate) sender: u32,
    pub(crate) receiver: u32,
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "edge {} task {} to {}", self.edge, self.sender, self.receiver)
    }
}

/// A replayed step differs from what was sent before: a broken invariant (I2) that must stop the region.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub(crate) channel: String,
    pub(crate) seq: u64,
    pub(crate) recorded: u64,
    pub(crate) replayed: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replay of step {} on {} differs from what was sent: hash {:016x}, recorded {:016x}",
            self.seq, self.channel, self.replayed, self.recorded
        )
    }
}

/// A closed step.
#[derive(Debug)]
pub(crate) struct SealedStep {
    seq: u64,
    incarnation: u32,
    parts: Vec<Part>,
    hash: Option<u64>,
    rows: u64,
    memory_bytes: usize,
}

/// A batch of a step.
#[derive(Debug, Clone)]
enum Part {
    Memory(Delta),
    Spilled(SpilledBatch),
}

impl SealedStep {
    /// Number of batches.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The batch; read from its file if it was spilled.
    pub(crate) fn part(&self, i: usize) -> Result<Delta> {
        match &self.parts[i] {
            Part::Memory(delta) => Ok(delta.clone()),
            Part::Spilled(spilled) => spilled.read(),
        }
    }
}

/// See the module's documentation.
pub(crate) struct Channel {
    name: ChannelName,
    budget_bytes: usize,
    memory: Holder,
    receiver: OnceLock<Arc<TaskCell>>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Sequence number of the first retained step.
    first_seq: u64,
    sealed: VecDeque<Arc<SealedStep>>,
    open: SealedStep,
    /// The receiver has taken the steps before this one.
    read_seq: u64,
    memory_bytes: usize,
    spilled: usize,
    spill: SpillWriter,
    spill_failed: bool,
}

impl Channel {
    pub(crate) fn new(name: ChannelName, budget_bytes: usize, memory: &Arc<Governor>, dir: &Arc<SpillDir>) -> Self {
        Self {
            name,
            budget_bytes,
            memory: memory.holder(Share::Channels),
            receiver: OnceLock::new(),
            inner: Mutex::new(Inner {
                first_seq: 0,
                sealed: VecDeque::new(),
                open: SealedStep::empty(0, 0),
                read_seq: 0,
                memory_bytes: 0,
                spilled: 0,
                spill: SpillWriter::new(dir),
                spill_failed: false,
            }),
        }
    }

    /// Names the task to wake at a close; once, before the first step.
    pub(crate) fn set_receiver(&self, cell: &Arc<TaskCell>) {
        if self.receiver.set(Arc::clone(cell)).is_err() {
            tracing::error!(channel = %self.name, "an exchange channel was given two receivers");
        }
    }

    /// Begins a step, dropping what an earlier incarnation left of it. Answers whether the step is new here; if not, it was closed
    /// before and is only verified.
    pub(crate) fn begin(&self, incarnation: u32, seq: u64) -> bool {
        let mut inner = self.inner.lock();
        let next = inner.next_seq();
        if seq < next {
            return false;
        }
        assert_eq!(seq, next, "channel {} was given steps out of order", self.name);
        inner.drop_open(incarnation, seq);
        self.memory.set(inner.memory_bytes);
        true
    }

    /// Bytes that may stay in memory now.
    fn budget(&self) -> usize {
        if self.memory.governor().over(Share::Channels) {
            self.budget_bytes.min(BUDGET_BYTES_SHORT)
        } else {
            self.budget_bytes
        }
    }

    /// Adds a batch to the step being written.
    pub(crate) fn append(&self, delta: Delta) -> Result<()> {
        let (bytes, budget) = (slice_bytes(&delta)?, self.budget());
        let mut inner = self.inner.lock();
        inner.open.rows += delta.num_rows() as u64;
        if inner.memory_bytes + bytes > budget {
            inner.spill_taken(budget.saturating_sub(bytes), self.name);
        }
        let part = if inner.memory_bytes + bytes > budget {
            inner.spill_open(delta, self.name)
        } else {
            Part::Memory(delta)
        };
        if matches!(part, Part::Memory(_)) {
            inner.memory_bytes += bytes;
            inner.open.memory_bytes += bytes;
        } else {
            inner.spilled += 1;
        }
        inner.open.parts.push(part);
        self.memory.set(inner.memory_bytes);
        Ok(())
    }

    /// Closes a step: makes it visible and wakes the receiver, or, if it was closed before, compares it with what was sent.
    pub(crate) fn close(&self, seq: u64, hash: Option<u64>) -> std::result::Result<(), Mismatch> {
        let mut inner = self.inner.lock();
        if seq < inner.next_seq() {
            let recorded = seq
                .checked_sub(inner.first_seq)
                .and_then(|i| inner.sealed.get(i as usize))
                .and_then(|step| step.hash);
            return match (recorded, hash) {
                (Some(recorded), Some(replayed)) if recorded != replayed => Err(Mismatch {
                    channel: self.name.to_string(),
                    seq,
                    recorded,
                    replayed,
                }),
                _ => Ok(()),
            };
        }
        let next = SealedStep::empty(inner.open.incarnation, seq + 1);
        let mut step = std::mem::replace(&mut inner.open, next);
        step.hash = hash;
        inner.sealed.push_back(Arc::new(step));
        drop(inner);
        if let Some(receiver) = self.receiver.get() {
            receiver.wake();
        }
        Ok(())
    }

    /// The step, if its sender has closed it.
    pub(crate) fn take(&self, seq: u64) -> Option<Arc<SealedStep>> {
        let mut inner = self.inner.lock();
        let index = seq.checked_sub(inner.first_seq)?;
        let step = inner.sealed.get(index as usize).map(Arc::clone)?;
        inner.read_seq = inner.read_seq.max(seq + 1);
        Some(step)
    }

    /// Forgets the steps up to and including `seq`: their effects are durable, and no task reads them again.
    pub(crate) fn truncate(&self, seq: u64) {
        let mut inner = self.inner.lock();
        while inner.first_seq <= seq
            && let Some(step) = inner.sealed.pop_front()
        {
            inner.first_seq += 1;
            inner.memory_bytes -= step.memory_bytes;
            inner.spilled -= step.spilled();
        }
        if inner.spilled == 0 {
            inner.spill.release();
        }
        self.memory.set(inner.memory_bytes);
    }

    /// Batches in files, of steps retained or being written.
    #[cfg(test)]
    pub(crate) fn spilled(&self) -> usize {
        self.inner.lock().spilled
    }

    /// Bytes of batches in memory.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.inner.lock().memory_bytes
    }
}

impl SealedStep {
    fn empty(incarnation: u32, seq: u64) -> Self {
        Self {
            seq,
            incarnation,
            parts: Vec::new(),
            hash: None,
            rows: 0,
            memory_bytes: 0,
        }
    }

    fn spilled(&self) -> usize {
        self.parts.iter().filter(|p| matches!(p, Part::Spilled(_))).count()
    }

    fn message(&self, part: usize, delta: &Delta) -> Message {
        Message {
            incarnation: self.incarnation,
            seq: self.seq,
            part: part as u32,
            payload: Payload::Batch(delta.clone()),
        }
    }
}

impl Inner {
    fn next_seq(&self) -> u64 {
        self.first_seq + self.sealed.len() as u64
    }

    fn drop_open(&mut self, incarnation: u32, seq: u64) {
        self.memory_bytes -= self.open.memory_bytes;
        self.spilled -= self.open.spilled();
        self.open = SealedStep::empty(incarnation, seq);
    }

    /// Moves taken steps to files, oldest first, until at most `target` bytes are in memory or no such step is left.
    fn spill_taken(&mut self, target: usize, name: ChannelName) {
        let taken = (self.read_seq.saturating_sub(self.first_seq) as usize).min(self.sealed.len());
        for i in 0..taken {
            if self.memory_bytes <= target {
                return;
            }
            if self.sealed[i].memory_bytes > 0 && !self.spill_step(i, name) {
                return;
            }
        }
    }

    fn spill_step(&mut self, i: usize, name: ChannelName) -> bool {
        let step = Arc::clone(&self.sealed[i]);
        let mut parts = Vec::with_capacity(step.parts.len());
        for (n, part) in step.parts.iter().enumerate() {
            parts.push(match part {
                Part::Spilled(spilled) => Part::Spilled(spilled.clone()),
                Part::Memory(delta) => match self.spill.write(&step.message(n, delta)) {
                    Ok(spilled) => Part::Spilled(spilled),
                    Err(error) => {
                        self.warn_once(&error, name);
                        return false;
                    }
                },
            });
        }
        self.spill_failed = false;
        self.spilled += parts.len() - step.spilled();
        self.memory_bytes -= step.memory_bytes;
        self.sealed[i] = Arc::new(SealedStep {
            seq: step.seq,
            incarnation: step.incarnation,
            parts,
            hash: step.hash,
            rows: step.rows,
            memory_bytes: 0,
        });
        true
    }

    /// A batch that cannot be written (the disk is full) stays in memory: the region goes on, over its budget.
    fn spill_open(&mut self, delta: Delta, name: ChannelName) -> Part {
        let message = self.open.message(self.open.parts.len(), &delta);
        match self.spill.write(&message) {
            Ok(spilled) => {
                self.spill_failed = false;
                Part::Spilled(spilled)
            }
            Err(error) => {
                self.warn_once(&error, name);
                Part::Memory(delta)
            }
        }
    }

    fn warn_once(&mut self, error: &crate::RuntimeError, name: ChannelName) {
        if !self.spill_failed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(channel = %name, %error, cause, "an exchange cannot spill and keeps its batches in memory");
        }
        self.spill_failed = true;
    }
}

/// Bytes of the rows themselves, not of buffers that they share with others.
fn slice_bytes(delta: &Delta) -> Result<usize> {
    let mut bytes = match &delta.diffs {
        Diffs::Ones => 0,
        Diffs::Values(v) => v.len() * size_of::<i64>(),
    };
    for column in RecordBatch::columns(&delta.batch) {
        bytes += column.to_data().get_slice_memory_size()?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    const NAME: ChannelName = ChannelName {
        edge: 0,
        sender: 1,
        receiver: 2,
    };

    fn ints(from: i64, n: i64) -> Delta {
        let array = Arc::new(Int64Array::from_iter_values(from..from + n)) as ArrayRef;
        Delta::inserts(RecordBatch::try_from_iter(vec![("a", array)]).unwrap())
    }

    fn channel(name: &str, budget: usize) -> (Channel, Arc<SpillDir>) {
        let path = std::env::temp_dir().join(format!("levee-channel-{}-{name}", std::process::id()));
        let dir = SpillDir::open(path).unwrap();
        (Channel::new(NAME, budget, &Governor::new(1 << 30), &dir), dir)
    }

    fn read(channel: &Channel, seq: u64) -> Vec<i64> {
        let step = channel.take(seq).unwrap();
        (0..step.len())
            .flat_map(|i| {
                let delta = step.part(i).unwrap();
                let array = delta
                    .batch
                    .column(0)
                    .as_any()
                    .downcast_ref::<Int64Array>()
                    .unwrap()
                    .clone();
                array.values().to_vec()
            })
            .collect()
    }

    #[test]
    fn steps_show_whole_and_once() {
        let (channel, _dir) = channel("whole", 1 << 20);
        assert!(channel.begin(1, 0));
        channel.append(ints(0, 3)).unwrap();
        assert!(channel.take(0).is_none());
        // The sender died; its next life sends the step again.
        assert!(channel.begin(2, 0));
        channel.append(ints(0, 2)).unwrap();
        channel.append(ints(2, 1)).unwrap();
        channel.close(0, Some(5)).unwrap();
        assert_eq!(read(&channel, 0), vec![0, 1, 2]);
        // And once more, after it was closed.
        assert!(!channel.begin(3, 0));
        channel.close(0, Some(5)).unwrap();
        channel.close(0, None).unwrap();
        let mismatch = channel.close(0, Some(6)).unwrap_err().to_string();
        assert!(mismatch.contains("step 0 on edge 0 task 1 to 2"), "{mismatch}");
        assert_eq!(read(&channel, 0), vec![0, 1, 2]);
        assert!(channel.take(1).is_none());
    }

    #[test]
    fn spills_taken_steps_first_and_reads_them_back() {
        let (channel, dir) = channel("spill", 20_000);
        for seq in 0..5 {
            assert!(channel.begin(1, seq));
            channel.append(ints(seq as i64 * 1000, 1000)).unwrap();
            channel.close(seq, None).unwrap();
            if seq < 2 {
                assert_eq!(channel.spilled(), 0);
                drop(channel.take(seq).unwrap());
            }
        }
        // Steps 0 and 1 (taken) made room for 2 and 3; nothing was left to spill for 4 but itself.
        assert_eq!(channel.spilled(), 3);
        assert!(channel.memory_bytes() <= 20_000);
        for seq in 0..5 {
            assert_eq!(
                read(&channel, seq),
                (seq as i64 * 1000..(seq as i64 + 1) * 1000).collect::<Vec<_>>()
            );
        }
        channel.truncate(3);
        assert!(channel.take(3).is_none());
        assert_eq!(channel.spilled(), 1);
        channel.truncate(4);
        assert_eq!((channel.spilled(), channel.memory_bytes()), (0, 0));
        assert_eq!(std::fs::read_dir(dir.path_for_test()).unwrap().count(), 0);
        dir.remove();
    }

    #[test]
    fn a_partial_step_leaves_no_bytes_behind() {
        let (channel, dir) = channel("partial", 10_000);
        assert!(channel.begin(1, 0));
        for _ in 0..10 {
            channel.append(ints(0, 1000)).unwrap();
        }
        assert!(channel.spilled() > 0);
        assert!(channel.begin(2, 0));
        assert_eq!((channel.spilled(), channel.memory_bytes()), (0, 0));
        dir.remove();
    }
}
