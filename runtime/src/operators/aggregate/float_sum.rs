//! Exact sums of floats: the same bits whatever the order, and back to the same bits after a retraction.
//!
//! A finite `f64` is an integer multiple of 2⁻¹⁰⁷⁴. A sum is kept as signed 64-bit limbs of weight 2³² each, so a value adds
//! at most three 32-bit pieces without carrying; carries are settled every 2³⁰ additions and when the sum is read, which rounds
//! once, half to even. A group starts with a window of six limbs around its first value (192 bits: enough for most data)
//! and grows to all 70 when a value falls outside.
//!
//! Counts of NaN and of the infinities are kept beside, so they can be retracted as well.

/// Limbs that hold any sum of up to 2⁶³ finite floats.
pub const LIMBS: usize = 70;
const WINDOW: usize = 6;
/// Exponent of the lowest limb's lowest bit, negated.
const BIAS: i32 = 1074;
/// Exponent of the lowest limb's lowest bit.
pub const LOWEST_EXPONENT: i32 = -BIAS;
const SETTLE: u32 = 1 << 29;

/// One group's sum.
#[derive(Debug, Clone, Default)]
pub struct FloatSum {
    limbs: [i64; WINDOW],
    rest: Option<Box<Rest>>,
    base: i16,
    started: bool,
    adds: u32,
}

/// What few groups need.
#[derive(Debug, Clone, Default)]
struct Rest {
    dense: Option<[i64; LIMBS]>,
    nan: i64,
    positive_inf: i64,
    negative_inf: i64,
}

/// A sum as read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sum {
    /// The correctly rounded sum.
    Value(f64),
    /// All addends are finite, but the sum is not.
    Overflow,
}

impl FloatSum {
    /// Adds `value` `times` times.
    #[inline]
    pub fn add(&mut self, value: f64, times: i64) {
        let bits = value.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        if exponent == 0x7ff {
            return self.add_special(value, times);
        }
        let (mantissa, position) = if exponent == 0 {
            (fraction, 0)
        } else {
            (fraction | 1 << 52, exponent - 1)
        };
        if mantissa == 0 {
            return;
        }
        let times = if value < 0.0 { -times } else { times };
        if times == 1 || times == -1 {
            self.add_once(mantissa, position as u32, times);
        } else {
            self.add_many(i128::from(mantissa) * i128::from(times), position as u32);
        }
    }

    #[inline]
    fn add_once(&mut self, mantissa: u64, position: u32, sign: i64) {
        let limb = (position / 32) as usize;
        let pieces = u128::from(mantissa) << (position % 32);
        let target = self.window(limb, 3);
        target[0] += sign * (pieces as u32 as i64);
        target[1] += sign * ((pieces >> 32) as u32 as i64);
        target[2] += sign * ((pieces >> 64) as u32 as i64);
        self.adds += 1;
        if self.adds >= SETTLE {
            self.settle();
        }
    }

    #[cold]
    fn add_many(&mut self, product: i128, position: u32) {
        // At most 116 bits of product and 31 of shift: three pieces of 32 bits and a signed rest of at most 51.
        let limb = (position / 32) as usize;
        let shift = position % 32;
        let mut rest = product;
        let mut carry = 0;
        let target = self.window(limb, 4);
        for slot in &mut target[..3] {
            let piece = (((rest & 0xffff_ffff) as i64) << shift) + carry;
            *slot += piece & 0xffff_ffff;
            carry = piece >> 32;
            rest >>= 32;
        }
        target[3] += carry + ((rest as i64) << shift);
        self.adds += 1;
        if self.adds >= SETTLE || product.unsigned_abs() >> 80 != 0 {
            self.settle();
        }
    }

    #[cold]
    fn add_special(&mut self, value: f64, times: i64) {
        let rest = self.rest.get_or_insert_with(Box::default);
        if value.is_nan() {
            rest.nan += times;
        } else if value > 0.0 {
            rest.positive_inf += times;
        } else {
            rest.negative_inf += times;
        }
    }

