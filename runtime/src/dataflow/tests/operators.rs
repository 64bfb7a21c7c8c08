//! The engine's own operators under the driver: a join, an aggregate and a top-N across three exchanges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use levee_planner::plan::*;

use super::harness::*;
use crate::dataflow::*;

/// SELECT b.v AS g, count(*) AS n, max(a.v) FROM t a JOIN other b ON a.k = b.k GROUP BY g ORDER BY n DESC, g LIMIT 3.
fn plan(kind: JoinKind) -> FragmentGraph {
    let join = StreamOp::Join {
        kind,
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: false,
        filter: None,
    };
    let call = AggCall::new;
    let aggregate = StreamOp::Aggregate {
        group_by: vec![3],
        aggs: vec![call(AggFunc::Count, None), call(AggFunc::Max, Some(1))],
    };
    let key = |column, desc| SortKey {
        column,
        desc,
        nulls_first: false,
    };
    let top = StreamOp::TopN {
        partition_by: vec![],
        order_by: vec![key(1, true), key(0, false)],
        limit: Some(3),
        offset: 0,
        row_number: false,
    };
    let wide = ["ak", "av", "bk", "bv"];
    let narrow = ["g", "n", "max"];
    let receive = |id, edge, columns: &[&str]| node(id, StreamOp::Receive { edge: EdgeId(edge) }, vec![], columns);
    let mut graph = graph(
        vec![
            (scan(1, TABLE), false),
            (scan(2, OTHER), false),
            (
                node(
                    5,
                    join,
                    vec![receive(3, 0, &["k", "v"]), receive(4, 1, &["k", "v"])],
                    &wide,
                ),
                false,
            ),
            (node(7, aggregate, vec![receive(6, 2, &wide)], &narrow), false),
            (node(9, top, vec![receive(8, 3, &narrow)], &narrow), true),
        ],
        vec![
            (0, 2, ExchangeKind::Hash(vec![0])),
            (1, 2, ExchangeKind::Hash(vec![0])),
            (2, 3, ExchangeKind::Hash(vec![3])),
            (3, 4, ExchangeKind::Single),
        ],
    );
    graph.edges[2].schema = schema(&wide);
    graph.edges[3].schema = schema(&narrow);
    graph
}

fn model(kind: JoinKind, a: &Zset, b: &Zset) -> Zset {
    let mut groups: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    let mut add = |g: i64, v: i64, n: i64| {
        let group = groups.entry(g).or_insert((0, i64::MIN));
        *group = (group.0 + n, group.1.max(v));
    };
    for (row, n) in &a.0 {
        let mut matched = false;
        for (other, m) in b.0.iter().filter(|(other, _)| other[0] == row[0]) {
            add(other[1], row[1], n * m);
            matched = true;
        }
        if !matched && kind == JoinKind::Left {
            add(NULL, row[1], *n);
        }
    }
    let mut rows: Vec<_> = groups
        .into_iter()
        .map(|(g, (n, max))| (-n, g == NULL, g, max))
        .collect();
    rows.sort_unstable();
    Zset(
        rows.into_iter()
            .take(3)
            .map(|(n, _, g, max)| (vec![g, -n, max], 1))
            .collect(),
    )
}

/// With `tiny` memory everything is evicted as soon as it can be. Answers restarts, and bytes evicted.
fn run(kind: JoinKind, seed: u64, parallelism: usize, failing: bool, tiny: bool) -> (usize, i64) {
    let executor = Executor::new(2);
    let faults = Arc::<Faults>::default();
    let name = format!("real-{kind:?}-{seed}-{parallelism}-{tiny}");
    let mut spec = spec(&name, plan(kind), parallelism);
    if tiny {
        spec.memory = crate::memory::Governor::new(1000);
    }
    let mut run = Run::start_with(&executor, spec, None, real_factory(&faults));
    let (mut random, mut a, mut b) = (Random(seed), Zset::default(), Zset::default());
    let (mut view, mut store) = (Zset::default(), Store::default());
    let mut models = Vec::new();
    for round in 0..20 {
        for i in 0..2 {
            let (left, right) = (random.below(30), random.below(30));
            let inputs = [
                (TABLE, vec![random.change(&mut a, left)]),
                (OTHER, vec![random.change(&mut b, right)]),
            ];
            run.submit(&inputs, i == 1 && round % 3 == 2);
            models.push(model(kind, &a, &b));
        }
        if failing && round % 3 == 1 {
            faults.countdown.store(1 + random.below(50) as i64, Ordering::SeqCst);
        }
        for _ in 0..2 {
            let result = run.done();
            if result.output.is_some() {
                view.add(&change_of(result.output));
            }
            assert_eq!(view, models[result.seq as usize], "{name}: step {}", result.seq);
            if let Some(snapshot) = &result.snapshot {
                store.apply(snapshot);
                if random.below(3) > 0 {
                    run.region.checkpoint_completed(result.seq, Arc::new(store.clone()));
                }
            }
        }
    }
    assert!(view.0.len() == 3 && (tiny || run.region.state_bytes() > 0));
    (run.restarts.len(), faults.evicted.load(Ordering::SeqCst))
}

#[test]
fn joined_grouped_and_ranked() {
    let mut restarts = 0;
    for (seed, parallelism) in [1, 2, 4].into_iter().enumerate() {
        for kind in [JoinKind::Inner, JoinKind::Left] {
            assert_eq!(run(kind, seed as u64, parallelism, false, false), (0, 0));
            restarts += run(kind, seed as u64 + 10, parallelism, true, false).0;
        }
    }
    assert!(restarts >= 12, "{restarts} restarts");
}

#[test]
fn and_with_all_state_evicted_and_read_again() {
    let (mut restarts, mut evicted_min) = (0, i64::MAX);
    for (seed, parallelism) in [1, 2, 4].into_iter().enumerate() {
        for kind in [JoinKind::Inner, JoinKind::Left] {
            let calm = run(kind, seed as u64 + 20, parallelism, false, true);
            let failing = run(kind, seed as u64 + 30, parallelism, true, true);
            restarts += failing.0;
            evicted_min = evicted_min.min(calm.1).min(failing.1);
        }
    }
    assert!(restarts >= 12, "{restarts} restarts");
    assert!(evicted_min > 10_000, "{evicted_min} bytes evicted");
}
