//! Nothing lost when the power goes: the engine on a file system that drops what was not synced and tears the last write, at
//! every IO step of a short life with DDL, commits, checkpoints and a backfill. SIGKILL alone keeps the page cache and would pass
//! without any fsync.

use std::collections::BTreeSet;
use std::sync::Arc;

use levee_sql_tests::db::Db;
use levee_sql_tests::turns;
use levee_storage::fs::{FaultFs, FileSystem};

const VIEWS: &[(&str, &str)] = &[
    (
        "sums",
        "SELECT n % 3 AS g, count(*) AS n, sum(n) AS s FROM a GROUP BY n % 3",
    ),
    ("pairs", "SELECT a.id, b.x FROM a JOIN b ON a.id = b.tx"),
    ("late", "SELECT count(*) AS n, max(x) AS hi FROM b"),
];

/// What was acknowledged before the power went.
#[derive(Debug, Default)]
struct Acked {
    tables: usize,
    views: usize,
    transactions: BTreeSet<i64>,
}

/// A short life. Ends at the first refusal: from the crash on everything fails.
async fn life(db: &Db, acked: &mut Acked) -> Result<(), String> {
    for table in [
        "CREATE TABLE a (id int PRIMARY KEY, n int)",
        "CREATE TABLE b (tx int, x int)",
    ] {
        db.exec(table).await?;
        acked.tables += 1;
    }
    for n in 0..16 {
        // Two views before most of the data, the last in the midst of it: a backfill.
        if n == 1 || n == 2 || n == 9 {
            let (name, query) = VIEWS[acked.views];
            db.exec(&format!("CREATE MATERIALIZED VIEW {name} AS {query}")).await?;
            acked.views += 1;
        }
        transaction(db, n).await?;
        acked.transactions.insert(n);
        if n % 5 == 4 {
            // Lets a checkpoint happen.
            tokio::time::sleep(std::time::Duration::from_millis(15)).await;
        }
    }
    Ok(())
}

/// One row in `a`, two in `b`, in one epoch.
async fn transaction(db: &Db, n: i64) -> Result<(), String> {
    use levee_sql_tests::feed;
    use levee_sql_tests::generate::Value;
    let (id, x) = (Value::Int(n as i32), Value::Int(n as i32 * 7));
    let a = feed::delta(&db.table_named("a").schema, &[(&[id.clone(), id.clone()], 1)]);
    let b = feed::delta(
        &db.table_named("b").schema,
        &[(&[id.clone(), x.clone()], 1), (&[id, Value::Null], 1)],
    );
    db.try_commit(vec![("a".into(), a), ("b".into(), b)]).await.map(drop)
}

async fn check(db: &Db, acked: &Acked) -> Result<(), String> {
    let catalog = db.engine().catalog();
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        if catalog.by_name(name).is_none() {
            return if i < acked.tables {
                Err(format!("table {name} is lost"))
            } else {
                Ok(())
            };
        }
    }
    let ids: Vec<i64> = column(db, "SELECT id FROM a").await?;
    let found: BTreeSet<i64> = ids.iter().copied().collect();
    if found.len() != ids.len() || !acked.transactions.is_subset(&found) {
        return Err(format!("acknowledged {:?}, found {ids:?}", acked.transactions));
    }
    let mut parts = column(db, "SELECT tx FROM b").await?;
    parts.sort_unstable();
    let whole: Vec<i64> = found.iter().flat_map(|n| [*n, *n]).collect();
    if parts != whole {
        return Err(format!("table a has {found:?}, table b {parts:?}"));
    }
    for (i, (name, query)) in VIEWS.iter().enumerate() {
        if catalog.by_name(name).is_none() {
            if i < acked.views {
                return Err(format!("view {name} is lost"));
            }
            continue;
        }
        if !built(db, name).await? {
            if i < acked.views {
                return Err(format!("view {name} is lost"));
            }
            continue;
        }
        let views = [(name.to_string(), db.bound(query)?)];
        let compared = match db.compare(&views, db.engine().newest_epoch()).await {
            Err(_) if i >= acked.views && db.engine().catalog().by_name(name).is_none() => continue,
            other => other?,
        };
        for (epoch, view, expected) in compared {
            view.same_as(&expected, false)
                .map_err(|e| format!("view {name} at epoch {epoch}: {e}"))?;
        }
    }
    // And it takes writes again.
    transaction(db, 1000).await
}

/// Whether a view is complete, in the end: one whose CREATE nobody was told of may go instead.
async fn built(db: &Db, name: &str) -> Result<bool, String> {
    for _ in 0..1000 {
        match db.contents(name).await {
            // It may go between any two looks at the catalog.
            Err(_) if db.engine().catalog().by_name(name).is_none() => return Ok(false),
            Err(e) if e.starts_with("55000") => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            other => return other.map(|_| true),
        }
    }
    let (jobs, progress) = (db.engine().status("jobs"), db.engine().status("ddl_progress"));
    Err(format!("view {name} is not built on: {jobs:?} {progress:?}"))
}

async fn column(db: &Db, query: &str) -> Result<Vec<i64>, String> {
    let rows = db.query(query).await?.rows;
    Ok(rows
        .into_iter()
        .map(|r| r[0].as_deref().expect("value").parse().expect("number"))
        .collect())
}

#[test]
fn power_loss_at_every_step_loses_nothing() {
    let _turn = turns::shared();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime");
    let lives: u64 = std::env::var("LEVEE_LIVES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(60);
    runtime.block_on(async {
        let whole = FaultFs::new(0);
        let db = Db::on(Arc::new(whole.clone()), 2, 10).expect("open");
        life(&db, &mut Acked::default()).await.expect("a life without a crash");
        db.close().await;
        let steps = whole.steps();
        assert!(steps > 40, "only {steps} IO steps: does anything reach the disk?");
        let stride = steps.div_ceil(lives).max(1);
        let mut crashed = 0;
        for (seed, step) in (1..=steps).step_by(stride as usize).enumerate() {
            let fs = FaultFs::new(seed as u64);
            fs.crash_at(step);
            let mut acked = Acked::default();
            // The crash may come while the engine opens: then there is nothing to keep.
            let Ok(db) = Db::on(Arc::new(fs.clone()), 2, 10) else {
                continue;
            };
            let end = life(&db, &mut acked).await;
            if end.is_ok() {
                fs.crash();
            }
            crashed += 1;
            let after: Arc<dyn FileSystem> = Arc::new(fs.recover());
            let outcome = match db.reopen_on(after).await {
                Ok(db) => {
                    let found = check(&db, &acked).await;
                    db.close().await;
                    found
                }
                Err(e) => Err(format!("does not open: {e}")),
            };
            println!(
                "{{\"power lost at\": {step}, \"of\": {steps}, \"acked\": {}, \"views\": {}, \"ok\": {}}}",
                acked.transactions.len(),
                acked.views,
                outcome.is_ok()
            );
            outcome.unwrap_or_else(|e| panic!("power lost at step {step} of {steps} (seed {seed}): {e}\n{acked:?}"));
        }
        println!("{{\"test\": \"power loss\", \"steps\": {steps}, \"lives\": {crashed}, \"ok\": true}}");
    });
}
