//! INSERT, UPDATE, DELETE and COPY: queries whose rows are the change.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Values};
use sqlparser::ast::{
    self, AssignmentTarget, FromTable, Ident, ObjectName, Query as SqlQuery, SelectItem, SetExpr, TableFactor,
    TableObject, TableWithJoins, Value,
};

use super::assign::{assign, mark_assign, plain_literal, untyped};
use super::ast::Copy;
use super::errors::{locate, map_df_error};
use super::ext::{fold, object_name};

use super::operators::Typed;
use super::typing::typed;
use super::{Binder, CopyFrom, Dml, DmlKind, Query, names};
use crate::catalog::{CatalogObject, ObjectKind, TableDef};
use crate::{PlanError, Result};

fn is_default(e: &ast::Expr) -> bool {
    matches!(e, ast::Expr::Identifier(i) if i.quote_style.is_none() && i.value.eq_ignore_ascii_case("default"))
}

fn returning_refused() -> PlanError {
    PlanError::unsupported("RETURNING is not supported").hint("SELECT the rows in the same transaction.")
}

impl Binder {
    /// The table that a statement writes to.
    pub(super) fn target_table(&self, name: &ObjectName, verb: &str) -> Result<(&CatalogObject, &TableDef)> {
        let (schema, table) = object_name(name)?;
        let missing = || {
            let shown = match &schema {
                Some(s) => format!("{s}.{table}"),
                None => table.clone(),
            };
            PlanError::new("42P01", format!("relation \"{shown}\" does not exist"))
        };
        let Some(object) = self.object(schema.as_deref(), &table) else {
            if schema.is_some() && self.system.table(schema.as_deref(), &table).is_some() {
                return Err(PlanError::new(
                    "42809",
                    format!("cannot {verb} system relation \"{table}\""),
                ));
            }
            return Err(missing());
        };
        match &object.kind {
            ObjectKind::Table(def) => Ok((object, def)),
            ObjectKind::View(_) => Err(PlanError::new("0A000", format!("cannot {verb} view \"{table}\""))
                .hint("Write to the table that the view reads.")),
            ObjectKind::MaterializedView(_) => Err(PlanError::new(
                "42809",
                format!("cannot change materialized view \"{table}\""),
            )
            .hint("Write to the tables that the view reads.")),
            _ => Err(
                PlanError::new("42809", format!("cannot {verb} {} \"{table}\"", object.kind_name()))
                    .hint("Only tables take writes."),
            ),
        }
    }

    /// INSERT.
    pub(super) fn insert(&self, i: &ast::Insert, text: &str, params: &[Option<DataType>]) -> Result<Dml> {
        if i.on.is_some() {
            return Err(PlanError::unsupported("ON CONFLICT is not supported")
                .hint("Use UPDATE and INSERT … WHERE NOT EXISTS in one transaction."));
        }
        if i.returning.is_some() {
            return Err(returning_refused());
        }
        if i.or.is_some() || i.overwrite || i.replace_into || !i.assignments.is_empty() {
            return Err(PlanError::new("42601", "syntax error in INSERT"));
        }
        let TableObject::TableName(name) = &i.table else {
            return Err(PlanError::new("42601", "INSERT needs a table name"));
        };
        let (object, table) = self.target_table(name, "insert into").map_err(|e| locate(e, text))?;
        let columns = i
            .columns
            .iter()
            .map(|c| object_name(c).map(|(_, n)| n))
            .collect::<Result<Vec<_>>>()?;
        let targets = target_columns(object, table, &columns).map_err(|e| locate(e, text))?;
        let plan = match &i.source {
            None => self.insert_values(table, &[], &[Vec::new()], columns.is_empty(), params)?,
            Some(q) => match plain_values(q) {
                Some(rows) => self
                    .insert_values(table, &targets, &rows, columns.is_empty(), params)
                    .map_err(|e| locate(e, text))?,
                None => self.insert_query(table, &targets, q, text, columns.is_empty(), params)?,
            },
        };
        self.dml(object, DmlKind::Insert, plan, Arc::clone(&table.schema), params)
    }

    fn dml(
        &self,
        object: &CatalogObject,
        kind: DmlKind,
        plan: LogicalPlan,
        schema: SchemaRef,
        params: &[Option<DataType>],
    ) -> Result<Dml> {
        let bound = super::bind::Bound {
            plan,
            schema,
            used: Vec::new(),
            references: Vec::new(),
        };
        Ok(Dml {
            table: object.id,
            kind,
            query: self.query_of(bound, params)?,
        })
    }

