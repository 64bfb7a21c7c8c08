//! Many small byte strings without an allocation each.
//!
//! Strings are appended to chunks; freed ones leave holes, and when more than half of what is held is holes, the owner
//! moves the live strings over ([`Arena::should_compact`]), which costs an amortised copy per freed byte.

const CHUNK: usize = 256 * 1024;

/// Where a string is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    chunk: u32,
    offset: u32,
    len: u32,
}

/// The strings.
#[derive(Debug, Default)]
pub struct Arena {
    chunks: Vec<Vec<u8>>,
    live: usize,
    dead: usize,
}

impl Arena {
    /// Stores a copy.
    pub fn push(&mut self, bytes: &[u8]) -> Span {
        let fits = self
            .chunks
            .last()
            .is_some_and(|c| c.capacity() - c.len() >= bytes.len());
        if !fits {
            // The first chunks double, so that an operator with a few rows holds a few bytes.
            let size = (self.live + self.dead).clamp(256, CHUNK);
            self.chunks.push(Vec::with_capacity(size.max(bytes.len())));
        }
        let chunk = self.chunks.len() - 1;
        let buffer = &mut self.chunks[chunk];
        let span = Span {
            chunk: chunk as u32,
            offset: buffer.len() as u32,
            len: bytes.len() as u32,
        };
        buffer.extend_from_slice(bytes);
        self.live += bytes.len();
        span
    }

    /// The string at a span that has not been freed.
    #[inline]
    pub fn get(&self, span: Span) -> &[u8] {
        &self.chunks[span.chunk as usize][span.offset as usize..][..span.len as usize]
    }

    /// Gives a string up.
    pub fn free(&mut self, span: Span) {
        self.live -= span.len as usize;
        self.dead += span.len as usize;
    }

    /// Whether the owner should copy its live strings to a new arena.
    pub fn should_compact(&self) -> bool {
        self.dead > CHUNK && self.dead > self.live
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum()
    }
}
