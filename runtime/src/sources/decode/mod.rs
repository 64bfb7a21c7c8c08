//! Records → rows: JSON and CSV, plain, keyed or as Debezium change events.
//!
//! ```text
//!   record ─ split (json, csv) ─▶ slots: for each column, where its text stands ─ columns ─▶ Arrow arrays
//!                │                                      │
//!                └── not of the form: failed ◀──────────┘  not of the type: failed, the row is taken out
//! ```
//!
//! A record is split once, by hand, into *slots* (a kind and a range of the record's bytes for each column), without copying
//! anything. Then each column is converted on its own, in one loop over all records, with the type decided outside the loop. A
//! record that fails at either stage becomes a [`Failure`] and leaves no row; all others of the call are decoded as if it had not
//! been there. So no batch is ever decoded twice to find the broken record in it.
//!
//! What is decoded depends on the records alone: not on how they are cut into calls, nor on the columns that a view reads (a
//! record that is broken in a column nobody reads fails all the same, or two views would see different rows).
//!
//! # Values
//!
//! A scalar becomes a value of the column's type through its text form, as PostgreSQL's `json_populate_record` does: `5`, `"5"` and,
//! in CSV, `5` are the integer 5; `1.0` is not an integer. Numerics never pass through a float. A number for a timestamp needs the
//! encode option `timestamp.unit`, because nothing in the record says what it counts. A column without a field, and a JSON null, are
//! NULL. An object or array goes into a text column, as it is written.
//!
//! Field names match columns exactly, or else without regard to case; fields that match nothing are passed over.
//!
//! Cost: about one pass over the bytes and one over the slots; 12 bytes of slots for each column and record of the call.

mod columns;
mod csv;
mod json;
mod keyed;
mod names;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use levee_planner::catalog::{Encoding, SourceDef, SourceFormat};
use levee_planner::connectors::encode::{CsvOptions, JsonOptions};

use self::columns::Column;
pub(crate) use self::columns::fit;
use self::keyed::Keys;
use self::names::Names;
use self::slots::Rows;
use crate::{Result, RuntimeError};

/// A record as a connector delivers it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The key's bytes, if it has a key.
    pub key: Option<&'a [u8]>,
    /// The value's bytes; `None`: a tombstone.
    pub value: Option<&'a [u8]>,
}

/// What a row does to the row of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is the key's row from here on.
    Put,
    /// The key has no row from here on. Only key columns are set.
    Delete,
}

/// Why a record gives no row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Index of the record in the call.
    pub record: u32,
    /// For people.
    pub reason: String,
}

/// The rows of a call.
#[derive(Debug)]
pub struct Decoded {
    /// All columns of the source that are not included from the record's envelope, in order. Where rows may be deletes, columns
    /// outside the key are nullable whatever the source declares, because a delete leaves them NULL.
    pub batch: RecordBatch,
    /// The record of each row; ascending.
    pub origin: Vec<u32>,
    /// What each row does; `None`: all are [`Change::Put`].
    pub changes: Option<Vec<Change>>,
    /// Records that could not be decoded; ascending.
    pub failed: Vec<Failure>,
}

/// Decodes the records of one source.
#[derive(Debug)]
pub struct Decoder {
    schema: SchemaRef,
    columns: Vec<Column>,
    names: Names,
    keys: Keys,
    form: Form,
    format: SourceFormat,
    /// Kept between calls for its allocation.
    rows: Rows,
}

#[derive(Debug)]
pub(super) enum Form {
    Json,
    Csv(CsvOptions),
}

impl Decoder {
    /// A decoder of the source's payload columns.
    ///
    /// # Errors
    /// The source's encoding has no records (Parquet, generated rows), a column's type cannot be decoded, or an option is malformed.
    pub fn new(def: &SourceDef) -> Result<Self> {
        let (form, json) = match def.encode {
            Encoding::Json => (Form::Json, JsonOptions::parse(&def.encode_options)?),
            Encoding::Csv => {
                let csv = CsvOptions::parse(&def.encode_options)?;
                let json = JsonOptions {
                    null_for_invalid: csv.null_for_invalid,
                    ..JsonOptions::default()
                };
                (Form::Csv(csv), json)
            }
            Encoding::Native | Encoding::Parquet => {
                return Err(RuntimeError::internal(format!(
                    "the records of a {:?} source cannot be decoded one by one",
                    def.encode
                )));
            }
        };
        let keyed = matches!(def.format, SourceFormat::Upsert | SourceFormat::Debezium);
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        // Position among the decoded columns, by column of the source.
        let mut decoded = vec![None; def.schema.fields().len()];
        for (i, field) in def.schema.fields().iter().enumerate() {
            if def.includes.contains_key(&i) {
                continue;
            }
            decoded[i] = Some(columns.len());
            let in_key = def.key.contains(&i);
            let column = Column::new(field, in_key, &json, def.format)?;
            columns.push(if def.encode == Encoding::Json {
                column
            } else {
                column.of_texts()
            });
            let nullable = field.is_nullable() || (keyed && !in_key);
            fields.push(Arc::new(field.as_ref().clone().with_nullable(nullable)));
        }
        let names = Names::new(fields.iter().map(|f: &Arc<Field>| f.name().as_str()));
        let rows = Rows::new(columns.len(), matches!(form, Form::Csv(_)).then(|| csv_marks(&form)));
        Ok(Self {
            schema: Arc::new(Schema::new(fields)),
            columns,
            names,
            keys: Keys::new(
                def.key
                    .iter()
                    .filter_map(|k| decoded.get(*k).copied().flatten())
                    .collect(),
            ),
            form,
            format: def.format,
            rows,
        })
    }

