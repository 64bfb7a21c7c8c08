//! What keeps a relation's memory bounded: folding, going cold, joining and spilling runs.
//!
//! ```text
//!   base │ run run run │ run run run run run │ run run run run │
//!        └─ fold ──────┘ horizon: oldest     └ readable at any  ┘
//!           (or newer      pin, subscriber,    epoch by anyone
//!            snapshot)     checkpoint      join and spill
//! ```
//!
//! *Fold*: a base in memory takes in runs that nobody needs apart. A base in the cold tier changes to a newer checkpoint's snapshot
//! once everybody has passed that checkpoint; its runs then go. A base goes cold in the same way, when the budget for relations is
//! used up.
//!
//! *Join*: when somebody lags, the runs between are summed, tier by tier: a subscriber that is far behind costs about
//! twice the relation, not the whole history. A joined run is a longer step, so nobody may stand inside it; the coordinator, which moves the
//! subscribers, installs it ([`Relation::install`]).
//!
//! *Spill*: over the budget for change logs the oldest runs go to disk.
//!
//! All of it runs on one thread, beside readers, who hold what they read.

use std::sync::Arc;

use levee_storage::tier::TierSnapshot;

use super::base::Base;
use super::merge::MergeScan;
use super::run::{Run, Spilling};
use super::{Memory, Relation, State};
use crate::memory::Share;
use crate::{Delta, Result, RuntimeError};

/// Runs beyond this number are folded even if they are small.
const RUNS_MAX: usize = 256;
/// Rows that a fold takes in at a time.
const FOLD_ROWS: usize = 65_536;
/// Runs of about the same size that are joined.
const JOIN_RUNS: usize = 8;
/// A joined run of more rows is written out at once.
const JOIN_ROWS_MAX: usize = 262_144;
/// Parts of its share of memory that a relation may have before it counts as large.
const LARGE_PARTS: usize = 64;

/// A completed checkpoint's rows of a relation.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Complete through this epoch.
    pub epoch: u64,
    /// It holds the runs up to this position.
    pub seq: u64,
    /// Rows, about.
    pub rows: usize,
    /// The tier as of the checkpoint.
    pub snapshot: Arc<TierSnapshot>,
}

/// What upkeep may do with one relation.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Everybody has passed this epoch, and a completed checkpoint has.
    pub horizon: u64,
    /// Runs after this position are in no completed checkpoint.
    pub seq: u64,
    /// Up to here only `stands` are read at: nobody begins to read at another epoch.
    pub readable: u64,
    /// Epochs at which somebody stands or will read: no joined run may span one.
    pub stands: Vec<u64>,
    /// Positions that checkpoints count from: neither may it span these.
    pub seqs: Vec<u64>,
}

/// Runs that can be replaced by their sum.
#[derive(Debug)]
pub struct Joined {
    /// The position of the first of them.
    first: u64,
    /// Their sum; none if nothing is left of it.
    run: Option<Run>,
    /// Starts after this epoch …
    pub from: u64,
    /// … and ends at this one.
    pub to: u64,
    last: u64,
}

impl Relation {
    /// A checkpoint that holds this relation is complete. Kept if the base is, or should be, in the tier.
    pub fn offer(&self, offer: Offer) {
        let Some(memory) = &self.memory else { return };
        let mut state = self.state.write();
        // Nothing has changed since the base: the newest snapshot shows the same, and an older one would hold up compaction.
        if state.base.is_cold() && unchanged(&state, &offer) {
            let rows = state.base.rows;
            state.base = Arc::new(Base::cold(state.base.epoch, rows, offer.snapshot, memory.region));
            state.offered = None;
            return;
        }
        // One that waits for a laggard stays: with a newer one at every checkpoint none would ever be old enough.
        // Unless the base has gone beyond it meanwhile: then it is of no use any more, and would keep the relation in memory for ever.
        let base_seq = state.base_seq;
        let replaced = match &state.offered {
            Some(waiting) => waiting.seq < base_seq,
            None => state.base.is_cold() || Self::should_cool(memory),
        };
        if replaced {
            state.offered = Some(offer);
        }
    }

    /// The budget for relations is used up and this one is large.
    fn should_cool(memory: &Memory) -> bool {
        let governor = &memory.governor;
        governor.over(Share::Relations)
            && memory.held.bytes() >= governor.share(Share::Relations) / LARGE_PARTS
            && memory.held.bytes() > 0
    }

