//! Decimals ↔ PostgreSQL's numeric, in text and binary.
//!
//! A decimal column has one scale. Declared `numeric(p,s)` shows all `s` digits. Bare numeric keeps 38 and shows as many as are
//! not zero. Quotients (and averages) show as many as PostgreSQL's division yields: at least 16 significant digits, counted in
//! groups of four ([`Display::Quotient`]).

use arrow::datatypes::{DataType, i256};
use bytes::BufMut;
use levee_planner::sql::types::{BARE_NUMERIC, DEVIATION, QUOTIENT, VARIANCE};

use super::{invalid_syntax, trim};
use crate::error::{Result, SqlError};

/// How many digits after the point are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// All of the column's scale.
    Scale,
    /// Without trailing zeros.
    Trimmed,
    /// As PostgreSQL's division would show it.
    Quotient,
    /// As a quotient, but 0 is shown as such.
    Variance,
    /// With the digits of its square, a variance.
    Deviation,
}

impl Display {
    /// Of a column's type.
    pub fn of(t: &DataType) -> Self {
        if *t == BARE_NUMERIC {
            Self::Trimmed
        } else if *t == QUOTIENT {
            Self::Quotient
        } else if *t == VARIANCE {
            Self::Variance
        } else if *t == DEVIATION {
            Self::Deviation
        } else {
            Self::Scale
        }
    }
}

/// Decimal digits of a value: an optional sign and up to 78 digits, of which `scale` stand after the point.
#[derive(Debug, Clone)]
pub struct Digits {
    buffer: [u8; 80],
    start: usize,
    negative: bool,
    scale: usize,
}

impl Digits {
    /// Of an `i128` with a scale that is not negative.
    pub fn from_i128(v: i128, scale: usize) -> Self {
        let mut digits = Self {
            buffer: [b'0'; 80],
            start: 80,
            negative: v < 0,
            scale,
        };
        digits.push_u128(v.unsigned_abs(), 0);
        digits.pad();
        digits
    }

    /// Of an `i256`.
    pub fn from_i256(v: i256, scale: usize) -> Self {
        if let Some(v) = v.to_i128() {
            return Self::from_i128(v, scale);
        }
        let mut digits = Self {
            buffer: [b'0'; 80],
            start: 80,
            negative: v.is_negative(),
            scale,
        };
        let base = i256::from_i128(10i128.pow(38));
        let mut rest = v;
        // 2^255 < 10^77: three groups of 38 digits always suffice.
        for group in 0..3usize {
            let low = rest.wrapping_rem(base).to_i128().unwrap_or(0).unsigned_abs();
            rest = rest.wrapping_div(base);
            digits.push_u128(low, group * 38);
            if rest == i256::ZERO {
                break;
            }
        }
        digits.pad();
        digits
    }

    fn push_u128(&mut self, mut v: u128, from_right: usize) {
        let mut at = 80usize.saturating_sub(from_right);
        while v > 0 && at > 0 {
            // One 128-bit division for 19 digits.
            let mut part = u64::try_from(v % 10_000_000_000_000_000_000).unwrap_or(0);
            v /= 10_000_000_000_000_000_000;
            for _ in 0..19 {
                if at == 0 || (v == 0 && part == 0) {
                    break;
                }
                at -= 1;
                self.buffer[at] = b'0' + u8::try_from(part % 10).unwrap_or(0);
                part /= 10;
            }
        }
        self.start = self.start.min(at);
    }

    /// At least one digit before the point.
    fn pad(&mut self) {
        self.scale = self.scale.min(79);
        self.start = self.start.min(79 - self.scale);
    }

    fn whole(&self) -> &[u8] {
        &self.buffer[self.start..80 - self.scale]
    }

    fn fraction(&self) -> &[u8] {
        &self.buffer[80 - self.scale..]
    }

