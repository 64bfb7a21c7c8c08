//! Fetched records, packed.
//!
//! ```text
//!   data    │ key₀ value₀ headers₀ │ key₁ value₁ headers₁ │ …       one allocation for many records
//!   ends    │  ─┘      ─┘       ─┘ │
//! ```

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::sources::RangeCheck;
use crate::sources::decode::Record;

/// Bytes after which a chunk takes no further record.
const CHUNK_BYTES: usize = 512 << 10;

const HAS_KEY: u8 = 1;
const HAS_VALUE: u8 = 2;
const HAS_TIME: u8 = 4;

/// A record as a connector hands it over.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    /// Offset; grows from record to record of a split.
    pub offset: u64,
    /// Its own time, microseconds since 1970.
    pub timestamp_us: Option<i64>,
    /// Key.
    pub key: Option<&'a [u8]>,
    /// Value.
    pub value: Option<&'a [u8]>,
    /// Headers, as [`put_header`] writes them; empty if no column shows them.
    pub headers: &'a [u8],
}

impl RawRecord<'_> {
    fn digest(&self) -> u64 {
        // The tags tell an absent part from an empty one.
        let part = |bytes: Option<&[u8]>, tag: u64| bytes.map_or(tag, |b| xxh3_64_with_seed(b, self.offset ^ tag));
        let key = part(self.key, 0x6b);
        let value = part(self.value, 0x76_0000);
        let time = self.timestamp_us.unwrap_or(i64::MIN) as u64;
        xxh3_64_with_seed(&time.to_le_bytes(), self.offset)
            .wrapping_add(key.rotate_left(21))
            .wrapping_add(value)
    }

    fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }
}

/// Appends a header to a record's.
pub fn put_header(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&value.map_or(u32::MAX, |v| v.len() as u32).to_le_bytes());
    out.extend_from_slice(value.unwrap_or_default());
}

/// Reads what [`put_header`] wrote.
pub fn headers(mut bytes: &[u8]) -> Vec<(&str, Option<&[u8]>)> {
    fn take<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
        let (length, rest) = bytes.split_at_checked(4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?);
        if length == u32::MAX {
            *bytes = rest;
            return Some(None);
        }
        let (part, rest) = rest.split_at_checked(length as usize)?;
        *bytes = rest;
        Some(Some(part))
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (Some(Some(name)), Some(value)) = (take(&mut bytes), take(&mut bytes)) else {
            break;
        };
        found.push((std::str::from_utf8(name).unwrap_or_default(), value));
    }
    found
}

/// Consecutive records of one lane of one split.
#[derive(Debug, Default)]
pub struct RecordBuffer {
    offsets: Vec<u64>,
    times: Vec<i64>,
    flags: Vec<u8>,
    /// Ends of key, value and headers.
    ends: Vec<[u32; 3]>,
    data: Vec<u8>,
    check: Option<RangeCheck>,
}

impl RecordBuffer {
    /// Whether the next record would better go into a new buffer.
    pub fn is_full(&self) -> bool {
        self.data.len() >= CHUNK_BYTES
    }

    /// Appends a record.
    pub fn push(&mut self, record: &RawRecord<'_>) {
        let mut flags = 0;
        let mut ends = [0; 3];
        if let Some(key) = record.key {
            flags |= HAS_KEY;
            self.data.extend_from_slice(key);
        }
        ends[0] = self.data.len() as u32;
        if let Some(value) = record.value {
            flags |= HAS_VALUE;
            self.data.extend_from_slice(value);
        }
        ends[1] = self.data.len() as u32;
        self.data.extend_from_slice(record.headers);
        ends[2] = self.data.len() as u32;
        if record.timestamp_us.is_some() {
            flags |= HAS_TIME;
        }
        self.offsets.push(record.offset);
        self.times.push(record.timestamp_us.unwrap_or_default());
        self.flags.push(flags);
        self.ends.push(ends);
        let one = RangeCheck {
            records: 1,
            bytes: record.bytes() as u64,
            digest: record.digest(),
        };
        self.check = Some(self.check.map_or(one, |c| c.and(one)));
    }

