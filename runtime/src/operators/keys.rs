//! A hash index from key columns to dense slots.
//!
//! The operator keeps its per-key state in columns indexed by slot. Slots of removed keys are used again.
//!
//! * no columns: one slot, 0.
//! * one integer, date or timestamp column: the key itself stands in the table.
//! * anything else: Arrow's row encoding, in an arena. Floats are made canonical first, so a key compares as SQL compares it.
//!
//! Cost per row: one hash, one probe; an allocation only when a chunk of the arena is full. Tables grow by pieces, see
//! [`super::segments`].

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, RowParser, SortField};

use super::arena::{Arena, Span};
use super::columns::{as_i64, canonical, from_i64, is_native};
use super::segments::Segments;
use crate::hash::{hash_columns, hash_null, vnode};
use crate::{Result, RuntimeError};

/// No slot: the row has a NULL key that matches nothing.
pub const NO_SLOT: u32 = u32::MAX;

/// The index.
pub struct KeyIndex {
    kind: Kind,
    hashes: Vec<u64>,
    free: Vec<u32>,
    /// Slots made since the owner last took the list, if it wants to know.
    made: Option<Vec<u32>>,
}

enum Kind {
    Unit {
        present: bool,
    },
    Native {
        data_type: DataType,
        table: Segments<(i64, u32)>,
        keys: Vec<i64>,
        null: Option<u32>,
    },
    Encoded {
        converter: RowConverter,
        parser: RowParser,
        table: Segments<(u64, u32)>,
        arena: Arena,
        spans: Vec<Span>,
    },
}

impl KeyIndex {
    /// An empty index over columns of these types.
    ///
    /// # Errors
    /// A type cannot be a key.
    pub fn new(types: &[DataType]) -> Result<Self> {
        let kind = match types {
            [] => Kind::Unit { present: false },
            [one] if is_native(one) => Kind::Native {
                data_type: one.clone(),
                table: Segments::default(),
                keys: Vec::new(),
                null: None,
            },
            _ => {
                let converter = RowConverter::new(types.iter().map(|t| SortField::new(t.clone())).collect())?;
                Kind::Encoded {
                    parser: converter.parser(),
                    converter,
                    table: Segments::default(),
                    arena: Arena::default(),
                    spans: Vec::new(),
                }
            }
        };
        Ok(Self {
            kind,
            hashes: Vec::new(),
            free: Vec::new(),
            made: None,
        })
    }

    /// Slots made since the last call; the first call begins the list.
    pub fn take_made(&mut self) -> Vec<u32> {
        self.made.replace(Vec::new()).unwrap_or_default()
    }

    /// Number of keys.
    pub fn n_keys(&self) -> usize {
        self.hashes.len() - self.free.len()
    }

    /// Number of slots ever made; per-slot columns must be this long.
    pub fn n_slots(&self) -> usize {
        self.hashes.len()
    }

    /// The row hash of a slot's key.
    #[inline]
    pub fn hash(&self, slot: u32) -> u64 {
        self.hashes[slot as usize]
    }

    /// The vnode of a slot's key; 0 without key columns.
    pub fn vnode(&self, slot: u32) -> u8 {
        match self.kind {
            Kind::Unit { .. } => 0,
            _ => vnode(self.hash(slot)),
        }
    }

    /// The slots of `n` rows' keys, made where missing. With `skip_nulls`, rows with a NULL in any column get [`NO_SLOT`].
    ///
    /// # Errors
    /// A type cannot be a key.
    pub fn upsert(&mut self, columns: &[ArrayRef], n: usize, skip_nulls: bool, slots: &mut Vec<u32>) -> Result<()> {
        slots.clear();
        slots.reserve(n);
        if let Kind::Unit { .. } = self.kind {
            if n > 0 {
                let slot = self.upsert_encoded(&[], 0)?;
                slots.resize(n, slot);
            }
            return Ok(());
        }
        let hashes = hash_columns(columns)?;
        let nulls = NullBuffer::union_many(columns.iter().map(|c| c.nulls())).filter(|n| n.null_count() > 0);
        if matches!(self.kind, Kind::Native { .. }) {
            return self.upsert_native(&columns[0], &hashes, nulls.as_ref(), skip_nulls, slots);
        }
        let Kind::Encoded { converter, .. } = &self.kind else {
            return Err(RuntimeError::internal("key index without a kind"));
        };
        let keys: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        let rows = converter.convert_columns(&keys)?;
        let skipped = nulls.filter(|_| skip_nulls);
        for (i, &hash) in hashes.iter().enumerate() {
            if skipped.as_ref().is_some_and(|nulls| nulls.is_null(i)) {
                slots.push(NO_SLOT);
            } else {
                slots.push(self.upsert_bytes(rows.row(i).data(), hash));
            }
        }
        self.settle();
        Ok(())
    }

