//! Levee's own fixed hash of rows, and vnodes. It never changes between builds: state files and routing depend on it.
//!
//! The hash of a row depends only on its values: a `bigint` 7 hashes the same in any batch, at any offset, with or without
//! other rows. Equal values in SQL's sense hash alike (`-0.0` = `0.0`, every NaN is one NaN). NULL is a value of its own.
//!
//! ```text
//!   63      56 55                                   0
//!   ┌─────────┬─────────────────────────────────────┐
//!   │  vnode  │  buckets of hash tables in a task   │
//!   └─────────┴─────────────────────────────────────┘
//! ```

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, GenericByteArray, GenericByteViewArray, ListArray,
    PrimitiveArray,
};
use arrow::datatypes::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Result, RuntimeError};

/// Number of vnodes.
pub const VNODES: usize = 256;

const SEED: u64 = 0x6c65_7665_6500_0001;
const NULL: u64 = 0x9ae1_6a3b_2f90_404f;

/// One hash per row, over the columns from left to right. No columns: no hashes.
///
/// # Errors
/// A column's type cannot be a key (structs, maps).
pub fn hash_columns(columns: &[ArrayRef]) -> Result<Vec<u64>> {
    let Some(first) = columns.first() else {
        return Ok(Vec::new());
    };
    let mut hashes = vec![SEED; first.len()];
    for column in columns {
        hash_column(column, &mut hashes)?;
    }
    Ok(hashes)
}

/// The hash of a one-column native integer key, as [`hash_columns`] gives it.
#[inline]
pub fn hash_i64(value: i64) -> u64 {
    mix(SEED, value as u64)
}

/// The hash of a one-column NULL key.
#[inline]
pub fn hash_null() -> u64 {
    mix(SEED, NULL)
}

/// Fixed hash of bytes, for tables of encoded rows.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, SEED)
}

/// The vnode of a row's hash.
#[inline]
pub fn vnode(hash: u64) -> u8 {
    (hash >> 56) as u8
}

/// The task that owns a vnode: contiguous ranges, whose sizes differ by at most one.
#[inline]
pub fn owner(vnode: u8, n_tasks: usize) -> usize {
    usize::from(vnode) * n_tasks.max(1) / VNODES
}

/// Folds a value's 64 bits into a row's hash (a folded 128-bit product, then a finishing shift-multiply).
#[inline]
fn mix(state: u64, value: u64) -> u64 {
    let product = u128::from(state ^ value ^ 0xa076_1d64_78bd_642f) * u128::from(value ^ 0xe703_7ed1_a0b4_28db | 1);
    let folded = (product as u64) ^ ((product >> 64) as u64) ^ state.rotate_left(23);
    let h = (folded ^ (folded >> 32)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    h ^ (h >> 29)
}

fn hash_column(column: &ArrayRef, hashes: &mut [u64]) -> Result<()> {
    macro_rules! int {
        ($t:ty) => {
            primitive(column.as_primitive::<$t>(), hashes, |h, v| {
                mix(h, v as i64 as u64)
            })
        };
    }
    match column.data_type() {
        DataType::Null => hashes.iter_mut().for_each(|h| *h = mix(*h, NULL)),
        DataType::Boolean => booleans(column.as_boolean(), hashes),
        DataType::Int8 => int!(Int8Type),
        DataType::Int16 => int!(Int16Type),
        DataType::Int32 => int!(Int32Type),
        DataType::Int64 => int!(Int64Type),
        DataType::UInt8 => int!(UInt8Type),
        DataType::UInt16 => int!(UInt16Type),
        DataType::UInt32 => int!(UInt32Type),
        DataType::UInt64 => int!(UInt64Type),
        DataType::Date32 => int!(Date32Type),
        DataType::Date64 => int!(Date64Type),
        DataType::Time32(TimeUnit::Second) => int!(Time32SecondType),
        DataType::Time32(_) => int!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => int!(Time64MicrosecondType),
        DataType::Time64(_) => int!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => int!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => int!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => int!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => int!(TimestampNanosecondType),
        DataType::Float32 => {
            primitive(column.as_primitive::<Float32Type>(), hashes, |h, v| {
                mix(h, float_bits(f64::from(v)))
            });
        }
        DataType::Float64 => primitive(column.as_primitive::<Float64Type>(), hashes, |h, v| {
            mix(h, float_bits(v))
        }),
        DataType::Decimal32(..) => int!(Decimal32Type),
        DataType::Decimal64(..) => int!(Decimal64Type),
        DataType::Decimal128(..) => primitive(column.as_primitive::<Decimal128Type>(), hashes, |h, v| {
            mix(mix(h, v as u64), (v >> 64) as u64)
        }),
        DataType::Decimal256(..) => primitive(column.as_primitive::<Decimal256Type>(), hashes, |h, v| {
            let (low, high) = v.to_parts();
            let h = mix(mix(h, low as u64), (low >> 64) as u64);
            mix(mix(h, high as u64), (high >> 64) as u64)
        }),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            primitive(column.as_primitive::<IntervalMonthDayNanoType>(), hashes, |h, v| {
                let h = mix(mix(h, i64::from(v.months) as u64), i64::from(v.days) as u64);
                mix(h, v.nanoseconds as u64)
            });
        }
        DataType::Utf8 => byte_array(column.as_bytes::<Utf8Type>(), hashes),
        DataType::LargeUtf8 => byte_array(column.as_bytes::<LargeUtf8Type>(), hashes),
        DataType::Binary => byte_array(column.as_bytes::<BinaryType>(), hashes),
        DataType::LargeBinary => byte_array(column.as_bytes::<LargeBinaryType>(), hashes),
        DataType::Utf8View => byte_views(column.as_byte_view::<StringViewType>(), hashes),
        DataType::BinaryView => byte_views(column.as_byte_view::<BinaryViewType>(), hashes),
        DataType::FixedSizeBinary(_) => fixed_binary(column.as_fixed_size_binary(), hashes),
        DataType::List(_) => lists(column.as_list::<i32>(), hashes)?,
        DataType::Dictionary(_, value) => {
            let plain = arrow::compute::cast(column, value)?;
            hash_column(&plain, hashes)?;
        }
        other => {
            return Err(RuntimeError::user(
                "0A000",
                format!("type {other} cannot be a grouping, join or partition key"),
            ));
        }
    }
    Ok(())
}

