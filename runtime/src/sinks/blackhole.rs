//! A target that takes everything and keeps nothing: for measuring, and for views that nobody reads.

use super::{Changes, Marker, Target, TargetResult};

/// Connector `blackhole`. Its region counts and checksums what it emits; there is no marker, so nothing is left out after a restart.
#[derive(Debug)]
pub struct Blackhole;

impl Target for Blackhole {
    fn open(&mut self, _fresh: bool) -> TargetResult<Option<Marker>> {
        Ok(None)
    }

    fn write(&mut self, _from: Option<Marker>, _to: Marker, _changes: &[Changes]) -> TargetResult<()> {
        Ok(())
    }

    fn release(&mut self) -> TargetResult<()> {
        Ok(())
    }
}
