//! A snapshot as a DataFusion table, read as a stream: a query holds some thousand rows of it at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SendableRecordBatchStream,
};
use datafusion::scalar::ScalarValue;

use super::RelationSnapshot;
use super::base::expand;
use super::merge::MergeScan;
use super::snapshot::BATCH_ROWS;
use crate::Delta;

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
        // Equal values of these may be stored as different bytes.
        let several = match value {
            ScalarValue::Float32(Some(v)) => *v == 0.0 || v.is_nan(),
            ScalarValue::Float64(Some(v)) => *v == 0.0 || v.is_nan(),
            ScalarValue::IntervalMonthDayNano(_) => true,
            _ => false,
        };
        (!several && !value.is_null() && value.data_type() == *field.data_type()).then(|| (index, value.clone()))
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
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let external = |e: crate::RuntimeError| DataFusionError::External(Box::new(e));
        let prefix = self.key_prefix(filters)?;
        // Few rows are read here and now: that is what a lookup by key amounts to.
        if self.snapshot.is_small() {
            let batches = self.snapshot.batches(prefix.as_deref()).map_err(external)?;
            let projection = projection.cloned();
            return Ok(MemorySourceConfig::try_new_exec(&[batches], self.schema(), projection)?);
        }
        let exec = SnapshotExec::try_new(self.snapshot.clone(), prefix, projection.cloned(), limit)?;
        Ok(Arc::new(exec))
    }
}

/// Reads a snapshot in order, some thousand rows at a time, as fast as they are taken.
///
/// It reads on the thread that polls it, which is one of the threads for queries: a pool of threads between would hold one per
/// client that reads slowly.
#[derive(Debug)]
struct SnapshotExec {
    snapshot: RelationSnapshot,
    prefix: Option<Vec<u8>>,
    projection: Option<Vec<usize>>,
    limit: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl SnapshotExec {
    fn try_new(
        snapshot: RelationSnapshot,
        prefix: Option<Vec<u8>>,
        projection: Option<Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Self> {
        let schema = match &projection {
            Some(columns) => Arc::new(snapshot.schema().project(columns)?),
            None => Arc::clone(snapshot.schema()),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Self {
            snapshot,
            prefix,
            projection,
            limit,
            properties: Arc::new(properties),
        })
    }
}

impl DisplayAs for SnapshotExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.snapshot.rows_about();
        write!(f, "SnapshotExec: epoch={}, rows<={rows}", self.snapshot.epoch())?;
        if self.prefix.is_some() {
            write!(f, ", by key")?;
        }
        match self.limit {
            Some(limit) => write!(f, ", limit={limit}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for SnapshotExec {
    fn name(&self) -> &'static str {
        "SnapshotExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn partition_statistics(&self, _: Option<usize>) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        let rows = self.snapshot.rows_about();
        if self.prefix.is_none() {
            statistics.num_rows = Precision::Inexact(self.limit.map_or(rows, |limit| limit.min(rows)));
        }
        Ok(Arc::new(statistics))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = Reading {
            scan: None,
            snapshot: self.snapshot.clone(),
            prefix: self.prefix.clone(),
            projection: self.projection.clone(),
            schema: self.schema(),
            left: self.limit.unwrap_or(usize::MAX),
            ready: VecDeque::new(),
        };
        let stream = futures::stream::try_unfold(rows, |mut rows| async move {
            match rows.next() {
                Ok(Some(batch)) => Ok(Some((batch, rows))),
                Ok(None) => Ok(None),
                Err(e) => Err(DataFusionError::External(Box::new(e))),
            }
        });
        let stream = RecordBatchStreamAdapter::new(self.schema(), stream);
        Ok(make_cooperative(Box::pin(stream)))
    }
}

/// A snapshot being read.
struct Reading {
    scan: Option<MergeScan>,
    snapshot: RelationSnapshot,
    prefix: Option<Vec<u8>>,
    projection: Option<Vec<usize>>,
    /// Columns of the answer.
    schema: SchemaRef,
    left: usize,
    ready: VecDeque<RecordBatch>,
}

impl Reading {
    fn next(&mut self) -> crate::Result<Option<RecordBatch>> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => self.snapshot.scan(None, self.prefix.as_deref())?,
        };
        while self.ready.is_empty() && self.left > 0 {
            let Some(delta) = scan.next()? else {
                self.left = 0;
                break;
            };
            let delta = match &self.projection {
                Some(columns) => Delta {
                    batch: delta.batch.project(columns)?,
                    diffs: delta.diffs,
                },
                None => delta,
            };
            let (ready, left) = (&mut self.ready, &mut self.left);
            expand(&delta, BATCH_ROWS, &mut |batch| {
                // Rows are stored without the columns' promises.
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let columns = batch.columns().to_vec();
                let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
                let rows = batch.num_rows().min(*left);
                ready.push_back(batch.slice(0, rows));
                *left -= rows;
                Ok(*left > 0)
            })?;
        }
        self.scan = Some(scan);
        Ok(self.ready.pop_front())
    }
}
