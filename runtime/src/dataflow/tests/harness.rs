//! Plans, operators, a model and a small coordinator for the tests.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, PrimitiveArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use levee_planner::plan::*;
use parking_lot::Mutex;

use crate::dataflow::program::OperatorFactory;
use crate::dataflow::*;
use crate::hash::{hash_i64, vnode};
use crate::operators::cold::{Cold, ColdReader, Evicted};
use crate::operators::tests::MemoryTier;
use crate::operators::{Operator, OperatorContext, Output, Progress, StateWriter};
use crate::{Delta, Result};

pub(super) const TABLE: ObjectId = ObjectId(10);
pub(super) const OTHER: ObjectId = ObjectId(11);
pub(super) const WAIT: Duration = Duration::from_secs(60);

pub(super) fn schema(columns: &[&str]) -> SchemaRef {
    Arc::new(Schema::new(
        columns
            .iter()
            .map(|c| Field::new(*c, DataType::Int64, true))
            .collect::<Vec<_>>(),
    ))
}

/// Rows of (key, value) with diffs.
pub(super) fn delta(rows: &[(i64, i64, i64)]) -> Delta {
    let column =
        |f: &dyn Fn(&(i64, i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(f))) as ArrayRef;
    let batch = RecordBatch::try_new(schema(&["k", "v"]), vec![column(&|r| r.0), column(&|r| r.1)]).unwrap();
    Delta::new(batch, rows.iter().map(|r| r.2).collect())
}

/// What [`rows_of`] shows for NULL.
pub(super) const NULL: i64 = i64::MIN;

pub(super) fn rows_of(delta: &Delta) -> Vec<(Vec<i64>, i64)> {
    let columns: Vec<_> = delta
        .batch
        .columns()
        .iter()
        .map(|c| c.as_primitive::<Int64Type>().clone())
        .collect();
    (0..delta.num_rows())
        .map(|i| {
            let value = |c: &PrimitiveArray<Int64Type>| if c.is_null(i) { NULL } else { c.value(i) };
            (columns.iter().map(value).collect(), delta.diff(i))
        })
        .collect()
}

pub(super) fn node(id: u32, op: StreamOp, inputs: Vec<StreamNode>, columns: &[&str]) -> StreamNode {
    StreamNode {
        id: OperatorId(id),
        op,
        inputs,
        schema: schema(columns),
        props: StreamProps::default(),
    }
}

pub(super) fn scan(id: u32, relation: ObjectId) -> StreamNode {
    node(
        id,
        StreamOp::Scan {
            relation,
            name: "t".into(),
            projection: vec![0, 1],
        },
        vec![],
        &["k", "v"],
    )
}

pub(super) fn receive(id: u32, edge: u32) -> StreamNode {
    node(id, StreamOp::Receive { edge: EdgeId(edge) }, vec![], &["k", "v"])
}

/// Sum of `v` by `k`, as (k, sum).
pub(super) fn sum(id: u32, input: StreamNode) -> StreamNode {
    node(
        id,
        StreamOp::Aggregate {
            group_by: vec![0],
            aggs: vec![],
        },
        vec![input],
        &["k", "v"],
    )
}

pub(super) fn pass(id: u32, input: StreamNode) -> StreamNode {
    node(
        id,
        StreamOp::Map {
            predicate: None,
            exprs: None,
        },
        vec![input],
        &["k", "v"],
    )
}

pub(super) fn union(id: u32, inputs: Vec<StreamNode>) -> StreamNode {
    node(id, StreamOp::Union, inputs, &["k", "v"])
}

/// Emits its input `times` times, in as many pieces.
pub(super) fn explode(id: u32, times: u64, input: StreamNode) -> StreamNode {
    let op = StreamOp::TopN {
        partition_by: vec![],
        order_by: vec![],
        limit: Some(times),
        offset: 0,
        row_number: false,
    };
    node(id, op, vec![input], &["k", "v"])
}

pub(super) fn graph(fragments: Vec<(StreamNode, bool)>, edges: Vec<(u32, u32, ExchangeKind)>) -> FragmentGraph {
    FragmentGraph {
        fragments: fragments
            .into_iter()
            .enumerate()
            .map(|(i, (root, single))| Fragment {
                id: FragmentId(i as u32),
                root,
                single,
            })
            .collect(),
        edges: edges
            .into_iter()
            .enumerate()
            .map(|(i, (from, to, kind))| Edge {
                id: EdgeId(i as u32),
                from: FragmentId(from),
                to: FragmentId(to),
                kind,
                schema: schema(&["k", "v"]),
            })
            .collect(),
    }
}

