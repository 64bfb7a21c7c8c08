//! DECLARE, FETCH, MOVE, CLOSE.
//!
//! A cursor is a result that is read in pieces, over the snapshot of its DECLARE. Going forward it streams, and holds no more than the
//! rows under way. SCROLL, and WITH HOLD once its block commits, read all rows into memory, within the budget of a block's writes.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::scalar::ScalarValue;
use levee_planner::sql::{FetchTo, Query};

use super::query::Rows;
use super::run::Outcome;
use super::txn::{Txn, outside};
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};

/// A declared cursor.
#[derive(Debug)]
pub(super) struct Cursor {
    schema: SchemaRef,
    binary: bool,
    hold: bool,
    /// WITH HOLD, and its block has committed.
    held: bool,
    /// Savepoints around its DECLARE.
    depth: usize,
    rows: CursorRows,
}

#[derive(Debug)]
enum CursorRows {
    /// Forward only.
    Stream {
        rows: Rows,
        /// What is left of the batch taken last.
        rest: VecDeque<RecordBatch>,
        /// The row fetched last.
        last: Option<RecordBatch>,
    },
    /// All of them; `at` is the number of rows before and under the position (0: before the first).
    All { rows: RecordBatch, at: usize },
}

impl Cursor {
    /// Outlives blocks.
    pub fn held(&self) -> bool {
        self.held
    }

    /// Savepoints around its DECLARE.
    pub fn depth(&self) -> usize {
        if self.held { 0 } else { self.depth }
    }

    /// Columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// BINARY.
    pub fn binary(&self) -> bool {
        self.binary
    }
}

impl Session {
    /// DECLARE.
    #[expect(clippy::too_many_arguments, reason = "the statement's parts")]
    pub(super) async fn declare_cursor(
        &mut self,
        binder: &SessionBinder,
        name: String,
        binary: bool,
        scroll: bool,
        hold: bool,
        query: &Query,
        params: &[ScalarValue],
    ) -> Result<()> {
        if !hold && !matches!(self.txn, Txn::Open(_)) {
            return Err(outside("DECLARE CURSOR"));
        }
        if self.cursors.contains_key(&name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let rows = self.start_query(binder, query, params).await?;
        let mut cursor = Cursor {
            schema: Arc::clone(&query.schema),
            binary,
            hold,
            held: false,
            depth: self.txn.block().map_or(0, super::txn::Block::depth),
            rows: CursorRows::Stream {
                rows,
                rest: VecDeque::new(),
                last: None,
            },
        };
        if scroll {
            self.read_all(&mut cursor).await?;
        }
        if hold && !matches!(self.txn, Txn::Open(_)) {
            self.read_all(&mut cursor).await?;
            cursor.held = true;
        }
        self.cursors.insert(name, cursor);
        Ok(())
    }

    /// What is left of a cursor's rows comes into memory.
    async fn read_all(&mut self, cursor: &mut Cursor) -> Result<()> {
        let CursorRows::Stream { rows, rest, .. } = &mut cursor.rows else {
            return Ok(());
        };
        let max = self.server.write_bytes_max;
        let mut batches: Vec<RecordBatch> = std::mem::take(rest).into();
        batches.extend(self.guarded(rows.collect(max)).await?);
        let schema = batches
            .first()
            .map_or_else(|| Arc::clone(&cursor.schema), RecordBatch::schema);
        cursor.rows = CursorRows::All {
            rows: arrow::compute::concat_batches(&schema, &batches)?,
            at: 0,
        };
        Ok(())
    }

    /// COMMIT: cursors WITH HOLD stay, the others are closed.
    pub(super) async fn hold_cursors(&mut self) -> Result<()> {
        let cursors = std::mem::take(&mut self.cursors);
        let mut failed = Ok(());
        for (name, mut cursor) in cursors {
            if !cursor.hold {
                continue;
            }
            if !cursor.held {
                match self.read_all(&mut cursor).await {
                    Ok(()) => cursor.held = true,
                    Err(e) => {
                        failed = Err(e);
                        continue;
                    }
                }
            }
            self.cursors.insert(name, cursor);
        }
        failed
    }

    /// FETCH or MOVE.
    pub(super) async fn fetch(&mut self, name: &str, to: FetchTo, only_move: bool) -> Result<Outcome> {
        let mut cursor = self.cursors.remove(name).ok_or_else(|| no_cursor(name))?;
        let fetched = self.fetch_from(&mut cursor, to).await;
        let (schema, binary) = (Arc::clone(&cursor.schema), cursor.binary);
        self.cursors.insert(name.to_owned(), cursor);
        let batches = fetched?;
        if only_move {
            let n: usize = batches.iter().map(RecordBatch::num_rows).sum();
            return Ok(Outcome::Tag(format!("MOVE {n}")));
        }
        let mut rows = Rows::of_fetched(schema, batches);
        rows.binary = binary;
        Ok(Outcome::Rows(rows))
    }

    async fn fetch_from(&mut self, cursor: &mut Cursor, to: FetchTo) -> Result<Vec<RecordBatch>> {
        let max = self.server.write_bytes_max;
        match &mut cursor.rows {
            CursorRows::All { rows, at } => Ok(vec![scroll(rows, at, to)?]),
            CursorRows::Stream { rows, rest, last } => {
                let (skip, n) = match to {
                    FetchTo::Forward(0) | FetchTo::Relative(0) => return Ok(last.iter().cloned().collect()),
                    FetchTo::All => (0, usize::MAX),
                    FetchTo::Forward(n) if n > 0 => (0, usize::try_from(n).unwrap_or(usize::MAX)),
                    FetchTo::Relative(n) if n > 0 => (usize::try_from(n - 1).unwrap_or(usize::MAX), 1),
                    FetchTo::Forward(_) | FetchTo::BackwardAll | FetchTo::Absolute(_) | FetchTo::Relative(_) => {
                        return Err(SqlError::new("55000", "cursor can only scan forward")
                            .hint("Declare it with SCROLL option to enable backward scan."));
                    }
                };
                let work = forward(rows, rest, skip, n, max);
                let taken = self.guarded(work).await?;
                let count: usize = taken.iter().map(RecordBatch::num_rows).sum();
                // After the last row there is no current one.
                *last = match taken.last() {
                    Some(batch) if count == n => Some(batch.slice(batch.num_rows() - 1, 1)),
                    _ => None,
                };
                Ok(taken)
            }
        }
    }

    /// CLOSE.
    pub(super) fn close_cursor(&mut self, name: Option<&str>) -> Result<&'static str> {
        match name {
            None => {
                self.cursors.clear();
                Ok("CLOSE CURSOR ALL")
            }
            Some(name) => match self.cursors.remove(name) {
                Some(_) => Ok("CLOSE CURSOR"),
                None => Err(no_cursor(name)),
            },
        }
    }
}

