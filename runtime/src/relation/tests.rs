//! Relations against a plain map, under random runs, folds and reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use levee_planner::plan::ObjectId;

use levee_storage::delta_file::{DeltaBuilder, StateKey};
use levee_storage::rocks::RocksShared;
use levee_storage::tier::Tier;

use super::*;
use crate::Delta;

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
    Delta::consolidate(order.stored(), &[Delta::new(batch, diffs)], order.key()).unwrap()
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
            relation.publish(epoch, to, Some(StepOutput::Resident(delta(&order, &list))));
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
    }
}

/// A step's inner epochs cannot be read; its boundaries can.
#[test]
fn an_epoch_inside_a_step_is_not_readable() {
    let order = order(vec![]);
    let relation = Relation::new(ObjectId(1), Arc::clone(&order), Base::default());
    relation.publish(0, 8, Some(StepOutput::Resident(delta(&order, &[((1, None), 1)]))));
    assert_eq!(relation.boundary(5), 0);
    assert_eq!(relation.boundary(8), 8);
    assert_eq!(relation.step_end(5), 8);
    assert_eq!(relation.step_end(8), 8);
    assert!(relation.snapshot(5).is_err());
    relation.advance(20);
    assert_eq!(relation.boundary(13), 13);
    assert_eq!(relation.snapshot(13).unwrap().rows().unwrap().len(), 1);
}

/// A relation with what the coordinator and the checkpointer do for it.
struct Bench {
    order: Arc<RowOrder>,
    relation: Relation,
    governor: Arc<Governor>,
    tier: Arc<Tier>,
    rocks: RocksShared,
    dir: tempfile::TempDir,
    frozen: u64,
    files: u64,
}

impl Bench {
    fn new(key: Vec<usize>, limit: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let governor = Governor::new(limit);
        let rocks = RocksShared::new(4 << 20);
        let order = order(key);
        let relation = Relation::new(ObjectId(7), Arc::clone(&order), Base::default());
        Self {
            relation: relation.bounded(&governor, dir.path().join("runs")).unwrap(),
            tier: Tier::open(&rocks, &dir.path().join("tier")).unwrap(),
            order,
            governor,
            rocks,
            dir,
            frozen: 0,
            files: 0,
        }
    }

    /// Writes what has changed since the last checkpoint and offers the base.
    fn checkpoint(&mut self, epoch: u64) {
        let seq = self.relation.seq();
        self.checkpoint_at(epoch, seq);
    }

    /// The same of an epoch, and the run position then, that are not the newest.
    fn checkpoint_at(&mut self, epoch: u64, seq: u64) {
        let mut builder = DeltaBuilder::new();
        let snapshot = self.relation.snapshot(epoch).unwrap();
        // As when the tier lags, every third time.
        let completed = (!epoch.is_multiple_of(3)).then(|| Base::cold(epoch, 0, self.tier.snapshot(), 7));
        snapshot
            .changes_since(self.frozen, completed.as_ref(), &mut |row, count| {
                let key = StateKey {
                    region: 7,
                    operator: RELATION_OPERATOR,
                    table: 0,
                    vnode: 0,
                    key: row,
                };
                if count > 0 {
                    builder.put(key, &encode_count(count));
                } else {
                    builder.delete(key);
                }
                Ok(())
            })
            .unwrap();
        self.frozen = seq;
        if !builder.is_empty() {
            self.files += 1;
            let path = self.dir.path().join(format!("{}.sst", self.files));
            builder.write(&self.rocks, &path).unwrap();
            self.tier.ingest(&[path]).unwrap();
        }
        self.relation.offer(Offer {
            epoch,
            seq: self.frozen,
            rows: self.relation.rows_about(),
            snapshot: self.tier.snapshot(),
        });
    }
}

fn random_change(rng: &mut Lcg, model: &mut BTreeMap<Row, i64>, keyed: bool, rows: u64) -> Vec<(Row, i64)> {
    let mut change: BTreeMap<Row, i64> = BTreeMap::new();
    for _ in 0..rng.next(rows) {
        let k = rng.next(3000) as i32 - 1000;
        let s = (rng.next(4) > 0).then(|| format!("v{}", rng.next(5)));
        if keyed {
            // An update, an insertion or a deletion of the key's row.
            let old = model.range((k, None)..(k + 1, None)).next().map(|(r, _)| r.clone());
            let new = ((old.is_none() || rng.next(2) == 0) && rng.next(5) > 0).then_some((k, s));
            for (row, d) in old.into_iter().map(|r| (r, -1)).chain(new.map(|r| (r, 1))) {
                *change.entry(row.clone()).or_insert(0) += d;
                *model.entry(row.clone()).or_insert(0) += d;
                model.retain(|_, c| *c != 0);
            }
        } else {
            let row = (k % 300, s);
            let held = model.get(&row).copied().unwrap_or(0);
            let d = if held > 0 && rng.next(3) == 0 {
                -held
            } else {
                1 + rng.next(3) as i64
            };
            *change.entry(row.clone()).or_insert(0) += d;
            *model.entry(row).or_insert(0) += d;
            model.retain(|_, c| *c != 0);
        }
    }
    change.into_iter().filter(|(_, d)| *d != 0).collect()
}

