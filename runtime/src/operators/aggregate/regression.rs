//! `corr`, `covar_*` and `regr_*`, from exact sums of both values, their squares and their product that rows can be taken back from.
//!
//! The argument is a list of y and x. A product is added as the two floats that are together equal to it, as in [`super::spread`], and
//! what the planner's [`PairMoments`] needs is rounded once.
//!
//! Bytes per group: 450 for all of them.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array};
use arrow::datatypes::Float64Type;
use levee_planner::sql::functions::regression::{PairMoments, Regression};
use levee_planner::sql::functions::spread::FloatTotal;

use super::super::codec::{Reader, put_i64};
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use super::float_sum::{FloatSum, LIMBS, LOWEST_EXPONENT, Sum};
use crate::{Result, RuntimeError};

/// Sums of one group.
#[derive(Clone, Default)]
struct Group {
    count: i64,
    /// Pairs whose x, and whose y, is NaN or infinite.
    special: [i64; 2],
    /// Finite pairs of which some product is not.
    huge: i64,
    x: FloatSum,
    y: FloatSum,
    xx: FloatSum,
    yy: FloatSum,
    xy: FloatSum,
}

fn add_product(sum: &mut FloatSum, a: f64, b: f64, times: i64) {
    let product = a * b;
    sum.add(product, times);
    sum.add(a.mul_add(b, -product), times);
}

impl Group {
    fn add(&mut self, y: f64, x: f64, times: i64) {
        self.count += times;
        self.x.add(x, times);
        self.y.add(y, times);
        self.special[0] += if x.is_finite() { 0 } else { times };
        self.special[1] += if y.is_finite() { 0 } else { times };
        let finite = [(x, x), (y, y), (x, y)].map(|(a, b)| a.is_finite() && b.is_finite());
        let huge = [(x, x), (y, y), (x, y)]
            .iter()
            .zip(finite)
            .any(|((a, b), finite)| finite && (a * b).is_infinite());
        if huge {
            self.huge += times;
            return;
        }
        for (sum, a, b, finite) in [
            (&mut self.xx, x, x, finite[0]),
            (&mut self.yy, y, y, finite[1]),
            (&mut self.xy, x, y, finite[2]),
        ] {
            if finite {
                add_product(sum, a, b, times);
            }
        }
    }

    /// What the results are made of; `None`: out of range.
    fn moments(&self) -> Option<PairMoments> {
        let (Sum::Value(x), Sum::Value(y)) = (self.x.value(), self.y.value()) else {
            return None;
        };
        let mut moments = PairMoments::default();
        if self.huge != 0 && self.count > 1 {
            return None;
        }
        if self.count > 1 {
            let sums = [&self.x, &self.y, &self.xx, &self.yy, &self.xy].map(FloatSum::limbs);
            let [sx, sy, xx, yy, xy] = sums.each_ref().map(|limbs: &[i64; LIMBS]| FloatTotal {
                limbs,
                exponent: LOWEST_EXPONENT,
            });
            moments = PairMoments::exact(self.count, sx, sy, xx, yy, xy);
        }
        (moments.n, moments.x, moments.y) = (self.count, x, y);
        if self.special[0] != 0 {
            (moments.xx, moments.xy) = (f64::NAN, f64::NAN);
        }
        if self.special[1] != 0 {
            (moments.yy, moments.xy) = (f64::NAN, f64::NAN);
        }
        let over = [moments.xx, moments.yy, moments.xy].iter().any(|v| v.is_infinite());
        (!over).then_some(moments)
    }
}

/// The sums of all groups.
pub struct Pairs {
    kind: Regression,
    groups: Vec<Group>,
}

impl Pairs {
    /// For one of the functions.
    pub fn new(kind: Regression) -> Self {
        Self {
            kind,
            groups: Vec::new(),
        }
    }
}

impl Accumulator for Pairs {
    fn grow(&mut self, n: usize) {
        if self.groups.len() < n {
            self.groups.resize_with(n, Group::default);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let no_pairs = || RuntimeError::internal("a regression over no pairs");
        let pairs = rows.arg.and_then(|a| a.as_list_opt::<i32>()).ok_or_else(no_pairs)?;
        let values = pairs.values().as_primitive_opt::<Float64Type>().ok_or_else(no_pairs)?;
        let (offsets, values) = (pairs.value_offsets(), values.values());
        let groups = &mut self.groups[..];
        rows.for_each(|i, slot, diff| {
            let at = offsets[i] as usize;
            groups[slot].add(values[at], values[at + 1], diff);
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], failures: &mut Failures) -> Result<ArrayRef> {
        let groups = slots.iter().map(|&s| &self.groups[s as usize]);
        if self.kind == Regression::Count {
            return Ok(Arc::new(Int64Array::from_iter_values(groups.map(|g| g.count))));
        }
        let values = groups.map(|group| match group.moments() {
            Some(moments) => moments.answer(self.kind),
            None => {
                failures.add("value out of range: overflow");
                None
            }
        });
        Ok(Arc::new(values.collect::<Float64Array>()))
    }

    fn clear(&mut self, slot: u32) {
        self.groups[slot as usize] = Group::default();
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        let group = &self.groups[slot as usize];
        for count in [group.count, group.special[0], group.special[1], group.huge] {
            put_i64(out, count);
        }
        for sum in [&group.x, &group.y, &group.xx, &group.yy, &group.xy] {
            sum.encode(out);
        }
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.groups[slot as usize] = Group {
            count: from.i64()?,
            special: [from.i64()?, from.i64()?],
            huge: from.i64()?,
            x: FloatSum::decode(from)?,
            y: FloatSum::decode(from)?,
            xx: FloatSum::decode(from)?,
            yy: FloatSum::decode(from)?,
            xy: FloatSum::decode(from)?,
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
