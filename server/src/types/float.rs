//! Floats: shortest text that reads back as the same value, in PostgreSQL's layout.

use std::io::Write;

use super::{invalid_syntax, out_of_range, trim};
use crate::error::Result;

/// Appends a float8.
pub fn put_f64(out: &mut impl bytes::BufMut, v: f64) {
    if let Some(word) = special(v) {
        return out.put_slice(word);
    }
    let mut buffer = [0u8; 40];
    let text = format_into(&mut buffer, format_args!("{v:e}"));
    put_scientific(out, text, 15);
}

/// Appends a float4.
pub fn put_f32(out: &mut impl bytes::BufMut, v: f32) {
    if let Some(word) = special(f64::from(v)) {
        return out.put_slice(word);
    }
    let mut buffer = [0u8; 40];
    let text = format_into(&mut buffer, format_args!("{v:e}"));
    put_scientific(out, text, 6);
}

fn special(v: f64) -> Option<&'static [u8]> {
    if v.is_nan() {
        Some(b"NaN")
    } else if v == f64::INFINITY {
        Some(b"Infinity")
    } else if v == f64::NEG_INFINITY {
        Some(b"-Infinity")
    } else {
        None
    }
}

fn format_into<'a>(buffer: &'a mut [u8; 40], args: std::fmt::Arguments<'_>) -> &'a [u8] {
    let mut rest = &mut buffer[..];
    // Shortest digits need at most 17 + sign, point and exponent: 25 bytes.
    if rest.write_fmt(args).is_err() {
        return b"NaN";
    }
    let left = rest.len();
    &buffer[..40 - left]
}

/// Rewrites Rust's `d.ddde±x` in PostgreSQL's layout: plain while −4 ≤ exponent < `plain_max`.
fn put_scientific(out: &mut impl bytes::BufMut, text: &[u8], plain_max: i32) {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let e = text.iter().position(|&b| b == b'e').unwrap_or(text.len());
    let exponent = std::str::from_utf8(text.get(e + 1..).unwrap_or_default())
        .ok()
        .and_then(|t| t.parse::<i32>().ok())
        .unwrap_or(0);
    let mut digits = [0u8; 24];
    let mut n = 0;
    for &b in text[..e].iter().filter(|b| b.is_ascii_digit()) {
        if n < digits.len() {
            digits[n] = b;
            n += 1;
        }
    }
    let digits = &digits[..n];
    if negative {
        out.put_u8(b'-');
    }
    if !(-4..plain_max).contains(&exponent) {
        out.put_u8(digits.first().copied().unwrap_or(b'0'));
        if digits.len() > 1 {
            out.put_u8(b'.');
            out.put_slice(&digits[1..]);
        }
        out.put_slice(if exponent < 0 { b"e-" } else { b"e+" });
        let x = exponent.unsigned_abs();
        if x < 10 {
            out.put_u8(b'0');
        }
        super::encode::put_u64(out, u64::from(x));
        return;
    }
    if exponent < 0 {
        out.put_slice(b"0.");
        for _ in 1..exponent.unsigned_abs() {
            out.put_u8(b'0');
        }
        out.put_slice(digits);
        return;
    }
    let whole = usize::try_from(exponent).unwrap_or(0) + 1;
    for i in 0..whole {
        out.put_u8(digits.get(i).copied().unwrap_or(b'0'));
    }
    if digits.len() > whole {
        out.put_u8(b'.');
        out.put_slice(&digits[whole..]);
    }
}

/// Reads a float8.
///
/// # Errors
/// 22P02, 22003.
pub fn parse_f64(text: &str) -> Result<f64> {
    let t = trim(text);
    if let Some(v) = special_word(t) {
        return Ok(v);
    }
    if !plausible(t) {
        return Err(invalid_syntax("double precision", text));
    }
    let v: f64 = t.parse().map_err(|_| invalid_syntax("double precision", text))?;
    if v.is_infinite() || (v == 0.0 && has_nonzero_digit(t)) {
        return Err(crate::error::SqlError::new(
            "22003",
            format!("\"{t}\" is out of range for type double precision"),
        ));
    }
    Ok(v)
}

