//! Reading partitions: their ends as they grow, and ranges that were read before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, Timestamp, TopicPartitionList};

use super::client::{Cluster, Watch, partition, text};
use crate::sources::fetch::{FetchError, Fetcher, Follower, RawRecord, put_header};
use crate::sources::{SplitInfo, SplitRange};

/// How long a broker may take to list the partitions.
const LIST_WAIT: Duration = Duration::from_secs(2);
/// A fetch without a record for so long is tried again.
const FETCH_WAIT: Duration = Duration::from_secs(10);

/// Reads what a message holds, into `headers` too if they are wanted.
fn raw<'a>(message: &'a BorrowedMessage<'_>, headers: Option<&'a mut Vec<u8>>) -> RawRecord<'a> {
    let headers: &[u8] = match headers {
        None => &[],
        Some(bytes) => {
            bytes.clear();
            for header in message.headers().into_iter().flat_map(Headers::iter) {
                put_header(bytes, header.key, header.value);
            }
            bytes
        }
    };
    RawRecord {
        offset: message.offset().max(0) as u64,
        timestamp_us: match message.timestamp() {
            Timestamp::NotAvailable => None,
            Timestamp::CreateTime(ms) | Timestamp::LogAppendTime(ms) => Some(ms.saturating_mul(1000)),
        },
        key: message.key(),
        value: message.payload(),
        headers,
    }
}

fn is_out_of_range(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)
    )
}

/// Follows all partitions.
pub(super) struct Tailing {
    cluster: Arc<Cluster>,
    consumer: BaseConsumer<Watch>,
    /// Per partition: the next offset.
    next: BTreeMap<i32, u64>,
    ends: Vec<(u32, u64)>,
    headers: Option<Vec<u8>>,
    /// The brokers could not be reached; nothing has come since.
    down: Option<String>,
}

impl Tailing {
    pub(super) fn new(cluster: &Arc<Cluster>, headers: bool) -> Result<Self, FetchError> {
        Ok(Self {
            consumer: cluster.follower()?,
            cluster: Arc::clone(cluster),
            next: BTreeMap::new(),
            ends: Vec::new(),
            headers: headers.then(Vec::new),
            down: None,
        })
    }

    /// Which partition has no record where it was to go on, and why.
    fn lost(&self, error: &KafkaError) -> FetchError {
        for (&partition, &next) in &self.next {
            let (low, high) = match self.cluster.bounds(&self.consumer, partition) {
                Ok(bounds) => bounds,
                Err(error) => return error,
            };
            let place = format!("partition {partition} of topic \"{}\"", self.cluster.topic());
            if next < low {
                return FetchError::Lost(format!(
                    "offsets {next} to {} of {place} were removed by retention before they were read",
                    low - 1
                ));
            }
            if next > high {
                return FetchError::Lost(format!(
                    "{place} ends at offset {high}, but was read up to {next}: it has been created anew"
                ));
            }
        }
        self.cluster.waiting(error)
    }

    /// After an outage: whether the brokers answer again.
    fn look(&mut self) -> Result<(), FetchError> {
        if self.down.is_none() {
            return Ok(());
        }
        match self.cluster.partitions(&self.consumer, LIST_WAIT) {
            Ok(_) => {
                self.down = None;
                Ok(())
            }
            Err(error) => Err(self.cluster.waiting(&error)),
        }
    }
}

impl Follower for Tailing {
    fn splits(&mut self) -> Result<Vec<SplitInfo>, FetchError> {
        let count = self
            .cluster
            .partitions(&self.consumer, LIST_WAIT)
            .map_err(|e| self.cluster.waiting(&e))?;
        self.down = None;
        Ok(Cluster::splits(count))
    }

    fn add(&mut self, split: u32, info: &SplitInfo, from: u64) -> Result<(), FetchError> {
        let partition = partition(info)?;
        debug_assert_eq!(i64::from(split), i64::from(partition));
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
        list.add_partition_offset(self.cluster.topic(), partition, offset)
            .and_then(|()| self.consumer.incremental_assign(&list))
            .map_err(|e| self.cluster.waiting(&e))?;
        self.next.insert(partition, from);
        Ok(())
    }

