//! `percentile_cont`, `percentile_disc` and `mode`: values found by their place in the order of a group's values.
//!
//! A group's values are an ordered multiset. Each fraction has a *cursor*, the value that was found last and how many values stand in
//! front of it; a row that comes or goes in front of it changes that number. So the next result is as many values away as the place has
//! moved, which is at most as many as have changed:
//!
//! ```text
//!   2 ×1   5 ×3   7 ×1   9 ×2        n = 7, place of 0.5: 3
//!          ▲ 1 in front              + 1, + 1  →  3 in front, n = 9, place: 4, in the same 5s
//! ```
//!
//! `mode` notes the most frequent value; a group whose most frequent value becomes rarer is looked through anew.
//!
//! State: the number of values, and an entry per value. Cost per row: a probe and a comparison per fraction; per result: the changes since
//! the last one, of a group that has just been read from the tier all of its values. A group is resident as a whole while it changes.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Float64Type};
use levee_planner::plan::{AggCall, AggFunc};
use levee_planner::sql::functions::ordered_set::{OrderedSet as Kind, Place, between};

use super::super::codec::{Reader, put_i64};
use super::accumulator::{Accumulator, Failures, Rows, relocate};
use super::entries::{Entries, Multiset};
use super::values::{ValueKey, with_key};
use crate::{Result, RuntimeError};

/// Makes the state of a call.
///
/// # Errors
/// The type has no order, or the fractions cannot be read.
pub fn accumulator(call: &AggCall, data_type: &DataType, output: &DataType) -> Result<Box<dyn Accumulator>> {
    let kind = match call.func {
        AggFunc::PercentileCont => Kind::Continuous,
        AggFunc::PercentileDisc => Kind::Discrete,
        _ => Kind::Mode,
    };
    if data_type.is_nested() || kind == Kind::Continuous && *data_type != DataType::Float64 {
        return Err(RuntimeError::user(
            "0A000",
            format!("a percentile or mode of {data_type} is not supported in a materialized view"),
        ));
    }
    let descending = call.order_by.first().is_some_and(|k| k.desc);
    let wanted = Wanted {
        kind,
        descending,
        fractions: fractions(&call.constant)?,
        list: matches!(output, DataType::List(_)),
    };
    with_key!(data_type, make(data_type, wanted))
}

/// The fractions of a call; `None`: a NULL in the place of an array.
fn fractions(text: &str) -> Result<Option<Vec<Option<f64>>>> {
    let one = |text: &str| match text {
        "NULL" => Ok(None),
        number => number
            .parse::<f64>()
            .map(Some)
            .map_err(|_| RuntimeError::internal(format!("{number} is no fraction"))),
    };
    match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        Some("") => Ok(Some(Vec::new())),
        Some(items) => items.split(',').map(one).collect::<Result<_>>().map(Some),
        None if text.is_empty() => Ok(Some(Vec::new())),
        None => Ok(one(text)?.map(|f| vec![Some(f)])),
    }
}

fn make<K: ValueKey>(data_type: &DataType, wanted: Wanted) -> Result<Box<dyn Accumulator>> {
    Ok(Box::new(OrderedSet::<K> {
        values: Multiset::new(K::codec(data_type)?, i64::MAX, false),
        wanted,
        totals: Vec::new(),
        found: RefCell::new(Vec::new()),
    }))
}

/// What is asked of each group.
struct Wanted {
    kind: Kind,
    descending: bool,
    fractions: Option<Vec<Option<f64>>>,
    list: bool,
}

/// A value and how many stand in front of it, in ascending order.
#[derive(Debug, Clone)]
struct Cursor<K> {
    value: K,
    before: i64,
}

/// What is known of a group's results.
#[derive(Debug, Clone)]
struct Found<K> {
    cursors: Vec<Option<Cursor<K>>>,
    /// The mode and its number; the outer `None`: not known.
    mode: Option<Option<(K, i64)>>,
}

