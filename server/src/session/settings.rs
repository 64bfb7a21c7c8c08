//! A session's settings: what SET, SHOW and RESET work on. Each session has its own copy.
//!
//! The table below lists all that is known. Settings that only make drivers feel at home are kept and shown, without effect;
//! where a value would promise something that Levee does not do, it is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Result, SqlError};
use crate::types::encode::TextStyle;
use crate::types::input::parse_bool;
use crate::types::zone::Zone;

/// How a value is checked and shown.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Any text.
    Text,
    /// on or off.
    Bool,
    /// A whole number in a range.
    Int(i64, i64),
    /// Milliseconds, with units on input.
    Millis,
    /// A time zone.
    Zone,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Cannot be changed.
    Fixed,
}

/// A known setting.
#[derive(Debug)]
pub struct Known {
    /// Lower-case name.
    name: &'static str,
    /// As PostgreSQL spells it.
    shown: &'static str,
    default: &'static str,
    kind: Kind,
    /// Sent to the client when it changes.
    report: bool,
    description: &'static str,
}

const ISOLATION: &[&str] = &["read uncommitted", "read committed", "repeatable read", "serializable"];
const LEVELS: &[&str] = &[
    "debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "notice", "warning", "error",
];

/// PostgreSQL's version that Levee answers to.
pub const SERVER_VERSION: &str = "15.0 (Levee)";

const fn known(name: &'static str, default: &'static str, kind: Kind, description: &'static str) -> Known {
    Known {
        name,
        shown: name,
        default,
        kind,
        report: false,
        description,
    }
}

const fn reported(
    name: &'static str,
    shown: &'static str,
    default: &'static str,
    kind: Kind,
    description: &'static str,
) -> Known {
    Known {
        name,
        shown,
        default,
        kind,
        report: true,
        description,
    }
}

