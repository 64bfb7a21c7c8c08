//! Statements about single rows, answered without the optimiser.
//!
//! ```text
//!   Projection (abalance + 5)          ▲ evaluated over the one row
//!     Filter (aid = 7 AND …)           │
//!       TableScan accounts   ── key ──▶ relation.rows_of_keys
//! ```
//!
//! A plan of this form (and `VALUES`, from which INSERT takes its rows) says by itself how it is best run: look the row up, evaluate.
//! DataFusion would spend a millisecond on finding that out, and a task on running it. Whatever is not of this form, and whatever fails,
//! is left to the general path, which also words the error; so this one never decides what is right, only how fast it is answered.
//!
//! Cost: one key lookup in the relation and one evaluation of each expression over one row; O(log rows + runs).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator, TableScan, Values, Volatility};
use datafusion::physical_expr::create_physical_expr;
use levee_planner::catalog::Catalog;
use levee_planner::sql::CatalogTable;
use levee_runtime::coordinator::ReadSnapshot;

/// Longer lists are worth a plan.
const VALUES_ROWS_MAX: usize = 64;

/// The rows of a plan whose parameters are bound, in the columns of `schema`; `None`: run it in general.
pub(super) fn answer(
    catalog: &Catalog,
    plan: &LogicalPlan,
    snapshot: &ReadSnapshot,
    schema: &SchemaRef,
) -> Option<RecordBatch> {
    let found = Lookup { catalog, snapshot }.rows(plan)?;
    let types = found.schema_ref().fields().iter().map(|f| f.data_type());
    types.eq(schema.fields().iter().map(|f| f.data_type())).then_some(found)
}

struct Lookup<'a> {
    catalog: &'a Catalog,
    snapshot: &'a ReadSnapshot,
}

impl Lookup<'_> {
    fn rows(&self, plan: &LogicalPlan) -> Option<RecordBatch> {
        match plan {
            LogicalPlan::Projection(p) => {
                let input = self.rows(&p.input)?;
                let columns = p.expr.iter().map(|e| evaluated(e, p.input.schema(), &input));
                batch(p.schema.as_arrow(), columns.collect::<Option<_>>()?, input.num_rows())
            }
            LogicalPlan::Filter(f) => {
                let input = match scan_below(&f.input) {
                    Some(scan) => self.row_of_key(f, scan)?,
                    None => self.rows(&f.input)?,
                };
                let met = evaluated(&f.predicate, f.input.schema(), &input)?;
                filter_record_batch(&input, met.as_boolean_opt()?).ok()
            }
            LogicalPlan::SubqueryAlias(a) => {
                let input = self.rows(&a.input)?;
                let rows = input.num_rows();
                batch(a.schema.as_arrow(), input.columns().to_vec(), rows)
            }
            LogicalPlan::Values(v) => listed(v),
            LogicalPlan::EmptyRelation(e) if e.produce_one_row && e.schema.fields().is_empty() => {
                batch(&Schema::empty(), Vec::new(), 1)
            }
            _ => None,
        }
    }

    /// The row whose primary key the filter names, if it names all of it.
    fn row_of_key(&self, f: &Filter, scan: &TableScan) -> Option<RecordBatch> {
        let id = scan.source.downcast_ref::<CatalogTable>()?.id;
        let def = self.catalog.get(id)?.table()?;
        let relation = self.snapshot.relations.get(&id)?;
        let mut fixed = Vec::new();
        equalities(&f.predicate, &mut fixed);
        let mut key = Vec::with_capacity(def.primary_key.len());
        for &c in &def.primary_key {
            let field = def.schema.field(c);
            // Equal floats and intervals may be stored as different bytes.
            if field.data_type().is_floating() || matches!(field.data_type(), DataType::Interval(_)) {
                return None;
            }
            let (_, value) = fixed.iter().find(|(name, _)| *name == field.name().as_str())?;
            let value = constant(value)?;
            if value.data_type() != *field.data_type() || value.is_null() {
                return None;
            }
            key.push(value.to_array().ok()?);
        }
        if key.is_empty() {
            return None;
        }
        let (found, _) = relation.rows_of_keys(&key).ok()?;
        let rows = found.num_rows();
        batch(f.input.schema().as_arrow(), found.columns().to_vec(), rows)
    }
}

