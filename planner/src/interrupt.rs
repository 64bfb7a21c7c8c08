//! Stopping a planning that nobody waits for any more.
//!
//! Planning is one computation without a point at which it could be dropped, so whoever runs it hands it a flag, and what takes long
//! looks at the flag now and then: every operator of an expression that is typed, every relation, every rule of an optimiser.
//!
//! ```text
//!   session ── under(flag, plan) ──▶ thread:  bind ─ check ─ … ─ rule ─ check ─ rule ─ check ─ …
//!      └─ cancelled: sets the flag ───────────────────────────────────▲ 57014
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::Result as DfResult;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::sql::functions::external;
use crate::{PlanError, Result};

thread_local! {
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `work`, which [`check`] ends once `stop` is set. Whatever `work` starts on other threads is not ended.
pub fn under<T>(stop: Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    /// Puts the flag of the work around back, also after a panic.
    struct Restore(Option<Arc<AtomicBool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            STOP.set(self.0.take());
        }
    }
    let _restore = Restore(STOP.replace(Some(stop)));
    work()
}

/// Whether the work may go on.
///
/// # Errors
/// 57014 once the flag of [`under`] is set.
pub fn check() -> Result<()> {
    let stopped = STOP.with_borrow(|stop| stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)));
    if stopped {
        return Err(PlanError::new("57014", "canceling statement due to user request"));
    }
    Ok(())
}

/// [`check`] as an optimiser's rule: it changes nothing.
#[derive(Debug)]
pub(crate) struct CheckInterrupt;

impl OptimizerRule for CheckInterrupt {
    fn name(&self) -> &str {
        "check_interrupt"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> DfResult<Transformed<LogicalPlan>> {
        check().map_err(external)?;
        Ok(Transformed::no(plan))
    }
}

/// Rules with a [`CheckInterrupt`] before each.
pub(crate) fn interruptible(
    rules: impl IntoIterator<Item = Arc<dyn OptimizerRule + Send + Sync>>,
) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    rules
        .into_iter()
        .flat_map(|rule| [Arc::new(CheckInterrupt) as Arc<dyn OptimizerRule + Send + Sync>, rule])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_work_under_the_flag_is_stopped() {
        let (outer, inner) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        under(Arc::clone(&outer), || {
            assert!(check().is_ok());
            assert_eq!(under(inner, check).unwrap_err().code, "57014");
            assert!(check().is_ok());
            outer.store(true, Ordering::Relaxed);
            assert!(check().is_err());
        });
        assert!(check().is_ok());
    }
}
