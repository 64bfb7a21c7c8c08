//! Counters of the server, in Prometheus' text form at /metrics.

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// All counters. The names are documented in `docs/operations.md`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Statements run.
    pub statements: IntCounter,
    /// Statements that failed, by SQLSTATE.
    pub errors: IntCounterVec,
    /// Rows sent to clients.
    pub rows_out: IntCounter,
    /// Rows written by clients.
    pub rows_in: IntCounter,
    /// Connections now.
    pub connections: IntGauge,
    /// Newest epoch.
    pub epoch: IntGauge,
    /// Resident memory.
    pub resident_bytes: IntGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at 0.
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let c = IntCounter::new(name, help).expect("metric names are constants");
            registry.register(Box::new(c.clone())).expect("metric names differ");
            c
        };
        let gauge = |name: &str, help: &str| {
            let g = IntGauge::new(name, help).expect("metric names are constants");
            registry.register(Box::new(g.clone())).expect("metric names differ");
            g
        };
        let statements = counter("levee_statements_total", "Statements run.");
        let rows_out = counter("levee_rows_sent_total", "Rows sent to clients.");
        let rows_in = counter(
            "levee_rows_written_total",
            "Rows inserted, updated or deleted by clients.",
        );
        let connections = gauge("levee_connections", "PostgreSQL connections now.");
        let epoch = gauge("levee_epoch", "Newest durable epoch.");
        let resident_bytes = gauge("levee_resident_bytes", "Resident memory of the process.");
        let errors = IntCounterVec::new(
            Opts::new("levee_statement_errors_total", "Failed statements."),
            &["sqlstate"],
        )
        .expect("metric names are constants");
        registry
            .register(Box::new(errors.clone()))
            .expect("metric names differ");
        Self {
            registry,
            statements,
            errors,
            rows_out,
            rows_in,
            connections,
            epoch,
            resident_bytes,
        }
    }

    /// The text form.
    pub fn text(&self) -> String {
        let mut out = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Resident memory of this process.
pub fn resident_bytes() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
