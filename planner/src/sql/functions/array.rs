//! Operators and functions of arrays, which are Arrow lists.
//!
//! Elements are compared by their row encoding (of canonical floats, with NULL as the greatest), so one piece of code serves all types.
//! [`pg_array_key`](functions) is an array's whole encoding: bytes that are equal and ordered as PostgreSQL's arrays are; comparisons use it.
//! [`crate::sql::collections`] has given the arguments their types.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanArray, Int32Array, ListArray, ListBuilder, PrimitiveBuilder,
    StringArray, StringBuilder, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{SortOptions, concat, take};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type, IntervalMonthDayNanoType};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::ScalarValue;

use super::{PgFunction, all_valid, no_function};
use crate::PlanError;
use crate::sql::array_text::{ELEMENTS_MAX, several_dimensions};
use crate::sql::types::{item_of, list_of};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    let array = |t: &[DataType], _: &[Option<&ScalarValue>]| first_list(t);
    let int = |t: &[DataType], _: &[Option<&ScalarValue>]| first_list(t).map(|_| DataType::Int32);
    let boolean = |_: &[DataType], _: &[Option<&ScalarValue>]| Ok(DataType::Boolean);
    vec![
        PgFunction::new("pg_array", |t, _| literal_type(t), literal).or_nullary(),
        PgFunction::new(
            "pg_only_row",
            |t, _| Ok(t.first().cloned().unwrap_or(DataType::Null)),
            only_row,
        ),
        PgFunction::new("pg_array_key", |_, _| Ok(DataType::Binary), |a, _| key(a)),
        PgFunction::new("pg_subscript", |t, _| item_type(t), |a, _| subscript(a)),
        PgFunction::new("pg_slice", array, |a, _| slice(a)),
        PgFunction::new("pg_any", boolean, |a, _| quantified(a, false)),
        PgFunction::new("pg_all", boolean, |a, _| quantified(a, true)),
        PgFunction::new("pg_array_contains", boolean, |a, _| sets(a, Sets::Contains)),
        PgFunction::new("pg_array_overlap", boolean, |a, _| sets(a, Sets::Overlap)),
        PgFunction::new("array_cat", array, |a, _| cat(a)),
        PgFunction::new("array_append", array, |a, _| add(a, 0, 1, false)),
        PgFunction::new("array_prepend", |t, _| second_list(t), |a, _| add(a, 1, 0, true)),
        PgFunction::new("array_remove", array, |a, _| remove(a)),
        PgFunction::new("array_replace", array, |a, _| replace(a)),
        PgFunction::new("array_position", int, |a, _| position(a)),
        PgFunction::new(
            "array_positions",
            |t, _| first_list(t).map(|_| list_of(DataType::Int32)),
            |a, _| positions(a),
        ),
        PgFunction::new("cardinality", int, |a, _| length(a, false)),
        PgFunction::new("array_length", int, |a, _| length(a, true)),
        PgFunction::new("array_upper", int, |a, _| length(a, true)),
        PgFunction::new("array_lower", int, |a, _| lower(a)),
        PgFunction::new("array_ndims", int, |a, _| dimensions(a)),
        PgFunction::new("array_dims", |_, _| Ok(DataType::Utf8), |a, _| dims(a)),
        PgFunction::new("array_to_string", |_, _| Ok(DataType::Utf8), |a, _| to_string(a)),
        PgFunction::new(
            "string_to_array",
            |_, _| Ok(list_of(DataType::Utf8)),
            |a, _| of_string(a),
        ),
    ]
}

fn literal_type(t: &[DataType]) -> Result<DataType> {
    let item = t.first().cloned().unwrap_or(DataType::Null);
    if item.is_nested() {
        return Err(several_dimensions());
    }
    Ok(list_of(item))
}

fn first_list(t: &[DataType]) -> Result<DataType> {
    match t.first() {
        Some(list @ DataType::List(_)) => Ok(list.clone()),
        Some(DataType::Null) => Ok(list_of(DataType::Utf8)),
        _ => Err(no_function("array function", t)),
    }
}

fn second_list(t: &[DataType]) -> Result<DataType> {
    first_list(t.get(1..).unwrap_or_default())
}

