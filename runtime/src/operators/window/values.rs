//! Results of calls over frames.
//!
//! An aggregate over many frames of neighbouring rows is computed by halving: what all frames of a stretch share is added up once, then
//! each half goes on from there.
//!
//! ```text
//!   frames of rows 4…7        [1 2 3 4] [2 3 4 5] [3 4 5 6] [4 5 6 7]
//!   all share                                  4
//!   halves share                 2 3 4               4 5 6
//!   each                       1 +     + 5         3 +     + 7
//! ```
//!
//! Rows are only ever added, so the plainest accumulators do, and sums are exact in any order. Cost: rows and frames, times the logarithm
//! of the number of frames, in updates of whole columns.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, StringBuilder, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field};

use super::super::aggregate::accumulator::{Accumulator, Failures, Rows};
use super::super::codec::{self, Reader};
use super::distance::pick;
use crate::{Diffs, Result, RuntimeError};

/// Levels of halving, at most: more than the logarithm of any number of frames.
const LEVELS: u32 = 40;
/// Frames that are not halved any more.
const LEAF: usize = 16;

/// Rows of frames: the first one, and the one behind the last.
pub type Bounds = (u32, u32);

/// Frames that begin with their partition: which ones, and the state of the rows in front of those at hand.
pub struct Stretch<'a> {
    /// Frames.
    pub frames: Range<usize>,
    /// Nothing, or what an accumulator encoded.
    pub base: Option<&'a [u8]>,
}

/// One aggregate over frames.
pub struct Framed<'a> {
    /// Empty, its results are read from slots of its own.
    pub accumulator: &'a mut dyn Accumulator,
    /// Argument.
    pub arg: Option<ArrayRef>,
    /// Rows that count.
    pub filter: Option<BooleanArray>,
    /// Frames.
    pub frames: &'a [Bounds],
    buffer: Vec<u8>,
    /// Rows to be added at the end: slots and rows.
    slots: Vec<u32>,
    rows: Vec<u32>,
}

