//! Table functions: TUMBLE and `generate_series` as syntax that DataFusion's planner knows.

use sqlparser::ast::{
    self, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, SelectItem, SetExpr, TableAlias,
    TableFactor, TimezoneInfo,
};

use super::ext::object_name;
use super::syntax::{cast, function, string, table_alias};
use crate::{PlanError, Result};

pub(super) fn table_factor(t: &mut TableFactor) -> Result<()> {
    if let TableFactor::Derived { alias: None, .. } = t {
        return Err(PlanError::new("42601", "subquery in FROM must have an alias")
            .hint("For example, FROM (SELECT ...) [AS] foo."));
    }
    let TableFactor::Table {
        name,
        alias,
        args: Some(args),
        ..
    } = t
    else {
        return Ok(());
    };
    let (_, function) = object_name(name)?;
    match function.as_str() {
        "tumble" => {
            *t = tumble(&args.args, alias.take())?;
            Ok(())
        }
        "hop" | "session" => Err(PlanError::unsupported(format!(
            "{} windows are not supported",
            function.to_uppercase()
        ))
        .hint("Use TUMBLE, or GROUP BY date_bin(…).")),
        "generate_series" => {
            *t = series(&args.args, alias.take());
            Ok(())
        }
        "unnest" | "range" | "pg_series" => Ok(()),
        _ => Err(
            PlanError::unsupported(format!("function {function} in FROM is not supported"))
                .hint("TUMBLE and generate_series may stand there."),
        ),
    }
}

/// The function that replaces `generate_series` in FROM; DataFusion's names its column otherwise.
pub(super) fn series(args: &[FunctionArg], alias: Option<TableAlias>) -> TableFactor {
    let mut alias = alias.unwrap_or_else(|| table_alias("generate_series"));
    if alias.columns.is_empty() {
        alias.columns.push(ast::TableAliasColumnDef {
            name: alias.name.clone(),
            data_type: None,
        });
    }
    TableFactor::Table {
        name: ObjectName::from(vec![Ident::new("pg_series")]),
        alias: Some(alias),
        args: Some(ast::TableFunctionArgs {
            args: args.to_vec(),
            settings: None,
        }),
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

pub(super) fn tumble(args: &[FunctionArg], alias: Option<TableAlias>) -> Result<TableFactor> {
    let usage = || {
        PlanError::new(
            "42883",
            "TUMBLE takes a relation, a time column, an interval and, if wanted, an offset interval",
        )
        .hint("Write TUMBLE(bid, date_time, INTERVAL '10 seconds').")
    };
    let mut exprs = Vec::new();
    for a in args {
        match a {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => exprs.push(e.clone()),
            _ => return Err(usage()),
        }
    }
    let (relation, column, width, offset) = match exprs.as_slice() {
        [r, c, w] => (r, c, w, None),
        [r, c, w, o] => (r, c, w, Some(o)),
        _ => return Err(usage()),
    };
    let name = match relation {
        Expr::Identifier(i) => ObjectName::from(vec![i.clone()]),
        Expr::CompoundIdentifier(parts) => ObjectName::from(parts.clone()),
        _ => return Err(usage()),
    };
    let (_, bare) = object_name(&name)?;
    let epoch = string("1970-01-01 00:00:00");
    let binary = |l: Expr, op: BinaryOperator, r: Expr| Expr::BinaryOp {
        left: Box::new(l),
        op,
        right: Box::new(r),
    };
    let origin = match offset {
        None => epoch,
        Some(o) => binary(
            cast(epoch, ast::DataType::Timestamp(None, TimezoneInfo::None)),
            BinaryOperator::Plus,
            o.clone(),
        ),
    };
    let start = function("date_bin", vec![width.clone(), column.clone(), origin]);
    let end = binary(start.clone(), BinaryOperator::Plus, width.clone());
    let mut query = super::parse::parse_query("SELECT *, 1 AS window_start, 2 AS window_end FROM t")?;
    if let SetExpr::Select(s) = query.body.as_mut() {
        for (item, e) in s.projection.iter_mut().skip(1).zip([start, end]) {
            if let SelectItem::ExprWithAlias { expr, .. } = item {
                *expr = e;
            }
        }
        if let Some(from) = s.from.first_mut()
            && let TableFactor::Table { name: n, .. } = &mut from.relation
        {
            *n = name;
        }
    }
    Ok(TableFactor::Derived {
        lateral: false,
        subquery: query,
        alias: Some(alias.unwrap_or_else(|| table_alias(&bare))),
        sample: None,
    })
}
