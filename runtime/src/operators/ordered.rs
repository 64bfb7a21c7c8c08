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
//!
//! A multiset need not be resident as a whole ([`super::cold`]): entries are read and evicted one by one. Who only wants the first
//! values (the *front*: the least ones, or the greatest) reads those in order; how far they are all resident is noted per slot:
//!
//! ```text
//!   front                  known up to 9
//!   3 ×1   5 ×4   9 ×1   ┊         17 ×2 (read by itself)       …  only in the tier
//! ```

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::fault;

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
    /// When it last changed, see [`super::cold`].
    stamp: u32,
    flags: u8,
}

#[derive(Debug)]
enum Counts<K> {
    One(K, Entry),
    Small(Vec<(K, Entry)>),
    Tree(BTreeMap<K, Entry>),
}

/// How far from the front all values of a slot are resident, where not all are.
#[derive(Debug, Clone)]
enum Known<K> {
    Nothing,
    UpTo(K),
}

/// Whether a value's count can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// By what is resident (also that it is absent).
    Known,
    /// Only by reading its entry.
    Cold,
}

/// Entries evicted in one call, at most.
const EVICT_ENTRIES: usize = if cfg!(test) { 3 } else { 4096 };

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
    /// The front is the greatest value.
    from_back: bool,
    stamp: u32,
    /// Entries that are gone, but not from the last completed checkpoint: when they went, slot, value.
    gone: VecDeque<(u32, u32, K)>,
    /// The same as a set, while anybody asks.
    gone_set: Option<BTreeMap<(u32, K), u32>>,
    /// By slot, where not all entries are resident.
    known: Vec<Option<Box<Known<K>>>>,
    /// Slot and value up to which the eviction of a large slot has come.
    sweep: Option<(u32, K)>,
}

