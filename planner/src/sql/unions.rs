//! Set operations: PostgreSQL's common type of the branches, settled before anything above is typed; and ALL of INTERSECT and EXCEPT.
//!
//! INTERSECT ALL keeps the smaller, EXCEPT ALL the difference of the numbers of equal rows. To DataFusion both are joins that keep or drop all
//! of them, so equal rows are numbered on both sides, and the numbers compared too:
//!
//! ```text
//!   a EXCEPT ALL b  →  π (#(a) ▷ #(b)),  #(r) = r with row_number() OVER (PARTITION BY all columns)
//! ```
//!
//! DataFusion lets a union have its first branch's types until much later. So [`super::derived`] settles those in derived tables, and
//! the binder what remains at the top of a query.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, NullEquality, Result as DfResult, TableReference};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::logical_plan::{Join, JoinType};
use datafusion::logical_expr::{Cast, Distinct, Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, Union};
use sqlparser::ast::{self, Query, SetExpr, SetOperator, SetQuantifier, Values};

use super::functions::external;
use super::operators::{Typed, cast_expr, common_type, df, is_text, is_unknown};
use super::typing::castable;
use crate::{PlanError, Result};

/// Set operations that may stand below each other.
const DEPTH_MAX: usize = 200;

/// `((a ∪ b) ∪ c) ∪ d` as `(a ∪ b) ∪ (c ∪ d)`, for each chain of UNION, of UNION ALL and of INTERSECT at the top of a body.
///
/// # Errors
/// 54001 for a chain of alternating operations.
pub(super) fn balance(body: &mut SetExpr) -> Result<()> {
    // From the outermost chain inwards; each ends where another operation stands.
    let mut outer: Vec<(SetOperator, SetQuantifier, Vec<SetExpr>)> = Vec::new();
    let mut rest = take(body);
    while let SetExpr::SetOperation {
        op,
        set_quantifier,
        left,
        right,
    } = rest
    {
        match outer.last_mut() {
            Some((o, q, branches)) if continues(*o, *q, op, set_quantifier) => branches.push(*right),
            _ => outer.push((op, set_quantifier, vec![*right])),
        }
        rest = *left;
    }
    if outer.len() > DEPTH_MAX {
        return Err(super::parse::too_deep());
    }
    for (op, quantifier, mut branches) in outer.into_iter().rev() {
        branches.push(rest);
        branches.reverse();
        rest = tree(op, quantifier, &mut branches);
    }
    *body = rest;
    Ok(())
}

fn take(body: &mut SetExpr) -> SetExpr {
    std::mem::replace(
        body,
        SetExpr::Values(Values {
            explicit_row: false,
            value_keyword: false,
            rows: Vec::new(),
        }),
    )
}

/// Is `left` part of the chain whose outermost operation is `op`? What is distinct in the end may be repeated before.
fn continues(op: SetOperator, q: SetQuantifier, left: SetOperator, left_q: SetQuantifier) -> bool {
    let distinct = |q| matches!(q, SetQuantifier::Distinct | SetQuantifier::None);
    match (op, left) {
        (SetOperator::Union, SetOperator::Union) => {
            (distinct(q) && (distinct(left_q) || left_q == SetQuantifier::All))
                || (q == SetQuantifier::All && left_q == SetQuantifier::All)
        }
        (SetOperator::Intersect, SetOperator::Intersect) => distinct(q) && distinct(left_q),
        _ => false,
    }
}

fn tree(op: SetOperator, quantifier: SetQuantifier, branches: &mut Vec<SetExpr>) -> SetExpr {
    let second = branches.split_off(branches.len().div_ceil(2));
    let inner = if op == SetOperator::Union {
        SetQuantifier::All
    } else {
        quantifier
    };
    let [left, right] = [std::mem::take(branches), second].map(|mut half| {
        Box::new(match half.pop() {
            Some(last) if half.is_empty() => last,
            last => {
                half.extend(last);
                tree(op, inner, &mut half)
            }
        })
    });
    SetExpr::SetOperation {
        op,
        set_quantifier: quantifier,
        left,
        right,
    }
}

