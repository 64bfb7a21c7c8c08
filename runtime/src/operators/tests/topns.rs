use std::cmp::Ordering;
use std::collections::BTreeMap;

use arrow::datatypes::*;
use levee_planner::plan::SortKey;

use super::harness::{Case, check_all, step};
use super::values::*;
use crate::operators::topn::{TopN, TopNPlan};

fn compare(keys: &[SortKey], a: &Row, b: &Row) -> Ordering {
    by_keys(keys, a, b).then_with(|| a.cmp(b))
}

fn naive(plan: &TopNPlan, input: &Zset) -> Zset {
    let mut partitions: BTreeMap<Row, Vec<&Row>> = BTreeMap::new();
    for (row, count) in input {
        let key = plan.partition_by.iter().map(|&c| row[c].canonical()).collect();
        let rows = partitions.entry(key).or_default();
        (0..*count).for_each(|_| rows.push(row));
    }
    let mut out = Zset::new();
    for mut rows in partitions.into_values() {
        rows.sort_by(|a, b| compare(&plan.order_by, a, b));
        let limit = plan.limit.map_or(usize::MAX, |l| l as usize);
        for (i, row) in rows.into_iter().enumerate().skip(plan.offset as usize).take(limit) {
            let mut row = row.clone();
            if plan.row_number {
                row.push(V::Int(i as i64 + 1));
            }
            *out.entry(row).or_insert(0) += 1;
        }
    }
    out
}

fn run(plan: &TopNPlan, types: &[DataType], seeds: u64) {
    let input = schema(types);
    let number = plan.row_number.then_some(DataType::Int64);
    let output = schema(&types.iter().cloned().chain(number).collect::<Vec<_>>());
    let case = Case {
        name: format!("top-N {plan:?}"),
        inputs: vec![input.clone()],
        routes: vec![plan.partition_by.clone()],
        make: &|_| Box::new(TopN::new(plan, &input, &output).unwrap()),
        naive: &|inputs| naive(plan, &inputs[0]),
        append_only: plan.append_only,
    };
    check_all(&case, seeds);
}

#[test]
fn every_option() {
    let columns = [
        DataType::Int64,
        DataType::Float64,
        DataType::Utf8,
        DataType::Interval(IntervalUnit::MonthDayNano),
    ];
    for limit in [Some(0), Some(1), Some(2), Some(5), Some(40), None] {
        for offset in [0, 1, 3] {
            for row_number in [false, true] {
                for append_only in [false, true] {
                    for (partition_by, column) in [(vec![0], 1), (vec![0], 2), (vec![2, 1], 3), (vec![], 1)] {
                        let desc = (limit.unwrap_or(7) + offset) % 2 == 0;
                        let plan = TopNPlan {
                            partition_by,
                            order_by: vec![SortKey {
                                column,
                                desc,
                                nulls_first: row_number != desc,
                            }],
                            limit,
                            offset,
                            row_number,
                            append_only,
                        };
                        run(&plan, &columns, 2);
                    }
                }
            }
        }
    }
}

#[test]
fn large_steps() {
    let columns = [DataType::Int64, DataType::Float64, DataType::Utf8];
    for (partition_by, limit, append_only) in [
        (vec![0], Some(1), true),
        (vec![0], Some(3), false),
        (vec![], Some(50), true),
        (vec![], Some(50), false),
        (vec![2], None, false),
    ] {
        let plan = TopNPlan {
            partition_by,
            order_by: vec![SortKey {
                column: 1,
                desc: true,
                nulls_first: false,
            }],
            limit,
            offset: 0,
            row_number: true,
            append_only,
        };
        run(&plan, &columns, 0);
    }
}

#[test]
fn several_sort_keys_and_none() {
    let key = |column, desc, nulls_first| SortKey {
        column,
        desc,
        nulls_first,
    };
    for order_by in [vec![], vec![key(1, true, true), key(2, false, false)]] {
        let plan = TopNPlan {
            partition_by: vec![0],
            order_by,
            limit: Some(2),
            offset: 0,
            row_number: true,
            append_only: false,
        };
        run(&plan, &[DataType::Int32, DataType::Int64, DataType::Utf8], 20);
    }
}

#[test]
fn rows_beyond_a_full_window_change_nothing() {
    let input = schema(&[DataType::Int64, DataType::Int64]);
    let plan = TopNPlan {
        partition_by: vec![0],
        order_by: vec![SortKey {
            column: 1,
            desc: true,
            nulls_first: false,
        }],
        limit: Some(1),
        offset: 0,
        row_number: false,
        append_only: false,
    };
    let mut op = TopN::new(&plan, &input, &input).unwrap();
    let out = step(&mut op, true, vec![(0, table(&input, "+ 1 5\n+ 1 9\n+ 2 3"))]);
    assert_eq!(show(&out.deltas), "+ 1 9\n+ 2 3");
    let out = step(
        &mut op,
        false,
        vec![(0, table(&input, "+ 1 4\n+ 1 NULL\n- 1 5\n+ 1 8"))],
    );
    assert_eq!(show(&out.deltas), "");
    let out = step(&mut op, false, vec![(0, table(&input, "- 1 9"))]);
    assert_eq!(show(&out.deltas), "+ 1 8\n- 1 9");
}
