//! Values of every type, in text and binary, in and out.

use crate::harness::{fresh, rows};

const TABLE: &str = "CREATE TABLE v (b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, p numeric(10,2), t text, \
     c varchar(5), y bytea, d date, ts timestamp, tz timestamptz, iv interval)";

const LINE: &str = "t|-2|3|9000000000|0.1|1e+100|12345678901234567890.125|12.30|ä|abc|\\x00ff|2013-01-02|2013-01-02 03:04:05.678|2013-01-02 03:04:05+00|1 year 2 mons 3 days 04:05:06";

const INSERT: &str = "INSERT INTO v VALUES (true, -2, 3, 9000000000, 0.1, '1e100', 12345678901234567890.125, 12.3, 'ä', 'abc', '\\x00ff', \
     '2013-01-02', '2013-01-02 03:04:05.678', '2013-01-02 03:04:05+00', '1 year 2 mons 3 days 04:05:06')";

#[tokio::test(flavor = "multi_thread")]
async fn text_is_postgresqls() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client.batch_execute(TABLE).await.expect("create");
    client.batch_execute(INSERT).await.expect("insert");
    assert_eq!(rows(&client, "SELECT * FROM v").await, [LINE]);
    client
        .batch_execute("INSERT INTO v (b) VALUES (NULL)")
        .await
        .expect("nulls");
    assert_eq!(
        rows(&client, "SELECT * FROM v WHERE i4 IS NULL").await,
        [["~"; 15].join("|")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn binary_round_trips() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    client
        .batch_execute("CREATE TABLE b (b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, t text, y bytea)")
        .await
        .expect("create");
    let bytes: &[u8] = b"\0\xff";
    client
        .execute(
            "INSERT INTO b VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &true,
                &-2i16,
                &3i32,
                &9_000_000_000i64,
                &0.1f32,
                &1e100f64,
                &"ä",
                &bytes,
            ],
        )
        .await
        .expect("insert");
    let row = client.query_one("SELECT * FROM b", &[]).await.expect("row");
    assert!(row.get::<_, bool>(0));
    assert_eq!(row.get::<_, i16>(1), -2);
    assert_eq!(row.get::<_, i32>(2), 3);
    assert_eq!(row.get::<_, i64>(3), 9_000_000_000);
    assert!((row.get::<_, f32>(4) - 0.1).abs() < f32::EPSILON);
    assert!((row.get::<_, f64>(5) / 1e100 - 1.0).abs() < f64::EPSILON);
    assert_eq!(row.get::<_, String>(6), "ä");
    assert_eq!(row.get::<_, Vec<u8>>(7), bytes);
    // Dates and timestamps, through their binary form.
    let when = std::time::UNIX_EPOCH + std::time::Duration::from_micros(1_357_095_845_678_000);
    let row = client
        .query_one("SELECT $1::timestamp, $2::timestamptz", &[&when, &when])
        .await
        .expect("row");
    assert_eq!(row.get::<_, std::time::SystemTime>(0), when);
    assert_eq!(row.get::<_, std::time::SystemTime>(1), when);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_named_as_postgresql_names_them() {
    let (_dir, levee) = fresh();
    let client = levee.connect().await;
    let statement = client
        .prepare("SELECT 1, 2, count(*), 'x' AS \"X y\", now() FROM (VALUES (1)) AS v(a)")
        .await
        .expect("prepare");
    let names: Vec<&str> = statement.columns().iter().map(tokio_postgres::Column::name).collect();
    assert_eq!(names, ["?column?", "?column?", "count", "X y", "now"]);
}
