//! Scalar and aggregate functions with PostgreSQL's semantics, where DataFusion's own differ or are missing.
//!
//! Operators are functions here (`pg_add(a, b)`): they check for overflow and zero divisors, and every evaluator, batch or
//! streaming, that knows [`scalar_functions`] computes the same.

pub mod aggregate;
pub mod arith;
pub mod array;
mod bits;
pub mod by_key;
pub mod cast;
mod float;
mod interval;
pub mod json;
pub mod math;
pub mod ordered_set;
pub mod regression;
pub mod sets;
pub(super) mod sliding;
pub mod spread;
pub mod string;
mod string_agg;
pub mod time;
mod to_char;

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DataFusionError, Result as DfResult, ScalarValue};
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};

use crate::PlanError;

/// Computes the result type from the argument types and the constants among the arguments.
pub(super) type TypeFn = fn(&[DataType], &[Option<&ScalarValue>]) -> Result<DataType, PlanError>;
/// Evaluates on arrays of equal length.
pub(super) type EvalFn = fn(&[ArrayRef], &DataType) -> Result<ArrayRef, PlanError>;

/// Evaluates on columns and constants as they come, if it knows a quicker way for this mix; at least one argument is a column.
pub(super) type FastFn = fn(&[ColumnarValue], &DataType) -> Option<Result<ArrayRef, PlanError>>;

/// A function given by its name, typing and evaluation.
#[derive(Clone)]
pub(super) struct PgFunction {
    name: &'static str,
    signature: Signature,
    typing: TypeFn,
    eval: EvalFn,
    fast: Option<FastFn>,
}

impl PgFunction {
    /// An immutable function.
    pub fn new(name: &'static str, typing: TypeFn, eval: EvalFn) -> Self {
        Self {
            name,
            signature: Signature::variadic_any(Volatility::Immutable),
            typing,
            eval,
            fast: None,
        }
    }

    /// That may be called without arguments too.
    pub fn or_nullary(mut self) -> Self {
        let kinds = vec![TypeSignature::VariadicAny, TypeSignature::Nullary];
        self.signature = Signature::one_of(kinds, Volatility::Immutable);
        self
    }

    /// With a quicker way for some mixes of columns and constants.
    pub fn fast(mut self, fast: FastFn) -> Self {
        self.fast = Some(fast);
        self
    }
}

impl fmt::Debug for PgFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for PgFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for PgFunction {}

impl Hash for PgFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A planner error inside DataFusion's; [`super::errors::map_df_error`] takes it out again.
pub(crate) fn external(e: PlanError) -> DataFusionError {
    DataFusionError::External(Box::new(e))
}

impl ScalarUDFImpl for PgFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> DfResult<DataType> {
        (self.typing)(arg_types, &vec![None; arg_types.len()]).map_err(external)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        let t = (self.typing)(&types, args.scalar_arguments).map_err(external)?;
        Ok(Arc::new(arrow::datatypes::Field::new(self.name, t, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let all_scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        if let (Some(fast), false) = (self.fast, all_scalar)
            && let Some(out) = fast(&args.args, args.return_field.data_type())
        {
            return out.map(ColumnarValue::Array).map_err(external);
        }
        let rows = if all_scalar { 1 } else { args.number_rows };
        let arrays = args
            .args
            .iter()
            .map(|a| a.to_array(rows))
            .collect::<DfResult<Vec<_>>>()?;
        let out = (self.eval)(&arrays, args.return_field.data_type()).map_err(external)?;
        if all_scalar {
            return ScalarValue::try_from_array(&out, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(out))
    }
}

/// Every scalar function of this crate, by name.
static SCALARS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    let mut all = Vec::new();
    all.extend(arith::functions());
    all.extend(array::functions());
    all.extend(cast::functions());
    all.extend(float::functions());
    all.extend(json::functions());
    all.extend(math::functions());
    all.extend(regression::scalars());
    all.extend(sets::functions());
    all.extend(interval::functions());
    all.extend(string::functions());
    all.extend(time::functions());
    all.into_iter().map(|f| Arc::new(ScalarUDF::new_from_impl(f))).collect()
});

static AGGREGATES: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(aggregate::functions);

/// The scalar functions that plans of this crate may call besides DataFusion's; an evaluator must register them.
pub fn scalar_functions() -> &'static [Arc<ScalarUDF>] {
    &SCALARS
}

/// The aggregate functions likewise.
pub fn aggregate_functions() -> &'static [Arc<AggregateUDF>] {
    &AGGREGATES
}

/// One of [`scalar_functions`] by name.
pub(super) fn scalar(name: &str) -> Option<Arc<ScalarUDF>> {
    SCALARS.iter().find(|f| f.name() == name).cloned()
}

/// A call of one of [`scalar_functions`].
///
/// # Errors
/// XX000 if there is none of that name.
pub(crate) fn call(name: &str, args: Vec<datafusion::logical_expr::Expr>) -> DfResult<datafusion::logical_expr::Expr> {
    let f = scalar(name).ok_or_else(|| external(PlanError::internal(format!("function {name} is not registered"))))?;
    Ok(f.call(args))
}

/// Argument `i` as an array of a concrete type.
pub(super) fn downcast<T: Any>(args: &[ArrayRef], i: usize) -> Result<&T, PlanError> {
    args.get(i)
        .and_then(|a| a.as_any().downcast_ref::<T>())
        .ok_or_else(|| PlanError::internal(format!("argument {i} has an unexpected type")))
}

/// An array of nulls of a type.
pub(super) fn nulls(t: &DataType, rows: usize) -> ArrayRef {
    arrow::array::new_null_array(t, rows)
}

/// `function f(types) does not exist`.
pub(super) fn no_function(name: &str, types: &[DataType]) -> PlanError {
    let list: Vec<&str> = types.iter().map(super::types::base_name).collect();
    PlanError::new("42883", format!("function {name}({}) does not exist", list.join(", ")))
        .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
}

/// Rows where every argument is present.
pub(super) fn all_valid(args: &[ArrayRef], row: usize) -> bool {
    args.iter().all(|a| a.is_valid(row))
}
