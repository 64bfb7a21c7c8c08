//! A throw-away PostgreSQL 15 in a temporary directory, on a Unix socket only.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::rows::Rows;

/// A running server; stopped and removed when dropped.
#[derive(Debug)]
pub struct Postgres {
    dir: TempDir,
    child: Child,
}

impl Postgres {
    /// `initdb --locale=C -E UTF8` and start.
    ///
    /// # Panics
    /// PostgreSQL is missing or does not start: a missing service fails a test.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("levee-pg-")
            .tempdir()
            .expect("temporary directory");
        run(Command::new("chmod").arg("755").arg(dir.path()));
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("data directory");
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres:"]).arg(dir.path()));
        }
        run(as_postgres("initdb")
            .args([
                "--locale=C",
                "-E",
                "UTF8",
                "-A",
                "trust",
                "-U",
                "postgres",
                "--no-sync",
                "-D",
            ])
            .arg(&data));
        // The time limit only matters if the test process is killed: nothing is left behind.
        let child = as_postgres_within("postgres", 1800)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "timezone=UTC",
                "-c",
                "full_page_writes=off",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).expect("log file"))
            .spawn()
            .expect("start postgres");
        let server = Self { dir, child };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::os::unix::net::UnixStream::connect(server.dir.path().join(".s.PGSQL.5432")).is_err() {
            assert!(Instant::now() < deadline, "PostgreSQL did not start: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A connection to a database, made if absent.
    pub async fn database(&self, name: &str) -> PgSession {
        let admin = self.connect("postgres").await;
        if name != "postgres"
            && admin
                .query(&format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"))
                .await
                .rows
                .is_empty()
        {
            admin
                .exec(&format!("CREATE DATABASE \"{name}\""))
                .await
                .expect("create database");
        }
        self.connect(name).await
    }

    async fn connect(&self, database: &str) -> PgSession {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.dir.path()).user("postgres").dbname(database);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match config.connect(NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return PgSession { client };
                }
                // The socket is there before recovery has ended.
                Err(e) => assert!(Instant::now() < deadline, "cannot connect to PostgreSQL: {e}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = as_postgres("pg_ctl")
            .args(["stop", "-m", "immediate", "-D"])
            .arg(self.dir.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = self.child.wait();
        if is_root() {
            let _ = Command::new("chown")
                .args(["-R", "root:"])
                .arg(self.dir.path())
                .status();
        }
    }
}

/// A session that speaks text.
pub struct PgSession {
    client: Client,
}

impl std::fmt::Debug for PgSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgSession")
    }
}

impl PgSession {
    /// Wraps a client of any server that speaks the protocol.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs statements; answers `SQLSTATE: message` on failure.
    pub async fn exec(&self, sql: &str) -> Result<u64, String> {
        let messages = self.client.simple_query(sql).await.map_err(|e| error_text(&e))?;
        Ok(messages
            .iter()
            .map(|m| match m {
                SimpleQueryMessage::CommandComplete(n) => *n,
                _ => 0,
            })
            .sum())
    }

    /// Rows as text; `SQLSTATE: message` on failure.
    pub async fn try_query(&self, sql: &str) -> Result<Rows, String> {
        let messages = self.client.simple_query(sql).await.map_err(|e| error_text(&e))?;
        let mut out = Rows::default();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    out.columns = columns.iter().map(|c| c.name().to_string()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    out.rows
                        .push((0..row.len()).map(|i| row.get(i).map(str::to_string)).collect());
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// Rows as text.
    ///
    /// # Panics
    /// The query fails.
    pub async fn query(&self, sql: &str) -> Rows {
        self.try_query(sql).await.unwrap_or_else(|e| panic!("{e}\n{sql}"))
    }
}

/// `SQLSTATE: message`, or the driver's own text.
pub fn error_text(e: &tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(db) => format!("{}: {}", db.code().code(), db.message()),
        None => format!("connection: {e}"),
    }
}

fn is_root() -> bool {
    std::env::var("USER").is_ok_and(|u| u == "root")
        || std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

fn as_postgres(program: &str) -> Command {
    as_postgres_within(program, 120)
}

fn as_postgres_within(program: &str, seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "INT", &seconds.to_string()]);
    if is_root() {
        command.args(["runuser", "-u", "postgres", "--"]);
    }
    command.arg(binary(program));
    command
}

/// Debian keeps the server's programs out of the PATH.
fn binary(program: &str) -> PathBuf {
    let debian = Path::new("/usr/lib/postgresql/15/bin").join(program);
    if debian.exists() {
        debian
    } else {
        PathBuf::from(program)
    }
}

fn run(command: &mut Command) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
