//! PostgreSQL's typing of expressions, plugged into DataFusion's SQL planner.
//!
//! The planner asks an [`ExprPlanner`] about every binary operator, with the columns in scope. [`super::rewrite`] wraps every other
//! place where an expression stands into the operator [`TYPED`], so each expression passes through [`type_expr`] here before any
//! schema is derived from it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion::common::{DFSchema, Result as DfResult, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{AggregateFunction, BinaryExpr, Case, InList, Like, ScalarFunction};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, RawWindowExpr};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Operator};
use sqlparser::ast::BinaryOperator;

use super::assign::rounded;
use super::errors::map_df_error;
use super::functions::{call, external};
use super::operators::{self, Typed, binary, boolean, cast_expr, coerce, common_type, df, is_unknown};
use super::types::{self, JSON, JSONB, Modifier, TIME, TIMETZ, interval, timestamptz};
use crate::{PlanError, Result};

/// The marking operator; no user can write it.
pub(super) const TYPED: [&str; 2] = ["levee", "typed"];
/// As [`TYPED`], for conditions: the operand must be boolean. The right operand names the clause.
pub(super) const CONDITION: [&str; 2] = ["levee", "condition"];

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct PgExprPlanner {
    pub shadows: super::scopes::Shadows,
}

impl ExprPlanner for PgExprPlanner {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> DfResult<PlannerResult<RawBinaryExpr>> {
        crate::interrupt::check().map_err(external)?;
        if let BinaryOperator::PGCustomBinaryOperator(parts) = &raw.op {
            if parts == &TYPED {
                return type_expr(raw.left, schema).map(PlannerResult::Planned);
            }
            if parts == &super::assign::ASSIGN {
                let column = match &raw.right {
                    Expr::Literal(ScalarValue::Utf8(Some(s)), _) => super::assign::parse_target(s),
                    _ => None,
                };
                let column = column.ok_or_else(|| external(PlanError::internal("assignment without a column")))?;
                let typed = typed(type_expr(raw.left, schema)?, schema)?;
                return df(super::assign::assign(typed, &column)).map(PlannerResult::Planned);
            }
            if parts == &CONDITION {
                let clause = match &raw.right {
                    Expr::Literal(ScalarValue::Utf8(Some(s)), _) => s.clone(),
                    _ => "WHERE".to_owned(),
                };
                let typed = typed(type_expr(raw.left, schema)?, schema)?;
                return df(boolean(typed, &clause)).map(PlannerResult::Planned);
            }
        }
        if let Some(f) = super::collections::operator(&raw.op) {
            let l = typed(type_expr(raw.left, schema)?, schema)?;
            let r = typed(type_expr(raw.right, schema)?, schema)?;
            return df(f(l, r)).map(PlannerResult::Planned);
        }
        let Some(op) = operator(&raw.op) else {
            return Ok(PlannerResult::Original(raw));
        };
        let l = typed(type_expr(raw.left, schema)?, schema)?;
        let r = typed(type_expr(raw.right, schema)?, schema)?;
        if op == Power {
            return df(power(l, r)).map(PlannerResult::Planned);
        }
        let Op(op) = op else {
            return Err(external(PlanError::internal("unreachable operator")));
        };
        df(binary(l, op, r)).map(PlannerResult::Planned)
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        _: Option<&TableReference>,
        _: &[String],
    ) -> DfResult<PlannerResult<Vec<Expr>>> {
        self.shadows.note(field.name());
        Ok(PlannerResult::Original(Vec::new()))
    }

    fn plan_window(&self, raw: RawWindowExpr) -> DfResult<PlannerResult<RawWindowExpr>> {
        super::window_calls::take_offsets(raw).map(PlannerResult::Original)
    }

    fn plan_extract(&self, args: Vec<Expr>) -> DfResult<PlannerResult<Vec<Expr>>> {
        call("pg_extract", args).map(PlannerResult::Planned)
    }
}

#[derive(PartialEq, Eq)]
enum PgOperator {
    Op(Operator),
    Power,
}
use PgOperator::{Op, Power};

