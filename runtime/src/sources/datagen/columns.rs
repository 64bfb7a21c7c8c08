//! One column of generated rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, BinaryBuilder, BooleanArray, PrimitiveArray, StringBuilder};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType, i256,
};
use levee_planner::connectors::datagen::FieldSpec;
use levee_planner::sql::datetime::DAY_US;
use levee_planner::sql::text::pow10;
use levee_planner::sql::types::BARE_NUMERIC;

use crate::{Result, RuntimeError};

/// Digits after the point of random bare numerics, as the options' reader counts them.
const BARE_NUMERIC_DIGITS: i8 = 2;

/// Rows to be made.
pub(super) struct Rows {
    /// Number of the first, and from each to the next.
    pub(super) first: u64,
    pub(super) step: u64,
    pub(super) n: usize,
    pub(super) seed: u64,
    /// Time of row 0, and rows a second.
    pub(super) base_us: i64,
    pub(super) rate: u64,
}

impl Rows {
    fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.n as u64).map(|i| self.first + i * self.step)
    }

    fn time_us(&self, number: u64) -> i64 {
        let after = u128::from(number) * 1_000_000 / u128::from(self.rate);
        self.base_us.saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
    }
}

/// The random numbers of a column: a strong mix of seed, column, row and a counter, the same on every machine for ever.
#[derive(Clone, Copy)]
struct Dice {
    key: u64,
}

impl Dice {
    fn new(seed: u64, column: usize) -> Self {
        Self {
            key: mix(seed ^ mix(column as u64 + 1)),
        }
    }

    /// The `draw`th number of a row.
    #[inline]
    fn roll(self, row: u64, draw: u64) -> u64 {
        mix(mix(self.key ^ row).wrapping_add(draw))
    }

