//! Window functions in FROM: TUMBLE and HOP as syntax that DataFusion's planner knows.
//!
//! ```text
//!   TUMBLE(t, c, w)      →  (SELECT *, date_bin(w, c) window_start, … + w window_end FROM t)
//!   HOP(t, c, slide, w)  →  one such query per window that can hold a row, UNION ALL; the k-th begins k slides earlier
//! ```
//!
//! The stream planner makes one operator of the branches of HOP, which reads `t` once.

use sqlparser::ast::{
    self, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, ObjectName, SelectItem, SetExpr, SetOperator,
    SetQuantifier, TableAlias, TableFactor, TimezoneInfo,
};

use super::ext::object_name;
use super::syntax::{cast, function, string, table_alias};
use crate::{PlanError, Result};

pub(super) fn table_factor(t: &mut TableFactor) -> Result<()> {
    if let TableFactor::Derived { alias: None, .. } = t {
        return Err(PlanError::new("42601", "subquery in FROM must have an alias")
            .hint("For example, FROM (SELECT ...) [AS] foo."));
    }
    let TableFactor::Table {
        name,
        alias,
        args: Some(args),
        ..
    } = t
    else {
        return Ok(());
    };
    let (_, function) = object_name(name)?;
    match function.as_str() {
        "tumble" => {
            *t = tumble(&args.args, alias.take())?;
            Ok(())
        }
        "hop" => {
            *t = hop(&args.args, alias.take())?;
            Ok(())
        }
        "session" => Err(PlanError::unsupported("SESSION windows are not supported")
            .hint("Use TUMBLE or HOP, or GROUP BY date_bin(…).")),
        "pg_series" => Ok(()),
        _ => Err(
            PlanError::unsupported(format!("function {function} in FROM is not supported")).hint(
                "TUMBLE, HOP, generate_series, unnest, jsonb_each, jsonb_array_elements and their kin may stand there.",
            ),
        ),
    }
}

/// The arguments of a window function in FROM.
struct WindowCall {
    /// The relation.
    name: ObjectName,
    /// Its name without schema.
    bare: String,
    /// The time column.
    column: Expr,
    /// Intervals after it.
    intervals: Vec<Expr>,
}

impl WindowCall {
    fn new(args: &[FunctionArg], usage: impl Fn() -> PlanError) -> Result<Self> {
        let mut exprs = Vec::new();
        for a in args {
            match a {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => exprs.push(e.clone()),
                _ => return Err(usage()),
            }
        }
        let mut exprs = exprs.into_iter();
        let (Some(relation), Some(column)) = (exprs.next(), exprs.next()) else {
            return Err(usage());
        };
        let name = match relation {
            Expr::Identifier(i) => ObjectName::from(vec![i]),
            Expr::CompoundIdentifier(parts) => ObjectName::from(parts),
            _ => return Err(usage()),
        };
        let (_, bare) = object_name(&name)?;
        Ok(Self {
            name,
            bare,
            column,
            intervals: exprs.collect(),
        })
    }

    /// The start of the window of this width that holds the time.
    fn bin(&self, width: &Expr, offset: Option<&Expr>) -> Expr {
        let epoch = string("1970-01-01 00:00:00");
        let origin = match offset {
            None => epoch,
            Some(o) => binary(
                cast(epoch, ast::DataType::Timestamp(None, TimezoneInfo::None)),
                BinaryOperator::Plus,
                o.clone(),
            ),
        };
        function("date_bin", vec![width.clone(), self.column.clone(), origin])
    }

    /// `SELECT *, start AS window_start, end AS window_end FROM relation [WHERE condition]`.
    fn select(&self, start: Expr, end: Expr, condition: Option<Expr>) -> Result<SetExpr> {
        let mut query = super::parse::parse_query("SELECT *, 1 AS window_start, 2 AS window_end FROM t")?;
        if let SetExpr::Select(s) = query.body.as_mut() {
            for (item, e) in s.projection.iter_mut().skip(1).zip([start, end]) {
                if let SelectItem::ExprWithAlias { expr, .. } = item {
                    *expr = e;
                }
            }
            if let Some(from) = s.from.first_mut()
                && let TableFactor::Table { name: n, .. } = &mut from.relation
            {
                n.clone_from(&self.name);
            }
            s.selection = condition;
        }
        Ok(*query.body)
    }

    fn derived(&self, body: SetExpr, alias: Option<TableAlias>) -> Result<TableFactor> {
        let mut subquery = super::parse::parse_query("SELECT 1")?;
        *subquery.body = body;
        Ok(TableFactor::Derived {
            lateral: false,
            subquery,
            alias: Some(alias.unwrap_or_else(|| table_alias(&self.bare))),
            sample: None,
        })
    }
}

