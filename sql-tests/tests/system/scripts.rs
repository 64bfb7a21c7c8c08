//! Scripts over the wire, one session each, against the server and PostgreSQL: every statement must answer the same rows, the same
//! number of rows, or the same SQLSTATE.
//!
//! `sql-tests/scripts/*.sql`: one statement a line. `-- differs: reason` before a line says that Levee is known to answer otherwise;
//! it fails when that is no longer so.

use std::fmt::Write;
use std::path::Path;

use levee_sql_tests::postgres::{PgSession, Postgres, error_text};
use levee_sql_tests::server::{Server, ServerOptions};
use levee_sql_tests::turns;
use tokio_postgres::SimpleQueryMessage;

/// What a statement answered.
async fn answer(session: &PgSession, sql: &str) -> String {
    let messages = match session.client().simple_query(sql).await {
        Ok(messages) => messages,
        Err(e) => return format!("ERROR {}\n", error_text(&e).split(':').next().unwrap_or("?")),
    };
    let mut out = String::new();
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                let names: Vec<&str> = columns.iter().map(tokio_postgres::SimpleColumn::name).collect();
                writeln!(out, "{}", names.join("|")).expect("string");
            }
            SimpleQueryMessage::Row(row) => {
                let cells: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or("~")).collect();
                writeln!(out, "{}", cells.join("|")).expect("string");
            }
            SimpleQueryMessage::CommandComplete(n) => writeln!(out, "{n} rows").expect("string"),
            _ => {}
        }
    }
    out
}

async fn compare(path: &Path, levee: &PgSession, postgres: &PgSession) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(path).expect("script");
    let (mut n, mut wrong, mut differs) = (0, Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        if let Some(reason) = line.strip_prefix("-- differs:") {
            differs = Some(reason.trim());
            continue;
        }
        if line.trim().is_empty() || line.starts_with("--") {
            continue;
        }
        n += 1;
        let theirs = answer(postgres, line).await;
        let ours = answer(levee, line).await;
        let at = format!("{}:{}", path.display(), number + 1);
        match (ours == theirs, differs.take()) {
            (true, None) | (false, Some(_)) => {}
            (true, Some(reason)) => wrong.push(format!("{at} no longer differs ({reason}): {line}")),
            (false, None) => wrong.push(format!("{at} {line}\n--- PostgreSQL\n{theirs}--- Levee\n{ours}")),
        }
    }
    (n, wrong)
}

#[test]
fn scripts_answer_as_postgres_does() {
    let _turn = turns::shared();
    let runtime = tokio::runtime::Runtime::new().expect("tokio runtime");
    let dir = tempfile::tempdir().expect("temporary directory");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("scripts")
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "sql"))
        .collect();
    paths.sort();
    runtime.block_on(async {
        let postgres = Postgres::start();
        let (mut all, mut wrong) = (0, Vec::new());
        for path in &paths {
            let name = path.file_stem().and_then(|s| s.to_str()).expect("name");
            let server = Server::start(&dir.path().join(name), &ServerOptions::default());
            let ours = server.connect().await;
            let theirs = postgres.database(name).await;
            let (n, found) = compare(path, &ours, &theirs).await;
            all += n;
            wrong.extend(found);
            let complaints = server.complaints(&[]);
            assert!(complaints.is_empty(), "{complaints:?}");
        }
        println!(
            "{{\"test\":\"scripts\",\"statements\":{all},\"wrong\":{}}}",
            wrong.len()
        );
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(all > 150, "only {all} statements");
    });
}
