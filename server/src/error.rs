//! What a client is told when something fails: the only place where lower layers' errors become SQLSTATE.

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use levee_planner::PlanError;
use levee_planner::sql::map_df_error;
use levee_runtime::RuntimeError;
use levee_storage::StorageError;

/// Session result.
pub type Result<T, E = SqlError> = std::result::Result<T, E>;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement fails.
    Error,
    /// The connection ends.
    Fatal,
    /// A notice that something may be wrong.
    Warning,
    /// A notice.
    Notice,
}

impl Severity {
    /// PostgreSQL's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
        }
    }
}

/// An error or notice in PostgreSQL's form. Boxed where it travels in a `Result`, so that results stay small.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    fields: Box<ErrorFields>,
    message: String,
}

/// The fields of an error besides its message.
#[derive(Debug, Clone)]
pub struct ErrorFields {
    /// Severity.
    pub severity: Severity,
    /// SQLSTATE.
    pub code: String,
    /// Detail.
    pub detail: Option<String>,
    /// Hint.
    pub hint: Option<String>,
    /// 1-based character position in the query string.
    pub position: Option<usize>,
    /// CONTEXT.
    pub context: Option<String>,
    /// Table concerned.
    pub table: Option<String>,
    /// Column concerned.
    pub column: Option<String>,
    /// Constraint concerned.
    pub constraint: Option<String>,
}

impl SqlError {
    /// An error that ends the statement.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_severity(Severity::Error, code, message)
    }

    /// An error that ends the connection.
    pub fn fatal(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_severity(Severity::Fatal, code, message)
    }

    /// A notice.
    pub fn notice(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_severity(Severity::Notice, code, message)
    }

    /// A warning.
    pub fn warning(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_severity(Severity::Warning, code, message)
    }

    /// 08P01: the client does not speak the protocol; the connection is closed.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::fatal("08P01", message)
    }

    /// 0A000.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new("0A000", message)
    }

    /// XX000: a bug of Levee's own.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new("XX000", message)
    }

    fn with_severity(severity: Severity, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            fields: Box::new(ErrorFields {
                severity,
                code: code.into(),
                detail: None,
                hint: None,
                position: None,
                context: None,
                table: None,
                column: None,
                constraint: None,
            }),
            message: message.into(),
        }
    }

    /// Adds a detail.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.fields.detail = Some(detail.into());
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.fields.hint = Some(hint.into());
        self
    }

    /// Adds a context line.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.fields.context = Some(context.into());
        self
    }

    /// Names the table and, if known, the column and constraint.
    #[must_use]
    pub fn object(mut self, table: &str, column: Option<&str>, constraint: Option<&str>) -> Self {
        self.fields.table = Some(table.to_owned());
        self.fields.column = column.map(str::to_owned);
        self.fields.constraint = constraint.map(str::to_owned);
        self
    }

    /// Moves the position by the statement's offset in the query string.
    #[must_use]
    pub fn shift(mut self, offset: usize) -> Self {
        self.fields.position = self.fields.position.map(|p| p + offset);
        self
    }

    /// SQLSTATE.
    pub fn code(&self) -> &str {
        &self.fields.code
    }

    /// Primary message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// All other fields.
    pub fn fields(&self) -> &ErrorFields {
        &self.fields
    }

    /// Ends the connection.
    pub fn is_fatal(&self) -> bool {
        self.fields.severity == Severity::Fatal
    }
}

impl From<PlanError> for SqlError {
    fn from(e: PlanError) -> Self {
        let mut error = Self::new(e.code, e.message);
        error.fields.detail = e.detail;
        error.fields.hint = e.hint;
        error.fields.position = e.position;
        error
    }
}

