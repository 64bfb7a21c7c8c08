//! Reads a range of event numbers in chunks.

use std::sync::Arc;
use std::task::Waker;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use super::Nexmark;
use super::columns::EventColumns;
use super::timeline::{Clock, Matching};
use crate::sources::{RangePoll, RangeReader, SplitRange};
use crate::{Delta, Result};

const CHUNK_ROWS: usize = 8192;

pub(super) struct Reader<C> {
    columns: C,
    projection: Vec<usize>,
    schema: SchemaRef,
    events: Matching,
    clock: Clock,
    seed_mask: u64,
}

impl<C: EventColumns> Reader<C> {
    /// `range` and `projection` are known to be within the source.
    pub(super) fn new(source: &Nexmark, range: SplitRange, projection: &[usize]) -> Result<Self> {
        let mut wanted = vec![false; C::COLUMNS];
        for &column in projection {
            wanted[column] = true;
        }
        let rows = CHUNK_ROWS.min(usize::try_from(range.to - range.from).unwrap_or(CHUNK_ROWS));
        Ok(Self {
            columns: C::new(&wanted, rows),
            projection: projection.to_vec(),
            schema: Arc::new(source.schema.project(projection)?),
            events: Matching::new(
                source.splits,
                u64::from(range.split),
                source.event_type,
                range.from,
                range.to,
            ),
            clock: source.clock,
            seed_mask: source.seed_mask,
        })
    }

    /// The projected columns; one that is asked for twice is shared.
    fn take(&mut self, rows: usize) -> Result<RecordBatch> {
        let mut arrays = Vec::with_capacity(self.projection.len());
        for (i, column) in self.projection.iter().enumerate() {
            let array = match self.projection[..i].iter().position(|earlier| earlier == column) {
                Some(earlier) => Arc::clone(&arrays[earlier]),
                None => self.columns.take(*column)?,
            };
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            arrays,
            &options,
        )?)
    }
}

impl<C: EventColumns> RangeReader for Reader<C> {
    fn poll(&mut self, _waker: &Waker) -> Result<RangePoll> {
        let mut rows = 0;
        while rows < CHUNK_ROWS
            && let Some(number) = self.events.next()
        {
            self.columns.push(number, number ^ self.seed_mask, &self.clock);
            rows += 1;
        }
        if rows == 0 {
            return Ok(RangePoll::End);
        }
        Ok(RangePoll::Ready(Delta::inserts(self.take(rows)?)))
    }
}
