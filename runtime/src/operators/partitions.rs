//! Partitions of rows in an order, as top-N and windows keep them.
//!
//! An entry's bytes are its encoded sort columns, then its encoded row, then the size of the former; they sort as PostgreSQL sorts (C order
//! of text, NaN last, intervals by length).
//!
//! State: table 0, partition and entry → multiplicity; table 1, partition → number of rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, RowParser, Rows, SortField};
use levee_planner::plan::SortKey;

use super::StateWriter;
use super::codec::{self, Reader};
use super::cold::{Cold, ColdKeys};
use super::columns::{sortable, sortable_type};
use super::keys::KeyIndex;
use crate::{Result, RuntimeError};

/// Encoded sort columns, encoded row, size of the former.
pub type Entry = Arc<[u8]>;

/// The type of a column of an operator's input.
///
/// # Errors
/// There is no such column.
pub fn column_type(input: &SchemaRef, column: usize) -> Result<DataType> {
    let field = input.fields().get(column);
    field
        .map(|f| f.data_type().clone())
        .ok_or_else(|| RuntimeError::internal(format!("an operator refers to column {column} of its input")))
}

/// Encodes rows as entries, and decodes them.
pub struct EntryCodec {
    order_by: Vec<SortKey>,
    order: Option<(RowConverter, RowParser)>,
    rows: RowConverter,
    parser: RowParser,
    width: usize,
}

impl EntryCodec {
    /// For rows of `input` in an order; those that it leaves equal are in the order of the rows, or the other way around.
    ///
    /// # Errors
    /// A type cannot be ordered.
    pub fn new(order_by: &[SortKey], reversed: bool, input: &SchemaRef) -> Result<Self> {
        let order = order_by
            .iter()
            .map(|key| {
                let options = SortOptions::new(key.desc, key.nulls_first);
                let data_type = sortable_type(&column_type(input, key.column)?);
                Ok(SortField::new_with_options(data_type, options))
            })
            .collect::<Result<Vec<_>>>()?;
        let order = (!order.is_empty()).then(|| RowConverter::new(order)).transpose()?;
        let options = SortOptions::new(reversed, !reversed);
        let fields = input.fields().iter();
        let fields = fields.map(|f| SortField::new_with_options(f.data_type().clone(), options));
        let rows = RowConverter::new(fields.collect())?;
        Ok(Self {
            order_by: order_by.to_vec(),
            order: order.map(|order| {
                let parser = order.parser();
                (order, parser)
            }),
            parser: rows.parser(),
            rows,
            width: input.fields().len(),
        })
    }

    /// The entries of a batch.
    ///
    /// # Errors
    /// Columns are of other types.
    pub fn encode(&self, batch: &RecordBatch) -> Result<EncodedEntries> {
        let keys = match &self.order {
            None => None,
            Some((order, _)) => {
                let columns: Vec<ArrayRef> = self.order_by.iter().map(|k| sortable(batch.column(k.column))).collect();
                Some(order.convert_columns(&columns)?)
            }
        };
        // Rows without columns, as `count(*)` over a LIMIT asks for, are all alike and encode to nothing.
        let rows = (self.width > 0)
            .then(|| self.rows.convert_columns(batch.columns()))
            .transpose()?;
        Ok(EncodedEntries { keys, rows })
    }

    /// The rows of entries, as columns.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn decode<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        if self.width == 0 {
            return Ok(Vec::new());
        }
        let rows = entries
            .map(|e| row_part(e).map(|bytes| self.parser.parse(bytes)))
            .collect::<Result<Vec<_>>>()?;
        Ok(self.rows.convert_rows(rows)?)
    }

    /// How sort columns are encoded, if there are any.
    pub fn order(&self) -> Option<&RowConverter> {
        self.order.as_ref().map(|(order, _)| order)
    }

    /// The only sort column, with its value in the sort columns' part of an entry; `None`: there are none, or several.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn sort_value(&self, key: &[u8]) -> Result<Option<(&RowConverter, &SortKey, ArrayRef)>> {
        let (Some((order, parser)), [sort]) = (&self.order, self.order_by.as_slice()) else {
            return Ok(None);
        };
        let columns = order.convert_rows([parser.parse(key)])?;
        Ok(columns.into_iter().next().map(|value| (order, sort, value)))
    }
}

