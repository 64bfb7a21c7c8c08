//! Backfill: how a new view takes what its inputs already hold, beside everything else.
//!
//! ```text
//!   input U   ──────●s────────┼───┼───┼──▶ runs after s
//!                   │ pinned, immutable
//!   view V          └─ 64 k rows, 64 k rows, … ─┴─ follows U's log from s + 1; visible from max s
//! ```
//!
//! Each input is pinned at its own newest completed checkpoint (or where its log begins), because that version survives a restart:
//! the manifest keeps it as long as a building view names it. Steps are bounded; the position after each is part of the view's
//! checkpoint, so building goes on after a restart where it was.

use levee_planner::plan::ObjectId;
use serde::{Deserialize, Serialize};

use super::reader::{Reader, Ready};
use crate::Result;
use crate::dataflow::StepInput;
use crate::relation::RelationSnapshot;
use crate::sources::SplitRange;

/// Rows of a backfill step.
pub const BACKFILL_ROWS: usize = 65_536;

/// One input's part of a backfill.
#[derive(Debug)]
pub enum Pin {
    /// A relation's rows at an epoch.
    Relation {
        /// The epoch.
        epoch: u64,
        /// Data; `None` until the relation has reached the epoch again after a restart.
        snapshot: Option<RelationSnapshot>,
        /// Distinct rows taken.
        done: u64,
        /// The last of them, encoded: a place that a base in the cold tier can be entered at.
        cursor: Option<Vec<u8>>,
        /// Reads the rows after it, once begun.
        reader: Option<Reader>,
    },
    /// A source's records before its offsets at an epoch.
    Source {
        /// The epoch.
        epoch: u64,
        /// What is left to read.
        ranges: Vec<SplitRange>,
        /// Records taken.
        done: u64,
    },
}

/// A view's building.
#[derive(Debug, Default)]
pub struct Backfill {
    /// Per input; empty until all inputs are readable.
    pub pins: Vec<(ObjectId, Pin)>,
    /// Pins have been chosen.
    pub pinned: bool,
    /// The one step that every region takes, even over empty inputs, has been submitted.
    pub started: bool,
    /// The pins have been handed to a checkpoint, before any step (sinks).
    pub frozen: bool,
    /// Rows taken by finished steps, for progress.
    pub rows_done: u64,
}

/// A backfill's position, as kept in a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillMeta {
    /// Relations: id, epoch, distinct rows taken, the last of them encoded.
    pub relations: Vec<(ObjectId, u64, u64, Option<Vec<u8>>)>,
    /// Sources: id, epoch, ranges left, records taken.
    pub sources: Vec<(ObjectId, u64, Vec<SplitRange>, u64)>,
}

impl Backfill {
    /// Continues from a checkpoint, in which the first step was or was not taken yet.
    pub fn resume(meta: &BackfillMeta, started: bool) -> Self {
        let relations = meta.relations.iter().map(|(id, epoch, done, cursor)| {
            (
                *id,
                Pin::Relation {
                    epoch: *epoch,
                    snapshot: None,
                    done: *done,
                    cursor: cursor.clone(),
                    reader: None,
                },
            )
        });
        let sources = meta.sources.iter().map(|(id, epoch, ranges, done)| {
            (
                *id,
                Pin::Source {
                    epoch: *epoch,
                    ranges: ranges.clone(),
                    done: *done,
                },
            )
        });
        let rows_done = meta
            .relations
            .iter()
            .map(|r| r.2)
            .chain(meta.sources.iter().map(|s| s.3))
            .sum();
        Self {
            pins: relations.chain(sources).collect(),
            pinned: true,
            started,
            frozen: true,
            rows_done,
        }
    }

    /// The position now.
    pub fn meta(&self) -> BackfillMeta {
        let mut meta = BackfillMeta::default();
        for (id, pin) in &self.pins {
            match pin {
                Pin::Relation {
                    epoch, done, cursor, ..
                } => meta.relations.push((*id, *epoch, *done, cursor.clone())),
                Pin::Source { epoch, ranges, done } => meta.sources.push((*id, *epoch, ranges.clone(), *done)),
            }
        }
        meta
    }

