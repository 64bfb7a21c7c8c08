//! A task that fails starts again alone, and nobody can tell from the results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::harness::*;
use crate::dataflow::*;

/// Runs random steps with random failures and checkpoints, and compares every step's output with the model.
fn run(name: &str, seed: u64, parallelism: usize, channel_bytes: usize, failing: bool) -> Vec<TaskInfo> {
    let faults = &Arc::<Faults>::default();
    let executor = Executor::new(2);
    let mut spec = spec(name, sum_graph(), parallelism);
    spec.channel_bytes = channel_bytes;
    let mut run = Run::start(&executor, spec, None, faults);
    let (mut random, mut table) = (Random(seed), Zset::default());
    let (mut view, mut store) = (Zset::default(), Store::default());
    let (mut models, mut completed) = (Vec::new(), None);
    for round in 0..30 {
        // Several steps in flight; the last of some rounds is a checkpoint.
        for i in 0..3 {
            let rows = random.below(40);
            let change = random.change(&mut table, rows);
            run.submit(&[(TABLE, vec![change])], i == 2 && round % 2 == 0);
            models.push(table.sums());
        }
        if failing && round % 4 == 1 {
            faults.countdown.store(1 + random.below(60) as i64, Ordering::SeqCst);
        }
        for _ in 0..3 {
            let result = run.done();
            if result.output.is_some() {
                view.add(&change_of(result.output));
            }
            assert_eq!(view, models[result.seq as usize], "step {}", result.seq);
            if let Some(snapshot) = &result.snapshot {
                store.apply(snapshot);
                if random.below(2) == 0 {
                    let state = Arc::new(store.clone());
                    run.region.checkpoint_completed(result.seq, Arc::clone(&state) as _);
                    completed = Some((result.seq, state));
                }
            }
        }
        assert_eq!(run.region.in_flight(), 0);
        // A later checkpoint without a step of this region: the same state lies in other files, and the old ones are gone.
        if let Some((seq, state)) = &completed {
            run.region.checkpoint_completed(*seq, Arc::new(Store::default()));
            run.region.checkpoint_completed(*seq, Arc::clone(state) as _);
        }
    }
    let incarnations: u32 = run.region.tasks().iter().map(|t| t.incarnation - 1).sum();
    assert_eq!(incarnations as usize, run.restarts.len());
    // The last checkpoint step was the last of round 28: a region of another width that starts from its state goes on from there.
    let spec = super::harness::spec(&format!("{name}-2"), sum_graph(), 3);
    let mut second = Run::start(&executor, spec, Some(Arc::new(store)), &Arc::default());
    let mut view = models[28 * 3 + 2].clone();
    let mut sums: BTreeMap<i64, i64> = view.0.keys().map(|row| (row[0], row[1])).collect();
    let change = delta(&(0..60).map(|i| (i, i, 1)).collect::<Vec<_>>());
    rows_of(&change)
        .iter()
        .for_each(|(row, _)| *sums.entry(row[0]).or_default() += row[1]);
    second.submit(&[(TABLE, vec![change])], true);
    view.add(&change_of(second.done().output));
    assert_eq!(view, Zset(sums.into_iter().map(|(k, v)| (vec![k, v], 1)).collect()));
    run.restarts
}

#[test]
fn without_failures() {
    for parallelism in [1, 2, 4] {
        let restarts = run(&format!("calm-{parallelism}"), 7, parallelism, 1 << 20, false);
        assert!(restarts.is_empty());
    }
}

#[test]
fn tasks_that_panic_start_again_alone() {
    let seeds = std::env::var("LEVEE_TEST_SEEDS").map_or(6, |n| n.parse().unwrap());
    let mut restarts = 0;
    for seed in 0..seeds {
        let parallelism = [1, 2, 4][seed as usize % 3];
        restarts += run(&format!("panic-{seed}"), seed, parallelism, 1 << 20, true).len();
    }
    assert!(restarts >= 20, "{restarts} restarts");
}

#[test]
fn and_with_everything_spilled() {
    let restarts = run("panic-spilled", 99, 2, 1, true);
    assert!(restarts.len() >= 3);
}

