//! Rows as plain values, so that expected results are computed by other code than the operators'.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use levee_planner::plan::SortKey;

use crate::Delta;
use crate::operators::columns::{as_i64, from_i64, interval_length, is_native};

/// Small deterministic generator (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// A value. Its order is that of Arrow's row encoding: NULL first, floats by total order, intervals field by field.
#[derive(Debug, Clone)]
pub enum V {
    Null,
    Bool(bool),
    Int(i64),
    Dec(i128),
    Float(f64),
    Text(String),
    Interval(i32, i32, i64),
}

impl Ord for V {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (V::Null, V::Null) => Ordering::Equal,
            (V::Null, _) => Ordering::Less,
            (_, V::Null) => Ordering::Greater,
            (V::Bool(a), V::Bool(b)) => a.cmp(b),
            (V::Int(a), V::Int(b)) => a.cmp(b),
            (V::Dec(a), V::Dec(b)) => a.cmp(b),
            (V::Float(a), V::Float(b)) => a.total_cmp(b),
            (V::Text(a), V::Text(b)) => a.cmp(b),
            (V::Interval(a, b, c), V::Interval(x, y, z)) => (a, b, c).cmp(&(x, y, z)),
            _ => panic!("values of different types"),
        }
    }
}

impl PartialOrd for V {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for V {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for V {}

impl V {
    pub fn is_null(&self) -> bool {
        matches!(self, V::Null)
    }

    /// As SQL groups and compares: one zero, one NaN.
    pub fn canonical(&self) -> V {
        match self {
            V::Float(v) if v.is_nan() => V::Float(f64::NAN),
            V::Float(v) => V::Float(v + 0.0),
            other => other.clone(),
        }
    }

