//! Qualified columns whose table has the name of a column in a nearer scope.
//!
//! In `SELECT … FROM u AS a WHERE EXISTS (SELECT … FROM k WHERE k.a = a.id)` DataFusion reads `a.id` as a field of the column
//! `k.a`. There are no columns with fields here, so such a reading is always wrong: [`Shadows`] notes the name, and the statement
//! is planned again with those tables under other names.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, TableFactor, VisitMut, VisitorMut,
};

use super::ext::fold;
use super::names::MARK;
use super::syntax::table_alias;
use crate::PlanError;

/// Names of tables that a planning took for columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadows(Arc<Mutex<BTreeSet<String>>>);

impl Shadows {
    pub fn note(&self, name: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned());
    }

    /// The names noted, with the one that `error` tells of: DataFusion has no hook for columns of outer queries.
    pub fn names(&self, error: &PlanError) -> BTreeSet<String> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, column)) = error.message.rsplit_once("not yet supported for OuterReferenceColumn ") {
            let name = column.trim_end_matches('"').rsplit(['.', '"']).next();
            names.extend(name.map(str::to_owned));
        }
        names
    }
}

/// Gives the tables called one of `names` other names.
pub(super) fn set_apart(q: &mut Query, names: &BTreeSet<String>) {
    let ControlFlow::Continue(()) = VisitMut::visit(q, &mut SetApart { names });
}

/// An error's text without the other names.
pub(super) fn shown_error(mut e: PlanError) -> PlanError {
    e.message = e.message.replace(MARK, "");
    e
}

struct SetApart<'a> {
    names: &'a BTreeSet<String>,
}

impl SetApart<'_> {
    fn other(&self, name: &Ident) -> Option<Ident> {
        let folded = fold(name);
        self.names
            .contains(&folded)
            .then(|| Ident::with_quote('"', format!("{folded}{MARK}")))
    }
}

impl VisitorMut for SetApart<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_table_factor(&mut self, t: &mut TableFactor) -> ControlFlow<Self::Break> {
        match t {
            TableFactor::Table {
                name,
                alias: alias @ None,
                ..
            } => {
                let last = name.0.last().and_then(|p| p.as_ident());
                *alias = last.and_then(|i| self.other(i)).map(|i| table_alias(&i.value));
            }
            TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. }
            | TableFactor::TableFunction { alias: Some(alias), .. }
            | TableFactor::Function { alias: Some(alias), .. }
            | TableFactor::NestedJoin { alias: Some(alias), .. } => {
                if let Some(other) = self.other(&alias.name) {
                    alias.name = other;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, s: &mut Select) -> ControlFlow<Self::Break> {
        for item in &mut s.projection {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item
                && let [part] = name.0.as_mut_slice()
                && let Some(other) = part.as_ident().and_then(|i| self.other(i))
            {
                *part = sqlparser::ast::ObjectNamePart::Identifier(other);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::CompoundIdentifier(parts) = e
            && let [first, _] = parts.as_mut_slice()
            && let Some(other) = self.other(first)
        {
            *first = other;
        }
        ControlFlow::Continue(())
    }
}
