//! A random case as a whole: tables, views over them, transactions; the views are compared with their queries at every epoch.

use levee_runtime::Delta;

use crate::db::{Bound, Db};
use crate::feed;
use crate::generate::{self, Change, Model, Op, Query, QueryGen, Value};
use crate::rows::Rows;

/// What to run.
#[derive(Debug, Clone)]
pub struct World {
    /// Fixes everything below.
    pub seed: u64,
    /// Tasks per fragment.
    pub parallelism: usize,
    /// Top operator of each view.
    pub tops: Vec<Op>,
    /// Transactions, each in an epoch of its own.
    pub epochs: usize,
    /// Stop and open again after half of the transactions.
    pub reopen: bool,
    /// See [`Model::float_scale`].
    pub float_scale: f64,
}

/// A view and what it showed over its life.
#[derive(Debug)]
pub struct Seen {
    /// Its query.
    pub query: Query,
    /// It had rows.
    pub filled: bool,
    /// It had NULLs.
    pub nulls: bool,
    /// It took rows back.
    pub retractions: bool,
    /// Its rows after each transaction since it was made, sorted.
    pub history: Vec<Rows>,
}

/// How it went.
#[derive(Debug)]
pub struct Report {
    /// Views.
    pub views: Vec<Seen>,
    /// First difference between a view and its query, if any.
    pub wrong: Option<String>,
}

impl World {
    /// Runs to the end or to the first difference.
    ///
    /// # Panics
    /// The engine refuses what it must take.
    pub async fn run(&self) -> Report {
        let mut rng = generate::rng(self.seed);
        let mut db = Db::new(self.parallelism);
        let mut model = Model::new(generate::tables(&mut rng));
        model.float_scale = self.float_scale;
        for table in &model.tables {
            db.exec(&table.create())
                .await
                .unwrap_or_else(|e| panic!("{e}\n{}", table.create()));
        }
        // All randomness is drawn before anything runs, so that a failure does not change what comes after it.
        let queries: Vec<Query> = self
            .tops
            .iter()
            .map(|op| QueryGen::new(&model.tables, &mut rng).query(*op))
            .collect();
        let changes: Vec<Change> = (0..self.epochs).map(|_| model.change(&mut rng)).collect();
        let early = queries.len().div_ceil(2);
        let mut views: Vec<(String, Bound)> = Vec::new();
        let mut seen = Vec::new();
        let mut wrong = None;
        for (epoch, change) in changes.iter().enumerate() {
            // Half of the views are made before the data, half in the midst of it.
            let made = match epoch {
                0 => &queries[..early],
                n if n == self.epochs / 3 => &queries[early..],
                _ => &[],
            };
            for query in made {
                let name = format!("v{}", views.len());
                match db
                    .exec(&format!("CREATE MATERIALIZED VIEW {name} AS {}", query.sql))
                    .await
                {
                    Ok(_) => views.push((name, db.bound(&query.sql).expect("bound as a view before"))),
                    Err(e) => wrong = Some(format!("seed {}: refused: {e}\n{}", self.seed, query.sql)),
                }
                seen.push(Seen {
                    query: query.clone(),
                    filled: false,
                    nulls: false,
                    retractions: false,
                    history: Vec::new(),
                });
            }
            if self.reopen && epoch == self.epochs / 2 {
                db = db.reopen().await;
            }
            let commit = to_commit(&db, &model, change);
            if !commit.is_empty() {
                db.commit(commit).await;
            }
            if wrong.is_none() {
                wrong = compare(&db, &views, &mut seen)
                    .await
                    .map(|e| format!("seed {}, after {} transactions: {e}", self.seed, epoch + 1));
            }
            if wrong.is_some() {
                break;
            }
        }
        db.close().await;
        Report { views: seen, wrong }
    }
}

fn to_commit(db: &Db, model: &Model, change: &Change) -> feed::Commit {
    let mut commit = Vec::new();
    for (t, table) in model.tables.iter().enumerate() {
        let rows: Vec<(&[Value], i64)> = change
            .rows
            .iter()
            .filter(|r| r.0 == t)
            .map(|r| (r.1.as_slice(), r.2))
            .collect();
        if !rows.is_empty() {
            let definition = db.table_named(&table.name);
            let delta = feed::delta(&definition.schema, &rows);
            let net = Delta::consolidate(&definition.schema, &[delta], &definition.primary_key).expect("consolidate");
            commit.push((table.name.clone(), net));
        }
    }
    commit
}

/// I1 at the newest epoch; also notes what the views show.
async fn compare(db: &Db, views: &[(String, Bound)], seen: &mut [Seen]) -> Option<String> {
    let compared = match db.compare(views, db.last_write()).await {
        Ok(compared) => compared,
        Err(e) => return Some(e),
    };
    for ((epoch, view, query), seen) in compared.into_iter().zip(seen) {
        if let Err(e) = view.same_as(&query, false) {
            return Some(format!(
                "view differs from its query at epoch {epoch}: {e}\n{}",
                seen.query.sql
            ));
        }
        let view = view.sorted();
        seen.filled |= !view.rows.is_empty();
        seen.nulls |= view.rows.iter().flatten().any(Option::is_none);
        seen.retractions |= seen.history.last().is_some_and(|before| lost_a_row(before, &view));
        seen.history.push(view);
    }
    None
}

/// Is a row of `before` (sorted) missing in `after`?
fn lost_a_row(before: &Rows, after: &Rows) -> bool {
    let mut rest: Vec<&Vec<Option<String>>> = after.rows.iter().collect();
    before.rows.iter().any(|row| match rest.iter().position(|r| *r == row) {
        Some(i) => {
            rest.swap_remove(i);
            false
        }
        None => true,
    })
}
