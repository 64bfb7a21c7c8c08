//! Transaction blocks, DDL and kills at once: money moves between two tables, views of them come and go, the server dies and comes
//! back. No acknowledged move is lost, none is there by half, and no read, of tables or views, ever sees money on its way.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use levee_sql_tests::generate;
use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;
use rand::Rng;

const WRITERS: i64 = 4;
const ACCOUNTS: i64 = 10;
const TOTAL: i64 = 2 * ACCOUNTS * 1000;
const KILLS: usize = 4;

/// What must be the same at every epoch.
const SUM: &str = "SELECT sum(v) FROM (SELECT v FROM a UNION ALL SELECT v FROM b) AS both_tables";

#[derive(Debug, Default)]
struct Moves {
    acked: Mutex<BTreeSet<i64>>,
    next: AtomicI64,
    checked: AtomicI64,
}

fn is_gone(error: &str) -> bool {
    error.starts_with("connection") || error.starts_with("57P01")
}

/// Moves money in blocks until the server is gone.
async fn write(session: PgSession, writer: i64, moves: Arc<Moves>) {
    loop {
        let id = moves.next.fetch_add(1, Ordering::SeqCst);
        let (from, to, n) = ((id * 7 + writer) % ACCOUNTS, (id * 3) % ACCOUNTS, id % 50);
        let block = [
            "BEGIN".to_owned(),
            format!("UPDATE a SET v = v - {n} WHERE id = {from}"),
            format!("INSERT INTO moves VALUES ({id}, {n})"),
            format!("UPDATE b SET v = v + {n} WHERE id = {to}"),
            "COMMIT".to_owned(),
        ];
        let mut failed = None;
        for statement in &block {
            if let Err(error) = session.exec(statement).await {
                failed = Some(error);
                break;
            }
        }
        match failed {
            None => drop(moves.acked.lock().expect("no panic").insert(id)),
            Some(error) if is_gone(&error) => return,
            // A conflict or a deadlock: the move is not in.
            Some(error) => {
                assert!(error.starts_with("40"), "{error}");
                if session.exec("ROLLBACK").await.is_err_and(|e| is_gone(&e)) {
                    return;
                }
            }
        }
    }
}

/// Reads tables and a view, alone and in a block, until the server is gone.
async fn read(session: PgSession, moves: Arc<Moves>) {
    let total = TOTAL.to_string();
    loop {
        for sql in [
            SUM,
            "SELECT v FROM total",
            "BEGIN",
            "SELECT v FROM total",
            SUM,
            "COMMIT",
        ] {
            match session.try_query(sql).await {
                Ok(rows) => {
                    if let Some(row) = rows.rows.first() {
                        assert_eq!(row[0].as_deref(), Some(total.as_str()), "{sql} sees money on its way");
                        moves.checked.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) if is_gone(&error) => return,
                Err(error) => panic!("{sql}: {error}"),
            }
        }
    }
}

/// Makes views, reads them and drops them until the server is gone.
async fn churn(session: PgSession) {
    let total = TOTAL.to_string();
    loop {
        let create = format!(
            "CREATE MATERIALIZED VIEW churn AS {}",
            SUM.replace("sum(v)", "sum(v) AS v")
        );
        for sql in [
            create.as_str(),
            "SELECT v FROM churn",
            "DROP MATERIALIZED VIEW IF EXISTS churn",
        ] {
            match session.try_query(sql).await {
                Ok(rows) => {
                    if let Some(row) = rows.rows.first() {
                        assert_eq!(
                            row[0].as_deref(),
                            Some(total.as_str()),
                            "a new view sees money on its way"
                        );
                    }
                }
                Err(error) if is_gone(&error) => return,
                // The catalog changed too often; so the view is not there, or that of before the kill is.
                Err(error) => assert!(
                    ["40001", "42P01", "42P07"].iter().any(|code| error.starts_with(code)),
                    "{sql}: {error}"
                ),
            }
        }
    }
}

async fn check(session: &PgSession, moves: &Moves) {
    let total = Some(TOTAL.to_string());
    assert_eq!(session.query(SUM).await.rows[0][0], total);
    assert_eq!(session.query("SELECT v FROM total").await.rows[0][0], total);
    let found = session.query("SELECT id FROM moves").await.rows;
    let found: Vec<i64> = found
        .iter()
        .map(|r| r[0].as_deref().expect("id").parse().expect("number"))
        .collect();
    let once: BTreeSet<i64> = found.iter().copied().collect();
    assert_eq!(once.len(), found.len(), "a move is in twice");
    let lost: Vec<i64> = moves
        .acked
        .lock()
        .expect("no panic")
        .difference(&once)
        .copied()
        .collect();
    assert!(lost.is_empty(), "acknowledged moves are lost: {lost:?}");
    // The accounts hold what the moves say: none is there by half.
    let moved = session.query("SELECT coalesce(sum(n), 0) FROM moves").await.rows[0][0].clone();
    let left = session
        .query(&format!("SELECT {} - sum(v) FROM a", ACCOUNTS * 1000))
        .await
        .rows[0][0]
        .clone();
    assert_eq!(moved, left);
}

#[test]
fn blocks_ddl_and_kills_leave_the_books_balanced() {
    let _turn = turns::shared();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime");
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let moves = Arc::new(Moves::default());
    let mut rng = generate::rng(7);
    let mut server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        for sql in [
            "CREATE TABLE a (id int PRIMARY KEY, v int)",
            "CREATE TABLE b (id int PRIMARY KEY, v int)",
            "CREATE TABLE moves (id int PRIMARY KEY, n int)",
            &format!(
                "INSERT INTO a SELECT g::int, 1000 FROM generate_series(0, {}) s(g)",
                ACCOUNTS - 1
            ),
            &format!(
                "INSERT INTO b SELECT g::int, 1000 FROM generate_series(0, {}) s(g)",
                ACCOUNTS - 1
            ),
            &format!(
                "CREATE MATERIALIZED VIEW total AS {}",
                SUM.replace("sum(v)", "sum(v) AS v")
            ),
        ] {
            session.exec(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        }
    });
    for kill in 0..KILLS {
        runtime.block_on(async {
            let mut tasks = Vec::new();
            for writer in 0..WRITERS {
                tasks.push(tokio::spawn(write(server.connect().await, writer, Arc::clone(&moves))));
            }
            tasks.push(tokio::spawn(read(server.connect().await, Arc::clone(&moves))));
            tasks.push(tokio::spawn(churn(server.connect().await)));
            let deadline = Instant::now() + Duration::from_millis(rng.random_range(300..1500));
            while Instant::now() < deadline && !tasks.iter().any(tokio::task::JoinHandle::is_finished) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.kill();
            for task in tasks {
                task.await.expect("a client found something wrong");
            }
        });
        server = Server::start(&data, &ServerOptions::default());
        runtime.block_on(async { check(&server.connect().await, &moves).await });
        let acked = moves.acked.lock().expect("no panic").len();
        println!(
            "{{\"test\": \"blocks\", \"kill\": {kill}, \"acked\": {acked}, \"reads\": {}}}",
            moves.checked.load(Ordering::Relaxed)
        );
    }
    assert!(
        !moves.acked.lock().expect("no panic").is_empty(),
        "no move was acknowledged"
    );
    assert_eq!(server.complaints(&[]), Vec::<String>::new());
}
