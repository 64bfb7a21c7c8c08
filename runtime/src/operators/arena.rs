//! Many small byte strings without an allocation each.
//!
//! Strings are appended to chunks; freed ones leave holes. A chunk without strings is freed at once. When more than half of what is
//! held is holes, the owner moves the strings of the emptiest chunks elsewhere ([`Arena::victims`]), of a part of them at a time,
//! so that memory does not grow for it; this costs an amortised copy per freed byte.

const CHUNK: usize = 256 * 1024;

/// Where a string is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    chunk: u32,
    offset: u32,
    len: u32,
}

impl Span {
    /// Length.
    pub fn len(self) -> u32 {
        self.len
    }
}

/// The strings.
#[derive(Debug, Default)]
pub struct Arena {
    chunks: Vec<Chunk>,
    /// Numbers of chunks that have been freed.
    free: Vec<u32>,
    /// The chunk that is being filled.
    current: Option<u32>,
    live: usize,
    held: usize,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    live: usize,
}

impl Arena {
    /// Stores a copy.
    pub fn push(&mut self, bytes: &[u8]) -> Span {
        let fits = |c: &Chunk| c.bytes.capacity() - c.bytes.len() >= bytes.len();
        let number = match self.current {
            Some(number) if fits(&self.chunks[number as usize]) => number,
            _ => self.start_chunk(bytes.len()),
        };
        let chunk = &mut self.chunks[number as usize];
        let span = Span {
            chunk: number,
            offset: chunk.bytes.len() as u32,
            len: bytes.len() as u32,
        };
        chunk.bytes.extend_from_slice(bytes);
        chunk.live += bytes.len();
        self.live += bytes.len();
        span
    }

    fn start_chunk(&mut self, room: usize) -> u32 {
        if let Some(full) = self.current.take() {
            self.release_if_empty(full);
        }
        // The first chunks double, so that an operator with a few rows holds a few bytes.
        let size = self.held.clamp(256, CHUNK).max(room);
        let number = self.free.pop().unwrap_or(self.chunks.len() as u32);
        if number as usize == self.chunks.len() {
            self.chunks.push(Chunk::default());
        }
        let bytes = Vec::with_capacity(size);
        self.held += bytes.capacity();
        self.chunks[number as usize] = Chunk { bytes, live: 0 };
        self.current = Some(number);
        number
    }

    fn release_if_empty(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        if chunk.live == 0 && self.current != Some(number) && chunk.bytes.capacity() > 0 {
            self.held -= chunk.bytes.capacity();
            *chunk = Chunk::default();
            self.free.push(number);
        }
    }

    /// The string at a span that has not been freed.
    #[inline]
    pub fn get(&self, span: Span) -> &[u8] {
        if span.len == 0 {
            return &[];
        }
        &self.chunks[span.chunk as usize].bytes[span.offset as usize..][..span.len as usize]
    }

    /// Gives a string up.
    pub fn free(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        self.live -= span.len as usize;
        self.chunks[span.chunk as usize].live -= span.len as usize;
        self.release_if_empty(span.chunk);
    }

    /// If more is holes than strings: the chunks whose strings the owner should move ([`Arena::relocate`]), by number.
    pub fn victims(&self) -> Option<Vec<bool>> {
        if self.held < 4 * CHUNK || self.held < 2 * self.live {
            return None;
        }
        let mut order: Vec<usize> = (0..self.chunks.len())
            .filter(|&c| self.chunks[c].live > 0 && self.current != Some(c as u32))
            .collect();
        order.sort_unstable_by_key(|&c| self.chunks[c].live);
        let mut victims = vec![false; self.chunks.len()];
        let mut left = (self.held / 4).max(CHUNK);
        for c in order {
            let chunk = &self.chunks[c];
            if 4 * chunk.live > 3 * chunk.bytes.capacity() || left == 0 {
                break;
            }
            victims[c] = true;
            left = left.saturating_sub(chunk.bytes.capacity());
        }
        victims.contains(&true).then_some(victims)
    }

    /// Moves a string out of its chunk if that is one of `victims`.
    #[inline]
    pub fn relocate(&mut self, span: &mut Span, victims: &[bool]) {
        let from = span.chunk as usize;
        if span.len == 0 || !victims.get(from).is_some_and(|&v| v) {
            return;
        }
        let bytes = std::mem::take(&mut self.chunks[from].bytes);
        let moved = self.push(&bytes[span.offset as usize..][..span.len as usize]);
        self.chunks[from].bytes = bytes;
        self.free(*span);
        *span = moved;
    }

    /// Bytes of strings that have not been freed.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Rng;
    use super::*;

    #[test]
    fn strings_survive_while_holes_are_given_back() {
        let mut rng = Rng::new(3);
        let mut arena = Arena::default();
        let mut strings: Vec<(Span, Vec<u8>)> = Vec::new();
        let mut held_max = 0;
        for round in 0..40 {
            for _ in 0..20_000 {
                let bytes = vec![rng.below(256) as u8; rng.below(100) as usize];
                strings.push((arena.push(&bytes), bytes));
            }
            rng.shuffle(&mut strings);
            let keep = if round % 3 == 2 { 2_000 } else { strings.len() / 2 };
            for (span, _) in strings.drain(keep..) {
                arena.free(span);
            }
            while let Some(victims) = arena.victims() {
                let before = arena.bytes();
                for (span, _) in &mut strings {
                    arena.relocate(span, &victims);
                    held_max = held_max.max(arena.bytes() * 4 / before);
                }
                assert!(arena.bytes() < before);
            }
            let live: usize = strings.iter().map(|s| s.1.len()).sum();
            assert_eq!(arena.live(), live);
            assert!(
                arena.bytes() <= (2 * live).max(4 * CHUNK),
                "{} for {live}",
                arena.bytes()
            );
            assert!(strings.iter().all(|(span, bytes)| arena.get(*span) == bytes));
        }
        assert!(
            held_max <= 5,
            "moving may take a quarter more, and took {held_max} quarters in all"
        );
        for (span, _) in strings {
            arena.free(span);
        }
        assert!(arena.bytes() <= CHUNK && arena.live() == 0);
    }
}
