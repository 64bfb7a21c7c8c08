//! Transactions. A block gathers its writes; COMMIT hands them to the engine as one request.
//!
//! READ COMMITTED: each statement reads the newest epoch, the block's own writes on top; what it changes is locked until the end, so
//! it is still as it was read when the block commits. REPEATABLE READ: the block reads one epoch, and a row that has changed since
//! is 40001.
//!
//! A savepoint remembers how far the writes and locks had come; going back to it drops what came later. After an error a block
//! keeps its state, without the locks taken since its last savepoint, until ROLLBACK or ROLLBACK TO.
//!
//! A string of several statements, or Executes before one Sync, form an *implicit* block: same rules, ended by the string's end.

use std::collections::BTreeMap;
use std::sync::Arc;

use levee_planner::catalog::CatalogObject;
use levee_planner::plan::ObjectId;
use levee_runtime::Delta;
use levee_runtime::coordinator::{CommitRequest, EpochPin};
use levee_runtime::memory::{Holder, Share};
use levee_runtime::relation::{OwnChanges, RelationSnapshot};

use super::{Session, now_us};
use crate::error::{Result, SqlError};
use crate::session::settings::Settings;

/// Where a session stands.
pub(super) enum Txn {
    /// Between statements.
    Idle,
    /// In a string of statements, or between Executes.
    Implicit(Box<Block>),
    /// In BEGIN … COMMIT.
    Open(Box<Block>),
    /// In a block that has failed, until ROLLBACK or ROLLBACK TO.
    Failed(Box<Block>),
}

/// What a block's statements see of others' commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Each statement sees the newest.
    ReadCommitted,
    /// All see what the first saw.
    RepeatableRead,
}

/// How far a block had come.
struct Savepoint {
    name: String,
    /// Deltas by table.
    writes: BTreeMap<ObjectId, usize>,
    bytes: usize,
    settings: Settings,
    local: usize,
    locks: usize,
}

/// A block's state.
pub(super) struct Block {
    now_us: i64,
    isolation: Isolation,
    /// Has read or written.
    begun: bool,
    /// The epoch that it reads (REPEATABLE READ), from its first statement that reads or writes.
    pin: Option<EpochPin>,
    /// The newest epoch at which a statement's rows were checked, all keys written being locked since.
    checked_at: u64,
    savepoints: Vec<Savepoint>,
    writes: BTreeMap<ObjectId, Vec<Delta>>,
    /// The same for its own reads.
    own: BTreeMap<ObjectId, OwnChanges>,
    /// What the writes were checked against.
    definitions: BTreeMap<ObjectId, Arc<CatalogObject>>,
    bytes: usize,
    /// Counts them in the queries' memory.
    held: Option<Holder>,
    /// Refuses writes.
    pub read_only: bool,
    /// Settings to go back to: at ROLLBACK, all; at COMMIT, those of SET LOCAL.
    before: Settings,
    local: Vec<String>,
    /// Objects were created or dropped in it; that is not undone.
    pub ddl: bool,
}

impl Block {
    fn new(settings: &Settings) -> Self {
        Self {
            now_us: now_us(),
            isolation: isolation_of(settings.text("default_transaction_isolation")),
            begun: false,
            pin: None,
            checked_at: 0,
            savepoints: Vec::new(),
            writes: BTreeMap::new(),
            own: BTreeMap::new(),
            definitions: BTreeMap::new(),
            bytes: 0,
            held: None,
            read_only: false,
            before: settings.clone(),
            local: Vec::new(),
            ddl: false,
        }
    }

    /// `now()` in it.
    pub fn now_us(&self) -> i64 {
        self.now_us
    }

    /// Has read or written.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// DDL takes effect at once, so it may stand in a block only before the block's writes; what the block reads after it is newer.
    pub fn pass_ddl(&mut self) -> bool {
        let free = self.writes.is_empty();
        if free {
            self.ddl = true;
            self.pin = None;
            self.begun = false;
        }
        free
    }

    /// Savepoints that it is in.
    pub fn depth(&self) -> usize {
        self.savepoints.len()
    }

    fn find_savepoint(&self, name: &str) -> Result<usize> {
        self.savepoints
            .iter()
            .rposition(|s| s.name == name)
            .ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }

