//! Dead letters: records that could not be decoded, kept in a table of the system's own.
//!
//! ```text
//!   a task decodes a chunk ─▶ Event::DeadLetters ─▶ those not in the table ─▶ log ─▶ the table's next run
//!              └─ rows ─▶ … ─▶ StepDone (frozen) ─▶ checkpoint, when all letters told before it are durable
//! ```
//!
//! A letter is told before any row of its chunk is handed out, so it reaches the coordinator before the end of the step that read the chunk.
//! The same letters are told again at every reading; the table's key (source, partition, offset) keeps them once. A letter that was replayed
//! stays, marked with the replay's number (see `replays.rs`), and is shown no more. The table is an ordinary one, with an id below the users' objects': it is checkpointed, spilled and read like any other.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use levee_planner::catalog::{CatalogObject, Constraints, ObjectKind, TableDef};
use levee_planner::plan::ObjectId;

use super::control::{Control, error_text};
use super::sequencer::{Request, SourceCut};
use super::{Engine, StatusRow};
use crate::sources::DeadLetter;
use crate::{Delta, Result};

/// The table.
pub const DEAD_LETTERS: ObjectId = ObjectId(16_000);

/// Columns of the key: source id, partition, offset.
pub(super) const KEY: [usize; 3] = [0, 2, 3];

/// Columns by number.
pub(super) mod column {
    pub const SOURCE_ID: usize = 0;
    pub const PARTITION: usize = 2;
    pub const OFFSET: usize = 3;
    pub const REASON: usize = 4;
    pub const BYTES: usize = 5;
    pub const KEY: usize = 6;
    pub const TIMESTAMP: usize = 7;
    /// The split's number.
    pub const SPLIT: usize = 8;
    /// Packed.
    pub const HEADERS: usize = 9;
    /// Number of the replay that made it a row.
    pub const REPLAY: usize = 10;
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Columns that are shown: the first ones.
const SHOWN: usize = 8;

/// Columns of the table.
pub fn schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("source_id", DataType::Int64, false),
        Field::new("source", DataType::Utf8, false),
        Field::new("partition", DataType::Utf8, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("bytes", DataType::Binary, true),
        Field::new("key", DataType::Binary, true),
        Field::new("timestamp", time, true),
        Field::new("split", DataType::Int32, false),
        Field::new("headers", DataType::Binary, true),
        Field::new("replay", DataType::Int64, true),
    ]))
}

/// The table as an object, which no catalog holds.
pub fn object() -> CatalogObject {
    let schema = schema();
    let table = TableDef {
        defaults: vec![None; schema.fields().len()],
        schema,
        primary_key: KEY.to_vec(),
        ingest: None,
        constraints: Constraints::default(),
        generated: BTreeMap::new(),
    };
    CatalogObject::new(DEAD_LETTERS, "dead_letters", ObjectKind::Table(table))
}

impl Engine {
    /// Rows of `levee_catalog.dead_letters`.
    pub(super) fn dead_letters(&self) -> Vec<StatusRow> {
        let relation = self.shared.entry(DEAD_LETTERS).and_then(|e| e.relation);
        let Some(relation) = relation else {
            return Vec::new();
        };
        let read = || -> Result<Vec<StatusRow>> {
            let mut rows = Vec::new();
            for batch in relation.snapshot(relation.frontier())?.rows()? {
                let replayed = batch.column(column::REPLAY);
                let open = (0..batch.num_rows()).filter(|row| replayed.is_null(*row));
                rows.extend(open.map(|row| status_row(&batch, row)));
            }
            Ok(rows)
        };
        read().unwrap_or_else(|error| {
            tracing::warn!(error = error_text(&error), "dead letters cannot be read");
            Vec::new()
        })
    }
}

fn status_row(batch: &RecordBatch, row: usize) -> StatusRow {
    let columns = batch.columns().iter().take(SHOWN);
    let value = |column: &ArrayRef| -> Option<String> {
        if column.is_null(row) {
            return None;
        }
        Some(match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
            DataType::Binary => {
                let bytes = column.as_binary::<i32>().value(row);
                let mut text = String::with_capacity(2 + 2 * bytes.len());
                text.push_str("\\x");
                for byte in bytes {
                    text.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
                }
                text
            }
            DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
            _ => column.as_primitive::<TimestampMicrosecondType>().value(row).to_string(),
        })
    };
    columns.map(value).collect()
}

