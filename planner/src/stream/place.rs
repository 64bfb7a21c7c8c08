//! Exchanges and ids: [`Rel`] → [`StreamNode`].
//!
//! Each operator says where rows must be; an exchange is put where they are not yet there.
//!
//! | operator | needs | leaves |
//! | --- | --- | --- |
//! | scan, source | – | spread: rows are where their place in the run put them, a retraction may be at another task |
//! | values | – | one task |
//! | map | – | as it came, in its own columns |
//! | expand | – | spread, or one task |
//! | temporal filter | hash of the whole row | spread |
//! | aggregate, top-N, window | hash of the group or partition columns; without any: one task | the same |
//! | upsert | hash of the key on all inputs | the same |
//! | join on keys | hash of the keys on both sides | the same, by the keys of either side |
//! | join without keys | one task, since no key can say who keeps a row | one task |
//! | union | one-task inputs are hashed by whole row beside spread ones | spread, or what all inputs share |
//!
//! Hash columns are the operator's own, in its own order: the vnode of a state key is then the vnode that routed it. A few
//! rows that are at one task already stay there; many are spread again.

use std::sync::Arc;

use datafusion::physical_expr::expressions::Column;

use crate::plan::{ExchangeKind, ExpandBranch, JoinKind, OperatorId, StreamNode, StreamOp};
use crate::{Result, stream::expr};

use super::rel::{Branch, JoinOp, Phys, Rel, RelOp, as_column, column, rewrite_columns};

/// Where the rows of a relation are.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Somewhere, by no column that is left.
    Spread,
    /// By the hash of columns; each list says the same.
    Hash(Vec<Vec<usize>>),
    /// All at one task.
    Single,
}

/// Puts exchanges in and numbers operators, inputs before consumers.
pub(super) fn place(rel: Rel) -> Result<StreamNode> {
    let mut placing = Placing { next: 0 };
    Ok(placing.place(rel)?.0)
}

struct Placing {
    next: u32,
}

impl Placing {
    fn id(&mut self) -> OperatorId {
        self.next += 1;
        OperatorId(self.next - 1)
    }

    fn node(&mut self, op: StreamOp, inputs: Vec<StreamNode>, rel: &RelFacts) -> StreamNode {
        StreamNode {
            id: self.id(),
            op,
            inputs,
            schema: Arc::clone(&rel.schema),
            props: rel.props.clone(),
        }
    }

    fn exchange(&mut self, input: StreamNode, kind: ExchangeKind) -> StreamNode {
        let facts = RelFacts {
            schema: Arc::clone(&input.schema),
            props: input.props.clone(),
        };
        self.node(StreamOp::Exchange { kind }, vec![input], &facts)
    }

    fn place(&mut self, rel: Rel) -> Result<(StreamNode, Place)> {
        let facts = RelFacts {
            schema: Arc::clone(&rel.schema),
            props: rel.props.clone(),
        };
        let mut inputs = Vec::with_capacity(rel.inputs.len());
        for input in rel.inputs {
            inputs.push(self.place(input)?);
        }
        match rel.op {
            RelOp::Scan {
                relation,
                name,
                projection,
            } => Ok((
                self.node(
                    StreamOp::Scan {
                        relation,
                        name,
                        projection,
                    },
                    Vec::new(),
                    &facts,
                ),
                Place::Spread,
            )),
            RelOp::Source {
                source,
                name,
                projection,
            } => Ok((
                self.node(
                    StreamOp::Source {
                        source,
                        name,
                        projection,
                    },
                    Vec::new(),
                    &facts,
                ),
                Place::Spread,
            )),
            RelOp::Values { ipc } => Ok((self.node(StreamOp::Values { ipc }, Vec::new(), &facts), Place::Single)),
            RelOp::Map { predicate, exprs } => self.map(inputs, predicate, exprs, &facts),
            RelOp::Aggregate { group_by, aggs } => {
                let outputs: Vec<usize> = (0..group_by.len()).collect();
                let (input, place) = self.gathered(inputs, &group_by);
                let place = if place == Place::Single {
                    place
                } else {
                    Place::Hash(vec![outputs])
                };
                Ok((
                    self.node(StreamOp::Aggregate { group_by, aggs }, vec![input], &facts),
                    place,
                ))
            }
            RelOp::TopN {
                partition_by,
                order_by,
                limit,
                offset,
                row_number,
            } => {
                let (input, place) = self.gathered(inputs, &partition_by);
                let op = StreamOp::TopN {
                    partition_by,
                    order_by,
                    limit,
                    offset,
                    row_number,
                };
                Ok((self.node(op, vec![input], &facts), place))
            }
            RelOp::Window {
                partition_by,
                order_by,
                reversed,
                calls,
            } => {
                let (input, place) = self.gathered(inputs, &partition_by);
                let op = StreamOp::Window {
                    partition_by,
                    order_by,
                    reversed,
                    calls,
                };
                Ok((self.node(op, vec![input], &facts), place))
            }
            RelOp::Join(join) => self.join(inputs, join, &facts),
            RelOp::Expand { branches } => self.expand(inputs, &branches, &facts),
            RelOp::TemporalFilter { from, until } => {
                // A retraction must find its row, which is known by all of its columns; their hash is the vnode of its state.
                let (input, place) = one(inputs);
                let all: Vec<usize> = (0..input.schema.fields().len()).collect();
                let (input, place) = if place == Place::Single && few(&input) {
                    (input, place)
                } else {
                    (self.hashed(input, &place, &all), Place::Spread)
                };
                Ok((
                    self.node(StreamOp::TemporalFilter { from, until }, vec![input], &facts),
                    place,
                ))
            }
            RelOp::Unnest { columns, keep_empty } => {
                let (input, place) = one(inputs);
                let place = match place {
                    Place::Hash(lists) => {
                        let kept: Vec<_> = lists
                            .into_iter()
                            .filter(|list| !list.iter().any(|c| columns.contains(c)))
                            .collect();
                        if kept.is_empty() {
                            Place::Spread
                        } else {
                            Place::Hash(kept)
                        }
                    }
                    other => other,
                };
                let op = StreamOp::Unnest { columns, keep_empty };
                Ok((self.node(op, vec![input], &facts), place))
            }
            RelOp::Union => Ok(self.union(inputs, &facts)),
            RelOp::Upsert { key } => {
                let hashed = inputs.into_iter().map(|(node, place)| self.hashed(node, &place, &key));
                let inputs = hashed.collect();
                let place = Place::Hash(vec![key.clone()]);
                Ok((self.node(StreamOp::Upsert { key }, inputs, &facts), place))
            }
        }
    }

