//! Levee's own fixed hash of rows, and vnodes. It never changes between builds: state files and routing depend on it.
