//! Operators: relational steps that absorb deltas and emit the net change.
//!
//! ```text
//!            push(0, Δ) push(1, Δ) push(0, Δ) … close(barrier)
//!   Operator ────┬──────────┬──────────┬────────────┬───────▶ out
//!                absorb     absorb     absorb       emit net change once
//! ```
//!
//! An operator is synchronous, reads no clock, no load, no random number. What it emits for a step, as a Z-set, depends only on its
//! state before the step and on the Z-sets of its inputs for the step: not on how inputs were cut, ordered or interleaved,
//! nor on whether its state was just restored. One driver ([`crate::dataflow`]) owns everything else: receiving, alignment,
//! time slices, snapshots, restore, metrics.

use arrow::datatypes::SchemaRef;
use levee_planner::plan::{StreamNode, StreamOp};

use self::cold::{Cold, Evicted};
use crate::{Delta, Result, RuntimeError};

pub mod aggregate;
mod arena;
pub mod checker;
mod codec;
pub mod cold;
pub mod columns;
pub mod eval;
pub mod expand;
pub mod fault;
pub mod join;
mod keys;
pub mod map;
mod ordered;
mod partitions;
pub mod pass;
mod segments;
pub mod temporal;
pub mod topn;
pub mod unnest;
pub mod upsert;
pub mod window;

#[cfg(test)]
pub(crate) mod tests;

/// What ends a step, as an operator may see it.
#[derive(Debug, Clone)]
pub struct Barrier {
    /// Last epoch of the step.
    pub epoch: u64,
    /// The epoch's timestamp, microseconds since 1970 UTC.
    pub timestamp_us: i64,
    /// This is the first step of a new incarnation of the region's state: leaf `Values` emit here, global aggregates emit their row.
    pub first: bool,
}

/// Whether an operator has work left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing left of the last `push` or `close`.
    Done,
    /// Call [`Operator::resume`] again (after forwarding what was emitted).
    More,
}

/// An operator instance in one task.
pub trait Operator: Send {
    /// Absorbs part of the step's delta on input `input`. Emits only what is sound to emit before the step closes
    /// (stateless operators pass everything on at once). May leave work for [`Operator::resume`].
    ///
    /// # Errors
    /// A broken invariant; user-level evaluation errors become NULL and go to `out.error`.
    fn push(&mut self, input: usize, delta: Delta, out: &mut Output) -> Result<Progress>;

    /// All inputs have closed the step: emit the net change. May leave work for [`Operator::resume`].
    ///
    /// # Errors
    /// As `push`.
    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress>;

    /// Goes on with a bounded piece of work (about 8 k rows) after `push` or `close` answered `More`.
    ///
    /// # Errors
    /// As `push`.
    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        let _ = out;
        Ok(Progress::Done)
    }

    /// Encodes every state entry changed since the last snapshot (or all, if `full`). Called between steps.
    ///
    /// # Errors
    /// Encoding fails.
    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        let _ = (full, out);
        Ok(())
    }

    /// Takes one entry that `snapshot` wrote, in key order within a table. Called only before the first `push`.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        let _ = (table, key, value);
        Err(crate::RuntimeError::internal("restore called on a stateless operator"))
    }

    /// The operator's output may change by itself at this moment (microseconds since 1970 UTC): a step at or after it is needed even if no
    /// input changes. Asked between steps.
    fn next_timer_us(&self) -> Option<i64> {
        None
    }

    /// Whether the operator can read from and evict to the cold tier. One that does not is always restored whole.
    fn caches(&self) -> bool {
        false
    }

    /// The checkpoint that the operator starts from can be read through `cold`. With `complete` all of it has been given to
    /// [`Self::restore`], or it is empty; otherwise none of it. Called before the first `push`.
    fn attach(&mut self, cold: Cold, complete: bool) {
        let _ = (cold, complete);
    }

    /// The checkpoint of the `n`-th snapshot of this instance (from 1) has completed; `cold` reads it, if it can be read by keys. Called
    /// between steps.
    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        let _ = (n, cold);
    }

    /// Evicts about `bytes` of entries that `cold` holds as well, the coldest first, in a bounded piece of work. Called whenever no
    /// other call is under way, also within a step.
    fn evict(&mut self, bytes: usize) -> Evicted {
        let _ = bytes;
        Evicted { bytes: 0, round: true }
    }

    /// Gives the memory of what has been evicted or removed back to the process, where that is much. Called between steps.
    fn compact(&mut self) {}

    /// Bytes of state held.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Those of them that are in use: the rest will be before more is taken.
    fn live_bytes(&self) -> usize {
        self.state_bytes()
    }

    /// Those that no eviction can free, because no completed checkpoint holds the entries.
    fn pinned_bytes(&self) -> usize {
        0
    }
}

