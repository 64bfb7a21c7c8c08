//! Turns contents into changes: a table's rows in random slices with retractions, or a generated change as deltas.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use levee_runtime::Delta;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::generate::Value;

/// A table's final contents, to be reached in slices.
#[derive(Debug, Clone)]
pub struct Contents {
    /// Name.
    pub table: String,
    /// Rows.
    pub batch: RecordBatch,
    /// Primary-key columns; empty: none.
    pub key: Vec<usize>,
}

/// A row made of row `key` in the key columns and row `rest` in the others.
#[derive(Debug, Clone, Copy)]
struct Spec {
    key: u32,
    rest: u32,
    diff: i64,
}

/// Changes that are committed together, per table name.
pub type Commit = Vec<(String, Delta)>;

/// A random way to the contents of all tables: rows come, some go and come again, some first hold another row's values and are
/// updated. Each commit holds up to `at_most` row changes (an update counts as one).
pub fn slices(tables: &[Contents], at_most: usize, rng: &mut ChaCha8Rng) -> Vec<Commit> {
    let mut lanes: Vec<(usize, Vec<Vec<Spec>>)> = Vec::new();
    for (t, table) in tables.iter().enumerate() {
        for i in 0..table.batch.num_rows() {
            lanes.push((t, one_row(i, table, rng)));
        }
    }
    let mut turns: Vec<usize> = lanes
        .iter()
        .enumerate()
        .flat_map(|(l, (_, units))| vec![l; units.len()])
        .collect();
    turns.shuffle(rng);
    let mut at = vec![0; lanes.len()];
    let mut commits = Vec::new();
    let mut open: Vec<Vec<Spec>> = vec![Vec::new(); tables.len()];
    let mut left = rng.random_range(1..=at_most);
    for lane in turns {
        let (t, units) = &lanes[lane];
        open[*t].extend(&units[at[lane]]);
        at[lane] += 1;
        left -= 1;
        if left == 0 {
            commits.extend(close(tables, &mut open));
            left = rng.random_range(1..=at_most);
        }
    }
    commits.extend(close(tables, &mut open));
    commits
}

/// The changes that lead to row `i`, in order; each inner list is one unit that is not torn apart.
fn one_row(i: usize, table: &Contents, rng: &mut ChaCha8Rng) -> Vec<Vec<Spec>> {
    let own = Spec {
        key: i as u32,
        rest: i as u32,
        diff: 1,
    };
    let other = rng.random_range(0..table.batch.num_rows()) as u32;
    let ghost = Spec {
        key: if table.key.is_empty() { other } else { i as u32 },
        rest: other,
        diff: 1,
    };
    let gone = |s: Spec| Spec { diff: -1, ..s };
    match rng.random_range(0..10) {
        0..=3 => vec![vec![own]],
        4..=5 => vec![vec![own], vec![gone(own)], vec![own]],
        6..=7 => vec![vec![ghost], vec![gone(ghost), own]],
        8 => vec![vec![own], vec![gone(own), ghost], vec![gone(ghost), own]],
        _ => vec![vec![ghost], vec![gone(ghost)], vec![own]],
    }
}

/// The open changes' net effect, if any.
fn close(tables: &[Contents], open: &mut [Vec<Spec>]) -> Option<Commit> {
    let mut commit = Vec::new();
    for (table, specs) in tables.iter().zip(open) {
        if specs.is_empty() {
            continue;
        }
        let delta = build(table, specs);
        specs.clear();
        let net = Delta::consolidate(&table.batch.schema(), &[delta], &table.key).expect("consolidate");
        if net.num_rows() > 0 {
            commit.push((table.table.clone(), net));
        }
    }
    (!commit.is_empty()).then_some(commit)
}

fn build(table: &Contents, specs: &[Spec]) -> Delta {
    let keys = UInt32Array::from_iter_values(specs.iter().map(|s| s.key));
    let rest = UInt32Array::from_iter_values(specs.iter().map(|s| s.rest));
    let columns: Vec<ArrayRef> = table
        .batch
        .columns()
        .iter()
        .enumerate()
        .map(|(c, column)| take(column, if table.key.contains(&c) { &keys } else { &rest }, None).expect("take"))
        .collect();
    let batch = RecordBatch::try_new(table.batch.schema(), columns).expect("same schema");
    Delta::new(batch, specs.iter().map(|s| s.diff).collect())
}

/// Generated rows with their diffs, in a table's schema.
pub fn delta(schema: &SchemaRef, rows: &[(&[Value], i64)]) -> Delta {
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(c, field)| column(field.data_type(), rows.iter().map(|(row, _)| &row[c])))
        .collect();
    let batch = RecordBatch::try_new(Arc::clone(schema), columns).expect("values fit the table");
    Delta::new(batch, rows.iter().map(|(_, diff)| *diff).collect())
}

fn column<'a>(ty: &DataType, values: impl Iterator<Item = &'a Value>) -> ArrayRef {
    macro_rules! collect {
        ($array:ty, $variant:ident) => {
            Arc::new(
                values
                    .map(|v| match v {
                        Value::$variant(x) => Some(x.clone()),
                        _ => None,
                    })
                    .collect::<$array>(),
            )
        };
    }
    match ty {
        DataType::Boolean => collect!(BooleanArray, Bool),
        DataType::Int32 => collect!(Int32Array, Int),
        DataType::Int64 => collect!(Int64Array, Big),
        DataType::Float64 => collect!(Float64Array, Float),
        DataType::Utf8 => collect!(StringArray, Text),
        DataType::Date32 => collect!(Date32Array, Date),
        DataType::Timestamp(_, _) => collect!(TimestampMicrosecondArray, Ts),
        DataType::Decimal128(p, s) => {
            let numbers: Decimal128Array = values
                .map(|v| match v {
                    Value::Num(x) => Some(*x),
                    _ => None,
                })
                .collect();
            Arc::new(numbers.with_precision_and_scale(*p, *s).expect("numeric(12,2)"))
        }
        other => panic!("the generator has no type {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{Field, Schema};

    #[test]
    fn slices_add_up_to_the_contents() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int32, false),
            Field::new("v", DataType::Utf8, true),
        ]));
        let ids = Int32Array::from_iter_values(0..30);
        let words: StringArray = (0..30).map(|i| (i % 3 > 0).then(|| format!("w{}", i % 4))).collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(ids), Arc::new(words)]).unwrap();
        for key in [vec![0], vec![]] {
            let contents = Contents {
                table: "t".into(),
                batch: batch.clone(),
                key,
            };
            let commits = slices(&[contents], 4, &mut crate::generate::rng(3));
            let all: Vec<Delta> = commits.into_iter().flatten().map(|(_, d)| d).collect();
            assert!(all.iter().any(|d| d.diff_iter().any(|n| n < 0)), "no retractions");
            let sum = Delta::consolidate(&schema, &all, &[0]).unwrap();
            assert_eq!(sum.batch, batch);
            assert!(sum.diff_iter().all(|d| d == 1));
        }
    }
}
