//! Epochs, the catalog, steps, checkpoints, recovery.
