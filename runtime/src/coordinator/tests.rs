//! The engine as a whole, in process: commits, views, conflicts, restarts.

use std::sync::Arc;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use levee_planner::catalog::{CatalogObject, MaterializedViewDef, ObjectKind, TableDef};
use levee_planner::plan::{
    AggCall, AggFunc, ExchangeKind, ObjectId, OperatorId, PLAN_VERSION, StreamNode, StreamOp, StreamPlan, StreamProps,
};

use super::*;

fn config(dir: &std::path::Path) -> EngineConfig {
    EngineConfig {
        data_dir: dir.to_path_buf(),
        checkpoint_url: None,
        memory_limit: 1 << 30,
        parallelism: 2,
        checkpoint_interval_ms: 50,
        backlog_limit: BACKLOG_LIMIT,
    }
}

fn table_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("g", DataType::Int64, true),
    ]))
}

fn table(id: ObjectId) -> CatalogObject {
    CatalogObject::new(
        id,
        format!("t{id}"),
        ObjectKind::Table(TableDef {
            schema: table_schema(),
            primary_key: vec![0],
            defaults: vec![None, None],
            ingest: None,
            constraints: Default::default(),
            generated: Default::default(),
        }),
    )
}

/// `SELECT g, count(*) FROM t GROUP BY g`.
fn view(id: ObjectId, table: ObjectId) -> CatalogObject {
    let node = |id, op, inputs, schema: &SchemaRef, props| StreamNode {
        id: OperatorId(id),
        op,
        inputs,
        schema: Arc::clone(schema),
        props,
    };
    let g: SchemaRef = Arc::new(Schema::new(vec![Field::new("g", DataType::Int64, true)]));
    let out: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("g", DataType::Int64, true),
        Field::new("n", DataType::Int64, false),
    ]));
    let scan = StreamOp::Scan {
        relation: table,
        name: "t".into(),
        projection: vec![1],
    };
    let scan = node(0, scan, vec![], &g, StreamProps::default());
    let exchange = StreamOp::Exchange {
        kind: ExchangeKind::Hash(vec![0]),
    };
    let exchange = node(1, exchange, vec![scan], &g, StreamProps::default());
    let count = AggCall::new(AggFunc::Count, None);
    let aggregate = StreamOp::Aggregate {
        group_by: vec![0],
        aggs: vec![count],
    };
    let props = StreamProps {
        keys: vec![vec![0]],
        ..StreamProps::default()
    };
    let root = node(2, aggregate, vec![exchange], &out, props);
    let kind = ObjectKind::MaterializedView(Box::new(MaterializedViewDef {
        sql: String::new(),
        schema: out,
        plan: StreamPlan {
            version: PLAN_VERSION,
            root,
        },
        options: Default::default(),
    }));
    CatalogObject {
        depends_on: vec![table],
        ..CatalogObject::new(id, format!("v{id}"), kind)
    }
}

fn rows(values: &[(i64, i64, i64)]) -> Delta {
    let id: Int64Array = values.iter().map(|v| v.0).collect();
    let g: Int64Array = values.iter().map(|v| v.1).collect();
    let batch = RecordBatch::try_new(table_schema(), vec![Arc::new(id), Arc::new(g)]).unwrap();
    Delta::new(batch, values.iter().map(|v| v.2).collect())
}

async fn read(engine: &Engine, id: ObjectId, at_least: u64) -> Vec<(i64, i64)> {
    let snapshot = engine.snapshot(&[id], at_least).await.unwrap();
    let mut out = Vec::new();
    for batch in snapshot.relations[&id].rows().unwrap() {
        let (a, b) = (
            batch.column(0).as_primitive::<Int64Type>(),
            batch.column(1).as_primitive::<Int64Type>(),
        );
        out.extend((0..batch.num_rows()).map(|i| (a.value(i), b.value(i))));
        assert_eq!(a.null_count(), 0);
    }
    out
}

async fn commit(engine: &Engine, table: ObjectId, values: &[(i64, i64, i64)]) -> u64 {
    let snapshot_epoch = engine.newest_epoch();
    engine
        .commit(CommitRequest {
            snapshot_epoch,
            writes: vec![(table, vec![rows(values)])],
            definitions: Vec::new(),
        })
        .await
        .unwrap()
        .epoch
}

