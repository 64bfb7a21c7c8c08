//! Deliveries against a target in memory that fails before and after its commit, is slow, and is taken away.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use levee_planner::catalog::{Encoding, SinkDef, SinkMode, SourceFormat};
use levee_planner::plan::{OperatorId, PLAN_VERSION, StreamNode, StreamOp, StreamPlan, StreamProps};
use levee_storage::fs::OsFs;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::delivery::{DeliverySpec, Outcome, Phase};
use super::*;
use crate::Delta;
use crate::dataflow::{StateDelta, StepResult};
use crate::relation::StepOutput;

/// What the next write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Fails, nothing is written.
    Before,
    /// Is written, and fails.
    After,
}

/// The outside world: survives the sink.
#[derive(Debug, Default)]
struct World {
    rows: BTreeMap<i64, i64>,
    marker: Option<Marker>,
    writes: usize,
    opens: usize,
    faults: VecDeque<Fault>,
    out: bool,
    hang: bool,
}

struct Memory {
    world: Arc<Mutex<World>>,
    stop: watch::Receiver<bool>,
}

impl Target for Memory {
    fn open(&mut self, _fresh: bool) -> TargetResult<Option<Marker>> {
        let mut world = self.world.lock();
        world.opens += 1;
        if world.out {
            return Err(TargetError::Retry("out".to_owned()));
        }
        Ok(world.marker)
    }

    fn write(&mut self, from: Option<Marker>, to: Marker, changes: &[Changes]) -> TargetResult<()> {
        while self.world.lock().hang {
            if *self.stop.borrow() {
                return Err(TargetError::Stopped);
            }
            std::thread::yield_now();
        }
        let mut world = self.world.lock();
        if world.out {
            return Err(TargetError::Retry("out".to_owned()));
        }
        let fault = world.faults.pop_front();
        if fault == Some(Fault::Before) {
            return Err(TargetError::Retry("before".to_owned()));
        }
        assert_eq!(world.marker, from, "a write that does not follow the one before");
        world.marker = Some(to);
        world.writes += 1;
        for part in changes {
            let column = |c: usize| part.batch.column(c).as_primitive::<Int64Type>();
            for change in &part.changes {
                let before = change
                    .before
                    .map(|r| (column(0).value(r as usize), column(1).value(r as usize)));
                let after = change
                    .after
                    .map(|r| (column(0).value(r as usize), column(1).value(r as usize)));
                if let Some((k, v)) = before {
                    assert_eq!(world.rows.remove(&k), Some(v), "the row before is not there");
                }
                if let Some((k, v)) = after {
                    assert_eq!(world.rows.insert(k, v), None, "a row twice");
                }
            }
        }
        if fault == Some(Fault::After) {
            return Err(TargetError::Retry("after".to_owned()));
        }
        Ok(())
    }

    fn release(&mut self) -> TargetResult<()> {
        self.world.lock().marker = None;
        Ok(())
    }
}

pub(super) fn definition(connector: &str) -> SinkDef {
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::Int64, false),
    ]));
    let root = StreamNode {
        id: OperatorId(0),
        op: StreamOp::Values { ipc: Vec::new() },
        inputs: Vec::new(),
        schema: Arc::clone(&schema),
        props: StreamProps::default(),
    };
    SinkDef {
        sql: String::new(),
        schema,
        plan: StreamPlan {
            version: PLAN_VERSION,
            root,
        },
        connector: connector.to_owned(),
        options: BTreeMap::new(),
        format: SourceFormat::Native,
        encode: Encoding::Native,
        encode_options: BTreeMap::new(),
        key: vec![0],
        mode: SinkMode::Upsert,
        incarnation: 7,
    }
}

/// One life of a sink.
struct Life {
    delivery: Option<Delivery>,
    outcomes: Receiver<Outcome>,
    seq: u64,
}

impl Life {
    fn start(dir: &std::path::Path, world: &Arc<Mutex<World>>, connector: &str, restored: Option<Marker>) -> Self {
        let stop = watch::Sender::new(false);
        let target = Memory {
            world: Arc::clone(world),
            stop: stop.subscribe(),
        };
        let spec = DeliverySpec {
            name: "k".to_owned(),
            def: definition(connector),
            journal: Journal::open(Arc::new(OsFs), &dir.join("journal")).unwrap(),
            restored,
            gather_bytes_max: 1 << 20,
            step_bytes_max: 1 << 20,
        };
        let (tell, outcomes) = channel();
        let outcome = Box::new(move |o| tell.send(o).unwrap_or(()));
        let delivery = Delivery::start_with(spec, Box::new(target), stop, outcome).unwrap();
        Self {
            delivery: Some(delivery),
            outcomes,
            seq: 0,
        }
    }

