//! Results of all calls over pieces of partitions, before the step and now.
//!
//! A piece is a run of a partition's entries: in its middle the body, whose results are wanted, around it what they are computed from.
//! Many pieces, of one partition or another, are computed together, as columns.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, UInt32Array};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{interleave, is_not_null, take};
use arrow::row::RowConverter;
use levee_planner::plan::{AggCall, AggFunc, Bound, Distance, Frame, FrameUnit, SortKey, WindowCall, WindowFunc};

use super::super::aggregate::accumulator::{Accumulator, Failures};
use super::super::columns::{bigint, sortable};
use super::super::partitions::key_part;
use super::distance::{pick, shifted};
use super::shape::is_list;
use super::values::{Bounds, Framed, Stretch, advance, lists};
use super::walk::Item;
use crate::{Result, RuntimeError};

/// What stands in front of a place in a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base {
    /// Rows.
    pub rows: i64,
    /// Groups of equal rows.
    pub groups: i64,
    /// States of the running aggregates over those rows; none at the partition's start.
    pub states: Arc<[Vec<u8>]>,
}

/// Entries of a partition that are computed together. Places are those in the items at hand.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The partition.
    pub slot: u32,
    /// All of it.
    pub items: Range<usize>,
    /// What results are wanted for.
    pub body: Range<usize>,
    /// What stands in front, before the step and now.
    pub base: [Base; 2],
    /// Rows of the partition, before the step and now.
    pub copies: [i64; 2],
    /// The partition's first rows, before the step and now.
    pub heads: [Range<usize>; 2],
    /// Results over the whole partition, before the step and now: column list and row.
    pub whole: [(usize, usize); 2],
    /// How far the base of the next piece has to go.
    pub advance_to: usize,
}

/// Rows of one piece.
struct Part {
    rows: Range<u32>,
    body: Range<u32>,
    groups: Range<usize>,
}

/// Rows before the step, or now.
pub struct Side {
    which: usize,
    /// The item of each row.
    rows: Vec<u32>,
    /// The first row of each item.
    first: Vec<u32>,
    parts: Vec<Part>,
    /// The group of each row.
    group: Vec<u32>,
    /// Where groups begin, and the end.
    starts: Vec<u32>,
}

impl Side {
    /// `which`: 0 before the step, 1 now.
    ///
    /// # Errors
    /// Damaged entries.
    pub fn new(which: usize, pieces: &[Piece], items: &[Item], grouped: bool) -> Result<Self> {
        let mut side = Self {
            which,
            rows: Vec::new(),
            first: vec![0; items.len() + 1],
            parts: Vec::with_capacity(pieces.len()),
            group: Vec::new(),
            starts: Vec::new(),
        };
        for piece in pieces {
            let (start, groups) = (side.rows.len() as u32, side.starts.len());
            let mut last: Option<&[u8]> = None;
            for i in piece.items.clone() {
                let item = &items[i];
                side.first[i] = side.rows.len() as u32;
                let copies = item.copies[which].max(0);
                if copies == 0 {
                    continue;
                }
                if grouped {
                    let key = key_part(&item.entry)?;
                    if last != Some(key) {
                        side.starts.push(side.rows.len() as u32);
                        last = Some(key);
                    }
                    let group = side.starts.len() as u32 - 1;
                    side.group.extend((0..copies).map(|_| group));
                }
                side.rows.extend((0..copies).map(|_| i as u32));
            }
            side.first[piece.items.end] = side.rows.len() as u32;
            let at = |i: usize| side.first[i];
            side.parts.push(Part {
                rows: start..side.rows.len() as u32,
                body: at(piece.body.start)..at(piece.body.end),
                groups: groups..side.starts.len(),
            });
        }
        side.starts.push(side.rows.len() as u32);
        Ok(side)
    }

    /// The rows of an item within its piece.
    fn rows_of(&self, item: usize, end: usize) -> Range<u32> {
        let next = if item + 1 == end {
            self.first[end]
        } else {
            self.first[item + 1]
        };
        self.first[item]..next
    }

