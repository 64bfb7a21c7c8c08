//! Statements that sqlparser's grammar lacks, or reads in another way than PostgreSQL and the streaming dialect do.

use sqlparser::ast::{
    Assignment, ColumnDef, CreateTable, DataType, Expr, Ident, ObjectName, Query, TableConstraint, TableWithJoins,
};

use super::alter::Definition;
use super::create_as::CreateAs;
use super::table::Like;
use super::{Options, Parsed};
use crate::catalog::Include;

/// A query with the text that it was read from.
#[derive(Debug, Clone)]
pub struct QueryText {
    /// Text.
    pub text: String,
    /// Character offset of `text` in the statement (0-based).
    pub offset: usize,
    /// Parsed form.
    pub query: Box<Query>,
}

/// `CREATE [OR REPLACE] [MATERIALIZED] VIEW`.
#[derive(Debug, Clone)]
pub struct CreateView {
    /// MATERIALIZED.
    pub materialized: bool,
    /// OR REPLACE.
    pub or_replace: bool,
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
    /// TEMPORARY.
    pub temporary: bool,
    /// Name.
    pub name: ObjectName,
    /// Column names, if given.
    pub columns: Vec<Ident>,
    /// WITH options.
    pub options: Options,
    /// The query.
    pub query: QueryText,
    /// WITH NO DATA.
    pub no_data: bool,
}

/// CREATE SOURCE.
#[derive(Debug, Clone)]
pub struct CreateSource {
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
    /// Name.
    pub name: ObjectName,
    /// Declared columns; empty: the connector's own.
    pub columns: Vec<ColumnDef>,
    /// Table constraints among the columns.
    pub constraints: Vec<TableConstraint>,
    /// Where the rows come from.
    pub feed: Feed,
}

/// CREATE TABLE with a connector.
#[derive(Debug, Clone)]
pub struct CreateFedTable {
    /// The table.
    pub table: Box<CreateTable>,
    /// Where it takes rows from.
    pub feed: Feed,
}

/// What stands behind the columns of a source or of a table with a connector.
#[derive(Debug, Clone)]
pub struct Feed {
    /// INCLUDE ….
    pub includes: Vec<IncludeItem>,
    /// WITH options.
    pub options: Options,
    /// FORMAT … ENCODE ….
    pub format: Option<FormatClause>,
}

/// One INCLUDE.
#[derive(Debug, Clone)]
pub struct IncludeItem {
    /// Which part of a record.
    pub include: Include,
    /// The column's type, if given.
    pub data_type: Option<DataType>,
    /// The column's name, if given.
    pub column: Option<Ident>,
}

/// What a sink reads.
#[derive(Debug, Clone)]
pub enum SinkInput {
    /// FROM relation.
    Relation(ObjectName),
    /// AS query.
    Query(QueryText),
}

/// CREATE SINK.
#[derive(Debug, Clone)]
pub struct CreateSink {
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
    /// Name.
    pub name: ObjectName,
    /// Input.
    pub input: SinkInput,
    /// WITH options.
    pub options: Options,
    /// FORMAT … ENCODE ….
    pub format: Option<FormatClause>,
}

/// FORMAT … ENCODE … (options), words lower-cased.
#[derive(Debug, Clone)]
pub struct FormatClause {
    /// How records change rows, or rows become records.
    pub format: String,
    /// How a record's bytes hold a row.
    pub encode: String,
    /// Options in parentheses.
    pub options: Options,
}

/// The kinds of object that DROP names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropKind {
    /// TABLE.
    Table,
    /// SOURCE.
    Source,
    /// VIEW.
    View,
    /// MATERIALIZED VIEW.
    MaterializedView,
    /// SINK.
    Sink,
    /// SEQUENCE.
    Sequence,
    /// INDEX.
    Index,
}

/// DROP of one or more objects of a kind.
#[derive(Debug, Clone)]
pub struct Drop {
    /// Kind.
    pub kind: DropKind,
    /// IF EXISTS.
    pub if_exists: bool,
    /// Names.
    pub names: Vec<ObjectName>,
    /// CASCADE.
    pub cascade: bool,
}

/// What COPY copies.
#[derive(Debug, Clone)]
pub enum CopySource {
    /// A table (or, TO only, a materialized view).
    Table(ObjectName),
    /// `(TABLE name)`.
    Whole(ObjectName),
    /// A query.
    Query(QueryText),
}

/// COPY table [(columns)] FROM STDIN, COPY table | (query) TO STDOUT.
#[derive(Debug, Clone)]
pub struct Copy {
    /// What.
    pub source: CopySource,
    /// TO.
    pub to: bool,
    /// Columns, if listed.
    pub columns: Vec<Ident>,
    /// Options in the order written, names lower case.
    pub options: Vec<(String, Option<String>)>,
    /// FROM … WHERE.
    pub filter: Option<Expr>,
}

/// MERGE.
#[derive(Debug, Clone)]
pub struct Merge {
    /// Target.
    pub table: ObjectName,
    /// Its alias.
    pub alias: Option<Ident>,
    /// USING.
    pub source: TableWithJoins,
    /// ON.
    pub on: Expr,
    /// WHEN clauses in order.
    pub clauses: Vec<MergeClause>,
}

/// `WHEN [NOT] MATCHED [AND condition] THEN action`.
#[derive(Debug, Clone)]
pub struct MergeClause {
    /// MATCHED.
    pub matched: bool,
    /// AND condition.
    pub condition: Option<Expr>,
    /// THEN.
    pub action: MergeAction,
}

