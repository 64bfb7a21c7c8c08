//! Literals and small expressions: number and interval literals with PostgreSQL's types, signs, rows, frame offsets.

use sqlparser::ast::{self, BinaryOperator, Expr, UnaryOperator, Value, ValueWithSpan};

use super::syntax::{cast, condition, function, null, string};
use crate::{PlanError, Result};

/// `INTERVAL '10' SECOND` as the text `10 SECOND`.
pub(super) fn interval_text(i: &ast::Interval) -> Result<Option<String>> {
    let Expr::Value(v) = i.value.as_ref() else {
        return Ok(None);
    };
    let Value::SingleQuotedString(text) = &v.value else {
        return Ok(None);
    };
    if i.last_field.is_some() || i.leading_precision.is_some() || i.fractional_seconds_precision.is_some() {
        return Err(
            PlanError::unsupported("interval fields with ranges or precision are not supported")
                .hint("Write the units into the text: INTERVAL '1 day 2 hours'."),
        );
    }
    Ok(Some(match &i.leading_field {
        Some(unit) if text.trim().parse::<f64>().is_ok() => format!("{text} {}", unit.to_string().to_lowercase()),
        _ => text.clone(),
    }))
}

/// `-5` is one literal; other operands go through typed functions.
pub(super) fn unary(op: UnaryOperator, operand: Expr) -> Expr {
    match (op, operand) {
        (
            UnaryOperator::Minus,
            Expr::Value(ValueWithSpan {
                value: Value::Number(n, false),
                ..
            }),
        ) if !n.starts_with('-') => Expr::Value(Value::Number(format!("-{n}"), false).into()),
        (UnaryOperator::Minus, e) => function("pg_neg", vec![e]),
        (UnaryOperator::Plus, e) => e,
        (UnaryOperator::Not, e) => Expr::UnaryOp {
            op,
            expr: Box::new(Expr::Nested(Box::new(condition(e, "NOT")))),
        },
        (op, e) => Expr::UnaryOp { op, expr: Box::new(e) },
    }
}

/// Takes the offsets out of a window's frame; in their places stand plain numbers, which `mark` keeps from being typed.
pub(super) fn frame_offsets(spec: &mut ast::WindowSpec, mark: bool) -> Vec<Expr> {
    let Some(frame) = &mut spec.window_frame else {
        return Vec::new();
    };
    let bounds = std::iter::once(&mut frame.start_bound).chain(frame.end_bound.as_mut());
    let offsets = bounds.filter_map(|bound| match bound {
        ast::WindowFrameBound::Preceding(offset) | ast::WindowFrameBound::Following(offset) => offset.as_deref_mut(),
        ast::WindowFrameBound::CurrentRow => None,
    });
    let number = || Expr::Value(Value::Number("1".to_owned(), mark).into());
    offsets
        .map(|offset| match std::mem::replace(offset, number()) {
            // The grammar reads a bare string as an interval.
            Expr::Interval(i) if i.leading_field.is_none() && i.last_field.is_none() => *i.value,
            other => other,
        })
        .collect()
}

/// `(a, b) = (c, d)`.
pub(super) fn row_comparison(l: &[Expr], op: &BinaryOperator, r: &[Expr]) -> Result<Expr> {
    if l.len() != r.len() {
        return Err(PlanError::new("42601", "unequal number of entries in row expressions"));
    }
    let join = if matches!(op, BinaryOperator::Eq) {
        BinaryOperator::And
    } else {
        BinaryOperator::Or
    };
    let mut pairs = l.iter().zip(r).map(|(a, b)| Expr::BinaryOp {
        left: Box::new(Expr::Nested(Box::new(a.clone()))),
        op: op.clone(),
        right: Box::new(Expr::Nested(Box::new(b.clone()))),
    });
    let Some(first) = pairs.next() else {
        return Err(PlanError::new("42601", "cannot compare rows of zero length"));
    };
    let all = pairs.fold(first, |acc, p| Expr::BinaryOp {
        left: Box::new(acc),
        op: join.clone(),
        right: Box::new(p),
    });
    Ok(Expr::Nested(Box::new(all)))
}

/// `(a, b) [NOT] IN ((1, 2), …)` as comparisons, in a tree as deep as the logarithm of their number.
pub(super) fn row_in_list(row: &Expr, list: &[Expr], negated: bool) -> Result<Expr> {
    let Expr::Tuple(l) = row else {
        return Err(PlanError::internal("a row is none"));
    };
    let mut tests = list
        .iter()
        .map(|item| match item {
            Expr::Tuple(r) => row_comparison(l, &BinaryOperator::Eq, r),
            _ => Err(PlanError::new("42601", "unequal number of entries in row expressions")),
        })
        .collect::<Result<Vec<_>>>()?;
    while tests.len() > 1 {
        let mut pairs = Vec::with_capacity(tests.len().div_ceil(2));
        let mut rest = tests.into_iter();
        while let Some(first) = rest.next() {
            pairs.push(match rest.next() {
                Some(second) => Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(first),
                    op: BinaryOperator::Or,
                    right: Box::new(second),
                })),
                None => first,
            });
        }
        tests = pairs;
    }
    let any = tests
        .pop()
        .ok_or_else(|| PlanError::new("42601", "syntax error at or near \")\""))?;
    Ok(if negated {
        Expr::UnaryOp {
            op: ast::UnaryOperator::Not,
            expr: Box::new(any),
        }
    } else {
        any
    })
}

