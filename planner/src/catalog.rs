//! The catalog: named objects and what they depend on. A plain value: the runtime folds log records into it and hands out
//! immutable snapshots; binding a statement never changes it.

//!
//! Objects stand in *namespaces* (SQL's schemas). Tables, views, sources, sinks, sequences and indexes share one set of names per
//! namespace. Snapshots share what they have in common: a change copies a map of `Arc`s.

mod namespace;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

pub use namespace::{Namespace, PUBLIC};
pub use table::{
    Check, Constraints, ForeignKey, Generated, IndexDef, ReferentialAction, SequenceDef, SequenceState, Unique,
};

use crate::job::JobState;
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
    /// Constraints besides types, NOT NULL and the primary key's columns.
    pub constraints: Constraints,
    /// Columns that the system fills.
    pub generated: BTreeMap<usize, Generated>,
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
    /// Grows whenever ALTER changes how records are decoded, or replays dead letters. Every range of the source says under which revision
    /// it was cut, and is decoded as that one says, whenever it is read.
    pub revision: u32,
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
    /// The hidden relation of a unique constraint.
    Index(IndexDef),
    /// Sequence.
    Sequence(SequenceDef),
}

/// A relation as a stored query's text names it. The text keeps its names whatever becomes of the relation's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// Schema, if the text gives one.
    pub schema: Option<String>,
    /// Name in the text.
    pub name: String,
    /// The relation meant.
    pub id: ObjectId,
    /// Its columns' names when the text was written.
    pub columns: Vec<String>,
}

/// A named object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatalogObject {
    /// Id, never reused.
    pub id: ObjectId,
    /// The namespace that it stands in.
    pub namespace: ObjectId,
    /// Name in its namespace.
    pub name: String,
    /// Definition.
    pub kind: ObjectKind,
    /// Objects that it reads directly, plain views included.
    pub depends_on: Vec<ObjectId>,
    /// The statement that made it, without passwords.
    pub definition: String,
    /// The relations that the query's text names, of a view, materialized view or sink.
    pub references: Vec<Reference>,
    /// COMMENT ON: the object's own under 0, a column's under its number (from 1), a constraint's under its name.
    pub comments: BTreeMap<CommentKey, String>,
}

/// What of an object a comment is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CommentKey {
    /// Itself.
    Object,
    /// A column, by position from 0.
    Column(usize),
    /// A constraint, by name.
    Constraint(String),
}

impl CatalogObject {
    /// An object in schema `public`, without dependencies.
    pub fn new(id: ObjectId, name: impl Into<String>, kind: ObjectKind) -> Self {
        Self {
            id,
            namespace: PUBLIC,
            name: name.into(),
            kind,
            depends_on: Vec::new(),
            definition: String::new(),
            references: Vec::new(),
            comments: BTreeMap::new(),
        }
    }

    /// Columns as a reader of the object sees them.
    pub fn schema(&self) -> &SchemaRef {
        match &self.kind {
            ObjectKind::Table(t) => &t.schema,
            ObjectKind::Source(s) => &s.schema,
            ObjectKind::View(v) => &v.schema,
            ObjectKind::MaterializedView(v) => &v.schema,
            ObjectKind::Sink(s) => &s.schema,
            ObjectKind::Index(i) => &i.schema,
            ObjectKind::Sequence(_) => namespace::sequence_schema(),
        }
    }

    /// The word for it in messages: `table`, `source`, `view`, `materialized view`, `sink`,
    /// `index`, `sequence`.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            ObjectKind::Table(_) => "table",
            ObjectKind::Source(_) => "source",
            ObjectKind::View(_) => "view",
            ObjectKind::MaterializedView(_) => "materialized view",
            ObjectKind::Sink(_) => "sink",
            ObjectKind::Index(_) => "index",
            ObjectKind::Sequence(_) => "sequence",
        }
    }

    /// The object that it goes with: an index's table, an owned sequence's table.
    pub fn owner(&self) -> Option<ObjectId> {
        match &self.kind {
            ObjectKind::Index(i) => Some(i.table),
            ObjectKind::Sequence(s) => s.owned_by.map(|(table, _)| table),
            _ => None,
        }
    }

    /// The table's definition, if it is one.
    pub fn table(&self) -> Option<&TableDef> {
        match &self.kind {
            ObjectKind::Table(t) => Some(t),
            _ => None,
        }
    }

    /// The stream plan of a materialized view, a sink, or a table with a connector.
    pub fn stream_plan(&self) -> Option<&StreamPlan> {
        match &self.kind {
            ObjectKind::MaterializedView(v) => Some(&v.plan),
            ObjectKind::Sink(s) => Some(&s.plan),
            ObjectKind::Table(t) => t.ingest.as_ref().map(|i| &i.plan),
            _ => None,
        }
    }

    /// Has a stored relation (table, its indexes, materialized view).
    pub fn is_relation(&self) -> bool {
        matches!(
            self.kind,
            ObjectKind::Table(_) | ObjectKind::MaterializedView(_) | ObjectKind::Index(_)
        )
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
    /// A new schema, or an existing one's new name or comment.
    PutNamespace(Namespace),
    /// An empty schema goes.
    DropNamespace(ObjectId),
    /// Values of a sequence are reserved, or it was set.
    Sequence(ObjectId, SequenceState),
    /// The job of this id is in another state, if it still exists.
    SetJob(ObjectId, JobState),
}

