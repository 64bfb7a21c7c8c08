//! Rewrites of the syntax tree before DataFusion's planner sees it.
//!
//! - Integer literals get PostgreSQL's types; ordinals and limits stay plain numbers.
//! - Every expression that is not below another one is marked for [`super::typing`].
//! - Unnamed result columns get PostgreSQL's names; those that are, or beside a wildcard may be, repeated are told apart by
//!   [`super::names::MARK`]. [`super::derived`] takes the mark away where it turns out to be needless.
//! - `now()` and its kin become the statement's timestamp, or an error in a streaming query.
//! - `TUMBLE(relation, column, width[, offset])` becomes a derived table:
//!
//! ```text
//! (SELECT *, date_bin(width, column, epoch + offset) AS window_start,
//!            date_bin(width, column, epoch + offset) + width AS window_end FROM relation) AS relation
//! ```

use std::collections::HashMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    self, BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident,
    JoinConstraint, JoinOperator, LimitClause, ObjectName, OrderByKind, Query, Select, SelectItem, SetExpr,
    TableFactor, TimezoneInfo, Value, ValueWithSpan, VisitMut, VisitorMut, WindowType,
};

use super::derived;
use super::ext::{fold, object_name};
use super::literals::{frame_offsets, interval_text, number_literal, row_comparison, unary};
use super::names::{MARK, column_name};
use super::syntax::{cast, condition, function, keep_number, null, string, typed};
use super::windows::table_factor;
use crate::{PlanError, Result};

/// What a query is bound for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Runs once, at a moment.
    Batch {
        /// What `now()` answers.
        now_us: i64,
    },
    /// Is maintained for ever.
    Streaming,
}

/// Applies all rewrites to a query.
pub(super) fn query(q: &mut Query, mode: Mode) -> Result<()> {
    run(q, mode)
}

/// Applies all rewrites to an expression that stands alone, such as a DEFAULT, and marks it for typing.
pub(super) fn expr(e: &mut Expr, mode: Mode) -> Result<()> {
    run(e, mode)?;
    *e = typed(e.clone());
    Ok(())
}

