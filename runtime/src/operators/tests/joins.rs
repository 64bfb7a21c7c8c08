use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::*;
use datafusion::logical_expr::Operator as Op;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use levee_planner::plan::JoinKind;

use super::harness::{Case, check_all, step};
use super::values::*;
use crate::operators::eval::Evaluator;
use crate::operators::join::{CHUNK, Join, JoinPlan, pair_schema};

const KINDS: [JoinKind; 5] = [
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Full,
    JoinKind::Semi,
    JoinKind::Anti,
];

/// `left.1 < right.1`
fn less_than(left: &SchemaRef, right: &SchemaRef) -> Evaluator {
    let column = |i: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(&format!("c{i}"), i)) };
    let expr = BinaryExpr::new(column(1), Op::Lt, column(left.fields().len() + 1));
    Evaluator::new(Arc::new(expr), &pair_schema(left, right), "a < b".to_owned()).unwrap()
}

fn naive(plan: &JoinPlan, filtered: bool, left_width: usize, right_width: usize, inputs: &[Zset]) -> Zset {
    let matches = |l: &Row, r: &Row| {
        let keys = plan.left_keys.iter().zip(&plan.right_keys).all(|(&a, &b)| {
            let (a, b) = (&l[a], &r[b]);
            if a.is_null() || b.is_null() {
                plan.null_equals_null && a.is_null() && b.is_null()
            } else {
                a.canonical() == b.canonical()
            }
        });
        let condition = !filtered || !l[1].is_null() && !r[1].is_null() && l[1] < r[1];
        keys && condition
    };
    let pair = |l: &[V], r: &[V]| -> Row { l.iter().chain(r).cloned().collect() };
    let nulls = |n: usize| vec![V::Null; n];
    let mut out = Zset::new();
    let [left, right] = inputs else { panic!("two inputs") };
    let key_of = |row: &Row, keys: &[usize]| -> Row { keys.iter().map(|&c| row[c].canonical()).collect() };
    let mut by_key: BTreeMap<Row, Vec<(&Row, &i64)>> = BTreeMap::new();
    for (r, m) in right {
        by_key.entry(key_of(r, &plan.right_keys)).or_default().push((r, m));
    }
    let mut seen: BTreeSet<&Row> = BTreeSet::new();
    for (l, n) in left {
        let mut matched = false;
        let candidates = by_key.get(&key_of(l, &plan.left_keys));
        for (r, m) in candidates.into_iter().flatten().filter(|(r, _)| matches(l, r)) {
            seen.insert(*r);
            matched = true;
            if matches!(plan.kind, JoinKind::Inner | JoinKind::Left | JoinKind::Full) {
                *out.entry(pair(l, r)).or_insert(0) += n * **m;
            }
        }
        match plan.kind {
            JoinKind::Semi if matched => *out.entry(l.clone()).or_insert(0) += n,
            JoinKind::Anti if !matched => *out.entry(l.clone()).or_insert(0) += n,
            JoinKind::Left | JoinKind::Full if !matched => *out.entry(pair(l, &nulls(right_width))).or_insert(0) += n,
            _ => {}
        }
    }
    if plan.kind == JoinKind::Full {
        for (r, m) in right {
            if !seen.contains(r) {
                *out.entry(pair(&nulls(left_width), r)).or_insert(0) += m;
            }
        }
    }
    out
}

fn output_types(kind: JoinKind, left: &[DataType], right: &[DataType]) -> Vec<DataType> {
    match kind {
        JoinKind::Semi | JoinKind::Anti => left.to_vec(),
        _ => left.iter().chain(right).cloned().collect(),
    }
}

fn run(plan: &JoinPlan, left: &[DataType], right: &[DataType], filtered: bool, append_only: bool, seeds: u64) {
    let output = schema(&output_types(plan.kind, left, right));
    let (l, r) = (schema(left), schema(right));
    let case = Case {
        name: format!("join {plan:?} filter {filtered} append-only {append_only}"),
        inputs: vec![l.clone(), r.clone()],
        routes: vec![plan.left_keys.clone(), plan.right_keys.clone()],
        make: &|_| {
            let filter = filtered.then(|| less_than(&l, &r));
            Box::new(Join::from_parts(plan, filter, &l, &r, &output).unwrap())
        },
        naive: &|inputs| naive(plan, filtered, left.len(), right.len(), inputs),
        append_only,
    };
    check_all(&case, seeds);
}

