//! Windows against a plain evaluation over sorted rows.

use std::collections::BTreeMap;

use arrow::datatypes::*;
use levee_planner::plan::{AggCall, AggFunc, Bound, Distance, Frame, FrameUnit, SortKey, WindowCall, WindowFunc};

use super::harness::{Case, check_all, step};
use super::values::*;
use crate::operators::window::{Window, WindowPlan};

fn key(column: usize, desc: bool, nulls_first: bool) -> SortKey {
    SortKey {
        column,
        desc,
        nulls_first,
    }
}

/// Whether `value` lies at or behind the bound that `own` has; NULLs see their peers only.
fn within(plan: &WindowPlan, own: &V, value: &V, by: i64, preceding: bool, is_start: bool) -> bool {
    let order = plan.order_by[0];
    match (own, value) {
        (V::Int(own), V::Int(value)) => {
            let end = if preceding != order.desc { own - by } else { own + by };
            if is_start != order.desc {
                *value >= end
            } else {
                *value <= end
            }
        }
        (V::Null, V::Null) => true,
        (V::Null, _) => is_start == order.nulls_first,
        _ => is_start != order.nulls_first,
    }
}

/// Rows of the frame of row `i`.
fn frame(plan: &WindowPlan, frame: &Frame, rows: &[Row], groups: &[usize], i: usize) -> Vec<usize> {
    let inside = |j: usize, bound: Bound, is_start: bool| match bound {
        Bound::Unbounded => true,
        Bound::Offset(n) => {
            let distance = match frame.unit {
                FrameUnit::Rows => j as i64 - i as i64,
                _ => groups[j] as i64 - groups[i] as i64,
            };
            if is_start { distance >= n } else { distance <= n }
        }
        Bound::Distance {
            preceding,
            by: Distance::Exact(by),
        } => {
            let column = plan.order_by[0].column;
            within(plan, &rows[i][column], &rows[j][column], by as i64, preceding, is_start)
        }
        Bound::Distance { .. } => panic!("only whole distances are tested here"),
    };
    (0..rows.len())
        .filter(|&j| inside(j, frame.start, true) && inside(j, frame.end, false))
        .collect()
}

fn aggregate(call: &AggCall, rows: &[Row], seen: &[usize]) -> V {
    let counted = |j: &&usize| call.filter.is_none_or(|c| matches!(rows[**j][c], V::Bool(true)));
    let values: Vec<&V> = seen
        .iter()
        .filter(counted)
        .map(|&j| call.arg.map_or(&V::Bool(true), |c| &rows[j][c]))
        .filter(|v| !v.is_null())
        .collect();
    match call.func {
        AggFunc::Count => V::Int(values.len() as i64),
        AggFunc::Sum if values.is_empty() => V::Null,
        AggFunc::Sum => V::Int(values.iter().map(|v| if let V::Int(i) = v { *i } else { 0 }).sum()),
        AggFunc::Min => values.into_iter().min().cloned().unwrap_or(V::Null),
        AggFunc::Max => values.into_iter().max().cloned().unwrap_or(V::Null),
        AggFunc::StringAgg if values.is_empty() => V::Null,
        AggFunc::StringAgg => {
            let texts: Vec<&str> = values
                .iter()
                .map(|v| if let V::Text(t) = v { t.as_str() } else { "" })
                .collect();
            V::Text(texts.join(&call.constant))
        }
        _ => panic!("not tested here"),
    }
}

