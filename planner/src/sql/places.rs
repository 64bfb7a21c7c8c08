//! Where aggregates and window functions may stand, and what a call may carry, judged on the statement as it is written. DataFusion's
//! planner passes over what it does not look for there: `abs(x) OVER ()` would be `abs(x)`.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::execution::SessionState;
use sqlparser::ast::{
    Assignment, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArguments, GroupByExpr, Join, JoinConstraint, LimitClause, NamedWindowExpr, OrderBy, OrderByExpr,
    OrderByKind, Query, Select, SelectItem, SetExpr, Spanned, TableFactor, TableWithJoins, UnaryOperator, Value,
    ValueWithSpan, Visit, Visitor, WindowFrameBound, WindowFrameUnits, WindowSpec, WindowType,
};
use sqlparser::tokenizer::Location;

use super::Binder;
use super::derived::has_wildcard;
use super::ext::{fold, object_name};
use super::names::column_name;
use super::parse::Lines;
use super::rewrite::join_constraint_of;
use crate::{PlanError, Result};

/// Functions that need OVER.
const WINDOW_FUNCTIONS: [&str; 11] = [
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "first_value",
    "last_value",
    "nth_value",
];

/// What an expression may contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    aggregates: Option<Refusal>,
    windows: Option<Refusal>,
}

/// How a call is refused.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// The clause cannot have one.
    Clause(&'static str),
    /// Within another call.
    Within(&'static str, &'static str),
}

impl Place {
    /// Select lists and ORDER BY.
    const FREE: Self = Self {
        aggregates: None,
        windows: None,
    };

    /// A clause that is computed for single rows.
    pub const fn clause(name: &'static str) -> Self {
        Self {
            aggregates: Some(Refusal::Clause(name)),
            windows: Some(Refusal::Clause(name)),
        }
    }

    /// A clause that is computed for groups.
    const fn grouped(name: &'static str) -> Self {
        Self {
            aggregates: None,
            windows: Some(Refusal::Clause(name)),
        }
    }

    fn with_windows(self, windows: Refusal) -> Self {
        Self {
            windows: Some(windows),
            ..self
        }
    }
}

const IN_AGGREGATE: Place = Place {
    aggregates: Some(Refusal::Within("42803", "aggregate function calls cannot be nested")),
    windows: Some(Refusal::Within(
        "42803",
        "aggregate function calls cannot contain window function calls",
    )),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Window,
    Aggregate,
    Scalar,
    /// No function, or one that the planner below judges.
    Other,
}

/// Judges one statement.
pub(super) struct Places<'a> {
    binder: &'a Binder,
    text: &'a str,
}

/// The functions that every session has.
static FUNCTIONS: LazyLock<SessionState> = LazyLock::new(|| super::pg_session_state(1, None));

impl<'a> Places<'a> {
    /// `text` serves error positions.
    pub fn new(binder: &'a Binder, text: &'a str) -> Self {
        Self { binder, text }
    }

    /// The values, assignments and results of a statement that writes. Its queries are judged when they are bound.
    ///
    /// # Errors
    /// As [`Places::query`].
    pub fn write(
        &self,
        rows: &[Vec<Expr>],
        assignments: &[Assignment],
        returning: Option<&[SelectItem]>,
    ) -> Result<()> {
        self.exprs(rows.iter().flatten(), Place::clause("VALUES"))?;
        self.exprs(assignments.iter().map(|a| &a.value), Place::clause("UPDATE"))?;
        self.items(returning.unwrap_or_default(), Place::clause("RETURNING"))
    }

