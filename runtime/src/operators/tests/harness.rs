//! Runs one case through its set-ups.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use levee_storage::delta_file::StateKey;

use super::values::*;
use crate::Delta;
use crate::hash::{hash_columns, owner, vnode};
use crate::operators::cold::{Cold, ColdReader, ColdScan};
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

/// Parts of an input for a task: task, input, delta.
type Pushes = Vec<(usize, usize, Delta)>;

/// One set-up of a case.
struct SetUp<'a> {
    case: &'a Case<'a>,
    tasks: Vec<Box<dyn Operator>>,
    store: Store,
    cut: u64,
    restores: bool,
    emitted: Zset,
    cold: Option<ColdRun>,
}

/// The cold tier in memory.
pub struct MemoryTier(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl ColdReader for Arc<MemoryTier> {
    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, &[u8]) -> crate::Result<()>) -> crate::Result<()> {
        for (i, key) in keys.iter().enumerate().rev() {
            if let Some(value) = self.0.get(*key) {
                f(i, value)?;
            }
        }
        Ok(())
    }

    fn scan(&self) -> crate::Result<Box<dyn ColdScan>> {
        Ok(Box::new(MemoryScan {
            tier: Arc::clone(self),
            prefix: Vec::new(),
            at: None,
        }))
    }
}

struct MemoryScan {
    tier: Arc<MemoryTier>,
    prefix: Vec<u8>,
    at: Option<Vec<u8>>,
}

impl ColdScan for MemoryScan {
    fn seek(&mut self, prefix: &[u8], from: &[u8]) -> crate::Result<()> {
        self.prefix = prefix.to_vec();
        self.at = Some(from.to_vec());
        Ok(())
    }

    fn next(&mut self) -> crate::Result<Option<(&[u8], &[u8])>> {
        let Some(from) = self.at.take() else { return Ok(None) };
        let Some((key, value)) = self.tier.0.range(from..).next() else {
            return Ok(None);
        };
        if !key.starts_with(&self.prefix) {
            return Ok(None);
        }
        let mut after = key.clone();
        after.push(0);
        self.at = Some(after);
        Ok(Some((key, value)))
    }
}

/// A set-up whose tasks hold as little as they can: after every step, and within, everything clean is evicted. Checkpoints complete late,
/// and tasks start again from the last one, with all of it restored or nothing.
struct ColdRun {
    tier: Arc<MemoryTier>,
    /// Snapshots that have not completed.
    frozen: VecDeque<Vec<(Vec<u8>, Option<Vec<u8>>)>>,
    /// Snapshots of the tasks' lives that have.
    completed: u32,
    /// Steps since the last completed checkpoint: epoch, pushes, output, and whether a snapshot followed.
    log: VecDeque<(u64, Pushes, Zset, bool)>,
    pub evicted: usize,
}

impl ColdRun {
    fn new() -> Self {
        Self {
            tier: Arc::new(MemoryTier(BTreeMap::new())),
            frozen: VecDeque::new(),
            completed: 0,
            log: VecDeque::new(),
            evicted: 0,
        }
    }

    fn reader(&self) -> Cold {
        Cold::new(Arc::new(Arc::clone(&self.tier)), 7, 9)
    }
}

