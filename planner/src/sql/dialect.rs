//! The dialect: sqlparser's PostgreSQL, less what makes it read things twice.
//!
//! For `json_object('label': value)` sqlparser first reads each argument of a call as a label and then, finding none, as an argument:
//! a call nested n deep is read 2ⁿ times. That form is PostgreSQL 16's and not supported here, so it is turned off.

use std::any::TypeId;

use sqlparser::ast::Expr;
use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};

/// PostgreSQL's grammar as this crate reads it.
#[derive(Debug)]
pub(super) struct PgDialect;

const POSTGRES: PostgreSqlDialect = PostgreSqlDialect {};

/// Answers these questions as sqlparser's dialect does.
macro_rules! as_postgres {
    ($($name:ident),* $(,)?) => {
        $(fn $name(&self) -> bool {
            POSTGRES.$name()
        })*
    };
}

impl Dialect for PgDialect {
    /// sqlparser asks in some places which dialect it reads.
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        POSTGRES.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        POSTGRES.is_identifier_part(ch)
    }

    fn is_reserved_for_identifier(&self, kw: Keyword) -> bool {
        POSTGRES.is_reserved_for_identifier(kw)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        POSTGRES.is_custom_operator_part(ch)
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        POSTGRES.get_next_precedence(parser)
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        POSTGRES.parse_prefix(parser)
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        POSTGRES.prec_value(precedence)
    }

    /// Two literals with a line break between them are one.
    fn supports_string_literal_concatenation_with_newline(&self) -> bool {
        true
    }

    as_postgres!(
        supports_unicode_string_literal,
        supports_filter_during_aggregation,
        supports_group_by_expr,
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_create_index_with_clause,
        supports_explain_with_utility_options,
        supports_listen_notify,
        supports_factorial_operator,
        supports_bitwise_shift_operators,
        supports_comment_on,
        supports_load_extension,
        supports_empty_projections,
        supports_nested_comments,
        supports_string_escape_constant,
        supports_numeric_literal_underscores,
        supports_array_typedef_with_brackets,
        supports_geometric_types,
        supports_set_names,
        supports_alter_column_type_using,
        supports_notnull_operator,
        supports_interval_options,
        supports_insert_table_alias,
        supports_create_table_like_parenthesized,
        supports_select_wildcard_with_alias,
        supports_comma_separated_trim,
        supports_xml_expressions,
    );
}

#[cfg(test)]
mod tests {
    use crate::sql::parse;

    /// Read once, whatever the depth: 2⁴⁰ readings would not end.
    #[test]
    fn nested_calls_are_read_in_linear_time() {
        let nested = |f: &str, n: usize| format!("SELECT {}1{}", format!("{f}(").repeat(n), ")".repeat(n));
        for f in ["abs", "upper", "coalesce"] {
            assert!(parse(&nested(f, 40)).is_ok(), "{f}");
        }
    }

    #[test]
    fn literals_on_two_lines_are_one() {
        let parsed = parse("SELECT 'a'\n'b'").expect("parsed");
        assert!(format!("{:?}", parsed[0].ast).contains("\"ab\""));
    }
}
