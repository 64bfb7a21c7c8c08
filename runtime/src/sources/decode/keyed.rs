//! Keyed changes: upserts with tombstones, and Debezium's change events.
//!
//! **Upsert.** A record with a value puts its row; key columns that the value lacks are taken from the record's key. A record
//! without a value deletes the row of its key. A JSON key is an object with the key columns; or, for one key column, a JSON scalar
//! or else the bare text. A CSV key is a CSV row of the key columns in key order; for one key column, the bare text.
//!
//! **Debezium.** The value is an envelope, alone or as the `payload` beside its `schema`. `op` `c`, `r` and `u` put the row in `after`;
//! `d` deletes the row whose key stands in `before`, or in the record's key where `before` is left out. A tombstone, which
//! follows a delete for the sake of log compaction, says nothing new and is passed over.

use super::slots::{Kind, Rows, Slot, Texts};
use super::{Change, Decoder, Form, Record, csv, json, utf8};

/// The decoded columns that are the key.
#[derive(Debug)]
pub(super) struct Keys {
    /// In key order.
    columns: Vec<usize>,
}

impl Keys {
    pub(super) fn new(columns: Vec<usize>) -> Self {
        Self { columns }
    }
}

pub(super) fn upsert<'a>(
    decoder: &mut Decoder,
    record: &Record<'a>,
    rows: &mut Rows,
) -> Result<(Change, Texts<'a>), String> {
    rows.open();
    let Some(value) = record.value else {
        let key = record.key.ok_or("the record has neither key nor value")?;
        let key = key_slots(decoder, key, rows)?;
        return Ok((Change::Delete, Texts { value: "", key }));
    };
    let value = utf8(value, "")?;
    decoder.value(value, 0, rows)?;
    let lacking = {
        let slots = rows.current();
        decoder.keys.columns.iter().any(|c| slots[*c].kind == Kind::Missing)
    };
    let key = match record.key {
        Some(key) if lacking => key_slots(decoder, key, rows)?,
        _ => "",
    };
    Ok((Change::Put, Texts { value, key }))
}

/// Fills key columns that are still missing from the record's key. Answers the key's text.
fn key_slots<'a>(decoder: &mut Decoder, key: &'a [u8], rows: &mut Rows) -> Result<&'a str, String> {
    let text = utf8(key, "the record's key: ")?;
    if decoder.keys.columns.is_empty() {
        return Ok(text);
    }
    let inner = match &decoder.form {
        Form::Csv(options) => match decoder.keys.columns.as_slice() {
            [only] => {
                fill(rows.current(), *only, Slot::new(Kind::Plain, 0, text.len()));
                Ok(())
            }
            several => csv_key(text, options, several, rows),
        },
        Form::Json => json_key(decoder, text, rows),
    };
    inner.map_err(|reason: String| format!("the record's key: {reason}"))?;
    Ok(text)
}

fn fill(slots: &mut [Slot], column: usize, value: Slot) {
    if slots[column].kind == Kind::Missing {
        slots[column] = Slot { in_key: true, ..value };
    }
}

fn csv_key(
    text: &str,
    options: &levee_planner::connectors::encode::CsvOptions,
    columns: &[usize],
    rows: &mut Rows,
) -> Result<(), String> {
    let mut fields = csv::Fields::new(text, 0, options);
    for column in columns {
        let value = fields.next_field()?.ok_or("it has fewer fields than key columns")?;
        fill(rows.current(), *column, value);
    }
    match fields.next_field()? {
        None => Ok(()),
        Some(_) => Err("it has more fields than key columns".to_owned()),
    }
}

