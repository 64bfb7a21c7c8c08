//! `stddev`, `variance` and their kin: from exact sums of the values and of their squares, to PostgreSQL's last digit.
//!
//! Over integers and numeric PostgreSQL computes `(N·Σx² − (Σx)²) / (N·(N−1))` in exact arithmetic, divides with as many digits as any
//! division gets, and draws the root of that with the same number of digits. [`Moments`] holds N, Σx and Σx² as wide integers, so rows can
//! be taken back; [`exact`] does the rest. The results have types of their own, [`VARIANCE`] and [`DEVIATION`], which tell how many zeros are
//! shown at their end.
//!
//! Over floats the same formula is applied to exact sums ([`float`]), which a view keeps; a batch query uses DataFusion's running
//! variance. Both are within a few units of the last place of PostgreSQL's, whose own last digits follow the order of rows.

use std::collections::BTreeSet;
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, i256};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::functions_aggregate::stddev::{stddev_pop_udaf, stddev_udaf};
use datafusion::functions_aggregate::variance::{var_pop_udaf, var_samp_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use num_bigint::{BigInt, BigUint, Sign};
use serde::{Deserialize, Serialize};

use super::aggregate::{each, scale_of};
use super::arith::decimal_parts;
use super::{external, no_function};
use crate::PlanError;
use crate::sql::text::numeric_overflow;
use crate::sql::types::{DEVIATION, VARIANCE, is_unlimited};

/// Which of the four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Spread {
    /// `var_samp`, `variance`.
    VarSamp,
    /// `var_pop`.
    VarPop,
    /// `stddev_samp`, `stddev`.
    StddevSamp,
    /// `stddev_pop`.
    StddevPop,
}

impl Spread {
    /// Of all values, or of a sample.
    fn is_sample(self) -> bool {
        matches!(self, Self::VarSamp | Self::StddevSamp)
    }

    fn is_root(self) -> bool {
        matches!(self, Self::StddevSamp | Self::StddevPop)
    }

    /// The type of the result over integers and numeric.
    pub fn exact_type(self) -> DataType {
        if self.is_root() { DEVIATION } else { VARIANCE }
    }

    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::VarSamp => "var_samp",
            Self::VarPop => "var_pop",
            Self::StddevSamp => "stddev",
            Self::StddevPop => "stddev_pop",
        }
    }

    fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::VarSamp => &["var", "var_sample", "variance"],
            Self::VarPop => &["var_population"],
            Self::StddevSamp => &["stddev_samp"],
            Self::StddevPop => &[],
        }
    }

    fn over_floats(self) -> Arc<AggregateUDF> {
        match self {
            Self::VarSamp => var_samp_udaf(),
            Self::VarPop => var_pop_udaf(),
            Self::StddevSamp => stddev_udaf(),
            Self::StddevPop => stddev_pop_udaf(),
        }
    }
}

/// A signed integer of N·64 bits, lowest limb first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wide<const N: usize>([u64; N]);

impl<const N: usize> Wide<N> {
    /// Adds `limbs · times`.
    fn add(&mut self, limbs: &[u64], times: i64) {
        let factor = u128::from(times.unsigned_abs());
        let negative = times < 0;
        let (mut carry, mut borrow) = (0_u128, false);
        for (i, slot) in self.0.iter_mut().enumerate() {
            let product = limbs.get(i).map_or(0, |l| u128::from(*l) * factor) + carry;
            carry = product >> 64;
            // The low half, which is what is added here.
            let low = product as u64;
            let (sum, first) = if negative {
                slot.overflowing_sub(low)
            } else {
                slot.overflowing_add(low)
            };
            let (sum, second) = if negative {
                sum.overflowing_sub(u64::from(borrow))
            } else {
                sum.overflowing_add(u64::from(borrow))
            };
            *slot = sum;
            borrow = first || second;
        }
    }

    fn merge(&mut self, other: &Self) {
        let mut carry = false;
        for (slot, limb) in self.0.iter_mut().zip(&other.0) {
            let (sum, first) = slot.overflowing_add(*limb);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            *slot = sum;
            carry = first || second;
        }
    }