fn operator(op: &BinaryOperator) -> Option<PgOperator> {
    use BinaryOperator as B;
    Some(Op(match op {
        B::Plus => Operator::Plus,
        B::Minus => Operator::Minus,
        B::Multiply => Operator::Multiply,
        B::Divide => Operator::Divide,
        B::Modulo => Operator::Modulo,
        B::Gt => Operator::Gt,
        B::Lt => Operator::Lt,
        B::GtEq => Operator::GtEq,
        B::LtEq => Operator::LtEq,
        B::Eq => Operator::Eq,
        B::NotEq => Operator::NotEq,
        B::And => Operator::And,
        B::Or => Operator::Or,
        B::StringConcat => Operator::StringConcat,
        B::PGRegexMatch => Operator::RegexMatch,
        B::PGRegexIMatch => Operator::RegexIMatch,
        B::PGRegexNotMatch => Operator::RegexNotMatch,
        B::PGRegexNotIMatch => Operator::RegexNotIMatch,
        B::PGLikeMatch => Operator::LikeMatch,
        B::PGILikeMatch => Operator::ILikeMatch,
        B::PGNotLikeMatch => Operator::NotLikeMatch,
        B::PGNotILikeMatch => Operator::NotILikeMatch,
        B::BitwiseAnd => Operator::BitwiseAnd,
        B::BitwiseOr => Operator::BitwiseOr,
        B::PGBitwiseXor => Operator::BitwiseXor,
        B::PGBitwiseShiftLeft => Operator::BitwiseShiftLeft,
        B::PGBitwiseShiftRight => Operator::BitwiseShiftRight,
        B::PGExp => return Some(Power),
        _ => return None,
    }))
}

fn power(l: Typed, r: Typed) -> Result<Expr> {
    let (l, r) = (coerce(l, &DataType::Float64)?, coerce(r, &DataType::Float64)?);
    call("power", vec![l, r]).map_err(map_df_error)
}

/// An expression with its type in `schema`.
pub(super) fn typed(e: Expr, schema: &DFSchema) -> DfResult<Typed> {
    if is_unknown(&e) {
        return Ok(Typed { expr: e, ty: None });
    }
    let ty = e.get_type(schema)?;
    Ok(Typed::new(e, ty))
}

/// Rewrites an expression to PostgreSQL's typing; idempotent.
pub(super) fn type_expr(e: Expr, schema: &DFSchema) -> DfResult<Expr> {
    e.rewrite(&mut Typer { schema }).map(|t| t.data)
}

struct Typer<'a> {
    schema: &'a DFSchema,
}

impl TreeNodeRewriter for Typer<'_> {
    type Node = Expr;

    fn f_down(&mut self, e: Expr) -> DfResult<Transformed<Expr>> {
        // Operators and casts have been typed when they were made.
        let done = match &e {
            Expr::BinaryExpr(b) => !matches!(b.op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom),
            Expr::ScalarFunction(f) => f.func.name().starts_with("pg_") && !is_syntax(f.func.name()),
            _ => false,
        };
        let next = if done {
            TreeNodeRecursion::Jump
        } else {
            TreeNodeRecursion::Continue
        };
        Ok(Transformed::new(e, false, next))
    }

    fn f_up(&mut self, e: Expr) -> DfResult<Transformed<Expr>> {
        self.node(e).map(Transformed::yes)
    }
}

