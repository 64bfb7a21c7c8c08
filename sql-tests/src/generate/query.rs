//! Random queries, made bottom up: every relation is a text that can stand in FROM, with columns of unique names.

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::change::joinable;
use super::expr::{condition, scalar};
use super::{Column, Table, Type};

/// What a query is made of, for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Filter.
    Filter,
    /// Projection.
    Project,
    /// GROUP BY.
    GroupBy,
    /// Aggregate without groups.
    Global,
    /// DISTINCT inside an aggregate.
    CountDistinct,
    /// FILTER of an aggregate.
    AggFilter,
    /// HAVING.
    Having,
    /// min or max.
    MinMax,
    /// SELECT DISTINCT.
    Distinct,
    /// Inner join.
    Inner,
    /// Left join.
    Left,
    /// Right join.
    Right,
    /// Full join.
    Full,
    /// IN or EXISTS.
    Semi,
    /// NOT EXISTS.
    Anti,
    /// NOT IN, with its NULLs.
    NotIn,
    /// Scalar subquery.
    Scalar,
    /// UNION ALL.
    UnionAll,
    /// UNION, INTERSECT, EXCEPT.
    SetOp,
    /// ORDER BY … LIMIT.
    TopN,
    /// `row_number()` per group.
    RowNumber,
    /// Window functions.
    Window,
    /// EXISTS, IN, ANY or ALL in a select list, where NULL is not false.
    Marked,
    /// LATERAL with ORDER BY and LIMIT.
    Lateral,
    /// INTERSECT ALL, EXCEPT ALL.
    SetAll,
    /// ROLLUP, CUBE, GROUPING SETS.
    GroupingSets,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::Filter,
        Self::Project,
        Self::GroupBy,
        Self::Global,
        Self::CountDistinct,
        Self::AggFilter,
        Self::Having,
        Self::MinMax,
        Self::Distinct,
        Self::Inner,
        Self::Left,
        Self::Right,
        Self::Full,
        Self::Semi,
        Self::Anti,
        Self::NotIn,
        Self::Scalar,
        Self::UnionAll,
        Self::SetOp,
        Self::TopN,
        Self::RowNumber,
        Self::Window,
        Self::Marked,
        Self::Lateral,
        Self::SetAll,
        Self::GroupingSets,
    ];
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    /// SELECT text.
    pub sql: String,
    /// Output columns.
    pub columns: Vec<Column>,
    /// What it is made of.
    pub ops: BTreeSet<Op>,
}

/// Makes queries over some tables.
#[derive(Debug)]
pub struct QueryGen<'a> {
    tables: &'a [Table],
    rng: &'a mut ChaCha8Rng,
    names: u32,
    ops: BTreeSet<Op>,
}

impl<'a> QueryGen<'a> {
    /// A generator.
    pub fn new(tables: &'a [Table], rng: &'a mut ChaCha8Rng) -> Self {
        Self {
            tables,
            rng,
            names: 0,
            ops: BTreeSet::new(),
        }
    }

    /// A query whose top is `op`, over tables or (in a third of the cases) over smaller queries.
    pub fn query(&mut self, op: Op) -> Query {
        self.names = 0;
        self.ops.clear();
        let (sql, columns) = self.operator(op, 1);
        Query {
            sql,
            columns,
            ops: self.ops.clone(),
        }
    }

    fn name(&mut self, prefix: char) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// Something to select from, as `text alias`, with its columns qualified.
    fn source(&mut self, depth: u32) -> (String, Vec<Column>) {
        let alias = self.name('r');
        let qualify = |columns: &[Column]| {
            columns
                .iter()
                .map(|c| Column {
                    name: format!("{alias}.{}", c.name),
                    ty: c.ty,
                })
                .collect()
        };
        if depth == 0 || self.rng.random_bool(0.65) {
            let table = self.tables.choose(self.rng).expect("tables");
            return (format!("{} {alias}", table.name), qualify(&table.columns));
        }
        // Joins of joins come from the joins' own sources; a global aggregate would make everything above it one row.
        let inner = [
            Op::Filter,
            Op::GroupBy,
            Op::Distinct,
            Op::UnionAll,
            Op::Left,
            Op::Inner,
            Op::TopN,
            Op::Project,
        ];
        let op = *inner.choose(self.rng).expect("operators");
        let (sql, columns) = self.operator(op, depth - 1);
        (format!("({sql}) {alias}"), qualify(&columns))
    }

