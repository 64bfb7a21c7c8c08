//! Joins. Operators know inner, left, full, semi and anti over plain key columns; everything else is made of these:
//!
//! ```text
//!   A RIGHT JOIN B                      →  reorder(B LEFT JOIN A)
//!   A ⋉ B without a condition (EXISTS)  →  A × σ(n > 0) γ(count(*) n)(B)
//!   A mark B on keys                    →  A LEFT JOIN (distinct keys of B, true), mark = that column IS NOT NULL
//!   A mark B on keys and a condition    →  (A ⋉ B, true) ∪ (A ▷ B, false)
//! ```
//!
//! A join without keys stands at one task and compares every changed row of a side with all rows of the other; whoever creates a view
//! with one is told, unless a side has few rows by its form ([`crate::stream::nested_loops`]).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::{NullEquality, ScalarValue};
use datafusion::logical_expr::logical_plan::{Join, JoinType};
use datafusion::logical_expr::{LogicalPlan, Operator};

use super::{Lowering, compile, name_of, unite, unsupported, with_columns};
use crate::plan::{AggCall, AggFunc, JoinKind};
use crate::stream::rel::{JoinOp, Phys, Rel, binary, column, is_not_null, literal, rewrite_columns};
use crate::{PlanError, Result};

/// A join before its kind is resolved: keys are expressions over each side, the filter is over left then right columns.
struct Inputs {
    left: Rel,
    right: Rel,
    left_keys: Vec<Phys>,
    right_keys: Vec<Phys>,
    null_equals_null: bool,
    filter: Option<Phys>,
    /// For messages.
    text: String,
}

impl Lowering<'_> {
    /// Any join.
    pub(super) fn join(&self, join: &Join) -> Result<Rel> {
        if join.null_aware {
            return Err(unsupported(&format!("NOT IN of this form ({})", condition_text(join)))
                .hint("Write NOT EXISTS (SELECT … WHERE …) instead."));
        }
        let left = self.lower(&join.left)?;
        let right = self.lower(&join.right)?;
        let mut left_keys = Vec::new();
        let mut right_keys = Vec::new();
        for (l, r) in &join.on {
            left_keys.push(compile(l, join.left.schema())?);
            right_keys.push(compile(r, join.right.schema())?);
        }
        let filter = match &join.filter {
            Some(filter) => {
                let both = join.left.schema().join(join.right.schema());
                Some(compile(filter, &both.map_err(|e| PlanError::internal(e.to_string()))?)?)
            }
            None => None,
        };
        let null_equals_null = join.null_equality == NullEquality::NullEqualsNull;
        let text = condition_text(join);
        Inputs {
            left,
            right,
            left_keys,
            right_keys,
            null_equals_null,
            filter,
            text,
        }
        .lower(join.join_type)
    }
}

fn condition_text(join: &Join) -> String {
    let mut parts: Vec<String> = join
        .on
        .iter()
        .map(|(l, r)| format!("{} = {}", name_of(l), name_of(r)))
        .collect();
    parts.extend(join.filter.iter().map(name_of));
    if parts.is_empty() {
        return format!("of {} and {}", relations_of(&join.left), relations_of(&join.right));
    }
    format!("on {}", parts.join(" AND "))
}

/// Names of what a plan reads.
fn relations_of(plan: &LogicalPlan) -> String {
    match plan {
        LogicalPlan::TableScan(scan) => scan.table_name.to_string(),
        LogicalPlan::SubqueryAlias(alias) => alias.alias.to_string(),
        other => {
            let names: Vec<String> = other.inputs().into_iter().map(relations_of).collect();
            if names.is_empty() {
                "constant rows".to_string()
            } else {
                names.join(", ")
            }
        }
    }
}

impl Inputs {
    fn lower(self, join_type: JoinType) -> Result<Rel> {
        match join_type {
            JoinType::Inner => self.plain(JoinKind::Inner),
            JoinType::Left => self.plain(JoinKind::Left),
            JoinType::Full => self.plain(JoinKind::Full),
            JoinType::Right => {
                let (l, r) = (self.left.width(), self.right.width());
                let joined = self.swapped()?.plain(JoinKind::Left)?;
                Ok(joined.select(&(r..r + l).chain(0..r).collect::<Vec<_>>()))
            }
            JoinType::LeftSemi => self.existence(true),
            JoinType::LeftAnti => self.existence(false),
            JoinType::LeftMark => self.mark(),
            JoinType::RightSemi => self.swapped()?.existence(true),
            JoinType::RightAnti => self.swapped()?.existence(false),
            JoinType::RightMark => self.swapped()?.mark(),
        }
    }

    fn swapped(self) -> Result<Self> {
        let (l, r) = (self.left.width(), self.right.width());
        let both = Schema::new(
            self.right
                .schema
                .fields()
                .iter()
                .chain(self.left.schema.fields())
                .cloned()
                .collect::<Vec<_>>(),
        );
        let move_column = |c: usize| column(&both, if c < l { c + r } else { c - l });
        let filter = self
            .filter
            .as_ref()
            .map(|f| rewrite_columns(f, move_column))
            .transpose()?;
        Ok(Self {
            left: self.right,
            right: self.left,
            left_keys: self.right_keys,
            right_keys: self.left_keys,
            filter,
            ..self
        })
    }

    /// Inner, left and full: output is left then right columns.
    fn plain(self, kind: JoinKind) -> Result<Rel> {
        let (l, r) = (self.left.width(), self.right.width());
        let joined = self.operator(kind)?;
        let right_start = joined.inputs.first().map_or(l, Rel::width);
        Ok(joined.select(&(0..l).chain(right_start..right_start + r).collect::<Vec<_>>()))
    }

