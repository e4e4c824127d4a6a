//! News by `CLIENT TRACKING`: the server remembers what this connection has read, and says when it changes, once.
//!
//! Answers and invalidations come over one connection, in the order in which the server made them. So a change after a
//! read has been served is announced, after that read's answer; and what is announced is read again at once, which also
//! asks for the next announcement.

use super::link::{Link, read};
use crate::error::FeedError;
use crate::feed::Change;
use crate::key::WireKey;
use crate::position::Epoch;
use crate::sync::shed;
use ::redis::{PushInfo, PushKind, Value, cmd};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Interval;

/// The counters that are watched, by name, with the version that was read last. The server cannot be told to forget one:
/// what is not in here is not read again, and so forgotten.
type Watched = Arc<Mutex<HashMap<Vec<u8>, Option<u64>, foldhash::fast::RandomState>>>;

/// This many announcements of counters that had not changed, within a period of signs of life and beside few others,
/// show that the server's table is too small: each read pushes another key out of it, which is announced as a change.
const OUTGROWN: u32 = 256;
/// What the operator should know then.
pub(super) const SMALL_TABLE: &str = "Redis has a smaller `tracking-table-max-keys` than keys are watched: until this \
                                      node starts anew it hears a broadcast of all keys";

pub(super) struct Watcher {
    link: Link,
    watched: Watched,
    /// The server announces every counter, read or not.
    is_broadcast: bool,
}

pub(super) struct Listener {
    link: Link,
    watched: Watched,
    ping: Interval,
    epoch: Epoch,
    /// The counters that were announced since the last sign of life: changed, and not changed.
    announced: (u32, u32),
}

pub(super) async fn open(link: Link, other: Link) -> Result<(Watcher, Listener), FeedError> {
    let names = &link.inner.names;
    let mut tracking = cmd("CLIENT");
    tracking.arg("TRACKING").arg("ON");
    // ORDERING: Relaxed: the flag guards nothing, and a session that does not see it yet finds out for itself.
    let is_broadcast = link.inner.is_outgrown.load(Ordering::Relaxed);
    if is_broadcast {
        tracking.arg("BCAST").arg("PREFIX").arg(&names.version);
        tracking.arg("PREFIX").arg(&names.epoch);
    }
    link.run(&tracking).await?;
    // The epoch is tracked too: its loss is announced.
    let read = read(&link.connection, names, &[]).await;
    let (epoch, _) = read.map_err(|error| link.broken(error))?;
    let watched = Watched::default();
    let watcher = Watcher {
        link,
        watched: watched.clone(),
        is_broadcast,
    };
    let listener = Listener {
        ping: other.interval(),
        link: other,
        watched,
        epoch,
        announced: (0, 0),
    };
    Ok((watcher, listener))
}

/// Notes what was read of counters that are watched, and counts which had changed and which had not.
fn note<'a>(
    watched: &Watched,
    announced: &mut (u32, u32),
    read: impl Iterator<Item = (&'a Vec<u8>, Option<u64>)>,
) -> Result<(), FeedError> {
    let mut watched = watched.lock();
    for (name, version) in read {
        let Some(known) = watched.get_mut(name) else {
            continue;
        };
        if version.is_some() && version < *known {
            // The next session's reads find out what is lost.
            return Err(FeedError::Cut("a counter went back".into()));
        }
        match version.is_some() && *known == version {
            true => announced.1 += 1,
            false => announced.0 += 1,
        }
        *known = version;
    }
    Ok(())
}

impl Watcher {
    pub(super) async fn watch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        let names = &self.link.inner.names;
        let counters = keys
            .iter()
            .map(|key| names.version(key))
            .collect::<Vec<_>>();
        // First, so that an announcement right after the read is not taken for one of a forgotten key.
        let unread = counters.iter().cloned().map(|name| (name, None));
        self.watched.lock().extend(unread);
        if self.is_broadcast {
            return Ok(());
        }
        let read = read(&self.link.connection, names, &counters).await;
        let (_, versions) = read.map_err(|error| self.link.broken(error))?;
        let mut watched = self.watched.lock();
        for (name, version) in counters.iter().zip(versions) {
            if let Some(known) = watched.get_mut(name) {
                // The listener may have read a later one meanwhile.
                *known = version.max(*known);
            }
        }
        Ok(())
    }

    pub(super) fn unwatch<K: WireKey>(&mut self, keys: &[K]) -> Result<(), FeedError> {
        let names = &self.link.inner.names;
        let mut watched = self.watched.lock();
        for key in keys {
            watched.remove(&names.version(key));
        }
        shed(&mut watched);
        Ok(())
    }
}

