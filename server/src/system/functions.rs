//! Functions of `pg_catalog` that tell of the catalog, the session or the server.
//!
//! They are called on a few rows by clients' catalog queries, so they work on text, a row at a time.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use levee_planner::catalog::{CatalogObject, CommentKey, ObjectKind};
use levee_planner::sql::quote_ident;
use levee_planner::sql::shown_query;

use super::SystemContext;
use super::constraints::{
    all as all_constraints, column_list, comment, definition, index_definition, indexes, table_of,
};
use super::relations::object_of;
use super::types::{type_oid, type_text};
use crate::error::{Result, SqlError};
use crate::types::encode::{TextStyle, value_text};
use crate::types::input::ColumnInput;
use crate::types::zone::Zone;

type Args<'a> = &'a [Option<String>];
type Body = fn(&SystemContext, Args<'_>) -> Result<Option<String>>;

const TEXT: DataType = DataType::Utf8;
const BOOL: DataType = DataType::Boolean;
const INT4: DataType = DataType::Int32;
const INT8: DataType = DataType::Int64;

/// All of them: name, result type, body.
const FUNCTIONS: &[(&str, DataType, Body)] = &[
    ("version", TEXT, |_, _| {
        Ok(Some(format!(
            "PostgreSQL {} on {}, Levee {}",
            crate::session::SERVER_VERSION,
            std::env::consts::ARCH,
            env!("CARGO_PKG_VERSION")
        )))
    }),
    ("current_database", TEXT, |_, _| {
        Ok(Some(crate::session::DATABASE.to_owned()))
    }),
    ("current_catalog", TEXT, |_, _| {
        Ok(Some(crate::session::DATABASE.to_owned()))
    }),
    ("current_schema", TEXT, |c, _| {
        Ok(c.path().find(|n| !n.temporary).map(|n| n.name.clone()))
    }),
    ("current_schemas", TEXT, |c, a| {
        let implied = arg(a, 0) == Some("t");
        let mut names: Vec<&str> = c
            .path()
            .filter(|n| implied || !n.temporary)
            .map(|n| n.name.as_str())
            .collect();
        if implied {
            let at = names.iter().take_while(|n| n.starts_with("pg_temp_")).count();
            names.insert(at, "pg_catalog");
        }
        Ok(Some(format!("{{{}}}", names.join(","))))
    }),
    ("current_user", TEXT, |c, _| Ok(Some(c.user.clone()))),
    ("session_user", TEXT, |c, _| Ok(Some(c.user.clone()))),
    ("user", TEXT, |c, _| Ok(Some(c.user.clone()))),
    ("pg_backend_pid", INT4, |c, _| Ok(Some(c.pid.to_string()))),
    ("pg_is_in_recovery", BOOL, |_, _| Ok(Some("f".to_owned()))),
    ("pg_cancel_backend", BOOL, |c, a| {
        let pid = arg(a, 0).and_then(|t| t.parse().ok());
        Ok(pid.map(|pid| if c.server.cancel(pid, None) { "t" } else { "f" }.to_owned()))
    }),
    ("pg_advisory_unlock_all", TEXT, advisory),
    ("pg_advisory_lock", TEXT, advisory),
    ("pg_advisory_lock_shared", TEXT, advisory),
    ("pg_advisory_xact_lock", TEXT, advisory),
    ("pg_advisory_xact_lock_shared", TEXT, advisory),
    ("pg_try_advisory_lock", BOOL, advisory),
    ("pg_try_advisory_lock_shared", BOOL, advisory),
    ("pg_try_advisory_xact_lock", BOOL, advisory),
    ("pg_try_advisory_xact_lock_shared", BOOL, advisory),
    ("pg_advisory_unlock", BOOL, advisory),
    ("pg_advisory_unlock_shared", BOOL, advisory),
    ("current_setting", TEXT, |c, a| {
        let name = arg(a, 0).unwrap_or_default().to_lowercase();
        let found = c
            .settings
            .iter()
            .find(|(n, _, _)| n.to_lowercase() == name)
            .map(|(_, v, _)| v.clone());
        if found.is_none() && arg(a, 1) != Some("t") {
            return Err(SqlError::new(
                "42704",
                format!("unrecognized configuration parameter \"{name}\""),
            ));
        }
        Ok(found)
    }),
    ("pg_table_is_visible", BOOL, |c, a| {
        let oid = int(a, 0);
        Ok(oid.map(|oid| {
            if table_of(c, oid).is_some_and(|o| c.is_visible(o)) {
                "t"
            } else {
                "f"
            }
            .to_owned()
        }))
    }),
    ("pg_type_is_visible", BOOL, yes),
    ("pg_function_is_visible", BOOL, yes),
    ("pg_opclass_is_visible", BOOL, yes),
    ("pg_collation_is_visible", BOOL, yes),
    ("pg_relation_is_publishable", BOOL, yes),
    ("has_table_privilege", BOOL, yes),
    ("has_any_column_privilege", BOOL, yes),
    ("has_column_privilege", BOOL, yes),
    ("has_schema_privilege", BOOL, yes),
    ("has_database_privilege", BOOL, yes),
    ("has_function_privilege", BOOL, yes),
    ("pg_has_role", BOOL, yes),
    ("pg_get_userbyid", TEXT, |c, a| Ok(arg(a, 0).map(|_| c.user.clone()))),
    ("format_type", TEXT, |_, a| {
        let typmod = int(a, 1).unwrap_or(-1);
        Ok(int(a, 0).map(|oid| type_text(oid, typmod)))
    }),
    // Stored as shown; the pretty form has no parentheses around the whole.
    ("pg_get_expr", TEXT, |_, a| {
        let pretty = arg(a, 2) == Some("t");
        Ok(arg(a, 0).map(|text| if pretty { without_parentheses(text) } else { text }.to_owned()))
    }),
    ("getdatabaseencoding", TEXT, |_, _| Ok(Some("UTF8".to_owned()))),
    ("pg_get_constraintdef", TEXT, |c, a| {
        let Some(oid) = int(a, 0) else { return Ok(None) };
        let found = all_constraints(c).into_iter().find(|k| k.oid == oid);
        let pretty = arg(a, 1) == Some("t");
        Ok(found.map(|k| definition(c, &k, pretty)))
    }),
    ("pg_get_indexdef", TEXT, |c, a| {
        let Some(oid) = int(a, 0) else { return Ok(None) };
        let Some(index) = indexes(c).into_iter().find(|i| i.oid == oid) else {
            return Ok(None);
        };
        let column = int(a, 1).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        if column > 0 {
            let at = index.columns.get(column - 1);
            return Ok(at.map(|&c| column_list(index.table, &[c])));
        }
        Ok(Some(index_definition(c, &index)))
    }),
    ("pg_get_viewdef", TEXT, |c, a| {
        let object = match int(a, 0) {
            Some(oid) => object_of(c, oid),
            None => arg(a, 0)
                .and_then(|name| regclass(c, name))
                .and_then(|oid| object_of(c, oid)),
        };
        Ok(object.and_then(|o| view_text(c, o)))
    }),
    ("obj_description", TEXT, |c, a| {
        let Some(oid) = int(a, 0) else { return Ok(None) };
        if let Some(object) = object_of(c, oid) {
            return Ok(comment(object, &CommentKey::Object).map(str::to_owned));
        }
        let of_schema = c.catalog.namespaces().find(|n| i64::from(n.id.0) == i64::from(oid));
        if let Some(schema) = of_schema {
            return Ok(schema.comment.clone());
        }
        let constraint = all_constraints(c).into_iter().find(|k| k.oid == oid);
        Ok(constraint.and_then(|k| comment(k.table, &CommentKey::Constraint(k.name.clone())).map(str::to_owned)))
    }),
    ("col_description", TEXT, |c, a| {
        let column = int(a, 1).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let object = int(a, 0).and_then(|oid| object_of(c, oid));
        Ok(match (object, column.checked_sub(1)) {
            (Some(object), Some(at)) => comment(object, &CommentKey::Column(at)).map(str::to_owned),
            _ => None,
        })
    }),
    ("pg_relation_is_updatable", INT4, |c, a| {
        let table = int(a, 0)
            .and_then(|oid| object_of(c, oid))
            .is_some_and(|o| o.table().is_some());
        Ok(Some(if table { "28" } else { "0" }.to_owned()))
    }),
    ("shobj_description", TEXT, no_value),
    ("pg_get_function_result", TEXT, no_value),
    ("pg_get_function_arguments", TEXT, no_value),
    ("pg_get_function_identity_arguments", TEXT, no_value),
    ("pg_get_functiondef", TEXT, no_value),
    ("pg_get_function_sqlbody", TEXT, no_value),
    ("pg_get_ruledef", TEXT, no_value),
    ("pg_get_triggerdef", TEXT, no_value),
    ("pg_get_partkeydef", TEXT, no_value),
    ("pg_get_statisticsobjdef_columns", TEXT, no_value),
    ("pg_get_serial_sequence", TEXT, |c, a| {
        let (Some(table), Some(column)) = (arg(a, 0), arg(a, 1)) else {
            return Ok(None);
        };
        let object = regclass(c, table)
            .and_then(|oid| object_of(c, oid))
            .ok_or_else(|| SqlError::new("42P01", format!("relation \"{table}\" does not exist")))?;
        let at = object.schema().index_of(column).map_err(|_| {
            SqlError::new(
                "42703",
                format!("column \"{column}\" of relation \"{}\" does not exist", object.name),
            )
        })?;
        let owned = c.catalog.objects().find(|o| match &o.kind {
            ObjectKind::Sequence(s) => s.owned_by == Some((object.id, at)),
            _ => false,
        });
        Ok(owned.map(|o| format!("{}.{}", quote_ident(c.catalog.namespace_of(o)), quote_ident(&o.name))))
    }),
    ("pg_tablespace_location", TEXT, no_value),
    ("pg_my_temp_schema", INT4, |_, _| Ok(Some("0".to_owned()))),
    ("pg_is_other_temp_schema", BOOL, |_, _| Ok(Some("f".to_owned()))),
    ("pg_encoding_to_char", TEXT, |_, a| {
        Ok(int(a, 0).map(|n| if n == 6 { "UTF8" } else { "" }.to_owned()))
    }),
    ("pg_char_to_encoding", INT4, |_, _| Ok(Some("6".to_owned()))),
    ("pg_relation_size", INT8, size),
    ("pg_table_size", INT8, size),
    ("pg_indexes_size", INT8, |_, _| Ok(Some("0".to_owned()))),
    ("pg_total_relation_size", INT8, size),
    ("pg_database_size", INT8, no_value),
    ("pg_size_pretty", TEXT, |_, a| {
        Ok(arg(a, 0).and_then(|t| t.parse::<f64>().ok()).map(pretty))
    }),
    ("quote_ident", TEXT, |_, a| Ok(arg(a, 0).map(quote_ident))),
    ("to_regclass", TEXT, |c, a| {
        Ok(arg(a, 0)
            .and_then(|n| regclass(c, n))
            .map(|_| arg(a, 0).unwrap_or_default().to_owned()))
    }),
    ("pg_oid_of_regclass", INT4, |c, a| match arg(a, 0) {
        None => Ok(None),
        Some(name) => regclass(c, name)
            .map(|oid| Some(oid.to_string()))
            .ok_or_else(|| SqlError::new("42P01", format!("relation \"{name}\" does not exist"))),
    }),
    ("pg_name_of_regclass", TEXT, |c, a| {
        Ok(int(a, 0).map(|oid| {
            let index = indexes(c)
                .into_iter()
                .find(|i| i.oid == oid)
                .map(|i| quote_ident(&i.name));
            index
                .or_else(|| object_of(c, oid).map(|o| c.shown(o)))
                .unwrap_or_else(|| oid.to_string())
        }))
    }),
    ("pg_oid_of_regtype", INT4, |_, a| match arg(a, 0) {
        None => Ok(None),
        Some(name) => type_oid(name)
            .map(|oid| Some(oid.to_string()))
            .ok_or_else(|| SqlError::new("42704", format!("type \"{name}\" does not exist"))),
    }),
    ("pg_name_of_regtype", TEXT, |_, a| {
        Ok(int(a, 0).map(|oid| type_text(oid, -1)))
    }),
    ("pg_oid_of_regproc", INT4, |_, a| Ok(arg(a, 0).map(|_| "0".to_owned()))),
    ("pg_name_of_regproc", TEXT, |_, a| {
        Ok(arg(a, 0).map(|t| if t == "0" { "-".to_owned() } else { t.to_owned() }))
    }),
    ("pg_oid_of_regnamespace", INT4, |c, a| {
        let Some(name) = arg(a, 0) else { return Ok(None) };
        let all = c.namespaces();
        let found = all.iter().find(|(_, n)| n == name);
        found
            .map(|(oid, _)| Some(oid.to_string()))
            .ok_or_else(|| SqlError::new("3F000", format!("schema \"{name}\" does not exist")))
    }),
    ("pg_name_of_regnamespace", TEXT, |c, a| {
        Ok(int(a, 0).map(|oid| {
            let all = c.namespaces();
            let found = all.iter().find(|(o, _)| *o == oid);
            found.map_or_else(|| oid.to_string(), |(_, n)| quote_ident(n))
        }))
    }),
    ("pg_oid_of_regrole", INT4, |_, a| Ok(arg(a, 0).map(|_| "10".to_owned()))),
    ("pg_name_of_regrole", TEXT, |c, a| Ok(arg(a, 0).map(|_| c.user.clone()))),
];

/// Calls of advisory lock functions are taken out of a query before it runs (see `session/locks.rs`): waiting is the session's.
fn advisory(_: &SystemContext, _: Args<'_>) -> Result<Option<String>> {
    Err(SqlError::unsupported("an advisory lock cannot be taken here").hint("Take it with a SELECT of its own."))
}

fn yes(_: &SystemContext, _: Args<'_>) -> Result<Option<String>> {
    Ok(Some("t".to_owned()))
}

fn no_value(_: &SystemContext, _: Args<'_>) -> Result<Option<String>> {
    Ok(None)
}

fn arg<'a>(args: Args<'a>, i: usize) -> Option<&'a str> {
    args.get(i).and_then(Option::as_deref)
}

