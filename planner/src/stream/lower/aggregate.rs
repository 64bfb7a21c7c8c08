//! GROUP BY: arguments, filters and group expressions become columns of a map below.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::logical_plan::Aggregate;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::physical_expr::expressions::CastExpr;

use super::grouping::grouping_sets;
use super::{Lowering, compile, compile_all, field_of, name_of, place_of, project, unsupported};
use crate::plan::{AggCall, AggFunc, SortKey};
use crate::sql::functions::ordered_set::checked_fraction;
use crate::sql::functions::regression::Regression;
use crate::sql::functions::spread::Spread;
use crate::stream::rel::{Phys, Rel, as_column, literal, plain_columns};
use crate::stream::render;
use crate::{PlanError, Result};

impl Lowering<'_> {
    /// GROUP BY and global aggregates.
    pub(super) fn aggregate(&self, aggregate: &Aggregate) -> Result<Rel> {
        let input = self.lower(&aggregate.input)?;
        let schema = aggregate.input.schema();
        if aggregate.aggr_expr.iter().any(is_first_value) {
            return only_rows(input, aggregate);
        }
        if let [Expr::GroupingSet(sets)] = aggregate.group_expr.as_slice() {
            return grouping_sets(input, aggregate, sets);
        }
        let mut columns: Vec<Phys> = Vec::new();
        let mut group_by = Vec::new();
        for expr in &aggregate.group_expr {
            if matches!(expr, Expr::GroupingSet(_)) {
                return Err(PlanError::internal("grouping sets were not enumerated"));
            }
            group_by.push(place_of(&mut columns, &compile(expr, schema)?));
        }
        let aggs = aggregate
            .aggr_expr
            .iter()
            .map(|e| call(e, schema, &mut columns))
            .collect::<Result<Vec<_>>>()?;
        let out = output_schema(&aggregate.schema, &group_by, &aggs, &columns);
        if let Some(plain) = plain_columns(&columns) {
            let at = |c: usize| plain[c];
            let group_by = group_by.into_iter().map(at).collect();
            let aggs = aggs
                .into_iter()
                .map(|a| AggCall {
                    arg: a.arg.map(at),
                    filter: a.filter.map(at),
                    order_by: a
                        .order_by
                        .iter()
                        .map(|k| SortKey {
                            column: at(k.column),
                            ..*k
                        })
                        .collect(),
                    ..a
                })
                .collect();
            return Ok(input.aggregate(group_by, aggs, out));
        }
        let fields = columns
            .iter()
            .map(|e| field_of(e, &input.schema))
            .collect::<Result<Vec<_>>>()?;
        Ok(input
            .project(columns, Arc::new(Schema::new(fields)))
            .aggregate(group_by, aggs, out))
    }
}

fn is_first_value(expr: &Expr) -> bool {
    let bare = expr.clone().unalias_nested().data;
    matches!(bare, Expr::AggregateFunction(f) if f.func.name() == "first_value")
}

/// The groups of a scalar subquery that is no aggregate (see [`crate::sql`]'s subqueries): a value and the number of rows. A view could not
/// raise the error of a second row later, so each group must have one row by its form, and is that row.
fn only_rows(input: Rel, aggregate: &Aggregate) -> Result<Rel> {
    let schema = aggregate.input.schema();
    let keys = compile_all(&aggregate.group_expr, schema)?;
    let group: Vec<usize> = keys.iter().filter_map(as_column).collect();
    let single = input.props.keys.iter().any(|key| key.iter().all(|c| group.contains(c)));
    let bare: Vec<Expr> = aggregate
        .aggr_expr
        .iter()
        .map(|e| e.clone().unalias_nested().data)
        .collect();
    let mut exprs = keys;
    for e in &bare {
        let Expr::AggregateFunction(f) = e else {
            return Err(PlanError::internal(format!("{} is not an aggregate", name_of(e))));
        };
        match (f.func.name(), f.params.args.as_slice()) {
            ("first_value", [arg]) => {
                if !single {
                    return Err(unsupported(&format!(
                        "scalar subquery that may return more than one row ({})",
                        name_of(arg)
                    ))
                    .hint("Use an aggregate, LIMIT 1, or an equality with a primary key."));
                }
                exprs.push(compile(arg, schema)?);
            }
            _ => exprs.push(literal(ScalarValue::Int64(Some(1)))),
        }
    }
    project(input, exprs, aggregate.schema.as_arrow())
}

