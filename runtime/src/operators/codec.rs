//! Bytes of state entries: little-endian fields after a version byte, read back with bounds checks.
//!
//! Keys are built from encoded parts so that entries of one group, join key or partition stand together, in the order of their
//! sub-keys:
//!
//! ```text
//!   ┌──────────────┬───────────┬─────────┐
//!   │ u32 key size │ key bytes │ sub-key │
//!   └──────────────┴───────────┴─────────┘
//! ```

use crate::{Result, RuntimeError};

/// Version of every value's layout; the first byte.
pub const VERSION: u8 = 2;

/// Starts a value with the version and the key's hash (so that a restore need not hash again).
pub fn begin(out: &mut Vec<u8>, hash: u64) {
    out.clear();
    out.push(VERSION);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// Appends a field.
pub fn put_i64(out: &mut Vec<u8>, v: i64) {
    out.extend_from_slice(&v.to_le_bytes());
}

/// Appends bytes after their size.
pub fn put_bytes(out: &mut Vec<u8>, v: &[u8]) {
    out.extend_from_slice(&(v.len() as u32).to_le_bytes());
    out.extend_from_slice(v);
}

/// Appends a number in as few bytes as it needs: small ones of either sign are one byte.
pub fn put_varint(out: &mut Vec<u8>, v: i64) {
    let mut rest = ((v << 1) ^ (v >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Joins a key and a sub-key.
pub fn join_key(out: &mut Vec<u8>, key: &[u8], sub: &[u8]) {
    out.clear();
    out.extend_from_slice(&(key.len() as u32).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(sub);
}

/// Splits what [`join_key`] joined.
///
/// # Errors
/// Damaged bytes.
pub fn split_key(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let damaged = || RuntimeError::internal("state key is damaged");
    let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    rest.split_at_checked(u32::from_be_bytes(*size) as usize)
        .ok_or_else(damaged)
}

/// Reads fields in the order in which they were put.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a value begun with [`begin`]; also gives the hash.
    ///
    /// # Errors
    /// An unknown version, or too few bytes.
    pub fn open(bytes: &'a [u8]) -> Result<(Self, u64)> {
        let mut reader = Self { rest: bytes };
        let version = reader.array::<1>()?[0];
        if version != VERSION {
            return Err(RuntimeError::internal(format!(
                "operator state has version {version}, this build reads {VERSION}"
            )));
        }
        let hash = u64::from_le_bytes(reader.array()?);
        Ok((reader, hash))
    }

    /// A fixed number of bytes.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| RuntimeError::internal("operator state ends early"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// A field of [`put_i64`].
    ///
    /// # Errors
    /// Too few bytes.
    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A field of [`put_varint`].
    ///
    /// # Errors
    /// Too few bytes, or too many for a number.
    pub fn varint(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.array::<1>()?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(RuntimeError::internal("operator state holds a number that is too long"))
    }

    /// Whether all fields have been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// A field of [`put_bytes`].
    ///
    /// # Errors
    /// Too few bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let size = u32::from_le_bytes(self.array()?) as usize;
        let (head, rest) = self
            .rest
            .split_at_checked(size)
            .ok_or_else(|| RuntimeError::internal("operator state ends early"))?;
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_and_keys_come_back() {
        let numbers = [0, 1, -1, 63, 64, -64, -65, 1 << 40, i64::MAX, i64::MIN];
        let mut bytes = Vec::new();
        begin(&mut bytes, 7);
        numbers.iter().for_each(|&n| put_varint(&mut bytes, n));
        let (mut reader, hash) = Reader::open(&bytes).unwrap();
        assert_eq!(hash, 7);
        for n in numbers {
            assert_eq!(reader.varint().unwrap(), n);
        }
        assert!(reader.is_empty() && reader.varint().is_err());
        let mut key = Vec::new();
        join_key(&mut key, b"ab", b"cd");
        assert_eq!(split_key(&key).unwrap(), (&b"ab"[..], &b"cd"[..]));
        assert!(split_key(&key[..5]).is_err());
    }
}
