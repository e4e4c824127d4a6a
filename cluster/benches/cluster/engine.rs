//! The engines that are measured: straight to the server, with no proxy in the way.

use crate::support::engine::{Key, NatsRig, RedisRig};
use crate::support::nats_server::NatsServer;
use crate::support::redis_server::RedisServer;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine};
use std::fmt;

const CAPACITY: usize = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    RedisTracking,
    RedisPublished,
    Nats,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RedisTracking => "Redis tracking",
            Self::RedisPublished => "Redis published",
            Self::Nats => "NATS",
        })
    }
}

impl Kind {
    /// `max_subscriptions`, and what it means.
    pub fn ways(self) -> Vec<(usize, &'static str)> {
        match self {
            Self::RedisTracking | Self::RedisPublished => vec![(1_000_000, "")],
            Self::Nats => vec![(1_000_000, " per key"), (0, " wildcard")],
        }
    }

    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn of_number(text: &str) -> Self {
        let all = [Self::RedisTracking, Self::RedisPublished, Self::Nats];
        let named = all.into_iter().find(|it| it.number().to_string() == text);
        named.expect("the number of an engine")
    }

    pub fn redis(self, url: &str) -> RedisConfig {
        match self {
            Self::RedisPublished => RedisRig::<true>::config(url.into(), CAPACITY),
            Self::RedisTracking | Self::Nats => RedisRig::<false>::config(url.into(), CAPACITY),
        }
    }
}

pub fn nats(url: &str) -> NatsConfig {
    NatsRig::config(vec![url.into()], CAPACITY)
}

pub fn key(number: u32) -> Key {
    format!("key {number}").into_bytes()
}

enum Writer {
    Redis(RedisEngine),
    Nats(NatsEngine),
}

/// A server, and B.
pub struct Site {
    pub kind: Kind,
    pub url: String,
    writer: Writer,
    _server: Box<dyn std::any::Any + Send + Sync>,
}

impl Site {
    pub async fn start(kind: Kind) -> Self {
        match kind {
            Kind::RedisTracking | Kind::RedisPublished => {
                let server = RedisServer::start(&[]).await;
                let url = server.url();
                let engine = RedisEngine::new(kind.redis(&url)).expect("the address is sound");
                Self {
                    kind,
                    url,
                    writer: Writer::Redis(engine),
                    _server: Box::new(server),
                }
            }
            Kind::Nats => {
                let server = NatsServer::start().await;
                let url = server.url();
                let engine = NatsEngine::connect(nats(&url)).await;
                Self {
                    kind,
                    url,
                    writer: Writer::Nats(engine.expect("JetStream is on")),
                    _server: Box::new(server),
                }
            }
        }
    }

    pub async fn commit(&self, number: u32) {
        let committed = match &self.writer {
            Writer::Redis(engine) => engine.commit(&key(number), b"body").await.map(drop),
            Writer::Nats(engine) => engine.commit(&key(number), b"body").await.map(drop),
        };
        committed.expect("the engine takes it");
    }
}
