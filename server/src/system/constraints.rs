//! Constraints and indexes as `pg_constraint`, `pg_index` and `information_schema` show them.
//!
//! A primary key is part of its table and has no object of its own, nor have checks and foreign keys: their OIDs are the table's plus
//! a base. A unique constraint's index is an object; its constraint has the index's OID plus [`CONSTRAINT_BASE`].

use levee_planner::catalog::{CatalogObject, CommentKey, ForeignKey, ObjectKind, TableDef};
use levee_planner::plan::ObjectId;
use levee_planner::sql::quote_ident;
use levee_planner::sql::shown_expression;

use super::SystemContext;
use super::relations::{id_of, namespace_oid};
use super::rows::{Made, Row, build, row};

/// Added to a table's OID for that of its primary key's index.
pub const INDEX_BASE: i32 = 0x2000_0000;
/// Added to a table's OID for that of its primary key's constraint, and to an index's for its unique constraint's.
pub const CONSTRAINT_BASE: i32 = 0x4000_0000;
/// Checks and foreign keys: this, and [`PARTS`] numbers for each table.
const PART_BASE: i32 = 0x5000_0000;
const PARTS: i32 = 128;

/// One constraint.
#[derive(Debug)]
pub struct Constraint<'a> {
    /// OID in `pg_constraint`.
    pub oid: i32,
    /// The table.
    pub table: &'a CatalogObject,
    /// Name.
    pub name: String,
    /// `contype`.
    pub kind: &'static str,
    /// Its columns.
    pub columns: Vec<usize>,
    /// OID of its index, or of the referenced key's; 0: none.
    pub index: i32,
    /// NULLs count as equal.
    pub nulls_not_distinct: bool,
    /// Foreign key.
    pub foreign: Option<&'a ForeignKey>,
    /// The condition's text, in all its parentheses.
    pub check: Option<String>,
    /// The same as it was written: PostgreSQL's pretty form.
    pretty: String,
}

fn part_oid(table: &CatalogObject, n: usize) -> i32 {
    let id = id_of(table) % 0x0020_0000;
    PART_BASE + id * PARTS + i32::try_from(n).unwrap_or(0) % PARTS
}

/// The index that enforces a key.
fn index_of(table: &CatalogObject, t: &TableDef, columns: &[usize]) -> i32 {
    let same = |key: &[usize]| key.len() == columns.len() && key.iter().all(|c| columns.contains(c));
    if same(&t.primary_key) {
        return INDEX_BASE + id_of(table);
    }
    let unique = t.constraints.uniques.iter().find(|u| same(&u.columns));
    unique.map_or(0, |u| i32::try_from(u.index.0).unwrap_or(0))
}

/// A table's constraints: key, unique constraints, checks, foreign keys.
pub fn constraints<'a>(context: &'a SystemContext, object: &'a CatalogObject) -> Vec<Constraint<'a>> {
    let Some(t) = object.table() else { return Vec::new() };
    let plain = |oid, name, kind, columns: &[usize], index| Constraint {
        oid,
        table: object,
        name,
        kind,
        columns: columns.to_vec(),
        index,
        nulls_not_distinct: false,
        foreign: None,
        check: None,
        pretty: String::new(),
    };
    let mut all = Vec::new();
    if let Some(name) = t.primary_key_name(&object.name) {
        let oid = CONSTRAINT_BASE + id_of(object);
        all.push(plain(oid, name, "p", &t.primary_key, INDEX_BASE + id_of(object)));
    }
    for u in &t.constraints.uniques {
        let index = i32::try_from(u.index.0).unwrap_or(0);
        let mut c = plain(CONSTRAINT_BASE + index, u.name.clone(), "u", &u.columns, index);
        c.nulls_not_distinct = !u.nulls_distinct;
        all.push(c);
    }
    for (i, k) in t.constraints.checks.iter().enumerate() {
        let mut c = plain(part_oid(object, i), k.name.clone(), "c", &k.columns, 0);
        c.check = Some(shown_expression(&k.sql));
        c.pretty.clone_from(&k.sql);
        all.push(c);
    }
    for (i, f) in t.constraints.foreign_keys.iter().enumerate() {
        let parent = context.catalog.get(f.parent);
        let index = parent.map_or(0, |p| p.table().map_or(0, |t| index_of(p, t, &f.parent_columns)));
        let mut c = plain(part_oid(object, 64 + i), f.name.clone(), "f", &f.columns, index);
        c.foreign = Some(f);
        all.push(c);
    }
    all
}