    fn submit(&mut self, from: u64, to: Marker, rows: &[(i64, i64, i64)], snapshot: bool) {
        let schema = definition("x").schema;
        let column = |f: fn(&(i64, i64, i64)) -> i64| Arc::new(rows.iter().map(f).collect::<Int64Array>());
        let batch = RecordBatch::try_new(schema, vec![column(|r| r.0), column(|r| r.1)]).unwrap();
        let output =
            (!rows.is_empty()).then(|| StepOutput::Resident(Delta::new(batch, rows.iter().map(|r| r.2).collect())));
        let result = StepResult {
            seq: self.seq,
            from,
            to: to.epoch,
            output,
            rows_out: 0,
            checksum: 0,
            snapshot: snapshot.then(StateDelta::default),
            errors: Vec::new(),
            busy_us: 0,
            next_timer_us: None,
        };
        self.seq += 1;
        self.delivery.as_ref().unwrap().submit(to, Box::new(result));
    }

    /// One epoch's step, and its outcome.
    fn step(&mut self, epoch: u64, rows: &[(i64, i64, i64)]) {
        self.submit(epoch - 1, Marker::whole(epoch), rows, false);
        self.done();
    }

    fn done(&self) {
        match self.outcomes.recv_timeout(Duration::from_secs(20)).unwrap() {
            Outcome::Done(_) => {}
            Outcome::Failed(reason) => panic!("{reason}"),
        }
    }

    fn failed(&self) -> String {
        match self.outcomes.recv_timeout(Duration::from_secs(20)).unwrap() {
            Outcome::Done(_) => panic!("the step was taken"),
            Outcome::Failed(reason) => reason,
        }
    }

    fn stop(mut self) {
        if let Some(delivery) = self.delivery.take() {
            delivery.stop();
        }
    }
}

/// Epoch n turns row 1 from n − 1 into n, and adds row 100 + n.
fn change(n: i64) -> Vec<(i64, i64, i64)> {
    let mut rows = vec![(1, n, 1), (100 + n, n, 1)];
    if n > 1 {
        rows.insert(0, (1, n - 1, -1));
    }
    rows
}

fn expected(n: i64) -> BTreeMap<i64, i64> {
    (1..=n).map(|i| (100 + i, i)).chain([(1, n)]).collect()
}

#[test]
fn a_failed_write_is_repeated_unless_it_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    world.lock().faults = VecDeque::from([Fault::Before, Fault::After, Fault::After, Fault::Before]);
    for n in 1..=4 {
        life.step(n as u64, &change(n));
    }
    assert_eq!(world.lock().rows, expected(4));
    assert_eq!(world.lock().writes, 4);
    life.stop();
}

#[test]
fn a_restart_leaves_out_what_the_target_has() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    (1..=5).for_each(|n| life.step(n as u64, &change(n)));
    life.stop();
    // The region's checkpoint is at 2; steps after it are computed again.
    let mut life = Life::start(dir.path(), &world, "memory", Some(Marker::whole(2)));
    (3..=7).for_each(|n| life.step(n as u64, &change(n)));
    assert_eq!(world.lock().rows, expected(7));
    assert_eq!(world.lock().writes, 7);
    life.stop();
}

#[test]
fn a_restart_after_an_unknown_outcome_finds_it_out() {
    for fault in [Fault::Before, Fault::After] {
        let dir = tempfile::tempdir().unwrap();
        let world = Arc::new(Mutex::new(World::default()));
        let mut life = Life::start(dir.path(), &world, "memory", None);
        life.step(1, &change(1));
        world.lock().faults = VecDeque::from([fault, Fault::Before, Fault::Before, Fault::Before]);
        life.submit(1, Marker::whole(2), &change(2), false);
        while world.lock().faults.len() == 4 {
            std::thread::yield_now();
        }
        life.stop();
        world.lock().faults.clear();
        let mut life = Life::start(dir.path(), &world, "memory", Some(Marker::whole(1)));
        life.step(2, &change(2));
        life.step(3, &change(3));
        assert_eq!(world.lock().rows, expected(3), "{fault:?}");
        life.stop();
    }
}

