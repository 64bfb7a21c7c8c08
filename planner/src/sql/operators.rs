//! Choosing the operator for two operands, as PostgreSQL's parser does: literals without a type take the other operand's, numbers
//! meet in the wider class, everything else must match or is an error that names both types.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, Operator, expr::Placeholder};

use super::functions::arith::decimal_parts;
use super::functions::{call, cast, external};
use super::types::{
    self, BARE_NUMERIC, DEVIATION, JSON, JSONB, QUOTIENT, TIME, TIMETZ, VARIANCE, base_name, interval, item_of,
    list_of, timestamp, timestamptz,
};
use crate::{PlanError, Result};

/// An expression with its type; `None`: a literal, NULL or parameter without a type.
#[derive(Debug, Clone)]
pub(super) struct Typed {
    pub expr: Expr,
    pub ty: Option<DataType>,
}

impl Typed {
    /// Classifies `expr`, whose type by DataFusion's rules is `ty`.
    pub fn new(expr: Expr, ty: DataType) -> Self {
        let unknown = is_unknown(&expr) || ty == DataType::Null;
        Self {
            expr,
            ty: (!unknown).then_some(ty),
        }
    }

    pub fn name(&self) -> &'static str {
        self.ty.as_ref().map_or("unknown", base_name)
    }
}

/// A literal that has not got a type yet.
pub(super) fn is_unknown(e: &Expr) -> bool {
    match e {
        Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _) => true,
        Expr::Placeholder(p) => p.field.is_none(),
        Expr::Alias(a) => is_unknown(&a.expr),
        _ => false,
    }
}

pub(super) fn is_int(t: &DataType) -> bool {
    t.is_integer()
}

pub(super) fn is_float(t: &DataType) -> bool {
    matches!(t, DataType::Float32 | DataType::Float64)
}

pub(super) fn is_number(t: &DataType) -> bool {
    is_int(t) || is_float(t) || decimal_parts(t).is_some()
}

pub(super) fn is_text(t: &DataType) -> bool {
    matches!(t, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8)
}

fn is_moment(t: &DataType) -> bool {
    matches!(t, DataType::Date32 | DataType::Timestamp(..))
}

/// The decimal type that holds every value of an integer or decimal type.
pub(super) fn as_decimal(t: &DataType) -> DataType {
    match t {
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => DataType::Decimal128(5, 0),
        DataType::Int32 | DataType::UInt16 => DataType::Decimal128(10, 0),
        DataType::Int64 | DataType::UInt32 => DataType::Decimal128(19, 0),
        DataType::UInt64 => DataType::Decimal128(20, 0),
        other => other.clone(),
    }
}

fn signed(t: &DataType) -> DataType {
    match t {
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        other => other.clone(),
    }
}

fn int_rank(t: &DataType) -> u8 {
    match t {
        DataType::Int16 => 1,
        DataType::Int32 => 2,
        _ => 3,
    }
}

/// The type in which two numbers are compared or united.
pub(super) fn common_number(a: &DataType, b: &DataType) -> DataType {
    let (a, b) = (&signed(a), &signed(b));
    if a == b {
        return a.clone();
    }
    if is_float(a) || is_float(b) {
        return DataType::Float64;
    }
    if is_int(a) && is_int(b) {
        return if int_rank(a) > int_rank(b) {
            a.clone()
        } else {
            b.clone()
        };
    }
    let (a, b) = (as_decimal(a), as_decimal(b));
    if types::is_unlimited(&a) && types::is_unlimited(&b) && a != b {
        return BARE_NUMERIC;
    }
    for t in [VARIANCE, DEVIATION] {
        if a == t || b == t {
            return BARE_NUMERIC;
        }
    }
    for t in [QUOTIENT, BARE_NUMERIC] {
        if a == t || b == t {
            return t;
        }
    }
    match (decimal_parts(&a), decimal_parts(&b)) {
        (Some((p1, s1)), Some((p2, s2))) => {
            let scale = s1.max(s2);
            let whole = (i32::from(p1) - i32::from(s1)).max(i32::from(p2) - i32::from(s2));
            match u8::try_from(whole + i32::from(scale)) {
                Ok(p) if p <= types::DECLARED_PRECISION_MAX => types::decimal(p, scale),
                _ => BARE_NUMERIC,
            }
        }
        _ => BARE_NUMERIC,
    }
}

