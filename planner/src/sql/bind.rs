//! Binding queries: syntax tree → logical plan with PostgreSQL's names and types.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::datasource::provider_as_source;
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, Volatility};
use datafusion::sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use sqlparser::ast;

use super::errors::{locate, map_df_error};
use super::places::Places;
use super::provider::Provider;
use super::rewrite::{self, Mode};
use super::{Binder, CatalogTable, Query, merged, names, scopes, types};
use crate::catalog::{CatalogObject, Reference, ViewDef};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// A planned query with what the statement named.
pub(super) struct Bound {
    pub plan: LogicalPlan,
    /// Output columns with PostgreSQL's names.
    pub schema: SchemaRef,
    /// Objects that the text itself names.
    pub used: Vec<ObjectId>,
    /// How it names them.
    pub references: Vec<Reference>,
}

impl Binder {
    /// The mode of a statement that runs once.
    pub(super) fn batch(&self) -> Mode {
        Mode::Batch {
            now_us: self.settings.now_us,
        }
    }

    /// Binds a query. `text` serves error positions.
    pub(super) fn bind_query(
        &self,
        q: &ast::Query,
        text: &str,
        mode: Mode,
        params: &[Option<DataType>],
    ) -> Result<Bound> {
        let state = self.session_state();
        Places::new(self, text).query(q)?;
        self.plan_query(q, &state, mode, 0, params, None)
            .map_err(|e| locate(e, text))
    }

    /// The plan of a plain view's text, its columns renamed to the view's.
    pub(super) fn view_plan(
        &self,
        object: &CatalogObject,
        view: &ViewDef,
        state: &SessionState,
        mode: Mode,
        depth: usize,
    ) -> Result<LogicalPlan> {
        let q = super::parse::parse_query(&view.sql)?;
        let bound = self.plan_query(&q, state, mode, depth, &[], Some(&object.references))?;
        let names: Vec<String> = view.schema.fields().iter().map(|f| f.name().clone()).collect();
        rename(bound.plan, &names)
    }

    fn plan_query(
        &self,
        q: &ast::Query,
        state: &SessionState,
        mode: Mode,
        depth: usize,
        params: &[Option<DataType>],
        references: Option<&[Reference]>,
    ) -> Result<Bound> {
        let mut rewritten = q.clone();
        if merged::any(q) {
            let mut columns = |q: &ast::Query| {
                let bound = self.plan_query(q, state, mode, depth, params, references)?;
                let fields = bound.schema.fields().iter();
                Ok(fields.map(|f| (f.name().clone(), f.data_type().clone())).collect())
            };
            merged::settle(&mut rewritten, &mut columns)?;
        }
        rewrite::query(&mut rewritten, mode)?;
        let mut apart = BTreeSet::new();
        let (provider, plan) = loop {
            let mut q = rewritten.clone();
            if !apart.is_empty() {
                scopes::set_apart(&mut q, &apart);
            }
            let provider = match references {
                None => Provider::new(self, state, mode, depth),
                Some(known) => Provider::new(self, state, mode, depth).with_references(known),
            };
            let planner = SqlToRel::new_with_options(&provider, parser_options());
            let statement = ast::Statement::Query(Box::new(q));
            match planner.sql_statement_to_plan_with_context(statement, &mut planner_context(params)) {
                Ok(plan) => break (provider, plan),
                Err(e) => {
                    let error = map_df_error(e);
                    let known = apart.len();
                    apart.extend(provider.shadows.names(&error));
                    if apart.len() == known {
                        return Err(scopes::shown_error(error));
                    }
                }
            }
        };
        let plan = steady_sorts(plan)?;
        refuse_windows(&plan)?;
        let plan = self.settle_ties(plan)?;
        let plan = super::unions::settle(plan).map_err(map_df_error)?;
        let plan = super::subqueries::settle(plan).map_err(map_df_error)?;
        let plan = type_placeholders(plan)?;
        refuse_records(&plan)?;
        refuse_json_keys(&plan)?;
        let plan = canonical_output(plan)?;
        if mode == Mode::Streaming {
            refuse_volatile(&plan)?;
        }
        let schema = output_schema(&plan);
        let used = provider.used.borrow().iter().copied().collect();
        let references = provider.named.take();
        Ok(Bound {
            plan,
            schema,
            used,
            references,
        })
    }

    /// A query as the server sees it.
    pub(super) fn query_of(&self, bound: Bound, declared: &[Option<DataType>]) -> Result<Query> {
        let params = param_types(&bound.plan, declared)?;
        let samples = super::samples::of(&bound.plan, &self.catalog)?;
        let mut reads = relations_read(&bound.plan)?;
        reads.retain(|id| !samples.iter().any(|(s, _)| s == id));
        Ok(Query {
            reads: reads.into_iter().collect(),
            samples,
            schema: bound.schema,
            params,
            plan: bound.plan,
        })
    }

