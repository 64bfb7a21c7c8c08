//! Where records end in a text, and reading a file record by record.
//!
//! A record ends with its line; in CSV, with the first line break outside quotes. So a record's end can only be told by reading from a
//! record's start, and ranges are cut at such ends only.

use std::sync::Arc;

use memchr::{memchr, memchr2};

use super::store::{Content, Reading, Trouble};
use crate::RuntimeError;

/// Bytes asked for at once.
const READ_BYTES: usize = 1 << 20;
/// A record that is longer stops the source: most likely a quote is not closed.
pub(super) const RECORD_BYTES_MAX: usize = 16 << 20;

/// How records are told from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    /// A line each.
    Lines,
    /// CSV with these marks.
    Csv { quote: u8, escape: u8 },
}

/// Finds record ends in a growing buffer, every byte looked at once.
#[derive(Debug)]
struct Splitter {
    syntax: Syntax,
    /// First byte not looked at.
    at: usize,
    in_quotes: bool,
}

impl Splitter {
    /// One past the next record's line break.
    #[inline]
    fn next_end(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.syntax {
            Syntax::Lines => {
                let end = memchr(b'\n', bytes.get(self.at..)?).map(|i| self.at + i + 1);
                self.at = end.unwrap_or(bytes.len());
                end
            }
            Syntax::Csv { quote, escape } => self.next_csv_end(bytes, quote, escape),
        }
    }

    fn next_csv_end(&mut self, bytes: &[u8], quote: u8, escape: u8) -> Option<usize> {
        loop {
            let rest = bytes.get(self.at..)?;
            let other = if self.in_quotes { escape } else { b'\n' };
            let Some(found) = memchr2(quote, other, rest) else {
                self.at = bytes.len();
                return None;
            };
            let at = self.at + found;
            if !self.in_quotes {
                self.at = at + 1;
                if bytes[at] == b'\n' {
                    return Some(self.at);
                }
                self.in_quotes = true;
            } else if bytes[at] == escape && escape != quote {
                // What follows decides; wait for it.
                let Some(next) = bytes.get(at + 1) else {
                    self.at = at;
                    return None;
                };
                self.at = at + if *next == quote || *next == escape { 2 } else { 1 };
            } else {
                // A doubled quote closes and opens again.
                self.in_quotes = false;
                self.at = at + 1;
            }
        }
    }
}

/// A record's place in the buffer, without its line break.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: usize,
    end: usize,
}

/// Reads the records of a range of a file.
pub(super) struct Records {
    content: Arc<dyn Content>,
    name: String,
    splitter: Splitter,
    buffer: Vec<u8>,
    /// Offset in the file of the buffer's first byte.
    base: u64,
    /// Buffer bytes that belong to records handed out before.
    consumed: usize,
    /// Where reading ends.
    to: u64,
    at_end: bool,
    /// The file's first record is the header.
    header: bool,
    spans: Vec<Span>,
}

impl Records {
    /// Records from `from`, which must be a record's start, up to `to` or the file's end. `header`: the file's first record is none.
    pub(super) fn new(content: Arc<dyn Content>, name: &str, syntax: Syntax, header: bool, from: u64, to: u64) -> Self {
        Self {
            content,
            name: name.to_owned(),
            splitter: Splitter {
                syntax,
                at: 0,
                in_quotes: false,
            },
            buffer: Vec::new(),
            base: from,
            consumed: 0,
            to,
            at_end: from >= to,
            header: header && from == 0,
            spans: Vec::new(),
        }
    }

    /// Reads up to `max` further records, at least one; `false` at the end.
    pub(super) fn advance(&mut self, max: usize) -> Reading<bool> {
        self.spans.clear();
        self.buffer.drain(..self.consumed);
        self.base += self.consumed as u64;
        self.splitter.at -= self.consumed;
        self.consumed = 0;
        loop {
            while self.spans.len() < max
                && let Some(end) = self.splitter.next_end(&self.buffer)
            {
                self.take(end);
            }
            if !self.spans.is_empty() {
                return Ok(true);
            }
            if self.at_end {
                // The last line may lack its break.
                let end = self.buffer.len();
                self.splitter.at = end;
                if self.consumed < end {
                    self.take(end);
                }
                return Ok(!self.spans.is_empty());
            }
            if self.buffer.len() - self.consumed > RECORD_BYTES_MAX {
                return Err(Trouble::Permanent(RuntimeError::User {
                    code: "54000",
                    message: format!(
                        "a record of file \"{}\" at byte {} is longer than {} MiB",
                        self.name,
                        self.base + self.consumed as u64,
                        RECORD_BYTES_MAX >> 20
                    ),
                    hint: Some("Look for a quote that is not closed.".to_owned()),
                }));
            }
            self.fill()?;
        }
    }

    /// Ends a record at `end`. Lines with nothing on them are no records.
    #[inline]
    fn take(&mut self, end: usize) {
        let start = std::mem::replace(&mut self.consumed, end);
        let mut stop = end;
        if stop > start && self.buffer[stop - 1] == b'\n' {
            stop -= 1;
        }
        if stop > start && self.buffer[stop - 1] == b'\r' {
            stop -= 1;
        }
        let blank = match self.splitter.syntax {
            Syntax::Lines => self.buffer[start..stop].iter().all(u8::is_ascii_whitespace),
            Syntax::Csv { .. } => start == stop,
        };
        if !blank && !std::mem::replace(&mut self.header, false) {
            self.spans.push(Span { start, end: stop });
        }
    }

    fn fill(&mut self) -> Reading<()> {
        const BOM: &[u8] = b"\xef\xbb\xbf";
        let length = self.buffer.len();
        let at = self.base + length as u64;
        let room = usize::try_from(self.to - at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        self.buffer.resize(length + room, 0);
        let read = match self.content.read_at(at, &mut self.buffer[length..]) {
            Ok(read) => read,
            Err(trouble) => {
                self.buffer.truncate(length);
                return Err(trouble);
            }
        };
        self.buffer.truncate(length + read);
        self.at_end = read == 0 || at + read as u64 >= self.to;
        if at == 0 && self.buffer.starts_with(BOM) {
            self.consumed = BOM.len();
            self.splitter.at = BOM.len();
        }
        Ok(())
    }

    /// Records read by the last [`Records::advance`].
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// A record's bytes.
    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        &self.buffer[span.start..span.end]
    }

    /// A record's offset in the file.
    pub(super) fn offset(&self, span: Span) -> u64 {
        self.base + span.start as u64
    }

    /// One past the last record read, its line break and blank lines behind it included: the start of the next record.
    pub(super) fn position(&self) -> u64 {
        self.base + self.consumed as u64
    }
}
