use std::collections::BTreeMap;

use arrow::datatypes::*;
use levee_planner::plan::{AggCall, AggFunc, SortKey};

use super::harness::{Case, check_all, step};
use super::values::*;
use crate::operators::aggregate::Aggregate;
use crate::operators::{Operator, OperatorContext};

fn call(func: AggFunc, arg: Option<usize>, distinct: bool, filter: Option<usize>) -> AggCall {
    AggCall {
        filter,
        distinct,
        ..AggCall::new(func, arg)
    }
}

fn output_type(call: &AggCall, types: &[DataType]) -> DataType {
    let arg = call.arg.map(|c| types[c].clone());
    match (call.func, arg) {
        (AggFunc::Count, _) => DataType::Int64,
        (AggFunc::Sum, Some(DataType::Int64)) => DataType::Decimal128(38, 0),
        (AggFunc::Sum, Some(DataType::Int16 | DataType::Int32)) => DataType::Int64,
        (AggFunc::Sum, Some(DataType::Decimal128(_, s))) => DataType::Decimal128(38, s),
        (AggFunc::Avg, Some(DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Decimal128(..))) => {
            DataType::Decimal128(38, 6)
        }
        (AggFunc::Avg, Some(DataType::Decimal256(..))) => DataType::Decimal256(76, 6),
        (AggFunc::Avg, _) => DataType::Float64,
        (_, Some(t)) => t,
        (_, None) => DataType::Int64,
    }
}

fn scale(data_type: &DataType) -> u32 {
    match data_type {
        DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => *s as u32,
        _ => 0,
    }
}

fn naive_call(call: &AggCall, rows: &[(&Row, i64)], types: &[DataType]) -> V {
    let passed = rows
        .iter()
        .filter(|(row, _)| call.filter.is_none_or(|f| row[f] == V::Bool(true)));
    let Some(arg) = call.arg else {
        return V::Int(passed.map(|r| r.1).sum());
    };
    let mut values: BTreeMap<V, i64> = BTreeMap::new();
    for (row, count) in passed.filter(|(row, _)| !row[arg].is_null()) {
        *values.entry(row[arg].canonical()).or_insert(0) += count;
    }
    if call.distinct {
        values.values_mut().for_each(|c| *c = 1);
    }
    let n: i64 = values.values().sum();
    if call.func == AggFunc::Count {
        return V::Int(n);
    }
    if n == 0 {
        return V::Null;
    }
    let is_float = matches!(types[arg], DataType::Float64 | DataType::Float32);
    let mut ordered: Vec<(&V, i64)> = values.iter().map(|(v, c)| (v, *c)).collect();
    ordered.sort_by(|a, b| a.0.sql_cmp(b.0).then(a.0.cmp(b.0)));
    if call.order_by.iter().any(|k| k.desc) {
        ordered.reverse();
    }
    let bits = |fold: fn(i64, i64) -> i64| {
        let each = values.iter().flat_map(|(v, c)| std::iter::repeat_n(v, *c as usize));
        let all = each.map(|v| if let V::Int(i) = v { *i } else { 0 });
        V::Int(all.reduce(fold).unwrap())
    };
    match call.func {
        AggFunc::BitAnd => bits(|a, b| a & b),
        AggFunc::BitOr => bits(|a, b| a | b),
        AggFunc::BitXor => bits(|a, b| a ^ b),
        AggFunc::PercentileDisc => {
            let fraction: f64 = call.constant.parse().unwrap();
            let mut place = ((fraction * n as f64).ceil() as i64).max(1);
            let found = ordered.iter().find(|(_, c)| {
                place -= c;
                place <= 0
            });
            found.unwrap().0.clone()
        }
        AggFunc::PercentileCont => {
            let fraction: f64 = call.constant.parse().unwrap();
            let all: Vec<f64> = ordered
                .iter()
                .flat_map(|(v, c)| std::iter::repeat_n(if let V::Float(f) = v { *f } else { 0.0 }, *c as usize))
                .collect();
            let place = fraction * (n - 1) as f64;
            let (low, high) = (all[place.floor() as usize], all[place.ceil() as usize]);
            let value = if place.fract() == 0.0 {
                low
            } else {
                low + place.fract() * (high - low)
            };
            V::Float(value).canonical()
        }
        AggFunc::Mode => {
            let most = ordered.iter().map(|(_, c)| *c).max().unwrap();
            ordered.iter().find(|(_, c)| *c == most).unwrap().0.clone()
        }
        AggFunc::Min => values
            .keys()
            .min_by(|a, b| a.sql_cmp(b).then(a.cmp(b)))
            .unwrap()
            .clone(),
        AggFunc::Max => values
            .keys()
            .max_by(|a, b| a.sql_cmp(b).then(a.cmp(b)))
            .unwrap()
            .clone(),
        _ if is_float => {
            let total: f64 = values
                .iter()
                .map(|(v, c)| if let V::Float(f) = v { f * *c as f64 } else { 0.0 })
                .sum();
            let result = if call.func == AggFunc::Avg {
                total / n as f64
            } else {
                total
            };
            V::Float(result).canonical()
        }
        _ => {
            let total: i128 = values
                .iter()
                .map(|(v, c)| match v {
                    V::Int(i) => i128::from(*i) * i128::from(*c),
                    V::Dec(i) => i * i128::from(*c),
                    _ => 0,
                })
                .sum();
            if call.func == AggFunc::Avg {
                let scaled = total * 10_i128.pow(6 - scale(&types[arg]));
                let n = i128::from(n);
                V::Dec((2 * scaled.abs() + n) / (2 * n) * scaled.signum())
            } else if matches!(types[arg], DataType::Int16 | DataType::Int32) {
                V::Int(total as i64)
            } else {
                V::Dec(total)
            }
        }
    }
}

