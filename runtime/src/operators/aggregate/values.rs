//! Argument values in the form in which multisets order them.
//!
//! | SQL type | key |
//! | --- | --- |
//! | integers, dates, timestamps | `i64` |
//! | floats | `i64` that orders as PostgreSQL does: NaN last, one zero |
//! | numeric | `i128` or `i256` |
//! | text, bytea | the bytes (C order) |
//! | others (intervals by their length, booleans) | Arrow's row encoding |

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, BinaryBuilder, Decimal128Array, Decimal256Array, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::*;
use arrow::row::{RowConverter, RowParser, Rows, SortField};

use super::super::columns::{as_i64, canonical_f64, coerce, from_i64, is_native, sortable, sortable_type};
use super::super::ordered::Key;
use crate::{Result, RuntimeError};

/// A key type with its way from and to columns.
pub trait ValueKey: Key + Sized {
    /// Encodings differ in length.
    const VARIABLE: bool = false;
    /// What the way needs to know of the column's type.
    type Codec: Send;
    /// A column read.
    type Column<'a>;

    /// Prepares for columns of a type.
    ///
    /// # Errors
    /// The type cannot be ordered.
    fn codec(data_type: &DataType) -> Result<Self::Codec>;

    /// Reads a column.
    ///
    /// # Errors
    /// It has another type.
    fn read<'a>(codec: &Self::Codec, array: &'a ArrayRef) -> Result<Self::Column<'a>>;

    /// The value of a row that is not NULL.
    fn at<'c>(column: &'c Self::Column<'_>, row: usize) -> &'c Self::Ref;

    /// A column of values.
    ///
    /// # Errors
    /// Restored values do not fit the type.
    fn build(codec: &Self::Codec, values: Vec<Option<&Self>>) -> Result<ArrayRef>;

    /// Appends the value's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads [`Self::encode`]'s bytes.
    ///
    /// # Errors
    /// Damaged bytes.
    fn decode(bytes: &[u8]) -> Result<Self>;

    /// Bytes that the value holds beside itself.
    fn heap_bytes() -> usize {
        0
    }
}

fn damaged() -> RuntimeError {
    RuntimeError::internal("a stored aggregate value is damaged")
}

/// Orders as `f64::total_cmp` on canonical floats; its own inverse on bits.
#[inline]
fn float_order(bits: i64) -> i64 {
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

impl Key for i64 {
    type Ref = Self;
    fn own(value: &Self) -> Self {
        *value
    }
}

impl ValueKey for i64 {
    type Codec = DataType;
    type Column<'a> = Cow<'a, [i64]>;

    fn codec(data_type: &DataType) -> Result<DataType> {
        Ok(data_type.clone())
    }

    fn read<'a>(codec: &DataType, array: &'a ArrayRef) -> Result<Cow<'a, [i64]>> {
        let order = |v: f64| float_order(canonical_f64(v).to_bits() as i64);
        Ok(match codec {
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>().values();
                Cow::Owned(values.iter().map(|&v| order(v)).collect())
            }
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>().values();
                Cow::Owned(values.iter().map(|&v| order(f64::from(v))).collect())
            }
            _ => as_i64(array)?,
        })
    }

    fn at<'c>(column: &'c Cow<'_, [i64]>, row: usize) -> &'c i64 {
        &column[row]
    }

    fn build(codec: &DataType, values: Vec<Option<&Self>>) -> Result<ArrayRef> {
        if matches!(codec, DataType::Float32 | DataType::Float64) {
            let floats: Float64Array = values
                .into_iter()
                .map(|v| v.map(|&v| f64::from_bits(float_order(v) as u64)))
                .collect();
            return coerce(Arc::new(floats), codec);
        }
        let nulls = values.iter().map(Option::is_some).collect();
        let values = values.into_iter().map(|v| v.copied().unwrap_or(0)).collect();
        from_i64(values, Some(nulls), codec)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(*self as u64 ^ (1 << 63)).to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.try_into().map_err(|_| damaged())?;
        Ok((u64::from_be_bytes(bytes) ^ (1 << 63)) as i64)
    }
}

impl Key for i128 {
    type Ref = Self;
    fn own(value: &Self) -> Self {
        *value
    }
}

impl ValueKey for i128 {
    type Codec = DataType;
    type Column<'a> = &'a [i128];

    fn codec(data_type: &DataType) -> Result<DataType> {
        Ok(data_type.clone())
    }

    fn read<'a>(_codec: &DataType, array: &'a ArrayRef) -> Result<&'a [i128]> {
        Ok(array.as_primitive::<Decimal128Type>().values())
    }

    fn at<'c>(column: &'c &[i128], row: usize) -> &'c i128 {
        &column[row]
    }

    fn build(codec: &DataType, values: Vec<Option<&Self>>) -> Result<ArrayRef> {
        let values: Decimal128Array = values.into_iter().map(Option::<&i128>::copied).collect();
        Ok(Arc::new(values.with_data_type(codec.clone())))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(*self as u128 ^ (1 << 127)).to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.try_into().map_err(|_| damaged())?;
        Ok((u128::from_be_bytes(bytes) ^ (1 << 127)) as Self)
    }
}

