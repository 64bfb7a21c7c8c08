//! The stream plan: what the runtime is asked to maintain.
//!
//! A [`StreamPlan`] is a tree of [`StreamNode`]s. It is owned data: it can be printed, serialised into the catalog and read back
//! by another build. Operators refer to columns of their inputs by index; scalar expressions stand only in [`StreamOp::Map`]
//! and in join conditions, so every other operator sees plain columns.
//!
//! The fragmenter (`stream::fragment`) cuts the tree at exchanges:
//!
//! ```text
//!   Aggregate                      fragment 1: Aggregate ─ Receive(edge 0)
//!     Exchange hash(0)      →                      ▲ hash(0)
//!       Map                        fragment 0: Map ─ Scan
//!         Scan
//! ```

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::sql::functions::regression::Regression;
use crate::sql::functions::spread::Spread;

/// Version of the serialised form; readers accept this and the one before.
pub const PLAN_VERSION: u32 = 2;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
id! {
    /// A catalog object: table, source, view, materialized view or sink. A region has its object's id.
    ObjectId
}
id! {
    /// An operator of one plan; names its state tables, so it never changes while the plan lives.
    OperatorId
}
id! {
    /// A fragment of one plan.
    FragmentId
}
id! {
    /// An exchange edge between two fragments of one plan.
    EdgeId
}

/// A scalar expression over the columns of an operator's input, compiled once per task by the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanExpr {
    /// DataFusion `PhysicalExprNode`, protobuf-encoded; [`crate::stream::expr::decode`] reads it.
    pub proto: Vec<u8>,
    /// The expression as SQL text, for EXPLAIN and `stream_errors`.
    pub display: String,
}

/// The plan of one materialized view, table or sink.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamPlan {
    /// [`PLAN_VERSION`] at the time of writing.
    pub version: u32,
    /// Root operator; its output is what the region materializes.
    pub root: StreamNode,
}

/// One operator with its inputs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamNode {
    /// Stable id, unique in the plan.
    pub id: OperatorId,
    /// What it does.
    pub op: StreamOp,
    /// Inputs, left to right.
    pub inputs: Vec<StreamNode>,
    /// Output columns. Names are the query's, duplicates allowed.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// Derived facts about the output stream.
    pub props: StreamProps,
}

/// Facts that the planner derives for a stream; operators choose cheaper state from them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamProps {
    /// No row is ever retracted.
    pub append_only: bool,
    /// Sets of columns of which each is unique among the rows at any epoch (an empty set: at most one row).
    pub keys: Vec<Vec<usize>>,
    /// Upper bound on the rows at any epoch, if derived.
    pub row_bound: Option<u64>,
}