    fn poll(&mut self, wait: Duration, take: &mut dyn FnMut(u32, &RawRecord<'_>) -> bool) -> Result<(), FetchError> {
        let mut wait = wait;
        let mut any = false;
        loop {
            let message = match self.consumer.poll(wait) {
                None => break,
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    any = true;
                    if let Some(next) = self.next.get(&partition) {
                        self.ends.push((partition as u32, *next));
                    }
                    continue;
                }
                Some(Err(error)) if is_out_of_range(&error) => return Err(self.lost(&error)),
                Some(Err(error)) => {
                    // One of many that an outage leaves behind: what counts is whether the brokers answer now.
                    self.down = Some(text(&error));
                    continue;
                }
            };
            any = true;
            wait = Duration::ZERO;
            let record = raw(&message, self.headers.as_mut());
            let partition = message.partition();
            self.next.insert(partition, record.offset + 1);
            if !take(partition as u32, &record) {
                break;
            }
        }
        if any {
            self.down = None;
            return Ok(());
        }
        self.look()
    }

    fn ends(&mut self) -> Vec<(u32, u64)> {
        let watched = std::mem::take(&mut *self.consumer.context().ends.lock());
        self.ends.extend(watched.into_iter().map(|(p, end)| (p as u32, end)));
        std::mem::take(&mut self.ends)
    }
}

/// Reads ranges again.
pub(super) struct Rereading {
    cluster: Arc<Cluster>,
    consumer: BaseConsumer,
    /// The partition assigned and the next offset that comes.
    at: Option<(i32, u64)>,
    headers: Option<Vec<u8>>,
}

impl Rereading {
    pub(super) fn new(cluster: &Arc<Cluster>, headers: bool) -> Result<Self, FetchError> {
        Ok(Self {
            consumer: cluster.reader()?,
            cluster: Arc::clone(cluster),
            at: None,
            headers: headers.then(Vec::new),
        })
    }

    fn assign(&mut self, partition: i32, from: u64) -> Result<(), FetchError> {
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
        list.add_partition_offset(self.cluster.topic(), partition, offset)
            .and_then(|()| self.consumer.assign(&list))
            .map_err(|e| self.cluster.waiting(&e))
    }

    fn failed(&self, error: &KafkaError, partition: i32, range: &SplitRange) -> FetchError {
        if !is_out_of_range(error) {
            return self.cluster.waiting(error);
        }
        let (low, high) = match self.cluster.bounds(&self.consumer, partition) {
            Ok(bounds) => bounds,
            Err(error) => return error,
        };
        let place = format!(
            "offsets {} to {} of partition {partition} of topic \"{}\"",
            range.from,
            range.to.saturating_sub(1),
            self.cluster.topic()
        );
        if range.from < low {
            return FetchError::Lost(format!(
                "{place} can no longer be read in full: retention has removed what was before offset {low}"
            ));
        }
        if high < range.to {
            return FetchError::Lost(format!(
                "{place} can no longer be read: the partition ends at offset {high}, it has been created anew"
            ));
        }
        self.cluster.waiting(error)
    }
}

impl Fetcher for Rereading {
    fn fetch(
        &mut self,
        info: &SplitInfo,
        range: &SplitRange,
        expected: Option<u64>,
        take: &mut dyn FnMut(&RawRecord<'_>),
    ) -> Result<(), FetchError> {
        let partition = partition(info)?;
        match self.at.take() {
            Some((p, next)) if p == partition && next <= range.from => {}
            _ => self.assign(partition, range.from)?,
        }
        let (mut count, mut next) = (0, range.from);
        let mut heard = Instant::now();
        while expected.is_none_or(|e| count < e) && next < range.to {
            fail::fail_point!("source::fetch");
            let message = match self.consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(p))) if p == partition => return Ok(()),
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) => return Err(self.failed(&error, partition, range)),
                None if heard.elapsed() < FETCH_WAIT => continue,
                None => {
                    let reason = format!("offset {next} of partition {partition} does not come");
                    return Err(FetchError::Retry(reason));
                }
            };
            heard = Instant::now();
            let record = raw(&message, self.headers.as_mut());
            if message.partition() != partition || record.offset < next {
                continue;
            }
            if record.offset >= range.to {
                return Ok(());
            }
            count += 1;
            next = record.offset + 1;
            take(&record);
        }
        self.at = Some((partition, next));
        Ok(())
    }

    fn end(&mut self, info: &SplitInfo) -> Result<u64, FetchError> {
        Ok(self.cluster.bounds(&self.consumer, partition(info)?)?.1)
    }
}
