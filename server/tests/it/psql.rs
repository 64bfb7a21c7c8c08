//! psql's own catalog commands run; skipped where psql is missing.

use std::process::Command;

use crate::harness::{Levee, fresh, psql};

fn run(levee: &Levee, commands: &[&str]) -> (String, String) {
    let mut command = Command::new(psql().expect("psql"));
    command.args([
        "-X",
        "-h",
        "127.0.0.1",
        "-p",
        &levee.port().to_string(),
        "-U",
        "tester",
        "-d",
        "dev",
    ]);
    for c in commands {
        command.args(["-c", c]);
    }
    let output = command.output().expect("psql runs");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn backslash_commands_work() {
    if psql().is_none() {
        eprintln!("psql is not installed: skipped");
        return;
    }
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute(
            "CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL DEFAULT 'x', b numeric(10,2), c varchar(7))",
        )
        .await
        .expect("table");
    client
        .batch_execute("CREATE VIEW v AS SELECT id FROM t")
        .await
        .expect("view");
    client
        .batch_execute("CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t")
        .await
        .expect("materialized view");
    client
        .batch_execute("CREATE SEQUENCE s; COMMENT ON TABLE t IS 'a comment'")
        .await
        .expect("sequence");
    for command in [
        "\\d",
        "\\d+",
        "\\dt",
        "\\dt+",
        "\\dm",
        "\\dv",
        "\\d t",
        "\\d+ t",
        "\\d v",
        "\\d+ v",
        "\\d m",
        "\\d+ m",
        "\\l",
        "\\dn",
        "\\dT",
        "\\df",
        "\\du",
        "\\di",
        "\\ds",
        "\\dp",
        "\\z t",
        "\\dL",
        "\\dO",
        "\\dn+",
        "\\sv v",
        "\\d t_pkey",
        "\\d s",
        "\\conninfo",
    ] {
        let (_, errors) = run(&levee, &[command]);
        assert_eq!(errors, "", "{command}");
    }
    let (table, _) = run(&levee, &["\\d t"]);
    for line in [
        "Table \"public.t\"",
        " id     | integer              |           | not null | ",
        " a      | text                 |           | not null | 'x'",
        " b      | numeric(10,2)        |           |          | ",
        " c      | character varying(7) |           |          | ",
        "\"t_pkey\" PRIMARY KEY, btree (id)",
    ] {
        assert!(table.contains(line), "{line}\n{table}");
    }
    let (list, _) = run(&levee, &["\\d"]);
    for line in [
        "public | m    | materialized view | tester",
        "public | t    | table             | tester",
        "public | v    | view ",
    ] {
        assert!(list.contains(line), "{line}\n{list}");
    }
}