/// Reads by every way at an epoch equal the model's rows.
fn check_reads(rng: &mut Lcg, order: &RowOrder, snapshot: &RelationSnapshot, model: &BTreeMap<Row, i64>) {
    let mut model: Vec<(Row, i64)> = model.iter().map(|(r, c)| (r.clone(), *c)).collect();
    if order.key().is_empty() {
        model.sort_by(|((k, s), _), ((l, t), _)| (s, k).cmp(&(t, l)));
    }
    let want: Vec<Row> = model
        .iter()
        .flat_map(|(r, c)| std::iter::repeat_n(r.clone(), *c as usize))
        .collect();
    assert!(rows_of(&snapshot.rows().unwrap()) == want, "rows differ");
    // From a place that was reached before.
    let skip = rng.next(model.len().max(1) as u64) as usize;
    if let Some((row, _)) = model.get(skip) {
        let one = delta(order, &[(row.clone(), 1)]);
        let encoded = order.encode(&one.batch).unwrap();
        let mut scan = snapshot.scan(Some(encoded.row(0).data()), None).unwrap();
        let mut found = Vec::new();
        while let Some(delta) = scan.next().unwrap() {
            let rows = rows_of(std::slice::from_ref(&delta.batch));
            found.extend(rows.into_iter().zip(delta.diff_iter()));
        }
        assert!(found == model[skip..], "rows from a place on differ");
        if !order.key().is_empty() {
            let keys = order.encode_keys(&[Arc::clone(one.batch.column(1))]).unwrap();
            let found = rows_of(&snapshot.batches(Some(keys.row(0).data())).unwrap());
            let want: Vec<Row> = want.iter().filter(|r| r.0 == row.0).cloned().collect();
            assert_eq!(found, want);
        }
    }
    if order.key().is_empty() {
        return;
    }
    // Few keys are looked up, many are read through.
    for n in [3, 400] {
        let probe: Vec<i32> = (0..n).map(|_| rng.next(3000) as i32 - 1000).collect();
        let keys = RecordBatch::try_from_iter([("k", Arc::new(Int32Array::from(probe.clone())) as ArrayRef)]).unwrap();
        let found = snapshot.contains_keys(&keys).unwrap();
        for (i, k) in probe.iter().enumerate() {
            assert_eq!(found.value(i), model.iter().any(|(r, _)| r.0 == *k), "key {k}");
        }
    }
}

/// I1 and I5 for storage: wherever base and runs are (memory, tier, spill files, joined), reads and the change log mean the same.
#[test]
fn cold_spilled_and_joined_relations_read_the_same() {
    let (mut cold, mut spilled, mut joined_runs) = (0, 0, 0);
    for (seed, key, limit) in [
        (1, vec![1], 1000),
        (2, vec![], 1000),
        (3, vec![1], 300_000),
        (4, vec![], 300_000),
        (5, vec![1], 1 << 30),
    ] {
        let mut rng = Lcg(seed);
        let keyed = !key.is_empty();
        let mut bench = Bench::new(key, limit);
        let mut model: BTreeMap<Row, i64> = BTreeMap::new();
        let mut versions: Vec<(u64, BTreeMap<Row, i64>)> = vec![(0, model.clone())];
        // A subscriber that lags, and what it has summed up.
        let (mut stand, mut summed) = (0, BTreeMap::<Row, i64>::new());
        let (mut epoch, mut completed, mut completed_seq) = (0, 0, 0);
        for round in 0..45 {
            let change = random_change(&mut rng, &mut model, keyed, if round % 9 == 0 { 900 } else { 30 });
            let to = epoch + 1 + rng.next(3);
            bench
                .relation
                .publish(epoch, to, Some(StepOutput::Resident(delta(&bench.order, &change))));
            epoch = to;
            versions.push((epoch, model.clone()));
            if rng.next(3) == 0 {
                bench.checkpoint(epoch);
                (completed, completed_seq) = (epoch, bench.frozen);
            }
            if rng.next(6) == 0 {
                for run in bench.relation.runs_between(stand, epoch).unwrap() {
                    let mut row = 0;
                    while row < run.num_rows() {
                        let piece = run.piece(row, 100).unwrap();
                        row += piece.num_rows();
                        for (r, d) in rows_of(std::slice::from_ref(&piece.batch))
                            .into_iter()
                            .zip(piece.diff_iter())
                        {
                            *summed.entry(r).or_insert(0) += d;
                        }
                    }
                }
                summed.retain(|_, c| *c != 0);
                assert!(summed == model, "seed {seed} round {round}: the log's sum differs");
                stand = epoch;
            }
            let readable = epoch.saturating_sub(10);
            let limits = Limits {
                horizon: stand.min(readable).min(completed),
                seq: completed_seq,
                readable,
                stands: vec![stand],
                seqs: vec![completed_seq, bench.frozen],
            };
            for joined in bench.relation.upkeep(&limits).unwrap() {
                joined_runs += 1;
                bench.relation.install(joined, &[stand]);
            }
            let (is_cold, runs_spilled) = bench.relation.cold();
            cold += usize::from(is_cold);
            spilled += runs_spilled;
            let oldest = bench.relation.base_epoch();
            let boundary = |e: u64| bench.relation.boundary(e) == e;
            let readable: Vec<_> = versions.iter().filter(|(e, _)| *e >= oldest && boundary(*e)).collect();
            assert!(
                readable.iter().any(|(e, _)| *e == stand),
                "the subscriber's place stays a boundary"
            );
            for (e, expected) in [
                readable[rng.next(readable.len() as u64) as usize],
                readable[readable.len() - 1],
            ] {
                check_reads(&mut rng, &bench.order, &bench.relation.snapshot(*e).unwrap(), expected);
            }
        }
        if limit == 1 << 30 {
            assert!(!bench.relation.cold().0, "there is room");
        }
        // Memory is given back.
        let Bench { relation, governor, .. } = bench;
        drop(relation);
        assert_eq!(governor.used_in_all(), 0);
    }
    assert!(
        cold > 50 && spilled > 100 && joined_runs > 4,
        "{cold} {spilled} {joined_runs}"
    );
}

