//! Values that an accumulator keeps with their counts: an ordered multiset per group, read from the cold tier and evicted value by
//! value, so that a group may have more of them than memory.
//!
//! State: one entry per group and value, in the order in which the accumulator wants them. `max` wants the greatest first, and
//! the tier is read forwards, so its keys are the complements.

use super::super::ordered::{Lookup, OrderedCounts};
use super::accumulator::Rows;
use super::values::ValueKey;
use crate::{Result, RuntimeError};

/// What the aggregate asks of such values, whatever their type.
pub trait Entries {
    /// Calls `ask` with slot and key of entries that rows change and whose counts are not known.
    ///
    /// # Errors
    /// The argument has another type than declared.
    fn missing(&mut self, rows: &Rows<'_>, ask: &mut dyn FnMut(u32, &[u8])) -> Result<()>;

    /// Takes an entry: slot, key, count.
    ///
    /// # Errors
    /// Damaged bytes.
    fn restore(&mut self, slot: u32, key: &[u8], count: i64) -> Result<()>;

    /// Hands out changed entries: slot, key, count (`None`: gone).
    fn snapshot(&mut self, full: bool, put: &mut dyn FnMut(u32, &[u8], Option<i64>));

    /// The checkpoint of the `n`-th snapshot has completed.
    fn complete(&mut self, n: u32);

    /// The group's entries are in the tier.
    fn set_cold(&mut self, slot: u32);

    /// Whether more must be read before the group's result can be told: then `after` is the key after which to go on.
    fn wants(&self, slot: u32, after: &mut Option<Vec<u8>>) -> bool;

    /// All entries up to this key have been handed to `restore`; `None`: all that there are.
    ///
    /// # Errors
    /// Damaged bytes.
    fn has_read(&mut self, slot: u32, up_to: Option<&[u8]>) -> Result<()>;

    /// Evicts clean entries of a group that stays; answers the bytes freed.
    fn evict(&mut self, slot: u32, completed: u32) -> usize;

    /// Bytes of a group's entries, about.
    fn bytes_of(&self, slot: u32) -> usize;
}

/// The multisets of one accumulator.
pub struct Multiset<K: ValueKey> {
    /// How columns become values.
    pub codec: K::Codec,
    /// The values.
    pub counts: OrderedCounts<K>,
    /// Copies from the front that a result needs.
    wanted: i64,
    descending: bool,
}

/// Entries from the front that stay resident with their group.
const FRONT: usize = if cfg!(test) { 1 } else { 4 };

impl<K: ValueKey> Multiset<K> {
    /// Of which results need the first `wanted` copies: the least, or with `descending` the greatest.
    pub fn new(codec: K::Codec, wanted: i64, descending: bool) -> Self {
        Self {
            codec,
            counts: OrderedCounts::new(descending),
            wanted,
            descending,
        }
    }

    /// A value's key: bytes that sort from the front.
    fn encode(descending: bool, value: &K, out: &mut Vec<u8>) {
        out.clear();
        value.encode(out);
        if descending {
            if K::VARIABLE {
                *out = escape(out);
            }
            out.iter_mut().for_each(|b| *b = !*b);
        }
    }

    fn decode(&self, key: &[u8]) -> Result<K> {
        if !self.descending {
            return K::decode(key);
        }
        let bytes: Vec<u8> = key.iter().map(|b| !b).collect();
        if K::VARIABLE {
            K::decode(&unescape(&bytes)?)
        } else {
            K::decode(&bytes)
        }
    }

    /// Appends the front of a group's values, if it is known, so that who loads the group need not read its entries.
    pub fn encode_front(&self, slot: u32, out: &mut Vec<u8>) {
        let known = self.counts.wants(slot, 1).is_none();
        if let Some((value, count)) = self.counts.front(slot).filter(|_| known) {
            let mut key = Vec::new();
            Self::encode(self.descending, value, &mut key);
            out.push(1 + u8::from(self.counts.is_all(slot) && self.counts.len(slot) == 1));
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(&key);
        }
    }