    /// Digits after the point that are shown.
    pub fn display_scale(&self, display: Display) -> usize {
        let significant = self.fraction().iter().rposition(|&b| b != b'0').map_or(0, |p| p + 1);
        match display {
            Display::Scale => self.scale,
            Display::Trimmed => significant,
            Display::Variance | Display::Deviation if self.weight().is_none() => 0,
            Display::Quotient | Display::Variance | Display::Deviation => {
                // 0/n and n/n: the estimate that PostgreSQL makes from the operands is one group of digits lower.
                let one = self
                    .whole()
                    .iter()
                    .rev()
                    .enumerate()
                    .all(|(i, &b)| b == b'0' + u8::from(i == 0));
                let weight = if one && significant == 0 {
                    -1
                } else if display == Display::Deviation {
                    self.weight_of_square()
                } else {
                    self.weight().unwrap_or(-1)
                };
                let wanted = usize::try_from((16 - 4 * weight).max(0)).unwrap_or(0);
                // The value was rounded where PostgreSQL rounds it, after whole groups: digits beyond the estimate tell that its
                // own estimate was higher.
                (wanted + significant.saturating_sub(wanted).next_multiple_of(4)).min(self.scale)
            }
        }
    }

    /// Weight of the first digit that is not zero in base 10000; `None` for 0.
    fn weight(&self) -> Option<i32> {
        let whole = self.whole();
        if let Some(p) = whole.iter().position(|&b| b != b'0') {
            let places = whole.len() - p;
            return i32::try_from((places - 1) / 4).ok();
        }
        let p = self.fraction().iter().position(|&b| b != b'0')?;
        i32::try_from(p / 4 + 1).ok().map(|w| -w)
    }

    /// Weight of the first digit of the value's square in base 10000; the value is not 0.
    fn weight_of_square(&self) -> i32 {
        let digits = &self.buffer[self.start..];
        let first = digits.iter().position(|&b| b != b'0').unwrap_or(0);
        let point = digits.len() - self.scale;
        let exponent = i32::try_from(point).unwrap_or(0) - i32::try_from(first).unwrap_or(0) - 1;
        let leading = &digits[first..digits.len().min(first + 17)];
        let value = leading.iter().fold(0_u128, |v, b| v * 10 + u128::from(b - b'0'));
        let places = u32::try_from(leading.len()).unwrap_or(1) - 1;
        let carry = value * value >= 10 * 100_u128.pow(places);
        (2 * exponent + i32::from(carry)).div_euclid(4)
    }

    /// Appends the text form.
    pub fn put_text(&self, out: &mut impl BufMut, display: Display) {
        let shown = self.display_scale(display);
        let visible_zero = self.whole().iter().chain(&self.fraction()[..shown]).all(|&b| b == b'0');
        if self.negative && !visible_zero {
            out.put_u8(b'-');
        }
        let whole = self.whole();
        let first = whole.iter().position(|&b| b != b'0').unwrap_or(whole.len() - 1);
        out.put_slice(&whole[first..]);
        if shown > 0 {
            out.put_u8(b'.');
            out.put_slice(&self.fraction()[..shown]);
        }
    }

    /// Appends the binary form: groups of four digits, big-endian.
    pub fn put_binary(&self, out: &mut impl BufMut, display: Display) {
        let shown = self.display_scale(display);
        let (whole, fraction) = (self.whole(), &self.fraction()[..shown]);
        let lead = (4 - whole.len() % 4) % 4;
        let n_whole = (whole.len() + lead) / 4;
        let n_fraction = shown.div_ceil(4);
        let mut groups = [0u16; 44];
        for (i, &b) in whole.iter().enumerate() {
            let g = &mut groups[(i + lead) / 4];
            *g = *g * 10 + u16::from(b - b'0');
        }
        for i in 0..n_fraction * 4 {
            let b = fraction.get(i).copied().unwrap_or(b'0');
            let g = &mut groups[n_whole + i / 4];
            *g = *g * 10 + u16::from(b - b'0');
        }
        let all = &groups[..n_whole + n_fraction];
        let first = all.iter().position(|&g| g != 0);
        let last = all.iter().rposition(|&g| g != 0);
        let (used, weight) = match (first, last) {
            (Some(f), Some(l)) => (
                &all[f..=l],
                i16::try_from(n_whole).unwrap_or(0) - 1 - i16::try_from(f).unwrap_or(0),
            ),
            _ => (&all[..0], 0),
        };
        out.put_u16(u16::try_from(used.len()).unwrap_or(0));
        out.put_i16(weight);
        out.put_u16(if self.negative && !used.is_empty() { 0x4000 } else { 0 });
        out.put_u16(u16::try_from(shown).unwrap_or(0));
        for &g in used {
            out.put_u16(g);
        }
    }
}

