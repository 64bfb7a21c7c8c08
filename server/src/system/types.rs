//! `pg_type`, and the names of types.

use super::rows::{Made, build, row};

/// Names of PostgreSQL types by OID, as `format_type` prints them.
pub const TYPES: &[(i32, &str, &[&str])] = &[
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
    (1266, "time with time zone", &["timetz"]),
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
        (1083 | 1114 | 1184 | 1266, n) if n >= 0 => match name.split_once(' ') {
            Some((kind, zone)) => format!("{kind}({n}) {zone}"),
            None => format!("{name}({n})"),
        },
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
    (1266, 1270),
    (1114, 1115),
    (1184, 1185),
    (1186, 1187),
    (1700, 1231),
    (2950, 2951),
    (114, 199),
    (3802, 3807),
];

/// The element type of an array type.
pub fn array_element(oid: i32) -> Option<i32> {
    ARRAYS.iter().find(|(_, a)| *a == oid).map(|(e, _)| *e)
}

fn type_category(oid: i32) -> &'static str {
    match oid {
        16 => "B",
        18 | 19 | 25 | 1042 | 1043 => "S",
        20 | 21 | 23 | 26 | 700 | 701 | 1700 | 2205 | 2206 => "N",
        1082 | 1083 | 1114 | 1184 | 1266 => "D",
        1186 => "T",
        705 => "X",
        2278 => "P",
        _ => "U",
    }
}

/// `pg_type`.
pub fn pg_type() -> Made {
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
