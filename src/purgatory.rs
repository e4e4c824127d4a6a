//! Operations that wait for an event on their keys: [`Purgatory`], its settings, and what its calls return.

// Begin with `try_complete_else_watch` (a park) and `check_and_complete` (a check) below; an expiry begins with
// `ReaperLoop::run` in `src/threads/reaper.rs`, and comes by `src/engine/drive.rs` and `src/engine/expire.rs`. The work
// is done by methods of `Inner` (`inner`), which all clones share:
//
// * `collect`: `collect` makes the keys that an operation watches (`keys`)
// * `park`: `park`, `park_or_complete`, `register`
// * `check`: the checks of keys and of handles; `nested`: those that an examination makes; `deferred`: those that wait
//   for the reaper
// * `examine`: `examine`; `settle`: acts on the marks of other threads; `end`: `end_and_reclaim`, `cancel_key`,
//   `force_key`
// * `deadline`: asking for deadlines and moving them; `due`: what becomes of an operation whose timer has fired
// * `as_handler`: what the engine calls, at a deadline, at the shutdown, and to complete
//
// The watch lists are in `src/watch.rs`, deadlines in `src/engine.rs`, above the wheel of the crate `schemes`. Slots
// are in `src/cell.rs`, with the word that says which thread holds an operation, and what others ask of it: read
// `src/cell/state.rs` first. Where `on_complete` runs is decided in `src/engine/deliver.rs`; what must not nest waits
// in `src/callbacks/trampoline.rs`.

mod as_handler;
mod check;
mod checked_key;
mod collect;
mod deadline;
mod deferred;
mod due;
mod early;
mod end;
mod examine;
mod handle;
mod inner;
mod keys;
#[cfg(debug_assertions)]
mod missed_check;
mod nested;
mod park;
mod reach;
mod recycled_weak;
mod resolved_key;
mod settle;
mod snapshot;
#[cfg(debug_assertions)]
mod stuck;

pub use crate::engine::settings::Builder;
pub use crate::engine::shared_handle::WeakRef;
pub use crate::error::{BuildError, RejectReason, Rejected, ShutdownError};
pub use crate::hash::{Key, KeyHasher, RandomState};
pub use crate::operation::Cause;
pub use crate::stats::Stats;
pub use crate::watch::bound::Bound;
pub use collect::Watch;
pub use equivalent::Equivalent;
pub use handle::Handle;
pub(crate) use inner::Inner;
pub use park::Admission;
pub(crate) use park::{Arrival, Arrived};
pub(crate) use recycled_weak::RecycledWeak;
pub use resolved_key::ResolvedKey;
pub use snapshot::ParkedOperation;

use crate::engine::settings::sound;
use crate::engine::shared_handle::{SharedHandle, shared_methods, shared_type};
use crate::engine::shutdown::{
    drain, shut_down, shut_down_async, shut_down_if_idle, shut_down_within,
};
use crate::engine::{Engine, cores};
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use deferred::CheckTarget;
use inner::Own;
use std::hash::Hash;
use std::io;
use std::time::Duration;

