//! File sources through the server: files that are there before a view and files that come later, each record once, whatever is killed
//! in between; broken records become dead letters. The writer of the files is the oracle.
//!
//! `LEVEE_KILLS` sets the number of kills. The test of a bucket needs an object store at `LEVEE_S3_ENDPOINT`, which `make test-s3` starts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use levee_sql_tests::generate;
use levee_sql_tests::postgres::PgSession;
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;
use rand::Rng;

use super::ask::{PATIENCE, becomes, exec, one, runtime};

/// What was written.
#[derive(Debug, Default)]
struct Written {
    rows: u64,
    broken: u64,
    sum: i64,
    /// By `k`: of the newest file.
    newest: BTreeMap<i64, i64>,
    files: u64,
}

impl Written {
    fn totals(&self) -> String {
        format!("{} {} {}", self.rows, self.sum, self.files)
    }

    fn newest(&self) -> String {
        format!("{} {}", self.newest.len(), self.newest.values().sum::<i64>())
    }

    /// A CSV file's text: `k,v,text` with line breaks in quotes, and a broken record now and then.
    fn csv(&mut self, rng: &mut impl Rng, rows: u32) -> String {
        let mut text = String::from("k,v,t\n");
        for _ in 0..rows {
            if rng.random_bool(0.01) {
                text.push_str("1,not a number,\"\n\"\n");
                self.broken += 1;
                continue;
            }
            let (k, v) = (rng.random_range(0..500_i64), rng.random_range(-1000..1000_i64));
            let t = ["", "x", "\"a\nb\"", "\"say \"\"hi\"\",\r\n\n\"", "é"][rng.random_range(0..5)];
            writeln!(text, "{k},{v},{t}").expect("text");
            self.rows += 1;
            self.sum += v;
            self.newest.insert(k, v);
        }
        self.files += 1;
        text
    }
}

/// Puts files where a source finds them, whole.
struct Place {
    dir: PathBuf,
    next: u32,
}

impl Place {
    fn put(&mut self, text: &str) {
        let name = format!("{:05}.csv", self.next);
        self.next += 1;
        let open = self.dir.join(format!(".{name}"));
        std::fs::write(&open, text).expect("a file");
        std::fs::rename(open, self.dir.join(name)).expect("a file");
    }
}

const TOTALS: &str = "SELECT n, s, files FROM totals";

async fn create(session: &PgSession, path: &str, options: &str) {
    let with = format!(
        "INCLUDE partition AS file INCLUDE offset AS at WITH (connector = 'file', path = '{path}', order = 'path', \
         refresh.interval.sec = 0.1{options}) FORMAT PLAIN ENCODE CSV (header = true)"
    );
    exec(
        session,
        &format!("CREATE SOURCE s (k bigint NOT NULL, v bigint, t text) {with}"),
    )
    .await;
    exec(
        session,
        "CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n, sum(v) AS s, count(DISTINCT file) AS files FROM s",
    )
    .await;
    exec(
        session,
        "CREATE MATERIALIZED VIEW twice AS SELECT file, at, count(*) AS n FROM s GROUP BY file, at HAVING count(*) > 1",
    )
    .await;
    exec(
        session,
        &format!("CREATE TABLE stored (k bigint, v bigint, t text) {with}"),
    )
    .await;
    exec(
        session,
        &format!("CREATE TABLE newest (k bigint PRIMARY KEY, v bigint, t text) {with}"),
    )
    .await;
}

async fn check(session: &PgSession, written: &Written) {
    becomes(session, TOTALS, &written.totals()).await;
    becomes(
        session,
        "SELECT count(*), sum(v), count(DISTINCT file) FROM stored",
        &written.totals(),
    )
    .await;
    becomes(session, "SELECT count(*), sum(v) FROM newest", &written.newest()).await;
    becomes(session, "SELECT count(*) FROM twice", "0").await;
    for source in ["s", "stored", "newest"] {
        let letters = format!("SELECT count(*) FROM levee_catalog.dead_letters WHERE source = '{source}'");
        becomes(session, &letters, &written.broken.to_string()).await;
    }
}

