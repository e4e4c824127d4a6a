//! One node.

use crate::config::Config;
use crate::driver::{Closes, drive};
use crate::error::{InterestError, KeyError, StartError};
use crate::feed::Feed;
use crate::interest::Interest;
use crate::key::Key;
use crate::library::{Attached, DelayedOperation, KeyHasher, Purgatory};
use crate::position::{Epoch, Position};
use crate::shared::Shared;
use crate::source::Source;
use crate::stats::Stats;
use crate::sync::Arc;
use crate::table::Table;
use crate::table::entry::Learned;
use std::fmt;
use tokio::runtime::Handle;
use tokio::sync::watch;

type Admit<K> = Box<dyn Fn(&K) -> Result<(), KeyError> + Send + Sync>;

struct Inner<K: Key> {
    shared: Arc<Shared<K>>,
    admit: Admit<K>,
    closed: watch::Sender<bool>,
}

impl<K: Key> Inner<K> {
    fn shut_down(&self) {
        // In this order: the driver closes the table as it ends, and would take the waits out of this thread's hands.
        self.shared.table.close();
        self.closed.send_replace(true);
    }
}

impl<K: Key> Drop for Inner<K> {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// One node of a cluster: it keeps the versions of the keys that requests on this node wait for up to date, and checks
/// the purgatories that are [attached](Self::attach) when one grows.
///
/// Cloning is cheap, and clones are the same node. When the last clone is dropped, it is [shut down](Self::shutdown).
pub struct Cluster<K: Key> {
    inner: Arc<Inner<K>>,
}

impl<K: Key> Cluster<K> {
    /// Starts a node, on the tokio runtime that the calling thread is in. It connects in the background: interests may
    /// begin at once, and while the engine or the store cannot be reached, waits stay.
    ///
    /// The runtime must have its timers and its I/O driver enabled.
    ///
    /// # Errors
    /// The thread is in no runtime, or a setting is zero.
    pub fn start<S: Source<K>, F: Feed<K>>(
        source: S,
        feed: F,
        config: Config,
    ) -> Result<Self, StartError> {
        let config = config.validated()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let (source, feed) = (Arc::new(source), Arc::new(feed));
        let shared = Arc::new(Shared::new(config));
        let (closed, is_closed) = watch::channel(false);
        let admits = source.clone();
        let closes = Closes(shared.table.clone());
        let driver = drive(closes, shared.clone(), source, feed, is_closed);
        drop(runtime.spawn(driver));
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                admit: Box::new(move |key| admits.admit(key)),
                closed,
            }),
        })
    }

    /// Interest in `keys`: while it lives, their versions are kept up to date on this node.
    ///
    /// Returns at once. The versions are 0 until the first read; an operation that waits for one is checked when it is
    /// known. To be made *before* the operation parks, and to lie in it.
    ///
    /// Takes the lock of one shard of the node's table for each key.
    ///
    /// # Errors
    /// There are too many keys, the store cannot hold one of them, or the node was shut down. Then there is no interest
    /// in any of them.
    pub fn interest(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Interest<K>, InterestError> {
        let keys = keys.into_iter().collect::<Vec<_>>();
        for key in &keys {
            (self.inner.admit)(key).map_err(InterestError::Key)?;
        }
        Interest::new(self.table(), keys)
    }

    /// Checks `purgatory` from now on: whenever a version grows, what waits for the key up to that rank
    /// (`check_and_complete_with`, with `CheckBound::up_to`). An operation that waits for a version beyond `v` parks at rank
    /// `v + 1`, or without a rank. When the store has lost its data, all that waits for any key is checked.
    ///
    /// The checks run `try_complete` and `on_complete` on threads of the node's runtime: they must not block. The
    /// purgatory is not kept alive.
    pub fn attach<Op, S>(&self, purgatory: &Purgatory<Op, S>)
    where
        Op: DelayedOperation<Key = K>,
        S: KeyHasher,
    {
        let place = Attached::new(purgatory, false);
        self.table().attach(Arc::new(place));
    }

    /// Tells this node of a commit that was made on it, so that it need not wait for the engine to tell. Other nodes
    /// hear by the engine in any case: a node that dies before this call loses nothing.
    ///
    /// `version` is what the store acknowledged, in the present history. Where the store may have lost its data in this
    /// very moment, [`announce_position`](Self::announce_position) is exact.
    ///
    /// Runs the checks of [`attach`](Self::attach) on this thread, before it returns; hold no lock that `try_complete`
    /// or `on_complete` of any operation take.
    pub fn announce(&self, key: &K, version: u64) {
        self.announce_in(key, version, self.table().history().generation);
    }

    fn announce_in(&self, key: &K, version: u64, generation: u64) {
        if let Some(entry) = self.table().entry(key) {
            let learned = Learned::Announced;
            self.table()
                .reached(key, &entry, version, learned, generation);
        }
    }

    /// As [`announce`](Self::announce), for a position. It is ignored if this node knows of another history than the
    /// commit was made in, or of none yet; the engine tells of it in time.
    pub fn announce_position(&self, key: &K, position: Position) {
        let history = self.table().history();
        if history.epoch == Some(position.epoch) {
            self.announce_in(key, position.version, history.generation);
        }
    }

    /// Has `key` read at once, if it is watched. For a caller whom the store has told something else than this node
    /// believes: after an [`EngineError::Reset`](crate::EngineError::Reset), a client that goes on from its position
    /// would otherwise be told of the version that was lost, again and again, until an audit finds out.
    pub fn read_again(&self, key: &K) {
        self.table().verify(key);
    }

    /// The history of the store that this node knows of. `None` until the store was read for the first time.
    pub fn epoch(&self) -> Option<Epoch> {
        self.table().history().epoch
    }

    /// What this node has seen so far.
    pub fn stats(&self) -> Stats {
        self.inner.shared.stats()
    }

    /// The name in its [`Config`].
    pub fn name(&self) -> &str {
        &self.inner.shared.config.name
    }

    /// Ends the node: interests are refused from now on, its tasks end, and every wait of
    /// [`ClusterWaits`](crate::ClusterWaits) ends with [`WaitError::ShutDown`](crate::WaitError::ShutDown) before this
    /// returns. Purgatories that were attached are left alone.
    ///
    /// Blocks until the threads of these purgatories have ended, as
    /// [`Purgatory::shutdown`](request_purgatory::Purgatory::shutdown) does; so does the drop of the last clone. Two
    /// kinds of waits may end later: one that another thread is just examining, and all of them where this is called by
    /// a waker that a wait has woken.
    ///
    /// Only the first call does this; a later one returns at once, even while the first is still running, and so does one
    /// that comes while the node ends with its runtime. May be called on any thread.
    pub fn shutdown(&self) {
        self.inner.shut_down();
    }

    /// Whether the node was shut down.
    pub fn is_shut_down(&self) -> bool {
        self.table().is_closed()
    }

    pub(crate) fn table(&self) -> &Arc<Table<K>> {
        &self.inner.shared.table
    }
}

