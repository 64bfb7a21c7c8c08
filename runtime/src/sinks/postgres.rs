//! Target `postgres`: a table, kept equal to the sink's rows, or appended to.
//!
//! ```text
//!   BEGIN
//!   SELECT sink, epoch, part FROM levee_sink_progress WHERE target = 't' FOR UPDATE     still ours, still where we left it
//!   COPY pg_temp.levee_gone;  DELETE FROM t USING pg_temp.levee_gone
//!   COPY pg_temp.levee_rows;  INSERT INTO t SELECT … ON CONFLICT (key) DO UPDATE
//!   UPDATE levee_sink_progress SET epoch = 48
//!   COMMIT
//! ```
//!
//! The row of `levee_sink_progress`, in the target table's schema, is marker and lock in one: whoever still commits for an earlier life
//! holds it, so opening waits until that outcome is known. Values go in COPY's binary form into temporary tables of Levee's own types,
//! so they arrive bit for bit; the INSERT converts them where the target's column is wider.
//!
//! Cost: one transaction a delivery, about eight round trips, whatever its size.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::SinkExt;
use levee_planner::catalog::{SinkDef, SinkMode};
use levee_planner::sql::types::base_name;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Transaction};

use super::changes::{Change, Op};
use super::delivery::StopWatch;
use super::format::columns;
use super::{Changes, Delivering, Marker, Target, TargetError, TargetResult, identity, takes_over};
use crate::{Result, RuntimeError};

mod check;
mod tls;
pub(super) use check::check;
use tls::Tls;

/// COPY's data is sent in pieces of about this size.
const PIECE_BYTES: usize = 1 << 20;
/// More rows than this are counted before they are joined to the target: a temporary table has no statistics by itself.
const ANALYZE_ROWS: usize = 10_000;

/// The time-out grows with a step by what a slow target takes.
const ROWS_PER_MS_MIN: u64 = 2;

/// Connector `postgres`.
pub(super) struct PostgresTarget {
    identity: String,
    takes_over: bool,
    address: Address,
    names: Names,
    sql: Sql,
    key: Vec<usize>,
    runtime: tokio::runtime::Runtime,
    stop: StopWatch,
    timeout: Duration,
    client: Option<Client>,
}

/// Quoted names.
#[derive(Debug, Clone)]
struct Names {
    table: String,
    progress: String,
    /// As `levee_sink_progress.target` holds it.
    target: String,
}

