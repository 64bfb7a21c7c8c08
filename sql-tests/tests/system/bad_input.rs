//! Bad input over the wire: refused with the right code, nothing enters by half, the server goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::SinkExt;
use levee_sql_tests::postgres::{PgSession, error_text};
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;

use super::ask::exec;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime");
    runtime.block_on(future)
}

fn start(dir: &tempfile::TempDir) -> Server {
    Server::start(&dir.path().join("data"), &ServerOptions::default())
}

async fn count(session: &PgSession, table: &str) -> i64 {
    let rows = session.query(&format!("SELECT count(*) AS n FROM {table}")).await.rows;
    rows[0][0].as_deref().expect("count").parse().expect("number")
}

#[test]
fn statements_are_refused_with_postgres_codes() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let server = start(&dir);
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL, c date)").await;
        exec(&session, "INSERT INTO t VALUES (1, 'x', NULL)").await;
        for (code, sql) in [
            ("42P01", "SELECT * FROM missing"),
            ("42703", "SELECT missing FROM t"),
            ("42883", "SELECT missing(a) FROM t"),
            ("42601", "SELECT 1 +"),
            ("22P02", "SELECT 'abc'::int"),
            ("22P02", "INSERT INTO t VALUES ('one', 'x', NULL)"),
            ("22003", "INSERT INTO t VALUES (99999999999, 'x', NULL)"),
            ("22007", "INSERT INTO t VALUES (2, 'x', 'yesterdayish')"),
            ("22008", "SELECT '2024-02-30'::date"),
            ("22012", "SELECT a / 0 FROM t"),
            ("23502", "INSERT INTO t VALUES (2, NULL, NULL)"),
            ("23505", "INSERT INTO t VALUES (1, 'y', NULL)"),
            ("42804", "INSERT INTO t VALUES (true, 'y', NULL)"),
            ("42P07", "CREATE TABLE t (x int)"),
            ("42704", "CREATE TABLE u (x nosuchtype)"),
            ("42701", "CREATE TABLE u (x int, x int)"),
            ("0A000", "CREATE MATERIALIZED VIEW v AS SELECT now() AS n FROM t"),
        ] {
            let error = session.try_query(sql).await.expect_err(sql);
            assert!(error.starts_with(code), "{sql}: expected {code}, got {error}");
        }
        assert_eq!(count(&session, "t").await, 1);
        let error = session
            .client()
            .query_one("SELECT a FROM t WHERE missing = 1", &[])
            .await
            .expect_err("unknown column");
        let position = error.as_db_error().and_then(|e| e.position().cloned());
        assert!(position.is_some(), "an error says where it is");
    });
    assert_eq!(
        server.complaints(&[]),
        Vec::<String>::new(),
        "a user's mistake is not the server's"
    );
}

async fn copy(session: &PgSession, sql: &str, data: &str) -> Result<u64, String> {
    let sink = session.client().copy_in(sql).await.map_err(|e| error_text(&e))?;
    let mut sink = Box::pin(sink);
    // A refusal may come while data is still being sent.
    let _ = sink.send(std::io::Cursor::new(data.as_bytes().to_vec())).await;
    sink.as_mut().finish().await.map_err(|e| error_text(&e))
}

#[test]
fn nothing_of_a_malformed_copy_enters() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let server = start(&dir);
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (a int PRIMARY KEY, b text)").await;
        exec(&session, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
        let good: String = (0..5000).map(|i| format!("{i}\tx\n")).collect();
        for (code, bad) in [
            ("22P02", "nan\tx\n"),
            ("22P04", "5000\n"),
            ("22P04", "5000\tx\ty\n"),
            ("23505", "17\tx\n"),
            ("22003", "99999999999\tx\n"),
        ] {
            let error = copy(&session, "COPY t FROM STDIN", &format!("{good}{bad}"))
                .await
                .expect_err(bad);
            assert!(error.starts_with(code), "{bad:?}: expected {code}, got {error}");
            assert_eq!(count(&session, "t").await, 0, "part of a COPY is in");
        }
        assert_eq!(copy(&session, "COPY t FROM STDIN", &good).await, Ok(5000));
        let csv = "a,b\n6000,\"two\nlines\"\n6001,\n";
        assert_eq!(
            copy(&session, "COPY t FROM STDIN WITH (FORMAT csv, HEADER)", csv).await,
            Ok(2)
        );
        let rows = session.query("SELECT b FROM t WHERE a > 5999 ORDER BY a").await.rows;
        assert_eq!(rows, [[Some("two\nlines".to_string())], [None]]);
        assert_eq!(
            session.query("SELECT n FROM v").await.rows[0][0].as_deref(),
            Some("5002")
        );
    });
}

