//! Redis: versions are counters in the store; news come by `CLIENT TRACKING`, or by `PUBLISH`.
//!
//! **Tracking** ([`News::Tracking`]): reading a key *is* subscribing to its next change, on one ordered connection. So
//! no writer can forget to publish: whatever changes the counter, with whatever client, is heard. The key is read again
//! at each invalidation (a tracked key that is not read again stays silent). Needs Redis 6 or later.
//!
//! **Publishing** ([`News::Published`]): one script counts, appends and publishes. A wake-up is faster, since the
//! message carries the version; but every writer must use [`RedisEngine::commit`], or a script that does the same.
//!
//! In the store, all names begin with the engine's prefix: `v:KEY` is the counter, `l:KEY` the log of bodies (a stream
//! whose IDs are `VERSION-0`), `c:KEY` the channel, and `epoch` names the history: a random number, set where it is
//! absent. A flush loses it with all the rest. (`master_replid` is no epoch: it changes when a server restarts,
//! although nothing is lost.) An older copy that takes over after a failover shows as a version that went back.
//!
//! With several addresses, the first server that says it is a primary is used, by each session and each read anew. A
//! *cluster* of Redis with hash slots is not supported: a script here touches names of several slots.

mod commit;
mod connect;
mod names;
mod published;
mod push;
mod session;
mod tracking;

use crate::config::Config;
use crate::error::{BoxError, FeedError, KeyError};
use crate::feed::Feed;
use crate::key::WireKey;
use crate::source::{Epoch, Reading, Source};
use ::redis::RedisError;
use ::redis::aio::MultiplexedConnection;
use connect::Addresses;
use names::Names;
pub use session::{RedisChanges, RedisInterests};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

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

/// The settings of a [`RedisEngine`].
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// The servers, as redis-rs understands them: `redis://host:6379/0`, `redis+unix:///path/to/socket`. RESP3 is used
    /// whatever they say.
    pub addresses: Vec<String>,
    /// What all names in the store begin with. Default: `purgatory:`.
    pub prefix: String,
    /// How nodes hear of versions. All nodes that write use the same. Default: tracking.
    pub news: News,
    /// How long the server may take to accept a connection, and to answer a read or a commit. Default: 2 s, which is
    /// longer than a fork for a snapshot or a slow script stops a server, and short beside the timeout of a wait.
    pub timeout: Duration,
    /// How many messages may wait in this node before it counts as too slow. Default: 65,536, about 8 MB.
    pub capacity: usize,
    /// About how many bodies [`RedisEngine::commit`] keeps for each key. 0 keeps none. Default: 1,000.
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

struct Inner {
    config: RedisConfig,
    names: Names,
    addresses: Addresses,
    /// For reads and commits; sessions have one each. `None` until it is needed, and after an error.
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// Redis as source and feed of a cluster. Cloning is cheap, and clones share a connection for reads and commits.
#[derive(Clone)]
pub struct RedisEngine {
    inner: Arc<Inner>,
}

impl RedisEngine {
    /// An engine on these servers. Connects when it is first used.
    ///
    /// # Errors
    /// An address makes no sense, or there is none.
    pub fn new(config: RedisConfig) -> Result<Self, RedisError> {
        Ok(Self {
            inner: Arc::new(Inner {
                names: Names::new(&config.prefix),
                addresses: Addresses::parse(&config)?,
                connection: Mutex::new(None),
                config,
            }),
        })
    }

    /// The connection for reads and commits.
    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = self.inner.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let fresh = self.inner.addresses.connect(None).await?;
        *connection = Some(fresh.clone());
        Ok(fresh)
    }

    /// After an error: the server may have been replaced.
    async fn forget_connection(&self) {
        *self.inner.connection.lock().await = None;
    }

    async fn read(&self, names: &[Vec<u8>]) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
        let mut connection = self.connection().await?;
        session::read(&mut connection, &self.inner.names, names).await
    }
}

impl<K: WireKey> Source<K> for RedisEngine {
    async fn versions(&self, keys: &[K]) -> Result<Reading, BoxError> {
        let names = keys.iter().map(|key| self.inner.names.version(key));
        let names = names.collect::<Vec<_>>();
        let read = self.read(&names).await;
        if read.is_err() {
            self.forget_connection().await;
        }
        let (epoch, versions) = read?;
        Ok(Reading {
            epoch,
            versions,
            head: None,
        })
    }

    fn admit(&self, key: &K) -> Result<(), KeyError> {
        self.inner.names.admit(key)
    }
}

impl<K: WireKey> Feed<K> for RedisEngine {
    type Interests = RedisInterests<K>;
    type Changes = RedisChanges<K>;

    async fn open(
        &self,
        config: &Config,
    ) -> Result<(RedisInterests<K>, RedisChanges<K>), FeedError> {
        session::open(&self.inner, config).await
    }
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisEngine")
            .field(&self.inner.config)
            .finish()
    }
}