    /// The value of a column that an INSERT does not name.
    pub(super) fn default_of(&self, table: &TableDef, column: usize) -> Result<Expr> {
        let field = table.schema.field(column);
        match table.defaults.get(column).and_then(Option::as_ref) {
            Some(text) => {
                let e = super::parse::parse_expr(text)?;
                let empty = DFSchema::empty();
                let bound = self.bind_expr(&e, &empty, self.batch(), &[])?;
                assign(typed(bound, &empty).map_err(map_df_error)?, field)
            }
            None => ScalarValue::try_from(field.data_type())
                .map(|v| Expr::Literal(v, None))
                .map_err(map_df_error),
        }
    }

    fn insert_values(
        &self,
        table: &TableDef,
        targets: &[usize],
        rows: &[Vec<ast::Expr>],
        all_columns: bool,
        params: &[Option<DataType>],
    ) -> Result<LogicalPlan> {
        let empty = DFSchema::empty();
        let defaults = (0..table.schema.fields().len())
            .map(|c| {
                if targets.contains(&c) {
                    Ok(None)
                } else {
                    self.default_of(table, c).map(Some)
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let mut values = Vec::with_capacity(rows.len());
        let binder = super::bind::ExprBinder::new(self, params);
        for row in rows {
            check_width(targets.len(), row.len(), all_columns || targets.is_empty())?;
            let mut out = defaults.clone();
            for (cell, column) in row.iter().zip(targets) {
                let field = table.schema.field(*column);
                let e = if is_default(cell) {
                    self.default_of(table, *column)?
                } else if let Some(v) = plain_literal(cell, field)? {
                    v
                } else {
                    let bound = binder.bind(cell, &empty)?;
                    assign(typed(bound, &empty).map_err(map_df_error)?, field)?
                };
                if let Some(slot) = out.get_mut(*column) {
                    *slot = Some(e);
                }
            }
            let full = out
                .into_iter()
                .enumerate()
                .map(|(c, e)| e.map_or_else(|| self.default_of(table, c), Ok))
                .collect::<Result<Vec<_>>>()?;
            values.push(full);
        }
        let schema = DFSchema::try_from(nullable(&table.schema)).map_err(map_df_error)?;
        Ok(LogicalPlan::Values(Values {
            schema: Arc::new(schema),
            values,
        }))
    }

    fn insert_query(
        &self,
        table: &TableDef,
        targets: &[usize],
        q: &SqlQuery,
        text: &str,
        all_columns: bool,
        params: &[Option<DataType>],
    ) -> Result<LogicalPlan> {
        let mut q = q.clone();
        mark_targets(&mut q.body, targets, table);
        let bound = self.bind_query(&q, text, self.batch(), params)?;
        let given = bound.plan.schema().fields().len();
        check_width(targets.len(), given, all_columns)?;
        let schema = Arc::clone(bound.plan.schema());
        let mut exprs = Vec::with_capacity(table.schema.fields().len());
        for (c, field) in table.schema.fields().iter().enumerate() {
            let e = match targets.iter().position(|t| *t == c).filter(|p| *p < given) {
                Some(p) => {
                    let (qualifier, f) = schema.qualified_field(p);
                    let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), f.name()));
                    assign(Typed::new(column, f.data_type().clone()), field)?
                }
                None => self.default_of(table, c)?,
            };
            exprs.push(e.alias(field.name()));
        }
        LogicalPlanBuilder::from(bound.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(map_df_error)
    }

    /// UPDATE: old row, then new row.
    pub(super) fn update(&self, u: &ast::Update, text: &str, params: &[Option<DataType>]) -> Result<Dml> {
        if u.from.is_some() || !u.table.joins.is_empty() {
            return Err(PlanError::unsupported("UPDATE … FROM is not supported")
                .hint("Use a subquery: UPDATE t SET a = (SELECT … WHERE …) WHERE EXISTS (SELECT … WHERE …)."));
        }
        if u.returning.is_some() {
            return Err(returning_refused());
        }
        let (name, alias) = simple_table(&u.table.relation)?;
        let (object, table) = self.target_table(name, "update").map_err(|e| locate(e, text))?;
        let mut assigned: Vec<Option<ast::Expr>> = vec![None; table.schema.fields().len()];
        for a in &u.assignments {
            for (column, value) in assignment(a)? {
                let c = column_index(object, table, &column).map_err(|e| locate(e, text))?;
                let slot = assigned
                    .get_mut(c)
                    .ok_or_else(|| PlanError::internal("column out of range"))?;
                if slot.is_some() {
                    return Err(PlanError::new(
                        "42601",
                        format!("multiple assignments to same column \"{column}\""),
                    ));
                }
                *slot = Some(self.set_value(value, table, c)?);
            }
        }
        let qualifier = alias
            .clone()
            .unwrap_or_else(|| Ident::with_quote('"', object.name.clone()));
        let mut items = old_columns(table, &qualifier);
        for (i, f) in table.schema.fields().iter().enumerate() {
            let old = column_of(&qualifier, f.name());
            let e = match assigned.get_mut(i).and_then(Option::take) {
                Some(e) => mark_assign(e, f),
                None => old,
            };
            items.push(item(e, &format!("n{i}")));
        }
        let plan = self.change_query(&u.table, items, u.selection.clone(), text, params)?;
        let mut fields: Vec<Arc<Field>> = table.schema.fields().iter().cloned().collect();
        fields.extend(nullable(&table.schema).fields().iter().cloned());
        self.dml(object, DmlKind::Update, plan, Arc::new(Schema::new(fields)), params)
    }

    /// DEFAULT becomes the column's default expression.
    fn set_value(&self, value: &ast::Expr, table: &TableDef, column: usize) -> Result<ast::Expr> {
        if !is_default(value) {
            return Ok(value.clone());
        }
        match table.defaults.get(column).and_then(Option::as_ref) {
            Some(text) => super::parse::parse_expr(text),
            None => Ok(ast::Expr::Value(Value::Null.into())),
        }
    }

    /// DELETE: old row. USING becomes EXISTS.
    pub(super) fn delete(&self, d: &ast::Delete, text: &str, params: &[Option<DataType>]) -> Result<Dml> {
        if d.returning.is_some() {
            return Err(returning_refused());
        }
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &d.from;
        let [target] = from.as_slice() else {
            return Err(PlanError::new("42601", "DELETE needs one table"));
        };
        let (name, alias) = simple_table(&target.relation)?;
        let (object, table) = self.target_table(name, "delete from").map_err(|e| locate(e, text))?;
        let qualifier = alias
            .clone()
            .unwrap_or_else(|| Ident::with_quote('"', object.name.clone()));
        let selection = match &d.using {
            None => d.selection.clone(),
            Some(using) => Some(exists(using, d.selection.clone())?),
        };
        let items = old_columns(table, &qualifier);
        let plan = self.change_query(target, items, selection, text, params)?;
        self.dml(object, DmlKind::Delete, plan, Arc::clone(&table.schema), params)
    }

    fn change_query(
        &self,
        from: &TableWithJoins,
        items: Vec<SelectItem>,
        selection: Option<ast::Expr>,
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<LogicalPlan> {
        let mut q = super::parse::parse_query("SELECT 1 FROM t")?;
        if let SetExpr::Select(s) = q.body.as_mut() {
            s.projection = items;
            s.from = vec![from.clone()];
            s.selection = selection;
        }
        Ok(self.bind_query(&q, text, self.batch(), params)?.plan)
    }

    /// COPY FROM STDIN.
    pub(super) fn copy(&self, c: &Copy, text: &str) -> Result<CopyFrom> {
        let (object, table) = self.target_table(&c.table, "copy to").map_err(|e| locate(e, text))?;
        let columns: Vec<String> = c.columns.iter().map(fold).collect();
        let targets = target_columns(object, table, &columns).map_err(|e| locate(e, text))?;
        super::copy::options(object.id, targets, &c.options)
    }
}

fn nullable(schema: &Schema) -> Schema {
    Schema::new(
        schema
            .fields()
            .iter()
            .map(|f| f.as_ref().clone().with_nullable(true))
            .collect::<Vec<_>>(),
    )
}

fn check_width(targets: usize, given: usize, fewer_allowed: bool) -> Result<()> {
    if given > targets {
        return Err(PlanError::new(
            "42601",
            "INSERT has more expressions than target columns",
        ));
    }
    if given < targets && !fewer_allowed {
        return Err(PlanError::new(
            "42601",
            "INSERT has more target columns than expressions",
        ));
    }
    Ok(())
}

fn column_index(object: &CatalogObject, table: &TableDef, name: &str) -> Result<usize> {
    table.schema.index_of(name).map_err(|_| {
        PlanError::new(
            "42703",
            format!("column \"{name}\" of relation \"{}\" does not exist", object.name),
        )
    })
}

fn target_columns(object: &CatalogObject, table: &TableDef, names: &[String]) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Ok((0..table.schema.fields().len()).collect());
    }
    let mut out = Vec::with_capacity(names.len());
    for n in names {
        let c = column_index(object, table, n)?;
        if out.contains(&c) {
            return Err(PlanError::new(
                "42701",
                format!("column \"{n}\" specified more than once"),
            ));
        }
        out.push(c);
    }
    Ok(out)
}