fn startup() -> Vec<u8> {
    let mut body = 196_608_i32.to_be_bytes().to_vec();
    body.extend(b"user\0test\0database\0dev\0\0");
    let mut out = (body.len() as i32 + 4).to_be_bytes().to_vec();
    out.extend(body);
    out
}

#[test]
fn broken_messages_end_their_own_connection_only() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut server = start(&dir);
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (a int)").await;
    });
    let with = |tail: &[u8]| [startup(), tail.to_vec()].concat();
    let broken: Vec<(&str, Vec<u8>)> = vec![
        (
            "noise",
            (0..4000_u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
        ),
        ("a huge startup", 0x7fff_ffff_i32.to_be_bytes().to_vec()),
        ("a negative length", [&(-5_i32).to_be_bytes()[..], b"abcd"].concat()),
        (
            "an unknown protocol",
            [&12_i32.to_be_bytes()[..], &0x0009_0000_i32.to_be_bytes(), &[0; 4]].concat(),
        ),
        ("half a startup", startup()[..9].to_vec()),
        (
            "a huge query",
            with(&[b"Q".as_slice(), &0x7fff_fff0_i32.to_be_bytes(), b"SELECT 1"].concat()),
        ),
        (
            "a length below 4",
            with(&[b"Q".as_slice(), &1_i32.to_be_bytes()].concat()),
        ),
        (
            "an unknown message",
            with(&[b"\x01".as_slice(), &8_i32.to_be_bytes(), b"abcd"].concat()),
        ),
        (
            "a query without its end",
            with(&[b"Q".as_slice(), &9_i32.to_be_bytes(), b"SELEC"].concat()),
        ),
        (
            "invalid UTF-8",
            with(&[b"Q".as_slice(), &9_i32.to_be_bytes(), b"\xff\xfe\xfd;\0"].concat()),
        ),
        (
            "a broken bind",
            with(&[b"B".as_slice(), &10_i32.to_be_bytes(), b"\0\0\x7f\xff\0\0"].concat()),
        ),
    ];
    for (what, bytes) in &broken {
        let mut stream = TcpStream::connect(("127.0.0.1", server.pg_port())).expect("connect");
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .expect("time-out");
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 4096]);
        drop(stream);
        assert!(server.exited().is_none(), "{what} ended the server");
        block_on(async {
            let session = server.connect().await;
            exec(&session, "INSERT INTO t VALUES (1)").await;
        });
    }
    let log = server.log();
    assert!(!log.contains("panicked"), "broken messages panic:\n{log}");
    block_on(async { assert_eq!(count(&server.connect().await, "t").await, broken.len() as i64) });
}

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&path).expect("mount point");
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .status();
        assert!(
            done.is_ok_and(|s| s.success()),
            "this test mounts a tmpfs, which needs root"
        );
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_writes_and_recovers() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let disk = SmallDisk::new(dir.path().join("disk"), "96m");
    let data = disk.0.join("data");
    let mut server = Server::start(&data, &ServerOptions::default());
    block_on(async {
        let session = server.connect().await;
        exec(&session, "CREATE TABLE t (a int PRIMARY KEY, b text)").await;
        exec(&session, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
        exec(&session, "INSERT INTO t VALUES (-1, 'first')").await;
        let filler = disk.0.join("filler");
        fill(&filler);
        let mut refused = None;
        let mut acked = 1;
        for i in 0..400 {
            let sql = format!(
                "INSERT INTO t SELECT g::int + {}, repeat('x', 500) FROM generate_series(1, 200) s(g)",
                i * 200
            );
            match session.exec(&sql).await {
                Ok(_) => acked += 200,
                Err(e) => {
                    refused = Some(e);
                    break;
                }
            }
        }
        let refused = refused.expect("a write on a full disk is refused");
        assert!(refused.starts_with("53100"), "expected 53100, got {refused}");
        assert_eq!(
            count(&session, "t").await,
            acked,
            "reads go on, and see what was acknowledged"
        );
        assert_eq!(
            session.query("SELECT n FROM v").await.rows[0][0].as_deref(),
            Some(acked.to_string().as_str())
        );
        std::fs::remove_file(&filler).expect("remove filler");
        let mut taken = Err(String::new());
        for _ in 0..100 {
            taken = session.exec("INSERT INTO t VALUES (-2, 'room')").await;
            if taken.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(taken, Ok(1), "writes go on when there is room");
        acked += 1;
        assert_eq!(count(&session, "t").await, acked);
        assert!(server.exited().is_none());
        server.kill();
        server = Server::start(&data, &ServerOptions::default());
        let session = server.connect().await;
        assert_eq!(count(&session, "t").await, acked, "after a kill");
    });
    drop(server);
}

fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).expect("filler");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