fn result(plan: &WindowPlan, call: &WindowCall, rows: &[Row], groups: &[usize], i: usize) -> V {
    let n = rows.len() as i64;
    let first_peer = groups.iter().position(|g| *g == groups[i]).unwrap() as i64;
    let peers = groups.iter().filter(|g| **g == groups[i]).count() as i64;
    let seen = || frame(plan, &call.frame, rows, groups, i);
    let value = |j: Option<usize>, column: usize| j.map_or(V::Null, |j| rows[j][column].clone());
    match &call.func {
        WindowFunc::RowNumber => V::Int(i as i64 + 1),
        WindowFunc::Rank => V::Int(first_peer + 1),
        WindowFunc::DenseRank => V::Int(groups[i] as i64 + 1),
        WindowFunc::PercentRank if n == 1 => V::Float(0.0),
        WindowFunc::PercentRank => V::Float(first_peer as f64 / (n - 1) as f64),
        WindowFunc::CumeDist => V::Float((first_peer + peers) as f64 / n as f64),
        WindowFunc::Ntile(buckets) => {
            let buckets = *buckets as i64;
            let mut left = i as i64;
            for bucket in 0..buckets {
                let size = n / buckets + i64::from(bucket < n % buckets);
                if left < size {
                    return V::Int(bucket + 1);
                }
                left -= size;
            }
            panic!("a row beyond all buckets")
        }
        WindowFunc::Lag {
            value: column,
            offset,
            default,
        } => {
            let at = i as i64 - offset;
            if (0..n).contains(&at) {
                rows[at as usize][*column].clone()
            } else {
                default.map_or(V::Null, |d| rows[i][d].clone())
            }
        }
        WindowFunc::Nth {
            value: column,
            n,
            from_last,
        } => {
            let seen = seen();
            let at = *n as usize - 1;
            let found = if *from_last {
                seen.iter().rev().nth(at)
            } else {
                seen.get(at)
            };
            value(found.copied(), *column)
        }
        WindowFunc::Aggregate(agg) => aggregate(agg, rows, &seen()),
    }
}

fn naive(plan: &WindowPlan, input: &Zset) -> Zset {
    let mut partitions: BTreeMap<Row, Vec<Row>> = BTreeMap::new();
    for (row, count) in input {
        let key = plan.partition_by.iter().map(|&c| row[c].canonical()).collect();
        let rows = partitions.entry(key).or_default();
        (0..*count).for_each(|_| rows.push(row.clone()));
    }
    let mut out = Zset::new();
    for mut rows in partitions.into_values() {
        rows.sort_by(|a, b| {
            let ties = if plan.reversed { b.cmp(a) } else { a.cmp(b) };
            by_keys(&plan.order_by, a, b).then(ties)
        });
        let mut groups = vec![0; rows.len()];
        for i in 1..rows.len() {
            groups[i] = groups[i - 1] + usize::from(by_keys(&plan.order_by, &rows[i - 1], &rows[i]).is_ne());
        }
        for i in 0..rows.len() {
            let mut row = rows[i].clone();
            for call in &plan.calls {
                row.push(result(plan, call, &rows, &groups, i));
            }
            *out.entry(row).or_insert(0) += 1;
        }
    }
    out
}

/// Key, order, number, text, flag.
fn columns() -> Vec<DataType> {
    vec![
        DataType::Int32,
        DataType::Int64,
        DataType::Int64,
        DataType::Utf8,
        DataType::Boolean,
    ]
}

fn output_type(call: &WindowCall, columns: &[DataType]) -> DataType {
    match &call.func {
        WindowFunc::PercentRank | WindowFunc::CumeDist => DataType::Float64,
        WindowFunc::Lag { value, .. } | WindowFunc::Nth { value, .. } => columns[*value].clone(),
        WindowFunc::Aggregate(AggCall {
            func: AggFunc::Min | AggFunc::Max | AggFunc::StringAgg,
            arg: Some(arg),
            ..
        }) => columns[*arg].clone(),
        WindowFunc::Aggregate(AggCall { func: AggFunc::Sum, .. }) => DataType::Decimal128(38, 0),
        _ => DataType::Int64,
    }
}

fn run(plan: &WindowPlan, seeds: u64) {
    let types = columns();
    let input = schema(&types);
    // Sums are shown as whole numbers of the same value.
    let outputs = plan.calls.iter().map(|c| match output_type(c, &types) {
        DataType::Decimal128(..) => DataType::Int64,
        other => other,
    });
    let output = schema(&types.iter().cloned().chain(outputs).collect::<Vec<_>>());
    let case = Case {
        name: format!("window {plan:?}"),
        inputs: vec![input.clone()],
        routes: vec![plan.partition_by.clone()],
        make: &|_| Box::new(Window::new(plan, &input, &output).unwrap()),
        naive: &|inputs| naive(plan, &inputs[0]),
        append_only: false,
    };
    check_all(&case, seeds);
}

