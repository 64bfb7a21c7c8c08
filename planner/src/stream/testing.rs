//! A small catalog for the planner's own tests.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::catalog::TableProvider;

use crate::Result;
use crate::catalog::{Catalog, CatalogObject, CatalogOp, Encoding, ObjectKind, SourceDef, SourceFormat, TableDef};
use crate::plan::StreamPlan;
use crate::sql::{BindSettings, Binder, Statement, SystemTables, parse};

#[derive(Debug)]
struct NoSystem;

impl SystemTables for NoSystem {
    fn table(&self, _: Option<&str>, _: &str) -> Option<Arc<dyn TableProvider>> {
        None
    }
}

/// Tables `t`, `u`, `pair` (keyed) and `bag` (no key); the source `account` of keyed changes; Nexmark's sources `person`, `auction`, `bid`; a materialized view `per_bidder`.
pub(crate) fn catalog() -> Arc<Catalog> {
    let mut catalog = Catalog::default();
    let int = |n: &str, nullable| Field::new(n, DataType::Int32, nullable);
    let big = |n: &str| Field::new(n, DataType::Int64, true);
    let text = |n: &str| Field::new(n, DataType::Utf8, true);
    let time = |n: &str| Field::new(n, DataType::Timestamp(TimeUnit::Microsecond, None), true);
    table(
        &mut catalog,
        "t",
        vec![int("id", false), int("a", true), big("b"), text("s"), time("ts")],
        vec![0],
    );
    table(
        &mut catalog,
        "u",
        vec![
            int("id", false),
            int("t_id", true),
            big("b"),
            Field::new("f", DataType::Float64, true),
        ],
        vec![0],
    );
    table(&mut catalog, "bag", vec![int("a", true), big("b"), text("s")], vec![]);
    table(
        &mut catalog,
        "pair",
        vec![int("x", false), int("y", false), text("v")],
        vec![0, 1],
    );
    keyed_source(
        &mut catalog,
        "account",
        vec![
            text("note"),
            Field::new("id", DataType::Int64, false),
            text("owner"),
            big("balance"),
        ],
        vec![1],
    );
    source(
        &mut catalog,
        "person",
        vec![
            big("id"),
            text("name"),
            text("email_address"),
            text("city"),
            text("state"),
            time("date_time"),
        ],
    );
    source(
        &mut catalog,
        "auction",
        vec![
            big("id"),
            text("item_name"),
            big("reserve"),
            time("date_time"),
            time("expires"),
            big("seller"),
            big("category"),
        ],
    );
    source(
        &mut catalog,
        "bid",
        vec![
            big("auction"),
            big("bidder"),
            big("price"),
            text("channel"),
            time("date_time"),
            text("extra"),
        ],
    );
    let shared = Arc::new(catalog.clone());
    let sql = "CREATE MATERIALIZED VIEW per_bidder AS SELECT bidder, count(*) AS bids, max(price) AS high FROM bid GROUP BY bidder";
    let per_bidder = create(sql, &shared).expect("the view plans");
    catalog.apply(&CatalogOp::Create(per_bidder));
    Arc::new(catalog)
}

fn table(catalog: &mut Catalog, name: &str, fields: Vec<Field>, primary_key: Vec<usize>) {
    let defaults = vec![None; fields.len()];
    add(
        catalog,
        name,
        ObjectKind::Table(TableDef {
            schema: Arc::new(Schema::new(fields)),
            primary_key,
            defaults,
            ingest: None,
            constraints: Default::default(),
            generated: Default::default(),
        }),
    );
}

/// A source of keyed changes.
fn keyed_source(catalog: &mut Catalog, name: &str, fields: Vec<Field>, key: Vec<usize>) {
    add(
        catalog,
        name,
        ObjectKind::Source(SourceDef {
            schema: Arc::new(Schema::new(fields)),
            connector: "kafka".to_string(),
            options: Default::default(),
            format: SourceFormat::Upsert,
            encode: Encoding::Json,
            encode_options: Default::default(),
            includes: Default::default(),
            key,
            revision: 0,
        }),
    );
}

fn source(catalog: &mut Catalog, name: &str, fields: Vec<Field>) {
    let connector = "nexmark".to_string();
    add(
        catalog,
        name,
        ObjectKind::Source(SourceDef {
            schema: Arc::new(Schema::new(fields)),
            connector,
            options: Default::default(),
            format: SourceFormat::Native,
            encode: Encoding::Native,
            encode_options: Default::default(),
            includes: Default::default(),
            key: Vec::new(),
            revision: 0,
        }),
    );
}

fn add(catalog: &mut Catalog, name: &str, kind: ObjectKind) {
    let id = catalog.next_id();
    catalog.apply(&CatalogOp::Create(CatalogObject::new(id, name, kind)));
}

fn create(sql: &str, catalog: &Arc<Catalog>) -> Result<CatalogObject> {
    let settings = BindSettings {
        time_zone: "UTC".into(),
        now_us: 0,
        user: "tester".into(),
        parallelism: 2,
        ..BindSettings::default()
    };
    let binder = Binder {
        catalog: Arc::clone(catalog),
        system: Arc::new(NoSystem),
        settings,
        extra_udfs: Vec::new(),
        base: None,
    };
    match binder.bind(&parse(sql)?[0], &[])? {
        Statement::Create { object, .. } => Ok(*object),
        other => panic!("{sql} gives {other:?}"),
    }
}

/// Binds and plans a query as a materialized view.
pub(crate) fn view(sql: &str, catalog: &Arc<Catalog>) -> Result<StreamPlan> {
    let object = create(&format!("CREATE MATERIALIZED VIEW v AS {sql}"), catalog)?;
    Ok(object.stream_plan().expect("a view has a plan").clone())
}
