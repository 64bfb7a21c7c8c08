//! CREATE, DROP and ALTER SCHEMA.

use sqlparser::ast::Ident;

use crate::catalog::{CatalogOp, Namespace};
use crate::plan::ObjectId;
use crate::sql::ext::fold;
use crate::sql::resolve::{check_name, is_system_schema};
use crate::sql::{Alter, Binder, Statement};
use crate::{PlanError, Result};

impl Binder {
    pub(super) fn create_schema(&self, name: &Ident, if_not_exists: bool) -> Result<Statement> {
        let name = fold(name);
        check_schema_name(&name)?;
        if self.catalog.namespace_named(&name).is_some() || is_system_schema(&name) {
            if if_not_exists {
                return Ok(Statement::Notice {
                    tag: "CREATE SCHEMA",
                    message: format!("schema \"{name}\" already exists, skipping"),
                    code: "42P06",
                });
            }
            return Err(PlanError::new("42P06", format!("schema \"{name}\" already exists")));
        }
        let mut alter = Alter::new("CREATE SCHEMA");
        let namespace = Namespace::new(self.catalog.next_id(), name);
        alter.ops.push(CatalogOp::PutNamespace(namespace));
        Ok(Statement::Alter(alter))
    }

    pub(super) fn rename_schema(&self, name: &Ident, to: Option<&Ident>) -> Result<Statement> {
        let name = fold(name);
        if is_system_schema(&name) {
            return Err(PlanError::new("42501", format!("must be owner of schema {name}")));
        }
        let id = self.existing_namespace(&name)?;
        let mut alter = Alter::new("ALTER SCHEMA");
        if let (Some(to), Some(namespace)) = (to, self.catalog.namespace(id)) {
            let to = fold(to);
            check_schema_name(&to)?;
            if self.catalog.namespace_named(&to).is_some() || is_system_schema(&to) {
                return Err(PlanError::new("42P06", format!("schema \"{to}\" already exists")));
            }
            let mut renamed = namespace.clone();
            renamed.name = to;
            alter.ops.push(CatalogOp::PutNamespace(renamed));
        }
        Ok(Statement::Alter(alter))
    }

    pub(super) fn drop_schemas(&self, names: &[Ident], if_exists: bool, cascade: bool) -> Result<Statement> {
        let mut notices = Vec::new();
        let mut dropped: Vec<ObjectId> = Vec::new();
        for name in names.iter().map(fold) {
            if is_system_schema(&name) {
                return Err(PlanError::new(
                    "2BP01",
                    format!("cannot drop schema {name} because it is required by the database system"),
                ));
            }
            match self.namespace_id(&name) {
                Some(id) if !dropped.contains(&id) => dropped.push(id),
                Some(_) => {}
                None if if_exists => notices.push(format!("schema \"{name}\" does not exist, skipping")),
                None => return Err(PlanError::new("3F000", format!("schema \"{name}\" does not exist"))),
            }
        }
        let inside: Vec<ObjectId> = self
            .catalog
            .objects()
            .filter(|o| dropped.contains(&o.namespace) && o.owner().is_none())
            .map(|o| o.id)
            .collect();
        let schemas: Vec<String> = dropped
            .iter()
            .filter_map(|id| self.catalog.namespace(*id))
            .map(|n| n.name.clone())
            .collect();
        let mut statement = self.drop_all(&inside, cascade, "DROP SCHEMA", notices, Some(&schemas))?;
        if let Statement::Drop { also, .. } = &mut statement {
            also.extend(dropped.into_iter().map(CatalogOp::DropNamespace));
        }
        Ok(statement)
    }
}

fn check_schema_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.starts_with("pg_") {
        return Err(PlanError::new("42939", format!("unacceptable schema name \"{name}\""))
            .detail("The prefix \"pg_\" is reserved for system schemas."));
    }
    Ok(())
}
