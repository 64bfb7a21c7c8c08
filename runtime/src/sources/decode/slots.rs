//! Where the columns' values stand in the records of a call.

use std::collections::BTreeMap;

use super::Change;

/// What stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The record has no such field.
    Missing,
    Null,
    True,
    False,
    Number,
    /// Text that is to be read as it stands.
    Plain,
    /// Text with escapes (of JSON or CSV).
    Escaped,
    /// A JSON object or array.
    Nested,
}

/// A value's place: bytes `start..end` of the record's value or, with `in_key`, of its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: Kind,
    pub(super) in_key: bool,
    /// The field's name was the column's, to the letter.
    pub(super) exact: bool,
}

impl Slot {
    pub(super) const MISSING: Self = Self::bare(Kind::Missing);

    const fn bare(kind: Kind) -> Self {
        Self {
            start: 0,
            end: 0,
            kind,
            in_key: false,
            exact: false,
        }
    }

    /// A value at `start..end`; texts are known to be shorter than 4 GiB.
    pub(super) fn new(kind: Kind, start: usize, end: usize) -> Self {
        Self {
            start: start as u32,
            end: end as u32,
            ..Self::bare(kind)
        }
    }
}

/// A record's texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Texts<'a> {
    pub(super) value: &'a str,
    pub(super) key: &'a str,
}

/// How CSV escapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct CsvMarks {
    pub(super) quote: u8,
    pub(super) escape: u8,
}

/// The slots of all rows, row after row.
#[derive(Debug, Default)]
pub(super) struct Rows {
    width: usize,
    slots: Vec<Slot>,
    origin: Vec<u32>,
    changes: Vec<Change>,
    csv: Option<CsvMarks>,
}

impl Rows {
    pub(super) fn new(width: usize, csv: Option<CsvMarks>) -> Self {
        Self {
            width,
            csv,
            ..Self::default()
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.origin.clear();
        self.changes.clear();
    }

    /// Begins a row, all of it missing.
    pub(super) fn open(&mut self) {
        self.slots.resize(self.slots.len() + self.width, Slot::MISSING);
    }

    /// Where a row begins, for [`Rows::rewind`].
    pub(super) fn mark(&self) -> usize {
        self.slots.len()
    }

    /// Forgets the row begun at `mark`.
    pub(super) fn rewind(&mut self, mark: usize) {
        self.slots.truncate(mark);
    }

    /// Ends a row.
    pub(super) fn close(&mut self, record: u32, change: Change) {
        self.origin.push(record);
        self.changes.push(change);
    }

    /// The slots of the row begun last.
    pub(super) fn current(&mut self) -> &mut [Slot] {
        let from = self.slots.len() - self.width;
        &mut self.slots[from..]
    }

    pub(super) fn len(&self) -> usize {
        self.origin.len()
    }

    pub(super) fn origin(&self) -> &[u32] {
        &self.origin
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The slots of one column.
    pub(super) fn column<'r>(&'r self, index: usize, texts: &'r [Texts<'r>]) -> Cells<'r> {
        Cells {
            rows: self,
            index,
            texts,
        }
    }
}

/// A value as the record holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell<'c> {
    Null,
    Bool(bool),
    Number(&'c str),
    Text(&'c str),
    Nested(&'c str),
}

/// One column's values.
pub(super) struct Cells<'r> {
    rows: &'r Rows,
    index: usize,
    texts: &'r [Texts<'r>],
}

impl<'r> Cells<'r> {
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn change(&self, row: usize) -> Change {
        self.rows.changes[row]
    }

    /// Bytes of text that the column's values take at most.
    pub(super) fn text_bytes(&self) -> usize {
        (0..self.len())
            .map(|row| {
                let slot = self.slot(row);
                (slot.end - slot.start) as usize
            })
            .sum()
    }

    fn slot(&self, row: usize) -> Slot {
        self.rows.slots[row * self.rows.width + self.index]
    }

    /// The value of a row; text that had escapes is put into `scratch`.
    ///
    /// # Errors
    /// An escape is not valid.
    pub(super) fn get<'c>(&self, row: usize, scratch: &'c mut String) -> Result<Cell<'c>, String>
    where
        'r: 'c,
    {
        let slot = self.slot(row);
        let texts = self.texts[row];
        let text = if slot.in_key { texts.key } else { texts.value };
        let raw: &'c str = &text[slot.start as usize..slot.end as usize];
        Ok(match slot.kind {
            Kind::Missing | Kind::Null => Cell::Null,
            Kind::True => Cell::Bool(true),
            Kind::False => Cell::Bool(false),
            Kind::Number => Cell::Number(raw),
            Kind::Plain => Cell::Text(raw),
            Kind::Nested => Cell::Nested(raw),
            Kind::Escaped => {
                scratch.clear();
                match self.rows.csv {
                    Some(marks) => super::csv::unescape(raw, marks, scratch),
                    None => super::json::unescape(raw, scratch)?,
                }
                Cell::Text(scratch)
            }
        })
    }
}

/// Rows that turned out broken, with the reason of the first column that said so.
#[derive(Debug)]
pub(super) struct Broken {
    rows: usize,
    reasons: BTreeMap<usize, String>,
}

impl Broken {
    pub(super) fn new(rows: usize) -> Self {
        Self {
            rows,
            reasons: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, row: usize, reason: impl FnOnce() -> String) {
        debug_assert!(row < self.rows, "a broken row that does not exist");
        self.reasons.entry(row).or_insert_with(reason);
    }

    /// By row.
    pub(super) fn into_reasons(self) -> BTreeMap<usize, String> {
        self.reasons
    }
}
