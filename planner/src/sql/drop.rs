//! DROP: what depends on what, and in which order things go.
//!
//! Three ways of depending: an object that *reads* another (a view) goes or holds it; an object that *belongs* to another (an
//! index, an owned sequence) goes with it silently; a default or foreign key that *mentions* another is taken off its table by
//! CASCADE, and the table stays.

use super::ast::{Drop, DropKind};
use super::ext::object_name;
use super::resolve::is_system_schema;
use super::{Binder, Statement};
use crate::catalog::{CatalogObject, CatalogOp, Generated, ObjectKind};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

impl DropKind {
    /// The word for it in messages.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Source => "source",
            Self::View => "view",
            Self::MaterializedView => "materialized view",
            Self::Sink => "sink",
            Self::Sequence => "sequence",
            Self::Index => "index",
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Self::Table => "DROP TABLE",
            Self::Source => "DROP SOURCE",
            Self::View => "DROP VIEW",
            Self::MaterializedView => "DROP MATERIALIZED VIEW",
            Self::Sink => "DROP SINK",
            Self::Sequence => "DROP SEQUENCE",
            Self::Index => "DROP INDEX",
        }
    }

    /// The command tag of ALTER.
    pub(super) fn alter_tag(self) -> &'static str {
        match self {
            Self::Table => "ALTER TABLE",
            Self::Source => "ALTER SOURCE",
            Self::View => "ALTER VIEW",
            Self::MaterializedView => "ALTER MATERIALIZED VIEW",
            Self::Sink => "ALTER SINK",
            Self::Sequence => "ALTER SEQUENCE",
            Self::Index => "ALTER INDEX",
        }
    }

    /// Whether the object is of this kind.
    pub(super) fn matches(self, o: &CatalogObject) -> bool {
        self.word() == o.kind_name()
    }

    /// 42809 for an object of another kind.
    pub(super) fn mismatch(self, o: &CatalogObject) -> PlanError {
        let (word, found) = (self.word(), o.kind_name());
        PlanError::new("42809", format!("\"{}\" is not {} {word}", o.name, article(word))).hint(format!(
            "Use {} for {} {found}.",
            found.to_uppercase(),
            article(found)
        ))
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

/// A default or foreign key that mentions an object.
struct Mention {
    holder: ObjectId,
    target: ObjectId,
    text: String,
}

impl Binder {
    /// DROP.
    pub(super) fn drop_objects(&self, d: &Drop) -> Result<Statement> {
        let mut named: Vec<ObjectId> = Vec::new();
        let mut notices = Vec::new();
        let word = d.kind.word();
        for name in &d.names {
            let (schema, n) = object_name(name)?;
            if let Some(s) = &schema
                && self.namespace_id(s).is_none()
                && !is_system_schema(s)
            {
                if !d.if_exists {
                    return Err(PlanError::new("3F000", format!("schema \"{s}\" does not exist")));
                }
                notices.push(format!("schema \"{s}\" does not exist, skipping"));
                continue;
            }
            match self.object(schema.as_deref(), &n) {
                Some(o) if d.kind.matches(o) => {
                    self.refuse_part(o)?;
                    if !named.contains(&o.id) {
                        named.push(o.id);
                    }
                }
                Some(o) => {
                    let found = o.kind_name();
                    return Err(
                        PlanError::new("42809", format!("\"{n}\" is not {} {word}", article(word))).hint(format!(
                            "Use DROP {} to remove {} {found}.",
                            found.to_uppercase(),
                            article(found)
                        )),
                    );
                }
                None if d.if_exists => notices.push(format!("{word} \"{n}\" does not exist, skipping")),
                None => return Err(PlanError::new("42P01", format!("{word} \"{n}\" does not exist"))),
            }
        }
        self.drop_all(&named, d.cascade, d.kind.tag(), notices, None)
    }

    /// What belongs to a constraint or an identity column does not go alone.
    fn refuse_part(&self, o: &CatalogObject) -> Result<()> {
        let table = o.owner().and_then(|id| self.catalog.get(id));
        let Some(table) = table else { return Ok(()) };
        let whole = match &o.kind {
            ObjectKind::Index(_) => format!("constraint {} on table {}", o.name, self.shown(table)),
            ObjectKind::Sequence(s) if s.identity => {
                let column = s.owned_by.map_or(0, |(_, c)| c);
                let name = table.schema().fields().get(column).map_or("", |f| f.name().as_str());
                format!("column {name} of table {}", self.shown(table))
            }
            _ => return Ok(()),
        };
        let (kind, name) = (o.kind_name(), self.shown(o));
        Err(PlanError::new(
            "2BP01",
            format!("cannot drop {kind} {name} because {whole} requires it"),
        )
        .hint(format!("You can drop {whole} instead.")))
    }

    /// Drops objects and what depends on them. `schemas`: their schemas go too.
    pub(super) fn drop_all(
        &self,
        named: &[ObjectId],
        cascade: bool,
        tag: &'static str,
        mut notices: Vec<String>,
        schemas: Option<&[String]>,
    ) -> Result<Statement> {
        let order = self.closure(named);
        let silent = |o: &CatalogObject| o.owner().is_some_and(|owner| order.contains(&owner));
        let mut others: Vec<&CatalogObject> = order
            .iter()
            .filter(|id| schemas.is_some() || !named.contains(id))
            .filter_map(|id| self.catalog.get(*id))
            .filter(|o| !silent(o))
            .collect();
        let mentions = self.mentions(&order);
        if !cascade && (!others.is_empty() || !mentions.is_empty()) {
            return Err(self.depended_on(named, &others, &mentions, schemas));
        }
        // Told in the order of creation, as PostgreSQL does.
        others.sort_by_key(|o| o.id);
        let mut told: Vec<String> = others
            .iter()
            .map(|o| format!("{} {}", o.kind_name(), self.shown(o)))
            .collect();
        told.extend(mentions.iter().map(|m| m.text.clone()));
        match told.as_slice() {
            [] => {}
            [o] => notices.push(format!("drop cascades to {o}")),
            many => notices.push(format!("drop cascades to {} other objects", many.len())),
        }
        Ok(Statement::Drop {
            also: self.without(&order, &mentions),
            objects: order,
            tag,
            notices,
        })
    }

    /// The objects and all that depends on them, dependents first.
    fn closure(&self, named: &[ObjectId]) -> Vec<ObjectId> {
        let holds = |o: &CatalogObject, id: ObjectId| o.depends_on.contains(&id) || o.owner() == Some(id);
        let mut found: Vec<ObjectId> = named.to_vec();
        let mut next = 0;
        while let Some(id) = found.get(next).copied() {
            for o in self.catalog.objects().filter(|o| holds(o, id)) {
                if !found.contains(&o.id) {
                    found.push(o.id);
                }
            }
            next += 1;
        }
        // A dependent may have a lower id than what it reads: CREATE OR REPLACE VIEW keeps the id. So sort by depth, not by id.
        let mut order = Vec::with_capacity(found.len());
        while order.len() < found.len() {
            let before = order.len();
            for id in &found {
                let free = self
                    .catalog
                    .objects()
                    .filter(|o| holds(o, *id))
                    .all(|o| order.contains(&o.id) || !found.contains(&o.id));
                if free && !order.contains(id) {
                    order.push(*id);
                }
            }
            if order.len() == before {
                break;
            }
        }
        order
    }

    /// Defaults and foreign keys of tables that stay and mention something that goes.
    fn mentions(&self, gone: &[ObjectId]) -> Vec<Mention> {
        let mut out = Vec::new();
        for o in self.catalog.objects().filter(|o| !gone.contains(&o.id)) {
            let Some(t) = o.table() else { continue };
            let table = self.shown(o);
            for (c, default) in t.defaults.iter().enumerate() {
                let sequences = default.as_deref().map(super::sequences::mentioned).unwrap_or_default();
                for target in sequences.into_iter().filter(|s| gone.contains(s)) {
                    let column = t.schema.field(c).name();
                    out.push(Mention {
                        holder: o.id,
                        target,
                        text: format!("default value for column {column} of table {table}"),
                    });
                }
            }
            for f in t.constraints.foreign_keys.iter().filter(|f| gone.contains(&f.parent)) {
                out.push(Mention {
                    holder: o.id,
                    target: f.parent,
                    text: format!("constraint {} on table {table}", f.name),
                });
            }
        }
        out
    }

    /// The tables that lose a default or a constraint.
    fn without(&self, gone: &[ObjectId], mentions: &[Mention]) -> Vec<CatalogOp> {
        let mut holders: Vec<ObjectId> = mentions.iter().map(|m| m.holder).collect();
        holders.sort_unstable();
        holders.dedup();
        let mut ops = Vec::new();
        for mut object in holders.iter().filter_map(|id| self.catalog.get(*id)).cloned() {
            if let ObjectKind::Table(t) = &mut object.kind {
                t.constraints.foreign_keys.retain(|f| !gone.contains(&f.parent));
                for default in &mut t.defaults {
                    let used = default.as_deref().map(super::sequences::mentioned).unwrap_or_default();
                    if used.iter().any(|s| gone.contains(s)) {
                        *default = None;
                    }
                }
                t.generated
                    .retain(|_, g| !matches!(g, Generated::Identity { sequence, .. } if gone.contains(sequence)));
            }
            ops.push(CatalogOp::Replace(object));
        }
        ops
    }

    fn depended_on(
        &self,
        named: &[ObjectId],
        others: &[&CatalogObject],
        mentions: &[Mention],
        schemas: Option<&[String]>,
    ) -> PlanError {
        let called = |o: &CatalogObject| format!("{} {}", o.kind_name(), self.shown(o));
        let mut lines: Vec<(ObjectId, String)> = Vec::new();
        for o in others {
            if schemas.is_some() && named.contains(&o.id) {
                let schema = self.catalog.namespace_of(o);
                lines.push((o.id, format!("{} depends on schema {schema}", called(o))));
            }
            for id in &o.depends_on {
                let Some(target) = self.catalog.get(*id) else { continue };
                if named.contains(id) || others.iter().any(|x| x.id == *id) {
                    lines.push((o.id, format!("{} depends on {}", called(o), called(target))));
                }
            }
        }
        for m in mentions {
            if let Some(target) = self.catalog.get(m.target) {
                lines.push((m.holder, format!("{} depends on {}", m.text, called(target))));
            }
        }
        lines.sort();
        let detail: Vec<String> = lines.into_iter().map(|(_, l)| l).collect();
        let message = match (schemas, named) {
            (Some([schema]), _) => format!("cannot drop schema {schema} because other objects depend on it"),
            (None, [one]) => match self.catalog.get(*one) {
                Some(o) => format!("cannot drop {} because other objects depend on it", called(o)),
                None => "cannot drop the object because other objects depend on it".to_owned(),
            },
            _ => "cannot drop desired object(s) because other objects depend on them".to_owned(),
        };
        PlanError::new("2BP01", message)
            .detail(detail.join("\n"))
            .hint("Use DROP ... CASCADE to drop the dependent objects too.")
    }
}
