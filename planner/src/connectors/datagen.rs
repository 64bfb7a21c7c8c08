//! Options of the datagen connector, which makes rows from their numbers.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `datagen.rows.per.second` | rows a second of all splits; 0: as fast as they are read | 10 |
//! | `datagen.row.limit` | rows before the source ends | never |
//! | `datagen.seed` | other random values | 0 |
//! | `datagen.split.num` | splits, so that as many tasks can read | 1 |
//! | `datagen.base.time` | timestamp of the first row | when the source was created |
//! | `fields.COLUMN.kind` | `sequence` or `random` | `random` |
//! | `fields.COLUMN.start`, `.end` | of a sequence: first and last number, after which it starts again | 0, never |
//! | `fields.COLUMN.min`, `.max` | of random numbers (for intervals, seconds), both included | 0, 1000 |
//! | `fields.COLUMN.length` | of random text or bytes | 10 |
//! | `fields.COLUMN.max_past` | a random time is up to this interval before the row's own | 1 day |
//!
//! A row's own time is the base time plus its number divided by the rate (by 1000 a second if the rate is 0); times of kind `sequence`
//! are that. Boolean columns have no further options.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field, SchemaRef, i256};

use super::Reader;
use crate::sql::{datetime, text, types};
use crate::{PlanError, Result};

const KNOWN: [&str; 12] = [
    "datagen.rows.per.second",
    "datagen.row.limit",
    "datagen.seed",
    "datagen.split.num",
    "datagen.base.time",
    "fields.COLUMN.kind",
    "fields.COLUMN.start",
    "fields.COLUMN.end",
    "fields.COLUMN.min",
    "fields.COLUMN.max",
    "fields.COLUMN.length",
    "fields.COLUMN.max_past",
];
const ATTRIBUTES: [&str; 7] = ["kind", "start", "end", "min", "max", "length", "max_past"];

/// Defaults are part of what a stored source means: they never change.
const RATE_DEFAULT: u64 = 10;
const RATE_MAX: u64 = 1_000_000_000;
const SPLITS_MAX: u64 = 1024;
const LENGTH_MAX: u64 = 65_536;
const NUMBER_MAX_DEFAULT: i64 = 1000;
const DAY_US: i64 = 86_400_000_000;
/// Rows that a source can have: their numbers stay clear of overflows.
pub const ROWS_MAX: u64 = 1 << 60;

/// How a column's values are made.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldSpec {
    /// `start`, `start + 1`, … and again from the start behind `end`.
    Sequence {
        /// First.
        start: i64,
        /// Numbers before it starts again.
        length: u64,
    },
    /// Whole numbers between the two, both included. For decimals the bounds are unscaled values, for intervals microseconds.
    Integer {
        /// Least.
        min: i128,
        /// Greatest.
        max: i128,
    },
    /// Floats from `min` up to `max`.
    Float {
        /// Least.
        min: f64,
        /// Greatest.
        max: f64,
    },
    /// Text of random letters, or random bytes.
    Bytes {
        /// Length of each.
        length: usize,
    },
    /// True or false.
    Boolean,
    /// The row's time, less a random number of microseconds up to `max_past_us`.
    Time {
        /// 0: exactly the row's time.
        max_past_us: u64,
    },
}

/// The options, read.
#[derive(Debug, Clone, PartialEq)]
pub struct DatagenOptions {
    /// Rows a second; 0: no bound.
    pub rate: u64,
    /// Rows of all splits.
    pub limit: u64,
    /// Seed.
    pub seed: u64,
    /// Splits.
    pub splits: u64,
    /// Microseconds since 1970 of row 0, if given.
    pub base_us: Option<i64>,
    /// How each column is made.
    pub fields: Vec<FieldSpec>,
}

impl DatagenOptions {
    /// Reads the options for these columns.
    ///
    /// # Errors
    /// 22023 for an unknown or malformed option, 0A000 for a column's type that cannot be made.
    pub fn parse(options: &BTreeMap<String, String>, schema: &SchemaRef) -> Result<Self> {
        let reader = Reader::new("connector \"datagen\"", options);
        reader.only(&KNOWN, |k| {
            (k.starts_with("datagen.") && KNOWN.contains(&k)) || attribute_of(k, schema).is_some()
        })?;
        let base_us = reader
            .text("datagen.base.time")
            .map(|t| {
                datetime::parse_timestamptz(t)
                    .map_err(|_| reader.malformed("datagen.base.time", "It is a timestamp: '2024-01-01 00:00:00'."))
            })
            .transpose()?;
        Ok(Self {
            rate: reader
                .number("datagen.rows.per.second", 0..=RATE_MAX)?
                .unwrap_or(RATE_DEFAULT),
            limit: reader.number("datagen.row.limit", 0..=ROWS_MAX)?.unwrap_or(ROWS_MAX),
            seed: reader.number("datagen.seed", 0..=u64::MAX)?.unwrap_or(0),
            splits: reader.number("datagen.split.num", 1..=SPLITS_MAX)?.unwrap_or(1),
            base_us,
            fields: schema
                .fields()
                .iter()
                .map(|f| Attributes { reader, field: f }.spec())
                .collect::<Result<_>>()?,
        })
    }
}

