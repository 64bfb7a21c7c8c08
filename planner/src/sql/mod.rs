//! Parsing and binding: text → [`Statement`].
//!
//! The server parses once ([`parse()`]), then binds each statement against a catalog snapshot ([`Binder::bind`]) just before it runs
//! (simple protocol) or when it is described (extended protocol, with `$n` parameters).

//!
//! ```text
//!   text ─ parse, ext ─▶ syntax tree ─ rewrite (names, literals, marks) ─▶ DataFusion's SQL planner ─ typing, operators, calls ─▶ plan
//! ```

mod aggregates;
mod alter;
pub mod array_text;
mod assign;
mod ast;
mod bind;
mod calls;
mod changed;
pub mod clock;
mod collections;
mod conflict;
mod copy;
mod create_as;
mod cursors;
pub mod datetime;
mod ddl;
mod derived;
mod dialect;
mod display;
mod dml;
mod drop;
mod errors;
mod ext;
mod feed;
pub mod functions;
mod grouping;
mod interval_sums;
mod jobs;
pub mod json;
mod literals;
mod locking;
mod merge;
mod merged;
mod moments;
mod named_windows;
mod names;
mod operators;
mod parse;
mod parts;
mod places;
mod precedence;
mod provider;
mod resolve;
mod rewrite;
mod samples;
mod scopes;
mod sequences;
mod session;
mod sets;
mod sinks;
mod sources;
mod state;
mod statement;
mod subqueries;
mod subscripts;
mod syntax;
mod table;
pub mod text;
mod ties;
mod transactions;
pub mod types;
mod typing;
mod unions;
mod window_calls;
mod windows;

#[cfg(test)]
mod tests;

pub use ast::{ExtStatement, FetchTo, LockWait, RowLock, TableLock};
pub use bind::bind_params;
pub use changed::{CHANGED, changed_schema};
pub use conflict::OnConflict;
pub use copy::{CopyFormat, CopyFrom, CopyHeader, CopyKind, CopyTo};
pub use display::{shown_expression, shown_literal, shown_query};
pub use errors::{map_arrow_error, map_df_error};
pub use functions::cast::round_times;
pub use jobs::{JobAction, JobStatement};
pub use locking::{LockTarget, LockingQuery, take_limit};
pub use merge::MergeOutcome;
pub(crate) use moments::{NOW, date_as_timestamp, days_later, midnight_before};
pub use parse::parse;
pub use parts::{Parts, WithParts, part_name, parts};
pub use resolve::{quote_ident, search_path};
pub use sequences::{SequenceOptions, shown_default};
pub use state::pg_session_state;
pub use statement::plan_lines;
pub use table::RowRules;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;

use crate::catalog::{Catalog, CatalogObject, CatalogOp};
use crate::plan::ObjectId;

/// A parsed statement with its own text.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The statement's text, without the separating semicolon.
    pub text: String,
    /// Character offset of `text` in the query string (0-based), to place error positions.
    pub offset: usize,
    /// Parsed form.
    pub ast: Ast,
}

/// Either PostgreSQL's grammar or one of the streaming extensions.
#[derive(Debug, Clone)]
pub enum Ast {
    /// sqlparser's tree.
    Sql(Arc<sqlparser::ast::Statement>),
    /// The extension parser's tree.
    Ext(Arc<ExtStatement>),
}

/// Tables that are not in the catalog (`pg_catalog`, `information_schema`, `levee_catalog`); the server supplies them.
pub trait SystemTables: Send + Sync + std::fmt::Debug {
    /// The table `schema.name`, if there is one. `schema: None` means an unqualified name (looked up after user objects).
    fn table(&self, schema: Option<&str>, name: &str) -> Option<Arc<dyn TableProvider>>;

    /// A sequence read as a table of one row.
    fn sequence(&self, sequence: &CatalogObject) -> Option<Arc<dyn TableProvider>> {
        let _ = sequence;
        None
    }
}