    /// A query with all that is below it.
    ///
    /// # Errors
    /// PostgreSQL's, for a call that may not stand where it does or not carry what it does.
    pub fn query(&self, q: &Query) -> Result<()> {
        crate::interrupt::check()?;
        for cte in q.with.iter().flat_map(|w| &w.cte_tables) {
            self.query(&cte.query)?;
        }
        self.body(&q.body)?;
        if let Some(order) = &q.order_by {
            self.order_by(order, &q.body)?;
        }
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &q.limit_clause {
            if let Some(limit) = limit {
                self.expr(limit, Place::clause("LIMIT"))?;
            }
            if let Some(offset) = offset {
                self.expr(&offset.value, Place::clause("OFFSET"))?;
            }
        }
        match q.fetch.as_ref().and_then(|f| f.quantity.as_ref()) {
            Some(count) => self.expr(count, Place::clause("LIMIT")),
            None => Ok(()),
        }
    }

    /// An expression at a place.
    ///
    /// # Errors
    /// As [`Places::query`].
    pub fn expr(&self, e: &Expr, place: Place) -> Result<()> {
        let mut walk = Walk {
            places: self,
            place,
            done: 0,
        };
        match e.visit(&mut walk) {
            ControlFlow::Break(e) => Err(e),
            ControlFlow::Continue(()) => Ok(()),
        }
    }

