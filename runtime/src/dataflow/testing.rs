//! Switches that tests (and the server's debug endpoint) set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::UInt32Array;
use parking_lot::RwLock;

use crate::{Delta, Result};

/// If not 0, leaves permute the rows that they read and cut them differently, by this seed, the task, its incarnation and the
/// step: nothing that a region reports may depend on it (I2).
pub static SHUFFLE: AtomicU64 = AtomicU64::new(0);

static DELAYED: AtomicBool = AtomicBool::new(false);
static DELAYS_MS: RwLock<Option<HashMap<String, u64>>> = RwLock::new(None);

/// Sets the delay of a region by its name; 0 removes it.
pub(super) fn set_delay(region: &str, ms: u64) {
    let mut delays = DELAYS_MS.write();
    let map = delays.get_or_insert_with(HashMap::new);
    if ms == 0 {
        map.remove(region);
    } else {
        map.insert(region.to_owned(), ms);
    }
    DELAYED.store(!map.is_empty(), Ordering::Release);
}

/// The delay of a region, milliseconds.
pub(super) fn delay_ms(region: &str) -> Option<u64> {
    if !DELAYED.load(Ordering::Acquire) {
        return None;
    }
    DELAYS_MS.read().as_ref().and_then(|delays| delays.get(region).copied())
}

/// A small generator for [`SHUFFLE`] (xorshift64*).
pub(super) struct Shuffle(u64);

impl Shuffle {
    /// `None` while the switch is off.
    pub(super) fn new(salt: &[u64]) -> Option<Self> {
        let seed = SHUFFLE.load(Ordering::Relaxed);
        if seed == 0 {
            return None;
        }
        let mixed = salt
            .iter()
            .fold(seed, |s, v| (s ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        Some(Self(mixed | 1))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
    }

    /// The delta's rows in another order, cut into pieces.
    pub(super) fn apply(&mut self, delta: &Delta) -> Result<Vec<Delta>> {
        let n = delta.num_rows();
        let mut index: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            index.swap(i, self.below(i + 1));
        }
        let shuffled = delta.take(&UInt32Array::from(index))?;
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < n {
            let length = 1 + self.below((n - at).min(1 + n / 3));
            pieces.push(shuffled.slice(at, length));
            at += length;
        }
        Ok(pieces)
    }
}
