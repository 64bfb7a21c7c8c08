//! A fresh `levee serve` and what it cost.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::Result;

const START_MAX: Duration = Duration::from_secs(30);

/// Clock ticks a second in `/proc/PID/stat`: fixed by Linux's interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server on a temporary data directory; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    directory: TempDir,
}

/// What a process has used so far.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// User and system time in seconds.
    pub cpu_s: f64,
    /// Largest resident set in MB.
    pub peak_rss_mb: f64,
}

impl Server {
    /// Starts `binary` with `parallelism` tasks and waits until it takes connections.
    ///
    /// # Errors
    /// It ends, or does not answer in time; the message holds its log.
    pub async fn start(binary: &Path, parallelism: usize) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("levee-bench-").tempdir()?;
        let (port, http_port) = (free_port()?, free_port()?);
        let log = std::fs::File::create(directory.path().join("log"))?;
        let child = Command::new(binary)
            .arg("serve")
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .args(["--pg-addr", &format!("127.0.0.1:{port}")])
            .args(["--http-addr", &format!("127.0.0.1:{http_port}")])
            .args(["--parallelism", &parallelism.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", binary.display()))?;
        let mut server = Self { child, port, directory };
        let started = Instant::now();
        while server.connect().await.is_err() {
            if server.child.try_wait()?.is_some() || started.elapsed() > START_MAX {
                return Err(format!("the server does not answer; its log:\n{}", server.log()).into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(server)
    }

    /// A connection.
    ///
    /// # Errors
    /// Refused.
    pub async fn connect(&self) -> Result<Client> {
        let config = format!("host=127.0.0.1 port={} user=bench dbname=dev", self.port);
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// CPU time and memory, from the operating system.
    ///
    /// # Errors
    /// The process is gone.
    pub fn usage(&self) -> Result<Usage> {
        let proc = Path::new("/proc").join(self.child.id().to_string());
        let gone = || format!("the server is gone; its log:\n{}", self.log());
        let stat = std::fs::read_to_string(proc.join("stat")).map_err(|_| gone())?;
        let status = std::fs::read_to_string(proc.join("status")).map_err(|_| gone())?;
        Ok(Usage {
            cpu_s: cpu_seconds(&stat).ok_or_else(gone)?,
            peak_rss_mb: peak_rss_kb(&status).ok_or_else(gone)? / 1024.0,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// `utime + stime` of a line of `/proc/PID/stat`; the command's name in it may hold spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<f64>().ok());
    Some((ticks.next()?? + ticks.next()??) / TICKS_PER_SECOND)
}

fn peak_rss_kb(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The single row of a query's text result.
///
/// # Errors
/// The query fails, or has no row.
pub async fn row(client: &Client, sql: &str) -> Result<SimpleQueryRow> {
    let messages = client.simple_query(sql).await?;
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    row.ok_or_else(|| format!("no row from: {sql}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 5 0 0 0 250 50 0 0 20 0 1 0 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("nonsense"), None);
        assert_eq!(peak_rss_kb("VmPeak:\t 9 kB\nVmHWM:\t  2048 kB\n"), Some(2048.0));
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(cpu_seconds(&own).is_some());
    }
}
