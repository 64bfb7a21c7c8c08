//! `pg_class` and what hangs on it: attributes, defaults, sequences, descriptions, dependencies.

use arrow::datatypes::Field;
use levee_planner::catalog::{CatalogObject, CommentKey, Generated, ObjectKind, TableDef};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;
use levee_planner::sql::types::{oid, typmod};
use levee_planner::sql::{shown_default, shown_expression};

use super::constraints::{all, indexes};
use super::rows::{Made, Row, build, build_as, row};
use super::{SystemContext, levee};
use crate::error::SqlError;

/// First OID of `levee_catalog`'s relations.
const LEVEE_BASE: i32 = 13_000;
/// OIDs of the catalogs that others refer to.
const PG_CLASS_OID: &str = "1259";
const PG_CONSTRAINT_OID: &str = "2606";
const PG_NAMESPACE_OID: &str = "2615";

/// An object by OID.
pub fn object_of(context: &SystemContext, oid: i32) -> Option<&CatalogObject> {
    let id = u32::try_from(oid).ok()?;
    context.catalog.get(ObjectId(id))
}

/// An object's OID.
pub fn id_of(object: &CatalogObject) -> i32 {
    i32::try_from(object.id.0).unwrap_or(0)
}

/// The OID of an object's schema.
pub fn namespace_oid(object: &CatalogObject) -> i32 {
    i32::try_from(object.namespace.0).unwrap_or(0)
}

fn relkind(object: &CatalogObject) -> &'static str {
    match object.kind {
        ObjectKind::Table(_) => "r",
        ObjectKind::View(_) => "v",
        ObjectKind::MaterializedView(_) => "m",
        ObjectKind::Source(_) | ObjectKind::Sink(_) => "f",
        ObjectKind::Index(_) => "i",
        ObjectKind::Sequence(_) => "S",
    }
}

/// Objects that clients see as such: a unique constraint's index is told of with its table.
fn shown_objects(context: &SystemContext) -> impl Iterator<Item = &CatalogObject> {
    context
        .catalog
        .objects()
        .filter(|o| !matches!(o.kind, ObjectKind::Index(_)))
}

/// A column's default or generation expression, as clients see it.
pub fn default_text(context: &SystemContext, t: &TableDef, column: usize) -> Option<String> {
    match t.generated.get(&column) {
        Some(Generated::Stored(sql)) => Some(shown_expression(sql)),
        Some(Generated::Identity { .. }) => None,
        None => {
            let sql = t.defaults.get(column)?.as_ref()?;
            let typed = levee_planner::sql::shown_literal(sql, t.schema.field(column));
            Some(shown_default(&typed, &context.catalog, &|o| context.shown(o)))
        }
    }
}

const PG_CLASS: &str = "oid:o relname:t relnamespace:o reltype:o reloftype:o relowner:o relam:o relfilenode:o reltablespace:o \
    relpages:i reltuples:f relallvisible:i reltoastrelid:o relhasindex:b relisshared:b relpersistence:t relkind:t relnatts:s \
    relchecks:s relhasrules:b relhastriggers:b relhassubclass:b relrowsecurity:b relforcerowsecurity:b relispopulated:b \
    relreplident:t relispartition:b relrewrite:o relfrozenxid:o relminmxid:o relacl:t reloptions:t relpartbound:t";
const PG_CLASS_ROW: &str = "$oid $name $schema 0 0 10 $am $oid 0 0 -1 0 0 $index f $persistence $kind $natts $checks $rules $triggers \
    f f f $populated $identity f 0 0 0 ~ ~ ~";

/// What differs between rows of `pg_class`.
struct Class<'a> {
    oid: i32,
    name: &'a str,
    schema: i32,
    kind: &'a str,
    columns: usize,
    checks: usize,
    indexed: bool,
    triggers: bool,
    temporary: bool,
    populated: bool,
}

