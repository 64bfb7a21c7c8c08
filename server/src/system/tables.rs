//! Relations of `pg_catalog` and `information_schema`.
//!
//! A relation is written as a line of `name:type` columns and rows of text, which [`build`] parses into a MemTable; catalogs
//! are small and each is made only when a statement names it. OIDs of a table's index and constraint are its own plus
//! [`INDEX_BASE`] and [`CONSTRAINT_BASE`].

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use levee_planner::catalog::{CatalogObject, ObjectKind};
use levee_planner::sql::types::{oid, pg_type_name, typmod};

use super::{SystemContext, levee};
use crate::error::{Result, SqlError};
use crate::types::input::ColumnInput;
use crate::types::zone::Zone;

/// Added to a table's OID for that of its primary key's index.
pub const INDEX_BASE: i32 = 0x2000_0000;
/// Added to a table's OID for that of its primary key's constraint.
pub const CONSTRAINT_BASE: i32 = 0x4000_0000;
/// First OID of `levee_catalog`'s relations.
const LEVEE_BASE: i32 = 13_000;

/// Schemas that the system fills.
pub const SYSTEM_NAMESPACES: &[(i32, &str)] = &[
    (11, "pg_catalog"),
    (13_500, "information_schema"),
    (13_400, "levee_catalog"),
];

