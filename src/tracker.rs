//! One timer for each key: heartbeats, sessions, leases, and the calls that a client waits for.

mod builder;
mod entries;
mod key;
mod requests;

pub use builder::TrackerBuilder;
pub use key::TrackedKey;
pub use requests::{RequestError, Requests, RequestsBuilder, ResponseFuture};

use crate::address::Address;
use crate::engine::Engine;
use crate::engine::shard::Rescheduled;
use crate::engine::shared_handle::{SharedHandle, WeakHandle, shared_methods, shared_type};
use crate::error::{BuildError, Rejected};
use crate::hash::{KeyHasher, RandomState};
use crate::stats::Ending;
use entries::{Entries, Timers};
use std::borrow::Borrow;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Keeps one value for each key until it is completed, or its timeout passes.
///
/// It is a [`Timer`](crate::Timer) with a map by key, and has the guarantees of the [`Purgatory`](crate::Purgatory). It
/// serves a session that lives as long as its heartbeats
/// [touch](Self::touch) it, a lease, a call that waits for its response ([`Requests`] makes futures of these).
///
/// ```
/// use request_purgatory::Tracker;
/// use request_purgatory::threads::Reaper;
/// use request_purgatory::time::ManualClock;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (gone, silent) = mpsc::channel();
/// let sessions = Tracker::builder("sessions")
///     .clock(clock.clone())
///     .reaper(Reaper::Manual) // no thread; by default the tracker has its own
///     .build(move |member: &'static str, _: u32| gone.send(member).unwrap())?;
/// sessions.track("ann", 1, Duration::from_secs(10))?;
/// sessions.track("bob", 2, Duration::from_secs(10))?;
///
/// clock.advance(Duration::from_secs(9));
/// assert!(sessions.touch("ann", Duration::from_secs(10)));
/// clock.advance(Duration::from_secs(9));
/// assert_eq!(sessions.advance(), 1);
/// assert_eq!(silent.try_recv()?, "bob");
/// assert_eq!(sessions.complete("ann"), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones are the same tracker. When the last one is dropped, it is
/// [shut down](Self::shutdown).
///
/// Every method may be called from the callback. None holds a lock while the callback runs; `Hash`, `Eq` and `Clone`
/// of keys run under the lock of one map shard. None but [`advance`](Self::advance) runs the callback, so a lock
/// that it takes may be held while a value is tracked, touched or completed.
pub struct Tracker<K: TrackedKey, V: Send + 'static, S: KeyHasher = RandomState> {
    shared: SharedHandle<Timers<K, V, S>>,
}