    fn big(&self) -> BigInt {
        let bytes: Vec<u8> = self.0.iter().flat_map(|l| l.to_le_bytes()).collect();
        BigInt::from_signed_bytes_le(&bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|l| out.extend_from_slice(&l.to_le_bytes()));
    }

    fn decode(from: &[u8]) -> Self {
        let mut limbs = [0; N];
        for (limb, bytes) in limbs.iter_mut().zip(from.chunks_exact(8)) {
            *limb = bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
        }
        Self(limbs)
    }
}

/// Number, sum and sum of squares of unscaled values. `N` limbs of 64 bits hold each sum: 4 for values of at most 18 digits or 64 bits, 9 for
/// all (2⁶³ squares of 252 bits).
#[derive(Debug, Clone)]
pub struct Moments<const N: usize> {
    count: i64,
    sum: Wide<N>,
    squares: Wide<N>,
    /// For unlimited numeric: how many values have how many digits after the point.
    scales: Vec<(u8, i64)>,
}

impl<const N: usize> Default for Moments<N> {
    fn default() -> Self {
        Self {
            count: 0,
            sum: Wide([0; N]),
            squares: Wide([0; N]),
            scales: Vec::new(),
        }
    }
}

impl<const N: usize> Moments<N> {
    /// Adds a 64-bit value `times` times.
    #[inline]
    pub fn add_i64(&mut self, value: i64, times: i64) {
        let magnitude = value.unsigned_abs();
        self.count += times;
        self.sum.add(&[magnitude], if value < 0 { -times } else { times });
        let square = u128::from(magnitude) * u128::from(magnitude);
        self.squares.add(&[square as u64, (square >> 64) as u64], times);
    }

    /// Adds a value `times` times. With `scale`, which is an unlimited numeric's, its own digits are counted.
    pub fn add(&mut self, value: i256, times: i64, scale: Option<u8>) {
        let (low, high) = value.wrapping_abs().to_parts();
        let high = high.cast_unsigned();
        let limbs = [low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64];
        self.count += times;
        self.sum.add(&limbs, if value < i256::ZERO { -times } else { times });
        self.squares.add(&square(limbs), times);
        if let Some(scale) = scale {
            self.add_scale(own_scale(value, scale), times);
        }
    }

    fn add_scale(&mut self, scale: u8, times: i64) {
        match self.scales.iter_mut().find(|(s, _)| *s == scale) {
            Some((_, n)) => *n += times,
            None => self.scales.push((scale, times)),
        }
        self.scales.retain(|(_, n)| *n != 0);
    }

    /// Adds another's values.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
        for (scale, n) in &other.scales {
            self.add_scale(*scale, *n);
        }
    }

    /// Appends the state.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.count.to_le_bytes());
        self.sum.encode(out);
        self.squares.encode(out);
        let mut scales = self.scales.clone();
        scales.sort_unstable();
        for (scale, n) in scales {
            out.push(scale);
            out.extend_from_slice(&n.to_le_bytes());
        }
    }

    /// Reads what [`Self::encode`] wrote; `None` for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let (sum, rest) = rest.split_at_checked(8 * N)?;
        let (squares, rest) = rest.split_at_checked(8 * N)?;
        let scales = rest.chunks(9).map(|c| {
            let (scale, n) = c.split_first()?;
            Some((*scale, i64::from_le_bytes(n.try_into().ok()?)))
        });
        Some(Self {
            count: i64::from_le_bytes(*count),
            sum: Wide::decode(sum),
            squares: Wide::decode(squares),
            scales: scales.collect::<Option<_>>()?,
        })
    }

    /// The answer as an unscaled value of [`Spread::exact_type`]; `scale` is the column's, `unlimited` says that values have their own.
    ///
    /// # Errors
    /// 22003 when it has more digits than the type.
    pub fn answer(&self, spread: Spread, scale: u8, unlimited: bool) -> Result<Option<i256>, PlanError> {
        let shown = if unlimited {
            self.scales.iter().map(|(s, _)| *s).max().unwrap_or(0)
        } else {
            scale
        };
        exact(spread, self.count, &self.sum.big(), &self.squares.big(), scale, shown)
    }
}