/// Relations that never have rows here.
const EMPTY: &[(&str, &str)] = &[
    (
        "pg_policy",
        "oid:o polname:t polrelid:o polcmd:t polpermissive:b polroles:t polqual:t polwithcheck:t",
    ),
    (
        "pg_statistic_ext",
        "oid:o stxrelid:o stxname:t stxnamespace:o stxowner:o stxstattarget:i stxkeys:t stxkind:t stxexprs:t",
    ),
    (
        "pg_publication",
        "oid:o pubname:t pubowner:o puballtables:b pubinsert:b pubupdate:b pubdelete:b pubtruncate:b pubviaroot:b",
    ),
    ("pg_publication_namespace", "oid:o pnpubid:o pnnspid:o"),
    ("pg_publication_rel", "oid:o prpubid:o prrelid:o prqual:t prattrs:t"),
    (
        "pg_publication_tables",
        "pubname:t schemaname:t tablename:t attnames:t rowfilter:t",
    ),
    ("pg_inherits", "inhrelid:o inhparent:o inhseqno:i inhdetachpending:b"),
    (
        "pg_partitioned_table",
        "partrelid:o partstrat:t partnatts:s partdefid:o partattrs:t partclass:t partcollation:t partexprs:t",
    ),
    (
        "pg_trigger",
        "oid:o tgrelid:o tgparentid:o tgname:t tgfoid:o tgtype:s tgenabled:t tgisinternal:b tgconstrrelid:o tgconstrindid:o tgconstraint:o tgdeferrable:b tginitdeferred:b tgnargs:s tgattr:t tgargs:t tgqual:t tgoldtable:t tgnewtable:t",
    ),
    (
        "pg_rewrite",
        "oid:o rulename:t ev_class:o ev_type:t ev_enabled:t is_instead:b ev_qual:t ev_action:t",
    ),
    ("pg_auth_members", "roleid:o member:o grantor:o admin_option:b"),
    ("pg_description", "objoid:o classoid:o objsubid:i description:t"),
    ("pg_shdescription", "objoid:o classoid:o description:t"),
    (
        "pg_depend",
        "classid:o objid:o objsubid:i refclassid:o refobjid:o refobjsubid:i deptype:t",
    ),
    (
        "pg_shdepend",
        "dbid:o classid:o objid:o objsubid:i refclassid:o refobjid:o deptype:t",
    ),
    ("pg_enum", "oid:o enumtypid:o enumsortorder:f enumlabel:t"),
    (
        "pg_sequence",
        "seqrelid:o seqtypid:o seqstart:l seqincrement:l seqmax:l seqmin:l seqcache:l seqcycle:b",
    ),
    (
        "pg_sequences",
        "schemaname:t sequencename:t sequenceowner:t data_type:t start_value:l min_value:l max_value:l increment_by:l cycle:b cache_size:l last_value:l",
    ),
    (
        "pg_event_trigger",
        "oid:o evtname:t evtevent:t evtowner:o evtfoid:o evtenabled:t evttags:t",
    ),
    ("pg_subscription", "oid:o subdbid:o subname:t subowner:o subenabled:b"),
    ("pg_user_mapping", "oid:o umuser:o umserver:o umoptions:t"),
    (
        "pg_default_acl",
        "oid:o defaclrole:o defaclnamespace:o defaclobjtype:t defaclacl:t",
    ),
    ("pg_seclabel", "objoid:o classoid:o objsubid:i provider:t label:t"),
    ("pg_shseclabel", "objoid:o classoid:o provider:t label:t"),
    (
        "pg_seclabels",
        "objoid:o classoid:o objsubid:i objtype:t objnamespace:o objname:t provider:t label:t",
    ),
    ("pg_locks", "locktype:t database:o relation:o pid:i mode:t granted:b"),
    ("pg_prepared_xacts", "transaction:t gid:t prepared:t owner:t database:t"),
    (
        "pg_replication_slots",
        "slot_name:t plugin:t slot_type:t database:t active:b",
    ),
    ("pg_stat_gssapi", "pid:i gss_authenticated:b principal:t encrypted:b"),
    ("pg_largeobject_metadata", "oid:o lomowner:o lomacl:t"),
    (
        "pg_foreign_data_wrapper",
        "oid:o fdwname:t fdwowner:o fdwhandler:o fdwvalidator:o fdwacl:t fdwoptions:t",
    ),
    ("pg_transform", "oid:o trftype:o trflang:o trffromsql:o trftosql:o"),
    ("pg_init_privs", "objoid:o classoid:o objsubid:i privtype:t initprivs:t"),
    (
        "pg_statistic",
        "starelid:o staattnum:s stainherit:b stanullfrac:f stawidth:i stadistinct:f",
    ),
    (
        "pg_proc",
        "oid:o proname:t pronamespace:o proowner:o prolang:o procost:f prorows:f provariadic:o prosupport:t prokind:t prosecdef:b \
         proleakproof:b proisstrict:b proretset:b provolatile:t proparallel:t pronargs:s pronargdefaults:s prorettype:o proargtypes:t \
         proallargtypes:t proargmodes:t proargnames:t proargdefaults:t protrftypes:t prosrc:t probin:t prosqlbody:t proconfig:t proacl:t",
    ),
    ("pg_aggregate", "aggfnoid:t aggkind:t aggnumdirectargs:s"),
    (
        "pg_cast",
        "oid:o castsource:o casttarget:o castfunc:o castcontext:t castmethod:t",
    ),
    (
        "pg_conversion",
        "oid:o conname:t connamespace:o conowner:o conforencoding:i contoencoding:i conproc:t condefault:b",
    ),
    (
        "pg_opclass",
        "oid:o opcmethod:o opcname:t opcnamespace:o opcowner:o opcfamily:o opcintype:o opcdefault:b opckeytype:o",
    ),
    (
        "pg_operator",
        "oid:o oprname:t oprnamespace:o oprowner:o oprkind:t oprleft:o oprright:o oprresult:o oprcode:t",
    ),
    ("pg_opfamily", "oid:o opfmethod:o opfname:t opfnamespace:o opfowner:o"),
    (
        "pg_amop",
        "oid:o amopfamily:o amoplefttype:o amoprighttype:o amopstrategy:s amopopr:o amopmethod:o",
    ),
    (
        "pg_amproc",
        "oid:o amprocfamily:o amproclefttype:o amprocrighttype:o amprocnum:s amproc:t",
    ),
    (
        "pg_range",
        "rngtypid:o rngsubtype:o rngmultitypid:o rngcollation:o rngsubopc:o rngcanonical:t rngsubdiff:t",
    ),
    (
        "pg_extension",
        "oid:o extname:t extowner:o extnamespace:o extrelocatable:b extversion:t extconfig:t extcondition:t",
    ),
    ("pg_db_role_setting", "setdatabase:o setrole:o setconfig:t"),
    ("pg_ts_config", "oid:o cfgname:t cfgnamespace:o cfgowner:o cfgparser:o"),
    (
        "pg_ts_dict",
        "oid:o dictname:t dictnamespace:o dictowner:o dicttemplate:o dictinitoption:t",
    ),
    ("pg_ts_parser", "oid:o prsname:t prsnamespace:o"),
    ("pg_ts_template", "oid:o tmplname:t tmplnamespace:o"),
    (
        "pg_stats",
        "schemaname:t tablename:t attname:t inherited:b null_frac:f avg_width:i n_distinct:f",
    ),
];

/// Whether a relation of `pg_catalog` never has rows.
pub fn is_empty_by_nature(name: &str) -> bool {
    EMPTY.iter().any(|(n, _)| *n == name)
}

type Made = Result<Arc<dyn TableProvider>>;
type Row = Vec<Option<String>>;

fn fields(columns: &str) -> Result<Vec<Field>> {
    columns
        .split_whitespace()
        .map(|c| {
            let (name, kind) = c.split_once(':').unwrap_or((c, "t"));
            let t = match kind {
                "o" | "i" => DataType::Int32,
                "s" => DataType::Int16,
                "l" => DataType::Int64,
                "f" => DataType::Float32,
                "b" => DataType::Boolean,
                "t" => DataType::Utf8,
                other => return Err(SqlError::internal(format!("system column type {other}"))),
            };
            Ok(Field::new(name, t, true))
        })
        .collect()
}

