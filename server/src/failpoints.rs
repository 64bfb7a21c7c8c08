//! Failpoints for crash tests; this module exists only with the cargo feature `failpoints`.
//!
//! - `FAILPOINTS=name=action;…` configures failpoints at the start.
//! - `LEVEE_KILL_AT=name:n` kills the process with SIGKILL at the n-th hit of a failpoint, after writing the failpoint's name to
//!   the file that `LEVEE_KILL_MARK` names.
//! - `POST /debug/failpoint {"name", "action"}` and `POST /debug/delay {"region", "ms"}` do so while the server runs.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;

/// Keeps the failpoints of the environment configured while it lives.
#[must_use]
pub struct Scenario(#[expect(dead_code, reason = "held for its drop")] fail::FailScenario<'static>);

/// Reads the environment.
///
/// # Errors
/// `LEVEE_KILL_AT` is not `name:n`.
pub fn setup() -> Result<Scenario, String> {
    let scenario = fail::FailScenario::setup();
    if let Ok(at) = std::env::var("LEVEE_KILL_AT") {
        let (name, n) = at.rsplit_once(':').ok_or("LEVEE_KILL_AT: NAME:N is expected")?;
        let n: u64 = n.parse().map_err(|_| "LEVEE_KILL_AT: NAME:N is expected")?;
        kill_at(name.to_owned(), n)?;
    }
    Ok(Scenario(scenario))
}

fn kill_at(name: String, n: u64) -> Result<(), String> {
    let hits = AtomicU64::new(0);
    let mark = std::env::var_os("LEVEE_KILL_MARK");
    let point = name.clone();
    fail::cfg_callback(point, move || {
        if hits.fetch_add(1, Ordering::SeqCst) + 1 != n.max(1) {
            return;
        }
        if let Some(mark) = &mark
            && let Err(error) = std::fs::write(mark, &name)
        {
            tracing::error!(%error, "kill mark could not be written");
        }
        kill_self();
    })
}

#[allow(unsafe_code, reason = "only the C library can raise SIGKILL")]
fn kill_self() {
    // SAFETY: kill takes two integers and touches no memory of ours.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    loop {
        std::thread::park();
    }
}

/// Body of /debug/failpoint.
#[derive(Debug, Deserialize)]
pub struct Failpoint {
    name: String,
    action: String,
}

/// Configures a failpoint.
pub async fn set_failpoint(Json(f): Json<Failpoint>) -> (StatusCode, String) {
    match fail::cfg(f.name, &f.action) {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(e) => (StatusCode::BAD_REQUEST, format!("{e}\n")),
    }
}

/// Body of /debug/delay.
#[derive(Debug, Deserialize)]
pub struct Delay {
    region: String,
    ms: u64,
}

/// Makes a region sleep in each step.
pub async fn set_delay(Json(d): Json<Delay>) -> (StatusCode, &'static str) {
    levee_runtime::dataflow::debug_delay(&d.region, d.ms);
    (StatusCode::OK, "ok\n")
}