    /// A table with the block's own changes on top.
    pub fn with_own_changes(
        &mut self,
        table: ObjectId,
        relation: &RelationSnapshot,
    ) -> Result<Option<RelationSnapshot>> {
        let Some(changes) = self.writes.get(&table) else {
            return Ok(None);
        };
        let own = self.own.entry(table).or_default();
        own.take(relation, changes)?;
        Ok(Some(relation.with_changes(own)))
    }
}

impl Txn {
    /// The block, if in one that has not failed.
    pub fn block(&self) -> Option<&Block> {
        match self {
            Self::Implicit(b) | Self::Open(b) => Some(b),
            Self::Idle | Self::Failed(_) => None,
        }
    }

    pub fn block_mut(&mut self) -> Option<&mut Block> {
        match self {
            Self::Implicit(b) | Self::Open(b) => Some(b),
            Self::Idle | Self::Failed(_) => None,
        }
    }

    /// A statement has failed: an implicit block is gone, an explicit one waits for ROLLBACK. Answers up to which mark locks are kept.
    pub fn fail(&mut self) -> usize {
        let (now, mark) = match std::mem::replace(self, Self::Idle) {
            Self::Idle | Self::Implicit(_) => (Self::Idle, 0),
            Self::Open(block) | Self::Failed(block) => {
                let mark = block.savepoints.last().map_or(0, |s| s.locks);
                (Self::Failed(block), mark)
            }
        };
        *self = now;
        mark
    }
}

/// Levels that Levee does not have get the next stronger or weaker one that it has.
fn isolation_of(level: &str) -> Isolation {
    match level {
        "read committed" | "read uncommitted" => Isolation::ReadCommitted,
        _ => Isolation::RepeatableRead,
    }
}

impl Session {
    /// BEGIN.
    pub(super) fn begin(&mut self, read_only: bool, isolation: Option<&str>) -> Result<()> {
        match &self.txn {
            Txn::Open(_) => {
                return self.notice(&SqlError::warning(
                    "25001",
                    "there is already a transaction in progress",
                ));
            }
            Txn::Failed(_) => return Err(failed_block()),
            Txn::Idle | Txn::Implicit(_) => {}
        }
        let mut block = match std::mem::replace(&mut self.txn, Txn::Idle) {
            // Earlier statements of the string become part of the block, as in PostgreSQL.
            Txn::Implicit(block) => block,
            _ => Box::new(Block::new(&self.settings)),
        };
        block.read_only = read_only || self.settings.is_on("default_transaction_read_only");
        let isolation = isolation
            .unwrap_or_else(|| self.settings.text("default_transaction_isolation"))
            .to_owned();
        self.txn = Txn::Open(block);
        self.set_isolation(&isolation)
    }

    /// The level of the block. SERIALIZABLE gets REPEATABLE READ, and a notice.
    pub(super) fn set_isolation(&mut self, level: &str) -> Result<()> {
        let shown = if level == "serializable" {
            "repeatable read"
        } else {
            level
        };
        self.settings.set("transaction_isolation", Some(shown))?;
        if let Some(block) = self.txn.block_mut() {
            block.isolation = isolation_of(level);
        }
        if level == "serializable" {
            return self.notice(
                &SqlError::notice(
                    "0A000",
                    "SERIALIZABLE is not supported; the transaction runs as REPEATABLE READ",
                )
                .hint("Write skew between transactions that read each other's tables is possible."),
            );
        }
        Ok(())
    }

    /// In a block whose statements all see one epoch.
    pub(super) fn repeatable_read(&self) -> bool {
        let block = self.txn.block();
        block.is_some_and(|b| b.isolation == Isolation::RepeatableRead)
    }

    /// Starts an implicit block unless in one.
    pub(super) fn begin_implicit(&mut self) {
        if matches!(self.txn, Txn::Idle) {
            self.txn = Txn::Implicit(Box::new(Block::new(&self.settings)));
        }
    }