/// Parks delayed operations until a check of one of their keys completes them, or they expire.
///
/// ```
/// use request_purgatory::{Completion, DelayedOperation, Purgatory};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
///
/// /// Waits until a log has reached an offset.
/// struct Fetch {
///     end: Arc<AtomicU64>,
///     offset: u64,
///     client: mpsc::Sender<Completion>,
/// }
///
/// impl DelayedOperation for Fetch {
///     type Key = u32; // the number of the log
///
///     fn timeout(&self) -> Duration {
///         Duration::from_secs(30)
///     }
///
///     fn try_complete(&mut self) -> bool {
///         self.end.load(Ordering::Acquire) >= self.offset
///     }
///
///     fn on_complete(self, completion: Completion) {
///         let _ = self.client.send(completion); // an error means that the client has gone
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let purgatory = Purgatory::new("fetch");
/// let (end, (client, answer)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
/// let fetch = Fetch { end: end.clone(), offset: 10, client };
/// purgatory.try_complete_else_watch(fetch, [7])?; // the log has not reached 10: it is parked
///
/// end.store(10, Ordering::Release); // first the change,
/// assert_eq!(purgatory.check_and_complete(&7), 1); // then the check
/// assert_eq!(answer.recv()?, Completion::Satisfied);
/// # Ok(())
/// # }
/// ```
///
/// The guide begins with [the words](crate::guide::words): keys, checks, watches, with a picture. Where each wait is a
/// closure and a future, the purgatory is a [`Waits`](crate::Waits).
///
/// Cloning is cheap, and clones are the same purgatory. When the last clone is dropped, it is [shut
/// down](Self::shutdown), with one difference: the drop waits at most about 10 ms for each thread of the purgatory,
/// because it may happen in a task of an async runtime. Completions in the queue of a thread still run, on that thread.
///
/// No method holds a lock of the library while it runs your code, except [`Hash`, `Eq` and `Clone` of
/// keys](DelayedOperation::Key). [`drain`](Self::drain) and the shutdowns wait for your code on other threads; no other
/// method does. Where a check finds that another thread is examining an operation, that thread examines it once more
/// (or, after 16 times in a row, leaves that to the thread that drives the timer). All methods may be called from
/// inside every callback. A check made inside a `try_complete` (in a park, also inside `timeout`, `arrival` and the
/// clock), or inside the change of [`force_complete_for_key_with`](Self::force_complete_for_key_with), returns 0; the
/// library makes it before the outermost call on that thread returns, once for each operation that makes it
/// ([`try_complete`](DelayedOperation::try_complete) has the rule).
///
/// After Kafka's `DelayedOperationPurgatory`. [From Kafka's API to this one](crate::guide::from_kafka) lists the
/// differences.
///
/// # Panics
/// No method panics by itself. Panics of your code:
/// * In your own park, a panic of a hook, a key, the iterator of keys or the clock unwinds to you. The park is taken
///   back: no watch, timer or permit stays, and the operation is dropped.
/// * A panic of an operation that a call examines or completes for somebody else is caught, ends that operation only,
///   and is [counted](crate::purgatory::Stats::panicked).
/// * `Hash`, `Eq`, `Clone` and `Drop` of a key in another call: as with the standard library's `HashMap`, results for
///   that key are unspecified. Memory stays safe, no lock stays held, and what has ended gets its completion.
pub struct Purgatory<Op: DelayedOperation, S: KeyHasher = RandomState> {
    pub(crate) shared: SharedHandle<Inner<Op, S>>,
}

