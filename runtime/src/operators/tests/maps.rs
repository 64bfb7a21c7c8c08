use std::sync::Arc;

use arrow::datatypes::*;
use datafusion::logical_expr::Operator as Op;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};

use super::harness::{Case, check_all, step};
use super::values::*;
use crate::operators::Operator;
use crate::operators::eval::Evaluator;
use crate::operators::map::Map;
use crate::operators::pass::{Union, Values};

fn column(i: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(&format!("c{i}"), i))
}

fn binary(a: Arc<dyn PhysicalExpr>, op: Op, b: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    Arc::new(BinaryExpr::new(a, op, b))
}

/// `SELECT 12 / c0, c1 WHERE 12 / c1 >= 4` over bigints, with division by zero here and there.
pub fn make(input: &SchemaRef) -> Map {
    let divide = |c: usize| binary(lit(12_i64), Op::Divide, column(c));
    let wrap = |e: Arc<dyn PhysicalExpr>, name: &str| Evaluator::new(e, input, name.to_owned()).unwrap();
    let predicate = wrap(binary(divide(1), Op::GtEq, lit(4_i64)), "12 / c1 >= 4");
    let exprs = vec![wrap(divide(0), "12 / c0"), wrap(column(1), "c1")];
    Map::from_parts(Some(predicate), Some(exprs), input)
}

fn naive(input: &Zset) -> Zset {
    let mut out = Zset::new();
    for (row, count) in input {
        let [V::Int(b)] = &row[1..2] else { continue };
        if *b == 0 || 12 / b < 4 {
            continue;
        }
        let first = match &row[0] {
            V::Int(0) | V::Null => V::Null,
            V::Int(a) => V::Int(12 / a),
            other => panic!("{other:?}"),
        };
        *out.entry(vec![first, V::Int(*b)]).or_insert(0) += count;
    }
    out.retain(|_, c| *c != 0);
    out
}

pub fn case_of<'a>(
    input: &SchemaRef,
    make: &'a dyn Fn(&crate::operators::OperatorContext) -> Box<dyn Operator>,
) -> Case<'a> {
    Case {
        name: "map".to_owned(),
        inputs: vec![input.clone()],
        routes: vec![vec![0]],
        make,
        naive: &|inputs| naive(&inputs[0]),
        append_only: false,
    }
}

#[test]
fn filter_and_projection_with_failures() {
    let input = schema(&[DataType::Int64, DataType::Int64]);
    check_all(&case_of(&input, &|_| Box::new(make(&input))), 30);
}

#[test]
fn failures_are_null_and_counted_once_per_batch() {
    let input = schema(&[DataType::Int64, DataType::Int64]);
    let mut op = make(&input);
    let out = step(
        &mut op,
        true,
        vec![(0, table(&input, "+ 0 1\n- 4 2\n+ 5 0\n3 0 3\n+ NULL 1\n+ 1 12"))],
    );
    assert_eq!(
        show(&out.deltas),
        "+ NULL 1\n+ NULL 1\n+3 NULL 3\n- 3 2".replace("+ NULL 1\n+ NULL 1", "+2 NULL 1")
    );
    let errors: Vec<(&str, u64)> = out.errors.iter().map(|e| (e.expression.as_str(), e.rows)).collect();
    assert_eq!(errors, [("12 / c1 >= 4", 1), ("12 / c0", 2)]);
}

#[test]
fn union_is_a_bag() {
    let input = schema(&[DataType::Int64, DataType::Utf8]);
    let case = Case {
        name: "union".to_owned(),
        inputs: vec![input.clone(), input.clone(), input.clone()],
        routes: vec![vec![0], vec![], vec![1]],
        make: &|_| Box::new(Union::new(&input)),
        naive: &|inputs| sum(inputs),
        append_only: false,
    };
    check_all(&case, 20);
}

#[test]
fn values_are_emitted_once_by_one_task() {
    let columns = schema(&[DataType::Int64]);
    let mut ipc = Vec::new();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(&mut ipc, &columns).unwrap();
    writer.write(&table(&columns, "+ 1\n+ 2").batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let mut op = Values::new(&ipc, &columns, 0).unwrap();
    assert_eq!(show(&step(&mut op, true, vec![]).deltas), "+ 1\n+ 2");
    assert_eq!(show(&step(&mut op, false, vec![]).deltas), "");
    let mut other = Values::new(&ipc, &columns, 1).unwrap();
    assert_eq!(show(&step(&mut other, true, vec![]).deltas), "");
}
