//! `percentile_cont`, `percentile_disc` and `mode`: values found by their place in an order.
//!
//! [`crate::sql::aggregates`] has written `percentile_cont(f) WITHIN GROUP (ORDER BY x DESC)` as `pg_percentile_cont(x, f, true)`. NULLs do
//! not count. A batch query gathers the values and sorts them; a view keeps them in order. Which places are asked for is [`Place`]'s to
//! say, for both.

use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, UInt32Array, make_comparator, new_null_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, cast, concat, filter, is_not_null, sort_to_indices, take};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

use super::{external, no_function};
use crate::PlanError;
use crate::sql::types::JSON;

/// Which of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderedSet {
    /// A value between two.
    Continuous,
    /// A value of the set.
    Discrete,
    /// The most frequent one, the first in order of several.
    Mode,
}

impl OrderedSet {
    /// The name of the function that stands for the syntax.
    fn name(self) -> &'static str {
        match self {
            Self::Continuous => "pg_percentile_cont",
            Self::Discrete => "pg_percentile_disc",
            Self::Mode => "pg_mode",
        }
    }
}

/// Where among `n` ordered values a percentile is found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// At this place, from 0.
    At(u64),
    /// Between this place and the next, at that part of the way.
    Between(u64, f64),
}

impl Place {
    /// Of a fraction in 0..=1; `n` is above zero.
    pub fn of(kind: OrderedSet, fraction: f64, n: u64) -> Self {
        // As PostgreSQL: in floats.
        if kind == OrderedSet::Continuous {
            let place = fraction * (n - 1) as f64;
            let (first, second) = (place.floor(), place.ceil());
            if first == second {
                Self::At(first as u64)
            } else {
                Self::Between(first as u64, place - first)
            }
        } else {
            Self::At(((fraction * n as f64).ceil() as u64).max(1) - 1)
        }
    }
}

/// A value between two others.
pub fn between(low: f64, high: f64, part: f64) -> f64 {
    let value = low + part * (high - low);
    // One NaN, whatever infinities it comes from.
    if value.is_nan() { f64::NAN } else { value }
}

/// A fraction that may be asked for.
///
/// # Errors
/// 22003 if it is not in 0..=1.
pub fn checked_fraction(fraction: f64) -> Result<f64, PlanError> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(fraction);
    }
    let text = super::cast::format_array(&(Arc::new(Float64Array::from(vec![fraction])) as ArrayRef))?;
    let text = text.as_string::<i32>().value(0).to_owned();
    Err(PlanError::new(
        "22003",
        format!("percentile value {text} is not between 0 and 1"),
    ))
}

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    [OrderedSet::Continuous, OrderedSet::Discrete, OrderedSet::Mode]
        .into_iter()
        .map(|kind| Arc::new(AggregateUDF::new_from_impl(PgOrderedSet::new(kind))))
        .collect()
}

/// The aggregate function of batch queries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PgOrderedSet {
    kind: OrderedSet,
    signature: Signature,
}

