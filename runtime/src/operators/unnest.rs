//! Each row once for each element of its lists.
//!
//! Maintains `{ (r without lists, l₁[i], …, lₖ[i]) : r ∈ input, 1 ≤ i ≤ max |lⱼ(r)| }`, with NULL where a list is shorter; NULL counts as the
//! empty list. With `keep_empty`, a row whose lists are all empty is one row with NULLs. The diff of a row is that of each of its copies.
//! Like a map it assumes nothing, emits at once and has no state.
//!
//! Cost: one gather of the other columns and of each list's elements a batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;

use super::{Barrier, Operator, Output, Progress};
use crate::{Delta, Diffs, Result, RuntimeError};

/// Rows that one batch of output has at most, about: more of them leave in several.
const ROWS_MAX: usize = 16_384;

/// The operator.
pub struct Unnest {
    columns: Vec<usize>,
    keep_empty: bool,
    schema: SchemaRef,
}

impl Unnest {
    /// From a plan node; `schema` is its output's.
    pub fn new(columns: &[usize], keep_empty: bool, schema: &SchemaRef) -> Self {
        Self {
            columns: columns.to_vec(),
            keep_empty,
            schema: Arc::clone(schema),
        }
    }

    /// Output rows of each input row.
    fn lengths(&self, batch: &RecordBatch) -> Result<Vec<usize>> {
        let mut lengths = vec![usize::from(self.keep_empty); batch.num_rows()];
        for &c in &self.columns {
            let list = batch
                .column(c)
                .as_list_opt::<i32>()
                .ok_or_else(|| RuntimeError::internal(format!("column {c} to unnest is no list")))?;
            for (i, length) in lengths.iter_mut().enumerate() {
                if list.is_valid(i) {
                    *length = (*length).max(usize::try_from(list.value_length(i)).unwrap_or(0));
                }
            }
        }
        Ok(lengths)
    }

    /// The copies of some rows of a batch.
    fn exploded(&self, delta: &Delta, first: usize, lengths: &[usize]) -> Result<Delta> {
        let total: usize = lengths.iter().sum();
        let narrow = |n: usize| u32::try_from(n).map_err(|_| RuntimeError::internal("a batch is too long to unnest"));
        let mut rows = Vec::with_capacity(total);
        for (i, &length) in lengths.iter().enumerate() {
            rows.extend(std::iter::repeat_n(narrow(first + i)?, length));
        }
        let rows = UInt32Array::from(rows);
        let batch = &delta.batch;
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(batch.num_columns());
        for (c, array) in batch.columns().iter().enumerate() {
            if !self.columns.contains(&c) {
                columns.push(take(array, &rows, None)?);
                continue;
            }
            let list = array.as_list::<i32>();
            let mut elements: Vec<Option<u32>> = Vec::with_capacity(total);
            for (i, &length) in lengths.iter().enumerate() {
                let row = first + i;
                let own = if list.is_valid(row) {
                    usize::try_from(list.value_length(row)).unwrap_or(0)
                } else {
                    0
                };
                let start = usize::try_from(list.value_offsets()[row]).unwrap_or(0);
                for k in 0..length {
                    elements.push(if k < own { Some(narrow(start + k)?) } else { None });
                }
            }
            columns.push(take(list.values(), &UInt32Array::from(elements), None)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(total));
        let exploded = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(match &delta.diffs {
            Diffs::Ones => Delta::inserts(exploded),
            Diffs::Values(_) => {
                let each = lengths.iter().enumerate();
                let each = each.flat_map(|(i, n)| std::iter::repeat_n(delta.diff(first + i), *n));
                Delta::new(exploded, each.collect())
            }
        })
    }
}

impl Operator for Unnest {
    fn push(&mut self, _input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        let lengths = self.lengths(&delta.batch)?;
        let mut first = 0;
        while first < lengths.len() {
            let (mut end, mut total) = (first, 0);
            while end < lengths.len() && (total == 0 || total + lengths[end] <= ROWS_MAX) {
                total += lengths[end];
                end += 1;
            }
            if total > 0 {
                out.emit(self.exploded(&delta, first, &lengths[first..end])?);
            }
            first = end;
        }
        Ok(Progress::Done)
    }

    fn close(&mut self, _barrier: &Barrier, _out: &mut Output) -> Result<Progress> {
        Ok(Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, ListArray};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema};

    use super::*;

    type Lists = Vec<Option<Vec<Option<i32>>>>;

    fn lists(values: Lists) -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(values))
    }

    /// Three columns: an integer and two lists.
    fn batch(ids: Vec<i32>, a: Lists, b: Lists) -> RecordBatch {
        let columns: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(ids)), lists(a), lists(b)];
        let fields: Vec<Field> = columns
            .iter()
            .map(|c| Field::new("c", c.data_type().clone(), true))
            .collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }

    fn unnested(keep_empty: bool, delta: Delta) -> Vec<(i32, Option<i32>, Option<i32>, i64)> {
        let fields = vec![Field::new("c", DataType::Int32, true); 3];
        let mut operator = Unnest::new(&[1, 2], keep_empty, &Arc::new(Schema::new(fields)));
        let mut out = Output::default();
        operator.push(0, delta, &mut out).unwrap();
        let mut rows = Vec::new();
        for delta in &out.deltas {
            let column = |c: usize| delta.batch.column(c).as_primitive::<Int32Type>().clone();
            let (ids, a, b) = (column(0), column(1), column(2));
            let get = |c: &Int32Array, i: usize| c.is_valid(i).then(|| c.value(i));
            rows.extend((0..delta.num_rows()).map(|i| (ids.value(i), get(&a, i), get(&b, i), delta.diff(i))));
        }
        rows
    }

    #[test]
    fn lists_stand_side_by_side_and_the_shorter_is_padded() {
        let rows = batch(
            vec![1, 2, 3, 4],
            vec![Some(vec![Some(1), None]), Some(vec![]), None, Some(vec![Some(7)])],
            vec![Some(vec![Some(10)]), None, Some(vec![]), Some(vec![Some(8), Some(9)])],
        );
        let delta = Delta::new(rows, vec![1, 1, -1, -2]);
        let wanted = vec![
            (1, Some(1), Some(10), 1),
            (1, None, None, 1),
            (4, Some(7), Some(8), -2),
            (4, None, Some(9), -2),
        ];
        assert_eq!(unnested(false, delta.clone()), wanted);
        // A part of a batch has lists that do not begin at 0.
        assert_eq!(unnested(false, delta.slice(2, 2)), wanted[2..]);
        assert_eq!(
            unnested(true, delta.slice(1, 2)),
            [(2, None, None, 1), (3, None, None, -1)]
        );
    }

    #[test]
    fn much_leaves_in_several_batches() {
        let long = || Some((0..10_000).map(Some).collect::<Vec<_>>());
        let rows = batch(vec![1, 2, 3], vec![long(), long(), long()], vec![None, None, None]);
        let fields = vec![Field::new("c", DataType::Int32, true); 3];
        let mut operator = Unnest::new(&[1, 2], false, &Arc::new(Schema::new(fields)));
        let mut out = Output::default();
        operator.push(0, Delta::inserts(rows), &mut out).unwrap();
        let lengths: Vec<usize> = out.deltas.iter().map(Delta::num_rows).collect();
        assert_eq!(lengths, [10_000; 3]);
    }
}
