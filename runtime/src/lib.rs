//! The epoch runtime: what happens between the log and a relation's runs.
//!
//! * [`coordinator`] cuts epochs, folds the catalog, tells each region which step to take, checkpoints and recovers.
//! * [`dataflow`] runs a region's tasks on its own threads and moves batches between them.
//! * [`operators`] are the relational steps, synchronous and deterministic.
//! * [`relation`] is what a region materializes and what readers read.
//! * [`memory`] is the budget that all of them keep to.
//! * [`sinks`] bring a region's net changes to targets outside, exactly once.
//! * [`sources`] read exactly the ranges that a timeline record names.
//!
//! Nothing here sees SQL text or PostgreSQL messages.

pub mod coordinator;
pub mod dataflow;
pub mod delta;
pub mod error;
pub mod hash;
pub mod memory;
pub mod operators;
pub mod relation;
mod sinks;
pub mod sources;

pub use delta::{Delta, Diffs};
pub use error::{Result, RuntimeError};
