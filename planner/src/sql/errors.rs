//! DataFusion's and Arrow's errors → [`PlanError`] with PostgreSQL's code and words.

use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::names::shown;
use super::parse::tokenize;
use super::text::numeric_overflow;
use crate::PlanError;

/// An error of binding, optimising or running a plan. What this crate raised comes out as it went in.
pub fn map_df_error(e: DataFusionError) -> PlanError {
    match e {
        DataFusionError::External(inner) => match inner.downcast::<PlanError>() {
            Ok(e) => *e,
            Err(inner) => match inner.downcast::<DataFusionError>() {
                Ok(e) => map_df_error(*e),
                Err(inner) => PlanError::internal(inner.to_string()),
            },
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => map_df_error(*inner),
        DataFusionError::Shared(inner) => map_shared(&inner),
        DataFusionError::Collection(list) => list
            .into_iter()
            .next()
            .map_or_else(|| PlanError::internal("an empty list of errors"), map_df_error),
        DataFusionError::ArrowError(inner, _) => map_arrow_error(*inner),
        DataFusionError::SchemaError(inner, _) => schema_error(&inner),
        DataFusionError::Plan(m) => plan_error(&m),
        DataFusionError::NotImplemented(m) => not_implemented(&m),
        DataFusionError::ResourcesExhausted(m) => PlanError::new("53200", format!("out of memory: {}", tidy(&m))),
        DataFusionError::SQL(inner, _) => PlanError::new("42601", inner.to_string()),
        DataFusionError::Execution(m) => execution_error(&m),
        other => by_text(&other.to_string()),
    }
}

fn not_implemented(m: &str) -> PlanError {
    if m.contains("Subquery") || m.contains("Exists") || m.contains("OuterReferenceColumn") {
        return subquery_form();
    }
    PlanError::unsupported(tidy(m))
}

/// What is left of subqueries cannot be a join.
pub(super) fn subquery_form() -> PlanError {
    PlanError::unsupported("a subquery of this form is not supported")
        .detail(
            "References to columns of the outer query may stand in its WHERE, under GROUP BY and LIMIT as equalities only, and not two \
             queries further in.",
        )
        .hint("Write a join, with a subquery in FROM that is grouped by the compared columns.")
}

fn map_shared(e: &DataFusionError) -> PlanError {
    match e {
        DataFusionError::External(inner) => match inner.downcast_ref::<PlanError>() {
            Some(e) => e.clone(),
            None => PlanError::internal(inner.to_string()),
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => map_shared(inner),
        DataFusionError::Shared(inner) => map_shared(inner),
        DataFusionError::ResourcesExhausted(m) => PlanError::new("53200", format!("out of memory: {}", tidy(m))),
        DataFusionError::ArrowError(inner, _) => by_text(&inner.to_string()),
        DataFusionError::Execution(m) => execution_error(m),
        other => by_text(&other.to_string()),
    }
}

/// An error of an Arrow kernel.
pub fn map_arrow_error(e: ArrowError) -> PlanError {
    match e {
        ArrowError::ExternalError(inner) => match inner.downcast::<PlanError>() {
            Ok(e) => *e,
            Err(inner) => match inner.downcast::<DataFusionError>() {
                Ok(e) => map_df_error(*e),
                Err(inner) => PlanError::internal(inner.to_string()),
            },
        },
        ArrowError::DivideByZero => PlanError::new("22012", "division by zero"),
        ArrowError::ArithmeticOverflow(_) => PlanError::new("22003", "value out of range"),
        other => by_text(&other.to_string()),
    }
}

fn schema_error(e: &SchemaError) -> PlanError {
    match e {
        SchemaError::FieldNotFound { field, valid_fields } => {
            if let Some(r) = &field.relation {
                let known =
                    |f: &datafusion::common::Column| f.relation.as_ref().is_some_and(|x| x.table() == r.table());
                if !valid_fields.iter().any(known) {
                    return PlanError::new(
                        "42P01",
                        format!("missing FROM-clause entry for table \"{}\"", r.table()),
                    );
                }
            }
            let twin = |f: &datafusion::common::Column| {
                shown(&f.name) == field.name && field.relation.as_ref().is_none_or(|r| f.relation.as_ref() == Some(r))
            };
            if valid_fields.iter().any(twin) {
                return PlanError::new("42702", format!("column reference \"{}\" is ambiguous", field.name));
            }
            let name = match &field.relation {
                Some(r) => format!("{}.{}", r.table(), field.name),
                None => format!("\"{}\"", field.name),
            };
            PlanError::new("42703", format!("column {name} does not exist"))
        }
        SchemaError::AmbiguousReference { field } => {
            PlanError::new("42702", format!("column reference \"{}\" is ambiguous", field.name))
        }
        SchemaError::DuplicateQualifiedField { qualifier, .. } => PlanError::new(
            "42712",
            format!("table name \"{}\" specified more than once", qualifier.table()),
        ),
        SchemaError::DuplicateUnqualifiedField { name } => {
            PlanError::new("42701", format!("column \"{name}\" specified more than once"))
        }
    }
}

fn execution_error(m: &str) -> PlanError {
    if m.contains("scalar subquery") || m.contains("more than one row") {
        return PlanError::new(
            "21000",
            "more than one row returned by a subquery used as an expression",
        );
    }
    by_text(m)
}

/// Messages that DataFusion gives as text only. Each case is held by a test, so that a new release that words it otherwise shows.
fn plan_error(m: &str) -> PlanError {
    let quoted = || m.split('\'').nth(1).unwrap_or("").to_owned();
    if m.starts_with("Invalid function") {
        return PlanError::new("42883", format!("function {} does not exist", quoted()))
            .hint("No function matches the given name and argument types. You might need to add explicit type casts.");
    }
    if m.contains("must appear in the GROUP BY clause")
        || m.contains("Column in SELECT must be in GROUP BY")
        || m.contains("could not be resolved from available columns")
    {
        let column = m
            .split('"')
            .nth(1)
            .or_else(|| {
                m.split(": ")
                    .nth(1)
                    .and_then(|t| t.split([' ', ',']).find(|w| w.contains('.')))
            })
            .unwrap_or("")
            .to_owned();
        return PlanError::new(
            "42803",
            format!("column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function"),
        );
    }
    if m.contains("expressions must match initial ORDER BY") {
        let message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
        return PlanError::new("42P10", message);
    }
    if m.contains("RANGE requires exactly one ORDER BY column") {
        let message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column";
        return PlanError::new("42P20", message);
    }
    if m.contains("GROUPS requires an ORDER BY clause") {
        return PlanError::new("42P20", "GROUPS mode requires an ORDER BY clause");
    }
    if m.contains("For SELECT DISTINCT, ORDER BY expressions") {
        let message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
        return PlanError::new("42P10", message);
    }
    if m.contains("subquery should only return one column") {
        return PlanError::new("42601", "subquery must return only one column");
    }
    if m.contains("calls cannot be nested") {
        return PlanError::new("42803", "aggregate function calls cannot be nested");
    }
    if let Some((_, inner)) = m.split_once("External error: ") {
        let message = inner.split(". ").next().unwrap_or(inner);
        return PlanError::new("42883", message)
            .hint("No function matches the given name and argument types. You might need to add explicit type casts.");
    }
    if m.contains("rder by column out of bounds") {
        let n = m
            .split("specified: ")
            .nth(1)
            .and_then(|t| t.split(',').next())
            .unwrap_or("");
        return PlanError::new("42P10", format!("ORDER BY position {n} is not in select list"));
    }
    if m.to_lowercase().contains("aggregate") && m.to_lowercase().contains("where clause") {
        return PlanError::new("42803", "aggregate functions are not allowed in WHERE");
    }
    if m.contains("No field named") {
        return PlanError::new("42703", tidy(m));
    }
    if m.contains("have the same number of columns")
        || m.contains("UNION queries have different number")
        || m.contains("number of columns")
    {
        return PlanError::new("42601", "each set operation query must have the same number of columns");
    }
    if m.contains("Projections require unique expression names") {
        return PlanError::new("42701", tidy(m));
    }
    if m.contains("Correlated") || m.contains("correlated") {
        return subquery_form();
    }
    if m.contains("WITH query name") || m.contains("specified more than once") {
        return PlanError::new("42712", tidy(m));
    }
    if m.contains("LIMIT must be >= 0") {
        return PlanError::new("2201W", "LIMIT must not be negative");
    }
    if m.contains("OFFSET must be >=0") {
        return PlanError::new("2201X", "OFFSET must not be negative");
    }
    if m.contains("zero is not a valid index") {
        return PlanError::new("42P02", "there is no parameter $0");
    }
    if let Some(call) = m.split("argument types '").nth(1).and_then(|t| t.split('\'').next()) {
        return PlanError::new("42883", format!("function {} does not exist", pg_call(call)))
            .hint("No function matches the given name and argument types. You might need to add explicit type casts.");
    }
    if m.contains("was not provided a value for execution") {
        return PlanError::new("42P02", format!("there is no parameter {}", quoted()));
    }
    if m.contains("Placeholder") || m.contains("placeholder") {
        return PlanError::new("42P18", tidy(m));
    }
    if m.contains("Can't cast") || m.contains("Cannot automatically convert") || m.contains("cannot cast") {
        return PlanError::new("42846", tidy(m));
    }
    if m.contains("Cannot coerce")
        || m.contains("coerc")
        || m.contains("No function matches")
        || m.contains("failed to match any signature")
    {
        return PlanError::new("42883", tidy(m))
            .hint("No function matches the given name and argument types. You might need to add explicit type casts.");
    }
    if let Some((_, rest)) = m.split_once("Cannot find column with position ") {
        let n = rest.split(' ').next().unwrap_or_default();
        return PlanError::new("42P10", format!("GROUP BY position {n} is not in select list"));
    }
    if m.contains("to grouping function is not in grouping columns") {
        let message = "arguments to GROUPING must be grouping expressions of the associated query level";
        return PlanError::new("42803", message);
    }
    if m.contains("ORDER BY position")
        || m.contains("Order by column out of bounds")
        || m.contains("Cannot find column with position")
    {
        return PlanError::new("42P10", tidy(m));
    }
    if m.contains("No function registered") {
        return PlanError::new("42883", tidy(m));
    }
    PlanError::new("42601", tidy(m))
}

/// `upper(Int32, Utf8)` with PostgreSQL's names of the types.
fn pg_call(call: &str) -> String {
    let Some((name, args)) = call.trim_end_matches(')').split_once('(') else {
        return call.to_owned();
    };
    let types: Vec<String> = args
        .split(", ")
        .map(|t| match t.parse::<arrow::datatypes::DataType>() {
            Ok(t) => super::types::base_name(&t).to_owned(),
            Err(_) => t.to_owned(),
        })
        .collect();
    format!("{name}({})", types.join(", "))
}

fn by_text(m: &str) -> PlanError {
    let lower = m.to_lowercase();
    if lower.contains("divide by zero") || lower.contains("division by zero") {
        PlanError::new("22012", "division by zero")
    } else if lower.contains("overflow") && lower.contains("decimal") {
        numeric_overflow()
    } else if lower.contains("overflow") || lower.contains("can't cast value") || lower.contains("out of range") {
        PlanError::new("22003", "value out of range")
    } else if lower.contains("scalar subquery") || lower.contains("more than one row") {
        PlanError::new(
            "21000",
            "more than one row returned by a subquery used as an expression",
        )
    } else if lower.contains("regular expression") || lower.contains("regex") {
        PlanError::new("2201B", tidy(m))
    } else if lower.contains("cannot cast string") || lower.contains("parser error") {
        PlanError::new("22P02", tidy(m))
    } else {
        PlanError::internal(tidy(m))
    }
}

/// DataFusion's text as one lower-case sentence without its prefixes and back traces.
fn tidy(m: &str) -> String {
    let line = m.split("\n\nbacktrace").next().unwrap_or(m).lines().next().unwrap_or(m);
    let line = line
        .trim_start_matches("Error during planning: ")
        .trim_start_matches("Execution error: ")
        .trim_end_matches('.');
    let mut chars = line.chars();
    match chars.next() {
        // A keyword stays one.
        Some(_) if chars.as_str().starts_with(char::is_uppercase) => line.to_owned(),
        Some(c) => c.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Adds the position of what an error complains of, found by looking for it among the statement's tokens: the first use of a name or
/// literal, an operator if it stands only once.
pub(super) fn locate(e: PlanError, text: &str) -> PlanError {
    if e.position.is_some() {
        return e;
    }
    let Ok(tokens) = tokenize(text) else { return e };
    let lines = super::parse::Lines::new(text);
    let place = |t: &TokenWithSpan| lines.offset(t.span.start) + 1;
    let literal = |value: &str| {
        let same = |t: &&TokenWithSpan| matches!(&t.token, Token::SingleQuotedString(s) if s == value);
        tokens.iter().find(same).map(place)
    };
    let only = |wanted: &dyn Fn(&Token) -> bool| {
        let mut all = tokens.iter().filter(|t| wanted(&t.token));
        match (all.next(), all.next()) {
            (Some(t), None) => Some(place(t)),
            _ => None,
        }
    };
    let found = match e.code {
        "22P02" | "22007" | "22008" | "22003" => quoted_value(&e.message).and_then(|v| literal(&v)),
        "42804" if e.message.starts_with("argument of ") => {
            let clause = e.message.split(' ').nth(2).unwrap_or("");
            let word = clause.rsplit('/').next().unwrap_or(clause).to_owned();
            let keyword = |t: &&TokenWithSpan| matches!(&t.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(&word));
            match word.as_str() {
                "WHERE" | "HAVING" | "NOT" | "WHEN" | "ON" if tokens.iter().filter(keyword).count() == 1 => tokens
                    .iter()
                    .skip_while(|t| !keyword(t))
                    .skip(1)
                    .find(|t| !matches!(t.token, Token::Whitespace(_)))
                    .map(place),
                _ => None,
            }
        }
        "42846" => only(&|t| {
            matches!(t, Token::DoubleColon) || matches!(t, Token::Word(w) if w.value.eq_ignore_ascii_case("cast"))
        }),
        "42883" if e.message.starts_with("operator does not exist") => {
            let op = e
                .message
                .trim_end_matches(" without time zone")
                .trim_end_matches(" with time zone");
            let op = op
                .replace("double precision", "float8")
                .split(' ')
                .nth_back(1)
                .unwrap_or("")
                .to_owned();
            only(&|t| is_operator(t, &op))
        }
        "42P01" | "42703" | "42883" | "42702" | "42704" | "42809" | "42803" | "42P10" => subject(&e).and_then(|name| {
            let same = |t: &&TokenWithSpan| match &t.token {
                Token::Word(w) if w.quote_style.is_none() => w.value.eq_ignore_ascii_case(&name),
                Token::Word(w) => w.value == name,
                Token::Number(n, _) => e.code == "42P10" && *n == name,
                _ => false,
            };
            let mut all = tokens.iter().filter(same);
            if e.code == "42P10" { all.next_back() } else { all.next() }.map(place)
        }),
        _ => None,
    };
    match found {
        Some(at) => e.at(at),
        None => e,
    }
}

fn is_operator(t: &Token, op: &str) -> bool {
    match (t, op) {
        (Token::Word(w), "~~" | "!~~") => w.quote_style.is_none() && w.value.eq_ignore_ascii_case("like"),
        (Token::Word(w), "~~*" | "!~~*") => w.quote_style.is_none() && w.value.eq_ignore_ascii_case("ilike"),
        (Token::Word(w), "=") => w.quote_style.is_none() && w.value.eq_ignore_ascii_case("in"),
        (Token::Word(_) | Token::Whitespace(_) | Token::SingleQuotedString(_), _) => false,
        (t, op) => t.to_string() == op,
    }
}

/// The value in double quotes that ends a message, or stands in it.
fn quoted_value(m: &str) -> Option<String> {
    let from = m.find('"')? + 1;
    let to = m.rfind('"')?;
    (from <= to).then(|| m[from..to].to_owned())
}

/// The first name in a message: the part before a dot of a qualified one.
fn subject(e: &PlanError) -> Option<String> {
    let m = &e.message;
    let quoted = m.split('"').nth(1).map(str::to_owned);
    let word = || {
        let rest = ["column ", "function ", "ORDER BY position "]
            .iter()
            .find_map(|p| m.strip_prefix(p))?;
        rest.split([' ', '(']).next().map(str::to_owned)
    };
    let name = quoted.or_else(word)?;
    let part = if e.code == "42803" {
        name.rsplit('.').next()
    } else {
        name.split('.').next()
    };
    part.map(str::to_owned)
}
