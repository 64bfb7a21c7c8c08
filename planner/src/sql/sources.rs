//! CREATE SOURCE, and CREATE TABLE with a connector.
//!
//! Both are a column list, bound as any table's is, and a feed: included columns behind the declared ones, the connector with its options
//! (checked by [`crate::connectors`]), the format and the encoding.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use sqlparser::ast::{self, ColumnDef, ColumnOption, TableConstraint};

use super::ast::{CreateFedTable, CreateSource, Feed, FormatClause, IncludeItem};
use super::ext::fold;
use super::parse::{sub_parser, tokenize};
use super::{Binder, Statement, types};
use crate::catalog::{Encoding, Include, IngestDef, ObjectKind, SourceDef, SourceFormat};
use crate::connectors;
use crate::{PlanError, Result};

impl Binder {
    /// CREATE SOURCE.
    pub(super) fn create_source(&self, s: &CreateSource, text: &str) -> Result<Statement> {
        for c in &s.constraints {
            if !matches!(c, TableConstraint::PrimaryKey(_)) {
                return Err(
                    PlanError::unsupported(format!("constraint {c} on a source is not supported"))
                        .hint("A source stores nothing; check the rows in a view, or use CREATE TABLE."),
                );
            }
        }
        for c in &s.columns {
            check_column(c, false)?;
        }
        let table = CreateTableBuilder::new(s.name.clone())
            .if_not_exists(s.if_not_exists)
            .columns(s.columns.clone())
            .constraints(s.constraints.clone())
            .build();
        let fed = CreateFedTable {
            table: Box::new(table),
            feed: s.feed.clone(),
        };
        self.create_fed(&fed, text, "CREATE SOURCE", |def, kind| {
            if !def.key.is_empty() && !is_keyed(&def) {
                return Err(
                    PlanError::unsupported("PRIMARY KEY on a source with FORMAT PLAIN is not supported")
                        .hint("A source stores nothing; leave the key out, use FORMAT UPSERT, or CREATE TABLE."),
                );
            }
            *kind = ObjectKind::Source(def);
            Ok(())
        })
    }

    /// CREATE TABLE with a connector.
    pub(super) fn create_fed_table(&self, t: &CreateFedTable, text: &str) -> Result<Statement> {
        for c in &t.table.constraints {
            if !matches!(c, TableConstraint::PrimaryKey(_)) {
                return Err(PlanError::unsupported(format!(
                    "constraint {c} on a table with a connector is not supported"
                ))
                .hint("Only PRIMARY KEY is; check the rows in a view."));
            }
        }
        for c in &t.table.columns {
            check_column(c, true)?;
        }
        let id = self.catalog.next_id();
        let name = t.table.name.to_string();
        self.create_fed(t, text, "CREATE TABLE", |def, kind| {
            let ObjectKind::Table(table) = kind else {
                return Err(PlanError::internal("a table was bound as something else"));
            };
            let plan = crate::stream::plan_ingest(id, &name, &def)?;
            table.ingest = Some(Box::new(IngestDef { source: def, plan }));
            Ok(())
        })
    }

    /// Binds the columns as a table's, makes the source out of them and lets `settle` put it into the object.
    fn create_fed(
        &self,
        t: &CreateFedTable,
        text: &str,
        tag: &'static str,
        settle: impl FnOnce(SourceDef, &mut ObjectKind) -> Result<()>,
    ) -> Result<Statement> {
        let feed = &t.feed;
        let connector = connectors::check_name(feed.options.get("connector").map(String::as_str))?;
        let mut table = t.table.clone();
        if connector == "nexmark" {
            let own = connectors::nexmark::columns(&feed.options)?;
            if table.columns.is_empty() {
                table.columns = written_columns(&own)?;
            } else {
                same_columns(&table.columns, &own)?;
            }
        } else if table.columns.is_empty() {
            return Err(PlanError::new(
                "42601",
                format!("a source with connector \"{connector}\" needs columns"),
            )
            .hint("List them after the name: (column type, …)."));
        }
        let mut includes = BTreeMap::new();
        for item in &feed.includes {
            includes.insert(table.columns.len(), item.include.clone());
            table.columns.push(included_column(item, connector)?);
        }
        let mut statement = self.create_table(&table, text)?;
        match &mut statement {
            Statement::Notice { tag: of, .. } => *of = tag,
            Statement::Create { object, also, .. } => {
                if super::table::created(also).next().is_some() {
                    return Err(PlanError::unsupported(
                        "a serial column of a relation with a connector is not supported",
                    )
                    .hint("Its rows come from elsewhere; use integer or bigint."));
                }
                let ObjectKind::Table(def) = &object.kind else {
                    return Err(PlanError::internal("a table was bound as something else"));
                };
                let source = source_def(feed, &def.schema, includes, def.primary_key.clone())?;
                settle(source, &mut object.kind)?;
            }
            _ => return Err(PlanError::internal("a table was bound to another statement")),
        }
        Ok(statement)
    }
}

fn is_keyed(def: &SourceDef) -> bool {
    matches!(def.format, SourceFormat::Upsert | SourceFormat::Debezium)
}

