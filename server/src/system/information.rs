//! `information_schema`.

use std::sync::Arc;

use arrow::datatypes::Field;
use levee_planner::catalog::{CatalogObject, Generated, ObjectKind, SequenceDef};
use levee_planner::sql::types::{oid, pg_type_name, typmod};

use super::SystemContext;
use super::constraints::{Constraint, all, constraints};
use super::functions::view_text;
use super::relations::default_text;
use super::rows::{Made, Row, build};
use super::types::{TYPES, array_element};

fn some(s: impl Into<String>) -> Option<String> {
    Some(s.into())
}

fn yes_no(b: bool) -> Option<String> {
    some(if b { "YES" } else { "NO" })
}

/// A relation of `information_schema`.
pub fn information_schema(context: &Arc<SystemContext>, name: &str) -> Option<Made> {
    let (columns, rows) = match name {
        "schemata" => (
            "catalog_name:t schema_name:t schema_owner:t default_character_set_catalog:t default_character_set_schema:t \
             default_character_set_name:t sql_path:t",
            schemata(context),
        ),
        "tables" => (
            "table_catalog:t table_schema:t table_name:t table_type:t self_referencing_column_name:t reference_generation:t \
             user_defined_type_catalog:t user_defined_type_schema:t user_defined_type_name:t is_insertable_into:t is_typed:t \
             commit_action:t",
            tables(context),
        ),
        "views" => (
            "table_catalog:t table_schema:t table_name:t view_definition:t check_option:t is_updatable:t is_insertable_into:t \
             is_trigger_updatable:t is_trigger_deletable:t is_trigger_insertable_into:t",
            views(context),
        ),
        "columns" => (
            "table_catalog:t table_schema:t table_name:t column_name:t ordinal_position:i column_default:t is_nullable:t data_type:t \
             character_maximum_length:i character_octet_length:i numeric_precision:i numeric_precision_radix:i numeric_scale:i \
             datetime_precision:i interval_type:t udt_catalog:t udt_schema:t udt_name:t is_identity:t identity_generation:t \
             identity_start:t identity_increment:t identity_maximum:t identity_minimum:t identity_cycle:t is_generated:t \
             generation_expression:t is_updatable:t",
            columns_of(context),
        ),
        "table_constraints" => (
            "constraint_catalog:t constraint_schema:t constraint_name:t table_catalog:t table_schema:t table_name:t \
             constraint_type:t is_deferrable:t initially_deferred:t enforced:t nulls_distinct:t",
            table_constraints(context),
        ),
        "key_column_usage" => (
            "constraint_catalog:t constraint_schema:t constraint_name:t table_catalog:t table_schema:t table_name:t column_name:t \
             ordinal_position:i position_in_unique_constraint:i",
            key_column_usage(context),
        ),
        "constraint_column_usage" => (
            "table_catalog:t table_schema:t table_name:t column_name:t constraint_catalog:t constraint_schema:t constraint_name:t",
            constraint_column_usage(context),
        ),
        "referential_constraints" => (
            "constraint_catalog:t constraint_schema:t constraint_name:t unique_constraint_catalog:t unique_constraint_schema:t \
             unique_constraint_name:t match_option:t update_rule:t delete_rule:t",
            referential_constraints(context),
        ),
        "check_constraints" => (
            "constraint_catalog:t constraint_schema:t constraint_name:t check_clause:t",
            check_constraints(context),
        ),
        "sequences" => (
            "sequence_catalog:t sequence_schema:t sequence_name:t data_type:t numeric_precision:i numeric_precision_radix:i \
             numeric_scale:i start_value:t minimum_value:t maximum_value:t increment:t cycle_option:t",
            sequences(context),
        ),
        "routines" => (
            "specific_catalog:t specific_schema:t specific_name:t routine_catalog:t routine_schema:t routine_name:t routine_type:t",
            Vec::new(),
        ),
        _ => return None,
    };
    Some(build(columns, &rows))
}

fn schemata(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for (_, schema) in context.namespaces() {
        rows.push(vec![
            some("dev"),
            Some(schema),
            some(&context.user),
            None,
            None,
            None,
            None,
        ]);
    }
    rows
}

fn tables(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let temporary = context.catalog.is_temporary(o);
        let kind = match o.kind {
            ObjectKind::Table(_) if temporary => "LOCAL TEMPORARY",
            ObjectKind::Table(_) => "BASE TABLE",
            ObjectKind::View(_) => "VIEW",
            // PostgreSQL leaves materialized views out.
            ObjectKind::MaterializedView(_) | ObjectKind::Index(_) | ObjectKind::Sequence(_) => continue,
            ObjectKind::Source(_) | ObjectKind::Sink(_) => "FOREIGN",
        };
        rows.push(vec![
            some("dev"),
            some(context.catalog.namespace_of(o)),
            some(&o.name),
            some(kind),
            None,
            None,
            None,
            None,
            None,
            yes_no(o.table().is_some()),
            some("NO"),
            temporary.then(|| "PRESERVE".to_owned()),
        ]);
    }
    rows
}

