//! Random scalar expressions that cannot fail.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::{Column, Type};

/// An expression of a type over columns (whose names are already qualified where they need it).
pub fn scalar(rng: &mut ChaCha8Rng, ty: Type, columns: &[Column], depth: u32) -> String {
    let own: Vec<&Column> = columns.iter().filter(|c| c.ty == ty).collect();
    if depth == 0 || rng.random_bool(0.45) {
        return match own.choose(rng) {
            Some(c) if rng.random_bool(0.9) => c.name.clone(),
            _ => ty.some_value(rng).sql(),
        };
    }
    let d = depth - 1;
    if rng.random_bool(0.3) {
        let c = condition(rng, columns, d);
        let (a, b) = (scalar(rng, ty, columns, d), scalar(rng, ty, columns, d));
        return match rng.random_range(0..3) {
            0 => format!("CASE WHEN {c} THEN {a} ELSE {b} END"),
            1 => format!("CASE WHEN {c} THEN {a} END"),
            _ => format!("coalesce({a}, {b})"),
        };
    }
    let mut sub = |t| scalar(rng, t, columns, d);
    match ty {
        Type::Bool => condition(rng, columns, d),
        Type::Int => match sub(Type::Int) {
            a if a.len() % 3 == 0 => format!("({a} + {})", sub(Type::Int)),
            a if a.len() % 3 == 1 => format!("({a} - 3)"),
            a => format!("abs({a})"),
        },
        Type::Big => format!("({} + {})", sub(Type::Big), sub(Type::Int)),
        Type::Float => format!("({} * 0.5::double precision)", sub(Type::Float)),
        Type::Num => format!("({} + 1.25)", sub(Type::Num)),
        Type::Text => match sub(Type::Text) {
            a if a.len() % 2 == 0 => format!("upper({a})"),
            a => format!("({a} || {})", sub(Type::Text)),
        },
        Type::Date => format!("({} + 1)", sub(Type::Date)),
        Type::Ts => format!("date_trunc('day', {})", sub(Type::Ts)),
    }
}

/// A boolean expression.
pub fn condition(rng: &mut ChaCha8Rng, columns: &[Column], depth: u32) -> String {
    if depth > 0 && rng.random_bool(0.35) {
        let (a, b) = (condition(rng, columns, depth - 1), condition(rng, columns, depth - 1));
        return match rng.random_range(0..3) {
            0 => format!("({a} AND {b})"),
            1 => format!("({a} OR {b})"),
            _ => format!("(NOT {a})"),
        };
    }
    let Some(column) = columns.choose(rng) else {
        return "true".into();
    };
    let name = &column.name;
    let ty = column.ty;
    match rng.random_range(0..8) {
        0 => format!("({name} IS NULL)"),
        1 => format!("({name} IS NOT NULL)"),
        2 if ty != Type::Bool => {
            let values: Vec<String> = (0..3).map(|_| ty.some_value(rng).sql()).collect();
            format!("({name} IN ({}))", values.join(", "))
        }
        3 if ty == Type::Text => format!("({name} LIKE '%{}%')", ["a", "b", "_"][rng.random_range(0..3)]),
        4 => format!("({name} IS DISTINCT FROM {})", scalar(rng, ty, columns, 0)),
        _ => {
            let op = ["=", "<>", "<", "<=", ">", ">="][rng.random_range(0..6)];
            format!("({name} {op} {})", scalar(rng, ty, columns, depth.min(1)))
        }
    }
}
