//! A fragment's operators in one task, driven through a step.
//!
//! The tree is kept flat, children before parents. What is to be done next stands on an explicit stack, so the task can stop
//! after any piece and go on later, and a deep tree needs no deep call stack:
//!
//! ```text
//!   Push(op, input, Δ)    op.push, its output on top of the stack, below it Resume if the operator has work left
//!   Resume(op, closing)   op.resume, likewise
//!   Close(op)             op.close, likewise; below all that Closed
//!   Closed(op)            one input less for the parent; at 0: Close(parent)
//! ```
//!
//! With an empty stack the next leaf that has rows is read. A step's memory is that of the batches on one path to the root.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use levee_planner::plan::StreamNode;

use super::leaf::{Inputs, Leaf, LeafPoll, TaskPlace};
use super::log::ColdState;
use super::{StateDelta, StateReader, Step};
use crate::hash::owner;
use crate::operators::cold::{Cold, ColdReader, Evicted};
use crate::operators::{Barrier, Operator, OperatorContext, Output, Progress, StateWriter, StreamError};
use crate::{Delta, Result, RuntimeError};

/// Rows that an operator is given at once at most, at first, and when rows are slow.
const PIECE_ROWS_MAX: usize = 65_536;
const PIECE_ROWS_FIRST: usize = 256;
const PIECE_ROWS_MIN: usize = 16;
/// A piece of work that takes longer makes the next ones smaller.
const PIECE_TIME_MAX: Duration = Duration::from_millis(3);

/// Makes an operator: [`crate::operators::instantiate`], or a test's own.
pub(crate) type OperatorFactory =
    dyn Fn(&StreamNode, &[SchemaRef], &OperatorContext) -> Result<Box<dyn Operator>> + Send + Sync;

/// Takes what the fragment's root emits.
pub(crate) trait Sink {
    /// Takes a delta of the step.
    fn emit(&mut self, delta: Delta) -> Result<()>;

    /// It should take no more until it has been emptied.
    fn is_full(&self) -> bool {
        false
    }
}

/// How far [`Program::advance`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    /// The time slice is over.
    More,
    /// A leaf waits for a sender.
    Blocked,
    /// The sink is full.
    Full,
    /// All operators have closed the step.
    Closed,
}

/// See the module's documentation.
pub(crate) struct Program {
    nodes: Vec<Node>,
    leaves: Vec<LeafNode>,
    work: Vec<Work>,
    /// Rows of a piece of work: fewer when rows are slow, so that the task can stop between pieces.
    piece_rows: usize,
    barrier: Option<Barrier>,
    closed: bool,
    /// Expressions that failed in this step.
    pub(crate) errors: Vec<StreamError>,
    /// Rows read by leaves since the program was made.
    pub(crate) rows_in: u64,
}

struct Node {
    id: u32,
    /// `None` for a leaf.
    operator: Option<Box<dyn Operator>>,
    parent: Option<(usize, usize)>,
    inputs: usize,
    inputs_open: usize,
    schema: SchemaRef,
}

struct LeafNode {
    node: usize,
    leaf: Leaf,
    ended: bool,
}

enum Work {
    Push { node: usize, input: usize, delta: Delta },
    Resume { node: usize },
    Close { node: usize },
    Closed { node: usize },
}

impl Program {
    /// Compiles a fragment for one task.
    pub(crate) fn compile(
        root: &StreamNode,
        place: TaskPlace,
        inputs: &dyn Inputs,
        factory: &OperatorFactory,
    ) -> Result<Self> {
        let mut program = Self {
            nodes: Vec::new(),
            leaves: Vec::new(),
            work: Vec::new(),
            piece_rows: PIECE_ROWS_FIRST,
            barrier: None,
            closed: true,
            errors: Vec::new(),
            rows_in: 0,
        };
        program.add(root, place, inputs, factory)?;
        Ok(program)
    }

