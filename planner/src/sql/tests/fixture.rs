//! A catalog with data, and statements run against it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::execution::context::TaskContext;

use crate::catalog::{Catalog, CatalogOp};
use crate::plan::ObjectId;
use crate::sql::functions::cast::format_array;
use crate::sql::{BindSettings, Binder, Query, Statement, SystemTables, map_df_error, parse, types};
use crate::{PlanError, Result};

#[derive(Debug)]
pub(super) struct NoSystem;

impl SystemTables for NoSystem {
    fn table(&self, _: Option<&str>, _: &str) -> Option<Arc<dyn TableProvider>> {
        None
    }
}

/// A binder over a catalog.
pub(super) fn binder(catalog: &Arc<Catalog>) -> Binder {
    Binder {
        catalog: Arc::clone(catalog),
        system: Arc::new(NoSystem),
        settings: BindSettings {
            time_zone: "UTC".into(),
            now_us: 1_700_000_000_000_000,
            user: "tester".into(),
            parallelism: 1,
            ..BindSettings::default()
        },
        extra_udfs: Vec::new(),
        base: None,
    }
}

/// Binds the only statement of a text.
pub(super) fn bind(catalog: &Arc<Catalog>, sql: &str) -> Result<Statement> {
    let parsed = parse(sql)?;
    assert_eq!(parsed.len(), 1, "{sql}");
    binder(catalog).bind(&parsed[0], &[])
}

/// Applies DDL to a catalog.
pub(super) fn ddl(catalog: &mut Arc<Catalog>, sql: &str) -> Result<()> {
    let ops = match bind(catalog, sql)? {
        Statement::Create { object, also, .. } => {
            let object = [CatalogOp::Create(*object)];
            object.into_iter().chain(also).collect()
        }
        Statement::Drop { objects, also, .. } => also
            .into_iter()
            .chain(objects.into_iter().map(CatalogOp::Drop))
            .collect(),
        Statement::Alter(alter) => alter.ops,
        other => panic!("{sql} is not DDL: {other:?}"),
    };
    let mut next = catalog.as_ref().clone();
    ops.iter().for_each(|op| next.apply(op));
    *catalog = Arc::new(next);
    Ok(())
}

pub(super) struct Fixture {
    pub catalog: Arc<Catalog>,
    data: Mutex<HashMap<ObjectId, Vec<RecordBatch>>>,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    /// `setup.sql` done.
    pub fn new() -> Self {
        let mut fixture = Self {
            catalog: Arc::default(),
            data: Mutex::default(),
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        };
        for line in std::fs::read_to_string(super::path("setup.sql")).unwrap().lines() {
            if line.starts_with("INSERT") {
                let Statement::Dml(dml) = bind(&fixture.catalog, line).unwrap() else {
                    panic!("{line}")
                };
                let rows = fixture.rows(&dml.query).unwrap();
                fixture.data.lock().unwrap().entry(dml.table).or_default().extend(rows);
            } else {
                ddl(&mut fixture.catalog, line).unwrap();
            }
        }
        fixture
    }

    /// Runs a bound query.
    pub fn rows(&self, query: &Query) -> Result<Vec<RecordBatch>> {
        let data = self.data.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut providers: HashMap<ObjectId, Arc<dyn TableProvider>> = HashMap::new();
        for id in &query.reads {
            let schema = Arc::clone(self.catalog.get(*id).unwrap().schema());
            let batches: Vec<RecordBatch> = data
                .get(id)
                .into_iter()
                .flatten()
                .map(|b| RecordBatch::try_new(Arc::clone(&schema), b.columns().to_vec()).unwrap())
                .collect();
            providers.insert(*id, Arc::new(MemTable::try_new(schema, vec![batches]).unwrap()));
        }
        let plan = Binder::with_providers(query.plan.clone(), &providers)?;
        let state = binder(&self.catalog).session_state();
        self.runtime.block_on(async {
            let plan = state.optimize(&plan).map_err(map_df_error)?;
            let physical = state
                .query_planner()
                .create_physical_plan(&plan, &state)
                .await
                .map_err(map_df_error)?;
            datafusion::physical_plan::collect(physical, Arc::new(TaskContext::from(&state)))
                .await
                .map_err(map_df_error)
        })
    }

    /// The answer in the form of `postgres.out`.
    pub fn answer(&self, sql: &str) -> String {
        let run = || -> Result<String> {
            match parse(sql).and_then(|p| binder(&self.catalog).bind(&p[0], &[]))? {
                Statement::Query(q) => self.show(&q),
                Statement::Dml(d) => self.show(&d.query),
                other => Ok(format!("{other:?}\n")),
            }
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        caught
            .unwrap_or_else(|_| Ok("PANIC\n".into()))
            .unwrap_or_else(|e| error(&e))
    }

    fn show(&self, q: &Query) -> Result<String> {
        let batches = self.rows(q)?;
        let name = |f: &Field| types::base_name(f.data_type()).to_owned();
        let varchar = |f: &Field| {
            if types::oid(f) == 1043 {
                "character varying".to_owned()
            } else {
                name(f)
            }
        };
        let columns: Vec<String> = q
            .schema
            .fields()
            .iter()
            .map(|f| format!("{} {}", f.name(), varchar(f)))
            .collect();
        let mut out = columns.join(" | ") + "\n";
        for b in &batches {
            for (f, c) in q.schema.fields().iter().zip(b.columns()) {
                assert_eq!(f.data_type(), c.data_type(), "column {}", f.name());
            }
            let text: Vec<_> = b.columns().iter().map(format_array).collect::<Result<_>>()?;
            for row in 0..b.num_rows() {
                let cells: Vec<String> = text
                    .iter()
                    .zip(b.columns())
                    .map(|(t, c)| cell(t.as_string::<i32>(), c.data_type(), row))
                    .collect();
                writeln!(out, "  {}", cells.join(" | ").trim_end()).unwrap();
            }
        }
        Ok(out.lines().map(|l| l.trim_end().to_owned() + "\n").collect())
    }
}

/// The wire shows booleans as `t` and `f`, unlike a cast to text.
fn cell(text: &arrow::array::StringArray, t: &DataType, row: usize) -> String {
    if text.is_null(row) {
        return "NULL".into();
    }
    let v = text.value(row).replace('\n', "\\n");
    if t == &DataType::Boolean { v[..1].to_owned() } else { v }
}

/// `ERROR code message @position`.
pub(super) fn error(e: &PlanError) -> String {
    let at = e.position.map_or_else(String::new, |p| format!(" @{p}"));
    format!("ERROR {} {}{at}\n", e.code, e.message)
}

/// A schema as `name type [not null]` words.
pub(super) fn columns(schema: &Schema) -> String {
    let list: Vec<String> = schema
        .fields()
        .iter()
        .map(|f| {
            format!(
                "{} {}{}",
                f.name(),
                types::pg_type_name(f),
                if f.is_nullable() { "" } else { " not null" }
            )
        })
        .collect();
    list.join(", ")
}
