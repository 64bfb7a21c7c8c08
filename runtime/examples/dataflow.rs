//! What the dataflow costs above generating and evaluating:
//! `CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo run -p levee-runtime --example dataflow [EVENTS]`.
//!
//! Prints, in CPU time of the whole process: reading Nexmark bids without a dataflow; the same through a region (source → discard)
//! in steps of 64 k events; through a hash exchange; through one that spills everything; and the cost of an empty step, alone
//! and in a pipeline of three fragments.

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::time::Instant;

use levee_planner::plan::*;
use levee_runtime::Result;
use levee_runtime::dataflow::*;
use levee_runtime::operators::Barrier;
use levee_runtime::sources::nexmark::driver;
use levee_runtime::sources::{RangePoll, Share, SourceDriver, SplitRange};

const STEP_EVENTS: u64 = 65_536;
const BIDS: ObjectId = ObjectId(1);
const TABLE: ObjectId = ObjectId(2);

fn main() -> Result<()> {
    let events: u64 = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(3_000_000);
    VERIFY.store(false, std::sync::atomic::Ordering::Relaxed);
    let options = BTreeMap::from([
        ("nexmark.event.type".to_owned(), "bid".to_owned()),
        ("nexmark.splits".to_owned(), "1".to_owned()),
    ]);
    let source = driver(&options)?;
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    println!("{:42} {:>10} {:>12} {:>14}", "", "CPU s/M ev", "M events/s", "rows");
    let (rows, cpu, wall) = timed(|| read(source.as_ref(), &columns, events))?;
    print("generating alone", events, cpu, wall, rows);
    let narrow = [0, 2, 5];
    for tasks in [1, 2] {
        let plan = graph(vec![leaf(&source, &columns)], vec![]);
        let (rows, cpu, wall) = timed(|| run(&source, plan, tasks, 64 << 20, events))?;
        print(&format!("source, discard, {tasks} tasks"), events, cpu, wall, rows);
        for (what, bytes) in [("", 64 << 20), (", all spilled", 0)] {
            let plan = exchanged(&source, &narrow);
            let (rows, cpu, wall) = timed(|| run(&source, plan, tasks, bytes, events))?;
            print(
                &format!("3 columns, hash exchange{what}, {tasks} tasks"),
                events,
                cpu,
                wall,
                rows,
            );
        }
    }
    let (rows, cpu, wall) = timed(|| read(source.as_ref(), &narrow, events))?;
    print("generating 3 columns alone", events, cpu, wall, rows);
    for fragments in [1, 3] {
        for tasks in [1, 2] {
            empty_steps(fragments, tasks)?;
        }
    }
    Ok(())
}

fn print(what: &str, events: u64, cpu: f64, wall: f64, rows: u64) {
    let millions = events as f64 / 1e6;
    println!(
        "{what:42} {:>10.3} {:>12.2} {rows:>14}",
        cpu / millions,
        millions / wall
    );
}

fn timed(f: impl FnOnce() -> Result<u64>) -> Result<(u64, f64, f64)> {
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    let rows = f()?;
    Ok((rows, cpu_seconds() - cpu, wall.elapsed().as_secs_f64()))
}

/// User and system time of this process, in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<i64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    // The state letter is not a number, so utime and stime are the 11th and 12th numbers after the name.
    fields.get(10..12).map_or(0.0, |t| (t[0] + t[1]) as f64 / 100.0)
}

fn read(source: &dyn SourceDriver, columns: &[usize], events: u64) -> Result<u64> {
    let mut reader = source.open(&SplitRange::unchecked(0, 0, events), Share::ALL, columns)?;
    let mut rows = 0;
    while let RangePoll::Ready(delta) = reader.poll(Waker::noop())? {
        rows += delta.num_rows() as u64;
    }
    Ok(rows)
}

fn node(id: u32, op: StreamOp, schema: arrow::datatypes::SchemaRef) -> StreamNode {
    StreamNode {
        id: OperatorId(id),
        op,
        inputs: vec![],
        schema,
        props: StreamProps::default(),
    }
}

fn leaf(source: &Arc<dyn SourceDriver>, columns: &[usize]) -> StreamNode {
    let schema = source.schema().project(columns).expect("the source has these columns");
    let op = StreamOp::Source {
        source: BIDS,
        name: "bid".to_owned(),
        projection: columns.to_vec(),
    };
    node(0, op, Arc::new(schema))
}

fn graph(roots: Vec<StreamNode>, edges: Vec<ExchangeKind>) -> FragmentGraph {
    let schemas: Vec<_> = roots.iter().map(|r| Arc::clone(&r.schema)).collect();
    FragmentGraph {
        fragments: roots
            .into_iter()
            .enumerate()
            .map(|(i, root)| Fragment {
                id: FragmentId(i as u32),
                root,
                single: false,
            })
            .collect(),
        edges: edges
            .into_iter()
            .enumerate()
            .map(|(i, kind)| Edge {
                id: EdgeId(i as u32),
                from: FragmentId(i as u32),
                to: FragmentId(i as u32 + 1),
                kind,
                schema: Arc::clone(&schemas[i]),
            })
            .collect(),
    }
}

