//! SQL types ↔ Arrow types.
//!
//! | SQL | Arrow |
//! | --- | --- |
//! | boolean, smallint, integer, bigint | Boolean, Int16, Int32, Int64 |
//! | real, double precision | Float32, Float64 |
//! | numeric(p,s) | Decimal128 (p ≤ 38), Decimal256 (p ≤ 74) |
//! | numeric | [`BARE_NUMERIC`] |
//! | a numeric quotient, `avg` | [`QUOTIENT`] |
//! | `variance`, `stddev` of integers and numeric | [`VARIANCE`], [`DEVIATION`] |
//! | text, varchar, varchar(n) | Utf8; `varchar` and its length stand in field metadata |
//! | bytea | Binary |
//! | date, timestamp, timestamptz | Date32, Timestamp(µs), Timestamp(µs, "UTC"); a precision stands in field metadata |
//! | time, timetz | [`TIME`], [`TIMETZ`]: bytes of [`super::clock`], which are equal and ordered as the values are |
//! | interval | Interval(MonthDayNano) |
//! | uuid | [`UUID`] |
//! | json, jsonb | [`JSON`]: its text; [`JSONB`]: bytes of [`super::json`], which are equal and ordered as the values are |
//! | an array of one dimension | List of the element's type |
//!
//! A type must tell by itself what it is, since plan nodes lose field metadata. So json and jsonb are two byte types that nothing else uses.
//!
//! Why numeric looks like this: `docs/decisions/0001-numeric.md`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use sqlparser::ast::{self, CharacterLength, ExactNumberInfo, TimezoneInfo};

use crate::{PlanError, Result};

/// `numeric` without precision: 38 digits before and 38 after the point.
pub const BARE_NUMERIC: DataType = DataType::Decimal256(76, 38);
/// The type of numeric division and `avg`: like [`BARE_NUMERIC`], but shown with PostgreSQL's trailing zeros. The precision is
/// the mark, so it survives every plan node.
pub const QUOTIENT: DataType = DataType::Decimal256(75, 38);
/// The type of `variance` and its kin over exact numbers: digits as a [`QUOTIENT`]'s, but 0 is shown as such.
pub const VARIANCE: DataType = DataType::Decimal256(75, 37);
/// The type of `stddev` and its kin over exact numbers: shown with as many digits as its square, the variance.
pub const DEVIATION: DataType = DataType::Decimal256(76, 37);
/// json.
pub const JSON: DataType = DataType::BinaryView;
/// jsonb.
pub const JSONB: DataType = DataType::LargeBinary;
/// uuid.
pub const UUID: DataType = DataType::FixedSizeBinary(16);
/// time, in microseconds.
pub const TIME: DataType = DataType::Time64(TimeUnit::Microsecond);
/// timetz.
pub const TIMETZ: DataType = DataType::FixedSizeBinary(12);
/// Largest precision that can be declared.
pub const DECLARED_PRECISION_MAX: u8 = 74;

/// Field metadata: `varchar` or `bpchar` where the SQL type is not `text`.
pub const META_TYPE: &str = "pg.type";
/// [`META_TYPE`] of `character(n)`.
const BLANK_PADDED: &str = "bpchar";
/// Field metadata: the length of `varchar(n)`.
pub const META_LENGTH: &str = "pg.length";
/// Field metadata: how many digits of a second a time of the column has, if not six.
const META_PRECISION: &str = "pg.precision";

/// Is it one of the types of numeric whose digits no declaration bounds?
pub fn is_unlimited(t: &DataType) -> bool {
    matches!(t, DataType::Decimal256(75 | 76, 37 | 38))
}

/// The type of arrays of a type.
pub fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

/// The type of an array's elements.
pub fn item_of(t: &DataType) -> Option<&DataType> {
    match t {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => Some(f.data_type()),
        _ => None,
    }
}

/// Timestamp without time zone.
pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// Timestamp with time zone.
pub fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))
}

/// Interval.
pub fn interval() -> DataType {
    DataType::Interval(IntervalUnit::MonthDayNano)
}

