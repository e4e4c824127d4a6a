//! The settings of an engine.

use crate::config::without_secrets;
use std::fmt;
use std::time::Duration;

/// How a node hears of new versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum News {
    /// The server invalidates what was read.
    #[default]
    Tracking,
    /// The writer publishes.
    Published,
}

/// The settings of a [`RedisEngine`](super::RedisEngine).
#[derive(Clone)]
pub struct RedisConfig {
    /// The servers, as redis-rs understands them: `redis://host:6379/0`, `redis+unix:///path/to/socket`. RESP3 is used
    /// whatever they say.
    pub addresses: Vec<String>,
    /// What all names in the store begin with. Default: `purgatory:`.
    pub prefix: String,
    /// How nodes hear of versions. All nodes that write use the same. Default: tracking.
    pub news: News,
    /// How long a commit may take, and each command of a read, with the connection that it may need. Default: 2 s, which
    /// is longer than a fork for a snapshot or a slow script stops a server, and short beside the timeout of a wait.
    pub timeout: Duration,
    /// How many messages may wait in this node before it counts as too slow. Default: 65,536, about 8 MB.
    pub capacity: usize,
    /// About how many bodies [`RedisEngine::commit`](super::RedisEngine::commit) keeps for each key. 0 keeps none.
    /// Default: 1,000.
    pub kept: usize,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            addresses: vec!["redis://127.0.0.1:6379".into()],
            prefix: "purgatory:".into(),
            news: News::default(),
            timeout: Duration::from_secs(2),
            capacity: 65_536,
            kept: 1_000,
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("addresses", &without_secrets(&self.addresses))
            .field("prefix", &self.prefix)
            .field("news", &self.news)
            .field("timeout", &self.timeout)
            .field("capacity", &self.capacity)
            .field("kept", &self.kept)
            .finish()
    }
}
