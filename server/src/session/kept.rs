//! Bound statements that a prepared statement keeps, so that running it again neither parses nor binds.
//!
//! A bound statement is right as long as what it was bound against stands: the catalog, and the settings that names and texts are read
//! by. It is kept only if nothing else went into it: the statement's time is a constant once bound, and so is what a function of the
//! session answers; such statements are bound each time.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use levee_planner::catalog::{Catalog, ObjectKind};
use levee_planner::plan::ObjectId;
use levee_planner::sql::{BindSettings, Binder, CatalogTable, Dml, Query, Statement};

/// Words of the statement's time, in SQL and in texts that are read as times.
const MOMENTS: [&str; 10] = [
    "now",
    "current_",
    "local",
    "clock_",
    "_timestamp",
    "timeofday",
    "today",
    "tomorrow",
    "yesterday",
    "age(",
];

/// Names nothing that changes from one statement to the next.
fn is_timeless(sql: &str) -> bool {
    let sql = sql.to_lowercase();
    !MOMENTS.iter().any(|word| sql.contains(word))
}

/// At most one bound statement.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Option<Bound>>);

#[derive(Debug)]
struct Bound {
    catalog: Arc<Catalog>,
    search_path: Vec<String>,
    temporary: Option<ObjectId>,
    time_zone: String,
    statement: Kind,
}

#[derive(Debug)]
enum Kind {
    Query(Box<Query>),
    Dml(Box<Dml>),
}

impl Bound {
    fn stands(&self, catalog: &Arc<Catalog>, settings: &BindSettings) -> bool {
        Arc::ptr_eq(&self.catalog, catalog)
            && self.search_path == settings.search_path
            && self.temporary == settings.temporary
            && self.time_zone == settings.time_zone
    }
}

impl Kept {
    /// The bound statement, if what it was bound against stands.
    pub fn get(&self, binder: &Binder) -> Option<Statement> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = kept.as_ref().filter(|b| b.stands(&binder.catalog, &binder.settings))?;
        Some(match &bound.statement {
            Kind::Query(q) => Statement::Query(q.as_ref().clone()),
            Kind::Dml(d) => Statement::Dml(d.clone()),
        })
    }

    /// Keeps a statement that was just bound, if it may be.
    pub fn put(&self, binder: &Binder, text: &str, statement: &Statement) {
        let statement = match statement {
            Statement::Query(q) if q.samples.is_empty() && is_lasting(&q.plan) => Kind::Query(Box::new(q.clone())),
            Statement::Dml(d) if dml_lasts(&binder.catalog, d) => Kind::Dml(d.clone()),
            _ => return,
        };
        if !is_timeless(text) || !views_last(&binder.catalog) {
            return;
        }
        let bound = Bound {
            catalog: Arc::clone(&binder.catalog),
            search_path: binder.settings.search_path.clone(),
            temporary: binder.settings.temporary,
            time_zone: binder.settings.time_zone.clone(),
            statement,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bound);
    }
}

fn dml_lasts(catalog: &Catalog, d: &Dml) -> bool {
    let parts = d.returning.iter();
    let parts = parts.chain(d.on_conflict.iter().filter_map(|on| on.update.as_ref()));
    let defaults = catalog
        .get(d.table)
        .and_then(|o| o.table())
        .is_some_and(|t| t.defaults.iter().flatten().all(|sql| is_timeless(sql)));
    defaults && is_lasting(&d.query.plan) && parts.map(|q| &q.plan).all(is_lasting)
}

/// A plain view's text is part of whatever reads it.
fn views_last(catalog: &Catalog) -> bool {
    catalog.objects().all(|o| match &o.kind {
        ObjectKind::View(v) => is_timeless(&v.sql),
        _ => true,
    })
}

/// Reads the catalog's relations only, and calls no function of the session.
fn is_lasting(plan: &LogicalPlan) -> bool {
    let mut lasting = true;
    let walked = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            lasting &= scan.source.downcast_ref::<CatalogTable>().is_some();
        }
        node.apply_expressions(|e| {
            lasting &= !e.exists(|e| {
                Ok(matches!(e, Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable))
            })?;
            Ok(TreeNodeRecursion::Continue)
        })
    });
    lasting && walked.is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_timeless;

    #[test]
    fn words_of_the_time() {
        assert!(is_timeless("SELECT a FROM t WHERE id = $1"));
        for moment in [
            "SELECT NOW()",
            "insert into t values (Current_Date)",
            "SELECT 'today'::date",
        ] {
            assert!(!is_timeless(moment), "{moment}");
        }
    }
}