fn naive(group_by: &[usize], calls: &[AggCall], types: &[DataType], input: &Zset) -> Zset {
    let mut groups: BTreeMap<Row, Vec<(&Row, i64)>> = BTreeMap::new();
    if group_by.is_empty() {
        groups.insert(Vec::new(), Vec::new());
    }
    for (row, count) in input {
        let key = group_by.iter().map(|&c| row[c].canonical()).collect();
        groups.entry(key).or_default().push((row, *count));
    }
    groups
        .into_iter()
        .map(|(mut key, rows)| {
            key.extend(calls.iter().map(|c| naive_call(c, &rows, types)));
            (key, 1)
        })
        .collect()
}

fn run(name: &str, types: &[DataType], group_by: &[usize], calls: &[AggCall], append_only: bool, seeds: u64) {
    let input = schema(types);
    let output: Vec<DataType> = group_by
        .iter()
        .map(|&c| types[c].clone())
        .chain(calls.iter().map(|c| output_type(c, types)))
        .collect();
    let output = schema(&output);
    let case = Case {
        name: format!("aggregate {name}"),
        inputs: vec![input.clone()],
        routes: vec![group_by.to_vec()],
        make: &|ctx| Box::new(Aggregate::new(group_by, calls, append_only, &input, &output, ctx).unwrap()),
        naive: &|inputs| naive(group_by, calls, types, &inputs[0]),
        append_only,
    };
    check_all(&case, seeds);
}

fn all_functions(arg: usize, numeric: bool, ordered: bool) -> Vec<AggCall> {
    let mut calls = vec![
        call(AggFunc::Count, None, false, None),
        call(AggFunc::Count, Some(arg), false, None),
        call(AggFunc::Count, Some(arg), true, None),
        call(AggFunc::Count, Some(arg), false, Some(1)),
    ];
    let more: &[AggFunc] = match (numeric, ordered) {
        (true, _) => &[AggFunc::Sum, AggFunc::Avg, AggFunc::Min, AggFunc::Max],
        (false, true) => &[AggFunc::Min, AggFunc::Max],
        (false, false) => &[],
    };
    for func in more {
        calls.push(call(*func, Some(arg), false, None));
        calls.push(call(*func, Some(arg), true, None));
        calls.push(call(*func, Some(arg), true, Some(1)));
    }
    calls
}

