//! Statements other than queries.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::scalar::ScalarValue;

use super::fixture::{Fixture, bind, binder, columns, ddl, error};
use crate::catalog::{Catalog, CatalogOp, ObjectKind};
use crate::sql::{DmlKind, Statement, bind_params, parse, types};

/// What a statement becomes, in a line.
fn outcome(catalog: &Arc<Catalog>, sql: &str) -> String {
    let bound = parse(sql).and_then(|p| match p.as_slice() {
        [one] => binder(catalog).bind(one, &[]),
        other => panic!("{} statements in {sql}", other.len()),
    });
    match bound {
        Err(e) => {
            let more = |name: &str, text: &Option<String>| {
                text.as_ref().map_or_else(String::new, |t| format!(" [{name}: {t}]"))
            };
            format!(
                "{}{}{}",
                error(&e).trim_end(),
                more("detail", &e.detail),
                more("hint", &e.hint)
            )
        }
        Ok(Statement::Create { object, .. }) => {
            format!(
                "create {} {} ({})",
                object.kind_name(),
                object.name,
                columns(object.schema())
            )
        }
        Ok(Statement::CreateTable {
            create,
            query,
            on_commit,
        }) => {
            let rows = query.map_or_else(String::new, |q| format!(" as query ({})", columns(&q.schema)));
            let Statement::Create { object, .. } = *create else {
                panic!("{sql}: no table")
            };
            format!(
                "create {} ({}){rows} {on_commit:?}",
                object.name,
                columns(object.schema())
            )
        }
        Ok(Statement::Query(q)) => format!("query ({}) {:?}", columns(&q.schema), q.params),
        Ok(Statement::Dml(d)) => {
            let returning = d.returning.as_ref().map(|q| columns(&q.schema));
            let conflict = d.on_conflict.as_ref().map(|on| format!(" on conflict {:?}", on.key));
            format!(
                "{:?} ({}) {:?}{}{}",
                d.kind,
                columns(&d.query.schema),
                d.query.params,
                conflict.unwrap_or_default(),
                returning.map_or_else(String::new, |r| format!(" returning ({r})"))
            )
        }
        Ok(Statement::CopyTo(c)) => format!("copy to ({}) {:?}", columns(&c.query.schema), c.format),
        Ok(Statement::CopyFrom(c)) => {
            let filter = if c.filter.is_some() { " where" } else { "" };
            format!("copy from {:?} {:?}{filter}", c.columns, c.format)
        }
        Ok(Statement::SelectLocking(l)) => format!("query ({}) {:?}", columns(&l.query.schema), l.targets),
        Ok(Statement::DeclareCursor {
            name,
            binary,
            scroll,
            hold,
            query,
        }) => format!(
            "cursor {name} binary={binary} scroll={scroll:?} hold={hold} ({})",
            columns(&query.schema)
        ),
        Ok(Statement::ExplainQuery { analyze, .. }) => format!("explain analyze={analyze}"),
        Ok(Statement::Explain { lines }) => format!("explain {} lines", lines.len().min(1)),
        Ok(Statement::Drop {
            objects, tag, notices, ..
        }) => {
            let names: Vec<&str> = objects
                .iter()
                .map(|id| catalog.get(*id).unwrap().name.as_str())
                .collect();
            format!("{tag} {} {notices:?}", names.join(","))
        }
        Ok(Statement::Alter(alter)) => {
            let ops: Vec<String> = alter.ops.iter().map(|op| change(op, catalog)).collect();
            format!(
                "{} [{}] {:?} requires {}",
                alter.tag,
                ops.join(", "),
                alter.notices,
                alter.requires.len()
            )
        }
        Ok(Statement::Prepare { name, types, statement }) => format!("Prepare {name} {types:?} {}", statement.text),
        Ok(other) => format!("{other:?}"),
    }
}

