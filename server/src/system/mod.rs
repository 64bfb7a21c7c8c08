//! System relations: `pg_catalog`, `information_schema`, `levee_catalog`, and the functions that clients call around them.
//!
//! Tables are made only when a statement names them, from the catalog snapshot that the statement is bound against.

mod catalog;
mod constraints;
mod empty;
mod functions;
mod information;
mod levee;
mod relations;
mod rewrite;
mod rows;
mod sequences;
mod types;

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::logical_expr::ScalarUDF;
use levee_planner::catalog::{Catalog, CatalogObject, Namespace};
use levee_planner::plan::ObjectId;
use levee_planner::sql::quote_ident;
use levee_planner::sql::{Parsed, SystemTables};

pub use self::sequences::SharedSequences;
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
    /// Schemas in which unqualified names are looked for.
    pub search_path: Vec<String>,
    /// The session's schema for temporary objects.
    pub temporary: Option<ObjectId>,
    /// What the session has taken from sequences.
    pub sequences: SharedSequences,
    /// The transaction refuses writes.
    pub read_only: bool,
}

impl SystemContext {
    /// Namespaces of the search path that exist, the session's temporary one first.
    fn path(&self) -> impl Iterator<Item = &Namespace> {
        let own = self.temporary.and_then(|t| self.catalog.namespace(t));
        let named = self.search_path.iter().filter_map(|s| match s.as_str() {
            "pg_temp" => None,
            s => self.catalog.namespace_named(s),
        });
        own.into_iter().chain(named)
    }

    /// The object that a name means.
    fn find(&self, schema: Option<&str>, name: &str) -> Option<&CatalogObject> {
        let found = match schema {
            Some("pg_temp") => self.catalog.find(self.temporary?, name),
            Some(s) => self.catalog.find(self.catalog.namespace_named(s)?.id, name),
            None => self.path().find_map(|n| self.catalog.find(n.id, name)),
        };
        found.map(Arc::as_ref)
    }

    /// Does the object's name alone mean it?
    fn is_visible(&self, object: &CatalogObject) -> bool {
        self.find(None, &object.name).is_some_and(|o| o.id == object.id)
    }

    /// An object's name as SQL text that means it in this session.
    fn shown(&self, object: &CatalogObject) -> String {
        let name = quote_ident(&object.name);
        if self.is_visible(object) {
            return name;
        }
        format!("{}.{name}", quote_ident(self.catalog.namespace_of(object)))
    }

    /// All schemas: OID and name.
    fn namespaces(&self) -> Vec<(i32, String)> {
        let system = catalog::SYSTEM_NAMESPACES
            .iter()
            .map(|(oid, n)| (*oid, (*n).to_owned()));
        let own = self.catalog.namespaces();
        let own = own.map(|n| (i32::try_from(n.id.0).unwrap_or(0), n.name.clone()));
        system.chain(own).collect()
    }
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
        let mut all = functions::all(&self.context);
        all.extend(sequences::all(&self.context));
        all
    }
}

impl SystemTables for System {
    fn table(&self, schema: Option<&str>, name: &str) -> Option<Arc<dyn TableProvider>> {
        let made = match schema {
            None => catalog::pg_catalog(&self.context, name),
            Some("pg_catalog") => catalog::pg_catalog(&self.context, name),
            Some("information_schema") => information::information_schema(&self.context, name),
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

    fn sequence(&self, sequence: &CatalogObject) -> Option<Arc<dyn TableProvider>> {
        match relations::sequence_row(&self.context, sequence) {
            Ok(table) => Some(table),
            Err(error) => {
                tracing::error!(
                    sequence = sequence.name,
                    message = error.message(),
                    "a sequence cannot be read"
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
        20 | 701 | 1083 | 1114 | 1184 => 8,
        1266 => 12,
        1186 | 2950 => 16,
        _ => -1,
    }
}
