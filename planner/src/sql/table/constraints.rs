//! Constraints, of CREATE TABLE and ALTER TABLE ADD alike.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::Expr;
use sqlparser::ast::{self, TableConstraint};

use super::{Draft, shown_type};
use crate::catalog::{CatalogObject, Check, ForeignKey, IndexDef, ObjectKind, ReferentialAction, TableDef, Unique};
use crate::sql::errors::map_df_error;
use crate::sql::ext::fold;
use crate::sql::operators::boolean;
use crate::sql::typing::typed;
use crate::sql::{Requirement, RequirementKind};
use crate::{PlanError, Result};

/// The columns of a unique constraint.
pub(super) struct Key {
    pub columns: Vec<usize>,
    pub nulls_distinct: bool,
}

/// DEFERRABLE would be a promise that checks wait for COMMIT.
pub(super) fn not_deferrable(c: Option<&ast::ConstraintCharacteristics>) -> Result<()> {
    if c.is_some_and(|c| c.deferrable == Some(true) || c.initially == Some(ast::DeferrableInitial::Deferred)) {
        return Err(PlanError::unsupported("DEFERRABLE constraints are not supported")
            .hint("Leave DEFERRABLE out: constraints are checked at the end of each statement."));
    }
    Ok(())
}

impl Draft<'_> {
    pub(super) fn table_constraints(&mut self, constraints: &[TableConstraint]) -> Result<()> {
        constraints.iter().try_for_each(|c| self.table_constraint(c))
    }

    /// Adds one constraint.
    pub(in crate::sql) fn table_constraint(&mut self, c: &TableConstraint) -> Result<()> {
        match c {
            TableConstraint::PrimaryKey(k) => {
                not_deferrable(k.characteristics.as_ref())?;
                let columns = self.key_columns(&k.columns, "primary key")?;
                self.primary_key(k.name.as_ref().map(fold), columns)
            }
            TableConstraint::Unique(u) => {
                not_deferrable(u.characteristics.as_ref())?;
                let columns = self.key_columns(&u.columns, "unique")?;
                let nulls_distinct = u.nulls_distinct != ast::NullsDistinctOption::NotDistinct;
                self.unique(
                    u.name.as_ref().map(fold),
                    Key {
                        columns,
                        nulls_distinct,
                    },
                )
            }
            TableConstraint::Check(k) => self.check(k.name.as_ref().map(fold), &k.expr),
            TableConstraint::ForeignKey(f) => {
                let columns = f.columns.iter().map(fold);
                let columns = columns
                    .map(|n| {
                        self.column(&n).ok_or_else(|| {
                            PlanError::new(
                                "42703",
                                format!("column \"{n}\" referenced in foreign key constraint does not exist"),
                            )
                        })
                    })
                    .collect::<Result<Vec<_>>>()?;
                self.foreign_key(f.name.as_ref().map(fold), columns, f)
            }
            other => Err(PlanError::unsupported(format!("constraint {other} is not supported"))
                .hint("PRIMARY KEY, UNIQUE, CHECK and FOREIGN KEY are.")),
        }
    }

    /// A constraint's name: the one given, which must be free, or one made up.
    fn constraint_name(&mut self, given: Option<String>, columns: &str, label: &str) -> Result<String> {
        let Some(name) = given else {
            let table = self.name.clone();
            return Ok(self.free_name(&table, columns, label));
        };
        crate::sql::resolve::check_name(&name)?;
        if self.names.contains(&name) || crate::sql::alter::has_constraint(&self.def, &self.name, &name) {
            return Err(PlanError::new(
                "42710",
                format!("constraint \"{name}\" for relation \"{}\" already exists", self.name),
            ));
        }
        self.names.push(name.clone());
        Ok(name)
    }

    fn column_names(&self, columns: &[usize]) -> String {
        let names: Vec<&str> = columns
            .iter()
            .map(|c| self.def.schema.field(*c).name().as_str())
            .collect();
        names.join("_")
    }

    fn key_columns(&self, columns: &[ast::IndexColumn], what: &str) -> Result<Vec<usize>> {
        let mut out = Vec::new();
        for column in columns {
            let ast::Expr::Identifier(i) = &column.column.expr else {
                return Err(PlanError::new("42601", format!("a {what} constraint names columns")));
            };
            let name = fold(i);
            let at = self
                .column(&name)
                .ok_or_else(|| PlanError::new("42703", format!("column \"{name}\" named in key does not exist")))?;
            if out.contains(&at) {
                return Err(PlanError::new(
                    "42701",
                    format!("column \"{name}\" appears twice in {what} constraint"),
                ));
            }
            out.push(at);
        }
        Ok(out)
    }

    pub(super) fn primary_key(&mut self, name: Option<String>, columns: Vec<usize>) -> Result<()> {
        if !self.def.primary_key.is_empty() {
            return Err(PlanError::new(
                "42P16",
                format!("multiple primary keys for table \"{}\" are not allowed", self.name),
            ));
        }
        self.refuse_json(&columns)?;
        if let Some(name) = name {
            let name = self.constraint_name(Some(name), "", "pkey")?;
            self.def.constraints.primary_key = Some(name);
        }
        for c in &columns {
            if self.def.schema.field(*c).is_nullable() {
                self.def.set_nullable(*c, false);
                self.require(RequirementKind::NotNull(*c));
            }
        }
        self.def.primary_key = columns;
        Ok(())
    }

    /// json has no equality.
    fn refuse_json(&self, columns: &[usize]) -> Result<()> {
        if columns
            .iter()
            .any(|c| self.def.schema.field(*c).data_type() == &crate::sql::types::JSON)
        {
            return Err(PlanError::new(
                "42704",
                "data type json has no default operator class for access method \"btree\"",
            )
            .hint("Use jsonb."));
        }
        Ok(())
    }

    fn require(&mut self, kind: RequirementKind) {
        let table = self.id;
        if let Some(requires) = &mut self.requires {
            requires.push(Requirement { table, kind });
        }
    }

    pub(super) fn unique(&mut self, name: Option<String>, key: Key) -> Result<()> {
        self.refuse_json(&key.columns)?;
        let columns = self.column_names(&key.columns);
        let given = name.is_some();
        let name = self.constraint_name(name, &columns, "key")?;
        if given && self.binder.catalog.find(self.namespace, &name).is_some() {
            return Err(crate::sql::ddl::taken(&name));
        }
        let Key {
            columns,
            nulls_distinct,
        } = key;
        let fields: Vec<_> = columns
            .iter()
            .map(|c| Arc::clone(&self.def.schema.fields()[*c]))
            .map(|f| Arc::new(f.as_ref().clone().with_nullable(true)))
            .collect();
        let index = IndexDef {
            table: self.id,
            columns: columns.clone(),
            schema: Arc::new(Schema::new(fields)),
            nulls_distinct,
        };
        let index = self.companion(name.clone(), ObjectKind::Index(index));
        self.require(RequirementKind::Unique {
            name: name.clone(),
            columns: columns.clone(),
            nulls_distinct,
            index,
        });
        self.def.constraints.uniques.push(Unique {
            name,
            columns,
            nulls_distinct,
            index,
        });
        Ok(())
    }

    pub(super) fn check(&mut self, name: Option<String>, e: &ast::Expr) -> Result<()> {
        refuse_subqueries(e, "check constraint")?;
        let schema = self.row_schema()?;
        let bound = self.binder.bind_expr(e, &schema, self.binder.batch(), &[])?;
        if let Some(f) = aggregate(&bound) {
            let what = if f { "window" } else { "aggregate" };
            return Err(PlanError::new(
                if f { "42P20" } else { "42803" },
                format!("{what} functions are not allowed in check constraints"),
            ));
        }
        boolean(typed(bound, &schema).map_err(map_df_error)?, "CHECK")?;
        let columns = named_columns(e, &self.def.schema);
        let label = match columns.as_slice() {
            [one] => self.column_names(&[*one]),
            _ => String::new(),
        };
        let name = self.constraint_name(name, &label, "check")?;
        let sql = e.to_string();
        self.def.constraints.checks.push(Check { name, sql, columns });
        if self.requires.is_some() {
            let at = self.def.constraints.checks.len() - 1;
            self.require(RequirementKind::Check(at));
        }
        Ok(())
    }

    pub(super) fn foreign_key(
        &mut self,
        name: Option<String>,
        columns: Vec<usize>,
        f: &ast::ForeignKeyConstraint,
    ) -> Result<()> {
        not_deferrable(f.characteristics.as_ref())?;
        if let Some(kind @ (ast::ConstraintReferenceMatchKind::Full | ast::ConstraintReferenceMatchKind::Partial)) =
            &f.match_kind
        {
            return Err(PlanError::unsupported(format!("{kind} is not supported"))
                .hint("Leave it out: a row with a NULL among the columns refers to nothing."));
        }
        let label = self.column_names(&columns);
        let name = self.constraint_name(name, &label, "fkey")?;
        let referred: Vec<String> = f.referred_columns.iter().map(fold).collect();
        let on_delete = action(f.on_delete.as_ref());
        let on_update = action(f.on_update.as_ref());
        let own = self.binder.place_is(&f.foreign_table, self.namespace, &self.name)?;
        let (parent, parent_columns) = if own {
            let columns = referred_columns(&self.def, &self.name, &referred)?;
            (self.id, columns)
        } else {
            let parent = self.parent(&f.foreign_table)?;
            let (id, name) = (parent.id, parent.name.clone());
            let def = parent
                .table()
                .ok_or_else(|| PlanError::internal("a table without definition"))?;
            (id, referred_columns(def, &name, &referred)?)
        };
        self.same_types(&name, &columns, parent, &parent_columns)?;
        self.def.constraints.foreign_keys.push(ForeignKey {
            name,
            columns,
            parent,
            parent_columns,
            on_delete,
            on_update,
        });
        if self.requires.is_some() {
            let at = self.def.constraints.foreign_keys.len() - 1;
            self.require(RequirementKind::Reference(at));
        }
        Ok(())
    }

    fn parent(&self, name: &ast::ObjectName) -> Result<&CatalogObject> {
        let object = self.binder.named_object(name)?.ok_or_else(|| {
            PlanError::new(
                "42P01",
                format!("relation \"{}\" does not exist", crate::sql::alter::plain(name)),
            )
        })?;
        if object.table().is_none() {
            return Err(PlanError::new(
                "42809",
                format!("referenced relation \"{}\" is not a table", object.name),
            ));
        }
        if object.table().is_some_and(|t| t.ingest.is_some()) {
            return Err(
                PlanError::unsupported("a foreign key to a table with a connector is not supported")
                    .hint("Its rows come and go without asking; find unmatched rows with a materialized view."),
            );
        }
        let temporary = self.binder.catalog.is_temporary(object);
        if temporary && !self.temporary {
            return Err(PlanError::new(
                "42P16",
                "constraints on permanent tables may reference only permanent tables",
            ));
        }
        if self.temporary && !temporary {
            return Err(PlanError::new(
                "42P16",
                "constraints on temporary tables may reference only temporary tables",
            ));
        }
        Ok(object)
    }

    fn same_types(
        &self,
        name: &str,
        columns: &[usize],
        parent: crate::plan::ObjectId,
        parent_columns: &[usize],
    ) -> Result<()> {
        if columns.len() != parent_columns.len() {
            return Err(PlanError::new(
                "42830",
                "number of referencing and referenced columns for foreign key disagree",
            ));
        }
        let schema = if parent == self.id {
            &self.def.schema
        } else {
            match self.binder.catalog.get(parent) {
                Some(o) => o.schema(),
                None => return Err(PlanError::internal("the referenced table is gone")),
            }
        };
        for (c, p) in columns.iter().zip(parent_columns) {
            let (child, parent) = (self.def.schema.field(*c), schema.field(*p));
            let (a, b) = (child.data_type(), parent.data_type());
            let integers = |t: &DataType| matches!(t, DataType::Int16 | DataType::Int32 | DataType::Int64);
            if a != b && !(integers(a) && integers(b)) {
                return Err(PlanError::new(
                    "42804",
                    format!("foreign key constraint \"{name}\" cannot be implemented"),
                )
                .detail(format!(
                    "Key columns \"{}\" and \"{}\" are of incompatible types: {} and {}.",
                    child.name(),
                    parent.name(),
                    shown_type(a),
                    shown_type(b)
                )));
            }
        }
        Ok(())
    }
}

