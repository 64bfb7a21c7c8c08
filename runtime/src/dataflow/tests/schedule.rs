//! Order, fairness, delays and stopping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use levee_planner::plan::ObjectId;

use super::harness::*;
use crate::dataflow::*;

#[test]
fn many_steps_in_flight_end_in_order() {
    let executor = Executor::new(2);
    let mut run = Run::start(&executor, spec("order", sum_graph(), 2), None, &Arc::default());
    for i in 0..200 {
        run.submit(&[(TABLE, vec![delta(&[(i % 5, 1, 1)])])], i % 10 == 9);
    }
    for seq in 0..200 {
        let result = run.done();
        assert_eq!((result.seq, result.from, result.to), (seq, seq, seq + 1));
        assert_eq!(result.snapshot.is_some(), seq % 10 == 9);
    }
}

/// A step that explodes shares the threads with other regions' small steps.
#[test]
fn an_exploding_region_holds_nobody() {
    let executor = Executor::new(1);
    let plan = graph(vec![(sum(3, explode(2, 1 << 40, scan(1, TABLE))), false)], vec![]);
    let mut heavy = Run::start(&executor, spec("exploding", plan, 2), None, &Arc::default());
    let rows: Vec<_> = (0..1000).map(|i| (i, 1, 1)).collect();
    heavy.submit(&[(TABLE, vec![delta(&rows)])], false);
    let mut light_spec = spec("light", sum_graph(), 1);
    light_spec.id = ObjectId(2);
    let mut light = Run::start(&executor, light_spec, None, &Arc::default());
    let started = Instant::now();
    for i in 0..50 {
        light.submit(&[(TABLE, vec![delta(&[(i, 1, 1)])])], false);
        light.done();
    }
    // Two tasks, so three or four slices of the heavy region between: milliseconds each, however slow the machine.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(heavy.region.in_flight(), 1);
    heavy.region.stop();
    executor.shutdown();
}

#[test]
fn a_delayed_region_occupies_no_thread() {
    let executor = Executor::new(1);
    debug_delay("sleepy", 300);
    let mut sleepy = Run::start(&executor, spec("sleepy", sum_graph(), 2), None, &Arc::default());
    let mut brisk = Run::start(&executor, spec("brisk", sum_graph(), 2), None, &Arc::default());
    let started = Instant::now();
    sleepy.submit(&[(TABLE, vec![delta(&[(1, 1, 1)])])], false);
    for i in 0..20 {
        brisk.submit(&[(TABLE, vec![delta(&[(i, 1, 1)])])], false);
        brisk.done();
    }
    assert_eq!(sleepy.region.in_flight(), 1);
    sleepy.done();
    assert!(started.elapsed() >= Duration::from_millis(300));
    debug_delay("sleepy", 0);
    sleepy.submit(&[(TABLE, vec![delta(&[(1, 1, 1)])])], false);
    sleepy.done();
}

#[test]
fn a_stopped_region_tells_nothing_and_leaves_no_file() {
    let executor = Executor::new(1);
    let plan = graph(vec![(sum(3, explode(2, 1 << 40, scan(1, TABLE))), false)], vec![]);
    let spec = spec("stopped", plan, 1);
    let dir = spec.spill_dir.clone();
    let mut run = Run::start(&executor, spec, None, &Arc::default());
    run.submit(&[(TABLE, vec![delta(&[(1, 1, 1)])])], false);
    run.region.stop();
    executor.shutdown();
    assert!(run.inbox.try_recv().is_err());
    drop(run);
    assert!(!dir.exists() || std::fs::read_dir(dir).unwrap().count() == 0);
}

/// The failpoint of a region's steps makes exactly one of its tasks start again (in builds with failpoints).
#[test]
fn failpoints_reach_one_region() {
    let executor = Executor::new(2);
    fail::cfg("task::step::pointed", "1*panic").unwrap();
    fail::cfg("task::close::pointed::1.0", "1*return").unwrap();
    let mut run = Run::start(&executor, spec("pointed", sum_graph(), 1), None, &Arc::default());
    for i in 0..4 {
        run.submit(&[(TABLE, vec![delta(&[(i, 1, 1)])])], false);
        run.done();
    }
    assert_eq!(run.restarts.len(), if fail::has_failpoints() { 2 } else { 0 });
    fail::remove("task::step::pointed");
    fail::remove("task::close::pointed::1.0");
}
