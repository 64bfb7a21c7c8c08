//! Expressions over the rows that a write makes: RETURNING, ON CONFLICT … DO UPDATE, COPY … WHERE.
//!
//! A write runs in two stages. The first is a query that yields its rows; the server checks them, finds out which of them conflict,
//! and then knows the rows as stored. Expressions over those are the second stage: a projection of a scan whose data is not in the
//! catalog but handed in by the server under an id of its own ([`CHANGED`]). Columns of the scan go by position; a projection above
//! it gives them the names and qualifiers that the statement uses.
//!
//! ```text
//!   Projection  a + 1 AS "?column?", u.x          what the client sees
//!     Projection  c0 AS t.a, c1 AS t.b, c2 AS u.x   names
//!       Scan  changed(c0, c1, c2)                     rows as stored, then columns of other tables
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableSource};
use sqlparser::ast::{self, SelectItem, SelectItemQualifiedWildcardKind};

use super::bind::ExprBinder;
use super::errors::map_df_error;
use super::ext::{fold, object_name};
use super::names::{MARK, column_name};
use super::typing::typed;
use super::{Binder, CatalogTable, Query, operators};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// The relation that stands for the rows of the running write; no object of the catalog has this id.
pub const CHANGED: ObjectId = ObjectId(1);

/// A column with its qualifier.
pub(super) type Qualified = (Option<TableReference>, FieldRef);

/// The columns of a table under a name.
pub(super) fn qualified(name: &str, schema: &Schema) -> Vec<Qualified> {
    schema
        .fields()
        .iter()
        .map(|f| {
            let field = Arc::new(f.as_ref().clone().with_nullable(true));
            (Some(TableReference::bare(name)), field)
        })
        .collect()
}

/// The schema of a scan of such columns, as the server must supply it: `c0, c1, …`, all nullable.
pub fn changed_schema<'a>(fields: impl Iterator<Item = &'a FieldRef>) -> SchemaRef {
    let fields: Vec<Field> = fields
        .enumerate()
        .map(|(i, f)| f.as_ref().clone().with_name(format!("c{i}")).with_nullable(true))
        .collect();
    Arc::new(Schema::new(fields))
}

/// A scan of the rows under the names that the statement uses.
pub(super) fn scan(columns: &[Qualified]) -> Result<LogicalPlan> {
    let schema = changed_schema(columns.iter().map(|(_, f)| f));
    let source: Arc<dyn TableSource> = Arc::new(CatalogTable { id: CHANGED, schema });
    let exprs: Vec<Expr> = columns
        .iter()
        .enumerate()
        .map(|(i, (qualifier, f))| {
            let column = Expr::Column(Column::new(Some("changed"), format!("c{i}")));
            column.alias_qualified(qualifier.clone(), f.name())
        })
        .collect();
    LogicalPlanBuilder::scan("changed", source, None)
        .and_then(|b| b.project(exprs))
        .and_then(LogicalPlanBuilder::build)
        .map_err(map_df_error)
}

/// The columns as binding wants them.
pub(super) fn columns_schema(columns: &[Qualified]) -> Result<DFSchema> {
    DFSchema::new_with_metadata(columns.to_vec(), HashMap::new()).map_err(map_df_error)
}

/// Aggregates and window functions have no place in `clause`.
pub(super) fn refuse_aggregates(e: &Expr, clause: &str) -> Result<()> {
    let mut found = None;
    e.apply(|e| {
        match e {
            Expr::AggregateFunction(_) => {
                found = Some(("42803", format!("aggregate functions are not allowed in {clause}")));
            }
            Expr::WindowFunction(_) => {
                found = Some(("42P20", format!("window functions are not allowed in {clause}")));
            }
            _ => return Ok(TreeNodeRecursion::Continue),
        }
        Ok(TreeNodeRecursion::Stop)
    })
    .map_err(map_df_error)?;
    match found {
        Some((code, message)) => Err(PlanError::new(code, message)),
        None => Ok(()),
    }
}

impl Binder {
    /// RETURNING over `columns`.
    pub(super) fn returning(
        &self,
        items: &[SelectItem],
        columns: &[Qualified],
        params: &[Option<DataType>],
    ) -> Result<Query> {
        let schema = columns_schema(columns)?;
        let binder = ExprBinder::new(self, params);
        let mut exprs: Vec<Expr> = Vec::new();
        for item in items {
            let (e, name) = match item {
                SelectItem::Wildcard(_) => {
                    let all = columns.iter().filter(|(_, f)| !f.name().contains(MARK));
                    exprs.extend(all.map(|(q, f)| Expr::Column(Column::new(q.clone(), f.name()))));
                    continue;
                }
                SelectItem::QualifiedWildcard(kind, _) => {
                    exprs.extend(qualified_wildcard(kind, columns)?);
                    continue;
                }
                SelectItem::UnnamedExpr(e) => (e, column_name(e)),
                SelectItem::ExprWithAlias { expr, alias } => (expr, fold(alias)),
                other => return Err(PlanError::new("42601", format!("syntax error at or near \"{other}\""))),
            };
            let bound = binder.bind(e, &schema)?;
            refuse_aggregates(&bound, "RETURNING")?;
            let t = typed(bound, &schema).map_err(map_df_error)?;
            let ty = t.ty.clone().unwrap_or(DataType::Utf8);
            exprs.push(operators::coerce(t, &ty)?.alias(name));
        }
        // Two columns of a projection cannot share a name: what follows the mark is never shown.
        let exprs: Vec<Expr> = exprs
            .into_iter()
            .enumerate()
            .map(|(i, e)| {
                let (inner, name) = match e {
                    Expr::Alias(a) => (*a.expr, a.name),
                    Expr::Column(c) => {
                        let name = c.name.clone();
                        (Expr::Column(c), name)
                    }
                    other => (other, "?column?".to_owned()),
                };
                inner.alias(format!("{name}{MARK}{i}"))
            })
            .collect();
        self.project_changed(columns, exprs, params)
    }

    /// `exprs` over the rows handed in.
    pub(super) fn project_changed(
        &self,
        columns: &[Qualified],
        exprs: Vec<Expr>,
        params: &[Option<DataType>],
    ) -> Result<Query> {
        let plan = LogicalPlanBuilder::from(scan(columns)?)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(map_df_error)?;
        let mut query = self.query_of(super::bind::settled(plan)?, params)?;
        query.reads.retain(|id| *id != CHANGED);
        Ok(query)
    }
}

fn qualified_wildcard(kind: &SelectItemQualifiedWildcardKind, columns: &[Qualified]) -> Result<Vec<Expr>> {
    let SelectItemQualifiedWildcardKind::ObjectName(name) = kind else {
        return Err(PlanError::unsupported("fields of a record are not supported"));
    };
    let (_, table) = object_name(name)?;
    let found: Vec<Expr> = columns
        .iter()
        .filter(|(q, f)| q.as_ref().is_some_and(|q| q.table() == table) && !f.name().contains(MARK))
        .map(|(q, f)| Expr::Column(Column::new(q.clone(), f.name())))
        .collect();
    if found.is_empty() {
        return Err(PlanError::new(
            "42P01",
            format!("missing FROM-clause entry for table \"{table}\""),
        ));
    }
    Ok(found)
}

/// An identifier in its stored case.
pub(super) fn quoted(name: &str) -> ast::Ident {
    ast::Ident::with_quote('"', name)
}
