//! COPY's input formats → Arrow batches.
//!
//! Bytes come in pieces of any size. A splitter ([`text`], [`csv`]) finds the fields of one record at a time in the buffer and
//! hands them to [`Loader`], which parses them straight into the columns' builders. Nothing is kept per row. The way back is in [`out`].

mod binary;
mod csv;
pub mod out;
mod text;

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use levee_planner::sql::{CopyFormat, CopyFrom, CopyHeader, CopyKind};

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
    /// What stands for NULL.
    Marker {
        /// In quotes, where it is a value.
        quoted: bool,
    },
    /// A value in binary form.
    Raw(&'a [u8]),
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
    format: CopyFormat,
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
            header: copy.format.header != CopyHeader::No || copy.format.kind == CopyKind::Binary,
            format: copy.format,
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
        if self.header {
            return self.first_line(last);
        }
        let (inputs, fields, zone) = (&mut self.inputs, self.schema.fields(), &self.zone);
        let format = &self.format;
        let mut n = 0;
        let mut sink = |field: FieldText<'_>| -> Result<()> {
            if let Some(input) = inputs.get_mut(n) {
                add(input, n, field, format, zone, fields[n].name())?;
            }
            n += 1;
            Ok(())
        };
        let split = split(data, format, last, &mut sink)?;
        let Split::Record { bytes, lines } = split else {
            return Ok(split);
        };
        if format.kind == CopyKind::Binary && n != fields.len() {
            let expected = fields.len();
            return Err(SqlError::new(
                "22P04",
                format!("row field count is {n}, expected {expected}"),
            ));
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

    /// The header: names are compared if wanted.
    fn first_line(&mut self, last: bool) -> Result<Split> {
        let data = &self.buffer[self.start..];
        if self.format.kind == CopyKind::Binary {
            let Some(bytes) = binary::header(data, last)? else {
                return Ok(Split::Incomplete);
            };
            self.header = false;
            return Ok(Split::Record { bytes, lines: 0 });
        }
        let mut names = Vec::new();
        let null = self.format.null.clone();
        let mut sink = |field: FieldText<'_>| -> Result<()> {
            names.push(match field {
                FieldText::Value(v) => String::from_utf8_lossy(&v).into_owned(),
                _ => null.clone(),
            });
            Ok(())
        };
        let split = split(data, &self.format, last, &mut sink)?;
        if !matches!(split, Split::Record { .. }) {
            return Ok(split);
        }
        self.header = false;
        if self.format.header == CopyHeader::Match {
            self.match_header(&names)?;
        }
        Ok(split)
    }

    fn match_header(&self, names: &[String]) -> Result<()> {
        let fields = self.schema.fields();
        if names.len() != fields.len() {
            let (got, expected) = (names.len(), fields.len());
            return Err(SqlError::new(
                "22P04",
                format!("wrong number of fields in header line: got {got}, expected {expected}"),
            ));
        }
        for (i, (name, field)) in names.iter().zip(fields).enumerate() {
            if name != field.name() {
                return Err(SqlError::new(
                    "22P04",
                    format!(
                        "column name mismatch in header line field {}: got \"{name}\", expected \"{}\"",
                        i + 1,
                        field.name()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Makes a batch of what the builders hold.
    fn cut(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let columns = self.inputs.iter_mut().map(ColumnInput::finish).collect::<Result<_>>()?;
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

fn split(
    data: &[u8],
    format: &CopyFormat,
    last: bool,
    sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>,
) -> Result<Split> {
    match format.kind {
        CopyKind::Csv => csv::record(data, format, last, sink),
        CopyKind::Text => text::record(data, format, last, sink),
        CopyKind::Binary => binary::record(data, last, sink),
    }
}

/// Adds field `n` of a record.
fn add(
    input: &mut ColumnInput,
    n: usize,
    field: FieldText<'_>,
    format: &CopyFormat,
    zone: &Zone,
    name: &str,
) -> Result<()> {
    let raw = match field {
        FieldText::Marker { quoted } => {
            let forced = |list: &[bool]| list.get(n).copied().unwrap_or(false);
            let null = if quoted {
                forced(&format.force_null)
            } else {
                !forced(&format.force_not_null)
            };
            if null {
                input.null();
                return Ok(());
            }
            Cow::Borrowed(format.null.as_bytes())
        }
        FieldText::Raw(raw) => {
            return input.binary(raw).map_err(|e| e.context(format!(", column {name}")));
        }
        FieldText::Value(raw) => raw,
    };
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

#[cfg(test)]
mod tests;