impl<K> Default for Found<K> {
    fn default() -> Self {
        Self {
            cursors: Vec::new(),
            mode: None,
        }
    }
}

/// The operator's groups.
struct OrderedSet<K: ValueKey> {
    values: Multiset<K>,
    wanted: Wanted,
    totals: Vec<i64>,
    /// Moves as results are asked for.
    found: RefCell<Vec<Found<K>>>,
}

impl<K: ValueKey> OrderedSet<K> {
    /// The value at a place in ascending order, with how many stand in front of it; looks from `near` on.
    fn at(&self, slot: u32, place: i64, near: Option<&Cursor<K>>) -> Option<(&K, i64)> {
        let (from, mut before) = near.map_or((None, 0), |c| (Some(&c.value), c.before));
        if place < before {
            for (value, count) in self.values.counts.iter_before(slot, from) {
                before -= count;
                if before <= place {
                    return Some((value, before));
                }
            }
            return None;
        }
        for (value, count) in self.values.counts.iter_from(slot, from) {
            if before + count > place {
                return Some((value, before));
            }
            before += count;
        }
        None
    }

    /// The values that a fraction asks for, and how far it is from the first to the second.
    fn percentile(&self, slot: u32, fraction: f64, cursor: &mut Option<Cursor<K>>) -> Option<(&K, &K, f64)> {
        let n = *self.totals.get(slot as usize)?;
        if n <= 0 {
            return None;
        }
        let (place, part) = match Place::of(self.wanted.kind, fraction, n as u64) {
            Place::At(place) => (place as i64, None),
            Place::Between(place, part) => (place as i64, Some(part)),
        };
        let ascending = |place: i64| if self.wanted.descending { n - 1 - place } else { place };
        let (first, before) = self.at(slot, ascending(place), cursor.as_ref())?;
        let here = Cursor {
            value: first.clone(),
            before,
        };
        let second = match part {
            Some(_) => self.at(slot, ascending(place + 1), Some(&here))?.0,
            None => first,
        };
        *cursor = Some(here);
        Some((first, second, part.unwrap_or(0.0)))
    }

    /// The most frequent value, the first in order of several.
    fn mode(&self, slot: u32) -> Option<(K, i64)> {
        let mut best: Option<(&K, i64)> = None;
        for (value, count) in self.values.counts.iter(slot) {
            let better = best.is_none_or(|(_, n)| count > n || self.wanted.descending && count == n);
            if better {
                best = Some((value, count));
            }
        }
        best.map(|(value, count)| (value.clone(), count))
    }

    fn modes(&self, slots: &[u32]) -> Result<ArrayRef> {
        let mut found = self.found.borrow_mut();
        for &slot in slots {
            let found = &mut found[slot as usize];
            if found.mode.is_none() {
                found.mode = Some(self.mode(slot));
            }
        }
        let values = slots.iter().map(|&slot| {
            let mode = found[slot as usize].mode.as_ref().and_then(Option::as_ref);
            mode.map(|(value, _)| value)
        });
        K::build(&self.values.codec, values.collect())
    }

