//! COPY's csv format: quoted fields may hold delimiters, quotes and line ends. An unquoted NULL marker is NULL, a quoted one is
//! a value, unless FORCE_NULL or FORCE_NOT_NULL say otherwise.

use std::borrow::Cow;

use levee_planner::sql::CopyFormat;

use super::{FieldText, Split};
use crate::error::{Result, SqlError};

/// Finds one record and hands its fields to `sink`.
pub(crate) fn record(
    data: &[u8],
    copy: &CopyFormat,
    last: bool,
    sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>,
) -> Result<Split> {
    let Some(end) = record_end(data, copy, last)? else {
        return Ok(Split::Incomplete);
    };
    let line = &data[..end.content];
    if line == b"\\." {
        return Ok(Split::End);
    }
    let mut i = 0;
    loop {
        i = field(line, i, copy, sink)?;
        match line.get(i) {
            // `field` stops only at a delimiter or at the end.
            Some(_) => i += 1,
            None => break,
        }
        if i == line.len() {
            field(line, i, copy, sink)?;
            break;
        }
    }
    Ok(Split::Record {
        bytes: end.bytes,
        lines: end.lines,
    })
}

struct End {
    content: usize,
    bytes: usize,
    lines: u64,
}

/// The end of the first record, line ends in quotes left out.
fn record_end(data: &[u8], copy: &CopyFormat, last: bool) -> Result<Option<End>> {
    let mut quoted = false;
    let mut lines = 1;
    let mut i = 0;
    while i < data.len() {
        let b = data[i];
        if quoted {
            if b == copy.escape
                && b != copy.quote
                && data.get(i + 1).is_some_and(|&n| n == copy.quote || n == copy.escape)
            {
                i += 2;
                continue;
            }
            if b == copy.quote {
                quoted = false;
            } else if b == b'\n' {
                lines += 1;
            }
        } else if b == copy.quote {
            quoted = true;
        } else if b == b'\n' {
            return Ok(Some(End {
                content: i,
                bytes: i + 1,
                lines,
            }));
        } else if b == b'\r' {
            let bytes = match data.get(i + 1) {
                Some(b'\n') => i + 2,
                Some(_) => i + 1,
                None if last => i + 1,
                None => return Ok(None),
            };
            return Ok(Some(End {
                content: i,
                bytes,
                lines,
            }));
        }
        i += 1;
    }
    if !last {
        return Ok(None);
    }
    if quoted {
        return Err(SqlError::new("22P04", "unterminated CSV quoted field"));
    }
    Ok(Some(End {
        content: data.len(),
        bytes: data.len(),
        lines,
    }))
}

/// Reads the field that starts at `from`; answers the position of the delimiter after it, or the line's end.
fn field(
    line: &[u8],
    from: usize,
    copy: &CopyFormat,
    sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>,
) -> Result<usize> {
    let plain = line[from..]
        .iter()
        .position(|&b| b == copy.delimiter || b == copy.quote)
        .map_or(line.len(), |p| from + p);
    if line.get(plain).is_none_or(|&b| b == copy.delimiter) {
        let raw = &line[from..plain];
        let field = if raw == copy.null.as_bytes() {
            FieldText::Marker { quoted: false }
        } else {
            FieldText::Value(Cow::Borrowed(raw))
        };
        sink(field)?;
        return Ok(plain);
    }
    let mut out = line[from..plain].to_vec();
    let mut quoted = false;
    let mut i = plain;
    while i < line.len() {
        let b = line[i];
        if quoted && b == copy.escape && line.get(i + 1).is_some_and(|&n| n == copy.quote || n == copy.escape) {
            out.push(line[i + 1]);
            i += 2;
            continue;
        }
        if b == copy.quote {
            quoted = !quoted;
        } else if !quoted && b == copy.delimiter {
            break;
        } else {
            out.push(b);
        }
        i += 1;
    }
    sink(if out == copy.null.as_bytes() {
        FieldText::Marker { quoted: true }
    } else {
        FieldText::Value(Cow::Owned(out))
    })?;
    Ok(i)
}
