//! Goldens: SQL → stream plan → fragments. `LEVEE_UPDATE_GOLDENS=1 cargo test -p levee-planner stream` rewrites them; review the diff.

use std::path::PathBuf;

use arrow::datatypes::DataType;
use datafusion::logical_expr::Operator;

use super::testing::{catalog, view};
use super::*;
use crate::plan::{ExchangeKind, PlanExpr, StreamNode, StreamOp};

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/stream/goldens")
        .join(format!("{name}.txt"))
}

fn read_golden(name: &str) -> String {
    std::fs::read_to_string(golden_path(name)).expect("the golden file is there")
}

/// Cases of one file, apart by blank lines: a title after `-- `, the query, `----`, the expected text.
fn golden(name: &str) {
    let text = read_golden(name);
    let catalog = catalog();
    let mut out = String::new();
    let mut failed = Vec::new();
    for case in text.split("\n\n") {
        let (query, expected) = case.split_once("\n----\n").unwrap_or((case.trim_end(), ""));
        if query.trim().is_empty() {
            continue;
        }
        let sql: String = query
            .lines()
            .filter(|l| !l.starts_with("-- "))
            .collect::<Vec<_>>()
            .join("\n");
        let actual = match view(&sql, &catalog) {
            Ok(plan) => {
                let again = StreamPlan::decode(&plan.encode()).expect("a plan reads back");
                assert_eq!(format!("{plan:?}"), format!("{again:?}"), "{sql}");
                explain(&plan).join("\n")
            }
            Err(e) => {
                let mut text = format!("ERROR {}: {}", e.code, e.message);
                if let Some(detail) = e.detail {
                    text.push_str(&format!("\nDETAIL: {detail}"));
                }
                if let Some(hint) = e.hint {
                    text.push_str(&format!("\nHINT: {hint}"));
                }
                text
            }
        };
        if actual.trim() != expected.trim() {
            failed.push(format!(
                "{query}\n---- expected\n{}\n---- planned\n{actual}",
                expected.trim()
            ));
        }
        out.push_str(&format!("{}\n----\n{}\n\n", query.trim(), actual.trim()));
    }
    if std::env::var_os("LEVEE_UPDATE_GOLDENS").is_some() {
        std::fs::write(golden_path(name), out).expect("the golden file is written");
    } else {
        assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    }
}