    fn operator(&mut self, op: Op, depth: u32) -> (String, Vec<Column>) {
        self.ops.insert(op);
        match op {
            Op::Filter => self.filter(depth),
            Op::Project => self.project(depth),
            Op::GroupBy | Op::Global | Op::CountDistinct | Op::AggFilter | Op::Having | Op::MinMax => {
                self.aggregate(op, depth)
            }
            Op::Distinct => self.distinct(depth),
            Op::Inner | Op::Left | Op::Right | Op::Full => self.join(op, depth),
            Op::Semi | Op::Anti | Op::NotIn => self.semi(op, depth),
            Op::Scalar => self.scalar_subquery(depth),
            Op::UnionAll => self.union("UNION ALL", depth),
            Op::SetOp => {
                let word = ["UNION", "INTERSECT", "EXCEPT"][self.rng.random_range(0..3)];
                self.union(word, depth)
            }
            Op::TopN => self.top_n(depth),
            Op::RowNumber => self.row_number(depth),
            Op::Window => self.window(depth),
            Op::Marked => self.marked(depth),
            Op::Lateral => self.lateral(depth),
            Op::SetAll => {
                // Intersections of random rows are mostly empty.
                let word = if self.rng.random_ratio(1, 4) {
                    "INTERSECT ALL"
                } else {
                    "EXCEPT ALL"
                };
                self.union(word, depth)
            }
            Op::GroupingSets => self.grouping_sets(depth),
        }
    }

    /// A few of the columns, renamed: the select list and what it yields.
    fn pick(&mut self, columns: &[Column], at_most: usize) -> (String, Vec<Column>) {
        let n = self.rng.random_range(1..=at_most.min(columns.len()));
        let mut rest = columns.to_vec();
        let mut list = Vec::new();
        let mut out = Vec::new();
        for _ in 0..n {
            let column = rest.swap_remove(self.rng.random_range(0..rest.len()));
            let name = self.name('c');
            list.push(format!("{} AS {name}", column.name));
            out.push(Column { name, ty: column.ty });
        }
        (list.join(", "), out)
    }

    fn maybe_where(&mut self, columns: &[Column], p: f64) -> String {
        if !self.rng.random_bool(p) {
            return String::new();
        }
        self.ops.insert(Op::Filter);
        format!(" WHERE {}", condition(self.rng, columns, 2))
    }

    fn filter(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (list, out) = self.pick(&columns, 4);
        let filter = self.maybe_where(&columns, 1.0);
        (format!("SELECT {list} FROM {from}{filter}"), out)
    }

