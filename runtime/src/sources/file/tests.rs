use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Wake, Waker};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use levee_planner::catalog::{Encoding, Include, SourceDef, SourceFormat};
use levee_planner::plan::ObjectId;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};

use super::lines::{Records, Syntax};
use super::store::{Content, Reading};
use crate::sources::{CutRequest, DeadLetter, DriverContext, RangePoll, Share, SourceDriver, SplitInfo, SplitRange};

/// `a int4 NOT NULL, b text, file (partition), at (offset)`.
fn source(path: &Path, encode: Encoding, options: &[(&str, &str)], encode_options: &[(&str, &str)]) -> SourceDef {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    };
    let mut all = map(options);
    all.insert("path".into(), path.to_str().unwrap().into());
    all.entry("refresh.interval.sec".into()).or_insert("0.05".into());
    SourceDef {
        schema: Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int32, false),
            Field::new("b", DataType::Utf8, true),
            Field::new("file", DataType::Utf8, true),
            Field::new("at", DataType::Int64, true),
        ])),
        connector: "file".into(),
        options: all,
        format: SourceFormat::Plain,
        encode,
        encode_options: map(encode_options),
        includes: BTreeMap::from([(2, Include::Partition), (3, Include::Offset)]),
        key: Vec::new(),
        revision: 0,
    }
}

/// A driver as the coordinator uses it.
struct Running {
    driver: Arc<dyn SourceDriver>,
    splits: Vec<SplitInfo>,
    next: Vec<u64>,
    woken: Receiver<()>,
    letters: Arc<Mutex<Vec<DeadLetter>>>,
}

impl Running {
    fn start(def: &SourceDef) -> Self {
        Self::at(def, super::discover(def).unwrap(), None)
    }

    /// Restarted with what the timeline knows.
    fn at(def: &SourceDef, splits: Vec<SplitInfo>, next: Option<Vec<u64>>) -> Self {
        let (wake, woken) = channel();
        let letters: Arc<Mutex<Vec<DeadLetter>>> = Arc::default();
        let taken = Arc::clone(&letters);
        let wake = Mutex::new(wake);
        let context = DriverContext {
            id: ObjectId(1),
            name: "s".into(),
            wake: Arc::new(move || {
                let _ended = wake.lock().send(());
            }),
            dead_letters: Arc::new(move |l| taken.lock().extend(l)),
            buffer_bytes: 8 << 20,
            ..DriverContext::detached("s")
        };
        let driver = super::driver(def, context).unwrap();
        for (number, info) in (0u32..).zip(&splits) {
            driver.add_split(number, info).unwrap();
        }
        let next = next.unwrap_or_else(|| splits.iter().map(|s| s.start).collect());
        Self {
            driver,
            splits,
            next,
            woken,
            letters,
        }
    }

    fn wait(&self) {
        self.woken
            .recv_timeout(Duration::from_secs(10))
            .expect("the driver has news");
    }

