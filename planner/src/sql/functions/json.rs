//! Operators and functions of json and jsonb.
//!
//! Operators are functions here: `j -> k` is `pg_json_get(j, k)`, `->>` `pg_json_get_text`, `#>` `pg_json_path`, `#>>` `pg_json_path_text`,
//! `@>` `pg_jsonb_contains`, `?` `pg_jsonb_exists`, `?|` and `?&` the same with `_any` and `_all`, `||` `pg_jsonb_concat`, `-`
//! `pg_jsonb_delete`. [`crate::sql::collections`] has typed their arguments: keys are text or integer, paths arrays of text.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BinaryViewBuilder, BooleanArray, Int32Array, LargeBinaryArray,
    LargeBinaryBuilder, StringArray,
};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type, TimeUnit};
use datafusion::common::ScalarValue;
use std::sync::Arc;

use super::{PgFunction, all_valid, no_function};
use crate::PlanError;
use crate::sql::json::{self, Kind, Value, raw};
use crate::sql::types::{JSON, JSONB};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn functions() -> Vec<PgFunction> {
    let text_type = |_: &[DataType], _: &[Option<&ScalarValue>]| Ok(DataType::Utf8);
    // These become paths when they are typed.
    let mut all: Vec<PgFunction> = [
        "json_extract_path",
        "jsonb_extract_path",
        "json_extract_path_text",
        "jsonb_extract_path_text",
    ]
    .into_iter()
    .map(|name| {
        PgFunction::new(
            name,
            |t, _| first(t),
            |_, _| Err(PlanError::internal("a path without a type")),
        )
    })
    .collect();
    all.extend([
        PgFunction::new("pg_json_get", |t, _| first(t), |a, t| access(a, t, step)),
        PgFunction::new("pg_json_get_text", text_type, |a, t| access(a, t, step)),
        PgFunction::new("pg_json_path", |t, _| first(t), |a, t| access(a, t, walk)),
        PgFunction::new("pg_json_path_text", text_type, |a, t| access(a, t, walk)),
        PgFunction::new("pg_jsonb_contains", |_, _| Ok(DataType::Boolean), |a, _| contains(a)),
        PgFunction::new("pg_jsonb_exists", |_, _| Ok(DataType::Boolean), |a, _| exists(a)),
        PgFunction::new(
            "pg_jsonb_exists_any",
            |_, _| Ok(DataType::Boolean),
            |a, _| exists_of(a, false),
        ),
        PgFunction::new(
            "pg_jsonb_exists_all",
            |_, _| Ok(DataType::Boolean),
            |a, _| exists_of(a, true),
        ),
        PgFunction::new("pg_jsonb_concat", |_, _| Ok(JSONB), |a, _| concat(a)),
        PgFunction::new("pg_jsonb_delete", |_, _| Ok(JSONB), |a, _| delete(a)),
        PgFunction::new(
            "json_typeof",
            |t, _| one("json_typeof", t, &JSON, DataType::Utf8),
            |a, _| type_name(a),
        ),
        PgFunction::new(
            "jsonb_typeof",
            |t, _| one("jsonb_typeof", t, &JSONB, DataType::Utf8),
            |a, _| type_name(a),
        ),
        PgFunction::new(
            "json_array_length",
            |t, _| one("json_array_length", t, &JSON, DataType::Int32),
            |a, _| array_length(a),
        ),
        PgFunction::new(
            "jsonb_array_length",
            |t, _| one("jsonb_array_length", t, &JSONB, DataType::Int32),
            |a, _| array_length(a),
        ),
        PgFunction::new("to_json", |t, _| any("to_json", t, JSON), to_json),
        PgFunction::new("to_jsonb", |t, _| any("to_jsonb", t, JSONB), to_json),
        PgFunction::new("json_build_array", |_, _| Ok(JSON), build_array).or_nullary(),
        PgFunction::new("jsonb_build_array", |_, _| Ok(JSONB), build_array).or_nullary(),
        PgFunction::new("json_build_object", |t, _| pairs("json", t, JSON), build_object).or_nullary(),
        PgFunction::new("jsonb_build_object", |t, _| pairs("jsonb", t, JSONB), build_object).or_nullary(),
        PgFunction::new("pg_json_list", |_, _| Ok(JSON), list_of),
        PgFunction::new("pg_jsonb_list", |_, _| Ok(JSONB), list_of),
        PgFunction::new("pg_json_member", text_type, |a, _| member(a)),
        PgFunction::new("pg_json_members", |_, _| Ok(JSON), members),
        PgFunction::new("pg_jsonb_members", |_, _| Ok(JSONB), members),
    ]);
    all
}

