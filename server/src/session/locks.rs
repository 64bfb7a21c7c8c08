//! A session's locks: waiting for them under cancel and time-outs, SELECT … FOR UPDATE, LOCK TABLE, advisory locks.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::scalar::ScalarValue;
use levee_planner::plan::ObjectId;
use levee_planner::sql::{LockTarget, LockWait, LockingQuery, RowLock, TableLock, bind_params, take_limit};
use levee_runtime::RuntimeError;
use levee_runtime::coordinator::{LockMode, LockTag, Patience};
use tokio::time::Instant;

use super::change::Only;
use super::query::Rows;
use super::{Session, SessionBinder, guard};
use crate::error::{Result, SqlError};

impl Session {
    /// Waits for locks under cancel, `statement_timeout` and `lock_timeout`.
    async fn wait_for<T>(&mut self, locks: impl Future<Output = levee_runtime::Result<T>>) -> Result<T> {
        let limit = self.settings.timeout("lock_timeout").map(|t| Instant::now() + t);
        let work = async {
            tokio::select! {
                biased;
                locked = locks => locked.map_err(SqlError::from),
                () = super::sleep_until_opt(limit) => {
                    Err(SqlError::new("55P03", "canceling statement due to lock timeout"))
                }
            }
        };
        guard(&mut self.reader, &self.cancel, self.deadline, &self.server, work).await
    }

    /// Locks a table until the transaction's end.
    pub(super) async fn lock_table(&mut self, table: ObjectId, mode: TableLock) -> Result<bool> {
        let locks = Arc::clone(&self.locks);
        self.wait_for(locks.lock(LockTag::Table(table), LockMode::table(mode), Patience::Wait))
            .await
    }

    /// Locks rows until the transaction's end; true if it had to wait.
    pub(super) async fn lock_keys(&mut self, table: ObjectId, keys: Vec<u128>, strength: RowLock) -> Result<bool> {
        if keys.is_empty() {
            return Ok(false);
        }
        let locks = Arc::clone(&self.locks);
        self.wait_for(locks.lock_rows(table, keys, strength, Patience::Wait))
            .await
    }

    /// LOCK TABLE.
    pub(super) async fn lock_tables(
        &mut self,
        binder: &SessionBinder,
        tables: &[ObjectId],
        mode: TableLock,
        nowait: bool,
    ) -> Result<()> {
        if self.txn.block().is_none() {
            return Err(SqlError::new(
                "25P01",
                "LOCK TABLE can only be used in transaction blocks",
            ));
        }
        for table in tables {
            let locks = Arc::clone(&self.locks);
            let patience = if nowait { Patience::None } else { Patience::Wait };
            let locked = self
                .wait_for(locks.lock(LockTag::Table(*table), LockMode::table(mode), patience))
                .await;
            locked.map_err(|e| {
                let name = binder.catalog.get(*table).map_or("", |o| o.name.as_str());
                if nowait && e.code() == "55P03" {
                    SqlError::new("55P03", format!("could not obtain lock on relation \"{name}\""))
                } else {
                    e
                }
            })?;
        }
        Ok(())
    }

    /// SELECT … FOR UPDATE and its kin: rows are sent when all are locked.
    pub(super) async fn select_locking(
        &mut self,
        binder: &SessionBinder,
        locking: &LockingQuery,
        params: &[ScalarValue],
    ) -> Result<Rows> {
        if let Some(target) = locking.targets.first() {
            self.refuse_read_only(clause_name(target.strength))?;
        }
        for target in &locking.targets {
            self.lock_table(target.table, TableLock::RowShare).await?;
        }
        let query = &locking.query;
        let plan = bind_params(query.plan.clone(), params)?;
        let (plan, skip, fetch) = take_limit(plan)?;
        let limited = skip > 0 || fetch.is_some();
        let n = skip.saturating_add(fetch.unwrap_or(usize::MAX - skip));
        let mut only: Option<Vec<Only>> = None;
        let mut at_least = 0;
        loop {
            let snapshot = self.snapshot_from(&query.reads, at_least).await?;
            let mut rows = self.start_plan(binder, plan.clone(), query, &snapshot).await?;
            let found = self.lock_result(&mut rows, locking, n, only.as_deref()).await?;
            let newest = found.newest(self);
            if newest <= snapshot.epoch {
                return finish(query, found.batches, skip, fetch);
            }
            if self.repeatable_read() {
                return Err(RuntimeError::Conflict.into());
            }
            at_least = newest;
            if only.is_none() && !limited {
                only = Some(found.keys.iter().map(|k| k.iter().copied().collect()).collect());
            }
        }
    }

