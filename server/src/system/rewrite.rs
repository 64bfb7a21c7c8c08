//! Queries on the system catalogs use forms that the planner lacks. They are rewritten into plain ones before binding:
//!
//! - `'t'::regclass` → the relation's OID; `x::regclass::text` → its name; likewise regtype, regproc, regnamespace, regrole.
//! - A scalar subquery over system relations, which reads at most one row, gets an aggregate, so that it can be decorrelated.
//! - A SELECT that inner-joins a relation that is empty by nature (`pg_policy`, say) has no rows: only its column names stay.
//! - `ARRAY(SELECT … FROM empty)` is `{}`.
//!
//! Only queries whose text speaks of system catalogs are touched.

use std::ops::ControlFlow;
use std::sync::Arc;

use levee_planner::sql::{Ast, Parsed};
use sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, JoinOperator, ObjectName, Query, Select, SelectItem, SetExpr, Statement, TableFactor,
    TableWithJoins, Value, VisitMut, VisitorMut,
};

use super::empty::is_empty_by_nature;

/// The statement to bind in place of `parsed`, if it is a query on system catalogs.
pub fn rewritten(parsed: &Parsed) -> Option<Parsed> {
    let text = parsed.text.to_lowercase();
    if !(text.contains("pg_") || text.contains("::reg") || text.contains("information_schema")) {
        return None;
    }
    let Ast::Sql(statement) = &parsed.ast else { return None };
    if !matches!(statement.as_ref(), Statement::Query(_)) {
        return None;
    }
    let mut statement = statement.as_ref().clone();
    let mut rewriter = Rewriter;
    let ControlFlow::Continue(()) = VisitMut::visit(&mut statement, &mut rewriter);
    Some(Parsed {
        ast: Ast::Sql(Arc::new(statement)),
        text: parsed.text.clone(),
        offset: parsed.offset,
    })
}

struct Rewriter;

impl VisitorMut for Rewriter {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, q: &mut Query) -> ControlFlow<Self::Break> {
        if empty_selects(&mut q.body) {
            q.order_by = None;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        match e {
            Expr::Function(f) => {
                if let Some(plain) = array_function(f) {
                    *e = plain;
                }
            }
            // No table has partitions, so the ancestors of one are none but itself.
            Expr::InSubquery {
                expr,
                subquery,
                negated: false,
            } if subquery.to_string().to_lowercase().contains("pg_partition_ancestors") => {
                if let Some(table) = ancestors_of(subquery) {
                    *e = Expr::BinaryOp {
                        left: expr.clone(),
                        op: BinaryOperator::Eq,
                        right: Box::new(table),
                    };
                }
            }
            // No constraint is deferrable.
            Expr::Exists { subquery, .. } if subquery.to_string().to_lowercase().contains("condefer") => {
                *e = Expr::value(Value::Boolean(false));
            }
            Expr::AnyOp { right, .. } if right.to_string().to_lowercase().ends_with("reloptions") => {
                *e = Expr::value(Value::Boolean(false));
            }
            Expr::Subquery(q) if reads(q, "pg_collation") => *e = cast_text(Expr::value(Value::Null)),
            Expr::Subquery(q) => at_most_one_row(q),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::Cast { expr, data_type, .. } = e {
            if let DataType::Custom(name, _) = data_type
                && let Some(builtin) = builtin(&last_name(name))
            {
                *data_type = builtin;
            }
            if let Some(plain) = Self::cast(expr, &type_name(data_type)) {
                *e = plain;
            }
        }
        ControlFlow::Continue(())
    }
}

impl Rewriter {
    fn cast(e: &Expr, target: &str) -> Option<Expr> {
        let literal = match e {
            Expr::Value(v) => match &v.value {
                Value::SingleQuotedString(s) => Some(s.as_str()),
                _ => None,
            },
            _ => None,
        };
        match (target, literal) {
            ("regclass" | "regtype" | "regproc" | "regnamespace" | "regrole", Some(text)) => {
                Some(call(&format!("pg_oid_of_{target}"), vec![string(text)]))
            }
            ("regclass" | "regtype" | "regproc" | "regnamespace" | "regrole", None) => {
                Some(call(&format!("pg_name_of_{target}"), vec![e.clone()]))
            }
            // `x::regclass::oid`
            ("oid", None) => match e {
                Expr::Function(f) if last_name(&f.name).starts_with("pg_name_of_") => first_arg(f),
                Expr::Function(f) if last_name(&f.name).starts_with("pg_oid_of_") => Some(e.clone()),
                _ => None,
            },
            ("oid", Some(text)) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
                Some(Expr::value(Value::Number(text.to_owned(), false)))
            }
            // The server's name for internal one-byte text.
            ("char" | "name", _) => Some(cast_text(e.clone())),
            ("regclass[]" | "oid[]" | "text[]" | "int2[]" | "oidvector" | "int2vector" | "name[]", _) => {
                Some(cast_text(e.clone()))
            }
            _ => None,
        }
    }
}

