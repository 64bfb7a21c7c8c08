//! Intervals: months, days and microseconds, in PostgreSQL's `postgres` style.

use bytes::BufMut;

use super::datetime::{DAY_US, put_fraction, put_hours};
use super::encode::{put_padded, put_u64};
use super::{invalid_syntax, trim};
use crate::error::{Result, SqlError};

/// A value of type interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interval {
    /// Months.
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub us: i64,
}

/// Appends the text form.
pub fn put_interval(out: &mut impl BufMut, v: Interval) {
    let mut state = PartState {
        first: true,
        negative: false,
    };
    put_part(out, &mut state, v.months / 12, b"year");
    put_part(out, &mut state, v.months % 12, b"mon");
    put_part(out, &mut state, v.days, b"day");
    if !state.first && v.us == 0 {
        return;
    }
    if !state.first {
        out.put_u8(b' ');
    }
    if v.us < 0 {
        out.put_u8(b'-');
    } else if state.negative {
        out.put_u8(b'+');
    }
    let us = v.us.unsigned_abs();
    put_hours(out, us / 3_600_000_000);
    out.put_u8(b':');
    put_padded(out, us / 60_000_000 % 60, 2);
    out.put_u8(b':');
    put_padded(out, us / 1_000_000 % 60, 2);
    put_fraction(out, i64::try_from(us % 1_000_000).unwrap_or(0));
}

struct PartState {
    first: bool,
    negative: bool,
}

fn put_part(out: &mut impl BufMut, state: &mut PartState, v: i32, unit: &[u8]) {
    if v == 0 {
        return;
    }
    if !state.first {
        out.put_u8(b' ');
    }
    if v < 0 {
        out.put_u8(b'-');
    } else if state.negative {
        out.put_u8(b'+');
    }
    put_u64(out, u64::from(v.unsigned_abs()));
    out.put_u8(b' ');
    out.put_slice(unit);
    if v != 1 {
        out.put_u8(b's');
    }
    state.negative = v < 0;
    state.first = false;
}

/// Reads `1 year 2 mons 3 days 04:05:06.7`, `3 hours ago`, `1-2 3 4:05:06`, `P1Y2M3DT4H5M6S`.
///
/// # Errors
/// 22007, 22015.
pub fn parse_interval(text: &str) -> Result<Interval> {
    let t = trim(text);
    let syntax = || {
        let e = invalid_syntax("interval", text);
        SqlError::new("22007", e.message())
    };
    let mut sum = Sum::default();
    if t.is_empty() {
        return Err(syntax());
    }
    if t.starts_with(['P', 'p']) {
        iso(&t[1..], &mut sum).ok_or_else(syntax)?;
        return sum.finish(text);
    }
    let mut ago = false;
    let lower = t.to_lowercase();
    let mut rest = lower.strip_prefix('@').unwrap_or(&lower).trim_start();
    while !rest.is_empty() {
        if ago {
            return Err(syntax());
        }
        if let Some(after) = rest.strip_prefix("ago") {
            ago = true;
            rest = after.trim_start();
            continue;
        }
        rest = term(rest, &mut sum).ok_or_else(syntax)?.trim_start();
    }
    if ago {
        sum.negate();
    }
    sum.finish(text)
}

/// Parts, wide enough not to overflow on the way.
#[derive(Debug, Default)]
struct Sum {
    months: f64,
    days: f64,
    us: i128,
}

impl Sum {
    fn negate(&mut self) {
        self.months = -self.months;
        self.days = -self.days;
        self.us = -self.us;
    }

