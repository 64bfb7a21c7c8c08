//! json and jsonb values.
//!
//! `json` is its text, as it was written. `jsonb` is bytes that are equal exactly if PostgreSQL calls the values equal, and that sort as
//! PostgreSQL sorts them, so grouping, joins, DISTINCT and ORDER BY need to know nothing of it:
//!
//! ```text
//!   value   := 00                                 an empty array, only as the whole value (it sorts first there)
//!            | 01                                 null
//!            | 02 text 00                         string; U+0000 cannot be in one
//!            | 03 number
//!            | 04 00 | 04 01                      false, true
//!            | 05 count(u32) value*               array: fewer elements first
//!            | 06 count(u32) (key 00 value)*      object: fewer pairs first; keys by length, then bytes
//!   number  := 00 ~(exponent digits) | 01 | 02 exponent digits          negative, zero, positive
//!   exponent: of 0.d₁d₂… · 10^exponent, four bytes with the sign flipped; digits: pairs + 1, ended by 00, no zeros at the end
//! ```
//!
//! Equal numbers are equal bytes, so `1.0` is kept and shown as `1`, as with unlimited numeric.

mod parse;
pub mod raw;
mod read;

pub use parse::{Parser, parse, validate};
pub use read::{
    Kind, contains, elements, field, item, kind_of, members, number_text, put_text, scalar, scalar_text, text,
    text_value,
};

use crate::{PlanError, Result};

const EMPTY_ARRAY: u8 = 0;
const NULL: u8 = 1;
const STRING: u8 = 2;
const NUMBER: u8 = 3;
const BOOL: u8 = 4;
const ARRAY: u8 = 5;
const OBJECT: u8 = 6;

const NEGATIVE: u8 = 0;
const ZERO: u8 = 1;
const POSITIVE: u8 = 2;

/// Digits before and behind the point of PostgreSQL's numeric.
const WHOLE_MAX: i64 = 131_072;
const FRACTION_MAX: i64 = 16_383;

/// A parsed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number as written.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object; of equal keys the last counts.
    Object(Vec<(String, Value)>),
    /// A jsonb value that exists already.
    Encoded(Vec<u8>),
}

/// A text as jsonb.
///
/// # Errors
/// 22P02, 22P05, 22003.
pub fn jsonb_of_text(text: &str) -> Result<Vec<u8>> {
    encode(&parse(text)?)
}

/// The jsonb bytes of a value.
///
/// # Errors
/// 22003 for a number beyond numeric, 22P05 for U+0000 in a string.
pub fn encode(value: &Value) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    put(value, &mut out)?;
    Ok(as_root(out))
}

/// A value's bytes when it stands alone.
pub fn as_root(nested: Vec<u8>) -> Vec<u8> {
    if nested == [ARRAY, 0, 0, 0, 0] {
        vec![EMPTY_ARRAY]
    } else {
        nested
    }
}

/// A value's bytes inside another.
fn as_nested(root: &[u8]) -> &[u8] {
    if root == [EMPTY_ARRAY] {
        &[ARRAY, 0, 0, 0, 0]
    } else {
        root
    }
}

fn put(value: &Value, out: &mut Vec<u8>) -> Result<()> {
    match value {
        Value::Null => out.push(NULL),
        Value::Bool(b) => out.extend([BOOL, u8::from(*b)]),
        Value::Number(text) => {
            out.push(NUMBER);
            put_number(text, out)?;
        }
        Value::String(s) => {
            out.push(STRING);
            put_string(s, out)?;
        }
        Value::Array(items) => {
            out.push(ARRAY);
            put_count(items.len(), out)?;
            items.iter().try_for_each(|i| put(i, out))?;
        }
        Value::Object(pairs) => {
            let mut sorted: Vec<&(String, Value)> = pairs.iter().collect();
            sorted.sort_by(|a, b| key_order(&a.0).cmp(&key_order(&b.0)));
            let mut kept: Vec<&(String, Value)> = Vec::with_capacity(sorted.len());
            for pair in sorted {
                match kept.last_mut() {
                    Some(last) if last.0 == pair.0 => *last = pair,
                    _ => kept.push(pair),
                }
            }
            out.push(OBJECT);
            put_count(kept.len(), out)?;
            for (key, value) in kept {
                put_string(key, out)?;
                put(value, out)?;
            }
        }
        Value::Encoded(bytes) => out.extend_from_slice(as_nested(bytes)),
    }
    Ok(())
}

