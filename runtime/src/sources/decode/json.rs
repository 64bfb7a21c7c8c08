//! JSON text → slots. A strict reader of RFC 8259 that notes where values stand and copies nothing.

use super::names::Names;
use super::slots::{Kind, Rows, Slot};

/// Nesting of objects and arrays.
const DEPTH_MAX: usize = 128;

/// Splits the object that stands in `text` from byte `from` to the end into the slots of the current row.
///
/// # Errors
/// Not one JSON object, or a column's field occurs twice.
pub(super) fn row(text: &str, from: usize, names: &mut Names, rows: &mut Rows) -> Result<(), String> {
    let slots = rows.current();
    object(text, from, |nth, name, value| {
        let Some(found) = names.find(nth, name) else {
            return Ok(());
        };
        put(slots, found.column, found.exact, name, value)
    })
}

/// Puts a field's value into its column: a name that matches exactly wins over one that differs in case.
pub(super) fn put(slots: &mut [Slot], column: usize, exact: bool, name: &str, value: Slot) -> Result<(), String> {
    let slot = &mut slots[column];
    if slot.kind != Kind::Missing {
        if slot.exact == exact {
            return Err(format!("field \"{name}\" occurs twice"));
        }
        if slot.exact {
            return Ok(());
        }
    }
    *slot = Slot { exact, ..value };
    Ok(())
}

/// Reads the object that stands in `text` from byte `from` to the end (spaces around it allowed), handing each field's number, name
/// and value to `field`.
///
/// # Errors
/// Not one JSON object, or what `field` says.
pub(super) fn object(
    text: &str,
    from: usize,
    field: impl FnMut(usize, &str, Slot) -> Result<(), String>,
) -> Result<(), String> {
    let mut reader = Reader::new(text, from);
    reader.spaces();
    match reader.peek() {
        Some(b'{') => reader.fields(field)?,
        None => return Err("the record is empty".to_owned()),
        Some(_) => {
            let found = reader.value(0)?;
            return Err(format!("expected a JSON object, found {}", describe(found.kind)));
        }
    }
    reader.end()
}

/// Reads any one value that makes up `text` from byte `from` on.
///
/// # Errors
/// Not one JSON value.
pub(super) fn whole(text: &str, from: usize) -> Result<Slot, String> {
    let mut reader = Reader::new(text, from);
    reader.spaces();
    let value = reader.value(0)?;
    reader.end()?;
    Ok(value)
}

/// What a value is, in messages.
pub(super) fn describe(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "nothing",
        Kind::Null => "null",
        Kind::True | Kind::False => "a boolean",
        Kind::Number => "a number",
        Kind::Plain | Kind::Escaped => "a string",
        Kind::Nested => "an object or array",
    }
}