    fn add(
        &mut self,
        node: &StreamNode,
        place: TaskPlace,
        inputs: &dyn Inputs,
        factory: &OperatorFactory,
    ) -> Result<usize> {
        let mut children = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            children.push(self.add(input, place, inputs, factory)?);
        }
        let index = self.nodes.len();
        let operator = match Leaf::new(node, place, inputs)? {
            Some(leaf) => {
                self.leaves.push(LeafNode {
                    node: index,
                    leaf,
                    ended: true,
                });
                None
            }
            None => {
                let schemas: Vec<SchemaRef> = node.inputs.iter().map(|i| Arc::clone(&i.schema)).collect();
                let ctx = OperatorContext {
                    task: place.task,
                    n_tasks: place.n_tasks,
                };
                Some(factory(node, &schemas, &ctx)?)
            }
        };
        for (input, child) in children.iter().enumerate() {
            self.nodes[*child].parent = Some((index, input));
        }
        self.nodes.push(Node {
            id: node.id.0,
            operator,
            parent: None,
            inputs: children.len(),
            inputs_open: 0,
            schema: Arc::clone(&node.schema),
        });
        Ok(index)
    }

    /// Whether no leaf reads an exchange.
    pub(crate) fn starts_region(&self) -> bool {
        self.leaves.iter().all(|l| !l.leaf.is_receive())
    }

    /// Gives the operators the state of the task's vnodes as of a checkpoint. Where it can be read by keys, an operator that can do
    /// that is only filled if it has at most `whole_bytes_max`; otherwise it begins with nothing resident.
    pub(crate) fn restore(
        &mut self,
        state: &dyn StateReader,
        cold: Option<&ColdState>,
        place: TaskPlace,
        whole_bytes_max: usize,
    ) -> Result<()> {
        let Some(vnodes) = owned_vnodes(place) else {
            return Ok(());
        };
        for node in &mut self.nodes {
            let Some(operator) = &mut node.operator else { continue };
            let id = node.id;
            let cold = cold.filter(|_| operator.caches()).map(|c| cold_of(c, id));
            if let Some(cold) = &cold {
                let whole = !exceeds(state, id, vnodes.clone(), whole_bytes_max)?;
                operator.attach(cold.clone(), whole);
                if !whole {
                    continue;
                }
            }
            state.scan(id, vnodes.clone(), &mut |table, _vnode, key, value| {
                operator.restore(table, key, value)
            })?;
        }
        Ok(())
    }

    /// The checkpoint of the `n`-th snapshot has completed. Called between steps.
    pub(crate) fn snapshot_completed(&mut self, n: u32, cold: Option<&ColdState>) {
        for node in &mut self.nodes {
            let id = node.id;
            if let Some(operator) = &mut node.operator {
                operator.snapshot_completed(n, cold.map(|c| cold_of(c, id)));
            }
        }
    }

    /// Has the operators evict about `bytes` together, each in proportion to what it holds, in a bounded piece of work.
    pub(crate) fn evict(&mut self, bytes: usize) -> Evicted {
        let all = self.live_bytes().max(1);
        let mut sum = Evicted { bytes: 0, round: true };
        for operator in self.nodes.iter_mut().filter_map(|n| n.operator.as_mut()) {
            let part = (operator.live_bytes() as u128 * bytes as u128 / all as u128) as usize;
            if part > 0 && operator.caches() {
                let evicted = operator.evict(part);
                sum.bytes += evicted.bytes;
                sum.round &= evicted.round;
            }
        }
        sum
    }

    /// Has the operators give back memory that evictions have freed. Called between steps.
    pub(crate) fn compact(&mut self) {
        for operator in self.nodes.iter_mut().filter_map(|n| n.operator.as_mut()) {
            operator.compact();
        }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self, step: &Arc<Step>, incarnation: u32) {
        for node in &mut self.nodes {
            node.inputs_open = node.inputs;
        }
        for leaf in &mut self.leaves {
            leaf.ended = false;
            leaf.leaf.begin(step, incarnation);
        }
        self.barrier = Some(step.barrier.clone());
        self.closed = false;
        self.errors.clear();
    }

    /// Works on the step until it is closed, must wait, or `expired` says that the slice is over.
    pub(crate) fn advance(&mut self, sink: &mut dyn Sink, expired: &mut dyn FnMut() -> bool) -> Result<Advance> {
        while !self.closed {
            if sink.is_full() {
                return Ok(Advance::Full);
            }
            match self.work.pop() {
                Some(work) => {
                    let started = Instant::now();
                    self.run(work, sink)?;
                    self.size_pieces(started.elapsed());
                }
                None => {
                    if !self.read_leaf(sink)? {
                        return Ok(Advance::Blocked);
                    }
                }
            }
            if !self.closed && expired() {
                return Ok(Advance::More);
            }
        }
        Ok(Advance::Closed)
    }

    /// Reads one chunk from, or ends, the first leaf that is not waiting.
    fn read_leaf(&mut self, sink: &mut dyn Sink) -> Result<bool> {
        for i in 0..self.leaves.len() {
            if self.leaves[i].ended {
                continue;
            }
            let node = self.leaves[i].node;
            match self.leaves[i].leaf.poll()? {
                LeafPoll::Ready(delta) => {
                    self.rows_in += delta.num_rows() as u64;
                    match self.nodes[node].parent {
                        Some((node, input)) => self.push(node, input, delta),
                        None => sink.emit(delta)?,
                    }
                    return Ok(true);
                }
                LeafPoll::End => {
                    self.leaves[i].ended = true;
                    self.input_closed(node);
                    return Ok(true);
                }
                LeafPoll::Pending => {}
            }
        }
        Ok(false)
    }

    fn run(&mut self, work: Work, sink: &mut dyn Sink) -> Result<()> {
        let mut out = Output::default();
        let (node, progress) = match work {
            Work::Closed { node } => {
                self.input_closed(node);
                return Ok(());
            }
            Work::Push { node, input, delta } => (node, self.operator(node)?.push(input, delta, &mut out)?),
            Work::Resume { node } => (node, self.operator(node)?.resume(&mut out)?),
            Work::Close { node } => {
                let barrier = self
                    .barrier
                    .clone()
                    .ok_or_else(|| RuntimeError::internal("an operator was closed outside a step"))?;
                self.work.push(Work::Closed { node });
                (node, self.operator(node)?.close(&barrier, &mut out)?)
            }
        };
        if progress == Progress::More {
            self.work.push(Work::Resume { node });
        }
        self.note_errors(out.errors);
        self.deliver(node, out.deltas, sink)
    }

    fn operator(&mut self, node: usize) -> Result<&mut Box<dyn Operator>> {
        self.nodes[node]
            .operator
            .as_mut()
            .ok_or_else(|| RuntimeError::internal("a leaf was driven as an operator"))
    }

    fn deliver(&mut self, node: usize, deltas: Vec<Delta>, sink: &mut dyn Sink) -> Result<()> {
        for delta in &deltas {
            self.check(node, delta)?;
        }
        match self.nodes[node].parent {
            Some((node, input)) => {
                for delta in deltas.into_iter().rev() {
                    self.push(node, input, delta);
                }
                Ok(())
            }
            None => deltas.into_iter().try_for_each(|delta| sink.emit(delta)),
        }
    }

    /// Puts rows on top of the work, in pieces.
    fn push(&mut self, node: usize, input: usize, delta: Delta) {
        let (rows, piece) = (delta.num_rows(), self.piece_rows);
        if rows <= piece {
            self.work.push(Work::Push { node, input, delta });
            return;
        }
        let pieces = (0..rows).step_by(piece).rev();
        self.work.extend(pieces.map(|from| Work::Push {
            node,
            input,
            delta: delta.slice(from, piece.min(rows - from)),
        }));
    }

    /// How a step's rows are cut may follow the clock: what the operators emit does not depend on it (I2).
    fn size_pieces(&mut self, took: Duration) {
        if took > PIECE_TIME_MAX {
            self.piece_rows = (self.piece_rows / 4).max(PIECE_ROWS_MIN);
        } else if took < PIECE_TIME_MAX / 8 {
            self.piece_rows = (self.piece_rows * 2).min(PIECE_ROWS_MAX);
        }
    }

    /// An operator that emits other column types than planned would corrupt everything after it.
    fn check(&self, node: usize, delta: &Delta) -> Result<()> {
        let declared = &self.nodes[node].schema;
        let emitted = delta.batch.schema_ref();
        if Arc::ptr_eq(declared, emitted) {
            return Ok(());
        }
        let types = |s: &SchemaRef| s.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
        let fits = declared.fields().len() == emitted.fields().len()
            && declared
                .fields()
                .iter()
                .zip(emitted.fields())
                .all(|(d, e)| d.data_type() == e.data_type());
        if fits {
            return Ok(());
        }
        Err(RuntimeError::internal(format!(
            "operator {} emits columns {:?} where {:?} are planned",
            self.nodes[node].id,
            types(emitted),
            types(declared)
        )))
    }

    fn input_closed(&mut self, node: usize) {
        match self.nodes[node].parent {
            Some((parent, _)) => {
                self.nodes[parent].inputs_open -= 1;
                if self.nodes[parent].inputs_open == 0 {
                    self.work.push(Work::Close { node: parent });
                }
            }
            None => self.closed = true,
        }
    }

    /// Keeps one entry per expression and message.
    fn note_errors(&mut self, errors: Vec<StreamError>) {
        for error in errors {
            let known = self
                .errors
                .iter_mut()
                .find(|e| e.expression == error.expression && e.message == error.message);
            match known {
                Some(known) => known.rows += error.rows,
                None => self.errors.push(error),
            }
        }
    }

    /// State changed since the last call.
    pub(crate) fn snapshot(&mut self) -> Result<StateDelta> {
        let mut state = StateDelta::default();
        for node in &mut self.nodes {
            let id = node.id;
            if let Some(operator) = &mut node.operator {
                let mut put = |table, vnode, key: &[u8], value: Option<&[u8]>| state.put(id, table, vnode, key, value);
                operator.snapshot(false, &mut StateWriter { put: &mut put })?;
            }
        }
        Ok(state)
    }

    /// The operators' earliest timer.
    pub(crate) fn next_timer_us(&self) -> Option<i64> {
        let operators = self.nodes.iter().filter_map(|n| n.operator.as_ref());
        operators.filter_map(|o| o.next_timer_us()).min()
    }

    fn sum(&self, f: impl Fn(&dyn Operator) -> usize) -> usize {
        let operators = self.nodes.iter().filter_map(|n| n.operator.as_ref());
        operators.map(|o| f(o.as_ref())).sum()
    }

    /// State in use.
    pub(crate) fn live_bytes(&self) -> usize {
        self.sum(|o| o.live_bytes())
    }

    /// State that cannot be evicted.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.sum(|o| o.pinned_bytes().min(o.live_bytes()))
    }
}