/// The Arrow field (type and metadata, nullable, without a name) of a SQL type.
///
/// # Errors
/// 42704 for an unknown type, 0A000 for a known one that is not supported.
pub fn field_of(sql: &ast::DataType) -> Result<FieldRef> {
    use ast::DataType as S;
    let plain = |t: DataType| Ok(Arc::new(Field::new("", t, true)));
    match sql {
        S::Bool | S::Boolean => plain(DataType::Boolean),
        S::SmallInt(None) | S::Int2(None) => plain(DataType::Int16),
        S::Int(None) | S::Integer(None) | S::Int4(None) => plain(DataType::Int32),
        S::BigInt(None) | S::Int8(None) => plain(DataType::Int64),
        S::Real | S::Float4 => plain(DataType::Float32),
        S::Float8 | S::DoublePrecision => plain(DataType::Float64),
        S::Float(info) => float(info).and_then(plain),
        S::Numeric(info) | S::Decimal(info) | S::Dec(info) => numeric(info).and_then(plain),
        S::Text => plain(DataType::Utf8),
        S::Varchar(n) | S::CharacterVarying(n) | S::CharVarying(n) => varchar(n.as_ref()),
        S::Bytea => plain(DataType::Binary),
        S::Date => plain(DataType::Date32),
        S::Timestamp(p, zone) => with_precision(if is_zoned(zone) { timestamptz() } else { timestamp() }, *p),
        S::Time(p, zone) => with_precision(if is_zoned(zone) { TIMETZ } else { TIME }, *p),
        S::Interval {
            fields: None,
            precision: None | Some(6),
        } => plain(interval()),
        S::Interval { fields: None, .. } => Err(PlanError::unsupported(format!(
            "type {} is not supported",
            sql.to_string().to_lowercase()
        ))
        .hint("Leave the precision out (microseconds).")),
        S::Char(length) | S::Character(length) => character(length.as_ref()),
        S::Regclass => plain(DataType::Utf8),
        S::JSON => plain(JSON),
        S::JSONB => plain(JSONB),
        S::Uuid => plain(UUID),
        S::Array(ast::ArrayElemTypeDef::SquareBracket(item, _) | ast::ArrayElemTypeDef::Parenthesis(item)) => {
            field_of(item).and_then(|item| array(&item))
        }
        S::Custom(name, args) => custom(name, args),
        other => Err(unsupported_type(&other.to_string().to_lowercase())),
    }
}

/// Arrays of a type. As in PostgreSQL, `integer[][]` is `integer[]`; values have one dimension here.
fn array(item: &Field) -> Result<FieldRef> {
    if varchar_length(item).is_some() || time_precision(item).is_some() {
        let plain = base_name(item.data_type());
        return Err(
            PlanError::unsupported(format!("type {}[] is not supported", pg_type_name(item)))
                .hint(format!("Use {plain}[].")),
        );
    }
    let t = match item.data_type() {
        list @ DataType::List(_) => list.clone(),
        other => list_of(other.clone()),
    };
    Ok(Arc::new(Field::new("", t, true).with_metadata(item.metadata().clone())))
}

fn custom(name: &ast::ObjectName, args: &[String]) -> Result<FieldRef> {
    let plain = |t: DataType| Ok(Arc::new(Field::new("", t, true)));
    let (_, name) = super::ext::object_name(name)?;
    match name.as_str() {
        "serial" | "serial4" | "bigserial" | "serial8" | "smallserial" | "serial2" => {
            Err(PlanError::unsupported(format!("type {name} is not supported"))
                .hint("Use integer or bigint and give the keys in the INSERT."))
        }
        "timestamptz" | "timetz" => {
            let t = if name == "timetz" { TIMETZ } else { timestamptz() };
            match args {
                [] => plain(t),
                [p] => with_precision(
                    t,
                    Some(
                        p.parse()
                            .map_err(|_| PlanError::new("22023", "invalid type modifier"))?,
                    ),
                ),
                _ => Err(PlanError::new("22023", "invalid type modifier")),
            }
        }
        "name" | "regtype" | "regproc" | "regnamespace" => plain(DataType::Utf8),
        "oid" => plain(DataType::Int32),
        "json" => plain(JSON),
        "jsonb" => plain(JSONB),
        "uuid" => plain(UUID),
        "bpchar" | "money" | "inet" | "xml" => Err(unsupported_type(&name)),
        array if array.strip_prefix('_').and_then(type_of_name).is_some() => plain(
            array
                .strip_prefix('_')
                .and_then(type_of_name)
                .map_or(DataType::Null, list_of),
        ),
        _ => Err(PlanError::new("42704", format!("type \"{name}\" does not exist"))),
    }
}