impl crate::sql::Binder {
    /// Does the name mean the table that is being made?
    fn place_is(&self, name: &ast::ObjectName, namespace: crate::plan::ObjectId, table: &str) -> Result<bool> {
        let (schema, n) = crate::sql::ext::object_name(name)?;
        Ok(n == table
            && match schema {
                Some(s) => self.namespace_id(&s) == Some(namespace),
                None => self.object(None, &n).is_none_or(|o| o.namespace == namespace),
            })
    }
}

/// The parent's columns: those named, or its primary key; they must be unique.
fn referred_columns(def: &TableDef, table: &str, names: &[String]) -> Result<Vec<usize>> {
    if names.is_empty() {
        if def.primary_key.is_empty() {
            return Err(PlanError::new(
                "42704",
                format!("there is no primary key for referenced table \"{table}\""),
            ));
        }
        return Ok(def.primary_key.clone());
    }
    let mut columns = Vec::new();
    for n in names {
        let at = def.schema.index_of(n).map_err(|_| {
            PlanError::new(
                "42703",
                format!("column \"{n}\" referenced in foreign key constraint does not exist"),
            )
        })?;
        columns.push(at);
    }
    let wanted: BTreeSet<usize> = columns.iter().copied().collect();
    let same = |key: &[usize]| key.len() == columns.len() && key.iter().all(|c| wanted.contains(c));
    let unique = (!def.primary_key.is_empty() && same(&def.primary_key))
        || def.constraints.uniques.iter().any(|u| same(&u.columns));
    if !unique {
        return Err(PlanError::new(
            "42830",
            format!("there is no unique constraint matching given keys for referenced table \"{table}\""),
        ));
    }
    Ok(columns)
}

