//! State entries on their way from operators into a delta file.
//!
//! They lie one after another in chunks of bounded size, so that a large freeze is handed over, and put together from several tasks'
//! parts, without being copied or reallocated as a whole:
//!
//! ```text
//!   operator u32 │ key size u32 │ value size u32 │ table u8 │ vnode u8 │ key │ value        (value size MAX: deleted)
//! ```
//!
//! From the freeze to the delta file they are dirty state like the operators' own entries, of which they are copies, and are counted as
//! such ([`StateDelta::count_in`]).

use std::sync::Arc;

use crate::memory::{Governor, Holder, Share};

/// Bytes of a chunk, unless one entry is larger.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_BYTES_MIN: usize = 1 << 10;
const HEADER_BYTES: usize = 14;
const DELETED: u32 = u32::MAX;

/// Encoded state entries; a later one for the same key wins.
#[derive(Debug, Default)]
pub struct StateDelta {
    chunks: Vec<Vec<u8>>,
    len: usize,
    bytes: usize,
    /// What the process's budget knows of it.
    held: Option<Holder>,
}

/// One entry of a [`StateDelta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateEntry<'a> {
    /// Operator.
    pub operator: u32,
    /// Table of the operator.
    pub table: u8,
    /// Vnode.
    pub vnode: u8,
    /// Key.
    pub key: &'a [u8],
    /// Value; `None`: deleted.
    pub value: Option<&'a [u8]>,
}

impl StateDelta {
    /// Adds an entry.
    ///
    /// # Panics
    /// A key or a value of 4 GB.
    pub fn put(&mut self, operator: u32, table: u8, vnode: u8, key: &[u8], value: Option<&[u8]>) {
        let size =
            |bytes: &[u8]| u32::try_from(bytes.len()).expect("entries come from batches, whose columns are smaller");
        let n = HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len);
        if self.chunks.last().is_none_or(|c| c.capacity() - c.len() < n) {
            let room = self.bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES).max(n);
            self.chunks.push(Vec::with_capacity(room));
        }
        let Some(chunk) = self.chunks.last_mut() else { return };
        chunk.extend_from_slice(&operator.to_le_bytes());
        chunk.extend_from_slice(&size(key).to_le_bytes());
        chunk.extend_from_slice(&value.map_or(DELETED, size).to_le_bytes());
        chunk.extend_from_slice(&[table, vnode]);
        chunk.extend_from_slice(key);
        chunk.extend_from_slice(value.unwrap_or_default());
        self.len += 1;
        self.bytes += n;
    }

    /// Adds all of another delta's entries after this one's.
    pub fn append(&mut self, other: Self) {
        self.chunks.extend(other.chunks);
        self.len += other.len;
        self.bytes += other.bytes;
        if let Some(held) = self.held.as_ref().or(other.held.as_ref()) {
            held.set(self.bytes);
        }
        self.held = self.held.take().or(other.held);
    }

    /// Counts it as dirty state for as long as it lives, with what is appended to it.
    pub fn count_in(&mut self, memory: &Arc<Governor>) {
        let held = memory.holder(Share::Dirty);
        held.set(self.bytes);
        self.held = Some(held);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entries, in the order in which they were put.
    pub fn iter(&self) -> impl Iterator<Item = StateEntry<'_>> {
        self.chunks.iter().flat_map(|chunk| Entries { rest: chunk })
    }
}

struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn take(&mut self, n: u32) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n as usize)?;
        self.rest = rest;
        Some(head)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = StateEntry<'a>;

    fn next(&mut self) -> Option<StateEntry<'a>> {
        let operator = self.number()?;
        let (key, value) = (self.number()?, self.number()?);
        let &[table, vnode] = self.take(2)? else { return None };
        Some(StateEntry {
            operator,
            table,
            vnode,
            key: self.take(key)?,
            value: match value {
                DELETED => None,
                size => Some(self.take(size)?),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_order_from_chunks_of_bounded_size() {
        let large = vec![7; 3 * CHUNK_BYTES];
        let values = |i: u32| match i % 4 {
            0 => None,
            1 => Some(vec![]),
            2 => Some(vec![i as u8; i as usize % 3000]),
            _ if i == 1003 => Some(large.clone()),
            _ => Some(vec![1]),
        };
        let (mut delta, mut other) = (StateDelta::default(), StateDelta::default());
        assert!(delta.is_empty());
        for i in 0..4000_u32 {
            let half = if i < 2000 { &mut delta } else { &mut other };
            half.put(i, i as u8, !(i as u8), &i.to_be_bytes(), values(i).as_deref());
        }
        delta.append(other);
        assert_eq!(delta.len(), 4000);
        assert_eq!(delta.iter().count(), 4000);
        for (i, entry) in (0..).zip(delta.iter()) {
            let value = values(i);
            let expected = StateEntry {
                operator: i,
                table: i as u8,
                vnode: !(i as u8),
                key: &i.to_be_bytes(),
                value: value.as_deref(),
            };
            assert_eq!(entry, expected);
        }
        assert!(
            delta
                .chunks
                .iter()
                .all(|c| c.capacity() <= CHUNK_BYTES || c.len() > 3 * CHUNK_BYTES)
        );
        assert_eq!(delta.bytes(), delta.chunks.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn it_counts_as_dirty_state_with_what_is_appended() {
        let memory = Governor::new(1 << 20);
        let made = |n: u32| {
            let mut delta = StateDelta::default();
            (0..n).for_each(|i| delta.put(0, 0, 0, &i.to_be_bytes(), Some(b"value")));
            delta.count_in(&memory);
            delta
        };
        let (mut first, second) = (made(3), made(5));
        let bytes = first.bytes() + second.bytes();
        assert_eq!(memory.used(Share::Dirty), bytes);
        first.append(second);
        assert_eq!((memory.used(Share::Dirty), first.bytes()), (bytes, bytes));
        let mut uncounted = StateDelta::default();
        uncounted.append(first);
        assert_eq!(memory.used(Share::Dirty), bytes);
        drop(uncounted);
        assert_eq!(memory.used(Share::Dirty), 0);
    }
}
