//! The cluster: clients of it, partitions, offsets.

use std::collections::BTreeMap;
use std::time::Duration;

use levee_planner::connectors::kafka::{KafkaOptions, Startup};
use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};

use crate::sources::SplitInfo;
use crate::sources::fetch::FetchError;
use crate::{Result, RuntimeError};

/// How long CREATE and sampling wait for a broker.
const CREATE_WAIT: Duration = Duration::from_secs(8);
/// How long anything else does.
const QUERY_WAIT: Duration = Duration::from_secs(2);

/// Set unless the user sets them.
const DEFAULTS: [(&str, &str); 9] = [
    ("client.id", "levee"),
    // Buffered by librdkafka besides Levee's own budget.
    ("queued.max.messages.kbytes", "8192"),
    ("queued.min.messages", "20000"),
    // How long librdkafka waits after its buffers were full; its default of a second would leave the follower without records.
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.error.backoff.ms", "200"),
    ("reconnect.backoff.ms", "100"),
    ("reconnect.backoff.max.ms", "1000"),
    ("socket.timeout.ms", "10000"),
    ("topic.metadata.refresh.interval.ms", "10000"),
];

/// Set always: what is read when is Levee's business.
const FIXED: [(&str, &str); 9] = [
    // A consumer must have a name for a group, which it never joins.
    ("group.id", "levee"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("enable.partition.eof", "true"),
    ("isolation.level", "read_committed"),
    ("allow.auto.create.topics", "false"),
    ("check.crcs", "true"),
    // There is no group to leave when nothing is polled for long.
    ("max.poll.interval.ms", "86400000"),
];

/// How often librdkafka tells where partitions end, milliseconds.
const STATISTICS_MS: &str = "2000";

/// Takes librdkafka's statistics, of which only the partitions' ends matter.
#[derive(Default)]
pub(super) struct Watch {
    /// One past the newest record that may be read, by partition.
    pub(super) ends: Mutex<BTreeMap<i32, u64>>,
}

impl ClientContext for Watch {
    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|t| t.partitions.values());
        let mut ends = self.ends.lock();
        for partition in partitions {
            let end = match partition.ls_offset {
                ..0 => partition.hi_offset,
                stable => stable,
            };
            if let Ok(end) = u64::try_from(end) {
                ends.insert(partition.partition, end);
            }
        }
    }
}

impl ConsumerContext for Watch {}

/// A topic of a cluster.
pub(super) struct Cluster {
    options: KafkaOptions,
}

impl Cluster {
    pub(super) fn new(options: KafkaOptions) -> Self {
        Self { options }
    }