#[test]
fn every_kind() {
    let int = [DataType::Int64, DataType::Int32, DataType::Utf8];
    let float = [DataType::Float64, DataType::Int32];
    let date = [DataType::Date32, DataType::Int32];
    for kind in KINDS {
        for filtered in [false, true] {
            for null_equals_null in [false, true] {
                for append_only in [false, true] {
                    let plan = JoinPlan {
                        kind,
                        left_keys: vec![0],
                        right_keys: vec![0],
                        null_equals_null,
                    };
                    run(&plan, &int, &int[..2], filtered, append_only, 4);
                    run(&plan, &float, &float, filtered, append_only, 3);
                    run(&plan, &date, &date, filtered, append_only, 2);
                    let two = JoinPlan {
                        left_keys: vec![0, 2],
                        right_keys: vec![0, 1],
                        ..plan
                    };
                    run(&two, &int, &[DataType::Int64, DataType::Utf8], false, append_only, 3);
                }
            }
            let cross = JoinPlan {
                kind,
                left_keys: vec![],
                right_keys: vec![],
                null_equals_null: false,
            };
            run(&cross, &int, &int[..2], filtered, false, 6);
        }
    }
}

#[test]
fn large_steps() {
    let types = [DataType::Int64, DataType::Int32, DataType::Utf8];
    let texts = [DataType::Utf8, DataType::Int32];
    for kind in KINDS {
        for filtered in [false, true] {
            let plan = JoinPlan {
                kind,
                left_keys: vec![0],
                right_keys: vec![0],
                null_equals_null: false,
            };
            run(&plan, &types, &types[..2], filtered, false, 0);
            run(&plan, &texts, &texts, filtered, false, 0);
        }
    }
}

#[test]
fn outer_rows_change_once() {
    let schema_of = schema(&[DataType::Int64, DataType::Utf8]);
    let output = schema(&[DataType::Int64, DataType::Utf8, DataType::Int64, DataType::Utf8]);
    let plan = JoinPlan {
        kind: JoinKind::Left,
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: false,
    };
    let mut op = Join::from_parts(&plan, None, &schema_of, &schema_of, &output).unwrap();
    let out = step(&mut op, true, vec![(0, table(&schema_of, "2 1 a\n+ NULL n"))]);
    assert_eq!(show(&out.deltas), "+ NULL n NULL NULL\n+2 1 a NULL NULL");
    let out = step(
        &mut op,
        false,
        vec![(1, table(&schema_of, "+ 1 x\n+ 1 y")), (1, table(&schema_of, "- 1 x"))],
    );
    assert_eq!(show(&out.deltas), "-2 1 a NULL NULL\n+2 1 a 1 y");
    let out = step(&mut op, false, vec![(1, table(&schema_of, "- 1 y\n+ 1 z\n- 1 z"))]);
    assert_eq!(show(&out.deltas), "+2 1 a NULL NULL\n-2 1 a 1 y");
}

#[test]
fn an_exploding_join_comes_in_pieces() {
    let input = schema(&[DataType::Int64, DataType::Int32]);
    let output = schema(&[DataType::Int64, DataType::Int32, DataType::Int64, DataType::Int32]);
    let plan = JoinPlan {
        kind: JoinKind::Inner,
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: false,
    };
    for filtered in [false, true] {
        let filter = filtered.then(|| less_than(&input, &input));
        let mut op = Join::from_parts(&plan, filter, &input, &input, &output).unwrap();
        let rows: Vec<(Row, i64)> = (0..400).map(|i| (vec![V::Int(1), V::Int(i)], 1)).collect();
        let both = vec![(0, delta(&input, &rows)), (1, delta(&input, &rows))];
        let out = step(&mut op, true, both);
        let expected = if filtered { 400 * 399 / 2 } else { 400 * 400 };
        assert_eq!(out.deltas.iter().map(|d| d.num_rows()).sum::<usize>(), expected);
        assert!(out.deltas.iter().all(|d| d.num_rows() <= CHUNK));
    }
}
