//! Derived facts about streams: append-only, unique keys, row bound. Each rule is a sound under-approximation.

use std::collections::BTreeMap;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};

use super::rel::{JoinOp, Phys, Rel, as_column, conjuncts};
use crate::plan::{AggCall, JoinKind, StreamProps, WindowCall, WindowFunc};

/// Keys beyond this many are dropped: none is needed for correctness.
const MAX_KEYS: usize = 8;

/// Sorted, minimal, few.
fn tidy(mut keys: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    for key in &mut keys {
        key.sort_unstable();
        key.dedup();
    }
    keys.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    let mut kept: Vec<Vec<usize>> = Vec::new();
    for key in keys {
        if !kept.iter().any(|k| k.iter().all(|c| key.contains(c))) {
            kept.push(key);
        }
    }
    kept.truncate(MAX_KEYS);
    kept
}

fn settled(append_only: bool, keys: Vec<Vec<usize>>, row_bound: Option<u64>) -> StreamProps {
    let mut keys = tidy(keys);
    let mut row_bound = row_bound;
    if keys.first().is_some_and(Vec::is_empty) {
        row_bound = Some(row_bound.unwrap_or(1).min(1));
    }
    if row_bound.is_some_and(|b| b <= 1) {
        keys = vec![Vec::new()];
    }
    StreamProps {
        append_only,
        keys,
        row_bound,
    }
}

/// Some key lies within `columns`, so rows that agree on them are one row.
pub(super) fn unique_on(props: &StreamProps, columns: &[usize]) -> bool {
    props.keys.iter().any(|k| k.iter().all(|c| columns.contains(c)))
}

/// At most one row.
pub(super) fn at_most_one(props: &StreamProps) -> bool {
    props.row_bound.is_some_and(|b| b <= 1)
}

/// Facts of a leaf.
pub(super) fn leaf(append_only: bool, keys: Vec<Vec<usize>>, row_bound: Option<u64>) -> StreamProps {
    settled(append_only, keys, row_bound)
}

/// Facts after keeping `columns` (input indices) only.
pub(super) fn project_columns(props: &StreamProps, columns: &[usize]) -> StreamProps {
    let mut place = BTreeMap::new();
    for (out, &c) in columns.iter().enumerate() {
        place.entry(c).or_insert(out);
    }
    let keys = props
        .keys
        .iter()
        .filter_map(|k| k.iter().map(|c| place.get(c).copied()).collect())
        .collect();
    settled(props.append_only, keys, props.row_bound)
}

/// Facts of a filter and projection. A column that the filter sets equal to a constant needs no place in a key.
pub(super) fn map(input: &Rel, predicate: Option<&Phys>, exprs: Option<&[Phys]>) -> StreamProps {
    let fixed: Vec<usize> = predicate
        .map(|p| conjuncts(p).iter().filter_map(fixed_column).collect())
        .unwrap_or_default();
    let keys = input
        .props
        .keys
        .iter()
        .map(|k| k.iter().copied().filter(|c| !fixed.contains(c)).collect())
        .collect();
    let filtered = settled(input.props.append_only, keys, input.props.row_bound);
    match exprs {
        None => filtered,
        Some(exprs) => {
            let sources: Vec<usize> = exprs.iter().map(|e| as_column(e).unwrap_or(usize::MAX)).collect();
            project_columns(&filtered, &sources)
        }
    }
}

fn fixed_column(conjunct: &Phys) -> Option<usize> {
    let binary = conjunct.downcast_ref::<BinaryExpr>()?;
    if *binary.op() != Operator::Eq {
        return None;
    }
    match (as_column(binary.left()), as_column(binary.right())) {
        (Some(c), None) if binary.right().is::<Literal>() => Some(c),
        (None, Some(c)) if binary.left().is::<Literal>() => Some(c),
        _ => None,
    }
}

/// Facts of a grouping.
pub(super) fn aggregate(input: &Rel, group_by: &[usize], aggs: &[AggCall]) -> StreamProps {
    let row_bound = if group_by.is_empty() {
        Some(1)
    } else {
        input.props.row_bound
    };
    let mut keys = vec![(0..group_by.len()).collect()];
    for key in &input.props.keys {
        if let Some(key) = key
            .iter()
            .map(|c| group_by.iter().position(|g| g == c))
            .collect::<Option<Vec<_>>>()
        {
            // Groups are rows then; with no group columns the key is empty already.
            keys.push(key);
        }
    }
    settled(
        input.props.append_only && aggs.is_empty() && !group_by.is_empty(),
        keys,
        row_bound,
    )
}