/// The attribute that an option sets, if it belongs to a column.
fn attribute_of<'k>(key: &'k str, schema: &SchemaRef) -> Option<&'k str> {
    let (column, attribute) = key.strip_prefix("fields.")?.rsplit_once('.')?;
    let known = ATTRIBUTES.contains(&attribute) && schema.fields().iter().any(|f| f.name().to_lowercase() == column);
    known.then_some(attribute)
}

/// The options of one column.
struct Attributes<'o> {
    reader: Reader<'o>,
    field: &'o Field,
}

impl Attributes<'_> {
    fn name(&self, attribute: &str) -> String {
        format!("fields.{}.{attribute}", self.field.name().to_lowercase())
    }

    fn spec(&self) -> Result<FieldSpec> {
        let sequence = self.reader.word(&self.name("kind"), &["random", "sequence"])? == Some(1);
        let (spec, used): (FieldSpec, &[&str]) = match (self.field.data_type(), sequence) {
            (DataType::Boolean, false) => (FieldSpec::Boolean, &[]),
            (DataType::Boolean | DataType::Binary | DataType::Interval(_), true) => {
                return Err(self
                    .reader
                    .malformed(&self.name("kind"), "Only numbers, text and times can be a sequence."));
            }
            (DataType::Date32 | DataType::Timestamp(..), true) => (FieldSpec::Time { max_past_us: 0 }, &[]),
            (DataType::Date32 | DataType::Timestamp(..), false) => (self.time()?, &["max_past"]),
            (DataType::Utf8 | DataType::Binary, false) => (self.bytes()?, &["length"]),
            (
                DataType::Int16
                | DataType::Int32
                | DataType::Int64
                | DataType::Float32
                | DataType::Float64
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
                | DataType::Utf8,
                true,
            ) => (self.sequence()?, &["start", "end"]),
            (DataType::Float32 | DataType::Float64, false) => (self.float()?, &["min", "max"]),
            (
                DataType::Int16
                | DataType::Int32
                | DataType::Int64
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
                | DataType::Interval(_),
                false,
            ) => (self.integer()?, &["min", "max"]),
            (other, _) => {
                return Err(PlanError::unsupported(format!(
                    "column \"{}\": connector \"datagen\" does not make values of type {}",
                    self.field.name(),
                    types::base_name(other)
                )));
            }
        };
        for attribute in ATTRIBUTES.iter().filter(|a| **a != "kind" && !used.contains(a)) {
            if self.reader.text(&self.name(attribute)).is_some() {
                let what = if sequence { "a sequence" } else { "random values" };
                return Err(PlanError::new(
                    "22023",
                    format!(
                        "option \"{}\" does not apply to {what} of type {}",
                        self.name(attribute),
                        types::base_name(self.field.data_type())
                    ),
                ));
            }
        }
        Ok(spec)
    }

    /// A number as written, unscaled at `scale`.
    fn unscaled(&self, attribute: &str, scale: i8, default: i64) -> Result<i128> {
        let name = self.name(attribute);
        let written = self
            .reader
            .text(&name)
            .map_or_else(|| default.to_string(), str::to_owned);
        text::parse_numeric(&written, 38, scale, true)
            .ok()
            .and_then(i256::to_i128)
            .ok_or_else(|| self.reader.malformed(&name, "It is a number that the column can hold."))
    }

    /// The unscaled numbers that a column can hold.
    fn bounds(&self) -> (i128, i128) {
        let power = |p: u8| 10_i128.checked_pow(u32::from(p.min(38))).map_or(i128::MAX, |v| v - 1);
        match self.field.data_type() {
            DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            DataType::Decimal128(p, _) | DataType::Decimal256(p, _) => (-power(*p), power(*p)),
            // Microseconds whose nanoseconds fit.
            DataType::Interval(_) => (-i128::from(i64::MAX / 1000), i128::from(i64::MAX / 1000)),
            _ => (i64::MIN.into(), i64::MAX.into()),
        }
    }

    fn integer(&self) -> Result<FieldSpec> {
        let scale = match self.field.data_type() {
            // Bare numerics get two digits after the point.
            t if t == &types::BARE_NUMERIC => 2,
            DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => *s,
            DataType::Interval(_) => 6,
            _ => 0,
        };
        let (least, greatest) = self.bounds();
        let default = |v: i64| -> i64 {
            let power = 10_i128.checked_pow(scale.unsigned_abs().into());
            let fits = power.and_then(|p| p.checked_mul(i128::from(v)));
            if fits.is_some_and(|v| v <= greatest) { v } else { 0 }
        };
        let min = self.unscaled("min", scale, 0)?;
        let max = self.unscaled("max", scale, default(NUMBER_MAX_DEFAULT))?;
        for (attribute, v) in [("min", min), ("max", max)] {
            if !(least..=greatest).contains(&v) {
                return Err(self
                    .reader
                    .malformed(&self.name(attribute), "It is a number that the column can hold."));
            }
        }
        if min > max {
            return Err(self.backwards("min", "max"));
        }
        Ok(FieldSpec::Integer { min, max })
    }

    fn backwards(&self, low: &str, high: &str) -> PlanError {
        PlanError::new(
            "22023",
            format!("option \"{}\" is greater than \"{}\"", self.name(low), self.name(high)),
        )
    }

    fn float(&self) -> Result<FieldSpec> {
        let get = |attribute: &str, default: f64| -> Result<f64> {
            let name = self.name(attribute);
            match self.reader.text(&name) {
                None => Ok(default),
                Some(t) => text::parse_float8(t)
                    .ok()
                    .filter(|v| v.is_finite())
                    .ok_or_else(|| self.reader.malformed(&name, "It is a number.")),
            }
        };
        let (min, max) = (get("min", 0.0)?, get("max", 1000.0)?);
        if min > max {
            return Err(self.backwards("min", "max"));
        }
        Ok(FieldSpec::Float { min, max })
    }

    fn sequence(&self) -> Result<FieldSpec> {
        let number = |attribute: &str| -> Result<Option<i64>> {
            let name = self.name(attribute);
            let Some(t) = self.reader.text(&name) else {
                return Ok(None);
            };
            text::parse_int(t, i64::MIN, i64::MAX)
                .map(Some)
                .map_err(|_| self.reader.malformed(&name, "It is a whole number."))
        };
        let start = number("start")?.unwrap_or(0);
        let (_, greatest) = match self.field.data_type() {
            DataType::Int16 | DataType::Int32 => self.bounds(),
            _ => (0, i64::MAX.into()),
        };
        let end = number("end")?.unwrap_or(i64::try_from(greatest).unwrap_or(i64::MAX));
        if start > end {
            return Err(self.backwards("start", "end"));
        }
        let (least, greatest) = self.bounds();
        let scaled = |v: i64| match self.field.data_type() {
            DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => {
                i128::from(v).saturating_mul(10_i128.saturating_pow(s.unsigned_abs().into()))
            }
            _ => i128::from(v),
        };
        let explicit = self.reader.text(&self.name("end")).is_some();
        if scaled(start) < least || (explicit && scaled(end) > greatest) || scaled(start) > greatest {
            return Err(self.reader.malformed(
                &self.name(if explicit { "end" } else { "start" }),
                "It is a number that the column can hold.",
            ));
        }
        let length = u64::try_from(i128::from(end) - i128::from(start) + 1).unwrap_or(u64::MAX);
        Ok(FieldSpec::Sequence { start, length })
    }

    fn bytes(&self) -> Result<FieldSpec> {
        let max = types::varchar_length(self.field).map_or(LENGTH_MAX, |n| (n as u64).min(LENGTH_MAX));
        let length = self
            .reader
            .number(&self.name("length"), 0..=max)?
            .unwrap_or(max.min(10));
        Ok(FieldSpec::Bytes {
            length: usize::try_from(length).unwrap_or(10),
        })
    }

    fn time(&self) -> Result<FieldSpec> {
        let name = self.name("max_past");
        let Some(written) = self.reader.text(&name) else {
            return Ok(FieldSpec::Time {
                max_past_us: DAY_US.unsigned_abs(),
            });
        };
        datetime::parse_interval(written)
            .ok()
            .filter(|v| v.months == 0)
            .and_then(|v| i64::from(v.days).checked_mul(DAY_US)?.checked_add(v.nanoseconds / 1000))
            .and_then(|us| u64::try_from(us).ok())
            .map(|max_past_us| FieldSpec::Time { max_past_us })
            .ok_or_else(|| {
                self.reader
                    .malformed(&name, "It is an interval without months: '2 hours'.")
            })
    }
}