/// Key types of the native, the encoded and the unit index.
fn keys() -> Vec<(Vec<DataType>, Vec<usize>)> {
    vec![
        (vec![DataType::Int64], vec![0]),
        (vec![DataType::Utf8], vec![0]),
        (vec![DataType::Float64], vec![0]),
        (vec![DataType::Int32], vec![0, 2]),
        (vec![DataType::Int32], vec![]),
    ]
}

#[test]
fn every_type_and_function() {
    let arguments = [
        (DataType::Int16, true, true),
        (DataType::Int32, true, true),
        (DataType::Int64, true, true),
        (DataType::Float32, true, true),
        (DataType::Float64, true, true),
        (DataType::Decimal128(10, 2), true, true),
        (DataType::Decimal128(38, 2), true, true),
        (DataType::Decimal256(50, 2), true, true),
        (DataType::Utf8, false, true),
        (DataType::Utf8View, false, true),
        (DataType::Boolean, false, false),
        (DataType::Date32, false, true),
        (
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            false,
            true,
        ),
        (DataType::Interval(IntervalUnit::MonthDayNano), false, true),
    ];
    for (argument, numeric, ordered) in arguments {
        for (key, group_by) in keys() {
            let types = vec![key[0].clone(), DataType::Boolean, argument.clone()];
            let calls = all_functions(2, numeric, ordered);
            for append_only in [false, true] {
                run(
                    &format!("{argument} by {key:?}"),
                    &types,
                    &group_by,
                    &calls,
                    append_only,
                    3,
                );
            }
        }
    }
}

fn ordered_call(func: AggFunc, constant: &str, desc: bool, filter: Option<usize>) -> AggCall {
    AggCall {
        filter,
        constant: constant.to_owned(),
        order_by: vec![SortKey {
            column: 2,
            desc,
            nulls_first: false,
        }],
        ..AggCall::new(func, Some(2))
    }
}

#[test]
fn ordered_sets_and_bits() {
    let arguments = [
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(10, 2),
        DataType::Utf8,
        DataType::Date32,
        DataType::Interval(IntervalUnit::MonthDayNano),
    ];
    for argument in arguments {
        let types = vec![DataType::Int32, DataType::Boolean, argument.clone()];
        let mut calls = Vec::new();
        for (desc, filter) in [(false, None), (true, Some(1))] {
            for fraction in ["0", "0.5", "0.8"] {
                calls.push(ordered_call(AggFunc::PercentileDisc, fraction, desc, filter));
                if argument == DataType::Float64 {
                    calls.push(ordered_call(AggFunc::PercentileCont, fraction, desc, filter));
                }
            }
            calls.push(ordered_call(AggFunc::Mode, "", desc, filter));
        }
        if argument.is_integer() {
            for func in [AggFunc::BitAnd, AggFunc::BitOr, AggFunc::BitXor] {
                calls.push(call(func, Some(2), false, None));
                calls.push(call(func, Some(2), true, Some(1)));
            }
        }
        for group_by in [vec![0], vec![]] {
            run(&format!("places of {argument}"), &types, &group_by, &calls, false, 8);
        }
    }
}

#[test]
fn large_steps() {
    let types = [DataType::Utf8, DataType::Boolean, DataType::Int64];
    for group_by in [vec![0], vec![2], vec![]] {
        for append_only in [false, true] {
            let calls = all_functions(2, true, true);
            run("large", &types, &group_by, &calls, append_only, 0);
        }
        run(
            "large text",
            &types,
            &group_by,
            &all_functions(0, false, true),
            false,
            0,
        );
    }
}

#[test]
fn distinct_rows() {
    let types = [DataType::Int64, DataType::Utf8, DataType::Float64];
    run("distinct", &types, &[0, 1, 2], &[], false, 40);
    run("distinct of one column", &types, &[0], &[], false, 40);
}

