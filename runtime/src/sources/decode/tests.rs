use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use levee_planner::catalog::{Encoding, Include, SourceDef, SourceFormat};
use levee_planner::sql::functions::cast::cast_array;
use levee_planner::sql::types;
use rand::{Rng, SeedableRng};

use super::{Change, Decoded, Decoder, Record};

/// A source with the columns `name type`, a `!` after the type for NOT NULL.
fn source(columns: &str, format: SourceFormat, encode: Encoding, key: &[usize], options: &[(&str, &str)]) -> SourceDef {
    let fields: Vec<Field> = columns
        .split(',')
        .map(|c| {
            let (name, t) = c.trim().rsplit_once(' ').unwrap();
            let (t, required) = t.strip_suffix('!').map_or((t, false), |t| (t, true));
            let field = match t {
                "bool" => Field::new(name, DataType::Boolean, true),
                "int2" => Field::new(name, DataType::Int16, true),
                "int4" => Field::new(name, DataType::Int32, true),
                "int8" => Field::new(name, DataType::Int64, true),
                "float4" => Field::new(name, DataType::Float32, true),
                "float8" => Field::new(name, DataType::Float64, true),
                "numeric" => Field::new(name, types::BARE_NUMERIC, true),
                "numeric5.2" => Field::new(name, DataType::Decimal128(5, 2), true),
                "numeric50.1" => Field::new(name, DataType::Decimal256(50, 1), true),
                "text" => Field::new(name, DataType::Utf8, true),
                "varchar3" => Field::new(name, DataType::Utf8, true)
                    .with_metadata([(types::META_LENGTH.to_owned(), "3".to_owned())].into_iter().collect()),
                "char3" => Field::new(name, DataType::Utf8, true).with_metadata(
                    [(types::META_LENGTH, "3"), (types::META_TYPE, "bpchar")]
                        .map(|(k, v)| (k.to_owned(), v.to_owned()))
                        .into_iter()
                        .collect(),
                ),
                "bytea" => Field::new(name, DataType::Binary, true),
                "date" => Field::new(name, DataType::Date32, true),
                "timestamp" => Field::new(name, types::timestamp(), true),
                "timestamptz" => Field::new(name, types::timestamptz(), true),
                "interval" => Field::new(name, types::interval(), true),
                "time" => Field::new(name, types::TIME, true),
                "timetz" => Field::new(name, types::TIMETZ, true),
                "uuid" => Field::new(name, types::UUID, true),
                other => panic!("no type {other}"),
            };
            field.with_nullable(!required)
        })
        .collect();
    SourceDef {
        schema: Arc::new(Schema::new(fields)),
        connector: "kafka".into(),
        options: BTreeMap::new(),
        format,
        encode,
        encode_options: options.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        includes: BTreeMap::new(),
        key: key.to_vec(),
        revision: 0,
    }
}

/// Rows as `record: value|value`, a `-` before deletes, then failures as `record! reason`.
fn show(decoded: &Decoded) -> String {
    let options = FormatOptions::default().with_null("∅");
    // Values that Arrow does not show as PostgreSQL does.
    let own = [types::TIME, types::TIMETZ, types::UUID];
    let columns = decoded.batch.columns().iter();
    let columns: Vec<ArrayRef> = columns
        .map(|c| match own.contains(c.data_type()) {
            true => cast_array(c, &DataType::Utf8).unwrap(),
            false => Arc::clone(c),
        })
        .collect();
    let formatters: Vec<ArrayFormatter<'_>> = columns
        .iter()
        .map(|c| ArrayFormatter::try_new(c, &options).unwrap())
        .collect();
    let mut out = String::new();
    for row in 0..decoded.batch.num_rows() {
        let delete = decoded.changes.as_ref().is_some_and(|c| c[row] == Change::Delete);
        let cells: Vec<String> = formatters.iter().map(|f| f.value(row).to_string()).collect();
        let sign = if delete { "-" } else { "" };
        writeln!(out, "{sign}{}: {}", decoded.origin[row], cells.join("|")).unwrap();
    }
    for failure in &decoded.failed {
        writeln!(out, "{}! {}", failure.record, failure.reason).unwrap();
    }
    out
}