#[test]
fn joins_of_all_rows_are_counted() {
    let loops = |sql: &str| nested_loops(&view(sql, &catalog()).unwrap());
    assert_eq!(loops("SELECT t.id, u.f FROM t JOIN u ON t.b < u.b"), 1);
    assert_eq!(loops("SELECT t.id FROM t, u, (SELECT max(b) AS m FROM u) AS x"), 1);
    assert_eq!(
        loops("SELECT t.id FROM t CROSS JOIN (SELECT f FROM u ORDER BY f LIMIT 10) AS x"),
        0
    );
    assert_eq!(loops("SELECT t.id FROM t JOIN u ON t.id = u.t_id AND t.b < u.b"), 0);
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
fn goldens_windows() {
    golden("windows");
}

#[test]
fn goldens_nexmark() {
    golden("nexmark");
}

#[test]
fn goldens_keyed() {
    golden("keyed");
}

#[test]
fn goldens_time() {
    golden("time");
}

#[test]
fn goldens_refused() {
    golden("refused");
}

#[test]
fn explain_names_stand_in_its_documentation_and_in_a_golden() {
    let documentation = include_str!("explain.rs");
    let goldens: String = ["basic", "joins", "keyed", "topn", "nexmark", "time"]
        .iter()
        .map(|n| read_golden(n))
        .collect();
    for name in explain::NODE_NAMES {
        assert!(
            documentation.contains(&format!("//! | `{name}` |")),
            "{name} is not documented"
        );
        assert!(goldens.contains(name), "{name} is in no golden");
    }
}

#[test]
fn a_damaged_plan_is_an_error() {
    let bytes = view("SELECT a, count(*) FROM t GROUP BY a", &catalog())
        .expect("it plans")
        .encode();
    assert!(StreamPlan::decode(&bytes[..bytes.len() / 2]).is_err());
    assert!(StreamPlan::decode(&[]).is_err());
    let mut other_version = bytes;
    other_version[0] = 99;
    assert!(StreamPlan::decode(&other_version).is_err());
}

/// All expressions of a plan, each with the schema that it reads.
fn expressions(node: &StreamNode, out: &mut Vec<(PlanExpr, Schema)>) {
    let all = node
        .inputs
        .iter()
        .flat_map(|i| i.schema.fields().iter().cloned())
        .collect::<Vec<_>>();
    let input = Schema::new(all);
    match &node.op {
        StreamOp::Map { predicate, exprs } => {
            out.extend(
                predicate
                    .iter()
                    .chain(exprs.iter().flatten())
                    .map(|e| (e.clone(), input.clone())),
            );
        }
        StreamOp::Expand { branches } => {
            let all = branches.iter().flat_map(|b| b.predicate.iter().chain(&b.exprs));
            out.extend(all.map(|e| (e.clone(), input.clone())));
        }
        StreamOp::Join { filter, .. } => out.extend(filter.iter().map(|e| (e.clone(), input.clone()))),
        _ => {}
    }
    node.inputs.iter().for_each(|i| expressions(i, out));
}

#[test]
fn expressions_of_every_golden_read_back_with_their_declared_types() {
    let catalog = catalog();
    let mut seen = 0;
    for name in ["basic", "joins", "subqueries", "topn", "nexmark", "time"] {
        for sql in read_golden(name)
            .split("\n\n")
            .filter_map(|case| case.split("\n----\n").next())
        {
            let sql: String = sql.lines().filter(|l| !l.starts_with("-- ")).collect();
            let Ok(plan) = view(&sql, &catalog) else { continue };
            let mut all = Vec::new();
            expressions(&plan.root, &mut all);
            for (stored, input) in &all {
                let read = expr::decode(stored, input).expect("it reads back");
                assert_eq!(render::sql(&read), stored.display, "{sql}");
                assert_eq!(expr::encode(&read).expect("it is stored again"), *stored, "{sql}");
            }
            plan.root.visit(&mut |node| check_types(node, &sql));
            seen += all.len();
        }
    }
    assert!(seen > 200, "only {seen} expressions");
}

fn check_types(node: &StreamNode, sql: &str) {
    let StreamOp::Map { exprs: Some(exprs), .. } = &node.op else {
        return;
    };
    let input = &node.inputs[0].schema;
    assert_eq!(exprs.len(), node.schema.fields().len(), "{sql}");
    for (e, field) in exprs.iter().zip(node.schema.fields()) {
        let read = expr::decode(e, input).expect("it reads back");
        assert_eq!(
            &read.data_type(input).expect("it has a type"),
            field.data_type(),
            "{sql}: {}",
            e.display
        );
    }
}

#[test]
fn integer_overflow_fails_before_and_after_storing() {
    use arrow::array::{Int64Array, RecordBatch};
    use datafusion::logical_expr::{binary_expr, col, lit};
    let schema = Arc::new(Schema::new(vec![Field::new("b", DataType::Int64, true)]));
    let names = datafusion::common::DFSchema::try_from(Schema::clone(&schema)).expect("it is a schema");
    let batch =
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(vec![i64::MAX]))]).expect("one row");
    for op in [Operator::Plus, Operator::Multiply] {
        let compiled = expr::compile(&binary_expr(col("b"), op, lit(2i64)), &names).expect("it compiles");
        assert!(compiled.evaluate(&batch).is_err(), "{op}");
        let stored = expr::encode(&compiled).expect("it is stored");
        assert!(
            expr::decode(&stored, &schema)
                .expect("it reads back")
                .evaluate(&batch)
                .is_err(),
            "{op}"
        );
    }
    let damaged = PlanExpr {
        proto: vec![1, 2, 3],
        display: "x".to_string(),
    };
    assert!(expr::decode(&damaged, &schema).is_err());
}

#[test]
fn fragments_are_in_order_and_every_edge_has_one_receiver() {
    let catalog = catalog();
    for name in ["basic", "joins", "subqueries", "topn", "nexmark", "time"] {
        for sql in read_golden(name)
            .split("\n\n")
            .filter_map(|case| case.split("\n----\n").next())
        {
            let sql: String = sql.lines().filter(|l| !l.starts_with("-- ")).collect();
            let Ok(plan) = view(&sql, &catalog) else { continue };
            let graph = fragment(&plan);
            let mut ids = Vec::new();
            plan.root.visit(&mut |n| ids.push(n.id));
            let total = ids.len();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), total, "{sql}: ids repeat");
            assert_eq!(graph.fragments.len(), graph.edges.len() + 1, "{sql}");
            for (i, f) in graph.fragments.iter().enumerate() {
                assert_eq!(f.id.0 as usize, i);
                let mut placed_elsewhere = false;
                f.root.visit(&mut |n| {
                    assert!(!matches!(n.op, StreamOp::Exchange { .. }), "{sql}");
                    assert!(
                        !n.schema.fields().is_empty() || matches!(n.op, StreamOp::Map { .. }),
                        "{sql}: a leaf without columns"
                    );
                    placed_elsewhere |= match &n.op {
                        StreamOp::Receive { edge } => {
                            let edge = &graph.edges[edge.0 as usize];
                            assert_eq!(edge.to, f.id, "{sql}");
                            assert!(edge.from < edge.to, "{sql}");
                            edge.kind != ExchangeKind::Single
                        }
                        StreamOp::Scan { .. } | StreamOp::Source { .. } => true,
                        _ => false,
                    };
                });
                assert!(!(f.single && placed_elsewhere), "{sql}: one task holds spread rows");
            }
        }
    }
}