fn first(t: &[DataType]) -> Result<DataType> {
    t.first()
        .cloned()
        .ok_or_else(|| PlanError::internal("operator without arguments"))
}

fn one(name: &str, t: &[DataType], wanted: &DataType, result: DataType) -> Result<DataType> {
    match t {
        [t] if t == wanted || t == &DataType::Null => Ok(result),
        other => Err(no_function(name, other)),
    }
}

fn any(name: &str, t: &[DataType], result: DataType) -> Result<DataType> {
    match t {
        [_] => Ok(result),
        other => Err(no_function(name, other)),
    }
}

fn pairs(kind: &str, t: &[DataType], result: DataType) -> Result<DataType> {
    if t.len().is_multiple_of(2) {
        return Ok(result);
    }
    Err(
        PlanError::new("22023", "argument list must have even number of elements").hint(format!(
            "The arguments of {kind}_build_object() must consist of alternating keys and values."
        )),
    )
}

/// A document, as one of the two types holds it.
#[derive(Clone)]
enum Doc<'a> {
    Json(&'a str),
    Jsonb(Vec<u8>),
}

/// A json or jsonb column.
enum Docs {
    Json(BinaryViewArray),
    Jsonb(LargeBinaryArray),
}

impl Docs {
    fn of(a: &[ArrayRef], i: usize) -> Result<Self> {
        match a.get(i).map(|a| (a, a.data_type())) {
            Some((a, &JSON)) => Ok(Self::Json(a.as_binary_view().clone())),
            Some((a, &JSONB)) => Ok(Self::Jsonb(a.as_binary().clone())),
            Some((a, DataType::Null)) => Ok(Self::Jsonb(LargeBinaryArray::new_null(a.len()))),
            _ => Err(PlanError::internal("argument is no json")),
        }
    }

    fn get(&self, row: usize) -> Doc<'_> {
        match self {
            Self::Json(a) => Doc::Json(text_of(a.value(row))),
            Self::Jsonb(a) => Doc::Jsonb(a.value(row).to_vec()),
        }
    }
}

fn text_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl<'a> Doc<'a> {
    fn field(&self, key: &str) -> Result<Option<Doc<'a>>> {
        Ok(match self {
            Self::Json(text) => raw::field(text, key)?.map(Doc::Json),
            Self::Jsonb(bytes) => json::field(bytes, key).map(Doc::Jsonb),
        })
    }

    fn item(&self, at: i64) -> Result<Option<Doc<'a>>> {
        Ok(match self {
            Self::Json(text) => raw::item(text, at)?.map(Doc::Json),
            Self::Jsonb(bytes) => json::item(bytes, at).map(Doc::Jsonb),
        })
    }

    fn is_array(&self) -> bool {
        match self {
            Self::Json(text) => raw::type_name(text) == "array",
            Self::Jsonb(bytes) => json::kind_of(bytes) == Kind::Array,
        }
    }

    fn text(&self) -> Result<Option<String>> {
        match self {
            Self::Json(text) => raw::text_value(text),
            Self::Jsonb(bytes) => Ok(json::text_value(bytes)),
        }
    }
}