    /// There is something to do that is worth it.
    pub fn needs_upkeep(&self, limits: &Limits) -> bool {
        let state = self.state.read();
        if let Some(offer) = &state.offered
            && usable(&state, offer, limits.horizon)
        {
            return true;
        }
        let foldable = state
            .runs
            .iter()
            .take_while(|r| r.to <= limits.horizon && r.seq <= limits.seq);
        let (n, rows) = foldable.fold((0, 0), |(n, rows), r| (n + 1, rows + r.num_rows()));
        if !is_cooling(&state) && n > 0 && (rows >= state.base.rows / 8 || n >= RUNS_MAX) {
            return true;
        }
        let over = self.memory.as_ref().is_some_and(|m| m.governor.over(Share::Runs));
        over && state.runs.iter().any(|r| !r.is_spilled()) || !joinable(&state, limits).is_empty()
    }

    /// Does what is worth doing; called by one thread at a time. Answers sums of runs, to be installed.
    ///
    /// # Errors
    /// A kernel fails, or the tier or a spill file cannot be read or written.
    pub fn upkeep(&self, limits: &Limits) -> Result<Vec<Joined>> {
        self.take_offer(limits);
        self.fold(limits.horizon, limits.seq)?;
        let joined = self.join(limits)?;
        if joined.is_empty() {
            self.spill()?;
        }
        Ok(joined)
    }

    /// Changes to the offered snapshot, if nobody needs what came before it.
    fn take_offer(&self, limits: &Limits) {
        let Some(memory) = &self.memory else { return };
        let mut state = self.state.write();
        let Some(offer) = state.offered.clone() else { return };
        if !usable(&state, &offer, limits.horizon) {
            return;
        }
        let gone = state.runs.iter().take_while(|run| run.seq <= offer.seq).count();
        state.runs.drain(..gone);
        let epoch = if gone == 0 { state.base.epoch } else { offer.epoch };
        let epoch = epoch.max(state.base.epoch);
        state.base = Arc::new(Base::cold(epoch, offer.rows, offer.snapshot, memory.region));
        state.base_seq = offer.seq;
        state.offered = None;
        memory.held.set(0);
    }

    /// Folds runs up to epoch `horizon` and position `seq` into a base in memory.
    pub(super) fn fold(&self, horizon: u64, seq: u64) -> Result<()> {
        let (base, runs) = {
            let state = self.state.read();
            if is_cooling(&state) {
                return Ok(());
            }
            let runs: Vec<Arc<Run>> = state
                .runs
                .iter()
                .take_while(|r| r.to <= horizon && r.seq <= seq)
                .cloned()
                .collect();
            (Arc::clone(&state.base), runs)
        };
        let Some(last) = runs.last() else { return Ok(()) };
        let order = self.order();
        let mut scan = MergeScan::new(&order, None, &runs, None, None)?;
        let mut merged = (*base).clone();
        merged.epoch = last.to;
        let (mut parts, mut rows) = (Vec::new(), 0);
        loop {
            let next = scan.next()?;
            let end = next.is_none();
            rows += next.as_ref().map_or(0, Delta::num_rows);
            parts.extend(next);
            if rows >= FOLD_ROWS || end {
                let delta = Delta::concat(order.stored(), &std::mem::take(&mut parts))?;
                merged = merged.merge(&order, &delta, last.to)?;
                rows = 0;
            }
            if end {
                break;
            }
        }
        if let Some(memory) = &self.memory {
            memory.held.set(merged.bytes());
        }
        let mut state = self.state.write();
        state.base = Arc::new(merged);
        state.base_seq = last.seq;
        state.runs.drain(..runs.len());
        Ok(())
    }

    /// Sums runs that nobody needs apart.
    fn join(&self, limits: &Limits) -> Result<Vec<Joined>> {
        let groups = joinable(&self.state.read(), limits);
        groups.iter().map(|runs| self.sum(runs)).collect()
    }

