//! Namespaces: SQL's schemas.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use super::{Catalog, CatalogObject, SequenceState};
use crate::plan::ObjectId;

/// Schema `public`, which is there from the beginning.
pub const PUBLIC: ObjectId = ObjectId(2200);

/// A schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Id, from the same numbers as objects' ids.
    pub id: ObjectId,
    /// Name.
    pub name: String,
    /// COMMENT ON SCHEMA.
    pub comment: Option<String>,
    /// Holds one session's temporary objects; goes with the session.
    pub temporary: bool,
}

impl Namespace {
    /// A lasting schema.
    pub fn new(id: ObjectId, name: impl Into<String>) -> Self {
        Self {
            id,
            name: name.into(),
            comment: None,
            temporary: false,
        }
    }
}

impl Catalog {
    /// All schemas by id, temporary ones too.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.values().map(Arc::as_ref)
    }

    /// A schema by id.
    pub fn namespace(&self, id: ObjectId) -> Option<&Namespace> {
        self.namespaces.get(&id).map(Arc::as_ref)
    }

    /// A schema by name.
    pub fn namespace_named(&self, name: &str) -> Option<&Namespace> {
        self.namespaces().find(|n| n.name == name)
    }

    /// The name of the schema that an object stands in.
    pub fn namespace_of(&self, object: &CatalogObject) -> &str {
        self.namespace(object.namespace).map_or("public", |n| n.name.as_str())
    }

    /// Is the object temporary?
    pub fn is_temporary(&self, object: &CatalogObject) -> bool {
        self.namespace(object.namespace).is_some_and(|n| n.temporary)
    }

    /// How far a sequence has got; `None`: it was never used.
    pub fn sequence(&self, id: ObjectId) -> Option<SequenceState> {
        self.sequences.get(&id).copied()
    }
}

/// A sequence's columns when it is read as a table.
pub(super) fn sequence_schema() -> &'static SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            Field::new("last_value", DataType::Int64, false),
            Field::new("log_cnt", DataType::Int64, false),
            Field::new("is_called", DataType::Boolean, false),
        ]))
    });
    &SCHEMA
}
