//! Dead letters come back: ALTER … SET changes how records are decoded from there on, REPLAY DEAD LETTERS lets what decodes now in, once,
//! whatever is killed around it, into the views that are there and those that are made later.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;

use super::ask::{becomes, exec, runtime};

/// How long a failpoint may take to be reached before the process is killed without it.
const FAILPOINT_WAIT: Duration = Duration::from_secs(6);

/// Puts a file of JSON lines into a directory, whole: `good` rows, rows whose time is a number, and broken ones. Answers the sum of ids.
fn put(dir: &Path, name: &str, first: u64, good: u64, numbers: u64, broken: u64) -> u64 {
    let mut text = String::new();
    for id in first..first + good {
        writeln!(text, "{{\"id\": {id}, \"at\": \"2024-05-06 07:08:09Z\"}}").expect("text");
    }
    for id in first + good..first + good + numbers {
        writeln!(text, "{{\"id\": {id}, \"at\": {}}}", 1_700_000_000_000 + id).expect("text");
    }
    for _ in 0..broken {
        writeln!(text, "{{\"id\": ").expect("text");
    }
    let open = dir.join(format!(".{name}"));
    std::fs::write(&open, text).expect("a file");
    std::fs::rename(open, dir.join(name)).expect("a file");
    (first..first + good + numbers).sum()
}

/// A source, a table, and a view over the source.
async fn create(session: &PgSession, n: usize, dir: &Path) {
    let with = format!(
        "INCLUDE partition AS file INCLUDE offset AS o WITH (connector = 'file', path = '{}', refresh.interval.sec = 0.1) \
         FORMAT PLAIN ENCODE JSON",
        dir.display()
    );
    for (kind, name) in [("SOURCE", "s"), ("TABLE", "t")] {
        exec(
            session,
            &format!("CREATE {kind} {name}{n} (id bigint, at timestamptz) {with}"),
        )
        .await;
    }
    view(session, "v", n).await;
}

async fn view(session: &PgSession, name: &str, n: usize) {
    let rows = format!("SELECT count(*) AS n, sum(id) AS s, count(at) AS a FROM s{n}");
    exec(session, &format!("CREATE MATERIALIZED VIEW {name}{n} AS {rows}")).await;
    let twice = format!("SELECT file, o FROM s{n} GROUP BY file, o HAVING count(*) > 1");
    exec(session, &format!("CREATE MATERIALIZED VIEW {name}{n}twice AS {twice}")).await;
}

/// Everything over source and table `n` shows `rows` rows with this sum of ids, and `letters` dead letters.
async fn check(session: &PgSession, n: usize, views: &[&str], rows: u64, sum: u64, letters: u64) {
    for view in views {
        becomes(
            session,
            &format!("SELECT n, s, a FROM {view}{n}"),
            &format!("{rows} {sum} {rows}"),
        )
        .await;
        becomes(session, &format!("SELECT count(*) FROM {view}{n}twice"), "0").await;
    }
    let table = format!("SELECT count(*), sum(id), count(DISTINCT (file || o::text)) FROM t{n}");
    becomes(session, &table, &format!("{rows} {sum} {rows}")).await;
    for source in ["s", "t"] {
        let count = format!("SELECT count(*) FROM levee_catalog.dead_letters WHERE source = '{source}{n}'");
        becomes(session, &count, &letters.to_string()).await;
        let shown = format!("SELECT DISTINCT dead_letters FROM levee_catalog.sources WHERE name = '{source}{n}'");
        becomes(session, &shown, &letters.to_string()).await;
    }
}

