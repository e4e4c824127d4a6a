//! The purgatory: where cell, watcher map and timer meet.
//!
//! The life of an operation, file by file: [`park`] puts it in, [`check`] and [`expire`] find it again, and
//! [`end`] examines it and takes it out. [`core`] is what they all work on, above the [`engine`](crate::engine), where
//! operations lie.

mod builder;
mod check;
mod core;
mod end;
mod expire;
mod handle;
mod keys;
mod park;
mod resolved_key;
mod snapshot;
mod tether;

pub use builder::Builder;
pub use handle::Handle;
pub use keys::WatchOn;
pub use park::{Arrival, Watch};
pub use resolved_key::ResolvedKey;
pub use snapshot::ParkedOperation;

use crate::RandomState;
use crate::engine::deliver::Site;
use crate::engine::drive::{advance, rearm_for_caller, shut_down};
use crate::engine::owner::{Face, WeakFace};
use crate::error::Rejected;
use crate::observe::Stay;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use crate::watch::list::Rank;
use core::{Core, Later};
use keys::Keys;
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

/// What lies in a slot.
pub(crate) struct Parked<Op: DelayedOperation> {
    op: Op,
    keys: Keys<Op::Key>,
    stay: Stay,
}

/// The place where delayed operations wait, until a key that they watch is checked or their timeout fires.
///
/// Cloning is cheap, and clones are the same purgatory. When the last clone is dropped, it is
/// [shut down](Self::shutdown).
///
/// No method holds a lock of the library while it runs code of the user's (but for
/// [`Hash`, `Eq` and `Clone` of keys](DelayedOperation::Key)), and none but [`shutdown`](Self::shutdown)
/// waits for a thread that does: an operation that is being examined elsewhere is left to that thread, with a mark that
/// makes it look again. All methods may be called from inside every callback.
///
/// After Kafka's `DelayedOperationPurgatory`; what differs is in the guide's chapter *From Kafka's API to this one*.
///
/// # Panics
/// But for [`new`](Self::new) and [`wait_blocking`](Self::wait_blocking), no method panics by itself. What `Hash` or
/// `Eq` of a key panics with in a call by key goes through to its caller, after those that the call had ended by then
/// were told (what `cancel_for_key` had taken back is told that it was cancelled); a park returns
/// [`Rejected::Panicked`] instead, as it does if the clock panics. Panics of `try_complete` and `on_complete` are
/// caught and [counted](Stats::panicked).
pub struct Purgatory<Op: DelayedOperation, S: KeyHasher = RandomState> {
    face: Face<Core<Op, S>>,
}

