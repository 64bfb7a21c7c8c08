//! Column helpers that the operators share: native views of columns, and values in the form in which they compare.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float32Array, Float64Array, Int64Array, ListArray, PrimitiveArray,
    new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::*;

use crate::{Result, RuntimeError};

/// The same schema with every column nullable: failing expressions and outer joins put NULL into any column.
pub fn nullable(schema: &SchemaRef) -> SchemaRef {
    if schema.fields().iter().all(|f| f.is_nullable()) {
        return Arc::clone(schema);
    }
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|f| f.as_ref().clone().with_nullable(true))
        .collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Whether [`as_i64`] takes the type: its order and equality are those of an `i64`.
pub fn is_native(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::Date32
            | DataType::Date64
            | DataType::Timestamp(..)
            | DataType::Time32(_)
            | DataType::Time64(_)
    )
}

/// The values of a column for which [`is_native`] holds. Values under a NULL are arbitrary.
///
/// # Errors
/// Another type.
pub fn as_i64(array: &ArrayRef) -> Result<Cow<'_, [i64]>> {
    macro_rules! narrow {
        ($t:ty) => {
            Cow::Owned(
                array
                    .as_primitive::<$t>()
                    .values()
                    .iter()
                    .map(|&v| i64::from(v))
                    .collect(),
            )
        };
    }
    macro_rules! wide {
        ($t:ty) => {
            Cow::Borrowed(array.as_primitive::<$t>().values().as_ref())
        };
    }
    Ok(match array.data_type() {
        DataType::Int8 => narrow!(Int8Type),
        DataType::Int16 => narrow!(Int16Type),
        DataType::Int32 => narrow!(Int32Type),
        DataType::UInt8 => narrow!(UInt8Type),
        DataType::UInt16 => narrow!(UInt16Type),
        DataType::UInt32 => narrow!(UInt32Type),
        DataType::Date32 => narrow!(Date32Type),
        DataType::Time32(TimeUnit::Second) => narrow!(Time32SecondType),
        DataType::Time32(_) => narrow!(Time32MillisecondType),
        DataType::Int64 => wide!(Int64Type),
        DataType::Date64 => wide!(Date64Type),
        DataType::Time64(TimeUnit::Microsecond) => wide!(Time64MicrosecondType),
        DataType::Time64(_) => wide!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => wide!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => wide!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => wide!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => wide!(TimestampNanosecondType),
        other => return Err(RuntimeError::internal(format!("{other} is not a native integer type"))),
    })
}

/// The reverse of [`as_i64`].
///
/// # Errors
/// Another type.
pub fn from_i64(values: Vec<i64>, nulls: Option<NullBuffer>, data_type: &DataType) -> Result<ArrayRef> {
    macro_rules! narrow {
        ($t:ty) => {
            Arc::new(PrimitiveArray::<$t>::new(
                values
                    .iter()
                    .map(|&v| v as <$t as ArrowPrimitiveType>::Native)
                    .collect(),
                nulls,
            ))
        };
    }
    macro_rules! wide {
        ($t:ty) => {
            Arc::new(PrimitiveArray::<$t>::new(values.into(), nulls))
        };
        ($t:ty, $tz:expr) => {
            Arc::new(PrimitiveArray::<$t>::new(values.into(), nulls).with_timezone_opt($tz.clone()))
        };
    }
    Ok(match data_type {
        DataType::Int8 => narrow!(Int8Type),
        DataType::Int16 => narrow!(Int16Type),
        DataType::Int32 => narrow!(Int32Type),
        DataType::UInt8 => narrow!(UInt8Type),
        DataType::UInt16 => narrow!(UInt16Type),
        DataType::UInt32 => narrow!(UInt32Type),
        DataType::Date32 => narrow!(Date32Type),
        DataType::Time32(TimeUnit::Second) => narrow!(Time32SecondType),
        DataType::Time32(_) => narrow!(Time32MillisecondType),
        DataType::Int64 => wide!(Int64Type),
        DataType::Date64 => wide!(Date64Type),
        DataType::Time64(TimeUnit::Microsecond) => wide!(Time64MicrosecondType),
        DataType::Time64(_) => wide!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, tz) => wide!(TimestampSecondType, tz),
        DataType::Timestamp(TimeUnit::Millisecond, tz) => wide!(TimestampMillisecondType, tz),
        DataType::Timestamp(TimeUnit::Microsecond, tz) => wide!(TimestampMicrosecondType, tz),
        DataType::Timestamp(TimeUnit::Nanosecond, tz) => wide!(TimestampNanosecondType, tz),
        other => return Err(RuntimeError::internal(format!("{other} is not a native integer type"))),
    })
}

/// Floats whose bits are equal exactly if SQL calls them equal: `-0.0` becomes `0.0`, every NaN the positive quiet one (which
/// Arrow's row format sorts last, as PostgreSQL does). Other columns pass.
pub fn canonical(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float64 => {
            let floats: Float64Array = array.as_primitive::<Float64Type>().unary(canonical_f64);
            Arc::new(floats)
        }
        DataType::Float32 => {
            let floats: Float32Array = array
                .as_primitive::<Float32Type>()
                .unary(|v| if v.is_nan() { f32::NAN } else { v + 0.0 });
            Arc::new(floats)
        }
        DataType::List(field) if field.data_type().is_floating() => {
            let list = array.as_list::<i32>();
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            Arc::new(ListArray::new(
                Arc::clone(field),
                offsets,
                canonical(list.values()),
                nulls,
            ))
        }
        _ => Arc::clone(array),
    }
}

/// [`canonical`] for one float.
#[inline]
pub fn canonical_f64(v: f64) -> f64 {
    if v.is_nan() { f64::NAN } else { v + 0.0 }
}

/// The column in a form whose Arrow row encoding sorts as PostgreSQL sorts the values: floats are canonical; an interval is
/// its length in nanoseconds (a month has 30 days, a day 24 hours).
pub fn sortable(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let lengths: Decimal128Array = array.as_primitive::<IntervalMonthDayNanoType>().unary(interval_length);
            Arc::new(lengths.with_data_type(DataType::Decimal128(38, 0)))
        }
        _ => canonical(array),
    }
}

/// Type of [`sortable`]'s result.
pub fn sortable_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Interval(IntervalUnit::MonthDayNano) => DataType::Decimal128(38, 0),
        other => other.clone(),
    }
}

/// Length of an interval in nanoseconds, as PostgreSQL compares it.
pub fn interval_length(v: IntervalMonthDayNano) -> i128 {
    const DAY: i128 = 86_400_000_000_000;
    (i128::from(v.months) * 30 + i128::from(v.days)) * DAY + i128::from(v.nanoseconds)
}

/// NULLs of `n` rows for each of `types`.
pub fn null_columns<'a>(types: impl Iterator<Item = &'a DataType>, n: usize) -> Vec<ArrayRef> {
    types.map(|t| new_null_array(t, n)).collect()
}

/// `array` as `data_type`; the same array if it has that type already.
///
/// # Errors
/// The cast does not exist or fails.
pub fn coerce(array: ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        Ok(array)
    } else {
        Ok(cast(&array, data_type)?)
    }
}

/// Row numbers 1.. as a `bigint` column.
pub fn bigint(values: Vec<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}