impl<'a> Framed<'a> {
    /// One over these rows.
    pub fn new(
        accumulator: &'a mut dyn Accumulator,
        arg: Option<ArrayRef>,
        filter: Option<BooleanArray>,
        frames: &'a [Bounds],
    ) -> Self {
        Self {
            accumulator,
            arg,
            filter,
            frames,
            buffer: Vec::new(),
            slots: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// One result a frame.
    ///
    /// # Errors
    /// An argument has another type than declared.
    pub fn results(mut self, stretches: &[Stretch<'_>], failures: &mut Failures) -> Result<ArrayRef> {
        let n = self.frames.len();
        self.accumulator.grow(LEVELS as usize + n);
        for stretch in stretches {
            match stretch.base {
                Some(base) => self.accumulator.decode(0, &mut Reader::open(base)?.0)?,
                None => self.accumulator.clear(0),
            }
            self.halve(stretch.frames.clone(), 0, (0, 0))?;
        }
        self.flush()?;
        let slots: Vec<u32> = (0..n as u32).map(|i| LEVELS + i).collect();
        self.accumulator.evaluate(&slots, failures)
    }

    /// Slot `level` holds the rows `shared`, which are in all of the frames.
    fn halve(&mut self, frames: Range<usize>, level: u32, shared: Bounds) -> Result<()> {
        if frames.len() <= LEAF || level + 1 >= LEVELS {
            for i in frames {
                self.copy(level, LEVELS + i as u32)?;
                for part in beyond(self.frames[i], shared) {
                    self.slots.extend(part.clone().map(|_| LEVELS + i as u32));
                    self.rows.extend(part);
                }
            }
            return if self.rows.len() > 8192 { self.flush() } else { Ok(()) };
        }
        let middle = frames.start + frames.len() / 2;
        for half in [frames.start..middle, middle..frames.end] {
            let own = &self.frames[half.clone()];
            let lo = own.iter().map(|f| f.0).max().unwrap_or(0);
            let hi = own.iter().map(|f| f.1).min().unwrap_or(0);
            self.copy(level, level + 1)?;
            let core = if lo < hi { (lo, hi) } else { shared };
            for part in beyond(core, shared) {
                self.add(level + 1, part)?;
            }
            self.halve(half, level + 1, core)?;
        }
        Ok(())
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        codec::begin(&mut self.buffer, 0);
        self.accumulator.encode(from, &mut self.buffer);
        self.accumulator.decode(to, &mut Reader::open(&self.buffer)?.0)
    }

    /// Adds neighbouring rows to a slot.
    fn add(&mut self, slot: u32, rows: Range<u32>) -> Result<()> {
        let (from, n) = (rows.start as usize, rows.len());
        let arg = self.arg.as_ref().map(|a| a.slice(from, n));
        let filter = self.filter.as_ref().map(|f| f.slice(from, n));
        let slots = vec![slot; n];
        self.accumulator
            .update(&Rows::new(&slots, &Diffs::Ones, arg.as_ref(), filter.as_ref()))
    }

    fn flush(&mut self) -> Result<()> {
        let (slots, rows) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.rows));
        if rows.is_empty() {
            return Ok(());
        }
        let rows = UInt32Array::from(rows);
        let arg = self.arg.as_ref().map(|a| take(a, &rows, None)).transpose()?;
        let filter = self.filter.as_ref().map(|f| take(f, &rows, None)).transpose()?;
        let filter = filter.as_ref().map(|f| f.as_boolean());
        self.accumulator
            .update(&Rows::new(&slots, &Diffs::Ones, arg.as_ref(), filter))
    }
}

/// The rows of `frame` that are not among `shared`, which lies within it if it is not empty.
fn beyond(frame: Bounds, shared: Bounds) -> [Range<u32>; 2] {
    if shared.0 >= shared.1 {
        return [frame.0..frame.1, 0..0];
    }
    [frame.0..shared.0, shared.1..frame.1]
}

/// States after some rows: goes on from `base` through `rows`, and calls `mark` at each of `stops` (rows from the first one, ascending) and
/// not at the end.
///
/// # Errors
/// An argument has another type than declared.
pub fn advance(
    accumulator: &mut dyn Accumulator,
    (arg, filter): (Option<&ArrayRef>, Option<&BooleanArray>),
    base: Option<&[u8]>,
    rows: Range<usize>,
    stops: &[usize],
    mark: &mut dyn FnMut(Vec<u8>),
) -> Result<()> {
    accumulator.grow(1);
    match base {
        Some(base) => accumulator.decode(0, &mut Reader::open(base)?.0)?,
        None => accumulator.clear(0),
    }
    let mut from = rows.start;
    for &stop in stops {
        let n = stop - from;
        let slots = vec![0; n];
        let arg = arg.map(|a| a.slice(from, n));
        let filter = filter.map(|f| f.slice(from, n));
        accumulator.update(&Rows::new(&slots, &Diffs::Ones, arg.as_ref(), filter.as_ref()))?;
        let mut state = Vec::new();
        codec::begin(&mut state, 0);
        accumulator.encode(0, &mut state);
        mark(state);
        from = stop;
    }
    Ok(())
}

/// Arrays, or texts with the delimiter, of the values in frames.
///
/// # Errors
/// The values cannot be put together.
pub fn lists(
    values: &ArrayRef,
    filter: Option<&BooleanArray>,
    delimiter: Option<&str>,
    frames: &[Bounds],
) -> Result<ArrayRef> {
    let counts = |i: u32| {
        let passed = filter.is_none_or(|f| f.is_valid(i as usize) && f.value(i as usize));
        passed && (delimiter.is_none() || values.is_valid(i as usize))
    };
    let Some(delimiter) = delimiter else {
        let mut rows = Vec::new();
        let mut lengths = Vec::with_capacity(frames.len());
        for &(lo, hi) in frames {
            let before = rows.len();
            rows.extend((lo..hi).filter(|&i| counts(i)));
            lengths.push(rows.len() - before);
        }
        if i32::try_from(rows.len()).is_err() {
            return Err(RuntimeError::user("54000", "the arrays of a window are too large"));
        }
        let nulls = lengths.iter().map(|n| *n > 0).collect();
        let field = Arc::new(Field::new("item", values.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(lengths);
        return Ok(Arc::new(ListArray::try_new(
            field,
            offsets,
            pick(values, rows)?,
            Some(nulls),
        )?));
    };
    let texts = cast(values, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>();
    let mut out = StringBuilder::new();
    let mut text = String::new();
    for &(lo, hi) in frames {
        text.clear();
        let mut any = false;
        for i in (lo..hi).filter(|&i| counts(i)) {
            if any {
                text.push_str(delimiter);
            }
            text.push_str(texts.value(i as usize));
            any = true;
        }
        if i32::try_from(out.values_slice().len() + text.len()).is_err() {
            return Err(RuntimeError::user("54000", "the texts of a window are too large"));
        }
        out.append_option(any.then_some(&text));
    }
    Ok(Arc::new(out.finish()))
}