/// The operators.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum StreamOp {
    /// Changes of a relation (table or materialized view), columns in catalog order before projection.
    Scan {
        /// Upstream object.
        relation: ObjectId,
        /// Name for EXPLAIN.
        name: String,
        /// Columns of the relation, by index.
        projection: Vec<usize>,
    },
    /// Rows read from a source's splits; append-only.
    Source {
        /// The source.
        source: ObjectId,
        /// Name for EXPLAIN.
        name: String,
        /// Columns of the source, by index.
        projection: Vec<usize>,
    },
    /// Constant rows, present from the first step on.
    Values {
        /// One Arrow IPC stream holding the rows.
        ipc: Vec<u8>,
    },
    /// Filter, then projection. `exprs: None` passes the input's columns.
    Map {
        /// Kept if true (false and NULL are dropped).
        predicate: Option<PlanExpr>,
        /// Output columns.
        exprs: Option<Vec<PlanExpr>>,
    },
    /// Several maps of one input: each input row once for each branch whose predicate is true.
    Expand {
        /// Branches.
        branches: Vec<ExpandBranch>,
    },
    /// Rows between two bounds of time: visible at an epoch if its timestamp is at or after every bound of `from` and before every bound of
    /// `until`. A row with a NULL bound is never visible. Output are the leading columns of the input, as many as the node has.
    TemporalFilter {
        /// Beginnings.
        from: Vec<TimeBound>,
        /// Ends.
        until: Vec<TimeBound>,
    },
    /// Groups by columns and aggregates; output is the group columns, then the aggregates. No aggregates: DISTINCT.
    /// With no group columns, one row exists even over empty input.
    Aggregate {
        /// Input columns that form the group.
        group_by: Vec<usize>,
        /// Aggregates.
        aggs: Vec<AggCall>,
    },
    /// Equi-join; output is left then right columns (semi and anti: left only). No keys: every pair matches.
    Join {
        /// Kind.
        kind: JoinKind,
        /// Key columns of the left input.
        left_keys: Vec<usize>,
        /// Key columns of the right input, same types.
        right_keys: Vec<usize>,
        /// NULL keys match each other (INTERSECT and some decorrelated plans).
        null_equals_null: bool,
        /// Further condition over left then right columns; part of the ON clause.
        filter: Option<PlanExpr>,
    },
    /// The first rows of each partition in a total order (ties broken by the whole row).
    TopN {
        /// Partition columns; empty: one partition.
        partition_by: Vec<usize>,
        /// Order.
        order_by: Vec<SortKey>,
        /// Rows kept after the offset; `None`: all.
        limit: Option<u64>,
        /// Rows skipped.
        offset: u64,
        /// Appends a `bigint` column with the row's number in its partition, from 1.
        row_number: bool,
    },
    /// Bag union of inputs with equal column types.
    Union,
    /// The newest record of each key is its row. Input 0: rows, each followed by whether it deletes its key and by its place in the
    /// source's order (`boolean`, `bigint`, `bigint`). Input 1, if there is one: a table's own writes, as changes of rows, which are
    /// newer than the step's records.
    Upsert {
        /// Key columns, in key order.
        key: Vec<usize>,
    },
    /// Redistribution of the input; becomes an edge of the fragment graph.
    Exchange {
        /// How rows find their task.
        kind: ExchangeKind,
    },
    /// Leaf of a fragment that receives an edge; only in fragment graphs.
    Receive {
        /// The edge.
        edge: EdgeId,
    },
    /// Window functions of one window: the input's columns, then one for each call. Rows that the order leaves equal are ordered by the
    /// whole row.
    Window {
        /// Partition columns; empty: one partition.
        partition_by: Vec<usize>,
        /// Order.
        order_by: Vec<SortKey>,
        /// Rows that the order leaves equal stand from the greatest row to the least: the window is one that was turned around.
        reversed: bool,
        /// Calls.
        calls: Vec<WindowCall>,
    },
    /// Each row once for each element of its lists, side by side; where a list is shorter stands NULL.
    Unnest {
        /// Columns that are lists in the input and elements in the output.
        columns: Vec<usize>,
        /// A row whose lists are all empty or NULL stays, with NULLs.
        keep_empty: bool,
    },
}

/// One window function call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowCall {
    /// Function.
    pub func: WindowFunc,
    /// The rows that it sees; functions that have no frame ignore it.
    pub frame: Frame,
}

/// Window functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowFunc {
    /// `row_number()`.
    RowNumber,
    /// `rank()`.
    Rank,
    /// `dense_rank()`.
    DenseRank,
    /// `percent_rank()`.
    PercentRank,
    /// `cume_dist()`.
    CumeDist,
    /// `ntile(n)`, `n` at least 1.
    Ntile(u64),
    /// `lag(value, offset, default)`; `lead` has the negative offset.
    Lag {
        /// Column.
        value: usize,
        /// Rows back.
        offset: i64,
        /// Column that stands for a row beyond the partition; `None`: NULL.
        default: Option<usize>,
    },
    /// `nth_value(value, n)`, `first_value` and `last_value`.
    Nth {
        /// Column.
        value: usize,
        /// From 1.
        n: u64,
        /// Counted from the frame's end.
        from_last: bool,
    },
    /// An aggregate over the frame.
    Aggregate(AggCall),
}

/// The rows that a window function sees from one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// What offsets count.
    pub unit: FrameUnit,
    /// First row.
    pub start: Bound,
    /// Last row.
    pub end: Bound,
}

impl Frame {
    /// The whole partition.
    pub const WHOLE: Self = Self {
        unit: FrameUnit::Rows,
        start: Bound::Unbounded,
        end: Bound::Unbounded,
    };

    /// Every row of the partition is in the frame of every row.
    pub fn is_whole(&self) -> bool {
        self.start == Bound::Unbounded && self.end == Bound::Unbounded
    }
}

/// What the offsets of a frame count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameUnit {
    /// Rows.
    Rows,
    /// Groups of rows that the order leaves equal.
    Groups,
    /// Values of the only sort column: at least one bound is a [`Bound::Distance`].
    Range,
}

