//! Dates, timestamps and intervals: calendar arithmetic and text forms, exact in microseconds.

use arrow::datatypes::IntervalMonthDayNano;

use super::text::{Failure, clock};

/// Microseconds in a day.
pub const DAY_US: i64 = 86_400_000_000;

/// Days since 1970-01-01 of a Gregorian date.
pub fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

/// (year, month, day) of days since 1970-01-01.
pub fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

fn days_in(year: i64, month: i64) -> i64 {
    let (y, m) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days_of(y, m, 1) - days_of(year, month, 1)
}

/// date.
pub fn format_date(days: i32) -> String {
    let (y, m, d) = civil(i64::from(days));
    if y > 0 {
        format!("{y:04}-{m:02}-{d:02}")
    } else {
        format!("{:04}-{m:02}-{d:02} BC", 1 - y)
    }
}

/// timestamp without time zone.
pub fn format_timestamp(us: i64) -> String {
    let (days, time) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
    let (y, m, d) = civil(days);
    let time = clock(time.unsigned_abs());
    if y > 0 {
        format!("{y:04}-{m:02}-{d:02} {time}")
    } else {
        format!("{:04}-{m:02}-{d:02} {time} BC", 1 - y)
    }
}

/// timestamp with time zone, shown in UTC.
pub fn format_timestamptz(us: i64) -> String {
    let text = format_timestamp(us);
    match text.strip_suffix(" BC") {
        Some(t) => format!("{t}+00 BC"),
        None => format!("{text}+00"),
    }
}

/// A parsed date and time: days, microseconds of the day if a time was given, offset from UTC in seconds if given.
struct DateTime {
    days: i64,
    time: Option<i64>,
    offset: Option<i64>,
}

/// date.
pub fn parse_date(s: &str) -> Result<i32, Failure> {
    let parsed = parse(s)?;
    i32::try_from(parsed.days).map_err(|_| Failure::Range)
}

/// timestamp without time zone; an offset in the text is ignored, as in PostgreSQL.
pub fn parse_timestamp(s: &str) -> Result<i64, Failure> {
    let p = parse(s)?;
    p.days
        .checked_mul(DAY_US)
        .and_then(|us| us.checked_add(p.time.unwrap_or(0)))
        .ok_or(Failure::Range)
}

/// timestamp with time zone; without an offset, UTC.
pub fn parse_timestamptz(s: &str) -> Result<i64, Failure> {
    let p = parse(s)?;
    p.days
        .checked_mul(DAY_US)
        .and_then(|us| us.checked_add(p.time.unwrap_or(0) - p.offset.unwrap_or(0) * 1_000_000))
        .ok_or(Failure::Range)
}

