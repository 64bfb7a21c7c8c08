//! The `levee` binary as a child process on ports of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::NoTls;

use crate::postgres::PgSession;

/// How to start it.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Further arguments of `levee serve`.
    pub args: Vec<String>,
    /// Environment, such as `LEVEE_KILL_AT`.
    pub env: Vec<(String, String)>,
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pg_port: u16,
    http_port: u16,
    log: PathBuf,
    started: Instant,
    status: Option<ExitStatus>,
}

/// The binary: `LEVEE_BIN`, or the one that was built beside this test.
///
/// # Panics
/// It is not there: a missing binary fails a test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("LEVEE_BIN") {
        return path.into();
    }
    let exe = std::env::current_exe().expect("path of this test");
    let path = exe.ancestors().nth(2).expect("target directory").join("levee");
    assert!(
        path.exists(),
        "{} is missing: run `make test-binary` first",
        path.display()
    );
    path
}

impl Server {
    /// Starts on a data directory without waiting.
    ///
    /// # Panics
    /// The process cannot be started.
    pub fn spawn(data_dir: &Path, options: &ServerOptions) -> Self {
        let (pg_port, http_port) = (free_port(), free_port());
        let log = data_dir.with_extension(format!("{pg_port}.log"));
        let file = std::fs::File::create(&log).expect("log file");
        let child = Command::new(binary())
            .arg("serve")
            .arg("--data-dir")
            .arg(data_dir)
            .args(["--pg-addr", &format!("127.0.0.1:{pg_port}")])
            .args(["--http-addr", &format!("127.0.0.1:{http_port}")])
            .args(&options.args)
            .envs(options.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("log file"))
            .stderr(file)
            .spawn()
            .expect("start levee");
        Self {
            child,
            pg_port,
            http_port,
            log,
            started: Instant::now(),
            status: None,
        }
    }

    /// Starts and waits until it accepts connections.
    ///
    /// # Panics
    /// It ends or does not answer within 60 s.
    pub fn start(data_dir: &Path, options: &ServerOptions) -> Self {
        let mut server = Self::spawn(data_dir, options);
        let ready = server.wait_ready(Duration::from_secs(60));
        assert!(ready, "levee did not start:\n{}", server.log());
        server
    }

    /// Waits until it accepts connections; `false` if it ended or the time is up.
    pub fn wait_ready(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if self.exited().is_some() {
                return false;
            }
            if self.http("GET", "/readyz", "").is_some_and(|(code, _)| code == 200) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Time since the process was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// PostgreSQL port on 127.0.0.1.
    pub fn pg_port(&self) -> u16 {
        self.pg_port
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A session.
    ///
    /// # Errors
    /// The driver's text.
    pub async fn try_connect(&self) -> Result<PgSession, String> {
        let config = format!(
            "host=127.0.0.1 port={} user=test dbname=dev connect_timeout=10",
            self.pg_port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls)
            .await
            .map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        Ok(PgSession::new(client))
    }

    /// A session.
    ///
    /// # Panics
    /// It cannot connect.
    pub async fn connect(&self) -> PgSession {
        self.try_connect()
            .await
            .unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.status = self.child.wait().ok();
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// It does not end within 30 s.
    pub fn terminate(&mut self) -> ExitStatus {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        self.wait_exit(Duration::from_secs(30))
            .unwrap_or_else(|| panic!("levee ignores SIGTERM:\n{}", self.log()))
    }

    /// The exit status if the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for the process to end by itself.
    pub fn wait_exit(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        while self.exited().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.status
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Lines of its log that say that something went wrong: ERROR, WARN, panics; those with an expected text left out.
    pub fn complaints(&self, expected: &[&str]) -> Vec<String> {
        let wrong = |line: &&str| line.contains(" ERROR ") || line.contains(" WARN ") || line.contains("panicked at");
        self.log()
            .lines()
            .filter(wrong)
            .filter(|line| !expected.iter().any(|e| line.contains(e)))
            .map(str::to_string)
            .collect()
    }

    /// One HTTP request: status and body; `None` without a connection.
    pub fn http(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http_port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let code = answer.split_whitespace().nth(1)?.parse().ok()?;
        let body = answer
            .split_once("\r\n\r\n")
            .map(|(_, b)| b.to_string())
            .unwrap_or_default();
        Some((code, body))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("--- {} ---\n{}", self.log.display(), tail(&self.log(), 60));
        }
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("local address").port()
}
