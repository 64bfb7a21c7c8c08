//! Generated rows: every value follows from the seed, its column and its row's number, so any range can be read again by anybody.
//!
//! Offset `k` of split `s` is row `k × splits + s`. Rows become due at the rate that the options give, from the source's creation
//! on. Options: [`levee_planner::connectors::datagen`].
//!
//! Values are made column by column, straight into Arrow buffers, and only for the columns asked for.

mod columns;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use levee_planner::catalog::SourceDef;
use levee_planner::connectors::datagen::DatagenOptions;

use self::columns::{Rows, column};
use super::{CutRequest, RangePoll, RangeReader, Share, SourceDriver, SplitInfo, SplitRange, lane, projected};
use crate::coordinator::{Clock, SystemClock};
use crate::{Delta, Result, RuntimeError};

const CHUNK_ROWS: u64 = 8192;
/// Rows a second of a source's own time where rows are made as fast as they are read.
const UNBOUNDED_TIME_RATE: u64 = 1000;
const POLL_MS_MIN: u64 = 10;
const POLL_MS_MAX: u64 = 1000;

/// Makes the driver.
///
/// # Errors
/// An option is unknown or malformed.
pub fn driver(def: &SourceDef) -> Result<Arc<dyn SourceDriver>> {
    let options = DatagenOptions::parse(&def.options, &def.schema)?;
    Ok(Arc::new(Datagen {
        schema: Arc::clone(&def.schema),
        base_us: parking_lot::RwLock::new(options.base_us),
        options: Arc::new(options),
    }))
}

/// Checks the options and names the splits. Each notes the time of the first row, which is now if the options give none.
///
/// # Errors
/// As [`driver`].
pub fn discover(def: &SourceDef) -> Result<Vec<SplitInfo>> {
    let options = DatagenOptions::parse(&def.options, &def.schema)?;
    let base_us = options.base_us.unwrap_or_else(|| SystemClock.now_us());
    Ok((0..options.splits)
        .map(|split| SplitInfo {
            name: split.to_string(),
            start: 0,
            meta: base_us.to_le_bytes().to_vec(),
        })
        .collect())
}

struct Datagen {
    schema: SchemaRef,
    options: Arc<DatagenOptions>,
    /// Time of row 0; the splits know it if the options do not.
    base_us: parking_lot::RwLock<Option<i64>>,
}

impl Datagen {
    /// Rows of a split among the first `rows`.
    fn length(&self, split: u64, rows: u64) -> u64 {
        let splits = self.options.splits;
        rows / splits + u64::from(split < rows % splits)
    }

    fn due(&self, request: &CutRequest<'_>) -> u64 {
        if self.options.rate == 0 {
            return self.options.limit;
        }
        let elapsed_us = request.now_us.saturating_sub(request.created_us).max(0).unsigned_abs();
        let due = u128::from(elapsed_us) * u128::from(self.options.rate) / 1_000_000;
        u64::try_from(due).map_or(self.options.limit, |due| due.min(self.options.limit))
    }
}

impl SourceDriver for Datagen {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn add_split(&self, split: u32, info: &SplitInfo) -> Result<()> {
        let meta: Option<[u8; 8]> = info.meta.as_slice().try_into().ok();
        match meta {
            Some(meta) if u64::from(split) < self.options.splits => {
                *self.base_us.write() = Some(i64::from_le_bytes(meta));
                Ok(())
            }
            _ => Err(RuntimeError::internal(format!("datagen has no split {split}"))),
        }
    }

    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>> {
        let due = self.due(request);
        let share = (request.records / request.next.len().max(1) as u64).max(1);
        let ranges = (0u32..).zip(request.next).map(|(split, from)| {
            let to = self.length(u64::from(split), due).min(from.saturating_add(share));
            SplitRange::unchecked(split, *from, to)
        });
        Ok(ranges.filter(|r| r.from < r.to).collect())
    }

    fn poll_interval(&self) -> Option<Duration> {
        let ms = 1000_u64.checked_div(self.options.rate).unwrap_or(POLL_MS_MIN);
        Some(Duration::from_millis(ms.clamp(POLL_MS_MIN, POLL_MS_MAX)))
    }

    fn finished(&self, next: &[u64]) -> bool {
        (0..)
            .zip(next)
            .all(|(split, next)| *next >= self.length(split, self.options.limit))
    }

    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>> {
        let end = self.length(u64::from(range.split), self.options.limit);
        let base_us = *self.base_us.read();
        let (Some(base_us), true) = (base_us, range.from <= range.to && range.to <= end) else {
            return Err(RuntimeError::internal(format!(
                "datagen has no offsets {}..{} in split {}",
                range.from, range.to, range.split
            )));
        };
        let (at, to) = share.part(range.from, range.to);
        Ok(Box::new(Reader {
            schema: projected(&self.schema, projection)?,
            projection: projection.to_vec(),
            options: Arc::clone(&self.options),
            base_us,
            split: u64::from(range.split),
            lane: lane(range),
            at,
            to,
        }))
    }

    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        let rows = records.min(self.options.limit);
        let splits = u32::try_from(self.options.splits).unwrap_or(u32::MAX);
        let ranges = (0..splits).map(|s| SplitRange::unchecked(s, 0, self.length(u64::from(s), rows)));
        Ok(ranges.filter(|r| r.to > 0).collect())
    }
}

struct Reader {
    schema: SchemaRef,
    projection: Vec<usize>,
    options: Arc<DatagenOptions>,
    base_us: i64,
    split: u64,
    lane: i64,
    at: u64,
    to: u64,
}

impl Reader {
    /// One of the [`hidden_fields`](super::hidden_fields).
    fn hidden(&self, number: usize, n: usize) -> Result<ArrayRef> {
        Ok(match number {
            0 => Arc::new(BooleanArray::from(vec![false; n])),
            1 => Arc::new(Int64Array::from_value(self.lane, n)),
            2 => Arc::new((self.at..).take(n).map(u64::cast_signed).collect::<Int64Array>()),
            _ => return Err(RuntimeError::internal(format!("datagen has no hidden column {number}"))),
        })
    }
}

impl RangeReader for Reader {
    fn poll(&mut self, _waker: &Waker) -> Result<RangePoll> {
        let n = CHUNK_ROWS.min(self.to - self.at);
        if n == 0 {
            return Ok(RangePoll::End);
        }
        let rows = Rows {
            first: self.at * self.options.splits + self.split,
            step: self.options.splits,
            n: n as usize,
            seed: self.options.seed,
            base_us: self.base_us,
            rate: match self.options.rate {
                0 => UNBOUNDED_TIME_RATE,
                rate => rate,
            },
        };
        let columns = self.projection.iter().zip(self.schema.fields());
        let columns = columns
            .map(|(number, field)| match self.options.fields.get(*number) {
                Some(spec) => column(&rows, *number, spec, field.data_type()),
                None => self.hidden(number - self.options.fields.len(), rows.n),
            })
            .collect::<Result<Vec<_>>>()?;
        self.at += n;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.n));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(RangePoll::Ready(Delta::inserts(batch)))
    }
}
