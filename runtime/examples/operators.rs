//! Rows per CPU second of each operator's hot path, in the shape of Nexmark's queries. Linux only.
//!
//! ```text
//! CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo run -p levee-runtime --example operators [filter]
//! ```

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::logical_expr::Operator as Op;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use levee_planner::plan::{AggCall, AggFunc, Bound, Frame, FrameUnit, JoinKind, SortKey, WindowCall, WindowFunc};
use levee_runtime::Delta;
use levee_runtime::hash::hash_columns;
use levee_runtime::operators::aggregate::Aggregate;
use levee_runtime::operators::eval::Evaluator;
use levee_runtime::operators::join::{Join, JoinPlan};
use levee_runtime::operators::map::Map;
use levee_runtime::operators::topn::{TopN, TopNPlan};
use levee_runtime::operators::window::{Window, WindowPlan};
use levee_runtime::operators::{Barrier, Operator, OperatorContext, Output, Progress, StateWriter};

const BATCH: usize = 8192;
const BATCHES_PER_STEP: usize = 4;
const ROWS: usize = 128 * BATCH;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!("| path | rows/s in | rows out | state MB | snapshot entries/s |");
    println!("| --- | --- | --- | --- | --- |");
    type Bench = (&'static str, fn(&str));
    let benches: [Bench; 6] = [
        ("hash", hashes),
        ("map", maps),
        ("aggregate", aggregates),
        ("join", joins),
        ("top-N", topns),
        ("window", windows),
    ];
    for (name, bench) in benches {
        if filter.is_empty() || name.contains(&filter) {
            bench(name);
        }
    }
}

/// What the thread has computed for: other work on the machine does not count.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts a thread's time");
    let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.expect("the first figure is the time on a processor"))
}

/// A fixed scattering of `i` over `0..n`.
fn scatter(i: usize, n: u64) -> i64 {
    let z = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((u128::from(z ^ (z >> 29)) * u128::from(n)) >> 64) as u64) as i64
}

fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    let fields = fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn micros() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// `bid(auction, bidder, price, channel, date_time, score)`
fn bid_schema() -> SchemaRef {
    schema(&[
        ("auction", DataType::Int64),
        ("bidder", DataType::Int64),
        ("price", DataType::Int64),
        ("channel", DataType::Utf8),
        ("date_time", micros()),
        ("score", DataType::Float64),
    ])
}

fn bids(n_auctions: u64, n_bidders: u64) -> Vec<Delta> {
    let channels = ["Google", "Facebook", "Baidu", "Apple", "channel-1234"];
    (0..ROWS / BATCH)
        .map(|b| {
            let rows = b * BATCH..(b + 1) * BATCH;
            let ints = |n: u64, salt: usize| -> ArrayRef {
                Arc::new(Int64Array::from_iter_values(rows.clone().map(|i| scatter(i + salt, n))))
            };
            let columns: Vec<ArrayRef> = vec![
                ints(n_auctions, 0),
                ints(n_bidders, 7_777_777),
                ints(1_000_000, 99_999_999),
                Arc::new(StringArray::from_iter_values(rows.clone().map(|i| channels[i % 5]))),
                Arc::new(TimestampMicrosecondArray::from_iter_values(
                    rows.clone().map(|i| i as i64 * 10),
                )),
                Arc::new(Float64Array::from_iter_values(
                    rows.clone().map(|i| scatter(i, 1 << 40) as f64 / 1e7),
                )),
            ];
            Delta::inserts(RecordBatch::try_new(bid_schema(), columns).expect("columns fit"))
        })
        .collect()
}

/// Every second batch takes back the batch before the last.
fn with_retractions(deltas: &[Delta]) -> Vec<Delta> {
    let mut out = Vec::new();
    for (i, delta) in deltas.iter().enumerate().take(deltas.len() / 2) {
        out.push(delta.clone());
        if i >= 8 {
            out.push(deltas[i - 8].negate());
        }
    }
    out
}

/// Feeds an operator in steps and prints its line.
fn feed(name: &str, operator: &mut dyn Operator, inputs: &[(usize, Vec<Delta>)]) {
    let inputs: Vec<(usize, Vec<Delta>)> = inputs.to_vec();
    let (mut rows_in, mut rows_out, mut first) = (0, 0, true);
    let start = cpu_time();
    for (input, deltas) in inputs {
        let n = deltas.len();
        for (i, delta) in deltas.into_iter().enumerate() {
            rows_in += delta.num_rows();
            let mut out = Output::default();
            let mut progress = operator.push(input, delta, &mut out).expect("push");
            while progress == Progress::More {
                rows_out += out.deltas.drain(..).map(|d| d.num_rows()).sum::<usize>();
                progress = operator.resume(&mut out).expect("resume");
            }
            if (i + 1) % BATCHES_PER_STEP == 0 || i + 1 == n {
                let barrier = Barrier {
                    epoch: 1,
                    timestamp_us: 0,
                    first,
                };
                let mut progress = operator.close(&barrier, &mut out).expect("close");
                while progress == Progress::More {
                    progress = operator.resume(&mut out).expect("resume");
                }
                first = false;
            }
            rows_out += out.deltas.iter().map(Delta::num_rows).sum::<usize>();
        }
    }
    let time = cpu_time() - start;
    let state = operator.state_bytes() as f64 / 1e6;
    let mut entries = 0_usize;
    let start = cpu_time();
    let mut put = |_: u8, _: u8, _: &[u8], _: Option<&[u8]>| entries += 1;
    operator
        .snapshot(false, &mut StateWriter { put: &mut put })
        .expect("snapshot");
    let snapshot = entries as f64 / (cpu_time() - start).as_secs_f64() / 1e6;
    println!(
        "| {name} | {:.1} M | {rows_out} | {state:.0} | {snapshot:.1} M |",
        rows_in as f64 / time.as_secs_f64() / 1e6
    );
}

