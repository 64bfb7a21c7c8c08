//! Goldens: SQL → stream plan → fragments. `LEVEE_UPDATE_GOLDENS=1 cargo test -p levee-planner stream` rewrites them; review the diff.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::testing::{catalog, view};
use super::*;

/// Reads `name/*.sql`-like cases from one text file: a title line starting with `-- `, the query, then `----` and the expected text.
fn golden(name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/stream/goldens").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).expect("the golden file is there");
    let catalog = catalog();
    let mut out = String::new();
    let mut failed = Vec::new();
    for case in text.split("\n\n") {
        let (query, expected) = case.split_once("\n----\n").unwrap_or((case.trim_end(), ""));
        if query.trim().is_empty() {
            continue;
        }
        let sql: String = query.lines().filter(|l| !l.starts_with("-- ")).collect::<Vec<_>>().join("\n");
        let actual = match view(&sql, &catalog) {
            Ok(plan) => {
                let again = StreamPlan::decode(&plan.encode()).expect("a plan reads back");
                assert_eq!(format!("{plan:?}"), format!("{again:?}"), "{sql}");
                explain(&plan).join("\n")
            }
            Err(e) => {
                let mut text = format!("ERROR {}: {}", e.code, e.message);
                if let Some(detail) = e.detail {
                    let _ = write!(text, "\nDETAIL: {detail}");
                }
                if let Some(hint) = e.hint {
                    let _ = write!(text, "\nHINT: {hint}");
                }
                text
            }
        };
        if actual.trim() != expected.trim() {
            failed.push(format!("{query}\n---- expected\n{}\n---- planned\n{actual}", expected.trim()));
        }
        let _ = write!(out, "{}\n----\n{}\n\n", query.trim(), actual.trim());
    }
    if std::env::var_os("LEVEE_UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, out).expect("the golden file is written");
    } else {
        assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    }
}

#[test]
fn goldens_basic() {
    golden("basic");
}

#[test]
fn goldens_joins() {
    golden("joins");
}

#[test]
fn goldens_subqueries() {
    golden("subqueries");
}

#[test]
fn goldens_topn() {
    golden("topn");
}

#[test]
fn goldens_nexmark() {
    golden("nexmark");
}

#[test]
fn goldens_refused() {
    golden("refused");
}