    fn project(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let mut list = Vec::new();
        let mut out = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let ty = columns.choose(self.rng).expect("columns").ty;
            let name = self.name('c');
            // Typed, because a lone NULL or literal has no type of its own.
            list.push(format!("{} AS {name}", scalar(self.rng, ty, &columns, 2)));
            out.push(Column { name, ty });
        }
        let filter = self.maybe_where(&columns, 0.3);
        (format!("SELECT {} FROM {from}{filter}", list.join(", ")), out)
    }

    fn aggregate(&mut self, op: Op, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let filter = self.maybe_where(&columns, 0.3);
        let groups: Vec<Column> = if op == Op::Global {
            Vec::new()
        } else {
            let n = self.rng.random_range(1..=2.min(columns.len()));
            columns.choose_multiple(self.rng, n).cloned().collect()
        };
        let (mut list, mut out) = (Vec::new(), Vec::new());
        for g in &groups {
            let name = self.name('c');
            list.push(format!("{} AS {name}", g.name));
            out.push(Column { name, ty: g.ty });
        }
        for i in 0..self.rng.random_range(1..=3) {
            let (call, ty) = self.aggregate_call(op, i == 0, &columns);
            let name = self.name('c');
            list.push(format!("{call} AS {name}"));
            out.push(Column { name, ty });
        }
        let names: Vec<&str> = groups.iter().map(|g| g.name.as_str()).collect();
        let by = if groups.is_empty() {
            String::new()
        } else {
            format!(" GROUP BY {}", names.join(", "))
        };
        let having = if op == Op::Having {
            let (call, ty) = self.aggregate_call(Op::MinMax, true, &columns);
            format!(
                " HAVING {call} {} {} OR count(*) > 1",
                ["<=", ">="][self.rng.random_range(0..2)],
                ty.some_value(self.rng).sql()
            )
        } else {
            String::new()
        };
        if !groups.is_empty() {
            self.ops.insert(Op::GroupBy);
        }
        (
            format!("SELECT {} FROM {from}{filter}{by}{having}", list.join(", ")),
            out,
        )
    }

    /// A call and its type; the first one of a query shows what `op` asks for.
    fn aggregate_call(&mut self, op: Op, first: bool, columns: &[Column]) -> (String, Type) {
        let column = columns.choose(self.rng).expect("columns").clone();
        let distinct = if (first && op == Op::CountDistinct) || self.rng.random_bool(0.1) {
            self.ops.insert(Op::CountDistinct);
            "DISTINCT "
        } else {
            ""
        };
        let ordered = !matches!(column.ty, Type::Bool);
        let numeric = matches!(column.ty, Type::Int | Type::Float | Type::Num);
        let (call, ty) = match self.rng.random_range(0..8) {
            _ if first && matches!(op, Op::MinMax | Op::Global) && ordered => self.min_max(&column),
            0 if distinct.is_empty() => ("count(*)".to_string(), Type::Big),
            1 if ordered => self.min_max(&column),
            2 | 3 if numeric && !(column.ty == Type::Num) => {
                let ty = if column.ty == Type::Int { Type::Big } else { Type::Float };
                (format!("sum({distinct}{})", column.name), ty)
            }
            4 if column.ty == Type::Float => (format!("avg({distinct}{})", column.name), Type::Float),
            // The digits of numeric sums and averages are their own; two are enough to judge the value.
            5 if numeric && column.ty != Type::Float => (
                format!("round(avg({distinct}{}), 2)::numeric(12,2)", column.name),
                Type::Num,
            ),
            6 if column.ty == Type::Int => {
                let func = ["bit_and", "bit_or", "bit_xor"][self.rng.random_range(0..3)];
                (format!("{func}({distinct}{})", column.name), Type::Int)
            }
            6 | 7 if ordered && distinct.is_empty() => {
                let func = ["percentile_disc(0.5)", "percentile_disc(0.9)", "mode()"][self.rng.random_range(0..3)];
                let desc = ["", " DESC"][self.rng.random_range(0..2)];
                (
                    format!("{func} WITHIN GROUP (ORDER BY {}{desc})", column.name),
                    column.ty,
                )
            }
            _ => (format!("count({distinct}{})", column.name), Type::Big),
        };
        if call.starts_with("round")
            || !((first && op == Op::AggFilter) || self.rng.random_bool(if op == Op::Global { 0.5 } else { 0.1 }))
        {
            return (call, ty);
        }
        self.ops.insert(Op::AggFilter);
        (format!("{call} FILTER (WHERE {})", condition(self.rng, columns, 1)), ty)
    }

    fn min_max(&mut self, column: &Column) -> (String, Type) {
        self.ops.insert(Op::MinMax);
        (
            format!("{}({})", ["min", "max"][self.rng.random_range(0..2)], column.name),
            column.ty,
        )
    }

    fn distinct(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (list, out) = self.pick(&columns, 2);
        let filter = self.maybe_where(&columns, 0.2);
        (format!("SELECT DISTINCT {list} FROM {from}{filter}"), out)
    }

    /// Two relations without a common type cannot be joined.
    fn instead_of(&mut self, op: Op, depth: u32) -> (String, Vec<Column>) {
        self.ops.remove(&op);
        self.operator(Op::Distinct, depth)
    }

    /// An equality between a column of each side.
    fn key(&mut self, left: &[Column], right: &[Column]) -> Option<String> {
        let pairs: Vec<(&Column, &Column)> = left
            .iter()
            .flat_map(|l| right.iter().map(move |r| (l, r)))
            .filter(|(l, r)| joinable(l.ty, r.ty))
            .collect();
        // Mostly columns whose values meet.
        let common: Vec<_> = pairs
            .iter()
            .filter(|(l, r)| l.ty == r.ty && matches!(l.ty, Type::Int | Type::Text))
            .collect();
        let (l, r) = match common.choose(self.rng) {
            Some(pair) if self.rng.random_bool(0.75) => **pair,
            _ => *pairs.choose(self.rng)?,
        };
        Some(format!("{} = {}", l.name, r.name))
    }

    fn join(&mut self, op: Op, depth: u32) -> (String, Vec<Column>) {
        let (left, lc) = self.source(depth);
        let (right, rc) = self.source(depth);
        let word = match op {
            Op::Left => "LEFT JOIN",
            Op::Right => "RIGHT JOIN",
            Op::Full => "FULL JOIN",
            _ => "JOIN",
        };
        let mut columns = lc.clone();
        columns.extend(rc.iter().cloned());
        let on = match self.key(&lc, &rc) {
            // PostgreSQL has no full join without an equality.
            Some(key) if op != Op::Full && self.rng.random_bool(0.1) => key.replace(" = ", " < "),
            Some(key) => key,
            None => return self.instead_of(op, depth),
        };
        let more = if op != Op::Full && self.rng.random_bool(0.3) {
            format!(" AND {}", condition(self.rng, &columns, 1))
        } else {
            String::new()
        };
        let (list, out) = self.pick(&columns, 5);
        let filter = self.maybe_where(&columns, 0.15);
        (
            format!("SELECT {list} FROM {left} {word} {right} ON {on}{more}{filter}"),
            out,
        )
    }

    fn semi(&mut self, op: Op, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (sub, sc) = self.source(0);
        let (list, out) = self.pick(&columns, 3);
        let Some(key) = self.key(&columns, &sc) else {
            return self.instead_of(op, depth);
        };
        let (outer, inner) = key.split_once(" = ").expect("equality");
        let more = if self.rng.random_bool(0.4) {
            format!("{} AND ", condition(self.rng, &sc, 1))
        } else {
            String::new()
        };
        let test = match op {
            Op::Semi if self.rng.random_bool(0.5) => format!("{outer} IN (SELECT {inner} FROM {sub} WHERE {more}true)"),
            Op::Semi => {
                let compare = if self.rng.random_bool(0.15) { "<" } else { "=" };
                format!("EXISTS (SELECT 1 FROM {sub} WHERE {more}{outer} {compare} {inner})")
            }
            Op::NotIn => format!("{outer} NOT IN (SELECT {inner} FROM {sub} WHERE {more}{inner} IS NOT NULL)"),
            _ => format!("NOT EXISTS (SELECT 1 FROM {sub} WHERE {more}{outer} = {inner})"),
        };
        (format!("SELECT {list} FROM {from} WHERE {test}"), out)
    }

    fn marked(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (sub, sc) = self.source(0);
        let (list, mut out) = self.pick(&columns, 2);
        let Some(key) = self.key(&columns, &sc) else {
            return self.instead_of(Op::Marked, depth);
        };
        let (outer, inner) = key.split_once(" = ").expect("equality");
        let mut tests: Vec<String> = Vec::new();
        if self.rng.random_bool(0.4) {
            tests.push(condition(self.rng, &sc, 1));
        }
        if self.rng.random_bool(0.4) {
            tests.extend(self.key(&columns, &sc));
        }
        let test = match self.rng.random_range(0..5) {
            0 => {
                tests.push(key.clone());
                let not = ["", "NOT "][self.rng.random_range(0..2)];
                format!("{not}EXISTS (SELECT 1 FROM {sub} WHERE {})", tests.join(" AND "))
            }
            kind => {
                let filter = if tests.is_empty() {
                    String::new()
                } else {
                    format!(" WHERE {}", tests.join(" AND "))
                };
                let ordered = columns.iter().chain(&sc).all(|c| {
                    (c.name != outer && c.name != inner)
                        || matches!(c.ty, Type::Int | Type::Big | Type::Float | Type::Text)
                });
                let op = match kind {
                    1 => "IN",
                    2 => "NOT IN",
                    _ if !ordered => ["= ANY", "<> ALL"][self.rng.random_range(0..2)],
                    _ => ["< ANY", ">= ANY", "<> ANY", "> ALL", "<= ALL", "= ALL"][self.rng.random_range(0..6)],
                };
                format!("{outer} {op} (SELECT {inner} FROM {sub}{filter})")
            }
        };
        let name = self.name('c');
        out.push(Column {
            name: name.clone(),
            ty: Type::Bool,
        });
        (format!("SELECT {list}, {test} AS {name} FROM {from}"), out)
    }

    fn lateral(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (sub, sc) = self.source(0);
        let (list, mut out) = self.pick(&columns, 2);
        let Some(key) = self.key(&columns, &sc) else {
            return self.instead_of(Op::Lateral, depth);
        };
        let (inner, yields) = self.pick(&sc, 2);
        let filter = self.maybe_where(&sc, 0.3).replacen(" WHERE ", " AND ", 1);
        let order = self.total_order(&yields);
        let alias = self.name('r');
        let limit = self.rng.random_range(1..=3);
        let offset = if self.rng.random_bool(0.2) { " OFFSET 1" } else { "" };
        let word = ["CROSS JOIN", "LEFT JOIN"][self.rng.random_range(0..2)];
        let on = if word == "LEFT JOIN" { " ON true" } else { "" };
        let mut list = vec![list];
        for c in &yields {
            let name = self.name('c');
            list.push(format!("{alias}.{} AS {name}", c.name));
            out.push(Column { name, ty: c.ty });
        }
        let sql = format!(
            "SELECT {} FROM {from} {word} LATERAL (SELECT {inner} FROM {sub} WHERE {key}{filter} ORDER BY {order} LIMIT {limit}{offset}) {alias}{on}",
            list.join(", ")
        );
        (sql, out)
    }

    fn grouping_sets(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let filter = self.maybe_where(&columns, 0.3);
        let keys: Vec<Column> = columns
            .choose_multiple(self.rng, 2.min(columns.len()))
            .cloned()
            .collect();
        let (mut list, mut out) = (Vec::new(), Vec::new());
        for k in &keys {
            let name = self.name('c');
            list.push(format!("{} AS {name}", k.name));
            out.push(Column { name, ty: k.ty });
        }
        let names: Vec<&str> = keys.iter().map(|k| k.name.as_str()).collect();
        let name = self.name('c');
        list.push(format!("grouping({}) AS {name}", names.join(", ")));
        out.push(Column { name, ty: Type::Int });
        let (call, ty) = self.aggregate_call(Op::GroupBy, false, &columns);
        let name = self.name('c');
        list.push(format!("{call} AS {name}"));
        out.push(Column { name, ty });
        let sets = match self.rng.random_range(0..3) {
            0 => format!("ROLLUP ({})", names.join(", ")),
            1 => format!("CUBE ({})", names.join(", ")),
            _ => format!("GROUPING SETS (({}), ({}))", names.join("), ("), names.join(", ")),
        };
        (
            format!("SELECT {} FROM {from}{filter} GROUP BY {sets}", list.join(", ")),
            out,
        )
    }

    fn scalar_subquery(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (sub, sc) = self.source(0);
        let (list, mut out) = self.pick(&columns, 2);
        let mut call = self.aggregate_call(Op::Scalar, false, &sc);
        if call.0.contains("FILTER") {
            call = ("count(*)".into(), Type::Big);
        }
        let correlated = if self.rng.random_bool(0.6) {
            self.key(&columns, &sc)
        } else {
            None
        };
        let filter = correlated.map(|k| format!(" WHERE {k}")).unwrap_or_default();
        let name = self.name('c');
        out.push(Column {
            name: name.clone(),
            ty: call.1,
        });
        (
            format!(
                "SELECT {list}, (SELECT {} FROM {sub}{filter}) AS {name} FROM {from}",
                call.0
            ),
            out,
        )
    }

    /// Two relations cut to the same types.
    fn union(&mut self, word: &str, depth: u32) -> (String, Vec<Column>) {
        let (left, lc) = self.source(depth);
        let (right, rc) = self.source(depth);
        let (mut a, mut b, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let n = self.rng.random_range(1..=3);
        for l in lc.choose_multiple(self.rng, n) {
            let name = {
                self.names += 1;
                format!("c{}", self.names)
            };
            let other = rc
                .iter()
                .find(|r| r.ty == l.ty)
                .map_or_else(|| l.ty.some_value(self.rng).sql(), |r| r.name.clone());
            a.push(format!("{} AS {name}", l.name));
            b.push(format!("{other} AS {name}"));
            out.push(Column { name, ty: l.ty });
        }
        let filter = self.maybe_where(&rc, 0.3);
        (
            format!(
                "SELECT {} FROM {left} {word} SELECT {} FROM {right}{filter}",
                a.join(", "),
                b.join(", ")
            ),
            out,
        )
    }

    /// A total order over columns: some first, then all.
    fn total_order(&mut self, columns: &[Column]) -> String {
        let mut rest = columns.to_vec();
        let mut terms = Vec::new();
        while !rest.is_empty() {
            let column = rest.swap_remove(self.rng.random_range(0..rest.len()));
            let desc = ["", " DESC", " DESC NULLS LAST", " NULLS FIRST"][self.rng.random_range(0..4)];
            terms.push(format!("{}{desc}", column.name));
        }
        terms.join(", ")
    }

    fn top_n(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (list, out) = self.pick(&columns, 3);
        let filter = self.maybe_where(&columns, 0.2);
        let order = self.total_order(&out);
        let offset = if self.rng.random_bool(0.3) { " OFFSET 1" } else { "" };
        let limit = self.rng.random_range(1..=5);
        (
            format!("SELECT {list} FROM {from}{filter} ORDER BY {order} LIMIT {limit}{offset}"),
            out,
        )
    }

    fn row_number(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (list, mut out) = self.pick(&columns, 3);
        let alias = self.name('r');
        // The order must be over what the inner list yields, or equal rows could be told apart.
        let inner = self.name('r');
        let partition = out.choose(self.rng).expect("columns").name.clone();
        let order = self.total_order(&out);
        let rn = self.name('c');
        let names: Vec<String> = out.iter().map(|c| c.name.clone()).collect();
        let limit = self.rng.random_range(1..=3);
        let sql = format!(
            "SELECT {names}, {rn} FROM (SELECT {names}, row_number() OVER (PARTITION BY {partition} ORDER BY {order}) AS {rn} FROM (SELECT {list} FROM {from}) {inner}) {alias} WHERE {rn} <= {limit}",
            names = names.join(", ")
        );
        out.push(Column {
            name: rn,
            ty: Type::Big,
        });
        (sql, out)
    }

    /// One to three calls over one or two windows; the order may leave rows equal.
    fn window(&mut self, depth: u32) -> (String, Vec<Column>) {
        let (from, columns) = self.source(depth);
        let (list, inner) = self.pick(&columns, 4);
        let names: Vec<String> = inner.iter().map(|c| c.name.clone()).collect();
        let mut out = inner.clone();
        let mut calls = names.clone();
        for _ in 0..self.rng.random_range(1..=3) {
            let partition = if self.rng.random_bool(0.7) {
                format!("PARTITION BY {} ", inner.choose(self.rng).expect("columns").name)
            } else {
                String::new()
            };
            let order = self.total_order(&inner);
            let keys: Vec<&str> = order.split(", ").collect();
            let order = keys[..self.rng.random_range(1..=keys.len())].join(", ");
            let (call, frame, ty) = self.window_call(&inner);
            let name = self.name('c');
            calls.push(format!("{call} OVER ({partition}ORDER BY {order}{frame}) AS {name}"));
            out.push(Column { name, ty });
        }
        let alias = self.name('r');
        (
            format!("SELECT {} FROM (SELECT {list} FROM {from}) {alias}", calls.join(", ")),
            out,
        )
    }

    /// A call, its frame, and its type.
    fn window_call(&mut self, columns: &[Column]) -> (String, &'static str, Type) {
        let column = columns.choose(self.rng).expect("columns").clone();
        let frames = [
            "",
            " ROWS UNBOUNDED PRECEDING",
            " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
            " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            " GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW",
            " RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
        ];
        let frame = frames[self.rng.random_range(0..frames.len())];
        let number = |call: &str| (call.to_string(), "", Type::Big);
        match self.rng.random_range(0..10) {
            0 => number("row_number()"),
            1 => number("rank()"),
            2 => number("dense_rank()"),
            3 => number("ntile(3)"),
            4 => (format!("lag({})", column.name), "", column.ty),
            5 => (format!("lead({}, 2)", column.name), "", column.ty),
            6 => (format!("first_value({})", column.name), "", column.ty),
            7 if column.ty == Type::Int => (format!("sum({})", column.name), frame, Type::Big),
            8 if !matches!(column.ty, Type::Bool) => {
                let call = ["min", "max"][self.rng.random_range(0..2)];
                (format!("{call}({})", column.name), frame, column.ty)
            }
            _ => (format!("count({})", column.name), frame, Type::Big),
        }
    }
}