fn decode(def: &SourceDef, records: &[(Option<&str>, Option<&str>)]) -> String {
    let records: Vec<Record<'_>> = records
        .iter()
        .map(|(key, value)| Record {
            key: key.map(str::as_bytes),
            value: value.map(str::as_bytes),
        })
        .collect();
    let mut decoder = Decoder::new(def).unwrap();
    let whole = show(&decoder.decode(&records).unwrap());
    // One call a record gives the same.
    let (mut rows, mut failed) = (String::new(), String::new());
    for (i, record) in records.iter().enumerate() {
        let one = decoder.decode(std::slice::from_ref(record)).unwrap();
        for line in show(&one).lines() {
            let numbered = line.replacen('0', &i.to_string(), 1);
            let to = if one.failed.is_empty() { &mut rows } else { &mut failed };
            writeln!(to, "{numbered}").unwrap();
        }
    }
    assert_eq!(whole, rows + &failed, "cut into single records");
    whole
}

fn plain(columns: &str, values: &[&str]) -> String {
    let def = source(columns, SourceFormat::Plain, Encoding::Json, &[], &[]);
    let records: Vec<_> = values.iter().map(|v| (None, Some(*v))).collect();
    decode(&def, &records)
}

/// One column `v` of a type: the value that a JSON value becomes, or the reason why not.
fn value(t: &str, json: &str) -> String {
    let out = plain(&format!("v {t}"), &[&format!("{{\"v\":{json}}}")]);
    out.trim_end()
        .trim_start_matches("0: ")
        .trim_start_matches("0! ")
        .to_owned()
}