    fn map(
        &mut self,
        inputs: Vec<(StreamNode, Place)>,
        predicate: Option<Phys>,
        exprs: Option<Vec<Phys>>,
        facts: &RelFacts,
    ) -> Result<(StreamNode, Place)> {
        let (input, mut place) = one(inputs);
        if let (Place::Hash(lists), Some(exprs)) = (&place, &exprs) {
            let moved: Vec<Vec<usize>> = lists.iter().filter_map(|list| renumbered(list, exprs)).collect();
            place = if moved.is_empty() {
                Place::Spread
            } else {
                Place::Hash(moved)
            };
        }
        let encoded = |e: &Phys| expr::encode(&rewrite_columns(e, |c| column(&input.schema, c))?);
        let predicate = predicate.as_ref().map(encoded).transpose()?;
        let exprs = exprs
            .map(|e| e.iter().map(encoded).collect::<Result<Vec<_>>>())
            .transpose()?;
        Ok((self.node(StreamOp::Map { predicate, exprs }, vec![input], facts), place))
    }

    fn expand(
        &mut self,
        inputs: Vec<(StreamNode, Place)>,
        branches: &[Branch],
        facts: &RelFacts,
    ) -> Result<(StreamNode, Place)> {
        let (input, place) = one(inputs);
        let encoded = |e: &Phys| expr::encode(&rewrite_columns(e, |c| column(&input.schema, c))?);
        let branches = branches
            .iter()
            .map(|b| {
                Ok(ExpandBranch {
                    predicate: b.predicate.as_ref().map(encoded).transpose()?,
                    exprs: b.exprs.iter().map(encoded).collect::<Result<_>>()?,
                })
            })
            .collect::<Result<_>>()?;
        let place = if place == Place::Single { place } else { Place::Spread };
        Ok((self.node(StreamOp::Expand { branches }, vec![input], facts), place))
    }

    /// Rows that agree on `columns` at one task.
    fn gathered(&mut self, inputs: Vec<(StreamNode, Place)>, columns: &[usize]) -> (StreamNode, Place) {
        let (input, place) = one(inputs);
        if place == Place::Single && (columns.is_empty() || few(&input)) {
            return (input, place);
        }
        if columns.is_empty() {
            return (self.exchange(input, ExchangeKind::Single), Place::Single);
        }
        (self.hashed(input, &place, columns), Place::Hash(vec![columns.to_vec()]))
    }

    fn hashed(&mut self, input: StreamNode, place: &Place, columns: &[usize]) -> StreamNode {
        match place {
            Place::Hash(lists) if lists.iter().any(|l| l == columns) => input,
            _ => self.exchange(input, ExchangeKind::Hash(columns.to_vec())),
        }
    }

    fn single(&mut self, input: StreamNode, place: &Place) -> StreamNode {
        match place {
            Place::Single => input,
            _ => self.exchange(input, ExchangeKind::Single),
        }
    }