/// Evaluates `->` and its kin: `find` is given the document, the key column and the row.
fn access(
    a: &[ArrayRef],
    target: &DataType,
    find: for<'d> fn(Doc<'d>, &ArrayRef, usize) -> Result<Option<Doc<'d>>>,
) -> Result<ArrayRef> {
    let docs = Docs::of(a, 0)?;
    let keys = a.get(1).ok_or_else(|| PlanError::internal("no key"))?;
    let found = (0..keys.len()).map(|row| {
        if all_valid(a, row) {
            find(docs.get(row), keys, row)
        } else {
            Ok(None)
        }
    });
    if target == &DataType::Utf8 {
        let texts = found.map(|doc| doc?.map_or(Ok(None), |d| d.text()));
        return Ok(Arc::new(texts.collect::<Result<StringArray>>()?));
    }
    if target == &JSON {
        let mut out = BinaryViewBuilder::with_capacity(keys.len());
        for doc in found {
            match doc? {
                Some(Doc::Json(text)) => out.append_value(text),
                _ => out.append_null(),
            }
        }
        return Ok(Arc::new(out.finish()));
    }
    let mut out = LargeBinaryBuilder::new();
    for doc in found {
        match doc? {
            Some(Doc::Jsonb(bytes)) => out.append_value(bytes),
            _ => out.append_null(),
        }
    }
    Ok(Arc::new(out.finish()))
}

fn step<'d>(doc: Doc<'d>, keys: &ArrayRef, row: usize) -> Result<Option<Doc<'d>>> {
    match keys.data_type() {
        DataType::Int32 => {
            let at = keys.as_primitive::<Int32Type>().value(row);
            // To PostgreSQL a jsonb scalar that stands alone is an array of itself here.
            match &doc {
                Doc::Jsonb(bytes) if (-1..=0).contains(&at) && json::scalar(bytes) => Ok(Some(doc)),
                _ => doc.item(i64::from(at)),
            }
        }
        _ => doc.field(keys.as_string::<i32>().value(row)),
    }
}

fn walk<'d>(doc: Doc<'d>, paths: &ArrayRef, row: usize) -> Result<Option<Doc<'d>>> {
    let path = paths.as_list::<i32>().value(row);
    let mut doc = doc;
    for key in path.as_string::<i32>() {
        let Some(key) = key else { return Ok(None) };
        let next = if doc.is_array() {
            match key.trim().parse::<i64>() {
                Ok(at) => doc.item(at)?,
                Err(_) => None,
            }
        } else {
            doc.field(key)?
        };
        match next {
            Some(next) => doc = next,
            None => return Ok(None),
        }
    }
    Ok(Some(doc))
}

fn jsonb(a: &[ArrayRef], i: usize) -> Result<LargeBinaryArray> {
    match Docs::of(a, i)? {
        Docs::Jsonb(a) => Ok(a),
        Docs::Json(_) => Err(PlanError::internal("argument is no jsonb")),
    }
}

fn rows(a: &[ArrayRef]) -> usize {
    a.first().map_or(0, |a| a.len())
}

fn contains(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (l, r) = (jsonb(a, 0)?, jsonb(a, 1)?);
    let test = |row| all_valid(a, row).then(|| json::contains(l.value(row), r.value(row)));
    Ok(Arc::new((0..rows(a)).map(test).collect::<BooleanArray>()))
}

/// Is the text a key of the object, or a string in the array, or the string itself?
fn has(doc: &[u8], key: &str) -> bool {
    let is_key = |v: &[u8]| json::kind_of(v) == Kind::String && json::scalar_text(v).as_deref() == Some(key);
    match json::kind_of(doc) {
        Kind::Object => json::members(doc).any(|(k, _)| k == key),
        Kind::Array => json::elements(doc).any(is_key),
        _ => is_key(doc),
    }
}

fn exists(a: &[ArrayRef]) -> Result<ArrayRef> {
    let docs = jsonb(a, 0)?;
    let keys = super::downcast::<StringArray>(a, 1)?;
    let test = |row| all_valid(a, row).then(|| has(docs.value(row), keys.value(row)));
    Ok(Arc::new((0..rows(a)).map(test).collect::<BooleanArray>()))
}

fn exists_of(a: &[ArrayRef], all: bool) -> Result<ArrayRef> {
    let docs = jsonb(a, 0)?;
    let lists = a
        .get(1)
        .and_then(|a| a.as_list_opt::<i32>())
        .ok_or_else(|| PlanError::internal("keys are no array"))?;
    let test = |row| {
        all_valid(a, row).then(|| {
            let keys = lists.value(row);
            let mut found = keys
                .as_string::<i32>()
                .iter()
                .flatten()
                .map(|k| has(docs.value(row), k));
            if all { found.all(|f| f) } else { found.any(|f| f) }
        })
    };
    Ok(Arc::new((0..rows(a)).map(test).collect::<BooleanArray>()))
}

