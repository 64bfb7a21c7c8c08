//! How fresh a view is: a single INSERT on one connection, until a dependent view shows it on another.
//!
//! The clock starts when the INSERT is sent; the other connection reads the view all the while. One JSON line; the exit code is
//! 1 if the median or the 99th percentile is above its limit.

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use levee_benchmarks::server::{Server, row};
use levee_benchmarks::{Result, median, percentile, rounded};
use serde_json::json;
use tokio_postgres::Client;

const P50_MS_MAX: f64 = 20.0;
const P99_MS_MAX: f64 = 60.0;
const SEEN_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Parser)]
#[command(about = "Time from an INSERT to its row in a view")]
struct Arguments {
    /// The levee binary.
    #[arg(long)]
    levee: PathBuf,
    /// INSERTs to measure.
    #[arg(long, default_value_t = 500)]
    inserts: usize,
    /// Rows in the table before.
    #[arg(long, default_value_t = 10_000)]
    rows: usize,
    /// Tasks.
    #[arg(long, default_value_t = 2)]
    parallelism: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match measure(&Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{}", json!({"bench": "freshness", "error": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

async fn measure(arguments: &Arguments) -> Result<bool> {
    let server = Server::start(&arguments.levee, arguments.parallelism).await?;
    let writer = server.connect().await?;
    let reader = server.connect().await?;
    writer
        .batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer integer, total integer)")
        .await?;
    let view = "CREATE MATERIALIZED VIEW customers AS
                SELECT customer, count(*) AS orders, sum(total) AS total FROM orders GROUP BY customer";
    writer.batch_execute(view).await?;
    let rows: Vec<String> = (0..arguments.rows)
        .map(|id| format!("({id}, {}, 1)", id % 100))
        .collect();
    for chunk in rows.chunks(1000) {
        writer
            .batch_execute(&format!("INSERT INTO orders VALUES {}", chunk.join(", ")))
            .await?;
    }
    let mut all_ms = Vec::new();
    for n in 0..arguments.inserts {
        all_ms.push(once(&writer, &reader, arguments.rows + n).await?);
    }
    let (p50, p99) = (median(all_ms.iter().copied()), percentile(all_ms.iter().copied(), 0.99));
    let line = json!({
        "bench": "freshness",
        "inserts": arguments.inserts,
        "rows": arguments.rows,
        "p50_ms": rounded(p50, 2),
        "p99_ms": rounded(p99, 2),
        "max_ms": rounded(percentile(all_ms, 1.0), 2),
        "p50_ms_max": P50_MS_MAX,
        "p99_ms_max": P99_MS_MAX,
    });
    println!("{line}");
    Ok(p50 <= P50_MS_MAX && p99 <= P99_MS_MAX)
}

/// Milliseconds from the INSERT of row `id`, of a customer of its own, to its sight in the view.
async fn once(writer: &Client, reader: &Client, id: usize) -> Result<f64> {
    let started = Instant::now();
    let insert = async {
        writer
            .batch_execute(&format!("INSERT INTO orders VALUES ({id}, {id}, 1)"))
            .await?;
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    };
    let sight = async {
        let sql = format!("SELECT count(*) FROM customers WHERE customer = {id}");
        loop {
            if row(reader, &sql).await?.get(0) == Some("1") {
                return Ok(started.elapsed().as_secs_f64() * 1000.0);
            }
            if started.elapsed() > SEEN_MAX {
                return Err(format!("row {id} is not in the view after {SEEN_MAX:?}").into());
            }
        }
    };
    let ((), ms) = tokio::try_join!(insert, sight)?;
    Ok(ms)
}
