//! Counters of the server, in Prometheus' text form at /metrics.

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

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
    /// Records that sources could not decode, by source.
    pub dead_letters: IntGaugeVec,
    /// Records that no epoch has taken yet, by source.
    pub source_lag: IntGaugeVec,
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
        let by_source = |name: &str, help: &str| {
            let g = IntGaugeVec::new(Opts::new(name, help), &["source"]).expect("metric names are constants");
            registry.register(Box::new(g.clone())).expect("metric names differ");
            g
        };
        let dead_letters = by_source("levee_source_dead_letters", "Records that could not be decoded.");
        let source_lag = by_source(
            "levee_source_lag",
            "Records that no epoch has taken yet, as far as known.",
        );
        Self {
            dead_letters,
            source_lag,
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

    /// Takes the rows of `levee_catalog.sources`, one for each split.
    pub fn set_sources(&self, rows: &[Vec<Option<String>>]) {
        const NAME: usize = 1;
        const LAG: usize = 8;
        const DEAD_LETTERS: usize = 11;
        self.dead_letters.reset();
        self.source_lag.reset();
        let number = |row: &[Option<String>], column: usize| {
            let text = row.get(column).and_then(Option::as_deref);
            text.and_then(|t| t.parse::<i64>().ok()).unwrap_or(0)
        };
        for row in rows {
            let Some(name) = row.get(NAME).and_then(Option::as_deref) else {
                continue;
            };
            self.dead_letters
                .with_label_values(&[name])
                .set(number(row, DEAD_LETTERS));
            self.source_lag.with_label_values(&[name]).add(number(row, LAG));
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
