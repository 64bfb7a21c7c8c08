//! Bytes that outlive the process: the log, delta files and manifests. Knows epochs and vnodes, no SQL.
//!
//! ```text
//! commit ──► log::Log (fsync) ─────────────────────────────► recovery: manifest's log_seq and on
//! barrier ─► delta_file::DeltaBuilder ─► checkpoint::CheckpointStore::put_delta ─► commit(Manifest)
//!            └─ then tier::Tier::ingest, a snapshot of which regions read what they do not keep in memory
//! restart ─► load_candidates ─► checkpoint::load into a new tier ─► TierSnapshot
//! ```
//!
//! All calls block; callers use threads of their own. What is durable is decided through one port,
//! [`fs::FileSystem`], whose simulated twin loses power in the tests. What belongs where, and what an operator's
//! bytes mean, is the callers' business.

mod codec;

pub mod checkpoint;
pub mod delta_file;
pub mod error;
pub mod fs;
pub mod lock;
pub mod log;
mod owned;
pub mod rocks;
pub mod tier;

pub use error::{Result, StorageError};

/// The error of a failpoint set to `return`, with `full` as its argument for a full disk.
#[allow(
    dead_code,
    reason = "used by failpoints, which are compiled in only where a binary asks for them"
)]
pub(crate) fn injected(kind: Option<String>, context: &str) -> StorageError {
    let source = match kind.as_deref() {
        Some("full") => std::io::Error::from_raw_os_error(libc::ENOSPC),
        _ => std::io::Error::other("injected by a failpoint"),
    };
    StorageError::from_io(source, context)
}
