//! Sequences: their definitions, and their use in expressions.
//!
//! A stored default holds a sequence by id, `nextval(16390)`, so that the sequence may be renamed; it is shown by name.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use sqlparser::ast::{self, Expr, Ident, ObjectName, Value, VisitMut, VisitorMut};

use super::Binder;
use super::ext::object_name;
use crate::catalog::{Catalog, CatalogObject, ObjectKind, SequenceDef};
use crate::plan::ObjectId;
use crate::{PlanError, Result};

const CALL: &str = "nextval(";

/// Options of CREATE and ALTER SEQUENCE and of identity columns. An inner `None` is NO MINVALUE, OWNED BY NONE and the like.
#[derive(Debug, Clone, Default)]
pub struct SequenceOptions {
    /// AS type.
    pub data_type: Option<DataType>,
    /// INCREMENT BY.
    pub increment: Option<i64>,
    /// MINVALUE.
    pub min: Option<Option<i64>>,
    /// MAXVALUE.
    pub max: Option<Option<i64>>,
    /// START WITH.
    pub start: Option<i64>,
    /// `RESTART [WITH]`.
    pub restart: Option<Option<i64>>,
    /// CACHE.
    pub cache: Option<i64>,
    /// CYCLE.
    pub cycle: Option<bool>,
    /// OWNED BY table and column.
    pub owned_by: Option<Option<(ObjectName, Ident)>>,
}

impl SequenceOptions {
    /// Options of an identity column.
    pub(super) fn of_identity(options: &[ast::SequenceOptions]) -> Result<Self> {
        let number = |e: &Expr| -> Result<i64> {
            e.to_string()
                .parse()
                .map_err(|_| PlanError::new("22023", format!("invalid number in sequence options: {e}")))
        };
        let mut out = Self::default();
        for o in options {
            match o {
                ast::SequenceOptions::IncrementBy(e, _) => out.increment = Some(number(e)?),
                ast::SequenceOptions::MinValue(e) => out.min = Some(e.as_ref().map(number).transpose()?),
                ast::SequenceOptions::MaxValue(e) => out.max = Some(e.as_ref().map(number).transpose()?),
                ast::SequenceOptions::StartWith(e, _) => out.start = Some(number(e)?),
                ast::SequenceOptions::Cache(e) => out.cache = Some(number(e)?),
                // The parser's flag tells of NO.
                ast::SequenceOptions::Cycle(no) => out.cycle = Some(!no),
            }
        }
        Ok(out)
    }
}

/// Smallest and largest value of a sequence's type.
fn limits(t: &DataType) -> (i64, i64, &'static str) {
    match t {
        DataType::Int16 => (i64::from(i16::MIN), i64::from(i16::MAX), "smallint"),
        DataType::Int32 => (i64::from(i32::MIN), i64::from(i32::MAX), "integer"),
        _ => (i64::MIN, i64::MAX, "bigint"),
    }
}

/// A new sequence.
pub(super) fn define(t: &DataType, options: &SequenceOptions) -> Result<SequenceDef> {
    let (_, _, data_type) = limits(t);
    let def = SequenceDef {
        data_type: data_type.to_owned(),
        start: 0,
        increment: 1,
        min: 0,
        max: 0,
        cache: 1,
        cycle: false,
        owned_by: None,
        identity: false,
    };
    let defaults = SequenceOptions {
        min: options.min.or(Some(None)),
        max: options.max.or(Some(None)),
        ..options.clone()
    };
    alter(def, t, &defaults, true)
}

/// A sequence with other options. A new one begins at its first value.
pub(super) fn alter(mut def: SequenceDef, t: &DataType, o: &SequenceOptions, new: bool) -> Result<SequenceDef> {
    let bad = |m: String| PlanError::new("22023", m);
    let (low, high, data_type) = limits(t);
    def.data_type = data_type.to_owned();
    if let Some(increment) = o.increment {
        if increment == 0 {
            return Err(bad("INCREMENT must not be zero".to_owned()));
        }
        def.increment = increment;
    }
    let ascending = def.increment > 0;
    if let Some(max) = o.max {
        def.max = max.unwrap_or(if ascending { high } else { -1 });
    }
    if let Some(min) = o.min {
        def.min = min.unwrap_or(if ascending { 1 } else { low });
    }
    for (value, word) in [(def.max, "MAXVALUE"), (def.min, "MINVALUE")] {
        if value < low || value > high {
            return Err(bad(format!(
                "{word} ({value}) is out of range for sequence data type {data_type}"
            )));
        }
    }
    if def.min >= def.max {
        return Err(bad(format!(
            "MINVALUE ({}) must be less than MAXVALUE ({})",
            def.min, def.max
        )));
    }
    match o.start {
        Some(start) => def.start = start,
        None if new => def.start = if ascending { def.min } else { def.max },
        None => {}
    }
    if def.start < def.min {
        return Err(bad(format!(
            "START value ({}) cannot be less than MINVALUE ({})",
            def.start, def.min
        )));
    }
    if def.start > def.max {
        return Err(bad(format!(
            "START value ({}) cannot be greater than MAXVALUE ({})",
            def.start, def.max
        )));
    }
    if let Some(cache) = o.cache {
        if cache < 1 {
            return Err(bad(format!("CACHE ({cache}) must be greater than zero")));
        }
        def.cache = cache;
    }
    if let Some(cycle) = o.cycle {
        def.cycle = cycle;
    }
    Ok(def)
}

