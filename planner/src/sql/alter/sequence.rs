//! CREATE and ALTER SEQUENCE.

use arrow::datatypes::DataType;
use sqlparser::ast::{Ident, ObjectName};

use super::comment::plain;
use crate::catalog::{CatalogObject, CatalogOp, ObjectKind, SequenceDef, SequenceState};
use crate::plan::ObjectId;
use crate::sql::ext::fold;
use crate::sql::sequences::{self, SequenceOptions};
use crate::sql::{Alter, Binder, Statement};
use crate::{PlanError, Result};

impl Binder {
    pub(super) fn create_sequence(
        &self,
        temporary: bool,
        if_not_exists: bool,
        name: &ObjectName,
        options: &SequenceOptions,
        text: &str,
    ) -> Result<Statement> {
        let Some(new) = self.new_name(name, if_not_exists, temporary)? else {
            return Self::skipped(name, "CREATE SEQUENCE");
        };
        if options.restart.is_some() {
            return Err(PlanError::new("42601", "RESTART is an option of ALTER SEQUENCE"));
        }
        let t = sequence_type(options.data_type.as_ref().unwrap_or(&DataType::Int64))?;
        let mut def = sequences::define(&t, options)?;
        if let Some(owner) = &options.owned_by {
            def.owned_by = self.owner_of(owner.as_ref(), new.namespace)?;
        }
        let mut alter = Alter::new("CREATE SEQUENCE");
        alter.ops = new.ops();
        alter
            .ops
            .push(CatalogOp::Create(new.object(ObjectKind::Sequence(def), text)));
        Ok(Statement::Alter(alter))
    }

    /// ALTER SEQUENCE with options.
    pub(super) fn alter_sequence(
        &self,
        object: &CatalogObject,
        options: &SequenceOptions,
        mut alter: Alter,
    ) -> Result<Alter> {
        let ObjectKind::Sequence(old) = &object.kind else {
            return Err(PlanError::new(
                "42809",
                format!("\"{}\" is not a sequence", object.name),
            ));
        };
        let t = match &options.data_type {
            Some(t) => sequence_type(t)?,
            None => sequences::type_of(old),
        };
        let mut def = sequences::alter(old.clone(), &t, options, false)?;
        if let Some(owner) = &options.owned_by {
            if old.identity {
                return Err(PlanError::new("0A000", "cannot change ownership of identity sequence"));
            }
            def.owned_by = self.owner_of(owner.as_ref(), object.namespace)?;
        }
        let state = self.catalog.sequence(object.id);
        let next = match options.restart {
            Some(to) => Some(SequenceState {
                value: to.unwrap_or(def.start),
                called: false,
            }),
            None => state,
        };
        if let Some(next) = next {
            check_bounds(&def, next.value, options.restart.is_some())?;
            if options.restart.is_some() {
                alter.ops.push(CatalogOp::Sequence(object.id, next));
            }
        }
        let mut changed = object.clone();
        changed.kind = ObjectKind::Sequence(def);
        // What the session has taken from the log for the old definition is void.
        alter.ops.push(CatalogOp::Replace(changed));
        Ok(alter)
    }

    fn owner_of(&self, owner: Option<&(ObjectName, Ident)>, namespace: ObjectId) -> Result<Option<(ObjectId, usize)>> {
        let Some((table, column)) = owner else { return Ok(None) };
        let object = self.existing(table)?;
        if object.table().is_none() {
            return Err(PlanError::new(
                "42809",
                format!("sequence cannot be owned by relation \"{}\"", plain(table)),
            )
            .detail(format!("This operation is not supported for {}s.", object.kind_name())));
        }
        if object.namespace != namespace {
            return Err(PlanError::new(
                "55000",
                "sequence must be in same schema as table it is linked to",
            ));
        }
        let column = fold(column);
        let at = object.schema().index_of(&column).map_err(|_| {
            PlanError::new(
                "42703",
                format!("column \"{column}\" of relation \"{}\" does not exist", object.name),
            )
        })?;
        Ok(Some((object.id, at)))
    }
}

fn sequence_type(t: &DataType) -> Result<DataType> {
    match t {
        DataType::Int16 | DataType::Int32 | DataType::Int64 => Ok(t.clone()),
        _ => Err(PlanError::new(
            "22023",
            "sequence type must be smallint, integer, or bigint",
        )),
    }
}

fn check_bounds(def: &SequenceDef, value: i64, restarts: bool) -> Result<()> {
    let word = if restarts { "RESTART" } else { "last" };
    if value < def.min {
        return Err(PlanError::new(
            "22023",
            format!("{word} value ({value}) cannot be less than MINVALUE ({})", def.min),
        ));
    }
    if value > def.max {
        return Err(PlanError::new(
            "22023",
            format!("{word} value ({value}) cannot be greater than MAXVALUE ({})", def.max),
        ));
    }
    Ok(())
}
