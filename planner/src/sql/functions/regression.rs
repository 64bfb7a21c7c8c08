//! `corr`, `covar_pop`, `covar_samp` and `regr_*`: what pairs of floats tell of each other.
//!
//! All of them are made of six numbers, [`PairMoments`]: N, Σx, Σy and the sums of squares and products around the means. A batch query
//! keeps them by PostgreSQL's own algorithm (Youngs and Cramer), so its digits are PostgreSQL's where rows come in the same order. A view
//! keeps exact sums, which rows can be taken back from, and rounds once; the two differ in the last places, and where values that are all
//! the same leave PostgreSQL a spread that is not quite zero.
//!
//! A view's pair is one value: `pg_pair(y, x)`, a list of both, NULL where one of them is.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{SortOptions, interleave};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, Signature, Volatility};
use serde::{Deserialize, Serialize};

use super::spread::{FloatTotal, product_moment};
use super::{PgFunction, external, no_function};
use crate::PlanError;

/// Which of them. The first argument is y, the second x.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Regression {
    /// `corr`.
    Corr,
    /// `covar_pop`.
    CovarPop,
    /// `covar_samp`.
    CovarSamp,
    /// `regr_avgx`.
    AvgX,
    /// `regr_avgy`.
    AvgY,
    /// `regr_count`.
    Count,
    /// `regr_intercept`.
    Intercept,
    /// `regr_r2`.
    R2,
    /// `regr_slope`.
    Slope,
    /// `regr_sxx`.
    Sxx,
    /// `regr_sxy`.
    Sxy,
    /// `regr_syy`.
    Syy,
}

const ALL: [Regression; 12] = [
    Regression::Corr,
    Regression::CovarPop,
    Regression::CovarSamp,
    Regression::AvgX,
    Regression::AvgY,
    Regression::Count,
    Regression::Intercept,
    Regression::R2,
    Regression::Slope,
    Regression::Sxx,
    Regression::Sxy,
    Regression::Syy,
];

impl Regression {
    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Corr => "corr",
            Self::CovarPop => "covar_pop",
            Self::CovarSamp => "covar_samp",
            Self::AvgX => "regr_avgx",
            Self::AvgY => "regr_avgy",
            Self::Count => "regr_count",
            Self::Intercept => "regr_intercept",
            Self::R2 => "regr_r2",
            Self::Slope => "regr_slope",
            Self::Sxx => "regr_sxx",
            Self::Sxy => "regr_sxy",
            Self::Syy => "regr_syy",
        }
    }

    /// The function of a name.
    pub fn of(name: &str) -> Option<Self> {
        ALL.into_iter().find(|r| r.name() == name)
    }

    fn result(self) -> DataType {
        if self == Self::Count {
            DataType::Int64
        } else {
            DataType::Float64
        }
    }
}

/// Number, sums, and sums of squares and products around the means.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PairMoments {
    /// Pairs.
    pub n: i64,
    /// Σx.
    pub x: f64,
    /// Σ(x − mean)².
    pub xx: f64,
    /// Σy.
    pub y: f64,
    /// Σ(y − mean)².
    pub yy: f64,
    /// Σ(x − mean of x)(y − mean of y).
    pub xy: f64,
}

impl PairMoments {
    /// From exact sums; what is around the means is rounded once.
    pub fn exact(
        n: i64,
        x: FloatTotal<'_>,
        y: FloatTotal<'_>,
        xx: FloatTotal<'_>,
        yy: FloatTotal<'_>,
        xy: FloatTotal<'_>,
    ) -> Self {
        Self {
            n,
            xx: product_moment(n, x, x, xx),
            yy: product_moment(n, y, y, yy),
            xy: product_moment(n, x, y, xy),
            ..Self::default()
        }
    }

