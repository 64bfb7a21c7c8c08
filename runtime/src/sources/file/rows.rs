//! Parquet: offsets are row numbers, a range is read from the row groups that it touches, and only the columns asked for, besides those that can
//! fail.
//!
//! A file's columns are found by name, exactly or else without regard to case. One that is missing is NULL. Values become the column's
//! type where that loses nothing; a row with a value that does not fit becomes a dead letter. A file whose columns cannot be used at
//! all stops the source: a million rows are not dropped for a misnamed column.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringBuilder, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{CastOptions, cast_with_options, filter_record_batch};
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use bytes::Bytes;
use levee_planner::catalog::SourceDef;
use levee_planner::sql::{round_times, types};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::reader::{ChunkReader, Length};

use super::Shared;
use super::pull::Pull;
use super::scan::Position;
use super::store::{Content, Listed, Reading, Trouble};
use super::text::{Output, assemble, outputs};
use crate::sources::decode::fit;
use crate::sources::{DeadLetter, Share, SplitRange, projected};
use crate::{Delta, Result, RuntimeError};

const BATCH_ROWS: usize = 8192;

/// Checks that the columns' types can be read from Parquet.
///
/// # Errors
/// 0A000 for a type that cannot.
pub(super) fn check_types(def: &SourceDef) -> Result<()> {
    for (i, field) in def.schema.fields().iter().enumerate() {
        let own = matches!(field.data_type(), DataType::Interval(_) | &types::JSON | &types::JSONB);
        if own && !def.includes.contains_key(&i) {
            return Err(RuntimeError::User {
                code: "0A000",
                message: format!(
                    "column \"{}\": values of type {} are not read from Parquet",
                    field.name(),
                    types::base_name(field.data_type())
                ),
                hint: Some("Declare the column with the type that the file has.".to_owned()),
            });
        }
    }
    Ok(())
}

/// A file with its footer read.
pub(super) struct ParquetFile {
    content: Arc<dyn Content>,
    size: u64,
    metadata: ArrowReaderMetadata,
    /// For each column that is not included: the file's, if it has it.
    columns: Vec<Option<usize>>,
}

impl ParquetFile {
    pub(super) fn open(content: Arc<dyn Content>, file: &Listed, def: &SourceDef) -> Reading<Self> {
        let size = file.identity.size;
        let bytes = ContentBytes {
            content: Arc::clone(&content),
            size,
        };
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            // Where there is one, rows before a range are not even unpacked.
            .with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(&bytes, options).map_err(|e| parquet_trouble(&file.name, e))?;
        let columns = match_columns(def, metadata.schema(), &file.name)?;
        Ok(Self {
            content,
            size,
            metadata,
            columns,
        })
    }

    pub(super) fn rows(&self) -> u64 {
        self.metadata.metadata().file_metadata().num_rows().unsigned_abs()
    }

    /// Places where the file can be cut behind row `from`: ends of row groups, and between, so that no piece has many more than `rows`.
    pub(super) fn positions(&self, from: u64, rows: u64) -> VecDeque<Position> {
        let mut positions = VecDeque::new();
        let mut start = 0;
        for group in self.metadata.metadata().row_groups() {
            let n = group.num_rows().unsigned_abs();
            let bytes = group.total_byte_size().unsigned_abs();
            let pieces = n.div_ceil(rows).max(1);
            for piece in 1..=pieces {
                let to = start + n * piece / pieces;
                let at = from.max(start + n * (piece - 1) / pieces);
                if to > at {
                    positions.push_back(Position {
                        to,
                        records: to - at,
                        bytes: bytes * (to - at) / n.max(1),
                    });
                }
            }
            start += n;
        }
        positions
    }

    /// Reads rows `from..to` of the columns `wanted` (by number among those that are not included).
    fn read(&self, from: u64, to: u64, wanted: &[usize]) -> Result<ParquetRecordBatchReader, ParquetError> {
        let (mut groups, mut start, mut skip) = (Vec::new(), 0, 0);
        for (i, group) in self.metadata.metadata().row_groups().iter().enumerate() {
            let end = start + group.num_rows().unsigned_abs();
            if end > from && start < to {
                if groups.is_empty() {
                    skip = from - start;
                }
                groups.push(i);
            }
            start = end;
        }
        let roots = wanted.iter().filter_map(|c| self.columns.get(*c).copied().flatten());
        let bytes = ContentBytes {
            content: Arc::clone(&self.content),
            size: self.size,
        };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, self.metadata.clone());
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        builder
            .with_projection(mask)
            .with_row_groups(groups)
            .with_offset(usize::try_from(skip).unwrap_or(usize::MAX))
            .with_limit(usize::try_from(to - from).unwrap_or(usize::MAX))
            .with_batch_size(BATCH_ROWS)
            .build()
    }
}