    /// `n` limbs from `limb` on.
    #[inline]
    fn window(&mut self, limb: usize, n: usize) -> &mut [i64] {
        if !self.started {
            self.started = true;
            self.base = limb.saturating_sub(1).min(LIMBS - WINDOW) as i16;
        }
        let base = self.base as usize;
        let dense = self.rest.as_ref().is_some_and(|r| r.dense.is_some());
        if !dense && limb >= base && limb + n <= base + WINDOW {
            return &mut self.limbs[limb - base..][..n];
        }
        self.dense_window(limb, n)
    }

    #[cold]
    fn dense_window(&mut self, limb: usize, n: usize) -> &mut [i64] {
        let base = self.base as usize;
        let small = &mut self.limbs;
        let rest = self.rest.get_or_insert_with(Box::default);
        let dense = rest.dense.get_or_insert_with(|| {
            let mut dense = [0; LIMBS];
            dense[base..base + WINDOW].copy_from_slice(small);
            *small = [0; WINDOW];
            dense
        });
        &mut dense[limb..limb + n]
    }

    /// Carries, so that each limb but the top one is in 0..2³². A window whose top limb comes near its end grows.
    #[cold]
    fn settle(&mut self) {
        self.adds = 0;
        if let Some(dense) = self.rest.as_mut().and_then(|r| r.dense.as_mut()) {
            *dense = carried(*dense);
            return;
        }
        self.limbs = carried(self.limbs);
        if self.limbs[WINDOW - 1].unsigned_abs() >> 61 != 0 {
            let all = carried(self.full());
            self.rest.get_or_insert_with(Box::default).dense = Some(all);
            self.limbs = [0; WINDOW];
        }
    }

    fn full(&self) -> [i64; LIMBS] {
        if let Some(dense) = self.rest.as_ref().and_then(|r| r.dense) {
            return dense;
        }
        let mut all = [0; LIMBS];
        all[self.base as usize..][..WINDOW].copy_from_slice(&self.limbs);
        all
    }

    /// The sum. NaN and infinities as IEEE 754 adds them.
    pub fn value(&self) -> Sum {
        if let Some(rest) = &self.rest {
            if rest.nan != 0 || (rest.positive_inf != 0 && rest.negative_inf != 0) {
                return Sum::Value(f64::NAN);
            }
            if rest.positive_inf != 0 {
                return Sum::Value(f64::INFINITY);
            }
            if rest.negative_inf != 0 {
                return Sum::Value(f64::NEG_INFINITY);
            }
            if rest.dense.is_some() {
                return round(carried(self.full()), 0);
            }
        }
        round(carried(self.limbs), self.base as usize)
    }

    /// The exact sum of the finite addends: limbs of weight 2³², all but the last in 0..2³².
    pub fn limbs(&self) -> [i64; LIMBS] {
        carried(self.full())
    }

