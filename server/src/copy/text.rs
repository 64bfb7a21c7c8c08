//! COPY's text format: fields between delimiters, backslash escapes, one record a line.

use std::borrow::Cow;

use levee_planner::sql::CopyFormat;

use super::{FieldText, Split};
use crate::error::Result;

/// Finds one record and hands its fields to `sink`.
pub(crate) fn record(
    data: &[u8],
    copy: &CopyFormat,
    last: bool,
    sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>,
) -> Result<Split> {
    let Some((line, bytes)) = line(data, last) else {
        return Ok(Split::Incomplete);
    };
    if line == b"\\." {
        return Ok(Split::End);
    }
    let mut from = 0;
    let mut i = 0;
    let mut escapes = false;
    while i < line.len() {
        match line[i] {
            b'\\' => {
                escapes = true;
                i += 2;
            }
            b if b == copy.delimiter => {
                field(&line[from..i], escapes, copy, sink)?;
                i += 1;
                from = i;
                escapes = false;
            }
            _ => i += 1,
        }
    }
    field(&line[from..], escapes, copy, sink)?;
    Ok(Split::Record { bytes, lines: 1 })
}

/// The first line without its end, and the bytes that it takes. An end after an odd number of backslashes is data.
fn line(data: &[u8], last: bool) -> Option<(&[u8], usize)> {
    let mut i = 0;
    while i < data.len() {
        match data[i] {
            b'\\' => i += 2,
            b'\n' => return Some((&data[..i], i + 1)),
            b'\r' => {
                return match data.get(i + 1) {
                    Some(b'\n') => Some((&data[..i], i + 2)),
                    Some(_) => Some((&data[..i], i + 1)),
                    None if last => Some((&data[..i], i + 1)),
                    None => None,
                };
            }
            _ => i += 1,
        }
    }
    last.then_some((data, data.len()))
}

fn field(
    raw: &[u8],
    escapes: bool,
    copy: &CopyFormat,
    sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>,
) -> Result<()> {
    if raw == copy.null.as_bytes() {
        return sink(FieldText::Marker { quoted: false });
    }
    if !escapes {
        return sink(FieldText::Value(Cow::Borrowed(raw)));
    }
    sink(FieldText::Value(Cow::Owned(unescape(raw))))
}

fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut i = 0;
    while i < raw.len() {
        let b = raw[i];
        i += 1;
        if b != b'\\' || i == raw.len() {
            out.push(b);
            continue;
        }
        let c = raw[i];
        i += 1;
        match c {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'0'..=b'7' => {
                let mut v = u32::from(c - b'0');
                for _ in 0..2 {
                    match raw.get(i) {
                        Some(d @ b'0'..=b'7') => v = v * 8 + u32::from(d - b'0'),
                        _ => break,
                    }
                    i += 1;
                }
                out.push(u8::try_from(v & 0xff).unwrap_or(0));
            }
            b'x' if raw.get(i).is_some_and(u8::is_ascii_hexdigit) => {
                let mut v = 0;
                for _ in 0..2 {
                    let Some(d) = raw.get(i).and_then(|&d| char::from(d).to_digit(16)) else {
                        break;
                    };
                    v = v * 16 + d;
                    i += 1;
                }
                out.push(u8::try_from(v).unwrap_or(0));
            }
            other => out.push(other),
        }
    }
    out
}
