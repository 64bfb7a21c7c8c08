//! The temporal filter against its definition, under random changes, moments and restores.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use levee_planner::plan::TimeBound;

use super::values::Rng;
use crate::Delta;
use crate::operators::temporal::TemporalFilter;
use crate::operators::{Barrier, Operator, Output, Progress, StateWriter};

/// A row: id, begin and end; NULL bounds are `None`.
type Row = (i64, Option<i64>, Option<i64>);

fn input() -> SchemaRef {
    let moment = DataType::Timestamp(TimeUnit::Microsecond, None);
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("begin", moment.clone(), true),
        Field::new("end", moment, true),
    ]))
}

fn output() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
}

const SHIFT: i64 = 3;

fn operator() -> TemporalFilter {
    let from = [TimeBound { column: 1, shift_us: 0 }];
    let until = [TimeBound {
        column: 2,
        shift_us: SHIFT,
    }];
    TemporalFilter::new(&from, &until, &input(), &output()).expect("the columns can be encoded")
}

fn delta(rows: &[(Row, i64)]) -> Delta {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.0.0))),
        Arc::new(rows.iter().map(|r| r.0.1).collect::<TimestampMicrosecondArray>()),
        Arc::new(rows.iter().map(|r| r.0.2).collect::<TimestampMicrosecondArray>()),
    ];
    let batch = RecordBatch::try_new(input(), columns).expect("three columns");
    Delta::new(batch, rows.iter().map(|r| r.1).collect())
}

fn absorb(out: &mut Output, shown: &mut BTreeMap<i64, i64>) {
    for delta in out.deltas.drain(..) {
        let ids = delta.batch.column(0).as_primitive::<Int64Type>();
        for i in 0..ids.len() {
            *shown.entry(ids.value(i)).or_insert(0) += delta.diff(i);
        }
    }
}

fn naive(rows: &BTreeMap<Row, i64>, now: i64) -> BTreeMap<i64, i64> {
    let mut out = BTreeMap::new();
    for ((id, begin, end), count) in rows {
        if let (Some(begin), Some(end)) = (begin, end)
            && *begin <= now
            && now < *end + SHIFT
        {
            *out.entry(*id).or_insert(0) += count;
        }
    }
    out.retain(|_, n| *n != 0);
    out
}

/// The state as snapshots have left it.
type Store = BTreeMap<Vec<u8>, Vec<u8>>;

fn snapshot(operator: &mut TemporalFilter, store: &mut Store) {
    let mut put = |_: u8, _: u8, key: &[u8], value: Option<&[u8]>| {
        match value {
            Some(value) => store.insert(key.to_vec(), value.to_vec()),
            None => store.remove(key),
        };
    };
    operator
        .snapshot(false, &mut StateWriter { put: &mut put })
        .expect("it can be encoded");
}

fn restored(store: &Store) -> TemporalFilter {
    let mut operator = operator();
    for (key, value) in store {
        operator.restore(0, key, value).expect("it was written so");
    }
    operator
}

#[test]
fn shows_what_is_between_its_bounds() {
    let mut seen_restores = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut rows, mut shown) = (BTreeMap::<Row, i64>::new(), BTreeMap::new());
        let (mut store, mut now) = (Store::new(), 0);
        let mut operator = operator();
        for epoch in 0..120 {
            let mut changes = Vec::new();
            for _ in 0..rng.below(12) {
                let moment = |rng: &mut Rng| (rng.below(9) > 0).then(|| now - 20 + rng.below(60) as i64);
                let fresh = (rng.below(8) as i64, moment(&mut rng), moment(&mut rng));
                let old = rows
                    .iter()
                    .filter(|(_, n)| **n > 0)
                    .map(|(r, _)| *r)
                    .nth(rng.below(20) as usize);
                let (row, diff) = match old {
                    Some(row) if rng.below(2) == 0 => (row, -1),
                    _ => (fresh, 1 + rng.below(2) as i64),
                };
                *rows.entry(row).or_insert(0) += diff;
                changes.push((row, diff));
            }
            let mut out = Output::default();
            for part in changes.chunks(1 + rng.below(5) as usize) {
                operator.push(0, delta(part), &mut out).expect("a push");
            }
            // Nothing may change between steps before the timer.
            let due = operator.next_timer_us();
            now += rng.below(15) as i64;
            let quiet = changes.is_empty() && due.is_none_or(|t| now < t);
            let barrier = Barrier {
                epoch,
                timestamp_us: now,
                first: epoch == 0,
            };
            let mut progress = operator.close(&barrier, &mut out).expect("a close");
            while progress == Progress::More {
                progress = operator.resume(&mut out).expect("more of it");
            }
            assert!(!quiet || out.deltas.is_empty(), "seed {seed}: a change without a timer");
            absorb(&mut out, &mut shown);
            shown.retain(|_, n| *n != 0);
            assert_eq!(shown, naive(&rows, now), "seed {seed}, epoch {epoch}");
            match rng.below(6) {
                0 => snapshot(&mut operator, &mut store),
                1 => {
                    snapshot(&mut operator, &mut store);
                    operator = restored(&store);
                    seen_restores += 1;
                }
                _ => {}
            }
        }
    }
    assert!(seen_restores > 100);
}

#[test]
fn forgets_what_is_over() {
    let mut operator = operator();
    let rows: Vec<(Row, i64)> = (0..20_000).map(|i| ((i, Some(0), Some(10)), 1)).collect();
    let mut out = Output::default();
    operator.push(0, delta(&rows), &mut out).expect("a push");
    for (epoch, now) in [(1, 5), (2, 13)] {
        let barrier = Barrier {
            epoch,
            timestamp_us: now,
            first: epoch == 1,
        };
        let mut progress = operator.close(&barrier, &mut out).expect("a close");
        while progress == Progress::More {
            progress = operator.resume(&mut out).expect("more of it");
        }
    }
    let sum: i64 = out.deltas.iter().map(|d| d.diff_iter().sum::<i64>()).sum();
    assert_eq!(sum, 0, "all that came has gone");
    assert_eq!(out.deltas.iter().map(Delta::num_rows).sum::<usize>(), 40_000);
    assert_eq!(operator.next_timer_us(), None);
    let mut left = Store::new();
    snapshot(&mut operator, &mut left);
    assert!(left.is_empty());
}
