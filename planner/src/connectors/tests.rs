use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::datagen::{DatagenOptions, FieldSpec};
use super::encode::{CsvOptions, JsonOptions, NumberUnit};
use super::file::{Compression, FileOptions, FileOrder, Location};
use super::kafka::{KafkaOptions, Startup};
use crate::sql::types;

fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn message<T: std::fmt::Debug>(r: crate::Result<T>) -> String {
    let e = r.unwrap_err();
    format!("{} {} [{}]", e.code, e.message, e.hint.unwrap_or_default())
}

#[test]
fn file_paths_are_split_at_the_first_pattern() {
    let at = |path: &str| FileOptions::parse(&options(&[("path", path)])).map(|o| o.location);
    let local = |directory: &str, pattern: Option<&str>| Location::Local {
        directory: directory.into(),
        pattern: pattern.map(Into::into),
    };
    assert_eq!(at("/data/in/").unwrap(), local("/data/in", None));
    assert_eq!(at("file:///data/in").unwrap(), local("/data/in", None));
    assert_eq!(at("/data/2*/x.csv").unwrap(), local("/data", Some("2*/x.csv")));
    let s3 = |prefix: &str, pattern: Option<&str>| Location::S3 {
        bucket: "b-1".into(),
        prefix: prefix.into(),
        pattern: pattern.map(Into::into),
    };
    assert_eq!(at("s3://b-1").unwrap(), s3("", None));
    assert_eq!(at("s3://b-1/a/b/*.gz").unwrap(), s3("a/b", Some("*.gz")));
    for bad in ["data", "s3:///x", "s3://b*/x", "gs://b/x"] {
        assert!(
            message(at(bad)).starts_with("22023 invalid value for option \"path\""),
            "{bad}"
        );
    }
}

#[test]
fn file_options_are_checked() {
    let parse = |pairs: &[(&str, &str)]| {
        let mut all = vec![("connector", "file"), ("path", "/d")];
        all.extend(pairs);
        FileOptions::parse(&options(&all))
    };
    let plain = parse(&[]).unwrap();
    assert_eq!(
        (plain.order, plain.compression, plain.refresh.as_millis()),
        (FileOrder::Mtime, Compression::Auto, 1000)
    );
    let other = parse(&[
        ("order", "PATH"),
        ("compression_format", "gzip"),
        ("refresh.interval.sec", "0.25"),
        ("match_pattern", "*.json"),
    ])
    .unwrap();
    assert_eq!(
        (
            other.order,
            other.compression,
            other.refresh.as_millis(),
            other.match_pattern.as_deref()
        ),
        (FileOrder::Path, Compression::Gzip, 250, Some("*.json"))
    );
    assert!(
        message(parse(&[("paht", "/x")]))
            .contains("unknown option \"paht\" of connector \"file\" [Its options are path,")
    );
    assert!(message(parse(&[("refresh.interval.sec", "0")])).contains("a number of seconds from 0.05"));
    assert!(message(parse(&[("s3.endpoint_url", "http://x")])).contains("need a path in a bucket"));
    assert!(
        message(FileOptions::parse(&options(&[("connector", "file")])))
            .contains("\"path\" of connector \"file\" is missing")
    );
}

#[test]
fn csv_marks_must_differ() {
    let parse = |pairs: &[(&str, &str)]| CsvOptions::parse(&options(pairs));
    let o = parse(&[("header", "true"), ("delimiter", "\\t"), ("null", "\\N")]).unwrap();
    assert_eq!(
        (o.header, o.delimiter, o.quote, o.escape, o.null.as_str()),
        (true, b'\t', b'"', b'"', "\\N")
    );
    assert!(!parse(&[("without_header", "true")]).unwrap().header);
    assert!(parse(&[("without_header", "false")]).unwrap().header);
    for bad in [
        [("delimiter", "\""), ("header", "true")],
        [("delimiter", ";;"), ("header", "true")],
        [("null", "a,b"), ("header", "true")],
        [("without_header", "true"), ("header", "true")],
    ] {
        assert!(message(parse(&bad)).starts_with("22023"), "{bad:?}");
    }
    assert_eq!(
        JsonOptions::parse(&options(&[("timestamp.unit", "ms")]))
            .unwrap()
            .timestamp_unit,
        Some(NumberUnit::Millisecond)
    );
}

#[test]
fn kafka_starts_where_it_is_told() {
    let parse = |pairs: &[(&str, &str)]| {
        let mut all = vec![("topic", "t"), ("properties.bootstrap.server", "h:1")];
        all.extend(pairs);
        KafkaOptions::parse(&options(&all))
    };
    assert_eq!(parse(&[]).unwrap().startup, Startup::Earliest);
    assert_eq!(
        parse(&[("scan.startup.offsets", "0:5, 3:7")]).unwrap().startup,
        Startup::Offsets(BTreeMap::from([(0, 5), (3, 7)]))
    );
    assert_eq!(
        parse(&[
            ("scan.startup.mode", "timestamp"),
            ("scan.startup.timestamp.millis", "9")
        ])
        .unwrap()
        .startup,
        Startup::Timestamp(9)
    );
    let with = parse(&[("properties.security.protocol", "ssl")]).unwrap();
    assert_eq!(with.properties, options(&[("security.protocol", "ssl")]));
    for bad in [
        [("scan.startup.mode", "offsets"), ("properties.x", "y")],
        [("scan.startup.offsets", "0"), ("properties.x", "y")],
        [("scan.startup.offsets", "0:1,0:2"), ("properties.x", "y")],
        [("scan.startup.mode", "latest"), ("scan.startup.offsets", "0:1")],
        [("properties.group.id", "g"), ("properties.x", "y")],
    ] {
        assert!(message(parse(&bad)).starts_with("22023"), "{bad:?}");
    }
}

fn columns() -> SchemaRef {
    let f = |name: &str, t: DataType| Field::new(name, t, true);
    Arc::new(Schema::new(vec![
        f("id", DataType::Int32),
        f("name", DataType::Utf8),
        f("price", DataType::Decimal128(6, 2)),
        f("at", types::timestamp()),
    ]))
}

#[test]
fn datagen_fields_follow_their_columns() {
    let parse = |pairs: &[(&str, &str)]| DatagenOptions::parse(&options(pairs), &columns());
    let o = parse(&[
        ("fields.id.kind", "sequence"),
        ("fields.id.start", "5"),
        ("fields.id.end", "9"),
        ("fields.price.max", "10.25"),
        ("fields.at.max_past", "2 hours"),
        ("fields.name.length", "3"),
    ])
    .unwrap();
    assert_eq!(
        o.fields,
        [
            FieldSpec::Sequence { start: 5, length: 5 },
            FieldSpec::Bytes { length: 3 },
            FieldSpec::Integer { min: 0, max: 1025 },
            FieldSpec::Time {
                max_past_us: 7_200_000_000
            },
        ]
    );
    assert_eq!((o.rate, o.splits, o.seed), (10, 1, 0));
    for (bad, words) in [
        (("fields.nope.min", "1"), "unknown option"),
        (("fields.id.length", "1"), "does not apply"),
        (("fields.id.min", "2000"), "greater than"),
        (("fields.id.max", "9999999999"), "can hold"),
        (("fields.price.max", "0.001"), "can hold"),
        (("fields.at.max_past", "1 month"), "without months"),
        (("datagen.rows.per.second", "-1"), "whole number"),
    ] {
        assert!(
            message(parse(&[bad])).contains(words),
            "{bad:?} {}",
            message(parse(&[bad]))
        );
    }
}
