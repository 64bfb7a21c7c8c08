//! How far a change reaches, and how far a row sees, for all calls of a window together.
//!
//! ```text
//!   sum(x) OVER (ORDER BY t ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)
//!
//!          … a   b  [c]  d   e   f …        c changes: results of b, c, d, e may change (before 1, after 2);
//!            ▲────────────────────▲         to compute those, rows a (2 before b) to f (1 after e) are read
//! ```

use levee_planner::plan::{AggFunc, Bound, Distance, Frame, FrameUnit, WindowCall, WindowFunc};

/// A stretch of rows on one side of a row: everything that lies within one of its measures.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Rows.
    pub rows: i64,
    /// Whole groups of equal rows, beside the row's own; `None`: not even that.
    pub groups: Option<i64>,
    /// Values this far away.
    pub distances: Vec<Distance>,
}

impl Reach {
    fn rows(&mut self, n: i64) {
        self.rows = self.rows.max(n);
    }

    fn groups(&mut self, n: i64) {
        self.groups = Some(self.groups.unwrap_or(0).max(n));
    }

    /// `ahead`: the side on which the reach lies is the one where offsets grow.
    fn bound(&mut self, unit: FrameUnit, bound: Bound, ahead: bool) {
        if unit != FrameUnit::Rows {
            self.groups(0);
        }
        match bound {
            Bound::Unbounded => {}
            Bound::Offset(n) => {
                let n = if ahead { n } else { -n }.max(0);
                match unit {
                    FrameUnit::Rows => self.rows(n),
                    FrameUnit::Groups | FrameUnit::Range => self.groups(n),
                }
            }
            Bound::Distance { preceding, by } if preceding != ahead => self.distances.push(by),
            Bound::Distance { .. } => {}
        }
    }
}

/// What the calls of a window ask for.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Rows in front of a change whose results it may alter.
    pub before: Reach,
    /// Rows behind it, as far as what stands in front of them is seen row by row.
    pub after: Reach,
    /// Rows in front of a row that its results are computed from.
    pub needs_before: Reach,
    /// Rows behind it.
    pub needs_after: Reach,
    /// Some call looks at groups of equal rows.
    pub grouped: bool,
    /// Some call depends on all rows in front: a change reaches on until what stands in front is as it was.
    pub running: bool,
    /// Some call depends on the number of rows.
    pub totals: bool,
    /// Rows from the partition's first on that some call reads.
    pub heads: usize,
    /// Some call over the whole partition reads those.
    pub heads_of_whole: bool,
    /// A partition is computed in one piece.
    pub unsplit: bool,
}

impl Shape {
    /// For some calls.
    pub fn new(calls: &[WindowCall]) -> Self {
        let mut shape = Self::default();
        for call in calls {
            shape.add(call);
        }
        shape.grouped = shape.needs_before.groups.is_some() || shape.needs_after.groups.is_some();
        if shape.grouped {
            // A group is seen whole or not at all.
            shape.needs_before.groups(0);
            shape.needs_after.groups(0);
        }
        shape
    }

    fn add(&mut self, call: &WindowCall) {
        match &call.func {
            WindowFunc::RowNumber => self.running = true,
            WindowFunc::Rank | WindowFunc::DenseRank => {
                self.running = true;
                self.needs_before.groups(0);
            }
            WindowFunc::PercentRank => {
                self.running = true;
                self.totals = true;
                self.needs_before.groups(0);
            }
            WindowFunc::CumeDist => {
                self.running = true;
                self.totals = true;
                self.before.groups(0);
                self.after.groups(0);
                self.needs_after.groups(0);
            }
            WindowFunc::Ntile(_) => {
                self.running = true;
                self.totals = true;
            }
            WindowFunc::Lag { offset, .. } => {
                self.after.rows(*offset);
                self.needs_before.rows(*offset);
                self.before.rows(-offset);
                self.needs_after.rows(-offset);
            }
            WindowFunc::Nth { n, from_last, .. } => self.add_nth(call.frame, *n, *from_last),
            WindowFunc::Aggregate(agg) => {
                let list = is_list(agg.func);
                let (start, end) = (call.frame.start, call.frame.end);
                if list && (start == Bound::Unbounded || end == Bound::Unbounded) {
                    self.unsplit = true;
                    self.see_groups(call.frame);
                } else if !call.frame.is_whole() {
                    self.running |= start == Bound::Unbounded;
                    self.add_frame(call.frame);
                }
            }
        }
    }

    fn add_nth(&mut self, frame: Frame, n: u64, from_last: bool) {
        let count = i64::try_from(n).unwrap_or(i64::MAX);
        if from_last {
            // The frame's end is bounded. Where its rows are found by their values, the last one may be any distance away.
            if matches!(frame.end, Bound::Distance { .. }) || frame.end == Bound::Unbounded || n > 1 {
                self.unsplit = true;
            }
            self.add_frame(frame);
            self.see_groups(frame);
            if frame.start == Bound::Unbounded {
                self.after.bound(frame.unit, frame.end, false);
            }
            if frame.unit == FrameUnit::Rows {
                self.needs_before.rows(1);
            }
        } else if frame.start == Bound::Unbounded {
            self.heads = self.heads.max(usize::try_from(n).unwrap_or(usize::MAX));
            self.heads_of_whole |= frame.end == Bound::Unbounded;
            if frame.end != Bound::Unbounded {
                self.running = true;
                self.add_frame(frame);
            }
        } else if frame.end == Bound::Unbounded {
            match (frame.unit, frame.start) {
                // The frame of one of the first rows begins with the partition, not further in front.
                (FrameUnit::Rows, Bound::Offset(start)) => self.add_frame(Frame {
                    end: Bound::Offset(start.max(0).saturating_add(count - 1)),
                    ..frame
                }),
                _ => {
                    self.unsplit = true;
                    self.see_groups(frame);
                }
            }
        } else {
            self.add_frame(frame);
        }
    }

    fn see_groups(&mut self, frame: Frame) {
        if frame.unit != FrameUnit::Rows && !frame.is_whole() {
            self.needs_before.groups(0);
        }
    }

    fn add_frame(&mut self, frame: Frame) {
        self.before.bound(frame.unit, frame.end, true);
        self.after.bound(frame.unit, frame.start, false);
        self.needs_after.bound(frame.unit, frame.end, true);
        self.needs_before.bound(frame.unit, frame.start, false);
        // What stands in front must not be summed up beyond a frame that ends early.
        self.needs_before.bound(frame.unit, frame.end, false);
        if frame.end == Bound::Unbounded || frame.start == Bound::Unbounded {
            return;
        }
        // A row may enter a frame that was empty, or lies wholly on one side.
        self.needs_after.bound(frame.unit, frame.start, true);
    }
}

/// Whether the result holds the values, in the window's order.
pub fn is_list(func: AggFunc) -> bool {
    matches!(func, AggFunc::ArrayAgg | AggFunc::StringAgg)
}
