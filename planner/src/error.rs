//! What can be wrong with a statement, sorted by what its author should do.

/// Planner result.
pub type Result<T, E = PlanError> = std::result::Result<T, E>;

/// A refused statement. `server` maps `code` to the SQLSTATE field; the planner carries it because only it knows which of
/// PostgreSQL's conditions was met.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct PlanError {
    /// PostgreSQL's five-character condition code, such as `42P01`.
    pub code: &'static str,
    /// Primary message in PostgreSQL's form: lower-case first word, no final period.
    pub message: String,
    /// Optional secondary sentence.
    pub detail: Option<String>,
    /// Optional advice: what to write instead.
    pub hint: Option<String>,
    /// 1-based character offset into the statement's text.
    pub position: Option<usize>,
}

impl PlanError {
    /// An error with a code and a message only.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: None,
            hint: None,
            position: None,
        }
    }

    /// 0A000: understood, but not supported; `hint` should say what to write instead.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new("0A000", message)
    }

    /// XX000: a bug of Levee's own.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new("XX000", message)
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a secondary sentence.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a 1-based character position.
    #[must_use]
    pub fn at(mut self, position: usize) -> Self {
        self.position = Some(position);
        self
    }
}
