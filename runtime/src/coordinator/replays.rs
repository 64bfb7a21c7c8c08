//! REPLAY DEAD LETTERS: decode the kept bytes again, and let what decodes now into one epoch.
//!
//! ```text
//!   letters of s ─ decode as s is defined now ─┬─ good ─▶ record: range [n, n + 1) of split REPLAYS of s, letters marked n, s at revision n
//!                                              └─ bad ──▶ the same record: the new reason
//! ```
//!
//! Everything stands in one record of the log, so a crash leaves all of it or nothing. What was read for it is still current when the record
//! is written, because the record also raises the source's revision, and only one record can do so from the revision that was read. Cuts
//! that were made under the older revision and come after the record are refused by the sequencer and made again.
//!
//! A replayed letter stays in the table, under its key, with the replay's number: readers find its bytes there, and a reading that tells of the
//! record once more (a restart, a younger view, both of which decode it as it was decoded first) changes nothing.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};
use levee_planner::catalog::{CatalogObject, CatalogOp, ObjectKind, SourceDef};
use levee_planner::job::JobState;
use levee_planner::plan::ObjectId;

use super::Engine;
use super::dead_letters::{self, DEAD_LETTERS, column};
use super::sequencer::DdlRequest;
use super::sources::source_def;
use crate::relation::{MergeScan, Relation};
use crate::sources::decode::{Decoder, Record};
use crate::sources::fetch::RawRecord;
use crate::sources::replay::{Kept, REPLAY_BYTES_MAX, REPLAYS};
use crate::sources::{RangeCheck, SplitRange};
use crate::{Delta, Result, RuntimeError};

/// How often a replay is tried again when the catalog changes meanwhile.
const TRIES: usize = 100;

/// What became of a source's dead letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// They decode now, and are rows from here on.
    pub replayed: u64,
    /// They do not.
    pub kept: u64,
    /// The epoch in which the last of them entered.
    pub epoch: u64,
}

/// Replayed records of one source, where the table of dead letters keeps them.
pub(super) struct KeptLetters {
    pub(super) relation: Arc<Relation>,
    pub(super) source: ObjectId,
}

impl Kept for KeptLetters {
    fn records(&self, replay: u64, take: &mut dyn FnMut(u32, &str, &RawRecord<'_>)) -> Result<()> {
        let replay = i64::try_from(replay).unwrap_or(i64::MAX);
        letters_of(&self.relation, self.source, &mut |batch| {
            let numbers = batch.column(column::REPLAY).as_primitive::<Int64Type>();
            for row in (0..batch.num_rows()).filter(|r| numbers.is_valid(*r) && numbers.value(*r) == replay) {
                let letter = Letter { batch, row };
                take(letter.split(), letter.partition(), &letter.record());
            }
            Ok(true)
        })
    }
}

/// A row of the table.
#[derive(Clone, Copy)]
struct Letter<'a> {
    batch: &'a RecordBatch,
    row: usize,
}

impl<'a> Letter<'a> {
    fn bytes(&self, column: usize) -> Option<&'a [u8]> {
        let array = self.batch.column(column).as_binary::<i32>();
        array.is_valid(self.row).then(|| array.value(self.row))
    }

    fn split(&self) -> u32 {
        let splits = self.batch.column(column::SPLIT).as_primitive::<Int32Type>();
        splits.value(self.row).cast_unsigned()
    }

    fn partition(&self) -> &'a str {
        self.batch.column(column::PARTITION).as_string::<i32>().value(self.row)
    }

    fn record(&self) -> RawRecord<'a> {
        let offsets = self.batch.column(column::OFFSET).as_primitive::<Int64Type>();
        let times = self
            .batch
            .column(column::TIMESTAMP)
            .as_primitive::<TimestampMicrosecondType>();
        RawRecord {
            offset: offsets.value(self.row).cast_unsigned(),
            timestamp_us: times.is_valid(self.row).then(|| times.value(self.row)),
            key: self.bytes(column::KEY),
            value: self.bytes(column::BYTES),
            headers: self.bytes(column::HEADERS).unwrap_or_default(),
        }
    }

    fn size(&self) -> usize {
        let record = self.record();
        64 + record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)
    }
}

