//! What has become of a streaming job besides its definition: whether it runs, and if not, why.
//!
//! ```text
//!              complete                 PAUSE
//!   Creating ───────────▶ Running ◀──────────────▶ Paused
//!                          ▲   │ RESUME
//!     REFRESH / RESUME     │   │ an error that does not go away, WITH NO DATA
//!   (built from scratch)   │   ▼
//!                      Failed, Unpopulated
//! ```
//!
//! States are part of the catalog, so they enter the log with DDL, and a restart finds them again.

use serde::{Deserialize, Serialize};

/// State of a materialized view, sink or source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// It follows its inputs, or is being built in the background.
    #[default]
    Running,
    /// The statement that creates it has not been answered: it goes when nobody waits for that any more.
    Creating,
    /// Takes no further steps until it is resumed.
    Paused,
    /// Created WITH NO DATA, or emptied by REFRESH … WITH NO DATA.
    Unpopulated,
    /// It could not go on; its state has been let go of.
    Failed(String),
}
