//! Leaves: scans of catalog objects and constant rows.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_empty_array};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::logical_plan::{EmptyRelation, TableScan, Values};

use super::{Lowering, arrow_schema, compile};
use crate::catalog::{ObjectKind, SourceDef, SourceFormat};
use crate::plan::ObjectId;
use crate::sql::CatalogTable;
use crate::stream::props;
use crate::stream::rel::{Rel, RelOp, columns_of, conjuncts, rewrite_columns};
use crate::{PlanError, Result};

impl Lowering<'_> {
    /// A scan of a table, source or materialized view, reading only the columns asked for.
    pub(super) fn scan(&self, scan: &TableScan) -> Result<Rel> {
        let source: &dyn Any = scan.source.as_ref();
        let Some(table) = source.downcast_ref::<CatalogTable>() else {
            return Err(
                PlanError::unsupported(format!("{} cannot be read in a materialized view", scan.table_name))
                    .hint("Only tables, sources and materialized views can."),
            );
        };
        let Some(object) = self.catalog.get(table.id) else {
            return Err(PlanError::new(
                "42P01",
                format!("relation \"{}\" does not exist", scan.table_name),
            ));
        };
        if scan.fetch.is_some() {
            return Err(PlanError::internal("a scan carries a row limit"));
        }
        let width = object.schema().fields().len();
        let all = arrow::datatypes::SchemaRef::clone(object.schema());
        let projection: Vec<usize> = (0..width).collect();
        let name = object.name.clone();
        let relation = object.id;
        if let ObjectKind::Source(def) = &object.kind
            && matches!(def.format, SourceFormat::Upsert | SourceFormat::Debezium)
        {
            return self.keyed_scan(scan, relation, &name, def);
        }
        let whole = match &object.kind {
            ObjectKind::Table(def) => {
                let keys = if def.primary_key.is_empty() {
                    Vec::new()
                } else {
                    vec![def.primary_key.clone()]
                };
                Rel::leaf(
                    RelOp::Scan {
                        relation,
                        name,
                        projection,
                    },
                    all,
                    props::leaf(false, keys, None),
                )
            }
            ObjectKind::MaterializedView(def) => {
                let p = &def.plan.root.props;
                let facts = props::leaf(p.append_only, p.keys.clone(), p.row_bound);
                Rel::leaf(
                    RelOp::Scan {
                        relation,
                        name,
                        projection,
                    },
                    all,
                    facts,
                )
            }
            ObjectKind::Source(_) => Rel::leaf(
                RelOp::Source {
                    source: relation,
                    name,
                    projection,
                },
                all,
                props::leaf(true, Vec::new(), None),
            ),
            ObjectKind::View(_) | ObjectKind::Sink(_) | ObjectKind::Index(_) | ObjectKind::Sequence(_) => {
                return Err(PlanError::internal(format!(
                    "{} \"{}\" stands in a plan",
                    object.kind_name(),
                    object.name
                )));
            }
        };
        let columns = scan.projection.clone().unwrap_or_else(|| (0..width).collect());
        let filtered = scan.filters.iter().try_fold(whole, |rel, filter| {
            let schema = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &rel.schema)
                .map_err(|e| PlanError::internal(e.to_string()))?;
            let predicate = compile(filter, &schema)?;
            Ok::<_, PlanError>(conjuncts(&predicate).into_iter().fold(rel, Rel::filter))
        })?;
        Ok(filtered.select(&columns))
    }
}

