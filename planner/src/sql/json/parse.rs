//! JSON text: checking it, and parsing it, with PostgreSQL's messages.

use super::Value;
use crate::{PlanError, Result};

/// Nesting of arrays and objects.
const DEPTH_MAX: usize = 1000;

/// Is the text JSON?
///
/// # Errors
/// 22P02.
pub fn validate(text: &str) -> Result<()> {
    let mut parser = Parser::new(text);
    parser.value(false, 0)?;
    parser.end()
}

/// The value of a JSON text.
///
/// # Errors
/// 22P02, 22P05.
pub fn parse(text: &str) -> Result<Value> {
    let mut parser = Parser::new(text);
    let value = parser.value(true, 0)?;
    parser.end()?;
    Ok(value)
}

/// A reader of JSON text.
#[derive(Debug)]
pub struct Parser<'a> {
    text: &'a str,
    at: usize,
}

fn invalid(detail: impl Into<String>) -> PlanError {
    PlanError::new("22P02", "invalid input syntax for type json").detail(detail.into())
}

/// What PostgreSQL says of `\u0000` in a text.
pub(super) fn zero_escape() -> PlanError {
    PlanError::new("22P05", "unsupported Unicode escape sequence").detail("\\u0000 cannot be converted to text.")
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80
}

impl<'a> Parser<'a> {
    /// At the beginning of a text.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Where the reader stands.
    pub fn position(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes over white space.
    pub fn spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes a punctuation character if it is next.
    pub fn take(&mut self, b: u8) -> bool {
        self.spaces();
        let found = self.peek() == Some(b);
        self.at += usize::from(found);
        found
    }

    fn end(&mut self) -> Result<()> {
        self.spaces();
        if self.at < self.text.len() {
            return Err(self.found("end of input"));
        }
        Ok(())
    }

    /// `Expected …, but found "token".`
    fn found(&mut self, expected: &str) -> PlanError {
        self.spaces();
        let start = self.at;
        let token = match self.peek() {
            None => return invalid("The input string ended unexpectedly."),
            Some(b'"') => self.string(false).map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'{' | b'}' | b'[' | b']' | b',' | b':') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => self.word().map(|_| ()),
        };
        match token {
            Err(e) => e,
            Ok(()) => {
                let token = self.text.get(start..self.at).unwrap_or_default();
                invalid(format!("Expected {expected}, but found \"{token}\"."))
            }
        }
    }

    fn invalid_token(&self, start: usize) -> PlanError {
        let token = self.text.get(start..self.at).unwrap_or_default();
        invalid(format!("Token \"{token}\" is invalid."))
    }

    fn word(&mut self) -> Result<Value> {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        match self.text.get(start..self.at) {
            Some("true") => Ok(Value::Bool(true)),
            Some("false") => Ok(Value::Bool(false)),
            Some("null") => Ok(Value::Null),
            _ => {
                if self.at == start {
                    // One character, however many bytes.
                    self.at += self
                        .text
                        .get(start..)
                        .and_then(|t| t.chars().next())
                        .map_or(1, char::len_utf8);
                }
                Err(self.invalid_token(start))
            }
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<()> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let zero = self.peek() == Some(b'0');
        let whole = self.digits();
        let mut bad = whole == 0 || (zero && whole > 1);
        if !bad && self.peek() == Some(b'.') {
            self.at += 1;
            bad = self.digits() == 0;
        }
        if !bad && let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            bad = self.digits() == 0;
        }
        if bad || self.peek().is_some_and(is_word) {
            while self.peek().is_some_and(is_word) {
                self.at += 1;
            }
            return Err(self.invalid_token(start));
        }
        Ok(())
    }