fn views(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        if matches!(o.kind, ObjectKind::View(_)) {
            let mut row = vec![
                some("dev"),
                some(context.catalog.namespace_of(o)),
                some(&o.name),
                view_text(context, o),
                some("NONE"),
            ];
            row.extend(std::iter::repeat_n(some("NO"), 5));
            rows.push(row);
        }
    }
    rows
}

fn columns_of(context: &SystemContext) -> Vec<Row> {
    let hidden = |o: &CatalogObject| {
        matches!(
            o.kind,
            ObjectKind::MaterializedView(_) | ObjectKind::Index(_) | ObjectKind::Sequence(_)
        )
    };
    let mut rows = Vec::new();
    for o in context.catalog.objects().filter(|o| !hidden(o)) {
        let fields = o.schema().fields().iter().enumerate();
        rows.extend(fields.map(|(c, f)| column(context, o, c, f)));
    }
    rows
}

/// Precision, its base, scale, length and precision of time of a type.
struct Measures {
    precision: Option<i32>,
    radix: Option<i32>,
    scale: Option<i32>,
    length: Option<i32>,
    time: Option<i32>,
}

fn measures(type_id: i32, modifier: i32) -> Measures {
    let (precision, radix, scale) = match (type_id, modifier) {
        (21, _) => (Some(16), Some(2), Some(0)),
        (23, _) => (Some(32), Some(2), Some(0)),
        (20, _) => (Some(64), Some(2), Some(0)),
        (700, _) => (Some(24), Some(2), None),
        (701, _) => (Some(53), Some(2), None),
        (1700, n) if n >= 4 => (Some((n - 4) >> 16), Some(10), Some((n - 4) & 0xffff)),
        (1700, _) => (None, Some(10), None),
        _ => (None, None, None),
    };
    Measures {
        precision,
        radix,
        scale,
        length: (matches!(type_id, 1042 | 1043) && modifier >= 4).then_some(modifier - 4),
        time: match type_id {
            1083 | 1114 | 1184 | 1186 | 1266 => Some(if modifier >= 0 { modifier } else { 6 }),
            1082 => Some(0),
            _ => None,
        },
    }
}

fn column(context: &SystemContext, object: &CatalogObject, c: usize, field: &Field) -> Row {
    let full = pg_type_name(field);
    let type_id = i32::try_from(oid(field)).unwrap_or(0);
    let element = array_element(type_id);
    let base = match element {
        Some(_) => "ARRAY".to_owned(),
        None => full.split('(').next().unwrap_or(&full).to_owned(),
    };
    let internal = |id: i32| {
        let found = TYPES.iter().find(|(o, ..)| *o == id);
        found.map_or(base.as_str(), |(_, n, also)| also.first().unwrap_or(n))
    };
    let udt = match element {
        Some(element) => format!("_{}", internal(element)),
        None => internal(type_id).to_owned(),
    };
    let m = measures(type_id, typmod(field));
    let number = |n: Option<i32>| n.map(|n| n.to_string());
    let table = object.table();
    let generated = table.and_then(|t| t.generated.get(&c));
    let text = table.and_then(|t| default_text(context, t, c));
    let is_stored = matches!(generated, Some(Generated::Stored(_)));
    let sequence = match generated {
        Some(Generated::Identity { always, sequence }) => {
            let kind = context.catalog.get(*sequence).map(|o| &o.kind);
            match kind {
                Some(ObjectKind::Sequence(s)) => Some((*always, s)),
                _ => None,
            }
        }
        _ => None,
    };
    let of = |f: &dyn Fn(&SequenceDef) -> String| sequence.map(|(_, s)| f(s));
    vec![
        some("dev"),
        some(context.catalog.namespace_of(object)),
        some(&object.name),
        some(field.name()),
        Some((c + 1).to_string()),
        text.clone().filter(|_| !is_stored),
        yes_no(field.is_nullable() || table.is_none()),
        some(base),
        number(m.length),
        number(match type_id {
            25 => Some(1_073_741_824),
            _ => m.length.map(|n| n * 4),
        }),
        number(m.precision),
        number(m.radix),
        number(m.scale),
        number(m.time),
        None,
        some("dev"),
        some("pg_catalog"),
        some(udt),
        yes_no(sequence.is_some()),
        sequence.map(|(always, _)| if always { "ALWAYS" } else { "BY DEFAULT" }.to_owned()),
        of(&|s| s.start.to_string()),
        of(&|s| s.increment.to_string()),
        of(&|s| s.max.to_string()),
        of(&|s| s.min.to_string()),
        some(if sequence.is_some_and(|(_, s)| s.cycle) {
            "YES"
        } else {
            "NO"
        }),
        some(if is_stored { "ALWAYS" } else { "NEVER" }),
        text.filter(|_| is_stored),
        yes_no(table.is_some()),
    ]
}