/// The rows of a VALUES that stands alone and holds no subqueries.
fn plain_values(q: &SqlQuery) -> Option<Vec<Vec<ast::Expr>>> {
    if q.with.is_some() || q.order_by.is_some() || q.limit_clause.is_some() || q.fetch.is_some() {
        return None;
    }
    match q.body.as_ref() {
        SetExpr::Values(v) => {
            let subquery = v.rows.iter().flat_map(|r| &r.content).any(has_subquery);
            (!subquery).then(|| v.rows.iter().map(|r| r.content.clone()).collect())
        }
        _ => None,
    }
}

fn has_subquery(e: &ast::Expr) -> bool {
    use std::ops::ControlFlow;
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = ();
        fn pre_visit_query(&mut self, _: &SqlQuery) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    match e {
        ast::Expr::Value(_) | ast::Expr::Identifier(_) => false,
        _ => ast::Visit::visit(e, &mut Finder).is_break(),
    }
}

/// Literals in the select list of INSERT … SELECT take the type of their column.
fn mark_targets(body: &mut SetExpr, targets: &[usize], table: &TableDef) {
    match body {
        SetExpr::Select(s) => {
            let wild = s.projection.iter().any(|i| item_expr(i).is_none());
            if wild {
                return;
            }
            for (i, c) in s.projection.iter_mut().zip(targets) {
                let field = table.schema.field(*c);
                if let SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. } = i
                    && untyped(e)
                {
                    *e = mark_assign(e.clone(), field);
                }
            }
        }
        SetExpr::Values(v) => {
            for row in &mut v.rows {
                for (e, c) in row.content.iter_mut().zip(targets) {
                    *e = mark_assign(e.clone(), table.schema.field(*c));
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            mark_targets(left, targets, table);
            mark_targets(right, targets, table);
        }
        SetExpr::Query(q) => mark_targets(&mut q.body, targets, table),
        _ => {}
    }
}

fn item_expr(i: &SelectItem) -> Option<&ast::Expr> {
    match i {
        SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. } => Some(e),
        _ => None,
    }
}

