//! Columns: types, defaults, identity and generated columns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DFSchema;
use sqlparser::ast::{self, ColumnOption, GeneratedAs};

use super::constraints::Key;
use super::{Draft, specified_twice};
use crate::catalog::{CatalogOp, Generated, ObjectKind, SequenceDef};
use crate::sql::errors::map_df_error;
use crate::sql::ext::fold;
use crate::sql::sequences::{self, SequenceOptions};
use crate::sql::typing::typed;
use crate::sql::{Binder, assign, types};
use crate::{PlanError, Result};

/// What a column's options say, besides its field.
#[derive(Default)]
struct Options<'a> {
    default: Option<&'a ast::Expr>,
    not_null: bool,
    null: bool,
    generated: Option<&'a ast::Expr>,
    identity: Option<(bool, Option<&'a [ast::SequenceOptions]>)>,
}

/// The integer type behind a serial one.
fn serial(t: &ast::DataType) -> Option<DataType> {
    let ast::DataType::Custom(name, args) = t else {
        return None;
    };
    let [part] = name.0.as_slice() else { return None };
    if !args.is_empty() {
        return None;
    }
    Some(match fold(part.as_ident()?).as_str() {
        "serial" | "serial4" => DataType::Int32,
        "bigserial" | "serial8" => DataType::Int64,
        "smallserial" | "serial2" => DataType::Int16,
        _ => return None,
    })
}