impl Lowering<'_> {
    /// A scan of a source of keyed changes: the operator keeps only the columns that the query reads, and the key.
    fn keyed_scan(&self, scan: &TableScan, source: ObjectId, name: &str, def: &SourceDef) -> Result<Rel> {
        let schema = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &def.schema)
            .map_err(|e| PlanError::internal(e.to_string()))?;
        let wanted = scan
            .projection
            .clone()
            .unwrap_or_else(|| (0..def.schema.fields().len()).collect());
        let predicates = scan
            .filters
            .iter()
            .map(|f| compile(f, &schema))
            .collect::<Result<Vec<_>>>()?;
        let mut columns: BTreeSet<usize> = wanted.iter().chain(&def.key).copied().collect();
        for predicate in &predicates {
            columns.extend(columns_of(predicate));
        }
        let columns: Vec<usize> = columns.into_iter().collect();
        let place = |c: usize| columns.binary_search(&c).unwrap_or_default();
        let mut rel = Rel::keyed_source((source, name), def, &columns, None)?;
        for predicate in &predicates {
            let moved = rewrite_columns(predicate, |c| rel.column(place(c)))?;
            rel = conjuncts(&moved).into_iter().fold(rel, Rel::filter);
        }
        let keep: Vec<usize> = wanted.iter().map(|&c| place(c)).collect();
        Ok(rel.select(&keep))
    }
}

/// One row without columns, or no row.
pub(super) fn empty(empty: &EmptyRelation) -> Result<Rel> {
    let schema = arrow_schema(&empty.schema);
    if empty.produce_one_row {
        return constant(&unit_batch()?);
    }
    let columns = schema.fields().iter().map(|f| new_empty_array(f.data_type())).collect();
    constant(&rows(schema, columns, 0)?)
}

/// A select list without FROM. `None` if a value cannot be computed: in a view it is NULL then, which is the map operator's business.
pub(super) fn constant_row(exprs: &[Expr], schema: &SchemaRef) -> Result<Option<Rel>> {
    let unit = unit_batch()?;
    let mut columns = Vec::with_capacity(exprs.len());
    for (expr, field) in exprs.iter().zip(schema.fields()) {
        let value = compile(expr, &DFSchema::empty())?
            .evaluate(&unit)
            .and_then(|v| v.into_array(1));
        match value {
            Ok(array) if array.data_type() == field.data_type() => columns.push(array),
            _ => return Ok(None),
        }
    }
    constant(&rows(SchemaRef::clone(schema), columns, 1)?).map(Some)
}

fn unit_batch() -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)
        .map_err(|e| PlanError::internal(e.to_string()))
}

/// VALUES lists.
pub(super) fn values(values: &Values) -> Result<Rel> {
    let schema = arrow_schema(&values.schema);
    let unit = unit_batch()?;
    let mut columns: Vec<Vec<ScalarValue>> = vec![Vec::new(); schema.fields().len()];
    for row in &values.values {
        for ((expr, field), column) in row.iter().zip(schema.fields()).zip(&mut columns) {
            let value = compile(expr, &DFSchema::empty())?
                .evaluate(&unit)
                .and_then(|v| v.into_array(1))
                .and_then(|a| ScalarValue::try_from_array(&a, 0))
                .and_then(|v| v.cast_to(field.data_type()))
                .map_err(|e| PlanError::new("22000", format!("{expr} cannot be computed")).detail(e.to_string()))?;
            column.push(value);
        }
    }
    let arrays = columns
        .into_iter()
        .map(ScalarValue::iter_to_array)
        .collect::<Result<Vec<ArrayRef>, _>>()
        .map_err(|e| PlanError::internal(e.to_string()))?;
    constant(&rows(schema, arrays, values.values.len())?)
}

fn rows(schema: SchemaRef, columns: Vec<ArrayRef>, n: usize) -> Result<RecordBatch> {
    let fields = schema
        .fields()
        .iter()
        .map(|f| f.as_ref().clone().with_nullable(true))
        .collect::<Vec<_>>();
    let options = RecordBatchOptions::new().with_row_count(Some(n));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|e| PlanError::internal(e.to_string()))
}

fn constant(batch: &RecordBatch) -> Result<Rel> {
    let write = || {
        let mut ipc = Vec::new();
        let mut writer = StreamWriter::try_new(&mut ipc, batch.schema_ref())?;
        writer.write(batch)?;
        writer.finish()?;
        drop(writer);
        Ok::<_, arrow::error::ArrowError>(ipc)
    };
    let ipc = write().map_err(|e| PlanError::internal(e.to_string()))?;
    let facts = props::leaf(true, Vec::new(), Some(batch.num_rows() as u64));
    Ok(Rel::leaf(RelOp::Values { ipc }, batch.schema(), facts))
}