/// `pg_catalog.text` and its like.
fn builtin(name: &str) -> Option<DataType> {
    Some(match name {
        "text" => DataType::Text,
        "int2" => DataType::Int2(None),
        "int4" => DataType::Int4(None),
        "int8" => DataType::Int8(None),
        "bool" => DataType::Bool,
        _ => return None,
    })
}

fn type_name(t: &DataType) -> String {
    match t {
        DataType::Regclass => "regclass".to_owned(),
        DataType::Custom(name, _) => last_name(name),
        other => other.to_string().to_lowercase(),
    }
}

fn last_name(name: &ObjectName) -> String {
    name.0
        .last()
        .and_then(|p| p.as_ident())
        .map_or_else(String::new, |i| i.value.to_lowercase())
}

fn string(text: &str) -> Expr {
    Expr::value(Value::SingleQuotedString(text.to_owned()))
}

fn cast_text(e: Expr) -> Expr {
    Expr::Cast {
        kind: CastKind::DoubleColon,
        expr: Box::new(e),
        data_type: DataType::Text,
        array: false,
        format: None,
    }
}

fn call(name: &str, args: Vec<Expr>) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args
                .into_iter()
                .map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e)))
                .collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn first_arg(f: &Function) -> Option<Expr> {
    let FunctionArguments::List(list) = &f.args else {
        return None;
    };
    match list.args.first()? {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Some(e.clone()),
        _ => None,
    }
}

/// `ARRAY(SELECT …)` and `array_to_string` over what is always empty here.
fn array_function(f: &Function) -> Option<Expr> {
    let name = last_name(&f.name);
    if name == "array" {
        let FunctionArguments::Subquery(q) = &f.args else {
            return None;
        };
        return body_is_empty(&q.body).then(|| string("{}"));
    }
    if name == "array_remove" {
        let mut inner = first_arg(f)?;
        while let Expr::Function(f) = &inner {
            inner = first_arg(f)?;
        }
        return Some(inner);
    }
    if name != "array_to_string" {
        return None;
    }
    let text = first_arg(f)?.to_string().to_lowercase();
    if text.contains("pg_options_to_table(ftoptions)") {
        return Some(Expr::Identifier(Ident::new("ftoptions")));
    }
    if text.contains("pg_options_to_table(attfdwoptions)") {
        return Some(cast_text(Expr::value(Value::Null)));
    }
    if text.contains("reloptions") {
        return Some(string(""));
    }
    // Neither columns nor relations have privileges or policies of their own.
    if text.contains("attacl is not null") || text.contains("pg_policy") {
        return Some(cast_text(string("")));
    }
    text.ends_with("acl").then(|| cast_text(Expr::value(Value::Null)))
}

/// The argument of `SELECT pg_partition_ancestors(…)`, as a number.
fn ancestors_of(q: &Query) -> Option<Expr> {
    let mut body = q.body.as_ref();
    while let SetExpr::SetOperation { left, .. } = body {
        body = left.as_ref();
    }
    let SetExpr::Select(select) = body else { return None };
    let [SelectItem::UnnamedExpr(Expr::Function(f))] = select.projection.as_slice() else {
        return None;
    };
    let argument = first_arg(f)?;
    match &argument {
        Expr::Value(v) => match &v.value {
            Value::SingleQuotedString(s) => Some(Expr::value(Value::Number(s.clone(), false))),
            _ => Some(argument),
        },
        _ => Some(argument),
    }
}

/// Adds `max(…)` to a scalar subquery without an aggregate.
fn at_most_one_row(q: &mut Query) {
    let SetExpr::Select(select) = q.body.as_mut() else {
        return;
    };
    let [item] = select.projection.as_mut_slice() else {
        return;
    };
    if select.from.is_empty() || !select.from.iter().all(is_system) {
        return;
    }
    let (SelectItem::UnnamedExpr(e) | SelectItem::ExprWithAlias { expr: e, .. }) = item else {
        return;
    };
    let text = e.to_string().to_lowercase();
    let aggregates = [
        "count(",
        "max(",
        "min(",
        "sum(",
        "string_agg(",
        "array_agg(",
        "bool_or(",
        "bool_and(",
    ];
    if aggregates.iter().any(|a| text.contains(a)) {
        return;
    }
    let inner = std::mem::replace(e, Expr::value(Value::Null));
    *e = call("max", vec![inner]);
    select.selection = select.selection.take().and_then(without_outer_flag);
    q.order_by = None;
    q.limit_clause = None;
}