fn json_key(decoder: &mut Decoder, text: &str, rows: &mut Rows) -> Result<(), String> {
    let columns = &decoder.keys.columns;
    if !text.trim_start().starts_with('{') {
        let [only] = columns.as_slice() else {
            return Err("it is not a JSON object".to_owned());
        };
        // A producer may write a key as bare text, so whatever is not JSON is that.
        let value = json::whole(text, 0).unwrap_or(Slot::new(Kind::Plain, 0, text.len()));
        fill(rows.current(), *only, value);
        return Ok(());
    }
    let mut found = vec![Slot::MISSING; rows.current().len()];
    let mut payload = None;
    json::object(text, 0, |_, name, value| {
        if name == "payload" {
            payload = Some(value);
        }
        key_field(decoder, &mut found, name, value)
    })?;
    let none = decoder.keys.columns.iter().all(|c| found[*c].kind == Kind::Missing);
    if let Some(payload) = payload.filter(|p| none && p.kind == Kind::Nested) {
        json::object(
            &text[..payload.end as usize],
            payload.start as usize,
            |_, name, value| key_field(decoder, &mut found, name, value),
        )?;
    }
    for column in &decoder.keys.columns {
        fill(rows.current(), *column, found[*column]);
    }
    Ok(())
}

fn key_field(decoder: &mut Decoder, found: &mut [Slot], name: &str, value: Slot) -> Result<(), String> {
    match decoder.names.find(usize::MAX, name) {
        Some(m) => json::put(found, m.column, m.exact, name, value),
        None => Ok(()),
    }
}

/// The parts of a Debezium envelope.
#[derive(Default)]
struct Envelope {
    payload: Option<Slot>,
    before: Option<Slot>,
    after: Option<Slot>,
    op: Option<Slot>,
}

impl Envelope {
    fn read(text: &str, from: usize, to: usize) -> Result<Self, String> {
        let mut envelope = Self::default();
        json::object(&text[..to], from, |_, name, value| {
            match name {
                "payload" => envelope.payload = Some(value),
                "before" => envelope.before = Some(value),
                "after" => envelope.after = Some(value),
                "op" => envelope.op = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        Ok(envelope)
    }
}

pub(super) fn debezium<'a>(
    decoder: &mut Decoder,
    record: &Record<'a>,
    rows: &mut Rows,
) -> Result<Option<(Change, Texts<'a>)>, String> {
    let Some(value) = record.value else { return Ok(None) };
    let value = utf8(value, "")?;
    let mut envelope = Envelope::read(value, 0, value.len())?;
    if let (None, Some(payload)) = (envelope.op, envelope.payload) {
        if payload.kind == Kind::Null {
            return Ok(None);
        }
        if payload.kind != Kind::Nested {
            return Err(format!(
                "the Debezium payload is {}, not an object",
                json::describe(payload.kind)
            ));
        }
        envelope = Envelope::read(value, payload.start as usize, payload.end as usize)?;
    }
    let op = envelope
        .op
        .filter(|op| op.kind == Kind::Plain)
        .ok_or("there is no Debezium \"op\"")?;
    rows.open();
    let row = |part: Option<Slot>| part.filter(|p| p.kind == Kind::Nested);
    match &value[op.start as usize..op.end as usize] {
        op @ ("c" | "r" | "u") => {
            let after =
                row(envelope.after).ok_or_else(|| format!("a Debezium event with op \"{op}\" has no row \"after\""))?;
            decoder.value(&value[..after.end as usize], after.start as usize, rows)?;
            Ok(Some((Change::Put, Texts { value, key: "" })))
        }
        "d" => {
            let key = match (row(envelope.before), record.key) {
                (Some(before), _) => {
                    decoder.value(&value[..before.end as usize], before.start as usize, rows)?;
                    keep_key(decoder, rows);
                    ""
                }
                (None, Some(key)) => key_slots(decoder, key, rows)?,
                (None, None) => return Err("a Debezium delete has neither \"before\" nor a key".to_owned()),
            };
            Ok(Some((Change::Delete, Texts { value, key })))
        }
        other => Err(format!("Debezium op \"{other}\" is not supported")),
    }
}

/// Of a deleted row only the key counts.
fn keep_key(decoder: &Decoder, rows: &mut Rows) {
    for (i, slot) in rows.current().iter_mut().enumerate() {
        if !decoder.keys.columns.contains(&i) {
            *slot = Slot::MISSING;
        }
    }
}
