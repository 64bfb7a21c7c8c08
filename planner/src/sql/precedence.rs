//! What the parser reads otherwise than it is meant, mended before anything walks the tree.
//!
//! `IS DISTINCT FROM` binds as PostgreSQL says: tighter than NOT, AND and OR.
//!
//! The parser reads everything to the right of it as its operand, so `a IS DISTINCT FROM b AND c` arrives as
//! `a IS DISTINCT FROM (b AND c)`, and what precedes it binds to that. Parentheses are nodes of their own in the tree, so reading
//! a tree of these four operators from left to right gives back what was written, and it is put together anew from that.
//!
//! A chain of UNIONs arrives as a tree as deep as the chain is long, on which every later walk that looks at subtrees takes quadratic
//! time. UNION and INTERSECT are associative, so [`super::unions::balance`] makes it as deep as its logarithm.

use std::ops::ControlFlow;

use sqlparser::ast::{BinaryOperator, Expr, Query, UnaryOperator, VisitMut, VisitorMut};

use super::syntax::null;
use crate::{PlanError, Result};

/// Repairs every expression and every set operation of a parsed statement.
///
/// # Errors
/// 54001 for set operations that stay nested too deeply.
pub(super) fn settle<T: VisitMut>(parsed: &mut T) -> Result<()> {
    match VisitMut::visit(parsed, &mut Settle) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(e) => Err(e),
    }
}

struct Settle;

impl VisitorMut for Settle {
    type Break = PlanError;

    fn pre_visit_query(&mut self, q: &mut Query) -> ControlFlow<Self::Break> {
        match super::unions::balance(&mut q.body) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => ControlFlow::Break(e),
        }
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        if misread(e) {
            let mut parts = Vec::new();
            read(std::mem::replace(e, null()), &mut parts);
            parts.reverse();
            *e = disjunction(&mut parts);
        }
        ControlFlow::Continue(())
    }
}

/// Does a tree of the four operators hold an `IS DISTINCT FROM` over AND or OR?
fn misread(e: &Expr) -> bool {
    match e {
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And | BinaryOperator::Or,
            right,
        } => misread(right) || misread(left),
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => misread(expr),
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => {
            matches!(
                right.as_ref(),
                Expr::BinaryOp {
                    op: BinaryOperator::And | BinaryOperator::Or,
                    ..
                }
            ) || misread(right)
        }
        _ => false,
    }
}

#[derive(PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few short-lived values a statement")]
enum Part {
    Operand(Expr),
    Or,
    And,
    Not,
    Distinct,
    NotDistinct,
}

fn read(e: Expr, parts: &mut Vec<Part>) {
    let (left, part, right) = match e {
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => (Some(left), Part::And, right),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Or,
            right,
        } => (Some(left), Part::Or, right),
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => (None, Part::Not, expr),
        Expr::IsDistinctFrom(left, right) => (Some(left), Part::Distinct, right),
        Expr::IsNotDistinctFrom(left, right) => (Some(left), Part::NotDistinct, right),
        other => return parts.push(Part::Operand(other)),
    };
    if let Some(left) = left {
        read(*left, parts);
    }
    parts.push(part);
    read(*right, parts);
}

/// Takes the last part if it is `wanted`.
fn next_is(parts: &mut Vec<Part>, wanted: &Part) -> bool {
    let found = parts.last() == Some(wanted);
    if found {
        parts.pop();
    }
    found
}

fn chain(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    }
}

fn disjunction(parts: &mut Vec<Part>) -> Expr {
    let mut e = conjunction(parts);
    while next_is(parts, &Part::Or) {
        e = chain(e, BinaryOperator::Or, conjunction(parts));
    }
    e
}

fn conjunction(parts: &mut Vec<Part>) -> Expr {
    let mut e = negation(parts);
    while next_is(parts, &Part::And) {
        e = chain(e, BinaryOperator::And, negation(parts));
    }
    e
}

fn negation(parts: &mut Vec<Part>) -> Expr {
    if next_is(parts, &Part::Not) {
        return Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr: Box::new(negation(parts)),
        };
    }
    let mut e = match parts.pop() {
        Some(Part::Operand(e)) => e,
        // Every operator of a tree has its operands.
        _ => null(),
    };
    loop {
        if next_is(parts, &Part::Distinct) {
            e = Expr::IsDistinctFrom(Box::new(e), Box::new(negation_or_operand(parts)));
        } else if next_is(parts, &Part::NotDistinct) {
            e = Expr::IsNotDistinctFrom(Box::new(e), Box::new(negation_or_operand(parts)));
        } else {
            return e;
        }
    }
}

fn negation_or_operand(parts: &mut Vec<Part>) -> Expr {
    match parts.pop() {
        Some(Part::Operand(e)) => e,
        Some(part) => {
            parts.push(part);
            negation(parts)
        }
        None => null(),
    }
}
