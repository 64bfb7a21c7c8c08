//! The lowering's working form: the stream operators with compiled expressions, before exchanges and ids.
//!
//! Nodes are made by constructors only, so each carries its derived facts from birth, and two neighbouring maps are one:
//!
//! ```text
//!   map(filter p, map(columns [2, 0], scan t))   →   Map p' ─ Scan t [2, 0]
//! ```
//!
//! Only plain columns and literals are substituted when maps merge. A computed column stays where the query put it, because a failing
//! expression is NULL by itself, not together with what surrounds it.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, IsNotNullExpr, Literal};
use datafusion::physical_expr::utils::collect_columns;

use super::props;
use crate::catalog::SourceDef;
use crate::plan::{AggCall, Frame, JoinKind, ObjectId, SortKey, StreamProps, TimeBound, WindowCall, WindowFunc};
use crate::{PlanError, Result};

/// A compiled expression.
pub(super) type Phys = Arc<dyn PhysicalExpr>;

/// A relation under construction.
#[derive(Debug, Clone)]
pub(super) struct Rel {
    pub op: RelOp,
    pub inputs: Vec<Rel>,
    pub schema: SchemaRef,
    pub props: StreamProps,
}

/// What a [`Rel`] does; the fields mean what they mean in [`crate::plan::StreamOp`].
#[derive(Debug, Clone)]
pub(super) enum RelOp {
    Scan {
        relation: ObjectId,
        name: String,
        projection: Vec<usize>,
    },
    Source {
        source: ObjectId,
        name: String,
        projection: Vec<usize>,
    },
    Values {
        ipc: Vec<u8>,
    },
    Map {
        predicate: Option<Phys>,
        exprs: Option<Vec<Phys>>,
    },
    Aggregate {
        group_by: Vec<usize>,
        aggs: Vec<AggCall>,
    },
    Join(JoinOp),
    TopN {
        partition_by: Vec<usize>,
        order_by: Vec<SortKey>,
        limit: Option<u64>,
        offset: u64,
        row_number: bool,
    },
    Window {
        partition_by: Vec<usize>,
        order_by: Vec<SortKey>,
        reversed: bool,
        calls: Vec<WindowCall>,
    },
    Expand {
        branches: Vec<Branch>,
    },
    TemporalFilter {
        from: Vec<TimeBound>,
        until: Vec<TimeBound>,
    },
    Union,
    Upsert {
        key: Vec<usize>,
    },
    Unnest {
        columns: Vec<usize>,
        keep_empty: bool,
    },
}

/// One of several maps over one input.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub predicate: Option<Phys>,
    pub exprs: Vec<Phys>,
}

/// The parameters of a join.
#[derive(Debug, Clone)]
pub(super) struct JoinOp {
    pub kind: JoinKind,
    pub left_keys: Vec<usize>,
    pub right_keys: Vec<usize>,
    pub null_equals_null: bool,
    pub filter: Option<Phys>,
}

impl Rel {
    /// A leaf with facts that its maker knows.
    pub fn leaf(op: RelOp, schema: SchemaRef, props: StreamProps) -> Self {
        Self {
            op,
            inputs: Vec::new(),
            schema,
            props,
        }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.schema.fields().len()
    }

    /// A reference to column `i`.
    pub fn column(&self, i: usize) -> Phys {
        column(&self.schema, i)
    }

    /// References to all columns.
    pub fn columns(&self) -> Vec<Phys> {
        (0..self.width()).map(|i| self.column(i)).collect()
    }

    /// Keeps the rows for which `predicate` is true.
    pub fn filter(self, predicate: Phys) -> Self {
        if let RelOp::Map {
            predicate: inner,
            exprs,
        } = &self.op
        {
            let moved = match exprs {
                None => Some(Arc::clone(&predicate)),
                Some(exprs) => substitute(&predicate, exprs),
            };
            if let Some(moved) = moved {
                let both = and(inner.clone(), moved);
                let (exprs, schema) = (exprs.clone(), Arc::clone(&self.schema));
                let Some(input) = self.inputs.into_iter().next() else {
                    unreachable!("a map has one input")
                };
                return Self::new_map(input, Some(both), exprs, schema);
            }
        }
        let schema = Arc::clone(&self.schema);
        Self::new_map(self, Some(predicate), None, schema)
    }