#[test]
fn updates_cost_one_pair_and_groups_disappear() {
    let input = schema(&[DataType::Utf8, DataType::Int32]);
    let output = schema(&[DataType::Utf8, DataType::Int64, DataType::Int64]);
    let calls = [
        call(AggFunc::Count, None, false, None),
        call(AggFunc::Sum, Some(1), false, None),
    ];
    let ctx = OperatorContext { task: 0, n_tasks: 1 };
    let mut op = Aggregate::new(&[0], &calls, false, &input, &output, &ctx).unwrap();
    let out = step(
        &mut op,
        true,
        vec![(0, table(&input, "+ a 1\n+ a 2\n+ b 5\n+ c 1\n- c 1"))],
    );
    assert_eq!(show(&out.deltas), "+ a 2 3\n+ b 1 5");
    let out = step(
        &mut op,
        false,
        vec![(0, table(&input, "- a 1\n+ a 1\n+ b NULL\n+ a 7\n- a 2"))],
    );
    assert_eq!(show(&out.deltas), "- a 2 3\n+ a 2 8\n- b 1 5\n+ b 2 5");
    let out = step(
        &mut op,
        false,
        vec![(0, table(&input, "- b 5\n- b NULL\n- a 1\n+ a 1"))],
    );
    assert_eq!(show(&out.deltas), "- b 2 5");
    assert!(op.push(0, table(&input, "- b 5"), &mut Default::default()).is_ok());
    let barrier = crate::operators::Barrier {
        epoch: 9,
        timestamp_us: 0,
        first: false,
    };
    assert!(op.close(&barrier, &mut Default::default()).is_err());
}

#[test]
fn sums_beyond_their_type_are_null_until_retracted() {
    let input = schema(&[DataType::Int32, DataType::Decimal128(38, 0)]);
    let output = schema(&[DataType::Int32, DataType::Decimal128(38, 0)]);
    let ctx = OperatorContext { task: 0, n_tasks: 1 };
    let calls = [call(AggFunc::Sum, Some(1), false, None)];
    let mut op = Aggregate::new(&[0], &calls, false, &input, &output, &ctx).unwrap();
    let big = "99999999999999999999999999999999999999";
    let out = step(&mut op, true, vec![(0, table(&input, &format!("2 1 {big}")))]);
    assert_eq!(show(&out.deltas), "+ 1 NULL");
    assert_eq!(out.errors.len(), 1);
    assert_eq!((out.errors[0].expression.as_str(), out.errors[0].rows), ("sum(c1)", 1));
    let out = step(&mut op, false, vec![(0, table(&input, &format!("- 1 {big}")))]);
    assert_eq!(
        show(&out.deltas),
        format!("+ 1 {big}\n- 1 NULL")
            .lines()
            .rev()
            .collect::<Vec<_>>()
            .join("\n")
    );
    assert!(out.errors.is_empty());
}

#[test]
fn the_empty_global_row_belongs_to_one_task() {
    let input = schema(&[DataType::Int32]);
    let output = schema(&[DataType::Int64]);
    let calls = [call(AggFunc::Count, None, false, None)];
    let emitted: Vec<String> = (0..3)
        .map(|task| {
            let ctx = OperatorContext { task, n_tasks: 3 };
            let mut op = Aggregate::new(&[], &calls, false, &input, &output, &ctx).unwrap();
            show(&step(&mut op, true, vec![]).deltas)
        })
        .collect();
    assert_eq!(emitted, ["+ 0", "", ""]);
}

#[test]
fn many_groups_come_in_pieces() {
    let input = schema(&[DataType::Int64]);
    let output = schema(&[DataType::Int64, DataType::Int64]);
    let calls = [call(AggFunc::Count, None, false, None)];
    let ctx = OperatorContext { task: 0, n_tasks: 1 };
    let mut op = Aggregate::new(&[0], &calls, false, &input, &output, &ctx).unwrap();
    let rows: Vec<(Row, i64)> = (0..30_000).map(|i| (vec![V::Int(i)], 1)).collect();
    for _ in 0..2 {
        let out = step(&mut op, true, vec![(0, delta(&input, &rows))]);
        assert!(out.deltas.len() >= 3 && out.deltas.iter().all(|d| d.num_rows() <= 2 * 8192));
    }
    let gone: Vec<(Row, i64)> = rows.into_iter().map(|(r, _)| (r, -2)).collect();
    step(&mut op, false, vec![(0, delta(&input, &gone))]);
    let again = step(&mut op, false, vec![(0, table(&input, "+ 5"))]);
    assert_eq!(show(&again.deltas), "+ 5 1");
}
