//! ALTER of one relation: names and schemas of any kind. What only tables have is in [`super::table`].

use sqlparser::ast::{Ident, ObjectName};

use super::AlterAction;
use super::comment::plain;
use crate::catalog::{CatalogObject, CatalogOp, ObjectKind};
use crate::sql::ast::DropKind;
use crate::sql::ddl::taken;
use crate::sql::ext::fold;
use crate::sql::resolve::{check_name, is_system_schema};
use crate::sql::{Alter, Binder};
use crate::{PlanError, Result};

impl Binder {
    /// The relation that a name means, which must be of the kind named.
    pub(super) fn of_kind(&self, kind: Option<DropKind>, name: &ObjectName) -> Result<&CatalogObject> {
        let missing = |kind: &str| PlanError::new("42P01", format!("{kind} \"{}\" does not exist", plain(name)));
        let object = self.named_object(name)?.ok_or_else(|| missing("relation"))?.as_ref();
        match kind {
            Some(kind) if !kind.matches(object) => Err(kind.mismatch(object)),
            _ => Ok(object),
        }
    }

    pub(super) fn alter_object(
        &self,
        kind: Option<DropKind>,
        if_exists: bool,
        name: &ObjectName,
        actions: &[AlterAction],
    ) -> Result<Alter> {
        let tag = kind.map_or("ALTER TABLE", DropKind::alter_tag);
        let mut alter = Alter::new(tag);
        let object = match self.of_kind(kind, name) {
            Err(e) if if_exists && e.code == "42P01" => {
                let message = format!("relation \"{}\" does not exist, skipping", plain(name));
                alter.notices.push(("00000", message));
                return Ok(alter);
            }
            other => other?,
        };
        if let [only] = actions {
            match only {
                AlterAction::RenameTo(to) => return self.rename(object, to, alter),
                AlterAction::SetSchema(schema) => return self.set_schema(object, schema, alter),
                AlterAction::RenameColumn(from, to) => return self.rename_column(object, from, to, alter),
                AlterAction::RenameConstraint(from, to) => return self.rename_constraint(object, from, to, alter),
                AlterAction::Sequence(options) => return self.alter_sequence(object, options, alter),
                _ => {}
            }
        }
        self.alter_table(object, actions, alter)
    }

    fn rename(&self, object: &CatalogObject, to: &Ident, mut alter: Alter) -> Result<Alter> {
        let to = fold(to);
        check_name(&to)?;
        if self.catalog.find(object.namespace, &to).is_some() {
            return Err(taken(&to));
        }
        if let ObjectKind::Index(index) = &object.kind
            && let Some(table) = self.catalog.get(index.table)
        {
            return self.rename_unique(table, &object.name, &to, alter);
        }
        let mut renamed = object.clone();
        // The key's constraint keeps its name.
        if let ObjectKind::Table(t) = &mut renamed.kind {
            t.constraints.primary_key = t.primary_key_name(&object.name);
        }
        renamed.name = to;
        alter.ops.push(CatalogOp::Replace(renamed));
        Ok(alter)
    }

    fn set_schema(&self, object: &CatalogObject, schema: &Ident, mut alter: Alter) -> Result<Alter> {
        let schema = fold(schema);
        if is_system_schema(&schema) {
            return Err(PlanError::new(
                "42501",
                format!("permission denied for schema {schema}"),
            ));
        }
        let namespace = self.existing_namespace(&schema)?;
        if namespace == object.namespace {
            return Ok(alter);
        }
        let temporary = |id| self.catalog.namespace(id).is_some_and(|n| n.temporary);
        if temporary(namespace) || temporary(object.namespace) {
            return Err(PlanError::new(
                "0A000",
                "cannot move objects into or out of temporary schemas",
            ));
        }
        if let Some(owner) = object.owner().and_then(|id| self.catalog.get(id)) {
            return Err(PlanError::new(
                "0A000",
                format!("cannot move an owned {} into another schema", object.kind_name()),
            )
            .detail(format!(
                "{} \"{}\" is linked to table \"{}\".",
                capital(object.kind_name()),
                object.name,
                owner.name
            )));
        }
        let owned = self.catalog.objects().filter(|o| o.owner() == Some(object.id));
        for o in std::iter::once(object).chain(owned) {
            if self.catalog.find(namespace, &o.name).is_some() {
                return Err(PlanError::new(
                    "42P07",
                    format!("relation \"{}\" already exists in schema \"{schema}\"", o.name),
                ));
            }
            let mut moved = o.clone();
            moved.namespace = namespace;
            alter.ops.push(CatalogOp::Replace(moved));
        }
        Ok(alter)
    }

    fn rename_column(&self, object: &CatalogObject, from: &Ident, to: &Ident, mut alter: Alter) -> Result<Alter> {
        let (from, to) = (fold(from), fold(to));
        check_name(&to)?;
        let column = object
            .schema()
            .index_of(&from)
            .map_err(|_| PlanError::new("42703", format!("column \"{from}\" does not exist")))?;
        if object.schema().index_of(&to).is_ok() {
            return Err(PlanError::new(
                "42701",
                format!("column \"{to}\" of relation \"{}\" already exists", object.name),
            ));
        }
        let mut renamed = object.clone();
        match &mut renamed.kind {
            ObjectKind::Table(t) if t.ingest.is_none() => t.rename_column(column, &to)?,
            ObjectKind::View(v) => v.schema = super::table::renamed(&v.schema, column, &to),
            ObjectKind::MaterializedView(v) => v.schema = super::table::renamed(&v.schema, column, &to),
            ObjectKind::Table(_) | ObjectKind::Source(_) => {
                return Err(PlanError::unsupported(
                    "renaming a column of a relation with a connector is not supported",
                )
                .detail("The records' fields are found by the columns' names.")
                .hint("Rename it in a view."));
            }
            _ => {
                return Err(PlanError::new(
                    "42809",
                    format!("cannot rename columns of {} \"{}\"", object.kind_name(), object.name),
                ));
            }
        }
        alter.ops.push(CatalogOp::Replace(renamed));
        for o in self.catalog.objects() {
            if let ObjectKind::Index(index) = &o.kind
                && index.table == object.id
                && let Some(at) = index.columns.iter().position(|c| *c == column)
            {
                let mut renamed = o.clone();
                if let ObjectKind::Index(index) = &mut renamed.kind {
                    index.schema = super::table::renamed(&index.schema, at, &to);
                }
                alter.ops.push(CatalogOp::Replace(renamed));
            }
        }
        Ok(alter)
    }
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}
