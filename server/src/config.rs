//! The server's settings: one table from which the command line, the environment, the file and `docs/config.md` all come.
//!
//! Precedence: command line, then `LEVEE_*` environment variables, then the TOML file, then the default.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

/// A setting as the table knows it.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name in the file and in `levee_catalog.settings`; the flag has dashes for underscores, the variable is `LEVEE_` and capitals.
    pub name: &'static str,
    /// Placeholder of the value in help texts.
    pub value: &'static str,
    /// Default as documented.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "data_dir",
        value: "DIR",
        default: "./levee-data",
        help: "Where the log, checkpoints and spilled data live; made if absent.",
    },
    Setting {
        name: "pg_addr",
        value: "HOST:PORT",
        default: "127.0.0.1:4566",
        help: "Address for PostgreSQL clients. Port 0 takes a free one.",
    },
    Setting {
        name: "http_addr",
        value: "HOST:PORT",
        default: "127.0.0.1:5691",
        help: "Address for /healthz, /readyz and /metrics. Port 0 takes a free one.",
    },
    Setting {
        name: "checkpoint_url",
        value: "URL",
        default: "DATA_DIR/checkpoints",
        help: "Object store for checkpoints: `file:///path` or a plain path.",
    },
    Setting {
        name: "memory_limit",
        value: "BYTES",
        default: "75% of memory",
        help: "Memory budget in bytes, or with a unit: `512MB`, `4GB`. Shares: `levee_catalog.memory`.",
    },
    Setting {
        name: "parallelism",
        value: "N",
        default: "number of cores",
        help: "Tasks per fragment of a materialized view, and dataflow threads.",
    },
    Setting {
        name: "checkpoint_interval_ms",
        value: "MS",
        default: "1000",
        help: "Time between checkpoints while there is change.",
    },
    Setting {
        name: "backlog_limit",
        value: "BYTES",
        default: "10GB",
        help: "What a job that stands still (a sink whose target is out, a paused view) may make the log and its inputs keep; past it the job is given up.",
    },
    Setting {
        name: "connections_max",
        value: "N",
        default: "200",
        help: "PostgreSQL connections at a time; more are refused with 53300.",
    },
    Setting {
        name: "message_bytes_max",
        value: "BYTES",
        default: "64MB",
        help: "Largest message that a client may send; a larger one ends its connection with 08P01.",
    },
    Setting {
        name: "trust_remote",
        value: "BOOL",
        default: "false",
        help: "Also accept clients that do not come from a loopback address. There is no authentication.",
    },
];

/// The settings' values.
#[derive(Debug, Clone)]
pub struct Config {
    /// `data_dir`.
    pub data_dir: PathBuf,
    /// `pg_addr`.
    pub pg_addr: String,
    /// `http_addr`.
    pub http_addr: String,
    /// `checkpoint_url`.
    pub checkpoint_url: Option<String>,
    /// `memory_limit`.
    pub memory_limit: usize,
    /// `parallelism`.
    pub parallelism: usize,
    /// `checkpoint_interval_ms`.
    pub checkpoint_interval_ms: u64,
    /// `backlog_limit`.
    pub backlog_limit: usize,
    /// `connections_max`.
    pub connections_max: usize,
    /// `message_bytes_max`.
    pub message_bytes_max: usize,
    /// `trust_remote`.
    pub trust_remote: bool,
    /// Every setting's value as text, for `levee_catalog.settings`.
    pub shown: BTreeMap<&'static str, String>,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration file {path} cannot be read: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The file names a setting that does not exist.
    #[error("configuration file: unknown setting \"{0}\" (docs/config.md lists all)")]
    Unknown(String),
    /// A value cannot be understood.
    #[error("setting {name}: \"{value}\" is not valid: {reason}")]
    Value {
        /// Setting.
        name: &'static str,
        /// Value given.
        value: String,
        /// What is expected.
        reason: String,
    },
}

fn variable(s: &Setting) -> String {
    format!("LEVEE_{}", s.name.to_uppercase())
}

fn flag(s: &Setting) -> String {
    s.name.replace('_', "-")
}

/// clap wants names that live as long as the process; this is called once per setting.
fn name(text: String) -> &'static str {
    text.leak()
}

