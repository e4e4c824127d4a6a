//! One interface for all engines under test.

use super::nats_server::NatsServer;
use super::proxy::{Proxy, Upstream};
use super::redis_server::RedisServer;
use async_nats::jetstream;
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{News, RedisConfig, RedisEngine};
use request_purgatory_cluster::{BoxError, Feed, Source};
use std::time::Duration;

pub type Key = Vec<u8>;

/// An engine, and what can be done to it.
pub trait Rig: Sized + Send + Sync {
    type Engine: Source<Key> + Feed<Key> + Clone;

    const NAME: &'static str;

    /// `capacity` as in the engine's config.
    async fn start(capacity: usize) -> Self;

    /// What nodes use.
    fn engine(&self) -> Self::Engine;

    /// The same, and where there are connections, with some of its own, made when it is first used.
    fn another(&self) -> Self::Engine {
        self.engine()
    }

    /// Commits through another connection, which no fault touches. Returns the version.
    async fn commit(&self, key: &Key) -> Result<u64, BoxError>;

    /// Ends all connections of nodes.
    fn cut(&self);

    /// Nothing gets through any more, or does again. `false`: this engine cannot be frozen.
    fn freeze(&self, is_frozen: bool) -> bool;

    /// Loses all data.
    async fn flush(&self);

    /// `kill -9`, and a start on the same data. `false`: this engine has no process.
    async fn restart(&mut self, down: Duration) -> bool;
}

impl Rig for MemoryEngine<Key> {
    type Engine = Self;

    const NAME: &'static str = "memory";

    async fn start(capacity: usize) -> Self {
        let engine = Self::new();
        engine.set_capacity(capacity);
        engine
    }

    fn engine(&self) -> Self {
        self.clone()
    }

    async fn commit(&self, key: &Key) -> Result<u64, BoxError> {
        Ok(Self::commit(self, key.clone()).version)
    }

    fn cut(&self) {
        Self::cut(self);
    }

    fn freeze(&self, _: bool) -> bool {
        false
    }

    async fn flush(&self) {
        Self::flush(self);
    }

    async fn restart(&mut self, _: Duration) -> bool {
        false
    }
}

/// Redis behind a proxy.
pub struct RedisRig<const PUBLISHED: bool> {
    pub server: RedisServer,
    pub proxy: Proxy,
    config: RedisConfig,
    engine: RedisEngine,
    writer: RedisEngine,
}

pub type RedisTracking = RedisRig<false>;
pub type RedisPublished = RedisRig<true>;

impl<const PUBLISHED: bool> RedisRig<PUBLISHED> {
    pub fn config(address: String, capacity: usize) -> RedisConfig {
        RedisConfig {
            addresses: vec![address],
            news: match PUBLISHED {
                true => News::Published,
                false => News::Tracking,
            },
            capacity,
            timeout: Duration::from_millis(800),
            ..RedisConfig::default()
        }
    }

    /// An engine that speaks with the server itself, as the `query` of its address says: as another user, for instance.
    pub fn direct(&self, query: &str) -> RedisEngine {
        let path = self.server.socket();
        let engine = RedisEngine::new(RedisConfig {
            addresses: vec![format!("redis+unix://{}?{query}", path.display())],
            ..self.config.clone()
        });
        engine.expect("the address is sound")
    }

    pub async fn start_with(capacity: usize, arguments: &[&str]) -> Self {
        let server = RedisServer::start(arguments).await;
        let proxy = Proxy::start(Upstream::Unix(server.socket())).await;
        let address = format!("redis://127.0.0.1:{}", proxy.port);
        let config = Self::config(address, capacity);
        let engine = RedisEngine::new(config.clone());
        let writer = RedisEngine::new(Self::config(server.url(), capacity));
        Self {
            engine: engine.expect("the address is sound"),
            writer: writer.expect("the address is sound"),
            config,
            server,
            proxy,
        }
    }
}

impl<const PUBLISHED: bool> Rig for RedisRig<PUBLISHED> {
    type Engine = RedisEngine;

    const NAME: &'static str = match PUBLISHED {
        true => "Redis, published",
        false => "Redis, tracking",
    };

    async fn start(capacity: usize) -> Self {
        Self::start_with(capacity, &[]).await
    }

    fn engine(&self) -> RedisEngine {
        self.engine.clone()
    }

    fn another(&self) -> RedisEngine {
        RedisEngine::new(self.config.clone()).expect("the address is sound")
    }

    async fn commit(&self, key: &Key) -> Result<u64, BoxError> {
        Ok(self.writer.commit(key, b"body").await?.version)
    }

    fn cut(&self) {
        self.proxy.cut();
    }

    fn freeze(&self, is_frozen: bool) -> bool {
        self.proxy.freeze(is_frozen);
        true
    }

    async fn flush(&self) {
        self.server.query("FLUSHALL").await;
    }

    async fn restart(&mut self, down: Duration) -> bool {
        self.server.server.kill();
        tokio::time::sleep(down).await;
        self.server.restart().await;
        true
    }
}

/// One NATS server behind a proxy.
pub struct NatsRig {
    pub server: NatsServer,
    pub proxy: Proxy,
    config: NatsConfig,
    engine: NatsEngine,
    writer: NatsEngine,
}

impl NatsRig {
    /// Of a connection that no fault touches.
    pub async fn context(&self) -> jetstream::Context {
        let client = async_nats::connect(self.server.url()).await;
        jetstream::new(client.expect("it accepts"))
    }

    pub fn config(servers: Vec<String>, capacity: usize) -> NatsConfig {
        NatsConfig {
            servers,
            capacity,
            timeout: Duration::from_millis(800),
            ..NatsConfig::default()
        }
    }
}

impl Rig for NatsRig {
    type Engine = NatsEngine;

    const NAME: &'static str = "NATS";

    async fn start(capacity: usize) -> Self {
        let server = NatsServer::start().await;
        let proxy = Proxy::start(Upstream::Tcp(server.port)).await;
        let address = format!("nats://127.0.0.1:{}", proxy.port);
        // The server tells clients its own address, which is not to be used.
        let mut config = Self::config(vec![address], capacity);
        config.options = config.options.ignore_discovered_servers();
        let writer = NatsEngine::connect(Self::config(vec![server.url()], capacity)).await;
        let writer = writer.expect("JetStream is on");
        let engine = NatsEngine::connect(config.clone()).await;
        Self {
            engine: engine.expect("the proxy serves"),
            config,
            writer,
            server,
            proxy,
        }
    }

    fn engine(&self) -> NatsEngine {
        self.engine.clone()
    }

    fn another(&self) -> NatsEngine {
        NatsEngine::new(self.config.clone())
    }

    async fn commit(&self, key: &Key) -> Result<u64, BoxError> {
        Ok(self.writer.commit(key, b"body").await?.version)
    }

    fn cut(&self) {
        self.proxy.cut();
    }

    fn freeze(&self, is_frozen: bool) -> bool {
        self.proxy.freeze(is_frozen);
        true
    }

    async fn flush(&self) {
        let context = self.context().await;
        context
            .delete_stream("PURGATORY")
            .await
            .expect("it is there");
        NatsEngine::connect(Self::config(vec![self.server.url()], 1_000))
            .await
            .expect("it makes the stream");
    }

    async fn restart(&mut self, down: Duration) -> bool {
        self.server.server.kill();
        tokio::time::sleep(down).await;
        self.server.restart().await;
        true
    }
}
