//! Logical plan → stream plan: lowering, derived properties, fragmenting, EXPLAIN.