impl PgOrderedSet {
    fn new(kind: OrderedSet) -> Self {
        Self {
            kind,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl PgOrderedSet {
    fn value_type(&self, t: &DataType) -> DfResult<DataType> {
        let name = self.kind.name().trim_start_matches("pg_");
        if *t == JSON {
            return Err(external(
                PlanError::new("42883", "could not identify an ordering operator for type json")
                    .hint("Cast it to jsonb."),
            ));
        }
        if t.is_nested() {
            return Err(external(PlanError::unsupported(format!(
                "{name} of arrays is not supported"
            ))));
        }
        if self.kind != OrderedSet::Continuous {
            return Ok(if t.is_null() { DataType::Utf8 } else { t.clone() });
        }
        match t {
            DataType::Interval(_) => Err(external(
                PlanError::unsupported("percentile_cont of intervals is not supported")
                    .hint("Use percentile_disc, or extract(epoch FROM …)."),
            )),
            t if t.is_numeric() || matches!(t, DataType::Null) => Ok(DataType::Float64),
            other => Err(external(no_function(name, &[DataType::Float64, other.clone()]))),
        }
    }

    fn fractions_type(t: &DataType) -> DataType {
        if matches!(t, DataType::List(_)) {
            DataType::new_list(DataType::Float64, true)
        } else {
            DataType::Float64
        }
    }
}

impl AggregateUDFImpl for PgOrderedSet {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        match (self.kind, t) {
            (OrderedSet::Mode, [x, _]) => Ok(vec![self.value_type(x)?, DataType::Boolean]),
            (OrderedSet::Continuous | OrderedSet::Discrete, [x, fractions, _]) => Ok(vec![
                self.value_type(x)?,
                Self::fractions_type(fractions),
                DataType::Boolean,
            ]),
            (_, other) => Err(external(no_function(self.kind.name(), other))),
        }
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        let types = self.coerce_types(t)?;
        Ok(match types.as_slice() {
            [x, DataType::List(_), _] => DataType::new_list(x.clone(), true),
            [x, ..] => x.clone(),
            [] => DataType::Null,
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        let item = args
            .expr_fields
            .first()
            .map_or(DataType::Null, |f| f.data_type().clone());
        Ok(Box::new(Gathered {
            kind: self.kind,
            item,
            result: args.return_type().clone(),
            values: Vec::new(),
            fractions: None,
            descending: false,
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let field = |part: &str, t: DataType| Arc::new(Field::new(format!("{}[{part}]", args.name), t, true));
        let item = args
            .input_fields
            .first()
            .map_or(DataType::Null, |f| f.data_type().clone());
        Ok(vec![
            field("values", DataType::new_list(item, true)),
            field("fractions", DataType::new_list(DataType::Float64, true)),
            field("descending", DataType::Boolean),
        ])
    }
}

/// All values of a group.
#[derive(Debug)]
struct Gathered {
    kind: OrderedSet,
    item: DataType,
    result: DataType,
    values: Vec<ArrayRef>,
    /// Those of the first row; an array's elements.
    fractions: Option<ArrayRef>,
    descending: bool,
}

impl Gathered {
    /// Notes the arguments that are the same in all rows of a group.
    fn note(&mut self, fractions: Option<&ArrayRef>, descending: Option<&ArrayRef>) {
        if self.fractions.is_none()
            && let Some(fractions) = fractions.filter(|f| !f.is_empty())
        {
            self.fractions = Some(match fractions.as_list_opt::<i32>() {
                Some(lists) if lists.is_null(0) => new_null_array(&DataType::Float64, 1),
                Some(lists) => lists.value(0),
                None => fractions.slice(0, 1),
            });
        }
        if let Some(descending) = descending.and_then(|d| d.as_boolean_opt()).filter(|d| !d.is_empty()) {
            self.descending = descending.value(0);
        }
    }

    /// The values in order, without NULLs.
    fn sorted(&self) -> DfResult<ArrayRef> {
        let parts: Vec<&dyn Array> = self.values.iter().map(AsRef::as_ref).collect();
        if parts.is_empty() {
            return Ok(new_null_array(&self.item, 0));
        }
        let all = one_zero(&concat(&parts)?)?;
        let order = sort_to_indices(&all, Some(SortOptions::new(self.descending, false)), None)?;
        Ok(take(&all, &order, None)?)
    }

    fn percentiles(&self, sorted: &ArrayRef, fractions: &Float64Array) -> DfResult<ArrayRef> {
        let n = sorted.len() as u64;
        let mut places = Vec::with_capacity(fractions.len());
        for fraction in fractions {
            let fraction = fraction.map(checked_fraction).transpose().map_err(external)?;
            places.push(fraction.filter(|_| n > 0).map(|f| Place::of(self.kind, f, n)));
        }
        if self.kind == OrderedSet::Continuous {
            let values = sorted.as_primitive::<Float64Type>();
            let at = |place: &Option<Place>| {
                place.map(|place| match place {
                    Place::At(i) => values.value(i as usize),
                    Place::Between(i, part) => between(values.value(i as usize), values.value(i as usize + 1), part),
                })
            };
            return Ok(Arc::new(places.iter().map(at).collect::<Float64Array>()));
        }
        let at = places.iter().map(|place| match place {
            Some(Place::At(i) | Place::Between(i, _)) => Some(*i as u32),
            None => None,
        });
        Ok(take(sorted, &at.collect::<UInt32Array>(), None)?)
    }

    fn mode(sorted: &ArrayRef) -> DfResult<Option<usize>> {
        let same = make_comparator(sorted, sorted, SortOptions::default())?;
        let (mut best, mut best_n, mut start) = (None, 0, 0);
        for i in 1..=sorted.len() {
            if i < sorted.len() && same(i - 1, i).is_eq() {
                continue;
            }
            if i - start > best_n {
                (best, best_n) = (Some(start), i - start);
            }
            start = i;
        }
        Ok(best)
    }
}

/// `-0.0` and `0.0` are one value.
fn one_zero(values: &ArrayRef) -> DfResult<ArrayRef> {
    Ok(match values.data_type() {
        DataType::Float64 => Arc::new(
            values
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| v + 0.0),
        ),
        DataType::Float32 => Arc::new(
            values
                .as_primitive::<arrow::datatypes::Float32Type>()
                .unary::<_, arrow::datatypes::Float32Type>(|v| v + 0.0),
        ),
        _ => Arc::clone(values),
    })
}

fn list_of(values: ArrayRef) -> DfResult<ScalarValue> {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    Ok(ScalarValue::List(Arc::new(ListArray::try_new(
        item, offsets, values, None,
    )?)))
}

impl Accumulator for Gathered {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        match values {
            [_, fractions, descending] => self.note(Some(fractions), Some(descending)),
            [_, descending] => self.note(None, Some(descending)),
            _ => {
                return Err(external(PlanError::internal(
                    "an ordered-set aggregate lacks its arguments",
                )));
            }
        }
        let values = filter(&values[0], &is_not_null(&values[0])?)?;
        if !values.is_empty() {
            self.values.push(values);
        }
        Ok(())
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let sorted = self.sorted()?;
        if self.kind == OrderedSet::Mode {
            return match Self::mode(&sorted)? {
                Some(at) => ScalarValue::try_from_array(&sorted, at),
                None => ScalarValue::try_from(&self.result),
            };
        }
        let Some(fractions) = &self.fractions else {
            return ScalarValue::try_from(&self.result);
        };
        let fractions = cast(fractions, &DataType::Float64)?;
        let found = self.percentiles(&sorted, fractions.as_primitive::<Float64Type>())?;
        if matches!(self.result, DataType::List(_)) {
            if sorted.is_empty() {
                return ScalarValue::try_from(&self.result);
            }
            return list_of(found);
        }
        ScalarValue::try_from_array(&found, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.iter().map(|v| v.get_array_memory_size()).sum::<usize>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let parts: Vec<&dyn Array> = self.values.iter().map(AsRef::as_ref).collect();
        let all = if parts.is_empty() {
            new_null_array(&self.item, 0)
        } else {
            concat(&parts)?
        };
        let fractions = match &self.fractions {
            Some(fractions) => list_of(Arc::clone(fractions))?,
            None => ScalarValue::try_from(&DataType::new_list(DataType::Float64, true))?,
        };
        Ok(vec![
            list_of(all)?,
            fractions,
            ScalarValue::Boolean(Some(self.descending)),
        ])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let [values, fractions, descending] = states else {
            return Err(external(PlanError::internal("the state of an aggregate is damaged")));
        };
        let (values, fractions) = (values.as_list::<i32>(), fractions.as_list::<i32>());
        for row in 0..values.len() {
            if values.is_valid(row) && !values.value(row).is_empty() {
                self.values.push(values.value(row));
            }
            if self.fractions.is_none() && fractions.is_valid(row) {
                self.fractions = Some(fractions.value(row));
                self.descending = descending.as_boolean().value(row);
            }
            if self.kind == OrderedSet::Mode {
                self.descending |= descending.as_boolean().value(row);
            }
        }
        Ok(())
    }
}