    /// An expression over the columns of `schema`, typed.
    pub(super) fn bind_expr(
        &self,
        e: &ast::Expr,
        schema: &datafusion::common::DFSchema,
        mode: Mode,
        params: &[Option<DataType>],
    ) -> Result<Expr> {
        let mut e = e.clone();
        rewrite::expr(&mut e, mode)?;
        let state = self.session_state();
        let provider = Provider::new(self, &state, mode, 0);
        let planner = SqlToRel::new_with_options(&provider, parser_options());
        planner
            .sql_to_expr(e, schema, &mut planner_context(params))
            .map_err(map_df_error)
    }

    /// Puts data in the place of the catalog's relations.
    ///
    /// # Errors
    /// XX000 when a relation that the plan reads has no provider.
    pub fn with_providers(
        plan: LogicalPlan,
        providers: &HashMap<ObjectId, Arc<dyn TableProvider>>,
    ) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let LogicalPlan::TableScan(mut scan) = node else {
                return Ok(Transformed::no(node));
            };
            let Some(table) = scan.source.downcast_ref::<CatalogTable>() else {
                return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
            };
            let provider = providers.get(&table.id).ok_or_else(|| {
                super::functions::external(PlanError::internal(format!("no data given for relation {}", table.id)))
            })?;
            scan.source = provider_as_source(Arc::clone(provider));
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        })
        .map(|t| t.data)
        .map_err(map_df_error)
    }
}

/// A plan that was put together here, with its parameters and result columns settled as a parsed query's are.
pub(super) fn settled(plan: LogicalPlan) -> Result<Bound> {
    let plan = type_placeholders(plan)?;
    refuse_records(&plan)?;
    let plan = canonical_output(plan)?;
    let schema = output_schema(&plan);
    Ok(Bound {
        plan,
        schema,
        used: Vec::new(),
        references: Vec::new(),
    })
}

fn parser_options() -> ParserOptions {
    ParserOptions::new()
        .with_parse_float_as_decimal(true)
        .with_map_string_types_to_utf8view(false)
        .with_collect_spans(false)
}

fn planner_context(params: &[Option<DataType>]) -> PlannerContext {
    let fields = params
        .iter()
        .map(|t| t.as_ref().map(|t| Arc::new(Field::new("", t.clone(), true))))
        .collect();
    PlannerContext::new().with_prepare_param_data_types(fields)
}

