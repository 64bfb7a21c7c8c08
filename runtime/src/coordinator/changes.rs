//! Changes of the catalog as sessions ask for them: one list of operations, one epoch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp};
use levee_planner::plan::ObjectId;
use tokio::sync::oneshot;

use super::objects::storage_key;
use super::sequencer::{DdlRequest, Request};
use super::{CatalogChange, Engine};
use crate::{Delta, Result, RuntimeError};

impl Engine {
    /// Changes the catalog as bound against `catalog`; answers the epoch once the change has taken effect here, so that later
    /// writes of this session meet the new definitions.
    ///
    /// # Errors
    /// `Conflict` if the catalog or an `unchanged` table has moved on: bind again.
    pub async fn change_catalog(&self, catalog: &Arc<Catalog>, change: CatalogChange) -> Result<u64> {
        let writes = first_rows(&change)?;
        let request = DdlRequest {
            expected: Some(Arc::clone(catalog)),
            ops: change.ops,
            writes,
            unchanged: change.unchanged,
            ..DdlRequest::default()
        };
        self.send_ddl(request).await
    }

    /// Sends DDL to the sequencer and waits until the coordinator has applied it.
    pub(super) async fn send_ddl(&self, request: DdlRequest) -> Result<u64> {
        let epoch = self.submit_ddl(request).await?;
        self.applied(epoch).await?;
        Ok(epoch)
    }

    /// Sends DDL to the sequencer; answers the epoch when it is durable.
    pub(super) async fn submit_ddl(&self, request: DdlRequest) -> Result<u64> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(Request::Ddl(Box::new(request), reply))
            .map_err(|_| RuntimeError::ShuttingDown)?;
        answer.await.map_err(|_| RuntimeError::ShuttingDown)?
    }

    /// Waits until the coordinator has applied the DDL of this epoch.
    pub(super) async fn applied(&self, epoch: u64) -> Result<()> {
        let mut progress = self.shared.progress.subscribe();
        while self.shared.applied.load(Ordering::Acquire) < epoch {
            progress.changed().await.map_err(|_| RuntimeError::ShuttingDown)?;
        }
        Ok(())
    }
}

/// The first rows of new relations in their storage order.
fn first_rows(change: &CatalogChange) -> Result<Vec<(ObjectId, Delta)>> {
    let created = |id: ObjectId| -> Option<&CatalogObject> {
        change.ops.iter().find_map(|op| match op {
            CatalogOp::Create(o) if o.id == id => Some(o),
            _ => None,
        })
    };
    let mut writes = Vec::with_capacity(change.writes.len());
    for (id, deltas) in &change.writes {
        let object = created(*id).ok_or(RuntimeError::NoObject(*id))?;
        let rows = Delta::consolidate(object.schema(), deltas, &storage_key(object))?;
        if rows.num_rows() > 0 {
            writes.push((*id, rows));
        }
    }
    Ok(writes)
}