impl<K> OrderedCounts<K> {
    /// Multisets of which the least values, or with `from_back` the greatest, are wanted first.
    pub fn new(from_back: bool) -> Self {
        Self {
            slots: Vec::new(),
            dirty: Vec::new(),
            dirty_limit: 4096,
            entries: 0,
            negative: 0,
            from_back,
            stamp: 1,
            gone: VecDeque::new(),
            gone_set: None,
            known: Vec::new(),
            sweep: None,
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
        let counts = &mut self.slots[slot as usize];
        let (before, after) = match counts.get_mut(value) {
            Some(entry) => {
                let before = entry.count;
                entry.count += diff;
                let after = entry.count;
                let persisted = entry.flags & PERSISTED != 0;
                if entry.flags & DIRTY == 0 {
                    entry.flags |= DIRTY;
                    entry.stamp = self.stamp;
                    self.dirty.push((slot, K::own(value), persisted));
                }
                if after == 0 {
                    self.remove(slot, value, persisted);
                }
                (before, after)
            }
            None => {
                let key = K::own(value);
                self.dirty.push((slot, key.clone(), false));
                let entry = Entry {
                    count: diff,
                    stamp: self.stamp,
                    flags: DIRTY,
                };
                counts.insert(key, entry);
                self.entries += 1;
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

    fn remove(&mut self, slot: u32, value: &K::Ref, persisted: bool) {
        self.slots[slot as usize].remove(value);
        self.entries -= 1;
        if persisted {
            let key = K::own(value);
            if let Some(set) = &mut self.gone_set {
                set.insert((slot, key.clone()), self.stamp);
            }
            self.gone.push_back((self.stamp, slot, key));
        }
    }

    /// The greatest value present.
    pub fn last(&self, slot: u32) -> Option<&K> {
        self.last_with_count(slot).map(|(k, _)| k)
    }

    /// The greatest value present, and its count.
    pub fn last_with_count(&self, slot: u32) -> Option<(&K, i64)> {
        self.iter_back(slot).next()
    }

    fn iter_back(&self, slot: u32) -> impl Iterator<Item = (&K, i64)> {
        let (one, small, tree) = self.slots[slot as usize].parts();
        one.into_iter()
            .chain(small.iter().rev().map(|(k, e)| (k, e)))
            .chain(tree.into_iter().flat_map(|t| t.iter().rev()))
            .filter(|(_, e)| e.count > 0)
            .map(|(k, e)| (k, e.count))
    }

    /// The value at the front, with its count.
    pub fn front(&self, slot: u32) -> Option<(&K, i64)> {
        if self.from_back {
            self.iter_back(slot).next()
        } else {
            self.iter(slot).next()
        }
    }

    /// Values present with their counts, ascending.
    pub fn iter(&self, slot: u32) -> impl Iterator<Item = (&K, i64)> {
        let (one, small, tree) = self.slots[slot as usize].parts();
        one.into_iter()
            .chain(small.iter().map(|(k, e)| (k, e)))
            .chain(tree.into_iter().flatten())
            .filter(|(_, e)| e.count > 0)
            .map(|(k, e)| (k, e.count))
    }

    /// A resident value's count, 0 if it is not there.
    pub fn count(&self, slot: u32, value: &K::Ref) -> i64 {
        let (one, small, tree) = self.slots[slot as usize].parts();
        let found = match tree {
            Some(tree) => tree.get(value),
            None => match small.binary_search_by(|(k, _)| k.borrow().cmp(value)) {
                Ok(at) => Some(&small[at].1),
                Err(_) => one.filter(|(k, _)| (*k).borrow() == value).map(|(_, e)| e),
            },
        };
        found.map_or(0, |e| e.count)
    }

    /// Values present from `from` on, ascending, with their counts; all without it.
    pub fn iter_from<'a>(&'a self, slot: u32, from: Option<&K>) -> Box<dyn Iterator<Item = (&'a K, i64)> + 'a> {
        let (one, small, tree) = self.slots[slot as usize].parts();
        let small = from.map_or(small, |from| &small[small.partition_point(|(k, _)| k < from)..]);
        let one = one.filter(|(k, _)| from.is_none_or(|from| *k >= from));
        let bounds = (
            from.map_or(Bound::Unbounded, |k| Bound::Included(k.clone())),
            Bound::Unbounded,
        );
        let few = one.into_iter().chain(small.iter().map(|(k, e)| (k, e)));
        let present = |(k, e): (&'a K, &'a Entry)| (e.count > 0).then_some((k, e.count));
        match tree {
            Some(tree) => Box::new(tree.range::<K, _>(bounds).filter_map(present)),
            None => Box::new(few.filter_map(present)),
        }
    }

    /// Values present in front of `before`, descending, with their counts; all without it.
    pub fn iter_before<'a>(&'a self, slot: u32, before: Option<&K>) -> Box<dyn Iterator<Item = (&'a K, i64)> + 'a> {
        let (one, small, tree) = self.slots[slot as usize].parts();
        let small = before.map_or(small, |before| &small[..small.partition_point(|(k, _)| k < before)]);
        let one = one.filter(|(k, _)| before.is_none_or(|before| *k < before));
        let bounds = (
            Bound::Unbounded,
            before.map_or(Bound::Unbounded, |k| Bound::Excluded(k.clone())),
        );
        let few = one.into_iter().chain(small.iter().map(|(k, e)| (k, e)));
        let present = |(k, e): (&'a K, &'a Entry)| (e.count > 0).then_some((k, e.count));
        match tree {
            Some(tree) => Box::new(tree.range::<K, _>(bounds).rev().filter_map(present)),
            None => Box::new(few.rev().filter_map(present)),
        }
    }

    /// Whether some count is negative: more was retracted than inserted.
    pub fn has_negative(&self) -> bool {
        self.negative > 0
    }

    /// Forgets a slot whose entries no snapshot holds, or that are all clean.
    pub fn clear(&mut self, slot: u32) {
        let counts = std::mem::replace(&mut self.slots[slot as usize], Counts::Small(Vec::new()));
        self.entries -= counts.len();
        self.set_known_to(slot, None);
    }

    /// Moves slots (from, to), then cuts them down to `n`.
    pub fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        let target: BTreeMap<u32, u32> = moves.iter().copied().collect();
        for &(from, to) in moves {
            self.slots.swap(from as usize, to as usize);
            let known = self.known.get_mut(from as usize).and_then(Option::take);
            self.set_known_to(to, known.map(|k| *k));
        }
        // What is noted of a slot without a target belongs to no key any more.
        let place = |slot: &mut u32| match target.get(slot) {
            Some(to) => {
                *slot = *to;
                true
            }
            None => (*slot as usize) < n,
        };
        self.dirty.retain_mut(|item| place(&mut item.0));
        self.gone.retain_mut(|item| place(&mut item.1));
        self.gone_set = None;
        self.sweep = None;
        self.slots.truncate(n);
        self.slots.shrink_to_fit();
        self.known.truncate(n);
        self.known.shrink_to_fit();
    }

    fn known(&self, slot: u32) -> Option<&Known<K>> {
        self.known.get(slot as usize)?.as_deref()
    }

    fn set_known_to(&mut self, slot: u32, known: Option<Known<K>>) {
        let at = slot as usize;
        if known.is_some() && self.known.len() <= at {
            self.known.resize_with(self.slots.len().max(at + 1), || None);
        }
        if let Some(place) = self.known.get_mut(at) {
            *place = known.map(Box::new);
        }
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

    /// Takes an entry of a snapshot, unless what is resident is newer.
    pub fn restore(&mut self, slot: u32, key: K, count: i64) {
        self.grow(slot as usize + 1);
        if self.is_gone(slot, &key) || self.slots[slot as usize].get_mut(key.borrow()).is_some() {
            return;
        }
        let entry = Entry {
            count,
            stamp: 0,
            flags: PERSISTED,
        };
        self.slots[slot as usize].insert(key, entry);
        self.entries += 1;
    }

    fn is_gone(&mut self, slot: u32, key: &K) -> bool {
        if self.gone.is_empty() || fault::planted(fault::Fault::ForgetGone) {
            return false;
        }
        let gone = &self.gone;
        let set = self
            .gone_set
            .get_or_insert_with(|| gone.iter().map(|(at, s, k)| ((*s, k.clone()), *at)).collect());
        set.contains_key(&(slot, key.clone()))
    }

    /// The slot's entries are in the tier, except those resident.
    pub fn set_cold(&mut self, slot: u32) {
        self.set_known_to(slot, Some(Known::Nothing));
    }

    /// Whether all of the slot's entries are resident.
    pub fn is_all(&self, slot: u32) -> bool {
        self.known(slot).is_none()
    }

    /// All entries up to this one are resident; `None`: all.
    pub fn set_known(&mut self, slot: u32, up_to: Option<K>) {
        self.set_known_to(slot, up_to.map(Known::UpTo));
    }

    /// Whether a value's count is known.
    pub fn look_up(&mut self, slot: u32, value: &K::Ref) -> Lookup {
        let within = match self.known(slot) {
            None => return Lookup::Known,
            Some(Known::Nothing) => false,
            Some(Known::UpTo(bound)) => self.is_within(value, bound.borrow()),
        };
        if within || self.slots[slot as usize].get_mut(value).is_some() || self.is_gone(slot, &K::own(value)) {
            Lookup::Known
        } else {
            Lookup::Cold
        }
    }

    fn is_within(&self, value: &K::Ref, bound: &K::Ref) -> bool {
        if self.from_back { value >= bound } else { value <= bound }
    }

    /// Whether the first `copies` values from the front cannot be told yet, and up to which value all are known (`None`: none).
    pub fn wants(&self, slot: u32, copies: i64) -> Option<Option<&K>> {
        let bound = match self.known(slot)? {
            Known::Nothing => return Some(None),
            Known::UpTo(bound) => bound,
        };
        let mut left = copies;
        let mut enough = |(key, count): (&K, i64)| {
            left -= count;
            !self.is_within(key.borrow(), bound.borrow()) || left <= 0
        };
        let last = if self.from_back {
            self.iter_back(slot).find(|e| enough(*e))
        } else {
            self.iter(slot).find(|e| enough(*e))
        };
        let known = last.is_some_and(|(key, _)| self.is_within(key.borrow(), bound.borrow()));
        (!known).then_some(Some(bound))
    }

    /// A snapshot has been taken: changes bear the next stamp.
    pub fn freeze(&mut self) {
        self.stamp += 1;
    }

    /// The checkpoint of the `n`-th snapshot has completed.
    pub fn complete(&mut self, n: u32) {
        while let Some((at, ..)) = self.gone.front()
            && *at <= n
        {
            let Some((at, slot, key)) = self.gone.pop_front() else {
                break;
            };
            if let Some(set) = &mut self.gone_set {
                let at_key = (slot, key);
                if set.get(&at_key) == Some(&at) {
                    set.remove(&at_key);
                }
            }
        }
        if self.gone.is_empty() {
            self.gone_set = None;
            self.gone.shrink_to(1024);
        }
    }

    /// Evicts clean entries of a slot, but not the first `keep` from the front; changes up to the stamp `completed` are clean. Looks
    /// at a bounded number, and goes on from there when it is called again. Answers how many went.
    pub fn evict(&mut self, slot: u32, keep: usize, completed: u32) -> usize {
        let counts = &mut self.slots[slot as usize];
        if counts.len() <= keep {
            return 0;
        }
        let from = self.sweep.take().filter(|s| s.0 == slot).map(|s| s.1);
        let skip = if from.is_some() { 0 } else { keep };
        let mut picked = Vec::new();
        for (i, (key, entry)) in counts.range(from.as_ref(), self.from_back).enumerate() {
            if i >= EVICT_ENTRIES {
                self.sweep = Some((slot, key.clone()));
                break;
            }
            if i >= skip && entry.flags == PERSISTED && entry.stamp <= completed {
                picked.push(key.clone());
            }
        }
        let Some(first) = picked.first() else { return 0 };
        let before = counts.before(first, self.from_back).cloned();
        for key in &picked {
            counts.remove(key.borrow());
        }
        self.entries -= picked.len();
        let lower = match self.known(slot) {
            None => true,
            Some(Known::Nothing) => false,
            Some(Known::UpTo(bound)) => self.is_within(first.borrow(), bound.borrow()),
        };
        if lower {
            self.set_known_to(slot, Some(before.map_or(Known::Nothing, Known::UpTo)));
        }
        picked.len()
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
        self.slots.len() * size_of::<Counts<K>>()
            + self.entries * Self::entry_bytes()
            + self.dirty.capacity() * size_of::<(u32, K, bool)>()
            + self.gone.capacity() * size_of::<(u32, u32, K)>()
            + self.known.len() * 8
    }

    /// Memory of an entry, without what its value points to.
    pub fn entry_bytes() -> usize {
        size_of::<(K, Entry)>() * 3 / 2
    }

    /// Resident entries of a slot.
    pub fn len(&self, slot: u32) -> usize {
        self.slots[slot as usize].len()
    }

    /// Number of distinct values over all slots.
    pub fn n_entries(&self) -> usize {
        self.entries
    }
}

impl<K: Key> Counts<K> {
    #[allow(clippy::type_complexity, reason = "the three forms, for iterators to be chained")]
    fn parts(&self) -> (Option<(&K, &Entry)>, &[(K, Entry)], Option<&BTreeMap<K, Entry>>) {
        match self {
            Self::One(k, e) => (Some((k, e)), &[], None),
            Self::Small(list) => (None, list, None),
            Self::Tree(tree) => (None, &[], Some(tree)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::One(..) => 1,
            Self::Small(list) => list.len(),
            Self::Tree(tree) => tree.len(),
        }
    }

    /// All entries from `from` on, towards the back, or with `from_back` towards the front.
    fn range<'a>(&'a self, from: Option<&K>, from_back: bool) -> Box<dyn Iterator<Item = (&'a K, &'a Entry)> + 'a> {
        let (one, small, tree) = self.parts();
        let bounds = match (from, from_back) {
            (None, _) => (Bound::Unbounded, Bound::Unbounded),
            (Some(from), false) => (Bound::Included(from.clone()), Bound::Unbounded),
            (Some(from), true) => (Bound::Unbounded, Bound::Included(from.clone())),
        };
        // The small forms are always taken whole.
        let few = one.into_iter().chain(small.iter().map(|(k, e)| (k, e)));
        match (tree, from_back) {
            (Some(tree), false) => Box::new(tree.range::<K, _>(bounds)),
            (Some(tree), true) => Box::new(tree.range::<K, _>(bounds).rev()),
            (None, false) => Box::new(few),
            (None, true) => Box::new(few.rev()),
        }
    }

    /// The key that stands before another one, seen from the front.
    fn before(&self, key: &K, from_back: bool) -> Option<&K> {
        let (one, small, tree) = self.parts();
        let bounds = if from_back {
            (Bound::Excluded(key.clone()), Bound::Unbounded)
        } else {
            (Bound::Unbounded, Bound::Excluded(key.clone()))
        };
        if let Some(tree) = tree {
            let mut range = tree.range::<K, _>(bounds);
            let found = if from_back { range.next() } else { range.next_back() };
            return found.map(|(k, _)| k);
        }
        let mut few = one.into_iter().chain(small.iter().map(|(k, e)| (k, e))).map(|(k, _)| k);
        if from_back {
            few.find(|k| *k > key)
        } else {
            few.rev().find(|k| *k < key)
        }
    }

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
        let mut counts = OrderedCounts::<i64>::new(false);
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
                assert_eq!(
                    counts.count(slot, &value),
                    model.get(&(slot, value)).copied().unwrap_or(0)
                );
                let pairs =
                    |iter: Box<dyn Iterator<Item = (&i64, i64)> + '_>| iter.map(|(k, c)| (*k, c)).collect::<Vec<_>>();
                let at = expected.partition_point(|e| e.0 < value);
                assert_eq!(pairs(counts.iter_from(slot, Some(&value))), expected[at..]);
                let back: Vec<(i64, i64)> = expected[..at].iter().rev().copied().collect();
                assert_eq!(pairs(counts.iter_before(slot, Some(&value))), back);
                assert_eq!(counts.front(slot).map(|e| *e.0), expected.first().map(|e| e.0));
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