    /// Locks the rows of a result, `n` at most, batch by batch.
    async fn lock_result(
        &mut self,
        rows: &mut Rows,
        locking: &LockingQuery,
        n: usize,
        only: Option<&[Only]>,
    ) -> Result<Locked> {
        let mut found = Locked {
            batches: Vec::new(),
            keys: vec![Vec::new(); locking.targets.len()],
        };
        let (mut count, mut bytes) = (0, 0);
        while count < n {
            let Some(mut batch) = self.guarded(rows.next()).await? else {
                break;
            };
            if let Some(only) = only {
                for (target, only) in locking.targets.iter().zip(only) {
                    let keys = self.target_keys(target, &batch)?;
                    let mask: BooleanArray = keys.iter().map(|k| Some(only.contains(k))).collect();
                    batch = filter_record_batch(&batch, &mask)?;
                }
            }
            let skips = locking.targets.iter().any(|t| t.wait == LockWait::Skip);
            let mut batch = if skips {
                self.unlocked_rows(&batch, locking, n - count)?
            } else {
                batch.slice(0, batch.num_rows().min(n - count))
            };
            for (target, all) in locking.targets.iter().zip(&mut found.keys) {
                let keys = self.target_keys(target, &batch)?;
                all.extend(keys.iter().copied());
                if target.wait != LockWait::Skip {
                    self.lock_target(target, keys).await?;
                }
            }
            let shown: Vec<usize> = (0..locking.query.schema.fields().len()).collect();
            batch = batch.project(&shown)?;
            count += batch.num_rows();
            bytes += batch.get_array_memory_size();
            if bytes > self.server.write_bytes_max {
                return Err(super::txn::too_big(self.server.write_bytes_max));
            }
            found.batches.push(batch);
        }
        Ok(found)
    }

    fn target_keys(&self, target: &LockTarget, batch: &RecordBatch) -> Result<Vec<u128>> {
        let (from, n) = target.columns;
        let columns: Vec<ArrayRef> = batch.columns()[from..from + n].to_vec();
        Ok(self.server.engine.keys_of(target.table, &columns)?)
    }