fn files_below(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, out);
        } else if std::fs::metadata(&path).is_ok_and(|m| m.len() > 0) {
            out.push(path);
        }
    }
}

#[test]
fn a_damaged_file_never_gives_wrong_answers() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let queries = ["SELECT * FROM t", "SELECT * FROM v", "SELECT * FROM w"];
    let expected = {
        let mut server = Server::start(&data, &ServerOptions::default());
        let rows = block_on(async {
            let session = server.connect().await;
            exec(&session, "CREATE TABLE t (a int PRIMARY KEY, b text)").await;
            exec(
                &session,
                "CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n, max(a) AS hi FROM t GROUP BY b",
            )
            .await;
            exec(&session, "CREATE MATERIALIZED VIEW w AS SELECT x.a AS a, v.n AS n FROM t x JOIN v ON x.b = v.b WHERE x.a % 9 = 0").await;
            for i in 0..3 {
                let sql = format!(
                    "INSERT INTO t SELECT g::int + {}, 'g' || (g % 7)::text FROM generate_series(1, 300) s(g)",
                    i * 300
                );
                exec(&session, &sql).await;
                // Past the checkpoint interval, so that there are several checkpoints.
                tokio::time::sleep(Duration::from_millis(1200)).await;
                exec(&session, &format!("UPDATE t SET b = 'u' WHERE a % 10 = {i}")).await;
            }
            exec(&session, "FLUSH").await;
            let mut all = Vec::new();
            for query in queries {
                all.push(session.query(query).await);
            }
            all
        });
        server.kill();
        rows
    };
    let mut files = Vec::new();
    files_below(&data, &mut files);
    files.sort();
    assert!(
        files.len() >= 3,
        "a data directory with log, delta files and manifests: {files:?}"
    );
    let (mut right, mut refused) = (0, 0);
    let step = files.len().div_ceil(14);
    for (i, file) in files.iter().step_by(step).enumerate() {
        let copy = dir.path().join(format!("copy{i}"));
        let copied = Command::new("cp").arg("-r").arg(&data).arg(&copy).status();
        assert!(copied.is_ok_and(|s| s.success()));
        let victim = copy.join(file.strip_prefix(&data).expect("below the data directory"));
        let mut bytes = std::fs::read(&victim).expect("read");
        let at = bytes.len() / 2;
        bytes[at] ^= 0x40;
        std::fs::write(&victim, bytes).expect("write");
        let name = file.strip_prefix(&data).expect("below").display().to_string();
        let mut server = Server::spawn(&copy, &ServerOptions::default());
        if server.wait_ready(Duration::from_secs(20)) {
            block_on(async {
                let session = server.connect().await;
                exec(&session, "FLUSH").await;
                for (query, expected) in queries.iter().zip(&expected) {
                    let rows = session.query(query).await;
                    rows.same_as(expected, false)
                        .unwrap_or_else(|e| panic!("{name} damaged: {query}: {e}"));
                }
            });
            right += 1;
        } else {
            assert!(
                server.exited().is_some_and(|s| !s.success()),
                "{name} damaged: neither up nor refused"
            );
            let log = server.log();
            assert!(!log.contains("panicked"), "{name} damaged: the server panics:\n{log}");
            assert!(
                log.contains("corrupt") || log.contains("damaged") || log.contains("checksum"),
                "{name} damaged: unclear message:\n{log}"
            );
            refused += 1;
        }
        drop(server);
        std::fs::remove_dir_all(&copy).expect("remove copy");
    }
    println!(
        "{{\"test\": \"damage\", \"files\": {}, \"right\": {right}, \"refused\": {refused}}}",
        right + refused
    );
}