/// A parsed decimal number: digits (most significant first) and the power of ten of the last one.
struct Parsed {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

fn parse_digits(text: &str) -> Result<Parsed> {
    let t = trim(text);
    let word = t.strip_prefix(['+', '-']).unwrap_or(t);
    if ["nan", "infinity", "inf"].iter().any(|w| word.eq_ignore_ascii_case(w)) {
        return Err(SqlError::unsupported(format!("numeric {t} is not supported"))
            .hint("Use double precision for NaN and infinity, or NULL."));
    }
    let invalid = || invalid_syntax("numeric", text);
    let (mantissa, exponent) = match word.split_once(['e', 'E']) {
        Some((m, e)) => {
            let digits = e.strip_prefix(['+', '-']).unwrap_or(e);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(invalid());
            }
            let e: i64 = e.parse().map_err(|_| overflow())?;
            if e.abs() > 200_000 {
                return Err(overflow());
            }
            (m, e)
        }
        None => (word, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return Err(invalid());
    }
    let digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .skip_while(|&b| b == b'0')
        .collect();
    let after = i64::try_from(fraction.len()).map_err(|_| overflow())?;
    Ok(Parsed {
        negative: t.starts_with('-'),
        digits,
        exponent: exponent - after,
    })
}

fn overflow() -> SqlError {
    SqlError::new("22003", "value overflows numeric format")
}

fn field_overflow(precision: u8, scale: i8, t: &DataType) -> SqlError {
    if Display::of(t) != Display::Scale {
        return overflow().detail(
            "Numbers without a declared precision have at most 38 digits before and 38 after the decimal point.",
        );
    }
    let room = i32::from(precision) - i32::from(scale);
    SqlError::new("22003", "numeric field overflow").detail(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less than {}.",
        if room == 0 {
            "1".to_owned()
        } else {
            format!("10^{room}")
        }
    ))
}

/// Reads text as a decimal of this type, rounding half away from zero.
///
/// # Errors
/// 22P02, 22003, and 0A000 for NaN and infinity.
pub fn parse(text: &str, precision: u8, scale: i8, t: &DataType) -> Result<i256> {
    let parsed = parse_digits(text)?;
    to_scale(&parsed, scale, precision).ok_or_else(|| field_overflow(precision, scale, t))
}

fn to_scale(p: &Parsed, scale: i8, precision: u8) -> Option<i256> {
    let ten = i256::from_i128(10);
    let shift = p.exponent + i64::from(scale);
    let kept = i64::try_from(p.digits.len()).ok()? + shift.min(0);
    let mut v = i256::ZERO;
    if kept >= 0 {
        let kept = usize::try_from(kept).ok()?;
        for &b in p.digits.iter().take(kept) {
            v = v.checked_mul(ten)?.checked_add(i256::from_i128(i128::from(b - b'0')))?;
        }
        if shift < 0 && p.digits.get(kept).is_some_and(|&b| b >= b'5') {
            v = v.checked_add(i256::ONE)?;
        }
    }
    if v != i256::ZERO {
        for _ in 0..shift.max(0) {
            v = v.checked_mul(ten)?;
        }
    }
    let limit = ten.checked_pow(u32::from(precision))?;
    if v >= limit {
        return None;
    }
    Some(if p.negative { v.wrapping_neg() } else { v })
}

