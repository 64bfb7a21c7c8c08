//! Looking into the text of a json value, whose parts are answered as they are written.

use super::Parser;
use crate::Result;

/// Calls `f` with the key and the raw text of each member of an object; of nothing else.
fn members<'a>(text: &'a str, mut f: impl FnMut(String, &'a str)) -> Result<()> {
    let mut p = Parser::new(text);
    if !p.take(b'{') || p.take(b'}') {
        return Ok(());
    }
    loop {
        p.spaces();
        let key = p.string(true)?;
        p.take(b':');
        f(key, raw(text, &mut p)?);
        if !p.take(b',') {
            return Ok(());
        }
    }
}

fn raw<'a>(text: &'a str, p: &mut Parser<'_>) -> Result<&'a str> {
    p.spaces();
    let start = p.position();
    p.value(false, 0)?;
    Ok(text.get(start..p.position()).unwrap_or_default())
}

/// The raw elements of an array; `None` for anything else.
///
/// # Errors
/// The text is not JSON.
pub fn elements(text: &str) -> Result<Option<Vec<&str>>> {
    let mut p = Parser::new(text);
    if !p.take(b'[') {
        return Ok(None);
    }
    let mut items = Vec::new();
    if p.take(b']') {
        return Ok(Some(items));
    }
    loop {
        items.push(raw(text, &mut p)?);
        if !p.take(b',') {
            return Ok(Some(items));
        }
    }
}

/// The value of a key; of several the last.
///
/// # Errors
/// The text is not JSON.
pub fn field<'a>(text: &'a str, key: &str) -> Result<Option<&'a str>> {
    let mut found = None;
    members(text, |k, value| {
        if k == key {
            found = Some(value);
        }
    })?;
    Ok(found)
}

/// The element at a place, counted from 0, or from the end if negative.
///
/// # Errors
/// The text is not JSON.
pub fn item(text: &str, at: i64) -> Result<Option<&str>> {
    let items = elements(text)?.unwrap_or_default();
    let n = i64::try_from(items.len()).unwrap_or(0);
    let at = usize::try_from(if at < 0 { at + n } else { at }).ok();
    Ok(at.and_then(|at| items.get(at).copied()))
}

/// What `->>` makes of a raw value.
///
/// # Errors
/// A string with escapes that have no text.
pub fn text_value(raw: &str) -> Result<Option<String>> {
    let raw = raw.trim_matches([' ', '\t', '\n', '\r']);
    match raw.as_bytes().first() {
        Some(b'n') | None => Ok(None),
        Some(b'"') => Parser::new(raw).string(true).map(Some),
        _ => Ok(Some(raw.to_owned())),
    }
}

/// `json_typeof`.
pub fn type_name(text: &str) -> &'static str {
    match text.trim_start_matches([' ', '\t', '\n', '\r']).as_bytes().first() {
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "boolean",
        Some(b'n') | None => "null",
        Some(_) => "number",
    }
}
