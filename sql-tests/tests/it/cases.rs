//! The oracle: every case file against PostgreSQL, as batch, and as views fed in every way.

use levee_sql_tests::cases::{self, Action, CaseFile};
use levee_sql_tests::postgres::{PgSession, Postgres};
use levee_sql_tests::rows::Rows;

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
