//! A client's session: start-up, the message loop, and what statements share.
//!
//! ```text
//!   message ─▶ Session::message ─┬─ simple.rs    one string of statements, an implicit block around several
//!                                ├─ extended.rs  Parse, Bind, Describe, Execute, Sync
//!                                └─ copy.rs      COPY data
//!            each statement ─▶ run.rs ─┬─ query.rs  reads: snapshot, plan, stream
//!                                      ├─ dml.rs    writes: rows, locks, checks, deltas
//!                                      └─ txn.rs    blocks
//! ```
//!
//! One task runs a session. It never blocks on a statement alone: [`Session::guarded`] puts cancel, time-out, the client's
//! leaving and the server's stop around whatever is awaited.

mod change;
mod conflict;
mod constraints;
mod copy;
mod cursors;
mod ddl;
mod dml;
mod extended;
mod jobs;
mod kept;
mod locks;
mod lookup;
mod parts;
mod point;
mod prepared;
mod query;
mod references;
mod rules;
mod run;
mod settings;
mod simple;
mod txn;
mod unique;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::datatypes::DataType;
use futures::FutureExt;
use levee_planner::catalog::{Catalog, ObjectKind};
use levee_planner::interrupt;
use levee_planner::plan::ObjectId;
use levee_planner::sql::{Ast, BindSettings, Binder, ExtStatement, OnCommit, Parsed, Statement, parse};
use levee_runtime::coordinator::LockOwner;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{CommandComplete, ReadyForQuery, TransactionStatus};
use pgwire::messages::startup::{Authentication, BackendKeyData, ParameterStatus, SecretKey};
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::cursors::Cursor;
use self::prepared::{Portal, Prepared};
pub use self::settings::SERVER_VERSION;
use self::settings::Settings;
use self::txn::{Block, Txn};
use crate::error::{Result, Severity, SqlError};
use crate::server::{Cancel, Server};
use crate::system::{SharedSequences, System, SystemContext};
use crate::wire::connection::{Reader, Writer, client_gone};
use crate::wire::frontend::{Frontend, StartupPacket};

/// The one database.
pub const DATABASE: &str = "dev";
/// A client must say who it is within this time.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A running session.
pub struct Session {
    server: Arc<Server>,
    reader: Reader,
    writer: Writer,
    settings: Settings,
    user: String,
    pid: i32,
    cancel: Arc<Cancel>,
    txn: Txn,
    statements: HashMap<String, Arc<Prepared>>,
    portals: HashMap<String, Portal>,
    cursors: HashMap<String, Cursor>,
    /// What the session has locked.
    locks: Arc<LockOwner>,
    /// Epoch of the session's last write: its reads see that or later.
    last_write: u64,
    /// After an error in the extended protocol, until Sync.
    skip_to_sync: bool,
    /// When the running statement must be done.
    deadline: Option<Instant>,
    /// Values taken from sequences.
    sequences: SharedSequences,
    /// Temporary tables that end or are emptied at COMMIT.
    on_commit: Vec<(ObjectId, OnCommit)>,
}

/// Serves one client until it leaves. `refused` is sent in answer to its first packet.
pub async fn serve(server: Arc<Server>, socket: TcpStream, refused: Option<SqlError>) {
    let (read, write) = socket.into_split();
    let mut reader = Reader::new(read, server.config.message_bytes_max);
    let mut writer = Writer::new(write);
    let started = tokio::time::timeout(STARTUP_TIMEOUT, startup(&server, &mut reader, &mut writer, refused)).await;
    match started {
        Ok(Ok(Some((user, settings)))) => Session::run(server, reader, writer, user, settings).await,
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(error)) => {
            if writer.put_error(&error).is_ok() && writer.flush().await.is_err() {
                tracing::debug!("client left before it was told of an error");
            }
        }
    }
}

