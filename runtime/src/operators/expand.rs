//! Several maps of one input.
//!
//! Maintains `⊎ᵢ π_exprsᵢ(σ_predicateᵢ(input))`: the bag union of maps over one relation, which is read once. Like a map it assumes
//! nothing, emits at once and has no state.
//!
//! Cost per row: the expressions of all branches; passed columns are shared, not copied.

use arrow::datatypes::{Schema, SchemaRef};
use levee_planner::plan::ExpandBranch;

use super::map::Map;
use super::{Barrier, Operator, Output, Progress};
use crate::{Delta, Result};

/// The operator.
pub struct Expand {
    branches: Vec<Map>,
}

impl Expand {
    /// From a plan node.
    ///
    /// # Errors
    /// An expression cannot be compiled.
    pub fn new(branches: &[ExpandBranch], input: &Schema, schema: &SchemaRef) -> Result<Self> {
        let map = |b: &ExpandBranch| Map::new(b.predicate.as_ref(), Some(&b.exprs), input, schema);
        Ok(Self {
            branches: branches.iter().map(map).collect::<Result<_>>()?,
        })
    }
}

impl Operator for Expand {
    fn push(&mut self, input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        for branch in &mut self.branches {
            branch.push(input, delta.clone(), out)?;
        }
        Ok(Progress::Done)
    }

    fn close(&mut self, _barrier: &Barrier, _out: &mut Output) -> Result<Progress> {
        Ok(Progress::Done)
    }
}
