//! Auction events: an item put up for sale.

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Schema};

use super::columns::{EventColumns, Ints, Texts};
use super::rng::Rng;
use super::timeline::{Clock, auction_id, horizon_event, micros, seller};
use super::{int, text, time};
use crate::{Result, RuntimeError};

const AVERAGE_BYTES: usize = 500;
const NAME_LEN: usize = 20;
const DESCRIPTION_LEN: usize = 100;
const FIRST_CATEGORY: u64 = 10;
const CATEGORIES: u64 = 5;

pub(super) fn schema() -> Schema {
    let fields: Vec<Field> = vec![
        int("id"),
        text("item_name"),
        text("description"),
        int("initial_bid"),
        int("reserve"),
        time("date_time"),
        time("expires"),
        int("seller"),
        int("category"),
        text("extra"),
    ];
    Schema::new(fields)
}

pub(super) struct Auctions {
    id: Ints,
    item_name: Texts,
    description: Texts,
    initial_bid: Ints,
    reserve: Ints,
    date_time: Ints,
    expires: Ints,
    seller: Ints,
    category: Ints,
    extra: Texts,
    texts_only: bool,
    drawn: bool,
}

impl EventColumns for Auctions {
    const COLUMNS: usize = 10;

    fn new(wanted: &[bool], rows: usize) -> Self {
        let after_texts = wanted[3] || wanted[4] || wanted[6..].contains(&true);
        Self {
            id: Ints::new(wanted[0], rows),
            item_name: Texts::new(wanted[1], rows),
            description: Texts::new(wanted[2], rows),
            initial_bid: Ints::new(wanted[3], rows),
            reserve: Ints::new(wanted[4], rows),
            date_time: Ints::new(wanted[5], rows),
            expires: Ints::new(wanted[6], rows),
            seller: Ints::new(wanted[7], rows),
            category: Ints::new(wanted[8], rows),
            extra: Texts::new(wanted[9], rows),
            texts_only: !after_texts,
            drawn: after_texts || wanted[1] || wanted[2],
        }
    }

    #[inline]
    fn push(&mut self, number: u64, seed: u64, clock: &Clock) {
        self.id.push(auction_id(number));
        if self.date_time.wanted {
            self.date_time.push(micros(clock.ms(number)));
        }
        if self.drawn {
            self.push_drawn(number, &mut Rng::new(seed), clock);
        }
    }

    fn take(&mut self, index: usize) -> Result<ArrayRef> {
        match index {
            0 => Ok(self.id.take_ints()),
            1 => self.item_name.take(),
            2 => self.description.take(),
            3 => Ok(self.initial_bid.take_ints()),
            4 => Ok(self.reserve.take_ints()),
            5 => Ok(self.date_time.take_times()),
            6 => Ok(self.expires.take_times()),
            7 => Ok(self.seller.take_ints()),
            8 => Ok(self.category.take_ints()),
            9 => self.extra.take(),
            _ => Err(RuntimeError::internal(format!("auction has no column {index}"))),
        }
    }
}

impl Auctions {
    fn push_drawn(&mut self, number: u64, rng: &mut Rng, clock: &Clock) {
        self.item_name.push_letters(rng, NAME_LEN);
        self.description.push_letters(rng, DESCRIPTION_LEN);
        if self.texts_only {
            return;
        }
        let initial_bid = rng.price();
        self.initial_bid.push(initial_bid);
        self.reserve.push(initial_bid + rng.price());
        let opens = clock.ms(number);
        let horizon = clock.ms(horizon_event(number)) - opens;
        let expires = opens + 1 + rng.below((2 * horizon).max(1));
        self.expires.push(micros(expires));
        self.seller.push(seller(number, rng));
        self.category.push((FIRST_CATEGORY + rng.below(CATEGORIES)) as i64);
        if self.extra.wanted {
            let size = 8 + NAME_LEN + DESCRIPTION_LEN + 5 * 8;
            let len = rng.extra_len(size, AVERAGE_BYTES);
            self.extra.push_letters(rng, len);
        }
    }
}
