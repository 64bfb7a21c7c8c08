//! The DataFusion session that optimises and runs batch plans, set to PostgreSQL's ways.

use std::sync::Arc;

use datafusion::execution::SessionState;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::optimizer::Optimizer;
use datafusion::prelude::SessionConfig;

use super::functions;

/// DataFusion functions that PostgreSQL does not have and whose names would only hide mistakes, or that tell the time.
const HIDDEN: [&str; 9] = [
    "now",
    "current_timestamp",
    "current_date",
    "current_time",
    "today",
    "version",
    "arrow_cast",
    "arrow_metadata",
    "to_unixtime",
];

/// A session state. `parallelism` bounds the partitions of a plan; `runtime` carries the memory limit.
pub fn pg_session_state(parallelism: usize, runtime: Option<Arc<RuntimeEnv>>) -> SessionState {
    let mut config = SessionConfig::new()
        .with_target_partitions(parallelism.clamp(1, 4))
        .with_information_schema(false)
        .with_default_catalog_and_schema("dev", "public")
        .with_batch_size(8192);
    let options = config.options_mut();
    options.execution.time_zone = Some("UTC".to_owned());
    options.sql_parser.parse_float_as_decimal = true;
    options.sql_parser.map_string_types_to_utf8view = false;
    options.sql_parser.default_null_ordering = "nulls_max".to_owned();
    options.sql_parser.enable_ident_normalization = true;
    options.sql_parser.collect_spans = false;
    // The rewrite into a join does not notice a second row.
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = true;
    options.optimizer.expand_views_at_output = false;
    // That rule sums the sums of its inner groups, and a sum of bigint is numeric here.
    let rules = Optimizer::new()
        .rules
        .into_iter()
        .filter(|r| r.name() != "single_distinct_aggregation_to_group_by");
    let rules = crate::interrupt::interruptible(rules);
    let mut builder = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_optimizer_rules(rules);
    if let Some(runtime) = runtime {
        builder = builder.with_runtime_env(runtime);
    }
    {
        let scalars = builder.scalar_functions().get_or_insert_default();
        scalars.retain(|f| !HIDDEN.contains(&f.name()));
        scalars.extend(functions::scalar_functions().iter().cloned());
    }
    {
        let aggregates = builder.aggregate_functions().get_or_insert_default();
        aggregates.extend(functions::aggregate_functions().iter().cloned());
    }
    builder.build()
}
