//! ALTER TABLE: constraints, defaults and NOT NULL.
//!
//! The actions of one statement change one definition, one after the other; what the rows must satisfy first becomes
//! [`Requirement`]s, which the server checks against the data before the change enters an epoch.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use sqlparser::ast::{Expr, Ident, VisitMut, VisitorMut};

use super::AlterAction;
use crate::catalog::{CatalogObject, CatalogOp, CommentKey, Generated, ObjectKind, TableDef};
use crate::plan::ObjectId;
use crate::sql::ext::fold;
use crate::sql::table::Draft;
use crate::sql::{Alter, Binder, Requirement, RequirementKind};
use crate::{PlanError, Result};

/// A schema with one column's name changed.
pub(super) fn renamed(schema: &SchemaRef, column: usize, to: &str) -> SchemaRef {
    with_field(schema, column, |f| f.with_name(to))
}

/// A schema with one column changed.
fn with_field(schema: &SchemaRef, column: usize, change: impl Fn(Field) -> Field) -> SchemaRef {
    let fields = schema.fields().iter().enumerate();
    let fields: Vec<Field> = fields
        .map(|(i, f)| {
            if i == column {
                change(f.as_ref().clone())
            } else {
                f.as_ref().clone()
            }
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// An expression's text with one column's name changed.
fn renamed_text(text: &str, from: &str, to: &str) -> Result<String> {
    struct Rename<'a> {
        from: &'a str,
        to: &'a str,
    }
    impl VisitorMut for Rename<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, e: &mut Expr) -> std::ops::ControlFlow<()> {
            let ident = match e {
                Expr::Identifier(i) => Some(i),
                Expr::CompoundIdentifier(parts) => parts.last_mut(),
                _ => None,
            };
            if let Some(i) = ident
                && fold(i) == self.from
            {
                *i = Ident::with_quote('"', self.to);
            }
            std::ops::ControlFlow::Continue(())
        }
    }
    let mut e = crate::sql::parse::parse_expr(text)?;
    // Nothing breaks the walk.
    let _done = VisitMut::visit(&mut e, &mut Rename { from, to });
    Ok(e.to_string())
}

impl TableDef {
    /// Gives a column another name, in the texts of its own expressions too.
    pub(super) fn rename_column(&mut self, column: usize, to: &str) -> Result<()> {
        let from = self.schema.field(column).name().clone();
        for check in &mut self.constraints.checks {
            check.sql = renamed_text(&check.sql, &from, to)?;
        }
        for generated in self.generated.values_mut() {
            if let Generated::Stored(sql) = generated {
                *sql = renamed_text(sql, &from, to)?;
            }
        }
        self.schema = renamed(&self.schema, column, to);
        Ok(())
    }

    /// Makes a column take NULL or not.
    pub(in crate::sql) fn set_nullable(&mut self, column: usize, nullable: bool) {
        self.schema = with_field(&self.schema, column, |f| f.with_nullable(nullable));
    }
}

impl Binder {
    pub(super) fn rename_unique(&self, table: &CatalogObject, from: &str, to: &str, mut alter: Alter) -> Result<Alter> {
        let mut changed = table.clone();
        if let ObjectKind::Table(t) = &mut changed.kind
            && let Some(unique) = t.constraints.uniques.iter_mut().find(|u| u.name == from)
        {
            unique.name = to.to_owned();
            if let Some(index) = self.catalog.get(unique.index) {
                let mut index = index.clone();
                index.name = to.to_owned();
                alter.ops.push(CatalogOp::Replace(index));
            }
        }
        move_comment(&mut changed, from, to);
        alter.ops.push(CatalogOp::Replace(changed));
        Ok(alter)
    }

