//! Checkpoints: delta files and the manifests that say which of them make up each region's state.
//!
//! ```text
//! delta/0000000003-0000000017.sst     term 3, its 17th file; never written twice
//! manifest/00000000000000000042       regions → versions (epoch, files oldest first), log_seq, catalog snapshot
//! ```
//!
//! A delta file is durable before a manifest names it, and a manifest is created only if its number is free, so a
//! crash leaves the old manifest or the new one, each complete. A region may have several versions: after a crash each
//! region starts at the newest version that none of its subscribers precedes ([`choose_versions`]), and replays the
//! log from there. A version's list of files is its whole state, oldest first, newest entry of a key winning; long
//! lists are merged ([`plan_merges`]), so that each entry is rewritten a logarithmic number of times.
//!
//! When to checkpoint, and how far back the log reaches, is the coordinator's business.

mod manifest;
mod merge;
mod objects;
mod restore;
mod store;

pub use manifest::{FileId, FileMeta, Manifest, RegionVersion, Regions, choose_versions, prune};
pub use merge::{FILES_MAX, MergePlan, apply_merge, plan_merges};
pub use objects::CheckpointTarget;
pub use restore::{Restore, VnodeSet, load};
pub(crate) use store::remove_scratch;
pub use store::{Candidate, CheckpointStore, GcReport, Loaded, WrittenDelta, highest_term};

#[cfg(test)]
mod tests;
