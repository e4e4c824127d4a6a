//! What DescribeConfigs tells: the values that hold here, under the names that Kafka has for them.

use crate::broker::topics::{DEFAULT_PARTITIONS, MAX_NAME};
use crate::storage::batch::MAX_BATCH;
use crate::storage::log::RETENTION;
use crate::wire::frame::MAX_FRAME;
use std::fmt;

/// A read-only setting.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    pub(crate) documentation: &'static str,
}

#[derive(Debug)]
pub(crate) enum Value {
    Flag(bool),
    Number(i64),
    Text(&'static str),
}

impl Value {
    /// As the protocol numbers kinds of values.
    pub(crate) fn kind(&self) -> i8 {
        match self {
            Self::Flag(_) => 1,
            Self::Text(_) => 2,
            Self::Number(_) => 5,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

const fn config(name: &'static str, value: Value, documentation: &'static str) -> Config {
    Config {
        name,
        value,
        documentation,
    }
}

/// Of each topic.
pub(crate) static TOPIC: &[Config] = &[
    config(
        "cleanup.policy",
        Value::Text("delete"),
        "The oldest records go first.",
    ),
    config(
        "compression.type",
        Value::Text("producer"),
        "Batches are kept as they came.",
    ),
    config(
        "max.message.bytes",
        Value::Number(MAX_BATCH as i64),
        "Longest record batch.",
    ),
    config(
        "message.timestamp.type",
        Value::Text("CreateTime"),
        "Timestamps are the producers'.",
    ),
    config(
        "min.insync.replicas",
        Value::Number(1),
        "The leader is enough.",
    ),
    config(
        "retention.bytes",
        Value::Number(RETENTION as i64),
        "What each partition keeps.",
    ),
    config(
        "retention.ms",
        Value::Number(-1),
        "Records do not go because they are old.",
    ),
];

/// Of the one broker.
pub(crate) static BROKER: &[Config] = &[
    config(
        "auto.create.topics.enable",
        Value::Flag(true),
        "If the client asks for it.",
    ),
    config(
        "default.replication.factor",
        Value::Number(1),
        "There is one broker.",
    ),
    config(
        "log.retention.bytes",
        Value::Number(RETENTION as i64),
        "What each partition keeps.",
    ),
    config(
        "message.max.bytes",
        Value::Number(MAX_BATCH as i64),
        "Longest record batch.",
    ),
    config(
        "num.partitions",
        Value::Number(DEFAULT_PARTITIONS as i64),
        "Unless the creator says.",
    ),
    config(
        "socket.request.max.bytes",
        Value::Number(MAX_FRAME as i64),
        "Longest request.",
    ),
    config(
        "topic.name.max.bytes",
        Value::Number(MAX_NAME as i64),
        "Longest topic name.",
    ),
];

/// Whether a topic that is created with this setting has it.
pub(crate) fn holds(name: &str, value: Option<&str>) -> bool {
    let config = TOPIC.iter().find(|config| config.name == name);
    config.is_some_and(|config| value.is_none_or(|value| config.value.to_string() == value))
}
