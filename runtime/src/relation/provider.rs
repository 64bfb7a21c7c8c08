//! A snapshot as a DataFusion table.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::scalar::ScalarValue;

use super::RelationSnapshot;

/// Table provider over a [`RelationSnapshot`].
#[derive(Debug)]
pub struct SnapshotTable {
    snapshot: RelationSnapshot,
}

impl SnapshotTable {
    pub(super) fn new(snapshot: RelationSnapshot) -> Self {
        Self { snapshot }
    }

    fn key_value(&self, filter: &Expr) -> Option<(usize, ScalarValue)> {
        let Expr::BinaryExpr(binary) = filter else { return None };
        if binary.op != Operator::Eq {
            return None;
        }
        let (column, value) = match (binary.left.as_ref(), binary.right.as_ref()) {
            (Expr::Column(c), Expr::Literal(v, _)) | (Expr::Literal(v, _), Expr::Column(c)) => (c, v),
            _ => return None,
        };
        let index = self.snapshot.schema().index_of(&column.name).ok()?;
        let field = self.snapshot.schema().field(index);
        (!value.is_null() && value.data_type() == *field.data_type()).then(|| (index, value.clone()))
    }

    /// The encoded prefix of the key that the filters fix by equality.
    fn key_prefix(&self, filters: &[Expr]) -> Result<Option<Vec<u8>>> {
        let order = self.snapshot.order();
        let fixed: Vec<(usize, ScalarValue)> = filters.iter().filter_map(|f| self.key_value(f)).collect();
        let mut arrays: Vec<ArrayRef> = Vec::new();
        for key in order.key() {
            let Some((_, value)) = fixed.iter().find(|(c, _)| c == key) else {
                break;
            };
            arrays.push(value.to_array()?);
        }
        if arrays.is_empty() {
            return Ok(None);
        }
        let fields = order.key()[..arrays.len()]
            .iter()
            .map(|&c| arrow::row::SortField::new(self.snapshot.schema().field(c).data_type().clone()))
            .collect();
        let converter = arrow::row::RowConverter::new(fields)?;
        let rows = converter.convert_columns(&arrays)?;
        Ok(Some(rows.row(0).data().to_vec()))
    }
}

#[async_trait]
impl TableProvider for SnapshotTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.snapshot.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let key = self.snapshot.order().key();
        Ok(filters
            .iter()
            .map(|f| match self.key_value(f) {
                Some((c, _)) if key.contains(&c) => TableProviderFilterPushDown::Inexact,
                _ => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let external = |e: crate::RuntimeError| DataFusionError::External(Box::new(e));
        let batches: Vec<RecordBatch> = match self.key_prefix(filters)? {
            Some(prefix) => self.snapshot.with_key_prefix(&prefix).map_err(external)?,
            None => self.snapshot.rows().map_err(external)?,
        };
        // Older rows were written under the names and promises of their time.
        let schema = self.schema();
        let batches = batches
            .into_iter()
            .map(|b| {
                if b.schema_ref() == &schema {
                    return Ok(b);
                }
                RecordBatch::try_new(Arc::clone(&schema), b.columns().to_vec())
            })
            .collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(MemorySourceConfig::try_new_exec(
            &[batches],
            schema,
            projection.cloned(),
        )?)
    }
}