    pub(super) fn rename_constraint(
        &self,
        object: &CatalogObject,
        from: &Ident,
        to: &Ident,
        mut alter: Alter,
    ) -> Result<Alter> {
        let (from, to) = (fold(from), fold(to));
        crate::sql::resolve::check_name(&to)?;
        let names = super::comment::constraint_names(object);
        if !names.contains(&from) {
            return Err(PlanError::new(
                "42704",
                format!("constraint \"{from}\" for table \"{}\" does not exist", object.name),
            ));
        }
        if names.contains(&to) {
            return Err(PlanError::new(
                "42710",
                format!("constraint \"{to}\" for relation \"{}\" already exists", object.name),
            ));
        }
        let mut changed = object.clone();
        if let ObjectKind::Table(t) = &mut changed.kind {
            if t.constraints.uniques.iter().any(|u| u.name == from) {
                return self.rename_unique(object, &from, &to, alter);
            }
            let key = t.primary_key_name(&object.name);
            let c = &mut t.constraints;
            if key.as_deref() == Some(from.as_str()) {
                c.primary_key = Some(to.clone());
            }
            let checks = c.checks.iter_mut().map(|c| &mut c.name);
            let all = checks.chain(c.foreign_keys.iter_mut().map(|f| &mut f.name));
            all.filter(|n| **n == from).for_each(|n| n.clone_from(&to));
        }
        move_comment(&mut changed, &from, &to);
        alter.ops.push(CatalogOp::Replace(changed));
        Ok(alter)
    }

    pub(super) fn alter_table(
        &self,
        object: &CatalogObject,
        actions: &[AlterAction],
        mut alter: Alter,
    ) -> Result<Alter> {
        let mut changed = object.clone();
        for action in actions {
            match action {
                AlterAction::Nothing => continue,
                AlterAction::Refused { what, hint } => {
                    return Err(PlanError::unsupported(format!("{what} is not supported")).hint(hint.clone()));
                }
                AlterAction::RenameTo(_)
                | AlterAction::SetSchema(_)
                | AlterAction::RenameColumn(..)
                | AlterAction::RenameConstraint(..) => {
                    return Err(PlanError::new(
                        "42601",
                        "RENAME and SET SCHEMA stand alone in a statement",
                    ));
                }
                _ => self.table_action(action, &mut changed, &mut alter)?,
            }
        }
        let key = |o: &CatalogObject| o.table().map(|t| t.primary_key.clone());
        if key(object) != key(&changed) {
            self.rekey(object, changed, &mut alter)?;
        } else if actions.iter().any(|a| !matches!(a, AlterAction::Nothing)) {
            alter.ops.insert(0, CatalogOp::Replace(changed));
        }
        Ok(alter)
    }