fn plan(partition_by: Vec<usize>, order_by: Vec<SortKey>, calls: Vec<WindowCall>) -> WindowPlan {
    WindowPlan {
        partition_by,
        order_by,
        reversed: false,
        calls,
    }
}

fn unframed(func: WindowFunc) -> WindowCall {
    WindowCall {
        func,
        frame: Frame::WHOLE,
    }
}

fn lag(offset: i64, default: Option<usize>) -> WindowCall {
    unframed(WindowFunc::Lag {
        value: 2,
        offset,
        default,
    })
}

fn agg(func: AggFunc, arg: Option<usize>, unit: FrameUnit, start: Bound, end: Bound) -> WindowCall {
    let mut call = AggCall::new(func, arg);
    call.constant = "|".to_owned();
    WindowCall {
        func: WindowFunc::Aggregate(call),
        frame: Frame { unit, start, end },
    }
}

fn nth(n: u64, from_last: bool, unit: FrameUnit, start: Bound, end: Bound) -> WindowCall {
    WindowCall {
        func: WindowFunc::Nth { value: 3, n, from_last },
        frame: Frame { unit, start, end },
    }
}

const SEEDS: u64 = 6;

#[test]
fn functions_of_places() {
    let all = [
        WindowFunc::RowNumber,
        WindowFunc::Rank,
        WindowFunc::DenseRank,
        WindowFunc::PercentRank,
        WindowFunc::CumeDist,
        WindowFunc::Ntile(3),
    ];
    for order_by in [
        vec![key(1, false, false)],
        vec![key(1, true, true), key(3, false, false)],
        vec![],
    ] {
        for func in &all {
            run(&plan(vec![0], order_by.clone(), vec![unframed(func.clone())]), SEEDS);
        }
        let calls = all.iter().cloned().map(unframed).collect();
        run(&plan(vec![0, 4], order_by, calls), SEEDS);
    }
}

#[test]
fn rows_before_and_behind() {
    for order_by in [vec![key(1, false, false)], vec![key(3, true, false)], vec![]] {
        for (offset, default) in [(1, None), (-1, None), (2, Some(1)), (-3, Some(1)), (0, None)] {
            run(&plan(vec![0], order_by.clone(), vec![lag(offset, default)]), SEEDS);
        }
        run(&plan(vec![], order_by, vec![lag(1, None), lag(-1, Some(1))]), SEEDS);
    }
}

/// Pairs of bounds of which the first does not lie behind the second, and two empty ones.
fn bounds() -> Vec<(Bound, Bound)> {
    use Bound::{Offset, Unbounded};
    vec![
        (Unbounded, Unbounded),
        (Unbounded, Offset(0)),
        (Unbounded, Offset(-1)),
        (Unbounded, Offset(2)),
        (Offset(0), Offset(0)),
        (Offset(-1), Offset(1)),
        (Offset(-3), Offset(-2)),
        (Offset(1), Offset(2)),
        (Offset(-2), Offset(0)),
        (Offset(-1), Offset(-2)),
        (Offset(2), Offset(1)),
    ]
}

#[test]
fn aggregates_over_counted_frames() {
    let order_by = vec![key(1, false, true)];
    for (start, end) in bounds() {
        for unit in [FrameUnit::Rows, FrameUnit::Groups] {
            let calls = [
                agg(AggFunc::Sum, Some(2), unit, start, end),
                agg(AggFunc::Max, Some(3), unit, start, end),
                agg(AggFunc::Count, None, unit, start, end),
            ];
            for call in &calls {
                run(&plan(vec![0], order_by.clone(), vec![call.clone()]), 3);
            }
            run(&plan(vec![], order_by.clone(), calls.to_vec()), 3);
        }
    }
}

