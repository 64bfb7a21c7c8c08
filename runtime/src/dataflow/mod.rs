//! Runs a region's tasks.
