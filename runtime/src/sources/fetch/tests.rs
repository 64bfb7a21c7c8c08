//! The fetching driver over logs in memory that grow, have gaps, lose their heads and go away for a while.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Instant;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use levee_planner::catalog::{Encoding, Include, SourceFormat};

use super::*;
use crate::sources::{DeadLetter, RangePoll};

/// Logs that a test writes to.
#[derive(Default)]
struct Logs {
    splits: Vec<BTreeMap<u64, Vec<u8>>>,
    /// Offset of the oldest record.
    heads: Vec<u64>,
    down: bool,
    fetched: usize,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Logs>>);

impl Memory {
    fn new(splits: usize) -> Self {
        let memory = Self::default();
        (0..splits).for_each(|_| memory.add_split());
        memory
    }

    fn add_split(&self) {
        let mut logs = self.0.lock();
        logs.splits.push(BTreeMap::new());
        logs.heads.push(0);
    }

    fn write(&self, split: usize, offset: u64, text: &str) {
        self.0.lock().splits[split].insert(offset, text.as_bytes().to_vec());
    }

    /// Rows `{"n": offset}` at these offsets.
    fn rows(&self, split: usize, offsets: impl IntoIterator<Item = u64>) {
        offsets
            .into_iter()
            .for_each(|o| self.write(split, o, &format!("{{\"n\": {o}}}")));
    }

    fn infos(&self) -> Vec<SplitInfo> {
        let count = self.0.lock().splits.len();
        let info = |i: usize| SplitInfo {
            name: i.to_string(),
            start: 0,
            meta: Vec::new(),
        };
        (0..count).map(info).collect()
    }

    fn up(&self) -> Result<(), FetchError> {
        if self.0.lock().down {
            return Err(FetchError::Retry("the broker is down".to_owned()));
        }
        Ok(())
    }
}

struct Following {
    memory: Memory,
    next: Vec<u64>,
}

impl Connector for Memory {
    fn lane(&self) -> u64 {
        10
    }

    fn describe(&self, split: &SplitInfo) -> String {
        format!("log {}", split.name)
    }

    fn follow(&self) -> Result<Box<dyn Follower>, FetchError> {
        Ok(Box::new(Following {
            memory: self.clone(),
            next: Vec::new(),
        }))
    }

    fn fetcher(&self) -> Result<Box<dyn Fetcher>, FetchError> {
        Ok(Box::new(self.clone()))
    }

    fn bounds(&self, splits: &[SplitInfo]) -> Result<Vec<(u64, u64)>, FetchError> {
        let logs = self.0.lock();
        let end = |i: usize| logs.splits[i].last_key_value().map_or(logs.heads[i], |(o, _)| o + 1);
        Ok((0..splits.len()).map(|i| (logs.heads[i], end(i))).collect())
    }
}

fn record(offset: u64, value: &[u8]) -> RawRecord<'_> {
    RawRecord {
        offset,
        timestamp_us: Some(offset as i64),
        key: None,
        value: Some(value),
        headers: &[],
    }
}

impl Follower for Following {
    fn splits(&mut self) -> Result<Vec<SplitInfo>, FetchError> {
        self.memory.up()?;
        Ok(self.memory.infos())
    }

    fn add(&mut self, split: u32, _info: &SplitInfo, from: u64) -> Result<(), FetchError> {
        assert_eq!(split as usize, self.next.len());
        self.next.push(from);
        Ok(())
    }

