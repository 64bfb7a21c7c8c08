//! Plans whose exchanges would deadlock, or eat the memory, if senders waited for receivers.

use std::sync::Arc;

use levee_planner::plan::ExchangeKind;

use super::harness::*;
use crate::Delta;
use crate::dataflow::*;

const BUDGET: usize = 16 << 10;

/// About 100 budgets of rows (16 bytes each).
fn big() -> (Delta, Zset) {
    let rows: Vec<_> = (0..100 * BUDGET as i64 / 16).map(|i| (i % 1000, i % 7, 1)).collect();
    let whole = delta(&rows);
    let mut table = Zset::default();
    table.add(&whole);
    (whole, table)
}

fn finishes(name: &str, graph: levee_planner::plan::FragmentGraph, times: i64) {
    let executor = Executor::new(2);
    let mut spec = spec(name, graph, 4);
    spec.channel_bytes = BUDGET;
    let spill_dir = spec.spill_dir.clone();
    let mut run = Run::start(&executor, spec, None, &Arc::default());
    let (change, table) = big();
    run.submit(
        &[(
            TABLE,
            vec![change.slice(0, 5000), change.slice(5000, change.num_rows() - 5000)],
        )],
        true,
    );
    let result = run.done();
    let mut view = Zset::default();
    view.add(&change_of(result.output));
    let scaled = Zset(
        table
            .sums()
            .0
            .into_keys()
            .map(|r| (vec![r[0], r[1] * times], 1))
            .collect(),
    );
    assert_eq!(view, scaled);
    let spilled: usize = (0..2)
        .flat_map(|e| run.region.edge_channels(e))
        .map(|c| c.spilled())
        .sum();
    assert!(spilled > 0, "nothing was spilled");
    for channel in run.region.edge_channels(0) {
        assert!(
            channel.memory_bytes() <= BUDGET,
            "{} bytes in memory",
            channel.memory_bytes()
        );
    }
    run.region.checkpoint_completed(0, Arc::new(Store::default()));
    for channel in run.region.edge_channels(0) {
        assert_eq!((channel.spilled(), channel.memory_bytes()), (0, 0));
    }
    drop(run);
    executor.shutdown();
    drop(executor);
    drop(std::fs::remove_dir_all(spill_dir));
}

#[test]
fn four_by_four() {
    let edges = vec![
        (0, 1, ExchangeKind::Hash(vec![1, 0])),
        (1, 2, ExchangeKind::Hash(vec![0])),
    ];
    let fragments = vec![
        (pass(2, scan(1, TABLE)), false),
        (pass(4, receive(3, 0)), false),
        (sum(6, receive(5, 1)), false),
    ];
    finishes("four-by-four", graph(fragments, edges), 1);
}

/// One table on two ways to the same operator.
#[test]
fn diamond() {
    let edges = vec![(0, 2, ExchangeKind::Hash(vec![0])), (1, 2, ExchangeKind::Hash(vec![0]))];
    let fragments = vec![
        (pass(2, scan(1, TABLE)), false),
        (explode(4, 2, scan(3, TABLE)), true),
        (sum(8, union(7, vec![receive(5, 0), receive(6, 1)])), false),
    ];
    finishes("diamond", graph(fragments, edges), 3);
}

#[test]
fn broadcast_single_and_forward() {
    let executor = Executor::new(2);
    let edges = vec![
        (0, 1, ExchangeKind::Broadcast),
        (1, 2, ExchangeKind::Forward),
        (2, 3, ExchangeKind::Single),
    ];
    let fragments = vec![
        (scan(1, TABLE), false),
        (pass(3, receive(2, 0)), false),
        (pass(5, receive(4, 1)), false),
        (sum(7, receive(6, 2)), true),
    ];
    let mut run = Run::start(
        &executor,
        spec("kinds", graph(fragments, edges), 3),
        None,
        &Arc::default(),
    );
    run.submit(&[(TABLE, vec![delta(&[(1, 2, 1), (2, 5, 2), (1, 1, 1)])])], false);
    let result = run.done();
    // Every row reached all three receivers of the broadcast.
    assert_eq!(rows_of(&change_of(result.output)), [(vec![1, 9], 1), (vec![2, 30], 1)]);
    assert_eq!(run.region.tasks().len(), 10);
    run.submit(&[], false);
    let idle = run.done();
    assert!(idle.output.is_none() && idle.rows_out == 0 && idle.checksum == 0);
}

/// The same steps with other cuts, orders and numbers of tasks give the same checksums.
#[test]
fn checksums_do_not_depend_on_cuts() {
    let mut seen = Vec::new();
    for (parallelism, pieces) in [(1, 1), (2, 3), (4, 7)] {
        let executor = Executor::new(2);
        let mut run = Run::start(
            &executor,
            spec(&format!("cuts-{parallelism}"), sum_graph(), parallelism),
            None,
            &Arc::default(),
        );
        let (mut random, mut table) = (Random(5), Zset::default());
        let mut checksums = Vec::new();
        for _ in 0..5 {
            let change = random.change(&mut table, 300);
            let cut: Vec<_> = (0..pieces)
                .map(|i| {
                    let (from, to) = (300 * i / pieces, 300 * (i + 1) / pieces);
                    change.slice(from, to - from)
                })
                .collect();
            run.submit(&[(TABLE, cut)], false);
            let result = run.done();
            checksums.push((result.checksum, result.rows_out));
        }
        seen.push(checksums);
    }
    assert!(seen.iter().all(|s| *s == seen[0]), "{seen:?}");
    assert!(seen[0].iter().all(|(c, n)| *c != 0 && *n > 0));
}