/// Where a frame begins or ends, seen from its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    /// As a beginning the partition's first row, as an end its last.
    Unbounded,
    /// So many rows or groups further on, or back if negative. 0: the row, or its group; the latter in a range too.
    Offset(i64),
    /// Values so far away.
    Distance {
        /// Towards the front.
        preceding: bool,
        /// How far.
        by: Distance,
    },
}

/// A distance between values; never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distance {
    /// Of integers, or of decimals in units of the column's last digit.
    Exact(i128),
    /// Of floats: the bits of a `double precision`.
    Float(u64),
    /// Of timestamps.
    Interval {
        /// Months.
        months: i32,
        /// Days.
        days: i32,
        /// Microseconds.
        us: i64,
    },
}

/// One branch of [`StreamOp::Expand`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpandBranch {
    /// Kept if true (false and NULL are dropped).
    pub predicate: Option<PlanExpr>,
    /// Output columns.
    pub exprs: Vec<PlanExpr>,
}

/// A moment that a row names: a timestamp column, shifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeBound {
    /// Column of type timestamp in microseconds.
    pub column: usize,
    /// Added to it, saturating, microseconds.
    pub shift_us: i64,
}

/// One aggregate call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggCall {
    /// Function.
    pub func: AggFunc,
    /// Argument column; `None` only for `count(*)`.
    pub arg: Option<usize>,
    /// Boolean column that must be true for a row to count.
    pub filter: Option<usize>,
    /// Only distinct argument values count.
    pub distinct: bool,
    /// ORDER BY inside the call, the key of `min_by`, the direction of a percentile; kept only where it matters.
    pub order_by: Vec<SortKey>,
    /// The constant argument: `string_agg`'s delimiter, a percentile's fraction or array of fractions, as text.
    pub constant: String,
}

impl AggCall {
    /// A call without DISTINCT, FILTER and ORDER BY.
    pub fn new(func: AggFunc, arg: Option<usize>) -> Self {
        Self {
            func,
            arg,
            filter: None,
            distinct: false,
            order_by: Vec::new(),
            constant: String::new(),
        }
    }
}

/// Aggregate functions. Result types are the operator's output schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AggFunc {
    /// `count(*)` or `count(x)`.
    Count,
    /// `sum(x)`: int2/int4 → int8, int8 → numeric(38,0), decimal → decimal, float → float.
    Sum,
    /// `avg(x)`: integers and decimals → decimal, floats → float8.
    Avg,
    /// `min(x)`.
    Min,
    /// `max(x)`.
    Max,
    /// `bool_and(x)`.
    BoolAnd,
    /// `bool_or(x)`.
    BoolOr,
    /// `string_agg(x, delimiter)`.
    StringAgg,
    /// `array_agg(x)`, NULLs too.
    ArrayAgg,
    /// `variance(x)`, `stddev(x)` and their kin: integers and decimals → numeric, floats → float8.
    Spread(Spread),
    /// `bit_and(x)`.
    BitAnd,
    /// `bit_or(x)`.
    BitOr,
    /// `bit_xor(x)`.
    BitXor,
    /// `corr`, `covar_*`, `regr_*` of a pair.
    Regression(Regression),
    /// `percentile_cont`.
    PercentileCont,
    /// `percentile_disc`.
    PercentileDisc,
    /// `mode()`.
    Mode,
    /// The value with the first key in order: `min_by`, `max_by`.
    ByKey,
}

impl AggFunc {
    /// Name, as plans and messages show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::BoolAnd => "bool_and",
            Self::BoolOr => "bool_or",
            Self::StringAgg => "string_agg",
            Self::ArrayAgg => "array_agg",
            Self::Spread(kind) => kind.name(),
            Self::BitAnd => "bit_and",
            Self::BitOr => "bit_or",
            Self::BitXor => "bit_xor",
            Self::Regression(kind) => kind.name(),
            Self::PercentileCont => "percentile_cont",
            Self::PercentileDisc => "percentile_disc",
            Self::Mode => "mode",
            Self::ByKey => "first_by",
        }
    }
}

/// Join kinds. `Right` is planned as `Left` with swapped inputs and a Map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinKind {
    /// Matching pairs.
    Inner,
    /// And left rows without a match, with NULLs.
    Left,
    /// And right rows without a match too.
    Full,
    /// Left rows that have a match.
    Semi,
    /// Left rows that have none.
    Anti,
}

