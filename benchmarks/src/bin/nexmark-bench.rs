//! Nexmark, end to end: for each query a fresh server, the SQL, the time and CPU until every event is through.
//!
//! One JSON line per query and mode with medians over the runs, a table at the end. The runs' checksums must agree: if they do
//! not, or a run fails, the exit code is 1.

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use levee_benchmarks::nexmark::{Mode, QUERIES, Query};
use levee_benchmarks::server::{Server, row};
use levee_benchmarks::{Result, median, rounded};
use serde_json::json;

const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Parser)]
#[command(about = "Nexmark queries against the levee binary")]
struct Arguments {
    /// The levee binary.
    #[arg(long)]
    levee: PathBuf,
    /// Queries to run; all by default.
    #[arg(long, value_delimiter = ',')]
    queries: Vec<String>,
    /// Where results go.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Mode::Sink, Mode::View])]
    modes: Vec<Mode>,
    /// Events of all kinds.
    #[arg(long, default_value_t = 3_000_000)]
    events: u64,
    /// Runs of each case, of which the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Tasks.
    #[arg(long, default_value_t = 2)]
    parallelism: usize,
    /// Seconds that a run may take.
    #[arg(long, default_value_t = 300)]
    timeout: u64,
}

struct Run {
    seconds: f64,
    cpu_s: f64,
    peak_rss_mb: f64,
    rows_out: i64,
    checksum: String,
}

/// Medians of a case.
struct Case {
    query: &'static Query,
    mode: Mode,
    events_per_s: f64,
    cpu_s_per_m_events: f64,
    peak_rss_mb: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(unknown) = arguments
        .queries
        .iter()
        .find(|name| QUERIES.iter().all(|q| q.name != **name))
    {
        eprintln!("there is no query {unknown}");
        return ExitCode::from(2);
    }
    let mut cases = Vec::new();
    let mut failed = false;
    for query in QUERIES
        .iter()
        .filter(|q| arguments.queries.is_empty() || arguments.queries.iter().any(|n| n == q.name))
    {
        for &mode in &arguments.modes {
            match case(&arguments, query, mode).await {
                Ok(case) => cases.push(case),
                Err(error) => {
                    failed = true;
                    println!(
                        "{}",
                        json!({"query": query.name, "mode": mode.name(), "error": error.to_string()})
                    );
                }
            }
        }
    }
    table(&cases);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn case(arguments: &Arguments, query: &'static Query, mode: Mode) -> Result<Case> {
    let mut runs = Vec::new();
    for _ in 0..arguments.runs.max(1) {
        runs.push(run(arguments, query, mode).await?);
    }
    let checksums: Vec<&str> = runs.iter().map(|r| r.checksum.as_str()).collect();
    if checksums.iter().any(|c| *c != checksums[0]) {
        return Err(format!("the runs' checksums differ: {}", checksums.join(", ")).into());
    }
    let million_events = arguments.events as f64 / 1e6;
    let seconds = median(runs.iter().map(|r| r.seconds));
    let case = Case {
        query,
        mode,
        events_per_s: arguments.events as f64 / seconds,
        cpu_s_per_m_events: median(runs.iter().map(|r| r.cpu_s)) / million_events,
        peak_rss_mb: median(runs.iter().map(|r| r.peak_rss_mb)),
    };
    let line = json!({
        "query": query.name,
        "mode": mode.name(),
        "events": arguments.events,
        "runs": runs.len(),
        "seconds": rounded(seconds, 3),
        "events_per_s": case.events_per_s.round(),
        "cpu_s_per_m_events": rounded(case.cpu_s_per_m_events, 3),
        "floor_cpu_s_per_m_events": query.floor,
        "peak_rss_mb": case.peak_rss_mb.round(),
        "rows_out": runs[0].rows_out,
        "checksum": checksums[0],
    });
    println!("{line}");
    Ok(case)
}

/// One run in a fresh process; the clock starts before the sink is made and stops when it has taken every event.
async fn run(arguments: &Arguments, query: &Query, mode: Mode) -> Result<Run> {
    let server = Server::start(&arguments.levee, arguments.parallelism).await?;
    let client = server.connect().await?;
    for sql in query.create_sources(arguments.events) {
        client.batch_execute(&sql).await.map_err(|e| failure(&e, &sql))?;
    }
    let before = server.usage()?;
    let started = Instant::now();
    let sql = query.create(mode);
    client.batch_execute(&sql).await.map_err(|e| failure(&e, &sql))?;
    let deadline = Duration::from_secs(arguments.timeout);
    let (rows_out, checksum) = loop {
        let job = "SELECT finished, rows_out, checksum, state FROM levee_catalog.jobs WHERE name = 'result'";
        let job = row(&client, job).await?;
        if matches!(job.get(0), Some("t" | "true")) {
            break (
                job.get(1).unwrap_or("0").parse()?,
                job.get(2).unwrap_or_default().to_owned(),
            );
        }
        let state = job.get(3).unwrap_or_default();
        if state.starts_with("failed") || started.elapsed() > deadline {
            return Err(format!(
                "not finished after {:?}, state {state}; log:\n{}",
                started.elapsed(),
                server.log()
            )
            .into());
        }
        tokio::time::sleep(POLL).await;
    };
    let seconds = started.elapsed().as_secs_f64();
    let after = server.usage()?;
    Ok(Run {
        seconds,
        cpu_s: after.cpu_s - before.cpu_s,
        peak_rss_mb: after.peak_rss_mb,
        rows_out,
        checksum,
    })
}

fn failure(error: &tokio_postgres::Error, sql: &str) -> String {
    match error.as_db_error() {
        Some(db) => format!("{}: {} in: {sql}", db.code().code(), db.message()),
        None => format!("{error} in: {sql}"),
    }
}

/// CPU seconds per million events beside the floor and the others' figures.
fn table(cases: &[Case]) {
    println!();
    println!(
        "CPU s per million events, source included; Flink 2.3 on heap and Feldera's dbsp as measured on a machine of this kind"
    );
    println!(
        "{:<6}{:<6}{:>8}{:>8}{:>8}{:>8}{:>12}{:>9}",
        "query", "mode", "levee", "floor", "flink", "dbsp", "events/s", "RSS MB"
    );
    for case in cases {
        let verdict = if case.cpu_s_per_m_events <= case.query.floor {
            ""
        } else {
            "  over the floor"
        };
        println!(
            "{:<6}{:<6}{:>8.2}{:>8.1}{:>8.1}{:>8.1}{:>12.0}{:>9.0}{verdict}",
            case.query.name,
            case.mode.name(),
            case.cpu_s_per_m_events,
            case.query.floor,
            case.query.flink,
            case.query.dbsp,
            case.events_per_s,
            case.peak_rss_mb,
        );
    }
}