async fn create(engine: &Engine, make: impl Fn(ObjectId) -> CatalogObject) -> ObjectId {
    let catalog = engine.catalog();
    let id = catalog.next_id();
    engine.create(&catalog, make(id)).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_follows_its_table_and_both_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(config(dir.path())).unwrap();
    let t = create(&engine, table).await;
    commit(&engine, t, &[(1, 10, 1), (2, 10, 1), (3, 20, 1)]).await;
    let v = create(&engine, |id| view(id, t)).await;
    assert_eq!(read(&engine, v, 0).await, [(10, 2), (20, 1)]);
    let epoch = commit(&engine, t, &[(1, 10, -1), (1, 20, 1)]).await;
    assert_eq!(read(&engine, v, epoch).await, [(10, 1), (20, 2)]);
    for i in 0..200 {
        commit(&engine, t, &[(100 + i, 30 + i % 3, 1)]).await;
    }
    let epoch = engine.newest_epoch();
    let before = read(&engine, v, epoch).await;
    assert_eq!(before.len(), 5);
    engine.shutdown().await;
    drop(engine);
    for _ in 0..3 {
        let engine = Engine::open(config(dir.path())).unwrap();
        assert_eq!(read(&engine, v, 0).await, before);
        assert_eq!(read(&engine, t, 0).await.len(), 203);
        let e = commit(&engine, t, &[(1, 20, -1)]).await;
        let after = read(&engine, v, e).await;
        assert_eq!(after[1], (20, 1));
        let e = commit(&engine, t, &[(1, 20, 1)]).await;
        assert_eq!(read(&engine, v, e).await, before);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_writer_of_a_key_loses() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(config(dir.path())).unwrap();
    let t = create(&engine, table).await;
    let snapshot_epoch = engine.newest_epoch();
    let write = |values| {
        engine.commit(CommitRequest {
            snapshot_epoch,
            writes: vec![(t, vec![rows(values)])],
            definitions: Vec::new(),
        })
    };
    write(&[(1, 1, 1)]).await.unwrap();
    assert!(matches!(write(&[(1, 2, 1)]).await, Err(RuntimeError::Conflict)));
    write(&[(2, 2, 1)]).await.unwrap();
    engine.shutdown().await;
}

/// I3 and I1 under power loss: whatever IO step the machine stops at, what was acknowledged is there afterwards and the view equals
/// its query.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_commits_survive_power_loss_at_any_step() {
    use levee_storage::fs::FaultFs;
    for crash_at in (3..400).step_by(13) {
        let scratch = tempfile::tempdir().unwrap();
        let fs = Arc::new(FaultFs::new(crash_at));
        let mut acked = Vec::new();
        let mut ids = None;
        if let Ok(engine) = Engine::open_with(config(scratch.path()), Arc::clone(&fs) as _, Arc::new(SystemClock)) {
            fs.crash_at(fs.steps() + crash_at);
            ids = run_until_crash(&engine, &mut acked).await;
            engine.shutdown().await;
        }
        let fs = Arc::new(fs.recover());
        let Some((t, v)) = ids else { continue };
        let engine = Engine::open_with(config(scratch.path()), Arc::clone(&fs) as _, Arc::new(SystemClock)).unwrap();
        let rows = read(&engine, t, 0).await;
        for id in &acked {
            assert!(
                rows.iter().any(|r| r.0 == *id),
                "row {id} was acknowledged and is gone, crash at {crash_at}"
            );
        }
        if let Some(v) = v {
            let mut expected = std::collections::BTreeMap::new();
            for (_, g) in &rows {
                *expected.entry(*g).or_insert(0) += 1;
            }
            assert_eq!(
                read(&engine, v, 0).await,
                expected.into_iter().collect::<Vec<_>>(),
                "crash at {crash_at}"
            );
        }
        engine.shutdown().await;
    }
}

async fn run_until_crash(engine: &Engine, acked: &mut Vec<i64>) -> Option<(ObjectId, Option<ObjectId>)> {
    let catalog = engine.catalog();
    let t = catalog.next_id();
    engine.create(&catalog, table(t)).await.ok()?;
    let mut v = None;
    for i in 0..300_i64 {
        if i == 20 {
            let catalog = engine.catalog();
            let id = catalog.next_id();
            match engine.create(&catalog, view(id, t)).await {
                Ok(()) => v = Some(id),
                Err(_) => break,
            }
        }
        let writes = vec![(t, vec![rows(&[(i, i % 7, 1)])])];
        let snapshot_epoch = engine.newest_epoch();
        match engine
            .commit(CommitRequest {
                snapshot_epoch,
                writes,
                definitions: Vec::new(),
            })
            .await
        {
            Ok(_) => acked.push(i),
            Err(_) => break,
        }
        if i % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    }
    Some((t, v))
}