/// Evicts all that can be.
fn evict_all(task: &mut dyn Operator) -> usize {
    let mut freed = 0;
    for _ in 0..2 {
        loop {
            let evicted = task.evict(usize::MAX);
            freed += evicted.bytes;
            if evicted.round {
                break;
            }
        }
    }
    freed
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
            cold: None,
        }
    }

    fn cold(case: &'a Case<'a>, n_tasks: usize, cut: u64) -> Self {
        Self {
            cold: Some(ColdRun::new()),
            ..Self::new(case, n_tasks, cut, false)
        }
    }

    fn step(&mut self, epoch: u64, changes: &[Vec<(Row, i64)>], rng: &mut Rng) -> Result<Zset, String> {
        let n_tasks = self.tasks.len();
        let mut pushes = Pushes::new();
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
        let emitted = self.run(epoch, &pushes, rng)?;
        self.emitted = sum([&self.emitted, &emitted]);
        if self.restores && rng.chance(50) {
            self.snapshot(rng.chance(20));
            if rng.chance(60) {
                self.restore([1, 2, 3, 5][rng.below(4) as usize]);
            }
        }
        if self.cold.is_some() {
            self.age(epoch, pushes, emitted.clone(), rng)?;
        }
        Ok(emitted)
    }

    /// Drives all tasks through a step.
    fn run(&mut self, epoch: u64, pushes: &Pushes, rng: &mut Rng) -> Result<Zset, String> {
        let mut evicted = 0;
        let mut between = |task: &mut dyn Operator, percent: u64| {
            if self.cold.is_some() && rng.chance(percent) {
                evicted += evict_all(task);
            }
        };
        let mut emitted = Vec::new();
        for (task, input, part) in pushes {
            let task = self.tasks[*task].as_mut();
            let mut out = Output::default();
            let mut progress = task.push(*input, part.clone(), &mut out).map_err(|e| e.to_string())?;
            while progress == Progress::More {
                between(task, 5);
                progress = task.resume(&mut out).map_err(|e| e.to_string())?;
            }
            between(task, 30);
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
                between(task.as_mut(), 5);
                progress = task.resume(&mut out).map_err(|e| e.to_string())?;
            }
            emitted.append(&mut out.deltas);
        }
        if let Some(cold) = &mut self.cold {
            cold.evicted += evicted;
        }
        Ok(zset(&emitted))
    }

    /// What happens to a cold set-up between steps.
    fn age(&mut self, epoch: u64, pushes: Pushes, emitted: Zset, rng: &mut Rng) -> Result<(), String> {
        let snapshot = rng.chance(40);
        if snapshot {
            self.freeze();
        }
        let Some(cold) = &mut self.cold else { return Ok(()) };
        cold.log.push_back((epoch, pushes, emitted, snapshot));
        while !cold.frozen.is_empty() && rng.chance(45) {
            let mut entries = cold.tier.0.clone();
            for (key, value) in cold.frozen.pop_front().unwrap_or_default() {
                match value {
                    Some(value) => entries.insert(key, value),
                    None => entries.remove(&key),
                };
            }
            cold.tier = Arc::new(MemoryTier(entries));
            while cold.log.pop_front().is_some_and(|step| !step.3) {}
            cold.completed += 1;
            for task in &mut self.tasks {
                task.snapshot_completed(cold.completed, Some(cold.reader()));
            }
        }
        if rng.chance(80) {
            for task in &mut self.tasks {
                cold.evicted += evict_all(task.as_mut());
            }
        }
        self.tasks.iter_mut().for_each(|t| t.compact());
        if rng.chance(15) {
            self.start_again(rng)?;
        }
        Ok(())
    }

    /// Takes a snapshot that is not completed yet.
    fn freeze(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        let mut delta = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut put = |table: u8, vnode: u8, key: &[u8], value: Option<&[u8]>| {
            let mut encoded = Vec::new();
            StateKey {
                region: 7,
                operator: 9,
                table,
                vnode,
                key,
            }
            .encode(&mut encoded);
            assert!(
                seen.insert(encoded.clone()),
                "an entry is written twice in one snapshot"
            );
            delta.push((encoded, value.map(<[u8]>::to_vec)));
        };
        for task in &mut self.tasks {
            task.snapshot(false, &mut StateWriter { put: &mut put }).unwrap();
        }
        cold.frozen.push_back(delta);
    }

    /// All tasks start again from the last completed checkpoint and take the steps since then again.
    fn start_again(&mut self, rng: &mut Rng) -> Result<(), String> {
        let n_tasks = self.tasks.len();
        self.tasks = make(self.case, n_tasks);
        let Some(cold) = &mut self.cold else { return Ok(()) };
        let whole = rng.chance(30) || !self.tasks[0].caches();
        for task in &mut self.tasks {
            task.attach(cold.reader(), whole);
        }
        if whole {
            for (key, value) in &cold.tier.0 {
                let key = StateKey::decode(key).unwrap();
                let task = owner(key.vnode, n_tasks);
                self.tasks[task].restore(key.table, key.key, value).unwrap();
            }
        }
        cold.frozen.clear();
        cold.completed = 0;
        let log = cold.log.clone();
        for (epoch, pushes, emitted, snapshot) in &log {
            let again = self.run(*epoch, pushes, rng)?;
            if again != *emitted {
                return Err(format!(
                    "replay of epoch {epoch} emitted\n{again:?}\nand before\n{emitted:?}"
                ));
            }
            if *snapshot {
                self.freeze();
            }
        }
        Ok(())
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
    let mut set_ups = vec![
        SetUp::new(case, 1, 0, false),
        SetUp::new(case, 1, size.cut / 4, true),
        SetUp::new(case, 3, size.cut, true),
        SetUp::cold(case, 1, size.cut),
    ];
    if size.changes < LARGE.changes {
        set_ups.push(SetUp::cold(case, 3, size.cut));
    }
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
