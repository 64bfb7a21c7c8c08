//! Bid events: an offer for an item.

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Schema};

use super::columns::{CHANNEL_URLS, EventColumns, HOT_CHANNEL_URLS, Ints, Texts};
use super::rng::Rng;
use super::timeline::{Clock, bid_auction, bidder, micros};
use super::{int, text, time};
use crate::{Result, RuntimeError};

const AVERAGE_BYTES: usize = 100;

pub(super) fn schema() -> Schema {
    let fields: Vec<Field> = vec![
        int("auction"),
        int("bidder"),
        int("price"),
        text("channel"),
        text("url"),
        time("date_time"),
        text("extra"),
    ];
    Schema::new(fields)
}

/// How far an event's draws must go for the columns wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Nothing,
    Auction,
    Bidder,
    Price,
    Channel,
    Extra,
}

pub(super) struct Bids {
    auction: Ints,
    bidder: Ints,
    price: Ints,
    channel: Texts,
    url: Texts,
    date_time: Ints,
    extra: Texts,
    depth: Depth,
}

impl EventColumns for Bids {
    const COLUMNS: usize = 7;

    fn new(wanted: &[bool], rows: usize) -> Self {
        let depth = match *wanted {
            [.., true] => Depth::Extra,
            [_, _, _, channel, url, ..] if channel || url => Depth::Channel,
            [_, _, true, ..] => Depth::Price,
            [_, true, ..] => Depth::Bidder,
            [true, ..] => Depth::Auction,
            _ => Depth::Nothing,
        };
        Self {
            auction: Ints::new(wanted[0], rows),
            bidder: Ints::new(wanted[1], rows),
            price: Ints::new(wanted[2], rows),
            channel: Texts::new(wanted[3], rows),
            url: Texts::new(wanted[4], rows),
            date_time: Ints::new(wanted[5], rows),
            extra: Texts::new(wanted[6], rows),
            depth,
        }
    }

    #[inline]
    fn push(&mut self, number: u64, seed: u64, clock: &Clock) {
        if self.date_time.wanted {
            self.date_time.push(micros(clock.ms(number)));
        }
        if self.depth > Depth::Nothing {
            self.push_drawn(number, &mut Rng::new(seed));
        }
    }

    fn take(&mut self, index: usize) -> Result<ArrayRef> {
        match index {
            0 => Ok(self.auction.take_ints()),
            1 => Ok(self.bidder.take_ints()),
            2 => Ok(self.price.take_ints()),
            3 => self.channel.take(),
            4 => self.url.take(),
            5 => Ok(self.date_time.take_times()),
            6 => self.extra.take(),
            _ => Err(RuntimeError::internal(format!("bid has no column {index}"))),
        }
    }
}

impl Bids {
    #[inline]
    fn push_drawn(&mut self, number: u64, rng: &mut Rng) {
        self.auction.push(bid_auction(number, rng));
        if self.depth == Depth::Auction {
            return;
        }
        self.bidder.push(bidder(number, rng));
        if self.depth == Depth::Bidder {
            return;
        }
        if self.price.wanted {
            self.price.push(rng.price());
        } else {
            rng.skip_price();
        }
        if self.depth == Depth::Price {
            return;
        }
        self.push_channel(rng);
        if self.depth == Depth::Extra {
            let len = rng.extra_len(4 * 8, AVERAGE_BYTES);
            self.extra.push_letters(rng, len);
        }
    }

    #[inline]
    fn push_channel(&mut self, rng: &mut Rng) {
        if rng.below(2) > 0 {
            let (channel, url) = &HOT_CHANNEL_URLS[rng.below(4) as usize];
            self.channel.push(&[channel]);
            self.url.push(&[url]);
        } else {
            let channels = &*CHANNEL_URLS;
            let (channel, url) = &channels[rng.below_u32(channels.len() as u32) as usize];
            self.channel.push(&[channel]);
            self.url.push(&[url]);
        }
    }
}
