//! Options of the kafka connector.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `topic` | the topic | must be given |
//! | `properties.bootstrap.server` (or `.servers`) | `host:port, …` | must be given |
//! | `scan.startup.mode` | `earliest`, `latest`, `timestamp` or `offsets` | `earliest` |
//! | `scan.startup.timestamp.millis` | with `timestamp`: first record at or after it | |
//! | `scan.startup.offsets` | with `offsets`: `partition:offset, …`; other partitions start at their earliest | |
//! | `properties.*` | any client property of librdkafka that is not about groups or offsets, such as `properties.security.protocol` | |

use std::collections::BTreeMap;

use super::Reader;
use crate::{PlanError, Result};

const KNOWN: [&str; 7] = [
    "topic",
    "properties.bootstrap.server",
    "properties.bootstrap.servers",
    "scan.startup.mode",
    "scan.startup.timestamp.millis",
    "scan.startup.offsets",
    "properties.*",
];

/// Client properties that would take reading out of Levee's hands.
const RESERVED: [&str; 8] = [
    "properties.group.id",
    "properties.group.instance.id",
    "properties.enable.auto.commit",
    "properties.auto.offset.reset",
    "properties.enable.auto.offset.store",
    "properties.enable.partition.eof",
    "properties.isolation.level",
    "properties.check.crcs",
];

/// Where reading starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Startup {
    /// At the oldest record that there is.
    Earliest,
    /// Behind the newest record that there is at CREATE.
    Latest,
    /// At the first record with this time or a later one, in milliseconds since 1970.
    Timestamp(i64),
    /// At these offsets, by partition; other partitions as [`Startup::Earliest`].
    Offsets(BTreeMap<i32, i64>),
}

/// The options, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Topic.
    pub topic: String,
    /// `bootstrap.servers`.
    pub servers: String,
    /// Where reading starts.
    pub startup: Startup,
    /// Further client properties, without the prefix.
    pub properties: BTreeMap<String, String>,
}

impl KafkaOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 22023 for an unknown, missing or malformed option.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        let reader = Reader::new("connector \"kafka\"", options);
        reader.only(&KNOWN, |k| {
            KNOWN.contains(&k) || k.strip_prefix("properties.").is_some_and(|p| !p.is_empty())
        })?;
        if let Some(reserved) = options.keys().find(|k| RESERVED.contains(&k.as_str())) {
            return Err(PlanError::new("22023", format!("option \"{reserved}\" cannot be set"))
                .hint("Positions and what is read are kept by Levee, not by Kafka's groups."));
        }
        let topic = reader.required("topic", "Write topic = '…'.")?.to_owned();
        let servers = match (
            reader.text("properties.bootstrap.server"),
            reader.text("properties.bootstrap.servers"),
        ) {
            (Some(_), Some(_)) => {
                return Err(PlanError::new(
                    "22023",
                    "options \"properties.bootstrap.server\" and \"properties.bootstrap.servers\" are the same",
                )
                .hint("Give one of them."));
            }
            (Some(s), None) => s.to_owned(),
            (None, _) => reader
                .required(
                    "properties.bootstrap.servers",
                    "Write properties.bootstrap.servers = 'host:port'.",
                )?
                .to_owned(),
        };
        let properties = options
            .iter()
            .filter(|(k, _)| !k.starts_with("properties.bootstrap.server"))
            .filter_map(|(k, v)| Some((k.strip_prefix("properties.")?.to_owned(), v.clone())))
            .collect();
        Ok(Self {
            topic,
            servers,
            startup: startup(&reader)?,
            properties,
        })
    }
}

fn startup(reader: &Reader<'_>) -> Result<Startup> {
    let mode = reader.word("scan.startup.mode", &["earliest", "latest", "timestamp", "offsets"])?;
    let millis = reader.number("scan.startup.timestamp.millis", 0..=i64::MAX as u64)?;
    let offsets = reader.text("scan.startup.offsets");
    if offsets.is_some() && mode.is_some_and(|m| m != 3) {
        return Err(PlanError::new(
            "22023",
            "option \"scan.startup.offsets\" needs scan.startup.mode = 'offsets'",
        ));
    }
    if millis.is_some() && mode.is_some_and(|m| m != 2) {
        return Err(PlanError::new(
            "22023",
            "option \"scan.startup.timestamp.millis\" needs scan.startup.mode = 'timestamp'",
        ));
    }
    match (mode, millis, offsets) {
        (_, Some(_), Some(_)) => Err(PlanError::new(
            "22023",
            "a source starts at a timestamp or at offsets, not both",
        )),
        (Some(1), _, _) => Ok(Startup::Latest),
        (None | Some(2), Some(ms), None) => Ok(Startup::Timestamp(i64::try_from(ms).unwrap_or(i64::MAX))),
        (None | Some(3), None, Some(_)) => start_offsets(reader).map(Startup::Offsets),
        (Some(2), ..) => Err(
            PlanError::new("22023", "option \"scan.startup.timestamp.millis\" is missing")
                .hint("Give the time in milliseconds since 1970."),
        ),
        (Some(3), ..) => Err(PlanError::new("22023", "option \"scan.startup.offsets\" is missing")
            .hint("Give it as 'partition:offset, …'.")),
        _ => Ok(Startup::Earliest),
    }
}

fn start_offsets(reader: &Reader<'_>) -> Result<BTreeMap<i32, i64>> {
    const NAME: &str = "scan.startup.offsets";
    let bad = || reader.malformed(NAME, "It lists partitions and offsets: '0:100, 1:250'.");
    let mut offsets = BTreeMap::new();
    for part in reader.text(NAME).unwrap_or_default().split(',') {
        let (partition, offset) = part.split_once(':').ok_or_else(bad)?;
        let partition: i32 = partition.trim().parse().map_err(|_| bad())?;
        let offset: i64 = offset.trim().parse().map_err(|_| bad())?;
        if partition < 0 || offset < 0 || offsets.insert(partition, offset).is_some() {
            return Err(bad());
        }
    }
    Ok(offsets)
}

/// Checks the options.
///
/// # Errors
/// As [`KafkaOptions::parse`].
pub fn check(options: &BTreeMap<String, String>) -> Result<()> {
    KafkaOptions::parse(options).map(drop)
}