fn each_jsonb(a: &[ArrayRef], f: impl Fn(usize) -> Result<Vec<u8>>) -> Result<ArrayRef> {
    let mut out = LargeBinaryBuilder::new();
    for row in 0..rows(a) {
        if all_valid(a, row) {
            out.append_value(f(row)?);
        } else {
            out.append_null();
        }
    }
    Ok(Arc::new(out.finish()))
}

fn encoded<'v>(values: impl Iterator<Item = &'v [u8]>) -> Vec<Value> {
    values.map(|v| Value::Encoded(v.to_vec())).collect()
}

fn concat(a: &[ArrayRef]) -> Result<ArrayRef> {
    let (l, r) = (jsonb(a, 0)?, jsonb(a, 1)?);
    each_jsonb(a, |row| {
        let (l, r) = (l.value(row), r.value(row));
        if json::kind_of(l) == Kind::Object && json::kind_of(r) == Kind::Object {
            let both = json::members(l).chain(json::members(r));
            let pairs = both.map(|(k, v)| (k.to_owned(), Value::Encoded(v.to_vec())));
            return json::encode(&Value::Object(pairs.collect()));
        }
        let items = |v: &[u8]| match json::kind_of(v) {
            Kind::Array => encoded(json::elements(v)),
            _ => vec![Value::Encoded(v.to_vec())],
        };
        json::encode(&Value::Array(items(l).into_iter().chain(items(r)).collect()))
    })
}

fn delete(a: &[ArrayRef]) -> Result<ArrayRef> {
    let docs = jsonb(a, 0)?;
    let keys = a.get(1).ok_or_else(|| PlanError::internal("no key"))?;
    let scalar = || PlanError::new("22023", "cannot delete from scalar");
    each_jsonb(a, |row| {
        let doc = docs.value(row);
        let kind = json::kind_of(doc);
        if kind != Kind::Object && kind != Kind::Array {
            return Err(scalar());
        }
        if keys.data_type() == &DataType::Int32 {
            if kind == Kind::Object {
                return Err(PlanError::new("22023", "cannot delete from object using integer index"));
            }
            let at = i64::from(keys.as_primitive::<Int32Type>().value(row));
            let n = i64::try_from(json::elements(doc).count()).unwrap_or(0);
            let at = if at < 0 { at + n } else { at };
            let kept = json::elements(doc)
                .enumerate()
                .filter(|(i, _)| i64::try_from(*i) != Ok(at));
            return json::encode(&Value::Array(encoded(kept.map(|(_, v)| v))));
        }
        let gone: Vec<String> = match keys.data_type() {
            DataType::List(_) => {
                let list = keys.as_list::<i32>().value(row);
                list.as_string::<i32>().iter().flatten().map(str::to_owned).collect()
            }
            _ => vec![keys.as_string::<i32>().value(row).to_owned()],
        };
        let gone = |k: &str| gone.iter().any(|g| g == k);
        if kind == Kind::Object {
            let kept = json::members(doc).filter(|(k, _)| !gone(k));
            let pairs = kept.map(|(k, v)| (k.to_owned(), Value::Encoded(v.to_vec())));
            return json::encode(&Value::Object(pairs.collect()));
        }
        let is_gone = |v: &[u8]| json::kind_of(v) == Kind::String && json::scalar_text(v).is_some_and(|t| gone(&t));
        json::encode(&Value::Array(encoded(json::elements(doc).filter(|v| !is_gone(v)))))
    })
}

fn type_name(a: &[ArrayRef]) -> Result<ArrayRef> {
    let docs = Docs::of(a, 0)?;
    let name = |row| {
        all_valid(a, row).then(|| match docs.get(row) {
            Doc::Json(text) => raw::type_name(text),
            Doc::Jsonb(bytes) => json::kind_of(&bytes).name(),
        })
    };
    Ok(Arc::new((0..rows(a)).map(name).collect::<StringArray>()))
}

