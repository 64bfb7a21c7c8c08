//! Values assigned to columns: assignment casts, and literals that take their column's type.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::Expr;
use sqlparser::ast::{self, BinaryOperator, Value};

use super::errors::map_df_error;
use super::functions::call;
use super::operators::{self, Typed, coerce};
use super::types::{self, Modifier};
use super::typing::castable;
use crate::{PlanError, Result};

/// Marks a SET expression; the right operand tells the column (see [`target_text`]).
pub(super) const ASSIGN: [&str; 2] = ["levee", "assign"];

/// A column that is assigned to, as a literal that the typing hook can read.
pub(super) fn target_text(f: &Field) -> String {
    let modifier = match Modifier::of(f) {
        None => String::new(),
        Some(Modifier::Length(n)) => n.to_string(),
        Some(Modifier::Precision(n)) => format!("p{n}"),
    };
    let t = match types::item_of(f.data_type()) {
        Some(item) => format!("[]{item}"),
        None => f.data_type().to_string(),
    };
    format!("{t}\u{1}{modifier}\u{1}{}", f.name())
}

/// The column of [`target_text`].
pub(super) fn parse_target(text: &str) -> Option<Field> {
    let mut parts = text.splitn(3, '\u{1}');
    let t = parts.next()?;
    let t: DataType = match t.strip_prefix("[]") {
        Some(item) => types::list_of(item.parse().ok()?),
        None => t.parse().ok()?,
    };
    let modifier = parts.next()?;
    let field = Field::new(parts.next()?, t, true);
    let modifier = match modifier.strip_prefix('p') {
        Some(digits) => digits.parse().map(Modifier::Precision),
        None => modifier.parse().map(Modifier::Length),
    };
    Some(match modifier {
        Err(_) => field,
        Ok(modifier) => modifier.put_on(field),
    })
}

/// Has PostgreSQL an assignment cast?
fn assignable(from: &DataType, target: &DataType) -> bool {
    if let (Some(from), Some(target)) = (types::item_of(from), types::item_of(target)) {
        return assignable(from, target);
    }
    let is_json = |t: &DataType| t == &types::JSON || t == &types::JSONB;
    let ok = from == target
        || operators::is_text(target)
        || (operators::is_number(from) && operators::is_number(target))
        || (is_json(from) && is_json(target))
        || operators::pair_type(from, target).is_some()
        || (target == &types::TIME || target == &types::TIMETZ) && castable(from, target).is_ok();
    ok && (operators::is_text(target) || !operators::is_text(from))
}

/// An expression as a value of a column, in assignment context.
///
/// # Errors
/// 42804 where PostgreSQL has no assignment cast; literals that are not of the type.
pub(super) fn assign(t: Typed, column: &Field) -> Result<Expr> {
    let target = column.data_type();
    if let Some(from) = &t.ty
        && !assignable(from, target)
    {
        return Err(PlanError::new(
            "42804",
            format!(
                "column \"{}\" is of type {} but expression is of type {}",
                column.name(),
                types::pg_type_name(&Field::new("", target.clone(), true)),
                types::base_name(from)
            ),
        )
        .hint("You will need to rewrite or cast the expression."));
    }
    let e = coerce(t, target)?;
    match Modifier::of(column) {
        Some(Modifier::Precision(digits)) => rounded(e, digits).map_err(map_df_error),
        Some(Modifier::Length(n)) => {
            if let Expr::Literal(ScalarValue::Utf8(Some(s)), _) = &e
                && i64::try_from(s.len()).is_ok_and(|length| length <= n)
            {
                return Ok(e);
            }
            let n = Expr::Literal(ScalarValue::Int64(Some(n)), None);
            let implicit = Expr::Literal(ScalarValue::Boolean(Some(false)), None);
            call("pg_varchar", vec![e, n, implicit]).map_err(map_df_error)
        }
        None => Ok(e),
    }
}

/// A time with so many digits of a second.
pub(super) fn rounded(time: Expr, digits: i64) -> DfResult<Expr> {
    let digits = Expr::Literal(ScalarValue::Int64(Some(digits)), None);
    call("pg_time_precision", vec![time, digits])
}

/// The value of a literal cell, without a detour through the planner: most of what INSERT brings. `None`: not so simple.
pub(super) fn plain_literal(cell: &ast::Expr, column: &Field) -> Result<Option<Expr>> {
    let target = column.data_type();
    let (value, minus) = match cell {
        ast::Expr::Value(v) => (&v.value, false),
        ast::Expr::UnaryOp {
            op: ast::UnaryOperator::Minus,
            expr,
        } => match expr.as_ref() {
            ast::Expr::Value(v) if matches!(v.value, Value::Number(..)) => (&v.value, true),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let literal = match value {
        Value::Null => ScalarValue::Null,
        Value::SingleQuotedString(s) => ScalarValue::Utf8(Some(s.clone())),
        Value::Number(n, _) if target == &DataType::Int32 || target == &DataType::Int64 => {
            let text = if minus { format!("-{n}") } else { n.clone() };
            match text.parse::<i64>() {
                Ok(v) => ScalarValue::Int64(Some(v)),
                Err(_) => return Ok(None),
            }
        }
        Value::Number(n, _)
            if (target.is_floating() || target.is_decimal()) && n.bytes().all(|b| b.is_ascii_digit() || b == b'.') =>
        {
            // A literal is a numeric first, which has no negative zero.
            let minus = minus && n.bytes().any(|b| (b'1'..=b'9').contains(&b));
            ScalarValue::Utf8(Some(if minus { format!("-{n}") } else { n.clone() }))
        }
        _ => return Ok(None),
    };
    let typed = match &literal {
        ScalarValue::Int64(_) => Typed::new(Expr::Literal(literal.clone(), None), DataType::Int64),
        _ => Typed {
            expr: Expr::Literal(literal, None),
            ty: None,
        },
    };
    match assign(typed, column) {
        Err(e) if target.is_numeric() && e.code == "22003" && !matches!(value, Value::SingleQuotedString(_)) => {
            // The general path words the overflow of a number, this one would that of a text.
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// A string, NULL or parameter.
pub(super) fn untyped(e: &ast::Expr) -> bool {
    matches!(e, ast::Expr::Value(v) if !matches!(v.value, Value::Number(..)))
}

pub(super) fn mark_assign(e: ast::Expr, column: &Field) -> ast::Expr {
    ast::Expr::BinaryOp {
        left: Box::new(ast::Expr::Nested(Box::new(e))),
        op: BinaryOperator::PGCustomBinaryOperator(ASSIGN.iter().map(|s| (*s).to_owned()).collect()),
        right: Box::new(ast::Expr::Value(Value::SingleQuotedString(target_text(column)).into())),
    }
}
