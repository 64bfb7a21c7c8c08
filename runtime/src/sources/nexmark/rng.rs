//! The random numbers of the `nexmark` crate: `rand` 0.8's `SmallRng` (xoshiro256++ seeded through PCG32) and its uniform
//! integer sampling, written out here so that a draw costs a few instructions and never changes under us. Every event has
//! its own generator, seeded by its number, which is what lets any range be read again and lets columns be left out.

const PCG_MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const PCG_INCREMENT: u64 = 11_634_580_027_462_260_723;

/// Products of a 32-bit draw with 26 whose low half exceeds this are drawn again, so that letters are exactly uniform.
const LETTER_ZONE: u32 = u32::MAX - 22;

/// xoshiro256++.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rng {
    s: [u64; 4],
}

impl Rng {
    #[inline]
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut word = || {
            state = state.wrapping_mul(PCG_MULTIPLIER).wrapping_add(PCG_INCREMENT);
            let xorshifted = (((state >> 18) ^ state) >> 27) as u32;
            u64::from(xorshifted.rotate_right((state >> 59) as u32))
        };
        Self {
            s: std::array::from_fn(|_| {
                let low = word();
                low | word() << 32
            }),
        }
    }

    #[inline(always)]
    fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.s;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let t = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= t;
        *s3 = s3.rotate_left(45);
        result
    }

    #[inline(always)]
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniform in `0..range` by 64-bit draws, as `gen_range` does for `usize` and `u64`. `range` must not be 0.
    #[inline]
    pub(super) fn below(&mut self, range: u64) -> u64 {
        let zone = (range << range.leading_zeros()).wrapping_sub(1);
        loop {
            let product = u128::from(self.next_u64()) * u128::from(range);
            if product as u64 <= zone {
                return (product >> 64) as u64;
            }
        }
    }

    /// Uniform in `0..range` by 32-bit draws, as `gen_range` does for `i32` and `choose` for short lists. `range` must not be 0.
    #[inline]
    pub(super) fn below_u32(&mut self, range: u32) -> u32 {
        let zone = (range << range.leading_zeros()).wrapping_sub(1);
        loop {
            let product = u64::from(self.next_u32()) * u64::from(range);
            if product as u32 <= zone {
                return (product >> 32) as u32;
            }
        }
    }

    /// A price in cents, log-uniform between 100 and 100 million.
    #[inline]
    pub(super) fn price(&mut self) -> i64 {
        let unit = (self.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0);
        (10.0_f32.powf(unit * 6.0) * 100.0).round() as i64
    }

    /// The draw of [`Self::price`] without its arithmetic.
    #[inline]
    pub(super) fn skip_price(&mut self) {
        self.next_u64();
    }

    #[inline(always)]
    pub(super) fn letter(&mut self) -> u8 {
        loop {
            let product = u64::from(self.next_u32()) * 26;
            if product as u32 <= LETTER_ZONE {
                return b'a' + (product >> 32) as u8;
            }
        }
    }

    /// Appends `n` letters.
    #[inline]
    pub(super) fn letters(&mut self, n: usize, out: &mut Vec<u8>) {
        let mut rng = *self;
        out.extend((0..n).map(|_| rng.letter()));
        *self = rng;
    }

    /// The draws of [`Self::letters`] alone.
    #[inline]
    pub(super) fn skip_letters(&mut self, n: usize) {
        for _ in 0..n {
            self.letter();
        }
    }

    /// Length of the filler that brings an event of `size` bytes to about `average`.
    #[inline]
    pub(super) fn extra_len(&mut self, size: usize, average: usize) -> usize {
        if size > average {
            return 0;
        }
        let missing = average - size;
        let delta = (missing + 2) / 5;
        let least = missing - delta;
        match delta {
            0 => least,
            _ => least + self.below(2 * delta as u64) as usize,
        }
    }
}
