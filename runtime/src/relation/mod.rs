//! Relations: what regions materialize.
//!
//! ```text
//!            base ≤ 40        runs, one per step
//!   ┌───────────────────────┐ ┌────┐ ┌────┐ ┌────────┐
//!   │ sorted, consolidated  │ │ 41 │ │ 42 │ │ 43..48 │      read at 42 = base + run 41 + run 42
//!   └───────────────────────┘ └────┘ └────┘ └────────┘
//!                  ▲ folds behind the oldest pin, subscriber and retained checkpoint
//! ```
//!
//! The same runs are the change log that subscribers read, the versions that readers merge and the delta that a checkpoint
//! writes. A read pins immutable `Arc`s and takes no task's lock.

mod snapshot;

pub use snapshot::RelationSnapshot;
