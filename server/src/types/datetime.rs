//! Dates and timestamps: proleptic Gregorian calendar, ISO style, microseconds since 1970 (days for dates).

use bytes::BufMut;

use super::encode::{put_padded, put_u64};
use super::trim;
use super::zone::Zone;
use crate::error::{Result, SqlError};

/// Microseconds in a day.
pub const DAY_US: i64 = 86_400_000_000;
/// 2000-01-01 in days since 1970: PostgreSQL's binary epoch.
pub const PG_EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
pub const PG_EPOCH_US: i64 = PG_EPOCH_DAYS as i64 * DAY_US;
/// First and last day that PostgreSQL's timestamps can show.
const DAYS_MIN: i64 = -2_440_588;
const TIMESTAMP_END_DAYS: i64 = 106_751_991;

/// Year, month, day of a day number.
pub fn civil(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = u32::try_from(doy - (153 * mp + 2) / 5 + 1).unwrap_or(1);
    let month = u32::try_from(if mp < 10 { mp + 3 } else { mp - 9 }).unwrap_or(1);
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

/// Day number of a date that exists.
pub fn days_of(year: i64, month: u32, day: u32) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let m = i64::from(month);
    let doy = (153 * (if m > 2 { m - 3 } else { m + 9 }) + 2) / 5 + i64::from(day) - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Appends a date.
pub fn put_date(out: &mut impl BufMut, days: i32) {
    match days {
        i32::MAX => out.put_slice(b"infinity"),
        i32::MIN => out.put_slice(b"-infinity"),
        _ => {
            let bc = put_ymd(out, i64::from(days));
            put_bc(out, bc);
        }
    }
}

fn put_ymd(out: &mut impl BufMut, days: i64) -> bool {
    let (year, month, day) = civil(days);
    let bc = year <= 0;
    let shown = if bc { 1 - year } else { year };
    put_padded(out, shown.unsigned_abs(), 4);
    out.put_u8(b'-');
    put_padded(out, u64::from(month), 2);
    out.put_u8(b'-');
    put_padded(out, u64::from(day), 2);
    bc
}

fn put_bc(out: &mut impl BufMut, bc: bool) {
    if bc {
        out.put_slice(b" BC");
    }
}

/// Appends `HH:MM:SS[.ffffff]`.
pub fn put_time(out: &mut impl BufMut, us: i64) {
    let s = us / 1_000_000;
    put_padded(out, (s / 3600).unsigned_abs(), 2);
    out.put_u8(b':');
    put_padded(out, (s / 60 % 60).unsigned_abs(), 2);
    out.put_u8(b':');
    put_padded(out, (s % 60).unsigned_abs(), 2);
    put_fraction(out, us % 1_000_000);
}

/// Appends `.ffffff` without trailing zeros.
pub fn put_fraction(out: &mut impl BufMut, us: i64) {
    let mut us = us.unsigned_abs();
    if us == 0 {
        return;
    }
    out.put_u8(b'.');
    let mut width = 6;
    while us.is_multiple_of(10) {
        us /= 10;
        width -= 1;
    }
    put_padded(out, us, width);
}

/// Appends a timestamp without time zone.
pub fn put_timestamp(out: &mut impl BufMut, us: i64) {
    if put_infinity(out, us) {
        return;
    }
    let bc = put_ymd(out, us.div_euclid(DAY_US));
    out.put_u8(b' ');
    put_time(out, us.rem_euclid(DAY_US));
    put_bc(out, bc);
}

/// Appends a timestamp with time zone as a clock in `zone` shows it.
pub fn put_timestamptz(out: &mut impl BufMut, us: i64, zone: &Zone) {
    if put_infinity(out, us) {
        return;
    }
    let offset = zone.offset_at(us);
    let local = us.saturating_add(i64::from(offset) * 1_000_000);
    let bc = put_ymd(out, local.div_euclid(DAY_US));
    out.put_u8(b' ');
    put_time(out, local.rem_euclid(DAY_US));
    out.put_u8(if offset < 0 { b'-' } else { b'+' });
    let o = u64::from(offset.unsigned_abs());
    put_padded(out, o / 3600, 2);
    if !o.is_multiple_of(3600) {
        out.put_u8(b':');
        put_padded(out, o / 60 % 60, 2);
        if !o.is_multiple_of(60) {
            out.put_u8(b':');
            put_padded(out, o % 60, 2);
        }
    }
    put_bc(out, bc);
}

fn put_infinity(out: &mut impl BufMut, us: i64) -> bool {
    match us {
        i64::MAX => out.put_slice(b"infinity"),
        i64::MIN => out.put_slice(b"-infinity"),
        _ => return false,
    }
    true
}

/// What a date or timestamp text says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fields {
    days: i64,
    time_us: i64,
    zone: Option<ZoneText>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZoneText {
    Seconds(i64),
    Named { start: usize, end: usize },
}

/// Reads a date.
///
/// # Errors
/// 22007, 22008.
pub fn parse_date(text: &str) -> Result<i32> {
    let t = trim(text);
    match word(t) {
        Some(Word::Infinity) => return Ok(i32::MAX),
        Some(Word::NegInfinity) => return Ok(i32::MIN),
        Some(Word::Epoch) => return Ok(0),
        None => {}
    }
    let fields = parse_fields(t, text, "date")?;
    i32::try_from(fields.days)
        .ok()
        .filter(|&d| i64::from(d) >= DAYS_MIN && d < 2_145_031_949)
        .ok_or_else(|| SqlError::new("22008", format!("date out of range: \"{text}\"")))
}

/// Reads a timestamp without time zone; a zone in the text is ignored, as in PostgreSQL.
///
/// # Errors
/// 22007, 22008.
pub fn parse_timestamp(text: &str) -> Result<i64> {
    let t = trim(text);
    match word(t) {
        Some(w) => Ok(w.us()),
        None => in_range(parse_fields(t, text, "timestamp")?, text),
    }
}

/// Reads a timestamp with time zone; without one in the text, it is the session's.
///
/// # Errors
/// 22007, 22008, 22023.
pub fn parse_timestamptz(text: &str, session: &Zone) -> Result<i64> {
    let t = trim(text);
    if let Some(w) = word(t) {
        return Ok(w.us());
    }
    let fields = parse_fields(t, text, "timestamp with time zone")?;
    let local = in_range(fields, text)?;
    Ok(match fields.zone {
        None => session.to_utc(local),
        Some(ZoneText::Seconds(s)) => local.saturating_sub(s * 1_000_000),
        Some(ZoneText::Named { start, end }) => {
            let name = &t[start..end];
            Zone::parse(name)
                .map_err(|_| SqlError::new("22023", format!("time zone \"{name}\" not recognized")))?
                .to_utc(local)
        }
    })
}

fn in_range(f: Fields, text: &str) -> Result<i64> {
    if f.days < DAYS_MIN || f.days >= TIMESTAMP_END_DAYS {
        return Err(SqlError::new("22008", format!("timestamp out of range: \"{text}\"")));
    }
    Ok(f.days * DAY_US + f.time_us)
}

enum Word {
    Infinity,
    NegInfinity,
    Epoch,
}

impl Word {
    fn us(&self) -> i64 {
        match self {
            Self::Infinity => i64::MAX,
            Self::NegInfinity => i64::MIN,
            Self::Epoch => 0,
        }
    }
}

fn word(t: &str) -> Option<Word> {
    if t.eq_ignore_ascii_case("infinity") || t.eq_ignore_ascii_case("+infinity") {
        Some(Word::Infinity)
    } else if t.eq_ignore_ascii_case("-infinity") {
        Some(Word::NegInfinity)
    } else if t.eq_ignore_ascii_case("epoch") {
        Some(Word::Epoch)
    } else {
        None
    }
}

/// A cursor over ASCII input.
struct Cursor<'a> {
    b: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.b.get(self.at).copied()
    }

    fn eat(&mut self, c: u8) -> bool {
        let hit = self.peek().is_some_and(|b| b.eq_ignore_ascii_case(&c));
        if hit {
            self.at += 1;
        }
        hit
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Up to `max` digits: value and count.
    fn digits(&mut self, max: usize) -> Option<(i64, usize)> {
        let start = self.at;
        let mut v = 0i64;
        while self.at - start < max {
            match self.peek() {
                Some(b @ b'0'..=b'9') => {
                    v = v * 10 + i64::from(b - b'0');
                    self.at += 1;
                }
                _ => break,
            }
        }
        (self.at > start).then_some((v, self.at - start))
    }

    fn letters(&mut self) -> &[u8] {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_alphabetic()) {
            self.at += 1;
        }
        &self.b[start..self.at]
    }
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const MONTH_NAMES: [&str; 12] = [
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

fn month_of(letters: &[u8]) -> Option<u32> {
    let lower = letters.to_ascii_lowercase();
    let position = |names: &[&str; 12]| names.iter().position(|n| n.as_bytes() == lower);
    let i = position(&MONTHS)
        .or_else(|| position(&MONTH_NAMES))
        .or((lower == b"sept").then_some(8))?;
    u32::try_from(i + 1).ok()
}

fn parse_fields(t: &str, original: &str, type_name: &str) -> Result<Fields> {
    let syntax = || {
        SqlError::new(
            "22007",
            format!("invalid input syntax for type {type_name}: \"{original}\""),
        )
    };
    let range = || {
        SqlError::new("22008", format!("date/time field value out of range: \"{original}\""))
            .hint("Perhaps you need a different \"datestyle\" setting.")
    };
    let mut c = Cursor { b: t.as_bytes(), at: 0 };
    let (mut year, month, day) = parse_ymd(&mut c).ok_or_else(syntax)?;
    let mut time_us = 0;
    let mut zone = None;
    let mut bc = false;
    if c.eat(b'T') || c.peek().is_some_and(|b| b.is_ascii_whitespace()) {
        c.spaces();
        if c.peek().is_some_and(|b| b.is_ascii_digit()) {
            time_us = parse_time(&mut c).ok_or_else(syntax)?.ok_or_else(range)?;
        }
    }
    loop {
        c.spaces();
        match c.peek() {
            None => break,
            Some(b'+' | b'-') if zone.is_none() => {
                zone = Some(ZoneText::Seconds(parse_offset(&mut c).ok_or_else(syntax)?))
            }
            Some(b) if b.is_ascii_alphabetic() => {
                let start = c.at;
                while c
                    .peek()
                    .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'+' | b'-'))
                {
                    c.at += 1;
                }
                let text = &t[start..c.at];
                if text.eq_ignore_ascii_case("bc") {
                    bc = true;
                } else if text.eq_ignore_ascii_case("z") || text.eq_ignore_ascii_case("utc") {
                    zone = Some(ZoneText::Seconds(0));
                } else if !text.eq_ignore_ascii_case("ad") {
                    if zone.is_some() || Zone::parse(text).is_err() {
                        return Err(syntax());
                    }
                    zone = Some(ZoneText::Named { start, end: c.at });
                }
            }
            Some(_) => return Err(syntax()),
        }
    }
    if bc {
        year = 1 - year;
    } else if year == 0 {
        return Err(range());
    }
    if !(1..=12).contains(&month) || day == 0 || day > days_in_month(year, month) {
        return Err(range());
    }
    Ok(Fields {
        days: days_of(year, month, day),
        time_us,
        zone,
    })
}

