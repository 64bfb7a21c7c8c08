//! Views over `now()`: rows come and go as time passes, without a change of any table, before and after a kill.

use std::time::{Duration, Instant};

use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;

use super::ask::exec;

async fn one(session: &PgSession, sql: &str) -> String {
    let mut rows = session.query(sql).await.rows;
    let row = rows.pop().unwrap_or_else(|| panic!("no row\n{sql}"));
    row.into_iter()
        .map(|v| v.unwrap_or_else(|| "NULL".to_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Waits until a query answers `wanted`; the answer before that must be `before`.
async fn becomes(session: &PgSession, sql: &str, before: &str, wanted: &str, within: Duration) {
    let start = Instant::now();
    loop {
        let answer = one(session, sql).await;
        if answer == wanted {
            return;
        }
        assert_eq!(answer, before, "{sql}");
        assert!(start.elapsed() < within, "{sql} is still {answer} after {within:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const RECENT: &str = "SELECT count(*), sum(id) FROM recent";
const TOTAL: &str = "SELECT n, s FROM total";

#[test]
fn rows_come_and_go_as_time_passes() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime");
    let mut server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, until timestamptz)").await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW recent AS SELECT id FROM t WHERE at <= now() AND until > now()",
        )
        .await;
        exec(&session, "CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(id) AS s FROM recent").await;
        exec(
            &session,
            "INSERT INTO t SELECT i, now() + i * interval '1.5 seconds', now() + interval '1 hour' FROM generate_series(0, 2) i",
        )
        .await;
        let wait = Duration::from_secs(10);
        becomes(&session, RECENT, "0 NULL", "1 0", wait).await;
        becomes(&session, RECENT, "1 0", "2 1", wait).await;
        becomes(&session, TOTAL, "1 0", "2 1", wait).await;
    });
    // The third row comes while nobody is there, or right after.
    server.kill();
    let server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        let wait = Duration::from_secs(10);
        becomes(&session, RECENT, "2 1", "3 3", wait).await;
        becomes(&session, TOTAL, "2 1", "3 3", wait).await;
        exec(
            &session,
            "UPDATE t SET until = now() + interval '1 second' WHERE id <> 1",
        )
        .await;
        assert_eq!(one(&session, RECENT).await, "3 3");
        becomes(&session, TOTAL, "3 3", "1 1", wait).await;
        becomes(&session, RECENT, "3 3", "1 1", wait).await;
        // What is over stays over, also when it is deleted.
        exec(&session, "DELETE FROM t WHERE id = 2").await;
        assert_eq!(one(&session, RECENT).await, "1 1");
        assert_eq!(server.complaints(&[]), Vec::<String>::new());
    });
}