/// What a MERGE clause does.
#[derive(Debug, Clone)]
pub enum MergeAction {
    /// DO NOTHING.
    Nothing,
    /// DELETE.
    Delete,
    /// UPDATE SET.
    Update(Vec<Assignment>),
    /// INSERT (columns) VALUES (…); no values: DEFAULT VALUES.
    Insert {
        /// Columns, if listed.
        columns: Vec<Ident>,
        /// Values.
        values: Option<Vec<Expr>>,
    },
}

/// How strongly a row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowLock {
    /// FOR KEY SHARE.
    KeyShare,
    /// FOR SHARE.
    Share,
    /// FOR NO KEY UPDATE.
    NoKeyUpdate,
    /// FOR UPDATE.
    Update,
}

/// What to do when a lock is taken by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockWait {
    /// Wait.
    Block,
    /// NOWAIT: 55P03.
    Fail,
    /// SKIP LOCKED.
    Skip,
}

/// FOR UPDATE and its kin.
#[derive(Debug, Clone)]
pub struct LockingClause {
    /// Strength.
    pub strength: RowLock,
    /// OF tables; empty: all.
    pub of: Vec<Ident>,
    /// NOWAIT, SKIP LOCKED.
    pub wait: LockWait,
}

/// Modes of LOCK TABLE, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableLock {
    /// ACCESS SHARE.
    AccessShare,
    /// ROW SHARE.
    RowShare,
    /// ROW EXCLUSIVE.
    RowExclusive,
    /// SHARE UPDATE EXCLUSIVE.
    ShareUpdateExclusive,
    /// SHARE.
    Share,
    /// SHARE ROW EXCLUSIVE.
    ShareRowExclusive,
    /// EXCLUSIVE.
    Exclusive,
    /// ACCESS EXCLUSIVE.
    AccessExclusive,
}

/// Where FETCH and MOVE go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchTo {
    /// NEXT, FORWARD n, BACKWARD n (negative), PRIOR.
    Forward(i64),
    /// ALL, FORWARD ALL.
    All,
    /// BACKWARD ALL.
    BackwardAll,
    /// FIRST, LAST, ABSOLUTE n: one row, counted from the start, or from the end if negative.
    Absolute(i64),
    /// RELATIVE n: one row.
    Relative(i64),
}

/// A statement of the extension grammar.
#[derive(Debug, Clone)]
pub enum ExtStatement {
    /// CREATE VIEW or MATERIALIZED VIEW.
    CreateView(CreateView),
    /// CREATE SOURCE.
    CreateSource(CreateSource),
    /// CREATE TABLE with a connector.
    CreateFedTable(Box<CreateFedTable>),
    /// CREATE SINK.
    CreateSink(CreateSink),
    /// DROP.
    Drop(Drop),
    /// CREATE TABLE with LIKE clauses.
    CreateTableLike(Box<sqlparser::ast::CreateTable>, Vec<Like>),
    /// ALTER, schemas, sequences, comments.
    Definition(Box<Definition>),
    /// COPY.
    Copy(Box<Copy>),
    /// CREATE TABLE … AS.
    CreateTableAs(CreateAs),
    /// MERGE.
    Merge(Box<Merge>),
    /// TRUNCATE.
    Truncate {
        /// Tables.
        names: Vec<ObjectName>,
        /// RESTART IDENTITY.
        restart_identity: bool,
        /// CASCADE.
        cascade: bool,
    },
    /// SELECT … FOR UPDATE and its kin.
    SelectLocking {
        /// The query without its locking clauses.
        query: Box<Query>,
        /// The clauses.
        clauses: Vec<LockingClause>,
    },
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    Release(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackTo(String),
    /// LOCK TABLE.
    LockTable {
        /// Tables.
        names: Vec<ObjectName>,
        /// Mode.
        mode: TableLock,
        /// NOWAIT.
        nowait: bool,
    },
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
        query: Box<Query>,
    },
    /// FETCH, MOVE.
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
    /// EXPLAIN.
    Explain {
        /// ANALYZE.
        analyze: bool,
        /// (STREAM): show the stream plan of a query.
        stream: bool,
        /// The statement.
        statement: Box<Parsed>,
    },
    /// PREPARE.
    Prepare {
        /// Name.
        name: String,
        /// Declared types.
        types: Vec<DataType>,
        /// The statement.
        statement: Box<Parsed>,
    },
    /// EXECUTE.
    Execute {
        /// Name.
        name: String,
        /// Arguments.
        args: Vec<Expr>,
    },
    /// SET; `value: None` is DEFAULT.
    Set {
        /// Setting, lower case.
        name: String,
        /// Value as text.
        value: Option<String>,
        /// LOCAL.
        local: bool,
    },
    /// SHOW name, or SHOW ALL.
    Show(Option<String>),
    /// RESET name, or RESET ALL.
    Reset(Option<String>),
    /// BEGIN, START TRANSACTION.
    Begin {
        /// READ ONLY.
        read_only: bool,
        /// ISOLATION LEVEL, lower case.
        isolation: Option<String>,
    },
    /// COMMIT, END.
    Commit,
    /// ROLLBACK, ABORT.
    Rollback,
    /// DEALLOCATE name, or ALL.
    Deallocate(Option<String>),
    /// DISCARD.
    Discard(&'static str),
    /// FLUSH.
    Flush,
    /// REFRESH, PAUSE, RESUME, CANCEL JOB, SHOW JOBS.
    Job(super::jobs::JobStatement),
    /// Accepted without effect.
    NoOp(&'static str),
    /// Known to PostgreSQL, refused: what it is, and what to write instead.
    Unsupported {
        /// Names the construct.
        what: String,
        /// Advice.
        hint: String,
    },
}
