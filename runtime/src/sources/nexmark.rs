//! Nexmark events, generated straight into Arrow builders.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SourceDriver;
use crate::Result;

/// Makes the driver from WITH options.
///
/// # Errors
/// A bad option.
pub fn driver(options: &BTreeMap<String, String>) -> Result<Arc<dyn SourceDriver>> {
    let _ = options;
    Err(crate::RuntimeError::user("0A000", "connector \"nexmark\" is not built"))
}