/// The next `n` rows after `skip` ones.
async fn forward(
    rows: &mut Rows,
    rest: &mut VecDeque<RecordBatch>,
    mut skip: usize,
    n: usize,
    bytes_max: usize,
) -> Result<Vec<RecordBatch>> {
    let (mut out, mut left, mut bytes) = (Vec::new(), n, 0);
    while left > 0 {
        let batch = match rest.pop_front() {
            Some(batch) => batch,
            None => match rows.next().await? {
                Some(batch) => batch,
                None => break,
            },
        };
        let from = skip.min(batch.num_rows());
        skip -= from;
        let take = (batch.num_rows() - from).min(left);
        if from + take < batch.num_rows() {
            rest.push_front(batch.slice(from + take, batch.num_rows() - from - take));
        }
        if take > 0 {
            let taken = batch.slice(from, take);
            bytes += taken.get_array_memory_size();
            if bytes > bytes_max {
                return Err(super::txn::too_big(bytes_max));
            }
            out.push(taken);
            left -= take;
        }
    }
    Ok(out)
}

/// Moves in a result that is in memory; answers the rows passed, in the order of passing.
fn scroll(rows: &RecordBatch, at: &mut usize, to: FetchTo) -> Result<RecordBatch> {
    let n = rows.num_rows();
    let size = |v: i64| usize::try_from(v.unsigned_abs()).unwrap_or(usize::MAX);
    // Positions: 0 is before the first row, n + 1 after the last.
    let one = |at: &mut usize, target: usize| {
        *at = target.min(n + 1);
        if (1..=n).contains(at) {
            rows.slice(*at - 1, 1)
        } else {
            rows.slice(0, 0)
        }
    };
    Ok(match to {
        FetchTo::Forward(0) | FetchTo::Relative(0) => {
            let here = *at;
            one(at, here)
        }
        FetchTo::All => {
            let from = (*at).min(n);
            *at = n + 1;
            rows.slice(from, n - from)
        }
        FetchTo::Forward(k) if k > 0 => {
            let from = (*at).min(n);
            let take = size(k).min(n - from);
            *at = if take < size(k) { n + 1 } else { from + take };
            rows.slice(from, take)
        }
        FetchTo::Forward(_) | FetchTo::BackwardAll => {
            let wanted = if let FetchTo::Forward(k) = to {
                size(k)
            } else {
                usize::MAX
            };
            let before = (*at).min(n + 1).saturating_sub(1);
            let take = wanted.min(before);
            *at = if take < wanted { 0 } else { before - take + 1 };
            let index: Vec<u32> = (0..take).map(|i| u32::try_from(before - 1 - i).unwrap_or(0)).collect();
            arrow::compute::take_record_batch(rows, &arrow::array::UInt32Array::from(index))?
        }
        FetchTo::Absolute(k) if k >= 0 => one(at, size(k)),
        FetchTo::Absolute(k) => one(at, (n + 1).saturating_sub(size(k))),
        FetchTo::Relative(k) if k > 0 => {
            let target = at.saturating_add(size(k));
            one(at, target)
        }
        FetchTo::Relative(k) => {
            let target = at.saturating_sub(size(k));
            one(at, target)
        }
    })
}

/// 34000.
pub(super) fn no_cursor(name: &str) -> SqlError {
    SqlError::new("34000", format!("cursor \"{name}\" does not exist"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int32Array};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn scrolling_goes_both_ways_and_stops_at_the_ends() {
        let rows =
            RecordBatch::try_from_iter([("a", Arc::new(Int32Array::from(vec![1, 2, 3])) as arrow::array::ArrayRef)])
                .expect("batch");
        let mut at = 0;
        let mut go = |to| -> Vec<i32> {
            let b = scroll(&rows, &mut at, to).expect("rows");
            b.column(0).as_primitive::<Int32Type>().values().to_vec()
        };
        assert_eq!(go(FetchTo::Forward(2)), [1, 2]);
        assert_eq!(go(FetchTo::Forward(-1)), [1]);
        assert_eq!(go(FetchTo::Forward(-1)), [0; 0]);
        assert_eq!(go(FetchTo::All), [1, 2, 3]);
        assert_eq!(go(FetchTo::Forward(1)), [0; 0]);
        assert_eq!(go(FetchTo::BackwardAll), [3, 2, 1]);
        assert_eq!(go(FetchTo::Absolute(-1)), [3]);
        assert_eq!(go(FetchTo::Relative(-2)), [1]);
        assert_eq!(go(FetchTo::Forward(0)), [1]);
        assert_eq!(go(FetchTo::Absolute(7)), [0; 0]);
    }
}