fn square(limbs: [u64; 4]) -> [u64; 8] {
    let mut wide = [0_u64; 8];
    for (i, a) in limbs.iter().enumerate() {
        let mut carry = 0_u128;
        for (j, b) in limbs.iter().enumerate() {
            let sum = u128::from(*a) * u128::from(*b) + u128::from(wide[i + j]) + carry;
            wide[i + j] = sum as u64;
            carry = sum >> 64;
        }
        wide[i + 4] = carry as u64;
    }
    wide
}

/// Digits after the point of a value at `scale`, without zeros at the end.
fn own_scale(value: i256, scale: u8) -> u8 {
    if value == i256::ZERO {
        return 0;
    }
    let ten = i256::from_i128(10);
    let (mut value, mut scale) = (value, scale);
    while scale > 0 && value.wrapping_rem(ten) == i256::ZERO {
        value = value.wrapping_div(ten);
        scale -= 1;
    }
    scale
}

fn pow10(n: u32) -> BigInt {
    BigInt::from(10).pow(n)
}

/// A positive number `value / 10^scale` as PostgreSQL's numeric holds it, in groups of four digits: weight and value of the first group.
fn leading_group(value: &BigInt, scale: u32) -> (i64, u32) {
    let text = value.to_string();
    let digits = i64::try_from(text.len()).unwrap_or(i64::MAX) - i64::from(scale);
    let weight = (digits - 1).div_euclid(4);
    let take = usize::try_from(digits - 4 * weight).unwrap_or(4);
    let group = (0..take).fold(0, |v, i| {
        let digit = text.as_bytes().get(i).map_or(0, |b| u32::from(b - b'0'));
        v * 10 + digit
    });
    (weight, group)
}

/// PostgreSQL's `numeric_stddev_internal`: sums of values with `scale` digits after the point, of which `shown` count for the result's scale.
fn exact(
    spread: Spread,
    count: i64,
    sum: &BigInt,
    squares: &BigInt,
    scale: u8,
    shown: u8,
) -> Result<Option<i256>, PlanError> {
    if count <= i64::from(spread.is_sample()) {
        return Ok(None);
    }
    let n = BigInt::from(count);
    let numerator = &n * squares - sum * sum;
    if numerator.sign() != Sign::Plus {
        return Ok(Some(i256::ZERO));
    }
    let denominator = if spread.is_sample() { &n * (&n - 1_u32) } else { &n * &n };
    let scale = 2 * u32::from(scale);
    let (weight, group) = leading_group(&numerator, scale);
    let (other_weight, other_group) = leading_group(&denominator, 0);
    let weight = weight - other_weight - i64::from(group <= other_group);
    // select_div_scale: 16 significant digits, no fewer than the operands show, at most 1000.
    let digits = (16 - 4 * weight).max(2 * i64::from(shown)).clamp(0, 1000);
    let digits = u32::try_from(digits).unwrap_or(0);
    let divisor = denominator * pow10(scale);
    // Half up: nothing here is negative.
    let mut value: BigInt = (numerator * pow10(digits) * 2_u32 + &divisor) / (divisor * 2_u32);
    if spread.is_root() {
        let four_times: BigInt = value * pow10(digits) * 4_u32;
        value = (four_times.sqrt() + 1_u32) / 2_u32;
    }
    let (precision, kept) = decimal_parts(&spread.exact_type()).unwrap_or((75, 37));
    let kept = u32::try_from(kept).unwrap_or(0);
    value = if digits <= kept {
        value * pow10(kept - digits)
    } else {
        let by = pow10(digits - kept);
        (value * 2_u32 + &by) / (by * 2_u32)
    };
    if value >= pow10(u32::from(precision)) {
        return Err(numeric_overflow());
    }
    let mut bytes = [0_u8; 32];
    let little = value.to_signed_bytes_le();
    bytes
        .get_mut(..little.len())
        .ok_or_else(numeric_overflow)?
        .copy_from_slice(&little);
    Ok(Some(i256::from_le_bytes(bytes)))
}

