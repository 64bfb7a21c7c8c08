//! Arrow types and their PostgreSQL names.