#[test]
fn json_values_become_values_of_the_columns_types() {
    for (t, json, expected) in [
        ("bool", "true", "true"),
        ("bool", "\"off\"", "false"),
        (
            "bool",
            "2",
            "column \"v\": invalid input syntax for type boolean: \"2\"",
        ),
        ("int2", "-32768", "-32768"),
        (
            "int2",
            "32768",
            "column \"v\": value \"32768\" is out of range for type smallint",
        ),
        ("int4", "\" 7 \"", "7"),
        (
            "int4",
            "1.0",
            "column \"v\": invalid input syntax for type integer: \"1.0\"",
        ),
        ("int8", "9223372036854775807", "9223372036854775807"),
        (
            "int8",
            "9223372036854775808",
            "column \"v\": value \"9223372036854775808\" is out of range for type bigint",
        ),
        ("int8", "-0", "0"),
        (
            "int8",
            "true",
            "column \"v\": invalid input syntax for type bigint: \"true\"",
        ),
        (
            "int8",
            "[1]",
            "column \"v\": an object or array cannot become a value of type bigint",
        ),
        ("float8", "1e-3", "0.001"),
        ("float8", "\"NaN\"", "NaN"),
        (
            "float8",
            "1e999",
            "column \"v\": \"1e999\" is out of range for type double precision",
        ),
        ("float4", "0.1", "0.1"),
        (
            "numeric",
            "0.1000000000000000055511151231257827",
            "0.10000000000000000555111512312578270000",
        ),
        (
            "numeric",
            "12345678901234567890123456789",
            "12345678901234567890123456789.00000000000000000000000000000000000000",
        ),
        ("numeric5.2", "1.005", "1.01"),
        ("numeric5.2", "\"-999.99\"", "-999.99"),
        ("numeric5.2", "1000", "column \"v\": numeric field overflow"),
        ("numeric50.1", "1e40", "10000000000000000000000000000000000000000.0"),
        ("text", "\"a\\n\\u00e9\\ud83d\\ude00\\/\"", "a\né😀/"),
        ("text", "\"\\ud83d\"", "column \"v\": \\ud83d is half a surrogate pair"),
        (
            "text",
            "\"\\u0000\"",
            "column \"v\": \\u0000 cannot be converted to text",
        ),
        ("text", "1.50", "1.50"),
        ("text", "false", "false"),
        ("text", "{\"a\": [1, \"x\"]}", "{\"a\": [1, \"x\"]}"),
        ("varchar3", "\"abc  \"", "abc"),
        (
            "varchar3",
            "\"äöüß\"",
            "column \"v\": value too long for type character varying(3)",
        ),
        ("char3", "\"a  \"", "a"),
        (
            "char3",
            "\"abcd\"",
            "column \"v\": value too long for type character(3)",
        ),
        ("bytea", "\"\\\\x00ff\"", "00ff"),
        (
            "bytea",
            "\"\\\\xf\"",
            "column \"v\": invalid input syntax for type bytea: \"\\xf\"",
        ),
        ("date", "\"2024-02-29\"", "2024-02-29"),
        ("time", "\"10:20:30.5\"", "10:20:30.5"),
        (
            "time",
            "\"25:00\"",
            "column \"v\": date/time field value out of range: \"25:00\"",
        ),
        ("timetz", "\"10:20+05:30\"", "10:20:00+05:30"),
        (
            "uuid",
            "\"00000000-0000-0000-0000-00000000000A\"",
            "00000000-0000-0000-0000-00000000000a",
        ),
        ("uuid", "7", "column \"v\": invalid input syntax for type uuid: \"7\""),
        (
            "date",
            "\"2023-02-29\"",
            "column \"v\": date/time field value out of range: \"2023-02-29\"",
        ),
        (
            "timestamp",
            "\"2024-01-02T03:04:05.678901Z\"",
            "2024-01-02T03:04:05.678901",
        ),
        ("timestamp", "\"2024-01-02 03:04:05\"", "2024-01-02T03:04:05"),
        ("timestamptz", "\"2024-01-02T03:04:05+02:00\"", "2024-01-02T01:04:05Z"),
        (
            "timestamptz",
            "\"soon\"",
            "column \"v\": invalid input syntax for type timestamp with time zone: \"soon\"",
        ),
        (
            "timestamp",
            "1704164645",
            "column \"v\": the number 1704164645 for a timestamp says nothing about its unit; give the encode option timestamp.unit = 's', 'ms', 'us' or 'ns'",
        ),
        ("interval", "\"1 day 02:00:00\"", "1 days 2 hours"),
        ("interval", "\"P1DT2H\"", "1 days 2 hours"),
        ("int8", "null", "∅"),
        (
            "int8!",
            "null",
            "null value in column \"v\" violates not-null constraint",
        ),
    ] {
        assert_eq!(value(t, json), expected, "{t} {json}");
    }
}

#[test]
fn numbers_for_timestamps_are_exact_in_their_unit() {
    for (unit, number, expected) in [
        ("s", "1704164645.123456", "2024-01-02T03:04:05.123456"),
        ("ms", "1704164645123", "2024-01-02T03:04:05.123"),
        ("us", "-1", "1969-12-31T23:59:59.999999"),
        ("ns", "1704164645123456789", "2024-01-02T03:04:05.123457"),
    ] {
        let def = source(
            "t timestamp",
            SourceFormat::Plain,
            Encoding::Json,
            &[],
            &[("timestamp.unit", unit)],
        );
        let json = format!("{{\"t\":{number}}}");
        assert_eq!(
            decode(&def, &[(None, Some(&json))]),
            format!("0: {expected}\n"),
            "{unit}"
        );
    }
}

