//! Sources: logs of numbered records that tasks read by range.
//!
//! ```text
//!   driver ──poll_splits, cut──▶ coordinator ──timeline record, fsync──▶ regions ──open(range, share)──▶ driver
//!     ▲ fetches ahead, under a byte budget                                  every replay reads the same
//! ```
//!
//! A source's *splits* (Kafka partitions, files) are found by its driver and numbered by the timeline. The coordinator asks
//! [`SourceDriver::cut`] which ranges may enter the next epoch, and writes them down, with the number of records and a digest,
//! before anything reads them. Any task of any region reads a range then, now or again later: whatever a reader delivers is a function of
//! the range. A driver that finds a range incomplete (retention, compaction, another topic of the same name) answers with an error that
//! ends the region: a source never gives a wrong answer.
//!
//! A driver never blocks a caller: it has threads of its own, and wakes who waits.

pub mod datagen;
pub mod decode;
pub mod fetch;
pub mod file;
mod kafka;
pub mod nexmark;
pub mod replay;
pub mod versions;

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use levee_planner::catalog::SourceDef;
use levee_planner::plan::ObjectId;
use serde::{Deserialize, Serialize};

use self::versions::Versions;
use crate::memory::Governor;
use crate::{Delta, Result, RuntimeError};

/// A split as the timeline records it when it is found; its number is its place in the order of discovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitInfo {
    /// A Kafka partition's number, a file's path.
    pub name: String,
    /// Offset of the first record that belongs to the source.
    pub start: u64,
    /// What else the driver needs to find it again.
    pub meta: Vec<u8>,
}

/// What lies in a range, so that a reader knows whether it has everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeCheck {
    /// Records.
    pub records: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Wrapping sum of a hash of each record, its offset included.
    pub digest: u64,
}

impl RangeCheck {
    /// The check of two ranges together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

/// Offsets `[from, to)` of one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRange {
    /// Split number.
    pub split: u32,
    /// How often splits had been added to the source before the range was cut. Records of a later generation are newer than
    /// those of an earlier one, whatever their splits: a key that a producer now sends elsewhere keeps its order.
    pub generation: u32,
    /// First offset.
    pub from: u64,
    /// One past the last offset.
    pub to: u64,
    /// `None` if the driver can always read the range in full (it makes its records itself, or its files do not change).
    pub check: Option<RangeCheck>,
    /// Every record must be there still. Not so for a view that is built over keyed changes: what compaction took away has a newer record.
    pub exact: bool,
    /// The source's revision when the range was cut, which says how its records are decoded: see [`versions`].
    pub revision: u32,
}

impl SplitRange {
    /// A range without a check.
    pub fn unchecked(split: u32, from: u64, to: u64) -> Self {
        Self {
            split,
            generation: 0,
            from,
            to,
            check: None,
            exact: true,
            revision: 0,
        }
    }

    /// Records in the range, as far as known.
    pub fn records(&self) -> u64 {
        self.check.map_or(self.to.saturating_sub(self.from), |c| c.records)
    }

    /// This range and the one that follows it as one, if they are of one kind.
    pub fn join(&self, next: &Self) -> Option<Self> {
        let fits = self.split == next.split
            && self.to == next.from
            && self.generation == next.generation
            && self.revision == next.revision
            && self.exact == next.exact;
        let check = match (self.check, next.check) {
            (None, None) => None,
            (Some(a), Some(b)) => Some(a.and(b)),
            _ => return None,
        };
        fits.then_some(Self {
            to: next.to,
            check,
            ..*self
        })
    }
}

/// One of `of` tasks that read a range together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Task.
    pub index: usize,
    /// Tasks.
    pub of: usize,
}

impl Share {
    /// All of a range.
    pub const ALL: Self = Self { index: 0, of: 1 };

    /// The task's contiguous part of `[from, to)`.
    pub fn part(&self, from: u64, to: u64) -> (u64, u64) {
        let length = u128::from(to.saturating_sub(from));
        let at = |i: usize| from + (length * i as u128 / self.of.max(1) as u128) as u64;
        (at(self.index), at(self.index + 1))
    }
}

/// What the coordinator asks when it cuts an epoch.
#[derive(Debug, Clone, Copy)]
pub struct CutRequest<'a> {
    /// When the source was created, microseconds since 1970.
    pub created_us: i64,
    /// Now.
    pub now_us: i64,
    /// First offset of each split that is not cut yet.
    pub next: &'a [u64],
    /// Records that the epoch should take at most, about.
    pub records: u64,
}