fn item_type(t: &[DataType]) -> Result<DataType> {
    let list = first_list(t)?;
    Ok(item_of(&list).cloned().unwrap_or(DataType::Null))
}

fn argument(a: &[ArrayRef], i: usize) -> Result<&ArrayRef> {
    a.get(i)
        .ok_or_else(|| PlanError::internal(format!("argument {i} is missing")))
}

/// Argument `i` as arrays; `like` is the type that stands in for an untyped NULL.
fn lists(a: &[ArrayRef], i: usize) -> Result<ListArray> {
    let array = argument(a, i)?;
    match array.data_type() {
        DataType::List(_) => Ok(array.as_list::<i32>().clone()),
        DataType::Null => {
            let t = a.iter().map(|a| a.data_type()).find(|t| matches!(t, DataType::List(_)));
            let t = t.cloned().unwrap_or_else(|| list_of(DataType::Utf8));
            Ok(super::nulls(&t, array.len()).as_list::<i32>().clone())
        }
        other => Err(PlanError::internal(format!("{other} is no array"))),
    }
}

fn ints(a: &[ArrayRef], i: usize) -> Result<&Int32Array> {
    super::downcast::<Int32Array>(a, i)
}

fn internal(e: impl std::fmt::Display) -> PlanError {
    PlanError::internal(e.to_string())
}

/// The range of a row's elements.
fn range(list: &ListArray, row: usize) -> std::ops::Range<usize> {
    let at = |i: usize| {
        list.value_offsets()
            .get(i)
            .and_then(|o| usize::try_from(*o).ok())
            .unwrap_or(0)
    };
    if list.is_null(row) { 0..0 } else { at(row)..at(row + 1) }
}

/// Values whose row encodings are equal and ordered as PostgreSQL compares the values.
fn comparable(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float64 => {
            let canonical = |v: f64| if v.is_nan() { f64::NAN } else { v + 0.0 };
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical))
        }
        DataType::Float32 => {
            let canonical = |v: f32| if v.is_nan() { f32::NAN } else { v + 0.0 };
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(canonical))
        }
        DataType::Interval(_) => {
            let length = |v: arrow::datatypes::IntervalMonthDayNano| {
                let days = i128::from(v.months) * 30 + i128::from(v.days);
                days * 86_400_000_000_000 + i128::from(v.nanoseconds)
            };
            let lengths = values.as_primitive::<IntervalMonthDayNanoType>();
            Arc::new(lengths.unary::<_, arrow::datatypes::Decimal128Type>(length))
        }
        _ => Arc::clone(values),
    }
}

/// Encodings of columns of one type, comparable with each other.
fn encode<const N: usize>(columns: [&ArrayRef; N]) -> Result<[Rows; N]> {
    let columns = columns.map(comparable);
    let t = columns.first().map_or(DataType::Null, |c| c.data_type().clone());
    let converter =
        RowConverter::new(vec![SortField::new_with_options(t, SortOptions::new(false, false))]).map_err(internal)?;
    let mut out = Vec::with_capacity(N);
    for column in columns {
        out.push(converter.convert_columns(&[column]).map_err(internal)?);
    }
    out.try_into().map_err(|_| PlanError::internal("columns were lost"))
}

/// Builds arrays by picking elements of a pool.
struct Picker {
    pool: ArrayRef,
    picked: Vec<u64>,
    offsets: Vec<i32>,
    valid: Vec<bool>,
}

impl Picker {
    fn new(pool: ArrayRef, rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self {
            pool,
            picked: Vec::new(),
            offsets,
            valid: Vec::with_capacity(rows),
        }
    }

    fn pick(&mut self, elements: impl Iterator<Item = usize>) {
        self.picked.extend(elements.map(|e| e as u64));
    }

    /// Ends a row.
    fn end(&mut self, valid: bool) -> Result<()> {
        let start = self.offsets.last().copied().unwrap_or(0);
        let end = i32::try_from(self.picked.len()).map_err(|_| too_many())?;
        if usize::try_from(end - start).unwrap_or(0) > ELEMENTS_MAX {
            return Err(too_many());
        }
        self.offsets.push(end);
        self.valid.push(valid);
        Ok(())
    }

