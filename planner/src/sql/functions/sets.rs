//! Arrays that stand for the rows of functions that return sets: see [`crate::sql`]'s sets.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewBuilder, Int32Builder, Int64Array, Int64Builder, LargeBinaryBuilder, ListArray,
    StringBuilder, TimestampMicrosecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNanoType, TimestampMicrosecondType};

use super::{PgFunction, all_valid, no_function};
use crate::PlanError;
use crate::sql::json::{self, Kind, raw};
use crate::sql::types::{JSON, JSONB, interval, item_of, list_of};

type Result<T> = std::result::Result<T, PlanError>;

/// Elements of one series.
const SERIES_MAX: usize = 10_000_000;

pub(super) fn functions() -> Vec<PgFunction> {
    let all = vec![
        PgFunction::new("pg_elements", |t, _| array("unnest", t), |a, _| first(a)),
        PgFunction::new("pg_ordinals", |_, _| Ok(list_of(DataType::Int64)), |a, _| ordinals(a)),
        PgFunction::new("pg_series_list", |t, _| series_type(t), series),
        PgFunction::new(
            "pg_jsonb_keys",
            |t, _| document("jsonb_object_keys", t, &JSONB, DataType::Utf8),
            |a, _| members(a, Part::Key),
        ),
        PgFunction::new(
            "pg_jsonb_values",
            |t, _| document("jsonb_each", t, &JSONB, JSONB),
            |a, _| members(a, Part::Value),
        ),
        PgFunction::new(
            "pg_jsonb_texts",
            |t, _| document("jsonb_each_text", t, &JSONB, DataType::Utf8),
            |a, _| members(a, Part::Text),
        ),
        PgFunction::new(
            "pg_jsonb_elements",
            |t, _| document("jsonb_array_elements", t, &JSONB, JSONB),
            |a, _| elements(a, Part::Value),
        ),
        PgFunction::new(
            "pg_jsonb_element_texts",
            |t, _| document("jsonb_array_elements_text", t, &JSONB, DataType::Utf8),
            |a, _| elements(a, Part::Text),
        ),
        PgFunction::new(
            "pg_json_elements",
            |t, _| document("json_array_elements", t, &JSON, JSON),
            |a, _| raw_elements(a, false),
        ),
        PgFunction::new(
            "pg_json_element_texts",
            |t, _| document("json_array_elements_text", t, &JSON, DataType::Utf8),
            |a, _| raw_elements(a, true),
        ),
    ];
    debug_assert!(all.iter().all(|f| is_set_function(f.name)));
    all
}

/// Is the name one of [`functions`]?
pub(crate) fn is_set_function(name: &str) -> bool {
    matches!(
        name,
        "pg_elements"
            | "pg_ordinals"
            | "pg_series_list"
            | "pg_jsonb_keys"
            | "pg_jsonb_values"
            | "pg_jsonb_texts"
            | "pg_jsonb_elements"
            | "pg_jsonb_element_texts"
            | "pg_json_elements"
            | "pg_json_element_texts"
    )
}

fn array(name: &str, t: &[DataType]) -> Result<DataType> {
    match t {
        [list @ DataType::List(_)] => Ok(list.clone()),
        _ => Err(no_function(name, t)),
    }
}

fn document(name: &str, t: &[DataType], wanted: &DataType, item: DataType) -> Result<DataType> {
    match t {
        [t] if t == wanted || t == &DataType::Null => Ok(list_of(item)),
        _ => Err(no_function(name, t)),
    }
}

fn first(a: &[ArrayRef]) -> Result<ArrayRef> {
    a.first()
        .map(Arc::clone)
        .ok_or_else(|| PlanError::internal("no argument"))
}

fn rows(a: &[ArrayRef]) -> usize {
    a.first().map_or(0, |a| a.len())
}

/// Lists of the given lengths over `values`; `None` is NULL.
fn lists(lengths: &[Option<usize>], values: ArrayRef) -> Result<ArrayRef> {
    let DataType::List(field) = list_of(values.data_type().clone()) else {
        return Err(PlanError::internal("a list type is none"));
    };
    let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|n| n.unwrap_or(0)));
    let nulls: NullBuffer = lengths.iter().map(Option::is_some).collect();
    let list = ListArray::try_new(field, offsets, values, Some(nulls)).map_err(crate::sql::map_arrow_error)?;
    Ok(Arc::new(list))
}