impl Listener {
    pub(super) async fn next<K: WireKey>(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        loop {
            let Some(pushes) = self.link.next(&mut self.ping).await? else {
                self.link.run(&cmd("PING")).await?;
                self.announced = (0, 0);
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
            let read = read(&self.link.connection, names, &stale).await;
            let (epoch, versions) = read.map_err(|error| self.link.broken(error))?;
            let read = stale.iter().zip(versions.iter().copied());
            note(&self.watched, &mut self.announced, read)?;
            self.look_for_room()?;
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

    /// Whether the server's table has room for what is watched.
    fn look_for_room(&self) -> Result<(), FeedError> {
        let (changed, unchanged) = self.announced;
        let inner = &self.link.inner;
        // ORDERING: Relaxed: as in `open`.
        if unchanged < OUTGROWN
            || unchanged < 3 * changed
            || inner.is_outgrown.swap(true, Ordering::Relaxed)
        {
            return Ok(());
        }
        Err(FeedError::Refused(SMALL_TABLE.into()))
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
                        if watched.contains_key(&name) || name == self.link.inner.names.epoch =>
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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "rules")]
    use {
        crate::config::Config,
        crate::feed::{Changes, Feed, Interests},
        crate::redis::connect::{Connection, Pushed, Socket, Wire},
        crate::redis::push::Pushes,
        crate::redis::{RedisConfig, RedisEngine},
        crate::source::Source,
        ::redis::{Arg, Cmd, RedisError},
        futures_util::FutureExt,
        futures_util::future::BoxFuture,
        std::sync::atomic::AtomicU64,
        std::time::Duration,
        tokio::time::{sleep, timeout},
    };

    /// A writer has spoiled a counter that was read before: neither that nor its repair ends the session of the others.
    #[test]
    fn g24_a_counter_that_is_no_number_any_more_did_not_go_back() {
        let names = ["spoiled", "other", "forgotten"];
        let [spoiled, other, forgotten] = names.map(|name| name.as_bytes().to_vec());
        let watched = Watched::default();
        let known = [(spoiled.clone(), Some(5)), (other.clone(), Some(5))];
        watched.lock().extend(known);
        let mut announced = (0, 0);
        let mut note = |read: &[_]| note(&watched, &mut announced, read.iter().copied());
        assert!(note(&[(&spoiled, None), (&other, Some(6))]).is_ok());
        assert!(note(&[(&spoiled, Some(6))]).is_ok());
        // That another one went back is seen, also beside one that is watched no more.
        assert!(note(&[(&forgotten, Some(1)), (&other, Some(5))]).is_err());
        assert_eq!(watched.lock()[&other], Some(6));
    }

    #[cfg(feature = "rules")]
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A store whose counters all stand at 5 (but somebody has spoiled that of "0"), in whatever history. It takes its time
    /// for each command: less than half of the timeout.
    #[cfg(feature = "rules")]
    #[derive(Clone, Default)]
    struct Store {
        epoch: Arc<AtomicU64>,
        pushes: Arc<Mutex<Option<Pushed>>>,
    }

    #[cfg(feature = "rules")]
    impl Wire for Store {
        fn connect(
            &self,
            pushes: Pushed,
        ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
            *self.pushes.lock() = Some(pushes);
            std::future::ready(Ok(Arc::new(self.clone()) as Arc<dyn Socket>)).boxed()
        }
    }

    #[cfg(feature = "rules")]
    impl Socket for Store {
        fn run(&self, command: &Cmd) -> BoxFuture<'static, Result<Value, RedisError>> {
            let bulk = |text: String| Value::BulkString(text.into());
            let answer = match command.args_iter().next() {
                Some(Arg::Simple(b"ROLE")) => Value::Array(vec![bulk("master".into())]),
                Some(Arg::Simple(b"MGET")) => {
                    let value = |name: Arg<&[u8]>| match name {
                        Arg::Simple(b"purgatory:v:0") => bulk("word".into()),
                        _ => bulk("5".into()),
                    };
                    let values = command.args_iter().skip(1).map(value);
                    let mut values = values.collect::<Vec<_>>();
                    values[0] = bulk(format!("{:x}", self.epoch.load(Ordering::Relaxed)));
                    Value::Array(values)
                }
                _ => Value::Okay,
            };
            let time = RedisConfig::default().timeout.mul_f64(0.4);
            sleep(time).map(|()| Ok(answer)).boxed()
        }
    }

    /// A counter that was restored is what it was, and the history is another one. Both are announced, and read together;
    /// and so is one that says nothing.
    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn g24_what_is_heard_is_of_the_history_that_it_was_read_in() {
        let store = Store::default();
        let wire = Arc::new(store.clone());
        let engine = RedisEngine::simulated(wire, RedisConfig::default());
        let opened = engine.open(&Config::default()).await;
        let (mut interests, mut changes) = opened.expect("it opens");
        let key = b"a".to_vec();
        let watched = interests.watch(&[b"0".to_vec(), key.clone()]).await;
        watched.expect("it watches");
        store.epoch.store(2, Ordering::Relaxed);
        for name in ["purgatory:epoch", "purgatory:v:0", "purgatory:v:a"] {
            let names = Value::Array(vec![Value::BulkString(name.into())]);
            let pushes = store.pushes.lock();
            pushes.as_ref().expect("it is connected")(PushInfo {
                kind: PushKind::Invalidate,
                data: vec![names],
            });
        }
        let expected = Change {
            key,
            version: 5,
            epoch: Some(Epoch(2)),
        };
        let heard = timeout(Duration::from_secs(20), changes.next()).await;
        let heard = heard.expect("it is in time").expect("it hears");
        assert_eq!(heard, [expected]);
    }

    /// Names that no one command takes: each command has the timeout to itself.
    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn g24_a_read_takes_as_long_as_its_commands() {
        let wire = Arc::new(Store::default());
        let engine = RedisEngine::simulated(wire, RedisConfig::default());
        let keys = (0..12).map(|key| vec![key; 60_000]).collect::<Vec<_>>();
        let reading = engine.versions(&keys).await.expect("it reads");
        assert_eq!(reading.versions, [Some(5); 12]);
    }

    #[cfg(feature = "rules")]
    async fn opened() -> (Watcher, Listener) {
        let wire = Arc::new(Store::default());
        let engine = RedisEngine::simulated(wire.clone(), RedisConfig::default());
        let link = || Link {
            inner: engine.inner.clone(),
            connection: Connection::Simulated(wire.clone()),
            pushes: Arc::new(Pushes::new(1)),
            patience: PATIENCE,
        };
        open(link(), link()).await.expect("it opens")
    }

    /// Neither hides what was heard long ago that the table has become too small, nor does it add up to that.
    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn g24_what_is_announced_is_counted_anew_after_a_sign_of_life() {
        let (_watcher, mut listener) = opened().await;
        listener.announced = (1_000, 1_000);
        let quiet = timeout(3 * PATIENCE, listener.next::<u64>()).await;
        assert!(quiet.is_err(), "{quiet:?}");
        assert_eq!(listener.announced, (0, 0));
    }

    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn g24_a_burst_of_keys_leaves_no_memory() {
        let (mut watcher, _listener) = opened().await;
        let keys = (0..10_000_u64).collect::<Vec<_>>();
        watcher.watch(&keys).await.expect("it watches");
        for some in keys[1..].chunks(1_000) {
            watcher.unwatch(some).expect("it ends the watches");
        }
        let watched = watcher.watched.lock();
        assert_eq!(watched.len(), 1);
        assert!(watched.capacity() < 1_000, "{}", watched.capacity());
    }
}
