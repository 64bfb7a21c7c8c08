//! Text functions that DataFusion lacks or answers differently.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, StringArray};
use arrow::datatypes::DataType;

use super::{PgFunction, downcast, no_function};
use crate::PlanError;

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    vec![
        PgFunction::new(
            "quote_literal",
            |t, _| text("quote_literal", t),
            |a, _| map(a, |s| quote(s, '\'')),
        ),
        PgFunction::new("quote_ident", |t, _| text("quote_ident", t), |a, _| map(a, quote_ident)),
        PgFunction::new("pg_interval_key", |_, _| Ok(DataType::Decimal128(38, 0)), interval_key),
        PgFunction::new("pg_similar", |_, _| Ok(DataType::Boolean), similar),
    ]
}

fn text(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Utf8 | DataType::Null] => Ok(DataType::Utf8),
        _ => Err(no_function(name, t)),
    }
}

fn map(args: &[ArrayRef], f: impl Fn(&str) -> String) -> Result<ArrayRef> {
    let a = downcast::<StringArray>(args, 0)?;
    let r: StringArray = a.iter().map(|s| s.map(&f)).collect();
    Ok(Arc::new(r))
}

fn quote(s: &str, q: char) -> String {
    let doubled: String = s
        .chars()
        .flat_map(|c| if c == q { vec![c, c] } else { vec![c] })
        .collect();
    format!("{q}{doubled}{q}")
}

fn quote_ident(s: &str) -> String {
    let plain = s.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && s.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { s.to_owned() } else { quote(s, '"') }
}

/// Microseconds with months of 30 days and days of 24 hours: the order of intervals.
fn interval_key(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let a = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    let r: arrow::array::Decimal128Array = a
        .as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>()
        .unary(|v| {
            (i128::from(v.months) * 30 + i128::from(v.days)) * i128::from(crate::sql::datetime::DAY_US)
                + i128::from(v.nanoseconds / 1000)
        });
    Ok(Arc::new(
        r.with_precision_and_scale(38, 0)
            .map_err(|e| PlanError::internal(e.to_string()))?,
    ))
}

/// `SIMILAR TO` over a pattern that has been turned into a regular expression by [`similar_pattern`].
fn similar(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let (a, p) = (downcast::<StringArray>(args, 0)?, downcast::<StringArray>(args, 1)?);
    let patterns: StringArray = p.iter().map(|s| s.map(similar_pattern)).collect();
    let r: BooleanArray = arrow::compute::kernels::comparison::regexp_is_match::<_, _, StringArray>(a, &patterns, None)
        .map_err(|e| PlanError::new("2201B", format!("invalid regular expression: {e}")))?;
    Ok(Arc::new(r))
}

/// SQL's regular expressions as POSIX ones: `%` and `_` are wild, the rest of the operators agree, the whole text must match.
fn similar_pattern(p: &str) -> String {
    let mut out = String::from("^(?:");
    let mut chars = p.chars();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                if let Some(next) = chars.next() {
                    if !next.is_alphanumeric() {
                        out.push('\\');
                    }
                    out.push(next);
                }
            }
            '[' => {
                in_class = true;
                out.push(c);
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            '%' if !in_class => out.push_str("(?s:.*)"),
            '_' if !in_class => out.push_str("(?s:.)"),
            '.' | '^' | '$' if !in_class => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out.push_str(")$");
    out
}