impl Draft<'_> {
    /// Takes columns with their options. Constraints of columns are bound after all columns are known.
    pub(super) fn columns(&mut self, columns: &[ast::ColumnDef]) -> Result<()> {
        let mut fields: Vec<Field> = self.def.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
        let first = fields.len();
        for c in columns {
            let name = fold(&c.name);
            crate::sql::resolve::check_name(&name)?;
            if fields.iter().any(|f| f.name() == &name) {
                return Err(specified_twice(&name));
            }
            let field = match serial(&c.data_type) {
                Some(t) => Field::new(&name, t, false),
                None => types::field_of(&c.data_type)?.as_ref().clone().with_name(&name),
            };
            fields.push(field);
        }
        self.def.defaults.resize(fields.len(), None);
        self.def.schema = Arc::new(Schema::new(fields));
        for (i, c) in columns.iter().enumerate() {
            self.column_options(first + i, c)?;
        }
        // Generated columns may use any other column, so they come after all defaults.
        let is_stored = |o: &ast::ColumnOptionDef| {
            matches!(
                &o.option,
                ColumnOption::Generated {
                    generation_expr: Some(_),
                    ..
                }
            )
        };
        let stored: Vec<usize> = (first..)
            .zip(columns)
            .filter(|(_, c)| c.options.iter().any(is_stored))
            .map(|(i, _)| i)
            .collect();
        for (i, c) in columns.iter().enumerate() {
            for o in &c.options {
                if let ColumnOption::Generated {
                    generation_expr: Some(e),
                    ..
                } = &o.option
                {
                    let sql = self.stored_expression(first + i, e, &stored)?;
                    self.def.generated.insert(first + i, Generated::Stored(sql));
                }
            }
        }
        for (i, c) in columns.iter().enumerate() {
            self.column_constraints(first + i, c)?;
        }
        Ok(())
    }

    fn column_options(&mut self, column: usize, c: &ast::ColumnDef) -> Result<()> {
        let (name, table) = (fold(&c.name), self.name.clone());
        let mut found = Options::default();
        for o in &c.options {
            match &o.option {
                ColumnOption::Null => found.null = true,
                ColumnOption::NotNull => found.not_null = true,
                ColumnOption::Default(_) if found.default.is_some() => {
                    return Err(PlanError::new(
                        "42601",
                        format!("multiple default values specified for column \"{name}\" of table \"{table}\""),
                    ));
                }
                ColumnOption::Default(e) => found.default = Some(e),
                ColumnOption::PrimaryKey(_)
                | ColumnOption::Unique(_)
                | ColumnOption::Check(_)
                | ColumnOption::ForeignKey(_)
                | ColumnOption::Collation(_) => {}
                ColumnOption::Generated {
                    generation_expr: Some(e),
                    generation_expr_mode,
                    ..
                } => {
                    if *generation_expr_mode != Some(ast::GeneratedExpressionMode::Stored) {
                        return Err(PlanError::new("42601", "a generated column is STORED"));
                    }
                    found.generated = Some(e);
                }
                ColumnOption::Generated {
                    generated_as,
                    sequence_options,
                    ..
                } => {
                    let always = *generated_as == GeneratedAs::Always;
                    found.identity = Some((always, sequence_options.as_deref()));
                }
                other => {
                    return Err(PlanError::unsupported(format!(
                        "column option {other} is not supported"
                    )));
                }
            }
        }
        self.settle_column(column, &name, serial(&c.data_type), &found)
    }

    fn settle_column(&mut self, column: usize, name: &str, serial: Option<DataType>, o: &Options<'_>) -> Result<()> {
        let table = self.name.clone();
        let both = |what: &str| {
            PlanError::new(
                "42601",
                format!("both {what} specified for column \"{name}\" of table \"{table}\""),
            )
        };
        match (o.default, o.generated, &o.identity) {
            (Some(_), Some(_), _) => return Err(both("default and generation expression")),
            (Some(_), _, Some(_)) => return Err(both("default and identity")),
            (_, Some(_), Some(_)) => return Err(both("identity and generation expression")),
            _ => {}
        }
        let filled = serial.is_some() || o.identity.is_some();
        if o.null && (o.not_null || filled) {
            return Err(PlanError::new(
                "42601",
                format!("conflicting NULL/NOT NULL declarations for column \"{name}\" of table \"{table}\""),
            ));
        }
        if o.not_null || filled {
            self.def.set_nullable(column, false);
        }
        let field = self.def.schema.field(column).clone();
        if let Some(t) = serial {
            if o.default.is_some() {
                return Err(PlanError::new(
                    "42601",
                    format!("multiple default values specified for column \"{name}\" of table \"{table}\""),
                ));
            }
            let sequence = self.owned_sequence(column, name, &t, &SequenceOptions::default(), false)?;
            self.set_default(column, sequences::call(sequence));
        } else if let Some((always, options)) = &o.identity {
            if !matches!(field.data_type(), DataType::Int16 | DataType::Int32 | DataType::Int64) {
                return Err(PlanError::new(
                    "22023",
                    "identity column type must be smallint, integer, or bigint",
                ));
            }
            let options = SequenceOptions::of_identity(options.unwrap_or_default())?;
            let sequence = self.owned_sequence(column, name, field.data_type(), &options, true)?;
            let always = *always;
            self.def
                .generated
                .insert(column, Generated::Identity { always, sequence });
        } else if let Some(e) = o.default {
            let default = self.binder.check_default(e, &field)?;
            self.set_default(column, default);
        }
        Ok(())
    }

    pub(super) fn set_default(&mut self, column: usize, sql: String) {
        if let Some(slot) = self.def.defaults.get_mut(column) {
            *slot = Some(sql);
        }
    }

    /// The sequence of a serial or identity column.
    pub(super) fn owned_sequence(
        &mut self,
        column: usize,
        name: &str,
        t: &DataType,
        options: &SequenceOptions,
        identity: bool,
    ) -> Result<crate::plan::ObjectId> {
        let def = SequenceDef {
            owned_by: Some((self.id, column)),
            identity,
            ..sequences::define(t, options)?
        };
        let table = self.name.clone();
        let name = self.free_name(&table, name, "seq");
        Ok(self.companion(name, ObjectKind::Sequence(def)))
    }

    fn column_constraints(&mut self, column: usize, c: &ast::ColumnDef) -> Result<()> {
        for o in &c.options {
            let name = o.name.as_ref().map(fold);
            match &o.option {
                ColumnOption::PrimaryKey(k) => {
                    super::constraints::not_deferrable(k.characteristics.as_ref())?;
                    self.primary_key(name, vec![column])?;
                }
                ColumnOption::Unique(u) => {
                    super::constraints::not_deferrable(u.characteristics.as_ref())?;
                    let nulls_distinct = u.nulls_distinct != ast::NullsDistinctOption::NotDistinct;
                    let columns = vec![column];
                    self.unique(
                        name,
                        Key {
                            columns,
                            nulls_distinct,
                        },
                    )?;
                }
                ColumnOption::Check(check) => self.check(name, &check.expr)?,
                ColumnOption::ForeignKey(f) => self.foreign_key(name, vec![column], f)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// `GENERATED ALWAYS AS (e) STORED`: a function of the row's other columns, for ever the same.
    fn stored_expression(&self, column: usize, e: &ast::Expr, stored: &[usize]) -> Result<String> {
        let field = self.def.schema.field(column);
        let named = super::constraints::named_columns(e, &self.def.schema);
        let of_generated =
            |c: &usize| stored.contains(c) || matches!(self.def.generated.get(c), Some(Generated::Stored(_)));
        if let Some(c) = named.iter().find(|c| of_generated(c)) {
            return Err(PlanError::new(
                "42P17",
                format!(
                    "cannot use generated column \"{}\" in column generation expression",
                    self.def.schema.field(*c).name()
                ),
            )
            .detail("A generated column cannot reference another generated column."));
        }
        super::constraints::refuse_subqueries(e, "column generation expressions")?;
        let schema = self.row_schema()?;
        let volatile = || PlanError::new("42P17", "generation expression is not immutable");
        let bound = self.binder.bind_expr(e, &schema, self.binder.batch(), &[])?;
        // The time is a constant once it is bound.
        if super::constraints::names_a_moment(e) || super::rules::is_volatile(&bound) {
            return Err(volatile());
        }
        let value = typed(bound, &schema).map_err(map_df_error)?;
        assign::assign(value, field).map_err(|mut e| {
            if e.code == "42804" {
                e.message = e.message.replacen("but expression is", "but default expression is", 1);
            }
            e
        })?;
        Ok(e.to_string())
    }

    /// The row's columns, as expressions name them.
    pub(super) fn row_schema(&self) -> Result<DFSchema> {
        DFSchema::try_from_qualified_schema(self.name.as_str(), &self.def.schema).map_err(map_df_error)
    }
}

impl Binder {
    /// A DEFAULT must be a value of the column's type that reads nothing. Sequences are stored by id.
    pub(in crate::sql) fn check_default(&self, e: &ast::Expr, field: &Field) -> Result<String> {
        if super::constraints::has_column(e) {
            return Err(PlanError::new(
                "0A000",
                "cannot use column reference in DEFAULT expression",
            ));
        }
        super::constraints::refuse_subqueries(e, "DEFAULT expression")?;
        let e = self.sequences_by_id(e)?;
        let empty = DFSchema::empty();
        let bound = self.bind_expr(&e, &empty, self.batch(), &[])?;
        let value = typed(bound, &empty).map_err(map_df_error)?;
        assign::assign(value, field).map_err(|mut e| {
            if e.code == "42804" {
                e.message = e.message.replacen("but expression is", "but default expression is", 1);
            }
            e
        })?;
        Ok(e.to_string())
    }
}

/// The ops that create what a column or constraint needs.
pub(in crate::sql) fn created(ops: &[CatalogOp]) -> impl Iterator<Item = &crate::catalog::CatalogObject> {
    ops.iter().filter_map(|op| match op {
        CatalogOp::Create(o) => Some(o),
        _ => None,
    })
}
