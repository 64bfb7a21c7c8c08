//! Statements that sqlparser's grammar lacks, or reads in another way than PostgreSQL and the streaming dialect do.

use sqlparser::ast::{ColumnDef, CreateTable, DataType, Expr, Ident, ObjectName, Query, TableConstraint};

use super::alter::Definition;
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

/// COPY table [(columns)] FROM STDIN.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Table.
    pub table: ObjectName,
    /// Columns, if listed.
    pub columns: Vec<Ident>,
    /// Options in the order written, names lower case.
    pub options: Vec<(String, Option<String>)>,
}

/// A statement of the extension grammar.
#[derive(Debug, Clone)]
pub enum ExtStatement {
    /// CREATE VIEW or MATERIALIZED VIEW.
    CreateView(CreateView),
    /// CREATE SOURCE.
    CreateSource(CreateSource),
    /// CREATE TABLE with a connector.
    CreateFedTable(CreateFedTable),
    /// CREATE SINK.
    CreateSink(CreateSink),
    /// DROP.
    Drop(Drop),
    /// ALTER, schemas, sequences, comments.
    Definition(Box<Definition>),
    /// COPY FROM STDIN.
    Copy(Copy),
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
    Discard,
    /// FLUSH.
    Flush,
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