    /// Adds `whole + fraction` units. Fractions of a month become days, of a day time, as in PostgreSQL.
    fn add(&mut self, number: &Number, unit: &str) -> Option<()> {
        const S: i128 = 1_000_000;
        let v = number.value;
        match unit {
            "y" | "yr" | "yrs" | "year" | "years" => self.months += (v * 12.0).round(),
            "dec" | "decade" | "decades" => self.months += (v * 120.0).round(),
            "c" | "cent" | "century" | "centuries" => self.months += (v * 1200.0).round(),
            "mil" | "millennium" | "millennia" => self.months += (v * 12_000.0).round(),
            "mon" | "mons" | "month" | "months" => {
                self.months += v.trunc();
                self.add_days(v.fract() * 30.0);
            }
            "w" | "week" | "weeks" => self.add_days(v * 7.0),
            "d" | "day" | "days" => self.add_days(v),
            "h" | "hr" | "hrs" | "hour" | "hours" => self.us += number.scaled(3600 * S)?,
            "m" | "min" | "mins" | "minute" | "minutes" => self.us += number.scaled(60 * S)?,
            "s" | "sec" | "secs" | "second" | "seconds" => self.us += number.scaled(S)?,
            "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => self.us += number.scaled(1000)?,
            "us" | "usec" | "usecs" | "microsecond" | "microseconds" => self.us += number.scaled(1)?,
            _ => return None,
        }
        Some(())
    }

    fn add_days(&mut self, days: f64) {
        self.days += days.trunc();
        #[expect(clippy::cast_possible_truncation, reason = "less than a day")]
        #[expect(clippy::cast_precision_loss, reason = "a day in microseconds is exact")]
        let us = (days.fract() * DAY_US as f64).round() as i64;
        self.us += i128::from(us);
    }

    fn finish(self, text: &str) -> Result<Interval> {
        let out = || SqlError::new("22015", format!("interval field value out of range: \"{text}\""));
        let int = |v: f64| -> Result<i32> {
            #[expect(clippy::cast_possible_truncation, reason = "range checked")]
            if (-2_147_483_648.0..=2_147_483_647.0).contains(&v) {
                Ok(v as i32)
            } else {
                Err(out())
            }
        };
        Ok(Interval {
            months: int(self.months)?,
            days: int(self.days)?,
            us: i64::try_from(self.us).map_err(|_| out())?,
        })
    }
}

/// A signed decimal, exactly for time units.
struct Number {
    value: f64,
    negative: bool,
    whole: i128,
    fraction: i128,
    fraction_scale: i128,
}

impl Number {
    fn read(t: &str) -> Option<(Self, &str)> {
        let (negative, body) = match t.as_bytes().first()? {
            b'-' => (true, &t[1..]),
            b'+' => (false, &t[1..]),
            _ => (false, t),
        };
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let n = digits(body);
        let after = &body[n..];
        let f = after.strip_prefix('.').map_or(0, digits);
        if n + f == 0 || n > 18 {
            return None;
        }
        let fraction = after.get(1..1 + f).filter(|_| f > 0).unwrap_or("");
        let kept = &fraction[..fraction.len().min(12)];
        let number = Self {
            value: body[..n + if f > 0 { f + 1 } else { 0 }].parse::<f64>().ok()? * if negative { -1.0 } else { 1.0 },
            negative,
            whole: if n == 0 { 0 } else { body[..n].parse().ok()? },
            fraction: if kept.is_empty() { 0 } else { kept.parse().ok()? },
            fraction_scale: 10i128.pow(u32::try_from(kept.len()).ok()?),
        };
        let dot = usize::from(after.starts_with('.'));
        Some((number, &after[if f > 0 { f + 1 } else { dot }..]))
    }

    fn scaled(&self, unit: i128) -> Option<i128> {
        let twice = 2 * self.fraction.checked_mul(unit)?;
        let v = self.whole.checked_mul(unit)? + (twice / self.fraction_scale + 1) / 2;
        Some(if self.negative { -v } else { v })
    }
}