/// An exact sum of floats: limbs of weight 2³² each, the first of weight `2^exponent`; all but the last in 0..2³², the last with the sign.
#[derive(Debug, Clone, Copy)]
pub struct FloatTotal<'a> {
    /// Limbs, lowest first.
    pub limbs: &'a [i64],
    /// Weight of the first limb's lowest bit.
    pub exponent: i32,
}

impl FloatTotal<'_> {
    /// The total without zeros at its end, and its exponent.
    fn big(&self) -> (BigInt, i64) {
        let Some(first) = self.limbs.iter().position(|l| *l != 0) else {
            return (BigInt::from(0), i64::from(self.exponent));
        };
        let total = self.limbs[first..]
            .iter()
            .rev()
            .fold(BigInt::from(0), |v, l| (v << 32) + l);
        (total, i64::from(self.exponent) + 32 * i64::try_from(first).unwrap_or(0))
    }
}

/// The answer over floats; `None` is NULL. All of them are finite.
pub fn float(spread: Spread, count: i64, sum: FloatTotal<'_>, squares: FloatTotal<'_>) -> Option<f64> {
    if count <= i64::from(spread.is_sample()) {
        return None;
    }
    let n = BigInt::from(count);
    let ((sum, sum_exponent), (squares, squares_exponent)) = (sum.big(), squares.big());
    let (sum, sum_exponent) = (&sum * &sum, 2 * sum_exponent);
    let exponent = sum_exponent.min(squares_exponent);
    let shifted = |v: BigInt, from: i64| v << usize::try_from(from - exponent).unwrap_or(0);
    let numerator = shifted(&n * squares, squares_exponent) - shifted(sum, sum_exponent);
    if numerator.sign() != Sign::Plus {
        return Some(0.0);
    }
    let denominator = if spread.is_sample() { &n * (&n - 1_u32) } else { &n * &n };
    let variance = ratio(numerator.magnitude(), denominator.magnitude(), exponent);
    Some(if spread.is_root() { variance.sqrt() } else { variance })
}

/// `Σab − Σa·Σb/N`, rounded once: what covariance and regression are made of. All values are finite.
pub(super) fn product_moment(count: i64, a: FloatTotal<'_>, b: FloatTotal<'_>, products: FloatTotal<'_>) -> f64 {
    if count < 1 {
        return 0.0;
    }
    let n = BigInt::from(count);
    let ((a, a_exponent), (b, b_exponent), (products, products_exponent)) = (a.big(), b.big(), products.big());
    let (sums, sums_exponent) = (a * b, a_exponent + b_exponent);
    let exponent = sums_exponent.min(products_exponent);
    let shifted = |v: BigInt, from: i64| v << usize::try_from(from - exponent).unwrap_or(0);
    let numerator = shifted(&n * products, products_exponent) - shifted(sums, sums_exponent);
    let size = match numerator.sign() {
        Sign::NoSign => return 0.0,
        _ => ratio(numerator.magnitude(), n.magnitude(), exponent),
    };
    if numerator.sign() == Sign::Minus { -size } else { size }
}

/// `numerator / denominator · 2^exponent`, rounded.
fn ratio(numerator: &BigUint, denominator: &BigUint, exponent: i64) -> f64 {
    // At least 64 bits of quotient, the lowest of which also stands for the rest.
    let bits = |v: &BigUint| i64::try_from(v.bits()).unwrap_or(i64::MAX);
    let up = (66 + bits(denominator) - bits(numerator)).max(0);
    let shifted = numerator << usize::try_from(up).unwrap_or(0);
    let (quotient, rest) = (&shifted / denominator, &shifted % denominator);
    let down = (bits(&quotient) - 64).max(0);
    let at = usize::try_from(down).unwrap_or(0);
    let top = &quotient >> at;
    let lost = rest.bits() > 0 || (&top << at) != quotient;
    let top = top.iter_u64_digits().next().unwrap_or(0) | u64::from(lost);
    scaled(top as f64, exponent + down - up)
}

