//! INSERT … ON CONFLICT: which key decides, and what becomes of a row that is there already.
//!
//! The server finds for each proposed row the stored one with the same key. `DO UPDATE` is then one projection over such pairs,
//! the stored row under the table's name and the proposed one under `excluded`: whether WHERE holds, and the row's new columns.

use arrow::datatypes::DataType;
use datafusion::logical_expr::Expr;
use datafusion::scalar::ScalarValue;
use sqlparser::ast::{self, ConflictTarget, OnConflictAction, OnInsert};

use super::assign::{assign, untyped};
use super::bind::ExprBinder;
use super::changed::{columns_schema, qualified, refuse_aggregates};
use super::dml::assigned_columns;
use super::errors::map_df_error;
use super::ext::{fold, object_name};
use super::typing::typed;
use super::{Binder, Query, operators};
use crate::catalog::{CatalogObject, TableDef};
use crate::{PlanError, Result};

/// What INSERT does with a row whose key is taken.
#[derive(Debug, Clone)]
pub struct OnConflict {
    /// Columns of the key that decides; `None`: any of the table's keys (DO NOTHING only).
    pub key: Option<Vec<usize>>,
    /// DO UPDATE, over [`super::CHANGED`] rows that are a stored row followed by the proposed one: a boolean that tells whether
    /// WHERE holds, then the columns of the new row. `None`: DO NOTHING.
    pub update: Option<Query>,
    /// Columns that DO UPDATE assigns.
    pub assigned: Vec<usize>,
}

impl Binder {
    /// ON CONFLICT of an INSERT into `table`, known as `name`.
    pub(super) fn on_conflict(
        &self,
        on: &OnInsert,
        object: &CatalogObject,
        table: &TableDef,
        name: &str,
        params: &[Option<DataType>],
    ) -> Result<OnConflict> {
        let OnInsert::OnConflict(on) = on else {
            return Err(PlanError::new("42601", "syntax error at or near \"DUPLICATE\""));
        };
        let key = on
            .conflict_target
            .as_ref()
            .map(|t| arbiter(t, object, table))
            .transpose()?;
        match &on.action {
            OnConflictAction::DoNothing => Ok(OnConflict {
                key,
                update: None,
                assigned: Vec::new(),
            }),
            OnConflictAction::DoUpdate(update) => {
                if key.is_none() {
                    return Err(PlanError::new(
                        "42601",
                        "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                    )
                    .hint("For example, ON CONFLICT (column_name)."));
                }
                let (query, assigned) = self.conflict_update(update, object, table, name, params)?;
                Ok(OnConflict {
                    key,
                    update: Some(query),
                    assigned,
                })
            }
        }
    }

    fn conflict_update(
        &self,
        update: &ast::DoUpdate,
        object: &CatalogObject,
        table: &TableDef,
        name: &str,
        params: &[Option<DataType>],
    ) -> Result<(Query, Vec<usize>)> {
        let mut columns = qualified(name, &table.schema);
        columns.extend(qualified("excluded", &table.schema));
        let schema = columns_schema(&columns)?;
        let binder = ExprBinder::new(self, params);
        let condition = match &update.selection {
            None => Expr::Literal(ScalarValue::Boolean(Some(true)), None),
            Some(e) => {
                let bound = binder.bind(e, &schema)?;
                refuse_aggregates(&bound, "WHERE")?;
                let t = typed(bound, &schema).map_err(map_df_error)?;
                if t.ty.as_ref().is_some_and(|t| t != &DataType::Boolean) {
                    return Err(PlanError::new("42804", "argument of WHERE must be type boolean"));
                }
                operators::coerce(t, &DataType::Boolean)?
            }
        };
        let assigned = assigned_columns(&update.assignments, object, table)?;
        let touched = assigned
            .iter()
            .enumerate()
            .filter(|(_, a)| a.is_some())
            .map(|(c, _)| c)
            .collect();
        let mut exprs = vec![condition.alias("met")];
        for (c, (field, value)) in table.schema.fields().iter().zip(&assigned).enumerate() {
            let e = match value {
                None => Expr::Column(datafusion::common::Column::new(Some(name), field.name())),
                Some(None) => self.default_of(table, c)?,
                Some(Some(e)) => {
                    let bound = binder.bind(e, &schema)?;
                    refuse_aggregates(&bound, "UPDATE")?;
                    let mut t = typed(bound, &schema).map_err(map_df_error)?;
                    if untyped(e) {
                        t.ty = None;
                    }
                    assign(t, field)?
                }
            };
            exprs.push(e.alias(format!("n{c}")));
        }
        Ok((self.project_changed(&columns, exprs, params)?, touched))
    }
}

/// The columns of the key that a conflict target names.
fn arbiter(target: &ConflictTarget, object: &CatalogObject, table: &TableDef) -> Result<Vec<usize>> {
    match target {
        ConflictTarget::Columns(names) => {
            let mut wanted = Vec::with_capacity(names.len());
            for n in names {
                let n = fold(n);
                let c = table
                    .schema
                    .index_of(&n)
                    .map_err(|_| PlanError::new("42703", format!("column \"{n}\" does not exist")))?;
                if !wanted.contains(&c) {
                    wanted.push(c);
                }
            }
            keys(table)
                .into_iter()
                .find(|k| k.1.len() == wanted.len() && k.1.iter().all(|c| wanted.contains(c)))
                .map(|k| k.1)
                .ok_or_else(|| {
                    PlanError::new(
                        "42P10",
                        "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                    )
                })
        }
        ConflictTarget::OnConstraint(name) => {
            let (_, wanted) = object_name(name)?;
            keys(table)
                .into_iter()
                .find(|(name, _)| name.clone().unwrap_or_else(|| format!("{}_pkey", object.name)) == wanted)
                .map(|k| k.1)
                .ok_or_else(|| {
                    PlanError::new(
                        "42704",
                        format!("constraint \"{wanted}\" for table \"{}\" does not exist", object.name),
                    )
                })
        }
    }
}

/// The table's unique keys: name (`None`: the primary key's default name) and columns.
fn keys(table: &TableDef) -> Vec<(Option<String>, Vec<usize>)> {
    let mut keys = Vec::new();
    if !table.primary_key.is_empty() {
        keys.push((table.constraints.primary_key.clone(), table.primary_key.clone()));
    }
    let uniques = table.constraints.uniques.iter();
    keys.extend(uniques.map(|u| (Some(u.name.clone()), u.columns.clone())));
    keys
}