fn int(args: Args<'_>, i: usize) -> Option<i32> {
    arg(args, i)?.trim().parse().ok()
}

/// Bytes of a relation, as `levee_catalog.regions` tells.
fn size(c: &SystemContext, a: Args<'_>) -> Result<Option<String>> {
    let Some(id) = arg(a, 0) else { return Ok(None) };
    let rows = tokio::task::block_in_place(|| c.server.engine.status("regions"));
    let found = rows.iter().find(|r| r.first().and_then(Option::as_deref) == Some(id));
    Ok(Some(
        found
            .and_then(|r| r.get(8).cloned().flatten())
            .unwrap_or_else(|| "0".to_owned()),
    ))
}

fn pretty(bytes: f64) -> String {
    let mut v = bytes;
    for unit in ["bytes", "kB", "MB", "GB"] {
        if v.abs() < 10_240.0 {
            return format!("{v:.0} {unit}");
        }
        v /= 1024.0;
    }
    format!("{v:.0} TB")
}

/// A text without the parentheses that enclose all of it.
fn without_parentheses(text: &str) -> &str {
    let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else {
        return text;
    };
    let mut depth = 0_i32;
    for c in inner.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return text;
        }
    }
    inner
}

/// A view's query, ended as PostgreSQL ends it.
pub fn view_text(c: &SystemContext, object: &CatalogObject) -> Option<String> {
    let text = shown_query(object, &c.catalog, &|o| c.shown(o))?;
    Some(format!(" {text};"))
}