    /// COMMIT; answers the command tag.
    ///
    /// # Errors
    /// 40001 and what the engine reports; the block is over in any case.
    pub(super) async fn commit(&mut self) -> Result<&'static str> {
        match std::mem::replace(&mut self.txn, Txn::Idle) {
            Txn::Idle => {
                self.notice(&SqlError::warning("25P01", "there is no transaction in progress"))?;
                Ok("COMMIT")
            }
            Txn::Failed(block) => {
                self.undo(*block)?;
                Ok("ROLLBACK")
            }
            Txn::Implicit(block) => {
                self.notice(&SqlError::warning("25P01", "there is no transaction in progress"))?;
                self.commit_block(*block).await?;
                Ok("COMMIT")
            }
            Txn::Open(block) => {
                let held = self.hold_cursors().await;
                self.end_of_block();
                held?;
                self.commit_block(*block).await?;
                Ok("COMMIT")
            }
        }
    }

    /// Commits an implicit block, if in one.
    pub(super) async fn commit_implicit(&mut self) -> Result<()> {
        if matches!(self.txn, Txn::Implicit(_))
            && let Txn::Implicit(block) = std::mem::replace(&mut self.txn, Txn::Idle)
        {
            let committed = self.commit_block(*block).await;
            self.locks.release_to(0);
            return committed;
        }
        Ok(())
    }

    async fn commit_block(&mut self, block: Block) -> Result<()> {
        for name in &block.local {
            let before = block.before.show(name).ok().map(|(_, value)| value);
            if let Some((name, value)) = self.settings.set(name, before.as_deref())? {
                self.report(name, value)?;
            }
        }
        let epoch = block.pin.as_ref().map_or(block.checked_at, EpochPin::epoch);
        let mut writes = Vec::new();
        for (table, deltas) in block.writes {
            let net = match deltas.as_slice() {
                [one] => one.clone(),
                [first, ..] => Delta::consolidate(&first.schema(), &deltas, &[])?,
                [] => continue,
            };
            if net.num_rows() > 0 {
                writes.push((table, vec![net]));
            }
        }
        if writes.is_empty() {
            return self.end_of_temporary_rows().await;
        }
        let request = CommitRequest {
            snapshot_epoch: epoch,
            writes,
            definitions: block.definitions.into_values().collect(),
        };
        let ack = self.server.engine.commit(request).await?;
        self.wrote(ack.epoch);
        self.end_of_temporary_rows().await
    }

    /// ROLLBACK.
    pub(super) fn rollback(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.txn, Txn::Idle) {
            Txn::Idle | Txn::Implicit(_) => {
                self.notice(&SqlError::warning("25P01", "there is no transaction in progress"))
            }
            Txn::Open(block) | Txn::Failed(block) => self.undo(*block),
        }
    }

    fn undo(&mut self, block: Block) -> Result<()> {
        self.cursors.retain(|_, c| c.held());
        self.end_of_block();
        self.settings = block.before;
        for (name, value) in self.settings.reports() {
            self.report(name, value)?;
        }
        if block.ddl {
            self.notice(&SqlError::warning(
                "01000",
                "CREATE and DROP take effect at once and are not undone by ROLLBACK",
            ))?;
        }
        Ok(())
    }

    /// SAVEPOINT.
    pub(super) fn savepoint(&mut self, name: String) -> Result<()> {
        let locks = self.locks.mark();
        let settings = self.settings.clone();
        let Txn::Open(block) = &mut self.txn else {
            return Err(outside("SAVEPOINT"));
        };
        let writes = block.writes.iter().map(|(id, d)| (*id, d.len())).collect();
        block.savepoints.push(Savepoint {
            name,
            writes,
            bytes: block.bytes,
            settings,
            local: block.local.len(),
            locks,
        });
        Ok(())
    }

    /// RELEASE SAVEPOINT.
    pub(super) fn release_savepoint(&mut self, name: &str) -> Result<()> {
        let Txn::Open(block) = &mut self.txn else {
            return Err(outside("RELEASE SAVEPOINT"));
        };
        let at = block.find_savepoint(name)?;
        block.savepoints.truncate(at);
        Ok(())
    }

    /// ROLLBACK TO SAVEPOINT: the savepoint itself stays.
    pub(super) fn rollback_to(&mut self, name: &str) -> Result<()> {
        let (Txn::Open(block) | Txn::Failed(block)) = &mut self.txn else {
            return Err(outside("ROLLBACK TO SAVEPOINT"));
        };
        let at = block.find_savepoint(name)?;
        block.savepoints.truncate(at + 1);
        let Some(savepoint) = block.savepoints.last() else {
            return Err(SqlError::internal("a savepoint has gone"));
        };
        for (table, deltas) in &mut block.writes {
            deltas.truncate(savepoint.writes.get(table).copied().unwrap_or(0));
        }
        block.own.clear();
        block.bytes = savepoint.bytes;
        block.local.truncate(savepoint.local);
        let (settings, locks) = (savepoint.settings.clone(), savepoint.locks);
        self.cursors.retain(|_, c| c.depth() <= at);
        self.txn = match std::mem::replace(&mut self.txn, Txn::Idle) {
            Txn::Failed(block) => Txn::Open(block),
            other => other,
        };
        self.locks.release_to(locks);
        self.settings = settings;
        for (name, value) in self.settings.reports() {
            self.report(name, value)?;
        }
        Ok(())
    }

    fn end_of_block(&mut self) {
        self.portals.clear();
        let level = self.settings.text("default_transaction_isolation").to_owned();
        for (name, value) in [
            ("transaction_read_only", None),
            ("transaction_isolation", Some(level.as_str())),
        ] {
            if let Err(error) = self.settings.set(name, value) {
                tracing::error!(code = error.code(), name, "a setting cannot be reset");
            }
        }
    }

    /// The epoch that a REPEATABLE READ block reads, pinned now if it has none. A block has begun from here on.
    pub(super) fn block_epoch(&mut self) -> Option<u64> {
        let at_least = self.last_write.max(self.server.last_write());
        let engine = std::sync::Arc::clone(&self.server.engine);
        let block = self.txn.block_mut()?;
        block.begun = true;
        if block.isolation == Isolation::ReadCommitted {
            return None;
        }
        Some(block.pin.get_or_insert_with(|| engine.pin(at_least)).epoch())
    }

    /// A statement's rows have been checked at this epoch.
    pub(super) fn checked_at(&mut self, epoch: u64) {
        if let Some(block) = self.txn.block_mut() {
            block.checked_at = block.checked_at.max(epoch);
        }
    }

    /// Adds a statement's changes to the block.
    ///
    /// # Errors
    /// 53200: the block holds too much.
    pub(super) fn add_changes(&mut self, table: &Arc<CatalogObject>, deltas: Vec<Delta>) -> Result<()> {
        let max = self.server.write_bytes_max;
        let Some(block) = self.txn.block_mut() else {
            return Err(SqlError::internal("changes outside a block"));
        };
        block.begun = true;
        block.bytes += deltas.iter().map(Delta::bytes).sum::<usize>();
        if block.bytes > max {
            return Err(too_big(max));
        }
        let memory = self.server.engine.memory();
        block
            .held
            .get_or_insert_with(|| memory.holder(Share::Queries))
            .set(block.bytes);
        // The first definition counts: if it has changed since, the block's earlier rows were checked against another one.
        block.definitions.entry(table.id).or_insert_with(|| Arc::clone(table));
        block.writes.entry(table.id).or_default().extend(deltas);
        Ok(())
    }

    /// A commit has been acknowledged.
    pub(super) fn wrote(&mut self, epoch: u64) {
        self.last_write = epoch;
        self.server.wrote(epoch);
    }

    /// Remembers a SET LOCAL.
    pub(super) fn set_local(&mut self, name: &str) {
        if let Some(block) = self.txn.block_mut() {
            block.local.push(name.to_owned());
        }
    }
}

/// 53200 for writes that would not fit in memory.
pub(super) fn too_big(max: usize) -> SqlError {
    SqlError::new(
        "53200",
        format!("the transaction's writes need more than {max} bytes of memory"),
    )
    .hint("Write in several transactions, or raise the setting memory_limit.")
}

/// 25P01 of a command that needs a block.
pub(super) fn outside(what: &str) -> SqlError {
    SqlError::new("25P01", format!("{what} can only be used in transaction blocks"))
}

/// 25P02.
pub(super) fn failed_block() -> SqlError {
    SqlError::new(
        "25P02",
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}