/// Finds each column in the file.
fn match_columns(def: &SourceDef, file: &SchemaRef, name: &str) -> Reading<Vec<Option<usize>>> {
    let mut columns = Vec::new();
    for (i, field) in def.schema.fields().iter().enumerate() {
        if def.includes.contains_key(&i) {
            continue;
        }
        let exact = file.fields().iter().position(|f| f.name() == field.name());
        let folded = || {
            let lower = field.name().to_lowercase();
            let mut alike = file
                .fields()
                .iter()
                .enumerate()
                .filter(|(_, f)| f.name().to_lowercase() == lower);
            let first = alike.next().map(|(at, _)| at);
            first.filter(|_| alike.next().is_none())
        };
        let found = exact.or_else(folded);
        let refuse = |what: String| {
            Trouble::Permanent(RuntimeError::User {
                code: "42804",
                message: format!("file \"{name}\": {what}"),
                hint: Some(
                    "Declare the columns as the files have them, or leave the file out with match_pattern.".to_owned(),
                ),
            })
        };
        match found {
            None if !field.is_nullable() => {
                return Err(refuse(format!(
                    "there is no column \"{}\", which is NOT NULL",
                    field.name()
                )));
            }
            Some(at) if !can_become(file.field(at).data_type(), field.data_type()) => {
                return Err(refuse(format!(
                    "column \"{}\" is of type {} and cannot become {}",
                    field.name(),
                    file.field(at).data_type(),
                    types::pg_type_name(field)
                )));
            }
            _ => columns.push(found),
        }
    }
    Ok(columns)
}

/// Whether values of a file's type become values of a column's.
fn can_become(from: &DataType, to: &DataType) -> bool {
    use DataType as T;
    let from = match from {
        T::Dictionary(_, value) => value.as_ref(),
        other => other,
    };
    let integer = from.is_integer();
    let decimal = matches!(
        from,
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..)
    );
    match to {
        T::Int16 | T::Int32 | T::Int64 => integer,
        T::Decimal128(..) | T::Decimal256(..) => integer || decimal,
        T::Float64 => matches!(from, T::Float16 | T::Float32 | T::Float64),
        T::Float32 => matches!(from, T::Float16 | T::Float32),
        T::Utf8 => matches!(from, T::Utf8 | T::LargeUtf8 | T::Utf8View),
        T::Binary => matches!(from, T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_)),
        T::Date32 => matches!(from, T::Date32 | T::Date64),
        T::Timestamp(TimeUnit::Microsecond, _) => matches!(from, T::Timestamp(..)),
        T::Time64(TimeUnit::Microsecond) => matches!(from, T::Time32(_) | T::Time64(_)),
        other => from == other,
    }
}

/// A value of the column can turn out not to fit.
fn can_fail(from: &Field, to: &Field) -> bool {
    if (from.is_nullable() && !to.is_nullable())
        || types::varchar_length(to).is_some()
        || types::time_precision(to).is_some()
    {
        return true;
    }
    let widens = |from: &DataType, to: &DataType| match (from.primitive_width(), to.primitive_width()) {
        (Some(a), Some(b)) => from.is_signed_integer() && to.is_signed_integer() && a <= b,
        _ => false,
    };
    let (from, to) = (from.data_type(), to.data_type());
    match to {
        DataType::Int16 | DataType::Int32 | DataType::Int64 => !widens(from, to),
        DataType::Decimal128(..) | DataType::Decimal256(..) | DataType::Timestamp(..) => from != to,
        _ => false,
    }
}

fn parquet_trouble(name: &str, error: ParquetError) -> Trouble {
    // What the content itself said is inside.
    if let ParquetError::External(inner) = error {
        return match inner.downcast::<ContentError>() {
            Ok(content) => content.0,
            Err(other) => damaged(name, &other.to_string()),
        };
    }
    damaged(name, &error.to_string())
}