static KNOWN: &[Known] = &[
    reported(
        "application_name",
        "application_name",
        "",
        Kind::Text,
        "Name that the client gives itself.",
    ),
    known(
        "backend_flush_after",
        "0",
        Kind::Int(0, 256),
        "Accepted without effect.",
    ),
    known(
        "background_ddl",
        "off",
        Kind::Bool,
        "CREATE MATERIALIZED VIEW answers before the view is complete.",
    ),
    known(
        "bytea_output",
        "hex",
        Kind::OneOf(&["hex", "escape"]),
        "Text form of bytea.",
    ),
    reported("client_encoding", "client_encoding", "UTF8", Kind::Text, "Only UTF8."),
    known(
        "client_min_messages",
        "notice",
        Kind::OneOf(LEVELS),
        "Least severe message that is sent.",
    ),
    reported(
        "datestyle",
        "DateStyle",
        "ISO, MDY",
        Kind::Text,
        "Only ISO; MDY order on input.",
    ),
    known(
        "default_transaction_deferrable",
        "off",
        Kind::Bool,
        "Accepted without effect.",
    ),
    known(
        "default_transaction_isolation",
        "read committed",
        Kind::OneOf(ISOLATION),
        "Isolation of new blocks.",
    ),
    known(
        "default_transaction_read_only",
        "off",
        Kind::Bool,
        "New blocks refuse writes.",
    ),
    known(
        "extra_float_digits",
        "1",
        Kind::Int(-15, 3),
        "Floats are always shown exactly.",
    ),
    known(
        "idle_in_transaction_session_timeout",
        "0",
        Kind::Millis,
        "Longest wait for the next statement in a block; 0: none.",
    ),
    reported(
        "integer_datetimes",
        "integer_datetimes",
        "on",
        Kind::Fixed,
        "Timestamps are 64-bit integers.",
    ),
    reported(
        "intervalstyle",
        "IntervalStyle",
        "postgres",
        Kind::OneOf(&["postgres"]),
        "Text form of intervals.",
    ),
    reported(
        "is_superuser",
        "is_superuser",
        "on",
        Kind::Fixed,
        "Every user may do everything.",
    ),
    known("jit", "off", Kind::Bool, "Accepted without effect."),
    known("lc_collate", "C", Kind::Fixed, "Text order."),
    known("lc_ctype", "C", Kind::Fixed, "Character classes."),
    known("lc_messages", "C", Kind::Text, "Accepted without effect."),
    known(
        "deadlock_timeout",
        "1s",
        Kind::Text,
        "Accepted without effect: deadlocks are found at once.",
    ),
    known("lc_monetary", "C", Kind::Text, "Accepted without effect."),
    known(
        "lock_timeout",
        "0",
        Kind::Millis,
        "Longest wait for a lock; 0: no limit.",
    ),
    known("max_identifier_length", "63", Kind::Fixed, "Longest name."),
    known("row_security", "on", Kind::Bool, "Accepted without effect."),
    known(
        "search_path",
        "\"$user\", public",
        Kind::Text,
        "Accepted; all objects are in schema public.",
    ),
    reported(
        "server_encoding",
        "server_encoding",
        "UTF8",
        Kind::Fixed,
        "Encoding of stored text.",
    ),
    reported(
        "server_version",
        "server_version",
        SERVER_VERSION,
        Kind::Fixed,
        "PostgreSQL version that clients may expect.",
    ),
    known("server_version_num", "150000", Kind::Fixed, "The same as a number."),
    reported(
        "session_authorization",
        "session_authorization",
        "",
        Kind::Text,
        "User of the session.",
    ),
    known("role", "none", Kind::Text, "Accepted without effect."),
    known("ssl", "off", Kind::Fixed, "Connections are not encrypted."),
    reported(
        "standard_conforming_strings",
        "standard_conforming_strings",
        "on",
        Kind::OneOf(&["on"]),
        "Backslashes in '…' are ordinary.",
    ),
    known(
        "statement_timeout",
        "0",
        Kind::Millis,
        "Longest time that a statement may take; 0: none.",
    ),
    known(
        "synchronous_commit",
        "on",
        Kind::OneOf(&["on", "local", "remote_write", "remote_apply"]),
        "A commit is durable when it is answered.",
    ),
    known(
        "tcp_keepalives_idle",
        "0",
        Kind::Int(0, 100_000),
        "Accepted without effect.",
    ),
    reported(
        "timezone",
        "TimeZone",
        "UTC",
        Kind::Zone,
        "Time zone of timestamptz in text.",
    ),
    known("transaction_deferrable", "off", Kind::Bool, "Accepted without effect."),
    known(
        "transaction_isolation",
        "read committed",
        Kind::OneOf(ISOLATION),
        "Isolation of this block.",
    ),
    known("transaction_read_only", "off", Kind::Bool, "This block refuses writes."),
    known(
        "work_mem",
        "4MB",
        Kind::Text,
        "Accepted without effect: the server's memory_limit counts.",
    ),
    known("xmloption", "content", Kind::Text, "Accepted without effect."),
];

fn find(name: &str) -> Result<&'static Known> {
    KNOWN
        .iter()
        .find(|k| k.name == name)
        .ok_or_else(|| SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\"")))
}

/// The values of one session.
#[derive(Debug, Clone)]
pub struct Settings {
    values: BTreeMap<&'static str, String>,
    /// Values that RESET goes back to: the startup packet's.
    defaults: BTreeMap<&'static str, String>,
    /// `name.with_dot` settings of extensions and applications.
    custom: BTreeMap<String, String>,
    zone: Zone,
}

impl Default for Settings {
    fn default() -> Self {
        let values: BTreeMap<_, _> = KNOWN.iter().map(|k| (k.name, k.default.to_owned())).collect();
        Self {
            defaults: values.clone(),
            values,
            custom: BTreeMap::new(),
            zone: Zone::utc(),
        }
    }
}