fn action(a: Option<&ast::ReferentialAction>) -> ReferentialAction {
    match a {
        None | Some(ast::ReferentialAction::NoAction) => ReferentialAction::NoAction,
        Some(ast::ReferentialAction::Restrict) => ReferentialAction::Restrict,
        Some(ast::ReferentialAction::Cascade) => ReferentialAction::Cascade,
        Some(ast::ReferentialAction::SetNull) => ReferentialAction::SetNull,
        Some(ast::ReferentialAction::SetDefault) => ReferentialAction::SetDefault,
    }
}

/// Whether an expression aggregates; true if over a window.
fn aggregate(e: &Expr) -> Option<bool> {
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    let mut found = None;
    // The closure has no failing case.
    let _walked = e.apply(|e| {
        match e {
            Expr::AggregateFunction(_) => found = Some(false),
            Expr::WindowFunction(_) => found = Some(true),
            _ => return Ok(TreeNodeRecursion::Continue),
        }
        Ok(TreeNodeRecursion::Stop)
    });
    found
}

/// The columns that an expression names, in order.
pub(super) fn named_columns(e: &ast::Expr, schema: &Schema) -> Vec<usize> {
    struct Finder<'a> {
        schema: &'a Schema,
        found: BTreeSet<usize>,
    }
    impl ast::Visitor for Finder<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, e: &ast::Expr) -> ControlFlow<()> {
            let ident = match e {
                ast::Expr::Identifier(i) => Some(i),
                ast::Expr::CompoundIdentifier(parts) => parts.last(),
                _ => None,
            };
            self.found
                .extend(ident.and_then(|i| self.schema.index_of(&fold(i)).ok()));
            ControlFlow::Continue(())
        }
    }
    let mut finder = Finder {
        schema,
        found: BTreeSet::new(),
    };
    // Nothing breaks the walk.
    let _done = ast::Visit::visit(e, &mut finder);
    finder.found.into_iter().collect()
}

