//! Random tables, changes and queries: a view equals its query at every epoch (I1), the faults planted in operators are found.

use levee_sql_tests::generate::{self, Model, Op, QueryGen};
use levee_sql_tests::postgres::Postgres;

/// The generator's SQL is PostgreSQL's: every query runs there, and enough of them answer something.
#[test]
fn generated_queries_run_on_postgres() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("tokio runtime");
    runtime.block_on(async {
        let postgres = Postgres::start();
        let (mut filled, mut all) = (0, 0);
        for seed in 0..12 {
            let mut rng = generate::rng(seed);
            let tables = generate::tables(&mut rng);
            let session = postgres.database(&format!("world{seed}")).await;
            for table in &tables {
                session.exec(&table.create()).await.expect("create table");
            }
            let mut model = Model::new(tables);
            for _ in 0..25 {
                let change = model.change(&mut rng);
                for sql in change.postgres_sql(&model.tables) {
                    session.exec(&sql).await.unwrap_or_else(|e| panic!("{e}\n{sql}"));
                }
            }
            for op in Op::ALL {
                let query = QueryGen::new(&model.tables, &mut rng).query(op);
                let rows = session
                    .try_query(&query.sql)
                    .await
                    .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", query.sql));
                assert_eq!(
                    rows.columns,
                    query.columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>()
                );
                filled += usize::from(!rows.rows.is_empty());
                all += 1;
            }
        }
        assert!(filled * 10 >= all * 7, "only {filled} of {all} queries answer anything");
    });
}
