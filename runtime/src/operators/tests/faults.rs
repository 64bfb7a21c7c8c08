//! Planted faults are found, and so is an operator that lies about its output.

use std::sync::Arc;

use arrow::datatypes::*;
use levee_planner::plan::{
    AggCall, AggFunc, Frame, JoinKind, OperatorId, SortKey, StreamNode, StreamOp, StreamProps, WindowCall, WindowFunc,
};

use super::harness::{Case, check};
use super::values::*;
use crate::operators::checker::Checker;
use crate::operators::fault::{self, Fault};
use crate::operators::pass::Union;
use crate::operators::{Operator, OperatorContext, Output, instantiate};

fn node(op: StreamOp, types: &[DataType], inputs: Vec<StreamNode>) -> StreamNode {
    StreamNode {
        id: OperatorId(7),
        op,
        inputs,
        schema: schema(types),
        props: StreamProps::default(),
    }
}

fn scan(types: &[DataType]) -> StreamNode {
    node(
        StreamOp::Scan {
            relation: levee_planner::plan::ObjectId(1),
            name: "t".to_owned(),
            projection: (0..types.len()).collect(),
        },
        types,
        Vec::new(),
    )
}

/// One plan per stateful operator, with what it maintains.
fn plans() -> Vec<(Fault, StreamNode, Box<dyn Fn(&[Zset]) -> Zset>)> {
    let int = DataType::Int64;
    let pair = [int.clone(), int.clone()];
    let count = AggCall::new(AggFunc::Count, None);
    let aggregate = StreamOp::Aggregate {
        group_by: vec![0],
        aggs: vec![count],
    };
    let join = StreamOp::Join {
        kind: JoinKind::Semi,
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: true,
        filter: None,
    };
    let topn = StreamOp::TopN {
        partition_by: vec![0],
        order_by: vec![SortKey {
            column: 1,
            desc: false,
            nulls_first: true,
        }],
        limit: Some(1),
        offset: 0,
        row_number: false,
    };
    let window = StreamOp::Window {
        partition_by: vec![0],
        order_by: vec![SortKey {
            column: 1,
            desc: false,
            nulls_first: true,
        }],
        reversed: false,
        calls: vec![WindowCall {
            func: WindowFunc::RowNumber,
            frame: Frame::WHOLE,
        }],
    };
    let numbered = [int.clone(), int.clone(), int.clone()];
    vec![
        (
            Fault::Window,
            node(window, &numbered, vec![scan(&pair)]),
            Box::new(|inputs| {
                let mut last = std::collections::BTreeMap::new();
                let mut out = Zset::new();
                for (row, n) in &inputs[0] {
                    for _ in 0..*n {
                        let number = last.entry(row[0].clone()).or_insert(0);
                        *number += 1;
                        out.insert(vec![row[0].clone(), row[1].clone(), V::Int(*number)], 1);
                    }
                }
                out
            }),
        ),
        (
            Fault::Aggregate,
            node(aggregate, &pair, vec![scan(&pair)]),
            Box::new(|inputs| {
                let mut counts = std::collections::BTreeMap::new();
                for (row, n) in &inputs[0] {
                    *counts.entry(row[0].clone()).or_insert(0) += n;
                }
                counts.into_iter().map(|(k, n)| (vec![k, V::Int(n)], 1)).collect()
            }),
        ),
        (
            Fault::Join,
            node(join, &pair, vec![scan(&pair), scan(&pair)]),
            Box::new(|inputs| {
                let found = |key: &V| inputs[1].keys().any(|r| r[0] == *key);
                inputs[0]
                    .iter()
                    .filter(|(r, _)| found(&r[0]))
                    .map(|(r, n)| (r.clone(), *n))
                    .collect()
            }),
        ),
        (
            Fault::TopN,
            node(topn, &pair, vec![scan(&pair)]),
            Box::new(|inputs| {
                let mut first = std::collections::BTreeMap::new();
                for row in inputs[0].keys() {
                    first.entry(row[0].clone()).or_insert_with(|| row.clone());
                }
                first.into_values().map(|r| (r, 1)).collect()
            }),
        ),
        (
            Fault::Union,
            node(StreamOp::Union, &pair, vec![scan(&pair), scan(&pair)]),
            Box::new(|inputs| sum(inputs)),
        ),
        (
            Fault::Map,
            node(
                StreamOp::Map {
                    predicate: None,
                    exprs: None,
                },
                &pair,
                vec![scan(&pair)],
            ),
            Box::new(|inputs| inputs[0].clone()),
        ),
    ]
}