fn damaged(name: &str, error: &str) -> Trouble {
    Trouble::Permanent(RuntimeError::User {
        code: "22023",
        message: format!("file \"{name}\" is not readable Parquet: {error}"),
        hint: Some("Leave it out with match_pattern, and create the source again.".to_owned()),
    })
}

/// A [`Trouble`] on its way through the Parquet reader.
struct ContentError(Trouble);

impl std::fmt::Debug for ContentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Display for ContentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the file's bytes cannot be read")
    }
}

impl std::error::Error for ContentError {}

struct ContentBytes {
    content: Arc<dyn Content>,
    size: u64,
}

impl Length for ContentBytes {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for ContentBytes {
    type T = ContentRead;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(ContentRead {
            content: Arc::clone(&self.content),
            at: start,
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let read = self.content.read_at(start + filled as u64, &mut buffer[filled..]);
            match read.map_err(|t| ParquetError::External(Box::new(ContentError(t))))? {
                0 => return Err(ParquetError::EOF(format!("{length} bytes at {start} are not there"))),
                n => filled += n,
            }
        }
        Ok(Bytes::from(buffer))
    }
}

struct ContentRead {
    content: Arc<dyn Content>,
    at: u64,
}

impl Read for ContentRead {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.content.read_at(self.at, buffer);
        let n = read.map_err(|t| std::io::Error::other(ContentError(t)))?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Reads a share of a range of a Parquet file.
pub(super) struct RowReader {
    shared: Arc<Shared>,
    file: Listed,
    split: u32,
    /// Next row of the share, and one past its last.
    at: u64,
    to: u64,
    outputs: Vec<Output>,
    schema: SchemaRef,
    /// Opened by the first pull, because opening may wait.
    open: Option<OpenRows>,
}

struct OpenRows {
    reader: ParquetRecordBatchReader,
    /// Columns that are read, by number among those that are not included, with what they are to become.
    wanted: Vec<(usize, Field, Option<String>)>,
}

impl RowReader {
    pub(super) fn new(
        shared: &Arc<Shared>,
        file: Listed,
        range: &SplitRange,
        share: Share,
        projection: &[usize],
    ) -> Result<Self> {
        let (at, to) = share.part(range.from, range.to);
        Ok(Self {
            file,
            split: range.split,
            at,
            to,
            outputs: outputs(&shared.def, range, projection)?,
            schema: projected(&shared.def.schema, projection)?,
            shared: Arc::clone(shared),
            open: None,
        })
    }

    fn open(&mut self) -> Result<OpenRows> {
        let parquet = self
            .shared
            .parquet(self.split, &self.file)
            .map_err(Trouble::into_error)?;
        let def = &self.shared.def;
        let payload = def
            .schema
            .fields()
            .iter()
            .enumerate()
            .filter(|(i, _)| !def.includes.contains_key(i));
        let mut wanted = Vec::new();
        for (number, (_, field)) in payload.enumerate() {
            let from = parquet
                .columns
                .get(number)
                .copied()
                .flatten()
                .map(|at| parquet.metadata.schema().field(at));
            let asked = self
                .outputs
                .iter()
                .any(|o| matches!(o, Output::Payload(c) if *c == number));
            if asked || from.is_some_and(|from| can_fail(from, field)) {
                wanted.push((number, field.as_ref().clone(), from.map(|f| f.name().clone())));
            }
        }
        let numbers: Vec<usize> = wanted.iter().map(|(number, ..)| *number).collect();
        let reader = parquet.read(self.at, self.to, &numbers);
        Ok(OpenRows {
            reader: reader.map_err(|e| parquet_trouble(&self.file.name, e).into_error())?,
            wanted,
        })
    }
}

impl Pull for RowReader {
    fn pull(&mut self) -> Result<Option<Delta>> {
        while self.at < self.to {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.open()?,
            };
            let batch = match open.reader.next() {
                Some(batch) => batch.map_err(|e| self.unreadable(e))?,
                None => return Err(damaged(&self.file.name, "it has fewer rows than its footer says").into_error()),
            };
            fail::fail_point!("source::read");
            let rows = self.convert(&batch, &open.wanted)?;
            self.at += batch.num_rows() as u64;
            self.open = Some(open);
            if rows.num_rows() > 0 {
                return Ok(Some(Delta::inserts(rows)));
            }
        }
        Ok(None)
    }
}

impl RowReader {
    /// The error of a failed read. Arrow has turned it into text; whether the file has changed is asked anew.
    fn unreadable(&self, error: arrow::error::ArrowError) -> RuntimeError {
        let content = self.shared.content(self.split, &self.file);
        if let Err(trouble) = content.and_then(|c| c.read_at(0, &mut [0; 1])) {
            return trouble.into_error();
        }
        damaged(&self.file.name, &error.to_string()).into_error()
    }