/// Rows of VALUES in which an untyped literal stands below an expression of some type become the union of their rows: its types are PostgreSQL's,
/// DataFusion takes the literal for a text.
///
/// # Errors
/// 42601: rows of different lengths.
pub(super) fn settle_values(body: &mut SetExpr) -> Result<()> {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            settle_values(left)?;
            settle_values(right)
        }
        SetExpr::Values(values)
            if values
                .rows
                .windows(2)
                .any(|rows| rows[0].content.len() != rows[1].content.len()) =>
        {
            Err(PlanError::new("42601", "VALUES lists must all be the same length"))
        }
        SetExpr::Values(values) if is_mixed(values) => {
            let one = super::parse::parse_query("SELECT 1")?.body;
            let rows = std::mem::take(&mut values.rows);
            let mut selects: Vec<SetExpr> = rows.into_iter().map(|row| select_of(&one, row.content)).collect();
            *body = tree(SetOperator::Union, SetQuantifier::All, &mut selects);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn is_mixed(values: &Values) -> bool {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    let kind = |e: &ast::Expr| match e {
        ast::Expr::Value(v) if matches!(v.value, ast::Value::Null) => None,
        e => Some(super::assign::untyped(e)),
    };
    (0..width).any(|column| {
        let mut kinds = values.rows.iter().filter_map(|row| kind(&row.content[column]));
        kinds.next().is_some_and(|first| kinds.any(|other| other != first))
    })
}

/// `SELECT a AS column1, b AS column2`.
fn select_of(one: &SetExpr, row: Vec<ast::Expr>) -> SetExpr {
    let mut body = one.clone();
    if let SetExpr::Select(select) = &mut body {
        let named = |(i, expr)| ast::SelectItem::ExprWithAlias {
            expr,
            alias: ast::Ident::new(format!("column{}", i + 1)),
        };
        select.projection = row.into_iter().enumerate().map(named).collect();
    }
    body
}

/// Does a query unite others, at its top?
pub(super) fn has_set_operation(q: &Query) -> bool {
    fn body(b: &SetExpr) -> bool {
        match b {
            SetExpr::SetOperation { .. } => true,
            SetExpr::Query(q) => body(&q.body),
            _ => false,
        }
    }
    body(&q.body)
}

/// Gives every union the common types of its branches, and what stands above it a schema that says so.
pub(super) fn settle(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let mut changed = false;
    let plan = plan.transform_down(|node| match node {
        LogicalPlan::Union(u) if u.inputs.iter().any(|i| matches!(i.as_ref(), LogicalPlan::Union(_))) => {
            let mut inputs = Vec::with_capacity(u.inputs.len());
            flatten(u, &mut inputs);
            Union::try_new_with_loose_types(inputs).map(|u| Transformed::yes(LogicalPlan::Union(u)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    let plan = plan.data.transform_up(|node| match node {
        LogicalPlan::Union(u) => {
            let node = union(u)?;
            changed |= node.transformed;
            Ok(node)
        }
        LogicalPlan::Join(j) if is_set_operation(&j) => {
            let node = join(j)?;
            changed |= node.transformed;
            Ok(node)
        }
        other if changed => other.recompute_schema().map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    })?;
    Ok(plan.data)
}

/// The number of a row among those that are equal to it. A join that has it has been settled, in a derived table.
const LEFT_NUMBER: &str = "__left_number";

/// Is the join INTERSECT or EXCEPT? No other compares NULLs as equal.
fn is_set_operation(j: &Join) -> bool {
    matches!(j.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && j.null_equality == NullEquality::NullEqualsNull
        && j.on.len() == j.left.schema().fields().len()
        && !j.left.schema().has_column(&Column::new_unqualified(LEFT_NUMBER))
}

fn join(j: Join) -> DfResult<Transformed<LogicalPlan>> {
    let name = if j.join_type == JoinType::LeftSemi {
        "INTERSECT"
    } else {
        "EXCEPT"
    };
    // Of distinct rows, ALL or not is the same.
    let (distinct, left) = match j.left.as_ref() {
        LogicalPlan::Distinct(Distinct::All(input)) => (true, input),
        _ => (false, &j.left),
    };
    let targets = (0..left.schema().fields().len())
        .map(|i| df(common_type(&[branch_type(left, i), branch_type(&j.right, i)], name)))
        .collect::<DfResult<Vec<_>>>()?;
    if distinct && of_types(left, &targets) && of_types(&j.right, &targets) {
        return Ok(Transformed::no(LogicalPlan::Join(j)));
    }
    let names = names_of(left);
    let left = with_types(left, &targets, &names)?;
    let right = with_types(&j.right, &targets, &names)?;
    let columns = left.schema().columns();
    let (left, right) = if distinct {
        (LogicalPlanBuilder::from(left).distinct()?.build()?, right)
    } else {
        (numbered(left, LEFT_NUMBER)?, numbered(right, "__right_number")?)
    };
    let right = LogicalPlanBuilder::from(right).alias("__set")?.build()?;
    let on = (left.schema().columns(), right.schema().columns());
    LogicalPlanBuilder::from(left)
        .join_detailed(right, j.join_type, on, None, NullEquality::NullEqualsNull)?
        .project(columns.into_iter().map(Expr::Column))?
        .build()
        .map(Transformed::yes)
}

/// Each row with its number among those that are equal to it.
fn numbered(plan: LogicalPlan, name: &str) -> DfResult<LogicalPlan> {
    let all = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let number = row_number().partition_by(all).build()?.alias(name);
    LogicalPlanBuilder::from(plan).window(vec![number])?.build()
}

/// The branches of a union and of those that are its branches.
fn flatten(u: Union, inputs: &mut Vec<Arc<LogicalPlan>>) {
    for input in u.inputs {
        match Arc::unwrap_or_clone(input) {
            LogicalPlan::Union(u) => flatten(u, inputs),
            other => inputs.push(Arc::new(other)),
        }
    }
}

fn union(u: Union) -> DfResult<Transformed<LogicalPlan>> {
    let width = u.schema.fields().len();
    let mut targets = Vec::with_capacity(width);
    for i in 0..width {
        let types: Vec<Option<DataType>> = u.inputs.iter().map(|input| branch_type(input, i)).collect();
        targets.push(df(common_type(&types, "UNION"))?);
    }
    if u.inputs.iter().all(|i| of_types(i, &targets)) {
        return Ok(Transformed::no(LogicalPlan::Union(u)));
    }
    let names: Names = u.schema.iter().map(|(q, f)| (q.cloned(), f.name().clone())).collect();
    let inputs = u
        .inputs
        .iter()
        .map(|input| with_types(input, &targets, &names).map(Arc::new))
        .collect::<DfResult<Vec<_>>>()?;
    Union::try_new_with_loose_types(inputs).map(|u| Transformed::yes(LogicalPlan::Union(u)))
}

type Names = Vec<(Option<TableReference>, String)>;

fn names_of(plan: &LogicalPlan) -> Names {
    plan.schema()
        .iter()
        .map(|(q, f)| (q.cloned(), f.name().clone()))
        .collect()
}

fn of_types(input: &LogicalPlan, targets: &[DataType]) -> bool {
    let fields = input.schema().fields().iter();
    fields.zip(targets).all(|(f, t)| f.data_type() == t)
}

/// A branch with columns of these types and names.
fn with_types(input: &LogicalPlan, targets: &[DataType], names: &Names) -> DfResult<LogicalPlan> {
    let schema = Arc::clone(input.schema());
    let exprs = schema
        .iter()
        .zip(targets)
        .zip(names)
        .map(|(((q, f), target), (qualifier, name))| {
            let column = Expr::Column(Column::new(q.cloned(), f.name()));
            let e = convert(column, f.data_type(), target, branch_literal(input, f.name()))?;
            Ok(e.alias_qualified(qualifier.clone(), name))
        })
        .collect::<DfResult<Vec<Expr>>>()?;
    LogicalPlanBuilder::from(input.clone()).project(exprs)?.build()
}

/// The type of a branch's column; `None` for a literal without one.
fn branch_type(input: &LogicalPlan, column: usize) -> Option<DataType> {
    let f = input.schema().field(column);
    if branch_literal(input, f.name()).is_some() {
        return None;
    }
    Some(f.data_type().clone()).filter(|t| t != &DataType::Null)
}

/// The untyped literal that a branch's column is.
fn branch_literal(input: &LogicalPlan, name: &str) -> Option<Expr> {
    match input {
        LogicalPlan::Projection(p) => p
            .expr
            .iter()
            .find(|e| e.schema_name().to_string() == name)
            .map(|e| e.clone().unalias())
            .filter(is_unknown),
        _ => None,
    }
}

fn convert(column: Expr, from: &DataType, target: &DataType, literal: Option<Expr>) -> DfResult<Expr> {
    if let Some(e) = literal {
        return df(super::operators::coerce(Typed { expr: e, ty: None }, target));
    }
    if from == target {
        return Ok(column);
    }
    if from == &DataType::Null {
        return Ok(Expr::Cast(Cast::new(Box::new(column), target.clone())));
    }
    if is_text(from) != is_text(target) || castable(from, target).is_err() {
        return Err(external(PlanError::internal("union branches were not matched")));
    }
    df(cast_expr(column, from, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(body: &SetExpr) -> usize {
        match body {
            SetExpr::SetOperation { left, right, .. } => 1 + depth(left).max(depth(right)),
            _ => 0,
        }
    }

    fn balanced(sql: &str) -> SetExpr {
        *crate::sql::parse::parse_query(sql).unwrap().body
    }

    #[test]
    fn chains_are_as_deep_as_their_logarithm() {
        for op in [" UNION ALL ", " UNION ", " INTERSECT "] {
            let chain: Vec<String> = (0..900).map(|n| format!("SELECT {n}")).collect();
            let body = balanced(&chain.join(op));
            assert!(depth(&body) <= 10, "{op}: {}", depth(&body));
            let branches: Vec<String> = body
                .to_string()
                .split(op)
                .map(|b| b.replace(" ALL", "").trim_matches(['(', ')']).to_owned())
                .collect();
            assert!(op != " UNION ALL " || branches == chain, "{body}");
        }
    }

    #[test]
    fn what_is_distinct_in_between_stays_so() {
        assert_eq!(
            balanced("SELECT 1 UNION SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4").to_string(),
            "SELECT 1 UNION SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4"
        );
        let body = balanced("SELECT 1 UNION ALL SELECT 2 UNION SELECT 3");
        let SetExpr::SetOperation {
            set_quantifier, left, ..
        } = body
        else {
            panic!("no set operation");
        };
        assert_eq!(set_quantifier, SetQuantifier::None);
        assert_eq!(left.to_string(), "SELECT 1 UNION ALL SELECT 2");
    }

    #[test]
    fn alternating_chains_are_bounded() {
        let chain = (0..400)
            .map(|n| format!("SELECT {n} EXCEPT"))
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(
            crate::sql::parse::parse_query(&format!("{chain} SELECT 1"))
                .unwrap_err()
                .code,
            "54001"
        );
    }
}
