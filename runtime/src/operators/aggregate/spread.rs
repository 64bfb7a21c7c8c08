//! `stddev`, `variance` and their kin, from exact sums of values and of their squares that rows can be taken back from.
//!
//! Over integers and numeric the planner's [`Moments`] hold both sums, and the answer has PostgreSQL's digits. Over floats two [`FloatSum`]s
//! do: a square is added as the two floats that are together equal to it, and the answer is rounded once. (Squares below 2⁻⁹⁶⁹ lose
//! bits that have no float, always the same ones.)
//!
//! Bytes per group: 72 for integers and short decimals, 176 for other numerics, 168 for floats.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal256Array, Float64Array};
use arrow::datatypes::*;
use levee_planner::sql::functions::spread::{self, FloatTotal, Moments, Spread};
use levee_planner::sql::types::is_unlimited;

use super::super::codec::{Reader, put_bytes, put_i64};
use super::super::columns::as_i64;
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use super::float_sum::{FloatSum, LIMBS, LOWEST_EXPONENT};
use crate::{Result, RuntimeError};

/// Makes the state for an argument's type.
///
/// # Errors
/// The type is no number.
pub fn accumulator(spread: Spread, input: &DataType) -> Result<Box<dyn Accumulator>> {
    Ok(match input {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::UInt32 => {
            Box::new(Exact::<4>::new(spread, input, 0))
        }
        DataType::Decimal128(p, s) if *p <= 18 => Box::new(Exact::<4>::new(spread, input, *s)),
        DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => Box::new(Exact::<9>::new(spread, input, *s)),
        DataType::Float32 | DataType::Float64 => Box::new(Floats {
            spread,
            groups: Vec::new(),
        }),
        other => {
            return Err(RuntimeError::user(
                "0A000",
                format!("stddev or variance of {other} is not supported in a materialized view"),
            ));
        }
    })
}

fn argument<'a>(rows: &Rows<'a>) -> Result<&'a ArrayRef> {
    rows.arg
        .ok_or_else(|| RuntimeError::internal("stddev or variance without an argument"))
}

/// Over integers and numeric.
struct Exact<const N: usize> {
    spread: Spread,
    scale: u8,
    unlimited: bool,
    groups: Vec<Moments<N>>,
}

impl<const N: usize> Exact<N> {
    fn new(spread: Spread, input: &DataType, scale: i8) -> Self {
        Self {
            spread,
            scale: u8::try_from(scale).unwrap_or(0),
            unlimited: is_unlimited(input),
            groups: Vec::new(),
        }
    }
}

impl<const N: usize> Accumulator for Exact<N> {
    fn grow(&mut self, n: usize) {
        if self.groups.len() < n {
            self.groups.resize_with(n, Moments::default);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = argument(rows)?;
        let groups = &mut self.groups[..];
        let scale = self.unlimited.then_some(self.scale);
        match column.data_type() {
            DataType::Decimal128(..) => {
                let values = column.as_primitive::<Decimal128Type>().values();
                rows.for_each(|i, slot, diff| groups[slot].add(i256::from_i128(values[i]), diff, scale));
            }
            DataType::Decimal256(..) => {
                let values = column.as_primitive::<Decimal256Type>().values();
                rows.for_each(|i, slot, diff| groups[slot].add(values[i], diff, scale));
            }
            _ => {
                let values = as_i64(column)?;
                rows.for_each(|i, slot, diff| groups[slot].add_i64(values[i], diff));
            }
        }
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let values: Decimal256Array = slots
            .iter()
            .map(|&s| {
                let answer = self.groups[s as usize].answer(self.spread, self.scale, self.unlimited);
                answer.unwrap_or_else(|_| {
                    failures.add("numeric field overflow");
                    None
                })
            })
            .collect();
        Ok(Arc::new(values.with_data_type(self.spread.exact_type())))
    }

    fn clear(&mut self, slot: u32) {
        self.groups[slot as usize] = Moments::default();
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        self.groups[slot as usize].encode(&mut bytes);
        put_bytes(out, &bytes);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.groups[slot as usize] = Moments::decode(from.bytes()?)
            .ok_or_else(|| RuntimeError::internal("the stored state of a variance is damaged"))?;
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.groups, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        size_of::<Moments<N>>()
    }

    fn bytes(&self) -> usize {
        self.groups.len() * self.bytes_per_slot()
    }
}

/// Number, sum and sum of squares.
#[derive(Clone, Default)]
struct Group {
    count: i64,
    /// Values that are NaN or infinite: the answer is NaN.
    special: i64,
    sum: FloatSum,
    squares: FloatSum,
    /// Finite values whose squares are not.
    huge: i64,
}

impl Group {
    fn add(&mut self, value: f64, times: i64) {
        self.count += times;
        if !value.is_finite() {
            self.special += times;
            return;
        }
        self.sum.add(value, times);
        let square = value * value;
        if square.is_infinite() {
            self.huge += times;
            return;
        }
        self.squares.add(square, times);
        self.squares.add(value.mul_add(value, -square), times);
    }

