//! COPY's input formats → Arrow batches.
//!
//! Bytes come in pieces of any size. A splitter ([`text`], [`csv`]) finds the fields of one record at a time in the buffer and
//! hands them to [`Loader`], which parses them straight into the columns' builders. Nothing is kept per row.

mod csv;
mod text;

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use levee_planner::sql::CopyFrom;

use crate::error::{Result, SqlError};
use crate::types::input::ColumnInput;
use crate::types::zone::Zone;
use crate::wire::frontend::invalid_utf8;

/// Rows per batch.
const BATCH_ROWS: usize = 8192;
/// A record may not be longer.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// One field of a record.
pub(crate) enum FieldText<'a> {
    /// The NULL marker.
    Null,
    /// A value.
    Value(Cow<'a, [u8]>),
}

/// What a splitter found at the start of the buffer.
pub(crate) enum Split {
    /// The record's end has not arrived yet.
    Incomplete,
    /// A record that took this many bytes and lines.
    Record {
        /// Bytes to drop from the buffer.
        bytes: usize,
        /// Input lines it spans.
        lines: u64,
    },
    /// `\.`: the end of the data.
    End,
}

/// Parses a COPY's data.
#[derive(Debug)]
pub struct Loader {
    copy: CopyFrom,
    table: String,
    schema: SchemaRef,
    inputs: Vec<ColumnInput>,
    zone: Zone,
    buffer: Vec<u8>,
    /// Start of what has not been parsed in `buffer`.
    start: usize,
    line: u64,
    rows: usize,
    header: bool,
    ended: bool,
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl Loader {
    /// For the columns of a table that `copy` names.
    ///
    /// # Errors
    /// A column's type cannot be read.
    pub fn new(copy: CopyFrom, table: &str, table_schema: &Schema, zone: Zone) -> Result<Self> {
        let fields: Vec<_> = copy
            .columns
            .iter()
            .map(|&c| Arc::clone(&table_schema.fields()[c]))
            .collect();
        let inputs = fields.iter().map(|f| ColumnInput::new(f)).collect::<Result<_>>()?;
        let nullable: Vec<_> = fields.iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
        Ok(Self {
            header: copy.header,
            copy,
            table: table.to_owned(),
            schema: Arc::new(Schema::new(nullable)),
            inputs,
            zone,
            buffer: Vec::new(),
            start: 0,
            line: 0,
            rows: 0,
            ended: false,
            batches: Vec::new(),
            bytes: 0,
        })
    }

    /// Bytes held by finished batches.
    pub fn bytes(&self) -> usize {
        self.bytes + self.buffer.len()
    }

    /// Takes a piece of data.
    ///
    /// # Errors
    /// 22P04 for a malformed record, and what the columns' types report, with line and column in the context.
    pub fn push(&mut self, data: &[u8]) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(data);
        if self.buffer.len() > RECORD_BYTES_MAX {
            return Err(SqlError::new("54000", "COPY record is too long").context(self.context()));
        }
        self.parse(false)
    }

    /// Ends the data; answers the batches, columns in COPY's order.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(mut self) -> Result<Vec<RecordBatch>> {
        if !self.ended {
            self.parse(true)?;
        }
        self.cut()?;
        Ok(self.batches)
    }

    fn parse(&mut self, last: bool) -> Result<()> {
        while self.start < self.buffer.len() && !self.ended {
            let before = self.line;
            match self.record(last) {
                Ok(Split::Incomplete) => return Ok(()),
                Ok(Split::End) => self.ended = true,
                Ok(Split::Record { bytes, lines }) => {
                    self.start += bytes;
                    self.line = before + lines;
                }
                Err(e) => {
                    self.line = before + 1;
                    let context = e.fields().context.clone().unwrap_or_default();
                    return Err(e.context(format!("{}{context}", self.context())));
                }
            }
            if self.rows >= BATCH_ROWS {
                self.cut()?;
            }
        }
        Ok(())
    }

    fn context(&self) -> String {
        format!("COPY {}, line {}", self.table, self.line)
    }

    /// Parses one record at the start of the buffer.
    fn record(&mut self, last: bool) -> Result<Split> {
        let data = &self.buffer[self.start..];
        let skip = self.header;
        let (inputs, fields, zone) = (&mut self.inputs, self.schema.fields(), &self.zone);
        let mut n = 0;
        let mut sink = |field: FieldText<'_>| -> Result<()> {
            if !skip && let Some(input) = inputs.get_mut(n) {
                add(input, field, zone, fields[n].name())?;
            }
            n += 1;
            Ok(())
        };
        let split = if self.copy.csv {
            csv::record(data, &self.copy, last, &mut sink)?
        } else {
            text::record(data, &self.copy, last, &mut sink)?
        };
        let Split::Record { bytes, lines } = split else {
            return Ok(split);
        };
        if skip {
            self.header = false;
            return Ok(split);
        }
        if n < fields.len() {
            return Err(
                SqlError::new("22P04", format!("missing data for column \"{}\"", fields[n].name()))
                    .context(line_context(data, bytes)),
            );
        }
        if n > fields.len() {
            return Err(
                SqlError::new("22P04", "extra data after last expected column").context(line_context(data, bytes))
            );
        }
        self.rows += 1;
        Ok(Split::Record { bytes, lines })
    }

    /// Makes a batch of what the builders hold.
    fn cut(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let columns = self.inputs.iter_mut().map(ColumnInput::finish).collect();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        self.bytes += batch.get_array_memory_size();
        self.batches.push(batch);
        self.rows = 0;
        Ok(())
    }
}

fn line_context(data: &[u8], bytes: usize) -> String {
    let line = String::from_utf8_lossy(&data[..bytes]);
    format!(": \"{}\"", shortened(line.trim_end_matches(['\n', '\r'])))
}

fn shortened(text: &str) -> String {
    let cut: String = text.chars().take(100).collect();
    if cut.len() < text.len() {
        format!("{cut}...")
    } else {
        cut
    }
}

fn add(input: &mut ColumnInput, field: FieldText<'_>, zone: &Zone, name: &str) -> Result<()> {
    match field {
        FieldText::Null => {
            input.null();
            Ok(())
        }
        FieldText::Value(raw) => {
            let text = std::str::from_utf8(&raw).map_err(|e| invalid_utf8(&raw, e.valid_up_to()))?;
            if text.contains('\0') {
                return Err(SqlError::new(
                    "22021",
                    "invalid byte sequence for encoding \"UTF8\": 0x00",
                ));
            }
            input
                .text(text, zone)
                .map_err(|e| e.context(format!(", column {name}: \"{}\"", shortened(text))))
        }
    }
}

#[cfg(test)]
mod tests;
