//! Runs one case through its set-ups.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;

use super::values::*;
use crate::Delta;
use crate::hash::{hash_columns, owner, vnode};
use crate::operators::{Barrier, Operator, OperatorContext, Output, Progress, StateWriter};

/// An operator under test.
pub struct Case<'a> {
    pub name: String,
    pub inputs: Vec<SchemaRef>,
    /// Columns by which each input is routed; empty: all rows go to one task.
    pub routes: Vec<Vec<usize>>,
    pub make: &'a dyn Fn(&OperatorContext) -> Box<dyn Operator>,
    /// The relation that it maintains.
    pub naive: &'a dyn Fn(&[Zset]) -> Zset,
    pub append_only: bool,
}

type Store = BTreeMap<(u8, u8, Vec<u8>), Vec<u8>>;

/// One set-up of a case.
struct SetUp<'a> {
    case: &'a Case<'a>,
    tasks: Vec<Box<dyn Operator>>,
    store: Store,
    cut: u64,
    restores: bool,
    emitted: Zset,
}

impl<'a> SetUp<'a> {
    fn new(case: &'a Case<'a>, n_tasks: usize, cut: u64, restores: bool) -> Self {
        Self {
            case,
            tasks: make(case, n_tasks),
            store: Store::new(),
            cut,
            restores,
            emitted: Zset::new(),
        }
    }

    fn step(&mut self, epoch: u64, changes: &[Vec<(Row, i64)>], rng: &mut Rng) -> Result<Zset, String> {
        let n_tasks = self.tasks.len();
        let mut pushes: Vec<(usize, usize, Delta)> = Vec::new();
        for (input, rows) in changes.iter().enumerate() {
            let mut rows = rows.clone();
            if self.cut > 0 {
                rng.shuffle(&mut rows);
            }
            let mut from = 0;
            while from < rows.len() {
                let n = if self.cut == 0 {
                    rows.len()
                } else {
                    rng.below(self.cut) as usize + 1
                };
                let to = (from + n).min(rows.len());
                let whole = delta(&self.case.inputs[input], &rows[from..to]);
                for task in 0..n_tasks {
                    let part = route(&whole, &self.case.routes[input], task, n_tasks);
                    if part.num_rows() > 0 {
                        pushes.push((task, input, part));
                    }
                }
                from = to;
            }
        }
        if self.cut > 0 {
            rng.shuffle(&mut pushes);
        }
        let mut emitted = Vec::new();
        for (task, input, part) in pushes {
            let mut out = Output::default();
            let mut progress = self.tasks[task]
                .push(input, part, &mut out)
                .map_err(|e| e.to_string())?;
            while progress == Progress::More {
                progress = self.tasks[task].resume(&mut out).map_err(|e| e.to_string())?;
            }
            emitted.append(&mut out.deltas);
        }
        let barrier = Barrier {
            epoch,
            timestamp_us: 0,
            first: epoch == 0,
        };
        for task in &mut self.tasks {
            let mut out = Output::default();
            let mut progress = task.close(&barrier, &mut out).map_err(|e| e.to_string())?;
            while progress == Progress::More {
                progress = task.resume(&mut out).map_err(|e| e.to_string())?;
            }
            emitted.append(&mut out.deltas);
        }
        let emitted = zset(&emitted);
        self.emitted = sum([&self.emitted, &emitted]);
        if self.restores && rng.chance(50) {
            self.snapshot(rng.chance(20));
            if rng.chance(60) {
                self.restore([1, 2, 3, 5][rng.below(4) as usize]);
            }
        }
        Ok(emitted)
    }

    fn snapshot(&mut self, full: bool) {
        let store = &mut self.store;
        let mut seen = std::collections::BTreeSet::new();
        let mut put = |table: u8, vnode: u8, key: &[u8], value: Option<&[u8]>| {
            let at = (table, vnode, key.to_vec());
            assert!(seen.insert(at.clone()), "an entry is written twice in one snapshot");
            match value {
                Some(value) => {
                    store.insert(at, value.to_vec());
                }
                None => {
                    store.remove(&at);
                }
            }
        };
        for task in &mut self.tasks {
            task.snapshot(full, &mut StateWriter { put: &mut put }).unwrap();
        }
    }

    fn restore(&mut self, n_tasks: usize) {
        self.tasks = make(self.case, n_tasks);
        for ((table, vnode, key), value) in &self.store {
            let task = owner(*vnode, n_tasks);
            self.tasks[task].restore(*table, key, value).unwrap();
        }
    }
}

fn make(case: &Case<'_>, n_tasks: usize) -> Vec<Box<dyn Operator>> {
    (0..n_tasks)
        .map(|task| (case.make)(&OperatorContext { task, n_tasks }))
        .collect()
}

fn route(delta: &Delta, columns: &[usize], task: usize, n_tasks: usize) -> Delta {
    if columns.is_empty() {
        return if task == 0 { delta.clone() } else { delta.slice(0, 0) };
    }
    let keys: Vec<_> = columns.iter().map(|&c| delta.batch.column(c).clone()).collect();
    let hashes = hash_columns(&keys).unwrap();
    let mine = (0..hashes.len() as u32).filter(|&i| owner(vnode(hashes[i as usize]), n_tasks) == task);
    delta.take(&mine.collect::<Vec<_>>().into()).unwrap()
}

