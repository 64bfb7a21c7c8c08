//! Text functions that DataFusion lacks or answers differently.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, StringArray};
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
        PgFunction::new(
            "quote_ident",
            |t, _| text("quote_ident", t),
            |a, _| map(a, crate::sql::quote_ident),
        ),
        PgFunction::new("chr", |t, _| counted("chr", t, 0), chr),
        PgFunction::new("octet_length", octets_type, octets),
        PgFunction::new("repeat", |t, _| counted("repeat", t, 1), repeat),
        PgFunction::new("lpad", |t, _| pad_type("lpad", t), |a, _| pad(a, true)),
        PgFunction::new("rpad", |t, _| pad_type("rpad", t), |a, _| pad(a, false)),
        PgFunction::new("pg_similar", |_, _| Ok(DataType::Boolean), similar),
    ]
}

fn text(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Utf8 | DataType::Null] => Ok(DataType::Utf8),
        _ => Err(no_function(name, t)),
    }
}

/// `texts` texts, then an integer.
fn counted(name: &str, t: &[DataType], texts: usize) -> Result<DataType> {
    let integer = |t: &DataType| matches!(t, DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Null);
    let (first, rest) = t.split_at(texts.min(t.len()));
    match rest {
        [n] if integer(n) && first.iter().all(|t| matches!(t, DataType::Utf8 | DataType::Null)) => Ok(DataType::Utf8),
        _ => Err(no_function(name, t)),
    }
}

fn pad_type(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [head @ .., DataType::Utf8 | DataType::Null] if head.len() == 2 => counted(name, head, 1),
        _ => counted(name, t, 1),
    }
}

/// The bytes that one value may have, as in PostgreSQL.
const VALUE_BYTES_MAX: usize = 0x3fff_ffff;

fn too_large() -> PlanError {
    PlanError::new("54000", "requested length too large")
}

/// Texts of a size that the arguments ask for; refused before they are made.
#[derive(Default)]
struct Sized {
    texts: arrow::array::StringBuilder,
    bytes: usize,
}

impl Sized {
    /// Asks for a text of `bytes`.
    fn reserve(&mut self, bytes: Option<usize>) -> Result<()> {
        let bytes = bytes.filter(|b| *b <= VALUE_BYTES_MAX).ok_or_else(too_large)?;
        self.bytes += bytes;
        if i32::try_from(self.bytes).is_err() {
            return Err(PlanError::new("54000", "texts of a batch exceed 2 GB"));
        }
        Ok(())
    }

    fn finish(mut self) -> ArrayRef {
        Arc::new(self.texts.finish())
    }
}

fn texts(args: &[ArrayRef], i: usize) -> Result<StringArray> {
    let a = args.get(i).ok_or_else(|| PlanError::internal("no argument"))?;
    match a.data_type() {
        DataType::Null => Ok(StringArray::new_null(a.len())),
        _ => downcast::<StringArray>(args, i).cloned(),
    }
}

fn integers(args: &[ArrayRef], i: usize) -> Result<Int64Array> {
    let a = args.get(i).ok_or_else(|| PlanError::internal("no argument"))?;
    let a = arrow::compute::cast(a, &DataType::Int64).map_err(|e| PlanError::internal(e.to_string()))?;
    Ok(a.as_primitive::<arrow::datatypes::Int64Type>().clone())
}

fn chr(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let letter = |n: i64| match u32::try_from(n) {
        Ok(0) => Err(PlanError::new("54000", "null character not permitted")),
        Ok(n) => char::from_u32(n)
            .map(String::from)
            .ok_or_else(|| PlanError::new("54000", format!("requested character too large for encoding: {n}"))),
        Err(_) => Err(PlanError::new("22023", "character number must be positive")),
    };
    let letters: StringArray = integers(args, 0)?
        .iter()
        .map(|n| n.map(letter).transpose())
        .collect::<Result<_>>()?;
    Ok(Arc::new(letters))
}

fn octets_type(t: &[DataType], _: &[Option<&datafusion::common::ScalarValue>]) -> Result<DataType> {
    match t {
        [DataType::Utf8 | DataType::Binary | DataType::Null] => Ok(DataType::Int32),
        _ => Err(no_function("octet_length", t)),
    }
}

fn octets(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let a = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    if a.data_type() == &DataType::Null {
        return Ok(super::nulls(&DataType::Int32, a.len()));
    }
    arrow::compute::kernels::length::length(a).map_err(|e| PlanError::internal(e.to_string()))
}

fn repeat(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let (texts, counts) = (texts(args, 0)?, integers(args, 1)?);
    let mut out = Sized::default();
    for (s, n) in texts.iter().zip(&counts) {
        let (Some(s), Some(n)) = (s, n) else {
            out.texts.append_null();
            continue;
        };
        let n = usize::try_from(n).unwrap_or(0);
        out.reserve(s.len().checked_mul(n))?;
        out.texts.append_value(s.repeat(n));
    }
    Ok(out.finish())
}

/// `lpad` and `rpad`: exactly so many characters.
fn pad(args: &[ArrayRef], left: bool) -> Result<ArrayRef> {
    let (texts_in, lengths) = (texts(args, 0)?, integers(args, 1)?);
    let fills = match args.len() {
        2 => StringArray::from(vec![" "; texts_in.len()]),
        _ => texts(args, 2)?,
    };
    let mut out = Sized::default();
    for ((s, n), fill) in texts_in.iter().zip(&lengths).zip(&fills) {
        let (Some(s), Some(n), Some(fill)) = (s, n, fill) else {
            out.texts.append_null();
            continue;
        };
        let n = usize::try_from(n).unwrap_or(0);
        let missing = n.saturating_sub(s.chars().count());
        // PostgreSQL counts four bytes for each character.
        if n.checked_mul(4).is_none_or(|b| b > VALUE_BYTES_MAX) {
            return Err(too_large());
        }
        out.reserve(Some(s.len() + missing * 4))?;
        let kept: String = s.chars().take(n).collect();
        let padding: String = fill.chars().cycle().take(missing).collect();
        out.texts
            .append_value(if left { padding + &kept } else { kept + &padding });
    }
    Ok(out.finish())
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
