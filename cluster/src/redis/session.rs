//! One session with Redis, whatever the news.

use super::config::News;
use super::connect::Connection;
use super::link::{Inner, Link};
use super::push::Pushes;
use super::{published, tracking};
use crate::config::Config;
use crate::error::FeedError;
use crate::feed::{Change, Changes, Interests};
use crate::key::WireKey;
use ::redis::{Value, cmd};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) async fn open<K: WireKey>(
    inner: &Arc<Inner>,
    config: &Config,
) -> Result<(RedisInterests<K>, RedisChanges<K>), FeedError> {
    let pushes = Arc::new(Pushes::new(inner.config.capacity));
    let connection = inner.addresses.connect_with(&pushes).await;
    let mut connection = connection.map_err(|error| FeedError::Connect(error.into()))?;
    connection.set_timeout(config.ping);
    // ORDERING: Relaxed: as in `tracking::open`.
    let is_outgrown = inner.is_outgrown.load(Ordering::Relaxed);
    let advice = eviction(&connection).await.into_iter();
    let advice = advice.chain(is_outgrown.then(|| tracking::SMALL_TABLE.to_owned()));
    let advice = advice.collect::<Vec<_>>().join("; ");
    *inner.advice.lock() = (!advice.is_empty()).then(|| advice.into());
    let link = || Link {
        inner: inner.clone(),
        connection: connection.clone(),
        pushes: pushes.clone(),
        patience: config.ping,
    };
    let (interests, changes) = match inner.config.news {
        News::Tracking => {
            let (interests, changes) = tracking::open(link(), link()).await?;
            (
                EitherInterests::Tracking(interests),
                EitherChanges::Tracking(changes),
            )
        }
        News::Published => {
            let (interests, changes) = published::open(link(), link()).await?;
            (
                EitherInterests::Published(interests),
                EitherChanges::Published(changes),
            )
        }
    };
    let interests = RedisInterests {
        interests,
        key: PhantomData,
    };
    let changes = RedisChanges {
        changes,
        key: PhantomData,
    };
    Ok((interests, changes))
}

/// What the server's memory settings put at risk, if they do.
async fn eviction(connection: &Connection) -> Option<String> {
    // A user who may not ask is told nothing.
    let info = connection.run(cmd("INFO").arg("memory")).await.ok()?;
    let info = match info {
        Value::BulkString(text) => String::from_utf8(text).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let policy = info
        .lines()
        .find_map(|it| it.strip_prefix("maxmemory_policy:"))?;
    match policy.trim() {
        "noeviction" => None,
        policy => Some(format!(
            "Redis has `maxmemory-policy {policy}`: evicted counters end all waits with Reset; set `noeviction`"
        )),
    }
}

enum EitherInterests {
    Tracking(tracking::Watcher),
    Published(published::Subscriber),
}

enum EitherChanges {
    Tracking(tracking::Listener),
    Published(published::Listener),
}

/// What one session watches.
pub struct RedisInterests<K> {
    interests: EitherInterests,
    key: PhantomData<fn() -> K>,
}

impl<K: WireKey> Interests<K> for RedisInterests<K> {
    async fn watch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        match &mut self.interests {
            EitherInterests::Tracking(watcher) => watcher.watch(keys).await,
            EitherInterests::Published(subscriber) => subscriber.watch(keys).await,
        }
    }

    async fn unwatch(&mut self, keys: &[K]) -> Result<(), FeedError> {
        match &mut self.interests {
            EitherInterests::Tracking(watcher) => watcher.unwatch(keys),
            EitherInterests::Published(subscriber) => subscriber.unwatch(keys).await,
        }
    }
}

/// What one session hears.
pub struct RedisChanges<K> {
    changes: EitherChanges,
    key: PhantomData<fn() -> K>,
}

impl<K: WireKey> Changes<K> for RedisChanges<K> {
    async fn next(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        match &mut self.changes {
            EitherChanges::Tracking(listener) => listener.next().await,
            EitherChanges::Published(listener) => listener.next().await,
        }
    }
}

impl<K> fmt::Debug for RedisInterests<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisInterests").finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for RedisChanges<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisChanges").finish_non_exhaustive()
    }
}