/// How many letters are under way, and how many each source has.
#[derive(Debug, Default)]
pub struct LetterBook {
    /// Batches handed to the sequencer, and those that are durable.
    sent: u64,
    durable: u64,
    /// What `sent` was when a step was last frozen: so many must be durable before the checkpoint.
    needed: u64,
    /// Letters in batches that are not durable yet.
    under_way: HashSet<(u32, u32, u64)>,
    /// Batches that the log did not take.
    failed: Vec<Delta>,
    /// Letters per source that are shown.
    pub counts: BTreeMap<ObjectId, u64>,
    /// All that the table holds of each, replayed ones too.
    held: BTreeMap<ObjectId, u64>,
}

impl LetterBook {
    /// Takes rows of the table into the counts.
    fn count(&mut self, batch: &RecordBatch, diff: impl Fn(usize) -> i64) {
        let ids = batch.column(column::SOURCE_ID).as_primitive::<Int64Type>();
        let replayed = batch.column(column::REPLAY);
        for (row, id) in ids.values().iter().enumerate() {
            let id = ObjectId(*id as u32);
            let held = self.held.entry(id).or_default();
            *held = held.saturating_add_signed(diff(row));
            if replayed.is_null(row) {
                let shown = self.counts.entry(id).or_default();
                *shown = shown.saturating_add_signed(diff(row));
            }
        }
    }

    /// A step has been frozen: what was told before it belongs to its checkpoint.
    pub fn step_frozen(&mut self) {
        self.needed = self.sent;
    }

    /// Whether a checkpoint of what is frozen may be made.
    pub fn settled(&self) -> bool {
        self.durable >= self.needed
    }
}

impl Control {
    /// Takes letters that a source told, those that are new.
    pub(super) fn take_letters(&mut self, source: ObjectId, letters: Vec<DeadLetter>) {
        if let Err(error) = self.try_take_letters(source, letters) {
            tracing::error!(error = error_text(&error), "dead letters cannot be kept");
        }
    }

    fn try_take_letters(&mut self, id: ObjectId, letters: Vec<DeadLetter>) -> Result<()> {
        let Some(source) = self.sources.get(&id) else {
            return Ok(());
        };
        let name = self.catalog.get(id).map_or("", |o| o.name.as_str());
        let split_name = |split: u32| {
            let split = source.state.splits.get(split as usize);
            split.map_or_else(String::new, |s| s.info.name.clone())
        };
        let under_way = &self.letters.under_way;
        let fresh: Vec<DeadLetter> = letters
            .into_iter()
            .filter(|l| !under_way.contains(&(id.0, l.split, l.offset)))
            .collect();
        let names: Vec<String> = fresh.iter().map(|l| split_name(l.split)).collect();
        let batch = rows(id, name, &names, &fresh)?;
        let known = self.known_letters(&batch)?;
        let unknown = arrow::compute::not(&known)?;
        for (letter, known) in fresh.iter().zip(known.iter()) {
            if known != Some(true) {
                self.letters.under_way.insert((id.0, letter.split, letter.offset));
            }
        }
        let batch = filter_record_batch(&batch, &unknown)?;
        if batch.num_rows() > 0 {
            self.send_letters(Delta::consolidate(&schema(), &[Delta::inserts(batch)], &KEY)?);
        }
        Ok(())
    }

    /// Which rows' keys the table holds.
    fn known_letters(&mut self, batch: &RecordBatch) -> Result<BooleanArray> {
        // The table's step takes what is durable, so that nothing is in between.
        self.advance(DEAD_LETTERS)?;
        let Some(region) = self.regions.get(&DEAD_LETTERS) else {
            return Ok(vec![false; batch.num_rows()].into());
        };
        let Some(relation) = &region.relation else {
            return Ok(vec![false; batch.num_rows()].into());
        };
        relation
            .snapshot(region.frontier())?
            .contains_keys(&batch.project(&KEY)?)
    }