/// Answers first packets until one starts a session.
async fn startup(
    server: &Arc<Server>,
    reader: &mut Reader,
    writer: &mut Writer,
    refused: Option<SqlError>,
) -> Result<Option<(String, Settings)>> {
    loop {
        match reader.startup().await? {
            None => return Ok(None),
            Some(StartupPacket::Ssl | StartupPacket::Gss) => {
                writer.put_byte(b'N');
                writer.flush().await?;
            }
            Some(StartupPacket::Cancel { pid, secret }) => {
                server.cancel(pid, Some(secret));
                return Ok(None);
            }
            Some(StartupPacket::Startup { version, parameters }) => {
                if let Some(error) = refused {
                    return Err(error);
                }
                if version >> 16 != 3 {
                    return Err(SqlError::fatal(
                        "0A000",
                        format!(
                            "unsupported frontend protocol {}.{}: server supports 3.0",
                            version >> 16,
                            version & 0xffff
                        ),
                    ));
                }
                return settings_of(&parameters).map(Some);
            }
        }
    }
}

fn settings_of(parameters: &BTreeMap<String, String>) -> Result<(String, Settings)> {
    let user = parameters.get("user").cloned().unwrap_or_default();
    if user.is_empty() {
        return Err(SqlError::fatal(
            "28000",
            "no PostgreSQL user name specified in startup packet",
        ));
    }
    let database = parameters.get("database").filter(|d| !d.is_empty()).unwrap_or(&user);
    if database != DATABASE {
        return Err(
            SqlError::fatal("3D000", format!("database \"{database}\" does not exist"))
                .hint(format!("The only database is \"{DATABASE}\".")),
        );
    }
    let mut settings = Settings::default();
    settings.set_user(&user);
    let fatal = |e: SqlError| SqlError::fatal(e.code().to_owned(), e.message().to_owned());
    for (name, value) in parameters {
        match name.as_str() {
            "user" | "database" | "replication" => {}
            "options" => {
                for (name, value) in options(value) {
                    settings.start_with(&name, &value).map_err(fatal)?;
                }
            }
            _ if name.starts_with("_pq_.") => {}
            _ => settings.start_with(name, value).map_err(fatal)?,
        }
    }
    Ok((user, settings))
}

/// `-c name=value --name=value`, with backslashes before blanks in values.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match c {
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            c if c.is_whitespace() && !escaped => words.push(String::new()),
            c => {
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
        escaped = false;
    }
    words
        .iter()
        .filter_map(|w| w.trim_start_matches("--").trim_start_matches("-c").split_once('='))
        .map(|(n, v)| (n.replace('-', "_"), v.to_owned()))
        .collect()
}

impl Session {
    async fn run(server: Arc<Server>, reader: Reader, writer: Writer, user: String, settings: Settings) {
        let (pid, secret, cancel) = server.register();
        let mut session = Self {
            server: Arc::clone(&server),
            reader,
            writer,
            settings,
            user,
            pid,
            cancel,
            txn: Txn::Idle,
            statements: HashMap::new(),
            portals: HashMap::new(),
            cursors: HashMap::new(),
            locks: Arc::new(server.engine.locks().owner(pid)),
            last_write: 0,
            skip_to_sync: false,
            deadline: None,
            sequences: SharedSequences::default(),
            on_commit: Vec::new(),
        };
        let ended = session.talk(secret).await;
        session.drop_temporary().await;
        server.unregister(pid);
        if let Err(error) = ended {
            if error.code() != client_gone().code() {
                tracing::debug!(
                    session = pid,
                    code = error.code(),
                    message = error.message(),
                    "session ended"
                );
            }
            let told = session.writer.put_error(&error).is_ok()
                && tokio::time::timeout(Duration::from_secs(1), session.writer.flush())
                    .await
                    .is_ok();
            if !told {
                tracing::debug!(session = pid, "client left before it was told of an error");
            }
        }
    }

