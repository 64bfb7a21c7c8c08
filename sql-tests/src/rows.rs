//! Results as PostgreSQL's text, and their comparison: exact up to a number's trailing zeros and a
//! quotient's 16th digit; if a column is a float, numbers with a fraction may differ by 1e-9 relative.

/// A result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Column names.
    pub columns: Vec<String>,
    /// Values as PostgreSQL prints them; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// A column is a float.
    pub floats: bool,
}

impl Rows {
    /// One line a row, as case files write them: `NULL`, `(empty)`, columns separated by a blank, inner white space kept.
    pub fn lines(&self) -> Vec<String> {
        self.rows
            .iter()
            .map(|row| row.iter().map(|v| cell(v.as_deref())).collect::<Vec<_>>().join(" "))
            .collect()
    }

    /// The same rows in an order that small differences of floats do not change.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.rows
            .sort_by_cached_key(|row| row.iter().map(|v| sort_key(v.as_deref())).collect::<Vec<_>>());
        self
    }

    /// Equal as bags (or as lists if `ordered`); otherwise says where they differ.
    ///
    /// # Errors
    /// The difference, as text.
    pub fn same_as(&self, expected: &Self, ordered: bool) -> Result<(), String> {
        let (a, b) = if ordered {
            (self.clone(), expected.clone())
        } else {
            (self.clone().sorted(), expected.clone().sorted())
        };
        let floats = self.floats || expected.floats;
        let equal = a.rows.len() == b.rows.len()
            && a.rows.iter().zip(&b.rows).all(|(x, y)| {
                x.len() == y.len()
                    && x.iter()
                        .zip(y)
                        .all(|(x, y)| same_value(x.as_deref(), y.as_deref(), floats))
            });
        if equal {
            return Ok(());
        }
        let (a, b) = (a.lines(), b.lines());
        Err(format!(
            "got {} rows, expected {}\n{}",
            a.len(),
            b.len(),
            difference(&a, &b)
        ))
    }
}

/// The multiset difference of two lists of lines, at most 20 lines of each.
fn difference(got: &[String], expected: &[String]) -> String {
    let only = |a: &[String], b: &[String], mark: &str| {
        let mut rest = b.to_vec();
        let mut out = Vec::new();
        for line in a {
            match rest.iter().position(|x| x == line) {
                Some(i) => drop(rest.swap_remove(i)),
                None => out.push(format!("{mark} {line}")),
            }
        }
        out.truncate(20);
        out
    };
    let mut out = only(got, expected, "  got     ");
    out.extend(only(expected, got, "  expected"));
    if out.is_empty() {
        out.push("  (same rows, other order)".to_string());
    }
    out.join("\n")
}

fn cell(value: Option<&str>) -> String {
    match value {
        None => "NULL".to_string(),
        Some("") => "(empty)".to_string(),
        Some(v) => v.replace('\n', "\\n"),
    }
}

fn sort_key(value: Option<&str>) -> String {
    let Some(text) = value else { return "NULL".to_string() };
    match text.parse::<f64>() {
        Ok(v) if text.contains(['.', 'e']) && v.is_finite() => format!("{v:.6e}"),
        _ => text.to_string(),
    }
}

/// Are two values the same, given that only their text is known?
pub fn same_value(a: Option<&str>, b: Option<&str>, floats: bool) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return a.is_none() && b.is_none();
    };
    if a == b {
        return true;
    }
    let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) else {
        return false;
    };
    if floats && (a.contains(['.', 'e']) || b.contains(['.', 'e'])) {
        return x == y || (x - y).abs() <= 1e-9 * x.abs().max(y.abs());
    }
    // A quotient's last digits depend on how many of them are kept, which is not part of its value.
    let quotients = fraction(a).min(fraction(b)) >= 16 && (x - y).abs() <= 4e-16 * x.abs().max(y.abs());
    trimmed(a) == trimmed(b) || quotients
}

/// Digits after the point.
fn fraction(number: &str) -> usize {
    number.split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// A number without the zeros that end its fraction.
fn trimmed(number: &str) -> &str {
    if number.contains('.') && !number.contains(['e', 'E']) {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_as_numbers_and_text_as_text() {
        assert!(same_value(Some("1.50"), Some("1.5"), false));
        assert!(same_value(Some("2"), Some("2.0000"), false));
        assert!(same_value(Some("0.30000000000000004"), Some("0.3"), true));
        assert!(!same_value(Some("0.30000000000000004"), Some("0.3"), false));
        assert!(same_value(
            Some("1.0833333333333333"),
            Some("1.08333333333333333333"),
            false
        ));
        assert!(!same_value(Some("1.083333"), Some("1.08333333333333333333"), false));
        assert!(!same_value(Some("0.3001"), Some("0.3"), true));
        assert!(!same_value(Some("10"), Some("1"), true));
        assert!(!same_value(None, Some(""), true));
    }
}