/// Shows a source's letters, replayed ones too, batch by batch, in the order of the table's key, until `take` has had enough.
fn letters_of(relation: &Relation, source: ObjectId, take: &mut dyn FnMut(&RecordBatch) -> Result<bool>) -> Result<()> {
    let mut scan = newest(relation)?;
    while let Some(delta) = scan.next()? {
        let ids = delta.batch.column(column::SOURCE_ID).as_primitive::<Int64Type>();
        let wanted = i64::from(source.0);
        if ids.values().iter().all(|id| *id < wanted) {
            continue;
        }
        let mine: BooleanArray = ids.values().iter().map(|id| Some(*id == wanted)).collect();
        if mine.true_count() == 0 {
            // In order of the source's id.
            return Ok(());
        }
        if !take(&filter_record_batch(&delta.batch, &mine)?)? {
            return Ok(());
        }
    }
    Ok(())
}

/// A scan of the newest rows; a fold may pass between looking and pinning.
fn newest(relation: &Relation) -> Result<MergeScan> {
    let mut tries = 0;
    loop {
        match relation.snapshot(relation.frontier()) {
            Err(RuntimeError::EpochUnavailable { .. }) if tries < TRIES => tries += 1,
            other => return other?.scan(None, None),
        }
    }
}

impl Engine {
    /// Decodes a source's dead letters again, as the source is defined now. Those that decode leave `levee_catalog.dead_letters` and enter
    /// all views over the source in one epoch, more than 64 MB in several; the others stay there with their new reasons. Blocking work runs
    /// on a thread of its own.
    ///
    /// # Errors
    /// `NoObject`; the object reads no records, or is paused.
    pub async fn replay_dead_letters(&self, id: ObjectId) -> Result<Replayed> {
        let mut all = Replayed::default();
        let mut after = None;
        loop {
            let Some((part, last)) = self.replay_some(id, after.take()).await? else {
                return Ok(all);
            };
            all.replayed += part.replayed;
            all.kept += part.kept;
            all.epoch = part.epoch.max(all.epoch);
            after = last;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Replays the letters behind `after`, up to one replay's bytes; answers the last one's key if there may be more.
    async fn replay_some(&self, id: ObjectId, after: Option<Place>) -> Result<Option<(Replayed, Option<Place>)>> {
        for _ in 0..TRIES {
            let catalog = self.catalog();
            let object = catalog.get(id).ok_or(RuntimeError::NoObject(id))?;
            if *catalog.job(id) == JobState::Paused {
                return Err(RuntimeError::User {
                    code: "55000",
                    message: format!("\"{}\" is paused", object.name),
                    hint: Some("ALTER … RESUME lets it take records again.".to_owned()),
                });
            }
            let def = source_def(object)
                .cloned()
                .ok_or_else(|| RuntimeError::user("42809", format!("\"{}\" reads no records", object.name)))?;
            let object = object.clone();
            let found = self.relations(&[DEAD_LETTERS], self.newest_epoch()).await?;
            let relation = found.following.get(&DEAD_LETTERS).map(Arc::clone);
            let relation = relation.ok_or_else(|| RuntimeError::internal("there is no table of dead letters"))?;
            let after = after.clone();
            let work = tokio::task::spawn_blocking(move || Replay::new(&relation, &object, &def, after.as_ref()));
            let replay = work
                .await
                .map_err(|_| RuntimeError::internal("decoding dead letters failed"))??;
            if replay.changes.is_empty() {
                return Ok(Some((replay.outcome, replay.last)));
            }
            let mut outcome = replay.outcome;
            let last = replay.last.clone();
            let request = replay.request(&catalog)?;
            match self.send_ddl(request).await {
                Err(RuntimeError::Conflict) => {}
                Err(error) => return Err(error),
                Ok(epoch) => {
                    outcome.epoch = epoch;
                    self.relations(&[DEAD_LETTERS], epoch).await?;
                    return Ok(Some((outcome, last)));
                }
            }
        }
        Err(RuntimeError::user("40001", "the catalog changed too often meanwhile"))
    }
}

/// A letter's key within its source.
type Place = (String, i64);

/// One replay, as it would be made now.
struct Replay {
    object: CatalogObject,
    number: u32,
    /// How the source is defined now.
    revision: u32,
    /// Of the table: old rows retracted, new ones inserted.
    changes: Vec<Delta>,
    outcome: Replayed,
    bytes: u64,
    last: Option<Place>,
}

impl Replay {
    /// Reads letters and decodes them. Blocking.
    fn new(relation: &Relation, object: &CatalogObject, def: &SourceDef, after: Option<&Place>) -> Result<Self> {
        let mut replay = Self {
            object: object.clone(),
            number: def.revision + 1,
            revision: def.revision,
            changes: Vec::new(),
            outcome: Replayed::default(),
            bytes: 0,
            last: None,
        };
        let mut decoder = Decoder::new(def)?;
        letters_of(relation, object.id, &mut |batch| {
            let numbers = batch.column(column::REPLAY).as_primitive::<Int64Type>();
            let place = |row| {
                let letter = Letter { batch, row };
                (letter.partition().to_owned(), letter.record().offset.cast_signed())
            };
            let wanted: BooleanArray = (0..batch.num_rows())
                .map(|row| Some(numbers.is_null(row) && after.is_none_or(|after| place(row) > *after)))
                .collect();
            let open = filter_record_batch(batch, &wanted)?;
            if open.num_rows() > 0 {
                replay.take(&open, &mut decoder)?;
                if replay.bytes as usize >= REPLAY_BYTES_MAX {
                    let letter = Letter {
                        batch: &open,
                        row: open.num_rows() - 1,
                    };
                    replay.last = Some((letter.partition().to_owned(), letter.record().offset.cast_signed()));
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(replay)
    }

    fn take(&mut self, open: &RecordBatch, decoder: &mut Decoder) -> Result<()> {
        let letters: Vec<Letter<'_>> = (0..open.num_rows()).map(|row| Letter { batch: open, row }).collect();
        let raw: Vec<RawRecord<'_>> = letters.iter().map(Letter::record).collect();
        let records: Vec<Record<'_>> = raw
            .iter()
            .map(|r| Record {
                key: r.key,
                value: r.value,
            })
            .collect();
        let decoded = decoder.decode(&records)?;
        let mut reasons: Vec<Option<String>> = vec![None; letters.len()];
        for failure in decoded.failed {
            if let Some(reason) = reasons.get_mut(failure.record as usize) {
                *reason = Some(failure.reason);
            }
        }
        let old = open.column(column::REASON).as_string::<i32>();
        let changed: BooleanArray = reasons
            .iter()
            .enumerate()
            .map(|(i, reason)| Some(reason.as_deref().is_none_or(|r| r != old.value(i))))
            .collect();
        let good = reasons.iter().filter(|r| r.is_none()).count() as u64;
        self.outcome.replayed += good;
        self.outcome.kept += letters.len() as u64 - good;
        self.bytes += letters.iter().map(Letter::size).sum::<usize>() as u64;
        if changed.true_count() == 0 {
            return Ok(());
        }
        let number = i64::from(self.number);
        let texts: StringArray = reasons
            .iter()
            .enumerate()
            .map(|(i, reason)| Some(reason.as_deref().unwrap_or(old.value(i))))
            .collect();
        let numbers: Int64Array = reasons.iter().map(|r| r.is_none().then_some(number)).collect();
        let mut columns = open.columns().to_vec();
        columns[column::REASON] = Arc::new(texts);
        columns[column::REPLAY] = Arc::new(numbers);
        let new = RecordBatch::try_new(open.schema(), columns)?;
        self.changes
            .push(Delta::inserts(filter_record_batch(open, &changed)?).negate());
        self.changes.push(Delta::inserts(filter_record_batch(&new, &changed)?));
        Ok(())
    }

    fn request(mut self, catalog: &Arc<levee_planner::catalog::Catalog>) -> Result<DdlRequest> {
        let id = self.object.id;
        match &mut self.object.kind {
            ObjectKind::Source(def) => def.revision = self.number,
            ObjectKind::Table(table) => {
                if let Some(ingest) = &mut table.ingest {
                    ingest.source.revision = self.number;
                }
            }
            _ => return Err(RuntimeError::internal("a replay of something that reads no records")),
        }
        let number = u64::from(self.number);
        let check = RangeCheck {
            records: self.outcome.replayed,
            bytes: self.bytes,
            digest: 0,
        };
        let range = SplitRange {
            check: Some(check),
            revision: self.revision,
            ..SplitRange::unchecked(REPLAYS, number, number + 1)
        };
        let schema = dead_letters::schema();
        Ok(DdlRequest {
            expected: Some(Arc::clone(catalog)),
            ops: vec![CatalogOp::Replace(self.object)],
            ranges: if self.outcome.replayed > 0 {
                vec![(id, vec![range])]
            } else {
                Vec::new()
            },
            writes: vec![(
                DEAD_LETTERS,
                Delta::consolidate(&schema, &self.changes, &dead_letters::KEY)?,
            )],
            ..DdlRequest::default()
        })
    }
}