/// The common case of [`parse`]: `2024-01-02[ T]03:04:05[.678901][Z|+01[:00]]` with every field in its range.
fn parse_iso(s: &str) -> Option<DateTime> {
    let b = s.as_bytes();
    let two = |at: usize| -> Option<i64> {
        let (high, low) = (b.get(at)?.wrapping_sub(b'0'), b.get(at + 1)?.wrapping_sub(b'0'));
        (high < 10 && low < 10).then(|| i64::from(high * 10 + low))
    };
    let mark = |at: usize, c: u8| (b.get(at) == Some(&c)).then_some(());
    let year = two(0)? * 100 + two(2)?;
    mark(4, b'-')?;
    let month = two(5)?;
    mark(7, b'-')?;
    let day = two(8)?;
    if !matches!(b.get(10), Some(b' ' | b'T')) {
        return None;
    }
    let hour = two(11)?;
    mark(13, b':')?;
    let minute = two(14)?;
    mark(16, b':')?;
    let second = two(17)?;
    let fields = year > 0 && (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60;
    if !fields || day < 1 || day > days_in(year, month) {
        return None;
    }
    let (mut at, mut micros, mut unit) = (19, 0, 100_000);
    if b.get(at) == Some(&b'.') {
        at += 1;
        while let Some(digit @ b'0'..=b'9') = b.get(at)
            && unit > 0
        {
            micros += i64::from(digit - b'0') * unit;
            unit /= 10;
            at += 1;
        }
    }
    let offset = match &b[at..] {
        [] => None,
        [b'Z'] => Some(0),
        [sign @ (b'+' | b'-'), rest @ ..] if rest.len() == 2 || (rest.len() == 5 && rest[2] == b':') => {
            let hours = two(at + 1)?;
            let minutes = if rest.len() == 5 { two(at + 4)? } else { 0 };
            let seconds = hours * 3600 + minutes * 60;
            if seconds > 16 * 3600 {
                return None;
            }
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => return None,
    };
    Some(DateTime {
        days: days_of(year, month, day),
        time: Some(((hour * 60 + minute) * 60 + second) * 1_000_000 + micros),
        offset,
    })
}

fn parse(s: &str) -> Result<DateTime, Failure> {
    if let Some(common) = parse_iso(s) {
        return Ok(common);
    }
    let t = s.trim();
    if t.eq_ignore_ascii_case("epoch") {
        return Ok(DateTime {
            days: 0,
            time: Some(0),
            offset: None,
        });
    }
    let (t, bc) = match t.strip_suffix("BC").or_else(|| t.strip_suffix("bc")) {
        Some(rest) => (rest.trim_end(), true),
        None => (t, false),
    };
    let end = t
        .char_indices()
        .find(|(_, c)| *c == ' ' || *c == 'T' || *c == 't')
        .map_or(t.len(), |(i, _)| i);
    let (date, rest) = t.split_at(end);
    let rest = rest.trim_start_matches(['T', 't', ' ']);
    let mut days = parse_day(date, bc)?;
    let mut time = None;
    let mut rest = rest;
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'))
            .unwrap_or(rest.len());
        let (clock, after) = rest.split_at(end);
        let (us, after) = half_day(parse_clock(clock)?, after)?;
        if us == DAY_US {
            days += 1;
        }
        time = Some(us % DAY_US);
        rest = after;
    }
    let offset = parse_offset(rest.trim())?;
    Ok(DateTime { days, time, offset })
}

/// A clock's microseconds after `AM` or `PM`, and what follows that.
fn half_day(us: i64, after: &str) -> Result<(i64, &str), Failure> {
    const NOON: i64 = DAY_US / 2;
    if us > DAY_US {
        return Err(Failure::Field);
    }
    let after = after.trim_start();
    if let Some(rest) = strip_word(after, "am") {
        return Ok((if us >= NOON { us - NOON } else { us }, rest));
    }
    if let Some(rest) = strip_word(after, "pm") {
        return Ok((if us < NOON { us + NOON } else { us }, rest));
    }
    Ok((us, after))
}

/// Microseconds of the day of a clock and what follows it, and seconds east of UTC if that is an offset.
pub(super) fn parse_day_time(clock: &str, after: &str) -> Result<(i64, Option<i64>), Failure> {
    let (us, rest) = half_day(parse_clock(clock)?, after)?;
    Ok((us, parse_offset(rest.trim())?))
}

/// The same of a date with a time.
pub(super) fn parse_moment(s: &str) -> Result<(i64, Option<i64>), Failure> {
    let moment = parse(s)?;
    Ok((moment.time.ok_or(Failure::Syntax)?, moment.offset))
}

fn strip_word<'a>(s: &'a str, word: &str) -> Option<&'a str> {
    let head = s.get(..word.len())?;
    head.eq_ignore_ascii_case(word).then(|| s[word.len()..].trim_start())
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

fn parse_day(s: &str, bc: bool) -> Result<i64, Failure> {
    let num = |p: &str| -> Result<i64, Failure> {
        if p.is_empty() || p.len() > 7 || !p.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Failure::Syntax);
        }
        p.parse().map_err(|_| Failure::Syntax)
    };
    let month = |p: &str| -> Result<i64, Failure> {
        if p.starts_with(|c: char| c.is_ascii_alphabetic()) && p.len() >= 3 {
            let lower = p.to_ascii_lowercase();
            let found = MONTHS.iter().position(|m| m.starts_with(&lower));
            return found.and_then(|m| i64::try_from(m + 1).ok()).ok_or(Failure::Syntax);
        }
        num(p)
    };
    let parts: Vec<&str> = s.split(['-', '/', '.']).collect();
    let (y, m, d) = match parts.as_slice() {
        [ymd] if ymd.len() == 8 && ymd.is_ascii() => (num(&ymd[..4])?, num(&ymd[4..6])?, num(&ymd[6..])?),
        [y, m, d] if y.len() >= 3 && !y.starts_with(|c: char| c.is_ascii_alphabetic()) => (num(y)?, month(m)?, num(d)?),
        [d, m, y] if m.starts_with(|c: char| c.is_ascii_alphabetic()) && y.len() >= 3 => (num(y)?, month(m)?, num(d)?),
        [m, d, y] if y.len() >= 3 => (num(y)?, month(m)?, num(d)?),
        _ => return Err(Failure::Syntax),
    };
    if y == 0 || !(1..=12).contains(&m) {
        return Err(Failure::Field);
    }
    let y = if bc { 1 - y } else { y };
    if d < 1 || d > days_in(y, m) {
        return Err(Failure::Field);
    }
    if !(-4713..=294_276).contains(&y) {
        return Err(Failure::Range);
    }
    Ok(days_of(y, m, d))
}