/// `2013-01-02`, `20130102`, `1/2/2013` (month first), `2 Jan 2013`, `Jan 2, 2013`.
fn parse_ymd(c: &mut Cursor<'_>) -> Option<(i64, u32, u32)> {
    if c.peek()?.is_ascii_alphabetic() {
        let month = month_of(c.letters())?;
        c.spaces();
        let (day, _) = c.digits(2)?;
        c.eat(b',');
        c.spaces();
        let (year, _) = c.digits(7)?;
        return Some((year, month, u32::try_from(day).ok()?));
    }
    let (first, n) = c.digits(8)?;
    if n == 8 && !matches!(c.peek(), Some(b'-' | b'/')) {
        let rest = u32::try_from(first % 10_000).ok()?;
        return Some((first / 10_000, rest / 100, rest % 100));
    }
    let separator = c.peek()?;
    if !matches!(separator, b'-' | b'/' | b'.' | b' ') {
        return None;
    }
    c.at += 1;
    if c.peek()?.is_ascii_alphabetic() {
        let month = month_of(c.letters())?;
        c.eat(separator);
        let (last, _) = c.digits(7)?;
        let (year, day) = if n > 2 { (first, last) } else { (last, first) };
        return Some((
            two_digit_year(year, if n > 2 { n } else { 4 }),
            month,
            u32::try_from(day).ok()?,
        ));
    }
    let (second, _) = c.digits(2)?;
    if !c.eat(separator) {
        return None;
    }
    let (third, n3) = c.digits(7)?;
    if n > 2 {
        return Some((first, u32::try_from(second).ok()?, u32::try_from(third).ok()?));
    }
    Some((
        two_digit_year(third, n3),
        u32::try_from(first).ok()?,
        u32::try_from(second).ok()?,
    ))
}