impl Class<'_> {
    fn row(&self) -> Row {
        let flag = |b: bool| if b { "t" } else { "f" }.to_owned();
        let am = match self.kind {
            "r" | "m" => "2",
            "i" => "403",
            _ => "0",
        };
        let mut row = row(
            PG_CLASS_ROW,
            &[
                ("oid", self.oid.to_string()),
                ("name", self.name.to_owned()),
                ("schema", self.schema.to_string()),
                ("am", am.to_owned()),
                ("index", flag(self.indexed)),
                ("persistence", if self.temporary { "t" } else { "p" }.to_owned()),
                ("kind", self.kind.to_owned()),
                ("natts", self.columns.to_string()),
                ("checks", self.checks.to_string()),
                ("rules", flag(self.kind == "v" || self.kind == "m")),
                ("triggers", flag(self.triggers)),
                ("populated", flag(self.populated)),
                (
                    "identity",
                    if matches!(self.kind, "r" | "m") { "d" } else { "n" }.to_owned(),
                ),
            ],
        );
        // A name may hold what the template reads as words.
        row[1] = Some(self.name.to_owned());
        row
    }
}

/// Whether a table's foreign keys, or another's to it, need looking after.
pub fn has_triggers(context: &SystemContext, o: &CatalogObject) -> bool {
    let refers = |t: &TableDef| t.constraints.foreign_keys.iter().any(|f| f.parent == o.id);
    o.table().is_some_and(|t| !t.constraints.foreign_keys.is_empty())
        || context.catalog.objects().filter_map(CatalogObject::table).any(refers)
}

/// Whether a relation holds its rows: not so a view made WITH NO DATA.
pub fn is_populated(context: &SystemContext, o: &CatalogObject) -> bool {
    *context.catalog.job(o.id) != JobState::Unpopulated
}

/// `pg_class`.
pub fn pg_class(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in shown_objects(context) {
        let table = o.table();
        let indexed = table.is_some_and(|t| !t.primary_key.is_empty() || !t.constraints.uniques.is_empty());
        let class = Class {
            oid: id_of(o),
            name: &o.name,
            schema: namespace_oid(o),
            kind: relkind(o),
            columns: o.schema().fields().len(),
            checks: table.map_or(0, |t| t.constraints.checks.len()),
            indexed,
            triggers: has_triggers(context, o),
            temporary: context.catalog.is_temporary(o),
            populated: is_populated(context, o),
        };
        rows.push(class.row());
    }
    for i in indexes(context) {
        let class = Class {
            oid: i.oid,
            name: &i.name,
            schema: namespace_oid(i.table),
            kind: "i",
            columns: i.columns.len(),
            checks: 0,
            indexed: false,
            triggers: false,
            temporary: context.catalog.is_temporary(i.table),
            populated: true,
        };
        rows.push(class.row());
    }
    for (i, (name, columns)) in levee::relations().enumerate() {
        let class = Class {
            oid: LEVEE_BASE + i32::try_from(i).unwrap_or(0),
            name,
            schema: 13_400,
            kind: "v",
            columns: columns.len(),
            checks: 0,
            indexed: false,
            triggers: false,
            temporary: false,
            populated: true,
        };
        rows.push(class.row());
    }
    build(PG_CLASS, &rows)
}

const PG_ATTRIBUTE: &str = "attrelid:o attname:t atttypid:o attstattarget:i attlen:s attnum:s attndims:i attcacheoff:i atttypmod:i \
    attbyval:b attalign:t attstorage:t attcompression:t attnotnull:b atthasdef:b atthasmissing:b attidentity:t attgenerated:t \
    attisdropped:b attislocal:b attinhcount:i attcollation:o attacl:t attoptions:t attfdwoptions:t attmissingval:t";
const PG_ATTRIBUTE_ROW: &str = "$rel $name $type -1 $len $num 0 -1 $mod f i $storage '' $notnull $default f $identity $generated f t 0 $collation ~ ~ ~ ~";

/// What a column is besides its type.
#[derive(Default)]
struct Facts {
    not_null: bool,
    default: bool,
    identity: &'static str,
    generated: &'static str,
}