fn hashes(name: &str) {
    let deltas = bids(100_000, 100_000);
    for (what, columns) in [
        ("int8", vec![0]),
        ("int8, int8", vec![0, 1]),
        ("text", vec![3]),
        ("int8, text", vec![0, 3]),
    ] {
        let start = cpu_time();
        let mut mixed = 0;
        for delta in deltas.iter().cycle().take(20 * deltas.len()) {
            let keys: Vec<ArrayRef> = columns.iter().map(|&c| Arc::clone(delta.batch.column(c))).collect();
            mixed ^= hash_columns(&keys).expect("hashes")[0];
        }
        let rate = 20.0 * ROWS as f64 / (cpu_time() - start).as_secs_f64() / 1e6;
        println!("| {name} {what} | {rate:.0} M | {} | | |", mixed & 1);
    }
}

fn maps(name: &str) {
    let input = bid_schema();
    let column = |i: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(input.field(i).name(), i)) };
    let binary = |a, op, b| -> Arc<dyn PhysicalExpr> { Arc::new(BinaryExpr::new(a, op, b)) };
    let wrap = |e: Arc<dyn PhysicalExpr>| Evaluator::new(e, &input, String::new()).expect("expression");
    let output = schema(&[("auction", DataType::Int64), ("price", DataType::Int64)]);
    let modulo = binary(binary(column(0), Op::Modulo, lit(123_i64)), Op::Eq, lit(0_i64));
    let exprs = || vec![wrap(column(0)), wrap(binary(column(2), Op::Multiply, lit(89_i64)))];
    let deltas = bids(100_000, 100_000);
    let mut op = Map::from_parts(None, Some(exprs()), &output);
    feed(&format!("{name} projection (q1)"), &mut op, &[(0, deltas.clone())]);
    let mut op = Map::from_parts(Some(wrap(modulo)), Some(exprs()), &output);
    feed(&format!("{name} filter (q2)"), &mut op, &[(0, deltas)]);
}

fn aggregates(name: &str) {
    let input = bid_schema();
    let ctx = OperatorContext { task: 0, n_tasks: 1 };
    let call = |func, arg, distinct| AggCall {
        distinct,
        ..AggCall::new(func, arg)
    };
    let decimal = DataType::Decimal128(38, 0);
    let count = (call(AggFunc::Count, None, false), DataType::Int64);
    let sum = (call(AggFunc::Sum, Some(2), false), decimal);
    let average = (call(AggFunc::Avg, Some(2), false), DataType::Decimal256(75, 38));
    let max = (call(AggFunc::Max, Some(2), false), DataType::Int64);
    let float_sum = (call(AggFunc::Sum, Some(5), false), DataType::Float64);
    let distinct = (call(AggFunc::Count, Some(1), true), DataType::Int64);
    let cases: Vec<(&str, Vec<usize>, Vec<&(AggCall, DataType)>, u64)> = vec![
        ("count by int8", vec![0], vec![&count], 100_000),
        ("count by int8", vec![0], vec![&count], 1_000_000),
        ("count by (int8, text)", vec![0, 3], vec![&count], 100_000),
        (
            "count, sum, avg, max by int8",
            vec![0],
            vec![&count, &sum, &average, &max],
            100_000,
        ),
        ("int8 sum", vec![0], vec![&sum], 1000),
        ("float8 sum, exact", vec![0], vec![&float_sum], 1000),
        ("int8 sum", vec![0], vec![&sum], 100_000),
        ("float8 sum, exact", vec![0], vec![&float_sum], 100_000),
        ("count distinct", vec![0], vec![&distinct], 10_000),
    ];
    for (what, group_by, calls, n_keys) in cases {
        let types: Vec<(&str, DataType)> = group_by
            .iter()
            .map(|&c| ("k", input.field(c).data_type().clone()))
            .chain(calls.iter().map(|c| ("a", c.1.clone())))
            .collect();
        let output = schema(&types);
        let calls: Vec<AggCall> = calls.iter().map(|c| c.0.clone()).collect();
        let deltas = bids(n_keys, 100_000);
        let new =
            |append_only| Aggregate::new(&group_by, &calls, append_only, &input, &output, &ctx).expect("aggregate");
        feed(
            &format!("{name} {what}, {n_keys} keys, append-only"),
            &mut new(true),
            &[(0, deltas.clone())],
        );
        feed(
            &format!("{name} {what}, {n_keys} keys, half retractions"),
            &mut new(false),
            &[(0, with_retractions(&deltas))],
        );
    }
}

