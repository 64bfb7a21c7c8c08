//! The rows of a write's query, cut into what goes and what comes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{Int32Type, Int64Type, SchemaRef};
use arrow::row::{OwnedRow, RowConverter, SortField};
use levee_planner::catalog::{Catalog, CatalogObject, TableDef};
use levee_planner::plan::ObjectId;
use levee_planner::sql::types::{pg_type_name, varchar_length};
use levee_planner::sql::{Dml, DmlKind, MergeOutcome};
use levee_runtime::coordinator::Engine;
use levee_runtime::operators::columns::canonical;
use levee_runtime::relation::RelationSnapshot;
use levee_runtime::{Delta, RuntimeError};

use super::SessionBinder;
use super::rules::Rules;
use super::run::table_def;
use crate::error::{Result, SqlError};
use crate::types::encode::{TextStyle, value_text};

/// A table as writes need it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub id: ObjectId,
    pub name: String,
    pub def: TableDef,
    /// The definition that rows are checked against; it must still hold when they are committed.
    pub object: Arc<CatalogObject>,
    /// The catalog that it stands in.
    pub catalog: Arc<Catalog>,
    /// Generated columns and checks.
    pub rules: Option<Arc<Rules>>,
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
            catalog: Arc::clone(&binder.catalog),
            rules: Rules::of(binder, object)?,
        })
    }

    /// Columns as stored in a delta.
    pub fn schema(&self) -> &SchemaRef {
        &self.def.schema
    }
}

/// A statement's rows, by what becomes of them. Those of an UPDATE are aligned: row i of `old` becomes row i of `new`.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Rows that go.
    pub old: Option<RecordBatch>,
    /// Rows that come.
    pub new: Option<RecordBatch>,
    /// Rows that the command tag tells of.
    pub rows: usize,
    /// Columns of other tables, one value for each of those rows.
    pub extra: Vec<ArrayRef>,
}

impl Change {
    /// New rows only.
    pub fn insert(new: RecordBatch) -> Self {
        Self {
            rows: new.num_rows(),
            new: Some(new),
            ..Self::default()
        }
    }

    /// The rows that RETURNING is about.
    pub fn returned(&self, target: &Target, kind: DmlKind, columns: &SchemaRef) -> Result<RecordBatch> {
        let rows = if kind == DmlKind::Delete { &self.old } else { &self.new };
        let mut arrays: Vec<ArrayRef> = match rows {
            Some(rows) => rows.columns().to_vec(),
            None => RecordBatch::new_empty(Arc::clone(target.schema())).columns().to_vec(),
        };
        arrays.extend(self.extra.iter().cloned());
        let options = RecordBatchOptions::new().with_row_count(Some(rows.as_ref().map_or(0, RecordBatch::num_rows)));
        if arrays.len() < columns.fields().len() {
            arrays.extend(
                columns.fields()[arrays.len()..]
                    .iter()
                    .map(|f| arrow::array::new_empty_array(f.data_type())),
            );
        }
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(columns),
            arrays,
            &options,
        )?)
    }

    /// As deltas: old rows out, new rows in.
    pub fn deltas(&self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some(old) = self.old.as_ref().filter(|b| b.num_rows() > 0) {
            deltas.push(Delta::inserts(old.clone()).negate());
        }
        if let Some(new) = self.new.as_ref().filter(|b| b.num_rows() > 0) {
            deltas.push(Delta::inserts(new.clone()));
        }
        deltas
    }
}

/// Keys of the rows that a statement found first, with which it is run again.
pub(super) type Only = HashSet<u128>;

/// The rows of a DML's query. `only`: leave out old rows with other keys.
pub(super) fn split(
    engine: &Engine,
    target: &Target,
    dml: &Dml,
    batches: &[RecordBatch],
    only: Option<&Only>,
) -> Result<Change> {
    let [first, ..] = batches else {
        return Ok(Change::default());
    };
    let all = concat_batches(&first.schema(), batches)?;
    let n = target.schema().fields().len();
    let (skip, old, new) = match dml.kind {
        DmlKind::Insert => (0, false, true),
        DmlKind::Update => (0, true, true),
        DmlKind::Delete => (0, true, false),
        DmlKind::Merge => (1, true, true),
    };
    let own = skip + n * (usize::from(old) + usize::from(new)) + usize::from(dml.counted);
    if all.num_columns() < own {
        return Err(SqlError::internal(format!(
            "write to \"{}\" yields {} columns, {own} are needed",
            target.name,
            all.num_columns()
        )));
    }
    if dml.kind == DmlKind::Merge {
        return merge_rows(engine, target, dml, &all, only);
    }
    let all = if old {
        let keys = engine.row_keys(target.id, &table_batch(target, &all.columns()[..n])?)?;
        kept(&all, &keys, dml, only)?
    } else {
        all
    };
    let all = if dml.counted { repeated(&all, own - 1)? } else { all };
    let columns = all.columns();
    // Other tables' columns stand behind the target's, which are there once more.
    let extra_at = own + n + usize::from(dml.counted);
    Ok(Change {
        rows: all.num_rows(),
        old: old.then(|| table_batch(target, &columns[..n])).transpose()?,
        new: new
            .then(|| new_rows(target, &columns[own - n - usize::from(dml.counted)..][..n]))
            .transpose()?,
        extra: columns.get(extra_at..).map(<[ArrayRef]>::to_vec).unwrap_or_default(),
    })
}

