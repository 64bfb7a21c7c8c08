//! The catalog: named objects and what they depend on. A plain value: the runtime folds log records into it and hands out
//! immutable snapshots; binding a statement never changes it.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::plan::{ObjectId, StreamPlan, schema_serde};

/// A table's definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TableDef {
    /// Columns in declared order; `NOT NULL` is a non-nullable field. PostgreSQL facts that Arrow lacks stand in field
    /// metadata (see [`crate::sql::types`]).
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// Primary-key columns in key order; empty: none.
    pub primary_key: Vec<usize>,
    /// Default expression per column, as SQL text.
    pub defaults: Vec<Option<String>>,
    /// Where the table takes its rows from besides INSERT: its own source, whose splits carry the table's id.
    pub ingest: Option<Box<IngestDef>>,
}

/// The connector of a table that stores what it ingests.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IngestDef {
    /// What is read.
    pub source: SourceDef,
    /// From the source (and, as a `Scan` of the table's own id, from writes) to the stored rows.
    pub plan: StreamPlan,
}

/// A source's definition. A source stores nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SourceDef {
    /// Columns, included ones too.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// `connector` option.
    pub connector: String,
    /// All WITH options, keys lower-cased.
    pub options: BTreeMap<String, String>,
    /// FORMAT: how records change rows.
    pub format: SourceFormat,
    /// ENCODE: how a record's bytes hold a row.
    pub encode: Encoding,
    /// Options in parentheses after ENCODE, keys lower-cased.
    pub encode_options: BTreeMap<String, String>,
    /// Columns that come from the record's envelope instead of its payload (INCLUDE …), by column of `schema`.
    pub includes: BTreeMap<usize, Include>,
    /// Primary key, columns in key order; needed by upsert and Debezium.
    pub key: Vec<usize>,
}

/// How a source's records change rows, or how a sink's rows become records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceFormat {
    /// The connector makes its own rows (nexmark, datagen).
    Native,
    /// Each record is a new row.
    Plain,
    /// The newest record of a key is its row; a record without a value removes it.
    Upsert,
    /// Debezium change events.
    Debezium,
}

/// How a record's bytes hold a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    /// The connector's own.
    Native,
    /// One JSON object a record or line.
    Json,
    /// One CSV row a record or line.
    Csv,
    /// Parquet files.
    Parquet,
}

/// A part of a record's envelope that a source shows as a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Include {
    /// The key's bytes.
    Key,
    /// Partition number, or the file's path.
    Partition,
    /// Offset in the partition, or the byte (row, for Parquet) in the file.
    Offset,
    /// The record's timestamp.
    Timestamp,
    /// All headers as a JSON object, or the value of one.
    Header(Option<String>),
}

/// A plain view: its text, bound anew at each use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ViewDef {
    /// The query's text.
    pub sql: String,
    /// Columns at creation.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
}

/// A materialized view.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MaterializedViewDef {
    /// The query's text, for `pg_matviews` and EXPLAIN.
    pub sql: String,
    /// Columns.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// The lowered plan; authoritative, so a newer planner does not change a running view.
    pub plan: StreamPlan,
    /// WITH options, keys lower-cased.
    pub options: BTreeMap<String, String>,
}

/// A sink.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SinkDef {
    /// The query's text.
    pub sql: String,
    /// Columns.
    #[serde(with = "schema_serde")]
    pub schema: SchemaRef,
    /// The lowered plan.
    pub plan: StreamPlan,
    /// `connector` option.
    pub connector: String,
    /// All WITH options, keys lower-cased.
    pub options: BTreeMap<String, String>,
    /// FORMAT.
    pub format: SourceFormat,
    /// ENCODE.
    pub encode: Encoding,
    /// Options in parentheses after ENCODE, keys lower-cased.
    pub encode_options: BTreeMap<String, String>,
    /// Columns that identify a row at the target, in key order; empty if rows have no identity there.
    pub key: Vec<usize>,
    /// What becomes of changes.
    pub mode: SinkMode,
    /// Tells this sink from every other one that ever wrote to the same target. 0 until the sink is created: binding is a pure
    /// function.
    pub incarnation: u64,
}