/// A block's epoch stays readable whatever the steps of its relations were going to be, and a read of several relations is never
/// older than what it must see.
#[tokio::test(flavor = "multi_thread")]
async fn every_pinned_epoch_is_a_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(Engine::open(config(dir.path())).unwrap());
    let t = create(&engine, table).await;
    let v = create(&engine, |id| view(id, t)).await;
    let w = create(&engine, |id| view(id, t)).await;
    let writers: Vec<_> = (0..4)
        .map(|k| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                for i in 0..200 {
                    let epoch = commit(&engine, t, &[(k * 1000 + i, i % 7, 1)]).await;
                    let snapshot = engine.snapshot(&[t, v, w], epoch).await.unwrap();
                    assert!(snapshot.epoch >= epoch);
                }
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let pin = engine.pin(0);
        tokio::time::sleep(Duration::from_millis(2)).await;
        let snapshot = engine.snapshot_at(&[t, v], pin.epoch()).await.unwrap();
        assert_eq!(snapshot.epoch, pin.epoch());
        let snapshot = engine.snapshot_at(&[w], pin.epoch()).await.unwrap();
        assert_eq!(snapshot.epoch, pin.epoch());
    }
    for writer in writers {
        writer.await.unwrap();
    }
    engine.shutdown().await;
}

async fn checkpoints(engine: &Arc<Engine>) -> u64 {
    let engine = Arc::clone(engine);
    let rows = tokio::task::spawn_blocking(move || engine.status("checkpoints"))
        .await
        .unwrap();
    rows.first()
        .and_then(|r| r[0].clone())
        .map_or(0, |n| n.parse().unwrap())
}

/// Checkpoints in the midst of a backfill hold its pins; those that follow its end must not, or a restart would read the pinned rows
/// a second time.
#[tokio::test(flavor = "multi_thread")]
async fn no_pins_are_left_of_a_backfill() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(config(dir.path())).unwrap();
    let t = create(&engine, table).await;
    let other = create(&engine, table).await;
    let many: Vec<(i64, i64, i64)> = (0..200_000).map(|i| (i, i % 5, 1)).collect();
    commit(&engine, t, &many).await;
    let id = engine.catalog().next_id();
    crate::dataflow::debug_delay(&format!("v{id}"), 80);
    let before = checkpoints(&engine).await;
    let creating = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { create(&engine, |id| view(id, t)).await }
    });
    let mut n = 1_000_000;
    while !creating.is_finished() {
        // Keeps checkpoints coming while the view is built.
        n += 1;
        commit(&engine, other, &[(n, 1, 1)]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let v = creating.await.unwrap();
    crate::dataflow::debug_delay(&format!("v{id}"), 0);
    assert!(
        checkpoints(&engine).await > before,
        "no checkpoint while the view was built"
    );
    let expected: Vec<(i64, i64)> = (0..5).map(|g| (g, 40_000)).collect();
    assert_eq!(read(&engine, v, 0).await, expected);
    let built = checkpoints(&engine).await;
    while checkpoints(&engine).await < built + 2 {
        n += 1;
        commit(&engine, other, &[(n, 1, 1)]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.shutdown().await;
    drop(engine);
    let engine = Engine::open(config(dir.path())).unwrap();
    assert_eq!(read(&engine, v, 0).await, expected);
    let epoch = commit(&engine, t, &[(0, 0, -1)]).await;
    assert_eq!(read(&engine, v, epoch).await[0], (0, 39_999));
    engine.shutdown().await;
}

/// An epoch that changes one table visits what reads it and nothing else; all others are complete with it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_rests_is_complete_without_being_visited() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(config(dir.path())).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let t = create(&engine, table).await;
        let v = create(&engine, |id| view(id, t)).await;
        let w = create(&engine, |id| view(id, t)).await;
        pairs.push((t, v, w));
    }
    let (first, ..) = pairs[0];
    for i in 0..50 {
        let epoch = commit(&engine, first, &[(i, i % 3, 1)]).await;
        // All relations answer at the newest epoch, whichever of them the epoch changed.
        let all: Vec<ObjectId> = pairs.iter().flat_map(|(t, v, w)| [*t, *v, *w]).collect();
        let snapshot = engine.snapshot(&all, epoch).await.unwrap();
        assert!(snapshot.epoch >= epoch);
    }
    let engine_too = Arc::clone(&engine);
    let regions = tokio::task::spawn_blocking(move || engine_too.status("regions"))
        .await
        .unwrap();
    for row in &regions {
        let name = row[1].clone().unwrap();
        assert_eq!(row[4].as_deref(), Some("0"), "{name} lags");
        let steps: u64 = row[5].as_deref().unwrap().parse().unwrap();
        let busy = pairs[0].0.to_string() == row[0].clone().unwrap()
            || pairs[0].1.to_string() == row[0].clone().unwrap()
            || pairs[0].2.to_string() == row[0].clone().unwrap();
        assert!(busy == (steps > 3), "{name} took {steps} steps");
    }
    // A table that rested takes the next epoch, and a view of it with it.
    let (t, v, _) = pairs[3];
    let epoch = commit(&engine, t, &[(1, 9, 1)]).await;
    assert_eq!(read(&engine, v, epoch).await, [(9, 1)]);
    engine.shutdown().await;
}
