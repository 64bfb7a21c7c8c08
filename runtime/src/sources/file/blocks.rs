//! A cache of file blocks under a byte budget, for content that is dear to get: objects of a bucket, and unpacked text. The scan ahead
//! fills it, and the tasks that read the same bytes a little later find them there.

use std::collections::BTreeMap;

use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::memory::{Holder, Share};

/// Size of a block; the last one of a file may be shorter.
pub(super) const BLOCK_BYTES: u64 = 1 << 20;

/// Blocks by (split, number), the longest unused forgotten first.
pub(super) struct Blocks {
    budget: usize,
    /// Where the process keeps its accounts.
    memory: Holder,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: HashMap<(u32, u64), (Bytes, u64)>,
    /// Keys by their last use.
    uses: BTreeMap<u64, (u32, u64)>,
    clock: u64,
    bytes: usize,
}

impl Blocks {
    pub(super) fn new(budget: usize, memory: Holder) -> Self {
        Self {
            budget,
            memory,
            state: Mutex::default(),
        }
    }

    pub(super) fn get(&self, split: u32, block: u64) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let (bytes, used) = state.blocks.get_mut(&(split, block))?;
        let (bytes, before) = (bytes.clone(), std::mem::replace(used, now));
        state.uses.remove(&before);
        state.uses.insert(now, (split, block));
        Some(bytes)
    }

    pub(super) fn put(&self, split: u32, block: u64, bytes: &Bytes) {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        if let Some((old, used)) = state.blocks.insert((split, block), (bytes.clone(), now)) {
            state.bytes -= old.len();
            state.uses.remove(&used);
        }
        state.bytes += bytes.len();
        state.uses.insert(now, (split, block));
        // When all sources together hold too much, each keeps less.
        let budget = if self.memory.governor().over(Share::Sources) {
            self.budget / 4
        } else {
            self.budget
        };
        while state.bytes > budget
            && let Some((_, oldest)) = state.uses.pop_first()
        {
            if let Some((gone, _)) = state.blocks.remove(&oldest) {
                state.bytes -= gone.len();
            }
        }
        self.memory.set(state.bytes);
    }
}

/// Copies from byte `from` of a block on; answers how many bytes.
pub(super) fn copy(block: &Bytes, from: u64, buffer: &mut [u8]) -> usize {
    let rest = usize::try_from(from)
        .ok()
        .and_then(|from| block.get(from..))
        .unwrap_or_default();
    let n = rest.len().min(buffer.len());
    buffer[..n].copy_from_slice(&rest[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Governor;

    #[test]
    fn the_longest_unused_block_goes_first() {
        let blocks = Blocks::new(25, Governor::new(1 << 20).holder(Share::Sources));
        let ten = |b: u8| Bytes::from(vec![b; 10]);
        blocks.put(0, 0, &ten(0));
        blocks.put(0, 1, &ten(1));
        assert!(blocks.get(0, 0).is_some());
        blocks.put(1, 0, &ten(2));
        assert!(blocks.get(0, 1).is_none());
        assert_eq!(blocks.get(0, 0), Some(ten(0)));
        assert_eq!(blocks.get(1, 0), Some(ten(2)));
        blocks.put(1, 0, &ten(3));
        assert_eq!(blocks.state.lock().bytes, 20);
    }
}