/// A change of the catalog in a few words.
fn change(op: &CatalogOp, catalog: &Catalog) -> String {
    match op {
        CatalogOp::Create(o) => format!("create {} {}", o.kind_name(), o.name),
        CatalogOp::Drop(id) => format!("drop {}", catalog.get(*id).map_or("?", |o| &o.name)),
        CatalogOp::Replace(o) => format!("replace {} {} ({})", o.kind_name(), o.name, columns(o.schema())),
        CatalogOp::PutNamespace(n) => format!("schema {}", n.name),
        CatalogOp::DropNamespace(id) => format!("drop schema {}", id.0),
        CatalogOp::Sequence(id, state) => format!("sequence {} {state:?}", id.0),
        CatalogOp::SetJob(id, state) => format!("job {} {state:?}", id.0),
    }
}

fn catalog(statements: &[&str]) -> Arc<Catalog> {
    let mut catalog = Arc::default();
    for s in statements {
        ddl(&mut catalog, s).unwrap_or_else(|e| panic!("{s}: {e:?}"));
    }
    catalog
}

fn sample() -> Arc<Catalog> {
    catalog(&[
        "CREATE TABLE t (id integer PRIMARY KEY, a bigint, s varchar(5), d date, n numeric(10,2) DEFAULT 1.5, ok boolean)",
        "CREATE TABLE u (x integer NOT NULL, y text DEFAULT 'none')",
        "CREATE VIEW v AS SELECT id, a FROM t",
        "CREATE VIEW w AS SELECT id FROM v",
        "CREATE SOURCE bid WITH (connector = 'nexmark', nexmark.event.type = 'bid', nexmark.event.rate = 1000)",
        "CREATE MATERIALIZED VIEW m AS SELECT id, a FROM v WHERE a > 1",
        "CREATE MATERIALIZED VIEW m2 AS SELECT count(*) AS n FROM m",
        "CREATE SINK sk FROM m WITH (connector = 'blackhole')",
    ])
}

/// `statement` lines, each followed by its outcome; `LEVEE_BLESS=1` rewrites the file.
#[test]
fn statements_become_what_the_golden_says() {
    let path = super::path("statements.golden");
    let text = std::fs::read_to_string(&path).unwrap();
    let catalog = sample();
    let mut out = String::new();
    for statement in text.lines().filter_map(|l| l.strip_prefix("> ")) {
        out.push_str(&format!(
            "> {statement}\n{}\n",
            outcome(&catalog, &statement.replace("\\n", "\n"))
        ));
    }
    if std::env::var("LEVEE_BLESS").is_ok() {
        std::fs::write(&path, &out).unwrap();
    }
    assert_eq!(out, std::fs::read_to_string(&path).unwrap());
}

/// What sinks become: mode, format, encoding, key; `LEVEE_BLESS=1` rewrites the file.
#[test]
fn sinks_become_what_the_golden_says() {
    let path = super::path("sinks.golden");
    let text = std::fs::read_to_string(&path).unwrap();
    let catalog = sample();
    let mut out = String::new();
    for statement in text.lines().filter_map(|l| l.strip_prefix("> ")) {
        let parsed = parse(statement).and_then(|p| binder(&catalog).bind(&p[0], &[]));
        let shown = match parsed {
            Ok(Statement::Create { object, .. }) => match object.kind {
                ObjectKind::Sink(s) => format!("{:?} {:?} {:?} key {:?}", s.mode, s.format, s.encode, s.key),
                _ => String::new(),
            },
            _ => outcome(&catalog, statement),
        };
        out.push_str(&format!("> {statement}\n{shown}\n"));
    }
    if std::env::var("LEVEE_BLESS").is_ok() {
        std::fs::write(&path, &out).unwrap();
    }
    assert_eq!(out, std::fs::read_to_string(&path).unwrap());
}

#[test]
fn create_table_keeps_types_keys_and_defaults() {
    let c =
        catalog(&["CREATE TABLE x (a int, b varchar(3) NOT NULL, c numeric(5,2) DEFAULT 1 + 1, PRIMARY KEY (b, a))"]);
    let ObjectKind::Table(t) = &c.by_name("x").unwrap().kind else {
        panic!()
    };
    assert_eq!(
        columns(&t.schema),
        "a integer not null, b character varying(3) not null, c numeric(5,2)"
    );
    assert_eq!(t.primary_key, [1, 0]);
    assert_eq!(t.defaults[2].as_deref(), Some("1 + 1"));
    assert_eq!(types::typmod(t.schema.field(2)), (5 << 16 | 2) + 4);
}