fn attribute(rel: i32, num: usize, field: &Field, facts: &Facts) -> Row {
    let type_id = oid(field);
    let storage = match type_id {
        25 | 1042 | 1043 | 17 => "x",
        1700 => "m",
        _ => "p",
    };
    let flag = |b: bool| if b { "t" } else { "f" }.to_owned();
    let mut row = row(
        PG_ATTRIBUTE_ROW,
        &[
            ("rel", rel.to_string()),
            ("name", field.name().clone()),
            ("type", type_id.to_string()),
            ("len", super::type_size(type_id).to_string()),
            ("num", num.to_string()),
            ("mod", typmod(field).to_string()),
            ("storage", storage.to_owned()),
            ("notnull", flag(facts.not_null)),
            ("default", flag(facts.default)),
            ("identity", facts.identity.to_owned()),
            ("generated", facts.generated.to_owned()),
            (
                "collation",
                if matches!(type_id, 25 | 1042 | 1043) {
                    "100"
                } else {
                    "0"
                }
                .to_owned(),
            ),
        ],
    );
    row[1] = Some(field.name().clone());
    row
}

/// `pg_attribute`.
pub fn pg_attribute(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in shown_objects(context) {
        let table = o.table();
        for (c, field) in o.schema().fields().iter().enumerate() {
            let generated = table.and_then(|t| t.generated.get(&c));
            let facts = Facts {
                not_null: (table.is_some() || matches!(o.kind, ObjectKind::Sequence(_))) && !field.is_nullable(),
                default: table.is_some_and(|t| default_text(context, t, c).is_some()),
                identity: match generated {
                    Some(Generated::Identity { always: true, .. }) => "a",
                    Some(Generated::Identity { .. }) => "d",
                    _ => "",
                },
                generated: match generated {
                    Some(Generated::Stored(_)) => "s",
                    _ => "",
                },
            };
            rows.push(attribute(id_of(o), c + 1, field, &facts));
        }
    }
    for index in indexes(context) {
        for (i, &c) in index.columns.iter().enumerate() {
            let field = index.table.schema().field(c);
            rows.push(attribute(index.oid, i + 1, field, &Facts::default()));
        }
    }
    for (i, (_, columns)) in levee::relations().enumerate() {
        for (c, field) in columns.iter().enumerate() {
            let rel = LEVEE_BASE + i32::try_from(i).unwrap_or(0);
            rows.push(attribute(rel, c + 1, field, &Facts::default()));
        }
    }
    build(PG_ATTRIBUTE, &rows)
}

/// `pg_attrdef`. A default's OID is unique by its table's and column's numbers.
pub fn pg_attrdef(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let Some(t) = o.table() else { continue };
        for c in 0..t.schema.fields().len() {
            if let Some(sql) = default_text(context, t, c) {
                let rel = Some(id_of(o).to_string());
                rows.push(vec![rel.clone(), rel, Some((c + 1).to_string()), Some(sql)]);
            }
        }
    }
    build("oid:o adrelid:o adnum:s adbin:t", &rows)
}

/// `pg_sequence`.
pub fn pg_sequence(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let ObjectKind::Sequence(s) = &o.kind else { continue };
        let type_id = match s.data_type.as_str() {
            "smallint" => "21",
            "integer" => "23",
            _ => "20",
        };
        let cycle = if s.cycle { "t" } else { "f" };
        let values = [
            id_of(o).to_string(),
            type_id.to_owned(),
            s.start.to_string(),
            s.increment.to_string(),
            s.max.to_string(),
            s.min.to_string(),
            s.cache.to_string(),
            cycle.to_owned(),
        ];
        rows.push(values.into_iter().map(Some).collect());
    }
    build(
        "seqrelid:o seqtypid:o seqstart:l seqincrement:l seqmax:l seqmin:l seqcache:l seqcycle:b",
        &rows,
    )
}

/// `pg_sequences`.
pub fn pg_sequences(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let ObjectKind::Sequence(s) = &o.kind else { continue };
        let Some(shared) = context.catalog.shared(o.id) else {
            continue;
        };
        let state = context.server.engine.sequence_state(shared)?;
        let mut row: Row = [
            context.catalog.namespace_of(o).to_owned(),
            o.name.clone(),
            context.user.clone(),
            s.data_type.clone(),
            s.start.to_string(),
            s.min.to_string(),
            s.max.to_string(),
            s.increment.to_string(),
            if s.cycle { "t" } else { "f" }.to_owned(),
            s.cache.to_string(),
        ]
        .into_iter()
        .map(Some)
        .collect();
        row.push(state.called.then(|| state.value.to_string()));
        rows.push(row);
    }
    build(
        "schemaname:t sequencename:t sequenceowner:t data_type:t start_value:l min_value:l max_value:l increment_by:l cycle:b \
         cache_size:l last_value:l",
        &rows,
    )
}