    fn percentiles(&self, slots: &[u32]) -> Result<ArrayRef> {
        let no_fractions = Vec::new();
        let fractions = self.wanted.fractions.as_ref().unwrap_or(&no_fractions);
        let mut found = self.found.borrow_mut();
        let n = slots.len() * fractions.len();
        let (mut first, mut second, mut parts) = (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
        for &slot in slots {
            let cursors = &mut found[slot as usize].cursors;
            cursors.resize(fractions.len(), None);
            for (fraction, cursor) in fractions.iter().zip(cursors) {
                let pair = fraction.and_then(|f| self.percentile(slot, f, cursor));
                first.push(pair.map(|p| p.0));
                second.push(pair.map(|p| p.1));
                parts.push(pair.map_or(0.0, |p| p.2));
            }
        }
        let codec = &self.values.codec;
        let values = if self.wanted.kind == Kind::Continuous {
            let (first, second) = (K::build(codec, first)?, K::build(codec, second)?);
            let floats = |a: &ArrayRef| {
                a.as_primitive_opt::<Float64Type>()
                    .cloned()
                    .ok_or_else(|| RuntimeError::internal("a percentile of no floats"))
            };
            let (first, second) = (floats(&first)?, floats(&second)?);
            let pairs = first.iter().zip(second.iter()).zip(parts);
            let values =
                pairs.map(|((a, b), part)| a.zip(b).map(|(a, b)| if part == 0.0 { a } else { between(a, b, part) }));
            Arc::new(values.collect::<Float64Array>()) as ArrayRef
        } else {
            K::build(codec, first)?
        };
        if !self.wanted.list {
            let nothing = self.wanted.fractions.is_none();
            return if nothing {
                K::build(codec, vec![None; slots.len()])
            } else {
                Ok(values)
            };
        }
        let present = slots
            .iter()
            .map(|&s| self.wanted.fractions.is_some() && self.totals[s as usize] > 0);
        Ok(Arc::new(ListArray::try_new(
            Arc::new(Field::new_list_field(values.data_type().clone(), true)),
            OffsetBuffer::from_repeated_length(fractions.len(), slots.len()),
            values,
            Some(NullBuffer::from(present.collect::<Vec<_>>())),
        )?))
    }
}

impl<K: ValueKey> Accumulator for OrderedSet<K> {
    fn grow(&mut self, n: usize) {
        self.values.counts.grow(n);
        if self.totals.len() < n {
            self.totals.resize(n, 0);
            self.found.get_mut().resize_with(n, Found::default);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let arg = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("a percentile or mode without an argument"))?;
        let column = K::read(&self.values.codec, arg)?;
        let (counts, totals) = (&mut self.values.counts, &mut self.totals[..]);
        let (found, descending) = (self.found.get_mut(), self.wanted.descending);
        let is_mode = self.wanted.kind == Kind::Mode;
        rows.for_each(|i, slot, diff| {
            let value = K::at(&column, i);
            let (_, after) = counts.add(slot as u32, value, diff);
            totals[slot] += diff;
            let found = &mut found[slot];
            for cursor in found.cursors.iter_mut().flatten() {
                if value < cursor.value.borrow() {
                    cursor.before += diff;
                }
            }
            if !is_mode {
                return;
            }
            let Some(mode) = &mut found.mode else { return };
            let leads = match mode {
                Some((best, n)) if (*best).borrow() == value => {
                    if after < *n {
                        found.mode = None;
                    } else {
                        *n = after;
                    }
                    return;
                }
                Some((best, n)) => {
                    let earlier = (value < (*best).borrow()) != descending;
                    after > *n || after == *n && earlier
                }
                None => after > 0,
            };
            if leads {
                *mode = Some((K::own(value), after));
            }
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        if self.wanted.kind == Kind::Mode {
            self.modes(slots)
        } else {
            self.percentiles(slots)
        }
    }

    fn clear(&mut self, slot: u32) {
        self.values.counts.clear(slot);
        self.totals[slot as usize] = 0;
        self.found.get_mut()[slot as usize] = Found::default();
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        put_i64(out, self.totals[slot as usize]);
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        self.totals[slot as usize] = from.i64()?;
        self.found.get_mut()[slot as usize] = Found::default();
        Ok(())
    }

    fn entries(&mut self) -> Option<&mut dyn Entries> {
        Some(&mut self.values)
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        self.values.counts.relocate(moves, n);
        relocate(&mut self.totals, moves, n);
        relocate(self.found.get_mut(), moves, n);
    }

    fn bytes_per_slot(&self) -> usize {
        let cursors = self.wanted.fractions.as_ref().map_or(0, Vec::len);
        40 + size_of::<Found<K>>() + cursors * (size_of::<Option<Cursor<K>>>() + K::heap_bytes())
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.totals.len() * self.bytes_per_slot()
    }
}
