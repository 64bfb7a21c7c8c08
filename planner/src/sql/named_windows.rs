//! Named windows: `OVER (w …)` and `WINDOW v AS (w …)` take over what `w` says, by PostgreSQL's rules. The planner below reads a
//! window's own clauses only.

use std::collections::HashMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, Ident, NamedWindowExpr, OrderByKind, Query, Select, SetExpr, VisitMut, VisitorMut, WindowSpec,
    WindowType,
};

use super::ext::fold;
use crate::{PlanError, Result};

/// Windows of one SELECT.
#[derive(Default)]
struct Windows(HashMap<String, WindowSpec>);

impl Windows {
    /// Fills in what the window says that a specification names.
    fn fill(&self, spec: &mut WindowSpec) -> Result<()> {
        let Some(name) = &spec.window_name else { return Ok(()) };
        let name = fold(name);
        let refused = |what: String| Err(PlanError::new("42P20", what));
        let Some(base) = self.0.get(&name) else {
            return Err(missing(&name));
        };
        if !spec.partition_by.is_empty() {
            return refused(format!("cannot override PARTITION BY clause of window \"{name}\""));
        }
        if !spec.order_by.is_empty() && !base.order_by.is_empty() {
            return refused(format!("cannot override ORDER BY clause of window \"{name}\""));
        }
        if base.window_frame.is_some() {
            return refused(format!("cannot copy window \"{name}\" because it has a frame clause"));
        }
        spec.partition_by.clone_from(&base.partition_by);
        if spec.order_by.is_empty() {
            spec.order_by.clone_from(&base.order_by);
        }
        spec.window_name = None;
        Ok(())
    }
}

/// No window has this name.
pub(super) fn missing(name: &str) -> PlanError {
    PlanError::new("42704", format!("window \"{name}\" does not exist"))
}

/// Puts what named windows say in the place of their names in a SELECT. Those of subqueries are theirs.
///
/// # Errors
/// 42704 for a name that is not there, 42P20 for one that is there twice or may not be used so.
pub(super) fn resolve(s: &mut Select) -> Result<()> {
    uses(s).map(|_| ())
}

/// [`resolve`] for a query's SELECT and its ORDER BY, which knows the windows too.
///
/// # Errors
/// As [`resolve`].
pub(super) fn resolve_query(q: &mut Query) -> Result<()> {
    let SetExpr::Select(s) = q.body.as_mut() else {
        return Ok(());
    };
    let mut uses = uses(s)?;
    match q.order_by.as_mut().map(|order| &mut order.kind) {
        Some(OrderByKind::Expressions(keys)) => keys.iter_mut().try_for_each(|key| uses.replace(&mut key.expr)),
        _ => Ok(()),
    }
}

fn uses(s: &mut Select) -> Result<Uses> {
    let mut windows = Windows::default();
    for window in &mut s.named_window {
        let name = fold(&window.0);
        if let NamedWindowExpr::WindowSpec(spec) = &mut window.1 {
            windows.fill(spec)?;
            if windows.0.insert(name.clone(), spec.clone()).is_some() {
                return Err(PlanError::new("42P20", format!("window \"{name}\" is already defined")));
            }
        }
    }
    s.named_window.clear();
    let mut uses = Uses { windows, depth: 0 };
    for item in &mut s.projection {
        uses.replace(item)?;
    }
    Ok(uses)
}

struct Uses {
    windows: Windows,
    /// Queries that the place is in.
    depth: usize,
}

impl Uses {
    fn replace<T: VisitMut>(&mut self, part: &mut T) -> Result<()> {
        match part.visit(self) {
            ControlFlow::Break(e) => Err(e),
            ControlFlow::Continue(()) => Ok(()),
        }
    }
}

impl VisitorMut for Uses {
    type Break = PlanError;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<PlanError> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<PlanError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<PlanError> {
        match e {
            Expr::Function(Function {
                over: Some(WindowType::WindowSpec(spec)),
                ..
            }) if self.depth == 0 => match self.windows.fill(spec) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => ControlFlow::Break(e),
            },
            Expr::Function(Function { over, .. }) if self.depth == 0 => {
                if let Some(WindowType::NamedWindow(name)) = over {
                    let name = fold(name);
                    let Some(spec) = self.windows.0.get(&name) else {
                        return ControlFlow::Break(missing(&name));
                    };
                    *over = Some(WindowType::WindowSpec(spec.clone()));
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// A window that still names another stands where no SELECT's windows are known.
pub(super) fn refuse_rest(name: Option<&Ident>) -> Result<()> {
    name.map_or(Ok(()), |name| Err(missing(&fold(name))))
}