    fn group_rows(&self, group: usize) -> Bounds {
        (self.starts[group], self.starts[group + 1])
    }

    /// Body rows with their parts.
    fn body(&self) -> impl Iterator<Item = (&Part, u32)> {
        self.parts.iter().flat_map(|p| p.body.clone().map(move |row| (p, row)))
    }

    /// Number of body rows.
    pub fn n_body(&self) -> usize {
        self.parts.iter().map(|p| p.body.len()).sum()
    }
}

/// Pieces with their rows as columns.
pub struct Evaluation<'a> {
    /// Sort columns.
    pub order_by: &'a [SortKey],
    /// Encodes them.
    pub order: Option<&'a RowConverter>,
    /// Pieces.
    pub pieces: &'a [Piece],
    /// Their entries, and those of their heads.
    pub items: &'a [Item],
    /// The columns of the entries' rows.
    pub columns: &'a [ArrayRef],
    /// Results over whole partitions, by list.
    pub whole: &'a [Vec<ArrayRef>],
}

impl Evaluation<'_> {
    fn column(&self, c: usize, at: Vec<u32>) -> Result<ArrayRef> {
        let column = self
            .columns
            .get(c)
            .ok_or_else(|| RuntimeError::internal(format!("a window refers to column {c} of its input")))?;
        pick(column, at)
    }

    /// A column's values in all rows of a side.
    fn values(&self, side: &Side, c: usize) -> Result<ArrayRef> {
        self.column(c, side.rows.clone())
    }

    /// Results of a call that needs no state, for the body's rows.
    ///
    /// # Errors
    /// Damaged entries.
    pub fn plain(&self, side: &Side, call: &WindowCall) -> Result<ArrayRef> {
        let which = side.which;
        let bases = || self.pieces.iter().map(|p| &p.base[which]);
        let numbers = |f: &dyn Fn(&Piece, &Part, u32) -> i64| -> Vec<i64> {
            let pairs = self.pieces.iter().zip(&side.parts);
            pairs
                .flat_map(|(piece, part)| part.body.clone().map(move |row| f(piece, part, row)))
                .collect()
        };
        let row_number =
            |piece: &Piece, part: &Part, row: u32| piece.base[which].rows + i64::from(row - part.rows.start);
        let rank = |piece: &Piece, part: &Part, row: u32| {
            row_number(piece, part, side.group_rows(side.group[row as usize] as usize).0)
        };
        let ratio = |pairs: Vec<(i64, i64)>| -> ArrayRef {
            let of = |(a, b): (i64, i64)| if b == 0 { 0.0 } else { a as f64 / b as f64 };
            Arc::new(pairs.into_iter().map(of).map(Some).collect::<Float64Array>())
        };
        let total = |piece: &Piece| piece.copies[which];
        let totals = || numbers(&|piece, _, _| total(piece));
        debug_assert!(bases().all(|b| b.rows >= 0));
        Ok(match &call.func {
            WindowFunc::RowNumber => bigint(numbers(&|p, part, row| row_number(p, part, row) + 1)),
            WindowFunc::Rank => bigint(numbers(&|p, part, row| rank(p, part, row) + 1)),
            WindowFunc::DenseRank => bigint(numbers(&|p, part, row| {
                let group = side.group[row as usize] as usize - part.groups.start;
                p.base[which].groups + group as i64 + 1
            })),
            WindowFunc::PercentRank => {
                let ranks = numbers(&rank);
                ratio(ranks.into_iter().zip(totals()).map(|(r, t)| (r, t - 1)).collect())
            }
            WindowFunc::CumeDist => {
                let ends =
                    numbers(&|p, part, row| row_number(p, part, side.group_rows(side.group[row as usize] as usize).1));
                ratio(ends.into_iter().zip(totals()).collect())
            }
            WindowFunc::Ntile(n) => {
                let n = i64::try_from(*n).unwrap_or(i64::MAX);
                bigint(numbers(&|p, part, row| tile(row_number(p, part, row), total(p), n)))
            }
            WindowFunc::Lag { value, offset, default } => self.lag(side, *value, *offset, *default)?,
            WindowFunc::Nth { value, n, from_last } => self.nth(side, call.frame, *value, *n, *from_last)?,
            WindowFunc::Aggregate(agg) if is_list(agg.func) => {
                let frames = self.frames(side, call.frame)?;
                let values = self.values(side, argument(agg)?)?;
                let filter = self.filter(side, agg)?;
                let delimiter = (agg.func == AggFunc::StringAgg).then_some(agg.constant.as_str());
                lists(&values, filter.as_ref(), delimiter, &frames)?
            }
            WindowFunc::Aggregate(_) => return Err(RuntimeError::internal("an aggregate without its state")),
        })
    }

    fn lag(&self, side: &Side, value: usize, offset: i64, default: Option<usize>) -> Result<ArrayRef> {
        let found = side.body().map(|(part, row)| {
            let at = i64::from(row).checked_sub(offset)?;
            let inside = at >= i64::from(part.rows.start) && at < i64::from(part.rows.end);
            inside.then(|| side.rows[at as usize])
        });
        let found: UInt32Array = found.collect();
        let column = |c: usize| {
            self.columns
                .get(c)
                .ok_or_else(|| RuntimeError::internal(format!("a window refers to column {c} of its input")))
        };
        let values = take(column(value)?, &found, None)?;
        let Some(default) = default else { return Ok(values) };
        let own = side.body().map(|(_, row)| side.rows[row as usize]).collect();
        let defaults = self.column(default, own)?;
        Ok(zip(&is_not_null(&found)?, &values, &defaults)?)
    }

    fn nth(&self, side: &Side, frame: Frame, value: usize, n: u64, from_last: bool) -> Result<ArrayRef> {
        let frames = self.frames(side, frame)?;
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        let mut frames = frames.iter();
        let mut found = Vec::with_capacity(side.n_body());
        for (piece, part) in self.pieces.iter().zip(&side.parts) {
            let base = piece.base[side.which].rows;
            for (_, &(lo, hi)) in part.body.clone().zip(&mut frames) {
                let (lo, hi) = (i64::from(lo), i64::from(hi));
                let item = if from_last {
                    let at = hi.saturating_sub(n);
                    (at >= lo).then(|| side.rows[at as usize])
                } else if frame.start == Bound::Unbounded {
                    let end = if frame.end == Bound::Unbounded {
                        piece.copies[side.which]
                    } else {
                        base + hi - i64::from(part.rows.start)
                    };
                    let head = &piece.heads[side.which];
                    (n <= end).then(|| (head.start + n as usize - 1) as u32)
                } else {
                    let at = lo.saturating_add(n - 1);
                    (at < hi).then(|| side.rows[at as usize])
                };
                found.push(item);
            }
        }
        let column = self
            .columns
            .get(value)
            .ok_or_else(|| RuntimeError::internal(format!("a window refers to column {value} of its input")))?;
        Ok(take(column, &UInt32Array::from(found), None)?)
    }

    /// Results of an aggregate over whole partitions.
    ///
    /// # Errors
    /// The columns do not fit together.
    pub fn whole(&self, side: &Side, call: usize) -> Result<ArrayRef> {
        let mut at = Vec::with_capacity(side.n_body());
        for (piece, part) in self.pieces.iter().zip(&side.parts) {
            at.extend(part.body.clone().map(|_| piece.whole[side.which]));
        }
        let lists: Vec<&dyn Array> = self.whole.iter().map(|list| list[call].as_ref()).collect();
        Ok(interleave(&lists, &at)?)
    }

    /// Results of an aggregate over frames; `running`: its place among the states of a base, if its frames begin with the partition.
    ///
    /// # Errors
    /// An argument has another type than declared.
    pub fn framed(
        &self,
        side: &Side,
        call: &WindowCall,
        agg: &AggCall,
        accumulator: &mut dyn Accumulator,
        running: Option<usize>,
        failures: &mut Failures,
    ) -> Result<ArrayRef> {
        let frames = self.frames(side, call.frame)?;
        // Rows of one group often have one frame.
        let mut own: Vec<Bounds> = Vec::with_capacity(frames.len());
        let mut place = Vec::with_capacity(frames.len());
        let mut stretches = Vec::with_capacity(side.parts.len());
        let mut rest = frames.as_slice();
        for (piece, part) in self.pieces.iter().zip(&side.parts) {
            let (mine, others) = rest.split_at(part.body.len());
            rest = others;
            let from = own.len();
            for &frame in mine {
                if own.len() == from || own.last() != Some(&frame) {
                    own.push(frame);
                }
                place.push(own.len() as u32 - 1);
            }
            let base = running.and_then(|r| piece.base[side.which].states.get(r));
            stretches.push(Stretch {
                frames: from..own.len(),
                base: base.map(Vec::as_slice),
            });
        }
        let arg = agg.arg.map(|c| self.values(side, c)).transpose()?;
        let filter = self.filter(side, agg)?;
        let results = Framed::new(accumulator, arg, filter, &own).results(&stretches, failures)?;
        if own.len() == place.len() {
            return Ok(results);
        }
        pick(&results, place)
    }

    fn filter(&self, side: &Side, agg: &AggCall) -> Result<Option<BooleanArray>> {
        let filter = agg.filter.map(|c| self.values(side, c)).transpose()?;
        Ok(filter.map(|f| f.as_boolean().clone()))
    }

    /// The frames of the body's rows.
    fn frames(&self, side: &Side, frame: Frame) -> Result<Vec<Bounds>> {
        let unit = if frame.is_whole() { FrameUnit::Rows } else { frame.unit };
        let ends = match unit {
            FrameUnit::Range => Some((self.far(side, frame.start)?, self.far(side, frame.end)?)),
            _ => None,
        };
        let mut out = Vec::with_capacity(side.n_body());
        for part in &side.parts {
            let mut finder = Finder {
                evaluation: self,
                side,
                part,
                lo: part.rows.start,
                hi: part.rows.start,
            };
            for row in part.body.clone() {
                let (start, end) = (&frame.start, &frame.end);
                let (lo, hi) = match &ends {
                    Some((from, to)) => (
                        finder.range_start(row, *start, from.as_ref())?,
                        finder.range_end(row, *end, to.as_ref())?,
                    ),
                    None if unit == FrameUnit::Rows => finder.rows(row, *start, *end),
                    None => finder.groups(row, *start, *end),
                };
                out.push((lo, hi.max(lo)));
            }
        }
        Ok(out)
    }

    /// The sort column at a distance from each row of a side, encoded.
    fn far(&self, side: &Side, bound: Bound) -> Result<Option<(ArrayRef, arrow::row::Rows)>> {
        let Bound::Distance { preceding, by } = bound else {
            return Ok(None);
        };
        let (Some(order), [key]) = (self.order, self.order_by) else {
            return Err(RuntimeError::internal("a range without a sort column"));
        };
        let keys = self.values(side, key.column)?;
        let ends = encode_far(order, key, &keys, by, preceding)?;
        Ok(Some((keys, ends)))
    }

    /// Moves each piece's base to where the next one begins; also what stood in front at places in between.
    ///
    /// # Errors
    /// An argument has another type than declared.
    pub fn advanced(
        &self,
        side: &Side,
        running: &[&AggCall],
        accumulators: &mut [Box<dyn Accumulator>],
        every: usize,
    ) -> Result<Vec<Vec<(usize, Base)>>> {
        let inputs = running
            .iter()
            .map(|agg| {
                Ok((
                    agg.arg.map(|c| self.values(side, c)).transpose()?,
                    self.filter(side, agg)?,
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut all = Vec::with_capacity(self.pieces.len());
        for (piece, part) in self.pieces.iter().zip(&side.parts) {
            let mut stops = self.stops(side, piece, every)?;
            let rows: Vec<usize> = stops.iter().map(|s| side.first[*s] as usize).collect();
            let base = &piece.base[side.which];
            let mut states: Vec<Vec<Vec<u8>>> = vec![Vec::with_capacity(running.len()); stops.len()];
            for (r, (arg, filter)) in inputs.iter().enumerate() {
                let mut at = 0;
                let accumulator = accumulators
                    .get_mut(r)
                    .ok_or_else(|| RuntimeError::internal("a running aggregate without a state"))?;
                advance(
                    accumulator.as_mut(),
                    (arg.as_ref(), filter.as_ref()),
                    base.states.get(r).map(Vec::as_slice),
                    part.rows.start as usize..part.rows.end as usize,
                    &rows,
                    &mut |state| {
                        states[at].push(state);
                        at += 1;
                    },
                )?;
            }
            let bases = stops.drain(..).zip(rows).zip(states).map(|((stop, row), states)| {
                let groups = match side.group.get(row) {
                    _ if side.group.is_empty() => 0,
                    Some(group) if row < part.rows.end as usize => *group as usize - part.groups.start,
                    _ => part.groups.len(),
                };
                let base = Base {
                    rows: base.rows + (row - part.rows.start as usize) as i64,
                    groups: base.groups + groups as i64,
                    states: states.into(),
                };
                (stop, base)
            });
            all.push(bases.collect());
        }
        Ok(all)
    }

    /// Items of a piece up to which its base goes, the last one being where the next piece begins: every so many rows, where a group begins.
    fn stops(&self, side: &Side, piece: &Piece, every: usize) -> Result<Vec<usize>> {
        let mut stops = Vec::new();
        let mut last = side.first[piece.items.start] as usize;
        for i in piece.items.start + 1..piece.advance_to {
            if (side.first[i] as usize).saturating_sub(last) < every {
                continue;
            }
            if !side.group.is_empty() && key_part(&self.items[i].entry)? == key_part(&self.items[i - 1].entry)? {
                continue;
            }
            last = side.first[i] as usize;
            stops.push(i);
        }
        stops.push(piece.advance_to);
        Ok(stops)
    }

    /// What changes in the bodies: items with places among the body rows of both sides (`None`: there is none).
    pub fn pairs(&self, old: &Side, new: &Side) -> Pairs {
        let mut pairs = Pairs::default();
        let (mut old_at, mut new_at) = (0_u32, 0_u32);
        for piece in self.pieces {
            for i in piece.body.clone() {
                let before = old.rows_of(i, piece.items.end).len() as u32;
                let after = new.rows_of(i, piece.items.end).len() as u32;
                let both = before.min(after);
                pairs.old.extend(old_at..old_at + both);
                pairs.new.extend(new_at..new_at + both);
                pairs.items.extend((0..both).map(|_| i as u32));
                pairs.gone.extend((both..before).map(|k| (i as u32, old_at + k)));
                pairs.come.extend((both..after).map(|k| (i as u32, new_at + k)));
                old_at += before;
                new_at += after;
            }
        }
        pairs
    }
}

/// Rows of both sides.
#[derive(Default)]
pub struct Pairs {
    /// Rows that are on both sides: their places before,
    pub old: Vec<u32>,
    /// now,
    pub new: Vec<u32>,
    /// and their items.
    pub items: Vec<u32>,
    /// Rows that were: item and place.
    pub gone: Vec<(u32, u32)>,
    /// Rows that are: item and place.
    pub come: Vec<(u32, u32)>,
}

/// `keys` at a distance, encoded as sort columns.
///
/// # Errors
/// The values have no such distance.
pub fn encode_far(
    order: &RowConverter,
    key: &SortKey,
    keys: &ArrayRef,
    by: Distance,
    preceding: bool,
) -> Result<arrow::row::Rows> {
    let ends = shifted(keys, by, preceding != key.desc)?;
    Ok(order.convert_columns(&[sortable(&ends)])?)
}

fn argument(agg: &AggCall) -> Result<usize> {
    agg.arg
        .ok_or_else(|| RuntimeError::internal("an aggregate lacks its argument"))
}

/// The bucket of the row after `before` others, of `total` rows in `n` buckets as even as can be, the larger ones first.
fn tile(before: i64, total: i64, n: i64) -> i64 {
    let (size, larger) = (total / n, total % n);
    let in_larger = larger * (size + 1);
    if before < in_larger {
        before / (size + 1) + 1
    } else {
        larger + (before - in_larger) / size.max(1) + 1
    }
}

/// Finds frames row by row; those of a range never go back.
struct Finder<'a> {
    evaluation: &'a Evaluation<'a>,
    side: &'a Side,
    part: &'a Part,
    lo: u32,
    hi: u32,
}

type Ends = (ArrayRef, arrow::row::Rows);

impl Finder<'_> {
    fn rows(&self, row: u32, start: Bound, end: Bound) -> Bounds {
        let part = &self.part.rows;
        let at = |offset: i64| {
            let at = i64::from(row).saturating_add(offset);
            at.clamp(i64::from(part.start), i64::from(part.end)) as u32
        };
        let lo = match start {
            Bound::Offset(n) => at(n),
            _ => part.start,
        };
        let hi = match end {
            Bound::Offset(n) => at(n.saturating_add(1)),
            _ => part.end,
        };
        (lo, hi)
    }

    fn groups(&self, row: u32, start: Bound, end: Bound) -> Bounds {
        let groups = &self.part.groups;
        let own = i64::from(self.side.group[row as usize]);
        let at = |offset: i64| own.saturating_add(offset);
        let lo = match start {
            Bound::Offset(n) if at(n) >= groups.end as i64 => self.part.rows.end,
            Bound::Offset(n) => self.side.starts[(at(n).max(groups.start as i64)) as usize],
            _ => self.part.rows.start,
        };
        let hi = match end {
            Bound::Offset(n) if at(n) < groups.start as i64 => self.part.rows.start,
            Bound::Offset(n) if at(n) >= groups.end as i64 => self.part.rows.end,
            Bound::Offset(n) => self.side.group_rows(at(n) as usize).1,
            _ => self.part.rows.end,
        };
        (lo, hi)
    }

    fn key(&self, row: u32) -> Result<&[u8]> {
        key_part(&self.evaluation.items[self.side.rows[row as usize] as usize].entry)
    }

    fn own_group(&self, row: u32) -> Bounds {
        self.side.group_rows(self.side.group[row as usize] as usize)
    }

    fn range_start(&mut self, row: u32, bound: Bound, ends: Option<&Ends>) -> Result<u32> {
        let Some((keys, ends)) = ends else {
            return Ok(match bound {
                Bound::Unbounded => self.part.rows.start,
                _ => self.own_group(row).0,
            });
        };
        if keys.is_null(row as usize) {
            return Ok(self.own_group(row).0);
        }
        let end = ends.row(row as usize);
        if self.lo > self.part.rows.start && self.key(self.lo - 1)? >= end.data() {
            self.lo = self.part.rows.start;
        }
        while self.lo < self.part.rows.end && self.key(self.lo)? < end.data() {
            self.lo += 1;
        }
        Ok(self.lo)
    }

    fn range_end(&mut self, row: u32, bound: Bound, ends: Option<&Ends>) -> Result<u32> {
        let Some((keys, ends)) = ends else {
            return Ok(match bound {
                Bound::Unbounded => self.part.rows.end,
                _ => self.own_group(row).1,
            });
        };
        if keys.is_null(row as usize) {
            return Ok(self.own_group(row).1);
        }
        let end = ends.row(row as usize);
        if self.hi > self.part.rows.start && self.key(self.hi - 1)? > end.data() {
            self.hi = self.part.rows.start;
        }
        while self.hi < self.part.rows.end && self.key(self.hi)? <= end.data() {
            self.hi += 1;
        }
        Ok(self.hi)
    }
}