#[test]
fn files_are_read_once_through_kills() {
    let _turn = turns::shared();
    let kills: u64 = std::env::var("LEVEE_KILLS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(4);
    let dir = tempfile::tempdir().expect("temporary directory");
    let (data, mut place) = (
        dir.path().join("data"),
        Place {
            dir: dir.path().join("in"),
            next: 0,
        },
    );
    std::fs::create_dir(&place.dir).expect("directory");
    let (mut rng, mut written) = (generate::rng(5), Written::default());
    let runtime = runtime();
    for rows in [10, 3000] {
        place.put(&written.csv(&mut rng, rows));
    }
    let mut server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        create(&session, &place.dir.display().to_string(), "").await;
        check(&session, &written).await;
        place.put(&written.csv(&mut rng, 200));
        check(&session, &written).await;
    });
    server.kill();
    for kill in 0..kills {
        let point = ["source::read", "checkpoint::manifest", "log::sync", "commit::durable"][kill as usize % 4];
        let mark = dir.path().join(format!("mark{kill}"));
        let options = ServerOptions {
            env: vec![
                ("LEVEE_KILL_AT".into(), format!("{point}:{}", rng.random_range(2..6))),
                ("LEVEE_KILL_MARK".into(), mark.display().to_string()),
            ],
            ..ServerOptions::default()
        };
        let mut server = Server::spawn(&data, &options);
        if server.wait_ready(Duration::from_secs(60)) {
            // Files keep coming until it dies: a server at rest makes no checkpoints.
            let start = Instant::now();
            while server.exited().is_none() {
                assert!(start.elapsed() < PATIENCE, "{point} was not reached:\n{}", server.log());
                place.put(&written.csv(&mut rng, 1000));
                std::thread::sleep(Duration::from_millis(150));
            }
        }
        assert!(mark.exists(), "{point} did not kill:\n{}", server.log());
    }
    let server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        check(&session, &written).await;
        // A younger view reads everything again and finds the same.
        exec(
            &session,
            "CREATE MATERIALIZED VIEW again AS SELECT count(*) AS n, sum(v) AS s, count(DISTINCT file) AS files FROM s",
        )
        .await;
        becomes(&session, "SELECT n, s, files FROM again", &written.totals()).await;
        let letter = "SELECT reason, bytes FROM levee_catalog.dead_letters WHERE source = 's' LIMIT 1";
        let wanted = "column \"v\": invalid input syntax for type bigint: \"not a number\" \\x312c6e6f742061206e756d6265722c220a22";
        assert_eq!(one(&session, letter).await.as_deref(), Ok(wanted));
    });
    assert_eq!(server.complaints(&[]), Vec::<String>::new());
}

