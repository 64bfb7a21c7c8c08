//! Ordered multisets of values, one per slot: what `min`, `max`, DISTINCT and top-N need to take retractions.
//!
//! ```text
//!   slot 0   One(7 ×2)
//!   slot 1   Small[3 ×1, 5 ×4, 9 ×1]        sorted, up to 16 values
//!   slot 2   Tree{…}                        a B-tree above that
//! ```
//!
//! Each entry knows whether it has changed since the last snapshot and whether a snapshot holds it, so a snapshot writes
//! changed entries only, however large the multiset. Within a step a count may pass through zero or below.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// A value that a multiset orders.
pub trait Key: Ord + Clone + Send + Borrow<Self::Ref> + 'static {
    /// Borrowed form, for lookups without a copy.
    type Ref: Ord + ?Sized;

    /// A copy.
    fn own(value: &Self::Ref) -> Self;
}

const SMALL: usize = 16;
const DIRTY: u8 = 1;
const PERSISTED: u8 = 2;

#[derive(Debug, Clone, Copy)]
struct Entry {
    count: i64,
    flags: u8,
}

#[derive(Debug)]
enum Counts<K> {
    One(K, Entry),
    Small(Vec<(K, Entry)>),
    Tree(BTreeMap<K, Entry>),
}

/// The multisets.
#[derive(Debug)]
pub struct OrderedCounts<K> {
    slots: Vec<Counts<K>>,
    /// Slot, value, and whether a snapshot holds the entry.
    dirty: Vec<(u32, K, bool)>,
    dirty_limit: usize,
    entries: usize,
    /// Entries with a count below zero.
    negative: usize,
}

impl<K> Default for OrderedCounts<K> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            dirty: Vec::new(),
            dirty_limit: 4096,
            entries: 0,
            negative: 0,
        }
    }
}

impl<K: Key> OrderedCounts<K> {
    /// Makes slots up to `n`.
    pub fn grow(&mut self, n: usize) {
        if self.slots.len() < n {
            self.slots.resize_with(n, || Counts::Small(Vec::new()));
        }
    }

    /// Adds `diff` to a value's count; gives the counts before and after.
    pub fn add(&mut self, slot: u32, value: &K::Ref, diff: i64) -> (i64, i64) {
        let Self {
            slots, dirty, entries, ..
        } = self;
        let counts = &mut slots[slot as usize];
        let (before, after) = match counts.get_mut(value) {
            Some(entry) => {
                let before = entry.count;
                entry.count += diff;
                let after = entry.count;
                let was_dirty = entry.flags & DIRTY != 0;
                let persisted = entry.flags & PERSISTED != 0;
                entry.flags |= DIRTY;
                if !was_dirty {
                    dirty.push((slot, K::own(value), persisted));
                }
                if after == 0 {
                    counts.remove(value);
                    *entries -= 1;
                }
                (before, after)
            }
            None => {
                let key = K::own(value);
                dirty.push((slot, key.clone(), false));
                let entry = Entry {
                    count: diff,
                    flags: DIRTY,
                };
                counts.insert(key, entry);
                *entries += 1;
                (0, diff)
            }
        };
        self.negative += usize::from(after < 0);
        self.negative -= usize::from(before < 0);
        if self.dirty.len() > self.dirty_limit {
            self.compact_dirty();
        }
        (before, after)
    }

    /// The least value present.
    pub fn first(&self, slot: u32) -> Option<&K> {
        self.iter(slot).next().map(|(k, _)| k)
    }

    /// The greatest value present.
    pub fn last(&self, slot: u32) -> Option<&K> {
        self.last_with_count(slot).map(|(k, _)| k)
    }

    /// The greatest value present, and its count.
    pub fn last_with_count(&self, slot: u32) -> Option<(&K, i64)> {
        let present = |entry: &Entry| entry.count > 0;
        let (key, entry) = match &self.slots[slot as usize] {
            Counts::One(k, e) => present(e).then_some((k, e)),
            Counts::Small(list) => list.iter().rev().find(|(_, e)| present(e)).map(|(k, e)| (k, e)),
            Counts::Tree(tree) => tree.iter().rev().find(|(_, e)| present(e)),
        }?;
        Some((key, entry.count))
    }