/// Does an expression name any column?
pub(super) fn has_column(e: &ast::Expr) -> bool {
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = ();
        fn pre_visit_expr(&mut self, e: &ast::Expr) -> ControlFlow<()> {
            match e {
                ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    ast::Visit::visit(e, &mut Finder).is_break()
}

/// Does an expression ask for the time?
pub(super) fn names_a_moment(e: &ast::Expr) -> bool {
    const MOMENTS: [&str; 10] = [
        "now",
        "current_timestamp",
        "transaction_timestamp",
        "statement_timestamp",
        "clock_timestamp",
        "current_date",
        "current_time",
        "localtimestamp",
        "localtime",
        "timeofday",
    ];
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = ();
        fn pre_visit_expr(&mut self, e: &ast::Expr) -> ControlFlow<()> {
            match e {
                ast::Expr::Function(f) => match crate::sql::ext::object_name(&f.name) {
                    Ok((_, name)) if MOMENTS.contains(&name.as_str()) => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                },
                _ => ControlFlow::Continue(()),
            }
        }
    }
    ast::Visit::visit(e, &mut Finder).is_break()
}

/// 0A000 for a subquery where none may stand.
pub(super) fn refuse_subqueries(e: &ast::Expr, place: &str) -> Result<()> {
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = ();
        fn pre_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    if ast::Visit::visit(e, &mut Finder).is_break() {
        return Err(PlanError::new("0A000", format!("cannot use subquery in {place}")));
    }
    Ok(())
}