    async fn lock_target(&mut self, target: &LockTarget, keys: Vec<u128>) -> Result<()> {
        if target.wait == LockWait::Block {
            self.lock_keys(target.table, keys, target.strength).await?;
            return Ok(());
        }
        let locks = Arc::clone(&self.locks);
        match locks
            .lock_rows(target.table, keys, target.strength, Patience::None)
            .await
        {
            Ok(_) => Ok(()),
            Err(RuntimeError::Locked) => {
                let catalog = self.server.engine.catalog();
                let name = catalog.get(target.table).map_or("", |o| o.name.as_str());
                Err(SqlError::new(
                    "55P03",
                    format!("could not obtain lock on row in relation \"{name}\""),
                ))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// SKIP LOCKED: the first `n` rows whose locks are free and have been taken.
    fn unlocked_rows(&mut self, batch: &RecordBatch, locking: &LockingQuery, n: usize) -> Result<RecordBatch> {
        let keys = locking
            .targets
            .iter()
            .map(|t| self.target_keys(t, batch))
            .collect::<Result<Vec<_>>>()?;
        let mut taken = Vec::new();
        for row in 0..batch.num_rows() {
            if taken.len() == n {
                break;
            }
            let mark = self.locks.mark();
            let all = locking.targets.iter().zip(&keys).all(|(target, keys)| {
                let tag = LockTag::Row(target.table, keys[row]);
                target.wait != LockWait::Skip || self.locks.try_lock(tag, LockMode::row(target.strength))
            });
            if all {
                taken.push(u32::try_from(row).unwrap_or(u32::MAX));
            } else {
                self.locks.release_to(mark);
            }
        }
        Ok(take_record_batch(batch, &UInt32Array::from(taken))?)
    }

    /// Takes and gives back the advisory locks that a query's calls name, and puts the calls' results in their place.
    ///
    /// # Errors
    /// 0A000 for numbers that are not constants; 40P01; 55P03.
    pub(super) async fn advisory_calls(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if !has_calls(&plan)? {
            return Ok(plan);
        }
        let mut calls = Vec::new();
        plan.apply_with_subqueries(|node| {
            node.apply_expressions(|e| {
                e.apply(|e| {
                    if is_call(e) {
                        calls.push(e.clone());
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            let result = self.advisory_call(&call).await?;
            results.push((call, result));
        }
        // Equal calls are calls of their own: each takes the first result that is left.
        let results = std::cell::RefCell::new(results);
        let replaced = plan.transform_up_with_subqueries(|node| {
            let node = node.map_expressions(|e| {
                e.transform_up(|e| {
                    let mut results = results.borrow_mut();
                    let known = results.iter().position(|(call, _)| call == &e);
                    Ok(match known {
                        Some(i) => Transformed::yes(Expr::Literal(results.remove(i).1, None)),
                        None => Transformed::no(e),
                    })
                })
            })?;
            if node.transformed {
                node.map_data(LogicalPlan::recompute_schema)
            } else {
                Ok(node)
            }
        })?;
        Ok(replaced.data)
    }

    async fn advisory_call(&mut self, call: &Expr) -> Result<ScalarValue> {
        let Expr::ScalarFunction(f) = call else {
            return Err(SqlError::internal("not a call of an advisory lock function"));
        };
        let name = f.func.name().to_owned();
        if name == "pg_advisory_unlock_all" {
            self.locks.unlock_session_all();
            return Ok(ScalarValue::Utf8(Some(String::new())));
        }
        let Some(tag) = advisory_tag(&f.args)? else {
            // The functions are strict.
            return Ok(if name.contains("try") || name.contains("unlock") {
                ScalarValue::Boolean(None)
            } else {
                ScalarValue::Utf8(None)
            });
        };
        let mode = LockMode::advisory(name.ends_with("_shared"));
        if name.starts_with("pg_advisory_unlock") {
            let held = self.locks.unlock_session(tag, mode);
            if !held {
                let kind = if name.ends_with("_shared") {
                    "ShareLock"
                } else {
                    "ExclusiveLock"
                };
                self.notice(&SqlError::warning(
                    "01000",
                    format!("you don't own a lock of type {kind}"),
                ))?;
            }
            return Ok(ScalarValue::Boolean(Some(held)));
        }
        let locks = Arc::clone(&self.locks);
        let tries = name.starts_with("pg_try");
        let patience = if tries { Patience::None } else { Patience::Wait };
        let locked = if name.contains("_xact") {
            self.wait_for(locks.lock(tag, mode, patience)).await
        } else {
            self.wait_for(locks.lock_for_session(tag, mode, patience)).await
        };
        match locked {
            Ok(_) if tries => Ok(ScalarValue::Boolean(Some(true))),
            Ok(_) => Ok(ScalarValue::Utf8(Some(String::new()))),
            Err(e) if tries && e.code() == "55P03" => Ok(ScalarValue::Boolean(Some(false))),
            Err(e) => Err(e),
        }
    }
}

/// Rows that a statement has locked.
struct Locked {
    /// What the client sees.
    batches: Vec<RecordBatch>,
    /// Keys, by target.
    keys: Vec<Vec<u128>>,
}

impl Locked {
    fn newest(&self, session: &Session) -> u64 {
        let newest = self.keys.iter().filter(|k| !k.is_empty());
        newest.map(|k| session.server.engine.newest_write(k)).max().unwrap_or(0)
    }
}

/// The rows after OFFSET, up to LIMIT.
fn finish(
    query: &levee_planner::sql::Query,
    batches: Vec<RecordBatch>,
    skip: usize,
    fetch: Option<usize>,
) -> Result<Rows> {
    let (mut skip, mut left) = (skip, fetch.unwrap_or(usize::MAX));
    let mut out = Vec::new();
    for batch in batches {
        let from = skip.min(batch.num_rows());
        skip -= from;
        let n = (batch.num_rows() - from).min(left);
        left -= n;
        out.push(batch.slice(from, n));
    }
    Ok(Rows::of_selected(Arc::clone(&query.schema), out))
}

fn clause_name(strength: RowLock) -> &'static str {
    match strength {
        RowLock::Update => "SELECT FOR UPDATE",
        RowLock::NoKeyUpdate => "SELECT FOR NO KEY UPDATE",
        RowLock::Share => "SELECT FOR SHARE",
        RowLock::KeyShare => "SELECT FOR KEY SHARE",
    }
}

fn is_call(e: &Expr) -> bool {
    let Expr::ScalarFunction(f) = e else { return false };
    let name = f.func.name();
    name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_")
}

fn has_calls(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            found |= e.exists(|e| Ok(is_call(e)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

/// The lock that one bigint or two integers name; `None` for NULL.
fn advisory_tag(args: &[Expr]) -> Result<Option<LockTag>> {
    let mut numbers = Vec::new();
    for arg in args {
        let simple = datafusion::optimizer::simplify_expressions::ExprSimplifier::new(
            datafusion::logical_expr::simplify::SimplifyContext::default(),
        )
        .simplify(arg.clone())?;
        let Expr::Literal(v, _) = simple else {
            return Err(
                SqlError::unsupported("advisory locks whose number is not a constant are not supported")
                    .hint("Select the number first, and pass it as a parameter."),
            );
        };
        match v.cast_to(&DataType::Int64)? {
            ScalarValue::Int64(Some(n)) => numbers.push(n),
            _ => return Ok(None),
        }
    }
    match numbers.as_slice() {
        [n] => Ok(Some(LockTag::Advisory(true, *n))),
        [a, b] => {
            let narrow = |n: i64| i32::try_from(n).map_err(|_| SqlError::new("22003", "integer out of range"));
            let (a, b) = (narrow(*a)?, narrow(*b)?);
            let number = i64::from(a) << 32 | i64::from(b.cast_unsigned());
            Ok(Some(LockTag::Advisory(false, number)))
        }
        _ => Err(SqlError::new("42883", "function takes one or two integers")),
    }
}