/// `pg_description`.
pub fn pg_description(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    let mut add = |object: String, class: &str, sub: usize, text: &str| {
        rows.push(vec![
            Some(object),
            Some(class.to_owned()),
            Some(sub.to_string()),
            Some(text.to_owned()),
        ]);
    };
    for o in context.catalog.objects() {
        for (key, text) in &o.comments {
            match key {
                CommentKey::Object => add(id_of(o).to_string(), PG_CLASS_OID, 0, text),
                CommentKey::Column(c) => add(id_of(o).to_string(), PG_CLASS_OID, c + 1, text),
                CommentKey::Constraint(_) => {}
            }
        }
    }
    for c in all(context) {
        if let Some(text) = c.table.comments.get(&CommentKey::Constraint(c.name.clone())) {
            add(c.oid.to_string(), PG_CONSTRAINT_OID, 0, text);
        }
    }
    for n in context.catalog.namespaces() {
        if let Some(text) = &n.comment {
            add(n.id.0.to_string(), PG_NAMESPACE_OID, 0, text);
        }
    }
    add("11".to_owned(), PG_NAMESPACE_OID, 0, "system catalog schema");
    build("objoid:o classoid:o objsubid:i description:t", &rows)
}

/// `pg_depend`, as far as tools look: what owns a sequence, and which relations a query reads.
pub fn pg_depend(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        if let ObjectKind::Sequence(s) = &o.kind
            && let Some((table, column)) = s.owned_by
        {
            let values = [
                ("seq", id_of(o).to_string()),
                ("table", table.0.to_string()),
                ("column", (column + 1).to_string()),
                ("kind", if s.identity { "i" } else { "a" }.to_owned()),
            ];
            rows.push(row("1259 $seq 0 1259 $table $column $kind", &values));
        }
        for target in &o.depends_on {
            let values = [("rel", id_of(o).to_string()), ("target", target.0.to_string())];
            rows.push(row("1259 $rel 0 1259 $target 0 n", &values));
        }
    }
    build(
        "classid:o objid:o objsubid:i refclassid:o refobjid:o refobjsubid:i deptype:t",
        &rows,
    )
}

/// Options as `pg_foreign_table` shows them; what lets somebody in elsewhere is not shown.
fn options_text(options: &std::collections::BTreeMap<String, String>) -> String {
    let is_secret = |k: &str| {
        ["secret", "password", "credential", "ssl.key"]
            .iter()
            .any(|s| k.contains(s))
    };
    options
        .iter()
        .map(|(k, v)| match is_secret(k) {
            true => format!("{k} '***'"),
            false => format!("{k} '{}'", v.replace('\'', "''")),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// `pg_foreign_table`.
pub fn pg_foreign_table(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let (connector, options) = match &o.kind {
            ObjectKind::Source(s) => (&s.connector, &s.options),
            ObjectKind::Sink(s) => (&s.connector, &s.options),
            _ => continue,
        };
        let _ = connector;
        rows.push(vec![
            Some(id_of(o).to_string()),
            Some("1".to_owned()),
            Some(options_text(options)),
        ]);
    }
    build("ftrelid:o ftserver:o ftoptions:t", &rows)
}

/// A sequence read as a table.
pub fn sequence_row(context: &SystemContext, sequence: &CatalogObject) -> Made {
    let shared = context.catalog.shared(sequence.id);
    let shared = shared.ok_or_else(|| SqlError::internal("the sequence is gone"))?;
    let state = context.server.engine.sequence_state(shared)?;
    let called = if state.called { "t" } else { "f" };
    let row = vec![
        Some(state.value.to_string()),
        Some("0".to_owned()),
        Some(called.to_owned()),
    ];
    build_as(sequence.schema(), &[row])
}