    pub(super) fn topic(&self) -> &str {
        &self.options.topic
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Error);
        config.set("bootstrap.servers", &self.options.servers);
        for (name, value) in DEFAULTS {
            config.set(name, value);
        }
        for (name, value) in &self.options.properties {
            config.set(name, value);
        }
        for (name, value) in FIXED {
            config.set(name, value);
        }
        config
    }

    /// A new client. Connects in the background.
    pub(super) fn consumer(&self) -> Result<BaseConsumer, FetchError> {
        self.config().create().map_err(|e| unfit(&e))
    }

    /// A client that follows the topic and notes where its partitions end.
    pub(super) fn follower(&self) -> Result<BaseConsumer<Watch>, FetchError> {
        let mut config = self.config();
        config.set("statistics.interval.ms", STATISTICS_MS);
        config.create_with_context(Watch::default()).map_err(|e| unfit(&e))
    }

    /// A client for records that exist. A broker answers the requests of one connection in order, so one that waits for new records
    /// would hold up the request for the next range.
    pub(super) fn reader(&self) -> Result<BaseConsumer, FetchError> {
        let mut config = self.config();
        config.set("fetch.wait.max.ms", "5");
        config.create().map_err(|e| unfit(&e))
    }

    /// An error of a broker or of the way to it.
    pub(super) fn waiting(&self, error: &KafkaError) -> FetchError {
        FetchError::Retry(format!("Kafka at {}: {}", self.options.servers, text(error)))
    }

    /// The number of partitions.
    pub(super) fn partitions<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        wait: Duration,
    ) -> Result<i32, KafkaError> {
        let metadata = consumer.fetch_metadata(Some(self.topic()), wait)?;
        let topic = metadata.topics().iter().find(|t| t.name() == self.topic());
        let Some(topic) = topic else {
            return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopic));
        };
        if let Some(error) = topic.error() {
            return Err(KafkaError::MetadataFetch(error.into()));
        }
        let highest = topic
            .partitions()
            .iter()
            .map(rdkafka::metadata::MetadataPartition::id)
            .max();
        Ok(highest.map_or(0, |p| p + 1))
    }

    /// Splits for `partitions` partitions from their beginning.
    pub(super) fn splits(partitions: i32) -> Vec<SplitInfo> {
        (0..partitions)
            .map(|partition| SplitInfo {
                name: partition.to_string(),
                start: 0,
                meta: Vec::new(),
            })
            .collect()
    }

    /// Offset of the oldest record of a partition, and one past the newest.
    pub(super) fn bounds<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        partition: i32,
    ) -> Result<(u64, u64), FetchError> {
        match consumer.fetch_watermarks(self.topic(), partition, QUERY_WAIT) {
            Ok((low, high)) => Ok((low.max(0) as u64, high.max(0) as u64)),
            Err(error) => Err(self.waiting(&error)),
        }
    }

    /// The partitions with the offsets at which the source starts.
    pub(super) fn discover(&self) -> Result<Vec<SplitInfo>> {
        let consumer: BaseConsumer = self.config().create().map_err(|e| RuntimeError::User {
            code: "22023",
            message: format!("Kafka's client cannot be made: {}", refusal(&e)),
            hint: Some("See the properties.* options; their names and values are librdkafka's.".to_owned()),
        })?;
        let count = self
            .partitions(&consumer, CREATE_WAIT)
            .map_err(|e| self.unreachable(&e))?;
        if count == 0 {
            return Err(self.unreachable(&KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopic)));
        }
        let mut splits = Self::splits(count);
        let by_time = match self.options.startup {
            Startup::Timestamp(millis) => Some(self.offsets_at(&consumer, count, millis)?),
            _ => None,
        };
        if let Startup::Offsets(offsets) = &self.options.startup
            && let Some(unknown) = offsets.keys().find(|p| **p >= count)
        {
            let message = format!("topic \"{}\" has no partition {unknown}", self.topic());
            return Err(RuntimeError::user("22023", message));
        }
        for (split, partition) in splits.iter_mut().zip(0..) {
            let (low, high) = consumer
                .fetch_watermarks(self.topic(), partition, CREATE_WAIT)
                .map(|(low, high)| (low.max(0) as u64, high.max(0) as u64))
                .map_err(|e| self.unreachable(&e))?;
            split.start = match &self.options.startup {
                Startup::Earliest => low,
                Startup::Latest => high,
                Startup::Timestamp(_) => by_time
                    .as_ref()
                    .and_then(|t| t.find_partition(self.topic(), partition))
                    .and_then(|found| match found.offset() {
                        Offset::Offset(offset) => u64::try_from(offset).ok(),
                        _ => None,
                    })
                    .unwrap_or(high),
                Startup::Offsets(offsets) => match offsets.get(&partition) {
                    Some(&offset) => self.given(partition, offset, low, high)?,
                    None => low,
                },
            };
        }
        Ok(splits)
    }

    fn given(&self, partition: i32, offset: i64, low: u64, high: u64) -> Result<u64> {
        u64::try_from(offset)
            .ok()
            .filter(|o| (low..=high).contains(o))
            .ok_or_else(|| RuntimeError::User {
                code: "22023",
                message: format!(
                    "offset {offset} is not in partition {partition} of topic \"{}\"",
                    self.topic()
                ),
                hint: Some(format!("It holds the offsets from {low} to before {high}.")),
            })
    }

    /// The first offsets with this time or a later one.
    fn offsets_at(&self, consumer: &BaseConsumer, partitions: i32, millis: i64) -> Result<TopicPartitionList> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..partitions {
            asked
                .add_partition_offset(self.topic(), partition, Offset::Offset(millis))
                .map_err(|e| self.unreachable(&e))?;
        }
        consumer
            .offsets_for_times(asked, CREATE_WAIT)
            .map_err(|e| self.unreachable(&e))
    }

    /// CREATE's error.
    fn unreachable(&self, error: &KafkaError) -> RuntimeError {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition) => RuntimeError::User {
                code: "42704",
                message: format!("topic \"{}\" does not exist at {}", self.topic(), self.options.servers),
                hint: Some("Create it first; Levee creates no topics.".to_owned()),
            },
            _ => RuntimeError::User {
                code: "08001",
                message: format!("Kafka at {} does not answer: {}", self.options.servers, text(error)),
                hint: Some("Check properties.bootstrap.server and the security properties.".to_owned()),
            },
        }
    }
}

/// The partition that a split is.
pub(super) fn partition(split: &SplitInfo) -> Result<i32, FetchError> {
    split
        .name
        .parse()
        .map_err(|_| FetchError::Lost(format!("\"{}\" is no partition", split.name)))
}

/// The error of a client that cannot be made.
fn unfit(error: &KafkaError) -> FetchError {
    FetchError::Lost(format!("Kafka's client cannot be made: {}", refusal(error)))
}

/// What librdkafka says against a configuration.
fn refusal(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, why, _, _) => why.clone(),
        other => other.to_string(),
    }
}

/// An error in words.
pub(super) fn text(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::AllBrokersDown) => "no broker can be reached".to_owned(),
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}