#[test]
fn aggregates_over_ranges() {
    use Bound::{Offset, Unbounded};
    let distance = |by, preceding| Bound::Distance {
        preceding,
        by: Distance::Exact(by),
    };
    let before = |by| distance(by, true);
    let behind = |by| distance(by, false);
    for order in [
        key(1, false, false),
        key(1, true, false),
        key(1, false, true),
        key(1, true, true),
    ] {
        for (start, end) in [
            (before(1), behind(1)),
            (before(2), Offset(0)),
            (Offset(0), behind(2)),
            (before(3), before(1)),
            (behind(1), behind(2)),
            (Unbounded, behind(1)),
            (Unbounded, before(1)),
        ] {
            let sum = agg(AggFunc::Sum, Some(2), FrameUnit::Range, start, end);
            let min = agg(AggFunc::Min, Some(2), FrameUnit::Range, start, end);
            run(&plan(vec![0], vec![order], vec![sum.clone()]), 3);
            run(&plan(vec![], vec![order], vec![sum, min]), 3);
        }
    }
}

#[test]
fn values_of_frames() {
    use Bound::{Offset, Unbounded};
    let order_by = vec![key(1, false, false)];
    for unit in [FrameUnit::Rows, FrameUnit::Groups] {
        for (start, end) in bounds() {
            for n in [1, 2] {
                run(
                    &plan(vec![0], order_by.clone(), vec![nth(n, false, unit, start, end)]),
                    3,
                );
            }
            if end != Unbounded {
                run(
                    &plan(vec![0], order_by.clone(), vec![nth(1, true, unit, start, end)]),
                    3,
                );
            }
        }
        for (start, n) in [(Offset(0), 1), (Offset(-1), 2), (Offset(1), 3)] {
            run(
                &plan(vec![0], order_by.clone(), vec![nth(n, false, unit, start, Unbounded)]),
                3,
            );
        }
    }
}

#[test]
fn lists_are_in_the_windows_order() {
    let order_by = vec![key(1, true, false)];
    for (start, end) in bounds().into_iter().chain([(Bound::Offset(0), Bound::Unbounded)]) {
        for unit in [FrameUnit::Rows, FrameUnit::Groups] {
            let call = agg(AggFunc::StringAgg, Some(3), unit, start, end);
            run(&plan(vec![0], order_by.clone(), vec![call]), 3);
        }
    }
}

#[test]
fn a_window_that_was_turned_around() {
    for call in [
        unframed(WindowFunc::RowNumber),
        lag(1, None),
        nth(1, false, FrameUnit::Groups, Bound::Unbounded, Bound::Offset(0)),
        agg(
            AggFunc::Sum,
            Some(2),
            FrameUnit::Rows,
            Bound::Unbounded,
            Bound::Offset(0),
        ),
    ] {
        let plan = WindowPlan {
            reversed: true,
            ..plan(vec![0], vec![key(1, true, true)], vec![call])
        };
        run(&plan, SEEDS);
    }
}

#[test]
fn filters_and_many_calls() {
    use Bound::{Offset, Unbounded};
    let mut filtered = agg(AggFunc::Sum, Some(2), FrameUnit::Groups, Unbounded, Offset(0));
    let mut whole = agg(AggFunc::Max, Some(2), FrameUnit::Rows, Unbounded, Unbounded);
    for call in [&mut filtered, &mut whole] {
        if let WindowFunc::Aggregate(agg) = &mut call.func {
            agg.filter = Some(4);
        }
    }
    let calls = vec![
        filtered,
        whole,
        unframed(WindowFunc::Rank),
        lag(1, None),
        lag(-2, None),
        nth(1, false, FrameUnit::Groups, Unbounded, Offset(0)),
        nth(1, true, FrameUnit::Groups, Unbounded, Offset(0)),
        agg(AggFunc::Count, None, FrameUnit::Rows, Offset(-2), Offset(1)),
    ];
    for partition_by in [vec![0], vec![0, 3], vec![]] {
        run(&plan(partition_by, vec![key(1, false, false)], calls.clone()), 10);
    }
}

#[test]
fn large_steps() {
    use Bound::{Offset, Unbounded};
    let order_by = vec![key(1, false, false)];
    for calls in [
        vec![unframed(WindowFunc::RowNumber), lag(1, None)],
        vec![
            agg(AggFunc::Sum, Some(2), FrameUnit::Groups, Unbounded, Offset(0)),
            agg(AggFunc::Min, Some(2), FrameUnit::Rows, Offset(-5), Offset(5)),
        ],
    ] {
        run(&plan(vec![0], order_by.clone(), calls), 0);
    }
}

