//! Relations against a plain map, under random runs, folds and reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use levee_planner::plan::ObjectId;

use super::*;

fn order(key: Vec<usize>) -> Arc<RowOrder> {
    let schema = Schema::new(vec![
        Field::new("s", DataType::Utf8, true),
        Field::new("k", DataType::Int32, false),
    ]);
    Arc::new(RowOrder::new(Arc::new(schema), key).unwrap())
}

type Row = (i32, Option<String>);

fn delta(order: &RowOrder, rows: &[(Row, i64)]) -> Delta {
    let s: StringArray = rows.iter().map(|((_, s), _)| s.clone()).collect();
    let k: Int32Array = rows.iter().map(|((k, _), _)| Some(*k)).collect();
    let batch = RecordBatch::try_new(Arc::clone(order.schema()), vec![Arc::new(s), Arc::new(k)]).unwrap();
    let diffs = rows.iter().map(|(_, d)| *d).collect();
    Delta::consolidate(order.schema(), &[Delta::new(batch, diffs)], order.key()).unwrap()
}

fn rows_of(batches: &[RecordBatch]) -> Vec<Row> {
    let mut out = Vec::new();
    for b in batches {
        let s = b.column(0).as_any().downcast_ref::<StringArray>().unwrap();
        let k = b.column(1).as_any().downcast_ref::<Int32Array>().unwrap();
        for i in 0..b.num_rows() {
            out.push((k.value(i), s.is_valid(i).then(|| s.value(i).to_owned())));
        }
    }
    out
}

struct Lcg(u64);
impl Lcg {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// I1 for storage: whatever is folded, a read at an epoch sees exactly the sum of the runs up to it.
#[test]
fn reads_equal_a_map_at_every_readable_epoch() {
    for seed in 0..20 {
        let mut rng = Lcg(seed);
        let order = order(vec![1]);
        let relation = Relation::new(ObjectId(1), Arc::clone(&order), Base::default());
        let mut model: BTreeMap<Row, i64> = BTreeMap::new();
        let mut versions: Vec<(u64, BTreeMap<Row, i64>)> = vec![(0, model.clone())];
        let mut epoch = 0;
        for _ in 0..30 {
            let mut change: BTreeMap<Row, i64> = BTreeMap::new();
            for _ in 0..rng.next(400) {
                let existing = model
                    .iter()
                    .nth(rng.next(model.len().max(1) as u64) as usize)
                    .map(|(r, _)| r.clone());
                match existing {
                    Some(row) if rng.next(3) == 0 => {
                        if model[&row] + change.get(&row).copied().unwrap_or(0) > 0 {
                            *change.entry(row).or_insert(0) -= 1;
                        }
                    }
                    _ => {
                        let s = (rng.next(4) > 0).then(|| format!("v{}", rng.next(5)));
                        *change.entry((rng.next(200_000) as i32 - 1000, s)).or_insert(0) += 1;
                    }
                }
            }
            let list: Vec<(Row, i64)> = change
                .iter()
                .filter(|(_, d)| **d != 0)
                .map(|(r, d)| (r.clone(), *d))
                .collect();
            for (r, d) in &list {
                let c = model.entry(r.clone()).or_insert(0);
                *c += d;
                if *c == 0 {
                    model.remove(r);
                }
            }
            let to = epoch + 1 + rng.next(3);
            relation.publish(epoch, to, Some(delta(&order, &list)));
            epoch = to;
            versions.push((epoch, model.clone()));
            if rng.next(4) == 0 {
                let horizon = versions[rng.next(versions.len() as u64) as usize].0;
                relation.fold(horizon, u64::MAX).unwrap();
            }
            let base = relation.base_epoch();
            for (e, expected) in versions.iter().filter(|(e, _)| *e >= base) {
                let got = rows_of(&relation.snapshot(*e).unwrap().rows().unwrap());
                let want: Vec<Row> = expected
                    .iter()
                    .flat_map(|(r, c)| std::iter::repeat_n(r.clone(), *c as usize))
                    .collect();
                assert_eq!(got, want, "seed {seed} epoch {e}");
            }
        }
        let snapshot = relation.snapshot(epoch).unwrap();
        let probe: Vec<i32> = (0..50)
            .map(|_| rng.next(200_000) as i32 - 1000)
            .chain(model.keys().map(|r| r.0))
            .collect();
        let keys = RecordBatch::try_from_iter([("k", Arc::new(Int32Array::from(probe.clone())) as ArrayRef)]).unwrap();
        let found = snapshot.contains_keys(&keys).unwrap();
        for (i, k) in probe.iter().enumerate() {
            assert_eq!(found.value(i), model.keys().any(|r| r.0 == *k), "key {k}");
        }
        let since = relation
            .runs_between(relation.base_epoch(), epoch)
            .unwrap()
            .first()
            .map_or(0, |r| r.seq - 1);
        snapshot
            .changes_since(since, &mut |row, count| {
                let decoded = rows_of(&[order.decode(std::iter::once(row)).unwrap()]).remove(0);
                assert_eq!(count, model.get(&decoded).copied().unwrap_or(0));
                Ok(())
            })
            .unwrap();
    }
}

/// A step's inner epochs cannot be read; its boundaries can.
#[test]
fn an_epoch_inside_a_step_is_not_readable() {
    let order = order(vec![]);
    let relation = Relation::new(ObjectId(1), Arc::clone(&order), Base::default());
    relation.publish(0, 8, Some(delta(&order, &[((1, None), 1)])));
    assert_eq!(relation.boundary(5), 0);
    assert_eq!(relation.boundary(8), 8);
    assert_eq!(relation.step_end(5), 8);
    assert_eq!(relation.step_end(8), 8);
    assert!(relation.snapshot(5).is_err());
    relation.advance(20);
    assert_eq!(relation.boundary(13), 13);
    assert_eq!(relation.snapshot(13).unwrap().rows().unwrap().len(), 1);
}