/// A checkpoint's snapshot that waits for a laggard stays usable: the runs around its position are never summed together, whenever the
/// sum was made.
#[test]
fn an_offered_snapshot_is_a_boundary_of_joined_runs() {
    for late in [false, true] {
        let mut bench = Bench::new(vec![1], 1000);
        let row = |k: u64| ((k as i32, Some("x".to_owned())), 1);
        let publish = |bench: &Bench, epoch: u64| {
            let delta = delta(&bench.order, &[row(epoch)]);
            bench
                .relation
                .publish(epoch - 1, epoch, Some(StepOutput::Resident(delta)));
        };
        let limits = |horizon, seqs: Vec<u64>| Limits {
            horizon,
            seq: seqs.first().copied().unwrap_or(0),
            readable: 24,
            stands: vec![4],
            seqs,
        };
        // Something in memory that can go cold.
        (1..=4).for_each(|epoch| publish(&bench, epoch));
        bench.checkpoint_at(4, 4);
        bench.relation.upkeep(&limits(4, vec![4])).unwrap();
        assert_eq!(bench.relation.base_epoch(), 4);
        (5..=12).for_each(|epoch| publish(&bench, epoch));
        let mut joined = Vec::new();
        if late {
            // Summed while nothing was known of the checkpoint at 12.
            (13..=24).for_each(|epoch| publish(&bench, epoch));
            joined = bench.relation.upkeep(&limits(4, vec![4])).unwrap();
            assert!(!joined.is_empty());
            bench.checkpoint_at(12, 12);
        } else {
            bench.checkpoint_at(12, 12);
            (13..=24).for_each(|epoch| publish(&bench, epoch));
            joined.extend(bench.relation.upkeep(&limits(4, vec![4])).unwrap());
            assert!(!joined.is_empty());
        }
        for sum in joined {
            bench.relation.install(sum, &[4]);
        }
        // The laggard has not passed it yet: memory is short, so what it leaves behind is not taken into memory.
        bench.relation.upkeep(&limits(8, vec![8])).unwrap();
        assert_eq!(bench.relation.base_epoch(), 4);
        // The laggard has passed it.
        bench.relation.upkeep(&limits(12, vec![4])).unwrap();
        assert!(bench.relation.cold().0);
        let snapshot = bench.relation.snapshot(24).unwrap();
        let mut keys: Vec<i32> = rows_of(&snapshot.rows().unwrap()).into_iter().map(|r| r.0).collect();
        keys.sort_unstable();
        assert_eq!(keys, (1..=24).collect::<Vec<_>>(), "late {late}");
    }
}

/// Rows that are there several times are counted as often, also by a query that asks for no column.
#[test]
fn repeated_rows_without_columns_are_rows() {
    let order = order(vec![]);
    let delta = delta(&order, &[((1, None), 3), ((2, None), 1), ((3, None), 2)]);
    let none = Delta {
        batch: delta.batch.project(&[]).unwrap(),
        diffs: delta.diffs,
    };
    let mut rows = Vec::new();
    base::expand(&none, 4, &mut |batch| {
        rows.push(batch.num_rows());
        Ok(true)
    })
    .unwrap();
    assert_eq!(rows, [4, 2]);
}