fn run<T: VisitMut>(t: &mut T, mode: Mode) -> Result<()> {
    let mut rewriter = Rewriter { mode };
    match VisitMut::visit(t, &mut rewriter) {
        ControlFlow::Break(e) => Err(e),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Rewriter {
    mode: Mode,
}

type Flow = ControlFlow<PlanError>;

fn flow(r: Result<()>) -> Flow {
    match r {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => ControlFlow::Break(e),
    }
}

/// LIMIT and OFFSET are bigint.
fn count(e: &mut Expr) {
    if !keep_number(e) && !matches!(e, Expr::Value(ValueWithSpan { value: Value::Null, .. })) {
        *e = typed(cast(std::mem::replace(e, null()), ast::DataType::Int8(None)));
    }
}

fn sort_key(e: &mut Expr) {
    if !keep_number(e) {
        *e = typed(std::mem::replace(e, null()));
    }
}

impl VisitorMut for Rewriter {
    type Break = PlanError;

    fn pre_visit_query(&mut self, q: &mut Query) -> Flow {
        flow(prepare_query(q))
    }

    fn pre_visit_select(&mut self, s: &mut Select) -> Flow {
        flow(prepare_select(s))
    }

    fn pre_visit_table_factor(&mut self, t: &mut TableFactor) -> Flow {
        if let ControlFlow::Break(e) = flow(super::sets::table_factor(t, self.mode == Mode::Streaming)) {
            return ControlFlow::Break(e);
        }
        flow(table_factor(t))
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> Flow {
        flow(self.before(e))
    }

    fn post_visit_expr(&mut self, e: &mut Expr) -> Flow {
        if let Expr::Function(Function {
            over: Some(WindowType::WindowSpec(spec)),
            ..
        }) = e
        {
            if let ControlFlow::Break(e) = flow(super::named_windows::refuse_rest(spec.window_name.as_ref())) {
                return ControlFlow::Break(e);
            }
            // DataFusion's planner reads unmarked numbers only.
            frame_offsets(spec, false);
        }
        flow(number_literal(e))
    }
}

fn prepare_query(q: &mut Query) -> Result<()> {
    if !q.locks.is_empty() {
        return Err(PlanError::unsupported("SELECT … FOR UPDATE/SHARE is not supported")
            .hint("Transactions detect conflicting writes by themselves; retry on error 40001."));
    }
    if let Some(with) = &q.with
        && with.recursive
    {
        return Err(PlanError::unsupported("WITH RECURSIVE is not supported")
            .hint("Unroll the recursion to a fixed depth with joins."));
    }
    for cte in q.with.iter_mut().flat_map(|w| &mut w.cte_tables) {
        // As a derived table, so that the names of its columns and the types of its branches are settled like one's.
        if derived::is_special(&cte.query) {
            *cte.query = derived::around(cte.query.as_ref().clone())?;
        }
    }
    super::named_windows::resolve_query(q)?;
    super::grouping::distinct_on(q)?;
    derived::order_by_names(q)?;
    if let Some(order) = &mut q.order_by {
        match &mut order.kind {
            OrderByKind::Expressions(keys) => keys.iter_mut().for_each(|k| sort_key(&mut k.expr)),
            OrderByKind::All(_) => return Err(PlanError::new("42601", "syntax error at or near \"ALL\"")),
        }
    }
    if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &mut q.limit_clause {
        if let Some(l) = limit {
            count(l);
        }
        if let Some(o) = offset {
            count(&mut o.value);
        }
    }
    if let Some(fetch) = q.fetch.take() {
        if fetch.with_ties || fetch.percent {
            return Err(
                PlanError::unsupported("FETCH FIRST … WITH TIES is not supported").hint("Use rank() in a subquery.")
            );
        }
        let mut count = fetch
            .quantity
            .unwrap_or_else(|| Expr::Value(ValueWithSpan::from(Value::Number("1".into(), true))));
        keep_number(&mut count);
        match &mut q.limit_clause {
            Some(LimitClause::LimitOffset { limit, .. }) => *limit = Some(count),
            _ => {
                q.limit_clause = Some(LimitClause::LimitOffset {
                    limit: Some(count),
                    offset: None,
                    limit_by: Vec::new(),
                });
            }
        }
    }
    super::unions::settle_values(&mut q.body)?;
    prepare_body(&mut q.body)
}

fn prepare_body(body: &mut SetExpr) -> Result<()> {
    match body {
        SetExpr::Values(values) => {
            for row in &mut values.rows {
                for cell in &mut row.content {
                    *cell = typed(std::mem::replace(cell, null()));
                }
            }
            Ok(())
        }
        SetExpr::SetOperation { left, right, .. } => {
            prepare_body(left)?;
            prepare_body(right)
        }
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => Err(
            PlanError::unsupported("data-modifying statements in WITH or subqueries are not supported")
                .hint("Run them as separate statements of one transaction."),
        ),
        _ => Ok(()),
    }
}

fn prepare_select(s: &mut Select) -> Result<()> {
    if s.into.is_some() {
        return Err(
            PlanError::unsupported("SELECT … INTO is not supported").hint("Use CREATE TABLE and INSERT … SELECT.")
        );
    }
    super::grouping::group_by(s)?;
    super::sets::select(s)?;
    super::named_windows::resolve(s)?;
    name_columns(s);
    if let Some(e) = s.selection.take() {
        s.selection = Some(condition(e, "WHERE"));
    }
    if let Some(e) = s.having.take() {
        s.having = Some(condition(e, "HAVING"));
    }
    if let GroupByExpr::Expressions(keys, _) = &mut s.group_by {
        keys.iter_mut().for_each(sort_key);
    }
    for from in &mut s.from {
        for join in &mut from.joins {
            if let Some(JoinConstraint::On(e)) = join_constraint(&mut join.join_operator) {
                *e = condition(std::mem::replace(e, null()), "JOIN/ON");
            }
        }
    }
    Ok(())
}

/// What a join of rows that both sides have is made on.
pub(super) fn join_constraint(op: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match op {
        JoinOperator::Join(c)
        | JoinOperator::Inner(c)
        | JoinOperator::Left(c)
        | JoinOperator::LeftOuter(c)
        | JoinOperator::Right(c)
        | JoinOperator::RightOuter(c)
        | JoinOperator::FullOuter(c)
        | JoinOperator::CrossJoin(c) => Some(c),
        _ => None,
    }
}

/// [`join_constraint`] of a join that stays as it is.
pub(super) fn join_constraint_of(op: &JoinOperator) -> Option<&JoinConstraint> {
    match op {
        JoinOperator::Join(c)
        | JoinOperator::Inner(c)
        | JoinOperator::Left(c)
        | JoinOperator::LeftOuter(c)
        | JoinOperator::Right(c)
        | JoinOperator::RightOuter(c)
        | JoinOperator::FullOuter(c)
        | JoinOperator::CrossJoin(c) => Some(c),
        _ => None,
    }
}

/// What makes two plain columns collide in a projection.
pub(super) fn item_key(item: &SelectItem) -> Option<(String, bool)> {
    match item {
        SelectItem::UnnamedExpr(e @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_))) => {
            Some((column_name(e), true))
        }
        SelectItem::UnnamedExpr(e) => Some((column_name(e), false)),
        SelectItem::ExprWithAlias { alias, .. } => Some((fold(alias), false)),
        _ => None,
    }
}

fn name_columns(s: &mut Select) {
    let wildcard = derived::has_wildcard(s);
    let mut uses: HashMap<String, usize> = HashMap::new();
    for (name, _) in s.projection.iter().filter_map(item_key) {
        *uses.entry(name).or_default() += 1;
    }
    let mut number: HashMap<String, usize> = HashMap::new();
    for item in &mut s.projection {
        let Some((name, plain)) = item_key(item) else { continue };
        let repeated = uses.get(&name).copied().unwrap_or(0) > 1 || wildcard;
        let alias = if repeated {
            let n = number.entry(name.clone()).or_default();
            *n += 1;
            format!("{name}{MARK}{n}")
        } else {
            name
        };
        let (expr, keep) = match item {
            SelectItem::UnnamedExpr(e) => (std::mem::replace(e, null()), plain && !repeated),
            SelectItem::ExprWithAlias { expr, .. } => (std::mem::replace(expr, null()), false),
            _ => continue,
        };
        *item = if keep {
            SelectItem::UnnamedExpr(expr)
        } else {
            SelectItem::ExprWithAlias {
                expr: typed(expr),
                alias: Ident::with_quote('"', alias),
            }
        };
    }
}

impl Rewriter {
    fn before(&mut self, e: &mut Expr) -> Result<()> {
        match e {
            Expr::BinaryOp {
                op: BinaryOperator::PGCustomBinaryOperator(parts),
                ..
            } if parts.first().is_some_and(|p| p == "pg_catalog") => {
                let plain = catalog_operator(parts.last().map_or("", String::as_str))?;
                if let Expr::BinaryOp { op, .. } = e {
                    *op = plain;
                }
            }
            Expr::Collate { expr, collation } => {
                let (_, name) = object_name(collation)?;
                if !["default", "C", "c", "POSIX", "posix", "ucs_basic"].contains(&name.as_str()) {
                    return Err(PlanError::unsupported(format!("collation \"{name}\" is not supported"))
                        .hint("Text is ordered by its bytes (\"C\")."));
                }
                *e = std::mem::replace(expr.as_mut(), null());
                self.before(e)?;
            }
            Expr::Interval(i) => {
                if let Some(text) = interval_text(i)? {
                    *e = cast(
                        string(&text),
                        ast::DataType::Interval {
                            fields: None,
                            precision: None,
                        },
                    );
                }
            }
            Expr::Array(_)
            | Expr::AnyOp { .. }
            | Expr::AllOp { .. }
            | Expr::CompoundFieldAccess { .. }
            | Expr::Like { any: true, .. }
            | Expr::ILike { any: true, .. } => super::subscripts::rewrite(e)?,
            Expr::Ceil { expr, .. } => *e = function("ceil", vec![std::mem::replace(expr.as_mut(), null())]),
            Expr::Floor { expr, .. } => *e = function("floor", vec![std::mem::replace(expr.as_mut(), null())]),
            Expr::Function(_) => self.function(e)?,
            Expr::UnaryOp { op, expr } => {
                let operand = std::mem::replace(expr.as_mut(), null());
                *e = unary(*op, operand);
            }
            Expr::BinaryOp {
                left,
                op: op @ (BinaryOperator::Eq | BinaryOperator::NotEq),
                right,
            } => {
                if let (Expr::Tuple(l), Expr::Tuple(r)) = (left.as_ref(), right.as_ref()) {
                    *e = row_comparison(l, op, r)?;
                }
            }
            Expr::InList { expr, list, negated } if matches!(expr.as_ref(), Expr::Tuple(_)) => {
                *e = super::literals::row_in_list(expr, list, *negated)?;
            }
            Expr::InSubquery {
                expr,
                subquery,
                negated,
            } => {
                if let Expr::Tuple(row) = expr.as_ref() {
                    *e = super::literals::row_in_subquery(row, subquery, *negated)?;
                }
            }
            Expr::Cast { expr, .. } => {
                // A scientific literal is read by the target's own rules, so `1e300::float8` need not be a numeric first.
                if let Expr::Value(v) = expr.as_mut()
                    && let Value::Number(n, false) = &v.value
                    && n.contains(['e', 'E'])
                {
                    v.value = Value::SingleQuotedString(n.clone());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn function(&mut self, e: &mut Expr) -> Result<()> {
        let Expr::Function(f) = e else { return Ok(()) };
        let (schema, name) = object_name(&f.name)?;
        if let ("array", FunctionArguments::Subquery(q)) = (name.as_str(), &f.args) {
            *e = super::subscripts::array_of_query(q)?;
            return Ok(());
        }
        if f.over.is_none()
            && f.filter.is_none()
            && let Some(moment) = Moment::of(&name)
        {
            *e = self.moment(&name, moment)?;
            return Ok(());
        }
        if name == "mod"
            && f.over.is_none()
            && let Some((a, b)) = two_arguments(f)
        {
            *e = Expr::Nested(Box::new(Expr::BinaryOp {
                left: Box::new(Expr::Nested(Box::new(a))),
                op: BinaryOperator::Modulo,
                right: Box::new(Expr::Nested(Box::new(b))),
            }));
            return Ok(());
        }
        if let Some(other) = super::aggregates::rewrite(f, &name)? {
            *e = other;
            return self.before(e);
        }
        if matches!(name.as_str(), "array_agg" | "string_agg") {
            super::subscripts::order_distinct(f);
        }
        if name == "every" {
            f.name = ObjectName::from(vec![Ident::new("bool_and")]);
        }
        if name == "variance" {
            f.name = ObjectName::from(vec![Ident::new("var_samp")]);
        }
        if let Some(WindowType::WindowSpec(spec)) = &mut f.over {
            super::window_calls::offsets_as_arguments(spec, &mut f.args);
        }
        if let Some(condition_) = f.filter.take() {
            f.filter = Some(Box::new(condition(*condition_, "FILTER")));
        }
        if schema.as_deref() == Some("pg_catalog") {
            f.name = ObjectName::from(vec![Ident::with_quote('"', name)]);
        }
        Ok(())
    }

    fn moment(&self, name: &str, moment: Moment) -> Result<Expr> {
        let Mode::Batch { now_us } = self.mode else {
            return streaming_moment(name, moment);
        };
        let text = super::datetime::format_timestamptz(now_us);
        let timestamptz = ast::DataType::Timestamp(None, TimezoneInfo::WithTimeZone);
        Ok(match moment {
            Moment::Timestamptz => cast(string(&text), timestamptz),
            Moment::Timestamp => cast(string(&text), ast::DataType::Timestamp(None, TimezoneInfo::None)),
            Moment::Date => cast(string(&text), ast::DataType::Date),
            Moment::Time => cast(string(&text), ast::DataType::Time(None, TimezoneInfo::None)),
            Moment::Timetz => cast(string(&text), ast::DataType::Time(None, TimezoneInfo::WithTimeZone)),
        })
    }
}

/// In a view the time is the epoch's timestamp, as a variable: see [`super::NOW`].
fn streaming_moment(name: &str, moment: Moment) -> Result<Expr> {
    let now = Expr::Identifier(Ident::new(super::NOW));
    Ok(match moment {
        Moment::Timestamptz => now,
        Moment::Timestamp => cast(now, ast::DataType::Timestamp(None, TimezoneInfo::None)),
        Moment::Date => cast(now, ast::DataType::Date),
        Moment::Time | Moment::Timetz => {
            return Err(
                PlanError::unsupported(format!("{name} is not supported in a materialized view"))
                    .hint("Compare with current_timestamp."),
            );
        }
    })
}

/// Functions that tell the time.
#[derive(Clone, Copy)]
enum Moment {
    Timestamptz,
    Timestamp,
    Date,
    Time,
    Timetz,
}

impl Moment {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "now" | "current_timestamp" | "transaction_timestamp" | "statement_timestamp" | "clock_timestamp" => {
                Self::Timestamptz
            }
            "localtimestamp" => Self::Timestamp,
            "current_date" => Self::Date,
            "localtime" => Self::Time,
            "current_time" => Self::Timetz,
            _ => return None,
        })
    }
}

/// Is the function `now()` or one of its kin?
pub(super) fn tells_time(name: &str) -> bool {
    Moment::of(name).is_some()
}

fn catalog_operator(op: &str) -> Result<BinaryOperator> {
    use BinaryOperator as B;
    Ok(match op {
        "=" => B::Eq,
        "<>" | "!=" => B::NotEq,
        "<" => B::Lt,
        "<=" => B::LtEq,
        ">" => B::Gt,
        ">=" => B::GtEq,
        "+" => B::Plus,
        "-" => B::Minus,
        "*" => B::Multiply,
        "/" => B::Divide,
        "%" => B::Modulo,
        "||" => B::StringConcat,
        "~" => B::PGRegexMatch,
        "~*" => B::PGRegexIMatch,
        "!~" => B::PGRegexNotMatch,
        "!~*" => B::PGRegexNotIMatch,
        "~~" => B::PGLikeMatch,
        "!~~" => B::PGNotLikeMatch,
        "~~*" => B::PGILikeMatch,
        "!~~*" => B::PGNotILikeMatch,
        _ => {
            return Err(PlanError::unsupported(format!(
                "operator pg_catalog.{op} is not supported"
            )));
        }
    })
}

fn two_arguments(f: &mut Function) -> Option<(Expr, Expr)> {
    let FunctionArguments::List(list) = &mut f.args else {
        return None;
    };
    match list.args.as_mut_slice() {
        [
            FunctionArg::Unnamed(FunctionArgExpr::Expr(a)),
            FunctionArg::Unnamed(FunctionArgExpr::Expr(b)),
        ] => Some((std::mem::replace(a, null()), std::mem::replace(b, null()))),
        _ => None,
    }
}