    fn upsert_native(
        &mut self,
        column: &ArrayRef,
        hashes: &[u64],
        nulls: Option<&NullBuffer>,
        skip_nulls: bool,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let values = as_i64(column)?;
        for (i, (&value, &hash)) in values.iter().zip(hashes).enumerate() {
            let slot = if nulls.is_some_and(|n| n.is_null(i)) {
                if skip_nulls { NO_SLOT } else { self.upsert_null() }
            } else {
                self.upsert_value(value, hash)
            };
            slots.push(slot);
        }
        self.settle();
        Ok(())
    }

    /// Lets the table grow by as much as keys were inserted.
    #[inline]
    fn settle(&mut self) {
        match &mut self.kind {
            Kind::Unit { .. } => {}
            Kind::Native { table, .. } => table.settle(|e| self.hashes[e.1 as usize]),
            Kind::Encoded { table, .. } => table.settle(|e| e.0),
        }
    }

    #[inline]
    fn upsert_value(&mut self, value: i64, hash: u64) -> u32 {
        let Self {
            kind,
            hashes,
            free,
            made,
        } = self;
        let Kind::Native { table, keys, .. } = kind else {
            return NO_SLOT;
        };
        let next = free.last().copied().unwrap_or(keys.len() as u32);
        let slot = table
            .find_or_insert(hash, |e| e.0 == value, |e| hashes[e.1 as usize], || (value, next))
            .1;
        if slot == next {
            take_slot(slot, hash, hashes, free, made);
            set(keys, slot, value);
        }
        slot
    }

    fn upsert_null(&mut self) -> u32 {
        let Self {
            kind,
            hashes,
            free,
            made,
        } = self;
        let Kind::Native { keys, null, .. } = kind else {
            return NO_SLOT;
        };
        *null.get_or_insert_with(|| {
            let slot = free.last().copied().unwrap_or(keys.len() as u32);
            take_slot(slot, hash_null(), hashes, free, made);
            set(keys, slot, 0);
            slot
        })
    }

    #[inline]
    fn upsert_bytes(&mut self, bytes: &[u8], hash: u64) -> u32 {
        let Self {
            kind,
            hashes,
            free,
            made,
        } = self;
        let Kind::Encoded {
            table, arena, spans, ..
        } = kind
        else {
            return NO_SLOT;
        };
        let next = free.last().copied().unwrap_or(spans.len() as u32);
        let same = |e: &(u64, u32)| e.0 == hash && arena.get(spans[e.1 as usize]) == bytes;
        let slot = table.find_or_insert(hash, same, |e| e.0, || (hash, next)).1;
        if slot == next {
            take_slot(slot, hash, hashes, free, made);
            set(spans, slot, arena.push(bytes));
        }
        slot
    }

    /// The slot of a key that [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Damaged bytes.
    pub fn upsert_encoded(&mut self, bytes: &[u8], hash: u64) -> Result<u32> {
        let slot = self.slot_of_encoded(bytes, hash)?;
        self.settle();
        Ok(slot)
    }

    fn slot_of_encoded(&mut self, bytes: &[u8], hash: u64) -> Result<u32> {
        let damaged = || RuntimeError::internal("state key is damaged");
        match &mut self.kind {
            Kind::Unit { present } => {
                if !*present {
                    *present = true;
                    set(&mut self.hashes, 0, 0);
                    if let Some(made) = &mut self.made {
                        made.push(0);
                    }
                }
                Ok(0)
            }
            Kind::Native { .. } => match bytes {
                [0] => Ok(self.upsert_null()),
                [1, rest @ ..] => {
                    let key: [u8; 8] = rest.try_into().map_err(|_| damaged())?;
                    Ok(self.upsert_value((u64::from_be_bytes(key) ^ (1 << 63)) as i64, hash))
                }
                _ => Err(damaged()),
            },
            Kind::Encoded { .. } => Ok(self.upsert_bytes(bytes, hash)),
        }
    }