/// `v · 2^exponent`, in steps that neither overflow nor underflow before the result does.
fn scaled(mut v: f64, mut exponent: i64) -> f64 {
    while exponent > 1000 && v.is_finite() {
        v *= 2_f64.powi(1000);
        exponent -= 1000;
    }
    while exponent < -1000 && v != 0.0 {
        v *= 2_f64.powi(-1000);
        exponent += 1000;
    }
    v * 2_f64.powi(i32::try_from(exponent).unwrap_or(0))
}

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    [Spread::VarSamp, Spread::VarPop, Spread::StddevSamp, Spread::StddevPop]
        .into_iter()
        .map(|spread| Arc::new(AggregateUDF::new_from_impl(PgSpread::new(spread))))
        .collect()
}

/// The aggregate function of batch queries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PgSpread {
    spread: Spread,
    aliases: Vec<String>,
    signature: Signature,
    float: Arc<AggregateUDF>,
}

impl PgSpread {
    fn new(spread: Spread) -> Self {
        Self {
            spread,
            aliases: spread.aliases().iter().map(|s| (*s).to_owned()).collect(),
            signature: Signature::user_defined(Volatility::Immutable),
            float: spread.over_floats(),
        }
    }

    /// The type of the argument that is taken for one of this type; a fixed point.
    fn argument(&self, t: &[DataType]) -> DfResult<DataType> {
        match t {
            [t @ (DataType::Int16 | DataType::Int32 | DataType::Int64)] => Ok(t.clone()),
            [t] if decimal_parts(t).is_some() => Ok(t.clone()),
            [DataType::Int8 | DataType::UInt8] => Ok(DataType::Int16),
            [DataType::UInt16] => Ok(DataType::Int32),
            [DataType::UInt32 | DataType::UInt64] => Ok(DataType::Int64),
            [DataType::Float32 | DataType::Float64 | DataType::Null] => Ok(DataType::Float64),
            other => Err(external(no_function(self.spread.name(), other))),
        }
    }
}