impl Names {
    fn of(def: &SinkDef) -> Self {
        let table = def.options.get("table.name").cloned().unwrap_or_default();
        let schema = def.options.get("schema.name").map_or("public", String::as_str);
        Self {
            table: format!("{}.{}", quoted(schema), quoted(&table)),
            progress: format!("{}.levee_sink_progress", quoted(schema)),
            target: table,
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Statements, made once.
#[derive(Debug)]
struct Sql {
    session: String,
    insert: String,
    delete: String,
}

impl Sql {
    fn new(def: &SinkDef, names: &Names, timeout: Duration) -> Self {
        let column = |c: usize| quoted(def.schema.field(c).name());
        let list = |columns: &[usize], f: &dyn Fn(usize) -> String| -> String {
            columns.iter().map(|&c| f(c)).collect::<Vec<_>>().join(", ")
        };
        let all: Vec<usize> = (0..def.schema.fields().len()).collect();
        let declare = |columns: &[usize]| {
            list(columns, &|c| {
                format!("c{c} {}", base_name(def.schema.field(c).data_type()))
            })
        };
        let ms = timeout.as_millis();
        let mut session = format!(
            "SET synchronous_commit = on; SET statement_timeout = {ms}; SET lock_timeout = {ms}; \
             SET idle_in_transaction_session_timeout = {ms}; SET client_min_messages = warning; \
             CREATE TEMPORARY TABLE levee_rows ({}) ON COMMIT DELETE ROWS;",
            declare(&all)
        );
        let from = list(&all, &|c| format!("c{c}"));
        let mut insert = format!(
            "INSERT INTO {} ({}) SELECT {from} FROM pg_temp.levee_rows",
            names.table,
            list(&all, &column)
        );
        let mut delete = String::new();
        if def.mode == SinkMode::Upsert {
            session.push_str(&format!(
                " CREATE TEMPORARY TABLE levee_gone ({}) ON COMMIT DELETE ROWS;",
                declare(&def.key)
            ));
            let others: Vec<usize> = all.iter().copied().filter(|c| !def.key.contains(c)).collect();
            insert.push_str(&format!(" ON CONFLICT ({}) DO ", list(&def.key, &column)));
            if others.is_empty() {
                insert.push_str("NOTHING");
            } else {
                insert.push_str("UPDATE SET ");
                insert.push_str(&list(&others, &|c| format!("{0} = EXCLUDED.{0}", column(c))));
            }
            let equal: Vec<String> = def.key.iter().map(|&c| format!("t.{} = g.c{c}", column(c))).collect();
            delete = format!(
                "DELETE FROM {} AS t USING pg_temp.levee_gone AS g WHERE {}",
                names.table,
                equal.join(" AND ")
            );
        }
        Self {
            session,
            insert,
            delete,
        }
    }
}

/// How to connect.
#[derive(Debug)]
struct Address {
    config: Config,
    tls: Tls,
}

impl Address {
    /// # Errors
    /// 22023 for an address that cannot be read.
    fn of(def: &SinkDef, timeout: Duration) -> Result<Self> {
        let mut options = def.options.clone();
        let plain = options.get("jdbc.url").map(|url| without_tls(url));
        if let Some((url, found)) = plain {
            options.insert("jdbc.url".to_owned(), url);
            // The options of the statement itself count.
            found.into_iter().for_each(|(key, value)| {
                options.entry(key).or_insert(value);
            });
        }
        let tls = Tls::of(&options)?;
        let mut config = config(&options, timeout)?;
        let local = config.get_hosts().iter().all(|h| matches!(h, Host::Unix(_)));
        config.ssl_mode(if local { SslMode::Disable } else { tls.mode });
        Ok(Self { config, tls })
    }
}

/// A URL without what it says of encryption, which the client library knows only in part.
fn without_tls(url: &str) -> (String, Vec<(String, String)>) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), Vec::new());
    };
    let (mut rest, mut found) = (Vec::new(), Vec::new());
    for part in query.split('&') {
        match part.split_once('=') {
            Some((key @ ("sslmode" | "sslrootcert"), value)) => {
                found.push((key.to_owned(), value.replace("%2F", "/").replace("%2f", "/")));
            }
            _ => rest.push(part),
        }
    }
    let url = if rest.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", rest.join("&"))
    };
    (url, found)
}

/// The address without encryption.
fn config(options: &BTreeMap<String, String>, timeout: Duration) -> Result<Config> {
    let option = |key: &str| options.get(key).map(String::as_str);
    let bad = |what: String| RuntimeError::user("22023", what);
    let mut config = match option("jdbc.url") {
        Some(url) => {
            let plain = url.strip_prefix("jdbc:").unwrap_or(url);
            plain
                .parse::<Config>()
                .map_err(|e| bad(format!("option \"jdbc.url\" cannot be read: {}", text(&e))))?
        }
        None => {
            let mut config = Config::new();
            config.host(option("host").unwrap_or("localhost"));
            config.port(option("port").and_then(|p| p.parse().ok()).unwrap_or(5432));
            if let Some(name) = option("dbname") {
                config.dbname(name);
            }
            config
        }
    };
    if let Some(user) = option("user") {
        config.user(user);
    }
    if let Some(password) = option("password") {
        config.password(password);
    }
    if config.get_user().is_none() {
        return Err(bad("option \"user\" of connector postgres is missing".to_owned()));
    }
    config
        .application_name("levee sink")
        .connect_timeout(timeout)
        .keepalives_idle(Duration::from_secs(10))
        .tcp_user_timeout(timeout);
    Ok(config)
}

/// A driver's error with what the server said.
fn text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let detail = db.detail().map(|d| format!(" ({d})")).unwrap_or_default();
            format!("{}: {}{detail}", db.code().code(), db.message())
        }
        None => {
            let cause = std::error::Error::source(error);
            cause.map_or_else(|| error.to_string(), |c| format!("{error}: {c}"))
        }
    }
}

fn retry(error: tokio_postgres::Error) -> TargetError {
    TargetError::Retry(text(&error))
}

async fn connect(address: &Address) -> TargetResult<Client> {
    let (client, connection) = address.config.connect(address.tls.clone()).await.map_err(retry)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = text(&error), "a sink's connection has ended");
        }
    });
    Ok(client)
}