    /// Values present with their counts, ascending.
    pub fn iter(&self, slot: u32) -> impl Iterator<Item = (&K, i64)> {
        let (one, small, tree) = match &self.slots[slot as usize] {
            Counts::One(k, e) => (Some((k, e)), None, None),
            Counts::Small(list) => (None, Some(list.iter().map(|(k, e)| (k, e))), None),
            Counts::Tree(tree) => (None, None, Some(tree.iter())),
        };
        one.into_iter()
            .chain(small.into_iter().flatten())
            .chain(tree.into_iter().flatten())
            .filter(|(_, e)| e.count > 0)
            .map(|(k, e)| (k, e.count))
    }

    /// Whether every count of the slot is zero.
    pub fn is_empty(&self, slot: u32) -> bool {
        match &self.slots[slot as usize] {
            Counts::One(..) => false,
            Counts::Small(list) => list.is_empty(),
            Counts::Tree(tree) => tree.is_empty(),
        }
    }

    /// Whether some count is negative: more was retracted than inserted.
    pub fn has_negative(&self) -> bool {
        self.negative > 0
    }

    /// Forgets a slot whose entries no snapshot holds.
    pub fn clear(&mut self, slot: u32) {
        let counts = std::mem::replace(&mut self.slots[slot as usize], Counts::Small(Vec::new()));
        self.entries -= match counts {
            Counts::One(..) => 1,
            Counts::Small(list) => list.len(),
            Counts::Tree(tree) => tree.len(),
        };
    }

    /// Hands out entries that changed since the last snapshot (`None`: gone); all entries if `full`.
    pub fn snapshot(&mut self, full: bool, mut put: impl FnMut(u32, &K, Option<i64>)) {
        self.compact_dirty();
        for (slot, key, persisted) in std::mem::take(&mut self.dirty) {
            match self.slots[slot as usize].get_mut(key.borrow()) {
                Some(entry) => {
                    entry.flags = PERSISTED;
                    if !full {
                        put(slot, &key, Some(entry.count));
                    }
                }
                None if persisted => put(slot, &key, None),
                None => {}
            }
        }
        if full {
            for (slot, counts) in self.slots.iter().enumerate() {
                counts.for_each(|key, entry| put(slot as u32, key, Some(entry.count)));
            }
        }
    }

    /// Takes an entry of a snapshot.
    pub fn restore(&mut self, slot: u32, key: K, count: i64) {
        self.grow(slot as usize + 1);
        let entry = Entry {
            count,
            flags: PERSISTED,
        };
        self.slots[slot as usize].insert(key, entry);
        self.entries += 1;
    }

    /// One item per changed entry, and none for entries that came and went between two snapshots.
    fn compact_dirty(&mut self) {
        self.dirty
            .sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)).then(b.2.cmp(&a.2)));
        self.dirty.dedup_by(|b, a| a.0 == b.0 && a.1 == b.1);
        let slots = &mut self.slots;
        self.dirty
            .retain(|(slot, key, persisted)| *persisted || slots[*slot as usize].get_mut(key.borrow()).is_some());
        self.dirty_limit = (self.dirty.len() * 2).max(4096);
    }

    /// Memory held, without what the values point to.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Counts<K>>()
            + self.entries * size_of::<(K, Entry)>() * 3 / 2
            + self.dirty.capacity() * size_of::<(u32, K, bool)>()
    }

    /// Number of distinct values over all slots.
    pub fn n_entries(&self) -> usize {
        self.entries
    }
}

impl<K: Key> Counts<K> {
    #[inline]
    fn get_mut(&mut self, value: &K::Ref) -> Option<&mut Entry> {
        match self {
            Self::One(k, e) => ((*k).borrow() == value).then_some(e),
            Self::Small(list) => {
                let at = list.binary_search_by(|(k, _)| k.borrow().cmp(value)).ok()?;
                Some(&mut list[at].1)
            }
            Self::Tree(tree) => tree.get_mut(value),
        }
    }