#[test]
fn only_what_changed_is_emitted() {
    let types = columns();
    let input = schema(&types);
    let run = |calls: Vec<WindowCall>, steps: &[(&str, &str)]| {
        let outputs = calls.iter().map(|c| output_type(c, &types));
        let output = schema(&types.iter().cloned().chain(outputs).collect::<Vec<_>>());
        let plan = plan(vec![0], vec![key(1, false, false)], calls);
        let mut op = Window::new(&plan, &input, &output).unwrap();
        for (i, (changes, expected)) in steps.iter().enumerate() {
            let out = step(&mut op, i == 0, vec![(0, table(&input, changes))]);
            assert_eq!(show(&out.deltas), *expected);
        }
    };
    run(
        vec![lag(1, None)],
        &[
            (
                "+ 1 1 10 a true\n+ 1 2 20 a true\n+ 1 3 30 a true\n+ 2 1 5 a true",
                "+ 1 1 10 a true NULL\n+ 1 2 20 a true 10\n+ 1 3 30 a true 20\n+ 2 1 5 a true NULL",
            ),
            (
                "- 1 2 20 a true",
                "- 1 2 20 a true 10\n+ 1 3 30 a true 10\n- 1 3 30 a true 20",
            ),
            ("+ 1 9 90 a true", "+ 1 9 90 a true 30"),
        ],
    );
    run(
        vec![agg(
            AggFunc::Max,
            Some(2),
            FrameUnit::Rows,
            Bound::Unbounded,
            Bound::Unbounded,
        )],
        &[
            (
                "+ 1 1 10 a true\n+ 1 2 20 a true",
                "+ 1 1 10 a true 20\n+ 1 2 20 a true 20",
            ),
            ("+ 1 3 15 a true", "+ 1 3 15 a true 20"),
            (
                "- 1 2 20 a true",
                "+ 1 1 10 a true 15\n- 1 1 10 a true 20\n- 1 2 20 a true 20\n+ 1 3 15 a true 15\n- 1 3 15 a true 20",
            ),
        ],
    );
}

/// A change in a large partition is computed from a few rows.
#[test]
fn a_change_costs_what_it_reaches() {
    use Bound::{Offset, Unbounded};
    let types = columns();
    let input = schema(&types);
    let line = |sign: char, at: i64, value: i64| format!("{sign} 1 {at} {value} a true\n");
    let all: String = (0..3000).map(|i| line('+', i * 10, i)).collect();
    let around = [
        lag(1, None),
        lag(-2, None),
        agg(AggFunc::Max, Some(2), FrameUnit::Rows, Offset(-3), Offset(3)),
        agg(AggFunc::Max, Some(2), FrameUnit::Groups, Offset(-2), Offset(0)),
    ];
    let running = [
        unframed(WindowFunc::RowNumber),
        unframed(WindowFunc::DenseRank),
        agg(AggFunc::Min, Some(2), FrameUnit::Groups, Unbounded, Offset(0)),
        nth(1, false, FrameUnit::Groups, Unbounded, Offset(0)),
    ];
    let whole = [agg(AggFunc::Max, Some(2), FrameUnit::Rows, Unbounded, Unbounded)];
    let middle = line('-', 15_000, 1500) + &line('+', 15_001, 1500);
    let end = line('+', 40_000, 7);
    for call in around.iter().chain(&running).chain(&whole) {
        let output = schema(
            &types
                .iter()
                .cloned()
                .chain([output_type(call, &types)])
                .collect::<Vec<_>>(),
        );
        let plan = plan(vec![0], vec![key(1, false, false)], vec![call.clone()]);
        let mut op = Window::new(&plan, &input, &output).unwrap();
        step(&mut op, true, vec![(0, table(&input, &all))]);
        for changes in [&middle, &end] {
            let before = op.computed;
            step(&mut op, false, vec![(0, table(&input, changes))]);
            let computed = op.computed - before;
            assert!(computed < 60, "{computed} entries for {changes} in {call:?}");
        }
    }
}