#[test]
fn incarnations_of_others_do_not_change() {
    let executor = Executor::new(2);
    let faults = Arc::new(Faults {
        only: Some(4),
        ..Faults::default()
    });
    let mut run = Run::start(&executor, spec("alone", sum_graph(), 2), None, &faults);
    for round in 0..10 {
        if round == 5 {
            faults.countdown.store(1, Ordering::SeqCst);
        }
        run.submit(&[(TABLE, vec![delta(&[(round, 1, 1), (round + 100, 2, 1)])])], false);
        run.done();
    }
    let mut incarnations: Vec<_> = run.region.tasks().iter().map(|t| (t.fragment, t.incarnation)).collect();
    incarnations.sort_unstable();
    assert_eq!(incarnations, [(0, 1), (0, 1), (1, 1), (1, 2)]);
    assert_eq!(run.restarts.len(), 1);
}

/// A task that fails again and again at the same step takes its region down, and no other.
#[test]
fn a_region_that_cannot_go_on_is_given_up() {
    let executor = Executor::new(2);
    let always = Arc::new(Faults {
        only: Some(4),
        ..Faults::default()
    });
    let (sender, inbox) = std::sync::mpsc::channel();
    struct Only(parking_lot::Mutex<std::sync::mpsc::Sender<String>>);
    impl RegionEvents for Only {
        fn step_done(&self, _: levee_planner::plan::ObjectId, _: StepResult) {}
        fn task_restarted(&self, _: levee_planner::plan::ObjectId, _: &TaskInfo, reason: &str) {
            drop(self.0.lock().send(reason.to_owned()));
        }
        fn region_failed(&self, _: levee_planner::plan::ObjectId, reason: &str) {
            drop(self.0.lock().send(format!("failed: {reason}")));
        }
    }
    let events = Arc::new(Only(parking_lot::Mutex::new(sender)));
    let faults = Arc::clone(&always);
    let factory: Arc<crate::dataflow::program::OperatorFactory> = Arc::new(move |node, schemas, ctx| {
        faults.countdown.store(1, Ordering::SeqCst);
        factory(&faults)(node, schemas, ctx)
    });
    let region = Region::start_with(&executor, spec("doomed", sum_graph(), 1), None, events, factory).unwrap();
    let mut other = Run::start(&executor, spec("healthy", sum_graph(), 1), None, &Arc::default());
    region.submit(Step {
        seq: 0,
        from: 0,
        to: 1,
        barrier: crate::operators::Barrier {
            epoch: 1,
            timestamp_us: 0,
            first: true,
        },
        inputs: std::collections::HashMap::new(),
        checkpoint: false,
    });
    let reasons: Vec<String> = (0..6).map(|_| inbox.recv_timeout(WAIT).unwrap()).collect();
    assert!(
        reasons[..5].iter().all(|r| r.contains("planted in operator 4")),
        "{reasons:?}"
    );
    assert!(
        reasons[5].starts_with("failed: task 1.0 failed 6 times at step 0: panic: planted"),
        "{reasons:?}"
    );
    other.submit(&[(TABLE, vec![delta(&[(1, 1, 1)])])], false);
    assert_eq!(other.done().rows_out, 1);
}

