//! `pg_catalog`: which relation is made by whom, and the small ones.

use std::sync::Arc;

use levee_planner::catalog::ObjectKind;

use super::constraints::{self, index_definition, indexes};
use super::empty::EMPTY;
use super::functions::view_text;
use super::rows::{Made, Row, build, row};
use super::{SystemContext, relations, types};

/// Schemas that the system fills.
pub const SYSTEM_NAMESPACES: &[(i32, &str)] = &[
    (11, "pg_catalog"),
    (13_500, "information_schema"),
    (13_400, "levee_catalog"),
];

/// A relation of `pg_catalog`.
pub fn pg_catalog(context: &Arc<SystemContext>, name: &str) -> Option<Made> {
    if let Some((_, columns)) = EMPTY.iter().find(|(n, _)| *n == name) {
        return Some(build(columns, &[]));
    }
    let user = ("user", context.user.clone());
    Some(match name {
        "pg_class" => relations::pg_class(context),
        "pg_attribute" => relations::pg_attribute(context),
        "pg_attrdef" => relations::pg_attrdef(context),
        "pg_index" => constraints::pg_index(context),
        "pg_constraint" => constraints::pg_constraint(context),
        "pg_sequence" => relations::pg_sequence(context),
        "pg_sequences" => relations::pg_sequences(context),
        "pg_description" => relations::pg_description(context),
        "pg_depend" => relations::pg_depend(context),
        "pg_foreign_table" => relations::pg_foreign_table(context),
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
        "pg_type" => types::pg_type(),
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
            "tableoid:o oid:o lanname:t lanowner:o lanispl:b lanpltrusted:b lanplcallfoid:o laninline:o lanvalidator:o lanacl:t",
            &[
                row("2612 12 internal 10 f f 0 0 0 ~", &[]),
                row("2612 14 sql 10 f t 0 0 0 ~", &[]),
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
    let flag = |b: bool| some(if b { "t" } else { "f" });
    let mut rows: Vec<Row> = Vec::new();
    for o in context.catalog.objects() {
        let schema = some(context.catalog.namespace_of(o));
        match (name, &o.kind) {
            ("pg_tables", ObjectKind::Table(t)) => {
                let indexed = !t.primary_key.is_empty() || !t.constraints.uniques.is_empty();
                rows.push(vec![
                    schema,
                    some(&o.name),
                    some(user),
                    None,
                    flag(indexed),
                    some("f"),
                    flag(relations::has_triggers(context, o)),
                    some("f"),
                ]);
            }
            ("pg_views", ObjectKind::View(_)) => {
                rows.push(vec![schema, some(&o.name), some(user), view_text(context, o)]);
            }
            ("pg_matviews", ObjectKind::MaterializedView(_)) => {
                rows.push(vec![
                    schema,
                    some(&o.name),
                    some(user),
                    None,
                    some("f"),
                    some(if relations::is_populated(context, o) { "t" } else { "f" }),
                    view_text(context, o),
                ]);
            }
            _ => {}
        }
    }
    if name == "pg_indexes" {
        for i in indexes(context) {
            rows.push(vec![
                some(context.catalog.namespace_of(i.table)),
                some(&i.table.name),
                some(&i.name),
                None,
                Some(index_definition(context, &i)),
            ]);
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
