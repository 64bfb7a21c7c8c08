//! The protocol itself: parameters, portals, cancel, time-outs, broken messages.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::types::Type;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::harness::{Levee, code, directory, fresh, rows};

#[tokio::test(flavor = "multi_thread")]
async fn ready_in_time_and_clean_stop() {
    let dir = directory();
    let started = Instant::now();
    let levee = Levee::start(dir.path());
    let took = started.elapsed();
    let client = levee.connect().await;
    assert_eq!(rows(&client, "SELECT 1").await, ["1"]);
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut http = TcpStream::connect(&levee.http).await.expect("http");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        http.write_all(request.as_bytes()).await.expect("request");
        let mut answer = String::new();
        http.read_to_string(&mut answer).await.expect("answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    assert_eq!(levee.stop(), Some(0));
    assert!(took < Duration::from_secs(5), "ready after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn simple_strings_and_command_tags() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
        .await
        .expect("create");
    let answers = client
        .simple_query("INSERT INTO t VALUES (1, 'a'), (2, 'b'); UPDATE t SET name = 'c' WHERE id = 2; DELETE FROM t WHERE id = 1; SELECT * FROM t")
        .await
        .expect("statements");
    let counts: Vec<u64> = answers
        .iter()
        .filter_map(|m| match m {
            SimpleQueryMessage::CommandComplete(n) => Some(*n),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [2, 1, 1, 1]);
    // An error undoes the whole string.
    let error = client
        .simple_query("INSERT INTO t VALUES (7, 'x'); SELECT 1/0")
        .await
        .expect_err("division");
    assert_eq!(code(&error), "22012");
    assert_eq!(rows(&client, "SELECT id, name FROM t").await, ["2|c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_and_prepared_statements() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v bigint, s text)")
        .await
        .expect("create");
    let insert = client
        .prepare("INSERT INTO t VALUES ($1, $2, $3)")
        .await
        .expect("prepare");
    assert_eq!(insert.params(), [Type::INT4, Type::INT8, Type::TEXT]);
    for i in 0..10i32 {
        let n = client
            .execute(&insert, &[&i, &i64::from(i * 10), &format!("s{i}")])
            .await
            .expect("insert");
        assert_eq!(n, 1);
    }
    let row = client
        .query_one("SELECT v, s FROM t WHERE id = $1", &[&3i32])
        .await
        .expect("row");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, String>(1)), (30, "s3".to_owned()));
    let none: Option<String> = None;
    client
        .execute("UPDATE t SET s = $1 WHERE id = $2", &[&none, &3i32])
        .await
        .expect("update");
    let row = client
        .query_one("SELECT s FROM t WHERE id = 3", &[])
        .await
        .expect("row");
    assert_eq!(row.get::<_, Option<String>>(0), None);
    // The statement's result changes under it.
    let all = client.prepare("SELECT * FROM t").await.expect("prepare");
    client
        .batch_execute("DROP TABLE t; CREATE TABLE t (id int)")
        .await
        .expect("again");
    assert_eq!(code(&client.query(&all, &[]).await.expect_err("changed")), "0A000");
}

#[tokio::test(flavor = "multi_thread")]
async fn portals_stop_at_the_row_limit() {
    let (_dir, levee) = fresh();
    let mut client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY)")
        .await
        .expect("create");
    client
        .batch_execute("INSERT INTO t SELECT g FROM generate_series(1, 25) AS s(g)")
        .await
        .expect("rows");
    let transaction = client.transaction().await.expect("begin");
    let portal = transaction
        .bind("SELECT id FROM t ORDER BY id", &[])
        .await
        .expect("portal");
    let mut seen = Vec::new();
    loop {
        let part = transaction.query_portal(&portal, 10).await.expect("rows");
        if part.is_empty() {
            break;
        }
        assert!(part.len() <= 10);
        seen.extend(part.iter().map(|r| r.get::<_, i32>(0)));
    }
    assert_eq!(seen, (1..=25).collect::<Vec<_>>());
    transaction.commit().await.expect("commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_is_being_planned_is_stopped() {
    let (_dir, levee) = fresh();
    let (client, other) = (levee.connect().await, levee.connect().await);
    let list: Vec<String> = (0..150_000).map(|n| n.to_string()).collect();
    let sql = format!("SELECT count(*) FROM (VALUES (1)) v(x) WHERE x IN ({})", list.join(","));
    let started = Instant::now();
    assert_eq!(rows(&client, &sql).await, ["1"]);
    let whole = started.elapsed();
    client
        .batch_execute(&format!("SET statement_timeout = '{}ms'", whole.as_millis() / 10))
        .await
        .expect("set");
    let started = Instant::now();
    let (planned, answered) = tokio::join!(client.simple_query(&sql), rows(&other, "SELECT 1"));
    assert_eq!(code(&planned.expect_err("timeout")), "57014");
    assert_eq!(answered, ["1"]);
    assert!(started.elapsed() < whole / 2, "{:?} of {whole:?}", started.elapsed());
    client.batch_execute("RESET statement_timeout").await.expect("reset");
    let token = client.cancel_token();
    let started = Instant::now();
    let cancel = async {
        tokio::time::sleep(whole / 10).await;
        token.cancel_query(NoTls).await.expect("cancel");
    };
    let (planned, ()) = tokio::join!(client.simple_query(&sql), cancel);
    assert_eq!(code(&planned.expect_err("cancelled")), "57014");
    assert!(started.elapsed() < whole / 2, "{:?} of {whole:?}", started.elapsed());
}

const ENDLESS: &str =
    "SELECT count(*) FROM generate_series(1, 100000) a(x), generate_series(1, 1000000) b(y) WHERE x + y = -1";

#[tokio::test(flavor = "multi_thread")]
async fn cancel_and_timeout_stop_a_query() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    let token = client.cancel_token();
    let started = Instant::now();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel_query(NoTls).await.expect("cancel");
    };
    let (result, ()) = tokio::join!(client.simple_query(ENDLESS), cancel);
    assert_eq!(code(&result.expect_err("cancelled")), "57014");
    assert!(started.elapsed() < Duration::from_secs(5));
    client
        .batch_execute("SET statement_timeout = '200ms'")
        .await
        .expect("set");
    let error = client.simple_query(ENDLESS).await.expect_err("timeout");
    assert_eq!(code(&error), "57014");
    assert_eq!(rows(&client, "SHOW statement_timeout").await, ["200ms"]);
    assert_eq!(rows(&client, "SELECT 1").await, ["1"]);
}