/// An operator whose output depends on which life it is in: the replay must be found out.
#[test]
fn a_replay_that_differs_stops_the_region() {
    let executor = Executor::new(2);
    let faults = Arc::new(Faults {
        only: Some(2),
        ..Faults::default()
    });
    let lives = Arc::new(std::sync::atomic::AtomicI64::new(0));
    struct Drifts(i64);
    impl crate::operators::Operator for Drifts {
        fn push(
            &mut self,
            _: usize,
            d: crate::Delta,
            out: &mut crate::operators::Output,
        ) -> crate::Result<crate::operators::Progress> {
            let rows: Vec<_> = rows_of(&d).into_iter().map(|(r, n)| (r[0], r[1] + self.0, n)).collect();
            out.emit(delta(&rows));
            if rows[0].0 == 666 && self.0 == 1 {
                panic!("second step of the first life");
            }
            Ok(crate::operators::Progress::Done)
        }
        fn close(
            &mut self,
            _: &crate::operators::Barrier,
            _: &mut crate::operators::Output,
        ) -> crate::Result<crate::operators::Progress> {
            Ok(crate::operators::Progress::Done)
        }
    }
    let factory: Arc<crate::dataflow::program::OperatorFactory> = Arc::new(move |node, schemas, ctx| {
        if node.id.0 == 2 {
            let life = lives.fetch_add(1, Ordering::SeqCst) + 1;
            return Ok(Box::new(Drifts(life)));
        }
        factory(&faults)(node, schemas, ctx)
    });
    let (sender, inbox) = std::sync::mpsc::channel();
    struct Failures(parking_lot::Mutex<std::sync::mpsc::Sender<String>>);
    impl RegionEvents for Failures {
        fn step_done(&self, _: levee_planner::plan::ObjectId, _: StepResult) {}
        fn task_restarted(&self, _: levee_planner::plan::ObjectId, _: &TaskInfo, _: &str) {}
        fn region_failed(&self, _: levee_planner::plan::ObjectId, reason: &str) {
            drop(self.0.lock().send(reason.to_owned()));
        }
    }
    let events = Arc::new(Failures(parking_lot::Mutex::new(sender)));
    let region = Region::start_with(&executor, spec("drift", sum_graph(), 1), None, events, factory).unwrap();
    for (seq, key) in [(0, 5), (1, 666)] {
        region.submit(Step {
            seq,
            from: seq,
            to: seq + 1,
            barrier: crate::operators::Barrier {
                epoch: seq + 1,
                timestamp_us: 0,
                first: seq == 0,
            },
            inputs: [(TABLE, StepInput::Deltas(vec![delta(&[(key, 1, 1)])]))].into(),
            checkpoint: false,
        });
    }
    let reason = inbox.recv_timeout(WAIT).unwrap();
    assert!(
        reason.contains("replay of step 0 on edge 0 task 0 to 0 differs"),
        "{reason}"
    );
}

/// State that cannot be read for a while costs restarts, not results; state that can never be read costs the region.
#[test]
fn a_restore_that_fails_is_tried_again() {
    struct Flaky(std::sync::atomic::AtomicI64);
    impl StateReader for Flaky {
        fn scan(
            &self,
            operator: u32,
            vnodes: std::ops::RangeInclusive<u8>,
            f: &mut dyn FnMut(u8, u8, &[u8], &[u8]) -> crate::Result<()>,
        ) -> crate::Result<()> {
            if operator == 4 && self.0.fetch_sub(1, Ordering::SeqCst) > 0 {
                return Err(crate::RuntimeError::internal("the disk is away"));
            }
            let value = [10_i64.to_le_bytes(), 1_i64.to_le_bytes()].concat();
            if operator == 4 && vnodes.contains(&crate::hash::vnode(crate::hash::hash_i64(5))) {
                return f(
                    7,
                    crate::hash::vnode(crate::hash::hash_i64(5)),
                    &5_i64.to_be_bytes(),
                    &value,
                );
            }
            Ok(())
        }
    }
    let executor = Executor::new(2);
    let flaky = Arc::new(Flaky(2.into()));
    let mut run = Run::start(&executor, spec("flaky", sum_graph(), 1), Some(flaky), &Arc::default());
    run.submit(&[(TABLE, vec![delta(&[(5, 1, 1)])])], false);
    assert_eq!(
        rows_of(&change_of(run.done().output)),
        [(vec![5, 10], -1), (vec![5, 11], 1)]
    );
    assert_eq!(run.restarts.len(), 2);

    let broken = Arc::new(Flaky(1000.into()));
    let run = Run::start(&executor, spec("broken", sum_graph(), 1), Some(broken), &Arc::default());
    let told = (0..6)
        .map(|_| run.inbox.recv_timeout(WAIT).unwrap().1)
        .fold(None, |_, told| Some(told))
        .unwrap();
    assert!(matches!(told, Told::Failed(reason) if reason.contains("the disk is away")));
}
