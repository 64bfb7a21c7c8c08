//! Which object a name means: the search path, and the schema that a new object goes into.
//!
//! An unqualified relation is looked for among the session's temporary objects, in `pg_catalog`, then along `search_path`; a
//! stored query's text is read with the [`Reference`]s that were noted when it was written, so that it goes on meaning the same
//! relations whatever they are called by now and whatever the reader's path is.

use std::sync::Arc;

use sqlparser::ast::ObjectName;

use super::Binder;
use super::ext::object_name;
use crate::catalog::{CatalogObject, CatalogOp, Namespace, Reference};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// PostgreSQL's limit for names, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// Schemas that the system fills.
const SYSTEM_SCHEMAS: [&str; 3] = ["pg_catalog", "information_schema", "levee_catalog"];

/// Whether a schema is the system's own.
pub(super) fn is_system_schema(name: &str) -> bool {
    SYSTEM_SCHEMAS.contains(&name)
}

/// The place of a new object.
#[derive(Debug, Clone)]
pub(super) struct NewName {
    /// Its schema.
    pub namespace: ObjectId,
    /// Its name.
    pub name: String,
    /// The session's schema for temporary objects, if it has to be made first.
    pub before: Option<Namespace>,
    /// The object's id.
    pub id: ObjectId,
}

/// What the name of a new object says.
pub(super) enum Place {
    /// It is free.
    Free(NewName),
    /// An object of that name exists.
    Taken(Arc<CatalogObject>),
}

impl Binder {
    /// The object that a name means.
    pub fn object(&self, schema: Option<&str>, name: &str) -> Option<&Arc<CatalogObject>> {
        match schema {
            Some(s) => self.catalog.find(self.namespace_id(s)?, name),
            None => {
                let temporary = self.settings.temporary.and_then(|t| self.catalog.find(t, name));
                temporary.or_else(|| {
                    let path = self.settings.search_path.iter();
                    path.filter_map(|s| self.namespace_id(s))
                        .find_map(|n| self.catalog.find(n, name))
                })
            }
        }
    }

    /// The object that a name in a statement means.
    pub(super) fn named_object(&self, name: &ObjectName) -> Result<Option<&Arc<CatalogObject>>> {
        let (schema, name) = object_name(name)?;
        Ok(self.object(schema.as_deref(), &name))
    }

    /// A schema's id by name; `pg_temp` is the session's own.
    pub(super) fn namespace_id(&self, name: &str) -> Option<ObjectId> {
        if name == "pg_temp" {
            return self.settings.temporary;
        }
        let found = self.catalog.namespace_named(name)?;
        let foreign = found.temporary && Some(found.id) != self.settings.temporary;
        (!foreign).then_some(found.id)
    }

    /// 3F000 if there is no such schema.
    pub(super) fn existing_namespace(&self, name: &str) -> Result<ObjectId> {
        self.namespace_id(name)
            .ok_or_else(|| PlanError::new("3F000", format!("schema \"{name}\" does not exist")))
    }

    /// The schema that unqualified new objects go into.
    pub fn current_schema(&self) -> Option<&Namespace> {
        let path = self.settings.search_path.iter();
        path.filter(|s| *s != "pg_temp")
            .filter_map(|s| self.namespace_id(s))
            .find_map(|id| self.catalog.namespace(id))
    }

    /// The place of a new object.
    pub(super) fn place(&self, name: &ObjectName, temporary: bool) -> Result<Place> {
        let (schema, n) = object_name(name)?;
        check_name(&n)?;
        let mut before = None;
        let own = |s: &str| {
            s == "pg_temp"
                || self
                    .settings
                    .temporary
                    .is_some_and(|t| self.catalog.namespace(t).is_some_and(|o| o.name == s))
        };
        let namespace = match schema.as_deref() {
            Some(s) if is_system_schema(s) => {
                return Err(
                    PlanError::new("42501", format!("permission denied to create \"{name}\""))
                        .detail("System catalog modifications are currently disallowed."),
                );
            }
            Some(s) if temporary && !own(s) => {
                self.existing_namespace(s)?;
                return Err(PlanError::new(
                    "42P16",
                    "cannot create temporary relation in non-temporary schema",
                ));
            }
            Some(s) if !own(s) => self.existing_namespace(s)?,
            None if !temporary => {
                self.current_schema()
                    .ok_or_else(|| PlanError::new("3F000", "no schema has been selected to create in"))?
                    .id
            }
            _ => match self.settings.temporary {
                Some(id) if self.catalog.namespace(id).is_some() => id,
                _ => {
                    let id = self.catalog.next_id();
                    before = Some(Namespace {
                        temporary: true,
                        ..Namespace::new(id, self.settings.temporary_name.clone())
                    });
                    id
                }
            },
        };
        if let Some(o) = self.catalog.find(namespace, &n) {
            return Ok(Place::Taken(Arc::clone(o)));
        }
        let id = match &before {
            Some(b) => ObjectId(b.id.0 + 1),
            None => self.catalog.next_id(),
        };
        Ok(Place::Free(NewName {
            namespace,
            name: n,
            before,
            id,
        }))
    }

    /// An object's name as messages show it to this session: with its schema unless the name alone means it.
    pub fn shown(&self, object: &CatalogObject) -> String {
        let visible = self.object(None, &object.name).is_some_and(|o| o.id == object.id);
        let name = quote_ident(&object.name);
        if visible {
            name
        } else {
            format!("{}.{name}", quote_ident(self.catalog.namespace_of(object)))
        }
    }

    /// A reference of a stored query to an object as it is now.
    pub(super) fn reference(schema: Option<&str>, name: &str, object: &CatalogObject) -> Reference {
        Reference {
            schema: schema.map(str::to_owned),
            name: name.to_owned(),
            id: object.id,
            columns: object.schema().fields().iter().map(|f| f.name().clone()).collect(),
        }
    }
}

impl NewName {
    /// What has to be done before the object is made.
    pub fn ops(&self) -> Vec<CatalogOp> {
        self.before.iter().cloned().map(CatalogOp::PutNamespace).collect()
    }

    /// An object of this name.
    pub fn object(&self, kind: crate::catalog::ObjectKind, text: &str) -> CatalogObject {
        CatalogObject {
            namespace: self.namespace,
            definition: crate::connectors::secrets::masked(text, &kind),
            ..CatalogObject::new(self.id, self.name.clone(), kind)
        }
    }
}

/// A name as SQL text.
pub fn quote_ident(name: &str) -> String {
    let plain = name
        .bytes()
        .enumerate()
        .all(|(i, b)| b == b'_' || b.is_ascii_lowercase() || (i > 0 && b.is_ascii_digit()));
    if plain && !name.is_empty() {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// A name must fit.
pub(super) fn check_name(n: &str) -> Result<()> {
    if n.is_empty() {
        return Err(PlanError::new("42601", "zero-length delimited identifier"));
    }
    if n.len() > NAME_BYTES_MAX {
        return Err(
            PlanError::new("42622", format!("identifier \"{n}\" is too long")).hint("Names have at most 63 bytes.")
        );
    }
    Ok(())
}

/// The entries of a `search_path` setting; `"$user"` is the user's name.
pub fn search_path(setting: &str, user: &str) -> Vec<String> {
    let mut path = Vec::new();
    for part in setting.split(',') {
        let part = part.trim();
        let name = match part.strip_prefix('"').and_then(|p| p.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\""),
            None => part.to_lowercase(),
        };
        match name.as_str() {
            "" => {}
            "$user" => path.push(user.to_owned()),
            _ => path.push(name),
        }
    }
    path
}