fn build(columns: &str, rows: &[Row]) -> Made {
    build_as(&Arc::new(Schema::new(fields(columns)?)), rows)
}

fn build_as(schema: &SchemaRef, rows: &[Row]) -> Made {
    let fields = schema.fields();
    let mut inputs = fields.iter().map(|f| ColumnInput::new(f)).collect::<Result<Vec<_>>>()?;
    let utc = Zone::utc();
    for row in rows {
        if row.len() != inputs.len() {
            return Err(SqlError::internal(format!(
                "system row has {} of {} columns",
                row.len(),
                inputs.len()
            )));
        }
        for (input, value) in inputs.iter_mut().zip(row) {
            match value {
                Some(text) => input.text(text, &utc)?,
                None => input.null(),
            }
        }
    }
    let batch = RecordBatch::try_new(Arc::clone(schema), inputs.iter_mut().map(ColumnInput::finish).collect())?;
    Ok(Arc::new(MemTable::try_new(Arc::clone(schema), vec![vec![batch]])?))
}

/// A row from text: words, `~` for NULL, `''` for the empty string, `$name` for values given apart.
fn row(template: &str, values: &[(&str, String)]) -> Row {
    template
        .split_whitespace()
        .map(|word| match word {
            "~" => None,
            "''" => Some(String::new()),
            w => match w.strip_prefix('$') {
                Some(name) => values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()),
                None => Some(w.to_owned()),
            },
        })
        .collect()
}

/// An object by OID.
pub fn object_of(context: &SystemContext, oid: i32) -> Option<&CatalogObject> {
    let id = u32::try_from(oid).ok()?;
    context.catalog.get(levee_planner::plan::ObjectId(id))
}

fn id_of(object: &CatalogObject) -> i32 {
    i32::try_from(object.id.0).unwrap_or(0)
}

fn namespace_oid(object: &CatalogObject) -> i32 {
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

fn primary_key(object: &CatalogObject) -> Option<&[usize]> {
    match &object.kind {
        ObjectKind::Table(t) if !t.primary_key.is_empty() => Some(&t.primary_key),
        _ => None,
    }
}

/// Names of PostgreSQL types by OID, as `format_type` prints them.
const TYPES: &[(i32, &str, &[&str])] = &[
    (16, "boolean", &["bool"]),
    (17, "bytea", &[]),
    (18, "\"char\"", &["char"]),
    (19, "name", &[]),
    (20, "bigint", &["int8"]),
    (21, "smallint", &["int2"]),
    (22, "int2vector", &[]),
    (23, "integer", &["int4", "int"]),
    (24, "regproc", &[]),
    (25, "text", &[]),
    (26, "oid", &[]),
    (30, "oidvector", &[]),
    (700, "real", &["float4"]),
    (701, "double precision", &["float8", "float"]),
    (705, "unknown", &[]),
    (1042, "character", &["bpchar"]),
    (1043, "character varying", &["varchar"]),
    (1082, "date", &[]),
    (1083, "time without time zone", &["time"]),
    (1114, "timestamp without time zone", &["timestamp"]),
    (1184, "timestamp with time zone", &["timestamptz"]),
    (1186, "interval", &[]),
    (1700, "numeric", &["decimal"]),
    (2205, "regclass", &[]),
    (2206, "regtype", &[]),
    (2278, "void", &[]),
    (2950, "uuid", &[]),
    (114, "json", &[]),
    (3802, "jsonb", &[]),
];

/// `format_type`.
pub fn type_text(oid: i32, typmod: i32) -> String {
    if let Some((element, _)) = ARRAYS.iter().find(|(_, a)| *a == oid) {
        return format!("{}[]", type_text(*element, typmod));
    }
    let Some((_, name, _)) = TYPES.iter().find(|(o, ..)| *o == oid) else {
        return "???".to_owned();
    };
    match (oid, typmod) {
        (1043 | 1042, n) if n >= 4 => format!("{name}({})", n - 4),
        (1700, n) if n >= 4 => format!("{name}({},{})", ((n - 4) >> 16) & 0xffff, (n - 4) & 0xffff),
        _ => (*name).to_owned(),
    }
}

/// OID of a type by any of its names.
pub fn type_oid(name: &str) -> Option<i32> {
    let lower = name.trim().to_lowercase();
    let bare = lower.strip_prefix("pg_catalog.").unwrap_or(&lower);
    TYPES
        .iter()
        .find(|(_, n, also)| *n == bare || also.contains(&bare))
        .map(|(o, ..)| *o)
}

/// Array types of those above: OID of the element, OID of the array.
const ARRAYS: &[(i32, i32)] = &[
    (16, 1000),
    (17, 1001),
    (18, 1002),
    (19, 1003),
    (20, 1016),
    (21, 1005),
    (23, 1007),
    (25, 1009),
    (26, 1028),
    (700, 1021),
    (701, 1022),
    (1042, 1014),
    (1043, 1015),
    (1082, 1182),
    (1083, 1183),
    (1114, 1115),
    (1184, 1185),
    (1186, 1187),
    (1700, 1231),
    (2950, 2951),
    (114, 199),
    (3802, 3807),
];

fn type_category(oid: i32) -> &'static str {
    match oid {
        16 => "B",
        18 | 19 | 25 | 1042 | 1043 => "S",
        20 | 21 | 23 | 26 | 700 | 701 | 1700 | 2205 | 2206 => "N",
        1082 | 1083 | 1114 | 1184 => "D",
        1186 => "T",
        705 => "X",
        2278 => "P",
        _ => "U",
    }
}

