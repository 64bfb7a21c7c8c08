//! Rows per CPU second of an aggregate and a join of which only a part is resident, over the cold tier. Linux only.
//!
//! ```text
//! cargo run -p levee-runtime --example cold [keys] [resident part]
//! ```
//!
//! Each key comes twice, in two random orders; between steps of 64 k rows a checkpoint completes and what is over the allowance is
//! evicted, as in the engine.

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use levee_planner::plan::{AggCall, AggFunc, JoinKind};
use levee_runtime::dataflow::StateDelta;
use levee_runtime::operators::aggregate::Aggregate;
use levee_runtime::operators::cold::{Cold, ColdReader, ColdScan};
use levee_runtime::operators::join::{Join, JoinPlan};
use levee_runtime::operators::{Barrier, Operator, OperatorContext, Output, Progress, StateWriter};
use levee_runtime::{Delta, Result, RuntimeError};
use levee_storage::delta_file::{DeltaBuilder, StateKey};
use levee_storage::rocks::RocksShared;
use levee_storage::tier::{Tier, TierSnapshot};

const BATCH: usize = 8192;
const BATCHES_PER_STEP: usize = 8;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| args.next().and_then(|a| a.parse().ok()).unwrap_or(default);
    let (keys, part) = (number(2_000_000), number(8));
    println!(
        "| operator | part resident | pass | rows/s | of which looking up % | evicting % | freezing % | tier + ingest % | state MB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for part in [1, part] {
        aggregate(keys, part);
        join(keys, part);
    }
}

/// What the thread has computed for: other work on the machine does not count.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts a thread's time");
    let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.expect("the first figure is the time on a processor"))
}

