//! One timer for each key: heartbeats, sessions, leases, and the calls that a client waits for.

mod builder;
mod core;
mod requests;

pub use builder::TrackerBuilder;
pub use requests::{Request, Requests, RequestsBuilder, Unanswered};

use crate::RandomState;
use crate::engine::drive::{advance, rearm_for_caller, shut_down};
use crate::engine::owner::{Face, WeakFace};
use crate::error::Rejected;
use crate::operation::KeyHasher;
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use core::Core;
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

/// What the keys of a [`Tracker`] must be. Implemented by all types that can be.
pub trait TrackedKey: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> TrackedKey for K {}

/// Keeps one value for each key until it is completed, or its timeout passes.
///
/// It stands on the engine of the [`Purgatory`](crate::Purgatory), with its guarantees. In place of watchers by key
/// there is a map with one entry for each: a session that lives as long as its heartbeats
/// [touch](Self::touch) it, a lease, a call that waits for its response ([`Requests`] makes futures of these).
///
/// ```
/// use request_purgatory::{ManualClock, Reaper, Tracker};
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
/// of keys run under the lock of one shard of the map. None but [`advance`](Self::advance) runs the callback, so a lock
/// that it takes may be held while a value is tracked, touched or completed.
pub struct Tracker<K: TrackedKey, V: Send + 'static, S: KeyHasher = RandomState> {
    face: Face<Core<K, V, S>>,
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
    /// Keeps `value` for `key` until `timeout` has passed ([`Duration::MAX`]: for ever), in place of what was kept
    /// for it before: that is returned, unless it is just expiring.
    ///
    /// Takes the lock of the key's shard and, within it, that of a home. Reads the clock once.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the tracker is full or shut down, or `Hash`, `Eq` or `Clone` of a key
    /// or the clock panicked. What was kept before stays.
    pub fn track(&self, key: K, value: V, timeout: Duration) -> Result<Option<V>, Rejected<V>> {
        let tracked = self.face.core.track(key, value, timeout, true);
        tracked.map(|(_, replaced)| replaced)
    }

    /// The same, but only if nothing is kept for `key`.
    ///
    /// # Errors
    /// As for [`track`](Self::track), and [`Rejected::Duplicate`].
    pub fn try_track(&self, key: K, value: V, timeout: Duration) -> Result<(), Rejected<V>> {
        self.face.core.track(key, value, timeout, false).map(drop)
    }

    /// Takes the value for `key`: the response has come, the session was closed. `None` if nothing is kept for it,
    /// or it is just expiring.
    ///
    /// Takes the lock of the key's shard, and then that of a home only if it is free.
    pub fn complete<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.complete(key)
    }

    /// Lets the value for `key` expire `timeout` from now instead ([`Duration::MAX`]: never). `false` if nothing is
    /// kept for it, or it is just expiring.
    ///
    /// Takes the lock of the key's shard, then that of a home. Reads the clock in between; if that panics, so does this
    /// call.
    pub fn touch<Q>(&self, key: &Q, timeout: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.touch(key, timeout)
    }

    /// Whether a value is kept for `key`. Takes the lock of the key's shard.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let core = &self.face.core;
        let address = core.find(key);
        address.is_some_and(|address| core.engine.is_parked(address))
    }

    /// The time until the value for `key` expires, zero if its deadline has passed. `None` if nothing is kept for it,
    /// or for ever.
    ///
    /// Takes the lock of the key's shard, then that of a home. Reads the clock; if that panics, so does this call.
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let core = &self.face.core;
        core.engine.remaining(core.find(key)?)
    }

    /// Values kept now. Exact when no call is in progress. Takes no lock.
    pub fn len(&self) -> usize {
        self.stats().parked
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far: of a tracker, `parked` are kept now, `completed` were completed, and `cancelled` were
    /// replaced. Takes no lock.
    pub fn stats(&self) -> Stats {
        self.face.core.engine.stats()
    }

    /// Expires what is due, for trackers without a reaper (with one, it is harmless). Returns how many this call
    /// expired. What callbacks make due meanwhile is left for the next call.
    ///
    /// Takes every home's lock in turn, for a slice of values at a time, and the shard of each key that expires. Reads
    /// the clock; if that panics, so does this call.
    pub fn advance(&self) -> usize {
        let expired = advance(&self.face.core);
        rearm_for_caller(&*self.face.core);
        expired
    }

    /// When [`advance`](Self::advance) has something to do next, on the tracker's clock: at or before the first
    /// deadline. `None`: not before something is tracked.
    ///
    /// Takes every home's lock in turn, and may wake the reaper.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let next = rearm_for_caller(&*self.face.core);
        (next != NEVER).then(|| self.face.core.engine.timestamp(next))
    }

    /// Ends the tracker: nothing is taken from now on. Returns what was kept, if this is the first call. The
    /// tracker's own threads are joined, after the callbacks that wait for them have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<(K, V)> {
        match shut_down(&self.face.core) {
            true => self.face.core.take_remains(),
            false => Vec::new(),
        }
    }

    /// Whether the tracker has been shut down.
    pub fn is_shut_down(&self) -> bool {
        self.face.core.engine.is_closed()
    }

    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.face.core.engine.name
    }

    /// A face that does not keep the tracker alive: for callbacks.
    pub fn downgrade(&self) -> WeakTracker<K, V, S> {
        WeakTracker {
            face: self.face.downgrade(),
        }
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> Clone for Tracker<K, V, S> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> fmt::Debug for Tracker<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A [`Tracker`] that may be gone.
pub struct WeakTracker<K: TrackedKey, V: Send + 'static, S: KeyHasher = RandomState> {
    face: WeakFace<Core<K, V, S>>,
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> WeakTracker<K, V, S> {
    /// The tracker, if some strong face of it is left.
    pub fn upgrade(&self) -> Option<Tracker<K, V, S>> {
        let face = self.face.upgrade()?;
        Some(Tracker { face })
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> Clone for WeakTracker<K, V, S> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> fmt::Debug for WeakTracker<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTracker")
            .field("alive", &self.face.is_alive())
            .finish()
    }
}