    async fn talk(&mut self, secret: i32) -> Result<()> {
        self.put(&PgWireBackendMessage::Authentication(Authentication::Ok))?;
        for (name, value) in self.settings.reports() {
            self.report(name, value)?;
        }
        self.put(&PgWireBackendMessage::BackendKeyData(BackendKeyData::new(
            self.pid,
            SecretKey::I32(secret),
        )))?;
        self.ready().await?;
        loop {
            let Some(message) = self.next_message().await? else {
                return Ok(());
            };
            if matches!(message, Frontend::Terminate) {
                return Ok(());
            }
            let extended = message.is_extended();
            self.cancel.reset();
            let handled = AssertUnwindSafe(self.message(message)).catch_unwind().await;
            let result = handled.unwrap_or_else(|panic| {
                let reason = panic_text(&panic);
                tracing::error!(session = self.pid, reason, "statement panicked");
                Err(SqlError::internal(format!("internal error: {reason}")))
            });
            if let Err(error) = result {
                self.failed(&error, extended).await?;
            }
        }
    }

    /// The next message, or the end: the client leaves, the server stops, or a block stays idle for too long.
    async fn next_message(&mut self) -> Result<Option<Frontend>> {
        let idle = match &self.txn {
            Txn::Open(_) | Txn::Failed(_) => self.settings.timeout("idle_in_transaction_session_timeout"),
            _ => None,
        };
        tokio::select! {
            biased;
            () = self.server.stop.cancelled() => {
                Err(SqlError::fatal("57P01", "terminating connection due to administrator command"))
            }
            message = self.reader.message() => message,
            () = sleep_opt(idle) => {
                Err(SqlError::fatal("25P03", "terminating connection due to idle-in-transaction timeout"))
            }
        }
    }

    async fn message(&mut self, message: Frontend) -> Result<()> {
        if self.skip_to_sync && !matches!(message, Frontend::Sync) {
            return Ok(());
        }
        match message {
            Frontend::Query(sql) => self.simple_query(&sql).await,
            Frontend::Parse { name, sql, types } => self.parse_message(name, &sql, &types).await,
            Frontend::Bind {
                portal,
                statement,
                formats,
                parameters,
                result_formats,
            } => self.bind_message(portal, &statement, &formats, &parameters, &result_formats),
            Frontend::DescribeStatement(name) => self.describe_statement(&name),
            Frontend::DescribePortal(name) => self.describe_portal(&name),
            Frontend::Execute { portal, limit } => self.execute_message(&portal, limit).await,
            Frontend::CloseStatement(name) => self.close_statement(&name),
            Frontend::ClosePortal(name) => self.close_portal(&name),
            Frontend::Flush => self.writer.flush().await,
            Frontend::Sync => self.sync().await,
            // What is left of a COPY that has failed.
            Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail(_) => Ok(()),
            Frontend::Password => Err(SqlError::protocol("unexpected password message")),
            Frontend::Terminate => Ok(()),
        }
    }

    /// Tells the client of an error. Fatal ones are returned.
    async fn failed(&mut self, error: &SqlError, extended: bool) -> Result<()> {
        self.server.metrics.errors.with_label_values(&[error.code()]).inc();
        if error.is_fatal() {
            return Err(error.clone());
        }
        self.writer.put_error(error)?;
        let mark = self.txn.fail();
        self.locks.release_to(mark);
        if !matches!(self.txn, Txn::Open(_)) {
            self.portals.clear();
        }
        if extended {
            self.skip_to_sync = true;
            return self.writer.flush().await;
        }
        self.ready().await
    }

