//! Window functions. A logical node becomes one operator for each order in which its calls want the rows, over a map that computes
//! their arguments:
//!
//! ```text
//!   sum(x + 1) OVER (PARTITION BY a ORDER BY b), last_value(c) OVER (… ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
//!
//!     Window partition=[a] order=[b desc]  first_value(c) rows unbounded preceding to current row     (turned around)
//!       Window partition=[a] order=[b]     sum(x + 1) range unbounded preceding to current row
//!         Map [a, b, c, x, x + 1]
//! ```
//!
//! A frame that ends with the partition is turned around, so that every frame that is not bounded begins with the partition: the operator
//! walks a partition in one direction only. Functions that depend on the place of a row have the row's columns as their last sort keys
//! (`sql::ties`); the operator orders equal rows so by itself, and they are taken away again.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit, i256};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::logical_plan::Window;
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::expressions::{CastExpr, Literal};

use super::{Lowering, aggregate, arrow_schema, compile, field_of, name_of, place_of, project, unsupported};
use crate::plan::{AggFunc, Bound, Distance, Frame, FrameUnit, SortKey, WindowCall, WindowFunc};
use crate::stream::rel::{Phys, Rel};
use crate::{PlanError, Result};

/// A call with the window that it stands over.
struct Placed {
    partition_by: Vec<usize>,
    order_by: Vec<SortKey>,
    call: WindowCall,
    reversed: bool,
}

impl Lowering<'_> {
    /// Window functions.
    pub(super) fn window(&self, window: &Window) -> Result<Rel> {
        let schema = arrow_schema(&window.schema);
        let nodes = independent(window);
        let window = nodes.last().copied().unwrap_or(window);
        let input = self.lower(&window.input)?;
        let base = input.width();
        let mut columns = input.columns();
        let mut placed = Vec::new();
        for expr in nodes.iter().rev().flat_map(|node| &node.window_expr) {
            placed.push(place(expr, window, &input.schema, &mut columns)?);
        }
        settle_orders(&mut placed, base);
        let fields = columns
            .iter()
            .enumerate()
            .map(|(i, e)| match input.schema.fields().get(i) {
                Some(field) => Ok(Arc::clone(field)),
                None => field_of(e, &input.schema),
            })
            .collect::<Result<Vec<_>>>()?;
        let keyed = !input.props.keys.is_empty();
        let mut rel = input.project(columns, Arc::new(Schema::new(fields)));
        if let [only] = placed.as_slice()
            && only.call.func == WindowFunc::RowNumber
        {
            // A filter above may limit it.
            let number = rel.width();
            let (partition_by, order_by) = (only.partition_by.clone(), only.order_by.clone());
            let rel = rel.top_n(partition_by, order_by, None, 0, Some(schema.field(base).name()));
            return outputs(rel, base, &[number], &schema);
        }
        let mut groups: Vec<(Placed, Vec<usize>)> = Vec::new();
        let mut calls: Vec<WindowCall> = Vec::new();
        for (i, p) in placed.into_iter().enumerate() {
            calls.push(p.call.clone());
            let same =
                |g: &Placed| (&g.partition_by, &g.order_by, g.reversed) == (&p.partition_by, &p.order_by, p.reversed);
            match groups.iter_mut().find(|(g, _)| same(g)) {
                Some((_, members)) => members.push(i),
                None => groups.push((p, vec![i])),
            }
        }
        if groups.len() > 1 && !keyed {
            // Rows that are all alike must stand in one order in all windows.
            let (first, _) = &groups[0];
            rel = rel.window(
                first.partition_by.clone(),
                first.order_by.clone(),
                first.reversed,
                vec![WindowCall {
                    func: WindowFunc::RowNumber,
                    frame: Frame::WHOLE,
                }],
                vec![Field::new("row_number()", DataType::Int64, false)],
            );
        }
        let mut places = vec![0; calls.len()];
        for (group, members) in groups {
            let mut results = Vec::with_capacity(members.len());
            let mut own = Vec::with_capacity(members.len());
            for i in members {
                places[i] = rel.width() + own.len();
                own.push(calls[i].clone());
                let declared = schema.field(base + i);
                results.push(result_field(&calls[i].func, declared, &rel.schema));
            }
            rel = rel.window(group.partition_by, group.order_by, group.reversed, own, results);
        }
        outputs(rel, base, &places, &schema)
    }
}

