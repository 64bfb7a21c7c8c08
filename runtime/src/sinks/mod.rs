//! Sinks: how a region's net changes reach a target outside, exactly once.
//!
//! ```text
//!   step done ─▶ coordinator ─▶ delivery thread ──(journal: where the step ends)──▶ target: changes + marker, one transaction
//!                    ▲                │
//!                    └── step counts ─┘
//! ```
//!
//! A step of a sink's region counts as done only when its changes are at the target, so the region's checkpoint never holds more than
//! the target does. The *marker* (which sink, and how far it has come) is written inside the target's own transaction. After a restart
//! the region starts at its checkpoint, at or before the marker, and computes the same changes again; those up to the marker are left
//! out. Three things make that exact:
//!
//! - **The same changes.** Epochs are replayed from the durable timeline and operators are deterministic.
//! - **The same boundary.** Steps may be cut anew after a restart, so the journal ([`journal`]) holds, durably and before each
//!   delivery, the two epochs at which the target may stand; no step of any region crosses them. So the target need not answer for
//!   the database to start.
//! - **One writer.** Opening a target ends what an earlier life may still have under way there (a row lock, a fenced producer) before
//!   the marker is read.
//!
//! An outcome that is unknown (the connection broke during the commit) is resolved in the same way: open again, read the marker.
//!
//! Each sink has one thread ([`delivery`]), at most two steps of its region under way, and no others wait for it.

mod blackhole;
mod changes;
pub mod delivery;
mod file;
mod format;
mod journal;
mod kafka;
mod postgres;
#[cfg(test)]
mod tests;

use std::time::Duration;

use levee_planner::catalog::SinkDef;

use crate::{Result, RuntimeError};
pub(crate) use changes::Changes;
pub use delivery::Delivery;
pub use journal::Journal;

/// How far a target has come: everything up to here is there, nothing beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marker {
    /// Last epoch of the newest step delivered.
    pub epoch: u64,
    /// [`Marker::WHOLE`], or while the sink is being filled for the first time the rows of the backfill that are delivered: all
    /// backfill steps have one epoch.
    pub part: u64,
}

impl Marker {
    /// The epoch is complete. It fits a signed integer, as targets have them.
    pub const WHOLE: u64 = i64::MAX as u64;

    /// All of an epoch.
    pub fn whole(epoch: u64) -> Self {
        Self {
            epoch,
            part: Self::WHOLE,
        }
    }
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.part {
            Self::WHOLE => write!(f, "{}", self.epoch),
            part => write!(f, "{} (row {part} of the first filling)", self.epoch),
        }
    }
}

/// Why a target did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It may work later: no connection, a time-out, a full disk, a row that the target refuses until someone changes it.
    #[error("{0}")]
    Retry(String),
    /// It cannot work any more: the target belongs to another sink, or does not stand where this sink left it.
    #[error("{0}")]
    Lost(String),
    /// The sink was stopped meanwhile.
    #[error("stopped")]
    Stopped,
}

impl TargetError {
    /// Worth another try.
    pub fn retry(error: impl std::fmt::Display) -> Self {
        Self::Retry(error.to_string())
    }
}

/// Target result.
pub type TargetResult<T> = std::result::Result<T, TargetError>;

/// Where a sink's changes go. Called from one thread; calls return within the sink's time-out, or soon after it was stopped.
pub trait Target: Send {
    /// Connects anew, ends whatever an earlier connection or process may still have under way, and reads the marker. `fresh`: this
    /// sink has never delivered, so another one's marker may be taken over if the user wished so.
    ///
    /// # Errors
    /// See [`TargetError`].
    fn open(&mut self, fresh: bool) -> TargetResult<Option<Marker>>;

    /// Writes `changes`, oldest step first, and the marker `to` in one transaction; the target stands at `from`. After an error the
    /// outcome is unknown until the next [`Target::open`].
    ///
    /// # Errors
    /// See [`TargetError`].
    fn write(&mut self, from: Option<Marker>, to: Marker, changes: &[Changes]) -> TargetResult<()>;

    /// The sink has been dropped: gives up its marker, so that another sink may have the target.
    ///
    /// # Errors
    /// See [`TargetError`]; nobody tries again.
    fn release(&mut self) -> TargetResult<()>;
}

/// What a sink's definition says of its delivery.
#[derive(Debug, Clone)]
pub struct Delivering {
    /// Keeps a marker, so each change is there once. False for a blackhole.
    pub durable: bool,
    /// Steps are gathered until their region's checkpoint, or until they have this many bytes; `None`: each is delivered at once.
    pub gather_bytes: Option<usize>,
    /// Longest wait for the target.
    pub timeout: Duration,
    /// A target that has been out for this long is asked less often, and the sink is shown as paused.
    pub pause_after: Duration,
}

/// Longest wait for a target without option `timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a sink without option `pause_after` is shown as paused.
const PAUSE_AFTER: Duration = Duration::from_secs(600);
/// Bytes after which a file is closed without option `roll_size`.
const ROLL_BYTES: usize = 64 << 20;

impl Delivering {
    /// Reads the options, which the planner has checked.
    pub fn of(def: &SinkDef) -> Self {
        let seconds = |key: &str, default: Duration| {
            let value = def.options.get(key).and_then(|v| v.parse::<f64>().ok());
            value.map_or(default, Duration::from_secs_f64)
        };
        let roll = def.options.get("roll_size").and_then(|v| v.parse().ok());
        Self {
            durable: def.connector != "blackhole",
            gather_bytes: (def.connector == "file").then(|| roll.unwrap_or(ROLL_BYTES)),
            timeout: seconds("timeout", TIMEOUT),
            pause_after: seconds("pause_after", PAUSE_AFTER),
        }
    }
}

/// Makes a sink's target; nothing is connected yet.
///
/// # Errors
/// The options cannot be used.
pub fn target(def: &SinkDef, stop: delivery::StopWatch) -> Result<Box<dyn Target>> {
    Ok(match def.connector.as_str() {
        "blackhole" => Box::new(blackhole::Blackhole),
        "file" => Box::new(file::FileTarget::new(def, stop)?),
        "kafka" => Box::new(kafka::KafkaTarget::new(def, stop)?),
        "postgres" => Box::new(postgres::PostgresTarget::new(def, stop)?),
        other => return Err(unknown(other)),
    })
}

/// Looks at a target before its sink is created: it can be reached, its columns take the sink's, and no other sink writes there.
/// Blocking.
///
/// # Errors
/// What must be changed, for the user.
pub fn check(def: &SinkDef) -> Result<()> {
    match def.connector.as_str() {
        "blackhole" => Ok(()),
        "file" => file::check(def),
        "kafka" => kafka::check(def),
        "postgres" => postgres::check(def),
        other => Err(unknown(other)),
    }
}

fn unknown(connector: &str) -> RuntimeError {
    RuntimeError::user("0A000", format!("sink connector \"{connector}\" is not supported"))
}

/// A runtime for one sink's own thread.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| RuntimeError::internal(format!("cannot make a sink's runtime: {e}")))
}

/// The name under which a sink's marker is kept at the target.
pub(crate) fn identity(def: &SinkDef) -> String {
    format!("levee-{:016x}", def.incarnation)
}

/// The user allowed to take a target from another sink.
pub(crate) fn takes_over(def: &SinkDef) -> bool {
    def.options.get("take_over").is_some_and(|v| v == "true")
}
