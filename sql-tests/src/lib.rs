//! What judges Levee: SQL cases, random queries, crashes, and a real PostgreSQL.
//!
//! ```text
//!   cases/*.slt ──┬─▶ PostgreSQL 15        (postgres)   ─┐
//!                 ├─▶ batch query          (db)          ├─▶ all equal
//!                 └─▶ view, fed 7 ways     (db, feed)   ─┘
//! ```
//!
//! * [`postgres`] starts a throw-away server; [`server`] starts the `levee` binary.
//! * [`db`] embeds the engine without the wire, so that a test decides what enters which epoch.
//! * [`cases`] reads the case files; [`feed`] turns a table's contents into random slices with retractions.
//! * [`generate`] makes random tables, changes and queries.
//! * [`world`] runs a random case and compares every view with its query at every epoch.
//! * [`turns`] keeps tests that change the whole process alone.
//! * [`rows`] compares results: exact, except floats.
//!
//! Nothing here is used by the product, and panicking is how these helpers report.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::let_underscore_must_use,
    reason = "a test panics when something is wrong, prints its figures, waits, and cleans up as far as it can"
)]

pub mod cases;
pub mod db;
pub mod feed;
pub mod generate;
pub mod postgres;
pub mod rows;
pub mod server;
pub mod turns;
pub mod world;