impl Settings {
    /// Sets a value from the startup packet; RESET will go back to it.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn start_with(&mut self, name: &str, value: &str) -> Result<()> {
        let name = name.to_lowercase();
        self.set(&name, Some(value))?;
        if let Ok(k) = find(&name) {
            self.defaults.insert(k.name, self.values[k.name].clone());
        }
        Ok(())
    }

    /// Sets the user, which only the server does.
    pub fn set_user(&mut self, user: &str) {
        self.values.insert("session_authorization", user.to_owned());
        self.defaults.insert("session_authorization", user.to_owned());
    }

    /// SET; `None` is DEFAULT. Answers the parameter to report, if the client wants to hear of it.
    ///
    /// # Errors
    /// 42704 for an unknown name, 22023 for a bad value, 55P02 for one that cannot be changed, 0A000 for one that is not supported.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<Option<(&'static str, String)>> {
        if name.contains('.') {
            match value {
                Some(v) => self.custom.insert(name.to_owned(), v.to_owned()),
                None => self.custom.remove(name),
            };
            return Ok(None);
        }
        let k = find(name)?;
        let value = match value {
            Some(v) => checked(k, v)?,
            None => self
                .defaults
                .get(k.name)
                .cloned()
                .unwrap_or_else(|| k.default.to_owned()),
        };
        if matches!(k.kind, Kind::Zone) {
            self.zone = Zone::parse(&value)?;
            self.values.insert(k.name, self.zone.name().to_owned());
        } else {
            self.values.insert(k.name, value);
        }
        Ok(k.report.then(|| (k.shown, self.values[k.name].clone())))
    }

    /// SHOW: the column's name and the value.
    ///
    /// # Errors
    /// 42704.
    pub fn show(&self, name: &str) -> Result<(String, String)> {
        if let Some(v) = self.custom.get(name) {
            return Ok((name.to_owned(), v.clone()));
        }
        let k = find(name)?;
        let value = &self.values[k.name];
        let value = if matches!(k.kind, Kind::Millis) {
            show_millis(value)
        } else {
            value.clone()
        };
        Ok((k.shown.to_owned(), value))
    }

    /// RESET ALL; answers what to report.
    pub fn reset_all(&mut self) -> Vec<(&'static str, String)> {
        self.custom.clear();
        KNOWN
            .iter()
            .filter(|k| !matches!(k.kind, Kind::Fixed) && k.name != "session_authorization")
            .filter_map(|k| self.set(k.name, None).ok().flatten())
            .collect()
    }

    /// All settings: name, value, description.
    pub fn all(&self) -> Vec<(String, String, &'static str)> {
        KNOWN
            .iter()
            .filter_map(|k| self.show(k.name).ok().map(|(name, value)| (name, value, k.description)))
            .collect()
    }

    /// All that the client hears at its start.
    pub fn reports(&self) -> Vec<(&'static str, String)> {
        KNOWN
            .iter()
            .filter(|k| k.report)
            .map(|k| (k.shown, self.values[k.name].clone()))
            .collect()
    }

    /// Value of a boolean setting.
    pub fn is_on(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|v| v == "on")
    }

    /// Value as text, empty if unknown.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// A time-out; `None`: none.
    pub fn timeout(&self, name: &str) -> Option<Duration> {
        let ms: u64 = self.text(name).parse().ok()?;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Time zone.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// How values are printed.
    pub fn text_style(&self) -> TextStyle {
        TextStyle {
            zone: self.zone.clone(),
            bytea_escape: self.text("bytea_output") == "escape",
        }
    }

    /// Whether the client wants messages of this severity.
    pub fn wants(&self, severity: &str) -> bool {
        let rank = |level: &str| LEVELS.iter().position(|l| *l == level).unwrap_or(7);
        rank(severity) >= rank(self.text("client_min_messages"))
    }
}

fn invalid(k: &Known, value: &str) -> SqlError {
    SqlError::new(
        "22023",
        format!("invalid value for parameter \"{}\": \"{value}\"", k.shown),
    )
}