/// scan → hash(k) → sum.
pub(super) fn sum_graph() -> FragmentGraph {
    graph(
        vec![(pass(2, scan(1, TABLE)), false), (sum(4, receive(3, 0)), false)],
        vec![(0, 1, ExchangeKind::Hash(vec![0]))],
    )
}

/// Makes the task that makes the n-th call from now panic.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) countdown: AtomicI64,
    /// Operators that began with state in the cold tier, and bytes that they have evicted.
    pub(super) attached: AtomicI64,
    pub(super) evicted: AtomicI64,
    /// Only this operator counts, if set.
    pub(super) only: Option<u32>,
}

impl Faults {
    fn hit(&self, operator: u32) {
        if self.only.is_some_and(|o| o != operator) {
            return;
        }
        if self.countdown.fetch_sub(1, Ordering::SeqCst) == 1 {
            panic!("planted in operator {operator}");
        }
    }
}

pub(super) fn factory(faults: &Arc<Faults>) -> Arc<OperatorFactory> {
    let faults = Arc::clone(faults);
    Arc::new(move |node: &StreamNode, _: &[SchemaRef], _: &OperatorContext| {
        let inner: Box<dyn Operator> = match &node.op {
            StreamOp::Aggregate { .. } => Box::<Sum>::default(),
            StreamOp::TopN { limit, .. } => Box::new(Explode {
                times: limit.unwrap_or(1),
                left: None,
            }),
            _ => Box::new(Pass),
        };
        Ok(Box::new(Faulty {
            inner,
            id: node.id.0,
            faults: Arc::clone(&faults),
        }) as Box<dyn Operator>)
    })
}

/// The engine's operators, with faults.
pub(super) fn real_factory(faults: &Arc<Faults>) -> Arc<OperatorFactory> {
    let faults = Arc::clone(faults);
    Arc::new(move |node: &StreamNode, schemas: &[SchemaRef], ctx: &OperatorContext| {
        let inner = crate::operators::instantiate(node, schemas, ctx)?;
        Ok(Box::new(Faulty {
            inner,
            id: node.id.0,
            faults: Arc::clone(&faults),
        }) as Box<dyn Operator>)
    })
}

struct Faulty {
    inner: Box<dyn Operator>,
    id: u32,
    faults: Arc<Faults>,
}

impl Operator for Faulty {
    fn push(&mut self, input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        self.faults.hit(self.id);
        self.inner.push(input, delta, out)
    }
    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.faults.hit(self.id);
        self.inner.close(barrier, out)
    }
    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        self.faults.hit(self.id);
        self.inner.resume(out)
    }
    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        self.faults.hit(self.id);
        self.inner.snapshot(full, out)
    }
    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.restore(table, key, value)
    }
    fn caches(&self) -> bool {
        self.inner.caches()
    }
    fn attach(&mut self, cold: Cold, complete: bool) {
        self.faults.attached.fetch_add(1, Ordering::SeqCst);
        self.inner.attach(cold, complete);
    }
    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        self.inner.snapshot_completed(n, cold);
    }
    fn evict(&mut self, bytes: usize) -> Evicted {
        self.faults.hit(self.id);
        let evicted = self.inner.evict(bytes);
        self.faults.evicted.fetch_add(evicted.bytes as i64, Ordering::SeqCst);
        evicted
    }
    fn compact(&mut self) {
        self.inner.compact();
    }
    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }
    fn live_bytes(&self) -> usize {
        self.inner.live_bytes()
    }
    fn pinned_bytes(&self) -> usize {
        self.inner.pinned_bytes()
    }
}

struct Pass;

impl Operator for Pass {
    fn push(&mut self, _: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        out.emit(delta);
        Ok(Progress::Done)
    }
    fn close(&mut self, _: &Barrier, _: &mut Output) -> Result<Progress> {
        Ok(Progress::Done)
    }
}

struct Explode {
    times: u64,
    left: Option<(Delta, u64)>,
}

impl Operator for Explode {
    fn push(&mut self, _: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        assert!(self.left.is_none(), "pushed while work was left");
        self.left = Some((delta, self.times));
        self.resume(out)
    }
    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        let Some((delta, left)) = &mut self.left else {
            return Ok(Progress::Done);
        };
        out.emit(delta.clone());
        *left -= 1;
        if *left > 0 {
            return Ok(Progress::More);
        }
        self.left = None;
        Ok(Progress::Done)
    }
    fn close(&mut self, _: &Barrier, _: &mut Output) -> Result<Progress> {
        assert!(self.left.is_none(), "closed while work was left");
        Ok(Progress::Done)
    }
}