    fn table_action(&self, action: &AlterAction, object: &mut CatalogObject, alter: &mut Alter) -> Result<()> {
        let (id, name) = (object.id, object.name.clone());
        let kind = object.kind_name();
        let ObjectKind::Table(t) = &mut object.kind else {
            return Err(PlanError::new(
                "42809",
                format!("ALTER action cannot be performed on relation \"{name}\""),
            )
            .detail(format!("This operation is not supported for {kind}s.")));
        };
        let at = |t: &TableDef, column: &Ident| {
            let column = fold(column);
            t.schema.index_of(&column).map_err(|_| {
                PlanError::new(
                    "42703",
                    format!("column \"{column}\" of relation \"{name}\" does not exist"),
                )
            })
        };
        match action {
            AlterAction::AddConstraint(c) => {
                if t.ingest.is_some() {
                    return Err(PlanError::unsupported(
                        "adding a constraint to a table with a connector is not supported",
                    )
                    .hint("Its rows come from elsewhere; check them in a view."));
                }
                let created = super::super::table::created(&alter.ops).count();
                let mut draft = Draft {
                    binder: self,
                    id,
                    namespace: object.namespace,
                    name,
                    temporary: self.catalog.namespace(object.namespace).is_some_and(|n| n.temporary),
                    def: t.clone(),
                    next_id: ObjectId(self.catalog.next_id().0 + u32::try_from(created).unwrap_or(0)),
                    ops: Vec::new(),
                    requires: Some(Vec::new()),
                    names: Vec::new(),
                };
                draft.table_constraint(c)?;
                *t = draft.def;
                alter.ops.extend(draft.ops);
                alter.requires.extend(draft.requires.unwrap_or_default());
            }
            AlterAction::DropConstraint {
                name: constraint,
                if_exists,
                cascade,
            } => {
                let constraint = fold(constraint);
                if !super::comment::has_constraint(t, &name, &constraint) {
                    let message = format!("constraint \"{constraint}\" of relation \"{name}\" does not exist");
                    if !if_exists {
                        return Err(PlanError::new("42704", message));
                    }
                    alter.notices.push(("00000", format!("{message}, skipping")));
                    return Ok(());
                }
                self.drop_constraint(id, &name, t, &constraint, *cascade, alter)?;
                object.comments.remove(&CommentKey::Constraint(constraint));
            }
            AlterAction::SetNotNull(column) => {
                let c = at(t, column)?;
                if t.schema.field(c).is_nullable() {
                    t.set_nullable(c, false);
                    alter.requires.push(Requirement {
                        table: id,
                        kind: RequirementKind::NotNull(c),
                    });
                }
            }
            AlterAction::DropNotNull(column) => {
                let c = at(t, column)?;
                let shown = t.schema.field(c).name();
                if t.primary_key.contains(&c) {
                    return Err(PlanError::new(
                        "42P16",
                        format!("column \"{shown}\" is in a primary key"),
                    ));
                }
                if matches!(t.generated.get(&c), Some(Generated::Identity { .. })) {
                    return Err(PlanError::new(
                        "42601",
                        format!("column \"{shown}\" of relation \"{name}\" is an identity column"),
                    ));
                }
                let kept = self
                    .catalog
                    .dependents(id)
                    .into_iter()
                    .find(|o| o.stream_plan().is_some());
                if let Some(o) = kept.filter(|_| !t.schema.field(c).is_nullable()) {
                    return Err(PlanError::unsupported(format!(
                        "DROP NOT NULL on a table that {} \"{}\" reads is not supported",
                        o.kind_name(),
                        o.name
                    ))
                    .hint("Drop what reads the table, change the column, and create it again."));
                }
                t.set_nullable(c, true);
            }
            AlterAction::SetDefault(column, e) => {
                let c = at(t, column)?;
                refuse_generated(t, c, &name)?;
                let default = self.check_default(e, t.schema.field(c))?;
                if let Some(slot) = t.defaults.get_mut(c) {
                    *slot = Some(default);
                }
            }
            AlterAction::DropDefault(column) => {
                let c = at(t, column)?;
                refuse_generated(t, c, &name)?;
                if let Some(slot) = t.defaults.get_mut(c) {
                    *slot = None;
                }
            }
            other => {
                return Err(PlanError::internal(format!(
                    "ALTER action {other:?} in the wrong place"
                )));
            }
        }
        Ok(())
    }
}

impl Binder {
    fn drop_constraint(
        &self,
        id: ObjectId,
        table: &str,
        t: &mut TableDef,
        constraint: &str,
        cascade: bool,
        alter: &mut Alter,
    ) -> Result<()> {
        let is_key = t.primary_key_name(table).as_deref() == Some(constraint);
        let unique = t.constraints.uniques.iter().position(|u| u.name == constraint);
        let columns = match unique {
            Some(at) => t.constraints.uniques[at].columns.clone(),
            None if is_key => t.primary_key.clone(),
            None => Vec::new(),
        };
        if !columns.is_empty() {
            self.drop_references(id, table, constraint, &columns, cascade, alter)?;
            t.constraints
                .foreign_keys
                .retain(|f| !(f.parent == id && same_columns(&f.parent_columns, &columns)));
        }
        if let Some(at) = unique {
            let unique = t.constraints.uniques.remove(at);
            alter.ops.push(CatalogOp::Drop(unique.index));
        } else if is_key {
            t.primary_key.clear();
            t.constraints.primary_key = None;
        }
        t.constraints.checks.retain(|c| c.name != constraint);
        t.constraints.foreign_keys.retain(|f| f.name != constraint);
        Ok(())
    }

    /// Foreign keys of other tables that need the key: an error, or gone with CASCADE.
    fn drop_references(
        &self,
        id: ObjectId,
        table: &str,
        constraint: &str,
        columns: &[usize],
        cascade: bool,
        alter: &mut Alter,
    ) -> Result<()> {
        let mut detail = Vec::new();
        for o in self.catalog.objects().filter(|o| o.id != id) {
            let Some(t) = o.table() else { continue };
            let needs = |f: &crate::catalog::ForeignKey| f.parent == id && same_columns(&f.parent_columns, columns);
            let mut changed = o.clone();
            for f in t.constraints.foreign_keys.iter().filter(|f| needs(f)) {
                let text = format!("constraint {} on table {}", f.name, self.shown(o));
                alter.notices.push(("00000", format!("drop cascades to {text}")));
                detail.push(format!("{text} depends on index {constraint}"));
            }
            if let ObjectKind::Table(t) = &mut changed.kind
                && t.constraints.foreign_keys.iter().any(needs)
            {
                t.constraints.foreign_keys.retain(|f| !needs(f));
                alter.ops.push(CatalogOp::Replace(changed));
            }
        }
        if detail.is_empty() || cascade {
            return Ok(());
        }
        Err(PlanError::new(
            "2BP01",
            format!("cannot drop constraint {constraint} on table {table} because other objects depend on it"),
        )
        .detail(detail.join("\n"))
        .hint("Use DROP ... CASCADE to drop the dependent objects too."))
    }

