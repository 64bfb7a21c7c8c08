//! `to_char(timestamp, text)`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::datatypes::{DataType, TimestampMicrosecondType};

use super::cast::cast_array;
use super::time::iso_week;
use super::{all_valid, downcast, no_function};
use crate::PlanError;
use crate::sql::datetime::{DAY_US, civil, days_of};
use crate::sql::types::{self, timestamp};

type Result<T> = std::result::Result<T, PlanError>;

pub(super) fn to_char_type(t: &[DataType]) -> Result<DataType> {
    match t {
        [DataType::Timestamp(..) | DataType::Date32, DataType::Utf8] => Ok(DataType::Utf8),
        [x, DataType::Utf8] if x.is_numeric() || matches!(x, DataType::Interval(_)) => Err(PlanError::unsupported(
            format!("to_char of {} is not supported", types::base_name(x)),
        )
        .hint("Cast to text, or use round() and lpad().")),
        _ => Err(no_function("to_char", t)),
    }
}

pub(super) fn to_char(args: &[ArrayRef], _: &DataType) -> Result<ArrayRef> {
    let x = args.first().ok_or_else(|| PlanError::internal("no argument"))?;
    let ts = cast_array(x, &timestamp())?;
    let v = ts.as_primitive::<TimestampMicrosecondType>();
    let formats = downcast::<StringArray>(args, 1)?;
    let r: StringArray = (0..x.len())
        .map(|i| {
            all_valid(args, i)
                .then(|| format_time(v.value(i), formats.value(i)))
                .transpose()
        })
        .collect::<Result<_>>()?;
    Ok(Arc::new(r))
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// The template patterns of `to_char`, longest first.
const PATTERNS: [&str; 40] = [
    "HH24", "HH12", "YYYY", "IYYY", "MONTH", "Month", "month", "Y,YYY", "SSSSS", "DDD", "DAY", "Day", "day", "MON",
    "Mon", "mon", "IW", "YYY", "HH", "MI", "SS", "MS", "US", "AM", "PM", "am", "pm", "MM", "DD", "DY", "Dy", "dy",
    "YY", "WW", "CC", "ID", "TZ", "OF", "Q", "D",
];

fn format_time(us: i64, format: &str) -> Result<String> {
    let mut out = String::new();
    let mut rest = format;
    let mut fill = true;
    while let Some(c) = rest.chars().next() {
        if let Some(r) = rest.strip_prefix('"') {
            let (quoted, after) = r.split_once('"').unwrap_or((r, ""));
            out.push_str(quoted);
            rest = after;
            continue;
        }
        if let Some(r) = rest.strip_prefix("FM") {
            fill = false;
            rest = r;
            continue;
        }
        let found = PATTERNS.iter().find(|p| {
            let exact = p.starts_with(|c: char| c.is_ascii_lowercase()) || p.contains(|c: char| c.is_ascii_lowercase());
            rest.get(..p.len()).is_some_and(|head| {
                if exact || matches!(**p, "MONTH" | "DAY" | "MON" | "DY" | "AM" | "PM") {
                    head == **p
                } else {
                    head.eq_ignore_ascii_case(p)
                }
            })
        });
        match found {
            Some(p) => {
                out.push_str(&template(us, p, fill));
                rest = &rest[p.len()..];
                fill = true;
            }
            None if c.is_ascii_alphabetic() && !matches!(c, 'T' | 'Z' | 't' | 'z' | 'h' | 'm' | 's') => {
                return Err(PlanError::unsupported(format!(
                    "to_char template \"{rest}\" is not supported"
                )));
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Ok(out)
}

fn template(us: i64, pattern: &str, fill: bool) -> String {
    let (days, time) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
    let (y, m, d) = civil(days);
    let hour = time / 3_600_000_000;
    let pad = |v: i64, n: usize| if fill { format!("{v:0n$}") } else { v.to_string() };
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let name_of = |names: &[&str], i: i64, n: usize| {
        let full = usize::try_from(i)
            .ok()
            .and_then(|i| names.get(i).copied())
            .unwrap_or("");
        let cut = full.get(..n.min(full.len())).unwrap_or(full).to_owned();
        if fill && n > 3 { format!("{cut:<9}") } else { cut }
    };
    let dow = (days + 4).rem_euclid(7);
    match pattern {
        "YYYY" => pad(y, 4),
        "YYY" => pad(y % 1000, 3),
        "YY" => pad(y % 100, 2),
        "Y,YYY" => format!("{},{:03}", y / 1000, y % 1000),
        "IYYY" => pad(iso_week(days).0, 4),
        "IW" => pad(iso_week(days).1, 2),
        "MM" => pad(m, 2),
        "DD" => pad(d, 2),
        "DDD" => pad(days - days_of(y, 1, 1) + 1, 3),
        "D" => (dow + 1).to_string(),
        "ID" => ((days + 3).rem_euclid(7) + 1).to_string(),
        "Q" => ((m - 1) / 3 + 1).to_string(),
        "WW" => pad((days - days_of(y, 1, 1)) / 7 + 1, 2),
        "CC" => pad((y + 99).div_euclid(100), 2),
        "HH24" => pad(hour, 2),
        "HH12" | "HH" => pad(hour12, 2),
        "MI" => pad(time / 60_000_000 % 60, 2),
        "SS" => pad(time / 1_000_000 % 60, 2),
        "MS" => format!("{:03}", time / 1000 % 1000),
        "US" => format!("{:06}", time % 1_000_000),
        "SSSSS" => (time / 1_000_000).to_string(),
        "AM" | "PM" => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        "am" | "pm" => if hour < 12 { "am" } else { "pm" }.to_owned(),
        "TZ" => String::new(),
        "OF" => "+00".to_owned(),
        "MONTH" => name_of(&MONTHS, m - 1, 9).to_uppercase(),
        "Month" => name_of(&MONTHS, m - 1, 9),
        "month" => name_of(&MONTHS, m - 1, 9).to_lowercase(),
        "MON" => name_of(&MONTHS, m - 1, 3).to_uppercase(),
        "Mon" => name_of(&MONTHS, m - 1, 3),
        "mon" => name_of(&MONTHS, m - 1, 3).to_lowercase(),
        "DAY" => name_of(&DAYS, dow, 9).to_uppercase(),
        "Day" => name_of(&DAYS, dow, 9),
        "day" => name_of(&DAYS, dow, 9).to_lowercase(),
        "DY" => name_of(&DAYS, dow, 3).to_uppercase(),
        "Dy" => name_of(&DAYS, dow, 3),
        "dy" => name_of(&DAYS, dow, 3).to_lowercase(),
        _ => String::new(),
    }
}