/// The type in which values of `types` meet (`None`: not typed yet), for CASE, COALESCE, IN, VALUES and set operations.
pub(super) fn common_type(all: &[Option<DataType>], construct: &str) -> Result<DataType> {
    let mut found: Option<DataType> = None;
    for t in all.iter().flatten() {
        found = Some(match found {
            None => t.clone(),
            Some(f) => pair_type(&f, t).ok_or_else(|| {
                PlanError::new(
                    "42804",
                    format!(
                        "{construct} types {} and {} cannot be matched",
                        base_name(&f),
                        base_name(t)
                    ),
                )
            })?,
        });
    }
    Ok(found.map_or(DataType::Utf8, |t| signed(&t)))
}

pub(super) fn pair_type(a: &DataType, b: &DataType) -> Option<DataType> {
    if a == b {
        return Some(a.clone());
    }
    if is_number(a) && is_number(b) {
        return Some(common_number(a, b));
    }
    if is_text(a) && is_text(b) {
        return Some(DataType::Utf8);
    }
    if is_moment(a) && is_moment(b) {
        let zoned = |t: &DataType| matches!(t, DataType::Timestamp(_, Some(_)));
        return Some(if zoned(a) || zoned(b) {
            timestamptz()
        } else {
            timestamp()
        });
    }
    match (a, b) {
        (&TIME, &TIMETZ) | (&TIMETZ, &TIME) => return Some(TIMETZ),
        (&TIME, iv) | (iv, &TIME) if iv == &interval() => return Some(interval()),
        _ => {}
    }
    if let (Some(x), Some(y)) = (item_of(a), item_of(b)) {
        // Arrays are of one type or of two: PostgreSQL does not widen their elements.
        let same = x == &DataType::Null || y == &DataType::Null || base_name(x) == base_name(y);
        return pair_type(x, y).filter(|_| same).map(list_of);
    }
    match (a, b) {
        (DataType::Null, t) | (t, DataType::Null) => Some(t.clone()),
        _ if types::canonical(a) == types::canonical(b) => Some(types::canonical(a)),
        _ => None,
    }
}

/// `expr` as a value of `target` by an implicit cast: literals are read in the target's syntax.
pub(super) fn coerce(t: Typed, target: &DataType) -> Result<Expr> {
    match (&t.expr, &t.ty) {
        (_, Some(ty)) if ty == target => Ok(t.expr),
        (Expr::Placeholder(p), None) => Ok(Expr::Placeholder(Placeholder::new_with_field(
            p.id.clone(),
            Some(std::sync::Arc::new(arrow::datatypes::Field::new(
                "",
                types::canonical(target),
                true,
            ))),
        ))),
        (Expr::Literal(v, _), None) => Ok(Expr::Literal(cast::cast_scalar(v, &types::canonical(target))?, None)),
        (_, Some(ty)) => cast_expr(t.expr.clone(), ty, target),
        (_, None) => Ok(Expr::Cast(Cast::new(Box::new(t.expr), target.clone()))),
    }
}

/// A cast of a typed expression; constants are folded.
pub(super) fn cast_expr(e: Expr, from: &DataType, target: &DataType) -> Result<Expr> {
    if from == target {
        return Ok(e);
    }
    if let Expr::Literal(v, _) = &e {
        return Ok(Expr::Literal(cast::cast_scalar(v, target)?, None));
    }
    if lossless(from, target) {
        return Ok(Expr::Cast(Cast::new(Box::new(e), target.clone())));
    }
    let Some(name) = cast::function_for(target) else {
        return Err(cannot_cast(from, target));
    };
    let mut args = vec![e];
    if let DataType::Decimal128(p, s) | DataType::Decimal256(p, s) = target {
        args.push(int4(i32::from(*p)));
        args.push(int4(i32::from(*s)));
    }
    if let Some(item) = item_of(target) {
        let none = ScalarValue::try_from(item).map_err(|e| PlanError::internal(e.to_string()))?;
        args.push(Expr::Literal(none, None));
    }
    call(name, args).map_err(super::errors::map_df_error)
}

pub(super) fn int4(v: i32) -> Expr {
    Expr::Literal(ScalarValue::Int32(Some(v)), None)
}

pub(super) fn cannot_cast(from: &DataType, target: &DataType) -> PlanError {
    PlanError::new(
        "42846",
        format!("cannot cast type {} to {}", base_name(from), base_name(target)),
    )
}