    /// Semi (`wanted`) and anti: output is left columns.
    fn existence(self, wanted: bool) -> Result<Rel> {
        let l = self.left.width();
        let keep: Vec<usize> = (0..l).collect();
        if self.left_keys.is_empty() && self.filter.is_none() {
            let op = if wanted { Operator::Gt } else { Operator::Eq };
            let (counted, test) = count_rows(self.right, op);
            return Ok(cross(self.left, counted.filter(test)).select(&keep));
        }
        let kind = if wanted { JoinKind::Semi } else { JoinKind::Anti };
        Ok(self.operator(kind)?.select(&keep))
    }

    /// Left columns and a boolean that says whether the row has a match; never NULL.
    fn mark(self) -> Result<Rel> {
        let l = self.left.width();
        if self.left_keys.is_empty() && self.filter.is_none() {
            let (counted, test) = count_rows(self.right, Operator::Gt);
            let mark = Arc::new(Schema::new(vec![mark_field(false)]));
            let joined = cross(self.left, counted.project(vec![test], mark));
            let mark = joined.width() - 1;
            return Ok(joined.select(&(0..l).chain([mark]).collect::<Vec<_>>()));
        }
        if self.filter.is_some() {
            return self.mark_by_union();
        }
        let (right, places) = with_columns(self.right, &self.right_keys)?;
        let keys = right.select(&places);
        let (columns, schema) = ((0..keys.width()).collect(), Arc::clone(&keys.schema));
        let distinct = keys.aggregate(columns, Vec::new(), schema);
        let n = distinct.width();
        let mut exprs = distinct.columns();
        exprs.push(literal(ScalarValue::Boolean(Some(true))));
        let mut fields: Vec<FieldRef> = distinct.schema.fields().iter().cloned().collect();
        fields.push(mark_field(true));
        let right = distinct.project(exprs, Arc::new(Schema::new(fields)));
        let right_keys = (0..n).map(|c| right.column(c)).collect();
        let joined = Self {
            left: self.left,
            right,
            left_keys: self.left_keys,
            right_keys,
            null_equals_null: self.null_equals_null,
            filter: None,
            text: self.text,
        }
        .operator(JoinKind::Left)?;
        let found = joined.column(joined.width() - 1);
        let mut exprs: Vec<Phys> = (0..l).map(|c| joined.column(c)).collect();
        exprs.push(is_not_null(found));
        let mut fields: Vec<FieldRef> = joined.schema.fields().iter().take(l).cloned().collect();
        fields.push(mark_field(true));
        Ok(joined.project(exprs, Arc::new(Schema::new(fields))))
    }

    fn mark_by_union(self) -> Result<Rel> {
        let mut fields: Vec<FieldRef> = self.left.schema.fields().iter().cloned().collect();
        fields.push(mark_field(true));
        let schema = Schema::new(fields);
        let with_mark = |rel: Rel, mark: bool| {
            let mut exprs = rel.columns();
            exprs.push(literal(ScalarValue::Boolean(Some(mark))));
            rel.project(exprs, Arc::new(schema.clone()))
        };
        let again = Self {
            left: self.left.clone(),
            right: self.right.clone(),
            left_keys: self.left_keys.clone(),
            right_keys: self.right_keys.clone(),
            filter: self.filter.clone(),
            text: self.text.clone(),
            null_equals_null: self.null_equals_null,
        };
        let matched = with_mark(again.existence(true)?, true);
        let unmatched = with_mark(self.existence(false)?, false);
        unite(vec![matched, unmatched], &schema)
    }

    /// The operator itself; computed keys are appended to the inputs' columns first.
    fn operator(self, kind: JoinKind) -> Result<Rel> {
        let l = self.left.width();
        let (left, left_keys) = with_columns(self.left.widened(), &self.left_keys)?;
        let (right, right_keys) = with_columns(self.right.widened(), &self.right_keys)?;
        for (&lk, &rk) in left_keys.iter().zip(&right_keys) {
            let (lt, rt) = (left.schema.field(lk).data_type(), right.schema.field(rk).data_type());
            if lt != rt {
                return Err(PlanError::internal(format!(
                    "join {} compares {lt} with {rt}",
                    self.text
                )));
            }
        }
        let shift = left.width() - l;
        let both = Schema::new(
            left.schema
                .fields()
                .iter()
                .chain(right.schema.fields())
                .cloned()
                .collect::<Vec<_>>(),
        );
        let move_column = |c: usize| column(&both, if c < l { c } else { c + shift });
        let filter = self
            .filter
            .as_ref()
            .map(|f| rewrite_columns(f, move_column))
            .transpose()?;
        Ok(left.join(
            right,
            JoinOp {
                kind,
                left_keys,
                right_keys,
                null_equals_null: self.null_equals_null,
                filter,
            },
        ))
    }
}

fn mark_field(nullable: bool) -> FieldRef {
    Arc::new(Field::new("mark", DataType::Boolean, nullable))
}

/// The number of rows, and the test `number op 0`.
fn count_rows(rel: Rel, op: Operator) -> (Rel, Phys) {
    let count = AggCall::new(AggFunc::Count, None);
    let schema = Arc::new(Schema::new(vec![Field::new("count", DataType::Int64, false)]));
    let counted = rel.select(&[]).aggregate(Vec::new(), vec![count], schema);
    let test = binary(counted.column(0), op, literal(ScalarValue::Int64(Some(0))));
    (counted, test)
}

/// Every pair; the right side has one row.
fn cross(left: Rel, right: Rel) -> Rel {
    left.widened().join(
        right,
        JoinOp {
            kind: JoinKind::Inner,
            left_keys: Vec::new(),
            right_keys: Vec::new(),
            null_equals_null: false,
            filter: None,
        },
    )
}