/// Facts of a join.
pub(super) fn join(left: &Rel, right: &Rel, join: &JoinOp) -> StreamProps {
    let append = left.props.append_only && right.props.append_only;
    let product = left
        .props
        .row_bound
        .zip(right.props.row_bound)
        .and_then(|(l, r)| l.checked_mul(r.max(1)));
    let shift = |keys: &[Vec<usize>]| -> Vec<Vec<usize>> {
        keys.iter()
            .map(|k| k.iter().map(|c| c + left.width()).collect())
            .collect()
    };
    let pairs = || {
        let right_keys = shift(&right.props.keys);
        let combine = |l: &Vec<usize>| {
            right_keys
                .iter()
                .map(move |r| l.iter().chain(r).copied().collect())
                .collect::<Vec<_>>()
        };
        left.props.keys.iter().flat_map(combine).collect::<Vec<_>>()
    };
    let right_unique = unique_on(&right.props, &join.right_keys);
    let left_unique = unique_on(&left.props, &join.left_keys);
    match join.kind {
        JoinKind::Semi => settled(append, left.props.keys.clone(), left.props.row_bound),
        JoinKind::Anti => settled(false, left.props.keys.clone(), left.props.row_bound),
        JoinKind::Inner => {
            let mut keys = pairs();
            if right_unique {
                keys.extend(left.props.keys.iter().cloned());
            }
            if left_unique {
                keys.extend(shift(&right.props.keys));
            }
            settled(append, keys, product)
        }
        JoinKind::Left => {
            let mut keys = pairs();
            if right_unique {
                keys.extend(left.props.keys.iter().cloned());
            }
            settled(false, keys, product)
        }
        // An unmatched row's NULLs may meet a real key of NULLs, so no key holds over both halves.
        JoinKind::Full => {
            let bound = left.props.row_bound.zip(right.props.row_bound);
            settled(
                false,
                Vec::new(),
                bound.and_then(|(l, r)| l.max(1).checked_mul(r.max(1))?.checked_add(l)?.checked_add(r)),
            )
        }
    }
}

/// Facts of the first rows of partitions.
pub(super) fn top_n(input: &Rel, partition_by: &[usize], limit: Option<u64>, row_number: bool) -> StreamProps {
    let mut keys = input.props.keys.clone();
    if row_number {
        keys.push(partition_by.iter().copied().chain([input.width()]).collect());
    }
    if limit.is_some_and(|n| n <= 1) {
        keys.push(partition_by.to_vec());
    }
    let bound = match limit {
        Some(n) if partition_by.is_empty() => Some(input.props.row_bound.map_or(n, |b| b.min(n))),
        _ => input.props.row_bound,
    };
    settled(false, keys, bound)
}

/// Facts of window functions: the input's rows, each with more columns.
pub(super) fn window(input: &Rel, partition_by: &[usize], calls: &[WindowCall]) -> StreamProps {
    let mut keys = input.props.keys.clone();
    let number = calls.iter().position(|c| c.func == WindowFunc::RowNumber);
    if let Some(number) = number {
        keys.push(partition_by.iter().copied().chain([input.width() + number]).collect());
    }
    settled(false, keys, input.props.row_bound)
}

/// Facts of several maps of one input.
pub(super) fn expand(input: &Rel, branches: usize) -> StreamProps {
    let bound = input.props.row_bound.and_then(|b| b.checked_mul(branches as u64));
    settled(input.props.append_only, Vec::new(), bound)
}

/// Facts of rows with their lists' elements: equal elements make equal rows.
pub(super) fn unnest(input: &Rel) -> StreamProps {
    settled(input.props.append_only, Vec::new(), None)
}

/// Facts of a filter by time: rows come and, unless `stays`, go by themselves.
pub(super) fn temporal_filter(input: &Rel, width: usize, stays: bool) -> StreamProps {
    let kept: Vec<usize> = (0..width).collect();
    let props = project_columns(&input.props, &kept);
    settled(props.append_only && stays, props.keys, props.row_bound)
}

/// Facts of a bag union.
pub(super) fn union(inputs: &[Rel]) -> StreamProps {
    if let [only] = inputs {
        return only.props.clone();
    }
    let append = inputs.iter().all(|i| i.props.append_only);
    let bound = inputs
        .iter()
        .map(|i| i.props.row_bound)
        .try_fold(0u64, |sum, b| sum.checked_add(b?));
    settled(append, Vec::new(), bound)
}
