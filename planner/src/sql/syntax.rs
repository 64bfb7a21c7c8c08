//! Pieces of syntax trees that the rewrites put in.

use sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName,
    TableAlias, Value, ValueWithSpan,
};

use super::typing::{CONDITION, TYPED};

pub(super) fn null() -> Expr {
    Expr::Value(ValueWithSpan::from(Value::Null))
}

pub(super) fn string(s: &str) -> Expr {
    Expr::Value(ValueWithSpan::from(Value::SingleQuotedString(s.to_owned())))
}

pub(super) fn mark(e: Expr, op: [&str; 2], right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(Expr::Nested(Box::new(e))),
        op: BinaryOperator::PGCustomBinaryOperator(op.iter().map(|s| (*s).to_owned()).collect()),
        right: Box::new(right),
    }
}

/// Marks an expression, unless it is a plain column or a marked one.
pub(super) fn typed(e: Expr) -> Expr {
    match &e {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => e,
        Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) | Expr::Tuple(_) => e,
        _ => mark(e, TYPED, null()),
    }
}

pub(super) fn condition(e: Expr, clause: &str) -> Expr {
    mark(e, CONDITION, string(clause))
}

/// A bare number means a position (ORDER BY, GROUP BY) or a count (LIMIT): it keeps its plain form.
pub(super) fn keep_number(e: &mut Expr) -> bool {
    if let Expr::Value(v) = e
        && let Value::Number(_, plain) = &mut v.value
    {
        *plain = true;
        return true;
    }
    false
}

pub(super) fn table_alias(name: &str) -> TableAlias {
    TableAlias {
        explicit: true,
        name: Ident::with_quote('"', name),
        columns: Vec::new(),
        at: None,
    }
}

pub(super) fn function(name: &str, args: Vec<Expr>) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(ast::FunctionArgumentList {
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

pub(super) fn cast(e: Expr, data_type: ast::DataType) -> Expr {
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(e),
        data_type,
        array: false,
        format: None,
    }
}
