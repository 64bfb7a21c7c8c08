//! Reading jsonb bytes. They were written by this module, so what does not fit is read as null rather than guessed at.

use super::{ARRAY, BOOL, EMPTY_ARRAY, NEGATIVE, NUMBER, OBJECT, POSITIVE, STRING, as_root, put_quoted};

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// null.
    Null,
    /// String.
    String,
    /// Number.
    Number,
    /// Boolean.
    Bool,
    /// Array.
    Array,
    /// Object.
    Object,
}

impl Kind {
    /// `jsonb_typeof`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::String => "string",
            Self::Number => "number",
            Self::Bool => "boolean",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// What the value is.
pub fn kind_of(b: &[u8]) -> Kind {
    match b.first() {
        Some(&STRING) => Kind::String,
        Some(&NUMBER) => Kind::Number,
        Some(&BOOL) => Kind::Bool,
        Some(&(ARRAY | EMPTY_ARRAY)) => Kind::Array,
        Some(&OBJECT) => Kind::Object,
        _ => Kind::Null,
    }
}

/// Is the value neither an array nor an object?
pub fn scalar(b: &[u8]) -> bool {
    !matches!(kind_of(b), Kind::Array | Kind::Object)
}

/// A text ended by a zero byte: the text, and what follows.
fn until_zero(b: &[u8]) -> (&[u8], &[u8]) {
    let end = b.iter().position(|b| *b == 0).unwrap_or(b.len());
    (&b[..end], b.get(end + 1..).unwrap_or_default())
}

fn count(b: &[u8]) -> (u32, &[u8]) {
    match b.split_first_chunk::<4>() {
        Some((n, rest)) => (u32::from_be_bytes(*n), rest),
        None => (0, &[]),
    }
}

/// The first value of `b`, and what follows.
fn split(b: &[u8]) -> (&[u8], &[u8]) {
    let rest = after(b);
    b.split_at(b.len() - rest.len())
}

fn after(b: &[u8]) -> &[u8] {
    let Some((tag, rest)) = b.split_first() else { return b };
    match *tag {
        STRING => until_zero(rest).1,
        NUMBER => match rest.split_first() {
            Some((&POSITIVE, digits)) => until_zero(digits.get(4..).unwrap_or_default()).1,
            Some((&NEGATIVE, digits)) => {
                let digits = digits.get(4..).unwrap_or_default();
                let end = digits.iter().position(|b| *b == 0xff).unwrap_or(digits.len());
                digits.get(end + 1..).unwrap_or_default()
            }
            Some((_, rest)) => rest,
            None => rest,
        },
        BOOL => rest.get(1..).unwrap_or_default(),
        ARRAY => {
            let (n, mut rest) = count(rest);
            for _ in 0..n {
                rest = after(rest);
            }
            rest
        }
        OBJECT => {
            let (n, mut rest) = count(rest);
            for _ in 0..n {
                rest = after(until_zero(rest).1);
            }
            rest
        }
        _ => rest,
    }
}

/// The elements of an array; none of anything else. They are not in the form of whole values.
pub fn elements(b: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (n, mut rest) = match b.split_first() {
        Some((&ARRAY, rest)) => count(rest),
        _ => (0, b),
    };
    (0..n).map(move |_| {
        let (value, next) = split(rest);
        rest = next;
        value
    })
}

/// Keys and values of an object; none of anything else.
pub fn members(b: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let (n, mut rest) = match b.split_first() {
        Some((&OBJECT, rest)) => count(rest),
        _ => (0, b),
    };
    (0..n).map(move |_| {
        let (key, value) = until_zero(rest);
        let (value, next) = split(value);
        rest = next;
        (std::str::from_utf8(key).unwrap_or_default(), value)
    })
}

/// The value of a key.
pub fn field(b: &[u8], key: &str) -> Option<Vec<u8>> {
    let found = members(b).find(|(k, _)| *k == key);
    found.map(|(_, v)| as_root(v.to_vec()))
}

/// The element at a place, counted from 0, or from the end if negative.
pub fn item(b: &[u8], at: i64) -> Option<Vec<u8>> {
    let n = i64::try_from(elements(b).count()).unwrap_or(0);
    let at = usize::try_from(if at < 0 { at + n } else { at }).ok()?;
    elements(b).nth(at).map(|v| as_root(v.to_vec()))
}

/// A number's text.
pub fn number_text(b: &[u8]) -> Option<String> {
    let [NUMBER, sign, rest @ ..] = b else { return None };
    if *sign != POSITIVE && *sign != NEGATIVE {
        return Some("0".to_owned());
    }
    let negative = *sign == NEGATIVE;
    let plain: Vec<u8> = rest.iter().map(|b| if negative { !b } else { *b }).collect();
    let (exponent, pairs) = plain.split_first_chunk::<4>()?;
    let exponent = (u32::from_be_bytes(*exponent) ^ 1 << 31).cast_signed();
    let mut digits = String::new();
    for pair in pairs.iter().take_while(|b| **b != 0) {
        let pair = (pair - 1).min(99);
        digits.push(char::from(b'0' + pair / 10));
        digits.push(char::from(b'0' + pair % 10));
    }
    let digits = digits.trim_end_matches('0');
    let mut out = String::from(if negative { "-" } else { "" });
    let point = usize::try_from(exponent).unwrap_or(0);
    if exponent <= 0 {
        out.push_str("0.");
        out.push_str(&"0".repeat(usize::try_from(exponent.unsigned_abs()).unwrap_or(0)));
        out.push_str(digits);
    } else if point >= digits.len() {
        out.push_str(digits);
        out.push_str(&"0".repeat(point - digits.len()));
    } else {
        out.push_str(&digits[..point]);
        out.push('.');
        out.push_str(&digits[point..]);
    }
    Some(out)
}

fn string(b: &[u8]) -> &str {
    let text = until_zero(b.get(1..).unwrap_or_default()).0;
    std::str::from_utf8(text).unwrap_or_default()
}

/// The text of a value that is no string, object or array, and a string's own; `None` for null, and for objects and arrays.
pub fn scalar_text(b: &[u8]) -> Option<String> {
    match kind_of(b) {
        Kind::String => Some(string(b).to_owned()),
        Kind::Number => number_text(b),
        Kind::Bool => Some(if b.get(1) == Some(&1) { "true" } else { "false" }.to_owned()),
        Kind::Null | Kind::Array | Kind::Object => None,
    }
}

/// What `->>` makes of a value.
pub fn text_value(b: &[u8]) -> Option<String> {
    match kind_of(b) {
        Kind::Null => None,
        Kind::Array | Kind::Object => Some(text(b)),
        _ => scalar_text(b),
    }
}

/// The value's text.
pub fn text(b: &[u8]) -> String {
    let mut out = String::new();
    put_text(b, &mut out);
    out
}

/// Appends the value's text.
pub fn put_text(b: &[u8], out: &mut String) {
    match kind_of(b) {
        Kind::Null => out.push_str("null"),
        Kind::String => put_quoted(string(b), out),
        Kind::Number | Kind::Bool => out.push_str(&scalar_text(b).unwrap_or_default()),
        Kind::Array => {
            out.push('[');
            for (i, value) in elements(b).enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                put_text(value, out);
            }
            out.push(']');
        }
        Kind::Object => {
            out.push('{');
            for (i, (key, value)) in members(b).enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                put_quoted(key, out);
                out.push_str(": ");
                put_text(value, out);
            }
            out.push('}');
        }
    }
}

/// `a @> b`.
pub fn contains(a: &[u8], b: &[u8]) -> bool {
    // A whole value that is a scalar may be held by an array, one that is inside another may not.
    match (kind_of(a), kind_of(b)) {
        (Kind::Array, Kind::Array | Kind::Object) | (Kind::Object, _) => nested_contains(a, b),
        (Kind::Array, _) => elements(a).any(|e| e == b),
        _ => a == b,
    }
}

fn nested_contains(a: &[u8], b: &[u8]) -> bool {
    match (kind_of(a), kind_of(b)) {
        (Kind::Object, Kind::Object) => {
            members(b).all(|(key, value)| members(a).any(|(k, v)| k == key && nested_contains(v, value)))
        }
        (Kind::Array, Kind::Array) => elements(b).all(|value| elements(a).any(|e| nested_contains(e, value))),
        (Kind::Array | Kind::Object, _) | (_, Kind::Array | Kind::Object) => false,
        _ => a == b,
    }
}