/// All objects.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Catalog {
    objects: BTreeMap<ObjectId, Arc<CatalogObject>>,
    namespaces: BTreeMap<ObjectId, Arc<Namespace>>,
    sequences: BTreeMap<ObjectId, SequenceState>,
    /// Of jobs that do not simply run.
    jobs: BTreeMap<ObjectId, JobState>,
    next_id: u32,
    version: u64,
}

impl Default for Catalog {
    fn default() -> Self {
        let public = Namespace::new(PUBLIC, "public");
        Self {
            objects: BTreeMap::new(),
            namespaces: BTreeMap::from([(PUBLIC, Arc::new(public))]),
            sequences: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_id: 0,
            version: 0,
        }
    }
}

impl Catalog {
    /// First id given to a user's object; lower ones are PostgreSQL's own.
    pub const FIRST_ID: u32 = 16384;

    /// An object of schema `public` by name (already folded to its stored case).
    pub fn by_name(&self, name: &str) -> Option<&CatalogObject> {
        self.find(PUBLIC, name).map(Arc::as_ref)
    }

    /// An object by namespace and name.
    pub fn find(&self, namespace: ObjectId, name: &str) -> Option<&Arc<CatalogObject>> {
        self.objects
            .values()
            .find(|o| o.namespace == namespace && o.name == name)
    }

    /// An object by id.
    pub fn get(&self, id: ObjectId) -> Option<&CatalogObject> {
        self.objects.get(&id).map(Arc::as_ref)
    }

    /// An object by id, to keep.
    pub fn shared(&self, id: ObjectId) -> Option<&Arc<CatalogObject>> {
        self.objects.get(&id)
    }

    /// All objects by id; ids grow, so dependencies come first.
    pub fn objects(&self) -> impl Iterator<Item = &CatalogObject> {
        self.objects.values().map(Arc::as_ref)
    }

    /// The id that the next created object should take; further ones follow it.
    pub fn next_id(&self) -> ObjectId {
        ObjectId(self.next_id.max(Self::FIRST_ID))
    }

    /// Grows with every change but those of a sequence's values or a job's state: a statement bound at one version means the same at another only if both are
    /// equal.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Objects that read `id` directly.
    pub fn dependents(&self, id: ObjectId) -> Vec<&CatalogObject> {
        self.objects().filter(|o| o.depends_on.contains(&id)).collect()
    }

    /// Folds one change in.
    pub fn apply(&mut self, op: &CatalogOp) {
        self.version += u64::from(!matches!(op, CatalogOp::Sequence(..) | CatalogOp::SetJob(..)));
        match op {
            CatalogOp::Create(object) => {
                self.take_id(object.id);
                self.objects.insert(object.id, Arc::new(object.clone()));
            }
            CatalogOp::Drop(id) => {
                self.objects.remove(id);
                self.sequences.remove(id);
                self.jobs.remove(id);
            }
            CatalogOp::Replace(object) => {
                self.objects.insert(object.id, Arc::new(object.clone()));
            }
            CatalogOp::PutNamespace(namespace) => {
                if namespace.id != PUBLIC {
                    self.take_id(namespace.id);
                }
                self.namespaces.insert(namespace.id, Arc::new(namespace.clone()));
            }
            CatalogOp::DropNamespace(id) => {
                self.namespaces.remove(id);
            }
            CatalogOp::Sequence(id, state) => {
                self.sequences.insert(*id, *state);
            }
            CatalogOp::SetJob(id, JobState::Running) => {
                self.jobs.remove(id);
            }
            CatalogOp::SetJob(id, state) => {
                if self.objects.contains_key(id) {
                    self.jobs.insert(*id, state.clone());
                }
            }
        }
    }

    /// The state of a job.
    pub fn job(&self, id: ObjectId) -> &JobState {
        self.jobs.get(&id).unwrap_or(&JobState::Running)
    }

    /// Jobs that do not simply run.
    pub fn jobs(&self) -> impl Iterator<Item = (ObjectId, &JobState)> {
        self.jobs.iter().map(|(id, state)| (*id, state))
    }

    fn take_id(&mut self, id: ObjectId) {
        self.next_id = self.next_id.max(Self::FIRST_ID).max(id.0 + 1);
    }
}
