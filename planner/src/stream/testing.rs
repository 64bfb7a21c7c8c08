//! A small catalog and a binder for the planner's own tests: DataFusion's SQL front end over [`CatalogTable`] sources.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::{Result as DfResult, TableReference, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF};
use datafusion::sql::planner::{ContextProvider, ParserOptions, SqlToRel};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::plan_view;
use crate::Result;
use crate::catalog::{Catalog, CatalogObject, CatalogOp, MaterializedViewDef, ObjectKind, SourceDef, TableDef};
use crate::plan::StreamPlan;
use crate::sql::CatalogTable;

/// Tables `t`, `u` (keyed) and `bag` (no key); Nexmark's sources `person`, `auction`, `bid`; a materialized view `per_bidder`.
pub(crate) fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    let int = |n: &str, nullable| Field::new(n, DataType::Int32, nullable);
    let big = |n: &str| Field::new(n, DataType::Int64, true);
    let text = |n: &str| Field::new(n, DataType::Utf8, true);
    let time = |n: &str| Field::new(n, DataType::Timestamp(TimeUnit::Microsecond, None), true);
    table(&mut catalog, "t", vec![int("id", false), int("a", true), big("b"), text("s"), time("ts")], vec![0]);
    table(&mut catalog, "u", vec![int("id", false), int("t_id", true), big("b"), Field::new("f", DataType::Float64, true)], vec![0]);
    table(&mut catalog, "bag", vec![int("a", true), big("b"), text("s")], vec![]);
    table(&mut catalog, "pair", vec![int("x", false), int("y", false), text("v")], vec![0, 1]);
    source(&mut catalog, "person", vec![big("id"), text("name"), text("email_address"), text("city"), text("state"), time("date_time")]);
    source(
        &mut catalog,
        "auction",
        vec![big("id"), text("item_name"), big("reserve"), time("date_time"), time("expires"), big("seller"), big("category")],
    );
    source(
        &mut catalog,
        "bid",
        vec![big("auction"), big("bidder"), big("price"), text("channel"), time("date_time"), text("extra")],
    );
    let sql = "SELECT bidder, count(*) AS bids, max(price) AS top FROM bid GROUP BY bidder";
    let (plan, schema) = view(sql, &catalog).expect("the view plans");
    let def = MaterializedViewDef { sql: sql.to_string(), schema, plan, options: Default::default() };
    add(&mut catalog, "per_bidder", ObjectKind::MaterializedView(Box::new(def)));
    catalog
}

fn table(catalog: &mut Catalog, name: &str, fields: Vec<Field>, primary_key: Vec<usize>) {
    let defaults = vec![None; fields.len()];
    add(catalog, name, ObjectKind::Table(TableDef { schema: Arc::new(Schema::new(fields)), primary_key, defaults }));
}

fn source(catalog: &mut Catalog, name: &str, fields: Vec<Field>) {
    let connector = "nexmark".to_string();
    add(catalog, name, ObjectKind::Source(SourceDef { schema: Arc::new(Schema::new(fields)), connector, options: Default::default() }));
}

fn add(catalog: &mut Catalog, name: &str, kind: ObjectKind) {
    let id = catalog.next_id();
    let object = CatalogObject { id, name: name.to_string(), kind, depends_on: Vec::new(), definition: String::new() };
    catalog.apply(&CatalogOp::Create(object));
}

/// Binds and plans a view.
pub(crate) fn view(sql: &str, catalog: &Catalog) -> Result<(StreamPlan, SchemaRef)> {
    let plan = bind(sql, catalog);
    let schema = Arc::new(plan.schema().as_arrow().clone());
    Ok((plan_view(plan, &schema, catalog)?, schema))
}

/// The bound, unoptimised plan.
pub(crate) fn bind(sql: &str, catalog: &Catalog) -> LogicalPlan {
    let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).expect("the query parses");
    let provider = Names::new(catalog);
    let options = ParserOptions { map_string_types_to_utf8view: false, parse_float_as_decimal: true, ..ParserOptions::default() };
    SqlToRel::new_with_options(&provider, options)
        .sql_statement_to_plan(statements.pop().expect("one statement"))
        .expect("the query binds")
}

struct Names<'a> {
    catalog: &'a Catalog,
    options: ConfigOptions,
    scalar: HashMap<String, Arc<ScalarUDF>>,
    aggregate: HashMap<String, Arc<AggregateUDF>>,
    window: HashMap<String, Arc<WindowUDF>>,
}

impl<'a> Names<'a> {
    fn new(catalog: &'a Catalog) -> Self {
        let scalar = super::expr::functions().into_iter().flat_map(|f| {
            let names: Vec<String> = f.aliases().iter().cloned().chain([f.name().to_string()]).collect();
            names.into_iter().map(move |n| (n, Arc::clone(&f)))
        });
        let aggregate = SessionStateDefaults::default_aggregate_functions().into_iter().map(|f| (f.name().to_string(), f));
        let window = SessionStateDefaults::default_window_functions().into_iter().map(|f| (f.name().to_string(), f));
        Self {
            catalog,
            options: super::expr::session_config().options().as_ref().clone(),
            scalar: scalar.collect(),
            aggregate: aggregate.collect(),
            window: window.collect(),
        }
    }
}

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> DfResult<Arc<dyn TableSource>> {
        match self.catalog.by_name(name.table()) {
            Some(object) => Ok(Arc::new(CatalogTable { id: object.id, schema: Arc::clone(object.schema()) })),
            None => plan_err!("no relation {name}"),
        }
    }
    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(name).cloned()
    }
    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }
    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.aggregate.get(name).cloned()
    }
    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.window.get(name).cloned()
    }
    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }
    fn get_expr_planners(&self) -> &[Arc<dyn datafusion::logical_expr::planner::ExprPlanner>] {
        static PLANNERS: std::sync::LazyLock<Vec<Arc<dyn datafusion::logical_expr::planner::ExprPlanner>>> =
            std::sync::LazyLock::new(SessionStateDefaults::default_expr_planners);
        &PLANNERS
    }
    fn options(&self) -> &ConfigOptions {
        &self.options
    }
    fn udf_names(&self) -> Vec<String> {
        Vec::new()
    }
    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }
    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }
    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