/// Nodes that follow each other, the upper ones first, of which none reads another's results. A `row_number()` that stands alone may be limited
/// by what is above, so it keeps to itself.
fn independent(window: &Window) -> Vec<&Window> {
    let mut nodes = vec![window];
    let alone = |node: &Window| match node.window_expr.as_slice() {
        [only] => match &only.clone().unalias_nested().data {
            Expr::WindowFunction(f) => {
                matches!(&f.fun, WindowFunctionDefinition::WindowUDF(f) if f.name() == "row_number")
            }
            _ => false,
        },
        _ => false,
    };
    while let Some(node) = nodes.last().copied()
        && !alone(window)
        && let LogicalPlan::Window(below) = node.input.as_ref()
        && nodes.iter().flat_map(|n| &n.window_expr).all(|e| {
            let known = |c: &&Column| below.input.schema().has_column(c);
            e.column_refs().iter().all(known)
        })
    {
        nodes.push(below);
    }
    nodes
}

/// The node's columns: those of its input, then the calls' results.
fn outputs(rel: Rel, base: usize, results: &[usize], schema: &SchemaRef) -> Result<Rel> {
    let keep: Vec<Phys> = (0..base)
        .chain(results.iter().copied())
        .map(|c| rel.column(c))
        .collect();
    project(rel, keep, schema)
}

/// What the operator yields for a call.
fn result_field(func: &WindowFunc, declared: &Field, input: &Schema) -> Field {
    let data_type = match func {
        WindowFunc::RowNumber | WindowFunc::Rank | WindowFunc::DenseRank | WindowFunc::Ntile(_) => DataType::Int64,
        WindowFunc::PercentRank | WindowFunc::CumeDist => DataType::Float64,
        WindowFunc::Lag { value, .. } | WindowFunc::Nth { value, .. } => input.field(*value).data_type().clone(),
        WindowFunc::Aggregate(_) => declared.data_type().clone(),
    };
    let nullable = match func {
        WindowFunc::Lag { .. } | WindowFunc::Nth { .. } => true,
        WindowFunc::Aggregate(call) => call.func != AggFunc::Count,
        _ => false,
    };
    Field::new(declared.name(), data_type, nullable)
}

/// Reads a call; what it needs becomes columns.
fn place(expr: &Expr, window: &Window, input: &Schema, columns: &mut Vec<Phys>) -> Result<Placed> {
    let bare = expr.clone().unalias_nested().data;
    let Expr::WindowFunction(function) = &bare else {
        return Err(PlanError::internal(format!(
            "{} is not a window function",
            name_of(expr)
        )));
    };
    let params = &function.params;
    let schema = window.input.schema();
    if params.null_treatment.is_some() {
        return Err(unsupported(&format!(
            "IGNORE NULLS or RESPECT NULLS in {}",
            name_of(expr)
        )));
    }
    if params.distinct {
        return Err(
            PlanError::unsupported("DISTINCT is not implemented for window functions")
                .detail(name_of(expr))
                .hint("Join a grouped subquery with the DISTINCT aggregate."),
        );
    }
    let mut partition_by = Vec::with_capacity(params.partition_by.len());
    for key in &params.partition_by {
        let place = place_of(columns, &compile(key, schema)?);
        if !partition_by.contains(&place) {
            partition_by.push(place);
        }
    }
    let mut order_by = Vec::with_capacity(params.order_by.len());
    for sort in &params.order_by {
        order_by.push(SortKey {
            column: place_of(columns, &compile(&sort.expr, schema)?),
            desc: !sort.asc,
            nulls_first: sort.nulls_first,
        });
    }
    let func = function_of(function, expr, window, columns)?;
    let mut frame = Frame::WHOLE;
    if matches!(func, WindowFunc::Nth { .. } | WindowFunc::Aggregate(_)) {
        if params.window_frame.units == WindowFrameUnits::Range && has_distance(&params.window_frame) {
            widen_range_key(&mut order_by, input, columns, expr)?;
        }
        let key = match order_by.as_slice() {
            [key] => Some(
                columns[key.column]
                    .data_type(input)
                    .map_err(|e| PlanError::internal(e.to_string()))?,
            ),
            _ => None,
        };
        frame = frame_of(&params.window_frame, key.as_ref(), expr)?;
        if order_by.is_empty() && frame.unit == FrameUnit::Groups {
            frame = Frame::WHOLE;
        }
    }
    let mut placed = Placed {
        partition_by,
        order_by,
        call: WindowCall { func, frame },
        reversed: false,
    };
    if wants_turn(&placed.call) {
        turn(&mut placed);
    }
    Ok(placed)
}