    fn sum(&self, runs: &[Arc<Run>]) -> Result<Joined> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Err(RuntimeError::internal("no runs to join"));
        };
        let order = self.order();
        let (seq, from, to) = (last.seq, first.from, last.to);
        let mut scan = MergeScan::new(&order, None, runs, None, None)?;
        let (mut parts, mut rows) = (Vec::new(), 0);
        let mut spilling: Option<Spilling> = None;
        while let Some(delta) = scan.next()? {
            rows += delta.num_rows();
            parts.push(delta);
            let Some(memory) = &self.memory else { continue };
            if rows > JOIN_ROWS_MAX || spilling.is_some() {
                let mut writer = memory.writer.lock();
                let spilling = spilling.get_or_insert_default();
                for part in parts.drain(..) {
                    spilling.add(&order, &mut writer, &part)?;
                }
            }
        }
        let run = match spilling {
            Some(spilling) => Some(spilling.finish(seq, from, to)),
            None if rows == 0 => None,
            None => {
                let delta = Delta::concat(order.stored(), &parts)?;
                Some(Run::new(
                    seq,
                    from,
                    to,
                    delta,
                    self.memory.as_ref().map(|m| &m.governor),
                ))
            }
        };
        Ok(Joined {
            first: first.seq,
            run,
            from,
            to,
            last: seq,
        })
    }

    /// Replaces runs by their sum, unless one of `stands` is inside it by now.
    pub fn install(&self, joined: Joined, stands: &[u64]) {
        if stands.iter().any(|e| joined.from < *e && *e < joined.to) {
            return;
        }
        let mut state = self.state.write();
        // A snapshot that was offered meanwhile holds a part of it.
        if state
            .offered
            .as_ref()
            .is_some_and(|offer| joined.first <= offer.seq && offer.seq < joined.last)
        {
            return;
        }
        let at = state.runs.partition_point(|run| run.seq < joined.first);
        let n = state
            .runs
            .iter()
            .skip(at)
            .take_while(|run| run.seq <= joined.last)
            .count();
        // Folded away in the meantime.
        if state.runs.get(at).is_none_or(|run| run.seq != joined.first) {
            return;
        }
        let rest = state.runs.split_off(at);
        state.runs.extend(joined.run.map(Arc::new));
        state.runs.extend(rest.into_iter().skip(n));
    }

    /// Writes the oldest runs out until the budget for change logs is kept.
    fn spill(&self) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let order = self.order();
        let runs: Vec<Arc<Run>> = self.state.read().runs.iter().cloned().collect();
        for run in runs.iter().filter(|run| !run.is_spilled()) {
            if !memory.governor.over(Share::Runs) {
                return Ok(());
            }
            let spilled = Arc::new(run.spill(&order, &mut memory.writer.lock())?);
            let mut state = self.state.write();
            if let Some(place) = state.runs.iter_mut().find(|r| Arc::ptr_eq(r, run)) {
                *place = spilled;
            }
        }
        Ok(())
    }
}

/// Nobody needs the runs before the offered snapshot, or there are none. One that was offered before the base took in later
/// runs is of no use.
fn usable(state: &State, offer: &Offer, horizon: u64) -> bool {
    unchanged(state, offer) || offer.seq >= state.base_seq && offer.epoch <= horizon
}

/// The base takes in no runs: it is in the tier, or will be as soon as the laggards have passed a checkpoint that waits. Until then
/// runs, which can be spilled, stay what they are.
fn is_cooling(state: &State) -> bool {
    state.base.is_cold() || state.offered.is_some()
}

/// The offered snapshot shows the same rows as the base.
fn unchanged(state: &State, offer: &Offer) -> bool {
    offer.seq >= state.base_seq && state.runs.front().is_none_or(|run| run.seq > offer.seq)
}

/// Stretches of runs that nobody needs apart and that it is time to sum.
fn joinable(state: &State, limits: &Limits) -> Vec<Vec<Arc<Run>>> {
    let mut groups: Vec<Vec<Arc<Run>>> = Vec::new();
    let mut group: Vec<Arc<Run>> = Vec::new();
    for run in state.runs.iter().take_while(|run| run.to <= limits.readable) {
        let spans = |from: u64| limits.stands.iter().any(|e| from < *e && *e < run.to);
        let offered = state.offered.as_ref().map(|offer| offer.seq);
        let parted = group.first().is_some_and(|first: &Arc<Run>| spans(first.from))
            || group
                .last()
                .is_some_and(|last| limits.seqs.contains(&last.seq) || offered == Some(last.seq));
        if parted {
            groups.push(std::mem::take(&mut group));
        }
        group.push(Arc::clone(run));
    }
    groups.push(group);
    let net: i64 = state.runs.iter().map(|run| run.net_rows()).sum();
    let relation_rows = state.base.rows.saturating_add_signed(net as isize);
    groups
        .into_iter()
        .filter_map(|group| stretch(group, relation_rows))
        .collect()
}

/// The newest runs of a group that are to be summed: eight of about the same size, or all when they are more than twice the relation.
fn stretch(mut group: Vec<Arc<Run>>, relation_rows: usize) -> Option<Vec<Arc<Run>>> {
    if group.len() < 2 {
        return None;
    }
    let rows: usize = group.iter().map(|run| run.num_rows()).sum();
    if group.len() >= JOIN_RUNS && rows > 2 * relation_rows + JOIN_ROWS_MAX {
        return Some(group);
    }
    let class = |run: &Arc<Run>| run.num_rows().max(1).ilog2() / 3;
    let (mut highest, mut count, mut start) = (0, 0, None);
    for (at, run) in group.iter().enumerate().rev() {
        if class(run) > highest {
            (highest, count) = (class(run), 0);
        }
        count += 1;
        if count >= JOIN_RUNS {
            start = Some(at);
        }
    }
    Some(group.split_off(start?))
}
