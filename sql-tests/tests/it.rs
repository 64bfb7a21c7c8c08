//! The system tests, in one binary. `cargo test -p levee-sql-tests --test it -- NAME` runs a part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod it {
    mod bad_input;
    mod blast;
    mod cases;
    mod crash;
    mod layers;
    mod property;
}