/// `hh:mm[:ss[.f]]` in microseconds; the hours may be large.
fn parse_clock(s: &str) -> Result<i64, Failure> {
    let mut parts = s.split(':');
    let hours: i64 = parts.next().unwrap_or("").parse().map_err(|_| Failure::Syntax)?;
    let minutes: i64 = parts
        .next()
        .ok_or(Failure::Syntax)?
        .parse()
        .map_err(|_| Failure::Syntax)?;
    let seconds = match parts.next() {
        None => 0,
        Some(sec) => micros_of(sec)?,
    };
    if parts.next().is_some() {
        return Err(Failure::Syntax);
    }
    if minutes > 59 || seconds > 60_000_000 {
        return Err(Failure::Field);
    }
    hours
        .checked_mul(3600)
        .and_then(|h| h.checked_add(minutes * 60))
        .and_then(|s| s.checked_mul(1_000_000))
        .and_then(|us| us.checked_add(seconds))
        .ok_or(Failure::Range)
}

/// A non-negative decimal number of seconds in microseconds, rounded.
fn micros_of(s: &str) -> Result<i64, Failure> {
    let (whole, fraction) = s.split_once('.').unwrap_or((s, ""));
    if whole.is_empty() && fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Failure::Syntax);
    }
    let whole: i64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| Failure::Syntax)?
    };
    let mut digits: Vec<u8> = fraction.bytes().collect();
    let up = digits.get(6).is_some_and(|d| *d >= b'5');
    digits.resize(6, b'0');
    let micros: i64 = std::str::from_utf8(&digits)
        .ok()
        .and_then(|t| t.parse().ok())
        .ok_or(Failure::Syntax)?;
    whole
        .checked_mul(1_000_000)
        .and_then(|w| w.checked_add(micros + i64::from(up)))
        .ok_or(Failure::Range)
}

fn parse_offset(s: &str) -> Result<Option<i64>, Failure> {
    if s.is_empty() {
        return Ok(None);
    }
    if ["z", "utc", "gmt", "zulu"].iter().any(|z| s.eq_ignore_ascii_case(z)) {
        return Ok(Some(0));
    }
    let sign = match s.as_bytes()[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return Err(Failure::Syntax),
    };
    let body = &s[1..];
    let num = |p: &str| p.parse::<i64>().map_err(|_| Failure::Syntax);
    let parts: Vec<&str> = body.split(':').collect();
    let seconds = match parts.as_slice() {
        [h] if h.len() <= 2 => num(h)? * 3600,
        [hm] if hm.len() == 4 && hm.is_ascii() => num(&hm[..2])? * 3600 + num(&hm[2..])? * 60,
        [h, m] => num(h)? * 3600 + num(m)? * 60,
        [h, m, sec] => num(h)? * 3600 + num(m)? * 60 + num(sec)?,
        _ => return Err(Failure::Syntax),
    };
    if seconds > 16 * 3600 {
        return Err(Failure::Field);
    }
    Ok(Some(sign * seconds))
}

