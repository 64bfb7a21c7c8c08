//! Target `kafka`: a topic, written in transactions.
//!
//! ```text
//!   init_transactions (fences earlier lives, ends their transactions) ─▶ marker = newest record of __levee_sink_progress.TOPIC
//!   begin ─▶ records of the step ─▶ one record there: {"sink": …, "epoch": 48, "part": …} ─▶ commit
//! ```
//!
//! The marker is a record in a compacted topic of its own, one partition, key = the target topic, in the same transaction as the rows.
//! (Offsets of a consumer group would do as well, but a broker forgets those of a group that nobody uses for a week.) A topic for each
//! target, because a reader sees committed records only up to the oldest open transaction, which must not be another sink's.
//!
//! A step is one transaction, whatever its size: where a split one stands could only be told if every later life cut the same step.
//! `delivery = 'at-least-once'` writes without transactions, the marker after the rows: readers need not be read_committed and see rows
//! at once; after a crash a step may be there twice.
//!
//! | format | key | value |
//! | --- | --- | --- |
//! | plain | primary_key's columns as JSON, if given | the row |
//! | upsert | the key as JSON | the row; none after a deletion |
//! | debezium | the key as JSON | `{"before": …, "after": …, "op": "c"│"u"│"d"}` |
//!
//! Records of a key go to one partition, by the hash that Java's clients use.

use std::time::{Duration, Instant};

use levee_planner::catalog::{Encoding, SinkDef, SourceFormat};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};

use super::changes::{Change, Op};
use super::delivery::StopWatch;
use super::format::{Column, JsonRows, columns, put_csv};
use super::{Changes, Delivering, Marker, Target, TargetError, TargetResult, identity, takes_over};
use crate::Result;

mod progress;
pub(super) use progress::check;
use progress::{Progress, Record};

/// Calls of the client that cannot be interrupted last at most this long, and are repeated.
const SLICE: Duration = Duration::from_millis(500);

/// Set unless the user sets them.
const DEFAULTS: [(&str, &str); 7] = [
    ("client.id", "levee"),
    ("transaction.timeout.ms", "300000"),
    ("linger.ms", "5"),
    ("batch.size", "1000000"),
    ("reconnect.backoff.ms", "100"),
    ("reconnect.backoff.max.ms", "1000"),
    ("partitioner", "murmur2_random"),
];

/// Connector `kafka`.
pub(super) struct KafkaTarget {
    identity: String,
    takes_over: bool,
    exactly_once: bool,
    topic: String,
    client: ClientConfig,
    records: Records,
    stop: StopWatch,
    timeout: Duration,
    producer: Option<BaseProducer<Failures>>,
}

/// Notes the first record that a broker refused.
#[derive(Default)]
struct Failures(parking_lot::Mutex<Option<String>>);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.0.lock().get_or_insert_with(|| words(error));
        }
    }
}

/// An error in words.
fn words(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, why, key, _) => format!("{why} ({key})"),
        KafkaError::Transaction(why) => why.string(),
        other => match other.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => "no broker can be reached".to_owned(),
            Some(code) => code.to_string(),
            None => other.to_string(),
        },
    }
}

/// What every client of the sink is configured with: the user's `properties.*` are librdkafka's own names.
fn client(def: &SinkDef) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Error);
    for (key, value) in &def.options {
        match key.strip_prefix("properties.") {
            Some("bootstrap.server") => config.set("bootstrap.servers", value),
            Some(name) => config.set(name, value),
            None => &mut config,
        };
    }
    config
}

impl KafkaTarget {
    /// The target of a definition.
    ///
    /// # Errors
    /// None today; the client finds what is wrong with its properties when it is made.
    pub(super) fn new(def: &SinkDef, stop: StopWatch) -> Result<Self> {
        Ok(Self {
            identity: identity(def),
            takes_over: takes_over(def),
            exactly_once: def.options.get("delivery").is_none_or(|d| d == "exactly-once"),
            topic: def.options.get("topic").cloned().unwrap_or_default(),
            client: client(def),
            records: Records::new(def),
            stop,
            timeout: Delivering::of(def).timeout,
            producer: None,
        })
    }

    fn connect(&self) -> TargetResult<BaseProducer<Failures>> {
        let mut config = self.client.clone();
        for (key, value) in DEFAULTS {
            if config.get(key).is_none() {
                config.set(key, value);
            }
        }
        config.set("enable.idempotence", "true");
        config.set("allow.auto.create.topics", "false");
        if self.exactly_once {
            config.set("transactional.id", &self.identity);
        }
        let producer: BaseProducer<Failures> = config
            .create_with_context(Failures::default())
            .map_err(|e| TargetError::Retry(words(&e)))?;
        if self.exactly_once {
            self.repeat("waiting for Kafka's transaction coordinator", || {
                producer.init_transactions(SLICE)
            })?;
        }
        Ok(producer)
    }