impl<K: TrackedKey, V: Send + 'static> Tracker<K, V> {
    /// A tracker with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    ///
    /// # Panics
    /// If the system refuses a thread. [`TrackerBuilder::build`] returns that as an error.
    pub fn new(name: impl Into<String>, on_expiry: impl Fn(K, V) + Send + Sync + 'static) -> Self {
        match Self::builder(name).build(on_expiry) {
            Ok(tracker) => tracker,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build a tracker with other choices.
    pub fn builder(name: impl Into<String>) -> TrackerBuilder<K, V> {
        TrackerBuilder::new(name.into())
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> Tracker<K, V, S> {
    shared_methods!("values kept");

    /// Keeps `value` for `key` until `timeout` has passed ([`Duration::MAX`]: for ever), in place of what was kept
    /// for it before: that is returned, unless it is just expiring.
    ///
    /// Takes the lock of the key's map shard and, within it, that of a timer shard. Reads the clock once.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the tracker is full or shut down, or `Hash`, `Eq` or `Clone` of a key
    /// or the clock panicked. What was kept before stays.
    pub fn track(&self, key: K, value: V, timeout: Duration) -> Result<Option<V>, Rejected<V>> {
        let timers = &self.shared.inner;
        let tracked = timers.extra.track(timers, key, value, timeout, true);
        tracked.map(|(_, replaced)| replaced)
    }

    /// The same, but only if nothing is kept for `key`.
    ///
    /// # Errors
    /// As for [`track`](Self::track), and with [`RejectReason::Duplicate`](crate::RejectReason::Duplicate).
    pub fn try_track(&self, key: K, value: V, timeout: Duration) -> Result<(), Rejected<V>> {
        let timers = &self.shared.inner;
        let tracked = timers.extra.track(timers, key, value, timeout, false);
        tracked.map(drop)
    }

    /// Takes the value for `key`: the response has come, the session was closed. `None` if nothing is kept for it,
    /// or it is just expiring.
    ///
    /// Takes the lock of the key's map shard, and then that of a timer shard only if it is free.
    pub fn complete<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let address = self.entries().take(key)?;
        let completed = self.shared.inner.withdraw(address, Ending::Forced);
        completed.map(|(_, value)| value)
    }

    /// Lets the value for `key` expire `timeout` from now instead ([`Duration::MAX`]: never). `false` if nothing is
    /// kept for it, or it is just expiring.
    ///
    /// Takes the lock of the key's map shard, then that of a timer shard. Reads the clock in between; if that panics,
    /// so does this call.
    pub fn touch<Q>(&self, key: &Q, timeout: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries().find(key).is_some_and(|address| {
            let rescheduled = self.shared.inner.engine.reschedule(address, timeout);
            matches!(rescheduled, Rescheduled::Done(_))
        })
    }

    /// Whether a value is kept for `key`. Takes the lock of the key's map shard.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let address = self.entries().find(key);
        address.is_some_and(|address| self.shared.inner.engine.is_parked(address))
    }

    /// The time until the value for `key` expires, zero if its deadline has passed. `None` if nothing is kept for it,
    /// or for ever.
    ///
    /// Takes the lock of the key's map shard, then that of a timer shard. Reads the clock; if that panics, so does this
    /// call.
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared
            .inner
            .engine
            .remaining(self.entries().find(key)?)
    }

    /// Ends the tracker: nothing is taken from now on. Returns what was kept, if this is the first call. The
    /// tracker's own threads are joined, after the callbacks that wait for them have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<(K, V)> {
        // (A second caller must not take what the first one is still collecting.)
        if !self.shared.shutdown() {
            return Vec::new();
        }
        let remains = self.shared.inner.take_remains();
        // (`Hash` and `Eq` may panic: then the entry stays until the tracker is dropped.)
        for (key, _) in &remains {
            let engine = &self.shared.inner.engine;
            let _ = engine.guarded(|| self.entries().take(key));
        }
        remains
    }

    fn entries(&self) -> &Entries<K, S> {
        &self.shared.inner.extra
    }

    /// Ends one value, whatever value its key may have got since.
    fn withdraw(&self, key: &K, address: Address) -> Option<V> {
        let (_, value) = self.shared.inner.withdraw(address, Ending::Cancelled)?;
        // (`Hash` and `Eq` may panic: then the entry stays until the key is tracked again.)
        let engine = &self.shared.inner.engine;
        let _ = engine.guarded(|| self.entries().remove(key, address));
        Some(value)
    }
}

/// A [`Tracker`] that may be gone.
pub struct WeakTracker<K: TrackedKey, V: Send + 'static, S: KeyHasher = RandomState> {
    shared: WeakHandle<Timers<K, V, S>>,
}

shared_type!([K: TrackedKey, V: Send + 'static, S: KeyHasher] Tracker, WeakTracker, Tracker<K, V, S>, WeakTracker<K, V, S>);

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> TrackerBuilder<K, V, S> {
    /// Builds the tracker and starts its threads. `on_expiry` gets each value whose timeout has passed, with its key,
    /// on the thread that [`dispatch`](Self::dispatch) says.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(K, V) + Send + Sync + 'static,
    ) -> Result<Tracker<K, V, S>, BuildError> {
        let entries = Entries::<K, S>::new(self.hasher);
        let engine = Engine::new(self.settings)?;
        let on_expiry = move |entries: &Entries<K, S>, address, (key, value)| {
            // (If `Hash` or `Eq` of the key panics, the entry stays until the key is tracked again, and the callback
            // still runs.)
            let removed = catch_unwind(AssertUnwindSafe(|| entries.remove(&key, address)));
            on_expiry(key, value);
            if let Err(panic) = removed {
                resume_unwind(panic);
            }
        };
        Ok(Tracker {
            shared: SharedHandle::start(Timers::new(engine, entries, on_expiry)),
        })
    }
}