/// All constraints.
pub fn all(context: &SystemContext) -> Vec<Constraint<'_>> {
    let objects = context.catalog.objects();
    objects.flat_map(|o| constraints(context, o)).collect()
}

/// Names of columns, as SQL text.
pub fn column_list(object: &CatalogObject, columns: &[usize]) -> String {
    let names = columns.iter().map(|c| quote_ident(object.schema().field(*c).name()));
    names.collect::<Vec<_>>().join(", ")
}

/// `pg_get_constraintdef`.
pub fn definition(context: &SystemContext, c: &Constraint<'_>, pretty: bool) -> String {
    let columns = column_list(c.table, &c.columns);
    match (c.kind, c.foreign) {
        ("p", _) => format!("PRIMARY KEY ({columns})"),
        ("u", _) if c.nulls_not_distinct => format!("UNIQUE NULLS NOT DISTINCT ({columns})"),
        ("u", _) => format!("UNIQUE ({columns})"),
        (_, Some(f)) => {
            let parent = context.catalog.get(f.parent);
            let (name, referred) = match parent {
                Some(p) => (context.shown(p), column_list(p, &f.parent_columns)),
                None => (f.parent.0.to_string(), String::new()),
            };
            let mut text = format!("FOREIGN KEY ({columns}) REFERENCES {name}({referred})");
            for (verb, action) in [("UPDATE", f.on_update), ("DELETE", f.on_delete)] {
                if action != levee_planner::catalog::ReferentialAction::NoAction {
                    text.push_str(&format!(" ON {verb} {}", action.sql()));
                }
            }
            text
        }
        _ if pretty => format!("CHECK ({})", c.pretty),
        _ => format!("CHECK ({})", c.check.as_deref().unwrap_or_default()),
    }
}

/// An index: its table, name, columns, and whether it is the primary key's.
pub struct Index<'a> {
    /// OID.
    pub oid: i32,
    /// The table.
    pub table: &'a CatalogObject,
    /// Name.
    pub name: String,
    /// The table's columns.
    pub columns: Vec<usize>,
    /// Of the primary key.
    pub primary: bool,
    /// NULLs count as equal.
    pub nulls_not_distinct: bool,
}

/// All indexes: those of primary keys and unique constraints.
pub fn indexes(context: &SystemContext) -> Vec<Index<'_>> {
    all(context)
        .into_iter()
        .filter(|c| c.kind == "p" || c.kind == "u")
        .map(|c| Index {
            oid: c.index,
            table: c.table,
            primary: c.kind == "p",
            nulls_not_distinct: c.nulls_not_distinct,
            name: c.name,
            columns: c.columns,
        })
        .collect()
}

/// `pg_get_indexdef`.
pub fn index_definition(context: &SystemContext, i: &Index<'_>) -> String {
    let schema = quote_ident(context.catalog.namespace_of(i.table));
    let nulls = if i.nulls_not_distinct {
        " NULLS NOT DISTINCT"
    } else {
        ""
    };
    format!(
        "CREATE UNIQUE INDEX {} ON {schema}.{} USING btree ({}){nulls}",
        quote_ident(&i.name),
        quote_ident(&i.table.name),
        column_list(i.table, &i.columns)
    )
}

