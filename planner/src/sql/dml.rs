//! INSERT, UPDATE, DELETE and COPY: queries whose rows are the change.
//!
//! UPDATE … FROM and DELETE … USING are joins of the target with the other tables. A target row may then come in several pairs, of
//! which the server takes one; a table without a key is joined as its distinct rows with their number, so that equal rows stay
//! together. Columns of the other tables follow at the end for RETURNING.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Values};
use sqlparser::ast::{
    self, AssignmentTarget, FromTable, Ident, ObjectName, Query as SqlQuery, SelectItem, SetExpr, TableFactor,
    TableObject, TableWithJoins, UpdateTableFromKind, Value,
};

use super::assign::{assign, mark_assign, plain_literal, untyped};
use super::changed::{Qualified, qualified, quoted};
use super::errors::{locate, map_df_error};
use super::ext::{fold, object_name};
use super::operators::Typed;
use super::places::Places;
use super::table::{Overriding, takes_value};
use super::typing::typed;
use super::{Binder, Dml, DmlKind, Query, names};
use crate::catalog::{CatalogObject, ObjectKind, TableDef};
use crate::{PlanError, Result};

pub(super) fn is_default(e: &ast::Expr) -> bool {
    matches!(e, ast::Expr::Identifier(i) if i.quote_style.is_none() && i.value.eq_ignore_ascii_case("default"))
}