/// OID of a relation named in text, with or without schema and quotes, or by its number.
pub fn regclass(c: &SystemContext, text: &str) -> Option<i32> {
    if let Ok(oid) = text.parse() {
        return Some(oid);
    }
    let (schema, name) = match qualified(text).as_slice() {
        [name] => (None, name.clone()),
        [schema, name] => (Some(schema.clone()), name.clone()),
        _ => return None,
    };
    if let Some(object) = c.find(schema.as_deref(), &name) {
        return i32::try_from(object.id.0).ok();
    }
    let visible = |i: &super::constraints::Index<'_>| match &schema {
        Some(s) => c.catalog.namespace_of(i.table) == s,
        None => c.is_visible(i.table),
    };
    if let Some(index) = indexes(c).into_iter().find(|i| i.name == name && visible(i)) {
        return Some(index.oid);
    }
    if !matches!(schema.as_deref(), None | Some("pg_catalog")) {
        return None;
    }
    match name.as_str() {
        "pg_class" => Some(1259),
        "pg_type" => Some(1247),
        "pg_proc" => Some(1255),
        "pg_namespace" => Some(2615),
        "pg_attribute" => Some(1249),
        "pg_constraint" => Some(2606),
        "pg_database" => Some(1262),
        _ => None,
    }
}