/// A function with its arguments as columns.
fn function_of(function: &WindowFunction, expr: &Expr, window: &Window, columns: &mut Vec<Phys>) -> Result<WindowFunc> {
    let schema = window.input.schema();
    let params = &function.params;
    let udf = match &function.fun {
        WindowFunctionDefinition::AggregateUDF(udf) => {
            let filter = params.filter.clone();
            let call =
                AggregateFunction::new_udf(Arc::clone(udf), params.args.clone(), false, filter, Vec::new(), None);
            let call = aggregate::call(&Expr::AggregateFunction(call), schema, columns)?;
            if call.func == AggFunc::ByKey {
                return Err(unsupported(&format!("{} as a window function", name_of(expr)))
                    .hint("Use first_value(x) OVER (… ORDER BY k)."));
            }
            return Ok(WindowFunc::Aggregate(call));
        }
        WindowFunctionDefinition::WindowUDF(udf) => udf,
    };
    if params.filter.is_some() {
        return Err(
            PlanError::unsupported("FILTER is not implemented for non-aggregate window functions")
                .detail(name_of(expr)),
        );
    }
    let few = || unsupported(&format!("{} with these arguments", name_of(expr)));
    let mut value = |i: usize| -> Result<usize> {
        let arg = params.args.get(i).ok_or_else(few)?;
        Ok(place_of(columns, &compile(arg, schema)?))
    };
    match udf.name() {
        "row_number" => Ok(WindowFunc::RowNumber),
        "rank" => Ok(WindowFunc::Rank),
        "dense_rank" => Ok(WindowFunc::DenseRank),
        "percent_rank" => Ok(WindowFunc::PercentRank),
        "cume_dist" => Ok(WindowFunc::CumeDist),
        "ntile" => match constant(params.args.first().ok_or_else(few)?, window)? {
            Some(n) if n > 0 => Ok(WindowFunc::Ntile(n as u64)),
            _ => Err(PlanError::new("22014", "argument of ntile must be greater than zero")),
        },
        name @ ("lag" | "lead") => {
            let offset = match params.args.get(1) {
                None => 1,
                Some(n) => match constant(n, window)? {
                    Some(n) => n,
                    None => return Err(constant_wanted(expr)),
                },
            };
            let column = value(0)?;
            let default = match params.args.get(2) {
                None => None,
                Some(Expr::Literal(v, _)) if v.is_null() => None,
                Some(default) => Some(default_of(default, column, window, columns)?),
            };
            Ok(WindowFunc::Lag {
                value: column,
                offset: if name == "lead" { -offset } else { offset },
                default,
            })
        }
        "first_value" => Ok(WindowFunc::Nth { value: value(0)?, n: 1, from_last: false }),
        "last_value" => Ok(WindowFunc::Nth { value: value(0)?, n: 1, from_last: true }),
        "nth_value" => {
            let n = match constant(params.args.get(1).ok_or_else(few)?, window)? {
                Some(n) if n > 0 => n as u64,
                Some(_) => {
                    return Err(PlanError::new("22016", "argument of nth_value must be greater than zero"));
                }
                None => return Err(constant_wanted(expr)),
            };
            Ok(WindowFunc::Nth { value: value(0)?, n, from_last: false })
        }
        _ => Err(unsupported(&format!("window function {}", name_of(expr))).hint(
            "row_number, rank, dense_rank, percent_rank, cume_dist, ntile, lag, lead, first_value, last_value, nth_value and the \
             aggregates that views have are supported.",
        )),
    }
}

fn constant_wanted(expr: &Expr) -> PlanError {
    unsupported(&format!("{} with an offset that is not a constant", name_of(expr)))
        .hint("Write a number, or several calls in a CASE expression.")
}

/// The value of a constant whole number that fits well within 64 bits.
fn constant(expr: &Expr, window: &Window) -> Result<Option<i64>> {
    let compiled = compile(expr, window.input.schema())?;
    let mut inner = &compiled;
    while let Some(cast) = inner.downcast_ref::<CastExpr>() {
        inner = cast.expr();
    }
    let value = inner.downcast_ref::<Literal>().map(Literal::value).cloned();
    let value = match value {
        Some(value) => value,
        None => match simple_value(expr) {
            Some(value) => value,
            None => return Ok(None),
        },
    };
    Ok(match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(v))) if v.unsigned_abs() < 1 << 62 => Some(v),
        _ => None,
    })
}