#[test]
fn statements_are_split_with_their_offsets() {
    let parsed = parse(";; SELECT 1 ; -- nothing\n ;SELECT ';' AS \"é;\";/* ; */").unwrap();
    let texts: Vec<(&str, usize)> = parsed.iter().map(|p| (p.text.as_str(), p.offset)).collect();
    assert_eq!(texts, [("SELECT 1", 3), ("SELECT ';' AS \"é;\"", 27)]);
}

#[test]
fn syntax_errors_are_placed_in_the_whole_text() {
    let e = parse("SELECT 1; SELEC 2").unwrap_err();
    assert_eq!(
        (e.code, e.message.as_str(), e.position),
        ("42601", "syntax error at or near \"SELEC\"", Some(11))
    );
}

#[test]
fn deep_nesting_is_an_error_not_a_stack_overflow() {
    let deep = [
        format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000)),
        format!("SELECT 1{}", " + 1".repeat(20_000)),
        format!("SELECT {}true", "NOT ".repeat(20_000)),
        format!("SELECT {}1", "- ".repeat(20_000)),
        format!("SELECT 1{}", "::int".repeat(20_000)),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(20_000)),
        format!("SELECT {}1{}", "CASE WHEN true THEN ".repeat(5000), " END".repeat(5000)),
        format!(
            "SELECT * FROM {}t{}",
            "(SELECT * FROM ".repeat(3000),
            ") x".repeat(3000)
        ),
    ];
    for sql in deep {
        let e = parse(&sql).unwrap_err();
        assert_eq!(e.code, "54001", "{}", &sql[..40]);
    }
    let fixture = Fixture::new();
    let wide = format!(
        "SELECT id FROM t WHERE {} ORDER BY id",
        vec!["a = 10"; 400].join(" OR ")
    );
    assert_eq!(fixture.answer(&wide), "id integer\n  1\n");
    let list: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    assert_eq!(
        fixture.answer(&format!("SELECT count(*) FROM t WHERE id IN ({})", list.join(","))),
        "count bigint\n  4\n"
    );
}

#[test]
fn dml_rows_are_the_change() {
    let f = Fixture::new();
    let cases = [
        (
            "INSERT INTO w (m, q) VALUES ('x', '2020-01-01'), (DEFAULT, NULL)",
            "k integer | m text | z numeric | q date\n  7 | x | 1.50 | 2020-01-01\n  7 | none | 1.50 | NULL\n",
        ),
        (
            "INSERT INTO w DEFAULT VALUES",
            "k integer | m text | z numeric | q date\n  7 | none | 1.50 | NULL\n",
        ),
        (
            "INSERT INTO w SELECT id, NULL, a / 4.0, '2021-05-05' FROM t WHERE id = 1",
            "k integer | m text | z numeric | q date\n  1 | NULL | 2.50 | 2021-05-05\n",
        ),
        (
            "INSERT INTO w (z, k) SELECT 1.005, 2.5",
            "k integer | m text | z numeric | q date\n  3 | none | 1.01 | NULL\n",
        ),
        (
            "UPDATE u SET x = x + 1, name = DEFAULT WHERE id = 1",
            "id integer | t_id integer | x integer | name text | id integer | t_id integer | x integer | name text\n  1 | 1 | 5 | one | 1 | 1 | 6 | NULL\n",
        ),
        (
            "UPDATE u AS z SET x = (SELECT max(a) FROM t) WHERE z.id = 2",
            "id integer | t_id integer | x integer | name text | id integer | t_id integer | x integer | name text\n  2 | 1 | 7 | two | 2 | 1 | 10 | two\n",
        ),
        (
            "DELETE FROM u USING t WHERE t.id = u.t_id AND t.a = 10 AND u.x > 5",
            "id integer | t_id integer | x integer | name text\n  2 | 1 | 7 | two | 1\n",
        ),
        (
            "DELETE FROM u WHERE name IS NULL",
            "id integer | t_id integer | x integer | name text\n  4 | NULL | 9 | NULL\n",
        ),
        (
            "INSERT INTO w (k) VALUES (3000000000)",
            "ERROR 22003 integer out of range\n",
        ),
        (
            "UPDATE t SET v = 'too long' WHERE id = 1",
            "ERROR 22001 value too long for type character varying(5)\n",
        ),
        (
            "UPDATE t SET c = a * 10000 WHERE id = 1",
            "ERROR 22003 smallint out of range\n",
        ),
    ];
    for (sql, expected) in cases {
        assert_eq!(f.answer(sql), expected, "{sql}");
    }
}

