//! Nexmark: an online auction's people, auctions and bids, generated straight into Arrow columns.
//!
//! Events are numbered, and everything about an event follows from its number: in each fifty, the first is a person, the
//! next three are auctions, the rest bids; its random numbers are seeded by the number. So any range can be read again, on
//! any task, and a source of one kind steps over the others at no cost. Offset `k` of split `s` is event `k × splits + s`;
//! offsets count all events, of whichever kind a source delivers.
//!
//! With the seed at its default the rows equal those of the `nexmark` crate 0.2.0 in its default configuration (base time
//! apart, which here is fixed), up to event 16,775,549. Beyond, the crate's times, computed in 32-bit floats, fall onto ever
//! coarser steps; ours are exact.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `nexmark.event.type` | `person`, `auction` or `bid` | must be given |
//! | `nexmark.event.limit` | events of all kinds before the source ends | never |
//! | `nexmark.event.rate` | events of all kinds a second; 0: as fast as they are read | 0 |
//! | `nexmark.event.time.rate` | events of all kinds a second of event time | 10000 |
//! | `nexmark.seed` | other random numbers | 0 |
//! | `nexmark.splits` | splits, so that as many tasks can read | 4 |
//!
//! Measured by `examples/nexmark.rs`, per second of one core: 4 M events with every column of the bids, 24 M with their numbers.

mod auction;
mod bid;
mod columns;
mod person;
mod reader;
mod rng;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};

use self::reader::Reader;
use self::timeline::{Clock, MAX_EVENTS, Splits};
use super::{CutRequest, RangeReader, Share, SourceDriver, SplitInfo, SplitRange};
use crate::{Result, RuntimeError};

/// Defaults are part of what a stored source means: they never change.
const SPLITS_DEFAULT: u64 = 4;
const SPLITS_MAX: u64 = 1024;
const TIME_RATE_DEFAULT: u64 = 10_000;
const RATE_MAX: u64 = 1_000_000_000;

/// How often a rate-limited source is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Odd, so that different seeds stay different; seed 0 leaves the crate's own numbers.
const SEED_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const OPTIONS: [&str; 6] = [
    "nexmark.event.type",
    "nexmark.event.limit",
    "nexmark.event.rate",
    "nexmark.event.time.rate",
    "nexmark.seed",
    "nexmark.splits",
];

/// Kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// Somebody who sells and bids.
    Person,
    /// An item put up for sale.
    Auction,
    /// An offer for an item.
    Bid,
}

/// Columns of a kind of event.
pub fn schema(event_type: EventType) -> SchemaRef {
    Arc::new(match event_type {
        EventType::Person => person::schema(),
        EventType::Auction => auction::schema(),
        EventType::Bid => bid::schema(),
    })
}

fn int(name: &str) -> Field {
    Field::new(name, DataType::Int64, false)
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, false)
}

fn time(name: &str) -> Field {
    Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, None), false)
}

/// Makes the driver from WITH options.
///
/// # Errors
/// An unknown option, or a value out of its range (22023).
pub fn driver(options: &BTreeMap<String, String>) -> Result<Arc<dyn SourceDriver>> {
    Ok(Arc::new(nexmark(options)?))
}

/// Checks WITH options and names the splits.
///
/// # Errors
/// As [`driver`].
pub fn discover(options: &BTreeMap<String, String>) -> Result<Vec<SplitInfo>> {
    let splits = nexmark(options)?.splits.0;
    Ok((0..splits)
        .map(|split| SplitInfo {
            name: split.to_string(),
            start: 0,
            meta: Vec::new(),
        })
        .collect())
}

fn nexmark(options: &BTreeMap<String, String>) -> Result<Nexmark> {
    for name in options.keys() {
        if name != "connector" && !OPTIONS.contains(&name.as_str()) {
            return Err(RuntimeError::User {
                code: "22023",
                message: format!("unknown option \"{name}\" for connector \"nexmark\""),
                hint: Some(format!("Its options are {}.", OPTIONS.join(", "))),
            });
        }
    }
    let event_type = match options
        .get("nexmark.event.type")
        .map(|v| v.to_ascii_lowercase())
        .as_deref()
    {
        Some("person") => EventType::Person,
        Some("auction") => EventType::Auction,
        Some("bid") => EventType::Bid,
        Some(other) => {
            return Err(bad_type(format!(
                "invalid value for \"nexmark.event.type\": \"{other}\""
            )));
        }
        None => return Err(bad_type("option \"nexmark.event.type\" is missing".to_owned())),
    };
    let seed = number(options, "nexmark.seed", 0..=u64::MAX)?.unwrap_or(0);
    Ok(Nexmark {
        event_type,
        schema: schema(event_type),
        splits: Splits(number(options, "nexmark.splits", 1..=SPLITS_MAX)?.unwrap_or(SPLITS_DEFAULT)),
        limit: number(options, "nexmark.event.limit", 0..=MAX_EVENTS)?.unwrap_or(MAX_EVENTS),
        rate: number(options, "nexmark.event.rate", 0..=RATE_MAX)?.unwrap_or(0),
        clock: Clock::new(number(options, "nexmark.event.time.rate", 1..=RATE_MAX)?.unwrap_or(TIME_RATE_DEFAULT)),
        seed_mask: seed.wrapping_mul(SEED_MULTIPLIER),
    })
}

