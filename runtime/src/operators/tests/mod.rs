//! Operators against naive recomputation.
//!
//! Each case runs one stream of random steps through several set-ups: one task and whole deltas; one task and row by row; three
//! tasks, random cuts, and now and then all state written, dropped and restored (also into another number of tasks). Every
//! step's output must be the same Z-set, to the bit, in all of them, and what has been emitted so far must be the relation
//! that the operator maintains.

#![allow(clippy::clone_on_ref_ptr, reason = "schemas and columns are cloned to build cases")]

mod aggregates;
mod faults;
mod harness;
mod joins;
mod maps;
mod temporals;
mod topns;
mod upserts;
mod values;
mod windows;

pub(crate) use harness::MemoryTier;
pub use values::Rng;