/// Counts are never NULL, everything else may be. Names are for EXPLAIN.
fn output_schema(schema: &DFSchema, group_by: &[usize], aggs: &[AggCall], columns: &[Phys]) -> SchemaRef {
    let name = |c: usize| columns.get(c).map_or(String::new(), render::sql);
    let names = group_by.iter().map(|&c| (name(c), true)).chain(aggs.iter().map(|a| {
        let text = render::aggregate(a, name);
        (text, a.func != AggFunc::Count)
    }));
    let fields = schema.as_arrow().fields().iter().zip(names);
    let fields = fields.map(|(f, (name, nullable))| f.as_ref().clone().with_name(name).with_nullable(nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A call; its argument, filter and sort keys become columns.
pub(super) fn call(expr: &Expr, schema: &DFSchema, columns: &mut Vec<Phys>) -> Result<AggCall> {
    let bare = expr.clone().unalias_nested().data;
    let Expr::AggregateFunction(AggregateFunction { func, params }) = &bare else {
        return Err(PlanError::internal(format!("{} is not an aggregate", name_of(expr))));
    };
    let text = || name_of(expr);
    let udf_name = func.name();
    let func = match udf_name {
        "count" => AggFunc::Count,
        "sum" => AggFunc::Sum,
        "avg" => AggFunc::Avg,
        "min" => AggFunc::Min,
        "max" => AggFunc::Max,
        "bool_and" => AggFunc::BoolAnd,
        "bool_or" => AggFunc::BoolOr,
        "string_agg" => AggFunc::StringAgg,
        "array_agg" => AggFunc::ArrayAgg,
        "var_samp" => AggFunc::Spread(Spread::VarSamp),
        "var_pop" => AggFunc::Spread(Spread::VarPop),
        "stddev" => AggFunc::Spread(Spread::StddevSamp),
        "stddev_pop" => AggFunc::Spread(Spread::StddevPop),
        "bit_and" => AggFunc::BitAnd,
        "bit_or" => AggFunc::BitOr,
        "bit_xor" => AggFunc::BitXor,
        "pg_percentile_cont" => AggFunc::PercentileCont,
        "pg_percentile_disc" => AggFunc::PercentileDisc,
        "pg_mode" => AggFunc::Mode,
        "min_by" | "max_by" => AggFunc::ByKey,
        name => match Regression::of(name) {
            Some(kind) => AggFunc::Regression(kind),
            None => {
                return Err(unsupported(&format!("aggregate {}", text()))
                    .hint("PostgreSQL's aggregates are supported, with DISTINCT and FILTER; others can often be written with them."));
            }
        },
    };
    if params.null_treatment.is_some() {
        return Err(unsupported(&format!("IGNORE NULLS or RESPECT NULLS in {}", text())));
    }
    let mut constant = String::new();
    let mut order_by = Vec::new();
    let pair;
    let arg = match params.args.as_slice() {
        [y, x] if matches!(func, AggFunc::Regression(_)) => {
            let made = crate::sql::functions::call("pg_pair", vec![y.clone(), x.clone()]);
            pair = made.map_err(|e| PlanError::internal(e.to_string()))?;
            &pair
        }
        [value, key] if func == AggFunc::ByKey => {
            order_by.push(SortKey {
                column: place_of(columns, &compile(key, schema)?),
                desc: udf_name == "max_by",
                nulls_first: false,
            });
            value
        }
        [value, fractions, descending] if matches!(func, AggFunc::PercentileCont | AggFunc::PercentileDisc) => {
            constant = constant_fractions(fractions).ok_or_else(|| {
                unsupported(&format!("{} with a fraction that is not a constant", text()))
                    .hint("Give the fraction, or the array of fractions, as constants.")
            })??;
            order_by.push(direction(place_of(columns, &compile(value, schema)?), descending)?);
            value
        }
        [value, descending] if func == AggFunc::Mode => {
            order_by.push(direction(place_of(columns, &compile(value, schema)?), descending)?);
            value
        }
        [one] => one,
        [one, separator] if func == AggFunc::StringAgg => {
            constant = constant_text(separator).ok_or_else(|| {
                unsupported(&format!("{} with a delimiter that is not a constant text", text()))
                    .hint("Write string_agg(x, ', ').")
            })?;
            one
        }
        _ => return Err(unsupported(&format!("{} with other than one argument", text()))),
    };
    let every_row = func == AggFunc::Count && !params.distinct && matches!(arg, Expr::Literal(v, _) if !v.is_null());
    if matches!(func, AggFunc::Sum | AggFunc::Avg | AggFunc::Spread(_)) {
        let data_type = arg.get_type(schema).map_err(|e| PlanError::internal(e.to_string()))?;
        if !summable(&data_type) {
            return Err(unsupported(&format!("{} over a value of type {data_type}", text())));
        }
    }
    let arg = if every_row {
        None
    } else {
        let mut compiled = compile(arg, schema)?;
        if matches!(func, AggFunc::Sum | AggFunc::Avg) {
            compiled = without_widening(compiled, schema.as_arrow())?;
        }
        Some(place_of(columns, &compiled))
    };
    let filter = match &params.filter {
        Some(filter) => Some(place_of(columns, &compile(filter, schema)?)),
        None => None,
    };
    // A minimum is the same over distinct values, and cheaper over all.
    let same = matches!(
        func,
        AggFunc::Min
            | AggFunc::Max
            | AggFunc::BoolAnd
            | AggFunc::BoolOr
            | AggFunc::BitAnd
            | AggFunc::BitOr
            | AggFunc::ByKey
    );
    let distinct = params.distinct && !same;
    if matches!(func, AggFunc::StringAgg | AggFunc::ArrayAgg) {
        for sort in &params.order_by {
            let column = place_of(columns, &compile(&sort.expr, schema)?);
            if distinct && Some(column) != arg {
                return Err(order_of_distinct(&text()));
            }
            order_by.push(SortKey {
                column,
                desc: !sort.asc,
                nulls_first: sort.nulls_first,
            });
        }
    }
    Ok(AggCall {
        func,
        arg,
        filter,
        distinct,
        order_by,
        constant,
    })
}

fn order_of_distinct(call: &str) -> PlanError {
    PlanError::new(
        "42P10",
        "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
    )
    .detail(call.to_owned())
}

/// Which end an ordered-set aggregate begins at, from the constant that says whether it is the greatest value.
fn direction(column: usize, descending: &Expr) -> Result<SortKey> {
    let Expr::Literal(ScalarValue::Boolean(Some(desc)), _) = descending else {
        return Err(PlanError::internal("the order of an aggregate is not a constant"));
    };
    Ok(SortKey {
        column,
        desc: *desc,
        nulls_first: false,
    })
}

/// A percentile's fraction, or fractions in braces; `None`: it is not constant.
fn constant_fractions(expr: &Expr) -> Option<Result<String>> {
    let text = |v: &ScalarValue| match v {
        ScalarValue::Float64(Some(fraction)) => checked_fraction(*fraction).map(|f| f.to_string()),
        _ => Ok("NULL".to_owned()),
    };
    match expr {
        Expr::Literal(ScalarValue::List(list), _) => {
            if list.is_null(0) {
                return Some(Ok("NULL".to_owned()));
            }
            let items = list.value(0);
            let parts = (0..items.len()).map(|i| {
                let value = ScalarValue::try_from_array(&items, i);
                text(&value.map_err(|e| PlanError::internal(e.to_string()))?)
            });
            Some(
                parts
                    .collect::<Result<Vec<_>>>()
                    .map(|parts| format!("{{{}}}", parts.join(","))),
            )
        }
        Expr::Literal(value, _) => Some(text(value)),
        Expr::Alias(alias) => constant_fractions(&alias.expr),
        _ => None,
    }
}

/// The text of a literal, below casts and aliases.
fn constant_text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Some(text.clone()),
        Expr::Cast(cast) => constant_text(&cast.expr),
        Expr::Alias(alias) => constant_text(&alias.expr),
        _ => None,
    }
}

/// Sums are as wide as their result anyway, so a cast that only widens an exact number is work for nothing.
fn without_widening(expr: Phys, input: &Schema) -> Result<Phys> {
    let Some(cast) = expr.downcast_ref::<CastExpr>() else {
        return Ok(expr);
    };
    let from = cast
        .expr()
        .data_type(input)
        .map_err(|e| PlanError::internal(e.to_string()))?;
    let widens = match (&from, cast.cast_type()) {
        (from, DataType::Int64) => from.is_signed_integer(),
        (from, DataType::Decimal128(38, 0)) => from.is_signed_integer(),
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t) | DataType::Decimal256(q, t)) => p <= q && s == t,
        _ => false,
    };
    if widens {
        without_widening(Arc::clone(cast.expr()), input)
    } else {
        Ok(expr)
    }
}

fn summable(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating() || data_type.is_decimal()
}
