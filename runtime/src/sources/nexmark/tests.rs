use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use nexmark::EventGenerator;
use nexmark::config::NexmarkConfig;
use nexmark::event::{Event, EventType as TheirType};

use super::timeline::{BASE_TIME_MS, MAX_EVENTS};
use super::*;
use crate::sources::RangePoll;

fn source(options: &[(&str, &str)]) -> Result<Arc<dyn SourceDriver>> {
    let options: BTreeMap<String, String> = options
        .iter()
        .map(|(k, v)| (format!("nexmark.{k}"), (*v).to_owned()))
        .collect();
    driver(&options)
}

fn read_columns(source: &dyn SourceDriver, split: u32, from: u64, to: u64, projection: &[usize]) -> RecordBatch {
    let range = SplitRange::unchecked(split, from, to);
    let mut reader = source.open(&range, Share::ALL, projection).unwrap();
    let mut batches = Vec::new();
    while let RangePoll::Ready(delta) = reader.poll(Waker::noop()).unwrap() {
        assert!(delta.num_rows() > 0 && delta.num_rows() <= 8192);
        batches.push(delta.batch);
    }
    let schema = Arc::new(source.schema().project(projection).unwrap());
    concat_batches(&schema, &batches).unwrap()
}

fn read(source: &dyn SourceDriver, split: u32, from: u64, to: u64) -> RecordBatch {
    let all: Vec<usize> = (0..source.schema().fields().len()).collect();
    read_columns(source, split, from, to, &all)
}

/// Rows as text, the crate's events the same way.
fn rows(batch: &RecordBatch) -> Vec<String> {
    let cell = |column: &dyn Array, row: usize| match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
        _ => column.as_primitive::<TimestampMicrosecondType>().value(row).to_string(),
    };
    (0..batch.num_rows())
        .map(|row| {
            batch
                .columns()
                .iter()
                .map(|c| cell(c, row))
                .collect::<Vec<_>>()
                .join("|")
        })
        .collect()
}

fn their_row(event: &Event) -> String {
    match event {
        Event::Person(p) => format!(
            "{}|{}|{}|{}|{}|{}|{}|{}",
            p.id,
            p.name,
            p.email_address,
            p.credit_card,
            p.city,
            p.state,
            p.date_time * 1000,
            p.extra
        ),
        Event::Auction(a) => format!(
            "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
            a.id,
            a.item_name,
            a.description,
            a.initial_bid,
            a.reserve,
            a.date_time * 1000,
            a.expires * 1000,
            a.seller,
            a.category,
            a.extra
        ),
        Event::Bid(b) => format!(
            "{}|{}|{}|{}|{}|{}|{}",
            b.auction,
            b.bidder,
            b.price,
            b.channel,
            b.url,
            b.date_time * 1000,
            b.extra
        ),
    }
}

fn their_config(time_rate: usize) -> NexmarkConfig {
    NexmarkConfig {
        base_time: BASE_TIME_MS,
        first_rate: time_rate,
        next_rate: time_rate,
        ..NexmarkConfig::default()
    }
}

const KINDS: [(&str, TheirType); 3] = [
    ("person", TheirType::Person),
    ("auction", TheirType::Auction),
    ("bid", TheirType::Bid),
];

/// Compares events `from..to` of all kinds, dealt to `splits`.
fn assert_equal_to_crate(time_rate: usize, splits: u64, from: u64, to: u64) {
    for (kind, their_type) in KINDS {
        let rate = time_rate.to_string();
        let splits_text = splits.to_string();
        let mut options = vec![("event.type", kind), ("splits", splits_text.as_str())];
        if time_rate != 10_000 {
            options.push(("event.time.rate", &rate));
        }
        let source = source(&options).unwrap();
        for split in 0..splits {
            let theirs: Vec<String> = EventGenerator::new(their_config(time_rate))
                .with_offset(from + split)
                .with_step(splits)
                .take(((to - from) / splits) as usize)
                .filter(|event| event.event_type() == their_type)
                .map(|event| their_row(&event))
                .collect();
            let ours = rows(&read(&*source, split as u32, from / splits, to / splits));
            assert_eq!(ours.len(), theirs.len(), "{kind} split {split}");
            for (our, their) in ours.iter().zip(&theirs) {
                assert_eq!(our, their, "{kind} split {split}");
            }
        }
    }
}

#[test]
fn rows_equal_the_nexmark_crate() {
    assert_equal_to_crate(10_000, 1, 0, 60_000);
    assert_equal_to_crate(100_000, 1, 2_900_000, 2_930_000);
    assert_equal_to_crate(100_000, 4, 0, 40_000);
    assert_equal_to_crate(7, 3, 300_000, 303_000);
    let last_in_floats = (1 << 24) - 1_666;
    assert_equal_to_crate(100_000, 2, last_in_floats - 10_000, last_in_floats);
}

#[test]
fn times_never_fall_where_floats_end() {
    for rate in [1, 3, 7, 10_000, 100_000, 999_999_999] {
        let clock = Clock::new(rate);
        let boundary = 1 << 24;
        let times: Vec<u64> = (boundary - 3000..boundary + 3000).map(|n| clock.ms(n)).collect();
        assert!(times.is_sorted(), "rate {rate}");
    }
    let clock = Clock::new(1_000_000);
    assert_eq!(clock.ms(MAX_EVENTS) - BASE_TIME_MS, 8_796_093_022);
    let slowest = Clock::new(1);
    assert!(i64::try_from(slowest.ms(MAX_EVENTS + 1666) * 1000).is_ok());
}

