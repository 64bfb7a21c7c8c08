//! How a source's records are decoded, and have been: one definition for each revision that changed it.
//!
//! ALTER … SET changes what records mean from one epoch on. A range is decoded as the revision says under which it was cut, also when it is
//! read again by a restart or by a younger view: what a range holds never changes. So a record that was broken under an older revision
//! stays broken there, and a replay of the kept bytes is the only place where it becomes a row.

use std::sync::Arc;

use levee_planner::catalog::SourceDef;
use parking_lot::RwLock;

use crate::{Result, RuntimeError};

/// Definitions of one source by the first revision that each holds for; ascending.
#[derive(Debug, Default)]
pub struct Versions(RwLock<Vec<(u32, Arc<SourceDef>)>>);

impl Versions {
    /// Adds a definition that holds from its revision on. One that is known changes nothing.
    pub fn add(&self, def: &SourceDef) {
        let mut all = self.0.write();
        match all.last() {
            Some((revision, newest)) if *revision >= def.revision || newest.encode_options == def.encode_options => {}
            _ => all.push((def.revision, Arc::new(def.clone()))),
        }
    }

    /// Makes sure that there is a definition at all: for drivers outside the timeline.
    pub fn ensure(&self, def: &SourceDef) {
        let mut all = self.0.write();
        if all.is_empty() {
            all.push((0, Arc::new(def.clone())));
        }
    }

    /// The revision that the definition of `revision` began with, and the definition.
    ///
    /// # Errors
    /// There is none.
    pub fn at(&self, revision: u32) -> Result<(u32, Arc<SourceDef>)> {
        let all = self.0.read();
        let found = all.iter().rev().find(|(first, _)| *first <= revision);
        found
            .map(|(first, def)| (*first, Arc::clone(def)))
            .ok_or_else(|| RuntimeError::internal(format!("a source has no definition of revision {revision}")))
    }

    /// The newest definition's revision.
    pub fn newest(&self) -> u32 {
        self.0.read().last().map_or(0, |(revision, _)| *revision)
    }
}
