//! Statements about streaming jobs: REFRESH, PAUSE and RESUME, CANCEL JOB, SHOW JOBS.
//!
//! ```text
//!   REFRESH MATERIALIZED VIEW [CONCURRENTLY] v [WITH [NO] DATA]
//!   ALTER {MATERIALIZED VIEW | SINK | SOURCE} x {PAUSE | RESUME}
//!   CANCEL {JOB | JOBS} id [, …]          SHOW JOBS
//! ```

use sqlparser::ast::ObjectName;
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::Binder;
use super::ast::ExtStatement;
use super::ext::{object_name, skip, word_is};
use super::parse::ParseContext;
use crate::catalog::{CatalogObject, ObjectKind};
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

impl Binder {
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
        );
        if fits {
            return Ok(object);
        }
        Err(PlanError::new("42809", format!("\"{n}\" is not a {kind}")))
    }
}