    /// Computes `exprs`, one for each field of `schema`.
    pub fn project(self, exprs: Vec<Phys>, schema: SchemaRef) -> Self {
        let RelOp::Map {
            predicate,
            exprs: inner,
        } = &self.op
        else {
            return Self::new_map(self, None, Some(exprs), schema);
        };
        let moved = match inner {
            None => Some(exprs.clone()),
            Some(inner) => exprs.iter().map(|e| moved_below(e, inner)).collect::<Option<Vec<_>>>(),
        };
        let (Some(moved), predicate) = (moved, predicate.clone()) else {
            return Self::new_map(self, None, Some(exprs), schema);
        };
        let Some(input) = self.inputs.into_iter().next() else {
            unreachable!("a map has one input")
        };
        match predicate {
            Some(predicate) => Self::new_map(input, Some(predicate), Some(moved), schema),
            None => input.project(moved, schema),
        }
    }

    /// Keeps the columns `keep`, in that order, under their own names.
    pub fn select(self, keep: &[usize]) -> Self {
        if keep.iter().copied().eq(0..self.width()) {
            return self;
        }
        let fields: Vec<FieldRef> = keep.iter().map(|&i| Arc::clone(&self.schema.fields()[i])).collect();
        let exprs = keep.iter().map(|&i| self.column(i)).collect();
        self.project(exprs, Arc::new(Schema::new(fields)))
    }

    fn new_map(input: Self, predicate: Option<Phys>, exprs: Option<Vec<Phys>>, schema: SchemaRef) -> Self {
        let schema = match &exprs {
            Some(exprs) => settle_nullability(exprs, &input.schema, &schema),
            None => schema,
        };
        let input = match &exprs {
            Some(exprs) => without_unread_number(input, predicate.as_ref(), exprs),
            None => input,
        };
        let input = match (&input.op, &predicate, &exprs) {
            (RelOp::Scan { .. } | RelOp::Source { .. }, None, Some(exprs)) => {
                if exprs.is_empty() {
                    let one = [narrowest(&input.schema)];
                    let schema = Arc::new(Schema::new(one.map(|c| Arc::clone(&input.schema.fields()[c])).to_vec()));
                    input.narrow_leaf(&one, schema)
                } else if let Some(columns) = plain_columns(exprs) {
                    return input.narrow_leaf(&columns, schema);
                } else {
                    input
                }
            }
            (_, None, Some(exprs)) if passes_all(exprs, &input) => return input.rename(schema),
            _ => input,
        };
        let props = props::map(&input, predicate.as_ref(), exprs.as_deref());
        Self {
            op: RelOp::Map { predicate, exprs },
            inputs: vec![input],
            schema,
            props,
        }
    }

    /// A scan or source that reads only `columns` of what it read.
    fn narrow_leaf(mut self, columns: &[usize], schema: SchemaRef) -> Self {
        let props = props::project_columns(&self.props, columns);
        match &mut self.op {
            RelOp::Scan { projection, .. } | RelOp::Source { projection, .. } => {
                *projection = columns.iter().map(|&c| projection[c]).collect();
            }
            _ => unreachable!("only leaves are narrowed"),
        }
        Self { schema, props, ..self }
    }