    /// PostgreSQL's order of values that are not NULL.
    pub fn sql_cmp(&self, other: &V) -> Ordering {
        match (self, other) {
            (V::Interval(a, b, c), V::Interval(x, y, z)) => {
                let length = |m, d, n| interval_length(IntervalMonthDayNano::new(m, d, n));
                length(*a, *b, *c).cmp(&length(*x, *y, *z))
            }
            _ => self.canonical().cmp(&other.canonical()),
        }
    }
}

pub type Row = Vec<V>;

/// Rows with multiplicities other than 0.
pub type Zset = BTreeMap<Row, i64>;

pub fn add(zset: &mut Zset, row: Row, diff: i64) {
    let count = zset.get(&row).copied().unwrap_or(0) + diff;
    if count == 0 {
        zset.remove(&row);
    } else {
        zset.insert(row, count);
    }
}

pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Zset>) -> Zset {
    let mut total = Zset::new();
    for part in parts {
        for (row, diff) in part {
            *total.entry(row.clone()).or_insert(0) += diff;
        }
    }
    total.retain(|_, c| *c != 0);
    total
}

pub fn schema(types: &[DataType]) -> SchemaRef {
    let fields = types
        .iter()
        .enumerate()
        .map(|(i, t)| Field::new(format!("c{i}"), t.clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A random value out of about `domain`, or NULL.
pub fn random(rng: &mut Rng, data_type: &DataType, domain: u64) -> V {
    if rng.chance(15) {
        return V::Null;
    }
    let small = rng.below(domain) as i64 - 2;
    match data_type {
        DataType::Boolean => V::Bool(rng.chance(60)),
        DataType::Decimal128(..) | DataType::Decimal256(..) => {
            V::Dec(i128::from(small) * 100 + i128::from(rng.below(3)))
        }
        DataType::Float64 | DataType::Float32 => match rng.below(30) {
            0 => V::Float(f64::NAN),
            1 => V::Float(f64::INFINITY),
            2 => V::Float(-0.0),
            3 => V::Float(-f64::NAN),
            _ => V::Float(small as f64 * 0.25),
        },
        DataType::Utf8 | DataType::Utf8View => {
            let word = ["", "a", "b", "ab", "long text beyond twelve bytes"][rng.below(5) as usize];
            let more = if domain > 6 { small.to_string() } else { String::new() };
            V::Text(format!("{word}{more}"))
        }
        DataType::Interval(_) => V::Interval(rng.below(2) as i32, rng.below(2) as i32 * 30, small * 1000),
        _ => V::Int(small),
    }
}

pub fn array(values: &[V], data_type: &DataType) -> ArrayRef {
    let ints = || values.iter().map(|v| if let V::Int(i) = v { Some(*i) } else { None });
    let decimals = || values.iter().map(|v| if let V::Dec(i) = v { Some(*i) } else { None });
    let floats = || values.iter().map(|v| if let V::Float(f) = v { Some(*f) } else { None });
    let texts = || {
        values
            .iter()
            .map(|v| if let V::Text(s) = v { Some(s.as_str()) } else { None })
    };
    match data_type {
        t if is_native(t) => {
            let nulls = ints().map(|v| v.is_some()).collect();
            from_i64(ints().map(|v| v.unwrap_or(99)).collect(), Some(nulls), t).unwrap()
        }
        DataType::Boolean => Arc::new(
            values
                .iter()
                .map(|v| if let V::Bool(b) = v { Some(*b) } else { None })
                .collect::<BooleanArray>(),
        ),
        DataType::Decimal128(..) => Arc::new(Decimal128Array::from_iter(decimals()).with_data_type(data_type.clone())),
        DataType::Decimal256(..) => Arc::new(
            decimals()
                .map(|v| v.map(i256::from_i128))
                .collect::<Decimal256Array>()
                .with_data_type(data_type.clone()),
        ),
        DataType::Float64 => Arc::new(Float64Array::from_iter(floats())),
        DataType::Float32 => Arc::new(floats().map(|v| v.map(|v| v as f32)).collect::<Float32Array>()),
        DataType::Utf8 => Arc::new(texts().collect::<StringArray>()),
        DataType::Utf8View => Arc::new(texts().collect::<StringViewArray>()),
        DataType::Interval(_) => Arc::new(
            values
                .iter()
                .map(|v| match v {
                    V::Interval(m, d, n) => Some(IntervalMonthDayNano::new(*m, *d, *n)),
                    _ => None,
                })
                .collect::<IntervalMonthDayNanoArray>(),
        ),
        other => panic!("no test values of {other}"),
    }
}

fn value(array: &ArrayRef, i: usize) -> V {
    if array.is_null(i) {
        return V::Null;
    }
    match array.data_type() {
        t if is_native(t) => V::Int(as_i64(array).unwrap()[i]),
        DataType::Boolean => V::Bool(array.as_boolean().value(i)),
        DataType::Decimal128(..) => V::Dec(array.as_primitive::<Decimal128Type>().value(i)),
        DataType::Decimal256(..) => V::Dec(array.as_primitive::<Decimal256Type>().value(i).to_i128().unwrap()),
        DataType::Float64 => V::Float(array.as_primitive::<Float64Type>().value(i)),
        DataType::Float32 => V::Float(f64::from(array.as_primitive::<Float32Type>().value(i))),
        DataType::Utf8 => V::Text(array.as_string::<i32>().value(i).to_owned()),
        DataType::Utf8View => V::Text(array.as_string_view().value(i).to_owned()),
        DataType::Interval(_) => {
            let v = array.as_primitive::<IntervalMonthDayNanoType>().value(i);
            V::Interval(v.months, v.days, v.nanoseconds)
        }
        other => panic!("no test values of {other}"),
    }
}

pub fn delta(schema: &SchemaRef, rows: &[(Row, i64)]) -> Delta {
    let columns = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(c, f)| {
            let column: Vec<V> = rows.iter().map(|(row, _)| row[c].clone()).collect();
            array(&column, f.data_type())
        })
        .collect();
    let batch = crate::operators::eval::batch(schema, columns, rows.len()).unwrap();
    Delta::new(batch, rows.iter().map(|r| r.1).collect())
}

pub fn zset(deltas: &[Delta]) -> Zset {
    let mut total = Zset::new();
    for delta in deltas {
        for i in 0..delta.num_rows() {
            let row = delta.batch.columns().iter().map(|c| value(c, i)).collect();
            *total.entry(row).or_insert(0) += delta.diff(i);
        }
    }
    total.retain(|_, c| *c != 0);
    total
}

/// Reads `+ 1 a`, `-2 3 NULL`: a diff (`+` and `-` are one), then integers or texts by the schema.
pub fn table(schema: &SchemaRef, text: &str) -> Delta {
    let rows: Vec<(Row, i64)> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            let diff = match words.next().unwrap() {
                "+" => 1,
                "-" => -1,
                n => n.parse().unwrap(),
            };
            let row = schema
                .fields()
                .iter()
                .map(|f| match (words.next().unwrap(), f.data_type()) {
                    ("NULL", _) => V::Null,
                    (w, DataType::Utf8) => V::Text(w.to_owned()),
                    (w, DataType::Float64) => V::Float(w.parse().unwrap()),
                    (w, DataType::Boolean) => V::Bool(w.parse().unwrap()),
                    (w, DataType::Decimal128(..)) => V::Dec(w.parse().unwrap()),
                    (w, _) => V::Int(w.parse().unwrap()),
                })
                .collect();
            (row, diff)
        })
        .collect();
    delta(schema, &rows)
}

/// The reverse of [`table`], sorted.
pub fn show(deltas: &[Delta]) -> String {
    let mut lines = Vec::new();
    for (row, diff) in zset(deltas) {
        let diff = match diff {
            1 => "+".to_owned(),
            -1 => "-".to_owned(),
            n => format!("{n:+}"),
        };
        let words: Vec<String> = row
            .iter()
            .map(|v| match v {
                V::Null => "NULL".to_owned(),
                V::Bool(v) => v.to_string(),
                V::Int(v) => v.to_string(),
                V::Dec(v) => v.to_string(),
                V::Float(v) => v.to_string(),
                V::Text(v) => v.clone(),
                V::Interval(m, d, n) => format!("{m}m{d}d{n}"),
            })
            .collect();
        lines.push(format!("{diff} {}", words.join(" ")));
    }
    lines.join("\n")
}

/// PostgreSQL's order of rows by some columns.
pub fn by_keys(keys: &[SortKey], a: &Row, b: &Row) -> Ordering {
    for key in keys {
        let (x, y) = (&a[key.column], &b[key.column]);
        let order = match (x.is_null(), y.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) if key.nulls_first => Ordering::Less,
            (true, false) => Ordering::Greater,
            (false, true) if key.nulls_first => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) if key.desc => y.sql_cmp(x),
            (false, false) => x.sql_cmp(y),
        };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}
