//! DROP: what depends on what, and in which order things go.

use super::ast::{Drop, DropKind};
use super::ext::object_name;
use super::{Binder, Statement};
use crate::catalog::{CatalogObject, ObjectKind};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

impl DropKind {
    fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Source => "source",
            Self::View => "view",
            Self::MaterializedView => "materialized view",
            Self::Sink => "sink",
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Self::Table => "DROP TABLE",
            Self::Source => "DROP SOURCE",
            Self::View => "DROP VIEW",
            Self::MaterializedView => "DROP MATERIALIZED VIEW",
            Self::Sink => "DROP SINK",
        }
    }

    fn matches(self, o: &CatalogObject) -> bool {
        matches!(
            (self, &o.kind),
            (Self::Table, ObjectKind::Table(_))
                | (Self::Source, ObjectKind::Source(_))
                | (Self::View, ObjectKind::View(_))
                | (Self::MaterializedView, ObjectKind::MaterializedView(_))
                | (Self::Sink, ObjectKind::Sink(_))
        )
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

impl Binder {
    /// DROP.
    pub(super) fn drop_objects(&self, d: &Drop) -> Result<Statement> {
        let mut named: Vec<ObjectId> = Vec::new();
        let mut notices = Vec::new();
        for name in &d.names {
            let (schema, n) = object_name(name)?;
            let found = match schema.as_deref() {
                None | Some("public") => self.catalog.by_name(&n),
                Some(_) => None,
            };
            match found {
                Some(o) if d.kind.matches(o) => {
                    if !named.contains(&o.id) {
                        named.push(o.id);
                    }
                }
                Some(o) => {
                    let word = d.kind.word();
                    return Err(
                        PlanError::new("42809", format!("\"{n}\" is not {} {word}", article(word))).hint(format!(
                            "Use DROP {} to remove {} {}.",
                            o.kind_name().to_uppercase(),
                            article(o.kind_name()),
                            o.kind_name()
                        )),
                    );
                }
                None if d.if_exists => notices.push(format!("{} \"{n}\" does not exist, skipping", d.kind.word())),
                None => {
                    return Err(PlanError::new(
                        "42P01",
                        format!("{} \"{n}\" does not exist", d.kind.word()),
                    ));
                }
            }
        }
        let order = self.closure(&named);
        let others: Vec<&CatalogObject> = order
            .iter()
            .filter(|id| !named.contains(id))
            .filter_map(|id| self.catalog.get(*id))
            .collect();
        if !others.is_empty() && !d.cascade {
            return Err(self.depended_on(&named, &others));
        }
        // Told in the order of creation, as PostgreSQL does.
        let mut told = others;
        told.sort_by_key(|o| o.id);
        match told.as_slice() {
            [] => {}
            [o] => notices.push(format!("drop cascades to {} {}", o.kind_name(), o.name)),
            many => notices.push(format!("drop cascades to {} other objects", many.len())),
        }
        Ok(Statement::Drop {
            objects: order,
            tag: d.kind.tag(),
            notices,
        })
    }

    /// The objects and all that depends on them, dependents first.
    fn closure(&self, named: &[ObjectId]) -> Vec<ObjectId> {
        let mut found: Vec<ObjectId> = named.to_vec();
        let mut next = 0;
        while let Some(id) = found.get(next).copied() {
            for o in self.catalog.dependents(id) {
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
                    .dependents(*id)
                    .iter()
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

    fn depended_on(&self, named: &[ObjectId], others: &[&CatalogObject]) -> PlanError {
        let mut lines: Vec<(ObjectId, String)> = Vec::new();
        for o in others {
            for id in &o.depends_on {
                let Some(target) = self.catalog.get(*id) else { continue };
                if named.contains(id) || others.iter().any(|x| x.id == *id) {
                    lines.push((
                        o.id,
                        format!(
                            "{} {} depends on {} {}",
                            o.kind_name(),
                            o.name,
                            target.kind_name(),
                            target.name
                        ),
                    ));
                }
            }
        }
        lines.sort();
        let detail: Vec<String> = lines.into_iter().map(|(_, l)| l).collect();
        let message = match named.first().and_then(|id| self.catalog.get(*id)) {
            Some(o) if named.len() == 1 => {
                format!(
                    "cannot drop {} {} because other objects depend on it",
                    o.kind_name(),
                    o.name
                )
            }
            _ => "cannot drop desired object(s) because other objects depend on them".to_owned(),
        };
        PlanError::new("2BP01", message)
            .detail(detail.join("\n"))
            .hint("Use DROP ... CASCADE to drop the dependent objects too.")
    }
}