#[test]
fn a_range_reads_the_same_in_pieces_and_in_any_projection() {
    for (kind, _) in KINDS {
        let source = source(&[("event.type", kind), ("splits", "3"), ("seed", "42")]).unwrap();
        let whole = read(&*source, 1, 1_000, 31_000);
        let mut pieces = Vec::new();
        for from in (1_000..31_000).step_by(777) {
            pieces.push(read(&*source, 1, from, (from + 777).min(31_000)));
        }
        assert_eq!(concat_batches(&source.schema(), &pieces).unwrap(), whole, "{kind}");
        let columns = source.schema().fields().len();
        for subset in 1_u32..1 << columns {
            let projection: Vec<usize> = (0..columns).rev().filter(|c| subset & (1 << c) != 0).collect();
            let part = read_columns(&*source, 1, 1_000, 2_000, &projection);
            let expected = read(&*source, 1, 1_000, 2_000).project(&projection).unwrap();
            assert_eq!(part, expected, "{kind} {projection:?}");
        }
        let rows = read_columns(&*source, 1, 1_000, 31_000, &[]).num_rows();
        assert_eq!(rows, whole.num_rows(), "{kind}");
        let twice = read_columns(&*source, 1, 1_000, 2_000, &[0, 1, 0]);
        assert_eq!(twice.column(0), twice.column(2));
    }
}

#[test]
fn splits_that_hold_none_of_a_kind_are_empty() {
    let source = source(&[("event.type", "person"), ("splits", "50"), ("event.limit", "5000")]).unwrap();
    assert_eq!(read(&*source, 0, 0, 100).num_rows(), 100);
    assert_eq!(read(&*source, 7, 0, 100).num_rows(), 0);
}

#[test]
fn another_seed_gives_other_rows() {
    let with = |seed| read(&*source(&[("event.type", "bid"), ("seed", seed)]).unwrap(), 0, 0, 1_000);
    assert_eq!(with("0"), with("0"));
    assert_ne!(with("0"), with("1"));
    assert_ne!(with("1"), with("2"));
}

/// How far each of `splits` splits may be cut from its beginning.
fn available(source: &Arc<dyn SourceDriver>, splits: u32, created_us: i64, now_us: i64) -> Vec<u64> {
    let request = CutRequest {
        created_us,
        now_us,
        next: &vec![0; splits as usize],
        records: u64::MAX,
    };
    let ranges = source.cut(&request).unwrap();
    (0..splits)
        .map(|split| ranges.iter().find(|r| r.split == split).map_or(0, |r| r.to))
        .collect()
}

#[test]
fn what_is_available_follows_rate_and_limit() {
    let limited = source(&[("event.type", "bid"), ("splits", "4"), ("event.limit", "10")]).unwrap();
    assert_eq!(available(&limited, 4, 0, 0), [3, 3, 2, 2]);
    assert!(limited.finished(&[3, 3, 2, 2]));
    assert!(!limited.finished(&[3, 3, 2, 1]));

    let paced = source(&[
        ("event.type", "bid"),
        ("splits", "4"),
        ("event.limit", "100"),
        ("event.rate", "20"),
    ])
    .unwrap();
    let created_us = 1_000_000;
    assert_eq!(available(&paced, 4, created_us, 0), [0, 0, 0, 0]);
    assert_eq!(available(&paced, 4, created_us, created_us + 499_999), [3, 2, 2, 2]);
    assert_eq!(
        available(&paced, 4, created_us, created_us + 60_000_000),
        [25, 25, 25, 25]
    );
    assert_eq!(available(&paced, 4, i64::MIN, i64::MAX), [25, 25, 25, 25]);

    let endless = source(&[("event.type", "bid"), ("splits", "1")]).unwrap();
    assert_eq!(available(&endless, 1, 0, 0), [MAX_EVENTS]);
    assert!(!endless.finished(&[3_000_000]));
}

#[test]
fn bad_options_are_refused() {
    let refused = |options: &[(&str, &str)]| match source(options) {
        Err(RuntimeError::User { code, message, .. }) => format!("{code} {message}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted {options:?}"),
    };
    let bid = ("event.type", "bid");
    assert_eq!(refused(&[]), "22023 option \"nexmark.event.type\" is missing");
    assert_eq!(
        refused(&[("event.type", "sale")]),
        "22023 invalid value for \"nexmark.event.type\": \"sale\""
    );
    assert_eq!(
        refused(&[bid, ("event.rat", "1")]),
        "22023 unknown option \"nexmark.event.rat\" for connector \"nexmark\""
    );
    for (name, value) in [
        ("splits", "0"),
        ("splits", "1025"),
        ("event.limit", "-1"),
        ("event.rate", "1e6"),
        ("event.time.rate", "0"),
        ("seed", "x"),
    ] {
        assert!(
            refused(&[bid, (name, value)]).starts_with("22023 invalid value"),
            "{name} {value}"
        );
    }
}

#[test]
fn ranges_outside_the_source_are_refused() {
    let source = source(&[("event.type", "bid"), ("splits", "2"), ("event.limit", "100")]).unwrap();
    for (split, from, to) in [(2, 0, 1), (0, 0, 51), (0, 5, 4)] {
        let range = SplitRange::unchecked(split, from, to);
        assert!(source.open(&range, Share::ALL, &[0]).is_err());
    }
    let range = SplitRange::unchecked(0, 0, 50);
    assert!(source.open(&range, Share::ALL, &[7]).is_err());
}
