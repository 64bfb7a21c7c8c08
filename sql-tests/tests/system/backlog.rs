//! Jobs that stand still keep the log and their inputs' changes up to `backlog_limit`; past it they are given up, visibly, and nobody
//! else notices.

use std::time::{Duration, Instant};

use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;

use super::ask::{PATIENCE, exec, one};

/// Waits until the answer, or the error, of a query has `part` in it.
async fn tells(session: &PgSession, sql: &str, part: &str) {
    let start = Instant::now();
    loop {
        let told = one(session, sql).await.unwrap_or_else(|e| e);
        if told.contains(part) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{sql} tells {told}, not {part}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes about a megabyte, a statement at a time.
async fn write(session: &PgSession, from: u32) {
    for part in 0..10 {
        let first = from + part * 1000;
        let rows = format!(
            "SELECT g::int, repeat('x', 100) FROM generate_series({first}, {}) s(g)",
            first + 999
        );
        exec(session, &format!("INSERT INTO t {rows}")).await;
    }
}

#[test]
fn a_job_that_stands_still_is_given_up_at_the_limit() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("tokio runtime");
    let options = |env: Vec<(String, String)>| ServerOptions {
        args: ["--backlog-limit", "4MB", "--checkpoint-interval-ms", "100"]
            .map(str::to_owned)
            .to_vec(),
        env,
    };
    let sink = |name: &str| {
        format!(
            "CREATE SINK {name} FROM w WITH (connector = 'file', path = '{}/{name}') FORMAT PLAIN ENCODE JSON",
            out.display()
        )
    };
    let mut server = Server::start(&data, &options(Vec::new()));
    runtime.block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (a int PRIMARY KEY, b text)").await;
        exec(&session, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
        exec(&session, "CREATE MATERIALIZED VIEW over_v AS SELECT n + 1 AS m FROM v").await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW w AS SELECT a, length(b) AS l FROM t",
        )
        .await;
        exec(&session, &sink("s")).await;
        exec(&session, "INSERT INTO t VALUES (-1, 'first')").await;
        // A view pauses where it stands.
        tells(&session, "SELECT n FROM v", "1").await;
        exec(&session, "ALTER MATERIALIZED VIEW v PAUSE").await;
        // Within the limit it stays where it is, and goes on from there.
        write(&session, 0).await;
        tells(&session, "SELECT n FROM v", "1").await;
        exec(&session, "ALTER MATERIALIZED VIEW v RESUME").await;
        tells(&session, "SELECT n FROM v", "10001").await;
        exec(&session, "ALTER MATERIALIZED VIEW v PAUSE").await;
        for part in 1..6 {
            write(&session, part * 100_000).await;
        }
        tells(&session, "SELECT n FROM v", "backlog_limit: it was paused").await;
        tells(&session, "SELECT m FROM over_v", "backlog_limit").await;
        tells(&session, "SELECT count(*) FROM w", "60001").await;
        exec(&session, "ALTER MATERIALIZED VIEW v RESUME").await;
        tells(&session, "SELECT m FROM over_v", "60002").await;
    });
    server.terminate();
    // The target is out: every write fails.
    let out_of_order = vec![("FAILPOINTS".to_owned(), "sink::write=return".to_owned())];
    let mut server = Server::start(&data, &options(out_of_order));
    runtime.block_on(async {
        let session = server.connect().await;
        let status = "SELECT status, error FROM levee_catalog.sinks WHERE name = 's'";
        write(&session, 1_000_000).await;
        tells(&session, status, "retrying").await;
        for part in 11..16 {
            write(&session, part * 100_000).await;
        }
        tells(
            &session,
            status,
            "failed backlog_limit: its target did not take changes",
        )
        .await;
        tells(&session, "SELECT m FROM over_v", "120002").await;
        let resumed = session.exec("ALTER SINK s RESUME").await.expect_err("resumed");
        assert!(resumed.contains("would send everything once more"), "{resumed}");
    });
    server.kill();
    let server = Server::start(&data, &options(Vec::new()));
    runtime.block_on(async {
        let session = server.connect().await;
        let status = "SELECT status, error FROM levee_catalog.sinks WHERE name = 's'";
        tells(&session, status, "failed backlog_limit").await;
        exec(&session, "DROP SINK s").await;
        exec(&session, &sink("again")).await;
        tells(&session, "SELECT status FROM levee_catalog.sinks", "running").await;
    });
    assert_eq!(server.complaints(&[]), Vec::<String>::new());
}