    /// Appends the exact state.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut all = carried(self.full());
        let negative = all[LIMBS - 1] < 0;
        if negative {
            all = carried(all.map(|l| -l));
        }
        out.push(u8::from(negative));
        let first = all.iter().position(|&l| l != 0).unwrap_or(0);
        let last = all.iter().rposition(|&l| l != 0).map_or(0, |l| l + 1);
        out.push(first as u8);
        out.push(last.saturating_sub(first) as u8);
        for limb in &all[first..last.max(first)] {
            out.extend_from_slice(&limb.to_le_bytes());
        }
        let specials = self
            .rest
            .as_ref()
            .map_or([0; 3], |r| [r.nan, r.positive_inf, r.negative_inf]);
        out.push(u8::from(specials != [0; 3]));
        if specials != [0; 3] {
            for count in specials {
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn decode(from: &mut super::super::codec::Reader<'_>) -> crate::Result<Self> {
        let [negative, first, n] = from.array::<3>()?;
        let (first, n) = (usize::from(first), usize::from(n));
        if first + n > LIMBS {
            return Err(crate::RuntimeError::internal("state of a float sum is damaged"));
        }
        let mut sum = Self::default();
        let mut limbs = [0; LIMBS];
        for limb in &mut limbs[first..first + n] {
            *limb = if negative == 1 { -from.i64()? } else { from.i64()? };
        }
        if n > 0 {
            sum.started = true;
            sum.base = first.saturating_sub(1).min(LIMBS - WINDOW) as i16;
            let base = sum.base as usize;
            if first + n <= base + WINDOW {
                sum.limbs.copy_from_slice(&limbs[base..base + WINDOW]);
            } else {
                sum.rest = Some(Box::new(Rest {
                    dense: Some(limbs),
                    ..Rest::default()
                }));
            }
        }
        if from.array::<1>()? == [1] {
            let rest = sum.rest.get_or_insert_with(Box::default);
            rest.nan = from.i64()?;
            rest.positive_inf = from.i64()?;
            rest.negative_inf = from.i64()?;
        }
        Ok(sum)
    }
}

/// Limbs in 0..2³² but for the top one, which keeps the sign.
fn carried<const N: usize>(mut limbs: [i64; N]) -> [i64; N] {
    let mut carry = 0;
    for limb in limbs.iter_mut().take(N - 1) {
        let total = *limb + carry;
        *limb = total & 0xffff_ffff;
        carry = total >> 32;
    }
    limbs[N - 1] += carry;
    limbs
}

/// Rounds carried limbs, the first of weight 2^(32·base − 1074), half to even.
fn round<const N: usize>(mut limbs: [i64; N], base: usize) -> Sum {
    let negative = limbs[N - 1] < 0;
    if negative {
        limbs = carried(limbs.map(|l| -l));
    }
    let Some(top) = limbs.iter().rposition(|&l| l != 0) else {
        return Sum::Value(0.0);
    };
    // The window below holds the top limb (up to 63 bits) and three more: 53 bits of result, and every other bit folded into
    // `sticky`.
    let at = |i: usize| u128::from(if i < N { limbs[i] as u64 } else { 0 });
    let head = at(top) << 64 | if top >= 1 { at(top - 1) << 32 } else { 0 } | if top >= 2 { at(top - 2) } else { 0 };
    let sticky = top >= 3 && limbs[..top - 2].iter().any(|&l| l != 0);
    let lowest = (base + top) as i32 * 32 - 64 - BIAS;
    let width = 128 - head.leading_zeros() as i32;
    // Bits to drop: those beyond 53, or below the least subnormal.
    let drop = (width - 53).max(-BIAS - lowest);
    let (mut mantissa, mut exponent) = if drop <= 0 {
        (head as u64, lowest)
    } else if drop >= 128 {
        (0, lowest + drop)
    } else {
        let kept = (head >> drop) as u64;
        let dropped = head & ((1_u128 << drop) - 1);
        let half = 1_u128 << (drop - 1);
        let up = dropped > half || (dropped == half && (sticky || kept & 1 == 1));
        (kept + u64::from(up), lowest + drop)
    };
    if mantissa == 1 << 53 {
        mantissa >>= 1;
        exponent += 1;
    }
    let magnitude = if mantissa == 0 {
        0.0
    } else {
        // Normalise, then assemble; `exponent` is that of the lowest mantissa bit.
        let shift = (mantissa.leading_zeros() as i32 - 11).min(exponent + BIAS).max(0);
        mantissa <<= shift;
        exponent -= shift;
        let biased = if mantissa >> 52 == 0 { 0 } else { exponent + BIAS + 1 };
        if biased >= 0x7ff {
            return Sum::Overflow;
        }
        f64::from_bits((biased as u64) << 52 | (mantissa & ((1 << 52) - 1)))
    };
    Sum::Value(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Rng;
    use super::*;

    fn sum_of(values: &[f64]) -> FloatSum {
        let mut sum = FloatSum::default();
        for &v in values {
            sum.add(v, 1);
        }
        sum
    }

    fn value(sum: &FloatSum) -> f64 {
        match sum.value() {
            Sum::Value(v) => v,
            Sum::Overflow => panic!("overflow"),
        }
    }

    #[test]
    fn exact_where_naive_sums_are_not() {
        assert_eq!(value(&sum_of(&[0.1, 0.2])), 0.1 + 0.2);
        assert_eq!(value(&sum_of(&[1e16, 1.0, -1e16])), 1.0);
        assert_eq!(value(&sum_of(&[1e308, 1e308, -1e308, 5e-324, -1e308])), 5e-324);
        assert_eq!(value(&sum_of(&[0.1; 10])), 1.0);
        assert_eq!(sum_of(&[f64::MAX, f64::MAX]).value(), Sum::Overflow);
        assert_eq!(value(&sum_of(&[])).to_bits(), 0);
        assert_eq!(value(&sum_of(&[-0.0, -0.0])).to_bits(), 0);
    }

    #[test]
    fn one_value_comes_back_to_the_bit() {
        let mut rng = Rng::new(1);
        for _ in 0..200_000 {
            let v = f64::from_bits(rng.next());
            if v.is_finite() && v != 0.0 {
                let sum = sum_of(&[v]);
                assert_eq!(value(&sum).to_bits(), v.to_bits());
                let mut many = FloatSum::default();
                many.add(v, 7);
                many.add(v, -6);
                assert_eq!(value(&many).to_bits(), v.to_bits());
            }
        }
    }

    #[test]
    fn two_values_round_as_the_processor_does() {
        let mut rng = Rng::new(2);
        for _ in 0..200_000 {
            let a = f64::from_bits(rng.next());
            let b = if rng.below(2) == 0 {
                f64::from_bits(a.to_bits() ^ (rng.next() >> rng.below(64)))
            } else {
                f64::from_bits(rng.next())
            };
            if a.is_finite() && b.is_finite() {
                let expected = a + b;
                match sum_of(&[a, b]).value() {
                    Sum::Value(v) => assert_eq!((v + 0.0).to_bits(), (expected + 0.0).to_bits(), "{a:e} + {b:e}"),
                    Sum::Overflow => assert!(expected.is_infinite()),
                }
            }
        }
    }

    #[test]
    fn order_and_retraction_do_not_show() {
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let wide = rng.below(2) == 0;
            let values: Vec<f64> = (0..50)
                .map(|_| {
                    if wide {
                        f64::from_bits(rng.next() & !(1 << 62))
                    } else {
                        rng.next() as f64 / 1e17 - 50.0
                    }
                })
                .filter(|v| v.is_finite())
                .collect();
            let mut forward = sum_of(&values);
            let mut backward = FloatSum::default();
            for &v in values.iter().rev() {
                backward.add(v * 0.5, 2);
                backward.add(v, 3);
                backward.add(v * 0.5, -2);
                backward.add(v, -2);
            }
            assert_eq!(forward.value(), backward.value());
            let mut bytes = Vec::new();
            super::super::super::codec::begin(&mut bytes, 0);
            forward.encode(&mut bytes);
            let (mut reader, _) = super::super::super::codec::Reader::open(&bytes).unwrap();
            let mut again = FloatSum::decode(&mut reader).unwrap();
            for &v in &values[1..] {
                forward.add(v, -1);
                again.add(v, -1);
            }
            assert_eq!(value(&forward).to_bits(), values[0].to_bits());
            assert_eq!(value(&again).to_bits(), values[0].to_bits());
        }
    }

    #[test]
    fn many_additions_settle() {
        let mut sum = FloatSum::default();
        for i in 0..1000 {
            sum.add(1e15 + f64::from(i), 1);
            if i % 10 == 0 {
                sum.settle();
            }
        }
        assert_eq!(value(&sum), 1e18 + 499_500.0);
        sum.add(-1e300, 1 << 40);
        sum.settle();
        sum.add(1e300, 1 << 40);
        assert_eq!(value(&sum), 1e18 + 499_500.0);
    }

    #[test]
    fn specials() {
        let mut sum = sum_of(&[1.0, f64::INFINITY]);
        assert_eq!(value(&sum), f64::INFINITY);
        sum.add(f64::NEG_INFINITY, 1);
        assert!(value(&sum).is_nan());
        sum.add(f64::INFINITY, -1);
        assert_eq!(value(&sum), f64::NEG_INFINITY);
        sum.add(f64::NEG_INFINITY, -1);
        sum.add(f64::NAN, 1);
        assert!(value(&sum).is_nan());
        sum.add(f64::NAN, -1);
        assert_eq!(value(&sum), 1.0);
    }
}