    /// Repeats a call that goes on where it was while it says that the time is up.
    fn repeat(&self, what: &str, mut call: impl FnMut() -> Result<(), KafkaError>) -> TargetResult<()> {
        let until = Instant::now() + self.timeout;
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(e)) if e.is_retriable() && Instant::now() < until => {}
                Err(error) => return Err(TargetError::Retry(format!("{what}: {}", words(&error)))),
            }
            if self.stop.stopped() {
                return Err(TargetError::Stopped);
            }
        }
    }

    /// Puts a record into the producer's queue, waiting while it is full.
    fn send(
        &self,
        producer: &BaseProducer<Failures>,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> TargetResult<()> {
        let until = Instant::now() + self.timeout;
        let mut record = BaseRecord::<[u8], [u8]>::to(topic);
        record.key = key;
        record.payload = value;
        loop {
            match producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    producer.poll(Duration::from_millis(20));
                }
                Err((error, _)) => return Err(TargetError::Retry(format!("sending to Kafka: {}", words(&error)))),
            }
            if self.stop.stopped() {
                return Err(TargetError::Stopped);
            }
            if Instant::now() > until {
                return Err(TargetError::Retry(format!(
                    "Kafka took no records for {} s",
                    self.timeout.as_secs_f64()
                )));
            }
        }
    }

    /// One transaction (or, at least once, all its records acknowledged).
    fn transaction(
        &self,
        producer: &BaseProducer<Failures>,
        fill: impl FnOnce(&BaseProducer<Failures>) -> TargetResult<()>,
        marker: &Record,
    ) -> TargetResult<()> {
        let failed = |what: &str, e: &KafkaError| TargetError::Retry(format!("{what}: {}", words(e)));
        if self.exactly_once {
            producer
                .begin_transaction()
                .map_err(|e| failed("beginning a transaction", &e))?;
        }
        fill(producer)?;
        if !self.exactly_once {
            self.flush(producer)?;
        }
        let progress = progress::topic(&self.topic);
        let value = marker.encode();
        self.send(producer, &progress, Some(self.topic.as_bytes()), value.as_deref())?;
        fail::fail_point!("sink::commit", |_| Err(TargetError::Retry(
            "failpoint before the commit".to_owned()
        )));
        if !self.exactly_once {
            return self.flush(producer);
        }
        self.repeat("committing a transaction", || producer.commit_transaction(SLICE))?;
        self.refused(producer)
    }

    fn flush(&self, producer: &BaseProducer<Failures>) -> TargetResult<()> {
        let until = Instant::now() + self.timeout;
        while let Err(error) = producer.flush(SLICE) {
            if Instant::now() > until {
                return Err(TargetError::Retry(format!("waiting for Kafka: {}", words(&error))));
            }
            if self.stop.stopped() {
                return Err(TargetError::Stopped);
            }
        }
        self.refused(producer)
    }

    fn refused(&self, producer: &BaseProducer<Failures>) -> TargetResult<()> {
        match producer.context().0.lock().take() {
            Some(reason) => Err(TargetError::Retry(format!("a record was refused: {reason}"))),
            None => Ok(()),
        }
    }
}

impl Target for KafkaTarget {
    fn open(&mut self, fresh: bool) -> TargetResult<Option<Marker>> {
        // First: no transaction of an earlier producer of this sink may still be open.
        self.producer = None;
        let producer = self.connect()?;
        let progress = Progress::new(&self.client, &self.topic, &self.stop, self.timeout);
        let found = progress.read()?;
        let claim = |marker: &Record| self.transaction(&producer, |_| Ok(()), marker);
        let marker = match found {
            Some(record) if record.sink == self.identity => record.marker,
            Some(record) if !(fresh && self.takes_over) => {
                return Err(TargetError::Lost(format!(
                    "topic \"{}\" belongs to another sink, {}",
                    self.topic, record.sink
                )));
            }
            _ => {
                claim(&Record {
                    sink: self.identity.clone(),
                    marker: None,
                    released: false,
                })?;
                None
            }
        };
        self.producer = Some(producer);
        Ok(marker)
    }

    fn write(&mut self, _from: Option<Marker>, to: Marker, changes: &[Changes]) -> TargetResult<()> {
        let Some(producer) = self.producer.take() else {
            return Err(TargetError::Retry("not connected".to_owned()));
        };
        let marker = Record {
            sink: self.identity.clone(),
            marker: Some(to),
            released: false,
        };
        let fill =
            |producer: &BaseProducer<Failures>| changes.iter().try_for_each(|part| self.send_all(producer, part));
        self.transaction(&producer, fill, &marker)?;
        self.producer = Some(producer);
        Ok(())
    }

    fn release(&mut self) -> TargetResult<()> {
        self.producer = None;
        self.stop = StopWatch::never();
        let producer = self.connect()?;
        let progress = Progress::new(&self.client, &self.topic, &self.stop, self.timeout);
        if progress.read()?.is_some_and(|r| r.sink == self.identity) {
            let gone = Record {
                sink: self.identity.clone(),
                marker: None,
                released: true,
            };
            self.transaction(&producer, |_| Ok(()), &gone)?;
        }
        Ok(())
    }
}