/// A large step is sorted on a helper thread, and steps after it still come after it.
#[test]
fn large_steps_keep_their_order() {
    let executor = Executor::new(2);
    let plan = graph(vec![(scan(1, TABLE), false)], vec![]);
    let mut run = Run::start(&executor, spec("large", plan, 2), None, &Arc::default());
    let rows: Vec<_> = (0..150_000).map(|i| (150_000 - i, i, 1)).collect();
    run.submit(&[(TABLE, vec![delta(&rows)])], false);
    for _ in 0..5 {
        run.submit(&[(TABLE, vec![delta(&[(1, 1, 1), (1, 1, 2)])])], false);
    }
    let large = run.done();
    assert_eq!((large.seq, large.rows_out), (0, 150_000));
    let output = rows_of(&change_of(large.output));
    assert!(output.len() == 150_000 && output.is_sorted());
    for seq in 1..6 {
        let small = run.done();
        assert_eq!((small.seq, small.rows_out), (seq, 3));
        assert_eq!(rows_of(&change_of(small.output)), [(vec![1, 1], 3)]);
    }
}

/// However many tasks read a source's ranges, and however the ranges are cut into steps, every record is read once.
#[test]
fn source_ranges_are_shared_whole() {
    use levee_planner::plan::{ObjectId, StreamOp};

    let options = [("nexmark.event.type", "bid"), ("nexmark.splits", "3")];
    let options = options
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let source = crate::sources::nexmark::driver(&options).unwrap();
    let mut seen = Vec::new();
    for (tasks, steps) in [(1, 1), (2, 3), (4, 7)] {
        let executor = Executor::new(2);
        let op = StreamOp::Source {
            source: ObjectId(5),
            name: "bid".into(),
            projection: vec![0, 1, 2],
        };
        let mut leaf = node(1, op, vec![], &[]);
        leaf.schema = Arc::new(source.schema().project(&[0, 1, 2]).unwrap());
        let mut spec = spec(&format!("source-{tasks}"), graph(vec![(leaf, false)], vec![]), tasks);
        spec.root = RootMode::Discard;
        spec.sources.insert(ObjectId(5), Arc::clone(&source));
        let mut run = Run::start(&executor, spec, None, &Arc::default());
        let (mut rows, mut checksum) = (0, 0_u64);
        for step in 0..steps {
            let range =
                |split| crate::sources::SplitRange::unchecked(split, 5_000 * step / steps, 5_000 * (step + 1) / steps);
            run.submit_inputs(
                [(ObjectId(5), StepInput::Ranges((0..3).map(range).collect()))].into(),
                false,
            );
            let result = run.done();
            assert!(result.output.is_none());
            rows += result.rows_out;
            checksum = checksum.wrapping_add(result.checksum);
        }
        assert_eq!(run.region.tasks().iter().map(|t| t.rows_in).sum::<u64>(), rows);
        seen.push((rows, checksum));
    }
    assert!(seen[0].0 > 10_000 && seen.iter().all(|s| *s == seen[0]), "{seen:?}");
}

/// A root that emits more in one step than may be in memory: it waits on disk, sorted, and is one run in the end.
#[test]
fn a_step_larger_than_memory_is_one_spilled_run() {
    let executor = Executor::new(2);
    let fragments = vec![(explode(2, 200, scan(1, TABLE)), false)];
    let mut spec = spec("large-step", graph(fragments, Vec::new()), 2);
    // Pieces of a megabyte.
    spec.memory = crate::memory::Governor::new(64 << 20);
    let spill_dir = spec.spill_dir.clone();
    let mut run = Run::start(&executor, spec, None, &Arc::default());
    let rows: Vec<_> = (0..3000).map(|i| (i % 1500, i % 1500, 1)).collect();
    run.submit(&[(TABLE, vec![delta(&rows)])], true);
    let large = run.done();
    assert!(
        matches!(large.output, Some(StepOutput::Spilled(_))),
        "{:?}",
        large.output
    );
    assert_eq!(large.rows_out, 600_000);
    let change = change_of(large.output);
    let expected: Vec<_> = (0..1500).map(|i| (vec![i, i], 400)).collect();
    assert_eq!(rows_of(&change), expected);
    // What cancels out over all pieces is no change.
    let there_and_back: Vec<_> = (0..3000)
        .map(|i| (i % 1500, 0, if i < 1500 { 1 } else { -1 }))
        .collect();
    run.submit(&[(TABLE, vec![delta(&there_and_back)])], false);
    assert!(run.done().output.is_none());
    run.submit(&[(TABLE, vec![delta(&[(7, 7, 1)])])], false);
    assert!(matches!(run.done().output, Some(StepOutput::Resident(_))));
    let files = walk(&spill_dir);
    assert_eq!(files, 0, "spill files are left");
    drop(run);
    executor.shutdown();
    drop(executor);
    drop(std::fs::remove_dir_all(spill_dir));
}

/// Files in a directory and those below.
fn walk(dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>());
    let count = |entry: std::fs::DirEntry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 };
    entries.map_or(0, |entries| entries.into_iter().map(count).sum())
}
