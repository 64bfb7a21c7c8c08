//! What the coordinator has to look at: sets that events fill, so that none of its work grows with the number of regions at rest.
//!
//! ```text
//!                 epoch changes T ─▶ wake T and everything downstream ─▶ ready = {T}
//!      T ─▶ V ─▶ W                   T moves ─▶ ready = {V} … V moves ─▶ ready = {W}
//!      U ─▶ X        at rest         nobody visits U and X: they are complete through whatever epoch the clock shows
//! ```
//!
//! A region *rests* when it is complete through the newest epoch and has nothing under way. Its frontier is then the coordinator's
//! clock, one number for all of them, until an epoch changes something upstream of it. Every other region is *active* and has a reason
//! to be looked at coming: a step under way, or an active region upstream.
//!
//! Object ids grow along dependencies, so `ready` is worked off in topological order by taking its smallest id.

use std::collections::{BTreeMap, BTreeSet};

use levee_planner::plan::ObjectId;

/// The sets.
#[derive(Debug, Default)]
pub struct WorkSets {
    /// Regions that may have a step to take.
    pub ready: BTreeSet<ObjectId>,
    /// Regions that do not rest.
    pub active: BTreeSet<ObjectId>,
    /// Regions with change since their last freeze.
    pub changed: BTreeSet<ObjectId>,
    /// Regions that the running checkpoint tick waits for.
    pub due: BTreeSet<ObjectId>,
    /// Relations that hold runs.
    pub runs: BTreeSet<ObjectId>,
    /// Relations among them of which a reader, a subscriber or a checkpoint has let go since they were last looked at.
    pub foldable: BTreeSet<ObjectId>,
    /// Regions that wait for somebody to resume them, or for such a region: they hold nobody else back.
    pub standing: BTreeSet<ObjectId>,
    /// Regions that take no step until the checkpoint under way has made state evictable.
    pub paced: BTreeSet<ObjectId>,
    /// Regions that sessions are not told of as complete yet.
    pub hidden: BTreeSet<ObjectId>,
    /// A frontier has moved since sessions were last told.
    pub moved: bool,
    readers: BTreeMap<ObjectId, BTreeSet<ObjectId>>,
}

impl WorkSets {
    /// A new region, to be looked at.
    pub fn add(&mut self, id: ObjectId, inputs: &[ObjectId]) {
        for input in inputs {
            self.readers.entry(*input).or_default().insert(id);
        }
        self.active.insert(id);
        self.ready.insert(id);
        self.hidden.insert(id);
    }

    /// The region is gone. Its readers, if there still are any, stay known: they are looked at when it comes back.
    pub fn remove(&mut self, id: ObjectId, inputs: &[ObjectId]) {
        for input in inputs {
            if let Some(readers) = self.readers.get_mut(input) {
                readers.remove(&id);
                if readers.is_empty() {
                    self.readers.remove(input);
                }
            }
        }
        self.stop(id);
        self.hidden.remove(&id);
    }

    /// The region takes no more steps.
    pub fn stop(&mut self, id: ObjectId) {
        for set in [
            &mut self.ready,
            &mut self.active,
            &mut self.changed,
            &mut self.due,
            &mut self.runs,
            &mut self.foldable,
            &mut self.standing,
            &mut self.paced,
        ] {
            set.remove(&id);
        }
    }

    /// Regions that read a region or source directly.
    pub fn readers(&self, id: ObjectId) -> impl Iterator<Item = ObjectId> + '_ {
        self.readers.get(&id).into_iter().flatten().copied()
    }

    /// These and all that read them, directly or not, in topological order.
    pub fn downstream(&self, from: impl IntoIterator<Item = ObjectId>) -> BTreeSet<ObjectId> {
        let mut found: BTreeSet<ObjectId> = BTreeSet::new();
        let mut path: Vec<ObjectId> = from.into_iter().collect();
        while let Some(id) = path.pop() {
            if found.insert(id) {
                path.extend(self.readers(id));
            }
        }
        found
    }

    /// A region's frontier has moved: its readers may step, and runs that it has taken may be folded.
    pub fn moved(&mut self, id: ObjectId, inputs: &[ObjectId]) {
        self.moved = true;
        if let Some(readers) = self.readers.get(&id) {
            self.ready.extend(readers);
        }
        self.foldable.extend(inputs.iter().filter(|i| self.runs.contains(*i)));
        if self.runs.contains(&id) {
            self.foldable.insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> BTreeSet<ObjectId> {
        ids.iter().map(|i| ObjectId(*i)).collect()
    }

    /// 1 ─▶ 3 ─▶ 4, 2 ─▶ 4, 2 ─▶ 5.
    fn sets() -> WorkSets {
        let mut sets = WorkSets::default();
        for (id, inputs) in [(1, &[][..]), (2, &[]), (3, &[1]), (4, &[3, 2]), (5, &[2])] {
            let inputs: Vec<ObjectId> = inputs.iter().map(|i| ObjectId(*i)).collect();
            sets.add(ObjectId(id), &inputs);
        }
        sets.ready.clear();
        sets
    }

    #[test]
    fn downstream_holds_each_reader_once() {
        let sets = sets();
        assert_eq!(sets.downstream([ObjectId(1)]), ids(&[1, 3, 4]));
        assert_eq!(sets.downstream([ObjectId(1), ObjectId(2)]), ids(&[1, 2, 3, 4, 5]));
        assert_eq!(sets.downstream([ObjectId(5)]), ids(&[5]));
    }

    #[test]
    fn a_move_makes_direct_readers_ready_and_inputs_foldable() {
        let mut sets = sets();
        sets.runs = ids(&[1, 2]);
        sets.moved(ObjectId(3), &[ObjectId(1)]);
        assert_eq!(sets.ready, ids(&[4]));
        assert_eq!(sets.foldable, ids(&[1]));
    }

    #[test]
    fn a_removed_region_is_nowhere() {
        let mut sets = sets();
        sets.remove(ObjectId(4), &[ObjectId(3), ObjectId(2)]);
        assert_eq!(sets.downstream([ObjectId(1)]), ids(&[1, 3]));
        assert_eq!(sets.readers(ObjectId(3)).count(), 0);
        assert!(!sets.active.contains(&ObjectId(4)) && !sets.hidden.contains(&ObjectId(4)));
    }
}
