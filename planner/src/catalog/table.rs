//! What a table promises of its rows besides their types: keys, checks, references, and columns that the system fills.
//!
//! A unique constraint has an *index*: a hidden relation of its own that holds the constraint's columns and is keyed by them. Whoever
//! writes to the table writes the index's rows in the same commit, so the index is right at every epoch, recovers as any table does,
//! and two transactions that add the same value meet at the same conflict key. A primary key needs none: rows are stored by it.

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use super::TableDef;
use crate::plan::{ObjectId, schema_serde};

/// A table's constraints, except NOT NULL, which is a non-nullable field.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Constraints {
    /// Name of the primary key's constraint and index, if it has another one than `<table>_pkey`.
    pub primary_key: Option<String>,
    /// CHECK.
    pub checks: Vec<Check>,
    /// UNIQUE.
    pub uniques: Vec<Unique>,
    /// FOREIGN KEY.
    pub foreign_keys: Vec<ForeignKey>,
}

impl TableDef {
    /// What a column takes when no value is given, as SQL text; `None`: NULL, or computed from the row.
    pub fn default_sql(&self, column: usize) -> Option<String> {
        match self.generated.get(&column) {
            Some(Generated::Identity { sequence, .. }) => Some(format!("nextval({})", sequence.0)),
            Some(Generated::Stored(_)) => None,
            None => self.defaults.get(column).cloned().flatten(),
        }
    }

    /// Name of the primary key's constraint and index, if there is one. `table` is the table's name.
    pub fn primary_key_name(&self, table: &str) -> Option<String> {
        if self.primary_key.is_empty() {
            return None;
        }
        let given = self.constraints.primary_key.clone();
        Some(given.unwrap_or_else(|| format!("{table}_pkey")))
    }
}

/// A condition on a row; NULL passes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name.
    pub name: String,
    /// The condition's text.
    pub sql: String,
    /// Columns that it names.
    pub columns: Vec<usize>,
}

/// No two rows have the same values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// Name.
    pub name: String,
    /// Columns in the order declared.
    pub columns: Vec<usize>,
    /// Rows with a NULL differ from all others (PostgreSQL's default).
    pub nulls_distinct: bool,
    /// The index.
    pub index: ObjectId,
}

/// Values must exist in another table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignKey {
    /// Name.
    pub name: String,
    /// Columns of this table.
    pub columns: Vec<usize>,
    /// The other table.
    pub parent: ObjectId,
    /// Its columns, which are a primary key or unique.
    pub parent_columns: Vec<usize>,
    /// What becomes of rows whose parent row is deleted.
    pub on_delete: ReferentialAction,
    /// What becomes of rows whose parent row's key changes.
    pub on_update: ReferentialAction,
}

/// What a change of a referenced row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReferentialAction {
    /// It fails at the statement's end.
    NoAction,
    /// It fails.
    Restrict,
    /// The referencing rows go or change with it.
    Cascade,
    /// The referencing columns become NULL.
    SetNull,
    /// The referencing columns take their defaults.
    SetDefault,
}

impl ReferentialAction {
    /// As SQL writes it.
    pub fn sql(self) -> &'static str {
        match self {
            Self::NoAction => "NO ACTION",
            Self::Restrict => "RESTRICT",
            Self::Cascade => "CASCADE",
            Self::SetNull => "SET NULL",
            Self::SetDefault => "SET DEFAULT",
        }
    }

    /// As `pg_constraint` writes it.
    pub fn letter(self) -> &'static str {
        match self {
            Self::NoAction => "a",
            Self::Restrict => "r",
            Self::Cascade => "c",
            Self::SetNull => "n",
            Self::SetDefault => "d",
        }
    }
}

/// A column that the system fills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Generated {
    /// `GENERATED ALWAYS AS (expression) STORED`: the expression's text, over the row's other columns.
    Stored(String),
    /// `GENERATED … AS IDENTITY`.
    Identity {
        /// ALWAYS: explicit values are refused unless OVERRIDING SYSTEM VALUE.
        always: bool,
        /// Where values come from.
        sequence: ObjectId,
    },
}

/// The hidden relation of a unique constraint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexDef {
    /// The table.
    pub table: ObjectId,
    /// The table's columns, in the index's order.
    pub columns: Vec<usize>,
    /// The index's own columns: those, all of them its key.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// Rows with a NULL are not in it.
    pub nulls_distinct: bool,
}

/// A sequence's definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceDef {
    /// `smallint`, `integer` or `bigint`.
    pub data_type: String,
    /// First value.
    pub start: i64,
    /// Step, not zero.
    pub increment: i64,
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
    /// Values that a session takes at once; shown, without effect.
    pub cache: i64,
    /// Begins again after the last value.
    pub cycle: bool,
    /// The table and column that it goes with.
    pub owned_by: Option<(ObjectId, usize)>,
    /// It belongs to an identity column, and cannot be dropped alone.
    pub identity: bool,
}

/// How far a sequence has got. Values up to `value` may have been given out; after a crash none of them is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceState {
    /// The last value reserved.
    pub value: i64,
    /// `value` itself has been given out or reserved; if not, it is the next one.
    pub called: bool,
}
