//! Which rows of a partition are computed again, cut into pieces.
//!
//! ```text
//!   partition    ───────────c──c───────────────────c──────────────
//!   bodies                 └────┘                 └───────┘             around changes, as far as they reach
//!   context              └┘      └┘             └┘         └┘           what those rows are computed from
//!   base       ├────────┤                                               what stands in front, from a mark on
//! ```
//!
//! Where what stands in front matters (a row number, a running sum), a body goes on behind its changes, in pieces that double, until
//! what stands in front is the same before the step and now.

use std::ops::Range;
use std::sync::Arc;

use super::super::partitions::{Entry, key_part};
use super::Marks;
use super::evaluate::{Base, Piece};
use super::shape::Shape;
use super::walk::{Both, Far, Item, Journal, Walker};
use crate::{Result, RuntimeError};

/// Rows of a piece, about.
pub const PIECE_ROWS: i64 = if cfg!(test) { 5 } else { 4096 };
/// Rows of the first piece behind a body.
const FIRST_ROWS: i64 = if cfg!(test) { 1 } else { 32 };
/// Rows between marks, about.
pub const MARK_ROWS: usize = if cfg!(test) { 3 } else { 256 };

/// A partition that the step has changed.
pub struct Job {
    /// The partition.
    pub slot: u32,
    /// Its changes.
    pub journal: Journal,
    /// Rows before and now.
    pub copies: [i64; 2],
    /// The first rows before and now, as many as are read.
    pub heads: [Vec<Item>; 2],
    /// Results over the whole partition, before and now.
    pub whole: [(usize, usize); 2],
    /// Every row is computed.
    pub all: bool,
    /// Entries whose number changed.
    changed: Vec<Item>,
    /// The first of them that no piece holds yet.
    next: usize,
    /// Where the last body ended, with what stands in front, before the step as now. Marks in front of that place know only what is now.
    settled: Option<(Entry, Base)>,
    /// Where the next one's reach begins: which one, and the place.
    reach: Option<(usize, Entry)>,
    /// The body that the last piece did not end; nothing: in front of the next change's reach.
    within: Option<Box<Body>>,
}

#[derive(Clone)]
struct Body {
    /// The first entry whose results are wanted.
    from: Entry,
    /// The first entry that they are computed from.
    context: Entry,
    /// Where the base stands; nothing: at the partition's start.
    position: Option<Entry>,
    base: [Base; 2],
    walker: Walker,
    /// Rows that are taken whether a change reaches them or not.
    budget: i64,
    /// Rows taken so at the last time.
    last_budget: i64,
}

/// How a piece ends.
pub struct Ending {
    /// Nothing stands behind the body.
    at_end: bool,
    /// The reach of the changes ended, not the piece's room.
    closed: bool,
    next: Option<Body>,
    /// Between where the next base stands and the next body, the step has changed nothing.
    quiet: bool,
}

impl Ending {
    /// Where the next base stands; nothing behind the partition's end.
    pub fn position(&self) -> Option<&Entry> {
        self.next.as_ref().and_then(|body| body.position.as_ref())
    }
}

/// What a piece is cut from.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// The window's calls.
    pub shape: &'a Shape,
    /// The partition.
    pub both: Both<'a>,
    /// Its marks.
    pub marks: Option<&'a Marks>,
    /// Far ends of distances.
    pub far: &'a Far<'a>,
}

impl Job {
    /// For a partition's changes; `changed` in their order.
    pub fn new(slot: u32, journal: Journal, changed: Vec<Item>, copies: [i64; 2]) -> Self {
        Self {
            slot,
            journal,
            copies,
            heads: [Vec::new(), Vec::new()],
            whole: [(0, 0); 2],
            all: false,
            changed,
            next: 0,
            settled: None,
            reach: None,
            within: None,
        }
    }

