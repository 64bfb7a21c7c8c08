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
        csv,
        header: false,
        delimiter: if csv { b',' } else { b'\t' },
        null: if csv { String::new() } else { "\\N".to_owned() },
        quote: b'"',
        escape: b'"',
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
    options.header = true;
    options.delimiter = b';';
    options.null = "NA".to_owned();
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
