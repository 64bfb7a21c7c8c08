//! `sum` and `avg`: exact totals of integers, decimals and floats with the number of addends.
//!
//! A total never wraps: if it does not fit the result's type the result is NULL and a failure, and it is right again once
//! enough has been retracted.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array, Decimal256Array, Float32Array, Float64Array, Int64Array};
use arrow::datatypes::*;

use super::super::codec::{Reader, put_i64};
use super::super::columns::as_i64;
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use super::float_sum::{FloatSum, Sum};
use crate::{Result, RuntimeError};
use levee_planner::sql::types::QUOTIENT;

/// An exact total that values of type `V` are added to.
pub trait Total: Copy + Default + Send + 'static {
    /// Addend.
    type Value: Copy;
    /// Adds `value` `times` times.
    fn add(&mut self, value: Self::Value, times: i64);
    /// The total, if 256 bits hold it.
    fn get(&self) -> Option<i256>;
    /// Appends the state.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// Damaged bytes.
    fn decode(from: &mut Reader<'_>) -> Result<Self>;
}

/// A total that cannot leave 128 bits: 2⁶³ addends of at most 2⁶³ (integers, decimals of up to 18 digits).
impl Total for i128 {
    type Value = i64;

    #[inline]
    fn add(&mut self, value: i64, times: i64) {
        *self += Self::from(value) * Self::from(times);
    }

    fn get(&self) -> Option<i256> {
        Some(i256::from_i128(*self))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Self::from_le_bytes(from.array()?))
    }
}

/// A total of wide decimals: `carry · 2²⁵⁶ + low`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wide {
    low: i256,
    carry: i64,
}

impl Wide {
    fn plus(&mut self, other: Self) {
        let (low, overflow) = self.low.overflowing_add(other.low);
        // Only addends of one sign overflow; the wrapped result then has the other sign.
        self.carry += other.carry + i64::from(overflow) * if low.is_negative() { 1 } else { -1 };
        self.low = low;
    }
}

impl Total for Wide {
    type Value = i256;

    #[inline]
    fn add(&mut self, value: i256, times: i64) {
        let value = if times < 0 { value.wrapping_neg() } else { value };
        let mut addend = Self { low: value, carry: 0 };
        let mut times = times.unsigned_abs();
        while times > 0 {
            if times & 1 == 1 {
                self.plus(addend);
            }
            times >>= 1;
            if times > 0 {
                addend.plus(addend);
            }
        }
    }

    fn get(&self) -> Option<i256> {
        (self.carry == 0).then_some(self.low)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.low.to_le_bytes());
        put_i64(out, self.carry);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            low: i256::from_le_bytes(from.array()?),
            carry: from.i64()?,
        })
    }
}

/// What is made of a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The total.
    Sum,
    /// The total divided by the number of addends, half away from zero.
    Avg,
}

/// `sum` or `avg` over integers or decimals.
pub struct ExactSum<T> {
    totals: Vec<T>,
    counts: Vec<i64>,
    finish: Finish,
    input_scale: i32,
    output: DataType,
}

/// Makes the state for an argument and a result type.
///
/// # Errors
/// The types do not go together.
pub fn accumulator(finish: Finish, input: &DataType, output: &DataType) -> Result<Box<dyn Accumulator>> {
    let exact_output = matches!(
        (finish, output),
        (_, DataType::Decimal128(..) | DataType::Decimal256(..)) | (Finish::Sum, DataType::Int64)
    );
    Ok(match input {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::UInt32 if exact_output => {
            Box::new(ExactSum::<i128>::new(finish, 0, output))
        }
        DataType::Decimal128(precision, scale) if exact_output && *precision <= 18 => {
            Box::new(ExactSum::<i128>::new(finish, i32::from(*scale), output))
        }
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) if exact_output => {
            Box::new(ExactSum::<Wide>::new(finish, i32::from(*scale), output))
        }
        DataType::Float32 | DataType::Float64 if matches!(output, DataType::Float32 | DataType::Float64) => {
            Box::new(FloatSums {
                sums: Vec::new(),
                counts: Vec::new(),
                finish,
                output: output.clone(),
            })
        }
        _ => {
            return Err(RuntimeError::user(
                "0A000",
                format!("sum or avg of {input} with result type {output} is not supported in a materialized view"),
            ));
        }
    })
}