#[test]
fn what_is_not_one_json_object_fails_with_a_reason() {
    let cases = [
        ("", "the record is empty"),
        ("  ", "the record is empty"),
        ("5", "expected a JSON object, found a number"),
        ("[]", "expected a JSON object, found an object or array"),
        ("{", "invalid JSON: it ends where a field name in quotes is expected"),
        ("{\"a\"", "invalid JSON: it ends where \":\" is expected"),
        ("{\"a\":", "invalid JSON: it ends where a value is expected"),
        ("{\"a\":1", "invalid JSON: it ends where \",\" or \"}\" is expected"),
        (
            "{\"a\":1,}",
            "invalid JSON at byte 7: expected a field name in quotes, found '}'",
        ),
        ("{\"a\":1} x", "invalid JSON: more text after the value, at byte 8"),
        ("{\"a\":01}", "invalid JSON at byte 5: a number starts with 0"),
        ("{\"a\":1.}", "invalid JSON at byte 7: expected a digit, found '}'"),
        ("{\"a\":\"x", "invalid JSON: it ends inside a string"),
        ("{\"a\":\"\\x\"}", "invalid JSON at byte 6: unknown escape in a string"),
        (
            "{\"a\":\"\t\"}",
            "invalid JSON at byte 6: the control character 0x09 in a string must be escaped",
        ),
        ("{\"a\":nul}", "invalid JSON at byte 5: expected a value, found 'n'"),
        (
            "{\"z\":[1,{\"b\":}]}",
            "invalid JSON at byte 13: expected a value, found '}'",
        ),
        ("{\"a\":1,\"a\":2}", "field \"a\" occurs twice"),
        ("{\"A\":1,\"A\":2}", "field \"A\" occurs twice"),
    ];
    for (text, reason) in cases {
        assert_eq!(plain("a int8", &[text]), format!("0! {reason}\n"), "{text}");
    }
    let deep = format!("{{\"z\":{}{}}}", "[".repeat(200), "]".repeat(200));
    assert_eq!(
        plain("a int8", &[&deep]),
        "0! invalid JSON: nested more than 128 deep\n"
    );
}

#[test]
fn only_broken_records_fail() {
    let out = plain(
        "id int8!, n int2",
        &[
            "{\"id\":1,\"n\":1}",
            "{\"id\":2,\"n\":99999}",
            "nonsense",
            "{\"n\":4}",
            "{\"id\":5}",
            "{\"id\":\"six\",\"n\":99999}",
        ],
    );
    assert_eq!(
        out,
        "0: 1|1\n4: 5|∅\n\
         1! column \"n\": value \"99999\" is out of range for type smallint\n\
         2! invalid JSON at byte 0: expected a value, found 'n'\n\
         3! null value in column \"id\" violates not-null constraint\n\
         5! column \"id\": invalid input syntax for type bigint: \"six\"\n"
    );
}

#[test]
fn invalid_utf8_fails() {
    let def = source("a text", SourceFormat::Plain, Encoding::Json, &[], &[]);
    let value = b"{\"a\":\"\xff\"}";
    let records = [Record {
        key: None,
        value: Some(value),
    }];
    let decoded = Decoder::new(&def).unwrap().decode(&records).unwrap();
    assert_eq!(show(&decoded), "0! invalid UTF-8 at byte 6\n");
}

#[test]
fn names_match_exactly_or_else_without_case() {
    let rows = [
        "{\"ID\":1, \"extra\":{\"id\":9}}",
        "{\"ID\":1, \"id\":2}",
        "{\"id\":2, \"ID\":1}",
        "{\"\\u0069d\":3}",
        "{}",
    ];
    assert_eq!(plain("id int8", &rows), "0: 1\n1: 2\n2: 2\n3: 3\n4: ∅\n");
    // Columns that only differ in case match to the letter.
    assert_eq!(plain("a int8, A int8", &["{\"A\":1}", "{\"a\":2}"]), "0: ∅|1\n1: 2|∅\n");
}

#[test]
fn order_and_spaces_do_not_matter() {
    let rows = [
        "{\"a\":1,\"b\":2}",
        " {\t\"b\" : 2 ,\r\n \"a\" : 1 } ",
        "{\"b\":2,\"c\":0,\"a\":1}",
    ];
    assert_eq!(plain("a int8, b int8", &rows), "0: 1|2\n1: 1|2\n2: 1|2\n");
}

