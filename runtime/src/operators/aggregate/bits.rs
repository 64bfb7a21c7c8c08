//! `bit_and`, `bit_or` and `bit_xor`: how many values of a group have each bit.
//!
//! Bytes per group: 8 and 8 for each bit of the type.

use arrow::array::ArrayRef;
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::super::codec::{Reader, put_i64};
use super::super::columns::{as_i64, from_i64};
use super::accumulator::{Accumulator, Failures, Rows};
use crate::{Result, RuntimeError};

/// What is done with the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitOperation {
    /// Set where all values have it.
    And,
    /// Set where some value has it.
    Or,
    /// Set where an odd number of values have it.
    Xor,
}

/// The counts: of each slot the values, then those with each bit.
pub struct Bits {
    operation: BitOperation,
    data_type: DataType,
    width: usize,
    counts: Vec<i64>,
}

impl Bits {
    /// Over integers of a type.
    ///
    /// # Errors
    /// The type is no integer.
    pub fn new(operation: BitOperation, data_type: &DataType) -> Result<Self> {
        let width = match data_type {
            DataType::Int16 => 16,
            DataType::Int32 => 32,
            DataType::Int64 => 64,
            other => {
                return Err(RuntimeError::user(
                    "0A000",
                    format!("bit_and, bit_or and bit_xor of {other} are not supported in a materialized view"),
                ));
            }
        };
        Ok(Self {
            operation,
            data_type: data_type.clone(),
            width,
            counts: Vec::new(),
        })
    }

    fn stride(&self) -> usize {
        self.width + 1
    }

    fn slot(&self, slot: u32) -> &[i64] {
        let from = slot as usize * self.stride();
        &self.counts[from..from + self.stride()]
    }

    fn slot_mut(&mut self, slot: u32) -> &mut [i64] {
        let stride = self.stride();
        let from = slot as usize * stride;
        &mut self.counts[from..from + stride]
    }
}

impl Accumulator for Bits {
    fn grow(&mut self, n: usize) {
        let n = n * self.stride();
        if self.counts.len() < n {
            self.counts.resize(n, 0);
        }
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        let arg = rows
            .arg
            .ok_or_else(|| RuntimeError::internal("bits without an argument"))?;
        let values = as_i64(arg)?;
        let (stride, width) = (self.stride(), self.width);
        let counts = &mut self.counts[..];
        rows.for_each(|i, slot, diff| {
            let counts = &mut counts[slot * stride..(slot + 1) * stride];
            counts[0] += diff;
            let mut bits = values[i] as u64 & (u64::MAX >> (64 - width));
            while bits != 0 {
                counts[1 + bits.trailing_zeros() as usize] += diff;
                bits &= bits - 1;
            }
        });
        Ok(())
    }

    fn evaluate(&self, slots: &[u32], _failures: &mut Failures) -> Result<ArrayRef> {
        let mut values = Vec::with_capacity(slots.len());
        let mut valid = Vec::with_capacity(slots.len());
        for &slot in slots {
            let counts = self.slot(slot);
            let n = counts[0];
            let set = |count: i64| match self.operation {
                BitOperation::And => count == n,
                BitOperation::Or => count > 0,
                BitOperation::Xor => count & 1 == 1,
            };
            let bits = counts[1..]
                .iter()
                .rev()
                .fold(0_u64, |bits, &count| bits << 1 | u64::from(set(count)));
            // The highest bit is the sign.
            let unused = 64 - self.width as u32;
            values.push(((bits << unused) as i64) >> unused);
            valid.push(n > 0);
        }
        from_i64(values, Some(NullBuffer::from(valid)), &self.data_type)
    }

    fn clear(&mut self, slot: u32) {
        self.slot_mut(slot).fill(0);
    }

    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        self.slot(slot).iter().for_each(|count| put_i64(out, *count));
    }

    fn decode(&mut self, slot: u32, from: &mut Reader<'_>) -> Result<()> {
        for count in self.slot_mut(slot) {
            *count = from.i64()?;
        }
        Ok(())
    }

    fn relocate(&mut self, moves: &[(u32, u32)], n: usize) {
        let stride = self.stride();
        for &(from, to) in moves {
            for i in 0..stride {
                self.counts.swap(from as usize * stride + i, to as usize * stride + i);
            }
        }
        self.counts.truncate(n * stride);
        self.counts.shrink_to_fit();
    }

    fn bytes_per_slot(&self) -> usize {
        self.stride() * 8
    }

    fn bytes(&self) -> usize {
        self.counts.len() * 8
    }
}