impl<T: Total> ExactSum<T> {
    fn new(finish: Finish, input_scale: i32, output: &DataType) -> Self {
        Self {
            totals: Vec::new(),
            counts: Vec::new(),
            finish,
            input_scale,
            output: output.clone(),
        }
    }

    /// The result of a slot at `scale`; `None` is NULL.
    fn result(&self, slot: u32, scale: i32, failures: &mut Failures) -> Option<i256> {
        let count = self.counts[slot as usize];
        if count == 0 {
            return None;
        }
        let total = self.totals[slot as usize].get();
        let result = match self.finish {
            Finish::Sum => total.and_then(|t| quotient(t, 1, scale - self.input_scale)),
            Finish::Avg if self.output == QUOTIENT => total.and_then(|t| average(t, self.input_scale, count)),
            Finish::Avg => total.and_then(|t| quotient(t, count, scale - self.input_scale)),
        };
        if result.is_none() {
            failures.add(OUT_OF_RANGE);
        }
        result
    }
}

const OUT_OF_RANGE: &str = "value out of range: overflow";

/// `total · 10^shift / divisor`, half away from zero; `None` if 256 bits do not hold it. `divisor` is positive.
fn quotient(total: i256, divisor: i64, shift: i32) -> Option<i256> {
    if divisor == 1 && shift == 0 {
        return Some(total);
    }
    if let (Some(small), 0..=18) = (total.to_i128(), shift) {
        // The remainder is below 2⁶³, so 2·10¹⁸ times it stays in 128 bits.
        let (divisor, power) = (i128::from(divisor), 10_i128.pow(shift as u32));
        let (whole, rest) = (small / divisor, small % divisor);
        let rounded = (2 * rest.abs() * power + divisor) / (2 * divisor);
        if let Some(result) = whole
            .checked_mul(power)
            .and_then(|w| w.checked_add(rounded * rest.signum()))
        {
            return Some(i256::from_i128(result));
        }
    }
    let power = i256::from_i128(10).checked_pow(shift.unsigned_abs())?;
    let mut divisor = i256::from_i128(i128::from(divisor));
    let (whole, rest) = if shift >= 0 {
        let whole = total.checked_div(divisor)?.checked_mul(power)?;
        (whole, total.checked_rem(divisor)?.checked_mul(power)?)
    } else {
        divisor = divisor.checked_mul(power)?;
        (total.checked_div(divisor)?, total.checked_rem(divisor)?)
    };
    let two = i256::from_i128(2);
    let rounded = rest
        .checked_abs()?
        .checked_mul(two)?
        .checked_add(divisor)?
        .checked_div(divisor.checked_mul(two)?)?;
    if total.is_negative() {
        whole.checked_sub(rounded)
    } else {
        whole.checked_add(rounded)
    }
}

/// An average of type [`QUOTIENT`], with as many digits as PostgreSQL gives it. The common case is done in 128 bits; the planner's
/// division, which decides what is right, takes microseconds.
fn average(total: i256, scale: i32, count: i64) -> Option<i256> {
    const SCALE: i32 = 38;
    let slow = || {
        let scale = i8::try_from(scale).ok()?;
        levee_planner::sql::functions::aggregate::exact_avg(total, scale, count).ok()
    };
    let (Some(small), 0..SCALE, 1..) = (total.to_i128(), scale, count) else {
        return slow();
    };
    if small == 0 {
        return Some(total);
    }
    let (weight, group) = leading_group(small.unsigned_abs(), scale);
    let (count_weight, count_group) = leading_group(count.unsigned_abs().into(), 0);
    let weight = weight - count_weight - i32::from(group <= count_group);
    let digits = (16 - 4 * weight).max(scale);
    if digits > SCALE {
        return slow();
    }
    let power = i256::from_i128(10_i128.pow((SCALE - digits) as u32));
    quotient(total, count, digits - scale)?.checked_mul(power)
}

/// A number in groups of four decimal digits, as PostgreSQL's numeric holds it: weight and value of the first group.
fn leading_group(value: u128, scale: i32) -> (i32, u128) {
    let digits = value.checked_ilog10().unwrap_or(0) as i32 + 1;
    let weight = (digits - scale - 1).div_euclid(4);
    let take = digits - scale - 4 * weight;
    let power = 10_u128.pow(digits.abs_diff(take));
    (weight, if digits >= take { value / power } else { value * power })
}

