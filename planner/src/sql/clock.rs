//! Times of day: text forms of `time` and `timetz`, and the bytes that stand for a `timetz`.

use super::datetime::{self, DAY_US};
use super::text::{Failure, clock};

/// A time of day with its distance from UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZonedTime {
    /// Microseconds since the zone's midnight, one day at most.
    pub us: i64,
    /// Seconds west of UTC, as PostgreSQL counts them.
    pub west: i32,
}

impl ZonedTime {
    /// Bytes whose order is PostgreSQL's: by the moment in UTC, then by the zone from east to west.
    pub fn to_bytes(self) -> [u8; 12] {
        let mut out = [0; 12];
        // Both are offset to be positive.
        let utc = self
            .us
            .wrapping_add(i64::from(self.west) * 1_000_000)
            .wrapping_add(DAY_US);
        out[..8].copy_from_slice(&utc.to_be_bytes());
        out[8..].copy_from_slice(&(i64::from(self.west) + i64::from(i32::MAX)).to_be_bytes()[4..]);
        out
    }

    /// What [`Self::to_bytes`] wrote; midnight in UTC for other bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let (Some((utc, west)), true) = (bytes.split_first_chunk::<8>(), bytes.len() == 12) else {
            return Self { us: 0, west: 0 };
        };
        let west = west
            .try_into()
            .map_or(0, |w| i64::from(u32::from_be_bytes(w)) - i64::from(i32::MAX));
        let us = i64::from_be_bytes(*utc)
            .wrapping_sub(DAY_US)
            .wrapping_sub(west.wrapping_mul(1_000_000));
        Self {
            us,
            west: i32::try_from(west).unwrap_or(0),
        }
    }

    /// The time in UTC, within a day.
    pub fn utc_us(self) -> i64 {
        (self.us + i64::from(self.west) * 1_000_000).rem_euclid(DAY_US)
    }
}

/// A time of day, without its zone.
///
/// # Errors
/// Not a time, or a field outside its range.
pub fn parse_time(s: &str) -> Result<i64, Failure> {
    parse(s).map(|(us, _)| us)
}

/// A time of day with time zone; without an offset, UTC.
///
/// # Errors
/// As [`parse_time`].
pub fn parse_timetz(s: &str) -> Result<ZonedTime, Failure> {
    let (us, east) = parse(s)?;
    let west = i32::try_from(-east.unwrap_or(0)).map_err(|_| Failure::Field)?;
    Ok(ZonedTime { us, west })
}

/// Microseconds of the day, and seconds east of UTC if the text has them: `04:05[:06.7] [AM|PM] [+01]`, `040506`, also behind a date.
fn parse(s: &str) -> Result<(i64, Option<i64>), Failure> {
    let t = s.trim();
    if t.eq_ignore_ascii_case("allballs") {
        return Ok((0, Some(0)));
    }
    let t = t.strip_prefix(['T', 't']).unwrap_or(t);
    let end = t
        .find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'))
        .unwrap_or(t.len());
    let (digits, rest) = t.split_at(end);
    let written = if digits.contains(':') {
        Some(digits.to_owned())
    } else {
        let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
        match whole.len() {
            4 if fraction.is_empty() => Some(format!("{}:{}", &whole[..2], &whole[2..])),
            6 => Some(format!("{}:{}:{}{fraction}", &whole[..2], &whole[2..4], &whole[4..])),
            _ => None,
        }
    };
    match written {
        // A date and a time.
        None => datetime::parse_moment(t),
        Some(_) if rest.starts_with(['-', '/']) && !digits.contains(':') => datetime::parse_moment(t),
        Some(written) => datetime::parse_day_time(&written, rest),
    }
}

/// time.
pub fn format_time(us: i64) -> String {
    clock(us.unsigned_abs())
}

/// timetz.
pub fn format_timetz(t: ZonedTime) -> String {
    let mut out = clock(t.us.unsigned_abs());
    out.push(if t.west > 0 { '-' } else { '+' });
    let off = t.west.unsigned_abs();
    out.push_str(&format!("{:02}", off / 3600));
    if !off.is_multiple_of(3600) {
        out.push_str(&format!(":{:02}", off / 60 % 60));
    }
    if !off.is_multiple_of(60) {
        out.push_str(&format!(":{:02}", off % 60));
    }
    out
}

/// The time of day that `us` microseconds from midnight are, over midnight as often as they go.
pub fn wrapped(us: i64) -> i64 {
    us.rem_euclid(DAY_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_values_and_order() {
        // PostgreSQL's order: 12:00+02 is 10:00 in UTC; at the same moment the eastern zone comes first.
        let ordered = [
            "12:00+02",
            "10:30+00",
            "12:00+01",
            "11:00+00",
            "10:00-01",
            "24:00-15:59:59",
        ];
        let values: Vec<ZonedTime> = ordered.iter().map(|t| parse_timetz(t).expect(t)).collect();
        for pair in values.windows(2) {
            assert!(pair[0].to_bytes() < pair[1].to_bytes(), "{pair:?}");
        }
        for v in values {
            assert_eq!(ZonedTime::of_bytes(&v.to_bytes()), v);
        }
    }

    #[test]
    fn texts_are_read_as_postgres_reads_them() {
        for (text, shown) in [
            ("04:05:06.789", "04:05:06.789"),
            ("04:05", "04:05:00"),
            ("040506", "04:05:06"),
            ("0405", "04:05:00"),
            ("04:05 AM", "04:05:00"),
            ("04:05 PM", "16:05:00"),
            ("12:05 AM", "00:05:00"),
            ("04:05:06-08:00", "04:05:06"),
            ("2003-04-12 04:05:06", "04:05:06"),
            ("allballs", "00:00:00"),
            ("24:00:00", "24:00:00"),
            ("23:59:59.9999999", "24:00:00"),
        ] {
            assert_eq!(format_time(parse_time(text).expect(text)), shown, "{text}");
        }
        for text in ["24:00:01", "25:00", "12:60", "13:00:61"] {
            assert!(matches!(parse_time(text), Err(Failure::Field)), "{text}");
        }
        for text in ["", "noon", "2003-04-12", "12", "4:5:6:7"] {
            assert!(matches!(parse_time(text), Err(Failure::Syntax)), "{text}");
        }
        assert_eq!(
            format_timetz(parse_timetz("04:05:06-08:30").expect("zoned")),
            "04:05:06-08:30"
        );
        assert_eq!(format_timetz(parse_timetz("04:05:06").expect("utc")), "04:05:06+00");
    }
}
