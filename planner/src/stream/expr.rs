//! Scalar expressions: DataFusion's logical form → compiled form → bytes, and back.
//!
//! ```text
//!   Expr ──compile──▶ PhysicalExpr ──encode──▶ PlanExpr { proto, display } ──decode──▶ PhysicalExpr
//!        (planner, names → indices)   (catalog)                            (once per task)
//! ```
//!
//! Two things differ from DataFusion's defaults. Integer `+`, `-` and `*` fail on overflow instead of wrapping around; the
//! flag is not part of the protobuf form, so [`decode`] sets it again. And the set of functions that bytes may name is fixed
//! here, in [`functions`], not taken from a session.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::Schema;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::context::ExecutionProps;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionStateDefaults, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, Operator, ScalarUDF};
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::prelude::SessionConfig;
use datafusion_proto::physical_plan::from_proto::parse_physical_expr;
use datafusion_proto::physical_plan::to_proto::serialize_physical_expr;
use datafusion_proto::physical_plan::{AsExecutionPlan, DefaultPhysicalExtensionCodec};
use datafusion_proto::protobuf::physical_plan_node::PhysicalPlanType;
use datafusion_proto::protobuf::{PhysicalPlanNode, ProjectionExecNode};

use crate::plan::PlanExpr;
use crate::{PlanError, Result};

/// Every scalar function that a stored expression may name; of two with one name the later counts.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let mut all = SessionStateDefaults::default_scalar_functions();
    all.extend(crate::sql::functions::scalar_functions().iter().cloned());
    all
}

/// The registry that stored expressions are read with; built once per process.
static REGISTRY: LazyLock<TaskContext> = LazyLock::new(|| {
    let mut scalar = HashMap::new();
    for function in functions() {
        for alias in function.aliases() {
            scalar.insert(alias.clone(), Arc::clone(&function));
        }
        scalar.insert(function.name().to_string(), function);
    }
    let higher_order = SessionStateDefaults::default_higher_order_functions()
        .into_iter()
        .map(|f| (f.name().to_string(), f))
        .collect();
    TaskContext::new(
        None,
        "stream".to_string(),
        session_config(),
        scalar,
        higher_order,
        HashMap::new(),
        HashMap::new(),
        Arc::new(RuntimeEnv::default()),
    )
});

/// The options that streaming expressions are planned and evaluated with.
pub(crate) fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new();
    let options = config.options_mut();
    options.execution.time_zone = Some("UTC".to_string());
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    options.optimizer.filter_null_join_keys = false;
    options.optimizer.skip_failed_rules = false;
    config
}

/// Compiles a bound expression: names become indices into `input`'s columns.
///
/// # Errors
/// A name that `input` lacks, or an expression without a compiled form.
pub fn compile(expr: &Expr, input: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
    let mut props = ExecutionProps::new();
    props.config_options = Some(Arc::clone(REGISTRY.session_config().options()));
    let compiled = create_physical_expr(expr, input, &props, &PhysicalPlanningContext::default()).map_err(|e| {
        PlanError::unsupported(format!("expression {expr} is not supported in a materialized view"))
            .detail(e.to_string())
    })?;
    checked(compiled)
}

/// Makes integer arithmetic fail on overflow.
fn checked(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let out = expr.transform_up(|e| {
        let Some(binary) = e.downcast_ref::<BinaryExpr>() else {
            return Ok(Transformed::no(e));
        };
        if !matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply) {
            return Ok(Transformed::no(e));
        }
        let strict = BinaryExpr::new(Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right()))
            .with_fail_on_overflow(true);
        Ok(Transformed::yes(Arc::new(strict) as Arc<dyn PhysicalExpr>))
    });
    Ok(out.map_err(|e| PlanError::internal(e.to_string()))?.data)
}

/// The stored form of a compiled expression.
///
/// # Errors
/// An expression without a stored form.
pub fn encode(expr: &Arc<dyn PhysicalExpr>) -> Result<PlanExpr> {
    let display = super::render::sql(expr);
    let unsupported = |e: datafusion::error::DataFusionError| {
        PlanError::unsupported(format!("expression {display} cannot be stored in a materialized view"))
            .detail(e.to_string())
    };
    let node = serialize_physical_expr(expr, &DefaultPhysicalExtensionCodec {}).map_err(unsupported)?;
    // A plan node is the smallest message for which the crate exposes bytes.
    let wrapper = PhysicalPlanNode {
        physical_plan_type: Some(PhysicalPlanType::Projection(Box::new(ProjectionExecNode {
            input: None,
            expr: vec![node],
            expr_name: Vec::new(),
        }))),
    };
    let mut proto = Vec::new();
    wrapper.try_encode(&mut proto).map_err(unsupported)?;
    Ok(PlanExpr { proto, display })
}

/// Reads what [`encode`] wrote; `input` is the schema of the operator's input.
///
/// # Errors
/// Damaged bytes, or a function that this build does not have.
pub fn decode(expr: &PlanExpr, input: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let damaged =
        |reason: String| PlanError::internal(format!("stored expression {} cannot be read: {reason}", expr.display));
    let wrapper = PhysicalPlanNode::try_decode(&expr.proto).map_err(|e| damaged(e.to_string()))?;
    let Some(PhysicalPlanType::Projection(projection)) = wrapper.physical_plan_type else {
        return Err(damaged("unknown kind of message".to_string()));
    };
    let [node] = projection.expr.as_slice() else {
        return Err(damaged("not exactly one expression".to_string()));
    };
    let read = parse_physical_expr(node, &REGISTRY, input, &DefaultPhysicalExtensionCodec {})
        .map_err(|e| damaged(e.to_string()))?;
    checked(read)
}