/// How a source is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// What is wrong now, if anything: the broker cannot be reached.
    pub error: Option<String>,
    /// Per split: one past the newest record known to exist.
    pub ends: Vec<Option<u64>>,
}

/// A record that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Split.
    pub split: u32,
    /// Offset.
    pub offset: u64,
    /// Why.
    pub reason: String,
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The record's value.
    pub value: Option<Vec<u8>>,
    /// The record's own timestamp, microseconds since 1970.
    pub timestamp_us: Option<i64>,
    /// Its headers, as [`fetch::put_header`] writes them; empty if no column shows them.
    pub headers: Vec<u8>,
}

/// What a driver is given.
#[derive(Clone)]
pub struct DriverContext {
    /// The source, or the table that ingests.
    pub id: ObjectId,
    /// Its name, for messages.
    pub name: String,
    /// To be called when `cut` or `poll_splits` would answer more than the last time, or the status has changed.
    pub wake: Arc<dyn Fn() + Send + Sync>,
    /// Takes records that could not be decoded. To be called before any row of the same piece is handed out; the same letters
    /// may come again.
    pub dead_letters: Arc<dyn Fn(Vec<DeadLetter>) + Send + Sync>,
    /// Called when a range that need not be exact lacks records: of split, and the offset before which all that replace them lie.
    pub compacted: Arc<dyn Fn(u32, u64) + Send + Sync>,
    /// Where the driver says what it holds.
    pub governor: Arc<Governor>,
    /// How records are decoded.
    pub versions: Arc<Versions>,
    /// Bytes that the driver may hold: half for what it fetched ahead, half for what was cut and may be read again.
    pub buffer_bytes: usize,
}

impl DriverContext {
    /// For tests and tools: nobody listens.
    pub fn detached(name: &str) -> Self {
        Self {
            id: ObjectId(0),
            name: name.to_owned(),
            wake: Arc::new(|| {}),
            dead_letters: Arc::new(|_| {}),
            compacted: Arc::new(|_, _| {}),
            governor: Governor::new(1 << 30),
            versions: Arc::default(),
            buffer_bytes: 64 << 20,
        }
    }
}

impl std::fmt::Debug for DriverContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverContext")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A connector's handle on one source. No method blocks on network or disk for long, [`Self::sample`] apart.
pub trait SourceDriver: Send + Sync {
    /// Columns of the source, without [`hidden_fields`].
    fn schema(&self) -> SchemaRef;

    /// A split has entered the timeline under this number (again at each start, in order). Until it has, nothing of it may be cut.
    ///
    /// # Errors
    /// The driver did not make this `info`.
    fn add_split(&self, split: u32, info: &SplitInfo) -> Result<()>;

    /// Splits found that were not yet handed to `add_split`, in a fixed order. The first ones come from [`discover`] instead.
    fn poll_splits(&self) -> Vec<SplitInfo> {
        Vec::new()
    }