fn cold_of((reader, region): &ColdState, operator: u32) -> Cold {
    let reader = Arc::clone(reader) as Arc<dyn ColdReader>;
    Cold::new(reader, *region, operator)
}

/// Whether an operator has more state than `bytes_max`; reads no more than that.
fn exceeds(
    state: &dyn StateReader,
    operator: u32,
    vnodes: std::ops::RangeInclusive<u8>,
    bytes_max: usize,
) -> Result<bool> {
    let (mut bytes, mut enough) = (0, false);
    let scanned = state.scan(operator, vnodes, &mut |_, _, key, value| {
        bytes += key.len() + value.len();
        enough = bytes > bytes_max;
        if enough {
            return Err(RuntimeError::internal("enough has been read"));
        }
        Ok(())
    });
    if enough { Ok(true) } else { scanned.map(|()| false) }
}

/// The vnodes of a task; `None` if there are more tasks than vnodes and it has none.
fn owned_vnodes(place: TaskPlace) -> Option<std::ops::RangeInclusive<u8>> {
    let mut owned = (0..=u8::MAX).filter(|&v| owner(v, place.n_tasks) == place.task);
    let first = owned.next()?;
    Some(first..=owned.next_back().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_own_all_vnodes_once() {
        for n_tasks in [1, 2, 3, 7, 256] {
            let mut next = 0;
            for task in 0..n_tasks {
                let vnodes = owned_vnodes(TaskPlace {
                    fragment: 0,
                    task,
                    n_tasks,
                })
                .unwrap();
                assert_eq!(usize::from(*vnodes.start()), next);
                next = usize::from(*vnodes.end()) + 1;
            }
            assert_eq!(next, 256);
        }
    }
}