#[test]
fn every_planted_fault_is_found() {
    for (kind, plan, naive) in plans() {
        let inputs: Vec<SchemaRef> = plan.inputs.iter().map(|n| Arc::clone(&n.schema)).collect();
        let case = Case {
            name: format!("{kind:?}"),
            inputs: inputs.clone(),
            routes: vec![vec![0]; inputs.len()],
            make: &|ctx| instantiate(&plan, &inputs, ctx).unwrap(),
            naive: &*naive,
            append_only: false,
        };
        fault::set(None);
        assert_eq!(check(&case, 1, 30), Ok(()));
        fault::set(Some(kind));
        let found = check(&case, 1, 30);
        fault::set(None);
        assert!(found.is_err(), "the fault planted in {kind:?} was not found");
    }
}

/// Faults of the cache over the cold tier, in each operator that has one.
#[test]
fn every_planted_fault_of_eviction_is_found() {
    for (kind, plan, naive) in plans() {
        let faults: &[Fault] = match kind {
            Fault::Aggregate | Fault::Join => &[Fault::EvictFrozen],
            // A window's partitions are evicted as a whole, when nothing of them is still to be forgotten.
            Fault::Window => &[Fault::EvictFrozen],
            Fault::TopN => &[Fault::EvictFrozen, Fault::ForgetGone],
            _ => &[],
        };
        let inputs: Vec<SchemaRef> = plan.inputs.iter().map(|n| Arc::clone(&n.schema)).collect();
        let case = Case {
            name: format!("{kind:?}"),
            inputs: inputs.clone(),
            routes: vec![vec![0]; inputs.len()],
            make: &|ctx| instantiate(&plan, &inputs, ctx).unwrap(),
            naive: &*naive,
            append_only: false,
        };
        for fault in faults {
            fault::set(Some(*fault));
            let found = (0..20).any(|seed| check(&case, seed, 40).is_err());
            fault::set(None);
            assert!(found, "the fault {fault:?} planted in {kind:?} was not found");
        }
    }
}

#[test]
fn the_checker_finds_lies() {
    let types = [DataType::Int64];
    let declared = |props: StreamProps, types: &[DataType]| StreamNode {
        props,
        ..node(StreamOp::Union, types, vec![])
    };
    let input = schema(&types);
    let run = |node: &StreamNode, text: &str| {
        let mut checker = Checker::new(Box::new(Union::new(&input)), node).with_contents();
        let mut out = Output::default();
        checker.push(0, table(&input, text), &mut out)?;
        let barrier = crate::operators::Barrier {
            epoch: 1,
            timestamp_us: 0,
            first: true,
        };
        checker.close(&barrier, &mut out)
    };
    let unique = StreamProps {
        keys: vec![vec![0]],
        ..StreamProps::default()
    };
    let append = StreamProps {
        append_only: true,
        ..StreamProps::default()
    };
    assert!(run(&declared(StreamProps::default(), &types), "+ 1\n+ 1").is_ok());
    assert!(run(&declared(unique.clone(), &types), "+ 1\n+ 2").is_ok());
    assert!(run(&declared(unique, &types), "+ 1\n+ 1").is_err());
    assert!(run(&declared(append, &types), "+ 1\n- 1").is_err());
    assert!(run(&declared(StreamProps::default(), &types), "- 1").is_err());
    assert!(run(&declared(StreamProps::default(), &[DataType::Int32]), "+ 1").is_err());
    assert!(
        instantiate(&scan(&types), &[], &OperatorContext { task: 0, n_tasks: 1 }).is_err(),
        "leaves belong to the driver"
    );
}
