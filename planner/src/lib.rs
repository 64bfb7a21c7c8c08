//! SQL in, plans out.
//!
//! Two products leave this crate. A *bound statement* ([`sql::Statement`]) tells the server what to do: a DataFusion logical
//! plan for a read, a plan plus a target for DML, a definition for DDL. A *stream plan* ([`plan::StreamPlan`]) tells the runtime
//! how to keep a view: an owned, serialisable tree of operators with stable ids, cut into a [`plan::FragmentGraph`].
//!
//! There is no IO and no async here, and nothing of epochs, storage or PostgreSQL's wire format.

pub mod catalog;
pub mod connectors;
pub mod error;
pub mod interrupt;
pub mod job;
pub mod plan;
pub mod sql;
pub mod stream;

pub use error::{PlanError, Result};
