//! Types, values and table definitions.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Types that the generator uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// boolean
    Bool,
    /// integer
    Int,
    /// bigint
    Big,
    /// double precision
    Float,
    /// numeric(12,2)
    Num,
    /// text
    Text,
    /// date
    Date,
    /// timestamp
    Ts,
}

impl Type {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Bool,
        Self::Int,
        Self::Big,
        Self::Float,
        Self::Num,
        Self::Text,
        Self::Date,
        Self::Ts,
    ];

    /// The type's SQL name.
    pub fn sql(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Int => "int",
            Self::Big => "bigint",
            Self::Float => "double precision",
            Self::Num => "numeric(12,2)",
            Self::Text => "text",
            Self::Date => "date",
            Self::Ts => "timestamp",
        }
    }

    /// A random value, NULL one time in five.
    pub fn value(self, rng: &mut ChaCha8Rng) -> Value {
        if rng.random_bool(0.2) {
            Value::Null
        } else {
            self.some_value(rng)
        }
    }

    /// A random value that is not NULL.
    pub fn some_value(self, rng: &mut ChaCha8Rng) -> Value {
        const WORDS: [&str; 8] = ["", "a", "b", "B", "ab", "ä", "x y", "zz"];
        match self {
            Self::Bool => Value::Bool(rng.random_bool(0.5)),
            Self::Int => Value::Int(rng.random_range(-2..=6)),
            Self::Big => Value::Big(rng.random_range(-3..=5) * 10_000_000_000),
            Self::Float => Value::Float(f64::from(rng.random_range(-20..=40)) / 8.0),
            Self::Num => Value::Num(rng.random_range(-300..=500)),
            Self::Text => Value::Text(WORDS[rng.random_range(0..WORDS.len())].to_string()),
            Self::Date => Value::Date(19_720 + rng.random_range(0..6)),
            Self::Ts => Value::Ts(
                (19_720 * 86_400 + rng.random_range(0..12) * 21_600) * 1_000_000 + rng.random_range(0..2) * 250_000,
            ),
        }
    }
}

/// A value of one of the types.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL
    Null,
    /// boolean
    Bool(bool),
    /// integer
    Int(i32),
    /// bigint
    Big(i64),
    /// double precision
    Float(f64),
    /// numeric(12,2), in hundredths
    Num(i128),
    /// text
    Text(String),
    /// date, days since 1970
    Date(i32),
    /// timestamp, microseconds since 1970
    Ts(i64),
}

impl Value {
    /// As a SQL literal.
    pub fn sql(&self) -> String {
        match self {
            Self::Null => "NULL".into(),
            Self::Bool(v) => v.to_string(),
            Self::Int(v) => v.to_string(),
            Self::Big(v) => format!("{v}::bigint"),
            Self::Float(v) => format!("{v:?}::double precision"),
            Self::Num(v) => format!(
                "{}{}.{:02}",
                if *v < 0 { "-" } else { "" },
                v.abs() / 100,
                v.abs() % 100
            ),
            Self::Text(v) => format!("'{}'", v.replace('\'', "''")),
            Self::Date(d) => format!("date '{}'", date(i64::from(*d))),
            Self::Ts(us) => {
                let (days, rest) = (us.div_euclid(86_400_000_000), us.rem_euclid(86_400_000_000));
                let s = rest / 1_000_000;
                format!(
                    "timestamp '{} {:02}:{:02}:{:02}.{:06}'",
                    date(days),
                    s / 3600,
                    s / 60 % 60,
                    s % 60,
                    rest % 1_000_000
                )
            }
        }
    }
}

/// `YYYY-MM-DD` of a day since 1970 (civil-from-days over 400-year eras).
fn date(days: i64) -> String {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: Type,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Columns; a keyed table's first is `id`.
    pub columns: Vec<Column>,
    /// `id` is the primary key.
    pub keyed: bool,
}

impl Table {
    /// CREATE TABLE.
    pub fn create(&self) -> String {
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|c| {
                let key = if self.keyed && c.name == "id" {
                    " PRIMARY KEY"
                } else {
                    ""
                };
                format!("{} {}{key}", c.name, c.ty.sql())
            })
            .collect();
        format!("CREATE TABLE {} ({})", self.name, columns.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_name_the_right_day() {
        assert_eq!(Value::Date(0).sql(), "date '1970-01-01'");
        assert_eq!(Value::Date(19_782).sql(), "date '2024-02-29'");
        assert_eq!(Value::Num(-5).sql(), "-0.05");
    }
}
