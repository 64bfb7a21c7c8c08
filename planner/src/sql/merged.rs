//! The columns of joins with USING and NATURAL.
//!
//! An unqualified name means the column that the join merged: of a full join `coalesce(l.k, r.k)`, of a right join `r.k`, else `l.k`; and
//! `*` shows it once, before the other columns. DataFusion always takes the left table's, which is NULL for the rows that only the
//! right one has, and leaves it in its place. So such a join is written with ON, the name replaced, and `*` spelled out:
//!
//! ```text
//! SELECT * FROM l FULL JOIN r USING (k)  ─▶  SELECT coalesce(l.k, r.k) AS k, l.v, r.w FROM l FULL JOIN r ON l.k = r.k
//! ```
//!
//! What columns a table, a derived table or a function has is found out by planning `SELECT * FROM` it.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use sqlparser::ast::{
    BinaryOperator, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, OrderByKind, Query, Select,
    SelectItem, SetExpr, TableFactor, TableWithJoins, Value, Visit, VisitMut, Visitor, VisitorMut, With,
};

use super::derived::has_wildcard;
use super::ext::fold;
use super::rewrite::{join_constraint, join_constraint_of};
use super::syntax::function;
use crate::{PlanError, Result};

/// Names and types of a query's columns.
pub(super) type Columns = Vec<(String, DataType)>;

/// Is there a join whose columns are merged?
pub(super) fn any(q: &Query) -> bool {
    Visit::visit(q, &mut Finder).is_break()
}

/// Writes the joins of a query, and of those in it, with ON. `columns` plans a query.
pub(super) fn settle(q: &mut Query, columns: &mut dyn FnMut(&Query) -> Result<Columns>) -> Result<()> {
    let mut merger = Merger {
        columns,
        with: Vec::new(),
    };
    match VisitMut::visit(q, &mut merger) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(e) => Err(e),
    }
}

struct Finder;

impl Visitor for Finder {
    type Break = ();

    fn pre_visit_select(&mut self, s: &Select) -> ControlFlow<()> {
        if needs(s) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Would DataFusion give the SELECT other columns than PostgreSQL?
fn needs(s: &Select) -> bool {
    let star = has_wildcard(s);
    s.from.iter().any(|f| merges(f, star))
}

fn merges(from: &TableWithJoins, star: bool) -> bool {
    let nested = |t: &TableFactor| match t {
        TableFactor::NestedJoin { table_with_joins, .. } => merges(table_with_joins, star),
        _ => false,
    };
    nested(&from.relation)
        || from.joins.iter().any(|j| {
            let one_sided = matches!(
                j.join_operator,
                JoinOperator::FullOuter(_) | JoinOperator::Right(_) | JoinOperator::RightOuter(_)
            );
            nested(&j.relation)
                || match join_constraint_of(&j.join_operator) {
                    Some(JoinConstraint::Natural) => true,
                    Some(JoinConstraint::Using(_)) => one_sided || star,
                    _ => false,
                }
        })
}

struct Merger<'a> {
    columns: &'a mut dyn FnMut(&Query) -> Result<Columns>,
    /// WITH clauses around, the outermost first.
    with: Vec<With>,
}

impl VisitorMut for Merger<'_> {
    type Break = PlanError;

    fn pre_visit_query(&mut self, q: &mut Query) -> ControlFlow<Self::Break> {
        if let Some(with) = &mut q.with {
            // Each WITH query sees those before it.
            self.with.push(With {
                cte_tables: Vec::with_capacity(with.cte_tables.len()),
                ..with.clone()
            });
            for cte in &mut with.cte_tables {
                VisitMut::visit(&mut cte.query, self)?;
                if let Some(with) = self.with.last_mut() {
                    with.cte_tables.push(cte.clone());
                }
            }
        }
        ControlFlow::Continue(())
    }

    // Inner queries first, so that each is planned as it is in the end.
    fn post_visit_query(&mut self, q: &mut Query) -> ControlFlow<Self::Break> {
        let done = self.query(q);
        if q.with.is_some() {
            self.with.pop();
        }
        match done {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => ControlFlow::Break(e),
        }
    }
}

fn is_output(s: &Select, name: &Ident) -> bool {
    s.projection.iter().any(|item| match item {
        SelectItem::ExprWithAlias { alias, .. } => fold(alias) == fold(name),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().is_some_and(|p| fold(p) == fold(name)),
        SelectItem::UnnamedExpr(Expr::Identifier(i)) => fold(i) == fold(name),
        _ => false,
    })
}

/// A column that a FROM item shows.
#[derive(Clone)]
struct Shown {
    name: String,
    value: Expr,
    data_type: DataType,
    merged: bool,
}