/// Parameters in the order of their numbers.
fn placeholders(plan: &LogicalPlan) -> Result<HashMap<String, Option<DataType>>> {
    let mut found: HashMap<String, Option<DataType>> = HashMap::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            e.apply(|e| {
                if let Expr::Placeholder(p) = e {
                    let t = p.field.as_ref().map(|f| f.data_type().clone());
                    let known = found.entry(p.id.clone()).or_default();
                    if known.is_none() {
                        *known = t;
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(map_df_error)?;
    Ok(found)
}

/// Gives every use of a parameter the type that one of its uses settled; text if none did.
fn type_placeholders(plan: LogicalPlan) -> Result<LogicalPlan> {
    let known = placeholders(&plan)?;
    if known.is_empty() {
        return Ok(plan);
    }
    plan.transform_up_with_subqueries(|node| {
        let node = node.map_expressions(|e| {
            e.transform_up(|e| match e {
                Expr::Placeholder(p) if p.field.is_none() => {
                    let t = known.get(&p.id).cloned().flatten().unwrap_or(DataType::Utf8);
                    let field = Arc::new(Field::new("", t, true));
                    Ok(Transformed::yes(Expr::Placeholder(Placeholder::new_with_field(
                        p.id,
                        Some(field),
                    ))))
                }
                other => Ok(Transformed::no(other)),
            })
        })?;
        if node.transformed {
            node.map_data(LogicalPlan::recompute_schema)
        } else {
            Ok(node)
        }
    })
    .map(|t| t.data)
    .map_err(map_df_error)
}

/// Types of `$1..$n`.
fn param_types(plan: &LogicalPlan, declared: &[Option<DataType>]) -> Result<Vec<DataType>> {
    let found = placeholders(plan)?;
    let mut count = declared.len();
    for id in found.keys() {
        let n: usize = id
            .trim_start_matches('$')
            .parse()
            .map_err(|_| PlanError::new("42P02", format!("there is no parameter {id}")))?;
        count = count.max(n);
    }
    if count > 65_535 {
        return Err(PlanError::new("54000", "too many parameters"));
    }
    (1..=count)
        .map(|n| {
            let given = declared.get(n - 1).cloned().flatten();
            let inferred = found.get(&format!("${n}")).cloned().flatten();
            given
                .or(inferred)
                .ok_or_else(|| PlanError::new("42P18", format!("could not determine data type of parameter ${n}")))
        })
        .collect()
}

/// Puts values in the place of `$1..`.
///
/// # Errors
/// 08P01 when there are fewer values than parameters.
pub fn bind_params(plan: LogicalPlan, values: &[ScalarValue]) -> Result<LogicalPlan> {
    if values.is_empty() {
        return Ok(plan);
    }
    let values = ParamValues::from(values.to_vec());
    plan.replace_params_with_values(&values).map_err(map_df_error)
}

/// ORDER BY of columns that are not selected makes DataFusion append them to the projection below the sort, in the order of a hash
/// set. Here they get the order of their names, so that a statement always has the same plan.
fn steady_sorts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let steady = |node: LogicalPlan| {
        let LogicalPlan::Projection(outer) = &node else {
            return Ok(Transformed::no(node));
        };
        let LogicalPlan::Sort(sort) = outer.input.as_ref() else {
            return Ok(Transformed::no(node));
        };
        let LogicalPlan::Projection(inner) = sort.input.as_ref() else {
            return Ok(Transformed::no(node));
        };
        let mut exprs = inner.expr.clone();
        match exprs.get_mut(outer.expr.len()..) {
            Some(appended) if appended.len() > 1 => appended.sort_by_key(|e| e.schema_name().to_string()),
            _ => return Ok(Transformed::no(node)),
        }
        let inner = Projection::try_new(exprs, Arc::clone(&inner.input))?;
        let mut sort = sort.clone();
        sort.input = Arc::new(LogicalPlan::Projection(inner));
        let outer = Projection::try_new(outer.expr.clone(), Arc::new(LogicalPlan::Sort(sort)))?;
        Ok(Transformed::yes(LogicalPlan::Projection(outer)))
    };
    plan.transform_up_with_subqueries(steady)
        .map(|t| t.data)
        .map_err(map_df_error)
}

/// Window functions see the rows that WHERE, GROUP BY and HAVING have left.
fn refuse_windows(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        let (clause, exprs) = match node {
            LogicalPlan::Filter(filter) => {
                let grouped = matches!(filter.input.as_ref(), LogicalPlan::Aggregate(_));
                (if grouped { "HAVING" } else { "WHERE" }, vec![&filter.predicate])
            }
            LogicalPlan::Aggregate(aggregate) => ("GROUP BY", aggregate.group_expr.iter().collect()),
            LogicalPlan::Join(join) => ("JOIN conditions", join.filter.iter().collect()),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        for expr in exprs {
            if expr.exists(|e| Ok(matches!(e, Expr::WindowFunction(_))))? {
                found = Some(clause);
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(map_df_error)?;
    match found {
        Some(clause) => Err(
            PlanError::new("42P20", format!("window functions are not allowed in {clause}"))
                .hint("Compute the window function in a subquery and filter its result."),
        ),
        None => Ok(()),
    }
}

/// Records, arrays of arrays and arrays of no known type cannot be results.
fn refuse_records(plan: &LogicalPlan) -> Result<()> {
    for f in plan.schema().fields() {
        match types::item_of(f.data_type()) {
            Some(DataType::Null) => {
                return Err(PlanError::new("42P18", "cannot determine type of empty array")
                    .hint("Explicitly cast to the desired type, for example ARRAY[]::integer[]."));
            }
            Some(item) if item.is_nested() => return Err(super::array_text::several_dimensions()),
            None if f.data_type().is_nested() => {
                return Err(PlanError::unsupported(format!(
                    "column \"{}\" of a record type is not supported",
                    names::shown(f.name())
                ))
                .hint("Use jsonb_build_object, or a column for each field."));
            }
            _ => {}
        }
    }
    Ok(())
}

/// json is text with no order and no equality, so nothing can be grouped or sorted by it.
fn refuse_json_keys(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    let is_json = |t: &DataType| t == &types::JSON || types::item_of(t) == Some(&types::JSON);
    plan.apply_with_subqueries(|node| {
        let schema = node.inputs().first().map(|i| Arc::clone(i.schema()));
        let of_json = |e: &Expr| {
            schema
                .as_ref()
                .is_some_and(|s| e.get_type(s).is_ok_and(|t| is_json(&t)))
        };
        match node {
            LogicalPlan::Aggregate(a) if a.group_expr.iter().any(of_json) => found = Some("an equality"),
            LogicalPlan::Distinct(_) if node.schema().fields().iter().any(|f| is_json(f.data_type())) => {
                found = Some("an equality");
            }
            LogicalPlan::Sort(s) if s.expr.iter().any(|k| of_json(&k.expr)) => found = Some("an ordering"),
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(map_df_error)?;
    match found {
        Some(kind) => Err(
            PlanError::new("42883", format!("could not identify {kind} operator for type json"))
                .hint("Cast it to jsonb."),
        ),
        None => Ok(()),
    }
}

/// Makes every output column one of the wire's types.
fn canonical_output(plan: LogicalPlan) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let needed = schema
        .fields()
        .iter()
        .any(|f| !f.data_type().is_nested() && &types::canonical(f.data_type()) != f.data_type());
    if !needed {
        return Ok(plan);
    }
    let exprs: Vec<Expr> = schema
        .iter()
        .map(|(qualifier, f)| {
            let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), f.name()));
            let t = types::canonical(f.data_type());
            if f.data_type().is_nested() || &t == f.data_type() {
                return column;
            }
            Expr::Cast(Cast::new(Box::new(column), t)).alias_qualified(qualifier.cloned(), f.name())
        })
        .collect();
    LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(map_df_error)
}

/// The result's columns: shown names, types, nullability and PostgreSQL metadata.
fn output_schema(plan: &LogicalPlan) -> SchemaRef {
    let fields: Vec<Field> = plan
        .schema()
        .fields()
        .iter()
        .map(|f| f.as_ref().clone().with_name(names::shown(f.name())))
        .collect();
    Arc::new(Schema::new(fields))
}

/// Renames a plan's columns; the names must differ.
pub(super) fn rename(plan: LogicalPlan, names: &[String]) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let exprs: Vec<Expr> = schema
        .iter()
        .zip(names)
        .map(|((qualifier, f), n)| Expr::Column(datafusion::common::Column::new(qualifier.cloned(), f.name())).alias(n))
        .collect();
    LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(map_df_error)
}

/// Tables and materialized views that a plan scans.
pub(super) fn relations_read(plan: &LogicalPlan) -> Result<BTreeSet<ObjectId>> {
    let mut ids = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(table) = scan.source.downcast_ref::<CatalogTable>()
        {
            ids.insert(table.id);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(map_df_error)?;
    Ok(ids)
}

/// A retraction would compute another value than the insertion did.
fn refuse_volatile(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            e.apply(|e| {
                if let Expr::ScalarFunction(f) = e
                    && f.func.signature().volatility != Volatility::Immutable
                {
                    found = Some(f.func.name().to_owned());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(map_df_error)?;
    match found {
        Some(name) => Err(
            PlanError::unsupported(format!("{name}() in a materialized view or sink is not supported"))
                .detail("a row's value must be the same whenever it is computed")
                .hint("Compute it when the row is written and store it in a column."),
        ),
        None => Ok(()),
    }
}

/// Name of a parameter in the plan, if it has one.
pub(super) fn first_parameter(plan: &LogicalPlan) -> Result<Option<String>> {
    Ok(placeholders(plan)?.into_keys().min())
}

/// Folds constants.
pub(super) fn simplify(e: Expr) -> Result<Expr> {
    let context = datafusion::logical_expr::simplify::SimplifyContext::default();
    datafusion::optimizer::simplify_expressions::ExprSimplifier::new(context)
        .simplify(e)
        .map_err(map_df_error)
}

/// Binds many expressions with one session state, as a long VALUES needs.
pub(super) struct ExprBinder<'a> {
    binder: &'a Binder,
    state: SessionState,
    params: &'a [Option<DataType>],
}

impl<'a> ExprBinder<'a> {
    /// For one statement.
    pub fn new(binder: &'a Binder, params: &'a [Option<DataType>]) -> Self {
        Self {
            binder,
            state: binder.session_state(),
            params,
        }
    }

    /// As [`Binder::bind_expr`], for a statement that runs once.
    pub fn bind(&self, e: &ast::Expr, schema: &datafusion::common::DFSchema) -> Result<Expr> {
        let mode = self.binder.batch();
        let mut e = e.clone();
        rewrite::expr(&mut e, mode)?;
        let provider = Provider::new(self.binder, &self.state, mode, 0);
        let planner = SqlToRel::new_with_options(&provider, parser_options());
        planner
            .sql_to_expr(e, schema, &mut planner_context(self.params))
            .map_err(map_df_error)
    }
}
