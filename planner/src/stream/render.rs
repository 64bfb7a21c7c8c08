//! Compiled expressions as SQL text, for EXPLAIN and `stream_errors`. Text only: nothing reads it back.

use arrow::datatypes::{DataType, TimeUnit};
use arrow::util::display::{ArrayFormatter, DurationFormat, FormatOptions};
use datafusion::common::ScalarValue;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NegativeExpr,
    NotExpr,
};
use datafusion::physical_expr_common::physical_expr::fmt_sql;

use super::rel::Phys;
use crate::plan::{AggCall, AggFunc, Bound, Distance, FrameUnit, WindowCall, WindowFunc};

/// The expression as SQL.
pub(super) fn sql(expr: &Phys) -> String {
    let list = |items: &[Phys]| items.iter().map(sql).collect::<Vec<_>>().join(", ");
    if let Some(column) = expr.downcast_ref::<Column>() {
        column.name().to_string()
    } else if let Some(value) = expr.downcast_ref::<Literal>() {
        literal(value.value())
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        format!("{} {} {}", operand(binary.left()), binary.op(), operand(binary.right()))
    } else if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        match (infix(call.name()), call.args()) {
            (Some(op), [left, right]) => format!("{} {op} {}", operand(left), operand(right)),
            (_, args) => format!("{}({})", call.name(), list(args)),
        }
    } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        format!("CAST({} AS {})", sql(cast.expr()), type_name(cast.cast_type()))
    } else if let Some(not) = expr.downcast_ref::<NotExpr>() {
        format!("NOT {}", operand(not.arg()))
    } else if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        format!("-{}", operand(negative.arg()))
    } else if let Some(test) = expr.downcast_ref::<IsNullExpr>() {
        format!("{} IS NULL", operand(test.arg()))
    } else if let Some(test) = expr.downcast_ref::<IsNotNullExpr>() {
        format!("{} IS NOT NULL", operand(test.arg()))
    } else if let Some(test) = expr.downcast_ref::<InListExpr>() {
        let not = if test.negated() { "NOT " } else { "" };
        format!("{} {not}IN ({})", operand(test.expr()), list(test.list()))
    } else if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        let not = if like.negated() { "NOT " } else { "" };
        let word = if like.case_insensitive() { "ILIKE" } else { "LIKE" };
        format!("{} {not}{word} {}", operand(like.expr()), operand(like.pattern()))
    } else if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        case_text(case)
    } else {
        fmt_sql(expr.as_ref()).to_string()
    }
}

/// An aggregate call; `name` gives the text of an input column.
pub(super) fn aggregate(call: &AggCall, name: impl Fn(usize) -> String) -> String {
    let mut arg = call.arg.map_or("*".to_string(), &name);
    if matches!(
        call.func,
        AggFunc::StringAgg | AggFunc::PercentileCont | AggFunc::PercentileDisc
    ) {
        arg.push_str(&format!(", '{}'", call.constant.replace('\'', "''")));
    }
    if !call.order_by.is_empty() {
        let keys = call.order_by.iter().map(|k| {
            let desc = if k.desc { " desc" } else { "" };
            format!("{}{desc}", name(k.column))
        });
        arg.push_str(&format!(" ORDER BY {}", keys.collect::<Vec<_>>().join(", ")));
    }
    let distinct = if call.distinct { "DISTINCT " } else { "" };
    let filter = call
        .filter
        .map_or(String::new(), |c| format!(" FILTER (WHERE {})", name(c)));
    format!("{}({distinct}{arg}){filter}", call.func.name())
}

