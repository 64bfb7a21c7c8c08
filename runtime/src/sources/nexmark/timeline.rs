//! Event numbers: which split holds them, which kind they are, when they happened, and which people and auctions exist then.
//!
//! ```text
//!   number    0        1  2  3     4 … 49   50       51 52 53   54 … 99
//!   kind      person   auctions    bids     person   auctions   bids
//! ```

use super::EventType;
use super::rng::Rng;

/// Events in one round of the pattern: 1 person, 3 auctions, 46 bids.
pub(super) const ROUND: u64 = 50;
const AUCTIONS_PER_ROUND: u64 = 3;
const FIRST_BID: u64 = 1 + AUCTIONS_PER_ROUND;

/// A source without a limit ends here (100 days at a million events a second), so that times and ids stay in range.
pub(super) const MAX_EVENTS: u64 = 1 << 43;

/// Time of event 0: 2015-07-15 00:00:00 UTC, as in the original generator.
pub(super) const BASE_TIME_MS: u64 = 1_436_918_400_000;

/// Below this event number times are computed in 32-bit floats as the `nexmark` crate does; from there on, where such
/// floats no longer tell event numbers apart, exactly.
const FLOAT_EVENTS: u64 = 1 << 24;

const ACTIVE_PEOPLE: u64 = 1000;
const IN_FLIGHT_AUCTIONS: u64 = 100;
const LEAD: u64 = 10;
/// One in this many people or auctions is hot.
const HOT_EVERY: u64 = 100;
const FIRST_ID: u64 = 1000;

impl EventType {
    /// Remainders modulo [`ROUND`] of this kind's event numbers.
    fn places(self) -> std::ops::Range<u64> {
        match self {
            Self::Person => 0..1,
            Self::Auction => 1..FIRST_BID,
            Self::Bid => FIRST_BID..ROUND,
        }
    }
}

/// Event times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Events a second of event time.
    rate: u64,
    delay_us: f32,
    /// Time of the last event computed in floats: later ones are not before it.
    floor_ms: u64,
}

impl Clock {
    pub(super) fn new(rate: u64) -> Self {
        let delay_us = 1_000_000_f32 / rate as f32;
        let mut clock = Self {
            rate,
            delay_us,
            floor_ms: 0,
        };
        clock.floor_ms = clock.elapsed_ms(FLOAT_EVENTS - 1);
        clock
    }

    #[inline]
    fn elapsed_ms(&self, number: u64) -> u64 {
        if number < FLOAT_EVENTS {
            ((number as u32 as f32 * self.delay_us) / 1000.0).round() as u64
        } else {
            ((number * 2000 + self.rate) / (2 * self.rate)).max(self.floor_ms)
        }
    }

    /// Milliseconds since 1970 at which the event happened.
    #[inline]
    pub(super) fn ms(&self, number: u64) -> u64 {
        BASE_TIME_MS + self.elapsed_ms(number)
    }
}

/// Microseconds since 1970 from milliseconds.
#[inline]
pub(super) fn micros(ms: u64) -> i64 {
    (ms * 1000) as i64
}

/// How event numbers are dealt to splits: offset `k` of split `s` is event `k × splits + s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Splits(pub(super) u64);

impl Splits {
    /// How many of the first `events` events are in `split`.
    pub(super) fn len(self, split: u64, events: u64) -> u64 {
        (events + self.0 - 1).saturating_sub(split) / self.0
    }

    pub(super) fn number(self, split: u64, offset: u64) -> u64 {
        offset * self.0 + split
    }
}

/// Walks the offsets of one split that hold one kind of event, without looking at the others: in a split the pattern of
/// kinds repeats every [`ROUND`] offsets.
#[derive(Debug)]
pub(super) struct Matching {
    splits: Splits,
    split: u64,
    /// Offsets within a cycle that match.
    places: Vec<u64>,
    cycle: u64,
    next: usize,
    to: u64,
}

impl Matching {
    pub(super) fn new(splits: Splits, split: u64, kind: EventType, from: u64, to: u64) -> Self {
        let places: Vec<u64> = (0..ROUND)
            .filter(|&k| kind.places().contains(&(splits.number(split, k) % ROUND)))
            .collect();
        let next = places.partition_point(|&k| k < from % ROUND);
        Self {
            splits,
            split,
            places,
            cycle: from / ROUND * ROUND,
            next,
            to,
        }
    }

    /// The next matching event's number.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.next == self.places.len() {
            if self.places.is_empty() {
                return None;
            }
            self.next = 0;
            self.cycle += ROUND;
        }
        let offset = self.cycle + self.places[self.next];
        if offset >= self.to {
            return None;
        }
        self.next += 1;
        Some(self.splits.number(self.split, offset))
    }
}

/// Id of the person event `number`, or of the last one before it.
#[inline]
pub(super) fn person_id(number: u64) -> i64 {
    (number / ROUND + FIRST_ID) as i64
}

/// Place of the last auction up to event `number`, which must not be a person.
#[inline]
fn last_auction(number: u64) -> u64 {
    let place = (number % ROUND).min(AUCTIONS_PER_ROUND) - 1;
    number / ROUND * AUCTIONS_PER_ROUND + place
}

/// Id of the auction event `number`.
#[inline]
pub(super) fn auction_id(number: u64) -> i64 {
    (last_auction(number) + FIRST_ID) as i64
}

/// Someone active at event `number`, at times someone yet to come.
#[inline]
fn any_person(number: u64, rng: &mut Rng) -> u64 {
    let people = number / ROUND + 1;
    let active = people.min(ACTIVE_PEOPLE);
    people - active + rng.below(active + LEAD)
}

/// The seller of an auction: three in four are hot.
#[inline]
pub(super) fn seller(number: u64, rng: &mut Rng) -> i64 {
    let seller = match rng.below(4) {
        0 => any_person(number, rng),
        _ => number / ROUND / HOT_EVERY * HOT_EVERY,
    };
    (seller + FIRST_ID) as i64
}

/// The bidder of a bid: three in four are hot, and not the hot seller.
#[inline]
pub(super) fn bidder(number: u64, rng: &mut Rng) -> i64 {
    let bidder = match rng.below(4) {
        0 => any_person(number, rng),
        _ => number / ROUND / HOT_EVERY * HOT_EVERY + 1,
    };
    (bidder + FIRST_ID) as i64
}

/// The auction that a bid is for: every other one is hot.
#[inline]
pub(super) fn bid_auction(number: u64, rng: &mut Rng) -> i64 {
    let last = last_auction(number);
    let auction = match rng.below(2) {
        0 => {
            let oldest = last.saturating_sub(IN_FLIGHT_AUCTIONS);
            oldest + rng.below(last - oldest + 1 + LEAD)
        }
        _ => last / HOT_EVERY * HOT_EVERY,
    };
    (auction + FIRST_ID) as i64
}

/// The event by whose time an auction opened at `number` would have as many others opened after it as are in flight.
#[inline]
pub(super) fn horizon_event(number: u64) -> u64 {
    number + IN_FLIGHT_AUCTIONS * ROUND / AUCTIONS_PER_ROUND
}
