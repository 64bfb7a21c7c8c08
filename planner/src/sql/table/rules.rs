//! A table's own expressions, bound for the writes of one statement: generated columns, then checks.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, Volatility};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::catalog::{CatalogObject, Generated, TableDef};
use crate::sql::errors::map_df_error;
use crate::sql::operators::boolean;
use crate::sql::typing::typed;
use crate::sql::{Binder, assign};
use crate::{PlanError, Result};

/// Expressions over the columns of a table's rows.
#[derive(Debug, Clone)]
pub struct RowRules {
    /// The row's columns.
    pub schema: DFSchema,
    /// Generated columns and their values.
    pub generated: Vec<(usize, Expr)>,
    /// Names of constraints and their conditions; NULL passes.
    pub checks: Vec<(String, Expr)>,
}

impl Binder {
    /// The rules of a table; `None` if it has none.
    ///
    /// # Errors
    /// A stored expression cannot be bound any more.
    pub fn row_rules(&self, object: &CatalogObject) -> Result<Option<RowRules>> {
        let Some(table) = object.table() else { return Ok(None) };
        let stored = |g: &Generated| matches!(g, Generated::Stored(_));
        if table.constraints.checks.is_empty() && !table.generated.values().any(stored) {
            return Ok(None);
        }
        let schema = arrow::datatypes::Schema::new(
            table
                .schema
                .fields()
                .iter()
                .map(|f| f.as_ref().clone().with_nullable(true))
                .collect::<Vec<_>>(),
        );
        let schema = DFSchema::try_from_qualified_schema(object.name.as_str(), &schema).map_err(map_df_error)?;
        let settle = |e: Expr| {
            let context = SimplifyContext::default();
            ExprSimplifier::new(context).coerce(e, &schema).map_err(map_df_error)
        };
        let mut generated = Vec::new();
        for (column, g) in &table.generated {
            let Generated::Stored(sql) = g else { continue };
            let e = crate::sql::parse::parse_expr(sql)?;
            let bound = self.bind_expr(&e, &schema, self.batch(), &[])?;
            let value = assign::assign(
                typed(bound, &schema).map_err(map_df_error)?,
                table.schema.field(*column),
            )?;
            generated.push((*column, settle(value)?));
        }
        let mut checks = Vec::new();
        for check in &table.constraints.checks {
            let e = crate::sql::parse::parse_expr(&check.sql)?;
            let bound = self.bind_expr(&e, &schema, self.batch(), &[])?;
            let condition = boolean(typed(bound, &schema).map_err(map_df_error)?, "CHECK")?;
            checks.push((check.name.clone(), settle(condition)?));
        }
        Ok(Some(RowRules {
            schema,
            generated,
            checks,
        }))
    }
}

/// Whether an expression calls a function that may answer otherwise another time.
pub(super) fn is_volatile(e: &Expr) -> bool {
    let mut found = false;
    // The closure has no failing case.
    let _walked = e.apply(|e| {
        if let Expr::ScalarFunction(f) = e {
            found |= f.func.signature().volatility != Volatility::Immutable;
        }
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    });
    found
}

/// What INSERT says of identity columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sql) enum Overriding {
    /// Nothing.
    None,
    /// OVERRIDING SYSTEM VALUE: values given count.
    System,
    /// OVERRIDING USER VALUE: values given do not count.
    User,
}

/// Whether a value may be given for a column in INSERT: 428C9 for one that the system fills. `false`: the default counts instead.
pub(in crate::sql) fn takes_value(table: &TableDef, column: usize, overriding: Overriding) -> Result<bool> {
    let name = table.schema.field(column).name();
    let refused = || {
        PlanError::new(
            "428C9",
            format!("cannot insert a non-DEFAULT value into column \"{name}\""),
        )
    };
    match table.generated.get(&column) {
        None => Ok(true),
        Some(Generated::Stored(_)) => Err(refused().detail(format!("Column \"{name}\" is a generated column."))),
        Some(Generated::Identity { .. }) if overriding == Overriding::User => Ok(false),
        Some(Generated::Identity { always: true, .. }) if overriding == Overriding::None => Err(refused()
            .detail(format!(
                "Column \"{name}\" is an identity column defined as GENERATED ALWAYS."
            ))
            .hint("Use OVERRIDING SYSTEM VALUE to override.")),
        Some(Generated::Identity { .. }) => Ok(true),
    }
}

/// 428C9 for a value in UPDATE … SET of a column that the system fills.
pub(in crate::sql) fn refuse_set(table: &TableDef, column: usize) -> Result<()> {
    let name = table.schema.field(column).name();
    let what = match table.generated.get(&column) {
        Some(Generated::Stored(_)) => "a generated column",
        Some(Generated::Identity { always: true, .. }) => "an identity column defined as GENERATED ALWAYS",
        _ => return Ok(()),
    };
    Err(
        PlanError::new("428C9", format!("column \"{name}\" can only be updated to DEFAULT"))
            .detail(format!("Column \"{name}\" is {what}.")),
    )
}

/// The OVERRIDING clause of an INSERT's text; the grammar knows none, so the parser leaves it out (see [`without_overriding`]).
pub(in crate::sql) fn overriding(text: &str) -> Result<Overriding> {
    if !text.to_lowercase().contains("overriding") {
        return Ok(Overriding::None);
    }
    let tokens = crate::sql::parse::tokenize(text)?;
    Ok(find_overriding(&tokens).map_or(Overriding::None, |(_, o)| o))
}

/// An INSERT's tokens without OVERRIDING … VALUE.
pub(in crate::sql) fn without_overriding(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    if let Some((range, _)) = find_overriding(&tokens) {
        tokens.drain(range);
    }
    tokens
}

fn find_overriding(tokens: &[TokenWithSpan]) -> Option<(std::ops::Range<usize>, Overriding)> {
    let words: Vec<(usize, String)> = tokens
        .iter()
        .enumerate()
        .filter_map(|(i, t)| match &t.token {
            Token::Word(w) if w.quote_style.is_none() => Some((i, w.value.to_lowercase())),
            _ => None,
        })
        .collect();
    if words.first().is_none_or(|(_, w)| w != "insert") {
        return None;
    }
    words.windows(3).find_map(|w| {
        let kind = match (w[0].1.as_str(), w[1].1.as_str(), w[2].1.as_str()) {
            ("overriding", "system", "value") => Overriding::System,
            ("overriding", "user", "value") => Overriding::User,
            _ => return None,
        };
        Some((w[0].0..w[2].0 + 1, kind))
    })
}

impl Binder {
    /// A column's default as a value.
    ///
    /// # Errors
    /// 0A000 if it is none that stays the same.
    pub fn constant_default(&self, table: &TableDef, column: usize) -> Result<ScalarValue> {
        match crate::sql::bind::simplify(self.default_of(table, column)?)? {
            Expr::Literal(v, _) => Ok(v),
            _ => Err(PlanError::unsupported(format!(
                "SET DEFAULT with the default of column \"{}\" is not supported",
                table.schema.field(column).name()
            ))
            .hint("Give the column a constant default.")),
        }
    }
}