/// The command line.
pub fn command() -> Command {
    let mut serve = Command::new("serve").about("Runs the server").arg(
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("LEVEE_CONFIG")
            .help("TOML file with settings"),
    );
    for s in SETTINGS {
        serve = serve.arg(
            Arg::new(s.name)
                .long(name(flag(s)))
                .value_name(s.value)
                .env(name(variable(s)))
                .help(format!("{} [default: {}]", s.help, s.default)),
        );
    }
    Command::new("levee")
        .about("A streaming SQL database")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve)
        .subcommand(Command::new("config-docs").about("Prints docs/config.md"))
}

impl Config {
    /// Reads the settings of `levee serve`.
    ///
    /// # Errors
    /// An unreadable file, an unknown name or an invalid value.
    pub fn read(matches: &ArgMatches) -> Result<Self, ConfigError> {
        let file = match matches.get_one::<String>("config") {
            Some(path) => read_file(path)?,
            None => BTreeMap::new(),
        };
        let given = |name: &str| {
            matches
                .get_one::<String>(name)
                .cloned()
                .or_else(|| file.get(name).cloned())
        };
        Self::from_values(given)
    }

    fn from_values(given: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let text = |name: &str, default: &str| given(name).unwrap_or_else(|| default.to_owned());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let data_dir = PathBuf::from(text("data_dir", "./levee-data"));
        let mut config = Self {
            pg_addr: text("pg_addr", "127.0.0.1:4566"),
            http_addr: text("http_addr", "127.0.0.1:5691"),
            checkpoint_url: given("checkpoint_url").filter(|u| !u.is_empty()),
            memory_limit: match given("memory_limit") {
                Some(v) => bytes("memory_limit", &v)?,
                None => memory_total() / 4 * 3,
            },
            parallelism: number("parallelism", given("parallelism"), cores)?,
            checkpoint_interval_ms: number("checkpoint_interval_ms", given("checkpoint_interval_ms"), 1000)?,
            backlog_limit: match given("backlog_limit") {
                Some(v) => bytes("backlog_limit", &v)?,
                None => 10 << 30,
            },
            connections_max: number("connections_max", given("connections_max"), 200)?,
            message_bytes_max: match given("message_bytes_max") {
                Some(v) => bytes("message_bytes_max", &v)?,
                None => 64 << 20,
            },
            trust_remote: match given("trust_remote") {
                None => false,
                Some(v) => crate::types::input::parse_bool(&v).map_err(|_| ConfigError::Value {
                    name: "trust_remote",
                    value: v,
                    reason: "true or false is expected".into(),
                })?,
            },
            data_dir,
            shown: BTreeMap::new(),
        };
        if config.parallelism == 0 || config.parallelism > 256 {
            return Err(ConfigError::Value {
                name: "parallelism",
                value: config.parallelism.to_string(),
                reason: "a number from 1 to 256 is expected".into(),
            });
        }
        for (name, value) in [("pg_addr", &config.pg_addr), ("http_addr", &config.http_addr)] {
            address(name, value)?;
        }
        config.shown = config.texts();
        Ok(config)
    }

    fn texts(&self) -> BTreeMap<&'static str, String> {
        let checkpoints = || self.data_dir.join("checkpoints").display().to_string();
        BTreeMap::from([
            ("data_dir", self.data_dir.display().to_string()),
            ("pg_addr", self.pg_addr.clone()),
            ("http_addr", self.http_addr.clone()),
            (
                "checkpoint_url",
                self.checkpoint_url.clone().unwrap_or_else(checkpoints),
            ),
            ("memory_limit", self.memory_limit.to_string()),
            ("parallelism", self.parallelism.to_string()),
            ("checkpoint_interval_ms", self.checkpoint_interval_ms.to_string()),
            ("backlog_limit", self.backlog_limit.to_string()),
            ("connections_max", self.connections_max.to_string()),
            ("message_bytes_max", self.message_bytes_max.to_string()),
            ("trust_remote", self.trust_remote.to_string()),
        ])
    }
}

fn address(name: &'static str, value: &str) -> Result<(), ConfigError> {
    use std::net::ToSocketAddrs;
    let resolved: Option<SocketAddr> = value.to_socket_addrs().ok().and_then(|mut a| a.next());
    match resolved {
        Some(_) => Ok(()),
        None => Err(ConfigError::Value {
            name,
            value: value.to_owned(),
            reason: "HOST:PORT is expected".into(),
        }),
    }
}