/// Whether a subquery reads a relation. (Every column has its type's collation, so a column's own is NULL to psql.)
fn reads(q: &Query, relation: &str) -> bool {
    let SetExpr::Select(select) = q.body.as_ref() else {
        return false;
    };
    select.from.iter().any(|from| match &from.relation {
        TableFactor::Table { name, .. } => last_name(name) == relation,
        _ => false,
    })
}

/// Takes `a.atthasdef` out of a conjunction: a column of the outer query alone cannot be decorrelated, and defaults exist only
/// where it holds.
fn without_outer_flag(e: Expr) -> Option<Expr> {
    match e {
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => match (without_outer_flag(*left), without_outer_flag(*right)) {
            (Some(l), Some(r)) => Some(Expr::BinaryOp {
                left: Box::new(l),
                op: BinaryOperator::And,
                right: Box::new(r),
            }),
            (l, r) => l.or(r),
        },
        Expr::CompoundIdentifier(parts) if parts.last().is_some_and(|p| p.value.eq_ignore_ascii_case("atthasdef")) => {
            None
        }
        other => Some(other),
    }
}

fn is_system(from: &TableWithJoins) -> bool {
    let system = |t: &TableFactor| match t {
        TableFactor::Table { name, .. } => {
            let text = name.to_string().to_lowercase();
            text.starts_with("pg_") || text.starts_with("information_schema.")
        }
        _ => false,
    };
    system(&from.relation) && from.joins.iter().all(|j| system(&j.relation))
}

/// Empties what has no rows; answers whether all of it has none.
fn empty_selects(body: &mut SetExpr) -> bool {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            let left = empty_selects(left);
            empty_selects(right) && left
        }
        SetExpr::Select(select) if select_is_empty(select) => {
            make_empty(select);
            true
        }
        _ => false,
    }
}

fn body_is_empty(body: &SetExpr) -> bool {
    match body {
        SetExpr::Select(select) => select_is_empty(select),
        _ => false,
    }
}

/// No rows: an always-empty relation is joined so that it decides, and nothing aggregates.
fn select_is_empty(select: &Select) -> bool {
    let empty = |t: &TableFactor| match t {
        TableFactor::Table { name, args: None, .. } => is_empty_by_nature(&last_name(name)),
        _ => false,
    };
    let decides = select.from.iter().any(|from| {
        let kept = from.joins.iter().all(|j| {
            matches!(
                j.join_operator,
                JoinOperator::Join(_)
                    | JoinOperator::Inner(_)
                    | JoinOperator::Left(_)
                    | JoinOperator::LeftOuter(_)
                    | JoinOperator::CrossJoin(_)
            )
        });
        let inner = from.joins.iter().any(|j| {
            matches!(
                j.join_operator,
                JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_)
            ) && empty(&j.relation)
        });
        kept && (empty(&from.relation) || inner)
    });
    decides
        && select.projection.iter().all(|item| match item {
            SelectItem::UnnamedExpr(e) => !may_aggregate(e),
            SelectItem::ExprWithAlias { expr, .. } => !may_aggregate(expr),
            _ => false,
        })
}

fn may_aggregate(e: &Expr) -> bool {
    match e {
        Expr::Function(f) => {
            matches!(
                last_name(&f.name).as_str(),
                "count" | "max" | "min" | "sum" | "avg" | "string_agg" | "array_agg" | "bool_or" | "bool_and"
            )
        }
        _ => false,
    }
}

/// Keeps the columns' names.
fn make_empty(select: &mut Select) {
    for item in &mut select.projection {
        let (name, _) = match item {
            SelectItem::ExprWithAlias { alias, expr } => (alias.clone(), expr),
            SelectItem::UnnamedExpr(e) => (Ident::with_quote('"', column_name(e)), e),
            _ => continue,
        };
        *item = SelectItem::ExprWithAlias {
            expr: cast_text(Expr::value(Value::Null)),
            alias: name,
        };
    }
    select.from.clear();
    select.selection = Some(Expr::value(Value::Boolean(false)));
    select.group_by = sqlparser::ast::GroupByExpr::Expressions(Vec::new(), Vec::new());
    select.having = None;
}

fn column_name(e: &Expr) -> String {
    match e {
        Expr::Identifier(i) => i.value.clone(),
        Expr::CompoundIdentifier(parts) => parts.last().map_or_else(String::new, |i| i.value.clone()),
        Expr::Function(f) => last_name(&f.name),
        Expr::Cast { expr, .. } => column_name(expr),
        Expr::Case { .. } => "case".to_owned(),
        _ => "?column?".to_owned(),
    }
}