#[test]
fn parameters_take_their_types_from_their_surroundings() {
    let c = sample();
    let params = |sql: &str| match bind(&c, sql).unwrap() {
        Statement::Query(q) => q.params,
        Statement::Dml(d) => d.query.params,
        other => panic!("{other:?}"),
    };
    let (i4, i8, text) = (DataType::Int32, DataType::Int64, DataType::Utf8);
    assert_eq!(
        params("SELECT * FROM t WHERE id = $1 AND s LIKE $2"),
        [i4.clone(), text.clone()]
    );
    assert_eq!(params("SELECT $1"), std::slice::from_ref(&text));
    assert_eq!(params("SELECT $1::int + $2"), [i4.clone(), i4.clone()]);
    assert_eq!(
        params("SELECT * FROM t WHERE d > $2 AND a IN ($1, 5)"),
        [i8.clone(), DataType::Date32]
    );
    assert_eq!(
        params("INSERT INTO t (id, n, d) VALUES ($1, $2, $3)"),
        [i4.clone(), DataType::Decimal128(10, 2), DataType::Date32]
    );
    assert_eq!(params("UPDATE t SET a = $1 WHERE id = $2"), [i8.clone(), i4.clone()]);
    assert_eq!(params("DELETE FROM u WHERE y = $1"), [text]);
    assert_eq!(
        params("SELECT id FROM t ORDER BY id LIMIT $1 OFFSET $2"),
        [i8.clone(), i8]
    );
    assert_eq!(params("SELECT coalesce($1, id), $1 FROM t"), std::slice::from_ref(&i4));
    let parsed = parse("SELECT $1 + 1").unwrap();
    let Statement::Query(q) = binder(&c).bind(&parsed[0], &[Some(DataType::Float64)]).unwrap() else {
        panic!()
    };
    assert_eq!(q.params, [DataType::Float64]);
    assert_eq!(columns(&q.schema), "?column? double precision");
}

#[test]
fn parameters_are_replaced_by_values() {
    let f = Fixture::new();
    let parsed = parse("SELECT id FROM t WHERE id = $1 OR a = $2 ORDER BY id LIMIT $3").unwrap();
    let Statement::Query(mut q) = binder(&f.catalog).bind(&parsed[0], &[]).unwrap() else {
        panic!()
    };
    let values = [
        ScalarValue::Int32(Some(4)),
        ScalarValue::Int32(Some(10)),
        ScalarValue::Int64(Some(5)),
    ];
    q.plan = bind_params(q.plan, &values).unwrap();
    let rows: usize = f.rows(&q).unwrap().iter().map(|b| b.num_rows()).sum();
    assert_eq!(rows, 2);
}

#[test]
fn a_view_reads_through_views_and_names_what_it_depends_on() {
    let c = sample();
    let name = |id| c.get(id).unwrap().name.clone();
    let m = c.by_name("m").unwrap();
    assert_eq!(m.depends_on.iter().map(|i| name(*i)).collect::<Vec<_>>(), ["v"]);
    assert_eq!(
        m.stream_plan()
            .unwrap()
            .inputs()
            .into_iter()
            .map(name)
            .collect::<Vec<_>>(),
        ["t"]
    );
    let Statement::Query(q) = bind(&c, "SELECT * FROM w JOIN u ON w.id = u.x").unwrap() else {
        panic!()
    };
    assert_eq!(q.reads.into_iter().map(name).collect::<Vec<_>>(), ["t", "u"]);
}