/// Casts that cannot fail and that DataFusion does as PostgreSQL does.
fn lossless(from: &DataType, to: &DataType) -> bool {
    use DataType::{Float32, Float64, Int16, Int32, Int64, UInt32, UInt64, Utf8};
    match (from, to) {
        (DataType::Null, _) => true,
        (Int16, Int32 | Int64 | Float32 | Float64)
        | (Int32, Int64 | Float64)
        | (Int64, Float64)
        | (Float32, Float64) => true,
        (Int32 | Int64, Float32) => true,
        (UInt64 | UInt32, Int64 | Float64) => true,
        (f, Utf8) if is_text(f) => true,
        (DataType::Date32, DataType::Timestamp(..)) => false,
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b)) => a.is_none() != b.is_none() || a == b,
        (f, t) if (is_int(f) || decimal_parts(f).is_some()) && decimal_parts(t).is_some() => {
            match (decimal_parts(&as_decimal(f)), decimal_parts(t)) {
                (Some((p1, s1)), Some((p2, s2))) => {
                    s2 >= s1 && i32::from(p2) - i32::from(s2) >= i32::from(p1) - i32::from(s1)
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// `operator does not exist: a = b`.
pub(super) fn no_operator(op: &str, l: &Typed, r: &Typed) -> PlanError {
    PlanError::new(
        "42883",
        format!("operator does not exist: {} {op} {}", l.name(), r.name()),
    )
    .hint("No operator matches the given name and argument types. You might need to add explicit type casts.")
}

/// The expression for `l op r`.
///
/// # Errors
/// 42883 when there is no such operator, 22P02 and its like when a literal is not of the other operand's type.
pub(super) fn binary(l: Typed, op: Operator, r: Typed) -> Result<Expr> {
    match op {
        Operator::And | Operator::Or => {
            let name = if op == Operator::And { "AND" } else { "OR" };
            Ok(Expr::BinaryExpr(BinaryExpr::new(
                Box::new(boolean(l, name)?),
                op,
                Box::new(boolean(r, name)?),
            )))
        }
        Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo => {
            arithmetic(l, op, r)
        }
        Operator::Eq
        | Operator::NotEq
        | Operator::Lt
        | Operator::LtEq
        | Operator::Gt
        | Operator::GtEq
        | Operator::IsDistinctFrom
        | Operator::IsNotDistinctFrom => compare(l, op, r),
        Operator::StringConcat => concat(l, r),
        Operator::RegexMatch
        | Operator::RegexIMatch
        | Operator::RegexNotMatch
        | Operator::RegexNotIMatch
        | Operator::LikeMatch
        | Operator::ILikeMatch
        | Operator::NotLikeMatch
        | Operator::NotILikeMatch => {
            let (l, r) = (text_operand(l, &op.to_string())?, text_operand(r, &op.to_string())?);
            Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(l), op, Box::new(r))))
        }
        Operator::BitwiseAnd
        | Operator::BitwiseOr
        | Operator::BitwiseXor
        | Operator::BitwiseShiftLeft
        | Operator::BitwiseShiftRight => bits(l, op, r),
        _ => Ok(Expr::BinaryExpr(BinaryExpr::new(
            Box::new(l.expr),
            op,
            Box::new(r.expr),
        ))),
    }
}

/// An operand that must be boolean.
pub(super) fn boolean(t: Typed, construct: &str) -> Result<Expr> {
    match &t.ty {
        None | Some(DataType::Boolean) => coerce(t, &DataType::Boolean),
        Some(other) => Err(PlanError::new(
            "42804",
            format!(
                "argument of {construct} must be type boolean, not type {}",
                base_name(other)
            ),
        )),
    }
}

fn text_operand(t: Typed, op: &str) -> Result<Expr> {
    match &t.ty {
        None => coerce(t, &DataType::Utf8),
        Some(ty) if is_text(ty) => coerce(t, &DataType::Utf8),
        Some(_) => {
            let other = Typed {
                expr: Expr::Literal(ScalarValue::Null, None),
                ty: Some(DataType::Utf8),
            };
            Err(no_operator(op, &t, &other))
        }
    }
}

fn op_text(op: Operator) -> String {
    match op {
        Operator::NotEq => "<>".into(),
        Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => "=".into(),
        other => other.to_string(),
    }
}

/// Has the type equal values that DataFusion's CASE and NULLIF call different?
pub(super) fn has_own_equality(t: &DataType) -> bool {
    is_float(t) || t == &interval() || item_of(t).is_some()
}

