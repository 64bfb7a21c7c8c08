//! CREATE of tables, sources, views, materialized views and sinks.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sqlparser::ast::{self, ObjectName};

use super::ast::{CreateSink, CreateView, QueryText, SinkInput};
use super::bind::{Bound, rename};
use super::errors::locate;
use super::ext::{fold, object_name};
use super::resolve::{NewName, Place};
use super::rewrite::Mode;
use super::{Binder, Statement, sinks, types};
use crate::catalog::{CatalogObject, MaterializedViewDef, ObjectKind, ViewDef};
use crate::plan::{ObjectId, StreamPlan};
use crate::{PlanError, Result};

/// PostgreSQL's limit for columns of a relation.
const COLUMNS_MAX: usize = 1600;

impl Binder {
    /// The place of a new object. `None`: its name is taken and IF NOT EXISTS says not to mind.
    pub(super) fn new_name(&self, name: &ObjectName, if_not_exists: bool, temporary: bool) -> Result<Option<NewName>> {
        match self.place(name, temporary)? {
            Place::Free(new) => Ok(Some(new)),
            Place::Taken(_) if if_not_exists => Ok(None),
            Place::Taken(o) => Err(taken(&o.name)),
        }
    }

    /// The answer to IF NOT EXISTS where the name is taken.
    pub(super) fn skipped(name: &ObjectName, tag: &'static str) -> Result<Statement> {
        let (_, name) = object_name(name)?;
        Ok(Statement::Notice {
            tag,
            message: format!("relation \"{name}\" already exists, skipping"),
            code: "42P07",
        })
    }

    fn create(new: &NewName, kind: ObjectKind, bound: Option<Bound>, text: &str, if_not_exists: bool) -> Statement {
        let mut object = new.object(kind, text);
        if let Some(bound) = bound {
            object.depends_on = bound.used;
            object.references = bound.references;
        }
        Statement::Create {
            object: Box::new(object),
            also: new.ops(),
            notices: Vec::new(),
            if_not_exists,
            no_data: false,
        }
    }

    /// CREATE VIEW and CREATE MATERIALIZED VIEW.
    pub(super) fn create_view(&self, v: &CreateView, text: &str) -> Result<Statement> {
        if v.materialized {
            self.create_materialized(v, text)
        } else {
            self.create_plain(v, text)
        }
    }

    fn create_plain(&self, v: &CreateView, text: &str) -> Result<Statement> {
        let (place, existing) = match self.place(&v.name, v.temporary)? {
            Place::Free(new) => (Some(new), None),
            Place::Taken(o) if !v.or_replace => return Err(taken(&o.name)),
            Place::Taken(o) => (None, Some(o)),
        };
        if let Some(o) = &existing
            && !matches!(o.kind, ObjectKind::View(_))
        {
            return Err(PlanError::new("42809", format!("\"{}\" is not a view", o.name)));
        }
        if let Some(k) = v.options.keys().next() {
            return Err(PlanError::new("22023", format!("unrecognized parameter \"{k}\"")));
        }
        let bound = self.view_query(&v.query, text, self.batch())?;
        let schema = named_schema(&bound.schema, &v.columns)?;
        if let Some(o) = &existing {
            if bound.used.contains(&o.id) || self.reads(&bound.used, o.id) {
                return Err(PlanError::new(
                    "42P17",
                    format!("infinite recursion detected in rules for relation \"{}\"", o.name),
                ));
            }
            check_replacement(o.schema(), &schema)?;
        }
        let (place, notice) = self.view_place(v, place, existing.as_deref(), &bound)?;
        let kind = ObjectKind::View(ViewDef {
            sql: v.query.text.clone(),
            schema,
        });
        let mut statement = Self::create(&place, kind, Some(bound), text, v.if_not_exists);
        if let Statement::Create { object, notices, .. } = &mut statement {
            if let Some(o) = existing {
                object.comments.clone_from(&o.comments);
            }
            notices.extend(notice);
        }
        Ok(statement)
    }