    fn hex(&mut self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let code = digits
            .filter(|d| d.iter().all(u8::is_ascii_hexdigit))
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u32::from_str_radix(d, 16).ok());
        self.at += 4;
        code.ok_or_else(|| invalid("\"\\u\" must be followed by four hexadecimal digits."))
    }

    /// A string whose quote is next; decoded if `build`.
    pub fn string(&mut self, build: bool) -> Result<String> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut out = String::new();
        let mut high: Option<u32> = None;
        self.at += 1;
        let mut from = self.at;
        loop {
            let Some(b) = bytes.get(self.at).copied() else {
                return Err(self.invalid_token(start));
            };
            if b >= 0x20 && b != b'"' && b != b'\\' {
                if high.is_some() {
                    return Err(low_surrogate());
                }
                self.at += 1;
                continue;
            }
            if build {
                out.push_str(self.text.get(from..self.at).unwrap_or_default());
            }
            if b == b'"' {
                if high.is_some() {
                    return Err(low_surrogate());
                }
                self.at += 1;
                return Ok(out);
            }
            if b < 0x20 {
                return Err(invalid(format!("Character with value 0x{b:02x} must be escaped.")));
            }
            self.escape(build, &mut out, &mut high)?;
            from = self.at;
        }
    }

    fn escape(&mut self, build: bool, out: &mut String, high: &mut Option<u32>) -> Result<()> {
        let rest = self.text.get(self.at + 1..).unwrap_or_default();
        let Some(c) = rest.chars().next() else {
            self.at = self.text.len();
            return Err(invalid("The input string ended unexpectedly."));
        };
        self.at += 1 + c.len_utf8();
        if c == 'u' {
            let code = self.hex()?;
            return if build { unicode(code, out, high) } else { Ok(()) };
        }
        if high.is_some() {
            return Err(low_surrogate());
        }
        out.push(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            _ => return Err(invalid(format!("Escape sequence \"\\{c}\" is invalid."))),
        });
        Ok(())
    }

    /// The next value. Unless `build`, it is only passed over, and what is answered means nothing.
    pub fn value(&mut self, build: bool, depth: usize) -> Result<Value> {
        if depth > DEPTH_MAX {
            return Err(PlanError::new("54001", "stack depth limit exceeded")
                .detail(format!("JSON is nested more than {DEPTH_MAX} deep.")));
        }
        self.spaces();
        let start = self.at;
        match self.peek() {
            Some(b'"') => self.string(build).map(Value::String),
            Some(b'-' | b'0'..=b'9') => {
                self.number()?;
                let text = self.text.get(start..self.at).filter(|_| build).unwrap_or_default();
                Ok(Value::Number(text.to_owned()))
            }
            Some(b'[') => self.array(build, depth),
            Some(b'{') => self.object(build, depth),
            None | Some(b']' | b'}' | b',' | b':') => Err(self.found("JSON value")),
            Some(_) => self.word(),
        }
    }

    fn array(&mut self, build: bool, depth: usize) -> Result<Value> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        if let Some(b',' | b':' | b'}') = self.peek() {
            return Err(self.found("array element or \"]\""));
        }
        loop {
            let item = self.value(build, depth + 1)?;
            if build {
                items.push(item);
            }
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.found("\",\" or \"]\""));
            }
        }
    }

    fn object(&mut self, build: bool, depth: usize) -> Result<Value> {
        self.at += 1;
        let mut pairs = Vec::new();
        if self.take(b'}') {
            return Ok(Value::Object(pairs));
        }
        let mut expected = "string or \"}\"";
        loop {
            self.spaces();
            if self.peek() != Some(b'"') {
                return Err(self.found(expected));
            }
            expected = "string";
            let key = self.string(build)?;
            if !self.take(b':') {
                return Err(self.found("\":\""));
            }
            let value = self.value(build, depth + 1)?;
            if build {
                pairs.push((key, value));
            }
            if self.take(b'}') {
                return Ok(Value::Object(pairs));
            }
            if !self.take(b',') {
                return Err(self.found("\",\" or \"}\""));
            }
        }
    }
}

fn low_surrogate() -> PlanError {
    invalid("Unicode low surrogate must follow a high surrogate.")
}

fn unicode(code: u32, out: &mut String, high: &mut Option<u32>) -> Result<()> {
    match (code, *high) {
        (0, _) => return Err(zero_escape()),
        (0xd800..=0xdbff, None) => *high = Some(code),
        (0xd800..=0xdbff, Some(_)) => {
            return Err(invalid("Unicode high surrogate must not follow a high surrogate."));
        }
        (0xdc00..=0xdfff, Some(first)) => {
            *high = None;
            let point = 0x10000 + ((first - 0xd800) << 10) + (code - 0xdc00);
            out.extend(char::from_u32(point));
        }
        (0xdc00..=0xdfff, None) | (_, Some(_)) => return Err(low_surrogate()),
        (code, None) => out.extend(char::from_u32(code)),
    }
    Ok(())
}