    fn poll(&mut self, wait: Duration, take: &mut dyn FnMut(u32, &RawRecord<'_>) -> bool) -> Result<(), FetchError> {
        self.memory.up()?;
        let mut any = false;
        for (split, next) in self.next.iter_mut().enumerate() {
            let logs = self.memory.0.lock();
            if *next < logs.heads[split] {
                return Err(FetchError::Lost(format!("log {split} begins at {}", logs.heads[split])));
            }
            for (offset, value) in logs.splits[split].range(*next..) {
                any = true;
                *next = offset + 1;
                if !take(split as u32, &record(*offset, value)) {
                    return Ok(());
                }
            }
        }
        if !any {
            std::thread::park_timeout(wait.min(Duration::from_millis(5)));
        }
        Ok(())
    }

    fn ends(&mut self) -> Vec<(u32, u64)> {
        Vec::new()
    }
}

impl Fetcher for Memory {
    fn fetch(
        &mut self,
        _info: &SplitInfo,
        range: &SplitRange,
        expected: Option<u64>,
        take: &mut dyn FnMut(&RawRecord<'_>),
    ) -> Result<(), FetchError> {
        self.up()?;
        let mut logs = self.0.lock();
        logs.fetched += 1;
        let split = range.split as usize;
        if range.from < logs.heads[split] {
            return Err(FetchError::Lost(format!("log {split} begins at {}", logs.heads[split])));
        }
        let records = logs.splits[split].range(range.from..range.to);
        for (offset, value) in records.take(expected.unwrap_or(u64::MAX) as usize) {
            take(&record(*offset, value));
        }
        Ok(())
    }

    fn end(&mut self, info: &SplitInfo) -> Result<u64, FetchError> {
        let ends = self.bounds(&self.infos())?;
        Ok(ends[info.name.parse::<usize>().unwrap()].1)
    }
}

fn def() -> SourceDef {
    let fields = vec![
        Field::new("n", DataType::Int64, true),
        Field::new("split", DataType::Int32, true),
        Field::new("offset", DataType::Int64, true),
    ];
    SourceDef {
        schema: Arc::new(Schema::new(fields)),
        connector: "memory".to_owned(),
        options: BTreeMap::new(),
        format: SourceFormat::Plain,
        encode: Encoding::Json,
        encode_options: BTreeMap::new(),
        includes: [(1, Include::Partition), (2, Include::Offset)].into(),
        key: Vec::new(),
        revision: 0,
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Bell(AtomicUsize, std::sync::OnceLock<std::thread::Thread>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        if let Some(thread) = self.1.get() {
            thread.unpark();
        }
    }
}

/// A source with what a coordinator would keep of it.
struct World {
    driver: LogDriver,
    next: Vec<u64>,
    letters: Arc<Mutex<Vec<DeadLetter>>>,
    woken: Arc<AtomicUsize>,
    compacted: Arc<Mutex<Vec<(u32, u64)>>>,
}

impl World {
    fn new(memory: &Memory, buffer_bytes: usize) -> Self {
        let letters: Arc<Mutex<Vec<DeadLetter>>> = Arc::default();
        let woken: Arc<AtomicUsize> = Arc::default();
        let compacted: Arc<Mutex<Vec<(u32, u64)>>> = Arc::default();
        let (l, w, c) = (Arc::clone(&letters), Arc::clone(&woken), Arc::clone(&compacted));
        let context = DriverContext {
            wake: Arc::new(move || {
                w.fetch_add(1, Ordering::SeqCst);
            }),
            dead_letters: Arc::new(move |found| l.lock().extend(found)),
            compacted: Arc::new(move |split, end| c.lock().push((split, end))),
            buffer_bytes,
            ..DriverContext::detached("s")
        };
        let driver = LogSource::start(&def(), Box::new(memory.clone()), context).unwrap();
        let infos = memory.infos();
        for (split, info) in (0u32..).zip(&infos) {
            driver.add_split(split, info).unwrap();
        }
        Self {
            driver,
            next: vec![0; infos.len()],
            letters,
            woken,
            compacted,
        }
    }

    fn try_cut(&mut self, records: u64) -> Result<Vec<SplitRange>> {
        let ranges = self.driver.cut(&CutRequest {
            created_us: 0,
            now_us: 0,
            next: &self.next,
            records,
        })?;
        for range in &ranges {
            assert_eq!(range.from, self.next[range.split as usize]);
            self.next[range.split as usize] = range.to;
        }
        Ok(ranges)
    }

    /// Cuts until `records` have come.
    fn cut(&mut self, records: u64) -> Vec<SplitRange> {
        let mut all: Vec<SplitRange> = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while all.iter().map(SplitRange::records).sum::<u64>() < records {
            all.extend(self.try_cut(1_000_000).unwrap());
            assert!(Instant::now() < deadline, "{} of {records} records", all.len());
            std::thread::park_timeout(Duration::from_millis(2));
        }
        all
    }

    /// (split, offset, value) of a share of a range.
    fn read(&self, range: &SplitRange, share: Share) -> Result<Vec<(i32, i64, i64)>> {
        let bell = Arc::new(Bell::default());
        bell.1.get_or_init(std::thread::current);
        let waker = Waker::from(Arc::clone(&bell));
        let mut reader = self.driver.open(range, share, &[1, 2, 0])?;
        let mut rows = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match reader.poll(&waker)? {
                RangePoll::End => return Ok(rows),
                RangePoll::Pending => {
                    assert!(Instant::now() < deadline, "never woken");
                    std::thread::park_timeout(Duration::from_secs(1));
                }
                RangePoll::Ready(delta) => {
                    let column = |i: usize| delta.batch.column(i);
                    let splits = column(0).as_primitive::<arrow::datatypes::Int32Type>();
                    let offsets = column(1).as_primitive::<Int64Type>();
                    let values = column(2).as_primitive::<Int64Type>();
                    rows.extend((0..delta.num_rows()).map(|i| (splits.value(i), offsets.value(i), values.value(i))));
                }
            }
        }
    }

    fn forget_pieces(&self) {
        self.driver.source.state.lock().cache.clear();
    }
}

fn refusal(result: Result<Vec<(i32, i64, i64)>>) -> String {
    match result {
        Err(RuntimeError::User { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_are_cut_once_and_read_by_shares() {
    let memory = Memory::new(2);
    memory.rows(0, (0..35).step_by(2));
    memory.rows(1, 5..40);
    let mut world = World::new(&memory, 8 << 20);
    let mut ranges = world.cut(18 + 35);
    memory.rows(0, 50..55);
    memory.rows(1, 40..41);
    ranges.extend(world.cut(6));
    for of in [1, 2, 3] {
        let mut all = Vec::new();
        for range in &ranges {
            for index in 0..of {
                all.extend(world.read(range, Share { index, of }).unwrap());
            }
        }
        all.sort_unstable();
        let offsets = |split: i32| -> Vec<i64> { all.iter().filter(|r| r.0 == split).map(|r| r.1).collect() };
        assert_eq!(offsets(0), (0..35).step_by(2).chain(50..55).collect::<Vec<i64>>());
        assert_eq!(offsets(1), (5..41).collect::<Vec<i64>>());
        assert!(all.iter().all(|r| r.1 == r.2));
    }
    assert!(world.woken.load(Ordering::SeqCst) > 0);
    assert_eq!(memory.0.lock().fetched, 0, "everything was in the cache");
}

#[test]
fn a_cut_that_was_not_used_is_offered_again() {
    let memory = Memory::new(1);
    memory.rows(0, 0..25);
    let mut world = World::new(&memory, 8 << 20);
    let first = world.cut(25);
    world.next = vec![0];
    memory.rows(0, 25..30);
    let again = world.cut(30);
    assert_eq!(first[0].from, again[0].from);
    assert_eq!(again.iter().map(SplitRange::records).sum::<u64>(), 30);
    let rows: usize = again.iter().map(|r| world.read(r, Share::ALL).unwrap().len()).sum();
    assert_eq!(rows, 30);
}

#[test]
fn an_epoch_takes_from_all_splits_and_not_too_much() {
    let memory = Memory::new(3);
    (0..3).for_each(|split| memory.rows(split, 0..200));
    let mut world = World::new(&memory, 8 << 20);
    world.try_cut(1).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while world
        .driver
        .source
        .state
        .lock()
        .tails
        .iter()
        .any(|t| t.next != Some(200))
    {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(2));
    }
    let ranges = world.try_cut(60).unwrap();
    assert_eq!(ranges.iter().map(|r| r.split).collect::<Vec<_>>(), [0, 1, 2]);
    let records: u64 = ranges.iter().map(SplitRange::records).sum();
    assert!((60..90).contains(&records), "{records}");
}

#[test]
fn what_fell_out_of_the_cache_is_fetched_again_and_is_the_same() {
    let memory = Memory::new(1);
    memory.rows(0, (0..100).step_by(3));
    memory.write(0, 31, "nonsense");
    let mut world = World::new(&memory, 8 << 20);
    let ranges = world.cut(35);
    let read = |world: &World, of: usize| -> Vec<Vec<(i32, i64, i64)>> {
        let shares = |range: &SplitRange| -> Vec<Vec<(i32, i64, i64)>> {
            (0..of)
                .map(|index| world.read(range, Share { index, of }).unwrap())
                .collect()
        };
        ranges.iter().flat_map(shares).collect()
    };
    let first = read(&world, 3);
    assert_eq!(world.letters.lock().len(), 1);
    world.forget_pieces();
    assert_eq!(read(&world, 3), first);
    assert!(memory.0.lock().fetched > 0);
    let letters = world.letters.lock();
    assert_eq!(letters.len(), 2, "told at every decoding");
    assert_eq!(
        (letters[0].offset, letters[0].value.as_deref()),
        (31, Some(b"nonsense".as_slice()))
    );
    assert_eq!(letters[0], letters[1]);
}

#[test]
fn the_cache_keeps_to_its_budget() {
    let memory = Memory::new(1);
    let text = format!("{{\"n\": 1, \"pad\": \"{}\"}}", "x".repeat(10_000));
    let mut world = World::new(&memory, 400_000);
    let mut offset = 0;
    for _ in 0..40 {
        for _ in 0..5 {
            memory.write(0, offset, &text);
            offset += 1;
        }
        world.cut(5);
    }
    assert!(
        world.driver.source.memory.bytes() < 500_000,
        "{}",
        world.driver.source.memory.bytes()
    );
}

#[test]
fn a_reader_that_stands_still_stops_the_follower() {
    let memory = Memory::new(1);
    let text = format!("{{\"n\": 1, \"pad\": \"{}\"}}", "x".repeat(1000));
    (0..5000).for_each(|offset| memory.write(0, offset, &text));
    let mut world = World::new(&memory, 400_000);
    world.try_cut(1).unwrap();
    std::thread::park_timeout(Duration::from_millis(300));
    let held = world.driver.source.memory.bytes();
    // One poll's worth above the budget at most.
    assert!(held < 200_000 + 2 * (1 << 20), "{held}");
    let rows: u64 = world.cut(5000).iter().map(SplitRange::records).sum();
    assert_eq!(rows, 5000);
}

#[test]
fn retention_ends_a_replay_and_a_source() {
    let memory = Memory::new(1);
    memory.rows(0, 0..20);
    let mut world = World::new(&memory, 8 << 20);
    let ranges = world.cut(20);
    memory.0.lock().heads[0] = 7;
    world.forget_pieces();
    let gone = "source \"s\": log 0 begins at 7; create the source anew to begin with what is there";
    assert_eq!(refusal(world.read(&ranges[0], Share::ALL)), gone);
    let mut late = World::new(&memory, 8 << 20);
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = loop {
        match late.try_cut(100) {
            Err(error) => break error.to_string(),
            Ok(ranges) => assert!(ranges.is_empty() && Instant::now() < deadline),
        }
        std::thread::park_timeout(Duration::from_millis(2));
    };
    assert_eq!(error, gone);
    assert_eq!(late.driver.status().error.as_deref(), Some("log 0 begins at 7"));
}

#[test]
fn compaction_ends_a_replay_but_not_a_backfill_of_keyed_changes() {
    let memory = Memory::new(1);
    memory.rows(0, 0..20);
    let mut world = World::new(&memory, 8 << 20);
    let range = world.cut(20)[0];
    memory.0.lock().splits[0].retain(|offset, _| offset % 2 == 1);
    memory.rows(0, 20..23);
    world.forget_pieces();
    let message = refusal(world.read(&range, Share::ALL));
    assert!(
        message.contains("10 of 20 records of log 0, offsets 0 to 19, are gone"),
        "{message}"
    );
    let loose = SplitRange { exact: false, ..range };
    assert_eq!(world.read(&loose, Share::ALL).unwrap().len(), 10);
    assert_eq!(*world.compacted.lock(), [(0, 23)]);
}

#[test]
fn other_records_at_the_same_offsets_are_not_taken_for_the_old_ones() {
    let memory = Memory::new(1);
    memory.rows(0, 0..5);
    let mut world = World::new(&memory, 8 << 20);
    let range = world.cut(5)[0];
    (0..5).for_each(|offset| memory.write(0, offset, "{\"n\": 9}"));
    world.forget_pieces();
    let message = refusal(world.read(&range, Share::ALL));
    assert!(message.contains("created anew"), "{message}");
}

#[test]
fn an_outage_is_waited_out() {
    let memory = Memory::new(1);
    memory.rows(0, 0..5);
    let mut world = World::new(&memory, 8 << 20);
    let range = world.cut(5)[0];
    memory.0.lock().down = true;
    world.forget_pieces();
    let deadline = Instant::now() + Duration::from_secs(20);
    while world.driver.status().error.is_none() {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut reader = world.driver.open(&range, Share::ALL, &[0]).unwrap();
    assert!(matches!(reader.poll(&waker).unwrap(), RangePoll::Pending));
    memory.0.lock().down = false;
    memory.rows(0, 5..9);
    assert_eq!(world.cut(4).iter().map(SplitRange::records).sum::<u64>(), 4);
    assert_eq!(world.read(&range, Share::ALL).unwrap().len(), 5);
    assert!(bell.0.load(Ordering::SeqCst) > 0);
    while world.driver.status().error.is_some() {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn new_splits_are_offered_until_they_are_added() {
    let memory = Memory::new(1);
    memory.rows(0, 0..1);
    let mut world = World::new(&memory, 8 << 20);
    world.cut(1);
    memory.add_split();
    memory.rows(1, 0..3);
    let deadline = Instant::now() + Duration::from_secs(20);
    while world.driver.poll_splits().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let found = world.driver.poll_splits();
    assert_eq!(found.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["1"]);
    assert!(world.try_cut(100).unwrap().is_empty(), "not in the timeline yet");
    world.driver.add_split(1, &found[0]).unwrap();
    world.next.push(0);
    assert!(world.driver.poll_splits().is_empty());
    assert_eq!(world.cut(3)[0].split, 1);
}

#[test]
fn a_sample_tells_no_letters_and_hides_none() {
    let memory = Memory::new(1);
    memory.write(0, 0, "nonsense");
    memory.rows(0, 1..4);
    let mut world = World::new(&memory, 8 << 20);
    let sample = world.driver.sample(100).unwrap();
    assert_eq!(world.read(&sample[0], Share::ALL).unwrap().len(), 3);
    assert!(world.letters.lock().is_empty());
    let range = world.cut(4)[0];
    assert_eq!((range.from, range.to), (sample[0].from, sample[0].to));
    assert_eq!(world.read(&range, Share::ALL).unwrap().len(), 3);
    assert_eq!(world.letters.lock().len(), 1);
}