    /// Where a view goes. One that reads temporary relations is temporary itself, as in PostgreSQL.
    fn view_place(
        &self,
        v: &CreateView,
        place: Option<NewName>,
        existing: Option<&CatalogObject>,
        bound: &Bound,
    ) -> Result<(NewName, Option<(&'static str, String)>)> {
        let reads_temporary = self.reads_temporary(&bound.used);
        if let Some(o) = existing {
            let place = NewName {
                namespace: o.namespace,
                name: o.name.clone(),
                before: None,
                id: o.id,
            };
            return Ok((place, None));
        }
        let mut place = place.ok_or_else(|| PlanError::internal("a view without a place"))?;
        let mut notice = None;
        if reads_temporary && !v.temporary && Some(place.namespace) != self.settings.temporary {
            let moved = ObjectName::from(vec![ast::Ident::with_quote('"', place.name.clone())]);
            place = match self.place(&moved, true)? {
                Place::Free(new) => new,
                Place::Taken(o) => return Err(taken(&o.name)),
            };
            notice = Some(("00000", format!("view \"{}\" will be a temporary view", place.name)));
        }
        Ok((place, notice))
    }

    /// Is any of these temporary?
    fn reads_temporary(&self, used: &[ObjectId]) -> bool {
        let objects = used.iter().filter_map(|id| self.catalog.get(*id));
        objects.into_iter().any(|o| self.catalog.is_temporary(o))
    }

    /// Does any of `from` read `target`, through views?
    fn reads(&self, from: &[ObjectId], target: ObjectId) -> bool {
        let mut open: Vec<ObjectId> = from.to_vec();
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if id == target {
                return true;
            }
            if seen.insert(id) {
                open.extend(
                    self.catalog
                        .get(id)
                        .into_iter()
                        .flat_map(|o| o.depends_on.iter().copied()),
                );
            }
        }
        false
    }

    fn view_query(&self, q: &QueryText, text: &str, mode: Mode) -> Result<Bound> {
        let bound = self.bind_query(&q.query, text, mode, &[])?;
        if let Some(n) = super::bind::first_parameter(&bound.plan)? {
            return Err(PlanError::new("42P02", format!("there is no parameter {n}")));
        }
        Ok(bound)
    }

    fn create_materialized(&self, v: &CreateView, text: &str) -> Result<Statement> {
        let Some(new) = self.new_name(&v.name, v.if_not_exists, false)? else {
            return Self::skipped(&v.name, "CREATE MATERIALIZED VIEW");
        };
        if let Some(k) = v.options.keys().find(|k| *k != "on_error") {
            return Err(PlanError::new("22023", format!("unrecognized parameter \"{k}\"")));
        }
        let (plan, bound) = self.stream_plan(&v.query, &v.columns, text)?;
        let notice = nested_loop_notice(&plan);
        let def = MaterializedViewDef {
            sql: v.query.text.clone(),
            schema: Arc::clone(&plan.root.schema),
            plan,
            options: v.options.clone(),
        };
        let kind = ObjectKind::MaterializedView(Box::new(def));
        let mut statement = Self::create(&new, kind, Some(bound), text, v.if_not_exists);
        if let Statement::Create { no_data, notices, .. } = &mut statement {
            *no_data = v.no_data;
            notices.extend(notice);
        }
        Ok(statement)
    }

    /// The stream plan of a query, its columns named, and what the query names.
    pub(super) fn stream_plan(&self, q: &QueryText, columns: &[ast::Ident], text: &str) -> Result<(StreamPlan, Bound)> {
        let bound = self.view_query(q, text, Mode::Streaming)?;
        let schema = named_schema(&bound.schema, columns)?;
        let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        if self.reads_temporary(&bound.used) {
            return Err(PlanError::new(
                "0A000",
                "materialized views must not use temporary tables or views",
            ));
        }
        let plan = rename(bound.plan.clone(), &names)?;
        let plan = crate::stream::plan_view(plan, &schema, &self.catalog)?;
        Ok((plan, bound))
    }