fn compare(l: Typed, op: Operator, r: Typed) -> Result<Expr> {
    let target = match (&l.ty, &r.ty) {
        (None, None) => DataType::Utf8,
        (Some(t), None) | (None, Some(t)) => t.clone(),
        (Some(a), Some(b)) => match window_number(&l, &r, a, b) {
            Some(t) => t,
            None => pair_type(a, b).ok_or_else(|| no_operator(&op_text(op), &l, &r))?,
        },
    };
    if target == JSON {
        return Err(no_operator(&op_text(op), &l, &r));
    }
    let (mut a, mut b) = (coerce(l, &target)?, coerce(r, &target)?);
    if item_of(&target).is_some() {
        a = call("pg_array_key", vec![a]).map_err(super::errors::map_df_error)?;
        b = call("pg_array_key", vec![b]).map_err(super::errors::map_df_error)?;
    }
    if target == interval() {
        a = call("pg_interval_key", vec![a]).map_err(super::errors::map_df_error)?;
        b = call("pg_interval_key", vec![b]).map_err(super::errors::map_df_error)?;
    }
    Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(a), op, Box::new(b))))
}

/// `row_number()` is unsigned in DataFusion; compared with a non-negative constant it stays so, which keeps top-N recognisable.
fn window_number(l: &Typed, r: &Typed, a: &DataType, b: &DataType) -> Option<DataType> {
    let constant = |t: &Typed| match &t.expr {
        Expr::Literal(ScalarValue::Int32(Some(v)), _) => *v >= 0,
        Expr::Literal(ScalarValue::Int64(Some(v)), _) => *v >= 0,
        _ => false,
    };
    match (a, b) {
        (DataType::UInt64, DataType::UInt64) => Some(DataType::UInt64),
        (DataType::UInt64, t) if is_int(t) && constant(r) => Some(DataType::UInt64),
        (t, DataType::UInt64) if is_int(t) && constant(l) => Some(DataType::UInt64),
        _ => None,
    }
}

fn concat(l: Typed, r: Typed) -> Result<Expr> {
    let text = |t: &Typed| t.ty.as_ref().is_none_or(is_text);
    if let Some(e) = super::collections::concat(&l, &r)? {
        return Ok(e);
    }
    if !text(&l) && !text(&r) {
        return Err(no_operator("||", &l, &r));
    }
    let (l, r) = (coerce(l, &DataType::Utf8)?, coerce(r, &DataType::Utf8)?);
    Ok(Expr::BinaryExpr(BinaryExpr::new(
        Box::new(l),
        Operator::StringConcat,
        Box::new(r),
    )))
}

fn bits(l: Typed, op: Operator, r: Typed) -> Result<Expr> {
    let target = match (&l.ty, &r.ty) {
        (Some(a), Some(b)) if is_int(a) && is_int(b) => common_number(a, b),
        (Some(t), None) | (None, Some(t)) if is_int(t) => t.clone(),
        _ => return Err(no_operator(&op.to_string(), &l, &r)),
    };
    let (l, r) = (coerce(l, &target)?, coerce(r, &target)?);
    Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(l), op, Box::new(r))))
}

fn arithmetic(l: Typed, op: Operator, r: Typed) -> Result<Expr> {
    let name = match op {
        Operator::Plus => "pg_add",
        Operator::Minus => "pg_sub",
        Operator::Multiply => "pg_mul",
        Operator::Divide => "pg_div",
        _ => "pg_mod",
    };
    if op == Operator::Minus && l.ty.as_ref() == Some(&JSONB) {
        return super::collections::delete(l, r);
    }
    let (a, b) = arithmetic_types(&l, op, &r).ok_or_else(|| no_operator(&op.to_string(), &l, &r))?;
    let args = vec![coerce(l, &a)?, coerce(r, &b)?];
    call(name, args).map_err(super::errors::map_df_error)
}

