//! The system tests, in one binary. `cargo test -p levee-sql-tests --test system -- NAME` runs a part.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::let_underscore_must_use,
    reason = "a test panics when something is wrong, prints its figures, waits, and cleans up as far as it can"
)]

mod system {
    mod ask;
    mod backlog;
    mod bad_input;
    mod blast;
    mod blocks;
    mod cases;
    mod crash;
    mod files;
    mod jobs;
    mod layers;
    mod power;
    mod property;
    mod replays;
    mod scripts;
    mod timers;
}