#[test]
fn replacing_a_view_keeps_its_id() {
    let mut c = sample();
    let id = c.by_name("v").unwrap().id;
    ddl(&mut c, "CREATE OR REPLACE VIEW v AS SELECT id, a, s FROM t").unwrap();
    assert_eq!(c.by_name("v").unwrap().id, id);
    assert_eq!(
        columns(c.by_name("v").unwrap().schema()),
        "id integer not null, a bigint, s character varying(5)"
    );
    let e = bind(&c, "CREATE OR REPLACE VIEW v AS SELECT id FROM w").unwrap_err();
    assert_eq!(e.code, "42P17");
    let e = bind(&c, "CREATE OR REPLACE VIEW v AS SELECT id FROM t").unwrap_err();
    assert_eq!((e.code, e.message.as_str()), ("42P16", "cannot drop columns from view"));
}

#[test]
fn tumble_is_exact_before_the_epoch_too() {
    let f = Fixture::new();
    let sql = "SELECT id, window_start, window_end FROM TUMBLE(t, ts, INTERVAL '1 hour') WHERE id <> 3 ORDER BY id";
    assert_eq!(
        f.answer(sql),
        "id integer | window_start timestamp without time zone | window_end timestamp without time zone\n  \
         1 | 2020-02-29 12:00:00 | 2020-02-29 13:00:00\n  2 | 1999-12-31 23:00:00 | 2000-01-01 00:00:00\n  \
         4 | 1970-01-01 00:00:00 | 1970-01-01 01:00:00\n"
    );
    let early = "SELECT window_start FROM TUMBLE(e, ts, INTERVAL '7 seconds', INTERVAL '1 second')";
    let mut f = f;
    ddl(
        &mut f.catalog,
        "CREATE VIEW e AS SELECT TIMESTAMP '1969-12-31 23:59:58' AS ts",
    )
    .unwrap();
    assert_eq!(
        f.answer(early),
        "window_start timestamp without time zone\n  1969-12-31 23:59:54\n"
    );
}

#[test]
fn nexmark_columns_are_the_generators() {
    let c = sample();
    assert_eq!(
        columns(c.by_name("bid").unwrap().schema()),
        "auction bigint, bidder bigint, price bigint, channel character varying, url character varying, \
         date_time timestamp without time zone, extra character varying"
    );
}

#[test]
fn the_kind_of_a_write_is_told() {
    let c = sample();
    for (sql, kind) in [
        ("INSERT INTO u VALUES (1)", DmlKind::Insert),
        ("UPDATE u SET x = 2", DmlKind::Update),
        ("DELETE FROM u", DmlKind::Delete),
    ] {
        let Statement::Dml(d) = bind(&c, sql).unwrap() else {
            panic!("{sql}")
        };
        assert_eq!((d.kind, d.table), (kind, c.by_name("u").unwrap().id));
    }
}

#[test]
fn literals_of_an_insert_are_read_as_the_general_path_reads_them() {
    let f = Fixture::new();
    let cells = [
        "1",
        "-1",
        "2147483648",
        "1.5",
        "-2.5",
        "'7'",
        "NULL",
        "1e2",
        "12345678.123",
        "true",
        "'x'",
    ];
    for cell in cells {
        for column in ["id", "b", "c", "f", "n", "d", "s", "v", "day", "flag"] {
            let direct = f.answer(&format!("INSERT INTO t ({column}) VALUES ({cell})"));
            let general = f.answer(&format!("INSERT INTO t ({column}) VALUES (({cell}))"));
            assert_eq!(direct.split(" @").next(), general.split(" @").next(), "{column} {cell}");
        }
    }
}