/// What a sink does with retractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SinkMode {
    /// There are none: every change is a new row.
    AppendOnly,
    /// They are left out by the user's wish; the new row of an update is written.
    ForceAppendOnly,
    /// They update and delete rows at the target.
    Upsert,
}

/// What an object is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ObjectKind {
    /// Table.
    Table(TableDef),
    /// Source.
    Source(SourceDef),
    /// View.
    View(ViewDef),
    /// Materialized view.
    MaterializedView(Box<MaterializedViewDef>),
    /// Sink.
    Sink(Box<SinkDef>),
}

/// A named object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatalogObject {
    /// Id, never reused.
    pub id: ObjectId,
    /// Name in schema `public`.
    pub name: String,
    /// Definition.
    pub kind: ObjectKind,
    /// Objects that it reads directly, plain views included.
    pub depends_on: Vec<ObjectId>,
    /// The statement that made it.
    pub definition: String,
}

impl CatalogObject {
    /// Columns as a reader of the object sees them.
    pub fn schema(&self) -> &SchemaRef {
        match &self.kind {
            ObjectKind::Table(t) => &t.schema,
            ObjectKind::Source(s) => &s.schema,
            ObjectKind::View(v) => &v.schema,
            ObjectKind::MaterializedView(v) => &v.schema,
            ObjectKind::Sink(s) => &s.schema,
        }
    }

    /// The word for it in messages: `table`, `source`, `view`, `materialized view`, `sink`.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            ObjectKind::Table(_) => "table",
            ObjectKind::Source(_) => "source",
            ObjectKind::View(_) => "view",
            ObjectKind::MaterializedView(_) => "materialized view",
            ObjectKind::Sink(_) => "sink",
        }
    }

    /// The stream plan of a materialized view or sink.
    pub fn stream_plan(&self) -> Option<&StreamPlan> {
        match &self.kind {
            ObjectKind::MaterializedView(v) => Some(&v.plan),
            ObjectKind::Sink(s) => Some(&s.plan),
            _ => None,
        }
    }

    /// Has a stored relation (table or materialized view).
    pub fn is_relation(&self) -> bool {
        matches!(self.kind, ObjectKind::Table(_) | ObjectKind::MaterializedView(_))
    }
}

/// A change of the catalog; one log record holds one list of these.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum CatalogOp {
    /// A new object.
    Create(CatalogObject),
    /// Gone, with its state.
    Drop(ObjectId),
    /// The object of this id has another definition from here on (a new name, schema, option); its state stays.
    Replace(CatalogObject),
}

/// All objects.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Catalog {
    objects: BTreeMap<ObjectId, CatalogObject>,
    next_id: u32,
}

impl Catalog {
    /// First id given to a user's object; lower ones are PostgreSQL's own.
    pub const FIRST_ID: u32 = 16384;

    /// An object by name (already folded to its stored case).
    pub fn by_name(&self, name: &str) -> Option<&CatalogObject> {
        self.objects.values().find(|o| o.name == name)
    }

    /// An object by id.
    pub fn get(&self, id: ObjectId) -> Option<&CatalogObject> {
        self.objects.get(&id)
    }

    /// All objects by id; ids grow, so dependencies come first.
    pub fn objects(&self) -> impl Iterator<Item = &CatalogObject> {
        self.objects.values()
    }

    /// The id that the next created object should take.
    pub fn next_id(&self) -> ObjectId {
        ObjectId(self.next_id.max(Self::FIRST_ID))
    }

    /// Objects that read `id` directly.
    pub fn dependents(&self, id: ObjectId) -> Vec<&CatalogObject> {
        self.objects.values().filter(|o| o.depends_on.contains(&id)).collect()
    }

    /// Folds one change in.
    pub fn apply(&mut self, op: &CatalogOp) {
        match op {
            CatalogOp::Create(object) => {
                self.next_id = self.next_id.max(Self::FIRST_ID).max(object.id.0 + 1);
                self.objects.insert(object.id, object.clone());
            }
            CatalogOp::Drop(id) => {
                self.objects.remove(id);
            }
            CatalogOp::Replace(object) => {
                self.objects.insert(object.id, object.clone());
            }
        }
    }
}