/// Reads a float4.
///
/// # Errors
/// 22P02, 22003.
pub fn parse_f32(text: &str) -> Result<f32> {
    let t = trim(text);
    if let Some(v) = special_word(t) {
        #[expect(clippy::cast_possible_truncation, reason = "NaN and infinities keep their meaning")]
        return Ok(v as f32);
    }
    if !plausible(t) {
        return Err(invalid_syntax("real", text));
    }
    let v: f32 = t.parse().map_err(|_| invalid_syntax("real", text))?;
    if v.is_infinite() || (v == 0.0 && has_nonzero_digit(t)) {
        return Err(crate::error::SqlError::new(
            "22003",
            format!("\"{t}\" is out of range for type real"),
        ));
    }
    Ok(v)
}

fn special_word(t: &str) -> Option<f64> {
    let (sign, word) = match t.as_bytes().first() {
        Some(b'-') => (-1.0, &t[1..]),
        Some(b'+') => (1.0, &t[1..]),
        _ => (1.0, t),
    };
    if word.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    (word.eq_ignore_ascii_case("infinity") || word.eq_ignore_ascii_case("inf")).then_some(sign * f64::INFINITY)
}

/// Rust also accepts words that PostgreSQL does not.
fn plausible(t: &str) -> bool {
    !t.is_empty()
        && t.bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'))
}

fn has_nonzero_digit(t: &str) -> bool {
    t.bytes()
        .take_while(|b| !matches!(b, b'e' | b'E'))
        .any(|b| (b'1'..=b'9').contains(&b))
}

/// Reads an integer of a type whose range is `min..=max`.
///
/// # Errors
/// 22P02, 22003.
pub fn parse_int(text: &str, type_name: &str, min: i64, max: i64) -> Result<i64> {
    let t = trim(text);
    let digits = t.strip_prefix(['+', '-']).unwrap_or(t);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid_syntax(type_name, text));
    }
    match t.parse::<i64>() {
        Ok(v) if (min..=max).contains(&v) => Ok(v),
        _ => Err(out_of_range(type_name, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f8(v: f64) -> String {
        let mut out = Vec::new();
        put_f64(&mut out, v);
        String::from_utf8(out).expect("ascii")
    }

    fn f4(v: f32) -> String {
        let mut out = Vec::new();
        put_f32(&mut out, v);
        String::from_utf8(out).expect("ascii")
    }

    #[test]
    fn text_is_postgresqls() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (1e15, "1e+15"),
            (123_456_789_012_345.0, "123456789012345"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (0.1 + 0.2, "0.30000000000000004"),
            (-2.5, "-2.5"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::MAX, "1.7976931348623157e+308"),
        ];
        for (v, text) in cases {
            assert_eq!(f8(v), text);
        }
        assert_eq!(f4(1e6), "1e+06");
        assert_eq!(f4(100_000.0), "100000");
        assert_eq!(f4(0.1), "0.1");
    }

    #[test]
    fn input_accepts_what_postgresql_does() {
        assert_eq!(parse_f64(" 1.5e3 ").expect("float"), 1500.0);
        assert!(parse_f64("-Infinity").expect("float").is_infinite());
        assert!(parse_f64("nan").expect("float").is_nan());
        assert_eq!(parse_f64("").expect_err("empty").code(), "22P02");
        assert_eq!(parse_f64("1e400").expect_err("range").code(), "22003");
        assert_eq!(parse_f64("1e-400").expect_err("range").code(), "22003");
        assert_eq!(parse_f64("0x10").expect_err("hex").code(), "22P02");
        assert_eq!(parse_int(" 42 ", "integer", i64::MIN, i64::MAX).expect("int"), 42);
        assert_eq!(
            parse_int("99999", "smallint", -32768, 32767)
                .expect_err("range")
                .message(),
            "value \"99999\" is out of range for type smallint"
        );
    }
}