impl Typer<'_> {
    fn typed(&self, e: Expr) -> DfResult<Typed> {
        typed(e, self.schema)
    }

    fn node(&self, e: Expr) -> DfResult<Expr> {
        match e {
            Expr::Cast(c) => self.cast(c),
            Expr::Negative(e) => df(operators::negate(self.typed(*e)?)),
            Expr::Not(e) => Ok(Expr::Not(Box::new(df(boolean(self.typed(*e)?, "NOT"))?))),
            Expr::BinaryExpr(b) if matches!(b.op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) => {
                df(binary(self.typed(*b.left)?, b.op, self.typed(*b.right)?))
            }
            Expr::Between(b) => self.between(b),
            Expr::InList(list) => self.in_list(list),
            Expr::InSubquery(s) => self.in_subquery(s),
            Expr::Like(like) => self.like(like),
            Expr::SimilarTo(like) => self.similar(like),
            Expr::Case(case) => self.case(case),
            Expr::ScalarFunction(mut f) if f.func.name() == "pg_neg" => match f.args.pop() {
                Some(e) => df(operators::negate(self.typed(e)?)),
                None => Err(external(PlanError::internal("unary minus without an operand"))),
            },
            Expr::ScalarFunction(f) => super::calls::scalar(f, self.schema),
            Expr::AggregateFunction(f) => match super::interval_sums::of_aggregate(&f, self.schema)? {
                Some(sums) => Ok(sums),
                None if f.params.distinct => self.distinct_aggregate(f),
                None => Ok(Expr::AggregateFunction(f)),
            },
            Expr::WindowFunction(w) => match super::interval_sums::of_window(&w, self.schema)? {
                Some(sums) => type_expr(sums, self.schema),
                None => super::window_calls::typed_call(w, self.schema),
            },
            Expr::IsTrue(e) => Ok(Expr::IsTrue(Box::new(df(boolean(self.typed(*e)?, "IS TRUE"))?))),
            Expr::IsFalse(e) => Ok(Expr::IsFalse(Box::new(df(boolean(self.typed(*e)?, "IS FALSE"))?))),
            Expr::IsNotTrue(e) => Ok(Expr::IsNotTrue(Box::new(df(boolean(self.typed(*e)?, "IS NOT TRUE"))?))),
            Expr::IsNotFalse(e) => Ok(Expr::IsNotFalse(Box::new(df(boolean(
                self.typed(*e)?,
                "IS NOT FALSE",
            ))?))),
            other => Ok(other),
        }
    }

    /// To DataFusion `-0.0` and `0.0` are two values.
    fn distinct_aggregate(&self, mut f: AggregateFunction) -> DfResult<Expr> {
        for arg in &mut f.params.args {
            let zero = match arg.get_type(self.schema)? {
                DataType::Float32 => ScalarValue::Float32(Some(0.0)),
                DataType::Float64 => ScalarValue::Float64(Some(0.0)),
                _ => continue,
            };
            // Typing may come by here again.
            if !matches!(arg, Expr::ScalarFunction(f) if f.func.name() == "pg_add") {
                *arg = call("pg_add", vec![std::mem::take(arg), Expr::Literal(zero, None)])?;
            }
        }
        Ok(Expr::AggregateFunction(f))
    }

    fn cast(&self, c: Cast) -> DfResult<Expr> {
        let target = c.field.data_type().clone();
        let inner = self.typed(*c.expr)?;
        let modifier = Modifier::of(&c.field);
        let cast = match (&inner.expr, &inner.ty) {
            // A text literal has a type only if it is cast to one, so the cast stays.
            (Expr::Literal(..), None) if operators::is_text(&target) => {
                let text = df(coerce(inner, &target))?;
                Expr::Cast(Cast::new(Box::new(text), target))
            }
            (Expr::Placeholder(_) | Expr::Literal(..), None) => df(coerce(inner, &target))?,
            (_, Some(ty)) => {
                df(castable(ty, &target))?;
                df(cast_expr(inner.expr.clone(), ty, &target))?
            }
            (_, None) => df(coerce(inner, &target))?,
        };
        match modifier {
            Some(Modifier::Precision(digits)) => rounded(cast, digits),
            Some(Modifier::Length(n)) => {
                let n = Expr::Literal(ScalarValue::Int64(Some(n)), None);
                call(
                    "pg_varchar",
                    vec![cast, n, Expr::Literal(ScalarValue::Boolean(Some(true)), None)],
                )
            }
            None => Ok(cast),
        }
    }

    fn between(&self, b: datafusion::logical_expr::Between) -> DfResult<Expr> {
        let (x, low, high) = (self.typed(*b.expr)?, self.typed(*b.low)?, self.typed(*b.high)?);
        let (lower, upper, joint) = if b.negated {
            (Operator::Lt, Operator::Gt, Operator::Or)
        } else {
            (Operator::GtEq, Operator::LtEq, Operator::And)
        };
        let l = df(binary(x.clone(), lower, low))?;
        let r = df(binary(x, upper, high))?;
        Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(l), joint, Box::new(r))))
    }

    fn in_list(&self, list: InList) -> DfResult<Expr> {
        let x = self.typed(*list.expr)?;
        let items = list
            .list
            .into_iter()
            .map(|e| self.typed(e))
            .collect::<DfResult<Vec<_>>>()?;
        let mut all = vec![x.ty.clone()];
        all.extend(items.iter().map(|i| i.ty.clone()));
        for i in &items {
            if let (Some(a), Some(b)) = (&x.ty, &i.ty)
                && operators::pair_type(a, b).is_none()
            {
                return Err(external(
                        PlanError::new(
                            "42883",
                            format!("operator does not exist: {} = {}", types::base_name(a), types::base_name(b)),
                        )
                        .hint("No operator matches the given name and argument types. You might need to add explicit type casts."),
                    ));
            }
        }
        let target = df(common_type(&all, "IN"))?;
        if types::item_of(&target).is_some() || target == JSON {
            return in_compared(&x, items, list.negated);
        }
        let expr = df(coerce(x, &target))?;
        let list_exprs = items
            .into_iter()
            .map(|i| df(coerce(i, &target)))
            .collect::<DfResult<Vec<_>>>()?;
        Ok(Expr::InList(InList::new(Box::new(expr), list_exprs, list.negated)))
    }

    fn in_subquery(&self, mut s: datafusion::logical_expr::expr::InSubquery) -> DfResult<Expr> {
        let x = self.typed(*s.expr)?;
        let column = s
            .subquery
            .subquery
            .schema()
            .fields()
            .first()
            .map(|f| f.data_type().clone());
        let expr = match (&x.ty, column) {
            (None, Some(t)) => df(coerce(x, &t))?,
            (Some(a), Some(b)) if operators::pair_type(a, &b).is_none() => {
                return Err(external(
                    PlanError::new(
                        "42883",
                        format!("operator does not exist: {} = {}", types::base_name(a), types::base_name(&b)),
                    )
                    .hint("No operator matches the given name and argument types. You might need to add explicit type casts."),
                ));
            }
            _ => x.expr,
        };
        s.expr = Box::new(expr);
        Ok(Expr::InSubquery(s))
    }

    fn like(&self, like: Like) -> DfResult<Expr> {
        let op = if like.case_insensitive { "~~*" } else { "~~" };
        let l = self.typed(*like.expr)?;
        let r = self.typed(*like.pattern)?;
        for t in [&l, &r] {
            if let Some(ty) = &t.ty
                && !operators::is_text(ty)
            {
                let name = |t: &Typed| t.ty.as_ref().map_or("unknown", types::base_name);
                return Err(external(
                        PlanError::new("42883", format!("operator does not exist: {} {op} {}", name(&l), name(&r)))
                            .hint("No operator matches the given name and argument types. You might need to add explicit type casts."),
                    ));
            }
        }
        let (l, mut r) = (df(coerce(l, &DataType::Utf8))?, df(coerce(r, &DataType::Utf8))?);
        if let Some(escape) = like.escape_char.filter(|c| *c != '\\') {
            let constant = match &r {
                Expr::Cast(c) => c.expr.as_ref(),
                other => other,
            };
            let Expr::Literal(ScalarValue::Utf8(Some(pattern)), _) = constant else {
                return Err(external(
                    PlanError::unsupported("LIKE … ESCAPE with a pattern that is not a literal is not supported")
                        .hint("Escape with a backslash."),
                ));
            };
            r = Expr::Literal(ScalarValue::Utf8(Some(backslashed(pattern, escape))), None);
        }
        Ok(Expr::Like(Like::new(
            like.negated,
            Box::new(l),
            Box::new(r),
            None,
            like.case_insensitive,
        )))
    }

    fn similar(&self, like: Like) -> DfResult<Expr> {
        let l = df(coerce(self.typed(*like.expr)?, &DataType::Utf8))?;
        let r = df(coerce(self.typed(*like.pattern)?, &DataType::Utf8))?;
        let e = call("pg_similar", vec![l, r])?;
        Ok(if like.negated { Expr::Not(Box::new(e)) } else { e })
    }

    fn case(&self, case: Case) -> DfResult<Expr> {
        let whens: Vec<Expr> = case.when_then_expr.iter().map(|(w, _)| (**w).clone()).collect();
        let subject = case.expr.map(|e| self.typed(*e)).transpose()?;
        let (subject, whens) = match subject {
            None => {
                let whens = whens
                    .into_iter()
                    .map(|w| df(boolean(self.typed(w)?, "CASE/WHEN")))
                    .collect::<DfResult<Vec<_>>>()?;
                (None, whens)
            }
            Some(s) => {
                let typed = whens.into_iter().map(|w| self.typed(w)).collect::<DfResult<Vec<_>>>()?;
                let mut all = vec![s.ty.clone()];
                all.extend(typed.iter().map(|t| t.ty.clone()));
                let target = df(common_type(&all, "CASE"))?;
                if operators::has_own_equality(&target) {
                    let whens = typed
                        .into_iter()
                        .map(|t| df(binary(s.clone(), Operator::Eq, t)))
                        .collect::<DfResult<Vec<_>>>()?;
                    return self.case_of(None, whens, case.when_then_expr, case.else_expr);
                }
                let whens = typed
                    .into_iter()
                    .map(|t| df(coerce(t, &target)))
                    .collect::<DfResult<Vec<_>>>()?;
                (Some(Box::new(df(coerce(s, &target))?)), whens)
            }
        };
        self.case_of(subject, whens, case.when_then_expr, case.else_expr)
    }

    /// CASE whose conditions are typed.
    fn case_of(
        &self,
        subject: Option<Box<Expr>>,
        whens: Vec<Expr>,
        when_then_expr: Vec<(Box<Expr>, Box<Expr>)>,
        else_expr: Option<Box<Expr>>,
    ) -> DfResult<Expr> {
        let mut results = Vec::new();
        for (_, then) in when_then_expr {
            results.push(self.typed(*then)?);
        }
        let otherwise = else_expr.map(|e| self.typed(*e)).transpose()?;
        let mut all: Vec<Option<DataType>> = otherwise.iter().map(|t| t.ty.clone()).collect();
        all.extend(results.iter().map(|t| t.ty.clone()));
        let target = df(common_type(&all, "CASE"))?;
        let when_then_expr = whens
            .into_iter()
            .zip(results)
            .map(|(w, t)| Ok((Box::new(w), Box::new(df(coerce(t, &target))?))))
            .collect::<DfResult<Vec<_>>>()?;
        let else_expr = otherwise.map(|t| df(coerce(t, &target)).map(Box::new)).transpose()?;
        Ok(Expr::Case(Case::new(subject, when_then_expr, else_expr)))
    }
}

