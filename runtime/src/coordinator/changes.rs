//! Changes of the catalog as sessions ask for them: one list of operations, one epoch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use levee_planner::catalog::{Catalog, CatalogObject, CatalogOp, Namespace};
use levee_planner::plan::ObjectId;
use tokio::sync::oneshot;

use super::objects::storage_key;
use super::sequencer::{DdlRequest, Request};
use super::{CatalogChange, Engine};
use crate::relation::RowOrder;
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

    /// Drops temporary objects: those of the schema named, or (at start) of all sessions, which are gone.
    ///
    /// # Errors
    /// The log cannot be written.
    pub async fn drop_temporary(&self, schema: Option<&str>) -> Result<()> {
        loop {
            let catalog = self.catalog();
            let wanted = |n: &&Namespace| n.temporary && schema.is_none_or(|s| n.name == s);
            let schemas: Vec<ObjectId> = catalog.namespaces().filter(wanted).map(|n| n.id).collect();
            if schemas.is_empty() {
                return Ok(());
            }
            let inside = catalog.objects().filter(|o| schemas.contains(&o.namespace));
            let mut ops: Vec<CatalogOp> = inside.map(|o| CatalogOp::Drop(o.id)).collect();
            ops.extend(schemas.into_iter().map(CatalogOp::DropNamespace));
            let change = CatalogChange {
                ops,
                ..CatalogChange::default()
            };
            match self.change_catalog(&catalog, change).await {
                Err(RuntimeError::Conflict) => {}
                done => return done.map(|_| ()),
            }
        }
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
        let order = RowOrder::new(Arc::clone(object.schema()), storage_key(object))?;
        let rows = Delta::consolidate(order.stored(), deltas, order.key())?;
        if rows.num_rows() > 0 {
            writes.push((*id, rows));
        }
    }
    Ok(writes)
}