/// Random inserts, deletes and changes that keep every multiplicity at zero or above.
fn random_changes(
    rng: &mut Rng,
    schema: &SchemaRef,
    content: &mut Zset,
    append_only: bool,
    size: Size,
) -> Vec<(Row, i64)> {
    let mut changes = Vec::new();
    let mut present: Vec<Row> = content.keys().cloned().collect();
    for _ in 0..rng.below(size.changes + 1) {
        if !append_only && !present.is_empty() && rng.chance(45) {
            let at = rng.below(present.len() as u64) as usize;
            let row = present[at].clone();
            let Some(&count) = content.get(&row) else { continue };
            let gone = if rng.chance(50) { count } else { 1 };
            add(content, row.clone(), -gone);
            changes.push((row, -gone));
        } else {
            let row: Row = schema
                .fields()
                .iter()
                .map(|f| random(rng, f.data_type(), size.domain))
                .collect();
            let diff = if rng.chance(20) { rng.below(3) as i64 + 1 } else { 1 };
            add(content, row.clone(), diff);
            present.push(row.clone());
            changes.push((row, diff));
        }
    }
    if !append_only && rng.chance(5) {
        changes.extend(std::mem::take(content).into_iter().map(|(row, count)| (row, -count)));
    }
    changes
}

/// How much a step changes, and out of how many values.
#[derive(Clone, Copy)]
pub struct Size {
    pub changes: u64,
    pub domain: u64,
    /// Rows of a push, at most.
    pub cut: u64,
}

const SMALL: Size = Size {
    changes: 12,
    domain: 6,
    cut: 4,
};

/// Steps that reach B-trees, compaction and pieces of work.
pub const LARGE: Size = Size {
    changes: 4000,
    domain: 300,
    cut: 1000,
};

/// Runs a case with steps of a few rows; the error says what differs.
pub fn check(case: &Case<'_>, seed: u64, steps: u64) -> Result<(), String> {
    check_sized(case, seed, steps, SMALL)
}

/// Runs a case; the error says what differs.
pub fn check_sized(case: &Case<'_>, seed: u64, steps: u64, size: Size) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut set_ups = [
        SetUp::new(case, 1, 0, false),
        SetUp::new(case, 1, size.cut / 4, true),
        SetUp::new(case, 3, size.cut, true),
    ];
    let mut contents = vec![Zset::new(); case.inputs.len()];
    for epoch in 0..steps {
        let changes: Vec<Vec<(Row, i64)>> = contents
            .iter_mut()
            .zip(&case.inputs)
            .map(|(content, schema)| random_changes(&mut rng, schema, content, case.append_only, size))
            .collect();
        let mut first: Option<Zset> = None;
        let expected = (case.naive)(&contents);
        for (i, set_up) in set_ups.iter_mut().enumerate() {
            let place = format!("{}: seed {seed}, epoch {epoch}, set-up {i}", case.name);
            let emitted = set_up
                .step(epoch, &changes, &mut rng)
                .map_err(|e| format!("{place}: {e}"))?;
            match &first {
                None => first = Some(emitted),
                Some(first) if *first != emitted => {
                    return Err(format!(
                        "{place}: emitted\n{emitted:?}\nbut set-up 0\n{first:?}\nfor {changes:?}"
                    ));
                }
                Some(_) => {}
            }
            if set_up.emitted != expected {
                let negated: Zset = set_up.emitted.iter().map(|(r, c)| (r.clone(), -c)).collect();
                return Err(format!(
                    "{place}: expected minus emitted is\n{:?}\nfor {changes:?}",
                    sum([&expected, &negated])
                ));
            }
        }
    }
    Ok(())
}

/// Runs a case with several seeds; none: one run of large steps.
pub fn check_all(case: &Case<'_>, seeds: u64) {
    if seeds == 0
        && let Err(difference) = check_sized(case, 1, 12, LARGE)
    {
        panic!("{}", &difference[..difference.len().min(4000)]);
    }
    for seed in 0..seeds {
        if let Err(difference) = check(case, seed, 25) {
            panic!("{difference}");
        }
    }
}

/// Drives one operator through a step by hand.
pub fn step(operator: &mut dyn Operator, first: bool, pushes: Vec<(usize, Delta)>) -> Output {
    let mut out = Output::default();
    for (input, part) in pushes {
        let mut progress = operator.push(input, part, &mut out).unwrap();
        while progress == Progress::More {
            progress = operator.resume(&mut out).unwrap();
        }
    }
    let barrier = Barrier {
        epoch: 1,
        timestamp_us: 0,
        first,
    };
    let mut progress = operator.close(&barrier, &mut out).unwrap();
    while progress == Progress::More {
        progress = operator.resume(&mut out).unwrap();
    }
    out
}