#[test]
fn dead_letters_are_replayed_once_through_kills() {
    let _turn = turns::shared();
    let points = [
        "log::append",
        "log::sync",
        "ddl::apply",
        "source::replay",
        "checkpoint::file",
        "checkpoint::manifest",
    ];
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let runtime = runtime();
    let mut confirmed = Vec::new();
    for (n, point) in points.iter().enumerate() {
        let files = dir.path().join(format!("in{n}"));
        std::fs::create_dir(&files).expect("directory");
        let mut sum = put(&files, "a.json", 0, 3000, 300, 10);
        let good: u64 = (0..3000).sum();
        let mut server = Server::start(&data, &ServerOptions::default());
        runtime.block_on(async {
            let session = server.connect().await;
            create(&session, n, &files).await;
            check(&session, n, &["v"], 3000, good, 310).await;
            exec(&session, &format!("ALTER SOURCE s{n} SET (timestamp.unit = 'ms')")).await;
            exec(&session, &format!("ALTER TABLE t{n} SET (timestamp.unit = 'ms')")).await;
        });
        server.kill();
        // What comes from here on is decoded in the new way; what came before is not.
        sum += put(&files, "b.json", 5000, 0, 100, 1);
        let mark = dir.path().join(format!("mark{n}"));
        let options = ServerOptions {
            env: vec![
                (
                    "LEVEE_KILL_AT".into(),
                    format!("{point}:{}", if point.starts_with("log") { 3 } else { 1 }),
                ),
                ("LEVEE_KILL_MARK".into(), mark.display().to_string()),
            ],
            ..ServerOptions::default()
        };
        let mut server = Server::spawn(&data, &options);
        if server.wait_ready(Duration::from_secs(60)) {
            runtime.block_on(async {
                if let Ok(session) = server.try_connect().await {
                    for of in ["SOURCE s", "TABLE t"] {
                        // The process may die before it answers.
                        let _dead = session.exec(&format!("ALTER {of}{n} REPLAY DEAD LETTERS")).await;
                    }
                }
            });
            let start = Instant::now();
            while server.exited().is_none() && start.elapsed() < FAILPOINT_WAIT {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        confirmed.extend(mark.exists().then_some(*point));
        server.kill();
        let (rows, letters) = (3400, 11);
        let mut server = Server::start(&data, &ServerOptions::default());
        runtime.block_on(async {
            let session = server.connect().await;
            exec(&session, &format!("ALTER SOURCE s{n} REPLAY DEAD LETTERS")).await;
            exec(&session, &format!("ALTER TABLE t{n} REPLAY DEAD LETTERS")).await;
            check(&session, n, &["v"], rows, sum, letters).await;
            view(&session, "younger", n).await;
            check(&session, n, &["v", "younger"], rows, sum, letters).await;
        });
        server.kill();
        let mut server = Server::start(&data, &ServerOptions::default());
        runtime.block_on(async {
            let session = server.connect().await;
            check(&session, n, &["v", "younger"], rows, sum, letters).await;
        });
        server.kill();
    }
    println!(
        "{{\"replays\": {}, \"killed_inside\": {confirmed:?}}}",
        2 * points.len()
    );
    assert!(confirmed.len() >= 4, "only {confirmed:?} were reached");
}

#[test]
fn what_a_replay_cannot_do_is_refused() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = dir.path().join("in");
    std::fs::create_dir(&files).expect("directory");
    let text = "{\"id\": 1, \"v\": \"x\"}\n{\"id\": 2, \"v\": 2}\n{\"id\": 1, \"v\": 3}\n{\"id\": null, \"v\": 3}\n";
    std::fs::write(files.join("a.json"), text).expect("a file");
    let server = Server::start(&dir.path().join("data"), &ServerOptions::default());
    runtime().block_on(async {
        let session = server.connect().await;
        let with = format!(
            "WITH (connector = 'file', path = '{}') FORMAT PLAIN ENCODE JSON",
            files.display()
        );
        exec(&session, &format!("CREATE TABLE k (id int PRIMARY KEY, v int) {with}")).await;
        exec(&session, "CREATE TABLE plain (id int)").await;
        becomes(&session, "SELECT count(*), sum(v) FROM k", "2 5").await;
        becomes(&session, "SELECT count(*) FROM levee_catalog.dead_letters", "2").await;
        for (statement, part) in [
            ("ALTER TABLE k REPLAY DEAD LETTERS", "back to their places"),
            ("ALTER TABLE plain REPLAY DEAD LETTERS", "no connector"),
            ("ALTER SOURCE plain REPLAY DEAD LETTERS", "is not a source"),
            ("ALTER TABLE k SET (header = true)", "cannot be changed"),
            (
                "ALTER TABLE k SET (invalid.values = 'perhaps')",
                "invalid value for option",
            ),
            ("ALTER TABLE k REPLAY DEAD LETTER", "syntax error"),
        ] {
            let error = session.exec(statement).await.expect_err(statement);
            assert!(error.contains(part), "{statement}: {error}");
        }
        exec(&session, "ALTER TABLE plain SET (fillfactor = 70)").await;
        // Nothing has changed, so nothing decodes.
        exec(&session, "ALTER TABLE k REPLAY DEAD LETTERS AS NEWEST").await;
        becomes(&session, "SELECT count(*) FROM levee_catalog.dead_letters", "2").await;
        exec(&session, "ALTER TABLE k SET (invalid.values = 'null')").await;
        exec(&session, "ALTER TABLE k REPLAY DEAD LETTERS AS NEWEST").await;
        // The older record of key 1 is its newest now, because it was asked for; a key cannot be NULL.
        becomes(&session, "SELECT count(*), sum(v) FROM k", "2 2").await;
        becomes(&session, "SELECT count(*) FROM levee_catalog.dead_letters", "1").await;
        exec(&session, "DROP TABLE k").await;
        becomes(&session, "SELECT count(*) FROM levee_catalog.dead_letters", "0").await;
    });
    assert_eq!(server.complaints(&[]), Vec::<String>::new());
}
