//! Statements other than queries.

use std::sync::Arc;

use super::fixture::{bind, columns, ddl, error};
use crate::catalog::{Catalog, ObjectKind};
use crate::sql::{Statement, parse};

fn refused(catalog: &Arc<Catalog>, sql: &str) -> String {
    match parse(sql).and_then(|p| super::fixture::binder(catalog).bind(&p[0], &[])) {
        Ok(s) => panic!("{sql} was accepted: {s:?}"),
        Err(e) => error(&e).trim_end().to_owned(),
    }
}

fn catalog(statements: &[&str]) -> Arc<Catalog> {
    let mut catalog = Arc::default();
    for s in statements {
        ddl(&mut catalog, s).unwrap_or_else(|e| panic!("{s}: {e:?}"));
    }
    catalog
}

#[test]
fn create_table_keeps_types_keys_and_defaults() {
    let c = catalog(&[
        "CREATE TABLE x (a int PRIMARY KEY, b varchar(3) NOT NULL, c numeric(5,2) DEFAULT 1, d timestamptz, e numeric)",
    ]);
    let o = c.by_name("x").unwrap();
    assert_eq!(
        columns(o.schema()),
        "a integer not null, b character varying(3) not null, c numeric(5,2), d timestamp with time zone, e numeric"
    );
    let ObjectKind::Table(t) = &o.kind else { panic!() };
    assert_eq!(t.primary_key, [0]);
    assert_eq!(t.defaults[2].as_deref(), Some("1"));
}
