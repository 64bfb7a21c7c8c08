//! Errors: their fields, and that a failed statement leaves nothing behind.

use futures::SinkExt;
use tokio_postgres::Client;

use crate::harness::{code, fresh, rows};

#[tokio::test(flavor = "multi_thread")]
async fn constraint_errors_carry_detail() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL, c varchar(3))")
        .await
        .expect("create");
    client
        .batch_execute("INSERT INTO t VALUES (1, 'a', 'x')")
        .await
        .expect("insert");
    let error = client
        .batch_execute("INSERT INTO t VALUES (2, 'b', 'x'), (1, 'c', 'x')")
        .await
        .expect_err("duplicate");
    let db = error.as_db_error().expect("database error");
    assert_eq!(db.code().code(), "23505");
    assert_eq!(
        db.message(),
        "duplicate key value violates unique constraint \"t_pkey\""
    );
    assert_eq!(db.detail(), Some("Key (id)=(1) already exists."));
    assert_eq!((db.table(), db.constraint()), (Some("t"), Some("t_pkey")));
    let error = client
        .batch_execute("INSERT INTO t VALUES (3, NULL, 'x')")
        .await
        .expect_err("null");
    let db = error.as_db_error().expect("database error");
    assert_eq!(db.code().code(), "23502");
    assert_eq!(
        db.message(),
        "null value in column \"name\" of relation \"t\" violates not-null constraint"
    );
    assert_eq!(db.detail(), Some("Failing row contains (3, null, x)."));
    assert_eq!(
        code(
            &client
                .batch_execute("INSERT INTO t VALUES (4, 'a', 'long')")
                .await
                .expect_err("long")
        ),
        "22001"
    );
    assert_eq!(
        code(
            &client
                .batch_execute("INSERT INTO t VALUES (5, 'a', 'x'), (5, 'b', 'x')")
                .await
                .expect_err("twice")
        ),
        "23505"
    );
    client
        .batch_execute("INSERT INTO t VALUES (2, 'b', 'y')")
        .await
        .expect("insert");
    // Keys may move onto ones that the same statement frees.
    client.batch_execute("UPDATE t SET id = id + 1").await.expect("move");
    assert_eq!(
        rows(&client, "SELECT id, name FROM t ORDER BY id").await,
        ["2|a", "3|b"]
    );
    assert_eq!(
        code(
            &client
                .batch_execute("UPDATE t SET id = 2 WHERE id = 3")
                .await
                .expect_err("taken")
        ),
        "23505"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn syntax_and_names_have_positions() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    for (sql, expected) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT nothing", "42703"),
        ("SELECT 'x'::int", "22P02"),
        ("SELECT 1/0", "22012"),
        ("SELECT no_such_function(1)", "42883"),
        ("COPY t TO '/tmp/x'", "0A000"),
    ] {
        assert_eq!(
            code(&client.batch_execute(sql).await.expect_err(sql)),
            expected,
            "{sql}"
        );
    }
    let error = client
        .batch_execute("SELECT 1; SELECT * FROM nowhere")
        .await
        .expect_err("name");
    let position = error.as_db_error().and_then(|e| e.position().cloned());
    assert_eq!(position, Some(tokio_postgres::error::ErrorPosition::Original(25)));
}

async fn copy(client: &Client, sql: &str, data: &str) -> Result<u64, tokio_postgres::Error> {
    let sink = client.copy_in::<_, bytes::Bytes>(sql).await?;
    let mut sink = std::pin::pin!(sink);
    for piece in data.as_bytes().chunks(5) {
        sink.send(bytes::Bytes::copy_from_slice(piece)).await?;
    }
    sink.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_enters_whole_or_not_at_all() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, d float8 DEFAULT 1.5, s text)")
        .await
        .expect("create");
    let n = copy(
        &client,
        "COPY t FROM STDIN WITH (FORMAT csv, HEADER, NULL 'NA')",
        "id,d,s\n1,NA,\"x,\ny\"\n2,2.5,\n",
    )
    .await
    .expect("copy");
    assert_eq!(n, 2);
    assert_eq!(
        rows(&client, "SELECT * FROM t ORDER BY id").await,
        ["1|~|x,\ny", "2|2.5|"]
    );
    assert_eq!(
        copy(&client, "COPY t (id, s) FROM STDIN", "3\tq\n4\t\\N\n")
            .await
            .expect("copy"),
        2
    );
    assert_eq!(
        rows(&client, "SELECT * FROM t WHERE id > 2 ORDER BY id").await,
        ["3|1.5|q", "4|1.5|~"]
    );
    let error = copy(&client, "COPY t FROM STDIN", "5\t1\ta\nsix\t1\tb\n")
        .await
        .expect_err("bad value");
    let db = error.as_db_error().expect("database error");
    assert_eq!(db.code().code(), "22P02");
    assert_eq!(db.where_(), Some("COPY t, line 2, column id: \"six\""));
    assert_eq!(
        code(&copy(&client, "COPY t FROM STDIN", "5\t1\n").await.expect_err("missing")),
        "22P04"
    );
    assert_eq!(
        code(
            &copy(&client, "COPY t FROM STDIN", "5\t1\ta\n1\t1\tb\n")
                .await
                .expect_err("duplicate")
        ),
        "23505"
    );
    assert_eq!(rows(&client, "SELECT count(*) FROM t").await, ["4"]);
}
