//! Random tables, changes and queries.
//!
//! Values come from small domains, so keys meet, groups grow and shrink, and a fifth are NULL. Floats are multiples of 1/8: their
//! sums are exact in any order, so a difference is never rounding. Every LIMIT stands behind a total order. Expressions cannot
//! fail: a batch query would answer an error where a view has NULL.

mod change;
mod expr;
mod query;
mod value;

pub use change::{Change, Model};
pub use query::{Op, Query, QueryGen};
pub use value::{Column, Table, Type, Value};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The generator's random numbers: the same on every machine.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Two or three tables with some of all types; the first has a primary key, the second has none.
pub fn tables(rng: &mut ChaCha8Rng) -> Vec<Table> {
    let n = rng.random_range(2..=3);
    (0..n)
        .map(|i| {
            let keyed = i == 0 || (i == 2 && rng.random_bool(0.5));
            let mut columns = Vec::new();
            if keyed {
                columns.push(Column {
                    name: "id".into(),
                    ty: Type::Int,
                });
            }
            for (name, ty) in [("k", Type::Int), ("g", Type::Text)] {
                columns.push(Column { name: name.into(), ty });
            }
            for c in 0..rng.random_range(2..=4) {
                columns.push(Column {
                    name: format!("c{c}"),
                    ty: Type::ALL[rng.random_range(0..Type::ALL.len())],
                });
            }
            Table {
                name: format!("t{i}"),
                columns,
                keyed,
            }
        })
        .collect()
}
