//! The engine of the demo: a server's process, or memory.

mod nats;
mod process;
mod redis;

use crate::store::{EngineKind, MemoryStore, Store};
use anyhow::Result;
use nats::Nats;
use redis::Redis;
use std::time::Duration;

#[derive(Debug)]
pub(super) enum Engine {
    Memory(MemoryStore),
    Redis(Redis),
    Nats(Nats),
}

impl Engine {
    pub(super) async fn start(kind: EngineKind) -> Result<Self> {
        Ok(match kind {
            EngineKind::Memory => Self::Memory(MemoryStore::new()),
            EngineKind::Redis => Self::Redis(Redis::start().await?),
            EngineKind::Nats => Self::Nats(Nats::start().await?),
        })
    }

    /// For nodes that are processes.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.url()),
            Self::Nats(nats) => Some(nats.url()),
        }
    }

    /// For nodes within this process.
    pub(super) fn store(&self) -> Option<Store> {
        match self {
            Self::Memory(store) => Some(Store::Memory(store.clone())),
            Self::Redis(_) | Self::Nats(_) => None,
        }
    }

    /// `kill -9`, and a start on the same data when it was `down` for so long.
    pub(super) async fn restart(&mut self, down: Duration) -> Result<()> {
        match self {
            Self::Memory(store) => store.set_down(true),
            Self::Redis(redis) => redis.kill()?,
            Self::Nats(nats) => nats.kill()?,
        }
        tokio::time::sleep(down).await;
        match self {
            Self::Memory(store) => {
                store.set_down(false);
                Ok(())
            }
            Self::Redis(redis) => redis.restart().await,
            Self::Nats(nats) => nats.restart().await,
        }
    }
}
