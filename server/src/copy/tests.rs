use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Int32Type};
use levee_planner::plan::ObjectId;

use super::*;

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Utf8, true),
    ])
}

fn copy(csv: bool) -> CopyFrom {
    CopyFrom {
        table: ObjectId(1),
        columns: vec![0, 1],
        format: CopyFormat {
            kind: if csv { CopyKind::Csv } else { CopyKind::Text },
            header: CopyHeader::No,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { String::new() } else { "\\N".to_owned() },
            quote: b'"',
            escape: b'"',
            force_quote: Vec::new(),
            force_null: Vec::new(),
            force_not_null: Vec::new(),
        },
        filter: None,
    }
}

type Row = (Option<i32>, Option<String>);

/// Loads `data` in pieces of `size` bytes.
fn load_in(options: &CopyFrom, data: &str, size: usize) -> Result<Vec<Row>> {
    let mut loader = Loader::new(options.clone(), "t", &schema(), Zone::utc())?;
    for piece in data.as_bytes().chunks(size) {
        loader.push(piece)?;
    }
    let mut rows = Vec::new();
    for batch in loader.finish()? {
        let (a, b) = (
            batch.column(0).as_primitive::<Int32Type>(),
            batch.column(1).as_string::<i32>(),
        );
        for i in 0..batch.num_rows() {
            rows.push((
                a.is_valid(i).then(|| a.value(i)),
                b.is_valid(i).then(|| b.value(i).to_owned()),
            ));
        }
    }
    Ok(rows)
}

/// The cuts of the wire must not matter.
fn load(options: &CopyFrom, data: &str) -> Result<Vec<Row>> {
    let whole = load_in(options, data, usize::MAX);
    for size in [1, 2, 7] {
        let cut = load_in(options, data, size);
        assert_eq!(format!("{:?}", cut.as_ref().ok()), format!("{:?}", whole.as_ref().ok()));
    }
    whole
}

fn row(a: impl Into<Option<i32>>, b: &str) -> Row {
    (a.into(), Some(b.to_owned()))
}

#[test]
fn text_escapes_nulls_and_end_marker() {
    let data = "1\tone\n2\t\\N\n\\N\ta\\tb\\nc\\\\d\\101\\x42\n3\t\n\\.\nignored";
    let rows = load(&copy(false), data).expect("rows");
    assert_eq!(
        rows,
        vec![row(1, "one"), (Some(2), None), row(None, "a\tb\nc\\dAB"), row(3, "")]
    );
    assert_eq!(
        load(&copy(false), "1\ta\r\n2\tb").expect("crlf"),
        vec![row(1, "a"), row(2, "b")]
    );
    assert_eq!(load(&copy(false), "").expect("empty"), vec![]);
}

#[test]
fn csv_quotes_newlines_and_empty_strings() {
    let data = "1,\"a,b\"\"c\nd\"\n2,\n3,\"\"\n4,x\"y\"z\n";
    let rows = load(&copy(true), data).expect("rows");
    assert_eq!(
        rows,
        vec![row(1, "a,b\"c\nd"), (Some(2), None), row(3, ""), row(4, "xyz")]
    );
    let mut options = copy(true);
    options.format.header = CopyHeader::Yes;
    options.format.delimiter = b';';
    options.format.null = "NA".to_owned();
    assert_eq!(
        load(&options, "a;b\nNA;x\r\n5;\"NA\"").expect("rows"),
        vec![row(None, "x"), row(5, "NA")]
    );
}

#[test]
fn errors_name_line_and_column() {
    let error = load(&copy(false), "1\ta\nx\tb\n").expect_err("not a number");
    assert_eq!(error.code(), "22P02");
    assert_eq!(
        error.fields().context.as_deref(),
        Some("COPY t, line 2, column a: \"x\"")
    );
    let error = load(&copy(true), "1,\"a\nb\"\n2\n").expect_err("missing");
    assert_eq!(
        (error.code(), error.message()),
        ("22P04", "missing data for column \"b\"")
    );
    assert_eq!(error.fields().context.as_deref(), Some("COPY t, line 3: \"2\""));
    let error = load(&copy(true), "1,a,b\n").expect_err("extra");
    assert_eq!(
        (error.code(), error.message()),
        ("22P04", "extra data after last expected column")
    );
    let error = load(&copy(true), "1,\"a").expect_err("quote");
    assert_eq!(error.message(), "unterminated CSV quoted field");
}

#[test]
fn csv_options_force_and_match() {
    let mut options = copy(true);
    options.format.force_null = vec![false, true];
    assert_eq!(load(&options, "1,\"\"\n").expect("rows"), vec![(Some(1), None)]);
    options.format.force_null = Vec::new();
    options.format.force_not_null = vec![false, true];
    assert_eq!(load(&options, "1,\n").expect("rows"), vec![row(1, "")]);
    options.format.header = CopyHeader::Match;
    assert_eq!(load(&options, "a,b\n1,x\n").expect("rows"), vec![row(1, "x")]);
    let error = load(&options, "a,c\n1,x\n").expect_err("names");
    assert_eq!(
        error.message(),
        "column name mismatch in header line field 2: got \"c\", expected \"b\""
    );
    let error = load(&options, "a\n1,x\n").expect_err("number");
    assert_eq!(
        error.message(),
        "wrong number of fields in header line: got 1, expected 2"
    );
}

#[test]
fn binary_rows_come_in_any_pieces() {
    let mut data = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    data.extend_from_slice(b"\0\x02\0\0\0\x04\0\0\0\x07\0\0\0\x02hi");
    data.extend_from_slice(b"\0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    let mut options = copy(false);
    options.format.kind = CopyKind::Binary;
    for size in [1, 3, 19, 1000] {
        let mut loader = Loader::new(options.clone(), "t", &schema(), Zone::utc()).expect("loader");
        for piece in data.chunks(size) {
            loader.push(piece).expect("piece");
        }
        let batches = loader.finish().expect("batches");
        let batch = batches.first().expect("batch");
        assert_eq!(batch.num_rows(), 2);
        assert_eq!(batch.column(0).as_primitive::<Int32Type>().value(0), 7);
        assert_eq!(batch.column(1).as_string::<i32>().value(0), "hi");
        assert!(batch.column(0).is_null(1) && batch.column(1).is_null(1));
    }
    let mut loader = Loader::new(options, "t", &schema(), Zone::utc()).expect("loader");
    assert!(loader.push(b"1\tx\n").is_err());
}