fn column_of(qualifier: &Ident, name: &str) -> ast::Expr {
    ast::Expr::CompoundIdentifier(vec![qualifier.clone(), Ident::with_quote('"', name)])
}

fn item(expr: ast::Expr, alias: &str) -> SelectItem {
    SelectItem::ExprWithAlias {
        expr,
        alias: Ident::with_quote('"', format!("{alias}{}", names::MARK)),
    }
}

fn old_columns(table: &TableDef, qualifier: &Ident) -> Vec<SelectItem> {
    let fields = table.schema.fields().iter().enumerate();
    fields
        .map(|(i, f)| item(column_of(qualifier, f.name()), &format!("o{i}")))
        .collect()
}

fn simple_table(t: &TableFactor) -> Result<(&ObjectName, Option<Ident>)> {
    match t {
        TableFactor::Table {
            name,
            alias,
            args: None,
            ..
        } => Ok((name, alias.as_ref().map(|a| a.name.clone()))),
        other => Err(PlanError::new("42601", format!("\"{other}\" is not a table"))),
    }
}

/// The columns and values of one SET item.
fn assignment(a: &ast::Assignment) -> Result<Vec<(String, &ast::Expr)>> {
    match &a.target {
        AssignmentTarget::ColumnName(n) => {
            let last = n.0.last().and_then(|p| p.as_ident()).map(fold);
            if n.0.len() > 1 {
                return Err(PlanError::new(
                    "42703",
                    format!(
                        "column \"{}\" of relation does not exist",
                        n.0.first().map_or_else(String::new, ToString::to_string)
                    ),
                )
                .hint("SET target columns cannot be qualified with the relation name."));
            }
            Ok(vec![(last.unwrap_or_default(), &a.value)])
        }
        AssignmentTarget::Tuple(columns) => {
            let values: Vec<&ast::Expr> = match &a.value {
                ast::Expr::Tuple(v) => v.iter().collect(),
                ast::Expr::Nested(e) => vec![e.as_ref()],
                ast::Expr::Subquery(_) => {
                    return Err(
                        PlanError::unsupported("UPDATE … SET (a, b) = (SELECT …) is not supported")
                            .hint("Give each column its own subquery."),
                    );
                }
                e => vec![e],
            };
            if values.len() != columns.len() {
                return Err(PlanError::new(
                    "42601",
                    "number of columns does not match number of values",
                ));
            }
            columns
                .iter()
                .zip(values)
                .map(|(c, v)| object_name(c).map(|(_, n)| (n, v)))
                .collect()
        }
    }
}

/// `EXISTS (SELECT 1 FROM using WHERE condition)`.
fn exists(using: &[TableWithJoins], condition: Option<ast::Expr>) -> Result<ast::Expr> {
    let mut q = super::parse::parse_query("SELECT 1 FROM t")?;
    if let SetExpr::Select(s) = q.body.as_mut() {
        s.from = using.to_vec();
        s.selection = condition;
    }
    Ok(ast::Expr::Exists {
        subquery: q,
        negated: false,
    })
}

impl Query {
    /// Number of parameters.
    pub fn param_count(&self) -> usize {
        self.params.len()
    }
}