    fn cut(&mut self, records: u64) -> crate::Result<Vec<SplitRange>> {
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

    /// Cuts until `records` have been cut.
    fn cut_all(&mut self, records: u64, at_once: u64) -> Vec<SplitRange> {
        let mut all = Vec::new();
        let mut seen = 0;
        while seen < records {
            let ranges = self.cut(at_once).unwrap();
            if ranges.is_empty() {
                self.wait();
            }
            seen += ranges.iter().map(SplitRange::records).sum::<u64>();
            all.extend(ranges);
        }
        assert_eq!(seen, records);
        all
    }

    /// Takes files that have appeared.
    fn take_found(&mut self) -> usize {
        loop {
            let found = self.driver.poll_splits();
            if !found.is_empty() {
                for info in &found {
                    self.driver.add_split(self.splits.len() as u32, info).unwrap();
                    self.splits.push(info.clone());
                    self.next.push(info.start);
                }
                return found.len();
            }
            self.wait();
        }
    }

    /// `a|b|file|at` of each row, the file without its directory.
    fn rows(&self, ranges: &[SplitRange], tasks: usize) -> Vec<String> {
        let mut out = Vec::new();
        for range in ranges {
            for index in 0..tasks {
                let share = Share { index, of: tasks };
                for batch in read(&self.driver, range, share, &[0, 1, 2, 3]).unwrap() {
                    let (a, b) = (
                        batch.column(0).as_primitive::<Int32Type>(),
                        batch.column(1).as_string::<i32>(),
                    );
                    let (file, at) = (
                        batch.column(2).as_string::<i32>(),
                        batch.column(3).as_primitive::<Int64Type>(),
                    );
                    for i in 0..batch.num_rows() {
                        let b = if b.is_null(i) { "∅" } else { b.value(i) };
                        let name = file.value(i).rsplit('/').next().unwrap();
                        out.push(format!("{}|{b}|{name}|{}", a.value(i), at.value(i)));
                    }
                }
            }
        }
        out
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn read(
    driver: &Arc<dyn SourceDriver>,
    range: &SplitRange,
    share: Share,
    projection: &[usize],
) -> crate::Result<Vec<RecordBatch>> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut reader = driver.open(range, share, projection)?;
    let mut batches = Vec::new();
    loop {
        match reader.poll(&waker)? {
            RangePoll::Ready(delta) => batches.push(delta.batch),
            RangePoll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
            RangePoll::End => return Ok(batches),
        }
    }
}

#[test]
fn json_lines_of_several_files_are_read_each_once_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("1.json", "{\"a\":1,\"b\":\"x\"}\n\n{\"a\":2}\r\n\n \n");
    fs::create_dir(dir.path().join("sub")).unwrap();
    write("sub/2.json", "\u{feff}{\"a\":3}\n{\"a\":\n{\"a\":4}");
    write("_hidden.json", "{\"a\":9}");
    write("half.json.tmp", "{\"a\":9}");
    write("other.txt", "{\"a\":9}");
    write("empty.json", "");
    let def = source(
        dir.path(),
        Encoding::Json,
        &[("match_pattern", "*.json"), ("order", "path")],
        &[],
    );
    let mut running = Running::start(&def);
    let ranges = running.cut_all(5, 100);
    let expected = ["1|x|1.json|0", "2|∅|1.json|17", "3|∅|2.json|3", "4|∅|2.json|17"];
    for tasks in 1..4 {
        running.letters.lock().clear();
        assert_eq!(running.rows(&ranges, tasks), expected);
        let letters = running.letters.lock();
        assert_eq!(letters.len(), 1, "each record is decoded by one task");
        assert_eq!(
            (letters[0].split, letters[0].offset, letters[0].value.as_deref()),
            (1, 11, Some(b"{\"a\":".as_slice()))
        );
        assert_eq!(letters[0].reason, "invalid JSON: it ends where a value is expected");
    }
    assert!(!running.driver.finished(&running.next));
    // Blank lines are cut as well, and hold nothing.
    let mut all = ranges.clone();
    while running.next != [29, 24] {
        let more = running.cut(100).unwrap();
        if more.is_empty() {
            running.wait();
        }
        all.extend(more);
    }
    assert_eq!(running.rows(&all, 2), expected);
    // A new file.
    write("3.json", "{\"a\":5}\n");
    assert_eq!(running.take_found(), 1);
    let later = running.cut_all(1, 100);
    assert_eq!(running.rows(&later, 1), ["5|∅|3.json|0"]);
    assert!(running.driver.poll_splits().is_empty());
    assert_eq!(running.driver.status().ends, [Some(29), Some(24), Some(8)]);
    // The same files give the same rows to a process that only knows the timeline.
    let again = Running::at(&def, running.splits.clone(), Some(running.next.clone()));
    assert_eq!(again.rows(&ranges, 2), expected);
}

#[test]
fn a_file_that_changes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "1,x\n2,y\n").unwrap();
    let def = source(dir.path(), Encoding::Csv, &[], &[]);
    let mut running = Running::start(&def);
    let ranges = running.cut_all(2, 100);
    fs::write(&path, "1,x\n2,y\n3,z\n").unwrap();
    let error = read(&running.driver, &ranges[0], Share::ALL, &[0]).unwrap_err();
    let message = format!("file \"{}\" has changed since it was taken", path.display());
    assert_eq!(error.to_string(), message);
    loop {
        if let Some(told) = running.driver.status().error {
            assert_eq!(told, format!("{message}; the change is not read"));
            break;
        }
        let _news = running.woken.recv_timeout(Duration::from_millis(20));
    }
    // One that was not read to its end cannot be cut any further.
    let mut fresh = Running::at(&def, running.splits.clone(), None);
    let error = loop {
        match fresh.cut(100) {
            Ok(ranges) => assert_eq!(ranges, []),
            Err(error) => break error,
        }
        fresh.wait();
    };
    assert_eq!(error.to_string(), message);
    fs::remove_file(&path).unwrap();
    let gone = Running::at(&def, running.splits.clone(), None);
    let error = read(&gone.driver, &ranges[0], Share::ALL, &[0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("file \"{}\" no longer exists", path.display())
    );
}