    fn send_letters(&mut self, delta: Delta) {
        self.letters.sent += 1;
        let cut = SourceCut {
            letters: vec![delta],
            ..SourceCut::default()
        };
        if self.requests.send(Request::Cut(cut)).is_err() {
            tracing::debug!("the sequencer has stopped");
        }
    }

    /// An epoch brought these changes of the table; `told`: they are letters that readers told of, not a replay.
    pub(super) fn letters_durable(&mut self, delta: &Delta, told: bool) {
        self.letters.count(&delta.batch, |row| delta.diff(row));
        if self.recovering || !told {
            return;
        }
        self.letters.durable += 1;
        if self.letters.durable == self.letters.sent {
            self.letters.under_way.clear();
        }
    }

    /// The log did not take these changes.
    pub(super) fn letters_failed(&mut self, deltas: Vec<Delta>) {
        self.letters.sent -= deltas.len() as u64;
        self.letters.failed.extend(deltas);
    }

    /// Offers the log again what it did not take.
    pub(super) fn retry_letters(&mut self) {
        for delta in std::mem::take(&mut self.letters.failed) {
            self.send_letters(delta);
        }
    }

    /// Counts the letters that a restart found in the table's base.
    pub(super) fn count_letters(&mut self) -> Result<()> {
        let Some(region) = self.regions.get(&DEAD_LETTERS) else {
            return Ok(());
        };
        let Some(relation) = &region.relation else {
            return Ok(());
        };
        for batch in relation.snapshot(relation.frontier())?.rows()? {
            self.letters.count(&batch, |_| 1);
        }
        Ok(())
    }

    /// A source is gone, and its letters go with it.
    pub(super) fn forget_letters(&mut self, id: ObjectId) {
        self.letters.counts.remove(&id);
        if self.recovering || self.letters.held.remove(&id).unwrap_or(0) == 0 {
            return;
        }
        if let Err(error) = self.try_forget_letters(id) {
            tracing::warn!(error = error_text(&error), "dead letters of a dropped source stay");
        }
    }

    fn try_forget_letters(&mut self, id: ObjectId) -> Result<()> {
        self.advance(DEAD_LETTERS)?;
        let Some(region) = self.regions.get(&DEAD_LETTERS) else {
            return Ok(());
        };
        let Some(relation) = &region.relation else {
            return Ok(());
        };
        let mut gone = Vec::new();
        for batch in relation.snapshot(region.frontier())?.rows()? {
            let ids = batch.column(0).as_primitive::<Int64Type>();
            let mine: BooleanArray = ids.values().iter().map(|i| Some(*i == i64::from(id.0))).collect();
            gone.push(Delta::inserts(filter_record_batch(&batch, &mine)?).negate());
        }
        let gone = Delta::consolidate(&schema(), &gone, &KEY)?;
        if gone.num_rows() > 0 {
            self.send_letters(gone);
        }
        Ok(())
    }
}

fn rows(id: ObjectId, name: &str, partitions: &[String], letters: &[DeadLetter]) -> Result<RecordBatch> {
    let n = letters.len();
    let times: TimestampMicrosecondArray = letters.iter().map(|l| l.timestamp_us).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![i64::from(id.0); n])),
        Arc::new(StringArray::from(vec![name; n])),
        Arc::new(StringArray::from_iter_values(partitions)),
        Arc::new(letters.iter().map(|l| l.offset as i64).collect::<Int64Array>()),
        Arc::new(StringArray::from_iter_values(letters.iter().map(|l| &l.reason))),
        Arc::new(letters.iter().map(|l| l.value.as_deref()).collect::<BinaryArray>()),
        Arc::new(letters.iter().map(|l| l.key.as_deref()).collect::<BinaryArray>()),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(letters.iter().map(|l| l.split.cast_signed()).collect::<Int32Array>()),
        Arc::new(
            letters
                .iter()
                .map(|l| (!l.headers.is_empty()).then_some(l.headers.as_slice()))
                .collect::<BinaryArray>(),
        ),
        Arc::new(Int64Array::new_null(n)),
    ];
    Ok(RecordBatch::try_new(schema(), columns)?)
}
