//! Upsert against a plain fold of the log, however it is cut into steps, tasks and lives.

use std::collections::BTreeMap;

use arrow::datatypes::*;

use super::harness::step;
use super::values::*;
use crate::hash::{hash_columns, owner, vnode};
use crate::operators::fault::{self, Fault};
use crate::operators::upsert::Upsert;
use crate::operators::{Operator, StateWriter};

/// Rows (value, key, text), the key in the middle.
fn rows() -> SchemaRef {
    schema(&[DataType::Int64, DataType::Int64, DataType::Utf8])
}

fn records() -> SchemaRef {
    let mut fields: Vec<Field> = rows().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields.extend(crate::sources::hidden_fields());
    Schema::new(fields).into()
}

#[derive(Debug, Clone)]
enum Change {
    /// Key, row or delete, lane, offset.
    Record(i64, Option<Row>, i64, i64),
    /// A table's own write: the row that it saw, and the row that it leaves.
    Write(Option<Row>, Option<Row>),
}

impl Change {
    fn key(&self) -> i64 {
        let of = |row: &Row| if let V::Int(k) = row[1] { k } else { 0 };
        match self {
            Change::Record(key, ..) => *key,
            Change::Write(old, new) => of(old.as_ref().or(new.as_ref()).unwrap()),
        }
    }
}

/// A log of epochs. A key's records stand in one lane of each generation; a write ends its epoch.
fn log(rng: &mut Rng, epochs: u64, keys: u64, writes: bool) -> Vec<Vec<Change>> {
    let mut offsets = BTreeMap::new();
    let mut now: BTreeMap<i64, Row> = BTreeMap::new();
    let mut log = Vec::new();
    for epoch in 0..epochs {
        // Later in the log there are more splits.
        let generation = i64::from(epoch >= epochs / 2);
        let mut changes = Vec::new();
        for _ in 0..rng.below(12) {
            let key = rng.below(keys) as i64;
            let split = if generation == 0 { key % 2 } else { 2 - key % 3 };
            let lane = generation << 32 | split;
            let offset = offsets.entry(split).or_insert(0);
            *offset += 1 + rng.below(3) as i64;
            let row = rng.chance(70).then(|| random_row(rng, key));
            changes.push(Change::Record(key, row.clone(), lane, *offset));
            match row {
                Some(row) => now.insert(key, row),
                None => now.remove(&key),
            };
        }
        if writes && rng.chance(50) {
            let key = rng.below(keys) as i64;
            let new = rng.chance(60).then(|| random_row(rng, key));
            // What the writer saw may be older than what the table holds by now.
            let old = if rng.chance(50) {
                now.get(&key).cloned()
            } else {
                Some(random_row(rng, key))
            };
            if old.is_some() || new.is_some() {
                changes.push(Change::Write(old, new.clone()));
                match new {
                    Some(row) => now.insert(key, row),
                    None => now.remove(&key),
                };
            }
        }
        log.push(changes);
    }
    log
}

fn random_row(rng: &mut Rng, key: i64) -> Row {
    vec![
        random(rng, &DataType::Int64, 3),
        V::Int(key),
        random(rng, &DataType::Utf8, 3),
    ]
}

fn fold<'a>(changes: impl Iterator<Item = &'a Change>) -> Zset {
    let mut now: BTreeMap<i64, Row> = BTreeMap::new();
    for change in changes {
        let (Change::Record(_, row, ..) | Change::Write(_, row)) = change;
        match row {
            Some(row) => now.insert(change.key(), row.clone()),
            None => now.remove(&change.key()),
        };
    }
    now.into_values().map(|row| (row, 1)).collect()
}

struct SetUp {
    tasks: Vec<Upsert>,
    store: BTreeMap<(u8, Vec<u8>), Vec<u8>>,
    emitted: Zset,
}

fn tasks(n: usize) -> Vec<Upsert> {
    (0..n).map(|_| Upsert::new(&[1], &rows()).unwrap()).collect()
}

impl SetUp {
    fn new(n_tasks: usize) -> Self {
        Self {
            tasks: tasks(n_tasks),
            store: BTreeMap::new(),
            emitted: Zset::new(),
        }
    }

