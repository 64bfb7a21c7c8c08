//! Walking through a partition as it was before the step and as it is now, at once.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;

use super::super::ordered::OrderedCounts;
use super::super::partitions::{Entry, key_part};
use super::shape::Reach;
use crate::Result;

/// Entries that the step changes, with the copies before it.
pub type Journal = BTreeMap<Entry, i64>;

/// An entry with its copies before the step and now.
#[derive(Debug, Clone)]
pub struct Item {
    /// The entry.
    pub entry: Entry,
    /// Copies before and after.
    pub copies: [i64; 2],
}

impl Item {
    /// Rows, whichever side has more.
    pub fn rows(&self) -> i64 {
        self.copies[0].max(self.copies[1])
    }

    /// The step leaves its copies as they were.
    pub fn is_same(&self) -> bool {
        self.copies[0] == self.copies[1]
    }
}

/// Merges what is there now with what the step has changed.
struct Merged<'a, A: Iterator, B: Iterator> {
    now: Peekable<A>,
    changed: Peekable<B>,
    back: bool,
    _life: std::marker::PhantomData<&'a ()>,
}

impl<'a, A, B> Iterator for Merged<'a, A, B>
where
    A: Iterator<Item = (&'a Entry, i64)>,
    B: Iterator<Item = (&'a Entry, &'a i64)>,
{
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            let order = match (self.now.peek(), self.changed.peek()) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(n), Some(c)) if self.back => c.0.cmp(n.0),
                (Some(n), Some(c)) => n.0.cmp(c.0),
            };
            let now = if order.is_le() { self.now.next() } else { None };
            let was = if order.is_ge() { self.changed.next() } else { None };
            let item = match (now, was) {
                (Some((entry, count)), None) => (entry, [count, count]),
                (Some((entry, count)), Some((_, was))) => (entry, [*was, count]),
                (None, Some((entry, was))) => (entry, [*was, 0]),
                (None, None) => return None,
            };
            if item.1 != [0, 0] {
                return Some(Item {
                    entry: Arc::clone(item.0),
                    copies: item.1,
                });
            }
        }
    }
}

/// A partition with what the step has changed in it.
#[derive(Clone, Copy)]
pub struct Both<'a> {
    /// All partitions as they are now.
    pub entries: &'a OrderedCounts<Entry>,
    /// The partition.
    pub slot: u32,
    /// Its changes.
    pub journal: &'a Journal,
}

impl<'a> Both<'a> {
    /// Entries from `from` on; all without it.
    pub fn from(self, from: Option<&Entry>) -> Box<dyn Iterator<Item = Item> + 'a> {
        let changed = match from {
            Some(from) => self.journal.range::<Entry, _>(from..),
            None => self.journal.range::<Entry, _>(..),
        };
        Box::new(Merged {
            now: self.entries.iter_from(self.slot, from).peekable(),
            changed: changed.peekable(),
            back: false,
            _life: std::marker::PhantomData,
        })
    }

    /// Entries in front of `before`, from the nearest on.
    pub fn before(self, before: &Entry) -> Box<dyn Iterator<Item = Item> + 'a> {
        Box::new(Merged {
            now: self.entries.iter_before(self.slot, Some(before)).peekable(),
            changed: self.journal.range::<Entry, _>(..before).rev().peekable(),
            back: true,
            _life: std::marker::PhantomData,
        })
    }

    /// The first entry that `reach` takes in front of `origin`; that itself if it takes none.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn back(self, origin: &Entry, reach: &Reach, far: &Far<'_>) -> Result<Entry> {
        let mut first = Arc::clone(origin);
        if reach.rows == 0 && reach.groups.is_none() && reach.distances.is_empty() {
            return Ok(first);
        }
        let mut walker = Walker::new(false);
        walker.reset(origin)?;
        for item in self.before(origin) {
            if !walker.takes(&item, reach, far)? {
                break;
            }
            first = item.entry;
        }
        Ok(first)
    }
}

/// Sort columns at the far ends of distances: the origin's, and whether towards the front.
pub type Far<'a> = dyn Fn(&[u8], &[levee_planner::plan::Distance], bool) -> Result<Option<Vec<u8>>> + 'a;

/// Follows a reach away from its origin, before and after the step at once: as far as either goes.
#[derive(Debug, Clone, Default)]
pub struct Walker {
    forward: bool,
    origin: Option<Entry>,
    rows: [i64; 2],
    groups: [i64; 2],
    last: [Option<Entry>; 2],
    bound: Option<Option<Vec<u8>>>,
}

impl Walker {
    /// One that takes nothing yet.
    pub fn new(forward: bool) -> Self {
        Self {
            forward,
            ..Self::default()
        }
    }

    /// Starts at an entry.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn reset(&mut self, origin: &Entry) -> Result<()> {
        key_part(origin)?;
        *self = Self {
            origin: Some(Arc::clone(origin)),
            ..Self::new(self.forward)
        };
        Ok(())
    }

    /// Goes on to the next entry; whether the reach takes it.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn takes(&mut self, item: &Item, reach: &Reach, far: &Far<'_>) -> Result<bool> {
        let Some(origin) = self.origin.as_ref() else {
            return Ok(false);
        };
        let mut taken = self.rows.iter().any(|r| *r < reach.rows);
        if reach.groups.is_some() || !reach.distances.is_empty() {
            let key = key_part(&item.entry)?;
            let own = key == key_part(origin)?;
            for side in 0..2 {
                if own || item.copies[side] == 0 {
                    continue;
                }
                let known = match &self.last[side] {
                    Some(last) => key_part(last)? == key,
                    None => false,
                };
                if !known {
                    self.groups[side] += 1;
                    self.last[side] = Some(Arc::clone(&item.entry));
                }
            }
            taken |= match reach.groups {
                Some(n) => own || self.groups.iter().any(|g| *g <= n) && n > 0,
                None => false,
            };
            if !taken && !reach.distances.is_empty() {
                if self.bound.is_none() {
                    self.bound = Some(far(key_part(origin)?, &reach.distances, !self.forward)?);
                }
                if let Some(Some(bound)) = &self.bound {
                    taken = if self.forward {
                        key <= bound.as_slice()
                    } else {
                        key >= bound.as_slice()
                    };
                }
            }
        }
        for side in 0..2 {
            self.rows[side] += item.copies[side];
        }
        Ok(taken)
    }
}