/// A type by PostgreSQL's internal name, as `_int4` and its like hold it.
fn type_of_name(name: &str) -> Option<DataType> {
    Some(match name {
        "bool" => DataType::Boolean,
        "int2" => DataType::Int16,
        "int4" => DataType::Int32,
        "int8" => DataType::Int64,
        "float4" => DataType::Float32,
        "float8" => DataType::Float64,
        "numeric" => BARE_NUMERIC,
        "text" | "varchar" => DataType::Utf8,
        "bytea" => DataType::Binary,
        "date" => DataType::Date32,
        "timestamp" => timestamp(),
        "timestamptz" => timestamptz(),
        "time" => TIME,
        "timetz" => TIMETZ,
        "interval" => interval(),
        "uuid" => UUID,
        "json" => JSON,
        "jsonb" => JSONB,
        _ => return None,
    })
}

fn unsupported_type(name: &str) -> PlanError {
    PlanError::unsupported(format!("type {name} is not supported")).hint(
        "Supported are boolean, smallint, integer, bigint, real, double precision, numeric, text, varchar, bytea, date, \
         time, timetz, timestamp, timestamptz, interval, uuid, json, jsonb and arrays of these.",
    )
}

fn is_zoned(zone: &TimezoneInfo) -> bool {
    matches!(zone, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz)
}

/// A type of times with so many digits of a second; more than six are six, as in PostgreSQL.
fn with_precision(t: DataType, digits: Option<u64>) -> Result<FieldRef> {
    let field = Field::new("", t, true);
    Ok(Arc::new(match digits {
        Some(digits @ 0..6) => field.with_metadata(HashMap::from([(META_PRECISION.to_owned(), digits.to_string())])),
        _ => field,
    }))
}

/// How many digits of a second the times of a column have, if fewer than six.
pub fn time_precision(field: &Field) -> Option<u32> {
    field.metadata().get(META_PRECISION)?.parse().ok()
}

/// What distinguishes a column's type from the Arrow type, as a number: what a cast to it takes beside the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modifier {
    /// `varchar(n)`, or `character(n)` if negative.
    Length(i64),
    /// `timestamp(n)` and its like.
    Precision(i64),
}

impl Modifier {
    /// Of a column.
    pub(super) fn of(field: &Field) -> Option<Self> {
        if let Some(digits) = time_precision(field) {
            return Some(Self::Precision(digits.into()));
        }
        let n = i64::try_from(varchar_length(field)?).ok()?;
        Some(Self::Length(if is_character(field) { -n } else { n }))
    }