    /// The result; `None` is NULL. `regr_count` is [`Self::n`] and not asked here.
    pub fn answer(&self, kind: Regression) -> Option<f64> {
        let n = self.n as f64;
        let flat_x = self.xx == 0.0;
        match kind {
            _ if self.n < 1 => None,
            Regression::Corr => (!flat_x && self.yy != 0.0).then(|| self.xy / (self.xx * self.yy).sqrt()),
            Regression::CovarPop => Some(self.xy / n),
            Regression::CovarSamp => (self.n > 1).then(|| self.xy / (n - 1.0)),
            Regression::AvgX => Some(self.x / n),
            Regression::AvgY => Some(self.y / n),
            Regression::Count => Some(n),
            Regression::Intercept => (!flat_x).then(|| (self.y - self.x * self.xy / self.xx) / n),
            Regression::R2 if flat_x => None,
            Regression::R2 if self.yy == 0.0 => Some(1.0),
            Regression::R2 => Some((self.xy * self.xy) / (self.xx * self.yy)),
            Regression::Slope => (!flat_x).then(|| self.xy / self.xx),
            Regression::Sxx => Some(self.xx),
            Regression::Sxy => Some(self.xy),
            Regression::Syy => Some(self.yy),
        }
    }

    /// Takes a pair, as PostgreSQL does.
    fn add(&mut self, y: f64, x: f64) -> Result<(), PlanError> {
        let old = *self;
        self.n += 1;
        self.x += x;
        self.y += y;
        let n = self.n as f64;
        if old.n > 0 {
            let (dx, dy) = (x * n - self.x, y * n - self.y);
            let scale = 1.0 / (n * old.n as f64);
            self.xx += dx * dx * scale;
            self.yy += dy * dy * scale;
            self.xy += dx * dy * scale;
            let finite_x = !old.x.is_infinite() && !x.is_infinite();
            let finite_y = !old.y.is_infinite() && !y.is_infinite();
            let over = (self.x.is_infinite() || self.xx.is_infinite()) && finite_x
                || (self.y.is_infinite() || self.yy.is_infinite()) && finite_y
                || self.xy.is_infinite() && finite_x && finite_y;
            if over {
                return Err(overflow());
            }
            for sum in [&mut self.xx, &mut self.yy, &mut self.xy] {
                if sum.is_infinite() {
                    *sum = f64::NAN;
                }
            }
        } else {
            if !x.is_finite() {
                (self.xx, self.xy) = (f64::NAN, f64::NAN);
            }
            if !y.is_finite() {
                (self.yy, self.xy) = (f64::NAN, f64::NAN);
            }
        }
        Ok(())
    }

    fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        if self.n == 0 {
            *self = *other;
            return;
        }
        let (m, k) = (self.n as f64, other.n as f64);
        let (dx, dy) = (self.x / m - other.x / k, self.y / m - other.y / k);
        let weight = m * k / (m + k);
        self.n += other.n;
        self.x += other.x;
        self.y += other.y;
        self.xx += other.xx + weight * dx * dx;
        self.yy += other.yy + weight * dy * dy;
        self.xy += other.xy + weight * dx * dy;
    }
}

fn overflow() -> PlanError {
    PlanError::new("22003", "value out of range: overflow")
}

/// `pg_pair(y, x)`.
pub(super) fn scalars() -> Vec<PgFunction> {
    vec![PgFunction::new("pg_pair", |_, _| Ok(pair_type()), |a, _| pair(a))]
}

/// The type of a pair.
pub fn pair_type() -> DataType {
    DataType::new_list(DataType::Float64, true)
}

fn pair(args: &[ArrayRef]) -> Result<ArrayRef, PlanError> {
    let [y, x] = args else {
        return Err(PlanError::internal("a pair of other than two"));
    };
    let internal = |e: arrow::error::ArrowError| PlanError::internal(e.to_string());
    let at: Vec<(usize, usize)> = (0..y.len()).flat_map(|row| [(0, row), (1, row)]).collect();
    let values = interleave(&[y.as_ref(), x.as_ref()], &at).map_err(internal)?;
    let nulls = NullBuffer::union(y.logical_nulls().as_ref(), x.logical_nulls().as_ref());
    let offsets = OffsetBuffer::from_repeated_length(2, y.len());
    let item = Arc::new(Field::new_list_field(DataType::Float64, true));
    Ok(Arc::new(
        ListArray::try_new(item, offsets, values, nulls).map_err(internal)?,
    ))
}

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    ALL.into_iter()
        .map(|kind| Arc::new(AggregateUDF::new_from_impl(PgRegression::new(kind))))
        .collect()
}