#[test]
fn stored_queries_go_on_meaning_the_same_relations() {
    let mut c = catalog(&[
        "CREATE TABLE t (id int PRIMARY KEY, a bigint)",
        "CREATE VIEW v AS SELECT t.id, t.a FROM t WHERE a > 1",
        "CREATE VIEW w AS SELECT * FROM v",
        "CREATE SCHEMA s",
        "ALTER TABLE t RENAME TO t2",
        "ALTER TABLE t2 RENAME COLUMN a TO b",
        "ALTER TABLE t2 SET SCHEMA s",
        "ALTER VIEW v RENAME COLUMN a TO c",
        // Takes the old name, and is not what the view means.
        "CREATE TABLE t (other text)",
    ]);
    let read = |c: &Arc<Catalog>, sql: &str| match bind(c, sql) {
        Ok(Statement::Query(q)) => (columns(&q.schema), q.reads),
        other => panic!("{other:?}"),
    };
    let moved = c.objects().find(|o| o.name == "t2").unwrap().id;
    assert_eq!(
        read(&c, "SELECT * FROM w"),
        ("id integer not null, a bigint".to_owned(), vec![moved])
    );
    assert_eq!(
        read(&c, "SELECT * FROM v"),
        ("id integer not null, c bigint".to_owned(), vec![moved])
    );
    assert_eq!(read(&c, "SELECT b FROM s.t2"), ("b bigint".to_owned(), vec![moved]));
    let e = bind(&c, "DROP SCHEMA s").unwrap_err();
    assert_eq!(e.code, "2BP01");
    ddl(&mut c, "DROP SCHEMA s CASCADE").unwrap();
    assert!(c.by_name("v").is_none() && c.by_name("w").is_none() && c.by_name("t").is_some());
    assert!(c.namespace_named("s").is_none());
}

#[test]
fn the_search_path_decides() {
    let c = catalog(&["CREATE SCHEMA s", "CREATE TABLE t (a int)", "CREATE TABLE s.t (b int)"]);
    let mut binder = binder(&c);
    binder.settings.search_path = vec!["nosuch".to_owned(), "s".to_owned(), "public".to_owned()];
    let parsed = parse("SELECT * FROM t").unwrap();
    match binder.bind(&parsed[0], &[]) {
        Ok(Statement::Query(q)) => assert_eq!(columns(&q.schema), "b integer"),
        other => panic!("{other:?}"),
    }
    let parsed = parse("CREATE TABLE x (a int)").unwrap();
    match binder.bind(&parsed[0], &[]) {
        Ok(Statement::Create { object, .. }) => assert_eq!(c.namespace_of(&object), "s"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn stored_expressions_are_shown_as_postgresql_shows_them() {
    for (sql, wanted) in [
        ("a > 0", "(a > 0)"),
        ("a > 1 AND b <> 'x'", "((a > 1) AND (b <> 'x'::text))"),
        ("a BETWEEN 1 AND 5", "((a >= 1) AND (a <= 5))"),
        ("a IN (1, 2)", "(a = ANY (ARRAY[1, 2]))"),
        ("NOT (a IS NULL)", "(NOT (a IS NULL))"),
        ("length(s) < 5", "(length(s) < 5)"),
        ("\"A b\"::text = 'y'", "((\"A b\")::text = 'y'::text)"),
    ] {
        assert_eq!(crate::sql::shown_expression(sql), wanted, "{sql}");
    }
    let field = types::field_of(&sqlparser::ast::DataType::Text).unwrap();
    assert_eq!(crate::sql::shown_literal("'x'", &field), "'x'::text");
    assert_eq!(crate::sql::shown_literal("now()", &field), "now()");
}

#[test]
fn a_moved_relation_is_shown_by_its_present_name() {
    let c = catalog(&[
        "CREATE TABLE t (id int)",
        "CREATE VIEW v AS SELECT t.id FROM t",
        "ALTER TABLE t RENAME TO u",
    ]);
    let shown = crate::sql::shown_query(c.by_name("v").unwrap(), &c, &|o| o.name.clone());
    assert_eq!(shown.as_deref(), Some("SELECT t.id FROM u \"t\""));
}