fn bad_type(message: String) -> RuntimeError {
    RuntimeError::User {
        code: "22023",
        message,
        hint: Some("It is 'person', 'auction' or 'bid'.".to_owned()),
    }
}

fn number(options: &BTreeMap<String, String>, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
    let Some(text) = options.get(name) else {
        return Ok(None);
    };
    match text.trim().parse::<u64>() {
        Ok(value) if range.contains(&value) => Ok(Some(value)),
        _ => Err(RuntimeError::User {
            code: "22023",
            message: format!("invalid value for \"{name}\": \"{text}\""),
            hint: Some(format!(
                "It is a whole number from {} to {}.",
                range.start(),
                range.end()
            )),
        }),
    }
}

struct Nexmark {
    event_type: EventType,
    schema: SchemaRef,
    splits: Splits,
    /// Events of all kinds and splits.
    limit: u64,
    /// Events of all kinds and splits a second; 0: no bound.
    rate: u64,
    clock: Clock,
    seed_mask: u64,
}

impl Nexmark {
    fn ends(&self, events: u64) -> Vec<u64> {
        (0..self.splits.0).map(|split| self.splits.len(split, events)).collect()
    }

    /// How far each split may be read now.
    fn available(&self, created_us: i64, now_us: i64) -> Vec<u64> {
        if self.rate == 0 {
            return self.ends(self.limit);
        }
        let elapsed_us = now_us.saturating_sub(created_us).max(0).unsigned_abs();
        let due = u128::from(elapsed_us) * u128::from(self.rate) / 1_000_000;
        self.ends(u64::try_from(due).map_or(self.limit, |due| due.min(self.limit)))
    }

    fn check(&self, range: &SplitRange, projection: &[usize]) -> Result<()> {
        let end = self.splits.len(u64::from(range.split), self.limit);
        if u64::from(range.split) >= self.splits.0 || range.from > range.to || range.to > end {
            return Err(RuntimeError::internal(format!(
                "nexmark has no offsets {}..{} in split {} (splits {}, limit {})",
                range.from, range.to, range.split, self.splits.0, self.limit
            )));
        }
        match projection.iter().find(|&&column| column >= self.schema.fields().len()) {
            Some(column) => Err(RuntimeError::internal(format!("nexmark source has no column {column}"))),
            None => Ok(()),
        }
    }
}

impl SourceDriver for Nexmark {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn add_split(&self, split: u32, _info: &SplitInfo) -> Result<()> {
        if u64::from(split) < self.splits.0 {
            return Ok(());
        }
        Err(RuntimeError::internal(format!("nexmark has no split {split}")))
    }

    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>> {
        let share = (request.records / request.next.len().max(1) as u64).max(1);
        let available = self.available(request.created_us, request.now_us);
        let ranges = (0u32..).zip(request.next.iter().zip(available));
        Ok(ranges
            .filter(|(_, (from, to))| *from < to)
            .map(|(split, (&from, to))| SplitRange::unchecked(split, from, to.min(from + share)))
            .collect())
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(POLL_INTERVAL)
    }

    fn finished(&self, next: &[u64]) -> bool {
        let ends = self.ends(self.limit);
        next.len() == ends.len() && next.iter().zip(&ends).all(|(offset, end)| offset >= end)
    }

    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        // A source of one kind steps over the others: of 50 events one is a person.
        let share = records.saturating_mul(50) / self.splits.0 + 50;
        let ends = self.ends(self.limit);
        Ok((0u32..)
            .zip(ends)
            .map(|(split, end)| SplitRange::unchecked(split, 0, end.min(share)))
            .collect())
    }

    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>> {
        self.check(range, projection)?;
        let (from, to) = share.part(range.from, range.to);
        let range = SplitRange { from, to, ..*range };
        Ok(match self.event_type {
            EventType::Person => Box::new(Reader::<person::Persons>::new(self, range, projection)?),
            EventType::Auction => Box::new(Reader::<auction::Auctions>::new(self, range, projection)?),
            EventType::Bid => Box::new(Reader::<bid::Bids>::new(self, range, projection)?),
        })
    }
}
