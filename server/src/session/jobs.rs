//! Statements about streaming jobs: REFRESH, PAUSE, RESUME, CANCEL JOBS, SHOW JOBS, and how CREATE waits.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use levee_planner::sql::JobAction;
use levee_runtime::coordinator::CreateMode;

use super::Session;
use super::query::Rows;
use super::run::{Outcome, text_rows};
use crate::error::{Result, SqlError};

impl Session {
    /// How a CREATE of a materialized view or sink is to be answered.
    pub(super) fn create_mode(&self, no_data: bool) -> CreateMode {
        if no_data {
            CreateMode::NoData
        } else if self.settings.is_on("background_ddl") {
            CreateMode::Background
        } else {
            CreateMode::Wait
        }
    }

    /// Runs a statement about jobs.
    pub(super) async fn run_job(&mut self, action: JobAction) -> Result<Outcome> {
        let engine = Arc::clone(&self.server.engine);
        let wait = !self.settings.is_on("background_ddl");
        let kind = |id| engine.catalog().get(id).map_or("JOB", |o| o.kind_name()).to_uppercase();
        match action {
            JobAction::Show => Ok(Outcome::Rows(self.jobs().await?)),
            JobAction::Refresh(id) => {
                self.before_ddl("REFRESH MATERIALIZED VIEW").await?;
                self.guarded(async { Ok(engine.refresh(id, wait).await?) }).await?;
                Ok(Outcome::Tag("REFRESH MATERIALIZED VIEW".to_owned()))
            }
            JobAction::Empty(id) => {
                self.before_ddl("REFRESH MATERIALIZED VIEW").await?;
                self.guarded(async { Ok(engine.empty(id).await?) }).await?;
                Ok(Outcome::Tag("REFRESH MATERIALIZED VIEW".to_owned()))
            }
            JobAction::Pause(id) => {
                let tag = format!("ALTER {}", kind(id));
                self.before_ddl(&tag).await?;
                let changed = self.guarded(async { Ok(engine.pause(id).await?) }).await?;
                self.told(changed, "it is paused already")?;
                Ok(Outcome::Tag(tag))
            }
            JobAction::Resume(id) => {
                let tag = format!("ALTER {}", kind(id));
                self.before_ddl(&tag).await?;
                let changed = self.guarded(async { Ok(engine.resume(id, wait).await?) }).await?;
                self.told(changed, "it is not paused")?;
                Ok(Outcome::Tag(tag))
            }
            JobAction::Replay { id, .. } => {
                let tag = format!("ALTER {}", kind(id));
                self.before_ddl(&tag).await?;
                let outcome = self
                    .guarded(async { Ok(engine.replay_dead_letters(id).await?) })
                    .await?;
                self.last_write = self.last_write.max(outcome.epoch);
                let told = format!(
                    "{} dead letters were replayed, {} cannot be decoded",
                    outcome.replayed, outcome.kept
                );
                self.notice(&SqlError::notice("00000", &told))?;
                Ok(Outcome::Tag(tag))
            }
            JobAction::Cancel(ids) => {
                self.before_ddl("CANCEL JOBS").await?;
                let names = self.guarded(async { Ok(engine.cancel_jobs(&ids).await?) }).await?;
                Ok(Outcome::Rows(text_rows("name", names, "CANCEL JOBS")?))
            }
        }
    }

    fn told(&mut self, changed: bool, otherwise: &str) -> Result<()> {
        if changed {
            return Ok(());
        }
        self.notice(&SqlError::notice("00000", otherwise))
    }

    /// SHOW JOBS: what is being built.
    async fn jobs(&mut self) -> Result<Rows> {
        let engine = Arc::clone(&self.server.engine);
        // The engine answers from its own thread; other sessions must not wait for that.
        let rows = tokio::task::spawn_blocking(move || engine.status("ddl_progress"));
        let rows = rows.await.map_err(|e| SqlError::internal(e.to_string()))?;
        let number = |row: &Vec<Option<String>>, c: usize| row.get(c).cloned().flatten().and_then(|n| n.parse().ok());
        let ids: Int64Array = rows.iter().map(|row| number(row, 0)).collect();
        let text = |c: usize| -> ArrayRef {
            let texts: StringArray = rows.iter().map(|row| row.get(c).cloned().flatten()).collect();
            Arc::new(texts)
        };
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(ids)),
            ("name", text(1)),
            ("statement", text(2)),
            ("mode", text(7)),
            ("progress", text(3)),
        ];
        let fields: Vec<Field> = columns
            .iter()
            .map(|(name, a)| Field::new(*name, a.data_type().clone(), true))
            .collect();
        let arrays = columns.into_iter().map(|(_, a)| a).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        Ok(Rows::of_batch(batch, "SHOW"))
    }
}
