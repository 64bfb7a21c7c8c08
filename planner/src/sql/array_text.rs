//! The text form of arrays: `{1,NULL,"a b"}`. One dimension.

use crate::{PlanError, Result};

/// Elements of one array, as in PostgreSQL.
pub const ELEMENTS_MAX: usize = 134_217_727;

/// An array of several dimensions.
pub fn several_dimensions() -> PlanError {
    PlanError::unsupported("arrays of more than one dimension are not supported")
        .hint("Use a jsonb column, or one row for each element.")
}

fn malformed(text: &str, detail: &str) -> PlanError {
    PlanError::new("22P02", format!("malformed array literal: \"{text}\"")).detail(detail.to_owned())
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Appends an element's text, in quotes where the form asks for them.
pub fn put_element(value: &str, out: &mut String) {
    let special = |b: u8| matches!(b, b'{' | b'}' | b',' | b'"' | b'\\') || is_space(b);
    if !value.is_empty() && !value.bytes().any(special) && !value.eq_ignore_ascii_case("null") {
        out.push_str(value);
        return;
    }
    out.push('"');
    for c in value.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

/// Splits an array's text into its elements' texts; `None` is NULL.
///
/// # Errors
/// 22P02; 0A000 for several dimensions and for lower bounds other than 1.
pub fn parse(text: &str) -> Result<Vec<Option<String>>> {
    let body = text.trim_matches(|c: char| u8::try_from(c).is_ok_and(is_space));
    if body.starts_with('[') {
        return Err(PlanError::unsupported("arrays with lower bounds are not supported")
            .hint("Leave the bounds out: arrays begin at 1."));
    }
    let Some(inner) = body.strip_prefix('{') else {
        return Err(malformed(
            text,
            "Array value must start with \"{\" or dimension information.",
        ));
    };
    let mut reader = Reader {
        text,
        rest: inner.as_bytes(),
    };
    reader.spaces();
    let mut items = Vec::new();
    if reader.take(b'}') {
        return reader.end().map(|()| items);
    }
    loop {
        items.push(reader.element()?);
        reader.spaces();
        if reader.take(b'}') {
            return reader.end().map(|()| items);
        }
        if !reader.take(b',') {
            return Err(if reader.rest.is_empty() {
                malformed(text, "Unexpected end of input.")
            } else {
                malformed(text, "Unexpected array element.")
            });
        }
        if items.len() > ELEMENTS_MAX {
            return Err(PlanError::new(
                "54000",
                format!("array size exceeds the maximum allowed ({ELEMENTS_MAX})"),
            ));
        }
        reader.spaces();
    }
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a [u8],
}

impl Reader<'_> {
    fn spaces(&mut self) {
        while let [b, rest @ ..] = self.rest
            && is_space(*b)
        {
            self.rest = rest;
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        match self.rest {
            [b, rest @ ..] if *b == wanted => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(malformed(self.text, "Junk after closing right brace."))
        }
    }

    fn utf8(&self, bytes: Vec<u8>) -> Result<String> {
        // Cuts fall at ASCII characters, so this cannot fail.
        String::from_utf8(bytes).map_err(|_| malformed(self.text, "Invalid text."))
    }

    fn element(&mut self) -> Result<Option<String>> {
        match self.rest.first() {
            None => Err(malformed(self.text, "Unexpected end of input.")),
            Some(b'{') => Err(several_dimensions()),
            Some(b'}') => Err(malformed(self.text, "Unexpected \"}\" character.")),
            Some(b',') => Err(malformed(self.text, "Unexpected \",\" character.")),
            Some(b'"') => self.quoted().map(Some),
            Some(_) => self.plain(),
        }
    }

    fn quoted(&mut self) -> Result<String> {
        let mut out = Vec::new();
        self.rest = &self.rest[1..];
        loop {
            match self.rest {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    return self.utf8(out);
                }
                [b'\\', b, rest @ ..] => {
                    out.push(*b);
                    self.rest = rest;
                }
                [] | [b'\\'] => return Err(malformed(self.text, "Unexpected end of input.")),
                [b, rest @ ..] => {
                    out.push(*b);
                    self.rest = rest;
                }
            }
        }
    }

    fn plain(&mut self) -> Result<Option<String>> {
        let mut out = Vec::new();
        // Trailing spaces do not count, unless escaped.
        let (mut kept, mut escaped) = (0, false);
        loop {
            match self.rest {
                [b',' | b'}', ..] => break,
                [b'{', ..] => return Err(malformed(self.text, "Unexpected \"{\" character.")),
                [b'"', ..] => return Err(malformed(self.text, "Unexpected array element.")),
                [b'\\', b, rest @ ..] => {
                    out.push(*b);
                    (kept, escaped) = (out.len(), true);
                    self.rest = rest;
                }
                [] | [b'\\'] => return Err(malformed(self.text, "Unexpected end of input.")),
                [b, rest @ ..] => {
                    out.push(*b);
                    if !is_space(*b) {
                        kept = out.len();
                    }
                    self.rest = rest;
                }
            }
        }
        out.truncate(kept);
        let value = self.utf8(out)?;
        Ok((escaped || !value.eq_ignore_ascii_case("null")).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Option<String>> {
        parse(text).expect(text)
    }

    #[test]
    fn elements_are_read_as_postgresql_reads_them() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(read("{}"), []);
        assert_eq!(read("  { } "), []);
        assert_eq!(read("{1, 2 ,NULL,null}"), [some("1"), some("2"), None, None]);
        assert_eq!(
            read(r#"{"a b","","NULL","q\"\\x",a b }"#),
            [some("a b"), some(""), some("NULL"), some("q\"\\x"), some("a b")]
        );
        assert_eq!(read(r"{\N\ULL,a\,b,ä}"), [some("NULL"), some("a,b"), some("ä")]);
    }

    #[test]
    fn elements_come_back() {
        for value in ["", "a", "a b", "null", "NULLx", "x\"y\\z", "{}", "a,b", "\t"] {
            let mut text = String::from("{");
            put_element(value, &mut text);
            text.push('}');
            assert_eq!(read(&text), [Some(value.to_owned())], "{text}");
        }
    }

    #[test]
    fn what_is_malformed_is_told() {
        for (bad, code) in [
            ("1", "22P02"),
            ("{1", "22P02"),
            ("{1,}", "22P02"),
            ("{,1}", "22P02"),
            ("{1}}", "22P02"),
            ("{\"a", "22P02"),
            ("{\"a\"b}", "22P02"),
            ("{a\\", "22P02"),
            ("{\"a\\", "22P02"),
            ("{{1},{2}}", "0A000"),
            ("[0:1]={1,2}", "0A000"),
        ] {
            assert_eq!(parse(bad).expect_err(bad).code, code, "{bad}");
        }
    }
}