    /// Appends the slot's key in an order-preserving form.
    pub fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        match &self.kind {
            Kind::Unit { .. } => {}
            Kind::Native { keys, null, .. } => {
                if *null == Some(slot) {
                    out.push(0);
                } else {
                    out.push(1);
                    out.extend_from_slice(&(keys[slot as usize] as u64 ^ (1 << 63)).to_be_bytes());
                }
            }
            Kind::Encoded { arena, spans, .. } => out.extend_from_slice(arena.get(spans[slot as usize])),
        }
    }

    /// The key columns of `slots`.
    ///
    /// # Errors
    /// Restored bytes do not fit the types.
    pub fn columns(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        match &self.kind {
            Kind::Unit { .. } => Ok(Vec::new()),
            Kind::Native {
                data_type, keys, null, ..
            } => {
                let values = slots.iter().map(|&s| keys[s as usize]).collect();
                let nulls = null
                    .filter(|n| slots.contains(n))
                    .map(|n| slots.iter().map(|&s| s != n).collect::<NullBuffer>());
                Ok(vec![from_i64(values, nulls, data_type)?])
            }
            Kind::Encoded {
                converter,
                parser,
                arena,
                spans,
                ..
            } => Ok(converter.convert_rows(slots.iter().map(|&s| parser.parse(arena.get(spans[s as usize]))))?),
        }
    }

    /// Removes a key; its slot may be given to another.
    pub fn remove(&mut self, slot: u32) {
        let hash = self.hashes[slot as usize];
        match &mut self.kind {
            Kind::Unit { .. } => return,
            Kind::Native { table, null, .. } => {
                if *null == Some(slot) {
                    *null = None;
                } else {
                    table.remove(hash, |e| e.1 == slot);
                }
            }
            Kind::Encoded {
                table, arena, spans, ..
            } => {
                table.remove(hash, |e| e.1 == slot);
                arena.free(std::mem::take(&mut spans[slot as usize]));
            }
        }
        self.free.push(slot);
    }

    /// Gives memory of removed keys back if there is much of it. Call between steps.
    pub fn compact(&mut self) {
        let Kind::Encoded {
            table, arena, spans, ..
        } = &mut self.kind
        else {
            return;
        };
        if let Some(victims) = arena.victims() {
            for entry in table.iter() {
                arena.relocate(&mut spans[entry.1 as usize], &victims);
            }
        }
    }

    /// Plans the move of keys into the lowest slots: from → to, for the owner to move what it keeps per slot before it cuts that down
    /// to the number answered. Afterwards no slot is free.
    pub fn relocate(&mut self) -> (Vec<(u32, u32)>, usize) {
        let n = self.n_keys();
        if let Kind::Unit { .. } = self.kind {
            return (Vec::new(), self.hashes.len());
        }
        let mut free = std::mem::take(&mut self.free);
        free.sort_unstable();
        let mut is_free = vec![false; self.hashes.len()];
        free.iter().for_each(|&slot| is_free[slot as usize] = true);
        let from = (n as u32..self.hashes.len() as u32).filter(|&slot| !is_free[slot as usize]);
        let moves: Vec<(u32, u32)> = from.zip(free).collect();
        for &(from, to) in &moves {
            self.move_key(from, to);
        }
        self.hashes.truncate(n);
        self.hashes.shrink_to_fit();
        self.free = Vec::new();
        let hashes = &self.hashes;
        match &mut self.kind {
            Kind::Unit { .. } => {}
            Kind::Native { table, keys, .. } => {
                keys.truncate(n);
                keys.shrink_to_fit();
                table.shrink(|e| hashes[e.1 as usize]);
            }
            Kind::Encoded { table, spans, .. } => {
                spans.truncate(n);
                spans.shrink_to_fit();
                table.shrink(|e| e.0);
            }
        }
        (moves, n)
    }

    fn move_key(&mut self, from: u32, to: u32) {
        let hash = self.hashes[from as usize];
        self.hashes[to as usize] = hash;
        match &mut self.kind {
            Kind::Unit { .. } => {}
            Kind::Native { table, keys, null, .. } => {
                keys[to as usize] = keys[from as usize];
                if *null == Some(from) {
                    *null = Some(to);
                } else if let Some(entry) = table.find_mut(hash, |e| e.1 == from) {
                    entry.1 = to;
                }
            }
            Kind::Encoded { table, spans, .. } => {
                spans[to as usize] = spans[from as usize];
                if let Some(entry) = table.find_mut(hash, |e| e.1 == from) {
                    entry.1 = to;
                }
            }
        }
    }

    /// Memory held. What vectors have in reserve has not been touched and is not counted.
    pub fn bytes(&self) -> usize {
        let kind = match &self.kind {
            Kind::Unit { .. } => 0,
            Kind::Native { table, keys, .. } => table.bytes() + keys.len() * 8,
            Kind::Encoded {
                table, arena, spans, ..
            } => table.bytes() + arena.bytes() + spans.len() * size_of::<Span>(),
        };
        kind + self.hashes.len() * 8 + self.free.len() * 4
    }

    /// Bytes that a key takes, about.
    pub fn bytes_per_key(&self) -> usize {
        match &self.kind {
            Kind::Unit { .. } => 8,
            Kind::Native { .. } => 8 + 8 + 24,
            Kind::Encoded { arena, .. } => size_of::<Span>() + 8 + 24 + arena.live() / self.n_keys().max(1),
        }
    }
}

/// Notes that a slot is in use.
#[inline]
fn take_slot(slot: u32, hash: u64, hashes: &mut Vec<u64>, free: &mut Vec<u32>, made: &mut Option<Vec<u32>>) {
    free.pop();
    set(hashes, slot, hash);
    if let Some(made) = made {
        made.push(slot);
    }
}

/// Sets or appends.
#[inline]
fn set<T>(values: &mut Vec<T>, slot: u32, value: T) {
    if slot as usize == values.len() {
        values.push(value);
    } else {
        values[slot as usize] = value;
    }
}