/// Keys are ordered by length, then by bytes.
fn key_order(key: &str) -> (usize, &[u8]) {
    (key.len(), key.as_bytes())
}

fn put_count(n: usize, out: &mut Vec<u8>) -> Result<()> {
    let n = u32::try_from(n)
        .map_err(|_| PlanError::new("54000", "number of jsonb elements exceeds the maximum allowed"))?;
    out.extend(n.to_be_bytes());
    Ok(())
}

fn put_string(s: &str, out: &mut Vec<u8>) -> Result<()> {
    if s.as_bytes().contains(&0) {
        return Err(parse::zero_escape());
    }
    out.extend_from_slice(s.as_bytes());
    out.push(0);
    Ok(())
}

fn put_number(text: &str, out: &mut Vec<u8>) -> Result<()> {
    let overflow = || PlanError::new("22003", "value overflows numeric format");
    let (negative, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match magnitude.split_once(['e', 'E']) {
        Some((m, e)) => (m, e.parse::<i64>().map_err(|_| overflow())?),
        None => (magnitude, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|b| b.wrapping_sub(b'0'))
        .collect();
    let Some(first) = digits.iter().position(|d| *d != 0) else {
        out.push(ZERO);
        return Ok(());
    };
    let last = digits.iter().rposition(|d| *d != 0).unwrap_or(first);
    let digits = &digits[first..=last];
    let length = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let exponent = exponent
        .saturating_add(length(whole.len()))
        .saturating_sub(length(first));
    if exponent > WHOLE_MAX || length(digits.len()).saturating_sub(exponent) > FRACTION_MAX {
        return Err(overflow());
    }
    out.push(if negative { NEGATIVE } else { POSITIVE });
    let start = out.len();
    let exponent = i32::try_from(exponent).map_err(|_| overflow())?;
    out.extend((exponent.cast_unsigned() ^ 1 << 31).to_be_bytes());
    out.extend(digits.chunks(2).map(|pair| match pair {
        [a, b] => a * 10 + b + 1,
        [a] => a * 10 + 1,
        _ => 1,
    }));
    out.push(0);
    if negative {
        out[start..].iter_mut().for_each(|b| *b = !*b);
    }
    Ok(())
}

/// Appends a string in quotes, escaped as PostgreSQL does.
pub fn put_quoted(s: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 32 => {
                let _infallible = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(t: &str) -> String {
        text(&jsonb_of_text(t).unwrap())
    }

    #[test]
    fn texts_are_postgresqls() {
        for (from, to) in [
            ("null", "null"),
            (" true ", "true"),
            ("-0.0", "0"),
            ("1.50", "1.5"),
            ("-12.25e1", "-122.5"),
            ("1e3", "1000"),
            ("0.001e-2", "0.00001"),
            ("100", "100"),
            (r#""a\u00e4\n\"\\/\u0001""#, r#""aä\n\"\\/\u0001""#),
            (r#""\ud83d\ude00""#, "\"\u{1f600}\""),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[ ]", "[]"),
            ("[1,[],{},\"x\",null]", "[1, [], {}, \"x\", null]"),
            (
                r#"{"bb":1,"a":2,"c":{"x":[]},"a":3}"#,
                r#"{"a": 3, "c": {"x": []}, "bb": 1}"#,
            ),
        ] {
            assert_eq!(shown(from), to, "{from}");
        }
    }

    #[test]
    fn bytes_sort_as_postgresql_sorts() {
        // `SELECT j FROM … ORDER BY j::jsonb` of PostgreSQL 15.
        let sorted = [
            "[]",
            "null",
            "\"\"",
            "\"a\"",
            "\"aa\"",
            "\"b\"",
            "-1e10",
            "-12.5",
            "-12",
            "-1",
            "-0.5",
            "0",
            "0.01",
            "0.5",
            "1",
            "1.5",
            "2",
            "10",
            "11",
            "1e10",
            "false",
            "true",
            "[null]",
            "[\"a\"]",
            "[1]",
            "[2]",
            "[true]",
            "[[]]",
            "[{}]",
            "[1, 2]",
            "{}",
            "{\"a\":1}",
            "{\"a\":2}",
            "{\"b\":1}",
            "{\"a\":0,\"b\":0}",
        ];
        let bytes: Vec<Vec<u8>> = sorted.iter().map(|t| jsonb_of_text(t).unwrap()).collect();
        for (i, pair) in bytes.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{} {}", sorted[i], sorted[i + 1]);
        }
        assert_eq!(jsonb_of_text("1.0").unwrap(), jsonb_of_text("10e-1").unwrap());
    }

    #[test]
    fn values_are_found() {
        let doc = jsonb_of_text(r#"{"a": {"b": [10, "x", {"c": null}, []]}, "n": -1.5}"#).unwrap();
        let list = field(&field(&doc, "a").unwrap(), "b").unwrap();
        let show = |v: Option<Vec<u8>>| v.map(|v| text(&v));
        assert_eq!(show(item(&list, 1)).as_deref(), Some("\"x\""));
        assert_eq!(show(item(&list, -2)).as_deref(), Some("{\"c\": null}"));
        assert_eq!(show(item(&list, -1)).as_deref(), Some("[]"));
        assert_eq!(item(&list, -1).unwrap(), jsonb_of_text("[]").unwrap());
        assert_eq!(show(item(&list, 4)), None);
        assert_eq!(show(item(&doc, 0)), None);
        assert_eq!(show(field(&list, "x")), None);
        assert_eq!(scalar_text(&field(&doc, "n").unwrap()).as_deref(), Some("-1.5"));
        let holds = |a: &str, b: &str| contains(&jsonb_of_text(a).unwrap(), &jsonb_of_text(b).unwrap());
        assert!(!holds("[1, 2, [1, 3]]", "[1, 3, 1]") && holds("[1, 2, [1, 3]]", "[[1]]"));
        assert!(holds("[\"foo\", \"bar\"]", "\"bar\"") && !holds("\"bar\"", "[\"bar\"]"));
        assert!(holds("{\"a\": {\"b\": 1, \"c\": 2}}", "{\"a\": {}}") && !holds("{\"a\": 1}", "{\"a\": {}}"));
        assert!(holds("[]", "[]") && holds("1", "1.0") && holds("[1,2,2]", "[2,1,1]"));
    }

    #[test]
    fn errors_are_postgresqls() {
        for (bad, code, detail) in [
            ("", "22P02", "The input string ended unexpectedly."),
            ("{\"a\":", "22P02", "The input string ended unexpectedly."),
            ("nul", "22P02", "Token \"nul\" is invalid."),
            ("01", "22P02", "Token \"01\" is invalid."),
            ("'a'", "22P02", "Token \"'\" is invalid."),
            ("[1,]", "22P02", "Expected JSON value, but found \"]\"."),
            ("[1 2]", "22P02", "Expected \",\" or \"]\", but found \"2\"."),
            ("{1:2}", "22P02", "Expected string or \"}\", but found \"1\"."),
            ("{\"a\" 1}", "22P02", "Expected \":\", but found \"1\"."),
            ("{\"a\":1,}", "22P02", "Expected string, but found \"}\"."),
            ("1 2", "22P02", "Expected end of input, but found \"2\"."),
            ("\"a\\q\"", "22P02", "Escape sequence \"\\q\" is invalid."),
            (
                "\"\\u00g0\"",
                "22P02",
                "\"\\u\" must be followed by four hexadecimal digits.",
            ),
            ("\"\t\"", "22P02", "Character with value 0x09 must be escaped."),
            ("\"\\u0000\"", "22P05", "\\u0000 cannot be converted to text."),
            (
                "\"\\ud800x\"",
                "22P02",
                "Unicode low surrogate must follow a high surrogate.",
            ),
        ] {
            let e = parse(bad).expect_err(bad);
            assert_eq!((e.code, e.detail.as_deref()), (code, Some(detail)), "{bad}");
        }
        assert!(validate("\"\\u0000\"").is_ok());
        assert!(validate(&"[".repeat(100_000)).is_err());
        assert_eq!(jsonb_of_text("1e200000").expect_err("big").code, "22003");
    }
}