impl<Op: DelayedOperation> Purgatory<Op> {
    /// A purgatory with a tick of 1 ms, a reaper thread and a completion thread of its own, both named after it.
    /// The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        sound(Self::builder(name).build())
    }

    /// Begins to build a purgatory with other choices: its tick, clock and threads, limits, the thread of completions. The
    /// settings are methods of [`Builder`].
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        let own = Own {
            map_shards: (64 * cores()).clamp(1024, 4096),
            max_watchers: usize::MAX,
        };
        Builder::new(name, (RandomState::default(), own))
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Purgatory<Op, S> {
    /// Completes `op` at once if it can complete. Otherwise parks it until a check of one of `keys` finds that it can,
    /// or until it expires.
    ///
    /// An event that happens after this call has begun is not missed: if a key is checked after the event, the
    /// operation is examined after the event, by the checking thread, by the thread that was examining it then, or, if
    /// that one has examined it 16 times in a row, by the thread that drives the timer. (Unless it was being ended, at
    /// its deadline for instance.) (A check that stops early, as
    /// [`check_and_complete_with`](Self::check_and_complete_with) may, examines the operations that its [`Bound`]
    /// says.)
    ///
    /// `keys` are keys or [watches](Watch): of [resolved](Self::resolve) keys, [at a rank](Watch::at_rank), or both. A
    /// key given twice counts once: at its lowest rank, or without one if it was once given without.
    ///
    /// Runs `try_complete` (twice, if it parks, and again for a check that comes meanwhile), `timeout` and, if it
    /// completes, `on_complete` on this thread. Takes the lock of one timer shard, for which it may wait shortly, and
    /// for each key that of its map shard, and within it, or alone where the key is given by its resolution, that of
    /// the list of a resolved key. Reads the clock once, unless the operation knows its
    /// [arrival](DelayedOperation::arrival). The first finite timeout starts the reaper, which takes about 0.1 ms.
    ///
    /// # Errors
    /// The operation comes back in a [`Rejected`], whose [reason](RejectReason) says why: there are no keys, the
    /// purgatory or a key is full, the purgatory is draining or shut down, too many parks are nested, or the system
    /// refused the reaper a thread. Whether the purgatory or a key is full, and whether there is a thread, is decided
    /// after the first examination only: an operation that can complete at once still does. The others come before it
    /// (those of a drain or a shutdown if that began before the call).
    ///
    /// # Panics
    /// If a hook of `op`, a key, the iterator of keys or the clock does. Nothing stays parked then, and `op` is
    /// dropped.
    pub fn try_complete_else_watch<'a>(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<Admission<Op, S>, Rejected<Op>> {
        self.shared.inner.park(op, keys)
    }

    /// Resolves a key: calls that use the result find its watchers without hashing. For keys that are checked often,
    /// such as the partitions of a broker.
    ///
    /// Takes the lock of the key's map shard and, within it, that of its list. Allocates if the key is not resolved
    /// yet.
    pub fn resolve(&self, key: Op::Key) -> ResolvedKey<Op, S> {
        ResolvedKey::new(&self.shared.inner, key)
    }

    /// Examines every operation that watches `key`, and completes those that say they can. Returns how many this call
    /// completed. Operations that watch the key [at a rank](Watch::at_rank) are examined first, in the order of ranks;
    /// then the others, in the order in which they were parked.
    ///
    /// Call it after every change that could satisfy an operation on this key, with none of your own locks held that
    /// `try_complete` or `on_complete` of *any* operation take; where that cannot be, use
    /// [`check_later`](Self::check_later). Runs `try_complete` and `on_complete` of those operations on this thread.
    /// If other threads keep checking one of them meanwhile, this thread examines it at most 16 times in a row, and
    /// defers the next examination to the reaper, or to the next [`advance`](Self::advance).
    ///
    /// Takes the lock of the key's map shard: once if at most 16 operations watch the key, none of them at a rank, and
    /// it is not resolved; otherwise once more for every 64 of them, and within it the lock of the list. For each
    /// operation that it completes, it takes the locks of the map shards of its keys, and that of the operation's timer
    /// shard only if it is free (with the feature `tracing`, it waits for that of an operation that expires meanwhile).
    /// No lock is held while your code runs.
    ///
    /// Inside a `try_complete` the check is made later, and this returns 0: see [`Purgatory`].
    pub fn check_and_complete<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared.inner.check_key(key, const { &Bound::all() })
    }

    /// Examines operations that watch `key`, as far as `bound` goes: for [at most](Bound::at_most) a number of
    /// completions, [up to a rank](Bound::up_to), [until one refuses](Bound::until_refused), or several of these.
    /// Returns how many operations this call completed.
    ///
    /// They are examined in the order in which they were parked; those with a rank come first, in its order, and it is
    /// still `try_complete` that decides. Runs and locks as [`check_and_complete`](Self::check_and_complete) does; a
    /// check for `n` completions takes the lock for `n` operations at first, and then for twice as many each time, at
    /// most 64.
    pub fn check_and_complete_with<Q>(&self, key: &Q, bound: Bound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        match bound.at_most {
            0 => 0,
            _ => self.shared.inner.check_key(key, &bound),
        }
    }

    /// Checks all of `keys` for one event: an operation that watches several of them is examined once. Returns how many
    /// operations this call completed. (Inside a `try_complete`, each key is checked by itself, later, and this returns
    /// 0.)
    ///
    /// Runs and locks as [`check_and_complete`](Self::check_and_complete) does for each key.
    pub fn check_and_complete_all<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized + 'q,
    {
        self.shared.inner.check_keys(keys.into_iter())
    }

    /// Checks every watched key that `is_concerned` picks, for events that do not say which keys they change. An
    /// operation that watches several of them is examined once. Returns how many operations this call completed.
    ///
    /// Takes the lock of each map shard in turn, while it clones the keys of the shard; `is_concerned` runs with no
    /// lock held. Its cost grows with the number of watched keys.
    pub fn check_where(&self, mut is_concerned: impl FnMut(&Op::Key) -> bool) -> usize {
        let inner = &self.shared.inner;
        let keys = inner.watch.all_keys();
        inner.check_keys(keys.iter().filter(|key| is_concerned(key)))
    }

    /// Defers a check of `key` to the reaper (with [`Reaper::Manual`](crate::threads::Reaper::Manual): to the next
    /// [`advance`](Self::advance)), which runs `try_complete`; the completions run where
    /// [`Builder::dispatch`] says. Several deferred checks of one key become one check.
    ///
    /// Takes one internal lock for an instant, under which it hashes and compares keys. Of your code it runs only that,
    /// the destructor of a key that is not needed, and a [reactor's wake function](crate::threads::Reaper::Reactor). So
    /// it is safe under any lock of yours that these do not take. After the shutdown it drops the key.
    ///
    /// The first call may start the reaper. If the system refuses the thread, the check stays deferred until a later
    /// call starts it, or until the next [`advance`](Self::advance).
    pub fn check_later(&self, key: Op::Key) {
        self.shared.inner.defer(CheckTarget::key(key), Bound::all());
    }

    /// Cancels every operation that watches `key`: each ends without a completion, and is returned.
    ///
    /// An operation that is being examined is not in the result: the thread that does so ends it, with
    /// [`Completion::Cancelled`](crate::Completion::Cancelled) unless it finds it satisfied or is expiring it.
    ///
    /// Takes the lock of the key's map shard and, for each operation, those of the map shards of its other keys; that
    /// of its timer shard only if it is free.
    pub fn cancel_for_key<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> Vec<Op> {
        self.shared.inner.cancel_key(key)
    }

    /// Completes every operation that watches `key` as satisfied, whether it can complete or not: for instance because
    /// the leader is lost, or the topic is deleted. Returns how many this call completed. An operation that is being
    /// examined is completed by the thread that does so, unless that finds it satisfied or is expiring it, and is not
    /// counted.
    ///
    /// Runs `on_complete` on this thread. Takes the lock of the key's map shard and, for each operation, those of the
    /// map shards of its other keys; that of its timer shard only if it is free.
    pub fn force_complete_for_key<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared.inner.force_key(key, None)
    }

    /// Runs `change` on every operation that watches `key`, and then completes it as satisfied. `change` may
    /// set the error that its `on_complete` answers with, for instance. Returns, runs and locks as
    /// [`force_complete_for_key`](Self::force_complete_for_key) does. (Kafka's `completeAllExceptionally`.)
    ///
    /// The change also reaches an operation that another thread is examining: that thread runs `change`, and then
    /// completes the operation, unless it finds it satisfied or is expiring it. So `change` may run on several threads,
    /// also after this call has returned. Of two such calls that meet at one operation, it is given one change. No lock
    /// is held while `change` runs. If it panics, the panic is counted, and the operation ends all the same.
    ///
    /// What `change` owns is dropped when this call returns, with one exception: a change that was left for an
    /// operation which another thread then finds satisfied is dropped by the next such call, or when the purgatory has
    /// nothing to do next, or at the shutdown.
    pub fn force_complete_for_key_with<Q: Hash + Equivalent<Op::Key> + ?Sized>(
        &self,
        key: &Q,
        change: impl Fn(&mut Op) + Send + Sync + 'static,
    ) -> usize {
        self.shared.inner.force_key(key, Some(Arc::new(change)))
    }

    /// The number of keys that at least one operation watches. Takes the lock of each map shard in turn, while it
    /// counts the keys of the shard; within it, for an instant, that of each resolved list.
    pub fn watched_keys(&self) -> usize {
        self.shared.inner.watch.keys()
    }

    /// Lists the parked operations, the oldest first.
    ///
    /// Takes the lock of each map shard in turn, while it clones the keys of the shard; then, for each key, that of its
    /// shard (and within it that of its resolved list) for 64 watchers at a time; then that of a timer shard for each
    /// operation. Does not hold up completions. Its cost in time and memory grows with the number of parked operations:
    /// for operators, not for the hot path. If the clock or a key panics, so does this call.
    pub fn snapshot(&self) -> Vec<ParkedOperation<Op::Key>> {
        self.shared.inner.snapshot()
    }

    /// Ends the purgatory: parks are rejected from now on, and every parked operation ends with
    /// [`Completion::ShutDown`](crate::Completion::ShutDown), on this thread or on one that is examining it. Then this
    /// call joins the purgatory's own threads, after the completions in their queues have run.
    ///
    /// Only the first call does this; a later one returns at once, even while the first is still running. No call waits
    /// for completions on an executor or on a shared reaper's thread: [`shutdown_timeout`](Self::shutdown_timeout)
    /// does. May be called from any callback, and does not wait for the threads there: they end as soon as the
    /// callbacks that they run have returned.
    pub fn shutdown(&self) {
        shut_down(&self.shared.inner);
    }

    /// [Shuts the purgatory down](Self::shutdown) if no operation is parked, and returns whether this call did. Of this
    /// call and a park that another thread makes meanwhile, one comes first: either the operation is parked, and this
    /// returns `false` and changes nothing, or the park is rejected with [`RejectReason::ShutDown`]. So what lives as
    /// long as somebody waits (the purgatory of one lease, an entry in a map of purgatories) can be ended by whoever
    /// finds it idle.
    ///
    /// Completions may still be running of operations that have ended. Takes the locks of all timer shards at once, and
    /// looks at each slot that was ever needed.
    pub fn shutdown_if_idle(&self) -> bool {
        shut_down_if_idle(&self.shared.inner)
    }

    /// Rejects every park from now on, with [`RejectReason::Draining`], and waits until every parked operation has
    /// ended by itself and its completion has run, or `limit` has passed. Returns how many operations are still parked:
    /// [`snapshot`](Self::snapshot) says which. Timers and checks go on; a [`shutdown`](Self::shutdown) is the next
    /// step, and ends a drain that waits.
    ///
    /// A park that another thread began before this call may still succeed until the call has reached its timer shard.
    /// After that the number of parked operations only falls.
    ///
    /// A completion that another thread runs inside its own call, of a check that satisfied the operation for instance,
    /// may still be running: this call does not wait for it. Looks again after pauses of at most 5 ms. Where no thread
    /// of the library drives the timer, this call does ([`advance`](Self::advance)). In a callback it does not wait.
    /// The time is that of the system, not of the [`clock`](crate::purgatory::Builder::clock).
    pub fn drain(&self, limit: Duration) -> usize {
        drain(&self.shared.inner, limit)
    }

    /// [Shuts the purgatory down](Self::shutdown) on a thread of its own, and waits at most `limit` for the end of that
    /// and for the completions that were handed to an executor or to a shared reaper's thread. In a callback it does
    /// not wait.
    ///
    /// The callbacks of the shutdown run on that thread, so no callback, however slow, makes this call take longer.
    ///
    /// # Errors
    /// [`ShutdownError`], with what was still running when `limit` had passed. It goes on in the background.
    pub fn shutdown_timeout(&self, limit: Duration) -> Result<(), ShutdownError> {
        shut_down_within(&self.shared.inner, limit)
    }

    /// [Shuts the purgatory down](Self::shutdown) on a thread of its own, so that no thread of an async runtime is
    /// blocked, and returns a [`Future`] of the end. The shutdown begins with this call, and goes on whether the future
    /// is polled, dropped or neither. The future is ready when every parked operation has ended and the purgatory's own
    /// threads have been joined. It needs no runtime.
    ///
    /// # Errors
    /// If the system refuses the thread. Nothing has happened then.
    pub fn shutdown_async(
        &self,
    ) -> io::Result<impl Future<Output = ()> + Send + Unpin + use<Op, S>> {
        shut_down_async(&self.shared.inner)
    }

    /// The number of operations that watch `key`. Exact when no call is in progress. After a storm of expiries they
    /// count for a moment longer, until their watches are reclaimed.
    ///
    /// Takes the lock of the key's map shard and, if the key is resolved, within it that of its list.
    pub fn watchers<Q: Hash + Equivalent<Op::Key> + ?Sized>(&self, key: &Q) -> usize {
        self.shared.inner.watch.count(key)
    }

    // `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/engine/shared_handle.rs`.
    shared_methods!("parked operations"
        /// Makes deferred checks as well. `try_complete` of an operation whose deadline has passed, or that a deferred
        /// check examines, runs on this thread. Inside a `try_complete`, deferred checks are left for the next call;
        /// inside one that runs because a deadline has passed, everything is left, and this returns 0.
    );
}

