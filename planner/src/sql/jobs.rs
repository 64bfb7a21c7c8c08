//! Statements about streaming jobs: REFRESH, PAUSE and RESUME, CANCEL JOB, SHOW JOBS, and those about sources that run.
//!
//! ```text
//!   REFRESH MATERIALIZED VIEW [CONCURRENTLY] v [WITH [NO] DATA]
//!   ALTER {MATERIALIZED VIEW | SINK | SOURCE} x {PAUSE | RESUME}
//!   CANCEL {JOB | JOBS} id [, …]          SHOW JOBS
//!   ALTER {SOURCE | TABLE} x REPLAY DEAD LETTERS [AS NEWEST]
//!   ALTER {SOURCE | TABLE} x SET (option = value, …)
//! ```

use sqlparser::ast::ObjectName;
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::Binder;
use super::ast::ExtStatement;
use super::ext::{object_name, parenthesized_options, skip, word_is};
use super::parse::ParseContext;
use super::{Alter, Options};
use crate::catalog::{CatalogObject, CatalogOp, Encoding, ObjectKind, SourceDef, TableDef};
use crate::connectors::encode::changeable;
use crate::job::JobState;
use crate::plan::ObjectId;
use crate::{PlanError, Result};

/// A statement about jobs, as written.
#[derive(Debug, Clone)]
pub enum JobStatement {
    /// REFRESH MATERIALIZED VIEW.
    Refresh {
        /// The view.
        name: ObjectName,
        /// CONCURRENTLY.
        concurrently: bool,
        /// Not WITH NO DATA.
        data: bool,
    },
    /// ALTER … PAUSE, ALTER … RESUME.
    Alter {
        /// The kind named.
        kind: &'static str,
        /// The object.
        name: ObjectName,
        /// PAUSE.
        pause: bool,
    },
    /// CANCEL JOBS.
    Cancel(Vec<u32>),
    /// SHOW JOBS.
    Show,
    /// ALTER … REPLAY DEAD LETTERS.
    Replay {
        /// `source` or `table`.
        kind: &'static str,
        /// The object.
        name: ObjectName,
        /// AS NEWEST.
        as_newest: bool,
    },
    /// ALTER … SET (…) of a source, or of a table, which may have a connector.
    SetOptions {
        /// `source` or `table`.
        kind: &'static str,
        /// The object.
        name: ObjectName,
        /// Options.
        options: Options,
    },
}

/// A statement about jobs, bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAction {
    /// Answer when the view holds everything committed before; build it if it is not populated.
    Refresh(ObjectId),
    /// Empty the view; it is not kept any more.
    Empty(ObjectId),
    /// Take no further steps.
    Pause(ObjectId),
    /// Go on; build it anew if it had failed.
    Resume(ObjectId),
    /// End the building of these.
    Cancel(Vec<ObjectId>),
    /// Jobs that are being built.
    Show,
    /// Decode dead letters again.
    Replay {
        /// The source, or table with a connector.
        id: ObjectId,
        /// They count as the newest records of their keys.
        as_newest: bool,
    },
}