    /// Nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Other rows are the first ones now.
    pub fn heads_differ(&self) -> bool {
        let [old, new] = &self.heads;
        old.len() != new.len() || old.iter().zip(new).any(|(a, b)| a.entry != b.entry)
    }

    /// Where the reach of the next change begins.
    fn reach_start(&mut self, around: Around<'_>) -> Result<Option<Entry>> {
        let Some(change) = self.changed.get(self.next) else {
            return Ok(None);
        };
        if let Some((of, start)) = &self.reach
            && *of == self.next
        {
            return Ok(Some(Arc::clone(start)));
        }
        let start = around.both.back(&change.entry, &around.shape.before, around.far)?;
        self.reach = Some((self.next, Arc::clone(&start)));
        Ok(Some(start))
    }

    /// The body around the next change.
    fn begin(&mut self, around: Around<'_>) -> Result<Option<Body>> {
        let Some(mut from) = self.reach_start(around)? else {
            return Ok(None);
        };
        if self.all
            && let Some(first) = around.both.from(None).next()
        {
            from = first.entry;
        }
        let context = around.both.back(&from, &around.shape.needs_before, around.far)?;
        let (position, base) = if !around.shape.running {
            (Some(Arc::clone(&context)), Base::default())
        } else {
            let mark = around
                .marks
                .and_then(|marks| marks.range::<Entry, _>(..=&context).next_back());
            match (mark, self.settled.take()) {
                (mark, Some((place, base))) if mark.is_none_or(|(mark, _)| *mark <= place) => (Some(place), base),
                (Some((place, base)), _) => (Some(Arc::clone(place)), base.clone()),
                (None, _) => (None, Base::default()),
            }
        };
        Ok(Some(Body {
            from,
            context,
            position,
            base: [base.clone(), base],
            walker: Walker::new(true),
            budget: 0,
            last_budget: 0,
        }))
    }

    /// The next piece, its entries appended to `items`; nothing: the partition is done.
    ///
    /// # Errors
    /// Damaged entries.
    pub fn next_piece(&mut self, around: Around<'_>, items: &mut Vec<Item>) -> Result<Option<(Piece, Ending)>> {
        let body = match self.within.take() {
            Some(body) => *body,
            None => match self.begin(around)? {
                Some(body) => body,
                None => return Ok(None),
            },
        };
        let start = items.len();
        let cut = self.collect(around, body, items)?;
        let piece = Piece {
            slot: self.slot,
            items: start..items.len(),
            body: cut.body,
            base: cut.base,
            copies: self.copies,
            heads: [0..0, 0..0],
            whole: self.whole,
            advance_to: cut.advance_to,
        };
        Ok(Some((piece, cut.ending)))
    }