impl<Op: DelayedOperation> Purgatory<Op> {
    /// A purgatory with a tick of 1 ms, a reaper thread and a completion thread of its own, both named after it.
    ///
    /// # Panics
    /// If the system refuses a thread. [`Builder::build`] returns that as an error.
    pub fn new(name: impl Into<String>) -> Self {
        match Self::builder(name).build() {
            Ok(purgatory) => purgatory,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build a purgatory with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Op> {
        Builder::new(name.into())
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Purgatory<Op, S> {
    /// Completes `op` at once if it can complete, else parks it until a check of any of `keys` finds that it can, or
    /// its timeout fires.
    ///
    /// An event that happens after this call has begun is not missed: if a key is checked after the event, the
    /// operation is examined after the event, by the checking thread or by the one that held it then. A key given
    /// twice counts once.
    ///
    /// Runs `try_complete` (twice, if it parks), `timeout` and, if it completes, `on_complete` on this thread. Takes
    /// one lock of a home, for which it may wait shortly, and one of a shard of the watcher map for each key. Reads
    /// the clock once.
    ///
    /// # Errors
    /// The operation comes back in a [`Rejected`]: there are no keys, the purgatory is full or shut down, or a hook of
    /// the operation panicked.
    #[inline]
    pub fn try_complete_else_watch(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = Op::Key>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let core = &self.face.core;
        core.park(op, || Keys::collect(keys, &core.hasher), None)
    }

    /// The same for watches of all kinds: plain and [resolved](Self::key) keys, and any of them
    /// [at a rank](WatchOn::at_rank). A key given twice counts once: at its lowest rank, or without one if it was once
    /// given without.
    ///
    /// # Errors
    /// As for [`try_complete_else_watch`](Self::try_complete_else_watch).
    #[inline]
    pub fn try_complete_else_watch_on<'a>(
        &self,
        op: Op,
        watches: impl IntoIterator<Item = WatchOn<'a, Op, S>>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let core = &self.face.core;
        core.park(op, || core.keys_of(watches), None)
    }

    /// Parks operations that came at `arrival`, a reading of this purgatory's clock that the caller has made already:
    /// parking reads no clock then.
    ///
    /// The timeout counts from that reading. From an old one, less of it is left; if none is, the operation expires
    /// with the next tick. A reading of the future only means a later deadline, also past
    /// [`Builder::max_timeout`]; nothing else depends on it.
    pub fn at(&self, arrival: Timestamp) -> Arrival<'_, Op, S> {
        Arrival {
            purgatory: self,
            arrival,
        }
    }

    /// Resolves a key: it is found without hashing from then on. For keys that are checked often, such as the
    /// partitions of a broker.
    ///
    /// Takes the lock of the key's shard and, within it, that of the list, and allocates if the key was not resolved.
    pub fn key(&self, key: Op::Key) -> ResolvedKey<Op, S> {
        ResolvedKey::new(&self.face.core, key)
    }

    /// Examines every operation that watches `key`, and completes those that say they can. Returns how many this call
    /// completed.
    ///
    /// Call it after every change that could satisfy an operation on this key, with none of your own locks held that
    /// `try_complete` or `on_complete` of *any* operation take; where that cannot be, use
    /// [`check_later`](Self::check_later). Runs `try_complete` and `on_complete` of those operations on this thread.
    /// (If other threads keep checking one of them meanwhile, the seventeenth look in a row is left to the reaper, or
    /// to the next [`advance`](Self::advance): a hot key does not hold up the thread that happened to be first.)
    ///
    /// Takes the lock of the key's shard; for what it completes, those of the other keys' shards, and that of the home
    /// only if it is free. None of them is held during these calls.
    #[inline]
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.check_key(key, Rank::MAX, Site::Here)
    }

    /// The same, but of those that watch `key` [at a rank](WatchOn::at_rank) it examines only those up to `rank`, in
    /// that order, then all that watch it without one. Costs in what it examines, not in what waits above.
    ///
    /// The rank says who may be satisfied; `try_complete` still decides. Runs and locks as
    /// [`check_and_complete`](Self::check_and_complete) does, the key's shard anew for every 64 that it examines.
    #[inline]
    pub fn check_and_complete_up_to<Q>(&self, key: &Q, rank: u64) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.check_key(key, rank, Site::Here)
    }

    /// Has `key` checked soon, by the reaper (with [`Reaper::Manual`](crate::Reaper::Manual): by the next
    /// [`advance`](Self::advance)), which runs `try_complete`; the completions run where
    /// [`Builder::completions`] says.
    ///
    /// Takes no lock and runs no user code but a [reactor's waker](crate::Reaper::Reactor), so it is safe under any
    /// lock of yours that the waker does not take. (After the shutdown it drops the key, and those that others have
    /// just put off.)
    pub fn check_later(&self, key: Op::Key) {
        self.face.core.put_off(Later::Key(key));
    }

