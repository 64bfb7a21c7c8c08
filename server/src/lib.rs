//! The `levee` binary: command line, PostgreSQL's wire protocol, sessions, system catalogs, HTTP.
//!
//! This is the only crate that knows PostgreSQL's messages, SQLSTATE, sockets and environment variables. Below it, the planner
//! binds statements and the runtime's [`levee_runtime::coordinator::Engine`] keeps data; see `docs/architecture.md` for the life
//! of a statement.
//!
//! | module | |
//! | --- | --- |
//! | [`config`] | settings, command line, `docs/config.md` |
//! | [`server`] | what sessions share, accepting connections, cancel |
//! | [`wire`] | messages |
//! | [`session`] | statements, transactions, prepared statements, COPY |
//! | [`copy`] | COPY's formats |
//! | [`types`] | external forms of values |
//! | [`system`] | `pg_catalog`, `information_schema`, `levee_catalog` |
//! | [`http`], [`metrics`] | health and counters |

mod allocator;
pub mod config;
pub mod copy;
pub mod error;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod http;
mod memory;
pub mod metrics;
pub mod server;
pub mod session;
pub mod system;
pub mod types;
pub mod wire;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use levee_runtime::coordinator::{Engine, EngineConfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::chain;
use crate::server::Server;

/// Threads for clients; dataflow has its own.
const CLIENT_THREADS_MAX: usize = 4;
/// Planning recurses with the depth of a query.
const STACK_BYTES: usize = 8 << 20;

/// Runs the command line; answers the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let matches = config::command().get_matches_from(args);
    match matches.subcommand() {
        Some(("serve", matches)) => {
            start_log();
            let served = Config::read(matches).map_err(Into::into).and_then(serve);
            match served {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("levee: {}", chain(error.as_ref()));
                    ExitCode::FAILURE
                }
            }
        }
        _ => match std::io::stdout().write_all(config::docs().as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn serve(config: Config) -> Result<(), AnyError> {
    #[cfg(feature = "failpoints")]
    let _scenario = failpoints::setup()?;
    allocator::set_up(config.memory_limit);
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let threads = |name, n| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(n)
            .thread_stack_size(STACK_BYTES)
            .thread_name(name)
            .enable_all()
            .build()
    };
    let runtime = threads("client", cores.clamp(2, CLIENT_THREADS_MAX))?;
    // More than cores: a cancelled query may hold its thread until its plan comes to a point where it can stop.
    let queries = threads("query", cores.max(2) * 4)?;
    let served = runtime.block_on(serve_until_stopped(config, queries.handle().clone()));
    // What still runs then is a query that has been cancelled.
    queries.shutdown_timeout(std::time::Duration::from_secs(1));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    served
}

async fn serve_until_stopped(config: Config, queries: tokio::runtime::Handle) -> Result<(), AnyError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let pg = TcpListener::bind(&config.pg_addr)
        .await
        .map_err(|e| format!("cannot listen at {}: {e}", config.pg_addr))?;
    let http = TcpListener::bind(&config.http_addr)
        .await
        .map_err(|e| format!("cannot listen at {}: {e}", config.http_addr))?;
    let engine_config = EngineConfig {
        data_dir: config.data_dir.clone(),
        checkpoint_url: config.checkpoint_url.clone(),
        memory_limit: config.memory_limit,
        parallelism: config.parallelism,
        checkpoint_interval_ms: config.checkpoint_interval_ms,
        backlog_limit: config.backlog_limit as u64,
    };
    let engine = tokio::task::spawn_blocking(move || Engine::open(engine_config)).await??;
    engine.drop_temporary(None).await?;
    let stop = CancellationToken::new();
    let data_dir = config.data_dir.display().to_string();
    let server = Server::new(std::sync::Arc::clone(&engine), config, stop.clone(), queries)?;
    let ready = format!(
        "levee ready: postgres at {}, http at {}, data in {data_dir}\n",
        pg.local_addr()?,
        http.local_addr()?
    );
    let web = tokio::spawn(http::serve(std::sync::Arc::clone(&server), http));
    let clients = tokio::spawn(server::accept(std::sync::Arc::clone(&server), pg));
    {
        let mut out = std::io::stdout().lock();
        out.write_all(ready.as_bytes())?;
        out.flush()?;
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.cancel();
    let (clients, web) = (
        clients.await,
        tokio::time::timeout(std::time::Duration::from_secs(1), web).await,
    );
    if clients.is_err() || web.is_err() {
        tracing::warn!("some connections did not end in time");
    }
    engine.shutdown().await;
    tracing::info!("stopped");
    Ok(())
}
