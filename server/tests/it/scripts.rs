//! Scripts that psql runs against Levee, whose output is PostgreSQL's, word for word.
//!
//! `scripts/NAME.out` is what PostgreSQL 15 answers to `scripts/NAME.sql`; `scripts/expect.sh` writes it. Left out of both are the
//! places in source code, and the quoted line of an error: Levee places fewer errors.

use std::path::Path;
use std::process::Command;

use crate::harness::{fresh, psql};

/// What is compared of psql's output.
fn shown(output: &str) -> String {
    let mut out = String::new();
    for line in output.lines() {
        let line = match line.strip_prefix("psql:").and_then(|l| l.split_once(": ")) {
            Some((_, rest)) => rest,
            None => line,
        };
        let caret = !line.is_empty() && line.trim() == "^";
        if !(line.starts_with("LOCATION:") || line.starts_with("LINE ") || caret) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

fn run(name: &str) {
    let Some(psql) = psql() else {
        eprintln!("psql is not installed: skipped");
        return;
    };
    let (_dir, levee) = fresh();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts");
    // One stream, so that errors stand where they come.
    let script = format!(
        "exec {} -X -h 127.0.0.1 -p {} -U tester -d dev -f {} 2>&1",
        psql.display(),
        levee.port(),
        dir.join(format!("{name}.sql")).display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("psql runs");
    let is = shown(&String::from_utf8_lossy(&output.stdout));
    let wanted = std::fs::read_to_string(dir.join(format!("{name}.out"))).expect("expected output");
    if let Some((n, (a, b))) = wanted
        .lines()
        .chain(std::iter::repeat("<end>"))
        .zip(is.lines().chain(std::iter::repeat("<end>")))
        .take(wanted.lines().count().max(is.lines().count()) + 1)
        .enumerate()
        .find(|(_, (a, b))| a != b)
    {
        panic!("{name}.out line {}:\nPostgreSQL: {a}\nLevee:      {b}\n\n{is}", n + 1);
    }
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                run(stringify!($name));
            }
        )*
    };
}

scripts!(
    alter,
    assignment,
    foreign_keys,
    generated,
    sequences,
    temporary,
    unique_and_check
);