/// Name of the column that tells how many equal rows stand behind one.
const COUNT: &str = "\u{1}count";

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
        let overriding = super::table::overriding(text)?;
        let rows = i.source.as_deref().and_then(plain_values);
        let places = Places::new(self, text);
        places.write(rows.as_deref().unwrap_or_default(), &[], i.returning.as_deref())?;
        let plan = match &i.source {
            None => self.insert_values(table, &[], &[Vec::new()], columns.is_empty(), overriding, params)?,
            Some(q) => match rows {
                Some(rows) => self
                    .insert_values(table, &targets, &rows, columns.is_empty(), overriding, params)
                    .map_err(|e| locate(e, text))?,
                None => self.insert_query(table, &targets, q, text, (columns.is_empty(), overriding), params)?,
            },
        };
        let mut dml = self.dml(object, DmlKind::Insert, plan, Arc::clone(&table.schema), params)?;
        let alias = i.table_alias.as_ref().map(|a| fold(&a.alias));
        let name = alias.as_deref().unwrap_or(&object.name);
        if let Some(on) = &i.on {
            let params = dml.declared(params);
            let on = self
                .on_conflict(on, object, table, name, &params)
                .map_err(|e| locate(e, text))?;
            dml.learn(on.update.as_ref());
            dml.on_conflict = Some(on);
        }
        if let Some(items) = &i.returning {
            self.add_returning(&mut dml, items, &qualified(name, &table.schema), params, text)?;
        }
        Ok(dml)
    }

    pub(super) fn dml(
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
            joined: false,
            counted: false,
            assigned: Vec::new(),
            on_conflict: None,
            returning: None,
        })
    }

    fn add_returning(
        &self,
        dml: &mut Dml,
        items: &[SelectItem],
        columns: &[Qualified],
        params: &[Option<DataType>],
        text: &str,
    ) -> Result<()> {
        let params = dml.declared(params);
        let query = self.returning(items, columns, &params).map_err(|e| locate(e, text))?;
        dml.learn(Some(&query));
        dml.returning = Some(query);
        Ok(())
    }

    /// The value of a column that an INSERT does not name.
    pub(super) fn default_of(&self, table: &TableDef, column: usize) -> Result<Expr> {
        let field = table.schema.field(column);
        match table.default_sql(column) {
            Some(text) => {
                let e = super::parse::parse_expr(&text)?;
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
        overriding: Overriding,
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
        if rows.iter().any(|r| r.len() != rows[0].len()) {
            return Err(PlanError::new("42601", "VALUES lists must all be the same length"));
        }
        let mut values = Vec::with_capacity(rows.len());
        let binder = super::bind::ExprBinder::new(self, params);
        for row in rows {
            check_width(targets.len(), row.len(), all_columns || targets.is_empty())?;
            let mut out = defaults.clone();
            for (cell, column) in row.iter().zip(targets) {
                let field = table.schema.field(*column);
                let e = if is_default(cell) || !takes_value(table, *column, overriding)? {
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
        (all_columns, overriding): (bool, Overriding),
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
            let position = targets.iter().position(|t| *t == c).filter(|p| *p < given);
            let e = match position {
                Some(p) if takes_value(table, c, overriding)? => {
                    let (qualifier, f) = schema.qualified_field(p);
                    let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), f.name()));
                    assign(Typed::new(column, f.data_type().clone()), field)?
                }
                _ => self.default_of(table, c)?,
            };
            exprs.push(e.alias(field.name()));
        }
        LogicalPlanBuilder::from(bound.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(map_df_error)
    }

    /// `WITH … INSERT | UPDATE | DELETE`; `None`: it is a query.
    pub(super) fn write_with(&self, q: &SqlQuery, text: &str, params: &[Option<DataType>]) -> Result<Option<Dml>> {
        let with = q.with.as_ref();
        match q.body.as_ref() {
            SetExpr::Insert(ast::Statement::Insert(i)) => {
                let mut i = i.clone();
                if let (Some(with), Some(source)) = (with, &mut i.source) {
                    let mut with = with.clone();
                    if let Some(own) = source.with.take() {
                        with.cte_tables.extend(own.cte_tables);
                    }
                    source.with = Some(with);
                }
                self.insert(&i, text, params).map(Some)
            }
            SetExpr::Update(ast::Statement::Update(u)) => self.update(u, with, text, params).map(Some),
            SetExpr::Delete(ast::Statement::Delete(d)) => self.delete(d, with, text, params).map(Some),
            SetExpr::Merge(_) => Err(PlanError::unsupported("WITH before MERGE is not supported")
                .hint("Write the query after USING: MERGE INTO t USING (SELECT …) AS s ON …")),
            _ => Ok(None),
        }
    }

    /// UPDATE: old row, then new row.
    pub(super) fn update(
        &self,
        u: &ast::Update,
        with: Option<&ast::With>,
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<Dml> {
        if !u.table.joins.is_empty() {
            return Err(PlanError::new("42601", "UPDATE takes one table")
                .hint("Name the others in FROM: UPDATE t SET … FROM u WHERE …."));
        }
        let others = match &u.from {
            None => &[][..],
            Some(UpdateTableFromKind::AfterSet(from) | UpdateTableFromKind::BeforeSet(from)) => from,
        };
        let (name, alias) = simple_table(&u.table.relation)?;
        let (object, table) = self.target_table(name, "update").map_err(|e| locate(e, text))?;
        let mut assigned = assigned_columns(&u.assignments, object, table).map_err(|e| locate(e, text))?;
        Places::new(self, text).write(&[], &u.assignments, u.returning.as_deref())?;
        let shape = Shape {
            with,
            ..Shape::new(object, table, alias, others, u.returning.is_some())
        };
        let mut items = old_columns(table, &shape.qualifier);
        let mut touched = Vec::new();
        for (i, f) in table.schema.fields().iter().enumerate() {
            let e = match assigned.get_mut(i).and_then(Option::take) {
                Some(value) => {
                    touched.push(i);
                    let value = match value {
                        Some(e) => e,
                        None => default_text(table, i)?,
                    };
                    mark_assign(value, f)
                }
                None => column_of(&shape.qualifier, f.name()),
            };
            items.push(item(e, &format!("n{i}")));
        }
        let plan = self.change_query(&shape, &u.table, items, u.selection.clone(), text, params)?;
        let mut fields: Vec<Arc<Field>> = table.schema.fields().iter().cloned().collect();
        fields.extend(nullable(&table.schema).fields().iter().cloned());
        let extra = shape.extra(&plan, 2 * table.schema.fields().len());
        let mut dml = self.dml(object, DmlKind::Update, plan, Arc::new(Schema::new(fields)), params)?;
        shape.mark(&mut dml);
        dml.assigned = touched;
        if let Some(returning) = &u.returning {
            let columns = shape.columns(table, extra);
            self.add_returning(&mut dml, returning, &columns, params, text)?;
        }
        Ok(dml)
    }

    /// DELETE: old row.
    pub(super) fn delete(
        &self,
        d: &ast::Delete,
        with: Option<&ast::With>,
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<Dml> {
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &d.from;
        let [target] = from.as_slice() else {
            return Err(PlanError::new("42601", "DELETE needs one table"));
        };
        let (name, alias) = simple_table(&target.relation)?;
        let (object, table) = self.target_table(name, "delete from").map_err(|e| locate(e, text))?;
        let others = d.using.as_deref().unwrap_or_default();
        Places::new(self, text).write(&[], &[], d.returning.as_deref())?;
        let shape = Shape {
            with,
            ..Shape::new(object, table, alias, others, d.returning.is_some())
        };
        let items = old_columns(table, &shape.qualifier);
        let plan = self.change_query(&shape, target, items, d.selection.clone(), text, params)?;
        let extra = shape.extra(&plan, table.schema.fields().len());
        let mut dml = self.dml(object, DmlKind::Delete, plan, Arc::clone(&table.schema), params)?;
        shape.mark(&mut dml);
        if let Some(returning) = &d.returning {
            let columns = shape.columns(table, extra);
            self.add_returning(&mut dml, returning, &columns, params, text)?;
        }
        Ok(dml)
    }

    /// `SELECT items [, count] [, *] FROM target, others WHERE selection`.
    fn change_query(
        &self,
        shape: &Shape<'_>,
        target: &TableWithJoins,
        mut items: Vec<SelectItem>,
        selection: Option<ast::Expr>,
        text: &str,
        params: &[Option<DataType>],
    ) -> Result<LogicalPlan> {
        let mut q = super::parse::parse_query("SELECT 1 FROM t")?;
        q.with = shape.with.cloned();
        if shape.counted {
            items.push(item(column_of(&shape.qualifier, COUNT), COUNT));
        }
        if shape.wide {
            items.push(SelectItem::Wildcard(ast::WildcardAdditionalOptions::default()));
        }
        let mut from = vec![match shape.counted {
            true => distinct_rows(shape, target)?,
            false => target.clone(),
        }];
        from.extend(shape.others.iter().cloned());
        if let SetExpr::Select(s) = q.body.as_mut() {
            s.projection = items;
            s.from = from;
            s.selection = selection;
        }
        Ok(self.bind_query(&q, text, self.batch(), params)?.plan)
    }
}

/// How the query of an UPDATE or DELETE is laid out.
pub(super) struct Shape<'a> {
    table: &'a TableDef,
    qualifier: Ident,
    others: &'a [TableWithJoins],
    /// WITH before the statement.
    with: Option<&'a ast::With>,
    /// The target is joined as distinct rows with their number.
    counted: bool,
    /// All columns of all tables follow, for RETURNING.
    wide: bool,
}

impl<'a> Shape<'a> {
    fn new(
        object: &CatalogObject,
        table: &'a TableDef,
        alias: Option<Ident>,
        others: &'a [TableWithJoins],
        returning: bool,
    ) -> Self {
        Self {
            table,
            qualifier: alias.map_or_else(|| quoted(&object.name), |a| quoted(&fold(&a))),
            others,
            with: None,
            counted: !others.is_empty() && table.primary_key.is_empty(),
            wide: !others.is_empty() && returning,
        }
    }

    /// The columns of the other tables, which follow the first `n` of the plan, the number, and the target's own.
    fn extra(&self, plan: &LogicalPlan, n: usize) -> Vec<Qualified> {
        if !self.wide {
            return Vec::new();
        }
        let skip = n + usize::from(self.counted) + self.table.schema.fields().len() + usize::from(self.counted);
        plan.schema()
            .iter()
            .skip(skip)
            .map(|(q, f)| (q.cloned(), Arc::clone(f)))
            .collect()
    }

    /// What RETURNING sees: the target's columns, then the others'.
    fn columns(&self, table: &TableDef, extra: Vec<Qualified>) -> Vec<Qualified> {
        let mut columns = qualified(&self.qualifier.value, &table.schema);
        columns.extend(extra);
        columns
    }

    fn mark(&self, dml: &mut Dml) {
        dml.joined = !self.others.is_empty();
        dml.counted = self.counted;
    }
}

/// `(SELECT a, b, count(*) FROM t GROUP BY a, b) AS t`.
fn distinct_rows(shape: &Shape<'_>, target: &TableWithJoins) -> Result<TableWithJoins> {
    let mut q = super::parse::parse_query("SELECT count(*) FROM t GROUP BY a")?;
    if let SetExpr::Select(s) = q.body.as_mut() {
        let columns: Vec<ast::Expr> = shape
            .table
            .schema
            .fields()
            .iter()
            .map(|f| ast::Expr::Identifier(quoted(f.name())))
            .collect();
        let count = s.projection.pop().and_then(|i| item_expr(&i).cloned());
        s.projection = columns.iter().cloned().map(SelectItem::UnnamedExpr).collect();
        s.projection.extend(count.map(|expr| SelectItem::ExprWithAlias {
            expr,
            alias: quoted(COUNT),
        }));
        s.from = vec![target.clone()];
        s.group_by = ast::GroupByExpr::Expressions(columns, Vec::new());
    }
    let mut derived = super::parse::parse_query("SELECT 1 FROM (SELECT 1) AS d")?;
    let SetExpr::Select(s) = derived.body.as_mut() else {
        return Err(PlanError::internal("a derived table is not a SELECT"));
    };
    let mut from = s
        .from
        .pop()
        .ok_or_else(|| PlanError::internal("a derived table is missing"))?;
    if let TableFactor::Derived {
        subquery,
        alias: Some(alias),
        ..
    } = &mut from.relation
    {
        *subquery = q;
        alias.name = shape.qualifier.clone();
    }
    Ok(from)
}

/// What each column is assigned: nothing, DEFAULT (`Some(None)`) or an expression.
pub(super) fn assigned_columns(
    assignments: &[ast::Assignment],
    object: &CatalogObject,
    table: &TableDef,
) -> Result<Vec<Option<Option<ast::Expr>>>> {
    let mut assigned: Vec<Option<Option<ast::Expr>>> = vec![None; table.schema.fields().len()];
    for a in assignments {
        for (column, value) in assignment(a, object)? {
            let c = column_index(object, table, &column)?;
            let slot = assigned
                .get_mut(c)
                .ok_or_else(|| PlanError::internal("column out of range"))?;
            if slot.is_some() {
                return Err(PlanError::new(
                    "42601",
                    format!("multiple assignments to same column \"{column}\""),
                ));
            }
            let default = is_default(&value);
            if !default {
                super::table::refuse_set(table, c)?;
            }
            *slot = Some((!default).then_some(value));
        }
    }
    Ok(assigned)
}

/// DEFAULT as an expression.
pub(super) fn default_text(table: &TableDef, column: usize) -> Result<ast::Expr> {
    match table.default_sql(column) {
        Some(text) => super::parse::parse_expr(&text),
        None => Ok(ast::Expr::Value(Value::Null.into())),
    }
}

pub(super) fn nullable(schema: &Schema) -> Schema {
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

pub(super) fn target_columns(object: &CatalogObject, table: &TableDef, names: &[String]) -> Result<Vec<usize>> {
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
        // Among distinct rows, and in the branches of a set operation, a literal has a type before it is assigned: text.
        SetExpr::Select(s) if s.distinct.is_none() => {
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

pub(super) fn column_of(qualifier: &Ident, name: &str) -> ast::Expr {
    ast::Expr::CompoundIdentifier(vec![qualifier.clone(), Ident::with_quote('"', name)])
}

pub(super) fn item(expr: ast::Expr, alias: &str) -> SelectItem {
    SelectItem::ExprWithAlias {
        expr,
        alias: Ident::with_quote('"', format!("{alias}{}", names::MARK)),
    }
}

pub(super) fn old_columns(table: &TableDef, qualifier: &Ident) -> Vec<SelectItem> {
    let fields = table.schema.fields().iter().enumerate();
    fields
        .map(|(i, f)| item(column_of(qualifier, f.name()), &format!("o{i}")))
        .collect()
}

pub(super) fn simple_table(t: &TableFactor) -> Result<(&ObjectName, Option<Ident>)> {
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
fn assignment(a: &ast::Assignment, object: &CatalogObject) -> Result<Vec<(String, ast::Expr)>> {
    match &a.target {
        AssignmentTarget::ColumnName(n) => {
            let last = n.0.last().and_then(|p| p.as_ident()).map(fold);
            if n.0.len() > 1 {
                return Err(PlanError::new(
                    "42703",
                    format!(
                        "column \"{}\" of relation \"{}\" does not exist",
                        n.0.first().map_or_else(String::new, ToString::to_string),
                        object.name
                    ),
                )
                .hint("SET target columns cannot be qualified with the relation name."));
            }
            Ok(vec![(last.unwrap_or_default(), a.value.clone())])
        }
        AssignmentTarget::Tuple(columns) => {
            let values: Vec<ast::Expr> = match &a.value {
                ast::Expr::Tuple(v) => v.clone(),
                ast::Expr::Nested(e) => vec![e.as_ref().clone()],
                ast::Expr::Subquery(q) => one_subquery_each(q, columns.len())?,
                e => vec![e.clone()],
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

/// `(SELECT x, y …)` as `(SELECT x …)` and `(SELECT y …)`.
fn one_subquery_each(q: &SqlQuery, n: usize) -> Result<Vec<ast::Expr>> {
    let refused = || {
        PlanError::unsupported("UPDATE … SET (a, b) = (SELECT …) of this form is not supported")
            .hint("Give each column its own subquery.")
    };
    let SetExpr::Select(s) = q.body.as_ref() else {
        return Err(refused());
    };
    if s.distinct.is_some() || s.projection.iter().any(|i| item_expr(i).is_none()) {
        return Err(refused());
    }
    if s.projection.len() != n {
        return Err(PlanError::new(
            "42601",
            "number of columns does not match number of values",
        ));
    }
    let one = |i: usize| {
        let mut q = q.clone();
        if let SetExpr::Select(s) = q.body.as_mut() {
            s.projection = vec![s.projection.swap_remove(i)];
        }
        ast::Expr::Subquery(Box::new(q))
    };
    Ok((0..n).map(one).collect())
}

impl Dml {
    /// The types of parameters that are known by now, for what is bound next.
    pub(super) fn declared(&self, given: &[Option<DataType>]) -> Vec<Option<DataType>> {
        let n = self.query.params.len().max(given.len());
        (0..n)
            .map(|i| {
                given
                    .get(i)
                    .cloned()
                    .flatten()
                    .or_else(|| self.query.params.get(i).cloned())
            })
            .collect()
    }

    /// Takes over the parameters of a part that was bound with [`Self::declared`].
    pub(super) fn learn(&mut self, part: Option<&Query>) {
        if let Some(part) = part
            && part.params.len() > self.query.params.len()
        {
            self.query.params = part.params.clone();
        }
    }
}

impl Query {
    /// Number of parameters.
    pub fn param_count(&self) -> usize {
        self.params.len()
    }
}
