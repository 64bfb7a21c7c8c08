//! Queries' part of the process's memory budget.
//!
//! DataFusion's operators reserve what they hold. One that can spill gets at most half of the queries' share, so that it spills
//! before it starves the others; one that cannot fails alone, with 53200, when neither the share nor what others leave free is
//! enough.

use std::fmt::{Display, Formatter};
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use levee_runtime::memory::{Governor, Share};

/// The memory pool of all queries.
#[derive(Debug)]
pub(crate) struct GovernedPool(pub Arc<Governor>);

impl Display for GovernedPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let used = self.0.used(Share::Queries);
        write!(f, "governed(used: {used}, share: {})", self.0.share(Share::Queries))
    }
}

impl MemoryPool for GovernedPool {
    fn name(&self) -> &'static str {
        "governed"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.0.take(Share::Queries, additional);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.0.give(Share::Queries, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let greedy = consumer.can_spill() && reservation.size() + additional > self.0.share(Share::Queries) / 2;
        if !greedy && self.0.try_take(Share::Queries, additional) {
            return Ok(());
        }
        Err(DataFusionError::ResourcesExhausted(format!(
            "{} holds {} bytes and cannot have {additional} more: queries hold {} of {}",
            consumer.name(),
            reservation.size(),
            self.0.used(Share::Queries),
            self.0.share(Share::Queries)
        )))
    }

    fn reserved(&self) -> usize {
        self.0.used(Share::Queries)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.0.share(Share::Queries))
    }
}