    fn join(
        &mut self,
        inputs: Vec<(StreamNode, Place)>,
        join: JoinOp,
        facts: &RelFacts,
    ) -> Result<(StreamNode, Place)> {
        let (left, right) = two(inputs);
        let width = left.0.schema.fields().len();
        let JoinOp {
            kind,
            mut left_keys,
            mut right_keys,
            null_equals_null,
            filter,
        } = join;
        let filter = filter
            .as_ref()
            .map(|f| expr::encode(&rewrite_columns(f, both_sides(&left.0, &right.0))?))
            .transpose()?;
        let both_few = [&left, &right].iter().all(|(n, p)| *p == Place::Single && few(n));
        let (left, right, place) = if both_few || left_keys.is_empty() {
            (
                self.single(left.0, &left.1),
                self.single(right.0, &right.1),
                Place::Single,
            )
        } else {
            order_keys(&mut left_keys, &mut right_keys, &left.1, &right.1);
            let l = self.hashed(left.0, &left.1, &left_keys);
            let r = self.hashed(right.0, &right.1, &right_keys);
            (l, r, join_place(kind, &left_keys, &right_keys, width))
        };
        let op = StreamOp::Join {
            kind,
            left_keys,
            right_keys,
            null_equals_null,
            filter,
        };
        Ok((self.node(op, vec![left, right], facts), place))
    }

    fn union(&mut self, inputs: Vec<(StreamNode, Place)>, facts: &RelFacts) -> (StreamNode, Place) {
        if inputs.iter().all(|(_, p)| *p == Place::Single) {
            let nodes = inputs.into_iter().map(|(n, _)| n).collect();
            return (self.node(StreamOp::Union, nodes, facts), Place::Single);
        }
        let whole_row: Vec<usize> = (0..facts.schema.fields().len()).collect();
        let mut shared: Option<Vec<Vec<usize>>> = None;
        let mut nodes = Vec::with_capacity(inputs.len());
        for (node, place) in inputs {
            let (node, lists) = match place {
                Place::Single => (
                    self.exchange(node, ExchangeKind::Hash(whole_row.clone())),
                    vec![whole_row.clone()],
                ),
                Place::Hash(lists) => (node, lists),
                Place::Spread => (node, Vec::new()),
            };
            shared = Some(match shared {
                None => lists,
                Some(before) => before.into_iter().filter(|l| lists.contains(l)).collect(),
            });
            nodes.push(node);
        }
        let place = match shared {
            Some(lists) if !lists.is_empty() => Place::Hash(lists),
            _ => Place::Spread,
        };
        (self.node(StreamOp::Union, nodes, facts), place)
    }
}

struct RelFacts {
    schema: arrow::datatypes::SchemaRef,
    props: crate::plan::StreamProps,
}

/// Rows up to which one task is enough.
const FEW_ROWS: u64 = 100_000;

fn few(node: &StreamNode) -> bool {
    node.props.row_bound.is_some_and(|b| b <= FEW_ROWS)
}

/// Names columns of a join's condition, by their side where both have one of that name.
fn both_sides<'a>(left: &'a StreamNode, right: &'a StreamNode) -> impl Fn(usize) -> Phys + 'a {
    let width = left.schema.fields().len();
    move |c| {
        let (side, own, other, at) = if c < width {
            ("left", left, right, c)
        } else {
            ("right", right, left, c - width)
        };
        let name = own.schema.field(at).name();
        let shared = other.schema.fields().iter().any(|f| f.name() == name);
        let name = if shared { format!("{side}.{name}") } else { name.clone() };
        Arc::new(Column::new(&name, c))
    }
}

fn one(inputs: Vec<(StreamNode, Place)>) -> (StreamNode, Place) {
    inputs
        .into_iter()
        .next()
        .unwrap_or_else(|| unreachable!("the operator has one input"))
}

fn two(inputs: Vec<(StreamNode, Place)>) -> ((StreamNode, Place), (StreamNode, Place)) {
    let mut inputs = inputs.into_iter();
    match (inputs.next(), inputs.next()) {
        (Some(left), Some(right)) => (left, right),
        _ => unreachable!("a join has two inputs"),
    }
}

/// Where the columns of `list` are after a projection.
fn renumbered(list: &[usize], exprs: &[Phys]) -> Option<Vec<usize>> {
    list.iter()
        .map(|c| exprs.iter().position(|e| as_column(e) == Some(*c)))
        .collect()
}

/// Brings the key pairs into the order by which one side is hashed already.
fn order_keys(left_keys: &mut Vec<usize>, right_keys: &mut Vec<usize>, left: &Place, right: &Place) {
    let by = |place: &Place, keys: &[usize]| -> Option<Vec<usize>> {
        let Place::Hash(lists) = place else { return None };
        lists.iter().find_map(|list| {
            let order: Vec<usize> = list
                .iter()
                .map(|c| keys.iter().position(|k| k == c))
                .collect::<Option<_>>()?;
            (order.len() == keys.len()).then_some(order)
        })
    };
    if let Some(order) = by(left, left_keys).or_else(|| by(right, right_keys)) {
        *left_keys = order.iter().map(|&i| left_keys[i]).collect();
        *right_keys = order.iter().map(|&i| right_keys[i]).collect();
    }
}

fn join_place(kind: JoinKind, left_keys: &[usize], right_keys: &[usize], width: usize) -> Place {
    match kind {
        JoinKind::Inner => Place::Hash(vec![left_keys.to_vec(), right_keys.iter().map(|c| c + width).collect()]),
        JoinKind::Left | JoinKind::Semi | JoinKind::Anti => Place::Hash(vec![left_keys.to_vec()]),
        JoinKind::Full => Place::Spread,
    }
}