/// Group → (sum, count); emits (k, sum) of groups with rows.
#[derive(Default)]
struct Sum {
    groups: BTreeMap<i64, (i64, i64)>,
    /// Groups touched in this step, with what was emitted before.
    touched: BTreeMap<i64, Option<i64>>,
    dirty: BTreeMap<i64, ()>,
}

impl Operator for Sum {
    fn push(&mut self, _: usize, delta: Delta, _: &mut Output) -> Result<Progress> {
        for (row, diff) in rows_of(&delta) {
            let group = self.groups.entry(row[0]).or_default();
            let before = (group.1 != 0).then_some(group.0);
            self.touched.entry(row[0]).or_insert(before);
            group.0 += row[1] * diff;
            group.1 += diff;
            self.dirty.insert(row[0], ());
        }
        Ok(Progress::Done)
    }
    fn close(&mut self, _: &Barrier, out: &mut Output) -> Result<Progress> {
        let mut rows = Vec::new();
        for (k, before) in std::mem::take(&mut self.touched) {
            let (sum, count) = self.groups[&k];
            let after = (count != 0).then_some(sum);
            if before != after {
                rows.extend(before.map(|v| (k, v, -1)));
                rows.extend(after.map(|v| (k, v, 1)));
            }
            if count == 0 {
                assert_eq!(sum, 0);
                self.groups.remove(&k);
            }
        }
        if !rows.is_empty() {
            out.emit(delta(&rows));
        }
        Ok(Progress::Done)
    }
    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        assert!(!full);
        for (k, ()) in std::mem::take(&mut self.dirty) {
            let value = self
                .groups
                .get(&k)
                .map(|(s, c)| [s.to_le_bytes(), c.to_le_bytes()].concat());
            (out.put)(7, vnode(hash_i64(k)), &k.to_be_bytes(), value.as_deref());
        }
        Ok(())
    }
    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        assert_eq!(table, 7);
        let int = |b: &[u8]| i64::from_le_bytes(b.try_into().unwrap());
        let k = i64::from_be_bytes(key.try_into().unwrap());
        assert!(self.groups.insert(k, (int(&value[..8]), int(&value[8..]))).is_none());
        Ok(())
    }
    fn state_bytes(&self) -> usize {
        self.groups.len() * 24
    }
}

type StateKey = (u32, u8, u8, Vec<u8>);

/// Durable state, as the coordinator's checkpoints would hold it.
#[derive(Default, Clone)]
pub(super) struct Store(pub(super) BTreeMap<StateKey, Vec<u8>>);

impl Store {
    pub(super) fn apply(&mut self, delta: &StateDelta) {
        for entry in delta.iter() {
            let at = (entry.operator, entry.table, entry.vnode, entry.key.to_vec());
            match entry.value {
                Some(value) => self.0.insert(at, value.to_vec()),
                None => self.0.remove(&at),
            };
        }
    }
}

impl StateReader for Store {
    fn cold(&self) -> Option<(Arc<dyn ColdReader>, u32)> {
        let encode = |(operator, table, vnode, key): &StateKey| {
            let mut out = Vec::new();
            levee_storage::delta_file::StateKey {
                region: 1,
                operator: *operator,
                table: *table,
                vnode: *vnode,
                key,
            }
            .encode(&mut out);
            out
        };
        let entries = self.0.iter().map(|(k, v)| (encode(k), v.clone())).collect();
        Some((Arc::new(Arc::new(MemoryTier(entries))), 1))
    }