impl PostgresTarget {
    /// The target of a definition.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(super) fn new(def: &SinkDef, stop: StopWatch) -> Result<Self> {
        let timeout = Delivering::of(def).timeout;
        let names = Names::of(def);
        Ok(Self {
            identity: identity(def),
            takes_over: takes_over(def),
            address: Address::of(def, timeout)?,
            sql: Sql::new(def, &names, timeout),
            names,
            key: def.key.clone(),
            runtime: super::runtime()?,
            stop,
            timeout,
            client: None,
        })
    }
}

impl Target for PostgresTarget {
    fn open(&mut self, fresh: bool) -> TargetResult<Option<Marker>> {
        self.client = None;
        let take_over = fresh && self.takes_over;
        let work = async {
            let mut client = connect(&self.address).await?;
            client.batch_execute(&self.sql.session).await.map_err(retry)?;
            let found = claim(&mut client, &self.names, &self.identity, take_over).await?;
            Ok((client, found))
        };
        let (client, found) = self
            .runtime
            .block_on(self.stop.guard(self.timeout, "connecting to PostgreSQL", work))?;
        self.client = Some(client);
        Ok(found)
    }

    fn write(&mut self, from: Option<Marker>, to: Marker, changes: &[Changes]) -> TargetResult<()> {
        let Some(mut client) = self.client.take() else {
            return Err(TargetError::Retry("not connected".to_owned()));
        };
        let rows = changes.iter().map(|c| c.changes.len() as u64).sum::<u64>();
        let allowed = self.timeout + Duration::from_millis(rows / ROWS_PER_MS_MIN);
        let work = async {
            let transaction = client.transaction().await.map_err(retry)?;
            if rows >= ANALYZE_ROWS as u64 {
                let sql = format!("SET LOCAL statement_timeout = {}", allowed.as_millis());
                transaction.batch_execute(&sql).await.map_err(retry)?;
            }
            let (owner, found) = position(&transaction, &self.names).await?;
            if owner.as_deref() != Some(self.identity.as_str()) {
                return Err(lost(&self.names, owner.as_deref()));
            }
            if found != from {
                return Err(TargetError::Retry("the target has moved on".to_owned()));
            }
            for part in changes {
                self.apply(&transaction, part).await?;
            }
            advance(&transaction, &self.names, to).await?;
            fail::fail_point!("sink::commit", |_| Err(TargetError::Retry(
                "failpoint before the commit".to_owned()
            )));
            transaction.commit().await.map_err(retry)
        };
        let wrote = self
            .runtime
            .block_on(self.stop.guard(allowed, "writing to PostgreSQL", work));
        if wrote.is_ok() {
            self.client = Some(client);
        }
        wrote
    }

    fn release(&mut self) -> TargetResult<()> {
        self.client = None;
        let work = async {
            let client = connect(&self.address).await?;
            let sql = format!("DELETE FROM {} WHERE target = $1 AND sink = $2", self.names.progress);
            client
                .execute(&sql, &[&self.names.target, &self.identity])
                .await
                .map_err(retry)?;
            Ok(())
        };
        // The sink's own watch has told it to stop.
        let never = StopWatch::never();
        self.runtime
            .block_on(never.guard(self.timeout, "releasing the table", work))
    }
}

impl PostgresTarget {
    /// Deletions first: a row that takes over another's unique value must find it free.
    async fn apply(&self, transaction: &Transaction<'_>, part: &Changes) -> TargetResult<()> {
        let gone: Vec<u32> = part
            .changes
            .iter()
            .filter(|c| c.op == Op::Delete)
            .filter_map(|c| c.before)
            .collect();
        if !gone.is_empty() {
            copy(transaction, "levee_gone", part, &gone, &self.key).await?;
            transaction.execute(&self.sql.delete, &[]).await.map_err(retry)?;
        }
        let rows: Vec<u32> = part.changes.iter().filter_map(|c: &Change| c.after).collect();
        if !rows.is_empty() {
            let all: Vec<usize> = (0..part.batch.num_columns()).collect();
            copy(transaction, "levee_rows", part, &rows, &all).await?;
            transaction.execute(&self.sql.insert, &[]).await.map_err(retry)?;
        }
        Ok(())
    }
}