    fn finish(self) -> Result<ArrayRef> {
        let values = take(&self.pool, &UInt64Array::from(self.picked), None).map_err(internal)?;
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let nulls = NullBuffer::from(self.valid);
        let offsets = OffsetBuffer::new(self.offsets.into());
        Ok(Arc::new(
            ListArray::try_new(field, offsets, values, Some(nulls)).map_err(internal)?,
        ))
    }
}

fn too_many() -> PlanError {
    PlanError::new(
        "54000",
        format!("array size exceeds the maximum allowed ({ELEMENTS_MAX})"),
    )
}

fn pool(parts: &[&ArrayRef]) -> Result<ArrayRef> {
    let parts: Vec<&dyn Array> = parts.iter().map(|p| p.as_ref()).collect();
    concat(&parts).map_err(internal)
}

/// `ARRAY[…]`.
fn literal(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let Some(first) = a.first() else {
        let none = arrow::array::new_empty_array(item_of(target).unwrap_or(&DataType::Null));
        let mut picker = Picker::new(none, 1);
        picker.end(true)?;
        return picker.finish();
    };
    let rows = first.len();
    let mut picker = Picker::new(pool(&a.iter().collect::<Vec<_>>())?, rows);
    for row in 0..rows {
        picker.pick((0..a.len()).map(|i| i * rows + row));
        picker.end(true)?;
    }
    picker.finish()
}

/// Bytes for comparisons: each element's encoding behind a 1, a 0 at the end, so that a prefix sorts first.
/// The value of a subquery's row, given how many rows it has.
fn only_row(a: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let [value, rows] = a else {
        return Err(PlanError::internal("a value and a number of rows are needed"));
    };
    let most = arrow::compute::max(rows.as_primitive::<Int64Type>());
    if most.is_some_and(|n| n > 1) {
        return Err(PlanError::new(
            "21000",
            "more than one row returned by a subquery used as an expression",
        ));
    }
    Ok(Arc::clone(value))
}

fn key(a: &[ArrayRef]) -> Result<ArrayRef> {
    let list = lists(a, 0)?;
    let [rows] = encode([list.values()])?;
    let mut out = BinaryBuilder::new();
    let mut bytes = Vec::new();
    for row in 0..list.len() {
        if list.is_null(row) {
            out.append_null();
            continue;
        }
        bytes.clear();
        for element in range(&list, row) {
            bytes.push(1);
            bytes.extend_from_slice(rows.row(element).data());
        }
        bytes.push(0);
        out.append_value(&bytes);
    }
    Ok(Arc::new(out.finish()))
}

fn subscript(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (list, at) = (lists(a, 0)?, ints(a, 1)?);
    let picked: UInt64Array = (0..list.len())
        .map(|row| {
            let range = range(&list, row);
            let at = at
                .is_valid(row)
                .then(|| usize::try_from(at.value(row)).ok())
                .flatten()?;
            (at >= 1 && at <= range.len()).then(|| (range.start + at - 1) as u64)
        })
        .collect();
    take(list.values(), &picked, None).map_err(internal)
}

/// `a[lower:upper]`; the fourth argument names the bounds that are given: `b`oth, `l`ower, `u`pper, `n`one.
fn slice(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (list, lower, upper) = (lists(a, 0)?, ints(a, 1)?, ints(a, 2)?);
    let given = super::downcast::<StringArray>(a, 3)?;
    let mut picker = Picker::new(Arc::clone(list.values()), list.len());
    for row in 0..list.len() {
        let elements = range(&list, row);
        let given = given.value(row);
        let (use_lower, use_upper) = (matches!(given, "b" | "l"), matches!(given, "b" | "u"));
        let valid = list.is_valid(row) && (!use_lower || lower.is_valid(row)) && (!use_upper || upper.is_valid(row));
        if valid {
            let length = i64::try_from(elements.len()).unwrap_or(0);
            let from = if use_lower { i64::from(lower.value(row)) } else { 1 }.max(1);
            let to = if use_upper { i64::from(upper.value(row)) } else { length }.min(length);
            let at = |n: i64| elements.start + usize::try_from(n).unwrap_or(0);
            if from <= to {
                picker.pick(at(from - 1)..at(to));
            }
        }
        picker.end(valid)?;
    }
    picker.finish()
}

