//! PostgreSQL's wire protocol, version 3: bytes to messages and back.
//!
//! Frontend messages are decoded here with every length checked, so that no input can panic ([`frontend`]). Backend messages are
//! pgwire's, except rows, which [`crate::types::encode`] writes straight into the output buffer.

pub mod connection;
pub mod frontend;