#[test]
fn the_first_filling_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let part = |part| Marker { epoch: 9, part };
    let mut life = Life::start(dir.path(), &world, "memory", Some(part(0)));
    life.submit(9, part(1), &[(1, 1, 1)], false);
    life.submit(9, part(2), &[(2, 2, 1)], false);
    (0..2).for_each(|_| life.done());
    life.stop();
    let mut life = Life::start(dir.path(), &world, "memory", Some(part(1)));
    life.submit(9, part(2), &[(2, 2, 1)], false);
    life.submit(9, part(3), &[(3, 3, 1)], false);
    life.submit(9, Marker::whole(10), &[(3, 3, -1)], false);
    (0..3).for_each(|_| life.done());
    assert_eq!(world.lock().rows, BTreeMap::from([(1, 1), (2, 2)]));
    life.stop();
    // Without its checkpoint the sink would be filled from other epochs.
    let mut life = Life::start(dir.path(), &world, "memory", None);
    life.submit(12, Marker { epoch: 12, part: 1 }, &[(1, 1, 1)], false);
    assert!(life.failed().contains("from its beginning"));
}

#[test]
fn a_target_that_was_set_back_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    (1..=3).for_each(|n| life.step(n as u64, &change(n)));
    life.stop();
    for marker in [None, Some(Marker::whole(1)), Some(Marker::whole(9))] {
        world.lock().marker = marker;
        let mut life = Life::start(dir.path(), &world, "memory", Some(Marker::whole(3)));
        life.submit(3, Marker::whole(4), &change(4), false);
        assert!(life.failed().contains("not where this sink left it"), "{marker:?}");
    }
}

#[test]
fn a_step_across_the_marker_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    (1..=3).for_each(|n| life.step(n as u64, &change(n)));
    life.stop();
    let mut life = Life::start(dir.path(), &world, "memory", Some(Marker::whole(2)));
    life.submit(2, Marker::whole(4), &change(4), false);
    assert!(life.failed().contains("goes on after epoch 2"));
}

#[test]
fn gathered_steps_are_written_before_a_checkpoint_claims_them() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "file", None);
    (1..=3).for_each(|n| life.step(n as u64, &change(n)));
    assert_eq!(world.lock().writes, 0);
    life.submit(3, Marker::whole(3), &[], true);
    life.done();
    assert_eq!(world.lock().writes, 1);
    assert_eq!(world.lock().rows, expected(3));
    life.step(4, &change(4));
    life.stop();
    // What was gathered is computed again.
    let mut life = Life::start(dir.path(), &world, "file", Some(Marker::whole(3)));
    life.step(4, &change(4));
    life.submit(4, Marker::whole(5), &change(5), true);
    life.done();
    assert_eq!(world.lock().rows, expected(5));
    life.stop();
}

#[test]
fn an_outage_is_shown_and_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    life.step(1, &change(1));
    world.lock().out = true;
    life.submit(1, Marker::whole(2), &change(2), false);
    let delivery = life.delivery.as_ref().unwrap();
    while !delivery.stalled() {
        std::thread::yield_now();
    }
    assert_eq!(delivery.status().phase, Phase::Retrying);
    assert_eq!(delivery.status().error.as_deref(), Some("out"));
    world.lock().out = false;
    delivery.resume();
    life.done();
    assert_eq!(life.delivery.as_ref().unwrap().status().phase, Phase::Running);
    assert_eq!(world.lock().rows, expected(2));
    life.stop();
}

#[test]
fn a_hanging_target_does_not_hold_the_end_up() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    world.lock().hang = true;
    let mut life = Life::start(dir.path(), &world, "memory", None);
    life.submit(0, Marker::whole(1), &change(1), false);
    life.stop();
    assert_eq!(world.lock().writes, 0);
}

#[test]
fn a_dropped_sink_gives_its_marker_up() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let mut life = Life::start(dir.path(), &world, "memory", None);
    life.step(1, &change(1));
    assert!(dir.path().join("journal").exists());
    life.delivery.take().unwrap().release();
    while dir.path().join("journal").exists() {
        std::thread::yield_now();
    }
    assert_eq!(world.lock().marker, None);
}