/// Does `ordering` answer the operator?
fn holds(op: &str, ordering: Ordering) -> bool {
    match op {
        "=" => ordering.is_eq(),
        "<>" => ordering.is_ne(),
        "<" => ordering.is_lt(),
        "<=" => ordering.is_le(),
        ">" => ordering.is_gt(),
        _ => ordering.is_ge(),
    }
}

/// `x op ANY (array)` and `x op ALL (array)`.
fn quantified(a: &[ArrayRef], all: bool) -> Result<ArrayRef> {
    let (x, op, list) = (argument(a, 0)?, super::downcast::<StringArray>(a, 1)?, lists(a, 2)?);
    let [xs, items] = encode([x, list.values()])?;
    let nulls = list.values().logical_nulls();
    let x_nulls = x.logical_nulls();
    let mut out = Vec::with_capacity(list.len());
    for row in 0..list.len() {
        let elements = range(&list, row);
        if list.is_null(row) {
            out.push(None);
            continue;
        }
        if elements.is_empty() {
            out.push(Some(all));
            continue;
        }
        if x_nulls.as_ref().is_some_and(|n| n.is_null(row)) {
            out.push(None);
            continue;
        }
        let mut unknown = false;
        let mut decided = None;
        for element in elements {
            if nulls.as_ref().is_some_and(|n| n.is_null(element)) {
                unknown = true;
            } else if holds(op.value(row), xs.row(row).cmp(&items.row(element))) != all {
                decided = Some(!all);
                break;
            }
        }
        out.push(decided.or(if unknown { None } else { Some(all) }));
    }
    Ok(Arc::new(BooleanArray::from(out)))
}

#[derive(Clone, Copy, PartialEq)]
enum Sets {
    Contains,
    Overlap,
}

/// `@>` and `&&`. NULL elements equal nothing.
fn sets(a: &[ArrayRef], what: Sets) -> Result<ArrayRef> {
    let (l, r) = (lists(a, 0)?, lists(a, 1)?);
    let [left, right] = encode([l.values(), r.values()])?;
    let present = |list: &ListArray, row: usize| -> Vec<usize> {
        let nulls = list.values().logical_nulls();
        let is_null = |e: usize| nulls.as_ref().is_some_and(|n| n.is_null(e));
        range(list, row).filter(|e| !is_null(*e)).collect()
    };
    let test = |row: usize| {
        if l.is_null(row) || r.is_null(row) {
            return None;
        }
        let (wanted, among) = (present(&r, row), present(&l, row));
        let found = |e: &usize| among.iter().any(|x| left.row(*x) == right.row(*e));
        Some(match what {
            Sets::Overlap => wanted.iter().any(found),
            Sets::Contains => wanted.len() == range(&r, row).len() && wanted.iter().all(found),
        })
    };
    Ok(Arc::new((0..l.len()).map(test).collect::<BooleanArray>()))
}

/// `a || b`: NULL is as if it were not there.
fn cat(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (l, r) = (lists(a, 0)?, lists(a, 1)?);
    let shift = l.values().len();
    let mut picker = Picker::new(pool(&[l.values(), r.values()])?, l.len());
    for row in 0..l.len() {
        picker.pick(range(&l, row));
        picker.pick(range(&r, row).map(|e| e + shift));
        picker.end(l.is_valid(row) || r.is_valid(row))?;
    }
    picker.finish()
}

/// The array of argument `list` with the value of argument `value` in front or behind.
fn add(a: &[ArrayRef], list: usize, value: usize, front: bool) -> Result<ArrayRef> {
    let (list, value) = (lists(a, list)?, argument(a, value)?);
    let shift = list.values().len();
    let mut picker = Picker::new(pool(&[list.values(), value])?, list.len());
    for row in 0..list.len() {
        if front {
            picker.pick(std::iter::once(shift + row));
        }
        picker.pick(range(&list, row));
        if !front {
            picker.pick(std::iter::once(shift + row));
        }
        picker.end(true)?;
    }
    picker.finish()
}