/// One `number unit`, clock or `years-months`; answers what follows.
fn term<'a>(t: &'a str, sum: &mut Sum) -> Option<&'a str> {
    let token = &t[..t.find(|c: char| c.is_whitespace()).unwrap_or(t.len())];
    if token.contains(':') {
        sum.us += clock(token)?;
        return Some(&t[token.len()..]);
    }
    let (number, rest) = Number::read(t)?;
    if let Some(months) = rest.strip_prefix('-') {
        let n = months.bytes().take_while(u8::is_ascii_digit).count();
        let m: f64 = months[..n].parse().ok()?;
        let sign = if number.negative { -1.0 } else { 1.0 };
        sum.months += number.value * 12.0 + sign * m;
        return Some(&months[n..]);
    }
    let rest = rest.trim_start();
    let n = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    if n == 0 || rest.starts_with("ago") {
        if rest.is_empty() || rest.starts_with("ago") {
            sum.add(&number, "second")?;
        } else {
            // `3 4:05:06`: days before a clock.
            sum.add(&number, "day")?;
        }
        return Some(rest);
    }
    sum.add(&number, &rest[..n])?;
    Some(&rest[n..])
}

/// `[±]H:MM[:SS[.f]]` in microseconds.
fn clock(token: &str) -> Option<i128> {
    let (negative, body) = match token.as_bytes().first()? {
        b'-' => (true, &token[1..]),
        b'+' => (false, &token[1..]),
        _ => (false, token),
    };
    let parts: Vec<&str> = body.split(':').collect();
    let int = |s: &str| -> Option<i128> {
        (!s.is_empty() && s.len() <= 9 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok())?
    };
    let seconds = |s: &str| -> Option<i128> {
        let (n, rest) = Number::read(s)?;
        (rest.is_empty() && !n.negative && n.whole < 60).then(|| n.scaled(1_000_000))?
    };
    let us = match parts.as_slice() {
        [m, s] if s.contains('.') => int(m)? * 60_000_000 + seconds(s)?,
        [h, m] => (int(h)? * 60 + int(m).filter(|m| *m < 60)?) * 60_000_000,
        [h, m, s] => (int(h)? * 60 + int(m).filter(|m| *m < 60)?) * 60_000_000 + seconds(s)?,
        _ => return None,
    };
    Some(if negative { -us } else { us })
}

/// ISO 8601 with designators, after the `P`.
fn iso(t: &str, sum: &mut Sum) -> Option<()> {
    let mut rest = t;
    let mut time = false;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(['T', 't']) {
            time = true;
            rest = after;
            continue;
        }
        let (number, after) = Number::read(rest)?;
        let unit = match (time, after.as_bytes().first()?.to_ascii_uppercase()) {
            (false, b'Y') => "year",
            (false, b'M') => "month",
            (false, b'W') => "week",
            (false, b'D') => "day",
            (true, b'H') => "hour",
            (true, b'M') => "minute",
            (true, b'S') => "second",
            _ => return None,
        };
        sum.add(&number, unit)?;
        rest = &after[1..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        let v = parse_interval(text).expect(text);
        let mut out = Vec::new();
        put_interval(&mut out, v);
        String::from_utf8(out).expect("ascii")
    }

    #[test]
    fn intervals_print_as_postgresql_prints_them() {
        for (input, output) in [
            ("1 year 2 mons 3 days 04:05:06.789", "1 year 2 mons 3 days 04:05:06.789"),
            ("1 day", "1 day"),
            ("0", "00:00:00"),
            ("-1 day +02:03:04", "-1 days +02:03:04"),
            ("1 day ago", "-1 days"),
            ("-1 year", "-1 years"),
            ("36 hours", "36:00:00"),
            ("1.5 days", "1 day 12:00:00"),
            ("1 mon -1 day", "1 mon -1 days"),
            ("P1Y2M3DT4H5M6S", "1 year 2 mons 3 days 04:05:06"),
            ("1-2", "1 year 2 mons"),
            ("3 4:05:06", "3 days 04:05:06"),
            ("10 ms", "00:00:00.01"),
            ("2 weeks", "14 days"),
            ("100:00:00", "100:00:00"),
            ("-00:00:01.5", "-00:00:01.5"),
            ("1h30m", "01:30:00"),
        ] {
            assert_eq!(round(input), output, "{input}");
        }
        assert_eq!(parse_interval("1 fortnight").expect_err("unit").code(), "22007");
        assert_eq!(parse_interval("").expect_err("empty").code(), "22007");
        assert_eq!(parse_interval("99999999999 years").expect_err("range").code(), "22015");
    }
}
