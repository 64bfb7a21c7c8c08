//! Starts and stops servers.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio_postgres::{Client, NoTls};

/// A running server; killed when dropped.
pub struct Levee {
    child: Child,
    pub pg: String,
    pub http: String,
}

impl Levee {
    /// Starts on a directory.
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[])
    }

    /// Starts with further flags.
    pub fn start_with(dir: &Path, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_levee"))
            .arg("serve")
            .arg("--data-dir")
            .arg(dir)
            .args([
                "--pg-addr",
                "127.0.0.1:0",
                "--http-addr",
                "127.0.0.1:0",
                "--parallelism",
                "2",
            ])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("levee starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout"))
            .read_line(&mut line)
            .expect("ready line");
        let rest = line
            .strip_prefix("levee ready: postgres at ")
            .unwrap_or_else(|| panic!("unexpected: {line:?}"));
        let (pg, rest) = rest.split_once(", http at ").expect("http address");
        let (http, _) = rest.split_once(", data in ").expect("directory");
        Self {
            child,
            pg: pg.to_owned(),
            http: http.to_owned(),
        }
    }

    /// The PostgreSQL port.
    pub fn port(&self) -> u16 {
        self.pg
            .rsplit_once(':')
            .and_then(|(_, p)| p.parse().ok())
            .expect("port")
    }

    /// A new connection.
    pub async fn connect(&self) -> Client {
        let config = format!("host=127.0.0.1 port={} user=tester dbname=dev", self.port());
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connection");
        tokio::spawn(connection);
        client
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// SIGTERM; answers the exit code.
    pub fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("kill")
                .success()
        );
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Levee {
    fn drop(&mut self) {
        // Already gone after `kill` or `stop`.
        if self.child.kill().is_ok() {
            self.child.wait().expect("wait");
        }
    }
}

/// A directory that goes away with the test.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("directory")
}

/// A server on a fresh directory.
pub fn fresh() -> (tempfile::TempDir, Levee) {
    let dir = directory();
    let levee = Levee::start(dir.path());
    (dir, levee)
}

/// SQLSTATE of an error.
pub fn code(error: &tokio_postgres::Error) -> String {
    error
        .code()
        .map_or_else(|| format!("{error:?}"), |c| c.code().to_owned())
}

/// Rows of a simple query as text, fields joined by `|`, NULL as `~`.
pub async fn rows(client: &Client, sql: &str) -> Vec<String> {
    let messages = client
        .simple_query(sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    messages
        .iter()
        .filter_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(r) => Some(
                (0..r.len())
                    .map(|i| r.get(i).unwrap_or("~"))
                    .collect::<Vec<_>>()
                    .join("|"),
            ),
            _ => None,
        })
        .collect()
}

/// Where psql is, if the machine has it.
pub fn psql() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|d| d.join("psql"))
        .find(|p| p.exists())
}