impl AggregateUDFImpl for PgSpread {
    fn name(&self) -> &str {
        self.spread.name()
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, t: &[DataType]) -> DfResult<Vec<DataType>> {
        Ok(vec![self.argument(t)?])
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        Ok(match self.argument(t)? {
            DataType::Float64 => DataType::Float64,
            _ => self.spread.exact_type(),
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        if args.return_type() == &DataType::Float64 {
            if args.is_distinct {
                return Ok(Box::new(DistinctFloats {
                    spread: self.spread,
                    seen: BTreeSet::new(),
                }));
            }
            return self.float.accumulator(args);
        }
        let unlimited = args.expr_fields.first().is_some_and(|f| is_unlimited(f.data_type()));
        Ok(Box::new(Exact {
            spread: self.spread,
            scale: u8::try_from(scale_of(args.expr_fields)).unwrap_or(0),
            unlimited,
            moments: Moments::default(),
            distinct: args.is_distinct.then(BTreeSet::new),
        }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        args.return_type() == &DataType::Float64 && !args.is_distinct && self.float.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        self.float.create_groups_accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let name = format!("{}[state]", args.name);
        if args.is_distinct {
            let item = if args.return_field.data_type() == &DataType::Float64 {
                DataType::Float64
            } else {
                DataType::Decimal256(76, scale_of(args.input_fields))
            };
            return Ok(vec![Arc::new(Field::new_list(
                name,
                Field::new_list_field(item, true),
                true,
            ))]);
        }
        if args.return_field.data_type() == &DataType::Float64 {
            return self.float.state_fields(args);
        }
        Ok(vec![Arc::new(Field::new(name, DataType::Binary, true))])
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

/// Over integers and numeric.
#[derive(Debug)]
struct Exact {
    spread: Spread,
    scale: u8,
    unlimited: bool,
    moments: Moments<9>,
    distinct: Option<BTreeSet<i256>>,
}

impl Exact {
    fn take(&mut self, values: &[ArrayRef], times: i64) -> DfResult<()> {
        let Some(a) = values.first() else { return Ok(()) };
        let scale = self.unlimited.then_some(self.scale);
        each(a, |_, v| {
            match &mut self.distinct {
                Some(seen) => drop(seen.insert(v)),
                None => self.moments.add(v, times, scale),
            }
            Ok(())
        })
        .map_err(external)
    }
}

impl Accumulator for Exact {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.take(values, 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.take(values, -1)
    }

    fn supports_retract_batch(&self) -> bool {
        self.distinct.is_none()
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let mut moments = self.moments.clone();
        for v in self.distinct.iter().flatten() {
            moments.add(*v, 1, self.unlimited.then_some(self.scale));
        }
        let answer = moments
            .answer(self.spread, self.scale, self.unlimited)
            .map_err(external)?;
        let (p, s) = decimal_parts(&self.spread.exact_type()).unwrap_or((75, 37));
        Ok(ScalarValue::Decimal256(answer, p, s))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.distinct.as_ref().map_or(0, |d| d.len() * 48)
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        if let Some(seen) = &self.distinct {
            let scale = i8::try_from(self.scale).unwrap_or(0);
            let values: Vec<ScalarValue> = seen
                .iter()
                .map(|v| ScalarValue::Decimal256(Some(*v), 76, scale))
                .collect();
            let list = ScalarValue::new_list_nullable(&values, &DataType::Decimal256(76, scale));
            return Ok(vec![ScalarValue::List(list)]);
        }
        let mut bytes = Vec::new();
        self.moments.encode(&mut bytes);
        Ok(vec![ScalarValue::Binary(Some(bytes))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let Some(states) = states.first() else { return Ok(()) };
        if let Some(seen) = &mut self.distinct {
            for list in states.as_list::<i32>().iter().flatten() {
                each(&list, |_, v| {
                    seen.insert(v);
                    Ok(())
                })
                .map_err(external)?;
            }
            return Ok(());
        }
        for bytes in states.as_binary::<i32>().iter().flatten() {
            let other = Moments::decode(bytes)
                .ok_or_else(|| external(PlanError::internal("the state of an aggregate is damaged")))?;
            self.moments.merge(&other);
        }
        Ok(())
    }
}

/// Over distinct floats, by their order; one zero, one NaN.
#[derive(Debug)]
struct DistinctFloats {
    spread: Spread,
    seen: BTreeSet<u64>,
}

/// Bits that order as the floats do.
fn ordered_bits(v: f64) -> u64 {
    let bits = if v.is_nan() { f64::NAN } else { v + 0.0 }.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

fn float_of(ordered: u64) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 {
        ordered & !(1 << 63)
    } else {
        !ordered
    })
}

impl DistinctFloats {
    fn take(&mut self, a: &ArrayRef) {
        self.seen
            .extend(a.as_primitive::<Float64Type>().iter().flatten().map(ordered_bits));
    }
}

impl Accumulator for DistinctFloats {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        values.first().into_iter().for_each(|a| self.take(a));
        Ok(())
    }

    /// Two passes: the mean, then the squares around it.
    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let n = self.seen.len();
        if n <= usize::from(self.spread.is_sample()) {
            return Ok(ScalarValue::Float64(None));
        }
        let mean = self.seen.iter().map(|v| float_of(*v)).sum::<f64>() / n as f64;
        let squares: f64 = self.seen.iter().map(|v| (float_of(*v) - mean).powi(2)).sum();
        let variance = squares / (n - usize::from(self.spread.is_sample())) as f64;
        Ok(ScalarValue::Float64(Some(if self.spread.is_root() {
            variance.sqrt()
        } else {
            variance
        })))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.seen.len() * 16
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let values: Vec<ScalarValue> = self
            .seen
            .iter()
            .map(|v| ScalarValue::Float64(Some(float_of(*v))))
            .collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(
            &values,
            &DataType::Float64,
        ))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let Some(lists) = states.first() else { return Ok(()) };
        lists
            .as_list::<i32>()
            .iter()
            .flatten()
            .for_each(|list| self.take(&list));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::text::format_numeric;

    fn answer(spread: Spread, values: &[i64], scale: u8) -> String {
        let (mut narrow, mut wide) = (Moments::<4>::default(), Moments::<9>::default());
        for v in values {
            narrow.add_i64(*v, 1);
            wide.add(i256::from_i128(i128::from(*v)), 1, None);
        }
        let result = narrow.answer(spread, scale, false).unwrap();
        assert_eq!(result, wide.answer(spread, scale, false).unwrap());
        result.map_or("NULL".to_owned(), |v| format_numeric(v, &spread.exact_type()))
    }

    /// PostgreSQL 15's answers.
    #[test]
    fn digits_are_postgresqls() {
        use Spread::{StddevPop, StddevSamp, VarPop, VarSamp};
        let one_to_four = [1, 2, 3, 4];
        assert_eq!(answer(VarSamp, &one_to_four, 0), "1.6666666666666667");
        assert_eq!(answer(VarPop, &one_to_four, 0), "1.2500000000000000");
        assert_eq!(answer(StddevSamp, &one_to_four, 0), "1.2909944487358056");
        assert_eq!(answer(StddevPop, &one_to_four, 0), "1.1180339887498948");
        assert_eq!(answer(VarSamp, &[1, 2], 0), "0.50000000000000000000");
        assert_eq!(answer(StddevSamp, &[1, 2], 0), "0.70710678118654752440");
        assert_eq!(answer(VarSamp, &[7, 7, 7], 0), "0");
        assert_eq!(answer(StddevPop, &[7], 0), "0");
        assert_eq!(answer(StddevSamp, &[7], 0), "NULL");
        assert_eq!(answer(VarPop, &[], 0), "NULL");
        assert_eq!(answer(VarSamp, &[100_000, 200_000, 300_001], 0), "10000100000.33333333");
        assert_eq!(answer(StddevSamp, &[100_000, 200_000, 300_001], 0), "100000.50000042");
    }

    #[test]
    fn rows_can_be_taken_back() {
        let mut moments = Moments::<9>::default();
        let big = i256::from_i128(10).wrapping_pow(75);
        for v in [big, i256::from_i128(3), big.wrapping_neg(), i256::from_i128(-8)] {
            moments.add(v, 3, Some(38));
        }
        for v in [big, big.wrapping_neg()] {
            moments.add(v, -3, Some(38));
        }
        moments.add(i256::from_i128(-8), -2, Some(38));
        moments.add(i256::from_i128(3), -3, Some(38));
        let mut bytes = Vec::new();
        moments.encode(&mut bytes);
        let again = Moments::<9>::decode(&bytes).unwrap();
        let mut single = Moments::<9>::default();
        single.add(i256::from_i128(-8), 1, Some(38));
        assert_eq!(again.sum, single.sum);
        assert_eq!(again.squares, single.squares);
        assert_eq!(again.scales, single.scales);
        assert!(Moments::<9>::decode(&bytes[1..]).is_none());
    }

    #[test]
    fn floats_are_exact() {
        // 1, 2, 3, 4 as limbs of weight one.
        let total = |limbs: &'static [i64]| FloatTotal { limbs, exponent: 0 };
        let variance = float(Spread::VarPop, 4, total(&[10]), total(&[30]));
        assert_eq!(variance, Some(1.25));
        assert_eq!(float(Spread::StddevSamp, 1, total(&[1]), total(&[1])), None);
        assert_eq!(float(Spread::VarPop, 2, total(&[0, -2]), total(&[0, 0, 2])), Some(0.0));
        for v in [0.0, -0.0, 1.5, -2.25, f64::MAX, f64::MIN_POSITIVE] {
            assert_eq!(float_of(ordered_bits(v)).to_bits(), (v + 0.0).to_bits());
        }
    }
}
