//! Conditions on the time: `ts > now() - interval '1 hour'` and its kin become the bounds of a temporal filter.
//!
//! ```text
//!   ts >  now() - i   →  visible until ts + i           (now() <  ts + i)
//!   ts <= now() + i   →  visible from  ts - i           (now() >= ts - i)
//!   d  >= current_date - 7                              (the day of now() is a step function: bounds at midnights)
//! ```
//!
//! In a bound plan the time is the variable [`NOW`], which has no value; a place where it is left after this is refused. A bound is a plain
//! expression over the row and a constant shift, so an interval with months, whose length depends on the date, is refused too.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, Operator};

use super::{Lowering, compile, name_of, order, with_columns};
use crate::plan::TimeBound;
use crate::sql::NOW;
use crate::stream::rel::Rel;
use crate::{PlanError, Result};

const DAY_US: i64 = 86_400_000_000;

/// Whether the expression depends on the time.
pub(super) fn mentions_now(expr: &Expr) -> bool {
    let mut found = false;
    let walked = expr.apply(|e| {
        found |= is_now(e);
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    });
    walked.is_ok() && found
}

fn is_now(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarVariable(_, names) if names.len() == 1 && names[0] == NOW)
}

/// A time-dependent expression at a place where it cannot be kept.
pub(super) fn refused(expr: &Expr) -> PlanError {
    PlanError::unsupported(format!(
        "{} is not supported in a materialized view at this place",
        name_of(expr).replace(NOW, "now()")
    ))
    .detail("The value of now() changes without any change of the view's inputs.")
    .hint(
        "Compare a column with it under AND in WHERE, as in ts > now() - INTERVAL '1 hour'; elsewhere, store the time in a column.",
    )
}

impl Lowering<'_> {
    /// A WHERE or HAVING clause.
    pub(super) fn filtered(&self, input: Rel, predicate: &Expr, schema: &DFSchema) -> Result<Rel> {
        if !mentions_now(predicate) {
            return Ok(order::filter(input, compile(predicate, schema)?));
        }
        let (timed, plain): (Vec<&Expr>, Vec<&Expr>) =
            split_conjunction(predicate).into_iter().partition(|e| mentions_now(e));
        let input = match conjunction(plain.into_iter().cloned()) {
            Some(plain) => order::filter(input, compile(&plain, schema)?),
            None => input,
        };
        let mut bounds = Bounds::default();
        for part in timed {
            bounds.add(part, schema).ok_or_else(|| refused(part))?;
        }
        let width = input.width();
        let place = |rel: Rel, list: &[(Expr, i64)]| -> Result<(Rel, Vec<TimeBound>)> {
            let exprs = list
                .iter()
                .map(|(e, _)| compile(e, schema))
                .collect::<Result<Vec<_>>>()?;
            let (rel, places) = with_columns(rel, &exprs)?;
            let shifts = list.iter().map(|(_, shift)| *shift);
            let bounds = places.into_iter().zip(shifts);
            Ok((
                rel,
                bounds
                    .map(|(column, shift_us)| TimeBound { column, shift_us })
                    .collect(),
            ))
        };
        let (input, from) = place(input, &bounds.from)?;
        let (input, until) = place(input, &bounds.until)?;
        Ok(input.temporal_filter(from, until, width))
    }
}

/// `now() >= expr + shift` and `now() < expr + shift`.
#[derive(Default)]
struct Bounds {
    from: Vec<(Expr, i64)>,
    until: Vec<(Expr, i64)>,
}

/// An expression over the time alone: `now() + inner`, perhaps cut to its day, `+ outer`.
struct Moment {
    inner: i64,
    day: bool,
    outer: i64,
}