/// Bits that are equal for floats that are equal in SQL.
#[inline]
fn float_bits(v: f64) -> u64 {
    if v.is_nan() {
        f64::NAN.to_bits()
    } else {
        (v + 0.0).to_bits()
    }
}

#[inline]
fn primitive<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, hashes: &mut [u64], f: impl Fn(u64, T::Native) -> u64) {
    match array.nulls().filter(|n| n.null_count() > 0) {
        None => {
            for (h, v) in hashes.iter_mut().zip(array.values()) {
                *h = f(*h, *v);
            }
        }
        Some(nulls) => {
            for ((h, v), valid) in hashes.iter_mut().zip(array.values()).zip(nulls.iter()) {
                *h = if valid { f(*h, *v) } else { mix(*h, NULL) };
            }
        }
    }
}

fn booleans(array: &BooleanArray, hashes: &mut [u64]) {
    for (h, v) in hashes.iter_mut().zip(array.iter()) {
        *h = mix(*h, v.map_or(NULL, u64::from));
    }
}

fn byte_array<T: ByteArrayType>(array: &GenericByteArray<T>, hashes: &mut [u64]) {
    for (h, v) in hashes.iter_mut().zip(array.iter()) {
        *h = mix(*h, v.map_or(NULL, |v| hash_bytes(v.as_ref())));
    }
}

fn byte_views<T: ByteViewType>(array: &GenericByteViewArray<T>, hashes: &mut [u64]) {
    for (h, v) in hashes.iter_mut().zip(array.iter()) {
        *h = mix(*h, v.map_or(NULL, |v| hash_bytes(v.as_ref())));
    }
}

fn fixed_binary(array: &FixedSizeBinaryArray, hashes: &mut [u64]) {
    for (h, v) in hashes.iter_mut().zip(array.iter()) {
        *h = mix(*h, v.map_or(NULL, hash_bytes));
    }
}

