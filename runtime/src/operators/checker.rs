//! A wrapper that watches an operator in debug builds and tests.
//!
//! It fails the task, before anything wrong can reach a relation, if the operator emits columns of other types than declared, a
//! diff of 0, a retraction from an append-only stream, or anything after the step has closed. With [`Checker::with_contents`]
//! (tests: it holds the whole output in memory) it also finds negative multiplicities and doubled keys at the end of a step.

use std::collections::BTreeMap;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use levee_planner::plan::{OperatorId, StreamNode};

use super::cold::{Cold, Evicted};
use super::{Barrier, Operator, Output, Progress, StateWriter};
use crate::{Delta, Diffs, Result, RuntimeError};

/// The wrapper.
pub struct Checker {
    inner: Box<dyn Operator>,
    id: OperatorId,
    schema: SchemaRef,
    append_only: bool,
    keys: Vec<Vec<usize>>,
    contents: Option<Contents>,
    closing: bool,
}

/// The output's rows by their encoding: multiplicity, and the encodings of the declared keys.
struct Contents {
    rows: BTreeMap<Vec<u8>, (i64, Vec<Vec<u8>>)>,
}

impl Checker {
    /// Watches `inner` against what `node` declares.
    pub fn new(inner: Box<dyn Operator>, node: &StreamNode) -> Self {
        Self {
            inner,
            id: node.id,
            schema: SchemaRef::clone(&node.schema),
            append_only: node.props.append_only,
            keys: node.props.keys.clone(),
            contents: None,
            closing: false,
        }
    }

    /// Also keeps the whole output, to check multiplicities and keys. Only for an operator that runs as one task from the start.
    #[must_use]
    pub fn with_contents(mut self) -> Self {
        self.contents = Some(Contents { rows: BTreeMap::new() });
        self
    }

    fn wrong(&self, what: &str) -> RuntimeError {
        RuntimeError::internal(format!("operator {}: {what}", self.id))
    }

    fn check(&mut self, emitted: &[Delta]) -> Result<()> {
        for delta in emitted {
            let schema = delta.batch.schema_ref();
            if schema.fields().len() != self.schema.fields().len() {
                return Err(self.wrong("emits another number of columns than declared"));
            }
            for (is, declared) in schema.fields().iter().zip(self.schema.fields()) {
                if is.data_type() != declared.data_type() {
                    return Err(self.wrong(&format!(
                        "column {} is {} where {} is declared",
                        declared.name(),
                        is.data_type(),
                        declared.data_type()
                    )));
                }
            }
            if let Diffs::Values(diffs) = &delta.diffs {
                if diffs.len() != delta.num_rows() || diffs.contains(&0) {
                    return Err(self.wrong("emits diffs that are 0 or do not fit the rows"));
                }
                if self.append_only && diffs.iter().any(|&d| d < 0) {
                    return Err(self.wrong("retracts from a stream that is declared append-only"));
                }
            }
            if let Some(contents) = &mut self.contents {
                contents.absorb(delta, &self.keys)?;
            }
        }
        Ok(())
    }

    fn after(&mut self, out: &Output, seen: usize, progress: Progress) -> Result<Progress> {
        self.check(&out.deltas[seen..])?;
        if progress == Progress::Done && std::mem::take(&mut self.closing) {
            self.check_contents()?;
        }
        Ok(progress)
    }

    fn check_contents(&mut self) -> Result<()> {
        let Some(contents) = &mut self.contents else {
            return Ok(());
        };
        contents.rows.retain(|_, (n, _)| *n != 0);
        let negative = contents.rows.values().any(|(n, _)| *n < 0);
        let mut doubled = false;
        for k in 0..self.keys.len() {
            let mut seen = std::collections::BTreeSet::new();
            doubled |= contents.rows.values().any(|(n, keys)| *n > 1 || !seen.insert(&keys[k]));
        }
        if negative {
            return Err(self.wrong("holds a row less than zero times"));
        }
        if doubled {
            return Err(self.wrong("holds two rows with one declared key"));
        }
        Ok(())
    }
}

impl Contents {
    fn absorb(&mut self, delta: &Delta, keys: &[Vec<usize>]) -> Result<()> {
        let all: Vec<usize> = (0..delta.batch.num_columns()).collect();
        let rows = encode(delta, &all)?;
        let keys = keys.iter().map(|k| encode(delta, k)).collect::<Result<Vec<_>>>()?;
        for (i, row) in rows.into_iter().enumerate() {
            let key_bytes = || keys.iter().map(|k| k[i].clone()).collect();
            self.rows.entry(row).or_insert_with(|| (0, key_bytes())).0 += delta.diff(i);
        }
        Ok(())
    }
}

fn encode(delta: &Delta, columns: &[usize]) -> Result<Vec<Vec<u8>>> {
    if columns.is_empty() {
        return Ok(vec![Vec::new(); delta.num_rows()]);
    }
    let columns: Vec<ArrayRef> = columns
        .iter()
        .map(|&c| ArrayRef::clone(delta.batch.column(c)))
        .collect();
    let converter = RowConverter::new(columns.iter().map(|c| SortField::new(c.data_type().clone())).collect())?;
    let rows = converter.convert_columns(&columns)?;
    Ok(rows.iter().map(|r| r.data().to_vec()).collect())
}

impl Operator for Checker {
    fn push(&mut self, input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        if self.closing {
            return Err(self.wrong("takes input after the step has closed"));
        }
        let seen = out.deltas.len();
        let progress = self.inner.push(input, delta, out)?;
        self.after(out, seen, progress)
    }

    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        self.closing = true;
        let seen = out.deltas.len();
        let progress = self.inner.close(barrier, out)?;
        self.after(out, seen, progress)
    }

    fn resume(&mut self, out: &mut Output) -> Result<Progress> {
        let seen = out.deltas.len();
        let progress = self.inner.resume(out)?;
        self.after(out, seen, progress)
    }

    fn snapshot(&mut self, full: bool, out: &mut StateWriter<'_>) -> Result<()> {
        if self.closing {
            return Err(self.wrong("is asked for a snapshot within a step"));
        }
        self.inner.snapshot(full, out)
    }

    fn restore(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.restore(table, key, value)
    }

    fn next_timer_us(&self) -> Option<i64> {
        self.inner.next_timer_us()
    }

    fn caches(&self) -> bool {
        self.inner.caches()
    }

    fn attach(&mut self, cold: Cold, complete: bool) {
        self.inner.attach(cold, complete);
    }

    fn snapshot_completed(&mut self, n: u32, cold: Option<Cold>) {
        self.inner.snapshot_completed(n, cold);
    }

    fn evict(&mut self, bytes: usize) -> Evicted {
        self.inner.evict(bytes)
    }

    fn compact(&mut self) {
        self.inner.compact();
    }

    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }

    fn live_bytes(&self) -> usize {
        self.inner.live_bytes()
    }

    fn pinned_bytes(&self) -> usize {
        self.inner.pinned_bytes()
    }
}