    /// Appends the records of `other`, which follow.
    pub fn append(&mut self, other: &Self) {
        let shift = self.data.len() as u32;
        self.data.extend_from_slice(&other.data);
        self.offsets.extend_from_slice(&other.offsets);
        self.times.extend_from_slice(&other.times);
        self.flags.extend_from_slice(&other.flags);
        self.ends.extend(other.ends.iter().map(|e| e.map(|end| end + shift)));
        self.check = Some(self.check().and(other.check()));
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// What it holds.
    pub fn check(&self) -> RangeCheck {
        self.check.unwrap_or_default()
    }

    /// Offset of the first record.
    pub fn first(&self) -> Option<u64> {
        self.offsets.first().copied()
    }

    /// Offset of the last record.
    pub fn last(&self) -> Option<u64> {
        self.offsets.last().copied()
    }

    /// Offset of record `i`.
    pub fn offset(&self, i: usize) -> u64 {
        self.offsets[i]
    }

    /// Time of record `i`.
    pub fn timestamp_us(&self, i: usize) -> Option<i64> {
        (self.flags[i] & HAS_TIME != 0).then(|| self.times[i])
    }

    fn start(&self, i: usize) -> usize {
        i.checked_sub(1).map_or(0, |before| self.ends[before][2] as usize)
    }

    /// Key and value of record `i`.
    pub fn record(&self, i: usize) -> Record<'_> {
        let [key, value, _] = self.ends[i].map(|e| e as usize);
        Record {
            key: (self.flags[i] & HAS_KEY != 0).then(|| &self.data[self.start(i)..key]),
            value: (self.flags[i] & HAS_VALUE != 0).then(|| &self.data[key..value]),
        }
    }

    /// Headers of record `i`, for [`headers`].
    pub fn headers(&self, i: usize) -> &[u8] {
        let [_, value, end] = self.ends[i].map(|e| e as usize);
        &self.data[value..end]
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.data.capacity() + self.offsets.capacity() * (8 + 8 + 1 + 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw<'a>(offset: u64, key: Option<&'a [u8]>, value: Option<&'a [u8]>) -> RawRecord<'a> {
        RawRecord {
            offset,
            timestamp_us: Some(5),
            key,
            value,
            headers: &[],
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut headers_of = Vec::new();
        put_header(&mut headers_of, "trace", Some(b"7"));
        put_header(&mut headers_of, "none", None);
        let mut buffer = RecordBuffer::default();
        buffer.push(&raw(3, Some(b"k"), Some(b"value")));
        buffer.push(&RawRecord {
            headers: &headers_of,
            timestamp_us: None,
            ..raw(9, None, Some(b""))
        });
        let mut more = RecordBuffer::default();
        more.push(&raw(10, Some(b""), None));
        buffer.append(&more);
        let record = |i| {
            let r = buffer.record(i);
            (r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec))
        };
        assert_eq!(record(0), (Some(b"k".to_vec()), Some(b"value".to_vec())));
        assert_eq!(record(1), (None, Some(Vec::new())));
        assert_eq!(record(2), (Some(Vec::new()), None));
        assert_eq!((buffer.timestamp_us(0), buffer.timestamp_us(1)), (Some(5), None));
        assert_eq!(
            headers(buffer.headers(1)),
            [("trace", Some(b"7".as_slice())), ("none", None)]
        );
        assert_eq!(buffer.check().records, 3);
        assert_eq!((buffer.first(), buffer.last()), (Some(3), Some(10)));
    }

    #[test]
    fn digests_tell_records_apart() {
        let digests = [
            raw(1, None, Some(b"a")),
            raw(2, None, Some(b"a")),
            raw(1, Some(b"a"), None),
            raw(1, Some(b""), Some(b"a")),
            raw(1, None, Some(b"b")),
            RawRecord {
                timestamp_us: None,
                ..raw(1, None, Some(b"a"))
            },
        ]
        .map(|r| r.digest());
        for (i, a) in digests.iter().enumerate() {
            assert!(digests[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }
}