fn joins(name: &str) {
    let bid = bid_schema();
    let auction = schema(&[
        ("id", DataType::Int64),
        ("seller", DataType::Int64),
        ("category", DataType::Utf8),
    ]);
    let auctions: Vec<Delta> = (0..100_000 / BATCH + 1)
        .map(|b| {
            let rows = b * BATCH..(b + 1) * BATCH;
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from_iter_values(rows.clone().map(|i| i as i64))),
                Arc::new(Int64Array::from_iter_values(rows.clone().map(|i| scatter(i, 1000)))),
                Arc::new(StringArray::from_iter_values(
                    rows.map(|i| format!("category {}", i % 10)),
                )),
            ];
            Delta::inserts(RecordBatch::try_new(Arc::clone(&auction), columns).expect("columns fit"))
        })
        .collect();
    for kind in [JoinKind::Inner, JoinKind::Left, JoinKind::Semi] {
        let fields = match kind {
            JoinKind::Semi => bid.fields().to_vec(),
            _ => bid.fields().iter().chain(auction.fields()).cloned().collect(),
        };
        let output = Arc::new(Schema::new(fields));
        let plan = JoinPlan {
            kind,
            left_keys: vec![0],
            right_keys: vec![0],
            null_equals_null: false,
        };
        let new = || Join::from_parts(&plan, None, &bid, &auction, &output).expect("join");
        let deltas = bids(100_000, 100_000);
        feed(
            &format!("{name} {kind:?}, 1 M bids with 100 k auctions"),
            &mut new(),
            &[(1, auctions.clone()), (0, deltas.clone())],
        );
        feed(
            &format!("{name} {kind:?}, half retractions"),
            &mut new(),
            &[(1, auctions.clone()), (0, with_retractions(&deltas))],
        );
    }
}

fn topns(name: &str) {
    let input = bid_schema();
    for (what, partition_by, limit, n) in [
        ("last per (bidder, auction) (q18)", vec![1, 0], 1, 1_000_000),
        ("first 10 per auction (q19)", vec![0], 10, 100_000),
    ] {
        for append_only in [true, false] {
            let plan = TopNPlan {
                partition_by: partition_by.clone(),
                order_by: vec![SortKey {
                    column: if limit == 1 { 4 } else { 2 },
                    desc: true,
                    nulls_first: true,
                }],
                limit: Some(limit),
                offset: 0,
                row_number: false,
                append_only,
            };
            let mut op = TopN::new(&plan, &input, &input).expect("top-N");
            let deltas = bids(n, n);
            if append_only {
                feed(&format!("{name} {what}, append-only"), &mut op, &[(0, deltas)]);
            } else {
                feed(
                    &format!("{name} {what}, half retractions"),
                    &mut op,
                    &[(0, with_retractions(&deltas))],
                );
            }
        }
    }
}

fn windows(name: &str) {
    let input = bid_schema();
    let fields = input.fields().iter().cloned();
    let result = Arc::new(Field::new("result", DataType::Int64, true));
    let schema: SchemaRef = Arc::new(Schema::new(fields.chain([result]).collect::<Vec<_>>()));
    let call = |func, frame| WindowCall { func, frame };
    let lag = WindowFunc::Lag {
        value: 2,
        offset: 1,
        default: None,
    };
    let count = || WindowFunc::Aggregate(AggCall::new(AggFunc::Count, None));
    let running = Frame {
        start: Bound::Unbounded,
        unit: FrameUnit::Groups,
        end: Bound::Offset(0),
    };
    let ten = Frame {
        unit: FrameUnit::Rows,
        start: Bound::Offset(-9),
        end: Bound::Offset(0),
    };
    for (what, call) in [
        ("row_number", call(WindowFunc::RowNumber, Frame::WHOLE)),
        ("lag", call(lag, Frame::WHOLE)),
        ("running count", call(count(), running)),
        ("count of 10 rows", call(count(), ten)),
        ("count of the partition", call(count(), Frame::WHOLE)),
    ] {
        for keys in [100_000, 10] {
            let plan = WindowPlan {
                partition_by: vec![0],
                order_by: vec![SortKey {
                    column: 4,
                    desc: false,
                    nulls_first: false,
                }],
                reversed: false,
                calls: vec![call.clone()],
            };
            if what == "count of the partition" && keys == 10 {
                // Every row of a partition changes with every step.
                continue;
            }
            let mut op = Window::new(&plan, &input, &schema).expect("window");
            feed(
                &format!("{name} {what}, {keys} partitions"),
                &mut op,
                &[(0, bids(keys, 1_000_000))],
            );
        }
    }
}
