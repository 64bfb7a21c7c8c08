//! The names of result columns, as PostgreSQL derives them from the expression.

use sqlparser::ast::{self, Expr, SelectItem, SetExpr, TrimWhereField};

use super::ext::fold;

/// The separator before the number of a repeated name. Two columns of one projection cannot share a name in DataFusion; what
/// follows the mark is cut off before a name is shown.
pub(super) const MARK: char = '\u{1}';

/// A name as shown.
pub(super) fn shown(name: &str) -> &str {
    name.split(MARK).next().unwrap_or(name)
}

/// The name of an unaliased expression.
pub(super) fn column_name(e: &Expr) -> String {
    strength(e).map_or_else(|| "?column?".to_owned(), |(_, n)| n)
}

/// A name and how good it is: 2 for a column or function, 1 for a cast's type or CASE.
fn strength(e: &Expr) -> Option<(u8, String)> {
    let strong = |n: &str| Some((2, n.to_owned()));
    match e {
        Expr::Identifier(i) => Some((2, fold(i))),
        Expr::CompoundIdentifier(parts) => parts.last().map(|i| (2, fold(i))),
        Expr::Function(f) => {
            let name = f.name.0.last().and_then(|p| p.as_ident()).map(fold)?;
            Some((2, name))
        }
        Expr::Nested(e) | Expr::Collate { expr: e, .. } => strength(e),
        Expr::Cast { expr, data_type, .. } => match strength(expr) {
            Some((2, n)) => Some((2, n)),
            _ => Some((1, type_name(data_type))),
        },
        Expr::TypedString(t) => Some((1, type_name(&t.data_type))),
        Expr::Interval(_) => Some((1, "interval".to_owned())),
        Expr::Case { else_result, .. } => match else_result.as_deref().and_then(strength) {
            Some((2, n)) => Some((2, n)),
            _ => Some((1, "case".to_owned())),
        },
        Expr::Exists { negated: false, .. } => strong("exists"),
        Expr::Subquery(q) => subquery_name(&q.body),
        Expr::Array(_) => strong("array"),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|a| match a {
                ast::AccessExpr::Dot(Expr::Identifier(i)) => Some((2, fold(i))),
                _ => None,
            });
            field.or_else(|| strength(root))
        }
        Expr::Tuple(_) => strong("row"),
        Expr::Extract { .. } => strong("extract"),
        Expr::Ceil { .. } => strong("ceil"),
        Expr::Floor { .. } => strong("floor"),
        Expr::Position { .. } => strong("position"),
        Expr::Substring { shorthand: true, .. } => strong("substr"),
        Expr::Substring { .. } => strong("substring"),
        Expr::Overlay { .. } => strong("overlay"),
        Expr::Trim { trim_where, .. } => strong(match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        }),
        Expr::AtTimeZone { .. } => strong("timezone"),
        _ => None,
    }
}

fn subquery_name(body: &SetExpr) -> Option<(u8, String)> {
    match body {
        SetExpr::Select(s) => match s.projection.first()? {
            SelectItem::UnnamedExpr(e) => strength(e),
            SelectItem::ExprWithAlias { alias, .. } => Some((2, fold(alias))),
            _ => None,
        },
        SetExpr::Query(q) => subquery_name(&q.body),
        SetExpr::Values(_) => Some((2, "column1".to_owned())),
        SetExpr::SetOperation { left, .. } => subquery_name(left),
        _ => None,
    }
}

/// PostgreSQL's internal name of a type.
fn type_name(t: &ast::DataType) -> String {
    use ast::DataType as D;
    match t {
        D::SmallInt(_) | D::Int2(_) => "int2",
        D::Int(_) | D::Integer(_) | D::Int4(_) => "int4",
        D::BigInt(_) | D::Int8(_) => "int8",
        D::Real | D::Float4 => "float4",
        D::Double(_) | D::DoublePrecision | D::Float8 | D::Float(_) => "float8",
        D::Numeric(_) | D::Decimal(_) | D::Dec(_) => "numeric",
        D::Varchar(_) | D::CharacterVarying(_) | D::CharVarying(_) => "varchar",
        D::Char(_) | D::Character(_) => "bpchar",
        D::Bool | D::Boolean => "bool",
        D::Timestamp(_, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz) => "timestamptz",
        D::Timestamp(..) => "timestamp",
        D::Date => "date",
        D::Time(_, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz) => "timetz",
        D::Time(..) => "time",
        D::Interval { .. } => "interval",
        D::Text => "text",
        D::Bytea => "bytea",
        D::Regclass => "regclass",
        D::JSON => "json",
        D::JSONB => "jsonb",
        D::Uuid => "uuid",
        D::Array(ast::ArrayElemTypeDef::SquareBracket(item, _) | ast::ArrayElemTypeDef::Parenthesis(item)) => {
            return type_name(item);
        }
        D::Custom(name, _) => return name.0.last().and_then(|p| p.as_ident()).map_or_else(String::new, fold),
        other => return other.to_string().to_lowercase(),
    }
    .to_owned()
}