    fn exprs<'e>(&self, all: impl IntoIterator<Item = &'e Expr>, place: Place) -> Result<()> {
        all.into_iter().try_for_each(|e| self.expr(e, place))
    }

    /// A list of results.
    ///
    /// # Errors
    /// As [`Places::query`].
    fn items(&self, items: &[SelectItem], place: Place) -> Result<()> {
        items.iter().try_for_each(|item| match item {
            SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. } => self.expr(e, place),
            _ => Ok(()),
        })
    }

    fn body(&self, body: &SetExpr) -> Result<()> {
        match body {
            SetExpr::Select(s) => self.select(s),
            SetExpr::Query(q) => self.query(q),
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)
            }
            SetExpr::Values(values) => {
                self.exprs(values.rows.iter().flat_map(|row| &row.content), Place::clause("VALUES"))
            }
            _ => Ok(()),
        }
    }

    fn select(&self, s: &Select) -> Result<()> {
        s.from.iter().try_for_each(|t| self.tables(t))?;
        self.items(&s.projection, Place::FREE)?;
        if let Some(sqlparser::ast::Distinct::On(keys)) = &s.distinct {
            self.exprs(keys, Place::FREE)?;
        }
        self.exprs(&s.selection, Place::clause("WHERE"))?;
        if let GroupByExpr::Expressions(keys, _) = &s.group_by {
            self.exprs(keys, Place::clause("GROUP BY"))?;
            keys.iter().try_for_each(|key| self.position(key, "GROUP BY"))?;
        }
        self.exprs(&s.having, Place::grouped("HAVING"))?;
        s.named_window.iter().try_for_each(|w| match &w.1 {
            NamedWindowExpr::WindowSpec(spec) => self.window(spec, Place::FREE),
            NamedWindowExpr::NamedWindow(_) => Ok(()),
        })
    }

    fn tables(&self, t: &TableWithJoins) -> Result<()> {
        self.table(&t.relation)?;
        for join in &t.joins {
            self.table(&join.relation)?;
            self.join(join)?;
        }
        Ok(())
    }

    fn table(&self, t: &TableFactor) -> Result<()> {
        match t {
            TableFactor::Derived { subquery, .. } => self.query(subquery),
            TableFactor::NestedJoin { table_with_joins, .. } => self.tables(table_with_joins),
            TableFactor::Function { args, .. } => args
                .iter()
                .try_for_each(|a| self.argument(a, Place::clause("functions in FROM"))),
            TableFactor::Table { args: Some(args), .. } => args
                .args
                .iter()
                .try_for_each(|a| self.argument(a, Place::clause("functions in FROM"))),
            _ => Ok(()),
        }
    }

    fn join(&self, join: &Join) -> Result<()> {
        match join_constraint_of(&join.join_operator) {
            Some(JoinConstraint::On(e)) => self.expr(e, Place::clause("JOIN conditions")),
            Some(JoinConstraint::Using(columns)) => {
                let names: Vec<String> = columns
                    .iter()
                    .map(|c| object_name(c).map(|(_, name)| name))
                    .collect::<Result<_>>()?;
                match names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
                    Some((_, twice)) => Err(PlanError::new(
                        "42701",
                        format!("column name \"{twice}\" appears more than once in USING clause"),
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn order_by(&self, order: &OrderBy, body: &SetExpr) -> Result<()> {
        let OrderByKind::Expressions(keys) = &order.kind else {
            return Ok(());
        };
        let united = matches!(body, SetExpr::SetOperation { .. });
        for key in keys {
            self.position(&key.expr, "ORDER BY")?;
            if united {
                self.united_key(&key.expr, body)?;
            }
            self.expr(&key.expr, Place::FREE)?;
        }
        Ok(())
    }

    /// A number is a position, which is not negative.
    fn position(&self, key: &Expr, clause: &str) -> Result<()> {
        let Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } = key
        else {
            return Ok(());
        };
        match expr.as_ref() {
            Expr::Value(ValueWithSpan {
                value: Value::Number(n, _),
                ..
            }) if n.bytes().all(|b| b.is_ascii_digit()) => Err(self.at(
                key.span().start,
                PlanError::new("42P10", format!("{clause} position -{n} is not in select list")),
            )),
            _ => Ok(()),
        }
    }

    /// The rows of a set operation are sorted by its columns only.
    fn united_key(&self, key: &Expr, body: &SetExpr) -> Result<()> {
        let refused = |e: PlanError| Err(self.at(key.span().start, e));
        match key {
            Expr::Nested(inner) => self.united_key(inner, body),
            Expr::Value(_) => Ok(()),
            Expr::Identifier(name) => {
                let name = fold(name);
                match result_names(body) {
                    Some(names) if !names.contains(&name) => {
                        refused(PlanError::new("42703", format!("column \"{name}\" does not exist")))
                    }
                    _ => Ok(()),
                }
            }
            Expr::CompoundIdentifier(parts) => {
                let table = parts.iter().nth_back(1).map(fold).unwrap_or_default();
                refused(PlanError::new(
                    "42P01",
                    format!("missing FROM-clause entry for table \"{table}\""),
                ))
            }
            Expr::Collate { expr, .. } => self.united_key(expr, body),
            _ => refused(
                PlanError::unsupported("invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
                    .detail("Only result column names can be used, not expressions or functions.")
                    .hint("Add the expression/function to every SELECT, or move the UNION into a FROM clause."),
            ),
        }
    }

    fn kind(&self, name: &str) -> Kind {
        if WINDOW_FUNCTIONS.contains(&name) {
            Kind::Window
        } else if name == "grouping" {
            Kind::Other
        } else if FUNCTIONS.aggregate_functions().contains_key(name) || matches!(name, "every" | "variance") {
            Kind::Aggregate
        } else if FUNCTIONS.scalar_functions().contains_key(name)
            || self.binder.extra_udfs.iter().any(|f| f.name() == name)
            || super::rewrite::tells_time(name)
            || name == "mod"
        {
            Kind::Scalar
        } else {
            Kind::Other
        }
    }

    fn function(&self, f: &Function, place: Place) -> Result<()> {
        let (schema, name) = object_name(&f.name)?;
        let kind = match schema.as_deref() {
            // Of a hypothetical row: an aggregate by the same name.
            None | Some("pg_catalog") if super::aggregates::is_hypothetical(&name) && !f.within_group.is_empty() => {
                Kind::Aggregate
            }
            None | Some("pg_catalog") => self.kind(&name),
            Some(_) => Kind::Other,
        };
        let start = f.name.span().start;
        let carried = Carried::of(f);
        carried.judge(f, &name, kind).map_err(|e| self.at(start, e))?;
        let windowed = f.over.is_some() && kind != Kind::Scalar;
        let refusal = match kind {
            _ if windowed => place.windows.map(|r| r.windows()),
            Kind::Aggregate => place.aggregates.map(|r| r.aggregates()),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Err(self.at(start, refusal));
        }
        let inside = if windowed {
            place.with_windows(Refusal::Within("42P20", "window function calls cannot be nested"))
        } else if kind == Kind::Aggregate {
            IN_AGGREGATE
        } else {
            place
        };
        match &f.args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(q) => self.query(q)?,
            FunctionArguments::List(list) => {
                list.args.iter().try_for_each(|a| self.argument(a, inside))?;
                self.keys(carried.order_by, inside)?;
            }
        }
        self.keys(&f.within_group, inside)?;
        if let Some(filter) = &f.filter {
            self.expr(filter, Place::clause("FILTER"))?;
        }
        match &f.over {
            Some(WindowType::WindowSpec(spec)) => self.window(spec, place),
            _ => Ok(()),
        }
    }

    fn argument(&self, a: &FunctionArg, place: Place) -> Result<()> {
        match a {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e))
            | FunctionArg::Named {
                arg: FunctionArgExpr::Expr(e),
                ..
            }
            | FunctionArg::ExprNamed {
                arg: FunctionArgExpr::Expr(e),
                ..
            } => self.expr(e, place),
            _ => Ok(()),
        }
    }

    fn keys(&self, keys: &[OrderByExpr], place: Place) -> Result<()> {
        self.exprs(keys.iter().map(|k| &k.expr), place)
    }

    /// A window's definition, with PostgreSQL's rules for frames.
    fn window(&self, spec: &WindowSpec, place: Place) -> Result<()> {
        let place = place.with_windows(Refusal::Clause("window definitions"));
        self.exprs(&spec.partition_by, place)?;
        self.keys(&spec.order_by, place)?;
        let Some(frame) = &spec.window_frame else {
            return Ok(());
        };
        let wrong = |what: &str| Err(PlanError::new("42P20", what));
        use WindowFrameBound::{CurrentRow, Following, Preceding};
        match (&frame.start_bound, &frame.end_bound) {
            (Following(None), _) => return wrong("frame start cannot be UNBOUNDED FOLLOWING"),
            (_, Some(Preceding(None))) => return wrong("frame end cannot be UNBOUNDED PRECEDING"),
            (Following(_), None) => return wrong("frame starting from following row cannot end with current row"),
            (CurrentRow, Some(Preceding(_))) => {
                return wrong("frame starting from current row cannot have preceding rows");
            }
            (Following(_), Some(CurrentRow | Preceding(_))) => {
                return wrong("frame starting from following row cannot have preceding rows");
            }
            _ => {}
        }
        let clause = match frame.units {
            WindowFrameUnits::Rows => "window ROWS",
            WindowFrameUnits::Range => "window RANGE",
            WindowFrameUnits::Groups => "window GROUPS",
        };
        for bound in std::iter::once(&frame.start_bound).chain(&frame.end_bound) {
            if let Preceding(Some(offset)) | Following(Some(offset)) = bound {
                self.expr(offset, Place::clause(clause))?;
            }
        }
        Ok(())
    }

    /// An error at a place of the text, if that is known.
    fn at(&self, start: Location, e: PlanError) -> PlanError {
        if start.line == 0 {
            return e;
        }
        e.at(Lines::new(self.text).offset(start) + 1)
    }
}

impl Refusal {
    fn windows(self) -> PlanError {
        match self {
            Self::Clause(name) => PlanError::new("42P20", format!("window functions are not allowed in {name}"))
                .hint("Compute the window function in a subquery and filter its result."),
            Self::Within(code, what) => PlanError::new(code, what),
        }
    }

    fn aggregates(self) -> PlanError {
        match self {
            Self::Clause(name) => PlanError::new("42803", format!("aggregate functions are not allowed in {name}")),
            Self::Within(code, what) => PlanError::new(code, what),
        }
    }
}

/// What a call has besides its arguments.
struct Carried<'f> {
    distinct: bool,
    order_by: &'f [OrderByExpr],
}