fn pg_type() -> Made {
    let mut rows = Vec::new();
    let mut add = |oid: i32, name: String, length: i16, category: &str, elem: i32, array: i32| {
        let kind = if oid == 705 || oid == 2278 { "p" } else { "b" };
        let values = [
            ("oid", oid.to_string()),
            ("name", name.clone()),
            ("len", length.to_string()),
            ("kind", kind.to_owned()),
            ("category", category.to_owned()),
            ("elem", elem.to_string()),
            ("array", array.to_string()),
            ("in", format!("{name}in")),
            ("out", format!("{name}out")),
            (
                "collation",
                if matches!(oid, 25 | 1042 | 1043) { "100" } else { "0" }.to_owned(),
            ),
        ];
        rows.push(row(
            "$oid $name 11 10 $len f $kind $category f t , 0 - $elem $array $in $out - - - - - i p f 0 -1 0 $collation ~ ~ ~",
            &values,
        ));
    };
    for (oid, name, also) in TYPES {
        let array = ARRAYS.iter().find(|(e, _)| e == oid).map_or(0, |(_, a)| *a);
        let internal = also.first().unwrap_or(name).to_string();
        add(
            *oid,
            internal.clone(),
            super::type_size(u32::try_from(*oid).unwrap_or(0)),
            type_category(*oid),
            0,
            array,
        );
        if array != 0 {
            add(array, format!("_{internal}"), -1, "A", *oid, 0);
        }
    }
    build(
        "oid:o typname:t typnamespace:o typowner:o typlen:s typbyval:b typtype:t typcategory:t typispreferred:b typisdefined:b \
         typdelim:t typrelid:o typsubscript:t typelem:o typarray:o typinput:t typoutput:t typreceive:t typsend:t typmodin:t typmodout:t \
         typanalyze:t typalign:t typstorage:t typnotnull:b typbasetype:o typtypmod:i typndims:i typcollation:o typdefaultbin:t \
         typdefault:t typacl:t",
        &rows,
    )
}

const PG_CLASS: &str = "oid:o relname:t relnamespace:o reltype:o reloftype:o relowner:o relam:o relfilenode:o reltablespace:o \
    relpages:i reltuples:f relallvisible:i reltoastrelid:o relhasindex:b relisshared:b relpersistence:t relkind:t relnatts:s \
    relchecks:s relhasrules:b relhastriggers:b relhassubclass:b relrowsecurity:b relforcerowsecurity:b relispopulated:b \
    relreplident:t relispartition:b relrewrite:o relfrozenxid:o relminmxid:o relacl:t reloptions:t relpartbound:t";
const PG_CLASS_ROW: &str =
    "$oid $name $schema 0 0 10 $am $oid 0 0 -1 0 0 $index f p $kind $natts 0 f f f f f t d f 0 0 0 ~ ~ ~";

fn pg_class(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    let mut add = |oid: i32, name: String, schema: i32, kind: &str, columns: usize, index: bool| {
        let am = match kind {
            "r" | "m" => "2",
            "i" => "403",
            _ => "0",
        };
        rows.push(row(
            PG_CLASS_ROW,
            &[
                ("oid", oid.to_string()),
                ("name", name),
                ("schema", schema.to_string()),
                ("am", am.to_owned()),
                ("index", if index { "t" } else { "f" }.to_owned()),
                ("kind", kind.to_owned()),
                ("natts", columns.to_string()),
            ],
        ));
    };
    for o in context.catalog.objects() {
        let key = primary_key(o);
        add(
            id_of(o),
            o.name.clone(),
            namespace_oid(o),
            relkind(o),
            o.schema().fields().len(),
            key.is_some(),
        );
        if let Some(key) = key {
            add(
                INDEX_BASE + id_of(o),
                format!("{}_pkey", o.name),
                namespace_oid(o),
                "i",
                key.len(),
                false,
            );
        }
    }
    for (i, (name, columns)) in levee::relations().enumerate() {
        add(
            LEVEE_BASE + i32::try_from(i).unwrap_or(0),
            name.to_owned(),
            13_400,
            "v",
            columns.len(),
            false,
        );
    }
    build(PG_CLASS, &rows)
}