impl From<RuntimeError> for SqlError {
    fn from(e: RuntimeError) -> Self {
        match e {
            RuntimeError::Conflict => Self::new("40001", "could not serialize access due to concurrent update")
                .hint("The transaction might succeed if retried."),
            RuntimeError::Deadlock(detail) => Self::new("40P01", "deadlock detected")
                .detail(detail)
                .hint("Run the transaction again; taking locks in the same order everywhere avoids it."),
            RuntimeError::Locked => Self::new("55P03", "could not obtain lock"),
            RuntimeError::User { code, message, hint } => {
                let error = Self::new(code, message);
                match hint {
                    Some(hint) => error.hint(hint),
                    None => error,
                }
            }
            RuntimeError::NoObject(id) => Self::new("42P01", format!("relation with OID {} does not exist", id.0)),
            RuntimeError::EpochUnavailable { .. } => {
                Self::new("72000", "snapshot too old").hint("Start a new transaction and try again.")
            }
            RuntimeError::StorageFull(source) => Self::new("53100", "storage cannot take writes: no space left")
                .detail(chain(&source))
                .hint("Free some disk space; reads go on meanwhile."),
            RuntimeError::Storage(source) => from_storage(&source),
            RuntimeError::Plan(e) => e.into(),
            RuntimeError::Arrow(e) => e.into(),
            RuntimeError::DataFusion(e) => e.into(),
            RuntimeError::ShuttingDown => Self::new("57P01", "the server is shutting down"),
            RuntimeError::Internal(message) => Self::internal(message),
        }
    }
}

fn from_storage(e: &StorageError) -> SqlError {
    match e {
        StorageError::Full { .. } => SqlError::new("53100", e.to_string()).hint("Free some disk space."),
        StorageError::Corrupt { .. } | StorageError::Version { .. } => SqlError::new("XX001", e.to_string()),
        StorageError::LogClosed(_) => SqlError::new("57P03", e.to_string()).hint("Restart the server."),
        _ => SqlError::new("58030", e.to_string()).detail(chain(e)),
    }
}

/// An error's sources, from the outermost.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

impl From<ArrowError> for SqlError {
    fn from(e: ArrowError) -> Self {
        match e {
            ArrowError::DivideByZero => Self::new("22012", "division by zero"),
            ArrowError::ArithmeticOverflow(m) => Self::new("22003", overflow_message(&m)),
            ArrowError::ExternalError(e) => from_external(e),
            ArrowError::CastError(m) | ArrowError::ParseError(m) => Self::new(cast_code(&m), lower_first(&m)),
            ArrowError::ComputeError(m) => Self::new("22000", lower_first(&m)),
            ArrowError::InvalidArgumentError(m) => Self::new("22023", lower_first(&m)),
            ArrowError::NotYetImplemented(m) => Self::unsupported(lower_first(&m)),
            ArrowError::MemoryError(m) => Self::new("53200", format!("out of memory: {m}")),
            other => Self::internal(other.to_string()),
        }
    }
}

fn from_external(e: Box<dyn std::error::Error + Send + Sync>) -> SqlError {
    let e = match e.downcast::<SqlError>() {
        Ok(error) => return *error,
        Err(e) => e,
    };
    let e = match e.downcast::<PlanError>() {
        Ok(error) => return (*error).into(),
        Err(e) => e,
    };
    let e = match e.downcast::<RuntimeError>() {
        Ok(error) => return (*error).into(),
        Err(e) => e,
    };
    let e = match e.downcast::<DataFusionError>() {
        Ok(error) => return (*error).into(),
        Err(e) => e,
    };
    match e.downcast::<ArrowError>() {
        Ok(error) => (*error).into(),
        Err(e) => SqlError::internal(e.to_string()),
    }
}