/// interval: `1 year 2 mons 3 days 04:05:06.7`, `10 seconds`, `-1 day`, `1 day ago`, ISO 8601 `P1DT2H`.
pub fn parse_interval(s: &str) -> Result<IntervalMonthDayNano, Failure> {
    let mut acc = Accumulator::default();
    let lower = s.trim().to_ascii_lowercase();
    if let Some(iso) = lower.strip_prefix('p') {
        acc.iso(iso)?;
        return acc.finish(1);
    }
    let mut words: Vec<String> = Vec::new();
    for word in lower
        .split([' ', '\t', '\n', ','])
        .filter(|w| !w.is_empty() && *w != "@")
    {
        // `10seconds` is two words.
        let split = word
            .char_indices()
            .find(|(i, c)| *i > 0 && c.is_ascii_alphabetic() && !word[..*i].contains(|c: char| c.is_ascii_alphabetic()))
            .map(|(i, _)| i);
        match split {
            Some(i) => words.extend([word[..i].to_owned(), word[i..].to_owned()]),
            None => words.push(word.to_owned()),
        }
    }
    let mut sign = 1;
    if words.last().is_some_and(|w| w == "ago") {
        words.pop();
        sign = -1;
    }
    if words.is_empty() {
        return Err(Failure::Syntax);
    }
    let mut i = 0;
    while i < words.len() {
        let word = &words[i];
        if word.contains(':') {
            acc.clock(word)?;
            i += 1;
        } else if let Some((y, m)) = year_month(word) {
            acc.add(y, "year")?;
            acc.add(m, "month")?;
            i += 1;
        } else {
            let unit = words.get(i + 1).map_or("second", String::as_str);
            acc.add_text(word, unit)?;
            i += 2;
        }
    }
    acc.finish(sign)
}

fn year_month(word: &str) -> Option<(f64, f64)> {
    let (body, sign) = word.strip_prefix('-').map_or((word, 1.0), |b| (b, -1.0));
    let (y, m) = body.split_once('-')?;
    Some((sign * y.parse::<f64>().ok()?, sign * m.parse::<f64>().ok()?))
}

#[derive(Default)]
struct Accumulator {
    months: i64,
    days: i64,
    micros: i64,
}

impl Accumulator {
    fn add_text(&mut self, number: &str, unit: &str) -> Result<(), Failure> {
        if !number.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
            return Err(Failure::Syntax);
        }
        if matches!(unit, "second" | "seconds" | "sec" | "secs" | "s") {
            let (body, sign) = match number.as_bytes()[0] {
                b'-' => (&number[1..], -1),
                b'+' => (&number[1..], 1),
                _ => (number, 1),
            };
            let us = micros_of(body)?;
            self.micros = self.micros.checked_add(sign * us).ok_or(Failure::Range)?;
            return Ok(());
        }
        self.add(number.parse().map_err(|_| Failure::Syntax)?, unit)
    }

    /// Fractions of a unit spill into smaller units, months of 30 days.
    #[allow(clippy::cast_possible_truncation)]
    fn add(&mut self, n: f64, unit: &str) -> Result<(), Failure> {
        let us = |n: f64, unit: f64| -> Result<i64, Failure> {
            let v = (n * unit).round();
            if v.abs() < 9.2e18 {
                Ok(v as i64)
            } else {
                Err(Failure::Range)
            }
        };
        if n.abs() > 2e9 {
            return Err(Failure::Range);
        }
        let plus = |a: i64, b: i64| a.checked_add(b).ok_or(Failure::Range);
        match unit {
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" => self.micros = plus(self.micros, us(n, 1.0)?)?,
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => self.micros = plus(self.micros, us(n, 1e3)?)?,
            "second" | "seconds" | "sec" | "secs" | "s" => self.micros = plus(self.micros, us(n, 1e6)?)?,
            "minute" | "minutes" | "min" | "mins" | "m" => self.micros = plus(self.micros, us(n, 6e7)?)?,
            "hour" | "hours" | "hr" | "hrs" | "h" => self.micros = plus(self.micros, us(n, 3.6e9)?)?,
            "day" | "days" | "d" => {
                self.days = plus(self.days, n.trunc() as i64)?;
                self.micros = plus(self.micros, us(n.fract(), 8.64e10)?)?;
            }
            "week" | "weeks" | "w" => self.add(n * 7.0, "day")?,
            "month" | "months" | "mon" | "mons" => {
                self.months = plus(self.months, n.trunc() as i64)?;
                if n.fract() != 0.0 {
                    self.add(n.fract() * 30.0, "day")?;
                }
            }
            "year" | "years" | "yr" | "yrs" | "y" => self.months = plus(self.months, us(n, 12.0)?)?,
            "decade" | "decades" => self.months = plus(self.months, us(n, 120.0)?)?,
            "century" | "centuries" => self.months = plus(self.months, us(n, 1200.0)?)?,
            "millennium" | "millennia" => self.months = plus(self.months, us(n, 12_000.0)?)?,
            _ => return Err(Failure::Syntax),
        }
        Ok(())
    }

    fn clock(&mut self, word: &str) -> Result<(), Failure> {
        let (body, sign) = match word.as_bytes()[0] {
            b'-' => (&word[1..], -1),
            b'+' => (&word[1..], 1),
            _ => (word, 1),
        };
        let us = parse_clock(body)?;
        self.micros = self.micros.checked_add(sign * us).ok_or(Failure::Range)?;
        Ok(())
    }

    fn iso(&mut self, body: &str) -> Result<(), Failure> {
        let mut in_time = false;
        let mut number = String::new();
        for c in body.chars() {
            match c {
                't' => in_time = true,
                '0'..='9' | '.' | '-' | '+' => number.push(c),
                _ => {
                    let unit = match (c, in_time) {
                        ('y', false) => "year",
                        ('m', false) => "month",
                        ('w', false) => "week",
                        ('d', false) => "day",
                        ('h', true) => "hour",
                        ('m', true) => "minute",
                        ('s', true) => "second",
                        _ => return Err(Failure::Syntax),
                    };
                    self.add_text(&std::mem::take(&mut number), unit)?;
                }
            }
        }
        if number.is_empty() {
            Ok(())
        } else {
            Err(Failure::Syntax)
        }
    }

    fn finish(self, sign: i64) -> Result<IntervalMonthDayNano, Failure> {
        let months = i32::try_from(self.months * sign).map_err(|_| Failure::Range)?;
        let days = i32::try_from(self.days * sign).map_err(|_| Failure::Range)?;
        let nanos = (self.micros * sign).checked_mul(1000).ok_or(Failure::Range)?;
        Ok(IntervalMonthDayNano::new(months, days, nanos))
    }
}