const PG_ATTRIBUTE: &str = "attrelid:o attname:t atttypid:o attstattarget:i attlen:s attnum:s attndims:i attcacheoff:i atttypmod:i \
    attbyval:b attalign:t attstorage:t attcompression:t attnotnull:b atthasdef:b atthasmissing:b attidentity:t attgenerated:t \
    attisdropped:b attislocal:b attinhcount:i attcollation:o attacl:t attoptions:t attfdwoptions:t attmissingval:t";
const PG_ATTRIBUTE_ROW: &str =
    "$rel $name $type -1 $len $num 0 -1 $mod f i $storage '' $notnull $default f '' '' f t 0 $collation ~ ~ ~ ~";

fn attribute(rel: i32, num: usize, field: &Field, not_null: bool, default: bool) -> Row {
    let type_id = oid(field);
    let storage = match type_id {
        25 | 1043 | 17 => "x",
        1700 => "m",
        _ => "p",
    };
    let flag = |b: bool| if b { "t" } else { "f" }.to_owned();
    row(
        PG_ATTRIBUTE_ROW,
        &[
            ("rel", rel.to_string()),
            ("name", field.name().clone()),
            ("type", type_id.to_string()),
            ("len", super::type_size(type_id).to_string()),
            ("num", num.to_string()),
            ("mod", typmod(field).to_string()),
            ("storage", storage.to_owned()),
            ("notnull", flag(not_null)),
            ("default", flag(default)),
            (
                "collation",
                if matches!(type_id, 25 | 1043) { "100" } else { "0" }.to_owned(),
            ),
        ],
    )
}

fn pg_attribute(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let table = match &o.kind {
            ObjectKind::Table(t) => Some(t),
            _ => None,
        };
        for (c, field) in o.schema().fields().iter().enumerate() {
            let default = table.is_some_and(|t| t.defaults.get(c).is_some_and(Option::is_some));
            rows.push(attribute(
                id_of(o),
                c + 1,
                field,
                table.is_some() && !field.is_nullable(),
                default,
            ));
        }
        for (i, &c) in primary_key(o).unwrap_or_default().iter().enumerate() {
            rows.push(attribute(
                INDEX_BASE + id_of(o),
                i + 1,
                o.schema().field(c),
                false,
                false,
            ));
        }
    }
    for (i, (_, columns)) in levee::relations().enumerate() {
        for (c, field) in columns.iter().enumerate() {
            rows.push(attribute(
                LEVEE_BASE + i32::try_from(i).unwrap_or(0),
                c + 1,
                field,
                false,
                false,
            ));
        }
    }
    build(PG_ATTRIBUTE, &rows)
}

fn pg_attrdef(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let ObjectKind::Table(t) = &o.kind else { continue };
        for (c, default) in t.defaults.iter().enumerate() {
            if let Some(sql) = default {
                let values = [
                    ("rel", id_of(o).to_string()),
                    ("num", (c + 1).to_string()),
                    ("sql", sql.clone()),
                ];
                rows.push(row("$rel $rel $num $sql", &values));
            }
        }
    }
    build("oid:o adrelid:o adnum:s adbin:t", &rows)
}

fn key_numbers(key: &[usize], separator: &str) -> String {
    key.iter()
        .map(|c| (c + 1).to_string())
        .collect::<Vec<_>>()
        .join(separator)
}

fn pg_index(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let Some(key) = primary_key(o) else { continue };
        let values = [
            ("index", (INDEX_BASE + id_of(o)).to_string()),
            ("rel", id_of(o).to_string()),
            ("n", key.len().to_string()),
            ("key", key_numbers(key, " ")),
            ("zeros", vec!["0"; key.len()].join(" ")),
        ];
        rows.push(row(
            "$index $rel $n $n t f t f t f t f t t f $key $zeros $zeros $zeros ~ ~",
            &values,
        ));
    }
    build(
        "indexrelid:o indrelid:o indnatts:s indnkeyatts:s indisunique:b indnullsnotdistinct:b indisprimary:b indisexclusion:b \
         indimmediate:b indisclustered:b indisvalid:b indcheckxmin:b indisready:b indislive:b indisreplident:b indkey:t \
         indcollation:t indclass:t indoption:t indexprs:t indpred:t",
        &rows,
    )
}