    /// The same rows with at least one column: batches without columns are a trap for kernels.
    #[must_use]
    pub fn widened(self) -> Self {
        if self.width() > 0 {
            return self;
        }
        let yes = || Arc::new(Schema::new(vec![Field::new("row", DataType::Boolean, false)]));
        let constant = || vec![literal(ScalarValue::Boolean(Some(true)))];
        match self.op {
            RelOp::Map { predicate, .. } => {
                let input = self
                    .inputs
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| unreachable!("a map has one input"));
                match predicate {
                    // Every row of the input passes, so its columns do as well.
                    None => input.widened(),
                    some => Self::new_map(input.widened(), some, Some(constant()), yes()),
                }
            }
            RelOp::Union => {
                let inputs = self
                    .inputs
                    .into_iter()
                    .map(|i| i.widened().project(constant(), yes()))
                    .collect();
                Self::union(inputs, yes())
            }
            _ => self,
        }
    }

    /// Groups by columns; `schema` names the group columns and the aggregates.
    pub fn aggregate(self, group_by: Vec<usize>, aggs: Vec<AggCall>, schema: SchemaRef) -> Self {
        let input = self.widened();
        let props = props::aggregate(&input, &group_by, &aggs);
        Self {
            op: RelOp::Aggregate { group_by, aggs },
            inputs: vec![input],
            schema,
            props,
        }
    }

    /// Joins; the schema follows from the inputs.
    pub fn join(self, right: Self, join: JoinOp) -> Self {
        let fields = self
            .schema
            .fields()
            .iter()
            .map(|f| (f, matches!(join.kind, JoinKind::Full)));
        let mut all: Vec<FieldRef> = fields.map(|(f, outer)| nullable_if(f, outer)).collect();
        if !matches!(join.kind, JoinKind::Semi | JoinKind::Anti) {
            let outer = matches!(join.kind, JoinKind::Left | JoinKind::Full);
            all.extend(right.schema.fields().iter().map(|f| nullable_if(f, outer)));
        }
        let props = props::join(&self, &right, &join);
        Self {
            op: RelOp::Join(join),
            inputs: vec![self, right],
            schema: Arc::new(Schema::new(all)),
            props,
        }
    }

    /// First rows of each partition.
    pub fn top_n(
        self,
        partition_by: Vec<usize>,
        order_by: Vec<SortKey>,
        limit: Option<u64>,
        offset: u64,
        row_number: Option<&str>,
    ) -> Self {
        let mut fields: Vec<FieldRef> = self.schema.fields().iter().cloned().collect();
        if let Some(name) = row_number {
            fields.push(Arc::new(Field::new(name, DataType::Int64, false)));
        }
        let props = props::top_n(&self, &partition_by, limit, row_number.is_some());
        Self {
            op: RelOp::TopN {
                partition_by,
                order_by,
                limit,
                offset,
                row_number: row_number.is_some(),
            },
            inputs: vec![self],
            schema: Arc::new(Schema::new(fields)),
            props,
        }
    }

    /// Window functions of one window; `results` are the columns that they add.
    pub fn window(
        self,
        partition_by: Vec<usize>,
        order_by: Vec<SortKey>,
        reversed: bool,
        calls: Vec<WindowCall>,
        results: Vec<Field>,
    ) -> Self {
        let fields: Vec<FieldRef> = self.schema.fields().iter().cloned().collect();
        let fields: Vec<FieldRef> = fields.into_iter().chain(results.into_iter().map(Arc::new)).collect();
        let props = props::window(&self, &partition_by, &calls);
        Self {
            op: RelOp::Window {
                partition_by,
                order_by,
                reversed,
                calls,
            },
            inputs: vec![self],
            schema: Arc::new(Schema::new(fields)),
            props,
        }
    }

    /// A numbering that nothing limits is a window, whose rows are numbered anew only from the first one that changes.
    #[must_use]
    pub fn without_unlimited_numberings(mut self) -> Self {
        self.inputs = self
            .inputs
            .into_iter()
            .map(Self::without_unlimited_numberings)
            .collect();
        let number = self.width().saturating_sub(1);
        let RelOp::TopN {
            partition_by,
            order_by,
            limit: None,
            offset: 0,
            row_number: true,
        } = &mut self.op
        else {
            return self;
        };
        self.op = RelOp::Window {
            partition_by: std::mem::take(partition_by),
            order_by: std::mem::take(order_by),
            reversed: false,
            calls: vec![WindowCall {
                func: WindowFunc::RowNumber,
                frame: Frame::WHOLE,
            }],
        };
        let mut fields: Vec<FieldRef> = self.schema.fields().iter().cloned().collect();
        if let Some(field) = fields.get_mut(number) {
            *field = Arc::new(field.as_ref().clone().with_nullable(false));
        }
        self.schema = Arc::new(Schema::new(fields));
        self
    }

    /// Bag union; of maps over one scan or source, a single operator that reads it once.
    pub fn union(inputs: Vec<Self>, schema: SchemaRef) -> Self {
        if let Some((input, branches)) = shared_leaf(&inputs) {
            return input.expand(branches, schema);
        }
        let props = props::union(&inputs);
        Self {
            op: RelOp::Union,
            inputs,
            schema,
            props,
        }
    }

    /// The rows of a source of keyed changes, with the columns `columns` of its schema (which hold the key): the newest record of each key.
    /// `writes` are a table's own, with the same columns.
    ///
    /// # Errors
    /// The source has no key, or it is not among the columns.
    pub fn keyed_source(
        (source, name): (ObjectId, &str),
        def: &SourceDef,
        columns: &[usize],
        writes: Option<Self>,
    ) -> Result<Self> {
        let place = |c: &usize| columns.iter().position(|x| x == c);
        let key: Option<Vec<usize>> = def.key.iter().map(place).collect();
        let key = key
            .filter(|k| !k.is_empty())
            .ok_or_else(|| PlanError::internal("a source of keyed changes without its key"))?;
        let width = def.schema.fields().len();
        let rows: Vec<FieldRef> = columns.iter().map(|&c| Arc::clone(&def.schema.fields()[c])).collect();
        // A delete has only its key.
        let loose = |f: &FieldRef| Arc::new(f.as_ref().clone().with_nullable(true));
        let hidden = [
            ("_delete", DataType::Boolean),
            ("_lane", DataType::Int64),
            ("_offset", DataType::Int64),
        ];
        let hidden = hidden.map(|(name, data_type)| Arc::new(Field::new(name, data_type, false)));
        let fields: Vec<FieldRef> = rows.iter().map(loose).chain(hidden).collect();
        let records = Self::leaf(
            RelOp::Source {
                source,
                name: name.to_owned(),
                projection: columns.iter().copied().chain(width..width + 3).collect(),
            },
            Arc::new(Schema::new(fields)),
            props::leaf(true, Vec::new(), None),
        );
        let props = props::leaf(false, vec![key.clone()], None);
        Ok(Self {
            op: RelOp::Upsert { key },
            inputs: std::iter::once(records).chain(writes).collect(),
            schema: Arc::new(Schema::new(rows)),
            props,
        })
    }

    /// Each row once for each branch whose predicate it meets.
    pub fn expand(self, branches: Vec<Branch>, schema: SchemaRef) -> Self {
        let props = props::expand(&self, branches.len());
        Self {
            op: RelOp::Expand { branches },
            inputs: vec![self],
            schema,
            props,
        }
    }

    /// Each row once for each element of its lists.
    pub fn unnest(self, columns: Vec<usize>, keep_empty: bool, schema: SchemaRef) -> Self {
        let input = self.widened();
        let props = props::unnest(&input);
        Self {
            op: RelOp::Unnest { columns, keep_empty },
            inputs: vec![input],
            schema,
            props,
        }
    }

    /// Keeps the first `width` columns of the rows whose bounds hold the epoch's timestamp.
    pub fn temporal_filter(self, from: Vec<TimeBound>, until: Vec<TimeBound>, width: usize) -> Self {
        let fields: Vec<FieldRef> = self.schema.fields().iter().take(width).cloned().collect();
        let props = props::temporal_filter(&self, width, until.is_empty());
        Self {
            op: RelOp::TemporalFilter { from, until },
            inputs: vec![self],
            schema: Arc::new(Schema::new(fields)),
            props,
        }
    }

    /// Derives the facts again after an operator below, or a parameter, was tightened.
    pub fn refresh_props(&mut self) {
        let props = match (&self.op, self.inputs.first()) {
            (RelOp::Map { predicate, exprs }, Some(input)) => props::map(input, predicate.as_ref(), exprs.as_deref()),
            (
                RelOp::TopN {
                    partition_by,
                    limit,
                    row_number,
                    ..
                },
                Some(input),
            ) => props::top_n(input, partition_by, *limit, *row_number),
            _ => return,
        };
        self.props = props;
    }

    /// The same rows under other names (and metadata); types stay.
    pub fn rename(mut self, schema: SchemaRef) -> Self {
        self.schema = schema;
        self
    }
}

