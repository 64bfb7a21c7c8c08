//! EXPLAIN of a stream plan: the tree, then the fragments that it is cut into.
//!
//! ```text
//! Aggregate group=[carrier] aggs=[count(*)] {op 2, key (0)}
//!   Exchange hash(0) {op 1}
//!     Scan flights [carrier] {op 0}
//! Fragment 0 → hash(0) → 1: Scan flights
//! Fragment 1: Aggregate
//! ```
//!
//! | name | operator |
//! | --- | --- |
//! | `Scan` | changes of a table or materialized view |
//! | `Source` | rows of a source |
//! | `Values` | constant rows |
//! | `Map` | filter, then projection |
//! | `Expand` | several maps of one input |
//! | `TemporalFilter` | rows between two bounds of time |
//! | `Aggregate` | groups with aggregates |
//! | `Distinct` | groups without |
//! | `Join` | inner, left, full, semi or anti join |
//! | `TopN` | first rows of each partition, or their numbers |
//! | `Window` | window functions of one window |
//! | `Union` | bag union |
//! | `Unnest` | a row for each element of lists |
//! | `Upsert` | the newest record of each key |
//! | `Exchange` | redistribution between tasks: hash, single, broadcast or forward |
//! | `Receive` | the other end of an exchange, in the list of fragments |
//!
//! Braces hold what was derived: operator id, append-only, unique keys by column index, row bound.

use arrow::datatypes::Schema;
use arrow::ipc::reader::StreamReader;

use super::fragment::fragment;
use super::render;
use crate::plan::{AggCall, ExchangeKind, JoinKind, PlanExpr, SortKey, StreamNode, StreamOp, StreamPlan, TimeBound};

/// The names that stand for operators in EXPLAIN; they stay, because people and scripts read them.
#[cfg(test)]
pub(super) const NODE_NAMES: [&str; 16] = [
    "Scan",
    "Source",
    "Values",
    "Map",
    "Expand",
    "TemporalFilter",
    "Aggregate",
    "Distinct",
    "Join",
    "TopN",
    "Window",
    "Union",
    "Unnest",
    "Upsert",
    "Exchange",
    "Receive",
];

/// Lines of text.
pub fn explain(plan: &StreamPlan) -> Vec<String> {
    let mut lines = Vec::new();
    tree(&plan.root, 0, &mut lines);
    let graph = fragment(plan);
    for f in &graph.fragments {
        let mut names = Vec::new();
        f.root.visit(&mut |node| match &node.op {
            StreamOp::Receive { edge } => names.push(format!("Receive {edge}")),
            StreamOp::Scan { name, .. } | StreamOp::Source { name, .. } => {
                names.push(format!("{} {name}", node_name(node)))
            }
            _ => names.push(node_name(node).to_string()),
        });
        let tasks = if f.single { "one task" } else { "tasks" };
        let target = graph
            .edges
            .iter()
            .find(|e| e.from == f.id)
            .map(|e| format!(" → edge {} {} → fragment {}", e.id, routing(&e.kind), e.to))
            .unwrap_or_default();
        lines.push(format!("Fragment {} ({tasks}): {}{target}", f.id, names.join(" ← ")));
    }
    lines
}

fn tree(node: &StreamNode, depth: usize, lines: &mut Vec<String>) {
    let details = describe(node);
    let space = if details.is_empty() { "" } else { " " };
    lines.push(format!(
        "{}{}{space}{details} {{{}}}",
        "  ".repeat(depth),
        node_name(node),
        facts(node)
    ));
    for input in &node.inputs {
        tree(input, depth + 1, lines);
    }
}