    fn answer(&self, spread: Spread, failures: &mut Failures) -> Option<f64> {
        if self.special != 0 {
            let alone = [Spread::VarSamp, Spread::StddevSamp].contains(&spread) && self.count == 1;
            return (!alone).then_some(f64::NAN);
        }
        if self.huge != 0 && self.count > 1 {
            failures.add("value out of range: overflow");
            return None;
        }
        if self.huge != 0 {
            let pop = [Spread::VarPop, Spread::StddevPop].contains(&spread);
            return pop.then_some(0.0);
        }
        let total = |limbs| FloatTotal {
            limbs,
            exponent: LOWEST_EXPONENT,
        };
        let (sum, squares): ([i64; LIMBS], _) = (self.sum.limbs(), self.squares.limbs());
        let answer = spread::float(spread, self.count, total(&sum), total(&squares));
        if answer.is_some_and(f64::is_infinite) {
            failures.add("value out of range: overflow");
            return None;
        }
        answer
    }
}

/// Over floats.
struct Floats {
    spread: Spread,
    groups: Vec<Group>,
}

impl Accumulator for Floats {
    fn grow(&mut self, n: usize) {
        if self.groups.len() < n {
            self.groups.resize_with(n, Group::default);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let column = argument(rows)?;
        let groups = &mut self.groups[..];
        match column.data_type() {
            DataType::Float32 => {
                let values = column.as_primitive::<Float32Type>().values();
                rows.for_each(|i, slot, diff| groups[slot].add(f64::from(values[i]), diff));
            }
            _ => {
                let values = column.as_primitive::<Float64Type>().values();
                rows.for_each(|i, slot, diff| groups[slot].add(values[i], diff));
            }
        }
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let values = slots
            .iter()
            .map(|&s| self.groups[s as usize].answer(self.spread, failures));
        Ok(Arc::new(values.collect::<Float64Array>()))
    }

    fn clear(&mut self, slot: u32) {
        self.groups[slot as usize] = Group::default();
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        let group = &self.groups[slot as usize];
        put_i64(out, group.count);
        put_i64(out, group.special);
        put_i64(out, group.huge);
        group.sum.encode(out);
        group.squares.encode(out);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.groups[slot as usize] = Group {
            count: from.i64()?,
            special: from.i64()?,
            huge: from.i64()?,
            sum: FloatSum::decode(from)?,
            squares: FloatSum::decode(from)?,
        };
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        relocate(&mut self.groups, moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        size_of::<Group>()
    }

    fn bytes(&self) -> usize {
        self.groups.len() * self.bytes_per_slot()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::begin;
    use super::super::super::tests::Rng;
    use super::*;
    use crate::Diffs;

    fn variance(values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
    }

    #[test]
    fn floats_come_back_after_retractions_and_a_restore() {
        let mut rng = Rng::new(7);
        let values: Vec<f64> = (0..60).map(|_| rng.next() as f64 / 1e17 - 70.0).collect();
        let mut groups = accumulator(Spread::VarSamp, &DataType::Float64).unwrap();
        groups.grow(1);
        let column = |v: &[f64]| Arc::new(Float64Array::from(v.to_vec())) as ArrayRef;
        let update = |groups: &mut Box<dyn Accumulator>, v: &[f64], diff: i64| {
            let (slots, array) = (vec![0; v.len()], column(v));
            let diffs = Diffs::Values(vec![diff; v.len()].into());
            groups.update(&Rows::new(&slots, &diffs, Some(&array), None)).unwrap();
        };
        update(&mut groups, &values, 1);
        update(&mut groups, &[f64::NAN, f64::INFINITY, 1e300, 1e-200], 2);
        let mut failures = Failures::default();
        let read = |groups: &dyn Accumulator, failures: &mut Failures| {
            groups
                .evaluate(&[0], failures)
                .unwrap()
                .as_primitive::<Float64Type>()
                .value(0)
        };
        assert!(read(groups.as_ref(), &mut failures).is_nan());
        update(&mut groups, &[f64::NAN, f64::INFINITY], -2);
        assert!(groups.evaluate(&[0], &mut failures).unwrap().is_null(0));
        assert_eq!(failures.rows, 1);
        update(&mut groups, &[1e300, 1e-200], -2);
        let got = read(groups.as_ref(), &mut failures);
        assert!((got - variance(&values)).abs() <= 1e-12 * got, "{got}");
        let mut bytes = Vec::new();
        begin(&mut bytes, 0);
        groups.encode(0, &mut bytes);
        let (mut reader, _) = Reader::open(&bytes).unwrap();
        let mut again = accumulator(Spread::VarSamp, &DataType::Float64).unwrap();
        again.grow(1);
        again.decode(0, &mut reader).unwrap();
        update(&mut again, &values[2..], -1);
        let expected = (values[0] - values[1]).powi(2) / 2.0;
        let got = read(again.as_ref(), &mut failures);
        assert!((got - expected).abs() <= 1e-13 * expected, "{got} {expected}");
    }
}