    /// ReadyForQuery, and everything buffered goes out.
    async fn ready(&mut self) -> Result<()> {
        let status = match self.txn {
            Txn::Idle | Txn::Implicit(_) => TransactionStatus::Idle,
            Txn::Open(_) => TransactionStatus::Transaction,
            Txn::Failed(_) => TransactionStatus::Error,
        };
        self.put(&PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status)))?;
        self.writer.flush().await
    }

    fn put(&mut self, message: &PgWireBackendMessage) -> Result<()> {
        self.writer.put(message)
    }

    fn complete(&mut self, tag: String) -> Result<()> {
        self.put(&PgWireBackendMessage::CommandComplete(CommandComplete::new(tag)))
    }

    fn report(&mut self, name: &str, value: String) -> Result<()> {
        self.put(&PgWireBackendMessage::ParameterStatus(ParameterStatus::new(
            name.to_owned(),
            value,
        )))
    }

    /// Sends a notice or warning if the session wants to hear it.
    fn notice(&mut self, notice: &SqlError) -> Result<()> {
        let level = match notice.fields().severity {
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error | Severity::Fatal => "error",
        };
        if self.settings.wants(level) {
            self.writer.put_error(notice)?;
        }
        Ok(())
    }

    /// A new statement's clock.
    fn start_timer(&mut self) {
        self.deadline = self.settings.timeout("statement_timeout").map(|t| Instant::now() + t);
    }

    /// Awaits `work` under cancel, time-out, the client's leaving and the server's stop.
    async fn guarded<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        guard(&mut self.reader, &self.cancel, self.deadline, &self.server, work).await
    }

    /// Runs a computation on a thread of its own, awaited as [`Session::guarded`] does: planning may take long, and neither other
    /// sessions nor this one's cancel request wait for it. What nobody waits for any more is told to stop.
    async fn planned<T: Send + 'static>(&mut self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let stop = StopOnDrop::default();
        let flag = Arc::clone(&stop.0);
        let task = tokio::task::spawn_blocking(move || interrupt::under(flag, work));
        let done = async {
            match task.await {
                Ok(result) => result,
                Err(e) => match e.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(SqlError::internal("planning was given up")),
                },
            }
        };
        let result = self.guarded(done).await;
        drop(stop);
        result
    }

    /// Binds a statement, see [`Session::planned`].
    async fn bind(&mut self, binder: &SessionBinder, parsed: &Parsed, types: &[Option<DataType>]) -> Result<Statement> {
        if is_short(parsed, &binder.catalog) {
            return binder.bind(parsed, types);
        }
        let (binder, parsed, types) = (binder.clone(), parsed.clone(), types.to_vec());
        self.planned(move || binder.bind(&parsed, &types)).await
    }

    /// Parses a query string; a long one as [`Session::planned`] does.
    async fn parsed(&mut self, sql: &str) -> Result<Vec<Parsed>> {
        if sql.len() <= PARSED_BYTES_MAX {
            return Ok(parse(sql)?);
        }
        let sql = sql.to_owned();
        self.planned(move || Ok(parse(&sql)?)).await
    }

    /// Sends what is buffered, under the same guard: a client that does not read can be cancelled.
    async fn flush_guarded(&mut self) -> Result<()> {
        guard(
            &mut self.reader,
            &self.cancel,
            self.deadline,
            &self.server,
            self.writer.flush(),
        )
        .await
    }

    fn is_read_only(&self) -> bool {
        match self.txn.block() {
            Some(block) => block.read_only,
            None => self.settings.is_on("default_transaction_read_only"),
        }
    }

    /// Schemas in which unqualified names are looked for.
    fn search_path(&self) -> Vec<String> {
        levee_planner::sql::search_path(self.settings.text("search_path"), &self.user)
    }

    /// What the session's schema for temporary objects is called.
    fn temporary_name(&self) -> String {
        format!("pg_temp_{}", self.pid)
    }

    /// The session's schema for temporary objects, once it has one.
    fn temporary(&self, catalog: &Catalog) -> Option<ObjectId> {
        catalog.namespace_named(&self.temporary_name()).map(|n| n.id)
    }

    /// A binder over the newest catalog, for a statement at `now_us`.
    fn binder(&self) -> SessionBinder {
        let catalog = self.server.engine.catalog();
        let now_us = self.txn.block().map_or_else(now_us, Block::now_us);
        let context = SystemContext {
            server: Arc::clone(&self.server),
            catalog: Arc::clone(&catalog),
            user: self.user.clone(),
            pid: self.pid,
            settings: self.settings.all(),
            now_us,
            search_path: self.search_path(),
            temporary: self.temporary(&catalog),
            sequences: Arc::clone(&self.sequences),
            read_only: self.is_read_only(),
        };
        let (search_path, temporary) = (context.search_path.clone(), context.temporary);
        let system = System::new(context);
        let inner = Binder {
            extra_udfs: system.functions(),
            system: Arc::new(system),
            catalog,
            settings: BindSettings {
                time_zone: self.settings.zone().name().to_owned(),
                now_us,
                user: self.user.clone(),
                parallelism: self.server.config.parallelism,
                search_path,
                temporary,
                temporary_name: self.temporary_name(),
            },
            base: Some(self.server.base_state()),
        };
        SessionBinder(inner)
    }
}

