//! What was acknowledged is there after a restart, however the server ended.

use crate::harness::{Levee, directory, rows};

#[tokio::test(flavor = "multi_thread")]
async fn data_survives_a_clean_stop_and_a_kill() {
    let dir = directory();
    let levee = Levee::start(dir.path());
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
        .await
        .expect("create");
    client
        .batch_execute("CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t")
        .await
        .expect("view");
    client
        .batch_execute("INSERT INTO t VALUES (1, 'one')")
        .await
        .expect("insert");
    drop(client);
    assert_eq!(levee.stop(), Some(0));

    let levee = Levee::start(dir.path());
    let client = levee.connect().await;
    assert_eq!(rows(&client, "SELECT * FROM t").await, ["1|one"]);
    for i in 2..=50 {
        client
            .batch_execute(&format!("INSERT INTO t VALUES ({i}, 'x')"))
            .await
            .expect("insert");
    }
    levee.kill();

    let levee = Levee::start(dir.path());
    let client = levee.connect().await;
    assert_eq!(
        rows(&client, "SELECT count(*), min(id), max(id) FROM t").await,
        ["50|1|50"]
    );
    client.batch_execute("FLUSH").await.expect("flush");
    assert_eq!(rows(&client, "SELECT n FROM m").await, ["50"]);
}