shared_type!([Op: DelayedOperation, S: KeyHasher] Purgatory, Purgatory<Op, S>, Inner<Op, S>, (S, Own));

impl<Op: DelayedOperation, S: KeyHasher> Builder<Purgatory<Op, S>> {
    /// The number of map shards, each with a lock of its own: the next power of two, from 2 to 65,536. With more of
    /// them, threads meet less often at a lock; each takes 128 bytes. Default: 64 for each processor, at least 1,024
    /// and at most 4,096. Choose fewer if a process has hundreds of purgatories.
    pub fn map_shards(mut self, shards: usize) -> Self {
        self.own.1.map_shards = shards;
        self
    }

    /// The most operations that may watch one key at a time: beyond, a park on it is rejected
    /// ([`KeyFull`](RejectReason::KeyFull)). So no client can make the checks of one key long. The bound is exact; a
    /// rejected operation counts as [cancelled](Stats::cancelled). After a storm of expiries, completions wait until
    /// the watches of what has ended are removed, as with [`max_parked`](Self::max_parked). Default: none.
    pub fn max_watchers_per_key(mut self, count: usize) -> Self {
        self.own.1.max_watchers = count;
        self.settings.reclaim_first = true;
        self
    }

    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Purgatory<Op, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// Builds the purgatory. With the feature `metrics`, it reports to the recorder that is
    /// installed now.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Purgatory<Op, S>, BuildError> {
        let engine = Engine::new(self.settings)?.observed();
        let (hasher, own) = self.own;
        let inner = Inner::new(engine, hasher, &own);
        Ok(Purgatory {
            shared: SharedHandle::start(inner),
        })
    }
}
