//! `sum` and `avg` with PostgreSQL's result types.
//!
//! | call | result |
//! | --- | --- |
//! | `sum(smallint)`, `sum(integer)` | bigint |
//! | `sum(bigint)` | Decimal128(38,0) |
//! | `sum(numeric)` | numeric, ten digits wider |
//! | `sum(real)`, `sum(double precision)` | double precision |
//! | `avg(integer types)`, `avg(numeric)` | [`QUOTIENT`] |
//! | `avg(real)`, `avg(double precision)` | double precision |
//!
//! Sums and averages of integers, and averages of numeric, are kept in 256 bits here; the rest is DataFusion's. No argument is cast, so
//! the types above hold however often a plan is coerced.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal256Array, Int64Array};
use arrow::datatypes::{DataType, Decimal256Type, Field, FieldRef, Int16Type, Int32Type, Int64Type, i256};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};

use super::arith::{arithmetic_error, decimal_parts, divide, out_of_range, to_256};
use super::sliding::SlidingFloats;
use super::{external, no_function};
use crate::PlanError;
use crate::sql::text::numeric_overflow;
use crate::sql::types::{BARE_NUMERIC, QUOTIENT, is_unlimited};

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    let mut all = vec![
        Arc::new(AggregateUDF::new_from_impl(PgSum::new())),
        Arc::new(AggregateUDF::new_from_impl(PgAvg::new())),
        super::string_agg::function(),
    ];
    all.extend(super::spread::functions());
    all.extend(super::regression::functions());
    all.extend(super::ordered_set::functions());
    all.extend(super::bits::functions());
    all.extend(super::by_key::functions());
    all
}

/// `sum`: DataFusion's, over an argument wide enough.
#[derive(Debug)]
struct PgSum {
    signature: Signature,
    inner: Arc<AggregateUDF>,
}

impl PgSum {
    fn new() -> Self {
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            inner: sum_udaf(),
        }
    }
}