/// A literal below a minus sign.
fn simple_value(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(v, _) => Some(v.clone()),
        Expr::Cast(cast) => simple_value(&cast.expr),
        Expr::Negative(inner) => simple_value(inner)?.arithmetic_negate().ok(),
        _ => None,
    }
}

/// A default in the type of the value that it stands for.
fn default_of(default: &Expr, value: usize, window: &Window, columns: &mut Vec<Phys>) -> Result<usize> {
    let input = window.input.schema();
    let typed = |e: &Phys| {
        e.data_type(input.as_arrow())
            .map_err(|e| PlanError::internal(e.to_string()))
    };
    let compiled = compile(default, input)?;
    let wanted = typed(&columns[value])?;
    let compiled = if typed(&compiled)? == wanted {
        compiled
    } else {
        Arc::new(CastExpr::new(compiled, wanted, None))
    };
    Ok(place_of(columns, &compiled))
}

fn has_distance(frame: &WindowFrame) -> bool {
    [&frame.start_bound, &frame.end_bound].iter().any(|bound| match bound {
        WindowFrameBound::Preceding(v) | WindowFrameBound::Following(v) => !v.is_null(),
        WindowFrameBound::CurrentRow => false,
    })
}

/// Distances are measured in the widest type of their kind, dates as timestamps.
fn widen_range_key(order_by: &mut [SortKey], input: &Schema, columns: &mut Vec<Phys>, expr: &Expr) -> Result<()> {
    let [key] = order_by else {
        return Err(PlanError::new(
            "42P20",
            "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column",
        ));
    };
    let column = Arc::clone(&columns[key.column]);
    let data_type = column
        .data_type(input)
        .map_err(|e| PlanError::internal(e.to_string()))?;
    let wide = match &data_type {
        t if t.is_integer() => DataType::Int64,
        t if t.is_floating() => DataType::Float64,
        DataType::Date32 => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Decimal128(..) | DataType::Decimal256(..) | DataType::Timestamp(TimeUnit::Microsecond, _) => {
            data_type.clone()
        }
        other => {
            return Err(unsupported(&format!(
                "a RANGE offset over a value of type {other} in {}",
                name_of(expr)
            ))
            .hint("Integers, numeric, floats, dates and timestamps have distances."));
        }
    };
    if wide != data_type {
        let cast: Phys = Arc::new(CastExpr::new(column, wide, None));
        key.column = place_of(columns, &cast);
    }
    Ok(())
}

/// `key`: the type of the only sort column.
fn frame_of(frame: &WindowFrame, key: Option<&DataType>, expr: &Expr) -> Result<Frame> {
    let unit = match frame.units {
        WindowFrameUnits::Rows => FrameUnit::Rows,
        WindowFrameUnits::Groups => FrameUnit::Groups,
        WindowFrameUnits::Range if has_distance(frame) => FrameUnit::Range,
        WindowFrameUnits::Range => FrameUnit::Groups,
    };
    let bound = |bound: &WindowFrameBound, is_start: bool| -> Result<Bound> {
        let (value, preceding) = match bound {
            WindowFrameBound::CurrentRow => return Ok(Bound::Offset(0)),
            WindowFrameBound::Preceding(v) => (v, true),
            WindowFrameBound::Following(v) => (v, false),
        };
        if value.is_null() {
            if preceding != is_start {
                return Err(PlanError::new(
                    "42P20",
                    "a frame cannot begin with the partition's end, nor end with its start",
                ));
            }
            return Ok(Bound::Unbounded);
        }
        if unit == FrameUnit::Range {
            let key = key.ok_or_else(|| PlanError::internal("a range without a sort column"))?;
            let by = distance(value, key, expr)?;
            return Ok(Bound::Distance { preceding, by });
        }
        match value.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(n))) if n >= 0 => {
                let n = n.min(1 << 40);
                Ok(Bound::Offset(if preceding { -n } else { n }))
            }
            _ => Err(PlanError::new("22013", "frame offset must not be negative")),
        }
    };
    Ok(Frame {
        unit,
        start: bound(&frame.start_bound, true)?,
        end: bound(&frame.end_bound, false)?,
    })
}