/// Catalog, schema and name of a constraint, then of its table.
fn names(context: &SystemContext, c: &Constraint<'_>) -> Row {
    let schema = context.catalog.namespace_of(c.table);
    vec![
        some("dev"),
        some(schema),
        some(&c.name),
        some("dev"),
        some(schema),
        some(&c.table.name),
    ]
}

fn table_constraints(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in all(context) {
        let kind = match c.kind {
            "p" => "PRIMARY KEY",
            "u" => "UNIQUE",
            "f" => "FOREIGN KEY",
            _ => "CHECK",
        };
        let mut row = names(context, &c);
        row.extend([some(kind), some("NO"), some("NO"), some("YES")]);
        row.push(if c.kind == "u" {
            yes_no(!c.nulls_not_distinct)
        } else {
            None
        });
        rows.push(row);
    }
    rows
}

fn key_column_usage(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in all(context).iter().filter(|c| c.kind != "c") {
        for (i, &column) in c.columns.iter().enumerate() {
            let mut row = names(context, c);
            row.push(some(c.table.schema().field(column).name()));
            row.push(Some((i + 1).to_string()));
            row.push(position_in_key(context, c, i).map(|p| p.to_string()));
            rows.push(row);
        }
    }
    rows
}

/// Where the column that a foreign key's column refers to stands in the referenced constraint.
fn position_in_key(context: &SystemContext, c: &Constraint<'_>, i: usize) -> Option<usize> {
    let f = c.foreign?;
    let referred = f.parent_columns.get(i)?;
    let key = referenced(context, c)?;
    key.columns.iter().position(|k| k == referred).map(|p| p + 1)
}

/// The constraint that a foreign key refers to.
fn referenced<'a>(context: &'a SystemContext, c: &Constraint<'_>) -> Option<Constraint<'a>> {
    let parent = context.catalog.get(c.foreign?.parent)?;
    constraints(context, parent)
        .into_iter()
        .find(|k| k.kind != "f" && k.index == c.index)
}

fn constraint_column_usage(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in all(context) {
        let (table, columns) = match c.foreign {
            Some(f) => match context.catalog.get(f.parent) {
                Some(parent) => (parent, &f.parent_columns),
                None => continue,
            },
            None => (c.table, &c.columns),
        };
        for column in columns {
            rows.push(vec![
                some("dev"),
                some(context.catalog.namespace_of(table)),
                some(&table.name),
                some(table.schema().field(*column).name()),
                some("dev"),
                some(context.catalog.namespace_of(c.table)),
                some(&c.name),
            ]);
        }
    }
    rows
}

fn referential_constraints(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in all(context) {
        let Some(f) = c.foreign else { continue };
        let key = referenced(context, &c);
        let schema = context.catalog.get(f.parent).map(|p| context.catalog.namespace_of(p));
        rows.push(vec![
            some("dev"),
            some(context.catalog.namespace_of(c.table)),
            some(&c.name),
            some("dev"),
            schema.map(str::to_owned),
            key.map(|k| k.name),
            some("NONE"),
            some(f.on_update.sql()),
            some(f.on_delete.sql()),
        ]);
    }
    rows
}

fn check_constraints(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in all(context) {
        if let Some(check) = &c.check {
            let schema = context.catalog.namespace_of(c.table);
            rows.push(vec![
                some("dev"),
                some(schema),
                some(&c.name),
                Some(format!("({check})")),
            ]);
        }
    }
    rows
}

fn sequences(context: &SystemContext) -> Vec<Row> {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let ObjectKind::Sequence(s) = &o.kind else { continue };
        if s.identity {
            continue;
        }
        let precision = match s.data_type.as_str() {
            "smallint" => "16",
            "integer" => "32",
            _ => "64",
        };
        rows.push(vec![
            some("dev"),
            some(context.catalog.namespace_of(o)),
            some(&o.name),
            some(&s.data_type),
            some(precision),
            some("2"),
            some("0"),
            Some(s.start.to_string()),
            Some(s.min.to_string()),
            Some(s.max.to_string()),
            Some(s.increment.to_string()),
            yes_no(s.cycle),
        ]);
    }
    rows
}
