//! Benchmarks of the `levee` binary as users run it: SQL over the wire into a fresh server process, checkpoints and log on,
//! figures from the operating system's accounting.
//!
//! * `nexmark-bench`: Nexmark queries over three million generated events, and how they compare.
//! * `freshness`: how long a single INSERT takes to show in a dependent view on another connection.
//!
//! `demo/` and `postgres/` beside this crate are client programs in Python: the flights of New York, and the comparison with
//! PostgreSQL.

pub mod nexmark;
pub mod server;

/// Result of a benchmark: an error ends it with a message.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The middle value of several runs (the lower one of two); NaN for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value that the share `p` of all values does not exceed; NaN for none.
pub fn percentile(values: impl IntoIterator<Item = f64>, p: f64) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * p).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Rounds for printing.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([1.0, 2.0]), 1.0);
        assert_eq!(percentile((1..=100).map(f64::from), 0.99), 99.0);
        assert!(median([]).is_nan());
        assert_eq!(rounded(2.346, 2), 2.35);
    }
}