/// A file that is not what it was stops who reads it, with an error that names it.
#[test]
fn a_changed_file_is_an_error_not_a_wrong_answer() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let (data, files) = (dir.path().join("data"), dir.path().join("in"));
    std::fs::create_dir(&files).expect("directory");
    std::fs::write(files.join("a.json"), "{\"a\":1}\n{\"a\":2}\n").expect("a file");
    let server = Server::start(&data, &ServerOptions::default());
    runtime().block_on(async {
        let session = server.connect().await;
        exec(
            &session,
            &format!(
                "CREATE SOURCE j (a int) WITH (connector = 'file', path = '{}/*.json') FORMAT PLAIN ENCODE JSON",
                files.display()
            ),
        )
        .await;
        exec(
            &session,
            "CREATE MATERIALIZED VIEW before AS SELECT count(*) AS n, sum(a) AS s FROM j",
        )
        .await;
        becomes(&session, "SELECT n, s FROM before", "2 3").await;
        std::fs::write(files.join("a.json"), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n").expect("a file");
        let made = session
            .exec("CREATE MATERIALIZED VIEW after AS SELECT sum(a) AS s FROM j")
            .await;
        let start = Instant::now();
        let error = loop {
            let told = match &made {
                Err(e) => e.clone(),
                Ok(_) => one(&session, "SELECT s FROM after").await.unwrap_or_else(|e| e),
            };
            if told.contains("has changed since it was taken") {
                break told;
            }
            assert!(start.elapsed() < PATIENCE, "view after says {told}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(error.contains("a.json"), "{error}");
        assert_eq!(one(&session, "SELECT n, s FROM before").await.as_deref(), Ok("2 3"));
    });
}

#[test]
fn generated_rows_are_the_same_for_every_view() {
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut server = Server::start(&dir.path().join("data"), &ServerOptions::default());
    let runtime = runtime();
    runtime.block_on(async {
        let session = server.connect().await;
        exec(
            &session,
            "CREATE SOURCE g (id bigint, name varchar(8), price numeric(6,2), at timestamptz, ok boolean) WITH (
               connector = 'datagen', datagen.rows.per.second = 0, datagen.row.limit = 20000, datagen.split.num = 3,
               fields.id.kind = 'sequence', fields.id.start = 1, fields.price.max = 99.5, fields.at.max_past = '1 hour')
             FORMAT PLAIN ENCODE JSON",
        )
        .await;
        let totals = "count(*) AS n, sum(id) AS ids, sum(price) AS p, min(name) AS low, max(at) AS last FROM g";
        exec(&session, &format!("CREATE MATERIALIZED VIEW g1 AS SELECT {totals}")).await;
        becomes(&session, "SELECT n, ids FROM g1", "20000 200010000").await;
        exec(&session, &format!("CREATE MATERIALIZED VIEW g2 AS SELECT {totals}")).await;
        becomes(
            &session,
            "SELECT count(*) FROM (SELECT * FROM g1 INTERSECT SELECT * FROM g2) AS same",
            "1",
        )
        .await;
    });
    server.kill();
    let server = Server::start(&dir.path().join("data"), &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        becomes(&session, "SELECT n, ids FROM g1", "20000 200010000").await;
        becomes(
            &session,
            "SELECT count(*) FROM (SELECT * FROM g1 INTERSECT SELECT * FROM g2) AS same",
            "1",
        )
        .await;
    });
}

/// The same in a bucket `levee-test` of a store that takes the keys `test` and `test`.
#[test]
#[ignore = "needs an object store: make test-s3"]
fn files_in_a_bucket_are_read_once() {
    let endpoint = std::env::var("LEVEE_S3_ENDPOINT").expect("LEVEE_S3_ENDPOINT");
    let _turn = turns::shared();
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let (mut rng, mut written) = (generate::rng(6), Written::default());
    let put = |name: &str, text: &str| put_object(&endpoint, dir.path(), name, text);
    for i in 0..3 {
        put(&format!("in/{i}.csv"), &written.csv(&mut rng, 4000));
    }
    let options = format!(
        ", s3.region_name = 'us-east-1', s3.endpoint_url = '{endpoint}', s3.credentials.access = 'test', \
         s3.credentials.secret = 'test'"
    );
    let runtime = runtime();
    let mut server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async {
        let session = server.connect().await;
        create(&session, "s3://levee-test/in", &options).await;
        check(&session, &written).await;
        put("in/3.csv", &written.csv(&mut rng, 4000));
        check(&session, &written).await;
    });
    server.kill();
    put("in/4.csv", &written.csv(&mut rng, 30_000));
    let server = Server::start(&data, &ServerOptions::default());
    runtime.block_on(async { check(&server.connect().await, &written).await });
}

/// `curl` signs the request.
fn put_object(endpoint: &str, dir: &Path, name: &str, text: &str) {
    let file = dir.join("object");
    std::fs::write(&file, text).expect("a file");
    let status = std::process::Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--fail",
            "--aws-sigv4",
            "aws:amz:us-east-1:s3",
        ])
        .args(["--user", "test:test", "--upload-file"])
        .arg(&file)
        .arg(format!("{endpoint}/levee-test/{name}"))
        .status()
        .expect("curl");
    assert!(status.success(), "{name} cannot be put");
}