fn two_digit_year(year: i64, digits: usize) -> i64 {
    match (digits, year) {
        (1 | 2, 0..70) => 2000 + year,
        (1 | 2, _) => 1900 + year,
        _ => year,
    }
}

/// `HH:MM[:SS[.ffffff]] [AM|PM]`. Outer `None`: syntax; inner: out of range.
fn parse_time(c: &mut Cursor<'_>) -> Option<Option<i64>> {
    let (hour, _) = c.digits(2)?;
    if !c.eat(b':') {
        return None;
    }
    let (minute, _) = c.digits(2)?;
    let (mut second, mut us) = (0, 0);
    if c.eat(b':') {
        second = c.digits(2)?.0;
        if c.eat(b'.') || c.eat(b',') {
            us = fraction_us(c);
        }
    }
    let mut hour = hour;
    let mark = c.at;
    c.spaces();
    let whole_word = !c.b.get(c.at + 2).is_some_and(u8::is_ascii_alphanumeric);
    let rest =
        c.b.get(c.at..c.at + 2)
            .filter(|_| whole_word)
            .map(<[u8]>::to_ascii_lowercase);
    match rest.as_deref() {
        Some(b"am") if (1..=12).contains(&hour) => {
            c.at += 2;
            hour %= 12;
        }
        Some(b"pm") if (1..=12).contains(&hour) => {
            c.at += 2;
            hour = hour % 12 + 12;
        }
        _ => c.at = mark,
    }
    let total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + us;
    let fits = hour <= 24 && minute < 60 && second <= 60 && total <= DAY_US;
    Some(fits.then_some(total))
}