/// The types that the operands are brought to.
fn arithmetic_types(l: &Typed, op: Operator, r: &Typed) -> Option<(DataType, DataType)> {
    use DataType::{Date32, Float32, Float64, Int32};
    let (a, b) = match (&l.ty, &r.ty) {
        (None, None) => return None,
        (Some(a), None) => return unknown_beside(a, op, false),
        (None, Some(b)) => return unknown_beside(b, op, true).map(|(b, a)| (a, b)),
        (Some(a), Some(b)) => (signed(a), signed(b)),
    };
    let iv = interval();
    if is_number(&a) && is_number(&b) {
        if is_float(&a) || is_float(&b) {
            if op == Operator::Modulo {
                return None;
            }
            let both4 = a == Float32 && b == Float32;
            let t = if both4 { Float32 } else { Float64 };
            return Some((t.clone(), t));
        }
        if is_int(&a) && is_int(&b) {
            let t = common_number(&a, &b);
            return Some((t.clone(), t));
        }
        return Some((as_decimal(&a), as_decimal(&b)));
    }
    let plus_minus = matches!(op, Operator::Plus | Operator::Minus);
    match (&a, &b) {
        (Date32, t) if is_int(t) && plus_minus => Some((Date32, Int32)),
        (t, Date32) if is_int(t) && op == Operator::Plus => Some((Int32, Date32)),
        (Date32, Date32) if op == Operator::Minus => Some((Date32, Date32)),
        (&TIME, &TIME) if op == Operator::Minus => Some((TIME, TIME)),
        (&TIME | &TIMETZ, y) if y == &iv && plus_minus => Some((a.clone(), iv)),
        (x, &TIME | &TIMETZ) if x == &iv && op == Operator::Plus => Some((iv, b.clone())),
        (Date32, &TIME | &TIMETZ) | (&TIME | &TIMETZ, Date32) if op == Operator::Plus => Some((a.clone(), b.clone())),
        // A time of day beside a moment is the interval since midnight.
        (DataType::Timestamp(..), &TIME) if plus_minus => Some((a.clone(), iv)),
        (&TIME, DataType::Timestamp(..)) if op == Operator::Plus => Some((iv, b.clone())),
        (Date32, &TIME) if op == Operator::Minus => Some((timestamp(), iv)),
        (&TIME, y) if is_number(y) && matches!(op, Operator::Multiply | Operator::Divide) => Some((iv, Float64)),
        (x, &TIME) if is_number(x) && op == Operator::Multiply => Some((Float64, iv)),
        (x, y) if is_moment(x) && is_moment(y) && op == Operator::Minus => {
            let t = pair_type(x, y)?;
            Some((t.clone(), t))
        }
        (x, y) if is_moment(x) && y == &iv && plus_minus => Some((moment_of(x), iv)),
        (x, y) if x == &iv && is_moment(y) && op == Operator::Plus => Some((iv, moment_of(y))),
        (x, y) if x == &iv && y == &iv && plus_minus => Some((iv.clone(), iv)),
        (x, y) if x == &iv && is_number(y) && matches!(op, Operator::Multiply | Operator::Divide) => {
            Some((iv, Float64))
        }
        (x, y) if is_number(x) && y == &iv && op == Operator::Multiply => Some((Float64, iv)),
        _ => None,
    }
}

/// A date in interval arithmetic is its midnight.
fn moment_of(t: &DataType) -> DataType {
    if t == &DataType::Date32 { timestamp() } else { t.clone() }
}

/// The types of an operand of type `t` and of an untyped one beside it (on its left if `left`).
fn unknown_beside(t: &DataType, op: Operator, left: bool) -> Option<(DataType, DataType)> {
    let t = signed(t);
    let iv = interval();
    match &t {
        DataType::Timestamp(..) if op == Operator::Plus => Some((t, iv)),
        DataType::Timestamp(..) if op == Operator::Minus => Some((t.clone(), t)),
        &TIME | &TIMETZ if op == Operator::Plus && !left => Some((t, iv)),
        &TIME if op == Operator::Minus => Some((TIME, TIME)),
        DataType::Date32 if op == Operator::Minus => Some((t.clone(), t)),
        DataType::Date32 if op == Operator::Plus => Some((timestamp(), iv)),
        x if x == &iv && matches!(op, Operator::Plus | Operator::Minus) => Some((iv.clone(), iv)),
        x if x == &iv && !left && matches!(op, Operator::Multiply | Operator::Divide) => Some((iv, DataType::Float64)),
        x if is_float(x) && op == Operator::Modulo => None,
        x if is_number(x) => {
            let other = if decimal_parts(x).is_some() {
                BARE_NUMERIC
            } else {
                t.clone()
            };
            Some((t, other))
        }
        _ => None,
    }
}

/// Unary minus.
pub(super) fn negate(t: Typed) -> Result<Expr> {
    match &t.ty {
        None => {
            let e = coerce(t, &DataType::Float64)?;
            call("pg_neg", vec![e]).map_err(super::errors::map_df_error)
        }
        Some(ty) if is_number(ty) || ty == &interval() => {
            let ty = signed(ty);
            let e = coerce(t, &ty)?;
            if let Expr::Literal(v, _) = &e
                && let Ok(n) = v.arithmetic_negate()
            {
                return Ok(Expr::Literal(n, None));
            }
            call("pg_neg", vec![e]).map_err(super::errors::map_df_error)
        }
        Some(ty) => Err(
            PlanError::new("42883", format!("operator does not exist: - {}", base_name(ty))).hint(
                "No operator matches the given name and argument type. You might need to add an explicit type cast.",
            ),
        ),
    }
}

/// Wraps a planner error for DataFusion's callers.
pub(super) fn df<T>(r: Result<T>) -> datafusion::common::Result<T> {
    r.map_err(external)
}
