//! `nextval` and its kin.
//!
//! They work on whole batches: `nextval` over n rows takes n values at once. What `currval` and `lastval` tell is the session's own.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use levee_planner::catalog::{CatalogObject, ObjectKind};
use levee_planner::plan::ObjectId;

use super::SystemContext;
use crate::error::{Result, SqlError};
use crate::types::encode::{TextStyle, value_text};

/// The values that a session has taken.
#[derive(Debug, Default)]
pub struct SessionSequences {
    values: HashMap<ObjectId, i64>,
    last: Option<ObjectId>,
}

/// Shared between a session and the functions of its statements.
pub type SharedSequences = Arc<Mutex<SessionSequences>>;

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Next,
    Current,
    Last,
    Set,
}

/// The functions for one statement.
pub fn all(context: &Arc<SystemContext>) -> Vec<Arc<ScalarUDF>> {
    [Kind::Next, Kind::Current, Kind::Last, Kind::Set]
        .into_iter()
        .map(|kind| {
            let arity = match kind {
                Kind::Last => TypeSignature::Nullary,
                Kind::Next | Kind::Current => TypeSignature::Any(1),
                Kind::Set => TypeSignature::OneOf(vec![TypeSignature::Any(2), TypeSignature::Any(3)]),
            };
            Arc::new(ScalarUDF::new_from_impl(SequenceFunction {
                kind,
                signature: Signature::new(arity, Volatility::Volatile),
                context: Arc::clone(context),
            }))
        })
        .collect()
}

#[derive(Debug)]
struct SequenceFunction {
    kind: Kind,
    signature: Signature,
    context: Arc<SystemContext>,
}

impl PartialEq for SequenceFunction {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl Eq for SequenceFunction {}

impl Hash for SequenceFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
    }
}

impl SequenceFunction {
    /// The sequence that an argument names: by OID, or by name along the search path.
    fn sequence(&self, text: &str) -> Result<&Arc<CatalogObject>> {
        let oid = super::functions::regclass(&self.context, text);
        let id = oid.and_then(|o| u32::try_from(o).ok()).map(ObjectId);
        let found = id.and_then(|id| self.context.catalog.shared(id));
        let object = found.ok_or_else(|| SqlError::new("42P01", format!("relation \"{text}\" does not exist")))?;
        match object.kind {
            ObjectKind::Sequence(_) => Ok(object),
            _ => Err(SqlError::new("42809", format!("\"{}\" is not a sequence", object.name))),
        }
    }

    fn session(&self) -> std::sync::MutexGuard<'_, SessionSequences> {
        self.context.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One sequence for all rows is the rule; rows with different ones are taken one by one.
    fn next(&self, names: &[Option<String>]) -> Result<Vec<Option<i64>>> {
        if self.context.read_only {
            return Err(SqlError::new(
                "25006",
                "cannot execute nextval() in a read-only transaction",
            ));
        }
        let engine = &self.context.server.engine;
        let mut out = Vec::with_capacity(names.len());
        let mut at = 0;
        while let Some(name) = names.get(at) {
            let same = names[at..].iter().take_while(|n| *n == name).count();
            at += same;
            let Some(name) = name else {
                out.extend(std::iter::repeat_n(None, same));
                continue;
            };
            let id = self.sequence(name)?.id;
            let values = engine.next_values(id, same)?;
            if let Some(last) = values.last() {
                let mut session = self.session();
                session.values.insert(id, *last);
                session.last = Some(id);
            }
            out.extend(values.into_iter().map(Some));
        }
        Ok(out)
    }

    fn current(&self, name: &str) -> Result<i64> {
        let object = self.sequence(name)?;
        let value = self.session().values.get(&object.id).copied();
        value.ok_or_else(|| {
            SqlError::new(
                "55000",
                format!(
                    "currval of sequence \"{}\" is not yet defined in this session",
                    object.name
                ),
            )
        })
    }

    fn last(&self) -> Result<i64> {
        let session = self.session();
        let id = session.last.filter(|id| self.context.catalog.get(*id).is_some());
        let value = id.and_then(|id| session.values.get(&id).copied());
        value.ok_or_else(|| SqlError::new("55000", "lastval is not yet defined in this session"))
    }

    fn set(&self, name: &str, value: i64, called: bool) -> Result<i64> {
        let id = self.sequence(name)?.id;
        self.context.server.engine.set_sequence(id, value, called)?;
        if called {
            self.session().values.insert(id, value);
        }
        Ok(value)
    }

    fn rows(&self, arrays: &[ArrayRef], n: usize) -> Result<Vec<Option<i64>>> {
        let style = TextStyle::default();
        let names = match arrays.first() {
            None => vec![None; n],
            Some(a) if a.data_type() == &DataType::Null => vec![None; n],
            Some(a) => (0..n).map(|i| value_text(a, i, &style)).collect::<Result<Vec<_>>>()?,
        };
        match self.kind {
            Kind::Next => self.next(&names),
            Kind::Last => (0..n).map(|_| self.last().map(Some)).collect(),
            Kind::Current => names
                .iter()
                .map(|name| name.as_deref().map(|name| self.current(name)).transpose())
                .collect(),
            Kind::Set => {
                let values = arrow::compute::cast(&arrays[1], &DataType::Int64)?;
                let values = values.as_primitive::<Int64Type>();
                let called = arrays
                    .get(2)
                    .map(|a| arrow::compute::cast(a, &DataType::Boolean))
                    .transpose()?;
                let mut out = Vec::with_capacity(n);
                for (i, name) in names.iter().enumerate() {
                    let called = match &called {
                        None => Some(true),
                        Some(c) => c.is_valid(i).then(|| c.as_boolean().value(i)),
                    };
                    out.push(match (name, values.is_valid(i), called) {
                        (Some(name), true, Some(called)) => Some(self.set(name, values.value(i), called)?),
                        _ => None,
                    });
                }
                Ok(out)
            }
        }
    }
}

impl ScalarUDFImpl for SequenceFunction {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Next => "nextval",
            Kind::Current => "currval",
            Kind::Last => "lastval",
            Kind::Set => "setval",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let n = args.number_rows;
        let arrays: Vec<ArrayRef> = args
            .args
            .into_iter()
            .map(|a| a.into_array(n))
            .collect::<DfResult<_>>()?;
        let values = self
            .rows(&arrays, n)
            .map_err(|e| DataFusionError::External(Box::new(e)))?;
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from(values))))
    }
}
