//! FOREIGN KEY: what a write to the referencing table must find, and what a write to the referenced table must not leave behind.
//!
//! Two transactions meet at locks: who writes a referencing row locks the referenced key against deletion (FOR KEY SHARE), who
//! deletes or changes a referenced key has locked it for update; both look at the newest rows after that.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema};
use arrow::row::OwnedRow;
use levee_planner::catalog::{Catalog, CatalogObject, ForeignKey, TableDef};
use levee_planner::plan::ObjectId;
use levee_runtime::relation::RelationSnapshot;

use super::change::encoded;
use super::unique::key_text;
use crate::error::{Result, SqlError};

/// Where a foreign key's values are looked up: the referenced table by its primary key, or the index of a unique constraint.
#[derive(Debug, Clone)]
pub(super) struct Lookup {
    /// The relation.
    pub relation: ObjectId,
    /// The referencing table's columns, in the order of the relation's key.
    pub columns: Vec<usize>,
    /// The referenced columns in that order.
    pub parent_columns: Vec<usize>,
    schema: Arc<Schema>,
}

impl Lookup {
    /// Of a foreign key.
    ///
    /// # Errors
    /// The referenced key is gone, which the catalog does not allow.
    pub fn of(catalog: &Catalog, f: &ForeignKey) -> Result<Self> {
        let parent = catalog.get(f.parent).and_then(CatalogObject::table);
        let parent = parent.ok_or_else(|| SqlError::internal("a foreign key's table is gone"))?;
        Self::in_table(parent, f)
    }

    fn in_table(parent: &TableDef, f: &ForeignKey) -> Result<Self> {
        let same =
            |key: &[usize]| key.len() == f.parent_columns.len() && key.iter().all(|c| f.parent_columns.contains(c));
        let (relation, key) = if !parent.primary_key.is_empty() && same(&parent.primary_key) {
            (f.parent, parent.primary_key.clone())
        } else {
            let unique = parent.constraints.uniques.iter().find(|u| same(&u.columns));
            let unique = unique.ok_or_else(|| SqlError::internal("a foreign key's unique constraint is gone"))?;
            (unique.index, unique.columns.clone())
        };
        let at = |c: &usize| f.parent_columns.iter().position(|p| p == c).unwrap_or(0);
        let fields: Vec<Field> = key
            .iter()
            .map(|c| parent.schema.field(*c).clone().with_nullable(true))
            .collect();
        Ok(Self {
            relation,
            columns: key.iter().map(|c| f.columns[at(c)]).collect(),
            parent_columns: key,
            schema: Arc::new(Schema::new(fields)),
        })
    }

    /// The values of some rows in the key's types, without rows that have a NULL; and which rows they are of.
    pub fn values(&self, rows: &RecordBatch) -> Result<(RecordBatch, Vec<usize>)> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|&c| Arc::clone(rows.column(c))).collect();
        let from: Vec<usize> = (0..rows.num_rows())
            .filter(|&i| columns.iter().all(|c| c.is_valid(i)))
            .collect();
        let mask: BooleanArray = (0..rows.num_rows())
            .map(|i| Some(columns.iter().all(|c| c.is_valid(i))))
            .collect();
        // A value that the key's type does not hold becomes NULL, which no key is.
        let cast = columns
            .iter()
            .zip(self.schema.fields())
            .map(|(a, f)| Ok(arrow::compute::cast(a, f.data_type())?))
            .collect::<Result<Vec<_>>>()?;
        let all = RecordBatch::try_new(Arc::clone(&self.schema), cast)?;
        let kept = if from.len() == rows.num_rows() {
            all
        } else {
            filter_record_batch(&all, &mask)?
        };
        Ok((kept, from))
    }
}

/// Every value of the referencing rows must be there.
///
/// # Errors
/// 23503 for the first that is not.
pub(super) fn check_present(
    catalog: &Catalog,
    table: &str,
    f: &ForeignKey,
    lookup: &Lookup,
    parent: &RelationSnapshot,
    rows: &RecordBatch,
) -> Result<()> {
    let (values, from) = lookup.values(rows)?;
    if values.num_rows() == 0 {
        return Ok(());
    }
    let found = parent.contains_keys(&values)?;
    let Some(at) = (0..found.len()).find(|&i| !found.value(i)) else {
        return Ok(());
    };
    let row = from.get(at).copied().unwrap_or(at);
    let (names, shown) = key_text(&f.columns, rows, row);
    let parent = catalog.get(f.parent).map_or("?", |o| o.name.as_str());
    Err(SqlError::new(
        "23503",
        format!(
            "insert or update on table \"{table}\" violates foreign key constraint \"{}\"",
            f.name
        ),
    )
    .detail(format!("Key ({names})=({shown}) is not present in table \"{parent}\"."))
    .object(table, None, Some(&f.name)))
}

/// The referenced keys that a write takes away: of rows that go, and are not those of rows that come.
pub(super) fn keys_gone(
    lookup: &Lookup,
    old: Option<&RecordBatch>,
    new: Option<&RecordBatch>,
) -> Result<HashSet<OwnedRow>> {
    let Some(old) = old.filter(|b| b.num_rows() > 0) else {
        return Ok(HashSet::new());
    };
    let keys = |rows: &RecordBatch| -> Result<Vec<OwnedRow>> { encoded(rows, &lookup.parent_columns) };
    let mut gone: HashSet<OwnedRow> = keys(old)?.into_iter().collect();
    if let Some(new) = new {
        for key in keys(new)? {
            gone.remove(&key);
        }
    }
    Ok(gone)
}

/// The rows of the referencing table that refer to one of `keys`.
pub(super) fn referring_rows(
    lookup: &Lookup,
    child: &RelationSnapshot,
    keys: &HashSet<OwnedRow>,
) -> Result<Vec<RecordBatch>> {
    let mut out = Vec::new();
    let all: Vec<usize> = (0..lookup.columns.len()).collect();
    for batch in child.rows()? {
        let (values, from) = lookup.values(&batch)?;
        let hits: Vec<u32> = encoded(&values, &all)?
            .iter()
            .zip(from)
            .filter(|(k, _)| keys.contains(*k))
            .map(|(_, row)| u32::try_from(row).unwrap_or(u32::MAX))
            .collect();
        if !hits.is_empty() {
            let index = arrow::array::UInt32Array::from(hits);
            out.push(arrow::compute::take_record_batch(&batch, &index)?);
        }
    }
    Ok(out)
}

/// 23503 of a write that would leave `row` of the referencing table without what it refers to.
pub(super) fn still_referenced(parent: &CatalogObject, child: &str, f: &ForeignKey, row: &RecordBatch) -> SqlError {
    let names: Vec<&str> = f
        .parent_columns
        .iter()
        .map(|c| parent.schema().field(*c).name().as_str())
        .collect();
    let (_, shown) = key_text(&f.columns, row, 0);
    SqlError::new(
        "23503",
        format!(
            "update or delete on table \"{}\" violates foreign key constraint \"{}\" on table \"{child}\"",
            parent.name, f.name
        ),
    )
    .detail(format!(
        "Key ({})=({shown}) is still referenced from table \"{child}\".",
        names.join(", ")
    ))
    .object(child, None, Some(&f.name))
}