fn schema(names: &[&str]) -> SchemaRef {
    let fields = names.iter().map(|name| Field::new(*name, DataType::Int64, true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// `i` in a random order of `0..n`: multiplication by a number prime to a power of two, cut down.
fn scattered(i: usize, n: usize, pass: usize) -> Option<i64> {
    let mask = n.next_power_of_two() as u64 - 1;
    let z = (i as u64).wrapping_mul([0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03][pass]) & mask;
    let z = (z ^ (z >> 9)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
    (z < n as u64).then_some(z as i64)
}

fn batches(keys: usize, pass: usize) -> impl Iterator<Item = Delta> {
    let n = keys.next_power_of_two();
    (0..n.div_ceil(BATCH)).map(move |b| {
        let ids: Vec<i64> = (b * BATCH..((b + 1) * BATCH).min(n))
            .filter_map(|i| scattered(i, keys, pass))
            .collect();
        let values: Vec<i64> = ids.iter().map(|id| id * 7 + pass as i64).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(Int64Array::from(values))];
        Delta::inserts(RecordBatch::try_new(schema(&["k", "v"]), columns).expect("columns fit"))
    })
}

/// The tier, with the time spent in it.
struct Timed(Arc<TierSnapshot>, Arc<AtomicU64>);

impl ColdReader for Timed {
    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let start = cpu_time();
        let mut found = Vec::new();
        self.0.get_many(keys, &mut |i, value| {
            found.push((i, value.to_vec()));
            Ok(())
        })?;
        self.1
            .fetch_add((cpu_time() - start).as_nanos() as u64, Ordering::Relaxed);
        found.iter().try_for_each(|(i, value)| f(*i, value))
    }

    fn scan(&self) -> Result<Box<dyn ColdScan>> {
        Err(RuntimeError::internal("narrow keys are not scanned"))
    }
}

struct Bench {
    tier: Arc<Tier>,
    rocks: RocksShared,
    dir: PathBuf,
    file: usize,
    n: u32,
    looking: Arc<AtomicU64>,
    allowance: usize,
}

impl Bench {
    fn new(name: &str, allowance: usize) -> Self {
        let dir = std::env::temp_dir().join(format!("levee-cold-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        let rocks = RocksShared::new(64 << 20);
        Self {
            tier: Tier::open(&rocks, &dir.join("tier")).expect("a tier"),
            rocks,
            dir,
            file: 0,
            n: 0,
            looking: Arc::default(),
            allowance,
        }
    }

    /// A checkpoint that completes at once.
    fn checkpoint(&mut self, operator: &mut dyn Operator) -> (Duration, Duration) {
        let start = cpu_time();
        let mut state = StateDelta::default();
        let mut put = |table, vnode, key: &[u8], value: Option<&[u8]>| state.put(1, table, vnode, key, value);
        operator
            .snapshot(false, &mut StateWriter { put: &mut put })
            .expect("snapshot");
        let frozen = cpu_time() - start;
        let mut builder = DeltaBuilder::new();
        for entry in state.iter() {
            let key = StateKey {
                region: 1,
                operator: 1,
                table: entry.table,
                vnode: entry.vnode,
                key: entry.key,
            };
            match entry.value {
                Some(value) => builder.put(key, value),
                None => builder.delete(key),
            }
        }
        self.file += 1;
        let path = self.dir.join(format!("{}.sst", self.file));
        builder.write(&self.rocks, &path).expect("a delta file");
        self.tier.ingest(std::slice::from_ref(&path)).expect("ingest");
        std::fs::remove_file(path).expect("remove");
        self.n += 1;
        let reader = Timed(self.tier.snapshot(), Arc::clone(&self.looking));
        operator.snapshot_completed(self.n, Some(Cold::new(Arc::new(reader), 1, 1)));
        (frozen, (cpu_time() - start) - frozen)
    }

    fn feed(
        &mut self,
        name: &str,
        part: usize,
        pass: &str,
        operator: &mut dyn Operator,
        input: usize,
        deltas: impl Iterator<Item = Delta>,
    ) {
        let start = cpu_time();
        let (mut rows, mut evicting, mut freezing, mut ingesting) = (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        self.looking.store(0, Ordering::Relaxed);
        let barrier = Barrier {
            epoch: 1,
            timestamp_us: 0,
            first: false,
        };
        for (i, delta) in deltas.enumerate() {
            rows += delta.num_rows();
            let mut out = Output::default();
            let mut progress = operator.push(input, delta, &mut out).expect("push");
            while progress == Progress::More {
                out.deltas.clear();
                progress = operator.resume(&mut out).expect("resume");
            }
            if (i + 1) % BATCHES_PER_STEP > 0 {
                continue;
            }
            let mut progress = operator.close(&barrier, &mut out).expect("close");
            while progress == Progress::More {
                out.deltas.clear();
                progress = operator.resume(&mut out).expect("resume");
            }
            if (i + 1) % (8 * BATCHES_PER_STEP) == 0 {
                let (a, b) = self.checkpoint(operator);
                freezing += a;
                ingesting += b;
            }
            let before = cpu_time();
            let mut rounds = 0;
            while operator.live_bytes() > self.allowance && rounds < 2 {
                let held = operator.live_bytes();
                rounds += u32::from(operator.evict(held - self.allowance + held / 32).round);
            }
            operator.compact();
            evicting += cpu_time() - before;
        }
        let all = (cpu_time() - start).as_secs_f64();
        let percent = |d: Duration| 100.0 * d.as_secs_f64() / all;
        println!(
            "| {name} | 1/{part} | {pass} | {:.0} k | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            rows as f64 / all / 1e3,
            percent(Duration::from_nanos(self.looking.load(Ordering::Relaxed))),
            percent(evicting),
            percent(freezing),
            percent(ingesting),
            operator.state_bytes() as f64 / 1e6,
        );
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn allowance(keys: usize, part: usize, bytes: usize) -> usize {
    if part == 1 { usize::MAX } else { keys * bytes / part }
}

fn aggregate(keys: usize, part: usize) {
    let ctx = OperatorContext { task: 0, n_tasks: 1 };
    let calls = [AggCall::new(AggFunc::Count, None), AggCall::new(AggFunc::Max, Some(1))];
    let mut operator = Aggregate::new(
        &[0],
        &calls,
        false,
        &schema(&["k", "v"]),
        &schema(&["k", "n", "max"]),
        &ctx,
    )
    .expect("an aggregate");
    let mut bench = Bench::new("aggregate", allowance(keys, part, 150));
    for pass in 0..2 {
        bench.feed(
            "aggregate",
            part,
            &pass.to_string(),
            &mut operator,
            0,
            batches(keys, pass),
        );
    }
}

fn join(keys: usize, part: usize) {
    let plan = JoinPlan {
        kind: JoinKind::Inner,
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: false,
    };
    let side = schema(&["k", "v"]);
    let mut operator = Join::new(&plan, None, &side, &side, &schema(&["k", "v", "k2", "v2"])).expect("a join");
    let mut bench = Bench::new("join", allowance(keys, part, 300));
    for pass in 0..2 {
        bench.feed(
            "join",
            part,
            &pass.to_string(),
            &mut operator,
            pass,
            batches(keys, pass),
        );
    }
}
