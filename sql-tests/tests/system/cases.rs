//! The oracle: every case file against PostgreSQL, as batch, and as views fed in every way.

use levee_planner::catalog::ObjectKind;
use levee_sql_tests::cases::{self, Action, CaseFile, Item};
use levee_sql_tests::db::{Bound, Db};
use levee_sql_tests::feed::{self, Contents};
use levee_sql_tests::generate;
use levee_sql_tests::postgres::{PgSession, Postgres};
use levee_sql_tests::rows::Rows;
use levee_sql_tests::turns;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio runtime")
}

/// The files' expectations are PostgreSQL's answers; `LEVEE_BLESS=1` writes them.
#[test]
fn against_postgres() {
    let bless = std::env::var_os("LEVEE_BLESS").is_some();
    let files = cases::load_all();
    assert!(
        files.len() >= 25 || std::env::var_os("LEVEE_CASE").is_some(),
        "only {} case files",
        files.len()
    );
    runtime().block_on(async {
        let postgres = Postgres::start();
        let mut wrong = Vec::new();
        for file in &files {
            let session = postgres.database(&file.name).await;
            let results = run_on_postgres(&session, file, bless, &mut wrong).await;
            if bless {
                let text = std::fs::read_to_string(&file.path).expect("case file");
                std::fs::write(&file.path, cases::with_results(&text, &results)).expect("write case file");
            }
        }
        assert!(
            wrong.is_empty(),
            "{} differ from PostgreSQL:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    });
}

async fn run_on_postgres(
    session: &PgSession,
    file: &CaseFile,
    bless: bool,
    wrong: &mut Vec<String>,
) -> Vec<Option<(String, Vec<String>)>> {
    let mut results = Vec::new();
    for item in &file.items {
        let place = format!("{}:{}: {}", file.name, item.line, item.sql);
        let is_query = matches!(item.action, Action::Query { .. });
        if item.skip_postgres {
            if is_query {
                results.push(None);
            }
            continue;
        }
        match &item.action {
            Action::Ddl | Action::Data => {
                if let Err(e) = session.exec(&item.postgres_sql()).await {
                    wrong.push(format!("{place}\n  {e}"));
                }
            }
            Action::Fails(code) => match session.try_query(&item.postgres_sql()).await {
                Err(e) if e.starts_with(code.as_str()) => {}
                other => wrong.push(format!("{place}\n  expected {code}, got {other:?}")),
            },
            Action::Query {
                ordered,
                expected,
                floats,
            } => match session.try_query(&item.sql).await {
                Ok(rows) => {
                    if !bless && let Err(e) = cases::check_lines(&rows, expected, *ordered, *floats) {
                        wrong.push(format!("{place}\n{e}"));
                    }
                    let rows = if *ordered { rows } else { rows.sorted() };
                    results.push(Some((types(session, &item.sql).await, rows.lines())));
                }
                Err(e) => {
                    wrong.push(format!("{place}\n  {e}"));
                    results.push(None);
                }
            },
        }
    }
    results
}

async fn types(session: &PgSession, sql: &str) -> String {
    let statement = session.client().prepare(sql).await.expect("prepare");
    statement
        .columns()
        .iter()
        .map(|c| match c.type_().name() {
            "int2" | "int4" | "int8" => 'I',
            "numeric" => 'N',
            "float4" | "float8" => 'R',
            _ => 'T',
        })
        .collect()
}

/// Runs every file one way and reports all differences at once.
fn every_file<F, R>(what: &str, one: F)
where
    F: Fn(CaseFile) -> R,
    R: Future<Output = Vec<String>>,
{
    let _turn = turns::shared();
    let mut wrong = Vec::new();
    runtime().block_on(async {
        for file in cases::load_all() {
            let name = file.name.clone();
            wrong.extend(one(file).await.into_iter().map(|w| format!("{name}{w}")));
        }
    });
    assert!(wrong.is_empty(), "{what}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A query's rows against what the file expects; the difference, with its place.
fn judge(item: &Item, rows: Result<Rows, String>) -> Option<String> {
    let Action::Query {
        ordered,
        expected,
        floats,
    } = &item.action
    else {
        return None;
    };
    let found = rows.and_then(|rows| cases::check_lines(&rows, expected, *ordered, *floats));
    found.err().map(|e| format!(":{}: {}\n{e}", item.line, item.sql))
}

#[test]
fn as_batch() {
    every_file("batch queries", |file| async move {
        let db = Db::new(1);
        let mut wrong = Vec::new();
        for item in &file.items {
            match &item.action {
                Action::Query { .. } if item.skip_batch => {}
                Action::Query { .. } => wrong.extend(judge(item, db.query(&item.sql).await)),
                Action::Fails(code) => match db.exec(&item.sql).await {
                    Err(e) if e.starts_with(code.as_str()) => {}
                    other => wrong.push(format!(
                        ":{}: {}\n  expected {code}, got {other:?}",
                        item.line, item.sql
                    )),
                },
                _ => {
                    if let Err(e) = db.exec(&item.sql).await {
                        wrong.push(format!(":{}: {}\n  {e}", item.line, item.sql));
                    }
                }
            }
        }
        db.close().await;
        wrong
    });
}

fn view_name(item: &Item) -> String {
    format!("case_{}", item.line)
}

/// Creates the view of a query; the failure, with its place.
async fn create_view(db: &Db, item: &Item) -> Option<String> {
    let made = db
        .exec(&format!("CREATE MATERIALIZED VIEW {} AS {}", view_name(item), item.sql))
        .await;
    made.err()
        .map(|e| format!(":{}: CREATE MATERIALIZED VIEW AS {}\n  {e}", item.line, item.sql))
}

/// A view's contents against the file.
async fn judge_view(db: &Db, item: &Item) -> Option<String> {
    let mut unordered = item.clone();
    if let Action::Query { ordered, .. } = &mut unordered.action {
        *ordered = false;
    }
    judge(
        &unordered,
        db.query(&format!("SELECT * FROM {}", view_name(item))).await,
    )
    .map(|w| format!(" as view{w}"))
}

/// All views against their queries at one epoch.
async fn compare_all(db: &Db, views: &[(String, Bound)]) -> Vec<String> {
    match db.compare(views, db.last_write()).await {
        Err(e) => vec![format!(": {e}")],
        Ok(all) => all
            .into_iter()
            .zip(views)
            .filter_map(|((epoch, view, query), (name, _))| {
                view.same_as(&query, false)
                    .err()
                    .map(|e| format!(": {name} at epoch {epoch}:\n{e}"))
            })
            .collect(),
    }
}

/// DDL, then one view per query, then the data; each view is judged where its query stands.
async fn views_before(file: CaseFile, parallelism: usize) -> Vec<String> {
    let db = Db::new(parallelism);
    let mut wrong = Vec::new();
    let mut views = Vec::new();
    for item in file.items.iter().filter(|i| matches!(i.action, Action::Ddl)) {
        wrong.extend(
            db.exec(&item.sql)
                .await
                .err()
                .map(|e| format!(":{}: {}\n  {e}", item.line, item.sql)),
        );
    }
    for item in file.queries().filter(|i| !i.skip_view) {
        match create_view(&db, item).await {
            Some(e) => wrong.push(e),
            None => views.push((view_name(item), db.bound(&item.sql).expect("bound before"))),
        }
    }
    for item in &file.items {
        match &item.action {
            Action::Data => drop(db.exec(&item.sql).await),
            Action::Query { .. } if views.iter().any(|(name, _)| *name == view_name(item)) => {
                wrong.extend(judge_view(&db, item).await);
            }
            _ => {}
        }
    }
    wrong.extend(compare_all(&db, &views).await);
    db.close().await;
    wrong
}

#[test]
fn as_views_made_before_the_data() {
    every_file("views made before the data, 1 task", |file| views_before(file, 1));
}

#[test]
fn as_views_made_before_the_data_4_tasks() {
    every_file("views made before the data, 4 tasks", |file| views_before(file, 4));
}

/// Each view is made where its query stands, over what is there, and kept to the end.
async fn views_after(file: CaseFile) -> Vec<String> {
    let db = Db::new(2);
    let mut wrong = Vec::new();
    let mut views = Vec::new();
    for item in &file.items {
        match &item.action {
            Action::Query { .. } if !item.skip_view => match create_view(&db, item).await {
                Some(e) => wrong.push(e),
                None => {
                    wrong.extend(judge_view(&db, item).await);
                    views.push((view_name(item), db.bound(&item.sql).expect("bound before")));
                }
            },
            Action::Ddl | Action::Data => drop(db.exec(&item.sql).await),
            _ => {}
        }
    }
    wrong.extend(compare_all(&db, &views).await);
    let db = db.reopen().await;
    wrong.extend(
        compare_all(&db, &views)
            .await
            .into_iter()
            .map(|w| format!(" after a restart{w}")),
    );
    db.close().await;
    wrong
}

#[test]
fn as_views_made_after_the_data_and_after_a_restart() {
    every_file("views made after the data", views_after);
}

/// The tables' final contents, as SQL made them.
async fn final_contents(file: &CaseFile) -> Vec<Contents> {
    let db = Db::new(1);
    for item in &file.items {
        if matches!(item.action, Action::Ddl | Action::Data) {
            drop(db.exec(&item.sql).await);
        }
    }
    let mut out = Vec::new();
    let catalog = db.engine().catalog();
    for object in catalog.objects() {
        if let ObjectKind::Table(table) = &object.kind {
            out.push(Contents {
                table: object.name.clone(),
                batch: db.contents(&object.name).await.expect("table"),
                key: table.primary_key.clone(),
            });
        }
    }
    db.close().await;
    out
}

/// Views fed with random slices of the final contents, retractions included; compared along the way and at the end.
async fn views_in_slices(file: CaseFile, parallelism: usize, at_most: usize) -> Vec<String> {
    let contents = final_contents(&file).await;
    let db = Db::new(parallelism);
    let mut wrong = Vec::new();
    let mut views = Vec::new();
    for item in file.items.iter().filter(|i| matches!(i.action, Action::Ddl)) {
        wrong.extend(
            db.exec(&item.sql)
                .await
                .err()
                .map(|e| format!(":{}: {}\n  {e}", item.line, item.sql)),
        );
    }
    for item in file.queries().filter(|i| !i.skip_view) {
        if create_view(&db, item).await.is_none() {
            views.push((view_name(item), db.bound(&item.sql).expect("bound before")));
        }
    }
    let commits = feed::slices(&contents, at_most, &mut generate::rng(7));
    let every = commits.len().div_ceil(4).max(1);
    for (i, commit) in commits.into_iter().enumerate() {
        db.commit(commit).await;
        if i % every == every - 1 {
            wrong.extend(compare_all(&db, &views).await);
        }
        if !wrong.is_empty() {
            break;
        }
    }
    wrong.extend(compare_all(&db, &views).await);
    db.close().await;
    wrong
}

#[test]
fn as_views_in_slices_1_task() {
    every_file("views fed in slices, 1 task", |file| views_in_slices(file, 1, 8));
}

#[test]
fn as_views_in_slices_4_tasks() {
    every_file("views fed in slices, 4 tasks", |file| views_in_slices(file, 4, 8));
}

#[test]
fn as_views_with_a_barrier_after_every_row() {
    every_file("views with an epoch per row", |file| views_in_slices(file, 2, 1));
}

#[test]
fn results_replace_old_ones() {
    let old = "query ? rowsort\nSELECT 1\n----\nold\n\nstatement ok\nX\n\nquery T nosort\nSELECT 2\n----\nkeep\n";
    let new = cases::with_results(old, &[Some(("I".into(), vec!["1".into()])), None]);
    assert_eq!(
        new,
        "query I rowsort\nSELECT 1\n----\n1\n\nstatement ok\nX\n\nquery T nosort\nSELECT 2\n----\nkeep\n"
    );
    let rows = Rows {
        rows: vec![vec![Some("2.50".into()), None]],
        ..Rows::default()
    };
    assert!(cases::check_lines(&rows, &["2.5 NULL".into()], false, false).is_ok());
}