fn distance(value: &ScalarValue, key: &DataType, expr: &Expr) -> Result<Distance> {
    let unfit = || {
        unsupported(&format!(
            "the RANGE offset {value} over a value of type {key} in {}",
            name_of(expr)
        ))
    };
    let negative = || PlanError::new("22013", "invalid preceding or following size in window function");
    let cast = |to: &DataType| value.cast_to(to).map_err(|_| unfit());
    match key {
        DataType::Int64 => match cast(&DataType::Int64)? {
            ScalarValue::Int64(Some(v)) if v >= 0 => Ok(Distance::Exact(i128::from(v))),
            _ => Err(negative()),
        },
        DataType::Float64 => match cast(&DataType::Float64)? {
            ScalarValue::Float64(Some(v)) if v >= 0.0 && v.is_finite() => Ok(Distance::Float(v.to_bits())),
            ScalarValue::Float64(Some(v)) if v.is_infinite() && v > 0.0 => Err(unfit()),
            _ => Err(negative()),
        },
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
            // What lies between two digits reaches no value more.
            let finer = scale.saturating_add(10);
            match cast(&DataType::Decimal256(76, finer))? {
                ScalarValue::Decimal256(Some(v), ..) if v < i256::ZERO => Err(negative()),
                ScalarValue::Decimal256(Some(v), ..) => {
                    let units = v / i256::from_i128(10_000_000_000);
                    Ok(Distance::Exact(units.to_i128().unwrap_or(i128::MAX)))
                }
                _ => Err(unfit()),
            }
        }
        DataType::Timestamp(..) => match cast(&DataType::Interval(IntervalUnit::MonthDayNano))? {
            ScalarValue::IntervalMonthDayNano(Some(v)) => {
                if v.months < 0 || v.days < 0 || v.nanoseconds < 0 {
                    return Err(negative());
                }
                Ok(Distance::Interval {
                    months: v.months,
                    days: v.days,
                    us: v.nanoseconds / 1000,
                })
            }
            _ => Err(unfit()),
        },
        _ => Err(unfit()),
    }
}

/// The call is easier seen from the other end of the partition.
fn wants_turn(call: &WindowCall) -> bool {
    let (start, end) = (call.frame.start, call.frame.end);
    match &call.func {
        WindowFunc::Nth { from_last, .. } => *from_last && end == Bound::Unbounded,
        WindowFunc::Aggregate(agg) => {
            let list = matches!(agg.func, AggFunc::ArrayAgg | AggFunc::StringAgg);
            !list && end == Bound::Unbounded && start != Bound::Unbounded
        }
        _ => false,
    }
}

/// The same window from the last row to the first.
fn turn(placed: &mut Placed) {
    placed.reversed = true;
    for key in &mut placed.order_by {
        key.desc = !key.desc;
        key.nulls_first = !key.nulls_first;
    }
    let mirrored = |bound: Bound| match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Offset(n) => Bound::Offset(-n),
        Bound::Distance { preceding, by } => Bound::Distance {
            preceding: !preceding,
            by,
        },
    };
    let frame = &mut placed.call.frame;
    (frame.start, frame.end) = (mirrored(frame.end), mirrored(frame.start));
    if let WindowFunc::Nth { from_last, .. } = &mut placed.call.func {
        *from_last = !*from_last;
    }
}

/// Takes away sort keys that say what the order of whole rows says anyway, so that calls over one window share it.
fn settle_orders(placed: &mut [Placed], base: usize) {
    let whole: Vec<Vec<SortKey>> = placed.iter().map(|p| p.order_by.clone()).collect();
    for p in placed {
        let fewest = redundant_from(p, base);
        let shared = (fewest..p.order_by.len()).find(|&n| whole.iter().any(|o| o.as_slice() == &p.order_by[..n]));
        p.order_by.truncate(shared.unwrap_or(fewest));
    }
}

/// The least number of leading keys that are needed.
fn redundant_from(p: &Placed, base: usize) -> usize {
    let keys = &p.order_by;
    let positional = matches!(
        p.call.func,
        WindowFunc::RowNumber
            | WindowFunc::Lag { .. }
            | WindowFunc::Ntile(_)
            | WindowFunc::Nth { .. }
            | WindowFunc::Aggregate(_)
    ) && (p.call.frame.is_whole() || p.call.frame.unit == FrameUnit::Rows);
    if !positional {
        return keys.len();
    }
    let fits = |from: usize| {
        let tail = &keys[from..];
        let plain = |k: &SortKey| k.column < base && k.desc == p.reversed && k.nulls_first != p.reversed;
        let rising = tail.windows(2).all(|w| w[0].column < w[1].column);
        let last = tail.last().map_or(0, |k| k.column);
        let told = |c: usize| p.partition_by.contains(&c) || keys.iter().any(|k| k.column == c);
        rising && tail.iter().all(plain) && (0..last).all(told)
    };
    (0..=keys.len()).find(|&from| fits(from)).unwrap_or(keys.len())
}