    /// A column that has it.
    pub(super) fn put_on(self, field: Field) -> Field {
        let meta = match self {
            Self::Precision(digits) => vec![(META_PRECISION, digits.to_string())],
            Self::Length(n) => {
                let kind = if n < 0 { BLANK_PADDED } else { "varchar" };
                vec![
                    (META_TYPE, kind.to_owned()),
                    (META_LENGTH, n.unsigned_abs().to_string()),
                ]
            }
        };
        field.with_metadata(meta.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    }
}

fn float(info: &ExactNumberInfo) -> Result<DataType> {
    match info {
        ExactNumberInfo::None => Ok(DataType::Float64),
        ExactNumberInfo::Precision(1..=24) => Ok(DataType::Float32),
        ExactNumberInfo::Precision(25..=53) => Ok(DataType::Float64),
        ExactNumberInfo::Precision(0) => Err(PlanError::new(
            "22023",
            "precision for type float must be at least 1 bit",
        )),
        _ => Err(PlanError::new(
            "22023",
            "precision for type float must be less than 54 bits",
        )),
    }
}

fn numeric(info: &ExactNumberInfo) -> Result<DataType> {
    let (p, s) = match info {
        ExactNumberInfo::None => return Ok(BARE_NUMERIC),
        ExactNumberInfo::Precision(p) => (*p, 0),
        ExactNumberInfo::PrecisionAndScale(p, s) => (*p, *s),
    };
    if p == 0 || p > 1000 {
        return Err(PlanError::new(
            "22023",
            format!("NUMERIC precision {p} must be between 1 and 1000"),
        ));
    }
    if p > u64::from(DECLARED_PRECISION_MAX) {
        return Err(
            PlanError::unsupported(format!("numeric precision {p} is not supported"))
                .hint(format!("The largest precision is {DECLARED_PRECISION_MAX}.")),
        );
    }
    if s < 0 || s.unsigned_abs() > p {
        return Err(PlanError::unsupported(format!("numeric({p},{s}) is not supported"))
            .hint("The scale must be between 0 and the precision."));
    }
    Ok(decimal(
        u8::try_from(p).unwrap_or(DECLARED_PRECISION_MAX),
        i8::try_from(s).unwrap_or(0),
    ))
}

/// The narrowest decimal type with `precision` digits of which `scale` after the point; precision is capped.
pub fn decimal(precision: u8, scale: i8) -> DataType {
    if precision <= 38 {
        DataType::Decimal128(precision, scale)
    } else {
        DataType::Decimal256(precision.min(DECLARED_PRECISION_MAX), scale)
    }
}

/// `character(n)`: values are kept without the blanks at their end, which do not count in PostgreSQL either.
fn character(length: Option<&CharacterLength>) -> Result<FieldRef> {
    let one = CharacterLength::IntegerLength { length: 1, unit: None };
    let field = varchar(Some(length.unwrap_or(&one))).map_err(|mut e| {
        e.message = e.message.replace("varchar", "char");
        e
    })?;
    let mut meta = field.metadata().clone();
    meta.insert(META_TYPE.to_owned(), BLANK_PADDED.to_owned());
    Ok(Arc::new(field.as_ref().clone().with_metadata(meta)))
}

/// A field of type `character(n)`.
pub fn is_character(field: &Field) -> bool {
    field.metadata().get(META_TYPE).is_some_and(|t| t == BLANK_PADDED)
}

fn varchar(length: Option<&CharacterLength>) -> Result<FieldRef> {
    let mut meta = HashMap::from([(META_TYPE.to_owned(), "varchar".to_owned())]);
    match length {
        None => {}
        Some(CharacterLength::IntegerLength { length: 0, .. }) => {
            return Err(PlanError::new("22023", "length for type varchar must be at least 1"));
        }
        Some(CharacterLength::IntegerLength { length, .. }) if *length <= 10_485_760 => {
            meta.insert(META_LENGTH.to_owned(), length.to_string());
        }
        Some(_) => {
            return Err(PlanError::new(
                "22023",
                "length for type varchar cannot exceed 10485760",
            ));
        }
    }
    Ok(Arc::new(Field::new("", DataType::Utf8, true).with_metadata(meta)))
}

/// Whether records of sources and sinks can hold values of a type.
pub fn is_in_records(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Decimal128(..)
            | DataType::Decimal256(..)
            | DataType::Utf8
            | DataType::Binary
            | DataType::Date32
            | DataType::Timestamp(TimeUnit::Microsecond, _)
            | DataType::Time64(TimeUnit::Microsecond)
            | DataType::Interval(IntervalUnit::MonthDayNano)
            | &TIMETZ
            | &UUID
            | &JSON
            | &JSONB
    )
}

/// The length limit of a `varchar(n)` or `character(n)` field.
pub fn varchar_length(field: &Field) -> Option<usize> {
    field.metadata().get(META_LENGTH)?.parse().ok()
}