/// 1 to the length of the longest of the arrays.
fn ordinals(a: &[ArrayRef]) -> Result<ArrayRef> {
    let mut lengths = Vec::with_capacity(rows(a));
    let mut values = Int64Builder::new();
    for row in 0..rows(a) {
        let longest = a
            .iter()
            .filter_map(|a| a.as_list_opt::<i32>().filter(|l| l.is_valid(row)))
            .map(|l| i64::from(l.value_length(row)))
            .max();
        let n = longest.unwrap_or(0);
        (1..=n).for_each(|i| values.append_value(i));
        lengths.push(longest.and_then(|n| usize::try_from(n).ok()));
    }
    lists(&lengths, Arc::new(values.finish()))
}

fn series_type(t: &[DataType]) -> Result<DataType> {
    let known = match t {
        [a @ (DataType::Int32 | DataType::Int64), b, rest @ ..] => {
            a == b && rest.len() < 2 && rest.iter().all(|s| s == a)
        }
        [a @ DataType::Timestamp(..), b, step] => a == b && step == &interval(),
        _ => false,
    };
    match t.first() {
        Some(t) if known => Ok(list_of(t.clone())),
        _ => Err(no_function("generate_series", t)),
    }
}

fn series(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    match item_of(target) {
        Some(DataType::Int32) => {
            let wide: Vec<ArrayRef> = a
                .iter()
                .map(|a| arrow::compute::cast(a, &DataType::Int64).map_err(crate::sql::map_arrow_error))
                .collect::<Result<_>>()?;
            let (lengths, values) = integers(&wide)?;
            let narrow = values.as_primitive::<Int64Type>();
            let mut out = Int32Builder::with_capacity(narrow.len());
            for v in narrow.values() {
                // Between two integers are only integers.
                out.append_value(i32::try_from(*v).map_err(|_| PlanError::new("22003", "integer out of range"))?);
            }
            lists(&lengths, Arc::new(out.finish()))
        }
        Some(DataType::Int64) => {
            let (lengths, values) = integers(a)?;
            lists(&lengths, values)
        }
        Some(t @ DataType::Timestamp(..)) => {
            let (lengths, values) = moments(a)?;
            let values = arrow::compute::cast(&values, t).map_err(crate::sql::map_arrow_error)?;
            lists(&lengths, values)
        }
        other => Err(PlanError::internal(format!("generate_series of {other:?}"))),
    }
}

fn zero_step() -> PlanError {
    PlanError::new("22023", "step size cannot equal zero")
}

fn long_series() -> PlanError {
    PlanError::new(
        "54000",
        format!("a series of more than {SERIES_MAX} elements is not supported here"),
    )
    .hint("Give the bounds of generate_series in FROM as constants.")
}

type Series = (Vec<Option<usize>>, ArrayRef);

/// Adds `from` and what `next` makes of each, up (or down) to `to`; answers how many.
fn push_series(
    values: &mut Vec<i64>,
    from: i64,
    to: i64,
    upwards: bool,
    next: impl Fn(i64) -> Result<Option<i64>>,
) -> Result<usize> {
    let (mut at, before) = (Some(from), values.len());
    while let Some(value) = at.filter(|at| if upwards { *at <= to } else { *at >= to }) {
        if values.len() - before >= SERIES_MAX {
            return Err(long_series());
        }
        values.push(value);
        at = next(value)?;
    }
    Ok(values.len() - before)
}

fn integers(a: &[ArrayRef]) -> Result<Series> {
    let columns: Vec<&Int64Array> = a.iter().map(|a| a.as_primitive::<Int64Type>()).collect();
    let [from, to, rest @ ..] = columns.as_slice() else {
        return Err(PlanError::internal("generate_series without bounds"));
    };
    let mut lengths = Vec::with_capacity(from.len());
    let mut values: Vec<i64> = Vec::new();
    for row in 0..from.len() {
        if !all_valid(a, row) {
            lengths.push(None);
            continue;
        }
        let step = rest.first().map_or(1, |s| s.value(row));
        if step == 0 {
            return Err(zero_step());
        }
        let n = push_series(&mut values, from.value(row), to.value(row), step > 0, |at| {
            Ok(at.checked_add(step))
        })?;
        lengths.push(Some(n));
    }
    Ok((lengths, Arc::new(Int64Array::from(values))))
}