#[test]
fn the_place_must_exist_and_one_file_ends() {
    let dir = tempfile::tempdir().unwrap();
    let def = source(&dir.path().join("nowhere"), Encoding::Csv, &[], &[]);
    let error = super::discover(&def).unwrap_err();
    assert!(error.to_string().ends_with("nowhere\" does not exist"), "{error}");
    let path = dir.path().join("one.csv");
    fs::write(&path, "a;b\n1;'x;\ny'\n2;NA").unwrap();
    let options = [("header", "true"), ("delimiter", ";"), ("quote", "'"), ("null", "NA")];
    let mut running = Running::start(&source(&path, Encoding::Csv, &[], &options));
    let ranges = running.cut_all(2, 1);
    assert_eq!(running.rows(&ranges, 2), ["1|x;\ny|one.csv|4", "2|∅|one.csv|13"]);
    loop {
        assert_eq!(running.cut(1).unwrap(), []);
        if running.driver.finished(&running.next) {
            break;
        }
        running.wait();
    }
}

/// A long CSV with quoted line breaks everywhere: however it is cut and shared, plain or packed, after a restart in the middle, the rows are
/// the same.
#[test]
fn any_cut_gives_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let (mut text, mut expected) = (String::from("a,b\n"), Vec::new());
    for a in 0..30_000 {
        let words: Vec<&str> = (0..rng.random_range(0..4))
            .map(|_| ["\n", "\r\n", "\"\"", "ab", ",", "\n\n", "é"][rng.random_range(0..7)])
            .collect();
        let at = text.len();
        text.push_str(&format!("{a},\"{}\"\n", words.concat()));
        if rng.random_bool(0.05) {
            text.push('\n');
        }
        let b = words.concat().replace("\"\"", "\"");
        expected.push(format!("{a}|{b}|FILE|{at}"));
    }
    let expect = |name: &str| -> Vec<String> { expected.iter().map(|e| e.replace("FILE", name)).collect() };
    let plain = dir.path().join("plain.csv");
    fs::write(&plain, &text).unwrap();
    let packed = dir.path().join("packed.csv.gz");
    let mut encoder = flate2::write::GzEncoder::new(fs::File::create(&packed).unwrap(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
    for (path, name) in [(&plain, "plain.csv"), (&packed, "packed.csv.gz")] {
        let def = source(path, Encoding::Csv, &[], &[("header", "true")]);
        let mut running = Running::start(&def);
        let ranges = running.cut_all(30_000, 5_000);
        assert!(ranges.len() >= 4, "{}", ranges.len());
        for tasks in [1, 3] {
            assert_eq!(running.rows(&ranges, tasks), expect(name), "{name} {tasks}");
        }
        let whole = ranges
            .iter()
            .skip(1)
            .fold(ranges[0], |all, r| all.join(r).expect("they follow each other"));
        assert_eq!(running.rows(&[whole], 2), expect(name), "{name} joined");
        let mut resumed = Running::at(&def, running.splits.clone(), Some(vec![ranges[1].to]));
        let rest: u64 = ranges[2..].iter().map(SplitRange::records).sum();
        let mut all = ranges[..2].to_vec();
        all.extend(resumed.cut_all(rest, 100_000));
        assert_eq!(resumed.rows(&all, 1), expect(name), "{name} resumed");
        assert!(running.letters.lock().is_empty());
        let sample = running.driver.sample(10).unwrap();
        assert_eq!(running.rows(&sample, 1)[..10], expect(name)[..10]);
    }
}

struct Bytes(Vec<u8>, usize);

impl Content for Bytes {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Reading<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buffer.len()).min(self.1);
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// Record boundaries do not depend on where reads end, and agree with a slow reader's.
#[test]
fn records_do_not_depend_on_reads() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
    for round in 0..300 {
        let escape = [b'"', b'\\'][round % 2];
        let text: Vec<u8> = (0..rng.random_range(0..60))
            .map(|_| b"ab\"\\\n\r,"[rng.random_range(0..7)])
            .collect();
        for syntax in [Syntax::Lines, Syntax::Csv { quote: b'"', escape }] {
            let read = |step: usize, max: usize, from: u64| {
                let content = Arc::new(Bytes(text.clone(), step));
                let mut records = Records::new(content, "f", syntax, false, from, u64::MAX);
                let mut out = Vec::new();
                let mut cuts = Vec::new();
                while records.advance(max).map_err(|t| t.into_error()).unwrap() {
                    let found = records.spans().iter();
                    out.extend(found.map(|s| (records.offset(*s), records.bytes(*s).to_vec())));
                    cuts.push(records.position());
                }
                (out, cuts)
            };
            let (whole, _) = read(usize::MAX, usize::MAX, 0);
            assert_eq!(
                whole,
                slow_records(&text, syntax),
                "{:?}",
                String::from_utf8_lossy(&text)
            );
            let (pieces, cuts) = read(1 + round % 5, 1 + round % 3, 0);
            assert_eq!(pieces, whole);
            for cut in cuts {
                let rest: Vec<_> = whole.iter().filter(|(at, _)| *at >= cut).cloned().collect();
                assert_eq!(read(7, 2, cut).0, rest);
            }
        }
    }
}

