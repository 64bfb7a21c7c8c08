//! What CREATE SINK looks at in a PostgreSQL target: its columns take the sink's values exactly, its key is unique, nobody else
//! writes there.

use arrow::datatypes::{DataType, Field};
use levee_planner::catalog::{SinkDef, SinkMode};
use levee_planner::sql::types::{oid, pg_type_name, typmod, varchar_length};
use tokio_postgres::Client;

use super::super::delivery::StopWatch;
use super::super::{Delivering, TargetError, TargetResult, identity, runtime, takes_over};
use super::{Address, Names, connect, retry};
use crate::{Result, RuntimeError};

/// A column of the target.
struct Column {
    name: String,
    oid: u32,
    typmod: i32,
    type_name: String,
    not_null: bool,
    has_default: bool,
    generated: bool,
    number: i16,
}

/// Why the target does not do; or it could not be asked.
enum Problem {
    Refused(RuntimeError),
    Target(TargetError),
}

impl From<TargetError> for Problem {
    fn from(error: TargetError) -> Self {
        Self::Target(error)
    }
}

fn refused(code: &'static str, message: String, hint: &str) -> Problem {
    Problem::Refused(RuntimeError::User {
        code,
        message,
        hint: Some(hint.to_owned()),
    })
}

/// Looks at the target table before the sink is created, and makes the table of markers beside it.
///
/// # Errors
/// What must be changed, for the user.
pub(in crate::sinks) fn check(def: &SinkDef) -> Result<()> {
    super::super::format::check_types(&def.schema)?;
    let timeout = Delivering::of(def).timeout;
    let address = Address::of(def, timeout)?;
    let names = Names::of(def);
    let runtime = runtime()?;
    let mut problem = None;
    let work = async {
        let mut client = connect(&address).await?;
        match look(&mut client, def, &names).await {
            Err(Problem::Target(error)) => Err(error),
            Err(Problem::Refused(error)) => {
                problem = Some(error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    };
    let asked = runtime.block_on(StopWatch::never().guard(timeout, "asking PostgreSQL", work));
    match (asked, problem) {
        (_, Some(error)) => Err(error),
        (Ok(()), None) => Ok(()),
        (Err(error), None) => Err(RuntimeError::User {
            code: "08001",
            message: format!("the sink's target cannot be used: {error}"),
            hint: Some("Check host, port, user, password, dbname, sslmode and the user's privileges.".to_owned()),
        }),
    }
}

async fn look(client: &mut Client, def: &SinkDef, names: &Names) -> Result<(), Problem> {
    let columns = target_columns(client, names).await?;
    if columns.is_empty() {
        return Err(refused(
            "42P01",
            format!("the sink's target table {} does not exist", names.table),
            "Create it in PostgreSQL first.",
        ));
    }
    for field in def.schema.fields() {
        let column = columns.iter().find(|c| c.name == *field.name()).ok_or_else(|| {
            refused(
                "42703",
                format!("the target table {} has no column \"{}\"", names.table, field.name()),
                "Add the column to the table, or select only what it has.",
            )
        })?;
        check_column(field, column)?;
    }
    let unfilled = columns
        .iter()
        .find(|c| c.not_null && !c.has_default && def.schema.field_with_name(&c.name).is_err());
    if let Some(column) = unfilled {
        return Err(refused(
            "23502",
            format!(
                "column \"{}\" of the target table is NOT NULL and gets no value",
                column.name
            ),
            "Select a value for it, or give it a default.",
        ));
    }
    if def.mode == SinkMode::Upsert {
        check_key(client, def, names, &columns).await?;
    }
    check_owner(client, def, names).await
}

async fn target_columns(client: &Client, names: &Names) -> TargetResult<Vec<Column>> {
    let sql = "SELECT a.attname, a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
               a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a', a.attnum \
               FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = client.query(sql, &[&names.table]).await.map_err(retry)?;
    rows.iter()
        .map(|row| {
            Ok(Column {
                name: row.try_get(0).map_err(retry)?,
                oid: row.try_get(1).map_err(retry)?,
                typmod: row.try_get(2).map_err(retry)?,
                type_name: row.try_get(3).map_err(retry)?,
                not_null: row.try_get(4).map_err(retry)?,
                has_default: row.try_get(5).map_err(retry)?,
                generated: row.try_get(6).map_err(retry)?,
                number: row.try_get(7).map_err(retry)?,
            })
        })
        .collect()
}

fn check_column(field: &Field, column: &Column) -> Result<(), Problem> {
    if column.generated {
        return Err(refused(
            "428C9",
            format!("column \"{}\" of the target table is generated always", column.name),
            "Leave it out of the sink's query.",
        ));
    }
    if !takes(field, column) {
        return Err(refused(
            "42804",
            format!(
                "column \"{}\" is of type {}, which the target's {} does not hold exactly",
                column.name,
                pg_type_name(field),
                column.type_name
            ),
            "Cast it in the sink's query, or change the column's type.",
        ));
    }
    Ok(())
}

/// Every value of the sink's type is a value of the column's.
fn takes(field: &Field, column: &Column) -> bool {
    const INT2: u32 = 21;
    const INT4: u32 = 23;
    const INT8: u32 = 20;
    const FLOAT8: u32 = 701;
    const NUMERIC: u32 = 1700;
    const TEXT: u32 = 25;
    const VARCHAR: u32 = 1043;
    // The whole digits that a numeric column has room for, and those after the point.
    let room = (column.typmod >= 4).then(|| {
        let (precision, scale) = ((column.typmod - 4) >> 16, (column.typmod - 4) & 0x7ff);
        (precision - scale, scale)
    });
    let digits = |whole: i32, scale: i32| column.oid == NUMERIC && room.is_none_or(|(w, s)| w >= whole && s >= scale);
    match field.data_type() {
        DataType::Int16 => [INT2, INT4, INT8].contains(&column.oid) || digits(5, 0),
        DataType::Int32 => [INT4, INT8].contains(&column.oid) || digits(10, 0),
        DataType::Int64 => column.oid == INT8 || digits(19, 0),
        DataType::Float32 => [700, FLOAT8].contains(&column.oid),
        DataType::Decimal128(..) | DataType::Decimal256(..) => match typmod(field) {
            m if m >= 4 => {
                let (precision, scale) = ((m - 4) >> 16, (m - 4) & 0xffff);
                digits(precision - scale, scale)
            }
            _ => column.oid == NUMERIC && room.is_none(),
        },
        DataType::Utf8 => {
            let limit = (column.typmod >= 4).then(|| (column.typmod - 4) as usize);
            let short = varchar_length(field).zip(limit).is_some_and(|(n, limit)| n <= limit);
            column.oid == TEXT || (column.oid == VARCHAR && (limit.is_none() || short))
        }
        _ => column.oid == oid(field),
    }
}

async fn check_key(client: &Client, def: &SinkDef, names: &Names, columns: &[Column]) -> Result<(), Problem> {
    let mut key = Vec::new();
    for &c in &def.key {
        let name = def.schema.field(c).name();
        let column = columns.iter().find(|t| t.name == *name);
        let Some(column) = column.filter(|c| c.not_null) else {
            return Err(refused(
                "42830",
                format!("key column \"{name}\" of the target table is not NOT NULL"),
                "Declare the key as the table's PRIMARY KEY.",
            ));
        };
        key.push(column.number);
    }
    key.sort_unstable();
    let sql = "SELECT ARRAY(SELECT k FROM unnest(i.indkey::int2[]) k ORDER BY k) FROM pg_index i \
               WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indimmediate AND i.indisvalid \
               AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts";
    let rows = client.query(sql, &[&names.table]).await.map_err(retry)?;
    for row in &rows {
        let indexed: Vec<i16> = row.try_get(0).map_err(retry)?;
        if indexed == key {
            return Ok(());
        }
    }
    let names_of: Vec<&str> = def.key.iter().map(|&c| def.schema.field(c).name().as_str()).collect();
    Err(refused(
        "42P10",
        format!("the target table has no unique index on ({})", names_of.join(", ")),
        "Make them its PRIMARY KEY, or name its key with primary_key = '…'.",
    ))
}

async fn check_owner(client: &mut Client, def: &SinkDef, names: &Names) -> Result<(), Problem> {
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {} (target text PRIMARY KEY, sink text NOT NULL, epoch bigint, part bigint, \
         written_at timestamptz NOT NULL DEFAULT now())",
        names.progress
    );
    client.batch_execute(&create).await.map_err(retry)?;
    let sql = format!("SELECT sink FROM {} WHERE target = $1 AND sink <> $2", names.progress);
    let owner = client
        .query_opt(&sql, &[&names.target, &identity(def)])
        .await
        .map_err(retry)?;
    if let Some(row) = owner.filter(|_| !takes_over(def)) {
        let owner: String = row.try_get(0).map_err(retry)?;
        return Err(refused(
            "55000",
            format!("table {} belongs to another sink, {owner}", names.table),
            "Drop that sink, or give take_over = 'true': it stops when it next writes.",
        ));
    }
    Ok(())
}