fn array_length(a: &[ArrayRef]) -> Result<ArrayRef> {
    let docs = Docs::of(a, 0)?;
    let length = |row| {
        if !all_valid(a, row) {
            return Ok(None);
        }
        let doc = docs.get(row);
        let n = match &doc {
            Doc::Json(text) => raw::elements(text)?.map(|e| e.len()),
            Doc::Jsonb(bytes) => (json::kind_of(bytes) == Kind::Array).then(|| json::elements(bytes).count()),
        };
        let is_object = match &doc {
            Doc::Json(text) => raw::type_name(text) == "object",
            Doc::Jsonb(bytes) => json::kind_of(bytes) == Kind::Object,
        };
        match n {
            Some(n) => Ok(i32::try_from(n).ok()),
            None if is_object => Err(PlanError::new("22023", "cannot get array length of a non-array")),
            None => Err(PlanError::new("22023", "cannot get array length of a scalar")),
        }
    };
    Ok(Arc::new((0..rows(a)).map(length).collect::<Result<Int32Array>>()?))
}

/// The JSON text of every value.
///
/// # Errors
/// A type without a text form.
pub fn json_texts(a: &ArrayRef) -> Result<Vec<Option<String>>> {
    let quoted = |text: &str| {
        let mut out = String::new();
        json::put_quoted(text, &mut out);
        out
    };
    if let Some(lists) = a.as_list_opt::<i32>() {
        let items = |list: ArrayRef| {
            let texts = json_texts(&list)?;
            let texts: Vec<&str> = texts.iter().map(|t| t.as_deref().unwrap_or("null")).collect();
            Ok(format!("[{}]", texts.join(",")))
        };
        return lists.iter().map(|list| list.map(items).transpose()).collect();
    }
    match a.data_type() {
        &JSON => Ok(a
            .as_binary_view()
            .iter()
            .map(|v| v.map(|v| text_of(v).to_owned()))
            .collect()),
        &JSONB => Ok(a.as_binary::<i64>().iter().map(|v| v.map(json::text)).collect()),
        t => {
            let texts = super::cast::format_array(a)?;
            let special = match t {
                DataType::Float32 | DataType::Float64 => {
                    let wide = arrow_cast(a, &DataType::Float64).map_err(|e| PlanError::internal(e.to_string()))?;
                    Some(wide.as_primitive::<Float64Type>().clone())
                }
                _ => None,
            };
            let number = t.is_numeric() || t == &DataType::Boolean;
            let text = |(row, text): (usize, Option<&str>)| {
                text.map(|text| match t {
                    _ if special.as_ref().is_some_and(|f| !f.value(row).is_finite()) => quoted(text),
                    _ if number => text.to_owned(),
                    DataType::Timestamp(TimeUnit::Microsecond, None) => quoted(&text.replacen(' ', "T", 1)),
                    DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
                        quoted(&format!("{}:00", text.replacen(' ', "T", 1)))
                    }
                    _ => quoted(text),
                })
            };
            Ok(texts.as_string::<i32>().iter().enumerate().map(text).collect())
        }
    }
}

fn finish(texts: impl Iterator<Item = Result<Option<String>>>, target: &DataType) -> Result<ArrayRef> {
    if target == &JSON {
        let mut out = BinaryViewBuilder::new();
        for text in texts {
            out.append_option(text?);
        }
        return Ok(Arc::new(out.finish()));
    }
    let mut out = LargeBinaryBuilder::new();
    for text in texts {
        out.append_option(text?.map(|t| json::jsonb_of_text(&t)).transpose()?);
    }
    Ok(Arc::new(out.finish()))
}

fn to_json(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let a = a.first().ok_or_else(|| PlanError::internal("no argument"))?;
    if a.data_type() == target {
        return Ok(Arc::clone(a));
    }
    finish(json_texts(a)?.into_iter().map(Ok), target)
}

