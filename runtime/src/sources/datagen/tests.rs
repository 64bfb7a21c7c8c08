use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type, Schema, TimestampMicrosecondType};
use levee_planner::catalog::{Encoding, SourceDef, SourceFormat};
use levee_planner::sql::types;

use crate::sources::{CutRequest, RangePoll, Share, SourceDriver, SplitRange};

const COLUMNS: [&str; 14] = [
    "id", "i2", "i4", "i8", "f4", "f8", "n", "d", "t", "v", "b", "day", "at", "gap",
];

fn source(options: &[(&str, &str)]) -> SourceDef {
    let types = [
        DataType::Int64,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        types::BARE_NUMERIC,
        DataType::Decimal128(6, 2),
        DataType::Utf8,
        DataType::Binary,
        DataType::Boolean,
        DataType::Date32,
        types::timestamp(),
        types::interval(),
    ];
    let fields: Vec<Field> = COLUMNS
        .iter()
        .zip(types)
        .map(|(name, t)| Field::new(*name, t, true))
        .collect();
    let mut all: BTreeMap<String, String> = [
        ("fields.id.kind", "sequence"),
        ("fields.d.min", "-1"),
        ("fields.d.max", "9.99"),
        ("fields.t.length", "5"),
        ("fields.at.max_past", "1 minute"),
        ("datagen.base.time", "2024-01-01 00:00:00"),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .collect();
    all.extend(options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    SourceDef {
        schema: Arc::new(Schema::new(fields)),
        connector: "datagen".into(),
        options: all,
        format: SourceFormat::Native,
        encode: Encoding::Native,
        encode_options: BTreeMap::new(),
        includes: BTreeMap::new(),
        key: Vec::new(),
        revision: 0,
    }
}

fn start(def: &SourceDef) -> Arc<dyn SourceDriver> {
    let driver = super::driver(def).unwrap();
    for (number, info) in (0u32..).zip(super::discover(def).unwrap()) {
        driver.add_split(number, &info).unwrap();
    }
    driver
}

fn read(driver: &Arc<dyn SourceDriver>, range: &SplitRange, share: Share, projection: &[usize]) -> RecordBatch {
    let mut reader = driver.open(range, share, projection).unwrap();
    let schema = Arc::new(driver.schema().project(projection).unwrap());
    let mut batches = Vec::new();
    while let RangePoll::Ready(delta) = reader.poll(Waker::noop()).unwrap() {
        batches.push(delta.batch);
    }
    concat_batches(&schema, &batches).unwrap()
}

#[test]
fn any_cut_share_and_projection_gives_the_same_values() {
    let driver = start(&source(&[("datagen.split.num", "3")]));
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    let whole = read(&driver, &SplitRange::unchecked(1, 5, 20_005), Share::ALL, &all);
    assert_eq!(whole.num_rows(), 20_000);
    for (of, cut) in [(1, 7), (3, 8192), (4, 19_999)] {
        let mut parts = Vec::new();
        for range in [
            SplitRange::unchecked(1, 5, 5 + cut),
            SplitRange::unchecked(1, 5 + cut, 20_005),
        ] {
            for index in 0..of {
                parts.push(read(&driver, &range, Share { index, of }, &all));
            }
        }
        assert_eq!(concat_batches(&whole.schema(), &parts).unwrap(), whole, "{of} {cut}");
    }
    for column in all {
        let one = read(&driver, &SplitRange::unchecked(1, 5, 20_005), Share::ALL, &[column]);
        assert_eq!(one.column(0), whole.column(column), "{}", COLUMNS[column]);
    }
    let other = start(&source(&[("datagen.split.num", "3"), ("datagen.seed", "1")]));
    let other = read(&other, &SplitRange::unchecked(1, 5, 20_005), Share::ALL, &[2, 3]);
    assert_ne!(other.column(0), whole.column(2));
    assert_ne!(other.column(1), whole.column(3));
}

#[test]
fn values_keep_to_their_options() {
    let driver = start(&source(&[("datagen.rows.per.second", "4"), ("datagen.split.num", "2")]));
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    let rows = read(&driver, &SplitRange::unchecked(1, 0, 10_000), Share::ALL, &all);
    let ids = rows.column(0).as_primitive::<Int64Type>();
    assert!((0..10_000).all(|i| ids.value(i as usize) == 2 * i + 1));
    let ints = rows.column(3).as_primitive::<Int64Type>().values();
    assert_eq!((ints.iter().min(), ints.iter().max()), (Some(&0), Some(&1000)));
    let decimals = rows.column(7).as_primitive::<Decimal128Type>().values();
    assert_eq!(
        (decimals.iter().min(), decimals.iter().max()),
        (Some(&-100), Some(&999))
    );
    let floats = rows.column(5).as_primitive::<Float64Type>().values();
    assert!(floats.iter().all(|f| (0.0..=1000.0).contains(f)));
    let mean = floats.iter().sum::<f64>() / 10_000.0;
    assert!((490.0..510.0).contains(&mean), "{mean}");
    let texts = rows.column(8).as_string::<i32>();
    assert!((0..10_000).all(|i| texts.value(i).len() == 5 && texts.value(i).bytes().all(|b| b.is_ascii_lowercase())));
    let distinct: std::collections::BTreeSet<&str> = texts.iter().flatten().collect();
    assert!(distinct.len() > 9_900, "{}", distinct.len());
    let base = 1_704_067_200_000_000_i64;
    let times = rows.column(12).as_primitive::<TimestampMicrosecondType>();
    assert!((0..10_000).all(|i| {
        let own = base + (2 * i + 1) * 250_000;
        (own - 60_000_000..=own).contains(&times.value(i as usize))
    }));
    assert!(rows.columns().iter().all(|c| c.null_count() == 0));
}

#[test]
fn rows_become_due_and_end() {
    let driver = start(&source(&[
        ("datagen.rows.per.second", "100"),
        ("datagen.row.limit", "25"),
        ("datagen.split.num", "2"),
    ]));
    let cut = |now_us: i64, next: &[u64]| {
        driver
            .cut(&CutRequest {
                created_us: 1_000_000,
                now_us,
                next,
                records: 1000,
            })
            .unwrap()
    };
    assert_eq!(cut(1_000_000, &[0, 0]), []);
    assert_eq!(
        cut(1_110_000, &[0, 0]),
        [SplitRange::unchecked(0, 0, 6), SplitRange::unchecked(1, 0, 5)]
    );
    assert_eq!(
        cut(9_000_000, &[6, 5]),
        [SplitRange::unchecked(0, 6, 13), SplitRange::unchecked(1, 5, 12)]
    );
    assert!(!driver.finished(&[12, 12]));
    assert!(driver.finished(&[13, 12]));
    assert_eq!(
        driver.sample(3).unwrap().iter().map(|r| r.to).collect::<Vec<_>>(),
        [2, 1]
    );
}