/// `(a, b) [NOT] IN (SELECT …)`: a row is in if there is an equal one, and may be in if there is one that is not known to differ.
///
/// ```text
/// CASE WHEN EXISTS (SELECT 1 FROM (…) AS s(c1, c2) WHERE s.c1 = a AND s.c2 = b) THEN true
///      WHEN EXISTS (SELECT 1 FROM (…) AS s(c1, c2) WHERE (s.c1 = a) IS NOT FALSE AND …) THEN NULL ELSE false END
/// ```
pub(super) fn row_in_subquery(row: &[Expr], subquery: &ast::Query, negated: bool) -> Result<Expr> {
    let mut alias = super::syntax::table_alias(&format!("row{}", super::names::MARK));
    for i in 1..=row.len() {
        alias.columns.push(ast::TableAliasColumnDef {
            name: ast::Ident::with_quote('"', format!("c{i}")),
            data_type: None,
        });
    }
    let exists = |known: bool| -> Result<Expr> {
        let mut query = super::parse::parse_query("SELECT 1 FROM (SELECT 1) AS s WHERE true")?;
        if let ast::SetExpr::Select(s) = query.body.as_mut() {
            let mut all: Option<Expr> = None;
            for (i, e) in row.iter().enumerate() {
                let column = vec![alias.name.clone(), ast::Ident::with_quote('"', format!("c{}", i + 1))];
                let equal = Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(Expr::CompoundIdentifier(column)),
                    op: BinaryOperator::Eq,
                    right: Box::new(Expr::Nested(Box::new(e.clone()))),
                }));
                let test = if known {
                    equal
                } else {
                    Expr::IsNotFalse(Box::new(equal))
                };
                all = Some(match all {
                    None => test,
                    Some(before) => Expr::BinaryOp {
                        left: Box::new(before),
                        op: BinaryOperator::And,
                        right: Box::new(test),
                    },
                });
            }
            s.selection = all;
            if let Some(ast::TableFactor::Derived {
                subquery: inner,
                alias: own,
                ..
            }) = s.from.first_mut().map(|f| &mut f.relation)
            {
                **inner = subquery.clone();
                *own = Some(alias.clone());
            }
        }
        Ok(Expr::Exists {
            subquery: query,
            negated: false,
        })
    };
    let truth = |b: bool| Expr::Value(Value::Boolean(b).into());
    let when = |condition: Expr, result: Expr| ast::CaseWhen { condition, result };
    Ok(Expr::Case {
        case_token: ast::helpers::attached_token::AttachedToken::empty(),
        end_token: ast::helpers::attached_token::AttachedToken::empty(),
        operand: None,
        conditions: vec![
            when(exists(true)?, truth(!negated)),
            when(exists(false)?, super::syntax::null()),
        ],
        else_result: Some(Box::new(truth(negated))),
    })
}

/// A bare number: int4 if it fits, else int8, else numeric with its own digits.
pub(super) fn number_literal(e: &mut Expr) -> Result<()> {
    let Expr::Value(v) = e else { return Ok(()) };
    let Value::Number(text, plain) = &mut v.value else {
        return Ok(());
    };
    if *plain {
        return Ok(());
    }
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    *plain = true;
    match digits.parse::<i64>() {
        Ok(n) if i32::try_from(n).is_ok() => {
            let number = std::mem::replace(e, null());
            *e = cast(number, ast::DataType::Int4(None));
        }
        Ok(_) => {}
        Err(_) => {
            let t = match numeric_of(&digits) {
                Ok(t) => t,
                // Written with an exponent, it is a number for floats.
                Err(_) if digits.contains(['e', 'E']) && digits.parse::<f64>().is_ok_and(f64::is_finite) => {
                    ast::DataType::DoublePrecision
                }
                Err(error) => return Err(error),
            };
            *e = cast(string(&digits), t);
        }
    }
    Ok(())
}

/// The numeric type whose scale is that of a literal as written.
pub(super) fn numeric_of(text: &str) -> Result<ast::DataType> {
    let body = text.trim_start_matches(['-', '+']);
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((m, x)) => (m, x.parse::<i64>().map_err(|_| super::text::numeric_overflow())?),
        None => (body, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let length = |s: &str| i64::try_from(s.len()).unwrap_or(i64::MAX);
    let scale = (length(fraction) - exponent).max(0);
    let whole = (length(whole.trim_start_matches('0')) + exponent).max(0);
    let precision = (whole + scale).max(1);
    if precision > i64::from(super::types::DECLARED_PRECISION_MAX) {
        if whole > 38 || scale > 38 {
            return Err(super::text::numeric_overflow()
                .detail("numeric holds 38 digits before and 38 digits after the decimal point"));
        }
        return Ok(ast::DataType::Numeric(ast::ExactNumberInfo::None));
    }
    let precision = u64::try_from(precision).unwrap_or(1);
    Ok(ast::DataType::Numeric(ast::ExactNumberInfo::PrecisionAndScale(
        precision, scale,
    )))
}
