//! Reading a base and runs together, in order and in bounded memory.
//!
//! ```text
//!   base   │ a b c d │ e f g h │ i j k │        a piece of each input at a time
//!   run 1  │     c⁻      f⁺      │                pieces that overlap are cut at the nearest limit and consolidated,
//!   run 2  │     c⁺                 k⁻  │         pieces that do not are passed on as they are
//! ```
//!
//! Memory: one piece an input. Cost: a row of a piece that overlaps another is encoded and sorted once; any other row is
//! free, so a large base with few changes is read as fast as without them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use levee_storage::delta_file::after_prefix;

use super::base::Base;
use super::cold::ColdCursor;
use super::order::RowOrder;
use super::run::Run;
use super::sorted::Piece;
use crate::{Delta, Result};

/// Rows that all pieces of runs together hold at most, about.
const PIECES_ROWS: usize = 131_072;
const PIECE_ROWS_MIN: usize = 512;
const PIECE_ROWS_MAX: usize = 8192;

/// The sum of sorted inputs, in storage order.
#[derive(Debug)]
pub struct MergeScan {
    order: Arc<RowOrder>,
    inputs: Vec<Input>,
    /// Rows are below this.
    end: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Input {
    cursor: Cursor,
    piece: Option<Piece>,
}

#[derive(Debug)]
pub(super) enum Cursor {
    Run {
        run: Arc<Run>,
        row: usize,
        rows_max: usize,
        /// The encoding of `row`, if known.
        key: Option<Box<[u8]>>,
    },
    Chunks {
        base: Arc<Base>,
        chunk: usize,
        /// Rows of the next chunk that come before the beginning.
        skip: usize,
    },
    Cold(Box<ColdCursor>),
}

impl Cursor {
    fn load(&mut self, order: &RowOrder) -> Result<Option<Piece>> {
        match self {
            Self::Cold(cold) => cold.piece(order),
            Self::Chunks { base, chunk, skip } => {
                let chunks = base.chunks();
                while let Some(here) = chunks.get(*chunk) {
                    *chunk += 1;
                    let skip = std::mem::take(skip);
                    let limit = chunks.get(*chunk).map(|next| next.fence.clone());
                    let n = here.delta.num_rows();
                    if skip == 0 {
                        return Ok(Some(Piece::new(here.delta.clone(), here.fence.clone(), limit)));
                    }
                    if skip < n {
                        let rest = here.delta.slice(skip, n - skip);
                        let first = order.encode(&rest.batch.slice(0, 1))?;
                        return Ok(Some(Piece::new(rest, first.row(0).data().into(), limit)));
                    }
                }
                Ok(None)
            }
            Self::Run {
                run,
                row,
                rows_max,
                key,
            } => {
                if *row >= run.num_rows() {
                    return Ok(None);
                }
                let first = match key.take() {
                    Some(key) => key,
                    None => run.key(order, *row)?,
                };
                let delta = run.piece(*row, *rows_max)?;
                *row += delta.num_rows();
                if *row < run.num_rows() {
                    *key = Some(run.key(order, *row)?);
                }
                Ok(Some(Piece::new(delta, first, key.clone())))
            }
        }
    }
}

impl MergeScan {
    /// The sum of `runs` and, if given, a base: all rows, those at or after `from`, those whose encoding begins with `prefix`.
    ///
    /// # Errors
    /// Something cannot be read.
    pub(super) fn new(
        order: &Arc<RowOrder>,
        base: Option<&Arc<Base>>,
        runs: &[Arc<Run>],
        from: Option<&[u8]>,
        prefix: Option<&[u8]>,
    ) -> Result<Self> {
        let start = match (from, prefix) {
            (Some(from), Some(prefix)) => Some(from.max(prefix)),
            (from, prefix) => from.or(prefix),
        };
        let rows_max = (PIECES_ROWS / runs.len().max(1)).clamp(PIECE_ROWS_MIN, PIECE_ROWS_MAX);
        let mut inputs = Vec::with_capacity(runs.len() + 1);
        if let Some(base) = base {
            inputs.push(base.cursor(order, start)?);
        }
        for run in runs {
            let row = start.map_or(Ok(0), |start| run.lower_bound(order, start))?;
            if row < run.num_rows() {
                inputs.push(Cursor::Run {
                    run: Arc::clone(run),
                    row,
                    rows_max,
                    key: None,
                });
            }
        }
        Ok(Self {
            order: Arc::clone(order),
            inputs: inputs.into_iter().map(|cursor| Input { cursor, piece: None }).collect(),
            end: prefix.and_then(after_prefix),
        })
    }