fn pg_constraint(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let Some(key) = primary_key(o) else { continue };
        let values = [
            ("oid", (CONSTRAINT_BASE + id_of(o)).to_string()),
            ("schema", namespace_oid(o).to_string()),
            ("name", format!("{}_pkey", o.name)),
            ("rel", id_of(o).to_string()),
            ("index", (INDEX_BASE + id_of(o)).to_string()),
            ("key", format!("{{{}}}", key_numbers(key, ","))),
        ];
        rows.push(row(
            "$oid $name $schema p f f t $rel 0 $index 0 0 '' '' '' t 0 t $key ~ ~ ~ ~ ~ ~ ~",
            &values,
        ));
    }
    build(
        "oid:o conname:t connamespace:o contype:t condeferrable:b condeferred:b convalidated:b conrelid:o contypid:o conindid:o \
         conparentid:o confrelid:o confupdtype:t confdeltype:t confmatchtype:t conislocal:b coninhcount:i connoinherit:b conkey:t \
         confkey:t conpfeqop:t conppeqop:t conffeqop:t confdelsetcols:t conexclop:t conbin:t",
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

fn pg_foreign_table(context: &SystemContext) -> Made {
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

/// A relation of `pg_catalog`.
pub fn pg_catalog(context: &Arc<SystemContext>, name: &str) -> Option<Made> {
    if let Some((_, columns)) = EMPTY.iter().find(|(n, _)| *n == name) {
        return Some(build(columns, &[]));
    }
    let user = ("user", context.user.clone());
    Some(match name {
        "pg_class" => pg_class(context),
        "pg_attribute" => pg_attribute(context),
        "pg_attrdef" => pg_attrdef(context),
        "pg_index" => pg_index(context),
        "pg_constraint" => pg_constraint(context),
        "pg_foreign_table" => pg_foreign_table(context),
        "pg_foreign_server" => build(
            "oid:o srvname:t srvowner:o srvfdw:o srvtype:t srvversion:t srvacl:t srvoptions:t",
            &[row("1 levee 10 0 ~ ~ ~ ~", &[])],
        ),
        "pg_namespace" => {
            let rows: Vec<Row> = context
                .namespaces()
                .into_iter()
                .map(|(oid, name)| row("$oid $name 10 ~", &[("oid", oid.to_string()), ("name", name)]))
                .collect();
            build("oid:o nspname:t nspowner:o nspacl:t", &rows)
        }
        "pg_database" => build(
            "oid:o datname:t datdba:o encoding:i datlocprovider:t datistemplate:b datallowconn:b datconnlimit:i datfrozenxid:o \
             datminmxid:o dattablespace:o datcollate:t datctype:t daticulocale:t datcollversion:t datacl:t",
            &[row("5 dev 10 6 c f t -1 0 0 1663 C C ~ ~ ~", &[])],
        ),
        "pg_roles" | "pg_authid" => build(
            "oid:o rolname:t rolsuper:b rolinherit:b rolcreaterole:b rolcreatedb:b rolcanlogin:b rolreplication:b rolconnlimit:i \
             rolpassword:t rolvaliduntil:t rolbypassrls:b rolconfig:t",
            &[row("10 $user t t t t t f -1 ~ ~ t ~", &[user])],
        ),
        "pg_user" => build(
            "usename:t usesysid:o usecreatedb:b usesuper:b userepl:b usebypassrls:b passwd:t valuntil:t useconfig:t",
            &[row("$user 10 t t f t ~ ~ ~", &[user])],
        ),
        "pg_tables" | "pg_views" | "pg_matviews" | "pg_indexes" => lists(context, name),
        "pg_settings" => {
            let rows: Vec<Row> = context
                .settings
                .iter()
                .map(|(n, v, d)| {
                    let text = |s: &str| Some(s.to_owned());
                    vec![
                        text(n),
                        text(v),
                        None,
                        text("Levee"),
                        text(d),
                        None,
                        text("user"),
                        text("string"),
                        text("session"),
                        None,
                        None,
                        None,
                        text(v),
                        text(v),
                        None,
                        None,
                        text("f"),
                    ]
                })
                .collect();
            build(
                "name:t setting:t unit:t category:t short_desc:t extra_desc:t context:t vartype:t source:t min_val:t max_val:t \
                 enumvals:t boot_val:t reset_val:t sourcefile:t sourceline:i pending_restart:b",
                &rows,
            )
        }
        "pg_stat_activity" => build(
            "datid:o datname:t pid:i usesysid:o usename:t application_name:t client_addr:t state:t query:t backend_type:t",
            &[vec![
                Some("5".into()),
                Some("dev".into()),
                Some(context.pid.to_string()),
                Some("10".into()),
                Some(context.user.clone()),
                Some(String::new()),
                None,
                Some("active".into()),
                Some(String::new()),
                Some("client backend".into()),
            ]],
        ),
        "pg_stat_ssl" => build("pid:i ssl:b version:t cipher:t bits:i", &[]),
        "pg_timezone_names" => build(
            "name:t abbrev:t utc_offset:t is_dst:b",
            &[row("UTC UTC 00:00:00 f", &[])],
        ),
        "pg_type" => pg_type(),
        "pg_am" => build(
            "oid:o amname:t amhandler:t amtype:t",
            &[row("2 heap ~ t", &[]), row("403 btree ~ i", &[])],
        ),
        "pg_collation" => build(
            "oid:o collname:t collnamespace:o collowner:o collprovider:t collisdeterministic:b collencoding:i collcollate:t collctype:t \
             colliculocale:t collversion:t",
            &[
                row("100 default 11 10 d t -1 ~ ~ ~ ~", &[]),
                row("950 C 11 10 c t -1 C C ~ ~", &[]),
            ],
        ),
        "pg_language" => build(
            "oid:o lanname:t lanowner:o lanispl:b lanpltrusted:b lanplcallfoid:o laninline:o lanvalidator:o lanacl:t",
            &[
                row("12 internal 10 f f 0 0 0 ~", &[]),
                row("14 sql 10 f t 0 0 0 ~", &[]),
            ],
        ),
        "pg_tablespace" => build(
            "oid:o spcname:t spcowner:o spcacl:t spcoptions:t",
            &[row("1663 pg_default 10 ~ ~", &[]), row("1664 pg_global 10 ~ ~", &[])],
        ),
        _ => return None,
    })
}

/// `pg_tables`, `pg_views`, `pg_matviews`, `pg_indexes`.
fn lists(context: &SystemContext, name: &str) -> Made {
    let user = &context.user;
    let some = |s: &str| Some(s.to_owned());
    let mut rows = Vec::new();
    for o in context.catalog.objects() {
        let schema = context.catalog.namespace_of(o).to_owned();
        match (name, &o.kind) {
            ("pg_tables", ObjectKind::Table(t)) => {
                let key = if t.primary_key.is_empty() { "f" } else { "t" };
                rows.push(vec![
                    Some(schema.clone()),
                    some(&o.name),
                    some(user),
                    None,
                    some(key),
                    some("f"),
                    some("f"),
                    some("f"),
                ]);
            }
            ("pg_views", ObjectKind::View(v)) => {
                rows.push(vec![Some(schema.clone()), some(&o.name), some(user), some(&v.sql)])
            }
            ("pg_matviews", ObjectKind::MaterializedView(v)) => {
                rows.push(vec![
                    Some(schema.clone()),
                    some(&o.name),
                    some(user),
                    None,
                    some("f"),
                    some("t"),
                    some(&v.sql),
                ]);
            }
            ("pg_indexes", ObjectKind::Table(t)) if !t.primary_key.is_empty() => {
                let columns: Vec<&str> = t
                    .primary_key
                    .iter()
                    .map(|&c| t.schema.field(c).name().as_str())
                    .collect();
                let n = &o.name;
                let sql = format!(
                    "CREATE UNIQUE INDEX {n}_pkey ON {schema}.{n} USING btree ({})",
                    columns.join(", ")
                );
                rows.push(vec![
                    Some(schema.clone()),
                    some(n),
                    Some(format!("{n}_pkey")),
                    None,
                    Some(sql),
                ]);
            }
            _ => {}
        }
    }
    let columns = match name {
        "pg_tables" => {
            "schemaname:t tablename:t tableowner:t tablespace:t hasindexes:b hasrules:b hastriggers:b rowsecurity:b"
        }
        "pg_views" => "schemaname:t viewname:t viewowner:t definition:t",
        "pg_matviews" => {
            "schemaname:t matviewname:t matviewowner:t tablespace:t hasindexes:b ispopulated:b definition:t"
        }
        _ => "schemaname:t tablename:t indexname:t tablespace:t indexdef:t",
    };
    build(columns, &rows)
}

/// A relation of `information_schema`.
pub fn information_schema(context: &Arc<SystemContext>, name: &str) -> Option<Made> {
    let some = |s: &str| Some(s.to_owned());
    let mut rows = Vec::new();
    let columns = match name {
        "schemata" => {
            for (_, schema) in context.namespaces() {
                rows.push(vec![some("dev"), Some(schema), Some(context.user.clone())]);
            }
            "catalog_name:t schema_name:t schema_owner:t"
        }
        "tables" => {
            for o in context.catalog.objects() {
                let schema = context.catalog.namespace_of(o).to_owned();
                let kind = match o.kind {
                    ObjectKind::Table(_) => "BASE TABLE",
                    ObjectKind::View(_) => "VIEW",
                    // PostgreSQL leaves materialized views out.
                    ObjectKind::MaterializedView(_) | ObjectKind::Index(_) | ObjectKind::Sequence(_) => continue,
                    ObjectKind::Source(_) | ObjectKind::Sink(_) => "FOREIGN",
                };
                let insertable = if kind == "BASE TABLE" { "YES" } else { "NO" };
                rows.push(vec![
                    some("dev"),
                    Some(schema.clone()),
                    some(&o.name),
                    some(kind),
                    some(insertable),
                    some("NO"),
                ]);
            }
            "table_catalog:t table_schema:t table_name:t table_type:t is_insertable_into:t is_typed:t"
        }
        "views" => {
            for o in context.catalog.objects() {
                if let ObjectKind::View(v) = &o.kind {
                    let schema = context.catalog.namespace_of(o).to_owned();
                    rows.push(vec![
                        some("dev"),
                        Some(schema.clone()),
                        some(&o.name),
                        some(&v.sql),
                        some("NONE"),
                        some("NO"),
                    ]);
                }
            }
            "table_catalog:t table_schema:t table_name:t view_definition:t check_option:t is_updatable:t"
        }
        "columns" => {
            for o in context.catalog.objects() {
                if matches!(
                    o.kind,
                    ObjectKind::MaterializedView(_) | ObjectKind::Index(_) | ObjectKind::Sequence(_)
                ) {
                    continue;
                }
                let schema = context.catalog.namespace_of(o);
                rows.extend(
                    o.schema()
                        .fields()
                        .iter()
                        .enumerate()
                        .map(|(c, f)| information_column(o, schema, c, f)),
                );
            }
            "table_catalog:t table_schema:t table_name:t column_name:t ordinal_position:i column_default:t is_nullable:t data_type:t \
             character_maximum_length:i numeric_precision:i numeric_scale:i datetime_precision:i udt_catalog:t udt_schema:t udt_name:t \
             is_identity:t is_generated:t"
        }
        "table_constraints" => {
            for o in context.catalog.objects().filter(|o| primary_key(o).is_some()) {
                let schema = context.catalog.namespace_of(o).to_owned();
                let key = format!("{}_pkey", o.name);
                rows.push(vec![
                    some("dev"),
                    Some(schema.clone()),
                    Some(key),
                    some("dev"),
                    Some(schema.clone()),
                    some(&o.name),
                    some("PRIMARY KEY"),
                    some("NO"),
                    some("NO"),
                ]);
            }
            "constraint_catalog:t constraint_schema:t constraint_name:t table_catalog:t table_schema:t table_name:t constraint_type:t \
             is_deferrable:t initially_deferred:t"
        }
        "key_column_usage" => {
            for o in context.catalog.objects() {
                let schema = context.catalog.namespace_of(o).to_owned();
                for (i, &c) in primary_key(o).unwrap_or_default().iter().enumerate() {
                    rows.push(vec![
                        some("dev"),
                        Some(schema.clone()),
                        Some(format!("{}_pkey", o.name)),
                        some("dev"),
                        Some(schema.clone()),
                        some(&o.name),
                        some(o.schema().field(c).name()),
                        Some((i + 1).to_string()),
                        None,
                    ]);
                }
            }
            "constraint_catalog:t constraint_schema:t constraint_name:t table_catalog:t table_schema:t table_name:t column_name:t \
             ordinal_position:i position_in_unique_constraint:i"
        }
        "referential_constraints" => {
            "constraint_catalog:t constraint_schema:t constraint_name:t unique_constraint_name:t"
        }
        "routines" => "specific_name:t routine_name:t routine_schema:t routine_type:t",
        "sequences" => "sequence_catalog:t sequence_schema:t sequence_name:t",
        _ => return None,
    };
    Some(build(columns, &rows))
}

fn information_column(object: &CatalogObject, schema: &str, c: usize, field: &Field) -> Row {
    let some = |s: &str| Some(s.to_owned());
    let full = pg_type_name(field);
    let base = full.split('(').next().unwrap_or(&full);
    let type_id = i32::try_from(oid(field)).unwrap_or(0);
    let udt = TYPES
        .iter()
        .find(|(o, ..)| *o == type_id)
        .map_or(base, |(_, n, also)| also.first().unwrap_or(n));
    let modifier = typmod(field);
    let default = match &object.kind {
        ObjectKind::Table(t) => t.defaults.get(c).cloned().flatten(),
        _ => None,
    };
    let (precision, scale) = match (type_id, modifier) {
        (21, _) => (Some(16), Some(0)),
        (23, _) => (Some(32), Some(0)),
        (20, _) => (Some(64), Some(0)),
        (700, _) => (Some(24), None),
        (701, _) => (Some(53), None),
        (1700, n) if n >= 4 => (Some((n - 4) >> 16), Some((n - 4) & 0xffff)),
        _ => (None, None),
    };
    let length = (type_id == 1043 && modifier >= 4).then(|| (modifier - 4).to_string());
    let time = matches!(type_id, 1114 | 1184 | 1186)
        .then(|| "6".to_owned())
        .or((type_id == 1082).then(|| "0".to_owned()));
    vec![
        some("dev"),
        some(schema),
        some(&object.name),
        some(field.name()),
        Some((c + 1).to_string()),
        default,
        some(if field.is_nullable() { "YES" } else { "NO" }),
        some(base),
        length,
        precision.map(|p| p.to_string()),
        scale.map(|s| s.to_string()),
        time,
        some("dev"),
        some("pg_catalog"),
        some(udt),
        some("NO"),
        some("NEVER"),
    ]
}