    /// Columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Decodes `records`.
    ///
    /// # Errors
    /// Too many bytes for one batch, or a kernel failed; never because of a record's content.
    pub fn decode(&mut self, records: &[Record<'_>]) -> Result<Decoded> {
        let mut rows = std::mem::take(&mut self.rows);
        let decoded = self.decode_into(records, &mut rows);
        rows.clear();
        self.rows = rows;
        decoded
    }

    fn decode_into(&mut self, records: &[Record<'_>], rows: &mut Rows) -> Result<Decoded> {
        let mut failed = Vec::new();
        let mut texts = Vec::with_capacity(records.len());
        for (i, record) in records.iter().enumerate() {
            let index = u32::try_from(i).map_err(|_| RuntimeError::internal("too many records in one call"))?;
            let mark = rows.mark();
            match self.split(record, rows) {
                Ok(Some((change, text))) => {
                    rows.close(index, change);
                    texts.push(text);
                }
                Ok(None) => rows.rewind(mark),
                Err(reason) => {
                    rows.rewind(mark);
                    failed.push(Failure { record: index, reason });
                }
            }
        }
        self.convert(rows, &texts, failed)
    }

    /// The slots of one record are appended to `rows`. `None`: the record is to be passed over.
    fn split<'a>(
        &mut self,
        record: &Record<'a>,
        rows: &mut Rows,
    ) -> Result<Option<(Change, slots::Texts<'a>)>, String> {
        match self.format {
            SourceFormat::Plain | SourceFormat::Native => {
                let value = record.value.ok_or("the record has no value")?;
                let value = utf8(value, "")?;
                rows.open();
                self.value(value, 0, rows)?;
                Ok(Some((Change::Put, slots::Texts { value, key: "" })))
            }
            SourceFormat::Upsert => keyed::upsert(self, record, rows).map(Some),
            SourceFormat::Debezium => keyed::debezium(self, record, rows),
        }
    }

    /// Splits a payload that stands in `text` from byte `from` on.
    fn value(&mut self, text: &str, from: usize, rows: &mut Rows) -> Result<(), String> {
        match &self.form {
            Form::Json => json::row(text, from, &mut self.names, rows),
            Form::Csv(options) => csv::row(text, options, &self.columns, rows),
        }
    }

    fn convert(&self, rows: &Rows, texts: &[slots::Texts<'_>], mut failed: Vec<Failure>) -> Result<Decoded> {
        let mut broken = slots::Broken::new(rows.len());
        let arrays = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| column.convert(&rows.column(i, texts), &mut broken))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let mut origin = rows.origin().to_vec();
        let mut changes = (self.format != SourceFormat::Plain).then(|| rows.changes().to_vec());
        let reasons = broken.into_reasons();
        let batch = if reasons.is_empty() {
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?
        } else {
            // Broken rows may hold NULL where there must be none, until they are filtered out.
            let loose: Vec<_> = self
                .schema
                .fields()
                .iter()
                .map(|f| f.as_ref().clone().with_nullable(true))
                .collect();
            let all = RecordBatch::try_new_with_options(Arc::new(Schema::new(loose)), arrays, &options)?;
            let mut keep = vec![true; rows.len()];
            for (row, reason) in reasons {
                keep[row] = false;
                failed.push(Failure {
                    record: origin[row],
                    reason,
                });
            }
            failed.sort_by_key(|f| f.record);
            let kept = |i: usize| keep[i];
            origin = (0..rows.len()).filter(|i| kept(*i)).map(|i| origin[i]).collect();
            changes = changes.map(|c| (0..rows.len()).filter(|i| kept(*i)).map(|i| c[i]).collect());
            let kept = filter_record_batch(&all, &BooleanArray::from(keep))?;
            let options = RecordBatchOptions::new().with_row_count(Some(origin.len()));
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), kept.columns().to_vec(), &options)?
        };
        Ok(Decoded {
            batch,
            origin,
            changes,
            failed,
        })
    }
}

fn csv_marks(form: &Form) -> slots::CsvMarks {
    match form {
        Form::Csv(o) => slots::CsvMarks {
            quote: o.quote,
            escape: o.escape,
        },
        Form::Json => slots::CsvMarks {
            quote: b'"',
            escape: b'"',
        },
    }
}

/// The bytes as text; `what` names them in the reason.
fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    if bytes.len() > u32::MAX as usize {
        return Err(format!("{what}the record is longer than 4 GiB"));
    }
    std::str::from_utf8(bytes).map_err(|e| format!("{what}invalid UTF-8 at byte {}", e.valid_up_to()))
}
