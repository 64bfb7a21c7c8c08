//! Person events: somebody who sells and bids.

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Schema};

use super::columns::{EventColumns, Ints, Texts};
use super::rng::Rng;
use super::timeline::{Clock, micros, person_id};
use super::{int, text, time};
use crate::{Result, RuntimeError};

const AVERAGE_BYTES: usize = 200;

const FIRST_NAMES: [&str; 11] = [
    "peter", "paul", "luke", "john", "saul", "vicky", "kate", "julie", "sarah", "deiter", "walter",
];
const LAST_NAMES: [&str; 9] = [
    "shultz", "abrams", "spencer", "white", "bartels", "walton", "smith", "jones", "noris",
];
const CITIES: [&str; 10] = [
    "phoenix",
    "los angeles",
    "san francisco",
    "boise",
    "portland",
    "bend",
    "redmond",
    "seattle",
    "kent",
    "cheyenne",
];
const STATES: [&str; 6] = ["az", "ca", "id", "or", "wa", "wy"];

pub(super) fn schema() -> Schema {
    let fields: Vec<Field> = vec![
        int("id"),
        text("name"),
        text("email_address"),
        text("credit_card"),
        text("city"),
        text("state"),
        time("date_time"),
        text("extra"),
    ];
    Schema::new(fields)
}

pub(super) struct Persons {
    id: Ints,
    name: Texts,
    email_address: Texts,
    credit_card: Texts,
    city: Texts,
    state: Texts,
    date_time: Ints,
    extra: Texts,
    drawn: bool,
}

impl EventColumns for Persons {
    const COLUMNS: usize = 8;

    fn new(wanted: &[bool], rows: usize) -> Self {
        Self {
            id: Ints::new(wanted[0], rows),
            name: Texts::new(wanted[1], rows),
            email_address: Texts::new(wanted[2], rows),
            credit_card: Texts::new(wanted[3], rows),
            city: Texts::new(wanted[4], rows),
            state: Texts::new(wanted[5], rows),
            date_time: Ints::new(wanted[6], rows),
            extra: Texts::new(wanted[7], rows),
            drawn: wanted[1..6].contains(&true) || wanted[7],
        }
    }

    #[inline]
    fn push(&mut self, number: u64, seed: u64, clock: &Clock) {
        self.id.push(person_id(number));
        if self.date_time.wanted {
            self.date_time.push(micros(clock.ms(number)));
        }
        if self.drawn {
            self.push_drawn(&mut Rng::new(seed));
        }
    }

    fn take(&mut self, index: usize) -> Result<ArrayRef> {
        match index {
            0 => Ok(self.id.take_ints()),
            1 => self.name.take(),
            2 => self.email_address.take(),
            3 => self.credit_card.take(),
            4 => self.city.take(),
            5 => self.state.take(),
            6 => Ok(self.date_time.take_times()),
            7 => self.extra.take(),
            _ => Err(RuntimeError::internal(format!("person has no column {index}"))),
        }
    }
}

impl Persons {
    fn push_drawn(&mut self, rng: &mut Rng) {
        let first = choose(&FIRST_NAMES, rng);
        let last = choose(&LAST_NAMES, rng);
        self.name.push(&[first, " ", last]);
        self.email_address.push_with(|out| {
            rng.letters(7, out);
            out.push(b'@');
            rng.letters(5, out);
            out.extend_from_slice(b".com");
        });
        self.credit_card.push_with(|out| {
            for group in 0..4 {
                if group > 0 {
                    out.push(b' ');
                }
                let digits = rng.below_u32(10_000);
                out.extend([1000, 100, 10, 1].map(|unit| b'0' + (digits / unit % 10) as u8));
            }
        });
        let city = choose(&CITIES, rng);
        self.city.push(&[city]);
        let state = choose(&STATES, rng);
        self.state.push(&[state]);
        if self.extra.wanted {
            let email_len = 7 + 1 + 5 + 4;
            let card_len = 19;
            let size = 8 + first.len() + 1 + last.len() + email_len + card_len + city.len() + state.len();
            let len = rng.extra_len(size, AVERAGE_BYTES);
            self.extra.push_letters(rng, len);
        }
    }
}

fn choose(list: &[&'static str], rng: &mut Rng) -> &'static str {
    list[rng.below_u32(list.len() as u32) as usize]
}