/// Texts up to this length are parsed in no time.
const PARSED_BYTES_MAX: usize = 16 << 10;

/// Texts up to this length, views that they may read included, are bound in less time than another thread takes to wake up under load.
const BOUND_BYTES_MAX: usize = 1 << 10;

/// Statements that are bound in no time.
fn is_short(parsed: &Parsed, catalog: &Catalog) -> bool {
    match &parsed.ast {
        Ast::Sql(_) => {
            let views = catalog.objects().map(|o| match &o.kind {
                ObjectKind::View(v) => v.sql.len(),
                _ => 0,
            });
            parsed.text.len() <= BOUND_BYTES_MAX && views.sum::<usize>() <= 4 * BOUND_BYTES_MAX
        }
        Ast::Ext(s) => matches!(
            s.as_ref(),
            ExtStatement::Set { .. }
                | ExtStatement::Show(_)
                | ExtStatement::Reset(_)
                | ExtStatement::Begin { .. }
                | ExtStatement::Commit
                | ExtStatement::Rollback
                | ExtStatement::Savepoint(_)
                | ExtStatement::Release(_)
                | ExtStatement::RollbackTo(_)
                | ExtStatement::Fetch { .. }
                | ExtStatement::CloseCursor(_)
                | ExtStatement::Prepare { .. }
                | ExtStatement::Execute { .. }
                | ExtStatement::Deallocate(_)
        ),
    }
}

/// Tells a planning to stop once nobody waits for it.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The planner's binder, with queries on system catalogs rewritten first.
#[derive(Debug, Clone)]
struct SessionBinder(Binder);

impl SessionBinder {
    fn bind(&self, parsed: &Parsed, types: &[Option<DataType>]) -> Result<Statement> {
        match System::rewritten(parsed) {
            Some(rewritten) => Ok(self.0.bind(&rewritten, types)?),
            None => Ok(self.0.bind(parsed, types)?),
        }
    }
}

impl std::ops::Deref for SessionBinder {
    type Target = Binder;

    fn deref(&self) -> &Binder {
        &self.0
    }
}

/// See [`Session::guarded`]; takes the parts so that the writer stays free.
async fn guard<T>(
    reader: &mut Reader,
    cancel: &Cancel,
    deadline: Option<Instant>,
    server: &Server,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        () = cancel.wait() => Err(SqlError::new("57014", "canceling statement due to user request")),
        () = sleep_until_opt(deadline) => Err(SqlError::new("57014", "canceling statement due to statement timeout")),
        () = server.stop.cancelled() => Err(SqlError::fatal("57P01", "terminating connection due to administrator command")),
        result = work => result,
        () = reader.closed() => Err(client_gone()),
    }
}

async fn sleep_until_opt(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn sleep_opt(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The wall clock: what `now()` is for a statement that starts now.
#[expect(
    clippy::disallowed_methods,
    reason = "sessions are outside the deterministic part; now() is a value by the time it is bound"
)]
fn now_us() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason given")
}

/// Formats of `n` columns from the codes of a Bind message.
fn formats(codes: &[i16], n: usize) -> Result<Vec<bool>> {
    let one = |code: i16| match code {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(SqlError::new("22023", format!("unsupported format code: {other}"))),
    };
    match codes {
        [] => Ok(vec![false; n]),
        [code] => Ok(vec![one(*code)?; n]),
        codes if codes.len() == n => codes.iter().map(|c| one(*c)).collect(),
        codes => Err(SqlError::new(
            "08P01",
            format!("bind message has {} formats but {n} values", codes.len()),
        )),
    }
}