/// Bytes at which the scan of a string stops: quote, backslash, control characters.
static STOPS: [bool; 256] = {
    let mut stops = [false; 256];
    let mut i = 0;
    while i < 32 {
        stops[i] = true;
        i += 1;
    }
    stops[b'"' as usize] = true;
    stops[b'\\' as usize] = true;
    stops
};

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, from: usize) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: from,
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Nothing but spaces may follow.
    fn end(&mut self) -> Result<(), String> {
        self.spaces();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(format!("invalid JSON: more text after the value, at byte {}", self.at)),
        }
    }

    #[cold]
    fn expected(&self, what: &str) -> String {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => format!("invalid JSON: it ends where {what} is expected"),
            Some(c) => format!("invalid JSON at byte {}: expected {what}, found {c:?}", self.at),
        }
    }

    /// The fields of an object whose brace is next.
    fn fields(&mut self, mut field: impl FnMut(usize, &str, Slot) -> Result<(), String>) -> Result<(), String> {
        self.at += 1;
        self.spaces();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut decoded = String::new();
        for nth in 0.. {
            let name = self.name()?;
            let value = self.value(1)?;
            let raw = &self.text[name.start as usize..name.end as usize];
            if name.kind == Kind::Escaped {
                decoded.clear();
                unescape(raw, &mut decoded)?;
                field(nth, &decoded, value)?;
            } else {
                field(nth, raw, value)?;
            }
            self.spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.expected("\",\" or \"}\"")),
            }
            self.spaces();
        }
        self.at += 1;
        Ok(())
    }

    /// A field's name and the colon after it.
    #[inline]
    fn name(&mut self) -> Result<Slot, String> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a field name in quotes"));
        }
        let name = self.string()?;
        self.spaces();
        if self.peek() != Some(b':') {
            return Err(self.expected("\":\""));
        }
        self.at += 1;
        self.spaces();
        Ok(name)
    }

    /// The next value; the cursor stands at its first byte.
    #[inline]
    fn value(&mut self, depth: usize) -> Result<Slot, String> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'{' | b'[') => {
                let start = self.at;
                self.nested(depth)?;
                Ok(Slot::new(Kind::Nested, start, self.at))
            }
            Some(b't') => self.word("true", Kind::True),
            Some(b'f') => self.word("false", Kind::False),
            Some(b'n') => self.word("null", Kind::Null),
            _ => Err(self.expected("a value")),
        }
    }

    fn word(&mut self, word: &str, kind: Kind) -> Result<Slot, String> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.expected("a value"));
        }
        let start = self.at;
        self.at += word.len();
        Ok(Slot::new(kind, start, self.at))
    }

    /// A string; the slot leaves the quotes out.
    #[inline]
    fn string(&mut self) -> Result<Slot, String> {
        let start = self.at + 1;
        let mut kind = Kind::Plain;
        let mut at = start;
        loop {
            match self.bytes.get(at) {
                Some(b) if !STOPS[*b as usize] => at += 1,
                Some(b'"') => break,
                Some(b'\\') => {
                    kind = Kind::Escaped;
                    at += self.escape(at)?;
                }
                Some(b) => {
                    return Err(format!(
                        "invalid JSON at byte {at}: the control character 0x{b:02x} in a string must be escaped"
                    ));
                }
                None => return Err("invalid JSON: it ends inside a string".to_owned()),
            }
        }
        self.at = at + 1;
        Ok(Slot::new(kind, start, at))
    }

    /// The length of the escape at `at`.
    fn escape(&self, at: usize) -> Result<usize, String> {
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(2),
            Some(b'u')
                if self
                    .bytes
                    .get(at + 2..at + 6)
                    .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
            {
                Ok(6)
            }
            None => Err("invalid JSON: it ends inside a string".to_owned()),
            Some(_) => Err(format!("invalid JSON at byte {at}: unknown escape in a string")),
        }
    }

    #[inline]
    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    #[inline]
    fn number(&mut self) -> Result<Slot, String> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 {
            return Err(self.expected("a digit"));
        }
        if zero && whole > 1 {
            return Err(format!("invalid JSON at byte {start}: a number starts with 0"));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.expected("a digit"));
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.expected("a digit"));
            }
        }
        Ok(Slot::new(Kind::Number, start, self.at))
    }

    /// Passes over an object or array.
    fn nested(&mut self, depth: usize) -> Result<(), String> {
        if depth >= DEPTH_MAX {
            return Err(format!("invalid JSON: nested more than {DEPTH_MAX} deep"));
        }
        if self.peek() == Some(b'{') {
            self.at += 1;
            self.spaces();
            if self.peek() == Some(b'}') {
                self.at += 1;
                return Ok(());
            }
            loop {
                self.name()?;
                self.value(depth + 1)?;
                if self.closes(b'}')? {
                    return Ok(());
                }
            }
        }
        self.at += 1;
        self.spaces();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            if self.closes(b']')? {
                return Ok(());
            }
        }
    }

    /// After an element: a comma (false), or the closing bracket (true).
    fn closes(&mut self, bracket: u8) -> Result<bool, String> {
        self.spaces();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.spaces();
                Ok(false)
            }
            Some(b) if b == bracket => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.expected(if bracket == b'}' {
                "\",\" or \"}\""
            } else {
                "\",\" or \"]\""
            })),
        }
    }
}

/// Appends the text of a string's inside to `out`. The escapes' form has been checked.
///
/// # Errors
/// Half a surrogate pair, or a NUL, which text cannot hold.
pub(super) fn unescape(raw: &str, out: &mut String) -> Result<(), String> {
    let bytes = raw.as_bytes();
    let mut from = 0;
    while let Some(found) = memchr::memchr(b'\\', &bytes[from..]) {
        let at = from + found;
        out.push_str(&raw[from..at]);
        from = at + 2;
        match bytes[at + 1] {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let (c, length) = code_point(raw, at)?;
                out.push(c);
                from = at + length;
            }
            other => out.push(char::from(other)),
        }
    }
    out.push_str(&raw[from..]);
    Ok(())
}

/// The character of the `\u` escape at `at`, and the length of the escape or pair of escapes.
fn code_point(raw: &str, at: usize) -> Result<(char, usize), String> {
    let unit = |at: usize| {
        raw.get(at..at + 6)
            .filter(|e| e.starts_with("\\u"))
            .and_then(|e| u32::from_str_radix(&e[2..], 16).ok())
    };
    let first = unit(at).unwrap_or(0);
    if first == 0 {
        return Err("\\u0000 cannot be converted to text".to_owned());
    }
    if let Some(c) = char::from_u32(first) {
        return Ok((c, 6));
    }
    let second = unit(at + 6).filter(|low| first < 0xdc00 && (0xdc00..0xe000).contains(low));
    second
        .and_then(|low| char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00)))
        .map(|c| (c, 12))
        .ok_or_else(|| format!("\\u{first:04x} is half a surrogate pair"))
}