/// The operator's name in EXPLAIN.
fn node_name(node: &StreamNode) -> &'static str {
    match &node.op {
        StreamOp::Scan { .. } => "Scan",
        StreamOp::Source { .. } => "Source",
        StreamOp::Values { .. } => "Values",
        StreamOp::Map { .. } => "Map",
        StreamOp::Expand { .. } => "Expand",
        StreamOp::TemporalFilter { .. } => "TemporalFilter",
        StreamOp::Aggregate { aggs, .. } if aggs.is_empty() => "Distinct",
        StreamOp::Aggregate { .. } => "Aggregate",
        StreamOp::Join { .. } => "Join",
        StreamOp::TopN { .. } => "TopN",
        StreamOp::Window { .. } => "Window",
        StreamOp::Union => "Union",
        StreamOp::Unnest { .. } => "Unnest",
        StreamOp::Upsert { .. } => "Upsert",
        StreamOp::Exchange { .. } => "Exchange",
        StreamOp::Receive { .. } => "Receive",
    }
}

fn facts(node: &StreamNode) -> String {
    let mut parts = vec![format!("op {}", node.id)];
    if node.props.append_only {
        parts.push("append-only".to_string());
    }
    match node.props.row_bound {
        Some(bound) => parts.push(format!("rows ≤ {bound}")),
        None if node.props.keys.is_empty() => {}
        None => parts.push(format!(
            "keys {}",
            node.props.keys.iter().map(|k| numbers(k)).collect::<Vec<_>>().join(" ")
        )),
    }
    parts.join(", ")
}

fn numbers(columns: &[usize]) -> String {
    format!(
        "({})",
        columns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )
}

fn names(columns: &[usize], schema: &Schema) -> String {
    columns
        .iter()
        .map(|&c| schema.fields().get(c).map_or("?", |f| f.name().as_str()))
        .collect::<Vec<_>>()
        .join(", ")
}

