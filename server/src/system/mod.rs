//! System relations: `pg_catalog`, `information_schema`, `levee_catalog`, and the functions that clients call around them.
//!
//! Tables are made only when a statement names them, from the catalog snapshot that the statement is bound against.

mod functions;
mod levee;
mod rewrite;
mod tables;

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::logical_expr::ScalarUDF;
use levee_planner::catalog::Catalog;
use levee_planner::sql::{Parsed, SystemTables};

use crate::server::Server;

/// What system relations tell of.
#[derive(Debug, Clone)]
pub struct SystemContext {
    /// The server.
    pub server: Arc<Server>,
    /// Catalog snapshot.
    pub catalog: Arc<Catalog>,
    /// Session user.
    pub user: String,
    /// Session's process id.
    pub pid: i32,
    /// Session settings: name, value, description.
    pub settings: Vec<(String, String, &'static str)>,
    /// The statement's time.
    pub now_us: i64,
}

/// The system relations as a session sees them.
#[derive(Debug, Clone)]
pub struct System {
    context: Arc<SystemContext>,
}

impl System {
    /// For one statement.
    pub fn new(context: SystemContext) -> Self {
        Self {
            context: Arc::new(context),
        }
    }

    /// The statement to bind in place of `parsed`, if it asks system relations in ways that the planner lacks.
    pub fn rewritten(parsed: &Parsed) -> Option<Parsed> {
        rewrite::rewritten(parsed)
    }

    /// Functions of `pg_catalog` that depend on the catalog or the session.
    pub fn functions(&self) -> Vec<Arc<ScalarUDF>> {
        functions::all(&self.context)
    }
}

impl SystemTables for System {
    fn table(&self, schema: Option<&str>, name: &str) -> Option<Arc<dyn TableProvider>> {
        let made = match schema {
            None => tables::pg_catalog(&self.context, name),
            Some("pg_catalog") => tables::pg_catalog(&self.context, name),
            Some("information_schema") => tables::information_schema(&self.context, name),
            Some("levee_catalog") => levee::table(&self.context, name),
            Some(_) => None,
        }?;
        match made {
            Ok(table) => Some(table),
            Err(error) => {
                tracing::error!(
                    relation = name,
                    code = error.code(),
                    message = error.message(),
                    "system relation cannot be made"
                );
                None
            }
        }
    }
}

/// `typlen` of a type.
pub fn type_size(oid: u32) -> i16 {
    match oid {
        16 => 1,
        21 => 2,
        23 | 26 | 700 | 1082 => 4,
        20 | 701 | 1114 | 1184 => 8,
        1186 => 16,
        _ => -1,
    }
}
