//! Z-sets in Arrow: a batch of rows and a signed multiplicity for each.
//!
//! ```text
//!   diff │ carrier  n
//!   ─────┼────────────
//!     +1 │ UA       7
//!     -1 │ UA       6
//! ```
//!
//! Two deltas mean the same if their rows' diffs add up to the same; order and chunking carry no meaning.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};

use crate::Result;

/// Multiplicities of a delta's rows.
#[derive(Debug, Clone)]
pub enum Diffs {
    /// Every row is inserted once.
    Ones,
    /// One value a row, never 0.
    Values(Arc<[i64]>),
}

/// A part of a Z-set.
#[derive(Debug, Clone)]
pub struct Delta {
    /// Rows.
    pub batch: RecordBatch,
    /// Their multiplicities.
    pub diffs: Diffs,
}

impl Delta {
    /// Rows that are all inserted once.
    pub fn inserts(batch: RecordBatch) -> Self {
        Self {
            batch,
            diffs: Diffs::Ones,
        }
    }

    /// Rows with diffs; `diffs.len()` must be the number of rows, and no diff 0.
    pub fn new(batch: RecordBatch, diffs: Vec<i64>) -> Self {
        debug_assert_eq!(batch.num_rows(), diffs.len());
        debug_assert!(diffs.iter().all(|&d| d != 0));
        if diffs.iter().all(|&d| d == 1) {
            return Self::inserts(batch);
        }
        Self {
            batch,
            diffs: Diffs::Values(diffs.into()),
        }
    }

    /// Number of rows (not of insertions).
    pub fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }

    /// The diff of row `i`.
    #[inline]
    pub fn diff(&self, i: usize) -> i64 {
        match &self.diffs {
            Diffs::Ones => 1,
            Diffs::Values(v) => v[i],
        }
    }

    /// All diffs.
    pub fn diff_iter(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.num_rows()).map(|i| self.diff(i))
    }

    /// Memory held, counting shared buffers in full.
    pub fn bytes(&self) -> usize {
        let diffs = match &self.diffs {
            Diffs::Ones => 0,
            Diffs::Values(v) => v.len() * 8,
        };
        self.batch.get_array_memory_size() + diffs
    }

    /// The rows at `indices`, with their diffs.
    ///
    /// # Errors
    /// An index out of range.
    pub fn take(&self, indices: &UInt32Array) -> Result<Self> {
        let batch = take_record_batch(&self.batch, indices)?;
        let diffs = match &self.diffs {
            Diffs::Ones => Diffs::Ones,
            Diffs::Values(v) => Diffs::Values(indices.values().iter().map(|&i| v[i as usize]).collect()),
        };
        Ok(Self { batch, diffs })
    }

    /// A zero-copy part.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        let diffs = match &self.diffs {
            Diffs::Ones => Diffs::Ones,
            Diffs::Values(v) => Diffs::Values(v[offset..offset + length].into()),
        };
        Self {
            batch: self.batch.slice(offset, length),
            diffs,
        }
    }

    /// The same rows with every diff negated.
    #[must_use]
    pub fn negate(&self) -> Self {
        Self {
            batch: self.batch.clone(),
            diffs: Diffs::Values(self.diff_iter().map(|d| -d).collect()),
        }
    }

    /// One delta from many of one schema.
    ///
    /// # Errors
    /// Schemas differ.
    pub fn concat(schema: &SchemaRef, deltas: &[Self]) -> Result<Self> {
        let batch = concat_batches(schema, deltas.iter().map(|d| &d.batch))?;
        if deltas.iter().all(|d| matches!(d.diffs, Diffs::Ones)) {
            return Ok(Self::inserts(batch));
        }
        Ok(Self {
            batch,
            diffs: Diffs::Values(deltas.iter().flat_map(Self::diff_iter).collect()),
        })
    }

    /// The canonical form of the sum of `deltas`: rows sorted by `order` columns, then all others (ascending, NULLs first,
    /// [`RowConverter`]'s default), equal rows merged, diffs of 0 dropped. Cost: one encode and one sort of all rows.
    ///
    /// # Errors
    /// Schemas differ, or a type cannot be encoded.
    pub fn consolidate(schema: &SchemaRef, deltas: &[Self], order: &[usize]) -> Result<Self> {
        let all = Self::concat(schema, deltas)?;
        let n = all.num_rows();
        if n == 0 {
            return Ok(all);
        }
        let columns = storage_order(schema.fields().len(), order);
        if columns.is_empty() {
            let sum: i64 = all.diff_iter().sum();
            let keep = usize::from(sum != 0);
            return Ok(Self {
                batch: all.batch.slice(0, keep),
                diffs: Diffs::Values(vec![sum; keep].into()),
            });
        }
        let arrays: Vec<ArrayRef> = columns.iter().map(|&c| Arc::clone(all.batch.column(c))).collect();
        let converter = RowConverter::new(arrays.iter().map(|a| SortField::new(a.data_type().clone())).collect())?;
        let rows = converter.convert_columns(&arrays)?;
        let mut index: Vec<u32> = (0..n as u32).collect();
        index.sort_unstable_by(|&a, &b| rows.row(a as usize).cmp(&rows.row(b as usize)));
        let mut kept = Vec::with_capacity(n);
        let mut diffs = Vec::with_capacity(n);
        let mut i = 0;
        while i < n {
            let row = rows.row(index[i] as usize);
            let mut sum = all.diff(index[i] as usize);
            let mut j = i + 1;
            while j < n && rows.row(index[j] as usize) == row {
                sum += all.diff(index[j] as usize);
                j += 1;
            }
            if sum != 0 {
                kept.push(index[i]);
                diffs.push(sum);
            }
            i = j;
        }
        let batch = take_record_batch(&all.batch, &UInt32Array::from(kept))?;
        Ok(Self::new(batch, diffs))
    }

    /// The diffs as an Arrow column.
    pub fn diff_array(&self) -> Int64Array {
        self.diff_iter().collect()
    }
}

/// All column indices, those of `order` first: the order in which a relation's rows are sorted and stored.
pub fn storage_order(n_columns: usize, order: &[usize]) -> Vec<usize> {
    order
        .iter()
        .copied()
        .chain((0..n_columns).filter(|c| !order.contains(c)))
        .collect()
}