/// `x IN (…)` as comparisons, for types that DataFusion compares otherwise.
fn in_compared(x: &Typed, items: Vec<Typed>, negated: bool) -> DfResult<Expr> {
    let mut any: Option<Expr> = None;
    for item in items {
        let same = df(binary(x.clone(), Operator::Eq, item))?;
        any = Some(match any {
            None => same,
            Some(before) => Expr::BinaryExpr(BinaryExpr::new(Box::new(before), Operator::Or, Box::new(same))),
        });
    }
    let any = any.unwrap_or(Expr::Literal(ScalarValue::Boolean(Some(false)), None));
    Ok(if negated { Expr::Not(Box::new(any)) } else { any })
}

/// Functions that stand for syntax, so their arguments are to be typed.
pub(super) fn is_syntax(name: &str) -> bool {
    matches!(
        name,
        "pg_extract"
            | "pg_neg"
            | "pg_array"
            | "pg_subscript"
            | "pg_slice"
            | "pg_any"
            | "pg_all"
            | "pg_json_list"
            | "pg_jsonb_list"
            | "pg_json_member"
            | "pg_json_members"
            | "pg_jsonb_members"
    ) || super::functions::sets::is_set_function(name)
}

/// A LIKE pattern with another escape character, written with backslashes.
fn backslashed(pattern: &str, escape: char) -> String {
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c == escape {
            out.push('\\');
            out.extend(chars.next());
        } else if c == '\\' {
            out.push_str("\\\\");
        } else {
            out.push(c);
        }
    }
    out
}