fn source_def(
    feed: &Feed,
    schema: &SchemaRef,
    includes: BTreeMap<usize, Include>,
    key: Vec<usize>,
) -> Result<SourceDef> {
    let connector = feed.options.get("connector").cloned().unwrap_or_default();
    let generator = connectors::is_generator(&connector);
    let (format, encode, encode_options) = match &feed.format {
        None => (SourceFormat::Native, Encoding::Native, BTreeMap::new()),
        Some(clause) => match (format_of(clause)?, encoding_of(clause)?) {
            // Scripts say PLAIN and JSON where rows are made and no record is ever encoded.
            (SourceFormat::Plain | SourceFormat::Native, Encoding::Json | Encoding::Native)
                if generator && clause.options.is_empty() =>
            {
                (SourceFormat::Native, Encoding::Native, BTreeMap::new())
            }
            _ if generator => {
                return Err(PlanError::unsupported(format!(
                    "connector \"{connector}\" makes rows, not records: this FORMAT and ENCODE are not supported"
                ))
                .hint("Leave FORMAT and ENCODE out."));
            }
            (format, encode) => (format, encode, clause.options.clone()),
        },
    };
    let def = SourceDef {
        schema: SchemaRef::clone(schema),
        connector,
        options: feed.options.clone(),
        format,
        encode,
        encode_options,
        includes,
        key,
        revision: 0,
    };
    connectors::check(&def)?;
    Ok(def)
}

fn format_of(clause: &FormatClause) -> Result<SourceFormat> {
    Ok(match clause.format.as_str() {
        "plain" => SourceFormat::Plain,
        "upsert" => SourceFormat::Upsert,
        "debezium" => SourceFormat::Debezium,
        "native" => SourceFormat::Native,
        other => {
            return Err(
                PlanError::unsupported(format!("FORMAT {} is not supported", other.to_uppercase()))
                    .hint("The formats are PLAIN, UPSERT and DEBEZIUM."),
            );
        }
    })
}

fn encoding_of(clause: &FormatClause) -> Result<Encoding> {
    Ok(match clause.encode.as_str() {
        "json" => Encoding::Json,
        "csv" => Encoding::Csv,
        "parquet" => Encoding::Parquet,
        "native" => Encoding::Native,
        other => {
            return Err(
                PlanError::unsupported(format!("ENCODE {} is not supported", other.to_uppercase()))
                    .hint("The encodings are JSON, CSV and PARQUET."),
            );
        }
    })
}

/// Column options that would have to be applied to records, which no connector does.
fn check_column(c: &ColumnDef, is_table: bool) -> Result<()> {
    for o in &c.options {
        let fine = match &o.option {
            ColumnOption::Null
            | ColumnOption::NotNull
            | ColumnOption::PrimaryKey(_)
            | ColumnOption::Collation(_)
            | ColumnOption::Comment(_) => true,
            ColumnOption::Default(_) => is_table,
            _ => false,
        };
        if !fine {
            let of = if is_table {
                "a table with a connector"
            } else {
                "a source"
            };
            return Err(
                PlanError::unsupported(format!("column option {} of {of} is not supported", o.option))
                    .hint("Compute the value in a view."),
            );
        }
    }
    let serial =
        matches!(&c.data_type, ast::DataType::Custom(name, _) if name.to_string().to_lowercase().contains("serial"));
    if serial {
        return Err(
            PlanError::unsupported("serial columns of a source or a table with a connector are not supported")
                .hint("Use integer or bigint; the values come from the records."),
        );
    }
    Ok(())
}

/// The column that an INCLUDE adds.
fn included_column(item: &IncludeItem, connector: &str) -> Result<ColumnDef> {
    let word = connectors::include_word(&item.include);
    let data_type = match &item.data_type {
        Some(t) => t.clone(),
        None => {
            let field = arrow::datatypes::Field::new("", connectors::include_type(&item.include, connector), true);
            parse_type(&types::pg_type_name(&field))?
        }
    };
    let name = match (&item.column, &item.include) {
        (Some(ident), _) => ident.clone(),
        (None, Include::Header(Some(header))) => ast::Ident::with_quote('"', format!("_header_{header}")),
        (None, _) => ast::Ident::new(format!("_{word}")),
    };
    Ok(ColumnDef {
        name,
        data_type,
        options: Vec::new(),
    })
}

fn parse_type(text: &str) -> Result<ast::DataType> {
    sub_parser(tokenize(text)?)
        .parse_data_type()
        .map_err(|e| PlanError::internal(format!("type {text} cannot be read: {e}")))
}

/// A connector's own columns as if they had been declared.
fn written_columns(schema: &SchemaRef) -> Result<Vec<ColumnDef>> {
    schema
        .fields()
        .iter()
        .map(|f| {
            Ok(ColumnDef {
                name: ast::Ident::with_quote('"', f.name()),
                data_type: parse_type(&types::pg_type_name(f))?,
                options: Vec::new(),
            })
        })
        .collect()
}

/// Declared columns must be the connector's own.
fn same_columns(declared: &[ColumnDef], own: &SchemaRef) -> Result<()> {
    let mut same = declared.len() == own.fields().len();
    for (c, f) in declared.iter().zip(own.fields()) {
        same &= fold(&c.name) == *f.name() && types::field_of(&c.data_type)?.data_type() == f.data_type();
    }
    if same {
        return Ok(());
    }
    let list: Vec<String> = own
        .fields()
        .iter()
        .map(|f| format!("{} {}", f.name(), types::pg_type_name(f)))
        .collect();
    Err(PlanError::new("42P16", "the declared columns are not the connector's")
        .hint(format!("Leave the columns out, or declare ({}).", list.join(", "))))
}