fn remove(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (list, value) = (lists(a, 0)?, argument(a, 1)?);
    let [items, values] = encode([list.values(), value])?;
    let mut picker = Picker::new(Arc::clone(list.values()), list.len());
    for row in 0..list.len() {
        picker.pick(range(&list, row).filter(|e| items.row(*e) != values.row(row)));
        picker.end(list.is_valid(row))?;
    }
    picker.finish()
}

fn replace(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (list, from, to) = (lists(a, 0)?, argument(a, 1)?, argument(a, 2)?);
    let [items, wanted] = encode([list.values(), from])?;
    let shift = list.values().len();
    let mut picker = Picker::new(pool(&[list.values(), to])?, list.len());
    for row in 0..list.len() {
        let same = |e: usize| items.row(e) == wanted.row(row);
        picker.pick(range(&list, row).map(|e| if same(e) { shift + row } else { e }));
        picker.end(list.is_valid(row))?;
    }
    picker.finish()
}

/// Places, counted from 1, of the elements equal to the second argument; NULL is found too.
fn places(a: &[ArrayRef]) -> Result<Vec<Option<Vec<i32>>>> {
    let (list, value) = (lists(a, 0)?, argument(a, 1)?);
    let [items, values] = encode([list.values(), value])?;
    let find = |row: usize| {
        list.is_valid(row).then(|| {
            let same = |(_, e): &(i32, usize)| items.row(*e) == values.row(row);
            (1..).zip(range(&list, row)).filter(same).map(|(n, _)| n).collect()
        })
    };
    Ok((0..list.len()).map(find).collect())
}

fn position(a: &[ArrayRef]) -> Result<ArrayRef> {
    let start = if a.len() > 2 { Some(ints(a, 2)?) } else { None };
    let null_start = || PlanError::new("22004", "initial position must not be null");
    let mut out = Vec::new();
    for (row, places) in places(a)?.into_iter().enumerate() {
        let from = match start {
            None => 1,
            Some(s) if s.is_null(row) => return Err(null_start()),
            Some(s) => s.value(row),
        };
        out.push(places.and_then(|p| p.into_iter().find(|p| *p >= from)));
    }
    Ok(Arc::new(Int32Array::from(out)))
}

fn positions(a: &[ArrayRef]) -> Result<ArrayRef> {
    let mut out = ListBuilder::new(PrimitiveBuilder::<Int32Type>::new());
    for places in places(a)? {
        match places {
            Some(p) => {
                out.values().append_slice(&p);
                out.append(true);
            }
            None => out.append(false),
        }
    }
    Ok(Arc::new(out.finish()))
}

/// Number of elements; with a dimension as second argument NULL for an empty array and other dimensions.
fn length(a: &[ArrayRef], dimension: bool) -> Result<ArrayRef> {
    let list = lists(a, 0)?;
    let first = first_dimension(a, dimension)?;
    let n = |row: usize| {
        let n = range(&list, row).len();
        let given = list.is_valid(row) && first(row) && !(dimension && n == 0);
        given.then(|| i32::try_from(n).unwrap_or(i32::MAX))
    };
    Ok(Arc::new((0..list.len()).map(n).collect::<Int32Array>()))
}

/// Does the second argument say 1?
fn first_dimension(a: &[ArrayRef], asked: bool) -> Result<impl Fn(usize) -> bool> {
    let dimension = if asked { Some(ints(a, 1)?.clone()) } else { None };
    Ok(move |row: usize| dimension.as_ref().is_none_or(|d| d.is_valid(row) && d.value(row) == 1))
}

fn lower(a: &[ArrayRef]) -> Result<ArrayRef> {
    let list = lists(a, 0)?;
    let first = first_dimension(a, true)?;
    let one = |row: usize| (!range(&list, row).is_empty() && first(row)).then_some(1);
    Ok(Arc::new((0..list.len()).map(one).collect::<Int32Array>()))
}

fn dimensions(a: &[ArrayRef]) -> Result<ArrayRef> {
    let list = lists(a, 0)?;
    let one = |row: usize| (!range(&list, row).is_empty()).then_some(1);
    Ok(Arc::new((0..list.len()).map(one).collect::<Int32Array>()))
}