#[test]
fn csv_records_are_read_as_copy_reads_them() {
    let csv = |columns: &str, options: &[(&str, &str)], values: &[&str]| {
        let def = source(columns, SourceFormat::Plain, Encoding::Csv, &[], options);
        let records: Vec<_> = values.iter().map(|v| (None, Some(*v))).collect();
        decode(&def, &records)
    };
    assert_eq!(
        csv(
            "a int8, b text",
            &[],
            &[
                "1,x",
                "2,\n",
                "3,\"\"\r\n",
                "\"4\",\"a,\"\"b\"\"\nc\"",
                "5,un\"quo,ted\"!",
                "6",
                "7,x,y",
                "8,\"x",
                "9,x\ny",
                "ten,x",
            ]
        ),
        "0: 1|x\n1: 2|∅\n2: 3|\n3: 4|a,\"b\"\nc\n4: 5|unquo,ted!\n\
         5! missing data for column \"b\"\n\
         6! more fields than the 2 columns\n\
         7! a quoted field is not closed\n\
         8! a line break outside quotes, at byte 3\n\
         9! column \"a\": invalid input syntax for type bigint: \"ten\"\n"
    );
    let tabs = [("delimiter", "\\t"), ("quote", "'"), ("escape", "\\"), ("null", "\\N")];
    assert_eq!(
        csv("a text, b text", &tabs, &["'it\\'s'\t\\N", "''\t'\\N'", "\\\\\t'\\\\'"]),
        "0: it's|∅\n1: |\\N\n2: \\\\|\\\n"
    );
}

#[test]
fn upserts_take_the_key_from_where_it_is() {
    let def = source("id int8!, v text", SourceFormat::Upsert, Encoding::Json, &[0], &[]);
    assert_eq!(
        decode(
            &def,
            &[
                (Some("1"), Some("{\"id\":1,\"v\":\"a\"}")),
                (Some("{\"id\":2}"), Some("{\"v\":\"b\"}")),
                (Some("3"), Some("{\"v\":\"c\"}")),
                (Some("{\"schema\":{},\"payload\":{\"ID\":4}}"), None),
                (Some("5"), None),
                (Some("six"), None),
                (None, None),
                (None, Some("{\"v\":\"d\"}")),
                (Some("{\"x\":1}"), None),
                (Some("{\"id\":1"), None),
            ]
        ),
        "0: 1|a\n1: 2|b\n2: 3|c\n-3: 4|∅\n-4: 5|∅\n\
         5! column \"id\": invalid input syntax for type bigint: \"six\"\n\
         6! the record has neither key nor value\n\
         7! null value in column \"id\" violates not-null constraint\n\
         8! null value in column \"id\" violates not-null constraint\n\
         9! the record's key: invalid JSON: it ends where \",\" or \"}\" is expected\n"
    );
    // NOT NULL outside the key does not hold for deletes.
    let def = source("v text!, k text!", SourceFormat::Upsert, Encoding::Json, &[1], &[]);
    assert_eq!(
        decode(
            &def,
            &[(Some("a b"), None), (Some("\"a\""), None), (Some("a"), Some("{}"))]
        ),
        "-0: ∅|a b\n-1: ∅|a\n2! null value in column \"v\" violates not-null constraint\n"
    );
    let def = source(
        "k int8!, v text, l int8!",
        SourceFormat::Upsert,
        Encoding::Csv,
        &[2, 0],
        &[],
    );
    assert_eq!(
        decode(
            &def,
            &[(Some("2,1"), Some("1,x,2")), (Some("2,1"), None), (Some("2"), None)]
        ),
        "0: 1|x|2\n-1: 1|∅|2\n2! the record's key: it has fewer fields than key columns\n"
    );
}

#[test]
fn an_included_key_is_left_to_the_driver() {
    let mut def = source("k bytea!, v text", SourceFormat::Upsert, Encoding::Json, &[0], &[]);
    def.includes = BTreeMap::from([(0, Include::Key)]);
    assert_eq!(
        decode(&def, &[(Some("\u{1}x"), Some("{\"v\":\"a\"}")), (Some("\u{1}x"), None)]),
        "0: a\n-1: ∅\n"
    );
}