/// Collects what an operator emits, and the expressions that failed.
#[derive(Debug, Default)]
pub struct Output {
    /// Emitted deltas in order; empty ones are not kept.
    pub deltas: Vec<Delta>,
    /// Failed expressions of this call.
    pub errors: Vec<StreamError>,
}

impl Output {
    /// Emits a delta.
    pub fn emit(&mut self, delta: Delta) {
        if delta.num_rows() > 0 {
            self.deltas.push(delta);
        }
    }
}

/// An expression that failed on some rows of a view; its value there is NULL.
#[derive(Debug, Clone)]
pub struct StreamError {
    /// The expression as SQL.
    pub expression: String,
    /// The error's text.
    pub message: String,
    /// Number of rows.
    pub rows: u64,
}

/// Receives an operator's changed state entries.
pub struct StateWriter<'a> {
    /// Called with (table, vnode, key, value); `None` deletes.
    #[allow(clippy::type_complexity)]
    pub put: &'a mut dyn FnMut(u8, u8, &[u8], Option<&[u8]>),
}

/// What a new operator instance is told.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// Index of the task in its fragment.
    pub task: usize,
    /// Number of tasks of the fragment.
    pub n_tasks: usize,
}

/// Makes the instance of a plan node: anything but the leaves and exchanges that the driver handles. In debug builds a
/// [`checker::Checker`] stands around it.
///
/// # Errors
/// The node's expressions cannot be compiled, or a type is not supported.
pub fn instantiate(node: &StreamNode, input_schemas: &[SchemaRef], ctx: &OperatorContext) -> Result<Box<dyn Operator>> {
    let operator = plain(node, input_schemas, ctx)?;
    Ok(if cfg!(debug_assertions) {
        Box::new(checker::Checker::new(operator, node))
    } else {
        operator
    })
}

fn plain(node: &StreamNode, inputs: &[SchemaRef], ctx: &OperatorContext) -> Result<Box<dyn Operator>> {
    let input = |i: usize| {
        inputs
            .get(i)
            .ok_or_else(|| RuntimeError::internal(format!("operator {} lacks input {i}", node.id)))
    };
    let append_only = |i: usize| node.inputs.get(i).is_some_and(|n| n.props.append_only);
    Ok(match &node.op {
        StreamOp::Map { predicate, exprs } => Box::new(map::Map::new(
            predicate.as_ref(),
            exprs.as_deref(),
            input(0)?,
            &node.schema,
        )?),
        StreamOp::Expand { branches } => Box::new(expand::Expand::new(branches, input(0)?, &node.schema)?),
        StreamOp::Unnest { columns, keep_empty } => Box::new(unnest::Unnest::new(columns, *keep_empty, &node.schema)),
        StreamOp::TemporalFilter { from, until } => {
            Box::new(temporal::TemporalFilter::new(from, until, input(0)?, &node.schema)?)
        }
        StreamOp::Aggregate { group_by, aggs } => Box::new(aggregate::Aggregate::new(
            group_by,
            aggs,
            append_only(0),
            input(0)?,
            &node.schema,
            ctx,
        )?),
        StreamOp::Join {
            kind,
            left_keys,
            right_keys,
            null_equals_null,
            filter,
        } => Box::new(join::Join::new(
            &join::JoinPlan {
                kind: *kind,
                left_keys: left_keys.clone(),
                right_keys: right_keys.clone(),
                null_equals_null: *null_equals_null,
            },
            filter.as_ref(),
            input(0)?,
            input(1)?,
            &node.schema,
        )?),
        StreamOp::TopN {
            partition_by,
            order_by,
            limit,
            offset,
            row_number,
        } => Box::new(topn::TopN::new(
            &topn::TopNPlan {
                partition_by: partition_by.clone(),
                order_by: order_by.clone(),
                limit: *limit,
                offset: *offset,
                row_number: *row_number,
                append_only: append_only(0),
            },
            input(0)?,
            &node.schema,
        )?),
        StreamOp::Window {
            partition_by,
            order_by,
            reversed,
            calls,
        } => Box::new(window::Window::new(
            &window::WindowPlan {
                partition_by: partition_by.clone(),
                order_by: order_by.clone(),
                reversed: *reversed,
                calls: calls.clone(),
            },
            input(0)?,
            &node.schema,
        )?),
        StreamOp::Upsert { key } => Box::new(upsert::Upsert::new(key, &node.schema)?),
        StreamOp::Union => Box::new(pass::Union::new(&node.schema)),
        StreamOp::Values { ipc } => Box::new(pass::Values::new(ipc, &node.schema, ctx.task)?),
        StreamOp::Scan { .. } | StreamOp::Source { .. } | StreamOp::Exchange { .. } | StreamOp::Receive { .. } => {
            return Err(RuntimeError::internal(format!("operator {} is the driver's", node.id)));
        }
    })
}
