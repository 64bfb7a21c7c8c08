//! Rows → COPY data: what COPY … TO STDOUT sends.
//!
//! One CopyData message a row, as PostgreSQL sends them, written straight into the connection's output buffer.

use bytes::{BufMut, BytesMut};
use levee_planner::sql::{CopyFormat, CopyHeader, CopyKind};

use crate::types::encode::{BatchEncoder, TextStyle};

/// PostgreSQL's signature of the binary format, flags and the extension's length.
const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Writes the rows of one COPY.
#[derive(Debug)]
pub struct Unloader {
    format: CopyFormat,
    style: TextStyle,
    /// A value's text, before it is escaped.
    value: BytesMut,
    /// The binary header has still to go out: PostgreSQL sends it in the first row's message, and drivers count on that.
    header_due: bool,
}

impl Unloader {
    /// With the session's text style.
    pub fn new(format: CopyFormat, style: TextStyle) -> Self {
        Self {
            format,
            style,
            value: BytesMut::new(),
            header_due: false,
        }
    }

    /// Whether values go in binary form.
    pub fn binary(&self) -> bool {
        self.format.kind == CopyKind::Binary
    }

    /// What comes before the rows.
    pub fn begin(&mut self, names: &[&str], out: &mut BytesMut) {
        if self.binary() {
            self.header_due = true;
            return;
        }
        if self.format.header == CopyHeader::No {
            return;
        }
        let format = &self.format;
        message(out, |out| {
            for (i, name) in names.iter().enumerate() {
                if i > 0 {
                    out.put_u8(format.delimiter);
                }
                if format.csv() {
                    put_csv(out, name.as_bytes(), format, false, names.len() == 1);
                } else {
                    put_escaped(out, name.as_bytes(), format.delimiter);
                }
            }
            out.put_u8(b'\n');
        });
    }

    /// One row.
    pub fn row(&mut self, batch: &BatchEncoder, row: usize, out: &mut BytesMut) {
        let (format, style, value) = (&self.format, &self.style, &mut self.value);
        let n = batch.columns();
        let header = std::mem::take(&mut self.header_due);
        message(out, |out| {
            if format.kind == CopyKind::Binary {
                if header {
                    out.put_slice(BINARY_HEADER);
                }
                batch.put_copy_binary(out, row);
                return;
            }
            for column in 0..n {
                if column > 0 {
                    out.put_u8(format.delimiter);
                }
                value.clear();
                if !batch.put_value_text(value, column, row, style) {
                    out.put_slice(format.null.as_bytes());
                } else if format.csv() {
                    let force = format.force_quote.get(column).copied().unwrap_or(false);
                    put_csv(out, value, format, force, n == 1);
                } else {
                    put_escaped(out, value, format.delimiter);
                }
            }
            out.put_u8(b'\n');
        });
    }

    /// What comes after the rows.
    pub fn end(&mut self, out: &mut BytesMut) {
        if self.binary() {
            let header = std::mem::take(&mut self.header_due);
            message(out, |out| {
                if header {
                    out.put_slice(BINARY_HEADER);
                }
                out.put_i16(-1);
            });
        }
    }
}

/// A CopyData message with what `body` writes.
fn message(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(b'd');
    let at = out.len();
    out.put_u32(0);
    body(out);
    let length = u32::try_from(out.len() - at).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_escaped(out: &mut BytesMut, value: &[u8], delimiter: u8) {
    let mut from = 0;
    for (i, &b) in value.iter().enumerate() {
        let escape = match b {
            b'\\' => b'\\',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            0x0b => b'v',
            b if b == delimiter => b,
            _ => continue,
        };
        out.put_slice(&value[from..i]);
        out.put_u8(b'\\');
        out.put_u8(escape);
        from = i + 1;
    }
    out.put_slice(&value[from..]);
}

/// A CSV field. `alone`: the row has no other, so a lone `\.` must be quoted.
fn put_csv(out: &mut BytesMut, value: &[u8], format: &CopyFormat, force: bool, alone: bool) {
    let special = |b: &u8| *b == format.delimiter || *b == format.quote || matches!(b, b'\n' | b'\r');
    let quoted = force || value == format.null.as_bytes() || (alone && value == b"\\.") || value.iter().any(special);
    if !quoted {
        out.put_slice(value);
        return;
    }
    out.put_u8(format.quote);
    for &b in value {
        if b == format.quote || b == format.escape {
            out.put_u8(format.escape);
        }
        out.put_u8(b);
    }
    out.put_u8(format.quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv() -> CopyFormat {
        CopyFormat {
            kind: CopyKind::Csv,
            header: CopyHeader::No,
            delimiter: b',',
            null: String::new(),
            quote: b'"',
            escape: b'"',
            force_quote: Vec::new(),
            force_null: Vec::new(),
            force_not_null: Vec::new(),
        }
    }

    fn field(value: &str, force: bool) -> String {
        let mut out = BytesMut::new();
        put_csv(&mut out, value.as_bytes(), &csv(), force, false);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn csv_quotes_what_would_be_read_otherwise() {
        assert_eq!(field("a b", false), "a b");
        assert_eq!(field("a,b", false), "\"a,b\"");
        assert_eq!(field("say \"x\"", false), "\"say \"\"x\"\"\"");
        assert_eq!(field("", false), "\"\"");
        assert_eq!(field("a", true), "\"a\"");
    }

    #[test]
    fn text_escapes_controls_and_the_delimiter() {
        let mut out = BytesMut::new();
        put_escaped(&mut out, b"a\tb\\c\nd|e", b'|');
        assert_eq!(&out[..], b"a\\tb\\\\c\\nd\\|e");
    }
}
