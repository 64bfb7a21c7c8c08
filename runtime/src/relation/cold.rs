//! A base that is not in memory: the rows as a completed checkpoint has them, read from the cold tier.

use std::sync::Arc;

use arrow::row::Rows;
use levee_storage::StorageError;
use levee_storage::delta_file::{STATE_KEY_PREFIX_BYTES, vnode_prefix};
use levee_storage::tier::{TierScan, TierSnapshot};

use super::order::RowOrder;
use super::sorted::Piece;
use crate::{Delta, Result};

/// Operator id under which a relation's rows are stored, in table 0 and vnode 0: encoded row → multiplicity.
pub const RELATION_OPERATOR: u32 = u32::MAX;
/// Rows decoded at a time.
const PIECE_ROWS: usize = 8192;
/// Counts are little-endian.
const COUNT_BYTES: usize = 8;

/// The stored form of a row's multiplicity.
pub fn encode_count(count: i64) -> [u8; COUNT_BYTES] {
    count.to_le_bytes()
}

fn decode_count(value: &[u8]) -> Result<i64, StorageError> {
    let bytes = value
        .try_into()
        .map_err(|_| StorageError::corrupt("the cold tier", "a row's multiplicity has another length"))?;
    Ok(i64::from_le_bytes(bytes))
}

/// A relation's rows in the tier.
#[derive(Debug, Clone)]
pub(super) struct Cold {
    snapshot: Arc<TierSnapshot>,
    prefix: [u8; STATE_KEY_PREFIX_BYTES],
}

impl Cold {
    pub(super) fn new(snapshot: Arc<TierSnapshot>, region: u32) -> Self {
        Self {
            snapshot,
            prefix: vnode_prefix(region, RELATION_OPERATOR, 0, 0),
        }
    }

    fn key(&self, row: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + row.len());
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(row);
        key
    }

    /// Reads from `start` on.
    pub(super) fn cursor(&self, start: Option<&[u8]>) -> Result<ColdCursor> {
        let from = start.map(|start| self.key(start));
        let mut cursor = ColdCursor {
            scan: self.snapshot.scan(&self.prefix, from.as_deref())?,
            next: None,
        };
        cursor.next = cursor.read()?;
        Ok(cursor)
    }

    /// Looks keys up.
    pub(super) fn sums(&self) -> Result<ColdSums> {
        Ok(ColdSums {
            cold: self.clone(),
            scan: self.snapshot.scan(&self.prefix, None)?,
        })
    }
}

/// Looks keys up, with one iterator for all of them.
#[derive(Debug)]
pub(super) struct ColdSums {
    cold: Cold,
    scan: TierScan,
}

impl ColdSums {
    /// The sum of the multiplicities of the rows whose encoding begins with `prefix`.
    pub(super) fn sum(&mut self, prefix: &[u8]) -> Result<i64> {
        let key = self.cold.key(prefix);
        self.scan.seek(&self.cold.prefix, Some(&key))?;
        let mut sum = 0;
        while let Some((found, value)) = self.scan.next()? {
            if !found.starts_with(&key) {
                break;
            }
            sum += decode_count(value)?;
        }
        Ok(sum)
    }

    /// The multiplicities of whole rows, looked up together: half of what single ones cost, and new rows are most of the time told by
    /// the filters alone.
    pub(super) fn counts(&self, rows: &Rows) -> Result<Vec<i64>> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(rows.num_rows()));
        for row in rows {
            bytes.extend_from_slice(&self.cold.prefix);
            bytes.extend_from_slice(row.data());
            ends.push(bytes.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let keys: Vec<&[u8]> = starts.zip(&ends).map(|(start, end)| &bytes[start..*end]).collect();
        let mut counts = vec![0; keys.len()];
        self.cold.snapshot.get_many(&keys, &mut |i, value| {
            counts[i] = decode_count(value)?;
            Ok(())
        })?;
        Ok(counts)
    }
}

/// Reads rows in order, piece by piece.
#[derive(Debug)]
pub(super) struct ColdCursor {
    scan: TierScan,
    /// The first row of the next piece.
    next: Option<(Box<[u8]>, i64)>,
}

impl ColdCursor {
    fn read(&mut self) -> Result<Option<(Box<[u8]>, i64)>> {
        let Some((key, value)) = self.scan.next()? else {
            return Ok(None);
        };
        Ok(Some((key[STATE_KEY_PREFIX_BYTES..].into(), decode_count(value)?)))
    }

    pub(super) fn piece(&mut self, order: &RowOrder) -> Result<Option<Piece>> {
        let Some((first, count)) = self.next.take() else {
            return Ok(None);
        };
        let (mut bytes, mut ends, mut counts) = (first.into_vec(), Vec::with_capacity(PIECE_ROWS), vec![count]);
        ends.push(bytes.len());
        while ends.len() < PIECE_ROWS {
            let Some((key, value)) = self.scan.next()? else { break };
            bytes.extend_from_slice(&key[STATE_KEY_PREFIX_BYTES..]);
            ends.push(bytes.len());
            counts.push(decode_count(value)?);
        }
        if ends.len() == PIECE_ROWS {
            self.next = self.read()?;
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let batch = order.decode(starts.zip(&ends).map(|(start, end)| &bytes[start..*end]))?;
        let limit = self.next.as_ref().map(|(key, _)| key.clone());
        Ok(Some(Piece::stored(Delta::new(batch, counts), bytes, ends, limit)))
    }
}