/// A span of microseconds as PostgreSQL shows the difference of two timestamps: whole days and the rest.
pub fn interval_of_micros(us: i64) -> Option<IntervalMonthDayNano> {
    let days = i32::try_from(us / DAY_US).ok()?;
    Some(IntervalMonthDayNano::new(0, days, (us % DAY_US).checked_mul(1000)?))
}

/// A timestamp moved by an interval: months first (clipped to the month's end), then days, then the rest.
pub fn add_interval(us: i64, v: IntervalMonthDayNano) -> Option<i64> {
    let (mut days, time) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
    if v.months != 0 {
        let (y, m, d) = civil(days);
        let total = y * 12 + (m - 1) + i64::from(v.months);
        let (y, m) = (total.div_euclid(12), total.rem_euclid(12) + 1);
        days = days_of(y, m, d.min(days_in(y, m)));
    }
    days.checked_add(i64::from(v.days))?
        .checked_mul(DAY_US)?
        .checked_add(time)?
        .checked_add(v.nanoseconds / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the short way reads, the general way reads alike: a space before the text leads there.
    #[test]
    fn the_common_form_is_read_as_the_general_one() {
        let times = [
            "2024-02-29 00:00:00",
            "2024-02-29T23:59:59.9",
            "0001-01-01 01:02:03.000001",
            "1969-12-31T23:59:59.999999Z",
            "2024-06-01 12:00:00+05:30",
            "2024-06-01T12:00:00.25-08",
            "9999-12-31 23:59:59.123456+15:59",
        ];
        for text in times {
            assert!(parse_iso(text).is_some(), "{text}");
            let general = format!(" {text}");
            assert!(parse_iso(&general).is_none());
            assert_eq!(parse_timestamp(text), parse_timestamp(&general), "{text}");
            assert_eq!(parse_timestamptz(text), parse_timestamptz(&general), "{text}");
        }
        for text in [
            "2023-02-29 00:00:00",
            "2024-13-01 00:00:00",
            "2024-01-01 24:00:00",
            "2024-01-01 00:00:60",
            "2024-01-01 00:00:00.1234567",
            "2024-01-01 00:00:00+17",
            "0000-01-01 00:00:00",
        ] {
            assert!(parse_iso(text).is_none(), "{text}");
        }
    }
}
