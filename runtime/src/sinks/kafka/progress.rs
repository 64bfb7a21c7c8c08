//! The topic that holds a Kafka sink's marker, and what CREATE SINK looks at.

use std::time::{Duration, Instant};

use levee_planner::catalog::SinkDef;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use super::super::delivery::StopWatch;
use super::super::{Delivering, Marker, TargetError, TargetResult, identity, runtime, takes_over};
use super::{SLICE, client, words};
use crate::{Result, RuntimeError};

/// Longest question that cannot be interrupted.
const QUERY_WAIT: Duration = Duration::from_secs(5);

/// The topic beside `target` that holds its marker.
pub(super) fn topic(target: &str) -> String {
    format!("__levee_sink_progress.{target}")
}

/// The newest record of a progress topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Whose target it is.
    pub(super) sink: String,
    /// Where it stands.
    pub(super) marker: Option<Marker>,
    /// The sink has given the target up: the record has no value.
    pub(super) released: bool,
}

#[derive(Serialize, Deserialize)]
struct Value {
    sink: String,
    epoch: Option<u64>,
    part: Option<u64>,
}

impl Record {
    /// The record's value; none for a released target.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let value = Value {
            sink: self.sink.clone(),
            epoch: self.marker.map(|m| m.epoch),
            part: self.marker.map(|m| m.part),
        };
        serde_json::to_vec(&value).ok().filter(|_| !self.released)
    }

    fn decode(bytes: &[u8]) -> TargetResult<Self> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| TargetError::Lost(format!("the topic of the sink's marker holds something else: {e}")))?;
        Ok(Self {
            sink: value.sink,
            marker: value.epoch.zip(value.part).map(|(epoch, part)| Marker { epoch, part }),
            released: false,
        })
    }
}

/// Reads a target's marker.
pub(super) struct Progress<'a> {
    client: &'a ClientConfig,
    target: &'a str,
    stop: &'a StopWatch,
    timeout: Duration,
}

impl<'a> Progress<'a> {
    /// Of `target`.
    pub(super) fn new(client: &'a ClientConfig, target: &'a str, stop: &'a StopWatch, timeout: Duration) -> Self {
        Self {
            client,
            target,
            stop,
            timeout,
        }
    }

    fn consumer(&self, isolation: &str) -> TargetResult<BaseConsumer> {
        let mut config = self.client.clone();
        for own in ["transaction.timeout.ms", "transactional.id"] {
            config.remove(own);
        }
        config
            .set("group.id", "levee")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "earliest")
            .set("allow.auto.create.topics", "false")
            .set("isolation.level", isolation);
        config.create().map_err(|e| TargetError::Retry(words(&e)))
    }

    /// The newest committed record. A reader sees committed records up to the oldest open transaction only, so it waits until those
    /// that are open now have ended.
    pub(super) fn read(&self) -> TargetResult<Option<Record>> {
        let until = Instant::now() + self.timeout;
        let topic = topic(self.target);
        let failed = |e: KafkaError| TargetError::Retry(format!("reading the sink's marker: {}", words(&e)));
        let wait = self.timeout.min(QUERY_WAIT);
        let end = |consumer: &BaseConsumer| consumer.fetch_watermarks(&topic, 0, wait).map(|w| w.1);
        let written = end(&self.consumer("read_uncommitted")?).map_err(failed)?;
        let consumer = self.consumer("read_committed")?;
        while end(&consumer).map_err(failed)? < written {
            self.wait(until, &consumer)?;
        }
        let mut assignment = TopicPartitionList::new();
        assignment
            .add_partition_offset(&topic, 0, Offset::Beginning)
            .and_then(|()| consumer.assign(&assignment))
            .map_err(failed)?;
        let mut newest = None;
        loop {
            match consumer.poll(SLICE) {
                Some(Ok(message)) if message.key() == Some(self.target.as_bytes()) => {
                    newest = message.payload().map(Record::decode).transpose()?;
                }
                Some(Ok(_)) => {}
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(newest),
                Some(Err(error)) => return Err(failed(error)),
                None => {}
            }
            if self.stop.stopped() {
                return Err(TargetError::Stopped);
            }
            if Instant::now() > until {
                return Err(TargetError::Retry("reading the sink's marker: no answer".to_owned()));
            }
        }
    }

    fn wait(&self, until: Instant, consumer: &BaseConsumer) -> TargetResult<()> {
        if self.stop.stopped() {
            return Err(TargetError::Stopped);
        }
        if Instant::now() > until {
            return Err(TargetError::Retry(
                "a transaction on the topic of the sink's marker does not end".to_owned(),
            ));
        }
        // Serves the client's events; nothing is assigned yet.
        if consumer.poll(Duration::from_millis(50)).is_some() {
            tracing::trace!("an event of the consumer");
        }
        Ok(())
    }
}

/// Looks at the topic before the sink is created, and makes the one for its marker.
///
/// # Errors
/// What must be changed, for the user.
pub(in crate::sinks) fn check(def: &SinkDef) -> Result<()> {
    super::super::format::check_types(&def.schema)?;
    let config = client(def);
    let target = def.options.get("topic").cloned().unwrap_or_default();
    let timeout = Delivering::of(def).timeout;
    let admin: AdminClient<DefaultClientContext> = config.create().map_err(|e| RuntimeError::User {
        code: "22023",
        message: format!("Kafka's client cannot be made: {}", words(&e)),
        hint: Some("See the properties.* options; their names and values are librdkafka's.".to_owned()),
    })?;
    let unreachable = |why: String| RuntimeError::User {
        code: "08001",
        message: format!("the sink's target cannot be used: {why}"),
        hint: Some("Check properties.bootstrap.server and the security properties.".to_owned()),
    };
    let metadata = admin
        .inner()
        .fetch_metadata(Some(&target), timeout)
        .map_err(|e| unreachable(words(&e)))?;
    let found = metadata.topics().iter().find(|t| t.name() == target);
    if found.is_none_or(|t| t.error().is_some() || t.partitions().is_empty()) {
        return Err(RuntimeError::User {
            code: "42704",
            message: format!("topic \"{target}\" does not exist"),
            hint: Some("Create it first; Levee creates no topics but its own.".to_owned()),
        });
    }
    make_topic(&admin, &target, timeout).map_err(|e| unreachable(e.to_string()))?;
    let stop = StopWatch::never();
    let record = Progress::new(&config, &target, &stop, timeout)
        .read()
        .map_err(|e| unreachable(e.to_string()))?;
    if let Some(record) = record.filter(|r| r.sink != identity(def) && !takes_over(def)) {
        return Err(RuntimeError::User {
            code: "55000",
            message: format!("topic \"{target}\" belongs to another sink, {}", record.sink),
            hint: Some("Drop that sink, or give take_over = 'true': it stops when it is next started.".to_owned()),
        });
    }
    Ok(())
}

fn make_topic(admin: &AdminClient<DefaultClientContext>, target: &str, timeout: Duration) -> TargetResult<()> {
    let name = topic(target);
    let new = NewTopic::new(&name, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact")
        .set("segment.ms", "600000")
        .set("min.cleanable.dirty.ratio", "0.1");
    let options = AdminOptions::new().operation_timeout(Some(timeout));
    let runtime = runtime().map_err(TargetError::retry)?;
    let made = runtime
        .block_on(admin.create_topics([&new], &options))
        .map_err(|e| TargetError::Retry(words(&e)))?;
    for one in made {
        match one {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((name, code)) => return Err(TargetError::Retry(format!("topic {name} cannot be made: {code}"))),
        }
    }
    Ok(())
}