    fn insert(&mut self, key: K, entry: Entry) {
        match self {
            Self::Small(list) if list.capacity() == 0 => *self = Self::One(key, entry),
            Self::One(..) => {
                if let Self::One(k, e) = std::mem::replace(self, Self::Small(Vec::with_capacity(4))) {
                    self.insert(k, e);
                    self.insert(key, entry);
                }
            }
            Self::Small(list) if list.len() < SMALL => {
                let at = list.partition_point(|(k, _)| k < &key);
                list.insert(at, (key, entry));
            }
            Self::Small(list) => {
                let mut tree: BTreeMap<K, Entry> = std::mem::take(list).into_iter().collect();
                tree.insert(key, entry);
                *self = Self::Tree(tree);
            }
            Self::Tree(tree) => {
                tree.insert(key, entry);
            }
        }
    }

    fn remove(&mut self, value: &K::Ref) {
        match self {
            Self::One(..) => *self = Self::Small(Vec::new()),
            Self::Small(list) => {
                if let Ok(at) = list.binary_search_by(|(k, _)| k.borrow().cmp(value)) {
                    list.remove(at);
                }
            }
            Self::Tree(tree) => {
                tree.remove(value);
                if tree.len() <= SMALL / 2 {
                    *self = Self::Small(std::mem::take(tree).into_iter().collect());
                }
            }
        }
    }

    fn for_each(&self, mut f: impl FnMut(&K, &Entry)) {
        match self {
            Self::One(k, e) => f(k, e),
            Self::Small(list) => list.iter().for_each(|(k, e)| f(k, e)),
            Self::Tree(tree) => tree.iter().for_each(|(k, e)| f(k, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::Rng;
    use super::*;

    /// Against plain maps, with snapshots that are folded into a copy; slots, sizes and churn reach every form and the
    /// compaction of the change list.
    #[test]
    fn behaves_as_a_map_and_snapshots_rebuild_it() {
        let mut rng = Rng::new(5);
        let mut counts = OrderedCounts::<i64>::default();
        counts.grow(4);
        let mut model: BTreeMap<(u32, i64), i64> = BTreeMap::new();
        let mut stored: BTreeMap<(u32, i64), i64> = BTreeMap::new();
        for i in 0..60_000 {
            let slot = rng.below(4) as u32;
            let value = rng.below(1 << (slot * 3 + 1)) as i64;
            let diff = if rng.below(2) == 0 { 1 } else { -1 };
            let count = model.get(&(slot, value)).copied().unwrap_or(0);
            assert_eq!(counts.add(slot, &value, diff), (count, count + diff));
            if count + diff == 0 {
                model.remove(&(slot, value));
            } else {
                model.insert((slot, value), count + diff);
            }
            if i % 97 == 0 {
                let of_slot = model.iter().filter(|(k, c)| k.0 == slot && **c > 0);
                let expected: Vec<(i64, i64)> = of_slot.map(|(k, c)| (k.1, *c)).collect();
                assert_eq!(counts.iter(slot).map(|(k, c)| (*k, c)).collect::<Vec<_>>(), expected);
                assert_eq!(counts.first(slot).copied(), expected.first().map(|e| e.0));
                assert_eq!(counts.last(slot).copied(), expected.last().map(|e| e.0));
                assert_eq!(counts.has_negative(), model.values().any(|c| *c < 0));
            }
            if rng.below(7000) == 0 {
                let full = rng.below(3) == 0;
                counts.snapshot(full, |slot, value, count| {
                    match count {
                        Some(count) => stored.insert((slot, *value), count),
                        None => stored.remove(&(slot, *value)),
                    };
                });
                assert_eq!(stored, model);
            }
        }
        assert!(counts.dirty.len() <= counts.dirty_limit);
    }
}