fn exchanged(source: &Arc<dyn SourceDriver>, columns: &[usize]) -> FragmentGraph {
    let sender = leaf(source, columns);
    let receiver = node(1, StreamOp::Receive { edge: EdgeId(0) }, Arc::clone(&sender.schema));
    graph(vec![sender, receiver], vec![ExchangeKind::Hash(vec![0])])
}

struct Events(parking_lot::Mutex<Sender<StepResult>>);

impl RegionEvents for Events {
    fn step_done(&self, _: ObjectId, result: StepResult) {
        drop(self.0.lock().send(result));
    }
    fn task_restarted(&self, _: ObjectId, _: &TaskInfo, reason: &str) {
        println!("a task failed: {reason}");
    }
    fn region_failed(&self, _: ObjectId, reason: &str) {
        println!("the region failed: {reason}");
    }
}

struct NoState;

impl StateReader for NoState {
    fn scan(
        &self,
        _: u32,
        _: std::ops::RangeInclusive<u8>,
        _: &mut dyn FnMut(u8, u8, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

fn start(
    executor: &Arc<Executor>,
    sources: HashMap<ObjectId, Arc<dyn SourceDriver>>,
    graph: FragmentGraph,
    tasks: usize,
    channel_bytes: usize,
) -> Result<(Region, Receiver<StepResult>)> {
    let (sender, results) = channel();
    let spec = RegionSpec {
        id: ObjectId(0),
        name: "measured".to_owned(),
        graph,
        parallelism: tasks,
        sources,
        root: RootMode::Discard,
        channel_bytes,
        spill_dir: std::env::temp_dir().join("levee-dataflow-example"),
        memory: levee_runtime::memory::Governor::new(8 << 30),
    };
    let region = Region::start(executor, spec, None, Arc::new(Events(parking_lot::Mutex::new(sender))))?;
    Ok((region, results))
}

fn step(seq: u64, inputs: HashMap<ObjectId, StepInput>) -> Step {
    let barrier = Barrier {
        epoch: seq + 1,
        timestamp_us: 0,
        first: seq == 0,
    };
    Step {
        seq,
        from: seq,
        to: seq + 1,
        barrier,
        inputs,
        checkpoint: false,
    }
}

/// Runs all events through a region, two steps in flight, a checkpoint completing every 16 steps.
fn run(
    source: &Arc<dyn SourceDriver>,
    graph: FragmentGraph,
    tasks: usize,
    channel_bytes: usize,
    events: u64,
) -> Result<u64> {
    let executor = Executor::new(tasks);
    let sources = HashMap::from([(BIDS, Arc::clone(source))]);
    let (region, results) = start(&executor, sources, graph, tasks, channel_bytes)?;
    let (mut seq, mut done, mut rows) = (0, 0, 0);
    while done * STEP_EVENTS < events {
        while seq < done + 2 && seq * STEP_EVENTS < events {
            let range = SplitRange::unchecked(0, seq * STEP_EVENTS, ((seq + 1) * STEP_EVENTS).min(events));
            region.submit(step(seq, HashMap::from([(BIDS, StepInput::Ranges(vec![range]))])));
            seq += 1;
        }
        let Ok(result) = results.recv() else { break };
        rows += result.rows_out;
        done += 1;
        if done % 16 == 0 {
            region.checkpoint_completed(result.seq, Arc::new(NoState));
        }
    }
    region.stop();
    executor.shutdown();
    Ok(rows)
}

/// The time from submitting an empty step to its end, one at a time, and the CPU time that it takes.
fn empty_steps(fragments: usize, tasks: usize) -> Result<()> {
    const STEPS: u64 = 20_000;
    let schema = Arc::new(arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
        "a",
        arrow::datatypes::DataType::Int64,
        true,
    )]));
    let scan = StreamOp::Scan {
        relation: TABLE,
        name: "t".to_owned(),
        projection: vec![0],
    };
    let mut roots = vec![node(0, scan, Arc::clone(&schema))];
    for i in 1..fragments as u32 {
        roots.push(node(i, StreamOp::Receive { edge: EdgeId(i - 1) }, Arc::clone(&schema)));
    }
    let edges = vec![ExchangeKind::Hash(vec![0]); fragments - 1];
    let executor = Executor::new(2);
    let (region, results) = start(&executor, HashMap::new(), graph(roots, edges), tasks, 1 << 20)?;
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    for seq in 0..STEPS {
        region.submit(step(seq, HashMap::new()));
        if results.recv().is_err() {
            break;
        }
    }
    println!(
        "empty step, {fragments} fragments of {tasks} tasks: {:.1} us, {:.1} us of CPU",
        wall.elapsed().as_secs_f64() * 1e6 / STEPS as f64,
        (cpu_seconds() - cpu) * 1e6 / STEPS as f64
    );
    region.stop();
    executor.shutdown();
    Ok(())
}