/// Leaves out rows that the statement did not find at first, and all but one pair of each row.
fn kept(all: &RecordBatch, keys: &[u128], dml: &Dml, only: Option<&Only>) -> Result<RecordBatch> {
    let all = match only {
        None => all.clone(),
        Some(only) => {
            let wanted: BooleanArray = keys.iter().map(|k| Some(only.contains(k))).collect();
            let keys: Vec<u128> = keys.iter().copied().filter(|k| only.contains(k)).collect();
            return kept(&filter_record_batch(all, &wanted)?, &keys, dml, None);
        }
    };
    if !dml.joined {
        return Ok(all);
    }
    Ok(take_record_batch(&all, &one_pair_each(&all, keys)?)?)
}

/// `UPDATE … FROM` and `DELETE … USING` may pair a row with several others. PostgreSQL takes the first that it meets; here it is the
/// least, so that the outcome does not depend on the order of execution.
fn one_pair_each(all: &RecordBatch, keys: &[u128]) -> Result<UInt32Array> {
    let fields = all
        .columns()
        .iter()
        .map(|c| SortField::new(c.data_type().clone()))
        .collect();
    let rows = RowConverter::new(fields)?.convert_columns(all.columns())?;
    let mut best: HashMap<u128, usize> = HashMap::with_capacity(keys.len());
    for (i, key) in keys.iter().enumerate() {
        let at = best.entry(*key).or_insert(i);
        if rows.row(i) < rows.row(*at) {
            *at = i;
        }
    }
    let mut index: Vec<u32> = best.into_values().map(|i| u32::try_from(i).unwrap_or(0)).collect();
    index.sort_unstable();
    Ok(index.into())
}

/// Each row as often as column `count` says.
fn repeated(all: &RecordBatch, count: usize) -> Result<RecordBatch> {
    let counts = arrow::compute::cast(all.column(count), &arrow::datatypes::DataType::Int64)?;
    let counts: &Int64Array = counts.as_primitive::<Int64Type>();
    let mut index = Vec::with_capacity(counts.len());
    for i in 0..counts.len() {
        let n = if counts.is_valid(i) { counts.value(i) } else { 1 };
        for _ in 0..n {
            index.push(u32::try_from(i).unwrap_or(0));
        }
    }
    Ok(take_record_batch(all, &UInt32Array::from(index))?)
}

fn merge_rows(engine: &Engine, target: &Target, dml: &Dml, all: &RecordBatch, only: Option<&Only>) -> Result<Change> {
    let n = target.schema().fields().len();
    let of = |outcome: MergeOutcome| -> Result<RecordBatch> {
        let codes = arrow::compute::cast(all.column(0), &arrow::datatypes::DataType::Int32)?;
        let codes = codes.as_primitive::<Int32Type>();
        let mask: BooleanArray = codes.iter().map(|c| Some(c == Some(outcome as i32))).collect();
        Ok(filter_record_batch(all, &mask)?)
    };
    let changed = concat_batches(&all.schema(), &[of(MergeOutcome::Update)?, of(MergeOutcome::Delete)?])?;
    let keys = engine.row_keys(target.id, &table_batch(target, &changed.columns()[1..=n])?)?;
    let mut seen = HashSet::with_capacity(keys.len());
    if !keys.iter().all(|k| seen.insert(*k)) {
        return Err(SqlError::new("21000", "MERGE command cannot affect row a second time")
            .hint("Ensure that not more than one source row matches any one target row."));
    }
    let wanted = |b: RecordBatch| -> Result<RecordBatch> {
        let Some(only) = only else { return Ok(b) };
        let keys = engine.row_keys(target.id, &table_batch(target, &b.columns()[1..=n])?)?;
        let mask: BooleanArray = keys.iter().map(|k| Some(only.contains(k))).collect();
        Ok(filter_record_batch(&b, &mask)?)
    };
    let counted = |b: RecordBatch| -> Result<RecordBatch> { if dml.counted { repeated(&b, 2 * n + 1) } else { Ok(b) } };
    let updates = counted(wanted(of(MergeOutcome::Update)?)?)?;
    let deletes = counted(wanted(of(MergeOutcome::Delete)?)?)?;
    let inserts = of(MergeOutcome::Insert)?;
    let old = |b: &RecordBatch| table_batch(target, &b.columns()[1..=n]);
    let new = |b: &RecordBatch| new_rows(target, &b.columns()[n + 1..=2 * n]);
    Ok(Change {
        rows: updates.num_rows() + deletes.num_rows() + inserts.num_rows(),
        old: Some(concat_batches(target.schema(), &[old(&updates)?, old(&deletes)?])?),
        new: Some(concat_batches(target.schema(), &[new(&updates)?, new(&inserts)?])?),
        extra: Vec::new(),
    })
}