/// How many rows: an argument list may be empty.
fn columns_of(a: &[ArrayRef]) -> Result<(usize, Vec<Vec<Option<String>>>)> {
    let columns = a.iter().map(json_texts).collect::<Result<Vec<_>>>()?;
    Ok((a.first().map_or(1, |a| a.len()), columns))
}

fn build_array(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let (n, columns) = columns_of(a)?;
    let text = |row: usize| {
        let items: Vec<&str> = columns.iter().map(|c| c[row].as_deref().unwrap_or("null")).collect();
        Ok(Some(format!("[{}]", items.join(", "))))
    };
    finish((0..n).map(text), target)
}

fn build_object(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let (n, columns) = columns_of(a)?;
    let keys = a
        .iter()
        .step_by(2)
        .map(super::cast::format_array)
        .collect::<Result<Vec<_>>>()?;
    if a.iter().step_by(2).any(|k| {
        let t = k.data_type();
        t.is_nested() || t == &JSON || t == &JSONB
    }) {
        return Err(PlanError::new(
            "22023",
            "key value must be scalar, not array, composite, or json",
        ));
    }
    let text = |row: usize| {
        let mut out = String::from("{");
        for (i, key) in keys.iter().enumerate() {
            let key = key.as_string::<i32>();
            if key.is_null(row) {
                return Err(if target == &JSON {
                    PlanError::new("22023", format!("argument {} cannot be null", 2 * i + 1))
                        .hint("Object keys should be text.")
                } else {
                    PlanError::new("22023", format!("argument {}: key must not be null", 2 * i + 1))
                });
            }
            if i > 0 {
                out.push_str(", ");
            }
            json::put_quoted(key.value(row), &mut out);
            out.push_str(" : ");
            out.push_str(columns[2 * i + 1][row].as_deref().unwrap_or("null"));
        }
        out.push('}');
        Ok(Some(out))
    };
    finish((0..n).map(text), target)
}

/// The elements of an aggregate's array as one document each: `json_agg`.
fn list_of(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let lists = lists_of(a)?;
    let text = |list: Option<ArrayRef>| {
        let Some(list) = list else { return Ok(None) };
        let texts = json_texts(&list)?;
        let items: Vec<&str> = texts.iter().map(|t| t.as_deref().unwrap_or("null")).collect();
        Ok(Some(format!("[{}]", items.join(", "))))
    };
    finish(lists.iter().map(text), target)
}

/// `"key" : value` of `json_object_agg`.
fn member(a: &[ArrayRef]) -> Result<ArrayRef> {
    let [key, value] = a else {
        return Err(PlanError::internal("a member of other than a key and a value"));
    };
    let t = key.data_type();
    if t.is_nested() || t == &JSON || t == &JSONB {
        return Err(PlanError::new(
            "22023",
            "key value must be scalar, not array, composite, or json",
        ));
    }
    let keys = super::cast::format_array(key)?;
    let values = json_texts(value)?;
    let text = |(key, value): (Option<&str>, &Option<String>)| {
        let key = key.ok_or_else(|| PlanError::new("22023", "field name must not be null"))?;
        let mut out = String::new();
        json::put_quoted(key, &mut out);
        out.push_str(" : ");
        out.push_str(value.as_deref().unwrap_or("null"));
        Ok(Some(out))
    };
    let texts = keys.as_string::<i32>().iter().zip(&values).map(text);
    Ok(Arc::new(texts.collect::<Result<StringArray>>()?))
}

/// An object of the members that an aggregate has gathered; in a view those that could not be made are NULL.
fn members(a: &[ArrayRef], target: &DataType) -> Result<ArrayRef> {
    let lists = lists_of(a)?;
    let text = |list: Option<ArrayRef>| {
        let items = list.map(|list| {
            let members: Vec<&str> = list.as_string::<i32>().iter().flatten().collect();
            format!("{{ {} }}", members.join(", "))
        });
        Ok(items)
    };
    finish(lists.iter().map(text), target)
}

fn lists_of(a: &[ArrayRef]) -> Result<&arrow::array::ListArray> {
    a.first()
        .and_then(|a| a.as_list_opt::<i32>())
        .ok_or_else(|| PlanError::internal("an aggregate's values are no array"))
}