impl Bounds {
    /// Takes a condition; `None` if it has no bounds.
    fn add(&mut self, condition: &Expr, schema: &DFSchema) -> Option<()> {
        match condition {
            Expr::Between(Between {
                expr,
                negated: false,
                low,
                high,
            }) => {
                self.compare(expr, Operator::GtEq, low, schema)?;
                self.compare(expr, Operator::LtEq, high, schema)
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => self.compare(left, *op, right, schema),
            _ => None,
        }
    }

    fn compare(&mut self, left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<()> {
        match (mentions_now(left), mentions_now(right)) {
            (true, false) => self.solve(&moment(left)?, op, right, schema),
            (false, true) => self.solve(&moment(right)?, op.swap()?, left, schema),
            _ => None,
        }
    }

    /// `moment op value`.
    fn solve(&mut self, moment: &Moment, op: Operator, value: &Expr, schema: &DFSchema) -> Option<()> {
        if !moment.day {
            let shift = moment.inner.checked_add(moment.outer)?.checked_neg()?;
            let value = timestamp_of(value, schema)?;
            match op {
                Operator::Lt => self.until.push((value, shift)),
                Operator::LtEq => self.until.push((value, shift.checked_add(1)?)),
                Operator::Gt => self.from.push((value, shift.checked_add(1)?)),
                Operator::GtEq => self.from.push((value, shift)),
                _ => return None,
            }
            return Some(());
        }
        if moment.outer % DAY_US != 0 {
            return None;
        }
        let shift = moment.outer.checked_neg()?.checked_sub(moment.inner)?;
        let next = shift.checked_add(DAY_US)?;
        match op {
            // day(x) <= t  ⇔  x < day(t) + 1 day
            Operator::LtEq => self.until.push((day_of(value, 0, schema)?, next)),
            Operator::Gt => self.from.push((day_of(value, 0, schema)?, next)),
            // day(x) < t  ⇔  x < the first midnight that is not before t
            Operator::Lt => self.until.push((day_of(value, 1, schema)?, next)),
            Operator::GtEq => self.from.push((day_of(value, 1, schema)?, next)),
            Operator::Eq if is_date(value, schema) => {
                let day = day_of(value, 0, schema)?;
                self.from.push((day.clone(), shift));
                self.until.push((day, next));
            }
            _ => return None,
        }
        Some(())
    }
}

/// Reads an expression over the time alone.
fn moment(expr: &Expr) -> Option<Moment> {
    match expr {
        e if is_now(e) => Some(Moment {
            inner: 0,
            day: false,
            outer: 0,
        }),
        Expr::Alias(alias) => moment(&alias.expr),
        Expr::Cast(cast) => cast_of(moment(&cast.expr)?, cast.field.data_type()),
        Expr::ScalarFunction(ScalarFunction { func, args }) => match (func.name(), args.as_slice()) {
            ("pg_add", [a, b]) => match (mentions_now(a), mentions_now(b)) {
                (true, false) => moment(a)?.plus(shift_of(b)?),
                (false, true) => moment(b)?.plus(shift_of(a)?),
                _ => None,
            },
            ("pg_sub", [a, b]) if mentions_now(a) && !mentions_now(b) => moment(a)?.plus(shift_of(b)?.checked_neg()?),
            ("pg_to_date", [a]) => cast_of(moment(a)?, &DataType::Date32),
            ("pg_to_timestamp" | "pg_to_timestamptz", [a]) => moment(a),
            _ => None,
        },
        _ => None,
    }
}

fn cast_of(m: Moment, target: &DataType) -> Option<Moment> {
    match target {
        DataType::Timestamp(..) => Some(m),
        DataType::Date32 if m.day => (m.outer % DAY_US == 0).then_some(m),
        DataType::Date32 => Some(Moment {
            inner: m.inner.checked_add(m.outer)?,
            day: true,
            outer: 0,
        }),
        _ => None,
    }
}

impl Moment {
    fn plus(self, us: i64) -> Option<Self> {
        Some(Self {
            outer: self.outer.checked_add(us)?,
            ..self
        })
    }
}

/// A constant interval without months, or a constant number of days.
fn shift_of(expr: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = expr else { return None };
    match value {
        ScalarValue::IntervalMonthDayNano(Some(v)) if v.months == 0 => {
            i64::from(v.days).checked_mul(DAY_US)?.checked_add(v.nanoseconds / 1000)
        }
        ScalarValue::Int16(Some(days)) => i64::from(*days).checked_mul(DAY_US),
        ScalarValue::Int32(Some(days)) => i64::from(*days).checked_mul(DAY_US),
        _ => None,
    }
}

fn data_type(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

/// Whether a value is a date, perhaps widened for the comparison.
fn is_date(expr: &Expr, schema: &DFSchema) -> bool {
    bare_date(expr, schema).is_some()
}

fn bare_date<'a>(expr: &'a Expr, schema: &DFSchema) -> Option<&'a Expr> {
    match expr {
        Expr::Cast(cast) => bare_date(&cast.expr, schema),
        Expr::ScalarFunction(ScalarFunction { func, args })
            if matches!(func.name(), "pg_to_timestamp" | "pg_to_timestamptz") =>
        {
            args.first().and_then(|a| bare_date(a, schema))
        }
        e => (data_type(e, schema)? == DataType::Date32).then_some(e),
    }
}

fn timestamp_of(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    // With or without a zone, which is UTC, the microseconds are the same.
    if let Expr::Cast(cast) = expr
        && matches!(data_type(&cast.expr, schema)?, DataType::Timestamp(..))
    {
        return timestamp_of(&cast.expr, schema);
    }
    match data_type(expr, schema)? {
        DataType::Timestamp(..) => Some(expr.clone()),
        DataType::Date32 => crate::sql::date_as_timestamp(expr.clone()).ok(),
        _ => None,
    }
}

/// The midnight that is not after the value less `before_us` microseconds.
fn day_of(expr: &Expr, before_us: i64, schema: &DFSchema) -> Option<Expr> {
    if let Some(date) = bare_date(expr, schema) {
        let day = crate::sql::date_as_timestamp(date.clone()).ok()?;
        return if before_us == 0 {
            Some(day)
        } else {
            crate::sql::days_later(day, -1).ok()
        };
    }
    let value = timestamp_of(expr, schema)?;
    crate::sql::midnight_before(value, before_us).ok()
}
