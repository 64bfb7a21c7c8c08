//! Transactions. A block reads one epoch and gathers its writes; COMMIT hands them to the engine as one request.
//!
//! A string of several statements, or Executes before one Sync, form an *implicit* block: same rules, ended by the string's end.

use std::collections::BTreeMap;
use std::sync::Arc;

use levee_planner::catalog::CatalogObject;
use levee_planner::plan::ObjectId;
use levee_runtime::Delta;
use levee_runtime::coordinator::{CommitRequest, EpochPin};

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
    /// In a block that has failed, until ROLLBACK.
    Failed,
}

/// A block's state.
pub(super) struct Block {
    now_us: i64,
    /// The epoch that it reads, from its first statement that reads or writes.
    pin: Option<EpochPin>,
    writes: BTreeMap<ObjectId, Vec<Delta>>,
    /// What the writes were checked against.
    definitions: BTreeMap<ObjectId, Arc<CatalogObject>>,
    bytes: usize,
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
            pin: None,
            writes: BTreeMap::new(),
            definitions: BTreeMap::new(),
            bytes: 0,
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
        self.pin.is_some()
    }

    /// Own changes of a table.
    pub fn changes(&self, table: ObjectId) -> Option<&[Delta]> {
        self.writes.get(&table).map(Vec::as_slice)
    }
}

impl Txn {
    /// The block, if in one that has not failed.
    pub fn block(&self) -> Option<&Block> {
        match self {
            Self::Implicit(b) | Self::Open(b) => Some(b),
            Self::Idle | Self::Failed => None,
        }
    }

    pub fn block_mut(&mut self) -> Option<&mut Block> {
        match self {
            Self::Implicit(b) | Self::Open(b) => Some(b),
            Self::Idle | Self::Failed => None,
        }
    }

    /// A statement has failed: an implicit block is gone, an explicit one waits for ROLLBACK.
    pub fn fail(&mut self) {
        *self = match std::mem::replace(self, Self::Idle) {
            Self::Idle | Self::Implicit(_) => Self::Idle,
            Self::Open(_) | Self::Failed => Self::Failed,
        };
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
            Txn::Failed => return Err(failed_block()),
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

    /// Blocks run as REPEATABLE READ: weaker levels get more than they ask for, the stronger one gets a notice.
    pub(super) fn set_isolation(&mut self, isolation: &str) -> Result<()> {
        self.settings.set("transaction_isolation", Some("repeatable read"))?;
        if isolation == "serializable" {
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
            Txn::Failed => {
                self.end_of_block();
                Ok("ROLLBACK")
            }
            Txn::Implicit(block) => {
                self.notice(&SqlError::warning("25P01", "there is no transaction in progress"))?;
                self.commit_block(*block).await?;
                Ok("COMMIT")
            }
            Txn::Open(block) => {
                self.end_of_block();
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
            return self.commit_block(*block).await;
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
        let Some(pin) = &block.pin else { return Ok(()) };
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
            return Ok(());
        }
        let request = CommitRequest {
            snapshot_epoch: pin.epoch(),
            writes,
            definitions: block.definitions.into_values().collect(),
        };
        let ack = self.server.engine.commit(request).await?;
        self.wrote(ack.epoch);
        Ok(())
    }

    /// ROLLBACK.
    pub(super) fn rollback(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.txn, Txn::Idle) {
            Txn::Idle | Txn::Implicit(_) => {
                self.notice(&SqlError::warning("25P01", "there is no transaction in progress"))?;
            }
            Txn::Failed => self.end_of_block(),
            Txn::Open(block) => {
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
            }
        }
        Ok(())
    }

    fn end_of_block(&mut self) {
        self.portals.clear();
        if let Err(error) = self.settings.set("transaction_read_only", None) {
            tracing::error!(code = error.code(), "transaction_read_only cannot be reset");
        }
    }

    /// The block's epoch, pinned now if it has none.
    pub(super) fn block_epoch(&mut self) -> Option<u64> {
        let at_least = self.last_write.max(self.server.last_write());
        let engine = std::sync::Arc::clone(&self.server.engine);
        let block = self.txn.block_mut()?;
        Some(block.pin.get_or_insert_with(|| engine.pin(at_least)).epoch())
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
        block.bytes += deltas.iter().map(Delta::bytes).sum::<usize>();
        if block.bytes > max {
            return Err(too_big(max));
        }
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

/// 25P02.
pub(super) fn failed_block() -> SqlError {
    SqlError::new(
        "25P02",
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}