/// The parts of a dotted name, folded unless quoted.
fn qualified(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    let mut chars = text.trim().chars().peekable();
    while let Some(c) = chars.next() {
        let Some(part) = parts.last_mut() else { break };
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                part.push('"');
            }
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(String::new()),
            c if quoted => part.push(c),
            c => part.push(c.to_ascii_lowercase()),
        }
    }
    parts
}

/// The functions for one statement.
pub fn all(context: &Arc<SystemContext>) -> Vec<Arc<ScalarUDF>> {
    FUNCTIONS
        .iter()
        .map(|(name, result, body)| {
            Arc::new(ScalarUDF::new_from_impl(SystemFunction {
                name,
                signature: Signature::one_of(
                    vec![TypeSignature::Nullary, TypeSignature::VariadicAny],
                    Volatility::Stable,
                ),
                result: result.clone(),
                body: *body,
                context: Arc::clone(context),
            }))
        })
        .collect()
}

#[derive(Debug)]
struct SystemFunction {
    name: &'static str,
    signature: Signature,
    result: DataType,
    body: Body,
    context: Arc<SystemContext>,
}

impl PartialEq for SystemFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for SystemFunction {}

impl Hash for SystemFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for SystemFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.result.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let rows = args.number_rows;
        let external = |e: SqlError| DataFusionError::External(Box::new(e));
        let all_scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let n = if all_scalar { 1 } else { rows };
        let arrays: Vec<ArrayRef> = args
            .args
            .into_iter()
            .map(|a| a.into_array(n))
            .collect::<DfResult<_>>()?;
        let mut output = ColumnInput::new(&Field::new("", self.result.clone(), true)).map_err(external)?;
        let style = TextStyle::default();
        for row in 0..n {
            let values = arrays
                .iter()
                .map(|a| {
                    if a.data_type() == &DataType::Null {
                        Ok(None)
                    } else {
                        value_text(a, row, &style)
                    }
                })
                .collect::<Result<Vec<_>>>()
                .map_err(external)?;
            match (self.body)(&self.context, &values).map_err(external)? {
                Some(text) => output.text(&text, &Zone::utc()).map_err(external)?,
                None => output.null(),
            }
        }
        let array = output.finish().map_err(external)?;
        if all_scalar {
            return Ok(ColumnarValue::Scalar(datafusion::scalar::ScalarValue::try_from_array(
                &array, 0,
            )?));
        }
        Ok(ColumnarValue::Array(array))
    }
}