/// A statement ready to run.
#[derive(Debug)]
pub enum Statement {
    /// SELECT, VALUES, TABLE, and EXPLAIN's text.
    Query(Query),
    /// INSERT, UPDATE, DELETE, MERGE.
    Dml(Box<Dml>),
    /// COPY … FROM STDIN.
    CopyFrom(CopyFrom),
    /// COPY … TO STDOUT.
    CopyTo(CopyTo),
    /// TRUNCATE.
    Truncate {
        /// Tables, each once.
        tables: Vec<ObjectId>,
        /// RESTART IDENTITY.
        restart_identity: bool,
        /// CASCADE: tables that refer to these too.
        cascade: bool,
    },
    /// SELECT … FOR UPDATE and its kin.
    SelectLocking(LockingQuery),
    /// LOCK TABLE.
    LockTable {
        /// Tables.
        tables: Vec<ObjectId>,
        /// Mode.
        mode: TableLock,
        /// NOWAIT.
        nowait: bool,
    },
    /// SAVEPOINT name.
    Savepoint(String),
    /// RELEASE name.
    Release(String),
    /// ROLLBACK TO name.
    RollbackTo(String),
    /// DECLARE CURSOR.
    DeclareCursor {
        /// Name.
        name: String,
        /// BINARY.
        binary: bool,
        /// SCROLL (`Some(false)`: NO SCROLL).
        scroll: Option<bool>,
        /// WITH HOLD.
        hold: bool,
        /// The query.
        query: Query,
    },
    /// FETCH or MOVE.
    Fetch {
        /// Cursor.
        name: String,
        /// Where.
        to: FetchTo,
        /// MOVE: no rows are sent.
        only_move: bool,
    },
    /// CLOSE name, or ALL.
    CloseCursor(Option<String>),
    /// CREATE of any object. `object.id` is the catalog's next id.
    Create {
        /// What to add.
        object: Box<CatalogObject>,
        /// What comes into being with it: a schema for temporary objects, sequences, indexes.
        also: Vec<CatalogOp>,
        /// Notices to send: SQLSTATE and text.
        notices: Vec<(&'static str, String)>,
        /// Do nothing, with a notice, if the name is taken (bound only when it was free: see [`Statement::Notice`]).
        if_not_exists: bool,
        /// WITH NO DATA: the view is not to be populated.
        no_data: bool,
    },
    /// CREATE TABLE with rows or an end: AS query, ON COMMIT.
    CreateTable {
        /// A [`Statement::Create`].
        create: Box<Statement>,
        /// Its first rows, by position; `None`: it begins empty.
        query: Option<Box<Query>>,
        /// What becomes of it at COMMIT.
        on_commit: Option<OnCommit>,
    },
    /// DROP, in the order in which to drop.
    Drop {
        /// Objects, dependents first.
        objects: Vec<ObjectId>,
        /// What else changes: tables that lose a default or a constraint.
        also: Vec<CatalogOp>,
        /// Command tag: `DROP TABLE`, …
        tag: &'static str,
        /// Notices, such as `drop cascades to view v` or `table "t" does not exist, skipping`.
        notices: Vec<String>,
    },
    /// ALTER, CREATE SCHEMA, COMMENT and the like: a change of the catalog in one epoch.
    Alter(Alter),
    /// Nothing to do, with a notice (`relation "t" already exists, skipping`).
    Notice {
        /// Command tag to answer.
        tag: &'static str,
        /// Text.
        message: String,
        /// SQLSTATE of the notice, such as `42P07` or `00000`.
        code: &'static str,
    },
    /// EXPLAIN: rows of one text column `QUERY PLAN`.
    Explain {
        /// Lines when the text is known at bind time (views, stream plans).
        lines: Vec<String>,
    },
    /// EXPLAIN of a batch query: the server optimises and prints it.
    ExplainQuery {
        /// The query.
        query: Query,
        /// Also run it and show row counts and times.
        analyze: bool,
    },
    /// SET name = value (`None`: DEFAULT).
    Set {
        /// Setting, lower case.
        name: String,
        /// New value.
        value: Option<String>,
        /// SET LOCAL.
        local: bool,
    },
    /// SHOW name, or SHOW ALL with `None`.
    Show(Option<String>),
    /// RESET name or RESET ALL.
    Reset(Option<String>),
    /// BEGIN / START TRANSACTION.
    Begin {
        /// READ ONLY.
        read_only: bool,
        /// ISOLATION LEVEL as written, lower case with spaces.
        isolation: Option<String>,
    },
    /// COMMIT / END.
    Commit,
    /// ROLLBACK / ABORT.
    Rollback,
    /// DEALLOCATE name or ALL.
    Deallocate(Option<String>),
    /// PREPARE name AS statement.
    Prepare {
        /// Name.
        name: String,
        /// Declared parameter types.
        types: Vec<DataType>,
        /// Statement.
        statement: Box<Parsed>,
    },
    /// EXECUTE name(args): the arguments as literal expressions' values.
    Execute {
        /// Name.
        name: String,
        /// Arguments.
        args: Vec<datafusion::scalar::ScalarValue>,
    },
    /// DISCARD ALL and friends.
    Discard(&'static str),
    /// FLUSH: wait until every view has taken everything committed so far.
    Flush,
    /// REFRESH, PAUSE, RESUME, CANCEL JOB, SHOW JOBS.
    Job(JobAction),
    /// Accepted and without effect; `tag` is the answer (`LISTEN`, `UNLISTEN`, `ANALYZE`, …), `notice` says so where it matters.
    NoOp {
        /// Command tag.
        tag: &'static str,
        /// Notice text.
        notice: Option<String>,
    },
}

/// A change of the catalog.
#[derive(Debug, Default)]
pub struct Alter {
    /// Changes, in order; none: there is nothing to do.
    pub ops: Vec<CatalogOp>,
    /// Command tag.
    pub tag: &'static str,
    /// Notices to send: SQLSTATE and text.
    pub notices: Vec<(&'static str, String)>,
    /// What the rows that are there must satisfy first.
    pub requires: Vec<Requirement>,
}

/// What the rows of a table must satisfy before a change of the catalog.
#[derive(Debug, Clone)]
pub struct Requirement {
    /// Table.
    pub table: ObjectId,
    /// What.
    pub kind: RequirementKind,
}

/// Kinds of [`Requirement`].
#[derive(Debug, Clone)]
pub enum RequirementKind {
    /// No NULL in the column.
    NotNull(usize),
    /// No two rows agree in these columns; rows with a NULL do not count if the flag is set.
    Unique {
        /// Constraint's name, for the error.
        name: String,
        /// Columns.
        columns: Vec<usize>,
        /// NULLs differ from each other.
        nulls_distinct: bool,
        /// The index to fill with the rows' values.
        index: ObjectId,
    },
    /// The check of this position in the changed definition is not false for any row.
    Check(usize),
    /// Every value of the foreign key of this position in the changed definition exists in the other table.
    Reference(usize),
    /// The table is stored anew under another id, with its new primary key.
    Rekey(ObjectId),
}

/// What becomes of a temporary table at the end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCommit {
    /// It is emptied.
    DeleteRows,
    /// It goes.
    Drop,
}

/// A bound read.
#[derive(Debug, Clone)]
pub struct Query {
    /// Unoptimised plan; table scans of user objects have [`CatalogTable`] sources. `$n` are placeholders.
    pub plan: LogicalPlan,
    /// Result columns, named as PostgreSQL names them.
    pub schema: SchemaRef,
    /// Tables and materialized views read, plain views expanded.
    pub reads: Vec<ObjectId>,
    /// Sources read below a LIMIT, with the number of records that each needs.
    pub samples: Vec<(ObjectId, u64)>,
    /// Types of `$1..`, inferred where not given.
    pub params: Vec<DataType>,
}

/// The source of a user object's scan in a logical plan; [`Binder::with_providers`] puts data in its place.
#[derive(Debug)]
pub struct CatalogTable {
    /// The object.
    pub id: ObjectId,
    /// Its columns.
    pub schema: SchemaRef,
}

/// A bound write.
#[derive(Debug, Clone)]
pub struct Dml {
    /// The table.
    pub table: ObjectId,
    /// What.
    pub kind: DmlKind,
    /// Yields the rows (see [`DmlKind`]). Its parameters are the whole statement's.
    pub query: Query,
    /// Other tables are joined: a target row may come in several pairs, of which one counts.
    pub joined: bool,
    /// A column with the number of equal target rows follows [`DmlKind`]'s.
    pub counted: bool,
    /// Columns that an UPDATE assigns.
    pub assigned: Vec<usize>,
    /// ON CONFLICT.
    pub on_conflict: Option<OnConflict>,
    /// RETURNING, over [`CHANGED`] rows: the table's columns as stored (as they were, for DELETE), then what follows in the query's
    /// rows after the table's columns once more (other tables' columns of UPDATE … FROM and DELETE … USING).
    pub returning: Option<Query>,
}

/// What the rows of a DML query are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmlKind {
    /// Rows in the table's column order, cast, defaults filled in; NOT NULL not yet checked.
    Insert,
    /// Old row, then new row: twice the table's columns.
    Update,
    /// Old row.
    Delete,
    /// [`MergeOutcome`] (NULL: nothing), old row, new row.
    Merge,
}

/// Session settings that binding depends on.
#[derive(Debug, Clone)]
pub struct BindSettings {
    /// Time zone name, `UTC` by default.
    pub time_zone: String,
    /// What `now()` is in a batch statement: the transaction's start, microseconds since 1970.
    pub now_us: i64,
    /// `current_user` and friends.
    pub user: String,
    /// Tasks per fragment, for stream plans' EXPLAIN.
    pub parallelism: usize,
    /// Schemas that unqualified names are looked for in, in order; see [`search_path`].
    pub search_path: Vec<String>,
    /// The session's schema for temporary objects, once it has one.
    pub temporary: Option<ObjectId>,
    /// What that schema is called when it is made.
    pub temporary_name: String,
}

impl Default for BindSettings {
    fn default() -> Self {
        Self {
            time_zone: "UTC".to_owned(),
            now_us: 0,
            user: "levee".to_owned(),
            parallelism: 1,
            search_path: vec!["public".to_owned()],
            temporary: None,
            temporary_name: "pg_temp_0".to_owned(),
        }
    }
}

/// Binds statements against one catalog snapshot.
#[derive(Debug, Clone)]
pub struct Binder {
    /// Catalog.
    pub catalog: Arc<Catalog>,
    /// System tables.
    pub system: Arc<dyn SystemTables>,
    /// Settings.
    pub settings: BindSettings,
    /// Further scalar functions, such as `version()` and `current_user`, that depend on the server or the session.
    pub extra_udfs: Vec<Arc<datafusion::logical_expr::ScalarUDF>>,
    /// The session state to start from (with a memory limit, say); `None`: a new one of [`pg_session_state`] each time.
    pub base: Option<Arc<SessionState>>,
}

/// Options written in WITH (…), keys lower-cased.
pub type Options = BTreeMap<String, String>;
