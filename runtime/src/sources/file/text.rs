//! Reads a share of a range of a text file: JSON lines or CSV.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::SchemaRef;
use levee_planner::catalog::{Include, SourceDef};

use super::lines::Records;
use super::pull::Pull;
use super::store::{Listed, changed};
use super::{Form, Shared};
use crate::sources::decode::{Decoded, Decoder, Record};
use crate::sources::{DeadLetter, Share, SplitRange, lane, projected};
use crate::{Delta, Result, RuntimeError};

/// Records decoded at once.
const CHUNK_RECORDS: usize = 8192;

/// Where a column of the output comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    /// This one of the columns that are not included.
    Payload(usize),
    /// The file's path.
    Path,
    /// The record's offset.
    Offset,
    /// Of [`hidden_fields`](crate::sources::hidden_fields): no record of a file deletes, and later files are newer.
    NoDelete,
    Lane(i64),
}

/// Where the projected columns come from.
pub(super) fn outputs(def: &SourceDef, range: &SplitRange, projection: &[usize]) -> Result<Vec<Output>> {
    let width = def.schema.fields().len();
    projection
        .iter()
        .map(|column| match def.includes.get(column) {
            Some(Include::Partition) => Ok(Output::Path),
            Some(Include::Offset) => Ok(Output::Offset),
            Some(other) => Err(RuntimeError::internal(format!("a file has no {other:?}"))),
            None if *column < width => Ok(Output::Payload(column - def.includes.range(..column).count())),
            None => match column - width {
                0 => Ok(Output::NoDelete),
                1 => Ok(Output::Lane(lane(range))),
                2 => Ok(Output::Offset),
                _ => Err(RuntimeError::internal(format!("a file source has no column {column}"))),
            },
        })
        .collect()
}

/// Puts the projected columns together; `rows` is their number.
pub(super) fn assemble(
    schema: &SchemaRef,
    outputs: &[Output],
    path: &str,
    offsets: &dyn Fn() -> Int64Array,
    payload: &dyn Fn(usize) -> Result<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch> {
    let columns = outputs
        .iter()
        .map(|output| {
            Ok(match output {
                Output::Payload(column) => payload(*column)?,
                Output::Path => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(path, rows))) as ArrayRef,
                Output::Offset => Arc::new(offsets()),
                Output::NoDelete => Arc::new(BooleanArray::from(vec![false; rows])),
                Output::Lane(lane) => Arc::new(Int64Array::from_value(*lane, rows)),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}

/// A reader of text.
pub(super) struct TextReader {
    shared: Arc<Shared>,
    file: Listed,
    range: SplitRange,
    /// Opened by the first pull, because opening may wait.
    records: Option<Records>,
    decoder: Decoder,
    outputs: Vec<Output>,
    schema: SchemaRef,
    /// Records before the share, and in what is left of it; `None`: all to the range's end.
    skip: u64,
    left: Option<u64>,
}

impl TextReader {
    pub(super) fn new(
        shared: &Arc<Shared>,
        file: Listed,
        range: &SplitRange,
        share: Share,
        projection: &[usize],
    ) -> Result<Self> {
        let (skip, left) = match range.check {
            Some(check) => {
                let (from, to) = share.part(0, check.records);
                (from, Some(to - from))
            }
            // Of a range whose records nobody counted one task reads everything.
            None => (0, (share.index > 0).then_some(0)),
        };
        Ok(Self {
            file,
            range: *range,
            records: None,
            decoder: Decoder::new(&shared.context.versions.at(range.revision)?.1)?,
            outputs: outputs(&shared.def, range, projection)?,
            schema: projected(&shared.def.schema, projection)?,
            shared: Arc::clone(shared),
            skip,
            left,
        })
    }

    fn records(&mut self) -> Result<&mut Records> {
        if self.records.is_none() {
            let Form::Text { syntax, header } = self.shared.form else {
                return Err(RuntimeError::internal("a text reader over rows"));
            };
            let content = self.shared.content(self.range.split, &self.file);
            let content = content.map_err(super::store::Trouble::into_error)?;
            self.records = Some(Records::new(
                content,
                &self.file.name,
                syntax,
                header,
                self.range.from,
                self.range.to,
            ));
        }
        self.records
            .as_mut()
            .ok_or_else(|| RuntimeError::internal("a reader without records"))
    }

    fn batch(&self, decoded: &Decoded, offset: &dyn Fn(u32) -> u64) -> Result<RecordBatch> {
        let offsets = || {
            decoded
                .origin
                .iter()
                .map(|o| offset(*o).cast_signed())
                .collect::<Int64Array>()
        };
        let payload = |column: usize| Ok(Arc::clone(decoded.batch.column(column)));
        assemble(
            &self.schema,
            &self.outputs,
            &self.file.name,
            &offsets,
            &payload,
            decoded.batch.num_rows(),
        )
    }
}

impl Pull for TextReader {
    fn pull(&mut self) -> Result<Option<Delta>> {
        loop {
            if self.left == Some(0) {
                return Ok(None);
            }
            let records = self.records()?;
            if !records
                .advance(CHUNK_RECORDS)
                .map_err(super::store::Trouble::into_error)?
            {
                return match self.left {
                    None => Ok(None),
                    // Fewer records than were counted.
                    Some(_) => Err(changed(&self.file.name).into_error()),
                };
            }
            fail::fail_point!("source::read");
            let n = records.spans().len() as u64;
            if self.skip >= n {
                self.skip -= n;
                continue;
            }
            let first = std::mem::take(&mut self.skip);
            let take = self.left.map_or(n - first, |left| left.min(n - first));
            self.left = self.left.map(|left| left - take);
            let Some(records) = self.records.as_ref() else {
                return Err(RuntimeError::internal("a reader without records"));
            };
            let spans = &records.spans()[first as usize..(first + take) as usize];
            let inputs: Vec<Record<'_>> = spans
                .iter()
                .map(|span| Record {
                    key: None,
                    value: Some(records.bytes(*span)),
                })
                .collect();
            let decoded = self.decoder.decode(&inputs)?;
            let offset = |record: u32| records.offset(spans[record as usize]);
            if !decoded.failed.is_empty() {
                let letters = decoded.failed.iter().map(|failure| DeadLetter {
                    split: self.range.split,
                    offset: offset(failure.record),
                    reason: failure.reason.clone(),
                    key: None,
                    value: Some(records.bytes(spans[failure.record as usize]).to_vec()),
                    timestamp_us: None,
                    headers: Vec::new(),
                });
                (self.shared.context.dead_letters)(letters.collect());
            }
            if decoded.batch.num_rows() > 0 {
                return Ok(Some(Delta::inserts(self.batch(&decoded, &offset)?)));
            }
        }
    }
}
