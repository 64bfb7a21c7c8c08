//! The simple protocol: a string of statements.

use levee_planner::sql::Parsed;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;

use super::Session;
use super::run::Outcome;
use super::txn::Txn;
use crate::error::Result;

impl Session {
    /// Runs a query string and answers ReadyForQuery.
    pub(super) async fn simple_query(&mut self, sql: &str) -> Result<()> {
        self.start_timer();
        // A simple query ends what the extended protocol left open, and the unnamed statement.
        self.statements.remove("");
        self.portals.remove("");
        self.commit_implicit().await?;
        let statements = self.parsed(sql).await?;
        if statements.is_empty() {
            self.put(&PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()))?;
        }
        let several = statements.len() > 1;
        for statement in &statements {
            if several {
                self.begin_implicit();
            }
            self.start_timer();
            let offset = statement.offset;
            self.simple_statement(statement).await.map_err(|e| e.shift(offset))?;
        }
        self.commit_implicit().await?;
        if !matches!(self.txn, Txn::Open(_)) {
            self.portals.clear();
        }
        self.ready().await
    }

    async fn simple_statement(&mut self, statement: &Parsed) -> Result<()> {
        self.server.metrics.statements.inc();
        match self.run_statement(statement, &[], &[], None).await? {
            Outcome::Tag(tag) => self.complete(tag),
            Outcome::Rows(mut rows) => {
                let formats = vec![rows.binary; rows.schema().fields().len()];
                self.describe_rows(rows.schema(), &formats)?;
                let n = self.send_rows(&mut rows, &formats, 0).await?;
                let tag = rows.tag(n);
                self.complete(tag)
            }
        }
    }
}
