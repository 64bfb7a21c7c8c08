//! A hash table that grows and shrinks in small pieces.
//!
//! A table of 20 million entries that doubles holds three times its entries' bytes for a moment, and moves them all at once. Linear
//! hashing does it by segments of some tens of thousands of entries: when the average is above [`SEGMENT_ENTRIES`], the next segment
//! in turn is split in two by one more bit of the hash.
//!
//! ```text
//!   6 segments, low bits of the hash:   x00 split ─▶ 000, 100     x01 split ─▶ 001, 101     010, 110 ─▶ 10     011, 111 ─▶ 11
//! ```
//!
//! Small tables have one segment and cost one comparison more than a plain one.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Entries of a segment on average, at most.
const SEGMENT_ENTRIES: usize = 24 * 1024;

/// Spreads a row's hash over a table: hashbrown takes buckets from the low bits and tags from the high ones, and the vnode's
/// bits are the same for many of a task's keys. Segments go by the low bits of the hash itself.
#[inline]
pub fn bucket_hash(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// The table.
#[derive(Debug)]
pub struct Segments<T> {
    tables: Vec<HashTable<T>>,
    /// One less than the power of two above the number of segments (of one: 1).
    mask: u64,
    len: usize,
}

impl<T: Copy> Default for Segments<T> {
    fn default() -> Self {
        Self {
            tables: vec![HashTable::new()],
            mask: 1,
            len: 0,
        }
    }
}

impl<T: Copy> Segments<T> {
    #[inline]
    fn segment(&self, hash: u64) -> usize {
        let segment = (hash & self.mask) as usize;
        if segment < self.tables.len() {
            segment
        } else {
            segment & (self.mask >> 1) as usize
        }
    }

    /// The entry for which `same` holds, or the one that `make` makes; `hash_of` gives entries' hashes.
    #[inline]
    pub fn find_or_insert(
        &mut self,
        hash: u64,
        same: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
        make: impl FnOnce() -> T,
    ) -> T {
        let segment = self.segment(hash);
        let made = match self.tables[segment].entry(bucket_hash(hash), same, |e| bucket_hash(hash_of(e))) {
            Entry::Occupied(found) => return *found.get(),
            Entry::Vacant(vacant) => *vacant.insert(make()).get(),
        };
        self.len += 1;
        made
    }

    /// The entry for which `same` holds.
    pub fn find_mut(&mut self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let segment = self.segment(hash);
        self.tables[segment].find_mut(bucket_hash(hash), same)
    }

    /// Removes the entry for which `same` holds.
    pub fn remove(&mut self, hash: u64, same: impl FnMut(&T) -> bool) {
        let segment = self.segment(hash);
        if let Ok(found) = self.tables[segment].find_entry(bucket_hash(hash), same) {
            found.remove();
            self.len -= 1;
        }
    }

    /// Splits segments that have become too large; call it after a batch of insertions.
    #[inline]
    pub fn settle(&mut self, hash_of: impl Fn(&T) -> u64) {
        while self.len > self.tables.len() * SEGMENT_ENTRIES {
            self.split(&hash_of);
        }
    }

    fn split(&mut self, hash_of: &impl Fn(&T) -> u64) {
        let bit = self.mask.div_ceil(2);
        let from = self.tables.len() & (bit - 1) as usize;
        let whole = std::mem::take(&mut self.tables[from]);
        let moves = |e: &T| hash_of(e) & bit != 0;
        let n = whole.iter().filter(|e| moves(e)).count();
        let mut stay = HashTable::with_capacity(whole.len() - n);
        let mut moved = HashTable::with_capacity(n);
        for entry in whole {
            let to = if moves(&entry) { &mut moved } else { &mut stay };
            to.insert_unique(bucket_hash(hash_of(&entry)), entry, |e| bucket_hash(hash_of(e)));
        }
        self.tables[from] = stay;
        self.tables.push(moved);
        if self.tables.len() as u64 > self.mask {
            self.mask = 2 * self.mask + 1;
        }
    }

    /// Joins segments that have become small, and gives memory back.
    pub fn shrink(&mut self, hash_of: impl Fn(&T) -> u64) {
        while self.tables.len() > 1 && self.len < self.tables.len() * (SEGMENT_ENTRIES / 4) {
            let Some(last) = self.tables.pop() else { return };
            if (self.tables.len() as u64) < self.mask.div_ceil(2) {
                self.mask >>= 1;
            }
            let into = self.tables.len() & (self.mask.div_ceil(2) - 1) as usize;
            for entry in last {
                self.tables[into].insert_unique(bucket_hash(hash_of(&entry)), entry, |e| bucket_hash(hash_of(e)));
            }
        }
        for table in &mut self.tables {
            if table.capacity() > 2 * table.len() {
                table.shrink_to_fit(|e| bucket_hash(hash_of(e)));
            }
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.tables.iter().flatten()
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(HashTable::allocation_size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (key << 56)
    }

    #[test]
    fn finds_all_while_it_grows_and_shrinks() {
        let mut table: Segments<(u64, u32)> = Segments::default();
        let n = 9 * SEGMENT_ENTRIES as u64;
        let mut segments_max = 0;
        for key in 0..n {
            let made = table.find_or_insert(hash(key), |e| e.0 == key, |e| hash(e.0), || (key, key as u32));
            assert_eq!(made.1, key as u32);
            if key % 1000 == 0 {
                table.settle(|e| hash(e.0));
                segments_max = segments_max.max(table.tables.len());
                let found = table.find_mut(hash(key / 2), |e| e.0 == key / 2);
                assert_eq!(found.map(|e| e.1), Some((key / 2) as u32));
            }
        }
        assert_eq!((table.len, segments_max), (n as usize, 9));
        let large = table.bytes();
        for key in 0..n {
            let again = table.find_or_insert(hash(key), |e| e.0 == key, |e| hash(e.0), || unreachable!());
            assert_eq!(again.1, key as u32);
            if key % 50 != 0 {
                table.remove(hash(key), |e| e.0 == key);
            }
            if key % 10_000 == 0 {
                table.shrink(|e| hash(e.0));
            }
        }
        table.shrink(|e| hash(e.0));
        assert_eq!(table.tables.len(), 1);
        assert!(table.bytes() < large / 20, "{} of {large}", table.bytes());
        for key in 0..n {
            assert_eq!(table.find_mut(hash(key), |e| e.0 == key).is_some(), key % 50 == 0);
        }
        assert_eq!(table.iter().count(), table.len);
    }
}