/// The object that an OID of an index or constraint stands for, for visibility.
pub fn table_of(context: &SystemContext, oid: i32) -> Option<&CatalogObject> {
    let id = if (INDEX_BASE..CONSTRAINT_BASE).contains(&oid) {
        oid - INDEX_BASE
    } else {
        oid
    };
    let object = context.catalog.get(ObjectId(u32::try_from(id).ok()?))?;
    match &object.kind {
        ObjectKind::Index(i) => context.catalog.get(i.table),
        _ => Some(object),
    }
}

fn numbers(columns: &[usize], separator: &str) -> String {
    let numbers = columns.iter().map(|c| (c + 1).to_string());
    numbers.collect::<Vec<_>>().join(separator)
}

fn array(columns: &[usize]) -> Option<String> {
    Some(format!("{{{}}}", numbers(columns, ",")))
}

/// `pg_index`.
pub fn pg_index(context: &SystemContext) -> Made {
    let flag = |b: bool| if b { "t" } else { "f" }.to_owned();
    let rows: Vec<Row> = indexes(context)
        .iter()
        .map(|i| {
            row(
                "$index $rel $n $n t $equal $primary f t f t f t t f $key $zeros $zeros $zeros ~ ~",
                &[
                    ("index", i.oid.to_string()),
                    ("rel", id_of(i.table).to_string()),
                    ("n", i.columns.len().to_string()),
                    ("equal", flag(i.nulls_not_distinct)),
                    ("primary", flag(i.primary)),
                    ("key", numbers(&i.columns, " ")),
                    ("zeros", vec!["0"; i.columns.len()].join(" ")),
                ],
            )
        })
        .collect();
    build(
        "indexrelid:o indrelid:o indnatts:s indnkeyatts:s indisunique:b indnullsnotdistinct:b indisprimary:b indisexclusion:b \
         indimmediate:b indisclustered:b indisvalid:b indcheckxmin:b indisready:b indislive:b indisreplident:b indkey:t \
         indcollation:t indclass:t indoption:t indexprs:t indpred:t",
        &rows,
    )
}

/// `pg_constraint`.
pub fn pg_constraint(context: &SystemContext) -> Made {
    let mut rows = Vec::new();
    for c in all(context) {
        let text = |s: &str| Some(s.to_owned());
        let (parent, update, delete, matched, referred) = match c.foreign {
            Some(f) => (
                f.parent.0.to_string(),
                f.on_update.letter(),
                f.on_delete.letter(),
                "s",
                array(&f.parent_columns),
            ),
            None => ("0".to_owned(), " ", " ", " ", None),
        };
        rows.push(vec![
            Some(c.oid.to_string()),
            Some(c.name.clone()),
            Some(namespace_oid(c.table).to_string()),
            text(c.kind),
            text("f"),
            text("f"),
            text("t"),
            Some(id_of(c.table).to_string()),
            text("0"),
            Some(c.index.to_string()),
            text("0"),
            Some(parent),
            text(update),
            text(delete),
            text(matched),
            text("t"),
            text("0"),
            text(if c.kind == "c" { "f" } else { "t" }),
            array(&c.columns),
            referred,
            None,
            None,
            None,
            None,
            None,
            c.check.clone(),
        ]);
    }
    build(
        "oid:o conname:t connamespace:o contype:t condeferrable:b condeferred:b convalidated:b conrelid:o contypid:o conindid:o \
         conparentid:o confrelid:o confupdtype:t confdeltype:t confmatchtype:t conislocal:b coninhcount:i connoinherit:b conkey:t \
         confkey:t conpfeqop:t conppeqop:t conffeqop:t confdelsetcols:t conexclop:t conbin:t",
        &rows,
    )
}

/// A comment on an object.
pub fn comment<'a>(object: &'a CatalogObject, key: &CommentKey) -> Option<&'a str> {
    object.comments.get(key).map(String::as_str)
}