impl From<DataFusionError> for SqlError {
    fn from(e: DataFusionError) -> Self {
        match e {
            DataFusionError::ArrowError(e, _) => (*e).into(),
            DataFusionError::External(e) => from_external(e),
            DataFusionError::Context(_, e) | DataFusionError::Diagnostic(_, e) => (*e).into(),
            DataFusionError::Shared(e) => from_shared(&e),
            DataFusionError::Collection(mut list) if !list.is_empty() => list.swap_remove(0).into(),
            DataFusionError::ResourcesExhausted(m) => Self::new("53200", "out of memory")
                .detail(m)
                .hint("Narrow the query, or raise the setting memory_limit."),
            e @ (DataFusionError::NotImplemented(_) | DataFusionError::Plan(_)) => map_df_error(e).into(),
            DataFusionError::SchemaError(e, _) => Self::new("42703", lower_first(&e.to_string())),
            DataFusionError::SQL(e, _) => Self::new("42601", e.to_string()),
            DataFusionError::Execution(m) => Self::new(execution_code(&m), lower_first(&m)),
            DataFusionError::Configuration(m) => Self::new("22023", lower_first(&m)),
            DataFusionError::IoError(e) => Self::new("58030", e.to_string()),
            other => Self::internal(other.strip_backtrace()),
        }
    }
}

/// A shared error can only be looked at: what its typed causes say, else its text.
fn from_shared(e: &DataFusionError) -> SqlError {
    match e {
        DataFusionError::Shared(e) => from_shared(e),
        DataFusionError::Context(_, e) | DataFusionError::Diagnostic(_, e) => from_shared(e),
        DataFusionError::External(e) => {
            if let Some(e) = e.downcast_ref::<SqlError>() {
                return e.clone();
            }
            if let Some(e) = e.downcast_ref::<PlanError>() {
                return e.clone().into();
            }
            SqlError::internal(e.to_string())
        }
        DataFusionError::ArrowError(e, _) => match e.as_ref() {
            ArrowError::DivideByZero => ArrowError::DivideByZero.into(),
            ArrowError::ArithmeticOverflow(m) => ArrowError::ArithmeticOverflow(m.clone()).into(),
            ArrowError::CastError(m) => ArrowError::CastError(m.clone()).into(),
            ArrowError::ParseError(m) => ArrowError::ParseError(m.clone()).into(),
            ArrowError::ComputeError(m) => ArrowError::ComputeError(m.clone()).into(),
            ArrowError::ExternalError(e) => match e.downcast_ref::<SqlError>() {
                Some(e) => e.clone(),
                None => match e.downcast_ref::<PlanError>() {
                    Some(e) => e.clone().into(),
                    None => SqlError::internal(e.to_string()),
                },
            },
            other => SqlError::internal(other.to_string()),
        },
        DataFusionError::Execution(m) => DataFusionError::Execution(m.clone()).into(),
        DataFusionError::Plan(m) => DataFusionError::Plan(m.clone()).into(),
        DataFusionError::NotImplemented(m) => DataFusionError::NotImplemented(m.clone()).into(),
        DataFusionError::ResourcesExhausted(m) => DataFusionError::ResourcesExhausted(m.clone()).into(),
        other => SqlError::internal(other.strip_backtrace()),
    }
}

fn overflow_message(m: &str) -> String {
    if m.contains("Overflow happened on") || m.is_empty() {
        return "value out of range".to_owned();
    }
    lower_first(m)
}

fn cast_code(m: &str) -> &'static str {
    if m.contains("Can't cast value") || m.contains("out of range") || m.contains("too large to store") {
        "22003"
    } else if m.contains("date") || m.contains("timestamp") || m.contains("time zone") {
        "22007"
    } else {
        "22P02"
    }
}

fn execution_code(m: &str) -> &'static str {
    let lower = m.to_lowercase();
    if lower.contains("overflow") || lower.contains("out of range") {
        "22003"
    } else if lower.contains("divide by zero") || lower.contains("division by zero") {
        "22012"
    } else if lower.contains("more than one row") {
        "21000"
    } else if lower.contains("timestamp") || lower.contains("date") {
        "22007"
    } else {
        "22023"
    }
}

fn lower_first(m: &str) -> String {
    let first_line = m.lines().next().unwrap_or(m);
    let mut chars = first_line.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(a), Some(b)) if a.is_uppercase() && b.is_lowercase() => a.to_lowercase().chain(chars).collect(),
        _ => first_line.to_owned(),
    }
}
