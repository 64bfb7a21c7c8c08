//! Regions of hand-made plans under steps, failures, checkpoints and tiny budgets.
//!
//! The operators are small ones of this module's own, so that what is tested is the driver: a grouped sum with state, a
//! pass-through, a join-like explosion that works in many pieces, and a wrapper that panics on demand. [`operators`] has the
//! engine's own join, aggregate and top-N instead.

mod exchange;
mod harness;
mod operators;
mod recovery;
mod schedule;
