//! The built server, as clients see it: each test starts its own on free ports and talks to it with tokio-postgres.

mod ddl;
mod errors;
mod harness;
mod protocol;
mod psql;
mod restart;
mod scripts;
mod transactions;
mod values;
