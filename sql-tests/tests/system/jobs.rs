//! The life of streaming jobs: background creation, cancelling, WITH NO DATA, REFRESH, PAUSE, failure and rebuilding, restarts.

use std::time::{Duration, Instant};

use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;

use super::ask::exec;

const ROWS: i64 = 300_000;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime");
    runtime.block_on(future)
}

async fn refused(session: &PgSession, sql: &str, error: &str) {
    match session.try_query(sql).await {
        Err(e) => assert!(e.starts_with(error), "{sql}: {e}, not {error}"),
        Ok(rows) => panic!("{sql} answers {rows:?}, not {error}"),
    }
}

async fn one(session: &PgSession, sql: &str) -> String {
    let rows = session.query(sql).await.rows;
    assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
    rows[0][0].clone().unwrap_or_else(|| "null".into())
}

fn delay(server: &Server, region: &str, ms: u64) {
    let body = format!(r#"{{"region": "{region}", "ms": {ms}}}"#);
    let answer = server.http("POST", "/debug/delay", &body);
    assert_eq!(answer.map(|a| a.0), Some(200));
}

/// Waits until the query answers that.
async fn until(session: &PgSession, sql: &str, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let rows = session.query(sql).await.rows;
        let got = rows.first().and_then(|r| r[0].clone()).unwrap_or_default();
        if got == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{sql} still answers {got:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until that many checkpoints have been completed, with change to keep them coming.
async fn checkpoints_pass(session: &PgSession, n: i64) {
    let newest = "SELECT coalesce(max(number), 0) FROM levee_catalog.checkpoints";
    exec(session, "CREATE TABLE IF NOT EXISTS ticks (n int)").await;
    let wanted = one(session, newest).await.parse::<i64>().expect("number") + n;
    let deadline = Instant::now() + Duration::from_secs(60);
    while one(session, newest).await.parse::<i64>().expect("number") < wanted {
        assert!(Instant::now() < deadline, "no checkpoints any more");
        exec(session, "INSERT INTO ticks VALUES (1)").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn big_table(session: &PgSession) {
    exec(session, "CREATE TABLE t (k bigint, x bigint)").await;
    let insert = format!("INSERT INTO t SELECT g, g % 100 FROM generate_series(1, {ROWS}) s(g)");
    exec(session, &insert).await;
}

fn jobs_sql(name: &str) -> String {
    format!("SELECT coalesce(max(mode), 'none') FROM levee_catalog.ddl_progress WHERE name = '{name}'")
}

#[test]
fn background_jobs_are_seen_cancelled_and_outlive_a_kill() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let mut server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        big_table(&session).await;
        for name in ["bg", "gone", "fg"] {
            delay(&server, name, 400);
        }
        exec(&session, "SET background_ddl = on").await;
        let started = Instant::now();
        exec(
            &session,
            "CREATE MATERIALIZED VIEW bg AS SELECT x, count(*) AS n FROM t GROUP BY x",
        )
        .await;
        assert!(
            started.elapsed() < Duration::from_millis(1500),
            "CREATE waited for the view"
        );
        assert_eq!(one(&session, &jobs_sql("bg")).await, "background");
        refused(&session, "SELECT * FROM bg", "55000").await;

        // A view over one that is being built waits for it; cancelling what is read is refused.
        exec(
            &session,
            "CREATE MATERIALIZED VIEW over AS SELECT count(*) AS n FROM bg",
        )
        .await;
        let jobs = session.query("SHOW JOBS").await.rows;
        assert_eq!(jobs.len(), 2, "{jobs:?}");
        let bg = jobs[0][0].clone().expect("id");
        refused(&session, &format!("CANCEL JOB {bg}"), "2BP01").await;
        refused(&session, "CANCEL JOB 1", "42704").await;

        exec(&session, "CREATE MATERIALIZED VIEW gone AS SELECT count(*) AS n FROM t").await;
        let id = one(
            &session,
            "SELECT id FROM levee_catalog.ddl_progress WHERE name = 'gone'",
        )
        .await;
        assert_eq!(one(&session, &format!("CANCEL JOBS {id}")).await, "gone");
        refused(&session, "SELECT * FROM gone", "42P01").await;

        // A foreground creation is being waited for when everything dies.
        let other = server.connect().await;
        let waiting = tokio::spawn(async move {
            other
                .exec("CREATE MATERIALIZED VIEW fg AS SELECT max(k) AS k FROM t")
                .await
        });
        until(&session, &jobs_sql("fg"), "foreground").await;
        server.kill();
        assert!(waiting.await.expect("no panic").is_err());
    });
    let server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        refused(&session, "SELECT * FROM fg", "42P01").await;
        exec(&session, "SET statement_timeout = '60s'").await;
        assert_eq!(one(&session, "SELECT n FROM over").await, "100");
        assert_eq!(one(&session, "SELECT sum(n) FROM bg").await, ROWS.to_string());
        assert_eq!(session.query("SHOW JOBS").await.rows.len(), 0);
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}

#[test]
fn a_foreground_creation_goes_with_its_client() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let server = Server::start(&dir.path().join("data"), &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        big_table(&session).await;
        let create = "CREATE MATERIALIZED VIEW slow AS SELECT x, count(*) AS n FROM t GROUP BY x";
        let there = "SELECT count(*) FROM pg_matviews WHERE matviewname = 'slow'";
        delay(&server, "slow", 400);

        exec(&session, "SET statement_timeout = '300ms'").await;
        refused(&session, create, "57014").await;
        exec(&session, "SET statement_timeout = 0").await;
        until(&session, there, "0").await;

        let other = server.connect().await;
        let cancel = other.client().cancel_token();
        let waiting = tokio::spawn(async move { other.exec(create).await });
        until(&session, &jobs_sql("slow"), "foreground").await;
        cancel
            .cancel_query(tokio_postgres::NoTls)
            .await
            .expect("cancel request");
        let error = waiting.await.expect("no panic").expect_err("it was cancelled");
        assert!(error.starts_with("57014"), "{error}");
        until(&session, there, "0").await;

        // The socket is closed under a client that waits.
        let config = format!("host=127.0.0.1 port={} user=test dbname=dev", server.pg_port());
        let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls)
            .await
            .expect("connect");
        let connection = tokio::spawn(connection);
        let waiting = tokio::spawn(async move { client.simple_query(create).await.is_err() });
        until(&session, &jobs_sql("slow"), "foreground").await;
        connection.abort();
        assert!(waiting.await.expect("no panic"), "the client was told of success");
        until(&session, there, "0").await;

        // Dropped by another session while it waits; two at once afterwards.
        let other = server.connect().await;
        let waiting = tokio::spawn(async move { other.exec(create).await });
        until(&session, &jobs_sql("slow"), "foreground").await;
        exec(&session, "DROP MATERIALIZED VIEW slow").await;
        let error = waiting.await.expect("no panic").expect_err("it was dropped");
        assert!(error.starts_with("57014"), "{error}");
        delay(&server, "slow", 0);
        let makers: Vec<_> = (0..4)
            .map(|i| {
                let other = server.try_connect();
                (i, other)
            })
            .collect();
        let mut waiting = Vec::new();
        for (i, other) in makers {
            let other = other.await.expect("connect");
            let sql =
                format!("CREATE MATERIALIZED VIEW v{i} AS SELECT x, count(*) AS n FROM t WHERE x > {i} GROUP BY x");
            waiting.push(tokio::spawn(async move { other.exec(&sql).await }));
        }
        for made in waiting {
            made.await.expect("no panic").expect("created");
        }
        assert_eq!(one(&session, "SELECT count(*) FROM v3").await, "96");
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}

#[test]
fn views_without_data_are_filled_by_refresh() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let mut server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (k int, x int)").await;
        exec(&session, "INSERT INTO t VALUES (1, 10), (2, 20)").await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t WITH NO DATA",
        )
        .await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW later AS SELECT count(*) AS n FROM t WITH NO DATA",
        )
        .await;
        refused(
            &session,
            "SELECT * FROM v",
            "55000: materialized view \"v\" has not been populated",
        )
        .await;
        refused(&session, "CREATE MATERIALIZED VIEW w AS SELECT s FROM v", "55000").await;
        let populated = "SELECT ispopulated FROM pg_matviews WHERE matviewname = 'v'";
        assert_eq!(one(&session, populated).await, "f");
        refused(&session, "REFRESH MATERIALIZED VIEW CONCURRENTLY v", "0A000").await;
        exec(&session, "REFRESH MATERIALIZED VIEW v").await;
        assert_eq!(one(&session, "SELECT s FROM v").await, "30");
        assert_eq!(one(&session, populated).await, "t");
        exec(&session, "CREATE MATERIALIZED VIEW w AS SELECT s FROM v").await;
        refused(&session, "REFRESH MATERIALIZED VIEW v WITH NO DATA", "2BP01").await;
        exec(&session, "INSERT INTO t VALUES (3, 30)").await;
        // Another session that has written nothing: after REFRESH it sees everything that was committed before.
        let other = server.connect().await;
        exec(&other, "REFRESH MATERIALIZED VIEW CONCURRENTLY w").await;
        assert_eq!(one(&other, "SELECT s FROM w").await, "60");
        exec(&session, "REFRESH MATERIALIZED VIEW w WITH NO DATA").await;
        refused(&session, "SELECT * FROM w", "55000").await;
    });
    server.kill();
    let server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        refused(&session, "SELECT * FROM later", "55000").await;
        refused(&session, "SELECT * FROM w", "55000").await;
        exec(&session, "REFRESH MATERIALIZED VIEW later").await;
        exec(&session, "REFRESH MATERIALIZED VIEW w").await;
        assert_eq!(one(&session, "SELECT n FROM later").await, "3");
        assert_eq!(one(&session, "SELECT s FROM w").await, "60");
        exec(&session, "DROP TABLE t CASCADE").await;
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}