/// Byte by byte.
fn slow_records(text: &[u8], syntax: Syntax) -> Vec<(u64, Vec<u8>)> {
    let (mut out, mut start, mut inside, mut i) = (Vec::new(), 0, false, 0);
    let mut put = |start: usize, end: usize| {
        let line = &text[start..end];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let blank = match syntax {
            Syntax::Lines => line.iter().all(u8::is_ascii_whitespace),
            Syntax::Csv { .. } => line.is_empty(),
        };
        if !blank {
            out.push((start as u64, line.to_vec()));
        }
    };
    while i < text.len() {
        if let Syntax::Csv { quote, escape } = syntax {
            if inside && escape != quote && text[i] == escape {
                if text.get(i + 1).is_some_and(|n| *n == quote || *n == escape) {
                    i += 1;
                }
            } else if text[i] == quote {
                inside = !inside;
            }
        }
        i += 1;
        if text[i - 1] == b'\n' && !inside {
            put(start, i);
            start = i;
        }
    }
    if start < text.len() {
        put(start, text.len());
    }
    out
}

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>, group_rows: usize) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(parquet::basic::Compression::SNAPPY)
        .build();
    let file = fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn parquet_rows_are_read_from_row_groups() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let a: Int64Array = (0..1000_i64).map(|i| if i == 700 { i64::MAX } else { i }).collect();
    let b: StringArray = (0..1000).map(|i| (i % 3 > 0).then(|| format!("b{i}"))).collect();
    write_parquet(
        &path,
        vec![
            ("B", Arc::new(b)),
            ("a", Arc::new(a)),
            ("unread", Arc::new(Int32Array::from(vec![1; 1000]))),
        ],
        300,
    );
    let expected: Vec<String> = (0..1000)
        .filter(|i| *i != 700)
        .map(|i| {
            let b = if i % 3 > 0 { format!("b{i}") } else { "∅".into() };
            format!("{i}|{b}|x.parquet|{i}")
        })
        .collect();
    let def = source(dir.path(), Encoding::Parquet, &[], &[]);
    let mut running = Running::start(&def);
    assert_eq!(running.driver.present_ends(), [Some(1000)]);
    let ranges = running.cut_all(1000, 300);
    assert_eq!(ranges.iter().map(|r| r.to).collect::<Vec<_>>(), [300, 600, 900, 1000]);
    for tasks in [1, 2, 7] {
        running.letters.lock().clear();
        assert_eq!(running.rows(&ranges, tasks), expected);
        let letters = running.letters.lock();
        assert_eq!(letters.len(), 1);
        assert_eq!(
            (letters[0].offset, letters[0].reason.as_str()),
            (700, "column \"a\": value out of range for type integer")
        );
    }
    // The broken row is missing whatever columns are read.
    let rows: usize = ranges
        .iter()
        .flat_map(|r| read(&running.driver, r, Share::ALL, &[]).unwrap())
        .map(|b| b.num_rows())
        .sum();
    assert_eq!(rows, 999);
    let mut resumed = Running::at(&def, running.splits.clone(), Some(vec![450]));
    let rest = resumed.cut_all(550, 10_000);
    assert_eq!(resumed.rows(&rest, 2), expected[450..]);
}

#[test]
fn parquet_files_that_do_not_fit_stop_the_source() {
    let cut = |write: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        let def = source(dir.path(), Encoding::Parquet, &[], &[]);
        let mut running = Running::start(&def);
        assert_eq!(running.cut(10).unwrap(), []);
        write(&dir.path().join("x.parquet"));
        assert_eq!(running.take_found(), 1);
        // A source made now says so at once.
        let at_create = super::discover(&def).unwrap_err().to_string();
        loop {
            match running.cut(10) {
                Ok(ranges) => assert_eq!(ranges, []),
                Err(error) => {
                    assert_eq!(error.to_string(), at_create);
                    return at_create;
                }
            }
            running.wait();
        }
    };
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let wrong = cut(&|path| write_parquet(path, vec![("a", Arc::clone(&text))], 10));
    assert!(
        wrong.ends_with("column \"a\" is of type Utf8 and cannot become integer"),
        "{wrong}"
    );
    let lacking = cut(&|path| write_parquet(path, vec![("b", Arc::clone(&text))], 10));
    assert!(
        lacking.ends_with("there is no column \"a\", which is NOT NULL"),
        "{lacking}"
    );
    let garbage = cut(&|path| fs::write(path, "nothing of the kind").unwrap());
    assert!(garbage.contains("is not readable Parquet"), "{garbage}");
}
