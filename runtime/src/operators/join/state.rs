//! Rows of one side of a join, by key and by value.
//!
//! ```text
//!   key 17 ──head──▶ row 4 ──▶ row 9 ──▶ row 2         one chain per key and side
//!   row bytes ──table──▶ row 9 {bytes, count, matches}  equal rows are one entry
//! ```
//!
//! A row whose count falls to zero stays in its chain until the step's change has been emitted. Most rows are written with their key
//! ([`super::residency`]); those of a wide key have entries of their own, and stay in the table until a snapshot has written that they are
//! gone.

use arrow::array::ArrayRef;
use arrow::datatypes::Schema;
use arrow::row::{RowConverter, RowParser, SortField};

use super::super::arena::{Arena, Span};
use super::super::segments::Segments;
use crate::hash::hash_bytes;
use crate::{Delta, Result, RuntimeError};

/// End of a chain, or "not touched".
pub const NONE: u32 = u32::MAX;

const CHANGED: u8 = 1;
/// A snapshot holds an entry of the row's own.
const PERSISTED: u8 = 2;
const LINKED: u8 = 4;
const FREE: u8 = 8;

/// One distinct row.
#[derive(Debug, Clone)]
pub struct Row {
    bytes: Span,
    /// Slot of its key.
    pub key: u32,
    next: u32,
    previous: u32,
    /// Index of its entry in [`Side::touched`], or [`NONE`].
    pub touch: u32,
    flags: u8,
    /// Multiplicity.
    pub count: i64,
    /// Total multiplicity of the other side's rows that match it (kept only where the join needs it).
    pub matches: i64,
}

/// A row's state before its first change in the step.
#[derive(Debug, Clone, Copy)]
pub struct Touched {
    /// The row.
    pub row: u32,
    /// Its multiplicity.
    pub count: i64,
    /// Its matches.
    pub matches: i64,
}

/// The rows.
pub struct Side {
    converter: Option<RowConverter>,
    parser: Option<RowParser>,
    table: Segments<(u64, u32)>,
    arena: Arena,
    rows: Vec<Row>,
    free: Vec<u32>,
    /// Rows touched in the step.
    pub touched: Vec<Touched>,
    changed: Vec<u32>,
    gone: Vec<u32>,
}