/// Reads the binary form as a decimal of this type.
///
/// # Errors
/// 22P03, 22003, and 0A000 for NaN and infinity.
pub fn parse_binary(raw: &[u8], precision: u8, scale: i8, t: &DataType) -> Result<i256> {
    let bad = || SqlError::new("22P03", "invalid binary numeric");
    let word = |i: usize| raw.get(i * 2..i * 2 + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let n = usize::from(word(0).ok_or_else(bad)?);
    let weight = i64::from(word(1).ok_or_else(bad)?.cast_signed());
    let sign = word(2).ok_or_else(bad)?;
    if raw.len() != 8 + 2 * n {
        return Err(bad());
    }
    if !matches!(sign, 0 | 0x4000) {
        return Err(SqlError::unsupported("numeric NaN and infinity are not supported"));
    }
    let mut digits = Vec::with_capacity(n * 4);
    for i in 0..n {
        let group = word(4 + i).ok_or_else(bad)?;
        if group > 9999 {
            return Err(bad());
        }
        digits.extend(format!("{group:04}").bytes());
    }
    let groups = i64::try_from(n).map_err(|_| bad())?;
    let parsed = Parsed {
        negative: sign == 0x4000,
        digits,
        exponent: (weight + 1 - groups) * 4,
    };
    to_scale(&parsed, scale, precision).ok_or_else(|| field_overflow(precision, scale, t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(v: &str, t: &DataType) -> String {
        let (DataType::Decimal128(p, s) | DataType::Decimal256(p, s)) = t else {
            panic!("decimal")
        };
        let v = parse(v, *p, *s, t).expect("numeric");
        let mut out = Vec::new();
        Digits::from_i256(v, usize::try_from(*s).expect("scale")).put_text(&mut out, Display::of(t));
        String::from_utf8(out).expect("ascii")
    }

    #[test]
    fn text_round_trips() {
        let money = DataType::Decimal128(10, 2);
        assert_eq!(text("1.005", &money), "1.01");
        assert_eq!(text("-0.004", &money), "0.00");
        assert_eq!(text("1e3", &money), "1000.00");
        assert_eq!(text("12345678.99", &money), "12345678.99");
        assert_eq!(
            text("-12345678901234567890.123456789", &BARE_NUMERIC),
            "-12345678901234567890.123456789"
        );
        assert_eq!(text("0", &BARE_NUMERIC), "0");
        assert_eq!(text("100", &BARE_NUMERIC), "100");
        assert_eq!(text(".5", &BARE_NUMERIC), "0.5");
        assert_eq!(text("2.5", &QUOTIENT), "2.5000000000000000");
        assert_eq!(text("0.5", &QUOTIENT), "0.50000000000000000000");
        assert_eq!(text("0", &QUOTIENT), "0.00000000000000000000");
        assert_eq!(text("12345.678901234567", &QUOTIENT), "12345.678901234567");
    }

    /// PostgreSQL's own output of 494/28, 344/3, 1/3, 3.25/3, 0/5, 5/5, 20000/3 and 3/2, from values rounded where it rounds them.
    #[test]
    fn quotients_show_postgres_digits() {
        let shown = |text: &str| {
            let value = parse(text, 75, 38, &QUOTIENT).unwrap();
            let mut out = Vec::new();
            Digits::from_i256(value, 38).put_text(&mut out, Display::Quotient);
            String::from_utf8(out).unwrap()
        };
        for text in [
            "17.6428571428571429",
            "114.6666666666666667",
            "0.33333333333333333333",
            "1.08333333333333333333",
            "1.00421747118757307500",
            "0.00000000000000000000",
            "1.00000000000000000000",
            "6666.6666666666666667",
            "1.5000000000000000",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn overflow_names_the_field() {
        let t = DataType::Decimal128(4, 2);
        let e = parse("123.4", 4, 2, &t).expect_err("too large");
        assert_eq!(e.code(), "22003");
        assert_eq!(
            e.fields().detail.as_deref(),
            Some("A field with precision 4, scale 2 must round to an absolute value less than 10^2.")
        );
        assert_eq!(parse("1.2.3", 4, 2, &t).expect_err("syntax").code(), "22P02");
    }

    #[test]
    fn binary_round_trips() {
        for v in [
            "0",
            "1",
            "-1",
            "10000",
            "0.0001",
            "12345678.12345678",
            "-99999999999999999999.5",
            "0.00000001",
        ] {
            let parsed = parse(v, 76, 38, &BARE_NUMERIC).expect("numeric");
            let mut raw = Vec::new();
            Digits::from_i256(parsed, 38).put_binary(&mut raw, Display::Trimmed);
            assert_eq!(
                parse_binary(&raw, 76, 38, &BARE_NUMERIC).expect("binary"),
                parsed,
                "{v}"
            );
        }
    }
}
