//! Writes: rows of the DML's query → checks → deltas → a commit, or a block's changes.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::scalar::ScalarValue;
use levee_planner::catalog::{CatalogObject, TableDef};
use levee_planner::plan::ObjectId;
use levee_planner::sql::types::varchar_length;
use levee_planner::sql::{Dml, DmlKind, Parsed, Statement};
use levee_runtime::coordinator::CommitRequest;
use levee_runtime::relation::RelationSnapshot;
use levee_runtime::{Delta, RuntimeError};

use super::run::table_def;
use super::{Session, SessionBinder};
use crate::error::{Result, SqlError};
use crate::types::encode::{TextStyle, value_text};

/// A single statement that loses against others is run again this often, then 40001.
const CONFLICT_TRIES: usize = 10;

/// A table as writes need it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub id: ObjectId,
    pub name: String,
    pub def: TableDef,
    /// The definition that rows are checked against; it must still hold when they are committed.
    pub object: Arc<CatalogObject>,
}

impl Target {
    /// Looks a table up.
    ///
    /// # Errors
    /// 42P01, 42809.
    pub fn find(binder: &SessionBinder, id: ObjectId) -> Result<Self> {
        let object = binder.catalog.shared(id).ok_or(RuntimeError::NoObject(id))?;
        Ok(Self {
            id,
            name: object.name.clone(),
            def: table_def(object)?.clone(),
            object: Arc::clone(object),
        })
    }

    /// Columns as stored in a delta.
    fn schema(&self) -> &SchemaRef {
        &self.def.schema
    }
}

/// A statement's rows, by what becomes of them.
#[derive(Debug)]
struct Change {
    old: Option<RecordBatch>,
    new: Option<RecordBatch>,
    rows: usize,
}

impl Session {
    /// Runs INSERT, UPDATE or DELETE; answers the tag.
    pub(super) async fn run_dml(
        &mut self,
        parsed: &Parsed,
        binder: &SessionBinder,
        dml: Dml,
        types: &[Option<DataType>],
        params: &[ScalarValue],
    ) -> Result<String> {
        self.refuse_read_only(match dml.kind {
            DmlKind::Insert => "INSERT",
            DmlKind::Update => "UPDATE",
            DmlKind::Delete => "DELETE",
        })?;
        let (mut binder, mut dml) = (binder.clone(), dml);
        for _ in 0..CONFLICT_TRIES {
            let target = Target::find(&binder, dml.table)?;
            let mut reads = dml.query.reads.clone();
            if !reads.contains(&dml.table) {
                reads.push(dml.table);
            }
            let snapshot = self.snapshot(&reads).await?;
            let mut rows = self.run_on(&binder, &dml.query, params, &snapshot).await?;
            let max = self.server.write_bytes_max;
            let batches = self.guarded(rows.collect(max)).await?;
            let relation = snapshot
                .relations
                .get(&dml.table)
                .ok_or(RuntimeError::NoObject(dml.table))?;
            let change = split(&target, dml.kind, rows.schema(), &batches)?;
            let n = change.rows;
            let deltas = checked(&target, relation, change)?;
            self.server.metrics.rows_in.inc_by(u64::try_from(n).unwrap_or(0));
            if self.apply(&target, snapshot.epoch, deltas).await? {
                return Ok(match dml.kind {
                    DmlKind::Insert => format!("INSERT 0 {n}"),
                    DmlKind::Update => format!("UPDATE {n}"),
                    DmlKind::Delete => format!("DELETE {n}"),
                });
            }
            binder = self.binder();
            dml = match binder.bind(parsed, types)? {
                Statement::Dml(dml) => dml,
                _ => return Err(SqlError::internal("DML bound to another kind of statement")),
            };
        }
        Err(RuntimeError::Conflict.into())
    }

    /// Inserts finished batches of a table's own columns (COPY); answers how many.
    pub(super) async fn insert_batches(&mut self, target: &Target, batches: &[RecordBatch]) -> Result<usize> {
        let new = concat_batches(target.schema(), batches)?;
        let rows = new.num_rows();
        self.server.metrics.rows_in.inc_by(u64::try_from(rows).unwrap_or(0));
        for _ in 0..CONFLICT_TRIES {
            let snapshot = self.snapshot(&[target.id]).await?;
            let relation = snapshot
                .relations
                .get(&target.id)
                .ok_or(RuntimeError::NoObject(target.id))?;
            let change = Change {
                old: None,
                new: Some(new.clone()),
                rows,
            };
            let deltas = checked(target, relation, change)?;
            if self.apply(target, snapshot.epoch, deltas).await? {
                return Ok(rows);
            }
        }
        Err(RuntimeError::Conflict.into())
    }

