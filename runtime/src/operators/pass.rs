//! Operators that only pass rows on: bag union, and constant rows.

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;

use super::columns::nullable;
use super::eval::fitted;
use super::{Barrier, Operator, Output, Progress, fault};
use crate::{Delta, Result};

/// `input₀ + input₁ + …`: emits each delta at once under the output's column names. No state.
pub struct Union {
    schema: SchemaRef,
}

impl Union {
    /// A union whose inputs have the column types of `schema`.
    pub fn new(schema: &SchemaRef) -> Self {
        Self {
            schema: nullable(schema),
        }
    }
}

impl Operator for Union {
    fn push(&mut self, _input: usize, delta: Delta, out: &mut Output) -> Result<Progress> {
        let mut delta = recast(&self.schema, delta)?;
        if fault::planted(fault::Fault::Union) {
            delta = fault::without_a_retraction(delta);
        }
        out.emit(delta);
        Ok(Progress::Done)
    }

    fn close(&mut self, _barrier: &Barrier, _out: &mut Output) -> Result<Progress> {
        Ok(Progress::Done)
    }
}

/// The delta's columns under another schema of the same types.
fn recast(schema: &SchemaRef, delta: Delta) -> Result<Delta> {
    let n = delta.num_rows();
    let columns = delta.batch.columns().iter().cloned();
    Ok(Delta {
        batch: fitted(schema, columns, n)?,
        diffs: delta.diffs,
    })
}

/// Constant rows: emitted at the first step of a region's state by the task with index 0, and never again.
pub struct Values {
    rows: Vec<Delta>,
}

impl Values {
    /// From a plan node's IPC stream.
    ///
    /// # Errors
    /// The stored rows cannot be read.
    pub fn new(ipc: &[u8], schema: &SchemaRef, task: usize) -> Result<Self> {
        if task != 0 {
            return Ok(Self { rows: Vec::new() });
        }
        let schema = nullable(schema);
        let mut rows = Vec::new();
        for batch in StreamReader::try_new(ipc, None)? {
            rows.push(recast(&schema, Delta::inserts(batch?))?);
        }
        Ok(Self { rows })
    }
}

impl Operator for Values {
    fn push(&mut self, _input: usize, _delta: Delta, _out: &mut Output) -> Result<Progress> {
        Err(crate::RuntimeError::internal("VALUES has no input"))
    }

    fn close(&mut self, barrier: &Barrier, out: &mut Output) -> Result<Progress> {
        if barrier.first {
            for delta in &self.rows {
                out.emit(delta.clone());
            }
        }
        Ok(Progress::Done)
    }
}
