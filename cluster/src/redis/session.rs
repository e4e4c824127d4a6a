//! One session with Redis, whatever the news.

use super::connect::{Connection, is_forbidden};
use super::names::pieces;
use super::published;
use super::push::{Arrived, Pushes};
use super::{Inner, News, tracking};
use crate::config::Config;
use crate::error::{BoxError, FeedError};
use crate::feed::{Change, Changes, Interests};
use crate::key::WireKey;
use crate::redis::names::Names;
use crate::source::Epoch;
use ::redis::{Cmd, PushInfo, RedisError, Value, cmd};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// How many pushes are taken at once.
pub(super) const BATCH: usize = 1_000;
/// Bytes of names in one `MGET`. (What it is answered with is short.)
const READ_PIECE: usize = 1 << 20;

/// What both halves of a session work with.
pub(super) struct Link {
    pub(super) inner: Arc<Inner>,
    pub(super) connection: Connection,
    pub(super) pushes: Arc<Pushes>,
    /// The longest silence.
    pub(super) patience: Duration,
}

impl Link {
    pub(super) fn interval(&self) -> Interval {
        let start = tokio::time::Instant::now() + self.patience;
        let mut interval = interval_at(start, self.patience);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    }

    /// Why a command failed, as the session ends of it.
    pub(super) fn failure(&self, error: RedisError) -> FeedError {
        if is_forbidden(&error) {
            let said = error.detail().unwrap_or_default();
            return FeedError::Refused(format!("the Redis user may not do what news need: {said}"));
        }
        match error.is_timeout() {
            true => FeedError::Silent(self.patience),
            false => FeedError::Cut(error.into()),
        }
    }

    /// The same for a read.
    pub(super) fn broken(&self, error: BoxError) -> FeedError {
        match error.downcast::<RedisError>() {
            Ok(error) => self.failure(*error),
            Err(error) => FeedError::Cut(error),
        }
    }

    /// Waits for pushes, or for the moment to ask for a sign of life: then there are none.
    pub(super) async fn next(
        &self,
        ping: &mut Interval,
    ) -> Result<Option<Vec<PushInfo>>, FeedError> {
        tokio::select! {
            biased;
            arrived = self.pushes.next(BATCH) => match arrived {
                Arrived::Pushes(pushes) => Ok(Some(pushes)),
                Arrived::Lagged => Err(FeedError::Lagged),
                Arrived::Cut => Err(FeedError::Cut("the server closed the connection".into())),
            },
            _ = ping.tick() => Ok(None),
        }
    }

    /// Runs a command whose answer says nothing.
    pub(super) async fn run(&self, command: &Cmd) -> Result<(), FeedError> {
        let answer = self.connection.run(command).await;
        answer.map(drop).map_err(|error| self.failure(error))
    }
}

pub(super) async fn open<K: WireKey>(
    inner: &Arc<Inner>,
    config: &Config,
) -> Result<(RedisInterests<K>, RedisChanges<K>), FeedError> {
    let pushes = Arc::new(Pushes::new(inner.config.capacity));
    let connection = inner.addresses.connect_with(&pushes).await;
    let mut connection = connection.map_err(|error| FeedError::Connect(error.into()))?;
    connection.set_timeout(config.ping);
    if let Some(advice) = eviction(&connection).await {
        *inner.advice.lock() = Some(advice);
    }
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

/// Reads the epoch and counters, in one command if their names are not very long. Gives the store an epoch if it has
/// none.
pub(super) async fn read(
    connection: &Connection,
    names: &Names,
    counters: &[Vec<u8>],
) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
    let (mut known, mut versions) = (None, Vec::with_capacity(counters.len()));
    let pieces = pieces(counters, usize::MAX, READ_PIECE);
    for piece in if pieces.is_empty() {
        vec![&[][..]]
    } else {
        pieces
    } {
        let (epoch, read) = read_piece(connection, names, piece).await?;
        if known.is_some_and(|known| known != epoch) {
            return Err("the store lost its data while it was read".into());
        }
        known = Some(epoch);
        versions.extend(read);
    }
    Ok((known.ok_or("nothing was read")?, versions))
}

async fn read_piece(
    connection: &Connection,
    names: &Names,
    counters: &[Vec<u8>],
) -> Result<(Epoch, Vec<Option<u64>>), BoxError> {
    loop {
        let mut command = cmd("MGET");
        command.arg(&names.epoch).arg(counters);
        let Value::Array(values) = connection.run(&command).await? else {
            return Err("MGET answered something else than an array".into());
        };
        let mut values = values.into_iter();
        match values.next() {
            Some(Value::Nil) => {
                let fresh = format!("{:x}", fastrand::u64(..));
                let mut command = cmd("SET");
                command.arg(&names.epoch).arg(fresh).arg("NX");
                // Another node may have been first; the next turn reads what stands there.
                connection.run(&command).await?;
            }
            Some(Value::BulkString(epoch)) => {
                let epoch = parse_epoch(&epoch).ok_or("the epoch in the store is no number")?;
                return Ok((epoch, values.map(|value| version(&value)).collect()));
            }
            other => return Err(format!("MGET answered {other:?} for the epoch").into()),
        }
    }
}

/// What the server's memory settings put at risk, if they do.
async fn eviction(connection: &Connection) -> Option<Arc<str>> {
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
        policy => Some(
            format!(
                "Redis has `maxmemory-policy {policy}`: evicted counters end all waits with Reset; set `noeviction`"
            )
            .into(),
        ),
    }
}

pub(super) fn parse_epoch(text: &[u8]) -> Option<Epoch> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text, 16).ok().map(Epoch)
}

/// An absent counter is 0. One that is no number says nothing: a writer has spoiled it, and the other keys must not
/// suffer.
fn version(value: &Value) -> Option<u64> {
    match value {
        Value::Nil => Some(0),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
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
