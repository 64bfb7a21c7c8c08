//! Blocks: isolation, conflicts, failed state.

use crate::harness::{code, fresh, rows};

#[tokio::test(flavor = "multi_thread")]
async fn a_block_reads_one_epoch_and_its_own_writes() {
    let (_dir, levee) = fresh();
    let (a, b) = (levee.connect().await, levee.connect().await);
    a.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        .await
        .expect("create");
    a.batch_execute("INSERT INTO t VALUES (1, 10), (2, 20)")
        .await
        .expect("rows");
    a.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .expect("begin");
    assert_eq!(rows(&a, "SELECT sum(v) FROM t").await, ["30"]);
    b.batch_execute("UPDATE t SET v = 99 WHERE id = 2; INSERT INTO t VALUES (3, 30)")
        .await
        .expect("other");
    a.batch_execute("UPDATE t SET v = 11 WHERE id = 1").await.expect("own");
    a.batch_execute("INSERT INTO t VALUES (4, 40)").await.expect("own");
    a.batch_execute("DELETE FROM t WHERE id = 4").await.expect("own");
    a.batch_execute("INSERT INTO t VALUES (5, 50)").await.expect("own");
    assert_eq!(rows(&a, "SELECT * FROM t ORDER BY id").await, ["1|11", "2|20", "5|50"]);
    assert_eq!(rows(&b, "SELECT * FROM t ORDER BY id").await, ["1|10", "2|99", "3|30"]);
    let first = rows(&a, "SELECT now()").await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(rows(&a, "SELECT now()").await, first);
    a.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(
        rows(&b, "SELECT * FROM t ORDER BY id").await,
        ["1|11", "2|99", "3|30", "5|50"]
    );
    a.batch_execute("BEGIN; DELETE FROM t; ROLLBACK")
        .await
        .expect("rollback");
    assert_eq!(rows(&a, "SELECT count(*) FROM t").await, ["4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_blocks_and_failed_blocks() {
    let (_dir, levee) = fresh();
    let (a, b) = (levee.connect().await, levee.connect().await);
    a.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)")
        .await
        .expect("create");
    for (level, outcome, after) in [("REPEATABLE READ", Some("40001"), "1"), ("READ COMMITTED", None, "3")] {
        for client in [&a, &b] {
            client
                .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT v FROM t"))
                .await
                .expect("begin");
        }
        let update = "UPDATE t SET v = v + 1 WHERE id = 1";
        a.batch_execute(update).await.expect("first");
        // Waits for the first block, whose COMMIT is sent meanwhile.
        let (second, committed) = tokio::join!(b.batch_execute(update), a.batch_execute("COMMIT"));
        committed.expect("commit");
        assert_eq!(second.err().map(|e| code(&e)).as_deref(), outcome, "{level}");
        b.batch_execute("COMMIT").await.expect("end");
        assert_eq!(rows(&b, "SELECT v FROM t").await, [after]);
    }
    b.batch_execute("BEGIN").await.expect("begin");
    assert_eq!(
        code(&b.batch_execute("SELECT 1/0").await.expect_err("division")),
        "22012"
    );
    assert_eq!(
        code(&b.batch_execute("SELECT 1").await.expect_err("failed block")),
        "25P02"
    );
    b.batch_execute("ROLLBACK").await.expect("rollback");
    b.batch_execute("BEGIN READ ONLY").await.expect("begin");
    assert_eq!(
        code(&b.batch_execute("DELETE FROM t").await.expect_err("read only")),
        "25006"
    );
    b.batch_execute("ROLLBACK; BEGIN; UPDATE t SET v = 0")
        .await
        .expect("begin");
    let error = b
        .batch_execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
        .await
        .expect_err("ddl");
    assert_eq!(code(&error), "25001");
    b.batch_execute("ROLLBACK").await.expect("rollback");
}

#[tokio::test(flavor = "multi_thread")]
async fn single_statements_take_turns() {
    let (_dir, levee) = fresh();
    let setup = levee.connect().await;
    setup
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)")
        .await
        .expect("create");
    let mut writers = Vec::new();
    for _ in 0..3 {
        let client = levee.connect().await;
        writers.push(tokio::spawn(async move {
            for _ in 0..10 {
                client
                    .batch_execute("UPDATE t SET v = v + 1 WHERE id = 1")
                    .await
                    .expect("update");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("writer");
    }
    assert_eq!(rows(&setup, "SELECT v FROM t").await, ["30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_sees_its_writes_in_views() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (g text, v int)")
        .await
        .expect("create");
    client
        .batch_execute("CREATE MATERIALIZED VIEW m AS SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g")
        .await
        .expect("view");
    for i in 1..=5 {
        client
            .batch_execute(&format!("INSERT INTO t VALUES ('a', {i})"))
            .await
            .expect("insert");
        assert_eq!(rows(&client, "SELECT n FROM m").await, [i.to_string()]);
    }
    client.batch_execute("DELETE FROM t WHERE v > 3").await.expect("delete");
    assert_eq!(rows(&client, "SELECT * FROM m").await, ["a|3|6"]);
}
