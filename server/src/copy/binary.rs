//! COPY's binary format: a header, then for each row the number of its fields and each field's length and bytes.

use super::{FieldText, Split};
use crate::error::{Result, SqlError};

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

fn bad(what: &str) -> SqlError {
    SqlError::new("22P04", what)
}

fn int32(data: &[u8], at: usize) -> Option<i32> {
    let bytes = data.get(at..at + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

/// Length of the header at the start of the data; `None`: it has not all arrived.
pub(crate) fn header(data: &[u8], last: bool) -> Result<Option<usize>> {
    let known = data.len().min(SIGNATURE.len());
    if data[..known] != SIGNATURE[..known] || (last && known < SIGNATURE.len()) {
        return Err(bad("COPY file signature not recognized"));
    }
    let (Some(flags), Some(extension)) = (int32(data, 11), int32(data, 15)) else {
        return if last {
            Err(bad("invalid COPY file header (missing flags)"))
        } else {
            Ok(None)
        };
    };
    if flags.cast_unsigned() & 0xffff_0000 != 0 {
        return Err(bad("unrecognized critical flags in COPY file header"));
    }
    let extension = usize::try_from(extension).map_err(|_| bad("invalid COPY file header (wrong length)"))?;
    let length = 19 + extension;
    if data.len() >= length {
        return Ok(Some(length));
    }
    if last {
        return Err(bad("invalid COPY file header (wrong length)"));
    }
    Ok(None)
}

/// Finds one row and hands its fields to `sink`.
pub(crate) fn record(data: &[u8], last: bool, sink: &mut dyn FnMut(FieldText<'_>) -> Result<()>) -> Result<Split> {
    let incomplete = || {
        if last {
            Err(bad("unexpected EOF in COPY data"))
        } else {
            Ok(Split::Incomplete)
        }
    };
    let Some(count) = data.get(..2) else {
        return incomplete();
    };
    let count = i16::from_be_bytes([count[0], count[1]]);
    if count == -1 {
        return Ok(Split::End);
    }
    let count = usize::try_from(count).map_err(|_| bad("row field count is negative"))?;
    // The whole row must be there before the first field is taken.
    let mut at = 2;
    for _ in 0..count {
        let Some(length) = int32(data, at) else {
            return incomplete();
        };
        at += 4;
        if length < -1 {
            return Err(bad("invalid field size"));
        }
        at += usize::try_from(length).unwrap_or(0);
        if at > data.len() {
            return incomplete();
        }
    }
    let mut at = 2;
    for _ in 0..count {
        let length = int32(data, at).unwrap_or(-1);
        at += 4;
        match usize::try_from(length) {
            Err(_) => sink(FieldText::Marker { quoted: false })?,
            Ok(n) => {
                sink(FieldText::Raw(&data[at..at + n]))?;
                at += n;
            }
        }
    }
    Ok(Split::Record { bytes: at, lines: 1 })
}
