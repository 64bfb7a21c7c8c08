//! PostgreSQL's text forms of values: what `::text` and the wire show, and what `'…'::type` and COPY accept.
//!
//! Parsers return the kind of failure; [`Failure::error`] words it as PostgreSQL does.

use std::fmt::Write as _;
use std::sync::LazyLock;

use arrow::datatypes::{DataType, IntervalMonthDayNano, i256};

use super::types::{BARE_NUMERIC, DEVIATION, QUOTIENT, is_unlimited};
use crate::PlanError;

/// Why a text is not a value of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Not of the form.
    Syntax,
    /// Of the form, but outside the type.
    Range,
    /// A date or time field outside its range.
    Field,
}

impl Failure {
    /// The error for `text` as a value of type `name`.
    pub fn error(self, name: &str, text: &str) -> PlanError {
        let is_time = matches!(name, "date" | "interval") || name.starts_with("time");
        let short = name.strip_suffix(" without time zone").unwrap_or(name);
        match self {
            Failure::Syntax if is_time => {
                PlanError::new("22007", format!("invalid input syntax for type {short}: \"{text}\""))
            }
            Failure::Syntax => PlanError::new("22P02", format!("invalid input syntax for type {name}: \"{text}\"")),
            Failure::Field => PlanError::new("22008", format!("date/time field value out of range: \"{text}\"")),
            Failure::Range if is_time => PlanError::new("22008", format!("{short} out of range: \"{text}\"")),
            Failure::Range if name == "numeric" => numeric_overflow(),
            Failure::Range if matches!(name, "real" | "double precision") => {
                PlanError::new("22003", format!("\"{text}\" is out of range for type {name}"))
            }
            Failure::Range => PlanError::new("22003", format!("value \"{text}\" is out of range for type {name}")),
        }
    }
}

/// A numeric value that its representation cannot hold.
pub fn numeric_overflow() -> PlanError {
    PlanError::new("22003", "numeric field overflow")
}

type Parse<T> = Result<T, Failure>;

/// boolean.
pub fn parse_bool(s: &str) -> Parse<bool> {
    let t = s.trim().to_ascii_lowercase();
    let is = |word: &str, min: usize| t.len() >= min && word.starts_with(&t);
    if is("true", 1) || is("yes", 1) || t == "on" || t == "1" {
        Ok(true)
    } else if is("false", 1) || is("no", 1) || is("off", 2) || t == "0" {
        Ok(false)
    } else {
        Err(Failure::Syntax)
    }
}

/// An integer between `min` and `max`.
pub fn parse_int(s: &str, min: i64, max: i64) -> Parse<i64> {
    let t = s.trim_matches(|c: char| c.is_ascii_whitespace());
    let digits = t.strip_prefix(['-', '+']).unwrap_or(t);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Failure::Syntax);
    }
    let value: i64 = t.parse().map_err(|_| Failure::Range)?;
    if value < min || value > max {
        return Err(Failure::Range);
    }
    Ok(value)
}

/// double precision.
pub fn parse_float8(s: &str) -> Parse<f64> {
    let t = s.trim();
    let in_digits = |b: u8| matches!(b, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E');
    if !t.bytes().all(in_digits) {
        match t.to_ascii_lowercase().as_str() {
            "nan" => return Ok(f64::NAN),
            "infinity" | "+infinity" | "inf" | "+inf" => return Ok(f64::INFINITY),
            "-infinity" | "-inf" => return Ok(f64::NEG_INFINITY),
            _ => {}
        }
    }
    if !t.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Err(Failure::Syntax);
    }
    let value: f64 = t.parse().map_err(|_| Failure::Syntax)?;
    let nonzero = || {
        let mantissa = t.split(['e', 'E']).next().unwrap_or("");
        mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b))
    };
    if value.is_infinite() || (value == 0.0 && nonzero()) {
        return Err(Failure::Range);
    }
    Ok(value)
}

/// real.
#[allow(clippy::cast_possible_truncation)]
pub fn parse_float4(s: &str) -> Parse<f32> {
    let wide = parse_float8(s)?;
    let text = s.trim();
    let value: f32 = text.parse().unwrap_or(wide as f32);
    if (value.is_infinite() && wide.is_finite()) || (value == 0.0 && wide != 0.0) {
        return Err(Failure::Range);
    }
    Ok(value)
}