/// One ORDER BY term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortKey {
    /// Column.
    pub column: usize,
    /// Descending.
    pub desc: bool,
    /// NULLs come first.
    pub nulls_first: bool,
}

/// How an exchange routes rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeKind {
    /// By vnode of the columns' hash.
    Hash(Vec<usize>),
    /// Every task gets every row.
    Broadcast,
    /// All rows to the one task of the receiving fragment.
    Single,
    /// Task *i* to task *i*.
    Forward,
}

/// A stream plan cut at its exchanges. Fragments are in topological order, the root last.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FragmentGraph {
    /// Fragments, inputs before consumers.
    pub fragments: Vec<Fragment>,
    /// Edges.
    pub edges: Vec<Edge>,
}

/// Operators fused between exchanges.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fragment {
    /// Id; also its index in the graph.
    pub id: FragmentId,
    /// Root operator; leaves are Scan, Source, Values or Receive.
    pub root: StreamNode,
    /// Runs as exactly one task; otherwise one task per unit of the region's parallelism.
    pub single: bool,
}

/// An exchange between fragments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edge {
    /// Id; also its index in the graph.
    pub id: EdgeId,
    /// Sender.
    pub from: FragmentId,
    /// Receiver.
    pub to: FragmentId,
    /// Routing.
    pub kind: ExchangeKind,
    /// Columns.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
}

impl StreamNode {
    /// Calls `f` on this node and all below it, parents first.
    pub fn visit<'a>(&'a self, f: &mut impl FnMut(&'a StreamNode)) {
        f(self);
        for input in &self.inputs {
            input.visit(f);
        }
    }
}

impl StreamPlan {
    /// Relations and sources that the plan reads, each once, in order of first use.
    pub fn inputs(&self) -> Vec<ObjectId> {
        let mut found = Vec::new();
        self.root.visit(&mut |node| {
            let id = match &node.op {
                StreamOp::Scan { relation, .. } => *relation,
                StreamOp::Source { source, .. } => *source,
                _ => return,
            };
            if !found.contains(&id) {
                found.push(id);
            }
        });
        found
    }

    /// The output changes as time passes.
    pub fn is_timed(&self) -> bool {
        let mut timed = false;
        self.root
            .visit(&mut |node| timed |= matches!(node.op, StreamOp::TemporalFilter { .. }));
        timed
    }

    /// Bytes for the catalog.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising owned data into memory has no failing case.
        postcard::to_stdvec(self).expect("stream plans serialise")
    }

    /// Reads [`StreamPlan::encode`]'s bytes.
    ///
    /// # Errors
    /// Damaged bytes or an unknown version.
    pub fn decode(bytes: &[u8]) -> crate::Result<Self> {
        let plan: Self = postcard::from_bytes(bytes)
            .map_err(|e| crate::PlanError::internal(format!("stored stream plan cannot be read: {e}")))?;
        if plan.version != PLAN_VERSION {
            return Err(crate::PlanError::internal(format!(
                "stored stream plan has version {}, this build reads {PLAN_VERSION}",
                plan.version
            )));
        }
        Ok(plan)
    }
}

/// Arrow schemas inside serde data, as IPC messages.
pub mod schema_serde {
    use super::*;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    /// Schema → bytes.
    pub fn to_bytes(schema: &SchemaRef) -> Result<Vec<u8>, arrow::error::ArrowError> {
        let mut out = Vec::new();
        arrow::ipc::writer::StreamWriter::try_new(&mut out, schema)?.finish()?;
        Ok(out)
    }

    /// Bytes → schema.
    pub fn from_bytes(bytes: &[u8]) -> Result<SchemaRef, arrow::error::ArrowError> {
        Ok(arrow::ipc::reader::StreamReader::try_new(bytes, None)?.schema())
    }

    /// For `serde(with)`.
    pub fn serialize<S: Serializer>(schema: &SchemaRef, s: S) -> Result<S::Ok, S::Error> {
        to_bytes(schema).map_err(serde::ser::Error::custom)?.serialize(s)
    }

    /// For `serde(with)`.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SchemaRef, D::Error> {
        let bytes = Vec::<u8>::deserialize(d)?;
        from_bytes(&bytes)
            .map_err(D::Error::custom)
            .map(|s| Arc::new(s.as_ref().clone()))
    }
}