impl Side {
    /// An empty side with rows of these columns.
    ///
    /// # Errors
    /// A type cannot be encoded.
    pub fn new(schema: &Schema) -> Result<Self> {
        let converter = if schema.fields().is_empty() {
            None
        } else {
            let fields = schema.fields().iter().map(|f| SortField::new(f.data_type().clone()));
            Some(RowConverter::new(fields.collect())?)
        };
        Ok(Self {
            parser: converter.as_ref().map(RowConverter::parser),
            converter,
            table: Segments::default(),
            arena: Arena::default(),
            rows: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            changed: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// The row in a slot.
    #[inline]
    pub fn row(&self, row: u32) -> &Row {
        &self.rows[row as usize]
    }

    /// The row after `row` in its chain.
    #[inline]
    pub fn next(&self, row: u32) -> u32 {
        self.rows[row as usize].next
    }

    /// Adds a delta's rows, whose keys are `keys`; `heads` are this side's chains. Gives each row's slot with whether its
    /// entry is new to the chain.
    ///
    /// # Errors
    /// A column has another type than declared.
    pub fn absorb(&mut self, delta: &Delta, keys: &[u32], heads: &mut impl Heads) -> Result<Vec<(u32, bool)>> {
        let encoded = match &self.converter {
            Some(converter) => Some(converter.convert_columns(delta.batch.columns())?),
            None => None,
        };
        let mut slots = Vec::with_capacity(keys.len());
        for (i, &key) in keys.iter().enumerate() {
            let bytes = encoded.as_ref().map_or(&[][..], |rows| rows.row(i).data());
            let row = self.upsert(bytes, key, heads);
            let linked = self.rows[row as usize].flags & LINKED != 0;
            if !linked {
                self.link(row, heads);
            }
            self.touch(row);
            self.rows[row as usize].count += delta.diff(i);
            slots.push((row, !linked));
        }
        self.table.settle(|e| e.0);
        Ok(slots)
    }

    fn upsert(&mut self, bytes: &[u8], key: u32, heads: &mut impl Heads) -> u32 {
        let Self {
            table,
            arena,
            rows,
            free,
            ..
        } = self;
        let hash = hash_bytes(bytes);
        let same = |e: &(u64, u32)| {
            let row = &rows[e.1 as usize];
            e.0 == hash && row.key == key && arena.get(row.bytes) == bytes
        };
        let next = free.last().copied().unwrap_or(rows.len() as u32);
        let slot = table.find_or_insert(hash, same, |e| e.0, || (hash, next)).1;
        if slot == next {
            free.pop();
            let row = Row {
                bytes: arena.push(bytes),
                key,
                next: NONE,
                previous: NONE,
                touch: NONE,
                flags: 0,
                count: 0,
                matches: 0,
            };
            if slot as usize == rows.len() {
                rows.push(row);
            } else {
                rows[slot as usize] = row;
            }
            heads.refer(key, 1);
        }
        slot
    }

    /// Notes a row's state if this is its first change in the step.
    #[inline]
    pub fn touch(&mut self, row: u32) {
        let entry = &mut self.rows[row as usize];
        if entry.touch == NONE {
            entry.touch = self.touched.len() as u32;
            self.touched.push(Touched {
                row,
                count: entry.count,
                matches: entry.matches,
            });
            if entry.flags & CHANGED == 0 {
                entry.flags |= CHANGED;
                self.changed.push(row);
            }
        }
    }

    /// Adds to a row's matches.
    #[inline]
    pub fn add_matches(&mut self, row: u32, by: i64) {
        self.touch(row);
        self.rows[row as usize].matches += by;
    }

    /// A row's multiplicity before the step.
    #[inline]
    pub fn count_before(&self, row: u32) -> i64 {
        let entry = &self.rows[row as usize];
        match entry.touch {
            NONE => entry.count,
            at => self.touched[at as usize].count,
        }
    }

    fn link(&mut self, row: u32, heads: &mut impl Heads) {
        let entry = &mut self.rows[row as usize];
        heads.weigh(entry.key, i64::from(entry.bytes.len()));
        let head = heads.head(entry.key);
        entry.next = *head;
        entry.previous = NONE;
        entry.flags |= LINKED;
        entry.matches = 0;
        if *head != NONE {
            self.rows[*head as usize].previous = row;
        }
        *head = row;
    }

    fn unlink(&mut self, row: u32, heads: &mut impl Heads) {
        let entry = &mut self.rows[row as usize];
        let (key, next, previous) = (entry.key, entry.next, entry.previous);
        entry.flags &= !LINKED;
        heads.weigh(key, -i64::from(entry.bytes.len()));
        match previous {
            NONE => *heads.head(key) = next,
            before => self.rows[before as usize].next = next,
        }
        if next != NONE {
            self.rows[next as usize].previous = previous;
        }
    }

    /// Ends the step: rows without copies leave their chains.
    ///
    /// # Errors
    /// More of a row was retracted than inserted.
    pub fn settle(&mut self, heads: &mut impl Heads) -> Result<()> {
        for touched in std::mem::take(&mut self.touched) {
            let entry = &mut self.rows[touched.row as usize];
            entry.touch = NONE;
            if entry.count < 0 {
                return Err(RuntimeError::internal(
                    "a join's input retracts rows that it never inserted",
                ));
            }
            if entry.count == 0 {
                let persisted = entry.flags & PERSISTED != 0;
                self.unlink(touched.row, heads);
                if !persisted {
                    self.remove(touched.row, heads);
                }
            }
        }
        self.compact();
        if self.changed.len() > 2 * self.rows.len() + 1024 {
            self.recount_changed();
        }
        Ok(())
    }

    fn remove(&mut self, row: u32, heads: &mut impl Heads) {
        let entry = &mut self.rows[row as usize];
        let hash = hash_bytes(self.arena.get(entry.bytes));
        self.table.remove(hash, |e| e.1 == row);
        self.arena.free(entry.bytes);
        entry.flags = FREE;
        heads.refer(entry.key, -1);
        self.free.push(row);
    }

    /// The columns of `rows`.
    ///
    /// # Errors
    /// Restored bytes do not fit the types.
    pub fn columns(&self, rows: impl Iterator<Item = u32>) -> Result<Vec<ArrayRef>> {
        let (Some(converter), Some(parser)) = (&self.converter, &self.parser) else {
            return Ok(Vec::new());
        };
        let encoded = rows.map(|r| parser.parse(self.arena.get(self.rows[r as usize].bytes)));
        Ok(converter.convert_rows(encoded)?)
    }

    /// The rows of a chain, from its head.
    pub fn chain(&self, head: u32) -> impl Iterator<Item = (u32, &[u8], &Row)> {
        let at = |row: u32| (row != NONE).then_some(row);
        std::iter::successors(at(head), move |&row| at(self.rows[row as usize].next)).map(|row| {
            let entry = &self.rows[row as usize];
            (row, self.arena.get(entry.bytes), entry)
        })
    }

    /// Has the next [`Self::snapshot`] write a chain's rows that have no entry of their own.
    pub fn write_chain(&mut self, head: u32) {
        let mut row = head;
        while row != NONE {
            let entry = &mut self.rows[row as usize];
            if entry.flags & (CHANGED | PERSISTED) == 0 {
                entry.flags |= CHANGED;
                self.changed.push(row);
            }
            row = entry.next;
        }
    }

    /// The chain's rows have no entries of their own from now on: hands out those that had.
    pub fn unwrite_chain(&mut self, head: u32, mut gone: impl FnMut(&[u8])) {
        let mut row = head;
        while row != NONE {
            let entry = &mut self.rows[row as usize];
            if entry.flags & PERSISTED != 0 {
                entry.flags &= !PERSISTED;
                gone(self.arena.get(entry.bytes));
            }
            row = entry.next;
        }
    }

    /// Hands out changed rows (all, if `full`) of keys that are `wide`: key slot, bytes, and count and matches (`None`: gone). Follow it
    /// with [`Self::forget_gone`].
    pub fn snapshot(
        &mut self,
        full: bool,
        wide: impl Fn(u32) -> bool,
        mut put: impl FnMut(u32, &[u8], Option<(i64, i64)>),
    ) {
        let changed = std::mem::take(&mut self.changed);
        let slots: Vec<u32> = if full {
            (0..self.rows.len() as u32).collect()
        } else {
            changed
        };
        for slot in slots {
            let entry = &mut self.rows[slot as usize];
            let flags = entry.flags;
            if flags & FREE != 0 || !full && flags & CHANGED == 0 {
                continue;
            }
            let bytes = self.arena.get(entry.bytes);
            if flags & LINKED == 0 {
                put(entry.key, bytes, None);
                entry.flags = 0;
                self.gone.push(slot);
            } else if wide(entry.key) {
                put(entry.key, bytes, Some((entry.count, entry.matches)));
                entry.flags = LINKED | PERSISTED;
            } else {
                entry.flags = LINKED;
            }
        }
    }

    /// Drops rows that a snapshot has written as gone.
    pub fn forget_gone(&mut self, heads: &mut impl Heads) {
        for slot in std::mem::take(&mut self.gone) {
            self.remove(slot, heads);
        }
        self.compact();
    }

    /// Drops the rows of a key; answers their bytes.
    pub fn evict(&mut self, key: u32, heads: &mut impl Heads) -> usize {
        let mut freed = 0;
        let mut row = std::mem::replace(heads.head(key), NONE);
        while row != NONE {
            let entry = &self.rows[row as usize];
            let next = entry.next;
            freed += ROW_BYTES + entry.bytes.len() as usize;
            self.remove(row, heads);
            row = next;
        }
        freed
    }

    /// Gives the memory of dropped rows back.
    pub fn compact(&mut self) {
        if let Some(victims) = self.arena.victims() {
            for entry in self.table.iter() {
                self.arena.relocate(&mut self.rows[entry.1 as usize].bytes, &victims);
            }
        }
    }

    /// Whether most slots are free.
    pub fn is_sparse(&self) -> bool {
        self.rows.len() >= 65_536 && self.free.len() * 2 > self.rows.len()
    }

    /// Moves rows into the lowest slots and gives the rest back. Between steps.
    pub fn relocate(&mut self, heads: &mut impl Heads) {
        let n = self.rows.len() - self.free.len();
        let mut free = std::mem::take(&mut self.free);
        free.sort_unstable();
        let used: Vec<u32> = (n as u32..self.rows.len() as u32)
            .filter(|&r| self.rows[r as usize].flags & FREE == 0)
            .collect();
        for (from, to) in used.into_iter().zip(free) {
            let row = self.rows[from as usize].clone();
            let hash = hash_bytes(self.arena.get(row.bytes));
            if let Some(entry) = self.table.find_mut(hash, |e| e.1 == from) {
                entry.1 = to;
            }
            if row.flags & LINKED != 0 {
                match row.previous {
                    NONE => *heads.head(row.key) = to,
                    before => self.rows[before as usize].next = to,
                }
                if row.next != NONE {
                    self.rows[row.next as usize].previous = to;
                }
            }
            self.rows[to as usize] = row;
        }
        self.rows.truncate(n);
        self.rows.shrink_to_fit();
        self.free = Vec::new();
        self.table.shrink(|e| e.0);
        self.recount_changed();
    }

    /// Key slots have moved (`to` gives the new one of a moved one).
    pub fn move_keys(&mut self, to: impl Fn(u32) -> Option<u32>) {
        for row in self.rows.iter_mut().filter(|r| r.flags & FREE == 0) {
            if let Some(key) = to(row.key) {
                row.key = key;
            }
        }
    }

    fn recount_changed(&mut self) {
        self.changed = (0..self.rows.len() as u32)
            .filter(|&r| self.rows[r as usize].flags & (CHANGED | FREE) == CHANGED)
            .collect();
    }

    /// Takes a row of a snapshot; with `own_entry`, from an entry of its own.
    pub fn restore(
        &mut self,
        key: u32,
        bytes: &[u8],
        (count, matches): (i64, i64),
        own_entry: bool,
        heads: &mut impl Heads,
    ) {
        let row = self.upsert(bytes, key, heads);
        self.table.settle(|e| e.0);
        self.link(row, heads);
        let entry = &mut self.rows[row as usize];
        entry.count = count;
        entry.matches = matches;
        if own_entry {
            entry.flags |= PERSISTED;
        }
    }

    /// Memory held. What vectors have in reserve has not been touched and is not counted.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
            + self.arena.bytes()
            + self.rows.len() * size_of::<Row>()
            + (self.free.len() + self.changed.capacity()) * 4
            + self.touched.capacity() * size_of::<Touched>()
    }

    /// Bytes of slots that hold no row.
    pub fn free_bytes(&self) -> usize {
        self.free.len() * ROW_BYTES
    }

    /// Bytes of a row, about.
    pub fn row_bytes(&self) -> usize {
        ROW_BYTES + self.arena.live() / (self.rows.len() - self.free.len()).max(1)
    }
}

/// A row's slot and its place in the table.
const ROW_BYTES: usize = size_of::<Row>() + 28;

/// What a side needs of the keys: its chains' heads, and that a key lives while rows refer to it.
pub trait Heads {
    /// The head of a key's chain.
    fn head(&mut self, key: u32) -> &mut u32;
    /// Counts references of rows to a key.
    fn refer(&mut self, key: u32, by: i32);
    /// Counts bytes of rows in the key's chains.
    fn weigh(&mut self, key: u32, by: i64);
}
