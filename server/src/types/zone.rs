//! Time zones: names and offsets of a session, through the IANA database that chrono-tz carries.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeZone};

use crate::error::{Result, SqlError};

/// A time zone that a session can be in.
#[derive(Debug, Clone)]
pub struct Zone {
    name: Arc<str>,
    tz: Option<Tz>,
}

impl Default for Zone {
    fn default() -> Self {
        Self::utc()
    }
}

impl Zone {
    /// UTC.
    pub fn utc() -> Self {
        Self {
            name: Arc::from("UTC"),
            tz: None,
        }
    }

    /// By IANA name, or an offset such as `+02` or `5.5` (hours *east*, as SET TIME ZONE takes them).
    ///
    /// # Errors
    /// 22023.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if ["utc", "gmt", "z", "zulu", "etc/utc", "etc/gmt"]
            .iter()
            .any(|n| text.eq_ignore_ascii_case(n))
        {
            let name = if text.eq_ignore_ascii_case("gmt") { "GMT" } else { "UTC" };
            return Ok(Self {
                name: Arc::from(name),
                tz: None,
            });
        }
        let unknown = || SqlError::new("22023", format!("invalid value for parameter \"TimeZone\": \"{text}\""));
        if let Ok(hours) = text.parse::<f64>() {
            if !(-24.0..=24.0).contains(&hours) {
                return Err(unknown());
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most 24 hours of minutes")]
            let minutes = (hours * 60.0).round() as i32;
            let sign = if minutes < 0 { '-' } else { '+' };
            let offset = format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60);
            let tz = Tz::from_str(&offset).map_err(|_| unknown())?;
            let posix = format!(
                "<{offset}>{}{:02}:{:02}",
                if minutes < 0 { '+' } else { '-' },
                minutes.abs() / 60,
                minutes.abs() % 60
            );
            return Ok(Self {
                name: Arc::from(posix.replace(":00", "")),
                tz: Some(tz),
            });
        }
        let known = Tz::from_str(text).ok().map(|tz| (text.to_owned(), tz)).or_else(|| {
            let capital = capitalised(text);
            Tz::from_str(&capital).ok().map(|tz| (capital, tz))
        });
        let (name, tz) = known.ok_or_else(unknown)?;
        Ok(Self {
            name: Arc::from(name),
            tz: Some(tz),
        })
    }

    /// Name as SHOW prints it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Seconds east of UTC at a moment.
    pub fn offset_at(&self, utc_us: i64) -> i32 {
        let Some(tz) = &self.tz else { return 0 };
        DateTime::from_timestamp_micros(utc_us).map_or(0, |at| {
            tz.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
        })
    }

    /// The moment that a wall clock here shows as `local_us`. In a gap the clock is taken as if it had not yet been moved, an
    /// ambiguous time is the one of standard time: PostgreSQL's choices.
    pub fn to_utc(&self, local_us: i64) -> i64 {
        let Some(tz) = &self.tz else { return local_us };
        let Some(local) = DateTime::from_timestamp_micros(local_us).map(|d| d.naive_utc()) else {
            return local_us;
        };
        let seconds = match tz.offset_from_local_datetime(&local) {
            LocalResult::Single(o) => o.fix().local_minus_utc(),
            LocalResult::Ambiguous(a, b) => a.fix().local_minus_utc().min(b.fix().local_minus_utc()),
            LocalResult::None => self.offset_before_gap(tz, local),
        };
        local_us.saturating_sub(i64::from(seconds) * 1_000_000)
    }

    fn offset_before_gap(&self, tz: &Tz, local: NaiveDateTime) -> i32 {
        let day = chrono::TimeDelta::days(1);
        local
            .checked_sub_signed(day)
            .map_or(0, |before| tz.offset_from_utc_datetime(&before).fix().local_minus_utc())
    }
}

/// `europe/paris` → `Europe/Paris`.
fn capitalised(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut start = true;
    for c in text.chars() {
        out.push(if start {
            c.to_ascii_uppercase()
        } else {
            c.to_ascii_lowercase()
        });
        start = matches!(c, '/' | '_' | '-');
    }
    out
}