    /// Takes back every operation that watches `key`: each ends without a completion.
    ///
    /// One that another thread is examining right now is not in the result: that thread ends it, with
    /// [`Completion::Cancelled`](crate::Completion::Cancelled) unless it finds it satisfied or is just expiring it.
    ///
    /// Takes the locks of the key's shard and, for each operation, of its other keys' shards; a home's only if it is
    /// free.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<Op>
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.cancel_key(key)
    }

    /// Completes every operation that watches `key` as satisfied, whether it can complete or not: the leader is
    /// lost, the topic deleted. Returns how many this call completed; one that another thread is examining right now
    /// is completed by that thread.
    ///
    /// Runs `on_complete` on this thread. Takes the locks of the key's shard and, for each operation, of its other
    /// keys' shards; a home's only if it is free.
    pub fn force_complete_for_key<Q>(&self, key: &Q) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.force_key(key)
    }

    /// Lets every operation that watches `key` expire `timeout` from now instead ([`Duration::MAX`]: never). The bound
    /// of [`Builder::max_timeout`] applies. Returns how many got the new deadline.
    ///
    /// Takes the lock of the key's shard, then a home's for each operation, and reads the clock for each; if that
    /// panics, so does this call, and some have the new deadline.
    pub fn reschedule_for_key<Q>(&self, key: &Q, timeout: Duration) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.face.core.reschedule_key(key, timeout)
    }

    /// Operations parked now (Kafka's `NumDelayedOperations`). Exact when no call is in progress. Takes no lock.
    pub fn delayed(&self) -> usize {
        self.stats().parked
    }

    /// Watch entries now: the sum of the keys of all parked operations (Kafka's `PurgatorySize`, of which the ended
    /// are no part here; only after many have expired at once, their entries count until they are cleared away). Takes
    /// no lock.
    pub fn watched(&self) -> usize {
        self.stats().watched
    }

    /// What happened so far. Takes no lock.
    pub fn stats(&self) -> Stats {
        self.face.core.engine.stats()
    }

    /// Keys that some operation watches. Takes the lock of each shard of the watcher map in turn, and has it while it
    /// counts the keys of the shard; within it, for an instant, that of each resolved list.
    pub fn watched_keys(&self) -> usize {
        self.face.core.watch.keys()
    }

    /// What is parked, the oldest first.
    ///
    /// Takes the lock of each shard of the watcher map in turn (and, within it, that of each resolved list), and has it
    /// while it clones the keys of all watches in the shard; then takes a home's lock for each operation; holds no
    /// operation. Costs time and memory in what is parked: for operators, not for the hot path. If the clock or `Clone`
    /// of a key panics, so does this call.
    pub fn snapshot(&self) -> Vec<ParkedOperation<Op::Key>> {
        self.face.core.snapshot()
    }

    /// Expires what is due and performs the checks put off until later; for purgatories without a reaper (with one,
    /// it is harmless). Returns how many operations this call expired.
    ///
    /// Runs `try_complete` of the operations concerned on this thread, and their `on_complete` where
    /// [`Builder::completions`] says. What user code makes due meanwhile is left for the next call.
    ///
    /// Takes every home's lock in turn, for a slice of timers at a time, and the shards of the keys of what it ends.
    /// Reads the clock; if that panics, so does this call.
    pub fn advance(&self) -> usize {
        let expired = advance(&self.face.core);
        rearm_for_caller(&*self.face.core);
        expired
    }

    /// When [`advance`](Self::advance) has something to do next, on the purgatory's clock: the start of the earliest
    /// non-empty bucket of the wheel, at or before the first deadline. `None`: not before something is parked.
    ///
    /// Takes every home's lock in turn, and may wake the reaper.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let next = rearm_for_caller(&*self.face.core);
        (next != NEVER).then(|| self.face.core.engine.timestamp(next))
    }

    /// Ends the purgatory: parks are refused from now on, and every parked operation ends with
    /// [`Completion::ShutDown`](crate::Completion::ShutDown), on this thread or on one that is just examining it.
    /// Then the purgatory's own threads are joined, after the completions that wait for them have run.
    ///
    /// May be called more than once (later calls return at once) and from any callback: then it does not wait for the
    /// threads, which end as soon as the callbacks that they run have returned.
    pub fn shutdown(&self) {
        shut_down(&self.face.core);
    }

    /// Whether the purgatory has been shut down.
    pub fn is_shut_down(&self) -> bool {
        self.face.core.engine.is_closed()
    }

    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.face.core.engine.name
    }

    /// A face that does not keep the purgatory alive: for callbacks, and for operations that refer to the purgatory
    /// they wait in.
    pub fn downgrade(&self) -> WeakPurgatory<Op, S> {
        WeakPurgatory {
            face: self.face.downgrade(),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Clone for Purgatory<Op, S> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for Purgatory<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purgatory")
            .field("name", &self.face.core.engine.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A [`Purgatory`] that may be gone.
pub struct WeakPurgatory<Op: DelayedOperation, S: KeyHasher = RandomState> {
    face: WeakFace<Core<Op, S>>,
}

impl<Op: DelayedOperation, S: KeyHasher> WeakPurgatory<Op, S> {
    /// The purgatory, if some strong face of it is left.
    pub fn upgrade(&self) -> Option<Purgatory<Op, S>> {
        let face = self.face.upgrade()?;
        Some(Purgatory { face })
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Clone for WeakPurgatory<Op, S> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for WeakPurgatory<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakPurgatory")
            .field("alive", &self.face.is_alive())
            .finish()
    }
}