/// Digits after the point as microseconds, rounded.
fn fraction_us(c: &mut Cursor<'_>) -> i64 {
    let (mut us, n) = c.digits(6).unwrap_or((0, 0));
    for _ in n..6 {
        us *= 10;
    }
    let round_up = c.peek().is_some_and(|b| (b'5'..=b'9').contains(&b));
    while c.peek().is_some_and(|b| b.is_ascii_digit()) {
        c.at += 1;
    }
    us + i64::from(round_up)
}

/// `±HH`, `±HHMM`, `±HH:MM[:SS]` in seconds east.
fn parse_offset(c: &mut Cursor<'_>) -> Option<i64> {
    let negative = c.peek() == Some(b'-');
    c.at += 1;
    let (v, n) = c.digits(4)?;
    let mut seconds = if n > 2 { v / 100 * 3600 + v % 100 * 60 } else { v * 3600 };
    if n <= 2 && c.eat(b':') {
        seconds += c.digits(2)?.0 * 60;
        if c.eat(b':') {
            seconds += c.digits(2)?.0;
        }
    }
    (seconds < 16 * 3600).then_some(if negative { -seconds } else { seconds })
}

/// Appends whole microseconds' seconds for callers that print clocks of their own.
pub(super) fn put_hours(out: &mut impl BufMut, hours: u64) {
    if hours < 10 {
        out.put_u8(b'0');
    }
    put_u64(out, hours);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(f: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        f(&mut out);
        String::from_utf8(out).expect("ascii")
    }

    fn ts(text: &str) -> String {
        let us = parse_timestamp(text).expect(text);
        show(|o| put_timestamp(o, us))
    }

    #[test]
    fn dates_round_trip() {
        for (input, output) in [
            ("2013-01-01", "2013-01-01"),
            ("20130102", "2013-01-02"),
            ("1/8/1999", "1999-01-08"),
            ("January 8, 1999", "1999-01-08"),
            ("8 Jan 1999", "1999-01-08"),
            ("0044-03-15 BC", "0044-03-15 BC"),
            ("infinity", "infinity"),
            ("2024-02-29", "2024-02-29"),
            ("12345-01-01", "12345-01-01"),
        ] {
            let days = parse_date(input).expect(input);
            assert_eq!(show(|o| put_date(o, days)), output);
        }
        assert_eq!(parse_date("2013-02-29").expect_err("day").code(), "22008");
        assert_eq!(parse_date("2013-13-01").expect_err("month").code(), "22008");
        assert_eq!(parse_date("hello").expect_err("syntax").code(), "22007");
        assert_eq!(parse_date("").expect_err("empty").code(), "22007");
    }

    #[test]
    fn timestamps_round_trip() {
        assert_eq!(ts("2013-01-01 05:15:00"), "2013-01-01 05:15:00");
        assert_eq!(ts("2013-01-01T05:15:00.123456Z"), "2013-01-01 05:15:00.123456");
        assert_eq!(ts("2013-01-01"), "2013-01-01 00:00:00");
        assert_eq!(ts("2013-01-01 24:00:00"), "2013-01-02 00:00:00");
        assert_eq!(ts("1969-12-31 23:59:59.9"), "1969-12-31 23:59:59.9");
        assert_eq!(ts("2013-01-01 11:30 PM"), "2013-01-01 23:30:00");
        assert_eq!(ts("2013-01-01 00:00:00.1234565"), "2013-01-01 00:00:00.123457");
        assert_eq!(ts("-infinity"), "-infinity");
        assert_eq!(
            parse_timestamp("2013-01-01 25:00:00").expect_err("hour").code(),
            "22008"
        );
    }

    #[test]
    fn zones_apply() {
        let paris = Zone::parse("europe/paris").expect("zone");
        let us = parse_timestamptz("2013-07-01 12:00:00", &paris).expect("timestamptz");
        assert_eq!(show(|o| put_timestamptz(o, us, &Zone::utc())), "2013-07-01 10:00:00+00");
        assert_eq!(show(|o| put_timestamptz(o, us, &paris)), "2013-07-01 12:00:00+02");
        let kolkata = Zone::parse("Asia/Kolkata").expect("zone");
        let us = parse_timestamptz("2013-07-01 12:00:00+05:30", &paris).expect("timestamptz");
        assert_eq!(show(|o| put_timestamptz(o, us, &kolkata)), "2013-07-01 12:00:00+05:30");
        let us = parse_timestamptz("2013-07-01 12:00:00 America/New_York", &paris).expect("timestamptz");
        assert_eq!(show(|o| put_timestamptz(o, us, &Zone::utc())), "2013-07-01 16:00:00+00");
    }
}