impl Merger<'_> {
    fn query(&mut self, q: &mut Query) -> Result<()> {
        let SetExpr::Select(s) = q.body.as_mut() else {
            return self.branches(&mut q.body);
        };
        let Some(mut merged) = self.select(s)? else {
            return Ok(());
        };
        if let Some(order) = &mut q.order_by
            && let OrderByKind::Expressions(keys) = &mut order.kind
        {
            for key in keys {
                // A result column's name goes first.
                if !matches!(&key.expr, Expr::Identifier(i) if is_output(s, i)) {
                    merged.replace(&mut key.expr);
                }
            }
        }
        Ok(())
    }

    fn branches(&mut self, body: &mut SetExpr) -> Result<()> {
        match body {
            SetExpr::Select(s) => self.select(s).map(|_| ()),
            SetExpr::SetOperation { left, right, .. } => {
                self.branches(left)?;
                self.branches(right)
            }
            // Visited as a query of its own.
            _ => Ok(()),
        }
    }

    fn select(&mut self, s: &mut Select) -> Result<Option<Merged>> {
        if !needs(s) {
            return Ok(None);
        }
        let mut shown = Vec::new();
        for from in &mut s.from {
            shown.extend(self.from(from)?);
        }
        let mut projection = Vec::with_capacity(s.projection.len());
        for item in std::mem::take(&mut s.projection) {
            match item {
                SelectItem::Wildcard(_) => projection.extend(shown.iter().map(item_of)),
                other => projection.push(other),
            }
        }
        let mut merged = Merged {
            columns: shown.into_iter().filter(|c| c.merged).collect(),
            depth: 0,
        };
        for item in &mut projection {
            if let SelectItem::UnnamedExpr(Expr::Identifier(i)) = item
                && let Some(value) = merged.value(i)
            {
                *item = SelectItem::ExprWithAlias {
                    expr: value,
                    alias: i.clone(),
                };
            }
        }
        s.projection = projection;
        merged.replace(&mut s.projection);
        merged.replace(&mut s.selection);
        merged.replace(&mut s.group_by);
        merged.replace(&mut s.having);
        Ok(Some(merged))
    }

    /// Writes the joins of a FROM item with ON; answers what it shows.
    fn from(&mut self, from: &mut TableWithJoins) -> Result<Vec<Shown>> {
        let mut left = self.factor(&mut from.relation)?;
        for join in &mut from.joins {
            let right = self.factor(&mut join.relation)?;
            let names = match join_constraint_of(&join.join_operator) {
                Some(JoinConstraint::Using(names)) => names.iter().map(column).collect::<Result<Vec<_>>>()?,
                Some(JoinConstraint::Natural) => {
                    let common = left.iter().filter(|l| right.iter().any(|r| r.name == l.name));
                    common.map(|l| l.name.clone()).collect()
                }
                _ => {
                    let mut merged = Merged {
                        columns: left.iter().filter(|c| c.merged).cloned().collect(),
                        depth: 0,
                    };
                    if let Some(JoinConstraint::On(e)) = join_constraint(&mut join.join_operator) {
                        merged.replace(e);
                    }
                    left.extend(right);
                    continue;
                }
            };
            left = join_using(&mut join.join_operator, left, right, &names)?;
        }
        Ok(left)
    }

    fn factor(&mut self, t: &mut TableFactor) -> Result<Vec<Shown>> {
        if let TableFactor::NestedJoin {
            table_with_joins,
            alias: None,
        } = t
        {
            return self.from(table_with_joins);
        }
        if let Some((table, names)) = super::sets::columns_of(t) {
            // It may refer to the items before it, and so cannot be planned alone.
            let shown = |name: String| Shown {
                value: Expr::CompoundIdentifier(vec![table.clone(), Ident::with_quote('"', &name)]),
                name,
                data_type: DataType::Null,
                merged: false,
            };
            return Ok(names.into_iter().map(shown).collect());
        }
        let table = name_of(t).ok_or_else(|| {
            PlanError::unsupported("a join with USING or NATURAL of an item without a name is not supported")
                .hint("Give it one with AS.")
        })?;
        let mut probe = super::parse::parse_query("SELECT * FROM t")?;
        if let SetExpr::Select(s) = probe.body.as_mut()
            && let Some(from) = s.from.first_mut()
        {
            from.relation = t.clone();
        }
        probe.with = self.with.iter().cloned().reduce(|mut all, inner| {
            let hidden = |name: &Ident| inner.cte_tables.iter().any(|c| fold(&c.alias.name) == fold(name));
            all.cte_tables.retain(|c| !hidden(&c.alias.name));
            all.cte_tables.extend(inner.cte_tables);
            all
        });
        let columns = (self.columns)(&probe)?;
        Ok(columns
            .into_iter()
            .map(|(name, data_type)| {
                let mut parts = table.clone();
                parts.push(Ident::with_quote('"', &name));
                Shown {
                    name,
                    value: Expr::CompoundIdentifier(parts),
                    data_type,
                    merged: false,
                }
            })
            .collect())
    }
}