fn describe(node: &StreamNode) -> String {
    let empty = Schema::empty();
    let input = node.inputs.first().map_or(&empty, |i| i.schema.as_ref());
    match &node.op {
        StreamOp::Scan { name, .. } | StreamOp::Source { name, .. } => {
            format!(
                "{name} [{}]",
                names(&(0..node.schema.fields().len()).collect::<Vec<_>>(), &node.schema)
            )
        }
        StreamOp::Values { ipc } => format!("{} rows", rows_in(ipc)),
        StreamOp::Map { predicate, exprs } => map(predicate.as_ref(), exprs.as_deref(), &node.schema),
        StreamOp::Unnest { columns, keep_empty } => {
            let keep = if *keep_empty { " or NULL" } else { "" };
            format!("{}{keep}", names(columns, input))
        }
        StreamOp::Expand { branches } => {
            let branches = branches.iter();
            let branches = branches.map(|b| map(b.predicate.as_ref(), Some(&b.exprs), &node.schema));
            branches.collect::<Vec<_>>().join(" + ")
        }
        StreamOp::TemporalFilter { from, until } => {
            let bound = |b: &TimeBound| format!("{}{}", names(&[b.column], input), shift(b.shift_us));
            let from = from.iter().map(|b| format!("now() >= {}", bound(b)));
            let until = until.iter().map(|b| format!("now() < {}", bound(b)));
            from.chain(until).collect::<Vec<_>>().join(" AND ")
        }
        StreamOp::Aggregate { group_by, aggs } => aggregate(group_by, aggs, input),
        StreamOp::Join {
            kind,
            left_keys,
            right_keys,
            null_equals_null,
            filter,
        } => {
            let right = node.inputs.get(1).map_or(&empty, |i| i.schema.as_ref());
            let equal = if *null_equals_null { "IS NOT DISTINCT FROM" } else { "=" };
            let column =
                |schema: &Schema, c: usize| schema.fields().get(c).map_or("?".to_string(), |f| f.name().clone());
            let mut on: Vec<String> = left_keys
                .iter()
                .zip(right_keys)
                .map(|(&l, &r)| format!("{} {equal} {}", column(input, l), column(right, r)))
                .collect();
            on.extend(filter.iter().map(|f| f.display.clone()));
            let on = if on.is_empty() {
                "every pair".to_string()
            } else {
                format!("on {}", on.join(" AND "))
            };
            format!("{} {on}", join_name(*kind))
        }
        StreamOp::TopN {
            partition_by,
            order_by,
            limit,
            offset,
            row_number,
        } => {
            let mut parts = Vec::new();
            if !partition_by.is_empty() {
                parts.push(format!("partition=[{}]", names(partition_by, input)));
            }
            parts.push(format!(
                "order=[{}]",
                order_by
                    .iter()
                    .map(|k| sort_key(k, input))
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
            if let Some(limit) = limit {
                parts.push(format!("limit={limit}"));
            }
            if *offset > 0 {
                parts.push(format!("offset={offset}"));
            }
            if *row_number {
                parts.push("numbered".to_string());
            }
            parts.join(" ")
        }
        StreamOp::Window {
            partition_by,
            order_by,
            calls,
            ..
        } => {
            let mut parts = Vec::new();
            if !partition_by.is_empty() {
                parts.push(format!("partition=[{}]", names(partition_by, input)));
            }
            if !order_by.is_empty() {
                let keys: Vec<String> = order_by.iter().map(|k| sort_key(k, input)).collect();
                parts.push(format!("order=[{}]", keys.join(", ")));
            }
            let calls: Vec<String> = calls
                .iter()
                .map(|c| render::window(c, |c| names(&[c], input)))
                .collect();
            parts.push(format!("calls=[{}]", calls.join(", ")));
            parts.join(" ")
        }
        StreamOp::Union => String::new(),
        StreamOp::Upsert { key } => format!("key=[{}]", names(key, &node.schema)),
        StreamOp::Exchange { kind } => routing(kind),
        StreamOp::Receive { edge } => edge.to_string(),
    }
}

fn shift(us: i64) -> String {
    let sign = if us < 0 { '-' } else { '+' };
    match us.unsigned_abs() {
        0 => String::new(),
        us if us % 1_000_000 == 0 => format!(" {sign} {} s", us / 1_000_000),
        us => format!(" {sign} {us} µs"),
    }
}

fn map(predicate: Option<&PlanExpr>, exprs: Option<&[PlanExpr]>, schema: &Schema) -> String {
    let mut parts = Vec::new();
    if let Some(exprs) = exprs {
        let list = exprs.iter().zip(schema.fields()).map(|(e, f)| {
            if &e.display == f.name() {
                e.display.clone()
            } else {
                format!("{} AS {}", e.display, f.name())
            }
        });
        parts.push(format!("[{}]", list.collect::<Vec<_>>().join(", ")));
    }
    if let Some(predicate) = predicate {
        parts.push(format!("where {}", predicate.display));
    }
    parts.join(" ")
}

fn aggregate(group_by: &[usize], aggs: &[AggCall], input: &Schema) -> String {
    let group = format!("group=[{}]", names(group_by, input));
    if aggs.is_empty() {
        return group;
    }
    let calls = aggs.iter().map(|a| render::aggregate(a, |c| names(&[c], input)));
    format!("{group} aggs=[{}]", calls.collect::<Vec<_>>().join(", "))
}

fn join_name(kind: JoinKind) -> &'static str {
    match kind {
        JoinKind::Inner => "inner",
        JoinKind::Left => "left",
        JoinKind::Full => "full",
        JoinKind::Semi => "semi",
        JoinKind::Anti => "anti",
    }
}

fn sort_key(key: &SortKey, input: &Schema) -> String {
    let mut text = names(&[key.column], input);
    if key.desc {
        text.push_str(" desc");
    }
    if key.nulls_first != key.desc {
        text.push_str(if key.nulls_first { " nulls first" } else { " nulls last" });
    }
    text
}

fn routing(kind: &ExchangeKind) -> String {
    match kind {
        ExchangeKind::Hash(columns) => format!("hash{}", numbers(columns)),
        ExchangeKind::Broadcast => "broadcast".to_string(),
        ExchangeKind::Single => "single".to_string(),
        ExchangeKind::Forward => "forward".to_string(),
    }
}

fn rows_in(ipc: &[u8]) -> usize {
    match StreamReader::try_new(ipc, None) {
        Ok(reader) => reader.filter_map(Result::ok).map(|b| b.num_rows()).sum(),
        Err(_) => 0,
    }
}