/// A list is its length and the hashes of its elements, in order.
fn lists(array: &ListArray, hashes: &mut [u64]) -> Result<()> {
    let elements = hash_columns(std::slice::from_ref(array.values()))?;
    for (i, h) in hashes.iter_mut().enumerate() {
        if array.is_null(i) {
            *h = mix(*h, NULL);
            continue;
        }
        let offsets = array.value_offsets();
        let of_row = &elements[offsets[i] as usize..offsets[i + 1] as usize];
        *h = of_row.iter().fold(mix(*h, of_row.len() as u64), |h, e| mix(h, *e));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::*;

    use super::*;

    fn h(columns: &[ArrayRef]) -> Vec<u64> {
        hash_columns(columns).unwrap()
    }

    /// Changing any of these figures makes every stored state file unreadable.
    #[test]
    fn golden() {
        let ints: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), Some(7), None]));
        let text: ArrayRef = Arc::new(StringArray::from(vec![
            Some(""),
            Some("a"),
            Some("UA"),
            None,
            Some("levee"),
        ]));
        let dec: ArrayRef = Arc::new(Decimal128Array::from(vec![0, 1, -1, 1 << 70, 5]));
        let all: Vec<Vec<u64>> = vec![
            h(&[Arc::clone(&ints)]),
            h(&[Arc::clone(&text)]),
            h(&[dec]),
            h(&[ints, text]),
        ];
        let shown: Vec<String> = all.iter().flatten().map(|v| format!("{v:016x}")).collect();
        assert_eq!(shown.join(" "), GOLDEN);
    }

    const GOLDEN: &str = "eca7d280db64cc3c a6e17574d9d05a5d 5a7c125239b63b25 d7c58cba106728c6 66ea8846236aaca6 \
        97ff4001b7c35dae 8c30097e84d32a73 74eae4cba3d599c4 66ea8846236aaca6 ca58ad44161feabc \
        5ceba0c534b0d931 78dd16c44dd781f1 dc46d1f45efe97d4 d732d94de7a88b0b f0c388c9cf791398 \
        1187376766abfe2b 227451872a9d10af b94d4efbfecc4af5 c615095d75d214c5 75288e571e78d361";

    #[test]
    fn value_only() {
        let wide: ArrayRef = Arc::new(Int64Array::from(vec![9, 7, 7, 3]));
        let narrow: ArrayRef = Arc::new(Int32Array::from(vec![7]));
        assert_eq!(h(&[wide.slice(2, 1)]), h(&[narrow]));
        assert_eq!(h(&[Arc::clone(&wide)])[1], hash_i64(7));
        let views: ArrayRef = Arc::new(StringViewArray::from(vec!["x", "a string longer than twelve bytes"]));
        let plain: ArrayRef = Arc::new(StringArray::from(vec!["x", "a string longer than twelve bytes"]));
        assert_eq!(h(&[views]), h(&[plain]));
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(1)]));
        assert_eq!(h(&[nulls])[0], hash_null());
    }

    #[test]
    fn floats_that_are_equal_hash_alike() {
        let f: ArrayRef = Arc::new(Float64Array::from(vec![
            0.0,
            -0.0,
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0x7ff8_0000_0000_1234),
        ]));
        let v = h(&[f]);
        assert_eq!(v[0], v[1]);
        assert!(v[2] == v[3] && v[3] == v[4]);
    }

    #[test]
    fn lists_hash_by_their_elements() {
        let list = |rows: Vec<Option<Vec<Option<f64>>>>| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows))
        };
        let some = |v: &[f64]| Some(v.iter().copied().map(Some).collect::<Vec<_>>());
        let all = list(vec![
            some(&[9.0]),
            some(&[1.0, 0.0]),
            some(&[1.0]),
            some(&[]),
            None,
            Some(vec![None]),
        ]);
        let v = h(&[Arc::clone(&all)]);
        let distinct: std::collections::BTreeSet<u64> = v.iter().copied().collect();
        assert_eq!(distinct.len(), v.len());
        assert_eq!(h(&[all.slice(1, 2)]), v[1..3]);
        assert_eq!(h(&[list(vec![some(&[1.0, -0.0])])])[0], v[1]);
    }

    #[test]
    fn spreads_over_vnodes_and_tasks() {
        let ints: ArrayRef = Arc::new(Int64Array::from_iter_values(0..256_000));
        let mut counts = vec![0_u32; VNODES];
        for hash in h(&[ints]) {
            counts[usize::from(vnode(hash))] += 1;
        }
        assert!(counts.iter().all(|&c| (850..1150).contains(&c)), "{counts:?}");
        for n in 1..=16 {
            let owners: Vec<usize> = (0..=255).map(|v| owner(v, n)).collect();
            assert!(owners.is_sorted() && owners[0] == 0 && owners[255] == n - 1);
        }
    }
}