/// The one column of this name on a side of a join.
fn one<'a>(columns: &'a [Shown], name: &str, side: &str) -> Result<&'a Shown> {
    let mut found = columns.iter().filter(|c| c.name == name);
    match (found.next(), found.next()) {
        (Some(c), None) => Ok(c),
        (None, _) => Err(PlanError::new(
            "42703",
            format!("column \"{name}\" specified in USING clause does not exist in {side} table"),
        )),
        _ => Err(PlanError::new(
            "42702",
            format!("common column name \"{name}\" appears more than once in {side} table"),
        )),
    }
}

fn join_using(op: &mut JoinOperator, left: Vec<Shown>, right: Vec<Shown>, names: &[String]) -> Result<Vec<Shown>> {
    let (full, of_right) = (
        matches!(op, JoinOperator::FullOuter(_)),
        matches!(op, JoinOperator::Right(_) | JoinOperator::RightOuter(_)),
    );
    let mut on: Option<Expr> = None;
    let mut all = Vec::with_capacity(left.len() + right.len());
    for name in names {
        let (l, r) = (one(&left, name, "left")?, one(&right, name, "right")?);
        let equal = Expr::BinaryOp {
            left: Box::new(l.value.clone()),
            op: BinaryOperator::Eq,
            right: Box::new(r.value.clone()),
        };
        on = Some(match on {
            None => equal,
            Some(before) => Expr::BinaryOp {
                left: Box::new(before),
                op: BinaryOperator::And,
                right: Box::new(equal),
            },
        });
        let (first, second) = if of_right { (r, l) } else { (l, r) };
        // Of two types the common one, which coalesce has.
        let value = if full || first.data_type != second.data_type {
            function("coalesce", vec![first.value.clone(), second.value.clone()])
        } else {
            first.value.clone()
        };
        all.push(Shown {
            name: name.clone(),
            value,
            data_type: first.data_type.clone(),
            merged: true,
        });
    }
    if let Some(constraint) = join_constraint(op) {
        *constraint = JoinConstraint::On(on.unwrap_or_else(|| Expr::Value(Value::Boolean(true).into())));
    }
    if names.is_empty() && matches!(op, JoinOperator::Join(_) | JoinOperator::Inner(_)) {
        *op = JoinOperator::CrossJoin(JoinConstraint::None);
    }
    all.extend(left.into_iter().chain(right).filter(|c| !names.contains(&c.name)));
    Ok(all)
}

fn item_of(c: &Shown) -> SelectItem {
    SelectItem::ExprWithAlias {
        expr: c.value.clone(),
        alias: Ident::with_quote('"', &c.name),
    }
}

fn column(name: &ObjectName) -> Result<String> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(i)] => Ok(fold(i)),
        _ => Err(PlanError::new("42601", "USING takes names of columns")),
    }
}

/// What qualifies the columns of a FROM item.
pub(super) fn name_of(t: &TableFactor) -> Option<Vec<Ident>> {
    match t {
        TableFactor::Table { alias: Some(a), .. }
        | TableFactor::Derived { alias: Some(a), .. }
        | TableFactor::TableFunction { alias: Some(a), .. }
        | TableFactor::Function { alias: Some(a), .. }
        | TableFactor::UNNEST { alias: Some(a), .. }
        | TableFactor::NestedJoin { alias: Some(a), .. } => Some(vec![a.name.clone()]),
        TableFactor::UNNEST { alias: None, .. } => Some(vec![Ident::new("unnest")]),
        TableFactor::Table { name, .. } | TableFactor::Function { name, .. } => match name.0.last() {
            Some(ObjectNamePart::Identifier(i)) => Some(vec![i.clone()]),
            _ => None,
        },
        _ => None,
    }
}

struct Merged {
    columns: Vec<Shown>,
    /// Subqueries around: their names are their own.
    depth: usize,
}

impl Merged {
    /// Merged once more by another join, a name means the outermost.
    fn value(&self, name: &Ident) -> Option<Expr> {
        let named = self.columns.iter().find(|c| c.name == fold(name));
        named.map(|c| c.value.clone())
    }

    fn replace<T: VisitMut>(&mut self, t: &mut T) {
        let ControlFlow::Continue(()) = VisitMut::visit(t, self);
    }
}

impl VisitorMut for Merged {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        if self.depth == 0
            && let Expr::Identifier(i) = e
            && let Some(value) = self.value(i)
        {
            *e = value;
        }
        ControlFlow::Continue(())
    }
}