/// Entries of a batch.
pub struct EncodedEntries {
    keys: Option<Rows>,
    rows: Option<Rows>,
}

impl EncodedEntries {
    /// Writes the entry of row `i`.
    pub fn write(&self, i: usize, out: &mut Vec<u8>) {
        let key = self.keys.as_ref().map_or(&[][..], |k| k.row(i).data());
        out.clear();
        out.extend_from_slice(key);
        out.extend_from_slice(self.rows.as_ref().map_or(&[][..], |r| r.row(i).data()));
        out.extend_from_slice(&(key.len() as u32).to_be_bytes());
    }
}

/// The sort columns' part of an entry.
///
/// # Errors
/// Damaged bytes.
pub fn key_part(entry: &[u8]) -> Result<&[u8]> {
    let (rest, size) = entry.split_last_chunk::<4>().ok_or_else(damaged)?;
    rest.get(..u32::from_be_bytes(*size) as usize).ok_or_else(damaged)
}

/// The row's part of an entry.
///
/// # Errors
/// Damaged bytes.
pub fn row_part(entry: &[u8]) -> Result<&[u8]> {
    let (rest, size) = entry.split_last_chunk::<4>().ok_or_else(damaged)?;
    rest.get(u32::from_be_bytes(*size) as usize..).ok_or_else(damaged)
}

fn damaged() -> RuntimeError {
    RuntimeError::internal("a stored entry of a partition is damaged")
}

/// The partitions that have just been given a slot and are in the tier, with their numbers of rows.
///
/// # Errors
/// The tier cannot be read.
pub fn look_up_made(index: &mut KeyIndex, cold: &Cold) -> Result<Vec<(u32, i64)>> {
    let made = index.take_made();
    let (mut keys, mut key) = (ColdKeys::default(), Vec::new());
    for &slot in &made {
        key.clear();
        index.encode(slot, &mut key);
        keys.push(cold, 1, index.vnode(slot), &key);
    }
    let mut found = Vec::new();
    cold.get_many(&keys, &mut |i, value| {
        found.push((made[i], Reader::open(value)?.0.i64()?));
        Ok(())
    })?;
    Ok(found)
}

/// Writes counts that are stored by a key of the index, or by one and what follows it.
pub struct CountWriter<'a> {
    index: &'a KeyIndex,
    prefix: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'a> CountWriter<'a> {
    /// For keys of `index`.
    pub fn new(index: &'a KeyIndex) -> Self {
        Self {
            index,
            prefix: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// The count of what follows a slot's key; `None`: it is gone.
    pub fn put_below(&mut self, out: &mut StateWriter<'_>, table: u8, slot: u32, below: &[u8], count: Option<i64>) {
        self.prefix.clear();
        self.index.encode(slot, &mut self.prefix);
        codec::join_key(&mut self.key, &self.prefix, below);
        self.write(out, table, slot, count);
    }

    /// The count of a slot's key; `None`: it is gone.
    pub fn put(&mut self, out: &mut StateWriter<'_>, table: u8, slot: u32, count: Option<i64>) {
        self.key.clear();
        self.index.encode(slot, &mut self.key);
        self.write(out, table, slot, count);
    }

    fn write(&mut self, out: &mut StateWriter<'_>, table: u8, slot: u32, count: Option<i64>) {
        codec::begin(&mut self.value, self.index.hash(slot));
        codec::put_i64(&mut self.value, count.unwrap_or(0));
        let value = count.map(|_| self.value.as_slice());
        (out.put)(table, self.index.vnode(slot), &self.key, value);
    }
}