/// Is there an explicit cast between the types?
pub(super) fn castable(from: &DataType, to: &DataType) -> Result<()> {
    use DataType::{Boolean, Date32, Int32, Timestamp};
    let ok = from == to
        || operators::is_text(from)
        || operators::is_text(to)
        || (operators::is_number(from) && operators::is_number(to))
        || matches!((from, to), (Boolean, Int32) | (Int32, Boolean))
        || matches!((from, to), (Date32 | Timestamp(..), Date32 | Timestamp(..)))
        || matches!((from, to), (Timestamp(..), &TIME) | (&TIMETZ, &TIME) | (&TIME, &TIMETZ))
        || (from == &timestamptz() && to == &TIMETZ)
        || (from == &TIME && to == &interval())
        || (from == &interval() && to == &TIME)
        || types::canonical(from) == types::canonical(to)
        || from == &DataType::Null
        || (matches!(from, &JSON | &JSONB) && matches!(to, &JSON | &JSONB))
        || (from == &JSONB && (to == &DataType::Boolean || operators::is_number(to)))
        || matches!((types::item_of(from), types::item_of(to)), (Some(a), Some(b)) if castable(a, b).is_ok());
    if ok {
        Ok(())
    } else {
        Err(operators::cannot_cast(from, to))
    }
}

/// A scalar function call with new arguments.
pub(super) fn with_args(f: &ScalarFunction, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&f.func), args))
}