impl<'f> Carried<'f> {
    fn of(f: &'f Function) -> Self {
        let FunctionArguments::List(list) = &f.args else {
            return Self {
                distinct: false,
                order_by: &[],
            };
        };
        let order_by = list.clauses.iter().find_map(|c| match c {
            FunctionArgumentClause::OrderBy(keys) => Some(keys.as_slice()),
            _ => None,
        });
        Self {
            distinct: list.duplicate_treatment == Some(DuplicateTreatment::Distinct),
            order_by: order_by.unwrap_or_default(),
        }
    }

    fn judge(&self, f: &Function, name: &str, kind: Kind) -> Result<()> {
        let (within_group, filter, over) = (!f.within_group.is_empty(), f.filter.is_some(), f.over.is_some());
        let order_by = !self.order_by.is_empty();
        let no_aggregate = |what: &str| {
            let message = format!("{what} specified, but {name} is not an aggregate function");
            Err(PlanError::new("42809", message))
        };
        let unsupported = |what: &str| Err(PlanError::unsupported(what));
        match kind {
            Kind::Other => Ok(()),
            Kind::Scalar if self.distinct => no_aggregate("DISTINCT"),
            Kind::Scalar if within_group => no_aggregate("WITHIN GROUP"),
            Kind::Scalar if order_by => no_aggregate("ORDER BY"),
            Kind::Scalar if filter => no_aggregate("FILTER"),
            Kind::Scalar if over => Err(PlanError::new(
                "42809",
                format!("OVER specified, but {name} is not a window function nor an aggregate function"),
            )),
            Kind::Scalar => Ok(()),
            Kind::Window if !over => {
                let ranks = super::aggregates::is_hypothetical(name);
                let given = matches!(&f.args, FunctionArguments::List(list) if !list.args.is_empty());
                Err(if ranks && given {
                    super::aggregates::lacks_within_group(name)
                } else {
                    PlanError::new("42809", format!("window function {name} requires an OVER clause"))
                })
            }
            Kind::Aggregate if !over => Ok(()),
            _ if within_group => Err(super::aggregates::over_ordered_set(name)),
            _ if self.distinct => unsupported("DISTINCT is not implemented for window functions"),
            _ if order_by => unsupported("aggregate ORDER BY is not implemented for window functions"),
            Kind::Window if filter => unsupported("FILTER is not implemented for non-aggregate window functions"),
            _ => Ok(()),
        }
    }
}