/// The scan or source that all inputs map, with their maps over its columns.
fn shared_leaf(inputs: &[Rel]) -> Option<(Rel, Vec<Branch>)> {
    if inputs.len() < 2 {
        return None;
    }
    let mut columns: Vec<usize> = Vec::new();
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut leaf: Option<&Rel> = None;
    let mut branches = Vec::with_capacity(inputs.len());
    for input in inputs {
        let (base, predicate, exprs) = match &input.op {
            RelOp::Map { predicate, exprs } => {
                let base = input.inputs.first()?;
                (base, predicate.clone(), exprs.clone().unwrap_or_else(|| base.columns()))
            }
            _ => (input, None, input.columns()),
        };
        let projection = leaf_projection(base)?;
        if !same_leaf(leaf.get_or_insert(base), base) {
            return None;
        }
        let mut place = Vec::with_capacity(projection.len());
        for (&c, field) in projection.iter().zip(base.schema.fields()) {
            place.push(columns.iter().position(|have| *have == c).unwrap_or_else(|| {
                columns.push(c);
                fields.push(Arc::clone(field));
                columns.len() - 1
            }));
        }
        branches.push((place, predicate, exprs));
    }
    let mut merged = leaf?.clone();
    // Facts of the leaf are about its own columns: they are kept only if those stand first, as they did.
    merged.props = props::project_columns(&merged.props, &[]);
    merged.props.keys.clear();
    match &mut merged.op {
        RelOp::Scan { projection, .. } | RelOp::Source { projection, .. } => *projection = columns,
        _ => return None,
    }
    merged.schema = Arc::new(Schema::new(fields));
    let moved = |e: &Phys, place: &[usize]| rewrite_columns(e, |c| column(&merged.schema, place[c])).ok();
    let branches = branches
        .into_iter()
        .map(|(place, predicate, exprs)| {
            Some(Branch {
                predicate: match predicate {
                    Some(p) => Some(moved(&p, &place)?),
                    None => None,
                },
                exprs: exprs.iter().map(|e| moved(e, &place)).collect::<Option<_>>()?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    Some((merged, branches))
}

fn leaf_projection(rel: &Rel) -> Option<&[usize]> {
    match &rel.op {
        RelOp::Scan { projection, .. } | RelOp::Source { projection, .. } => Some(projection),
        _ => None,
    }
}

fn same_leaf(a: &Rel, b: &Rel) -> bool {
    match (&a.op, &b.op) {
        (RelOp::Scan { relation: x, .. }, RelOp::Scan { relation: y, .. }) => x == y,
        (RelOp::Source { source: x, .. }, RelOp::Source { source: y, .. }) => x == y,
        _ => false,
    }
}

/// A column that costs little to read when none is wanted.
fn narrowest(schema: &Schema) -> usize {
    let cost = |f: &FieldRef| f.data_type().primitive_width().unwrap_or(usize::MAX);
    (0..schema.fields().len())
        .min_by_key(|&c| cost(&schema.fields()[c]))
        .unwrap_or(0)
}

/// A numbering that nothing reads is not made; one that also keeps every row is no operator at all.
fn without_unread_number(mut input: Rel, predicate: Option<&Phys>, exprs: &[Phys]) -> Rel {
    let number = input.width().saturating_sub(1);
    let RelOp::TopN {
        limit,
        offset,
        row_number,
        ..
    } = &mut input.op
    else {
        return input;
    };
    let read = predicate
        .into_iter()
        .chain(exprs)
        .any(|e| columns_of(e).contains(&number));
    if !*row_number || read {
        return input;
    }
    if limit.is_none() && *offset == 0 {
        return input
            .inputs
            .into_iter()
            .next()
            .unwrap_or_else(|| unreachable!("a top-N has one input"));
    }
    *row_number = false;
    let fields: Vec<FieldRef> = input.schema.fields().iter().take(number).cloned().collect();
    input.schema = Arc::new(Schema::new(fields));
    input.refresh_props();
    input
}

fn nullable_if(field: &FieldRef, outer: bool) -> FieldRef {
    if outer && !field.is_nullable() {
        Arc::new(field.as_ref().clone().with_nullable(true))
    } else {
        Arc::clone(field)
    }
}

/// A computed column may be NULL whatever its expression says, since a failing expression is; a plain column is as its input's.
fn settle_nullability(exprs: &[Phys], input: &Schema, schema: &Schema) -> SchemaRef {
    let fields = exprs.iter().zip(schema.fields()).map(|(e, field)| {
        let nullable = if let Some(c) = as_column(e) {
            input.field(c).is_nullable()
        } else if let Some(literal) = e.downcast_ref::<Literal>() {
            literal.value().is_null()
        } else {
            true
        };
        if field.is_nullable() == nullable {
            Arc::clone(field)
        } else {
            Arc::new(field.as_ref().clone().with_nullable(nullable))
        }
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A reference to column `i` of `schema`.
pub(super) fn column(schema: &Schema, i: usize) -> Phys {
    Arc::new(Column::new(schema.field(i).name(), i))
}

/// The index, if the expression is a plain column.
pub(super) fn as_column(expr: &Phys) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// The indices, if all expressions are plain columns.
pub(super) fn plain_columns(exprs: &[Phys]) -> Option<Vec<usize>> {
    exprs.iter().map(as_column).collect()
}

/// A constant.
pub(super) fn literal(value: ScalarValue) -> Phys {
    Arc::new(Literal::new(value))
}

/// `left op right`.
pub(super) fn binary(left: Phys, op: Operator, right: Phys) -> Phys {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// `expr IS NOT NULL`.
pub(super) fn is_not_null(expr: Phys) -> Phys {
    Arc::new(IsNotNullExpr::new(expr))
}

/// Conjunction with something that may be absent.
pub(super) fn and(left: Option<Phys>, right: Phys) -> Phys {
    match left {
        Some(left) => binary(left, Operator::And, right),
        None => right,
    }
}

/// The parts of a conjunction.
pub(super) fn conjuncts(expr: &Phys) -> Vec<Phys> {
    match expr.downcast_ref::<BinaryExpr>() {
        Some(b) if *b.op() == Operator::And => {
            let mut parts = conjuncts(b.left());
            parts.extend(conjuncts(b.right()));
            parts
        }
        _ => vec![Arc::clone(expr)],
    }
}

/// The column below any casts.
pub(super) fn column_below_casts(expr: &Phys) -> Option<usize> {
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) => column_below_casts(cast.expr()),
        None => as_column(expr),
    }
}

/// Columns that the expression reads.
pub(super) fn columns_of(expr: &Phys) -> BTreeSet<usize> {
    collect_columns(expr).iter().map(Column::index).collect()
}

/// The expression with column `i` replaced by `f(i)`.
///
/// # Errors
/// DataFusion cannot rebuild the expression.
pub(super) fn rewrite_columns(expr: &Phys, f: impl Fn(usize) -> Phys) -> Result<Phys> {
    let out = Arc::clone(expr).transform_up(|e| match as_column(&e) {
        Some(c) => Ok(Transformed::yes(f(c))),
        None => Ok(Transformed::no(e)),
    });
    Ok(out.map_err(|e| PlanError::internal(e.to_string()))?.data)
}

/// An output expression over the inputs of `inner`. A computed column may be passed on as it is.
fn moved_below(expr: &Phys, inner: &[Phys]) -> Option<Phys> {
    match as_column(expr) {
        Some(c) => inner.get(c).cloned(),
        None => substitute(expr, inner),
    }
}

/// The expressions are the input's columns, in order.
fn passes_all(exprs: &[Phys], input: &Rel) -> bool {
    exprs.len() == input.width() && exprs.iter().enumerate().all(|(i, e)| as_column(e) == Some(i))
}

/// `expr` over the inputs of `inner`, if it reads only columns that `inner` passes on or sets to a constant.
fn substitute(expr: &Phys, inner: &[Phys]) -> Option<Phys> {
    let trivial = |c: &usize| {
        inner
            .get(*c)
            .is_some_and(|e| as_column(e).is_some() || e.is::<Literal>())
    };
    if !columns_of(expr).iter().all(trivial) {
        return None;
    }
    rewrite_columns(expr, |c| Arc::clone(&inner[c])).ok()
}
