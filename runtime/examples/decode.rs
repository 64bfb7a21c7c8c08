//! How fast records become rows: `cargo run --example decode [records]`, for a core, in the profile at hand.

#![allow(clippy::print_stdout, reason = "a tool")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Field, Schema};
use levee_planner::catalog::{Encoding, SourceDef, SourceFormat};
use levee_planner::sql::types;
use levee_runtime::sources::decode::{Decoder, Record};

const CHUNK: usize = 8192;

fn source(encode: Encoding) -> SourceDef {
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("price", DataType::Decimal128(12, 2), true),
        Field::new("weight", DataType::Float64, true),
        Field::new("at", types::timestamptz(), true),
        Field::new("ok", DataType::Boolean, true),
    ];
    SourceDef {
        schema: Arc::new(Schema::new(fields)),
        connector: "kafka".to_owned(),
        options: BTreeMap::new(),
        format: SourceFormat::Plain,
        encode,
        encode_options: BTreeMap::new(),
        includes: BTreeMap::new(),
        key: Vec::new(),
        revision: 0,
    }
}

fn measure(what: &str, encode: Encoding, records: usize, text: impl Fn(usize) -> String) {
    let texts: Vec<String> = (0..CHUNK).map(text).collect();
    let inputs: Vec<Record<'_>> = texts
        .iter()
        .map(|t| Record {
            key: None,
            value: Some(t.as_bytes()),
        })
        .collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    let Ok(mut decoder) = Decoder::new(&source(encode)) else {
        return println!("{what}: no decoder");
    };
    let calls = records.div_ceil(CHUNK);
    let start = Instant::now();
    let mut rows = 0;
    for _ in 0..calls {
        match decoder.decode(&inputs) {
            Ok(decoded) => rows += decoded.batch.num_rows(),
            Err(error) => return println!("{what}: {error}"),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what}: {rows} rows of {} bytes in {seconds:.2} s, {:.2} M rows/s, {:.0} MB/s",
        bytes / CHUNK,
        rows as f64 / seconds / 1e6,
        (bytes * calls) as f64 / seconds / 1e6
    );
}

fn main() {
    let records = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(2_000_000);
    measure("json", Encoding::Json, records, |i| {
        format!(
            "{{\"id\":{i},\"name\":\"item {i}\",\"price\":{}.{:02},\"weight\":{}.5,\"at\":\"2024-01-02T03:04:{:02}.{:06}Z\",\"ok\":true}}",
            i % 1000,
            i % 100,
            i % 77,
            i % 60,
            i
        )
    });
    measure("json, one of 8 broken", Encoding::Json, records, |i| match i % 8 {
        0 => format!("{{\"id\":{i},\"price\":\"much\"}}"),
        _ => format!("{{\"id\":{i},\"name\":\"item\\n{i}\",\"price\":1}}"),
    });
    measure("csv", Encoding::Csv, records, |i| {
        format!(
            "{i},\"item {i}\",{}.{:02},{}.5,2024-01-02 03:04:{:02},t",
            i % 1000,
            i % 100,
            i % 77,
            i % 60
        )
    });
}