/// The aggregate function of batch queries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PgRegression {
    kind: Regression,
    signature: Signature,
}

impl PgRegression {
    fn new(kind: Regression) -> Self {
        Self {
            kind,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl AggregateUDFImpl for PgRegression {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        let number = |t: &DataType| t.is_numeric() || matches!(t, DataType::Null | DataType::Utf8);
        match t {
            [y, x] if number(y) && number(x) => Ok(vec![DataType::Float64; 2]),
            other => Err(external(no_function(self.kind.name(), other))),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.kind.result())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.is_distinct {
            return Ok(Box::new(DistinctPairs::new(self.kind)?));
        }
        Ok(Box::new(Pairs {
            kind: self.kind,
            moments: PairMoments::default(),
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let field = |part: &str, t: DataType| Arc::new(Field::new(format!("{}[{part}]", args.name), t, true));
        if args.is_distinct {
            return Ok(vec![
                field("y", DataType::new_list(DataType::Float64, true)),
                field("x", DataType::new_list(DataType::Float64, true)),
            ]);
        }
        let sums = ["x", "xx", "y", "yy", "xy"].map(|part| field(part, DataType::Float64));
        Ok(std::iter::once(field("n", DataType::Int64)).chain(sums).collect())
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.is_distinct {
            return self.accumulator(args);
        }
        Ok(Box::new(SlidingPairs {
            kind: self.kind,
            pairs: VecDeque::new(),
        }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

fn scalar(kind: Regression, moments: &PairMoments) -> ScalarValue {
    if kind == Regression::Count {
        ScalarValue::Int64(Some(moments.n))
    } else {
        ScalarValue::Float64(moments.answer(kind))
    }
}

/// Calls `f` with each pair that has both.
fn each(values: &[ArrayRef], mut f: impl FnMut(f64, f64) -> Result<(), PlanError>) -> DfResult<()> {
    let [y, x, ..] = values else { return Ok(()) };
    let (y, x) = (y.as_primitive::<Float64Type>(), x.as_primitive::<Float64Type>());
    for (y, x) in y.iter().zip(x) {
        if let (Some(y), Some(x)) = (y, x) {
            f(y, x).map_err(external)?;
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Pairs {
    kind: Regression,
    moments: PairMoments,
}

impl Accumulator for Pairs {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        each(values, |y, x| self.moments.add(y, x))
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        Ok(scalar(self.kind, &self.moments))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let m = &self.moments;
        let sums = [m.x, m.xx, m.y, m.yy, m.xy].map(|v| ScalarValue::Float64(Some(v)));
        Ok(std::iter::once(ScalarValue::Int64(Some(m.n))).chain(sums).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let [n, sums @ ..] = states else { return Ok(()) };
        let n = n.as_primitive::<arrow::datatypes::Int64Type>();
        let sums: Vec<&Float64Array> = sums.iter().map(|s| s.as_primitive::<Float64Type>()).collect();
        let [x, xx, y, yy, xy] = sums.as_slice() else {
            return Err(external(PlanError::internal("the state of an aggregate is damaged")));
        };
        for row in 0..n.len() {
            self.moments.merge(&PairMoments {
                n: n.value(row),
                x: x.value(row),
                xx: xx.value(row),
                y: y.value(row),
                yy: yy.value(row),
                xy: xy.value(row),
            });
        }
        Ok(())
    }
}

/// Over a frame that moves: a pair that leaves cannot be subtracted, so the frame's pairs are added up anew for each row.
#[derive(Debug)]
struct SlidingPairs {
    kind: Regression,
    pairs: VecDeque<(f64, f64)>,
}

impl Accumulator for SlidingPairs {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        each(values, |y, x| {
            self.pairs.push_back((y, x));
            Ok(())
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        each(values, |_, _| {
            self.pairs.pop_front();
            Ok(())
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let mut moments = PairMoments::default();
        for (y, x) in &self.pairs {
            moments.add(*y, *x).map_err(external)?;
        }
        Ok(scalar(self.kind, &moments))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.pairs.capacity() * 16
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        Err(external(PlanError::internal(
            "a window's aggregate has no partial state",
        )))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> DfResult<()> {
        Err(external(PlanError::internal(
            "a window's aggregate has no partial state",
        )))
    }
}

/// DISTINCT: the pairs in order.
struct DistinctPairs {
    kind: Regression,
    converter: RowConverter,
    seen: BTreeSet<OwnedRow>,
}

impl fmt::Debug for DistinctPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistinctPairs").field("kind", &self.kind).finish()
    }
}

impl DistinctPairs {
    fn new(kind: Regression) -> DfResult<Self> {
        let field = || SortField::new_with_options(DataType::Float64, SortOptions::default());
        Ok(Self {
            kind,
            converter: RowConverter::new(vec![field(), field()])?,
            seen: BTreeSet::new(),
        })
    }

    fn columns(&self) -> DfResult<Vec<ArrayRef>> {
        Ok(self.converter.convert_rows(self.seen.iter().map(OwnedRow::row))?)
    }
}

impl Accumulator for DistinctPairs {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let (mut y, mut x) = (Vec::new(), Vec::new());
        each(values, |a, b| {
            // One zero.
            y.push(a + 0.0);
            x.push(b + 0.0);
            Ok(())
        })?;
        let columns: [ArrayRef; 2] = [Arc::new(Float64Array::from(y)), Arc::new(Float64Array::from(x))];
        let rows = self.converter.convert_columns(&columns)?;
        self.seen.extend(rows.iter().map(|r| r.owned()));
        Ok(())
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let mut moments = PairMoments::default();
        each(&self.columns()?, |y, x| moments.add(y, x))?;
        Ok(scalar(self.kind, &moments))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.seen.len() * 64
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let list = |column: ArrayRef| {
            let item = Arc::new(Field::new_list_field(DataType::Float64, true));
            let offsets = OffsetBuffer::from_lengths([column.len()]);
            Ok(ScalarValue::List(Arc::new(ListArray::try_new(
                item, offsets, column, None,
            )?)))
        };
        self.columns()?.into_iter().map(list).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let [y, x, ..] = states else { return Ok(()) };
        for (y, x) in y.as_list::<i32>().iter().zip(x.as_list::<i32>().iter()) {
            if let (Some(y), Some(x)) = (y, x) {
                self.update_batch(&[y, x])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PostgreSQL 15's answers for (1, 2), (3, 5), (4, 4), (8, 9).
    #[test]
    fn answers_are_postgresqls() {
        let mut all = PairMoments::default();
        let (mut left, mut right) = (PairMoments::default(), PairMoments::default());
        for (i, (y, x)) in [(1.0, 2.0), (3.0, 5.0), (4.0, 4.0), (8.0, 9.0)].into_iter().enumerate() {
            all.add(y, x).unwrap();
            let part = if i < 2 { &mut left } else { &mut right };
            part.add(y, x).unwrap();
        }
        left.merge(&right);
        for m in [all, left] {
            assert_eq!((m.n, m.x, m.y, m.xx, m.yy, m.xy), (4, 20.0, 16.0, 26.0, 26.0, 25.0));
            assert_eq!(m.answer(Regression::Slope), Some(25.0 / 26.0));
            assert_eq!(m.answer(Regression::R2), Some(625.0 / 676.0));
            assert_eq!(m.answer(Regression::CovarSamp), Some(25.0 / 3.0));
        }
        assert_eq!(PairMoments::default().answer(Regression::AvgX), None);
        assert!(all.add(f64::MAX, 1.0).and_then(|()| all.add(f64::MAX, 1.0)).is_err());
    }
}