/// Reads the statement if it is one of these; otherwise leaves the cursor at its start.
pub(super) fn parse(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<ExtStatement>> {
    let words: Vec<String> = (0..4).map(|n| word(p, n)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let statement = match words.as_slice() {
        ["refresh", "materialized", "view", _] => refresh(p, cx)?,
        ["cancel", "job" | "jobs", ..] => cancel(p, cx)?,
        ["show", "jobs", "", _] => {
            skip(p, 2);
            JobStatement::Show
        }
        ["alter", "materialized", "view", _] => match alter(p, cx, "materialized view", 3)? {
            Some(statement) => statement,
            None => return Ok(None),
        },
        ["alter", "source", ..] if is_of_source(p) => of_source(p, cx, "source")?,
        ["alter", "table", ..] if is_of_source(p) => of_source(p, cx, "table")?,
        ["alter", kind @ ("sink" | "source"), ..] => {
            let kind = if *kind == "sink" { "sink" } else { "source" };
            match alter(p, cx, kind, 2)? {
                Some(statement) => statement,
                None => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(ExtStatement::Job(statement)))
}

fn word(p: &Parser<'_>, n: usize) -> String {
    match &p.peek_nth_token_ref(n).token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_lowercase(),
        Token::EOF => String::new(),
        t => t.to_string(),
    }
}

fn refresh(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<JobStatement> {
    skip(p, 3);
    let concurrently = p.parse_keyword(Keyword::CONCURRENTLY);
    let name = p.parse_object_name(false).map_err(|e| cx.error(e))?;
    let data = with_data(p, cx)?;
    Ok(JobStatement::Refresh {
        name,
        concurrently,
        data,
    })
}

/// `[WITH [NO] DATA]`; answers whether there shall be data.
pub(super) fn with_data(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<bool> {
    if !p.parse_keyword(Keyword::WITH) {
        return Ok(true);
    }
    let data = !p.parse_keyword(Keyword::NO);
    if !word_is(p, "data") {
        return Err(cx.error_here(p));
    }
    skip(p, 1);
    Ok(data)
}

fn cancel(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<JobStatement> {
    skip(p, 2);
    let mut ids = Vec::new();
    loop {
        match &p.peek_token_ref().token {
            Token::Number(digits, false) => {
                let id = digits.parse();
                ids.push(id.map_err(|_| PlanError::new("22003", format!("job number {digits} is out of range")))?);
            }
            _ => return Err(cx.error_here(p)),
        }
        skip(p, 1);
        if !p.consume_token(&Token::Comma) {
            return Ok(JobStatement::Cancel(ids));
        }
    }
}

/// Other ALTER statements are read elsewhere: the last word tells these apart.
fn alter(p: &mut Parser<'_>, cx: &ParseContext<'_>, kind: &'static str, words: usize) -> Result<Option<JobStatement>> {
    let mut end = words;
    while p.peek_nth_token_ref(end).token != Token::EOF {
        end += 1;
    }
    let pause = match word(p, end - 1).as_str() {
        "pause" if end > words + 1 => true,
        "resume" if end > words + 1 => false,
        _ => return Ok(None),
    };
    skip(p, words);
    let name = p.parse_object_name(false).map_err(|e| cx.error(e))?;
    if !word_is(p, if pause { "pause" } else { "resume" }) {
        return Err(cx.error_here(p));
    }
    skip(p, 1);
    Ok(Some(JobStatement::Alter { kind, name, pause }))
}

/// `ALTER kind name` goes on with `REPLAY DEAD` or `SET (`.
fn is_of_source(p: &Parser<'_>) -> bool {
    if matches!(word(p, 2).as_str(), "if" | "only") {
        return false;
    }
    let mut next = 3;
    while p.peek_nth_token_ref(next).token == Token::Period {
        next += 2;
    }
    match word(p, next).as_str() {
        "set" => p.peek_nth_token_ref(next + 1).token == Token::LParen,
        "replay" => word(p, next + 1) == "dead",
        _ => false,
    }
}

fn of_source(p: &mut Parser<'_>, cx: &ParseContext<'_>, kind: &'static str) -> Result<JobStatement> {
    skip(p, 2);
    let name = p.parse_object_name(false).map_err(|e| cx.error(e))?;
    if word_is(p, "set") {
        skip(p, 1);
        let options = parenthesized_options(p, cx)?;
        return Ok(JobStatement::SetOptions { kind, name, options });
    }
    for expected in ["replay", "dead", "letters"] {
        if !word_is(p, expected) {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
    }
    let as_newest = p.parse_keyword(Keyword::AS);
    if as_newest {
        if !word_is(p, "newest") {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
    }
    Ok(JobStatement::Replay { kind, name, as_newest })
}

/// The definition of what a source is, or a table ingests from.
fn source_of(kind: &ObjectKind) -> Option<&SourceDef> {
    match kind {
        ObjectKind::Source(def) => Some(def),
        ObjectKind::Table(table) => table.ingest.as_ref().map(|i| &i.source),
        _ => None,
    }
}

impl Binder {
    /// ALTER … SET (…): options of ENCODE that may change while records are read. Tables without a connector take storage parameters, which
    /// have no effect.
    pub(super) fn set_options(&self, kind: &str, name: &ObjectName, options: &Options) -> Result<Alter> {
        let object = self.job_object(name, kind)?;
        let tag = if kind == "source" {
            "ALTER SOURCE"
        } else {
            "ALTER TABLE"
        };
        let mut alter = Alter {
            tag,
            ..Alter::default()
        };
        if source_of(&object.kind).is_none() {
            return Ok(alter);
        }
        let mut changed = object.clone();
        let def = match &mut changed.kind {
            ObjectKind::Source(def) => def,
            ObjectKind::Table(TableDef {
                ingest: Some(ingest), ..
            }) => &mut ingest.source,
            _ => return Err(PlanError::internal("a source without a definition")),
        };
        let known = changeable(def.encode);
        for (option, value) in options {
            if !known.contains(&option.as_str()) {
                let hint = match known {
                    [] => "Nothing about its records can be changed: create it again.".to_owned(),
                    _ => format!("SET changes {}; create the source again for others.", known.join(", ")),
                };
                return Err(PlanError::unsupported(format!(
                    "option \"{option}\" of \"{}\" cannot be changed",
                    object.name
                ))
                .hint(hint));
            }
            def.encode_options.insert(option.clone(), value.clone());
        }
        crate::connectors::check(def)?;
        def.revision += 1;
        alter.ops.push(CatalogOp::Replace(changed));
        Ok(alter)
    }

    /// REFRESH, PAUSE, RESUME, CANCEL, SHOW JOBS.
    pub(super) fn job(&self, statement: &JobStatement) -> Result<JobAction> {
        match statement {
            JobStatement::Show => Ok(JobAction::Show),
            JobStatement::Cancel(ids) => Ok(JobAction::Cancel(ids.iter().map(|id| ObjectId(*id)).collect())),
            JobStatement::Refresh {
                name,
                concurrently,
                data,
            } => {
                let object = self.job_object(name, "materialized view")?;
                match (concurrently, data) {
                    (true, false) => Err(PlanError::new(
                        "42601",
                        "REFRESH options CONCURRENTLY and WITH NO DATA cannot be used together",
                    )),
                    (true, true) if *self.catalog.job(object.id) == JobState::Unpopulated => Err(PlanError::new(
                        "0A000",
                        "CONCURRENTLY cannot be used when the materialized view is not populated",
                    )),
                    (_, true) => Ok(JobAction::Refresh(object.id)),
                    (false, false) => self.empty(object),
                }
            }
            JobStatement::Alter { kind, name, pause } => {
                let id = self.job_object(name, kind)?.id;
                Ok(if *pause {
                    JobAction::Pause(id)
                } else {
                    JobAction::Resume(id)
                })
            }
            JobStatement::Replay { kind, name, as_newest } => {
                let object = self.job_object(name, kind)?;
                let def = source_of(&object.kind).ok_or_else(|| {
                    PlanError::new("42809", format!("table \"{}\" has no connector", object.name))
                        .hint("Only what reads records has dead letters.")
                })?;
                if !matches!(def.encode, Encoding::Json | Encoding::Csv) {
                    return Err(PlanError::unsupported(format!(
                        "the records of \"{}\" cannot be decoded again",
                        object.name
                    ))
                    .hint("Mend the files, and create the source again."));
                }
                if !def.key.is_empty() && !as_newest {
                    return Err(PlanError::unsupported(format!(
                        "a replay cannot put records of \"{}\" back to their places among the others of their keys",
                        object.name
                    ))
                    .hint(
                        "REPLAY DEAD LETTERS AS NEWEST lets each count as the newest record of its key, also where a later one was \
                         read; a source that is created anew reads all in order.",
                    ));
                }
                Ok(JobAction::Replay {
                    id: object.id,
                    as_newest: *as_newest,
                })
            }
            JobStatement::SetOptions { .. } => Err(PlanError::internal("SET is not a job's statement")),
        }
    }

    fn empty(&self, object: &CatalogObject) -> Result<JobAction> {
        if let Some(reader) = self.catalog.dependents(object.id).first() {
            return Err(PlanError::new(
                "2BP01",
                format!(
                    "cannot empty materialized view \"{}\" because other objects depend on it",
                    object.name
                ),
            )
            .detail(format!("{} \"{}\" reads it.", reader.kind_name(), reader.name))
            .hint("What depends on a view follows it: drop that first."));
        }
        Ok(JobAction::Empty(object.id))
    }

    fn job_object(&self, name: &ObjectName, kind: &str) -> Result<&CatalogObject> {
        let (schema, n) = object_name(name)?;
        let object = self
            .object(schema.as_deref(), &n)
            .ok_or_else(|| PlanError::new("42P01", format!("relation \"{n}\" does not exist")))?;
        let fits = matches!(
            (kind, &object.kind),
            ("materialized view", ObjectKind::MaterializedView(_))
                | ("sink", ObjectKind::Sink(_))
                | ("source", ObjectKind::Source(_))
                | ("table", ObjectKind::Table(_))
        );
        if fits {
            return Ok(object);
        }
        Err(PlanError::new("42809", format!("\"{n}\" is not a {kind}")))
    }
}