    /// Epochs at which inputs are pinned.
    pub fn epochs(&self) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        self.pins.iter().map(|(id, pin)| match pin {
            Pin::Relation { epoch, .. } | Pin::Source { epoch, .. } => (*id, *epoch),
        })
    }

    /// Relations whose pinned rows are not at hand yet.
    pub fn missing(&self) -> Vec<(ObjectId, u64)> {
        self.pins
            .iter()
            .filter_map(|(id, pin)| match pin {
                Pin::Relation {
                    epoch, snapshot: None, ..
                } => Some((*id, *epoch)),
                _ => None,
            })
            .collect()
    }

    /// Rows are being read: an event will tell when there are some.
    pub fn reads(&self) -> bool {
        self.pins
            .iter()
            .any(|(_, pin)| matches!(pin, Pin::Relation { reader: Some(_), .. }))
    }

    /// Rows taken and about how many there are in all.
    pub fn progress(&self) -> (u64, u64) {
        let total = self.pins.iter().map(|(_, pin)| match pin {
            Pin::Relation {
                snapshot: Some(s),
                done,
                ..
            } => (s.rows_about() as u64).max(*done),
            Pin::Relation {
                snapshot: None, done, ..
            } => *done,
            Pin::Source { ranges, done, .. } => *done + ranges.iter().map(SplitRange::records).sum::<u64>(),
        });
        (self.rows_done, total.sum())
    }

    /// Takes the next step's input. `start` begins to read the rows of a snapshot after a cursor.
    ///
    /// # Errors
    /// A pinned snapshot cannot be read.
    pub fn next(&mut self, start: impl Fn(RelationSnapshot, Option<Vec<u8>>) -> Result<Reader>) -> Result<Next> {
        for (id, pin) in &mut self.pins {
            match pin {
                Pin::Relation {
                    snapshot: Some(snapshot),
                    done,
                    cursor,
                    reader,
                    ..
                } => {
                    let open = match reader {
                        Some(open) => open,
                        None => reader.insert(start(snapshot.clone(), cursor.clone())?),
                    };
                    match open.next()? {
                        Ready::Piece(piece) => {
                            *done += piece.rows;
                            *cursor = Some(piece.last);
                            return Ok(Next::Input(*id, StepInput::Deltas(piece.deltas)));
                        }
                        Ready::Waiting => return Ok(Next::Waiting),
                        Ready::End => {}
                    }
                }
                Pin::Relation { snapshot: None, .. } => {}
                Pin::Source { ranges, done, .. } => {
                    ranges.retain(|r| r.from < r.to);
                    if ranges.is_empty() {
                        continue;
                    }
                    let part = next_ranges(ranges);
                    *done += part.iter().map(SplitRange::records).sum::<u64>();
                    return Ok(Next::Input(*id, StepInput::Ranges(part)));
                }
            }
        }
        Ok(Next::End)
    }
}

/// What a backfill has next.
pub enum Next {
    /// A step's input.
    Input(ObjectId, StepInput),
    /// It is being read.
    Waiting,
    /// Everything has been taken.
    End,
}

/// Takes the ranges of one step, all of the oldest generation: of ranges with a check (which must be read whole) the first ones up to a
/// step's size, of others an equal part of each.
fn next_ranges(ranges: &mut [SplitRange]) -> Vec<SplitRange> {
    let oldest = ranges.iter().map(|r| r.generation).min().unwrap_or(0);
    let count = ranges.iter().filter(|r| r.generation == oldest).count();
    let share = (BACKFILL_ROWS as u64 / count.max(1) as u64).max(1);
    let (mut part, mut records) = (Vec::new(), 0);
    for range in ranges.iter_mut().filter(|r| r.generation == oldest) {
        let to = match range.check {
            Some(check) => {
                if records > 0 && records + check.records > BACKFILL_ROWS as u64 {
                    break;
                }
                records += check.records;
                range.to
            }
            None => range.to.min(range.from + share),
        };
        part.push(SplitRange { to, ..*range });
        range.from = to;
    }
    part
}