fn checked(k: &Known, value: &str) -> Result<String> {
    match k.name {
        "client_encoding" => {
            let plain: String = value.chars().filter(char::is_ascii_alphanumeric).collect();
            return if plain.eq_ignore_ascii_case("utf8") || plain.eq_ignore_ascii_case("unicode") {
                Ok("UTF8".to_owned())
            } else {
                Err(SqlError::unsupported(format!("client encoding \"{value}\" is not supported")).hint("Use UTF8."))
            };
        }
        "datestyle" => {
            let upper = value.to_uppercase();
            let mut words = upper.split(',').map(str::trim);
            return if words.all(|w| matches!(w, "ISO" | "MDY" | "US" | "NONEURO" | "NONEUROPEAN" | "DEFAULT")) {
                Ok("ISO, MDY".to_owned())
            } else {
                Err(SqlError::unsupported(format!("DateStyle \"{value}\" is not supported")).hint("Use ISO, MDY."))
            };
        }
        _ => {}
    }
    match k.kind {
        Kind::Text | Kind::Zone => Ok(value.to_owned()),
        Kind::Bool => match parse_bool(value) {
            Ok(true) => Ok("on".to_owned()),
            Ok(false) => Ok("off".to_owned()),
            Err(_) => Err(SqlError::new(
                "22023",
                format!("parameter \"{}\" requires a Boolean value", k.shown),
            )),
        },
        Kind::Int(min, max) => {
            let n: i64 = value.trim().parse().map_err(|_| invalid(k, value))?;
            if !(min..=max).contains(&n) {
                return Err(SqlError::new(
                    "22023",
                    format!(
                        "{n} is outside the valid range for parameter \"{}\" ({min} .. {max})",
                        k.shown
                    ),
                ));
            }
            Ok(n.to_string())
        }
        Kind::Millis => parse_millis(value)
            .map(|ms| ms.to_string())
            .ok_or_else(|| invalid(k, value)),
        Kind::OneOf(words) => {
            let lower = value.trim().to_lowercase();
            let lower = if k.name == "standard_conforming_strings" && matches!(lower.as_str(), "true" | "yes" | "1") {
                "on".to_owned()
            } else {
                lower
            };
            words
                .iter()
                .find(|w| **w == lower)
                .map(|w| (*w).to_owned())
                .ok_or_else(|| invalid(k, value))
        }
        Kind::Fixed => Err(SqlError::new(
            "55P02",
            format!("parameter \"{}\" cannot be changed", k.shown),
        )),
    }
}

/// `5000`, `5s`, `500ms`, `2min`, `1h`, `1d`.
fn parse_millis(text: &str) -> Option<u64> {
    let t = text.trim();
    let split = t.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(t.len());
    let (number, unit) = t.split_at(split);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" | "ms" => 1.0,
        "us" => 0.001,
        "s" => 1000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    let ms = (number * factor).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range checked")]
    (0.0..=2_147_483_647.0).contains(&ms).then_some(ms as u64)
}

fn show_millis(value: &str) -> String {
    let ms: u64 = value.parse().unwrap_or(0);
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms > 0 && ms.is_multiple_of(unit) {
            return format!("{}{name}", ms / unit);
        }
    }
    if ms == 0 { "0".to_owned() } else { format!("{ms}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_take_units() {
        let mut s = Settings::default();
        for (given, shown) in [
            ("0", "0"),
            ("1500", "1500ms"),
            ("5s", "5s"),
            ("'2min'", ""),
            ("120000", "2min"),
            ("1.5s", "1500ms"),
        ] {
            match s.set("statement_timeout", Some(given)) {
                Ok(_) => assert_eq!(s.show("statement_timeout").expect("known").1, shown),
                Err(e) => assert_eq!((e.code(), shown), ("22023", "")),
            }
        }
    }

    #[test]
    fn unknown_unsupported_and_fixed_are_told_apart() {
        let mut s = Settings::default();
        assert_eq!(s.set("no_such", Some("1")).expect_err("unknown").code(), "42704");
        assert_eq!(
            s.set("client_encoding", Some("latin1")).expect_err("encoding").code(),
            "0A000"
        );
        assert_eq!(s.set("server_version", Some("16")).expect_err("fixed").code(), "55P02");
        assert_eq!(s.set("timezone", Some("Mars/Base")).expect_err("zone").code(), "22023");
        assert!(s.set("app.tenant", Some("7")).expect("custom").is_none());
        assert_eq!(s.show("app.tenant").expect("custom").1, "7");
    }

    #[test]
    fn reset_goes_back_to_the_startup_packet() {
        let mut s = Settings::default();
        s.start_with("TimeZone", "Europe/Paris").expect("zone");
        assert_eq!(
            s.set("timezone", Some("utc")).expect("zone"),
            Some(("TimeZone", "UTC".to_owned()))
        );
        s.reset_all();
        assert_eq!(s.show("timezone").expect("zone").1, "Europe/Paris");
    }
}