/// The names of a set operation's columns: those of its first SELECT, if they are known from its text.
fn result_names(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::SetOperation { left, .. } => result_names(left),
        SetExpr::Query(q) => result_names(&q.body),
        SetExpr::Select(s) if !has_wildcard(s) => s
            .projection
            .iter()
            .map(|item| match item {
                SelectItem::UnnamedExpr(e) => Some(column_name(e)),
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                _ => None,
            })
            .collect(),
        SetExpr::Values(values) => {
            let width = values.rows.first().map_or(0, |row| row.content.len());
            Some((1..=width).map(|n| format!("column{n}")).collect())
        }
        _ => None,
    }
}

/// The calls of one expression; what is below a call or a query has been judged with it.
struct Walk<'a> {
    places: &'a Places<'a>,
    place: Place,
    done: usize,
}

impl Walk<'_> {
    fn enter(&mut self, judge: impl FnOnce(&Places<'_>, Place) -> Result<()>) -> ControlFlow<PlanError> {
        if self.done == 0
            && let Err(e) = judge(self.places, self.place)
        {
            return ControlFlow::Break(e);
        }
        self.done += 1;
        ControlFlow::Continue(())
    }
}

impl Visitor for Walk<'_> {
    type Break = PlanError;

    fn pre_visit_query(&mut self, q: &Query) -> ControlFlow<PlanError> {
        self.enter(|places, _| places.query(q))
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<PlanError> {
        self.done -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<PlanError> {
        match e {
            Expr::Function(f) => self.enter(|places, place| places.function(f, place)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, e: &Expr) -> ControlFlow<PlanError> {
        if let Expr::Function(_) = e {
            self.done -= 1;
        }
        ControlFlow::Continue(())
    }
}
