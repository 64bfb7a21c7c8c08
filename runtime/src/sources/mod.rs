//! Sources: readers that deliver exactly the range that a timeline record names.
//!
//! A source's splits are logs of numbered records. The sequencer asks [`SourceDriver::available`] how far each split could be
//! read, cuts a range into an epoch, and any task of any region can then read that range, now or again later.

pub mod nexmark;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use crate::{Delta, Result};

/// Offsets `[from, to)` of one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SplitRange {
    /// Split number.
    pub split: u32,
    /// First offset.
    pub from: u64,
    /// One past the last offset.
    pub to: u64,
}

/// A connector's handle on one source.
pub trait SourceDriver: Send + Sync {
    /// Columns of the source.
    fn schema(&self) -> SchemaRef;

    /// Start offset of every split.
    fn start(&self) -> Vec<u64>;

    /// How far each split may be read now (exclusive), at `now_us` microseconds since 1970, if the source was created at
    /// `created_us`. Never decreases; `u64::MAX` never occurs (a bounded source ends at its limit).
    fn available(&self, created_us: i64, now_us: i64) -> Vec<u64>;

    /// No record will ever follow these offsets.
    fn finished(&self, offsets: &[u64]) -> bool;

    /// Reads `range` with the given columns in chunks of at most about 8 k rows, handing each to `emit`; the rows are the same on
    /// every call. `emit` answers whether to go on.
    ///
    /// # Errors
    /// The range can no longer be read in full.
    fn open(&self, range: SplitRange, projection: &[usize]) -> Result<Box<dyn RangeReader>>;
}

/// Reads one range in chunks.
pub trait RangeReader: Send {
    /// The next chunk, `None` at the end of the range.
    ///
    /// # Errors
    /// The range cannot be read in full.
    fn next(&mut self) -> Result<Option<Delta>>;
}

/// Checks a source's WITH options at CREATE and makes its driver.
///
/// # Errors
/// Unknown connector or option (22023), with a hint naming the known ones.
pub fn driver(connector: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn SourceDriver>> {
    match connector {
        "nexmark" => nexmark::driver(options),
        other => Err(crate::RuntimeError::User {
            code: "22023",
            message: format!("unknown connector \"{other}\" for a source"),
            hint: Some("The connectors for sources are: nexmark.".to_owned()),
        }),
    }
}