/// Columns in the table's types.
pub(super) fn table_batch(target: &Target, columns: &[ArrayRef]) -> Result<RecordBatch> {
    // Old rows of pairs without one are NULL.
    let fields: Vec<_> = target
        .schema()
        .fields()
        .iter()
        .zip(columns)
        .map(|(f, a)| f.as_ref().clone().with_nullable(f.is_nullable() || a.null_count() > 0))
        .collect();
    let same = fields
        .iter()
        .zip(target.schema().fields())
        .all(|(a, b)| a == b.as_ref());
    let schema = if same {
        Arc::clone(target.schema())
    } else {
        Arc::new(arrow::datatypes::Schema::new(fields))
    };
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
    Ok(RecordBatch::try_new(schema, cast)?)
}

/// New rows must keep the columns' promises.
pub(super) fn new_rows(target: &Target, columns: &[ArrayRef]) -> Result<RecordBatch> {
    let filled;
    let columns = match &target.rules {
        Some(rules) => {
            filled = rules.fill(columns)?;
            &filled
        }
        None => columns,
    };
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
                    format!("value too long for type {}", pg_type_name(field)),
                ));
            }
        }
    }
    if let Some(rules) = &target.rules {
        rules.check(&target.name, columns)?;
    }
    let keys = float_keys(target);
    if keys.is_empty() {
        return table_batch(target, columns);
    }
    let mut columns = columns.to_vec();
    for c in keys {
        columns[c] = canonical(&columns[c]);
    }
    table_batch(target, &columns)
}

/// Columns of floats that keys and references are made of. They are stored in one form of those that are equal, since keys are compared by
/// their bytes.
fn float_keys(target: &Target) -> Vec<usize> {
    let constraints = &target.def.constraints;
    let uniques = constraints.uniques.iter().flat_map(|u| &u.columns);
    let references = constraints.foreign_keys.iter().flat_map(|f| &f.columns);
    let all = target.def.primary_key.iter().chain(uniques).chain(references);
    let floats = all.filter(|c| target.schema().field(**c).data_type().is_floating());
    floats.copied().collect()
}

/// A row as error messages show it.
pub(super) fn row_text(columns: &[ArrayRef], row: usize) -> Result<String> {
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

/// Encoded columns of a batch, one value a row.
pub(super) fn encoded(batch: &RecordBatch, columns: &[usize]) -> Result<Vec<OwnedRow>> {
    let columns: Vec<ArrayRef> = columns.iter().map(|&c| ArrayRef::clone(batch.column(c))).collect();
    let fields = columns.iter().map(|c| SortField::new(c.data_type().clone())).collect();
    let rows = RowConverter::new(fields)?.convert_columns(&columns)?;
    Ok(rows.iter().map(|r| r.owned()).collect())
}

/// The primary key must stay unique: among the new rows, and against stored ones that do not go.
pub(super) fn check_primary_key(target: &Target, relation: &RelationSnapshot, change: &Change) -> Result<()> {
    let Some(new) = change.new.as_ref().filter(|b| b.num_rows() > 0) else {
        return Ok(());
    };
    let key = &target.def.primary_key;
    if key.is_empty() {
        return Ok(());
    }
    let keys = encoded(new, key)?;
    let freed: HashSet<OwnedRow> = match &change.old {
        Some(old) => encoded(old, key)?.into_iter().collect(),
        None => HashSet::new(),
    };
    let mut seen = HashSet::with_capacity(keys.len());
    for (row, key) in keys.iter().enumerate() {
        if !seen.insert(key) {
            return Err(duplicate_key(target, new, row));
        }
    }
    let arrives: BooleanArray = keys.iter().map(|k| Some(!freed.contains(k))).collect();
    if arrives.true_count() == 0 {
        return Ok(());
    }
    let arriving = filter_record_batch(&new.project(key)?, &arrives)?;
    let exists = relation.contains_keys(&arriving)?;
    if let Some(at) = (0..exists.len()).find(|&i| exists.value(i)) {
        // The row in `new` that the `at`-th arriving key comes from.
        let row = (0..arrives.len()).filter(|&i| arrives.value(i)).nth(at).unwrap_or(0);
        return Err(duplicate_key(target, new, row));
    }
    Ok(())
}

fn duplicate_key(target: &Target, batch: &RecordBatch, row: usize) -> SqlError {
    let constraint = target.def.primary_key_name(&target.name).unwrap_or_default();
    super::unique::duplicate(&target.name, &constraint, &target.def.primary_key, batch, row)
}