impl PartialEq for PgSum {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for PgSum {}
impl Hash for PgSum {
    fn hash<H: Hasher>(&self, state: &mut H) {
        "sum".hash(state);
    }
}

/// The type of the argument that `sum` takes for one of this type; a fixed point.
fn sum_argument(t: &DataType) -> Result<DataType, PlanError> {
    Ok(match t {
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        // The result's scale must be the argument's.
        t if is_unlimited(t) && t != &QUOTIENT => BARE_NUMERIC,
        DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Decimal256(..) => t.clone(),
        DataType::Decimal128(p, s) if *p > 28 => DataType::Decimal256(*p, *s),
        DataType::Decimal128(..) => t.clone(),
        DataType::Float32 | DataType::Float64 | DataType::Null => DataType::Float64,
        other => return Err(no_function("sum", std::slice::from_ref(other))),
    })
}

fn sum_result(argument: &DataType) -> DataType {
    match argument {
        DataType::Int16 | DataType::Int32 => DataType::Int64,
        DataType::Int64 => DataType::Decimal128(38, 0),
        DataType::Decimal128(p, s) => DataType::Decimal128((*p + 10).min(38), *s),
        t if is_unlimited(t) => BARE_NUMERIC,
        DataType::Decimal256(p, s) => DataType::Decimal256((*p + 10).min(76), *s),
        other => other.clone(),
    }
}

fn is_int(t: &DataType) -> bool {
    matches!(t, DataType::Int16 | DataType::Int32 | DataType::Int64)
}

impl AggregateUDFImpl for PgSum {
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        match t {
            [t] => Ok(vec![sum_argument(t).map_err(external)?]),
            _ => Err(external(no_function("sum", t))),
        }
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        match t {
            [t] => Ok(sum_result(&sum_argument(t).map_err(external)?)),
            _ => Err(external(no_function("sum", t))),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        match args.expr_fields.first().map(|f| f.data_type()) {
            Some(t) if is_int(t) => {
                let answer = Answer::of_sum(args.return_type());
                Ok(Box::new(Exact::new(answer, 0, args.is_distinct)))
            }
            _ => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        match args.input_fields.first().map(|f| f.data_type()) {
            Some(t) if is_int(t) => Ok(state_fields(&args, 0)),
            _ => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        match args.expr_fields.first().map(|f| f.data_type()) {
            Some(t) if is_int(t) => !args.is_distinct,
            _ => self.inner.groups_accumulator_supported(args),
        }
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        match args.expr_fields.first().map(|f| f.data_type()) {
            Some(t) if is_int(t) => Ok(Box::new(ExactGroups::new(Answer::of_sum(args.return_type()), 0))),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        match args.expr_fields.first().map(|f| f.data_type()) {
            Some(t) if is_int(t) => self.accumulator(args),
            _ if args.return_type() == &DataType::Float64 && !args.is_distinct => {
                Ok(Box::new(SlidingFloats::new(false)))
            }
            _ => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// `avg`: exact over integers and numeric, DataFusion's over floats.
#[derive(Debug)]
struct PgAvg {
    signature: Signature,
    float: Arc<AggregateUDF>,
}

impl PgAvg {
    fn new() -> Self {
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            float: avg_udaf(),
        }
    }
}

impl PartialEq for PgAvg {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for PgAvg {}
impl Hash for PgAvg {
    fn hash<H: Hasher>(&self, state: &mut H) {
        "avg".hash(state);
    }
}

fn avg_argument(t: &DataType) -> Result<DataType, PlanError> {
    match t {
        DataType::Decimal128(..) | DataType::Decimal256(..) => Ok(t.clone()),
        other => sum_argument(other).map_err(|_| no_function("avg", std::slice::from_ref(other))),
    }
}

impl AggregateUDFImpl for PgAvg {
    fn name(&self) -> &str {
        "avg"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        match t {
            [t] => Ok(vec![avg_argument(t).map_err(external)?]),
            _ => Err(external(no_function("avg", t))),
        }
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        match t {
            [t] => Ok(if avg_argument(t).map_err(external)? == DataType::Float64 {
                DataType::Float64
            } else {
                QUOTIENT
            }),
            _ => Err(external(no_function("avg", t))),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.return_type() == &DataType::Float64 {
            return self.float.accumulator(args);
        }
        let scale = scale_of(args.expr_fields);
        Ok(Box::new(Exact::new(Answer::Average, scale, args.is_distinct)))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        if args.return_type() == &DataType::Float64 {
            return self.float.groups_accumulator_supported(args);
        }
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        if args.return_type() == &DataType::Float64 {
            return self.float.create_groups_accumulator(args);
        }
        Ok(Box::new(ExactGroups::new(Answer::Average, scale_of(args.expr_fields))))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        if args.return_field.data_type() == &DataType::Float64 {
            return self.float.state_fields(args);
        }
        let scale = scale_of(args.input_fields);
        Ok(state_fields(&args, scale))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.return_type() == &DataType::Float64 {
            return match args.is_distinct {
                false => Ok(Box::new(SlidingFloats::new(true))),
                true => self.float.create_sliding_accumulator(args),
            };
        }
        self.accumulator(args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Average of a sum of unscaled values: what `avg` answers, for streaming evaluators too.
///
/// # Errors
/// 22003 when the average does not fit [`QUOTIENT`].
pub fn exact_avg(sum: i256, scale: i8, count: i64) -> Result<i256, PlanError> {
    divide(sum, i32::from(scale), i256::from_i128(i128::from(count)), 0).map_err(|e| arithmetic_error(e, &BARE_NUMERIC))
}

pub(super) fn scale_of(fields: &[FieldRef]) -> i8 {
    fields
        .first()
        .and_then(|f| decimal_parts(f.data_type()))
        .map_or(0, |(_, s)| s)
}

/// Sum and count, or the list of distinct values.
fn state_fields(args: &StateFieldsArgs<'_>, scale: i8) -> Vec<FieldRef> {
    let sum = DataType::Decimal256(76, scale);
    let name = |part: &str| format!("{}[{part}]", args.name);
    if args.is_distinct {
        return vec![Arc::new(Field::new_list(
            name("values"),
            Field::new_list_field(sum, true),
            true,
        ))];
    }
    vec![
        Arc::new(Field::new(name("sum"), sum, true)),
        Arc::new(Field::new(name("count"), DataType::Int64, true)),
    ]
}

/// What comes out of a sum and a count.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Bigint,
    Numeric,
    Average,
}

impl Answer {
    fn of_sum(t: &DataType) -> Self {
        if t == &DataType::Int64 {
            Self::Bigint
        } else {
            Self::Numeric
        }
    }

    fn of(self, sum: i256, scale: i8, count: i64) -> Result<ScalarValue, PlanError> {
        Ok(match self {
            Self::Bigint if count == 0 => ScalarValue::Int64(None),
            Self::Numeric if count == 0 => ScalarValue::Decimal128(None, 38, 0),
            Self::Average if count == 0 => ScalarValue::Decimal256(None, 75, 38),
            Self::Bigint => {
                let v = sum.to_i128().and_then(|v| i64::try_from(v).ok());
                ScalarValue::Int64(Some(v.ok_or_else(|| out_of_range(&DataType::Int64))?))
            }
            Self::Numeric => ScalarValue::Decimal128(Some(sum.to_i128().ok_or_else(numeric_overflow)?), 38, 0),
            Self::Average => ScalarValue::Decimal256(Some(exact_avg(sum, scale, count)?), 75, 38),
        })
    }
}

/// Calls `f` with the row and unscaled value of each present value.
pub(super) fn each(a: &ArrayRef, mut f: impl FnMut(usize, i256) -> Result<(), PlanError>) -> Result<(), PlanError> {
    macro_rules! ints {
        ($t:ty) => {{
            for (row, v) in a.as_primitive::<$t>().iter().enumerate() {
                if let Some(v) = v {
                    f(row, i256::from_i128(i128::from(v)))?;
                }
            }
        }};
    }
    match a.data_type() {
        DataType::Int16 => ints!(Int16Type),
        DataType::Int32 => ints!(Int32Type),
        DataType::Int64 => ints!(Int64Type),
        _ => {
            for (row, v) in to_256(a)?.iter().enumerate() {
                if let Some(v) = v {
                    f(row, v)?;
                }
            }
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Exact {
    answer: Answer,
    scale: i8,
    sum: i256,
    count: i64,
    distinct: Option<BTreeSet<i256>>,
}

impl Exact {
    fn new(answer: Answer, scale: i8, distinct: bool) -> Self {
        Self {
            answer,
            scale,
            sum: i256::ZERO,
            count: 0,
            distinct: distinct.then(BTreeSet::new),
        }
    }
}

fn plus(a: i256, b: i256) -> Result<i256, PlanError> {
    a.checked_add(b).ok_or_else(numeric_overflow)
}

impl Accumulator for Exact {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let Some(a) = values.first() else { return Ok(()) };
        each(a, |_, v| {
            if let Some(seen) = &mut self.distinct {
                seen.insert(v);
                return Ok(());
            }
            self.sum = plus(self.sum, v)?;
            self.count += 1;
            Ok(())
        })
        .map_err(external)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let Some(a) = values.first() else { return Ok(()) };
        each(a, |_, v| {
            self.sum = self.sum.checked_sub(v).ok_or_else(numeric_overflow)?;
            self.count -= 1;
            Ok(())
        })
        .map_err(external)
    }

    fn supports_retract_batch(&self) -> bool {
        self.distinct.is_none()
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let (mut sum, mut count) = (self.sum, self.count);
        for v in self.distinct.iter().flatten() {
            sum = plus(sum, *v).map_err(external)?;
            count += 1;
        }
        self.answer.of(sum, self.scale, count).map_err(external)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.distinct.as_ref().map_or(0, |d| d.len() * 48)
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        if let Some(seen) = &self.distinct {
            let values: Vec<ScalarValue> = seen
                .iter()
                .map(|v| ScalarValue::Decimal256(Some(*v), 76, self.scale))
                .collect();
            let list = ScalarValue::new_list_nullable(&values, &DataType::Decimal256(76, self.scale));
            return Ok(vec![ScalarValue::List(list)]);
        }
        Ok(vec![
            ScalarValue::Decimal256(Some(self.sum), 76, self.scale),
            ScalarValue::Int64(Some(self.count)),
        ])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        if let Some(seen) = &mut self.distinct {
            let Some(lists) = states.first() else { return Ok(()) };
            for list in lists.as_list::<i32>().iter().flatten() {
                seen.extend(list.as_primitive::<Decimal256Type>().iter().flatten());
            }
            return Ok(());
        }
        let [sums, counts] = states else { return Ok(()) };
        let (sums, counts) = (
            sums.as_primitive::<Decimal256Type>(),
            counts.as_primitive::<Int64Type>(),
        );
        for (s, c) in sums.iter().zip(counts) {
            if let (Some(s), Some(c)) = (s, c) {
                self.sum = plus(self.sum, s).map_err(external)?;
                self.count += c;
            }
        }
        Ok(())
    }
}

/// [`Exact`] for many groups at once.
#[derive(Debug)]
struct ExactGroups {
    answer: Answer,
    scale: i8,
    sums: Vec<i256>,
    counts: Vec<i64>,
}

impl ExactGroups {
    fn new(answer: Answer, scale: i8) -> Self {
        Self {
            answer,
            scale,
            sums: Vec::new(),
            counts: Vec::new(),
        }
    }

    fn resize(&mut self, groups: usize) {
        self.sums.resize(groups, i256::ZERO);
        self.counts.resize(groups, 0);
    }

    fn add(&mut self, group: usize, v: i256, count: i64) -> Result<(), PlanError> {
        let missing = || PlanError::internal("group out of range");
        let sum = self.sums.get_mut(group).ok_or_else(missing)?;
        *sum = plus(*sum, v)?;
        *self.counts.get_mut(group).ok_or_else(missing)? += count;
        Ok(())
    }
}

impl GroupsAccumulator for ExactGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> DfResult<()> {
        self.resize(total);
        let Some(a) = values.first() else { return Ok(()) };
        each(a, |row, v| {
            if filter.is_some_and(|f| f.is_null(row) || !f.value(row)) {
                return Ok(());
            }
            match groups.get(row) {
                Some(g) => self.add(*g, v, 1),
                None => Err(PlanError::internal("row without a group")),
            }
        })
        .map_err(external)
    }

    fn evaluate(&mut self, emit: EmitTo) -> DfResult<ArrayRef> {
        let (sums, counts) = (emit.take_needed(&mut self.sums), emit.take_needed(&mut self.counts));
        let values = sums
            .into_iter()
            .zip(counts)
            .map(|(s, c)| self.answer.of(s, self.scale, c))
            .collect::<Result<Vec<_>, _>>()
            .map_err(external)?;
        if values.is_empty() {
            let none = self.answer.of(i256::ZERO, self.scale, 0).map_err(external)?;
            return Ok(arrow::array::new_empty_array(&none.data_type()));
        }
        ScalarValue::iter_to_array(values)
    }

    fn state(&mut self, emit: EmitTo) -> DfResult<Vec<ArrayRef>> {
        let (sums, counts) = (emit.take_needed(&mut self.sums), emit.take_needed(&mut self.counts));
        let sums = Decimal256Array::from(sums).with_precision_and_scale(76, self.scale)?;
        Ok(vec![Arc::new(sums), Arc::new(Int64Array::from(counts))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> DfResult<()> {
        self.resize(total);
        let [sums, counts] = states else { return Ok(()) };
        let (sums, counts) = (
            sums.as_primitive::<Decimal256Type>(),
            counts.as_primitive::<Int64Type>(),
        );
        for (row, group) in groups.iter().enumerate() {
            if sums.is_valid(row) && counts.is_valid(row) {
                self.add(*group, sums.value(row), counts.value(row)).map_err(external)?;
            }
        }
        Ok(())
    }

    /// Each row as a group of its own.
    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> DfResult<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |a| a.len());
        let mut single = Self::new(self.answer, self.scale);
        let groups: Vec<usize> = (0..rows).collect();
        single.update_batch(values, &groups, filter, rows)?;
        single.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i256>() + self.counts.capacity() * size_of::<i64>()
    }
}
