//! Goldens: what PostgreSQL 15 answers to `cases.sql` (`postgres.out`, made by `postgres.py`) is what Levee must answer, names, types,
//! values, codes, messages and positions, except where `differs.out` says otherwise; `docs/sql.md` explains those.
//!
//! `LEVEE_BLESS=1` rewrites `differs.out` from what Levee answers now; review the diff.

mod fixture;
mod statements;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use fixture::Fixture;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/sql/tests")
        .join(name)
}

/// Statement → answer, as the `.out` files hold them.
fn answers(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut current: Option<(String, String)> = None;
    for line in text.lines() {
        if let Some(statement) = line.strip_prefix("> ") {
            all.extend(current.take());
            current = Some((statement.to_owned(), String::new()));
        } else if let Some((_, answer)) = &mut current
            && !line.is_empty()
        {
            answer.push_str(line.trim_end());
            answer.push('\n');
        }
    }
    all.extend(current);
    all
}

#[test]
fn answers_as_postgresql_does() {
    let cases = std::fs::read_to_string(path("cases.sql")).unwrap();
    let postgres = answers(&std::fs::read_to_string(path("postgres.out")).unwrap());
    let differs = answers(&std::fs::read_to_string(path("differs.out")).unwrap_or_default());
    let fixture = Fixture::new();
    let (mut blessed, mut wrong) = (String::new(), String::new());
    for case in cases.lines() {
        let got = fixture.answer(case);
        let expected = postgres
            .get(case)
            .unwrap_or_else(|| panic!("postgres.out lacks {case}"));
        if &got != expected {
            write!(blessed, "> {case}\n{got}\n").unwrap();
        }
        let expected = differs.get(case).unwrap_or(expected);
        if &got != expected {
            write!(wrong, "> {case}\nexpected\n{expected}got\n{got}\n").unwrap();
        }
    }
    if std::env::var("LEVEE_BLESS").is_ok() {
        std::fs::write(path("differs.out"), blessed).unwrap();
        return;
    }
    assert!(wrong.is_empty(), "{wrong}");
}