    /// Between 0 and `span - 1`; a `span` of 0 stands for 2^128.
    #[inline]
    fn below(self, row: u64, span: u128) -> u128 {
        let first = self.roll(row, 0);
        if (1..=1 << 64).contains(&span) {
            return (u128::from(first) * span) >> 64;
        }
        let wide = u128::from(first) << 64 | u128::from(self.roll(row, 1));
        wide.checked_rem(span).unwrap_or(wide)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[inline]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The values of column `number`.
///
/// # Errors
/// The options' reader let a combination through that is none.
pub(super) fn column(rows: &Rows, number: usize, spec: &FieldSpec, data_type: &DataType) -> Result<ArrayRef> {
    let dice = Dice::new(rows.seed, number);
    let impossible = || RuntimeError::internal(format!("datagen cannot make {spec:?} as {data_type}"));
    Ok(match (spec, data_type) {
        (FieldSpec::Boolean, DataType::Boolean) => Arc::new(
            rows.numbers()
                .map(|n| Some(dice.roll(n, 0) & 1 == 1))
                .collect::<BooleanArray>(),
        ),
        (FieldSpec::Sequence { start, length }, DataType::Utf8) => {
            let mut builder = StringBuilder::with_capacity(rows.n, rows.n * 8);
            rows.numbers()
                .for_each(|n| builder.append_value(in_sequence(n, *start, *length).to_string()));
            Arc::new(builder.finish())
        }
        (FieldSpec::Sequence { start, length }, _) => {
            let scale = match data_type {
                DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => *s,
                _ => 0,
            };
            numbers(rows, data_type, scale, |n| in_sequence(n, *start, *length).into()).ok_or_else(impossible)?
        }
        (FieldSpec::Integer { min, max }, _) => {
            let span = max.wrapping_sub(*min).cast_unsigned().wrapping_add(1);
            let shift = match data_type {
                t @ DataType::Decimal256(_, s) if t == &BARE_NUMERIC => *s - BARE_NUMERIC_DIGITS,
                _ => 0,
            };
            let value = |n: u64| min.wrapping_add(dice.below(n, span).cast_signed());
            numbers(rows, data_type, shift, value).ok_or_else(impossible)?
        }
        (FieldSpec::Float { min, max }, _) => floats(rows, data_type, dice, *min, *max).ok_or_else(impossible)?,
        (FieldSpec::Bytes { length }, DataType::Utf8) => {
            let mut builder = StringBuilder::with_capacity(rows.n, rows.n * length);
            let mut text = String::with_capacity(*length);
            for n in rows.numbers() {
                text.clear();
                bytes(dice, n, *length, |b| text.push(char::from(b'a' + b % 26)));
                builder.append_value(&text);
            }
            Arc::new(builder.finish())
        }
        (FieldSpec::Bytes { length }, DataType::Binary) => {
            let mut builder = BinaryBuilder::with_capacity(rows.n, rows.n * length);
            let mut value = Vec::with_capacity(*length);
            for n in rows.numbers() {
                value.clear();
                bytes(dice, n, *length, |b| value.push(b));
                builder.append_value(&value);
            }
            Arc::new(builder.finish())
        }
        (FieldSpec::Time { max_past_us }, _) => {
            let time = |n: u64| {
                let past = dice.below(n, u128::from(*max_past_us) + 1);
                rows.time_us(n).saturating_sub(i64::try_from(past).unwrap_or(i64::MAX))
            };
            match data_type {
                DataType::Date32 => primitive::<Date32Type>(rows, data_type, |n| {
                    i32::try_from(time(n).div_euclid(DAY_US)).unwrap_or(i32::MAX)
                }),
                DataType::Timestamp(..) => primitive::<TimestampMicrosecondType>(rows, data_type, time),
                _ => return Err(impossible()),
            }
        }
        _ => return Err(impossible()),
    })
}

fn in_sequence(row: u64, start: i64, length: u64) -> i64 {
    start.wrapping_add((row % length.max(1)).cast_signed())
}

fn primitive<T: ArrowPrimitiveType>(rows: &Rows, data_type: &DataType, value: impl Fn(u64) -> T::Native) -> ArrayRef {
    let values: Vec<T::Native> = rows.numbers().map(value).collect();
    Arc::new(PrimitiveArray::<T>::new(values.into(), None).with_data_type(data_type.clone()))
}

/// Whole numbers as values of a type; decimals are moved `shift` digits to the left. The bounds of the options keep all in range.
fn numbers(rows: &Rows, data_type: &DataType, shift: i8, value: impl Fn(u64) -> i128) -> Option<ArrayRef> {
    let power = pow10(shift.unsigned_abs());
    let narrow = power.to_i128().unwrap_or(1);
    Some(match data_type {
        DataType::Int16 => primitive::<Int16Type>(rows, data_type, |n| value(n) as i16),
        DataType::Int32 => primitive::<Int32Type>(rows, data_type, |n| value(n) as i32),
        DataType::Int64 => primitive::<Int64Type>(rows, data_type, |n| value(n) as i64),
        DataType::Float32 => primitive::<Float32Type>(rows, data_type, |n| value(n) as f32),
        DataType::Float64 => primitive::<Float64Type>(rows, data_type, |n| value(n) as f64),
        DataType::Decimal128(..) => primitive::<Decimal128Type>(rows, data_type, |n| value(n).wrapping_mul(narrow)),
        DataType::Decimal256(..) => {
            primitive::<Decimal256Type>(rows, data_type, |n| i256::from_i128(value(n)).wrapping_mul(power))
        }
        DataType::Interval(_) => primitive::<IntervalMonthDayNanoType>(rows, data_type, |n| {
            IntervalMonthDayNano::new(0, 0, (value(n) as i64).wrapping_mul(1000))
        }),
        _ => return None,
    })
}

fn floats(rows: &Rows, data_type: &DataType, dice: Dice, min: f64, max: f64) -> Option<ArrayRef> {
    // 53 random bits: every double between 0 and 1 on that grid.
    let unit = |n: u64| (dice.roll(n, 0) >> 11) as f64 / (1_u64 << 53) as f64;
    let value = |n: u64| {
        let u = unit(n);
        // Not min + u·(max − min): the difference of two large numbers may be infinite.
        (min * (1.0 - u) + max * u).clamp(min, max)
    };
    Some(match data_type {
        DataType::Float64 => primitive::<Float64Type>(rows, data_type, value),
        DataType::Float32 => primitive::<Float32Type>(rows, data_type, |n| value(n) as f32),
        _ => return None,
    })
}

/// `length` random bytes, eight a draw.
fn bytes(dice: Dice, row: u64, length: usize, mut put: impl FnMut(u8)) {
    let mut left = length;
    for draw in 0.. {
        if left == 0 {
            return;
        }
        let word = dice.roll(row, draw).to_le_bytes();
        for b in &word[..left.min(8)] {
            put(*b);
        }
        left = left.saturating_sub(8);
    }
}