/// A numeric as an unscaled integer at `scale`, rounded half away from zero unless `exact`, with at most `precision` digits.
pub fn parse_numeric(s: &str, precision: u8, scale: i8, exact: bool) -> Parse<i256> {
    if let Some(short) = short_numeric(s, precision, scale) {
        return Ok(short);
    }
    let t = s.trim();
    let (negative, t) = match t.as_bytes().first() {
        Some(b'-') => (true, &t[1..]),
        Some(b'+') => (false, &t[1..]),
        _ => (false, t),
    };
    let (mantissa, exponent) = match t.split_once(['e', 'E']) {
        Some((m, e)) => (m, e.parse::<i32>().map_err(|_| Failure::Syntax)?),
        None => (t, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        let special = ["nan", "infinity", "inf"].iter().any(|w| t.eq_ignore_ascii_case(w));
        return Err(if special { Failure::Range } else { Failure::Syntax });
    }
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let leading = digits.iter().take_while(|d| **d == 0).count();
    if leading == digits.len() {
        return Ok(i256::ZERO);
    }
    // The value is `digits` × 10^shift once written at `scale`.
    let whole_len = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let keep = whole_len + i64::from(exponent) + i64::from(scale);
    let mut value = i256::ZERO;
    let ten = i256::from_i128(10);
    for i in leading..usize::try_from(keep.max(0)).unwrap_or(usize::MAX).min(leading + 80) {
        let d = digits.get(i).copied().unwrap_or(0);
        value = value
            .checked_mul(ten)
            .and_then(|v| v.checked_add(i256::from_i128(i128::from(d))))
            .ok_or(Failure::Range)?;
    }
    if keep > i64::try_from(leading + 80).unwrap_or(i64::MAX) {
        return Err(Failure::Range);
    }
    if keep >= 0 {
        let at = usize::try_from(keep).unwrap_or(usize::MAX);
        if exact && digits.get(at..).is_some_and(|rest| rest.iter().any(|d| *d != 0)) {
            return Err(Failure::Range);
        }
        if digits.get(at).is_some_and(|d| *d >= 5) {
            value = value.checked_add(i256::ONE).ok_or(Failure::Range)?;
        }
    } else if exact {
        return Err(Failure::Range);
    }
    if value >= pow10(precision) {
        return Err(Failure::Range);
    }
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// The common case of [`parse_numeric`]: at most 18 digits, none to be rounded off, and nothing around them.
fn short_numeric(s: &str, precision: u8, scale: i8) -> Option<i256> {
    let (negative, digits) = match s.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    let scale = u8::try_from(scale).ok()?;
    let mut value = 0_i64;
    let (mut n, mut fraction) = (0_u8, None);
    for b in digits {
        match (b, fraction) {
            (b'0'..=b'9', _) if n < 18 => {
                value = value * 10 + i64::from(b - b'0');
                n += 1;
            }
            (b'.', None) => fraction = Some(n),
            _ => return None,
        }
    }
    let after = fraction.map_or(0, |before| n - before);
    if n == 0 || after > scale {
        return None;
    }
    let unscaled = i256::from_i128(value.into()).checked_mul(pow10(scale - after))?;
    let signed = if negative { unscaled.wrapping_neg() } else { unscaled };
    (unscaled < pow10(precision)).then_some(signed)
}

/// 10^n as a 256-bit integer; n ≤ 76.
pub fn pow10(n: u8) -> i256 {
    static POWERS: LazyLock<Vec<i256>> = LazyLock::new(|| {
        let times_ten = |v: &i256| v.checked_mul(i256::from_i128(10));
        std::iter::successors(Some(i256::ONE), times_ten).collect()
    });
    // There are 77 powers that fit; larger ones would have no meaning here.
    POWERS.get(usize::from(n)).copied().unwrap_or(i256::MAX)
}

/// How many digits after the point PostgreSQL shows for a numeric of this type.
///
/// A declared scale is shown whole, bare numeric without trailing zeros. A quotient has at least 16 significant digits in whole
/// groups of four, as PostgreSQL's division selects them.
pub fn display_scale(value: i256, data_type: &DataType) -> usize {
    let scale = match data_type {
        DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => usize::try_from(*s).unwrap_or(0),
        _ => 0,
    };
    if !is_unlimited(data_type) {
        return scale;
    }
    let text = value.wrapping_abs().to_string();
    let zeros = text.bytes().rev().take_while(|b| *b == b'0').count();
    let needed = if value == i256::ZERO {
        0
    } else {
        scale.saturating_sub(zeros)
    };
    if data_type == &BARE_NUMERIC {
        return needed;
    }
    if value == i256::ZERO && data_type != &QUOTIENT {
        return 0;
    }
    // 0/n and n/n: PostgreSQL's estimate from the operands is one group of digits lower.
    if value == i256::ZERO || (needed == 0 && text.len() == scale + 1 && text.starts_with('1')) {
        return 20;
    }
    // Weight of the leading group of four digits, counted from the point.
    let digits = i64::try_from(text.len()).unwrap_or(0) - i64::try_from(scale).unwrap_or(0);
    let mut exponent = digits - 1;
    if data_type == &DEVIATION {
        // A standard deviation has the digits of its variance.
        let leading = text
            .get(..text.len().min(17))
            .and_then(|t| t.parse::<u128>().ok())
            .unwrap_or(0);
        let places = u32::try_from(text.len().min(17)).unwrap_or(17) - 1;
        exponent = 2 * exponent + i64::from(leading * leading >= 10 * 100_u128.pow(places));
    }
    let weight = exponent.div_euclid(4);
    let estimate = usize::try_from((16 - 4 * weight).max(0)).unwrap_or(0);
    // Digits beyond the estimate tell that PostgreSQL's, made from the operands, was one or more groups higher.
    (estimate + needed.saturating_sub(estimate).next_multiple_of(4)).min(scale)
}

/// numeric.
pub fn format_numeric(value: i256, data_type: &DataType) -> String {
    let scale = match data_type {
        DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => usize::try_from(*s).unwrap_or(0),
        _ => 0,
    };
    let shown = display_scale(value, data_type);
    let mut digits = value.wrapping_abs().to_string();
    if digits.len() <= scale {
        digits.insert_str(0, &"0".repeat(scale + 1 - digits.len()));
    }
    let point = digits.len() - scale;
    let sign = if value < i256::ZERO { "-" } else { "" };
    let (whole, fraction) = digits.split_at(point);
    let fraction = &fraction[..shown.min(fraction.len())];
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// double precision: the shortest digits that read back the same.
pub fn format_float8(v: f64) -> String {
    float(v, format!("{v:e}"), 15)
}

/// real.
pub fn format_float4(v: f32) -> String {
    float(f64::from(v), format!("{v:e}"), 6)
}

fn float(v: f64, scientific: String, digits_max: i32) -> String {
    if v.is_nan() {
        return "NaN".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    if v == 0.0 {
        return if v.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let negative = mantissa.starts_with('-');
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let mut out = String::new();
    if negative {
        out.push('-');
    }
    if exponent < -4 || exponent >= digits_max {
        out.push_str(&digits[..1]);
        if digits.len() > 1 {
            out.push('.');
            out.push_str(&digits[1..]);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        let _infallible = write!(out, "e{sign}{:02}", exponent.abs());
    } else if exponent < 0 {
        out.push_str("0.");
        out.push_str(&"0".repeat(usize::try_from(-exponent - 1).unwrap_or(0)));
        out.push_str(&digits);
    } else {
        let point = usize::try_from(exponent + 1).unwrap_or(0);
        if digits.len() <= point {
            out.push_str(&digits);
            out.push_str(&"0".repeat(point - digits.len()));
        } else {
            out.push_str(&digits[..point]);
            out.push('.');
            out.push_str(&digits[point..]);
        }
    }
    out
}

/// uuid: 32 hexadecimal digits, with hyphens behind any group of four, in braces or not.
pub fn parse_uuid(s: &str) -> Parse<[u8; 16]> {
    let inner = match s.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or(Failure::Syntax)?,
        None => s,
    };
    let mut out = [0_u8; 16];
    let mut digits = 0_usize;
    let mut hyphen = false;
    for b in inner.bytes() {
        if b == b'-' {
            if hyphen || digits == 0 || !digits.is_multiple_of(4) || digits == 32 {
                return Err(Failure::Syntax);
            }
            hyphen = true;
            continue;
        }
        hyphen = false;
        let digit = char::from(b)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
            .ok_or(Failure::Syntax)?;
        let slot = out.get_mut(digits / 2).ok_or(Failure::Syntax)?;
        *slot = *slot << 4 | digit;
        digits += 1;
    }
    if digits == 32 { Ok(out) } else { Err(Failure::Syntax) }
}

/// uuid.
pub fn format_uuid(v: &[u8]) -> String {
    let mut out = String::with_capacity(36);
    for (i, b) in v.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let _infallible = write!(out, "{b:02x}");
    }
    out
}

/// bytea, hex form.
pub fn format_bytea(v: &[u8]) -> String {
    let mut out = String::with_capacity(2 + 2 * v.len());
    out.push_str("\\x");
    for b in v {
        let _infallible = write!(out, "{b:02x}");
    }
    out
}

/// bytea, hex or escape form.
pub fn parse_bytea(s: &str) -> Parse<Vec<u8>> {
    if let Some(hex) = s.strip_prefix("\\x") {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        if !digits.len().is_multiple_of(2) {
            return Err(Failure::Syntax);
        }
        let nibble = |b: u8| {
            char::from(b)
                .to_digit(16)
                .and_then(|d| u8::try_from(d).ok())
                .ok_or(Failure::Syntax)
        };
        return digits
            .chunks(2)
            .map(|c| Ok(nibble(c[0])? << 4 | nibble(c[1])?))
            .collect();
    }
    let bytes = s.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] != b'\\' {
            out.push(bytes[i]);
            i += 1;
        } else if bytes.get(i + 1) == Some(&b'\\') {
            out.push(b'\\');
            i += 2;
        } else {
            let octal = s.get(i + 1..i + 4).ok_or(Failure::Syntax)?;
            out.push(u8::from_str_radix(octal, 8).map_err(|_| Failure::Syntax)?);
            i += 4;
        }
    }
    Ok(out)
}

/// interval, `postgres` style.
pub fn format_interval(v: IntervalMonthDayNano) -> String {
    let mut parts = Vec::new();
    let (years, months) = (v.months / 12, v.months % 12);
    let micros = v.nanoseconds / 1000;
    let mut negative_before = false;
    let mut field = |n: i64, name: &str| {
        if n != 0 {
            let plus = if negative_before && n > 0 { "+" } else { "" };
            let plural = if n == 1 { "" } else { "s" };
            parts.push(format!("{plus}{n} {name}{plural}"));
            negative_before = n < 0;
        }
    };
    field(i64::from(years), "year");
    field(i64::from(months), "mon");
    field(i64::from(v.days), "day");
    if micros != 0 || parts.is_empty() {
        let sign = if micros < 0 {
            "-"
        } else if negative_before {
            "+"
        } else {
            ""
        };
        parts.push(format!("{sign}{}", clock(micros.unsigned_abs())));
    }
    parts.join(" ")
}

/// `hh:mm:ss[.ffffff]` of a number of microseconds.
pub fn clock(micros: u64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let mut out = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the short way reads, the general way reads alike: a plus sign before the text leads there.
    #[test]
    fn short_numerics_are_read_as_long_ones() {
        for text in [
            "0",
            "7",
            "123.45",
            ".5",
            "5.",
            "999999999999999999",
            "0.000",
            "00012.30",
            "12345678901234567.8",
        ] {
            for (precision, scale) in [(38, 2), (5, 2), (76, 38), (18, 0), (74, 74)] {
                let long = format!("+{text}");
                assert_eq!(short_numeric(&long, precision, scale), None);
                let expected = parse_numeric(&long, precision, scale, false);
                assert_eq!(
                    parse_numeric(text, precision, scale, false),
                    expected,
                    "{text} ({precision}, {scale})"
                );
                let negative = parse_numeric(&format!("-{text}"), precision, scale, false);
                assert_eq!(negative, expected.map(i256::wrapping_neg), "-{text}");
            }
        }
        for text in ["", "-", ".", "1.2.3", "1e3", " 1", "1234567890123456789"] {
            assert_eq!(short_numeric(text, 38, 2), None, "{text}");
        }
    }
}