impl<T: Total> Accumulator for ExactSum<T>
where
    Self: AddColumn,
{
    fn grow(&mut self, n: usize) {
        if self.counts.len() < n {
            self.totals.resize(n, T::default());
            self.counts.resize(n, 0);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("sum without an argument"))?;
        self.add_column(column, rows)
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        match self.output {
            DataType::Int64 => {
                let values: Int64Array = slots
                    .iter()
                    .map(|&s| {
                        let total = self.result(s, 0, failures)?;
                        let fits = total.to_i128().and_then(|v| i64::try_from(v).ok());
                        if fits.is_none() {
                            failures.add("bigint out of range");
                        }
                        fits
                    })
                    .collect();
                Ok(Arc::new(values))
            }
            DataType::Decimal128(precision, scale) => {
                let limit = 10_u128.pow(u32::from(precision));
                let values: Decimal128Array = slots
                    .iter()
                    .map(|&s| {
                        let total = self.result(s, i32::from(scale), failures)?;
                        let fits = total.to_i128().filter(|v| v.unsigned_abs() < limit);
                        if fits.is_none() {
                            failures.add("numeric field overflow");
                        }
                        fits
                    })
                    .collect();
                Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
            }
            DataType::Decimal256(precision, scale) => {
                let limit = i256::from_i128(10).wrapping_pow(u32::from(precision));
                let values: Decimal256Array = slots
                    .iter()
                    .map(|&s| {
                        let total = self.result(s, i32::from(scale), failures)?;
                        let fits = total.checked_abs().is_some_and(|v| v < limit);
                        if !fits {
                            failures.add("numeric field overflow");
                        }
                        fits.then_some(total)
                    })
                    .collect();
                Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
            }
            ref other => Err(RuntimeError::internal(format!("an exact sum cannot be {other}"))),
        }
    }

    fn clear(&mut self, slot: u32) {
        self.totals[slot as usize] = T::default();
        self.counts[slot as usize] = 0;
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        put_i64(out, self.counts[slot as usize]);
        self.totals[slot as usize].encode(out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.counts[slot as usize] = from.i64()?;
        self.totals[slot as usize] = T::decode(from)?;
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.totals, moves, n);
        relocate(&mut self.counts, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        size_of::<T>() + 8
    }

    fn bytes(&self) -> usize {
        self.counts.len() * self.bytes_per_slot()
    }
}

/// How a column's values reach a total.
trait AddColumn {
    fn add_column(&mut self, column: &ArrayRef, rows: &Rows<'_>) -> Result<()>;
}

impl AddColumn for ExactSum<i128> {
    fn add_column(&mut self, column: &ArrayRef, rows: &Rows<'_>) -> Result<()> {
        let (totals, counts) = (&mut self.totals[..], &mut self.counts[..]);
        if let DataType::Decimal128(..) = column.data_type() {
            let values = column.as_primitive::<Decimal128Type>().values();
            rows.for_each(|i, slot, diff| {
                totals[slot] += values[i] * i128::from(diff);
                counts[slot] += diff;
            });
        } else {
            let values = as_i64(column)?;
            rows.for_each(|i, slot, diff| {
                totals[slot].add(values[i], diff);
                counts[slot] += diff;
            });
        }
        Ok(())
    }
}

impl AddColumn for ExactSum<Wide> {
    fn add_column(&mut self, column: &ArrayRef, rows: &Rows<'_>) -> Result<()> {
        let (totals, counts) = (&mut self.totals[..], &mut self.counts[..]);
        if let DataType::Decimal128(..) = column.data_type() {
            let values = column.as_primitive::<Decimal128Type>().values();
            rows.for_each(|i, slot, diff| {
                totals[slot].add(i256::from_i128(values[i]), diff);
                counts[slot] += diff;
            });
        } else {
            let values = column.as_primitive::<Decimal256Type>().values();
            rows.for_each(|i, slot, diff| {
                totals[slot].add(values[i], diff);
                counts[slot] += diff;
            });
        }
        Ok(())
    }
}

/// `sum` or `avg` over floats.
struct FloatSums {
    sums: Vec<FloatSum>,
    counts: Vec<i64>,
    finish: Finish,
    output: DataType,
}

impl FloatSums {
    fn result(&self, slot: u32, failures: &mut Failures) -> Option<f64> {
        let count = self.counts[slot as usize];
        if count == 0 {
            return None;
        }
        let Sum::Value(sum) = self.sums[slot as usize].value() else {
            failures.add(OUT_OF_RANGE);
            return None;
        };
        Some(if self.finish == Finish::Avg {
            sum / count as f64
        } else {
            sum
        })
    }
}

impl Accumulator for FloatSums {
    fn grow(&mut self, n: usize) {
        if self.counts.len() < n {
            self.sums.resize_with(n, FloatSum::default);
            self.counts.resize(n, 0);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("sum without an argument"))?;
        let (sums, counts) = (&mut self.sums[..], &mut self.counts[..]);
        match column.data_type() {
            DataType::Float32 => {
                let values = column.as_primitive::<Float32Type>().values();
                rows.for_each(|i, slot, diff| {
                    sums[slot].add(f64::from(values[i]), diff);
                    counts[slot] += diff;
                });
            }
            _ => {
                let values = column.as_primitive::<Float64Type>().values();
                rows.for_each(|i, slot, diff| {
                    sums[slot].add(values[i], diff);
                    counts[slot] += diff;
                });
            }
        }
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        if self.output == DataType::Float32 {
            let values: Float32Array = slots
                .iter()
                .map(|&s| {
                    let wide = self.result(s, failures)?;
                    let narrow = wide as f32;
                    if narrow.is_infinite() && wide.is_finite() {
                        failures.add(OUT_OF_RANGE);
                        return None;
                    }
                    Some(narrow)
                })
                .collect();
            return Ok(Arc::new(values));
        }
        let values: Float64Array = slots.iter().map(|&s| self.result(s, failures)).collect();
        Ok(Arc::new(values))
    }

    fn clear(&mut self, slot: u32) {
        self.sums[slot as usize] = FloatSum::default();
        self.counts[slot as usize] = 0;
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        put_i64(out, self.counts[slot as usize]);
        self.sums[slot as usize].encode(out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.counts[slot as usize] = from.i64()?;
        self.sums[slot as usize] = FloatSum::decode(from)?;
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.sums, moves, n);
        relocate(&mut self.counts, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        size_of::<FloatSum>() + 8
    }

    fn bytes(&self) -> usize {
        self.counts.len() * self.bytes_per_slot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(total: i128, divisor: i64, shift: i32) -> i128 {
        quotient(i256::from_i128(total), divisor, shift)
            .unwrap()
            .to_i128()
            .unwrap()
    }

    #[test]
    fn quotients_round_half_away_from_zero() {
        assert_eq!(q(1, 3, 4), 3333);
        assert_eq!(q(2, 3, 4), 6667);
        assert_eq!(q(-2, 3, 4), -6667);
        assert_eq!(q(1, 2, 0), 1);
        assert_eq!(q(-1, 2, 0), -1);
        assert_eq!(q(125, 10, -1), 1);
        assert_eq!(q(150, 10, -1), 2);
        assert_eq!(q(-150, 10, -1), -2);
        assert_eq!(q(i128::from(i64::MAX), 1, 19), i128::from(i64::MAX) * 10_i128.pow(19));
        assert_eq!(q(10_i128.pow(30) + 1, 7, 6), (10_i128.pow(36) + 1_000_000 + 3) / 7);
    }

    /// The planner's division is the judge: a view's average has the digits of the same query run as a batch.
    #[test]
    fn averages_have_the_digits_of_a_batch_query() {
        let mut rng = super::super::super::tests::Rng::new(4);
        for _ in 0..100_000 {
            let total = (rng.next() as i128 | (rng.next() as i128) << 64) >> rng.below(127);
            let count = (rng.next() >> rng.below(63)).max(1) as i64 & i64::MAX;
            let scale = rng.below(39) as i8;
            let count = count.max(1);
            let total = i256::from_i128(total);
            let expected = levee_planner::sql::functions::aggregate::exact_avg(total, scale, count).ok();
            assert_eq!(average(total, scale.into(), count), expected, "{total} {scale} {count}");
        }
    }

    #[test]
    fn wide_totals_come_back() {
        let big = i256::from_i128(10).checked_pow(76).unwrap();
        let mut total = Wide::default();
        total.add(big, 9);
        assert!(total.get().is_none());
        total.add(big, -8);
        assert_eq!(total.get(), Some(big));
        total.add(big, -13);
        assert!(total.get().is_none());
        total.add(big, 11);
        assert_eq!(total.get(), Some(big.wrapping_neg()));
        total.add(big, 1);
        assert_eq!(total.get(), Some(i256::from_i128(0)));
    }
}
