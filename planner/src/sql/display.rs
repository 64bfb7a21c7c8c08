//! Stored texts as clients see them: expressions in PostgreSQL's parentheses, literals with their types, queries with the present
//! names of what they read.

use std::ops::ControlFlow;

use arrow::datatypes::Field;
use sqlparser::ast::{
    self, BinaryOperator, Expr, Ident, ObjectName, TableAlias, TableFactor, UnaryOperator, Value, VisitMut, VisitorMut,
};

use super::ext::object_name;
use super::parse::{parse_expr, parse_query};
use super::types;
use crate::catalog::{Catalog, CatalogObject, ObjectKind};

/// A condition or generation expression as `pg_get_expr` shows it; the text itself where it holds what is not known here.
pub fn shown_expression(sql: &str) -> String {
    match parse_expr(sql) {
        Ok(e) => {
            let text = deparse(&e);
            if text.starts_with('(') {
                text
            } else {
                format!("({text})")
            }
        }
        Err(_) => format!("({sql})"),
    }
}

/// A default as PostgreSQL shows it: literals have their column's type.
pub fn shown_literal(sql: &str, field: &Field) -> String {
    let name = types::pg_type_name(field);
    let name = name.split('(').next().unwrap_or(&name);
    match parse_expr(sql) {
        Ok(Expr::Value(v)) => match &v.value {
            Value::SingleQuotedString(s) => format!("'{}'::{name}", s.replace('\'', "''")),
            _ => sql.to_owned(),
        },
        Ok(Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        }) if matches!(expr.as_ref(), Expr::Value(_)) => format!("'-{expr}'::{name}"),
        _ => sql.to_owned(),
    }
}

fn deparse(e: &Expr) -> String {
    match e {
        Expr::Nested(e) => deparse(e),
        Expr::Identifier(i) => quote(i),
        Expr::CompoundIdentifier(parts) => parts.last().map_or_else(String::new, quote),
        Expr::Value(v) => match &v.value {
            Value::SingleQuotedString(s) => format!("'{}'::text", s.replace('\'', "''")),
            other => other.to_string(),
        },
        Expr::BinaryOp { left, op, right } => {
            let op = match op {
                BinaryOperator::NotEq => "<>".to_owned(),
                other => other.to_string(),
            };
            format!("({} {op} {})", deparse(left), deparse(right))
        }
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => format!("(NOT {})", deparse(expr)),
        Expr::UnaryOp { op, expr } => format!("({op} {})", deparse(expr)),
        Expr::IsNull(e) => format!("({} IS NULL)", deparse(e)),
        Expr::IsNotNull(e) => format!("({} IS NOT NULL)", deparse(e)),
        Expr::Between {
            expr,
            negated: false,
            low,
            high,
        } => {
            let (e, low, high) = (deparse(expr), deparse(low), deparse(high));
            format!("(({e} >= {low}) AND ({e} <= {high}))")
        }
        Expr::InList {
            expr,
            list,
            negated: false,
        } => {
            let items: Vec<String> = list.iter().map(deparse).collect();
            format!("({} = ANY (ARRAY[{}]))", deparse(expr), items.join(", "))
        }
        Expr::Cast { expr, data_type, .. } => {
            let name = types::field_of(data_type).map(|f| types::pg_type_name(&f));
            let name = name.unwrap_or_else(|_| data_type.to_string().to_lowercase());
            match expr.as_ref() {
                Expr::Value(v) => format!("{v}::{name}"),
                e @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_)) => format!("({})::{name}", deparse(e)),
                e => format!("{}::{name}", deparse(e)),
            }
        }
        Expr::Function(f) => function(f).unwrap_or_else(|| e.to_string()),
        other => other.to_string(),
    }
}

fn function(f: &ast::Function) -> Option<String> {
    let ast::FunctionArguments::List(list) = &f.args else {
        return None;
    };
    if f.over.is_some() || f.filter.is_some() || list.duplicate_treatment.is_some() || !list.clauses.is_empty() {
        return None;
    }
    let args = list
        .args
        .iter()
        .map(|a| match a {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(e)) => Some(deparse(e)),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    let (_, name) = object_name(&f.name).ok()?;
    Some(format!("{name}({})", args.join(", ")))
}

fn quote(i: &Ident) -> String {
    super::resolve::quote_ident(&super::ext::fold(i))
}

/// The text of a view's query, with the present names of the relations that it reads. `shown`: how an object is named.
pub fn shown_query(
    object: &CatalogObject,
    catalog: &Catalog,
    shown: &dyn Fn(&CatalogObject) -> String,
) -> Option<String> {
    let sql = match &object.kind {
        ObjectKind::View(v) => &v.sql,
        ObjectKind::MaterializedView(v) => &v.sql,
        ObjectKind::Sink(s) => &s.sql,
        _ => return None,
    };
    let written = |r: &crate::catalog::Reference| match &r.schema {
        Some(s) => format!(
            "{}.{}",
            super::resolve::quote_ident(s),
            super::resolve::quote_ident(&r.name)
        ),
        None => super::resolve::quote_ident(&r.name),
    };
    let moved = object.references.iter().any(|r| {
        let now = catalog.get(r.id).map(shown);
        now.is_some_and(|now| now != written(r))
    });
    if !moved {
        return Some(sql.clone());
    }
    let Ok(mut query) = parse_query(sql) else {
        return Some(sql.clone());
    };
    let mut renamer = Renamer { object, catalog, shown };
    let ControlFlow::Continue(()) = VisitMut::visit(query.as_mut(), &mut renamer);
    Some(query.to_string())
}

struct Renamer<'a> {
    object: &'a CatalogObject,
    catalog: &'a Catalog,
    shown: &'a dyn Fn(&CatalogObject) -> String,
}

impl VisitorMut for Renamer<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_table_factor(&mut self, t: &mut TableFactor) -> ControlFlow<Self::Break> {
        let TableFactor::Table { name, alias, .. } = t else {
            return ControlFlow::Continue(());
        };
        let Ok((schema, table)) = object_name(name) else {
            return ControlFlow::Continue(());
        };
        let reference = self
            .object
            .references
            .iter()
            .find(|r| r.schema == schema && r.name == table);
        if let Some(target) = reference.and_then(|r| self.catalog.get(r.id)) {
            if alias.is_none() && target.name != table {
                *alias = Some(TableAlias {
                    explicit: false,
                    name: Ident::with_quote('"', table.clone()),
                    columns: Vec::new(),
                    at: None,
                });
            }
            // The name is one identifier that is written as it is shown.
            *name = ObjectName::from(vec![Ident::new((self.shown)(target))]);
        }
        ControlFlow::Continue(())
    }
}
