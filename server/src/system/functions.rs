//! Functions of `pg_catalog`.
use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;

use super::SystemContext;

/// All of them.
pub fn all(_context: &Arc<SystemContext>) -> Vec<Arc<ScalarUDF>> {
    Vec::new()
}