/// A window function call with its frame; `name` gives the text of an input column.
pub(super) fn window(call: &WindowCall, name: impl Fn(usize) -> String) -> String {
    let plain = |text: &str| text.to_string();
    let (text, framed) = match &call.func {
        WindowFunc::RowNumber => (plain("row_number()"), false),
        WindowFunc::Rank => (plain("rank()"), false),
        WindowFunc::DenseRank => (plain("dense_rank()"), false),
        WindowFunc::PercentRank => (plain("percent_rank()"), false),
        WindowFunc::CumeDist => (plain("cume_dist()"), false),
        WindowFunc::Ntile(n) => (format!("ntile({n})"), false),
        WindowFunc::Lag { value, offset, default } => {
            let func = if *offset < 0 { "lead" } else { "lag" };
            let default = default.map_or(String::new(), |c| format!(", {}", name(c)));
            (
                format!("{func}({}, {}{default})", name(*value), offset.unsigned_abs()),
                false,
            )
        }
        WindowFunc::Nth { value, n, from_last } => {
            let text = match (n, from_last) {
                (1, false) => format!("first_value({})", name(*value)),
                (1, true) => format!("last_value({})", name(*value)),
                (n, false) => format!("nth_value({}, {n})", name(*value)),
                (n, true) => format!("nth_value({}, {n}) from last", name(*value)),
            };
            (text, true)
        }
        WindowFunc::Aggregate(call) => (aggregate(call, name), true),
    };
    if !framed || call.frame.is_whole() {
        return text;
    }
    let unit = match call.frame.unit {
        FrameUnit::Rows => "rows",
        FrameUnit::Groups => "groups",
        FrameUnit::Range => "range",
    };
    let bound = |bound: Bound, unbounded: &str| match bound {
        Bound::Unbounded => format!("unbounded {unbounded}"),
        Bound::Offset(0) => plain("current row"),
        Bound::Offset(n) if n < 0 => format!("{} preceding", n.unsigned_abs()),
        Bound::Offset(n) => format!("{n} following"),
        Bound::Distance { preceding, by } => {
            let by = match by {
                Distance::Exact(units) => units.to_string(),
                Distance::Float(bits) => f64::from_bits(bits).to_string(),
                Distance::Interval { months, days, us } => format!("{months} months {days} days {us} µs"),
            };
            format!("{by} {}", if preceding { "preceding" } else { "following" })
        }
    };
    let (start, end) = (bound(call.frame.start, "preceding"), bound(call.frame.end, "following"));
    format!("{text} {unit} {start} to {end}")
}

fn case_text(case: &CaseExpr) -> String {
    let mut text = "CASE".to_string();
    if let Some(tested) = case.expr() {
        text.push_str(&format!(" {}", sql(tested)));
    }
    for (when, then) in case.when_then_expr() {
        text.push_str(&format!(" WHEN {} THEN {}", sql(when), sql(then)));
    }
    if let Some(other) = case.else_expr() {
        text.push_str(&format!(" ELSE {}", sql(other)));
    }
    text + " END"
}

/// In parentheses where it is itself made of parts.
fn operand(expr: &Phys) -> String {
    let compound = expr.is::<BinaryExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<InListExpr>()
        || expr.is::<LikeExpr>()
        || expr
            .downcast_ref::<ScalarFunctionExpr>()
            .is_some_and(|c| infix(c.name()).is_some() && c.args().len() == 2);
    if compound {
        format!("({})", sql(expr))
    } else {
        sql(expr)
    }
}

/// The operator that a function stands for.
fn infix(function: &str) -> Option<&'static str> {
    Some(match function {
        "pg_add" => "+",
        "pg_sub" => "-",
        "pg_mul" => "*",
        "pg_div" => "/",
        "pg_mod" => "%",
        _ => return None,
    })
}

fn literal(value: &ScalarValue) -> String {
    if value.is_null() {
        return "NULL".to_string();
    }
    match value {
        ScalarValue::Boolean(Some(v)) => return v.to_string(),
        ScalarValue::Utf8(Some(v)) | ScalarValue::LargeUtf8(Some(v)) | ScalarValue::Utf8View(Some(v)) => {
            return quoted(v);
        }
        _ => {}
    }
    let options = FormatOptions::new().with_duration_format(DurationFormat::Pretty);
    let text = value.to_array().ok().and_then(|array| {
        let formatter = ArrayFormatter::try_new(array.as_ref(), &options).ok()?;
        formatter.value(0).try_to_string().ok()
    });
    match text {
        Some(text) if value.data_type().is_numeric() => text,
        Some(text) => quoted(&text),
        None => value.to_string(),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "boolean".to_string(),
        DataType::Int16 => "smallint".to_string(),
        DataType::Int32 => "integer".to_string(),
        DataType::Int64 => "bigint".to_string(),
        DataType::Float32 => "real".to_string(),
        DataType::Float64 => "double precision".to_string(),
        DataType::Utf8 => "text".to_string(),
        DataType::Date32 => "date".to_string(),
        DataType::Decimal128(p, s) => format!("numeric({p}, {s})"),
        DataType::Timestamp(TimeUnit::Microsecond, None) => "timestamp".to_string(),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamptz".to_string(),
        other => other.to_string(),
    }
}