/// The scan that a filter stands on.
fn scan_below(plan: &LogicalPlan) -> Option<&TableScan> {
    match plan {
        LogicalPlan::SubqueryAlias(a) => scan_below(&a.input),
        LogicalPlan::TableScan(s) => (s.projection.is_none() && s.filters.is_empty() && s.fetch.is_none()).then_some(s),
        _ => None,
    }
}

/// `column = constant` among the conditions that must all hold.
fn equalities<'a>(e: &'a Expr, out: &mut Vec<(&'a str, &'a Expr)>) {
    let Expr::BinaryExpr(b) = e else { return };
    match (b.op, b.left.as_ref(), b.right.as_ref()) {
        (Operator::And, l, r) => {
            equalities(l, out);
            equalities(r, out);
        }
        (Operator::Eq, Expr::Column(c), value) | (Operator::Eq, value, Expr::Column(c)) => out.push((&c.name, value)),
        _ => {}
    }
}

/// Rows that are written out.
fn listed(v: &Values) -> Option<RecordBatch> {
    if v.values.is_empty() || v.values.len() > VALUES_ROWS_MAX {
        return None;
    }
    let columns = (0..v.schema.fields().len()).map(|c| {
        let cells = v.values.iter().map(|row| row.get(c).and_then(constant));
        let array = ScalarValue::iter_to_array(cells.collect::<Option<Vec<_>>>()?).ok()?;
        (array.data_type() == v.schema.field(c).data_type()).then_some(array)
    });
    batch(v.schema.as_arrow(), columns.collect::<Option<_>>()?, v.values.len())
}

/// The value of an expression without columns.
fn constant(e: &Expr) -> Option<ScalarValue> {
    if let Expr::Literal(v, _) = e {
        return Some(v.clone());
    }
    let one = batch(&Schema::empty(), Vec::new(), 1)?;
    ScalarValue::try_from_array(&evaluated(e, &DFSchema::empty(), &one)?, 0).ok()
}

/// An expression over a few rows.
fn evaluated(e: &Expr, schema: &DFSchema, input: &RecordBatch) -> Option<ArrayRef> {
    if let Expr::Column(c) = e {
        return Some(Arc::clone(input.column(schema.index_of_column(c).ok()?)));
    }
    if !is_plain(e) {
        return None;
    }
    let props = ExecutionProps::default();
    let compiled = create_physical_expr(e, schema, &props, &PhysicalPlanningContext::default()).ok()?;
    compiled.evaluate(input).ok()?.into_array(input.num_rows()).ok()
}

/// Means the same before and after DataFusion's rewrites: those make other functions of some functions, and joins of subqueries.
fn is_plain(e: &Expr) -> bool {
    let mut plain = true;
    let walked = e.apply(|e| {
        plain &= match e {
            Expr::Column(_)
            | Expr::Literal(..)
            | Expr::Alias(_)
            | Expr::BinaryExpr(_)
            | Expr::Cast(_)
            | Expr::Not(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::Case(_) => true,
            Expr::ScalarFunction(f) => {
                f.func.name().starts_with("pg_") && f.func.signature().volatility == Volatility::Immutable
            }
            _ => false,
        };
        Ok(if plain {
            TreeNodeRecursion::Continue
        } else {
            TreeNodeRecursion::Stop
        })
    });
    plain && walked.is_ok()
}

fn batch(schema: &Schema, columns: Vec<ArrayRef>, rows: usize) -> Option<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(schema.clone()), columns, &options).ok()
}