    /// The primary key decides how rows are stored, so a table with another key is another table, under a new id, which takes the
    /// rows in the same epoch.
    fn rekey(&self, old: &CatalogObject, mut changed: CatalogObject, alter: &mut Alter) -> Result<()> {
        let from = old.id;
        let created = super::super::table::created(&alter.ops).count();
        let to = ObjectId(self.catalog.next_id().0 + u32::try_from(created).unwrap_or(0));
        let swap = |id: &mut ObjectId| {
            if *id == from {
                *id = to;
            }
        };
        let retarget = |o: &mut CatalogObject| {
            o.depends_on.iter_mut().for_each(swap);
            o.references.iter_mut().for_each(|r| swap(&mut r.id));
            match &mut o.kind {
                ObjectKind::Index(i) => swap(&mut i.table),
                ObjectKind::Sequence(s) => s.owned_by.iter_mut().for_each(|(table, _)| swap(table)),
                ObjectKind::Table(t) => t.constraints.foreign_keys.iter_mut().for_each(|f| swap(&mut f.parent)),
                _ => {}
            }
        };
        for op in &mut alter.ops {
            if let CatalogOp::Create(o) | CatalogOp::Replace(o) = op {
                retarget(o);
            }
        }
        let handled: Vec<ObjectId> = alter
            .ops
            .iter()
            .filter_map(|op| match op {
                CatalogOp::Replace(o) => Some(o.id),
                CatalogOp::Drop(id) => Some(*id),
                _ => None,
            })
            .collect();
        for o in self
            .catalog
            .objects()
            .filter(|o| o.id != from && !handled.contains(&o.id))
        {
            let reads = o.depends_on.contains(&from);
            if reads && matches!(o.kind, ObjectKind::MaterializedView(_) | ObjectKind::Sink(_)) {
                return Err(PlanError::unsupported(format!(
                    "changing the primary key of a table that {} \"{}\" reads is not supported",
                    o.kind_name(),
                    o.name
                ))
                .hint("Change the key first, then create what reads the table."));
            }
            let mut moved = o.clone();
            retarget(&mut moved);
            let fks = |o: &CatalogObject| o.table().map(|t| t.constraints.foreign_keys.clone());
            if reads || o.owner() == Some(from) || fks(o) != fks(&moved) {
                alter.ops.push(CatalogOp::Replace(moved));
            }
        }
        retarget(&mut changed);
        changed.id = to;
        alter.ops.insert(0, CatalogOp::Create(changed));
        alter.ops.insert(0, CatalogOp::Drop(from));
        alter.requires.push(Requirement {
            table: from,
            kind: RequirementKind::Rekey(to),
        });
        Ok(())
    }
}

fn same_columns(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().all(|c| b.contains(c))
}

fn refuse_generated(t: &TableDef, column: usize, table: &str) -> Result<()> {
    let shown = t.schema.field(column).name();
    match t.generated.get(&column) {
        None => Ok(()),
        Some(Generated::Identity { .. }) => Err(PlanError::new(
            "42601",
            format!("column \"{shown}\" of relation \"{table}\" is an identity column"),
        )),
        Some(Generated::Stored(_)) => Err(PlanError::new(
            "42601",
            format!("column \"{shown}\" of relation \"{table}\" is a generated column"),
        )),
    }
}

fn move_comment(object: &mut CatalogObject, from: &str, to: &str) {
    if let Some(text) = object.comments.remove(&CommentKey::Constraint(from.to_owned())) {
        object.comments.insert(CommentKey::Constraint(to.to_owned()), text);
    }
}
