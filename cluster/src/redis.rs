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
//! **Give the server `maxmemory-policy noeviction`.** A server that evicts counters loses versions, which ends the waits
//! of all keys with `Reset`; a node that finds another policy says so ([`Stats::advice`](crate::Stats::advice)).
//! Where counter and log of a key disagree nevertheless, [`commit`](RedisEngine::commit) and
//! [`events`](RedisEngine::events) answer [`EngineError::Reset`] with the position to go on from.
//!
//! Tracking needs room in the server's table (`tracking-table-max-keys`, one million by default) for all keys that all
//! nodes watch. A node that finds it too small changes to a *broadcast* of every key's invalidations, and says so.
//!
//! The user needs the commands `MGET`, `GET`, `SET`, `XADD`, `XRANGE`, `XINFO`, `EVAL`, `EVALSHA`; for news by tracking
//! `CLIENT` and `PING`, for published news `SUBSCRIBE`, `UNSUBSCRIBE` and `PUBLISH`; `SELECT` where an address names a
//! database; `ROLE` and `INFO` where a node is to find the primary among several servers and to warn of the eviction
//! policy. Keys and channels are those of the prefix.
//!
//! With several addresses (one primary and its replicas), all are dialed at once, and the first that says it is a
//! primary is used: by each session anew, and by reads and commits whenever their connection is lost. A *cluster* of
//! Redis with hash slots is not supported: a script here touches names of several slots.

mod commit;
mod config;
mod connect;
mod link;
mod names;
mod published;
mod push;
mod session;
mod tracking;

use crate::config::Config;
use crate::error::{EngineError, FeedError, KeyError};
use crate::feed::Feed;
use crate::key::WireKey;
use crate::position::Epoch;
use crate::source::{Reading, Source};
pub use ::redis as client;
pub use config::{News, RedisConfig};
use connect::Addresses;
#[cfg(feature = "rules")]
#[doc(hidden)]
pub use connect::{Pushed, Socket, Wire};
use link::{Inner, Whole, read_piece, read_pieces};
use names::Names;
use parking_lot::Mutex;
pub use session::{RedisChanges, RedisInterests};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Redis as source and feed of a cluster. Cloning is cheap, and clones share a connection for reads and commits.
#[derive(Clone)]
pub struct RedisEngine {
    inner: Arc<Inner>,
}

impl RedisEngine {
    /// An engine on these servers, which connects when it is first used.
    ///
    /// # Errors
    /// An address makes no sense, or there is none.
    pub fn new(config: RedisConfig) -> Result<Self, EngineError> {
        let addresses = Addresses::parse(&config);
        let addresses = addresses.map_err(|error| EngineError::Store(error.into()))?;
        Ok(Self::on(addresses, config))
    }

    /// An engine on these servers, which are read once, so that a wrong address shows at the start.
    ///
    /// # Errors
    /// An address makes no sense, or no server answers.
    pub async fn connect(config: RedisConfig) -> Result<Self, EngineError> {
        let engine = Self::new(config)?;
        engine.read(&[]).await?;
        Ok(engine)
    }

    /// An engine whose client crate is a simulated one.
    #[cfg(feature = "rules")]
    #[doc(hidden)]
    pub fn simulated(wire: Arc<dyn Wire>, config: RedisConfig) -> Self {
        Self::on(Addresses::simulated(wire, &config), config)
    }

    fn on(addresses: Arc<Addresses>, config: RedisConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                names: Names::new(&config.prefix),
                addresses,
                config,
                is_outgrown: AtomicBool::new(false),
                advice: Mutex::default(),
            }),
        }
    }

    /// Each command has the timeout to itself: what is read in several makes progress however long all of them take.
    async fn read(&self, counters: &[Vec<u8>]) -> Result<(Epoch, Vec<Option<u64>>), EngineError> {
        let (names, addresses) = (&self.inner.names, &self.inner.addresses);
        let mut whole = Whole::default();
        for piece in read_pieces(counters) {
            let read = async |connection| {
                let read = read_piece(&connection, names, piece).await;
                read.map_err(EngineError::from)
            };
            whole.add(addresses.call(read).await?)?;
        }
        Ok(whole.finish()?)
    }
}

impl<K: WireKey> Source<K> for RedisEngine {
    async fn versions(&self, keys: &[K]) -> Result<Reading, EngineError> {
        let names = keys.iter().map(|key| self.inner.names.version(key));
        let names = names.collect::<Vec<_>>();
        let (epoch, versions) = self.read(&names).await?;
        Ok(Reading {
            epoch,
            versions,
            head: None,
            floor: None,
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

    fn advice(&self) -> Option<Arc<str>> {
        self.inner.advice.lock().clone()
    }
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisEngine")
            .field(&self.inner.config)
            .finish()
    }
}
