//! Bytes that outlive the process: the log, delta files and manifests. Knows epochs and vnodes, no SQL.

pub mod error;

pub use error::{Result, StorageError};