async fn raw(levee: &Levee) -> TcpStream {
    let mut socket = TcpStream::connect(&levee.pg).await.expect("socket");
    let mut packet = vec![0, 3, 0, 0];
    packet.extend_from_slice(b"user\0u\0database\0dev\0\0");
    let length = u32::try_from(packet.len() + 4).expect("length");
    socket.write_all(&length.to_be_bytes()).await.expect("length");
    socket.write_all(&packet).await.expect("startup");
    read_until(&mut socket, b"Z\0\0\0\x05").await;
    socket
}

async fn read_until(socket: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while !all.windows(end.len()).any(|w| w == end) {
        match socket.read(&mut buffer).await.expect("read") {
            0 => break,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_messages_end_only_their_connection() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    let broken: &[&[u8]] = &[
        b"B\0\0\0\x06\0\0",
        b"Q\0\0\0\x09hello",
        b"P\0\0\0\x08abcd",
        b"\x01\0\0\0\x04",
        b"Q\0\0\0\x01",
        b"Q\x7f\xff\xff\xff",
        b"E\0\0\0\x05\0",
    ];
    for message in broken {
        let mut socket = raw(&levee).await;
        socket.write_all(message).await.expect("message");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.expect("answer");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("C08P01"), "{message:?}: {text}");
    }
    // Garbage in place of a startup packet.
    let mut socket = TcpStream::connect(&levee.pg).await.expect("socket");
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("garbage");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("answer");
    assert_eq!(rows(&client, "SELECT 2").await, ["2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_databases_do_not_exist() {
    let (_dir, levee) = fresh();
    let config = format!("host=127.0.0.1 port={} user=u dbname=other", levee.port());
    let error = tokio_postgres::connect(&config, NoTls).await.err().expect("refused");
    assert_eq!(code(&error), "3D000");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_belong_to_the_session() {
    let (_dir, levee) = fresh();
    let (a, b) = (levee.connect().await, levee.connect().await);
    a.batch_execute("SET TIME ZONE 'Europe/Paris'; SET application_name = 'a'")
        .await
        .expect("set");
    assert_eq!(rows(&a, "SHOW TimeZone").await, ["Europe/Paris"]);
    assert_eq!(rows(&b, "SHOW TimeZone").await, ["UTC"]);
    assert_eq!(
        rows(&a, "SELECT '2013-07-01 12:00:00+00'::timestamptz").await,
        ["2013-07-01 14:00:00+02"]
    );
    a.batch_execute("RESET ALL").await.expect("reset");
    assert_eq!(rows(&a, "SHOW TimeZone").await, ["UTC"]);
    assert_eq!(
        code(&a.batch_execute("SET no_such_thing = 1").await.expect_err("unknown")),
        "42704"
    );
}
