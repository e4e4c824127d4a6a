//! Where events are kept: an engine of the cluster, and the bodies in it.

mod memory;
mod topic;

use crate::deaf_switch::{DeafFeed, DeafSwitch};
use clap::ValueEnum;
pub use memory::MemoryStore;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine};
use request_purgatory_cluster::{
    Cluster, Config, EngineError, Epoch, Event, Feed, Position, Reading, Source, StartError,
};
use std::fmt;
pub use topic::Topic;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    Memory,
    Redis,
    Nats,
}

impl EngineKind {
    /// Whether it has no server.
    pub fn is_local(self) -> bool {
        self == Self::Memory
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Nats => "nats",
        })
    }
}

/// A store of events. Cloning is cheap, and clones share a connection.
#[derive(Debug, Clone)]
pub enum Store {
    Memory(MemoryStore),
    Redis(RedisEngine),
    Nats(NatsEngine),
}

impl Store {
    /// Connects to the engine, and reads it once, so that a wrong address shows at the start.
    ///
    /// # Errors
    /// An address makes no sense, or no server answers.
    pub async fn connect(kind: EngineKind, urls: &[String]) -> Result<Self, EngineError> {
        let store = match kind {
            EngineKind::Memory => Self::Memory(MemoryStore::new()),
            EngineKind::Redis => Self::Redis(
                RedisEngine::connect(RedisConfig {
                    addresses: urls.to_vec(),
                    prefix: "gateway:".into(),
                    ..RedisConfig::default()
                })
                .await?,
            ),
            EngineKind::Nats => Self::Nats(
                NatsEngine::connect(NatsConfig {
                    servers: urls.to_vec(),
                    stream: "GATEWAY".into(),
                    prefix: "gateway".into(),
                    ..NatsConfig::default()
                })
                .await?,
            ),
        };
        Ok(store)
    }

    pub fn kind(&self) -> EngineKind {
        match self {
            Self::Memory(_) => EngineKind::Memory,
            Self::Redis(_) => EngineKind::Redis,
            Self::Nats(_) => EngineKind::Nats,
        }
    }

    /// Starts a node of the cluster on this store; with `deaf`, it can be made deaf.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start(
        &self,
        config: Config,
        deaf: Option<DeafSwitch>,
    ) -> Result<Cluster<Topic>, StartError> {
        match self {
            Self::Memory(store) => start(&store.engine, config, deaf),
            Self::Redis(engine) => start(engine, config, deaf),
            Self::Nats(engine) => start(engine, config, deaf),
        }
    }

    /// Commits an event. Returns where the topic is now.
    ///
    /// # Errors
    /// The store did not acknowledge. The event may have been committed nevertheless.
    pub async fn commit(&self, topic: &Topic, body: &[u8]) -> Result<Position, EngineError> {
        match self {
            Self::Memory(store) => store.commit(topic, body),
            Self::Redis(engine) => match engine.commit(topic, body).await {
                // The topic's counter was lost and is restored; nothing was committed yet.
                Err(EngineError::Reset(_)) => engine.commit(topic, body).await,
                committed => committed,
            },
            Self::Nats(engine) => engine.commit(topic, body).await,
        }
    }

    /// The events of `topic` after the version `seen` that the store still holds, at most `limit`, in order.
    ///
    /// # Errors
    /// The store cannot be read, or has lost some of them.
    pub async fn events(
        &self,
        topic: &Topic,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, EngineError> {
        match self {
            Self::Memory(store) => store.events(topic, seen, limit),
            Self::Redis(engine) => engine.events(topic, seen, limit).await,
            Self::Nats(engine) => engine.events(topic, seen, limit).await,
        }
    }

    /// Whether the versions of a topic have no gaps, so that events that are no longer kept can be counted.
    pub fn is_gapless(&self) -> bool {
        // The version of a key in NATS is the sequence of its last event in the stream of all keys.
        !matches!(self, Self::Nats(_))
    }

    /// The present history.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn epoch(&self) -> Result<Epoch, EngineError> {
        Ok(self.read(&[]).await?.epoch)
    }

    /// The present history, and the versions of these topics.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn read(&self, topics: &[Topic]) -> Result<Reading, EngineError> {
        match self {
            Self::Memory(store) => store.engine.versions(topics).await,
            Self::Redis(engine) => engine.versions(topics).await,
            Self::Nats(engine) => engine.versions(topics).await,
        }
    }
}

fn start<E: Source<Topic> + Feed<Topic> + Clone>(
    engine: &E,
    config: Config,
    deaf: Option<DeafSwitch>,
) -> Result<Cluster<Topic>, StartError> {
    let (source, feed) = (engine.clone(), engine.clone());
    match deaf {
        Some(deaf) => Cluster::start(source, DeafFeed { feed, deaf }, config),
        None => Cluster::start(source, feed, config),
    }
}
