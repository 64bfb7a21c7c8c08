//! Columns under construction. A column that was not asked for takes its values and drops them.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};

use super::rng::Rng;
use crate::Result;

/// Rows of one kind of event.
pub(super) trait EventColumns: Send {
    /// Number of columns of the event.
    const COLUMNS: usize;

    /// Columns for those `wanted`, with room for `rows`.
    fn new(wanted: &[bool], rows: usize) -> Self;

    /// Appends the event's row; `seed` seeds its random numbers.
    fn push(&mut self, number: u64, seed: u64, clock: &super::timeline::Clock);

    /// The finished column `index`, which must have been wanted; it starts anew.
    fn take(&mut self, index: usize) -> Result<ArrayRef>;
}

/// An `int8` or time column.
#[derive(Debug)]
pub(super) struct Ints {
    pub(super) wanted: bool,
    values: Vec<i64>,
    rows: usize,
}

impl Ints {
    pub(super) fn new(wanted: bool, rows: usize) -> Self {
        Self {
            wanted,
            values: Vec::with_capacity(if wanted { rows } else { 0 }),
            rows,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: i64) {
        if self.wanted {
            self.values.push(value);
        }
    }

    fn take(&mut self) -> Vec<i64> {
        std::mem::replace(&mut self.values, Vec::with_capacity(self.rows))
    }

    pub(super) fn take_ints(&mut self) -> ArrayRef {
        Arc::new(Int64Array::from(self.take()))
    }

    pub(super) fn take_times(&mut self) -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(self.take()))
    }
}

/// A text column: values end to end, and where each ends.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) wanted: bool,
    bytes: Vec<u8>,
    offsets: Vec<i32>,
    rows: usize,
}

impl Texts {
    pub(super) fn new(wanted: bool, rows: usize) -> Self {
        let mut texts = Self {
            wanted,
            bytes: Vec::new(),
            offsets: Vec::new(),
            rows,
        };
        texts.start();
        texts
    }

    fn start(&mut self) {
        if self.wanted {
            self.offsets = Vec::with_capacity(self.rows + 1);
            self.offsets.push(0);
        }
    }

    #[inline]
    fn end(&mut self) {
        self.offsets.push(self.bytes.len() as i32);
    }

    /// Appends the parts, end to end, as one value.
    #[inline]
    pub(super) fn push(&mut self, parts: &[&str]) {
        if self.wanted {
            for part in parts {
                self.bytes.extend_from_slice(part.as_bytes());
            }
            self.end();
        }
    }

    /// Draws `n` letters as one value.
    #[inline]
    pub(super) fn push_letters(&mut self, rng: &mut Rng, n: usize) {
        if self.wanted {
            rng.letters(n, &mut self.bytes);
            self.end();
        } else {
            rng.skip_letters(n);
        }
    }

    /// Appends what `write` appends as one value; `write` must do its draws all the same if the column is not wanted, for
    /// which it gets a scratch buffer.
    #[inline]
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        if self.wanted {
            self.end();
        } else {
            self.bytes.clear();
        }
    }

    pub(super) fn take(&mut self) -> Result<ArrayRef> {
        let room = self.bytes.len() + self.bytes.len() / 32;
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(room));
        let offsets = std::mem::take(&mut self.offsets);
        self.start();
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(Arc::new(StringArray::try_new(offsets, Buffer::from_vec(bytes), None)?))
    }
}

const CHANNELS: usize = 10_000;

/// The ordinary (not hot) channels of bids and their urls.
pub(super) static CHANNEL_URLS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    (0..CHANNELS as u32)
        .map(|i| {
            let mut url = base_url(u64::from(i));
            if Rng::new(u64::from(i)).below_u32(10) > 0 {
                let id = i64::from(i.cast_signed().reverse_bits()).abs();
                url.push_str(&format!("&channel_id={id}"));
            }
            (format!("channel-{i}"), url)
        })
        .collect()
});

/// The hot channels of bids and their urls.
pub(super) static HOT_CHANNEL_URLS: LazyLock<[(&str, String); 4]> = LazyLock::new(|| {
    let mut seed = 0..;
    ["Google", "Facebook", "Baidu", "Apple"].map(|name| (name, base_url(seed.next().unwrap_or_default())))
});

fn base_url(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut url = "https://www.nexmark.com".to_owned();
    for _ in 0..3 {
        url.push('/');
        let len = 3 + rng.below(2);
        for _ in 0..len {
            url.push(match rng.below_u32(13) {
                0 => '_',
                _ => char::from(rng.letter()),
            });
        }
    }
    url.push_str("/item.htm?query=1");
    url
}
