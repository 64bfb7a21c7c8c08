//! Regions whose output changes by itself as time passes.
//!
//! ```text
//!   step done: next timer 12:00:05.2 ─▶ timers {(12:00:05.2, V)}
//!   an epoch at or after it, cut for whatever reason ─▶ V is woken and steps there
//!   no such epoch when the clock says 12:00:05.2     ─▶ the sequencer is asked for one
//! ```
//!
//! A region tells its next timer with each finished step, as a function of that step, so a replay takes the same steps. It is kept in
//! the region's part of a checkpoint. Until a step is done the next timer is unknown: a region with timers has one step under way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use levee_planner::plan::ObjectId;

use super::control::Control;
use super::record::EpochRecord;
use super::sequencer::Request;

/// Shortest time between two epochs that are cut for timers alone.
const TIMER_EPOCHS: Duration = Duration::from_millis(50);

/// The regions' timers.
#[derive(Debug, Default)]
pub struct Timers {
    /// Microseconds since 1970, and whose.
    due: BTreeSet<(i64, ObjectId)>,
    /// An epoch has been asked for.
    asked: bool,
    /// When the last one was.
    last: Option<Instant>,
}

impl Timers {
    /// A region's timer moves.
    pub fn set(&mut self, region: ObjectId, before: Option<i64>, now: Option<i64>) {
        if before != now {
            if let Some(before) = before {
                self.due.remove(&(before, region));
            }
            self.due.extend(now.map(|at| (at, region)));
        }
    }

    /// The region is gone.
    pub fn remove(&mut self, region: ObjectId) {
        self.due.retain(|(_, id)| *id != region);
    }

    /// Regions whose time has come at `timestamp_us`.
    fn due_at(&self, timestamp_us: i64) -> Vec<ObjectId> {
        let due = self.due.iter().take_while(|(at, _)| *at <= timestamp_us);
        due.map(|(_, id)| *id).collect()
    }
}

impl Control {
    /// Wakes the regions whose time has come with an epoch, before the clock shows it.
    pub(super) fn wake_timers(&mut self, record: &EpochRecord) {
        self.timers.asked = false;
        let due = self.timers.due_at(record.timestamp_us);
        for id in self.work.downstream(due.iter().copied()) {
            self.wake(id);
        }
        self.changed_since_tick |= !due.is_empty();
        self.work.ready.extend(due);
    }

    /// Asks for an epoch if a timer is due and no epoch has come since.
    pub(super) fn ask_for_timers(&mut self) {
        let now_us = self.shared.now_us();
        if self.timers.asked
            || self.stopping.is_some()
            || self.next_timer_us().is_none_or(|at| at > now_us)
            || self.timers.last.is_some_and(|last| last.elapsed() < TIMER_EPOCHS)
        {
            return;
        }
        self.timers.asked = true;
        self.timers.last = Some(Instant::now());
        if self.requests.send(Request::Tick).is_err() {
            tracing::debug!("the sequencer has stopped");
        }
    }

    /// The first timer that no epoch has reached.
    fn next_timer_us(&self) -> Option<i64> {
        let newest_us = self.timeline.timestamp_us(self.cut);
        let later = self.timers.due.range((newest_us.saturating_add(1), ObjectId(0))..);
        later.map(|(at, _)| *at).next()
    }

    /// Time until [`Control::ask_for_timers`] may have something to do.
    pub(super) fn timer_wait(&self) -> Option<Duration> {
        if self.timers.asked {
            return None;
        }
        let at = self.next_timer_us()?;
        let until = u64::try_from(at.saturating_sub(self.shared.now_us())).unwrap_or(0);
        let paced = self
            .timers
            .last
            .map_or(Duration::ZERO, |last| TIMER_EPOCHS.saturating_sub(last.elapsed()));
        Some(Duration::from_micros(until).max(paced))
    }
}