    fn scan(
        &self,
        operator: u32,
        vnodes: RangeInclusive<u8>,
        f: &mut dyn FnMut(u8, u8, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.0
            .iter()
            .filter(|((o, _, v, _), _)| *o == operator && vnodes.contains(v))
            .try_for_each(|((_, t, v, k), value)| f(*t, *v, k, value))
    }
}

/// What a region told.
pub(super) enum Told {
    Step(Box<StepResult>),
    Restarted(TaskInfo),
    Failed(String),
}

struct Events(Mutex<Sender<(ObjectId, Told)>>);

impl RegionEvents for Events {
    fn step_done(&self, region: ObjectId, result: StepResult) {
        drop(self.0.lock().send((region, Told::Step(Box::new(result)))));
    }
    fn task_restarted(&self, region: ObjectId, task: &TaskInfo, _: &str) {
        drop(self.0.lock().send((region, Told::Restarted(task.clone()))));
    }
    fn region_failed(&self, region: ObjectId, reason: &str) {
        drop(self.0.lock().send((region, Told::Failed(reason.to_owned()))));
    }
}

/// A region under test with its inbox; leaves shuffle and cut what they read.
pub(super) struct Run {
    pub(super) region: Region,
    pub(super) inbox: Receiver<(ObjectId, Told)>,
    pub(super) restarts: Vec<TaskInfo>,
    next: u64,
}

pub(super) fn spec(name: &str, graph: FragmentGraph, parallelism: usize) -> RegionSpec {
    RegionSpec {
        id: ObjectId(1),
        name: name.to_owned(),
        graph,
        parallelism,
        sources: HashMap::new(),
        root: RootMode::Materialize { order: vec![0] },
        channel_bytes: 1 << 20,
        spill_dir: std::env::temp_dir().join(format!("levee-dataflow-{}-{name}", std::process::id())),
        memory: crate::memory::Governor::new(1 << 30),
    }
}

/// What a step changed, which is something.
pub(super) fn change_of(output: Option<StepOutput>) -> Delta {
    output.unwrap().into_delta().unwrap().unwrap()
}

impl Run {
    pub(super) fn start(
        executor: &Arc<Executor>,
        spec: RegionSpec,
        state: Option<Arc<dyn StateReader>>,
        faults: &Arc<Faults>,
    ) -> Self {
        Self::start_with(executor, spec, state, factory(faults))
    }

    pub(super) fn start_with(
        executor: &Arc<Executor>,
        spec: RegionSpec,
        state: Option<Arc<dyn StateReader>>,
        factory: Arc<OperatorFactory>,
    ) -> Self {
        testing::SHUFFLE.store(0x5eed, Ordering::Relaxed);
        let (sender, inbox) = channel();
        let events = Arc::new(Events(Mutex::new(sender)));
        let region = Region::start_with(executor, spec, state, events, factory).unwrap();
        Self {
            region,
            inbox,
            restarts: Vec::new(),
            next: 0,
        }
    }

    pub(super) fn submit(&mut self, inputs: &[(ObjectId, Vec<Delta>)], checkpoint: bool) {
        let inputs = inputs
            .iter()
            .map(|(id, d)| (*id, StepInput::Deltas(d.clone())))
            .collect();
        self.submit_inputs(inputs, checkpoint);
    }

    pub(super) fn submit_inputs(&mut self, inputs: HashMap<ObjectId, StepInput>, checkpoint: bool) {
        let seq = self.next;
        self.next += 1;
        let barrier = Barrier {
            epoch: seq + 1,
            timestamp_us: 0,
            first: seq == 0,
        };
        self.region.submit(Step {
            seq,
            from: seq,
            to: seq + 1,
            barrier,
            inputs,
            checkpoint,
        });
    }

    /// The next finished step; panics when the region fails.
    pub(super) fn done(&mut self) -> StepResult {
        loop {
            match self.inbox.recv_timeout(WAIT).expect("the region makes progress").1 {
                Told::Step(result) => return *result,
                Told::Restarted(task) => self.restarts.push(task),
                Told::Failed(reason) => panic!("region failed: {reason}"),
            }
        }
    }
}

/// Rows → multiplicity, by adding up outputs.
#[derive(Default, Debug, PartialEq, Eq, Clone)]
pub(super) struct Zset(pub(super) BTreeMap<Vec<i64>, i64>);

impl Zset {
    pub(super) fn add(&mut self, delta: &Delta) {
        for (row, diff) in rows_of(delta) {
            let n = self.0.entry(row.clone()).or_default();
            *n += diff;
            if *n == 0 {
                self.0.remove(&row);
            }
        }
    }

    /// The grouped sum of the rows.
    pub(super) fn sums(&self) -> Zset {
        let mut groups: BTreeMap<i64, i64> = BTreeMap::new();
        for (row, n) in &self.0 {
            *groups.entry(row[0]).or_default() += row[1] * n;
        }
        Zset(groups.into_iter().map(|(k, v)| (vec![k, v], 1)).collect())
    }
}

/// A small generator of numbers below n.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// A change to `table`: insertions, and retractions of rows that are there.
    pub(super) fn change(&mut self, table: &mut Zset, rows: u64) -> Delta {
        let mut changes = Vec::new();
        for _ in 0..rows {
            if self.below(3) == 0 && !table.0.is_empty() {
                let at = self.below(table.0.len() as u64) as usize;
                let row = table.0.keys().nth(at).unwrap().clone();
                changes.push((row[0], row[1], -1));
            } else {
                changes.push((self.below(50) as i64, self.below(5) as i64, 1));
            }
            table.add(&delta(&changes[changes.len() - 1..]));
        }
        delta(&changes)
    }
}