    /// Commits the deltas, or adds them to the block. False: lost against another write, run the statement again.
    async fn apply(&mut self, target: &Target, epoch: u64, deltas: Vec<Delta>) -> Result<bool> {
        if self.txn.block().is_some() {
            self.add_changes(&target.object, deltas)?;
            return Ok(true);
        }
        if deltas.is_empty() {
            return Ok(true);
        }
        let request = CommitRequest {
            snapshot_epoch: epoch,
            writes: vec![(target.id, deltas)],
            definitions: vec![Arc::clone(&target.object)],
        };
        match self.server.engine.commit(request).await {
            Ok(ack) => {
                self.wrote(ack.epoch);
                Ok(true)
            }
            Err(RuntimeError::Conflict) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// 25006 in a READ ONLY block.
    pub(super) fn refuse_read_only(&self, what: &str) -> Result<()> {
        let read_only = match self.txn.block() {
            Some(block) => block.read_only,
            None => self.settings.is_on("default_transaction_read_only"),
        };
        if read_only {
            return Err(SqlError::new(
                "25006",
                format!("cannot execute {what} in a read-only transaction"),
            ));
        }
        Ok(())
    }
}

/// Cuts the query's columns into old and new rows, with NOT NULL and length checked.
fn split(target: &Target, kind: DmlKind, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Change> {
    let n = target.schema().fields().len();
    let all = match batches {
        [] => {
            return Ok(Change {
                old: None,
                new: None,
                rows: 0,
            });
        }
        [first, ..] => concat_batches(&first.schema(), batches)?,
    };
    let wanted = if kind == DmlKind::Update { 2 * n } else { n };
    if all.num_columns() != wanted {
        return Err(SqlError::internal(format!(
            "write to \"{}\" yields {} columns, {wanted} are needed",
            target.name,
            schema.fields().len()
        )));
    }
    let columns = all.columns();
    let (old, new) = match kind {
        DmlKind::Insert => (None, Some(columns)),
        DmlKind::Update => (Some(&columns[..n]), Some(&columns[n..])),
        DmlKind::Delete => (Some(columns), None),
    };
    let old = old.map(|c| table_batch(target, c)).transpose()?;
    let new = new.map(|c| new_rows(target, c)).transpose()?;
    let mut change = Change {
        rows: all.num_rows(),
        old,
        new,
    };
    if kind == DmlKind::Update && !target.def.primary_key.is_empty() {
        once_per_key(target, &mut change)?;
    }
    Ok(change)
}

fn table_batch(target: &Target, columns: &[ArrayRef]) -> Result<RecordBatch> {
    let cast: Vec<ArrayRef> = columns
        .iter()
        .zip(target.schema().fields())
        .map(|(a, f)| {
            if a.data_type() == f.data_type() {
                Ok(ArrayRef::clone(a))
            } else {
                Ok(arrow::compute::cast(a, f.data_type())?)
            }
        })
        .collect::<Result<_>>()?;
    Ok(RecordBatch::try_new(Arc::clone(target.schema()), cast)?)
}

/// New rows must keep the columns' promises.
pub(super) fn new_rows(target: &Target, columns: &[ArrayRef]) -> Result<RecordBatch> {
    for (c, field) in target.schema().fields().iter().enumerate() {
        let array = &columns[c];
        if !field.is_nullable() && array.null_count() > 0 {
            let row = (0..array.len()).find(|&i| array.is_null(i)).unwrap_or(0);
            return Err(SqlError::new(
                "23502",
                format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    field.name(),
                    target.name
                ),
            )
            .detail(format!("Failing row contains ({}).", row_text(columns, row)?))
            .object(&target.name, Some(field.name()), None));
        }
        if let (Some(max), Some(text)) = (varchar_length(field), array.as_string_opt::<i32>()) {
            let long = text.iter().flatten().any(|t| t.len() > max && t.chars().count() > max);
            if long {
                return Err(SqlError::new(
                    "22001",
                    format!("value too long for type character varying({max})"),
                ));
            }
        }
    }
    table_batch(target, columns)
}

fn row_text(columns: &[ArrayRef], row: usize) -> Result<String> {
    let style = TextStyle::default();
    let values = columns
        .iter()
        .map(|c| {
            let text = value_text(c, row, &style)?.unwrap_or_else(|| "null".to_owned());
            let cut: String = text.chars().take(64).collect();
            Ok(if cut.len() < text.len() {
                format!("{cut}...")
            } else {
                cut
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(values.join(", "))
}

/// `UPDATE … FROM` may pair a row with several others: the first pair counts, as in PostgreSQL one of them does.
fn once_per_key(target: &Target, change: &mut Change) -> Result<()> {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return Ok(());
    };
    let keys = Keys::of(target, old)?;
    let mut seen = HashSet::with_capacity(keys.0.len());
    let first: BooleanArray = keys.0.iter().map(|k| Some(seen.insert(k.clone()))).collect();
    if first.true_count() == first.len() {
        return Ok(());
    }
    let (old, new) = (filter_record_batch(old, &first)?, filter_record_batch(new, &first)?);
    *change = Change {
        rows: old.num_rows(),
        old: Some(old),
        new: Some(new),
    };
    Ok(())
}

/// Encoded primary keys of a batch.
struct Keys(Vec<OwnedRow>);

impl Keys {
    fn of(target: &Target, batch: &RecordBatch) -> Result<Self> {
        let columns: Vec<ArrayRef> = target
            .def
            .primary_key
            .iter()
            .map(|&c| ArrayRef::clone(batch.column(c)))
            .collect();
        let fields = columns.iter().map(|c| SortField::new(c.data_type().clone())).collect();
        let rows = RowConverter::new(fields)?.convert_columns(&columns)?;
        Ok(Self(rows.iter().map(|r| r.owned()).collect()))
    }
}

/// Checks the primary key and makes deltas: old rows out, new rows in.
fn checked(target: &Target, relation: &RelationSnapshot, change: Change) -> Result<Vec<Delta>> {
    if let (Some(new), false) = (&change.new, target.def.primary_key.is_empty()) {
        check_keys(target, relation, change.old.as_ref(), new)?;
    }
    let mut deltas = Vec::new();
    if let Some(old) = change.old.filter(|b| b.num_rows() > 0) {
        deltas.push(Delta::inserts(old).negate());
    }
    if let Some(new) = change.new.filter(|b| b.num_rows() > 0) {
        deltas.push(Delta::inserts(new));
    }
    Ok(deltas)
}

fn check_keys(
    target: &Target,
    relation: &RelationSnapshot,
    old: Option<&RecordBatch>,
    new: &RecordBatch,
) -> Result<()> {
    let keys = Keys::of(target, new)?;
    let freed: HashSet<OwnedRow> = match old {
        Some(old) => Keys::of(target, old)?.0.into_iter().collect(),
        None => HashSet::new(),
    };
    let mut seen = HashSet::with_capacity(keys.0.len());
    for (row, key) in keys.0.iter().enumerate() {
        if !seen.insert(key) {
            return Err(duplicate_key(target, new, row));
        }
    }
    let taken: BooleanArray = keys.0.iter().map(|k| Some(!freed.contains(k))).collect();
    if taken.true_count() == 0 {
        return Ok(());
    }
    let arriving = filter_record_batch(&new.project(&target.def.primary_key)?, &taken)?;
    let exists = relation.contains_keys(&arriving)?;
    if let Some(at) = (0..exists.len()).find(|&i| exists.value(i)) {
        // The row in `new` that the `at`-th arriving key comes from.
        let row = (0..taken.len()).filter(|&i| taken.value(i)).nth(at).unwrap_or(0);
        return Err(duplicate_key(target, new, row));
    }
    Ok(())
}

fn duplicate_key(target: &Target, batch: &RecordBatch, row: usize) -> SqlError {
    let style = TextStyle::default();
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for &c in &target.def.primary_key {
        names.push(target.schema().field(c).name().clone());
        let text = value_text(batch.column(c), row, &style).ok().flatten();
        values.push(text.unwrap_or_else(|| "null".to_owned()));
    }
    let constraint = format!("{}_pkey", target.name);
    SqlError::new(
        "23505",
        format!("duplicate key value violates unique constraint \"{constraint}\""),
    )
    .detail(format!(
        "Key ({})=({}) already exists.",
        names.join(", "),
        values.join(", ")
    ))
    .object(&target.name, None, Some(&constraint))
}