    /// Reads what [`Self::encode_front`] appended.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn decode_front(&mut self, slot: u32, bytes: &[u8]) -> Result<()> {
        let Some((kind, rest)) = bytes.split_first() else {
            return Ok(());
        };
        if self.counts.is_all(slot) {
            return Ok(());
        }
        let (count, key) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| RuntimeError::internal("a stored aggregate value is damaged"))?;
        let value = self.decode(key)?;
        self.counts.set_known(slot, Some(value.clone()).filter(|_| *kind == 1));
        self.counts.restore(slot, value, i64::from_le_bytes(*count));
        Ok(())
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.counts.bytes() + self.counts.n_entries() * K::heap_bytes()
    }

    fn entry_bytes() -> usize {
        OrderedCounts::<K>::entry_bytes() + K::heap_bytes()
    }
}

impl<K: ValueKey> Entries for Multiset<K> {
    fn missing(&mut self, rows: &Rows<'_>, ask: &mut dyn FnMut(u32, &[u8])) -> Result<()> {
        let argument = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("an aggregate of values lacks its argument"))?;
        let mut unknown: Vec<(u32, K)> = Vec::new();
        let column = K::read(&self.codec, argument)?;
        let counts = &mut self.counts;
        rows.for_each(|i, slot, _| {
            let value = K::at(&column, i);
            if counts.look_up(slot as u32, value) == Lookup::Cold {
                unknown.push((slot as u32, K::own(value)));
            }
        });
        drop(column);
        unknown.sort_unstable();
        unknown.dedup();
        let mut key = Vec::new();
        for (slot, value) in &unknown {
            Self::encode(self.descending, value, &mut key);
            ask(*slot, &key);
        }
        Ok(())
    }

    fn restore(&mut self, slot: u32, key: &[u8], count: i64) -> Result<()> {
        let value = self.decode(key)?;
        self.counts.restore(slot, value, count);
        Ok(())
    }

    fn snapshot(&mut self, full: bool, put: &mut dyn FnMut(u32, &[u8], Option<i64>)) {
        let (descending, mut key) = (self.descending, Vec::new());
        self.counts.snapshot(full, |slot, value, count| {
            Self::encode(descending, value, &mut key);
            put(slot, &key, count);
        });
        self.counts.freeze();
    }

    fn complete(&mut self, n: u32) {
        self.counts.complete(n);
    }

    fn set_cold(&mut self, slot: u32) {
        self.counts.set_cold(slot);
    }

    fn wants(&self, slot: u32, after: &mut Option<Vec<u8>>) -> bool {
        if self.wanted == 0 {
            return false;
        }
        match self.counts.wants(slot, self.wanted) {
            None => false,
            Some(bound) => {
                *after = bound.map(|value| {
                    let mut key = Vec::new();
                    Self::encode(self.descending, value, &mut key);
                    key
                });
                true
            }
        }
    }

    fn has_read(&mut self, slot: u32, up_to: Option<&[u8]>) -> Result<()> {
        let up_to = up_to.map(|key| self.decode(key)).transpose()?;
        self.counts.set_known(slot, up_to);
        Ok(())
    }

    fn evict(&mut self, slot: u32, completed: u32) -> usize {
        let keep = if self.wanted == 0 { 0 } else { FRONT };
        self.counts.evict(slot, keep, completed) * Self::entry_bytes()
    }

    fn bytes_of(&self, slot: u32) -> usize {
        self.counts.len(slot) * Self::entry_bytes()
    }
}

/// Bytes that sort as `bytes` do, and of which none is the beginning of another: 0 becomes 0 255, and 0 0 ends them.
fn escape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 2);
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend_from_slice(&[0, 0]);
    out
}

fn unescape(bytes: &[u8]) -> Result<Vec<u8>> {
    let damaged = || RuntimeError::internal("a stored aggregate value is damaged");
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    loop {
        match rest.next() {
            Some(0) => match rest.next() {
                Some(&u8::MAX) => out.push(0),
                Some(0) if rest.len() == 0 => return Ok(out),
                _ => return Err(damaged()),
            },
            Some(&byte) => out.push(byte),
            None => return Err(damaged()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_sort_and_come_back() {
        let texts: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"ab", b"\xff"];
        for pair in texts.windows(2) {
            let (a, b) = (escape(pair[0]), escape(pair[1]));
            assert!(a < b && !b.starts_with(&a));
        }
        for text in texts {
            assert_eq!(unescape(&escape(text)).unwrap(), text);
        }
        assert!(unescape(b"a").is_err() && unescape(b"\0\0a").is_err());
    }
}
