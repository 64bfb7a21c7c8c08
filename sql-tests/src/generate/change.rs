//! Random transactions, and the tables' contents as a plain model.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Table, Type, Value};

/// A transaction's changes: per table, rows with +1 or −1.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// (table index, row, diff)
    pub rows: Vec<(usize, Vec<Value>, i64)>,
}

impl Change {
    /// The same as SQL statements for a table without triggers or views: deletes first. A keyless row is deleted once by `ctid`.
    pub fn postgres_sql(&self, tables: &[Table]) -> Vec<String> {
        let mut out = Vec::new();
        for (t, row, _) in self.rows.iter().filter(|r| r.2 < 0) {
            let table = &tables[*t];
            let same: Vec<String> = table
                .columns
                .iter()
                .zip(row)
                .map(|(c, v)| format!("{} IS NOT DISTINCT FROM {}", c.name, v.sql()))
                .collect();
            let name = &table.name;
            out.push(format!(
                "DELETE FROM {name} WHERE ctid = (SELECT ctid FROM {name} WHERE {} LIMIT 1)",
                same.join(" AND ")
            ));
        }
        for (t, row, _) in self.rows.iter().filter(|r| r.2 > 0) {
            let values: Vec<String> = row.iter().map(Value::sql).collect();
            out.push(format!(
                "INSERT INTO {} VALUES ({})",
                tables[*t].name,
                values.join(", ")
            ));
        }
        out
    }
}

/// What the tables hold.
#[derive(Debug, Clone)]
pub struct Model {
    /// Definitions.
    pub tables: Vec<Table>,
    /// Rows per table.
    pub rows: Vec<Vec<Vec<Value>>>,
    /// Floats are multiplied by this; 1 keeps their sums exact in any order.
    pub float_scale: f64,
}

impl Model {
    /// Empty tables.
    pub fn new(tables: Vec<Table>) -> Self {
        let rows = tables.iter().map(|_| Vec::new()).collect();
        Self {
            tables,
            rows,
            float_scale: 1.0,
        }
    }

    /// A random transaction, applied to the model: inserts, updates and deletes of a few rows, now and then of a whole table.
    pub fn change(&mut self, rng: &mut ChaCha8Rng) -> Change {
        let mut change = Change::default();
        let n = rng.random_range(1..=6);
        for _ in 0..n {
            let t = rng.random_range(0..self.tables.len());
            let held = self.rows[t].len();
            match rng.random_range(0..100) {
                0..=1 if held > 0 => {
                    for row in std::mem::take(&mut self.rows[t]) {
                        change.rows.push((t, row, -1));
                    }
                }
                2..=24 if held > 0 => {
                    let row = self.rows[t].swap_remove(rng.random_range(0..held));
                    change.rows.push((t, row, -1));
                }
                25..=59 if held > 0 => {
                    let at = rng.random_range(0..held);
                    let old = self.rows[t][at].clone();
                    let mut new = old.clone();
                    for (c, column) in self.tables[t].columns.iter().enumerate() {
                        if column.name != "id" && rng.random_bool(0.5) {
                            new[c] = self.value(column.ty, rng);
                        }
                    }
                    self.rows[t][at].clone_from(&new);
                    change.rows.push((t, old, -1));
                    change.rows.push((t, new, 1));
                }
                _ => {
                    for _ in 0..rng.random_range(1..=3) {
                        if let Some(row) = self.new_row(t, rng) {
                            self.rows[t].push(row.clone());
                            change.rows.push((t, row, 1));
                        }
                    }
                }
            }
        }
        net(change)
    }

    fn value(&self, ty: Type, rng: &mut ChaCha8Rng) -> Value {
        match ty.value(rng) {
            Value::Float(x) => Value::Float(x * self.float_scale),
            other => other,
        }
    }

    /// A row that may be inserted: a free key, or for a keyless table now and then a copy of a row that it has.
    fn new_row(&self, t: usize, rng: &mut ChaCha8Rng) -> Option<Vec<Value>> {
        let table = &self.tables[t];
        let held = &self.rows[t];
        if !table.keyed && !held.is_empty() && rng.random_bool(0.3) {
            return Some(held[rng.random_range(0..held.len())].clone());
        }
        let mut row: Vec<Value> = table.columns.iter().map(|c| self.value(c.ty, rng)).collect();
        if table.keyed {
            row[0] = Value::Int(rng.random_range(0..40));
            if held.iter().any(|r| r[0] == row[0]) {
                return None;
            }
        }
        Some(row)
    }
}

/// Adds up equal rows and drops those that cancel.
fn net(change: Change) -> Change {
    let mut out: Vec<(usize, Vec<Value>, i64)> = Vec::new();
    for (t, row, diff) in change.rows {
        match out.iter_mut().find(|(ot, orow, _)| *ot == t && *orow == row) {
            Some(entry) => entry.2 += diff,
            None => out.push((t, row, diff)),
        }
    }
    let mut rows = Vec::new();
    for (t, row, diff) in out {
        for _ in 0..diff.abs() {
            rows.push((t, row.clone(), diff.signum()));
        }
    }
    Change { rows }
}

/// Is the type one whose values a key column may hold?
pub(super) fn joinable(a: Type, b: Type) -> bool {
    let class = |t| match t {
        Type::Int | Type::Big => 0,
        Type::Text => 1,
        Type::Date => 2,
        Type::Ts => 3,
        Type::Bool => 4,
        Type::Num => 5,
        Type::Float => 6,
    };
    class(a) == class(b)
}