fn dims(a: &[ArrayRef]) -> Result<ArrayRef> {
    let list = lists(a, 0)?;
    let text = |row: usize| {
        let n = range(&list, row).len();
        (n > 0).then(|| format!("[1:{n}]"))
    };
    Ok(Arc::new((0..list.len()).map(text).collect::<StringArray>()))
}

/// `array_to_string(array, delimiter[, text of NULL])`.
fn to_string(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (list, delimiter) = (lists(a, 0)?, super::downcast::<StringArray>(a, 1)?);
    let null_text = if a.len() > 2 {
        Some(super::downcast::<StringArray>(a, 2)?)
    } else {
        None
    };
    let texts = super::cast::element_texts(list.values())?;
    let texts = texts.as_string::<i32>();
    let mut out = StringBuilder::new();
    for row in 0..list.len() {
        if list.is_null(row) || delimiter.is_null(row) {
            out.append_null();
            continue;
        }
        let null = null_text.filter(|t| t.is_valid(row)).map(|t| t.value(row));
        let parts = range(&list, row).filter_map(|e| if texts.is_valid(e) { Some(texts.value(e)) } else { null });
        out.append_value(parts.collect::<Vec<_>>().join(delimiter.value(row)));
    }
    Ok(Arc::new(out.finish()))
}

/// `string_to_array(text, delimiter[, text of NULL])`.
fn of_string(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (text, delimiter) = (
        super::downcast::<StringArray>(a, 0)?,
        super::downcast::<StringArray>(a, 1)?,
    );
    let null_text = if a.len() > 2 {
        Some(super::downcast::<StringArray>(a, 2)?)
    } else {
        None
    };
    let mut out = ListBuilder::new(StringBuilder::new());
    for row in 0..text.len() {
        if !all_valid(&a[..1], row) {
            out.append(false);
            continue;
        }
        let null = null_text.filter(|t| t.is_valid(row)).map(|t| t.value(row));
        let mut put = |part: &str| out.values().append_option((Some(part) != null).then_some(part));
        let text = text.value(row);
        if text.is_empty() {
            // No elements.
        } else if delimiter.is_null(row) {
            let mut buffer = [0; 4];
            text.chars().for_each(|c| put(c.encode_utf8(&mut buffer)));
        } else if delimiter.value(row).is_empty() {
            put(text);
        } else {
            text.split(delimiter.value(row)).for_each(put);
        }
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays(values: &[Option<Vec<Option<f64>>>]) -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(
            values.iter().cloned(),
        ))
    }

    /// `ORDER BY` of PostgreSQL 15.
    #[test]
    fn keys_sort_as_arrays_do() {
        let sorted: Vec<Option<Vec<Option<f64>>>> = vec![
            Some(vec![]),
            Some(vec![Some(-1.0)]),
            Some(vec![Some(-0.0)]),
            Some(vec![Some(0.0), Some(1.0)]),
            Some(vec![Some(0.0), None]),
            Some(vec![Some(1.0)]),
            Some(vec![Some(f64::NAN)]),
            Some(vec![None]),
            Some(vec![None, None]),
        ];
        let keys = key(&[arrays(&sorted)]).unwrap();
        let keys: Vec<&[u8]> = keys.as_binary::<i32>().iter().flatten().collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        let zeros = key(&[arrays(&[Some(vec![Some(0.0)]), Some(vec![Some(-0.0)]), None])]).unwrap();
        let zeros = zeros.as_binary::<i32>();
        assert!(zeros.value(0) == zeros.value(1) && zeros.is_null(2));
    }

    #[test]
    fn slices_of_sliced_columns() {
        let all = arrays(&[
            Some(vec![Some(9.0)]),
            None,
            Some(vec![Some(1.0), None, Some(3.0)]),
            Some(vec![]),
        ]);
        let list = all.slice(1, 3);
        let one: ArrayRef = Arc::new(Int32Array::from(vec![3; 3]));
        let picked = subscript(&[Arc::clone(&list), one]).unwrap();
        let picked = picked.as_primitive::<Float64Type>();
        assert!(picked.is_null(0) && picked.value(1) == 3.0 && picked.is_null(2));
        let n = length(&[list], false).unwrap();
        assert_eq!(
            n.as_primitive::<Int32Type>().iter().collect::<Vec<_>>(),
            [None, Some(3), Some(0)]
        );
    }
}