impl<K: Key> Clone for Cluster<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K: Key> fmt::Debug for Cluster<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(request_purgatory_shuttle)))]
mod tests {
    use super::*;
    use crate::memory::MemoryEngine;
    use crate::table::Waiting;
    use parking_lot::Mutex;
    use std::time::Duration;

    /// A node whose driver has not run yet.
    fn node() -> Cluster<u8> {
        let engine = MemoryEngine::new();
        Cluster::start(engine.clone(), engine, Config::default()).expect("in a runtime")
    }

    /// Notes, as it is shut down, whether the driver has been told.
    struct Place {
        closed: watch::Receiver<bool>,
        was_told: Mutex<Option<bool>>,
    }

    impl Waiting<u8> for Place {
        fn check(&self, _: &u8, _: u64) -> bool {
            true
        }

        fn is_alive(&self) -> bool {
            true
        }

        fn shut_down(&self) {
            *self.was_told.lock() = Some(*self.closed.borrow());
        }
    }

    /// The driver would end them as well, on another thread, and the shutdown would not wait for it.
    #[tokio::test]
    async fn g24_a_shutdown_ends_its_waits_before_the_driver_is_told() {
        let node = node();
        let place = Arc::new(Place {
            closed: node.inner.closed.subscribe(),
            was_told: Mutex::default(),
        });
        node.table().attach(place.clone());
        node.shutdown();
        assert_eq!(*place.was_told.lock(), Some(false));
        assert!(*place.closed.borrow());
    }

    /// The driver, which takes the orders, has ended.
    #[tokio::test]
    async fn g24_a_node_that_was_shut_down_keeps_no_order() {
        let node = node();
        node.read_again(&7);
        node.shutdown();
        node.read_again(&7);
        let mut orders = Vec::new();
        node.table()
            .tend(Duration::ZERO, Duration::ZERO, &mut orders);
        assert_eq!(orders.len(), 1, "{orders:?}");
    }
}
