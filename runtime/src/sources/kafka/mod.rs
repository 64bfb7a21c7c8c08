//! Kafka topics.
//!
//! A partition is a split; its number is the split's. Levee never joins a group and commits no offset: where each partition is stands in the
//! timeline, so a reader is told what to read. Reads are `read_committed`: what is cut lies before the last stable offset, without the records of
//! aborted transactions. Gaps in the offsets (transaction markers, compaction) are normal; what counts is that a range read again holds
//! the records that it held first.
//!
//! Start positions are made concrete at CREATE and kept: `earliest` is the oldest record of that moment. Partitions added later
//! start at their beginning.
//!
//! | happens | then |
//! | --- | --- |
//! | the broker is down | the source waits and says so in `levee_catalog.sources`; views answer with what they have |
//! | retention removes records that were not read yet, or the topic is created anew | the source's readers stop with an error |
//! | retention or compaction removes records that a restart must read again | the view that needs them stops with an error |
//! | compaction has removed records that a new view of a keyed source would read | the view shows itself when it has read what replaced them |

mod client;
mod read;

use std::sync::Arc;

use levee_planner::catalog::{Include, SourceDef};
use levee_planner::connectors::kafka::KafkaOptions;

use self::client::Cluster;
use super::fetch::{Connector, FetchError, Fetcher, Follower, LogSource};
use super::{DriverContext, SourceDriver, SplitInfo};
use crate::Result;

/// Offsets that one task reads as a unit.
const LANE: u64 = 4096;

/// Reads metadata: finds the partitions and where each starts. Blocks for some seconds at most.
///
/// # Errors
/// 22023 for an option that the client refuses, 08001 if no broker answers, 42704 if there is no such topic, 22023 for start offsets
/// that do not exist.
pub fn discover(def: &SourceDef) -> Result<Vec<SplitInfo>> {
    Cluster::new(KafkaOptions::parse(&def.options)?).discover()
}

/// The driver. Reaches out to nothing before the source is read.
///
/// # Errors
/// The options are malformed, or the format has no decoder.
pub fn driver(def: &SourceDef, context: DriverContext) -> Result<Arc<dyn SourceDriver>> {
    let kafka = Kafka {
        cluster: Arc::new(Cluster::new(KafkaOptions::parse(&def.options)?)),
        headers: def.includes.values().any(|i| matches!(i, Include::Header(_))),
    };
    Ok(Arc::new(LogSource::start(def, Box::new(kafka), context)?))
}

struct Kafka {
    cluster: Arc<Cluster>,
    /// A column shows headers.
    headers: bool,
}

impl Connector for Kafka {
    fn lane(&self) -> u64 {
        LANE
    }

    fn describe(&self, split: &SplitInfo) -> String {
        format!("partition {} of topic \"{}\"", split.name, self.cluster.topic())
    }

    fn follow(&self) -> Result<Box<dyn Follower>, FetchError> {
        Ok(Box::new(read::Tailing::new(&self.cluster, self.headers)?))
    }

    fn fetcher(&self) -> Result<Box<dyn Fetcher>, FetchError> {
        Ok(Box::new(read::Rereading::new(&self.cluster, self.headers)?))
    }

    fn bounds(&self, splits: &[SplitInfo]) -> Result<Vec<(u64, u64)>, FetchError> {
        let consumer = self.cluster.consumer()?;
        let bounds = splits.iter().map(|split| {
            let partition = client::partition(split)?;
            self.cluster.bounds(&consumer, partition)
        });
        bounds.collect()
    }
}
