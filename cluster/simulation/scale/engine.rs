//! One engine for all nodes, which counts what it is asked and what it tells, second by second.

use crate::engines::nats_server::NatsServer;
use crate::engines::redis_server::RedisServer;
use crate::engines::{Host, Traffic};
use fastrand::Rng;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{News, RedisConfig, RedisEngine};
use request_purgatory_cluster::{Cluster, Config, EngineError, Epoch, Reading, Source};
use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What an engine did within a second.
#[derive(Debug, Default, Clone, Copy)]
pub struct Second {
    pub asked: u64,
    pub told: u64,
    pub keys_read: u64,
    pub bytes: u64,
}

impl AddAssign for Second {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.told += other.told;
        self.keys_read += other.keys_read;
        self.bytes += other.bytes;
    }
}

pub struct Store {
    started: Instant,
    random: Mutex<Rng>,
    versions: Mutex<HashMap<u64, u64>>,
    is_gone: AtomicBool,
    seconds: Mutex<Vec<Second>>,
}

impl Store {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            random: Mutex::new(Rng::with_seed(seed)),
            versions: Mutex::default(),
            is_gone: AtomicBool::new(false),
            seconds: Mutex::default(),
        })
    }

    pub fn random(&self, below: u64) -> u64 {
        self.random
            .lock()
            .expect("no test panics with it")
            .u64(..below)
    }

    /// Until the next of what happens by chance, and as often as this on average.
    pub fn pause(&self, mean: Duration) -> Duration {
        let chance = self.random.lock().expect("no test panics with it").f64();
        // (Of 0 there is no logarithm.)
        mean.mul_f64(-(1.0 - chance).ln())
    }

    pub fn shuffle<T>(&self, all: &mut [T]) {
        self.random
            .lock()
            .expect("no test panics with it")
            .shuffle(all);
    }

    pub fn commit(&self, key: u64) -> u64 {
        let mut versions = self.versions.lock().expect("no test panics with it");
        let version = versions.entry(key).or_default();
        *version += 1;
        *version
    }

    pub fn set_gone(&self, is_gone: bool) {
        self.is_gone.store(is_gone, Ordering::Relaxed);
    }

    /// The seconds so far.
    pub fn seconds(&self) -> Vec<Second> {
        self.seconds.lock().expect("no test panics with it").clone()
    }
}

impl Host for Store {
    fn delay(&self) -> Duration {
        Duration::from_micros(50 + self.random(450))
    }

    fn epoch(&self) -> u64 {
        1
    }

    fn version(&self, key: u64) -> u64 {
        let versions = self.versions.lock().expect("no test panics with it");
        versions.get(&key).copied().unwrap_or(0)
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    fn is_unread(&self) -> bool {
        self.is_gone()
    }

    fn count(&self, traffic: Traffic) {
        let mut seconds = self.seconds.lock().expect("no test panics with it");
        let at = self.started.elapsed().as_secs() as usize;
        if seconds.len() <= at {
            seconds.resize(at + 1, Second::default());
        }
        let (asked, told, keys_read, bytes) = match traffic {
            Traffic::In(bytes) => (1, 0, 0, bytes),
            Traffic::Out(bytes) => (0, 1, 0, bytes),
            Traffic::Read(keys) => (0, 0, keys as u64, 0),
        };
        seconds[at] += Second {
            asked,
            told,
            keys_read,
            bytes: bytes as u64,
        };
    }
}

/// A server, and what each node makes of it.
#[derive(Clone)]
pub enum Server {
    Tracking(RedisServer),
    Published(RedisServer),
    Nats(NatsServer, Arc<Store>),
}

impl Server {
    pub fn all(store: &Arc<Store>, name: &str) -> Self {
        let host = || store.clone() as Arc<dyn Host>;
        match name {
            "Redis, tracking" => Self::Tracking(RedisServer::new(host())),
            "Redis, published" => Self::Published(RedisServer::new(host())),
            _ => Self::Nats(NatsServer::new(host()), store.clone()),
        }
    }

    /// A node with connections of its own.
    pub fn start(&self, config: Config) -> Cluster<u64> {
        let redis = |server: &RedisServer, news| {
            let settings = RedisConfig {
                news,
                ..RedisConfig::default()
            };
            let engine = RedisEngine::simulated(Arc::new(server.clone()), settings);
            Cluster::start(engine.clone(), engine, config.clone())
        };
        let node = match self {
            Self::Tracking(server) => redis(server, News::Tracking),
            Self::Published(server) => redis(server, News::Published),
            Self::Nats(server, store) => {
                let wire = Arc::new(server.clone());
                let feed = NatsEngine::simulated(wire, NatsConfig::default());
                Cluster::start(Reads(store.clone()), feed, config.clone())
            }
        };
        node.expect("in a runtime")
    }

    pub fn committed(&self, key: u64, version: u64) {
        match self {
            Self::Tracking(server) | Self::Published(server) => server.committed(key, version),
            Self::Nats(server, _) => server.committed(key, version),
        }
    }

    pub fn cut(&self) {
        match self {
            Self::Tracking(server) | Self::Published(server) => server.cut(),
            Self::Nats(server, _) => server.cut(),
        }
    }

    /// Ends any connection.
    pub fn cut_one(&self, store: &Store) {
        let any = |of: usize| store.random(of.max(1) as u64) as usize;
        match self {
            Self::Tracking(server) | Self::Published(server) => server.cut_one(any),
            Self::Nats(server, _) => server.cut_one(any),
        }
    }
}

/// A read of NATS: one request for each key, beside two for the stream.
struct Reads(Arc<Store>);

impl Source<u64> for Reads {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        let store = &self.0;
        sleep(store.delay()).await;
        if store.is_gone() {
            return Err("no server answers".into());
        }
        for _ in 0..keys.len() + 2 {
            store.count(Traffic::In(110));
            store.count(Traffic::Out(160));
        }
        store.count(Traffic::Read(keys.len()));
        let reading = Reading {
            epoch: Epoch(store.epoch()),
            versions: keys.iter().map(|key| Some(store.version(*key))).collect(),
            head: None,
            floor: None,
        };
        sleep(store.delay()).await;
        Ok(reading)
    }
}
