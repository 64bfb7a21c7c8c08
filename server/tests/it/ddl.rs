//! Definitions under restarts and concurrency: sequences never repeat a value, constraints hold between transactions, temporary
//! objects are their session's own.

use std::collections::HashSet;

use crate::harness::{Levee, code, directory, fresh, rows};

#[tokio::test(flavor = "multi_thread")]
async fn definitions_survive_a_kill_and_no_value_of_a_sequence_comes_twice() {
    let dir = directory();
    let mut seen: HashSet<String> = HashSet::new();
    for round in 0..4 {
        let levee = Levee::start(dir.path());
        let client = levee.connect().await;
        if round == 0 {
            client
                .batch_execute(
                    "CREATE SCHEMA s; \
                     CREATE TABLE s.t (id serial PRIMARY KEY, u text UNIQUE, a int CHECK (a > 0)); \
                     CREATE TABLE k (a int, b int NOT NULL); \
                     CREATE VIEW v AS SELECT a, b FROM k",
                )
                .await
                .expect("tables");
            client
                .batch_execute("INSERT INTO k VALUES (1, 1), (2, 2)")
                .await
                .expect("rows");
            client
                .batch_execute(
                    "ALTER TABLE k ADD PRIMARY KEY (a); \
                     ALTER TABLE k ALTER COLUMN b DROP NOT NULL; \
                     ALTER TABLE k RENAME COLUMN b TO bb",
                )
                .await
                .expect("alter");
            client
                .batch_execute("INSERT INTO k VALUES (3, NULL)")
                .await
                .expect("NULL");
        }
        let insert =
            format!("INSERT INTO s.t (u, a) SELECT 'r{round}-' || g, 1 FROM generate_series(1, 100) g RETURNING id");
        for id in rows(&client, &insert).await {
            assert!(seen.insert(id.clone()), "round {round}: {id} came before");
        }
        for _ in 0..20 {
            for value in rows(&client, "SELECT nextval('s.t_id_seq')").await {
                assert!(seen.insert(value.clone()), "round {round}: {value} came before");
            }
        }
        assert_eq!(rows(&client, "SELECT * FROM v ORDER BY a").await, ["1|1", "2|2", "3|~"]);
        for (sql, wanted) in [
            ("INSERT INTO s.t (u, a) VALUES ('r0-1', 1)", "23505"),
            ("INSERT INTO s.t (u, a) VALUES ('new', 0)", "23514"),
            ("INSERT INTO k VALUES (1, 5)", "23505"),
        ] {
            let error = client.batch_execute(sql).await.expect_err(sql);
            assert_eq!(code(&error), wanted, "{sql}");
        }
        levee.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_transactions_cannot_add_the_same_value() {
    let (_dir, levee) = fresh();
    let setup = levee.connect().await;
    setup
        .batch_execute("CREATE TABLE t (id serial PRIMARY KEY, u int UNIQUE)")
        .await
        .expect("table");
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = levee.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut added = 0_u32;
            for u in 0..50 {
                match client.batch_execute(&format!("INSERT INTO t (u) VALUES ({u})")).await {
                    Ok(()) => added += 1,
                    Err(e) => assert_eq!(code(&e), "23505"),
                }
            }
            added
        }));
    }
    let mut added = 0;
    for task in tasks {
        added += task.await.expect("writer");
    }
    assert_eq!(added, 50);
    assert_eq!(
        rows(&setup, "SELECT count(*), count(DISTINCT u) FROM t").await,
        ["50|50"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_and_its_child_do_not_miss_each_other() {
    let (_dir, levee) = fresh();
    let (a, b) = (levee.connect().await, levee.connect().await);
    a.batch_execute(
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p); \
         INSERT INTO p VALUES (1), (2)",
    )
    .await
    .expect("tables");
    // The child's row is there, not yet committed: the delete waits, then fails.
    a.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1)")
        .await
        .expect("child");
    let delete = tokio::spawn(async move {
        let error = b
            .batch_execute("DELETE FROM p WHERE id = 1")
            .await
            .expect_err("referenced");
        (code(&error), b)
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(
        !delete.is_finished(),
        "the delete waits for the transaction that refers to the row"
    );
    a.batch_execute("COMMIT").await.expect("commit");
    let (error, b) = delete.await.expect("delete");
    assert_eq!(error, "23503");
    // The other way round.
    b.batch_execute("BEGIN; DELETE FROM p WHERE id = 2")
        .await
        .expect("delete");
    let insert = tokio::spawn(async move {
        let error = a.batch_execute("INSERT INTO c VALUES (2, 2)").await.expect_err("gone");
        code(&error)
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(
        !insert.is_finished(),
        "the insert waits for the transaction that deletes what it refers to"
    );
    b.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(insert.await.expect("insert"), "23503");
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_objects_are_their_sessions_own() {
    let dir = directory();
    let levee = Levee::start(dir.path());
    let (a, b) = (levee.connect().await, levee.connect().await);
    for (client, value) in [(&a, 1), (&b, 2)] {
        client
            .batch_execute(&format!("CREATE TEMP TABLE t (a int); INSERT INTO t VALUES ({value})"))
            .await
            .expect("table");
    }
    assert_eq!(rows(&a, "SELECT a FROM t").await, ["1"]);
    assert_eq!(rows(&b, "SELECT a FROM pg_temp.t").await, ["2"]);
    drop(a);
    let left = "SELECT count(*) FROM pg_class WHERE relname = 't'";
    for _ in 0..100 {
        if rows(&b, left).await == ["1"] {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(rows(&b, left).await, ["1"]);
    levee.kill();
    let levee = Levee::start(dir.path());
    let client = levee.connect().await;
    assert_eq!(rows(&client, left).await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_checked_against_an_old_definition_does_not_commit() {
    let (_dir, levee) = fresh();
    let (a, b) = (levee.connect().await, levee.connect().await);
    a.batch_execute("CREATE TABLE t (a int)").await.expect("table");
    // What checks the rows waits for those who write some.
    a.batch_execute("BEGIN; INSERT INTO t VALUES (-1)")
        .await
        .expect("insert");
    let alter = tokio::spawn(async move {
        let error = b
            .batch_execute("ALTER TABLE t ADD CHECK (a > 0)")
            .await
            .expect_err("violated");
        (code(&error), b)
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!alter.is_finished(), "the ALTER waits for the transaction that writes");
    a.batch_execute("COMMIT").await.expect("commit");
    let (error, b) = alter.await.expect("alter");
    assert_eq!(error, "23514");
    // A change that needs no look at the rows does not wait; the block is told at COMMIT.
    a.batch_execute("BEGIN; INSERT INTO t VALUES (1)")
        .await
        .expect("insert");
    b.batch_execute("ALTER TABLE t RENAME TO u").await.expect("rename");
    let error = a.batch_execute("COMMIT").await.expect_err("stale");
    assert_eq!(code(&error), "40001");
    assert_eq!(rows(&b, "SELECT count(*) FROM u").await, ["1"]);
}
