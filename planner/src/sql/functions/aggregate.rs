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
//! Sums are DataFusion's own after a cast that rules out overflow; the exact average is ours.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Decimal256Type, Field, FieldRef, Int64Type, i256};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};

use super::arith::{arithmetic_error, decimal_parts, divide, to_256};
use super::cast::cast_array;
use super::{external, no_function};
use crate::PlanError;
use crate::sql::text::numeric_overflow;
use crate::sql::types::{self, BARE_NUMERIC, QUOTIENT};

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    vec![
        Arc::new(AggregateUDF::new_from_impl(PgSum::new())),
        Arc::new(AggregateUDF::new_from_impl(PgAvg::new())),
    ]
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

/// The type that `sum` adds in.
fn sum_argument(t: &DataType) -> Result<DataType, PlanError> {
    Ok(match t {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 => DataType::Int64,
        DataType::Int64 | DataType::UInt32 | DataType::UInt64 => DataType::Decimal128(38, 0),
        DataType::Decimal128(p, s) if *p <= 28 => DataType::Decimal128(*p, *s),
        DataType::Decimal128(p, s) => DataType::Decimal256(*p, *s),
        DataType::Decimal256(..) => t.clone(),
        DataType::Float32 | DataType::Float64 | DataType::Null => DataType::Float64,
        other => return Err(no_function("sum", std::slice::from_ref(other))),
    })
}

fn sum_result(argument: &DataType) -> DataType {
    match argument {
        DataType::Decimal128(38, 0) => DataType::Decimal128(38, 0),
        DataType::Decimal128(p, s) => DataType::Decimal128((*p + 10).min(38), *s),
        t if t == &BARE_NUMERIC || t == &QUOTIENT => BARE_NUMERIC,
        DataType::Decimal256(p, s) => DataType::Decimal256((*p + 10).min(76), *s),
        other => other.clone(),
    }
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
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        self.inner.create_sliding_accumulator(args)
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
    Ok(match t {
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Decimal128(..) | DataType::Decimal256(..) => t.clone(),
        DataType::Float32 | DataType::Float64 | DataType::Null => DataType::Float64,
        other => return Err(no_function("avg", std::slice::from_ref(other))),
    })
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
        let scale = args
            .expr_fields
            .first()
            .and_then(|f| decimal_parts(f.data_type()))
            .map_or(0, |(_, s)| s);
        Ok(Box::new(ExactAvg {
            scale,
            sum: i256::ZERO,
            count: 0,
            distinct: args.is_distinct.then(BTreeSet::new),
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        if args.return_field.data_type() == &DataType::Float64 {
            return self.float.state_fields(args);
        }
        let scale = args
            .input_fields
            .first()
            .and_then(|f| decimal_parts(f.data_type()))
            .map_or(0, |(_, s)| s);
        let sum = DataType::Decimal256(76, scale);
        let name = |part: &str| format!("{}[{part}]", args.name);
        if args.is_distinct {
            return Ok(vec![Arc::new(Field::new_list(
                name("values"),
                Field::new_list_field(sum, true),
                true,
            ))]);
        }
        Ok(vec![
            Arc::new(Field::new(name("sum"), sum, true)),
            Arc::new(Field::new(name("count"), DataType::Int64, true)),
        ])
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.return_type() == &DataType::Float64 {
            return self.float.create_sliding_accumulator(args);
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

#[derive(Debug)]
struct ExactAvg {
    scale: i8,
    sum: i256,
    count: i64,
    distinct: Option<BTreeSet<i256>>,
}

impl ExactAvg {
    fn values(&self, a: &ArrayRef) -> Result<Vec<i256>, PlanError> {
        if a.data_type() == &DataType::Int64 {
            let ints = a.as_primitive::<Int64Type>();
            return Ok(ints.iter().flatten().map(|v| i256::from_i128(i128::from(v))).collect());
        }
        let a = if decimal_parts(a.data_type()).is_some() {
            Arc::clone(a)
        } else {
            cast_array(a, &types::decimal(38, self.scale))?
        };
        Ok(to_256(&a)?.iter().flatten().collect())
    }

    fn add(&mut self, v: i256) -> Result<(), PlanError> {
        self.sum = self.sum.checked_add(v).ok_or_else(numeric_overflow)?;
        self.count += 1;
        Ok(())
    }
}

impl Accumulator for ExactAvg {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let Some(a) = values.first() else { return Ok(()) };
        for v in self.values(a).map_err(external)? {
            match &mut self.distinct {
                Some(seen) => {
                    seen.insert(v);
                }
                None => self.add(v).map_err(external)?,
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let Some(a) = values.first() else { return Ok(()) };
        for v in self.values(a).map_err(external)? {
            self.sum = self.sum.checked_sub(v).ok_or_else(numeric_overflow).map_err(external)?;
            self.count -= 1;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        self.distinct.is_none()
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let (mut sum, mut count) = (self.sum, self.count);
        if let Some(seen) = &self.distinct {
            for v in seen {
                sum = sum.checked_add(*v).ok_or_else(numeric_overflow).map_err(external)?;
                count += 1;
            }
        }
        if count == 0 {
            return Ok(ScalarValue::Decimal256(None, 75, 38));
        }
        let v = exact_avg(sum, self.scale, count).map_err(external)?;
        Ok(ScalarValue::Decimal256(Some(v), 75, 38))
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
                self.sum = self.sum.checked_add(s).ok_or_else(numeric_overflow).map_err(external)?;
                self.count += c;
            }
        }
        Ok(())
    }
}