fn read_file(path: &str) -> Result<BTreeMap<String, String>, ConfigError> {
    let failed = |reason: String| ConfigError::File {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| failed(e.message().to_owned()))?;
    let mut values = BTreeMap::new();
    for (name, value) in table {
        if !SETTINGS.iter().any(|s| s.name == name) {
            return Err(ConfigError::Unknown(name));
        }
        let value = match value {
            toml::Value::String(s) => s,
            other => other.to_string(),
        };
        values.insert(name, value);
    }
    Ok(values)
}

fn number<T: std::str::FromStr>(name: &'static str, given: Option<String>, default: T) -> Result<T, ConfigError> {
    let Some(value) = given else { return Ok(default) };
    value.trim().parse().map_err(|_| ConfigError::Value {
        name,
        value,
        reason: "a whole number is expected".into(),
    })
}

/// A size with an optional unit (powers of 1024).
fn bytes(name: &'static str, text: &str) -> Result<usize, ConfigError> {
    let t = text.trim();
    let split = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
    let (digits, unit) = t.split_at(split);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => Some(0),
        "K" | "KB" | "KIB" => Some(10),
        "M" | "MB" | "MIB" => Some(20),
        "G" | "GB" | "GIB" => Some(30),
        "T" | "TB" | "TIB" => Some(40),
        _ => None,
    };
    let parsed = digits
        .parse::<usize>()
        .ok()
        .zip(shift)
        .and_then(|(n, s)| n.checked_mul(1usize << s));
    parsed.filter(|&n| n > 0).ok_or_else(|| ConfigError::Value {
        name,
        value: text.to_owned(),
        reason: "a size in bytes, or with the unit KB, MB, GB or TB, is expected".into(),
    })
}

/// Memory of the machine, or of the control group if that is less.
fn memory_total() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<usize>()
            .ok()
            .map(|kb| kb * 1024)
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|t| t.trim().parse::<usize>().ok());
    let machine = machine.unwrap_or(4 << 30);
    group.map_or(machine, |g| g.min(machine))
}

/// `docs/config.md`.
pub fn docs() -> String {
    let mut out = String::from(
        "# Settings\n\n\
         Printed by `levee config-docs`; do not edit. A setting is taken from the command line, else from the environment, else from\n\
         the TOML file that `--config FILE` (or `LEVEE_CONFIG`) names, else it has its default. Sizes take the units KB, MB, GB, TB\n\
         (powers of 1024).\n\n\
         | setting (TOML) | flag | environment | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for s in SETTINGS {
        let (name, flag, value, variable) = (s.name, flag(s), s.value, variable(s));
        out.push_str(&format!(
            "| `{name}` | `--{flag} {value}` | `{variable}` | {} | {} |\n",
            s.default, s.help
        ));
    }
    out.push_str(
        "\nLog output goes to standard error; `RUST_LOG` selects it (`info` by default). Settings of a session (`SET`, `SHOW ALL`) are\n\
         listed in `docs/sql.md` and by `SHOW ALL`.\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_agree_with_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.md");
        let written = std::fs::read_to_string(path).expect("docs/config.md");
        assert_eq!(written, docs(), "run `levee config-docs > docs/config.md`");
    }

    #[test]
    fn every_setting_has_a_shown_value() {
        let config = Config::from_values(|_| None).expect("defaults");
        for s in SETTINGS {
            assert!(config.shown.contains_key(s.name), "{}", s.name);
        }
    }

    #[test]
    fn flag_beats_file_and_bad_values_are_named() {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("levee.toml");
        std::fs::write(&file, "parallelism = 3\nconnections_max = 7\n").expect("write");
        let args = [
            "levee",
            "serve",
            "--config",
            file.to_str().expect("path"),
            "--parallelism",
            "2",
        ];
        let matches = command().try_get_matches_from(args).expect("arguments");
        let config = Config::read(matches.subcommand_matches("serve").expect("serve")).expect("config");
        assert_eq!((config.parallelism, config.connections_max), (2, 7));
        std::fs::write(&file, "paralelism = 3\n").expect("write");
        assert!(matches!(
            read_file(file.to_str().expect("path")),
            Err(ConfigError::Unknown(_))
        ));
        assert_eq!(bytes("memory_limit", "2GB").expect("size"), 2 << 30);
        assert!(bytes("memory_limit", "lots").is_err());
    }
}
