//! What DataFusion's planner may look up: relations of the catalog snapshot, system tables, functions, types.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result as DfResult, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::execution::SessionState;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, RelationPlanner, TypePlanner};
use datafusion::logical_expr::{
    AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, LogicalPlanBuilder, ScalarUDF, TableSource, WindowUDF,
};
use sqlparser::ast;

use super::functions::external;
use super::resolve::is_system_schema;
use super::rewrite::Mode;
use super::{Binder, CatalogTable};
use crate::PlanError;
use crate::catalog::{CatalogObject, ObjectKind, Reference};
use crate::plan::ObjectId;

/// Views that may be nested into each other.
const VIEW_DEPTH_MAX: usize = 32;

/// The lookups of one statement.
pub(super) struct Provider<'a> {
    binder: &'a Binder,
    state: &'a SessionState,
    mode: Mode,
    depth: usize,
    planners: Vec<Arc<dyn ExprPlanner>>,
    relations: Vec<Arc<dyn RelationPlanner>>,
    /// For a stored query's text: the relations that its names mean.
    references: Option<&'a [Reference]>,
    /// Objects named by the statement itself.
    pub used: RefCell<BTreeSet<ObjectId>>,
    /// How it names them.
    pub named: RefCell<Vec<Reference>>,
    /// Tables that were taken for columns.
    pub shadows: super::scopes::Shadows,
}

impl<'a> Provider<'a> {
    /// For a statement, or for a view's text `depth` levels below one.
    pub fn new(binder: &'a Binder, state: &'a SessionState, mode: Mode, depth: usize) -> Self {
        let shadows = super::scopes::Shadows::default();
        let own = super::typing::PgExprPlanner {
            shadows: shadows.clone(),
        };
        let mut planners: Vec<Arc<dyn ExprPlanner>> = vec![Arc::new(own)];
        planners.extend(state.expr_planners().iter().cloned());
        Self {
            binder,
            state,
            mode,
            depth,
            planners,
            relations: vec![Arc::new(super::derived::DerivedPlanner)],
            references: None,
            used: RefCell::default(),
            named: RefCell::default(),
            shadows,
        }
    }

    /// For a stored query's text, whose names mean `references`.
    pub fn with_references(self, references: &'a [Reference]) -> Self {
        Self {
            references: Some(references),
            ..self
        }
    }

    /// The object under the column names that a stored query knows.
    fn referenced(&self, r: &Reference) -> DfResult<Arc<dyn TableSource>> {
        let missing = || {
            external(PlanError::new(
                "42P01",
                format!("relation \"{}\" does not exist", r.name),
            ))
        };
        let o = self.binder.catalog.get(r.id).ok_or_else(missing)?;
        let source = self.object(o)?;
        let now = o.schema().fields().iter().map(|f| f.name());
        if now.eq(r.columns.iter()) {
            return Ok(source);
        }
        let scan = LogicalPlanBuilder::scan(r.name.as_str(), source, None)?.build()?;
        let plan = super::bind::rename(scan, &r.columns).map_err(external)?;
        Ok(Arc::new(ViewSource {
            schema: Arc::new(plan.schema().as_arrow().clone()),
            plan,
        }))
    }

    /// The relation that a name means.
    fn lookup(&self, schema: Option<&str>, table: &str) -> Found<'_> {
        let (binder, system) = (self.binder, &self.binder.system);
        let named = |s: &str| -> Option<Found<'_>> {
            if is_system_schema(s) {
                return system.table(Some(s), table).map(Found::System);
            }
            binder
                .namespace_id(s)
                .and_then(|n| binder.catalog.find(n, table))
                .map(Found::User)
        };
        if let Some(s) = schema {
            return named(s).unwrap_or(Found::Nothing);
        }
        let path = &binder.settings.search_path;
        let implied = ["pg_temp", "pg_catalog"];
        let implied = implied.into_iter().filter(|s| !path.iter().any(|p| p == s));
        implied
            .chain(path.iter().map(String::as_str))
            .find_map(named)
            .unwrap_or(Found::Nothing)
    }

    fn object(&self, o: &CatalogObject) -> DfResult<Arc<dyn TableSource>> {
        self.used.borrow_mut().insert(o.id);
        match &o.kind {
            ObjectKind::Index(_) => Err(external(
                PlanError::new("42809", format!("cannot open relation \"{}\"", o.name))
                    .detail("This operation is not supported for indexes."),
            )),
            ObjectKind::Sequence(_) => match self.binder.system.sequence(o) {
                Some(provider) if self.mode != Mode::Streaming => Ok(provider_as_source(provider)),
                _ => Err(external(PlanError::unsupported(format!(
                    "reading sequence \"{}\" here is not supported",
                    o.name
                )))),
            },
            ObjectKind::Sink(_) => Err(external(PlanError::new(
                "42809",
                format!("cannot read from sink \"{}\"", o.name),
            ))),
            ObjectKind::View(v) => {
                if self.depth >= VIEW_DEPTH_MAX {
                    return Err(external(PlanError::new("54001", "views are nested too deeply")));
                }
                let plan = self
                    .binder
                    .view_plan(o, v, self.state, self.mode, self.depth + 1)
                    .map_err(|mut e| {
                        e.position = None;
                        external(e)
                    })?;
                Ok(Arc::new(ViewSource {
                    schema: Arc::clone(&v.schema),
                    plan,
                }))
            }
            _ => Ok(Arc::new(CatalogTable {
                id: o.id,
                schema: Arc::clone(o.schema()),
            })),
        }
    }
}