impl KafkaTarget {
    fn send_all(&self, producer: &BaseProducer<Failures>, part: &Changes) -> TargetResult<()> {
        let columns = columns(&part.batch).map_err(|e| TargetError::Lost(e.to_string()))?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for change in &part.changes {
            key.clear();
            value.clear();
            let (has_key, has_value) = self.records.put(&columns, change, &mut key, &mut value);
            self.send(
                producer,
                &self.topic,
                has_key.then_some(key.as_slice()),
                has_value.then_some(value.as_slice()),
            )?;
            // Delivery reports must be taken, or the client keeps them.
            producer.poll(Duration::ZERO);
        }
        Ok(())
    }
}

/// How a change becomes a record.
struct Records {
    format: SourceFormat,
    csv: bool,
    key: Vec<usize>,
    key_rows: JsonRows,
    rows: JsonRows,
}

impl Records {
    fn new(def: &SinkDef) -> Self {
        Self {
            format: def.format,
            csv: def.encode == Encoding::Csv,
            key: def.key.clone(),
            key_rows: JsonRows::new(&def.schema, def.key.iter().copied()),
            rows: JsonRows::new(&def.schema, 0..def.schema.fields().len()),
        }
    }

    /// Writes a change's record; answers whether it has a key and a value.
    fn put(&self, columns: &[Column<'_>], change: &Change, key: &mut Vec<u8>, value: &mut Vec<u8>) -> (bool, bool) {
        if !self.key.is_empty() {
            let fields: Vec<&Column<'_>> = self.key.iter().map(|&c| &columns[c]).collect();
            self.key_rows.put(key, &fields, change.row(), None);
        }
        let all: Vec<&Column<'_>> = columns.iter().collect();
        let has_value = match self.format {
            SourceFormat::Debezium => {
                self.put_envelope(value, &all, change);
                true
            }
            SourceFormat::Upsert if change.op == Op::Delete => false,
            _ if self.csv => {
                put_csv(value, columns, change.row(), None);
                true
            }
            _ => {
                self.rows.put(value, &all, change.row(), None);
                true
            }
        };
        (!self.key.is_empty(), has_value)
    }

    fn put_envelope(&self, value: &mut Vec<u8>, columns: &[&Column<'_>], change: &Change) {
        let side = |value: &mut Vec<u8>, row: Option<u32>| match row {
            Some(row) => self.rows.put(value, columns, row as usize, None),
            None => value.extend_from_slice(b"null"),
        };
        value.extend_from_slice(b"{\"before\":");
        side(value, change.before);
        value.extend_from_slice(b",\"after\":");
        side(value, change.after);
        let op: &[u8] = match change.op {
            Op::Insert => b",\"op\":\"c\"}",
            Op::Update => b",\"op\":\"u\"}",
            Op::Delete => b",\"op\":\"d\"}",
        };
        value.extend_from_slice(op);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use levee_planner::catalog::SinkMode;

    use super::*;
    use crate::Delta;

    fn records(format: SourceFormat) -> Vec<(String, Option<String>)> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("v", DataType::Utf8, true),
        ]));
        let k = Int64Array::from(vec![1, 1, 2, 3]);
        let v = StringArray::from(vec![Some("old"), Some("new"), None, Some("gone")]);
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(k), Arc::new(v)]).unwrap();
        let delta = Delta::new(batch, vec![-1, 1, 1, -1]);
        let changes = Changes::new(&delta, &[0], SinkMode::Upsert).unwrap();
        let mut def = super::super::tests::definition("kafka");
        def.schema = schema;
        def.format = format;
        def.options = BTreeMap::new();
        let records = Records::new(&def);
        let columns = columns(&changes.batch).unwrap();
        let one = |change: &Change| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let (_, has_value) = records.put(&columns, change, &mut key, &mut value);
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(key), has_value.then(|| text(value)))
        };
        changes.changes.iter().map(one).collect()
    }

    #[test]
    fn an_upsert_topic_holds_rows_and_tombstones() {
        let expected = [
            (r#"{"k":1}"#, Some(r#"{"k":1,"v":"new"}"#)),
            (r#"{"k":2}"#, Some(r#"{"k":2,"v":null}"#)),
            (r#"{"k":3}"#, None),
        ];
        let found = records(SourceFormat::Upsert);
        let found: Vec<_> = found.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_envelope_has_both_sides() {
        let found = records(SourceFormat::Debezium);
        let values: Vec<_> = found.iter().filter_map(|r| r.1.as_deref()).collect();
        assert_eq!(
            values,
            [
                r#"{"before":{"k":1,"v":"old"},"after":{"k":1,"v":"new"},"op":"u"}"#,
                r#"{"before":null,"after":{"k":2,"v":null},"op":"c"}"#,
                r#"{"before":{"k":3,"v":"gone"},"after":null,"op":"d"}"#,
            ]
        );
    }
}