/// Makes the marker's row the sink's own and reads it. Waits for whoever holds it.
async fn claim(client: &mut Client, names: &Names, identity: &str, take_over: bool) -> TargetResult<Option<Marker>> {
    let transaction = client.transaction().await.map_err(retry)?;
    let sql = format!(
        "INSERT INTO {} (target, sink) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        names.progress
    );
    transaction
        .execute(&sql, &[&names.target, &identity])
        .await
        .map_err(retry)?;
    let (owner, found) = position(&transaction, names).await?;
    let found = match owner {
        Some(owner) if owner == identity => found,
        _ if take_over => {
            let sql = format!(
                "UPDATE {} SET sink = $2, epoch = NULL, part = NULL, written_at = now() WHERE target = $1",
                names.progress
            );
            transaction
                .execute(&sql, &[&names.target, &identity])
                .await
                .map_err(retry)?;
            None
        }
        owner => return Err(lost(names, owner.as_deref())),
    };
    transaction.commit().await.map_err(retry)?;
    Ok(found)
}

fn lost(names: &Names, owner: Option<&str>) -> TargetError {
    TargetError::Lost(match owner {
        Some(owner) => format!("table {} belongs to another sink, {owner}", names.table),
        None => format!("table {} has no row for {} any more", names.progress, names.table),
    })
}

/// Who owns the target and where it stands; the row stays locked.
async fn position(transaction: &Transaction<'_>, names: &Names) -> TargetResult<(Option<String>, Option<Marker>)> {
    let sql = format!(
        "SELECT sink, epoch, part FROM {} WHERE target = $1 FOR UPDATE",
        names.progress
    );
    let row = transaction.query_opt(&sql, &[&names.target]).await.map_err(retry)?;
    let Some(row) = row else { return Ok((None, None)) };
    let number = |i: usize| -> TargetResult<Option<u64>> {
        let n: Option<i64> = row.try_get(i).map_err(retry)?;
        n.map(|n| u64::try_from(n).map_err(|_| TargetError::Lost("the marker at the target is negative".to_owned())))
            .transpose()
    };
    let marker = number(1)?.zip(number(2)?).map(|(epoch, part)| Marker { epoch, part });
    Ok((Some(row.try_get(0).map_err(retry)?), marker))
}

async fn advance(transaction: &Transaction<'_>, names: &Names, to: Marker) -> TargetResult<()> {
    let sql = format!(
        "UPDATE {} SET epoch = $2, part = $3, written_at = now() WHERE target = $1",
        names.progress
    );
    let number = |n: u64| i64::try_from(n).map_err(|_| TargetError::Lost("a marker is out of range".to_owned()));
    let (epoch, part) = (number(to.epoch)?, number(to.part)?);
    transaction
        .execute(&sql, &[&names.target, &epoch, &part])
        .await
        .map_err(retry)?;
    Ok(())
}

/// Sends rows into a temporary table.
async fn copy(
    transaction: &Transaction<'_>,
    table: &str,
    part: &Changes,
    rows: &[u32],
    fields: &[usize],
) -> TargetResult<()> {
    let columns = columns(&part.batch).map_err(|e| TargetError::Lost(e.to_string()))?;
    let sql = format!("COPY pg_temp.{table} FROM STDIN (FORMAT binary)");
    let sink = transaction.copy_in::<_, Bytes>(&sql).await.map_err(retry)?;
    let mut sink = std::pin::pin!(sink);
    let mut piece = Vec::with_capacity(PIECE_BYTES / 8);
    piece.extend_from_slice(b"PGCOPY\n\xff\r\n\0");
    piece.extend_from_slice(&[0; 8]);
    for &row in rows {
        piece.extend_from_slice(&(fields.len() as i16).to_be_bytes());
        for &field in fields {
            columns[field].put_binary(&mut piece, row as usize);
        }
        if piece.len() >= PIECE_BYTES {
            let full = std::mem::replace(&mut piece, Vec::with_capacity(PIECE_BYTES));
            sink.send(full.into()).await.map_err(retry)?;
        }
    }
    piece.extend_from_slice(&(-1_i16).to_be_bytes());
    sink.send(piece.into()).await.map_err(retry)?;
    sink.finish().await.map_err(retry)?;
    if rows.len() > ANALYZE_ROWS {
        let sql = format!("ANALYZE pg_temp.{table}");
        transaction.batch_execute(&sql).await.map_err(retry)?;
    }
    Ok(())
}