#[test]
fn debezium_events_put_and_delete() {
    let def = source(
        "id int8!, v text!, d date",
        SourceFormat::Debezium,
        Encoding::Json,
        &[0],
        &[],
    );
    assert_eq!(
        decode(
            &def,
            &[
                (
                    None,
                    Some(
                        "{\"before\":null,\"after\":{\"id\":1,\"v\":\"a\",\"d\":19724},\"op\":\"c\",\"source\":{\"op\":\"x\"}}"
                    )
                ),
                (
                    None,
                    Some(
                        "{\"schema\":{\"type\":\"struct\"},\"payload\":{\"before\":{\"id\":1},\"after\":{\"id\":1,\"v\":\"b\"},\"op\":\"u\"}}"
                    )
                ),
                (
                    None,
                    Some("{\"before\":{\"id\":1,\"v\":5,\"d\":\"?\"},\"after\":null,\"op\":\"d\"}")
                ),
                (Some("{\"id\":1}"), None),
                (
                    Some("{\"payload\":{\"id\":7}}"),
                    Some("{\"before\":null,\"after\":null,\"op\":\"d\"}")
                ),
                (None, Some("{\"after\":{\"id\":8,\"v\":\"r\"},\"op\":\"r\"}")),
                (None, Some("{\"op\":\"t\"}")),
                (None, Some("{\"op\":\"c\",\"after\":null}")),
                (None, Some("{\"op\":\"d\",\"before\":null}")),
                (None, Some("{\"id\":1}")),
                (None, Some("{\"payload\":null}")),
            ]
        ),
        "0: 1|a|2024-01-02\n1: 1|b|∅\n-2: 1|∅|∅\n-4: 7|∅|∅\n5: 8|r|∅\n\
         6! Debezium op \"t\" is not supported\n\
         7! a Debezium event with op \"c\" has no row \"after\"\n\
         8! a Debezium delete has neither \"before\" nor a key\n\
         9! there is no Debezium \"op\"\n"
    );
}

/// Random rows written as JSON by another library come back as they were, whatever stands between them.
#[test]
fn json_round_trips() {
    let def = source(
        "i int8, f float8, t text, b bool, n numeric50.1",
        SourceFormat::Plain,
        Encoding::Json,
        &[],
        &[],
    );
    let mut decoder = Decoder::new(&def).unwrap();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    for _ in 0..50 {
        let mut texts = Vec::new();
        let mut expected = String::new();
        for record in 0..rng.random_range(0..40) {
            if rng.random_bool(0.1) {
                texts.push("{\"i\":}".to_owned());
                continue;
            }
            let (i, f) = (rng.random::<i64>(), f64::from(rng.random::<i32>()) / 8.0);
            let t: String = (0..rng.random_range(0..12))
                .map(|_| char::from_u32(rng.random_range(1..0x1_2000)).unwrap_or('\\'))
                .collect();
            let b = rng.random::<bool>();
            let tenths = rng.random::<i64>();
            let json = serde_json::json!({"t": t, "i": i, "zz": [{"t": 1}], "f": f, "b": b});
            let number = format!(
                "{}{}.{}",
                if tenths < 0 { "-" } else { "" },
                (tenths / 10).unsigned_abs(),
                (tenths % 10).abs()
            );
            let text = json.to_string();
            texts.push(format!("{},\"n\":{number}}}", text.strip_suffix('}').unwrap()));
            writeln!(expected, "{record}: {i}|{}|{t}|{b}|{number}", shown_float(f)).unwrap();
        }
        let records: Vec<Record<'_>> = texts
            .iter()
            .map(|t| Record {
                key: None,
                value: Some(t.as_bytes()),
            })
            .collect();
        let decoded = decoder.decode(&records).unwrap();
        let broken = texts.iter().filter(|t| t.as_str() == "{\"i\":}").count();
        assert_eq!(decoded.failed.len(), broken);
        let shown = show(&decoded);
        assert!(shown.starts_with(&expected), "{shown}\n{expected}");
    }
}

/// As Arrow's formatter shows floats.
fn shown_float(f: f64) -> String {
    let array: arrow::array::ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![f]));
    let options = FormatOptions::default();
    ArrayFormatter::try_new(&array, &options).unwrap().value(0).to_string()
}