    /// CREATE SINK.
    pub(super) fn create_sink(&self, s: &CreateSink, text: &str) -> Result<Statement> {
        let Some(new) = self.new_name(&s.name, s.if_not_exists, false)? else {
            return Self::skipped(&s.name, "CREATE SINK");
        };
        let connector = sinks::check_options(&s.options)?;
        let query = self.sink_query(&s.input)?;
        let (plan, bound) = self.stream_plan(&query, &[], text)?;
        let notice = nested_loop_notice(&plan);
        let def = sinks::define(s, connector, query.text, plan)?;
        let kind = ObjectKind::Sink(Box::new(def));
        let mut statement = Self::create(&new, kind, Some(bound), text, s.if_not_exists);
        if let Statement::Create { notices, .. } = &mut statement {
            notices.extend(notice);
        }
        Ok(statement)
    }

    /// What a sink reads, as a query.
    pub(super) fn sink_query(&self, input: &SinkInput) -> Result<QueryText> {
        match input {
            SinkInput::Query(q) => Ok(q.clone()),
            SinkInput::Relation(name) => {
                let text = format!("SELECT * FROM {name}");
                Ok(QueryText {
                    query: super::parse::parse_query(&text)?,
                    text,
                    offset: 0,
                })
            }
        }
    }
}

/// What a view with joins that compare all rows costs.
fn nested_loop_notice(plan: &StreamPlan) -> Option<(&'static str, String)> {
    let what = match crate::stream::nested_loops(plan) {
        0 => return None,
        1 => "a join without an equality condition compares".to_owned(),
        n => format!("{n} joins without an equality condition compare"),
    };
    let text = format!("{what} every changed row of one side with all rows of the other, at one task and in memory");
    Some(("00000", text))
}

/// 42P07.
pub(super) fn taken(name: &str) -> PlanError {
    PlanError::new("42P07", format!("relation \"{name}\" already exists"))
}

/// A view's columns: the query's, renamed from the left; all different.
fn named_schema(query: &SchemaRef, names: &[ast::Ident]) -> Result<SchemaRef> {
    if names.len() > query.fields().len() {
        return Err(PlanError::new(
            "42601",
            "CREATE VIEW specifies more column names than columns",
        ));
    }
    let mut seen = BTreeSet::new();
    let mut fields = Vec::new();
    for (i, f) in query.fields().iter().enumerate() {
        let name = names.get(i).map_or_else(|| f.name().clone(), fold);
        if !seen.insert(name.clone()) {
            return Err(
                PlanError::new("42701", format!("column \"{name}\" specified more than once"))
                    .hint("Give the columns different names, with AS or in the view's column list."),
            );
        }
        fields.push(f.as_ref().clone().with_name(name));
    }
    if fields.len() > COLUMNS_MAX {
        return Err(PlanError::new(
            "54011",
            format!("views can have at most {COLUMNS_MAX} columns"),
        ));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// CREATE OR REPLACE VIEW may add columns at the end only.
fn check_replacement(old: &SchemaRef, new: &SchemaRef) -> Result<()> {
    if new.fields().len() < old.fields().len() {
        return Err(PlanError::new("42P16", "cannot drop columns from view"));
    }
    for (o, n) in old.fields().iter().zip(new.fields()) {
        if o.name() != n.name() {
            return Err(PlanError::new(
                "42P16",
                format!("cannot change name of view column \"{}\" to \"{}\"", o.name(), n.name()),
            ));
        }
        if o.data_type() != n.data_type() {
            let name = |t: &DataType| types::pg_type_name(&Field::new("", t.clone(), true));
            return Err(PlanError::new(
                "42P16",
                format!(
                    "cannot change data type of view column \"{}\" from {} to {}",
                    o.name(),
                    name(o.data_type()),
                    name(n.data_type())
                ),
            ));
        }
    }
    Ok(())
}

impl Binder {
    /// Positions in errors of DDL.
    pub(super) fn located(&self, r: Result<Statement>, text: &str) -> Result<Statement> {
        r.map_err(|e| locate(e, text))
    }
}
