//! Runtime errors, by what the caller does next.

use levee_planner::plan::ObjectId;

/// Runtime result.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// What went wrong below the server.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A write lost against a later one: retry the statement, or answer 40001 inside a block.
    #[error("could not serialize access due to concurrent update")]
    Conflict,
    /// Waiting for a lock would never end: others wait for what this transaction holds. Who waits for whom.
    #[error("deadlock detected")]
    Deadlock(String),
    /// A lock is held by another transaction, and waiting was not wanted.
    #[error("could not obtain lock")]
    Locked,
    /// The user must change something; `code` is a SQLSTATE.
    #[error("{message}")]
    User {
        /// SQLSTATE.
        code: &'static str,
        /// Message.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// The object is gone.
    #[error("object {0} does not exist")]
    NoObject(ObjectId),
    /// The epoch asked for has been folded away, or is not complete.
    #[error("epoch {epoch} of object {object} is no longer readable")]
    EpochUnavailable {
        /// Relation.
        object: ObjectId,
        /// Epoch.
        epoch: u64,
    },
    /// The disk is full or the log store is out: writes wait, then fail; reads go on.
    #[error("storage cannot take writes")]
    StorageFull(#[source] levee_storage::StorageError),
    /// Storage.
    #[error("storage failed")]
    Storage(#[from] levee_storage::StorageError),
    /// Planner data could not be used (an expression of a stored plan).
    #[error("plan cannot be run")]
    Plan(#[from] levee_planner::PlanError),
    /// A kernel failed.
    #[error("arrow kernel failed")]
    Arrow(#[from] arrow::error::ArrowError),
    /// An expression or batch plan failed.
    #[error("evaluation failed")]
    DataFusion(#[from] datafusion::error::DataFusionError),
    /// The process is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A bug: an invariant does not hold.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RuntimeError {
    /// A user's error without a hint.
    pub fn user(code: &'static str, message: impl Into<String>) -> Self {
        Self::User {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// A broken invariant.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal(message.into())
    }
}
