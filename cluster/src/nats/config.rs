//! The settings of an engine.

use crate::config::without_secrets;
use async_nats::ConnectOptions;
use std::fmt;
use std::time::Duration;

/// The settings of a [`NatsEngine`](super::NatsEngine).
#[derive(Clone)]
pub struct NatsConfig {
    /// The servers: `nats://host:4222`.
    pub servers: Vec<String>,
    /// Credentials, TLS and the like. What the engine depends on (ping, capacity, reconnects, events) is set by the
    /// engine. Leave `no_echo` off: a session has to hear itself.
    pub options: ConnectOptions,
    /// The name of the stream. Default: `PURGATORY`.
    pub stream: String,
    /// What all subjects begin with. Default: `purgatory`.
    pub prefix: String,
    /// On how many servers a stream that this engine makes is stored. Default: 1. With 3, one server may fail.
    pub replicas: usize,
    /// How many events a stream that this engine makes keeps for each key. 0 keeps all. Default: 1,000.
    pub kept: i64,
    /// How long one request of a read may take, and a commit or `events` with all that belongs to it. Default: 2 s,
    /// which is longer than an election of a leader usually takes, and short beside the timeout of a wait.
    pub timeout: Duration,
    /// How many messages may wait in each subscription of a session before the session counts as too slow. Default:
    /// 65,536. Room is taken as it is needed.
    pub capacity: usize,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".into()],
            options: ConnectOptions::new(),
            stream: "PURGATORY".into(),
            prefix: "purgatory".into(),
            replicas: 1,
            kept: 1_000,
            timeout: Duration::from_secs(2),
            capacity: 65_536,
        }
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options may hold secrets.
        f.debug_struct("NatsConfig")
            .field("servers", &without_secrets(&self.servers))
            .field("stream", &self.stream)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
