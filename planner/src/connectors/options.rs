//! Reading options: every failure names the option, what it was and what it may be.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::{PlanError, Result};

/// Reads the options of one connector or encoding.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'o> {
    /// What the options belong to, as in `connector "file"`.
    of: &'o str,
    options: &'o BTreeMap<String, String>,
}

impl<'o> Reader<'o> {
    /// A reader of `options`, which belong to `of`.
    pub fn new(of: &'o str, options: &'o BTreeMap<String, String>) -> Self {
        Self { of, options }
    }

    /// Refuses options that `is_known` does not know; `list` is for the hint.
    ///
    /// # Errors
    /// 22023 with the known options.
    pub fn only(&self, list: &[&str], is_known: impl Fn(&str) -> bool) -> Result<()> {
        match self.options.keys().find(|k| k.as_str() != "connector" && !is_known(k)) {
            None => Ok(()),
            Some(unknown) => {
                let hint = if list.is_empty() {
                    "It has no options.".to_owned()
                } else {
                    format!("Its options are {}.", list.join(", "))
                };
                Err(PlanError::new("22023", format!("unknown option \"{unknown}\" of {}", self.of)).hint(hint))
            }
        }
    }

    /// An option as written.
    pub fn text(&self, name: &str) -> Option<&'o str> {
        self.options.get(name).map(String::as_str)
    }

    /// An option that must be given.
    ///
    /// # Errors
    /// 22023: it is missing, or empty; `hint` says what to write.
    pub fn required(&self, name: &str, hint: &str) -> Result<&'o str> {
        self.text(name).filter(|v| !v.is_empty()).ok_or_else(|| {
            PlanError::new("22023", format!("option \"{name}\" of {} is missing", self.of)).hint(hint.to_owned())
        })
    }

    /// The error for a value that an option cannot have.
    pub fn malformed(&self, name: &str, hint: impl Into<String>) -> PlanError {
        let value = self.text(name).unwrap_or_default();
        PlanError::new("22023", format!("invalid value for option \"{name}\": \"{value}\"")).hint(hint.into())
    }

    /// A whole number.
    ///
    /// # Errors
    /// 22023: not one, or outside of `range`.
    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse::<u64>() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(self.malformed(
                name,
                format!("It is a whole number from {} to {}.", range.start(), range.end()),
            )),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// 22023: not one.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(None),
            Some("true" | "on" | "1") => Ok(Some(true)),
            Some("false" | "off" | "0") => Ok(Some(false)),
            Some(_) => Err(self.malformed(name, "It is true or false.")),
        }
    }

    /// One of a few words, without regard to case; answers its place in `words`.
    ///
    /// # Errors
    /// 22023: another word.
    pub fn word(&self, name: &str, words: &[&str]) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match words.iter().position(|w| w.eq_ignore_ascii_case(text.trim())) {
            Some(at) => Ok(Some(at)),
            None => Err(self.malformed(name, format!("It is one of {}.", words.join(", ")))),
        }
    }

    /// One ASCII character.
    ///
    /// # Errors
    /// 22023: not one, or a line break.
    pub fn character(&self, name: &str) -> Result<Option<u8>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.as_bytes() {
            b"\\t" => Ok(Some(b'\t')),
            [b] if b.is_ascii() && !matches!(b, b'\n' | b'\r' | 0) => Ok(Some(*b)),
            _ => Err(self.malformed(name, "It is one ASCII character, not a line break.")),
        }
    }

    /// A number of seconds, fractions allowed.
    ///
    /// # Errors
    /// 22023: not one, or not between `min` and a day.
    pub fn seconds(&self, name: &str, min: Duration) -> Result<Option<Duration>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let day = Duration::from_secs(86_400);
        text.trim()
            .parse::<f64>()
            .ok()
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
            .filter(|d| (min..=day).contains(d))
            .map(Some)
            .ok_or_else(|| {
                self.malformed(
                    name,
                    format!("It is a number of seconds from {} to 86400.", min.as_secs_f64()),
                )
            })
    }
}
