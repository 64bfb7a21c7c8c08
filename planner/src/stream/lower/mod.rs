//! Optimised logical plan → [`Rel`]: one arm per logical node.
//!
//! The columns of a lowered relation are those of its logical node, in order; names inside a plan carry no meaning.
//! Types are the logical plan's. Order is kept only by LIMIT: a stored view has none.

mod aggregate;
mod grouping;
mod join;
mod leaf;
mod order;
mod temporal;
mod window;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan};
use datafusion::physical_expr::expressions::CastExpr;

use super::expr;
use super::refuse::sql_text;
use super::rel::{Phys, Rel};
use crate::catalog::Catalog;
use crate::{PlanError, Result};

/// Lowers plans against one catalog.
pub(super) struct Lowering<'a> {
    pub catalog: &'a Catalog,
}

impl Lowering<'_> {
    /// Lowers a plan that [`super::optimize`] made.
    ///
    /// # Errors
    /// 0A000 for what has no incremental operator.
    pub fn lower(&self, plan: &LogicalPlan) -> Result<Rel> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::EmptyRelation(empty) => leaf::empty(empty),
            LogicalPlan::Values(values) => leaf::values(values),
            LogicalPlan::SubqueryAlias(alias) => self.lower(&alias.input),
            LogicalPlan::Projection(projection) => {
                if let LogicalPlan::EmptyRelation(empty) = projection.input.as_ref()
                    && empty.produce_one_row
                    && let Some(row) = leaf::constant_row(&projection.expr, &arrow_schema(&projection.schema))?
                {
                    return Ok(row);
                }
                let input = self.lower(&projection.input)?;
                let exprs = compile_all(&projection.expr, projection.input.schema())?;
                project(input, exprs, &arrow_schema(&projection.schema))
            }
            LogicalPlan::Filter(filter) => {
                let input = self.lower(&filter.input)?;
                self.filtered(input, &filter.predicate, filter.input.schema())
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let input = self.lower(input)?;
                let (columns, schema) = ((0..input.width()).collect(), Arc::clone(&input.schema));
                Ok(input.aggregate(columns, Vec::new(), schema))
            }
            LogicalPlan::Distinct(Distinct::On(_)) => Err(PlanError::internal("DISTINCT ON was not rewritten")),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(union) => {
                let inputs = union.inputs.iter().map(|i| self.lower(i)).collect::<Result<Vec<_>>>()?;
                unite(inputs, &arrow_schema(&union.schema))
            }
            LogicalPlan::Window(window) => self.window(window),
            LogicalPlan::Limit(limit) => self.limit(limit),
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.lower(&sort.input),
            LogicalPlan::Sort(sort) => self.sorted_limit(&sort.input, &sort.expr, sort.fetch.map(|n| n as u64), 0),
            LogicalPlan::Subquery(subquery) => self.lower(&subquery.subquery),
            LogicalPlan::Unnest(unnest) => {
                let single = unnest.list_type_columns.iter().all(|(_, list)| list.depth == 1);
                if !unnest.struct_type_columns.is_empty() || !single {
                    return Err(unsupported("unnest of records or of arrays of arrays"));
                }
                let columns = unnest.list_type_columns.iter().map(|(c, _)| *c).collect();
                let input = self.lower(&unnest.input)?;
                Ok(input.unnest(
                    columns,
                    unnest.options.expand_empty_as_null(),
                    arrow_schema(&unnest.schema),
                ))
            }
            LogicalPlan::RecursiveQuery(_) => Err(unsupported("WITH RECURSIVE")),
            other => Err(unsupported(&format!("{}", other.display()))),
        }
    }
}

/// 0A000 in the usual form.
fn unsupported(what: &str) -> PlanError {
    PlanError::unsupported(format!("{what} is not supported in a materialized view"))
}

/// A logical node's columns.
fn arrow_schema(schema: &DFSchema) -> SchemaRef {
    Arc::new(schema.as_arrow().clone())
}

/// [`expr::compile`], where the time has no place.
fn compile(expr: &Expr, input: &DFSchema) -> Result<Phys> {
    if temporal::mentions_now(expr) {
        return Err(temporal::refused(expr));
    }
    expr::compile(expr, input)
}

fn compile_all(exprs: &[Expr], input: &DFSchema) -> Result<Vec<Phys>> {
    exprs.iter().map(|e| compile(e, input)).collect()
}

/// Projects to `schema`, after making sure that each expression has the declared type.
fn project(input: Rel, exprs: Vec<Phys>, schema: &Schema) -> Result<Rel> {
    let mut typed = Vec::with_capacity(exprs.len());
    for (expr, field) in exprs.into_iter().zip(schema.fields()) {
        let actual = expr
            .data_type(&input.schema)
            .map_err(|e| PlanError::internal(e.to_string()))?;
        if &actual == field.data_type() {
            typed.push(expr);
        } else {
            typed.push(Arc::new(CastExpr::new(expr, field.data_type().clone(), None)) as Phys);
        }
    }
    if typed.len() != schema.fields().len() {
        return Err(PlanError::internal(
            "a projection's expressions do not match its schema",
        ));
    }
    Ok(input.project(typed, Arc::new(schema.clone())))
}

/// UNION ALL with the columns of `schema`.
fn unite(inputs: Vec<Rel>, schema: &Schema) -> Result<Rel> {
    let inputs: Vec<Rel> = inputs
        .into_iter()
        .map(|input| {
            let same = input
                .schema
                .fields()
                .iter()
                .map(|f| f.data_type())
                .eq(schema.fields().iter().map(|f| f.data_type()));
            if same {
                return Ok(input);
            }
            let columns = input.columns();
            project(input, columns, schema)
        })
        .collect::<Result<_>>()?;
    let fields = schema.fields().iter().enumerate().map(|(i, f)| {
        let nullable = inputs.iter().any(|input| input.schema.field(i).is_nullable());
        f.as_ref().clone().with_nullable(nullable)
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    Ok(Rel::union(inputs, schema))
}

/// Appends what is not yet a plain column of `input`; returns where each expression stands.
fn with_columns(input: Rel, exprs: &[Phys]) -> Result<(Rel, Vec<usize>)> {
    let mut all = input.columns();
    let width = all.len();
    let places: Vec<usize> = exprs.iter().map(|e| place_of(&mut all, e)).collect();
    if all.len() == width {
        return Ok((input, places));
    }
    let mut fields: Vec<_> = input.schema.fields().iter().cloned().collect();
    for expr in &all[width..] {
        fields.push(field_of(expr, &input.schema)?);
    }
    Ok((input.project(all, Arc::new(Schema::new(fields))), places))
}

/// The index of `expr` in `list`, appended if it is new.
fn place_of(list: &mut Vec<Phys>, expr: &Phys) -> usize {
    list.iter().position(|e| e == expr).unwrap_or_else(|| {
        list.push(Arc::clone(expr));
        list.len() - 1
    })
}

/// A field for an unnamed expression.
fn field_of(expr: &Phys, input: &Schema) -> Result<arrow::datatypes::FieldRef> {
    let data_type = expr.data_type(input).map_err(|e| PlanError::internal(e.to_string()))?;
    Ok(Arc::new(arrow::datatypes::Field::new(
        super::render::sql(expr),
        data_type,
        true,
    )))
}

/// For messages.
fn name_of(expr: &Expr) -> String {
    sql_text(&expr.clone().unalias_nested().data)
}