fn binary(l: Expr, op: BinaryOperator, r: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(l),
        op,
        right: Box::new(r),
    }
}

pub(super) fn tumble(args: &[FunctionArg], alias: Option<TableAlias>) -> Result<TableFactor> {
    let usage = || {
        PlanError::new(
            "42883",
            "TUMBLE takes a relation, a time column, an interval and, if wanted, an offset interval",
        )
        .hint("Write TUMBLE(bid, date_time, INTERVAL '10 seconds').")
    };
    let call = WindowCall::new(args, usage)?;
    let (width, offset) = match call.intervals.as_slice() {
        [w] => (w, None),
        [w, o] => (w, Some(o)),
        _ => return Err(usage()),
    };
    let start = call.bin(width, offset);
    let end = binary(start.clone(), BinaryOperator::Plus, width.clone());
    call.derived(call.select(start, end, None)?, alias)
}

/// Windows that may hold one row; each is a branch of the plan.
const HOP_WINDOWS_MAX: i64 = 128;

/// HOP(relation, column, slide, size[, offset]): each row once in every window of `size` that begins at a multiple of `slide` and holds it.
/// A row whose time is NULL is in no window.
fn hop(args: &[FunctionArg], alias: Option<TableAlias>) -> Result<TableFactor> {
    let usage = || {
        PlanError::new(
            "42883",
            "HOP takes a relation, a time column, the slide, the size and, if wanted, an offset interval",
        )
        .hint("Write HOP(bid, date_time, INTERVAL '2 seconds', INTERVAL '10 seconds').")
    };
    let call = WindowCall::new(args, usage)?;
    let (slide, size, offset) = match call.intervals.as_slice() {
        [slide, size] => (slide, size, None),
        [slide, size, o] => (slide, size, Some(o)),
        _ => return Err(usage()),
    };
    let (slide_us, size_us) = (constant_micros(slide)?, constant_micros(size)?);
    let windows = (size_us - 1) / slide_us + 1;
    if windows > HOP_WINDOWS_MAX {
        return Err(
            PlanError::unsupported(format!("HOP with {windows} windows for each row is not supported"))
                .hint(format!("The size may be at most {HOP_WINDOWS_MAX} slides.")),
        );
    }
    let micros = |us: i64| {
        cast(
            string(&format!("{us} microseconds")),
            ast::DataType::Interval {
                fields: None,
                precision: None,
            },
        )
    };
    let mut body: Option<SetExpr> = None;
    for k in 0..windows {
        let mut start = call.bin(slide, offset);
        if k > 0 {
            start = binary(start, BinaryOperator::Minus, micros(k * slide_us));
        }
        let end = binary(start.clone(), BinaryOperator::Plus, micros(size_us));
        // Only in the earliest window may a row lie behind the end.
        let partial = (k + 1) * slide_us > size_us;
        let condition = if partial {
            binary(call.column.clone(), BinaryOperator::Lt, end.clone())
        } else {
            Expr::IsNotNull(Box::new(call.column.clone()))
        };
        let branch = call.select(start, end, Some(condition))?;
        body = Some(match body {
            None => branch,
            Some(before) => SetExpr::SetOperation {
                op: SetOperator::Union,
                set_quantifier: SetQuantifier::All,
                left: Box::new(before),
                right: Box::new(branch),
            },
        });
    }
    call.derived(body.ok_or_else(usage)?, alias)
}

/// The length of a constant interval.
fn constant_micros(e: &Expr) -> Result<i64> {
    let text = match e {
        Expr::Interval(i) => super::literals::interval_text(i)?,
        Expr::Cast {
            expr,
            data_type: ast::DataType::Interval { .. },
            ..
        } => match expr.as_ref() {
            Expr::Value(v) => v.value.clone().into_string(),
            _ => None,
        },
        Expr::Value(v) => v.value.clone().into_string(),
        _ => None,
    };
    let text = text.ok_or_else(|| {
        PlanError::unsupported("HOP with a slide or size that is not a constant is not supported")
            .hint("Write INTERVAL '10 seconds'.")
    })?;
    let value = super::datetime::parse_interval(&text)
        .map_err(|_| PlanError::new("22007", format!("invalid input syntax for type interval: \"{text}\"")))?;
    if value.months != 0 {
        return Err(PlanError::unsupported("HOP with months or years is not supported")
            .hint("Windows have a fixed length: use days."));
    }
    let micros = i64::from(value.days)
        .checked_mul(86_400_000_000)
        .and_then(|days| days.checked_add(value.nanoseconds / 1000));
    micros
        .filter(|us| *us > 0)
        .ok_or_else(|| PlanError::new("22008", "the slide and size of HOP must be greater than zero"))
}