/// PostgreSQL's name of a column's type, as `format_type` prints it.
pub fn pg_type_name(field: &Field) -> String {
    if field.data_type() == &DataType::Utf8 && field.metadata().get(META_TYPE).is_some_and(|t| t == "varchar") {
        return match varchar_length(field) {
            Some(n) => format!("character varying({n})"),
            None => "character varying".to_owned(),
        };
    }
    if is_character(field) {
        return format!("character({})", varchar_length(field).unwrap_or(1));
    }
    if let (Some(digits), Some((kind, zone))) = (time_precision(field), base_name(field.data_type()).split_once(' ')) {
        return format!("{kind}({digits}) {zone}");
    }
    match field.data_type() {
        t @ (DataType::Decimal128(p, s) | DataType::Decimal256(p, s)) if !is_unlimited(t) => {
            format!("numeric({p},{s})")
        }
        DataType::List(item) => {
            let item = item.as_ref().clone().with_metadata(field.metadata().clone());
            format!("{}[]", pg_type_name(&item))
        }
        t => base_name(t).to_owned(),
    }
}

/// PostgreSQL's name of a type, without modifiers, as in messages.
pub fn base_name(t: &DataType) -> &'static str {
    match t {
        DataType::Boolean => "boolean",
        DataType::Int8 | DataType::Int16 => "smallint",
        DataType::Int32 | DataType::UInt16 | DataType::UInt8 => "integer",
        DataType::Int64 | DataType::UInt32 | DataType::UInt64 => "bigint",
        DataType::Float16 | DataType::Float32 => "real",
        DataType::Float64 => "double precision",
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            "numeric"
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text",
        &UUID => "uuid",
        &TIMETZ => "time with time zone",
        &JSON => "json",
        &JSONB => "jsonb",
        DataType::Binary | DataType::FixedSizeBinary(_) => "bytea",
        DataType::Date32 | DataType::Date64 => "date",
        DataType::Timestamp(_, None) => "timestamp without time zone",
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone",
        DataType::Time32(_) | DataType::Time64(_) => "time without time zone",
        DataType::Interval(_) | DataType::Duration(_) => "interval",
        DataType::Null => "unknown",
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => {
            array_name(base_name(f.data_type()))
        }
        _ => "record",
    }
}

fn array_name(item: &str) -> &'static str {
    match item {
        "boolean" => "boolean[]",
        "smallint" => "smallint[]",
        "integer" => "integer[]",
        "bigint" => "bigint[]",
        "real" => "real[]",
        "double precision" => "double precision[]",
        "numeric" => "numeric[]",
        "text" => "text[]",
        "uuid" => "uuid[]",
        "json" => "json[]",
        "jsonb" => "jsonb[]",
        "bytea" => "bytea[]",
        "date" => "date[]",
        "timestamp without time zone" => "timestamp without time zone[]",
        "timestamp with time zone" => "timestamp with time zone[]",
        "time without time zone" => "time without time zone[]",
        "time with time zone" => "time with time zone[]",
        "interval" => "interval[]",
        _ => "anyarray",
    }
}

/// The object id of the array type of the element type `item` in `pg_type`.
fn array_oid(item: u32) -> u32 {
    match item {
        16 => 1000,
        17 => 1001,
        20 => 1016,
        21 => 1005,
        23 => 1007,
        700 => 1021,
        701 => 1022,
        1042 => 1014,
        1043 => 1015,
        1082 => 1182,
        1083 => 1183,
        1266 => 1270,
        1114 => 1115,
        1184 => 1185,
        1186 => 1187,
        1700 => 1231,
        2950 => 2951,
        114 => 199,
        3802 => 3807,
        _ => 1009,
    }
}

