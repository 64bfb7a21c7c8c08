//! What tests ask of a server, and how long they wait for the answer.

use std::time::{Duration, Instant};

use levee_sql_tests::postgres::PgSession;

/// How long the server may take to catch up.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a statement that must succeed.
pub(super) async fn exec(session: &PgSession, sql: &str) {
    session.exec(sql).await.unwrap_or_else(|e| panic!("{e}\n{sql}"));
}

/// A query's last row, or its error.
pub(super) async fn one(session: &PgSession, sql: &str) -> Result<String, String> {
    let mut rows = session.try_query(sql).await?.rows;
    let row = rows.pop().ok_or_else(|| format!("no row\n{sql}"))?;
    let cells = row.into_iter().map(|v| v.unwrap_or_else(|| "NULL".to_owned()));
    Ok(cells.collect::<Vec<_>>().join(" "))
}

/// Waits until a query answers `wanted`.
pub(super) async fn becomes(session: &PgSession, sql: &str, wanted: &str) {
    let start = Instant::now();
    loop {
        let answer = one(session, sql).await.unwrap_or_else(|e| e);
        if answer == wanted {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{sql} is {answer}, not {wanted}, after {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// For tests whose tasks run beside each other.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime")
}