#[test]
fn a_paused_view_stands_and_holds_nobody_back() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let mut server = Server::start(&data, &ServerOptions::default());
    let both = "SELECT a.n, b.n FROM v AS a CROSS JOIN other AS b";
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (k int, x int)").await;
        exec(&session, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
        exec(&session, "CREATE MATERIALIZED VIEW w AS SELECT n + 1 AS n FROM v").await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW other AS SELECT count(*) AS n FROM t",
        )
        .await;
        exec(&session, "INSERT INTO t VALUES (1, 1)").await;
        exec(&session, "FLUSH").await;
        exec(&session, "CREATE MATERIALIZED VIEW late AS SELECT count(*) AS n FROM t").await;
        exec(&session, "ALTER MATERIALIZED VIEW v PAUSE").await;
        exec(&session, "ALTER MATERIALIZED VIEW v PAUSE").await;
        exec(&session, "SET statement_timeout = '20s'").await;
        for k in 2..40 {
            exec(&session, &format!("INSERT INTO t VALUES ({k}, {k})")).await;
        }
        exec(&session, "FLUSH").await;
        assert_eq!(one(&session, "SELECT n FROM other").await, "39");
        assert_eq!(one(&session, "SELECT n FROM v").await, "1");
        assert_eq!(one(&session, "SELECT n FROM w").await, "2");
        assert_eq!(
            session.query(both).await.rows,
            [[Some("1".to_owned()), Some("39".to_owned())]]
        );
        refused(&session, "REFRESH MATERIALIZED VIEW v", "55000").await;
        assert_eq!(
            one(&session, "SELECT state FROM levee_catalog.jobs WHERE name = 'v'").await,
            "paused"
        );
        checkpoints_pass(&session, 3).await;
        // Paused without a checkpoint in between: the log has it.
        exec(&session, "ALTER MATERIALIZED VIEW late PAUSE").await;
    });
    server.kill();
    let server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        exec(&session, "SET statement_timeout = '20s'").await;
        let n = one(&session, "SELECT n FROM other").await;
        assert_eq!(one(&session, "SELECT n FROM v").await, "1");
        assert_eq!(one(&session, "SELECT n FROM late").await, n);
        exec(&session, "INSERT INTO t VALUES (0, 0)").await;
        assert_eq!(one(&session, "SELECT n FROM late").await, n);
        let n = one(&session, "SELECT n FROM other").await;
        exec(&session, "ALTER MATERIALIZED VIEW v RESUME").await;
        exec(&session, "REFRESH MATERIALIZED VIEW w").await;
        assert_eq!(one(&session, "SELECT n FROM v").await, n);
        assert_eq!(one(&session, "SELECT n - 1 FROM w").await, n);
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}

