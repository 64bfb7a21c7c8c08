//! Case files: sqllogictest format, read with the `sqllogictest` crate's parser.
//!
//! A file creates tables and views, then mixes data statements with queries; each query is judged against the data statements
//! before it. Labels for `skipif`: `postgres` (PostgreSQL cannot run it) and `view` (the query is not a view, only a read), `batch`
//! (a known deviation of batch queries).
//! `statement error CODE` gives the SQLSTATE.

use std::path::{Path, PathBuf};

use sqllogictest::ColumnType;
use sqllogictest::parser::{Condition, ExpectedError, QueryExpect, Record, SortMode, StatementExpect};

use crate::rows::Rows;

/// Column types of a `query` line: `I` integer, `N` numeric, `R` float, `T` anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind(char);

impl ColumnType for Kind {
    fn from_char(value: char) -> Option<Self> {
        Some(Self(value))
    }

    fn to_char(&self) -> char {
        self.0
    }
}

/// What a record asks for.
#[derive(Debug, Clone)]
pub enum Action {
    /// CREATE or DROP.
    Ddl,
    /// INSERT, UPDATE, DELETE.
    Data,
    /// A statement that must fail with this SQLSTATE.
    Fails(String),
    /// A query.
    Query {
        /// Rows come in the query's order.
        ordered: bool,
        /// Expected lines.
        expected: Vec<String>,
        /// A column is a float.
        floats: bool,
    },
}

/// One record of a file.
#[derive(Debug, Clone)]
pub struct Item {
    /// Line of the file, from 1.
    pub line: u32,
    /// Statement.
    pub sql: String,
    /// What to do with it.
    pub action: Action,
    /// PostgreSQL cannot run it.
    pub skip_postgres: bool,
    /// Not to be kept as a view.
    pub skip_view: bool,
    /// A batch query is known to answer otherwise than the view and PostgreSQL.
    pub skip_batch: bool,
}

impl Item {
    /// The statement as PostgreSQL takes it: its materialized views do not follow their tables, its views do.
    pub fn postgres_sql(&self) -> String {
        self.sql.replace("CREATE MATERIALIZED VIEW", "CREATE VIEW")
    }
}

/// A case file.
#[derive(Debug, Clone)]
pub struct CaseFile {
    /// File stem.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Records in order.
    pub items: Vec<Item>,
}

impl CaseFile {
    /// The queries.
    pub fn queries(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|i| matches!(i.action, Action::Query { .. }))
    }
}

/// All files under `sql-tests/cases`, by name; `LEVEE_CASE` picks those whose name contains it.
///
/// # Panics
/// A file cannot be read.
pub fn load_all() -> Vec<CaseFile> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("cases directory")
        .map(|e| e.expect("directory entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "slt"))
        .collect();
    paths.sort();
    let wanted = std::env::var("LEVEE_CASE").unwrap_or_default();
    paths
        .iter()
        .map(|p| load(p))
        .filter(|f| f.name.contains(&wanted))
        .collect()
}

/// Reads one file.
///
/// # Panics
/// It does not parse, or uses a part of the format that this runner does not have.
pub fn load(path: &Path) -> CaseFile {
    let records = sqllogictest::parse_file::<Kind>(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut items = Vec::new();
    for record in records {
        match record {
            Record::Statement {
                loc,
                conditions,
                sql,
                expected,
                ..
            } => {
                let action = match expected {
                    StatementExpect::Error(ExpectedError::Inline(code)) => Action::Fails(code.as_str().to_string()),
                    StatementExpect::Error(_) => panic!("{loc}: give the SQLSTATE after `error`"),
                    _ if is_ddl(&sql) => Action::Ddl,
                    _ => Action::Data,
                };
                items.push(item(loc.line(), sql, action, &conditions));
            }
            Record::Query {
                loc,
                conditions,
                sql,
                expected,
                ..
            } => {
                let QueryExpect::Results {
                    types,
                    sort_mode,
                    results,
                    ..
                } = expected
                else {
                    panic!("{loc}: write a failing query as `statement error CODE`")
                };
                let ordered = sort_mode == Some(SortMode::NoSort);
                let action = Action::Query {
                    ordered,
                    expected: results,
                    floats: types.contains(&Kind('R')),
                };
                items.push(item(loc.line(), sql, action, &conditions));
            }
            Record::Comment(_) | Record::Newline | Record::Condition(_) => {}
            other => panic!("{}: unexpected record {other:?}", path.display()),
        }
    }
    CaseFile {
        name: path.file_stem().expect("file stem").to_string_lossy().into_owned(),
        path: path.to_path_buf(),
        items,
    }
}

fn is_ddl(sql: &str) -> bool {
    let word = sql.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    matches!(word.as_str(), "CREATE" | "DROP")
}

fn item(line: u32, sql: String, action: Action, conditions: &[Condition]) -> Item {
    let skips = |wanted: &str| {
        conditions
            .iter()
            .any(|c| matches!(c, Condition::SkipIf { label } if label == wanted))
    };
    Item {
        line,
        sql,
        action,
        skip_postgres: skips("postgres"),
        skip_view: skips("view"),
        skip_batch: skips("batch"),
    }
}

/// Are the rows those that the file expects?
///
/// # Errors
/// The difference.
pub fn check_lines(rows: &Rows, expected: &[String], ordered: bool, floats: bool) -> Result<(), String> {
    let tokens = |lines: Vec<String>| Rows {
        columns: Vec::new(),
        rows: lines
            .iter()
            .map(|l| l.split_whitespace().map(|t| Some(t.to_string())).collect())
            .collect(),
        floats,
    };
    tokens(rows.lines()).same_as(&tokens(expected.to_vec()), ordered)
}

/// Puts new results (types and rows, one per `query` record in order; `None` keeps the old ones) into a file's text.
pub fn with_results(text: &str, results: &[Option<(String, Vec<String>)>]) -> String {
    let mut out = Vec::new();
    let mut next = results.iter();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("query ") else {
            out.push(line.to_string());
            continue;
        };
        let result = next.next().and_then(Option::as_ref);
        match (result, head.split_once(' ')) {
            (Some((types, _)), Some((_, rest))) => out.push(format!("query {types} {rest}")),
            _ => out.push(line.to_string()),
        }
        for line in lines.by_ref() {
            out.push(line.to_string());
            if line == "----" {
                break;
            }
        }
        for line in lines.by_ref() {
            if line.is_empty() {
                break;
            }
            if result.is_none() {
                out.push(line.to_string());
            }
        }
        if let Some((_, rows)) = result {
            out.extend(rows.iter().cloned());
        }
        out.push(String::new());
    }
    while out.last().is_some_and(String::is_empty) {
        out.pop();
    }
    out.join("\n") + "\n"
}
