//! A hash of a Z-set: the wrapping sum over rows of `hash(row) * diff`.
//!
//! It does not depend on the order of rows, on how they are cut into batches, or on whether equal rows were merged, so two
//! runs that mean the same have the same hash (invariant I2 is checked with it). Collisions need two different Z-sets whose
//! weighted sums of 64-bit hashes agree: good enough to find faults, no defence against an adversary.

use arrow::row::{RowConverter, SortField};

use crate::hash::{hash_bytes, hash_columns};
use crate::{Delta, Diffs, Result};

/// The hash of a row without columns.
const NO_COLUMNS: u64 = 0x51_7c_c1_b7_27_22_0a_95;

/// The delta's share of the hash; shares add up (wrapping).
///
/// # Errors
/// A type that can neither be hashed nor row-encoded.
pub(crate) fn zset_hash(delta: &Delta) -> Result<u64> {
    if delta.batch.num_columns() == 0 {
        let count = delta.diff_iter().fold(0_i64, i64::wrapping_add);
        return Ok(NO_COLUMNS.wrapping_mul(count as u64));
    }
    let hashes = match hash_columns(delta.batch.columns()) {
        Ok(hashes) => hashes,
        Err(_) => hash_encoded(delta)?,
    };
    Ok(match &delta.diffs {
        Diffs::Ones => hashes.iter().fold(0, |sum: u64, h| sum.wrapping_add(*h)),
        Diffs::Values(diffs) => hashes
            .iter()
            .zip(diffs.iter())
            .fold(0, |sum: u64, (h, d)| sum.wrapping_add(h.wrapping_mul(*d as u64))),
    })
}

/// For lists and other types that are no keys.
fn hash_encoded(delta: &Delta) -> Result<Vec<u64>> {
    let columns = delta.batch.columns();
    let converter = RowConverter::new(columns.iter().map(|c| SortField::new(c.data_type().clone())).collect())?;
    let rows = converter.convert_columns(columns)?;
    Ok(rows.iter().map(|row| hash_bytes(row.as_ref())).collect())
}

/// Insertions plus retractions.
pub(crate) fn changes(delta: &Delta) -> u64 {
    match &delta.diffs {
        Diffs::Ones => delta.num_rows() as u64,
        Diffs::Values(diffs) => diffs.iter().map(|d| d.unsigned_abs()).sum(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn ints(values: &[i64]) -> RecordBatch {
        RecordBatch::try_from_iter(vec![("a", Arc::new(Int64Array::from(values.to_vec())) as ArrayRef)]).unwrap()
    }

    #[test]
    fn only_the_zset_counts() {
        let whole = zset_hash(&Delta::inserts(ints(&[1, 2, 2, 3]))).unwrap();
        let shuffled = Delta::new(ints(&[3, 2, 1, 9, 9]), vec![1, 2, 1, 4, -4]);
        let parts = [shuffled.slice(0, 2), shuffled.slice(2, 3)].map(|d| zset_hash(&d).unwrap());
        assert_eq!(whole, parts[0].wrapping_add(parts[1]));
        assert_ne!(whole, zset_hash(&Delta::inserts(ints(&[1, 2, 3, 3]))).unwrap());
        assert_eq!(changes(&shuffled), 12);
    }

    #[test]
    fn lists_and_no_columns() {
        let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
        let batch = RecordBatch::try_from_iter(vec![("l", Arc::new(list) as ArrayRef)]).unwrap();
        assert_ne!(zset_hash(&Delta::inserts(batch)).unwrap(), 0);
        let none = ints(&[1, 2, 3]).project(&[]).unwrap();
        assert_eq!(zset_hash(&Delta::new(none.clone(), vec![1, -2, 1])).unwrap(), 0);
        assert_ne!(zset_hash(&Delta::inserts(none)).unwrap(), 0);
    }
}