    /// Ranges that may enter the next epoch, each starting at `request.next` of its split; empty: nothing new. Asking again without
    /// having used the answer gives the same offsets or more. The first call is the sign that somebody reads the source.
    ///
    /// # Errors
    /// Records that were to come next no longer exist: the source cannot go on.
    fn cut(&self, request: &CutRequest<'_>) -> Result<Vec<SplitRange>>;

    /// How often `cut` must be asked because nothing wakes the coordinator; `None`: the driver wakes it.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// No record will ever follow these offsets.
    fn finished(&self, next: &[u64]) -> bool;

    /// Reads a share of `range` with the given columns (those of the schema, then [`hidden_fields`]). The shares of a range are
    /// disjoint and together the whole; each delivers the same rows on every call.
    ///
    /// # Errors
    /// There is no such range.
    fn open(&self, range: &SplitRange, share: Share, projection: &[usize]) -> Result<Box<dyn RangeReader>>;

    /// Ranges from each split's start with about `records` records, for [`Self::open`] outside any epoch. May block for a few seconds.
    ///
    /// # Errors
    /// The connector cannot reach its records, or does not support it.
    fn sample(&self, records: u64) -> Result<Vec<SplitRange>> {
        let _ = records;
        Err(RuntimeError::User {
            code: "0A000",
            message: "this source cannot be sampled".to_owned(),
            hint: Some("Create a materialized view over it.".to_owned()),
        })
    }

    /// One past the last record that is there now, by split, where that is known and is certain to be cut: a new view is complete when it has
    /// read so far. An endless source leaves it out.
    fn present_ends(&self) -> Vec<Option<u64>> {
        Vec::new()
    }

    /// How it is doing.
    fn status(&self) -> SourceStatus {
        SourceStatus::default()
    }

    /// The source is gone, or the process ends: threads are to end soon.
    fn stop(&self) {}
}

/// What a reader answers.
#[derive(Debug)]
pub enum RangePoll {
    /// Rows, about 8 k at most.
    Ready(Delta),
    /// The records are being fetched; the waker will be called.
    Pending,
    /// The range has no more rows.
    End,
}

/// Reads one task's share of a range in chunks.
pub trait RangeReader: Send {
    /// The next chunk. Never blocks on the network: what is not at hand is asked for, and `waker` called when it is there.
    ///
    /// # Errors
    /// [`RuntimeError::User`]: the range cannot be read in full, now or ever.
    fn poll(&mut self, waker: &Waker) -> Result<RangePoll>;
}

/// How long a sample may take.
const SAMPLE_WAIT: Duration = Duration::from_secs(15);

/// Rows of about `records` records of a source, read on the calling thread.
///
/// # Errors
/// The driver cannot read, or takes too long (57014).
pub fn sample(driver: &dyn SourceDriver, records: u64) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let schema = crate::operators::columns::nullable(&driver.schema());
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    let (mut batches, mut rows) = (Vec::new(), 0);
    let until = Instant::now() + SAMPLE_WAIT;
    for range in driver.sample(records)? {
        let mut reader = driver.open(&range, Share::ALL, &all)?;
        while rows < records {
            match reader.poll(&waker)? {
                RangePoll::Ready(delta) => {
                    rows += delta.num_rows() as u64;
                    let columns = delta.batch.columns().to_vec();
                    batches.push(RecordBatch::try_new(Arc::clone(&schema), columns)?);
                }
                RangePoll::Pending if Instant::now() >= until => {
                    return Err(RuntimeError::user("57014", "the source's records did not come in time"));
                }
                RangePoll::Pending => std::thread::park_timeout(Duration::from_millis(100)),
                RangePoll::End => break,
            }
        }
    }
    Ok((schema, batches))
}

/// Columns that a source of keyed changes can deliver after those of its schema: whether the record removes its key, and its place in the
/// order of the source (generation and split in one, then offset).
pub fn hidden_fields() -> [Field; 3] {
    [
        Field::new("_delete", DataType::Boolean, false),
        Field::new("_lane", DataType::Int64, false),
        Field::new("_offset", DataType::Int64, false),
    ]
}

/// Columns of what a reader delivers: those of the source, then [`hidden_fields`].
///
/// # Errors
/// There is no such column.
fn projected(schema: &SchemaRef, projection: &[usize]) -> Result<SchemaRef> {
    let hidden = hidden_fields();
    let width = schema.fields().len();
    let fields = projection
        .iter()
        .map(|&column| match column.checked_sub(width) {
            None => Ok(schema.field(column).clone()),
            Some(i) => hidden
                .get(i)
                .cloned()
                .ok_or_else(|| RuntimeError::internal(format!("a source has no column {column}"))),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// The hidden column `lane` of a range's rows.
fn lane(range: &SplitRange) -> i64 {
    i64::from(range.generation) << 32 | i64::from(range.split)
}

/// The connectors, for messages.
const CONNECTORS: &str = "kafka, file, datagen, nexmark";

/// Checks a source's options at CREATE and finds its first splits, with concrete start offsets. Blocks for a few seconds at most.
///
/// # Errors
/// Unknown connector or option (22023) with a hint naming the known ones; the system behind it cannot be reached (08001) or lacks what is asked
/// for.
pub fn discover(def: &SourceDef) -> Result<Vec<SplitInfo>> {
    match def.connector.as_str() {
        "kafka" => kafka::discover(def),
        "datagen" => datagen::discover(def),
        "file" => file::discover(def),
        "nexmark" => nexmark::discover(&def.options),
        other => Err(unknown(other)),
    }
}

/// Makes a source's driver. Does not reach out to anything before it is asked to.
///
/// # Errors
/// As [`discover`], for what can be seen from the definition.
pub fn driver(def: &SourceDef, context: DriverContext) -> Result<Arc<dyn SourceDriver>> {
    match def.connector.as_str() {
        "kafka" => kafka::driver(def, context),
        "datagen" => datagen::driver(def),
        "file" => file::driver(def, context),
        "nexmark" => nexmark::driver(&def.options),
        other => Err(unknown(other)),
    }
}

fn unknown(connector: &str) -> RuntimeError {
    RuntimeError::User {
        code: "22023",
        message: format!("unknown connector \"{connector}\" for a source"),
        hint: Some(format!("The connectors for sources are: {CONNECTORS}.")),
    }
}