    fn convert(&self, batch: &RecordBatch, wanted: &[(usize, Field, Option<String>)]) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let mut columns: Vec<(usize, ArrayRef)> = Vec::with_capacity(wanted.len());
        let mut broken: Vec<(usize, String)> = Vec::new();
        for (number, field, name) in wanted {
            let array = match name.as_ref().and_then(|n| batch.column_by_name(n)) {
                Some(array) => become_type(array, field, &mut broken)?,
                None => new_null_array(field.data_type(), rows),
            };
            columns.push((*number, array));
        }
        let first = self.at;
        let offsets = || {
            (0..rows as u64)
                .map(|i| (first + i).cast_signed())
                .collect::<Int64Array>()
        };
        let payload = |column: usize| {
            let found = columns.iter().find(|(number, _)| *number == column);
            found
                .map(|(_, array)| Arc::clone(array))
                .ok_or_else(|| RuntimeError::internal("a column was not read"))
        };
        if broken.is_empty() {
            return assemble(&self.schema, &self.outputs, &self.file.name, &offsets, &payload, rows);
        }
        let loose: Vec<Field> = self
            .schema
            .fields()
            .iter()
            .map(|f| f.as_ref().clone().with_nullable(true))
            .collect();
        let loose = Arc::new(arrow::datatypes::Schema::new(loose));
        let all = assemble(&loose, &self.outputs, &self.file.name, &offsets, &payload, rows)?;
        broken.sort_by_key(|(row, _)| *row);
        broken.dedup_by_key(|(row, _)| *row);
        let mut keep = vec![true; rows];
        broken.iter().for_each(|(row, _)| keep[*row] = false);
        let letters = broken.into_iter().map(|(row, reason)| DeadLetter {
            split: self.split,
            offset: first + row as u64,
            reason,
            key: None,
            value: None,
            timestamp_us: None,
            headers: Vec::new(),
        });
        (self.shared.context.dead_letters)(letters.collect());
        let kept = filter_record_batch(&all, &BooleanArray::from(keep))?;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(kept.num_rows()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            kept.columns().to_vec(),
            &options,
        )?)
    }
}

/// Converts a column; rows whose value does not fit are noted as broken.
fn become_type(array: &ArrayRef, field: &Field, broken: &mut Vec<(usize, String)>) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: true,
        ..CastOptions::default()
    };
    let cast = if array.data_type() == field.data_type() {
        Arc::clone(array)
    } else {
        cast_with_options(array, field.data_type(), &options)?
    };
    if cast.null_count() > array.logical_null_count() {
        let valid = |a: &ArrayRef| {
            a.logical_nulls()
                .map_or(BooleanBuffer::new_set(a.len()), |n| n.inner().clone())
        };
        let lost = &valid(array) & &!&valid(&cast);
        let type_name = types::base_name(field.data_type());
        broken.extend(lost.set_indices().map(|row| {
            (
                row,
                format!("column \"{}\": value out of range for type {type_name}", field.name()),
            )
        }));
    }
    if !field.is_nullable()
        && let Some(nulls) = array.logical_nulls()
    {
        let absent = !nulls.inner();
        broken.extend(absent.set_indices().map(|row| {
            (
                row,
                format!("null value in column \"{}\" violates not-null constraint", field.name()),
            )
        }));
    }
    if let (Some(max), Some(texts)) = (types::varchar_length(field), cast.as_string_opt::<i32>()) {
        let mut fitted = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
        for (row, text) in texts.iter().enumerate() {
            match text.map(|t| fit(t, max, types::is_character(field))).transpose() {
                Ok(text) => fitted.append_option(text),
                Err(reason) => {
                    fitted.append_null();
                    broken.push((row, format!("column \"{}\": {reason}", field.name())));
                }
            }
        }
        return Ok(Arc::new(fitted.finish()));
    }
    if let Some(digits) = types::time_precision(field) {
        return round_times(&cast, digits).map_err(|e| RuntimeError::internal(e.message));
    }
    Ok(cast)
}