fn moments(a: &[ArrayRef]) -> Result<Series> {
    let [from, to, step] = a else {
        return Err(PlanError::internal("generate_series without a step"));
    };
    let (from, to) = (
        from.as_primitive::<TimestampMicrosecondType>(),
        to.as_primitive::<TimestampMicrosecondType>(),
    );
    let step = step.as_primitive::<IntervalMonthDayNanoType>();
    let mut lengths = Vec::with_capacity(from.len());
    let mut values: Vec<i64> = Vec::new();
    for row in 0..from.len() {
        if !all_valid(a, row) {
            lengths.push(None);
            continue;
        }
        let by = step.value(row);
        let length = i128::from(by.months) * 30 * 86_400_000_000_000
            + i128::from(by.days) * 86_400_000_000_000
            + i128::from(by.nanoseconds);
        if length == 0 {
            return Err(zero_step());
        }
        let n = push_series(&mut values, from.value(row), to.value(row), length > 0, |at| {
            super::arith::later(at, by).map(Some)
        })?;
        lengths.push(Some(n));
    }
    Ok((lengths, Arc::new(TimestampMicrosecondArray::from(values))))
}

/// What a set of a document's parts consists of.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
    Text,
}

/// Lists of parts of `jsonb` documents.
struct Parts {
    texts: StringBuilder,
    values: LargeBinaryBuilder,
}

impl Parts {
    fn push(&mut self, value: &[u8], as_text: bool) {
        let value = json::as_root(value.to_vec());
        if as_text {
            self.texts.append_option(json::text_value(&value));
        } else {
            self.values.append_value(value);
        }
    }
}

/// For each document what `parts` adds and counts; NULL for NULL.
fn parts_of(a: &[ArrayRef], part: Part, mut parts: impl FnMut(&[u8], &mut Parts) -> Result<usize>) -> Result<ArrayRef> {
    let docs = first(a)?;
    let docs = docs.as_binary::<i64>();
    let mut all = Parts {
        texts: StringBuilder::new(),
        values: LargeBinaryBuilder::new(),
    };
    let lengths = docs
        .iter()
        .map(|doc| doc.map(|doc| parts(doc, &mut all)).transpose())
        .collect::<Result<Vec<_>>>()?;
    match part {
        Part::Value => lists(&lengths, Arc::new(all.values.finish())),
        Part::Key | Part::Text => lists(&lengths, Arc::new(all.texts.finish())),
    }
}

fn members(a: &[ArrayRef], part: Part) -> Result<ArrayRef> {
    let function = match part {
        Part::Key => "jsonb_object_keys",
        Part::Value => "jsonb_each",
        Part::Text => "jsonb_each_text",
    };
    parts_of(a, part, |doc, out| {
        let what = match json::kind_of(doc) {
            Kind::Object => {
                let mut n = 0;
                for (key, value) in json::members(doc) {
                    n += 1;
                    match part {
                        Part::Key => out.texts.append_value(key),
                        Part::Value => out.push(value, false),
                        Part::Text => out.push(value, true),
                    }
                }
                return Ok(n);
            }
            Kind::Array => "an array",
            _ => "a scalar",
        };
        Err(PlanError::new("22023", format!("cannot call {function} on {what}")))
    })
}

fn no_array(kind: &str) -> PlanError {
    let what = match kind {
        "object" => "an object",
        _ => "a scalar",
    };
    PlanError::new("22023", format!("cannot extract elements from {what}"))
}

fn elements(a: &[ArrayRef], part: Part) -> Result<ArrayRef> {
    parts_of(a, part, |doc, out| {
        let kind = json::kind_of(doc);
        if kind != Kind::Array {
            return Err(no_array(kind.name()));
        }
        let mut n = 0;
        for value in json::elements(doc) {
            n += 1;
            out.push(value, matches!(part, Part::Text));
        }
        Ok(n)
    })
}

fn raw_elements(a: &[ArrayRef], text: bool) -> Result<ArrayRef> {
    let docs = first(a)?;
    let docs = docs.as_binary_view();
    let mut lengths = Vec::with_capacity(docs.len());
    let (mut texts, mut values) = (StringBuilder::new(), BinaryViewBuilder::new());
    for row in 0..docs.len() {
        if docs.is_null(row) {
            lengths.push(None);
            continue;
        }
        let doc = std::str::from_utf8(docs.value(row)).unwrap_or_default();
        let Some(found) = raw::elements(doc)? else {
            return Err(no_array(raw::type_name(doc)));
        };
        lengths.push(Some(found.len()));
        for value in found {
            if text {
                texts.append_option(raw::text_value(value)?);
            } else {
                values.append_value(value);
            }
        }
    }
    if text {
        return lists(&lengths, Arc::new(texts.finish()));
    }
    lists(&lengths, Arc::new(values.finish()))
}