/// The type of a sequence's name for it.
pub(super) fn type_of(def: &SequenceDef) -> DataType {
    match def.data_type.as_str() {
        "smallint" => DataType::Int16,
        "integer" => DataType::Int32,
        _ => DataType::Int64,
    }
}

/// The stored form of a sequence's next value.
pub(super) fn call(sequence: ObjectId) -> String {
    format!("{CALL}{})", sequence.0)
}

/// The sequences that a stored expression uses.
pub(super) fn mentioned(text: &str) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    for part in text.split(CALL).skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        if let Ok(id) = digits.parse() {
            ids.push(ObjectId(id));
        }
    }
    ids
}

/// A stored expression as clients see it, sequences by name.
pub fn shown_default(text: &str, catalog: &Catalog, name: &dyn Fn(&CatalogObject) -> String) -> String {
    let mut out = text.to_owned();
    for id in mentioned(text) {
        if let Some(sequence) = catalog.get(id) {
            let quoted = name(sequence).replace('\'', "''");
            out = out.replace(&call(id), &format!("nextval('{quoted}'::regclass)"));
        }
    }
    out
}

/// The parts of a name given as text, folded unless quoted.
fn parse_name(text: &str) -> Result<(Option<String>, String)> {
    let tokens = super::parse::tokenize(text)?;
    let mut parser = super::parse::sub_parser(tokens);
    let name = parser
        .parse_object_name(false)
        .map_err(|_| PlanError::new("42602", "invalid name syntax"))?;
    object_name(&name)
}

impl Binder {
    /// The sequence that a name given as text means.
    ///
    /// # Errors
    /// 42P01, 42809.
    pub fn sequence_named(&self, text: &str) -> Result<&CatalogObject> {
        let (schema, name) = parse_name(text)?;
        let missing = || PlanError::new("42P01", format!("relation \"{text}\" does not exist"));
        let object = self.object(schema.as_deref(), &name).ok_or_else(missing)?;
        match &object.kind {
            ObjectKind::Sequence(_) => Ok(object),
            _ => Err(PlanError::new("42809", format!("\"{name}\" is not a sequence"))),
        }
    }

    /// The expression with sequences by id in `nextval('name')`.
    pub(super) fn sequences_by_id(&self, e: &Expr) -> Result<Expr> {
        struct ById<'a>(&'a Binder);
        impl VisitorMut for ById<'_> {
            type Break = PlanError;
            fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<PlanError> {
                let Expr::Function(f) = e else {
                    return ControlFlow::Continue(());
                };
                let named = object_name(&f.name).is_ok_and(|(_, n)| n == "nextval");
                let Some(argument) = only_argument(f).filter(|_| named) else {
                    return ControlFlow::Continue(());
                };
                let inner = match &*argument {
                    Expr::Cast { expr, .. } => expr.as_ref(),
                    other => other,
                };
                let text = match inner {
                    Expr::Value(v) => match &v.value {
                        Value::SingleQuotedString(text) => Some(text.clone()),
                        _ => None,
                    },
                    _ => None,
                };
                if let Some(text) = text {
                    match self.0.sequence_named(&text) {
                        Ok(sequence) => *argument = Expr::value(Value::Number(sequence.id.0.to_string(), false)),
                        Err(e) => return ControlFlow::Break(e),
                    }
                }
                ControlFlow::Continue(())
            }
        }
        let mut e = e.clone();
        match VisitMut::visit(&mut e, &mut ById(self)) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(e),
        }
    }
}

fn only_argument(f: &mut ast::Function) -> Option<&mut Expr> {
    let ast::FunctionArguments::List(list) = &mut f.args else {
        return None;
    };
    match list.args.as_mut_slice() {
        [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(e))] => Some(e),
        _ => None,
    }
}
