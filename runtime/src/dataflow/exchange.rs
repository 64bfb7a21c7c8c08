//! The sending end of an exchange: routes a task's output to the channels of an edge.
//!
//! ```text
//!             ┌─ rows of task 0 ─▶ (gathered up to 8 k rows) ─▶ channel to task 0
//!   batch ────┤
//!             └─ rows of task 1 ─▶ (gathered up to 8 k rows) ─▶ channel to task 1
//! ```
//!
//! Cost of a hash exchange: one hash of the key columns and one `take` per receiver; small pieces are copied once more when they are
//! gathered. With one receiver the batch itself goes on, unhashed.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::datatypes::SchemaRef;
use levee_planner::plan::ExchangeKind;

use super::channel::{Channel, Mismatch};
use super::zhash::zset_hash;
use crate::hash::{hash_columns, owner, vnode};
use crate::{Delta, Result};

/// Rows that a gathered message aims at.
const GATHER_ROWS: usize = 8192;
/// Pieces from this size on are sent as they are.
const PIECE_ROWS_MIN: usize = 2048;

/// See the module's documentation.
pub(crate) struct ExchangeWriter {
    kind: ExchangeKind,
    schema: SchemaRef,
    /// Index of the sending task in its fragment.
    task: usize,
    lanes: Vec<Lane>,
    /// Hash the Z-sets, to verify replays.
    verify: bool,
    /// Rows of the current batch per receiver; kept for their allocations.
    rows_of: Vec<Vec<u32>>,
}

struct Lane {
    channel: Arc<Channel>,
    /// The step is new to the channel; otherwise it was closed by an earlier incarnation.
    fresh: bool,
    hash: u64,
    gathered: Vec<Delta>,
    gathered_rows: usize,
}

impl ExchangeWriter {
    /// `channels` lead from this task to each task of the receiving fragment.
    pub(crate) fn new(kind: &ExchangeKind, schema: &SchemaRef, task: usize, channels: &[Arc<Channel>]) -> Self {
        Self {
            kind: kind.clone(),
            schema: Arc::clone(schema),
            task,
            lanes: channels
                .iter()
                .map(|channel| Lane {
                    channel: Arc::clone(channel),
                    fresh: true,
                    hash: 0,
                    gathered: Vec::new(),
                    gathered_rows: 0,
                })
                .collect(),
            verify: false,
            rows_of: vec![Vec::new(); channels.len()],
        }
    }

    /// Begins a step on every channel.
    pub(crate) fn begin(&mut self, incarnation: u32, seq: u64, verify: bool) {
        self.verify = verify;
        for lane in &mut self.lanes {
            lane.fresh = lane.channel.begin(incarnation, seq);
            lane.hash = 0;
            lane.gathered.clear();
            lane.gathered_rows = 0;
        }
    }

    /// Routes part of the step's delta.
    pub(crate) fn send(&mut self, delta: Delta) -> Result<()> {
        if self.lanes.iter().all(|lane| !lane.fresh) && !self.verify {
            return Ok(());
        }
        match &self.kind {
            ExchangeKind::Broadcast => {
                for lane in 0..self.lanes.len() {
                    self.add(lane, delta.clone())?;
                }
                Ok(())
            }
            ExchangeKind::Single => self.add(0, delta),
            ExchangeKind::Forward => self.add(self.task % self.lanes.len(), delta),
            ExchangeKind::Hash(_) if self.lanes.len() == 1 => self.add(0, delta),
            ExchangeKind::Hash(keys) => {
                let keys: Vec<ArrayRef> = keys.iter().map(|&k| Arc::clone(delta.batch.column(k))).collect();
                if keys.is_empty() {
                    return self.add(0, delta);
                }
                self.scatter(&hash_columns(&keys)?, &delta)
            }
        }
    }

    /// Sends each row to the owner of its hash's vnode.
    fn scatter(&mut self, hashes: &[u64], delta: &Delta) -> Result<()> {
        let n = self.lanes.len();
        for rows in &mut self.rows_of {
            rows.clear();
        }
        for (row, hash) in hashes.iter().enumerate() {
            self.rows_of[owner(vnode(*hash), n)].push(row as u32);
        }
        for lane in 0..n {
            let rows = self.rows_of[lane].len();
            if rows == delta.num_rows() {
                self.add(lane, delta.clone())?;
            } else if rows > 0 {
                // `take` wants an owned index array; the vector comes back as a new one of the same capacity.
                let capacity = self.rows_of[lane].capacity();
                let index = std::mem::replace(&mut self.rows_of[lane], Vec::with_capacity(capacity));
                self.add(lane, delta.take(&UInt32Array::from(index))?)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, lane: usize, delta: Delta) -> Result<()> {
        let lane = &mut self.lanes[lane];
        if self.verify {
            lane.hash = lane.hash.wrapping_add(zset_hash(&delta)?);
        }
        if !lane.fresh || delta.num_rows() == 0 {
            return Ok(());
        }
        if lane.gathered.is_empty() && delta.num_rows() >= PIECE_ROWS_MIN {
            return lane.channel.append(delta);
        }
        lane.gathered_rows += delta.num_rows();
        lane.gathered.push(delta);
        if lane.gathered_rows >= GATHER_ROWS {
            lane.flush(&self.schema)?;
        }
        Ok(())
    }

    /// Sends what is gathered, then closes the step on every channel.
    pub(crate) fn close(&mut self, seq: u64) -> Result<std::result::Result<(), Mismatch>> {
        for lane in &mut self.lanes {
            lane.flush(&self.schema)?;
        }
        for lane in &self.lanes {
            if let Err(mismatch) = lane.channel.close(seq, self.verify.then_some(lane.hash)) {
                return Ok(Err(mismatch));
            }
        }
        Ok(Ok(()))
    }
}

impl Lane {
    fn flush(&mut self, schema: &SchemaRef) -> Result<()> {
        self.gathered_rows = 0;
        match self.gathered.len() {
            0 => Ok(()),
            1 => match self.gathered.pop() {
                Some(delta) => self.channel.append(delta),
                None => Ok(()),
            },
            _ => {
                let whole = Delta::concat(schema, &self.gathered)?;
                self.gathered.clear();
                self.channel.append(whole)
            }
        }
    }
}