    /// The next rows: consolidated, in order, never empty.
    ///
    /// # Errors
    /// Something cannot be read.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator of results would hide the error's end"
    )]
    pub fn next(&mut self) -> Result<Option<Delta>> {
        loop {
            self.load()?;
            let mut firsts: Vec<(&[u8], usize)> = (0..)
                .zip(&self.inputs)
                .filter_map(|(i, input)| Some((input.piece.as_ref()?.first(), i)))
                .collect();
            firsts.sort_unstable();
            let Some(&(first, at)) = firsts.first() else {
                return Ok(None);
            };
            if self.end.as_deref().is_some_and(|end| first >= end) {
                return Ok(None);
            }
            let limits = self.inputs.iter().filter_map(|input| input.piece.as_ref()?.limit());
            let bound = limits.chain(self.end.as_deref()).min();
            let second = firsts.get(1).map(|(first, _)| *first);
            let own = self.inputs[at].piece.as_ref().and_then(Piece::limit);
            let within = |limit: &[u8]| self.end.as_deref().is_none_or(|end| limit <= end);
            // Nobody else has rows before this piece ends.
            let alone = match (own, second) {
                (Some(own), Some(second)) => own <= second && within(own),
                (Some(own), None) => within(own),
                (None, None) => self.end.is_none(),
                (None, Some(_)) => false,
            };
            let bound = if alone { own } else { bound }.map(<[u8]>::to_vec);
            let taken: Vec<usize> = if alone {
                vec![at]
            } else {
                let below = |first: &[u8]| bound.as_deref().is_none_or(|bound| first < bound);
                firsts.iter().take_while(|(f, _)| below(f)).map(|(_, i)| *i).collect()
            };
            let mut parts = Vec::with_capacity(taken.len());
            for i in taken {
                if let Some(piece) = &mut self.inputs[i].piece {
                    parts.push(piece.take_below(&self.order, bound.as_deref())?);
                }
            }
            let sum = match parts.as_slice() {
                [one] => renamed(&self.order, one)?,
                _ => Delta::consolidate(self.order.stored(), &parts, self.order.key())?,
            };
            if sum.num_rows() > 0 {
                return Ok(Some(sum));
            }
        }
    }

    fn load(&mut self) -> Result<()> {
        for input in &mut self.inputs {
            if input.piece.as_ref().is_none_or(Piece::is_empty) {
                input.piece = input.cursor.load(&self.order)?;
            }
        }
        self.inputs.retain(|input| input.piece.is_some());
        Ok(())
    }
}

/// The delta with the order's column names, all of which may be NULL: older rows were written under the names of their time.
fn renamed(order: &RowOrder, delta: &Delta) -> Result<Delta> {
    let schema = order.stored();
    if Arc::ptr_eq(delta.batch.schema_ref(), schema) || delta.batch.schema_ref() == schema {
        return Ok(delta.clone());
    }
    Ok(Delta {
        batch: RecordBatch::try_new(Arc::clone(schema), delta.batch.columns().to_vec())?,
        diffs: delta.diffs.clone(),
    })
}

/// Sums of an ascending sequence of keys over a scan.
#[derive(Debug)]
pub(super) struct MergedSums {
    scan: MergeScan,
    piece: Option<(Delta, arrow::row::Rows)>,
    at: usize,
}

impl MergedSums {
    pub(super) fn new(scan: MergeScan) -> Self {
        Self {
            scan,
            piece: None,
            at: 0,
        }
    }

    /// The sum of the diffs of the rows whose encoding begins with `prefix`, which is not below the one asked for before.
    pub(super) fn sum(&mut self, prefix: &[u8]) -> Result<i64> {
        let mut sum = 0;
        loop {
            if self.piece.as_ref().is_none_or(|(delta, _)| self.at >= delta.num_rows()) {
                let Some(delta) = self.scan.next()? else {
                    self.piece = None;
                    return Ok(sum);
                };
                let rows = self.scan.order.encode(&delta.batch)?;
                self.piece = Some((delta, rows));
                self.at = 0;
            }
            let Some((delta, rows)) = &self.piece else {
                return Ok(sum);
            };
            while self.at < delta.num_rows() {
                let row = rows.row(self.at).data();
                if row.starts_with(prefix) {
                    sum += delta.diff(self.at);
                } else if row > prefix {
                    return Ok(sum);
                }
                self.at += 1;
            }
        }
    }
}
