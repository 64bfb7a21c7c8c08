//! CSV text → slots, as PostgreSQL's COPY reads it: a quote may open anywhere in a field, the escape is only one inside quotes, and an
//! unquoted field that equals the null string is NULL.

use levee_planner::connectors::encode::CsvOptions;

use super::columns::Column;
use super::slots::{CsvMarks, Kind, Rows, Slot};

/// Splits a record (a line ending after it is dropped) into the slots of the current row.
///
/// # Errors
/// Too few or too many fields, a quote that is not closed, a line break or NUL outside quotes.
pub(super) fn row(text: &str, options: &CsvOptions, columns: &[Column], rows: &mut Rows) -> Result<(), String> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if let Some(at) = memchr::memchr(0, text.as_bytes()) {
        return Err(format!("invalid byte 0x00 at byte {at}"));
    }
    let slots = rows.current();
    let mut fields = Fields::new(text, 0, options);
    for (slot, column) in slots.iter_mut().zip(columns) {
        *slot = fields
            .next_field()?
            .ok_or_else(|| format!("missing data for column \"{}\"", column.name()))?;
    }
    if fields.next_field()?.is_some() {
        return Err(format!("more fields than the {} columns", columns.len()));
    }
    Ok(())
}

/// Cuts a record at its delimiters.
pub(super) struct Fields<'a> {
    text: &'a str,
    at: usize,
    more: bool,
    options: &'a CsvOptions,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str, at: usize, options: &'a CsvOptions) -> Self {
        Self {
            text,
            at,
            more: true,
            options,
        }
    }

    /// The next field.
    ///
    /// # Errors
    /// A quote that is not closed, or a line break outside quotes.
    pub(super) fn next_field(&mut self) -> Result<Option<Slot>, String> {
        if !self.more {
            return Ok(None);
        }
        let CsvOptions {
            delimiter,
            quote,
            escape,
            ..
        } = *self.options;
        let bytes = self.text.as_bytes();
        let start = self.at;
        // Quotes met, and whether the last one closed the field.
        let (mut quotes, mut inside, mut escaped) = (0, false, false);
        let mut at = start;
        let end = loop {
            let Some(&b) = bytes.get(at) else {
                if inside {
                    return Err("a quoted field is not closed".to_owned());
                }
                self.more = false;
                break at;
            };
            if inside {
                if b == escape && bytes.get(at + 1).is_some_and(|n| *n == quote || *n == escape) {
                    escaped = true;
                    at += 1;
                } else if b == quote {
                    inside = false;
                }
            } else if b == delimiter {
                break at;
            } else if b == quote {
                quotes += 1;
                inside = true;
            } else if b == b'\n' || b == b'\r' {
                return Err(format!("a line break outside quotes, at byte {at}"));
            }
            at += 1;
        };
        self.at = end + 1;
        Ok(Some(self.slot(start, end, quotes, escaped)))
    }

    fn slot(&self, start: usize, end: usize, quotes: usize, escaped: bool) -> Slot {
        let raw = &self.text.as_bytes()[start..end];
        if quotes == 0 {
            let kind = if raw == self.options.null.as_bytes() {
                Kind::Null
            } else {
                Kind::Plain
            };
            return Slot::new(kind, start, end);
        }
        let whole = raw.first() == Some(&self.options.quote) && raw.last() == Some(&self.options.quote);
        if quotes == 1 && !escaped && whole {
            return Slot::new(Kind::Plain, start + 1, end - 1);
        }
        Slot::new(Kind::Escaped, start, end)
    }
}

/// Appends a field without its quotes and escapes to `out`.
pub(super) fn unescape(raw: &str, marks: CsvMarks, out: &mut String) {
    let bytes = raw.as_bytes();
    let mut inside = false;
    // Start of what is copied as it stands; quotes and escapes are single bytes, so cuts fall between characters.
    let mut from = 0;
    let mut at = 0;
    while let Some(&b) = bytes.get(at) {
        if inside
            && b == marks.escape
            && bytes
                .get(at + 1)
                .is_some_and(|n| *n == marks.quote || *n == marks.escape)
        {
            out.push_str(&raw[from..at]);
            from = at + 1;
            at += 2;
        } else if b == marks.quote {
            out.push_str(&raw[from..at]);
            inside = !inside;
            at += 1;
            from = at;
        } else {
            at += 1;
        }
    }
    out.push_str(&raw[from..]);
}