    fn step(&mut self, rng: &mut Rng, changes: &[Change]) -> Zset {
        let (mut input, mut written) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                Change::Record(key, row, lane, offset) => {
                    let mut all = row.clone().unwrap_or(vec![V::Null, V::Int(*key), V::Null]);
                    all.extend([V::Bool(row.is_none()), V::Int(*lane), V::Int(*offset)]);
                    input.push((all, 1));
                }
                Change::Write(old, new) => {
                    written.extend(old.iter().map(|r| (r.clone(), -1)));
                    written.extend(new.iter().map(|r| (r.clone(), 1)));
                }
            }
        }
        rng.shuffle(&mut input);
        rng.shuffle(&mut written);
        let n = self.tasks.len();
        let mut emitted = Vec::new();
        for (task, operator) in self.tasks.iter_mut().enumerate() {
            let mut pushes = Vec::new();
            for (number, schema, rows) in [(0, records(), &input), (1, self::rows(), &written)] {
                for part in rows.chunks(rng.below(4) as usize + 1) {
                    let part = delta(&schema, part);
                    let hashes = hash_columns(&[part.batch.column(1).clone()]).unwrap();
                    let mine = (0..hashes.len() as u32).filter(|&i| owner(vnode(hashes[i as usize]), n) == task);
                    let part = part.take(&mine.collect::<Vec<_>>().into()).unwrap();
                    if part.num_rows() > 0 {
                        pushes.push((number, part));
                    }
                }
            }
            rng.shuffle(&mut pushes);
            emitted.extend(step(operator, false, pushes).deltas);
        }
        let emitted = zset(&emitted);
        self.emitted = sum([&self.emitted, &emitted]);
        emitted
    }

    fn live_again(&mut self, rng: &mut Rng) {
        let store = &mut self.store;
        let mut put = |table: u8, _vnode: u8, key: &[u8], value: Option<&[u8]>| {
            let at = (table, key.to_vec());
            match value {
                Some(value) => store.insert(at, value.to_vec()),
                None => store.remove(&at),
            };
        };
        let full = rng.chance(20);
        for task in &mut self.tasks {
            task.snapshot(full, &mut StateWriter { put: &mut put }).unwrap();
        }
        if rng.chance(50) {
            let n = [1, 2, 3][rng.below(3) as usize];
            self.tasks = tasks(n);
            for ((table, key), value) in &self.store {
                // The hash stands behind the version byte.
                let hash = u64::from_le_bytes(value[1..9].try_into().unwrap());
                self.tasks[owner(vnode(hash), n)].restore(*table, key, value).unwrap();
            }
        }
    }
}

/// Runs one log, each set-up with its own steps; a step ends at a write.
fn check(seed: u64, writes: bool) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let log = log(&mut rng, 40, 7, writes);
    let mut set_ups: Vec<(SetUp, u64, bool)> = vec![
        (SetUp::new(1), 1, false),
        (SetUp::new(2), 5, false),
        (SetUp::new(3), 9, true),
    ];
    for (number, (set_up, longest, restores)) in set_ups.iter_mut().enumerate() {
        let mut from = 0;
        while from < log.len() {
            let mut to = (from + 1 + rng.below(*longest) as usize).min(log.len());
            let written = |e: &usize| log[*e].iter().any(|c| matches!(c, Change::Write(..)));
            if let Some(first) = (from..to).find(written) {
                to = first + 1;
            }
            let changes: Vec<Change> = log[from..to].concat();
            set_up.step(&mut rng, &changes);
            let expected = fold(log[..to].iter().flatten());
            if set_up.emitted != expected {
                return Err(format!(
                    "seed {seed}, set-up {number}, epochs {from} to {to}: {:?}\nbut expected {expected:?}",
                    set_up.emitted
                ));
            }
            if *restores {
                set_up.live_again(&mut rng);
            }
            from = to;
        }
    }
    Ok(())
}

#[test]
fn the_newest_record_of_each_key_is_its_row_however_steps_are_cut() {
    for seed in 0..60 {
        assert_eq!(check(seed, false), Ok(()));
    }
}

#[test]
fn own_writes_are_newer_than_the_records_of_their_step() {
    for seed in 0..60 {
        assert_eq!(check(seed, true), Ok(()));
    }
}

#[test]
fn a_planted_fault_is_found() {
    fault::set(Some(Fault::Upsert));
    let found = (0..5).any(|seed| check(seed, false).is_err());
    fault::set(None);
    assert!(found);
}

#[test]
fn equal_records_change_nothing() {
    let mut set_up = SetUp::new(1);
    let mut rng = Rng::new(1);
    let row: Row = vec![V::Int(5), V::Int(1), V::Text("a".into())];
    let record = |offset, row: Option<&Row>| Change::Record(1, row.cloned(), 0, offset);
    assert_eq!(set_up.step(&mut rng, &[record(1, Some(&row))]).len(), 1);
    assert!(set_up.step(&mut rng, &[record(2, Some(&row))]).is_empty());
    assert!(
        set_up
            .step(&mut rng, &[record(3, None), record(4, Some(&row))])
            .is_empty()
    );
    assert_eq!(set_up.step(&mut rng, &[record(5, None)]).values().sum::<i64>(), -1);
    assert!(set_up.step(&mut rng, &[record(6, None)]).is_empty());
    assert!(set_up.tasks[0].state_bytes() > 0);
}

#[test]
fn a_row_that_is_all_key_is_kept_too() {
    let schema = schema(&[DataType::Int64]);
    let mut operator = Upsert::new(&[0], &schema).unwrap();
    let mut fields: Vec<Field> = vec![schema.field(0).clone()];
    fields.extend(crate::sources::hidden_fields());
    let record = |delete, offset| {
        let row = vec![V::Int(1), V::Bool(delete), V::Int(0), V::Int(offset)];
        delta(&Schema::new(fields.clone()).into(), &[(row, 1)])
    };
    let out = step(&mut operator, false, vec![(0, record(false, 1))]);
    assert_eq!(zset(&out.deltas), [(vec![V::Int(1)], 1)].into());
    let out = step(&mut operator, false, vec![(0, record(true, 2))]);
    assert_eq!(zset(&out.deltas), [(vec![V::Int(1)], -1)].into());
}
