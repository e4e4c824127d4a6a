//! News by `CLIENT TRACKING`: the server remembers what this connection has read, and says when it changes, once.
//!
//! Answers and invalidations come over one connection, in the order in which the server made them. So a change after a
//! read has been served is announced, after that read's answer; and what is announced is read again at once, which also
//! asks for the next announcement.

use super::session::{Link, read};
use crate::error::FeedError;
use crate::feed::Change;
use crate::key::WireKey;
use crate::source::Epoch;
use ::redis::{PushInfo, PushKind, Value, cmd};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::Interval;

/// The counters that are watched, by name. The server cannot be told to forget one: what is not in here is not read
/// again, and so forgotten.
type Watched = Arc<Mutex<HashSet<Vec<u8>, foldhash::fast::RandomState>>>;

pub(super) struct Watcher {
    link: Link,
    watched: Watched,
}

pub(super) struct Listener {
    link: Link,
    watched: Watched,
    ping: Interval,
    epoch: Epoch,
}

pub(super) async fn open(mut link: Link, other: Link) -> Result<(Watcher, Listener), FeedError> {
    let mut tracking = cmd("CLIENT");
    tracking.arg("TRACKING").arg("ON");
    link.run(&tracking).await?;
    // The epoch is tracked too: its loss is announced.
    let read = read(&mut link.connection, &link.inner.names, &[]).await;
    let (epoch, _) = read.map_err(|error| link.broken(error))?;
    let watched = Watched::default();
    let watcher = Watcher {
        link,
        watched: watched.clone(),
    };
    let listener = Listener {
        ping: other.interval(),
        link: other,
        watched,
        epoch,
    };
    Ok((watcher, listener))
}

impl Watcher {
    pub(super) async fn watch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        let names = &self.link.inner.names;
        let counters = keys
            .iter()
            .map(|key| names.version(key))
            .collect::<Vec<_>>();
        // First, so that an announcement right after the read is not taken for one of a forgotten key.
        self.watched.lock().extend(counters.iter().cloned());
        let read = read(&mut self.link.connection, names, &counters).await;
        read.map(drop).map_err(|error| self.link.broken(error))
    }

    pub(super) fn unwatch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        let names = &self.link.inner.names;
        let mut watched = self.watched.lock();
        for key in keys {
            watched.remove(&names.version(key));
        }
        Ok(())
    }
}

impl Listener {
    pub(super) async fn next<K: WireKey>(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        loop {
            let Some(pushes) = self.link.next(&mut self.ping).await? else {
                self.link.run(&cmd("PING")).await?;
                continue;
            };
            let mut stale = Vec::new();
            for push in pushes {
                self.add_stale(push, &mut stale)?;
            }
            if stale.is_empty() {
                continue;
            }
            stale.sort_unstable();
            stale.dedup();
            let names = &self.link.inner.names;
            // Without a counter, the epoch alone is read and tracked again.
            stale.retain(|name| *name != names.epoch);
            let read = read(&mut self.link.connection, names, &stale).await;
            let (epoch, versions) = read.map_err(|error| self.link.broken(error))?;
            let changes = stale.iter().zip(versions).filter_map(|(name, version)| {
                Some(Change {
                    key: names.key_of_version(name)?,
                    version: version?,
                    epoch: Some(epoch),
                })
            });
            let changes = changes.collect::<Vec<_>>();
            if !changes.is_empty() {
                return Ok(changes);
            }
            // Written again by the first session of a new store, it is announced, and the same.
            if epoch != self.epoch {
                return Err(FeedError::Cut("the epoch of the store was changed".into()));
            }
        }
    }

    /// Adds the names that a push says are stale, as far as they are watched.
    fn add_stale(&self, push: PushInfo, stale: &mut Vec<Vec<u8>>) -> Result<(), FeedError> {
        if push.kind != PushKind::Invalidate {
            return Ok(());
        }
        let watched = self.watched.lock();
        for value in push.data {
            let names = match value {
                Value::Array(names) => names,
                // Everything: the store was flushed.
                _ => return Err(FeedError::Cut("the server invalidated everything".into())),
            };
            for name in names {
                match name {
                    Value::BulkString(name)
                        if watched.contains(&name) || name == self.link.inner.names.epoch =>
                    {
                        stale.push(name);
                    }
                    Value::BulkString(_) => {}
                    other => {
                        return Err(FeedError::Protocol(format!("an invalidation of {other:?}")));
                    }
                }
            }
        }
        Ok(())
    }
}
