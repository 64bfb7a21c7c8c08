//! Relations of `pg_catalog` and `information_schema`.
use std::sync::Arc;

use datafusion::catalog::TableProvider;

use super::SystemContext;
use crate::error::Result;

/// A relation of `pg_catalog`.
pub fn pg_catalog(_context: &Arc<SystemContext>, _name: &str) -> Option<Result<Arc<dyn TableProvider>>> {
    None
}

/// A relation of `information_schema`.
pub fn information_schema(_context: &Arc<SystemContext>, _name: &str) -> Option<Result<Arc<dyn TableProvider>>> {
    None
}