    fn collect(&mut self, around: Around<'_>, mut body: Body, items: &mut Vec<Item>) -> Result<Cut> {
        let shape = around.shape;
        let start = items.len();
        let position = body.position.clone();
        let mut walk = around.both.from(position.as_ref());
        let mut rows = 0;
        let mut held = walk.next();
        // In front of the body.
        while let Some(item) = held.take_if(|item| item.entry < body.from) {
            let room = rows < PIECE_ROWS || shape.unsplit || item.entry >= body.context;
            if !room && starts_group(items, start, &item, shape.grouped)? {
                body.position = Some(item.entry);
                return Ok(Cut::without_body(items.len(), body));
            }
            rows += item.rows();
            items.push(item);
            held = walk.next();
        }
        let from = items.len();
        let (mut closed, mut room_left) = (false, true);
        rows = 0;
        while let Some(item) = held.take() {
            if rows >= PIECE_ROWS && !shape.unsplit && starts_group(items, start, &item, shape.grouped)? {
                room_left = false;
            }
            if !room_left || !self.takes(around, &mut body, &item)? {
                closed = room_left;
                held = Some(item);
                break;
            }
            rows += item.rows();
            items.push(item);
            held = walk.next();
        }
        let to = items.len();
        let next = held.as_ref().map(|item| Arc::clone(&item.entry));
        // Behind it.
        if let Some(last) = items.get(to.wrapping_sub(1)).map(|i| Arc::clone(&i.entry)) {
            let mut margin = Walker::new(true);
            margin.reset(&last)?;
            while let Some(item) = held.take() {
                if !margin.takes(&item, &shape.needs_after, around.far)? {
                    break;
                }
                items.push(item);
                held = walk.next();
            }
        }
        let Some(next) = next else {
            return Ok(Cut {
                body: from..to,
                base: body.base,
                advance_to: if shape.running { items.len() } else { start },
                ending: Ending {
                    at_end: true,
                    closed: true,
                    next: None,
                    quiet: true,
                },
            });
        };
        let mut context = around.both.back(&next, &shape.needs_before, around.far)?;
        if let Some(position) = position {
            context = context.max(position);
        }
        let advance_to = start + items[start..].partition_point(|i| i.entry < context);
        let quiet = items[advance_to..to].iter().all(Item::is_same);
        let base = body.base.clone();
        body.from = next;
        body.position = Some(Arc::clone(&context));
        body.context = context;
        Ok(Cut {
            body: from..to,
            base,
            advance_to,
            ending: Ending {
                at_end: false,
                closed,
                next: Some(body),
                quiet,
            },
        })
    }

    /// Whether an entry belongs to the body.
    fn takes(&mut self, around: Around<'_>, body: &mut Body, item: &Item) -> Result<bool> {
        if let Some(change) = self.changed.get(self.next)
            && change.entry == item.entry
        {
            self.next += 1;
            body.walker.reset(&item.entry)?;
            body.budget -= item.rows();
            return Ok(true);
        }
        let reached = body.walker.takes(item, &around.shape.after, around.far)?;
        if reached || self.all || body.budget > 0 {
            body.budget -= item.rows();
            return Ok(true);
        }
        Ok(self.reach_start(around)?.is_some_and(|start| start <= item.entry))
    }

    /// Goes on behind a piece, given what stands in front of the next one's entries, before and now. Answers whether there is more.
    ///
    /// # Errors
    /// The piece did not say where to go on.
    pub fn went(&mut self, ending: Ending, base: Option<[Base; 2]>, shape: &Shape) -> Result<bool> {
        if ending.at_end {
            return Ok(false);
        }
        let mut body = ending
            .next
            .ok_or_else(|| RuntimeError::internal("a piece of a window without a next one"))?;
        let running = base.is_some();
        if let Some(base) = base {
            body.base = base;
        }
        let balanced =
            !running || ending.quiet && body.base[0] == body.base[1] && !(shape.heads > 0 && self.heads_differ());
        if ending.closed && balanced {
            self.settled = body.position.take().map(|place| (place, body.base[0].clone()));
            return Ok(self.next < self.changed.len());
        }
        if ending.closed {
            body.last_budget = (body.last_budget * 2).clamp(FIRST_ROWS, PIECE_ROWS);
            body.budget = body.last_budget;
        }
        self.within = Some(Box::new(body));
        Ok(true)
    }
}

struct Cut {
    body: Range<usize>,
    base: [Base; 2],
    advance_to: usize,
    ending: Ending,
}

impl Cut {
    /// A piece that only moves the base.
    fn without_body(end: usize, body: Body) -> Self {
        Self {
            body: end..end,
            base: body.base.clone(),
            advance_to: end,
            ending: Ending {
                at_end: false,
                closed: false,
                next: Some(body),
                quiet: false,
            },
        }
    }
}

/// A piece may end in front of the item: a group is not cut.
fn starts_group(items: &[Item], start: usize, item: &Item, grouped: bool) -> Result<bool> {
    match items[start..].last() {
        Some(last) if grouped => Ok(key_part(&last.entry)? != key_part(&item.entry)?),
        _ => Ok(true),
    }
}