/// The object id of a column's type in `pg_type`.
pub fn oid(field: &Field) -> u32 {
    match field.data_type() {
        DataType::Boolean => 16,
        &UUID => 2950,
        &TIMETZ => 1266,
        DataType::Time32(_) | DataType::Time64(_) => 1083,
        &JSON => 114,
        &JSONB => 3802,
        DataType::Binary | DataType::FixedSizeBinary(_) => 17,
        DataType::List(item) | DataType::LargeList(item) => {
            array_oid(oid(&item.as_ref().clone().with_metadata(field.metadata().clone())))
        }
        DataType::Int64 | DataType::UInt32 | DataType::UInt64 => 20,
        DataType::Int8 | DataType::Int16 => 21,
        DataType::Int32 | DataType::UInt8 | DataType::UInt16 => 23,
        DataType::Float32 => 700,
        DataType::Float64 => 701,
        DataType::Date32 | DataType::Date64 => 1082,
        DataType::Timestamp(_, None) => 1114,
        DataType::Timestamp(_, Some(_)) => 1184,
        DataType::Interval(_) | DataType::Duration(_) => 1186,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => 1700,
        DataType::Utf8 if field.metadata().get(META_TYPE).is_some_and(|t| t == "varchar") => 1043,
        DataType::Utf8 if is_character(field) => 1042,
        _ => 25,
    }
}

/// The type modifier of a column (`atttypmod`), -1 if none.
pub fn typmod(field: &Field) -> i32 {
    match field.data_type() {
        t @ (DataType::Decimal128(p, s) | DataType::Decimal256(p, s)) if !is_unlimited(t) => {
            (i32::from(*p) << 16 | i32::from(*s)) + 4
        }
        DataType::List(item) => typmod(item),
        DataType::Utf8 => varchar_length(field)
            .and_then(|n| i32::try_from(n).ok())
            .map_or(-1, |n| n + 4),
        _ => time_precision(field).and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
    }
}

/// A type for an object id, for parameters that a client declares.
pub fn type_of_oid(oid: u32) -> Option<DataType> {
    Some(match oid {
        16 => DataType::Boolean,
        17 => DataType::Binary,
        20 => DataType::Int64,
        21 => DataType::Int16,
        23 | 26 => DataType::Int32,
        700 => DataType::Float32,
        701 => DataType::Float64,
        1082 => DataType::Date32,
        1114 => timestamp(),
        1184 => timestamptz(),
        1186 => interval(),
        1083 => TIME,
        1266 => TIMETZ,
        1700 => BARE_NUMERIC,
        19 | 25 | 1042 | 1043 => DataType::Utf8,
        114 => JSON,
        3802 => JSONB,
        2950 => UUID,
        1000 => list_of(DataType::Boolean),
        1001 => list_of(DataType::Binary),
        1016 => list_of(DataType::Int64),
        1005 => list_of(DataType::Int16),
        1007 | 1028 => list_of(DataType::Int32),
        1021 => list_of(DataType::Float32),
        1022 => list_of(DataType::Float64),
        1003 | 1009 | 1014 | 1015 => list_of(DataType::Utf8),
        1182 => list_of(DataType::Date32),
        1115 => list_of(timestamp()),
        1185 => list_of(timestamptz()),
        1187 => list_of(interval()),
        1183 => list_of(TIME),
        1270 => list_of(TIMETZ),
        1231 => list_of(BARE_NUMERIC),
        2951 => list_of(UUID),
        199 => list_of(JSON),
        3807 => list_of(JSONB),
        _ => return None,
    })
}

/// The type that a result column must have on the wire: DataFusion's own spellings become the one of the table above.
pub fn canonical(t: &DataType) -> DataType {
    match t {
        DataType::Int8 => DataType::Int16,
        DataType::UInt8 | DataType::UInt16 => DataType::Int32,
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => DataType::Decimal128(*p, *s),
        DataType::Utf8View | DataType::LargeUtf8 | DataType::Null => DataType::Utf8,
        &UUID => UUID,
        &TIMETZ => TIMETZ,
        DataType::Time32(_) | DataType::Time64(_) => TIME,
        DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Timestamp(_, None) => timestamp(),
        DataType::Timestamp(_, Some(_)) => timestamptz(),
        DataType::Interval(_) | DataType::Duration(_) => interval(),
        // An array of NULLs keeps its unknown element type, so that a cast can still give it one.
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => match f.data_type() {
            DataType::Null => list_of(DataType::Null),
            item => list_of(canonical(item)),
        },
        other => other.clone(),
    }
}