impl ContextProvider for Provider<'_> {
    fn get_table_source(&self, name: TableReference) -> DfResult<Arc<dyn TableSource>> {
        let (schema, table) = (name.schema().map(str::to_owned), name.table().to_owned());
        let reference = |r: &&Reference| r.schema == schema && r.name == table;
        if let Some(r) = self.references.and_then(|known| known.iter().find(reference)) {
            return self.referenced(r);
        }
        let found = self.lookup(schema.as_deref(), &table);
        if let Found::User(o) = found {
            let mut named = self.named.borrow_mut();
            if !named.iter().any(|r| reference(&r)) {
                named.push(Binder::reference(schema.as_deref(), &table, o));
            }
            return self.object(o);
        }
        if let Found::System(provider) = found {
            if self.mode == Mode::Streaming {
                return Err(external(
                    PlanError::unsupported(format!(
                        "system relation \"{table}\" in a materialized view or sink is not supported"
                    ))
                    .hint("Query it directly, or create a plain view."),
                ));
            }
            return Ok(provider_as_source(provider));
        }
        let shown = match schema {
            Some(s) => format!("{s}.{table}"),
            None => table,
        };
        Err(external(PlanError::new(
            "42P01",
            format!("relation \"{shown}\" does not exist"),
        )))
    }

    fn get_table_function_source(&self, name: &str, args: Vec<Expr>) -> DfResult<Arc<dyn TableSource>> {
        let function = if name == "pg_series" { "generate_series" } else { name };
        let Some(f) = self.state.table_functions().get(function) else {
            return Err(external(PlanError::new(
                "42883",
                format!("function {name} does not exist"),
            )));
        };
        if self.mode == Mode::Streaming {
            return Err(external(PlanError::unsupported(format!(
                "{function} in FROM of a materialized view or sink is not supported"
            ))));
        }
        let args = args.into_iter().map(series_argument).collect::<DfResult<Vec<_>>>()?;
        let provider = f
            .function()
            .call_with_args(datafusion::catalog::TableFunctionArgs::new(&args, self.state))?;
        Ok(provider_as_source(provider))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        &self.relations
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(PgTypes))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        if name.starts_with("pg_") {
            // Only the server's own and those that stand for syntax have names of this form.
            let internal = super::typing::is_syntax(name);
            return self
                .binder
                .extra_udfs
                .iter()
                .find(|f| f.name() == name || f.aliases().iter().any(|a| a == name))
                .cloned()
                .or_else(|| internal.then(|| super::functions::scalar(name)).flatten());
        }
        self.state.scalar_functions().get(name).cloned()
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.state.aggregate_functions().get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, names: &[String]) -> Option<DataType> {
        let now = self.mode == Mode::Streaming && names.len() == 1 && names[0] == super::NOW;
        now.then(super::types::timestamptz)
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.state.scalar_functions().keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.state.aggregate_functions().keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.state.window_functions().keys().cloned().collect()
    }
}

/// `generate_series` takes bigint constants.
fn series_argument(e: Expr) -> DfResult<Expr> {
    let schema = datafusion::common::DFSchema::empty();
    let e = super::typing::type_expr(e, &schema)?;
    match e {
        Expr::Literal(v, m) if v.data_type().is_integer() => Ok(Expr::Literal(v.cast_to(&DataType::Int64)?, m)),
        Expr::Literal(..) => Ok(e),
        _ => Err(external(
            PlanError::unsupported("generate_series of other than constants is not supported")
                .hint("Give the bounds as literals."),
        )),
    }
}

/// SQL types, in PostgreSQL's meaning.
#[derive(Debug)]
struct PgTypes;

impl TypePlanner for PgTypes {
    fn plan_type_field(&self, t: &ast::DataType) -> DfResult<Option<FieldRef>> {
        super::types::field_of(t).map(Some).map_err(external)
    }
}

/// What a name means.
enum Found<'a> {
    User(&'a Arc<CatalogObject>),
    System(Arc<dyn TableProvider>),
    Nothing,
}

/// A plain view: its plan stands in its place.
struct ViewSource {
    schema: SchemaRef,
    plan: LogicalPlan,
}

impl fmt::Debug for ViewSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ViewSource")
    }
}

impl TableSource for ViewSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        Some(Cow::Borrowed(&self.plan))
    }
}

impl TableSource for CatalogTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