impl Key for i256 {
    type Ref = Self;
    fn own(value: &Self) -> Self {
        *value
    }
}

impl ValueKey for i256 {
    type Codec = DataType;
    type Column<'a> = &'a [i256];

    fn codec(data_type: &DataType) -> Result<DataType> {
        Ok(data_type.clone())
    }

    fn read<'a>(_codec: &DataType, array: &'a ArrayRef) -> Result<&'a [i256]> {
        Ok(array.as_primitive::<Decimal256Type>().values())
    }

    fn at<'c>(column: &'c &[i256], row: usize) -> &'c i256 {
        &column[row]
    }

    fn build(codec: &DataType, values: Vec<Option<&Self>>) -> Result<ArrayRef> {
        let values: Decimal256Array = values.into_iter().map(Option::<&i256>::copied).collect();
        Ok(Arc::new(values.with_data_type(codec.clone())))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = self.to_be_bytes();
        bytes[0] ^= 0x80;
        out.extend_from_slice(&bytes);
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut bytes: [u8; 32] = bytes.try_into().map_err(|_| damaged())?;
        bytes[0] ^= 0x80;
        Ok(Self::from_be_bytes(bytes))
    }
}

impl Key for Arc<[u8]> {
    type Ref = [u8];
    fn own(value: &[u8]) -> Self {
        Self::from(value)
    }
}

/// How a type's values become bytes.
pub enum BytesCodec {
    /// Text and bytea: as they are.
    Raw(DataType),
    /// Row encoding of the sort form, then of the value itself.
    Encoded(RowConverter, RowParser),
}

/// Values as bytes.
pub enum BytesColumn {
    /// As they are.
    Raw(BinaryArray),
    /// Encoded.
    Encoded(Rows),
}

impl ValueKey for Arc<[u8]> {
    const VARIABLE: bool = true;
    type Codec = BytesCodec;
    type Column<'a> = BytesColumn;

    fn codec(data_type: &DataType) -> Result<BytesCodec> {
        if is_bytes(data_type) {
            return Ok(BytesCodec::Raw(data_type.clone()));
        }
        let converter = RowConverter::new(vec![
            SortField::new(sortable_type(data_type)),
            SortField::new(data_type.clone()),
        ])?;
        let parser = converter.parser();
        Ok(BytesCodec::Encoded(converter, parser))
    }

    fn read(codec: &BytesCodec, array: &ArrayRef) -> Result<BytesColumn> {
        Ok(match codec {
            BytesCodec::Raw(_) => BytesColumn::Raw(cast(array, &DataType::Binary)?.as_binary::<i32>().clone()),
            BytesCodec::Encoded(converter, _) => {
                BytesColumn::Encoded(converter.convert_columns(&[sortable(array), Arc::clone(array)])?)
            }
        })
    }

    fn at(column: &BytesColumn, row: usize) -> &[u8] {
        match column {
            BytesColumn::Raw(array) => array.value(row),
            BytesColumn::Encoded(rows) => rows.row(row).data(),
        }
    }

    fn build(codec: &BytesCodec, values: Vec<Option<&Self>>) -> Result<ArrayRef> {
        match codec {
            BytesCodec::Raw(data_type) => {
                let size = values.iter().flatten().map(|v| v.len()).sum();
                let mut builder = BinaryBuilder::with_capacity(values.len(), size);
                values.into_iter().for_each(|v| builder.append_option(v));
                coerce(Arc::new(builder.finish()), data_type)
            }
            BytesCodec::Encoded(converter, parser) => {
                let present: Vec<u32> = (0..)
                    .zip(&values)
                    .filter(|(_, v)| v.is_some())
                    .map(|(i, _)| i)
                    .collect();
                let rows = values.iter().flatten().map(|v| parser.parse(v));
                let decoded = converter.convert_rows(rows)?;
                let mut at = vec![None; values.len()];
                for (from, to) in (0_u32..).zip(present) {
                    at[to as usize] = Some(from);
                }
                Ok(arrow::compute::take(
                    &decoded[1],
                    &arrow::array::UInt32Array::from(at),
                    None,
                )?)
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self::from(bytes))
    }

    fn heap_bytes() -> usize {
        48
    }
}

/// Text and bytea in any of Arrow's layouts.
fn is_bytes(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    )
}

/// Calls `$make::<K>` with the key type for `$data_type`.
macro_rules! with_key {
    ($data_type:expr, $make:ident ( $($arg:expr),* )) => {
        match $data_type {
            t if $crate::operators::aggregate::values::is_i64(t) => $make::<i64>($($arg),*),
            arrow::datatypes::DataType::Decimal128(..) => $make::<i128>($($arg),*),
            arrow::datatypes::DataType::Decimal256(..) => $make::<arrow::datatypes::i256>($($arg),*),
            _ => $make::<std::sync::Arc<[u8]>>($($arg),*),
        }
    };
}
pub(super) use with_key;

/// Whether the key is an `i64`.
pub fn is_i64(data_type: &DataType) -> bool {
    is_native(data_type) || matches!(data_type, DataType::Float32 | DataType::Float64)
}