#[test]
fn a_failed_view_lets_go_and_is_built_again() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let expected = ["division by zero", "has stopped", "regions has", "job has stopped"];
    let mut server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (k int PRIMARY KEY, x int)").await;
        exec(&session, "INSERT INTO t VALUES (1, 1), (2, 2)").await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW v WITH (on_error = 'stop') AS SELECT k, 10 / x AS q FROM t",
        )
        .await;
        exec(&session, "CREATE MATERIALIZED VIEW w AS SELECT sum(q) AS s FROM v").await;
        exec(&session, "CREATE MATERIALIZED VIEW fine AS SELECT count(*) AS n FROM t").await;
        assert_eq!(one(&session, "SELECT s FROM w").await, "15");
        exec(&session, "INSERT INTO t VALUES (3, 0)").await;
        let state = "SELECT left(state, 6) FROM levee_catalog.jobs WHERE name = 'w'";
        until(&session, state, "failed").await;
        refused(&session, "SELECT * FROM v", "55000").await;
        refused(&session, "SELECT * FROM w", "55000").await;
        assert_eq!(one(&session, "SELECT n FROM fine").await, "3");
        // Nothing of it is kept: the log goes on being cut, runs go on being folded.
        refused(&session, "ALTER MATERIALIZED VIEW w RESUME", "55000").await;
        refused(&session, "ALTER MATERIALIZED VIEW v RESUME", "58000").await;
        until(&session, state, "failed").await;
    });
    server.kill();
    let mut server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        refused(&session, "SELECT * FROM v", "55000").await;
        refused(&session, "SELECT * FROM w", "55000").await;
        exec(&session, "UPDATE t SET x = 5 WHERE k = 3").await;
        exec(&session, "ALTER MATERIALIZED VIEW v RESUME").await;
        assert_eq!(one(&session, "SELECT s FROM w").await, "17");
        exec(&session, "DELETE FROM t WHERE k = 1").await;
        assert_eq!(one(&session, "SELECT s FROM w").await, "7");
        assert_eq!(one(&session, "SELECT count(*) FROM v").await, "2");
        // The state of the life before is in no checkpoint that a restart would begin with.
        checkpoints_pass(&session, 3).await;
        assert_eq!(server.complaints(&expected), Vec::<String>::new());
    });
    server.kill();
    let server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        assert_eq!(one(&session, "SELECT s FROM w").await, "7");
        exec(&session, "INSERT INTO t VALUES (1, 1)").await;
        assert_eq!(one(&session, "SELECT s FROM w").await, "17");
        assert_eq!(one(&session, "SELECT count(*) FROM v").await, "3");
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}

#[test]
fn a_paused_source_brings_nothing_new() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let server = Server::start(&dir.path().join("data"), &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        exec(
            &session,
            "CREATE SOURCE bid WITH (connector = 'nexmark', nexmark.event.type = 'bid', nexmark.event.rate = 1000)",
        )
        .await;
        exec(&session, "CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM bid").await;
        until(&session, "SELECT n > 10 FROM n", "t").await;
        exec(&session, "ALTER SOURCE bid PAUSE").await;
        exec(&session, "FLUSH").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        exec(&session, "FLUSH").await;
        let n = one(&session, "SELECT n FROM n").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(
            one(&session, "SELECT n FROM n").await,
            n,
            "a paused source brought records"
        );
        exec(&session, "ALTER SOURCE bid RESUME").await;
        until(&session, &format!("SELECT n > {n} FROM n"), "t").await;
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}
