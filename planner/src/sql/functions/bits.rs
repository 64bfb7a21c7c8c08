//! `bit_xor`: DataFusion's, but DISTINCT over groups.
//!
//! DataFusion offers its quick state for groups with DISTINCT too, and that takes every value. A value that stands twice must count once, so
//! such groups get the state that knows which values it has seen.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result as DfResult;
use datafusion::functions_aggregate::bit_and_or_xor::bit_xor_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, Signature,
};

pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    vec![Arc::new(AggregateUDF::new_from_impl(PgBitXor {
        inner: bit_xor_udaf(),
    }))]
}

/// The aggregate function of batch queries.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PgBitXor {
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for PgBitXor {
    fn name(&self) -> &str {
        "bit_xor"
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, t: &[DataType]) -> DfResult<DataType> {
        self.inner.return_type(t)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !args.is_distinct && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}
